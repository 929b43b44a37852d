/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds the worker's control messages. A job may have a million keys: they go out in batches, and only when the
 * writer has little left to send, so that the table never lies in memory twice.
 */
#include "client/say.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/control.pb-c.h"

enum { SAY_KEYS_BATCH = 256, SAY_BACKLOG_BYTES = 256 << 10, SAY_TRANSPORTS_MAX = 8 };

int client_say(struct client_session *s, const Phub__Control *message)
{
	size_t bytes = phub__control__get_packed_size(message);
	uint8_t *frame = malloc(bytes);
	int rc;

	if (!frame)
		return -ENOMEM;
	phub__control__pack(message, frame);
	rc = frame_append(&s->out, frame, bytes);
	free(frame);
	return rc;
}

int client_say_hello(struct client_session *s)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Hello hello = PHUB__HELLO__INIT;
	char *names[SAY_TRANSPORTS_MAX];
	size_t count = 0;

	if (proof_nonce(s->nonce) < 0)
		return -EIO;
	for (const struct transport_ops *const *t = s->env->transports; *t && count < SAY_TRANSPORTS_MAX; t++) {
		if (s->settings->transport ? strcmp(s->settings->transport, (*t)->name) == 0 : !(*t)->by_name)
			names[count++] = (char *)(uintptr_t)(*t)->name;
	}
	hello.version = SESSION_VERSION;
	hello.version_min = SESSION_VERSION;
	hello.software = (char *)(uintptr_t) "libphub " PHUB_VERSION;
	hello.job = s->settings->url.job;
	hello.rank = s->settings->rank;
	hello.world = s->settings->world;
	hello.nonce.data = s->nonce;
	hello.nonce.len = sizeof(s->nonce);
	hello.moves = s->moves;
	hello.transports = names;
	hello.n_transports = count;
	hello.encrypt = s->settings->encrypt;
	hello.mirror = s->call && !s->below;
	hello.below = s->below;
	hello.peer = s->peer;
	hello.exchange = s->exchange;
	hello.root = s->root;
	hello.root_least = s->root_least;
	if (s->below) {
		hello.host = (char *)(uintptr_t)s->own_host;
		hello.port = s->own_port;
		hello.name = (char *)(uintptr_t)s->own_name;
	}
	control.message_case = PHUB__CONTROL__MESSAGE_HELLO;
	control.hello = &hello;
	return client_say(s, &control);
}

int client_say_signal(struct client_session *s, const struct signal *signal)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Signal out = PHUB__SIGNAL__INIT;

	out.core = signal->core;
	out.number = signal->number;
	out.data.data = (uint8_t *)(uintptr_t)signal->bytes;
	out.data.len = signal->length;
	control.message_case = PHUB__CONTROL__MESSAGE_SIGNAL;
	control.signal = &out;
	return client_say(s, &control);
}

int client_say_proof(struct client_session *s, const uint8_t mac[PROOF_MAC])
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Proof proof = PHUB__PROOF__INIT;

	proof.mac.data = (uint8_t *)(uintptr_t)mac;
	proof.mac.len = PROOF_MAC;
	control.message_case = PHUB__CONTROL__MESSAGE_PROOF;
	control.proof = &proof;
	return client_say(s, &control);
}

/* ---- hyper-parameters ---- */

struct say_groups {
	Phub__Hypers *hypers;
	Phub__Hypers **pointers;
};

static int say_groups_make(struct say_groups *g, const struct phub_hyper *groups, unsigned count)
{
	g->hypers = calloc(count, sizeof(*g->hypers));
	g->pointers = calloc(count, sizeof(*g->pointers));
	if (!g->hypers || !g->pointers)
		return -ENOMEM;
	for (unsigned i = 0; i < count; i++) {
		const struct phub_hyper *h = &groups[i];
		Phub__Hypers *out = &g->hypers[i];

		phub__hypers__init(out);
		out->lr = h->lr;
		out->momentum = h->momentum;
		out->dampening = h->dampening;
		out->weight_decay = h->weight_decay;
		out->beta1 = h->beta1;
		out->beta2 = h->beta2;
		out->eps = h->eps;
		out->lr_decay = h->lr_decay;
		out->initial_accumulator = h->initial_accumulator_value;
		g->pointers[i] = out;
	}
	return 0;
}

static void say_groups_free(struct say_groups *g)
{
	free(g->hypers);
	free(g->pointers);
}

int client_say_job(
	struct client_session *s, const struct phub_hyper *hypers, const char *transport, uint32_t chunk_bytes)
{
	const struct settings *settings = s->settings;
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Job job = PHUB__JOB__INIT;
	struct say_groups groups = {0};
	int rc = say_groups_make(&groups, hypers, settings->group_count);

	job.generation = s->generation;
	job.optimizer = (Phub__Optimizer)settings->optimizer;
	job.reduce = (Phub__Reduce)settings->reduce;
	job.sync = (Phub__Sync)settings->sync;
	job.staleness = settings->staleness;
	job.reproducible = settings->reproducible;
	if (settings->association)
		job.association = settings->association;
	job.nan = (Phub__NanPolicy)settings->nan;
	job.seal = (Phub__Seal)settings->seal;
	job.lost = (Phub__Lost)settings->lost;
	job.quorum = settings->quorum;
	job.wait_ms = settings->wait_ms;
	job.resumes = s->resumes;
	job.here = settings->here;
	job.sites = (char *)(uintptr_t)settings->sites;
	job.chunk_bytes = chunk_bytes;
	job.chunk_default = settings->chunk_bytes == 0;
	job.key_count = s->keyring->count;
	job.groups = groups.pointers;
	job.n_groups = settings->group_count;
	job.transport = (char *)(uintptr_t)transport;
	control.message_case = PHUB__CONTROL__MESSAGE_JOB;
	control.job = &job;
	if (rc == 0)
		rc = client_say(s, &control);
	say_groups_free(&groups);
	return rc;
}

int client_say_hyper(struct client_session *s, uint32_t version, const struct phub_hyper *hypers)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Hyper hyper = PHUB__HYPER__INIT;
	struct say_groups groups = {0};
	int rc = say_groups_make(&groups, hypers, s->settings->group_count);

	hyper.version = version;
	hyper.groups = groups.pointers;
	hyper.n_groups = s->settings->group_count;
	control.message_case = PHUB__CONTROL__MESSAGE_HYPER;
	control.hyper = &hyper;
	if (rc == 0)
		rc = client_say(s, &control);
	say_groups_free(&groups);
	return rc;
}

/* ---- keys ---- */

struct say_batch {
	Phub__Key keys[SAY_KEYS_BATCH];
	Phub__Key *pointers[SAY_KEYS_BATCH];
};

static int client_say_batch(struct client_session *s, struct say_batch *batch)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Keys keys = PHUB__KEYS__INIT;
	uint32_t count = 0;
	int rc;

	for (; count < SAY_KEYS_BATCH && s->keys_sent + count < s->keyring->count; count++) {
		const struct chunk_key *shape = &s->keyring->shapes[s->keys_sent + count];
		Phub__Key *key = &batch->keys[count];

		phub__key__init(key);
		key->name = s->keyring->keys[s->keys_sent + count].name;
		key->elements = shape->elements;
		key->dtype = (Phub__Dtype)shape->dtype;
		key->group = shape->group;
		key->alone = shape->alone;
		key->sparse = shape->sparse;
		batch->pointers[count] = key;
	}
	keys.generation = s->generation;
	keys.first = s->keys_sent;
	keys.keys = batch->pointers;
	keys.n_keys = count;
	control.message_case = PHUB__CONTROL__MESSAGE_KEYS;
	control.keys = &keys;
	rc = client_say(s, &control);
	if (rc == 0)
		s->keys_sent += count;
	return rc;
}

int client_say_keys(struct client_session *s)
{
	struct say_batch *batch;
	int rc = 0;

	if (s->keys_sent == s->keyring->count || s->out.have > SAY_BACKLOG_BYTES)
		return 0;
	batch = malloc(sizeof(*batch));
	if (!batch)
		return -ENOMEM;
	while (rc == 0 && s->keys_sent < s->keyring->count && s->out.have <= SAY_BACKLOG_BYTES)
		rc = client_say_batch(s, batch);
	free(batch);
	return rc;
}

/* ---- the short ones ---- */

int client_say_broken(struct client_session *s, uint32_t core, const char *text)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Broken broken = PHUB__BROKEN__INIT;

	broken.core = core;
	broken.text = (char *)(uintptr_t)text;
	control.message_case = PHUB__CONTROL__MESSAGE_BROKEN;
	control.broken = &broken;
	return client_say(s, &control);
}

int client_say_barrier(struct client_session *s, uint64_t id)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Barrier barrier = PHUB__BARRIER__INIT;

	barrier.id = id;
	control.message_case = PHUB__CONTROL__MESSAGE_BARRIER;
	control.barrier = &barrier;
	return client_say(s, &control);
}

int client_say_heartbeat(struct client_session *s, uint64_t stamp)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Heartbeat heartbeat = PHUB__HEARTBEAT__INIT;

	heartbeat.stamp = stamp;
	control.message_case = PHUB__CONTROL__MESSAGE_HEARTBEAT;
	control.heartbeat = &heartbeat;
	return client_say(s, &control);
}

int client_say_who(struct client_session *s, const struct client_subject *subject)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Who who = PHUB__WHO__INIT;

	who.about = subject->about;
	who.round = subject->round;
	who.chunk = subject->chunk;
	control.message_case = PHUB__CONTROL__MESSAGE_WHO;
	control.who = &who;
	return client_say(s, &control);
}

int client_say_leave(struct client_session *s, bool finished)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Leave leave = PHUB__LEAVE__INIT;

	leave.finished = finished;
	control.message_case = PHUB__CONTROL__MESSAGE_LEAVE;
	control.leave = &leave;
	return client_say(s, &control);
}
