/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: any 64 bytes as a header. What is accepted obeys the bounds of wire.h, and encodes to the very same bytes.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t again[WIRE_HEADER_BYTES];
	struct wire_header h;

	if (size < WIRE_HEADER_BYTES || wire_decode(data, &h) < 0)
		return 0;
	fuzz_require(wire_type_name(h.type)[0] != '?');
	fuzz_require(h.length <= WIRE_PAYLOAD_MAX && h.rank < WIRE_WORLD_MAX && h.count <= WIRE_WORLD_MAX);
	fuzz_require((h.length == 0) == (h.type == WIRE_PULL || h.type == WIRE_CREDIT));
	wire_encode(&h, again);
	fuzz_require(memcmp(again, data, WIRE_HEADER_BYTES) == 0);
	return 0;
}
