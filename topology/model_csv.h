/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of a CSV's reader that models (model_csv.c) and traces (model_trace.c) share: lines, headings, columns, the
 * fields that both have, and the checks at the end. A reader gives a table of columns and a function for one line.
 */
#ifndef PHUB_TOPOLOGY_MODEL_CSV_H
#define PHUB_TOPOLOGY_MODEL_CSV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "topology/model.h"
#include "topology/model_builder.h"

enum { MODEL_CSV_COLUMNS_MAX = 8 };

/* Part of the text, without NUL. */
struct model_csv_slice {
	const char *at;
	size_t len;
};

struct model_csv;

struct model_csv_format {
	const char *columns[MODEL_CSV_COLUMNS_MAX]; /* names; a line that holds the first two is a heading */
	unsigned column_count;
	const char *allowed;                         /* "name, shape, dtype and group" */
	const char *heading;                         /* when the first line must be one: what to write there */
	const char *no_lines;                        /* what to write into an empty file */
	int (*check_heading)(struct model_csv *csv); /* or NULL; 0, or -EINVAL with csv->e set */
	/* One line, by column; a column that is not there is empty. 0 or a negative errno with csv->e set. */
	int (*take)(struct model_csv *csv, const struct model_csv_slice column[MODEL_CSV_COLUMNS_MAX]);
};

struct model_csv {
	const struct model_csv_format *format;
	void *arg; /* the reader's own */
	struct model_builder builder;
	uint32_t *lines; /* of each tensor, grown with the builder's capacity */
	size_t lines_capacity;
	uint64_t elements;
	const char *file_name;
	uint32_t line;
	bool begun;                             /* a heading or a line was seen */
	int8_t position[MODEL_CSV_COLUMNS_MAX]; /* of each column in a line, -1: not there */
	struct err *e;
};

/* Sets the error "FILE:LINE: what 'field'; allowed", quoting the field. Returns -EINVAL. */
int model_csv_refuse(struct model_csv *csv, struct model_csv_slice field, const char *what, const char *allowed);

/* Read a decimal number of at most `most` (up to 2^48) from s, from *at on, and move *at behind it. False when there is
 * none or it is larger. */
bool model_csv_parse_number(struct model_csv_slice s, size_t *at, uint64_t most, uint64_t *out);

/* The fields that a tensor has in every file. 0 or -EINVAL. */
int model_csv_parse_name(struct model_csv *csv, struct model_csv_slice field, char name[MODEL_TENSOR_NAME_BYTES]);
int model_csv_parse_dtype(struct model_csv *csv, struct model_csv_slice field, struct model_tensor *tensor);
int model_csv_parse_group(struct model_csv *csv, struct model_csv_slice field, struct model_tensor *tensor);

/* Add a tensor of the current line. 0, -EFBIG or -ENOMEM. */
int model_csv_add(struct model_csv *csv, const struct model_tensor *tensor);

/* Read all lines of a text and move the tensors to *out, which is named after the file. The caller has set format, arg,
 * file_name and e, the rest is zero. 0, -EINVAL, -EFBIG or -ENOMEM; *out is written only on success. */
int model_csv_read(struct model_csv *csv, const char *text, size_t len, struct model *out);

#endif
