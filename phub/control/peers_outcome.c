/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is kept of a change of homes for who asked for it.
 */
#include "phub/control/peers_outcome.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "phub/control/peers_carry.h"
#include "phub/members.h"

/* Counts into table[from][to]; returns how many of these there are. */
static unsigned outcome_count(const struct job *job, struct peers_flow *table, uint64_t *carried)
{
	const struct peers *p = job->peers;
	unsigned count = 0;

	*carried = 0;
	for (uint32_t i = 0; i < carry_count(job); i++) {
		struct peers_flow *flow = &table[p->home[i] * p->count + p->move->home[i]];

		if (p->home[i] == p->move->home[i])
			continue;
		count += flow->chunks == 0;
		flow->from = p->home[i];
		flow->to = p->move->home[i];
		flow->chunks++;
		flow->bytes += job->generation->chunk_bytes[i];
		*carried += carry_bytes(job, i, p->move->home[i]);
	}
	return count;
}

int peers_outcome_begin(const struct job *job)
{
	struct peers *p = job->peers;
	struct peers_flow *table = calloc((size_t)p->count * p->count, sizeof(*table));
	struct peers_outcome *o = NULL;
	uint64_t carried = 0;
	unsigned count = table ? outcome_count(job, table, &carried) : 0;

	if (table)
		o = calloc(1, sizeof(*o) + count * sizeof(o->flows[0]));
	for (unsigned i = 0; o && i < p->count * p->count; i++)
		if (table[i].chunks > 0)
			o->flows[o->flow_count++] = table[i];
	free(table);
	if (!o)
		return -ENOMEM;
	o->number = p->move->number;
	o->chunks = p->move->moved;
	o->bytes = p->move->moved_bytes;
	o->carried = carried;
	o->begun_ns = p->move->begun_ns;
	free(p->outcome);
	p->outcome = o;
	return 0;
}

void peers_outcome_end(struct peers *p, const char *why)
{
	struct peers_outcome *o = p->outcome;

	if (o->ended_ns)
		return;
	o->ended_ns = p->job->control->now_ns ? p->job->control->now_ns : 1;
	o->moved = !why;
	snprintf(o->why, sizeof(o->why), "%s", why ? why : "");
}

const char *peers_outcome_stage(const struct peers *p)
{
	if (p->outcome->ended_ns || !p->move)
		return p->outcome->moved ? "moved" : "kept";
	return p->move->stage <= MOVE_HELD       ? "holding"
	       : p->move->stage <= MOVE_CARRIED  ? "carrying"
	       : p->move->stage <= MOVE_SWITCHED ? "switching"
						 : "resuming";
}

unsigned peers_outcome_done(const struct peers *p, const char **waits_for)
{
	unsigned done = 0;

	*waits_for = NULL;
	for (unsigned i = 0; i < p->count; i++) {
		bool is = p->outcome->ended_ns || !p->move || members_have(p->move->who, i);

		done += is;
		if (!is && !*waits_for)
			*waits_for = p->each[i].name;
	}
	return done;
}
