/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mail between the control thread and the cores: the only way control reaches a core. A core reads its
 * mail at tick, and never waits for any. Bounded; the sender keeps what did not fit.
 */
#ifndef PHUB_MAILBOX_H
#define PHUB_MAILBOX_H

#include <stdint.h>

#include "phub/base/ring.h"
#include "transport/proof.h"
#include "transport/wire.h"

#define MAIL_RANK_WORDS (WIRE_WORLD_MAX / 64)
#define MAIL_TEXT_BYTES 128

struct conn;
struct conn_spec;
struct hyper_table;
struct members;
struct queue;
struct rehome;
struct shard;
struct snapshot;
struct uplink_spec;

enum mail_kind {
	/* Control -> core. */
	MAIL_ATTACH, /* `shard` is the core's from now on */
	/* Send `shard` back with MAIL_DETACHED. Nothing more is committed; results of rounds that are still go out for
	 * `value` nanoseconds at most (`detail` 1: as long as one goes out in each such time), then its links end. A
	 * second one may shorten that. */
	MAIL_DETACH,
	/* `rank` is reached through `conn`, the `detail`th it has there: for the core's queue number `value`, with
	   `spec` */
	MAIL_LINK,
	MAIL_UNLINK, /* rank `rank` of `shard` is gone: drop its connection */
	MAIL_HYPER,  /* `table` for `shard`: copied, then sent back with MAIL_HYPER_TAKEN */
	/* The membership of `shard` changes as `members` says: phub/members.h. Answered by MAIL_HELD and MAIL_WENT. */
	MAIL_HOLD,
	MAIL_GO,
	MAIL_ROUNDS,   /* write the round that each chunk collects into `snapshot`, then send MAIL_SNAPPED */
	MAIL_SNAPSHOT, /* copy `shard` into `snapshot` (phub/snapshot.h), then send MAIL_SNAPPED; NULL: give it up */
	MAIL_WHO,      /* who is missing from `round` of `chunk`? Answered by MAIL_MISSING with the same `detail` */
	MAIL_PAUSE,    /* `value` 1: `shard` commits nothing any more; 0: it goes on */
	/* `conn`, the `detail`th of uplink number `rank` of `shard`, leads to a core of another box (phub/uplink.h);
	   with `uplink` */
	MAIL_UPLINK,
	/* The `detail`th connection of that uplink is to end, if it is there still (`broken`: the other end says that
	   it broke). `value` 1: the standby goes on with the job. Whatever connection there is ends, nothing is
	   committed any more, and who waits is answered there. */
	MAIL_UPLINK_END,
	/* `shard`, which has stopped, is laid out anew after `rehome` (phub/rehome.h). Answered by MAIL_REHOMED. NULL:
	 * it goes on, and forgets where it stopped. */
	MAIL_REHOME,
	MAIL_STOP, /* leave core_run() when all shards are detached */
	/* Core -> control. `core` says which. */
	MAIL_DETACHED, /* `shard` is the control thread's again; nothing of the core refers to it */
	/* `conn` is the control thread's again: `value` says why it was not adopted; -EBUSY: not yet, send it again. */
	MAIL_LINK_REFUSED,
	/*
	 * The connection of `rank` (the `detail`th) ended; `value` is the negative errno or 0, `text` what the
	 * transport said, or "". `broken`: the way failed, its worker may connect anew.
	 */
	MAIL_LINK_CLOSED,
	MAIL_HYPER_TAKEN, /* `table` is the control thread's again; value: 0, or why it was not taken */
	MAIL_HELD,
	MAIL_WENT, /* nothing of the core refers to `members` any more */
	/* Nothing of the core refers to `snapshot` any more. `value`: 0, or -ESTALE (too late), -ECANCELED. */
	MAIL_SNAPPED,
	MAIL_UPLINK_WHOLE, /* by its `detail`th connection all of `shard` is at the standby */
	/* That connection has ended: `value` is the negative errno or 0, `text` what the transport said, or "". `conn`,
	   unless NULL, was not taken, and is control's again. `broken`: another may be made in its place. `answered`: a
	   result came by it. */
	MAIL_UPLINK_ENDED,
	MAIL_DRAINED, /* `shard` has committed all that it was to (members.drain) */
	MAIL_REHOMED, /* nothing of the core refers to what it had before, or, with `rehome` NULL, to members.from */
	MAIL_FAILED, /* the job cannot go on: `value` is enum shard_failure, about `rank`, `chunk`, `round`, `detail` */
	/* The oldest open round: `chunk`, `round`; `missing`: a bit for each rank; `value`: how many. -1: the one that
	 * was told last is committed. */
	MAIL_STALLED,
	MAIL_MISSING, /* likewise, of what MAIL_WHO named; `value` -1: that round is committed */
};

struct mail {
	enum mail_kind kind;
	uint32_t core;
	struct shard *shard;
	uint32_t job, generation; /* of the shard, so that mail about a job that is gone can be told */
	struct conn *conn;
	const struct conn_spec *spec; /* outlives the connection */
	struct hyper_table *table;
	struct members *members;
	struct snapshot *snapshot;
	struct rehome *rehome;
	const struct uplink_spec *uplink;
	uint32_t rank;
	uint32_t chunk; /* index in the job's plan */
	uint64_t round;
	int64_t value;
	uint64_t detail;
	bool broken;
	bool answered;
	bool sealed; /* MAIL_LINK: what goes over it is encrypted, and pushes with `key` */
	union {
		uint64_t missing[MAIL_RANK_WORDS]; /* rank r: bit r % 64 of word r / 64 */
		char text[MAIL_TEXT_BYTES];
		uint8_t key[PROOF_KEY];
	};
};

/*
 * Many writers, one reader. The eventfd wakes a reader that sleeps; a reader that polls never touches it.
 */
struct mailbox;

/* Control thread. `count_max` is rounded up to a power of two. 0 or a negative errno. */
int mailbox_create(unsigned count_max, struct mailbox **out);
void mailbox_destroy(struct mailbox *m);

/* Any thread. 0, or -EAGAIN when the box is full: nothing was sent. Wakes the reader if it sleeps. */
int mailbox_send(struct mailbox *m, const struct mail *mail);

/* The reader. 0 with the oldest mail, or -EAGAIN. */
int mailbox_receive(struct mailbox *m, struct mail *mail);

/* The reader, before it sleeps: the eventfd to wait on, or -EAGAIN when there is mail. */
int mailbox_arm(struct mailbox *m);
/* The reader, after it woke. */
void mailbox_disarm(struct mailbox *m);

#endif
