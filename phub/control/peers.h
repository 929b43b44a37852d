/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes that exchange (`hierarchy: sharded` or `chain`): rather than lift all to one root, the top box and those right
 * below it each are the home of some chunks (topology/ways.h), and lift the others' to them:
 *
 *      the top box     knows at the start who takes part; chooses the homes' rates and the cores, and says so in Start
 *      each box        comes to the same homes by itself, has a place for each box that lifts to it (behind those of
 *                      boxes below), and waits there for such chunks alone
 *      each pair       has a session where one lifts to the other, by the one that lifts; to the top box that is the
 *                      one it has anyway (parent.h). What follows Start there is as with a box above
 *
 * Ranks, key tables, barriers and hyper-parameters go through the top box, as in a tree; that says, too, when all have
 * named a version, for no home may step by one before. A box that is lost ends the job, at all. Control thread; nothing
 * blocks.
 */
#ifndef PHUB_CONTROL_PEERS_H
#define PHUB_CONTROL_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/control/calls.h"
#include "phub/control/config.h"
#include "phub/mailbox.h"
#include "topology/ways.h"
#include "transport/control.pb-c.h"

struct job;
struct session;
struct spec;

struct peers_move;
struct peers_outcome;

enum peer_state { PEER_DIALLING, PEER_WAITING, PEER_CONNECTING, PEER_LIFTING };

/* One of the others, or this box. */
struct peer {
	struct peers *all;
	char host[CONFIG_HOST_BYTES];
	uint16_t port;
	bool tls;
	char address[CONFIG_HOST_BYTES + 16]; /* "host:port"; "" of the top box, which this is */
	char name[NAMES_TEXT_BYTES + 4];      /* "box 'B' at host:port" (names.h) */
	uint32_t slot;                        /* the member by which it lifts to us; JOB_AT_OTHER: it does not */
	struct session *session;              /* by which it says so; NULL: not yet, or it is below us */
	uint32_t told;                        /* the generation that it was told of */
	bool left;                            /* it is done with the job */
	uint64_t results;                     /* that it had sent by uplinks when it was last heard of by them... */
	uint64_t results_ns;                  /* ...after it left; 0: that was not looked at */
	bool dropped;                         /* its session ended without a word: lost_ns */
	/* We lift to it: */
	bool target;
	uint32_t first; /* the way to its core 0 */
	enum peer_state state;
	struct box_call *call;  /* NULL: there is none; that of the box above is the parent's */
	struct box_place place; /* generation 0: it has not said any */
	struct box_uplinks uplinks;
	uint64_t retry_ns, backoff_ns;
	uint64_t since_ns;   /* it is tried, in this generation, */
	uint64_t dialled_ns; /* the last time */
	uint64_t lost_ns;    /* 0: it is not */
	char why[ERR_TEXT_MAX];
	uint32_t code; /* of its Error; 0: it said none */
	int32_t rank;
};

struct peers {
	struct job *job;
	enum ways_kind kind;
	unsigned self, count, cores;
	uint64_t number;
	uint32_t homes; /* CRC that the top box has said; 0: this is it */
	uint16_t *home; /* [plan.chunk_count] */
	uint16_t *ways; /* [plan.chunk_count] */
	struct ways_box *boxes;
	struct peers_move *move;       /* homes are to be others (peers_move.h); NULL: they are not */
	uint32_t moves;                /* how often they were to be, so far */
	struct peers_outcome *outcome; /* of the last time; NULL: there was none, or this is not the top box */
	struct peer each[];
};

static inline bool peers_is_top(const struct peers *p)
{
	return p->self == 0;
}

/* Has this box a part in each round of the chunk: as its home, or with a sum that it lifts? */
static inline bool peers_take_part(const struct peers *p, unsigned number, uint32_t chunk)
{
	return ways_has_sum(p->kind, p->boxes, p->count, p->home[chunk], number);
}

/* Which it lifts to, whatever chunk it is about; chain: one of them. */
static inline bool peers_is_target(const struct peers *p, unsigned number)
{
	return number != p->self && (p->kind == WAYS_SHARDED || number == (p->self + 1) % p->count);
}

/* Does this one lift anything to us? */
static inline bool peers_is_source(const struct peers *p, unsigned number)
{
	return number != p->self && (p->kind == WAYS_SHARDED || (number + 1) % p->count == p->self);
}

/* One of them, for `phub jobs`. */
struct peers_report {
	const char *box;         /* host:port; "": the top box, which this is */
	const char *name;        /* in the rack file; "": none */
	const char *state;       /* here, dialling, waiting, connecting, lifting or left; "": nothing is lifted to it */
	const char *why;         /* the last try to reach it failed; "": it did not */
	const char *by, *by_why; /* as in parent_report */
	uint64_t bytes;          /* lifted to it, in this generation */
	bool lifts;              /* it lifts to this one */
	uint32_t homes;          /* chunks that end there... */
	uint64_t home_bytes;     /* ...and their bytes */
};

/* ---- peers_plan.c: who takes part, and what goes where ---- */

/* The top box, before the first generation: who takes part? Where there is nobody below, or the hierarchy is a tree,
 * job->peers stays NULL. 0, or why not, in `e`. */
int peers_found(struct job *job, struct err *e);
/* Another: what the top box says in its first Start. 0, or -EPROTO, -ENOMEM. */
int peers_join(struct job *job, const Phub__Exchange *said, struct err *e);
/* What Start says to this box below, into `start`; it lasts until peers_say_forget(). No memory: -ENOMEM. */
int peers_say(const struct job *job, uint32_t member, Phub__Start *start);
void peers_say_forget(Phub__Start *start);
/* The box above has started this generation, and its chunks are on these cores. 0, or -EPROTO, -ENOMEM. */
int peers_take_cores(struct job *job, const uint8_t *cores, size_t count, struct err *e);

/* ---- peers_choose.c: by the rack file ---- */

/* The top box, of a job that starts: would it have checkpoints here, which only a tree has? */
bool peers_loses_checkpoints(const struct job *job);
/* The top box, of a job that starts at `count` boxes, this one among them: which way has the shortest rounds? A tree
 * where others would cost it its checkpoints. Says so in the log and in job->hierarchy_why. 0, or -ENOMEM, or what is
 * wrong with the table, in `e`. */
int peers_choose(struct job *job, unsigned count, enum ways_kind *kind, struct err *e);
/* The top box: what its boxes are given homes by, as the rack file has it now. Chunks keep their homes. */
void peers_take_rates(struct peers *p);

/* ---- peers_plan.c, on ---- */

/* Homes and ways of a plan that was made: fills job->placement and the spec's ways, which last until the next
 * generation is placed, or the job's end. 0, -EPROTO (others chose otherwise), -ENOMEM. */
int peers_place(struct job *job, struct spec *spec, struct err *e);
/* Shards that no core has yet: each chunk waits for those that lift it. False: no memory. */
bool peers_await(const struct job *job);
/* Homes of its generation's chunks by the rates that are known now, from those that they have, into home[] and ways[].
 * 0, -ENOMEM. */
int peers_plan_homes(const struct job *job, uint16_t *home, uint16_t *ways, struct err *e);

/* ---- peers.c: sessions and uplinks ---- */

/* The session that we have with this one, to say something by; NULL: there is none, or it does not lift yet. */
struct box_call *peers_call(const struct job *job, unsigned number);

/* The shards are with the cores: uplinks are made. */
void peers_connect(struct job *job);

/* A box comes that lifts to this one. 0, or a negative errno after refusing it. */
int peers_admit(struct session *s);
/* What it says. */
void peers_hear(struct session *s, const Phub__Control *message);
/* "box host:port". */
const char *peers_session_name(const struct session *s);
/* By which its session is told of a connection of it; NULL: it has none. */
struct session *peers_find_session(const struct job *job, uint32_t member);
/* Its session is gone. It no longer belongs to the job. */
void peers_lost(struct session *s, const char *why);

/* Those to the box above: of one that exchanges its own, else `mine`. */
const struct box_uplinks *peers_uplinks(const struct job *job, const struct box_uplinks *mine);
/* MAIL_UPLINK_ENDED: false when it is not of these. */
bool peers_mail(struct job *job, const struct mail *mail);
/* Moves all of the job on. */
void peers_step(struct job *job);
/* What stands in a notice goes to those that lift to this one, too. */
void peers_pass(struct job *job, const Phub__Control *control);
/* The job fails: they hear why. */
void peers_fail(struct job *job, Phub__ErrorCode code, int rank, const char *text);
/* The job is over here. */
void peers_end(struct job *job);
/* No shard is with a core any more: frees it. A job without is allowed. */
void peers_forget(struct job *job);

/* Is the top box another, which has to agree to versions of the hyper-parameters? */
bool peers_ask(const struct job *job);
/* Does this rank, which is not here, come by this box, as do all of a chain's? */
bool peers_stand_for(const struct job *job, uint32_t member, uint32_t rank);
/* At the top box: of which of them a rank is; 0: of the top box, or of a host's own box below that. */
unsigned peers_box_of(const struct peers *p, uint32_t rank);
/* Does this box below the top box take part in exchanges? Not one that no other can call. */
bool peers_may_take(const struct job *job, uint32_t member);
/* Without this member: has the box still somebody of its own in the job, whose pushes it lifts? */
bool peers_have_own(const struct job *job, uint32_t but);
/* "box 10.0.2.1:7077", to which this chunk's sums go, or NULL. */
const char *peers_next(const struct job *job, uint32_t chunk);
/*
 * Has it left, and owes this box nothing any more? Leave overtakes results, which a slow link may bring long after it:
 * so not while the uplink of the chunk is there, over which they come, unless nothing at all does for so long that that
 * box must be gone.
 */
bool peers_next_is_done(const struct job *job, uint32_t chunk);
unsigned peers_count(const struct job *job);
/* One of them, by its number, of which the first is the top box. */
void peers_describe(const struct job *job, unsigned number, struct peers_report *out);

#endif
