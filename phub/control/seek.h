/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks etcd, again and again, where the box above is (uplink: etcd:NAME), the root of that name or the box, and tells
 * above.h; and campaign.h, where this box stands for that root. Part of what announces the
 * box (announce.c), whose etcd it shares. Control thread; nothing blocks.
 */
#ifndef PHUB_CONTROL_SEEK_H
#define PHUB_CONTROL_SEEK_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/control/above.h"
#include "transport/etcd.h"

struct box;
struct campaign;

struct seek {
	struct box *box;
	struct etcd *etcd;
	struct etcd_call call;
	uint64_t due_ns;           /* of the next question */
	const char *self;          /* how this box is announced; "": not yet */
	struct campaign *campaign; /* NULL: it stands for no root */
	uint64_t asked_ns;
	/* By the answer that is being read: */
	bool rooted, known;
	bool strange; /* the root's key is there, and not as a box writes it */
	struct above_place root, place;
	int64_t lease;    /* of the root */
	uint64_t created; /* its key, by this revision */
};

/* `self` and `campaign` outlive it. */
void seek_init(struct seek *s, struct box *box, struct etcd *etcd, const char *self, struct campaign *campaign);
/* After etcd_step(). */
void seek_step(struct seek *s, uint64_t now_ns);
/* When it is due, if etcd does not answer before. */
uint64_t seek_next(const struct seek *s);
void seek_fini(struct seek *s);

#endif
