/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model CSV: reads name,shape,dtype,group from memory into a list of tensors, and has what the reader of traces shares
 * with it. The text is a user's file and may hold any bytes: every field is a slice of it, checked before use, and what
 * an error quotes is made printable first.
 */
#include "topology/model_csv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL_CSV_QUOTE_BYTES 44u /* of a field in a message */

enum model_csv_column {
	MODEL_CSV_NAME,
	MODEL_CSV_SHAPE,
	MODEL_CSV_DTYPE,
	MODEL_CSV_GROUP,
};

static bool model_csv_is(struct model_csv_slice s, const char *word)
{
	size_t len = strlen(word);

	if (s.len != len)
		return false;
	for (size_t i = 0; i < len; i++) {
		char c = s.at[i] >= 'A' && s.at[i] <= 'Z' ? (char)(s.at[i] - 'A' + 'a') : s.at[i];

		if (c != word[i])
			return false;
	}
	return true;
}

static struct model_csv_slice model_csv_trim(struct model_csv_slice s)
{
	while (s.len > 0 && (s.at[0] == ' ' || s.at[0] == '\t')) {
		s.at++;
		s.len--;
	}
	while (s.len > 0 && (s.at[s.len - 1] == ' ' || s.at[s.len - 1] == '\t' || s.at[s.len - 1] == '\r'))
		s.len--;
	return s;
}

/* Copy a field for a message: printable, and cut when long. */
static const char *model_csv_quote(struct model_csv_slice s, char out[MODEL_CSV_QUOTE_BYTES])
{
	size_t len = s.len < MODEL_CSV_QUOTE_BYTES - 4 ? s.len : MODEL_CSV_QUOTE_BYTES - 4;

	for (size_t i = 0; i < len; i++)
		out[i] = s.at[i] >= ' ' && s.at[i] <= '~' ? s.at[i] : '?';
	memcpy(out + len, "...", 4);
	if (len == s.len)
		out[len] = '\0';
	return out;
}

int model_csv_refuse(struct model_csv *csv, struct model_csv_slice field, const char *what, const char *allowed)
{
	char quoted[MODEL_CSV_QUOTE_BYTES];

	return err_set(csv->e, -EINVAL, "%s:%" PRIu32 ": %s '%s'; %s", csv->file_name, csv->line, what,
		model_csv_quote(field, quoted), allowed);
}

/* Split a line at its commas. Returns the number of fields, of which at most MODEL_CSV_COLUMNS_MAX are stored. */
static unsigned model_csv_split(struct model_csv_slice line, struct model_csv_slice fields[MODEL_CSV_COLUMNS_MAX])
{
	unsigned count = 0;

	for (;;) {
		const char *comma = line.len ? memchr(line.at, ',', line.len) : NULL;
		size_t len = comma ? (size_t)(comma - line.at) : line.len;

		if (count < MODEL_CSV_COLUMNS_MAX)
			fields[count] = model_csv_trim((struct model_csv_slice){line.at, len});
		count++;
		if (!comma)
			return count;
		line.at += len + 1;
		line.len -= len + 1;
	}
}

static int model_csv_parse_heading(struct model_csv *csv, const struct model_csv_slice *fields, unsigned count)
{
	const struct model_csv_format *format = csv->format;
	char allowed[128];

	snprintf(allowed, sizeof(allowed), "allowed are %s", format->allowed);
	memset(csv->position, -1, sizeof(csv->position));
	for (unsigned i = 0; i < count; i++) {
		unsigned column = 0;

		while (column < format->column_count && !model_csv_is(fields[i], format->columns[column]))
			column++;
		if (column == format->column_count)
			return model_csv_refuse(csv, fields[i], "unknown column", allowed);
		if (csv->position[column] >= 0)
			return model_csv_refuse(csv, fields[i], "second column", "each comes once");
		csv->position[column] = (int8_t)i;
	}
	return format->check_heading ? format->check_heading(csv) : 0;
}

int model_csv_parse_name(struct model_csv *csv, struct model_csv_slice field, char name[MODEL_TENSOR_NAME_BYTES])
{
	static const char allowed[] = "allowed are 1 to 127 printable characters without spaces, commas and quotes";

	if (field.len == 0 || field.len >= MODEL_TENSOR_NAME_BYTES)
		return model_csv_refuse(csv, field, "bad name", allowed);
	for (size_t i = 0; i < field.len; i++) {
		if (field.at[i] <= ' ' || field.at[i] > '~' || field.at[i] == '"' || field.at[i] == '\'')
			return model_csv_refuse(csv, field, "bad name", allowed);
	}
	memcpy(name, field.at, field.len);
	name[field.len] = '\0';
	return 0;
}

bool model_csv_parse_number(struct model_csv_slice s, size_t *at, uint64_t most, uint64_t *out)
{
	uint64_t value = 0;
	size_t i = *at;

	for (; i < s.len && s.at[i] >= '0' && s.at[i] <= '9'; i++) {
		value = value * 10 + (uint64_t)(s.at[i] - '0');
		if (value > most) /* most is at most 2^48, so the next step does not overflow */
			return false;
	}
	if (i == *at)
		return false;
	*at = i;
	*out = value;
	return true;
}

static int model_csv_parse_shape(struct model_csv *csv, struct model_csv_slice field, struct model_tensor *tensor)
{
	static const char allowed[] = "allowed are 1 to 8 numbers from 1 on with x between, like 64x3x7x7, "
				      "whose product is at most 2^48";
	size_t at = 0;

	tensor->elements = 1;
	for (unsigned dim = 0; dim < MODEL_DIMS_MAX; dim++) {
		uint64_t length;

		if (!model_csv_parse_number(field, &at, MODEL_ELEMENTS_MAX, &length) || length == 0)
			break;
		if (length > MODEL_ELEMENTS_MAX / tensor->elements)
			break;
		tensor->elements *= length;
		tensor->shape[dim] = length;
		tensor->dims = (uint8_t)(dim + 1);
		if (at == field.len)
			return 0;
		if (field.at[at] != 'x' && field.at[at] != 'X')
			break;
		at++;
	}
	return model_csv_refuse(csv, field, "bad shape", allowed);
}

int model_csv_parse_dtype(struct model_csv *csv, struct model_csv_slice field, struct model_tensor *tensor)
{
	if (field.len == 0 || model_csv_is(field, "f32") || model_csv_is(field, "float32"))
		tensor->dtype = CHUNK_F32;
	else if (model_csv_is(field, "f16") || model_csv_is(field, "float16"))
		tensor->dtype = CHUNK_F16;
	else if (model_csv_is(field, "bf16") || model_csv_is(field, "bfloat16"))
		tensor->dtype = CHUNK_BF16;
	else
		return model_csv_refuse(
			csv, field, "unknown dtype", "allowed are f32, f16, bf16 (float32, float16, bfloat16)");
	return 0;
}

int model_csv_parse_group(struct model_csv *csv, struct model_csv_slice field, struct model_tensor *tensor)
{
	uint64_t group = 0;
	size_t at = 0;

	if (field.len > 0 && (!model_csv_parse_number(field, &at, UINT16_MAX, &group) || at != field.len))
		return model_csv_refuse(csv, field, "bad group", "allowed are numbers from 0 to 65535");
	tensor->group = (uint16_t)group;
	return 0;
}

int model_csv_add(struct model_csv *csv, const struct model_tensor *tensor)
{
	if (tensor->elements > MODEL_ELEMENTS_MAX - csv->elements)
		return err_set(csv->e, -EFBIG,
			"%s:%" PRIu32 ": the tensors up to here have more than 2^48 elements together", csv->file_name,
			csv->line);
	if (model_builder_add(&csv->builder, tensor) == -EFBIG)
		return err_set(csv->e, -EFBIG, "%s:%" PRIu32 ": more than %u tensors", csv->file_name, csv->line,
			MODEL_TENSOR_COUNT_MAX);
	if (csv->lines_capacity < csv->builder.capacity) {
		uint32_t *grown = realloc(csv->lines, csv->builder.capacity * sizeof(*grown));

		if (!grown)
			csv->builder.rc = -ENOMEM;
		else
			csv->lines = grown;
		csv->lines_capacity = csv->builder.capacity;
	}
	if (csv->builder.rc < 0)
		return err_set(
			csv->e, -ENOMEM, "%s:%" PRIu32 ": no memory for more tensors", csv->file_name, csv->line);
	csv->lines[csv->builder.count - 1] = csv->line;
	csv->elements += tensor->elements;
	return 0;
}

/* A line of a model. */
static int model_csv_take(struct model_csv *csv, const struct model_csv_slice column[MODEL_CSV_COLUMNS_MAX])
{
	struct model_tensor tensor = {.dims = 0};
	int rc;

	if ((rc = model_csv_parse_name(csv, column[MODEL_CSV_NAME], tensor.name)) < 0 ||
		(rc = model_csv_parse_shape(csv, column[MODEL_CSV_SHAPE], &tensor)) < 0 ||
		(rc = model_csv_parse_dtype(csv, column[MODEL_CSV_DTYPE], &tensor)) < 0 ||
		(rc = model_csv_parse_group(csv, column[MODEL_CSV_GROUP], &tensor)) < 0)
		return rc;
	return model_csv_add(csv, &tensor);
}

static const struct model_csv_format model_csv_format = {
	.columns = {"name", "shape", "dtype", "group"},
	.column_count = 4,
	.allowed = "name, shape, dtype and group",
	.no_lines = "no tensors; write lines like conv1.weight,64x3x7x7,f32",
	.take = model_csv_take,
};

static bool model_csv_is_heading(const struct model_csv *csv, const struct model_csv_slice *fields, unsigned count)
{
	unsigned found = 0;

	for (unsigned i = 0; i < count; i++)
		for (unsigned column = 0; column < 2; column++)
			found |= model_csv_is(fields[i], csv->format->columns[column]) ? 1u << column : 0;
	return found == 3;
}

static int model_csv_parse_line(struct model_csv *csv, struct model_csv_slice line)
{
	const struct model_csv_format *format = csv->format;
	struct model_csv_slice fields[MODEL_CSV_COLUMNS_MAX];
	struct model_csv_slice column[MODEL_CSV_COLUMNS_MAX] = {{NULL, 0}};
	unsigned count = model_csv_split(line, fields);
	char what[32], allowed[128];
	bool begun = csv->begun;

	csv->begun = true;
	if (count > format->column_count) {
		snprintf(what, sizeof(what), "more than %u fields in", format->column_count);
		snprintf(allowed, sizeof(allowed), "allowed are %s", format->allowed);
		return model_csv_refuse(csv, line, what, allowed);
	}
	if (!begun && model_csv_is_heading(csv, fields, count))
		return model_csv_parse_heading(csv, fields, count);
	if (!begun && format->heading)
		return model_csv_refuse(csv, line, "no heading but", format->heading);
	for (unsigned i = 0; i < format->column_count; i++) {
		if (csv->position[i] >= 0 && (unsigned)csv->position[i] < count)
			column[i] = fields[csv->position[i]];
	}
	return format->take(csv, column);
}

static int model_csv_parse_lines(struct model_csv *csv, const char *text, size_t len)
{
	struct model_csv_slice rest = {text, len};

	if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) /* the byte order mark that spreadsheets write */
		rest = (struct model_csv_slice){text + 3, len - 3};
	while (rest.len > 0) {
		const char *end = memchr(rest.at, '\n', rest.len);
		size_t line_len = end ? (size_t)(end - rest.at) : rest.len;
		struct model_csv_slice line = model_csv_trim((struct model_csv_slice){rest.at, line_len});

		csv->line++;
		rest.at += line_len + (end ? 1 : 0);
		rest.len -= line_len + (end ? 1 : 0);
		if (line.len == 0 || line.at[0] == '#')
			continue;

		int rc = model_csv_parse_line(csv, line);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Order of pointers to tensors of one array: by name, then by place. */
static int model_csv_compare(const void *a, const void *b)
{
	const struct model_tensor *x = *(const struct model_tensor *const *)a;
	const struct model_tensor *y = *(const struct model_tensor *const *)b;
	int order = strcmp(x->name, y->name);

	return order ? order : (x > y) - (x < y);
}

/* A key is known by its name: refuse the second use of one. */
static int model_csv_check_names(struct model_csv *csv)
{
	const struct model_builder *builder = &csv->builder;
	const struct model_tensor **sorted = malloc(builder->count * sizeof(*sorted));
	int rc = 0;

	if (!sorted)
		return err_set(csv->e, -ENOMEM, "%s: no memory to compare names", csv->file_name);
	for (size_t i = 0; i < builder->count; i++)
		sorted[i] = &builder->tensors[i];
	qsort(sorted, builder->count, sizeof(*sorted), model_csv_compare);
	for (size_t i = 1; i < builder->count && rc == 0; i++) {
		if (strcmp(sorted[i]->name, sorted[i - 1]->name) == 0)
			rc = err_set(csv->e, -EINVAL,
				"%s:%" PRIu32 ": name '%s' was already used on line %" PRIu32 "; names must differ",
				csv->file_name, csv->lines[sorted[i] - builder->tensors], sorted[i]->name,
				csv->lines[sorted[i - 1] - builder->tensors]);
	}
	free(sorted);
	return rc;
}

/* "dir/mine.csv" becomes "mine". */
static void model_csv_name_model(const char *file_name, struct model *m)
{
	const char *slash = strrchr(file_name, '/');
	const char *base = slash ? slash + 1 : file_name;
	const char *dot = strrchr(base, '.');
	size_t len = dot && dot != base ? (size_t)(dot - base) : strlen(base);

	if (len > sizeof(m->name) - 1)
		len = sizeof(m->name) - 1;
	memcpy(m->name, base, len);
	m->name[len] = '\0';
}

static int model_csv_read_tensors(struct model_csv *csv, const char *text, size_t len)
{
	int rc;

	if (len > MODEL_CSV_BYTES_MAX)
		return err_set(csv->e, -EFBIG, "%s has %zu bytes; at most %u are read", csv->file_name, len,
			MODEL_CSV_BYTES_MAX);
	for (unsigned i = 0; i < MODEL_CSV_COLUMNS_MAX; i++)
		csv->position[i] = (int8_t)i;
	rc = model_csv_parse_lines(csv, text, len);
	if (rc == 0 && csv->builder.count == 0)
		rc = err_set(csv->e, -EINVAL, "%s:%" PRIu32 ": %s", csv->file_name, csv->line, csv->format->no_lines);
	return rc == 0 ? model_csv_check_names(csv) : rc;
}

int model_csv_read(struct model_csv *csv, const char *text, size_t len, struct model *out)
{
	int rc = model_csv_read_tensors(csv, text, len);

	free(csv->lines);
	csv->lines = NULL;
	if (rc < 0) {
		free(csv->builder.tensors);
		return rc;
	}
	*out = (struct model){.tensors = csv->builder.tensors, .count = csv->builder.count};
	model_csv_name_model(csv->file_name, out);
	return 0;
}

int model_parse_csv(const char *text, size_t len, const char *file_name, struct model *out, struct err *e)
{
	struct model_csv csv = {.format = &model_csv_format, .file_name = file_name, .e = e};

	return model_csv_read(&csv, text, len, out);
}
