/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks a data connection against its session, in an order that tells a stranger nothing before the MAC is right but
 * whether a session number is in use.
 */
#include "phub/control/door.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "phub/base/log.h"
#include "phub/control/box.h"
#include "phub/control/job.h"
#include "phub/control/job_below.h"
#include "phub/control/session.h"

enum { DOOR_HELLOS = 64 }; /* of one transport in one step */

#define DOOR_AGAIN_NS 50000000ull

/* Boxes speak with each other through what loses nothing; a mirror in the order of what is said, and maps nothing. */
static bool door_is_plain(const struct box *box, const struct hello *hello, bool mirror)
{
	unsigned number = 0;
	const struct queue *q;

	while (box->transports[number].transport != hello->conn->transport)
		number++;
	q = box->queues[hello->core][number];
	return !q->lossy && !(mirror && (q->unordered || q->hold_max == UINT_MAX));
}

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
	if (!s || s->carries || s->job->state != JOB_RUNNING)
		return ENOENT;
	if (proof_data(s->key, hello->nonce, hello->session, hello->core, mac) < 0 || !proof_equal(mac, hello->mac))
		return EACCES;
	if (hello->core >= g->spec.core_count || !g->store.shards[hello->core])
		return ERANGE;
	if (picked[0] && !s->below && strcmp(picked, hello->conn->transport->ops->name) != 0)
		return EPROTOTYPE; /* a box may find that what it has picked does not do */
	if ((s->job->mirror || s->below) && !door_is_plain(c->box, hello, s->job->mirror))
		return EPROTOTYPE;
	/* Places that are fixed are as large as what workers push: a box's sums may be larger. */
	if (s->below && c->config->rdma_pushes == CONFIG_PUSHES_FIXED &&
		strcmp(hello->conn->transport->ops->name, "verbs") == 0)
		return EPROTOTYPE;
	*link = generation_link(g, s->rank, hello->core);
	if ((*link)->serial > 0 && !(*link)->fresh && !hello->conn->transport->ops->reconnects)
		return EALREADY;
	/* Who connects again and again costs other jobs something: not too often. */
	if ((*link)->tried_ns && c->now_ns < (*link)->tried_ns + DOOR_AGAIN_NS)
		return EALREADY;
	(*link)->tried_ns = c->now_ns ? c->now_ns : 1;
	if ((*link)->sealed && proof_push_key(s->key, (*link)->push_key) < 0)
		return EIO;
	*session = s;
	return 0;
}

static void door_refuse(struct control *c, const struct hello *hello, int code)
{
	static struct log_limit limit;
	char more[LOG_QUIET_BYTES];
	uint64_t quiet;

	if (log_limit_pass(&limit, c->now_ns, 1000000000ull, &quiet))
		log_warn("data connection %s of session %llu to core %u refused: %s%s", hello->conn->peer,
			(unsigned long long)hello->session, hello->core, strerror(code), log_quiet(quiet, more));
	hello->conn->transport->ops->reject(hello->conn->transport, hello->conn, code);
}

void door_link(struct control *c, uint32_t rank, const struct job *job, uint32_t core, struct conn *conn)
{
	struct generation_link *link = generation_link(job->generation, rank, core);
	struct mail mail = {
		.kind = MAIL_LINK,
		.core = core,
		.shard = job->generation->store.shards[core],
		.conn = conn,
		.spec = &link->spec,
		.rank = rank,
		.detail = link->serial,
		.job = job->id,
		.generation = job->generation->spec.generation,
		.sealed = link->sealed,
	};

	if (link->sealed)
		memcpy(mail.key, link->push_key, sizeof(mail.key));
	while (c->box->transports[mail.value].transport != conn->transport)
		mail.value++;
	post_send(&c->box->posts[core], &mail);
	explicit_bzero(mail.key, sizeof(mail.key));
}

/* A connection takes the place of one that broke: that one ends first, whether the core knows of it yet or not. */
static void door_replace(struct control *c, const struct session *s, struct generation_link *link, uint32_t core)
{
	struct job *job = s->job;
	struct mail mail = {
		.kind = MAIL_UNLINK, .core = core, .shard = job->generation->store.shards[core], .rank = s->rank};
	char who[240];

	post_send(&c->box->posts[core], &mail);
	link->ended_ns = 0;
	job->reconnects++;
	job->members[s->rank].link_renewed = true;
	log_info("job '%s' %s: connected to core %u again", job->name, job_member_name(job, s->rank, who, sizeof(who)),
		core);
}

static void door_open(struct control *c, unsigned number, const struct hello *hello)
{
	struct generation_link *link = NULL;
	struct session *s = NULL;
	char who[240];
	struct job *job;
	struct err e;
	int code = door_check(c, hello, &s, &link);

	if (code) {
		door_refuse(c, hello, code);
		return;
	}
	job = s->job;
	memcpy(link->key, s->key, sizeof(link->key)); /* the connection may outlive the session */
	link->spec.key = link->key;
	link->spec.queue = c->box->queues[hello->core][number];
	link->spec.job = job->id;
	link->spec.rank = s->rank;
	if (generation_map(job, s->rank, hello->conn->transport->ops->name, &e) < 0) {
		log_warn("job '%s': %s cannot come by shared memory: %s", job->name, hello->conn->peer, e.text);
		link->tried_ns = 0; /* it comes by another way at once */
		door_refuse(c, hello, ENOMEM);
		return;
	}
	if (hello->conn->transport->ops->admit(hello->conn->transport, hello->conn, &link->spec, &e) < 0) {
		log_warn("job '%s' %s: data connection to core %u not admitted: %s", job->name,
			job_member_word(job, s->rank, who, sizeof(who)), hello->core, e.text);
		return;
	}
	if (link->serial++ > 0 && !link->fresh)
		door_replace(c, s, link, hello->core);
	link->fresh = false;
	link->ended_ns = 0;
	door_link(c, s->rank, job, hello->core, hello->conn);
	if (!job->members[s->rank].transport[0] || s->below)
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
		c->soon = c->soon || t->transport->soon;
	}
}
