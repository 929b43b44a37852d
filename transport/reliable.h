/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages over datagrams that get lost, doubled, reordered and damaged: each fragment of a message is delivered
 * exactly once, and each message is completed. One `struct reliable` for each queue. It does no I/O and reads no clock:
 * who has the socket or the network card (datagram.c) gives it what came, and asks it what to send. Owner of the queue;
 * nothing blocks, allocates (but for *_create) or logs.
 *
 *      reliable_input()  a datagram that came ---> at most one message event
 *      reliable_report() what else that, or the time, has brought: EVENT_SENT, EVENT_WRITABLE, EVENT_CLOSED
 *      reliable_send()   a message to be sent
 *      reliable_next()   the next datagram to put on the wire: an answer, what was lost, what is new
 *      reliable_tick()   once for each poll; reliable_due() says when at the latest
 *
 * What is lost is found as QUIC does it (RFC 9002): each transmission has a number of its own, acknowledgements name
 * numbers, and a connection's list of what is out is in the order of sending, so that nobody has a timer for each
 * datagram: what was sent well before something that came is lost, and when nothing comes at all, its oldest end is
 * sent again. A message also says which of the peer's about its chunk came before (wire.h, answers): so EVENT_SENT is
 * there before what the peer sent about the chunk when it had the payload, whatever acknowledgements are lost. A late
 * fragment of a message that is over is acknowledged and does nothing else; and a result that was not seen is sent
 * again from where it lies.
 *
 * Messages come in any order, but WIRE_CREDIT at a worker after all that was sent before it.
 *
 * How much is out: no more than the peer grants, which shares the room it has among those who use it (credits against
 * incast: a box's workers all send at once), and no more than the loss on the way allows: after a round trip with loss
 * an eighth less, then fast back to where it was and slowly beyond, so that loss of one datagram in a hundred, which is
 * damage and no congestion, costs little, and a small buffer on the way is not filled over and over.
 */
#ifndef PHUB_TRANSPORT_RELIABLE_H
#define PHUB_TRANSPORT_RELIABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/list.h"
#include "transport/seal.h"
#include "transport/transport.h"
#include "transport/wire.h"

struct reliable;
struct reliable_conn;
struct reliable_outgoing;

enum {
	RELIABLE_MESSAGES_MAX = 64,   /* of a connection and direction that are not complete */
	RELIABLE_FLIGHT_MAX = 1024,   /* datagrams of a connection that are out */
	RELIABLE_FRAGMENT_MIN = 1088, /* bytes: what a datagram over IPv6 in the smallest allowed MTU, 1280, carries */
};

/* Why a datagram was dropped; each has its counter. */
enum reliable_drop {
	RELIABLE_RUNT,     /* too short or too long for its kind */
	RELIABLE_FOREIGN,  /* another version, an unknown kind: not ours */
	RELIABLE_STRANGER, /* of no connection here: another queue's port, another job that is over, or nobody's */
	RELIABLE_FORGED,   /* its seal is wrong: damaged, or somebody else's */
	RELIABLE_HEADER,   /* its message's header is none, or names another job, rank or length than it may */
	RELIABLE_PLACE,    /* not a fragment as they are cut: it overlaps others, or lies outside */
	RELIABLE_WINDOW,   /* of a message beyond those that may be open */
	RELIABLE_REPEAT,   /* came before: acknowledged again */
	RELIABLE_ACK_BAD,  /* acknowledges what was never sent */
	RELIABLE_DROPS,
};

struct reliable_counters {         /* read by others with relaxed loads */
	uint64_t sent, sent_bytes; /* datagrams, all kinds; bytes of UDP payload */
	uint64_t came, came_bytes; /* that were not dropped, but for repeats */
	uint64_t resent;           /* fragments that were sent again */
	uint64_t lost;             /* among them, those that were found lost; the others were sent in doubt */
	uint64_t acks;             /* sent */
	uint64_t dropped[RELIABLE_DROPS];
};

struct reliable_config {
	uint32_t conns_max;
	uint64_t room_bytes;     /* of datagrams that may be on their way here, from all peers together */
	uint32_t send_bytes_max; /* as in transport_config; 0: none but the number of messages */
	bool is_box;
};

struct reliable_conn_config {
	struct conn *conn;    /* that its events name */
	uint32_t here, there; /* the connection's name in datagrams that come and that go */
	const struct conn_spec *spec;
	struct seal *seal_here, *seal_there; /* of what comes and of what goes; the connection's from now on */
	uint32_t datagram_max;               /* bytes of the largest that is sent or tried */
};

/* 0 or -ENOMEM. */
int reliable_create(const struct reliable_config *config, struct reliable **out);
/* It has no connections. */
void reliable_destroy(struct reliable *r);

/* Memory for a connection. Any thread; may allocate. 0, -ENOMEM; or -EINVAL: the spec cannot be served. */
int reliable_conn_create(
	const struct reliable_config *config, const struct reliable_conn_config *conn, struct reliable_conn **out);
/* It is in no queue. NULL: nothing. */
void reliable_conn_destroy(struct reliable_conn *c);

/* The queue takes the connection. 0; -ENOSPC; or -EEXIST: its name here is taken. */
int reliable_add(struct reliable *r, struct reliable_conn *c);
/* The queue forgets it, with all that is on its way. */
void reliable_remove(struct reliable *r, struct reliable_conn *c);
/* Is a datagram of it still read by a device? (reliable_outgoing.message) */
bool reliable_is_read(const struct reliable_conn *c);

/* Bytes of a payload in one datagram; 0: not known yet, and nothing of a message is sent before. */
uint32_t reliable_fragment(const struct reliable_conn *c);
/* What fits into datagrams of so many bytes: a multiple of TRANSPORT_PART_ALIGN, or 0. Pure. */
uint32_t reliable_fragment_for(uint32_t datagram_bytes);

/*
 * Worker, before anything is sent: asks whether datagrams of `bytes` come through, `fragment` 0; or, once more with
 * what was decided, tells it; reliable_next() has the probe. `reliable_probed` is the largest that came back: with
 * `decided`, from a probe that told it. `alone`: no datagram between the two is to be a piece of a larger one.
 */
void reliable_probe(struct reliable *r, struct reliable_conn *c, uint32_t bytes, uint32_t fragment, bool alone);
uint32_t reliable_probed(const struct reliable_conn *c, bool decided);

/*
 * Box, right after RELIABLE_HELLO: the probe's `way` (wire.h), by which the owner judges whether the peer receives
 * where that probe came from. If it does, reliable_greet(): what the probe says counts, and it is answered in its turn.
 * Else reliable_ask_back() has the one datagram that may go there, at once; it fills all of `out` but `head`. Either
 * takes the `way` of where the answer goes.
 */
uint64_t reliable_way(const struct reliable_conn *c);
void reliable_greet(struct reliable *r, struct reliable_conn *c, uint64_t way);
void reliable_ask_back(
	struct reliable *r, struct reliable_conn *c, uint64_t now_ns, uint64_t way, struct reliable_outgoing *out);

/* From now on reliable_probed() is of probes that come back from now on. */
void reliable_probe_anew(struct reliable_conn *c);
/* When something of the peer's came last, its seal right; 0: never. */
uint64_t reliable_heard(const struct reliable_conn *c);

/*
 * queue_ops.send(): 0; -EAGAIN; -EPIPE: it is closed; -EINVAL: a worker's seq is not the next one, or a chunk or length
 * that the spec does not know.
 */
int reliable_send(struct reliable *r, struct reliable_conn *c, const struct wire_header *header, const void *payload,
	void *cookie);

/* A datagram to be sent. */
struct reliable_outgoing {
	struct reliable_conn *conn;
	struct conn *to;
	uint8_t *head; /* room for RELIABLE_HEAD_BYTES, given; sealed */
	uint32_t head_bytes;
	const void *rest; /* DATA: the fragment, where the owner's payload lies; PROBE: zeros */
	uint32_t rest_bytes;
	bool alone; /* not to be handed over as a piece of what somebody else cuts: that way does not take it */
	/*
	 * DATA: whose payload `rest` is. Who lets a device read it after reliable_next()'s caller is done with it
	 * counts that, reliable_hold(), and says when it is over, reliable_let(). What it reads of a message that has
	 * come is a repetition, which nobody takes, whatever is in it by then; so a box's SENT does not wait for that,
	 * whose results stay where they are. A worker's does: the memory is somebody's.
	 */
	struct reliable_message *message;
};
#define RELIABLE_HEAD_BYTES WIRE_DATA_BYTES

/* Whose turn is it to send? NULL: there is nothing to be sent now. */
struct conn *reliable_turn(struct reliable *r);
/* Right after reliable_turn() has named somebody: others first. */
void reliable_pass(struct reliable *r);
/* Right after reliable_turn() has named somebody: its datagram. Fills all of `out` but `head`; counts as sent. */
void reliable_next(struct reliable *r, uint64_t now_ns, struct reliable_outgoing *out);
/* Is it not known yet that the message has come which `head`, that of a DATA that was sent, is of? */
bool reliable_awaits(const struct reliable_message *m, const uint8_t *head);
/* What it was sent with. */
void *reliable_cookie(const struct reliable_message *m);
void reliable_hold(struct reliable_message *m);
void reliable_let(struct reliable *r, struct reliable_message *m);
/* The last datagram of a connection that is about to be removed: says so to the peer. */
void reliable_farewell(struct reliable *r, struct reliable_conn *c, struct reliable_outgoing *out);

enum reliable_took {
	RELIABLE_NOTHING, /* dropped and counted, or answered without the owner */
	RELIABLE_MESSAGE, /* `event` is a message or part of one */
	RELIABLE_HELLO,   /* box: a probe of *conn's, which waits for reliable_greet() or reliable_ask_back() */
};

/*
 * Takes a datagram, which stays where it is until the event is done with (next poll()). With RELIABLE_MESSAGE, what
 * reliable_report() has comes first; and if it is kept for a while (no room for events), before anything that comes
 * later. Untrusted bytes.
 */
enum reliable_took reliable_input(struct reliable *r, uint64_t now_ns, const uint8_t *bytes, size_t length,
	struct event *event, struct conn **conn);

/* Up to `max` events that are no messages of this moment; returns how many. */
unsigned reliable_report(struct reliable *r, struct event *events, unsigned max);

/* The connection is over; EVENT_CLOSED is reported, once. */
void reliable_end(struct reliable *r, struct reliable_conn *c, int error, bool broken);

/* Finds what is lost by time. */
void reliable_tick(struct reliable *r, uint64_t now_ns);
/* When reliable_tick() has something to do at the latest; 0: reliable_next() or _report() has; UINT64_MAX: never. */
uint64_t reliable_due(const struct reliable *r);

const struct reliable_counters *reliable_counters(const struct reliable *r);
/* The name of a reason, for counters and logs. */
const char *reliable_drop_name(enum reliable_drop why);
/* Smoothed round trip, ns; 0: not known. */
uint64_t reliable_round_trip(const struct reliable_conn *c);

#endif
