/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receive slots without a device: what becomes of those that a device does not take, and how memory for them is cut up.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifndef PHUB_VERBS
TEST_PROGRAM(test_verbs_slots)
{
	puts("this build has no transport \"verbs\"");
	return 77;
}
#else

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "tests/unit/cmocka_shim.h"
#include "transport/verbs_internal.h"

enum { SLOTS = 8 };

static struct {
	uint32_t takes; /* so many, then no more */
	uint32_t seen;
} device;

static int post(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
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
	list_init(&s->queue.pools);
	list_init(&s->pool.dirty);
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

/*
 * A connection that control gives up may be a pool's last, while the owner of the queue has that pool in its list: the
 * list is the owner's alone, and the pool stays until it is out of it.
 */
static void control_gives_up_the_last_connection(void **state)
{
	struct verbs verbs = {.pools = NULL};
	struct scene s;
	struct verbs_pool *p = calloc(1, sizeof(*p));
	struct verbs_conn conn = {.pool = p};
	struct verbs_recv slot = {.pool = p, .out = true};

	assert_non_null(p);
	scene_init(&s);
	device.takes = SLOTS;
	assert_int_equal(verbs_pool_post(&s.pool, NULL), 0);
	list_init(&s.queue.dirty);
	pthread_mutex_init(&verbs.lock, NULL);
	list_init(&p->dirty);
	p->verbs = &verbs;
	verbs.pools = p;
	p->queue = &s.queue.queue;
	p->devices = 1;
	p->on[0].srq = &s.srq;
	p->on[0].posted = UINT32_MAX; /* of one slot that is out */
	p->refs = 1;
	verbs_pool_release(&s.queue, &slot);
	assert_false(list_alone(&s.queue.pools));

	verbs_pool_put(&conn);
	assert_int_equal(p->refs, 0);
	assert_ptr_equal(s.queue.pools.next, &p->dirty);
	verbs_pools_reap(&verbs);
	assert_ptr_equal(verbs.pools, p);

	device.takes = SLOTS;
	verbs_queue_ops.flush(&s.queue.queue);
	assert_true(list_alone(&s.queue.pools));
	p->on[0].srq = NULL;
	verbs_pools_reap(&verbs);
	assert_null(verbs.pools);
	assert_int_equal(verbs.transport.slots_lost, 0);
	pthread_mutex_destroy(&verbs.lock);
}

enum { UNITS = 64, UNIT = 4096, PIECES = 24 };

static uint64_t random_next(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

/* Where the first gap of so many units is in the map, or UNITS. */
static unsigned first_gap(const int *map, unsigned units)
{
	unsigned run = 0;

	for (unsigned i = 0; i < UNITS; i++) {
		run = map[i] ? 0 : run + 1;
		if (run == units)
			return i + 1 - units;
	}
	return UNITS;
}

/* Always the first gap that is large enough; what was given back is one with its neighbours. */
static void pieces_of_an_extent(void **state)
{
	struct verbs_extent x = {.memory = {.bytes = UNITS * UNIT}};
	struct verbs_piece pieces[PIECES] = {{.bytes = 0}};
	int map[UNITS] = {0};
	uint64_t seed = 77;

	list_init(&x.pieces);
	for (unsigned turn = 0; turn < 20000; turn++) {
		unsigned k = (unsigned)(random_next(&seed) % PIECES), units = 1 + (unsigned)(random_next(&seed) % 12);
		struct verbs_piece *p = &pieces[k];

		if (p->extent) {
			for (size_t i = 0; i < p->bytes / UNIT; i++)
				map[p->at / UNIT + i] = 0;
			verbs_piece_give(p);
			assert_null(p->extent);
			continue;
		}
		if (first_gap(map, units) == UNITS) {
			assert_false(verbs_extent_take(&x, (size_t)units * UNIT, p));
			assert_null(p->extent);
			continue;
		}
		assert_true(verbs_extent_take(&x, (size_t)units * UNIT, p));
		assert_int_equal(p->at, first_gap(map, units) * UNIT);
		assert_int_equal(p->bytes, units * UNIT);
		for (unsigned i = 0; i < units; i++)
			map[p->at / UNIT + i] = 1;
	}
	for (unsigned k = 0; k < PIECES; k++)
		verbs_piece_give(&pieces[k]);
	assert_true(list_alone(&x.pieces));
	assert_true(verbs_extent_take(&x, UNITS * UNIT, &pieces[0]));
	assert_false(verbs_extent_take(&x, 1, &pieces[1]));
}

TEST_PROGRAM(test_verbs_slots)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_device_takes_a_part),
		cmocka_unit_test(control_gives_up_the_last_connection),
		cmocka_unit_test(pieces_of_an_extent),
	};

	return cmocka_run_group_tests_name("verbs_slots", tests, NULL, NULL);
}
#endif
