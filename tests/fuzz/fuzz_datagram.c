/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: any bytes as a datagram, under every kind of seal. What is accepted encodes to the very same bytes, what they
 * say behind it too, and a seal passes if and only if it is the one that is made for these bytes.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/seal.h"
#include "transport/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

static struct seal *fuzz_seal(enum seal_kind kind)
{
	static const uint8_t key[PROOF_KEY] = {1};
	static const struct proof_datagram of = {.nonce = {2}, .core = 3};
	static struct seal *seals[SEAL_NONE + 1];
	struct err e;

	if (!seals[kind])
		fuzz_require(seal_create(kind, key, &of, true, &seals[kind], &e) == 0);
	return seals[kind];
}

static void fuzz_body(const struct wire_datagram *d, const uint8_t *body)
{
	uint8_t again[WIRE_ACK_BYTES - WIRE_DATAGRAM_BYTES];
	struct wire_ack ack;
	struct wire_probe probe;

	if (d->kind == WIRE_ACK) {
		wire_decode_ack(body, &ack);
		wire_encode_ack(&ack, again);
		fuzz_require(memcmp(again, body, WIRE_ACK_BYTES - WIRE_DATAGRAM_BYTES) == 0);
	} else if (d->kind == WIRE_PROBE || d->kind == WIRE_PROBED) {
		wire_decode_probe(body, &probe);
		wire_encode_probe(&probe, again);
		fuzz_require(memcmp(again, body, WIRE_PROBE_BYTES - WIRE_DATAGRAM_BYTES) == 0);
	}
}

static void fuzz_check(struct seal *s, enum seal_kind kind, uint64_t number, const uint8_t *data, size_t size)
{
	bool passed = seal_check(s, number, data, size);
	uint8_t *copy = malloc(size);

	fuzz_require(copy != NULL);
	memcpy(copy, data, size);
	fuzz_require(seal_make(s, number, copy, WIRE_DATAGRAM_BYTES, copy + WIRE_DATAGRAM_BYTES,
			     size - WIRE_DATAGRAM_BYTES) == 0);
	fuzz_require(seal_check(s, number, copy, size));
	fuzz_require(passed == (kind == SEAL_NONE || memcmp(copy, data, size) == 0));
	free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t again[WIRE_DATAGRAM_BYTES];
	struct wire_datagram d;

	for (enum seal_kind kind = SEAL_GMAC; size < WIRE_DATAGRAM_BYTES && kind <= SEAL_NONE; kind++)
		fuzz_require(!seal_check(fuzz_seal(kind), 1, data, size));
	if (wire_decode_datagram(data, size, &d) < 0)
		return 0;
	fuzz_require(d.kind >= WIRE_DATA && d.kind <= WIRE_END && d.number % WIRE_NUMBER_OTHER != 0);
	fuzz_require((d.kind == WIRE_DATA) == (d.number < WIRE_NUMBER_OTHER));
	wire_encode_datagram(&d, again);
	memcpy(again + WIRE_SEAL_AT, data + WIRE_SEAL_AT, WIRE_SEAL_BYTES);
	fuzz_require(memcmp(again, data, WIRE_DATAGRAM_BYTES) == 0);
	fuzz_body(&d, data + WIRE_DATAGRAM_BYTES);
	for (enum seal_kind kind = SEAL_GMAC; kind <= SEAL_NONE; kind++)
		fuzz_check(fuzz_seal(kind), kind, d.number, data, size);
	return 0;
}
