/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sites in sites: one around another that trains the same weights over tighter links. Each has its own course at its
 * own job; here is what goes from one to the other. The site around has weights of its own, `common`: those that the
 * sites within have in common. They are taken before its rounds, as the one within stands still meanwhile, and given
 * back after them: where a round has changed them, the one within has the new ones, and what it has moved on top.
 *
 * Jobs that resume. One of the two may be lost, as where the box above the racks dies, or both. So whoever waits for
 * one looks after the other, or its rack would wait for it where it waits for the other racks. When both are there
 * again all first come to the same weights within (hello, sync), then around, and only then is what was on its way
 * within gone on with: a site that has landed an exchange which another has lost is one step ahead of it at most, and
 * in its next exchange within, to which the other comes only after that.
 *
 * A rack's box that dies may have sent the result of an exchange across to one site of the rack and not to another. The
 * site with the result then leads the sync within, because its common weights hold that exchange. The common weights of
 * the other site would take the exchange out again (course_summon()).
 *
 * The site's thread; nothing blocks but within_run().
 */
#ifndef PHUB_CLIENT_SCOUT_WITHIN_H
#define PHUB_CLIENT_SCOUT_WITHIN_H

#include <stdint.h>

#include "client/scout/course.h"
#include "phub/base/err.h"

/* May `s`, whose options are settled, be around `within`, which rests? Then it is. 0; -EBUSY, -ENOTSUP as
 * phub_site_open() says, with the reason in `e`. */
int within_open(struct phub_site *s, struct phub_site *within, struct err *e);
/* Whoever of the two goes; memory too. */
void within_close(struct phub_site *s);

/* The tensors and their keys, before course_init(). Again: what is left to do. 0, -ENOMEM, errors of phub_key(). */
int within_name(struct phub_site *s, struct err *e);

/* course_run(), or course_settle(), of one of the two, with an eye on the other, whose loss is returned like its own.
 */
int within_run(struct phub_site *s, struct phub_site *other, bool settles, uint64_t deadline_ns);

/* Without a site within all of these do nothing, or it is 0. */
void within_take(struct phub_site *s);
void within_give(struct phub_site *s);
/* That the one within has said and sent, as papers count. */
uint64_t within_bytes(const struct phub_site *s);
uint64_t within_exchanges(const struct phub_site *s);

#endif
