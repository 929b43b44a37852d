/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/control_rig.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "aggregation/dispatch.h"
#include "phub/control/job.h"

static int rig_accept(void *arg, struct stream **out)
{
	return loop_stream_accept(arg, out);
}

const struct call_ops *rig_calls;

int rig_call_fd(const struct call_peer *p, bool *write)
{
	*write = false;
	return -1;
}

int rig_call_address(const struct call_peer *p, const char *transport, char *out, size_t bytes, struct err *e)
{
	return err_set(e, -ENOTSUP, "it is played");
}

void rig_open(struct rig *rig, unsigned cores, const char *const *settings)
{
	static const struct transport_ops *const transports[] = {&transport_loop};
	struct box_env env = {.transports = transports,
		.transport_count = 1,
		.accept = rig_accept,
		.by_hand = true,
		.calls = rig_calls};
	struct loop_plan plan = {.seed = 1};
	struct err e = {0};
	char text[160];

	memset(rig, 0, sizeof(*rig));
	rig->net = loop_net_create(&plan);
	assert_non_null(rig->net);
	assert_int_equal(loop_stream_listen(loop_net_host(rig->net, RIG_BOX_HOST), RIG_PORT, &rig->listener), 0);
	env.loop = loop_net_host(rig->net, RIG_BOX_HOST);
	env.accept_arg = rig->listener;
	assert_int_equal(dispatch_select("base", &env.kernels, text, sizeof(text)), 0);
	config_init(&rig->config);
	snprintf(text, sizeof(text), "cores=%u", cores);
	assert_int_equal(config_set(&rig->config, text, &e), 0);
	for (; settings && *settings; settings++)
		if (config_set(&rig->config, *settings, &e) < 0)
			fail_msg("%s", e.text);
	if (config_finish(&rig->config, &e) < 0)
		fail_msg("%s", e.text);
	if (box_create(&rig->config, &env, rig->now_ns, &rig->box, &e) < 0)
		fail_msg("%s", e.text);
}

void rig_turn_control(struct rig *rig)
{
	bool again;

	/* A second turn moves what the first one sent. */
	for (int i = 0, quiet = 0; i < 1000 && quiet < 3; i++) {
		loop_net_advance(rig->net, rig->now_ns);
		again = rig->cores_rest ? control_step(&rig->box->control, rig->now_ns)
					: box_step(rig->box, rig->now_ns);
		quiet = again ? 0 : quiet + 1;
	}
}

void rig_wait(struct rig *rig, uint64_t ms)
{
	for (uint64_t i = 0; i < ms; i += 10) {
		rig->now_ns += 10000000;
		rig_turn_control(rig);
	}
}

struct job *rig_job(const struct rig *rig)
{
	assert_non_null(rig->box->control.jobs);
	return rig->box->control.jobs;
}

void rig_expect_empty(const struct rig *rig)
{
	const struct control *control = &rig->box->control;

	if (control->jobs)
		fail_msg("job '%s' is left", control->jobs->name);
	assert_int_equal(control->memory_used, 0);
	assert_int_equal(control->table_bytes, 0);
	assert_int_equal(control->job_count, 0);
	for (unsigned i = 0; i < rig->box->core_count; i++)
		assert_int_equal(rig->box->placement[i].bytes, 0);
	assert_true(box_balanced(rig->box));
}

void rig_close(struct rig *rig)
{
	box_destroy(rig->box, rig->now_ns);
	loop_stream_unlisten(rig->listener);
	loop_net_destroy(rig->net);
	config_fini(&rig->config);
}

void actor_dial(struct rig *rig, struct actor *c, unsigned host)
{
	memset(c, 0, sizeof(*c));
	c->rig = rig;
	c->host = host;
	assert_int_equal(loop_stream_dial(loop_net_host(rig->net, host), RIG_BOX_HOST, RIG_PORT, &c->stream), 0);
	rig_turn_control(rig);
}

void actor_wrap(struct actor *c, const struct stream_tls *tls)
{
	assert_int_equal(stream_tls_dial(tls, "box.test", c->stream, &c->stream), 0);
}

void actor_hang_up(struct actor *c)
{
	if (c->transport)
		c->transport->ops->close(c->transport);
	if (c->stream)
		c->stream->ops->close(c->stream);
	if (c->last)
		phub__control__free_unpacked(c->last, NULL);
	frame_reader_fini(&c->reader);
	frame_writer_fini(&c->writer);
	c->transport = NULL;
	c->stream = NULL;
	c->last = NULL;
	rig_turn_control(c->rig);
}

void actor_say_bytes(struct actor *c, const void *bytes, size_t count)
{
	const uint8_t *at = bytes;

	for (int i = 0; count > 0 && i < 10000; i++) {
		ssize_t took = c->stream->ops->write(c->stream, at, count);

		if (took == -EPIPE || took == -ECONNRESET)
			return;
		if (took > 0) {
			at += took;
			count -= (size_t)took;
		}
		rig_turn_control(c->rig);
	}
	assert_int_equal(count, 0);
}

void actor_say(struct actor *c, const Phub__Control *message)
{
	size_t bytes = phub__control__get_packed_size(message);
	uint8_t *frame = malloc(bytes + 4);

	assert_non_null(frame);
	for (unsigned i = 0; i < 4; i++)
		frame[i] = (uint8_t)(bytes >> (8 * i));
	phub__control__pack(message, frame + 4);
	actor_say_bytes(c, frame, bytes + 4);
	free(frame);
}

static void actor_note(struct actor *c, const Phub__Control *m)
{
	if (m->message_case == PHUB__CONTROL__MESSAGE_ERROR) {
		snprintf(c->error, sizeof(c->error), "%s", m->error->text);
		c->error_code = (int)m->error->code;
		c->error_rank = m->error->rank;
	}
	if (m->message_case == PHUB__CONTROL__MESSAGE_NOTICE) {
		snprintf(c->notice, sizeof(c->notice), "%s", m->notice->text);
		c->missing_count = m->notice->missing_count;
		for (size_t i = 0; i < m->notice->n_missing && i < 64; i++)
			c->missing[i] = m->notice->missing[i];
	}
}

int actor_hear(struct actor *c)
{
	const uint8_t *frame;
	size_t bytes;
	int rc;

	rig_turn_control(c->rig);
	while ((rc = frame_read(&c->reader, c->stream, &frame, &bytes)) == 0) {
		Phub__Control *m = phub__control__unpack(NULL, bytes, frame);

		assert_non_null(m);
		actor_note(c, m);
		if (m->message_case == PHUB__CONTROL__MESSAGE_NOTICE ||
			m->message_case == PHUB__CONTROL__MESSAGE_HEARTBEAT) {
			phub__control__free_unpacked(m, NULL);
			continue;
		}
		if (c->last)
			phub__control__free_unpacked(c->last, NULL);
		c->last = m;
	}
	c->closed = rc != -EAGAIN;
	return c->last ? (int)c->last->message_case : 0;
}

void actor_expect(struct actor *c, int code, const char *text)
{
	actor_hear(c);
	if (c->error_code != code || !strstr(c->error, text))
		fail_msg("expected %d '%s', was told %d '%s'", code, text, c->error_code, c->error);
}

static uint8_t actor_nonce[PROOF_NONCE] = {1, 2, 3};

void actor_hello(struct actor *c, const char *job, uint32_t rank, uint32_t world)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Hello hello = PHUB__HELLO__INIT;

	hello.version = WIRE_VERSION;
	hello.version_min = WIRE_VERSION;
	hello.software = (char *)(uintptr_t) "rig";
	hello.job = (char *)(uintptr_t)job;
	hello.rank = rank;
	hello.world = world;
	hello.nonce.data = actor_nonce;
	hello.nonce.len = sizeof(actor_nonce);
	hello.mirror = c->mirror;
	hello.moves = c->moves;
	hello.below = c->below;
	hello.root_least = c->least;
	hello.host = (char *)(uintptr_t)(c->at ? c->at : "");
	hello.port = c->at ? 7077 : 0;
	hello.name = (char *)(uintptr_t)(c->name ? c->name : "");
	hello.encrypt = c->encrypt;
	hello.admin = job == NULL;
	if (!job)
		hello.job = (char *)(uintptr_t) "";
	control.message_case = PHUB__CONTROL__MESSAGE_HELLO;
	control.hello = &hello;
	c->rank = rank;
	actor_say(c, &control);
}

void actor_prove(struct actor *c, const char *job, uint32_t rank, uint32_t world, const char *secret)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Proof proof = PHUB__PROOF__INIT;
	struct proof_session seen = {.job = job, .rank = rank, .world = world, .encrypt = c->encrypt};
	size_t bytes = secret ? strlen(secret) : 0;
	uint8_t mac[PROOF_MAC];

	if (c->stream->sealed)
		seen.channel = c->channel ? c->channel : c->stream->channel;
	memcpy(seen.client_nonce, actor_nonce, PROOF_NONCE);
	memcpy(seen.box_nonce, c->last->challenge->nonce.data, PROOF_NONCE);
	secret = secret ? secret : "";
	assert_int_equal(proof_control(secret, bytes, &seen, false, mac), 0);
	assert_int_equal(proof_control(secret, bytes, &seen, true, c->expected), 0);
	assert_int_equal(proof_session_key(secret, bytes, &seen, c->key), 0);
	proof.mac.data = mac;
	proof.mac.len = sizeof(mac);
	control.message_case = PHUB__CONTROL__MESSAGE_PROOF;
	control.proof = &proof;
	actor_say(c, &control);
}

bool actor_welcomed(struct actor *c)
{
	if (actor_hear(c) != PHUB__CONTROL__MESSAGE_WELCOME)
		return false;
	assert_true(proof_equal(c->last->welcome->mac.data, c->expected));
	c->session = c->last->welcome->session;
	c->chunk_bytes = c->last->welcome->chunk_bytes;
	return true;
}

static bool actor_prove_and_hear(struct actor *c, const char *job, uint32_t rank, uint32_t world, const char *secret)
{
	if (actor_hear(c) != PHUB__CONTROL__MESSAGE_CHALLENGE)
		return false;
	actor_prove(c, job, rank, world, secret);
	return actor_welcomed(c);
}

bool actor_join(struct actor *c, const char *job, uint32_t rank, uint32_t world, const char *secret)
{
	actor_hello(c, job, rank, world);
	return actor_prove_and_hear(c, job, rank, world, secret);
}

void actor_enter(struct rig *rig, struct actor *c, unsigned host, const char *job, uint32_t rank, uint32_t world)
{
	actor_dial(rig, c, host);
	if (!actor_join(c, job, rank, world, NULL))
		fail_msg("rank %u is not welcomed: '%s'", rank, c->error);
}

bool actor_join_admin(struct actor *c, const char *secret)
{
	actor_hello(c, NULL, 0, 0);
	return actor_prove_and_hear(c, "", 0, 0, secret);
}

void actor_ask(struct actor *a, const char *command)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__AdminRequest request = PHUB__ADMIN_REQUEST__INIT;

	request.command = (char *)(uintptr_t)command;
	control.message_case = PHUB__CONTROL__MESSAGE_ADMIN_REQUEST;
	control.admin_request = &request;
	actor_say(a, &control);
}

static void fill_hypers(Phub__Hypers *hypers, double lr)
{
	phub__hypers__init(hypers);
	hypers->lr = lr;
	hypers->momentum = 0.9;
	hypers->beta1 = 0.9;
	hypers->beta2 = 0.999;
	hypers->eps = 1e-8;
}

void rig_job_fill(const struct rig_job *job, uint32_t key_count, struct rig_job_message *out)
{
	phub__job__init(&out->job);
	fill_hypers(&out->hypers, job->lr);
	out->hypers.weight_decay = job->weight_decay;
	out->groups[0] = &out->hypers;
	out->job.generation = job->generation;
	out->job.optimizer = (Phub__Optimizer)job->optimizer;
	out->job.reduce = (Phub__Reduce)job->reduce;
	out->job.sync = (Phub__Sync)job->sync;
	out->job.staleness = job->staleness;
	out->job.lost = (Phub__Lost)job->lost;
	out->job.quorum = job->quorum;
	out->job.chunk_bytes = job->chunk_bytes;
	out->job.reproducible = job->reproducible;
	out->job.resumes = job->resumes;
	out->job.seal = (Phub__Seal)job->seal;
	if (job->sites)
		out->job.sites = (char *)(uintptr_t)job->sites;
	out->job.key_count = key_count;
	out->job.groups = out->groups;
	out->job.n_groups = 1;
	out->job.transport = (char *)(uintptr_t)(job->transport ? job->transport : "loop");
}

void actor_job(struct actor *c, const struct rig_job *job, uint32_t key_count)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	struct rig_job_message message;

	rig_job_fill(job, key_count, &message);
	control.message_case = PHUB__CONTROL__MESSAGE_JOB;
	control.job = &message.job;
	actor_say(c, &control);
}

void actor_keys(struct actor *c, uint32_t generation, uint32_t first, uint32_t count, uint64_t elements)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Keys message = PHUB__KEYS__INIT;
	Phub__Key keys[64], *pointers[64];
	char names[64][16];

	assert_true(count <= 64);
	for (uint32_t i = 0; i < count; i++) {
		phub__key__init(&keys[i]);
		snprintf(names[i], sizeof(names[i]), "k%u", first + i);
		keys[i].name = names[i];
		keys[i].elements = elements;
		pointers[i] = &keys[i];
	}
	message.generation = generation;
	message.first = first;
	message.keys = pointers;
	message.n_keys = count;
	control.message_case = PHUB__CONTROL__MESSAGE_KEYS;
	control.keys = &message;
	actor_say(c, &control);
}

void actor_table(struct actor *c, const struct rig_job *job, uint32_t count, uint64_t elements)
{
	struct rig_job plain = {.generation = 1};

	if (!job)
		job = &plain;
	actor_job(c, job, count);
	actor_keys(c, job->generation, 0, count, elements);
}

void actor_hyper(struct actor *c, uint32_t version, double lr)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Hyper message = PHUB__HYPER__INIT;
	Phub__Hypers hypers, *groups[] = {&hypers};

	fill_hypers(&hypers, lr);
	message.version = version;
	message.groups = groups;
	message.n_groups = 1;
	control.message_case = PHUB__CONTROL__MESSAGE_HYPER;
	control.hyper = &message;
	actor_say(c, &control);
}

void actor_barrier(struct actor *c, uint64_t id)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Barrier message = PHUB__BARRIER__INIT;

	message.id = id;
	control.message_case = PHUB__CONTROL__MESSAGE_BARRIER;
	control.barrier = &message;
	actor_say(c, &control);
}

void actor_heartbeat(struct actor *c)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Heartbeat message = PHUB__HEARTBEAT__INIT;

	control.message_case = PHUB__CONTROL__MESSAGE_HEARTBEAT;
	control.heartbeat = &message;
	actor_say(c, &control);
}

static void actor_say_leave(struct actor *c, bool finished)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Leave message = PHUB__LEAVE__INIT;

	message.finished = finished;
	control.message_case = PHUB__CONTROL__MESSAGE_LEAVE;
	control.leave = &message;
	actor_say(c, &control);
}

void actor_gather(struct actor *c, const uint32_t *ranks, size_t count, uint32_t number, int type)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Gather gather = PHUB__GATHER__INIT;

	gather.ranks = (uint32_t *)(uintptr_t)ranks;
	gather.n_ranks = count;
	gather.number = number;
	gather.host = (char *)(uintptr_t)(c->at ? c->at : "");
	gather.port = c->at ? 7077 : 0;
	gather.name = (char *)(uintptr_t)(c->name ? c->name : "");
	gather.type = (Phub__Dtype)type;
	control.message_case = PHUB__CONTROL__MESSAGE_GATHER;
	control.gather = &gather;
	actor_say(c, &control);
}

void actor_leave(struct actor *c)
{
	actor_say_leave(c, true);
}

void actor_leave_unfinished(struct actor *c)
{
	actor_say_leave(c, false);
}

int actor_connect(struct actor *c, uint32_t core, const uint8_t key[PROOF_KEY], struct conn **conn)
{
	struct transport_config config = {.queue_conns_max = 8, .loop = loop_net_host(c->rig->net, c->host)};
	const struct box_transport *t = &c->rig->box->transports[0];
	struct err e = {0};
	int rc;

	if (!c->transport)
		assert_int_equal(transport_loop.open(&config, &c->transport, &e), 0);
	rc = transport_loop.connect(c->transport, t->address[0], c->session, core, key, NULL, conn, &e);
	for (int i = 0; rc == 0 && i < 10; i++) {
		rig_turn_control(c->rig);
		rc = transport_loop.established(c->transport, *conn, &e);
		if (rc != -EAGAIN)
			return rc;
		rc = 0;
	}
	return rc ? rc : -ETIMEDOUT;
}
