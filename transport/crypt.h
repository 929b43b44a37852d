/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encrypted payloads: who does not belong to the job reads no gradient and no weight, and changes none, whatever
 * carries them. AES-256-GCM (NIST SP 800-38D) by libcrypto, over the payload of a push, an init or a result; on the
 * wire it is followed by WIRE_TRAILER_BYTES, also where it is empty: the answers of a standby to its box.
 *
 *      counter 8, tag 16, zeros 40
 *
 * All of the header is bound to it but what is the transport's: seq, credit and priority. A key and a nonce come once:
 *
 *   pushes    the key follows from the session's (proof.h), which is new for every control session, by the worker's
 *             random nonce and the box's. The nonce is the core and a counter that the worker keeps for the session:
 *             it goes on over connections that are made anew, other key tables, and pushes that are sent again with
 *             another epoch. A box that comes back, with a checkpoint or without, meets new sessions alone.
 *   results   the key is drawn by the box for each start of a generation, and never kept on a disk. The nonce is the
 *             core and a counter of that core's share of the job, which is gone with the key.
 *
 * A worker that moves to a standby has another session there: another key for its pushes, and their counter begins
 * anew. What it had sealed for the lost box is sealed again, and what that box sealed is nothing to it any more: its
 * results come under a key that the standby draws when it goes on with the job. A box is like a worker to its standby:
 * each mirror is a session of its own, with a key for what it sends and one of what it is answered; the counter is the
 * core's, and goes on over all of them.
 *
 * So nothing that is restored brings a counter back. (A virtual machine that is rolled back with a session open would.)
 * One struct is its owner's; nothing here blocks, and only create and destroy allocate.
 */
#ifndef PHUB_TRANSPORT_CRYPT_H
#define PHUB_TRANSPORT_CRYPT_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "transport/proof.h"
#include "transport/wire.h"

#define CRYPT_TAG_BYTES     16
#define CRYPT_WRAPPED_BYTES (PROOF_NONCE + PROOF_KEY + CRYPT_TAG_BYTES)

struct crypt;

/* `opens`: else it seals. Without a key yet. 0 or -ENOMEM, with the reason in `e`. Control thread. */
int crypt_create(bool opens, struct crypt **out, struct err *e);
/* Takes this key from now on. 1 when it had another, 0 when it had this one; -EIO: it has none now. */
int crypt_take_key(struct crypt *c, const uint8_t key[PROOF_KEY]);
/* What does it: "intel-ipsec-mb" or "libcrypto". Any thread. */
const char *crypt_library(void);
/* Wipes the key. NULL: nothing. */
void crypt_destroy(struct crypt *c);

/*
 * Seals the payload of a message: header->length bytes, its trailer among them, to `out`, from the payload at `plain`,
 * which may be `out`. No (core, counter) may come twice with a key. 0 or -EIO.
 */
int crypt_seal(struct crypt *c, const struct wire_header *header, uint32_t core, uint64_t counter, const void *plain,
	uint8_t *out);

/* The counter that a message of so many bytes names; 0: none that anybody seals. Not believed yet. */
uint64_t crypt_counter(const uint8_t *sealed, uint32_t length);

/*
 * Opens it to `out`, which may be `sealed`. 0, or -EBADMSG: something of it or of its header is not what was sealed,
 * and `out` has nothing of worth.
 */
int crypt_open(struct crypt *c, const struct wire_header *header, uint32_t core, const uint8_t *sealed, uint8_t *out);

/*
 * What a result's trailer is made over. `own`: it is one rank's alone; else all get the same bytes, and what is each
 * one's is not bound. An epoch says nothing of a result.
 */
static inline struct wire_header crypt_result(const struct wire_header *h, bool own)
{
	struct wire_header common = *h;

	common.epoch = 0;
	if (!own) {
		common.rank = UINT32_MAX;
		common.hyper = 0;
	}
	return common;
}

/*
 * The key of a job's results on its way to a worker: under a key of the session's and a fresh salt, bound to the job's
 * number and generation. 0 or -EIO; unwrapping also -EBADMSG, when it was not made so. Control thread.
 */
int crypt_wrap(const uint8_t session[PROOF_KEY], uint32_t job, uint32_t generation, const uint8_t key[PROOF_KEY],
	uint8_t out[CRYPT_WRAPPED_BYTES]);
int crypt_unwrap(const uint8_t session[PROOF_KEY], uint32_t job, uint32_t generation,
	const uint8_t in[CRYPT_WRAPPED_BYTES], uint8_t key[PROOF_KEY]);

#endif
