/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From tables to a generation. The first table that comes is kept, the others are compared with it as they come; what
 * differs is told when all ranks are here, so that none of them is left waiting for a job that is gone.
 */
#include "phub/control/job.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/control/box.h"
#include "phub/control/job_below.h"
#include "phub/control/job_mirror.h"
#include "phub/control/parent.h"
#include "phub/control/peers.h"
#include "phub/control/peers_move.h"
#include "phub/control/session.h"
#include "phub/control/standby.h"
#include "phub/lift.h"
#include "phub/members.h"
#include "transport/crypt.h"

Phub__ErrorCode job_code(int error)
{
	switch (error) {
	case -ENOMEM:
	case -E2BIG:
	case -EOVERFLOW:
		return PHUB__ERROR_CODE__ERROR_LIMIT;
	case -EPROTO:
		return PHUB__ERROR_CODE__ERROR_PROTOCOL;
	case -EBADMSG:
		return PHUB__ERROR_CODE__ERROR_MISMATCH;
	default:
		return PHUB__ERROR_CODE__ERROR_UNSUPPORTED;
	}
}

static bool job_has_transport(const struct box *box, const char *name)
{
	for (unsigned i = 0; i < box->transport_count; i++)
		if (strcmp(box->transports[i].transport->ops->name, name) == 0)
			return true;
	return name[0] == '\0';
}

bool job_seal_is_weak(const struct config *config, enum seal_kind seal)
{
	return seal > SEAL_GMAC + config->datagram_seal;
}

static void job_refuse_transport(struct session *s)
{
	char own[NAMES_TEXT_BYTES], box[NAMES_TEXT_BYTES];

	if (s->below)
		session_refuse(s, PHUB__ERROR_CODE__ERROR_UNSUPPORTED,
			"box %s does not offer transport %s, which %s asks for (uplink_transport); see transports at "
			"the one and uplink_transport at the other",
			names_own(s, own, sizeof(own)), s->table->transport,
			job_box_name(s->job, s->rank, box, sizeof(box)));
	else
		session_refuse(s, PHUB__ERROR_CODE__ERROR_UNSUPPORTED,
			"the box does not offer transport %s; see its transports option", s->table->transport);
}

void job_hear_table(struct session *s, const Phub__Job *message)
{
	struct control *c = s->control;
	struct job *job = s->job;
	struct member *m = &job->members[s->rank];
	char who[240];
	struct err e;
	int rc;

	if (s->table || m->tabled || (job->state == JOB_LOADING && !m->gone)) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "a second key table before the first has started");
		return;
	}
	/* Who comes while the job runs knows of no generation. */
	if (message->generation != (m->gone ? 1 : job->started + 1)) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "a key table of generation %u, when %u is next",
			message->generation, job->started + 1);
		return;
	}
	rc = table_create(message, job->ranks, (uint32_t)c->config->chunk_bytes, c->config->keys_max, &s->table, &e);
	if (rc < 0) {
		session_refuse(s, job_code(rc), "%s", e.text);
		return;
	}
	s->table->spec.encrypt = s->encrypt;
	s->table_ns = c->now_ns;
	if (!job_has_transport(c->box, s->table->transport)) {
		job_refuse_transport(s);
		return;
	}
	if (job_seal_is_weak(c->config, s->table->spec.seal)) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_UNSUPPORTED,
			"seal %s is less than the box takes; see its datagram_seal option",
			seal_name(s->table->spec.seal));
		return;
	}
	if (job->left > 0 && !m->gone)
		job_fail(job, PHUB__ERROR_CODE__ERROR_LOST, -1, "%s starts anew, and others have left",
			job_member_word(job, s->rank, who, sizeof(who)));
}

int job_compare_tables(const struct job *job, const struct table *a, uint32_t of_a, const struct table *b,
	uint32_t of_b, struct err *e)
{
	const struct table *const tables[] = {a, b};
	const uint32_t of[] = {of_a, of_b};
	char boxes[2][NAMES_TEXT_BYTES];
	struct table_side sides[2];

	for (unsigned i = 0; i < 2; i++) {
		const struct session *s = job->members[of[i]].session;
		char own[NAMES_TEXT_BYTES];

		if (job_is_box(job, of[i]))
			job_box_name(job, of[i], boxes[i], sizeof(boxes[i]));
		else
			snprintf(boxes[i], sizeof(boxes[i]), "box %.300s", s ? names_own(s, own, sizeof(own)) : "here");
		sides[i] =
			(struct table_side){tables[i], job_member_rank(job, of[i]), boxes[i], job_is_box(job, of[i])};
	}
	return table_compare(&sides[0], &sides[1], job->state == JOB_RUNNING, e);
}

/* The session's table is whole: it is the reference, or is compared with it. */
static void job_take_table(struct session *s)
{
	struct job *job = s->job;
	struct member *m = &job->members[s->rank];

	if (m->gone) {
		if (!job_is_box(job, s->rank) || job_below_is_whole(job, s->rank))
			job_members_join(s);
		return;
	}
	m->tabled = true;
	m->resumes = m->resumes || s->table->resumes;
	m->waits_ns = s->control->now_ns;
	memcpy(m->transport, s->table->transport, sizeof(m->transport));
	job->tabled++;
	if (!job->reference) {
		job->reference = s->table;
		job->reference_rank = s->rank;
		job->reference_counted = s->table_counted;
		s->table = NULL;
		s->table_counted = 0;
		if (!job->reference->here)
			parent_begin(job);
	} else {
		if (!job->mismatch.code && job_compare_tables(job, job->reference, job->reference_rank, s->table,
						   s->rank, &job->mismatch) < 0)
			job->mismatch_ns = s->control->now_ns;
		session_drop_table(s);
	}
	parent_changed(job);
	job_try_start(job);
}

bool job_add_keys(struct session *s, const Phub__Keys *message)
{
	struct err e;
	int rc;

	if (!s->table || message->generation != s->table->spec.generation) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "keys of generation %u without their job",
			message->generation);
		return false;
	}
	rc = table_add(s->table, message, &e);
	if (rc < 0) {
		session_refuse(s, job_code(rc), "%s", e.text);
		return false;
	}
	if (session_count_table(s) < 0) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_LIMIT,
			"the box has no room for more keys at this time; try again, or raise memory_max there");
		return false;
	}
	return table_complete(s->table);
}

void job_hear_keys(struct session *s, const Phub__Keys *message)
{
	if (job_add_keys(s, message))
		job_take_table(s);
}

void job_drop_reference(struct job *job)
{
	if (job->reference && job->state == JOB_FORMING)
		parent_anew(job);
	table_destroy(job->reference);
	job->reference = NULL;
	job->control->table_bytes -= job->reference_counted;
	job->reference_counted = 0;
}

void job_forget_table(struct job *job, uint32_t rank)
{
	if (!job->members[rank].tabled)
		return;
	job->members[rank].tabled = false;
	job->tabled--;
	if (job->mismatch.code) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_MISMATCH, -1, "%s", job->mismatch.text);
		return;
	}
	if (job->reference_rank != rank)
		return;
	for (uint32_t i = 0; i < job->world; i++) {
		if (job->members[i].tabled) {
			job->reference_rank = i; /* its table was equal */
			return;
		}
	}
	job_drop_reference(job);
}

/* Its data is encrypted, and what this session says of rates and keys is in clear, unsealed, on a network. */
static void job_tell_plain(const struct session *s)
{
	struct job *job = s->job;

	if (s->stream->sealed || s->stream->peer_is_local || job->plain_told)
		return;
	job->plain_told = true;
	log_warn(
		"job '%s': its data is encrypted and its control sessions are not (rank %u, %s): who is on the way can "
		"change learning rates and other options; set tls: require here, and PHUB_TLS_CA or PHUB_TLS_PIN at "
		"its workers",
		job->name, s->rank, job->members[s->rank].peer);
}

bool job_wrap_key(struct session *s, const struct generation *g, uint8_t *wrapped, Phub__Start *start)
{
	if (!g->spec.encrypt)
		return true;
	if (crypt_wrap(s->key, g->spec.id, g->spec.generation, g->data_key, wrapped) < 0) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_LIMIT, "the box cannot wrap the key of its results");
		return false;
	}
	job_tell_plain(s);
	start->data_key.data = wrapped;
	start->data_key.len = CRYPT_WRAPPED_BYTES;
	return true;
}

/* `start`: with all that only this rank is told. */
static void job_write_start(struct session *s, const struct generation *g, uint8_t *cores, Phub__Start *start)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	uint8_t wrapped[CRYPT_WRAPPED_BYTES];

	if (!job_wrap_key(s, g, wrapped, start))
		return;
	start->generation = g->spec.generation;
	start->job = g->spec.id;
	start->core_of_chunk.data = cores;
	start->core_of_chunk.len = g->spec.plan.chunk_count;
	start->window = g->window;
	start->result_offset = store_result_offset(&g->spec, s->rank);
	control.message_case = PHUB__CONTROL__MESSAGE_START;
	control.start = start;
	session_write(s, &control);
}

/* The core of each chunk, as Start has it. NULL: there is no memory, and the job has failed. */
static uint8_t *job_list_cores(struct job *job)
{
	const struct generation *g = job->generation;
	uint8_t *cores = malloc(g->spec.plan.chunk_count);

	if (!cores) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1, "no memory in the box to start it");
		return NULL;
	}
	for (uint32_t i = 0; i < g->spec.plan.chunk_count; i++)
		cores[i] = (uint8_t)g->core_of_chunk[i];
	return cores;
}

/* The round of each key, or one if that is that of all. Returns how many. */
static size_t job_list_rounds(const struct chunk_plan *plan, const uint64_t *from, uint64_t *rounds)
{
	bool same = true;

	for (uint32_t key = 0; key < plan->key_count; key++) {
		rounds[key] = from[plan->key_chunk[key]];
		same = same && rounds[key] == rounds[0];
	}
	return same ? 1 : plan->key_count;
}

void job_write_joined(struct job *job, uint32_t rank, const uint64_t *from)
{
	const struct generation *g = job->generation;
	uint8_t *cores = job_list_cores(job);
	uint64_t *rounds = calloc(g->spec.plan.key_count, sizeof(*rounds));
	Phub__Hypers groups[SPEC_GROUPS_MAX], *each[SPEC_GROUPS_MAX];
	Phub__Start start = PHUB__START__INIT;
	uint32_t version;
	char who[240];

	table_hypers(job_hyper_newest(job, &version), g->spec.group_count, groups, each);
	start.joined = true;
	start.rank = job_is_box(job, rank) ? rank : 0;
	start.gathered = job->members[rank].gathered;
	start.epoch = job->epoch;
	start.hyper = job->members[rank].hyper;
	start.barrier = job->barrier;
	start.groups = each;
	start.n_groups = g->spec.group_count;
	if (cores && rounds) {
		start.n_rounds = job_list_rounds(&g->spec.plan, from, rounds);
		start.rounds = rounds;
		job_write_start(job->members[rank].session, g, cores, &start);
	} else if (cores) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1, "no memory in the box for %s",
			job_member_word(job, rank, who, sizeof(who)));
	}
	free(cores);
	free(rounds);
}

/* Of how many bytes a number is on the wire. */
static size_t job_varint_bytes(uint64_t number)
{
	size_t bytes = 1;

	for (; number >= 128; number >>= 7)
		bytes++;
	return bytes;
}

/* From which number on they are counted, for all of them to fit a frame beside a byte each. */
static uint64_t job_rounds_from(const uint64_t *rounds, uint32_t count)
{
	uint64_t first = UINT64_MAX, last = 0;

	for (uint32_t i = 0; i < count; i++) {
		first = rounds[i] < first ? rounds[i] : first;
		last = rounds[i] > last ? rounds[i] : last;
	}
	return count * (1 + job_varint_bytes(last)) > FRAME_BYTES_MAX * 3 / 4 ? first : 0;
}

void job_write_moved(struct job *job, const uint64_t *rounds)
{
	const struct generation *g = job->generation;
	uint32_t count = g->spec.plan.chunk_count;
	uint64_t from = job_rounds_from(rounds, count), *each = malloc(count * sizeof(*each));
	uint8_t *cores = each ? job_list_cores(job) : NULL;
	Phub__Hypers groups[SPEC_GROUPS_MAX], *pointers[SPEC_GROUPS_MAX];

	if (!each)
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1, "no memory in the box to go on with it");
	for (uint32_t i = 0; cores && i < count; i++)
		each[i] = rounds[i] - from;
	table_hypers(job->groups, g->spec.group_count, groups, pointers);
	for (uint32_t i = 0; cores && i < job->world && job->state == JOB_RUNNING; i++) {
		Phub__Start start = PHUB__START__INIT;

		if (!job->members[i].session)
			continue;
		start.moved = true;
		start.epoch = job->epoch;
		start.hyper = job->hyper;
		start.barrier = job->barrier;
		start.groups = pointers;
		start.n_groups = g->spec.group_count;
		start.chunk_rounds = each;
		start.n_chunk_rounds = count;
		start.chunk_rounds_from = from;
		job_write_start(job->members[i].session, g, cores, &start);
	}
	free(cores);
	free(each);
}

static void job_announce(struct job *job)
{
	const struct generation *g = job->generation;
	uint8_t *cores = job_list_cores(job);

	if (!cores)
		return;
	for (uint32_t i = 0; i < job->world && job->state == JOB_RUNNING; i++)
		if (job->members[i].session) {
			Phub__Start start = PHUB__START__INIT;

			start.epoch = job->epoch;
			start.rank = job_is_box(job, i) ? i : 0;
			start.gathered = job->members[i].gathered;
			if (job_is_box(job, i) && peers_say(job, i, &start) < 0)
				job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1, "no memory in the box to start it");
			else
				job_write_start(job->members[i].session, g, cores, &start);
			peers_say_forget(&start);
		}
	free(cores);
}

void job_write_beside(struct job *job, uint32_t member, struct session *s)
{
	Phub__Start start = PHUB__START__INIT;
	uint8_t *cores = job_list_cores(job);

	if (!cores)
		return;
	start.epoch = job->epoch;
	start.rank = member;
	job_write_start(s, job->generation, cores, &start);
	free(cores);
}

bool job_await_room(struct job *job)
{
	struct control *c = job->control;
	bool some = job_keep_holds(c);

	for (struct job *other = c->jobs; other; other = other->next) {
		if (other->state != JOB_ENDING || !other->generation)
			continue;
		job_hurry(other);
		some = true;
	}
	if (!some || (job->room_ns && c->now_ns - job->room_ns >= JOB_ROOM_NS))
		return false;
	if (!job->room_ns) {
		job->room_ns = c->now_ns ? c->now_ns : 1;
		log_info("job '%s' waits for memory of jobs that end", job->name);
	}
	return true;
}

/* The shards go to their cores, and the ranks hear of it. `from`: the rounds that chunks begin with; NULL: the first.
 */
static void job_go(struct job *job, const uint64_t *from)
{
	const struct generation *g = job->generation;
	uint64_t gone[MAIL_RANK_WORDS] = {0};

	if (!from && g->spec.optimizer != OPTIMIZER_NONE && !job->takes && job->members[0].gone &&
		!job->members[0].elsewhere) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_LOST, 0,
			"rank 0 is not here, and the box has no checkpoint of the job: only rank 0 brings first "
			"weights; "
			"start it again");
		return;
	}
	for (uint32_t i = 0; i < job->world; i++)
		if (job->members[i].gone)
			members_add(gone, i);
	for (unsigned core = 0; job_live(job) < job->world && core < g->spec.core_count; core++)
		if (g->store.shards[core])
			members_await(g->store.shards[core], gone, NULL);
	for (unsigned core = 0; core < g->spec.core_count; core++)
		if (g->store.shards[core]) {
			g->store.shards[core]->paused = job->paused || (!job->parent && job->control->above.doubt_ns);
			g->store.shards[core]->leased = !job->parent && job->control->config->root[0];
			if (from && job->parent) {
				hypers_begin(&g->store.shards[core]->hypers, job->hyper, true, job->groups);
				lift_join(g->store.shards[core], from, job->control->now_ns);
			}
		}
	if (!peers_await(job)) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1, "no memory in the box to start it");
		return;
	}
	generation_attach(job->generation, job->control->box);
	standby_begin(job);
	if (job->parent)
		parent_connect(job);
	peers_connect(job);
	if (!from && job->state == JOB_RUNNING)
		job_announce(job);
	for (uint32_t i = 0; from && i < job->world && job->state == JOB_RUNNING; i++)
		if (job->members[i].session)
			job_write_joined(job, i, from);
	if (job->state == JOB_RUNNING)
		job_members_tell_absent(job);
}

/* Where it runs at the box above already, from the rounds that it has there. */
static void job_go_below(struct job *job)
{
	const uint64_t *from = parent_join(job);

	if (job->state == JOB_RUNNING)
		job_go(job, from);
}

/* All ranks are here anew: nobody waits for what an earlier job of this name, which has failed, still sends. */
static void job_hurry_earlier(const struct job *job)
{
	for (struct job *other = job->control->jobs; other && job->present == job->world; other = other->next)
		if (other != job && !other->mirror && strcmp(other->name, job->name) == 0)
			job_hurry(other);
}

void job_start(struct job *job)
{
	struct control *c = job->control;
	struct generation *g;
	struct err e;
	int rc = 0;

	job_hurry_earlier(job);
	if (job->started == 0 && job_is_spread(job) && !job->parent) { /* else the box above has said who */
		job_below_sort(job);
		rc = peers_found(job, &e);
	}
	if (rc == 0 && job->started == 0 && !job->peers)
		job_below_keep_places(job, false);
	if (rc == 0)
		rc = generation_create(job, &g, &e);
	if (rc == -ENOMEM && job_await_room(job))
		return;
	job->room_ns = 0;
	if (rc < 0) {
		job_fail(job, job_code(rc), -1, "%s", e.text);
		return;
	}
	c->table_bytes -= job->reference_counted;
	job->reference_counted = 0;
	job->generation = g;
	job->started++;
	job->tabled = 0;
	job->sample_count = 0;
	job->hyper_sent = 0;
	job->hyper = 0;
	job->hyper_asked = 0;
	job->hyper_agreed = 0;
	job->after = 0;
	job->epoch = g->spec.epoch;
	job->state = JOB_RUNNING;
	job_hyper_forget(job);
	for (uint32_t i = 0; i < job->world; i++) {
		struct member *m = &job->members[i];

		m->tabled = false;
		m->hyper = 0;
		m->link_ended_ns = 0;
	}
	log_info("job '%s' starts: %u workers, %u keys, %u chunks, %llu bytes of gradients, optimizer %s, %s, "
		 "generation %u",
		job->name, job->ranks, g->spec.plan.key_count, g->spec.plan.chunk_count,
		(unsigned long long)g->spec.plan.payload_bytes, spec_optimizer_name(g->spec.optimizer),
		spec_sync_name(g->spec.sync), g->spec.generation);
	if (job->takes)
		job_move_fill(job);
	else if (!job->parent && !job->peers && job_restore(job)) /* else others have the weights, or some of them */
		job->state = JOB_LOADING;
	else
		job_go_below(job);
}

void job_begin_tick(struct job *job)
{
	uint64_t now_ns = job->control->now_ns, last_ns = 0;
	bool again = false;

	if (job->generation || job->moves || job->parent || job->tabled == 0 || job->tabled != job->present ||
		job->mismatch.code || job->reference->spec.lost != LOST_SHRINK)
		return;
	for (uint32_t i = 0; i < job->world; i++) {
		const struct member *m = &job->members[i];

		again = again || (m->tabled && m->resumes);
		last_ns = m->tabled && m->waits_ns > last_ns ? m->waits_ns : last_ns;
	}
	if (!again || now_ns - last_ns < job->control->config->lost_ms * NS_PER_MS)
		return;
	for (uint32_t i = 0; i < job->world; i++) {
		struct member *m = &job->members[i];

		if (m->tabled || m->gone)
			continue;
		log_warn("job '%s' rank %u has not come again in %.0f s: the job goes on without it", job->name, i,
			(double)job->control->config->lost_ms / 1e3);
		m->gone = true;
		m->gone_ns = now_ns;
	}
	job_below_keep_places(job, true);
	job_try_start(job);
}

/* What it goes on from may be what was here before its workers moved to the standby, and ended there: this box knows
 * nothing of that. */
static void job_warn_stale(const struct job *job)
{
	const char *there = job->control->config->standby_told;
	Phub__CheckpointInfo from;

	if (job->control->config->standby[0] && job_keep_describe(job, &from))
		log_warn("job '%s' goes on from a checkpoint before round %" PRIu64
			 ", which was written %.0f s ago. Had it moved to this box's standby %s since, and gone on or "
			 "ended "
			 "there, that is not known here, and these weights are OLD: then end it, and move its "
			 "checkpoints away (phub checkpoint ls), or give it another name",
			job->name, from.round, (double)from.age_ms / 1e3, there);
}

void job_load_tick(struct job *job)
{
	const uint64_t *from;

	if (job_restored(job, &from) < 0)
		return;
	if (from)
		job_warn_stale(job);
	job->state = JOB_RUNNING;
	job_go(job, from);
}

void job_restart(struct job *job)
{
	job_keep_forget(
		job); /* the copy for a checkpoint is of the old table: a start waits for its memory, or has it now */
	generation_add_dropped(job->generation, job->dropped);
	job->rounds += generation_sums(job->generation).rounds / job->generation->spec.plan.chunk_count;
	generation_destroy(job->generation, job->control->box);
	job->generation = NULL;
	job_start(job);
}

/* Of all that are in it? Who is gone, and not replaced, sends none. */
static bool job_has_tables(const struct job *job)
{
	return job->tabled > 0 && job->tabled == job_live(job);
}

void job_start_waiting(struct control *c)
{
	for (struct job *job = c->jobs; job; job = job->next) {
		if (!job->room_ns || job->state == JOB_ENDING)
			continue;
		if (job->mirror) {
			job_mirror_start(job);
			continue;
		}
		if (job_has_tables(job))
			job_start(job);
		else
			job->room_ns = 0; /* a rank is gone; the last table to come tries again */
	}
}

void job_try_start(struct job *job)
{
	struct control *c = job->control;
	bool here = job->present >= job_live(job);

	if (job->state == JOB_ENDING)
		return;
	if (job->mismatch.code && (here || c->now_ns - job->mismatch_ns >= c->config->lost_ms * NS_PER_MS)) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_MISMATCH, -1, "%s", job->mismatch.text);
		return;
	}
	if (job->moves)
		job_move_recount(job);
	if (!job_has_tables(job) || job->state == JOB_REKEYING || job->state == JOB_TAKING || job->change ||
		peers_moves(job))
		return;
	if (job->parent && !parent_has_started(job))
		return;
	if (job->draining) { /* who sends its next table has no round open */
		job_end_drained(job);
		return;
	}
	if (job->moves) {
		job_move_take(job);
		return;
	}
	if (!job->generation) {
		job_start(job);
		return;
	}
	job->state = JOB_REKEYING;
	standby_end(job->generation, STANDBY_FORGETS);
	generation_detach(job->generation, c->box, 0, false);
}
