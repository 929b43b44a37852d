/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hierarchy: auto, and what boxes are given homes by: the rack file's rates, of the boxes that a job has.
 */
#include "phub/control/peers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/log.h"
#include "phub/control/box.h"
#include "phub/control/job.h"
#include "phub/control/job_below.h"
#include "phub/control/names.h"
#include "phub/control/table.h"
#include "topology/cost.h"

/* The boxes of a job as the cost model takes them. */
struct peers_net {
	struct ways_box boxes[WAYS_BOXES_MAX];
	int box_of[WAYS_BOXES_MAX]; /* the file's, or RACKS_NONE */
	char names[WAYS_BOXES_MAX][CONFIG_NAME_BYTES + NAMES_ADDRESS_BYTES + 16];
	const char *name_of[WAYS_BOXES_MAX];
	unsigned count;
};

static void peers_warn_stranger(const struct job *job, const char *name)
{
	log_warn("job '%s': %s has no entry in %s, by that address: it is taken to have links like this box's",
		job->name, name, job->control->config->racks_file);
}

/* ---- rates ---- */

void peers_take_rates(struct peers *p)
{
	const struct job *job = p->job;
	unsigned self;
	const struct racks *racks = box_racks(job->control->box, &self);

	for (unsigned i = 0; racks && i < p->count; i++) {
		const struct peer *t = &p->each[i];
		int at = i == 0 ? (int)self : names_find_box(racks, t->host, t->port);
		struct ways_box box;

		if (at == RACKS_NONE) {
			cost_take_stranger(racks, (int)self, i, p->boxes[i].workers, &box);
			peers_warn_stranger(job, t->name);
		} else {
			cost_take_box(racks, at, i, p->boxes[i].workers, &box);
		}
		p->boxes[i].rate_bytes_s = cost_home_rate(racks, &box);
		/* As whole bytes: that is what others hear, who must come to the same homes. */
		p->boxes[i].rate_bytes_s =
			p->boxes[i].rate_bytes_s < 1 ? 1 : (double)(uint64_t)p->boxes[i].rate_bytes_s;
	}
}

/* ---- hierarchy: auto ---- */

static unsigned peers_count_workers(const struct job *job, uint32_t member)
{
	unsigned workers = 0;

	for (uint32_t rank = 0; rank < job->ranks; rank++) {
		const struct member *m = &job->members[rank];

		workers += member == JOB_AT_OTHER ? !m->elsewhere : m->elsewhere && m->at == member;
	}
	for (uint32_t i = job->ranks; member == JOB_AT_OTHER && i < job->world; i++)
		workers += job->members[i].session && !peers_may_take(job, i); /* a host's sum is as one gradient */
	return workers;
}

static void peers_fill_net(const struct job *job, const struct racks *racks, unsigned self, struct peers_net *net)
{
	char box[NAMES_TEXT_BYTES];

	net->box_of[0] = racks ? (int)self : RACKS_NONE;
	cost_take_box(racks, net->box_of[0], 0, peers_count_workers(job, JOB_AT_OTHER), &net->boxes[0]);
	snprintf(net->names[0], sizeof(net->names[0]), "this box");
	net->name_of[0] = net->names[0];
	net->count = 1;
	for (uint32_t i = job->ranks; i < job->world; i++) {
		const struct member *m = &job->members[i];
		unsigned at = net->count;

		if (!peers_may_take(job, i))
			continue;
		net->box_of[at] = names_find_box(racks, m->host, m->port);
		if (net->box_of[at] == RACKS_NONE)
			cost_take_stranger(racks, (int)self, at, peers_count_workers(job, i), &net->boxes[at]);
		else
			cost_take_box(racks, net->box_of[at], at, peers_count_workers(job, i), &net->boxes[at]);
		snprintf(net->names[at], sizeof(net->names[at]), "%s", job_box_name(job, i, box, sizeof(box)));
		net->name_of[at] = net->names[at];
		net->count++;
	}
}

/* The chunks that its key table makes. 0, or a negative errno; frees nothing. */
static int peers_plan_chunks(const struct job *job, uint32_t **bytes, uint32_t **lifts, uint32_t *count, struct err *e)
{
	const struct table *t = job->reference;
	struct chunk_plan plan;
	int rc = chunking_plan(t->keys, t->key_count, t->chunk_bytes, &plan, e);

	if (rc < 0)
		return rc;
	*count = plan.chunk_count;
	*bytes = calloc(plan.chunk_count, sizeof(**bytes));
	*lifts = calloc(plan.chunk_count, sizeof(**lifts));
	for (uint32_t i = 0; *bytes && *lifts && i < plan.chunk_count; i++) {
		(*bytes)[i] = plan.chunks[i].bytes;
		(*lifts)[i] = plan.chunks[i].bytes / chunking_dtype_bytes(plan.chunks[i].dtype) *
			      chunking_dtype_bytes((uint8_t)job->lift);
	}
	chunking_plan_fini(&plan);
	return *bytes && *lifts ? 0 : err_set(e, -ENOMEM, "no memory to choose a hierarchy of %u chunks", *count);
}

bool peers_loses_checkpoints(const struct job *job)
{
	return job->control->config->checkpoint_targets[0] && job->reference->spec.optimizer != OPTIMIZER_NONE;
}

static void peers_tell_choice(
	struct job *job, const struct cost_net *net, const struct cost costs[WAYS_COUNT], enum ways_kind taken)
{
	char *why = job->hierarchy_why;
	size_t bytes = sizeof(job->hierarchy_why), at = 0;

	if (taken != cost_choose(costs, WAYS_TREE))
		at = (size_t)snprintf(why, bytes,
			"tree, for its checkpoints: sharded and chained jobs have none (its entry in jobs may ask for "
			"one); "
			"else ");
	cost_write_choice(net, costs, WAYS_TREE, why + at, bytes - at);
	at = strlen(why);
	if (!net->racks)
		snprintf(why + at, bytes - at, " (without a rack file all links are taken to have 10 Gbit/s)");
	log_info("job '%s': hierarchy auto takes %s", job->name, why);
	if (cost_choose(costs, WAYS_FLAT) == WAYS_FLAT)
		log_info("job '%s': if all workers came to one box, a round would take %.4g ms", job->name,
			costs[WAYS_FLAT].round_s * 1e3);
}

int peers_choose(struct job *job, unsigned count, enum ways_kind *kind, struct err *e)
{
	unsigned self;
	const struct racks *racks = box_racks(job->control->box, &self);
	struct peers_net *found = calloc(1, sizeof(*found));
	struct cost costs[WAYS_COUNT];
	uint32_t *bytes = NULL, *lifts = NULL, chunks = 0;
	int rc = found ? peers_plan_chunks(job, &bytes, &lifts, &chunks, e)
		       : err_set(e, -ENOMEM, "no memory to choose a hierarchy of %u boxes", count);

	if (rc == 0) {
		const struct cost_net net = {racks, found->boxes, found->box_of, count, found->name_of, false};
		const struct cost_job what = {bytes, lifts, chunks, (uint32_t)job->control->config->window};

		peers_fill_net(job, racks, self, found);
		rc = cost_ways(&net, &what, 0, costs, e);
		if (rc == 0) {
			*kind = peers_loses_checkpoints(job) ? WAYS_TREE : cost_choose(costs, WAYS_TREE);
			peers_tell_choice(job, &net, costs, *kind);
			for (unsigned i = 0; *kind == WAYS_TREE && racks && i < count; i++) /* else rates are taken */
				if (found->box_of[i] == RACKS_NONE)
					peers_warn_stranger(job, found->names[i]);
		}
	}
	free(bytes);
	free(lifts);
	free(found);
	return rc;
}
