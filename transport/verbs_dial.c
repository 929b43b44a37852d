/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker's end of how connections come about: see verbs_signal.h. Which ports they take is rails.h's. By whoever
 * drives the handle; or, apart, by control.
 */
#include "transport/verbs_signal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "transport/le.h"

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
	if (verbs_memory_get(c, e) < 0) {
		verbs_conn_undo(c, NULL);
		return e->code;
	}
	s = spec ? verbs_say(v, c, VERBS_DIAL) : NULL;
	if (s)
		memcpy(signal_write(s, strlen(c->conn.peer)), c->conn.peer, strlen(c->conn.peer));
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
			uint64_t at_ns = atomic_load_explicit(&v->shunned_ns[i][k], memory_order_relaxed);

			newest_ns = at_ns > newest_ns ? at_ns : newest_ns;
			all = all && at_ns >= since_ns;
		}
	}
	if (all)
		since_ns = newest_ns - VERBS_SHUN_LAST_NS;
	for (uint32_t i = 0; i < v->device_count; i++)
		for (uint32_t k = 0; k < count; k++)
			shunned[i][k] = atomic_load_explicit(&v->shunned_ns[i][k], memory_order_relaxed) >= since_ns;
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

static int verbs_take_nonce(struct verbs_conn *c, struct signal_reader *in, struct err *e)
{
	int rc = handshake_input(&c->handshake, signal_read(in, HANDSHAKE_NONCE_BYTES), HANDSHAKE_NONCE_BYTES);
	uint32_t count = *signal_read(in, 1);
	const uint8_t *ports = signal_read(in, (size_t)count * VERBS_PORT_BYTES);

	if (rc == 0 && (!signal_read_all(in) || count < 1 || count > VERBS_DEVICES_MAX))
		rc = -EPROTO;
	if (rc < 0)
		return err_set(e, rc, "verbs: %s answers what is no nonce", c->conn.peer);
	verbs_choose_ports(c, ports, count);
	verbs_name_peer(c, 0);
	rc = verbs_path_begin(c);
	rc = rc == -EAGAIN ? -EBUSY : rc; /* no thread for it; the nonce does not come again */
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
			verbs_shun(c->verbs, r);
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
		if (c->verbs->apart)
			rc = verbs_memory_cover(c, c->rails[i].device_index, e);
		else
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
	signal_write_handshake(s, &c->handshake);
	verbs_say_rails(s, c);
	c->state = VERBS_SHAKING;
	return 0;
}

static int verbs_take_welcome(struct verbs_conn *c, struct signal_reader *in, struct err *e)
{
	int rc = handshake_input(&c->handshake, signal_read(in, HANDSHAKE_WELCOME_BYTES), HANDSHAKE_WELCOME_BYTES);

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
	struct signal_reader in = signal_reader(s);
	uint8_t type = *signal_read(&in, 1);

	if (type == VERBS_NONCE && c->state == VERBS_DIALLED && !c->path)
		return verbs_take_nonce(c, &in, e);
	if (type == VERBS_WELCOME && c->state == VERBS_SHAKING)
		return verbs_take_welcome(c, &in, e);
	if (type == VERBS_GONE) {
		int code = handshake_code_errno(le_get32(signal_read(&in, 4)));
		uint8_t dead = *signal_read(&in, 1);

		for (uint32_t i = 0; i < c->rail_count; i++)
			if (dead >> i & 1)
				verbs_shun(c->verbs, &c->rails[i]);
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
	struct signal heard;
	int rc = 0;

	if (c->path)
		rc = verbs_take_ways(c, e);
	while (rc == 0 && c->state < VERBS_ADMITTED && signal_list_take(&c->heard, &heard) == 0)
		rc = verbs_take_signal(c, &heard, e);
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
