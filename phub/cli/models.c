/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub models: what --model knows; and the choice of a model or a CSV by name, for all subcommands that take one.
 */
#include "phub/cli/models.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "phub/cli/cli.h"
#include "phub/cli/output.h"

/* A CSV is named by its ending or by a folder in front of it. */
static bool models_is_file(const char *name)
{
	size_t length = strlen(name);

	return strchr(name, '/') || (length > 4 && strcasecmp(name + length - 4, ".csv") == 0);
}

/* The text of a file, to be freed. `instead`: what else could be given. */
static int models_read_file(const char *path, const char *instead, char **text, size_t *bytes, struct err *e)
{
	FILE *file = fopen(path, "re");
	struct stat info;
	int rc = 0;

	if (!file)
		return err_set(e, -errno, "%s: %s; give a CSV that can be read%s", path, strerror(errno), instead);
	if (fstat(fileno(file), &info) < 0 || !S_ISREG(info.st_mode) || info.st_size > MODEL_CSV_BYTES_MAX) {
		fclose(file);
		return err_set(e, -EFBIG, "%s: not a file of at most %u MiB", path, MODEL_CSV_BYTES_MAX >> 20);
	}
	*text = malloc((size_t)info.st_size + 1);
	if (!*text) {
		fclose(file);
		return err_set(e, -ENOMEM, "%s: out of memory", path);
	}
	*bytes = fread(*text, 1, (size_t)info.st_size, file);
	if (ferror(file)) {
		free(*text);
		rc = err_set(e, -EIO, "%s: could not be read", path);
	}
	fclose(file);
	return rc;
}

/* A model's CSV or, where `trace` is wanted, a trace's. */
static int models_read(const char *path, struct model *model, struct model_trace *trace, struct err *e)
{
	char *text = NULL;
	size_t bytes = 0;
	int rc = models_read_file(path, trace ? "" : ", or a name that phub models lists", &text, &bytes, e);

	if (rc < 0)
		return rc;
	rc = trace ? model_trace_parse(text, bytes, path, trace, e) : model_parse_csv(text, bytes, path, model, e);
	free(text);
	return rc;
}

int models_load_trace(const char *path, struct model_trace *out, struct err *e)
{
	return models_read(path, NULL, out, e);
}

int models_load(const char *name, struct model *out, struct err *e)
{
	return models_is_file(name) ? models_read(name, out, NULL, e) : model_create(name, out, e);
}

int models_make(uint64_t bytes, uint64_t keys, uint8_t dtype, struct model *out, struct err *e)
{
	uint64_t elements = bytes / chunking_dtype_bytes(dtype);

	memset(out, 0, sizeof(*out));
	snprintf(out->name, sizeof(out->name), "bytes");
	out->tensors = calloc(keys, sizeof(*out->tensors));
	if (!out->tensors)
		return err_set(e, -ENOMEM, "out of memory");
	out->count = keys;
	for (uint64_t k = 0; k < keys; k++) {
		struct model_tensor *t = &out->tensors[k];

		snprintf(t->name, sizeof(t->name), "key%" PRIu64, k);
		t->elements = elements / keys + (k < elements % keys);
		t->shape[0] = t->elements;
		t->dims = 1;
		t->dtype = dtype;
	}
	return 0;
}

int models_check(const struct args_usage *usage, const char *name)
{
	struct model m;
	struct err e;
	int rc = models_is_file(name) ? 0 : model_create(name, &m, &e);

	if (rc == -ENOENT)
		return args_wrong(usage, "%s", e.text);
	if (rc == 0 && !models_is_file(name))
		model_destroy(&m);
	return ARGS_GO_ON;
}

static json_t *models_json_tensors(const struct model *m)
{
	json_t *tensors = json_array();

	for (size_t i = 0; i < m->count; i++) {
		const struct model_tensor *t = &m->tensors[i];
		json_t *shape = json_array();

		for (unsigned d = 0; d < t->dims; d++)
			json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
		json_array_append_new(tensors, json_pack("{s:s, s:o, s:s, s:i}", "name", t->name, "shape", shape,
						       "dtype", chunking_dtype_name(t->dtype), "group", (int)t->group));
	}
	return tensors;
}

static void models_print_tensors(const struct model *m)
{
	struct output_table table = {.heads = {"tensor", "shape", "dtype", "group", "elements"}, .align = "lllrr"};

	for (size_t i = 0; i < m->count; i++) {
		const struct model_tensor *t = &m->tensors[i];
		char shape[MODEL_DIMS_MAX * 24] = "";
		size_t used = 0;

		for (unsigned d = 0; d < t->dims; d++)
			used += (size_t)snprintf(
				shape + used, sizeof(shape) - used, "%s%" PRIu64, d ? "x" : "", t->shape[d]);
		output_cell(&table, "%s", t->name);
		output_cell(&table, "%s", shape);
		output_cell(&table, "%s", chunking_dtype_name(t->dtype));
		output_cell(&table, "%u", t->group);
		output_cell(&table, "%" PRIu64, t->elements);
	}
	output_table_print(&table);
}

static int models_show(const char *name, bool json)
{
	struct model m;
	struct err e;
	bool ok = true;

	if (models_load(name, &m, &e) < 0) {
		output_error("%s", e.text);
		return CLI_FAILED;
	}
	if (json)
		ok = output_json(
			json_pack("{s:s, s:I, s:I, s:o}", "model", m.name, "elements", (json_int_t)model_elements(&m),
				"bytes", (json_int_t)model_bytes(&m), "tensors", models_json_tensors(&m)));
	else
		models_print_tensors(&m);
	model_destroy(&m);
	return ok ? CLI_DONE : CLI_FAILED;
}

static bool models_list_one(const struct model *m, bool json, struct output_table *table)
{
	char text[32];

	if (json)
		return output_json(json_pack("{s:s, s:I, s:I, s:I}", "model", m->name, "tensors", (json_int_t)m->count,
			"elements", (json_int_t)model_elements(m), "bytes", (json_int_t)model_bytes(m)));
	output_cell(table, "%s", m->name);
	output_cell(table, "%zu", m->count);
	output_cell(table, "%" PRIu64, model_elements(m));
	output_cell(table, "%" PRIu64, model_bytes(m));
	output_cell(table, "%s", output_bytes(model_bytes(m), text));
	return true;
}

static int models_list(bool json)
{
	struct output_table table = {.heads = {"model", "tensors", "elements", "bytes", ""}, .align = "lrrrr"};
	bool ok = true;

	for (const char *const *name = model_names(); ok && *name; name++) {
		struct model m;
		struct err e;

		if (model_create(*name, &m, &e) < 0) {
			output_error("%s", e.text);
			return CLI_FAILED;
		}
		ok = models_list_one(&m, json, &table);
		model_destroy(&m);
	}
	if (!json)
		output_table_print(&table);
	return ok ? CLI_DONE : CLI_FAILED;
}

int models_run(int argc, char **argv)
{
	bool json = false;
	const struct args_option options[] = {
		{.name = "json", .help = "one JSON object a line", .type = ARGS_FLAG, .target = &json},
		{.name = NULL},
	};
	const struct args_usage usage = {
		.command = "phub models",
		.words = "[NAME | FILE.csv]",
		.about = "Lists the models that --model knows, or the tensors of one, shape by shape. A model of one's "
			 "own\n"
			 "is a CSV with the columns name,shape,dtype,group (the last two may be left out).\n",
		.examples = "  phub models\n  phub models resnet-50\n  phub models --json my_model.csv\n",
		.words_max = 1,
		.options = options,
	};
	struct args_words words;
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc == ARGS_GO_ON && words.count)
		rc = models_check(&usage, words.at[0]);
	if (rc != ARGS_GO_ON)
		return rc;
	return words.count ? models_show(words.at[0], json) : models_list(json);
}
