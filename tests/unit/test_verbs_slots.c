/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receive slots without a device: what becomes of those that a device does not take.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#ifndef PHUB_VERBS
int main(void)
{
	puts("this build has no transport \"verbs\"");
	return 77;
}
#else

#include <errno.h>

#include "transport/verbs_internal.h"

enum { SLOTS = 8 };

static struct {
	uint32_t takes; /* so many, then no more */
	uint32_t seen;
} device;

static int post(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)srq;
	for (; wr; wr = wr->next, device.seen++, device.takes--) {
		if (device.takes == 0) {
			*bad = wr;
			return ENOMEM;
		}
	}
	return 0;
}

/* A queue with one pool, whose device is the one above. */
struct scene {
	struct verbs_queue queue;
	struct verbs_pool pool;
	struct verbs_recv slots[SLOTS];
	struct ibv_context context;
	struct ibv_srq srq;
};

static void scene_init(struct scene *s)
{
	*s = (struct scene){.context.ops.post_srq_recv = post};
	s->srq.context = &s->context;
	verbs_link_init(&s->queue.pools);
	verbs_link_init(&s->pool.dirty);
	s->pool.devices = 1;
	s->pool.on[0].srq = &s->srq;
	for (unsigned i = 0; i < SLOTS; i++) {
		s->slots[i] = (struct verbs_recv){.pool = &s->pool, .out = true};
		verbs_pool_release(&s->queue, &s->slots[i]);
	}
	assert_int_equal(s->pool.on[0].free_count, SLOTS);
}

static void a_device_takes_a_part(void **state)
{
	struct scene s;

	(void)state;
	for (uint32_t takes = 0; takes <= SLOTS; takes++) {
		struct queue_counters n = {0};
		uint32_t left = 0;

		scene_init(&s);
		device.takes = takes;
		device.seen = 0;
		assert_int_equal(verbs_pool_post(&s.pool, &n), takes == SLOTS ? 0 : -ENOMEM);
		assert_int_equal(s.pool.on[0].posted, takes);
		assert_int_equal(n.recv_posts, takes);
		for (struct verbs_recv *r = s.pool.on[0].free; r; r = r->next)
			left++;
		assert_int_equal(left, SLOTS - takes);
		assert_int_equal(s.pool.on[0].free_count, SLOTS - takes);
		/* The rest goes when there is room again, each once. */
		device.takes = SLOTS;
		if (left)
			assert_int_equal(verbs_pool_post(&s.pool, &n), 0);
		assert_int_equal(device.seen, SLOTS);
		assert_int_equal(s.pool.on[0].posted, SLOTS);
		assert_null(s.pool.on[0].free);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_device_takes_a_part),
	};

	return cmocka_run_group_tests_name("verbs_slots", tests, NULL, NULL);
}
#endif
