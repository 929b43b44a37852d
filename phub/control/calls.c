/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions with other boxes, and data connections on their way to cores. What a core was given of a connection is the
 * owner's until that core has told its end.
 */
#include "phub/control/calls.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/base/stats.h"
#include "phub/control/box.h"
#include "phub/control/generation.h"
#include "phub/control/job.h"
#include "phub/lift.h"
#include "transport/sock.h"

#define CALLS_LEAVE_NS      2000000000ull
#define CALLS_REASON_NS     NS_PER_S /* so long after an uplink has ended sessions may still say why */
#define CALLS_ADDRESS_BYTES 400
#define CALLS_MEND_NS       200000000ull /* one that broke is tried again so often */
#define CALLS_KEYS          256u         /* in a message */

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
	if (target->below)
		snprintf(call->who, sizeof(call->who), "job '%s': the uplink to box %s:%u", target->job, target->host,
			target->port);
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

static void box_uplinks_cut(struct box_uplinks *u);

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

/* It is welcome there. */
static void box_call_choose(struct box_call *call)
{
	const struct box *box = call->control->box;

	call->by = outlet_choose(box, call, call->by_why, sizeof(call->by_why));
	call->offer = box_call_by(call);
	if (strcmp(call->offer, "udp") == 0 && !box_call_offers(call, "udp") && box_call_offers(call, "dpdk"))
		call->offer = "dpdk";
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

static void box_dial_give(struct control *c, const struct generation *g, struct box_dial *d, uint64_t serial)
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

/* ---- uplinks ---- */

/* Results come straight into the job's, and sums, if it lifts any, lie in a row: those of this way, or, where chunks
 * may take others later, of all. */
static void box_uplinks_name_memory(const struct generation *g, const struct uplink *up, struct conn_spec *spec)
{
	const struct shard *shard = up->shard;
	const struct uplink_chunk *last = up->chunk_count > 0 ? &up->chunks[up->chunk_count - 1] : NULL;

	spec->memory[0] = (struct conn_memory){g->store.result.base, g->store.result.bytes};
	spec->memory_count = 1;
	if (shard->lifts)
		spec->memory[spec->memory_count++] =
			(struct conn_memory){shard->lifts, shard->chunk_count * shard->lift_bytes};
	else if (last) {
		uint8_t *first = (uint8_t *)up->chunks[0].lift;
		uint8_t *end = (uint8_t *)(last->lift + up->shard->chunks[last->local].elements);

		spec->memory[spec->memory_count++] = (struct conn_memory){first, (uint64_t)(end - first)};
	}
}

/* To one core there; of no chunks: nothing. `whole`: also of those that it may yet be the home of. */
static int box_uplinks_fill(const struct job *job, const struct box_call *call, const struct box_place *place,
	bool whole, struct box_dial *dial, struct err *e)
{
	const struct shard *shard = job->generation->store.shards[dial->core];
	struct uplink *up = shard ? &shard->uplinks[dial->number] : NULL;
	uint32_t lifted = up ? up->chunk_count : 0, count = whole && shard ? shard->chunk_count : lifted;
	uint32_t largest = 0;
	struct span *spans;
	struct sink *sinks;

	if (count == 0)
		return 0;
	spans = calloc(count, sizeof(*spans));
	sinks = calloc(count, sizeof(*sinks));
	dial->spec = (struct uplink_spec){
		.conn = {.chunk_count = count,
			.spans = spans,
			.sinks = sinks,
			.shorter = true,
			.window = place->window,
			.job = place->job,
			.rank = place->rank,
			.seal = job->generation->spec.seal},
		.job = place->job,
		.generation = place->generation,
		.epoch = place->epoch,
		.rank = place->rank,
	};
	if (!spans || !sinks)
		return err_set(e, -ENOMEM, "no memory for a connection to it");
	/* Those of other ways, too: both ends spread all of them over rails (verbs). */
	for (uint32_t at = 0; at < count; at++) {
		uint32_t local = whole ? at : up->chunks[at].local;
		uint32_t bytes = shard->chunks[local].elements * (uint32_t)sizeof(float);

		spans[at] = shard->lift_spans[local];
		largest = bytes > largest ? bytes : largest;
	}
	for (uint32_t at = 0; at < lifted; at++)
		lift_place(up, at, whole ? up->chunks[at].local : at);
	dial->spec.conn.payload_max = largest;
	box_uplinks_name_memory(job->generation, up, &dial->spec.conn);
	return box_dial_begin(job->control, call, dial, e);
}

/* The core here that has the chunks of this way. */
static unsigned box_uplinks_core(const struct job *job, uint32_t way)
{
	const struct spec *spec = &job->generation->spec;

	for (uint32_t i = 0; i < spec->plan.chunk_count; i++)
		if (spec_way(spec, i) == way)
			return spec->core_of_chunk[i];
	return 0;
}

/*
 * The other box has no memory to share with this one, or this one cannot map it: where nobody has asked for that, they
 * are made by another transport. 0: they are being made; or *e as it was.
 */
static int box_uplinks_detour(const struct job *job, struct box_uplinks *u, struct err *e)
{
	struct box_call *call = u->call;
	int rc = e->code;

	if (job->control->config->uplink_transport != CONFIG_UPLINK_AUTO || strcmp(box_call_by(call), "shm") != 0)
		return rc;
	snprintf(call->unmapped, sizeof(call->unmapped), "%.*s", (int)sizeof(call->unmapped) - 1, e->text);
	box_call_choose(call);
	u->begun_ns = job->control->now_ns;
	rc = 0;
	for (unsigned i = 0; rc == 0 && i < u->count; i++) {
		struct box_dial *d = &u->dials[i];

		if (d->conn)
			d->conn->transport->ops->abandon(d->conn->transport, d->conn);
		d->conn = NULL;
		if (d->spec.conn.chunk_count > 0)
			rc = box_dial_begin(job->control, call, d, e);
	}
	return rc;
}

int box_uplinks_begin(const struct job *job, struct box_call *call, const struct box_place *place, uint32_t first,
	unsigned cores, bool whole, struct box_uplinks *u, struct err *e)
{
	int rc = 0;

	box_uplinks_forget(u);
	u->first = first;
	u->dials = calloc(cores, sizeof(*u->dials));
	if (!u->dials)
		return err_set(e, -ENOMEM, "no memory for connections to it");
	u->count = cores;
	u->job = job;
	u->begun_ns = job->control->now_ns;
	u->call = call;
	call->uplinks = u;
	for (unsigned core = 0; rc == 0 && core < cores; core++) {
		struct box_dial *dial = &u->dials[core];

		dial->number = first + core;
		dial->core = whole ? core : box_uplinks_core(job, dial->number);
		dial->there = core;
		rc = box_uplinks_fill(job, call, place, whole, dial, e);
	}
	return rc;
}

/* The other box may be about to say why. */
static void box_uplinks_end(const struct job *job, struct box_uplinks *u, const char *why)
{
	u->ended_ns = job->control->now_ns ? job->control->now_ns : 1;
	snprintf(u->why, sizeof(u->why), "%.*s", (int)sizeof(u->why) - 1, why);
}

/* So long until a connection that does not come is given up. */
static uint64_t box_uplinks_patience_ns(const struct job *job)
{
	return (job->control->config->handshake_ms + job->control->config->lost_ms) * NS_PER_MS;
}

int box_uplinks_give(const struct job *job, struct box_uplinks *u, struct err *e)
{
	const struct config *config = job->control->config;
	int rc;

	if (u->ended_ns || job->generation->detaching) /* cores have let go of its shards, or are about to */
		return -EAGAIN;
	rc = box_dials_give(job->control, job->generation, u->dials, u->count, u->serial + 1, e);
	u->serial += rc == 0;
	/* Some transports have no clock at this end, and what they said may have found no room. */
	if (rc == -EAGAIN && job->control->now_ns - u->begun_ns > box_uplinks_patience_ns(job))
		rc = err_set(e, -ETIMEDOUT, "its data connections were not made within %" PRIu64 " ms",
			config->handshake_ms + config->lost_ms);
	if (rc < 0 && rc != -EAGAIN && box_uplinks_detour(job, u, e) == 0)
		rc = -EAGAIN;
	job->control->soon = job->control->soon || rc == -EAGAIN;
	if (rc == 0 || rc == -EAGAIN)
		return rc;
	box_uplinks_end(job, u, e->text);
	return -EAGAIN;
}

/* False: it has broken for too long. */
static bool box_dial_break(const struct job *job, struct box_dial *d, const struct mail *mail)
{
	const struct control *c = job->control;
	uint64_t now_ns = c->now_ns ? c->now_ns : 1;

	/* A sum that waits for others above may have no result for hours, by a connection that is sound. */
	if (!d->broken_ns || mail->answered || now_ns - d->made_ns > box_uplinks_patience_ns(job))
		d->broken_ns = now_ns;
	else if (now_ns - d->broken_ns > c->config->lost_ms * NS_PER_MS)
		return false;
	log_warn("job '%s': the uplink of core %u to core %u of the box above, or beside, %s: %s; it is made anew "
		 "within %.1f s",
		job->name, d->core, d->there, mail->conn ? "was not taken" : "broke",
		mail->text[0] ? mail->text : strerror((int)-mail->value),
		(double)(d->broken_ns + c->config->lost_ms * NS_PER_MS - now_ns) / 1e9);
	d->broken = true;
	d->retry_ns = now_ns;
	job->control->again = true;
	return true;
}

bool box_uplinks_hear(const struct job *job, struct box_uplinks *u, const struct mail *mail)
{
	struct box_dial *dial = mail->detail == u->serial ? box_dials_find(u->dials, u->count, mail) : NULL;
	char why[sizeof(u->why)];

	if (!dial)
		return false;
	dial->out = false;
	if (u->ended_ns)
		return true;
	if (mail->broken && box_dial_break(job, dial, mail))
		return true;
	snprintf(why, sizeof(why), "the uplink of core %u to its core %u %s: %s", dial->core, dial->there,
		mail->broken ? "broke again and again, and no result came between" : "ended",
		mail->text[0] ? mail->text : strerror((int)-mail->value));
	box_uplinks_end(job, u, why);
	return true;
}

/* All here wait for the next generation: the other box ends what is of the old one when it begins with that. */
static bool box_uplinks_are_over(const struct job *job)
{
	return job->tabled > 0 && job->tabled == job_live(job);
}

void box_uplinks_hear_broken(const struct job *job, const struct box_uplinks *u, uint32_t core)
{
	const struct generation *g = job->generation;

	for (unsigned i = 0; g && !g->detaching && i < u->count; i++) {
		const struct box_dial *d = &u->dials[i];
		const struct mail mail = {.kind = MAIL_UPLINK_END,
			.core = d->core,
			.shard = g->store.shards[d->core],
			.rank = d->number,
			.detail = u->serial,
			.broken = true};

		if (d->there == core && d->out)
			post_send(&job->control->box->posts[d->core], &mail);
	}
}

/* One that broke. 0: it is with its core again; -EAGAIN; or why not, this time. */
static int box_dial_mend(struct job *job, struct box_uplinks *u, struct box_dial *d, struct err *e)
{
	struct control *c = job->control;
	int rc;

	if (!d->conn && c->now_ns < d->retry_ns)
		return -EAGAIN;
	rc = d->conn ? 0 : box_dial_begin(c, u->call, d, e);
	if (rc == 0)
		rc = d->conn->transport->ops->established(d->conn->transport, d->conn, e);
	if (rc == 0) {
		box_dial_give(c, job->generation, d, u->serial);
		d->broken = false;
		d->made_ns = c->now_ns;
		job->reconnects++;
		log_info("job '%s': the uplink of core %u to core %u was made anew", job->name, d->core, d->there);
	} else if (rc != -EAGAIN && d->conn) {
		d->conn->transport->ops->abandon(d->conn->transport, d->conn);
		d->conn = NULL;
	}
	if (rc < 0 && !d->conn)
		d->retry_ns = c->now_ns + CALLS_MEND_NS;
	return rc;
}

static void box_uplinks_mend(struct job *job, struct box_uplinks *u)
{
	const struct config *config = job->control->config;

	for (unsigned i = 0; !u->ended_ns && u->call && !job->generation->detaching && i < u->count; i++) {
		struct box_dial *d = &u->dials[i];
		struct err e = {.text = "it does not answer"};
		char why[sizeof(u->why)];
		int rc;

		if (!d->broken)
			continue;
		rc = box_dial_mend(job, u, d, &e);
		job->control->soon = job->control->soon || rc < 0;
		if (rc == 0 || job->control->now_ns - d->broken_ns <= config->lost_ms * NS_PER_MS)
			continue;
		snprintf(why, sizeof(why), "the uplink of core %u to its core %u broke, and was not made anew: %.100s",
			d->core, d->there, e.text);
		box_uplinks_end(job, u, why);
	}
}

int box_uplinks_check(struct job *job, struct box_uplinks *u, struct err *e)
{
	box_uplinks_mend(job, u);
	if (!u->ended_ns || box_uplinks_are_over(job) || job->control->now_ns - u->ended_ns <= CALLS_REASON_NS)
		return 0;
	return err_set(e, -ECONNRESET, "%s", u->why);
}

bool box_uplinks_carry(const struct box_uplinks *u, uint32_t way)
{
	return way >= u->first && way - u->first < u->count && u->dials[way - u->first].out;
}

/* NULL: it has none. */
static const struct uplink_counters *box_uplinks_counters(const struct job *job, const struct box_dial *dial)
{
	const struct shard *shard = job->generation ? job->generation->store.shards[dial->core] : NULL;

	return shard && dial->spec.conn.chunk_count > 0 ? &shard->uplinks[dial->number].counters : NULL;
}

uint64_t box_uplinks_bytes(const struct job *job, const struct box_uplinks *u)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < u->count; i++) {
		const struct uplink_counters *n = box_uplinks_counters(job, &u->dials[i]);

		bytes += n ? stats_read(&n->bytes) : 0;
	}
	return bytes;
}

uint64_t box_uplinks_results(const struct job *job, const struct box_uplinks *u)
{
	uint64_t results = 0;

	for (unsigned i = 0; i < u->count; i++) {
		const struct uplink_counters *n = box_uplinks_counters(job, &u->dials[i]);

		results += n ? stats_read(&n->results) : 0;
	}
	return results;
}

/* Nobody is at their other end any more. */
static void box_uplinks_cut(struct box_uplinks *u)
{
	if (u->job->generation)
		box_dials_drop(u->job->control, u->job->generation, u->dials, u->count, u->serial, false);
}

void box_uplinks_forget(struct box_uplinks *u)
{
	if (u->call)
		u->call->uplinks = NULL;
	for (unsigned i = 0; i < u->count; i++) {
		struct conn *conn = u->dials[i].conn;

		if (conn)
			conn->transport->ops->abandon(conn->transport, conn);
		free(u->dials[i].spec.conn.sinks);
		free((void *)(uintptr_t)u->dials[i].spec.conn.spans);
	}
	if (u->dials)
		explicit_bzero(u->dials, u->count * sizeof(*u->dials));
	free(u->dials);
	*u = (struct box_uplinks){.serial = u->serial};
}
