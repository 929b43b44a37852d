/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who takes part in an exchange, which cores and homes chunks have, and so where each box lifts them.
 */
#include "phub/control/peers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/crc.h"
#include "phub/base/log.h"
#include "phub/control/box.h"
#include "phub/control/job.h"
#include "phub/control/job_below.h"
#include "phub/control/parent.h"
#include "phub/members.h"
#include "topology/placement.h"

/* ---- who takes part ---- */

static struct peers *peers_create(
	struct job *job, enum ways_kind kind, unsigned self, unsigned count, unsigned cores, struct err *e)
{
	struct peers *p = calloc(1, sizeof(*p) + count * sizeof(p->each[0]));
	uint32_t first = 0;

	if (p)
		p->boxes = calloc(count, sizeof(*p->boxes));
	if (!p || !p->boxes) {
		free(p);
		err_set(e, -ENOMEM, "no memory for an exchange of %u boxes", count);
		return NULL;
	}
	p->job = job;
	p->kind = kind;
	p->self = self;
	p->count = count;
	p->cores = cores;
	for (unsigned i = 0; i < count; i++) {
		struct peer *t = &p->each[i];

		t->all = p;
		t->slot = JOB_AT_OTHER;
		t->target = peers_is_target(p, i);
		t->first = first;
		first += t->target ? cores : 0;
		p->boxes[i].rate_bytes_s = 1;
	}
	job->peers = p;
	return p;
}

static void peers_name(struct peer *t)
{
	const struct control *c = t->all->job->control;

	names_write_address(t->host, t->port, t->address, sizeof(t->address));
	memcpy(t->name, "box ", 4);
	names_write(names_find(c, t->host, t->port), t->address, t->name + 4, sizeof(t->name) - 4);
}

unsigned peers_box_of(const struct peers *p, uint32_t rank)
{
	const struct member *m = &p->job->members[rank];

	for (unsigned i = 1; m->elsewhere && i < p->count; i++)
		if (p->each[i].slot == m->at)
			return i;
	return 0;
}

bool peers_may_take(const struct job *job, uint32_t member)
{
	return job->members[member].session && !job->members[member].leaf;
}

static enum config_hierarchy peers_hierarchy(const struct job *job)
{
	const struct config *config = job->control->config;
	const struct config_job *listed = config_find_job(config, job->name);

	return listed && listed->hierarchy != CONFIG_HIERARCHY_BOX ? (enum config_hierarchy)(listed->hierarchy - 1)
								   : config->hierarchy;
}

/* Of the boxes below in their order. 0, or -EPROTO. */
static int peers_take_below(struct peers *p, struct err *e)
{
	const struct job *job = p->job;
	unsigned number = 1;

	snprintf(p->each[0].name, sizeof(p->each[0].name), "the top box");
	for (uint32_t i = job->ranks; i < job->world; i++) {
		const struct member *m = &job->members[i];
		struct peer *t = &p->each[number];

		if (!peers_may_take(job, i))
			continue;
		if (!m->port)
			return err_set(e, -EPROTO, "box %s does not say where others reach it", m->peer);
		memcpy(t->host, m->host, sizeof(t->host));
		t->port = m->port;
		t->tls = m->tls;
		t->slot = i;
		peers_name(t);
		number++;
	}
	for (uint32_t rank = 0; rank < job->ranks; rank++)
		p->boxes[peers_box_of(p, rank)].workers++;
	return 0;
}

static int peers_which(struct job *job, unsigned count, enum ways_kind *kind, struct err *e)
{
	switch (peers_hierarchy(job)) {
	case CONFIG_HIERARCHY_AUTO:
		return peers_choose(job, count, kind, e);
	case CONFIG_HIERARCHY_SHARDED:
		*kind = WAYS_SHARDED;
		return 0;
	case CONFIG_HIERARCHY_CHAIN:
		*kind = WAYS_CHAIN;
		return 0;
	default:
		*kind = WAYS_TREE;
		return 0;
	}
}

int peers_found(struct job *job, struct err *e)
{
	unsigned count = 1, cores = parent_cores(job);
	enum ways_kind kind = WAYS_TREE;
	uint8_t nonce[PROOF_NONCE];
	struct peers *p;
	int rc;

	for (uint32_t i = job->ranks; i < job->world; i++) {
		if (!peers_may_take(job, i))
			continue;
		cores = job->members[i].cores < cores ? job->members[i].cores : cores;
		count++;
	}
	if (job->peers || job->parent || count == 1 || peers_hierarchy(job) == CONFIG_HIERARCHY_TREE)
		return 0;
	if (count > WAYS_BOXES_MAX)
		return err_set(e, -E2BIG, "%u boxes exchange; allowed are %u", count, WAYS_BOXES_MAX);
	rc = peers_which(job, count, &kind, e);
	if (rc < 0 || kind == WAYS_TREE)
		return rc;
	p = peers_create(job, kind, 0, count, cores ? cores : 1, e);
	if (!p)
		return -ENOMEM;
	if (proof_nonce(nonce) < 0)
		return err_set(e, -EIO, "the box has no random numbers");
	memcpy(&p->number, nonce, sizeof(p->number));
	rc = peers_take_below(p, e);
	if (rc < 0)
		return rc;
	log_info("job '%s': %u boxes exchange, %s, on %u core%s each", job->name, count, ways_name(p->kind), p->cores,
		p->cores == 1 ? "" : "s");
	if (peers_loses_checkpoints(job))
		log_warn("job '%s' has no checkpoints: its weights are at %u boxes, none of which has all; hierarchy: "
			 "tree, "
			 "or auto, in its entry of jobs gives it some",
			job->name, count);
	return 0;
}

/* ---- what the top box says ---- */

int peers_say(const struct job *job, uint32_t member, Phub__Start *start)
{
	const struct peers *p = job->peers;
	Phub__Exchange *said;
	bool whole = true;

	if (!p || !peers_is_top(p) || !peers_may_take(job, member))
		return 0;
	said = calloc(1, sizeof(*said));
	if (!said)
		return -ENOMEM;
	phub__exchange__init(said);
	start->exchange = said;
	said->hierarchy = p->kind == WAYS_CHAIN ? PHUB__HIERARCHY__HIERARCHY_CHAIN : PHUB__HIERARCHY__HIERARCHY_SHARDED;
	said->number = p->number;
	said->cores = p->cores;
	said->homes = crc_32c(0, p->home, job->generation->spec.plan.chunk_count * sizeof(*p->home));
	said->boxes = calloc(p->count, sizeof(void *));
	for (unsigned i = 0; said->boxes && whole && i < p->count; i++) {
		Phub__ExchangeBox *box = calloc(1, sizeof(*box));

		whole = box != NULL;
		if (!box)
			break;
		phub__exchange_box__init(box);
		said->boxes[said->n_boxes++] = box;
		box->host = (char *)(uintptr_t)p->each[i].host;
		box->port = p->each[i].port;
		box->tls = p->each[i].tls;
		box->rate = (uint64_t)p->boxes[i].rate_bytes_s;
		box->ranks = calloc(job->ranks, sizeof(*box->ranks));
		whole = box->ranks != NULL;
		for (uint32_t rank = 0; whole && rank < job->ranks; rank++) {
			if (peers_box_of(p, rank) == i)
				box->ranks[box->n_ranks++] = rank;
		}
		if (p->each[i].slot == member)
			said->box = i;
	}
	return said->boxes && whole ? 0 : -ENOMEM;
}

void peers_say_forget(Phub__Start *start)
{
	Phub__Exchange *said = start->exchange;

	for (size_t i = 0; said && i < said->n_boxes; i++) {
		free(said->boxes[i]->ranks);
		free(said->boxes[i]);
	}
	if (said)
		free(said->boxes);
	free(said);
	start->exchange = NULL;
}

static int peers_check_said(const struct job *job, const Phub__Exchange *said, struct err *e)
{
	if (said->hierarchy != PHUB__HIERARCHY__HIERARCHY_SHARDED &&
		said->hierarchy != PHUB__HIERARCHY__HIERARCHY_CHAIN)
		return err_set(e, -EPROTO, "it names hierarchy %d", (int)said->hierarchy);
	if (said->n_boxes < 2 || said->n_boxes > WAYS_BOXES_MAX || said->box < 1 || said->box >= said->n_boxes)
		return err_set(e, -EPROTO, "it names %zu boxes, of which this is number %u", said->n_boxes, said->box);
	if (said->cores < 1 || said->cores > parent_cores(job))
		return err_set(e, -EPROTO, "it places chunks on %u cores, and this box has %u for it", said->cores,
			parent_cores(job));
	for (size_t i = 1; i < said->n_boxes; i++) {
		const Phub__ExchangeBox *box = said->boxes[i];

		if (!box->host[0] || strlen(box->host) >= CONFIG_HOST_BYTES || box->port < 1 || box->port > UINT16_MAX)
			return err_set(e, -EPROTO, "it says of box %zu that it is at '%.80s', port %u", i, box->host,
				box->port);
	}
	return 0;
}

/* The places of those that lift to us, and which ranks are behind them. */
static int peers_give_places(struct peers *p, const Phub__Exchange *said, struct err *e)
{
	struct job *job = p->job;
	uint32_t before = JOB_AT_OTHER; /* chain: all others come by the one before */

	for (unsigned i = 0; i < p->count; i++) {
		struct peer *t = &p->each[i];

		if (!peers_is_source(p, i))
			continue;
		t->slot = job_below_append(job);
		if (t->slot == UINT32_MAX)
			return err_set(e, -ENOMEM, "no room for %u boxes in it", p->count);
		snprintf(job->members[t->slot].peer, sizeof(job->members[t->slot].peer), "%.79s", t->address);
		snprintf(job->members[t->slot].name, sizeof(job->members[t->slot].name), "%s",
			names_find(job->control, t->host, t->port));
		before = t->slot;
	}
	for (unsigned i = 0; i < p->count; i++) {
		for (size_t k = 0; i != p->self && k < said->boxes[i]->n_ranks; k++) {
			uint32_t rank = said->boxes[i]->ranks[k];

			if (rank < job->ranks && job->members[rank].elsewhere && job->members[rank].at == JOB_AT_OTHER)
				job->members[rank].at = p->kind == WAYS_CHAIN ? before : p->each[i].slot;
		}
	}
	return 0;
}

static void peers_hear_rates(struct peers *p, const Phub__Exchange *said)
{
	for (unsigned i = 0; i < p->count; i++)
		p->boxes[i].rate_bytes_s = said->boxes[i]->rate ? (double)said->boxes[i]->rate : 1;
}

int peers_join(struct job *job, const Phub__Exchange *said, struct err *e)
{
	const struct above_place *above = &job->control->above.place;
	struct peers *p;
	int rc;

	if (job->peers) { /* a later generation: the same boxes */
		if (said->number != job->peers->number || said->n_boxes != job->peers->count)
			return err_set(e, -EPROTO, "it names another exchange than at the first start");
		job->peers->homes = said->homes;
		peers_hear_rates(job->peers, said);
		return 0;
	}
	rc = peers_check_said(job, said, e);
	if (rc < 0)
		return rc;
	p = peers_create(job, said->hierarchy == PHUB__HIERARCHY__HIERARCHY_CHAIN ? WAYS_CHAIN : WAYS_SHARDED,
		said->box, (unsigned)said->n_boxes, said->cores, e);
	if (!p)
		return -ENOMEM;
	p->number = said->number;
	p->homes = said->homes;
	peers_hear_rates(p, said);
	for (unsigned i = 0; i < p->count; i++) {
		struct peer *t = &p->each[i];
		const Phub__ExchangeBox *box = said->boxes[i];

		snprintf(t->host, sizeof(t->host), "%s", i ? box->host : above->at.host);
		t->port = i ? (uint16_t)box->port : above->at.port;
		t->tls = i ? box->tls : above->tls;
		peers_name(t);
		p->boxes[i].workers = (unsigned)box->n_ranks;
	}
	log_info("job '%s': %u boxes exchange, %s, on %u core%s each", job->name, p->count, ways_name(p->kind),
		p->cores, p->cores == 1 ? "" : "s");
	return peers_give_places(p, said, e);
}

/* ---- homes and ways ---- */

int peers_take_cores(struct job *job, const uint8_t *cores, size_t count, struct err *e)
{
	struct peers *p = job->peers;

	free(job->placement);
	job->placement = calloc(count + 1, sizeof(*job->placement));
	job->placement_count = (uint32_t)count;
	if (!job->placement)
		return err_set(e, -ENOMEM, "no memory to place %zu chunks", count);
	for (size_t i = 0; i < count; i++) {
		if (cores[i] >= p->cores)
			return err_set(
				e, -EPROTO, "the box above has placed a chunk on core %u of %u", cores[i], p->cores);
		job->placement[i] = cores[i];
	}
	return 0;
}

/* The top box chooses, by what its own cores have already. */
static int peers_choose_cores(struct peers *p, const uint32_t *bytes, uint32_t count, struct err *e)
{
	struct placement_core cores[CONFIG_CORES_MAX];
	struct job *job = p->job;

	free(job->placement);
	job->placement = calloc(count, sizeof(*job->placement));
	job->placement_count = count;
	if (!job->placement)
		return err_set(e, -ENOMEM, "no memory to place %u chunks", count);
	memcpy(cores, job->control->box->placement, p->cores * sizeof(cores[0]));
	return placement_lpt(bytes, count, cores, p->cores, job->placement);
}

static int peers_choose_homes(struct peers *p, const uint32_t *bytes, uint32_t count, struct err *e)
{
	uint32_t crc;
	int rc;

	free(p->home);
	free(p->ways);
	p->home = calloc(count, sizeof(*p->home));
	p->ways = calloc(count, sizeof(*p->ways));
	if (!p->home || !p->ways)
		return err_set(e, -ENOMEM, "no memory for the homes of %u chunks", count);
	rc = ways_homes(p->kind, p->boxes, p->count, 0, bytes, count, p->home, e);
	crc = crc_32c(0, p->home, count * sizeof(*p->home));
	if (rc == 0 && !peers_is_top(p) && crc != p->homes)
		return err_set(e, -EPROTO,
			"the top box has other homes for its chunks than this one would choose; "
			"install the same release at both");
	return rc;
}

static void peers_set_ways(const struct peers *p, uint32_t count, const uint16_t *home, uint16_t *ways)
{
	for (uint32_t i = 0; i < count; i++) {
		unsigned next = ways_next(p->kind, p->count, home[i], p->self);

		ways[i] = home[i] == p->self ? SPEC_HOME : (uint16_t)(p->each[next].first + p->job->placement[i]);
	}
}

int peers_plan_homes(const struct job *job, uint16_t *home, uint16_t *ways, struct err *e)
{
	const struct peers *p = job->peers;
	const struct generation *g = job->generation;
	uint32_t count = g->spec.plan.chunk_count;
	int rc;

	memcpy(home, p->home, count * sizeof(*home));
	rc = ways_rehome(p->boxes, p->count, g->chunk_bytes, count, home, e);
	if (rc == 0)
		peers_set_ways(p, count, home, ways);
	return rc;
}

int peers_place(struct job *job, struct spec *spec, struct err *e)
{
	struct peers *p = job->peers;
	uint32_t count = spec->plan.chunk_count;
	uint32_t *bytes = calloc(count, sizeof(*bytes));
	int rc;

	if (!bytes)
		return err_set(e, -ENOMEM, "no memory to place %u chunks", count);
	for (uint32_t i = 0; i < count; i++)
		bytes[i] = spec->plan.chunks[i].bytes;
	if (peers_is_top(p))
		peers_take_rates(p);
	rc = peers_choose_homes(p, bytes, count, e);
	if (rc == 0 && peers_is_top(p))
		rc = peers_choose_cores(p, bytes, count, e);
	free(bytes);
	if (rc == 0 && job->placement_count != count)
		rc = err_set(
			e, -EPROTO, "the box above has %u chunks of it, and this one %u", job->placement_count, count);
	if (rc == 0)
		peers_set_ways(p, count, p->home, p->ways);
	spec->way_of_chunk = p->ways;
	spec->rehomes = true;
	spec->way_count = p->cores * (p->kind == WAYS_CHAIN ? 1 : p->count - 1);
	return rc;
}

bool peers_await(const struct job *job)
{
	const struct peers *p = job->peers;
	const struct generation *g = job->generation;
	uint32_t count = g->spec.plan.chunk_count;
	uint64_t *from = p ? calloc(count, sizeof(*from)) : NULL;
	bool hasty = job->control->box->env.plant == SHARD_PLANT_IMPATIENT;

	for (unsigned i = 0; from && i < p->count; i++) {
		uint64_t slot[MAIL_RANK_WORDS] = {0};

		if (p->each[i].slot == JOB_AT_OTHER)
			continue;
		members_add(slot, p->each[i].slot);
		for (uint32_t chunk = 0; chunk < count; chunk++)
			from[chunk] = ways_is_below(p->kind, p->boxes, p->count, p->home[chunk], i, p->self) &&
						      (!hasty || p->home[chunk] == p->self)
					      ? 0
					      : MEMBERS_NEVER;
		for (unsigned core = 0; core < g->spec.core_count; core++)
			if (g->store.shards[core])
				members_await(g->store.shards[core], slot, from);
	}
	free(from);
	return !p || from;
}
