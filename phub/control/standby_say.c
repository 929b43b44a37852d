/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds the messages from what the generation knows. Keys go out in batches, so that a large table never lies in
 * memory twice.
 */
#include "phub/control/standby_say.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "phub/control/box.h"
#include "phub/control/job.h"
#include "transport/stream.h"

enum {
	SAY_HYPERS_BYTES = 100,      /* of a parameter group, at most */
	SAY_MIRROR_BYTES = 16 << 10, /* of a Mirror, without chunks and groups */
};

/* One version as a message, with the memory that it points to. */
struct say_hyper {
	Phub__Hyper message;
	Phub__Hypers groups[SPEC_GROUPS_MAX];
	Phub__Hypers *each[SPEC_GROUPS_MAX];
};

static int standby_say(struct standby *s, const Phub__Control *message)
{
	return box_call_say(s->control, s->call, message);
}

static void say_fill_hyper(struct say_hyper *h, uint32_t version, const struct optimizer_hyper *groups, uint32_t count)
{
	phub__hyper__init(&h->message);
	table_hypers(groups, count, h->groups, h->each);
	h->message.version = version;
	h->message.groups = h->each;
	h->message.n_groups = count;
}

/* ---- Mirror ---- */

/* The oldest version that a Mirror tells of: as many as fit it beside the placement. */
static uint32_t say_oldest(const struct standby *s)
{
	const struct spec *spec = &s->generation->spec;
	uint64_t fixed = SAY_MIRROR_BYTES + spec->plan.chunk_count + (uint64_t)spec->group_count * SAY_HYPERS_BYTES;
	uint64_t room = fixed < FRAME_BYTES_MAX ? FRAME_BYTES_MAX - fixed : 0;
	uint64_t fit = room / (spec->group_count * SAY_HYPERS_BYTES);
	uint64_t count = fit < STANDBY_KEPT_MAX ? fit : STANDBY_KEPT_MAX;

	if (count < 1)
		count = 1;
	if (s->hyper - s->hyper_first < count)
		return s->hyper_first;
	return s->hyper - (uint32_t)count + 1;
}

static void say_list_cores(const struct generation *g, uint8_t *cores)
{
	for (uint32_t i = 0; i < g->spec.plan.chunk_count; i++)
		cores[i] = (uint8_t)g->core_of_chunk[i];
}

static const char *say_box(const struct control *c)
{
	return c->box->listener_count ? c->box->listeners[0].bound : "?";
}

int standby_say_mirror(struct standby *s)
{
	const struct generation *g = s->generation;
	uint32_t oldest = say_oldest(s), count = s->hyper ? s->hyper - oldest + 1 : 0;
	struct say_hyper *hypers = calloc(count + 1, sizeof(*hypers)); /* the last one: version 0, of the job */
	Phub__Hyper **each = calloc(count + 1, sizeof(void *));
	uint8_t *cores = malloc(g->spec.plan.chunk_count);
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Mirror mirror = PHUB__MIRROR__INIT;
	Phub__Job job = PHUB__JOB__INIT;
	int rc = -ENOMEM;

	if (hypers && each && cores) {
		for (uint32_t i = 0; i < count; i++) {
			const struct standby_hypers *kept = s->kept[(oldest + i) % STANDBY_KEPT_MAX];

			say_fill_hyper(&hypers[i], kept->version, kept->groups, g->spec.group_count);
			each[i] = &hypers[i].message;
		}
		say_fill_hyper(&hypers[count], 0, g->spec.groups, g->spec.group_count);
		say_list_cores(g, cores);
		table_job(g->table, &job);
		job.groups = hypers[count].each;
		job.n_groups = g->spec.group_count;
		mirror.job = &job;
		mirror.world = g->spec.world;
		mirror.core_of_chunk.data = cores;
		mirror.core_of_chunk.len = g->spec.plan.chunk_count;
		mirror.cores = s->core_count;
		mirror.hypers = each;
		mirror.n_hypers = count;
		mirror.box = (char *)(uintptr_t)say_box(s->control);
		control.message_case = PHUB__CONTROL__MESSAGE_MIRROR;
		control.mirror = &mirror;
		rc = standby_say(s, &control);
	}
	if (rc == 0)
		s->hyper_said = s->hyper;
	free(hypers);
	free(each);
	free(cores);
	return rc;
}

int standby_say_keys(struct standby *s)
{
	return box_call_say_keys(
		s->control, s->call, s->generation->table, s->generation->spec.generation, &s->keys_said);
}

/* ---- what changes ---- */

int standby_say_hypers(struct standby *s)
{
	int rc = 0;

	while (rc == 0 && s->hyper_said < s->hyper) {
		const struct standby_hypers *kept = s->kept[(s->hyper_said + 1) % STANDBY_KEPT_MAX];

		if (kept->version != s->hyper_said + 1) /* it was too far behind */
			return -ENOBUFS;
		rc = box_call_say_hyper(
			s->control, s->call, kept->version, kept->groups, s->generation->spec.group_count);
		if (rc == 0)
			s->hyper_said++;
	}
	return rc;
}

int standby_say_state(struct standby *s)
{
	const struct job *job = s->job;
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__MirrorState state = PHUB__MIRROR_STATE__INIT;
	uint32_t *lost = calloc(3 * (size_t)job->world, sizeof(*lost)), *left, *unfinished;
	int rc;

	if (!lost)
		return -ENOMEM;
	left = lost + job->world;
	unfinished = left + job->world;
	for (uint32_t i = 0; i < job->world; i++) {
		const struct member *m = &job->members[i];

		if (m->gone) {
			lost[state.n_lost++] = i;
		} else if (m->left || m->leaves) {
			left[state.n_left++] = i;
			if (!m->finished)
				unfinished[state.n_unfinished++] = i;
		}
	}
	state.left = left;
	state.unfinished = unfinished;
	state.number = s->state_said + 1;
	state.whole = s->state == STANDBY_WHOLE;
	state.lost = lost;
	state.barrier = s->barrier_asked > job->barrier ? s->barrier_asked : job->barrier;
	state.paused = job->paused;
	state.draining = job->draining;
	state.reason = (char *)(uintptr_t)job->reason;
	control.message_case = PHUB__CONTROL__MESSAGE_MIRROR_STATE;
	control.mirror_state = &state;
	rc = standby_say(s, &control);
	if (rc == 0)
		s->state_said++;
	free(lost);
	return rc;
}
