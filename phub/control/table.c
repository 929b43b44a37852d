/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and compares what ranks say about their job. Memory grows with what came, never with what was announced.
 */
#include "phub/control/table.h"

#include "phub/association.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void table_hyper(const Phub__Hypers *from, struct optimizer_hyper *to)
{
	*to = (struct optimizer_hyper){
		.lr = from->lr,
		.momentum = from->momentum,
		.dampening = from->dampening,
		.weight_decay = from->weight_decay,
		.lr_decay = from->lr_decay,
		.initial_accumulator_value = from->initial_accumulator,
		.beta1 = from->beta1,
		.beta2 = from->beta2,
		.eps = from->eps,
	};
}

static void table_fill_spec(const Phub__Job *job, uint32_t world, struct spec *spec)
{
	spec->world = world;
	spec->generation = job->generation;
	spec->optimizer = (enum optimizer_kind)job->optimizer;
	spec->mean = job->reduce == PHUB__REDUCE__MEAN;
	spec->sync = (enum spec_sync)job->sync;
	spec->staleness = job->staleness;
	spec->reproducible = job->reproducible;
	spec->nan = (enum spec_nan)job->nan;
	spec->lost = (enum spec_lost)job->lost;
	spec->quorum = job->quorum;
	spec->seal = (enum seal_kind)(SEAL_GMAC + (unsigned)job->seal);
	spec->group_count = (uint32_t)(job->n_groups <= SPEC_GROUPS_MAX ? job->n_groups : SPEC_GROUPS_MAX + 1);
	for (uint32_t i = 0; i < spec->group_count && i < SPEC_GROUPS_MAX; i++)
		table_hyper(job->groups[i], &spec->groups[i]);
	if (spec->group_count == 0 && spec->optimizer == OPTIMIZER_NONE)
		spec->group_count = 1; /* an all-reduce has nothing to say about its groups */
}

static bool table_text_valid(const char *name, size_t most)
{
	size_t length = strnlen(name, most + 1);

	if (length == 0 || length > most)
		return false;
	for (size_t i = 0; i < length; i++)
		if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
			return false;
	return true;
}

static int table_check(const struct table *t, const Phub__Job *job, uint64_t keys_max, struct err *e)
{
	uint32_t bytes = t->chunk_bytes;
	int rc = spec_check(&t->spec, e);

	if (rc < 0)
		return rc;
	if (job->reduce != PHUB__REDUCE__SUM && job->reduce != PHUB__REDUCE__MEAN)
		return err_set(e, -EINVAL, "reduce %d is unknown; allowed are 0 (sum) and 1 (mean)", (int)job->reduce);
	if (bytes < CHUNKING_CHUNK_BYTES_MIN || bytes > CHUNKING_CHUNK_BYTES_MAX || (bytes & (bytes - 1)))
		return err_set(e, -EINVAL, "chunk_bytes %u; allowed are powers of two from %u to %u", bytes,
			CHUNKING_CHUNK_BYTES_MIN, CHUNKING_CHUNK_BYTES_MAX);
	if (t->key_count == 0)
		return err_set(e, -EINVAL, "the key table is empty; a job needs at least one key");
	if (t->key_count > keys_max)
		return err_set(e, -E2BIG,
			"%u keys; the box takes at most %" PRIu64 ": raise keys_max there, or join small keys",
			t->key_count, keys_max);
	if (strlen(job->transport) >= sizeof(t->transport))
		return err_set(e, -EINVAL, "a transport's name of %zu characters; allowed are %u",
			strlen(job->transport), TABLE_TRANSPORT_BYTES - 1);
	if (job->sites[0] && !table_text_valid(job->sites, TABLE_SITES_BYTES - 1))
		return err_set(
			e, -EINVAL, "what sites do is over %u characters or not printable", TABLE_SITES_BYTES - 1);
	return 0;
}

static int table_take_association(struct table *t, const char *text, struct err *e)
{
	int rc;

	if (!text[0])
		return 0;
	if (!t->spec.reproducible)
		return err_set(e, -EINVAL, "an association says how reproducible sums are made; set reproducible, too");
	rc = association_parse(text, t->spec.world, &t->association, e);
	if (rc < 0)
		return rc;
	t->association_text = malloc(ASSOCIATION_TEXT_BYTES);
	if (!t->association_text)
		return err_set(e, -ENOMEM, "no memory for an association");
	association_write(t->association, t->association_text, ASSOCIATION_TEXT_BYTES);
	t->spec.association = t->association;
	return 0;
}

int table_create(const Phub__Job *job, uint32_t world, uint32_t chunk_bytes, uint64_t keys_max, struct table **out,
	struct err *e)
{
	struct table *t = calloc(1, sizeof(*t));
	int rc;

	if (!t)
		return err_set(e, -ENOMEM, "no memory for a key table");
	table_fill_spec(job, world, &t->spec);
	t->wait_ms = job->wait_ms;
	t->resumes = job->resumes;
	t->here = job->here;
	t->chunk_bytes = job->chunk_bytes ? job->chunk_bytes : chunk_bytes;
	t->chunk_default = job->chunk_default || job->chunk_bytes == 0;
	t->key_count = job->key_count;
	rc = table_check(t, job, keys_max, e);
	if (rc == 0)
		rc = table_take_association(t, job->association, e);
	if (rc < 0) {
		table_destroy(t);
		return rc;
	}
	memcpy(t->transport, job->transport, strlen(job->transport) + 1);
	memcpy(t->sites, job->sites, strlen(job->sites) + 1);
	*out = t;
	return 0;
}

void table_destroy(struct table *t)
{
	if (!t)
		return;
	free(t->association);
	free(t->association_text);
	free(t->keys);
	free(t->name_at);
	free(t->names);
	table_forget_names(t);
	free(t);
}

uint64_t table_bytes(const struct table *t)
{
	uint64_t association =
		t->association ? ASSOCIATION_TEXT_BYTES + t->association->step_count * sizeof(uint32_t) : 0;

	return sizeof(*t) + association + t->key_room * (sizeof(*t->keys) + sizeof(*t->name_at)) + t->name_room +
	       t->index_room * sizeof(*t->index);
}

const char *table_key_name(const struct table *t, uint32_t key)
{
	return key < t->key_have ? t->names + t->name_at[key] : "?";
}

static int table_reserve_keys(struct table *t, size_t more)
{
	uint64_t room = t->key_room ? t->key_room : 64;
	void *grown;

	while (room < t->key_have + more)
		room *= 2;
	if (room == t->key_room)
		return 0;
	if (room > UINT32_MAX)
		return -ENOMEM;
	grown = realloc(t->keys, room * sizeof(*t->keys));
	if (!grown)
		return -ENOMEM;
	t->keys = grown;
	grown = realloc(t->name_at, room * sizeof(*t->name_at));
	if (!grown)
		return -ENOMEM;
	t->name_at = grown;
	t->key_room = (uint32_t)room;
	return 0;
}

static int table_reserve_name(struct table *t, size_t bytes)
{
	size_t room = t->name_room ? t->name_room : 1024;
	char *grown;

	while (room < t->name_bytes + bytes)
		room *= 2;
	if (room == t->name_room)
		return 0;
	if (room > UINT32_MAX)
		return -ENOMEM;
	grown = realloc(t->names, room);
	if (!grown)
		return -ENOMEM;
	t->names = grown;
	t->name_room = room;
	return 0;
}

static int table_check_key(const struct table *t, const Phub__Key *key, struct err *e)
{
	uint32_t index = t->key_have;

	if (!table_text_valid(key->name, TABLE_NAME_BYTES_MAX))
		return err_set(e, -EINVAL, "the name of key %u is empty, over %u bytes or not printable", index,
			TABLE_NAME_BYTES_MAX);
	if (key->elements == 0)
		return err_set(e, -EINVAL, "key '%.64s' (%u) has 0 elements; leave empty tensors out of the key table",
			key->name, index);
	if (chunking_dtype_bytes((uint8_t)(key->dtype < 0 || key->dtype > UINT8_MAX ? UINT8_MAX : key->dtype)) == 0)
		return err_set(e, -EINVAL, "key '%.64s' (%u) has dtype %d; allowed are 0 (f32), 1 (f16) and 2 (bf16)",
			key->name, index, (int)key->dtype);
	if (key->group >= t->spec.group_count)
		return err_set(e, -EINVAL, "key '%.64s' (%u) is in parameter group %u; the job has %u", key->name,
			index, key->group, t->spec.group_count);
	return 0;
}

static int table_add_key(struct table *t, const Phub__Key *key, struct err *e)
{
	uint32_t twin = 0;
	size_t bytes;
	int rc = table_check_key(t, key, e);

	if (rc < 0)
		return rc;
	bytes = strlen(key->name) + 1;
	if (table_reserve_name(t, bytes) == 0)
		rc = table_name_find(t, key->name, &twin);
	else
		rc = -ENOMEM;
	if (rc > 0)
		return err_set(e, -EINVAL, "key %u has the name of key %u, '%.64s'; give every key a name of its own",
			t->key_have, twin, key->name);
	if (rc < 0)
		return err_set(e, -ENOMEM, "no memory for the names of %u keys", t->key_count);
	t->keys[t->key_have] = (struct chunk_key){
		.elements = key->elements,
		.dtype = (uint8_t)key->dtype,
		.group = (uint16_t)key->group,
		.alone = key->alone,
		.sparse = key->sparse,
	};
	t->name_at[t->key_have] = (uint32_t)t->name_bytes;
	memcpy(t->names + t->name_bytes, key->name, bytes);
	t->name_bytes += bytes;
	t->key_have++;
	return 0;
}

int table_add(struct table *t, const Phub__Keys *keys, struct err *e)
{
	int rc = 0;

	if (keys->first != t->key_have || keys->n_keys > t->key_count - t->key_have)
		return err_set(e, -EPROTO, "keys %u to %zu of %u came when key %u was due", keys->first,
			keys->first + keys->n_keys, t->key_count, t->key_have);
	if (table_reserve_keys(t, keys->n_keys) < 0)
		return err_set(e, -ENOMEM, "no memory for %u keys", t->key_count);
	for (size_t i = 0; rc == 0 && i < keys->n_keys; i++)
		rc = table_add_key(t, keys->keys[i], e);
	if (table_complete(t))
		table_forget_names(t);
	return rc;
}

/* ---- as messages again ---- */

static void table_unfill_hyper(const struct optimizer_hyper *h, Phub__Hypers *out)
{
	phub__hypers__init(out);
	out->lr = h->lr;
	out->momentum = h->momentum;
	out->dampening = h->dampening;
	out->weight_decay = h->weight_decay;
	out->beta1 = h->beta1;
	out->beta2 = h->beta2;
	out->eps = h->eps;
	out->lr_decay = h->lr_decay;
	out->initial_accumulator = h->initial_accumulator_value;
}

void table_hypers(const struct optimizer_hyper *groups, uint32_t count, Phub__Hypers *out, Phub__Hypers **each)
{
	for (uint32_t i = 0; i < count; i++) {
		table_unfill_hyper(&groups[i], &out[i]);
		each[i] = &out[i];
	}
}

void table_job(const struct table *t, Phub__Job *out)
{
	const struct spec *s = &t->spec;

	out->generation = s->generation;
	out->optimizer = (Phub__Optimizer)s->optimizer;
	out->reduce = s->mean ? PHUB__REDUCE__MEAN : PHUB__REDUCE__SUM;
	out->sync = (Phub__Sync)s->sync;
	out->staleness = s->staleness;
	out->reproducible = s->reproducible;
	out->association = t->association ? t->association_text : out->association;
	out->nan = (Phub__NanPolicy)s->nan;
	out->lost = (Phub__Lost)s->lost;
	out->quorum = s->quorum;
	out->wait_ms = t->wait_ms;
	out->here = t->here;
	out->sites = (char *)(uintptr_t)t->sites;
	out->seal = (Phub__Seal)(s->seal - SEAL_GMAC);
	out->chunk_bytes = t->chunk_bytes;
	out->chunk_default = t->chunk_default;
	out->key_count = t->key_have;
}

void table_keys(const struct table *t, uint32_t first, uint32_t count, Phub__Key *out, Phub__Key **each)
{
	for (uint32_t i = 0; i < count; i++) {
		const struct chunk_key *key = &t->keys[first + i];

		phub__key__init(&out[i]);
		out[i].name = (char *)(uintptr_t)table_key_name(t, first + i);
		out[i].elements = key->elements;
		out[i].dtype = (Phub__Dtype)key->dtype;
		out[i].group = key->group;
		out[i].alone = key->alone;
		out[i].sparse = key->sparse;
		each[i] = &out[i];
	}
}
