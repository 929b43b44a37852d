/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is above this box: nothing, the box that `uplink` names by its address, or the one that etcd knows by the name
 * in `uplink: etcd:NAME`, wherever that is at the time. Jobs that are below it (parent.h) hear when it changes.
 *
 * Of boxes that stand for a root (config->root) one is it, and is then below nobody. Its epoch is the revision of etcd
 * that made it the root: no two roots of a name have the same one, and each has a greater one than those before it.
 * Who is below a root calls it by its epoch (Hello.root), and no other box answers to that. A root commits no round
 * beyond its lease: while it has not heard for so long that it still holds it, it is in doubt, and its jobs are held
 * (pushes are taken, nothing is committed); when it hears that another is the root they end, with an error that names
 * that one, or that none is; when it hears that it is the root still, they go on. As a job starts with all its ranks
 * alone, all of them have left the one root when it starts at the other, and what that has committed and they have not
 * seen is nobody's.
 *
 * Without etcd there may be several places in `uplink`, or the boxes of the rack file: the first is called until it
 * does not answer, then the next. All but the first answer only where they are the root, which an operator has promoted
 * (promotion.h), of an epoch as high as any that was heard of here: who says Welcome tells it (Welcome.root), and is
 * told the least that is wanted (Hello.least). Epoch 1 is that of a box that nobody promoted.
 *
 * A box above that let us in may have named its sibling (racks): that is called, too, when it does not answer, as its
 * workers do; below which root it is, is its own matter.
 *
 * Control thread; nothing blocks.
 */
#ifndef PHUB_CONTROL_ABOVE_H
#define PHUB_CONTROL_ABOVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/control/config.h"
#include "transport/control.pb-c.h"

struct box_call;
struct call_target;
struct control;
struct job;

/* Where a box is. */
struct above_place {
	char box[CONFIG_NAME_BYTES]; /* its name in etcd; "": it has none */
	struct config_listen at;
	bool tls;
	uint64_t epoch; /* of a root; 0: it stands for none */
};

struct above {
	bool there; /* a box is above this one, */
	bool known; /* and it is known where: */
	struct above_place place;
	uint64_t epoch;         /* of this box, as root; 0: it is none by etcd */
	uint64_t until_ns;      /* then: it is that for so long at least, by above_lease_now_ns() */
	bool assumes;           /* it is to be the root, and wants its checkpoint targets for that */
	uint64_t doubt_ns;      /* then: since when it does not know; 0: it does */
	uint64_t heard_ns;      /* when etcd has said who is the root, or where the box above is; 0: never */
	char why[ERR_TEXT_MAX]; /* why it is not known; "": etcd was not asked yet */

	/* Without etcd: */
	unsigned at;               /* which of the places it may be at `place` is */
	unsigned failed;           /* so many were called in vain, one after the other */
	uint64_t seen;             /* the highest epoch of a root that was heard of; 0: of none */
	struct above_place named;  /* the root, by the checkpoint targets; of epoch 0: they name none */
	char heirs[160];           /* who said in this turn that it may be promoted, "10.0.1.1:7077, " each */
	bool reaches;              /* one of them is with the box above it, which is up */
	char advice[ERR_TEXT_MAX]; /* what an operator may do, by the last turn; "": nothing is known, or to be done */
	struct config_box sibling; /* of the box above, as that has said; host "": it has none, or is root by etcd */
};

/* As the options say: to be called before any job comes. */
void above_init(struct control *c);

/* By the clock that counts leases: it goes on while this machine is suspended, where control's own stands still. */
uint64_t above_lease_now_ns(const struct control *c);

/* First of all in each step: is this box the root still? */
void above_step(struct control *c);
uint64_t above_next(const struct control *c);

/* Etcd says that it is there. Jobs that are not with it yet try it there; the others' connections are good while they
 * last, but if it is another root: then the jobs end here. */
void above_found(struct control *c, const struct above_place *place);
/* It does not say where: what it said before holds. */
void above_missed(struct control *c, const char *why);

/*
 * Etcd says that this box is the root, until then (of the lease's clock) at least. 0: it is; else it is none yet, and
 * this is to be called again: -EAGAIN (a checkpoint target has not answered), -EBUSY, -ENOLCK as targets_take() has
 * them, with a text. Decline: it will not be called again.
 */
int above_assume(struct control *c, uint64_t epoch, uint64_t until_ns, struct err *e);
void above_decline(struct control *c);
/* Likewise, of one that is it: for longer. */
void above_renew(struct control *c, uint64_t until_ns);
/* It may not be any more, for this reason: it is in doubt from now on. One that is none is none. */
void above_doubt(struct control *c, const char *why);
/* It is not any more, for this reason; jobs whose root it was end. `by`: the one that is; NULL: not known. */
void above_depose(struct control *c, const struct above_place *by, const char *why);
bool above_is_root(const struct control *c);
/* The epoch of this box as the root that no box is above of: 1 where nobody promoted it; 0: it is below another. */
uint64_t above_epoch(const struct control *c);
#define ABOVE_DOUBTS "this box may not be the root any more, and lets nobody in until it knows; it is asked again"
/* Is the job held, as its box is in doubt? Nobody is let in then: another root may have gone on with it. */
bool above_holds(const struct job *job);

/* May an operator make it the root (phub promote)? */
bool above_is_promotable(const struct control *c);
/* Is the box above up, as a job here is with it? */
bool above_reaches(const struct control *c);
/* "; `phub promote BOX` makes another box the root, if ..." where jobs were with a root that no etcd decides upon,
 * which may be dead; or "". Returns `out`. */
const char *above_advise(const struct control *c, char *out, size_t bytes);

/* An operator made this box the root, of this epoch: jobs that wait for the one above go on here, others end. */
void above_promote(struct control *c, uint64_t epoch, const char *by);
/* The checkpoint targets say that this box is the root: nobody is here yet. */
void above_begin(struct control *c, uint64_t epoch);
/* They say that another is: it is called first from now on. */
void above_follow(struct control *c, const struct above_place *place);

/* Whom to call: fills what says where, and which epochs are wanted. Returns which of the places it is. */
unsigned above_target(const struct control *c, struct call_target *target);
/* That one says no more than this, before it is known to have failed: who is no root says what is known there. */
void above_hear(struct control *c, unsigned at, const Phub__Error *error);
/* That one cannot be reached, or does not let us in, as *why says. True: it is the next one's turn, at once; else *why
 * is what all of them said, until the next such call. `answered`: it is there, and its sibling no way round it. */
bool above_failed(struct control *c, unsigned at, bool answered, const char **why);
/* Is it the sibling of the box above that is called? */
bool above_at_sibling(const struct control *c);
/* It lets `job` in, and may be a root and name its sibling. 0, or -ESTALE: another one has been the root since. */
int above_welcomed(struct job *job, const struct box_call *call, struct err *e);

/* "the root 'NAME'", or "the root" where etcd does not know it. Returns `out`. */
#define ABOVE_ROOT_BYTES (CONFIG_NAME_BYTES + 16)
const char *above_root_name(const struct control *c, char out[ABOVE_ROOT_BYTES]);

/* "10.0.0.1:7077", or "etcd:NAME" while it is not known where that is. Returns `out`. */
const char *above_name(const struct control *c, char *out, size_t bytes);

/* Where other boxes reach this one, and its name. A leaf, which they do not: a host's own box (hostbox.h), and one that
 * listens on loopback alone where the box above is on another host. */
struct above_own {
	const char *host; /* "": at the address that it calls from */
	uint16_t port;
	const char *name; /* "": none */
	bool leaf;
};
struct above_own above_own(const struct control *c);
/* Likewise, to the box above, for this job. */
void above_tell_address(const struct job *job, Phub__Gather *gather);

#endif
