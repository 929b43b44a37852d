/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker's end of how connections over datagrams come about: see datagram_internal.h. By whoever drives the handle,
 * who owns the queue too; or, apart, by control.
 */
#include "transport/datagram_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/le.h"
#include "transport/sock.h"

enum { DIAL_ADDRESSES_MAX = 8 }; /* of one name that are looked at */

/* How many bits two addresses have in common, from the first on. */
static int datagram_alike(const struct in6_addr *a, const struct in6_addr *b)
{
	for (int i = 0; i < 16; i++) {
		unsigned other = a->s6_addr[i] ^ b->s6_addr[i];

		if (other)
			return 8 * i + __builtin_clz(other) - 24;
	}
	return 128;
}

static const char *datagram_no_way(const struct datagram *t, int code)
{
	return t->class->no_way ? t->class->no_way(code) : strerror(-code);
}

/* The first address of a name to which there is a way: 0, or a negative errno. */
static int datagram_find_host(struct datagram_conn *c, const char *host, struct err *e)
{
	struct datagram *t = c->transport;
	struct sockaddr_storage list[DIAL_ADDRESSES_MAX];
	int count = sock_addresses(host, list, DIAL_ADDRESSES_MAX, e);
	int rc = -EHOSTUNREACH;

	if (count < 0)
		return count;
	for (int i = 0; i < count && rc < 0; i++) {
		c->peer = datagram_address_of(&list[i]);
		rc = t->class->route ? t->class->route(t->owner, &c->peer, &c->own, &c->datagram_max) : 0;
	}
	if (rc < 0)
		return err_set(e, rc, "%s: no way to %.128s: %s", t->transport.ops->name, host, datagram_no_way(t, rc));
	return 0;
}

/* Of several hosts, with commas, the one whose address is most like ours there: in the same network, most likely. */
static int datagram_find_way(struct datagram_conn *c, char *hosts, struct err *e)
{
	struct datagram_address peer = {0}, own = {0};
	uint32_t datagram_max = c->datagram_max, least = datagram_max;
	int alike = -1, rc = -EINVAL;
	char *save = NULL;

	for (char *host = strtok_r(hosts, ",", &save); host; host = strtok_r(NULL, ",", &save)) {
		c->datagram_max = datagram_max;
		rc = datagram_find_host(c, host, e);
		if (rc < 0 || datagram_alike(&c->own.ip, &c->peer.ip) <= alike)
			continue;
		alike = datagram_alike(&c->own.ip, &c->peer.ip);
		peer = c->peer;
		own = c->own;
		least = c->datagram_max;
	}
	if (alike < 0)
		return rc;
	c->peer = peer;
	c->own = own;
	c->datagram_max = least;
	return 0;
}

/* The welcome has named an address of the box's: is there a way? Until now, there may have been none. */
static int datagram_find_welcome(struct datagram_conn *c, struct err *e)
{
	struct datagram *t = c->transport;
	uint32_t datagram_max = c->datagram_max;
	int rc = t->class->route ? t->class->route(t->owner, &c->peer, &c->own, &datagram_max) : 0;
	char ip[INET6_ADDRSTRLEN] = "?";

	inet_ntop(AF_INET6, &c->peer.ip, ip, sizeof(ip));
	if (rc < 0)
		return err_set(e, rc, "%s: no way to the box's address %s: %s", t->transport.ops->name,
			IN6_IS_ADDR_V4MAPPED(&c->peer.ip) ? strrchr(ip, ':') + 1 : ip, datagram_no_way(t, rc));
	if (datagram_max < c->datagram_max)
		c->datagram_max = datagram_max;
	return 0;
}

/* Is it known where answers are to go, whatever the way there? */
static bool datagram_has_address(const struct conn_spec *spec)
{
	const struct datagram_port *port = ((const struct datagram_queue *)spec->queue)->port;

	return !IN6_IS_ADDR_UNSPECIFIED(&port->address.ip);
}

int datagram_connect(struct transport *head, const char *address, uint64_t session, uint32_t core, const uint8_t *key,
	const struct conn_spec *spec, struct conn **out, struct err *e)
{
	struct datagram *t = (struct datagram *)head;
	char host[SOCK_HOST_BYTES];
	struct datagram_conn *c;
	struct signal *s;
	uint16_t port;
	int rc;

	if (sock_split(address, host, &port) < 0 || strcmp(host, "*") == 0)
		return err_set(e, -EINVAL, "%s: \"%.128s\" is no address; give host:port or [host]:port",
			head->ops->name, address);
	c = datagram_conn_create(t, false);
	if (!c)
		return err_set(e, -ENOMEM, "%s: no memory to connect to %.128s", head->ops->name, address);
	rc = datagram_find_way(c, host, e);
	/* A box with many addresses cannot name all of them before it knows this one. */
	if (rc == -ENETUNREACH && spec && datagram_has_address(spec)) {
		c->peer = (struct datagram_address){0};
		rc = 0;
	}
	if (rc < 0) {
		datagram_conn_free(c);
		return rc;
	}
	c->spec = spec;
	c->session = session;
	c->core = core;
	c->number = ++t->numbers;
	snprintf(c->conn.peer, sizeof(c->conn.peer), "%s", address);
	memcpy(c->key, key, sizeof(c->key));
	handshake_begin_worker(&c->handshake, session, core, key);
	list_append(&t->dialled, &c->link);
	s = spec ? datagram_say(c, DATAGRAM_DIAL) : NULL;
	if (s)
		le_put16(signal_write(s, 2), port);
	*out = &c->conn;
	return 0;
}

static int datagram_take_nonce(struct datagram_conn *c, struct signal_reader *in, struct err *e)
{
	const struct datagram_port *port = ((const struct datagram_queue *)c->spec->queue)->port;
	const char *name = c->conn.transport->ops->name;
	int rc = handshake_input(&c->handshake, signal_read(in, HANDSHAKE_NONCE_BYTES), HANDSHAKE_NONCE_BYTES);
	struct signal *s;

	if (rc == 0 && !signal_read_all(in))
		rc = -EPROTO;
	if (rc < 0)
		return err_set(e, rc, "%s: %s answers what is no nonce", name, c->conn.peer);
	if (port->datagram_max < c->datagram_max)
		c->datagram_max = port->datagram_max;
	if (!IN6_IS_ADDR_UNSPECIFIED(&port->address.ip))
		c->own = port->address;
	c->own.port = port->address.port;
	s = datagram_say(c, DATAGRAM_HELLO);
	if (!s)
		return err_set(e, -ENOMEM, "%s: no memory to connect to %s", name, c->conn.peer);
	signal_write_handshake(s, &c->handshake);
	datagram_say_place(s, c, &c->own, c->datagram_max);
	c->state = DATAGRAM_SHAKING;
	return 0;
}

static int datagram_take_welcome(struct datagram_conn *c, struct signal_reader *in, struct err *e)
{
	const char *name = c->conn.transport->ops->name;
	int rc = handshake_input(&c->handshake, signal_read(in, HANDSHAKE_WELCOME_BYTES), HANDSHAKE_WELCOME_BYTES);
	unsigned kind = rc == 0 ? *signal_read(in, 1) : 0;
	struct in6_addr ip;

	ip = c->peer.ip;
	if (rc == 0)
		rc = datagram_hear_place(in, c);
	if (rc == 0 && c->spec->seal && kind > c->spec->seal)
		return err_set(e, -EPROTO, "%s: %s would seal datagrams less than this job asks", name, c->conn.peer);
	if (rc < 0)
		return err_set(e, rc, "%s: no data connection to %s: %s%s", name, c->conn.peer, strerror(-rc),
			rc == -ENOSPC || rc == -ECONNREFUSED ? "; the box's log says why" : "");
	if (IN6_IS_ADDR_UNSPECIFIED(&c->peer.ip) || memcmp(&ip, &c->peer.ip, sizeof(ip)) != 0)
		rc = datagram_find_welcome(c, e);
	if (rc == 0)
		rc = datagram_conn_prepare(c, c->key, kind, e);
	explicit_bzero(c->key, sizeof(c->key));
	if (rc == 0)
		c->state = DATAGRAM_ADMITTED;
	return rc;
}

static int datagram_take_gone(struct datagram_conn *c, struct signal_reader *in, struct err *e)
{
	int code = handshake_code_errno(le_get32(signal_read(in, 4)));

	c->gone = true;
	return err_set(e, code ? -code : -ECONNREFUSED, "%s: %s takes no data connection: %s",
		c->conn.transport->ops->name, c->conn.peer, strerror(code ? code : ECONNREFUSED));
}

static int datagram_take_signal(struct datagram_conn *c, const struct signal *s, struct err *e)
{
	struct signal_reader in = signal_reader(s);
	uint8_t type = *signal_read(&in, 1);

	if (type == DATAGRAM_NONCE && c->state == DATAGRAM_DIALLED)
		return datagram_take_nonce(c, &in, e);
	if (type == DATAGRAM_WELCOME && c->state == DATAGRAM_SHAKING)
		return datagram_take_welcome(c, &in, e);
	if (type == DATAGRAM_GONE)
		return datagram_take_gone(c, &in, e);
	return err_set(
		e, -EPROTO, "%s: %s says what is no part of a handshake", c->conn.transport->ops->name, c->conn.peer);
}

/* Before it is welcomed the worker looks at what it is told when it is asked for its connection; after that, at once.
 */
void datagram_hear_dialled(struct datagram_conn *c, const struct signal *s)
{
	struct signal_reader in = signal_reader(s);

	if (c->state < DATAGRAM_ADMITTED) {
		(void)signal_list_add(&c->heard, s);
		return;
	}
	if (*signal_read(&in, 1) != DATAGRAM_GONE)
		return;
	c->gone = true;
	if (c->conn.queue)
		reliable_end(((struct datagram_queue *)c->conn.queue)->reliable, c->reliable, 0, false);
}

int datagram_established(struct transport *head, struct conn *conn, struct err *e)
{
	struct datagram_conn *c = (struct datagram_conn *)conn;
	struct signal heard;
	int rc = 0;

	while (rc == 0 && c->state <= DATAGRAM_ADMITTED && signal_list_take(&c->heard, &heard) == 0) {
		if (c->state == DATAGRAM_ADMITTED)
			datagram_hear_dialled(c, &heard);
		else
			rc = datagram_take_signal(c, &heard, e);
	}
	if (c->state == DATAGRAM_ADMITTED) {
		/* From here on it may be another thread's: no signal finds it any more. */
		if (c->transport->apart)
			list_remove(&c->link);
		return 0;
	}
	if (c->state == DATAGRAM_CLOSED)
		return err_set(e, c->error, "%s: the connection to %s has failed: %s", head->ops->name, conn->peer,
			strerror(-c->error));
	if (rc == 0)
		return -EAGAIN;
	if (!c->gone)
		datagram_say_gone(c, -rc);
	c->gone = true;
	list_remove(&c->link);
	c->state = DATAGRAM_CLOSED;
	c->error = rc;
	return rc;
}
