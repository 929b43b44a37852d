/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks are lost, and come, while the job runs. One change of membership at a time: all cores hold, control looks at
 * the rounds that chunks collect, all cores go on (phub/members.h). What happens meanwhile is the next change.
 */
#include "phub/control/job.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/control/box.h"
#include "phub/control/job_below.h"
#include "phub/control/parent.h"
#include "phub/control/peers.h"
#include "phub/control/peers_move.h"
#include "phub/control/session.h"
#include "phub/control/standby.h"
#include "phub/members.h"

/* ---- the two steps ---- */

static void job_members_send(struct job *job, enum mail_kind kind)
{
	const struct mail mail = {.kind = kind, .members = job->change};

	job->change_left = generation_post(job->generation, job->control->box, &mail);
}

static void job_members_begin(struct job *job)
{
	struct members *m = job->next_change;

	if (job->change || !m || job->state != JOB_RUNNING)
		return;
	if (m->repair)
		job->epoch++;
	m->epoch = job->epoch;
	for (uint32_t i = 0; i < job->world; i++)
		if (job->members[i].gone)
			members_add(m->absent, i);
	job->change = m;
	job->next_change = NULL;
	job->going = false;
	job->gone_on = false;
	job_members_send(job, MAIL_HOLD);
}

/* What changes next; NULL: there is no memory, and the job has failed. */
static struct members *job_members_next(struct job *job)
{
	struct members *m = job->next_change;

	if (m)
		return m;
	m = calloc(1, sizeof(*m));
	if (m)
		m->rounds = calloc(job->generation->spec.plan.chunk_count, sizeof(*m->rounds));
	if (!m || !m->rounds) {
		free(m);
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1, "no memory in the box to change its membership");
		return NULL;
	}
	m->from = m->rounds;
	job->next_change = m;
	return m;
}

static void job_members_free(struct members *m)
{
	if (m)
		free(m->rounds);
	free(m);
}

void job_members_forget(struct job *job)
{
	job_members_free(job->change);
	job_members_free(job->next_change);
	job->change = NULL;
	job->next_change = NULL;
}

/* ---- between them ---- */

/* Of the chunks of one key the furthest round, for all of them. Returns the first chunk of the next key. */
static uint32_t job_level_key(const struct chunk_plan *plan, uint64_t *rounds, uint32_t first)
{
	uint64_t round = rounds[first];
	uint32_t next = first + 1;

	for (; next < plan->chunk_count && plan->chunks[next].key_first == plan->chunks[first].key_first; next++)
		if (rounds[next] > round)
			round = rounds[next];
	for (uint32_t i = first; i < next; i++)
		rounds[i] = round;
	return next;
}

uint64_t job_level_rounds(const struct chunk_plan *plan, uint64_t *rounds)
{
	uint64_t furthest = 0;

	for (uint32_t first = 0; first < plan->chunk_count;)
		first = job_level_key(plan, rounds, first);
	for (uint32_t i = 0; i < plan->chunk_count; i++)
		if (rounds[i] > furthest)
			furthest = rounds[i];
	for (uint32_t i = 0; i < plan->chunk_count; i++)
		if (rounds[i] + 1 == furthest)
			rounds[i] = furthest;
	return furthest;
}

/* Is rank 0 among them, or at a box that is? Another that came in its place since they were is here, and the next
 * change's. */
static bool job_members_root(const struct job *job, const struct members *m)
{
	if (job->next_change && members_have(job->next_change->awaited, 0))
		return true;
	for (uint32_t i = 0; i < job->world; i++)
		if ((members_have(m->lost, i) || members_have(m->awaited, i)) && (i == 0 || job_stands_for(job, i, 0)))
			return true;
	return false;
}

/* Does this change let it in? Who came since it began, for a rank that was lost or came before, is the next one's. */
static bool job_members_lets_in(const struct job *job, uint32_t member)
{
	const struct members *next = job->next_change;

	return job->members[member].joins && members_have(job->change->awaited, member) &&
	       !(next && members_have(next->awaited, member));
}

/*
 * Who comes and was at another box may be in sums that were on their way from there when it was lost: it takes part in
 * rounds after these (job->after).
 */
static void job_members_pass_over(const struct job *job, struct members *m)
{
	bool moved = false;

	for (uint32_t i = 0; i < job->world; i++)
		moved = moved || (job_members_lets_in(job, i) && (job->members[i].newcomer || job_is_box(job, i)));
	for (uint32_t i = 0; moved && i < job->generation->spec.plan.chunk_count; i++)
		if (m->rounds[i] < job->after)
			m->rounds[i] = job->after;
}

static void job_members_held(struct job *job)
{
	struct members *m = job->change;

	if (m->firm) {
		peers_move_held(job, m->rounds);
		return;
	}
	/* Only rank 0 brings them, and another in its place cannot tell which of a key's chunks have theirs. */
	if (m->weightless > 0 && job_members_root(job, m)) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_LOST, 0,
			"rank 0 (%s) was lost before it had sent all first weights. The job ends here; look at that "
			"worker",
			job->members[0].elsewhere ? "at another box" : job->members[0].peer);
		return;
	}
	if (m->repair && m->lifted > job->after)
		job->after = m->lifted;
	job_members_pass_over(job, m);
	job_level_rounds(&job->generation->spec.plan, m->rounds);
	job->stays = true;
	job_hyper_recount(job);
	job_members_resume(job);
}

bool job_members_is_ahead(const struct job *job, uint32_t member)
{
	return job->stays && job->members[member].joins;
}

/* Somebody who is here is no newcomer? */
static bool job_members_has_others(const struct job *job)
{
	for (uint32_t i = 0; i < job->world; i++)
		if (!job->members[i].gone && !job->members[i].joins)
			return true;
	return false;
}

/*
 * A round that is lifted names hyper-parameters that all who pushed it have sent, or are about to. Who comes after it
 * begins with them.
 */
void job_members_resume(struct job *job)
{
	struct members *m = job->change;
	bool joins = false;
	uint32_t newest;

	if (!job->stays || job->state != JOB_RUNNING)
		return;
	job_hyper_newest(job, &newest);
	for (uint32_t i = 0; i < job->world; i++)
		joins = joins || job_members_lets_in(job, i);
	if (joins && newest < m->hyper && job_members_has_others(job))
		return;
	if (joins && newest < m->hyper) {
		job->deserted = true;
		job_fail(job, PHUB__ERROR_CODE__ERROR_LOST, -1,
			"of this box's workers all that have set the hyper-parameters of a round that is under way "
			"were lost. The others must start again");
		return;
	}
	for (uint32_t i = 0; i < job->world; i++)
		if (job_members_lets_in(job, i) && !spec_stepwise(&job->generation->spec))
			job->members[i].hyper = newest;
	job->stays = false;
	job->going = true;
	job_members_send(job, MAIL_GO);
}

/* ---- who hears of it ---- */

bool job_is_somewhere(const struct job *job, uint32_t rank)
{
	const struct member *m = &job->members[rank];

	if (!m->elsewhere)
		return !m->gone;
	return !m->absent && (m->at == JOB_AT_OTHER || !job->members[m->at].gone);
}

bool job_is_lost(const struct job *job, uint32_t rank)
{
	const struct member *m = &job->members[rank];

	return !job_is_somewhere(job, rank) && !(job->peers && m->elsewhere && !m->absent);
}

uint64_t job_gone_ns(const struct job *job, uint32_t rank)
{
	const struct member *m = &job->members[rank];

	if (m->elsewhere && m->at != JOB_AT_OTHER && job->members[m->at].gone)
		m = &job->members[m->at];
	return m->gone_ns ? m->gone_ns : job->control->now_ns;
}

uint32_t job_count_somewhere(const struct job *job)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < job->ranks; i++)
		count += !job_is_lost(job, i);
	return count;
}

/* As all cores have it, so that they take what names it. */
static uint32_t job_members_epoch(const struct job *job)
{
	return job->change && job->change->repair && !job->gone_on ? job->epoch - 1 : job->epoch;
}

/* Who left has none, nor who was at no box that this one knows; others that of their box. */
static char *job_members_why(struct job *job, struct member *m)
{
	if (m->elsewhere && m->at == JOB_AT_OTHER)
		return NULL;
	m = m->elsewhere ? &job->members[m->at] : m;
	return m->gone && !m->quit ? m->lost_why : NULL;
}

/* Of all that were lost with a box it is one text. */
static uint32_t job_members_say_why(char *why, Phub__Members *members)
{
	uint32_t i = 0;

	while (i < members->n_whys && members->whys[i] != why)
		i++;
	if (i < members->n_whys)
		return i;
	if (!why || i == JOB_WHYS_MAX)
		return UINT32_MAX;
	members->whys[members->n_whys++] = why;
	return i;
}

static void job_members_say_lost(struct job *job, uint32_t rank, Phub__Members *members)
{
	struct member *m = &job->members[rank];

	members->lost[members->n_lost++] = rank;
	if (!m->elsewhere && m->quit)
		members->left[members->n_left++] = rank;
	members->why[members->n_why++] = job_members_say_why(job_members_why(job, m), members);
}

void job_members_spread(struct job *job, const uint64_t *lost, const uint64_t *came, const struct session *but)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Members members = PHUB__MEMBERS__INIT;
	uint32_t *ranks = calloc(4 * (size_t)job->ranks, sizeof(*ranks));
	char *whys[JOB_WHYS_MAX];

	if (!ranks)
		return; /* data connections say the epoch, too */
	members.epoch = job_members_epoch(job);
	members.present = job_count_somewhere(job);
	members.after = job->after;
	members.lost = ranks;
	members.came = ranks + job->ranks;
	members.left = members.came + job->ranks;
	members.why = members.left + job->ranks;
	members.whys = whys;
	for (uint32_t i = 0; i < job->ranks; i++) {
		if (members_have(lost, i))
			job_members_say_lost(job, i, &members);
		else if (members_have(came, i))
			members.came[members.n_came++] = i;
	}
	control.message_case = PHUB__CONTROL__MESSAGE_MEMBERS;
	control.members = &members;
	for (uint32_t i = 0; i < job->world && job->state == JOB_RUNNING; i++)
		if (job->members[i].session && job->members[i].session != but && !job->members[i].joins)
			session_write(job->members[i].session, &control);
	free(ranks);
}

/* Those who are at a box go and come with it. Who joins now hears of it by its Start. */
static void job_members_tell(struct job *job, const struct members *m)
{
	uint64_t lost[MAIL_RANK_WORDS] = {0}, came[MAIL_RANK_WORDS] = {0};

	for (uint32_t i = 0; i < job->ranks; i++) {
		const struct member *member = &job->members[i];
		uint32_t at = member->elsewhere ? member->at : i;

		if (at == JOB_AT_OTHER || member->absent ||
			(!members_have(m->lost, at) && !members_have(m->awaited, at)))
			continue;
		members_add(job->members[at].gone ? lost : came, i);
	}
	job_members_spread(job, lost, came, NULL);
}

void job_members_tell_absent(struct job *job)
{
	uint64_t lost[MAIL_RANK_WORDS] = {0}, came[MAIL_RANK_WORDS] = {0};

	for (uint32_t i = 0; i < job->ranks; i++)
		if (job_is_lost(job, i))
			members_add(lost, i);
	if (job_count_somewhere(job) < job->ranks)
		job_members_spread(job, lost, came, NULL);
}

/* They take part from now on: what was waited for is counted with them. */
static void job_members_welcome(struct job *job, struct members *m)
{
	bool boxes = false;
	char who[240];

	for (uint32_t i = 0; i < job->world && job->state == JOB_RUNNING; i++) {
		struct member *member = &job->members[i];

		if (!job_members_lets_in(job, i) || !member->session)
			continue;
		member->joins = false;
		member->newcomer = false;
		job->joins++;
		job_hyper_hand_on(job, i);
		if (job->state != JOB_RUNNING)
			return;
		job_write_joined(job, i, m->from);
		log_info("job '%s' %s takes part again: %u of %u are here", job->name,
			job_member_name(job, i, who, sizeof(who)), job_count_somewhere(job), job->ranks);
		boxes = boxes || job_is_box(job, i);
	}
	if (boxes) /* they let in who is nowhere */
		job_members_tell_absent(job);
	parent_changed(job);
	job_below_review(job);
}

static void job_members_went(struct job *job)
{
	struct members *m = job->change;

	job->gone_on = true;
	if (!m->firm)
		job_members_tell(job, m);
	standby_members(job);
	if (job->state == JOB_RUNNING && !m->firm)
		job_members_welcome(job, m);
	job->change = NULL;
	if (m->drain) { /* its cores look at it until they give their shards back */
		job->stops = m->rounds;
		m->rounds = NULL;
	}
	job_members_free(m);
	if (job->state != JOB_RUNNING)
		return;
	job_members_begin(job);
	job_try_start(job); /* all others may have sent their next tables */
}

void job_members_step(struct job *job, const struct mail *mail)
{
	if (job->change != mail->members || --job->change_left > 0 || job->state != JOB_RUNNING)
		return;
	if (mail->kind == MAIL_HELD)
		job_members_held(job);
	else
		job_members_went(job);
}

void job_members_drain(struct job *job)
{
	const struct generation *g = job->generation;
	struct members *m = job_members_next(job);

	if (!m)
		return;
	m->drain = true;
	for (unsigned core = 0; core < g->spec.core_count; core++)
		job->drain_left += g->store.shards[core] != NULL;
	job_members_begin(job);
}

/* ---- chunks get other homes ---- */

bool job_members_hold(struct job *job)
{
	struct members *m = job->change || job->next_change ? NULL : job_members_next(job);

	if (m)
		m->firm = true;
	job_members_begin(job);
	return m != NULL;
}

void job_members_stop(struct job *job, const uint64_t *rounds)
{
	struct members *m = job->change;

	if (rounds)
		memcpy(m->rounds, rounds, job->generation->spec.plan.chunk_count * sizeof(*rounds));
	m->drain = rounds != NULL;
	job->going = true;
	job_members_send(job, MAIL_GO);
}

/* ---- lost ---- */

uint64_t job_wait_ns(const struct job *job)
{
	uint32_t wait_ms = job->generation->table->wait_ms;

	return (wait_ms ? wait_ms : job->control->config->wait_ms) * NS_PER_MS;
}

/* One that came from a box that was lost, and had not taken part: it is with those of that box again, if that is
 * awaited yet; else it is awaited itself. */
static bool job_members_put_back(const struct job *job, struct member *m)
{
	bool back = m->newcomer && m->at != JOB_AT_OTHER && !job->members[m->at].elsewhere;

	m->newcomer = false;
	if (back)
		*m = (struct member){
			.gone = true, .elsewhere = true, .at = m->at, .absent = true, .gone_ns = m->gone_ns};
	return back;
}

bool job_members_lose(struct job *job, uint32_t rank, const char *why)
{
	const struct spec *spec = job->generation ? &job->generation->spec : NULL;
	struct member *member = &job->members[rank];
	struct members *m;
	char who[240];
	bool back;

	if (job->state != JOB_RUNNING || spec->lost == LOST_FAIL || job->present == 0 || job->tabled > 0)
		return false;
	if (job->peers && (job_is_box(job, rank) || (spec->lost == LOST_SHRINK && !peers_have_own(job, rank))))
		return false; /* chunks end there, or others wait for this box's sums */
	job_member_name(job, rank, who, sizeof(who));
	m = job_members_next(job);
	if (!m)
		return true;
	member->gone = true;
	member->quit = !why;
	member->joins = false;
	member->waits = false;
	member->gone_ns = job->control->now_ns;
	member->link_ended_ns = 0;
	generation_unlink(job->generation, job->control->box, rank);
	members_remove(m->awaited, rank);
	members_remove(m->lost, rank);
	back = job_members_put_back(job, member);
	members_add(spec->lost == LOST_WAIT && !back ? m->awaited : m->lost, rank);
	m->repair = true;
	if (why) {
		job->losses++;
		snprintf(member->lost_why, sizeof(member->lost_why), "%s", why);
	}
	standby_members(job);
	if (!why)
		log_info("job '%s' goes on with %u of %u", job->name, job_count_somewhere(job), job->ranks);
	else if (spec->lost == LOST_WAIT)
		log_warn("job '%s' %s was lost: %s. The job waits %.0f s for another %s in its place", job->name, who,
			why, (double)job_wait_ns(job) / 1e9, job_is_box(job, rank) ? "box" : "worker");
	else
		log_warn("job '%s' %s was lost: %s. The job goes on with %u of %u", job->name, who, why,
			job_count_somewhere(job), job->ranks);
	parent_changed(job);
	job_members_begin(job);
	if (job->state == JOB_RUNNING)
		job_hyper_recount(job);
	if (job->state == JOB_RUNNING)
		job_barrier_recount(job);
	return true;
}

void job_members_tick(struct job *job)
{
	uint64_t now_ns = job->control->now_ns;
	char advice[JOB_ADVICE_BYTES], who[240];

	if (job->state != JOB_RUNNING || job->generation->spec.lost != LOST_WAIT)
		return;
	for (uint32_t i = 0; i < job->world; i++) {
		const struct member *member = &job->members[i];

		if (!member->gone || member->elsewhere || member->newcomer || member->joins ||
			now_ns - member->gone_ns < job_wait_ns(job))
			continue;
		job_fail(job, PHUB__ERROR_CODE__ERROR_LOST, (int)i,
			"%s was lost, and no other took its place in %.0f s. %s",
			job_member_name(job, i, who, sizeof(who)), (double)job_wait_ns(job) / 1e9,
			job_advice(job, i, advice, sizeof(advice)));
		return;
	}
}

void job_members_release(struct job *job, uint32_t member)
{
	struct members *m;

	if (job->state != JOB_RUNNING || job->generation->spec.lost != LOST_WAIT)
		return;
	m = job_members_next(job);
	if (!m)
		return;
	members_remove(m->awaited, member);
	members_add(m->lost, member);
	job_members_begin(job);
	if (job->state == JOB_RUNNING)
		job_hyper_recount(job);
	if (job->state == JOB_RUNNING)
		job_barrier_recount(job);
}

/* ---- came ---- */

void job_members_join(struct session *s)
{
	struct job *job = s->job;
	struct member *member = &job->members[s->rank];
	struct members *m;
	struct err e;

	if (job->draining) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_OPERATOR,
			"the box's operator drains job '%s'%s%s: it ends, and lets nobody in", job->name,
			job->reason[0] ? ": " : "", job->reason);
		return;
	}
	if (job->state != JOB_RUNNING || job->tabled > 0) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_LIMIT, "job '%s' is %s; try again in a moment", job->name,
			job->started <= 1 ? "starting" : "changing its key table");
		return;
	}
	s->table->spec.generation = job->generation->spec.generation; /* it cannot know */
	if (job_compare_tables(job, job->generation->table, job_first_live(job), s->table, s->rank, &e) < 0) {
		session_refuse(
			s, PHUB__ERROR_CODE__ERROR_MISMATCH, "%s; the job runs, and who comes must fit it", e.text);
		return;
	}
	if (strcmp(s->table->transport, "shm") == 0 && !job->generation->pushes[s->rank].base &&
		!(s->below && generation_is_shared(job->generation))) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_UNSUPPORTED,
			"rank %u of job '%s' began without shared memory, and has none in the box; name another "
			"transport, or none",
			s->rank, job->name);
		return;
	}
	memcpy(member->transport, s->table->transport, sizeof(member->transport));
	session_drop_table(s);
	m = job_members_next(job);
	if (!m)
		return;
	members_remove(m->lost, s->rank);
	members_add(m->awaited, s->rank);
	member->gone = false;
	member->joins = true;
	if (!spec_stepwise(&job->generation->spec))
		job_hyper_newest(job, &member->hyper);
	member->barrier = job->barrier;
	for (uint32_t core = 0; core < job->generation->spec.core_count; core++) {
		struct generation_link *link = generation_link(job->generation, s->rank, core);

		link->fresh = true;
		link->ended_ns = 0;
		link->tried_ns = 0; /* who tried was another */
	}
	job_members_begin(job);
}
