/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: any 64 bytes as a header, and as the parcel that a worker gets with shared memory. What is accepted obeys the
 * bounds of wire.h, and encodes to the very same bytes.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/shm_parcel.h"
#include "transport/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

static void fuzz_parcel(const uint8_t *data)
{
	uint8_t again[SHM_PARCEL_BYTES];
	struct shm_parcel p = {0};

	if (shm_parcel_decode(data, &p) < 0)
		return;
	shm_parcel_encode(&p, again);
	fuzz_require(memcmp(again, data, SHM_PARCEL_BYTES) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t again[WIRE_HEADER_BYTES];
	struct wire_header h;

	if (size < WIRE_HEADER_BYTES)
		return 0;
	fuzz_parcel(data);
	if (wire_decode(data, &h) < 0)
		return 0;
	fuzz_require(wire_type_name(h.type)[0] != '?');
	fuzz_require(h.length <= WIRE_PAYLOAD_MAX && h.rank < WIRE_WORLD_MAX && h.count <= WIRE_WORLD_MAX);
	if (h.type != WIRE_RESULT) /* of a standby: without payload */
		fuzz_require((h.length == 0) == (h.type == WIRE_PULL || h.type == WIRE_CREDIT));
	wire_encode(&h, again);
	fuzz_require(memcmp(again, data, WIRE_HEADER_BYTES) == 0);
	return 0;
}
