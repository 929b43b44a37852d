/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared-memory transport between ends that mean well: rings, parcels, setting up, moving messages, sleeping, ending,
 * in one thread, in two and in two processes. What a hostile peer can do is in test_shm_hostile.c; what every
 * transport has to do in tests/suite. `test_shm --measure` prints latencies and rates.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "phub/base/clock.h"
#include "tests/unit/shm_rig.h"
#include "transport/shm_internal.h"

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
	(void)state;
	assert_int_equal(shm_ring_capacity(0, 0), SHM_RING_CAPACITY_MIN);
	assert_int_equal(shm_ring_capacity(17, 0), 32);
	assert_int_equal(shm_ring_capacity(32, 0), 32);
	assert_int_equal(shm_ring_capacity(3, 100), 256);
	assert_int_equal(shm_ring_capacity(UINT32_MAX, 1), SHM_RING_CAPACITY_MAX);
	assert_int_equal(shm_ring_capacity(1, UINT32_MAX), SHM_RING_CAPACITY_MAX);
	assert_true(shm_ring_capacity_valid(16) && shm_ring_capacity_valid(1024));
	assert_false(shm_ring_capacity_valid(0) || shm_ring_capacity_valid(8) || shm_ring_capacity_valid(48)
		     || shm_ring_capacity_valid(2048));
}

/* The indices begin shortly before 2^32, so this wraps; every entry arrives once, in order, with its offset. */
static void ring_moves_entries_in_order_over_the_wrap(void **state)
{
	struct wire_header out = shm_rig_result_header(2, 0), in;
	uint64_t sent = 0, got = 0, offset;
	struct rings r;

	(void)state;
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

	(void)state;
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

	(void)state;
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

	(void)state;
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

/* ---- parcels ---- */

static void parcel_survives_its_encoding_and_refuses_others(void **state)
{
	struct shm_parcel in = {.capacity = 64, .ring_bytes = shm_ring_bytes(64), .push_bytes = 1, .result_bytes = 1ull << 40};
	struct shm_parcel out = {0};
	uint8_t bytes[SHM_PARCEL_BYTES];

	(void)state;
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

/* ---- setting up ---- */

static void both_ends_map_the_same_memory(void **state)
{
	struct shm_worker w;
	struct shm_box b;
	struct conn *c;
	char peer[80];

	(void)state;
	shm_box_open(&b, 8);
	assert_int_equal(strncmp(b.address, "@phub-", 6), 0);
	assert_int_equal(b.q->hold_max, UINT_MAX);
	assert_false(b.q->lossy);
	c = shm_rig_join(&b, &w, 7);
	snprintf(peer, sizeof(peer), "pid %d uid %u", (int)getpid(), (unsigned)geteuid());
	assert_string_equal(c->peer, peer);
	assert_string_equal(w.c->peer, peer);
	assert_null(c->push);
	assert_null(c->result);
	strcpy(w.c->push, "gradient");
	assert_string_equal(b.push.base, "gradient");
	strcpy(b.result.base, "result");
	assert_string_equal(w.c->result, "result");
	b.q->ops->drop(b.q, c);
	shm_worker_close(&w);
	shm_box_close(&b);
}

/* A worker has a connection per core; its memory is the same in all of them, and outlives them. */
static void connections_of_a_worker_share_its_mappings(void **state)
{
	struct conn *box[3], *worker[3];
	struct shm_worker w;
	struct shm_box b;

	(void)state;
	shm_box_open(&b, 8);
	shm_worker_open(&w, b.address, 7);
	for (unsigned i = 0; i < 3; i++) {
		box[i] = shm_rig_meet(&b, &w, 7);
		worker[i] = w.c;
		w.c = NULL;
		assert_ptr_equal(worker[i]->push, worker[0]->push);
		assert_ptr_equal(worker[i]->result, worker[0]->result);
	}
	assert_int_equal(((struct shm_transport *)w.t)->map_count, 2);
	strcpy(worker[0]->push, "stays");
	for (unsigned i = 0; i < 3; i++) {
		char *gradient = worker[i]->push;

		transport_shm.abandon(w.t, worker[i]);
		assert_string_equal(gradient, "stays");
		transport_shm.abandon(b.t, box[i]);
	}
	shm_worker_close(&w);
	shm_box_close(&b);
}

/* A transport keeps mappings to its end; there is a bound on them. */
static void too_many_regions_are_refused_by_name(void **state)
{
	struct err e = {0};
	struct hello hello = {0};
	struct shm_worker w;
	struct shm_box b;
	int rc;

	(void)state;
	shm_box_open(&b, 8);
	shm_worker_open(&w, b.address, 7);
	for (unsigned i = 1; i < SHM_MAPS_MAX; i++) {
		mem_region_destroy(&b.push);
		assert_int_equal(mem_region_create(SHM_RIG_BASE, MEM_SHARED, MEM_NODE_ANY, &b.push, &e), 0);
		transport_shm.abandon(b.t, shm_rig_meet(&b, &w, 7));
		transport_shm.abandon(w.t, w.c);
		w.c = NULL;
	}
	mem_region_destroy(&b.push);
	assert_int_equal(mem_region_create(SHM_RIG_BASE, MEM_SHARED, MEM_NODE_ANY, &b.push, &e), 0);
	assert_int_equal(transport_shm.connect(w.t, b.address, 7, 3, shm_rig_key, &w.c, &e), 0);
	while ((rc = transport_shm.established(w.t, w.c, &e)) == -EAGAIN)
		if (transport_shm.accept(b.t, clock_now_ns(), &hello) == 0)
			assert_int_equal(transport_shm.admit(b.t, hello.conn, &b.spec, &e), 0);
	assert_int_equal(rc, -ENOSPC);
	assert_non_null(strstr(e.text, "new transport"));
	transport_shm.abandon(b.t, hello.conn);
	shm_worker_close(&w);
	shm_box_close(&b);
}

static void refusals_reach_the_worker(void **state)
{
	static const struct {
		int said, heard;
	} codes[] = {{EACCES, -EACCES}, {ENOENT, -ENOENT}, {EALREADY, -EALREADY}, {0, -ECONNREFUSED}};
	struct err e = {0};
	struct shm_box b;

	(void)state;
	shm_box_open(&b, 8);
	for (unsigned i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
		struct hello hello;
		struct shm_worker w;

		shm_worker_open(&w, b.address, 7);
		assert_int_equal(transport_shm.accept(b.t, 0, &hello), -EAGAIN);
		assert_int_equal(transport_shm.established(w.t, w.c, &e), -EAGAIN);
		hello = shm_box_hello(&b, 7);
		assert_int_equal(hello.core, 3);
		transport_shm.reject(b.t, hello.conn, codes[i].said);
		assert_int_equal(transport_shm.established(w.t, w.c, &e), codes[i].heard);
		assert_non_null(strstr(e.text, b.address));
		/* It stays so. */
		assert_int_equal(transport_shm.established(w.t, w.c, &e), codes[i].heard);
		shm_worker_close(&w);
		assert_int_equal(b.t->strangers_refused, i + 1);
	}
	shm_box_close(&b);
}

static void bad_addresses_and_absent_boxes_are_named(void **state)
{
	static const char *const bad[] = {"", "@", "127.0.0.1:7101", "phub-1-1",
		/* 108 characters: one more than there is room for. */
		"@12345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567"};
	struct transport_config config = {0};
	struct transport *t;
	struct err e = {0};
	struct conn *c;

	(void)state;
	assert_int_equal(transport_shm.open(&config, &t, &e), 0);
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(transport_shm.connect(t, bad[i], 1, 0, shm_rig_key, &c, &e), -EINVAL);
	assert_int_equal(transport_shm.connect(t, "@phub-0-0", 1, 0, shm_rig_key, &c, &e), -ECONNREFUSED);
	assert_non_null(strstr(e.text, "@phub-0-0"));
	transport_shm.close(t);
}

/* Brings a hello up to the point where the box decides, tries to admit it with `spec`, and checks both sides' errors. */
static void admit_fails(struct shm_box *b, const struct conn_spec *spec, int error, const char *word)
{
	struct err e = {0};
	struct hello hello;
	struct shm_worker w;

	shm_worker_open(&w, b->address, 7);
	assert_int_equal(transport_shm.accept(b->t, 0, &hello), -EAGAIN);
	assert_int_equal(transport_shm.established(w.t, w.c, &e), -EAGAIN);
	hello = shm_box_hello(b, 7);
	assert_int_equal(transport_shm.admit(b->t, hello.conn, spec, &e), error);
	assert_non_null(strstr(e.text, word));
	assert_int_equal(transport_shm.established(w.t, w.c, &e), -ENOSPC);
	shm_worker_close(&w);
}

static void admit_refuses_memory_that_is_not_safe(void **state)
{
	struct mem_region private, open_result, large;
	struct span beyond = {SHM_RIG_BASE - 8, 16};
	struct conn_spec spec;
	struct err e = {0};
	struct shm_box b;

	(void)state;
	shm_box_open(&b, 8);
	assert_int_equal(mem_region_create(4096, 0, MEM_NODE_ANY, &private, &e), 0);
	spec = b.spec;
	spec.push = NULL;
	admit_fails(&b, &spec, -EINVAL, "push");
	spec.push = &private;
	admit_fails(&b, &spec, -EINVAL, "push");
	spec = b.spec;
	spec.result = &private;
	admit_fails(&b, &spec, -EINVAL, "result");

	/* Sealed by somebody else, and workers could write results. */
	assert_int_equal(mem_region_create(4096, MEM_SHARED, MEM_NODE_ANY, &open_result, &e), 0);
	assert_int_equal(mem_region_seal(&open_result, false), 0);
	spec.result = &open_result;
	admit_fails(&b, &spec, -EPERM, "result");

	spec = b.spec;
	spec.chunk_count = 1;
	spec.spans = &beyond;
	admit_fails(&b, &spec, -EINVAL, "chunks");

	large = b.push;
	large.huge = true;
	spec = b.spec;
	spec.push = &large;
	admit_fails(&b, &spec, -EINVAL, "huge");
	mem_region_destroy(&private);
	mem_region_destroy(&open_result);
	shm_box_close(&b);
}

static void adopt_refuses_a_full_queue_and_chunks_out_of_reach(void **state)
{
	struct transport_config config = {.queue_conns_max = 1};
	struct err e = {0};
	struct shm_worker w;
	struct transport *t;
	struct shm_box b;
	struct queue *q;
	struct conn *c[2];

	(void)state;
	shm_box_open(&b, 8);
	assert_int_equal(transport_shm.open(&config, &t, &e), 0);
	assert_int_equal(transport_shm.queue_create(t, &q, &e), 0);
	shm_worker_open(&w, b.address, 7);
	c[0] = shm_rig_meet(&b, &w, 7);
	transport_shm.abandon(w.t, w.c);
	w.c = NULL;
	c[1] = shm_rig_meet(&b, &w, 7);
	assert_int_equal(q->ops->adopt(q, c[0], &b.spec), 0);
	assert_int_equal(q->ops->adopt(q, c[1], &b.spec), -ENOSPC);
	q->ops->drop(q, c[0]);
	assert_int_equal(q->ops->adopt(q, c[1], &b.spec), 0);

	w.spans[1].offset = SHM_RIG_BASE;
	assert_int_equal(w.q->ops->adopt(w.q, w.c, &w.spec), -EINVAL);
	w.spans[1].offset = SHM_RIG_CHUNK_BYTES;
	assert_int_equal(w.q->ops->adopt(w.q, w.c, &w.spec), 0);
	q->ops->drop(q, c[1]);
	shm_worker_close(&w);
	transport_shm.queue_destroy(t, q);
	transport_shm.close(t);
	shm_box_close(&b);
}

/* ---- messages ---- */

static void payloads_are_read_where_they_lie(void **state)
{
	struct shm_worker w;
	struct event ev;
	struct shm_box b;
	struct conn *c;

	(void)state;
	shm_box_open(&b, 8);
	c = shm_rig_join(&b, &w, 7);
	for (uint64_t round = 0; round < 200; round++) {
		uint32_t chunk = (uint32_t)round % SHM_RIG_CHUNKS;

		assert_int_equal(shm_rig_push(&w, chunk, round, NULL), 0);
		w.q->ops->flush(w.q);
		ev = shm_rig_await(b.q);
		assert_int_equal(ev.type, EVENT_MESSAGE);
		assert_ptr_equal(ev.conn, c);
		assert_int_equal(ev.header.type, WIRE_PUSH);
		assert_int_equal(ev.header.round, round);
		assert_ptr_equal(ev.payload, (uint8_t *)b.push.base + b.spans[chunk].offset);
		assert_true(shm_rig_matches(ev.payload, chunk, round));
		assert_non_null(ev.slot);
		b.q->ops->release(b.q, ev.slot);

		assert_int_equal(shm_rig_result(&b, c, chunk, round, NULL), 0);
		b.q->ops->flush(b.q);
		ev = shm_rig_await(w.q);
		assert_int_equal(ev.type, EVENT_MESSAGE);
		assert_int_equal(ev.header.type, WIRE_RESULT);
		assert_ptr_equal(ev.payload, (const uint8_t *)w.c->result + SHM_RIG_BASE + b.spans[chunk].offset);
		assert_true(shm_rig_matches(ev.payload, chunk, round));
		w.q->ops->release(w.q, ev.slot);
	}
	b.q->ops->drop(b.q, c);
	shm_worker_close(&w);
	shm_box_close(&b);
}

static void headers_alone_have_no_payload_and_no_slot(void **state)
{
	struct wire_header pull = {.type = WIRE_PULL, .chunk = 3, .round = 9, .seq = 4};
	struct wire_header credit = {.type = WIRE_CREDIT, .credit = 77, .chunk = 12345};
	struct shm_worker w;
	struct event ev;
	struct shm_box b;
	struct conn *c;

	(void)state;
	shm_box_open(&b, 8);
	c = shm_rig_join(&b, &w, 7);
	assert_int_equal(w.q->ops->send(w.q, w.c, &pull, NULL, NULL), 0);
	shm_rig_silence(b.q); /* not flushed */
	w.q->ops->flush(w.q);
	ev = shm_rig_await(b.q);
	assert_int_equal(ev.header.type, WIRE_PULL);
	assert_int_equal(ev.header.seq, 4);
	assert_null(ev.payload);
	assert_null(ev.slot);
	/* A credit is about no chunk. */
	assert_int_equal(b.q->ops->send(b.q, c, &credit, NULL, NULL), 0);
	b.q->ops->flush(b.q);
	ev = shm_rig_await(w.q);
	assert_int_equal(ev.header.credit, 77);
	assert_null(ev.slot);
	b.q->ops->drop(b.q, c);
	shm_worker_close(&w);
	shm_box_close(&b);
}

static void slots_are_kept_and_released_in_any_order(void **state)
{
	static const unsigned order[] = {2, 0, 3, 1};
	void *slots[4];
	struct shm_worker w;
	struct shm_box b;
	struct conn *c;

	(void)state;
	shm_box_open(&b, 8);
	c = shm_rig_join(&b, &w, 7);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(shm_rig_push(&w, i, 1, NULL), 0);
	w.q->ops->flush(w.q);
	for (uint32_t i = 0; i < 4; i++)
		slots[i] = shm_rig_await(b.q).slot;
	shm_rig_silence(b.q);
	assert_int_equal(((struct shm_conn *)c)->slots_held, 4);
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t chunk = order[i];

		assert_true(shm_rig_matches((uint8_t *)b.push.base + b.spans[chunk].offset, chunk, 1));
		b.q->ops->release(b.q, slots[chunk]);
	}
	assert_int_equal(((struct shm_conn *)c)->slots_held, 0);
	b.q->ops->drop(b.q, c);
	shm_worker_close(&w);
	shm_box_close(&b);
}

static void sent_follows_publication_in_order(void **state)
{
	struct event events[8];
	struct shm_worker w;
	struct shm_box b;
	struct conn *c;
	int cookies[3];

	(void)state;
	shm_box_open(&b, 8);
	c = shm_rig_join(&b, &w, 7);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(shm_rig_push(&w, i, 1, i == 1 ? NULL : &cookies[i]), 0);
	shm_rig_silence(w.q);
	w.q->ops->flush(w.q);
	assert_int_equal(shm_rig_poll(w.q, events, 8), 2);
	assert_int_equal(events[0].type, EVENT_SENT);
	assert_ptr_equal(events[0].cookie, &cookies[0]);
	assert_ptr_equal(events[1].cookie, &cookies[2]);
	assert_ptr_equal(events[1].conn, w.c);
	shm_rig_silence(w.q);
	b.q->ops->drop(b.q, c);
	shm_worker_close(&w);
	shm_box_close(&b);
}

static void a_full_ring_says_so_and_when_there_is_room(void **state)
{
	struct shm_worker w;
	struct event ev;
	struct shm_box b;
	struct conn *c;
	unsigned sent = 0;

	(void)state;
	shm_box_open(&b, 8);
	c = shm_rig_join(&b, &w, 7);
	while (shm_rig_push(&w, sent % SHM_RIG_CHUNKS, sent, NULL) == 0)
		sent++;
	assert_int_equal(sent, SHM_RING_CAPACITY_MIN);
	assert_int_equal(shm_rig_push(&w, 0, 0, NULL), -EAGAIN);
	w.q->ops->flush(w.q);
	shm_rig_silence(w.q);
	for (unsigned i = 0; i < sent; i++) {
		ev = shm_rig_await(b.q);
		assert_int_equal(ev.header.round, i);
		b.q->ops->release(b.q, ev.slot);
	}
	ev = shm_rig_await(w.q);
	assert_int_equal(ev.type, EVENT_WRITABLE);
	assert_ptr_equal(ev.conn, w.c);
	shm_rig_silence(w.q);
	assert_int_equal(shm_rig_push(&w, 0, 99, NULL), 0);
	w.q->ops->flush(w.q);
	assert_int_equal(shm_rig_await(b.q).header.round, 99);
	b.q->ops->drop(b.q, c);
	shm_worker_close(&w);
	shm_box_close(&b);
}

/* Completions that nobody polls are bounded, too. */
static void unpolled_completions_are_bounded(void **state)
{
	unsigned sent = 0, completed = 0, room = 0;
	struct event events[64];
	struct shm_worker w;
	struct shm_box b;
	struct conn *c;

	(void)state;
	shm_box_open(&b, 8);
	c = shm_rig_join(&b, &w, 7);
	while (shm_rig_push(&w, 0, sent, &sent) == 0) {
		sent++;
		w.q->ops->flush(w.q);
		assert_int_equal(shm_rig_poll(b.q, events, 64), 1);
		b.q->ops->release(b.q, events[0].slot);
	}
	assert_int_equal(sent, SHM_RING_CAPACITY_MIN);
	for (unsigned i = 0; i < 4; i++) {
		unsigned n = shm_rig_poll(w.q, events, 7);

		for (unsigned k = 0; k < n; k++) {
			completed += events[k].type == EVENT_SENT;
			room += events[k].type == EVENT_WRITABLE;
		}
	}
	assert_int_equal(completed, sent);
	assert_int_equal(room, 1);
	b.q->ops->drop(b.q, c);
	shm_worker_close(&w);
	shm_box_close(&b);
}

/* Sends whose payload the peer would not find. */
static void send_refuses_payloads_out_of_place(void **state)
{
	struct wire_header header = shm_rig_push_header(1, 1);
	struct shm_worker w;
	struct shm_box b;
	struct conn *c;
	uint8_t elsewhere[SHM_RIG_CHUNK_BYTES];

	(void)state;
	shm_box_open(&b, 8);
	c = shm_rig_join(&b, &w, 7);
	assert_int_equal(w.q->ops->send(w.q, w.c, &header, elsewhere, NULL), -EINVAL);
	assert_int_equal(w.q->ops->send(w.q, w.c, &header, shm_rig_push_at(&w, 0), NULL), -EINVAL);
	assert_int_equal(w.q->ops->send(w.q, w.c, &header, NULL, NULL), -EINVAL);
	header.length--;
	assert_int_equal(w.q->ops->send(w.q, w.c, &header, shm_rig_push_at(&w, 1), NULL), -EINVAL);
	header = shm_rig_push_header(SHM_RIG_CHUNKS, 1);
	assert_int_equal(w.q->ops->send(w.q, w.c, &header, shm_rig_push_at(&w, 1), NULL), -EINVAL);

	header = shm_rig_result_header(1, 1);
	assert_int_equal(b.q->ops->send(b.q, c, &header, elsewhere, NULL), -EINVAL);
	assert_int_equal(b.q->ops->send(b.q, c, &header, (uint8_t *)b.result.base - 1, NULL), -EINVAL);
	assert_int_equal(b.q->ops->send(b.q, c, &header,
				 (uint8_t *)b.result.base + b.result.bytes - SHM_RIG_CHUNK_BYTES + 1, NULL),
		-EINVAL);
	assert_int_equal(b.q->ops->send(b.q, c, &header,
				 (uint8_t *)b.result.base + b.result.bytes - SHM_RIG_CHUNK_BYTES, NULL),
		0);
	b.q->ops->flush(b.q);
	assert_int_equal(shm_rig_await(w.q).type, EVENT_MESSAGE);
	b.q->ops->drop(b.q, c);
	shm_worker_close(&w);
	shm_box_close(&b);
}

/* A batch goes on where the last one ended, so that nobody waits for others' floods. */
static void connections_take_turns(void **state)
{
	struct shm_worker w[3];
	struct conn *c[3];
	struct event ev;
	struct shm_box b;

	(void)state;
	shm_box_open(&b, 8);
	for (unsigned i = 0; i < 3; i++) {
		c[i] = shm_rig_join(&b, &w[i], i);
		for (unsigned k = 0; k < SHM_RING_CAPACITY_MIN; k++)
			assert_int_equal(shm_rig_push(&w[i], 0, k, NULL), 0);
		w[i].q->ops->flush(w[i].q);
	}
	for (unsigned k = 0; k < 3 * SHM_RING_CAPACITY_MIN; k++) {
		ev = shm_rig_await(b.q);
		assert_ptr_equal(ev.conn, c[k % 3]);
		assert_int_equal(ev.header.round, k / 3);
	}
	for (unsigned i = 0; i < 3; i++) {
		b.q->ops->drop(b.q, c[i]);
		shm_worker_close(&w[i]);
	}
	shm_box_close(&b);
}

/* ---- ends ---- */

static void an_end_in_good_order_comes_after_what_was_sent(void **state)
{
	struct shm_worker w;
	struct event ev;
	struct shm_box b;
	struct conn *c;

	(void)state;
	shm_box_open(&b, 8);
	c = shm_rig_join(&b, &w, 7);
	assert_int_equal(shm_rig_push(&w, 1, 5, NULL), 0);
	w.q->ops->flush(w.q);
	assert_int_equal(shm_rig_push(&w, 2, 6, NULL), 0); /* never flushed: forgotten */
	shm_worker_close(&w);
	ev = shm_rig_await(b.q);
	assert_int_equal(ev.type, EVENT_MESSAGE);
	assert_true(shm_rig_matches(ev.payload, 1, 5));
	ev = shm_rig_await(b.q);
	assert_int_equal(ev.type, EVENT_CLOSED);
	assert_int_equal(ev.error, 0);
	assert_ptr_equal(ev.conn, c);
	shm_rig_silence(b.q);
	assert_int_equal(shm_rig_result(&b, c, 0, 0, NULL), -EPIPE);
	b.q->ops->drop(b.q, c);
	shm_rig_silence(b.q);

	/* The box ends it. */
	c = shm_rig_join(&b, &w, 7);
	assert_int_equal(shm_rig_result(&b, c, 3, 8, NULL), 0);
	b.q->ops->flush(b.q);
	b.q->ops->drop(b.q, c);
	ev = shm_rig_await(w.q);
	assert_true(ev.type == EVENT_MESSAGE && shm_rig_matches(ev.payload, 3, 8));
	ev = shm_rig_await(w.q);
	assert_true(ev.type == EVENT_CLOSED && ev.error == 0);
	assert_int_equal(shm_rig_push(&w, 0, 0, NULL), -EPIPE);
	shm_worker_close(&w);
	shm_box_close(&b);
}

/* With a clock that stands still the end is noticed, too. */
static void ends_are_noticed_without_a_clock(void **state)
{
	struct shm_worker w;
	struct event ev;
	struct shm_box b;
	struct conn *c;
	unsigned polls = 0;

	(void)state;
	shm_box_open(&b, 8);
	c = shm_rig_join(&b, &w, 7);
	shm_worker_close(&w);
	while (b.q->ops->poll(b.q, 0, &ev, 1) == 0)
		assert_true(++polls < 10000);
	assert_int_equal(ev.type, EVENT_CLOSED);
	b.q->ops->drop(b.q, c);
	shm_box_close(&b);
}

static unsigned count_entries(const char *path)
{
	DIR *dir = opendir(path);
	unsigned n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void a_killed_worker_is_an_error_and_leaves_nothing(void **state)
{
	unsigned files = count_entries("/dev/shm"), fds = count_entries("/proc/self/fd");
	struct shm_box b;
	struct event ev;
	struct conn *c;
	pid_t pid;

	(void)state;
	shm_box_open(&b, 8);
	pid = fork();
	if (pid == 0) {
		struct shm_worker w;

		shm_worker_open(&w, b.address, 7);
		shm_worker_adopt(&w);
		REQUIRE(shm_rig_push(&w, 0, 1, NULL) == 0);
		w.q->ops->flush(w.q);
		raise(SIGKILL);
	}
	c = shm_box_take(&b, 7);
	assert_int_equal(shm_rig_sleep(b.q).type, EVENT_MESSAGE);
	ev = shm_rig_sleep(b.q);
	assert_int_equal(ev.type, EVENT_CLOSED);
	assert_int_equal(ev.error, -ECONNRESET);
	shm_rig_reap(pid, SIGKILL);
	b.q->ops->drop(b.q, c);
	shm_box_close(&b);
	assert_int_equal(count_entries("/dev/shm"), files);
	assert_int_equal(count_entries("/proc/self/fd"), fds);
}

static void a_killed_box_is_an_error_and_leaves_nothing(void **state)
{
	unsigned files = count_entries("/dev/shm");
	struct shm_worker w;
	struct event ev;
	struct shm_box b;
	struct err e;
	struct conn *c;
	pid_t pid;
	int pipe_fds[2];

	(void)state;
	assert_int_equal(pipe(pipe_fds), 0);
	pid = fork();
	if (pid == 0) {
		shm_box_open(&b, 8);
		REQUIRE(write(pipe_fds[1], b.address, sizeof(b.address)) == sizeof(b.address));
		c = shm_box_take(&b, 7);
		REQUIRE(shm_rig_result(&b, c, 0, 1, NULL) == 0);
		b.q->ops->flush(b.q);
		pause();
		_exit(1);
	}
	assert_int_equal(read(pipe_fds[0], b.address, sizeof(b.address)), sizeof(b.address));
	shm_worker_open(&w, b.address, 7);
	shm_worker_adopt(&w);
	ev = shm_rig_sleep(w.q);
	assert_true(ev.type == EVENT_MESSAGE && shm_rig_matches(ev.payload, 0, 1));
	kill(pid, SIGKILL);
	shm_rig_reap(pid, SIGKILL);
	ev = shm_rig_sleep(w.q);
	assert_int_equal(ev.type, EVENT_CLOSED);
	assert_int_equal(ev.error, -ECONNRESET);
	/* The memory is still there, for those who have it. */
	assert_true(shm_rig_matches((const uint8_t *)w.c->result + SHM_RIG_BASE, 0, 1));
	w.q->ops->drop(w.q, w.c);
	assert_int_equal(transport_shm.connect(w.t, b.address, 7, 0, shm_rig_key, &w.c, &e), -ECONNREFUSED);
	w.c = NULL;
	shm_worker_close(&w);
	assert_int_equal(count_entries("/dev/shm"), files);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
}

/* ---- sleeping ---- */

static int readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0);
}

static void arm_sleeps_only_when_there_is_nothing(void **state)
{
	struct shm_worker w;
	struct event ev;
	struct shm_box b;
	struct conn *c;
	int cookie, fd;

	(void)state;
	shm_box_open(&b, 8);
	assert_true(b.q->ops->arm(b.q) >= 0); /* nobody is there yet */
	c = shm_rig_join(&b, &w, 7);
	shm_rig_silence(b.q);
	fd = b.q->ops->arm(b.q);
	assert_true(fd >= 0 && !readable(fd));

	/* Data: the wake-up comes, once; the fd stays the same. */
	assert_int_equal(shm_rig_push(&w, 0, 1, NULL), 0);
	assert_false(readable(fd));
	w.q->ops->flush(w.q);
	assert_true(readable(fd));
	assert_int_equal(b.q->ops->arm(b.q), -EAGAIN);
	assert_int_equal(shm_rig_await(b.q).type, EVENT_MESSAGE);
	shm_rig_silence(b.q);
	assert_int_equal(b.q->ops->arm(b.q), fd);
	assert_false(readable(fd));

	/* A completion that was not polled. */
	assert_int_equal(shm_rig_push(&w, 0, 2, &cookie), 0);
	w.q->ops->flush(w.q);
	assert_int_equal(w.q->ops->arm(w.q), -EAGAIN);
	assert_int_equal(shm_rig_await(w.q).type, EVENT_SENT);
	fd = w.q->ops->arm(w.q);
	assert_true(fd >= 0 && !readable(fd));

	/* The worker's bell. */
	assert_int_equal(shm_rig_result(&b, c, 0, 1, NULL), 0);
	b.q->ops->flush(b.q);
	assert_true(readable(fd));
	assert_int_equal(shm_rig_await(w.q).type, EVENT_MESSAGE);
	shm_rig_silence(w.q);
	assert_int_equal(w.q->ops->arm(w.q), fd);
	assert_false(readable(fd));

	/* The end. */
	b.q->ops->drop(b.q, c);
	assert_true(readable(fd));
	ev = shm_rig_await(w.q);
	assert_int_equal(ev.type, EVENT_CLOSED);
	fd = w.q->ops->arm(w.q);
	assert_true(fd >= 0 && !readable(fd));
	shm_worker_close(&w);
	shm_box_close(&b);
}

static void arm_wakes_for_room(void **state)
{
	struct event events[64];
	struct shm_worker w;
	struct shm_box b;
	struct conn *c;
	int fd;

	(void)state;
	shm_box_open(&b, 8);
	c = shm_rig_join(&b, &w, 7);
	while (shm_rig_push(&w, 0, 1, NULL) == 0)
		;
	w.q->ops->flush(w.q);
	fd = w.q->ops->arm(w.q);
	assert_true(fd >= 0 && !readable(fd));
	assert_int_equal(shm_rig_poll(b.q, events, 64), SHM_RING_CAPACITY_MIN);
	assert_true(readable(fd));
	/* Room that was not yielded yet keeps it awake. */
	assert_int_equal(w.q->ops->arm(w.q), -EAGAIN);
	assert_int_equal(shm_rig_await(w.q).type, EVENT_WRITABLE);
	shm_rig_silence(w.q);
	assert_true(w.q->ops->arm(w.q) >= 0);
	b.q->ops->drop(b.q, c);
	shm_worker_close(&w);
	shm_box_close(&b);
}

/* One end of a ball game in which both sleep whenever they can: a lost wake-up ends it. */
static void play_box(struct shm_box *b, struct conn *c, unsigned rounds, struct event (*next)(struct queue *))
{
	for (unsigned i = 0; i < rounds; i++) {
		struct event ev = next(b->q);

		REQUIRE(ev.type == EVENT_MESSAGE && ev.header.round == i);
		REQUIRE(shm_rig_matches(ev.payload, i % SHM_RIG_CHUNKS, i));
		b->q->ops->release(b->q, ev.slot);
		REQUIRE(shm_rig_result(b, c, i % SHM_RIG_CHUNKS, i, NULL) == 0);
		b->q->ops->flush(b->q);
	}
}

static void play_worker(struct shm_worker *w, unsigned rounds, struct event (*next)(struct queue *))
{
	for (unsigned i = 0; i < rounds; i++) {
		struct event ev;

		REQUIRE(shm_rig_push(w, i % SHM_RIG_CHUNKS, i, NULL) == 0);
		w->q->ops->flush(w->q);
		ev = next(w->q);
		REQUIRE(ev.type == EVENT_MESSAGE && ev.header.round == i);
		REQUIRE(shm_rig_matches(ev.payload, i % SHM_RIG_CHUNKS, i));
		w->q->ops->release(w->q, ev.slot);
	}
}

static void play_in_processes(unsigned rounds, struct event (*box)(struct queue *), struct event (*worker)(struct queue *))
{
	struct shm_box b;
	struct event ev;
	struct conn *c;
	pid_t pid;

	shm_box_open(&b, 8);
	pid = fork();
	if (pid == 0) {
		struct shm_worker w;

		shm_worker_open(&w, b.address, 7);
		shm_worker_adopt(&w);
		play_worker(&w, rounds, worker);
		shm_worker_close(&w);
		_exit(0);
	}
	c = shm_box_take(&b, 7);
	play_box(&b, c, rounds, box);
	ev = shm_rig_sleep(b.q);
	REQUIRE(ev.type == EVENT_CLOSED && ev.error == 0);
	shm_rig_reap(pid, 0);
	b.q->ops->drop(b.q, c);
	shm_box_close(&b);
}

static void no_wake_up_is_lost_between_processes(void **state)
{
	(void)state;
	play_in_processes(20000, shm_rig_sleep, shm_rig_sleep);
	play_in_processes(5000, shm_rig_sleep, shm_rig_await);
	play_in_processes(5000, shm_rig_await, shm_rig_sleep);
	play_in_processes(5000, shm_rig_await, shm_rig_await);
}

static void *play_worker_thread(void *arg)
{
	const char *address = arg;
	struct shm_worker w;

	shm_worker_open(&w, address, 7);
	shm_worker_adopt(&w);
	play_worker(&w, 5000, shm_rig_sleep);
	play_worker(&w, 5000, shm_rig_await);
	shm_worker_close(&w);
	return NULL;
}

static void both_ends_in_threads(void **state)
{
	pthread_t thread;
	struct shm_box b;
	struct conn *c;

	(void)state;
	shm_box_open(&b, 8);
	REQUIRE(pthread_create(&thread, NULL, play_worker_thread, b.address) == 0);
	c = shm_box_take(&b, 7);
	play_box(&b, c, 5000, shm_rig_await);
	play_box(&b, c, 5000, shm_rig_sleep);
	assert_int_equal(shm_rig_sleep(b.q).type, EVENT_CLOSED);
	assert_int_equal(pthread_join(thread, NULL), 0);
	b.q->ops->drop(b.q, c);
	shm_box_close(&b);
}

/* A stream in one direction against a full ring: producer and consumer both sleep, and wake each other for data and for room. */
static void stream_worker(struct shm_worker *w, unsigned count)
{
	unsigned sent = 0;

	while (sent < count) {
		if (shm_rig_push(w, sent % SHM_RIG_CHUNKS, sent, NULL) == 0) {
			/* Single entries and bursts. */
			if (++sent % 7 == 0 || sent == count)
				w->q->ops->flush(w->q);
			continue;
		}
		w->q->ops->flush(w->q);
		REQUIRE(shm_rig_sleep(w->q).type == EVENT_WRITABLE);
	}
}

static void no_wake_up_is_lost_on_a_full_ring(void **state)
{
	enum { COUNT = 100000 };
	struct shm_box b;
	struct conn *c;
	pid_t pid;

	(void)state;
	shm_box_open(&b, 8);
	pid = fork();
	if (pid == 0) {
		struct shm_worker w;

		shm_worker_open(&w, b.address, 7);
		shm_worker_adopt(&w);
		stream_worker(&w, COUNT);
		shm_worker_close(&w);
		_exit(0);
	}
	c = shm_box_take(&b, 7);
	for (unsigned i = 0; i < COUNT; i++) {
		struct event ev = shm_rig_sleep(b.q);

		REQUIRE(ev.type == EVENT_MESSAGE && ev.header.round == i);
		b.q->ops->release(b.q, ev.slot);
	}
	assert_int_equal(shm_rig_sleep(b.q).type, EVENT_CLOSED);
	shm_rig_reap(pid, 0);
	b.q->ops->drop(b.q, c);
	shm_box_close(&b);
}

/* ---- strangers ---- */

static int stranger_open(const char *address)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	REQUIRE(fd >= 0);
	memcpy(name.sun_path + 1, address + 1, strlen(address) - 1);
	REQUIRE(connect(fd, (struct sockaddr *)&name, (socklen_t)(sizeof(sa_family_t) + strlen(address))) == 0);
	return fd;
}

static int stranger_is_out(int fd)
{
	char rest[64];
	ssize_t n;

	while ((n = recv(fd, rest, sizeof(rest), MSG_DONTWAIT)) > 0)
		;
	return n == 0 || errno == ECONNRESET;
}

static void strangers_are_late_only_once(void **state)
{
	struct hello hello;
	struct shm_box b;
	int fd;

	(void)state;
	shm_box_open(&b, 8);
	fd = stranger_open(b.address);
	assert_int_equal(transport_shm.accept(b.t, 1000, &hello), -EAGAIN);
	assert_int_equal(transport_shm.accept(b.t, 1000 + 5 * NS_PER_S - 1, &hello), -EAGAIN);
	assert_false(stranger_is_out(fd));
	assert_int_equal(transport_shm.accept(b.t, 1000 + 5 * NS_PER_S, &hello), -EAGAIN);
	assert_true(stranger_is_out(fd));
	assert_int_equal(b.t->strangers_refused, 1);
	close(fd);
	shm_box_close(&b);
}

static void strangers_who_talk_nonsense_or_hang_up_are_out(void **state)
{
	struct hello hello;
	struct shm_box b;
	char noise[200];
	int fd[3];

	(void)state;
	for (unsigned i = 0; i < sizeof(noise); i++)
		noise[i] = (char)(i * 37 + 11);
	shm_box_open(&b, 8);
	for (unsigned i = 0; i < 3; i++)
		fd[i] = stranger_open(b.address);
	assert_int_equal(transport_shm.accept(b.t, 0, &hello), -EAGAIN);
	assert_int_equal(send(fd[0], noise, sizeof(noise), 0), sizeof(noise));
	close(fd[1]);
	assert_int_equal(send(fd[2], noise, 5, 0), 5);
	assert_int_equal(transport_shm.accept(b.t, 0, &hello), -EAGAIN);
	assert_true(stranger_is_out(fd[0]));
	assert_int_equal(b.t->strangers_refused, 2);
	assert_false(stranger_is_out(fd[2]));
	close(fd[0]);
	close(fd[2]);
	shm_box_close(&b);
}

/* Of more strangers than there is room for the oldest goes, and an honest worker gets in. */
static void strangers_are_bounded(void **state)
{
	enum { MORE = 10 };
	int fd[SHM_STRANGERS_MAX + MORE];
	struct shm_worker w;
	struct hello hello;
	struct shm_box b;
	struct conn *c;

	(void)state;
	shm_box_open(&b, 8);
	for (unsigned i = 0; i < SHM_STRANGERS_MAX + MORE; i++) {
		fd[i] = stranger_open(b.address);
		assert_int_equal(transport_shm.accept(b.t, 0, &hello), -EAGAIN);
	}
	assert_int_equal(b.t->strangers_refused, MORE);
	assert_int_equal(((struct shm_transport *)b.t)->stranger_count, SHM_STRANGERS_MAX);
	for (unsigned i = 0; i < SHM_STRANGERS_MAX + MORE; i++)
		assert_int_equal(stranger_is_out(fd[i]), i < MORE);
	c = shm_rig_join(&b, &w, 7);
	b.q->ops->drop(b.q, c);
	shm_worker_close(&w);
	for (unsigned i = 0; i < SHM_STRANGERS_MAX + MORE; i++)
		close(fd[i]);
	shm_box_close(&b);
}

/* Needs root, to become somebody else. */
static void another_user_is_not_let_in(void **state)
{
	struct hello hello;
	struct shm_box b;
	pid_t pid;

	(void)state;
	if (geteuid() != 0)
		skip();
	shm_box_open(&b, 8);
	pid = fork();
	if (pid == 0) {
		int fd;

		REQUIRE(setresuid(65534, 65534, 65534) == 0);
		fd = stranger_open(b.address);
		REQUIRE(recv(fd, &hello, sizeof(hello), 0) <= 0);
		_exit(0);
	}
	while (b.t->strangers_refused == 0)
		assert_int_equal(transport_shm.accept(b.t, 0, &hello), -EAGAIN);
	shm_rig_reap(pid, 0);
	shm_box_close(&b);
}

/* A worker that is not root trusts only its own user's box, and root's. */
static void a_squatter_gets_no_gradients(void **state)
{
	struct shm_worker w;
	struct shm_box b;
	pid_t pid;
	int up[2], down[2];
	char byte = 0;

	(void)state;
	if (geteuid() != 0)
		skip();
	assert_true(pipe(up) == 0 && pipe(down) == 0);
	pid = fork();
	if (pid == 0) {
		REQUIRE(setresuid(65534, 65534, 65534) == 0);
		shm_box_open(&b, 8);
		REQUIRE(write(up[1], b.address, sizeof(b.address)) == sizeof(b.address));
		REQUIRE(read(down[0], &byte, 1) == 1);
		_exit(0);
	}
	assert_int_equal(read(up[0], b.address, sizeof(b.address)), sizeof(b.address));
	assert_int_equal(setresuid(65533, 65533, 0), 0);
	shm_worker_open(&w, b.address, 7);
	assert_int_equal(shm_worker_established(&w), -EACCES);
	shm_worker_close(&w);
	assert_int_equal(setresuid(0, 0, 0), 0);
	assert_int_equal(write(down[1], &byte, 1), 1);
	shm_rig_reap(pid, 0);
	for (unsigned i = 0; i < 2; i++) {
		close(up[i]);
		close(down[i]);
	}
}

static void one_transport_listens_once(void **state)
{
	char address[128];
	struct err e = {0};
	struct shm_box b, other;

	(void)state;
	shm_box_open(&b, 8);
	assert_int_equal(transport_shm.listen(b.t, "", address, sizeof(address), &e), -EALREADY);
	shm_box_open(&other, 8);
	assert_string_not_equal(b.address, other.address);
	shm_box_close(&other);
	shm_box_close(&b);
}

/* ---- measuring ---- */

static int compare_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

enum { MEASURE_ROUNDS = 200000, MEASURE_STREAM = 5000000 };

/* A poll with a sched_yield() when nothing came, as an adaptive core does; no payloads. */
static struct event measure_next(struct queue *q)
{
	struct event ev;

	while (q->ops->poll(q, clock_now_ns(), &ev, 1) == 0)
		sched_yield();
	return ev;
}

static void measure_echo(struct shm_box *b, struct conn *c)
{
	struct wire_header credit = {.type = WIRE_CREDIT};

	for (unsigned i = 0; i < MEASURE_ROUNDS; i++) {
		measure_next(b->q);
		b->q->ops->send(b->q, c, &credit, NULL, NULL);
		b->q->ops->flush(b->q);
	}
}

static void measure_sink(struct shm_box *b)
{
	struct event events[64];
	uint64_t start = 0;

	for (unsigned got = 0; got < MEASURE_STREAM;) {
		unsigned n = b->q->ops->poll(b->q, clock_now_ns(), events, 64);

		if (n && !start)
			start = clock_now_ns();
		if (!n)
			sched_yield();
		got += n;
	}
	printf("stream of 64-byte entries, one connection, batches of 16: %.1f M entries/s\n",
		MEASURE_STREAM * 1e3 / (double)(clock_now_ns() - start));
}

static void measure_ping(struct shm_worker *w)
{
	static uint64_t took[MEASURE_ROUNDS];
	struct wire_header pull = {.type = WIRE_PULL};

	for (unsigned i = 0; i < MEASURE_ROUNDS; i++) {
		uint64_t start = clock_now_ns();

		w->q->ops->send(w->q, w->c, &pull, NULL, NULL);
		w->q->ops->flush(w->q);
		measure_next(w->q);
		took[i] = clock_now_ns() - start;
	}
	qsort(took, MEASURE_ROUNDS, sizeof(took[0]), compare_u64);
	printf("round trip of a 64-byte message, two processes polling with sched_yield(): p50 %llu p99 %llu ns\n",
		(unsigned long long)took[MEASURE_ROUNDS / 2], (unsigned long long)took[MEASURE_ROUNDS / 100 * 99]);
	fflush(stdout);
}

static void measure_flood(struct shm_worker *w)
{
	struct wire_header pull = {.type = WIRE_PULL};
	struct event ev;

	for (unsigned sent = 0; sent < MEASURE_STREAM;) {
		if (w->q->ops->send(w->q, w->c, &pull, NULL, NULL) == 0) {
			if (++sent % 16 == 0)
				w->q->ops->flush(w->q);
			continue;
		}
		w->q->ops->flush(w->q);
		while (w->q->ops->poll(w->q, clock_now_ns(), &ev, 1) == 0)
			sched_yield();
	}
	w->q->ops->flush(w->q);
}

static int measure(void)
{
	struct shm_box b;
	struct conn *c;
	pid_t pid;

	shm_box_open(&b, 512);
	pid = fork();
	if (pid == 0) {
		struct shm_worker w;

		shm_worker_open(&w, b.address, 7);
		shm_worker_adopt(&w);
		measure_ping(&w);
		measure_flood(&w);
		measure_next(w.q);
		_exit(0);
	}
	c = shm_box_take(&b, 7);
	measure_echo(&b, c);
	measure_sink(&b);
	b.q->ops->drop(b.q, c);
	shm_rig_reap(pid, 0);
	shm_box_close(&b);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ring_capacity_fits_window_and_chunks),
		cmocka_unit_test(ring_moves_entries_in_order_over_the_wrap),
		cmocka_unit_test(ring_is_full_at_its_capacity_and_not_before),
		cmocka_unit_test(ring_refuses_impossible_indices),
		cmocka_unit_test(ring_wakes_a_sleeper_once_and_for_what_it_asked),
		cmocka_unit_test(parcel_survives_its_encoding_and_refuses_others),
		cmocka_unit_test(both_ends_map_the_same_memory),
		cmocka_unit_test(connections_of_a_worker_share_its_mappings),
		cmocka_unit_test(too_many_regions_are_refused_by_name),
		cmocka_unit_test(refusals_reach_the_worker),
		cmocka_unit_test(bad_addresses_and_absent_boxes_are_named),
		cmocka_unit_test(admit_refuses_memory_that_is_not_safe),
		cmocka_unit_test(adopt_refuses_a_full_queue_and_chunks_out_of_reach),
		cmocka_unit_test(payloads_are_read_where_they_lie),
		cmocka_unit_test(headers_alone_have_no_payload_and_no_slot),
		cmocka_unit_test(slots_are_kept_and_released_in_any_order),
		cmocka_unit_test(sent_follows_publication_in_order),
		cmocka_unit_test(a_full_ring_says_so_and_when_there_is_room),
		cmocka_unit_test(unpolled_completions_are_bounded),
		cmocka_unit_test(send_refuses_payloads_out_of_place),
		cmocka_unit_test(connections_take_turns),
		cmocka_unit_test(an_end_in_good_order_comes_after_what_was_sent),
		cmocka_unit_test(ends_are_noticed_without_a_clock),
		cmocka_unit_test(a_killed_worker_is_an_error_and_leaves_nothing),
		cmocka_unit_test(a_killed_box_is_an_error_and_leaves_nothing),
		cmocka_unit_test(arm_sleeps_only_when_there_is_nothing),
		cmocka_unit_test(arm_wakes_for_room),
		cmocka_unit_test(no_wake_up_is_lost_between_processes),
		cmocka_unit_test(both_ends_in_threads),
		cmocka_unit_test(no_wake_up_is_lost_on_a_full_ring),
		cmocka_unit_test(strangers_are_late_only_once),
		cmocka_unit_test(strangers_who_talk_nonsense_or_hang_up_are_out),
		cmocka_unit_test(strangers_are_bounded),
		cmocka_unit_test(another_user_is_not_let_in),
		cmocka_unit_test(a_squatter_gets_no_gradients),
		cmocka_unit_test(one_transport_listens_once),
	};

	if (argc == 2 && strcmp(argv[1], "--measure") == 0)
		return measure();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
