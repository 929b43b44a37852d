/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models: lists of tensors to exchange, in forward order: the ones `--model NAME` knows (models_vision.c and
 * models_text.c generate them from the published architectures), and lists of one's own, read from CSV. Benches,
 * `phub plan` and tests call it; nothing here does I/O.
 */
#ifndef PHUB_TOPOLOGY_MODEL_H
#define PHUB_TOPOLOGY_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "topology/chunking.h"

#define MODEL_NAME_BYTES        64u  /* of a model, with its NUL */
#define MODEL_TENSOR_NAME_BYTES 128u /* of a tensor, with its NUL */
#define MODEL_DIMS_MAX          8u
#define MODEL_TENSOR_COUNT_MAX  1000000u
#define MODEL_CSV_BYTES_MAX     (256u << 20)
#define MODEL_ELEMENTS_MAX      (UINT64_C(1) << 48) /* of one tensor, and of a whole model */

struct model_tensor {
	char name[MODEL_TENSOR_NAME_BYTES];
	uint64_t elements; /* product of shape[0 .. dims - 1], at least 1 */
	uint64_t shape[MODEL_DIMS_MAX];
	uint8_t dims;   /* 1 .. MODEL_DIMS_MAX */
	uint8_t dtype;  /* enum chunk_dtype */
	uint16_t group; /* parameter group */
};

struct model {
	char name[MODEL_NAME_BYTES];
	struct model_tensor *tensors; /* forward order */
	size_t count;
};

/* The known names, NULL-terminated, in the order of listing. Static memory. */
const char *const *model_names(void);

/* Fill *out with the tensors (f32, group 0) of a known model; names match without regard to case, '-', '_' and ' '.
 * Returns 0, -ENOENT with *e listing the names that are allowed, or -ENOMEM. *out is written only on success and is
 * then the caller's, to be given to model_destroy(). Any thread; allocates. */
int model_create(const char *name, struct model *out, struct err *e);

/* Read a CSV of one's own from memory: columns name,shape,dtype,group; the last two may be missing or empty and
 * default to f32 and 0; a first line `name,shape...` is a heading and may order the columns; shapes are like 64x3x7x7;
 * dtypes are f32, f16, bf16 (and float32, float16, bfloat16); blank lines and lines that begin with '#' are skipped.
 * The text needs no NUL and may hold any bytes. The model is named after file_name, without folder and ending.
 * Returns 0, -EINVAL with *e as "FILE:LINE: what is wrong and what is allowed", -EFBIG for a bound, or -ENOMEM.
 * *out is written only on success. Any thread; allocates. */
int model_parse_csv(const char *text, size_t len, const char *file_name, struct model *out, struct err *e);

/* Free the tensors and clear *m. A zeroed model is allowed. */
void model_destroy(struct model *m);

/* Sum of the elements, and of their bytes. Any thread. */
uint64_t model_elements(const struct model *m);
uint64_t model_bytes(const struct model *m);

/* Write m->count keys for chunking_plan(). Any thread. */
void model_fill_keys(const struct model *m, struct chunk_key *keys);

#endif
