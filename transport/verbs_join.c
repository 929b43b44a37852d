/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How connections come about: four signals that the control session carries. Control thread.
 *
 *      worker                                        box
 *      dial     type 1, name of the box's transport
 *                                                    nonce    type 2, handshake 24, ports 1, ports * 24
 *      hello    type 3, handshake 56, token 8,
 *               zero 8, rails 1, rails * 40
 *                                                    welcome  type 4, handshake 16, and when it is one:
 *                                                             token 8, address of fixed buffers 8 or
 *                                                             zero, rails 1, rails * 40
 *      gone     type 5, code 4, rails that lead nowhere (a bit for each) 1: from either end, at any time
 *
 *      port     GID 16, rate in Mbit/s 4, LID 2, MTU 1, distance from the core 1 (10: near, 0: down; see rails.h)
 *      rail     GID 16, rate 4, LID 2, MTU 1, box's port 1, queue pair 4, PSN 4, bell 4, rkey of fixed buffers 4 or
 * zero
 */
#include "transport/verbs_internal.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "transport/le.h"

enum verbs_signal { VERBS_DIAL = 1, VERBS_NONCE = 2, VERBS_HELLO = 3, VERBS_WELCOME = 4, VERBS_GONE = 5 };

enum {
	VERBS_PORT_BYTES = 24,
	VERBS_RAIL_BYTES = 40,
	VERBS_GID_BYTES = RAILS_GID_BYTES,
};

_Static_assert(1 + HANDSHAKE_NONCE_BYTES + 1 + VERBS_DEVICES_MAX * VERBS_PORT_BYTES <= SIGNAL_BYTES_MAX &&
		       1 + HANDSHAKE_HELLO_BYTES + 17 + VERBS_RAILS_MAX * VERBS_RAIL_BYTES <= SIGNAL_BYTES_MAX,
	"every signal has to fit");

/* ---- signals ---- */

/* A cursor over a signal's bytes. */
struct verbs_reader {
	const uint8_t *at;
	size_t left;
	bool broken;
};

static const uint8_t *verbs_read(struct verbs_reader *r, size_t bytes)
{
	static const uint8_t nothing[SIGNAL_BYTES_MAX];
	const uint8_t *at = r->at;

	if (r->broken || bytes > r->left) {
		r->broken = true;
		return nothing;
	}
	r->at += bytes;
	r->left -= bytes;
	return at;
}

static bool verbs_read_all(const struct verbs_reader *r)
{
	return !r->broken && r->left == 0;
}

static uint8_t *verbs_write(struct signal *s, size_t bytes)
{
	uint8_t *at = s->bytes + s->length;

	assert(s->length + bytes <= sizeof(s->bytes));
	s->length += (uint32_t)bytes;
	return at;
}

static void verbs_queue_said(struct verbs_said **first, struct verbs_said **last, struct verbs_said *said)
{
	said->next = NULL;
	if (*first)
		(*last)->next = said;
	else
		*first = said;
	*last = said;
}

/* Begins a signal of this connection. NULL: no memory; the other end will find out by waiting. */
static struct signal *verbs_say(struct verbs *v, const struct verbs_conn *c, enum verbs_signal type)
{
	struct verbs_said *said = calloc(1, sizeof(*said));

	if (!said)
		return NULL;
	said->signal = (struct signal){.session = c->session, .core = c->core, .number = c->number};
	*verbs_write(&said->signal, 1) = (uint8_t)type;
	verbs_queue_said(&v->said_first, &v->said_last, said);
	return &said->signal;
}

int verbs_signal_take(struct transport *head, struct signal *out)
{
	struct verbs *v = (struct verbs *)head;
	struct verbs_said *said = v->said_first;

	if (!said)
		return -EAGAIN;
	*out = said->signal;
	v->said_first = said->next;
	free(said);
	return 0;
}

static void verbs_say_gone(struct verbs *v, const struct verbs_conn *c, int error)
{
	struct signal *s = verbs_say(v, c, VERBS_GONE);

	if (!s)
		return;
	le_put32(verbs_write(s, 4), handshake_code_from_errno(error < 0 ? -error : error));
	*verbs_write(s, 1) = c->dead_rails;
}

/* The handshake's next message, whole: there is room for it. */
static void verbs_say_handshake(struct signal *s, struct handshake *h)
{
	size_t bytes;
	const uint8_t *out = handshake_output(h, &bytes);

	memcpy(verbs_write(s, bytes), out, bytes);
	handshake_sent(h, bytes);
}

static void verbs_say_rails(struct signal *s, const struct verbs_conn *c)
{
	le_put64(verbs_write(s, 8), c->token);
	le_put64(verbs_write(s, 8), (uintptr_t)c->fixed.base);
	*verbs_write(s, 1) = (uint8_t)c->rail_count;
	for (uint32_t i = 0; i < c->rail_count; i++) {
		const struct verbs_rail *r = &c->rails[i];
		uint8_t *at = verbs_write(s, VERBS_RAIL_BYTES);

		memcpy(at, r->device->gid.raw, VERBS_GID_BYTES);
		le_put32(at + 16, (uint32_t)r->device->about.rate_mbps);
		le_put16(at + 20, r->device->lid);
		at[22] = (uint8_t)r->device->mtu;
		at[23] = r->peer_port;
		le_put32(at + 24, r->qp ? r->qp->qp_num : 0);
		le_put32(at + 28, r->psn);
		le_put32(at + 32, r->port->bell->qp_num);
		le_put32(at + 36, r->fixed_mr ? r->fixed_mr->rkey : 0);
	}
}

/* What the peer says of its rails. 0, or -EPROTO for what cannot be. */
static int verbs_hear_rails(struct verbs_reader *in, struct verbs_conn *c)
{
	uint32_t count;

	c->peer_token = le_get64(verbs_read(in, 8));
	c->fixed_base = le_get64(verbs_read(in, 8));
	count = *verbs_read(in, 1);
	if (count < 1 || count > VERBS_RAILS_MAX || (!c->is_box && count != c->rail_count))
		return -EPROTO;
	c->rail_count = count;
	for (uint32_t i = 0; i < count; i++) {
		const uint8_t *at = verbs_read(in, VERBS_RAIL_BYTES);
		struct verbs_rail *r = &c->rails[i];

		memcpy(r->peer_gid.raw, at, VERBS_GID_BYTES);
		r->rate_mbps = le_get32(at + 16);
		r->peer_lid = le_get16(at + 20);
		r->peer_mtu = at[22];
		r->peer_port = at[23];
		r->peer_qpn = le_get32(at + 24);
		r->peer_psn = le_get32(at + 28);
		r->peer_bell = le_get32(at + 32);
		r->fixed_rkey = le_get32(at + 36);
		if (r->peer_mtu < IBV_MTU_256 || r->peer_mtu > IBV_MTU_4096 || r->rate_mbps == 0)
			return -EPROTO;
	}
	return verbs_read_all(in) ? 0 : -EPROTO;
}

static void verbs_name_peer(struct verbs_conn *c, uint32_t rail)
{
	const struct verbs_rail *r = &c->rails[rail];
	char gid[INET6_ADDRSTRLEN];
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

	if (memcmp(r->peer_gid.raw, mapped, sizeof(mapped)) == 0)
		inet_ntop(AF_INET, r->peer_gid.raw + 12, gid, sizeof(gid));
	else
		inet_ntop(AF_INET6, r->peer_gid.raw, gid, sizeof(gid));
	snprintf(c->conn.peer, sizeof(c->conn.peer), "%.45s by %.20s port %u", gid, r->device->about.device,
		r->device->about.port);
}

/* ---- what both ends need before the first message ---- */

static int verbs_conn_prepare(struct verbs_conn *c, struct err *e)
{
	c->asked = calloc(c->spec->chunk_count, sizeof(*c->asked));
	if (!c->asked || verbs_rails_spread(c) < 0)
		return err_set(e, -ENOMEM, "verbs: no memory for %u chunks", c->spec->chunk_count);
	c->chunk_bits = 1;
	while (c->chunk_bits < 32 && c->spec->chunk_count > UINT32_C(1) << c->chunk_bits)
		c->chunk_bits++;
	c->unsent_max = c->verbs->send_bytes_max;
	c->credit = c->spec->window;
	return 0;
}

static struct verbs_conn *verbs_conn_create(struct verbs *v, bool is_box)
{
	struct verbs_conn *c = calloc(1, sizeof(*c));
	uint8_t random[PROOF_NONCE];

	if (!c)
		return NULL;
	if (proof_nonce(random) < 0) {
		free(c);
		return NULL;
	}
	c->conn.transport = &v->transport;
	c->verbs = v;
	c->is_box = is_box;
	c->state = VERBS_SHAKING;
	c->token = le_get64(random);
	list_init(&c->ring);
	list_init(&c->report);
	list_init(&c->quiet);
	list_init(&c->list);
	for (unsigned i = 0; i < VERBS_RAILS_MAX; i++)
		c->rails[i].small.fd = -1;
	c->fixed.fd = -1;
	return c;
}

static void verbs_conn_undo(struct verbs_conn *c, struct verbs_queue *owner)
{
	list_remove(&c->list);
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++)
		verbs_rail_destroy(&c->rails[i], owner);
	if (owner)
		verbs_forget(owner, c);
	verbs_conn_free(c);
}

/* ---- the box's end ---- */

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
	verbs_say_handshake(s, &c->handshake);
	verbs_ports_from(v, c->core < v->queue_count ? v->queue_node[c->core] : MEM_NODE_ANY, ports);
	*verbs_write(s, 1) = (uint8_t)v->device_count;
	for (unsigned i = 0; i < v->device_count; i++) {
		const struct verbs_device *d = &v->devices[i];
		uint8_t *at = verbs_write(s, VERBS_PORT_BYTES);

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
static void verbs_hear_dial(struct verbs *v, const struct signal *in, struct verbs_reader *reader)
{
	size_t bytes = reader->left;
	const char *name = (const char *)verbs_read(reader, bytes);
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

static int verbs_take_hello(struct verbs_conn *c, struct verbs_reader *in)
{
	int rc = handshake_input(&c->handshake, verbs_read(in, HANDSHAKE_HELLO_BYTES), HANDSHAKE_HELLO_BYTES);

	if (rc == 0 && (c->handshake.session != c->session || c->handshake.core != c->core))
		rc = -EPROTO;
	if (rc == 0)
		rc = verbs_hear_rails(in, c);
	for (uint32_t i = 0; rc == 0 && i < c->rail_count; i++)
		rc = c->rails[i].peer_port < c->verbs->device_count ? 0 : -EPROTO;
	return rc;
}

static void verbs_hear_hello(struct verbs *v, struct verbs_conn *c, struct verbs_reader *in)
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
		log_warn("verbs: %s of session %llu does not answer (%llu more were not logged)", c->conn.peer,
			(unsigned long long)c->session, (unsigned long long)quiet);
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

static void verbs_keep(struct verbs_conn *c, const struct signal *s)
{
	struct verbs_said *said = malloc(sizeof(*said));

	if (!said)
		return;
	said->signal = *s;
	verbs_queue_said(&c->heard_first, &c->heard_last, said);
}

/* The worker looks at what it is told when it is asked for its connection; the box at once. */
void verbs_signal_give(struct transport *head, const struct signal *in)
{
	struct verbs *v = (struct verbs *)head;
	struct verbs_reader reader = {in->bytes, in->length, in->length > SIGNAL_BYTES_MAX};
	struct verbs_conn *c = verbs_find_in(&v->dialled, in);
	uint8_t type = *verbs_read(&reader, 1);

	if (c) {
		verbs_keep(c, in);
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
	verbs_say_handshake(s, &c->handshake);
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

/* ---- the worker's end ---- */

/* RoCE ports have link-local addresses in whatever network they are: only almost the same one says something. */
static bool verbs_in_network(const struct verbs_device *d, const uint8_t *gid)
{
	bool local = gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;

	if (d->routed && local)
		return memcmp(gid, d->gid.raw, VERBS_GID_BYTES - 1) == 0;
	return rails_same_network(gid, d->gid.raw);
}

/*
 * Is a device of ours in the network of one of the box's ("NAME/GID,GID")? Only then is verbs chosen by itself: that a
 * router lies between can be known by trying alone, and trying takes seconds.
 */
static bool verbs_is_near(const struct verbs *v, const char *address)
{
	const char *at = strchr(address, '/');

	while (at && *at) {
		char text[INET6_ADDRSTRLEN + 8] = "::ffff:";
		uint8_t gid[VERBS_GID_BYTES];
		size_t length = strcspn(at + 1, ",");
		bool four = memchr(at + 1, ':', length) == NULL;

		if (length >= INET6_ADDRSTRLEN)
			return false;
		memcpy(text + (four ? 7 : 0), at + 1, length);
		text[(four ? 7 : 0) + length] = '\0';
		for (unsigned i = 0; inet_pton(AF_INET6, text, gid) == 1 && i < v->device_count; i++)
			if (verbs_in_network(&v->devices[i], gid))
				return true;
		at += 1 + length;
	}
	return false;
}

int verbs_connect(struct transport *head, const char *address, uint64_t session, uint32_t core, const uint8_t *key,
	const struct conn_spec *spec, struct conn **out, struct err *e)
{
	struct verbs *v = (struct verbs *)head;
	struct verbs_conn *c;
	struct signal *s;

	for (unsigned i = 0; i < v->device_count; i++)
		verbs_device_listen(&v->devices[i]);
	if (!spec && !verbs_is_near(v, address))
		return err_set(e, -EHOSTUNREACH, "verbs: no device here is in a network of %.100s", address);
	c = verbs_conn_create(v, false);
	if (!c)
		return err_set(e, -ENOMEM, "verbs: no memory to connect to %.60s", address);
	c->spec = spec;
	c->session = session;
	c->core = core;
	c->number = ++v->numbers;
	c->state = VERBS_DIALLED;
	snprintf(c->conn.peer, sizeof(c->conn.peer), "%.*s", (int)strcspn(address, "/"), address);
	handshake_begin_worker(&c->handshake, session, core, key);
	list_append(&v->dialled, &c->list);
	s = spec ? verbs_say(v, c, VERBS_DIAL) : NULL;
	if (s)
		memcpy(verbs_write(s, strlen(c->conn.peer)), c->conn.peer, strlen(c->conn.peer));
	*out = &c->conn;
	return 0;
}

/* Pairs of ports that led nowhere not long ago or, when all did, the last ones. */
static void verbs_find_shunned(const struct verbs *v, uint32_t count, bool shunned[][RAILS_PORTS_MAX])
{
	uint64_t now_ns = clock_now_ns(), since_ns = now_ns > VERBS_SHUN_NS ? now_ns - VERBS_SHUN_NS : 1, newest_ns = 0;
	bool all = true;

	for (uint32_t i = 0; i < v->device_count; i++) {
		for (uint32_t k = 0; k < count; k++) {
			newest_ns = v->shunned_ns[i][k] > newest_ns ? v->shunned_ns[i][k] : newest_ns;
			all = all && v->shunned_ns[i][k] >= since_ns;
		}
	}
	if (all)
		since_ns = newest_ns - VERBS_SHUN_LAST_NS;
	for (uint32_t i = 0; i < v->device_count; i++)
		for (uint32_t k = 0; k < count; k++)
			shunned[i][k] = v->shunned_ns[i][k] >= since_ns;
}

/* Which ports its rails connect: see rails.h. */
static void verbs_choose_ports(struct verbs_conn *c, const uint8_t *ports, uint32_t count)
{
	struct verbs *v = c->verbs;
	struct rails_port worker[VERBS_DEVICES_MAX], box[VERBS_DEVICES_MAX];
	bool shunned[VERBS_DEVICES_MAX][RAILS_PORTS_MAX] = {{false}};
	struct rails_pair pairs[VERBS_RAILS_MAX];

	verbs_ports_from(v, ((struct verbs_queue *)c->spec->queue)->node, worker);
	for (uint32_t k = 0; k < count; k++) {
		const uint8_t *at = ports + (size_t)k * VERBS_PORT_BYTES;

		memcpy(box[k].gid, at, VERBS_GID_BYTES);
		box[k].distance = at[23];
	}
	verbs_find_shunned(v, count, shunned);
	c->rail_count = rails_choose(worker, v->device_count, box, count, shunned, c->core, pairs);
	for (uint32_t i = 0; i < c->rail_count; i++) {
		struct verbs_rail *r = &c->rails[i];

		r->conn = c;
		r->device = &v->devices[pairs[i].worker];
		r->device_index = pairs[i].worker;
		r->peer_port = pairs[i].box;
		r->peer_lid = le_get16(ports + (size_t)pairs[i].box * VERBS_PORT_BYTES + 20);
		memcpy(r->peer_gid.raw, box[pairs[i].box].gid, VERBS_GID_BYTES);
	}
}

static int verbs_take_nonce(struct verbs_conn *c, struct verbs_reader *in, struct err *e)
{
	int rc = handshake_input(&c->handshake, verbs_read(in, HANDSHAKE_NONCE_BYTES), HANDSHAKE_NONCE_BYTES);
	uint32_t count = *verbs_read(in, 1);
	const uint8_t *ports = verbs_read(in, (size_t)count * VERBS_PORT_BYTES);

	if (rc == 0 && (!verbs_read_all(in) || count < 1 || count > VERBS_DEVICES_MAX))
		rc = -EPROTO;
	if (rc < 0)
		return err_set(e, rc, "verbs: %s answers what is no nonce", c->conn.peer);
	verbs_choose_ports(c, ports, count);
	verbs_name_peer(c, 0);
	rc = verbs_path_begin(c);
	return rc < 0 ? err_set(e, rc, "verbs: the way to %s cannot be looked for: %s", c->conn.peer, strerror(-rc))
		      : 0;
}

/* Rails that lead nowhere are left out, and shunned for a while. Returns how many are left. */
static uint32_t verbs_leave_out(struct verbs_conn *c, const int errors[VERBS_RAILS_MAX])
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < c->rail_count; i++) {
		struct verbs_rail *r = &c->rails[i];

		if (errors[i] < 0) {
			c->verbs->shunned_ns[r->device_index][r->peer_port] = clock_now_ns();
			continue;
		}
		if (kept != i) {
			c->rails[kept] = *r;
			*r = (struct verbs_rail){.small.fd = -1};
		}
		kept++;
	}
	return kept;
}

/* The ways to the box were looked for: queue pairs for those that were found. */
static int verbs_take_ways(struct verbs_conn *c, struct err *e)
{
	int errors[VERBS_RAILS_MAX];
	int rc = verbs_path_take(c, errors);
	struct signal *s;

	if (rc == -EAGAIN)
		return rc;
	rc = errors[0];
	c->rail_count = verbs_leave_out(c, errors);
	if (c->rail_count == 0)
		return err_set(e, rc, "verbs: %s does not answer: %s", c->conn.peer, strerror(-rc));
	rc = 0;
	for (uint32_t i = 0; rc == 0 && i < c->rail_count; i++) {
		rc = verbs_device_use(c->verbs, c->rails[i].device_index, e);
		if (rc == 0)
			rc = verbs_rail_create(c, &c->rails[i], c->rails[i].device_index, e);
	}
	if (rc < 0)
		return rc;
	verbs_name_peer(c, 0);
	s = verbs_say(c->verbs, c, VERBS_HELLO);
	if (!s)
		return err_set(e, -ENOMEM, "verbs: no memory to connect to %s", c->conn.peer);
	verbs_say_handshake(s, &c->handshake);
	verbs_say_rails(s, c);
	c->state = VERBS_SHAKING;
	return 0;
}

static int verbs_take_welcome(struct verbs_conn *c, struct verbs_reader *in, struct err *e)
{
	int rc = handshake_input(&c->handshake, verbs_read(in, HANDSHAKE_WELCOME_BYTES), HANDSHAKE_WELCOME_BYTES);

	if (rc == 0)
		rc = verbs_hear_rails(in, c);
	if (rc < 0)
		return err_set(e, rc, "verbs: no data connection to %s: %s%s", c->conn.peer, strerror(-rc),
			rc == -ENOSPC || rc == -ECONNREFUSED ? "; the box's log says why" : "");
	for (uint32_t i = 0; rc == 0 && i < c->rail_count; i++) {
		struct verbs_rail *r = &c->rails[i];

		if (r->device->about.rate_mbps < r->rate_mbps)
			r->rate_mbps = (uint32_t)r->device->about.rate_mbps;
		rc = verbs_rail_connect(r, e);
	}
	if (rc == 0 && c->fixed_base && verbs_fixed_lay_out(c) == 0)
		rc = err_set(e, -ENOMEM, "verbs: no memory for %u chunks", c->spec->chunk_count);
	if (rc == 0)
		rc = verbs_conn_prepare(c, e);
	if (rc < 0)
		return rc;
	list_remove(&c->list);
	c->state = VERBS_ADMITTED;
	return 0;
}

static int verbs_take_signal(struct verbs_conn *c, const struct signal *s, struct err *e)
{
	struct verbs_reader in = {s->bytes, s->length, s->length > SIGNAL_BYTES_MAX};
	uint8_t type = *verbs_read(&in, 1);

	if (type == VERBS_NONCE && c->state == VERBS_DIALLED && !c->path)
		return verbs_take_nonce(c, &in, e);
	if (type == VERBS_WELCOME && c->state == VERBS_SHAKING)
		return verbs_take_welcome(c, &in, e);
	if (type == VERBS_GONE) {
		int code = handshake_code_errno(le_get32(verbs_read(&in, 4)));
		uint8_t dead = *verbs_read(&in, 1);

		for (uint32_t i = 0; i < c->rail_count; i++)
			if (dead >> i & 1)
				c->verbs->shunned_ns[c->rails[i].device_index][c->rails[i].peer_port] = clock_now_ns();
		c->gone = true;
		return err_set(e, code ? -code : -ECONNREFUSED, "verbs: %s takes no data connection: %s", c->conn.peer,
			strerror(code ? code : ECONNREFUSED));
	}
	return err_set(e, -EPROTO, "verbs: %s says what is no part of a handshake", c->conn.peer);
}

int verbs_established(struct transport *head, struct conn *conn, struct err *e)
{
	struct verbs *v = (struct verbs *)head;
	struct verbs_conn *c = (struct verbs_conn *)conn;
	int rc = 0;

	if (c->path)
		rc = verbs_take_ways(c, e);
	while (rc == 0 && c->heard_first && c->state < VERBS_ADMITTED) {
		struct verbs_said *said = c->heard_first;

		c->heard_first = said->next;
		rc = verbs_take_signal(c, &said->signal, e);
		free(said);
	}
	if (c->state == VERBS_ADMITTED)
		return 0;
	if (c->state == VERBS_CLOSED)
		return err_set(
			e, c->error, "verbs: the connection to %s has failed: %s", conn->peer, strerror(-c->error));
	if (rc == 0 || rc == -EAGAIN)
		return -EAGAIN;
	if (!c->gone)
		verbs_say_gone(v, c, rc);
	c->gone = true;
	list_remove(&c->list);
	c->state = VERBS_CLOSED;
	c->error = rc;
	return rc;
}

/* ---- the end of what was not adopted ---- */

void verbs_abandon(struct transport *head, struct conn *conn)
{
	struct verbs *v = (struct verbs *)head;
	struct verbs_conn *c = (struct verbs_conn *)conn;
	struct verbs_queue *q = c->spec ? (struct verbs_queue *)c->spec->queue : NULL;

	assert(!conn->queue);
	if (!c->is_box) {
		if ((c->state == VERBS_DIALLED || c->state == VERBS_SHAKING) && c->spec)
			verbs_say_gone(v, c, ECONNRESET);
		else if (c->state == VERBS_ADMITTED)
			verbs_bell_ring(c, 0);
		verbs_conn_undo(c, q);
		return;
	}
	if (c->state != VERBS_ADMITTED) {
		verbs_say_gone(v, c, ESHUTDOWN);
		verbs_conn_undo(c, NULL);
		return;
	}
	/* Its messages may lie with the core already: that frees them, and then the connection. */
	verbs_bell_ring(c, 0);
	for (uint32_t i = 0; i < c->rail_count; i++)
		verbs_rail_destroy(&c->rails[i], NULL);
	c->next_grave = atomic_load_explicit(&q->graves, memory_order_relaxed);
	while (!atomic_compare_exchange_weak_explicit(
		&q->graves, &c->next_grave, c, memory_order_release, memory_order_relaxed))
		;
}

void verbs_join_fini(struct verbs *v)
{
	struct signal rest;

	while (!list_alone(&v->strangers))
		verbs_stranger_end(v, LIST_OF(v->strangers.next, struct verbs_conn, list), -ESHUTDOWN);
	while (!list_alone(&v->complete))
		verbs_stranger_end(v, LIST_OF(v->complete.next, struct verbs_conn, list), -ESHUTDOWN);
	while (verbs_signal_take(&v->transport, &rest) == 0)
		;
}
