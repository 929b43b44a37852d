/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub checkpoint export: a checkpoint as what other programs load. Every key is an array of fp32 with its name;
 * optimizer state has the name with .state0, .state1 behind it. Arrays lie one behind the other in the file, so chunks
 * are written to their places as they come, and nothing is held in memory.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "phub/base/crc.h"
#include "phub/cli/checkpoint_tool.h"
#include "phub/cli/checkpoint_zip.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"
#include "phub/control/checkpoint_meta.h"

struct export
{
	struct checkpoint_tool tool;
	const char *to;
	bool npz;
	char part[4096];
	int fd;
	struct checkpoint_table checkpoint;
	struct table *keys;
	struct chunk_plan plan;
	unsigned arrays;             /* of each key */
	struct checkpoint_array *at; /* [key_count][arrays] */
	uint64_t at_count;
	struct checkpoint_progress progress;
	uint64_t repaired;
	struct err e;
};

/* ---- layout ---- */

static int export_compare(const void *a, const void *b)
{
	const struct checkpoint_array *const *x = a, *const *y = b;

	return strcmp((*x)->name, (*y)->name);
}

/* A key may be called like another's state. */
static int export_check_names(struct export *x)
{
	struct checkpoint_array **sorted = calloc(x->at_count, sizeof(*sorted));
	int rc = 0;

	if (!sorted)
		return err_set(&x->e, -ENOMEM, "out of memory");
	for (uint64_t i = 0; i < x->at_count; i++)
		sorted[i] = &x->at[i];
	qsort(sorted, x->at_count, sizeof(*sorted), export_compare);
	for (uint64_t i = 0; i < x->at_count && rc == 0; i++) {
		if (i > 0 && strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
			rc = err_set(&x->e, -EINVAL,
				"two arrays would be called '%s'; export weights alone by --weights", sorted[i]->name);
		else if (strcmp(sorted[i]->name, "__metadata__") == 0 && !x->npz)
			rc = err_set(&x->e, -EINVAL, "no array of .safetensors may be called __metadata__; use .npz");
	}
	free(sorted);
	return rc;
}

static int export_name_arrays(struct export *x, bool weights)
{
	x->at_count = (uint64_t)x->keys->key_have * x->arrays;
	x->at = calloc(x->at_count, sizeof(*x->at));
	if (!x->at)
		return err_set(&x->e, -ENOMEM, "out of memory");
	for (uint64_t i = 0; i < x->at_count; i++) {
		struct checkpoint_array *a = &x->at[i];
		uint32_t key = (uint32_t)(i / x->arrays);
		unsigned state = (unsigned)(i % x->arrays);

		a->left_out = weights && state > 0;
		a->elements = x->keys->keys[key].elements;
		if (state == 0)
			snprintf(a->name, sizeof(a->name), "%s", table_key_name(x->keys, key));
		else
			snprintf(a->name, sizeof(a->name), "%s.state%u", table_key_name(x->keys, key), state - 1);
		if (a->left_out) /* no other has this name: it is none that a key may have */
			snprintf(a->name, sizeof(a->name), "\n%" PRIu64, i);
	}
	return export_check_names(x);
}

static int export_pwrite(struct export *x, const void *bytes, uint64_t count, uint64_t at)
{
	const uint8_t *p = bytes;

	while (count > 0) {
		ssize_t put = pwrite(x->fd, p, count, (off_t)at);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return err_set(&x->e, put < 0 ? -errno : -EIO, "cannot write %s: %s", x->part,
				strerror(put < 0 ? errno : EIO));
		p += put;
		count -= (uint64_t)put;
		at += (uint64_t)put;
	}
	return 0;
}

/* ---- .safetensors: length, JSON, arrays ---- */

static json_t *export_head(struct export *x)
{
	json_t *head = json_object();
	char round[24];
	uint64_t at = 0;

	snprintf(round, sizeof(round), "%" PRIu64, x->checkpoint.round);
	json_object_set_new(head, "__metadata__",
		json_pack("{s:s, s:s, s:s}", "format", "pt", "job", x->tool.place.job, "round", round));
	for (uint64_t i = 0; i < x->at_count; i++) {
		struct checkpoint_array *a = &x->at[i];
		uint64_t bytes = a->elements * sizeof(float);

		if (a->left_out)
			continue;
		a->at = at;
		if (json_object_set_new(head, a->name,
			    json_pack("{s:s, s:[I], s:[I, I]}", "dtype", "F32", "shape", (json_int_t)a->elements,
				    "data_offsets", (json_int_t)at, (json_int_t)(at + bytes))) < 0) {
			err_set(&x->e, -EINVAL, "the name of '%s' is not UTF-8; use .npz", a->name);
			json_decref(head);
			return NULL;
		}
		at += bytes;
	}
	return head;
}

static int export_begin_safetensors(struct export *x)
{
	json_t *head = export_head(x);
	char *text = head ? json_dumps(head, JSON_COMPACT) : NULL;
	uint64_t length = text ? strlen(text) : 0, padded = (length + 7) / 8 * 8;
	uint8_t number[8];
	int rc = text ? 0 : x->e.code ? x->e.code : err_set(&x->e, -ENOMEM, "out of memory");

	json_decref(head);
	for (int i = 0; i < 8; i++)
		number[i] = (uint8_t)(padded >> 8 * i);
	if (rc == 0)
		rc = export_pwrite(x, number, sizeof(number), 0);
	if (rc == 0)
		rc = export_pwrite(x, text, length, sizeof(number));
	if (rc == 0)
		rc = export_pwrite(x, "        ", padded - length, sizeof(number) + length);
	for (uint64_t i = 0; i < x->at_count; i++)
		x->at[i].at += sizeof(number) + padded;
	free(text);
	return rc;
}

/* ---- .npz: a zip of .npy, not compressed ---- */

static int export_begin_npz(struct export *x)
{
	uint64_t at = 0;
	int rc = 0;

	for (uint64_t i = 0; i < x->at_count && rc == 0; i++) {
		uint8_t head[CHECKPOINT_NPY_BYTES];

		if (x->at[i].left_out)
			continue;
		at = checkpoint_zip_place(&x->at[i], at);
		checkpoint_zip_npy(&x->at[i], head);
		x->at[i].crc = crc_32_zip(0, head, sizeof(head));
		rc = export_pwrite(x, head, sizeof(head), x->at[i].at - sizeof(head));
	}
	return rc;
}

/* Checksums stand in front of the arrays, and are known at the end. */
static int export_end_npz(struct export *x)
{
	uint8_t *end;
	uint64_t bytes, at;
	int rc = 0;

	for (uint64_t i = 0; i < x->at_count && rc == 0; i++) {
		uint8_t head[CHECKPOINT_ZIP_LOCAL_MAX];

		if (!x->at[i].left_out)
			rc = export_pwrite(x, head, checkpoint_zip_local(&x->at[i], head), x->at[i].entry_at);
	}
	if (rc < 0)
		return rc;
	end = checkpoint_zip_end(x->at, x->at_count, &at, &bytes);
	if (!end)
		return err_set(&x->e, -ENOMEM, "out of memory");
	rc = export_pwrite(x, end, bytes, at);
	free(end);
	return rc;
}

/* ---- chunks ---- */

/* What the chunk holds of one key. */
static int export_key(
	struct export *x, const struct chunk_span *c, uint32_t key, const uint8_t *bytes, uint64_t elements)
{
	uint64_t size = chunking_dtype_bytes(c->dtype), begin = x->plan.key_offset[key];
	uint64_t end = begin + x->keys->keys[key].elements * size;
	uint64_t from = begin > c->offset ? begin : c->offset;
	uint64_t to = end < c->offset + c->bytes ? end : c->offset + c->bytes;
	uint64_t count = (to - from) / size * sizeof(float), into = (from - begin) / size * sizeof(float);
	int rc = 0;

	for (unsigned i = 0; i < x->arrays && rc == 0; i++) {
		struct checkpoint_array *a = &x->at[(uint64_t)key * x->arrays + i];
		const uint8_t *at = bytes + (i * elements + (from - c->offset) / size) * sizeof(float);

		if (a->left_out)
			continue;
		if (x->npz) /* chunks of a key come in order */
			a->crc = crc_32_zip(a->crc, at, count);
		rc = export_pwrite(x, at, count, a->at + into);
	}
	return rc;
}

static int export_take(void *arg, uint32_t chunk, const void *bytes, uint64_t count)
{
	struct export *x = arg;
	const struct chunk_span *c = &x->plan.chunks[chunk];
	uint64_t elements = c->bytes / chunking_dtype_bytes(c->dtype);
	int rc = 0;

	for (uint32_t key = c->key_first; key < c->key_first + c->key_count && rc == 0; key++)
		rc = export_key(x, c, key, bytes, elements);
	atomic_fetch_add_explicit(&x->progress.written, count, memory_order_relaxed);
	if (rc == 0 && atomic_load_explicit(&x->progress.stop, memory_order_relaxed))
		rc = err_set(&x->e, -ECANCELED, "stopped; %s is not written", x->to);
	return rc;
}

static int export_work(void *arg)
{
	struct export *x = arg;
	int rc = x->npz ? export_begin_npz(x) : export_begin_safetensors(x);

	if (rc == 0)
		rc = checkpoint_read_chunks(&x->tool.place, &x->checkpoint, export_take, x, &x->repaired, &x->e);
	if (rc == 0 && x->npz)
		rc = export_end_npz(x);
	if (rc == 0 && fsync(x->fd) < 0)
		rc = err_set(&x->e, -errno, "cannot write %s: %s", x->part, strerror(errno));
	return rc;
}

/* ---- all of it ---- */

static int export_plan(struct export *x, bool weights)
{
	int rc = checkpoint_meta_unpack(x->checkpoint.meta, x->checkpoint.meta_bytes, &x->keys, &x->e);

	if (rc == 0)
		rc = checkpoint_meta_plan(x->keys, &x->checkpoint, &x->plan, &x->arrays, &x->e);
	if (rc == 0)
		rc = export_name_arrays(x, weights);
	for (uint32_t i = 0; rc == 0 && i < x->checkpoint.chunk_count; i++)
		x->progress.total += x->checkpoint.chunks[i].bytes;
	return rc;
}

/* Under another name until it is whole. */
static int export_file(struct export *x)
{
	int rc;

	if ((size_t)snprintf(x->part, sizeof(x->part), "%s.part", x->to) >= sizeof(x->part))
		return err_set(&x->e, -ENAMETOOLONG, "%.64s...: %s", x->to, strerror(ENAMETOOLONG));
	x->fd = open(x->part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (x->fd < 0)
		return err_set(&x->e, -errno, "cannot write %s: %s", x->part, strerror(errno));
	rc = checkpoint_tool_work(x->tool.place.job, &x->progress, export_work, x);
	if (close(x->fd) < 0 && rc == 0)
		rc = err_set(&x->e, -errno, "cannot write %s: %s", x->part, strerror(errno));
	if (rc == 0 && rename(x->part, x->to) < 0)
		rc = err_set(&x->e, -errno, "cannot write %s: %s", x->to, strerror(errno));
	if (rc < 0)
		unlink(x->part);
	return rc;
}

static int export_run(struct export *x, bool weights)
{
	int rc = export_plan(x, weights);

	if (rc == 0)
		rc = export_file(x);
	if (rc < 0)
		output_error("job '%s' round %" PRIu64 ": %s", x->tool.place.job, x->checkpoint.round, x->e.text);
	else
		printf("job '%s' round %" PRIu64 ": %" PRIu32 " keys, %u arrays each, in %s\n", x->tool.place.job,
			x->checkpoint.round, x->keys->key_have, weights ? 1 : x->arrays, x->to);
	chunking_plan_fini(&x->plan);
	table_destroy(x->keys);
	free(x->at);
	return rc < 0 ? CLI_FAILED : CLI_DONE;
}

static bool export_ends_in(const char *name, const char *end)
{
	size_t a = strlen(name), b = strlen(end);

	return a > b && strcmp(name + a - b, end) == 0;
}

int checkpoint_export_run(int argc, char **argv)
{
	struct export x = {.to = NULL};
	bool weights = false;
	const struct args_option options[] = {
		{"to", "FILE", "what to write, .safetensors or .npz", ARGS_TEXT, &x.to, 0, 0, NULL},
		{"weights", NULL, "no optimizer state", ARGS_FLAG, &weights, 0, 0, NULL},
		{"job", "NAME", "this job's; when there are several", ARGS_TEXT, &x.tool.job, 0, 0, NULL},
		{"round", "R", "the one before this round (the newest)", ARGS_NUMBER, &x.tool.round, 1, UINT64_MAX,
			NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {
		.command = "phub checkpoint export",
		.words = "DIR...",
		.about = "Writes a checkpoint's keys as flat fp32 arrays with their names, optimizer state as "
			 "NAME.state0\n"
			 "and so on, for PyTorch (.safetensors) or NumPy (.npz). Flat: the box knows how many elements "
			 "a\n"
			 "key has, and no shapes; the model does (see the manual page, phub(1)).\n",
		.examples = "  phub checkpoint export --to model.safetensors /mnt/a /mnt/b /mnt/c\n",
		.words_max = ARGS_WORDS_MAX,
		.options = options,
	};
	struct args_words words;
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc == ARGS_GO_ON && !x.to)
		rc = args_wrong(&usage, "where to? Give --to FILE.safetensors or FILE.npz");
	if (rc == ARGS_GO_ON && !words.count)
		rc = args_wrong(&usage, "which directory?");
	if (rc == ARGS_GO_ON && !export_ends_in(x.to, ".npz") && !export_ends_in(x.to, ".safetensors"))
		rc = args_wrong(&usage, "--to %s: allowed are names that end in .safetensors or .npz", x.to);
	if (rc != ARGS_GO_ON)
		return rc;
	x.npz = export_ends_in(x.to, ".npz");
	rc = checkpoint_tool_begin(&x.tool, &words);
	if (rc == CLI_DONE)
		rc = checkpoint_tool_pick(&x.tool, &x.checkpoint);
	if (rc == CLI_DONE) {
		rc = export_run(&x, weights);
		checkpoint_table_fini(&x.checkpoint);
	}
	checkpoint_tool_end(&x.tool);
	return rc;
}
