/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the standby asks of a worker: an equal key table, and rounds that follow on its own. Where one of these is not
 * so the move is given up, and all is as if there were no standby: the session ends, or is resumed.
 */
#include "client/move.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "client/handle.h"
#include "phub/base/clock.h"

enum { MOVE_PAUSE_MS = 200 }; /* between sessions with the standby */

/* ---- hyper-parameters ---- */

static struct phub_hyper *move_hypers(const phub_t *p, uint32_t version)
{
	return p->move.told + (size_t)(version % MOVE_HYPERS) * p->settings.group_count;
}

void move_tell_hyper(phub_t *p, uint32_t version)
{
	const struct settings *s = &p->settings;

	if (!p->move.told && s->move_ms && *p->session.standby.host)
		p->move.told = calloc((size_t)MOVE_HYPERS * s->group_count, sizeof(*p->move.told));
	if (p->move.told)
		memcpy(move_hypers(p, version), s->groups, s->group_count * sizeof(*s->groups));
	if (!p->move.until_ns)
		client_session_hyper(&p->session, version, s->groups);
}

/* The versions that the standby does not know. */
static void move_tell_again(phub_t *p)
{
	for (uint32_t v = p->session.start.hyper + 1; v <= p->exchange.hyper; v++)
		client_session_hyper(&p->session, v, move_hypers(p, v));
}

void move_fini(struct move *m)
{
	free(m->told);
	m->told = NULL;
}

/* ---- setting out ---- */

/* The box is gone: no word of its own ended the job, but that it goes down. */
static bool move_is_loss(int code)
{
	return code == -ECONNRESET || code == -EHOSTDOWN || code == -EHOSTUNREACH || code == -ESHUTDOWN;
}

/* Are there rounds, or will there be some as soon as all lanes are up? */
static bool move_has_rounds(const phub_t *p)
{
	return p->running || (p->frozen && p->exchange.keyring && p->exchange.group.queue);
}

static bool move_may(const phub_t *p, int code)
{
	return move_has_rounds(p) && !p->stale.code && client_session_can_move(&p->session) && move_is_loss(code) &&
	       !(p->exchange.given_up && code == -ESHUTDOWN);
}

/* A text without the words that name this worker: they come first. */
static const char *move_trim(const phub_t *p, const char *text)
{
	size_t bytes = strlen(p->session.who);

	return strncmp(text, p->session.who, bytes) == 0 && strncmp(text + bytes, ": ", 2) == 0 ? text + bytes + 2
												: text;
}

static void move_begin(phub_t *p, uint64_t now_ns)
{
	struct err e;

	if (p->exchange.mapped) {
		struct err loss = p->session.failure;

		err_set(&p->session.failure, loss.code,
			"%.400s; it has a standby, where rounds in memory that was shared with it cannot go on",
			loss.text);
		return;
	}
	p->move.loss = p->session.failure;
	p->move.to = p->session.standby;
	p->move.until_ns = now_ns + p->settings.move_ms * NS_PER_MS;
	exchange_rest(&p->exchange);
	client_session_move(&p->session, &p->move.to, now_ns);
	if (p->running)
		return;
	p->refused = (struct err){0};
	p->running = true;
	if (exchange_catch_up(&p->exchange, &e) < 0)
		client_session_fail(&p->session, e.code, "%s", e.text);
	p->catches_up = p->exchange.open_keys > 0;
}

/* ---- on the way ---- */

/* It cannot be: the session ends with what ended the one before, and with this. */
static void move_give_up(phub_t *p, const char *why)
{
	char text[ERR_TEXT_MAX];

	snprintf(text, sizeof(text), "%.190s; box %.60s, its standby, does not go on with the job: %.180s",
		move_trim(p, p->move.loss.text), p->session.box, move_trim(p, why));
	p->move.until_ns = 0;
	client_session_fail(&p->session, p->move.loss.code, "%s", text);
	err_set(&p->session.failure, p->move.loss.code, "%s: %s", p->session.who, text);
}

/* The session with the standby has ended. It may not have seen the end of another one yet, or not be up yet. */
static void move_again(phub_t *p, uint64_t now_ns)
{
	int code = p->session.failure.code;
	struct err why = p->session.failure;

	if (code == -ECONNRESET || code == -EHOSTDOWN || code == -EADDRINUSE)
		client_session_move(&p->session, &p->move.to, now_ns + MOVE_PAUSE_MS * NS_PER_MS);
	else
		move_give_up(p, why.text);
}

/* A member there: the table, once more. */
static void move_ask(phub_t *p)
{
	struct err e;
	int rc = pick_again(&p->session, &p->pick, &e);

	if (rc == 0) {
		rc = client_session_start(&p->session, &p->keyring, p->settings.table, p->pick.offer, p->chunk_bytes);
		if (rc < 0)
			err_set(&e, rc, "cannot hand the key table over: %s", strerror(-rc));
	}
	if (rc < 0)
		move_give_up(p, e.text);
}

/* All workers are there. */
static void move_arrive(phub_t *p, uint64_t now_ns)
{
	uint32_t there = p->session.start.hyper, here = p->exchange.hyper;
	struct err e;

	if (there > here || here - there > MOVE_HYPERS || (there < here && !p->move.told)) {
		move_give_up(p, "its hyper-parameters are not those of this worker");
		return;
	}
	if (exchange_move(&p->exchange, now_ns, &e) < 0) {
		move_give_up(p, e.text);
		return;
	}
	p->move.until_ns = 0;
	p->move.count++;
	if (p->exchange.given_up) { /* the others would wait for it there */
		client_session_leave(&p->session, !p->unfinished);
		return;
	}
	move_tell_again(p);
	client_session_barrier_again(&p->session);
}

bool move_step(phub_t *p, uint64_t now_ns)
{
	const struct client_session *s = &p->session;
	char text[ERR_TEXT_MAX];

	if (!p->move.until_ns && s->state == SESSION_OVER && move_may(p, s->failure.code))
		move_begin(p, now_ns);
	else if (p->move.until_ns && s->state == SESSION_OVER)
		move_again(p, now_ns);
	if (!p->move.until_ns || s->state == SESSION_OVER)
		return s->state != SESSION_OVER;
	if (now_ns >= p->move.until_ns) {
		client_explain(p, PHUB_ALL, now_ns, text, sizeof(text));
		move_give_up(p, text);
	} else if (s->state == SESSION_JOINED) {
		move_ask(p);
	} else if (s->state == SESSION_STARTED) {
		move_arrive(p, now_ns);
	}
	return s->state != SESSION_OVER;
}

void move_now(phub_t *p, uint64_t now_ns)
{
	const struct err *verdict = &p->session.verdict;

	if (!verdict->code || !move_may(p, verdict->code) || p->exchange.mapped)
		return;
	client_session_fail(&p->session, verdict->code, "%s", verdict->text);
	move_step(p, now_ns);
}

uint64_t move_due(const phub_t *p)
{
	return p->move.until_ns && p->session.state != SESSION_OVER ? p->move.until_ns : UINT64_MAX;
}
