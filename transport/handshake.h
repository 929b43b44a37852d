/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a data connection begins: nonce (box), hello (worker), welcome (box). Three little-endian
 * messages of fixed size with magic and version, and a state machine for either side that does no
 * I/O, reads no clock and allocates nothing: the transport moves the bytes (TCP, Unix socket).
 * Control thread; pure but for the MAC.
 *
 *      nonce    magic 4, version 1, type 1, zero 2, nonce 16                                  24 bytes
 *      hello    magic 4, version 1, type 1, zero 2, core 4, zero 4, session 8, mac 32         56 bytes
 *      welcome  magic 4, version 1, type 1, zero 2, code 4, zero 4                            16 bytes
 *
 * Neither side may read past the message it waits for (handshake_wants() says how much): what comes
 * after the welcome belongs to the transport.
 */
#ifndef PHUB_TRANSPORT_HANDSHAKE_H
#define PHUB_TRANSPORT_HANDSHAKE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/proof.h"

#define HANDSHAKE_VERSION 1

enum {
	HANDSHAKE_NONCE_BYTES = 24,
	HANDSHAKE_HELLO_BYTES = 56,
	HANDSHAKE_WELCOME_BYTES = 16,
	HANDSHAKE_BYTES_MAX = 56,
};

enum handshake_state {
	HANDSHAKE_AWAIT_NONCE,   /* worker: the box speaks first */
	HANDSHAKE_AWAIT_HELLO,   /* box: the nonce is in the output, the hello is not all here */
	HANDSHAKE_AWAIT_ANSWER,  /* box: the hello is complete; the owner decides with handshake_answer() */
	HANDSHAKE_AWAIT_WELCOME, /* worker: the hello is in the output, the welcome is not all here */
	HANDSHAKE_DONE,          /* admitted (box: once the output is drained) */
	HANDSHAKE_FAILED,        /* `error` says why */
};

/* One side of one handshake. The fields are read by the transport, written by the functions below. */
struct handshake {
	enum handshake_state state;
	int error;                  /* HANDSHAKE_FAILED: a negative errno */
	uint64_t session;           /* box: as claimed, once AWAIT_ANSWER */
	uint32_t core;              /* likewise */
	uint8_t nonce[PROOF_NONCE]; /* the box's */
	uint8_t mac[PROOF_MAC];     /* box: as claimed */
	uint8_t key[PROOF_KEY];     /* worker: the session's; wiped when it is no longer needed */
	uint8_t in[HANDSHAKE_BYTES_MAX];
	uint8_t out[HANDSHAKE_BYTES_MAX];
	uint8_t in_have, out_have, out_sent;
};

/* Box: begins with a fresh nonce (proof_nonce()); the nonce message is in the output. */
void handshake_begin_box(struct handshake *h, const uint8_t nonce[PROOF_NONCE]);

/* Worker: begins; waits for the nonce. `key` is copied, and wiped when the hello is made. */
void handshake_begin_worker(struct handshake *h, uint64_t session, uint32_t core, const uint8_t key[PROOF_KEY]);

/* Bytes the current state still wants from the peer; 0 when it wants none. Read no more than that. */
size_t handshake_wants(const struct handshake *h);

/*
 * Takes `bytes` (at most handshake_wants()) that came from the peer. 0, or the error that ended the handshake:
 * -EPROTO (not our magic, wrong type, a zero field is not zero), -EPROTONOSUPPORT (another version),
 * -EINVAL (more bytes than wanted: our own bug), -EIO (no MAC); at the worker also what the box's
 * refusal means (handshake_code_errno()). Any error leaves HANDSHAKE_FAILED.
 */
int handshake_input(struct handshake *h, const void *data, size_t bytes);

/* What is to be sent now: `*bytes` bytes at the returned address; 0 bytes when there is nothing. */
const uint8_t *handshake_output(const struct handshake *h, size_t *bytes);

/* `bytes` of the output were taken by the kernel. */
void handshake_sent(struct handshake *h, size_t bytes);

/*
 * Box, in AWAIT_ANSWER: puts the welcome into the output. `error` 0 admits (HANDSHAKE_DONE), a positive errno
 * refuses (HANDSHAKE_FAILED; send the output, then close).
 */
void handshake_answer(struct handshake *h, int error);

/* Codes in the welcome: their own enumeration, because errno differs among systems. */
enum handshake_code {
	HANDSHAKE_WELCOME = 0,
	HANDSHAKE_DENIED = 1,     /* the MAC is wrong: EACCES */
	HANDSHAKE_NO_SESSION = 2, /* no such session: ENOENT */
	HANDSHAKE_NO_CORE = 3,    /* no such core: ERANGE */
	HANDSHAKE_TAKEN = 4,      /* this session has its connection to this core already: EALREADY */
	HANDSHAKE_LIMIT = 5,      /* no room: ENOSPC */
	HANDSHAKE_SHUTDOWN = 6,   /* the box is going down: ESHUTDOWN */
	HANDSHAKE_REFUSED = 7,    /* anything else: ECONNREFUSED */
	HANDSHAKE_BROKEN = 8,     /* an end, not a refusal: the way broke: ECONNRESET */
	HANDSHAKE_NO_WAY = 9,     /* none of the worker's ports answers the box: EHOSTUNREACH */
};

/* A positive errno as code (unknown ones: HANDSHAKE_REFUSED), and a code as positive errno. Pure. */
uint32_t handshake_code_from_errno(int error);
int handshake_code_errno(uint32_t code);

/* Did the peer just end its connection? A probe whether anybody listens does, and a worker that finds another way. */
static inline bool handshake_hung_up(int error)
{
	return error == -ECONNRESET || error == -EPIPE;
}

#endif
