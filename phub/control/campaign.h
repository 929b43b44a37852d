/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box stands for a root (config->root) in etcd: it has a lease, which it keeps alive, and when nobody is that root it
 * puts the root's key there under it, which one box alone can. The key goes with the lease: when the box has died, or
 * is cut off, another's turn comes; and likewise, when it has the key and cannot have its checkpoint targets, by three
 * times the lease's time. A root whose lease ran out, and that comes to etcd while nobody is the root, goes on if
 * nobody was since, which a key without a lease tells: in the same epoch, as its jobs are held meanwhile, and nothing
 * was committed anywhere. Tells above.h whether this box is the root. Part of what announces the box (announce.c),
 * whose etcd it shares. Control thread; nothing blocks.
 */
#ifndef PHUB_CONTROL_CAMPAIGN_H
#define PHUB_CONTROL_CAMPAIGN_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/etcd.h"

struct above_place;
struct box;

enum campaign_doing {
	CAMPAIGN_NOTHING,
	CAMPAIGN_GRANTING, /* a lease */
	CAMPAIGN_KEEPING,  /* it alive */
	CAMPAIGN_CLAIMING, /* the key */
	CAMPAIGN_REVOKING, /* the lease, and with it the key */
};

struct campaign {
	struct box *box;
	struct etcd *etcd;
	struct etcd_call call;
	enum campaign_doing doing;
	const char *self, *address; /* as the box is announced; "": not yet */
	int64_t lease;              /* 0: there is none */
	uint64_t epoch;             /* this box is the root, or will be with its checkpoints; 0: it is not */
	uint64_t created;           /* then: the revision that made the key, the last time */
	bool lapsed;                /* then: the key is gone with its lease, and is to be ours again before anyone's */
	uint64_t won_ns;            /* since then */
	bool vacant;                /* it was nobody's when it was looked at last */
	uint64_t now_ns, began_ns;  /* the call that is under way, */
	uint64_t lease_began_ns;    /* by the clock of leases (above_lease_now_ns()), */
	uint64_t ttl_ns, until_ns;  /* by which the lease lasts for so long at least */
	uint64_t keep_ns, retry_ns, assume_ns;
	bool told;         /* that it waits for checkpoint targets */
	bool yields;       /* ...which it cannot have: the lease is given back, so that another box has its turn */
	uint64_t claim_ns; /* it does not stand before */
	bool stopping;
};

/* `self` and `address` outlive it. */
void campaign_init(struct campaign *g, struct box *box, struct etcd *etcd, const char *self, const char *address);
/* After etcd_step(). */
void campaign_step(struct campaign *g, uint64_t now_ns);
/* When it is due, if etcd does not answer before. */
uint64_t campaign_next(const struct campaign *g);
/* Etcd was asked then, and the key was there, under this lease, with that box, by this revision; lease 0: it was not.
 */
void campaign_seen(
	struct campaign *g, int64_t lease, const struct above_place *root, uint64_t created, uint64_t asked_ns);
/* Is that its own lease? */
bool campaign_is_its(const struct campaign *g, int64_t lease);
/* The box goes down: the lease is given back. */
void campaign_stop(struct campaign *g);
bool campaign_stopped(const struct campaign *g);
void campaign_fini(struct campaign *g);

#endif
