/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of reliable.h, shared by reliable*.c alone: reliable.c has connections, time and reports, reliable_tx.c what
 * goes out and what is said to have come, reliable_rx.c what comes in.
 */
#ifndef PHUB_TRANSPORT_RELIABLE_INTERNAL_H
#define PHUB_TRANSPORT_RELIABLE_INTERNAL_H

#include "transport/reliable.h"

#include "phub/base/stats.h"

enum {
	RELIABLE_NAMES = 1024,   /* heads of the table of connections; a power of two */
	RELIABLE_PROBES_MAX = 4, /* that wait to be sent or answered */
	RELIABLE_REORDER = 16,   /* numbers that may overtake one before it counts as lost; more, when that was wrong */
	RELIABLE_BURST = 44,     /* datagrams of a connection in a row: what the kernel takes as one of 64 KiB */
	RELIABLE_ACK_EVERY = 16, /* DATA, or a quarter of the grant, */
	RELIABLE_ACK_NS = 100000,        /* or so long after the first: then they are acknowledged */
	RELIABLE_FIRST_NS = 20000000,    /* to wait for an answer as long as the round trip is not known */
	RELIABLE_SLACK_NS = 1000000,     /* at least, over the round trip; doubles when that was too little, */
	RELIABLE_SLACK_MAX_NS = 4000000, /* up to this: a peer whose CPU is busy answers late */
	RELIABLE_WAIT_NS = 200000000,    /* at most */
	RELIABLE_TICK_NS = 200000,       /* how exactly those times are kept */
	RELIABLE_ACTIVE_NS = 5000000,    /* who sent nothing for this long has no share of the room */
	RELIABLE_CWND_FIRST = 128 << 10,
	RELIABLE_GROW_BACK = 8, /* bytes that came for one more that may be out, below where loss began */
	RELIABLE_GROW_ON = 64,  /* and beyond */
	RELIABLE_CWND_MIN_DATAGRAMS = 4,
	RELIABLE_BUFFERS_BYTES =
		2 << 20, /* a connection's to put messages together in, where the owner wants them whole */
};

/* Where an outgoing message stands. */
enum reliable_state {
	RELIABLE_FREE, /* no message */
	RELIABLE_OUT,  /* some of it has not been acknowledged */
	RELIABLE_DONE, /* all of it has; EVENT_SENT is to be reported, or waits for a device */
};

struct reliable_message {
	struct reliable_conn *conn;
	const uint8_t *payload;
	void *cookie;
	uint8_t state; /* enum reliable_state */
	bool keyed;    /* is about `chunk` */
	uint32_t seq, chunk, length;
	uint32_t fragments;  /* at least 1 */
	uint32_t next;       /* fragment that was never sent; = fragments: all were */
	uint32_t acked;      /* fragments */
	uint32_t lost;       /* fragments to be sent again */
	uint32_t holds;      /* datagrams that a device reads from */
	uint64_t *acked_map; /* bit for each fragment */
	uint64_t *lost_map;
	uint32_t *number; /* [fragments] low half of that of its last transmission */
	uint8_t header[WIRE_HEADER_BYTES];
};

/* An incoming message. */
struct reliable_open {
	struct wire_header header; /* its seq says whether it is the one of this place */
	uint32_t fragments, got;
	uint64_t *map;   /* bit for each fragment that came */
	void *sink;      /* worker: where it goes; NULL: nowhere */
	uint8_t *buffer; /* where it is put together; NULL where that is not needed */
};

/* A DATA that was sent. */
struct reliable_sent {
	uint64_t at_ns;
	uint32_t seq, fragment;
	uint32_t bytes; /* 0: acknowledged, lost, or none */
	bool late;      /* counted as lost, and nothing was heard of it since */
};

struct reliable_probe_item {
	uint64_t token, way;
	uint32_t bytes, fragment;
	bool alone;
};

struct reliable_conn {
	struct conn *conn;
	struct reliable *r; /* NULL: in no queue */
	const struct conn_spec *spec;
	struct seal *seal_here, *seal_there;
	uint32_t here, there;
	struct reliable_conn *next_named;
	struct list_link ready;   /* in r->ready: may have something to send */
	struct list_link delayed; /* in r->delayed: has something to acknowledge in a while */
	struct list_link waiting; /* in r->waiting: has something out */
	struct list_link report;  /* in r->reports */
	struct list_link fenced;  /* in r->fenced */
	uint32_t burst;           /* datagrams since its turn came */
	uint32_t datagram_max;
	uint32_t fragment;      /* bytes of a payload in a datagram; 0: not decided */
	uint32_t fragments_max; /* of a message */
	uint32_t slots;         /* messages of either direction; a power of two */
	uint32_t map_words;
	bool alone;              /* its datagrams are no pieces of larger ones */
	bool closed, closed_due; /* EVENT_CLOSED is to be reported, or was */
	bool broken;
	int error;

	/* out */
	struct reliable_message *out;      /* [slots] by seq */
	uint32_t seq_next, seq_base;       /* of the next message, and of the oldest that is not done */
	uint32_t seq_unsent;               /* of the oldest with fragments that were never sent; = seq_next: none */
	uint32_t lost_count;               /* fragments of all messages to be sent again */
	uint32_t doubt;                    /* so many of them may go whatever is out: nothing is heard */
	uint64_t out_bytes;                /* of messages that are not done */
	struct reliable_sent *sent;        /* [RELIABLE_FLIGHT_MAX] by number: in the order of sending */
	uint64_t number_next, number_tail; /* of DATA: the next one, and the oldest that is out */
	uint64_t number_other;             /* of all else */
	uint64_t acked_largest;
	uint64_t lost_last;              /* number of the newest that counted as lost; 0: none */
	uint32_t reorder;                /* numbers that may overtake one before it does */
	uint64_t in_flight;              /* bytes that are out */
	uint64_t cwnd, cwnd_lost, grant; /* cwnd_lost: where loss began last */
	uint64_t recovery;               /* loss of what was sent before this number was answered already */
	bool slow_start;
	uint64_t srtt_ns, rttvar_ns;
	uint64_t loss_ns;    /* when the oldest that is out is lost by time; 0: nothing newer came */
	uint64_t silence_ns; /* when it is sent again if nothing is heard; 0: nothing is out */
	uint32_t silences;   /* in a row */
	uint64_t slack_ns;   /* over the round trip before it is silence */
	uint64_t doubted; /* DATA below this number were out when it was: one that came after all was late, not lost */
	uint32_t *done;   /* [slots] ring of messages that are done and not reported: places in `out` */
	uint32_t done_head, done_count;
	bool blocked, writable; /* send() said -EAGAIN; EVENT_WRITABLE is to be reported */
	struct reliable_probe_item probes[RELIABLE_PROBES_MAX];
	uint32_t probe_count;
	uint64_t way;             /* worker: what the last PROBED brought; 0: nothing */
	struct wire_probe hello;  /* box: the last probe, */
	uint32_t hello_bytes;     /* of so many bytes */
	uint32_t probed, decided; /* the largest probes that came back */
	uint64_t heard_ns;        /* when something came from the peer last */

	/* in */
	struct reliable_open *in; /* [slots] by seq */
	uint32_t in_base;         /* seq of the oldest message that is not here */
	uint32_t fence, fence_to; /* worker: seq up to which WIRE_CREDIT was reported, and may be */
	uint32_t *answers;        /* [chunk_count] seq of the last message about it that came */
	uint64_t largest, below[WIRE_ACK_WORDS], largest_ns;
	uint64_t
		largest_other; /* number of what is no DATA: older ones say nothing new, or are somebody's repetition */
	uint32_t unacked;      /* DATA since the last ACK */
	uint64_t unacked_bytes; /* likewise */
	bool ack_due;
	uint64_t ack_ns; /* delayed: by then */
	uint64_t active; /* the r->active_turn in which it sent last */
};

struct reliable {
	struct reliable_config config;
	uint32_t conn_count;
	uint64_t now_ns;
	uint64_t due_ns; /* of those that wait; UINT64_MAX: none */
	struct list_link ready, delayed, waiting, reports, fenced;
	uint64_t active_turn, active_ns;    /* number of this stretch of RELIABLE_ACTIVE_NS, and its beginning */
	uint32_t active_count, active_last; /* connections that sent in this one and in the last one */
	struct reliable_counters counters;
	struct reliable_conn *names[RELIABLE_NAMES];
};

static inline bool reliable_bit(const uint64_t *map, uint32_t i)
{
	return map[i / 64] >> (i % 64) & 1;
}

static inline void reliable_set_bit(uint64_t *map, uint32_t i)
{
	map[i / 64] |= UINT64_C(1) << (i % 64);
}

static inline void reliable_clear_bit(uint64_t *map, uint32_t i)
{
	map[i / 64] &= ~(UINT64_C(1) << (i % 64));
}

static inline void reliable_drop(struct reliable *r, enum reliable_drop why)
{
	stats_add(&r->counters.dropped[why], 1);
}

/* reliable.c */

/* Puts it among those that may send, if it can. */
void reliable_wake(struct reliable_conn *c);
/* Puts it among those that have something to report. */
void reliable_tell(struct reliable_conn *c);
/* What waited behind the message of the moment before may be reported now. */
void reliable_lift_fences(struct reliable *r);
/* So many bytes may be on their way to this end of the connection. */
uint32_t reliable_grant(const struct reliable *r, const struct reliable_conn *c);
/* What was measured, as round trip. */
void reliable_measure(struct reliable_conn *c, uint64_t round_trip_ns);

/* reliable_tx.c */

/* Has it something to send now? */
bool reliable_wants(const struct reliable_conn *c);
/* Until when it waits for an answer to what is sent now, at most. */
void reliable_watch(struct reliable_conn *c, uint64_t now_ns);
/* All of a message has come: the peer says so. */
void reliable_done(struct reliable_conn *c, struct reliable_message *m);
/* What is out of this message is out no more: it came. */
void reliable_forget(struct reliable_conn *c, const struct reliable_message *m);
/* Its message with this number, when it is out; else NULL. */
struct reliable_message *reliable_find(struct reliable_conn *c, uint32_t seq);
/* The peer says what came. */
void reliable_acked(struct reliable_conn *c, const struct wire_ack *ack, uint64_t now_ns);
/* What is out and was overtaken, by numbers or by time, is lost. */
void reliable_find_lost(struct reliable_conn *c, uint64_t now_ns);
/* Nothing was heard for too long. */
void reliable_silent(struct reliable_conn *c, uint64_t now_ns);

#endif
