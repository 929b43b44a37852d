/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that the parent and its workers share, and the workers' own barrier, which costs the box nothing.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "phub/base/clock.h"
#include "phub/cli/trial.h"

int trial_plan_keys(struct trial_plan *p, struct err *e)
{
	p->bytes = model_bytes(&p->model);
	p->elements = 0;
	p->group_count = 1;
	p->key_first = calloc(p->model.count, sizeof(*p->key_first));
	if (!p->key_first)
		return err_set(e, -ENOMEM, "out of memory");
	for (size_t k = 0; k < p->model.count; k++) {
		p->key_first[k] = p->elements;
		p->elements += p->model.tensors[k].elements;
		if (p->model.tensors[k].group >= p->group_count)
			p->group_count = p->model.tensors[k].group + 1u;
	}
	return 0;
}

void trial_plan_fini(struct trial_plan *p)
{
	model_destroy(&p->model);
	free(p->key_first);
}

unsigned trial_world(const struct trial_plan *p)
{
	return p->world ? p->world : p->workers;
}

static size_t shared_align(size_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

int trial_shared_create(
	const struct trial_plan *p, unsigned job, struct trial_shared *first, struct trial_shared **out, struct err *e)
{
	size_t head = shared_align(sizeof(struct trial_shared));
	size_t times = shared_align(sizeof(struct trial_time) * p->workers * (p->warmup + p->rounds));
	size_t array = shared_align(sizeof(float) * p->elements);
	unsigned states = optimizer_state_count(p->optimizer);
	size_t bytes = head + times + array * (1 + states);
	struct trial_shared *s;
	unsigned char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (base == MAP_FAILED)
		return err_set(e, -ENOMEM, "no %zu MB of memory for the expected results; take a smaller model",
			bytes / 1000000);
	s = (struct trial_shared *)(void *)base;
	s->bytes = bytes;
	s->all = first ? &first->meeting : &s->meeting;
	s->salt = job * trial_world(p);
	s->times = (struct trial_time *)(void *)(base + head);
	s->expected = (float *)(void *)(base + head + times);
	for (unsigned i = 0; i < states; i++)
		s->state[i] = (float *)(void *)(base + head + times + array * (1 + i));
	*out = s;
	return 0;
}

void trial_shared_destroy(struct trial_shared *s)
{
	munmap(s, s->bytes);
}

struct trial_time *trial_times(const struct trial_plan *p, const struct trial_shared *s, unsigned rank)
{
	return s->times + (size_t)rank * (p->warmup + p->rounds);
}

/* Yields at first, so that a stretch begins everywhere at once, and sleeps when the others take their time. */
int trial_meet(const struct trial_plan *p, struct trial_shared *s)
{
	struct trial_meeting *all = s->all;
	unsigned turn = atomic_load_explicit(&all->turn, memory_order_acquire);
	uint64_t yield_until_ns = clock_now_ns() + 20 * NS_PER_MS;

	if (atomic_fetch_add_explicit(&all->arrived, 1, memory_order_acq_rel) + 1 == p->workers * p->jobs) {
		atomic_store_explicit(&all->arrived, 0, memory_order_relaxed);
		atomic_store_explicit(&all->turn, turn + 1, memory_order_release);
		return 0;
	}
	while (atomic_load_explicit(&all->turn, memory_order_acquire) == turn) {
		if (atomic_load_explicit(&all->failed, memory_order_relaxed))
			return -ECANCELED;
		if (clock_now_ns() < yield_until_ns)
			sched_yield();
		else
			nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
	}
	return 0;
}
