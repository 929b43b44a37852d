/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a session: taken in, read frame by frame, watched for silence, ended. What it may say in which state is
 * decided here and nowhere else.
 */
#include "phub/control/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/control/admin.h"
#include "phub/control/box.h"
#include "phub/control/job_below.h"
#include "phub/control/job_mirror.h"
#include "phub/control/peers.h"
#include "phub/control/peers_move.h"
#include "phub/control/standby.h"
#include "phub/control/table.h"
#include "phub/control/unpack.h"

enum {
	SESSION_FRAMES = 64,              /* of one session before the others have their turn */
	SESSION_SIGNALS = 64,             /* a second, for each core: more is a flood; */
	SESSION_SIGNALS_BURST_S = 4,      /* so many seconds' worth at once */
	SESSION_STRANGER_BYTES = 1 << 16, /* no frame of a stranger has more; a ClientHello that came astray has */
	SESSION_WRITER_BYTES = 8 << 20,   /* unsent: above that the peer does not read */
	SESSION_STRANGERS_MIN = 16,       /* may always try at once, however small sessions_max is */
	SESSION_TABLES_SHARE = 8,         /* tables that are coming in take at most this part of memory_max... */
	SESSION_OTHERS_SHARE = 4,         /* ...and those of one tenant leave this part of that to others */
	SESSION_TABLE_S = 120,            /* that a table may take to come */
};

const char *session_who(const struct session *s, char *out, size_t bytes)
{
	char box[NAMES_TEXT_BYTES];

	if (s->state == SESSION_AWAIT_HELLO)
		snprintf(out, bytes, "stranger %s", s->stream->peer);
	else if (s->admin)
		snprintf(out, bytes, "administrator %s", s->stream->peer);
	else if (s->mirror)
		snprintf(out, bytes, "box of job '%s' (%s)", s->name, s->stream->peer);
	else if (s->peer && s->job)
		snprintf(out, bytes, "job '%s' %s beside", s->name, peers_session_name(s));
	else if (s->below)
		snprintf(out, bytes, "job '%s' box %s %s", s->name,
			names_write(s->box.name, s->box.address, box, sizeof(box)), s->peer ? "beside" : "below");
	else
		snprintf(out, bytes, "job '%s' rank %u (%s)", s->name, s->rank, s->stream->peer);
	return out;
}

/*
 * Strangers take neither all sessions nor each other's place for long: when there are too many, the one that came first
 * makes room. Who means well is through by then, and a worker that is not tries again.
 */
static void session_make_room(struct control *c)
{
	static struct log_limit limit;
	unsigned strangers = (unsigned)c->config->sessions_max / 2;
	struct session *oldest = NULL;
	uint64_t quiet;

	if (strangers < SESSION_STRANGERS_MIN)
		strangers = SESSION_STRANGERS_MIN;
	if (c->stranger_count < strangers)
		return;
	for (struct session *s = c->sessions; s && !oldest; s = s->next)
		if (!s->proved && !s->dead)
			oldest = s;
	if (!oldest)
		return;
	c->strangers_refused++;
	if (log_limit_pass(&limit, c->now_ns, 1000000000ull, &quiet))
		log_warn("stranger %s is closed: %u of them at once, which is what sessions_max allows (%llu more were "
			 "not logged)",
			oldest->stream->peer, c->stranger_count, (unsigned long long)quiet);
	session_lose(oldest, "newer strangers came");
	session_reap(c);
}

static void session_watch(struct session *s, bool write)
{
	struct epoll_event event = {.events = EPOLLIN | (write ? (uint32_t)EPOLLOUT : 0), .data.ptr = &s->watch};
	int fd = s->stream->ops->fd(s->stream);
	int epoll = s->control->epoll_fd;

	if (epoll < 0 || fd < 0)
		return;
	if (epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) < 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0)
		session_lose(s, "the box is out of memory for descriptors");
}

void session_open(struct control *c, struct stream *stream, unsigned listener)
{
	struct session *s = calloc(1, sizeof(*s));
	struct session **last = &c->sessions;
	bool room;

	if (!s) {
		stream->ops->close(stream);
		return;
	}
	session_make_room(c);
	room = c->session_count < c->config->sessions_max;
	s->control = c;
	s->watch = (struct control_watch){CONTROL_SESSION, s};
	s->id = ++c->session_last;
	s->stream = stream;
	s->listener = listener;
	s->reader.bytes_max = SESSION_STRANGER_BYTES;
	s->writer.bytes_max = SESSION_WRITER_BYTES;
	s->readable = true;
	s->opened_ns = c->now_ns;
	s->heard_ns = c->now_ns;
	s->signals_ns = c->now_ns;
	s->signals_left = c->box->core_count * SESSION_SIGNALS * SESSION_SIGNALS_BURST_S;
	while (*last)
		last = &(*last)->next;
	*last = s;
	c->session_count++;
	c->stranger_count++;
	session_watch(s, false);
	if (c->stopping)
		session_refuse(s, PHUB__ERROR_CODE__ERROR_SHUTDOWN, "the box is going down");
	else if (!room)
		session_refuse(s, PHUB__ERROR_CODE__ERROR_LIMIT,
			"the box has %u sessions, %u of them strangers; try again, or raise sessions_max there",
			c->session_count - 1, c->stranger_count - 1);
}

/* Are these names of one tenant: of one entry in the operator's list, or of one job that is not listed? */
static bool session_is_tenant(const struct config *config, const char *name, const char *other)
{
	const struct config_job *listed = config_find_job(config, name);

	return listed ? config_find_job(config, other) == listed : strcmp(name, other) == 0;
}

/* What tables of its tenant take that are coming in, or wait for others. */
static uint64_t session_tables_of_tenant(const struct session *s)
{
	const struct control *c = s->control;
	uint64_t bytes = 0;

	for (const struct session *other = c->sessions; other; other = other->next)
		if (other->table_counted > 0 && session_is_tenant(c->config, s->name, other->name))
			bytes += other->table_counted;
	for (const struct job *job = c->jobs; job; job = job->next)
		if (job->reference_counted > 0 && session_is_tenant(c->config, s->name, job->name))
			bytes += job->reference_counted;
	return bytes;
}

int session_count_table(struct session *s)
{
	struct control *c = s->control;
	uint64_t bytes = table_bytes(s->table), room = c->config->memory_max / SESSION_TABLES_SHARE;

	c->table_bytes += bytes - s->table_counted;
	s->table_counted = bytes;
	if (c->table_bytes <= room - room / SESSION_OTHERS_SHARE)
		return 0;
	return c->table_bytes > room || session_tables_of_tenant(s) > room - room / SESSION_OTHERS_SHARE ? -ENOMEM : 0;
}

void session_drop_table(struct session *s)
{
	table_destroy(s->table);
	s->table = NULL;
	s->control->table_bytes -= s->table_counted;
	s->table_counted = 0;
}

void session_part(struct session *s, const char *why)
{
	session_drop_table(s);
	if (s->job)
		job_lost(s, why);
}

void session_lose(struct session *s, const char *why)
{
	if (s->dead)
		return;
	s->dead = true;
	session_part(s, why);
}

/* A dial over datagrams or RDMA takes some for each core, and where it fails the next comes later each time. */
static bool session_may_signal(struct session *s)
{
	uint64_t cores = s->control->box->core_count, now_ns = s->control->now_ns;
	uint64_t passed_ns = now_ns - s->signals_ns;
	uint64_t most = cores * SESSION_SIGNALS * SESSION_SIGNALS_BURST_S;
	uint64_t left = most;

	if (passed_ns < SESSION_SIGNALS_BURST_S * NS_PER_S)
		left = s->signals_left + passed_ns * cores * SESSION_SIGNALS / NS_PER_S;
	if (left != s->signals_left)
		s->signals_ns = now_ns;
	s->signals_left = (uint32_t)(left < most ? left : most);
	if (s->signals_left == 0)
		return false;
	s->signals_left--;
	return true;
}

/* To the transport that this worker picked; another has no business with it. */
static void session_hear_signal(struct session *s, const Phub__Signal *m)
{
	struct box *box = s->control->box;
	const char *picked = s->job->members[s->rank].transport;
	struct signal signal = {
		.session = s->id, .core = m->core, .number = m->number, .length = (uint32_t)m->data.len};

	if (s->carries) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "a signal of a box that lifts nothing to this one");
		return;
	}
	if (m->data.len > sizeof(signal.bytes)) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "a signal of %zu bytes", m->data.len);
		return;
	}
	if (!session_may_signal(s)) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL,
			"more signals than %u a second for each core: it begins data connections without end",
			(unsigned)SESSION_SIGNALS);
		return;
	}
	if (m->data.len > 0) /* else data is NULL */
		memcpy(signal.bytes, m->data.data, m->data.len);
	for (unsigned i = 0; i < box->transport_count; i++) {
		struct transport *t = box->transports[i].transport;

		if (t->ops->signal_give && (strcmp(t->ops->name, picked) == 0 || (s->peer && !picked[0])))
			t->ops->signal_give(t, &signal);
	}
}

static void session_hear_member(struct session *s, const Phub__Control *m)
{
	switch (m->message_case) {
	case PHUB__CONTROL__MESSAGE_JOB:
		job_hear_table(s, m->job);
		break;
	case PHUB__CONTROL__MESSAGE_KEYS:
		job_hear_keys(s, m->keys);
		break;
	case PHUB__CONTROL__MESSAGE_HYPER:
		job_hear_hyper(s, m->hyper);
		break;
	case PHUB__CONTROL__MESSAGE_BARRIER:
		job_hear_barrier(s, m->barrier->id);
		break;
	case PHUB__CONTROL__MESSAGE_BROKEN:
		job_hear_broken(s, m->broken->core, m->broken->text);
		break;
	case PHUB__CONTROL__MESSAGE_WHO:
		job_hear_who(s, m->who);
		break;
	case PHUB__CONTROL__MESSAGE_SIGNAL:
		session_hear_signal(s, m->signal);
		break;
	case PHUB__CONTROL__MESSAGE_HEARTBEAT:
		session_write_heartbeat(s, m->heartbeat->stamp);
		if (s->below && m->heartbeat->paused)
			job_hear_paused(s, m->heartbeat);
		break;
	case PHUB__CONTROL__MESSAGE_GATHER:
		job_below_gather(s, m->gather);
		break;
	case PHUB__CONTROL__MESSAGE_REHOME:
		peers_move_hear(s, m->rehome);
		break;
	case PHUB__CONTROL__MESSAGE_CARRY:
		peers_move_take(s, m->carry);
		break;
	case PHUB__CONTROL__MESSAGE_LEAVE:
		s->job->members[s->rank].finished = m->leave->finished;
		if (m->leave->error && s->below)
			job_below_fails(s, m->leave);
		else if (!standby_leaves(s->job, s->rank))
			job_leave(s);
		break;
	default:
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "message %d is not for a worker to send",
			(int)m->message_case);
	}
}

static void session_hear_admin(struct session *s, const Phub__Control *m)
{
	if (m->message_case == PHUB__CONTROL__MESSAGE_ADMIN_REQUEST)
		admin_answer(s, m->admin_request);
	else if (m->message_case == PHUB__CONTROL__MESSAGE_HEARTBEAT)
		session_write_heartbeat(s, m->heartbeat->stamp);
	else if (m->message_case == PHUB__CONTROL__MESSAGE_LEAVE)
		session_write_left(s);
	else
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "message %d is not for an administrator to send",
			(int)m->message_case);
}

static void session_hear(struct session *s, const Phub__Control *m)
{
	switch (s->state) {
	case SESSION_AWAIT_HELLO:
		if (m->message_case == PHUB__CONTROL__MESSAGE_HELLO)
			session_hear_hello(s, m->hello);
		else
			session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "message %d instead of hello",
				(int)m->message_case);
		break;
	case SESSION_AWAIT_PROOF:
		if (m->message_case == PHUB__CONTROL__MESSAGE_PROOF)
			session_hear_proof(s, m->proof);
		else
			session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "message %d instead of a proof",
				(int)m->message_case);
		break;
	case SESSION_ADMIN:
		session_hear_admin(s, m);
		break;
	case SESSION_MEMBER:
		if (s->job->mirror && m->message_case != PHUB__CONTROL__MESSAGE_SIGNAL)
			job_mirror_hear(s, m);
		else if (s->peer && m->message_case != PHUB__CONTROL__MESSAGE_SIGNAL)
			peers_hear(s, m);
		else
			session_hear_member(s, m);
		break;
	case SESSION_DONE:
		break;
	}
}

static void session_hear_frame(struct session *s, const uint8_t *frame, size_t bytes)
{
	Phub__Control *message;

	if (s->state == SESSION_DONE)
		return;
	message = unpack_control(frame, bytes);
	if (!message) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "a frame of %zu bytes that is no message", bytes);
		return;
	}
	session_hear(s, message);
	unpack_free(message);
}

/* No TLS with a stranger: nothing can be said to it, so it stands here. */
static void session_log_tls(struct session *s)
{
	static struct log_limit limit;
	char more[LOG_QUIET_BYTES];
	uint64_t quiet;

	s->control->strangers_refused++;
	if (log_limit_pass(&limit, s->control->now_ns, 1000000000ull, &quiet))
		log_warn("stranger %s refused: %s%s", s->stream->peer, s->stream->why.text, log_quiet(quiet, more));
}

/* Its stream has ended, or worse. */
static void session_hear_end(struct session *s, int error)
{
	char why[128];

	if (error == -EMSGSIZE && s->state != SESSION_DONE) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "a frame of more than %zu bytes",
			s->reader.bytes_max ? s->reader.bytes_max : (size_t)FRAME_BYTES_MAX);
		return;
	}
	if (error == -EPROTO && !s->proved && s->state != SESSION_DONE)
		session_log_tls(s);
	if (error == -EPIPE)
		snprintf(why, sizeof(why),
			"its control session ended without a leave: the process exited or was killed, or "
			"its library gave up");
	else
		snprintf(why, sizeof(why), "its control session broke: %s", strerror(-error));
	session_lose(s, why);
}

/* A session that is done is read to its end, or closing it would reset the stream before the peer has read our Error.
 */
static void session_discard(struct session *s)
{
	uint8_t rubbish[4096];
	ssize_t got = 0;

	for (int i = 0; i < SESSION_FRAMES; i++) {
		got = s->stream->ops->read(s->stream, rubbish, sizeof(rubbish));
		if (got <= 0)
			break;
	}
	if (got == -EAGAIN)
		s->readable = s->control->epoll_fd < 0 || s->stream->ops->fd(s->stream) < 0;
	else if (got <= 0)
		session_lose(s, "it was done");
}

void session_read(struct session *s)
{
	const uint8_t *frame;
	size_t bytes;
	int rc;

	if (s->state == SESSION_DONE) {
		session_discard(s);
		return;
	}
	for (int i = 0; i < SESSION_FRAMES && !s->dead; i++) {
		if (s->job && s->job->hyper_sent >= JOB_HYPER_SENT_MAX)
			return; /* it stays readable, and the mail that a core has taken one brings us back */
		rc = frame_read(&s->reader, s->stream, &frame, &bytes);
		if (rc == -EAGAIN) {
			s->readable = s->control->epoll_fd < 0 || s->stream->ops->fd(s->stream) < 0;
			return;
		}
		if (rc < 0) {
			session_hear_end(s, rc);
			return;
		}
		s->heard_ns = s->control->now_ns;
		if (s->warned) {
			s->warned = false;
			if (s->job)
				job_tell_heard(s);
		}
		session_hear_frame(s, frame, bytes);
		if (s->state == SESSION_DONE)
			return;
	}
	s->control->again = true;
}

void session_flush(struct session *s)
{
	bool was = s->blocked;
	int rc;

	if (s->dead || !(s->writer.have || s->blocked || s->stream->unsent))
		return;
	rc = frame_flush(&s->writer, s->stream);
	if (rc == 0 && s->stream->unsent)
		rc = (int)s->stream->ops->write(s->stream, NULL, 0);
	if (rc < 0 && rc != -EAGAIN) {
		if (s->state == SESSION_DONE)
			s->dead = true;
		else
			session_hear_end(s, rc);
		return;
	}
	/* Its handshake is a matter of reading, unless its own answer finds no room. */
	s->blocked = rc == -EAGAIN && (!s->stream->joining || s->stream->unsent);
	if (s->blocked != was)
		session_watch(s, s->blocked);
}

/* Others are told of it; itself, which may have been stopped and reads this when it wakes up, of whom the box means. */
static void session_lose_silent(struct session *s, uint64_t silent_ms)
{
	const char *what = s->mirror ? "the mirroring box" : "this worker";
	char text[ERR_TEXT_MAX], why[64], rank[32] = "", box[NAMES_TEXT_BYTES];

	/* By its name: it passes this on to workers, and boxes, below it. */
	if (s->peer && s->job) {
		what = peers_session_name(s);
	} else if (s->below && s->job) {
		what = job_box_name(s->job, s->rank, box, sizeof(box));
	}
	if (!s->below)
		snprintf(rank, sizeof(rank), " rank %u", s->rank);
	snprintf(text, sizeof(text),
		"job '%s'%s: nothing was heard of %s for %.1f s: it was stopped or starved, or its network broke; it "
		"counts as lost",
		s->name, rank, what, (double)silent_ms / 1e3);
	session_write_error(s, PHUB__ERROR_CODE__ERROR_LOST, s->below ? -1 : (int)s->rank, text);
	snprintf(why, sizeof(why), "it was silent for %.1f s", (double)silent_ms / 1e3);
	session_part(s, why);
}

void session_tick(struct session *s)
{
	const struct config *config = s->control->config;
	uint64_t now_ns = s->control->now_ns;
	uint64_t silent_ms = (now_ns - s->heard_ns) / NS_PER_MS;

	switch (s->state) {
	case SESSION_AWAIT_HELLO:
	case SESSION_AWAIT_PROOF:
		if ((now_ns - s->opened_ns) / NS_PER_MS >= config->handshake_ms)
			session_refuse(s, PHUB__ERROR_CODE__ERROR_BUSY,
				"not proved within the box's handshake_ms of %" PRIu64 "; try again in a moment",
				config->handshake_ms);
		break;
	case SESSION_DONE:
		if ((now_ns - s->done_ns) / NS_PER_MS >= config->handshake_ms)
			session_lose(s, "it was done");
		break;
	case SESSION_ADMIN:
		if (silent_ms >= 6 * config->lost_ms)
			session_lose(s, "it had no questions");
		break;
	case SESSION_MEMBER:
		if (s->table && now_ns - s->table_ns >= SESSION_TABLE_S * NS_PER_S) {
			session_refuse(s, PHUB__ERROR_CODE__ERROR_LIMIT, "its key table has not come in %d s",
				SESSION_TABLE_S);
		} else if (silent_ms >= config->lost_ms) {
			session_lose_silent(s, silent_ms);
		} else if (silent_ms >= config->warn_ms && !s->warned) {
			s->warned = true;
			job_tell_silent(s, silent_ms);
		}
		break;
	}
}

struct session *session_find(struct control *c, uint64_t id)
{
	for (struct session *s = c->sessions; s; s = s->next)
		if (s->id == id && s->job && !s->dead)
			return s;
	return NULL;
}

static void session_close(struct session *s)
{
	struct control *c = s->control;
	int fd = s->stream->ops->fd(s->stream);

	if (c->epoll_fd >= 0 && fd >= 0)
		epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
	c->session_count--;
	if (!s->proved)
		c->stranger_count--;
	s->stream->ops->close(s->stream);
	frame_reader_fini(&s->reader);
	frame_writer_fini(&s->writer);
	explicit_bzero(s->key, sizeof(s->key));
	free(s);
}

void session_reap(struct control *c)
{
	struct session **at = &c->sessions;

	while (*at) {
		struct session *s = *at;

		if (!s->dead) {
			at = &s->next;
			continue;
		}
		*at = s->next;
		session_close(s);
	}
}
