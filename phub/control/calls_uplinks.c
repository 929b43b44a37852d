/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uplinks: the connections of a generation to one other box. They are begun, given to cores, made anew where they
 * break, and ended; and what is told of them.
 */
#include "phub/control/calls.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/base/stats.h"
#include "phub/control/box.h"
#include "phub/control/generation.h"
#include "phub/control/job.h"
#include "phub/lift.h"

#define UPLINKS_REASON_NS NS_PER_S     /* so long after one has ended sessions may still say why */
#define UPLINKS_MEND_NS   200000000ull /* one that broke is tried again so often */

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
		uint32_t elements = up->shard->chunks[last->local].elements;
		uint8_t *end = (last->code ? last->code : (uint8_t *)last->lift) + elements * sizeof(float);

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

		spans[at] = shard->lift_spans[local];
		largest = spans[at].bytes > largest ? spans[at].bytes : largest;
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
 * are made by another transport. 0: they are being made; or why not, in `e`.
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
		d->retry_ns = c->now_ns + UPLINKS_MEND_NS;
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
	if (!u->ended_ns || box_uplinks_are_over(job) || job->control->now_ns - u->ended_ns <= UPLINKS_REASON_NS)
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

void box_uplinks_cut(struct box_uplinks *u)
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
