/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue of transports over datagrams: reliable.h says what to send and what came, a datagram_port moves it. A
 * worker first asks which datagrams come through (the trial), while what it sends waits. Owner of the queue.
 */
#include "transport/datagram.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/stats.h"
#include "transport/datagram_internal.h"
#include "transport/le.h"

enum {
	TRIAL_PAUSE_MS = 1, /* until the worker asks again; then twice that, ... */
	TRIAL_PAUSE_MAX_MS = 100,
	TRIAL_LISTEN_MS = 20,   /* for larger ones, when one came back; and four round trips */
	TRIAL_PAIRS_MS = 60,    /* for two at a time to come through; likewise */
	DATAGRAM_FULL_MS = 1,   /* a port without room is tried again */
	WATCH_QUIET_MS = 1000,  /* a worker that hears nothing asks whether anything comes through, */
	WATCH_PAUSE_MS = 250,   /* again and again; */
	WATCH_LARGE_MS = 5000,  /* when small datagrams come back, but none as large as was agreed, that is the end; */
	WATCH_SILENT_MS = 3000, /* so long at least when none do */
	/* UDP payload of packets of 9000, 1500 and 1280 bytes over IPv6. */
	TRIAL_JUMBO = 8952,
	TRIAL_USUAL = 1452,
	TRIAL_LEAST = 1232,
};

static struct datagram_conn *datagram_of(struct conn *conn)
{
	return (struct datagram_conn *)conn;
}

static uint64_t datagram_time(struct datagram_queue *q, uint64_t now_ns)
{
	if (now_ns > q->now_ns)
		q->now_ns = now_ns;
	return q->now_ns;
}

/* ---- sending ---- */

/* Room in the port for one more: 0, -EAGAIN, -EBUSY, or another error: it will be lost. */
static int datagram_room(struct datagram_queue *q, const struct datagram_conn *c, struct reliable_outgoing *out)
{
	int rc = q->port->ops->room(q->port, &c->peer, out);

	if (rc == -EAGAIN || rc == -EBUSY) {
		q->port->ops->flush(q->port);
		rc = q->port->ops->room(q->port, &c->peer, out);
	}
	return rc;
}

/* Bounded: by what may be on its way. */
static void datagram_push_out(struct datagram_queue *q, uint64_t now_ns)
{
	uint8_t nowhere[RELIABLE_HEAD_BYTES];
	struct reliable_outgoing out;
	struct conn *to, *passed = NULL; /* the first since one was sent that found no room */
	uint64_t count = 0;

	q->full = false;
	q->unanswered = 0;
	while ((to = reliable_turn(q->reliable)) && to != passed) {
		int rc = datagram_room(q, datagram_of(to), &out);

		q->full |= rc == -EAGAIN || rc == -EBUSY;
		if (rc == -EAGAIN)
			break;
		if (rc == -EBUSY) {
			passed = passed ? passed : to;
			reliable_pass(q->reliable);
			continue;
		}
		passed = NULL;
		if (rc < 0)
			out.head = nowhere; /* it counts as sent, and is lost */
		reliable_next(q->reliable, now_ns, &out);
		if (rc == 0)
			q->port->ops->send(q->port, q->reliable, &out);
		count++;
	}
	q->port->ops->flush(q->port);
	stats_add(&q->queue.counters.posts, count);
	stats_add(&q->queue.counters.doorbells, count > 0);
}

static void datagram_flush(struct queue *head)
{
	struct datagram_queue *q = (struct datagram_queue *)head;
	uint64_t now_ns = q->now_ns;

	/* A polling core asks after each poll: who has nothing to send needs no clock. */
	if (reliable_turn(q->reliable))
		now_ns = datagram_time(q, q->port->ops->now(q->port));
	datagram_push_out(q, now_ns);
}

static int datagram_send(
	struct queue *head, struct conn *conn, const struct wire_header *header, const void *payload, void *cookie)
{
	struct datagram_queue *q = (struct datagram_queue *)head;
	int rc = reliable_send(q->reliable, datagram_of(conn)->reliable, header, payload, cookie);

	if (rc == 0)
		stats_add(&q->queue.counters.messages, 1);
	return rc;
}

/* ---- the trial: what comes through? ---- */

void datagram_trial_begin(struct datagram_queue *q, struct datagram_conn *c)
{
	const uint32_t sizes[DATAGRAM_SIZES] = {c->datagram_max, TRIAL_JUMBO, TRIAL_USUAL, TRIAL_LEAST};
	struct datagram_trial *t = &c->trial;
	uint32_t last = UINT32_MAX;

	for (unsigned i = 0; i < DATAGRAM_SIZES; i++) {
		uint32_t fragment = reliable_fragment_for(sizes[i]);

		if (sizes[i] > c->datagram_max || fragment == 0 || fragment >= last)
			continue;
		t->sizes[t->count++] = sizes[i];
		last = fragment;
	}
	list_append(&q->trials, &t->link);
}

/* Asks for all sizes above the best, largest first; or tells what was decided. */
static void datagram_trial_ask(struct datagram_queue *q, struct datagram_conn *c, uint64_t now_ns)
{
	struct datagram_trial *t = &c->trial;
	uint32_t fragment;

	for (unsigned i = 0; i < t->count; i++) {
		if (t->told ? t->sizes[i] != t->best : t->sizes[i] <= t->best)
			continue;
		fragment = t->told ? reliable_fragment_for(t->best) : 0;
		reliable_probe(q->reliable, c->reliable, t->sizes[i], fragment, t->alone);
		if (t->told && !t->alone)
			reliable_probe(q->reliable, c->reliable, t->sizes[i], fragment, false);
		datagram_push_out(q, now_ns);
	}
	t->next_ns = now_ns + t->pause_ns;
	t->pause_ns *= 2;
	if (t->pause_ns > TRIAL_PAUSE_MAX_MS * NS_PER_MS)
		t->pause_ns = TRIAL_PAUSE_MAX_MS * NS_PER_MS;
}

/* Until then larger ones may come back. */
static uint64_t datagram_trial_decides(const struct datagram_conn *c)
{
	return c->trial.heard_ns + TRIAL_LISTEN_MS * NS_PER_MS + 4 * reliable_round_trip(c->reliable);
}

/* Has what came back changed anything? */
static void datagram_trial_hear(struct datagram_conn *c, uint64_t now_ns)
{
	struct datagram_trial *t = &c->trial;

	if (t->told) {
		t->alone = now_ns - t->told_ns > TRIAL_PAIRS_MS * NS_PER_MS + 4 * reliable_round_trip(c->reliable);
		return;
	}
	t->best = reliable_probed(c->reliable, false);
	if (t->best > 0 && t->heard_ns == 0) {
		t->heard_ns = now_ns;
		t->pause_ns = TRIAL_PAUSE_MS * NS_PER_MS;
		t->next_ns = now_ns + t->pause_ns;
	}
	if (t->best == 0 || (t->best < t->sizes[0] && now_ns < datagram_trial_decides(c)))
		return;
	t->told = true;
	t->told_ns = now_ns;
	t->pause_ns = TRIAL_PAUSE_MS * NS_PER_MS;
	t->next_ns = now_ns;
}

static void datagram_trial_go_on(struct datagram_queue *q, struct datagram_conn *c, uint64_t now_ns)
{
	struct datagram_trial *t = &c->trial;

	if (t->began_ns == 0) {
		t->began_ns = now_ns;
		t->next_ns = now_ns;
		t->pause_ns = TRIAL_PAUSE_MS * NS_PER_MS;
	}
	datagram_trial_hear(c, now_ns);
	if (t->told && reliable_probed(c->reliable, true) > 0) {
		list_remove(&t->link);
	} else if (now_ns - t->began_ns > c->transport->handshake_ns) {
		list_remove(&t->link);
		c->why = "UDP gets no answer: a firewall? (the box's data_ports)";
		reliable_end(q->reliable, c->reliable, -ETIMEDOUT, true);
	} else if (now_ns >= t->next_ns) {
		datagram_trial_ask(q, c, now_ns);
	}
}

static void datagram_trials(struct datagram_queue *q, uint64_t now_ns)
{
	struct list_link *next;

	for (struct list_link *at = q->trials.next; at != &q->trials; at = next) {
		next = at->next;
		datagram_trial_go_on(q, LIST_OF(at, struct datagram_conn, trial.link), now_ns);
	}
}

static uint64_t datagram_trials_due(const struct datagram_queue *q)
{
	uint64_t due = UINT64_MAX;

	for (struct list_link *at = q->trials.next; at != &q->trials; at = at->next) {
		const struct datagram_conn *c = LIST_OF(at, struct datagram_conn, trial.link);
		const struct datagram_trial *t = &c->trial;
		uint64_t decides = datagram_trial_decides(c);

		due = t->next_ns < due ? t->next_ns : due;
		if (t->heard_ns && !t->told && decides < due)
			due = decides;
	}
	return due;
}

/* ---- the watch: does it still? ---- */

/*
 * Has the box been asked for so long that nothing comes through any more? Time in which nobody looked (a stopped
 * process, a caller who does something else) says nothing of the box: between two looks as much as two pauses counts.
 */
static bool datagram_watch_silent(struct datagram_watch *w, const struct datagram_conn *c, uint64_t now_ns)
{
	const uint64_t most_ns = 2 * WATCH_PAUSE_MS * NS_PER_MS, silent_ns = c->spec->silent_ns;
	uint64_t heard_ns = reliable_heard(c->reliable), passed_ns = now_ns - w->looked_ns;

	w->looked_ns = now_ns;
	if (heard_ns != w->heard_ns) {
		w->heard_ns = heard_ns;
		w->quiet_ns = 0;
		return false;
	}
	w->quiet_ns += passed_ns < most_ns ? passed_ns : most_ns;
	return silent_ns > 0 && w->quiet_ns >= silent_ns && w->quiet_ns >= WATCH_SILENT_MS * NS_PER_MS;
}

static void datagram_watch_end(struct datagram_queue *q, struct datagram_conn *c, const char *why)
{
	c->why = why;
	reliable_end(q->reliable, c->reliable, -ETIMEDOUT, true);
}

static void datagram_watch(struct datagram_queue *q, struct datagram_conn *c, uint64_t now_ns)
{
	struct datagram_watch *w = &c->watch;
	uint64_t heard_ns = reliable_heard(c->reliable);

	if (!list_alone(&c->trial.link) || c->trial.best == 0)
		return;
	if (w->since_ns == 0) {
		if (now_ns < heard_ns + WATCH_QUIET_MS * NS_PER_MS)
			return;
		*w = (struct datagram_watch){
			.link = w->link,
			.since_ns = now_ns,
			.heard_ns = heard_ns,
			.looked_ns = now_ns,
			.quiet_ns = WATCH_QUIET_MS * NS_PER_MS,
		};
		reliable_probe_anew(c->reliable);
	}
	w->small |= reliable_probed(c->reliable, false) > 0;
	if (reliable_probed(c->reliable, false) >= c->trial.best) {
		w->since_ns = 0;
		return;
	}
	if (w->small && now_ns > w->since_ns + WATCH_LARGE_MS * NS_PER_MS) {
		datagram_watch_end(q, c, "large datagrams come through no more: a smaller MTU on the way?");
		return;
	}
	if (datagram_watch_silent(w, c, now_ns)) {
		datagram_watch_end(q, c, "UDP comes through no more: a firewall, or a route? (the box's data_ports)");
		return;
	}
	reliable_probe(q->reliable, c->reliable, c->trial.best, 0, true);
	reliable_probe(q->reliable, c->reliable, TRIAL_LEAST, 0, true);
	datagram_push_out(q, now_ns);
}

static void datagram_watch_all(struct datagram_queue *q, uint64_t now_ns)
{
	bool asking = false;

	if (list_alone(&q->watched) || now_ns < q->watch_ns)
		return;
	for (struct list_link *at = q->watched.next; at != &q->watched; at = at->next) {
		struct datagram_conn *c = LIST_OF(at, struct datagram_conn, watch.link);

		datagram_watch(q, c, now_ns);
		asking |= c->watch.since_ns != 0;
	}
	q->watch_ns = now_ns + (asking ? WATCH_PAUSE_MS : WATCH_QUIET_MS) * NS_PER_MS;
}

/* ---- where a worker is ---- */

/* All of an address, in bytes. */
static void datagram_place(const struct datagram_address *a, uint8_t place[PROOF_PLACE])
{
	memset(place, 0, PROOF_PLACE);
	memcpy(place, &a->ip, sizeof(a->ip));
	le_put32(place + 16, a->scope);
	le_put16(place + 20, a->port);
	memcpy(place + 22, a->mac, sizeof(a->mac));
	place[28] = a->link;
}

static bool datagram_same_place(const struct datagram_address *a, const struct datagram_address *b)
{
	uint8_t first[PROOF_PLACE], second[PROOF_PLACE];

	datagram_place(a, first);
	datagram_place(b, second);
	return memcmp(first, second, sizeof(first)) == 0;
}

/* Could a peer be there? */
static bool datagram_is_one(const struct datagram_address *a)
{
	bool group = IN6_IS_ADDR_V4MAPPED(&a->ip) ? a->ip.s6_addr[12] >= 224 : IN6_IS_ADDR_MULTICAST(&a->ip);

	return !group && !(a->mac[0] & 1);
}

/* The number that a PROBED takes there; 0: none can be made. */
static uint64_t datagram_way(struct datagram_conn *c, const struct datagram_address *to)
{
	uint8_t place[PROOF_PLACE];

	if (c->way && datagram_same_place(&c->way_to, to))
		return c->way;
	datagram_place(to, place);
	c->way_to = *to;
	if (proof_way(c->transport->ways_key, c->here, place, &c->way) < 0)
		c->way = 0;
	return c->way;
}

/* As much as came, once, to who may never have sent it. */
static void datagram_ask_back(struct datagram_queue *q, uint64_t now_ns, struct datagram_conn *c,
	const struct datagram_address *to, uint64_t way)
{
	struct reliable_outgoing out;

	if (q->port->ops->room(q->port, to, &out) < 0)
		return;
	reliable_ask_back(q->reliable, c->reliable, now_ns, way, &out);
	q->port->ops->send(q->port, q->reliable, &out);
	q->port->ops->flush(q->port);
}

/*
 * A probe came from there. Its peer may come by another card, or by another port of what translates addresses, and is
 * followed; but who has a key must not make the box send to somebody else, whose address is quickly written into a
 * datagram: only who receives there can bring back what was sent there.
 */
static void datagram_hear_probe(
	struct datagram_queue *q, uint64_t now_ns, struct datagram_conn *c, const struct datagram_address *from)
{
	uint64_t way = datagram_is_one(from) ? datagram_way(c, from) : 0;

	if (way == 0)
		return;
	if (!c->shown || !datagram_same_place(&c->peer, from)) {
		if (reliable_way(c->reliable) != way) {
			datagram_ask_back(q, now_ns, c, from, way);
			return;
		}
		c->peer = *from;
		c->shown = true;
	}
	reliable_greet(q->reliable, c->reliable, way);
}

/* ---- polling ---- */

static unsigned datagram_report(struct datagram_queue *q, struct event *events, unsigned max)
{
	unsigned n = max ? reliable_report(q->reliable, events, max) : 0;

	for (unsigned i = 0; i < n; i++) {
		struct datagram_conn *c = datagram_of(events[i].conn);

		if (events[i].type != EVENT_CLOSED)
			continue;
		list_remove(&c->trial.link);
		list_remove(&c->watch.link);
		if (c->why)
			events[i].why = c->why;
	}
	return n;
}

/* Looks at one datagram. Returns the number of events; what found no room is kept. */
static unsigned datagram_look(struct datagram_queue *q, uint64_t now_ns, struct event *events, unsigned max)
{
	const struct datagram_in *in = &q->in[q->at++];
	struct conn *conn = NULL;
	unsigned n;

	switch (reliable_input(q->reliable, now_ns, in->bytes, in->length, &q->event, &conn)) {
	case RELIABLE_MESSAGE:
		n = datagram_report(q, events, max);
		q->kept = n == max;
		if (!q->kept)
			events[n++] = q->event;
		return n;
	case RELIABLE_HELLO:
		datagram_hear_probe(q, now_ns, datagram_of(conn), &in->from);
		return 0;
	case RELIABLE_NOTHING:
		break;
	}
	return 0;
}

/*
 * Takes what came. No other batch once an event is lent what lies in one. A queue that is flooded with what is not for
 * it looks at so many, and comes again.
 */
static unsigned datagram_take(struct datagram_queue *q, uint64_t now_ns, bool lent, struct event *events, unsigned max)
{
	unsigned receives = DATAGRAM_RECEIVES;
	unsigned n = 0;

	while (n < max && !q->kept) {
		if (q->at < q->count) {
			n += datagram_look(q, now_ns, events + n, max - n);
			continue;
		}
		/* An answer tells of the last WIRE_ACK_WORDS * 64: what it says nothing of would be sent again. */
		if (q->unanswered >= DATAGRAM_BATCH)
			datagram_push_out(q, now_ns);
		if (lent || n > 0 || receives-- == 0)
			break;
		q->at = 0;
		q->count = q->port->ops->receive(q->port, q->in, DATAGRAM_BATCH);
		q->unanswered += q->count;
		q->queue.stirred |= q->port->stirred;
		if (q->count == 0)
			break;
	}
	return n;
}

static unsigned datagram_poll(struct queue *head, uint64_t now_ns, struct event *events, unsigned max)
{
	struct datagram_queue *q = (struct datagram_queue *)head;
	bool lent = false;
	unsigned n;

	now_ns = datagram_time(q, now_ns);
	q->port->now_ns = now_ns;
	q->queue.stirred = false;
	/* What there was when an event found no room, then that event, and only then what is new. */
	n = datagram_report(q, events, max);
	if (q->kept) {
		if (n == max)
			return n;
		events[n++] = q->event;
		q->kept = false;
		lent = true;
	}
	reliable_tick(q->reliable, now_ns);
	n += datagram_report(q, events + n, max - n);
	n += datagram_take(q, now_ns, lent, events + n, max - n);
	datagram_trials(q, now_ns);
	datagram_watch_all(q, now_ns);
	n += datagram_report(q, events + n, max - n);
	/* Answers go out also where nothing is sent, and nobody has a reason to flush. */
	if (n == 0 && reliable_turn(q->reliable))
		datagram_push_out(q, now_ns);
	return n;
}

static int datagram_arm(struct queue *head)
{
	struct datagram_queue *q = (struct datagram_queue *)head;
	uint64_t due = reliable_due(q->reliable), trials = datagram_trials_due(q);

	if (q->kept || q->at < q->count)
		return -EAGAIN;
	/* What it wants to send finds no room: the port wakes it, or a little time. */
	if (due == 0 && q->full)
		due = q->now_ns + DATAGRAM_FULL_MS * NS_PER_MS;
	if (trials < due)
		due = trials;
	if (!list_alone(&q->watched) && q->watch_ns < due)
		due = q->watch_ns;
	if (due == 0)
		return -EAGAIN;
	return q->port->ops->arm(q->port, due == UINT64_MAX ? 0 : due);
}

static void datagram_release(struct queue *head, void *slot)
{
	(void)head;
	(void)slot;
	assert(!"datagrams lend no slots");
}

/* ---- life ---- */

static int datagram_adopt(struct queue *head, struct conn *conn, const struct conn_spec *spec)
{
	struct datagram_queue *q = (struct datagram_queue *)head;
	struct datagram_conn *c = datagram_of(conn);
	int rc = reliable_add(q->reliable, c->reliable);

	if (rc < 0)
		return rc;
	assert(spec == c->spec);
	(void)spec;
	conn->queue = head;
	c->state = DATAGRAM_OPEN;
	if (c->gone)
		reliable_end(q->reliable, c->reliable, 0, false);
	else if (!c->is_box)
		datagram_trial_begin(q, c);
	if (!c->is_box)
		list_append(&q->watched, &c->watch.link);
	return 0;
}

/*
 * Tells the peer, once: where that is lost, the control session tells. One that has not shown where it is gets it where
 * its hello said: 40 bytes for more than that, or it would wait for a box that has forgotten it.
 */
static void datagram_say_farewell(struct datagram_queue *q, struct datagram_conn *c)
{
	struct reliable_outgoing out;

	if (datagram_room(q, c, &out) < 0)
		return;
	reliable_farewell(q->reliable, c->reliable, &out);
	q->port->ops->send(q->port, q->reliable, &out);
	q->port->ops->flush(q->port);
}

static void datagram_drop(struct queue *head, struct conn *conn)
{
	struct datagram_queue *q = (struct datagram_queue *)head;
	struct datagram_conn *c = datagram_of(conn);

	if (q->port->ops->reclaim)
		q->port->ops->reclaim(q->port, q->reliable, c->reliable);
	datagram_say_farewell(q, c);
	if (q->port->ops->reclaim)
		q->port->ops->reclaim(q->port, q->reliable, c->reliable);
	reliable_remove(q->reliable, c->reliable);
	if (q->kept && q->event.conn == conn)
		q->kept = false;
	conn->queue = NULL;
	datagram_conn_free(c);
}

const struct queue_ops datagram_queue_ops = {
	.adopt = datagram_adopt,
	.poll = datagram_poll,
	.send = datagram_send,
	.flush = datagram_flush,
	.release = datagram_release,
	.arm = datagram_arm,
	.drop = datagram_drop,
};
