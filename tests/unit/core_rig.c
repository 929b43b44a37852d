/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue's calls, and a core that nobody runs.
 */
#include "tests/unit/core_rig.h"

#include "aggregation/dispatch.h"
#include "tests/unit/cmocka_shim.h"
#include "topology/chunking.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- the queue ---- */

static int script_adopt(struct queue *q, struct conn *c, const struct conn_spec *spec)
{
	c->queue = q;
	return 0;
}

static unsigned script_poll(struct queue *q, uint64_t now_ns, struct event *events, unsigned max)
{
	struct script *s = (struct script *)q;
	unsigned count = s->event_count;

	assert_true(count <= max);
	memcpy(events, s->events, count * sizeof(*events));
	s->event_count = 0;
	return count;
}

static int script_send(struct queue *q, struct conn *c, const struct wire_header *h, const void *payload, void *cookie)
{
	struct script *s = (struct script *)q;
	unsigned rank = (unsigned)(c - s->conns);

	assert_false(s->dropped[rank]);
	if (s->room[rank] == 0)
		return -EAGAIN;
	s->room[rank]--;
	if (h->type == WIRE_CREDIT && h->round != WIRE_FINISHED)
		return 0; /* not looked at */
	assert_true(s->sent_count < STAND_SENT_MAX);
	s->payloads[s->sent_count] = payload;
	s->sent[s->sent_count++] = *h;
	if (cookie && s->unacknowledged) {
		assert_true(s->kept_count < STAND_EVENTS_MAX);
		s->kept[s->kept_count++] = (struct event){.type = EVENT_SENT, .conn = c, .cookie = cookie};
		return 0;
	}
	if (cookie && s->event_count < STAND_EVENTS_MAX)
		s->events[s->event_count++] = (struct event){.type = EVENT_SENT, .conn = c, .cookie = cookie};
	return 0;
}

static void script_flush(struct queue *q)
{
}

static void script_release(struct queue *q, void *slot)
{
	((struct script *)q)->released++;
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

static const struct transport_ops script_transport_ops = {.reconnects = true};
static struct transport script_transport = {.ops = &script_transport_ops};

/* ---- a core with one job ---- */

void stand_mail(struct stand *s, struct mail mail)
{
	mail.shard = s->shard;
	assert_int_equal(mailbox_send(s->core->inbox, &mail), 0);
}

void stand_link(struct stand *s, uint32_t rank)
{
	struct mail mail = {.kind = MAIL_LINK,
		.conn = &s->script.conns[rank],
		.spec = &s->conn_spec,
		.rank = rank,
		.detail = ++s->links,
		.sealed = s->push_keys != NULL};

	if (s->push_keys)
		memcpy(mail.key, s->push_keys[rank], sizeof(mail.key));
	s->script.conns[rank].transport = &script_transport;
	s->script.dropped[rank] = false;
	s->seq[rank] = 0;
	stand_mail(s, mail);
}

static void stand_encrypt(struct stand *s, const uint8_t *data_key)
{
	struct sealing *sealing = s->shard->sealing;

	assert_int_equal(crypt_create(false, &sealing->results, NULL), 0);
	assert_int_equal(crypt_take_key(sealing->results, data_key), 1);
	for (uint32_t rank = 0; rank < STAND_WORLD; rank++)
		assert_int_equal(crypt_create(true, &s->shard->links[rank].opener, NULL), 0);
}

static struct stand *stand_make(uint32_t chunks, unsigned hold_max, bool lossy, bool sparse,
	const uint8_t data_key[PROOF_KEY], uint8_t (*push_keys)[PROOF_KEY])
{
	static const int node = -1;
	struct stand *s = calloc(1, sizeof(*s));
	struct core_config config = {.cpu = -1};
	struct store_config store = {.core_node = &node};
	struct err e = {0};
	char text[200];

	assert_non_null(s);
	s->keys = calloc(chunks, sizeof(*s->keys));
	s->core_of_chunk = calloc(chunks, sizeof(*s->core_of_chunk));
	for (uint32_t i = 0; i < chunks; i++)
		s->keys[i] = (struct chunk_key){
			.elements = STAND_ELEMENTS, .dtype = DTYPE_F32, .alone = true, .sparse = sparse};
	s->spec.world = STAND_WORLD;
	s->spec.core_count = 1;
	s->spec.core_of_chunk = s->core_of_chunk;
	s->spec.group_count = 1;
	s->spec.id = 7;
	s->spec.generation = 3;
	s->spec.epoch = 1;
	s->spec.encrypt = data_key != NULL;
	s->push_keys = push_keys;
	memcpy(s->spec.name, "test", 5);
	assert_int_equal(chunking_plan(s->keys, chunks, 32768, &s->spec.plan, &e), 0);
	assert_int_equal(mailbox_create(64, &s->control), 0);
	assert_int_equal(dispatch_from_env(&store.kernels, text, sizeof(text)), 0);
	store.control = s->control;
	config.control = s->control;
	assert_int_equal(store_create(&s->spec, &store, &s->store, &e), 0);
	s->shard = s->store.shards[0];
	if (data_key)
		stand_encrypt(s, data_key);
	assert_int_equal(core_create(&config, &s->core, &e), 0);
	s->script.queue = (struct queue){.ops = &script_ops, .hold_max = hold_max, .lossy = lossy};
	assert_int_equal(core_add_queue(s->core, &s->script.queue), 0);
	s->conn_spec.window = 8;
	stand_mail(s, (struct mail){.kind = MAIL_ATTACH});
	for (uint32_t rank = 0; rank < STAND_WORLD; rank++) {
		s->script.room[rank] = UINT_MAX;
		stand_link(s, rank);
	}
	core_step(s->core, s->now);
	return s;
}

struct stand *stand_open(uint32_t chunks, unsigned hold_max, bool lossy)
{
	return stand_make(chunks, hold_max, lossy, false, NULL, NULL);
}

struct stand *stand_open_sparse(uint32_t chunks, unsigned hold_max)
{
	return stand_make(chunks, hold_max, false, true, NULL, NULL);
}

struct stand *stand_open_encrypted(uint32_t chunks, unsigned hold_max, bool lossy, const uint8_t data_key[PROOF_KEY],
	uint8_t (*push_keys)[PROOF_KEY])
{
	return stand_make(chunks, hold_max, lossy, false, data_key, push_keys);
}

void stand_close(struct stand *s)
{
	assert_null(s->core->shards);
	core_destroy(s->core);
	for (uint32_t rank = 0; s->spec.encrypt && rank < STAND_WORLD; rank++)
		crypt_destroy(s->shard->links[rank].opener);
	if (s->spec.encrypt)
		crypt_destroy(s->shard->sealing->results);
	store_destroy(&s->store);
	mailbox_destroy(s->control);
	chunking_plan_fini(&s->spec.plan);
	free(s->keys);
	free(s->core_of_chunk);
	free(s);
}

void stand_event(struct stand *s, uint32_t rank, enum event_type type)
{
	s->script.events[s->script.event_count++] = (struct event){.type = type, .conn = &s->script.conns[rank]};
}

struct event *stand_message(struct stand *s, uint32_t rank, uint32_t chunk, uint64_t round, bool slot)
{
	struct event *e = &s->script.events[s->script.event_count];

	stand_event(s, rank, EVENT_MESSAGE);
	e->payload = s->data;
	e->slot = slot ? s->data : NULL;
	e->header = (struct wire_header){.type = WIRE_PUSH,
		.length = sizeof(s->data),
		.job = s->spec.id,
		.generation = s->spec.generation,
		.epoch = s->spec.epoch,
		.chunk = chunk,
		.rank = rank,
		.round = round,
		.count = 1,
		.seq = ++s->seq[rank]};
	event_whole(e);
	return e;
}

void stand_part(struct event *e, uint32_t offset, uint32_t bytes, bool last)
{
	e->payload = (const uint8_t *)e->payload + offset;
	e->offset = offset;
	e->bytes = bytes;
	e->last = last;
}

void stand_push(struct stand *s, uint32_t rank, uint32_t chunk, bool slot)
{
	stand_message(s, rank, chunk, 1, slot);
	core_step(s->core, ++s->now);
}

void stand_steps(struct stand *s, unsigned count)
{
	while (count-- > 0)
		core_step(s->core, ++s->now);
}

unsigned stand_sent(const struct stand *s, uint32_t rank, enum wire_type type, uint32_t epoch)
{
	unsigned count = 0;

	for (unsigned i = 0; i < s->script.sent_count; i++) {
		const struct wire_header *h = &s->script.sent[i];

		count += h->rank == rank && h->type == type && h->epoch == epoch;
	}
	return count;
}

bool stand_is_home(struct stand *s)
{
	struct mail mail;

	while (mailbox_receive(s->control, &mail) == 0) {
		if (mail.kind != MAIL_DETACHED)
			continue;
		assert_int_equal(mail.value, 0);
		assert_int_equal(core_balance(s->shard, NULL), 0);
		return true;
	}
	return false;
}
