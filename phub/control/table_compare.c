/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the first thing in which two ranks' tables differ, in words that let a user find the line in the script.
 */
#include "phub/control/table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What a rank says of one option, as text. */
struct table_word {
	char text[32];
};

static struct table_word table_number(uint64_t value)
{
	struct table_word w;

	snprintf(w.text, sizeof(w.text), "%" PRIu64, value);
	return w;
}

static struct table_word table_text(const char *text)
{
	struct table_word w;

	snprintf(w.text, sizeof(w.text), "%s", text);
	return w;
}

enum { TABLE_OPTIONS = 14 };

/* The options in the order in which they are compared. */
static void table_options(const struct table *t, struct table_word out[TABLE_OPTIONS])
{
	const struct spec *s = &t->spec;

	out[0] = table_text(spec_optimizer_name(s->optimizer));
	out[1] = table_text(s->mean ? "mean" : "sum");
	out[2] = table_text(spec_sync_name(s->sync));
	out[3] = table_number(s->sync == SYNC_SSP ? s->staleness : 0);
	out[4] = table_text(s->reproducible ? "true" : "false");
	out[5] = table_text(spec_nan_name(s->nan));
	out[6] = table_number(t->chunk_bytes);
	out[7] = table_number(s->group_count);
	out[8] = table_number(s->generation);
	out[9] = table_text(seal_name(s->seal));
	out[10] = table_text(spec_lost_name(s->lost));
	out[11] = table_number(s->quorum);
	out[12] = table_number(t->wait_ms);
	out[13] = table_text(s->encrypt ? "true" : "false");
}

static int table_compare_options(
	const struct table *a, uint32_t rank_a, const struct table *b, uint32_t rank_b, struct err *e)
{
	static const char *const names[TABLE_OPTIONS] = {"optimizer", "reduce", "sync", "staleness", "reproducible",
		"nan", "chunk_bytes", "number of parameter groups", "generation", "seal", "policy for lost workers",
		"quorum", "wait_ms", "encrypt"};
	struct table_word in_a[TABLE_OPTIONS], in_b[TABLE_OPTIONS];

	table_options(a, in_a);
	table_options(b, in_b);
	for (int i = 0; i < TABLE_OPTIONS; i++)
		if (strcmp(in_a[i].text, in_b[i].text) != 0)
			return err_set(e, -EBADMSG, "%s differs: rank %u says %s, rank %u says %s", names[i], rank_a,
				in_a[i].text, rank_b, in_b[i].text);
	return 0;
}

static int table_compare_groups(
	const struct table *a, uint32_t rank_a, const struct table *b, uint32_t rank_b, struct err *e)
{
	double in_a, in_b;

	for (uint32_t i = 0; i < a->spec.group_count; i++) {
		const char *name = spec_hyper_differs(&a->spec.groups[i], &b->spec.groups[i], &in_a, &in_b);

		if (name)
			return err_set(e, -EBADMSG,
				"%s of parameter group %u differs: rank %u says %.9g, rank %u says %.9g", name, i,
				rank_a, in_a, rank_b, in_b);
	}
	return 0;
}

static int table_compare_key(
	const struct table *a, uint32_t rank_a, const struct table *b, uint32_t rank_b, uint32_t i, struct err *e)
{
	const struct chunk_key *ka = &a->keys[i], *kb = &b->keys[i];
	const char *name = table_key_name(a, i), *other = table_key_name(b, i);

	if (strcmp(name, other) != 0)
		return err_set(e, -EBADMSG, "key %u differs: rank %u names it '%.100s', rank %u '%.100s'", i, rank_a,
			name, rank_b, other);
	if (ka->elements != kb->elements)
		return err_set(e, -EBADMSG,
			"key '%.100s' (%u) differs: rank %u has %" PRIu64 " elements, rank %u has %" PRIu64, name, i,
			rank_a, ka->elements, rank_b, kb->elements);
	if (ka->dtype != kb->dtype)
		return err_set(e, -EBADMSG, "key '%.100s' (%u) differs: rank %u has dtype %s, rank %u has %s", name, i,
			rank_a, chunking_dtype_name(ka->dtype), rank_b, chunking_dtype_name(kb->dtype));
	if (ka->group != kb->group)
		return err_set(e, -EBADMSG,
			"key '%.100s' (%u) differs: rank %u has it in parameter group %u, rank %u in %u", name, i,
			rank_a, ka->group, rank_b, kb->group);
	if (ka->alone != kb->alone)
		return err_set(e, -EBADMSG,
			"key '%.100s' (%u) differs: it is exchanged alone at rank %u, and not at rank %u", name, i,
			ka->alone ? rank_a : rank_b, ka->alone ? rank_b : rank_a);
	return 0;
}

int table_compare(const struct table *a, uint32_t rank_a, const struct table *b, uint32_t rank_b, struct err *e)
{
	uint32_t both = a->key_count < b->key_count ? a->key_count : b->key_count;
	bool more = a->key_count > b->key_count;
	int rc = table_compare_options(a, rank_a, b, rank_b, e);

	if (rc == 0)
		rc = table_compare_groups(a, rank_a, b, rank_b, e);
	for (uint32_t i = 0; rc == 0 && i < both; i++)
		rc = table_compare_key(a, rank_a, b, rank_b, i, e);
	if (rc < 0 || a->key_count == b->key_count)
		return rc;
	return err_set(e, -EBADMSG, "key '%.100s' (%u) is missing at rank %u, which has %u keys; rank %u has %u",
		table_key_name(more ? a : b, both), both, more ? rank_b : rank_a, both, more ? rank_a : rank_b,
		more ? a->key_count : b->key_count);
}
