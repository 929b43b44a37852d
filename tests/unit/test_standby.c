/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box that mirrors its jobs, against a standby that the test plays: its session is a table of functions here, its
 * data connections are of the transport in memory.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/control_rig.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/control/job.h"
#include "phub/control/standby.h"
#include "transport/call.h"
#include "transport/crypt.h"

enum { THERE_HOST = 9, THERE_JOB = 77, THERE_EPOCH = 3, CASES = 32, THERE_CONNS = 4 };

/* The played standby. */
static struct call_peer {
	unsigned opened, closed;
	char job[64], secret[64];
	void (*hear)(void *arg, const Phub__Control *message);
	void *arg;
	bool absent;                /* it cannot be reached */
	bool silent;                /* it welcomes nobody */
	struct err lost;            /* what step() says next */
	unsigned said[CASES];       /* by message_case */
	Phub__Control *last[CASES]; /* likewise */
	uint8_t key[PROOF_KEY];

	struct rig *rig;
	struct transport *transport;
	struct queue *queue;
	char address[128];
	struct conn_spec spec;
	struct span spans[8];
	struct conn *conns[THERE_CONNS];
	unsigned conn_count;
	bool deaf; /* acknowledges nothing */
	bool full; /* so much is unsent that no more may be said */
	unsigned pushes, images;
	bool encrypt;                  /* as the session says */
	struct crypt *opener, *sealer; /* then */
	uint64_t sealed;
	bool keyless; /* it says no key */
} there;

static int there_open(void *ctx, const struct call_target *target, struct call_peer **out, struct err *e)
{
	there.opened++;
	snprintf(there.job, sizeof(there.job), "%s", target->job);
	snprintf(there.secret, sizeof(there.secret), "%.*s", (int)target->secret_bytes,
		target->secret ? (const char *)target->secret : "");
	there.hear = target->hear;
	there.arg = target->arg;
	there.encrypt = target->encrypt;
	there.lost = (struct err){0};
	*out = &there;
	return 0;
}

static int there_step(struct call_peer *p, uint64_t now_ns, struct err *e)
{
	if (p->absent)
		return err_set(e, -ECONNREFUSED, "nobody is there");
	if (p->lost.code)
		return err_set(e, p->lost.code, "%s", p->lost.text);
	return !p->silent;
}

static int there_say(struct call_peer *p, const Phub__Control *m)
{
	size_t bytes = phub__control__get_packed_size(m);
	uint8_t *frame;

	if (p->full)
		return -EAGAIN;
	frame = malloc(bytes);
	assert_non_null(frame);
	phub__control__pack(m, frame);
	p->said[m->message_case]++;
	if (p->last[m->message_case])
		phub__control__free_unpacked(p->last[m->message_case], NULL);
	p->last[m->message_case] = phub__control__unpack(NULL, bytes, frame);
	assert_non_null(p->last[m->message_case]);
	free(frame);
	return 0;
}

static void there_session(const struct call_peer *p, uint64_t *session, const uint8_t **key, uint32_t *cores)
{
	*session = 5;
	*key = p->key;
	*cores = 1;
}

static int there_address(const struct call_peer *p, const char *transport, char *out, size_t bytes, struct err *e)
{
	assert_string_equal(transport, "loop");
	snprintf(out, bytes, "%s", p->address);
	return 0;
}

static void there_close(struct call_peer *p)
{
	p->closed++;
}

static const struct call_ops there_ops = {
	.open = there_open,
	.step = there_step,
	.say = there_say,
	.session = there_session,
	.address = there_address,
	.fd = rig_call_fd,
	.close = there_close,
};

static void there_hear(Phub__Control__MessageCase which, void *message)
{
	Phub__Control control = PHUB__CONTROL__INIT;

	control.message_case = which;
	control.start = message; /* one union */
	there.hear(there.arg, &control);
	rig_turn_control(there.rig);
}

/* Each session has others. */
static void there_take_keys(uint8_t data_key[PROOF_KEY])
{
	uint8_t key[PROOF_KEY];

	there.key[0]++;
	memset(data_key, there.key[0] + 1, PROOF_KEY);
	crypt_destroy(there.opener);
	crypt_destroy(there.sealer);
	assert_int_equal(crypt_create(true, &there.opener, NULL), 0);
	assert_int_equal(crypt_create(false, &there.sealer, NULL), 0);
	assert_int_equal(proof_push_key(there.key, key), 0);
	assert_int_equal(crypt_take_key(there.opener, key), 1);
	assert_int_equal(crypt_take_key(there.sealer, data_key), 1);
}

static void there_start(void)
{
	uint8_t data_key[PROOF_KEY], wrapped[CRYPT_WRAPPED_BYTES];
	Phub__Start start = PHUB__START__INIT;

	start.generation = 1;
	start.job = THERE_JOB;
	start.epoch = THERE_EPOCH;
	start.window = 8;
	if (there.encrypt) {
		there_take_keys(data_key);
		assert_int_equal(crypt_wrap(there.key, THERE_JOB, 1, data_key, wrapped), 0);
		start.data_key.data = wrapped;
		start.data_key.len = there.keyless ? 0 : sizeof(wrapped);
	}
	there_hear(PHUB__CONTROL__MESSAGE_START, &start);
}

/* What came is the box's; its answer. */
static void there_seal(const struct event *e, struct wire_header *h, uint8_t trailer[WIRE_TRAILER_BYTES])
{
	uint8_t *payload = (uint8_t *)(uintptr_t)e->payload;
	struct wire_header bound;

	assert_int_equal(crypt_open(there.opener, &e->header, 0, payload, payload), 0);
	h->length = WIRE_TRAILER_BYTES;
	h->count = 1;
	bound = crypt_result(h, false);
	assert_int_equal(crypt_seal(there.sealer, &bound, 0, ++there.sealed, trailer, trailer), 0);
}

/* Lets connections in, and acknowledges what came. */
static void there_turn(void)
{
	uint8_t trailer[WIRE_TRAILER_BYTES];
	struct event events[16];
	struct hello hello;
	struct err e;
	unsigned count;

	rig_turn_control(there.rig);
	while (there.transport->ops->accept(there.transport, there.rig->now_ns, &hello) == 0) {
		assert_int_equal(there.transport->ops->admit(there.transport, hello.conn, &there.spec, &e), 0);
		assert_int_equal(there.queue->ops->adopt(there.queue, hello.conn, &there.spec), 0);
		there.conns[there.conn_count++ % THERE_CONNS] = hello.conn;
	}
	count = there.queue->ops->poll(there.queue, there.rig->now_ns, events, 16);
	for (unsigned i = 0; i < count; i++) {
		struct wire_header h = {.type = WIRE_RESULT, .job = THERE_JOB, .generation = 1, .epoch = THERE_EPOCH};

		if (events[i].type == EVENT_CLOSED)
			there.queue->ops->drop(there.queue, events[i].conn);
		if (events[i].type != EVENT_MESSAGE)
			continue;
		assert_int_equal(events[i].header.job, THERE_JOB);
		assert_int_equal(events[i].header.epoch, THERE_EPOCH);
		there.pushes += events[i].header.type == WIRE_PUSH;
		there.images += events[i].header.type == WIRE_INIT;
		h.chunk = events[i].header.chunk;
		h.round = events[i].header.round;
		h.credit = events[i].header.seq + 8;
		if (there.encrypt)
			there_seal(&events[i], &h, trailer);
		if (!there.deaf)
			assert_int_equal(there.queue->ops->send(
						 there.queue, events[i].conn, &h, h.length ? trailer : NULL, NULL),
				0);
		if (events[i].slot)
			there.queue->ops->release(there.queue, events[i].slot);
	}
	there.queue->ops->flush(there.queue);
	rig_turn_control(there.rig);
}

static void there_turns(void)
{
	for (int i = 0; i < 6; i++) {
		there.rig->now_ns += 1000000;
		there_turn();
	}
}

/* ---- a job of two workers at a box with that standby ---- */

/* A job's workers ask for it, with SECRET. */
static bool begin_encrypts;

#define SECRET "a secret of thirty-two characters"

static void begin(struct rig *rig, struct actor *a, const struct rig_job *job, const char *more)
{
	const char *settings[] = {"standby=phub://10.1.1.1:7077", "lost_ms=3000", "create=secret",
		"create_secret_env=PHUB_TEST_SECRET", more, NULL};
	struct transport_config config = {.queue_conns_max = 8};
	struct err e = {0};

	assert_int_equal(setenv("PHUB_TEST_SECRET", SECRET, 1), 0);
	memset(&there, 0, sizeof(there));
	rig_calls = &there_ops;
	rig_open(rig, 1, settings);
	there.rig = rig;
	config.loop = loop_net_host(rig->net, THERE_HOST);
	assert_int_equal(transport_loop.open(&config, &there.transport, &e), 0);
	assert_int_equal(transport_loop.queue_create(there.transport, MEM_NODE_ANY, &there.queue, &e), 0);
	assert_int_equal(transport_loop.listen(there.transport, "", there.address, sizeof(there.address), &e), 0);
	for (uint32_t i = 0; i < 2; i++)
		there.spans[i] = (struct span){.offset = i * 4096, .bytes = 400};
	there.spec = (struct conn_spec){.chunk_count = 2,
		.spans = there.spans,
		.payload_max = 400 + WIRE_TRAILER_BYTES,
		.window = 8,
		.queue = there.queue,
		.job = THERE_JOB};
	for (uint32_t i = 0; i < 2; i++) {
		actor_dial(rig, &a[i], i + 1);
		a[i].encrypt = begin_encrypts;
		assert_true(actor_join(&a[i], "demo", i, 2, SECRET));
	}
	for (uint32_t i = 0; i < 2; i++)
		actor_table(&a[i], job, 2, 100);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(actor_hear(&a[i]), PHUB__CONTROL__MESSAGE_START);
}

static void finish(struct rig *rig, struct actor *a)
{
	for (uint32_t i = 0; i < 2; i++)
		if (a[i].stream)
			actor_hang_up(&a[i]);
	there_turns();
	rig_wait(rig, 3000);
	rig_expect_empty(rig);
	assert_null(rig->box->control.calls);
	assert_int_equal(there.opened, there.closed);
	there_turns();
	box_destroy(rig->box, rig->now_ns);
	for (unsigned i = 0; i < 3; i++) {
		struct event events[16];
		unsigned count = there.queue->ops->poll(there.queue, rig->now_ns, events, 16);

		for (unsigned k = 0; k < count; k++)
			if (events[k].type == EVENT_CLOSED)
				there.queue->ops->drop(there.queue, events[k].conn);
	}
	there.transport->ops->queue_destroy(there.transport, there.queue);
	there.transport->ops->close(there.transport);
	loop_stream_unlisten(rig->listener);
	loop_net_destroy(rig->net);
	config_fini(&rig->config);
	for (unsigned i = 0; i < CASES; i++)
		if (there.last[i])
			phub__control__free_unpacked(there.last[i], NULL);
	rig_calls = NULL;
}

static enum standby_state state_of(const struct rig *rig)
{
	struct standby_report report;

	assert_non_null(standby_describe(rig->box->control.jobs, &report));
	return report.state;
}

static const struct rig_job summed = {.generation = 1};

/* From the start of the job until it is whole there. */
static void mirror(struct rig *rig)
{
	there_turns();
	assert_int_equal(state_of(rig), STANDBY_AGREEING);
	there_start();
	there_turns();
	assert_int_equal(state_of(rig), STANDBY_WHOLE);
}

/* What the standby is told, in its order. */
static void test_whole(void **state)
{
	struct rig rig;
	struct actor a[2];
	Phub__MirrorState echo = PHUB__MIRROR_STATE__INIT;
	const Phub__Mirror *m;

	begin(&rig, a, &summed, NULL);
	there_turns();
	assert_string_equal(there.job, "demo");
	m = there.last[PHUB__CONTROL__MESSAGE_MIRROR]->mirror;
	assert_int_equal(m->world, 2);
	assert_int_equal(m->cores, 1);
	assert_int_equal(m->core_of_chunk.len, 1);
	assert_int_equal(m->job->key_count, 2);
	assert_int_equal(m->n_hypers, 0);
	assert_int_equal(there.last[PHUB__CONTROL__MESSAGE_KEYS]->keys->n_keys, 2);
	assert_string_equal(there.last[PHUB__CONTROL__MESSAGE_KEYS]->keys->keys[1]->name, "k1");
	assert_int_equal(there.said[PHUB__CONTROL__MESSAGE_MIRROR_STATE], 0);
	there_start();
	there_turns();
	assert_int_equal(state_of(&rig), STANDBY_WHOLE);
	assert_true(there.last[PHUB__CONTROL__MESSAGE_MIRROR_STATE]->mirror_state->whole);
	actor_leave(&a[0]);
	actor_leave_unfinished(&a[1]);
	there_turns(); /* nobody is to wait for them there, before they may go */
	assert_int_equal(there.last[PHUB__CONTROL__MESSAGE_MIRROR_STATE]->mirror_state->n_left, 2);
	assert_int_equal(there.last[PHUB__CONTROL__MESSAGE_MIRROR_STATE]->mirror_state->n_unfinished, 1);
	assert_int_equal(there.last[PHUB__CONTROL__MESSAGE_MIRROR_STATE]->mirror_state->unfinished[0], 1);
	assert_int_equal(there.said[PHUB__CONTROL__MESSAGE_LEAVE], 0);
	echo.number = there.last[PHUB__CONTROL__MESSAGE_MIRROR_STATE]->mirror_state->number;
	there_hear(PHUB__CONTROL__MESSAGE_MIRROR_STATE, &echo);
	there_turns();
	assert_int_equal(there.said[PHUB__CONTROL__MESSAGE_LEAVE], 1);
	assert_int_equal(there.closed, 0); /* it waits for Left */
	there_hear(PHUB__CONTROL__MESSAGE_LEFT, &(Phub__Left)PHUB__LEFT__INIT);
	assert_int_equal(there.closed, 1);
	finish(&rig, a);
}

/* The standby's last word of the job's state. */
static const Phub__MirrorState *state_said(void)
{
	return there.last[PHUB__CONTROL__MESSAGE_MIRROR_STATE]->mirror_state;
}

/* What cannot be said now is said when there is room again, and once; who waits for its echo goes on waiting. */
static void test_full(void **state)
{
	struct rig rig;
	struct actor a[2];
	Phub__MirrorState echo = PHUB__MIRROR_STATE__INIT;
	unsigned said;

	begin(&rig, a, &summed, NULL);
	there_turns();
	there_start();
	there.full = true;
	there_turns();
	assert_int_equal(state_of(&rig), STANDBY_WHOLE);
	assert_int_equal(there.said[PHUB__CONTROL__MESSAGE_MIRROR_STATE], 0);
	there.full = false;
	there_turns();
	assert_int_equal(there.said[PHUB__CONTROL__MESSAGE_MIRROR_STATE], 1);
	assert_true(state_said()->whole);
	assert_int_equal(state_said()->number, 1);

	there.full = true;
	said = there.said[PHUB__CONTROL__MESSAGE_MIRROR_STATE];
	for (uint32_t i = 0; i < 2; i++)
		actor_leave(&a[i]);
	there_turns();
	assert_int_equal(there.said[PHUB__CONTROL__MESSAGE_MIRROR_STATE], said);
	assert_non_null(rig.box->control.jobs->members[0].session);
	there.full = false;
	there_turns();
	assert_int_equal(there.said[PHUB__CONTROL__MESSAGE_MIRROR_STATE], said + 1);
	assert_int_equal(state_said()->n_left, 2);
	assert_int_equal(there.said[PHUB__CONTROL__MESSAGE_LEAVE], 0);
	echo.number = state_said()->number;
	there_hear(PHUB__CONTROL__MESSAGE_MIRROR_STATE, &echo);
	there_turns();
	assert_int_equal(there.said[PHUB__CONTROL__MESSAGE_LEAVE], 1);
	there_hear(PHUB__CONTROL__MESSAGE_LEFT, &(Phub__Left)PHUB__LEFT__INIT);
	finish(&rig, a);
}

/* The operator's pause, and its end, are told. */
static void test_paused(void **state)
{
	struct rig rig;
	struct actor a[2];
	struct err e;

	begin(&rig, a, &summed, NULL);
	mirror(&rig);
	assert_false(state_said()->paused);
	assert_int_equal(job_operate(&rig.box->control, "pause", "demo", "a switch is changed", NULL, 0, NULL, &e), 0);
	there_turns();
	assert_true(state_said()->paused);
	assert_string_equal(state_said()->reason, "a switch is changed");
	assert_int_equal(job_operate(&rig.box->control, "resume", "demo", "", NULL, 0, NULL, &e), 0);
	there_turns();
	assert_false(state_said()->paused);
	finish(&rig, a);
}

/* Workers that this box has lost may be at its standby, where that has all of the job. */
static void test_lost_where_a_standby_is(void **state)
{
	struct rig rig;
	struct actor a[2];

	begin(&rig, a, &summed, NULL);
	mirror(&rig);
	actor_hang_up(&a[0]);
	there_turns();
	assert_int_equal(actor_hear(&a[1]), PHUB__CONTROL__MESSAGE_ERROR);
	assert_non_null(strstr(a[1].error, "Its standby 10.1.1.1:7077 had all of it: its workers may have gone"));
	/* It may be this box alone that they have lost: the standby waits for them. */
	rig_wait(&rig, 3000);
	there_turns();
	assert_int_equal(there.said[PHUB__CONTROL__MESSAGE_LEAVE], 1);
	assert_true(there.last[PHUB__CONTROL__MESSAGE_LEAVE]->leave->bereaved);
	finish(&rig, a);
}

/* A job that drains does so there, too, if this box dies meanwhile; when it has drained nobody waits for its workers.
 */
static void test_draining(void **state)
{
	struct rig rig;
	struct actor a[2];
	struct err e;

	begin(&rig, a, &summed, NULL);
	mirror(&rig);
	assert_int_equal(job_operate(&rig.box->control, "drain", "demo", "a rack is moved", NULL, 0, NULL, &e), 0);
	assert_true(state_said()->draining);
	assert_string_equal(state_said()->reason, "a rack is moved");
	there_turns();
	assert_int_equal(actor_hear(&a[0]), PHUB__CONTROL__MESSAGE_ERROR);
	assert_int_equal(there.said[PHUB__CONTROL__MESSAGE_LEAVE], 1);
	assert_false(there.last[PHUB__CONTROL__MESSAGE_LEAVE]->leave->bereaved);
	finish(&rig, a);
}

/* A box that goes down leaves its jobs to the standby. */
static void test_going_down(void **state)
{
	struct rig rig;
	struct actor a[2];

	begin(&rig, a, &summed, NULL);
	mirror(&rig);
	control_stop(&rig.box->control);
	there_turns();
	assert_int_equal(there.said[PHUB__CONTROL__MESSAGE_LEAVE], 0);
	assert_int_equal(there.closed, 1);
	finish(&rig, a);
}

/* Nobody there: tried again after 1 s, then 2 s, ... */
static void test_backoff(void **state)
{
	struct rig rig;
	struct actor a[2];

	begin(&rig, a, &summed, NULL);
	there.absent = true;
	there_turns();
	assert_int_equal(state_of(&rig), STANDBY_BROKEN);
	assert_int_equal(there.opened, 1);
	rig_wait(&rig, 900);
	assert_int_equal(there.opened, 1);
	rig_wait(&rig, 200);
	assert_int_equal(there.opened, 2);
	for (uint32_t i = 0; i < 2; i++)
		actor_heartbeat(&a[i]);
	rig_wait(&rig, 1800);
	assert_int_equal(there.opened, 2);
	there.absent = false;
	rig_wait(&rig, 300);
	assert_int_equal(there.opened, 3);
	there_start();
	there_turns();
	assert_int_equal(state_of(&rig), STANDBY_WHOLE);
	finish(&rig, a);
}

/* One that says nothing more is given up. */
static void test_silent(void **state)
{
	struct rig rig;
	struct actor a[2];

	begin(&rig, a, &summed, NULL);
	there_turns();
	assert_int_equal(state_of(&rig), STANDBY_AGREEING);
	for (int i = 0; i < 4; i++) {
		rig_wait(&rig, 800);
		for (uint32_t k = 0; k < 2; k++)
			actor_heartbeat(&a[k]);
	}
	assert_int_equal(state_of(&rig), STANDBY_BROKEN);
	assert_int_equal(there.closed, 1);
	there.silent = true;
	rig_wait(&rig, 1100);
	assert_int_equal(state_of(&rig), STANDBY_DIALLING);
	finish(&rig, a);
}

/* The session or a data connection breaks: all of it is made anew. */
static void test_broken(void **state)
{
	struct rig rig;
	struct actor a[2];

	begin(&rig, a, &summed, NULL);
	mirror(&rig);
	err_set(&there.lost, -ECONNRESET, "it fell");
	there_turns();
	assert_int_equal(state_of(&rig), STANDBY_BROKEN);
	rig_wait(&rig, 1100);
	mirror(&rig);
	assert_int_equal(there.opened, 2);
	there.queue->ops->drop(there.queue, there.conns[(there.conn_count - 1) % THERE_CONNS]);
	there_turns();
	assert_int_equal(state_of(&rig), STANDBY_BROKEN);
	rig_wait(&rig, 1100);
	mirror(&rig);
	assert_int_equal(there.opened, 3);
	finish(&rig, a);
}

/* Who passes a barrier must not meet one at the standby who waits at it. */
static void test_barrier(void **state)
{
	Phub__MirrorState echo = PHUB__MIRROR_STATE__INIT;
	struct rig rig;
	struct actor a[2];

	begin(&rig, a, &summed, NULL);
	mirror(&rig);
	actor_barrier(&a[0], 1);
	actor_barrier(&a[1], 1);
	there_turns();
	assert_int_equal(there.last[PHUB__CONTROL__MESSAGE_MIRROR_STATE]->mirror_state->barrier, 1);
	assert_int_not_equal(actor_hear(&a[0]), PHUB__CONTROL__MESSAGE_BARRIER_DONE);
	echo.barrier = 1;
	there_hear(PHUB__CONTROL__MESSAGE_MIRROR_STATE, &echo);
	assert_int_equal(actor_hear(&a[0]), PHUB__CONTROL__MESSAGE_BARRIER_DONE);
	assert_int_equal(actor_hear(&a[1]), PHUB__CONTROL__MESSAGE_BARRIER_DONE);
	/* One that dies meanwhile holds nobody up. */
	actor_barrier(&a[0], 2);
	actor_barrier(&a[1], 2);
	assert_int_equal(rig.box->control.jobs->barrier, 1);
	err_set(&there.lost, -ECONNRESET, "it fell");
	there_turns();
	assert_int_equal(rig.box->control.jobs->barrier, 2);
	finish(&rig, a);
}

/* Versions that came before the session are in Mirror, later ones follow. */
static void test_hyper(void **state)
{
	const struct rig_job job = {.generation = 1, .optimizer = 1, .lr = 0.5};
	struct rig rig;
	struct actor a[2];
	const Phub__Mirror *m;

	begin(&rig, a, &job, NULL);
	there.absent = true;
	there_turns();
	for (uint32_t version = 1; version <= 70; version++)
		for (uint32_t i = 0; i < 2; i++)
			actor_hyper(&a[i], version, version / 1000.0);
	there.absent = false;
	rig_wait(&rig, 1100);
	m = there.last[PHUB__CONTROL__MESSAGE_MIRROR]->mirror;
	assert_int_equal(m->n_hypers, 64);
	assert_int_equal(m->hypers[63]->version, 70);
	assert_true(m->hypers[63]->groups[0]->lr == 70 / 1000.0);
	assert_int_equal(m->hypers[0]->version, 7);
	assert_true(m->job->groups[0]->lr == 0.5);
	for (uint32_t i = 0; i < 2; i++)
		actor_hyper(&a[i], 71, 1);
	assert_int_equal(there.said[PHUB__CONTROL__MESSAGE_HYPER], 0); /* not before Start */
	there_start();
	assert_int_equal(there.said[PHUB__CONTROL__MESSAGE_HYPER], 1);
	assert_int_equal(there.last[PHUB__CONTROL__MESSAGE_HYPER]->hyper->version, 71);
	there_turns();
	assert_int_equal(state_of(&rig), STANDBY_MIRRORING); /* there are no first weights yet */
	finish(&rig, a);
}

/* The job goes on there: whoever is still here is told, and nothing is said to the standby any more. */
static void test_taken(void **state)
{
	Phub__MirrorTaken taken = PHUB__MIRROR_TAKEN__INIT;
	struct rig rig;
	struct actor a[2];

	begin(&rig, a, &summed, NULL);
	mirror(&rig);
	taken.text = (char *)(uintptr_t) "they came at noon";
	there_hear(PHUB__CONTROL__MESSAGE_MIRROR_TAKEN, &taken);
	there_turns();
	for (uint32_t i = 0; i < 2; i++) {
		actor_hear(&a[i]);
		assert_int_equal(a[i].error_code, PHUB__ERROR_CODE__ERROR_TAKEN);
		assert_non_null(strstr(a[i].error, "they came at noon"));
	}
	assert_int_equal(there.said[PHUB__CONTROL__MESSAGE_LEAVE], 0);
	finish(&rig, a);
}

/* A core that has lost count of versions: no round is to wait for one that never comes. */
static void test_hyper_is_not_taken(void **state)
{
	const struct rig_job job = {.generation = 1, .optimizer = 1, .lr = 0.5};
	struct rig rig;
	struct actor a[2];

	begin(&rig, a, &job, NULL);
	rig.box->control.jobs->generation->store.shards[0]->hypers.newest[0]++;
	for (uint32_t i = 0; i < 2; i++)
		actor_hyper(&a[i], 1, 0.25);
	there_turns();
	assert_int_equal(actor_hear(&a[0]), PHUB__CONTROL__MESSAGE_ERROR);
	assert_non_null(strstr(a[0].error, "core 0 did not take version 1 of the hyper-parameters"));
	assert_null(rig.box->control.tables);
	finish(&rig, a);
}

/* Only what waits for all can be mirrored. */
static void test_async(void **state)
{
	const struct rig_job job = {.generation = 1, .optimizer = 1, .sync = 2, .lr = 0.5};
	struct rig rig;
	struct actor a[2];

	begin(&rig, a, &job, NULL);
	there_turns();
	assert_int_equal(state_of(&rig), STANDBY_OFF);
	assert_int_equal(there.opened, 0);
	finish(&rig, a);
}

/* What is encrypted between workers and box is so to the standby; one that says no key gets nothing. */
static void test_encrypted(void **state)
{
	struct standby_report report;
	struct rig rig;
	struct actor a[2];

	begin_encrypts = true;
	begin(&rig, a, &summed, NULL);
	begin_encrypts = false;
	there_turns();
	assert_true(there.encrypt);
	there.keyless = true;
	there_start();
	there_turns();
	assert_non_null(standby_describe(rig.box->control.jobs, &report));
	assert_int_equal(report.state, STANDBY_BROKEN);
	assert_non_null(strstr(report.why, "encrypted"));
	assert_int_equal(there.conn_count, 0);
	there.keyless = false;
	rig_wait(&rig, 1100);
	there_turns();
	there_start();
	there_turns();
	assert_int_equal(state_of(&rig), STANDBY_WHOLE);
	finish(&rig, a);
	crypt_destroy(there.opener);
	crypt_destroy(there.sealer);
}

/* A new key table is another mirror. */
static void test_rekey(void **state)
{
	const struct rig_job second = {.generation = 2};
	struct rig rig;
	struct actor a[2];

	begin(&rig, a, &summed, NULL);
	mirror(&rig);
	for (uint32_t i = 0; i < 2; i++)
		actor_table(&a[i], &second, 2, 50);
	there_turns();
	assert_int_equal(there.said[PHUB__CONTROL__MESSAGE_LEAVE], 1);
	assert_int_equal(there.opened, 2);
	assert_int_equal(there.last[PHUB__CONTROL__MESSAGE_MIRROR]->mirror->job->generation, 2);
	finish(&rig, a);
}

TEST_PROGRAM(test_standby)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_whole),
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_paused),
		cmocka_unit_test(test_lost_where_a_standby_is),
		cmocka_unit_test(test_draining),
		cmocka_unit_test(test_going_down),
		cmocka_unit_test(test_backoff),
		cmocka_unit_test(test_silent),
		cmocka_unit_test(test_broken),
		cmocka_unit_test(test_barrier),
		cmocka_unit_test(test_hyper),
		cmocka_unit_test(test_taken),
		cmocka_unit_test(test_hyper_is_not_taken),
		cmocka_unit_test(test_async),
		cmocka_unit_test(test_encrypted),
		cmocka_unit_test(test_rekey),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
