/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of the control thread: mail, callers, sessions, data connections, timers; then what was written goes out and
 * what ended is freed.
 */
#include "phub/control/control.h"

#include <errno.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/control/above.h"
#include "phub/control/announce.h"
#include "phub/control/box.h"
#include "phub/control/calls.h"
#include "phub/control/door.h"
#include "phub/control/job.h"
#include "phub/control/job_mirror.h"
#include "phub/control/parent.h"
#include "phub/control/promotion.h"
#include "phub/control/session.h"
#include "transport/control.pb-c.h"
#include "transport/rate.h"
#include "phub/control/standby.h"
#include "transport/stream_tls.h"

enum {
	CONTROL_MAILS = 1024, /* of all cores, in one step */
	CONTROL_CALLERS = 64, /* of one listener, in one step */
	CONTROL_IDLE_NS = 1000000000,
};

static void control_read_mail(struct control *c)
{
	struct mail mail;

	for (int i = 0; i < CONTROL_MAILS; i++) {
		if (mailbox_receive(c->mail, &mail) < 0)
			return;
		job_mail(c, &mail);
	}
	c->again = true;
}

/* The next caller of a listener. */
static int control_accept(struct control *c, unsigned listener, struct stream **out)
{
	struct box *box = c->box;

	return box->env.accept ? box->env.accept(box->env.accept_arg, out)
			       : stream_accept_tcp(box->listeners[listener].fd, out);
}

/* Why it is closed, for workers and operators who try again. What does not go out at once is left out. */
static void control_say_busy(struct stream *stream)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Error error = PHUB__ERROR__INIT;
	uint8_t frame[512];
	struct frame_writer out = {.bytes_max = sizeof(frame)};

	error.code = PHUB__ERROR_CODE__ERROR_BUSY;
	error.text = (char *)(uintptr_t) "too many newcomers came at once for its handshake_rate_source or "
					 "handshake_rate; try again in a moment";
	error.rank = -1;
	control.message_case = PHUB__CONTROL__MESSAGE_ERROR;
	control.error = &error;
	if (frame_append(&out, frame, phub__control__pack(&control, frame)) == 0)
		(void)frame_flush(&out, stream);
	frame_writer_fini(&out);
}

/* Before anything is computed or kept for a caller: are there too many? Closed unheard; over TLS, without a word. */
static bool control_limit(struct control *c, struct stream *stream)
{
	static struct log_limit limit;
	char more[LOG_QUIET_BYTES];
	uint64_t quiet;

	if (rate_take(c->rate, stream->source_known ? stream->source : NULL, c->now_ns))
		return true;
	c->strangers_refused++;
	c->strangers_limited++;
	if (log_limit_pass(&limit, c->now_ns, NS_PER_S, &quiet))
		log_warn("stranger %s is closed unheard: too many came at once for handshake_rate or "
			 "handshake_rate_source%s",
			stream->peer, log_quiet(quiet, more));
	if (!c->box->tls)
		control_say_busy(stream);
	stream->ops->close(stream);
	return false;
}

/* The next caller that is heard: 0, or as control_accept(), also when the last of `left` was turned away. */
static int control_admit(struct control *c, unsigned listener, int *left, struct stream **out)
{
	int rc = -EAGAIN;

	while (*left > 0) {
		--*left;
		rc = control_accept(c, listener, out);
		if (rc < 0 || control_limit(c, *out))
			break;
		rc = -EAGAIN;
	}
	return rc == 0 && c->box->tls ? stream_tls_accept(c->box->tls, *out, out) : rc;
}

static void control_take_callers(struct control *c)
{
	static struct log_limit limit;
	unsigned listeners = c->box->env.accept ? 1 : c->box->listener_count;
	struct stream *stream;
	uint64_t quiet;

	for (unsigned i = 0; i < listeners && !c->accept_paused; i++) {
		for (int left = CONTROL_CALLERS; left > 0;) {
			int rc = control_admit(c, i, &left, &stream);

			if (rc == 0) {
				session_open(c, stream, i);
				continue;
			}
			/* Out of descriptors or memory: the caller stays in the queue, and epoll would call for ever.
			 */
			if (rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM || rc == -ENOBUFS) {
				c->accept_paused = true;
				if (log_limit_pass(&limit, c->now_ns, NS_PER_S, &quiet))
					log_warn("cannot accept a control session: %s; raise `ulimit -n`",
						strerror(-rc));
			}
			break;
		}
	}
}

/* The box itself stood still (stopped, suspended): that was not the workers' silence. */
static void control_forgive_gap(struct control *c)
{
	uint64_t gap_ns = c->now_ns - c->stepped_ns;

	c->stepped_ns = c->now_ns;
	if (gap_ns < CONTROL_IDLE_NS + CONTROL_GAP_NS)
		return;
	for (struct session *s = c->sessions; s; s = s->next) {
		s->heard_ns += gap_ns;
		s->opened_ns += gap_ns;
	}
}

static void control_tick(struct control *c)
{
	c->tick_ns = c->now_ns;
	c->accept_paused = false;
	for (struct session *s = c->sessions; s; s = s->next)
		if (!s->dead)
			session_tick(s);
	for (struct job *job = c->jobs; job; job = job->next)
		if (job->state != JOB_ENDING)
			job_tick(job);
}

static uint64_t control_period(const struct control *c)
{
	return c->sessions || c->jobs || c->keepers || c->accept_paused ? CONTROL_TICK_NS : CONTROL_IDLE_NS;
}

bool control_step(struct control *c, uint64_t now_ns)
{
	bool due = now_ns >= c->tick_ns + control_period(c);

	c->now_ns = now_ns;
	c->again = false;
	c->soon = false;
	above_step(c);
	control_forgive_gap(c);
	control_read_mail(c);
	control_take_callers(c);
	for (struct session *s = c->sessions; s; s = s->next)
		if (s->readable && !s->dead)
			session_read(s);
	door_step(c, due);
	c->keep_ns = job_keep_step(c);
	if (c->box->env.calls) {
		standby_step(c);
		parent_step(c);
		box_calls_step(c);
	}
	job_move_step(c);
	promotion_step(c);
	if (c->box->announce)
		c->box->env.announce->step(c->box->announce, now_ns);
	if (due)
		control_tick(c);
	for (unsigned i = 0; i < c->box->core_count; i++)
		if (!post_flush(&c->box->posts[i]))
			c->again = true;
	for (struct session *s = c->sessions; s; s = s->next)
		session_flush(s);
	job_reap(c);
	session_reap(c);
	return c->again || c->keep_ns <= c->now_ns;
}

uint64_t control_next(const struct control *c)
{
	uint64_t due = c->tick_ns + control_period(c);

	if (c->again)
		return c->now_ns;
	due = c->keep_ns < due ? c->keep_ns : due;
	due = above_next(c) < due ? above_next(c) : due;
	due = promotion_next(c) < due ? promotion_next(c) : due;
	if (c->box->announce && c->box->env.announce->next(c->box->announce) < due)
		due = c->box->env.announce->next(c->box->announce);
	return c->soon && c->now_ns + CONTROL_SOON_NS < due ? c->now_ns + CONTROL_SOON_NS : due;
}

void control_stop(struct control *c)
{
	if (c->stopping)
		return;
	c->stopping = true;
	log_info("the box goes down, with %u job%s", c->job_count, c->job_count == 1 ? "" : "s");
	for (struct job *job = c->jobs; job; job = job->next)
		job_fail(job, PHUB__ERROR_CODE__ERROR_SHUTDOWN, -1, "the box is going down");
	for (struct job *job = c->jobs; job; job = job->next)
		job_hurry(job);
	for (struct session *s = c->sessions; s; s = s->next)
		if (s->state != SESSION_DONE && !s->dead)
			session_write_error(s, PHUB__ERROR_CODE__ERROR_SHUTDOWN, -1, "the box is going down");
	for (struct session *s = c->sessions; s; s = s->next)
		session_flush(s);
	if (c->box->announce)
		c->box->env.announce->stop(c->box->announce, c->now_ns);
}

bool control_stopped(const struct control *c)
{
	if (c->jobs || c->tables)
		return false;
	if (c->box->announce && !c->box->env.announce->stopped(c->box->announce))
		return false;
	for (const struct session *s = c->sessions; s; s = s->next)
		if (!s->dead && (s->writer.have > 0 || s->stream->unsent))
			return false;
	return true;
}

void control_fini(struct control *c)
{
	for (struct session *s = c->sessions; s; s = s->next)
		s->dead = true;
	session_reap(c);
	job_reap(c);
	job_keep_fini(c);
	job_hyper_fini(c);
	box_calls_fini(c);
}
