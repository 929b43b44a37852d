/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cold half of the transport in memory: the same handshake as over sockets, message for message,
 * with the virtual network's delays. Control thread, which here is the only one.
 */
#include "transport/loop.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/loop_internal.h"

enum { LOOP_HANDSHAKE_MS = 10000 };

const struct loop_class loop_conn_class = {
	.name = "conn",
	.deliver = loop_conn_deliver,
	.room = loop_conn_room,
};

/* ---- connections before a queue has them ---- */

static void loop_embed(struct loop_conn *c, struct loop_item *item, enum loop_kind kind)
{
	item->link = c->link;
	item->to = (uint8_t)c->side;
	item->kind = kind;
	item->embedded = true;
}

static struct loop_conn *loop_conn_new(struct loop_transport *t, struct loop_link *link, unsigned side)
{
	struct loop_conn *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->head.transport = &t->head;
	snprintf(c->head.peer, sizeof(c->head.peer), "loop:%u", link->ends[!side].host->endpoint);
	c->link = link;
	c->side = side;
	loop_list_init(&c->early);
	loop_list_init(&c->unsent);
	loop_embed(c, &c->closing, LOOP_END);
	loop_embed(c, &c->writable, LOOP_WRITABLE);
	loop_link_join(link, side, c);
	return c;
}

static void loop_conn_free(struct loop_conn *c, int error)
{
	loop_list_purge(&c->early, NULL, 0);
	loop_link_leave(c->link, c->side, error);
	free(c);
}

static int loop_hands_send(struct loop_conn *c)
{
	size_t bytes;
	const uint8_t *data = handshake_output(&c->hands, &bytes);
	int rc = 0;

	if (bytes)
		rc = loop_link_send_bytes(c->link, !c->side, data, bytes);
	if (rc == 0)
		handshake_sent(&c->hands, bytes);
	return rc;
}

/* Goes on with the handshake as far as there are bytes for it. 0 or the error that ended it. */
static int loop_hands_shake(struct loop_conn *c)
{
	struct loop_item *item;

	while (c->error == 0 && (item = loop_list_first(&c->early)) != NULL) {
		if (item->kind != LOOP_BYTES && c->hands.state == HANDSHAKE_DONE)
			break;                    /* The queue's owner will hear of it. */
		if (item->kind == LOOP_MESSAGE) { /* has passed what was sent before it: lost */
			loop_list_remove(item);
			loop_item_free(item);
			continue;
		}
		if (item->kind == LOOP_END)
			c->error = item->error ? item->error : -ECONNRESET;
		else if (item->bytes > handshake_wants(&c->hands))
			c->error = -EPROTO;
		else
			c->error = handshake_input(&c->hands, item->buf->bytes, item->bytes);
		loop_list_remove(item);
		loop_item_free(item);
		if (c->error == 0)
			c->error = loop_hands_send(c);
	}
	return c->error;
}

/* ---- transport ---- */

static int loop_open(const struct transport_config *config, struct transport **out, struct err *e)
{
	struct loop_transport *t;

	if (!config->loop)
		return err_set(e, -EINVAL, "loop needs a host on a network in memory: set transport_config.loop");
	if (!config->loop->up)
		return err_set(e, -ENETDOWN, "loop host %u was killed", config->loop->endpoint);
	t = calloc(1, sizeof(*t));
	if (!t)
		return err_set(e, -ENOMEM, "no memory for a loop transport");
	t->head.ops = &transport_loop;
	t->config = *config;
	t->host = config->loop;
	t->life = t->host->life;
	t->strangers_tail = &t->strangers;
	*out = &t->head;
	return 0;
}

static bool loop_host_lossy(const struct loop_host *host)
{
	const struct loop_plan *plan = &host->net->plan;
	unsigned i;

	for (i = 0; i < plan->hosts; i++) {
		if (plan->lossy || loop_pair(host->net, host->endpoint, i)->lossy)
			return true;
	}
	return false;
}

static int loop_queue_create(struct transport *head, int node, struct queue **out, struct err *e)
{
	struct loop_transport *t = (struct loop_transport *)head;
	struct loop_queue *q = calloc(1, sizeof(*q));

	(void)node;
	if (!q)
		return err_set(e, -ENOMEM, "no memory for a loop queue");
	q->head.ops = &loop_queue_ops;
	q->head.hold_max = t->host->net->plan.hold_max;
	q->head.lossy = loop_host_lossy(t->host);
	q->head.anywhere = !q->head.lossy; /* both ways are simulated */
	q->transport = t;
	loop_list_init(&q->ready);
	loop_list_init(&q->lent);
	loop_list_init(&q->held);
	t->queue_count++;
	*out = &q->head;
	return 0;
}

static void loop_queue_destroy(struct transport *head, struct queue *queue)
{
	struct loop_transport *t = (struct loop_transport *)head;
	struct loop_queue *q = (struct loop_queue *)queue;

	assert(q->conn_count == 0 && q->held_count == 0);
	t->queue_count--;
	free(q);
}

/* ---- box ---- */

static int loop_arrive(struct loop_listener *l, struct loop_link *link)
{
	struct loop_transport *t = (struct loop_transport *)((char *)l - offsetof(struct loop_transport, listener));
	uint8_t nonce[PROOF_NONCE];
	struct loop_conn *c;
	unsigned i;

	if (t->stranger_count >= LOOP_STRANGERS_MAX)
		return -ECONNREFUSED;
	c = loop_conn_new(t, link, 1);
	if (!c)
		return -ENOMEM;
	/* From the seed, not from proof_nonce(): runs must be the same bit by bit. */
	for (i = 0; i < PROOF_NONCE; i++)
		nonce[i] = (uint8_t)(loop_net_random(link->net) >> 32);
	handshake_begin_box(&c->hands, nonce);
	c->error = loop_hands_send(c);
	*t->strangers_tail = c;
	t->strangers_tail = &c->next;
	t->stranger_count++;
	return 0;
}

static int loop_listen(struct transport *head, const char *host, char *address, size_t address_bytes, struct err *e)
{
	struct loop_transport *t = (struct loop_transport *)head;
	int rc;

	(void)host;
	assert(!t->listening);
	t->listener.class = &loop_conn_class;
	t->listener.arrive = loop_arrive;
	rc = loop_listener_open(&t->listener, t->host, t->config.port_first);
	if (rc < 0)
		return err_set(e, rc, "loop host %u cannot listen on port %u", t->host->endpoint, t->config.port_first);
	t->listening = true;
	snprintf(address, address_bytes, "loop:%u:%u", t->host->endpoint, t->listener.port);
	return 0;
}

static bool loop_stranger_late(struct loop_transport *t, struct loop_conn *c, uint64_t now_ns)
{
	uint64_t ms = t->config.handshake_ms ? t->config.handshake_ms : LOOP_HANDSHAKE_MS;

	if (!c->since_ns)
		c->since_ns = now_ns + 1;
	return now_ns + 1 >= c->since_ns + ms * 1000000;
}

static void loop_stranger_remove(struct loop_transport *t, struct loop_conn **at)
{
	struct loop_conn *c = *at;

	*at = c->next;
	if (!*at)
		t->strangers_tail = at;
	c->next = NULL;
	t->stranger_count--;
}

static int loop_accept(struct transport *head, uint64_t now_ns, struct hello *out)
{
	struct loop_transport *t = (struct loop_transport *)head;
	struct loop_conn *c, **at = &t->strangers;

	if (!loop_host_alive(t->host, t->life))
		return -EAGAIN;
	loop_net_advance(t->host->net, t->host->net->now);
	while ((c = *at) != NULL) {
		int rc = loop_hands_shake(c);

		if (rc == 0 && c->hands.state == HANDSHAKE_AWAIT_ANSWER) {
			loop_stranger_remove(t, at);
			out->conn = &c->head;
			out->session = c->hands.session;
			out->core = c->hands.core;
			memcpy(out->nonce, c->hands.nonce, sizeof(out->nonce));
			memcpy(out->mac, c->hands.mac, sizeof(out->mac));
			return 0;
		}
		if (rc < 0 || loop_stranger_late(t, c, now_ns)) {
			loop_stranger_remove(t, at);
			loop_conn_free(c, 0);
			if (handshake_hung_up(rc))
				head->strangers_gone++;
			else
				head->strangers_refused++;
			continue;
		}
		at = &c->next;
	}
	return -EAGAIN;
}

static int loop_admit(struct transport *head, struct conn *conn, const struct conn_spec *spec, struct err *e)
{
	struct loop_conn *c = (struct loop_conn *)conn;
	int rc;

	(void)head;
	(void)spec;
	handshake_answer(&c->hands, 0);
	rc = loop_hands_send(c);
	if (rc == 0)
		return 0;
	err_set(e, rc, "no memory to welcome %s", conn->peer);
	loop_conn_free(c, rc);
	return rc;
}

static void loop_reject(struct transport *head, struct conn *conn, int code)
{
	struct loop_conn *c = (struct loop_conn *)conn;

	handshake_answer(&c->hands, code);
	loop_hands_send(c);
	loop_conn_free(c, 0);
	head->strangers_refused++;
}

/* ---- worker ---- */

/* "loop:3:40000" */
static int loop_address_parse(const struct loop_net *net, const char *address, unsigned *endpoint, uint16_t *port)
{
	unsigned long host, number;
	char *end;

	if (strncmp(address, "loop:", 5) != 0 || address[5] < '0' || address[5] > '9')
		return -EINVAL;
	host = strtoul(address + 5, &end, 10);
	if (*end != ':' || end[1] < '0' || end[1] > '9')
		return -EINVAL;
	number = strtoul(end + 1, &end, 10);
	if (*end || host >= net->plan.hosts || number == 0 || number > UINT16_MAX)
		return -EINVAL;
	*endpoint = (unsigned)host;
	*port = (uint16_t)number;
	return 0;
}

/* NULL when memory is short. */
static struct loop_conn *loop_connect_link(struct loop_transport *t, unsigned endpoint, uint16_t port)
{
	struct loop_link *link = loop_link_new(t->host, loop_net_host(t->host->net, endpoint), &loop_conn_class);
	struct loop_conn *c;

	if (!link)
		return NULL;
	link->refs++; /* Ours, until all is made. */
	c = loop_conn_new(t, link, 0);
	if (c && loop_link_dial(link, port) < 0) {
		loop_conn_free(c, -ENOMEM);
		c = NULL;
	}
	loop_link_put(link);
	return c;
}

static int loop_connect(struct transport *head, const char *address, uint64_t session, uint32_t core,
	const uint8_t *key, const struct conn_spec *spec, struct conn **out, struct err *e)
{
	struct loop_transport *t = (struct loop_transport *)head;
	struct loop_conn *c;
	unsigned endpoint;
	uint16_t port;
	int rc;

	(void)spec;
	if (!loop_host_alive(t->host, t->life))
		return err_set(e, -ENETDOWN, "loop host %u was killed", t->host->endpoint);
	rc = loop_address_parse(t->host->net, address, &endpoint, &port);
	if (rc < 0)
		return err_set(e, rc, "\"%s\" is no loop address of this network", address);
	c = loop_connect_link(t, endpoint, port);
	if (!c)
		return err_set(e, -ENOMEM, "no memory to connect to %s", address);
	handshake_begin_worker(&c->hands, session, core, key);
	*out = &c->head;
	return 0;
}

static int loop_established(struct transport *head, struct conn *conn, struct err *e)
{
	struct loop_transport *t = (struct loop_transport *)head;
	struct loop_conn *c = (struct loop_conn *)conn;
	int rc;

	if (!loop_host_alive(t->host, t->life))
		return err_set(e, -ENETDOWN, "loop host %u was killed", t->host->endpoint);
	loop_net_advance(t->host->net, t->host->net->now);
	rc = loop_hands_shake(c);
	if (rc < 0)
		return err_set(e, rc, "%s refused the connection or went away: %s", conn->peer, strerror(-rc));
	return c->hands.state == HANDSHAKE_DONE ? 0 : -EAGAIN;
}

static void loop_abandon(struct transport *head, struct conn *conn)
{
	(void)head;
	assert(!conn->queue);
	loop_conn_free((struct loop_conn *)conn, 0);
}

static int loop_fd(struct transport *head)
{
	(void)head;
	return -1;
}

static void loop_close(struct transport *head)
{
	struct loop_transport *t = (struct loop_transport *)head;
	struct loop_conn *c;

	assert(t->queue_count == 0);
	if (t->listening)
		loop_listener_close(&t->listener);
	while ((c = t->strangers) != NULL) {
		t->strangers = c->next;
		loop_conn_free(c, -ECONNRESET);
	}
	free(t);
}

const struct transport_ops transport_loop = {
	.name = "loop",
	.reconnects = true,
	.open = loop_open,
	.queue_create = loop_queue_create,
	.queue_destroy = loop_queue_destroy,
	.listen = loop_listen,
	.accept = loop_accept,
	.admit = loop_admit,
	.reject = loop_reject,
	.connect = loop_connect,
	.established = loop_established,
	.abandon = loop_abandon,
	.fd = loop_fd,
	.close = loop_close,
};
