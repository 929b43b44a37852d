/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encodes and decodes the 64-byte header. The offsets below are the protocol: changing one needs a
 * new WIRE_VERSION.
 */
#include "transport/wire.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

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
	AT_CODED = 56, /* 1 byte, 0 or 1; zeros in the 7 behind it */
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
	le_put64(out + AT_CODED, header->coded);
}

static int wire_check_length(uint8_t type, uint32_t length)
{
	switch (type) {
	case WIRE_PUSH:
	case WIRE_INIT:
		if (length == 0)
			return -EBADMSG;
		return length > WIRE_PAYLOAD_MAX ? -EMSGSIZE : 0;
	case WIRE_RESULT: /* without payload: of a standby */
		return length > WIRE_PAYLOAD_MAX ? -EMSGSIZE : 0;
	case WIRE_PULL:
	case WIRE_CREDIT:
		return length == 0 ? 0 : -EBADMSG;
	default:
		return -EBADMSG;
	}
}

static bool wire_may_code(uint8_t type, uint32_t length)
{
	return (type == WIRE_PUSH || type == WIRE_RESULT) && length > 0;
}

int wire_decode(const uint8_t in[WIRE_HEADER_BYTES], struct wire_header *out)
{
	uint32_t rank = le_get32(in + AT_RANK);
	uint32_t count = le_get32(in + AT_COUNT);
	int rc;

	if (le_get32(in + AT_MAGIC) != WIRE_MAGIC || le_get64(in + AT_CODED) > 1)
		return -EPROTO;
	if (in[AT_VERSION] != WIRE_VERSION)
		return -EPROTONOSUPPORT;
	rc = wire_check_length(in[AT_TYPE], le_get32(in + AT_LENGTH));
	if (rc < 0)
		return rc;
	if (in[AT_CODED] && !wire_may_code(in[AT_TYPE], le_get32(in + AT_LENGTH)))
		return -EBADMSG;
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
	out->coded = in[AT_CODED];
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

/* ---- datagrams ---- */

enum datagram_offset {
	AT_KIND = 0,
	AT_DATAGRAM_VERSION = 1,
	AT_DATAGRAM_ZERO = 2,
	AT_CONN = 4,
	AT_NUMBER = 8,
	AT_OFFSET = 16,
	AT_ANSWERS = 20,
};

void wire_encode_datagram(const struct wire_datagram *d, uint8_t *out)
{
	memset(out, 0, WIRE_DATAGRAM_BYTES);
	out[AT_KIND] = (uint8_t)d->kind;
	out[AT_DATAGRAM_VERSION] = WIRE_VERSION;
	le_put32(out + AT_CONN, d->conn);
	le_put64(out + AT_NUMBER, d->number);
	le_put32(out + AT_OFFSET, d->offset);
	le_put32(out + AT_ANSWERS, d->answers);
}

void wire_encode_ack(const struct wire_ack *a, uint8_t *out)
{
	le_put64(out, a->largest);
	for (unsigned i = 0; i < WIRE_ACK_WORDS; i++)
		le_put64(out + 8 + (size_t)8 * i, a->below[i]);
	le_put32(out + 40, a->grant);
	le_put32(out + 44, a->delay_us);
}

void wire_encode_probe(const struct wire_probe *p, uint8_t *out)
{
	le_put64(out, p->token);
	le_put32(out + 8, p->fragment | p->alone);
	le_put32(out + 12, p->grant);
	le_put64(out + 16, p->way);
}

static int wire_check_size(uint8_t kind, size_t bytes)
{
	switch (kind) {
	case WIRE_DATA:
		return bytes < WIRE_DATA_BYTES || bytes > WIRE_DATAGRAM_MAX ? -EMSGSIZE : 0;
	case WIRE_ACK:
		return bytes != WIRE_ACK_BYTES ? -EMSGSIZE : 0;
	case WIRE_PROBE:
	case WIRE_PROBED:
		return bytes < WIRE_PROBE_BYTES || bytes > WIRE_DATAGRAM_MAX ? -EMSGSIZE : 0;
	case WIRE_END:
		return bytes != WIRE_DATAGRAM_BYTES ? -EMSGSIZE : 0;
	default:
		return -EBADMSG;
	}
}

int wire_decode_datagram(const uint8_t *in, size_t bytes, struct wire_datagram *out)
{
	uint64_t number;
	bool data;
	int rc;

	if (bytes < WIRE_DATAGRAM_BYTES)
		return -EMSGSIZE;
	if (in[AT_DATAGRAM_VERSION] != WIRE_VERSION)
		return -EPROTONOSUPPORT;
	rc = wire_check_size(in[AT_KIND], bytes);
	if (rc < 0)
		return rc;
	data = in[AT_KIND] == WIRE_DATA;
	number = le_get64(in + AT_NUMBER);
	if (le_get16(in + AT_DATAGRAM_ZERO) != 0 || number % WIRE_NUMBER_OTHER == 0 ||
		data != (number < WIRE_NUMBER_OTHER) || (!data && le_get64(in + AT_OFFSET) != 0))
		return -EBADMSG;
	*out = (struct wire_datagram){
		.kind = (enum wire_kind)in[AT_KIND],
		.conn = le_get32(in + AT_CONN),
		.number = number,
		.offset = le_get32(in + AT_OFFSET),
		.answers = le_get32(in + AT_ANSWERS),
	};
	return 0;
}

void wire_decode_ack(const uint8_t *in, struct wire_ack *out)
{
	out->largest = le_get64(in);
	for (unsigned i = 0; i < WIRE_ACK_WORDS; i++)
		out->below[i] = le_get64(in + 8 + (size_t)8 * i);
	out->grant = le_get32(in + 40);
	out->delay_us = le_get32(in + 44);
}

void wire_decode_probe(const uint8_t *in, struct wire_probe *out)
{
	out->token = le_get64(in);
	out->fragment = le_get32(in + 8) & ~1u;
	out->alone = le_get32(in + 8) & 1;
	out->grant = le_get32(in + 12);
	out->way = le_get64(in + 16);
}
