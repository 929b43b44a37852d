/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arrays of phub bench aggregation, the arithmetic on a piece of them, and the check of the results.
 */
#include "phub/cli/sweep.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "phub/cli/trial.h"
#include "topology/placement.h"

enum {
	SWEEP_BLOCK = 1024, /* elements that pass through the first-level cache at a time */
	SWEEP_LINE = CHUNKING_ALIGN_BYTES / sizeof(float), /* elements of a cache line */
};

/* ---- the plan ---- */

static int sweep_place(struct sweep *s, struct err *e)
{
	struct placement_core *cores = calloc(s->cores, sizeof(*cores));
	uint32_t *bytes = calloc(s->plan.chunk_count, sizeof(*bytes));
	int rc = -ENOMEM;

	s->core_of = calloc(s->plan.chunk_count, sizeof(*s->core_of));
	if (cores && bytes && s->core_of) {
		for (uint32_t i = 0; i < s->plan.chunk_count; i++)
			bytes[i] = s->plan.chunks[i].bytes;
		for (unsigned i = 0; i < s->cores; i++)
			cores[i] = (struct placement_core){.cpu = s->cpus.cpu[i], .nic = PLACEMENT_NIC_NONE};
		rc = placement_lpt(bytes, s->plan.chunk_count, cores, s->cores, s->core_of);
	}
	free(cores);
	free(bytes);
	return rc < 0 ? err_set(e, rc, "could not place the chunks: out of memory") : 0;
}

static int sweep_plan(struct sweep *s, struct err *e)
{
	struct chunk_key *keys = calloc(s->model->count, sizeof(*keys));
	int rc;

	s->key_elements = calloc(s->model->count, sizeof(*s->key_elements));
	if (!keys || !s->key_elements) {
		free(keys);
		return err_set(e, -ENOMEM, "out of memory");
	}
	model_fill_keys(s->model, keys);
	rc = chunking_plan(keys, (uint32_t)s->model->count, s->chunk_bytes, &s->plan, e);
	free(keys);
	for (size_t k = 0; k < s->model->count; k++)
		s->key_elements[k] = s->model->tensors[k].elements;
	return rc < 0 ? rc : sweep_place(s, e);
}

/* ---- memory ---- */

/* Numbers whose sums are rounded, so that their order shows in the last bit. */
static void sweep_fill(struct sweep *s)
{
	uint64_t count = s->plan.region_bytes / sizeof(float);

	for (unsigned w = 0; w < s->workers; w++) {
		trial_fill(w, 0, 0, count, DTYPE_F32, s->source[w]);
		for (uint64_t i = 0; i < count; i++)
			s->source[w][i] *= 0.01f + 0.0003f * (float)w;
	}
	if (s->optimizer == OPTIMIZER_NONE)
		return;
	trial_fill_weights(0, count, DTYPE_F32, s->weight);
	memcpy(s->expected_weight, s->weight, count * sizeof(float));
	for (unsigned i = 0; i < optimizer_state_count(s->optimizer); i++) {
		optimizer_state_init(s->optimizer, &s->hyper, i, s->state[i], count);
		optimizer_state_init(s->optimizer, &s->hyper, i, s->expected_state[i], count);
	}
}

static int sweep_take_memory(struct sweep *s, struct err *e)
{
	unsigned states = optimizer_state_count(s->optimizer);
	size_t bytes = s->plan.region_bytes;
	struct arena arena;
	int rc = mem_region_create(
		bytes * (s->workers + 3 + 2 * states), MEM_HUGE | MEM_POPULATE, MEM_NODE_ANY, &s->memory, e);

	if (rc < 0)
		return rc;
	arena_init(&arena, &s->memory);
	for (unsigned w = 0; w < s->workers; w++)
		s->source[w] = arena_alloc(&arena, bytes, CHUNKING_ALIGN_BYTES);
	s->weight = arena_alloc(&arena, bytes, CHUNKING_ALIGN_BYTES);
	s->expected_weight = arena_alloc(&arena, bytes, CHUNKING_ALIGN_BYTES);
	s->sum = arena_alloc(&arena, bytes, CHUNKING_ALIGN_BYTES);
	for (unsigned i = 0; i < states; i++) {
		s->state[i] = arena_alloc(&arena, bytes, CHUNKING_ALIGN_BYTES);
		s->expected_state[i] = arena_alloc(&arena, bytes, CHUNKING_ALIGN_BYTES);
	}
	return 0;
}

/* The widest copy with non-temporal stores; the table goes from the narrowest on. */
static const struct roofline_copy *sweep_find_stream(void)
{
	const struct roofline_copy *copy, *found = NULL;

	for (size_t i = 0; (copy = roofline_at(i)); i++) {
		if (copy->streamed && !strstr(copy->name, "prefetch"))
			found = copy;
	}
	return found;
}

int sweep_init(struct sweep *s, struct err *e)
{
	int rc = s->cpus.count ? 0 : cpu_list_allowed(&s->cpus);

	if (rc < 0)
		return err_set(e, rc, "could not ask which CPUs there are: %s", strerror(-rc));
	if (!s->cores)
		s->cores = s->cpus.count < SWEEP_CORES_MAX ? s->cpus.count : SWEEP_CORES_MAX;
	if (s->cores > s->cpus.count)
		return err_set(e, -EINVAL, "%u cores need as many CPUs, and %u may be used here; give --cores %u",
			s->cores, s->cpus.count, s->cpus.count);
	optimizer_hyper_default(s->optimizer, &s->hyper);
	s->stream = sweep_find_stream();
	rc = sweep_plan(s, e);
	if (rc == 0)
		rc = sweep_take_memory(s, e);
	if (rc == 0)
		sweep_fill(s);
	return rc;
}

void sweep_fini(struct sweep *s)
{
	mem_region_destroy(&s->memory);
	chunking_plan_fini(&s->plan);
	free(s->core_of);
	free(s->key_elements);
}

/* ---- arithmetic ---- */

/* What is added for these elements, with the result at `out`. */
static struct sum_args sweep_sum_args(
	const struct sweep *s, const void *src[SWEEP_WORKERS_MAX], uint64_t first, uint64_t count, float *out)
{
	for (unsigned w = 0; w < s->workers; w++)
		src[w] = s->source[w] + first;
	return (struct sum_args){
		.src = src,
		.src_count = s->workers,
		.src_dtype = DTYPE_F32,
		.out_dtype = DTYPE_F32,
		.scale = 1.0f,
		.count = count,
		.out = out,
	};
}

/* One step from what `sum` says: where weights and state are. */
static void sweep_step_at(const struct sweep *s, const struct optimizer_coef *coef, const struct sum_args *sum,
	float *weight, float *const *state)
{
	struct step_args step = {.sum = *sum, .coef = coef, .weight = weight};

	step.sum.out = weight;
	for (unsigned i = 0; i < optimizer_state_count(s->optimizer); i++)
		step.state[i] = state[i];
	s->kernels->step(&step);
}

/* Copies past the caches; a tail that fills no block goes through them. */
static void sweep_stream(const struct sweep *s, float *to, const float *from, uint64_t count)
{
	size_t bytes = count * sizeof(float), whole = bytes / ROOFLINE_BLOCK * ROOFLINE_BLOCK;

	s->stream->run(&(struct roofline_args){
		.src = (const void *const[]){from},
		.src_count = 1,
		.out = (void *const[]){to},
		.out_count = 1,
		.out_width = 1,
		.bytes = whole,
	});
	memcpy((unsigned char *)to + whole, (const unsigned char *)from + whole, bytes - whole);
}

/*
 * A step, whose weights and state the kernels rewrite in place and so through the caches (struct step_args): here they
 * are stepped in blocks that stay in the first level, and copied out past the caches from there. Such stores need whole
 * cache lines: `first` begins one (a small key that does not is written through the caches).
 */
static void sweep_held_copied_out(
	const struct sweep *s, const struct optimizer_coef *coef, uint64_t first, uint64_t count)
{
	_Alignas(64) float block[1 + OPTIMIZER_STATE_MAX][SWEEP_BLOCK];
	float *const states[OPTIMIZER_STATE_MAX] = {block[1], block[2]};
	unsigned state_count = optimizer_state_count(s->optimizer);

	for (uint64_t end = first + count; first < end; first += SWEEP_BLOCK) {
		uint64_t n = end - first < SWEEP_BLOCK ? end - first : SWEEP_BLOCK;
		const void *src[SWEEP_WORKERS_MAX];
		struct sum_args sum = sweep_sum_args(s, src, first, n, block[0]);

		memcpy(block[0], s->weight + first, n * sizeof(float));
		for (unsigned i = 0; i < state_count; i++)
			memcpy(block[1 + i], s->state[i] + first, n * sizeof(float));
		sweep_step_at(s, coef, &sum, block[0], states);
		sweep_stream(s, s->weight + first, block[0], n);
		for (unsigned i = 0; i < state_count; i++)
			sweep_stream(s, s->state[i] + first, block[1 + i], n);
	}
}

static void sweep_step_from(
	const struct sweep *s, const struct optimizer_coef *coef, const struct sum_args *sum, uint64_t first)
{
	float *states[OPTIMIZER_STATE_MAX] = {NULL};

	for (unsigned i = 0; i < optimizer_state_count(s->optimizer); i++)
		states[i] = s->state[i] + first;
	sweep_step_at(s, coef, sum, s->weight + first, states);
}

void sweep_held(const struct sweep *s, const struct sweep_way *way, const struct optimizer_coef *coef, uint64_t first,
	uint64_t count)
{
	const void *src[SWEEP_WORKERS_MAX];
	struct sum_args sum = sweep_sum_args(s, src, first, count, s->weight + first);

	if (way->pass == SWEEP_SEPARATE) {
		sum.out = s->sum + first;
		s->kernels->sum(&sum);
	} else if (s->optimizer == OPTIMIZER_NONE) {
		sum.stores = way->stores == SWEEP_STREAMED ? STORES_STREAMED : STORES_CACHED;
		s->kernels->sum(&sum);
	} else if (way->stores == SWEEP_STREAMED && first % SWEEP_LINE == 0) {
		sweep_held_copied_out(s, coef, first, count);
	} else {
		sweep_step_from(s, coef, &sum, first);
	}
}

/* As the box does with payloads that do not stay: store the first, add those between, finish with the last. */
void sweep_arrival(const struct sweep *s, const struct sweep_way *way, const struct optimizer_coef *coef,
	unsigned worker, uint64_t first, uint64_t count)
{
	const float *gradient = s->source[worker] + first;
	float *acc = s->sum + first;
	struct sum_args sum = {
		.src = (const void *const[]){gradient},
		.src_count = 1,
		.src_dtype = DTYPE_F32,
		.out_dtype = DTYPE_F32,
		.acc = worker ? acc : NULL,
		.scale = 1.0f,
		.count = count,
		.out = s->weight + first,
	};

	if (worker + 1 == s->workers && way->pass == SWEEP_FUSED) {
		if (s->optimizer == OPTIMIZER_NONE)
			s->kernels->sum(&sum);
		else
			sweep_step_from(s, coef, &sum, first);
	} else if (worker == 0) {
		s->kernels->store(acc, gradient, DTYPE_F32, count);
	} else {
		s->kernels->add(acc, gradient, DTYPE_F32, count);
	}
}

void sweep_step(const struct sweep *s, const struct optimizer_coef *coef, uint64_t first, uint64_t count)
{
	struct sum_args sum = {
		.src_dtype = DTYPE_F32,
		.out_dtype = DTYPE_F32,
		.acc = s->sum + first,
		.scale = 1.0f,
		.count = count,
	};

	sweep_step_from(s, coef, &sum, first);
}

/* ---- the check ---- */

void sweep_poison(struct sweep *s)
{
	if (s->optimizer == OPTIMIZER_NONE)
		memset(s->weight, 0xff, s->plan.region_bytes);
}

/* All steps of a block while it is in cache, with the kernels' specification. */
static void sweep_replay(struct sweep *s, uint64_t first, uint64_t count)
{
	const void *src[SWEEP_WORKERS_MAX];
	float sums[SWEEP_BLOCK];
	struct sum_args sum = sweep_sum_args(s, src, first, count, sums);

	if (s->optimizer == OPTIMIZER_NONE) {
		sum.out = s->expected_weight + first;
		kernels_base.sum(&sum);
		return;
	}
	kernels_base.sum(&sum);
	for (uint64_t step = s->checked_steps + 1; step <= s->steps; step++) {
		struct optimizer_coef coef;
		struct step_args args = {
			.sum = {.acc = sums, .scale = 1.0f, .count = count, .out = s->expected_weight + first},
			.coef = &coef,
			.weight = s->expected_weight + first,
		};

		optimizer_prepare(s->optimizer, &s->hyper, step, &coef);
		for (unsigned i = 0; i < optimizer_state_count(s->optimizer); i++)
			args.state[i] = s->expected_state[i] + first;
		kernels_base.step(&args);
	}
}

static uint64_t sweep_differ(const float *is, const float *should_be, uint64_t count)
{
	uint64_t differ = 0;

	if (memcmp(is, should_be, count * sizeof(*is)) == 0)
		return 0;
	for (uint64_t i = 0; i < count; i++)
		differ += memcmp(&is[i], &should_be[i], sizeof(*is)) != 0;
	return differ;
}

static uint64_t sweep_check_block(struct sweep *s, uint64_t first, uint64_t count)
{
	uint64_t differ;

	sweep_replay(s, first, count);
	differ = sweep_differ(s->weight + first, s->expected_weight + first, count);
	for (unsigned i = 0; i < optimizer_state_count(s->optimizer); i++)
		differ += sweep_differ(s->state[i] + first, s->expected_state[i] + first, count);
	return differ;
}

uint64_t sweep_check(struct sweep *s, const char **first)
{
	uint64_t differ = 0;

	for (uint32_t k = 0; k < s->plan.key_count; k++) {
		uint64_t at = s->plan.key_offset[k] / sizeof(float), end = at + s->key_elements[k], before = differ;

		for (; at < end; at += SWEEP_BLOCK)
			differ += sweep_check_block(s, at, end - at < SWEEP_BLOCK ? end - at : SWEEP_BLOCK);
		if (differ && !before)
			*first = s->model->tensors[k].name;
	}
	s->checked_steps = s->steps;
	return differ;
}
