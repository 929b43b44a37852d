/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both ends of a transport in one process and one thread: a box with a few queues, workers with a
 * queue each or one for all, and a log of every event. The transport suite is written on this alone,
 * so that it runs on each transport unchanged. Payloads are a pattern of (rank, round, chunk, index),
 * checked at the moment their event is yielded.
 */
#ifndef PHUB_TESTS_SUITE_TRANSPORT_RIG_H
#define PHUB_TESTS_SUITE_TRANSPORT_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/base/mem.h"
#include "transport/loop.h"
#include "transport/transport.h"

enum {
	RIG_ENDS = 4,   /* queues of each side */
	RIG_LANES = 80, /* connections */
	RIG_CHUNKS = 16,
	RIG_WINDOW = 32,
	RIG_ADDRESS = 128,
	RIG_JOB = 0x11121314,
};

/*
 * One row of the suite's table of transports. What else differs, the queues themselves say; specs and headers are
 * filled in for all alike, as conn_spec and queue_ops.send() ask, and who has no use for job, rank, key and number
 * ignores them.
 */
struct fixture {
	const char *label;
	const char *transport;
	bool mapped;           /* pushes go through memory that the box gives: conn_spec.push */
	bool one_sided;        /* struct queue says so */
	struct loop_plan plan; /* loop: its network */
};

/* What is different from one test to the next; zeroed memory gives the usual. */
struct rig_options {
	unsigned conns_max;      /* transport_config.queue_conns_max; 0: RIG_LANES */
	unsigned send_bytes_max; /* 0: 2 MiB, so that only tests of the bound meet it */
	unsigned handshake_ms;   /* 0: the transport's default */
	unsigned datagram_mtu;   /* the box's; 0: the way's */
	uint32_t payload_max;    /* the largest chunk; 0: 64 KiB */
};

/* What an event said. */
struct record {
	enum event_type type;
	int error;
	const char *why;
	struct conn *conn;
	struct wire_header header;
	const void *payload;
	void *slot; /* while it is kept */
	void *cookie;
	bool intact; /* the payload was what its sender wrote */
};

/* One queue and its owner. */
struct rig_end {
	struct queue *q;
	struct record *log;
	unsigned count, room;
	unsigned batch; /* events taken by one poll(); 1..64 */
	bool keeps;     /* keeps as many slots as it may, in their records */
	unsigned kept;
	bool mute;  /* does not poll */
	bool apart; /* several ports, or datagrams: queue_ops.poll() keeps the order of each chunk's messages alone */
};

/* One connection, both ends. */
struct lane {
	struct transport *transport; /* the worker's */
	struct conn *worker, *box;   /* NULL once dropped */
	struct rig_end *worker_end, *box_end;
	uint32_t rank;
	struct span spans[RIG_CHUNKS];
	struct sink sinks[RIG_CHUNKS];
	struct conn_spec worker_spec, box_spec;
	struct mem_region push, result;
	uint8_t *pushes; /* the worker's, where the transport gives it no memory */
	uint8_t *wanted; /* what the sinks point into */
	uint64_t bytes;  /* of either */
	uint32_t seq;    /* of the worker's last message */
	struct rig *rig;
	/* One-sided: a result answers a message of its chunk, so that the rig asks for what nobody asked for. */
	struct rig_asked {
		unsigned sent, got, used; /* messages by the worker, at the box, answered */
		bool hidden;              /* the next one is the rig's own, for no log */
	} asked[RIG_CHUNKS];
};

struct rig {
	const struct fixture *fixture;
	struct loop_net *net;
	const struct transport_ops *ops;
	struct rig_options options;
	struct transport *box;
	struct transport *workers[RIG_ENDS]; /* one for each worker's end, as in processes of their own */
	struct rig_end box_ends[RIG_ENDS], worker_ends[RIG_ENDS];
	struct lane *lanes[RIG_LANES];
	unsigned lane_count;
	uint32_t payload_max;
	uint64_t skew_ns; /* added to the clock that the transport is told */
	/* Not 0: that clock, which goes on in rests and as a test moves it. It must be ahead of the machine's clock. */
	uint64_t virtual_ns;
	uint64_t deadline_ns;
	uint64_t carrier; /* of the session that brings workers what the box signals */
	char address[RIG_ADDRESS];
};

/* RDMA ports of this machine that a transport would use. */
unsigned rig_rdma_ports(void);
/*
 * A transport of the fixture's kind, on the network of the rig: 0 is as the box's, 1 to RIG_ENDS as the workers', two
 * more are free.
 */
struct transport *rig_transport_open(struct rig *rig, unsigned endpoint);
/* A shell's command. True: it succeeded. */
bool rig_shell(const char *text);
/* dpdk: makes what its ports are opened on, once per process; false: it cannot be, as `e` says. */
bool rig_dpdk_make(struct err *e);

/* The box listens, a worker's transport is open, and both have one queue. */
struct rig *rig_create(const struct fixture *fixture, const struct rig_options *options);
void rig_destroy(struct rig *rig);

struct rig_end *rig_box_end(struct rig *rig, unsigned index);
struct rig_end *rig_worker_end(struct rig *rig, unsigned index);

uint64_t rig_now(const struct rig *rig);
/* One poll and flush of every queue that is not mute; time goes on when nothing came. */
void rig_turn(struct rig *rig);
/* Lets a little time go by, without polling. */
void rig_rest(struct rig *rig);
/* A few turns, for what should not come. */
void rig_turns(struct rig *rig, unsigned count);

/* Turns until the condition holds; the test fails after some seconds. */
#define RIG_UNTIL(rig, condition)                                                                         \
	do {                                                                                              \
		rig_deadline_set(rig);                                                                    \
		while (!(condition)) {                                                                    \
			rig_turn(rig);                                                                    \
			if (rig_deadline_passed(rig))                                                     \
				fail_msg("%s: waited in vain for %s", (rig)->fixture->label, #condition); \
		}                                                                                         \
	} while (0)
void rig_deadline_set(struct rig *rig);
bool rig_deadline_passed(const struct rig *rig);

/* A lane that is not connected, with its memory: that of an earlier lane of this rank which was dropped. The rig's. */
struct lane *rig_lane(struct rig *rig, struct rig_end *box_end, struct rig_end *worker_end, uint32_t rank);
/* The worker's transport knows this memory from now on, or no more. */
void rig_register(struct lane *lane, void *memory, uint64_t bytes, bool known);
/* The session a lane claims, and the key both ends have for it. */
uint64_t rig_session(uint32_t rank);
const uint8_t *rig_key(void);
/* Begins to connect; lane->worker is set. */
void rig_connect(struct rig *rig, struct lane *lane, const uint8_t *key);
/* Waits for the next hello. */
struct hello rig_hello(struct rig *rig);
/* Waits until established() says something other than -EAGAIN; returns that. */
int rig_established(struct rig *rig, struct lane *lane);
/* Connect, hello, admit: lane->box is set, nothing is adopted. */
void rig_admit(struct rig *rig, struct lane *lane);
/* Does all of it, up to adoption at both ends. */
struct lane *rig_join(struct rig *rig, struct rig_end *box_end, struct rig_end *worker_end, uint32_t rank);
void rig_adopt_box(struct lane *lane);
void rig_adopt_worker(struct lane *lane);
void rig_drop_worker(struct lane *lane);
void rig_drop_box(struct lane *lane);

/* Where the payload of a push and of a result of this chunk has to lie. */
uint8_t *pair_payload_at(struct lane *lane, uint32_t chunk);
uint8_t *pair_result_at(struct lane *lane, uint32_t chunk);
void rig_fill(uint8_t *at, uint32_t bytes, uint32_t rank, uint64_t round, uint32_t chunk);
bool rig_matches(const uint8_t *at, uint32_t bytes, uint32_t rank, uint64_t round, uint32_t chunk);

/* Writes the pattern and sends it, without flush. What send() returns. */
int pair_push(struct lane *lane, uint32_t chunk, uint64_t round, void *cookie);
int pair_answer(struct lane *lane, uint32_t chunk, uint64_t round, void *cookie);
/* The worker sends this message, with its number: queue_ops.send() may insist on it. */
int pair_send_up(struct lane *lane, struct wire_header *h, const void *payload, void *cookie);
/* Sends what lies there already. */
int pair_push_again(struct lane *lane, uint32_t chunk, uint64_t round, void *cookie);
int pair_answer_again(struct lane *lane, uint32_t chunk, uint64_t round, void *cookie);
/* Sends a header alone. */
int pair_pull(struct lane *lane, uint32_t chunk, uint64_t round);
int pair_credit(struct lane *lane, uint32_t credit);
void pair_flush_worker(struct lane *lane);
void pair_flush_box(struct lane *lane);

/* Gives back the slot of a record. */
void end_release(struct rig_end *end, unsigned index);

/* How many events of this type (of this connection, when it is not NULL) the end has had. */
unsigned end_count(const struct rig_end *end, enum event_type type, const struct conn *conn);
/* The index-th of them (NULL when there are not so many). */
const struct record *end_record(
	const struct rig_end *end, enum event_type type, const struct conn *conn, unsigned index);

#endif
