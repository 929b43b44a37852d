/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces: the reader of their CSV, and the guess for a model without one.
 */
#include "topology/model_trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "topology/model_csv.h"

enum { TRACE_NAME, TRACE_FORWARD, TRACE_BACKWARD, TRACE_ELEMENTS, TRACE_BYTES, TRACE_DTYPE, TRACE_GROUP };
enum { TRACE_DECIMALS = 6, TRACE_NS_PER_MS = 1000000 };

#define TRACE_HEADING "name,forward_ms,backward_ms,elements"

struct trace_layers {
	struct model_layer *at;
	size_t count, capacity;
};

static const struct model_csv_slice trace_nothing = {"", 0};

static int trace_check_heading(struct model_csv *csv)
{
	const int8_t *position = csv->position;

	if (position[TRACE_BACKWARD] < 0)
		return model_csv_refuse(csv, trace_nothing, "no column backward_ms", "write " TRACE_HEADING);
	if (position[TRACE_ELEMENTS] < 0 && position[TRACE_BYTES] < 0)
		return model_csv_refuse(csv, trace_nothing, "no column elements", "write " TRACE_HEADING);
	if (position[TRACE_ELEMENTS] >= 0 && position[TRACE_BYTES] >= 0)
		return model_csv_refuse(csv, trace_nothing, "columns elements and bytes", "keep one of them");
	return 0;
}

/* Digits after the point, as nanoseconds. False when anything else is there, or more digits than nanoseconds have. */
static bool trace_parse_decimals(struct model_csv_slice field, size_t at, uint64_t *out)
{
	uint64_t unit = TRACE_NS_PER_MS;
	size_t digits = field.len - at;

	*out = 0;
	if (digits == 0 || digits > TRACE_DECIMALS)
		return false;
	for (; at < field.len; at++) {
		if (field.at[at] < '0' || field.at[at] > '9')
			return false;
		unit /= 10;
		*out += unit * (uint64_t)(field.at[at] - '0');
	}
	return true;
}

static int trace_parse_time(struct model_csv *csv, struct model_csv_slice field, const char *what, uint64_t *out)
{
	uint64_t ms, rest = 0;
	size_t at = 0;

	if (!model_csv_parse_number(field, &at, MODEL_TRACE_MS_MAX, &ms) ||
		(at < field.len && (field.at[at] != '.' || !trace_parse_decimals(field, at + 1, &rest))))
		return model_csv_refuse(csv, field, what,
			"allowed are milliseconds from 0 to 3600000 with up to six decimals, like 1.25");
	*out = ms * TRACE_NS_PER_MS + rest;
	return 0;
}

/* Elements, or bytes that are a whole number of them. */
static int trace_parse_elements(
	struct model_csv *csv, const struct model_csv_slice column[MODEL_CSV_COLUMNS_MAX], struct model_tensor *tensor)
{
	bool in_bytes = csv->position[TRACE_BYTES] >= 0;
	struct model_csv_slice field = column[in_bytes ? TRACE_BYTES : TRACE_ELEMENTS];
	size_t size = in_bytes ? chunking_dtype_bytes(tensor->dtype) : 1, at = 0;
	uint64_t number = 0;

	if (field.len > 0 && (!model_csv_parse_number(field, &at, MODEL_ELEMENTS_MAX, &number) || at != field.len))
		return model_csv_refuse(csv, field, in_bytes ? "bad bytes" : "bad elements",
			"allowed are numbers from 0 (a layer without parameters) to 2^48");
	if (number % size != 0)
		return model_csv_refuse(
			csv, field, "bad bytes", "allowed are multiples of 4, or of 2 where dtype is f16 or bf16");
	tensor->elements = tensor->shape[0] = number / size;
	tensor->dims = 1;
	return 0;
}

static int trace_add_layer(struct model_csv *csv, const struct model_layer *layer)
{
	struct trace_layers *layers = csv->arg;

	if (layers->count == MODEL_TRACE_LAYER_COUNT_MAX)
		return err_set(csv->e, -EFBIG, "%s:%" PRIu32 ": more than %u layers", csv->file_name, csv->line,
			MODEL_TRACE_LAYER_COUNT_MAX);
	if (layers->count == layers->capacity) {
		size_t capacity = layers->capacity ? 2 * layers->capacity : 64;
		struct model_layer *grown = realloc(layers->at, capacity * sizeof(*grown));

		if (!grown)
			return err_set(csv->e, -ENOMEM, "%s:%" PRIu32 ": no memory for more layers", csv->file_name,
				csv->line);
		layers->at = grown;
		layers->capacity = capacity;
	}
	layers->at[layers->count++] = *layer;
	return 0;
}

static int trace_take(struct model_csv *csv, const struct model_csv_slice column[MODEL_CSV_COLUMNS_MAX])
{
	struct model_layer layer = {.tensor = MODEL_TRACE_NO_TENSOR};
	struct model_tensor tensor = {.dims = 0};
	int rc;

	if ((rc = model_csv_parse_name(csv, column[TRACE_NAME], layer.name)) < 0 ||
		(rc = trace_parse_time(csv, column[TRACE_FORWARD], "bad forward_ms", &layer.forward_ns)) < 0 ||
		(rc = trace_parse_time(csv, column[TRACE_BACKWARD], "bad backward_ms", &layer.backward_ns)) < 0 ||
		(rc = model_csv_parse_dtype(csv, column[TRACE_DTYPE], &tensor)) < 0 ||
		(rc = model_csv_parse_group(csv, column[TRACE_GROUP], &tensor)) < 0 ||
		(rc = trace_parse_elements(csv, column, &tensor)) < 0)
		return rc;
	if (tensor.elements) {
		memcpy(tensor.name, layer.name, sizeof(tensor.name));
		layer.tensor = (uint32_t)csv->builder.count;
		rc = model_csv_add(csv, &tensor);
	}
	return rc == 0 ? trace_add_layer(csv, &layer) : rc;
}

static const struct model_csv_format trace_format = {
	.columns = {"name", "forward_ms", "backward_ms", "elements", "bytes", "dtype", "group"},
	.column_count = 7,
	.allowed = "name, forward_ms, backward_ms, elements or bytes, dtype and group",
	.heading = "begin with the line " TRACE_HEADING,
	.no_lines = "no layer with elements; write " TRACE_HEADING " and lines like conv1,1.25,2.5,9408",
	.check_heading = trace_check_heading,
	.take = trace_take,
};

int model_trace_parse(const char *text, size_t len, const char *file_name, struct model_trace *out, struct err *e)
{
	struct trace_layers layers = {NULL, 0, 0};
	struct model_csv csv = {.format = &trace_format, .arg = &layers, .file_name = file_name, .e = e};
	struct model model;
	int rc = model_csv_read(&csv, text, len, &model);

	if (rc < 0) {
		free(layers.at);
		return rc;
	}
	*out = (struct model_trace){.model = model, .layers = layers.at, .count = layers.count};
	return 0;
}

int model_trace_guess(struct model *model, uint64_t compute_ns, struct model_trace *out)
{
	struct model_layer *layers = calloc(model->count, sizeof(*layers));
	size_t heavy = 0;

	if (!layers)
		return -ENOMEM;
	for (size_t i = 0; i < model->count; i++)
		heavy += model->tensors[i].dims > 1;
	for (size_t i = 0; i < model->count; i++) {
		const struct model_tensor *t = &model->tensors[i];
		uint64_t share_ns = heavy == 0 ? compute_ns / model->count : t->dims > 1 ? compute_ns / heavy : 0;

		memcpy(layers[i].name, t->name, sizeof(layers[i].name));
		layers[i].forward_ns = share_ns / 3;
		layers[i].backward_ns = share_ns - share_ns / 3;
		layers[i].tensor = (uint32_t)i;
	}
	*out = (struct model_trace){.model = *model, .layers = layers, .count = model->count};
	*model = (struct model){.count = 0};
	return 0;
}

void model_trace_destroy(struct model_trace *t)
{
	model_destroy(&t->model);
	free(t->layers);
	*t = (struct model_trace){.count = 0};
}

uint64_t model_trace_compute_ns(const struct model_trace *t)
{
	uint64_t ns = 0;

	for (size_t i = 0; i < t->count; i++)
		ns += t->layers[i].forward_ns + t->layers[i].backward_ns;
	return ns;
}
