/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker's control session: reaching the box, the order of messages, heartbeats, and the end. What the box's
 * messages mean is hear.c, what the worker says is say.c.
 */
#include "client/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/hear.h"
#include "client/say.h"

#define SESSION_MS 1000000ull

enum {
	SESSION_BACKOFF_MIN_MS = 20,
	SESSION_BACKOFF_MAX_MS = 500,
	SESSION_OTHER_MS = 2000, /* a box is tried for so long before another is: it may just be starting */
	SESSION_CHECK_MS = 1,    /* a stream with an fd is read this often while rounds run: a read is a system call */
	SESSION_FRAMES_MAX = 64, /* per progress() */
};

void client_session_aim(struct client_session *s, const struct url_box *box)
{
	s->at = *box;
	s->other = (struct url_box){0};
	s->tried_ns = 0;
	snprintf(s->box, sizeof(s->box), strchr(s->at.host, ':') ? "[%s]:%u" : "%s:%u", s->at.host, s->at.port);
}

void client_session_init(struct client_session *s, const struct client_env *env, struct settings *settings)
{
	memset(s, 0, sizeof(*s));
	s->env = env;
	s->settings = settings;
	s->state = SESSION_DIALLING;
	s->backoff_ns = SESSION_BACKOFF_MIN_MS * SESSION_MS;
	s->at.port = settings->url.port;
	memcpy(s->at.host, settings->url.host, sizeof(s->at.host));
	client_session_aim(s, &s->at);
	s->other = settings->url.other;
	snprintf(s->who, sizeof(s->who), "job %s rank %" PRIu32, settings->url.job, settings->rank);
}

/* ---- ending ---- */

static void client_session_hang_up(struct client_session *s)
{
	if (s->stream)
		s->stream->ops->close(s->stream);
	s->stream = NULL;
	frame_reader_fini(&s->in);
	frame_writer_fini(&s->out);
	memset(&s->in, 0, sizeof(s->in));
	memset(&s->out, 0, sizeof(s->out));
	s->unsent = false;
}

void client_session_fail(struct client_session *s, int code, const char *format, ...)
{
	char text[512];
	va_list args;

	if (s->state == SESSION_OVER)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (s->verdict.code)
		s->failure = s->verdict;
	else
		err_set(&s->failure, code, "%s: %s", s->who, text);
	s->state = SESSION_OVER;
	client_session_hang_up(s);
}

void client_session_doom(struct client_session *s, uint64_t now_ns, int code, const char *format, ...)
{
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	err_set(&s->verdict, code, "%s: %s", s->who, text);
	s->verdict_ns = now_ns;
}

/* The start that the box named, and all that belongs to it. */
static void client_session_forget(struct client_session *s)
{
	free(s->start.core_of_chunk);
	free(s->start.rounds);
	free(s->start.chunk_rounds);
	memset(&s->start, 0, sizeof(s->start));
}

void client_session_fini(struct client_session *s)
{
	client_session_hang_up(s);
	client_session_forget(s);
	explicit_bzero(s, sizeof(*s));
}

void client_session_between(struct client_session *s, const struct url_box *box, const struct url_box *other)
{
	client_session_aim(s, box);
	s->other = *other;
}

void client_session_move(struct client_session *s, const struct url_box *box, uint64_t at_ns)
{
	struct client_session before = *s;
	struct url_box to = *box;

	client_session_hang_up(&before);
	free(before.start.core_of_chunk);
	free(before.start.chunk_rounds);
	client_session_init(s, before.env, before.settings);
	client_session_aim(s, &to);
	s->moves = true;
	s->retry_ns = at_ns;
	s->start.joined = before.start.joined;
	s->start.rounds = before.start.rounds;
	s->start.round_count = before.start.round_count;
	s->present = before.present;
	s->gone = before.gone;
	s->barrier = before.barrier;
	s->barrier_done = before.barrier_done;
	s->barrier_told = before.barrier_told;
	explicit_bzero(&before, sizeof(before));
}

/* ---- reaching the box ---- */

static bool client_session_joined(const struct client_session *s)
{
	return s->state >= SESSION_JOINED && s->state < SESSION_OVER;
}

bool client_session_can_move(const struct client_session *s)
{
	return s->settings->move_ms && *s->standby.host;
}

bool client_session_unreachable(const struct client_session *s)
{
	return s->state == SESSION_DIALLING || (s->state == SESSION_HELLO && s->trouble.code == -ECONNREFUSED);
}

/* This box was tried for long enough: the other one's turn. */
static void client_session_turn(struct client_session *s, uint64_t now_ns)
{
	struct url_box tried = s->at, other = s->other;

	if (!*other.host || now_ns - s->tried_ns < SESSION_OTHER_MS * SESSION_MS)
		return;
	client_session_aim(s, &other);
	s->other = tried;
}

void client_session_retry(struct client_session *s, uint64_t now_ns, int code, const char *why)
{
	client_session_hang_up(s);
	err_set(&s->trouble, code, "%s", why);
	s->state = SESSION_DIALLING;
	client_session_turn(s, now_ns);
	s->retry_ns = now_ns + s->backoff_ns;
	s->backoff_ns *= 2;
	if (s->backoff_ns > SESSION_BACKOFF_MAX_MS * SESSION_MS)
		s->backoff_ns = SESSION_BACKOFF_MAX_MS * SESSION_MS;
}

/* No later try would do better. -ENOENT: a name server has answered that there is no such host. */
static bool client_session_hopeless(int code)
{
	return code == -EINVAL || code == -ENOMEM || code == -ENODEV || code == -EPERM || code == -EACCES ||
	       code == -ENOENT || code == -EPROTO;
}

static void client_session_dial(struct client_session *s, uint64_t now_ns)
{
	struct err e = {0};
	int rc = s->env->dial(s->env->ctx, s->at.host, s->at.port, &s->stream, &e);

	if (s->tried_ns == 0)
		s->tried_ns = now_ns ? now_ns : 1;
	if (rc < 0) {
		s->stream = NULL;
		if (client_session_hopeless(rc))
			client_session_fail(s, rc, "box %s cannot be reached: %s", s->box, e.text);
		else
			client_session_retry(s, now_ns, rc, e.text);
		return;
	}
	if (s->settings->tls && stream_tls_dial(s->settings->tls, s->at.host, s->stream, &s->stream) < 0) {
		s->stream = NULL;
		client_session_fail(s, -ENOMEM, "no memory for TLS with box %s", s->box);
		return;
	}
	s->state = SESSION_HELLO;
	if (s->trouble.code == 0) /* what an earlier try met says more */
		s->trouble = s->stream->why;
	rc = client_say_hello(s);
	if (rc < 0)
		client_session_fail(s, rc, "cannot greet box %s: %s", s->box, strerror(-rc));
}

/* The stream ended before we were a member. */
static void client_session_unreached(struct client_session *s, uint64_t now_ns, int code)
{
	struct err why = s->stream->why;

	if (why.code == 0)
		client_session_retry(s, now_ns, code == -EPIPE ? -ECONNRESET : code,
			code == -EPIPE ? "it hung up" : strerror(-code));
	else if (client_session_hopeless(why.code))
		client_session_fail(s, why.code, "box %s cannot be reached: %s", s->box, why.text);
	else
		client_session_retry(s, now_ns, why.code, why.text);
}

/* What to do where the box is gone, and nothing here waits for it. */
static const char *client_session_advice(const struct client_session *s)
{
	if (s->call || s->settings->resume_ms)
		return "";
	if (s->settings->hostbox)
		return ": it died; start the job again";
	if (*s->settings->sites)
		return ": it died or was stopped. When it runs again, start all sites again: each goes on from the "
		       "state that it has saved, where it has, else they begin anew (with resume=SECONDS they go on "
		       "by themselves)";
	return ": it died or was stopped. When it runs again, start the job again: it goes on from its last "
	       "checkpoint, if that box keeps any, or of a tree the one at its top (with resume=SECONDS by itself); a "
	       "job that is sharded or a chain has none, and begins anew";
}

/* The stream has ended or failed. */
static void client_session_lost(struct client_session *s, uint64_t now_ns, int code)
{
	if (s->state == SESSION_LEAVING && !client_session_can_move(s))
		client_session_fail(s, -ESHUTDOWN, "left the job");
	else if (code == -EMSGSIZE)
		client_session_fail(s, -EPROTO,
			"what answers at %s does not speak the language of a box; check host and port", s->box);
	else if (!client_session_joined(s))
		client_session_unreached(s, now_ns, code);
	else if (code == -ENOMEM || code == -ENOBUFS)
		client_session_fail(s, code, "control session with box %s: %s", s->box, strerror(-code));
	else
		client_session_fail(s, -ECONNRESET, "box %s ended the session (%s)%s", s->box,
			code == -EPIPE ? "connection closed" : strerror(-code), client_session_advice(s));
}

/* ---- progress ---- */

static unsigned client_session_read(struct client_session *s, uint64_t now_ns)
{
	unsigned count = 0;

	while (s->stream && !s->verdict.code && count < SESSION_FRAMES_MAX) {
		const uint8_t *frame;
		size_t bytes;
		int rc = frame_read(&s->in, s->stream, &frame, &bytes);

		if (s->trouble.code == -EINPROGRESS && s->stream->why.code == 0)
			s->trouble.code = 0; /* the name is known by now */
		if (rc == -EAGAIN)
			return count;
		count++;
		if (rc < 0) {
			client_session_lost(s, now_ns, rc);
			return count;
		}
		s->unanswered_ns = 0;
		client_session_take(s, frame, bytes, now_ns);
	}
	return count;
}

static void client_session_beat(struct client_session *s, uint64_t now_ns)
{
	if (s->unanswered_ns && now_ns > s->unanswered_ns && now_ns - s->unanswered_ns > s->lost_ns) {
		client_session_fail(s, -EHOSTDOWN, "box %s has been silent for %.1f s", s->box,
			(double)(now_ns - s->unanswered_ns) / 1e9);
		return;
	}
	if (now_ns < s->heartbeat_ns)
		return;
	s->heartbeat_ns = now_ns + s->heartbeat_every_ns;
	if (s->unanswered_ns == 0)
		s->unanswered_ns = now_ns ? now_ns : 1;
	client_say_heartbeat(s, now_ns);
}

/* What the transport has to say to the box's. */
static int client_session_carry(struct client_session *s)
{
	struct signal signal;
	int rc = 0;

	while (rc == 0 && s->carries && s->carries->ops->signal_take(s->carries, &signal) == 0)
		rc = client_say_signal(s, &signal);
	return rc;
}

static void client_session_write(struct client_session *s, uint64_t now_ns)
{
	int rc = client_session_carry(s);

	if (rc == 0 && s->state == SESSION_STARTING)
		rc = client_say_keys(s);
	if (rc == 0 && s->out.have)
		rc = frame_flush(&s->out, s->stream);
	if (rc == 0 && s->stream->unsent)
		rc = (int)s->stream->ops->write(s->stream, NULL, 0);
	s->unsent = rc == -EAGAIN;
	if (rc == -EAGAIN || rc == 0)
		return;
	/* Why it ended may still lie in what the box said last. */
	client_session_read(s, now_ns);
	if (s->stream && !s->verdict.code)
		client_session_lost(s, now_ns, rc);
}

/* When the other box's turn comes, if this one has not answered by then; UINT64_MAX: never. */
static uint64_t client_session_patience(const struct client_session *s)
{
	if (!*s->other.host || (s->state != SESSION_HELLO && s->state != SESSION_PROOF))
		return UINT64_MAX;
	return s->tried_ns + SESSION_OTHER_MS * SESSION_MS;
}

unsigned client_session_progress(struct client_session *s, uint64_t now_ns)
{
	unsigned count = 0;

	if (now_ns >= client_session_patience(s))
		client_session_retry(s, now_ns, -ETIMEDOUT, "it does not answer");

	if (s->state == SESSION_OVER || s->verdict.code)
		return 0;
	if (s->state == SESSION_DIALLING) {
		if (now_ns < s->retry_ns)
			return 0;
		client_session_dial(s, now_ns);
		count++;
	} else if (s->state == SESSION_STARTED && !s->out.have && !s->unsent && !s->carries &&
		   now_ns < s->heartbeat_ns && now_ns - s->checked_ns < SESSION_CHECK_MS * SESSION_MS &&
		   s->stream->ops->fd(s->stream) >= 0) {
		return 0;
	}
	if (!s->stream)
		return count;
	s->checked_ns = now_ns;
	count += client_session_read(s, now_ns);
	if (s->stream && !s->verdict.code && client_session_joined(s))
		client_session_beat(s, now_ns);
	if (s->stream && !s->verdict.code)
		client_session_write(s, now_ns);
	return count;
}

uint64_t client_session_due(const struct client_session *s)
{
	if (s->state == SESSION_DIALLING)
		return s->retry_ns;
	if (s->verdict.code)
		return s->verdict_ns + s->lost_ns;
	return client_session_joined(s) ? s->heartbeat_ns : client_session_patience(s);
}

int client_session_fd(const struct client_session *s, bool *write)
{
	*write = (s->unsent || s->out.have > 0) && !(s->stream && s->stream->joining && !s->stream->unsent);
	/* After the verdict nothing is read from it, and its end would wake us for ever. */
	return s->stream && !s->verdict.code ? s->stream->ops->fd(s->stream) : -1;
}

const char *client_session_trim(const struct client_session *s, const char *text, const char **subject)
{
	char mine[URL_JOB_BYTES + 16], rank[32];
	size_t length = (size_t)snprintf(mine, sizeof(mine), "job '%s'", s->settings->url.job);

	*subject = "";
	if (strncmp(text, mine, length) != 0)
		return text;
	text += length;
	length = (size_t)snprintf(rank, sizeof(rank), " rank %" PRIu32 ": ", s->settings->rank);
	if (strncmp(text, rank, length) == 0)
		return text + length;
	if (strncmp(text, ": ", 2) == 0)
		return text + 2;
	*subject = "the job";
	return text;
}

/* ---- what the handle asks for ---- */

int client_session_start(struct client_session *s, const struct keyring *keyring, const struct phub_hyper *groups,
	const char *transport, uint32_t chunk_bytes)
{
	int rc;

	s->keyring = keyring;
	s->keys_sent = 0;
	s->generation++;
	rc = client_say_job(s, groups, transport, chunk_bytes);
	if (rc < 0)
		return rc;
	s->state = SESSION_STARTING;
	memset(s->notices, 0, sizeof(s->notices));
	return 0;
}

void client_session_restart(struct client_session *s)
{
	if (s->state == SESSION_STARTED)
		s->state = SESSION_JOINED;
	client_session_forget(s);
}

static void client_session_said(struct client_session *s, int rc)
{
	if (rc < 0)
		client_session_fail(s, rc, "control session with box %s: %s", s->box, strerror(-rc));
	else
		client_session_write(s, s->checked_ns);
}

void client_session_hyper(struct client_session *s, uint32_t version, const struct phub_hyper *groups)
{
	client_session_said(s, client_say_hyper(s, version, groups));
}

void client_session_broke(struct client_session *s, uint32_t core, const char *text)
{
	client_session_said(s, client_say_broken(s, core, text));
}

void client_session_barrier(struct client_session *s)
{
	if (s->barrier != s->barrier_told)
		return;
	s->barrier++;
	if (!s->moves)
		client_session_said(s, client_say_barrier(s, s->barrier));
}

void client_session_barrier_again(struct client_session *s)
{
	s->barrier_done = s->start.barrier;
	if (s->barrier > s->barrier_done)
		client_session_said(s, client_say_barrier(s, s->barrier));
}

int client_session_say(struct client_session *s, const Phub__Control *message)
{
	return client_say(s, message);
}

int client_session_address(const struct client_session *s, const char *transport, char *out, size_t out_bytes)
{
	const char *host = s->at.host, *address;

	for (unsigned i = 0; i < s->address_count; i++) {
		if (strcmp(s->addresses[i].transport, transport) != 0)
			continue;
		address = s->addresses[i].address;
		if (strncmp(address, "*:", 2) == 0)
			snprintf(out, out_bytes, strchr(host, ':') ? "[%s]%s" : "%s%s", host, address + 1);
		else
			snprintf(out, out_bytes, "%s", address);
		return 0;
	}
	return -ENOENT;
}

void client_session_leave(struct client_session *s, bool finished)
{
	s->state = SESSION_LEAVING;
	client_session_said(s, client_say_leave(s, finished));
}

void client_session_ask(struct client_session *s, const struct client_subject *subject, uint64_t now_ns)
{
	s->asked = *subject;
	s->asked_ns = now_ns;
	client_session_said(s, client_say_who(s, subject));
}

bool client_subject_equal(const struct client_subject *a, const struct client_subject *b)
{
	return a->about == b->about && a->chunk == b->chunk && a->round == b->round;
}

/* The notice that came `age` notices ago; 1: the last. */
static const struct client_notice *client_session_past(const struct client_session *s, unsigned age)
{
	return &s->notices[(s->notice_next + SESSION_NOTICES - age) % SESSION_NOTICES];
}

const struct client_notice *client_session_notice(const struct client_session *s, const struct client_subject *subject)
{
	for (unsigned age = 1; age <= SESSION_NOTICES; age++) {
		const struct client_notice *n = client_session_past(s, age);

		if (n->valid && client_subject_equal(&n->subject, subject))
			return n;
	}
	return NULL;
}

const struct client_notice *client_session_silence(const struct client_session *s, uint64_t since_ns)
{
	for (unsigned age = 1; age <= SESSION_NOTICES; age++) {
		const struct client_notice *n = client_session_past(s, age);

		if (n->valid && n->subject.about == PHUB__ABOUT__ABOUT_RANK && n->at_ns >= since_ns)
			return n;
	}
	return NULL;
}
