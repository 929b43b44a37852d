/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rings of the shared-memory transport, both ends in one memory, and the parcel in which a worker gets them.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cmocka_shim.h"
#include "tests/unit/shm_rig.h"
#include "transport/shm_parcel.h"
#include "transport/shm_ring.h"

/* ---- rings ---- */

/* Both ends of a ring in one memory. */
struct rings {
	void *memory;
	struct shm_ring box, worker;
};

static void rings_init(struct rings *r, uint32_t capacity)
{
	r->memory = aligned_alloc(SHM_RING_PAGE, shm_ring_bytes(capacity));
	assert_non_null(r->memory);
	memset(r->memory, 0, shm_ring_bytes(capacity));
	shm_ring_format(r->memory);
	shm_ring_attach(&r->box, r->memory, capacity, SHM_BOX);
	shm_ring_attach(&r->worker, r->memory, capacity, SHM_WORKER);
}

static void ring_capacity_fits_window_and_chunks(void **state)
{
	assert_int_equal(shm_ring_capacity(0, 0), SHM_RING_CAPACITY_MIN);
	assert_int_equal(shm_ring_capacity(17, 0), 32);
	assert_int_equal(shm_ring_capacity(32, 0), 32);
	assert_int_equal(shm_ring_capacity(3, 100), 256);
	assert_int_equal(shm_ring_capacity(UINT32_MAX, 1), SHM_RING_CAPACITY_MAX);
	assert_int_equal(shm_ring_capacity(1, UINT32_MAX), SHM_RING_CAPACITY_MAX);
	assert_true(shm_ring_capacity_valid(16) && shm_ring_capacity_valid(1024));
	assert_false(shm_ring_capacity_valid(0) || shm_ring_capacity_valid(8) || shm_ring_capacity_valid(48) ||
		     shm_ring_capacity_valid(2048));
}

/* The indices begin shortly before 2^32, so this wraps; every entry arrives once, in order, with its offset. */
static void ring_moves_entries_in_order_over_the_wrap(void **state)
{
	struct wire_header out = shm_rig_result_header(2, 0), in;
	uint64_t sent = 0, got = 0, offset;
	struct rings r;

	rings_init(&r, 16);
	while (got < 1000) {
		for (unsigned i = 0; i < 1 + sent % 5; i++) {
			out.round = sent;
			if (shm_ring_put(&r.box, &out, sent * 64) == 0)
				sent++;
		}
		shm_ring_publish(&r.box);
		for (unsigned i = 0; i < 3 && shm_ring_take(&r.worker, &in, &offset) == 1; i++) {
			assert_int_equal(in.round, got);
			assert_int_equal(offset, got * 64);
			got++;
		}
		shm_ring_give_back(&r.worker);
	}
	assert_true(sent - got <= 16);
	free(r.memory);
}

static void ring_is_full_at_its_capacity_and_not_before(void **state)
{
	struct wire_header out = shm_rig_push_header(0, 0), in;
	uint64_t offset;
	struct rings r;

	rings_init(&r, 16);
	for (unsigned i = 0; i < 16; i++)
		assert_int_equal(shm_ring_put(&r.worker, &out, 0), 0);
	assert_int_equal(shm_ring_put(&r.worker, &out, 0), -EAGAIN);
	assert_int_equal(shm_ring_take(&r.box, &in, &offset), 0);
	shm_ring_publish(&r.worker);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(shm_ring_take(&r.box, &in, &offset), 1);
		shm_ring_give_back(&r.box);
	}
	/* Given back by the quarter. */
	assert_int_equal(shm_ring_room(&r.worker), 0);
	assert_int_equal(shm_ring_take(&r.box, &in, &offset), 1);
	shm_ring_give_back(&r.box);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(shm_ring_put(&r.worker, &out, 0), 0);
	assert_int_equal(shm_ring_put(&r.worker, &out, 0), -EAGAIN);
	free(r.memory);
}

static void ring_refuses_impossible_indices(void **state)
{
	struct wire_header out = shm_rig_push_header(0, 0), in;
	uint64_t offset;
	struct rings r;

	rings_init(&r, 16);
	atomic_store(&r.worker.own->tail, SHM_RING_FIRST + 17);
	assert_int_equal(shm_ring_take(&r.box, &in, &offset), -EPROTO);
	assert_int_equal(shm_ring_close_peer(&r.box), -EPROTO);
	free(r.memory);

	rings_init(&r, 16);
	atomic_store(&r.worker.own->tail, SHM_RING_FIRST - 1);
	assert_int_equal(shm_ring_take(&r.box, &in, &offset), -EPROTO);
	free(r.memory);

	/* A head beyond what was published, when the lane is full. */
	rings_init(&r, 16);
	for (unsigned i = 0; i < 16; i++)
		assert_int_equal(shm_ring_put(&r.box, &out, 0), 0);
	atomic_store(&r.worker.own->head, SHM_RING_FIRST + 1);
	assert_int_equal(shm_ring_put(&r.box, &out, 0), -EPROTO);
	assert_int_equal(shm_ring_room(&r.box), -EPROTO);
	free(r.memory);
}

static void ring_wakes_a_sleeper_once_and_for_what_it_asked(void **state)
{
	struct wire_header out = shm_rig_push_header(0, 0), in;
	uint64_t offset;
	struct rings r;

	rings_init(&r, 16);
	assert_false(shm_ring_publish(&r.worker)); /* nothing was put */
	assert_int_equal(shm_ring_put(&r.worker, &out, 0), 0);
	assert_false(shm_ring_publish(&r.worker)); /* nobody sleeps */
	shm_ring_arm(&r.box, SHM_ARMED_DATA);
	assert_false(shm_ring_quiet(&r.box, SHM_ARMED_DATA));
	assert_int_equal(shm_ring_take(&r.box, &in, &offset), 1);
	assert_true(shm_ring_quiet(&r.box, SHM_ARMED_DATA));
	assert_int_equal(shm_ring_put(&r.worker, &out, 0), 0);
	assert_true(shm_ring_publish(&r.worker));
	assert_int_equal(shm_ring_put(&r.worker, &out, 0), 0);
	assert_false(shm_ring_publish(&r.worker));

	/* Who waits for room alone is not woken by data. */
	shm_ring_arm(&r.box, SHM_ARMED_ROOM);
	assert_int_equal(shm_ring_put(&r.worker, &out, 0), 0);
	assert_false(shm_ring_publish(&r.worker));
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(shm_ring_put(&r.box, &out, 0), 0);
		assert_false(shm_ring_give_back(&r.worker));
		shm_ring_publish(&r.box);
		assert_int_equal(shm_ring_take(&r.worker, &in, &offset), 1);
	}
	assert_true(shm_ring_quiet(&r.box, 0) && shm_ring_quiet(&r.box, SHM_ARMED_ROOM));
	assert_true(shm_ring_give_back(&r.worker));
	assert_false(shm_ring_quiet(&r.box, SHM_ARMED_ROOM));
	free(r.memory);
}

/*
 * Sleeper and publisher at the same moment, over and over: never may the sleeper find nothing while the publisher
 * finds nobody asleep. With a weaker order than seq_cst in shm_ring_publish() or shm_ring_arm() this fails within a
 * second on x86, where a store may wait behind the load that follows it.
 */
enum { RACES = 300000 };

struct race {
	struct rings rings;
	_Atomic unsigned begun[2], ended[2]; /* races that each has come to, and through */
	bool rung, quiet;
};

static void race_meet(_Atomic unsigned *mine, _Atomic unsigned *other, unsigned round)
{
	unsigned spins = 0;

	atomic_store(mine, round);
	while (atomic_load(other) < round)
		if (++spins > 1000)
			sched_yield();
}

static void *race_publish(void *arg)
{
	struct wire_header header = {.type = WIRE_CREDIT};
	struct race *r = arg;

	for (unsigned i = 1; i <= RACES; i++) {
		REQUIRE(shm_ring_put(&r->rings.worker, &header, 0) == 0);
		race_meet(&r->begun[0], &r->begun[1], i);
		for (volatile unsigned wait = i * 37 % 101; wait > 0; wait--)
			;
		r->rung = shm_ring_publish(&r->rings.worker);
		race_meet(&r->ended[0], &r->ended[1], i);
	}
	return NULL;
}

static void ring_never_loses_a_wake_up(void **state)
{
	static struct race r;
	struct wire_header in;
	uint64_t offset;
	pthread_t thread;

	rings_init(&r.rings, 16);
	REQUIRE(pthread_create(&thread, NULL, race_publish, &r) == 0);
	for (unsigned i = 1; i <= RACES; i++) {
		race_meet(&r.begun[1], &r.begun[0], i);
		for (volatile unsigned wait = i * 53 % 97; wait > 0; wait--)
			;
		shm_ring_arm(&r.rings.box, SHM_ARMED_DATA);
		r.quiet = shm_ring_quiet(&r.rings.box, SHM_ARMED_DATA);
		/* What this race has found must be looked at before the next one begins, by the one who waits. */
		while (atomic_load(&r.ended[0]) < i)
			sched_yield();
		REQUIRE(r.rung || !r.quiet);
		shm_ring_disarm(&r.rings.box);
		REQUIRE(shm_ring_take(&r.rings.box, &in, &offset) == 1);
		shm_ring_give_back(&r.rings.box);
		atomic_store(&r.ended[1], i);
	}
	REQUIRE(pthread_join(thread, NULL) == 0);
	free(r.rings.memory);
}

/* ---- parcels ---- */

static void parcel_survives_its_encoding_and_refuses_others(void **state)
{
	struct shm_parcel in = {
		.capacity = 64, .ring_bytes = shm_ring_bytes(64), .push_bytes = 1, .result_bytes = 1ull << 40};
	struct shm_parcel out = {0};
	uint8_t bytes[SHM_PARCEL_BYTES];

	shm_parcel_encode(&in, bytes);
	assert_int_equal(shm_parcel_decode(bytes, &out), 0);
	assert_int_equal(out.capacity, 64);
	assert_int_equal(out.ring_bytes, shm_ring_bytes(64));
	assert_int_equal(out.push_bytes, 1);
	assert_int_equal(out.result_bytes, 1ull << 40);
	for (unsigned i = 0; i < SHM_PARCEL_BYTES; i++) {
		int rc;

		bytes[i] ^= 0x80;
		rc = shm_parcel_decode(bytes, &out);
		/* Any size of the regions is as good as another until they are mapped. */
		assert_int_equal(rc, i == 4 ? -EPROTONOSUPPORT : i >= 24 && i < 40 ? 0 : -EPROTO);
		bytes[i] ^= 0x80;
	}
	in.push_bytes = 0;
	shm_parcel_encode(&in, bytes);
	assert_int_equal(shm_parcel_decode(bytes, &out), -EPROTO);
}

static void parcel_has_slots_within_the_region_or_none(void **state)
{
	static const struct {
		struct shm_slots slots;
		int rc;
	} cases[] = {
		{{0, 0, 0}, 0},
		{{4096, 3, 64}, 0},
		{{10000 - 3 * 64, 3, 64}, 0},
		{{10000 - 3 * 64 + 1, 3, 64}, -EPROTO},
		{{10001, 1, 1}, -EPROTO},
		{{UINT64_MAX, 1, 1}, -EPROTO},
		{{UINT64_MAX - 63, 1, 64}, -EPROTO},
		{{0, UINT32_MAX, UINT32_MAX}, -EPROTO},
		{{0, 0x10000, 0x10000}, -EPROTO},
		{{0, 3, 0}, -EPROTO},
		{{0, 0, 3}, -EPROTO},
		{{3, 0, 0}, -EPROTO},
	};
	struct shm_parcel in = {
		.capacity = 64, .ring_bytes = shm_ring_bytes(64), .push_bytes = 10000, .result_bytes = 1};
	struct shm_parcel out = {0};
	uint8_t bytes[SHM_PARCEL_BYTES];

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		in.slots = cases[i].slots;
		shm_parcel_encode(&in, bytes);
		assert_int_equal(shm_parcel_decode(bytes, &out), cases[i].rc);
		if (cases[i].rc == 0)
			assert_memory_equal(&out.slots, &in.slots, sizeof(in.slots));
	}
}

/* What a worker names is a number, and the box says where that is. */
static void slots_are_found_by_number(void **state)
{
	const struct span spans[] = {{0, 100}, {128, 50}};
	const struct shm_slots slots = {.offset = 4096, .count = 2, .bytes = 64}, none = {0};
	const struct wire_header fits = {.type = WIRE_PUSH, .chunk = 1, .length = 50};
	const struct wire_header large = {.type = WIRE_PUSH, .chunk = 0, .length = 100};
	uint64_t offset;

	assert_int_equal(shm_ring_find(&slots, &fits, spans, 0, &offset), 0);
	assert_int_equal(offset, 128);
	assert_int_equal(shm_ring_find(&slots, &fits, spans, 1, &offset), 0);
	assert_int_equal(offset, 4096);
	assert_int_equal(shm_ring_find(&slots, &fits, spans, 2, &offset), 0);
	assert_int_equal(offset, 4160);
	assert_int_equal(shm_ring_find(&slots, &fits, spans, 3, &offset), -EPROTO);
	assert_int_equal(shm_ring_find(&slots, &fits, spans, UINT64_MAX, &offset), -EPROTO);
	assert_int_equal(shm_ring_find(&slots, &fits, spans, 1ull << 32, &offset), -EPROTO);
	assert_int_equal(shm_ring_find(&slots, &large, spans, 0, &offset), 0);
	assert_int_equal(shm_ring_find(&slots, &large, spans, 1, &offset), -EPROTO);
	assert_int_equal(shm_ring_find(&none, &fits, spans, 0, &offset), 0);
	assert_int_equal(shm_ring_find(&none, &fits, spans, 1, &offset), -EPROTO);
}

TEST_PROGRAM(test_shm_ring)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ring_capacity_fits_window_and_chunks),
		cmocka_unit_test(ring_moves_entries_in_order_over_the_wrap),
		cmocka_unit_test(ring_is_full_at_its_capacity_and_not_before),
		cmocka_unit_test(ring_refuses_impossible_indices),
		cmocka_unit_test(ring_wakes_a_sleeper_once_and_for_what_it_asked),
		cmocka_unit_test(ring_never_loses_a_wake_up),
		cmocka_unit_test(parcel_survives_its_encoding_and_refuses_others),
		cmocka_unit_test(parcel_has_slots_within_the_region_or_none),
		cmocka_unit_test(slots_are_found_by_number),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
