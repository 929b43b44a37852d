/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire and the two kinds of ends. Packets wait in a ring in the order of their arrival.
 */
#include "tests/unit/reliable_rig.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/cmocka_shim.h"

enum { WIRED_EVENTS = 32, WIRED_BATCH = 64 };

static const uint8_t wired_key[PROOF_KEY] = {1, 2, 3};

uint32_t wired_name(unsigned worker, bool at_box)
{
	return (at_box ? 2000 : 1000) + worker;
}

static uint64_t wired_draw(struct wired *rig)
{
	uint64_t z = (rig->random += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

double wired_chance(struct wired *rig)
{
	return (double)(wired_draw(rig) >> 11) * 0x1p-53;
}

uint64_t wired_between(struct wired *rig, uint64_t first, uint64_t last)
{
	return first + wired_draw(rig) % (last - first + 1);
}

struct seal *wired_seal(const struct wired *rig, unsigned worker, bool from_box)
{
	const struct proof_datagram of = {.nonce = {(uint8_t)worker}};
	struct seal *seal;
	struct err e;

	assert_int_equal(seal_create(rig->options.seal, wired_key, &of, from_box, &seal, &e), 0);
	return seal;
}

/* ---- making ---- */

static void wired_conn_open(struct wired *rig, struct wired_end *end, unsigned worker)
{
	bool at_box = end->who == WIRED_BOX;
	struct reliable_conn_config config = {
		.conn = &end->heads[worker],
		.here = wired_name(worker, at_box),
		.there = wired_name(worker, !at_box),
		.spec = at_box ? &rig->box_specs[worker] : &rig->worker_specs[worker],
		.seal_here = wired_seal(rig, worker, !at_box),
		.seal_there = wired_seal(rig, worker, at_box),
		.datagram_max = rig->options.datagram_max,
	};

	assert_int_equal(reliable_conn_create(&end->config, &config, &end->conns[worker]), 0);
	assert_int_equal(reliable_add(end->r, end->conns[worker]), 0);
}

static void wired_end_open(struct wired *rig, unsigned who)
{
	struct wired_end *end = &rig->ends[who];
	bool is_box = who == WIRED_BOX;

	end->rig = rig;
	end->who = who;
	end->config = (struct reliable_config){.conns_max = is_box ? rig->options.workers : 1,
		.room_bytes = is_box ? rig->options.room_bytes : rig->options.worker_room_bytes,
		.send_bytes_max = rig->options.send_bytes_max,
		.is_box = is_box};
	assert_int_equal(reliable_create(&end->config, &end->r), 0);
	for (unsigned i = 0; i < rig->options.workers; i++)
		if (is_box || i == who)
			wired_conn_open(rig, end, i);
}

static void wired_specs(struct wired *rig)
{
	uint64_t offset = 0;
	uint32_t largest = 0;

	for (unsigned i = 0; i < rig->options.chunks; i++) {
		uint32_t bytes = rig->options.chunk_bytes[i];

		rig->spans[i] = (struct span){.offset = offset, .bytes = bytes};
		offset += (bytes + 4095u) & ~4095u;
		largest = bytes > largest ? bytes : largest;
	}
	for (unsigned w = 0; w < rig->options.workers; w++) {
		rig->worker_specs[w] = (struct conn_spec){.chunk_count = rig->options.chunks,
			.spans = rig->spans,
			.payload_max = largest,
			.window = rig->options.window,
			.key = wired_key,
			.seal = rig->options.seal};
		rig->box_specs[w] = rig->worker_specs[w];
		rig->worker_specs[w].sinks = rig->sinks[w];
		rig->box_specs[w].parts = true;
		rig->box_specs[w].job = WIRED_JOB;
		rig->box_specs[w].rank = w;
	}
}

void wired_open(struct wired *rig, const struct wired_options *options)
{
	memset(rig, 0, sizeof(*rig));
	rig->options = *options;
	rig->random = options->seed;
	rig->now = 1000000000;
	rig->first = calloc(1, sizeof(*rig->first));
	rig->first->prev = rig->first->next = rig->first;
	if (!rig->options.workers)
		rig->options.workers = 1;
	if (!rig->options.window)
		rig->options.window = 64;
	if (!rig->options.datagram_max)
		rig->options.datagram_max = 1472;
	if (!rig->options.room_bytes)
		rig->options.room_bytes = 4 << 20;
	if (!rig->options.worker_room_bytes)
		rig->options.worker_room_bytes = 4 << 20;
	if (!rig->options.seal)
		rig->options.seal = SEAL_CRC;
	wired_specs(rig);
	for (unsigned i = 0; i < rig->options.workers; i++)
		wired_end_open(rig, i);
	wired_end_open(rig, WIRED_BOX);
}

static void wired_packet_remove(struct wired_packet *p)
{
	p->prev->next = p->next;
	p->next->prev = p->prev;
}

static void wired_lent_free(struct wired_end *end)
{
	while (end->lent) {
		struct wired_packet *p = end->lent;

		end->lent = p->next;
		free(p);
	}
}

void wired_close(struct wired *rig)
{
	while (rig->first->next != rig->first) {
		struct wired_packet *p = rig->first->next;

		wired_packet_remove(p);
		free(p);
	}
	free(rig->first);
	for (unsigned i = 0; i < rig->late_count; i++)
		reliable_let(rig->ends[rig->late[i].from].r, rig->late[i].out.message);
	for (unsigned who = 0; who <= WIRED_BOX; who++) {
		struct wired_end *end = &rig->ends[who];

		if (!end->r)
			continue;
		for (unsigned w = 0; w < WIRED_WORKERS_MAX; w++) {
			if (!end->conns[w])
				continue;
			assert_false(reliable_is_read(end->conns[w]));
			reliable_remove(end->r, end->conns[w]);
			reliable_conn_destroy(end->conns[w]);
		}
		wired_lent_free(end);
		reliable_destroy(end->r);
	}
}

/* ---- the wire ---- */

static bool wired_is_data(const struct wired_packet *p)
{
	return p->length > WIRE_DATA_BYTES - 1 && p->bytes[0] == WIRE_DATA;
}

static void wired_queue(struct wired *rig, struct wired_packet *p)
{
	struct wired_packet *after = rig->first->prev;

	while (after != rig->first && after->at > p->at)
		after = after->prev;
	p->prev = after;
	p->next = after->next;
	p->next->prev = p;
	after->next = p;
	if (p->to == WIRED_BOX && wired_is_data(p)) {
		rig->box_bytes += p->length;
		if (rig->box_bytes > rig->box_bytes_peak)
			rig->box_bytes_peak = rig->box_bytes;
	}
}

static struct wired_packet *wired_packet_new(const struct wired_late *sent, unsigned worker)
{
	const struct reliable_outgoing *out = &sent->out;
	struct wired_packet *p = malloc(sizeof(*p) + out->head_bytes + out->rest_bytes);

	p->from = sent->from;
	p->to = sent->from == WIRED_BOX ? worker : WIRED_BOX;
	p->worker = worker;
	p->length = out->head_bytes + out->rest_bytes;
	memcpy(p->bytes, sent->head, out->head_bytes);
	if (out->rest)
		memcpy(p->bytes + out->head_bytes, out->rest, out->rest_bytes);
	else
		memset(p->bytes + out->head_bytes, 0, out->rest_bytes);
	return p;
}

/* Its fate. */
static void wired_wire_put(struct wired *rig, struct wired_packet *p)
{
	const struct wired_wire *wire = &rig->options.wire;
	uint64_t *last = &rig->last_at[p->worker][p->to == WIRED_BOX];

	rig->put++;
	if ((wire->path_max && p->length > wire->path_max) || (rig->pass && !rig->pass(rig, p)) ||
		wired_chance(rig) < wire->drop) {
		rig->lost++;
		free(p);
		return;
	}
	if (wired_chance(rig) < wire->corrupt) {
		uint64_t bit = wired_between(rig, 0, 8 * (uint64_t)p->length - 1);

		p->bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		rig->damaged++;
	}
	p->at = rig->now + wired_between(rig, wire->delay_min_ns, wire->delay_max_ns);
	if (wired_chance(rig) < wire->reorder) {
		p->at += wired_between(rig, 0, wire->reorder_ns);
	} else {
		p->at = p->at < *last ? *last : p->at;
		*last = p->at;
	}
	wired_queue(rig, p);
}

static unsigned wired_worker_of(const struct wired_end *end, const struct conn *conn)
{
	assert_true(conn >= end->heads && conn < end->heads + WIRED_WORKERS_MAX);
	return (unsigned)(conn - end->heads);
}

static void wired_leave(struct wired *rig, const struct wired_late *sent)
{
	unsigned worker = wired_worker_of(&rig->ends[sent->from], sent->out.to);

	if (wired_chance(rig) < rig->options.wire.duplicate)
		wired_wire_put(rig, wired_packet_new(sent, worker));
	wired_wire_put(rig, wired_packet_new(sent, worker));
}

static unsigned wired_late_run(struct wired *rig)
{
	unsigned kept = 0, count = rig->late_count;

	for (unsigned i = 0; i < count; i++) {
		struct wired_late *late = &rig->late[i];

		if (late->at > rig->now) {
			rig->late[kept++] = *late;
			continue;
		}
		wired_leave(rig, late);
		reliable_let(rig->ends[late->from].r, late->out.message);
	}
	rig->late_count = kept;
	return count - kept;
}

unsigned wired_send(struct wired *rig, unsigned who)
{
	struct wired_end *end = &rig->ends[who];
	struct wired_late sent = {.from = who};
	const struct conn *to;
	unsigned count = 0;

	for (; (to = reliable_turn(end->r)) != NULL; count++) {
		sent.out = (struct reliable_outgoing){.head = sent.head};
		reliable_next(end->r, rig->now, &sent.out);
		assert_ptr_equal(sent.out.to, to);
		assert_true(sent.out.head == sent.head && sent.out.head_bytes <= RELIABLE_HEAD_BYTES);
		assert_true(sent.out.head_bytes + sent.out.rest_bytes <= rig->options.datagram_max);
		assert_true(count < 100000);
		if (sent.out.message && rig->late_count < WIRED_HELD_MAX &&
			wired_chance(rig) < rig->options.wire.late) {
			sent.at = rig->now + wired_between(rig, 0, rig->options.wire.late_ns);
			rig->late[rig->late_count++] = sent;
			reliable_hold(sent.out.message);
		} else {
			wired_leave(rig, &sent);
		}
	}
	return count;
}

/* ---- polling ---- */

static unsigned wired_report(struct wired *rig, struct wired_end *end)
{
	struct event events[WIRED_EVENTS];
	unsigned total = 0, count;

	while ((count = reliable_report(end->r, events, WIRED_EVENTS)) > 0) {
		for (unsigned i = 0; i < count; i++) {
			assert_true(events[i].type != EVENT_MESSAGE || events[i].header.type == WIRE_CREDIT);
			if (rig->event)
				rig->event(rig, end, wired_worker_of(end, events[i].conn), &events[i]);
		}
		total += count;
	}
	return total;
}

/* The box asks back until the worker has shown that it receives. */
static void wired_hear_probe(struct wired *rig, struct wired_end *end, unsigned worker, size_t length)
{
	struct reliable_conn *c = end->conns[worker];
	struct wired_late sent = {.from = end->who};

	if (reliable_way(c) == WIRED_WAY + worker) {
		reliable_greet(end->r, c, WIRED_WAY + worker);
		return;
	}
	sent.out = (struct reliable_outgoing){.head = sent.head};
	reliable_ask_back(end->r, c, rig->now, WIRED_WAY + worker, &sent.out);
	assert_true(sent.out.head_bytes + sent.out.rest_bytes <= length);
	assert_null(sent.out.message);
	wired_leave(rig, &sent);
}

static enum reliable_took wired_take(struct wired *rig, struct wired_end *end, const uint8_t *bytes, size_t length)
{
	struct event event = {.error = 0};
	struct conn *conn = NULL;
	enum reliable_took took = reliable_input(end->r, rig->now, bytes, length, &event, &conn);

	if (took == RELIABLE_HELLO) {
		assert_non_null(conn);
		assert_int_equal(end->who, WIRED_BOX);
		wired_hear_probe(rig, end, wired_worker_of(end, conn), length);
	}
	if (took != RELIABLE_MESSAGE)
		return took;
	assert_int_equal(event.type, EVENT_MESSAGE);
	wired_report(rig, end);
	if (rig->event)
		rig->event(rig, end, wired_worker_of(end, event.conn), &event);
	return took;
}

enum reliable_took wired_input(struct wired *rig, unsigned who, const void *bytes, size_t length)
{
	uint8_t *copy = malloc(length ? length : 1); /* exact, for the sanitizers */
	enum reliable_took took;

	if (length)
		memcpy(copy, bytes, length);
	took = wired_take(rig, &rig->ends[who], copy, length);
	free(copy);
	return took;
}

unsigned wired_poll(struct wired *rig, unsigned who)
{
	struct wired_end *end = &rig->ends[who];
	struct wired_packet *p = rig->first->next, *next;
	unsigned count = 0;

	wired_lent_free(end);
	for (; p != rig->first && p->at <= rig->now; p = next) {
		next = p->next;
		if (p->to != who)
			continue;
		wired_packet_remove(p);
		if (who == WIRED_BOX && wired_is_data(p))
			rig->box_bytes -= p->length;
		wired_take(rig, end, p->bytes, p->length);
		p->next = end->lent;
		end->lent = p;
		/* An answer tells of the last WIRE_ACK_WORDS * 64: what it says nothing of would be sent again. */
		if (++count % WIRED_BATCH == 0)
			wired_send(rig, who);
	}
	reliable_tick(end->r, rig->now);
	return count + wired_report(rig, end);
}

unsigned wired_turn(struct wired *rig)
{
	unsigned work = wired_late_run(rig);

	for (unsigned who = 0; who <= WIRED_BOX; who++) {
		if (!rig->ends[who].r || rig->ends[who].stopped)
			continue;
		work += wired_poll(rig, who);
		work += wired_send(rig, who);
	}
	return work;
}

uint64_t wired_next(const struct wired *rig)
{
	uint64_t next = UINT64_MAX;

	for (const struct wired_packet *p = rig->first->next; p != rig->first && next == UINT64_MAX; p = p->next)
		if (!rig->ends[p->to].stopped)
			next = p->at;
	for (unsigned i = 0; i < rig->late_count; i++)
		next = rig->late[i].at < next ? rig->late[i].at : next;
	for (unsigned who = 0; who <= WIRED_BOX; who++) {
		uint64_t due;

		if (!rig->ends[who].r || rig->ends[who].stopped)
			continue;
		due = reliable_due(rig->ends[who].r);
		next = due < next ? due : next;
	}
	return next;
}

bool wired_advance(struct wired *rig, uint64_t max_ns)
{
	uint64_t next = wired_next(rig), most = rig->now + max_ns;

	if (next > most) {
		rig->now = most;
		return next != UINT64_MAX;
	}
	rig->spins = next > rig->now ? 0 : rig->spins + 1;
	assert_true(rig->spins < 100); /* something is due, and nothing comes of it */
	rig->now = next > rig->now ? next : rig->now + 1;
	return true;
}

void wired_run(struct wired *rig, uint64_t ns)
{
	uint64_t until = rig->now + ns;

	for (unsigned turns = 0; turns < 1000000; turns++) {
		if (wired_turn(rig))
			continue;
		if (rig->now >= until)
			return;
		wired_advance(rig, until - rig->now);
	}
	fail_msg("there is no end of it");
}

static void wired_probe_one(struct wired *rig, unsigned worker, uint32_t bytes, uint32_t fragment)
{
	struct wired_end *end = &rig->ends[worker];

	for (unsigned tries = 0; tries < 1000; tries++) {
		reliable_probe(end->r, end->conns[worker], bytes, fragment, false);
		for (unsigned turns = 0; turns < 10000; turns++) {
			uint64_t before = rig->now;

			if (reliable_probed(end->conns[worker], fragment != 0) >= bytes)
				return;
			if (!wired_turn(rig) && (!wired_advance(rig, 2000000) || rig->now >= before + 2000000))
				break;
		}
	}
	fail_msg("worker %u: no probe of %u bytes came back", worker, bytes);
}

void wired_probe(struct wired *rig)
{
	uint32_t path = rig->options.wire.path_max, bytes = rig->options.datagram_max;

	if (path && path < bytes)
		bytes = path;
	for (unsigned w = 0; w < rig->options.workers; w++) {
		wired_probe_one(rig, w, bytes, 0);
		wired_probe_one(rig, w, bytes, reliable_fragment_for(bytes));
		assert_int_equal(reliable_fragment(rig->ends[w].conns[w]), reliable_fragment_for(bytes));
		assert_int_equal(reliable_fragment(rig->ends[WIRED_BOX].conns[w]), reliable_fragment_for(bytes));
	}
}

uint64_t wired_drops(const struct wired *rig, unsigned who, enum reliable_drop why)
{
	return reliable_counters(rig->ends[who].r)->dropped[why];
}
