/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sites in sites: one around another that trains the same weights over tighter links. Each has its own course at its
 * own job; here is what goes from one to the other. The site around has weights of its own, `common`: those that the
 * sites within have in common. They are taken before its rounds, as the one within stands still meanwhile, and given
 * back after them: where a round has changed them, the one within has the new ones, and what it has moved on top.
 *
 * The site's thread; nothing blocks.
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

/* Without a site within all of these do nothing, or it is 0. */
void within_take(struct phub_site *s);
void within_give(struct phub_site *s);
/* That the one within has said and sent, as papers count. */
uint64_t within_bytes(const struct phub_site *s);
uint64_t within_exchanges(const struct phub_site *s);

#endif
