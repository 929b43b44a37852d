/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker's end of encryption (transport/crypt.h): pushes are sealed on their way to the transport, into cells, few
 * for each lane, so that they are still in a cache when they are sent; the caller's memory is only read. Results come
 * sealed into memory of ours, a place for each chunk, and are opened from there to where they are wanted. Lives with
 * the exchange, where the job is encrypted and nothing is mapped. Under the handle's lock.
 */
#ifndef PHUB_CLIENT_SEALED_H
#define PHUB_CLIENT_SEALED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/lane.h"
#include "phub/base/err.h"
#include "topology/chunking.h"
#include "transport/crypt.h"

struct sealed {
	struct crypt *pushes, *results;
	uint64_t *counter; /* of the session's last push that was sealed: goes on when the key table is another */
	bool own;          /* results are this rank's alone: ssp, async, quorum */
	uint8_t *memory;   /* results at chunk->offset + index * WIRE_TRAILER_BYTES, then cells */
	size_t bytes;
};

/*
 * Keys and memory, for lanes whose counts and spans are filled in, which get their cells. `session_key` and `data_key`:
 * PROOF_KEY bytes. 0, -ENOMEM or -EIO; on error sealed_close() frees.
 */
int sealed_open(struct sealed *s, const uint8_t *session_key, const uint8_t *data_key, const struct chunk_plan *plan,
	struct lane *lanes, uint32_t lane_count, uint32_t window, struct err *e);
/*
 * The exchange goes on with another box, in another session and with other results: no counter of theirs was seen. All
 * lanes rest, so that no push lies sealed. 0 or -EIO.
 */
int sealed_move(
	struct sealed *s, const uint8_t *session_key, const uint8_t *data_key, struct lane *lanes, uint32_t lane_count);
/* No transport knows the memory any more. All zero is allowed. */
void sealed_close(struct sealed *s);

/* Where the result of this chunk comes sealed. */
static inline uint8_t *sealed_place(
	const struct sealed *s, const struct chunk_plan *plan, const struct chunk_span *span)
{
	return s->memory + span->offset + (uint64_t)(span - plan->chunks) * WIRE_TRAILER_BYTES;
}

/* ---- of a lane: see lane.h ---- */

/* All cells are free. */
void sealed_reset(struct lane *lane);
/* May the flight's push be sealed now? Not while an earlier send of it is read, or all cells are. */
bool sealed_may(const struct lane *lane, const struct flight *f);
/*
 * Seals its push, unless it is as it was when the transport had no room for it; header->length becomes that of what is
 * sent, from *out. 0 or -EIO.
 */
int sealed_push(struct lane *lane, struct flight *f, struct wire_header *header, const uint8_t **out);
/* The transport reads the cell no more, or the round is over and it never was sent. */
void sealed_free(struct lane *lane, struct flight *f);

/*
 * Opens a result, at `from`, which may be written to: to `into`, once it is known to be good, or NULL, to where it
 * lies, where it also is opened first when `into` would overwrite the push, which may be sent again. 0, or -EBADMSG:
 * forged, changed or said before.
 */
int sealed_result(
	const struct sealed *s, struct flight *f, const struct wire_header *header, uint8_t *from, uint8_t *into);

#endif
