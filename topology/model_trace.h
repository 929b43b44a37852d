/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces of a training step: the layers of a model in forward order, how long each computes forward and backward, and
 * the tensor that it exchanges when it has parameters. `phub bench train` replays them. Pure: nothing here does I/O.
 */
#ifndef PHUB_TOPOLOGY_MODEL_TRACE_H
#define PHUB_TOPOLOGY_MODEL_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "topology/model.h"

#define MODEL_TRACE_LAYER_COUNT_MAX 1000000u
#define MODEL_TRACE_MS_MAX          3600000u /* of one layer, one way */
#define MODEL_TRACE_NO_TENSOR       UINT32_MAX

struct model_layer {
	char name[MODEL_TENSOR_NAME_BYTES];
	uint64_t forward_ns, backward_ns;
	uint32_t tensor; /* index in model.tensors, or MODEL_TRACE_NO_TENSOR */
};

struct model_trace {
	struct model model;         /* at least one tensor, named as their layers are */
	struct model_layer *layers; /* forward order; their tensors come in that order too */
	size_t count;
};

/* Read a CSV from memory: the first line names its columns, name,forward_ms,backward_ms,elements and, when wanted,
 * dtype and group, in any order; `bytes` may stand for `elements`. Times are milliseconds with up to six decimals. A
 * layer whose elements are 0 or empty has no parameters. Dtype and group default to f32 and 0; blank lines and lines
 * that begin with '#' are skipped. The text needs no NUL and may hold any bytes. Returns 0, -EINVAL with *e as
 * "FILE:LINE: what is wrong and what is allowed", -EFBIG for a bound, or -ENOMEM. *out is written only on success and
 * is then the caller's, for model_trace_destroy(). Any thread; allocates. */
int model_trace_parse(const char *text, size_t len, const char *file_name, struct model_trace *out, struct err *e);

/* Make a trace of a model that has none, as a first guess: every tensor of two or more dimensions takes as long as any
 * other, one-dimensional ones (bias, norm) take no time, and backward takes twice as long as forward. All
 * together take compute_ns. *model is moved into *out on success. Returns 0 or -ENOMEM. Any thread; allocates. */
int model_trace_guess(struct model *model, uint64_t compute_ns, struct model_trace *out);

/* Free layers and model, and clear *t. A zeroed trace is allowed. */
void model_trace_destroy(struct model_trace *t);

/* Time of all layers, both ways. */
uint64_t model_trace_compute_ns(const struct model_trace *t);

#endif
