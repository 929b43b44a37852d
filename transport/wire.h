/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire: one 64-byte header in front of every chunk, on every transport, and nothing else. Little-endian, fixed
 * offsets, no bit-fields. Datagrams, TCP streams and shared-memory rings carry the same 64 bytes, so that a capture of
 * one reads like a capture of another. What datagrams have besides, because they may be lost, is at the end.
 * Called by transports (any thread); pure functions.
 */
#ifndef PHUB_TRANSPORT_WIRE_H
#define PHUB_TRANSPORT_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_VERSION       1
#define WIRE_HEADER_BYTES  64
/* Behind a payload that is encrypted (crypt.h): a line of a cache, so that payloads stay where lines begin. */
#define WIRE_TRAILER_BYTES 64
/* The largest chunk that may be configured, and its trailer. */
#define WIRE_PAYLOAD_MAX   ((2u << 20) + WIRE_TRAILER_BYTES)
#define WIRE_WORLD_MAX     1024u /* ranks of a job */

enum wire_type {
	WIRE_PUSH = 1, /* worker -> box: a gradient chunk, `count` gradients already summed in it */
	WIRE_INIT = 2, /* worker -> box: values to be stored and broadcast in this round, not summed */
	/* worker -> box: no payload; takes part in a broadcast round to get its result, or, of who joins a job that
	   runs, asks for the weights before the first round that it takes part in */
	WIRE_PULL = 3,
	WIRE_RESULT = 4, /* box -> worker: the committed chunk of `round` */
	WIRE_CREDIT = 5, /* box -> worker: no payload; `credit` alone */
};

/*
 * Between a core of a box and the same core of its standby (phub/uplink.h) a PUSH is the sum of a round that its box
 * commits, fp32, `count` gradients in it, and an INIT is one of a chunk's arrays, fp32: `count` says which (1:
 * weights, or the last sum where there is no optimizer; then the state's), `hyper` how many steps the optimizer has
 * taken, `round` which round the chunk collects; the chunk is as the box has it when the last array is there. Each is
 * answered, when it is committed there, by a RESULT of that chunk and round without payload. In a job that is encrypted
 * all of these are, and an answer's payload is a trailer alone.
 */

/* The round of a WIRE_CREDIT behind which no result comes. */
#define WIRE_FINISHED UINT64_MAX

/* A decoded header, host byte order. */
struct wire_header {
	enum wire_type type;
	uint32_t length;     /* payload bytes that follow, with their trailer; 0 for WIRE_PULL and WIRE_CREDIT */
	uint32_t job;        /* the box's number for the job, from the control session */
	uint32_t generation; /* of the key table */
	uint32_t epoch;      /* of the job's membership */
	uint32_t chunk;      /* index among the chunks of this job that the addressed core owns */
	uint32_t rank;       /* of the worker at the other end, in both directions */
	uint64_t round;      /* exchange of this chunk; 0 is the first weights of a job with optimizer. WIRE_CREDIT: 0,
				or WIRE_FINISHED */
	uint32_t hyper;    /* version of the hyper-parameter table this round wants; WIRE_RESULT of a job with a quorum:
			      rounds that were closed since */
	uint32_t count;    /* gradients summed in the payload (1 from a worker, more from a box); which array (above) */
	uint32_t seq;      /* worker -> box, and in datagrams: this is the seq-th message of its connection, from 1 */
	uint32_t credit;   /* box -> worker: messages up to this seq may be sent (cumulative) */
	uint16_t priority; /* lower goes first */
	/* WIRE_PUSH, WIRE_RESULT: the payload is not the chunk's elements as they are but a coding of them, which is
	 * shorter (aggregation/sparse.h); only of a chunk whose keys have agreed to that. */
	bool coded;
};

/* Writes the 64 bytes of `header` to `out`. The caller vouches for the fields. */
void wire_encode(const struct wire_header *header, uint8_t out[WIRE_HEADER_BYTES]);

/*
 * Reads 64 untrusted bytes. Returns 0, or -EPROTO (not our magic, or a reserved field is not zero),
 * -EPROTONOSUPPORT (another version), -EBADMSG (unknown type, or a length or coding that the type forbids),
 * -EMSGSIZE (length above WIRE_PAYLOAD_MAX), -ERANGE (rank or count beyond what any job has).
 * `out` is written only on success. Says nothing about whether job, chunk or round exist: that is
 * for receive.c, which knows the connection.
 */
int wire_decode(const uint8_t in[WIRE_HEADER_BYTES], struct wire_header *out);

/* The type's name ("push", "result", ...) for messages and traces; "?" for unknown ones. */
const char *wire_type_name(enum wire_type type);

/*
 * A datagram: 40 bytes, then what its kind says. A message is cut into fragments, each of which says all that the
 * message's header says, so that any of them can be taken first.
 *
 *      kind 1, version 1, zero 2, connection 4, number 8, offset 4, answers 4, seal 16
 *
 *      DATA     header of the message 64, fragment: its payload's bytes from `offset` on
 *      ACK      largest 8, below it 32, grant 4, delay in us 4
 *      PROBE    token 8, fragment 4 (bit 0: alone), grant 4, way 8, zeros up to the size that is tried
 *      PROBED   the same, with the probe's token and size
 *      END      nothing
 *
 * A PROBED's `way` is a number that nobody knows but the box, another one for each address that it sends to; a worker's
 * PROBE brings back the last that came, or 0. A probe that brings the one of where it comes from shows that the worker
 * receives there: until then, the box takes nothing that a probe from there says, and sends nothing there but a PROBED
 * for each, no longer than that and its fragment 0, and, should it let the connection go, one END.
 *
 * `connection` is the receiver's name for it. `number` is new in each datagram of a connection and direction, also when
 * it carries a fragment once more: DATA count from 1, all others from WIRE_NUMBER_OTHER + 1. `seal` is a CRC32C and
 * zeros or an AES-GMAC, over all other bytes (seal.h). A message's `seq` is its sender's, from 1, in either direction;
 * `answers` is that of the receiver's last message about the same chunk that has come whole, or 0: an acknowledgement
 * that does not depend on any other datagram.
 */
#define WIRE_DATAGRAM_BYTES 40
#define WIRE_DATA_BYTES     (WIRE_DATAGRAM_BYTES + WIRE_HEADER_BYTES)
#define WIRE_ACK_BYTES      (WIRE_DATAGRAM_BYTES + 48)
#define WIRE_PROBE_BYTES    (WIRE_DATAGRAM_BYTES + 24) /* at least */
#define WIRE_SEAL_BYTES     16
#define WIRE_SEAL_AT        24
#define WIRE_DATAGRAM_MAX   65507u /* in all: what UDP over IPv4 carries */
#define WIRE_NUMBER_OTHER   (UINT64_C(1) << 63)
#define WIRE_ACK_WORDS      4

enum wire_kind {
	WIRE_DATA = 1,   /* a fragment of a message */
	WIRE_ACK = 2,    /* which DATA came, and how much more may be on its way */
	WIRE_PROBE = 3,  /* worker -> box: does a datagram of this size come through? */
	WIRE_PROBED = 4, /* box -> worker: it does, either way */
	WIRE_END = 5,    /* nobody is here for this connection any more */
};

/* What every datagram begins with, host byte order; the seal is not among it. */
struct wire_datagram {
	enum wire_kind kind;
	uint32_t conn;
	uint64_t number;
	uint32_t offset, answers; /* DATA; else 0 */
};

/* DATA numbers that came: the largest, and bit i of word w: largest - 1 - (64 w + i). */
struct wire_ack {
	uint64_t largest;
	uint64_t below[WIRE_ACK_WORDS];
	uint32_t grant;    /* bytes of datagrams that may be on their way */
	uint32_t delay_us; /* since the largest came */
};

struct wire_probe {
	uint64_t token;
	uint32_t fragment; /* 0, or bytes of a fragment as the worker decided: from now on either end cuts so; even */
	bool alone; /* datagrams come through one by one alone, not as pieces of what the kernel or a card cuts */
	uint32_t grant;
	uint64_t way; /* what shows that the worker receives where it sends from; 0: none yet */
};

/* Writes WIRE_DATAGRAM_BYTES with a seal of zeros. */
void wire_encode_datagram(const struct wire_datagram *d, uint8_t *out);
/* Write what follows them: 48 and 24 bytes. */
void wire_encode_ack(const struct wire_ack *a, uint8_t *out);
void wire_encode_probe(const struct wire_probe *p, uint8_t *out);

/*
 * Reads the start of `bytes` untrusted bytes. 0, or -EMSGSIZE (a runt: fewer than its kind has, or more than an ACK or
 * END has), -EPROTONOSUPPORT (another version), -EBADMSG (unknown kind, or zeros that are none, or a number that is not
 * of its kind).
 */
int wire_decode_datagram(const uint8_t *in, size_t bytes, struct wire_datagram *out);
/* Their lengths were checked by wire_decode_datagram(). */
void wire_decode_ack(const uint8_t *in, struct wire_ack *out);
void wire_decode_probe(const uint8_t *in, struct wire_probe *out);

/* Is cumulative number a after b? They wrap at 2^32; right while they are less than 2^31 apart. */
static inline int wire_after(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b) > 0;
}

#endif
