/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versions of the hyper-parameters on their way to the cores. In bsp a version goes there when all ranks have named
 * equal values; in ssp and async each rank has versions of its own.
 */
#include "phub/control/job.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/log.h"
#include "phub/control/box.h"
#include "phub/control/job_below.h"
#include "phub/control/parent.h"
#include "phub/control/peers.h"
#include "phub/control/session.h"
#include "phub/control/standby.h"
#include "phub/hyper.h"

/* A table and its place in control->tables. */
struct job_hyper_table {
	struct job_hyper_table *next;
	struct hyper_table table; /* its groups follow */
};

/* Its groups are the caller's to fill in. */
static struct hyper_table *job_hyper_create(const struct spec *spec, uint32_t version, uint32_t rank)
{
	struct job_hyper_table *t = malloc(sizeof(*t) + spec->group_count * sizeof(t->table.groups[0]));

	if (!t)
		return NULL;
	t->next = NULL;
	t->table.rank = rank;
	t->table.version = version;
	t->table.group_count = spec->group_count;
	t->table.cores_left = 0;
	return &t->table;
}

static struct hyper_table *job_hyper_read(const struct spec *spec, const Phub__Hyper *message, uint32_t rank)
{
	struct hyper_table *table = job_hyper_create(spec, message->version, rank);

	for (uint32_t i = 0; table && i < spec->group_count; i++)
		table_hyper(message->groups[i], &table->groups[i]);
	return table;
}

static struct job_hyper_table *job_hyper_outer(struct hyper_table *table)
{
	return (struct job_hyper_table *)((char *)table - offsetof(struct job_hyper_table, table));
}

static void job_hyper_destroy(struct hyper_table *table)
{
	free(job_hyper_outer(table));
}

/* Gives a table to all cores that own a part of the job. */
static void job_hyper_send(struct job *job, struct hyper_table *table)
{
	struct control *c = job->control;
	struct generation *g = job->generation;

	job_hyper_outer(table)->next = c->tables;
	c->tables = job_hyper_outer(table);
	job->hyper_sent++;
	for (unsigned core = 0; core < g->spec.core_count; core++)
		table->cores_left += g->store.shards[core] != NULL;
	for (unsigned core = 0; core < g->spec.core_count; core++) {
		struct mail mail = {
			.kind = MAIL_HYPER,
			.core = core,
			.shard = g->store.shards[core],
			.job = job->id,
			.generation = g->spec.generation,
			.table = table,
		};

		if (mail.shard)
			post_send(&c->box->posts[core], &mail);
	}
}

void job_hyper_taken(struct control *c, struct job *job, struct hyper_table *table)
{
	struct job_hyper_table **at = &c->tables;

	if (--table->cores_left > 0)
		return;
	if (job)
		job->hyper_sent--;
	while (*at != job_hyper_outer(table))
		at = &(*at)->next;
	*at = (*at)->next;
	job_hyper_destroy(table);
}

void job_hyper_fini(struct control *c)
{
	while (c->tables) {
		struct job_hyper_table *next = c->tables->next;

		free(c->tables);
		c->tables = next;
	}
}

void job_hyper_forget(struct job *job)
{
	while (job->hypers) {
		struct hyper_pending *next = job->hypers->next;

		job_hyper_destroy(job->hypers->table);
		free(job->hypers);
		job->hypers = next;
	}
	job->hyper_count = 0;
}

/* The pending version, made from this message when it is the first about it; NULL when there is no room. */
static struct hyper_pending *job_hyper_pending(struct job *job, uint32_t rank, const Phub__Hyper *message)
{
	struct hyper_pending **at = &job->hypers;
	struct hyper_pending *p;

	for (p = *at; p && p->table->version != message->version; p = *at)
		at = &p->next;
	if (p)
		return p;
	if (job->hyper_count == JOB_HYPER_PENDING_MAX)
		return NULL;
	p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	p->table = job_hyper_read(&job->generation->spec, message, 0);
	if (!p->table) {
		free(p);
		return NULL;
	}
	p->first = rank;
	*at = p;
	job->hyper_count++;
	return p;
}

/* False when the job has failed because this rank says something else than the first. */
static bool job_hyper_equal(struct job *job, const struct hyper_pending *p, uint32_t rank, const Phub__Hyper *message)
{
	double in_first, in_other;
	char who[240], first[240];

	for (uint32_t i = 0; i < p->table->group_count; i++) {
		struct optimizer_hyper other;
		const char *name;

		table_hyper(message->groups[i], &other);
		name = spec_hyper_differs(&p->table->groups[i], &other, NULL, &in_first, &in_other);
		if (!name)
			continue;
		job_fail(job, PHUB__ERROR_CODE__ERROR_MISMATCH, (int)rank,
			"%s of parameter group %u differs: %s says %.9g, %s says %.9g; all ranks must set "
			"equal values before the same round",
			name, i, job_member_word(job, p->first, first, sizeof(first)), in_first,
			job_member_word(job, rank, who, sizeof(who)), in_other);
		return false;
	}
	return true;
}

static void job_hyper_collect(struct job *job, uint32_t rank, const Phub__Hyper *message)
{
	struct hyper_pending *p = job_hyper_pending(job, rank, message);
	char who[240];

	if (!p) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, (int)rank,
			"%s has changed its hyper-parameters %u times more than another; all ranks must change "
			"them together",
			job_member_word(job, rank, who, sizeof(who)), JOB_HYPER_PENDING_MAX);
		return;
	}
	if (!job_hyper_equal(job, p, rank, message))
		return;
	job_hyper_recount(job);
}

/* Have all whom the job counts on named this version? Each counts from 1 without gaps. */
static bool job_hyper_complete(const struct job *job, uint32_t version)
{
	for (uint32_t i = 0; i < job->world; i++)
		if (!job_is_let_go(job, i) && !job_members_is_ahead(job, i) && job->members[i].hyper < version)
			return false;
	return true;
}

const struct optimizer_hyper *job_hyper_newest(const struct job *job, uint32_t *version)
{
	const struct optimizer_hyper *groups = job->hyper ? job->groups : job->generation->spec.groups;

	*version = job->hyper;
	for (const struct hyper_pending *p = job->hypers; p && p->table->version <= job->hyper_asked; p = p->next) {
		*version = p->table->version; /* the top box has not agreed yet */
		groups = p->table->groups;
	}
	return groups;
}

/* Versions that all here have named are said to the box above. */
static void job_hyper_ask(struct job *job)
{
	for (const struct hyper_pending *p = job->hypers; p && job->state == JOB_RUNNING; p = p->next) {
		if (!job_hyper_complete(job, p->table->version))
			return;
		if (p->table->version <= job->hyper_asked)
			continue;
		job->hyper_asked = p->table->version;
		parent_hyper(job, p->table->version, p->table->groups);
	}
}

/* All have named the newest version: boxes right below, where chunks have their homes, may step by it. */
static void job_hyper_tell(struct job *job)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Hyper hyper = PHUB__HYPER__INIT;

	if (peers_ask(job))
		return;
	hyper.version = job->hyper;
	control.message_case = PHUB__CONTROL__MESSAGE_HYPER;
	control.hyper = &hyper;
	for (uint32_t i = job->ranks; i < job->world && job->state == JOB_RUNNING; i++)
		if (job->members[i].session)
			session_write(job->members[i].session, &control);
}

void job_hyper_recount(struct job *job)
{
	struct hyper_pending *p;

	if (peers_ask(job))
		job_hyper_ask(job);
	while ((p = job->hypers) && job_hyper_complete(job, p->table->version)) {
		if (peers_ask(job) && p->table->version > job->hyper_agreed)
			break;
		job->hypers = p->next;
		job->hyper_count--;
		job->hyper = p->table->version;
		memcpy(job->groups, p->table->groups, p->table->group_count * sizeof(job->groups[0]));
		standby_hyper(job, job->hyper, job->groups);
		job_hyper_send(job, p->table);
		free(p);
		if (job->peers)
			job_hyper_tell(job);
		else
			parent_hyper(job, job->hyper, job->groups);
	}
	job_members_resume(job);
}

void job_hyper_agree(struct job *job, uint32_t version)
{
	if (version <= job->hyper_agreed || version > job->hyper_asked)
		return;
	job->hyper_agreed = version;
	job_hyper_recount(job);
}

/* ssp, async: a rank's next version; NULL: there was no memory for it. */
static void job_hyper_take(struct job *job, struct hyper_table *table)
{
	if (!table) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1, "no memory in the box for hyper-parameters");
		return;
	}
	job->hyper++;
	memcpy(job->groups, table->groups, table->group_count * sizeof(job->groups[0]));
	job_hyper_send(job, table);
}

int job_hyper_check(const struct spec *spec, const Phub__Hyper *message, uint32_t version, struct err *e)
{
	if (message->version != version || message->n_groups != spec->group_count)
		return err_set(e, -EPROTO,
			"hyper-parameters of version %u with %zu groups, when version %u with %u groups is next",
			message->version, message->n_groups, version, spec->group_count);
	for (uint32_t i = 0; i < message->n_groups; i++) {
		struct optimizer_hyper hyper;
		int rc;

		table_hyper(message->groups[i], &hyper);
		rc = spec_hyper_check(spec->optimizer, i, &hyper, e);
		if (rc < 0)
			return rc;
	}
	return 0;
}

int job_hyper_pass(struct job *job, const Phub__Hyper *message)
{
	struct hyper_table *table = job_hyper_read(&job->generation->spec, message, 0);

	if (!table)
		return -ENOMEM;
	job->hyper = table->version;
	memcpy(job->groups, table->groups, table->group_count * sizeof(job->groups[0]));
	job_hyper_send(job, table);
	return 0;
}

void job_hear_hyper(struct session *s, const Phub__Hyper *message)
{
	struct job *job = s->job;
	struct member *m = &job->members[s->rank];
	struct hyper_table *table;
	char who[240];
	struct err e;
	int rc;

	if (job->state != JOB_RUNNING || s->table || m->tabled) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "hyper-parameters when the job does not run");
		return;
	}
	rc = job_hyper_check(&job->generation->spec, message, m->hyper + 1, &e);
	if (rc == -EPROTO) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "%s", e.text);
		return;
	}
	if (rc < 0) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_UNSUPPORTED, (int)s->rank, "%s: %s",
			job_member_word(job, s->rank, who, sizeof(who)), e.text);
		return;
	}
	m->hyper++;
	if (!spec_stepwise(&job->generation->spec)) {
		job_hyper_collect(job, s->rank, message);
		return;
	}
	table = job_hyper_read(&job->generation->spec, message, s->rank);
	job_hyper_take(job, table);
}

void job_hyper_hand_on(struct job *job, uint32_t rank)
{
	const struct spec *spec = &job->generation->spec;
	struct hyper_table *table;

	if (!spec_stepwise(spec) || job->hyper == 0)
		return;
	table = job_hyper_create(spec, ++job->members[rank].hyper, rank);
	if (table)
		memcpy(table->groups, job->groups, spec->group_count * sizeof(table->groups[0]));
	job_hyper_take(job, table);
}
