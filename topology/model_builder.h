/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model builder: a growing list of tensors, and the layers that models are made of. Used by models_*.c and the CSV
 * reader. A layer appends its parameters in torch's order under the name scope.name.leaf; the first failure is kept in
 * `rc` and later calls do nothing, so that a model reads as a list of layers and is checked once at its end.
 */
#ifndef PHUB_TOPOLOGY_MODEL_BUILDER_H
#define PHUB_TOPOLOGY_MODEL_BUILDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "topology/model.h"

#define MODEL_SCOPE_BYTES 64u

/* Zeroed is empty. Owned by one thread; the tensors are freed, or moved into a model, by whoever made it. */
struct model_builder {
	struct model_tensor *tensors;
	size_t count;
	size_t capacity;
	int rc; /* 0, -ENOMEM, -EFBIG (MODEL_TENSOR_COUNT_MAX) or -ENAMETOOLONG */
	char scope[MODEL_SCOPE_BYTES];
};

/* Append *tensor. Returns builder->rc. */
int model_builder_add(struct model_builder *builder, const struct model_tensor *tensor);

/* Set the scope under which the next layers are named. */
void model_builder_scope(struct model_builder *builder, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One tensor of one or two dimensions (d1 is 0 for one). Empty scope, name or leaf leave no dot. */
void model_builder_param(struct model_builder *builder, const char *name, const char *leaf, uint64_t d0, uint64_t d1);

/* 2-D convolution: weight [out, in, kernel_h, kernel_w], and bias [out] when it has one. */
void model_builder_conv(struct model_builder *builder, const char *name, unsigned in, unsigned out, unsigned kernel_h,
	unsigned kernel_w, bool bias);

/* Batch or layer normalization: weight [width], bias [width]. */
void model_builder_norm(struct model_builder *builder, const char *name, unsigned width);

/* Fully connected (torch.nn.Linear): weight [out, in], bias [out]. */
void model_builder_fc(struct model_builder *builder, const char *name, unsigned in, unsigned out);

#endif
