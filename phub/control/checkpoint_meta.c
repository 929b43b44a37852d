/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/control/checkpoint_meta.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "phub/control/unpack.h"
#include "transport/le.h"

enum {
	META_KEYS = 4096, /* in a frame: with names of 255 bytes some 1 MiB, which unpack_control() takes */
	META_HEAD_BYTES = 4,
};

struct meta_out {
	uint8_t *bytes;
	uint64_t used;
};

/* ---- packing ---- */

static int meta_put(struct meta_out *out, const Phub__Control *frame)
{
	size_t bytes = phub__control__get_packed_size(frame);
	uint8_t *grown = realloc(out->bytes, out->used + 4 + bytes);

	if (!grown)
		return -ENOMEM;
	out->bytes = grown;
	le_put32(grown + out->used, (uint32_t)bytes);
	phub__control__pack(frame, grown + out->used + 4);
	out->used += 4 + bytes;
	return 0;
}

static int meta_put_job(struct meta_out *out, const struct table *t, const struct optimizer_hyper *groups)
{
	const struct spec *s = &t->spec;
	Phub__Control frame = PHUB__CONTROL__INIT;
	Phub__Job job = PHUB__JOB__INIT;
	Phub__Hypers *hypers = calloc(s->group_count + 1, sizeof(*hypers));
	Phub__Hypers **at = calloc(s->group_count + 1, sizeof(void *));
	int rc = -ENOMEM;

	if (hypers && at)
		table_hypers(groups ? groups : s->groups, s->group_count, hypers, at);
	table_job(t, &job);
	job.n_groups = s->group_count;
	job.groups = at;
	frame.message_case = PHUB__CONTROL__MESSAGE_JOB;
	frame.job = &job;
	if (hypers && at)
		rc = meta_put(out, &frame);
	free(hypers);
	free(at);
	return rc;
}

static int meta_put_keys(struct meta_out *out, const struct table *t, uint32_t first, uint32_t count)
{
	Phub__Control frame = PHUB__CONTROL__INIT;
	Phub__Keys message = PHUB__KEYS__INIT;
	Phub__Key *keys = calloc(count, sizeof(*keys));
	Phub__Key **at = calloc(count, sizeof(void *));
	int rc = -ENOMEM;

	if (keys && at)
		table_keys(t, first, count, keys, at);
	message.generation = t->spec.generation;
	message.first = first;
	message.n_keys = count;
	message.keys = at;
	frame.message_case = PHUB__CONTROL__MESSAGE_KEYS;
	frame.keys = &message;
	if (keys && at)
		rc = meta_put(out, &frame);
	free(keys);
	free(at);
	return rc;
}

int checkpoint_meta_pack(
	const struct table *t, const struct optimizer_hyper *groups, uint8_t **out, uint64_t *bytes, struct err *e)
{
	struct meta_out o = {.bytes = malloc(META_HEAD_BYTES), .used = META_HEAD_BYTES};
	int rc = o.bytes ? 0 : -ENOMEM;

	if (rc == 0) {
		le_put32(o.bytes, t->spec.world);
		rc = meta_put_job(&o, t, groups);
	}
	for (uint32_t i = 0; rc == 0 && i < t->key_have; i += META_KEYS)
		rc = meta_put_keys(&o, t, i, t->key_have - i < META_KEYS ? t->key_have - i : META_KEYS);
	if (rc < 0) {
		free(o.bytes);
		return err_set(e, rc, "no memory to pack a table of %" PRIu32 " keys", t->key_have);
	}
	*out = o.bytes;
	*bytes = o.used;
	return 0;
}

/* ---- unpacking ---- */

static int meta_take(const Phub__Control *frame, uint32_t world, struct table **t, struct err *e)
{
	if (!*t && frame->message_case == PHUB__CONTROL__MESSAGE_JOB)
		return table_create(frame->job, world, CHUNKING_CHUNK_BYTES_DEFAULT, UINT32_MAX, t, e);
	if (*t && frame->message_case == PHUB__CONTROL__MESSAGE_KEYS && frame->keys->n_keys > 0)
		return table_add(*t, frame->keys, e);
	return err_set(e, -EBADMSG, "what it says of its job is out of order");
}

/* One frame at *at. */
static int meta_frame(
	const uint8_t *meta, uint64_t bytes, uint64_t *at, uint32_t world, struct table **t, struct err *e)
{
	uint64_t left = bytes - *at, length = left >= 4 ? le_get32(meta + *at) : UINT64_MAX;
	Phub__Control *frame = left >= 4 && length <= left - 4 ? unpack_control(meta + *at + 4, length) : NULL;
	int rc;

	if (!frame)
		return err_set(e, -EBADMSG, "what it says of its job cannot be read");
	rc = meta_take(frame, world, t, e);
	unpack_free(frame);
	*at += 4 + length;
	return rc;
}

int checkpoint_meta_unpack(const uint8_t *meta, uint64_t bytes, struct table **out, struct err *e)
{
	struct table *t = NULL;
	uint64_t at = META_HEAD_BYTES;
	int rc = bytes >= META_HEAD_BYTES ? 0 : err_set(e, -EBADMSG, "it says nothing of its job");

	while (rc == 0 && at < bytes)
		rc = meta_frame(meta, bytes, &at, le_get32(meta), &t, e);
	if (rc == 0 && (!t || !table_complete(t)))
		rc = err_set(e, -EBADMSG, "what it says of its job ends too early");
	if (rc < 0) {
		table_destroy(t);
		return rc == -ENOMEM ? rc : err_set(e, -EBADMSG, "%s", e ? e->text : "");
	}
	*out = t;
	return 0;
}

int checkpoint_meta_plan(const struct table *t, const struct checkpoint_table *checkpoint, struct chunk_plan *plan,
	unsigned *arrays, struct err *e)
{
	uint64_t weights, found = 0;
	struct chunk_size size;

	/* First without memory: the keys may claim anything. */
	if (chunking_size(t->keys, t->key_have, t->chunk_bytes, &size, e) < 0 ||
		size.chunk_count != checkpoint->chunk_count)
		return err_set(e, -EBADMSG, "its keys do not make the %" PRIu32 " chunks that it has",
			checkpoint->chunk_count);
	if (chunking_plan(t->keys, t->key_have, t->chunk_bytes, plan, e) < 0)
		return -ENOMEM;
	for (uint32_t i = 0; i < plan->chunk_count; i++) {
		weights = plan->chunks[i].bytes / chunking_dtype_bytes(plan->chunks[i].dtype) * sizeof(float);
		if (i == 0)
			found = checkpoint->chunks[0].bytes / weights;
		if (found < 1 || found > 8 || checkpoint->chunks[i].bytes != found * weights) {
			chunking_plan_fini(plan);
			return err_set(e, -EBADMSG,
				"chunk %" PRIu32 " has %" PRIu64 " bytes, its keys make %" PRIu64 " of weights", i,
				checkpoint->chunks[i].bytes, weights);
		}
	}
	*arrays = (unsigned)found;
	return 0;
}
