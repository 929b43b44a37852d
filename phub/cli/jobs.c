/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub jobs and phub top: what a box is doing, once or again and again.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/base/ranks.h"
#include "phub/cli/admin.h"
#include "phub/cli/args.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"
#include "phub/cli/rebalance.h"

struct jobs_options {
	bool json, watch, workers, no_wait;
	uint64_t interval_ms, count;
	const char *address;
	const char *verb, *job, *reason; /* NULL verb: only asks */
};

static const char *const jobs_verbs[] = {"pause", "resume", "drain", "evict", "rebalance", NULL};

static volatile sig_atomic_t jobs_stopped;

static void jobs_on_signal(int number)
{
	(void)number;
	jobs_stopped = 1;
}

/* ---- for scripts ---- */

static json_t *jobs_json_workers(const Phub__JobInfo *job)
{
	json_t *workers = json_array();

	for (size_t i = 0; i < job->n_workers; i++) {
		const Phub__WorkerInfo *w = job->workers[i];

		json_array_append_new(workers,
			json_pack("{s:i, s:s, s:s, s:I, s:I}", "rank", (int)w->rank, "peer", w->peer, "transport",
				w->transport, "silent_ms", (json_int_t)w->silent_ms, "pushes", (json_int_t)w->pushes));
	}
	return workers;
}

static json_t *jobs_json_lost(const Phub__JobInfo *job)
{
	json_t *lost = json_array();

	for (size_t i = 0; i < job->n_lost; i++)
		json_array_append_new(
			lost, json_pack("{s:i, s:I, s:b}", "rank", (int)job->lost[i]->rank, "since_ms",
				      (json_int_t)job->lost[i]->since_ms, "left", (int)job->lost[i]->left));
	return lost;
}

static json_t *jobs_json_last(const Phub__CheckpointInfo *c)
{
	return c->known ? json_pack("{s:I, s:I, s:I, s:I}", "round", (json_int_t)c->round, "age_ms",
				  (json_int_t)c->age_ms, "bytes", (json_int_t)c->bytes, "took_ms",
				  (json_int_t)c->took_ms)
			: json_null();
}

static json_t *jobs_json_checkpoint(const Phub__CheckpointInfo *c)
{
	if (!c)
		return json_null();
	return json_pack("{s:s, s:I, s:o, s:I, s:I, s:b, s:I, s:b, s:o, s:f, s:s, s:I, s:i, s:i, s:i, s:I, s:s}",
		"doing", c->doing, "done", (json_int_t)c->done, "last", jobs_json_last(c), "interval",
		(json_int_t)c->interval, "wanted", (json_int_t)c->wanted, "fixed", (int)c->fixed, "due",
		(json_int_t)c->due, "measured", (int)c->measured, "overhead",
		c->measured ? json_real(c->overhead) : json_null(), "allowed", c->allowed, "error",
		c->error ? c->error : "", "error_ms", (json_int_t)c->error_ms, "targets", (int)c->targets, "parity",
		(int)c->parity, "lacking", (int)c->lacking, "lacking_ms", (json_int_t)c->lacking_ms, "lacking_why",
		c->lacking_why ? c->lacking_why : "");
}

/* NULL: its box has none, or is an older one. */
static json_t *jobs_json_standby(const Phub__JobInfo *job)
{
	json_t *stuck;

	if (!job->standby || !*job->standby)
		return NULL;
	stuck = json_array();
	for (size_t i = 0; i < job->n_workers; i++)
		if (admin_is_stuck(job, job->workers[i]))
			json_array_append_new(stuck, json_integer(job->workers[i]->rank));
	return json_pack("{s:s, s:I, s:I, s:I, s:s, s:o}", "state", job->standby, "since_ms",
		(json_int_t)job->standby_ms, "bytes", (json_int_t)job->standby_bytes, "behind",
		(json_int_t)job->standby_behind, "why", job->standby_why, "cannot_move", stuck);
}

/* NULL: there is none. */
static json_t *jobs_json_below(const Phub__JobInfo *job)
{
	json_t *below = job->n_below ? json_array() : NULL;

	for (size_t i = 0; i < job->n_below; i++) {
		const Phub__BelowInfo *b = job->below[i];
		json_t *ranks = json_array();

		for (size_t k = 0; k < b->n_ranks; k++)
			json_array_append_new(ranks, json_integer(b->ranks[k]));
		json_array_append_new(
			below, json_pack("{s:s, s:s, s:o, s:I, s:I}", "peer", b->peer, "name", b->name, "ranks", ranks,
				       "pushes", (json_int_t)b->pushes, "silent_ms", (json_int_t)b->silent_ms));
	}
	return below;
}

static json_t *jobs_json_above(const Phub__AboveInfo *a)
{
	if (!a)
		return NULL;
	return json_pack("{s:s, s:s, s:s, s:I, s:s, s:s, s:s, s:s}", "box", a->box, "name", a->name, "state", a->state,
		"bytes", (json_int_t)a->bytes, "why", a->why, "transport", a->transport, "transport_why",
		a->transport_why, "advice", a->advice);
}

static json_t *jobs_json_tally(const Phub__SparseInfo *s)
{
	return json_pack("{s:I, s:I, s:I}", "coded", (json_int_t)s->coded, "bytes", (json_int_t)s->bytes, "whole",
		(json_int_t)s->whole);
}

/* NULL: no key is sparse, or an older box does not tell. */
static json_t *jobs_json_sparse(const Phub__JobInfo *job)
{
	if (!job->sparse_pushes || !job->sparse_results)
		return NULL;
	return json_pack("{s:o, s:o}", "pushes", jobs_json_tally(job->sparse_pushes), "results",
		jobs_json_tally(job->sparse_results));
}

/* NULL: it takes part in no exchange. */
static json_t *jobs_json_beside(const Phub__JobInfo *job)
{
	json_t *beside = job->n_beside ? json_array() : NULL;

	for (size_t i = 0; i < job->n_beside; i++) {
		const Phub__BesideInfo *b = job->beside[i];

		json_array_append_new(beside,
			json_pack("{s:s, s:s, s:s, s:I, s:s, s:b, s:I, s:I, s:s, s:s}", "box", b->box, "name", b->name,
				"state", b->state, "bytes", (json_int_t)b->bytes, "why", b->why, "lifts", b->lifts,
				"homes", (json_int_t)b->homes, "home_bytes", (json_int_t)b->home_bytes, "transport",
				b->transport, "transport_why", b->transport_why));
	}
	return beside;
}

/* By reason. NULL: an older box does not tell. */
static json_t *jobs_json_dropped(Phub__Dropped *const *rows, size_t count)
{
	json_t *dropped = count ? json_object() : NULL;

	for (size_t i = 0; i < count; i++)
		json_object_set_new(dropped, rows[i]->why, json_integer((json_int_t)rows[i]->count));
	return dropped;
}

static json_t *jobs_json(const Phub__JobInfo *job)
{
	json_t *missing = json_array();

	for (size_t i = 0; i < job->n_missing; i++)
		json_array_append_new(missing, json_integer(job->missing[i]));
	return json_pack(
		"{s:s, s:i, s:s, s:I, s:I, s:I, s:s, s:s, s:f, s:f, s:I, s:o, s:o, s:s, s:I, s:i, s:i, s:I, s:I, s:I,"
		" s:s, s:i, s:o, s:I, s:I, s:I, s:I, s:o, s:o*, s:o*, s:o*, s:o*, s:o*, s:s*, s:s*, s:o*, s:s*, s:o*}",
		"job", job->name, "world", (int)job->world, "state", job->state, "keys", (json_int_t)job->keys,
		"chunks", (json_int_t)job->chunks, "bytes", (json_int_t)job->bytes, "optimizer", job->optimizer, "sync",
		job->sync, "rounds_per_s", job->rounds_per_s, "gb_per_s", job->gb_per_s, "rounds",
		(json_int_t)job->rounds, "workers", jobs_json_workers(job), "missing", missing, "waiting", job->waiting,
		"reconnects", (json_int_t)job->reconnects, "weight", (int)job->weight, "cores", (int)job->cores,
		"bandwidth", (json_int_t)job->bandwidth, "quota_ms", (json_int_t)job->quota_ms, "share_waits",
		(json_int_t)job->share_waits, "policy", job->lost_policy ? job->lost_policy : "", "quorum",
		(int)job->quorum, "lost", jobs_json_lost(job), "losses", (json_int_t)job->losses, "joins",
		(json_int_t)job->joins, "late", (json_int_t)job->late, "pushed_bytes", (json_int_t)job->pushed_bytes,
		"checkpoint", jobs_json_checkpoint(job->checkpoint), "standby", jobs_json_standby(job), "sparse",
		jobs_json_sparse(job), "dropped", jobs_json_dropped(job->dropped, job->n_dropped), "below",
		jobs_json_below(job), "above", jobs_json_above(job->above), "hierarchy",
		job->n_beside ? job->hierarchy : NULL, "hierarchy_why",
		job->hierarchy_why && *job->hierarchy_why ? job->hierarchy_why : NULL, "beside", jobs_json_beside(job),
		"association", job->association && *job->association ? job->association : NULL, "rebalance",
		rebalance_json(job->rebalance));
}

/* NULL: an older box does not tell. */
static json_t *jobs_json_datagrams(const Phub__Datagrams *d)
{
	json_t *dropped = d ? jobs_json_dropped(d->dropped, d->n_dropped) : NULL;
	json_t *device = d && d->n_device ? json_object() : NULL;

	for (size_t i = 0; d && i < d->n_device; i++)
		json_object_set_new(device, d->device[i]->name, json_integer((json_int_t)d->device[i]->count));
	return !d ? NULL
		  : json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o*, s:o*}", "sent", (json_int_t)d->sent,
			    "sent_bytes", (json_int_t)d->sent_bytes, "came", (json_int_t)d->came, "came_bytes",
			    (json_int_t)d->came_bytes, "resent", (json_int_t)d->resent, "lost", (json_int_t)d->lost,
			    "acks", (json_int_t)d->acks, "dropped", dropped, "device", device);
}

static json_t *jobs_json_core(const Phub__CoreInfo *core)
{
	return json_pack("{s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:o*}", "core", (int)core->core, "cpu",
		(int)core->cpu, "chunks", (json_int_t)core->chunks, "bytes", (json_int_t)core->bytes, "pushed_bytes",
		(json_int_t)core->pushed_bytes, "dropped", (json_int_t)core->dropped, "polls", (json_int_t)core->polls,
		"sleeps", (json_int_t)core->sleeps, "datagrams", jobs_json_datagrams(core->datagrams));
}

/* A line for the box, then one for each core and each job: none of them is named by another's key. */
static bool jobs_print_json(const struct jobs_options *o, const Phub__AdminReply *reply)
{
	bool ok = output_json(json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:o*}", "box", o->address, "version",
		reply->version, "uptime_s", (json_int_t)reply->uptime_s, "jobs", (json_int_t)reply->n_jobs,
		"strangers_refused", (json_int_t)reply->strangers_refused, "strangers_limited",
		(json_int_t)reply->strangers_limited, "exposed", reply->exposed ? reply->exposed : "", "dropped",
		jobs_json_dropped(reply->dropped, reply->n_dropped)));

	for (size_t i = 0; ok && i < reply->n_cores; i++)
		ok = output_json(jobs_json_core(reply->cores[i]));
	for (size_t i = 0; ok && i < reply->n_jobs; i++)
		ok = output_json(jobs_json(reply->jobs[i]));
	return ok;
}

/* ---- for people ---- */

static void jobs_write_missing(const Phub__JobInfo *job, char *out, size_t bytes)
{
	if (job->n_missing)
		ranks_write(job->missing, job->n_missing, job->n_missing, out, bytes);
	else
		snprintf(out, bytes, "-");
}

static void jobs_print_workers(const Phub__AdminReply *reply)
{
	struct output_table t = {
		.heads = {"job", "rank", "peer", "transport", "silent ms", "pushes"}, .align = "lrllrr"};

	for (size_t i = 0; i < reply->n_jobs; i++) {
		for (size_t w = 0; w < reply->jobs[i]->n_workers; w++) {
			const Phub__WorkerInfo *worker = reply->jobs[i]->workers[w];

			output_cell(&t, "%s", reply->jobs[i]->name);
			output_cell(&t, "%" PRIu32, worker->rank);
			output_cell(&t, "%s", worker->peer);
			output_cell(&t, "%s", worker->transport);
			output_cell(&t, "%" PRIu64, worker->silent_ms);
			output_cell(&t, "%" PRIu64, worker->pushes);
		}
	}
	puts("");
	output_table_print(&t);
}

/* "train: rank 2 was lost 3.1 s ago", and how often that was. */
static void jobs_print_lost(const Phub__JobInfo *job)
{
	for (size_t i = 0; i < job->n_lost; i++)
		printf("%s: rank %" PRIu32 " %s %.1f s ago\n", job->name, job->lost[i]->rank,
			job->lost[i]->left ? "left" : "was lost", (double)job->lost[i]->since_ms / 1e3);
	if (job->losses || job->joins)
		printf("%s: so far %" PRIu64 " lost, %" PRIu64 " came\n", job->name, job->losses, job->joins);
	if (job->quorum)
		printf("%s: rounds close at %" PRIu32 " of %" PRIu32 "; %" PRIu64 " late pushes were dropped\n",
			job->name, job->quorum, job->world, job->late);
}

static void jobs_print_checkpoint(const Phub__JobInfo *job)
{
	const Phub__CheckpointInfo *c = job->checkpoint;
	char text[32];

	printf("%s checkpoints: ", job->name);
	if (!c->known)
		printf("none yet");
	else
		printf("last before round %" PRIu64 ", %.1f s old, %s", c->round, (double)c->age_ms / 1e3,
			output_bytes(c->bytes, text));
	if (c->known && c->done)
		printf(" in %" PRIu64 " ms", c->took_ms);
	if (strcmp(c->doing, "idle") != 0)
		printf("; %s", c->doing);
	else
		printf("; next in %" PRIu64 " rounds", c->due);
	if (c->interval && c->wanted < c->interval && c->wanted)
		printf(", one in %" PRIu64 " as they come (%s %" PRIu64 ")", c->interval,
			c->fixed ? "checkpoint_every is" : "its cost would allow", c->wanted);
	else if (c->interval)
		printf(", one in %" PRIu64 " %s", c->interval, c->fixed ? "(checkpoint_every)" : "(by its cost)");
	if (c->measured)
		printf("; rounds are %.1f %% slower by it, %.1f %% are allowed", 1e2 * c->overhead, 1e2 * c->allowed);
	puts("");
	if (c->error && *c->error)
		printf("%s: a checkpoint failed %.1f s ago: %s\n", job->name, (double)c->error_ms / 1e3, c->error);
	if (c->lacking)
		printf("%s: its checkpoints LACK %" PRIu32 " of %" PRIu32 " targets since %.1f s, and may lack %" PRIu32
		       ": %s\n",
			job->name, c->lacking, c->targets, (double)c->lacking_ms / 1e3, c->parity, c->lacking_why);
}

static void jobs_print_standby(const Phub__JobInfo *job)
{
	char text[32], stuck[160];

	if (!job->standby || !*job->standby)
		return;
	if (admin_write_stuck(job, stuck, sizeof(stuck)))
		printf("%s: CANNOT MOVE to the standby when the box is lost: %s by shm; name another transport there\n",
			job->name, stuck);
	if (strcmp(job->standby, "whole") == 0)
		printf("%s: its standby has all of it since %.1f s, %s sent, %" PRIu64 " messages on their way\n",
			job->name, (double)job->standby_ms / 1e3, output_bytes(job->standby_bytes, text),
			job->standby_behind);
	else
		printf("%s: WITHOUT a standby since %.1f s (%s)%s%s\n", job->name, (double)job->standby_ms / 1e3,
			job->standby, *job->standby_why ? ": " : "", job->standby_why);
}

/* " by tcp (why not by a better one)", or "". */
static const char *jobs_write_by(const char *by, const char *why, char *out, size_t bytes)
{
	snprintf(out, bytes, "%s%s%s%s%s", *by ? " by " : "", by, *by && *why ? " (" : "", *by ? why : "",
		*by && *why ? ")" : "");
	return out;
}

/* "'B' at 10.0.2.1:7077", or the address alone. */
static const char *jobs_write_box(const char *name, const char *address, char *out, size_t bytes)
{
	snprintf(out, bytes, *name ? "'%s' at %s" : "%s%s", name, address);
	return out;
}

/* A box with which it exchanges; of itself nothing. */
static void jobs_print_beside(const Phub__JobInfo *job, const Phub__BesideInfo *b)
{
	char text[32], by[240], name[400];
	const char *box = *b->box ? jobs_write_box(b->name, b->box, name, sizeof(name)) : "this one, the top box";

	if (strcmp(b->state, "here") == 0)
		printf("%s: %s, %zu boxes: %" PRIu64 " of %" PRIu64 " chunks end at this one\n", job->name,
			job->hierarchy, job->n_beside, b->homes, job->chunks);
	else if (*b->why)
		printf("%s: box %s, where %" PRIu64 " chunks end, cannot be reached: %s\n", job->name, box, b->homes,
			b->why);
	else if (*b->state)
		printf("%s: box %s is beside, where %" PRIu64 " chunks end: %s%s, %s sent%s\n", job->name, box,
			b->homes, b->state, jobs_write_by(b->transport, b->transport_why, by, sizeof(by)),
			output_bytes(b->bytes, text), b->lifts ? "; it sends here" : "");
	else if (b->lifts)
		printf("%s: box %s is beside, where %" PRIu64 " chunks end: it sends here\n", job->name, box, b->homes);
}

/* Boxes below it in this job, and the one above, or those beside it. */
static void jobs_print_boxes(const Phub__JobInfo *job)
{
	char ranks[160], text[32], by[240], box[400];

	for (size_t i = 0; i < job->n_below; i++) {
		const Phub__BelowInfo *b = job->below[i];

		ranks_write(b->ranks, b->n_ranks, b->n_ranks, ranks, sizeof(ranks));
		printf("%s: box %s is below, with rank%s %s\n", job->name,
			jobs_write_box(b->name, b->peer, box, sizeof(box)), b->n_ranks == 1 ? "" : "s",
			b->n_ranks ? ranks : "of nobody yet");
	}
	if (job->association && *job->association)
		printf("%s: sums are made as %s: one box alone makes the same bits with this association\n", job->name,
			job->association);
	if (job->hierarchy_why && *job->hierarchy_why)
		printf("%s: hierarchy auto took %s\n", job->name, job->hierarchy_why);
	for (size_t i = 0; i < job->n_beside; i++)
		jobs_print_beside(job, job->beside[i]);
	rebalance_print(job->name, job->rebalance);
	if (job->n_beside)
		return;
	if (job->above && *job->above->advice)
		printf("%s: WAITS for the root: %s\n", job->name, job->above->advice);
	if (job->above)
		jobs_write_box(job->above->name, job->above->box, box, sizeof(box));
	if (job->above && *job->above->why)
		printf("%s: box %s above (uplink) cannot be reached: %s\n", job->name, box, job->above->why);
	else if (job->above)
		printf("%s: box %s is above (uplink), %s%s, %s sent\n", job->name, box, job->above->state,
			jobs_write_by(job->above->transport, job->above->transport_why, by, sizeof(by)),
			output_bytes(job->above->bytes, text));
}

/* How much less its sparse keys send; over shared memory nothing of them is sent. */
static void jobs_print_sparse(const Phub__JobInfo *job)
{
	const Phub__SparseInfo *up = job->sparse_pushes, *down = job->sparse_results;
	char text[4][32];

	if (up && down && up->whole + down->whole > 0)
		printf("%s: sparse keys: %s of %s pushed travelled, %s of %s of results\n", job->name,
			output_bytes(up->bytes, text[0]), output_bytes(up->whole, text[1]),
			output_bytes(down->bytes, text[2]), output_bytes(down->whole, text[3]));
}

/* Of a job, or of all that there were. */
static void jobs_print_dropped(const char *of, Phub__Dropped *const *rows, size_t count)
{
	char dropped[200];

	if (admin_write_dropped(rows, count, dropped, sizeof(dropped)))
		printf("%s: messages dropped, %s\n", of, dropped);
}

/* How many of its workers are there, and, where there are several boxes, at this one. */
static void jobs_write_workers(const Phub__JobInfo *job, char *out, size_t bytes)
{
	size_t some = job->n_workers + job->elsewhere;

	if (strstr(job->state, "mirror")) /* they are at its box, if anywhere */
		snprintf(out, bytes, "0 of %" PRIu32 " here", job->world);
	else if (job->above && strcmp(job->state, "forming") == 0) /* the box above knows of the others */
		snprintf(out, bytes, "%zu of %" PRIu32 " %s", some, job->world, job->n_below ? "here, below" : "here");
	else if (job->above || job->n_below || job->n_beside)
		snprintf(out, bytes, "%zu/%" PRIu32 ", %zu here", some, job->world, job->n_workers);
	else
		snprintf(out, bytes, "%zu/%" PRIu32, some, job->world);
}

static void jobs_print(const struct jobs_options *o, const Phub__AdminReply *reply)
{
	struct output_table t = {.heads = {"job", "state", "workers", "keys", "bytes", "optimizer", "sync", "pushed",
					 "rounds", "rounds/s", "GB/s", "if lost", "missing"},
		.align = "llrrrllrrrrll"};
	char datagrams[400];

	printf("box %s, version %s, up %" PRIu64 " s, %zu %s\n", o->address, reply->version, reply->uptime_s,
		reply->n_cores, reply->n_cores == 1 ? "core" : "cores");
	if (reply->promotion)
		printf("it is the root, of epoch %" PRIu64 ", at %s: promoted by %s\n", reply->promotion->epoch,
			reply->promotion->address, reply->promotion->by);
	if (reply->exposed && *reply->exposed)
		printf("WITHOUT PROTECTION: %s\n", reply->exposed);
	for (size_t i = 0; i < reply->n_jobs; i++) {
		const Phub__JobInfo *job = reply->jobs[i];
		char text[32], missing[64], workers[64];

		jobs_write_missing(job, missing, sizeof(missing));
		output_cell(&t, "%s", job->name);
		output_cell(&t, "%s", job->state);
		jobs_write_workers(job, workers, sizeof(workers));
		output_cell(&t, "%s", workers);
		output_cell(&t, "%" PRIu64, job->keys);
		output_cell(&t, "%s", output_bytes(job->bytes, text));
		output_cell(&t, "%s", job->optimizer);
		output_cell(&t, "%s", job->sync);
		output_cell(&t, "%s", output_bytes(job->pushed_bytes, text));
		output_cell(&t, "%" PRIu64, job->rounds);
		output_cell(&t, "%.1f", job->rounds_per_s);
		output_cell(&t, "%.2f", job->gb_per_s);
		if (job->quorum)
			output_cell(&t, "%s, %" PRIu32 " of %" PRIu32, job->lost_policy, job->quorum, job->world);
		else
			output_cell(&t, "%s", *job->lost_policy ? job->lost_policy : "-");
		output_cell(&t, "%s", missing);
	}
	if (reply->strangers_refused)
		printf("strangers refused: %" PRIu64 ", of these because too many came at once: %" PRIu64 "\n",
			reply->strangers_refused, reply->strangers_limited);
	if (reply->n_jobs)
		output_table_print(&t);
	else
		puts("no jobs");
	for (size_t i = 0; i < reply->n_jobs; i++) {
		if (reply->jobs[i]->waiting && *reply->jobs[i]->waiting)
			printf("%s waits: %s\n", reply->jobs[i]->name, reply->jobs[i]->waiting);
		if (reply->jobs[i]->quota_ms)
			printf("%s: held back for %.1f s by its bandwidth of %" PRIu64 " bytes a second\n",
				reply->jobs[i]->name, (double)reply->jobs[i]->quota_ms / 1e3,
				reply->jobs[i]->bandwidth);
		jobs_print_sparse(reply->jobs[i]);
		jobs_print_standby(reply->jobs[i]);
		jobs_print_boxes(reply->jobs[i]);
		if (reply->jobs[i]->reconnects)
			printf("%s: %" PRIu64 " connections broke and were made anew\n", reply->jobs[i]->name,
				reply->jobs[i]->reconnects);
		jobs_print_lost(reply->jobs[i]);
		jobs_print_dropped(reply->jobs[i]->name, reply->jobs[i]->dropped, reply->jobs[i]->n_dropped);
		if (reply->jobs[i]->checkpoint)
			jobs_print_checkpoint(reply->jobs[i]);
	}
	jobs_print_dropped("all jobs so far", reply->dropped, reply->n_dropped);
	if (admin_write_datagrams(reply, datagrams, sizeof(datagrams)))
		printf("datagrams: %s\n", datagrams);
	if (o->workers && reply->n_jobs)
		jobs_print_workers(reply);
	fflush(stdout);
}

/* ---- asking ---- */

static int jobs_once(const struct jobs_options *o)
{
	struct admin_answer answer;
	struct err e;
	bool ok = true;

	if (admin_ask(o->address, "jobs", 5000, &answer, &e) < 0) {
		output_error("%s", e.text);
		return CLI_FAILED;
	}
	if (o->json) {
		ok = jobs_print_json(o, answer.reply);
	} else {
		if (o->watch && isatty(STDOUT_FILENO))
			fputs("\033[H\033[J", stdout);
		jobs_print(o, answer.reply);
	}
	admin_answer_fini(&answer);
	return ok ? CLI_DONE : CLI_FAILED;
}

static int jobs_operate(const struct jobs_options *o)
{
	const char *arguments[] = {o->job, o->reason ? o->reason : ""};
	struct admin_answer answer;
	struct err e;
	uint32_t awaited;
	bool ok = true;

	if (admin_tell(o->address, o->verb, arguments, 2, 5000, &answer, &e) < 0) {
		output_error("%s", e.text);
		return CLI_FAILED;
	}
	awaited = o->no_wait ? 0 : answer.reply->rebalance;
	if (o->json && awaited)
		; /* one object, at the end */
	else if (o->json)
		ok = output_json(json_pack("{s:s, s:s, s:s, s:s, s:s*}", "box", o->address, "job", o->job, "command",
			o->verb, "reason", arguments[1], "said", *answer.reply->said ? answer.reply->said : NULL));
	else
		printf("%s: %s\n", o->job,
			*answer.reply->said              ? answer.reply->said
			: strcmp(o->verb, "evict") == 0  ? "ended"
			: strcmp(o->verb, "drain") == 0  ? "drains"
			: strcmp(o->verb, "resume") == 0 ? "goes on"
							 : "paused");
	admin_answer_fini(&answer);
	if (awaited)
		return rebalance_await(o->address, o->job, awaited, o->json);
	return ok ? CLI_DONE : CLI_FAILED;
}

/* Takes the words: a verb with its job, then the address. */
static int jobs_read_words(const struct args_usage *usage, const struct args_words *words, struct jobs_options *o)
{
	unsigned at = 0;

	for (unsigned i = 0; words->count && jobs_verbs[i]; i++)
		if (strcmp(words->at[0], jobs_verbs[i]) == 0)
			o->verb = jobs_verbs[i];
	if (o->verb && words->count < 2)
		return args_wrong(usage, "%s needs the name of a job", o->verb);
	if (o->verb && (o->watch || o->workers))
		return args_wrong(usage, "--watch and --workers do not go with %s", o->verb);
	if (o->verb && strcmp(o->verb, "evict") == 0 && (!o->reason || !*o->reason))
		return args_wrong(usage, "evict needs --reason, which its workers are told");
	if (o->reason && o->verb && strcmp(o->verb, "rebalance") == 0)
		return args_wrong(usage, "--reason does not go with rebalance: its workers only wait for a moment");
	if (o->no_wait && (!o->verb || strcmp(o->verb, "rebalance") != 0))
		return args_wrong(usage, "--no-wait belongs to rebalance");
	if (o->reason && !o->verb)
		return args_wrong(usage, "--reason belongs to pause, resume, drain and evict");
	if (o->verb) {
		o->job = words->at[1];
		at = 2;
	}
	if (words->count > at + 1 && !o->verb && !strpbrk(words->at[0], ".:[")) /* no address either */
		return args_wrong(usage, "'%.64s' is none of pause, resume, drain, evict and rebalance", words->at[0]);
	if (words->count > at + 1)
		return args_wrong(usage, "'%.64s' is one word too many", words->at[at + 1]);
	o->address = words->count > at ? words->at[at] : ADMIN_ADDRESS_DEFAULT;
	return words->count > at ? admin_check_address(usage, o->address) : ARGS_GO_ON;
}

static int jobs_watch(const struct jobs_options *o)
{
	struct timespec pause = {
		.tv_sec = (time_t)(o->interval_ms / 1000), .tv_nsec = (long)(o->interval_ms % 1000) * 1000000};
	struct sigaction action = {.sa_handler = jobs_on_signal};

	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	for (uint64_t i = 0; !jobs_stopped; i++) {
		int rc = jobs_once(o);

		if (rc != CLI_DONE || (o->count && i + 1 == o->count))
			return rc;
		nanosleep(&pause, NULL);
	}
	return CLI_DONE;
}

static int jobs_main(int argc, char **argv, const char *command, struct jobs_options *o)
{
	const struct args_option options[] = {
		{"workers", NULL, "also every worker: peer, transport, how long it is silent", ARGS_FLAG, &o->workers,
			0, 0, NULL},
		{"watch", NULL, "again and again, until Ctrl-C", ARGS_FLAG, &o->watch, 0, 0, NULL},
		{"interval", "MS", "milliseconds between two looks (1000)", ARGS_NUMBER, &o->interval_ms, 50, 3600000,
			NULL},
		{"count", "N", "stop watching after N looks", ARGS_NUMBER, &o->count, 1, UINT32_MAX, NULL},
		{"reason", "TEXT", "why, for its workers: with pause, resume, drain, evict (which needs it)", ARGS_TEXT,
			&o->reason, 0, 0, NULL},
		{"no-wait", NULL, "with rebalance: says what is begun, and not how it ends", ARGS_FLAG, &o->no_wait, 0,
			0, NULL},
		{"json", NULL, "one JSON object a line: the box, its cores, its jobs", ARGS_FLAG, &o->json, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {
		.command = command,
		.words = "[pause|resume|drain|evict|rebalance JOB] [HOST:PORT]",
		.about =
			"Asks a box (" ADMIN_ADDRESS_DEFAULT
			") for its jobs: workers that are there of those that belong to it,\n"
			"rounds and gradient GB (of all workers together) a second, and the ranks that the oldest "
			"open round\n"
			"waits for. From another host or user the box wants its admin secret: PHUB_ADMIN_SECRET, or a "
			"file\n"
			"named by PHUB_ADMIN_SECRET_FILE.\n"
			"pause holds a job: pushes are taken and nothing is answered until resume. drain ends it when "
			"the "
			"rounds\n"
			"that are open are done, evict at once; its workers hear the reason. rebalance, at the top box "
			"of a\n"
			"sharded or chained job, moves as few of its chunks as it takes to share them out by the "
			"rates\n"
			"that the rack file has now, and waits until they have moved.\n",
		.examples = "  phub jobs\n  phub jobs --json box1:7077\n  phub jobs evict mnist --reason 'over its "
			    "time'\n  phub top --interval 500\n",
		.words_max = 3,
		.options = options,
	};
	struct args_words words;
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc == ARGS_GO_ON && (o->interval_ms || o->count) && !o->watch)
		rc = args_wrong(&usage, "--interval and --count belong to --watch");
	if (rc == ARGS_GO_ON)
		rc = jobs_read_words(&usage, &words, o);
	if (rc != ARGS_GO_ON)
		return rc;
	if (!o->interval_ms)
		o->interval_ms = 1000;
	if (o->verb)
		return jobs_operate(o);
	return o->watch ? jobs_watch(o) : jobs_once(o);
}

int jobs_run(int argc, char **argv)
{
	struct jobs_options o = {.watch = false};

	return jobs_main(argc, argv, "phub jobs", &o);
}

int top_run(int argc, char **argv)
{
	struct jobs_options o = {.watch = true, .workers = true};

	return jobs_main(argc, argv, "phub top", &o);
}
