/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both rings: bounds, wrap-around, order, threads, and that a reader which sleeps when the ring is not ready misses no
 * entry. The threads yield when they find no work, because there may be more of them than CPUs.
 */
#include "phub/base/ring.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "tests/unit/cmocka_shim.h"

#define WRITERS 3
#define ENTRIES 50000u /* of each writer */

struct entry {
	uint32_t writer;
	uint32_t number;
	uint64_t check; /* of both: a torn copy would not match */
};

static struct entry entry_make(uint32_t writer, uint32_t number)
{
	return (struct entry){writer, number, ((uint64_t)writer << 32 | number) * 0x9e3779b97f4a7c15u};
}

static bool entry_good(const struct entry *e)
{
	struct entry want = entry_make(e->writer, e->number);

	return e->check == want.check;
}

static void test_create_errors(void **state)
{
	struct ring_spsc *spsc = NULL;
	struct ring_mpsc *mpsc = NULL;

	assert_int_equal(ring_spsc_create(0, 8, &spsc), -EINVAL);
	assert_int_equal(ring_spsc_create(8, 0, &spsc), -EINVAL);
	assert_int_equal(ring_spsc_create(RING_CAPACITY_MAX + 1, 8, &spsc), -EINVAL);
	assert_int_equal(ring_spsc_create(8, RING_ENTRY_BYTES_MAX + 1, &spsc), -EINVAL);
	assert_int_equal(ring_mpsc_create(0, 8, &mpsc), -EINVAL);
	assert_int_equal(ring_mpsc_create(8, 0, &mpsc), -EINVAL);
	assert_int_equal(ring_mpsc_create(RING_CAPACITY_MAX + 1, 8, &mpsc), -EINVAL);
	assert_int_equal(ring_mpsc_create(8, RING_ENTRY_BYTES_MAX + 1, &mpsc), -EINVAL);
	assert_null(spsc);
	assert_null(mpsc);
	ring_spsc_destroy(NULL);
	ring_mpsc_destroy(NULL);
}

static void test_capacity_is_rounded_up(void **state)
{
	static const uint32_t asked[] = {1, 2, 3, 4, 5, 1000};
	static const uint32_t got[] = {2, 2, 4, 4, 8, 1024};

	for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
		struct ring_spsc *spsc;
		struct ring_mpsc *mpsc;

		assert_int_equal(ring_spsc_create(asked[i], 3, &spsc), 0);
		assert_int_equal(ring_spsc_capacity(spsc), got[i]);
		ring_spsc_destroy(spsc);
		assert_int_equal(ring_mpsc_create(asked[i], 3, &mpsc), 0);
		assert_int_equal(ring_mpsc_capacity(mpsc), got[i]);
		ring_mpsc_destroy(mpsc);
	}
}

/* Fills to the bound and drains, starting at every place of the ring, with an odd entry size. */
static void test_spsc_bounds(void **state)
{
	struct ring_spsc *ring;
	char in[5] = "abcd", out[5];

	assert_int_equal(ring_spsc_create(4, sizeof(in), &ring), 0);
	for (int lap = 0; lap < 9; lap++) {
		assert_false(ring_spsc_ready(ring));
		assert_int_equal(ring_spsc_pop(ring, out), -EAGAIN);
		for (int i = 0; i < 4; i++) {
			in[0] = (char)('a' + i);
			assert_int_equal(ring_spsc_push(ring, in), 0);
		}
		assert_int_equal(ring_spsc_push(ring, in), -EAGAIN);
		assert_true(ring_spsc_ready(ring));
		for (int i = 0; i < 4; i++) {
			assert_int_equal(ring_spsc_pop(ring, out), 0);
			assert_int_equal(out[0], 'a' + i);
			assert_string_equal(out + 1, "bcd");
		}
		assert_int_equal(ring_spsc_push(ring, in), 0); /* shifts the next lap by one */
		assert_int_equal(ring_spsc_pop(ring, out), 0);
	}
	ring_spsc_destroy(ring);
}

static void test_mpsc_bounds(void **state)
{
	struct ring_mpsc *ring;
	char in[5] = "abcd", out[5];

	assert_int_equal(ring_mpsc_create(4, sizeof(in), &ring), 0);
	for (int lap = 0; lap < 9; lap++) {
		assert_false(ring_mpsc_ready(ring));
		assert_int_equal(ring_mpsc_pop(ring, out), -EAGAIN);
		for (int i = 0; i < 4; i++) {
			in[0] = (char)('a' + i);
			assert_int_equal(ring_mpsc_push(ring, in), 0);
		}
		assert_int_equal(ring_mpsc_push(ring, in), -EAGAIN);
		assert_true(ring_mpsc_ready(ring));
		for (int i = 0; i < 4; i++) {
			assert_int_equal(ring_mpsc_pop(ring, out), 0);
			assert_int_equal(out[0], 'a' + i);
			assert_string_equal(out + 1, "bcd");
		}
		assert_int_equal(ring_mpsc_push(ring, in), 0);
		assert_int_equal(ring_mpsc_pop(ring, out), 0);
	}
	ring_mpsc_destroy(ring);
}

static void *spsc_write(void *ctx)
{
	for (uint32_t i = 0; i < ENTRIES; i++) {
		struct entry e = entry_make(0, i);

		while (ring_spsc_push(ctx, &e) == -EAGAIN)
			sched_yield();
	}
	return NULL;
}

static void test_spsc_threads(void **state)
{
	struct ring_spsc *ring;
	pthread_t writer;
	struct entry e;

	assert_int_equal(ring_spsc_create(16, sizeof(struct entry), &ring), 0);
	assert_int_equal(pthread_create(&writer, NULL, spsc_write, ring), 0);
	for (uint32_t i = 0; i < ENTRIES; i++) {
		while (ring_spsc_pop(ring, &e) == -EAGAIN)
			sched_yield();
		assert_true(entry_good(&e));
		assert_int_equal(e.number, i);
	}
	pthread_join(writer, NULL);
	assert_int_equal(ring_spsc_pop(ring, &e), -EAGAIN);
	ring_spsc_destroy(ring);
}

struct writer {
	struct ring_mpsc *ring;
	uint32_t number;
	pthread_t thread;
};

static void *mpsc_write(void *ctx)
{
	struct writer *writer = ctx;

	for (uint32_t i = 0; i < ENTRIES; i++) {
		struct entry e = entry_make(writer->number, i);

		while (ring_mpsc_push(writer->ring, &e) == -EAGAIN)
			sched_yield();
	}
	return NULL;
}

static void test_mpsc_threads(void **state)
{
	struct writer writers[WRITERS];
	uint32_t next[WRITERS] = {0};
	struct ring_mpsc *ring;
	struct entry e;

	assert_int_equal(ring_mpsc_create(16, sizeof(struct entry), &ring), 0);
	for (uint32_t i = 0; i < WRITERS; i++) {
		writers[i] = (struct writer){.ring = ring, .number = i};
		assert_int_equal(pthread_create(&writers[i].thread, NULL, mpsc_write, &writers[i]), 0);
	}
	for (uint32_t i = 0; i < WRITERS * ENTRIES; i++) {
		while (ring_mpsc_pop(ring, &e) == -EAGAIN)
			sched_yield();
		assert_true(entry_good(&e) && e.writer < WRITERS);
		assert_int_equal(
			e.number, next[e.writer]++); /* each writer's entries in its order, none lost, none twice */
	}
	for (uint32_t i = 0; i < WRITERS; i++)
		pthread_join(writers[i].thread, NULL);
	assert_int_equal(ring_mpsc_pop(ring, &e), -EAGAIN);
	ring_mpsc_destroy(ring);
}

/* The protocol that ring.h promises to sleepers, with a counter of wake-ups in place of an eventfd. */
struct sleeper {
	struct ring_mpsc *ring;
	_Atomic bool asleep;
	_Atomic uint32_t wakes;
};

static void *sleeper_write(void *ctx)
{
	struct sleeper *s = ctx;

	for (uint32_t i = 0; i < ENTRIES; i++) {
		while (ring_mpsc_push(s->ring, &i) == -EAGAIN)
			sched_yield();
		if (atomic_load_explicit(&s->asleep, memory_order_seq_cst))
			atomic_fetch_add_explicit(&s->wakes, 1, memory_order_release);
	}
	return NULL;
}

static void test_sleeper_misses_nothing(void **state)
{
	struct sleeper s = {.asleep = false};
	uint32_t got = 0, entry;
	pthread_t writer;

	assert_int_equal(ring_mpsc_create(2, sizeof(uint32_t), &s.ring), 0);
	assert_int_equal(pthread_create(&writer, NULL, sleeper_write, &s), 0);
	while (got < ENTRIES) {
		if (ring_mpsc_pop(s.ring, &entry) == 0) {
			assert_int_equal(entry, got);
			got++;
			continue;
		}
		uint32_t wakes = atomic_load_explicit(&s.wakes, memory_order_acquire);
		atomic_store_explicit(&s.asleep, true, memory_order_seq_cst);
		/* Asleep, only a wake-up ends this; a missed one would hang the test. */
		while (!ring_mpsc_ready(s.ring) && atomic_load_explicit(&s.wakes, memory_order_acquire) == wakes)
			sched_yield();
		atomic_store_explicit(&s.asleep, false, memory_order_relaxed);
	}
	pthread_join(writer, NULL);
	ring_mpsc_destroy(s.ring);
}

TEST_PROGRAM(test_ring)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_create_errors),
		cmocka_unit_test(test_capacity_is_rounded_up),
		cmocka_unit_test(test_spsc_bounds),
		cmocka_unit_test(test_mpsc_bounds),
		cmocka_unit_test(test_spsc_threads),
		cmocka_unit_test(test_mpsc_threads),
		cmocka_unit_test(test_sleeper_misses_nothing),
	};

	return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}
