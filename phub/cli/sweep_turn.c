/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One turn of phub bench aggregation: a thread on each core, and the barrier between them.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/cli/sweep.h"

enum { TURN_SPINS = 4096 }; /* before a waiting core lets others run; some ten microseconds */

struct turn {
	struct sweep *s;
	const struct sweep_way *way;
	struct optimizer_coef coef;
	_Alignas(CPU_LINE_BYTES) _Atomic unsigned arrived; /* acquire and release at each other's arrival */
	_Alignas(CPU_LINE_BYTES) _Atomic unsigned phase; /* release by the last to arrive, acquire by those who wait */
	_Atomic bool called_off;                         /* a thread could not be started: nobody begins; relaxed */
};

struct turn_core {
	_Alignas(CPU_LINE_BYTES) struct turn *turn;
	unsigned index;
	uint64_t begin_ns, end_ns, cpu_ns, waits;
	int error; /* of pinning */
	pthread_t thread;
};

/* The best case of a barrier: nobody sleeps. */
static void turn_meet(struct turn_core *c)
{
	struct turn *t = c->turn;
	unsigned phase = atomic_load_explicit(&t->phase, memory_order_acquire);

	c->waits++;
	if (atomic_fetch_add_explicit(&t->arrived, 1, memory_order_acq_rel) + 1 == t->s->cores) {
		atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
		atomic_store_explicit(&t->phase, phase + 1, memory_order_release);
		return;
	}
	for (unsigned i = 0; atomic_load_explicit(&t->phase, memory_order_acquire) == phase; i++) {
		if (atomic_load_explicit(&t->called_off, memory_order_relaxed))
			return;
		if (i < TURN_SPINS)
			cpu_relax();
		else
			sched_yield();
	}
}

/* ---- tall ---- */

static void turn_chunk(const struct turn *t, const struct chunk_span *chunk)
{
	uint64_t first = chunk->offset / sizeof(float), count = chunk->bytes / sizeof(float);

	if (t->way->adds == SWEEP_HELD) {
		sweep_held(t->s, t->way, &t->coef, first, count);
		return;
	}
	for (unsigned w = 0; w < t->s->workers; w++)
		sweep_arrival(t->s, t->way, &t->coef, w, first, count);
}

static void turn_tall(struct turn_core *c)
{
	const struct turn *t = c->turn;
	const struct chunk_plan *plan = &t->s->plan;

	for (uint32_t i = 0; i < plan->chunk_count; i++) {
		if (t->s->core_of[i] == c->index)
			turn_chunk(t, &plan->chunks[i]);
	}
	if (t->s->plant && t->s->core_of[0] == c->index)
		turn_chunk(t, &plan->chunks[0]);
	if (t->way->pass == SWEEP_FUSED)
		return;
	turn_meet(c);
	for (uint32_t i = 0; i < plan->chunk_count; i++) {
		if (t->s->core_of[i] == c->index)
			sweep_step(t->s, &t->coef, plan->chunks[i].offset / sizeof(float),
				plan->chunks[i].bytes / sizeof(float));
	}
}

/* ---- wide ---- */

/* This core's part of a key: whole cache lines, but for the key's end. */
static uint64_t turn_slice(const struct turn_core *c, uint32_t key, uint64_t *first)
{
	const struct sweep *s = c->turn->s;
	uint64_t line = CHUNKING_ALIGN_BYTES / sizeof(float), elements = s->key_elements[key];
	uint64_t part = (elements + s->cores * line - 1) / (s->cores * line) * line;
	uint64_t begin = part * c->index < elements ? part * c->index : elements;

	*first = s->plan.key_offset[key] / sizeof(float) + begin;
	return elements - begin < part ? elements - begin : part;
}

static void turn_key(struct turn_core *c, uint32_t key)
{
	const struct turn *t = c->turn;
	uint64_t first, count = turn_slice(c, key, &first);

	if (t->way->adds == SWEEP_HELD) {
		sweep_held(t->s, t->way, &t->coef, first, count);
		turn_meet(c);
		return;
	}
	for (unsigned w = 0; w < t->s->workers; w++) {
		sweep_arrival(t->s, t->way, &t->coef, w, first, count);
		turn_meet(c);
	}
}

static void turn_wide(struct turn_core *c)
{
	const struct turn *t = c->turn;

	for (uint32_t key = 0; key < t->s->plan.key_count; key++)
		turn_key(c, key);
	if (t->s->plant)
		turn_key(c, 0);
	for (uint32_t key = 0; t->way->pass == SWEEP_SEPARATE && key < t->s->plan.key_count; key++) {
		uint64_t first, count = turn_slice(c, key, &first);

		sweep_step(t->s, &t->coef, first, count);
		turn_meet(c);
	}
}

/* ---- threads ---- */

static void *turn_run(void *arg)
{
	struct turn_core *c = arg;
	uint64_t cpu_ns;

	c->error = cpu_pin_self(c->turn->s->cpus.cpu[c->index]);
	turn_meet(c);
	if (atomic_load_explicit(&c->turn->called_off, memory_order_relaxed))
		return NULL;
	c->waits = 0;
	cpu_ns = clock_thread_cpu_ns();
	c->begin_ns = clock_now_ns();
	if (c->turn->way->how == SWEEP_TALL)
		turn_tall(c);
	else
		turn_wide(c);
	c->end_ns = clock_now_ns();
	c->cpu_ns = clock_thread_cpu_ns() - cpu_ns;
	return NULL;
}

static struct sweep_took turn_count(const struct turn_core *cores, unsigned count)
{
	uint64_t begin_ns = UINT64_MAX, end_ns = 0;
	struct sweep_took took = {.waits = cores[0].waits};

	for (unsigned i = 0; i < count; i++) {
		begin_ns = cores[i].begin_ns < begin_ns ? cores[i].begin_ns : begin_ns;
		end_ns = cores[i].end_ns > end_ns ? cores[i].end_ns : end_ns;
		took.cpu_ns += cores[i].cpu_ns;
	}
	took.wall_ns = end_ns - begin_ns;
	return took;
}

static int turn_start(struct turn *t, struct turn_core *cores, unsigned *started)
{
	for (unsigned i = 0; i < t->s->cores; i++) {
		int rc;

		cores[i] = (struct turn_core){.turn = t, .index = i};
		rc = pthread_create(&cores[i].thread, NULL, turn_run, &cores[i]);
		if (rc)
			return -rc;
		*started = i + 1;
	}
	return 0;
}

int sweep_turn(struct sweep *s, const struct sweep_way *way, struct sweep_took *took, struct err *e)
{
	static struct turn_core cores[SWEEP_CORES_MAX];
	struct turn t = {.s = s, .way = way};
	unsigned started = 0;
	int rc;

	if (s->optimizer != OPTIMIZER_NONE)
		optimizer_prepare(s->optimizer, &s->hyper, s->steps + 1, &t.coef);
	rc = turn_start(&t, cores, &started);
	if (rc < 0)
		atomic_store_explicit(&t.called_off, true, memory_order_relaxed);
	for (unsigned i = 0; i < started; i++) {
		pthread_join(cores[i].thread, NULL);
		rc = rc < 0 ? rc : cores[i].error;
	}
	if (rc < 0)
		return err_set(e, rc, "could not run %u threads, one on each CPU: %s", s->cores, strerror(-rc));
	s->steps++;
	s->plant = false;
	*took = turn_count(cores, s->cores);
	return 0;
}
