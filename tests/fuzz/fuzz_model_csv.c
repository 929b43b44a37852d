/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: any bytes as a model's CSV, and as a trace's. What is accepted must obey the bounds of model.h and be plannable
 * into chunks.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "topology/chunking.h"
#include "topology/model.h"
#include "topology/model_trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

static void fuzz_check_tensor(const struct model_tensor *tensor)
{
	uint64_t elements = 1;

	fuzz_require(memchr(tensor->name, '\0', sizeof(tensor->name)) != NULL && tensor->name[0] != '\0');
	fuzz_require(tensor->dims >= 1 && tensor->dims <= MODEL_DIMS_MAX);
	fuzz_require(chunking_dtype_bytes(tensor->dtype) != 0);
	for (unsigned i = 0; i < tensor->dims; i++)
		elements *= tensor->shape[i];
	fuzz_require(elements == tensor->elements && elements >= 1 && elements <= MODEL_ELEMENTS_MAX);
}

/* The same bytes as a trace. */
static void fuzz_trace(const uint8_t *data, size_t size)
{
	struct model_trace trace;
	struct err e = {0};
	size_t tensors = 0;

	if (model_trace_parse((const char *)data, size, "fuzz.csv", &trace, &e) < 0) {
		fuzz_require(strncmp(e.text, "fuzz.csv", 8) == 0);
		return;
	}
	fuzz_require(trace.count >= trace.model.count && trace.count <= MODEL_TRACE_LAYER_COUNT_MAX);
	for (size_t i = 0; i < trace.count; i++) {
		const struct model_layer *layer = &trace.layers[i];

		fuzz_require(layer->forward_ns <= MODEL_TRACE_MS_MAX * UINT64_C(1000000) + 999999);
		fuzz_require(layer->tensor == MODEL_TRACE_NO_TENSOR || layer->tensor == tensors++);
	}
	fuzz_require(tensors == trace.model.count && tensors >= 1);
	for (size_t i = 0; i < tensors; i++)
		fuzz_check_tensor(&trace.model.tensors[i]);
	model_trace_destroy(&trace);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct model model;
	struct chunk_size plan;
	struct err e = {0};

	fuzz_trace(data, size);
	if (model_parse_csv((const char *)data, size, "fuzz.csv", &model, &e) < 0) {
		fuzz_require(strncmp(e.text, "fuzz.csv", 8) == 0);
		return 0;
	}
	fuzz_require(model.count >= 1 && model.count <= MODEL_TENSOR_COUNT_MAX);
	for (size_t i = 0; i < model.count; i++)
		fuzz_check_tensor(&model.tensors[i]);

	struct chunk_key *keys = calloc(model.count, sizeof(*keys));
	if (keys) {
		model_fill_keys(&model, keys);
		fuzz_require(chunking_size(keys, (uint32_t)model.count, CHUNKING_CHUNK_BYTES_MAX, &plan, &e) == 0);
		fuzz_require(plan.payload_bytes == model_bytes(&model));
	}
	free(keys);
	model_destroy(&model);
	return 0;
}
