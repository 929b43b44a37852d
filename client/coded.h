/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker's end of sparse keys (PHUB_KEY_SPARSE, aggregation/sparse.h): a push is coded when it is complete, where
 * that is shorter, into memory of ours, a place for each sparse chunk; the caller's memory is only read. A result comes
 * to another such place, coded or not, and goes from there to where it is wanted. Only address space until it is
 * touched. Lives with the exchange; where the transport maps memory of the box nothing of it is used. Under the
 * handle's lock.
 */
#ifndef PHUB_CLIENT_CODED_H
#define PHUB_CLIENT_CODED_H

#include <stdint.h>

#include "phub/base/err.h"
#include "topology/chunking.h"
#include "transport/wire.h"

struct exchange;
struct flight;

struct coded {
	uint8_t *memory; /* pushes, then results; NULL: no key is sparse */
	uint64_t bytes;
};

/* Memory for the sparse chunks of the plan, whose flights get their places. 0 or -ENOMEM. */
int coded_open(struct coded *c, const struct chunk_plan *plan, struct flight *flights, struct err *e);
/* No transport knows the memory any more. All zero is allowed. */
void coded_close(struct coded *c);

/* The flight's push is complete: codes it if that is shorter. */
void coded_push(struct exchange *x, struct flight *f);

/* Can this header be of a result of the flight's chunk? `trailer`: bytes behind its payload. */
bool coded_fits(const struct exchange *x, const struct flight *f, const struct wire_header *h, uint32_t trailer);

/*
 * A result of `bytes` is at *from, decrypted if it was not plain text, or nowhere (NULL): brings it to where the flight
 * wants it, which *from says then; a lossy transport's, which is to be copied from there, to its landing. 0, or
 * -EPROTO: it is no coding of its chunk.
 */
int coded_result(
	struct exchange *x, struct flight *f, const struct wire_header *h, uint32_t bytes, const uint8_t **from);

#endif
