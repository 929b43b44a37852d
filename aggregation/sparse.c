/* SPDX-License-Identifier: Apache-2.0
 *
 * A chunk is looked at 64 elements at a time: where all of them are zero, which is the rule, that is one OR over them.
 */
#include "aggregation/sparse.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#define SPARSE_BLOCK 64u

static uint32_t sparse_get32(const uint8_t *in)
{
	return (uint32_t)in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
}

static void sparse_put32(uint8_t *out, uint32_t value)
{
	for (unsigned i = 0; i < 4; i++)
		out[i] = (uint8_t)(value >> (8 * i));
}

/* Which of up to 64 elements from `at` on are not zero. */
static uint64_t sparse_mask32(const uint8_t *src, size_t at, size_t count)
{
	uint32_t block[SPARSE_BLOCK] = {0}, any = 0;
	size_t n = count - at < SPARSE_BLOCK ? count - at : SPARSE_BLOCK;
	uint64_t mask = 0;

	memcpy(block, src + at * 4, n * 4);
	for (unsigned i = 0; i < SPARSE_BLOCK; i++)
		any |= block[i];
	for (unsigned i = 0; any && i < SPARSE_BLOCK; i++)
		mask |= (uint64_t)(block[i] != 0) << i;
	return mask;
}

static uint64_t sparse_mask16(const uint8_t *src, size_t at, size_t count)
{
	uint16_t block[SPARSE_BLOCK] = {0}, any = 0;
	size_t n = count - at < SPARSE_BLOCK ? count - at : SPARSE_BLOCK;
	uint64_t mask = 0;

	memcpy(block, src + at * 2, n * 2);
	for (unsigned i = 0; i < SPARSE_BLOCK; i++)
		any |= block[i];
	for (unsigned i = 0; any && i < SPARSE_BLOCK; i++)
		mask |= (uint64_t)(block[i] != 0) << i;
	return mask;
}

static uint64_t sparse_mask(const uint8_t *src, enum dtype dtype, size_t at, size_t count)
{
	return dtype == DTYPE_F32 ? sparse_mask32(src, at, count) : sparse_mask16(src, at, count);
}

static size_t sparse_gap_bytes(size_t gap)
{
	return gap < 1u << 7 ? 1 : gap < 1u << 14 ? 2 : 3;
}

/* What the values take, up to the index. */
static size_t sparse_values_bytes(size_t values, enum dtype dtype)
{
	return (values * dtype_size(dtype) + 3) & ~(size_t)3;
}

static size_t sparse_bitmap_bytes(size_t count)
{
	return (count + 7) / 8;
}

/* How many elements are not zero, and what their gaps take. */
static size_t sparse_measure(const uint8_t *src, enum dtype dtype, size_t count, size_t *gaps_bytes)
{
	size_t values = 0, next = 0;

	*gaps_bytes = 0;
	for (size_t at = 0; at < count; at += SPARSE_BLOCK) {
		for (uint64_t mask = sparse_mask(src, dtype, at, count); mask; mask &= mask - 1) {
			size_t i = at + (unsigned)__builtin_ctzll(mask);

			*gaps_bytes += sparse_gap_bytes(i - next);
			next = i + 1;
			values++;
		}
	}
	return values;
}

static uint8_t *sparse_put_gap(uint8_t *out, size_t gap)
{
	for (; gap >= 1u << 7; gap >>= 7)
		*out++ = (uint8_t)(gap | 0x80);
	*out++ = (uint8_t)gap;
	return out;
}

/* The next number, of which sparse_check() has seen that it is one. */
static const uint8_t *sparse_get_gap(const uint8_t *in, size_t *gap)
{
	unsigned shift = 0;

	*gap = 0;
	do
		*gap |= (size_t)(*in & 0x7f) << shift;
	while (shift += 7, *in++ & 0x80);
	return in;
}

static void sparse_write(uint8_t *out, const uint8_t *src, enum dtype dtype, size_t count, size_t values, bool bitmap)
{
	size_t size = dtype_size(dtype), next = 0;
	uint8_t *value = out + SPARSE_HEAD_BYTES, *index = value + sparse_values_bytes(values, dtype);

	sparse_put32(out, (uint32_t)values);
	sparse_put32(out + 4, bitmap ? SPARSE_BITMAP : SPARSE_GAPS);
	memset(value + values * size, 0, (size_t)(index - value) - values * size);
	for (size_t at = 0; at < count; at += SPARSE_BLOCK) {
		uint64_t mask = sparse_mask(src, dtype, at, count);

		for (size_t byte = at / 8; bitmap && byte < sparse_bitmap_bytes(count) && byte < at / 8 + 8; byte++)
			index[byte] = (uint8_t)(mask >> (8 * (byte - at / 8)));
		for (; mask; mask &= mask - 1) {
			size_t i = at + (unsigned)__builtin_ctzll(mask);

			memcpy(value, src + i * size, size);
			value += size;
			if (!bitmap)
				index = sparse_put_gap(index, i - next);
			next = i + 1;
		}
	}
}

size_t sparse_encode(void *out, const void *src, enum dtype dtype, size_t count)
{
	size_t gaps, values = sparse_measure(src, dtype, count, &gaps);
	bool bitmap = sparse_bitmap_bytes(count) < gaps;
	size_t bytes =
		SPARSE_HEAD_BYTES + sparse_values_bytes(values, dtype) + (bitmap ? sparse_bitmap_bytes(count) : gaps);

	if (bytes >= count * dtype_size(dtype))
		return 0;
	sparse_write(out, src, dtype, count, values, bitmap);
	return bytes;
}

/* ---- what comes ---- */

/* Does the bitmap have so many bits, and none behind the last element? */
static bool sparse_bitmap_fits(const uint8_t *index, size_t bytes, size_t count, size_t values)
{
	size_t bits = 0;

	if (bytes != sparse_bitmap_bytes(count) || (count % 8 && index[bytes - 1] >> count % 8))
		return false;
	for (size_t i = 0; i < bytes; i++)
		bits += (unsigned)__builtin_popcount(index[i]);
	return bits == values;
}

/* One number, in as few bytes as it needs. Returns the bytes, or 0 when it is none. */
static size_t sparse_gap_read(const uint8_t *in, size_t bytes, size_t *gap)
{
	size_t value = 0;

	for (size_t i = 0; i < bytes && i < 3; i++) {
		value |= (size_t)(in[i] & 0x7f) << (7 * i);
		if (in[i] & 0x80)
			continue;
		*gap = value;
		return i > 0 && in[i] == 0 ? 0 : i + 1;
	}
	return 0;
}

static bool sparse_gaps_fit(const uint8_t *index, size_t bytes, size_t count, size_t values)
{
	size_t next = 0, gap, used;

	for (; values > 0; values--, index += used, bytes -= used) {
		used = sparse_gap_read(index, bytes, &gap);
		if (used == 0 || gap >= count - next)
			return false;
		next += gap + 1;
	}
	return bytes == 0;
}

/* The zeros behind the values are zeros, and no value is one. */
static bool sparse_values_fit(const uint8_t *value, size_t values, enum dtype dtype)
{
	size_t size = dtype_size(dtype);

	for (size_t i = values * size; i < sparse_values_bytes(values, dtype); i++)
		if (value[i])
			return false;
	for (size_t at = 0; at < values; at += SPARSE_BLOCK) {
		size_t n = values - at < SPARSE_BLOCK ? values - at : SPARSE_BLOCK;
		uint64_t all = n < SPARSE_BLOCK ? (UINT64_C(1) << n) - 1 : UINT64_MAX;

		if (sparse_mask(value, dtype, at, values) != all)
			return false;
	}
	return true;
}

int sparse_check(const void *in, size_t bytes, enum dtype dtype, size_t count, size_t *values)
{
	const uint8_t *head = in;
	size_t n, before;
	uint32_t form;
	bool fits;

	if (bytes < SPARSE_HEAD_BYTES || bytes >= count * dtype_size(dtype) || count > SPARSE_ELEMENTS_MAX)
		return -EBADMSG;
	n = sparse_get32(head);
	form = sparse_get32(head + 4);
	if (n > count || SPARSE_HEAD_BYTES + sparse_values_bytes(n, dtype) > bytes)
		return -EBADMSG;
	before = SPARSE_HEAD_BYTES + sparse_values_bytes(n, dtype);
	if (form == SPARSE_BITMAP)
		fits = sparse_bitmap_fits(head + before, bytes - before, count, n);
	else
		fits = form == SPARSE_GAPS && sparse_gaps_fit(head + before, bytes - before, count, n);
	if (!fits || !sparse_values_fit(head + SPARSE_HEAD_BYTES, n, dtype))
		return -EBADMSG;
	if (values)
		*values = n;
	return 0;
}

/* ---- what was checked ---- */

/* Walks over the places of the values. */
struct sparse_walk {
	const uint8_t *index; /* SPARSE_GAPS: what is left of it */
	bool bitmap;
	size_t next;   /* SPARSE_GAPS: the element behind the last one; SPARSE_BITMAP: of `bits` */
	uint64_t bits; /* SPARSE_BITMAP: what is left of the block before `next` */
	size_t bytes;  /* SPARSE_BITMAP: of the whole */
};

static struct sparse_walk sparse_walk_begin(const uint8_t *in, enum dtype dtype, size_t count, size_t values)
{
	return (struct sparse_walk){
		.index = in + SPARSE_HEAD_BYTES + sparse_values_bytes(values, dtype),
		.bitmap = sparse_get32(in + 4) == SPARSE_BITMAP,
		.bytes = sparse_bitmap_bytes(count),
	};
}

static size_t sparse_walk_next(struct sparse_walk *w)
{
	size_t gap, at;

	if (!w->bitmap) {
		w->index = sparse_get_gap(w->index, &gap);
		at = w->next + gap;
		w->next = at + 1;
		return at;
	}
	while (!w->bits) { /* there is one more value: somewhere ahead is its bit */
		size_t byte = w->next / 8, n = w->bytes - byte < 8 ? w->bytes - byte : 8;

		for (size_t i = 0; i < n; i++)
			w->bits |= (uint64_t)w->index[byte + i] << (8 * i);
		w->next += SPARSE_BLOCK;
	}
	at = w->next - SPARSE_BLOCK + (unsigned)__builtin_ctzll(w->bits);
	w->bits &= w->bits - 1;
	return at;
}

static float sparse_value(const uint8_t *value, enum dtype dtype)
{
	uint16_t half;
	float f;

	if (dtype == DTYPE_F32) {
		memcpy(&f, value, sizeof(f));
		return f;
	}
	memcpy(&half, value, sizeof(half));
	return dtype == DTYPE_F16 ? convert_f16_to_f32(half) : convert_bf16_to_f32(half);
}

const void *sparse_values(const void *in, size_t *count)
{
	*count = sparse_get32(in);
	return (const uint8_t *)in + SPARSE_HEAD_BYTES;
}

void sparse_add(float *acc, const void *in, enum dtype dtype, size_t count)
{
	size_t values = sparse_get32(in), size = dtype_size(dtype);
	struct sparse_walk walk = sparse_walk_begin(in, dtype, count, values);
	const uint8_t *value = (const uint8_t *)in + SPARSE_HEAD_BYTES;

	for (; values > 0; values--, value += size)
		acc[sparse_walk_next(&walk)] += sparse_value(value, dtype);
}

void sparse_decode(void *dst, const void *in, enum dtype dtype, size_t count)
{
	size_t values = sparse_get32(in), size = dtype_size(dtype);
	struct sparse_walk walk = sparse_walk_begin(in, dtype, count, values);
	const uint8_t *value = (const uint8_t *)in + SPARSE_HEAD_BYTES;

	memset(dst, 0, count * size);
	for (; values > 0; values--, value += size)
		memcpy((uint8_t *)dst + sparse_walk_next(&walk) * size, value, size);
}
