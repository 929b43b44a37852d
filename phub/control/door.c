/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks a data connection against its session, in an order that tells a stranger nothing before the MAC is right but
 * whether a session number is in use.
 */
#include "phub/control/door.h"

#include <errno.h>
#include <string.h>

#include "phub/base/log.h"
#include "phub/control/box.h"
#include "phub/control/job.h"
#include "phub/control/session.h"

enum { DOOR_HELLOS = 64 }; /* of one transport in one step */

/* 0 with the link it is for, or a positive errno for the refusal. */
static int door_check(
	struct control *c, const struct hello *hello, struct session **session, struct generation_link **link)
{
	struct session *s = session_find(c, hello->session);
	struct generation *g = s ? s->job->generation : NULL;
	const char *picked = s ? s->job->members[s->rank].transport : "";
	uint8_t mac[PROOF_MAC];

	if (c->stopping)
		return ESHUTDOWN;
	if (!s || s->job->state != JOB_RUNNING)
		return ENOENT;
	if (proof_data(s->key, hello->nonce, hello->session, hello->core, mac) < 0 || !proof_equal(mac, hello->mac))
		return EACCES;
	if (hello->core >= g->spec.core_count || !g->store.shards[hello->core])
		return ERANGE;
	if (picked[0] && strcmp(picked, hello->conn->transport->ops->name) != 0)
		return EPROTOTYPE;
	if (generation_link(g, s->rank, hello->core)->admitted)
		return EALREADY;
	*session = s;
	*link = generation_link(g, s->rank, hello->core);
	return 0;
}

static void door_refuse(struct control *c, const struct hello *hello, int code)
{
	static struct log_limit limit;
	uint64_t quiet;

	if (log_limit_pass(&limit, c->now_ns, 1000000000ull, &quiet))
		log_warn("data connection %s of session %llu to core %u refused: %s (%llu more were not logged)",
			hello->conn->peer, (unsigned long long)hello->session, hello->core, strerror(code),
			(unsigned long long)quiet);
	hello->conn->transport->ops->reject(hello->conn->transport, hello->conn, code);
}

static void door_open(struct control *c, unsigned number, const struct hello *hello)
{
	struct generation_link *link = NULL;
	struct session *s = NULL;
	struct job *job;
	struct err e;
	int code = door_check(c, hello, &s, &link);

	if (code) {
		door_refuse(c, hello, code);
		return;
	}
	job = s->job;
	link->spec.queue = c->box->queues[hello->core][number];
	if (hello->conn->transport->ops->admit(hello->conn->transport, hello->conn, &link->spec, &e) < 0) {
		log_warn("job '%s' rank %u: data connection to core %u not admitted: %s", job->name, s->rank,
			hello->core, e.text);
		return;
	}
	link->admitted = true;
	struct mail mail = {
		.kind = MAIL_LINK,
		.core = hello->core,
		.shard = job->generation->store.shards[hello->core],
		.conn = hello->conn,
		.spec = &link->spec,
		.rank = s->rank,
		.value = number,
		.job = job->id,
		.generation = job->generation->spec.generation,
	};
	post_send(&c->box->posts[hello->core], &mail);
	if (!job->members[s->rank].transport[0])
		strncpy(job->members[s->rank].transport, hello->conn->transport->ops->name, TABLE_TRANSPORT_BYTES - 1);
}

/* Signals of transports go to the sessions of their workers; those that are over need none. */
static void door_carry(struct control *c, struct transport *t)
{
	struct signal signal;

	while (t->ops->signal_take(t, &signal) == 0) {
		struct session *s = session_find(c, signal.session);

		if (s)
			session_write_signal(s, &signal);
	}
}

void door_step(struct control *c, int all)
{
	struct box *box = c->box;
	struct hello hello;

	for (unsigned i = 0; i < box->transport_count; i++) {
		struct box_transport *t = &box->transports[i];
		int left = DOOR_HELLOS;

		if (!t->ready && !all && t->fd >= 0)
			continue;
		t->ready = false;
		while (left > 0 && t->transport->ops->accept(t->transport, c->now_ns, &hello) == 0) {
			door_open(c, i, &hello);
			left--;
		}
		if (left == 0) {
			t->ready = true;
			c->again = true;
		}
		if (t->transport->ops->signal_take)
			door_carry(c, t->transport);
	}
}
