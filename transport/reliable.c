/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections by name, their times, and what is reported of them.
 */
#include "transport/reliable.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/reliable_internal.h"

static const char *const reliable_drop_names[RELIABLE_DROPS] = {
	[RELIABLE_RUNT] = "runt",
	[RELIABLE_FOREIGN] = "foreign",
	[RELIABLE_STRANGER] = "stranger",
	[RELIABLE_FORGED] = "forged",
	[RELIABLE_HEADER] = "header",
	[RELIABLE_PLACE] = "place",
	[RELIABLE_WINDOW] = "window",
	[RELIABLE_REPEAT] = "repeat",
	[RELIABLE_ACK_BAD] = "ack",
};

const char *reliable_drop_name(enum reliable_drop why)
{
	return reliable_drop_names[why];
}

int reliable_create(const struct reliable_config *config, struct reliable **out)
{
	struct reliable *r = calloc(1, sizeof(*r));

	if (!r)
		return -ENOMEM;
	r->config = *config;
	r->due_ns = UINT64_MAX;
	r->active_turn = 1;
	list_init(&r->ready);
	list_init(&r->delayed);
	list_init(&r->waiting);
	list_init(&r->reports);
	list_init(&r->fenced);
	*out = r;
	return 0;
}

void reliable_destroy(struct reliable *r)
{
	assert(r->conn_count == 0);
	free(r);
}

const struct reliable_counters *reliable_counters(const struct reliable *r)
{
	return &r->counters;
}

/* ---- connections ---- */

uint32_t reliable_fragment_for(uint32_t datagram_bytes)
{
	if (datagram_bytes <= WIRE_DATA_BYTES)
		return 0;
	return (datagram_bytes - WIRE_DATA_BYTES) / TRANSPORT_PART_ALIGN * TRANSPORT_PART_ALIGN;
}

/* Are messages put together here before the owner sees them? */
static bool reliable_assembles(const struct reliable_config *config, const struct conn_spec *spec)
{
	return config->is_box ? !spec->parts : !spec->sinks;
}

static int reliable_conn_fill(struct reliable_conn *c, bool assembles)
{
	uint32_t n = c->slots, payload = c->spec->payload_max;
	uint64_t *maps;

	c->out = calloc(n, sizeof(*c->out));
	c->in = calloc(n, sizeof(*c->in));
	c->done = calloc(n, sizeof(*c->done));
	c->sent = calloc(RELIABLE_FLIGHT_MAX, sizeof(*c->sent));
	c->answers = calloc(c->spec->chunk_count, sizeof(*c->answers));
	if (!c->out || !c->in || !c->done || !c->sent || !c->answers)
		return -ENOMEM;
	/* One piece each, freed by what the first message has. */
	maps = calloc((size_t)n * 3 * c->map_words, sizeof(*maps));
	c->out[0].acked_map = maps;
	c->out[0].number = calloc((size_t)n * c->fragments_max, sizeof(*c->out[0].number));
	c->in[0].buffer = assembles ? aligned_alloc(64, (size_t)n * ((payload + 63) / 64 * 64)) : NULL;
	if (!maps || !c->out[0].number || (assembles && !c->in[0].buffer))
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		c->out[i].conn = c;
		c->out[i].acked_map = maps + (size_t)3 * i * c->map_words;
		c->out[i].lost_map = c->out[i].acked_map + c->map_words;
		c->in[i].map = c->out[i].lost_map + c->map_words;
		c->out[i].number = c->out[0].number + (size_t)i * c->fragments_max;
		if (assembles)
			c->in[i].buffer = c->in[0].buffer + (size_t)i * ((payload + 63) / 64 * 64);
	}
	return 0;
}

int reliable_conn_create(
	const struct reliable_config *config, const struct reliable_conn_config *conn, struct reliable_conn **out)
{
	const struct conn_spec *spec = conn->spec;
	struct reliable_conn *c;
	bool assembles;

	if (spec->payload_max == 0 || spec->payload_max > WIRE_PAYLOAD_MAX || spec->chunk_count == 0)
		return -EINVAL;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->conn = conn->conn;
	c->spec = spec;
	c->here = conn->here;
	c->there = conn->there;
	c->datagram_max = conn->datagram_max < WIRE_DATAGRAM_MAX ? conn->datagram_max : WIRE_DATAGRAM_MAX;
	c->fragments_max = (spec->payload_max + RELIABLE_FRAGMENT_MIN - 1) / RELIABLE_FRAGMENT_MIN;
	c->map_words = (c->fragments_max + 63) / 64;
	assembles = reliable_assembles(config, spec);
	c->slots = RELIABLE_MESSAGES_MAX;
	while (c->slots > 4 && (uint64_t)c->slots * spec->payload_max > RELIABLE_BUFFERS_BYTES)
		c->slots /= 2;
	c->seq_next = c->seq_base = c->seq_unsent = 1;
	c->in_base = c->fence = c->fence_to = 1;
	c->number_next = c->number_tail = 1;
	c->number_other = WIRE_NUMBER_OTHER + 1;
	c->reorder = RELIABLE_REORDER;
	c->slack_ns = RELIABLE_SLACK_NS;
	c->cwnd = RELIABLE_CWND_FIRST;
	c->slow_start = true;
	list_init(&c->ready);
	list_init(&c->delayed);
	list_init(&c->waiting);
	list_init(&c->report);
	list_init(&c->fenced);
	if (reliable_conn_fill(c, assembles) < 0) {
		reliable_conn_destroy(c);
		return -ENOMEM;
	}
	c->seal_here = conn->seal_here;
	c->seal_there = conn->seal_there;
	*out = c;
	return 0;
}

void reliable_conn_destroy(struct reliable_conn *c)
{
	if (!c)
		return;
	assert(!c->r);
	if (c->out) {
		free(c->out[0].acked_map);
		free(c->out[0].number);
	}
	if (c->in)
		free(c->in[0].buffer);
	free(c->out);
	free(c->in);
	free(c->done);
	free(c->sent);
	free(c->answers);
	seal_destroy(c->seal_here);
	seal_destroy(c->seal_there);
	free(c);
}

int reliable_add(struct reliable *r, struct reliable_conn *c)
{
	struct reliable_conn **at = &r->names[c->here % RELIABLE_NAMES];

	for (struct reliable_conn *other = *at; other; other = other->next_named)
		if (other->here == c->here)
			return -EEXIST;
	if (r->conn_count == r->config.conns_max)
		return -ENOSPC;
	c->r = r;
	c->next_named = *at;
	*at = c;
	r->conn_count++;
	c->grant = reliable_grant(r, c);
	return 0;
}

void reliable_remove(struct reliable *r, struct reliable_conn *c)
{
	struct reliable_conn **at = &r->names[c->here % RELIABLE_NAMES];

	assert(c->r == r && !reliable_is_read(c));
	while (*at != c)
		at = &(*at)->next_named;
	*at = c->next_named;
	r->conn_count--;
	list_remove(&c->ready);
	list_remove(&c->delayed);
	list_remove(&c->waiting);
	list_remove(&c->report);
	list_remove(&c->fenced);
	c->r = NULL;
}

bool reliable_is_read(const struct reliable_conn *c)
{
	for (uint32_t i = 0; i < c->slots; i++)
		if (c->out[i].holds > 0)
			return true;
	return false;
}

uint32_t reliable_fragment(const struct reliable_conn *c)
{
	return c->fragment;
}

uint32_t reliable_probed(const struct reliable_conn *c, bool decided)
{
	return decided ? c->decided : c->probed;
}

void reliable_probe_anew(struct reliable_conn *c)
{
	c->probed = 0;
}

uint64_t reliable_heard(const struct reliable_conn *c)
{
	return c->heard_ns;
}

uint64_t reliable_round_trip(const struct reliable_conn *c)
{
	return c->srtt_ns;
}

void reliable_end(struct reliable *r, struct reliable_conn *c, int error, bool broken)
{
	assert(c->r == r);
	if (c->closed)
		return;
	c->closed = true;
	c->closed_due = true;
	c->error = error;
	c->broken = broken;
	list_remove(&c->ready);
	list_remove(&c->delayed);
	list_remove(&c->waiting);
	reliable_tell(c);
}

/* ---- what may be on its way ---- */

uint32_t reliable_grant(const struct reliable *r, const struct reliable_conn *c)
{
	uint32_t active = r->active_count > r->active_last ? r->active_count : r->active_last;
	uint64_t share = r->config.room_bytes / (active ? active : 1);
	uint64_t least = 2u * (uint64_t)c->datagram_max;

	if (share < least)
		share = least;
	return share < UINT32_MAX ? (uint32_t)share : UINT32_MAX;
}

/* RFC 6298. */
void reliable_measure(struct reliable_conn *c, uint64_t round_trip_ns)
{
	uint64_t off = round_trip_ns > c->srtt_ns ? round_trip_ns - c->srtt_ns : c->srtt_ns - round_trip_ns;

	if (c->srtt_ns == 0) {
		c->srtt_ns = round_trip_ns ? round_trip_ns : 1;
		c->rttvar_ns = round_trip_ns / 2;
		return;
	}
	c->rttvar_ns = (3 * c->rttvar_ns + off) / 4;
	c->srtt_ns = (7 * c->srtt_ns + round_trip_ns) / 8;
	c->srtt_ns += c->srtt_ns == 0;
}

/* ---- time ---- */

void reliable_wake(struct reliable_conn *c)
{
	if (c->r && !c->closed && list_alone(&c->ready) && reliable_wants(c))
		list_append(&c->r->ready, &c->ready);
}

static void reliable_turn_active(struct reliable *r, uint64_t now_ns)
{
	if (now_ns - r->active_ns < RELIABLE_ACTIVE_NS)
		return;
	r->active_last = now_ns - r->active_ns < 2u * RELIABLE_ACTIVE_NS ? r->active_count : 0;
	r->active_count = 0;
	r->active_ns = now_ns;
	r->active_turn++;
}

static void reliable_tick_acks(struct reliable *r, uint64_t now_ns)
{
	while (!list_alone(&r->delayed)) {
		struct reliable_conn *c = LIST_OF(r->delayed.next, struct reliable_conn, delayed);

		if (c->ack_ns > now_ns)
			return; /* all wait for the same time: the first one is due first */
		list_remove(&c->delayed);
		c->ack_due = true;
		reliable_wake(c);
	}
}

static void reliable_tick_conn(struct reliable *r, struct reliable_conn *c, uint64_t now_ns)
{
	if (c->loss_ns && c->loss_ns <= now_ns)
		reliable_find_lost(c, now_ns);
	if (c->silence_ns && c->silence_ns <= now_ns)
		reliable_silent(c, now_ns);
	reliable_wake(c);
	if (c->loss_ns && c->loss_ns < r->due_ns)
		r->due_ns = c->loss_ns;
	if (c->silence_ns && c->silence_ns < r->due_ns)
		r->due_ns = c->silence_ns;
}

void reliable_lift_fences(struct reliable *r)
{
	while (!list_alone(&r->fenced)) {
		struct reliable_conn *c = LIST_OF(r->fenced.next, struct reliable_conn, fenced);

		list_remove(&c->fenced);
		c->fence_to = c->in_base;
		reliable_tell(c);
	}
}

void reliable_tick(struct reliable *r, uint64_t now_ns)
{
	struct list_link *next;

	r->now_ns = now_ns;
	reliable_lift_fences(r);
	reliable_turn_active(r, now_ns);
	reliable_tick_acks(r, now_ns);
	if (now_ns < r->due_ns)
		return;
	r->due_ns = UINT64_MAX;
	for (struct list_link *at = r->waiting.next; at != &r->waiting; at = next) {
		struct reliable_conn *c = LIST_OF(at, struct reliable_conn, waiting);

		next = at->next;
		if (c->in_flight == 0 && c->seq_base == c->seq_next)
			list_remove(&c->waiting);
		else
			reliable_tick_conn(r, c, now_ns);
	}
	if (r->due_ns < now_ns + RELIABLE_TICK_NS)
		r->due_ns = now_ns + RELIABLE_TICK_NS;
}

uint64_t reliable_due(const struct reliable *r)
{
	uint64_t due_ns = r->due_ns;

	if (!list_alone(&r->ready) || !list_alone(&r->reports) || !list_alone(&r->fenced))
		return 0;
	if (!list_alone(&r->delayed)) {
		const struct reliable_conn *c = LIST_OF(r->delayed.next, struct reliable_conn, delayed);

		due_ns = c->ack_ns < due_ns ? c->ack_ns : due_ns;
	}
	return due_ns;
}

/* ---- reports ---- */

void reliable_tell(struct reliable_conn *c)
{
	if (list_alone(&c->report))
		list_append(&c->r->reports, &c->report);
}

static void reliable_event(struct event *event, enum event_type type, const struct reliable_conn *c)
{
	memset(event, 0, sizeof(*event));
	event->type = type;
	event->conn = c->conn;
}

static bool reliable_report_sent(struct reliable_conn *c, struct event *event)
{
	struct reliable_message *m;

	if (c->done_count == 0)
		return false;
	m = &c->out[c->done[c->done_head]];
	c->done_head = (c->done_head + 1) & (c->slots - 1);
	c->done_count--;
	assert(m->state == RELIABLE_DONE);
	m->state = RELIABLE_FREE;
	reliable_event(event, EVENT_SENT, c);
	event->cookie = m->cookie;
	if (c->blocked)
		c->writable = true;
	return true;
}

static bool reliable_report_credit(struct reliable_conn *c, struct event *event)
{
	for (; c->fence != c->fence_to; c->fence++) {
		const struct reliable_open *o = &c->in[c->fence & (c->slots - 1)];

		if (o->header.type != WIRE_CREDIT || o->header.seq != c->fence)
			continue;
		reliable_event(event, EVENT_MESSAGE, c);
		event->header = o->header;
		event_whole(event);
		c->fence++;
		return true;
	}
	return false;
}

/* The next one of this connection. */
static bool reliable_report_next(struct reliable_conn *c, struct event *event)
{
	if (c->closed) {
		if (!c->closed_due)
			return false;
		c->closed_due = false;
		reliable_event(event, EVENT_CLOSED, c);
		event->error = c->error;
		event->broken = c->broken;
		return true;
	}
	if (reliable_report_sent(c, event) || reliable_report_credit(c, event))
		return true;
	if (!c->writable)
		return false;
	c->writable = false;
	c->blocked = false;
	reliable_event(event, EVENT_WRITABLE, c);
	return true;
}

unsigned reliable_report(struct reliable *r, struct event *events, unsigned max)
{
	unsigned count = 0;

	while (count < max && !list_alone(&r->reports)) {
		struct reliable_conn *c = LIST_OF(r->reports.next, struct reliable_conn, report);

		if (reliable_report_next(c, &events[count]))
			count++;
		else
			list_remove(&c->report);
	}
	return count;
}
