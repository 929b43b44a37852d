/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers and a box, each with a `struct reliable`, on a wire that loses, doubles, reorders, delays and damages what a
 * seed says; time is a number. For the tests of reliable.h.
 */
#ifndef TESTS_UNIT_RELIABLE_RIG_H
#define TESTS_UNIT_RELIABLE_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/reliable.h"
#include "transport/seal.h"

enum {
	WIRED_WORKERS_MAX = 16,
	WIRED_CHUNKS_MAX = 128,
	WIRED_HELD_MAX = 64,
	WIRED_JOB = 77,
	WIRED_WAY = 500, /* and the worker's number: its way */
	WIRED_BOX = WIRED_WORKERS_MAX
};

/* What the wire does. Zeros: all arrives at once. */
struct wired_wire {
	uint64_t delay_min_ns, delay_max_ns; /* in order, unless */
	double reorder;                      /* this one comes up to so much later */
	uint64_t reorder_ns;
	double drop, duplicate, corrupt;
	double late; /* the payload is read up to so much later */
	uint64_t late_ns;
	uint32_t path_max; /* larger ones are lost; 0: none */
};

struct wired_packet {
	struct wired_packet *prev, *next;
	uint64_t at;
	unsigned from, to; /* 0.. workers, WIRED_BOX */
	unsigned worker;   /* whose connection */
	uint32_t length;
	uint8_t bytes[]; /* of exactly so much memory, so that reading past it is found */
};

/* One side. */
struct wired_end {
	struct wired *rig;
	unsigned who; /* 0.. workers, WIRED_BOX */
	struct reliable_config config;
	struct reliable *r;
	struct reliable_conn *conns[WIRED_WORKERS_MAX]; /* at a worker's end: only its own */
	struct conn heads[WIRED_WORKERS_MAX];
	struct wired_packet *lent; /* of the last poll */
	bool stopped;              /* is not polled */
};

struct wired_options {
	uint64_t seed;
	unsigned workers; /* 0: 1 */
	unsigned chunks;
	uint32_t chunk_bytes[WIRED_CHUNKS_MAX];
	uint32_t window;            /* 0: 64 */
	uint32_t datagram_max;      /* 0: 1472 */
	uint64_t room_bytes;        /* of the box; 0: 4 MiB */
	uint64_t worker_room_bytes; /* 0: 4 MiB */
	uint32_t send_bytes_max;
	enum seal_kind seal; /* 0: SEAL_CRC */
	struct wired_wire wire;
};

struct wired_late {
	uint64_t at;
	unsigned from;
	struct reliable_outgoing out;
	uint8_t head[RELIABLE_HEAD_BYTES];
};

struct wired {
	struct wired_options options;
	uint64_t now, random;
	struct wired_end ends[WIRED_WORKERS_MAX + 1];
	struct wired_packet *first; /* a ring in the order of arrival */
	uint64_t last_at[WIRED_WORKERS_MAX][2];
	struct wired_late late[WIRED_HELD_MAX];
	unsigned late_count;
	struct span spans[WIRED_CHUNKS_MAX];
	struct sink sinks[WIRED_WORKERS_MAX][WIRED_CHUNKS_MAX];
	struct conn_spec box_specs[WIRED_WORKERS_MAX], worker_specs[WIRED_WORKERS_MAX];
	uint64_t box_bytes, box_bytes_peak; /* on their way to the box; DATA alone */
	uint64_t put, lost, damaged;
	unsigned spins; /* in a row in which time stood still */
	/* What is told of an end. */
	void (*event)(struct wired *rig, struct wired_end *end, unsigned worker, const struct event *event);
	/* False: the wire loses this one. NULL: goes by the options. */
	bool (*pass)(struct wired *rig, const struct wired_packet *p);
	void *user;
};

void wired_open(struct wired *rig, const struct wired_options *options);
void wired_close(struct wired *rig);

double wired_chance(struct wired *rig); /* 0 to 1 */
uint64_t wired_between(struct wired *rig, uint64_t first, uint64_t last);

/* The seal of a worker's connection in one direction; the caller's. */
struct seal *wired_seal(const struct wired *rig, unsigned worker, bool from_box);
/* The names of a worker's connection at either end. */
uint32_t wired_name(unsigned worker, bool at_box);

/* Finds and tells the size of datagrams, for all workers. */
void wired_probe(struct wired *rig);

/* Takes what has come, and reports; sends what is to be sent. Returns how much was done. */
unsigned wired_poll(struct wired *rig, unsigned who);
unsigned wired_send(struct wired *rig, unsigned who);
/* Both, of all ends that are not stopped. */
unsigned wired_turn(struct wired *rig);
/* Time goes on to what comes next, at most by `max_ns`. False: nothing would ever come. */
bool wired_advance(struct wired *rig, uint64_t max_ns);
/* Turns until nothing more happens for `ns`. */
void wired_run(struct wired *rig, uint64_t ns);
/* When something of an end, or of the wire, is due. */
uint64_t wired_next(const struct wired *rig);

/* Hands bytes to an end as a datagram that came just now; what reliable_input() says. */
enum reliable_took wired_input(struct wired *rig, unsigned who, const void *bytes, size_t length);
uint64_t wired_drops(const struct wired *rig, unsigned who, enum reliable_drop why);

#endif
