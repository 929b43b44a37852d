/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub topo: the hardware of this machine, and which core of a box on it would own what of a model. The plan is made by
 * the same functions as in the box.
 */
#include "phub/cli/topo.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregation/convert.h"
#include "phub/cli/args.h"
#include "phub/cli/cli.h"
#include "phub/cli/models.h"
#include "phub/cli/output.h"
#include "topology/chunking.h"
#include "topology/discover.h"
#include "topology/pick.h"
#include "topology/placement.h"
#include "transport/rails.h"
#include "transport/rdma.h"

enum { TOPO_UNSAID = -1 }; /* --hierarchy and --lift, before they are */

static int topo_plan(struct topo *t, const struct model *m, struct err *e)
{
	struct chunk_key *keys = calloc(m->count, sizeof(*keys));
	struct chunk_plan plan = {0};
	uint32_t *bytes = NULL;
	uint16_t *core_of = NULL;
	int rc = keys ? 0 : -ENOMEM;

	if (rc == 0) {
		model_fill_keys(m, keys);
		rc = chunking_plan(keys, (uint32_t)m->count, (uint32_t)t->chunk_bytes, &plan, e);
		free(keys);
		if (rc < 0)
			return rc;
		bytes = calloc(plan.chunk_count, sizeof(*bytes));
		core_of = calloc(plan.chunk_count, sizeof(*core_of));
		rc = bytes && core_of ? 0 : -ENOMEM;
	}
	if (rc == 0) {
		for (uint32_t i = 0; i < plan.chunk_count; i++)
			bytes[i] = plan.chunks[i].bytes;
		rc = placement_lpt(bytes, plan.chunk_count, t->placed, (unsigned)t->cores, core_of);
	}
	for (uint32_t i = 0; rc == 0 && i < plan.chunk_count; i++)
		t->chunk_count[core_of[i]]++;
	free(bytes);
	free(core_of);
	chunking_plan_fini(&plan);
	return rc < 0 ? err_set(e, rc, "no plan for %s: out of memory", m->name) : 0;
}

const char *topo_nic(const struct topo *t, const struct placement_core *core)
{
	return core->nic == PLACEMENT_NIC_NONE ? "-" : t->host.nics[core->nic].name;
}

/* The RDMA ports that are meant for a core, of those that a box opens. Returns how many. */
static unsigned topo_core_ports(const struct topo *t, unsigned core, const struct rdma_port *out[RAILS_MAX])
{
	const struct rdma_port *usable[RAILS_PORTS_MAX] = {NULL};
	struct rails_port seen[RAILS_PORTS_MAX] = {{.distance = 0}};
	uint8_t chosen[RAILS_MAX];
	unsigned count = 0;

	for (int i = 0; i < t->port_count && count < RAILS_PORTS_MAX; i++) {
		if (!t->ports[i].usable)
			continue;
		seen[count].distance = rails_distance(NULL, t->placed[core].node, t->ports[i].node);
		usable[count++] = &t->ports[i];
	}
	count = rails_of_core(seen, count, core, chosen);
	for (unsigned i = 0; i < count; i++)
		out[i] = usable[chosen[i]];
	return count;
}

static json_t *topo_json_core_ports(const struct topo *t, unsigned core)
{
	const struct rdma_port *ports[RAILS_MAX];
	unsigned count = topo_core_ports(t, core, ports);
	json_t *names = json_array();
	char name[RDMA_NAME_BYTES];

	for (unsigned i = 0; i < count; i++)
		json_array_append_new(names, json_string(rdma_port_name(ports[i], name)));
	return names;
}

static void topo_print_core_ports(struct output_table *table, const struct topo *t, unsigned core)
{
	const struct rdma_port *ports[RAILS_MAX];
	unsigned count = topo_core_ports(t, core, ports);
	char text[RAILS_MAX * (RDMA_NAME_BYTES + 1)] = "-", name[RDMA_NAME_BYTES];
	size_t at = 0;

	for (unsigned i = 0; i < count; i++)
		at += (size_t)snprintf(
			text + at, sizeof(text) - at, "%s%s", i ? "," : "", rdma_port_name(ports[i], name));
	output_cell(table, "%s", text);
}

static bool topo_json_plan(const struct topo *t, const struct model *m, double imbalance)
{
	bool ok = true;

	for (unsigned i = 0; ok && i < t->cores; i++) {
		const struct placement_core *c = &t->placed[i];

		ok = output_json(json_pack("{s:s, s:s, s:i, s:i, s:i, s:s, s:o, s:I, s:I}", "topo", "core", "model",
			m->name, "core", (int)i, "cpu", c->cpu, "node", c->node, "nic", topo_nic(t, c), "rdma",
			topo_json_core_ports(t, i), "chunks", (json_int_t)t->chunk_count[i], "bytes",
			(json_int_t)c->bytes));
	}
	return ok && output_json(json_pack("{s:s, s:s, s:i, s:f}", "topo", "balance", "model", m->name, "cores",
			     (int)t->cores, "imbalance", imbalance));
}

static void topo_print_plan(const struct topo *t, const struct model *m, double imbalance)
{
	struct output_table table = {
		.heads = {"core", "cpu", "node", "nic", "rdma", "chunks", "bytes"}, .align = "rrrllrr"};
	char text[32];

	printf("\n%s: %zu tensors, %s in chunks of %" PRIu64 " bytes on %" PRIu64 " core%s\n", m->name, m->count,
		output_bytes(model_bytes(m), text), t->chunk_bytes, t->cores, t->cores == 1 ? "" : "s");
	for (unsigned i = 0; i < t->cores; i++) {
		const struct placement_core *c = &t->placed[i];

		output_cell(&table, "%u", i);
		output_cell(&table, c->cpu < 0 ? "-" : "%d", c->cpu);
		output_cell(&table, c->node < 0 ? "-" : "%d", c->node);
		output_cell(&table, "%s", topo_nic(t, c));
		topo_print_core_ports(&table, t, i);
		output_cell(&table, "%" PRIu32, t->chunk_count[i]);
		output_cell(&table, "%" PRIu64, c->bytes);
	}
	output_table_print(&table);
	if (t->cores > t->host.cpu_count)
		printf("no core is pinned: there are more of them than CPUs\n");
	printf("imbalance (fullest core / mean): %.4f\n", imbalance);
}

static int topo_show_model(const struct topo *t, const struct model *m, struct err *e)
{
	double imbalance = placement_core_balance(t->placed, (unsigned)t->cores).imbalance;

	if (!t->json)
		topo_print_plan(t, m, imbalance);
	else if (!topo_json_plan(t, m, imbalance))
		return err_set(e, -ENOMEM, "out of memory");
	return 0;
}

static int topo_show_host(const struct topo *t, struct err *e)
{
	if (t->json)
		return topo_json_host(t) ? 0 : err_set(e, -ENOMEM, "out of memory");
	topo_print_host(t);
	return 0;
}

/* As a box does: it pins its cores to good CPUs, and when there are more cores than CPUs, to none. */
static int topo_pick(struct topo *t, struct err *e)
{
	if (t->cores <= t->host.cpu_count)
		return topology_pick_cores(&t->host, NULL, 0, (unsigned)t->cores, t->placed, e);
	for (unsigned i = 0; i < t->cores; i++)
		t->placed[i] = (struct placement_core){.cpu = -1, .node = -1, .nic = PLACEMENT_NIC_NONE};
	return 0;
}

static int topo_show(struct topo *t, struct err *e)
{
	struct model m;
	struct discover_options from = {.root = t->sysfs};
	int rc = discover_host(&from, &t->host, e);

	if (rc < 0)
		return rc;
	t->port_count = t->sysfs ? 0 : rdma_ports_list(t->ports, RDMA_PORTS_MAX);
	if (t->port_count > RDMA_PORTS_MAX)
		t->port_count = RDMA_PORTS_MAX;
	if (!t->model) {
		rc = t->racks.svg ? topo_draw_host(t, NULL, e) : 0;
		return rc < 0 ? rc : topo_show_host(t, e);
	}
	if (!t->cores)
		t->cores = t->host.cpu_count > 1 ? t->host.cpu_count / 2 : 1;
	rc = topo_pick(t, e);
	if (rc == 0)
		rc = models_load(t->model, &m, e);
	if (rc < 0)
		return rc;
	/* Nothing is printed before all of it is known. */
	rc = topo_plan(t, &m, e);
	if (rc == 0 && t->racks.svg)
		rc = topo_draw_host(t, m.name, e);
	if (rc == 0)
		rc = topo_show_host(t, e);
	if (rc == 0)
		rc = topo_show_model(t, &m, e);
	model_destroy(&m);
	return rc;
}

static int topo_show_racks(struct topo *t, struct err *e)
{
	if (t->racks.way == TOPO_UNSAID)
		t->racks.way = WAYS_TREE;
	if (t->racks.lift == TOPO_UNSAID)
		t->racks.lift = DTYPE_F32;
	t->racks.model = t->model;
	t->racks.chunk_bytes = t->chunk_bytes;
	t->racks.json = t->json;
	return topo_racks_show(&t->racks, e);
}

/* What belongs to a rack file, and what to this machine. */
static int topo_check_racks(const struct args_usage *usage, const struct topo *t)
{
	const struct topo_racks_options *r = &t->racks;

	if (r->path && t->cores)
		return args_wrong(usage, "--cores is of this machine; those of boxes are in the rack file");
	bool some = r->root || r->way != TOPO_UNSAID || r->lift != TOPO_UNSAID || r->hostbox;

	if (!r->path && some)
		return args_wrong(usage, "--hierarchy, --root, --lift and --hostbox belong to --racks FILE");
	if (!t->model && some)
		return args_wrong(usage, "--hierarchy, --root, --lift and --hostbox belong to --model NAME");
	return ARGS_GO_ON;
}

static int topo_run_with(struct topo *t, int argc, char **argv)
{
	static const char *const topo_ways[] = {"flat", "tree", "sharded", "chain", NULL};
	static const char *const topo_lifts[] = {"f32", "f16", "bf16", NULL};
	const struct args_option options[] = {
		{"model", "NAME", "place this model (see phub models) or CSV", ARGS_TEXT, &t->model, 0, 0, NULL},
		{"cores", "N", "of the box (half of the CPUs here)", ARGS_NUMBER, &t->cores, 1,
			PLACEMENT_CORE_COUNT_MAX, NULL},
		{"chunk", "BYTES", "of a chunk, a power of two (32KiB)", ARGS_POWER, &t->chunk_bytes,
			CHUNKING_CHUNK_BYTES_MIN, CHUNKING_CHUNK_BYTES_MAX, NULL},
		{"racks", "FILE", "instead: the racks, boxes and hosts of this rack file", ARGS_TEXT, &t->racks.path, 0,
			0, NULL},
		{"hierarchy", "WAY", "of homes and picture: flat, tree, sharded or chain (tree)", ARGS_CHOICE,
			&t->racks.way, 0, 0, topo_ways},
		{"root", "BOX", "that flat and tree end at (the first)", ARGS_TEXT, &t->racks.root, 0, 0, NULL},
		{"lift", "TYPE", "of sums between boxes: f32, f16 or bf16 (f32)", ARGS_CHOICE, &t->racks.lift, 0, 0,
			topo_lifts},
		{"hostbox", NULL, "each host's workers are summed there first (?hostbox=auto)", ARGS_FLAG,
			&t->racks.hostbox, 0, 0, NULL},
		{"svg", "FILE", "a picture of it", ARGS_TEXT, &t->racks.svg, 0, 0, NULL},
		{"sysfs", "DIR", NULL, ARGS_TEXT, &t->sysfs, 0, 0, NULL},
		{"json", NULL, "one JSON object a line", ARGS_FLAG, &t->json, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {
		.command = "phub topo",
		.about = "Prints what this machine has: CPUs, NUMA nodes, NICs, PCIe switches, GPUs, RDMA ports "
			 "and why one cannot be used;\n--svg FILE draws it. With --model\n"
			 "also the cores that a box here would pick and the chunks that each would own (longest "
			 "processing time first, by bytes).\n"
			 "--racks FILE shows a rack file (see phub(1)); with --model also what a round moves over each "
			 "of its links, if all\n"
			 "workers push to one box (flat), boxes sum for a root (tree), or each chunk has a home of its "
			 "own, that all boxes\n"
			 "send to (sharded) or pass on to (chain).\n",
		.examples = "  phub topo\n  phub topo --model resnet-50 --cores 2 --svg host.svg\n"
			    "  phub topo --racks racks.yaml --model resnet-50 --hierarchy sharded --svg racks.svg\n"
			    "  phub topo probe --help\n",
		.options = options,
	};
	struct args_words words;
	struct err e;
	int rc;

	rc = args_parse(&usage, argc, argv, &words);
	if (rc == ARGS_GO_ON)
		rc = topo_check_racks(&usage, t);
	if (rc == ARGS_GO_ON && (t->cores || t->chunk_bytes) && !t->model)
		rc = args_wrong(&usage, "--cores and --chunk belong to --model NAME");
	if (rc == ARGS_GO_ON && t->model)
		rc = models_check(&usage, t->model);
	if (!t->chunk_bytes)
		t->chunk_bytes = CHUNKING_CHUNK_BYTES_DEFAULT;
	if (rc == ARGS_GO_ON) {
		rc = (t->racks.path ? topo_show_racks(t, &e) : topo_show(t, &e)) < 0 ? CLI_FAILED : CLI_DONE;
		if (rc == CLI_FAILED)
			output_error("%s", e.text);
	}
	return rc;
}

int topo_run(int argc, char **argv)
{
	struct topo *t;
	int rc;

	if (argc > 1 && strcmp(argv[1], "probe") == 0)
		return probe_run(argc - 1, argv + 1);
	t = calloc(1, sizeof(*t));
	if (!t) {
		output_error("out of memory");
		return CLI_FAILED;
	}
	t->racks.way = TOPO_UNSAID;
	t->racks.lift = TOPO_UNSAID;
	rc = topo_run_with(t, argc, argv);
	free(t);
	return rc;
}
