/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model builder: appends tensors to a list that doubles as it grows, and names them.
 */
#include "topology/model_builder.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define MODEL_BUILDER_CAPACITY_FIRST 64u

int model_builder_add(struct model_builder *builder, const struct model_tensor *tensor)
{
	if (builder->rc < 0)
		return builder->rc;
	if (builder->count == MODEL_TENSOR_COUNT_MAX)
		return builder->rc = -EFBIG;
	if (builder->count == builder->capacity) {
		size_t capacity = builder->capacity ? 2 * builder->capacity : MODEL_BUILDER_CAPACITY_FIRST;
		struct model_tensor *grown = realloc(builder->tensors, capacity * sizeof(*grown));

		if (!grown)
			return builder->rc = -ENOMEM;
		builder->tensors = grown;
		builder->capacity = capacity;
	}
	builder->tensors[builder->count++] = *tensor;
	return 0;
}

void model_builder_scope(struct model_builder *builder, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	int length = vsnprintf(builder->scope, sizeof(builder->scope), format, args);
	va_end(args);
	if (length < 0 || (size_t)length >= sizeof(builder->scope))
		builder->rc = -ENAMETOOLONG;
}

/* Add an f32 tensor of group 0 named scope.name.leaf. */
static void model_builder_put(
	struct model_builder *builder, const char *name, const char *leaf, unsigned dims, const uint64_t *shape)
{
	struct model_tensor tensor = {.elements = 1, .dims = (uint8_t)dims, .dtype = CHUNK_F32};
	const char *dot_name = builder->scope[0] && name[0] ? "." : "";
	const char *dot_leaf = (builder->scope[0] || name[0]) && leaf[0] ? "." : "";
	int length = snprintf(
		tensor.name, sizeof(tensor.name), "%s%s%s%s%s", builder->scope, dot_name, name, dot_leaf, leaf);

	if (length < 0 || (size_t)length >= sizeof(tensor.name)) {
		builder->rc = -ENAMETOOLONG;
		return;
	}
	for (unsigned i = 0; i < dims; i++) {
		tensor.shape[i] = shape[i];
		tensor.elements *= shape[i];
	}
	model_builder_add(builder, &tensor);
}

void model_builder_param(struct model_builder *builder, const char *name, const char *leaf, uint64_t d0, uint64_t d1)
{
	const uint64_t shape[2] = {d0, d1};

	model_builder_put(builder, name, leaf, d1 ? 2 : 1, shape);
}

void model_builder_conv(struct model_builder *builder, const char *name, unsigned in, unsigned out, unsigned kernel_h,
	unsigned kernel_w, bool bias)
{
	const uint64_t shape[4] = {out, in, kernel_h, kernel_w};

	model_builder_put(builder, name, "weight", 4, shape);
	if (bias)
		model_builder_put(builder, name, "bias", 1, shape);
}

void model_builder_norm(struct model_builder *builder, const char *name, unsigned width)
{
	model_builder_param(builder, name, "weight", width, 0);
	model_builder_param(builder, name, "bias", width, 0);
}

void model_builder_fc(struct model_builder *builder, const char *name, unsigned in, unsigned out)
{
	model_builder_param(builder, name, "weight", out, in);
	model_builder_param(builder, name, "bias", out, 0);
}
