/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker's end of how connections over datagrams come about: see datagram_internal.h. By whoever drives the handle,
 * who owns the queue too.
 */
#include "transport/datagram_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/le.h"
#include "transport/sock.h"

enum { DIAL_ADDRESSES_MAX = 8 }; /* of one name that are looked at */

/* The first address of a name to which there is a route. */
static int datagram_find_way(struct datagram_conn *c, const char *host, struct err *e)
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
		return err_set(e, rc, "%s: no way to %.128s: %s", t->transport.ops->name, host, strerror(-rc));
	return 0;
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

	if (rc == 0)
		rc = datagram_hear_place(in, c);
	if (rc == 0 && c->spec->seal && kind > c->spec->seal)
		return err_set(e, -EPROTO, "%s: %s would seal datagrams less than this job asks", name, c->conn.peer);
	if (rc < 0)
		return err_set(e, rc, "%s: no data connection to %s: %s%s", name, c->conn.peer, strerror(-rc),
			rc == -ENOSPC || rc == -ECONNREFUSED ? "; the box's log says why" : "");
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
	if (c->state == DATAGRAM_ADMITTED)
		return 0;
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
