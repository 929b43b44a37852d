/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of element types and the bulk conversions; see convert.h.
 */
#include "aggregation/convert.h"

#include <errno.h>

static const char *const convert_names[DTYPE_COUNT][4] = {
	[DTYPE_F32] = {"f32", "fp32", "float32", "float"},
	[DTYPE_F16] = {"f16", "fp16", "float16", "half"},
	[DTYPE_BF16] = {"bf16", "bfloat16"},
};

const char *dtype_name(enum dtype dtype)
{
	return dtype_valid(dtype) ? convert_names[dtype][0] : "invalid";
}

int dtype_parse(const char *name, enum dtype *dtype)
{
	for (unsigned d = 0; d < DTYPE_COUNT; d++) {
		for (unsigned alias = 0; alias < 4 && convert_names[d][alias]; alias++) {
			if (strcmp(name, convert_names[d][alias]) == 0) {
				*dtype = (enum dtype)d;
				return 0;
			}
		}
	}
	return -EINVAL;
}

/* memcpy keeps unaligned pointers legal; compilers turn it into plain loads. */
static inline uint16_t convert_load16(const void *src, size_t index)
{
	uint16_t value;

	memcpy(&value, (const unsigned char *)src + index * sizeof(value), sizeof(value));
	return value;
}

static inline void convert_store16(void *dst, size_t index, uint16_t value)
{
	memcpy((unsigned char *)dst + index * sizeof(value), &value, sizeof(value));
}

static inline float convert_load32(const void *src, size_t index)
{
	float value;

	memcpy(&value, (const unsigned char *)src + index * sizeof(value), sizeof(value));
	return value;
}

static inline void convert_store32(void *dst, size_t index, float value)
{
	memcpy((unsigned char *)dst + index * sizeof(value), &value, sizeof(value));
}

void convert_to_f32(float *dst, const void *src, enum dtype src_dtype, size_t count)
{
	switch (src_dtype) {
	case DTYPE_F32:
		if (count)
			memmove(dst, src, count * sizeof(*dst));
		break;
	case DTYPE_F16:
		for (size_t i = 0; i < count; i++)
			convert_store32(dst, i, convert_f16_to_f32(convert_load16(src, i)));
		break;
	case DTYPE_BF16:
		for (size_t i = 0; i < count; i++)
			convert_store32(dst, i, convert_bf16_to_f32(convert_load16(src, i)));
		break;
	}
}

void convert_from_f32(void *dst, enum dtype dst_dtype, const float *src, size_t count)
{
	switch (dst_dtype) {
	case DTYPE_F32:
		if (count)
			memmove(dst, src, count * sizeof(*src));
		break;
	case DTYPE_F16:
		for (size_t i = 0; i < count; i++)
			convert_store16(dst, i, convert_f32_to_f16(convert_load32(src, i)));
		break;
	case DTYPE_BF16:
		for (size_t i = 0; i < count; i++)
			convert_store16(dst, i, convert_f32_to_bf16(convert_load32(src, i)));
		break;
	}
}
