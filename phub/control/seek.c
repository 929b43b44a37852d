/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One small question a second. A watch would say sooner where it is; but what it says may be old, when etcd has become
 * two halves, and that it has ended is to be noticed, too.
 */
#include "phub/control/seek.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/control/above.h"
#include "phub/control/box.h"
#include "phub/control/campaign.h"
#include "phub/control/config_values.h"
#include "transport/etcd_text.h"
#include "transport/roster.h"

#define SEEK_NS NS_PER_S

void seek_init(struct seek *s, struct box *box, struct etcd *etcd, const char *self, struct campaign *campaign)
{
	*s = (struct seek){.box = box, .etcd = etcd, .self = self, .campaign = campaign};
}

static bool seek_is_wanted(const struct seek *s)
{
	/* Before it knows by what name it is announced itself, it might find itself. */
	return s->box->config->uplink_name[0] && s->self[0] && !s->box->control.stopping;
}

static void seek_ask(struct seek *s, uint64_t now_ns)
{
	const struct config *config = s->box->config;
	char root[ETCD_KEY_BYTES], box[ETCD_KEY_BYTES];
	const struct etcd_op ops[2] = {{.key = root, .value = ETCD_READ}, {.key = box, .value = ETCD_READ}};
	bool fits = roster_root_key(config->etcd_prefix, config->uplink_name, root, sizeof(root)) &&
		    roster_box_key(config->etcd_prefix, config->uplink_name, box, sizeof(box));

	s->asked_ns = now_ns;
	s->due_ns = now_ns + SEEK_NS;
	etcd_begin(s->etcd, &s->call, "/v3/kv/txn", fits ? etcd_text_txn(ops, s->campaign ? 1 : 2) : NULL, now_ns);
}

/* "host:port", as a box has written it. */
static bool seek_read_place(const char *name, const char *address, bool tls, struct above_place *out)
{
	*out = (struct above_place){.tls = tls};
	snprintf(out->box, sizeof(out->box), "%s", name);
	return value_read_address(address, &out->at) == 0 && out->at.host[0] && out->at.port;
}

static void seek_on_root(struct seek *s, const struct etcd_item *item)
{
	struct roster_root root;

	s->strange = true;
	if (!item->value || item->created <= 0 || item->lease == 0 ||
		roster_read_root(item->value, item->created, &root) < 0 ||
		!seek_read_place(root.box, root.address, root.tls, &s->root))
		return;
	s->rooted = true;
	s->strange = false;
	s->root.epoch = root.epoch;
	s->created = (uint64_t)item->created;
	s->lease = item->lease;
}

static void seek_on_item(void *arg, const struct etcd_item *item)
{
	struct seek *s = arg;
	const struct config *config = s->box->config;
	char root[ETCD_KEY_BYTES];
	struct roster_item is;

	if (roster_root_key(config->etcd_prefix, config->uplink_name, root, sizeof(root)) &&
		strcmp(item->key, root) == 0) {
		seek_on_root(s, item);
		return;
	}
	if (roster_read(config->etcd_prefix, item, &is) < 0 || is.gone || is.kind != ROSTER_BOX)
		return;
	if (strcmp(is.box.name, s->self) != 0)
		s->known = seek_read_place(is.box.name, is.box.address, is.box.tls, &s->place);
}

/* A root that is none any more is not replaced by a box of its name. */
static void seek_conclude(struct seek *s)
{
	struct control *c = &s->box->control;
	char why[ERR_TEXT_MAX] = "";

	c->above.heard_ns = c->now_ns;
	if (s->campaign)
		campaign_seen(s->campaign, s->rooted ? s->lease : 0, &s->root, s->created, s->asked_ns);
	if (above_is_root(c) || (s->rooted && s->campaign && campaign_is_its(s->campaign, s->lease)))
		return;
	if (s->rooted)
		above_found(c, &s->root);
	else if (s->known && !c->above.place.epoch)
		above_found(c, &s->place);
	else if (s->strange)
		snprintf(why, sizeof(why),
			"the key of the root '%s' in etcd is of no box, as it is under no lease or holds something "
			"else: "
			"remove it there (etcdctl del %s/roots/%s)",
			c->config->uplink_name, c->config->etcd_prefix, c->config->uplink_name);
	else
		snprintf(why, sizeof(why),
			s->campaign ? "no box is the root '%s' in etcd" : "etcd knows no root and no other box '%s'",
			c->config->uplink_name);
	above_missed(c, why);
}

static void seek_heard(struct seek *s)
{
	struct err e = s->call.why;

	s->known = s->rooted = s->strange = false;
	if (s->call.state == ETCD_FAILED || etcd_text_read_txn(s->call.answer, s->call.bytes, seek_on_item, s, &e) < 0)
		above_missed(&s->box->control, e.text);
	else
		seek_conclude(s);
}

void seek_step(struct seek *s, uint64_t now_ns)
{
	if (s->call.state == ETCD_DONE || s->call.state == ETCD_FAILED) {
		seek_heard(s);
		etcd_end(&s->call);
	}
	if (s->call.state == ETCD_IDLE && now_ns >= s->due_ns && seek_is_wanted(s))
		seek_ask(s, now_ns);
}

uint64_t seek_next(const struct seek *s)
{
	return s->call.state == ETCD_IDLE && seek_is_wanted(s) ? s->due_ns : CLOCK_NEVER;
}

void seek_fini(struct seek *s)
{
	etcd_end(&s->call);
}
