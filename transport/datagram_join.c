/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How connections over datagrams come about: what both ends need, and the box's end. See datagram_internal.h. Control
 * thread.
 */
#include "transport/datagram_internal.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/le.h"

/* ---- signals ---- */

struct signal *datagram_say(const struct datagram_conn *c, enum datagram_signal type)
{
	struct signal begun = {
		.session = c->session, .core = c->core, .number = c->number, .carrier = c->spec ? c->spec->carrier : 0};

	*signal_write(&begun, 1) = (uint8_t)type;
	return signal_list_add(&c->transport->said, &begun);
}

void datagram_say_gone(const struct datagram_conn *c, int error)
{
	struct signal *s = datagram_say(c, DATAGRAM_GONE);

	if (s)
		le_put32(signal_write(s, 4), handshake_code_from_errno(error));
}

void datagram_say_place(
	struct signal *s, const struct datagram_conn *c, const struct datagram_address *own, uint32_t datagram_max)
{
	uint8_t *at = signal_write(s, DATAGRAM_PLACE_BYTES);

	le_put32(at, c->here);
	le_put16(at + 4, own->port);
	le_put16(at + 6, ((const struct datagram_queue *)c->spec->queue)->port->unchecked);
	le_put32(at + 8, datagram_max);
	le_put32(at + 12, own->scope);
	memcpy(at + 16, &own->ip, sizeof(own->ip));
}

int datagram_hear_place(struct signal_reader *in, struct datagram_conn *c)
{
	const uint8_t *at = signal_read(in, DATAGRAM_PLACE_BYTES);
	uint32_t datagram_max = le_get32(at + 8);
	struct in6_addr ip;

	memcpy(&ip, at + 16, sizeof(ip));
	if (!signal_read_all(in) || le_get16(at + 4) == 0 || le_get16(at + 6) > 1)
		return -EPROTO;
	c->unchecked = le_get16(at + 6);
	if (datagram_max < c->datagram_max)
		c->datagram_max = datagram_max;
	c->there = le_get32(at);
	c->peer.port = le_get16(at + 4);
	if (IN6_IS_ADDR_UNSPECIFIED(&ip))
		return 0;
	/* A number of an interface means nothing on another host; to this very one the kernel finds the way. */
	if (memcmp(&ip, &c->peer.ip, sizeof(ip)) != 0)
		c->peer.scope = 0;
	c->peer.ip = ip;
	return 0;
}

int datagram_signal_take(struct transport *head, struct signal *out)
{
	return signal_list_take(&((struct datagram *)head)->said, out);
}

struct datagram_conn *datagram_find(const struct list_link *list, const struct signal *s)
{
	for (struct list_link *at = list->next; at != list; at = at->next) {
		struct datagram_conn *c = LIST_OF(at, struct datagram_conn, link);

		if (c->session == s->session && c->core == s->core && c->number == s->number)
			return c;
	}
	return NULL;
}

/* ---- connections before adoption ---- */

/*
 * The next name: a counter through a bijection of 32 bits (four Feistel rounds with a random key), so that none comes
 * twice in 2^32 and none tells of another. It keeps nobody out: seals do.
 */
static uint32_t datagram_name_next(struct datagram *t)
{
	uint32_t n = ++t->names, left = n >> 16, right = n & 0xffff;

	for (unsigned i = 0; i < 4; i++) {
		uint32_t mixed = (right ^ le_get16(t->names_key + 4 * i)) * 0x9e3779b1u;
		uint32_t next = left ^ (((mixed ^ le_get16(t->names_key + 4 * i + 2)) * 0x85ebca6bu) >> 16);

		left = right;
		right = next;
	}
	return left << 16 | right;
}

struct datagram_conn *datagram_conn_create(struct datagram *t, bool is_box)
{
	struct datagram_conn *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->conn.transport = &t->transport;
	c->transport = t;
	c->is_box = is_box;
	c->state = is_box ? DATAGRAM_SHAKING : DATAGRAM_DIALLED;
	c->here = datagram_name_next(t);
	c->datagram_max = WIRE_DATAGRAM_MAX;
	list_init(&c->link);
	list_init(&c->trial.link);
	list_init(&c->watch.link);
	return c;
}

void datagram_conn_free(struct datagram_conn *c)
{
	list_remove(&c->link);
	list_remove(&c->trial.link);
	list_remove(&c->watch.link);
	signal_list_clear(&c->heard);
	reliable_conn_destroy(c->reliable);
	if (c->reads)
		c->transport->class->memory_end(c->transport->owner, c->spec->result->base);
	explicit_bzero(c, sizeof(*c));
	free(c);
}

int datagram_conn_prepare(struct datagram_conn *c, const uint8_t *key, unsigned kind, struct err *e)
{
	const struct datagram_queue *q = (const struct datagram_queue *)c->spec->queue;
	const char *name = c->conn.transport->ops->name;
	struct reliable_conn_config config = {
		.conn = &c->conn,
		.here = c->here,
		.there = c->there,
		.spec = c->spec,
		.datagram_max = c->datagram_max,
	};
	struct proof_datagram of = {
		.core = c->core,
		.dial = c->number,
		.box = c->is_box ? c->here : c->there,
		.worker = c->is_box ? c->there : c->here,
	};
	int rc;

	if (reliable_fragment_for(c->datagram_max) < RELIABLE_FRAGMENT_MIN)
		return err_set(e, -EMSGSIZE, "%s: datagrams of at most %u bytes on the way to %s are too small", name,
			c->datagram_max, c->conn.peer);
	if (kind < SEAL_GMAC || kind > SEAL_NONE || !key)
		return err_set(e, -EINVAL, "%s: no seal %u for %s", name, kind, c->conn.peer);
	memcpy(of.nonce, c->handshake.nonce, sizeof(of.nonce));
	rc = seal_create((enum seal_kind)kind, key, &of, !c->is_box, &config.seal_here, e);
	if (rc == 0)
		rc = seal_create((enum seal_kind)kind, key, &of, c->is_box, &config.seal_there, e);
	if (rc == 0) {
		rc = reliable_conn_create(&q->config, &config, &c->reliable);
		if (rc < 0)
			err_set(e, rc, "%s: no room for a connection to %s: %s", name, c->conn.peer, strerror(-rc));
	}
	if (rc < 0) {
		seal_destroy(config.seal_here);
		seal_destroy(config.seal_there);
	}
	return rc;
}

/* ---- the box's end ---- */

static void datagram_stranger_end(struct datagram_conn *c, int error)
{
	struct datagram *t = c->transport;

	t->stranger_count--;
	if (c->gone) {
		t->transport.strangers_gone++;
	} else {
		t->transport.strangers_refused++;
		datagram_say_gone(c, -error);
	}
	datagram_conn_free(c);
}

void datagram_strangers_end(struct datagram *t)
{
	while (!list_alone(&t->strangers))
		datagram_stranger_end(LIST_OF(t->strangers.next, struct datagram_conn, link), -ESHUTDOWN);
	while (!list_alone(&t->complete))
		datagram_stranger_end(LIST_OF(t->complete.next, struct datagram_conn, link), -ESHUTDOWN);
}

/*
 * Who has to make room for this dial: the session's own for the same core or, where it has too many, its oldest. So
 * nobody takes the room of others.
 */
static struct datagram_conn *datagram_find_rival(const struct datagram *t, const struct signal *dial)
{
	struct datagram_conn *oldest = NULL;
	unsigned count = 0;

	for (struct list_link *at = t->strangers.next; at != &t->strangers; at = at->next) {
		struct datagram_conn *c = LIST_OF(at, struct datagram_conn, link);

		if (c->session != dial->session)
			continue;
		if (c->core == dial->core)
			return c;
		oldest = oldest ? oldest : c;
		count++;
	}
	return count < DATAGRAM_DIALS_MAX ? NULL : oldest;
}

/* A dial that takes no room here. */
static void datagram_refuse_dial(struct datagram *t, const struct signal *in, int error)
{
	const struct datagram_conn nobody = {
		.transport = t, .session = in->session, .core = in->core, .number = in->number};

	t->transport.strangers_refused++;
	datagram_say_gone(&nobody, error);
}

static void datagram_hear_dial(struct datagram *t, const struct signal *in, struct signal_reader *reader)
{
	uint16_t port = le_get16(signal_read(reader, 2));
	uint8_t nonce[PROOF_NONCE];
	struct datagram_conn *c;
	struct signal *s;

	if (in->core >= t->queue_count) {
		datagram_refuse_dial(t, in, ERANGE);
		return;
	}
	c = datagram_find_rival(t, in);
	if (c)
		datagram_stranger_end(c, -ECONNRESET);
	c = t->stranger_count < DATAGRAM_STRANGERS_MAX ? datagram_conn_create(t, true) : NULL;
	if (!c) {
		datagram_refuse_dial(t, in, ENOSPC);
		return;
	}
	c->session = in->session;
	c->core = in->core;
	c->number = in->number;
	snprintf(c->conn.peer, sizeof(c->conn.peer), "session %llu", (unsigned long long)in->session);
	t->stranger_count++;
	list_append(&t->strangers, &c->link);
	if (!signal_read_all(reader) || port != t->port || proof_nonce(nonce) < 0) {
		datagram_stranger_end(c, -ECONNREFUSED);
		return;
	}
	handshake_begin_box(&c->handshake, nonce);
	s = datagram_say(c, DATAGRAM_NONCE);
	if (s)
		signal_write_handshake(s, &c->handshake);
}

/* "10.0.0.5:40312", for messages. */
static void datagram_name_peer(struct datagram_conn *c)
{
	char host[INET6_ADDRSTRLEN] = "?";
	bool mapped = IN6_IS_ADDR_V4MAPPED(&c->peer.ip);

	inet_ntop(mapped ? AF_INET : AF_INET6, c->peer.ip.s6_addr + (mapped ? 12 : 0), host, sizeof(host));
	snprintf(c->conn.peer, sizeof(c->conn.peer), mapped ? "%s:%u" : "[%s]:%u", host, c->peer.port);
}

static void datagram_hear_hello(struct datagram_conn *c, struct signal_reader *in)
{
	struct datagram *t = c->transport;
	struct datagram_address own = {0};
	uint32_t datagram_max;
	int rc = handshake_input(&c->handshake, signal_read(in, HANDSHAKE_HELLO_BYTES), HANDSHAKE_HELLO_BYTES);

	if (rc == 0 && (c->handshake.session != c->session || c->handshake.core != c->core))
		rc = -EPROTO;
	if (rc == 0)
		rc = datagram_hear_place(in, c);
	if (rc < 0) {
		datagram_stranger_end(c, rc);
		return;
	}
	/* Where no route is known, its probes may tell of another address. */
	if (t->class->route && t->class->route(t->owner, &c->peer, &own, &datagram_max) == 0) {
		c->own = own;
		if (datagram_max < c->datagram_max)
			c->datagram_max = datagram_max;
	}
	datagram_name_peer(c);
	list_remove(&c->link);
	list_append(&t->complete, &c->link);
}

static void datagram_hear_gone(struct datagram *t, const struct signal *s)
{
	struct datagram_conn *c = datagram_find(&t->strangers, s);

	if (!c)
		c = datagram_find(&t->complete, s);
	if (c) {
		c->gone = true;
		datagram_stranger_end(c, 0);
		return;
	}
	c = datagram_find(&t->asked, s);
	if (c)
		c->gone = true;
}

void datagram_signal_give(struct transport *head, const struct signal *in)
{
	struct datagram *t = (struct datagram *)head;
	struct signal_reader reader = signal_reader(in);
	struct datagram_conn *c = datagram_find(&t->dialled, in);
	uint8_t type = *signal_read(&reader, 1);

	if (c) { /* by the session that it is of, and no other */
		if (!c->spec || c->spec->carrier == in->carrier)
			datagram_hear_dialled(c, in);
		return;
	}
	if (reader.broken || !t->listens)
		return;
	if (type == DATAGRAM_GONE)
		datagram_hear_gone(t, in);
	else if (type == DATAGRAM_DIAL)
		datagram_hear_dial(t, in, &reader);
	else if (type == DATAGRAM_HELLO && (c = datagram_find(&t->strangers, in)))
		datagram_hear_hello(c, &reader);
}

int datagram_accept(struct transport *head, uint64_t now_ns, struct hello *out)
{
	struct datagram *t = (struct datagram *)head;
	struct list_link *next;
	struct datagram_conn *c;

	for (struct list_link *at = t->strangers.next; at != &t->strangers; at = next) {
		next = at->next;
		c = LIST_OF(at, struct datagram_conn, link);
		if (c->deadline_ns == 0)
			c->deadline_ns = now_ns + t->handshake_ns;
		else if (c->deadline_ns <= now_ns)
			datagram_stranger_end(c, -ETIMEDOUT);
	}
	if (list_alone(&t->complete))
		return -EAGAIN;
	c = LIST_OF(t->complete.next, struct datagram_conn, link);
	list_remove(&c->link);
	list_append(&t->asked, &c->link);
	t->stranger_count--;
	out->conn = &c->conn;
	out->session = c->session;
	out->core = c->core;
	memcpy(out->nonce, c->handshake.nonce, sizeof(out->nonce));
	memcpy(out->mac, c->handshake.mac, sizeof(out->mac));
	return 0;
}

/* Answers the handshake. Its signal, or NULL. */
static struct signal *datagram_say_welcome(struct datagram_conn *c, int code)
{
	struct signal *s = datagram_say(c, DATAGRAM_WELCOME);

	handshake_answer(&c->handshake, code);
	if (s)
		signal_write_handshake(s, &c->handshake);
	return s;
}

void datagram_reject(struct transport *head, struct conn *conn, int code)
{
	struct datagram_conn *c = (struct datagram_conn *)conn;

	head->strangers_refused++;
	(void)datagram_say_welcome(c, code ? code : ECONNREFUSED);
	datagram_conn_free(c);
}

int datagram_admit(struct transport *head, struct conn *conn, const struct conn_spec *spec, struct err *e)
{
	const struct datagram_port *port = ((const struct datagram_queue *)spec->queue)->port;
	struct datagram_conn *c = (struct datagram_conn *)conn;
	const struct datagram *t = c->transport;
	unsigned kind = spec->seal ? spec->seal : SEAL_GMAC;
	struct datagram_address own;
	struct signal *s;
	int rc;

	if (c->gone) {
		err_set(e, -ECONNRESET, "%s: %s went away before it was welcomed", head->ops->name, conn->peer);
		datagram_conn_free(c);
		return -ECONNRESET;
	}
	c->spec = spec;
	if (port->datagram_max < c->datagram_max)
		c->datagram_max = port->datagram_max;
	if (kind == SEAL_NONE && (port->unchecked || c->unchecked))
		kind = SEAL_CRC;
	rc = datagram_conn_prepare(c, spec->key, kind, e);
	if (rc < 0) {
		datagram_reject(head, conn, rc == -ENOMEM || rc == -ENOSPC ? ENOSPC : ECONNREFUSED);
		return rc;
	}
	if (t->class->memory_use && spec->result)
		c->reads = t->class->memory_use(t->owner, spec->result->base, spec->result->bytes, spec->result->huge);
	list_remove(&c->link);
	c->state = DATAGRAM_ADMITTED;
	/* Of several addresses, that of the worker's network; one that is any is where the worker dialled. */
	own = t->class->name && !IN6_IS_ADDR_UNSPECIFIED(&c->own.ip) ? c->own : port->address;
	own.port = port->address.port;
	s = datagram_say_welcome(c, 0);
	if (s) {
		*signal_write(s, 1) = (uint8_t)kind;
		datagram_say_place(s, c, &own, c->datagram_max);
	}
	return 0;
}

/* ---- the end of what was not adopted ---- */

/* The worker of a box's that was welcomed hears it too: it has no other way. */
void datagram_abandon(struct transport *head, struct conn *conn)
{
	struct datagram_conn *c = (struct datagram_conn *)conn;

	(void)head;
	assert(!conn->queue);
	if (c->is_box ? !c->gone : (c->state != DATAGRAM_CLOSED && c->spec))
		datagram_say_gone(c, c->is_box ? ESHUTDOWN : ECONNRESET);
	datagram_conn_free(c);
}
