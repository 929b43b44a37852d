/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shard's way back to control, on a core that is stepped by hand over a queue that does what the test says: results
 * that were committed go out first, nobody holds the shard for longer than agreed, and no turn takes long.
 */
#include "aggregation/dispatch.h"
#include "phub/core.h"
#include "phub/link.h"
#include "phub/store.h"
#include "tests/unit/cmocka_shim.h"
#include "topology/chunking.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { WORLD = 2, ELEMENTS = 16, SENT_MAX = 64, EVENTS_MAX = 16 };
#define DRAIN_NS 1000000ull

/* ---- a queue ---- */

struct script {
	struct queue queue;
	struct conn conns[WORLD];
	bool dropped[WORLD];
	unsigned room[WORLD]; /* sends before -EAGAIN */
	struct event events[EVENTS_MAX];
	unsigned event_count;
	struct wire_header sent[SENT_MAX];
	unsigned sent_count;
};

static int script_adopt(struct queue *q, struct conn *c, const struct conn_spec *spec)
{
	(void)spec;
	c->queue = q;
	return 0;
}

static unsigned script_poll(struct queue *q, uint64_t now_ns, struct event *events, unsigned max)
{
	struct script *s = (struct script *)q;
	unsigned count = s->event_count;

	(void)now_ns;
	assert_true(count <= max);
	memcpy(events, s->events, count * sizeof(*events));
	s->event_count = 0;
	return count;
}

static int script_send(struct queue *q, struct conn *c, const struct wire_header *h, const void *payload, void *cookie)
{
	struct script *s = (struct script *)q;
	unsigned rank = (unsigned)(c - s->conns);

	(void)payload;
	assert_false(s->dropped[rank]);
	if (s->room[rank] == 0)
		return -EAGAIN;
	s->room[rank]--;
	if (h->type == WIRE_CREDIT && h->epoch == 1)
		return 0; /* not looked at */
	assert_true(s->sent_count < SENT_MAX);
	s->sent[s->sent_count++] = *h;
	if (cookie && s->event_count < EVENTS_MAX)
		s->events[s->event_count++] = (struct event){.type = EVENT_SENT, .conn = c, .cookie = cookie};
	return 0;
}

static void script_flush(struct queue *q)
{
	(void)q;
}

static void script_release(struct queue *q, void *slot)
{
	(void)q;
	(void)slot;
}

static void script_drop(struct queue *q, struct conn *c)
{
	struct script *s = (struct script *)q;

	s->dropped[c - s->conns] = true;
}

static const struct queue_ops script_ops = {
	.adopt = script_adopt,
	.poll = script_poll,
	.send = script_send,
	.flush = script_flush,
	.release = script_release,
	.drop = script_drop,
};

/* ---- a core with one job ---- */

struct bench {
	struct script script;
	struct spec spec;
	struct chunk_key *keys;
	uint16_t *core_of_chunk;
	struct store store;
	struct shard *shard;
	struct core *core;
	struct mailbox *control;
	struct conn_spec conn_spec;
	uint32_t seq[WORLD];
	uint64_t now;
	float data[ELEMENTS];
};

static void bench_mail(struct bench *b, struct mail mail)
{
	mail.shard = b->shard;
	assert_int_equal(mailbox_send(b->core->inbox, &mail), 0);
}

/* A job of `chunks` chunks with two workers. */
static struct bench *bench_open(uint32_t chunks, unsigned hold_max, bool lossy)
{
	static const int node = -1;
	struct bench *b = calloc(1, sizeof(*b));
	struct core_config config = {.cpu = -1};
	struct store_config store = {.core_node = &node};
	struct err e = {0};
	char text[200];

	assert_non_null(b);
	b->keys = calloc(chunks, sizeof(*b->keys));
	b->core_of_chunk = calloc(chunks, sizeof(*b->core_of_chunk));
	for (uint32_t i = 0; i < chunks; i++)
		b->keys[i] = (struct chunk_key){.elements = ELEMENTS, .dtype = DTYPE_F32, .alone = true};
	b->spec.world = WORLD;
	b->spec.core_count = 1;
	b->spec.core_of_chunk = b->core_of_chunk;
	b->spec.group_count = 1;
	b->spec.epoch = 1;
	memcpy(b->spec.name, "test", 5);
	assert_int_equal(chunking_plan(b->keys, chunks, 32768, &b->spec.plan, &e), 0);
	assert_int_equal(mailbox_create(64, &b->control), 0);
	assert_int_equal(dispatch_from_env(&store.kernels, text, sizeof(text)), 0);
	store.control = b->control;
	config.control = b->control;
	assert_int_equal(store_create(&b->spec, &store, &b->store, &e), 0);
	b->shard = b->store.shards[0];
	assert_int_equal(core_create(&config, &b->core, &e), 0);
	b->script.queue = (struct queue){.ops = &script_ops, .hold_max = hold_max, .lossy = lossy};
	assert_int_equal(core_add_queue(b->core, &b->script.queue), 0);
	b->conn_spec.window = 8;
	bench_mail(b, (struct mail){.kind = MAIL_ATTACH});
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		b->script.room[rank] = UINT_MAX;
		bench_mail(b, (struct mail){.kind = MAIL_LINK,
				      .conn = &b->script.conns[rank],
				      .spec = &b->conn_spec,
				      .rank = rank});
	}
	core_step(b->core, b->now);
	return b;
}

static void bench_close(struct bench *b)
{
	assert_null(b->core->shards);
	core_destroy(b->core);
	store_destroy(&b->store);
	mailbox_destroy(b->control);
	chunking_plan_fini(&b->spec.plan);
	free(b->keys);
	free(b->core_of_chunk);
	free(b);
}

static void bench_event(struct bench *b, uint32_t rank, enum event_type type)
{
	b->script.events[b->script.event_count++] = (struct event){.type = type, .conn = &b->script.conns[rank]};
}

/* A push comes, and is handled. `slot`: it may be held. */
static void bench_push(struct bench *b, uint32_t rank, uint32_t chunk, bool slot)
{
	struct event *e = &b->script.events[b->script.event_count];

	bench_event(b, rank, EVENT_MESSAGE);
	e->payload = b->data;
	e->slot = slot ? b->data : NULL;
	e->header = (struct wire_header){.type = WIRE_PUSH,
		.length = sizeof(b->data),
		.epoch = 1,
		.chunk = chunk,
		.rank = rank,
		.round = 1,
		.count = 1,
		.seq = ++b->seq[rank]};
	core_step(b->core, ++b->now);
}

static void bench_steps(struct bench *b, unsigned count)
{
	while (count-- > 0)
		core_step(b->core, ++b->now);
}

/* Messages of this kind that this rank was sent. */
static unsigned bench_sent(const struct bench *b, uint32_t rank, enum wire_type type, uint32_t epoch)
{
	unsigned count = 0;

	for (unsigned i = 0; i < b->script.sent_count; i++) {
		const struct wire_header *h = &b->script.sent[i];

		count += h->rank == rank && h->type == type && h->epoch == epoch;
	}
	return count;
}

/* Is it home? Its books must balance. */
static bool bench_is_home(struct bench *b)
{
	struct mail mail;

	while (mailbox_receive(b->control, &mail) == 0) {
		if (mail.kind != MAIL_DETACHED)
			continue;
		assert_int_equal(mail.value, 0);
		assert_int_equal(core_balance(b->shard, NULL), 0);
		return true;
	}
	return false;
}

/* ---- draining ---- */

/* Rank 0 has its results and dies; rank 1 has room for none yet. */
static struct bench *bench_bereaved(unsigned chunks, bool lossy)
{
	struct bench *b = bench_open(chunks, 0, lossy);

	b->script.room[1] = 0;
	for (uint32_t chunk = 0; chunk < chunks; chunk++) {
		bench_push(b, 0, chunk, false);
		bench_push(b, 1, chunk, false);
	}
	bench_steps(b, 2);
	assert_int_equal(bench_sent(b, 0, WIRE_RESULT, 1), chunks);
	assert_int_equal(bench_sent(b, 1, WIRE_RESULT, 1), 0);
	bench_mail(b, (struct mail){.kind = MAIL_UNLINK, .rank = 0});
	bench_mail(b, (struct mail){.kind = MAIL_DETACH, .value = (int64_t)DRAIN_NS});
	bench_steps(b, 2);
	assert_true(b->script.dropped[0]);
	assert_false(b->script.dropped[1]);
	assert_false(bench_is_home(b));
	return b;
}

static void test_committed_results_go_out_first(void **state)
{
	struct bench *b = bench_bereaved(3, false);

	(void)state;
	/* They come in two parts; only then is it told that there are no more, and once. */
	b->script.room[1] = 2;
	bench_event(b, 1, EVENT_WRITABLE);
	bench_steps(b, 3);
	assert_int_equal(bench_sent(b, 1, WIRE_RESULT, 1), 2);
	assert_int_equal(bench_sent(b, 1, WIRE_CREDIT, 2), 0);
	b->script.room[1] = UINT_MAX;
	bench_event(b, 1, EVENT_WRITABLE);
	bench_steps(b, 3);
	assert_int_equal(bench_sent(b, 1, WIRE_RESULT, 1), 3);
	assert_int_equal(bench_sent(b, 1, WIRE_CREDIT, 2), 1);
	assert_int_equal(b->script.sent[b->script.sent_count - 1].epoch, 2);
	assert_false(bench_is_home(b));
	/* It ends the connection, as a worker does then. */
	bench_event(b, 1, EVENT_CLOSED);
	bench_steps(b, 2);
	assert_true(bench_is_home(b));
	bench_close(b);
}

static void test_who_reads_nothing_holds_nobody_up(void **state)
{
	struct bench *b = bench_bereaved(3, false);

	(void)state;
	b->now += DRAIN_NS - 10;
	core_step(b->core, b->now);
	assert_false(bench_is_home(b));
	b->now += 10;
	bench_steps(b, 2);
	assert_true(b->script.dropped[1]);
	assert_true(bench_is_home(b));
	bench_close(b);
}

/* The box goes down: a second mail shortens the first, and one more finds the shard gone. */
static void test_a_drain_is_cut_short(void **state)
{
	struct bench *b = bench_bereaved(3, false);

	(void)state;
	bench_mail(b, (struct mail){.kind = MAIL_DETACH});
	bench_mail(b, (struct mail){.kind = MAIL_DETACH, .value = (int64_t)DRAIN_NS});
	bench_steps(b, 1);
	assert_true(bench_is_home(b));
	bench_mail(b, (struct mail){.kind = MAIL_DETACH});
	bench_steps(b, 1);
	assert_false(bench_is_home(b));
	bench_close(b);
}

static void test_a_core_that_stops_drains_no_longer(void **state)
{
	struct bench *b = bench_bereaved(3, false);

	(void)state;
	bench_mail(b, (struct mail){.kind = MAIL_STOP});
	bench_steps(b, 1);
	assert_true(bench_is_home(b));
	bench_close(b);
}

/* What comes in a drain takes part in nothing. */
static void test_a_drain_commits_nothing(void **state)
{
	struct bench *b = bench_open(2, 0, false);

	(void)state;
	bench_push(b, 0, 0, false);
	bench_mail(b, (struct mail){.kind = MAIL_DETACH, .value = (int64_t)DRAIN_NS});
	bench_steps(b, 2);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		assert_int_equal(bench_sent(b, rank, WIRE_CREDIT, 2), 1);
	bench_push(b, 1, 0, false);
	bench_steps(b, 2);
	assert_int_equal(bench_sent(b, 1, WIRE_RESULT, 1), 0);
	assert_int_equal(b->shard->counters.dropped[DROP_FAILED], 1);
	bench_event(b, 0, EVENT_CLOSED);
	bench_event(b, 1, EVENT_CLOSED);
	bench_steps(b, 2);
	assert_true(bench_is_home(b));
	bench_close(b);
}

/* Where results get lost, whoever pushes again is answered again, as long as the drain lasts. */
static void test_a_lossy_worker_may_ask_again(void **state)
{
	struct bench *b = bench_bereaved(1, true);

	(void)state;
	b->script.room[1] = UINT_MAX;
	bench_event(b, 1, EVENT_WRITABLE);
	bench_steps(b, 2);
	assert_int_equal(bench_sent(b, 1, WIRE_RESULT, 1), 1);
	bench_push(b, 1, 0, false);
	bench_steps(b, 2);
	assert_int_equal(bench_sent(b, 1, WIRE_RESULT, 1), 2);
	assert_int_equal(bench_sent(b, 1, WIRE_CREDIT, 2), 0); /* nothing is in order there */
	bench_event(b, 1, EVENT_CLOSED);
	bench_steps(b, 2);
	assert_true(bench_is_home(b));
	bench_close(b);
}

/* ---- settling ---- */

/* All of a large job is in flight: each turn looks at a part of it. */
static void test_a_large_job_is_settled_in_many_turns(void **state)
{
	enum { CHUNKS = 20000, TURNS_MIN = 10 };
	struct bench *b = bench_open(CHUNKS, UINT_MAX, false);
	unsigned turns = 0;

	(void)state;
	for (uint32_t chunk = 0; chunk < CHUNKS; chunk++)
		bench_push(b, 0, chunk, true);
	assert_int_equal(b->shard->links[0].held, CHUNKS);
	bench_event(b, 0, EVENT_CLOSED);
	bench_steps(b, 1);
	assert_true(b->shard->links[0].held > CHUNKS / 2);
	/* Meanwhile the job goes on: what the dead one lent lies in mapped memory, and its round is committed. */
	bench_push(b, 1, CHUNKS - 1, true);
	assert_int_equal(bench_sent(b, 1, WIRE_RESULT, 1), 1);
	bench_mail(b, (struct mail){.kind = MAIL_DETACH});
	for (; !bench_is_home(b); turns++)
		bench_steps(b, 1);
	assert_true(turns >= TURNS_MIN);
	assert_int_equal(b->script.queue.held, 0);
	bench_close(b);
}

/*
 * All have come, and the commit waits until nothing reads the last result any more. The link that reads it ends, so
 * that no completion comes: the round is committed all the same.
 */
static void test_a_parked_commit_survives_its_reader(void **state)
{
	struct bench *b = bench_open(1, 0, true);
	struct event *e;

	(void)state;
	bench_push(b, 0, 0, false);
	bench_push(b, 1, 0, false);
	b->script.event_count = 0; /* the completions are late, as on lossy links they may be */
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		bench_push(b, rank, 0, false);
		assert_int_equal(b->shard->counters.dropped[DROP_DUPLICATE], rank + 1);
	}
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		e = &b->script.events[b->script.event_count];
		bench_event(b, rank, EVENT_MESSAGE);
		e->payload = b->data;
		e->header = (struct wire_header){.type = WIRE_PUSH,
			.length = sizeof(b->data),
			.epoch = 1,
			.rank = rank,
			.round = 2,
			.count = 1,
			.seq = ++b->seq[rank]};
	}
	core_step(b->core, ++b->now);
	assert_int_equal(b->shard->parked_count, 1);
	e = &b->script.events[b->script.event_count];
	bench_event(b, 1, EVENT_SENT);
	e->cookie = &b->shard->chunks[0];
	bench_event(b, 0, EVENT_CLOSED);
	bench_steps(b, 2);
	assert_int_equal(b->shard->parked_count, 0);
	assert_int_equal(b->shard->chunks[0].round, 3);
	assert_int_equal(bench_sent(b, 1, WIRE_RESULT, 1), 2);
	bench_mail(b, (struct mail){.kind = MAIL_DETACH});
	bench_steps(b, 2);
	assert_true(bench_is_home(b));
	bench_close(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_committed_results_go_out_first),
		cmocka_unit_test(test_who_reads_nothing_holds_nobody_up),
		cmocka_unit_test(test_a_drain_is_cut_short),
		cmocka_unit_test(test_a_core_that_stops_drains_no_longer),
		cmocka_unit_test(test_a_drain_commits_nothing),
		cmocka_unit_test(test_a_lossy_worker_may_ask_again),
		cmocka_unit_test(test_a_large_job_is_settled_in_many_turns),
		cmocka_unit_test(test_a_parked_commit_survives_its_reader),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
