/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake box. It trusts its worker (the worker is what is tested) and asserts where it may.
 */
#include "tests/unit/fake_box.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct transport_ops *const fake_transports[] = {&transport_loop, NULL};

/* ---- control: saying ---- */

void fake_box_say_bytes(struct fake_box *b, uint32_t rank, const void *frame, size_t bytes)
{
	assert(b->workers[rank].stream);
	frame_append(&b->workers[rank].out, frame, bytes);
}

void fake_box_say(struct fake_box *b, uint32_t rank, const Phub__Control *message)
{
	size_t bytes = phub__control__get_packed_size(message);
	uint8_t *frame = malloc(bytes + 1);

	phub__control__pack(message, frame);
	fake_box_say_bytes(b, rank, frame, bytes);
	free(frame);
}

void fake_box_error(struct fake_box *b, uint32_t rank, uint32_t code, const char *text)
{
	Phub__Control c = PHUB__CONTROL__INIT;
	Phub__Error error = PHUB__ERROR__INIT;

	error.code = code;
	error.text = (char *)(uintptr_t)text;
	c.message_case = PHUB__CONTROL__MESSAGE_ERROR;
	c.error = &error;
	fake_box_say(b, rank, &c);
}

void fake_box_notice(
	struct fake_box *b, uint32_t rank, uint32_t chunk, uint64_t round, uint32_t missing, const char *text)
{
	Phub__Control c = PHUB__CONTROL__INIT;
	Phub__Notice notice = PHUB__NOTICE__INIT;

	notice.about = chunk == UINT32_MAX ? PHUB__ABOUT__ABOUT_START : PHUB__ABOUT__ABOUT_ROUND;
	notice.chunk = chunk;
	notice.round = round;
	notice.missing = &missing;
	notice.n_missing = 1;
	notice.missing_count = 1;
	notice.text = (char *)(uintptr_t)text;
	c.message_case = PHUB__CONTROL__MESSAGE_NOTICE;
	c.notice = &notice;
	fake_box_say(b, rank, &c);
}

/* ---- control: joining ---- */

static void fake_proof(const struct fake_box *b, struct fake_worker *w, bool from_box, uint8_t mac[PROOF_MAC])
{
	const char *secret = b->secret ? b->secret : "";
	struct proof_session s = {.job = w->job, .rank = w->rank, .world = b->world, .encrypt = b->encrypt};

	memcpy(s.client_nonce, w->client_nonce, PROOF_NONCE);
	memcpy(s.box_nonce, w->box_nonce, PROOF_NONCE);
	proof_control(secret, strlen(secret), &s, from_box, mac);
	proof_session_key(secret, strlen(secret), &s, w->key);
}

static void fake_hear_hello(struct fake_box *b, struct fake_worker *w, const Phub__Hello *hello)
{
	Phub__Control c = PHUB__CONTROL__INIT;
	Phub__Challenge challenge = PHUB__CHALLENGE__INIT;
	struct fake_worker *at = &b->workers[hello->rank];

	assert(hello->rank < b->world && hello->nonce.len == PROOF_NONCE);
	if (at != w) { /* callers come in any order: to the place of their rank */
		struct fake_worker other = *at;

		assert(!at->session);
		*at = *w;
		*w = other;
		w = at;
	}
	assert(hello->moves == (b->origin != NULL) || b->error_code);
	w->moves = hello->moves;
	w->rank = hello->rank;
	w->session = 100 + hello->rank;
	memcpy(w->client_nonce, hello->nonce.data, PROOF_NONCE);
	memset(w->box_nonce, 7, PROOF_NONCE);
	snprintf(w->job, sizeof(w->job), "%s", hello->job);
	if (b->error_code && !b->error_late) {
		fake_box_error(b, w->rank, b->error_code, "as told, taken or not");
		return;
	}
	challenge.version = 1;
	assert(hello->encrypt == b->encrypt);
	challenge.secret = b->secret != NULL;
	challenge.encrypt = b->encrypt;
	challenge.nonce.data = w->box_nonce;
	challenge.nonce.len = PROOF_NONCE;
	c.message_case = PHUB__CONTROL__MESSAGE_CHALLENGE;
	c.challenge = &challenge;
	fake_box_say(b, w->rank, &c);
}

static void fake_hear_proof(struct fake_box *b, struct fake_worker *w, const Phub__Proof *proof)
{
	Phub__Control c = PHUB__CONTROL__INIT;
	Phub__Welcome welcome = PHUB__WELCOME__INIT;
	Phub__Address address = PHUB__ADDRESS__INIT;
	Phub__Address *addresses[1] = {&address};
	uint8_t mac[PROOF_MAC];

	fake_proof(b, w, false, mac);
	if (proof->mac.len != PROOF_MAC || !proof_equal(mac, proof->mac.data)) {
		fake_box_error(b, w->rank, PHUB__ERROR_CODE__ERROR_DENIED, "wrong secret");
		return;
	}
	if (b->error_code) {
		fake_box_error(b, w->rank, b->error_code, "as told, taken or not");
		return;
	}
	fake_proof(b, w, true, mac);
	mac[0] ^= b->wrong_mac;
	welcome.mac.data = mac;
	welcome.mac.len = PROOF_MAC;
	welcome.session = w->session;
	welcome.heartbeat_ms = 1000;
	welcome.lost_ms = 5000;
	welcome.cores = b->cores;
	welcome.chunk_bytes = 4096;
	address.transport = (char *)(uintptr_t) "loop";
	address.address = b->address;
	welcome.addresses = addresses;
	welcome.n_addresses = 1;
	if (b->standby)
		welcome.standby = (char *)(uintptr_t)b->standby;
	c.message_case = PHUB__CONTROL__MESSAGE_WELCOME;
	c.welcome = &welcome;
	fake_box_say(b, w->rank, &c);
}

/* ---- control: starting ---- */

static void fake_forget_table(struct fake_box *b)
{
	for (uint32_t i = 0; b->chunks && i < b->plan.chunk_count; i++) {
		free(b->chunks[i].sum);
		free(b->chunks[i].result);
		for (uint32_t rank = 0; rank < FAKE_WORLD_MAX; rank++)
			free(b->chunks[i].sealed[rank]);
	}
	free(b->chunks);
	b->chunks = NULL;
	for (uint32_t i = 0; i < FAKE_CORES_MAX; i++) {
		free(b->spans[i]);
		free(b->index[i]);
		b->spans[i] = NULL;
		b->index[i] = NULL;
		b->counts[i] = 0;
	}
	chunking_plan_fini(&b->plan);
}

static uint32_t fake_trailer(const struct fake_box *b)
{
	return b->encrypt ? WIRE_TRAILER_BYTES : 0;
}

static void fake_forget_keys(struct fake_box *b)
{
	crypt_destroy(b->sealer);
	b->sealer = NULL;
	for (uint32_t i = 0; i < b->world; i++) {
		crypt_destroy(b->workers[i].opener);
		b->workers[i].opener = NULL;
	}
}

/* Each start has keys of its own, and counts from 1. */
static void fake_take_keys(struct fake_box *b, uint8_t data_key[PROOF_KEY])
{
	uint8_t key[PROOF_KEY];

	fake_forget_keys(b);
	memset(data_key, (int)(b->job + b->starts), PROOF_KEY);
	b->sealed = 0;
	if (crypt_create(false, &b->sealer, NULL) < 0 || crypt_take_key(b->sealer, data_key) < 0)
		abort();
	for (uint32_t i = 0; i < b->world; i++) {
		struct fake_worker *w = &b->workers[i];

		memset(w->opened, 0, sizeof(w->opened));
		if (crypt_create(true, &w->opener, NULL) < 0 || proof_push_key(w->key, key) < 0 ||
			crypt_take_key(w->opener, key) < 0)
			abort();
	}
}

static void fake_plan(struct fake_box *b, const struct fake_worker *w)
{
	fake_forget_table(b);
	if (chunking_plan(w->keys, w->key_count, w->chunk_bytes, &b->plan, NULL) < 0)
		abort();
	b->chunks = calloc(b->plan.chunk_count, sizeof(*b->chunks));
	for (uint32_t i = 0; i < b->cores; i++) {
		b->spans[i] = calloc(b->plan.chunk_count, sizeof(struct span));
		b->index[i] = calloc(b->plan.chunk_count, sizeof(uint32_t));
	}
	for (uint32_t i = 0; i < b->plan.chunk_count; i++) {
		struct fake_chunk *chunk = &b->chunks[i];
		uint32_t core = i % b->cores;

		chunk->core = core;
		chunk->local = b->counts[core]++;
		chunk->round = b->optimizer ? 0 : 1;
		chunk->sum = calloc(1, b->plan.chunks[i].bytes);
		chunk->result = calloc(1, b->plan.chunks[i].bytes);
		b->spans[core][chunk->local] =
			(struct span){b->plan.chunks[i].offset, b->plan.chunks[i].bytes + fake_trailer(b)};
		b->index[core][chunk->local] = i;
	}
	for (uint32_t i = 0; i < b->cores; i++)
		b->specs[i] = (struct conn_spec){.chunk_count = b->counts[i],
			.spans = b->spans[i],
			.payload_max = b->plan.chunk_bytes + fake_trailer(b),
			.window = b->window};
}

/* All that the box before it has committed. */
static void fake_take_over(struct fake_box *b)
{
	const struct fake_box *from = b->origin;
	uint32_t hyper = UINT32_MAX;

	assert(from->plan.chunk_count == b->plan.chunk_count);
	for (uint32_t i = 0; i < b->world; i++)
		assert(from->workers[i].table_lr == b->workers[i].table_lr);
	for (uint32_t i = 0; i < b->plan.chunk_count; i++) {
		b->chunks[i].round = from->chunks[i].round;
		memcpy(b->chunks[i].result, from->chunks[i].result, b->plan.chunks[i].bytes);
	}
	for (uint32_t i = 0; i < b->world; i++)
		if (from->workers[i].hyper < hyper)
			hyper = from->workers[i].hyper;
	for (uint32_t i = 0; i < b->world; i++)
		b->workers[i].hyper = hyper;
	b->barrier = from->barrier;
}

static void fake_start_moved(struct fake_box *b, const struct fake_worker *w, Phub__Start *start)
{
	start->moved = true;
	start->hyper = w->hyper;
	start->barrier = b->barrier;
	start->n_chunk_rounds = b->plan.chunk_count;
	start->chunk_rounds = calloc(b->plan.chunk_count, sizeof(*start->chunk_rounds));
	for (uint32_t i = 0; i < b->plan.chunk_count; i++)
		start->chunk_rounds[i] = b->chunks[i].round + (uint64_t)b->rounds_off;
}

static void fake_start(struct fake_box *b)
{
	uint8_t *cores, data_key[PROOF_KEY], wrapped[CRYPT_WRAPPED_BYTES];

	for (uint32_t i = 0; i < b->world; i++) {
		if (!b->workers[i].tabled)
			return;
	}
	for (uint32_t i = 0; i < b->world; i++)
		fake_box_cut_lanes(b, i);
	fake_plan(b, &b->workers[0]);
	if (b->origin)
		fake_take_over(b);
	if (b->encrypt)
		fake_take_keys(b, data_key);
	cores = malloc(b->plan.chunk_count);
	for (uint32_t i = 0; i < b->plan.chunk_count; i++)
		cores[i] = b->moved_away ? 0 : b->wrong_placement ? (uint8_t)b->cores : (uint8_t)b->chunks[i].core;
	for (uint32_t i = 0; i < b->world; i++) {
		Phub__Control c = PHUB__CONTROL__INIT;
		Phub__Start start = PHUB__START__INIT;

		start.generation = b->workers[i].generation;
		start.job = b->job;
		start.epoch = b->epoch;
		start.window = b->window;
		if (b->encrypt) {
			if (crypt_wrap(b->workers[i].key, b->job, start.generation, data_key, wrapped) < 0)
				abort();
			start.data_key.data = wrapped;
			start.data_key.len = sizeof(wrapped);
		}
		start.core_of_chunk.data = cores;
		start.core_of_chunk.len = b->plan.chunk_count - b->short_placement;
		c.message_case = PHUB__CONTROL__MESSAGE_START;
		c.start = &start;
		if (b->origin && !b->plain_start)
			fake_start_moved(b, &b->workers[i], &start);
		fake_box_say(b, i, &c);
		free(start.chunk_rounds);
		b->workers[i].tabled = false;
		memset(b->workers[i].seq, 0, sizeof(b->workers[i].seq));
	}
	free(cores);
	b->started = true;
	b->starts++;
}

static void fake_hear_job(struct fake_worker *w, const Phub__Job *job)
{
	assert(job->generation == w->generation + 1 && job->n_groups >= 1);
	w->generation = job->generation;
	w->key_count = job->key_count;
	w->keys_here = 0;
	w->chunk_bytes = job->chunk_bytes;
	w->lr = job->groups[0]->lr;
	w->table_lr = w->lr;
	w->hyper = 0;
	free(w->keys);
	w->keys = calloc(job->key_count, sizeof(*w->keys));
}

static void fake_hear_keys(struct fake_box *b, struct fake_worker *w, const Phub__Keys *keys)
{
	assert(keys->generation == w->generation && keys->first == w->keys_here);
	for (size_t i = 0; i < keys->n_keys; i++) {
		assert(w->keys_here < w->key_count);
		w->keys[w->keys_here++] = (struct chunk_key){.elements = keys->keys[i]->elements,
			.dtype = (uint8_t)keys->keys[i]->dtype,
			.group = (uint16_t)keys->keys[i]->group,
			.alone = keys->keys[i]->alone,
			.sparse = keys->keys[i]->sparse};
	}
	w->tabled = w->keys_here == w->key_count;
	if (w->tabled)
		fake_start(b);
}

static void fake_hear_barrier(struct fake_box *b, struct fake_worker *w, uint64_t id)
{
	Phub__Control c = PHUB__CONTROL__INIT;
	Phub__BarrierDone done = PHUB__BARRIER_DONE__INIT;

	w->barrier = id;
	for (uint32_t i = 0; i < b->world; i++) {
		if (b->workers[i].barrier < id)
			return;
	}
	b->barrier = id;
	done.id = id;
	c.message_case = PHUB__CONTROL__MESSAGE_BARRIER_DONE;
	c.barrier_done = &done;
	for (uint32_t i = 0; i < b->world; i++)
		fake_box_say(b, i, &c);
}

static void fake_hear(struct fake_box *b, struct fake_worker *w, const Phub__Control *m)
{
	Phub__Control c = PHUB__CONTROL__INIT;
	Phub__Left left = PHUB__LEFT__INIT;

	switch (m->message_case) {
	case PHUB__CONTROL__MESSAGE_HELLO:
		fake_hear_hello(b, w, m->hello);
		break;
	case PHUB__CONTROL__MESSAGE_PROOF:
		fake_hear_proof(b, w, m->proof);
		break;
	case PHUB__CONTROL__MESSAGE_JOB:
		fake_hear_job(w, m->job);
		break;
	case PHUB__CONTROL__MESSAGE_KEYS:
		fake_hear_keys(b, w, m->keys);
		break;
	case PHUB__CONTROL__MESSAGE_HYPER:
		assert(m->hyper->version == w->hyper + 1);
		w->hyper = m->hyper->version;
		w->lr = m->hyper->groups[0]->lr;
		break;
	case PHUB__CONTROL__MESSAGE_BARRIER:
		fake_hear_barrier(b, w, m->barrier->id);
		break;
	case PHUB__CONTROL__MESSAGE_HEARTBEAT:
		if (!b->mute)
			fake_box_say(b, w->rank, m);
		break;
	case PHUB__CONTROL__MESSAGE_LEAVE:
		w->left = true;
		w->finished = m->leave->finished;
		c.message_case = PHUB__CONTROL__MESSAGE_LEFT;
		c.left = &left;
		fake_box_say(b, w->rank, &c);
		break;
	default:
		abort();
	}
}

void fake_box_hang_up(struct fake_box *b, uint32_t rank)
{
	struct fake_worker *w = &b->workers[rank];

	if (w->stream)
		w->stream->ops->close(w->stream);
	w->stream = NULL;
	frame_reader_fini(&w->in);
	frame_writer_fini(&w->out);
	memset(&w->in, 0, sizeof(w->in));
	memset(&w->out, 0, sizeof(w->out));
}

static void fake_control(struct fake_box *b)
{
	struct stream *caller;

	while (loop_stream_accept(b->listener, &caller) == 0) {
		uint32_t i = 0;

		while (i < FAKE_WORLD_MAX && b->workers[i].stream)
			i++;
		assert(i < FAKE_WORLD_MAX);
		b->workers[i].stream = caller;
	}
	for (uint32_t i = 0; i < FAKE_WORLD_MAX && !b->deaf; i++) {
		const uint8_t *frame;
		size_t bytes;
		int rc;

		while (b->workers[i].stream &&
			(rc = frame_read(&b->workers[i].in, b->workers[i].stream, &frame, &bytes)) != -EAGAIN) {
			Phub__Control *m = rc == 0 ? phub__control__unpack(NULL, bytes, frame) : NULL;

			if (m)
				fake_hear(b, &b->workers[i], m);
			else
				fake_box_hang_up(b, i);
			if (m)
				phub__control__free_unpacked(m, NULL);
		}
	}
	for (uint32_t i = 0; i < FAKE_WORLD_MAX; i++) {
		if (b->workers[i].stream)
			frame_flush(&b->workers[i].out, b->workers[i].stream);
	}
}

/* ---- data ---- */

static void fake_admit(struct fake_box *b)
{
	struct hello hello;

	while (b->transport->ops->accept(b->transport, loop_net_now(b->net), &hello) == 0) {
		struct fake_worker *w = &b->workers[hello.session - 100];
		uint8_t mac[PROOF_MAC];

		proof_data(w->key, hello.nonce, hello.session, hello.core, mac);
		assert(proof_equal(mac, hello.mac) && hello.core < b->cores && !w->conns[hello.core]);
		if (b->deaf_lanes) {
			assert(b->unanswered_count < sizeof(b->unanswered) / sizeof(b->unanswered[0]));
			b->unanswered[b->unanswered_count++] = hello.conn;
			continue;
		}
		if (b->no_lanes) {
			b->transport->ops->reject(b->transport, hello.conn, EACCES);
			continue;
		}
		if (b->transport->ops->admit(b->transport, hello.conn, &b->specs[hello.core], NULL) < 0)
			continue;
		if (b->queue->ops->adopt(b->queue, hello.conn, &b->specs[hello.core]) < 0)
			abort();
		hello.conn->user = w;
		w->conns[hello.core] = hello.conn;
	}
}

static void fake_drop(struct fake_box *b, struct conn *conn)
{
	struct fake_worker *w = conn->user;

	for (uint32_t i = 0; i < FAKE_CORES_MAX; i++) {
		if (w->conns[i] == conn)
			w->conns[i] = NULL;
	}
	b->queue->ops->drop(b->queue, conn);
}

void fake_box_cut_lanes(struct fake_box *b, uint32_t rank)
{
	for (uint32_t i = 0; i < FAKE_CORES_MAX; i++) {
		if (b->workers[rank].conns[i])
			fake_drop(b, b->workers[rank].conns[i]);
	}
}

static void fake_header(const struct fake_box *b, const struct fake_worker *w, uint32_t core, struct wire_header *h)
{
	*h = (struct wire_header){
		.type = WIRE_CREDIT,
		.job = b->job,
		.generation = w->generation,
		.epoch = b->epoch,
		.rank = w->rank,
		.credit = b->hoard ? b->window : w->seq[core] + b->window,
	};
}

void fake_box_finish(struct fake_box *b, uint32_t rank)
{
	struct fake_worker *w = &b->workers[rank];
	struct wire_header h;

	for (uint32_t core = 0; core < FAKE_CORES_MAX; core++) {
		if (!w->conns[core])
			continue;
		fake_header(b, w, core, &h);
		h.round = WIRE_FINISHED;
		b->queue->ops->send(b->queue, w->conns[core], &h, NULL, NULL);
	}
	b->queue->ops->flush(b->queue);
}

static void fake_reply(struct fake_box *b, struct fake_worker *w, uint32_t index, uint64_t round)
{
	struct fake_chunk *chunk = &b->chunks[index];
	struct conn *conn = w->conns[chunk->core];
	struct wire_header h, bound;
	uint8_t *sealed = NULL;

	if (!conn)
		return;
	fake_header(b, w, chunk->core, &h);
	h.type = WIRE_RESULT;
	h.length = b->plan.chunks[index].bytes + fake_trailer(b);
	h.chunk = chunk->local;
	h.round = round + (b->wrong_round ? 1 : 0);
	h.count = 1;
	if (b->spoil)
		b->spoil(&h);
	if (b->encrypt) {
		if (!chunk->sealed[w->rank])
			chunk->sealed[w->rank] = malloc(h.length);
		sealed = chunk->sealed[w->rank]; /* is read until it is sent */
		bound = crypt_result(&h, false);
		if (!sealed || crypt_seal(b->sealer, &bound, chunk->core, ++b->sealed, chunk->result, sealed) < 0)
			abort();
	}
	for (int i = 0; i < (b->doubled ? 2 : 1); i++)
		b->queue->ops->send(b->queue, conn, &h, sealed ? (void *)sealed : chunk->result, NULL);
}

static void fake_commit(struct fake_box *b, uint32_t index, bool gradient)
{
	struct fake_chunk *chunk = &b->chunks[index];
	uint32_t elements = b->plan.chunks[index].bytes / 4;

	for (uint32_t i = 0; i < elements; i++) {
		chunk->result[i] = b->optimizer && gradient ? chunk->result[i] - chunk->sum[i] : chunk->sum[i];
		chunk->sum[i] = 0;
	}
	chunk->arrived = 0;
	chunk->round++;
	for (uint32_t rank = 0; rank < b->world; rank++)
		fake_reply(b, &b->workers[rank], index, chunk->round - 1);
}

/* Each push is sealed anew, whatever was said before; where messages overtake each other, an older one is dropped. */
static bool fake_open(struct fake_worker *w, uint32_t core, const struct event *e)
{
	uint8_t *payload = (uint8_t *)(uintptr_t)e->payload;
	uint64_t counter;

	if (e->header.type == WIRE_PULL)
		return true;
	counter = crypt_counter(payload, e->header.length);
	if (w->opened[core] >= counter)
		return false;
	w->opened[core] = counter;
	if (crypt_open(w->opener, &e->header, core, payload, payload) < 0)
		abort();
	return true;
}

static void fake_take(struct fake_box *b, struct fake_worker *w, uint32_t core, const struct event *e)
{
	const struct wire_header *h = &e->header;
	uint32_t index = b->index[core][h->chunk];
	struct fake_chunk *chunk = &b->chunks[index];
	const float *gradient = e->payload;

	if (b->encrypt && !fake_open(w, core, e))
		return;
	assert(h->job == b->job && h->epoch == b->epoch && h->rank == w->rank);
	if (wire_after(h->seq, w->seq[core]))
		w->seq[core] = h->seq;
	w->pushes++;
	if (w->rank == 0 && b->order_count < 4096)
		b->order[b->order_count++] = index;
	if (w->rank == 0)
		b->last = *h;
	if (h->generation != w->generation || b->mute)
		return;
	if (h->round != chunk->round || chunk->arrived >> w->rank & 1) {
		assert((b->queue->lossy || b->origin) && h->round <= chunk->round);
		if (h->round + 1 == chunk->round)
			fake_reply(b, w, index, h->round);
		return;
	}
	for (uint32_t i = 0; h->type != WIRE_PULL && i < b->plan.chunks[index].bytes / 4; i++)
		chunk->sum[i] += gradient[i];
	chunk->arrived |= 1u << w->rank;
	if (chunk->arrived == (1u << b->world) - 1)
		fake_commit(b, index, h->type == WIRE_PUSH);
}

static void fake_event(struct fake_box *b, const struct event *e)
{
	struct fake_worker *w = e->conn->user;
	struct wire_header h;
	uint32_t core = 0;

	while (core < b->cores && w->conns[core] != e->conn)
		core++;
	if (core == b->cores)
		return;
	if (e->type == EVENT_CLOSED) {
		fake_drop(b, e->conn);
	} else if (e->type == EVENT_MESSAGE) {
		fake_take(b, w, core, e);
		if (e->slot)
			b->queue->ops->release(b->queue, e->slot);
		fake_header(b, w, core, &h);
		b->queue->ops->send(b->queue, e->conn, &h, NULL, NULL);
	}
}

void fake_box_step(struct fake_box *b)
{
	struct event events[64];
	unsigned count;

	fake_control(b);
	fake_admit(b);
	while ((count = b->queue->ops->poll(b->queue, loop_net_now(b->net), events, 64)) > 0) {
		for (unsigned i = 0; i < count; i++)
			fake_event(b, &events[i]);
		b->queue->ops->flush(b->queue);
	}
}

void fake_box_open(struct fake_box *b, struct loop_net *net, uint32_t world, uint32_t cores)
{
	fake_box_open_at(b, net, 0, world, cores);
}

void fake_box_open_at(struct fake_box *b, struct loop_net *net, unsigned endpoint, uint32_t world, uint32_t cores)
{
	struct transport_config config = {.queue_conns_max = 64, .loop = loop_net_host(net, endpoint)};

	memset(b, 0, sizeof(*b));
	b->net = net;
	b->world = world;
	b->cores = cores;
	b->window = 8;
	b->job = 42 + endpoint;
	b->epoch = 3 + endpoint;
	if (loop_stream_listen(loop_net_host(net, endpoint), FAKE_PORT, &b->listener) < 0 ||
		transport_loop.open(&config, &b->transport, NULL) < 0 ||
		transport_loop.queue_create(b->transport, MEM_NODE_ANY, &b->queue, NULL) < 0 ||
		transport_loop.listen(b->transport, "", b->address, sizeof(b->address), NULL) < 0)
		abort();
}

void fake_box_close(struct fake_box *b)
{
	for (uint32_t i = 0; i < FAKE_WORLD_MAX; i++) {
		fake_box_cut_lanes(b, i);
		fake_box_hang_up(b, i);
		free(b->workers[i].keys);
	}
	fake_forget_table(b);
	fake_forget_keys(b);
	while (b->unanswered_count > 0)
		transport_loop.abandon(b->transport, b->unanswered[--b->unanswered_count]);
	transport_loop.queue_destroy(b->transport, b->queue);
	transport_loop.close(b->transport);
	loop_stream_unlisten(b->listener);
}

/* ---- the worker's side of the network ---- */

static int fake_dial(void *ctx, const char *host, uint16_t port, struct stream **out, struct err *e)
{
	struct fake_site *site = ctx;
	unsigned box = strncmp(host, "host", 4) == 0 ? (unsigned)strtoul(host + 4, NULL, 10) : site->box;

	return loop_stream_dial(site->host, box, port, out);
}

static uint64_t fake_now(void *ctx)
{
	return loop_net_now(((struct fake_site *)ctx)->host->net);
}

void fake_site_init(struct fake_site *site, struct loop_net *net, unsigned endpoint, unsigned box)
{
	site->host = loop_net_host(net, endpoint);
	site->box = box;
	site->env = (struct client_env){
		.dial = fake_dial,
		.now = fake_now,
		.transports = fake_transports,
		.config = {.loop = site->host},
		.ctx = site,
	};
}
