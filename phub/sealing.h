/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shard's encryption (transport/crypt.h): what comes over links that leave the host is opened where it lies, before
 * anything believes it; a result is sealed once, when it is first sent, for all to whom it goes. A result that is one
 * rank's alone (spec_rows()) is sealed for that rank. Links over mapped memory have none of it.
 *
 * Each chunk keeps, for each rank, the highest counter that was opened: a lower one was said before. An honest worker's
 * always rise: it seals again whatever it sends again.
 *
 * A mirror's answers have no payload, and each is sealed by itself: one that says what another said is another answer.
 */
#ifndef PHUB_SEALING_H
#define PHUB_SEALING_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/chunk.h"
#include "transport/crypt.h"

struct sealing {
	struct crypt *results; /* has the job's key. Control's */
	uint64_t counter;      /* of the last result that was sealed */
	/* From a chunk's result, or a rank's row of it, to where it lies sealed: so far, and WIRE_TRAILER_BYTES for
	 * each chunk before it in the plan, and a row further for each rank. */
	uint64_t offset, row_bytes;
	uint64_t *sealed;   /* [chunk_count] 1 + the round whose result is sealed; 0: none */
	uint32_t *lengths;  /* [chunk_count] and the length of that: a coded one is shorter (coding.h) */
	uint8_t *rows;      /* [chunk_count][world] is the rank's row sealed as it is now? */
	uint64_t *opened;   /* [chunk_count][world] the highest counter */
	struct span *spans; /* [chunk_count] for conn_spec: with trailers */
};

/* Bytes of the result region behind the results, for what is sealed: 0 for a job that is not encrypted. */
uint64_t sealing_bytes(const struct spec *spec);

/*
 * The link's new connection is to a worker whose pushes are sealed with this key; NULL: they are plain. Of another key
 * than the last one's no counter was seen.
 */
void sealing_link(struct link *link, const uint8_t key[PROOF_KEY]);

/*
 * Opens a message of such a link, in place: from then on the event is one without a trailer. 0; -EALREADY: its counter
 * was there before; -EBADMSG: it is not what its worker sealed.
 */
int sealing_open(struct link *link, struct event *event);

/* The chunk's result changed, or goes to this rank anew: what was sealed of a row is worth nothing any more. */
void sealing_renew(const struct chunk *chunk, const struct link *link);

/*
 * Where the result at `plain` that `header` is about lies sealed; header->length becomes its own. NULL, and it is due
 * again when the chunk's replies are sent (-EAGAIN), or never (-EIO): `rc`.
 */
const uint8_t *sealing_result(
	const struct chunk *chunk, const struct link *link, struct wire_header *header, const uint8_t *plain, int *rc);

#endif
