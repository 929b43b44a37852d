/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encodes and decodes the 64-byte header. The offsets below are the protocol: changing one needs a
 * new WIRE_VERSION.
 */
#include "transport/wire.h"

#include <errno.h>

#include "transport/le.h"

#define WIRE_MAGIC 0x42554850u /* "PHUB" in the order of the bytes */

enum wire_offset {
	AT_MAGIC = 0,
	AT_VERSION = 4,
	AT_TYPE = 5,
	AT_PRIORITY = 6,
	AT_LENGTH = 8,
	AT_JOB = 12,
	AT_GENERATION = 16,
	AT_EPOCH = 20,
	AT_CHUNK = 24,
	AT_RANK = 28,
	AT_ROUND = 32,
	AT_HYPER = 40,
	AT_COUNT = 44,
	AT_SEQ = 48,
	AT_CREDIT = 52,
	AT_RESERVED = 56, /* 8 bytes, zero */
};

void wire_encode(const struct wire_header *header, uint8_t out[WIRE_HEADER_BYTES])
{
	le_put32(out + AT_MAGIC, WIRE_MAGIC);
	out[AT_VERSION] = WIRE_VERSION;
	out[AT_TYPE] = (uint8_t)header->type;
	le_put16(out + AT_PRIORITY, header->priority);
	le_put32(out + AT_LENGTH, header->length);
	le_put32(out + AT_JOB, header->job);
	le_put32(out + AT_GENERATION, header->generation);
	le_put32(out + AT_EPOCH, header->epoch);
	le_put32(out + AT_CHUNK, header->chunk);
	le_put32(out + AT_RANK, header->rank);
	le_put64(out + AT_ROUND, header->round);
	le_put32(out + AT_HYPER, header->hyper);
	le_put32(out + AT_COUNT, header->count);
	le_put32(out + AT_SEQ, header->seq);
	le_put32(out + AT_CREDIT, header->credit);
	le_put64(out + AT_RESERVED, 0);
}

static int wire_check_length(uint8_t type, uint32_t length)
{
	switch (type) {
	case WIRE_PUSH:
	case WIRE_INIT:
	case WIRE_RESULT:
		if (length == 0)
			return -EBADMSG;
		return length > WIRE_PAYLOAD_MAX ? -EMSGSIZE : 0;
	case WIRE_PULL:
	case WIRE_CREDIT:
		return length == 0 ? 0 : -EBADMSG;
	default:
		return -EBADMSG;
	}
}

int wire_decode(const uint8_t in[WIRE_HEADER_BYTES], struct wire_header *out)
{
	uint32_t rank = le_get32(in + AT_RANK);
	uint32_t count = le_get32(in + AT_COUNT);
	int rc;

	if (le_get32(in + AT_MAGIC) != WIRE_MAGIC || le_get64(in + AT_RESERVED) != 0)
		return -EPROTO;
	if (in[AT_VERSION] != WIRE_VERSION)
		return -EPROTONOSUPPORT;
	rc = wire_check_length(in[AT_TYPE], le_get32(in + AT_LENGTH));
	if (rc < 0)
		return rc;
	if (rank >= WIRE_WORLD_MAX || count > WIRE_WORLD_MAX)
		return -ERANGE;

	out->type = (enum wire_type)in[AT_TYPE];
	out->length = le_get32(in + AT_LENGTH);
	out->job = le_get32(in + AT_JOB);
	out->generation = le_get32(in + AT_GENERATION);
	out->epoch = le_get32(in + AT_EPOCH);
	out->chunk = le_get32(in + AT_CHUNK);
	out->rank = rank;
	out->round = le_get64(in + AT_ROUND);
	out->hyper = le_get32(in + AT_HYPER);
	out->count = count;
	out->seq = le_get32(in + AT_SEQ);
	out->credit = le_get32(in + AT_CREDIT);
	out->priority = le_get16(in + AT_PRIORITY);
	return 0;
}

const char *wire_type_name(enum wire_type type)
{
	switch (type) {
	case WIRE_PUSH:
		return "push";
	case WIRE_INIT:
		return "init";
	case WIRE_PULL:
		return "pull";
	case WIRE_RESULT:
		return "result";
	case WIRE_CREDIT:
		return "credit";
	}
	return "?";
}
