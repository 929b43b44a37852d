/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: what a worker, or a box, says is a coded chunk (aggregation/sparse.h). What passes the check is decoded within
 * its elements, adds what it decodes to, and is what would have been sent of these elements, if it has the shorter
 * form.
 *
 *      1 byte    type of the elements
 *      2 bytes   how many, little-endian
 *      then      the coding
 */
#include "aggregation/sparse.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

/* Exactly as large as they may be used, so that a sanitizer sees a byte too many. */
static void fuzz_take(const uint8_t *in, size_t bytes, enum dtype dtype, size_t count, size_t values)
{
	size_t plain_bytes = count * dtype_size(dtype), found = 0, again, said;
	uint8_t *plain = malloc(plain_bytes), *code = malloc(plain_bytes);
	float *sum = calloc(count, sizeof(*sum)), *one = malloc(sizeof(*one) * count);

	fuzz_require(plain && code && sum && one);
	fuzz_require((const uint8_t *)sparse_values(in, &said) == in + SPARSE_HEAD_BYTES && said == values);
	sparse_decode(plain, in, dtype, count);
	sparse_add(sum, in, dtype, count);
	convert_to_f32(one, plain, dtype, (uint32_t)count);
	for (size_t i = 0; i < count; i++) {
		bool zero = true;

		for (size_t k = 0; k < dtype_size(dtype); k++)
			zero = zero && plain[i * dtype_size(dtype) + k] == 0;
		found += !zero;
		fuzz_require(sum[i] == one[i] || (sum[i] != sum[i] && one[i] != one[i]));
	}
	fuzz_require(found == values);
	again = sparse_encode(code, plain, dtype, count);
	fuzz_require(again > 0 && again <= bytes);
	fuzz_require(code[4] != in[4] || (again == bytes && memcmp(code, in, bytes) == 0));
	free(plain);
	free(code);
	free(sum);
	free(one);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	enum dtype dtype;
	size_t count, values;
	uint8_t *in;

	if (size < 4)
		return 0;
	dtype = (enum dtype)(data[0] % 3);
	count = 1 + (data[1] | (size_t)data[2] << 8);
	in = malloc(size - 3);
	fuzz_require(in != NULL);
	memcpy(in, data + 3, size - 3);
	if (sparse_check(in, size - 3, dtype, count, &values) == 0)
		fuzz_take(in, size - 3, dtype, count, values);
	free(in);
	return 0;
}
