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
#include "phub/control/config_values.h"
#include "transport/etcd_text.h"
#include "transport/roster.h"

#define SEEK_NS NS_PER_S

void seek_init(struct seek *s, struct box *box, struct etcd *etcd, const char *self)
{
	*s = (struct seek){.box = box, .etcd = etcd, .self = self};
}

static bool seek_is_wanted(const struct seek *s)
{
	return s->box->config->uplink_name[0] && !s->box->control.stopping;
}

static void seek_ask(struct seek *s, uint64_t now_ns)
{
	const struct config *config = s->box->config;
	char box[ETCD_KEY_BYTES];
	struct etcd_op op = {.key = box, .value = ETCD_READ};
	bool fits = roster_box_key(config->etcd_prefix, config->uplink_name, box, sizeof(box));

	s->due_ns = now_ns + SEEK_NS;
	etcd_begin(s->etcd, &s->call, "/v3/kv/txn", fits ? etcd_text_txn(&op, 1) : NULL, now_ns);
}

/* "host:port", as a box has written it. */
static bool seek_read_place(const char *name, const char *address, bool tls, struct above_place *out)
{
	*out = (struct above_place){.tls = tls};
	snprintf(out->box, sizeof(out->box), "%s", name);
	return value_read_address(address, &out->at) == 0 && out->at.host[0] && out->at.port;
}

static void seek_on_item(void *arg, const struct etcd_item *item)
{
	struct seek *s = arg;
	struct above_place place;
	struct roster_item is;

	if (roster_read(s->box->config->etcd_prefix, item, &is) < 0 || is.gone || is.kind != ROSTER_BOX)
		return;
	if (strcmp(is.box.name, s->self) == 0 || !seek_read_place(is.box.name, is.box.address, is.box.tls, &place))
		return;
	s->known = true;
	above_found(&s->box->control, &place);
}

static void seek_heard(struct seek *s)
{
	struct control *c = &s->box->control;
	char why[ERR_TEXT_MAX] = "";
	struct err e = s->call.why;

	s->known = false;
	if (s->call.state == ETCD_FAILED || etcd_text_read_txn(s->call.answer, s->call.bytes, seek_on_item, s, &e) < 0)
		snprintf(why, sizeof(why), "%s", e.text);
	else if (!s->known)
		snprintf(why, sizeof(why), "no other box '%s' is announced in etcd", s->box->config->uplink_name);
	above_missed(c, why);
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
