/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seals of datagrams: who made it, and is it whole? AES-128-GMAC (NIST SP 800-38D, a GCM tag over nothing but
 * additional data; libcrypto) with a key of its own for each connection and direction, or, on a rack that is trusted,
 * CRC32C (phub/base/crc.h). Owner of the connection's queue; no I/O.
 */
#ifndef PHUB_TRANSPORT_SEAL_H
#define PHUB_TRANSPORT_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "transport/proof.h"
#include "transport/wire.h"

struct seal;

enum seal_kind {
	SEAL_GMAC = 1, /* nobody without the session's key can make one */
	SEAL_CRC = 2,  /* anybody can; it tells damage */
	SEAL_NONE = 3, /* not even that: kernels and network cards check what they receive; else it becomes SEAL_CRC */
};

/* "gmac", "crc" or "none". */
const char *seal_name(enum seal_kind kind);

/*
 * Makes the seal of one direction of one connection. Its key is HKDF of the session's key and all that tells this
 * connection from others (proof.h), with the direction: a datagram's number is all a nonce needs then, and no (key,
 * nonce) ever comes twice. SEAL_CRC and SEAL_NONE take no key. 0, -ENOMEM or -EIO, with the reason in `e`. Control
 * thread; may allocate.
 */
int seal_create(enum seal_kind kind, const uint8_t key[PROOF_KEY], const struct proof_datagram *of, bool from_box,
	struct seal **out, struct err *e);
enum seal_kind seal_kind(const struct seal *s);
/* Wipes the key. NULL: nothing. */
void seal_destroy(struct seal *s);

/*
 * The seal of a datagram: `head` is its first head_bytes (WIRE_DATAGRAM_BYTES to WIRE_DATA_BYTES), in which the seal's
 * own place (WIRE_SEAL_AT) counts as not there, `rest` what follows. Written to its place in `head`.
 * `number` is the datagram's. 0, or -EIO.
 */
int seal_make(struct seal *s, uint64_t number, uint8_t *head, size_t head_bytes, const void *rest, size_t rest_bytes);
/* Is this the seal of a datagram that came as one piece? Takes as long whatever is wrong. */
bool seal_check(struct seal *s, uint64_t number, const uint8_t *datagram, size_t bytes);

#ifdef PHUB_IPSEC_MB
/* The functions of intel-ipsec-mb, not written once they are there; NULL: this CPU lacks something. Any thread. */
struct IMB_MGR *seal_ipsec(void);
#endif

#endif
