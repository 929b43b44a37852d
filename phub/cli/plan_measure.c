/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Short measurements: kernels and copies on memory beyond the last-level cache, and exchanges by `phub bench exchange`
 * in a child process whose JSON is read.
 */
#include "phub/cli/plan_measure.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "aggregation/dispatch.h"
#include "phub/base/clock.h"
#include "phub/base/mem.h"
#include "phub/cli/cli.h"
#include "phub/cli/kernel_cases.h"
#include "phub/cli/output.h"
#include "phub/cli/trial.h"

enum {
	MEASURE_CHUNK_BYTES = 32 << 10,
	MEASURE_FINE_BYTES = 4 << 10,
	MEASURE_REPEATS = 5,
	MEASURE_COPY_NS = 50000000, /* CPU time of each copy */
	MEASURE_RUNS_MAX = 15,
	MEASURE_WORKERS = 4,
	MEASURE_ARGS_MAX = 32,
};

#define MEASURE_BYTES_MIN (64u << 20)
#define MEASURE_BYTES_MAX (1u << 30)

static const unsigned measure_workers[] = {2, 8}; /* of kernels: a line has two points */

void plan_measure_machine(const struct plan_measure *m, struct plan_facts *f)
{
	char line[256] = "", *name = NULL;
	FILE *file = fopen("/proc/cpuinfo", "re");

	while (file && !name && fgets(line, sizeof(line), file)) {
		if (strncmp(line, "model name", 10) == 0 && (name = strchr(line, ':')))
			name += strspn(name, ": \t");
	}
	if (file)
		fclose(file);
	if (name)
		name[strcspn(name, "\n")] = '\0';
	snprintf(f->machine, sizeof(f->machine), "%u CPUs (%.70s)", m->host->cpu_count, name ? name : "unknown");
}

/* Memory for all arrays, well beyond the last-level cache; cores share it in turns. */
static int measure_take_memory(const struct plan_measure *m, struct mem_region *out, struct err *e)
{
	uint64_t bytes = 2 * m->host->llc_bytes;

	bytes = bytes < MEASURE_BYTES_MIN || m->quick ? MEASURE_BYTES_MIN : bytes;
	bytes = bytes > MEASURE_BYTES_MAX ? MEASURE_BYTES_MAX : bytes;
	if (mem_region_create(bytes, MEM_HUGE | MEM_POPULATE, MEM_NODE_ANY, out, e) < 0)
		return e->code;
	/* 2^-7 as f32 and bf16, 1 as f16: nothing denormal. */
	for (size_t i = 0; i < bytes; i += 4)
		memcpy((unsigned char *)out->base + i, &(uint32_t){0x3c003c00}, 4);
	return 0;
}

/* ---- kernels ---- */

static double measure_kernel_once(
	const struct kernel_case *c, const struct kernels *kernels, unsigned workers, const struct mem_region *memory)
{
	/* As the box does with a large round of shared memory. */
	enum stores stores = kernel_case_streams(c) ? STORES_STREAMED : STORES_CACHED;
	unsigned count = workers + kernel_case_inout(c) + kernel_case_out(c);
	unsigned widths = kernel_case_width(c, workers, 0);
	uint64_t begin_ns, spent_ns;
	size_t array_bytes;

	for (unsigned a = 1; a < count; a++)
		widths += kernel_case_width(c, workers, a);
	array_bytes = memory->bytes / widths / MEASURE_CHUNK_BYTES * MEASURE_CHUNK_BYTES;
	begin_ns = clock_thread_cpu_ns();
	for (size_t at = 0; at < array_bytes; at += MEASURE_CHUNK_BYTES) {
		unsigned char *array = memory->base;
		void *arrays[KERNEL_ARRAYS_MAX];

		for (unsigned a = 0; a < count; a++) {
			unsigned width = kernel_case_width(c, workers, a);

			arrays[a] = array + at * width;
			array += array_bytes * width;
		}
		kernel_case_call(c, kernels, stores, workers, arrays, MEASURE_CHUNK_BYTES);
	}
	spent_ns = clock_thread_cpu_ns() - begin_ns;
	return (double)array_bytes * workers / (double)(spent_ns ? spent_ns : 1);
}

static int measure_case(const struct plan_measure *m, const struct kernel_case *c, const struct kernels *kernels,
	const struct mem_region *memory, struct plan_facts *f)
{
	unsigned repeats = m->quick ? 1 : MEASURE_REPEATS;

	for (unsigned i = 0; i < sizeof(measure_workers) / sizeof(measure_workers[0]); i++) {
		double rates[MEASURE_REPEATS];
		int rc;

		for (unsigned r = 0; r < repeats; r++)
			rates[r] = measure_kernel_once(c, kernels, measure_workers[i], memory);
		rc = plan_facts_add_kernel(f, c->name, measure_workers[i], trial_median(rates, repeats));
		if (rc < 0)
			return rc;
	}
	return 0;
}

static bool measure_wants(const struct kernel_case *c, unsigned optimizer, uint8_t dtype)
{
	if (c->op == KERNEL_SUM)
		return optimizer == OPTIMIZER_COUNT ||
		       (c->dtype == dtype && (optimizer == OPTIMIZER_NONE || dtype != DTYPE_F32));
	return c->op == KERNEL_STEP && (optimizer == OPTIMIZER_COUNT || c->optimizer == optimizer);
}

int plan_measure_kernels(
	const struct plan_measure *m, unsigned optimizer, uint8_t dtype, struct plan_facts *f, struct err *e)
{
	struct output_progress progress = {.label = "kernels"};
	const struct kernels *kernels;
	struct mem_region memory;
	char text[256];
	unsigned done = 0;
	int rc = dispatch_from_env(&kernels, text, sizeof(text));

	if (rc < 0)
		return err_set(e, rc, "%s", text);
	rc = measure_take_memory(m, &memory, e);
	if (rc < 0)
		return rc;
	for (const struct kernel_case *c = kernel_cases; rc == 0 && c->name; c++) {
		if (!measure_wants(c, optimizer, dtype))
			continue;
		output_progress_update(&progress, done++, optimizer == OPTIMIZER_COUNT ? 9 : 2);
		rc = measure_case(m, c, kernels, &memory, f);
	}
	output_progress_end(&progress);
	mem_region_destroy(&memory);
	return rc < 0 ? err_set(e, rc, "too many rates of kernels") : 0;
}

/* ---- memory ---- */

struct measure_copier {
	pthread_t thread;
	const struct roofline_copy *copy;
	unsigned char *base;
	size_t array_bytes;
	double gb_s;
};

uint64_t plan_measure_copy(const struct roofline_copy *copy, unsigned char *base, size_t array_bytes)
{
	for (size_t at = 0; at < array_bytes; at += MEASURE_CHUNK_BYTES) {
		const void *src[PLAN_COPY_SOURCES];
		void *out = base + PLAN_COPY_SOURCES * array_bytes + at;

		for (unsigned a = 0; a < PLAN_COPY_SOURCES; a++)
			src[a] = base + a * array_bytes + at;
		copy->run(&(struct roofline_args){.src = src,
			.src_count = PLAN_COPY_SOURCES,
			.out = &out,
			.out_count = 1,
			.out_width = 1,
			.bytes = MEASURE_CHUNK_BYTES});
	}
	return (uint64_t)array_bytes * (PLAN_COPY_SOURCES + (copy->streamed ? 1 : 2));
}

static void *measure_copy(void *argument)
{
	struct measure_copier *c = argument;
	uint64_t begin_ns = clock_thread_cpu_ns(), spent_ns = 0;
	double bytes = 0;

	while (spent_ns < MEASURE_COPY_NS) {
		bytes += (double)plan_measure_copy(c->copy, c->base, c->array_bytes);
		spent_ns = clock_thread_cpu_ns() - begin_ns;
	}
	c->gb_s = bytes / (double)spent_ns;
	return NULL;
}

/* GB/s of one kind of copy on all CPUs, each with a share of the memory. */
static double measure_copy_everywhere(const struct roofline_copy *copy, const struct mem_region *memory,
	struct measure_copier *copiers, unsigned count)
{
	size_t array_bytes =
		memory->bytes / count / (PLAN_COPY_SOURCES + 1) / MEASURE_CHUNK_BYTES * MEASURE_CHUNK_BYTES;
	unsigned started = 0;
	double sum = 0;

	for (; started < count; started++) {
		struct measure_copier *c = &copiers[started];

		*c = (struct measure_copier){
			.copy = copy,
			.base = (unsigned char *)memory->base + started * (PLAN_COPY_SOURCES + 1) * array_bytes,
			.array_bytes = array_bytes,
		};
		if (array_bytes == 0 || pthread_create(&c->thread, NULL, measure_copy, c))
			break;
	}
	for (unsigned i = 0; i < started; i++) {
		pthread_join(copiers[i].thread, NULL);
		sum += copiers[i].gb_s;
	}
	return sum;
}

int plan_measure_memory(const struct plan_measure *m, struct plan_facts *f, struct err *e)
{
	unsigned count = m->host->cpu_count;
	struct measure_copier *copiers = calloc(count, sizeof(*copiers));
	const struct roofline_copy *copy;
	struct mem_region memory;
	int rc = copiers ? measure_take_memory(m, &memory, e) : err_set(e, -ENOMEM, "out of memory");

	if (rc < 0) {
		free(copiers);
		return rc;
	}
	f->memory_gb_s = 0;
	for (unsigned i = 0; (copy = roofline_at(i)); i++) {
		double gb_s = measure_copy_everywhere(copy, &memory, copiers, count);

		f->memory_gb_s = gb_s > f->memory_gb_s ? gb_s : f->memory_gb_s;
	}
	mem_region_destroy(&memory);
	free(copiers);
	return f->memory_gb_s > 0 ? 0
				  : err_set(e, -EAGAIN,
					    "no thread could be started to measure memory; give "
					    "--memory-bandwidth");
}

/* ---- exchanges ---- */

/* In the child: phub bench exchange, its output into the pipe. Never returns. */
static void measure_be_bench(char **argv, int fd)
{
	int argc = 0;

	while (argv[argc])
		argc++;
	dup2(fd, STDOUT_FILENO);
	close(fd);
	argc = bench_exchange_run(argc, argv);
	fflush(stdout);
	_exit(argc);
}

/* Runs it and fills the point's box_ns and worker_ns. It has told its errors itself. */
static int plan_measure_run(char **argv, struct plan_cost_point *point, struct err *e)
{
	double box = 0, all = 0;
	json_t *line = NULL;
	int fds[2], status = 0;
	FILE *file;
	pid_t pid;

	if (pipe(fds) < 0)
		return err_set(e, -errno, "no pipe: %s", strerror(errno));
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		close(fds[0]);
		measure_be_bench(argv, fds[1]);
	}
	close(fds[1]);
	file = fdopen(fds[0], "r");
	if (file) {
		line = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL);
		fclose(file);
	} else {
		close(fds[0]);
	}
	if (pid > 0)
		waitpid(pid, &status, 0);
	if (pid < 0 || status != 0 ||
		json_unpack(line, "{s:F, s:F}", "box_cpu_s_per_gb", &box, "cpu_s_per_gb", &all) < 0) {
		json_decref(line);
		return err_set(e, -ECHILD, "an exchange for calibration failed; run phub bench exchange by itself");
	}
	json_decref(line);
	point->box_ns = box;
	point->worker_ns = all - box;
	return 0;
}

/* One exchange, RUNS times: medians. */
static int measure_point(const struct plan_measure *m, enum plan_transport transport, unsigned rounds,
	struct plan_cost_point *p, struct err *e)
{
	double box[MEASURE_RUNS_MAX] = {0}, worker[MEASURE_RUNS_MAX] = {0};
	char text[8][24], *argv[MEASURE_ARGS_MAX];
	unsigned count = 0;

	const char *words[] = {"exchange", "--json", "--transport", plan_transport_name(transport), "--workers",
		text[0], "--bytes", text[1], "--keys", text[2], "--chunk", text[3], "--rounds", text[4], "--cores",
		text[5], m->phubd ? "--phubd" : NULL, m->phubd, NULL};

	snprintf(text[0], sizeof(text[0]), "%u", p->workers);
	snprintf(text[1], sizeof(text[1]), "%lu", (unsigned long)p->bytes);
	snprintf(text[2], sizeof(text[2]), "%lu", (unsigned long)p->keys);
	snprintf(text[3], sizeof(text[3]), "%lu", (unsigned long)p->chunk_bytes);
	snprintf(text[4], sizeof(text[4]), "%u", rounds);
	snprintf(text[5], sizeof(text[5]), "%u", m->host->cpu_count < 8 ? m->host->cpu_count : 8);
	for (; words[count]; count++)
		argv[count] = (char *)(uintptr_t)words[count];
	argv[count] = NULL;
	for (unsigned r = 0; r < m->runs; r++) {
		int rc = plan_measure_run(argv, p, e);

		if (rc < 0)
			return rc;
		box[r] = p->box_ns;
		worker[r] = p->worker_ns;
	}
	p->box_ns = trial_median(box, m->runs);
	p->worker_ns = trial_median(worker, m->runs);
	return 0;
}

int plan_measure_exchanges(
	const struct plan_measure *m, enum plan_transport transport, struct plan_facts *f, struct err *e)
{
	const uint64_t large = UINT64_C(64) << 20 >> (m->quick ? 4 : 0);
	struct plan_cost_points p = {
		.large = {MEASURE_WORKERS, large, 1, MEASURE_CHUNK_BYTES, 0, 0},
		.fine = {MEASURE_WORKERS, large, 1, MEASURE_FINE_BYTES, 0, 0},
		.keyed = {MEASURE_WORKERS, large, 4096, MEASURE_CHUNK_BYTES, 0, 0},
		.tiny = {MEASURE_WORKERS, MEASURE_FINE_BYTES, 1, MEASURE_CHUNK_BYTES, 0, 0},
	};
	struct plan_kernel kernel;
	int rc = plan_facts_kernel(f, OPTIMIZER_NONE, DTYPE_F32, &kernel, e);

	if (rc == 0)
		rc = measure_point(m, transport, 8, &p.large, e);
	if (rc == 0)
		rc = measure_point(m, transport, 4, &p.fine, e);
	if (rc == 0)
		rc = measure_point(m, transport, 8, &p.keyed, e);
	if (rc == 0)
		rc = measure_point(m, transport, m->quick ? 300 : 5000, &p.tiny, e);
	if (rc < 0)
		return rc;
	if (plan_costs_fit(&p, &kernel, &f->costs[transport]) < 0)
		return err_set(e, -EINVAL, "no costs fit what was measured");
	f->has_costs[transport] = true;
	return 0;
}
