/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: who knocks, from where, and when, against the limits on strangers. Whatever the order: nobody gets more than
 * was saved up and what came since; one source no more than its share, where it was not forgotten for others; who gave
 * his token back is let in again; and with no limit everybody is.
 *
 *      2 bytes   rates of all and of one source, 0 to 255 a second
 *      then      operations of 3 bytes: source (its /64 in the upper 4 bits), milliseconds since the last one / 8, and
 *                0: knocks; 1: knocks, and proves himself; 2: from nobody knows where
 */
#include "transport/rate.h"

#include <stdlib.h>
#include <string.h>

enum { NS_PER_MS = 1000000, NS_PER_S = 1000000000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

/* What was let in for good, and so was paid for: of all, and of each /64. */
struct fuzz_paid {
	uint64_t all, of[16];
};

/* No more than a full bucket at first, and what flowed in since; a token more for what is rounded. */
static void fuzz_check(uint64_t rate, uint64_t took, uint64_t span_ns)
{
	if (rate)
		fuzz_require(took <= rate * RATE_BURST_S + span_ns / 1000 * rate / (NS_PER_S / 1000) + 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_paid paid = {0};
	uint64_t now_ns = NS_PER_S, began_ns = now_ns;
	uint64_t all, source;
	struct rate *r;

	if (size < 2)
		return 0;
	all = data[0];
	source = data[1];
	r = rate_create(all, source);
	fuzz_require(r != NULL);
	for (size_t i = 2; i + 3 <= size; i += 3) {
		uint8_t address[16] = {
			0x20, 0x01, 0, 0, 0, 0, 0, (uint8_t)(data[i] >> 4), 0, 0, 0, 0, 0, 0, 0, data[i]};
		unsigned what = data[i + 2] % 3;
		const uint8_t *from = what == 2 ? NULL : address;
		bool in;

		now_ns += (uint64_t)data[i + 1] * 8 * NS_PER_MS;
		in = rate_take(r, from, now_ns);
		fuzz_require(in || all || (source && from));
		if (!in)
			continue;
		if (what == 1) {
			rate_give_back(r, from);
			fuzz_require(rate_take(r, from, now_ns)); /* it was given back whole */
		}
		paid.all++;
		paid.of[data[i] >> 4] += from != NULL;
		fuzz_check(all, paid.all, now_ns - began_ns);
		if (from)
			fuzz_check(source, paid.of[data[i] >> 4], now_ns - began_ns);
	}
	rate_destroy(r);
	return 0;
}
