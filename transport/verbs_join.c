/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The box's end of how connections come about: see verbs_signal.h. Control thread.
 */
#include "transport/verbs_signal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "transport/le.h"

static void verbs_stranger_end(struct verbs *v, struct verbs_conn *c, int error)
{
	v->stranger_count--;
	if (c->gone)
		v->transport.strangers_gone++;
	else
		v->transport.strangers_refused++;
	if (!c->gone)
		verbs_say_gone(v, c, error);
	verbs_conn_undo(c, NULL);
}

static void verbs_say_nonce(struct verbs *v, struct verbs_conn *c)
{
	struct rails_port ports[VERBS_DEVICES_MAX];
	struct signal *s = verbs_say(v, c, VERBS_NONCE);

	if (!s)
		return;
	signal_write_handshake(s, &c->handshake);
	verbs_ports_from(v, c->core < v->queue_count ? v->queue_node[c->core] : MEM_NODE_ANY, ports);
	*signal_write(s, 1) = (uint8_t)v->device_count;
	for (unsigned i = 0; i < v->device_count; i++) {
		const struct verbs_device *d = &v->devices[i];
		uint8_t *at = signal_write(s, VERBS_PORT_BYTES);

		memcpy(at, d->gid.raw, VERBS_GID_BYTES);
		le_put32(at + 16, (uint32_t)d->about.rate_mbps);
		le_put16(at + 20, d->lid);
		at[22] = (uint8_t)d->mtu;
		at[23] = ports[i].distance;
	}
}

/*
 * Who has to make room for this dial: the session's own for the same core or, where it has too many, its oldest. So
 * nobody takes the room of others.
 */
static struct verbs_conn *verbs_find_rival(const struct verbs *v, const struct signal *dial)
{
	struct verbs_conn *oldest = NULL;
	unsigned count = 0;

	for (struct list_link *at = v->strangers.next; at != &v->strangers; at = at->next) {
		struct verbs_conn *c = LIST_OF(at, struct verbs_conn, list);

		if (c->session != dial->session)
			continue;
		if (c->core == dial->core)
			return c;
		oldest = oldest ? oldest : c;
		count++;
	}
	return count < VERBS_DIALS_MAX ? NULL : oldest;
}

/* Somebody dials. */
static void verbs_hear_dial(struct verbs *v, const struct signal *in, struct signal_reader *reader)
{
	size_t bytes = reader->left;
	const char *name = (const char *)signal_read(reader, bytes);
	uint8_t nonce[PROOF_NONCE];
	struct verbs_conn *c;

	c = verbs_find_rival(v, in);
	if (c)
		verbs_stranger_end(v, c, -ECONNRESET);
	c = v->stranger_count < VERBS_STRANGERS_MAX ? verbs_conn_create(v, true) : NULL;
	if (!c) {
		v->transport.strangers_refused++;
		return;
	}
	c->session = in->session;
	c->core = in->core;
	c->number = in->number;
	snprintf(c->conn.peer, sizeof(c->conn.peer), "session %llu", (unsigned long long)in->session);
	v->stranger_count++;
	list_append(&v->strangers, &c->list);
	if (bytes != strlen(v->address) || memcmp(name, v->address, bytes) != 0 || proof_nonce(nonce) < 0) {
		verbs_stranger_end(v, c, -ECONNREFUSED);
		return;
	}
	handshake_begin_box(&c->handshake, nonce);
	verbs_say_nonce(v, c);
}

static int verbs_take_hello(struct verbs_conn *c, struct signal_reader *in)
{
	int rc = handshake_input(&c->handshake, signal_read(in, HANDSHAKE_HELLO_BYTES), HANDSHAKE_HELLO_BYTES);

	if (rc == 0 && (c->handshake.session != c->session || c->handshake.core != c->core))
		rc = -EPROTO;
	if (rc == 0)
		rc = verbs_hear_rails(in, c);
	for (uint32_t i = 0; rc == 0 && i < c->rail_count; i++)
		rc = c->rails[i].peer_port < c->verbs->device_count ? 0 : -EPROTO;
	return rc;
}

static void verbs_hear_hello(struct verbs *v, struct verbs_conn *c, struct signal_reader *in)
{
	int rc;

	if (c->path)
		return; /* it has said that */
	rc = verbs_take_hello(c, in);
	for (uint32_t i = 0; rc == 0 && i < c->rail_count; i++) {
		c->rails[i].conn = c;
		c->rails[i].device = &v->devices[c->rails[i].peer_port];
	}
	if (rc == 0) {
		verbs_name_peer(c, 0);
		rc = verbs_path_begin(c);
	}
	if (rc < 0)
		verbs_stranger_end(v, c, rc);
}

/* The ways to a stranger's ports were looked for. Where one is missing, the worker is told which, and dials without. */
static void verbs_found_ways(struct verbs *v, struct verbs_conn *c)
{
	static struct log_limit limit;
	int errors[VERBS_RAILS_MAX];
	char more[LOG_QUIET_BYTES];
	uint64_t quiet;

	if (verbs_path_take(c, errors) == -EAGAIN)
		return;
	for (uint32_t i = 0; i < c->rail_count; i++) {
		if (errors[i] == 0)
			continue;
		c->dead_rails |= (uint8_t)(1u << i);
		verbs_name_peer(c, i);
	}
	if (c->dead_rails == 0) {
		list_remove(&c->list);
		list_append(&v->complete, &c->list);
		return;
	}
	if (log_limit_pass(&limit, clock_now_ns(), 1000000000ull, &quiet))
		log_warn("verbs: %s of session %llu does not answer%s", c->conn.peer, (unsigned long long)c->session,
			log_quiet(quiet, more));
	verbs_stranger_end(v, c, -EHOSTUNREACH);
}

static struct verbs_conn *verbs_find_in(const struct list_link *list, const struct signal *s)
{
	for (struct list_link *at = list->next; at != list; at = at->next) {
		struct verbs_conn *c = LIST_OF(at, struct verbs_conn, list);

		if (c->session == s->session && c->core == s->core && c->number == s->number)
			return c;
	}
	return NULL;
}

static void verbs_hear_gone(struct verbs *v, const struct signal *s)
{
	struct verbs_conn *c = verbs_find_in(&v->strangers, s);

	if (!c)
		c = verbs_find_in(&v->complete, s);
	if (c) {
		c->gone = true;
		verbs_stranger_end(v, c, 0);
		return;
	}
	c = verbs_find_in(&v->asked, s);
	if (c)
		c->gone = true;
}

/* ---- signals that come ---- */

/* The worker looks at what it is told when it is asked for its connection; the box at once. */
void verbs_signal_give(struct transport *head, const struct signal *in)
{
	struct verbs *v = (struct verbs *)head;
	struct signal_reader reader = signal_reader(in);
	struct verbs_conn *c = verbs_find_in(&v->dialled, in);
	uint8_t type = *signal_read(&reader, 1);

	if (c) { /* by the session that it is of, and no other */
		if (!c->spec || c->spec->carrier == in->carrier)
			(void)signal_list_add(&c->heard, in);
		return;
	}
	if (reader.broken || !v->address[0])
		return;
	if (type == VERBS_GONE)
		verbs_hear_gone(v, in);
	else if (type == VERBS_DIAL)
		verbs_hear_dial(v, in, &reader);
	else if (type == VERBS_HELLO && (c = verbs_find_in(&v->strangers, in)))
		verbs_hear_hello(v, c, &reader);
}

int verbs_accept(struct transport *head, uint64_t now_ns, struct hello *out)
{
	struct verbs *v = (struct verbs *)head;
	struct list_link *next;
	struct verbs_conn *c;

	verbs_pools_reap(v);
	verbs_regions_reap(v);
	for (unsigned i = 0; i < v->device_count; i++)
		verbs_device_listen(&v->devices[i]);
	for (struct list_link *at = v->strangers.next; at != &v->strangers; at = next) {
		next = at->next;
		c = LIST_OF(at, struct verbs_conn, list);
		if (c->deadline_ns == 0)
			c->deadline_ns = now_ns + v->handshake_ns;
		else if (c->deadline_ns <= now_ns) {
			verbs_stranger_end(v, c, -ETIMEDOUT);
			continue;
		}
		if (c->path)
			verbs_found_ways(v, c);
	}
	if (list_alone(&v->complete))
		return -EAGAIN;
	c = LIST_OF(v->complete.next, struct verbs_conn, list);
	list_remove(&c->list);
	list_append(&v->asked, &c->list);
	v->stranger_count--;
	out->conn = &c->conn;
	out->session = c->session;
	out->core = c->core;
	memcpy(out->nonce, c->handshake.nonce, sizeof(out->nonce));
	memcpy(out->mac, c->handshake.mac, sizeof(out->mac));
	return 0;
}

/* Answers the handshake; with rails when it is a welcome. */
static void verbs_say_welcome(struct verbs *v, struct verbs_conn *c, int code)
{
	struct signal *s = verbs_say(v, c, VERBS_WELCOME);

	handshake_answer(&c->handshake, code);
	if (!s)
		return;
	signal_write_handshake(s, &c->handshake);
	if (code == 0)
		verbs_say_rails(s, c);
}

void verbs_reject(struct transport *head, struct conn *conn, int code)
{
	struct verbs_conn *c = (struct verbs_conn *)conn;

	head->strangers_refused++;
	verbs_say_welcome(c->verbs, c, code ? code : ECONNREFUSED);
	verbs_conn_undo(c, NULL);
}

static int verbs_admit_rails(struct verbs_conn *c, struct err *e)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < c->rail_count; i++) {
		struct verbs_rail *r = &c->rails[i];
		uint64_t rate = c->verbs->devices[r->peer_port].about.rate_mbps;

		rc = verbs_pool_cover(c, r, r->peer_port, e);
		if (rc == 0)
			rc = verbs_region_cover(c->verbs, c->result, r->peer_port, e);
		if (rc == 0)
			rc = verbs_rail_create(c, r, r->peer_port, e);
		if (rc == 0)
			rc = verbs_rail_connect(r, e);
		/* What both can do: the worker will come to the same number. */
		if (rate < r->rate_mbps)
			r->rate_mbps = (uint32_t)rate;
	}
	return rc;
}

int verbs_admit(struct transport *head, struct conn *conn, const struct conn_spec *spec, struct err *e)
{
	struct verbs *v = (struct verbs *)head;
	struct verbs_conn *c = (struct verbs_conn *)conn;
	int rc = 0;

	if (c->gone) {
		err_set(e, -ECONNRESET, "verbs: %s went away before it was welcomed", conn->peer);
		verbs_conn_undo(c, NULL);
		return -ECONNRESET;
	}
	c->spec = spec;
	if (spec->payload_max == 0 || spec->payload_max > WIRE_PAYLOAD_MAX || !spec->queue || !spec->result)
		rc = err_set(e, -EINVAL, "verbs: no connection can be made from what it was given");
	if (rc == 0) {
		c->pool = verbs_pool_get(v, spec, e);
		rc = c->pool ? 0 : e->code;
	}
	if (rc == 0) {
		c->result = verbs_region_get(v, spec->result->base, spec->result->bytes, 0, e);
		rc = c->result ? 0 : e->code;
	}
	if (rc == 0 && v->fixed)
		rc = verbs_fixed_take(c, e);
	if (rc == 0)
		rc = verbs_admit_rails(c, e);
	if (rc == 0)
		rc = verbs_conn_prepare(c, e);
	if (rc < 0) {
		verbs_reject(head, conn, rc == -ENOMEM || rc == -ENOSPC ? ENOSPC : ECONNREFUSED);
		return rc;
	}
	list_remove(&c->list);
	c->state = VERBS_ADMITTED;
	verbs_say_welcome(v, c, 0);
	return 0;
}

/* ---- the end of what was not adopted ---- */

/* What came by its pairs may lie with the core already: that frees it, and then the connection. */
static void verbs_send_to_grave(struct verbs_conn *c, struct verbs_queue *q)
{
	list_remove(&c->list);
	verbs_path_forsake(c);
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++)
		verbs_rail_destroy(&c->rails[i], NULL);
	/* No pair reaches it any more, and what is mapped there next must not be taken for it. */
	if (c->result)
		verbs_region_put(c->verbs, c->result);
	c->result = NULL;
	while (c->memory_count > 0)
		verbs_region_put(c->verbs, c->memory[--c->memory_count]);
	c->next_grave = atomic_load_explicit(&q->graves, memory_order_relaxed);
	while (!atomic_compare_exchange_weak_explicit(
		&q->graves, &c->next_grave, c, memory_order_release, memory_order_relaxed))
		;
}

static void verbs_abandon_dialled(struct verbs *v, struct verbs_conn *c, struct verbs_queue *q)
{
	if ((c->state == VERBS_DIALLED || c->state == VERBS_SHAKING) && c->spec)
		verbs_say_gone(v, c, ECONNRESET);
	else if (c->state == VERBS_ADMITTED)
		verbs_bell_ring(c, 0);
	if (v->apart && q)
		verbs_send_to_grave(c, q);
	else
		verbs_conn_undo(c, q);
}

void verbs_abandon(struct transport *head, struct conn *conn)
{
	struct verbs *v = (struct verbs *)head;
	struct verbs_conn *c = (struct verbs_conn *)conn;
	struct verbs_queue *q = c->spec ? (struct verbs_queue *)c->spec->queue : NULL;

	assert(!conn->queue);
	if (!c->is_box) {
		verbs_abandon_dialled(v, c, q);
		return;
	}
	if (c->state != VERBS_ADMITTED) {
		verbs_say_gone(v, c, ESHUTDOWN);
		verbs_conn_undo(c, NULL);
		return;
	}
	verbs_bell_ring(c, 0);
	verbs_send_to_grave(c, q);
}

void verbs_join_fini(struct verbs *v)
{
	while (!list_alone(&v->strangers))
		verbs_stranger_end(v, LIST_OF(v->strangers.next, struct verbs_conn, list), -ESHUTDOWN);
	while (!list_alone(&v->complete))
		verbs_stranger_end(v, LIST_OF(v->complete.next, struct verbs_conn, list), -ESHUTDOWN);
	signal_list_clear(&v->said);
}
