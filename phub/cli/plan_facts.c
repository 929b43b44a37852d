/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts as JSON lines: {"plan":"machine",...}, {"bench":"kernel",...} and {"plan":"cost",...}. Lines of other kinds are
 * passed over, so that the output of several commands may stand in one file.
 */
#include "phub/cli/plan_facts.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregation/convert.h"
#include "phub/cli/kernel_cases.h"
#include "phub/cli/output.h"

const char *plan_facts_sum_name(uint8_t dtype)
{
	for (const struct kernel_case *c = kernel_cases; c->name; c++)
		if (c->op == KERNEL_SUM && c->dtype == dtype)
			return c->name;
	return NULL;
}

const char *plan_facts_step_name(enum optimizer_kind optimizer)
{
	for (const struct kernel_case *c = kernel_cases; c->name; c++)
		if (c->op == KERNEL_STEP && c->optimizer == optimizer)
			return c->name;
	return NULL;
}

int plan_facts_add_kernel(struct plan_facts *f, const char *name, unsigned workers, double gb_s)
{
	struct plan_kernel_fact *k = f->kernels;

	while (k < f->kernels + f->kernel_count && (strcmp(k->name, name) != 0 || k->point.workers != workers))
		k++;
	if (k == f->kernels + PLAN_KERNELS_MAX)
		return -ENOSPC;
	if (k == f->kernels + f->kernel_count) {
		f->kernel_count++;
		snprintf(k->name, sizeof(k->name), "%s", name);
		k->point = (struct plan_kernel_point){.workers = workers};
	}
	if (gb_s > k->point.gb_s)
		k->point.gb_s = gb_s;
	return 0;
}

/* ---- reading ---- */

static int facts_read_kernel(json_t *line, struct plan_facts *f)
{
	const char *name, *cache;
	double gb_s;
	int workers;

	if (json_unpack(line, "{s:s, s:s, s:i, s:F}", "kernel", &name, "cache", &cache, "workers", &workers, "gb_per_s",
		    &gb_s) < 0 ||
		workers < 1 || !(gb_s > 0) || !isfinite(gb_s) || strlen(name) >= sizeof(f->kernels[0].name))
		return -EINVAL;
	return strcmp(cache, "cold") == 0 ? plan_facts_add_kernel(f, name, (unsigned)workers, gb_s) : 0;
}

static bool facts_side_is_good(const struct plan_side *s)
{
	const double values[] = {s->round_ns, s->key_ns, s->message_ns, s->byte_ns};

	for (unsigned i = 0; i < 4; i++)
		if (!(values[i] >= 0) || !isfinite(values[i]))
			return false;
	return true;
}

static int facts_read_cost(json_t *line, struct plan_facts *f)
{
	struct plan_costs c = {.box = {.round_ns = 0}};
	const char *name;

	if (json_unpack(line, "{s:s, s:F, s:F, s:F, s:F, s:F, s:F, s:F}", "transport", &name, "box_round_ns",
		    &c.box.round_ns, "box_message_ns", &c.box.message_ns, "box_byte_ns", &c.box.byte_ns,
		    "worker_round_ns", &c.worker.round_ns, "worker_key_ns", &c.worker.key_ns, "worker_message_ns",
		    &c.worker.message_ns, "worker_byte_ns", &c.worker.byte_ns) < 0 ||
		!facts_side_is_good(&c.box) || !facts_side_is_good(&c.worker))
		return -EINVAL;
	for (int t = 0; t < PLAN_TRANSPORT_COUNT; t++) {
		if (strcmp(name, plan_transport_name((enum plan_transport)t)) == 0) {
			f->has_costs[t] = true;
			f->costs[t] = c;
			return 0;
		}
	}
	return -EINVAL;
}

static int facts_read_machine(json_t *line, struct plan_facts *f)
{
	const char *machine = "";
	double memory = 0;

	if (json_unpack(line, "{s?s, s?F}", "machine", &machine, "memory_gb_per_s", &memory) < 0 || !(memory >= 0) ||
		!isfinite(memory))
		return -EINVAL;
	snprintf(f->machine, sizeof(f->machine), "%s", machine);
	if (memory > 0)
		f->memory_gb_s = memory;
	return 0;
}

static int facts_read_line(const char *text, struct plan_facts *f, bool *used)
{
	json_t *line = json_loads(text, 0, NULL);
	const char *bench = json_string_value(json_object_get(line, "bench"));
	const char *plan = json_string_value(json_object_get(line, "plan"));
	int rc = json_is_object(line) ? 0 : -EINVAL;

	if (rc == 0 && bench && strcmp(bench, "kernel") == 0) {
		rc = facts_read_kernel(line, f);
		*used = true;
	} else if (rc == 0 && plan && strcmp(plan, "cost") == 0) {
		rc = facts_read_cost(line, f);
		*used = true;
	} else if (rc == 0 && plan && strcmp(plan, "machine") == 0) {
		rc = facts_read_machine(line, f);
		*used = true;
	}
	json_decref(line);
	return rc;
}

/* The rates of a file replace those of an earlier one: a machine is not the best of two. */
static int facts_read_into(FILE *file, const char *path, struct plan_facts *f, struct err *e)
{
	char *text = NULL;
	size_t room = 0;
	unsigned number = 0;
	bool used = false;
	int rc = 0;

	while (rc == 0 && getline(&text, &room, file) >= 0) {
		number++;
		if (text[strspn(text, " \t\r\n")] == '\0')
			continue;
		rc = facts_read_line(text, f, &used);
	}
	free(text);
	if (rc == -ENOSPC)
		return err_set(e, rc, "%s:%u: more than %d rates of kernels", path, number, PLAN_KERNELS_MAX);
	if (rc < 0)
		return err_set(
			e, rc, "%s:%u: not a line of phub plan --calibrate or phub bench kernels --json", path, number);
	if (ferror(file))
		return err_set(e, -EIO, "%s: could not be read", path);
	if (!used)
		return err_set(e, -EINVAL, "%s: holds no rates and no costs; make it with phub plan --calibrate", path);
	return 0;
}

static void facts_merge(struct plan_facts *f, const struct plan_facts *read)
{
	if (read->machine[0])
		memcpy(f->machine, read->machine, sizeof(f->machine));
	if (read->memory_gb_s > 0)
		f->memory_gb_s = read->memory_gb_s;
	if (read->kernel_count) {
		memcpy(f->kernels, read->kernels, sizeof(f->kernels));
		f->kernel_count = read->kernel_count;
	}
	for (int t = 0; t < PLAN_TRANSPORT_COUNT; t++) {
		if (read->has_costs[t]) {
			f->has_costs[t] = true;
			f->costs[t] = read->costs[t];
		}
	}
}

int plan_facts_read(const char *path, struct plan_facts *f, struct err *e)
{
	struct plan_facts *read = calloc(1, sizeof(*read));
	FILE *file = fopen(path, "re");
	int rc;

	if (!file || !read)
		rc = err_set(e, file ? -ENOMEM : -errno, "%s: %s; give a file that phub plan --calibrate printed", path,
			strerror(file ? ENOMEM : errno));
	else
		rc = facts_read_into(file, path, read, e);
	if (rc == 0)
		facts_merge(f, read);
	if (file)
		fclose(file);
	free(read);
	return rc;
}

/* ---- using ---- */

static int facts_fit(
	const struct plan_facts *f, const char *name, double once_bytes, struct plan_kernel *out, struct err *e)
{
	struct plan_kernel_point points[PLAN_KERNELS_MAX];
	size_t count = 0;

	for (unsigned i = 0; i < f->kernel_count; i++)
		if (strcmp(f->kernels[i].name, name) == 0)
			points[count++] = f->kernels[i].point;
	if (plan_kernel_fit(points, count, once_bytes, out) < 0)
		return err_set(e, -ENOENT, "no cold rate of kernel %s is known; see phub bench kernels --json", name);
	return 0;
}

int plan_facts_kernel(const struct plan_facts *f, enum optimizer_kind optimizer, uint8_t dtype, struct plan_kernel *out,
	struct err *e)
{
	double wide = (double)dtype_size(DTYPE_F32) / (double)dtype_size((enum dtype)dtype);
	struct plan_kernel sum = {0, 0}, step = {0, 0};
	int rc = 0;

	if (optimizer == OPTIMIZER_NONE || dtype != DTYPE_F32)
		rc = facts_fit(f, plan_facts_sum_name(dtype), plan_once_bytes(4, false, 0, false), &sum, e);
	if (rc == 0 && optimizer != OPTIMIZER_NONE)
		rc = facts_fit(f, plan_facts_step_name(optimizer),
			plan_once_bytes(4, true, optimizer_state_count(optimizer), false), &step, e);
	if (rc < 0)
		return rc;
	if (optimizer == OPTIMIZER_NONE)
		*out = sum;
	else if (dtype == DTYPE_F32)
		*out = step;
	else /* Weights and state are as large as f32's, which is `wide` times a gradient on the wire. */
		*out = (struct plan_kernel){.arrival_ns = sum.arrival_ns, .once_ns = sum.once_ns + wide * step.once_ns};
	return 0;
}

/* ---- writing ---- */

bool plan_facts_print(const struct plan_facts *f)
{
	bool ok = output_json(json_pack(
		"{s:s, s:s, s:f}", "plan", "machine", "machine", f->machine, "memory_gb_per_s", f->memory_gb_s));

	for (unsigned i = 0; ok && i < f->kernel_count; i++)
		ok = output_json(json_pack("{s:s, s:s, s:i, s:s, s:f}", "bench", "kernel", "kernel", f->kernels[i].name,
			"workers", (int)f->kernels[i].point.workers, "cache", "cold", "gb_per_s",
			f->kernels[i].point.gb_s));
	for (int t = 0; ok && t < PLAN_TRANSPORT_COUNT; t++) {
		const struct plan_costs *c = &f->costs[t];

		if (!f->has_costs[t])
			continue;
		ok = output_json(json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "plan", "cost", "transport",
			plan_transport_name((enum plan_transport)t), "box_round_ns", c->box.round_ns, "box_message_ns",
			c->box.message_ns, "box_byte_ns", c->box.byte_ns, "worker_round_ns", c->worker.round_ns,
			"worker_key_ns", c->worker.key_ns, "worker_message_ns", c->worker.message_ns, "worker_byte_ns",
			c->worker.byte_ns));
	}
	return ok;
}
