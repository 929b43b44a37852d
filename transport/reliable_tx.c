/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes out: acknowledgements first, then what was lost, then what is new, as far as grant and loss allow.
 */
#include "transport/reliable_internal.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* ---- messages ---- */

int reliable_send(struct reliable *r, struct reliable_conn *c, const struct wire_header *header, const void *payload,
	void *cookie)
{
	struct reliable_message *m = &c->out[c->seq_next & (c->slots - 1)];
	struct wire_header h = *header;
	uint32_t max = r->config.send_bytes_max;

	if (c->closed)
		return -EPIPE;
	if (h.length > c->spec->payload_max || (h.type != WIRE_CREDIT && h.chunk >= c->spec->chunk_count))
		return -EINVAL;
	if (!r->config.is_box && h.seq != c->seq_next)
		return -EINVAL;
	if (m->state != RELIABLE_FREE || c->seq_next - c->seq_base >= c->slots ||
		(max && c->out_bytes > 0 && c->out_bytes + h.length > max)) {
		c->blocked = true;
		return -EAGAIN;
	}
	h.seq = c->seq_next++;
	m->payload = payload;
	m->cookie = cookie;
	m->state = RELIABLE_OUT;
	m->seq = h.seq;
	m->chunk = h.chunk;
	m->keyed = h.type != WIRE_CREDIT;
	m->length = h.length;
	m->next = 0;
	m->acked = 0;
	m->lost = 0;
	m->fragments = 0; /* not cut yet: the size may not be known */
	wire_encode(&h, m->header);
	c->out_bytes += h.length;
	reliable_wake(c);
	return 0;
}

static void reliable_cut(const struct reliable_conn *c, struct reliable_message *m)
{
	m->fragments = m->length ? (m->length + c->fragment - 1) / c->fragment : 1;
	memset(m->acked_map, 0, c->map_words * sizeof(*m->acked_map));
	memset(m->lost_map, 0, c->map_words * sizeof(*m->lost_map));
}

struct reliable_message *reliable_find(struct reliable_conn *c, uint32_t seq)
{
	struct reliable_message *m = &c->out[seq & (c->slots - 1)];

	return m->state == RELIABLE_OUT && m->seq == seq && m->next > 0 ? m : NULL;
}

/* Nothing reads its payload any more. */
static void reliable_release(struct reliable_conn *c, struct reliable_message *m)
{
	if (m->cookie) {
		c->done[(c->done_head + c->done_count++) & (c->slots - 1)] = (uint32_t)(m - c->out);
	} else {
		m->state = RELIABLE_FREE;
		c->writable = c->blocked;
	}
	if (m->cookie || c->writable)
		reliable_tell(c);
}

void reliable_forget(struct reliable_conn *c, const struct reliable_message *m)
{
	for (uint32_t i = 0; i < m->fragments; i++) {
		struct reliable_sent *s = &c->sent[m->number[i] % RELIABLE_FLIGHT_MAX];

		if (s->seq != m->seq || s->fragment != i)
			continue;
		c->in_flight -= s->bytes;
		s->bytes = 0;
	}
}

/* All that is out belongs to messages that are done. */
static void reliable_forget_all(struct reliable_conn *c)
{
	for (; c->number_tail < c->number_next; c->number_tail++)
		c->sent[c->number_tail % RELIABLE_FLIGHT_MAX].bytes = 0;
	c->in_flight = 0;
	c->loss_ns = 0;
	c->lost_last = 0;
}

void reliable_done(struct reliable_conn *c, struct reliable_message *m)
{
	m->state = RELIABLE_DONE;
	c->lost_count -= m->lost;
	c->out_bytes -= m->length;
	while (c->seq_base != c->seq_next) {
		const struct reliable_message *oldest = &c->out[c->seq_base & (c->slots - 1)];

		if (oldest->state == RELIABLE_OUT && oldest->seq == c->seq_base)
			break;
		c->seq_base++;
	}
	if (wire_after(c->seq_base, c->seq_unsent))
		c->seq_unsent = c->seq_base;
	if (c->seq_base == c->seq_next) {
		c->silence_ns = 0;
		reliable_forget_all(c);
	}
	if (m->holds == 0 || c->r->config.is_box)
		reliable_release(c, m);
}

bool reliable_awaits(const struct reliable_message *m, const uint8_t *head)
{
	struct wire_header h;

	return wire_decode(head + WIRE_DATAGRAM_BYTES, &h) == 0 && m->state == RELIABLE_OUT && m->seq == h.seq;
}

void *reliable_cookie(const struct reliable_message *m)
{
	return m->cookie;
}

void reliable_hold(struct reliable_message *m)
{
	m->holds++;
}

void reliable_let(struct reliable *r, struct reliable_message *m)
{
	assert(m->holds > 0);
	if (--m->holds == 0 && m->state == RELIABLE_DONE && m->conn->r && !r->config.is_box)
		reliable_release(m->conn, m);
}

/* ---- what came, as the peer says ---- */

/* Fast back to where loss began, slowly beyond (as CUBIC does, RFC 9438): a full buffer on the way then loses little.
 */
static void reliable_grow(struct reliable_conn *c, uint64_t bytes, uint64_t out)
{
	if (out * 2 < c->cwnd)
		return; /* it was not what held us back */
	if (c->slow_start)
		c->cwnd += bytes;
	else
		c->cwnd += bytes / (c->cwnd < c->cwnd_lost - c->cwnd_lost / 16 ? RELIABLE_GROW_BACK : RELIABLE_GROW_ON);
	if (c->cwnd > 2 * c->grant + RELIABLE_CWND_FIRST)
		c->cwnd = 2 * c->grant + RELIABLE_CWND_FIRST;
}

static void reliable_fragment_acked(struct reliable_conn *c, const struct reliable_sent *s)
{
	struct reliable_message *m = reliable_find(c, s->seq);

	if (!m || reliable_bit(m->acked_map, s->fragment))
		return;
	reliable_set_bit(m->acked_map, s->fragment);
	if (reliable_bit(m->lost_map, s->fragment)) {
		reliable_clear_bit(m->lost_map, s->fragment);
		m->lost--;
		c->lost_count--;
	}
	if (++m->acked == m->fragments)
		reliable_done(c, m);
}

/* This number came. Returns the bytes of its datagram, if that is news. */
static uint32_t reliable_number_acked(struct reliable_conn *c, uint64_t number)
{
	struct reliable_sent *s = &c->sent[number % RELIABLE_FLIGHT_MAX];
	uint32_t bytes = s->bytes;

	if (bytes == 0)
		return 0;
	c->in_flight -= bytes;
	s->bytes = 0;
	reliable_fragment_acked(c, s); /* may forget all that is out */
	return bytes;
}

static bool reliable_is_acked(const struct wire_ack *ack, uint64_t number)
{
	uint64_t below = ack->largest - number - 1;

	if (number == ack->largest)
		return true;
	return below < UINT64_C(64) * WIRE_ACK_WORDS && (ack->below[below / 64] >> (below % 64) & 1);
}

/* What counted as lost and came after all was overtaken, by so many: that is no sign of loss here. */
static void reliable_learn_order(struct reliable_conn *c, const struct wire_ack *ack)
{
	const uint64_t seen = UINT64_C(64) * WIRE_ACK_WORDS;
	uint64_t n = ack->largest > seen ? ack->largest - seen : 1;

	for (; n <= c->lost_last && n < ack->largest; n++) {
		struct reliable_sent *s = &c->sent[n % RELIABLE_FLIGHT_MAX];
		uint64_t passed = ack->largest - n + (ack->largest - n) / 4;

		if (!s->late || !reliable_is_acked(ack, n))
			continue;
		s->late = false;
		if (passed > c->reorder)
			c->reorder = passed < seen ? (uint32_t)passed : (uint32_t)seen;
	}
}

/* What was taken for silence was a slow answer. */
static void reliable_was_late(struct reliable_conn *c)
{
	c->doubted = 0;
	c->slack_ns *= 2;
	if (c->slack_ns > RELIABLE_SLACK_MAX_NS)
		c->slack_ns = RELIABLE_SLACK_MAX_NS;
}

void reliable_acked(struct reliable_conn *c, const struct wire_ack *ack, uint64_t now_ns)
{
	const struct reliable_sent *last = &c->sent[ack->largest % RELIABLE_FLIGHT_MAX];
	uint64_t from = c->number_tail, out = c->in_flight, news = 0, round_trip_ns;

	if (ack->largest >= c->number_next) {
		reliable_drop(c->r, RELIABLE_ACK_BAD);
		return;
	}
	c->grant = ack->grant;
	if (ack->largest >= from && last->bytes && now_ns > last->at_ns) {
		round_trip_ns = now_ns - last->at_ns;
		if (round_trip_ns > ack->delay_us * 1000ull)
			reliable_measure(c, round_trip_ns - ack->delay_us * 1000ull);
	}
	if (c->lost_last)
		reliable_learn_order(c, ack);
	for (uint64_t n = from; n <= ack->largest; n++) {
		uint32_t bytes = reliable_is_acked(ack, n) ? reliable_number_acked(c, n) : 0;

		news += bytes;
		if (bytes > 0 && n < c->doubted)
			reliable_was_late(c);
	}
	if (ack->largest > c->acked_largest)
		c->acked_largest = ack->largest;
	if (news > 0) {
		c->silences = 0;
		c->doubt = 0;
		reliable_grow(c, news, out);
		if (c->seq_base != c->seq_next)
			reliable_watch(c, now_ns);
	}
	reliable_find_lost(c, now_ns);
	reliable_wake(c);
}

/* ---- what did not ---- */

/* Is the transmission with this number the last one of its fragment? Then it has to go once more. */
static void reliable_number_lost(struct reliable_conn *c, uint64_t number, const struct reliable_sent *s)
{
	struct reliable_message *m = reliable_find(c, s->seq);

	c->lost_last = number;
	if (number >= c->recovery) {
		uint64_t least = (uint64_t)RELIABLE_CWND_MIN_DATAGRAMS * s->bytes;

		c->cwnd_lost = c->cwnd;
		c->cwnd -= c->slow_start ? c->cwnd / 2 : c->cwnd / 8;
		c->cwnd = c->cwnd < least ? least : c->cwnd;
		c->slow_start = false;
		c->recovery = c->number_next;
	}
	if (!m || m->number[s->fragment] != (uint32_t)number || reliable_bit(m->acked_map, s->fragment) ||
		reliable_bit(m->lost_map, s->fragment))
		return;
	reliable_set_bit(m->lost_map, s->fragment);
	m->lost++;
	c->lost_count++;
	stats_add(&c->r->counters.lost, 1);
}

void reliable_find_lost(struct reliable_conn *c, uint64_t now_ns)
{
	uint64_t delay_ns = c->srtt_ns + c->srtt_ns / 8 + 2 * c->rttvar_ns + RELIABLE_TICK_NS;

	c->loss_ns = 0;
	/* In the order of sending: behind the first that is not lost, none is. */
	for (; c->number_tail < c->number_next; c->number_tail++) {
		struct reliable_sent *s = &c->sent[c->number_tail % RELIABLE_FLIGHT_MAX];

		if (s->bytes == 0)
			continue;
		if (c->number_tail > c->acked_largest)
			return;
		if (c->acked_largest - c->number_tail < c->reorder && s->at_ns + delay_ns > now_ns) {
			c->loss_ns = s->at_ns + delay_ns;
			if (c->loss_ns < c->r->due_ns)
				c->r->due_ns = c->loss_ns;
			return;
		}
		reliable_number_lost(c, c->number_tail, s);
		s->late = true;
		c->in_flight -= s->bytes;
		s->bytes = 0;
	}
}

void reliable_watch(struct reliable_conn *c, uint64_t now_ns)
{
	uint64_t wait_ns = RELIABLE_FIRST_NS, slack_ns = 4 * c->rttvar_ns;
	uint32_t doublings = c->silences < 10 ? c->silences : 10;

	if (c->srtt_ns)
		wait_ns = c->srtt_ns + (slack_ns > c->slack_ns ? slack_ns : c->slack_ns) + RELIABLE_ACK_NS;
	wait_ns <<= doublings;
	c->silence_ns = now_ns + (wait_ns < RELIABLE_WAIT_NS ? wait_ns : RELIABLE_WAIT_NS);
	if (c->silence_ns < c->r->due_ns)
		c->r->due_ns = c->silence_ns;
	if (list_alone(&c->waiting))
		list_append(&c->r->waiting, &c->waiting);
}

/* What goes again needs a place among what is out: the oldest there are given up, or a full list would stay full. */
static void reliable_make_place(struct reliable_conn *c, uint32_t count)
{
	for (; c->number_next + count > c->number_tail + RELIABLE_FLIGHT_MAX; c->number_tail++) {
		struct reliable_sent *s = &c->sent[c->number_tail % RELIABLE_FLIGHT_MAX];

		if (s->bytes == 0)
			continue;
		reliable_number_lost(c, c->number_tail, s);
		c->in_flight -= s->bytes;
		s->bytes = 0;
	}
}

/* Its oldest fragments go once more, though nothing says that they are lost: an answer will say what is. */
void reliable_silent(struct reliable_conn *c, uint64_t now_ns)
{
	uint32_t again = 2;

	if (c->silences < UINT32_MAX)
		c->silences++;
	if (c->silences == 3) {
		c->cwnd = (uint64_t)RELIABLE_CWND_MIN_DATAGRAMS * c->datagram_max;
		c->slow_start = true;
	}
	c->doubted = c->number_next;
	reliable_make_place(c, again);
	c->doubt = again;
	for (uint32_t seq = c->seq_base; seq != c->seq_next && again > 0; seq++) {
		struct reliable_message *m = reliable_find(c, seq);

		for (uint32_t i = 0; m && i < m->next && again > 0; i++) {
			if (reliable_bit(m->acked_map, i))
				continue;
			again--;
			if (reliable_bit(m->lost_map, i))
				continue;
			reliable_set_bit(m->lost_map, i);
			m->lost++;
			c->lost_count++;
		}
	}
	if (again == c->doubt)
		reliable_forget_all(c); /* nothing that is out is missing: it must not keep the rest from going */
	if (c->seq_base == c->seq_next)
		c->silence_ns = 0;
	else
		reliable_watch(c, now_ns);
}

/* ---- datagrams ---- */

static bool reliable_wants_data(const struct reliable_conn *c)
{
	uint64_t window = c->cwnd < c->grant ? c->cwnd : c->grant;

	if (c->fragment == 0 || (c->lost_count == 0 && c->seq_unsent == c->seq_next))
		return false;
	if (c->number_next - c->number_tail >= RELIABLE_FLIGHT_MAX)
		return false;
	return c->in_flight == 0 || c->in_flight + c->fragment + WIRE_DATA_BYTES <= window ||
	       (c->doubt > 0 && c->lost_count > 0);
}

bool reliable_wants(const struct reliable_conn *c)
{
	return c->probe_count > 0 || c->ack_due || reliable_wants_data(c);
}

/* The oldest fragment that is lost, or else the next one that was never sent. */
static struct reliable_message *reliable_pick(struct reliable_conn *c, uint32_t *fragment)
{
	struct reliable_message *m;

	for (uint32_t seq = c->seq_base; c->lost_count > 0 && seq != c->seq_next; seq++) {
		m = reliable_find(c, seq);
		if (!m || m->lost == 0)
			continue;
		for (uint32_t word = 0;; word++) {
			if (m->lost_map[word] == 0)
				continue;
			*fragment = word * 64 + (uint32_t)__builtin_ctzll(m->lost_map[word]);
			break;
		}
		reliable_clear_bit(m->lost_map, *fragment);
		m->lost--;
		c->lost_count--;
		if (c->doubt > 0)
			c->doubt--;
		stats_add(&c->r->counters.resent, 1);
		return m;
	}
	m = &c->out[c->seq_unsent & (c->slots - 1)];
	if (m->next == 0)
		reliable_cut(c, m);
	*fragment = m->next++;
	if (m->next == m->fragments)
		c->seq_unsent++;
	return m;
}

static void reliable_next_data(struct reliable_conn *c, uint64_t now_ns, struct reliable_outgoing *out)
{
	uint32_t fragment;
	struct reliable_message *m = reliable_pick(c, &fragment);
	struct reliable_sent *s = &c->sent[c->number_next % RELIABLE_FLIGHT_MAX];
	const struct wire_datagram d = {
		.kind = WIRE_DATA,
		.conn = c->there,
		.number = c->number_next++,
		.offset = fragment * c->fragment,
		.answers = m->keyed ? c->answers[m->chunk] : 0,
	};
	uint32_t left = m->length - d.offset;

	wire_encode_datagram(&d, out->head);
	memcpy(out->head + WIRE_DATAGRAM_BYTES, m->header, WIRE_HEADER_BYTES);
	out->head_bytes = WIRE_DATA_BYTES;
	out->rest_bytes = left < c->fragment ? left : c->fragment;
	out->rest = out->rest_bytes ? m->payload + d.offset : NULL;
	out->message = m;
	m->number[fragment] = (uint32_t)d.number;
	s->at_ns = now_ns;
	s->seq = m->seq;
	s->fragment = fragment;
	s->late = false;
	s->bytes = WIRE_DATA_BYTES + out->rest_bytes;
	c->in_flight += s->bytes;
	reliable_watch(c, now_ns);
	/* One that cannot be sealed is lost on the way. */
	(void)seal_make(c->seal_there, d.number, out->head, out->head_bytes, out->rest, out->rest_bytes);
}

static void reliable_next_other(struct reliable_conn *c, enum wire_kind kind, struct reliable_outgoing *out)
{
	const struct wire_datagram d = {.kind = kind, .conn = c->there, .number = c->number_other++};

	wire_encode_datagram(&d, out->head);
	(void)seal_make(c->seal_there, d.number, out->head, out->head_bytes, out->rest, out->rest_bytes);
}

static void reliable_next_ack(
	struct reliable *r, struct reliable_conn *c, uint64_t now_ns, struct reliable_outgoing *out)
{
	uint64_t delay_us = now_ns > c->largest_ns ? (now_ns - c->largest_ns) / 1000 : 0;
	struct wire_ack ack = {
		.largest = c->largest,
		.grant = reliable_grant(r, c),
		.delay_us = delay_us < UINT32_MAX ? (uint32_t)delay_us : UINT32_MAX,
	};

	memcpy(ack.below, c->below, sizeof(ack.below));
	wire_encode_ack(&ack, out->head + WIRE_DATAGRAM_BYTES);
	out->head_bytes = WIRE_ACK_BYTES;
	c->ack_due = false;
	c->unacked = 0;
	c->unacked_bytes = 0;
	list_remove(&c->delayed);
	stats_add(&r->counters.acks, 1);
	reliable_next_other(c, WIRE_ACK, out);
}

/* A probe, or the answer to one. */
static void reliable_put_probe(struct reliable *r, struct reliable_conn *c, uint64_t now_ns,
	const struct reliable_probe_item *item, struct reliable_outgoing *out)
{
	static const uint8_t zeros[WIRE_DATAGRAM_MAX];
	const struct wire_probe probe = {
		.token = r->config.is_box ? item->token : now_ns,
		.fragment = item->fragment,
		.alone = item->alone,
		.grant = reliable_grant(r, c),
		.way = r->config.is_box ? item->way : c->way,
	};

	wire_encode_probe(&probe, out->head + WIRE_DATAGRAM_BYTES);
	out->head_bytes = WIRE_PROBE_BYTES;
	out->rest = zeros;
	out->rest_bytes = item->bytes - WIRE_PROBE_BYTES;
	out->alone = item->alone;
	reliable_next_other(c, r->config.is_box ? WIRE_PROBED : WIRE_PROBE, out);
}

static void reliable_next_probe(
	struct reliable *r, struct reliable_conn *c, uint64_t now_ns, struct reliable_outgoing *out)
{
	const struct reliable_probe_item item = c->probes[0];

	c->probe_count--;
	memmove(c->probes, c->probes + 1, c->probe_count * sizeof(c->probes[0]));
	reliable_put_probe(r, c, now_ns, &item, out);
}

void reliable_probe(struct reliable *r, struct reliable_conn *c, uint32_t bytes, uint32_t fragment, bool alone)
{
	(void)r;
	if (c->probe_count == RELIABLE_PROBES_MAX)
		return;
	if (bytes < WIRE_PROBE_BYTES)
		bytes = WIRE_PROBE_BYTES;
	c->probes[c->probe_count++] = (struct reliable_probe_item){
		.bytes = bytes < c->datagram_max ? bytes : c->datagram_max,
		.fragment = fragment,
		.alone = alone,
	};
	reliable_wake(c);
}

struct conn *reliable_turn(struct reliable *r)
{
	while (!list_alone(&r->ready)) {
		struct reliable_conn *c = LIST_OF(r->ready.next, struct reliable_conn, ready);

		if (!reliable_wants(c)) {
			list_remove(&c->ready);
			c->burst = 0;
			continue;
		}
		if (c->burst < RELIABLE_BURST)
			return c->conn;
		reliable_pass(r);
	}
	return NULL;
}

void reliable_pass(struct reliable *r)
{
	struct reliable_conn *c = LIST_OF(r->ready.next, struct reliable_conn, ready);

	c->burst = 0;
	list_remove(&c->ready);
	list_append(&r->ready, &c->ready);
}

/* All of it that does not depend on what it will be. */
static void reliable_next_begin(struct reliable_conn *c, struct reliable_outgoing *out)
{
	out->conn = c;
	out->to = c->conn;
	out->rest = NULL;
	out->rest_bytes = 0;
	out->message = NULL;
	out->alone = c->alone;
}

static void reliable_count_sent(struct reliable *r, const struct reliable_outgoing *out)
{
	stats_add(&r->counters.sent, 1);
	stats_add(&r->counters.sent_bytes, out->head_bytes + out->rest_bytes);
}

void reliable_next(struct reliable *r, uint64_t now_ns, struct reliable_outgoing *out)
{
	struct reliable_conn *c = LIST_OF(r->ready.next, struct reliable_conn, ready);

	reliable_next_begin(c, out);
	c->burst++;
	if (c->probe_count > 0)
		reliable_next_probe(r, c, now_ns, out);
	else if (c->ack_due)
		reliable_next_ack(r, c, now_ns, out);
	else
		reliable_next_data(c, now_ns, out);
	reliable_count_sent(r, out);
}

void reliable_ask_back(
	struct reliable *r, struct reliable_conn *c, uint64_t now_ns, uint64_t way, struct reliable_outgoing *out)
{
	const struct reliable_probe_item item = {
		.token = c->hello.token, .way = way, .bytes = c->hello_bytes, .alone = c->hello.alone};

	assert(c->r == r && r->config.is_box);
	reliable_next_begin(c, out);
	reliable_put_probe(r, c, now_ns, &item, out);
	reliable_count_sent(r, out);
}

void reliable_farewell(struct reliable *r, struct reliable_conn *c, struct reliable_outgoing *out)
{
	reliable_next_begin(c, out);
	out->head_bytes = WIRE_DATAGRAM_BYTES;
	reliable_next_other(c, WIRE_END, out);
	reliable_count_sent(r, out);
}
