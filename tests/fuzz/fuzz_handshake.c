/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: either side of a handshake against a peer that says anything, in pieces. The first byte chooses the side and
 * the size of the pieces. A side never wants more than it has room for, and says what it said before once it has
 * failed.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/handshake.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

/* Drains the output, as a transport would before it reads. */
static void fuzz_send(struct handshake *h)
{
	size_t bytes;

	handshake_output(h, &bytes);
	fuzz_require(bytes <= HANDSHAKE_BYTES_MAX);
	handshake_sent(h, bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint8_t nonce[PROOF_NONCE] = {1};
	static const uint8_t key[PROOF_KEY] = {2};
	struct handshake h;
	size_t step;

	if (size == 0)
		return 0;
	if (data[0] & 1)
		handshake_begin_box(&h, nonce);
	else
		handshake_begin_worker(&h, 3, 4, key);
	step = 1 + (data[0] >> 1);
	data++;
	size--;
	for (;;) {
		size_t bytes = handshake_wants(&h);
		int rc;

		fuzz_require(bytes <= HANDSHAKE_BYTES_MAX);
		fuzz_send(&h);
		if (h.state == HANDSHAKE_AWAIT_ANSWER) {
			handshake_answer(&h, size ? data[0] : 0);
			continue;
		}
		if (bytes > step)
			bytes = step;
		if (bytes > size)
			bytes = size;
		if (bytes == 0)
			break;
		rc = handshake_input(&h, data, bytes);
		fuzz_require((rc < 0) == (h.state == HANDSHAKE_FAILED) && (rc == 0 || rc == h.error));
		data += bytes;
		size -= bytes;
	}
	if (h.state == HANDSHAKE_FAILED || h.state == HANDSHAKE_DONE)
		fuzz_require(handshake_wants(&h) == 0 && handshake_input(&h, "", 1) == -EINVAL);
	return 0;
}
