/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this box has with another one that it calls, for one job: a session (transport/call.h), and data connections
 * from its cores to cores there (phub/uplink.h). The standby (standby.h) and the box above (parent.h) are reached
 * this way. Control thread; nothing blocks.
 */
#ifndef PHUB_CONTROL_CALLS_H
#define PHUB_CONTROL_CALLS_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/control/control.h"
#include "phub/control/names.h"
#include "phub/uplink.h"
#include "transport/call.h"

struct box_uplinks;
struct config_secret;
struct generation;
struct job;
struct optimizer_hyper;
struct table;

/* A session. It may outlive its job until the other box has said Left. */
struct box_call {
	struct box_call *next;  /* of control->calls: those that only wait for Left */
	struct box_call *other; /* of control->calls_open: all */
	struct control *control;
	uint64_t number; /* by which signals of data connections find it (transport.h, carrier); none has 0 */
	struct call_peer *peer;
	const struct outlet *by; /* its connections are made by this one (outlet.h); NULL: it was not welcome yet */
	const char *offer;       /* the other box's name of that: udp and dpdk have the same packets */
	char by_why[160];        /* ...and not by a better one; "": there is none */
	char unmapped[160];      /* why shared memory was tried and does not do; "": it was not, or it does */
	char who[SPEC_NAME_BYTES + NAMES_TEXT_BYTES + 48];
	void (*hear)(void *arg, const Phub__Control *message);
	void *arg;
	struct box_uplinks *uplinks; /* that it carries; NULL: none */
	bool parted;                 /* one of these: nobody hears it any more */
	bool told;                   /* why it will end: what is owed by uplinks may come yet */
	bool left;
	uint64_t until_ns;
	int fd; /* that control's epoll knows */
};

/* Sets out to `target`, whose secret is the job's, whose transport is one of the outlets, and whose hear() and arg are
 * called as it says until box_call_part(). 0, or as call_ops.open() with the reason in `e`. */
int box_call_open(struct control *c, const struct call_target *target, struct box_call **out, struct err *e);
/* As call_ops.step(); what comes wakes control, and what cannot go out is tried again soon. When the other box was lost
 * without a word, its uplinks end, too: not all transports see that by themselves, and cores would wait for answers. */
int box_call_step(struct control *c, struct box_call *call, struct err *e);
/* Is that box on this host, as far as addresses tell? */
bool box_call_is_here(const struct box_call *call);
/* Could that box be reached by this transport, as far as is known before it is tried? 0, or why not. It is welcome. */
int box_call_reaches(const struct box_call *call, struct transport *t, struct err *e);
/* Chooses by what its connections are made, as it is welcome there; once more where that cannot be. */
void box_call_choose(struct box_call *call);
/* The name of the transport that its connections are made by; "": not known yet. NULL is allowed. */
const char *box_call_by(const struct box_call *call);
int box_call_say(struct control *c, struct box_call *call, const Phub__Control *message);
/* Once we are welcome: the epoch of the root that it is; 0: another is above it. */
uint64_t box_call_root(const struct control *c, const struct box_call *call);
/* Likewise: where to go when it has died; NULL: it named nobody. */
const char *box_call_sibling(const struct control *c, const struct box_call *call, uint16_t *port);
/* As many keys of the table as should be unsent now; *said: how many were. 0, -EAGAIN, -ENOMEM. */
int box_call_say_keys(
	struct control *c, struct box_call *call, const struct table *t, uint32_t generation, uint32_t *said);
/* One version. 0, -EAGAIN, -ENOMEM. */
int box_call_say_hyper(struct control *c, struct box_call *call, uint32_t version, const struct optimizer_hyper *groups,
	uint32_t count);
/* Says Leave. The call waits for Left by itself, for a moment. */
void box_call_part(struct control *c, struct box_call *call, Phub__Leave *leave);
/* An error of it, without "box HOST:PORT cannot be reached: ", where that is said before. */
const char *box_call_trim(const char *text);
/* NULL is allowed. */
void box_call_hang_up(struct control *c, struct box_call *call);
/* Signals of data connections that are being made, and those that wait for Left. */
void box_calls_step(struct control *c);
/* The box goes down: they are closed. */
void box_calls_fini(struct control *c);

/* The secret that the job's workers prove here, and that the other box must have, too. */
const struct config_secret *box_call_secret(const struct job *job);

/* ---- data connections ---- */

/* One, from a core here to one there. */
struct box_dial {
	struct uplink_spec spec;
	uint8_t key[PROOF_KEY];
	unsigned core, there; /* cores */
	uint32_t number;      /* of the shard's uplinks */
	struct conn *conn;    /* that is being made, and no core has yet */
	bool up;              /* it is made */
	bool out;             /* a core has it */
	bool broken;          /* it is to be made anew, */
	uint64_t retry_ns;    /* which is tried again then */
	uint64_t broken_ns;   /* it broke then, as all did that were made in its place; 0: not so */
	uint64_t made_ns;     /* the last of these was made */
};

/* Begins to connect; spec.conn is filled in but for key and queue. 0, or -EPROTO (no such core there), -ENOTSUP (no
 * such transport), or as transport_ops.connect() with the reason in `e`. */
int box_dial_begin(struct control *c, const struct box_call *call, struct box_dial *dial, struct err *e);
/* One that is made goes to its core, by this serial. */
void box_dial_give(struct control *c, const struct generation *g, struct box_dial *d, uint64_t serial);
/* 0 when all that were begun are made: then they are with their cores, by this serial. -EAGAIN, or why not. */
int box_dials_give(struct control *c, const struct generation *g, struct box_dial *dials, unsigned count,
	uint64_t serial, struct err *e);
/* Ends them. `leave`: as MAIL_UPLINK_END has it, and also where there is no connection. */
void box_dials_drop(struct control *c, const struct generation *g, struct box_dial *dials, unsigned count,
	uint64_t serial, bool leave);
/* Whose mail this is; NULL: nobody's. */
struct box_dial *box_dials_find(struct box_dial *dials, unsigned count, const struct mail *mail);
bool box_dials_are_out(const struct box_dial *dials, unsigned count);

/* ---- uplinks: all connections of a generation to one other box, by which its chunks are lifted (phub/lift.h) ---- */

/* Our place in its job, as its Start says. */
struct box_place {
	uint32_t job, generation, epoch, window, rank;
};

struct box_uplinks {
	const struct job *job;
	struct box_call *call;  /* that carries them; NULL: none does any more */
	struct box_dial *dials; /* [count] one for each core there */
	unsigned count;
	uint32_t first; /* the spec's way to its core 0 */
	uint64_t serial;
	uint64_t begun_ns; /* they are dialled since then */
	uint64_t ended_ns; /* one of them ended; 0: none has */
	char why[MAIL_TEXT_BYTES + 112];
};

/*
 * Begins to make those of the job's generation, by its ways from `first` on, to `cores` cores there. `whole`: each core
 * there has the same chunks of the job as one core here; else those of its way alone. 0, or why not, in `e`.
 */
int box_uplinks_begin(const struct job *job, struct box_call *call, const struct box_place *place, uint32_t first,
	unsigned cores, bool whole, struct box_uplinks *u, struct err *e);
/* 0 when they are with their cores; -EAGAIN. One that cannot be made counts as one that ended. */
int box_uplinks_give(const struct job *job, struct box_uplinks *u, struct err *e);
/* MAIL_UPLINK_ENDED: false when it is not about these. */
bool box_uplinks_hear(const struct job *job, struct box_uplinks *u, const struct mail *mail);
/* The other box says that the connection to this core of it broke. */
void box_uplinks_hear_broken(const struct job *job, const struct box_uplinks *u, uint32_t core);
/*
 * To be called again and again, as long as the session lives: connections that broke are made anew, where their
 * transport can, for lost_ms at most from the first break on: another one counts only when it has brought a result, or
 * held for as long as it takes to give up one that is made. One ended for good, and nothing has explained it in time:
 * -ECONNRESET with what is known in `e`. Else 0.
 */
int box_uplinks_check(struct job *job, struct box_uplinks *u, struct err *e);
/* Has a core the connection of this way, and told no end of it? */
bool box_uplinks_carry(const struct box_uplinks *u, uint32_t way);
/* Bytes of payload sent; results that came. */
uint64_t box_uplinks_bytes(const struct job *job, const struct box_uplinks *u);
uint64_t box_uplinks_results(const struct job *job, const struct box_uplinks *u);
/* Nobody is at their other end any more: they end. */
void box_uplinks_cut(struct box_uplinks *u);
/* No shard of theirs is with a core. They can be begun anew. */
void box_uplinks_forget(struct box_uplinks *u);

#endif
