/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire: one 64-byte header in front of every chunk, on every transport, and nothing else.
 * Little-endian, fixed offsets, no bit-fields. Datagrams, TCP streams and shared-memory rings carry
 * the same 64 bytes, so that a capture of one reads like a capture of another.
 * Called by transports (any thread); pure functions.
 */
#ifndef PHUB_TRANSPORT_WIRE_H
#define PHUB_TRANSPORT_WIRE_H

#include <stdint.h>

#define WIRE_VERSION      1
#define WIRE_HEADER_BYTES 64
#define WIRE_PAYLOAD_MAX  (2u << 20) /* the largest chunk that may be configured */
#define WIRE_WORLD_MAX    1024u      /* ranks of a job */

enum wire_type {
	WIRE_PUSH = 1,   /* worker -> box: a gradient chunk, `count` gradients already summed in it */
	WIRE_INIT = 2,   /* worker -> box: values to be stored and broadcast in this round, not summed */
	WIRE_PULL = 3,   /* worker -> box: no payload; takes part in a broadcast round to get its result */
	WIRE_RESULT = 4, /* box -> worker: the committed chunk of `round` */
	WIRE_CREDIT = 5, /* box -> worker: no payload; `credit` alone */
};

/* A decoded header, host byte order. */
struct wire_header {
	enum wire_type type;
	uint32_t length;     /* payload bytes that follow; 0 for WIRE_PULL and WIRE_CREDIT */
	uint32_t job;        /* the box's number for the job, from the control session */
	uint32_t generation; /* of the key table */
	uint32_t epoch;      /* of the job's membership */
	uint32_t chunk;      /* index among the chunks of this job that the addressed core owns */
	uint32_t rank;       /* of the worker at the other end, in both directions */
	uint64_t round;      /* exchange of this chunk; 0 is the first weights of a job with optimizer */
	uint32_t hyper;      /* version of the hyper-parameter table this round wants */
	uint32_t count;      /* gradients summed in the payload (1 from a worker, more from a box) */
	uint32_t seq;        /* worker -> box: this is the seq-th message of its connection, from 1 */
	uint32_t credit;     /* box -> worker: messages up to this seq may be sent (cumulative) */
	uint16_t priority;   /* lower goes first */
};

/* Writes the 64 bytes of `header` to `out`. The caller vouches for the fields. */
void wire_encode(const struct wire_header *header, uint8_t out[WIRE_HEADER_BYTES]);

/*
 * Reads 64 untrusted bytes. Returns 0, or -EPROTO (not our magic, or a reserved field is not zero),
 * -EPROTONOSUPPORT (another version), -EBADMSG (unknown type, or a length that the type forbids),
 * -EMSGSIZE (length above WIRE_PAYLOAD_MAX), -ERANGE (rank or count beyond what any job has).
 * `out` is written only on success. Says nothing about whether job, chunk or round exist: that is
 * for receive.c, which knows the connection.
 */
int wire_decode(const uint8_t in[WIRE_HEADER_BYTES], struct wire_header *out);

/* The type's name ("push", "result", ...) for messages and traces; "?" for unknown ones. */
const char *wire_type_name(enum wire_type type);

/* Is cumulative number a after b? They wrap at 2^32; right while they are less than 2^31 apart. */
static inline int wire_after(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b) > 0;
}

#endif
