/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes below come, say whom they have, and go.
 */
#include "phub/control/job_below.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/log.h"
#include "phub/base/ranks.h"
#include "phub/control/above.h"
#include "phub/control/box.h"
#include "phub/control/generation.h"
#include "phub/control/parent.h"
#include "phub/control/peers.h"
#include "phub/control/session.h"
#include "phub/members.h"

#define BELOW_RANKS_TOLD 64u
#define BELOW_CIRCLE     ", or, if uplinks lead from box to box in a circle, one of these boxes no uplink"
#define BELOW_SPARE      4u         /* places for boxes that come while the job runs */
#define BELOW_CHUNK_MAX  (1u << 20) /* of 16 bits each: as fp32 it has room in a message */

/* ---- names ---- */

static void below_list(const struct job *job, uint32_t member, char *out, size_t bytes)
{
	uint32_t ranks[BELOW_RANKS_TOLD], known = 0, count = 0;

	for (uint32_t i = 0; i < job->ranks; i++) {
		if (!job->members[i].elsewhere || job->members[i].at != member || job->members[i].absent)
			continue;
		if (known < BELOW_RANKS_TOLD)
			ranks[known++] = i;
		count++;
	}
	ranks_write(ranks, known, count, out, bytes);
}

const char *job_box_name(const struct job *job, uint32_t member, char *out, size_t bytes)
{
	const struct member *m = &job->members[member];
	char box[NAMES_TEXT_BYTES];

	snprintf(out, bytes, "box %s", names_write(m->name, m->peer, box, sizeof(box)));
	return out;
}

const char *job_member_name(const struct job *job, uint32_t member, char *out, size_t bytes)
{
	const struct member *m = &job->members[member < job->world ? member : 0];
	char ranks[120], box[NAMES_TEXT_BYTES];

	if (member == JOB_AT_OTHER) {
		snprintf(out, bytes, "another box");
		return out;
	}
	if (!job_is_box(job, member)) {
		snprintf(out, bytes, "rank %u (%s)", member, m->peer);
		return out;
	}
	below_list(job, member, ranks, sizeof(ranks));
	if (ranks[0])
		snprintf(out, bytes, "%s (rank%s %s)", job_box_name(job, member, box, sizeof(box)),
			strpbrk(ranks, ",-") ? "s" : "", ranks);
	else /* it has none, or has not said yet */
		job_box_name(job, member, out, bytes);
	return out;
}

const char *job_member_word(const struct job *job, uint32_t member, char *out, size_t bytes)
{
	if (job_is_box(job, member))
		return job_member_name(job, member, out, bytes);
	snprintf(out, bytes, "rank %u", member);
	return out;
}

bool job_stands_for(const struct job *job, uint32_t member, uint32_t rank)
{
	const struct member *m = &job->members[rank];

	return m->elsewhere && (m->at == member || peers_stand_for(job, member, rank));
}

uint32_t job_member_rank(const struct job *job, uint32_t member)
{
	for (uint32_t i = 0; job_is_box(job, member) && i < job->ranks; i++)
		if (job->members[i].elsewhere && job->members[i].at == member)
			return i;
	return member;
}

/* ---- the order of sums ---- */

uint32_t job_below_count(const struct job *job)
{
	uint32_t count = 0;

	for (uint32_t i = job->ranks; i < job->world; i++)
		count += job->members[i].session != NULL;
	return count;
}

/* Workers that take part at this member, or here, as a list in the list; those here stand in the outer one. */
static size_t below_write_list(const struct job *job, uint32_t member, char *out, size_t bytes)
{
	bool here = member == JOB_AT_OTHER, some = false;
	size_t at = 0;

	for (uint32_t i = 0; i < job->ranks && at < bytes; i++) {
		const struct member *m = &job->members[i];

		if (here ? !m->session : !m->elsewhere || m->at != member || !job_is_somewhere(job, i))
			continue;
		at += (size_t)snprintf(out + at, bytes - at, "%s%u", some ? "," : here ? "" : "[", i);
		some = true;
	}
	if (some && at < bytes)
		at += (size_t)snprintf(out + at, bytes - at, here ? "," : "],");
	return at;
}

/* Does it make all of them, and know how? */
static bool below_knows_order(const struct job *job)
{
	const struct generation *g = job->generation;

	if (!g || !g->spec.reproducible || job->parent || job->peers || job_below_count(job) == 0)
		return false;
	for (uint32_t i = job->ranks; i < job->world; i++)
		if (job->members[i].session && job->members[i].deep)
			return false;
	return true;
}

char *job_below_association(const struct job *job)
{
	bool knows = below_knows_order(job);
	size_t bytes = 3 + (knows ? 8 * (size_t)job->world : 0), at = 1; /* "1023," and brackets, for each */
	char *out = malloc(bytes);

	if (!out || !knows) {
		if (out)
			out[0] = '\0';
		return out;
	}
	out[0] = '[';
	at += below_write_list(job, JOB_AT_OTHER, out + at, bytes - at);
	for (uint32_t i = job->ranks; i < job->world; i++)
		at += below_write_list(job, i, out + at, bytes - at);
	out[at - 1] = at > 1 ? ']' : '\0';
	return out;
}

/* ---- coming and going ---- */

uint32_t job_below_append(struct job *job)
{
	struct member *members =
		job->world < WIRE_WORLD_MAX ? realloc(job->members, (job->world + 1) * sizeof(*members)) : NULL;

	if (!members)
		return JOB_AT_OTHER;
	job->members = members;
	members[job->world] = (struct member){.gone = true, .elsewhere = true, .at = JOB_AT_OTHER};
	return job->world++;
}

/* A place for one more box, which is nobody's. JOB_AT_OTHER: there is none. */
static uint32_t below_place(struct job *job)
{
	for (uint32_t i = job->ranks; i < job->world; i++)
		if (!job->members[i].session)
			return i;
	return job_below_append(job);
}

/* The place of a box that a job which runs has lost, and which another may take: not of one among those that exchange.
 */
static uint32_t below_vacancy(const struct job *job)
{
	if (job->generation->spec.lost == LOST_FAIL || job->peers || job->draining)
		return JOB_AT_OTHER;
	uint32_t emptied = JOB_AT_OTHER; /* of one whose ranks are elsewhere: nobody waits for that */

	for (uint32_t i = job->ranks; i < job->world; i++) {
		if (!job->members[i].gone || job->members[i].session)
			continue;
		if (!job->members[i].elsewhere)
			return i;
		emptied = emptied == JOB_AT_OTHER ? i : emptied;
	}
	return emptied;
}

/* Of a box that may die, and whose boxes below come here then? */
static bool below_is_sibling(const struct job *job)
{
	unsigned self;
	const struct racks *racks = box_racks(job->control->box, &self);

	for (unsigned i = 0; racks && i < racks->box_count; i++)
		if (racks->boxes[i].sibling == (int)self)
			return true;
	return false;
}

void job_below_keep_places(struct job *job, bool again)
{
	const struct table *t = job->reference;
	uint32_t boxes = job_below_count(job), wanted = boxes + BELOW_SPARE;
	bool alone = boxes == 0 && !again && !job->parent && !above_is_root(job->control) && !below_is_sibling(job);

	if (alone || t->spec.lost == LOST_FAIL || job->control->config->standby[0] ||
		t->chunk_bytes > BELOW_CHUNK_MAX || job_below_check(&t->spec, NULL) < 0)
		return;
	wanted = job->ranks < wanted ? job->ranks : wanted; /* each has one of them */
	while (job->world - job->ranks < wanted && job_below_append(job) != JOB_AT_OTHER)
		continue;
}

static void below_swap(struct job *job, uint32_t a, uint32_t b)
{
	struct member kept = job->members[a];

	job->members[a] = job->members[b];
	job->members[b] = kept;
	if (job->members[a].session)
		job->members[a].session->rank = a;
	if (job->members[b].session)
		job->members[b].session->rank = b;
	for (uint32_t i = 0; i < job->ranks; i++) {
		struct member *m = &job->members[i];

		if (m->elsewhere && (m->at == a || m->at == b))
			m->at = m->at == a ? b : a;
	}
	if (job->reference_rank == a || job->reference_rank == b)
		job->reference_rank = job->reference_rank == a ? b : a;
}

void job_below_sort(struct job *job)
{
	for (uint32_t i = job->ranks; i < job->world; i++) {
		uint32_t first = i;

		for (uint32_t k = i + 1; k < job->world; k++)
			if (job_member_rank(job, k) < job_member_rank(job, first))
				first = k;
		if (first != i)
			below_swap(job, i, first);
	}
}

static int below_refuse(struct session *s, Phub__ErrorCode code, int rc, const char *why)
{
	session_refuse(s, code, "job '%s': %s", s->name, why);
	return rc;
}

static bool below_seeks(const struct job *job)
{
	struct parent_report above;

	return above_at_sibling(job->control) && parent_describe(job, &above) && above.state == PARENT_DIALLING;
}

/* What messages call it. */
static void below_name(struct member *m, const struct names_box *box)
{
	memcpy(m->peer, box->address, sizeof(m->peer));
	memcpy(m->name, box->name, sizeof(m->name));
}

int job_below_join(struct session *s)
{
	struct job *job = job_find(s->control, s->name);
	struct member *m;
	uint32_t place;

	if (s->encrypt)
		return below_refuse(s, PHUB__ERROR_CODE__ERROR_UNSUPPORTED, -ENOTSUP,
			"what is encrypted is not summed over several boxes yet; let its workers come to one box");
	if (!job)
		job = job_found(s);
	if (!job)
		return -ENOENT;
	if (job->ranks != s->world) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_MISMATCH,
			"job '%s' has a world of %u here, the workers of the box below say %u", s->name, job->ranks,
			s->world);
		return -EBADMSG;
	}
	if (above_holds(job))
		return below_refuse(s, PHUB__ERROR_CODE__ERROR_BUSY, -EBUSY, ABOVE_DOUBTS);
	if (below_seeks(job)) /* or two boxes may be at each other, each for the other's box above that died */
		return below_refuse(s, PHUB__ERROR_CODE__ERROR_BUSY, -EBUSY,
			"its box has lost the one above it, and waits itself to be let in by that one's sibling");
	place = job->state == JOB_RUNNING ? below_vacancy(job) : JOB_AT_OTHER;
	if (place == JOB_AT_OTHER && (job->state != JOB_FORMING || job->moves))
		return below_refuse(s, PHUB__ERROR_CODE__ERROR_BUSY, -EBUSY,
			"it runs here already, without that box; it waits until the job has ended, or has lost a box");
	if (place == JOB_AT_OTHER)
		place = below_place(job);
	if (place == JOB_AT_OTHER)
		return below_refuse(s, PHUB__ERROR_CODE__ERROR_LIMIT, -ENOMEM, "no room for one more box in it");
	m = &job->members[place];
	*m = (struct member){.session = s,
		.gone = job->state == JOB_RUNNING,
		.gone_ns = m->elsewhere ? s->control->now_ns : m->gone_ns};
	below_name(m, &s->box);
	s->rank = place;
	s->job = job;
	job->present++;
	return 0;
}

void job_below_vacate(struct job *job, uint32_t member)
{
	for (uint32_t i = 0; i < job->ranks; i++)
		if (job->members[i].elsewhere && job->members[i].at == member)
			job->members[i] = (struct member){0};
	job->members[member] = (struct member){.gone = true, .elsewhere = true, .at = JOB_AT_OTHER};
}

/* ---- whom it has ---- */

/* "box HOST:PORT", of this one. */
static const char *below_own_name(const struct session *s, char *out, size_t bytes)
{
	char own[NAMES_TEXT_BYTES];

	snprintf(out, bytes, "box %s", names_own(s, own, sizeof(own)));
	return out;
}

/* Sums are of one type in a job: this box's, where there is one above, or that of the first below. False: it failed. */
static bool below_agrees(struct job *job, uint32_t place, unsigned type)
{
	bool settled = job->control->above.there || job->control->config->root[0];
	char box[NAMES_TEXT_BYTES], first[NAMES_TEXT_BYTES];
	uint32_t other = job->world; /* that has said so before */

	for (uint32_t i = job->ranks; i < job->world; i++)
		if (i != place && job->members[i].gathered > 0)
			other = i;
	if (!settled && other == job->world && dtype_valid(type))
		job->lift = (enum dtype)type;
	if (job->lift == type)
		return true;
	job_fail(job, PHUB__ERROR_CODE__ERROR_MISMATCH, -1,
		"%s sends its sums as %s, and %s as %s; set uplink_type alike at all of them",
		job_box_name(job, place, box, sizeof(box)), chunking_dtype_name((uint8_t)type),
		other == job->world ? below_own_name(job->members[place].session, first, sizeof(first))
				    : job_box_name(job, other, first, sizeof(first)),
		chunking_dtype_name(job->lift));
	return false;
}

/* Where others reach it: as it says, or at the address that it calls from. So it is called, too. */
static void below_take_address(struct member *m, struct session *s, const Phub__Gather *message)
{
	m->tls = message->tls;
	m->cores = message->cores;
	m->deep = message->deep;
	m->resumes = message->resumes;
	m->waits_ns = s->control->now_ns; /* for others, since the last of its ranks came */
	m->leaf = message->leaf;
	names_take(s->control, s->stream->peer, message->host, message->port, message->name, &s->box);
	memcpy(m->host, s->box.host, sizeof(m->host));
	m->port = s->box.port;
	below_name(m, &s->box);
}

/* ---- whom it has, in a job that runs ---- */

/* Is this rank taken by somebody who is not this box? */
static bool below_is_taken(const struct job *job, uint32_t rank, uint32_t place)
{
	const struct member *m = &job->members[rank];

	if (m->session)
		return true;
	return m->elsewhere && m->at != place && job_is_somewhere(job, rank);
}

/* Is this rank at that box, or was there last, and takes part nowhere yet? */
static bool below_was_at(const struct member *m, uint32_t place)
{
	return (m->elsewhere || m->newcomer) && m->at == place;
}

static bool below_has_ranks(const struct job *job, uint32_t place)
{
	for (uint32_t i = 0; i < job->ranks; i++)
		if (below_was_at(&job->members[i], place))
			return true;
	return false;
}

/* Nobody waits for boxes that were lost, all of whose ranks came to others; who came in the place of one takes part
 * when it has all whom the job waits for. */
void job_below_review(struct job *job)
{
	for (uint32_t i = job->ranks; i < job->world && job->state == JOB_RUNNING; i++) {
		struct member *m = &job->members[i];
		struct session *s = m->session;

		if (!m->gone || m->joins || m->elsewhere)
			continue;
		if (s && s->table && table_complete(s->table) && job_below_is_whole(job, i))
			job_members_join(s);
		if (s || below_has_ranks(job, i))
			continue;
		*m = (struct member){.gone = true, .elsewhere = true, .at = JOB_AT_OTHER};
		job_members_release(job, i);
	}
}

/* It is nowhere. */
static void below_set_absent(const struct job *job, struct member *m)
{
	m->gone_ns = m->absent ? m->gone_ns : job->control->now_ns;
	m->absent = true;
}

/* This rank is at that box now. */
static void below_take(struct job *job, uint32_t rank, uint32_t place)
{
	bool mine = !job->members[rank].elsewhere; /* and was lost */

	job->members[rank] = (struct member){.gone = true, .elsewhere = true, .at = place};
	if (mine)
		job_members_release(job, rank);
}

/* Who was at this box and is not any more is nowhere; who has come to it is there. The others are told. */
static void below_move(struct session *s, const Phub__Gather *message)
{
	uint64_t before[MAIL_RANK_WORDS] = {0}, lost[MAIL_RANK_WORDS] = {0}, came[MAIL_RANK_WORDS] = {0};
	struct job *job = s->job;
	bool news = false;

	if (message->after > job->after && message->after != MEMBERS_NEVER)
		job->after = message->after;
	for (uint32_t i = 0; i < job->ranks; i++) {
		struct member *m = &job->members[i];

		if (job_is_somewhere(job, i))
			members_add(before, i);
		if (m->elsewhere && m->at == s->rank)
			below_set_absent(job, m);
	}
	for (size_t i = 0; i < message->n_ranks; i++)
		below_take(job, message->ranks[i], s->rank);
	for (uint32_t i = 0; i < job->ranks; i++) {
		bool is = job_is_somewhere(job, i), was = members_have(before, i);

		if (is != was)
			members_add(is ? came : lost, i);
		news = news || is != was;
	}
	if (news)
		job_members_spread(job, lost, came, s);
	parent_changed(job);
	job_below_review(job);
}

/* Is it a job whose ranks may be lost and come again? Before its first table nobody knows. */
static bool below_may_come(const struct job *job)
{
	const struct spec *spec = job->generation  ? &job->generation->spec
				  : job->reference ? &job->reference->spec
						   : NULL;

	return spec && spec->lost != LOST_FAIL && !job->peers;
}

/* Its rank is somebody else's: where ranks may come again that one may be lost, and this box not have heard of it yet,
 * so that the box below is to ask again. */
static void below_refuse_rank(struct session *s, uint32_t rank, const char *where)
{
	bool may_come = below_may_come(s->job);

	session_refuse(s, may_come ? PHUB__ERROR_CODE__ERROR_BUSY : PHUB__ERROR_CODE__ERROR_TAKEN,
		"rank %u is at %s%s; give every worker its own rank%s", rank, where,
		may_come ? ", and not lost there as far as is known here" : "", s->job->parent ? BELOW_CIRCLE : "");
}

/* It has said who it is, and whom it has. */
static void below_tell(const struct session *s)
{
	char who[NAMES_TEXT_BYTES + 200];

	log_info("job '%s': %s takes part", s->name, job_member_name(s->job, s->rank, who, sizeof(who)));
}

static void below_gather_on(struct session *s, const Phub__Gather *message)
{
	struct job *job = s->job;
	struct member *m = &job->members[s->rank];
	bool first = m->gathered == 0;
	char box[NAMES_TEXT_BYTES + 200];

	below_take_address(m, s, message);
	if (job->lift != (enum dtype)message->type) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_MISMATCH,
			"%s sends its sums as %s, and the job has them as %s; set uplink_type alike at all boxes",
			job_box_name(job, s->rank, box, sizeof(box)), chunking_dtype_name((uint8_t)message->type),
			chunking_dtype_name(job->lift));
		return;
	}
	for (size_t i = 0; i < message->n_ranks; i++) {
		uint32_t rank = message->ranks[i];

		if (rank < job->ranks && !below_is_taken(job, rank, s->rank))
			continue;
		if (rank >= job->ranks)
			session_refuse(
				s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "a gathering of rank %u of %u", rank, job->ranks);
		else
			session_refuse(s, PHUB__ERROR_CODE__ERROR_TAKEN,
				"rank %u is at %s; give every worker its own rank, or, if that one was lost just now, "
				"try again in a moment",
				rank,
				job->members[rank].session
					? job->members[rank].peer
					: job_member_name(job, job->members[rank].at, box, sizeof(box)));
		return;
	}
	m->gathered = message->number;
	below_move(s, message);
	if (first && s->job)
		below_tell(s);
}

bool job_below_admits(struct job *job, uint32_t rank)
{
	struct member *m = &job->members[rank];

	if (job->peers || !m->elsewhere)
		return false;
	if (job->state == JOB_FORMING && m->at == JOB_AT_OTHER && job->parent) { /* it comes to a job that runs above */
		*m = (struct member){0};
		return true;
	}
	if (job->state != JOB_RUNNING || job->generation->spec.lost == LOST_FAIL || job_is_somewhere(job, rank))
		return false;
	*m = (struct member){
		.gone = true, .newcomer = true, .at = m->at, .gone_ns = job->control->now_ns, .hyper = job->hyper};
	return true;
}

bool job_below_is_whole(const struct job *job, uint32_t member)
{
	for (uint32_t i = 0; job->generation->spec.lost == LOST_WAIT && i < job->ranks; i++)
		if (below_was_at(&job->members[i], member) && (job->members[i].absent || job->members[i].newcomer))
			return false;
	return job->members[member].gathered > 0;
}

/* It is at a box above, or below that, or nowhere there. */
static bool below_hear_of(struct job *job, uint32_t rank, bool came)
{
	struct member *m = &job->members[rank];

	if (came && !m->session && !job_is_somewhere(job, rank)) {
		below_take(job, rank, JOB_AT_OTHER);
		return true;
	}
	if (came || !m->elsewhere || m->at != JOB_AT_OTHER || m->absent)
		return false;
	below_set_absent(job, m);
	return true;
}

/* Before it starts here, which may be a moment after the box above has said so: who is nowhere may come here then. */
static void below_note(struct job *job, const Phub__Members *m)
{
	for (size_t i = 0; i < m->n_came; i++)
		if (m->came[i] < job->ranks)
			members_remove(job->nowhere, m->came[i]);
	for (size_t i = 0; i < m->n_lost; i++) {
		if (m->lost[i] >= job->ranks)
			continue;
		members_add(job->nowhere, m->lost[i]);
		(void)below_hear_of(job, m->lost[i], false);
	}
}

void job_below_hear_members(struct job *job, const Phub__Members *m)
{
	uint64_t lost[MAIL_RANK_WORDS] = {0}, came[MAIL_RANK_WORDS] = {0};

	if (job->state == JOB_FORMING)
		below_note(job, m);
	if (job->state != JOB_RUNNING)
		return;
	if (m->after > job->after && m->after != MEMBERS_NEVER)
		job->after = m->after;
	for (size_t i = 0; i < m->n_lost; i++)
		if (m->lost[i] < job->ranks && below_hear_of(job, m->lost[i], false))
			members_add(lost, m->lost[i]);
	for (size_t i = 0; i < m->n_came && job->state == JOB_RUNNING; i++)
		if (m->came[i] < job->ranks && below_hear_of(job, m->came[i], true))
			members_add(came, m->came[i]);
	job_members_spread(job, lost, came, NULL);
	job_below_review(job);
}

/* ---- whom it has, before the start ---- */

/* Before the start: this rank is at that box. False when it is not, and the box was refused, or the job has failed. */
static bool below_claim(struct session *s, uint32_t rank)
{
	struct job *job = s->job;
	struct member *m = &job->members[rank < job->ranks ? rank : 0];
	const char *where;
	char box[NAMES_TEXT_BYTES + 200], here[NAMES_TEXT_BYTES];

	if (rank >= job->ranks) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "a gathering of rank %u of %u", rank, job->ranks);
		return false;
	}
	if (m->elsewhere && m->at == JOB_AT_OTHER && !m->absent) {
		below_refuse_rank(s, rank, "a box above this one, or below that");
		return false;
	}
	if (m->session || (m->elsewhere && m->at != JOB_AT_OTHER)) {
		where = m->session ? m->peer : job_member_name(job, m->at, box, sizeof(box));
		if (below_may_come(job))
			below_refuse_rank(s, rank, where);
		else
			job_fail(job, PHUB__ERROR_CODE__ERROR_TAKEN, (int)rank,
				"rank %u is at %s and at %s; give every worker its own rank%s", rank,
				job_box_name(job, s->rank, here, sizeof(here)), where, job->parent ? BELOW_CIRCLE : "");
		return false;
	}
	*m = (struct member){.gone = true, .elsewhere = true, .at = s->rank};
	return true;
}

void job_below_gather(struct session *s, const Phub__Gather *message)
{
	struct job *job = s->job;
	uint32_t place = s->rank;
	bool first;

	if (job_is_box(job, place) && job->state == JOB_RUNNING && job->generation->spec.lost != LOST_FAIL) {
		below_gather_on(s, message);
		return;
	}
	/* Its ranks changed while the checkpoint is read. The Start will name the Gather before this one, by which the
	 * box sees that it is not of those whom it has (parent.c), and calls again. */
	if (job_is_box(job, place) && job->state == JOB_LOADING)
		return;
	if (!job_is_box(job, place)) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "a gathering of ranks by a worker");
		return;
	}
	if (job->state != JOB_FORMING) {
		session_refuse(
			s, PHUB__ERROR_CODE__ERROR_LOST, "ranks came or went as it started; start the job again");
		return;
	}
	first = job->members[place].gathered == 0;
	below_take_address(&job->members[place], s, message);
	if (!below_agrees(job, place, (unsigned)message->type))
		return;
	for (uint32_t i = 0; i < job->ranks; i++)
		if (job->members[i].elsewhere && job->members[i].at == place)
			job->members[i] = (struct member){0};
	job->members[place].gathered = message->number;
	for (size_t i = 0; i < message->n_ranks && job->state == JOB_FORMING; i++) {
		if (!below_claim(s, message->ranks[i]))
			return;
	}
	if (first)
		below_tell(s);
	parent_changed(job);
	job_try_start(job);
}

void job_below_copy(char *out, size_t bytes, const char *text)
{
	size_t i = 0;

	for (; text && text[i] && i + 1 < bytes; i++)
		out[i] = isprint((unsigned char)text[i]) ? text[i] : '?';
	out[i] = '\0';
}

void job_below_copy_reason(const struct job *job, char *out, size_t bytes, const char *text)
{
	char mine[SPEC_NAME_BYTES + 16];
	size_t length = (size_t)snprintf(mine, sizeof(mine), "job '%s': ", job->name);

	text = text ? text : "";
	job_below_copy(out, bytes, strncmp(text, mine, length) == 0 ? text + length : text);
}

void job_below_fails(struct session *s, const Phub__Leave *leave)
{
	const Phub__Error *error = leave->error;
	struct job *job = s->job;
	char text[ERR_TEXT_MAX], box[NAMES_TEXT_BYTES];

	job_below_copy(text, sizeof(text), error->text);
	if (job->state == JOB_RUNNING && job->generation->spec.lost != LOST_FAIL &&
		(leave->bereaved || error->code == PHUB__ERROR_CODE__ERROR_SHUTDOWN || job->members[s->rank].gone)) {
		session_write_left(s);
		session_flush(s);
		job_lost(s, text);
		return;
	}
	if (job->state == JOB_FORMING && error->code == PHUB__ERROR_CODE__ERROR_LOST) {
		job_leave(s); /* its ranks may come again */
		return;
	}
	job_fail(job, error->code ? (Phub__ErrorCode)error->code : PHUB__ERROR_CODE__ERROR_LOST,
		error->rank >= 0 && (uint32_t)error->rank < job->ranks ? error->rank : -1,
		strstr(text, JOB_TOLD) ? "%s" : "%s" JOB_TOLD "%s)", text,
		names_write(job->members[s->rank].name, job->members[s->rank].peer, box, sizeof(box)));
}

uint32_t job_below_gathered(const struct job *job, uint32_t *ranks)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < job->ranks; i++) {
		const struct member *m = &job->members[i];
		bool below = m->elsewhere && m->at != JOB_AT_OTHER;
		bool runs = job->state == JOB_RUNNING &&
			    (m->session || (!m->elsewhere && !m->gone) || (below && job_is_somewhere(job, i)));

		if (runs || m->tabled || (below && job->members[m->at].tabled))
			ranks[count++] = i;
	}
	return count;
}

bool job_below_resumes(const struct job *job)
{
	for (uint32_t i = 0; i < job->world; i++)
		if (job->members[i].tabled && job->members[i].resumes)
			return true;
	return false;
}

void job_below_settle(struct job *job)
{
	for (uint32_t i = 0; i < job->ranks; i++) {
		struct member *m = &job->members[i];

		if (!m->session && !m->elsewhere)
			*m = (struct member){.gone = true,
				.elsewhere = true,
				.at = JOB_AT_OTHER,
				.absent = members_have(job->nowhere, i),
				.gone_ns = job->control->now_ns};
	}
}

int job_below_check(const struct spec *spec, struct err *e)
{
	const char *what = spec->sync != SYNC_BSP ? "sync ssp and async"
			   : spec->quorum         ? "a quorum"
			   : spec->encrypt        ? "encryption"
			   : spec->association    ? "an association (sums follow from which box a worker is at)"
						  : NULL;

	return what ? err_set(e, -ENOTSUP, "%s: not yet in jobs whose workers are at several boxes", what) : 0;
}
