/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model by name, or from a CSV, as --model takes it.
 */
#ifndef PHUB_CLI_MODELS_H
#define PHUB_CLI_MODELS_H

#include "phub/base/err.h"
#include "phub/cli/args.h"
#include "topology/model.h"
#include "topology/model_trace.h"

/* A name of model_names(), or the path of a file that ends in .csv. 0 or a negative errno with what is allowed in `e`;
 * on success *out is the caller's, to be given to model_destroy(). */
int models_load(const char *name, struct model *out, struct err *e);

/* A nameless one of so many bytes in all: `keys` tensors, as equal as can be, each of at least one element. 0 or
 * -ENOMEM; on success *out is the caller's, as above. */
int models_make(uint64_t bytes, uint64_t keys, uint8_t dtype, struct model *out, struct err *e);

/* A trace from a file. 0 or a negative errno; on success *out is the caller's, for model_trace_destroy(). */
int models_load_trace(const char *path, struct model_trace *out, struct err *e);

/* A name that is no model's is a wrong argument: ARGS_GO_ON, or CLI_USAGE after saying which there are. Files are not
 * looked at. */
int models_check(const struct args_usage *usage, const char *name);

#endif
