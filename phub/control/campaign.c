/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call at a time. What the lease is worth is counted from when it was asked for, on this box's clock of leases;
 * etcd counts from later on. A claim whose answer was lost is found out by the next look at the key, which names the
 * lease.
 */
#include "phub/control/campaign.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/control/above.h"
#include "phub/control/box.h"
#include "transport/etcd_text.h"
#include "transport/roster.h"

#define CAMPAIGN_RETRY_NS  (500 * NS_PER_MS)
#define CAMPAIGN_ASSUME_NS (250 * NS_PER_MS) /* between two looks whether the checkpoint targets are free... */
#define CAMPAIGN_SOON_NS   (10 * NS_PER_MS)  /* ...and in the first second, in which disks that are well answer */
#define CAMPAIGN_MARGIN    4                 /* of the lease's time: the last part is not used */
#define CAMPAIGN_PATIENCE  3                 /* lease's times: so long checkpoint targets are waited for */

void campaign_init(struct campaign *g, struct box *box, struct etcd *etcd, const char *self, const char *address)
{
	*g = (struct campaign){.box = box, .etcd = etcd, .self = self, .address = address};
}

bool campaign_is_its(const struct campaign *g, int64_t lease)
{
	return lease != 0 && lease == g->lease;
}

static bool campaign_is_over(const struct campaign *g)
{
	return above_lease_now_ns(&g->box->control) >= g->until_ns;
}

/* ---- the root's key is ours, or not ---- */

static void campaign_lose(struct campaign *g, const struct above_place *by, const char *why)
{
	g->epoch = 0;
	g->lapsed = false;
	if (above_is_root(&g->box->control))
		above_depose(&g->box->control, by, why);
	else
		above_decline(&g->box->control);
}

/* Who is the root instead, if anyone is, is seen at the next look. */
static void campaign_forget_lease(struct campaign *g)
{
	g->lease = 0;
	g->lapsed = g->epoch && above_is_root(&g->box->control);
	g->yields = false;
	g->until_ns = 0;
	above_doubt(&g->box->control, "this box's lease in etcd is over");
}

/* Another box may be able to. */
static void campaign_yield(struct campaign *g, const char *why)
{
	uint64_t pause_ns = CAMPAIGN_PATIENCE * g->ttl_ns;

	log_warn("this box does not become the root '%s', as it has waited for its checkpoints for %.0f s, and does "
		 "not stand for it for as long, so that another box may be: %s",
		g->box->config->root, (double)(g->now_ns - g->won_ns) / 1e9, why);
	above_decline(&g->box->control);
	g->epoch = 0;
	g->yields = true;
	g->claim_ns = g->now_ns + pause_ns;
}

/* It is this box, and has to have the checkpoints before it is anything. */
static void campaign_assume(struct campaign *g)
{
	struct control *c = &g->box->control;
	struct err e;
	bool fresh = g->now_ns < g->won_ns + NS_PER_S;
	int rc;

	if (!g->epoch || above_is_root(c) || g->now_ns < g->assume_ns || campaign_is_over(g))
		return;
	rc = above_assume(c, g->epoch, g->until_ns, &e);
	g->told = g->told && rc < 0;
	if (rc == 0)
		return;
	g->assume_ns = g->now_ns + (fresh && rc == -EAGAIN ? CAMPAIGN_SOON_NS : CAMPAIGN_ASSUME_NS);
	c->above.known = false; /* who was the root is none by etcd: jobs here wait for this box */
	above_missed(c, e.text);
	if (g->now_ns - g->won_ns >= CAMPAIGN_PATIENCE * g->ttl_ns) {
		campaign_yield(g, e.text);
	} else if (!g->told && !(fresh && rc == -EAGAIN)) {
		log_warn("this box is to be the root '%s', and waits for its checkpoints: %s", c->config->root, e.text);
		g->told = true;
	}
}

static void campaign_win(struct campaign *g, uint64_t epoch, uint64_t created)
{
	g->vacant = false;
	g->epoch = epoch;
	g->created = created;
	g->won_ns = g->now_ns;
	g->assume_ns = 0;
	g->told = false;
	campaign_assume(g);
}

/* The key is this root's again, and was nobody's meanwhile. */
static void campaign_regain(struct campaign *g, uint64_t created)
{
	g->vacant = g->lapsed = false;
	g->created = created;
	g->won_ns = g->now_ns;
	log_info("etcd: this box has the key of the root '%s' again, which nobody had meanwhile", g->box->config->root);
	above_renew(&g->box->control, g->until_ns);
}

void campaign_seen(
	struct campaign *g, int64_t lease, const struct above_place *root, uint64_t created, uint64_t asked_ns)
{
	bool its = campaign_is_its(g, lease), root_is = above_is_root(&g->box->control);

	g->vacant = lease == 0;
	if (its && g->yields)
		return;
	if (its && root->epoch != g->epoch)
		campaign_win(g, root->epoch, created);
	else if (its && g->lapsed)
		campaign_regain(g, created);
	else if (g->vacant && root_is && g->box->control.above.doubt_ns)
		return; /* the lease's end is heard of next, or was, and the key is claimed (campaign_may_claim()) */
	else if (!its && g->epoch && asked_ns >= g->won_ns)
		campaign_lose(
			g, lease ? root : NULL, g->lease ? "its key in etcd was removed" : "its lease in etcd ran out");
}

/* ---- what is done next ---- */

static void campaign_begin(struct campaign *g, enum campaign_doing doing, const char *path, char *request)
{
	g->doing = doing;
	g->began_ns = g->now_ns;
	g->lease_began_ns = above_lease_now_ns(&g->box->control);
	etcd_begin(g->etcd, &g->call, path, request, g->now_ns);
}

static void campaign_claim(struct campaign *g)
{
	const struct config *config = g->box->config;
	struct roster_root self = {.tls = config->tls == CONFIG_TLS_REQUIRE, .epoch = g->lapsed ? g->epoch : 0};
	char key[ETCD_KEY_BYTES], last[ETCD_KEY_BYTES], *value;
	bool fits = roster_root_key(config->etcd_prefix, config->root, key, sizeof(key)) &&
		    roster_rooted_key(config->etcd_prefix, config->root, last, sizeof(last));
	int64_t since = g->lapsed ? (int64_t)g->created : 0;

	self.since = (int64_t)time(NULL);
	snprintf(self.box, sizeof(self.box), "%s", g->self);
	snprintf(self.address, sizeof(self.address), "%s", g->address);
	value = roster_write_root(&self);
	campaign_begin(g, CAMPAIGN_CLAIMING, "/v3/kv/txn",
		fits && value ? etcd_text_claim(key, value, g->lease, last, since) : NULL);
	free(value);
}

static bool campaign_may_claim(const struct campaign *g)
{
	bool root = above_is_root(&g->box->control);

	return g->vacant && g->address[0] && (g->lapsed || (!g->epoch && !root && g->now_ns >= g->claim_ns));
}

/* When the lease is to be kept alive: at once where this machine was suspended for longer than it lasts. */
static uint64_t campaign_keep_ns(const struct campaign *g)
{
	return campaign_is_over(g) ? 0 : g->keep_ns;
}

static void campaign_choose(struct campaign *g)
{
	if (g->stopping) {
		if (g->lease)
			campaign_begin(g, CAMPAIGN_REVOKING, "/v3/lease/revoke", etcd_text_lease(g->lease));
	} else if (g->now_ns < g->retry_ns) {
		return;
	} else if (g->yields) {
		campaign_begin(g, CAMPAIGN_REVOKING, "/v3/lease/revoke", etcd_text_lease(g->lease));
	} else if (!g->lease && campaign_may_claim(g)) {
		campaign_begin(g, CAMPAIGN_GRANTING, "/v3/lease/grant",
			etcd_text_grant((int64_t)((g->box->config->etcd_ttl_ms + 999) / 1000)));
	} else if (g->lease && g->now_ns >= campaign_keep_ns(g)) {
		campaign_begin(g, CAMPAIGN_KEEPING, "/v3/lease/keepalive", etcd_text_lease(g->lease));
	} else if (g->lease && campaign_may_claim(g)) {
		campaign_claim(g);
	}
}

/* ---- what comes of it ---- */

static void campaign_renew(struct campaign *g)
{
	g->until_ns = g->lease_began_ns + g->ttl_ns - g->ttl_ns / CAMPAIGN_MARGIN;
	g->keep_ns = g->began_ns + g->ttl_ns / 3;
	if (g->epoch && !g->lapsed && above_is_root(&g->box->control))
		above_renew(&g->box->control, g->until_ns);
}

static int campaign_heard_grant(struct campaign *g, struct err *e)
{
	int64_t ttl_s;
	int rc = etcd_text_read_grant(g->call.answer, g->call.bytes, &g->lease, &ttl_s, e);

	if (rc < 0)
		return rc;
	g->ttl_ns = (uint64_t)ttl_s * NS_PER_S;
	campaign_renew(g);
	return 0;
}

static int campaign_heard_keepalive(struct campaign *g, struct err *e)
{
	int64_t ttl_s;
	int rc = etcd_text_read_keepalive(g->call.answer, g->call.bytes, &ttl_s, e);

	if (rc < 0)
		return rc;
	if (ttl_s > 0)
		campaign_renew(g);
	else
		campaign_forget_lease(g);
	return 0;
}

/* Of a claim that came too late, or whose first answer was lost: seek.h sees what is there. */
static void campaign_on_item(void *arg, const struct etcd_item *item)
{
	(void)arg;
	(void)item;
}

static int campaign_heard_claim(struct campaign *g, struct err *e)
{
	int64_t revision;
	bool won;
	int rc = etcd_text_read_claim(g->call.answer, g->call.bytes, &won, &revision, campaign_on_item, NULL, e);

	if (rc < 0)
		return rc;
	g->vacant = false;
	if (won && g->lapsed)
		campaign_regain(g, (uint64_t)revision);
	else if (won)
		campaign_win(g, (uint64_t)revision, (uint64_t)revision);
	else if (g->lapsed)
		campaign_lose(g, NULL, "its lease in etcd ran out, and another box was the root since");
	return 0;
}

/* Not heard, it is asked for again, until that is over by itself; but by a box that goes down. */
static int campaign_heard_revoke(struct campaign *g)
{
	if (g->call.state == ETCD_FAILED && g->call.status != ETCD_NOT_FOUND && !g->stopping)
		return g->call.why.code;
	g->lease = 0;
	g->yields = false;
	g->until_ns = 0;
	return 0;
}

static void campaign_heard(struct campaign *g)
{
	enum campaign_doing doing = g->doing;
	struct err e;
	int rc = 0;

	g->doing = CAMPAIGN_NOTHING;
	if (doing == CAMPAIGN_REVOKING) {
		rc = campaign_heard_revoke(g);
	} else if (g->call.state == ETCD_FAILED) {
		if (g->call.status == ETCD_NOT_FOUND)
			campaign_forget_lease(g);
		rc = g->call.why.code;
	} else if (doing == CAMPAIGN_GRANTING) {
		rc = campaign_heard_grant(g, &e);
	} else if (doing == CAMPAIGN_KEEPING) {
		rc = campaign_heard_keepalive(g, &e);
	} else {
		rc = campaign_heard_claim(g, &e);
	}
	g->retry_ns = rc < 0 ? g->now_ns + CAMPAIGN_RETRY_NS : 0;
	etcd_end(&g->call);
}

void campaign_step(struct campaign *g, uint64_t now_ns)
{
	g->now_ns = now_ns;
	if (g->doing != CAMPAIGN_NOTHING && g->call.state != ETCD_RUNNING)
		campaign_heard(g);
	campaign_assume(g);
	if (g->doing != CAMPAIGN_NOTHING)
		return;
	if (g->lapsed && !above_is_root(&g->box->control)) /* it was in doubt for too long */
		campaign_lose(g, NULL, "");
	campaign_choose(g);
}

uint64_t campaign_next(const struct campaign *g)
{
	bool waits = g->epoch && !above_is_root(&g->box->control) && !campaign_is_over(g);
	uint64_t due = !g->lease ? CLOCK_NEVER : g->yields ? 0 : campaign_keep_ns(g);

	if (g->doing != CAMPAIGN_NOTHING)
		return waits ? g->assume_ns : CLOCK_NEVER;
	if (g->stopping)
		return g->lease ? g->now_ns : CLOCK_NEVER;
	if (campaign_may_claim(g))
		due = 0;
	due = due > g->retry_ns ? due : g->retry_ns;
	return waits && g->assume_ns < due ? g->assume_ns : due;
}

/* ---- the end ---- */

void campaign_stop(struct campaign *g)
{
	g->stopping = true;
	etcd_end(&g->call);
	g->doing = CAMPAIGN_NOTHING;
}

bool campaign_stopped(const struct campaign *g)
{
	return g->doing == CAMPAIGN_NOTHING && !g->lease;
}

void campaign_fini(struct campaign *g)
{
	etcd_end(&g->call);
}
