/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls to boxes that this one does not lift to.
 */
#include "phub/control/peers_routes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "phub/control/box.h"
#include "phub/control/calls.h"
#include "phub/control/job_below.h"
#include "phub/control/parent.h"
#include "phub/control/peers_carry.h"

#define ROUTE_BACKOFF_NS 20000000ull /* from one try to the next, where the other box is busy */

struct peers_route {
	const struct job *job;
	unsigned box;          /* to which */
	struct box_call *call; /* NULL: there is none yet */
	bool there;
	int code;                   /* of the error that it ended with; 0: none */
	uint64_t retry_ns;          /* it is tried again then */
	char refused[ERR_TEXT_MAX]; /* why, by that box; "": it has not */
};

static void route_hear(void *arg, const Phub__Control *m)
{
	struct peers_route *r = arg;

	if (m->message_case != PHUB__CONTROL__MESSAGE_ERROR)
		return;
	r->code = m->error->code;
	job_below_copy_reason(r->job, r->refused, sizeof(r->refused), m->error->text);
}

/* To the top box each other has a session anyway. */
static bool routes_need(const struct peers *p, unsigned box)
{
	return box != p->self && box != 0 && !p->each[box].target;
}

int peers_routes_take(struct job *job, struct err *e)
{
	const struct peers *p = job->peers;
	struct peers_move *m = p->move;
	bool wanted[WAYS_BOXES_MAX] = {false};
	unsigned count = 0;

	for (uint32_t i = 0; i < carry_count(job); i++) {
		bool goes = p->home[i] == p->self && routes_need(p, m->home[i]);

		count += goes && !wanted[m->home[i]];
		wanted[m->home[i]] = wanted[m->home[i]] || goes;
	}
	if (count == 0 || job->generation->spec.optimizer == OPTIMIZER_NONE)
		return 0;
	m->routes = calloc(count, sizeof(*m->routes));
	if (!m->routes)
		return err_set(e, -ENOMEM, "no memory for sessions with %u other boxes", count);
	for (unsigned i = 0; i < p->count; i++)
		if (wanted[i])
			m->routes[m->route_count++] = (struct peers_route){.job = job, .box = i};
	return 0;
}

static int route_dial(struct job *job, struct peers_route *r, struct err *e)
{
	const struct peers *p = job->peers;
	const struct peer *t = &p->each[r->box];
	const struct config_secret *secret = box_call_secret(job);
	const struct call_target target = {
		.what = "uplink",
		.below = job->ranks,
		.peer = p->self + 1,
		.exchange = p->number,
		.host = t->host,
		.port = t->port,
		.tls = t->tls,
		.job = job->name,
		.secret = secret->bytes,
		.secret_bytes = secret->length,
		.hear = route_hear,
		.arg = r,
	};

	return box_call_open(job->control, &target, &r->call, e);
}

/* The other box has not done with the last change yet: the top box waits for who holds, for so long as it does. */
static void route_wait(struct job *job, struct peers_route *r)
{
	box_call_hang_up(job->control, r->call);
	*r = (struct peers_route){.job = r->job, .box = r->box, .retry_ns = job->control->now_ns + ROUTE_BACKOFF_NS};
}

/* 0, -EAGAIN, or why not. */
static int route_step(struct job *job, struct peers_route *r, struct err *e)
{
	const char *name = job->peers->each[r->box].name;
	struct err why = {.code = 0};
	int rc = 0;

	if (job->control->now_ns < r->retry_ns)
		return -EAGAIN;
	if (!r->call)
		rc = route_dial(job, r, &why);
	if (rc == 0)
		rc = box_call_step(job->control, r->call, &why);
	if (r->code == PHUB__ERROR_CODE__ERROR_BUSY && !r->there) {
		route_wait(job, r);
		return -EAGAIN;
	}
	if (rc < 0 || r->refused[0])
		return err_set(e, rc < 0 ? rc : -EPROTO, "%s, to which weights and state would go, %s: %.300s", name,
			r->there ? "was lost" : "cannot be reached from here",
			r->refused[0] ? r->refused : box_call_trim(why.text));
	r->there = r->there || rc > 0;
	return r->there ? 0 : -EAGAIN;
}

int peers_routes_step(struct job *job, struct err *e)
{
	struct peers_move *m = job->peers->move;
	bool all = true;

	for (unsigned i = 0; i < m->route_count; i++) {
		int rc = route_step(job, &m->routes[i], e);

		if (rc < 0 && rc != -EAGAIN)
			return rc;
		all = all && rc == 0;
	}
	job->control->soon = job->control->soon || !all;
	return all ? 0 : -EAGAIN;
}

struct box_call *peers_route(const struct job *job, unsigned box)
{
	const struct peers *p = job->peers;
	const struct peers_move *m = p->move;

	if (p->each[box].target)
		return peers_call(job, box);
	if (box == 0)
		return parent_call(job);
	for (unsigned i = 0; i < m->route_count; i++)
		if (m->routes[i].box == box && m->routes[i].there)
			return m->routes[i].call;
	return NULL;
}

void peers_routes_end(struct control *c, struct peers_move *m)
{
	Phub__Leave leave = PHUB__LEAVE__INIT;

	for (unsigned i = 0; i < m->route_count; i++) {
		if (m->routes[i].there)
			box_call_part(c, m->routes[i].call, &leave);
		else
			box_call_hang_up(c, m->routes[i].call);
	}
	free(m->routes);
	m->routes = NULL;
	m->route_count = 0;
}
