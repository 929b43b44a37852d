/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds an AdminReply from what control knows and from counters of the cores, which are read while they run.
 */
#include "phub/control/admin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/stats.h"
#include "phub/control/above.h"
#include "phub/control/box.h"
#include "phub/control/job_mirror.h"
#include "phub/control/session.h"
#include "phub/control/parent.h"
#include "phub/control/promotion.h"
#include "phub/control/root_file.h"
#include "phub/control/job_below.h"
#include "phub/control/peers_move.h"
#include "phub/control/peers_outcome.h"
#include "phub/control/standby.h"
#include "transport/datagram.h"
#include "transport/reliable.h"

#define ADMIN_DEVICE_MAX  64    /* counters of what moves datagrams */
#define ADMIN_WORKERS_MAX 4096u /* in one reply: at about 150 bytes each they fit a frame */
#define ADMIN_FLOWS_MAX   1024u /* likewise, of changes of homes */
#define ADMIN_SAID_BYTES  200u
#define ADMIN_WAITING_NS  3000000000ull /* older news of a round that does not close are none */

/* Messages that were dropped, a row for each reason. */
struct admin_dropped {
	Phub__Dropped rows[DROP_COUNT];
	Phub__Dropped *pointers[DROP_COUNT];
};

/* One job's part of the reply, with the memory that it points to. */
struct admin_job {
	Phub__JobInfo info;
	Phub__WorkerInfo *workers;
	Phub__WorkerInfo **pointers;
	uint32_t *missing;
	Phub__LostInfo *lost;
	Phub__LostInfo **lost_pointers;
	Phub__BelowInfo *below; /* each one's ranks lie in `ranks` */
	Phub__BelowInfo **below_pointers;
	uint32_t *ranks;
	char *association;
	Phub__BesideInfo *beside;
	Phub__BesideInfo **beside_pointers;
	Phub__RebalanceInfo rebalance;
	Phub__RebalanceFlow *flows;
	Phub__RebalanceFlow **flow_pointers;
	Phub__SparseInfo sparse_pushes, sparse_results;
	Phub__AboveInfo above;
	char above_box[340];
	Phub__CheckpointInfo checkpoint;
	struct admin_dropped dropped;
	char waiting[800];
};

/* Likewise one core's. */
struct admin_core {
	Phub__CoreInfo info;
	Phub__Work work;
	Phub__Datagrams datagrams;
	Phub__Dropped dropped[RELIABLE_DROPS];
	Phub__Dropped *pointers[RELIABLE_DROPS];
	Phub__Counter device[ADMIN_DEVICE_MAX];
	Phub__Counter *device_pointers[ADMIN_DEVICE_MAX];
};

struct admin_reply {
	Phub__AdminReply reply;
	struct admin_job *jobs;
	Phub__JobInfo **job_pointers;
	struct admin_core *cores;
	Phub__CoreInfo **core_pointers;
	struct admin_dropped dropped;
	Phub__Promotion promotion;
	char **promotion_jobs;
	uint32_t workers_left, flows_left;
	Phub__RootInfo root;
	char root_address[340];
	struct targets_report targets;
};

static char *admin_text(const char *text)
{
	return (char *)(uintptr_t)text;
}

/* Returns the rows. */
static Phub__Dropped **admin_fill_dropped(const uint64_t sums[DROP_COUNT], struct admin_dropped *out)
{
	for (unsigned why = 0; why < DROP_COUNT; why++) {
		phub__dropped__init(&out->rows[why]);
		out->rows[why].why = admin_text(shard_drop_name(why));
		out->rows[why].count = sums[why];
		out->pointers[why] = &out->rows[why];
	}
	return out->pointers;
}

/* Over the samples that are there: the last few seconds. */
static void admin_rates(const struct job *job, Phub__JobInfo *info)
{
	unsigned have = job->sample_count < JOB_SAMPLES ? job->sample_count : JOB_SAMPLES;
	const struct job_sample *first, *last;
	uint32_t chunks = job->generation->spec.plan.chunk_count;
	double seconds;

	if (have < 2)
		return;
	first = &job->samples[(job->sample_count - have) % JOB_SAMPLES];
	last = &job->samples[(job->sample_count - 1) % JOB_SAMPLES];
	seconds = (double)(last->at_ns - first->at_ns) / 1e9;
	if (seconds <= 0)
		return;
	info->rounds_per_s = (double)(last->rounds - first->rounds) / chunks / seconds;
	info->gb_per_s = (double)(last->bytes - first->bytes) / 1e9 / seconds;
}

static Phub__SparseInfo *admin_fill_tally(const struct coding_tally *tally, Phub__SparseInfo *out)
{
	phub__sparse_info__init(out);
	out->coded = tally->coded;
	out->bytes = tally->bytes;
	out->whole = tally->whole;
	return out;
}

static void admin_fill_generation(const struct job *job, struct admin_job *out)
{
	const struct generation_sums sums = generation_sums(job->generation);
	const struct spec *spec = &job->generation->spec;
	Phub__JobInfo *info = &out->info;

	info->keys = spec->plan.key_count;
	info->chunks = spec->plan.chunk_count;
	info->bytes = spec->plan.payload_bytes;
	info->pushed_bytes = sums.bytes;
	info->optimizer = admin_text(spec_optimizer_name(spec->optimizer));
	info->sync = admin_text(spec_sync_name(spec->sync));
	info->rounds = job->rounds + sums.rounds / spec->plan.chunk_count;
	if (spec->plan.sparse_bytes > 0) {
		info->sparse_pushes = admin_fill_tally(&sums.sparse_pushes, &out->sparse_pushes);
		info->sparse_results = admin_fill_tally(&sums.sparse_replies, &out->sparse_results);
	}
	admin_rates(job, info);
	info->weight = spec->weight;
	info->bandwidth = spec->bandwidth;
	for (unsigned i = 0; i < spec->core_count; i++) {
		const struct shard *shard = job->generation->store.shards[i];
		uint64_t quota_ms = shard ? stats_read(&shard->counters.quota_ns) / NS_PER_MS : 0;

		info->cores += shard != NULL;
		info->share_waits += shard ? stats_read(&shard->counters.share_waits) : 0;
		info->quota_ms = quota_ms > info->quota_ms ? quota_ms : info->quota_ms;
	}
}

static void admin_fill_standby(const struct job *job, Phub__JobInfo *info)
{
	struct standby_report report;

	if (!standby_describe(job, &report))
		return;
	info->standby = admin_text(standby_state_name(report.state));
	info->standby_ms = (job->control->now_ns - report.since_ns) / NS_PER_MS;
	info->standby_bytes = report.bytes;
	info->standby_behind = report.behind;
	info->standby_why = admin_text(report.why);
}

/* What a worker has pushed in the generation that runs, over all cores. */
static uint64_t admin_pushes(const struct job *job, uint32_t rank)
{
	uint64_t pushes = 0;

	for (unsigned i = 0; job->generation && i < job->generation->store.core_count; i++)
		if (job->generation->store.shards[i])
			pushes += stats_read(&job->generation->store.shards[i]->links[rank].pushes);
	return pushes;
}

static void admin_fill_workers(const struct job *job, struct admin_job *out, uint32_t *workers_left)
{
	const struct control *c = job->control;

	out->info.missing = out->missing;
	out->info.workers = out->pointers;
	for (uint32_t i = 0; i < job->ranks; i++) {
		const struct member *m = &job->members[i];
		Phub__WorkerInfo *w = &out->workers[i];

		if (m->elsewhere && !job_is_lost(job, i))
			out->info.elsewhere++;
		if (!m->session) {
			if (!m->left && !m->elsewhere)
				out->missing[out->info.n_missing++] = i;
			continue;
		}
		if (*workers_left == 0)
			continue;
		--*workers_left;
		phub__worker_info__init(w);
		w->rank = i;
		w->peer = admin_text(m->peer);
		w->transport = admin_text(m->transport);
		w->pushes = admin_pushes(job, i);
		w->silent_ms = (c->now_ns - m->session->heard_ns) / NS_PER_MS;
		out->pointers[out->info.n_workers++] = w;
	}
}

/* What becomes of ranks that are lost, and who is. */
static void admin_fill_lost(const struct job *job, struct admin_job *out, uint32_t *left)
{
	const struct control *c = job->control;

	out->info.losses = job->losses;
	out->info.joins = job->joins;
	out->info.lost = out->lost_pointers;
	if (job->generation) {
		out->info.lost_policy = admin_text(spec_lost_name(job->generation->spec.lost));
		out->info.quorum = job->generation->spec.quorum;
	}
	for (uint32_t i = 0; i<job->ranks && * left> 0; i++) {
		Phub__LostInfo *lost = &out->lost[out->info.n_lost];
		const struct member *m = &job->members[i];

		if (!job_is_lost(job, i))
			continue;
		--*left;
		phub__lost_info__init(lost);
		lost->rank = i;
		lost->since_ms = (c->now_ns - job_gone_ns(job, i)) / NS_PER_MS;
		lost->left = m->elsewhere && m->at != JOB_AT_OTHER ? job->members[m->at].quit : m->quit;
		out->lost_pointers[out->info.n_lost++] = lost;
	}
}

/* Its boxes below, which count as workers do for what fits a reply, and the one above. */
static void admin_fill_boxes(const struct job *job, struct admin_job *out, uint32_t *left)
{
	const struct control *c = job->control;
	uint32_t *ranks = out->ranks;
	struct parent_report above;

	out->info.below = out->below_pointers;
	for (uint32_t i = job->ranks; i<job->world && * left> 0; i++) {
		Phub__BelowInfo *b = &out->below[out->info.n_below];

		if (!job->members[i].session)
			continue;
		--*left;
		phub__below_info__init(b);
		b->peer = admin_text(job->members[i].peer);
		b->name = admin_text(job->members[i].name);
		b->pushes = admin_pushes(job, i);
		b->silent_ms = (c->now_ns - job->members[i].session->heard_ns) / NS_PER_MS;
		b->ranks = ranks;
		for (uint32_t rank = 0; rank < job->ranks; rank++)
			if (job->members[rank].elsewhere && job->members[rank].at == i)
				ranks[b->n_ranks++] = rank;
		ranks += b->n_ranks;
		out->below_pointers[out->info.n_below++] = b;
	}
	if (!parent_describe(job, &above))
		return;
	phub__above_info__init(&out->above);
	above_name(c, out->above_box, sizeof(out->above_box));
	out->above.box = out->above_box;
	out->above.name = admin_text(names_find(c, c->above.place.at.host, c->above.place.at.port));
	if (!*out->above.name)
		out->above.name = admin_text(c->above.place.box);
	out->above.state = admin_text(parent_state_name(above.state));
	out->above.bytes = above.bytes;
	out->above.why = admin_text(above.why);
	out->above.advice = admin_text(above.state == PARENT_DIALLING ? above.advice : "");
	out->above.transport = admin_text(above.by);
	out->above.transport_why = admin_text(above.by_why);
	out->info.above = &out->above;
}

static void admin_fill_waiting(const struct job *job, struct admin_job *out)
{
	bool fresh = job->waiting_ns && job->control->now_ns - job->waiting_ns < ADMIN_WAITING_NS;
	char *text = out->waiting;
	size_t bytes = sizeof(out->waiting), at;
	char below[400];

	job_operator_describe(job, text, bytes);
	job_describe_paused_below(job, below, sizeof(below));
	at = strlen(text);
	if (at > 0 && fresh && job->draining)
		snprintf(text + at, bytes - at, "; %s", job->waiting);
	else if (at == 0 && fresh)
		snprintf(text, bytes, "%s", job->waiting);
	else if (at == 0 && below[0])
		snprintf(text, bytes, "%s", below);
	else if (at == 0 && job->mismatch.code)
		snprintf(text, bytes, "%.390s", job->mismatch.text);
	else if (at == 0 && job->state == JOB_FORMING)
		snprintf(text, bytes, "%u of %u ranks joined, %u sent their keys", job->present, job->ranks,
			job->tabled);
	out->info.waiting = text;
}

/* A copy of another box's job has no worker but that. */
static void admin_fill_mirror(const struct job *job, struct admin_job *out)
{
	out->info.world = job->mirror->world;
	out->info.state = admin_text(job->mirror->lost_ns ? "kept mirror" : "mirror");
	out->info.n_missing = 0;
	out->info.lost_policy = admin_text(""); /* it waits for nobody; its job's is what counts, and where that runs */
	out->info.quorum = 0;
	job_mirror_describe(job, out->waiting, sizeof(out->waiting));
}

static void admin_fill_drops(const struct job *job, struct admin_job *out)
{
	uint64_t sums[DROP_COUNT] = {0};

	job_add_dropped(job, sums);
	out->info.dropped = admin_fill_dropped(sums, &out->dropped);
	out->info.n_dropped = DROP_COUNT;
	out->info.late = sums[DROP_LATE];
}

static int admin_fill_beside(const struct job *job, struct admin_job *out)
{
	unsigned count = peers_count(job);

	if (count == 0)
		return 0;
	out->beside = calloc(count, sizeof(*out->beside));
	out->beside_pointers = calloc(count, sizeof(*out->beside_pointers));
	if (!out->beside || !out->beside_pointers)
		return -1;
	for (unsigned i = 0; i < count; i++) {
		Phub__BesideInfo *b = &out->beside[i];
		struct peers_report report;

		peers_describe(job, i, &report);
		phub__beside_info__init(b);
		b->box = admin_text(report.box);
		b->name = admin_text(report.name);
		b->state = admin_text(report.state);
		b->bytes = report.bytes;
		b->why = admin_text(report.why);
		b->transport = admin_text(report.by);
		b->transport_why = admin_text(report.by_why);
		b->lifts = report.lifts;
		b->homes = report.homes;
		b->home_bytes = report.home_bytes;
		out->beside_pointers[i] = b;
	}
	out->info.beside = out->beside_pointers;
	out->info.n_beside = count;
	out->info.hierarchy = admin_text(ways_name(job->peers->kind));
	return 0;
}

/* "10.0.2.1:7077"; of the top box, which this is, "". */
static char *admin_peer(const struct peers *p, unsigned number)
{
	return admin_text(p->each[number].address);
}

static int admin_fill_rebalance(const struct job *job, struct admin_job *out, uint32_t *left)
{
	const struct peers *p = job->peers;
	const struct peers_outcome *o = p ? p->outcome : NULL;
	Phub__RebalanceInfo *info = &out->rebalance;
	const char *waits_for;
	unsigned count;

	if (!o)
		return 0;
	count = o->flow_count < *left ? o->flow_count : *left;
	*left -= count;
	phub__rebalance_info__init(info);
	out->flows = calloc(count + 1, sizeof(*out->flows));
	out->flow_pointers = calloc(count + 1, sizeof(*out->flow_pointers));
	if (!out->flows || !out->flow_pointers)
		return -1;
	for (unsigned i = 0; i < count; i++) {
		Phub__RebalanceFlow *flow = &out->flows[i];

		phub__rebalance_flow__init(flow);
		flow->from = admin_peer(p, o->flows[i].from);
		flow->to = admin_peer(p, o->flows[i].to);
		flow->chunks = o->flows[i].chunks;
		flow->bytes = o->flows[i].bytes;
		out->flow_pointers[i] = flow;
	}
	info->flows = out->flow_pointers;
	info->n_flows = count;
	info->flow_count = o->flow_count;
	info->number = o->number;
	info->stage = admin_text(peers_outcome_stage(p));
	info->why = admin_text(o->why);
	info->chunks = o->chunks;
	info->bytes = o->bytes;
	info->carried = o->carried;
	info->waited_ms = ((o->ended_ns ? o->ended_ns : job->control->now_ns) - o->begun_ns) / NS_PER_MS;
	info->done = peers_outcome_done(p, &waits_for);
	info->boxes = p->count;
	info->waits_for = admin_text(waits_for ? waits_for : "");
	out->info.rebalance = info;
	return 0;
}

static int admin_fill_job(const struct job *job, struct admin_job *out, struct admin_reply *r)
{
	phub__job_info__init(&out->info);
	out->workers = calloc(job->world, sizeof(*out->workers));
	out->pointers = calloc(job->world, sizeof(*out->pointers));
	out->missing = calloc(job->world, sizeof(*out->missing));
	out->lost = calloc(job->world, sizeof(*out->lost));
	out->lost_pointers = calloc(job->world, sizeof(*out->lost_pointers));
	out->below = calloc(job->world, sizeof(*out->below));
	out->below_pointers = calloc(job->world, sizeof(*out->below_pointers));
	out->ranks = calloc(job->ranks, sizeof(*out->ranks));
	out->association = job_below_association(job);
	if (!out->association || !out->workers || !out->pointers || !out->missing || !out->lost ||
		!out->lost_pointers || !out->below || !out->below_pointers || !out->ranks ||
		admin_fill_beside(job, out) < 0 || admin_fill_rebalance(job, out, &r->flows_left) < 0)
		return -1;
	out->info.name = admin_text(job->name);
	out->info.association = admin_text(out->association);
	out->info.world = job->ranks;
	out->info.hierarchy_why = admin_text(job->hierarchy_why);
	out->info.state = admin_text(job->paused        ? "paused"
				     : job->draining    ? "draining"
				     : peers_moves(job) ? "rebalancing"
				     : above_holds(job) ? "held"
							: job_state_name(job->state));
	if (job->generation && job->state == JOB_RUNNING) {
		admin_fill_generation(job, out);
		admin_fill_standby(job, &out->info);
	}
	admin_fill_workers(job, out, &r->workers_left);
	admin_fill_lost(job, out, &r->workers_left);
	admin_fill_boxes(job, out, &r->workers_left);
	admin_fill_waiting(job, out);
	admin_fill_drops(job, out);
	if (job_keep_describe(job, &out->checkpoint))
		out->info.checkpoint = &out->checkpoint;
	if (job->mirror)
		admin_fill_mirror(job, out);
	out->info.reconnects = job->reconnects;
	return 0;
}

static bool admin_wants(const Phub__AdminRequest *request, const char *name)
{
	for (size_t i = 0; i < request->n_arguments; i++)
		if (strcmp(request->arguments[i], name) == 0)
			return true;
	return request->n_arguments == 0;
}

static int admin_fill_jobs(const struct control *c, const Phub__AdminRequest *request, struct admin_reply *r)
{
	unsigned count = 0;

	r->jobs = calloc(c->job_count + 1, sizeof(*r->jobs));
	r->job_pointers = calloc(c->job_count + 1, sizeof(*r->job_pointers));
	if (!r->jobs || !r->job_pointers)
		return -1;
	for (const struct job *job = c->jobs; job; job = job->next) {
		if (job->state == JOB_ENDING || !admin_wants(request, job->name))
			continue;
		r->job_pointers[count] = &r->jobs[count].info;
		r->reply.n_jobs = count + 1;
		if (admin_fill_job(job, &r->jobs[count++], r) < 0)
			return -1;
	}
	r->reply.jobs = r->job_pointers;
	return 0;
}

/* What live jobs have on a core. */
static void admin_fill_load(const struct control *c, unsigned core, Phub__CoreInfo *info)
{
	for (const struct job *job = c->jobs; job; job = job->next) {
		const struct shard *shard = job->generation ? job->generation->store.shards[core] : NULL;

		if (!shard)
			continue;
		info->chunks += shard->chunk_count;
		info->pushed_bytes += stats_read(&shard->counters.bytes);
		for (unsigned i = 0; i < DROP_COUNT; i++)
			info->dropped += stats_read(&shard->counters.dropped[i]);
	}
}

/* A core's queues one after the other, those of its uplinks last. NULL: there are no more. */
static const struct queue *admin_queue(const struct box *box, unsigned core, unsigned index)
{
	if (index < box->transport_count)
		return box->queues[core][index];
	index -= box->transport_count;
	return index < box->outlets.count ? box->outlets.each[index].queues[core] : NULL;
}

static void admin_fill_work(const struct box *box, unsigned core, Phub__Work *work)
{
	const struct queue *q;

	phub__work__init(work);
	for (unsigned i = 0; (q = admin_queue(box, core, i)); i++) {
		const struct queue_counters *n = &q->counters;

		work->messages += stats_read(&n->messages);
		work->posts += stats_read(&n->posts);
		work->doorbells += stats_read(&n->doorbells);
		work->signalled += stats_read(&n->signalled);
		work->completions += stats_read(&n->completions);
		work->recv_posts += stats_read(&n->recv_posts);
		work->recv_doorbells += stats_read(&n->recv_doorbells);
	}
}

static void admin_fill_device(const struct queue *q, struct admin_core *out)
{
	Phub__Datagrams *d = &out->datagrams;
	const char *name;
	uint64_t value;

	d->device = out->device_pointers;
	for (unsigned i = 0; d->n_device < ADMIN_DEVICE_MAX && (name = datagram_count(q, i, &value)); i++) {
		Phub__Counter *c = &out->device[d->n_device];

		phub__counter__init(c);
		c->name = admin_text(name);
		c->count = value;
		d->device[d->n_device++] = c;
	}
}

static void admin_fill_datagrams(const struct box *box, unsigned core, struct admin_core *out)
{
	Phub__Datagrams *d = &out->datagrams;
	const struct queue *q;

	phub__datagrams__init(d);
	for (unsigned why = 0; why < RELIABLE_DROPS; why++) {
		phub__dropped__init(&out->dropped[why]);
		out->dropped[why].why = admin_text(reliable_drop_name(why));
		out->pointers[why] = &out->dropped[why];
	}
	d->dropped = out->pointers;
	d->n_dropped = RELIABLE_DROPS;
	for (unsigned i = 0; (q = admin_queue(box, core, i)); i++) {
		const struct reliable_counters *n = q->datagrams;

		if (!n)
			continue;
		admin_fill_device(q, out);
		d->sent += stats_read(&n->sent);
		d->sent_bytes += stats_read(&n->sent_bytes);
		d->came += stats_read(&n->came);
		d->came_bytes += stats_read(&n->came_bytes);
		d->resent += stats_read(&n->resent);
		d->lost += stats_read(&n->lost);
		d->acks += stats_read(&n->acks);
		for (unsigned why = 0; why < RELIABLE_DROPS; why++)
			out->dropped[why].count += stats_read(&n->dropped[why]);
	}
}

static int admin_fill_cores(const struct control *c, struct admin_reply *r)
{
	const struct box *box = c->box;

	r->cores = calloc(box->core_count, sizeof(*r->cores));
	r->core_pointers = calloc(box->core_count, sizeof(*r->core_pointers));
	if (!r->cores || !r->core_pointers)
		return -1;
	for (unsigned i = 0; i < box->core_count; i++) {
		Phub__CoreInfo *info = &r->cores[i].info;

		phub__core_info__init(info);
		info->core = i;
		info->cpu = box->placement[i].cpu;
		info->bytes = box->placement[i].bytes;
		info->polls = stats_read(&box->cores[i]->counters.polls);
		info->sleeps = stats_read(&box->cores[i]->counters.sleeps);
		admin_fill_load(c, i, info);
		admin_fill_work(box, i, &r->cores[i].work);
		info->work = &r->cores[i].work;
		admin_fill_datagrams(box, i, &r->cores[i]);
		info->datagrams = &r->cores[i].datagrams;
		r->core_pointers[i] = info;
	}
	r->reply.cores = r->core_pointers;
	r->reply.n_cores = box->core_count;
	return 0;
}

static void admin_fill_all_drops(const struct control *c, struct admin_reply *r)
{
	uint64_t sums[DROP_COUNT];

	memcpy(sums, c->dropped, sizeof(sums));
	for (const struct job *job = c->jobs; job; job = job->next)
		job_add_dropped(job, sums);
	r->reply.dropped = admin_fill_dropped(sums, &r->dropped);
	r->reply.n_dropped = DROP_COUNT;
}

/* Of a box that stands for a root. */
static void admin_fill_root(const struct control *c, struct admin_reply *r)
{
	const struct above *a = &c->above;
	Phub__RootInfo *root = &r->root;

	if (!c->config->root[0])
		return;
	phub__root_info__init(root);
	root->name = admin_text(c->config->root);
	root->epoch = a->epoch;
	root->held = a->doubt_ns != 0;
	root->why = admin_text(a->epoch ? "" : a->why);
	root->heard = a->heard_ns != 0;
	root->heard_ms = root->heard ? (c->now_ns - a->heard_ns) / NS_PER_MS : 0;
	if (!a->epoch && a->known) {
		root->box = admin_text(a->place.box);
		root->address = admin_text(above_name(c, r->root_address, sizeof(r->root_address)));
	}
	targets_describe(&c->box->targets, &r->targets);
	root->targets = r->targets.count;
	root->locked = r->targets.locked;
	root->free = r->targets.free;
	root->taken = r->targets.taken;
	root->failed = r->targets.failed;
	root->silent = r->targets.silent;
	root->target_why = r->targets.why;
	root->parity = (uint32_t)c->config->checkpoint_parity;
	r->reply.root = root;
}

static void admin_free(struct admin_reply *r)
{
	for (size_t i = 0; r->jobs && i < r->reply.n_jobs; i++) {
		free(r->jobs[i].workers);
		free(r->jobs[i].pointers);
		free(r->jobs[i].missing);
		free(r->jobs[i].lost);
		free(r->jobs[i].lost_pointers);
		free(r->jobs[i].below);
		free(r->jobs[i].below_pointers);
		free(r->jobs[i].ranks);
		free(r->jobs[i].association);
		free(r->jobs[i].beside);
		free(r->jobs[i].beside_pointers);
		free(r->jobs[i].flows);
		free(r->jobs[i].flow_pointers);
	}
	free(r->promotion_jobs);
	free(r->jobs);
	free(r->job_pointers);
	free(r->cores);
	free(r->core_pointers);
}

/* That this box is the root since an operator said so, or, with a state, that it is about to be. */
static int admin_fill_promotion(const struct control *c, const char *state, struct admin_reply *r)
{
	const struct root_file *file = promotion_file(c);

	if (!state && (!file || !above_is_root(c)))
		return 0;
	phub__promotion__init(&r->promotion);
	r->promotion_jobs = calloc(c->job_count + 1, sizeof(*r->promotion_jobs));
	if (!r->promotion_jobs)
		return -1;
	r->promotion.state = admin_text(state ? state : "");
	r->promotion.epoch = above_epoch(c);
	if (file && above_is_root(c)) {
		r->promotion.address = admin_text(file->address);
		r->promotion.by = admin_text(file->by);
		r->promotion.written_ms = file->written_ms;
	}
	r->promotion.jobs = r->promotion_jobs;
	for (const struct job *job = c->jobs; job && r->promotion.n_jobs < c->job_count; job = job->next)
		if (job->state != JOB_ENDING)
			r->promotion_jobs[r->promotion.n_jobs++] = admin_text(job->name);
	r->reply.promotion = &r->promotion;
	return 0;
}

/* Arguments: who asks, where this box was called, and "again" when that was asked before. */
static void admin_promote(struct session *s, const Phub__AdminRequest *request, struct admin_reply *r, struct err *e)
{
	static const char *const states[] = {
		[PROMOTION_BEGUN] = "begun", [PROMOTION_DONE] = "done", [PROMOTION_ROOT] = "root"};
	enum promotion_state state;
	char who[160];

	if (request->n_arguments != 3) {
		r->reply.error = admin_text("give who asks, where the box was called, and whether it is asked again");
		return;
	}
	snprintf(who, sizeof(who), "%.64s (%s)", request->arguments[0], s->stream->peer);
	if (promotion_ask(s->control, who, request->arguments[1], request->arguments[2][0] != '\0', &state, e) < 0)
		r->reply.error = e->text;
	else if (admin_fill_promotion(s->control, states[state], r) < 0)
		r->reply.error = admin_text("the box has no memory to answer");
}

void admin_answer(struct session *s, const Phub__AdminRequest *request)
{
	struct control *c = s->control;
	struct admin_reply r = {
		.reply = PHUB__ADMIN_REPLY__INIT, .workers_left = ADMIN_WORKERS_MAX, .flows_left = ADMIN_FLOWS_MAX};
	Phub__Control control = PHUB__CONTROL__INIT;
	bool jobs = strcmp(request->command, "jobs") == 0, root = strcmp(request->command, "root") == 0;
	bool operates = job_operator_knows(request->command);
	bool promotes = strcmp(request->command, "promote") == 0;
	char said[ADMIN_SAID_BYTES] = "";
	struct err e;

	r.reply.version = admin_text(ADMIN_VERSION);
	r.reply.uptime_s = (c->now_ns - c->started_ns) / NS_PER_S;
	r.reply.strangers_refused = c->strangers_refused;
	r.reply.exposed = admin_text(c->box->exposed);
	r.reply.epoch = above_epoch(c);
	r.reply.promotable = above_is_promotable(c);
	r.reply.strangers_limited = c->strangers_limited;
	for (unsigned i = 0; i < c->box->transport_count; i++)
		r.reply.strangers_refused += c->box->transports[i].transport->strangers_refused;
	for (unsigned i = 0; i < c->box->transport_count; i++)
		r.reply.strangers_limited += c->box->transports[i].transport->strangers_limited;
	admin_fill_all_drops(c, &r);
	if (operates && request->n_arguments != 2)
		r.reply.error = admin_text("give a job, and a reason or an empty one");
	else if (operates && job_operate(c, request->command, request->arguments[0], request->arguments[1], said,
				     sizeof(said), &r.reply.rebalance, &e) < 0)
		r.reply.error = e.text;
	else if (promotes)
		admin_promote(s, request, &r, &e);
	else if (!jobs && !root && !operates && strcmp(request->command, "status") != 0)
		r.reply.error = admin_text("unknown command; allowed: jobs, status, root, pause, resume, drain, evict, "
					   "rebalance, promote");
	else if (admin_fill_cores(c, &r) < 0 || (jobs && admin_fill_jobs(c, request, &r) < 0) ||
		 admin_fill_promotion(c, NULL, &r) < 0)
		session_refuse(s, PHUB__ERROR_CODE__ERROR_LIMIT, "the box has no memory to answer");
	if (root)
		targets_look(&c->box->targets, c->now_ns);
	admin_fill_root(c, &r);
	r.reply.said = said;
	control.message_case = PHUB__CONTROL__MESSAGE_ADMIN_REPLY;
	control.admin_reply = &r.reply;
	if (s->state == SESSION_ADMIN)
		session_write(s, &control);
	admin_free(&r);
}
