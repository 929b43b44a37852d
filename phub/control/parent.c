/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One parent for each job that has workers here, where there is a box above.
 */
#include "phub/control/parent.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/base/stats.h"
#include "phub/control/above.h"
#include "phub/control/box.h"
#include "phub/control/calls.h"
#include "phub/control/job.h"
#include "phub/control/job_below.h"
#include "phub/control/peers_move.h"
#include "phub/control/unpack.h"
#include "phub/lift.h"
#include "phub/members.h"

#define PARENT_BACKOFF_NS     200000000ull
#define PARENT_BACKOFF_MAX_NS 5000000000ull
#define PARENT_NEXT_NS        20000000ull /* where there is another that it may be */
#define PARENT_HYPERS_MAX     64u         /* versions that wait for room in the session */
#define PARENT_WINDOW_MAX     (1u << 20)

/* Of its Start. */
struct parent_start {
	bool here; /* it came, and no generation was made by it yet */
	struct box_place place;
	Phub__Start *said; /* NULL: none came, or there was no memory for it */
};

struct parent_hypers {
	struct parent_hypers *next;
	uint32_t version;
	struct optimizer_hyper groups[];
};

struct parent {
	struct job *job;
	struct control *control;
	enum parent_state state;
	struct box_call *call; /* NULL: there is none */
	bool met;              /* one was welcome: who is elsewhere may be known from it */
	unsigned at;           /* which of the boxes that it may be is called (above.h) */
	uint64_t retry_ns, backoff_ns;
	char why[ERR_TEXT_MAX]; /* the last try failed; "": it did not */
	uint32_t generation;    /* whose table is told or agreed on */
	bool job_said;
	uint32_t keys_said;
	uint32_t gathered; /* counts Gathers */
	bool gather_owed;
	struct parent_start start;
	uint16_t *ways; /* [plan.chunk_count] of the generation that runs... */
	uint64_t *from; /* ...and, where it came to one that runs, the rounds that its chunks begin with */
	struct box_uplinks uplinks;
	struct parent_hypers *hypers; /* that are to be said, oldest first */
	unsigned hyper_count;
	uint64_t barrier_asked, barrier_owed, barrier_done;
	/* Why it ended the job: */
	uint32_t code; /* 0: it has not */
	int32_t rank;
	char text[ERR_TEXT_MAX];
	/* Why we did: */
	uint32_t own_code;
	int32_t own_rank;
	char own_text[ERR_TEXT_MAX];
};

const char *parent_state_name(enum parent_state state)
{
	static const char *const names[] = {"dialling", "telling", "started", "connecting", "lifting"};

	return names[state];
}

unsigned parent_cores(const struct job *job)
{
	const struct config_job *listed = config_find_job(job->control->config, job->name);
	unsigned own = job->control->box->core_count;

	return listed && listed->cores && listed->cores < own ? listed->cores : own;
}

/* ---- what it says ---- */

static void parent_forget_start(struct parent *p)
{
	if (p->start.said)
		phub__start__free_unpacked(p->start.said, NULL);
	p->start.said = NULL;
}

static void parent_hear_start(struct parent *p, const Phub__Start *m)
{
	parent_forget_start(p);
	p->start = (struct parent_start){.here = true,
		.place = {.job = m->job,
			.generation = m->generation,
			.epoch = m->epoch,
			.window = m->window,
			.rank = m->rank},
		.said = unpack_copy_start(m)};
}

static void parent_hear(void *arg, const Phub__Control *m)
{
	struct parent *p = arg;

	switch (m->message_case) {
	case PHUB__CONTROL__MESSAGE_START:
		parent_hear_start(p, m->start);
		break;
	case PHUB__CONTROL__MESSAGE_ERROR:
		p->code = m->error->code;
		p->rank = m->error->rank;
		job_below_copy_reason(p->job, p->text, sizeof(p->text), m->error->text);
		above_hear(p->control, p->at, m->error);
		break;
	case PHUB__CONTROL__MESSAGE_BARRIER_DONE:
		p->barrier_done = m->barrier_done->id;
		break;
	case PHUB__CONTROL__MESSAGE_HYPER:
		job_hyper_agree(p->job, m->hyper->version);
		break;
	case PHUB__CONTROL__MESSAGE_MEMBERS:
		job_below_hear_members(p->job, m->members);
		break;
	case PHUB__CONTROL__MESSAGE_NOTICE:
		job_pass_notice(p->job, m->notice);
		break;
	case PHUB__CONTROL__MESSAGE_BROKEN:
		box_uplinks_hear_broken(p->job, peers_uplinks(p->job, &p->uplinks), m->broken->core);
		break;
	default:
		peers_move_obey(p->job, m);
	}
}

/* ---- the session ---- */

static int parent_dial(struct parent *p, struct err *e)
{
	const struct above *above = &p->control->above;
	const struct config_secret *secret = box_call_secret(p->job);
	struct call_target target = {
		.what = "uplink",
		.below = p->job->ranks,
		.job = p->job->name,
		.secret = secret->bytes,
		.secret_bytes = secret->length,
		.hear = parent_hear,
		.arg = p,
	};

	p->code = p->own_code = 0;
	p->state = PARENT_DIALLING;
	if (!above->known)
		return err_set(e, -EAGAIN, "%s", above->why[0] ? above->why : "etcd was not asked yet");
	p->at = above_target(p->control, &target);
	return box_call_open(p->control, &target, &p->call, e);
}

void parent_begin(struct job *job)
{
	struct parent *p;

	if (job->parent || !job->control->above.there || !job->control->box->env.calls || job->mirror)
		return;
	p = calloc(1, sizeof(*p));
	if (!p) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1, "no memory in the box to reach the one above");
		return;
	}
	p->job = job;
	p->control = job->control;
	p->generation = 1;
	p->gather_owed = true;
	p->retry_ns = job->control->now_ns;
	job->parent = p;
	job->control->again = true;
}

void parent_changed(struct job *job)
{
	struct parent *p = job->parent;

	if (!p)
		return;
	p->gather_owed = true;
	job->control->again = true;
}

/* The next try begins with nothing said. */
static void parent_hang_up(struct parent *p)
{
	box_call_hang_up(p->control, p->call);
	p->call = NULL;
	p->state = PARENT_DIALLING;
	p->job_said = false;
	p->keys_said = 0;
	p->gather_owed = true;
	p->start.here = false;
}

/* The box above, which may have started it, hears why this one has not. */
static void parent_withdraw(struct parent *p, const char *why)
{
	parent_blame(p->job, PHUB__ERROR_CODE__ERROR_LOST, -1, why);
	parent_end(p->job);
	parent_hang_up(p);
}

void parent_anew(struct job *job)
{
	if (job->parent && job->parent->state < PARENT_STARTED)
		parent_withdraw(job->parent, "ranks went as it started; start the job again");
}

void parent_moved(struct job *job, const char *other)
{
	struct parent *p = job->parent;

	if (!p || job->state == JOB_ENDING)
		return;
	if (other && (job->state != JOB_FORMING || p->state >= PARENT_STARTED)) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_LOST, -1,
			"%s, and no more the one that it was with. The job ends here, and goes on there from its "
			"checkpoint, where both have the same checkpoint_targets",
			other);
		return;
	}
	if (job->state != JOB_FORMING || p->state >= PARENT_STARTED)
		return;
	parent_hang_up(p);
	p->retry_ns = job->control->now_ns;
	p->backoff_ns = 0;
	job->control->again = true;
}

void parent_promoted(struct job *job)
{
	struct parent *p = job->parent;

	if (!p || job->state == JOB_ENDING)
		return;
	if (job->state != JOB_FORMING || p->met) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_LOST, -1,
			"its box became %s, in place of the box above. The job ends, and goes on here from its "
			"checkpoint, where both had the same checkpoint_targets",
			above_root_name(job->control, (char[ABOVE_ROOT_BYTES]){""}));
		return;
	}
	parent_forget(job);
	if (job->reference)
		job_try_start(job);
}

/* Is it worth another try, in a job that forms? What it says itself is meant, but that it has no time now. */
static bool parent_may_retry(const struct parent *p, int rc)
{
	if (p->job->state != JOB_FORMING || p->state >= PARENT_STARTED)
		return false;
	if (p->code)
		return p->code == PHUB__ERROR_CODE__ERROR_BUSY || p->code == PHUB__ERROR_CODE__ERROR_SHUTDOWN;
	return rc != -EACCES && rc != -EPROTO && rc != -EINVAL && rc != -EPROTONOSUPPORT && rc != -ENOMEM;
}

static void parent_fail(struct parent *p, int rc, const char *text)
{
	Phub__ErrorCode code = p->code                                           ? (Phub__ErrorCode)p->code
			       : rc == -EACCES || rc == -ENOENT || rc == -EINVAL ? PHUB__ERROR_CODE__ERROR_DENIED
										 : PHUB__ERROR_CODE__ERROR_LOST;
	struct job *job = p->job;
	char box[NAMES_TEXT_BYTES], advice[ERR_TEXT_MAX];

	parent_hang_up(p);
	names_above(p->control, box, sizeof(box));
	if (p->code && strstr(p->text, JOB_TOLD)) /* by another box, to that one */
		job_fail(job, code, p->rank, "%s", p->text);
	else if (p->code)
		job_fail(job, code, p->rank, "%s" JOB_TOLD "%s)", p->text, box);
	else if (job->state == JOB_FORMING)
		job_fail(job, code, -1, "it cannot take part at the box above (uplink %s): %s", box, text);
	else
		job_fail(job, code, -1, "the box above (uplink %s) was lost: %s. The job ends here; look at that box%s",
			box, text, above_advise(p->control, advice, sizeof(advice)));
}

static void parent_broke(struct parent *p, int rc, const char *text)
{
	bool news;
	char box[NAMES_TEXT_BYTES];

	text = box_call_trim(text);
	if (!parent_may_retry(p, rc)) {
		parent_fail(p, rc, text);
		return;
	}
	if (above_failed(p->control, p->at, p->code && p->code != PHUB__ERROR_CODE__ERROR_SHUTDOWN, &text)) {
		p->retry_ns = p->control->now_ns + PARENT_NEXT_NS;
		parent_hang_up(p);
		return;
	}
	news = strcmp(p->why, text) != 0;
	p->backoff_ns = p->backoff_ns ? 2 * p->backoff_ns : PARENT_BACKOFF_NS;
	p->backoff_ns = p->backoff_ns > PARENT_BACKOFF_MAX_NS ? PARENT_BACKOFF_MAX_NS : p->backoff_ns;
	p->retry_ns = p->control->now_ns + p->backoff_ns;
	snprintf(p->why, sizeof(p->why), "%s", text);
	if (news)
		log_warn("job '%s' waits for the box above (uplink %s): %s; tried again until it answers", p->job->name,
			names_above(p->control, box, sizeof(box)), text);
	if (rc == -EOWNERDEAD)
		parent_withdraw(p, text);
	parent_hang_up(p);
}

/* ---- what it is told ---- */

static int parent_say_job(struct parent *p)
{
	const struct table *t = p->job->reference;
	Phub__Hypers *groups = calloc(t->spec.group_count + 1, sizeof(*groups));
	Phub__Hypers **each = calloc(t->spec.group_count + 1, sizeof(void *));
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Job job = PHUB__JOB__INIT;
	int rc = -ENOMEM;

	if (groups && each) {
		table_job(t, &job);
		table_hypers(t->spec.groups, t->spec.group_count, groups, each);
		job.generation = p->generation;
		job.groups = each;
		job.n_groups = t->spec.group_count;
		job.transport = (char *)(uintptr_t)p->call->offer;
		control.message_case = PHUB__CONTROL__MESSAGE_JOB;
		control.job = &job;
		rc = box_call_say(p->control, p->call, &control);
	}
	if (rc == 0)
		p->job_said = true;
	free(groups);
	free(each);
	return rc;
}

static int parent_say_gather(struct parent *p)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Gather gather = PHUB__GATHER__INIT;
	int rc = -ENOMEM;

	gather.ranks = calloc(p->job->ranks, sizeof(*gather.ranks));
	if (gather.ranks) {
		gather.n_ranks = job_below_gathered(p->job, gather.ranks);
		gather.number = p->gathered + 1;
		gather.type = (Phub__Dtype)p->job->lift;
		gather.deep = job_below_count(p->job) > 0;
		gather.after = p->job->after;
		gather.resumes = job_below_resumes(p->job);
		above_tell_address(p->job, &gather);
		control.message_case = PHUB__CONTROL__MESSAGE_GATHER;
		control.gather = &gather;
		rc = box_call_say(p->control, p->call, &control);
	}
	if (rc == 0) {
		p->gathered++;
		p->gather_owed = false;
	}
	free(gather.ranks);
	return rc;
}

/* May ranks come and go while it runs, and is it known what was lifted with those who are lost? */
static bool parent_may_change(const struct job *job)
{
	return job->state == JOB_RUNNING && job->generation->spec.lost != LOST_FAIL && !job->change;
}

/*
 * As much of it as there is room for. Of a job that runs the next table is told when it is that of all here: until then
 * results of rounds may be awaited, which end there with the old one.
 */
static int parent_tell(struct parent *p)
{
	const struct job *job = p->job;
	bool tells = job->reference && (job->state == JOB_FORMING || job->tabled == job_live(job));
	int rc = 0;

	if (p->gather_owed && (job->state == JOB_FORMING || parent_may_change(job)))
		rc = parent_say_gather(p);
	if (rc == 0 && tells && !p->job_said)
		rc = parent_say_job(p);
	if (rc == 0 && tells)
		rc = box_call_say_keys(p->control, p->call, p->job->reference, p->generation, &p->keys_said);
	return rc;
}

static int parent_say_hypers(struct parent *p)
{
	int rc = 0;

	while (rc == 0 && p->hypers) {
		struct parent_hypers *h = p->hypers;
		uint32_t count = p->job->generation->spec.group_count;

		rc = box_call_say_hyper(p->control, p->call, h->version, h->groups, count);
		if (rc < 0)
			break;
		p->hypers = h->next;
		p->hyper_count--;
		free(h);
	}
	return rc;
}

static int parent_say_barrier(struct parent *p)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Barrier barrier = PHUB__BARRIER__INIT;
	int rc;

	if (!p->barrier_owed)
		return 0;
	barrier.id = p->barrier_owed;
	control.message_case = PHUB__CONTROL__MESSAGE_BARRIER;
	control.barrier = &barrier;
	rc = box_call_say(p->control, p->call, &control);
	if (rc == 0)
		p->barrier_owed = 0;
	return rc;
}

bool parent_barrier(struct job *job, uint64_t id)
{
	struct parent *p = job->parent;

	if (!p || p->barrier_done == id)
		return true;
	if (p->barrier_asked != id) {
		p->barrier_asked = id;
		p->barrier_owed = id;
		job->control->again = true;
	}
	return false;
}

void parent_hyper(struct job *job, uint32_t version, const struct optimizer_hyper *groups)
{
	struct parent *p = job->parent;
	size_t bytes = job->generation->spec.group_count * sizeof(*groups);
	struct parent_hypers **at, *h;

	if (!p)
		return;
	h = p->hyper_count < PARENT_HYPERS_MAX ? malloc(sizeof(*h) + bytes) : NULL;
	if (!h) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1,
			"the box above does not take the hyper-parameters as fast as they change");
		return;
	}
	h->next = NULL;
	h->version = version;
	memcpy(h->groups, groups, bytes);
	for (at = &p->hypers; *at; at = &(*at)->next)
		continue;
	*at = h;
	p->hyper_count++;
	job->control->again = true;
}

/* ---- the start ---- */

bool parent_has_started(const struct job *job)
{
	return job->parent->state == PARENT_STARTED;
}

/* It starts: likewise here. 0, or why not. */
static int parent_start(struct parent *p, struct err *e)
{
	const Phub__Start *m = p->start.said;
	struct job *job = p->job;

	if (p->start.place.window < 1 || p->start.place.window > PARENT_WINDOW_MAX)
		return err_set(e, -EPROTO, "it grants %u messages; allowed are 1 to %u", p->start.place.window,
			PARENT_WINDOW_MAX);
	if (!m)
		return err_set(e, -ENOMEM, "no memory for what it says of the start");
	if (m->joined && m->exchange)
		return err_set(e, -EPROTO, "it lets us in, and names an exchange, into which nobody is let");
	if (m->joined && job->started > 0)
		return err_set(e, -EPROTO, "it lets us in, and we run");
	if (m->joined)
		p->generation = p->start.place.generation;
	if (p->start.place.generation != p->generation)
		return err_set(e, -EPROTO, "it starts generation %u, and %u is next", p->start.place.generation,
			p->generation);
	if (job->state == JOB_FORMING && !m->joined && (m->gathered != p->gathered || p->gather_owed))
		return err_set(e, -EOWNERDEAD, "ranks came or went as it started; start the job again");
	p->state = PARENT_STARTED;
	p->why[0] = '\0';
	if (job->started == 0) {
		job_below_settle(job);
		job_below_sort(job);
		if (!m->exchange &&
			(m->joined || job_below_resumes(job))) /* it may run without some, who may come here */
			job_below_keep_places(job, true);
	}
	if (m->exchange && peers_join(job, m->exchange, e) < 0)
		return e->code;
	job_try_start(job);
	return 0;
}

/* Of each chunk the round of its first key. 0, or -EPROTO. */
static int parent_read_rounds(const Phub__Start *m, const struct chunk_plan *plan, uint64_t *from)
{
	if (m->n_rounds != 1 && m->n_rounds != plan->key_count)
		return -EPROTO;
	for (uint32_t i = 0; i < plan->chunk_count; i++) {
		from[i] = m->rounds[m->n_rounds == 1 ? 0 : plan->chunks[i].key_first];
		if (from[i] == MEMBERS_NEVER)
			return -EPROTO;
	}
	return 0;
}

const uint64_t *parent_join(struct job *job)
{
	struct parent *p = job->parent;
	const struct spec *spec = &job->generation->spec;
	const Phub__Start *m = p ? p->start.said : NULL;

	if (!m || !m->joined)
		return NULL;
	free(p->from);
	p->from = calloc(spec->plan.chunk_count, sizeof(*p->from));
	if (!p->from || m->n_groups != spec->group_count || parent_read_rounds(m, &spec->plan, p->from) < 0) {
		job_fail(
			job, PHUB__ERROR_CODE__ERROR_LOST, -1, "the box above runs it otherwise than its workers here");
		return NULL;
	}
	job->hyper = m->hyper;
	job->barrier = m->barrier;
	p->barrier_done = m->barrier;
	p->barrier_asked = m->barrier;
	for (uint32_t i = 0; i < spec->group_count; i++)
		table_hyper(m->groups[i], &job->groups[i]);
	for (uint32_t i = 0; i < job->world; i++) {
		job->members[i].hyper = m->hyper;
		job->members[i].barrier = m->barrier;
	}
	job->rounds = p->from[0];
	return p->from;
}

static int parent_count_cores(const struct parent *p, struct err *e)
{
	int count = 0;

	for (size_t i = 0; i < p->start.said->core_of_chunk.len; i++)
		if (p->start.said->core_of_chunk.data[i] >= count)
			count = p->start.said->core_of_chunk.data[i] + 1;
	return count ? count : err_set(e, -EPROTO, "the box above has placed nothing");
}

int parent_place(struct job *job, struct spec *spec, struct err *e)
{
	struct parent *p = job->parent;
	const ProtobufCBinaryData there = p->start.said->core_of_chunk;
	uint32_t count = spec->plan.chunk_count;
	unsigned cores = parent_cores(job);
	int ways;

	if (job->peers) {
		ways = peers_take_cores(job, there.data, there.len, e);
		return ways < 0 ? ways : peers_place(job, spec, e);
	}
	if (there.len != count)
		return err_set(e, -EPROTO, "the box above has %zu chunks of it, and this one %u", there.len, count);
	ways = parent_count_cores(p, e);
	if (ways < 0)
		return ways;
	free(p->ways);
	free(job->placement);
	p->ways = calloc(count, sizeof(*p->ways));
	job->placement = calloc(count, sizeof(*job->placement));
	job->placement_count = count;
	if (!p->ways || !job->placement)
		return err_set(e, -ENOMEM, "no memory to place %u chunks", count);
	for (uint32_t i = 0; i < count; i++) {
		p->ways[i] = there.data[i];
		job->placement[i] = (uint16_t)(there.data[i] % cores); /* all chunks of a core there are on one */
	}
	spec->way_of_chunk = p->ways;
	spec->way_count = (uint32_t)ways;
	return 0;
}

/* ---- uplinks ---- */

static void parent_forget_hypers(struct parent *p)
{
	while (p->hypers) {
		struct parent_hypers *next = p->hypers->next;

		free(p->hypers);
		p->hypers = next;
	}
	p->hyper_count = 0;
}

void parent_connect(struct job *job)
{
	struct parent *p = job->parent;
	const struct box_place place = p->start.place;
	struct err e;
	int rc = 0;

	parent_forget_hypers(p);
	p->start.here = false;
	p->generation = place.generation + 1;
	p->job_said = false;
	p->keys_said = 0;
	if (job->peers) {
		p->state = PARENT_LIFTING; /* they see to it */
		return;
	}
	rc = box_uplinks_begin(job, p->call, &place, 0, job->generation->spec.way_count, false, &p->uplinks, &e);
	if (rc < 0) {
		parent_fail(p, rc, e.text);
		return;
	}
	p->state = PARENT_CONNECTING;
	job->control->again = true;
}

struct box_call *parent_call(const struct job *job)
{
	return job->parent ? job->parent->call : NULL;
}

struct box_place parent_place_there(const struct job *job)
{
	return job->parent ? job->parent->start.place : (struct box_place){0};
}

void parent_mail(struct job *job, const struct mail *mail)
{
	box_uplinks_hear(job, &job->parent->uplinks, mail);
}

/* ---- moving on ---- */

/* The session lives: what is next? 0, or why it ends. */
static int parent_advance(struct parent *p, bool welcomed, struct err *e)
{
	struct job *job = p->job;
	int rc = 0;

	if (p->state == PARENT_DIALLING && welcomed) {
		rc = above_welcomed(job, p->call, e);
		if (rc < 0)
			return rc;
		p->state = PARENT_TELLING;
		p->met = true;
	}
	if (p->state == PARENT_DIALLING || job->state == JOB_ENDING)
		return 0;
	if (p->state == PARENT_CONNECTING) {
		rc = box_uplinks_give(job, &p->uplinks, e);
		if (rc == 0)
			p->state = PARENT_LIFTING;
	}
	if (p->state != PARENT_STARTED)
		rc = parent_tell(p);
	if (rc == 0 && job->generation)
		rc = parent_say_hypers(p);
	if (rc == 0)
		rc = parent_say_barrier(p);
	if (rc < 0 && rc != -EAGAIN)
		return err_set(e, rc, "cannot tell it: %s", strerror(-rc));
	p->control->soon = p->control->soon || rc == -EAGAIN;
	if (p->start.here && p->state != PARENT_STARTED)
		return parent_start(p, e);
	return box_uplinks_check(job, &p->uplinks, e);
}

static void parent_move(struct parent *p)
{
	struct control *c = p->control;
	struct err e = {.code = 0};
	int rc = 0;

	if (!p->call) {
		if (c->now_ns < p->retry_ns || p->job->state != JOB_FORMING)
			return;
		rc = parent_dial(p, &e);
	}
	if (rc == 0)
		rc = box_call_step(c, p->call, &e);
	if (rc >= 0 && !p->code)
		rc = parent_advance(p, rc > 0, &e);
	if (rc < 0 || p->code) {
		parent_broke(p, rc, e.text);
		return;
	}
	if (p->job->state != JOB_ENDING && p->barrier_done && p->barrier_done == p->barrier_asked)
		job_barrier_recount(p->job);
}

void parent_step(struct control *c)
{
	struct job *next;

	for (struct job *job = c->jobs; job; job = next) {
		next = job->next;
		if (job->state != JOB_ENDING && job->parent)
			parent_move(job->parent);
		if (job->state != JOB_ENDING && job->peers)
			peers_step(job);
	}
}

/* ---- the end ---- */

void parent_blame(struct job *job, Phub__ErrorCode code, int rank, const char *text)
{
	struct parent *p = job->parent;

	if (!p || (job->peers && p->control->box->env.plant == SHARD_PLANT_MUTE))
		return;
	p->own_code = code;
	p->own_rank = rank;
	snprintf(p->own_text, sizeof(p->own_text), "%s", text);
}

void parent_end(struct job *job)
{
	struct parent *p = job->parent;
	Phub__Leave leave = PHUB__LEAVE__INIT;
	Phub__Error error = PHUB__ERROR__INIT;

	if (!p || !p->call)
		return;
	if (p->state == PARENT_DIALLING) {
		parent_hang_up(p);
		return;
	}
	leave.finished = job->finished;
	leave.bereaved =
		job->deserted || job->started == 0; /* what goes wrong before it takes part is its own business */
	if (p->own_code) {
		error.code = p->own_code;
		error.rank = p->own_rank;
		error.text = p->own_text;
		leave.error = &error;
	}
	/* Uplinks stay while the cores drain: what is owed to workers here may come yet. */
	box_call_part(p->control, p->call, &leave);
	p->call = NULL;
}

void parent_forget(struct job *job)
{
	struct parent *p = job->parent;

	if (!p)
		return;
	box_call_hang_up(p->control, p->call);
	box_uplinks_forget(&p->uplinks);
	parent_forget_hypers(p);
	parent_forget_start(p);
	free(p->ways);
	free(p->from);
	free(p);
	job->parent = NULL;
}

bool parent_describe(const struct job *job, struct parent_report *out)
{
	const struct parent *p = job->parent;

	if (!p)
		return false;
	*out = (struct parent_report){.state = p->state,
		.why = p->why,
		.advice = p->why[0] ? p->control->above.advice : "",
		.by = box_call_by(p->call),
		.by_why = p->call ? p->call->by_why : "",
		.bytes = box_uplinks_bytes(job, &p->uplinks)};
	return true;
}
