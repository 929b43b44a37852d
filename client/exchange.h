/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds of keys: a push is placed into its chunks, sent over their lanes, and answered by results that are brought to
 * where the caller wants them. Lives from phub_start() to phub_rekey() or the end of the session. Under the handle's
 * lock; allocates while it is set up, and the arena when something is first copied into it or given away.
 */
#ifndef PHUB_CLIENT_EXCHANGE_H
#define PHUB_CLIENT_EXCHANGE_H

#include <stdbool.h>
#include <stdint.h>

#include "client/coded.h"
#include "client/device.h"
#include "client/keyring.h"
#include "client/lane.h"
#include "client/phub.h"
#include "client/ranges.h"
#include "client/sealed.h"
#include "client/session.h"
#include "phub/base/err.h"
#include "transport/transport.h"

struct exchange {
	struct keyring *keyring;
	const struct client_env *env; /* for its clock */
	struct transport *transport;  /* until exchange_fini(): what it has mapped may be in the caller's hands */
	const struct client_session *session;
	const char *address; /* of the box's data connections */
	struct lane_group group;
	struct lane *lanes; /* [lane_count] one per core that owns chunks of the job */
	uint32_t lane_count;
	uint32_t connecting; /* lanes that are not up yet */
	uint32_t broken;     /* lanes whose connections are made anew */
	uint64_t breaks, reconnects;
	bool moved;             /* to another box: connections are made while the exchange runs */
	struct flight *flights; /* [plan.chunk_count] */
	uint64_t claims;        /* counts the times that the ends of all rounds so far were asked for; begins with 1 */
	bool optimizer;         /* round 0 is the first weights */
	bool quorum;            /* results may be of later rounds */
	bool arena_known, results_known; /* to the transport: struct keyring's */
	bool mapped;                     /* the transport maps memory of the box: payloads lie there and nowhere else */
	bool encrypted;                  /* what leaves the host: then it is not mapped, and goes through `sealed` */
	struct sealed sealed;
	struct coded coded; /* where keys are sparse */
	uint64_t result_offset;
	uint32_t hyper;         /* version of the hyper-parameters that new rounds want */
	uint32_t open_keys;     /* keys with a round in flight */
	uint32_t unpolled;      /* chunks that were completed since progress() was last made */
	bool backlog;           /* pushes may be waiting that could not be sent yet, or copies from or to a GPU run */
	uint64_t sent_ns;       /* when the last chunk was complete and went to its lane */
	bool given_up;          /* leaving: results go nowhere */
	struct devices devices; /* GPUs that rounds have met */
	uint64_t look_ns;       /* when to look again for the end of copies that run there */
	struct err failure;     /* code 0: none. What broke and ends the session. */
	uint64_t lost_ns;       /* since when a lane is lost or finished; 0: none is */
	const char *who;        /* "job demo rank 0" */

	uint64_t copied_bytes, pulled_bytes, results, coded_results, rounds, dropped;
};

/* What a round is begun with. */
struct exchange_round {
	uint32_t key;
	enum wire_type type;
	const void *src;         /* NULL for WIRE_PULL */
	void *dst;               /* or NULL */
	struct range *src_range; /* that holds src or dst, or NULL: memory to be copied */
	struct range *dst_range;
	struct device *src_device; /* that src or dst is memory of, or NULL */
	struct device *dst_device;
	int priority;
};

/*
 * Takes a start of the box: plans lanes, opens the transport, begins to connect. `session` and `address` outlive `x`.
 * On error all is as before but for `x`, which exchange_fini() frees. 0, -EPROTO (a placement that cannot be), -ENOMEM,
 * or the transport's.
 */
int exchange_init(struct exchange *x, struct keyring *keyring, struct client_session *session,
	const struct transport_ops *ops, const char *address, struct err *e);

/*
 * Moves the handshakes on. Those on which the box hung up are begun anew for a while, for too many may have come at
 * once; so are those that it does not answer. 0 when all lanes are up, -EAGAIN, or why it cannot be: -ETIMEDOUT, no
 * answer.
 */
int exchange_establish(struct exchange *x, uint32_t window, uint64_t now_ns, struct err *e);
/* When it has something to do at the latest. */
uint64_t exchange_establish_due(const struct exchange *x);

/*
 * Established, in a job without optimizer that ran: some chunks may still be in the round before the first that
 * this worker takes part in. Asks for that round's results, and so waits for its end. 0, -ENOMEM, or the transport's.
 */
int exchange_catch_up(struct exchange *x, struct err *e);

/*
 * The connection broke, as `why` says: it is dropped, and made anew by exchange_mend(). False when it has to be given
 * up: the transport cannot do that, or it was tried for as long as the box waits for it.
 */
bool exchange_break(struct exchange *x, struct lane *lane, int error, const char *why, uint64_t now_ns);

/* The membership has changed, and all cores of the box know: lane_raise() for those that have not said so themselves.
 */
void exchange_raise(struct exchange *x, uint32_t epoch);

/* The box's end of the connection to this core broke. */
void exchange_broken_there(struct exchange *x, uint32_t core, const char *why, uint64_t now_ns);

/* Makes connections that broke anew. Returns how many steps that took. */
unsigned exchange_mend(struct exchange *x, uint64_t now_ns);

/* When it has something to do by itself; UINT64_MAX: never. */
uint64_t exchange_mend_due(const struct exchange *x);

/*
 * The box is lost: drops all connections. Rounds that are in flight, and those that are begun now, wait for
 * exchange_move(), with payloads and sinks where they are.
 */
void exchange_rest(struct exchange *x);

/*
 * After exchange_rest(): the session has come to another box, which goes on with the job, and whose data connections
 * are at `address` now. They are made by exchange_mend(); what is not answered is pushed again. -EPROTO, and nothing
 * has changed: that box has placed chunks on other cores, or collects rounds that do not follow on those of here.
 */
int exchange_move(struct exchange *x, uint64_t now_ns, struct err *e);

/* The connection is gone for good: the lane is lost. */
void exchange_lose(struct exchange *x, struct lane *lane, int error, const char *why, uint64_t now_ns);

/* After a lane's connection was dropped: rounds that were over but for what it still read. */
void exchange_settle_lane(struct exchange *x, struct lane *lane);

/* May a round of this kind of the key begin now? 0, -EBUSY, -ENODATA, -EINVAL. */
int exchange_check(const struct exchange *x, const struct exchange_round *r, struct err *e);

/* Begins it, and sends at once what may go. What is copied is copied before the return, or when it is sent. -ENOMEM:
 * nothing has begun. */
int exchange_begin(struct exchange *x, const struct exchange_round *r, struct err *e);

/* Receives, sends, repeats. Returns events handled and messages sent. */
unsigned exchange_progress(struct exchange *x, uint64_t now_ns);

/* When progress() has something to do by itself; UINT64_MAX: never. */
uint64_t exchange_due(const struct exchange *x);

/* May a result still come that a key waits for, is one on its way to a GPU, or its push not yet known to be read? */
bool exchange_awaits(const struct exchange *x);

/* The library's memory for the key's pushes and results, from now on kept apart. 0, -EBUSY (in flight) or -ENOMEM. */
int exchange_give(struct exchange *x, uint32_t key, void **push, const void **result, struct err *e);

/* Copies the key's last result, which `landed`, to dst, memory of `device` or, NULL, the host's. 0 or -EIO. */
int exchange_copy_result(struct exchange *x, uint32_t key, void *dst, struct device *device, struct err *e);

/* Where the library's own copies of a chunk's push and of its result lie, less its offset. */
static inline uint8_t *exchange_push_base(const struct exchange *x, const struct flight *f)
{
	return x->mapped ? f->lane->push : x->keyring->arena;
}

static inline const uint8_t *exchange_result_base(const struct exchange *x, const struct flight *f)
{
	if (x->mapped)
		return f->lane->result + x->result_offset;
	return f->apart ? x->keyring->results : x->keyring->arena;
}

/* The library's own memory, registered where the transport wants that: 0, or its error. *known: it is. */
int exchange_register(struct exchange *x, uint8_t *memory, bool *known, struct err *e);

/* Copies and counts, past the caches where much is exchanged. */
void exchange_copy(struct exchange *x, uint8_t *to, const uint8_t *from, uint64_t bytes);

/* Has the key a round in flight? */
bool exchange_is_open(const struct exchange *x, const struct key *key);

/* Is its last round done, and nobody has asked for its end yet? */
bool exchange_is_unclaimed(const struct exchange *x, const struct key *key);

/* The key's round in flight will never be done. */
void exchange_give_up_key(struct exchange *x, struct key *key);

/* Results are wanted no more and nothing more is sent; the connections stay up. */
void exchange_give_up(struct exchange *x);

/* No round is in flight and the library's memory will go: GPUs are to know of it no more. */
void exchange_unpin(struct exchange *x);

/* Ends all connections: nothing touches any memory of the caller's any more. All keys are idle. */
void exchange_drop(struct exchange *x);

/*
 * As exchange_fini(), but memory from exchange_give() stays until the returned transport, which is the caller's, is
 * closed; NULL: there is none.
 */
struct transport *exchange_detach(struct exchange *x);
/* After exchange_drop(), or when exchange_init() failed. Memory from exchange_give() is gone. */
void exchange_fini(struct exchange *x);

#endif
