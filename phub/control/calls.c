/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions with other boxes, and data connections on their way to cores. What a core was given of a connection is the
 * owner's until that core has told its end.
 */
#include "phub/control/calls.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/control/above.h"
#include "phub/control/box.h"
#include "phub/control/generation.h"
#include "phub/control/job.h"
#include "phub/control/names.h"
#include "transport/sock.h"

#define CALLS_LEAVE_NS      2000000000ull
#define CALLS_ADDRESS_BYTES 400
#define CALLS_KEYS          256u /* in a message */

static const struct call_ops *calls_ops(const struct control *c)
{
	return c->box->env.calls;
}

/* ---- sessions ---- */

const struct config_secret *box_call_secret(const struct job *job)
{
	const struct config *config = job->control->config;
	const struct config_job *listed = config_find_job(config, job->name);

	return listed ? &listed->secret : &config->create_secret;
}

/* For the transport of uplinks, as it is: it judges. */
static void box_call_hear_signal(struct box_call *call, const Phub__Signal *m)
{
	struct transport *t = call->by ? call->by->transport : NULL;
	struct signal signal = {
		.core = m->core, .number = m->number, .carrier = call->number, .length = (uint32_t)m->data.len};
	const uint8_t *key;
	uint32_t cores;

	if (!t || !t->ops->signal_give || m->data.len > sizeof(signal.bytes))
		return;
	calls_ops(call->control)->session(call->peer, &signal.session, &key, &cores);
	if (m->data.len > 0) /* else data is NULL */
		memcpy(signal.bytes, m->data.data, m->data.len);
	t->ops->signal_give(t, &signal);
}

static void box_call_hear(void *arg, const Phub__Control *message)
{
	struct box_call *call = arg;

	if (message->message_case == PHUB__CONTROL__MESSAGE_LEFT)
		call->left = true;
	if (message->message_case == PHUB__CONTROL__MESSAGE_LEFT ||
		message->message_case == PHUB__CONTROL__MESSAGE_ERROR)
		call->told = true;
	if (message->message_case == PHUB__CONTROL__MESSAGE_SIGNAL)
		box_call_hear_signal(call, message->signal);
	else if (!call->parted)
		call->hear(call->arg, message);
}

static struct box_call *box_call_find(const struct control *c, uint64_t number)
{
	struct box_call *call = c->calls_open;

	while (call && call->number != number)
		call = call->other;
	return call;
}

/* What a transport of uplinks has to say to those of other boxes. Where the call is over nobody listens. */
static void box_calls_carry(struct control *c, struct transport *t)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Signal out = PHUB__SIGNAL__INIT;
	struct signal signal;

	if (!t->ops->signal_take)
		return;
	control.message_case = PHUB__CONTROL__MESSAGE_SIGNAL;
	control.signal = &out;
	while (t->ops->signal_take(t, &signal) == 0) {
		struct box_call *call = box_call_find(c, signal.carrier);

		out.core = signal.core;
		out.number = signal.number;
		out.data.data = signal.bytes;
		out.data.len = signal.length;
		if (call)
			box_call_say(c, call, &control); /* what finds no room: the dial ends in time, and says so */
	}
	c->soon = c->soon || t->soon;
}

static void box_call_name(const struct control *c, const struct call_target *target, struct box_call *call)
{
	char address[CONFIG_HOST_BYTES + 16], box[NAMES_TEXT_BYTES];

	names_write_address(target->host, target->port, address, sizeof(address));
	snprintf(call->who, sizeof(call->who), "job '%s': the uplink to box %s", target->job,
		names_write(names_find(c, target->host, target->port), address, box, sizeof(box)));
}

int box_call_open(struct control *c, const struct call_target *target, struct box_call **out, struct err *e)
{
	struct box_call *call = calloc(1, sizeof(*call));
	struct call_target own = *target;
	int rc;

	if (!call)
		return err_set(e, -ENOMEM, "no memory for a session with it");
	call->hear = target->hear;
	call->arg = target->arg;
	call->fd = -1;
	call->control = c;
	call->number = ++c->call_last;
	own.hear = box_call_hear;
	own.arg = call;
	own.transport = outlets_name(&c->box->outlets);
	if (target->below) {
		struct above_own self = above_own(c);

		own.own_host = self.host;
		own.own_port = self.port;
		own.own_name = self.name;
		box_call_name(c, target, call);
	}
	rc = calls_ops(c)->open(c->box->env.calls_arg, &own, &call->peer, e);
	if (rc < 0) {
		free(call);
		return rc;
	}
	call->other = c->calls_open;
	c->calls_open = call;
	*out = call;
	return 0;
}

/* What comes wakes control; what cannot go out is tried again soon. */
static void box_call_watch(struct control *c, struct box_call *call)
{
	struct epoll_event event = {.events = EPOLLIN};
	bool write = false;
	int fd = calls_ops(c)->fd(call->peer, &write);

	if (fd >= 0 && fd != call->fd && c->epoll_fd >= 0)
		epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, fd, &event);
	call->fd = fd;
	c->soon = c->soon || write;
}

bool box_call_is_here(const struct box_call *call)
{
	bool write;
	int fd = calls_ops(call->control)->fd(call->peer, &write);

	return fd >= 0 && sock_peer_is_here(fd);
}

int box_call_reaches(const struct box_call *call, struct transport *t, struct err *e)
{
	const struct call_ops *ops = calls_ops(call->control);
	char address[CALLS_ADDRESS_BYTES];
	uint64_t session;
	const uint8_t *key;
	struct conn *conn;
	uint32_t cores;
	int rc = ops->address(call->peer, t->ops->name, address, sizeof(address), e);

	if (rc < 0)
		return rc == -EBUSY ? rc : err_set(e, rc, "%s is not among that box's transports", t->ops->name);
	ops->session(call->peer, &session, &key, &cores);
	rc = t->ops->connect(t, address, session, 0, key, NULL, &conn, e);
	if (rc == 0)
		t->ops->abandon(t, conn);
	return rc;
}

static bool box_call_offers(const struct box_call *call, const char *transport)
{
	char address[CALLS_ADDRESS_BYTES];
	struct err e;

	return calls_ops(call->control)->address(call->peer, transport, address, sizeof(address), &e) == 0;
}

void box_call_choose(struct box_call *call)
{
	static const char *const twins[] = {"udp", "dpdk"};
	const struct box *box = call->control->box;

	call->by = outlet_choose(box, call, call->by_why, sizeof(call->by_why));
	call->offer = box_call_by(call);
	for (unsigned i = 0; i < 2; i++) /* they have the same packets */
		if (strcmp(call->offer, twins[i]) == 0 && !box_call_offers(call, twins[i]) &&
			box_call_offers(call, twins[1 - i])) {
			call->offer = twins[1 - i];
			break;
		}
	if (call->who[0] && box->config->uplink_transport == CONFIG_UPLINK_AUTO)
		log_info("%s goes by %s%s%s", call->who, box_call_by(call), call->by_why[0] ? ": " : "", call->by_why);
}

const char *box_call_by(const struct box_call *call)
{
	return call && call->by ? call->by->transport->ops->name : "";
}

int box_call_step(struct control *c, struct box_call *call, struct err *e)
{
	int rc = calls_ops(c)->step(call->peer, c->now_ns, e);

	if (rc > 0 && !call->by)
		box_call_choose(call);
	if (rc >= 0)
		box_call_watch(c, call);
	else if (!call->told && call->uplinks)
		box_uplinks_cut(call->uplinks);
	return rc;
}

uint64_t box_call_root(const struct control *c, const struct box_call *call)
{
	return calls_ops(c)->root(call->peer);
}

const char *box_call_sibling(const struct control *c, const struct box_call *call, uint16_t *port)
{
	return calls_ops(c)->sibling(call->peer, port);
}

int box_call_say(struct control *c, struct box_call *call, const Phub__Control *message)
{
	int rc = calls_ops(c)->say(call->peer, message);

	c->again = c->again || rc == 0; /* it goes out at the next step */
	return rc;
}

struct box_keys {
	Phub__Key keys[CALLS_KEYS];
	Phub__Key *each[CALLS_KEYS];
};

static int box_call_say_some(struct control *c, struct box_call *call, const struct table *t, uint32_t generation,
	uint32_t *said, struct box_keys *some)
{
	uint32_t left = t->key_have - *said, count = left < CALLS_KEYS ? left : CALLS_KEYS;
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Keys keys = PHUB__KEYS__INIT;
	int rc;

	table_keys(t, *said, count, some->keys, some->each);
	keys.generation = generation;
	keys.first = *said;
	keys.keys = some->each;
	keys.n_keys = count;
	control.message_case = PHUB__CONTROL__MESSAGE_KEYS;
	control.keys = &keys;
	rc = box_call_say(c, call, &control);
	if (rc == 0)
		*said += count;
	return rc;
}

int box_call_say_keys(
	struct control *c, struct box_call *call, const struct table *t, uint32_t generation, uint32_t *said)
{
	struct box_keys *some;
	int rc = 0;

	if (*said == t->key_have)
		return 0;
	some = malloc(sizeof(*some));
	if (!some)
		return -ENOMEM;
	while (rc == 0 && *said < t->key_have)
		rc = box_call_say_some(c, call, t, generation, said, some);
	free(some);
	return rc;
}

int box_call_say_hyper(struct control *c, struct box_call *call, uint32_t version, const struct optimizer_hyper *groups,
	uint32_t count)
{
	Phub__Hypers *each = calloc(count, sizeof(*each));
	Phub__Hypers **pointers = calloc(count, sizeof(void *));
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Hyper hyper = PHUB__HYPER__INIT;
	int rc = -ENOMEM;

	if (each && pointers) {
		table_hypers(groups, count, each, pointers);
		hyper.version = version;
		hyper.groups = pointers;
		hyper.n_groups = count;
		control.message_case = PHUB__CONTROL__MESSAGE_HYPER;
		control.hyper = &hyper;
		rc = box_call_say(c, call, &control);
	}
	free(each);
	free(pointers);
	return rc;
}

void box_call_part(struct control *c, struct box_call *call, Phub__Leave *leave)
{
	Phub__Control control = PHUB__CONTROL__INIT;

	control.message_case = PHUB__CONTROL__MESSAGE_LEAVE;
	control.leave = leave;
	calls_ops(c)->say(call->peer, &control);
	call->parted = true;
	call->until_ns = c->now_ns + CALLS_LEAVE_NS;
	call->next = c->calls;
	c->calls = call;
}

const char *box_call_trim(const char *text)
{
	static const char words[] = " cannot be reached: ";
	const char *at = strncmp(text, "box ", 4) == 0 ? strstr(text, words) : NULL;

	return at ? at + strlen(words) : text;
}

void box_call_hang_up(struct control *c, struct box_call *call)
{
	struct box_call **at = &c->calls_open;

	if (!call)
		return;
	while (*at != call)
		at = &(*at)->other;
	*at = call->other;
	if (call->uplinks)
		call->uplinks->call = NULL;
	calls_ops(c)->close(call->peer);
	free(call);
}

void box_calls_step(struct control *c)
{
	struct box_call **at = &c->calls;

	for (unsigned i = 0; i < c->box->outlets.count; i++)
		box_calls_carry(c, c->box->outlets.each[i].transport);
	while (*at) {
		struct box_call *call = *at;
		struct err e;

		if (box_call_step(c, call, &e) >= 0 && !call->left && c->now_ns < call->until_ns) {
			at = &call->next;
			continue;
		}
		*at = call->next;
		box_call_hang_up(c, call);
	}
}

void box_calls_fini(struct control *c)
{
	while (c->calls) {
		struct box_call *next = c->calls->next;

		box_call_hang_up(c, c->calls);
		c->calls = next;
	}
}

/* ---- data connections ---- */

int box_dial_begin(struct control *c, const struct box_call *call, struct box_dial *dial, struct err *e)
{
	struct transport *t = call->by->transport;
	uint64_t session;
	const uint8_t *key;
	char address[CALLS_ADDRESS_BYTES];
	uint32_t cores;
	int rc = calls_ops(c)->address(call->peer, call->offer, address, sizeof(address), e);

	if (rc < 0)
		return rc;
	calls_ops(c)->session(call->peer, &session, &key, &cores);
	if (dial->there >= cores)
		return err_set(e, -EPROTO, "it names core %u, and has %u", dial->there, cores);
	memcpy(dial->key, key, sizeof(dial->key));
	dial->spec.conn.key = dial->key;
	dial->spec.conn.queue = call->by->queues[dial->core];
	dial->spec.conn.carrier = call->number;
	dial->spec.conn.silent_ns = c->config->lost_ms * NS_PER_MS;
	dial->up = false;
	return t->ops->connect(t, address, session, dial->there, dial->key, &dial->spec.conn, &dial->conn, e);
}

void box_dial_give(struct control *c, const struct generation *g, struct box_dial *d, uint64_t serial)
{
	const struct mail mail = {.kind = MAIL_UPLINK,
		.core = d->core,
		.shard = g->store.shards[d->core],
		.conn = d->conn,
		.uplink = &d->spec,
		.rank = d->number,
		.detail = serial};

	d->conn = NULL;
	d->out = true;
	post_send(&c->box->posts[d->core], &mail);
}

int box_dials_give(struct control *c, const struct generation *g, struct box_dial *dials, unsigned count,
	uint64_t serial, struct err *e)
{
	bool all = true;

	for (unsigned i = 0; i < count; i++) {
		struct box_dial *d = &dials[i];
		int rc;

		if (!d->conn || d->up)
			continue;
		rc = d->conn->transport->ops->established(d->conn->transport, d->conn, e);
		if (rc < 0 && rc != -EAGAIN)
			return rc;
		d->up = rc == 0;
		all = all && d->up;
	}
	if (!all)
		return -EAGAIN;
	for (unsigned i = 0; i < count; i++)
		if (dials[i].conn)
			box_dial_give(c, g, &dials[i], serial);
	return 0;
}

void box_dials_drop(struct control *c, const struct generation *g, struct box_dial *dials, unsigned count,
	uint64_t serial, bool leave)
{
	for (unsigned i = 0; i < count; i++) {
		struct box_dial *d = &dials[i];
		const struct mail mail = {.kind = MAIL_UPLINK_END,
			.core = d->core,
			.shard = g->store.shards[d->core],
			.rank = d->number,
			.detail = serial,
			.value = leave};

		if (d->conn)
			d->conn->transport->ops->abandon(d->conn->transport, d->conn);
		d->conn = NULL;
		if ((d->out || leave) && mail.shard && !g->detaching)
			post_send(&c->box->posts[d->core], &mail);
	}
}

struct box_dial *box_dials_find(struct box_dial *dials, unsigned count, const struct mail *mail)
{
	for (unsigned i = 0; i < count; i++)
		if (dials[i].core == mail->core && dials[i].number == mail->rank)
			return &dials[i];
	return NULL;
}

bool box_dials_are_out(const struct box_dial *dials, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (dials[i].out)
			return true;
	return false;
}
