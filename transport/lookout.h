/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks at what boxes have written to etcd (transport/roster.h): once, or on and on by a watch, whose end, whatever the
 * reason, begins another look. The owner's thread.
 */
#ifndef PHUB_TRANSPORT_LOOKOUT_H
#define PHUB_TRANSPORT_LOOKOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "transport/etcd.h"
#include "transport/roster.h"

struct lookout {
	/* The owner's, before lookout_step(); not to be moved afterwards: */
	struct etcd *etcd;
	char prefix[ROSTER_PREFIX_BYTES];
	bool watch;
	/* Called with what a key is from now on, while `roster` still has what it was; also for those that are as they
	 * were. May be NULL. */
	void (*changed)(void *arg, const struct roster_item *item);
	void *arg;

	/* To be looked at: */
	struct roster roster;
	bool whole;     /* all that there was when it was looked at is in the roster */
	bool failed;    /* why is in `why`; with `watch` it tries again, and this is false when it has succeeded */
	bool left_out;  /* there was no room for some */
	struct err why; /* of the last failure */

	/* The rest is lookout.c's. */
	struct etcd_call call;
	struct roster listing;
	char from[ETCD_KEY_BYTES + 1];
	int64_t revision;
	bool watches;
	uint64_t retry_ns;
};

/* Does what can be done now. After a failure without `watch`, nothing. */
void lookout_step(struct lookout *l, uint64_t now_ns);
/* When it is due at the latest; else when etcd_fd() is readable. */
uint64_t lookout_next(const struct lookout *l);
/* Steps and sleeps until the roster is whole, a look has failed, or the deadline. Only without `watch`. 0, or a
 * negative errno with the reason in `e`. */
int lookout_wait(struct lookout *l, uint64_t deadline_ns, struct err *e);
/* etcd stays open. */
void lookout_fini(struct lookout *l);

#endif
