/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sparse chunks: zeros of their keys need not travel. A push of one may come coded (aggregation/sparse.h), and its
 * result goes coded, each where that is shorter than the elements as they are; so nothing needs more room for it, no
 * credit, slot or buffer. Plain and coded ones of one round are added alike. What is coded is checked before anything
 * believes it, and never held: it is added to the accumulator at once, or, where it has to wait for its turn, staged as
 * the elements that it says.
 *
 * The sum of such a chunk begins with zero, so that it has no -0: a coded push says nothing of the elements that it
 * leaves out, a plain one that they are +0, and either makes the same bits. (Where something else than -0 is added,
 * 0 + x is x.)
 *
 * Plain are: first weights and what else is broadcast, on their way up; all that lies in memory that both ends map, as
 * coding would save nothing there, and what has been checked might change; results of jobs in which each rank has one
 * of its own (spec_rows()): weights; and what goes to a standby and comes from it. A box that lifts sums codes them as
 * a worker does, as spec.lift; a result that came coded from above goes down as it came.
 *
 * Owning core only; nothing blocks, allocates or logs.
 */
#ifndef PHUB_CODING_H
#define PHUB_CODING_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/chunk.h"
#include "transport/transport.h"

/* Bytes of the result region for results that are coded, behind all else. */
uint64_t coding_bytes(const struct spec *spec);

/* May a message with this header, whose trailer has so many bytes, be coded? Its length is that of one, at least. */
bool coding_takes(const struct chunk *chunk, const struct link *link, const struct wire_header *h, uint32_t trailer);
/* A message of a sparse chunk, or a part of one, is counted. 0, or -EILSEQ: it is coded, and no coding of its chunk. */
int coding_receive(const struct chunk *chunk, const struct link *link, const struct event *e);

/* For chunk.c. As chunk_clean(), of a coded payload; a stepwise job's comes back plain. */
const void *coding_clean(struct chunk *chunk, const struct contribution *c);
/* A round of gradients begins, or one that is folded: its sum is zero. */
void coding_begin(struct chunk *chunk, struct shard *shard);

/* The chunk's result is written anew: it does not lie coded any more. */
void coding_renew(struct chunk *chunk);
/*
 * What a reply over this link sends of a result that may lie coded (chunk->coded): that, and the header says so; or
 * chunk->result.
 */
const uint8_t *coding_result(struct chunk *chunk, const struct link *link, struct wire_header *header);
/* A reply with this header, of a sparse chunk, has gone: it is counted. */
void coding_sent(const struct chunk *chunk, const struct link *link, const struct wire_header *h);

/* A result from above, which the transport put to chunk->coded or `payload` says where: the chunk's own now. 0, or
 * -EPROTO. */
int coding_land(struct chunk *chunk, const struct wire_header *h, const void *payload);

#endif
