/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One box of each rack takes part, the first; the others of a rack are there for when it dies.
 */
#include "phub/cli/topo_racks.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregation/convert.h"
#include "phub/cli/models.h"
#include "phub/cli/output.h"
#include "topology/chunking.h"
#include "topology/placement.h"

double topo_racks_seconds(const struct ways_load *load, double rate_bytes_s)
{
	uint64_t most = load->out > load->in ? load->out : load->in;

	return rate_bytes_s > 0 ? (double)most / rate_bytes_s : 0;
}

/* Gradients that leave it for each of its workers', or of its own box's sum. */
static unsigned topo_racks_streams(const struct topo_racks *t, const struct rack_host *host)
{
	return t->options->hostbox ? 1 : host->workers;
}

struct ways_load topo_racks_host(const struct topo_racks *t, const struct rack_host *host)
{
	uint64_t streams = topo_racks_streams(t, host), bytes = t->bytes * streams, chunks = t->chunk_count * streams;

	return (struct ways_load){bytes, bytes, chunks, chunks};
}

/* ---- what is counted ---- */

static int topo_racks_pick(struct topo_racks *t, struct err *e)
{
	const struct racks *r = &t->racks;

	for (unsigned i = 0; i < r->box_count; i++) {
		const struct rack_box *box = &r->boxes[i];
		unsigned workers = 0;

		for (unsigned host = 0; host < r->host_count; host++)
			workers += r->hosts[host].rack == box->rack ? topo_racks_streams(t, &r->hosts[host]) : 0;
		if (i > 0 && r->boxes[i - 1].rack == box->rack)
			continue;
		t->box_of_way[t->way_boxes] = (int)i;
		t->boxes[t->way_boxes++] = (struct ways_box){box->rack, workers, box->rate_bytes_s, 0};
	}
	if (t->options->model && r->host_count == 0)
		return err_set(e, -EINVAL, "%s has no hosts, and so no workers that would train %s", t->options->path,
			t->options->model);
	return 0;
}

/* Number of the box that takes part whose name this is. */
static int topo_racks_root(const struct topo_racks *t, struct err *e)
{
	const char *name = t->options->root;

	for (unsigned i = 0; i < t->way_boxes; i++)
		if (!name || strcmp(t->racks.boxes[t->box_of_way[i]].name, name) == 0)
			return (int)i;
	return err_set(e, -EINVAL, "--root %s: %s", name,
		racks_find_box(&t->racks, name) == RACKS_NONE
			? "no box of the rack file"
			: "the first box of its rack takes part, and it is not that");
}

static void topo_racks_note_slowest(struct topo_traffic *n, double seconds, const char *what, const char *name)
{
	if (seconds <= n->seconds)
		return;
	n->seconds = seconds;
	snprintf(n->slowest, sizeof(n->slowest), "%s %.60s", what, name);
}

static void topo_racks_find_slowest(const struct topo_racks *t, struct topo_traffic *n)
{
	const struct racks *r = &t->racks;

	for (unsigned i = 0; i < r->rack_count; i++)
		topo_racks_note_slowest(
			n, topo_racks_seconds(&n->uplinks[i], r->racks[i].uplink_bytes_s), "uplink", r->racks[i].name);
	for (unsigned i = 0; i < t->way_boxes; i++)
		topo_racks_note_slowest(n, topo_racks_seconds(&n->boxes[i], t->boxes[i].rate_bytes_s), "box",
			r->boxes[t->box_of_way[i]].name);
	for (unsigned i = 0; i < r->host_count; i++) {
		struct ways_load load = topo_racks_host(t, &r->hosts[i]);

		topo_racks_note_slowest(
			n, topo_racks_seconds(&load, r->hosts[i].rate_bytes_s), "host", r->hosts[i].name);
	}
}

/* The chunks of which each box is the home, and how they lie on its cores. */
static int topo_racks_count_homes(struct topo_racks *t, const uint32_t *bytes, const uint16_t *home)
{
	uint32_t *mine = malloc(t->chunk_count * sizeof(*mine));
	uint16_t *core = malloc(t->chunk_count * sizeof(*core));
	int rc = mine && core ? 0 : -ENOMEM;

	for (unsigned box = 0; rc == 0 && box < t->way_boxes; box++) {
		struct placement_core cores[PLACEMENT_CORE_COUNT_MAX] = {{.cpu = -1, .node = -1}};
		unsigned count = t->racks.boxes[t->box_of_way[box]].cores;
		uint32_t chunks = 0;

		for (uint32_t i = 0; i < t->chunk_count; i++)
			if (home[i] == box)
				mine[chunks++] = bytes[i];
		t->homes[box].chunks = chunks;
		for (uint32_t i = 0; i < chunks; i++)
			t->homes[box].bytes += mine[i];
		for (unsigned i = 0; i < count; i++)
			cores[i].nic = PLACEMENT_NIC_NONE;
		if (count > 0)
			rc = placement_lpt(mine, chunks, cores, count, core);
		t->homes[box].core_most = count > 0 ? placement_core_balance(cores, count).bytes_max : 0;
	}
	free(mine);
	free(core);
	return rc;
}

static int topo_racks_count_way(struct topo_racks *t, enum ways_kind kind, unsigned root, const uint32_t *bytes,
	const uint32_t *lifts, uint16_t *home, struct err *e)
{
	struct topo_traffic *n = &t->traffic[kind];
	const struct ways w = {kind, root, t->way_boxes, t->boxes, t->chunk_count, home};
	struct ways_box by_rate[WAYS_BOXES_MAX];
	int rc;

	for (unsigned i = 0; i < t->way_boxes; i++) {
		by_rate[i] = t->boxes[i];
		by_rate[i].rate_bytes_s = cost_home_rate(&t->racks, &t->boxes[i]);
	}
	rc = ways_homes(kind, by_rate, t->way_boxes, root, bytes, t->chunk_count, home, e);

	if (rc < 0)
		return rc;
	ways_add_loads(&w, bytes, lifts, n->boxes, n->uplinks);
	topo_racks_find_slowest(t, n);
	if ((int)kind == t->options->way && topo_racks_count_homes(t, bytes, home) < 0)
		return err_set(e, -ENOMEM, "out of memory");
	return 0;
}

static struct cost_net topo_racks_net(const struct topo_racks *t)
{
	return (struct cost_net){&t->racks, t->boxes, t->box_of_way, t->way_boxes, NULL, t->options->hostbox};
}

static int topo_racks_predict(
	struct topo_racks *t, unsigned root, const uint32_t *bytes, const uint32_t *lifts, struct err *e)
{
	const struct cost_net net = topo_racks_net(t);
	const struct cost_job job = {bytes, lifts, t->chunk_count, COST_WINDOW};

	return cost_ways(&net, &job, root, t->costs, e);
}

static int topo_racks_count_chunks(struct topo_racks *t, const struct chunk_plan *plan, struct err *e)
{
	uint32_t *bytes = malloc(plan->chunk_count * sizeof(*bytes)),
		 *lifts = malloc(plan->chunk_count * sizeof(*lifts));
	uint16_t *home = malloc(plan->chunk_count * sizeof(*home));
	int root = topo_racks_root(t, e), rc = root < 0 ? root : 0;

	if (!bytes || !lifts || !home)
		rc = err_set(e, -ENOMEM, "out of memory");
	t->chunk_count = plan->chunk_count;
	for (uint32_t i = 0; rc == 0 && i < plan->chunk_count; i++) {
		uint32_t elements = plan->chunks[i].bytes / (uint32_t)dtype_size((enum dtype)plan->chunks[i].dtype);

		bytes[i] = plan->chunks[i].bytes;
		lifts[i] = elements * (uint32_t)dtype_size((enum dtype)t->options->lift);
		t->bytes += bytes[i];
	}
	for (unsigned kind = 0; rc == 0 && kind < WAYS_COUNT; kind++)
		rc = topo_racks_count_way(t, (enum ways_kind)kind, (unsigned)root, bytes, lifts, home, e);
	if (rc == 0)
		rc = topo_racks_predict(t, (unsigned)root, bytes, lifts, e);
	free(bytes);
	free(lifts);
	free(home);
	return rc;
}

static int topo_racks_count(struct topo_racks *t, struct err *e)
{
	struct chunk_plan plan = {0};
	struct chunk_key *keys;
	struct model m;
	int rc = models_load(t->options->model, &m, e);

	if (rc < 0)
		return rc;
	snprintf(t->model, sizeof(t->model), "%s", m.name);
	keys = calloc(m.count, sizeof(*keys));
	if (keys) {
		model_fill_keys(&m, keys);
		rc = chunking_plan(keys, (uint32_t)m.count, (uint32_t)t->options->chunk_bytes, &plan, e);
	} else {
		rc = err_set(e, -ENOMEM, "out of memory");
	}
	if (rc == 0)
		rc = topo_racks_count_chunks(t, &plan, e);
	chunking_plan_fini(&plan);
	free(keys);
	model_destroy(&m);
	return rc;
}

/* ---- text ---- */

static void topo_racks_cell_rate(struct output_table *table, double bytes_s)
{
	char text[32];

	output_cell(table, "%s", bytes_s > 0 ? output_rate(bytes_s, text) : "-");
}

static void topo_racks_cell_ms(struct output_table *table, double seconds)
{
	char text[COST_MS_BYTES];

	output_cell(table, "%s", cost_ms(seconds, text));
}

static void topo_racks_cell_time(struct output_table *table, double seconds)
{
	if (seconds > 0)
		output_cell(table, "%.4g us", seconds * 1e6);
	else
		output_cell(table, "-");
}

static void topo_racks_print_file(const struct topo_racks *t)
{
	struct output_table racks = {
		.heads = {"rack", "uplink", "latency", "boxes", "hosts", "workers"}, .align = "lrrrrr"};
	struct output_table boxes = {
		.heads = {"box", "rack", "address", "rate", "cores", "sibling"}, .align = "lllrrl"};
	const struct racks *r = &t->racks;
	unsigned workers = 0;

	for (unsigned i = 0; i < r->rack_count; i++) {
		unsigned own = 0, hosts = 0;

		for (unsigned box = 0; box < r->box_count; box++)
			own += r->boxes[box].rack == i;
		for (unsigned host = 0; host < r->host_count; host++)
			hosts += r->hosts[host].rack == i;
		output_cell(&racks, "%s", r->racks[i].name);
		topo_racks_cell_rate(&racks, r->racks[i].uplink_bytes_s);
		topo_racks_cell_time(&racks, r->racks[i].latency_s);
		output_cell(&racks, "%u", own);
		output_cell(&racks, "%u", hosts);
		output_cell(&racks, "%u", racks_workers(r, i));
		workers += racks_workers(r, i);
	}
	for (unsigned i = 0; i < r->box_count; i++) {
		const struct rack_box *box = &r->boxes[i];

		output_cell(&boxes, "%s", box->name);
		output_cell(&boxes, "%s", r->racks[box->rack].name);
		output_cell(&boxes, strchr(box->host, ':') ? "[%s]:%u" : "%s:%u", box->host, box->port);
		topo_racks_cell_rate(&boxes, box->rate_bytes_s);
		output_cell(&boxes, box->cores ? "%u" : "-", box->cores);
		output_cell(&boxes, "%s", box->sibling == RACKS_NONE ? "-" : r->boxes[box->sibling].name);
	}
	printf("%u rack%s, %u box%s, %u host%s with %u worker%s", r->rack_count, r->rack_count == 1 ? "" : "s",
		r->box_count, r->box_count == 1 ? "" : "es", r->host_count, r->host_count == 1 ? "" : "s", workers,
		workers == 1 ? "" : "s");
	if (r->latency_s > 0)
		printf("; %.4g us from rack to rack", r->latency_s * 1e6);
	puts("");
	output_table_print(&racks);
	puts("");
	output_table_print(&boxes);
}

/* A row: what the load is in each way, the larger of its directions. */
static void topo_racks_cell_loads(const struct topo_racks *t, struct output_table *table, bool uplink, unsigned index)
{
	for (unsigned kind = 0; kind < WAYS_COUNT; kind++) {
		const struct topo_traffic *n = &t->traffic[kind];
		const struct ways_load *load = uplink ? &n->uplinks[index] : &n->boxes[index];

		output_cell(table, "%.1f", (double)(load->out > load->in ? load->out : load->in) / 1e6);
	}
}

static void topo_racks_print_traffic(const struct topo_racks *t)
{
	struct output_table table = {.heads = {"link", "rate", "flat", "tree", "sharded", "chain"}, .align = "lrrrrr"};
	const struct racks *r = &t->racks;
	char text[32];

	printf("\n%s: %s a worker, in %u chunks%s. MB that a round moves each way, the larger of both:\n", t->model,
		output_bytes(t->bytes, text), t->chunk_count, t->options->hostbox ? ", summed at each host first" : "");
	for (unsigned i = 0; i < r->rack_count && r->rack_count > 1; i++) {
		output_cell(&table, "uplink %s", r->racks[i].name);
		topo_racks_cell_rate(&table, r->racks[i].uplink_bytes_s);
		topo_racks_cell_loads(t, &table, true, i);
	}
	for (unsigned i = 0; i < t->way_boxes; i++) {
		output_cell(&table, "box %s", r->boxes[t->box_of_way[i]].name);
		topo_racks_cell_rate(&table, t->boxes[i].rate_bytes_s);
		topo_racks_cell_loads(t, &table, false, i);
	}
	output_cell(&table, "links alone, ms");
	output_cell(&table, " ");
	for (unsigned kind = 0; kind < WAYS_COUNT; kind++)
		topo_racks_cell_ms(&table, t->traffic[kind].seconds);
	output_table_print(&table);
	for (unsigned kind = 0; kind < WAYS_COUNT; kind++)
		printf("%s waits for %s%s", ways_name((enum ways_kind)kind), t->traffic[kind].slowest,
			kind + 1 < WAYS_COUNT ? "; " : "\n");
}

static void topo_racks_cell_chunks(const struct topo_racks *t, struct output_table *table, bool uplink, unsigned index)
{
	for (unsigned kind = 0; kind < WAYS_COUNT; kind++) {
		const struct topo_traffic *n = &t->traffic[kind];
		const struct ways_load *load = uplink ? &n->uplinks[index] : &n->boxes[index];

		output_cell(table, "%" PRIu64 "/%" PRIu64, load->chunks_out, load->chunks_in);
	}
}

static void topo_racks_print_chunks(const struct topo_racks *t)
{
	struct output_table table = {.heads = {"link", "flat", "tree", "sharded", "chain"}, .align = "lrrrr"};
	const struct racks *r = &t->racks;

	puts("\nChunks that a round moves, out/in, one for each worker or sum that they are of:");
	for (unsigned i = 0; i < r->rack_count && r->rack_count > 1; i++) {
		output_cell(&table, "uplink %s", r->racks[i].name);
		topo_racks_cell_chunks(t, &table, true, i);
	}
	for (unsigned i = 0; i < t->way_boxes; i++) {
		output_cell(&table, "box %s", r->boxes[t->box_of_way[i]].name);
		topo_racks_cell_chunks(t, &table, false, i);
	}
	output_table_print(&table);
}

static void topo_racks_print_prediction(const struct topo_racks *t)
{
	struct output_table table = {
		.heads = {"way", "ms a round", "busy", "lag", "fill", "limit", "senders"}, .align = "lrrrrlr"};
	const struct cost_net net = topo_racks_net(t);
	char text[512];

	puts("\nPredicted, of links alone (busy: the one that limits; lag: its senders wait for the last of them; "
	     "fill: one "
	     "chunk's way):");
	for (unsigned kind = 0; kind < WAYS_COUNT; kind++) {
		const struct cost *c = &t->costs[kind];

		output_cell(&table, "%s", ways_name((enum ways_kind)kind));
		topo_racks_cell_ms(&table, c->round_s);
		topo_racks_cell_ms(&table, c->busy_s);
		topo_racks_cell_ms(&table, c->lag_s);
		topo_racks_cell_ms(&table, c->fill_s);
		cost_write_limit(&net, c, text, sizeof(text));
		output_cell(&table, "%s, %s", text, c->in ? "in" : "out");
		output_cell(&table, "%u", c->senders);
	}
	output_table_print(&table);
	cost_write_choice(&net, t->costs, WAYS_TREE, text, sizeof(text));
	printf("hierarchy: auto takes %s\n", text);
	if (cost_choose(t->costs, WAYS_FLAT) == WAYS_FLAT)
		puts("One box that all workers come to (flat) would be as fast, or faster.");
}

static void topo_racks_print_homes(const struct topo_racks *t)
{
	struct output_table table = {.heads = {"home", "chunks", "bytes", "cores", "most on a core"}, .align = "lrrrr"};

	printf("\nHomes, %s:\n", ways_name((enum ways_kind)t->options->way));
	for (unsigned i = 0; i < t->way_boxes; i++) {
		const struct rack_box *box = &t->racks.boxes[t->box_of_way[i]];

		output_cell(&table, "%s", box->name);
		output_cell(&table, "%u", t->homes[i].chunks);
		output_cell(&table, "%" PRIu64, t->homes[i].bytes);
		output_cell(&table, box->cores ? "%u" : "-", box->cores);
		output_cell(&table, box->cores ? "%" PRIu64 : "-", t->homes[i].core_most);
	}
	output_table_print(&table);
}

/* ---- JSON ---- */

static bool topo_racks_json_file(const struct topo_racks *t)
{
	const struct racks *r = &t->racks;
	bool ok = true;

	for (unsigned i = 0; ok && i < r->rack_count; i++)
		ok = output_json(json_pack("{s:s, s:s, s:f, s:f, s:i}", "topo", "rack", "rack", r->racks[i].name,
			"uplink_bytes_per_s", r->racks[i].uplink_bytes_s, "latency_s", r->racks[i].latency_s, "workers",
			(int)racks_workers(r, i)));
	for (unsigned i = 0; ok && i < r->box_count; i++) {
		const struct rack_box *box = &r->boxes[i];

		ok = output_json(json_pack("{s:s, s:s, s:s, s:s, s:i, s:f, s:i, s:s?}", "topo", "box", "box", box->name,
			"rack", r->racks[box->rack].name, "host", box->host, "port", (int)box->port, "rate_bytes_per_s",
			box->rate_bytes_s, "cores", (int)box->cores, "sibling",
			box->sibling == RACKS_NONE ? NULL : r->boxes[box->sibling].name));
	}
	for (unsigned i = 0; ok && i < r->host_count; i++)
		ok = output_json(json_pack("{s:s, s:s, s:s, s:f, s:i}", "topo", "rack_host", "host", r->hosts[i].name,
			"rack", r->racks[r->hosts[i].rack].name, "rate_bytes_per_s", r->hosts[i].rate_bytes_s,
			"workers", (int)r->hosts[i].workers));
	return ok;
}

static json_t *topo_racks_json_load(const char *name, const struct ways_load *load, double rate)
{
	return json_pack("{s:s, s:I, s:I, s:I, s:I, s:f}", "name", name, "out", (json_int_t)load->out, "in",
		(json_int_t)load->in, "chunks_out", (json_int_t)load->chunks_out, "chunks_in",
		(json_int_t)load->chunks_in, "s", topo_racks_seconds(load, rate));
}

static bool topo_racks_json_prediction(const struct topo_racks *t)
{
	const struct cost_net net = topo_racks_net(t);
	enum ways_kind choice = cost_choose(t->costs, WAYS_TREE);
	char limit[128], why[512];
	bool ok = true;

	cost_write_choice(&net, t->costs, WAYS_TREE, why, sizeof(why));
	for (unsigned kind = 0; ok && kind < WAYS_COUNT; kind++) {
		const struct cost *c = &t->costs[kind];

		cost_write_limit(&net, c, limit, sizeof(limit));
		ok = output_json(json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:s, s:s, s:i, s:I, s:b, s:s?}", "topo",
			"prediction", "way", ways_name((enum ways_kind)kind), "predicted_ms", c->round_s * 1e3,
			"busy_ms", c->busy_s * 1e3, "lag_ms", c->lag_s * 1e3, "fill_ms", c->fill_s * 1e3, "limit",
			limit, "direction", c->in ? "in" : "out", "senders", (int)c->senders, "bytes",
			(json_int_t)c->bytes, "choice", kind == choice, "why", kind == choice ? why : NULL));
	}
	return ok;
}

static bool topo_racks_json_traffic(const struct topo_racks *t)
{
	const struct racks *r = &t->racks;
	bool ok = true;

	for (unsigned kind = 0; ok && kind < WAYS_COUNT; kind++) {
		const struct topo_traffic *n = &t->traffic[kind];
		json_t *uplinks = json_array(), *boxes = json_array();

		for (unsigned i = 0; i < r->rack_count; i++)
			json_array_append_new(uplinks,
				topo_racks_json_load(r->racks[i].name, &n->uplinks[i], r->racks[i].uplink_bytes_s));
		for (unsigned i = 0; i < t->way_boxes; i++)
			json_array_append_new(boxes, topo_racks_json_load(r->boxes[t->box_of_way[i]].name, &n->boxes[i],
							     t->boxes[i].rate_bytes_s));
		ok = output_json(json_pack("{s:s, s:s, s:s, s:I, s:i, s:f, s:s, s:o, s:o}", "topo", "traffic", "way",
			ways_name((enum ways_kind)kind), "model", t->model, "bytes", (json_int_t)t->bytes, "chunks",
			(int)t->chunk_count, "links_s", n->seconds, "slowest", n->slowest, "uplinks", uplinks, "boxes",
			boxes));
	}
	ok = ok && topo_racks_json_prediction(t);
	for (unsigned i = 0; ok && i < t->way_boxes; i++)
		ok = output_json(json_pack("{s:s, s:s, s:s, s:i, s:I, s:I}", "topo", "home", "way",
			ways_name((enum ways_kind)t->options->way), "box", r->boxes[t->box_of_way[i]].name, "chunks",
			(int)t->homes[i].chunks, "bytes", (json_int_t)t->homes[i].bytes, "core_bytes_max",
			(json_int_t)t->homes[i].core_most));
	return ok;
}

static int topo_racks_print(const struct topo_racks *t, struct err *e)
{
	if (t->options->json) {
		bool ok = topo_racks_json_file(t) && (!t->options->model || topo_racks_json_traffic(t));

		return ok ? 0 : err_set(e, -ENOMEM, "out of memory");
	}
	topo_racks_print_file(t);
	if (t->options->model) {
		topo_racks_print_traffic(t);
		topo_racks_print_chunks(t);
		topo_racks_print_prediction(t);
		topo_racks_print_homes(t);
	}
	return 0;
}

int topo_racks_show(const struct topo_racks_options *options, struct err *e)
{
	struct topo_racks *t = calloc(1, sizeof(*t));
	int rc = t ? racks_read(options->path, &t->racks, e) : err_set(e, -ENOMEM, "out of memory");

	if (rc < 0) {
		free(t);
		return rc;
	}
	t->options = options;
	rc = topo_racks_pick(t, e);
	if (rc == 0 && options->model)
		rc = topo_racks_count(t, e);
	if (rc == 0 && options->svg)
		rc = topo_racks_draw(t, e);
	if (rc == 0)
		rc = topo_racks_print(t, e);
	racks_fini(&t->racks);
	free(t);
	return rc;
}
