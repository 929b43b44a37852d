/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a worker that means harm can do through its queue pairs: end its own connection, and no more. It joins by the
 * real handshake, then work requests are posted behind its transport's back. Beside it a worker of another job goes on
 * exactly, and every receive slot comes back (rig_destroy() looks). Real devices.
 *
 * vm: -m 1024
 * vm: -m 1024 -w 2
 * vm: -m 1024 -w 6
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifndef PHUB_VERBS
TEST_PROGRAM(test_verbs_hostile)
{
	puts("this build has no transport \"verbs\"");
	return 77;
}
#else

#include <arpa/inet.h>
#include <errno.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/base/stats.h"
#include "tests/suite/transport_rig.h"
#include "tests/unit/cmocka_shim.h"
#include "transport/le.h"
#include "transport/verbs_internal.h"

enum { BAD_RANK = 5, GOOD_RANK = 6, ROOM = 128 << 10 };

static const struct fixture over_verbs = {.label = "verbs", .transport = "verbs", .one_sided = true};

/* The two workers, and memory that the bad one's devices know. */
struct scene {
	struct rig *rig;
	struct lane *bad, *good;
	uint8_t *memory;
	struct ibv_mr *mr[VERBS_RAILS_MAX]; /* by rail */
	uint64_t round;
};

static struct lane *join(struct rig *rig, uint32_t rank, const void *group)
{
	struct lane *lane = rig_lane(rig, rig_box_end(rig, 0), rig_worker_end(rig, rank == GOOD_RANK), rank);

	lane->box_spec.group = group;
	lane->box_spec.group_conns = 1;
	rig_admit(rig, lane);
	assert_int_equal(rig_established(rig, lane), 0);
	rig_adopt_box(lane);
	rig_adopt_worker(lane);
	return lane;
}

static struct verbs_conn *bad_conn(const struct scene *s)
{
	return (struct verbs_conn *)s->bad->worker;
}

static void scene_open(struct scene *s)
{
	static const struct rig_options usual;
	static int jobs[2];

	*s = (struct scene){.rig = rig_create(&over_verbs, &usual)};
	s->bad = join(s->rig, BAD_RANK, &jobs[0]);
	s->good = join(s->rig, GOOD_RANK, &jobs[1]);
	s->memory = test_calloc(1, ROOM);
	for (uint32_t i = 0; i < bad_conn(s)->rail_count; i++) {
		s->mr[i] = ibv_reg_mr(bad_conn(s)->rails[i].device->pd, s->memory, ROOM, IBV_ACCESS_LOCAL_WRITE);
		assert_non_null(s->mr[i]);
	}
}

/* One round of all chunks, both ways, every byte as it was sent. */
static void good_goes_on(struct scene *s)
{
	struct rig_end *box = s->good->box_end, *worker = s->good->worker_end;
	unsigned came = end_count(box, EVENT_MESSAGE, s->good->box);
	unsigned back = end_count(worker, EVENT_MESSAGE, NULL);

	s->round++;
	for (uint32_t i = 0; i < RIG_CHUNKS; i++)
		assert_int_equal(pair_push(s->good, i, s->round, NULL), 0);
	RIG_UNTIL(s->rig, end_count(box, EVENT_MESSAGE, s->good->box) == came + RIG_CHUNKS);
	for (uint32_t i = 0; i < RIG_CHUNKS; i++)
		assert_int_equal(pair_answer(s->good, i, s->round, NULL), 0);
	RIG_UNTIL(s->rig, end_count(worker, EVENT_MESSAGE, NULL) == back + RIG_CHUNKS);
	for (uint32_t i = 0; i < RIG_CHUNKS; i++) {
		assert_true(end_record(box, EVENT_MESSAGE, s->good->box, came + i)->intact);
		assert_true(end_record(worker, EVENT_MESSAGE, NULL, back + i)->intact);
	}
	assert_int_equal(end_count(box, EVENT_CLOSED, s->good->box), 0);
	assert_int_equal(end_count(worker, EVENT_CLOSED, NULL), 0);
}

/* The box has seen what the worker is, says why, and is rid of it; the other one never noticed. */
static void bad_is_ended(struct scene *s, int error, const char *why)
{
	struct rig_end *box = s->bad->box_end;
	const struct record *end;

	RIG_UNTIL(s->rig, end_count(box, EVENT_CLOSED, s->bad->box) == 1);
	end = end_record(box, EVENT_CLOSED, s->bad->box, 0);
	assert_non_null(end->why);
	print_message("%s: %s (%d)\n", s->bad->box->peer, end->why, end->error);
	assert_non_null(strstr(s->bad->box->peer, " by "));
	assert_non_null(strstr(s->bad->box->peer, bad_conn(s)->rails[0].device->about.device));
	assert_non_null(strstr(s->bad->box->peer, " port "));
	assert_true(end->error < 0);
	if (error)
		assert_int_equal(end->error, error);
	if (why)
		assert_string_equal(end->why, why);
	good_goes_on(s);
	rig_drop_box(s->bad);
	good_goes_on(s);
}

static void scene_close(struct scene *s)
{
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++)
		if (s->mr[i])
			ibv_dereg_mr(s->mr[i]);
	test_free(s->memory);
	rig_destroy(s->rig);
}

/* ---- work requests of its own ---- */

/* What becomes of it, its transport does not look at. */
static struct ibv_send_wr raw_wr(
	struct scene *s, uint32_t rail, enum ibv_wr_opcode opcode, struct ibv_sge *sge, uint32_t bytes)
{
	*sge = (struct ibv_sge){.addr = (uintptr_t)s->memory, .length = bytes, .lkey = s->mr[rail]->lkey};
	return (struct ibv_send_wr){.wr_id = VERBS_BELL_SEND,
		.sg_list = sge,
		.num_sge = bytes ? 1 : 0,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED};
}

static void raw_send(struct scene *s, uint32_t bytes, uint32_t imm)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = raw_wr(s, 0, IBV_WR_SEND_WITH_IMM, &sge, bytes), *bad;

	wr.imm_data = htonl(imm);
	assert_int_equal(ibv_post_send(bad_conn(s)->rails[0].qp, &wr, &bad), 0);
}

/* A message as its transport would write it, of one chunk that takes the first rail. */
static uint32_t craft(struct scene *s, uint32_t chunk, uint32_t length)
{
	struct wire_header h = {
		.type = WIRE_PUSH, .length = length, .chunk = chunk, .rank = BAD_RANK, .round = 1, .count = 1};

	memset(s->memory, 0x5a, length + VERBS_TRAILER_BYTES);
	wire_encode(&h, s->memory + length);
	memset(s->memory + length + 64, 0, VERBS_TRAILER_BYTES - 64);
	return length + VERBS_TRAILER_BYTES;
}

static uint32_t first_rails_chunk(const struct scene *s)
{
	uint32_t chunk = 0;

	while (verbs_rail_index(bad_conn(s), chunk) != 0)
		chunk++;
	return chunk;
}

/* The largest key there is: the box's own. */
static void touch_memory(enum ibv_wr_opcode opcode, bool slots)
{
	struct scene s;
	struct verbs_conn *box;
	struct ibv_send_wr wr, *bad;
	struct verbs_batch *batch;
	struct ibv_sge sge;
	uint32_t device;
	uint8_t *at, before[256];

	scene_open(&s);
	good_goes_on(&s);
	box = (struct verbs_conn *)(slots ? s.good->box : s.bad->box);
	wr = raw_wr(&s, 0, opcode, &sge, sizeof(before));
	device = box->rails[0].device_index;
	batch = atomic_load(&box->pool->batches);
	while (batch->recvs[0].device != device)
		batch = batch->next;
	at = slots ? (uint8_t *)batch->piece.extent->memory.base + batch->piece.at : s.bad->result.base;
	wr.wr.rdma.remote_addr = (uintptr_t)at;
	wr.wr.rdma.rkey = (slots ? batch->piece.extent->mr[device] : box->result->mr[device])->rkey;
	memcpy(before, at, sizeof(before));
	memset(s.memory, 0xee, sizeof(before));
	assert_int_equal(ibv_post_send(bad_conn(&s)->rails[0].qp, &wr, &bad), 0);
	rig_turns(s.rig, 50);
	assert_memory_equal(at, before, sizeof(before));
	for (unsigned i = 0; i < sizeof(before); i++)
		assert_int_equal(s.memory[i], 0xee);
	s.rig->skew_ns += VERBS_PING_NS; /* the pair is in error: the box hears of it when it next asks */
	bad_is_ended(&s, -ECONNRESET, ibv_wc_status_str(IBV_WC_WR_FLUSH_ERR));
	scene_close(&s);
}

static void memory_of_the_box_is_not_written(void **state)
{
	touch_memory(IBV_WR_RDMA_WRITE, false);
	touch_memory(IBV_WR_RDMA_WRITE, true);
	touch_memory(IBV_WR_RDMA_WRITE_WITH_IMM, false);
}

static void memory_of_the_box_is_not_read(void **state)
{
	touch_memory(IBV_WR_RDMA_READ, false);
	touch_memory(IBV_WR_RDMA_READ, true);
}

/* ---- messages ---- */

static void an_immediate_of_another_chunk(void **state)
{
	struct scene s;
	uint32_t bytes, chunk;

	scene_open(&s);
	chunk = first_rails_chunk(&s);
	bytes = craft(&s, chunk, s.bad->spans[chunk].bytes);
	raw_send(&s, bytes, chunk + 1);
	bad_is_ended(&s, -EPROTO, "an immediate of another chunk or queue pair");
	scene_close(&s);
}

static void a_chunk_beyond_the_last(void **state)
{
	struct scene s;

	scene_open(&s);
	raw_send(&s, craft(&s, RIG_CHUNKS, 16), RIG_CHUNKS);
	bad_is_ended(&s, -EPROTO, "an immediate of another chunk or queue pair");
	scene_close(&s);
}

static void more_than_a_slot_holds(void **state)
{
	struct scene s;

	scene_open(&s);
	assert_true(s.rig->payload_max + 1024 < ROOM);
	raw_send(&s, s.rig->payload_max + 1024, 0);
	s.rig->skew_ns += VERBS_PING_NS;
	bad_is_ended(&s, 0, NULL);
	scene_close(&s);
}

static void no_room_for_a_header(void **state)
{
	for (uint32_t bytes = 1; bytes < VERBS_TRAILER_BYTES; bytes += 43) {
		struct scene s;

		scene_open(&s);
		raw_send(&s, bytes, 0);
		bad_is_ended(&s, -EPROTO, "a message without a header");
		scene_close(&s);
	}
}

/* Many in one batch, with slots that were just given back: what is thrown away must not be mixed up with those. */
static void rubbish(void **state)
{
	for (unsigned before = 0; before < 2; before++) {
		struct scene s;

		scene_open(&s);
		for (unsigned i = 0; i < ROOM; i++)
			s.memory[i] = (uint8_t)(i * 37 + 11);
		s.bad->box_end->mute = true;
		for (unsigned i = 0; i < 6; i++)
			raw_send(&s, before && i == 0 ? 0 : 200 + i, 0);
		for (unsigned i = 0; i < 50; i++) {
			rig_turns(s.rig, 4);
			rig_rest(s.rig);
		}
		s.bad->box_end->mute = false;
		bad_is_ended(&s, -EPROTO, "a malformed header");
		scene_close(&s);
	}
}

/* The owner of the queue counts credits (link.c); here it keeps all that it gets, and the sender runs into its own
 * wall. */
static void a_flood(void **state)
{
	struct scene s;
	uint32_t chunk, bytes, count;
	struct verbs_conn *box;

	scene_open(&s);
	chunk = first_rails_chunk(&s);
	box = (struct verbs_conn *)s.bad->box;
	count = box->pool->made[box->rails[0].device_index].given;
	bytes = craft(&s, chunk, s.bad->spans[chunk].bytes);
	s.bad->box_end->keeps = true;
	for (unsigned i = 0; i < 2 * VERBS_SEND_SLOTS; i++)
		raw_send(&s, bytes, chunk);
	RIG_UNTIL(s.rig, end_count(s.bad->box_end, EVENT_MESSAGE, s.bad->box) >= count ||
				 end_count(s.bad->box_end, EVENT_CLOSED, s.bad->box));
	rig_turns(s.rig, 200);
	assert_true(end_count(s.bad->box_end, EVENT_MESSAGE, s.bad->box) <= count);
	s.bad->box_end->keeps = false;
	good_goes_on(&s);
	good_goes_on(&s);
	rig_drop_box(s.bad);
	good_goes_on(&s);
	scene_close(&s);
}

/* Those that it says are to come first never do: what lies in slots of its job until then has a bound. */
static void messages_far_ahead(void **state)
{
	struct scene s;
	uint32_t chunk, bytes;

	scene_open(&s);
	chunk = first_rails_chunk(&s);
	bytes = craft(&s, chunk, s.bad->spans[chunk].bytes);
	le_put32(s.memory + s.bad->spans[chunk].bytes + 80, 1000);
	if (bad_conn(&s)->rail_count > 1) {
		for (unsigned i = 0; i < s.bad->box_spec.window; i++)
			raw_send(&s, bytes, chunk);
		RIG_UNTIL(s.rig, ((struct verbs_conn *)s.bad->box)->early_count == s.bad->box_spec.window);
		rig_turns(s.rig, 20);
		assert_int_equal(end_count(s.bad->box_end, EVENT_CLOSED, NULL), 0);
		assert_int_equal(end_count(s.bad->box_end, EVENT_MESSAGE, s.bad->box), 0);
		raw_send(&s, bytes, chunk);
		bad_is_ended(&s, -EPROTO, "more messages before their turn than it may send");
	}
	scene_close(&s);
}

/* ---- results that it does not let in ---- */

/* It has pushed, and the box will answer. */
static void bad_pushes(struct scene *s, uint32_t chunk)
{
	assert_int_equal(pair_push(s->bad, chunk, 1, NULL), 0);
	RIG_UNTIL(s->rig, end_count(s->bad->box_end, EVENT_MESSAGE, s->bad->box) == 1);
}

static void its_pair_takes_no_writes(void **state)
{
	struct ibv_qp_attr attr = {.qp_access_flags = 0};
	struct scene s;

	scene_open(&s);
	bad_pushes(&s, 0);
	for (uint32_t i = 0; i < bad_conn(&s)->rail_count; i++)
		assert_int_equal(ibv_modify_qp(bad_conn(&s)->rails[i].qp, &attr, IBV_QP_ACCESS_FLAGS), 0);
	assert_int_equal(pair_answer(s.bad, 0, 1, NULL), 0);
	s.bad->worker_end->mute = true;
	s.rig->skew_ns += VERBS_PING_NS;
	bad_is_ended(&s, -EREMOTEIO, ibv_wc_status_str(IBV_WC_REM_INV_REQ_ERR));
	s.bad->worker_end->mute = false;
	scene_close(&s);
}

/* Turned over and back again. */
static void spoil_keys(const struct scene *s)
{
	for (struct verbs_region *r = bad_conn(s)->verbs->regions; r; r = r->next)
		for (uint32_t i = 0; i < bad_conn(s)->verbs->device_count; i++)
			if (r->mr[i])
				r->mr[i]->rkey ^= 0x5a5a5a00;
}

static void its_key_is_of_no_memory(void **state)
{
	struct scene s;

	scene_open(&s);
	spoil_keys(&s);
	bad_pushes(&s, 0);
	spoil_keys(&s);
	assert_int_equal(pair_answer(s.bad, 0, 1, NULL), 0);
	s.bad->worker_end->mute = true;
	s.rig->skew_ns += VERBS_PING_NS;
	bad_is_ended(&s, -EREMOTEIO, ibv_wc_status_str(IBV_WC_REM_ACCESS_ERR));
	s.bad->worker_end->mute = false;
	scene_close(&s);
}

/* More messages than it has receives for, and it posts no more: its box asks for ever, others go on meanwhile. */
static void it_posts_no_receives(void **state)
{
	struct scene s;

	scene_open(&s);
	s.bad->worker_end->mute = true;
	for (uint32_t i = 0; i < RIG_CHUNKS + VERBS_WORKER_RECVS + 20; i++) {
		assert_int_equal(pair_credit(s.bad, 100 + i), 0);
		pair_flush_box(s.bad);
	}
	s.rig->skew_ns += VERBS_PING_NS;
	for (unsigned i = 0; i < 5; i++)
		good_goes_on(&s);
	assert_int_equal(end_count(s.bad->box_end, EVENT_CLOSED, s.bad->box), 0);
	rig_drop_box(s.bad);
	good_goes_on(&s);
	s.bad->worker_end->mute = false;
	scene_close(&s);
}

/* ---- death ---- */

static void it_vanishes(void **state)
{
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
	struct scene s;

	scene_open(&s);
	good_goes_on(&s);
	for (uint32_t i = 0; i < bad_conn(&s)->rail_count; i++)
		assert_int_equal(ibv_modify_qp(bad_conn(&s)->rails[i].qp, &reset, IBV_QP_STATE), 0);
	bad_is_ended(&s, -ETIMEDOUT, ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR));
	scene_close(&s);
}

/* A device repeats a message for so long before it says that the other end is gone: 4.096 us * 2^timeout each time. */
static void one_who_vanishes_is_missed_within_seconds(void **state)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct scene s;

	scene_open(&s);
	good_goes_on(&s);
	for (uint32_t i = 0; i < bad_conn(&s)->rail_count; i++) {
		assert_int_equal(
			ibv_query_qp(bad_conn(&s)->rails[i].qp, &attr, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT, &init), 0);
		assert_in_range(attr.timeout, 1, 20); /* 0 is for ever */
		assert_in_range((UINT64_C(4096) << attr.timeout) * (attr.retry_cnt + 1u), 1, 5 * NS_PER_S);
	}
	scene_close(&s);
}

/* ---- devices that die ---- */

static void both_end(struct scene *s, const char *why)
{
	struct rig_end *box = s->bad->box_end;

	RIG_UNTIL(s->rig, end_count(box, EVENT_CLOSED, s->bad->box) && end_count(box, EVENT_CLOSED, s->good->box));
	for (unsigned i = 0; i < 2; i++) {
		const struct record *end = end_record(box, EVENT_CLOSED, i ? s->good->box : s->bad->box, 0);

		assert_int_equal(end->error, -EIO);
		assert_string_equal(end->why, why);
	}
	rig_turns(s->rig, 5);
	assert_int_equal(end_count(box, EVENT_CLOSED, NULL), 2);
}

static void its_device_fails(void **state)
{
	struct verbs_device *device;
	struct scene s;

	scene_open(&s);
	good_goes_on(&s);
	device = ((struct verbs_conn *)s.bad->box)->rails[0].device;
	/* A rail of both is there: what a core is for is the same for all jobs. */
	assert_ptr_equal(device, ((struct verbs_conn *)s.good->box)->rails[0].device);
	atomic_store(&device->failed, true);
	both_end(&s, "the device has failed");
	scene_close(&s);
}

static bool nothing_is_asked(const struct lane *p)
{
	const struct verbs_rail *r = &((const struct verbs_conn *)p->box)->rails[0];

	return !r->nudging && r->unsignalled == 0;
}

/* A device that stopped and says nothing, not even of what it was asked: no answer may be on its way before. */
static void its_device_is_silent(void **state)
{
	struct scene s;

	scene_open(&s);
	good_goes_on(&s);
	RIG_UNTIL(s.rig, nothing_is_asked(s.good) && nothing_is_asked(s.bad));
	for (unsigned i = 0; i < 2; i++) {
		struct verbs_rail *r = &((struct verbs_conn *)(i ? s.good->box : s.bad->box))->rails[0];

		r->nudging = true;
		r->nudged_ns = rig_now(s.rig);
	}
	s.rig->skew_ns += VERBS_STUCK_NS - 2 * VERBS_PING_NS;
	rig_turns(s.rig, 20);
	assert_int_equal(end_count(s.bad->box_end, EVENT_CLOSED, NULL), 0);
	s.rig->skew_ns += 3 * VERBS_PING_NS;
	both_end(&s, "the device does not answer");
	scene_close(&s);
}

/* ---- bells ---- */

static void ring(struct scene *s, const struct verbs_rail *r, uint32_t qpn, uint64_t token, uint32_t bytes)
{
	uint8_t said[64] = {0};
	struct ibv_sge sge = {.addr = (uintptr_t)said, .length = bytes};
	struct ibv_send_wr *bad, wr = {.wr_id = VERBS_BELL_SEND,
					 .sg_list = &sge,
					 .num_sge = 1,
					 .opcode = IBV_WR_SEND,
					 .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE};

	le_put64(said, token);
	le_put32(said + 8, qpn);
	wr.wr.ud.ah = r->ah;
	wr.wr.ud.remote_qpn = r->peer_bell;
	wr.wr.ud.remote_qkey = r->port->bell_key;
	assert_int_equal(ibv_post_send(r->port->bell, &wr, &bad), 0);
	rig_turns(s->rig, 2);
}

static void bells_of_others(void **state)
{
	struct scene s;
	struct verbs_conn *good;

	scene_open(&s);
	good = (struct verbs_conn *)s.good->worker;
	/* From the last rail to the first: with several ports, the oldest lie with another one than the newest. */
	for (unsigned round = 0; round < 2; round++)
		for (uint32_t i = bad_conn(&s)->rail_count; i-- > 0;)
			for (unsigned k = 0; k < (i ? 3 : 2 * VERBS_BELL_RECVS); k++)
				ring(&s, &bad_conn(&s)->rails[i], good->rails[0].peer_qpn, good->peer_token + 1 + k,
					k % 5 == 4 ? 1 + k % 15 : 16);
	good_goes_on(&s);
	assert_int_equal(end_count(s.good->box_end, EVENT_CLOSED, NULL), 0);
	/* The right one is still heard, and at once. */
	rig_drop_worker(s.good);
	RIG_UNTIL(s.rig, end_count(s.good->box_end, EVENT_CLOSED, s.good->box) == 1);
	assert_int_equal(end_record(s.good->box_end, EVENT_CLOSED, s.good->box, 0)->error, 0);
	scene_close(&s);
}

/* ---- memory of slots ---- */

static unsigned extents(const struct verbs *v)
{
	unsigned count = 0;

	for (const struct verbs_arena *a = v->arenas; a; a = a->next)
		for (const struct verbs_extent *x = a->extents; x; x = x->next)
			count++;
	return count;
}

/* What control does now and then. */
static void reap(struct rig *rig)
{
	struct hello hello;

	assert_int_equal(rig->ops->accept(rig->box, clock_now_ns(), &hello), -EAGAIN);
}

/* An arena that is full grows for a job and shrinks when that is gone; beyond the bound a job is refused by name. */
static void an_arena_grows_and_shrinks(void **state)
{
	enum { FILLS = 512 };
	static const struct rig_options usual;
	static int jobs[3];
	struct scene s = {.rig = rig_create(&over_verbs, &usual)};
	struct verbs *v = (struct verbs *)s.rig->box;
	struct verbs_piece *fill = test_calloc(FILLS, sizeof(*fill));
	struct hello hello;
	struct lane *last;
	unsigned fills = 0;
	struct err e = {0};
	uint64_t taken;

	v->slots_bytes = 16 << 20;
	assert_int_equal(verbs_arena_open(v, MEM_NODE_ANY, &e), 0);
	assert_int_equal(verbs_arena_open(v, MEM_NODE_ANY, &e), 0);
	assert_int_equal(extents(v), 1);
	for (unsigned i = 0; i < v->device_count; i++)
		assert_non_null(v->arenas->first->mr[i]); /* no node is known here: all are near */
	taken = v->slots_taken;
	s.good = join(s.rig, GOOD_RANK, &jobs[0]);
	good_goes_on(&s);
	while (fills < FILLS && verbs_extent_take(v->arenas->first, 32 << 10, &fill[fills]))
		fills++;
	assert_true(fills > 0 && fills < FILLS);
	assert_int_equal(extents(v), 1);
	s.bad = join(s.rig, BAD_RANK, &jobs[1]);
	assert_true(extents(v) > 1);
	assert_true(v->slots_taken > taken);
	good_goes_on(&s);
	rig_drop_box(s.bad);
	reap(s.rig);
	assert_int_equal(extents(v), 1);
	assert_int_equal(v->slots_taken, taken);
	good_goes_on(&s);
	v->slots_bytes_max = taken;
	last = rig_lane(s.rig, rig_box_end(s.rig, 0), rig_worker_end(s.rig, 2), BAD_RANK + 2);
	last->box_spec.group = &jobs[2];
	last->box_spec.group_conns = 1;
	rig_connect(s.rig, last, rig_key());
	hello = rig_hello(s.rig);
	assert_int_equal(s.rig->ops->admit(s.rig->box, hello.conn, &last->box_spec, &e), -ENOSPC);
	assert_non_null(strstr(e.text, "raise memory_max, or lower window"));
	good_goes_on(&s);
	while (fills > 0)
		verbs_piece_give(&fill[--fills]);
	test_free(fill);
	rig_destroy(s.rig);
}

/* Half of the ports are on the core's node: the others learn of no slots, and no rail goes there. */
static void near_ports_are_taken(void **state)
{
	static const struct rig_options usual;
	static int job;
	struct scene s = {.rig = rig_create(&over_verbs, &usual)};
	struct verbs *v = (struct verbs *)s.rig->box;
	unsigned near = (v->device_count + 1) / 2, rails;
	struct verbs_conn *c;
	struct err e = {0};

	for (unsigned i = 0; i < v->device_count; i++)
		v->devices[i].about.node = i < near ? 0 : 1;
	v->queue_node[0] = 0;
	v->slots_bytes = 4 << 20;
	assert_int_equal(verbs_arena_open(v, 0, &e), 0);
	for (unsigned i = 0; i < v->device_count; i++)
		assert_true((v->arenas->first->mr[i] != NULL) == (i < near));
	s.good = join(s.rig, GOOD_RANK, &job);
	c = (struct verbs_conn *)s.good->box;
	rails = v->device_count < VERBS_RAILS_MAX ? v->device_count : VERBS_RAILS_MAX; /* the worker's are all near */
	assert_int_equal(c->rail_count, rails);
	for (unsigned i = 0; i < rails; i++)
		assert_true(c->rails[i].device_index < near);
	for (unsigned i = near; i < v->device_count; i++)
		assert_null(c->pool->on[i].srq);
	good_goes_on(&s);
	rig_destroy(s.rig);
}

/* A pool has slots at the ports that its connections take, for as many of these as there are at a time. */
static void slots_where_connections_are(void **state)
{
	struct scene s;
	struct verbs_conn *box;
	uint32_t rails[VERBS_DEVICES_MAX] = {0};

	scene_open(&s);
	box = (struct verbs_conn *)s.bad->box;
	for (uint32_t i = 0; i < box->rail_count; i++)
		rails[box->rails[i].device_index]++;
	for (unsigned d = 0; d < box->pool->devices; d++) {
		assert_int_equal(
			box->pool->made[d].given, rails[d] ? s.bad->box_spec.window + rails[d] * VERBS_SPARE_SLOTS : 0);
		assert_true((box->pool->on[d].srq != NULL) == (rails[d] > 0));
		assert_true((box->result->mr[d] != NULL) == (rails[d] > 0));
	}
	good_goes_on(&s);
	scene_close(&s);
}

/* ---- room ---- */

/* A message that needs nearly all of the bound, behind one whose completion nobody asked for: that is asked for now. */
static void a_large_message_behind_a_small_one(void **state)
{
	const struct rig_options tight = {.send_bytes_max = 66000};
	static int job;
	struct scene s = {.rig = rig_create(&over_verbs, &tight)};
	uint32_t small = 0, large = 0;
	struct queue *q;
	uint64_t nudges;

	s.good = join(s.rig, GOOD_RANK, &job);
	q = s.good->worker_end->q;
	for (uint32_t i = 0; i < RIG_CHUNKS; i++) {
		if (s.good->spans[i].bytes && s.good->spans[i].bytes < 10000)
			small = i;
		if (s.good->spans[i].bytes > s.good->spans[large].bytes)
			large = i;
	}
	assert_true(s.good->spans[small].bytes > 500 && s.good->spans[large].bytes > 65000);
	assert_int_equal(pair_push(s.good, small, 1, NULL), 0);
	pair_flush_worker(s.good);
	nudges = stats_read(&q->counters.nudges);
	assert_int_equal(pair_push(s.good, large, 1, NULL), -EAGAIN);
	pair_flush_worker(s.good);
	assert_int_equal(stats_read(&q->counters.nudges), nudges + 1);
	RIG_UNTIL(s.rig,
		end_count(s.good->worker_end, EVENT_WRITABLE, NULL) > 0 && pair_push(s.good, large, 1, NULL) == 0);
	pair_flush_worker(s.good);
	RIG_UNTIL(s.rig, end_count(s.good->box_end, EVENT_MESSAGE, s.good->box) == 2);
	rig_destroy(s.rig);
}

/* ---- sleep ---- */

/* Messages behind a nudge that is under way: its end will wake the owner. */
static void sleep_with_a_nudge_under_way(void **state)
{
	struct scene s;
	struct verbs_conn *c;
	struct queue *q;

	scene_open(&s);
	c = (struct verbs_conn *)s.good->worker;
	q = s.good->worker_end->q;
	for (uint32_t i = 0; i < RIG_CHUNKS; i++) {
		assert_int_equal(pair_push(s.good, i, 1, NULL), 0);
		pair_flush_worker(s.good);
	}
	for (uint32_t i = 0; i < c->rail_count; i++)
		c->rails[i].nudging = true;
	alarm(20);
	(void)q->ops->arm(q);
	alarm(0);
	for (uint32_t i = 0; i < c->rail_count; i++)
		c->rails[i].nudging = false;
	RIG_UNTIL(s.rig, end_count(s.good->box_end, EVENT_MESSAGE, s.good->box) == RIG_CHUNKS);
	scene_close(&s);
}

TEST_PROGRAM(test_verbs_hostile)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_of_the_box_is_not_written),
		cmocka_unit_test(memory_of_the_box_is_not_read),
		cmocka_unit_test(an_immediate_of_another_chunk),
		cmocka_unit_test(a_chunk_beyond_the_last),
		cmocka_unit_test(more_than_a_slot_holds),
		cmocka_unit_test(no_room_for_a_header),
		cmocka_unit_test(rubbish),
		cmocka_unit_test(a_flood),
		cmocka_unit_test(messages_far_ahead),
		cmocka_unit_test(its_pair_takes_no_writes),
		cmocka_unit_test(its_key_is_of_no_memory),
		cmocka_unit_test(it_posts_no_receives),
		cmocka_unit_test(it_vanishes),
		cmocka_unit_test(one_who_vanishes_is_missed_within_seconds),
		cmocka_unit_test(its_device_fails),
		cmocka_unit_test(its_device_is_silent),
		cmocka_unit_test(bells_of_others),
		cmocka_unit_test(an_arena_grows_and_shrinks),
		cmocka_unit_test(near_ports_are_taken),
		cmocka_unit_test(slots_where_connections_are),
		cmocka_unit_test(a_large_message_behind_a_small_one),
		cmocka_unit_test(sleep_with_a_nudge_under_way),
	};

	if (rig_rdma_ports() == 0) {
		puts("no RDMA device here");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
