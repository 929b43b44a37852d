/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a wait that ran out of time was waiting for. The box tells who is missing (notices); what this worker itself
 * has not done yet is known here.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/client.h"
#include "client/handle.h"
#include "phub/base/clock.h"
#include "phub/base/ranks.h"

enum {
	EXPLAIN_FRESH_MS = 5000, /* older notices are no news */
	EXPLAIN_RANKS_BYTES = 160,
};

struct explain {
	char *text;
	size_t room, at;
};

static void explain_say(struct explain *x, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void explain_say(struct explain *x, const char *format, ...)
{
	va_list args;
	int n;

	if (x->at >= x->room)
		return;
	va_start(args, format);
	n = vsnprintf(x->text + x->at, x->room - x->at, format, args);
	va_end(args);
	x->at += n > 0 ? (size_t)n : 0;
}

/* Do its words only say once more who is missing? */
static bool explain_is_list(const struct client_notice *n)
{
	return strstr(n->text, " waits ") != NULL;
}

/* "ranks 1-3, 9 and 5 more"; a single one in the box's words, which say where it is and when it was heard of. */
static void explain_missing(struct explain *x, const struct client_notice *n)
{
	const char *whom = strstr(n->text, " waits for rank ");
	char ranks[EXPLAIN_RANKS_BYTES];

	if (n->missing_known == 0) {
		explain_say(x, "%" PRIu32 " ranks that the box does not name", n->missing_count);
		return;
	}
	if (whom && n->missing_count == 1) {
		explain_say(x, "%s", whom + strlen(" waits for "));
		return;
	}
	ranks_write(n->missing, n->missing_known, n->missing_count, ranks, sizeof(ranks));
	explain_say(x, "rank%s %s", n->missing_count == 1 ? "" : "s", ranks);
	if (*n->text && !explain_is_list(n))
		explain_say(x, "; the box says: %s", n->text);
}

/* `n`: what the box said about this very wait, or NULL. */
static void explain_notice(
	struct explain *x, const phub_t *p, const struct client_notice *n, uint64_t now_ns, const char *otherwise)
{
	uint64_t since = now_ns > EXPLAIN_FRESH_MS * NS_PER_MS ? now_ns - EXPLAIN_FRESH_MS * NS_PER_MS : 0;
	const struct client_notice *silence = client_session_silence(&p->session, since);

	if (n && n->missing_count) {
		explain_missing(x, n);
		return;
	}
	explain_say(x, "%s", n && *n->text ? "the box says: " : otherwise);
	if (n && *n->text)
		explain_say(x, "%s", n->text);
	else if (silence)
		explain_say(x, "; the box says: %s", silence->text);
}

/* What the box adds to the list of those that the start waits for: "; 2 of them joined but sent no keys". */
static void explain_start(struct explain *x, const phub_t *p, const struct client_notice *n, uint64_t now_ns)
{
	const char *subject, *more;

	/* No rank is missing: what else the box waits for, it says itself. */
	explain_say(x, n && *n->text && !n->missing_count ? "the start waits; " : "the start waits for ");
	explain_notice(x, p, n, now_ns, "other workers; the box did not say which");
	if (!n || !n->missing_count || !explain_is_list(n))
		return;
	more = strstr(client_session_trim(&p->session, n->text, &subject), "; ");
	explain_say(x, " of %" PRIu32 "%s", p->settings.world, more ? more : "");
}

/* The chunk waits for another key of it, which this worker itself has not pushed. */
static void explain_filling(struct explain *x, const phub_t *p, const struct chunk_span *span)
{
	for (uint32_t i = 0; i < span->key_count; i++) {
		const struct key *other = &p->keyring.keys[span->key_first + i];

		if (exchange_is_open(&p->exchange, other))
			continue;
		explain_say(x,
			"waits for this worker's own key '%s', which shares its chunk and was not pushed; push it, or "
			"name keys with PHUB_KEY_ALONE",
			other->name);
		return;
	}
}

static void explain_flight(struct explain *x, const phub_t *p, const struct flight *f, uint64_t now_ns)
{
	uint32_t chunk = (uint32_t)(f - p->exchange.flights);
	const struct client_subject subject = {PHUB__ABOUT__ABOUT_ROUND, chunk, f->round};
	const struct client_notice *n = client_session_notice(&p->session, &subject);

	if (f->state == FLIGHT_FILLING) {
		explain_filling(x, p, &p->keyring.plan.chunks[chunk]);
	} else if (f->copies) {
		explain_say(x, "is still being copied %s a GPU",
			f->state == FLIGHT_FETCHED ? "from the memory of" : "to the memory of");
	} else if (f->state == FLIGHT_QUEUED) {
		explain_say(x, "was not sent yet: core %" PRIu32 " of the box takes no more%s", f->lane->core,
			f->lane->full ? " (its connection is full)" : "");
		if (n && n->missing_count) {
			explain_say(x, "; the round waits for ");
			explain_missing(x, n);
		}
	} else if (n && n->missing_count) {
		explain_say(x, "waits for ");
		explain_missing(x, n);
	} else {
		explain_say(x, "was sent %.1f s ago to core %" PRIu32 " and is not answered; ",
			(double)(now_ns - f->sent_ns) / 1e9, f->lane->core);
		explain_notice(x, p, n, now_ns, "the box did not say whom it waits for");
	}
}

/* What its round waits for next, or NULL: a chunk without result, if there is one, as others may have to wait for it.
 */
static const struct flight *explain_key_flight(const phub_t *p, const struct key *key)
{
	const struct flight *landed = NULL;

	for (uint32_t i = 0; i < key->chunk_count; i++) {
		const struct flight *f = &p->exchange.flights[key->chunk_first + i];

		if (f->state != FLIGHT_IDLE && f->state != FLIGHT_LANDED)
			return f;
		if (f->state == FLIGHT_LANDED && !landed)
			landed = f;
	}
	return landed;
}

/* The key itself, or of all the first that is in flight; NULL: none is. */
static const struct key *explain_open_key(const phub_t *p, int key)
{
	for (uint32_t i = key == PHUB_ALL ? 0 : (uint32_t)key; i < p->keyring.count; i++)
		if (exchange_is_open(&p->exchange, &p->keyring.keys[i]))
			return &p->keyring.keys[i];
	return NULL;
}

static void explain_round(struct explain *x, const phub_t *p, int index, uint64_t now_ns)
{
	const struct key *key = explain_open_key(p, index);
	const struct flight *f = key ? explain_key_flight(p, key) : NULL;

	if (f) {
		explain_say(x, "key '%s' round %" PRIu64 " ", key->name, f->round);
		explain_flight(x, p, f, now_ns);
	} else if (key) {
		explain_say(x, "key '%s' is being finished", key->name);
	}
	if (index == PHUB_ALL && p->exchange.open_keys > 1)
		explain_say(x, " (and %" PRIu32 " more keys)", p->exchange.open_keys - 1);
}

/* What the box could know about the wait. False: nothing. */
static bool explain_subject(const phub_t *p, int index, struct client_subject *out)
{
	const struct client_session *s = &p->session;
	const struct key *key;
	const struct flight *f;

	*out = (struct client_subject){.chunk = UINT32_MAX};
	if (s->verdict.code || !s->stream)
		return false;
	if (index == CLIENT_BARRIER) {
		out->about = PHUB__ABOUT__ABOUT_BARRIER;
		out->round = s->barrier;
		return s->state >= SESSION_JOINED && s->state <= SESSION_STARTED;
	}
	if (s->state == SESSION_STARTING) {
		out->about = PHUB__ABOUT__ABOUT_START;
		out->round = s->generation;
		return true;
	}
	if (!p->running || s->state != SESSION_STARTED)
		return false;
	key = explain_open_key(p, index);
	f = key ? explain_key_flight(p, key) : NULL;
	if (!f || f->state == FLIGHT_FILLING)
		return false;
	*out = (struct client_subject){PHUB__ABOUT__ABOUT_ROUND, (uint32_t)(f - p->exchange.flights), f->round};
	return true;
}

void client_ask(phub_t *p, int key, uint64_t since_ns, uint64_t now_ns)
{
	struct client_session *s = &p->session;
	struct client_subject subject;

	if (!explain_subject(p, key, &subject))
		return;
	if (s->asked_ns && s->asked_ns >= since_ns && client_subject_equal(&s->asked, &subject))
		return;
	client_session_ask(s, &subject, now_ns);
	client_look(p);
}

bool client_answered(const phub_t *p, int key, uint64_t since_ns)
{
	const struct client_notice *n;
	struct client_subject subject;

	if (!explain_subject(p, key, &subject))
		return true;
	n = client_session_notice(&p->session, &subject);
	return n && n->at_ns >= since_ns;
}

void client_explain(const phub_t *p, int key, uint64_t now_ns, char *text, size_t text_bytes)
{
	struct explain x = {.text = text, .room = text_bytes};
	const struct client_session *s = &p->session;
	const struct client_notice *n = NULL;
	struct client_subject subject;

	if (explain_subject(p, key, &subject))
		n = client_session_notice(s, &subject);
	*text = '\0';
	explain_say(&x, "%s: ", s->who);
	if (p->move.until_ns)
		explain_say(&x, "the box is lost, and its standby, %s, is to go on: ", s->box);
	if (client_session_unreachable(s) || (s->state < SESSION_JOINED && s->trouble.code == -EBUSY)) {
		/* Some reasons end with what to do. */
		explain_say(&x, "box %s %s: %s%s", s->box,
			s->trouble.code == -EBUSY ? "did not let it in" : "cannot be reached",
			s->trouble.code ? s->trouble.text : "no try was made",
			s->trouble.code && strstr(s->trouble.text, "; ") ? "" : "; is phubd running there?");
	} else if (s->state < SESSION_JOINED) {
		explain_say(&x, "box %s accepts no connection or does not answer%s%s", s->box,
			s->trouble.code ? ": " : "", s->trouble.code ? s->trouble.text : "");
	} else if (s->state == SESSION_LEAVING) {
		explain_say(&x, "box %s did not confirm that the job was left", s->box);
	} else if (key == CLIENT_BARRIER) {
		explain_say(&x, "the barrier waits for ");
		explain_notice(&x, p, n, now_ns, "other workers; the box did not say which");
	} else if (s->state == SESSION_STARTING) {
		explain_start(&x, p, n, now_ns);
	} else if (!p->running) {
		explain_say(&x, "%" PRIu32 " of %" PRIu32 " connections to the cores of box %s are not up",
			p->exchange.connecting, p->exchange.lane_count, s->box);
	} else {
		explain_round(&x, p, key, now_ns);
	}
}
