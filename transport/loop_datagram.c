/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages over the datagrams of the network in memory: the same core, queue and handshake as over real ones, in
 * virtual time. For the simulation and for tests. A NIC is modelled: where the plan says so, a payload is read some
 * time after it was sent, and the plan's `torn` counts those that were not the same any more although nothing said that
 * they had come. Owner of the queue.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/datagram.h"
#include "transport/loop.h"
#include "transport/loop_internal.h"

enum {
	LOOP_LATE_MAX = 256, /* payloads that are read later; beyond that at once */
	LOOP_BURST = 64,     /* datagrams between two flushes */
};

/* Whose transport: datagram_class's owner. */
struct loop_datagrams {
	struct loop_host *host;
};

/* A datagram whose payload the NIC has not read yet. */
struct loop_late {
	uint64_t at;
	unsigned endpoint;
	uint16_t port;
	uint8_t head[RELIABLE_HEAD_BYTES];
	struct reliable_outgoing out; /* but for its head */
	struct loop_buf *was;         /* the payload as it was */
};

struct loop_mover {
	struct datagram_port head;
	struct loop_host *host;
	struct loop_port *port;
	struct reliable *r;         /* whose datagrams are sent, once there were some */
	struct datagram_address to; /* room()'s */
	uint8_t room[RELIABLE_HEAD_BYTES];
	unsigned burst;  /* since the last flush() */
	bool full;       /* until the next */
	uint64_t due_ns; /* arm()'s latest */
	unsigned late_count;
	struct loop_late late[LOOP_LATE_MAX]; /* in the order of sending */
};

/* ---- addresses: 10.1.ENDPOINT, a mapped one ---- */

static struct datagram_address loop_address(unsigned endpoint, uint16_t port)
{
	const uint8_t ip[16] = {[10] = 0xff, 0xff, 10, 1, (uint8_t)(endpoint >> 8), (uint8_t)endpoint};
	struct datagram_address a = {.port = port};

	memcpy(&a.ip, ip, sizeof(ip));
	return a;
}

/* -1: none of this network's. */
static int loop_endpoint(const struct loop_host *host, const struct datagram_address *a)
{
	unsigned endpoint = (unsigned)a->ip.s6_addr[14] << 8 | a->ip.s6_addr[15];
	struct datagram_address same = loop_address(endpoint, a->port);

	if (endpoint >= host->net->plan.hosts || memcmp(&same.ip, &a->ip, sizeof(a->ip)) != 0)
		return -1;
	return (int)endpoint;
}

/* ---- what is read late ---- */

/* Does its sender still need what it sends? */
static bool loop_late_counts(const struct loop_mover *m, const struct loop_late *late)
{
	const struct loop_net *net = m->host->net;
	struct wire_header h;

	if (!reliable_awaits(late->out.message, late->head))
		return false;
	return !net->relies || wire_decode(late->head + WIRE_DATAGRAM_BYTES, &h) < 0 ||
	       net->relies(net->relies_arg, m->host->endpoint, reliable_cookie(late->out.message), &h);
}

static void loop_late_read(struct loop_mover *m, struct loop_late *late)
{
	struct loop_net *net = m->host->net;

	if (memcmp(late->was->bytes, late->out.rest, late->out.rest_bytes) != 0 && loop_late_counts(m, late))
		net->stats.torn++;
	loop_port_send(m->port, late->endpoint, late->port, late->head, late->out.head_bytes, late->out.rest,
		late->out.rest_bytes);
	reliable_let(m->r, late->out.message);
}

/* Reads those whose time has come, and forgets, unread, those of `gone`. */
static void loop_late_run(struct loop_mover *m, const struct reliable_conn *gone)
{
	struct loop_net *net = m->host->net;
	unsigned kept = 0;

	for (unsigned i = 0; i < m->late_count; i++) {
		struct loop_late *late = &m->late[i];

		if (late->out.conn == gone) {
			reliable_let(m->r, late->out.message);
		} else if (late->at <= net->now) {
			loop_late_read(m, late);
		} else {
			m->late[kept++] = *late;
			continue;
		}
		loop_buf_put(net, late->was);
	}
	m->late_count = kept;
}

static void loop_mover_wake(void *user)
{
	loop_late_run(user, NULL);
}

/* ---- datagram_port_ops ---- */

static unsigned loop_mover_receive(struct datagram_port *p, struct datagram_in *in, unsigned max)
{
	struct loop_mover *m = (struct loop_mover *)p;
	struct loop_datagram came[32];
	unsigned count = loop_port_receive(m->port, came, max < 32 ? max : 32);

	for (unsigned i = 0; i < count; i++)
		in[i] = (struct datagram_in){.bytes = came[i].bytes,
			.length = came[i].length,
			.from = loop_address(came[i].endpoint, came[i].port)};
	return count;
}

static int loop_mover_room(struct datagram_port *p, const struct datagram_address *to, struct reliable_outgoing *out)
{
	struct loop_mover *m = (struct loop_mover *)p;

	if (loop_endpoint(m->host, to) < 0)
		return -EHOSTUNREACH;
	if (m->full || m->burst == LOOP_BURST || loop_chance(m->host->net, m->host->net->plan.split)) {
		m->full = true;
		return -EAGAIN;
	}
	m->to = *to;
	out->head = m->room;
	return 0;
}

/* Will the NIC read it later? Then it has it. */
static bool loop_mover_defer(struct loop_mover *m, unsigned endpoint, const struct reliable_outgoing *out)
{
	struct loop_net *net = m->host->net;
	struct loop_late *late = &m->late[m->late_count];
	struct loop_buf *was;

	if (!out->message || !out->rest_bytes || m->late_count == LOOP_LATE_MAX || !loop_chance(net, net->plan.late))
		return false;
	was = loop_buf_new(net, out->rest_bytes);
	if (!was)
		return false;
	memcpy(was->bytes, out->rest, out->rest_bytes);
	*late = (struct loop_late){.at = net->now + loop_between(net, 0, net->plan.late_max_ns),
		.endpoint = endpoint,
		.port = m->to.port,
		.out = *out,
		.was = was};
	memcpy(late->head, out->head, out->head_bytes);
	m->late_count++;
	net->stats.late++;
	reliable_hold(out->message);
	loop_port_wake(m->port, late->at, loop_mover_wake, m);
	return true;
}

static void loop_mover_send(struct datagram_port *p, struct reliable *r, const struct reliable_outgoing *out)
{
	static const uint8_t zeros[LOOP_DATAGRAM_MAX];
	struct loop_mover *m = (struct loop_mover *)p;
	int endpoint = loop_endpoint(m->host, &m->to);

	assert(out->head == m->room && out->head_bytes <= RELIABLE_HEAD_BYTES && (!m->r || m->r == r));
	m->r = r;
	m->burst++;
	if (loop_mover_defer(m, (unsigned)endpoint, out))
		return;
	loop_port_send(m->port, (unsigned)endpoint, m->to.port, out->head, out->head_bytes,
		out->rest ? out->rest : zeros, out->rest_bytes);
}

static void loop_mover_flush(struct datagram_port *p)
{
	struct loop_mover *m = (struct loop_mover *)p;

	m->burst = 0;
	m->full = false;
}

static void loop_mover_reclaim(struct datagram_port *p, struct reliable *r, const struct reliable_conn *c)
{
	struct loop_mover *m = (struct loop_mover *)p;

	(void)r;
	loop_late_run(m, c);
}

/* There is no fd, but whoever drives the net sees that time as one at which something comes. */
static int loop_mover_arm(struct datagram_port *p, uint64_t due_ns)
{
	struct loop_mover *m = (struct loop_mover *)p;
	uint64_t now_ns = m->host->net->now;

	if (m->due_ns > now_ns && m->due_ns <= due_ns)
		return -ENOTSUP; /* it does already */
	if (due_ns == 0)
		return -ENOTSUP;
	m->due_ns = due_ns > now_ns ? due_ns : now_ns + 1;
	loop_port_wake(m->port, m->due_ns, loop_mover_wake, m);
	return -ENOTSUP;
}

static uint64_t loop_mover_now(struct datagram_port *p)
{
	return loop_net_now(((struct loop_mover *)p)->host->net);
}

static void loop_mover_close(struct datagram_port *p)
{
	struct loop_mover *m = (struct loop_mover *)p;

	assert(m->late_count == 0);
	loop_port_close(m->port);
	free(m);
}

static const struct datagram_port_ops loop_mover_ops = {
	.receive = loop_mover_receive,
	.room = loop_mover_room,
	.send = loop_mover_send,
	.flush = loop_mover_flush,
	.reclaim = loop_mover_reclaim,
	.arm = loop_mover_arm,
	.now = loop_mover_now,
	.close = loop_mover_close,
};

/* ---- the transport ---- */

static int loop_mover_open(
	void *owner, unsigned queue_index, int node, const char *host, struct datagram_port **out, struct err *e)
{
	struct loop_host *at = ((struct loop_datagrams *)owner)->host;
	const struct loop_plan *plan = &at->net->plan;
	struct loop_mover *m = calloc(1, sizeof(*m));
	int rc;

	(void)queue_index;
	(void)node;
	(void)host;
	if (!m)
		return err_set(e, -ENOMEM, "no memory for a port of loop host %u", at->endpoint);
	rc = loop_port_bind(at, 0, &m->port);
	if (rc < 0) {
		free(m);
		return err_set(e, rc, "loop host %u has no port", at->endpoint);
	}
	m->host = at;
	m->head.ops = &loop_mover_ops;
	m->head.address = loop_address(at->endpoint, loop_port_number(m->port));
	m->head.datagram_max = plan->datagram_max ? plan->datagram_max : LOOP_DATAGRAM_MAX;
	m->head.room_bytes = plan->pipe_bytes_max;
	*out = &m->head;
	return 0;
}

static void loop_datagrams_fini(void *owner)
{
	free(owner);
}

static const struct datagram_class loop_datagram_class = {
	.ops = &transport_loop_datagram,
	.port_open = loop_mover_open,
	.fini = loop_datagrams_fini,
};

static int loop_datagram_open(const struct transport_config *config, struct transport **out, struct err *e)
{
	struct loop_datagrams *owner;
	int rc;

	if (!config->loop)
		return err_set(e, -EINVAL, "loop needs a host on a network in memory: set transport_config.loop");
	if (!config->loop->up)
		return err_set(e, -ENETDOWN, "loop host %u was killed", config->loop->endpoint);
	owner = calloc(1, sizeof(*owner));
	if (!owner)
		return err_set(e, -ENOMEM, "no memory for a loop transport");
	owner->host = config->loop;
	rc = datagram_open(&loop_datagram_class, owner, config, out, e);
	if (rc < 0)
		free(owner);
	return rc;
}

const struct transport_ops transport_loop_datagram = {
	.name = "loop-datagram",
	.open = loop_datagram_open,
	DATAGRAM_OPS,
};
