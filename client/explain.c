/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a wait that ran out of time was waiting for. The box tells who is missing (notices); what this worker itself
 * has not done yet is known here.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/client.h"
#include "client/handle.h"
#include "client/ranks.h"
#include "phub/base/clock.h"

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

static void explain_newest(struct explain *x, const phub_t *p, uint64_t now_ns, const char *otherwise)
{
	uint64_t since = now_ns > EXPLAIN_FRESH_MS * NS_PER_MS ? now_ns - EXPLAIN_FRESH_MS * NS_PER_MS : 0;
	const struct client_notice *n = client_session_newest(&p->session, since);

	if (n && n->missing_count) {
		explain_missing(x, n);
	} else if (n && *n->text) {
		const char *subject, *words = client_session_trim(&p->session, n->text, &subject);

		explain_say(x, "%s%s", subject, words);
	} else {
		explain_say(x, "%s", otherwise);
	}
}

/* What the box adds to the list of those that the start waits for: "; 2 of them joined but sent no keys". */
static void explain_start(struct explain *x, const phub_t *p, uint64_t now_ns)
{
	const struct client_notice *n = client_session_newest(&p->session, 0);
	const char *subject, *more;

	explain_say(x, "the start waits for ");
	explain_newest(x, p, now_ns, "other workers; the box did not say which");
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

		if (other->open)
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
	const struct client_notice *n = client_session_notice(&p->session, chunk, f->round);

	if (f->state == FLIGHT_FILLING) {
		explain_filling(x, p, &p->keyring.plan.chunks[chunk]);
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
		explain_newest(x, p, now_ns, "the box did not say whom it waits for");
	}
}

static void explain_key(struct explain *x, const phub_t *p, const struct key *key, uint64_t now_ns)
{
	for (uint32_t i = 0; i < key->chunk_count; i++) {
		const struct flight *f = &p->exchange.flights[key->chunk_first + i];

		if (f->state == FLIGHT_IDLE)
			continue;
		explain_say(x, "key '%s' round %" PRIu64 " ", key->name, f->round);
		explain_flight(x, p, f, now_ns);
		return;
	}
	explain_say(x, "key '%s' is being finished", key->name);
}

static void explain_round(struct explain *x, const phub_t *p, int key, uint64_t now_ns)
{
	uint32_t index = (uint32_t)key;

	for (index = key == PHUB_ALL ? 0 : index; index < p->keyring.count; index++) {
		if (p->keyring.keys[index].open) {
			explain_key(x, p, &p->keyring.keys[index], now_ns);
			break;
		}
	}
	if (key == PHUB_ALL && p->exchange.open_keys > 1)
		explain_say(x, " (and %" PRIu32 " more keys)", p->exchange.open_keys - 1);
}

void client_explain(const phub_t *p, int key, uint64_t now_ns, char *text, size_t text_bytes)
{
	struct explain x = {.text = text, .room = text_bytes};
	const struct client_session *s = &p->session;

	*text = '\0';
	explain_say(&x, "%s: ", s->who);
	if (s->state == SESSION_DIALLING) {
		/* Some reasons end with what to do. */
		explain_say(&x, "box %s cannot be reached: %s%s", s->box,
			s->trouble.code ? s->trouble.text : "no try was made",
			s->trouble.code && strstr(s->trouble.text, "; ") ? "" : "; is phubd running there?");
	} else if (s->state < SESSION_JOINED) {
		explain_say(&x, "box %s accepts no connection or does not answer%s%s", s->box,
			s->trouble.code ? ": " : "", s->trouble.code ? s->trouble.text : "");
	} else if (s->state == SESSION_LEAVING) {
		explain_say(&x, "box %s did not confirm that the job was left", s->box);
	} else if (s->state == SESSION_STARTING) {
		explain_start(&x, p, now_ns);
	} else if (!p->running) {
		explain_say(&x, "%" PRIu32 " of %" PRIu32 " connections to the cores of box %s are not up",
			p->exchange.connecting, p->exchange.lane_count, s->box);
	} else if (s->barrier != s->barrier_done && p->exchange.open_keys == 0) {
		explain_say(&x, "the barrier waits for ");
		explain_newest(&x, p, now_ns, "other workers; the box did not say which");
	} else {
		explain_round(&x, p, key, now_ns);
	}
}
