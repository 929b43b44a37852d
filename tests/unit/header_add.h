/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of headers that do not fit: a row says by how much each field differs from one that does. */
#ifndef TESTS_UNIT_HEADER_ADD_H
#define TESTS_UNIT_HEADER_ADD_H

#include "transport/wire.h"

#define TYPE_ADD(from, to) (enum wire_type)((to) - (from))

static inline void header_add(struct wire_header *h, const struct wire_header *by)
{
	h->type = (enum wire_type)((int)h->type + (int)by->type);
	h->length += by->length;
	h->job += by->job;
	h->generation += by->generation;
	h->epoch += by->epoch;
	h->chunk += by->chunk;
	h->rank += by->rank;
	h->round += by->round;
	h->count += by->count;
	h->seq += by->seq;
}

#endif
