/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the first thing in which two tables differ, of two ranks or of a job and its checkpoint, in words that let a
 * user find the line in the script.
 */
#include "phub/control/table.h"

#include "phub/base/crc.h"

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

static struct table_word table_part(const char *text, int length)
{
	struct table_word w;

	snprintf(w.text, sizeof(w.text), "%.*s", length, text);
	return w;
}

/* Lists of thousands of ranks have no room: their beginning, and something that is another for each. */
static struct table_word table_association(const struct table *t)
{
	const char *text = t->association ? t->association_text : "none";
	struct table_word w;

	if (strlen(text) < sizeof(w.text))
		return table_text(text);
	snprintf(w.text, sizeof(w.text), "%.16s... (%08x)", text, crc_32c(0, text, strlen(text)));
	return w;
}

/* Of "local; momentum=0.9; clip=1" the value of the piece of this number, and its name. False: there is none, and in
 * words that is "none". */
static bool table_site(const struct table *t, unsigned which, struct table_word *name, struct table_word *value)
{
	const char *at = t->sites, *equals;
	int length;

	for (; at && which > 0; which--) {
		at = strstr(at, "; ");
		at = at ? at + 2 : NULL;
	}
	*name = table_text("an option");
	*value = table_text("none");
	if (!at || !*at)
		return false;
	length = (int)strcspn(at, ";");
	equals = memchr(at, '=', (size_t)length);
	if (equals)
		*name = table_part(at, (int)(equals - at));
	*value = equals ? table_part(equals + 1, length - (int)(equals + 1 - at)) : table_part(at, length);
	return true;
}

enum { TABLE_OPTION_SITES = 16, TABLE_OPTIONS };

/* The options in the order in which they are compared. */
static void table_options(const struct table *t, struct table_word out[TABLE_OPTIONS])
{
	const struct spec *s = &t->spec;
	struct table_word name;

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
	out[14] = table_association(t);
	out[15] = table_text(t->here ? "true" : "false");
	table_site(t, 0, &name, &out[TABLE_OPTION_SITES]);
}

/* What it is to a checkpoint: the chunks on disk depend on it, or a job that goes on from there may change it. */
static const struct table_option {
	const char *name;
	enum { OPTION_MAY, OPTION_MUST, OPTION_STEPWISE, OPTION_UNTOLD } kept;
} table_option[TABLE_OPTIONS] = {
	{"optimizer", OPTION_MUST},
	{"reduce", OPTION_MAY},
	{"sync", OPTION_STEPWISE},
	{"staleness", OPTION_MAY},
	{"reproducible", OPTION_MAY},
	{"nan", OPTION_MAY},
	{"chunk_bytes", OPTION_MUST},
	{"number of parameter groups", OPTION_MUST},
	{"generation", OPTION_UNTOLD}, /* a job that comes again counts anew */
	{"seal", OPTION_MAY},
	{"policy for lost workers", OPTION_MAY},
	{"quorum", OPTION_MAY},
	{"wait_ms", OPTION_MAY},
	{"encrypt", OPTION_UNTOLD}, /* of what is on its way: a checkpoint does not know of it */
	{"association", OPTION_MAY},
	/* Nor of where its ranks are. */
	{"here", OPTION_UNTOLD},
	{"algorithm of sites", OPTION_MAY},
};

/* Whose tables, as messages say it. */
struct table_pair {
	const struct table *a, *b;
	const char *who_a, *who_b;
};

static int table_option_error(const struct table_pair *p, const char *name, const char *a, const char *b, struct err *e)
{
	return err_set(e, -EBADMSG, "%s differs: %s says %s, %s says %s", name, p->who_a, a, p->who_b, b);
}

/* Options of sites behind the algorithm, which is the same: so are their number and names, of one release. Of the next
 * one from `which` on that differs what both say; false: none does. */
static bool table_sites_differ(const struct table_pair *p, unsigned *which, struct table_word *name,
	struct table_word *a, struct table_word *b)
{
	for (;; (*which)++) {
		struct table_word name_b;
		const bool in_a = table_site(p->a, *which, name, a), in_b = table_site(p->b, *which, &name_b, b);

		if (!in_a && !in_b)
			return false;
		if (in_a && in_b && strcmp(name->text, name_b.text) != 0) {
			*a = *name;
			*b = name_b;
			*name = table_text("an option");
			return true;
		}
		if (in_a != in_b || strcmp(a->text, b->text) != 0) {
			*name = in_a ? *name : name_b;
			return true;
		}
	}
}

static int table_compare_sites(const struct table_pair *p, struct err *e)
{
	struct table_word name, a, b;
	unsigned which = 1;
	char what[48];

	if (!table_sites_differ(p, &which, &name, &a, &b))
		return 0;
	snprintf(what, sizeof(what), "%s of sites", name.text);
	return table_option_error(p, what, a.text, b.text, e);
}

static int table_compare_options(const struct table_pair *p, struct err *e)
{
	struct table_word in_a[TABLE_OPTIONS], in_b[TABLE_OPTIONS];

	table_options(p->a, in_a);
	table_options(p->b, in_b);
	for (int i = 0; i < TABLE_OPTIONS; i++)
		if (strcmp(in_a[i].text, in_b[i].text) != 0)
			return table_option_error(p, table_option[i].name, in_a[i].text, in_b[i].text, e);
	return table_compare_sites(p, e);
}

static int table_compare_groups(const struct table_pair *p, struct err *e)
{
	double in_a, in_b;

	for (uint32_t i = 0; i < p->a->spec.group_count; i++) {
		const char *name = spec_hyper_differs(&p->a->spec.groups[i], &p->b->spec.groups[i], NULL, &in_a, &in_b);

		if (name)
			return err_set(e, -EBADMSG, "%s of parameter group %u differs: %s says %.9g, %s says %.9g",
				name, i, p->who_a, in_a, p->who_b, in_b);
	}
	return 0;
}

static int table_compare_key(const struct table_pair *p, uint32_t i, struct err *e)
{
	const struct chunk_key *ka = &p->a->keys[i], *kb = &p->b->keys[i];
	const char *name = table_key_name(p->a, i), *other = table_key_name(p->b, i);

	if (strcmp(name, other) != 0)
		return err_set(e, -EBADMSG, "key %u differs: %s names it '%.100s', %s '%.100s'", i, p->who_a, name,
			p->who_b, other);
	if (ka->elements != kb->elements)
		return err_set(e, -EBADMSG, "key '%.100s' (%u) differs: %s has %" PRIu64 " elements, %s has %" PRIu64,
			name, i, p->who_a, ka->elements, p->who_b, kb->elements);
	if (ka->dtype != kb->dtype)
		return err_set(e, -EBADMSG, "key '%.100s' (%u) differs: %s has dtype %s, %s has %s", name, i, p->who_a,
			chunking_dtype_name(ka->dtype), p->who_b, chunking_dtype_name(kb->dtype));
	if (ka->group != kb->group)
		return err_set(e, -EBADMSG, "key '%.100s' (%u) differs: %s has it in parameter group %u, %s in %u",
			name, i, p->who_a, ka->group, p->who_b, kb->group);
	if (ka->alone != kb->alone)
		return err_set(e, -EBADMSG, "key '%.100s' (%u) differs: it is exchanged alone at %s, and not at %s",
			name, i, ka->alone ? p->who_a : p->who_b, ka->alone ? p->who_b : p->who_a);
	if (ka->sparse != kb->sparse)
		return err_set(e, -EBADMSG, "key '%.100s' (%u) differs: it is sparse at %s, and not at %s", name, i,
			ka->sparse ? p->who_a : p->who_b, ka->sparse ? p->who_b : p->who_a);
	return 0;
}

static int table_compare_keys(const struct table_pair *p, struct err *e)
{
	uint32_t both = p->a->key_count < p->b->key_count ? p->a->key_count : p->b->key_count;
	bool more = p->a->key_count > p->b->key_count;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < both; i++)
		rc = table_compare_key(p, i, e);
	if (rc < 0 || p->a->key_count == p->b->key_count)
		return rc;
	return err_set(e, -EBADMSG, "key '%.100s' (%u) is missing at %s, which has %u keys; %s has %u",
		table_key_name(more ? p->a : p->b, both), both, more ? p->who_b : p->who_a, both,
		more ? p->who_a : p->who_b, more ? p->a->key_count : p->b->key_count);
}

static void table_write_chunks(const struct table_side *s, char *out, size_t bytes)
{
	if (s->table->chunk_default)
		snprintf(out, bytes, "%s has %u (rank %u names none)", s->box, s->table->chunk_bytes, s->rank);
	else
		snprintf(out, bytes, "rank %u says %u", s->rank, s->table->chunk_bytes);
}

/* It is an option of boxes, too, where nobody names one. */
static int table_compare_chunks(const struct table_side *a, const struct table_side *b, struct err *e)
{
	char in_a[200], in_b[200];

	if (a->table->chunk_bytes == b->table->chunk_bytes || (!a->table->chunk_default && !b->table->chunk_default))
		return 0;
	table_write_chunks(a, in_a, sizeof(in_a));
	table_write_chunks(b, in_b, sizeof(in_b));
	return err_set(e, -EBADMSG,
		"chunk_bytes differs: %s, %s; set it alike at the boxes, or let all workers name one", in_a, in_b);
}

int table_compare(const struct table_side *a, const struct table_side *b, struct err *e)
{
	char who_a[20], who_b[20];
	const struct table_pair p = {.a = a->table, .b = b->table, .who_a = who_a, .who_b = who_b};
	int rc;

	snprintf(who_a, sizeof(who_a), "rank %u", a->rank);
	snprintf(who_b, sizeof(who_b), "rank %u", b->rank);
	rc = table_compare_chunks(a, b, e);
	if (rc == 0)
		rc = table_compare_options(&p, e);
	if (rc == 0)
		rc = table_compare_groups(&p, e);
	return rc < 0 ? rc : table_compare_keys(&p, e);
}

/* ---- a checkpoint and the job that comes again ---- */

static void table_add_change(struct table_changes *c, const char *name, const char *then, const char *now)
{
	size_t at = strlen(c->text);

	if (c->count++ >= TABLE_CHANGES_TOLD)
		return;
	snprintf(c->text + at, sizeof(c->text) - at, "%s%s was %s and is %s", at ? ", " : "", name, then, now);
}

static void table_change_groups(const struct table *then, const struct table *now, struct table_changes *c)
{
	double in_then, in_now;
	char name[64], a[32], b[32];

	for (uint32_t i = 0; i < now->spec.group_count; i++) {
		unsigned at = 0;
		const char *which;

		while ((which = spec_hyper_differs(
				&then->spec.groups[i], &now->spec.groups[i], &at, &in_then, &in_now))) {
			snprintf(name, sizeof(name), "%s of parameter group %u", which, i);
			snprintf(a, sizeof(a), "%.9g", in_then);
			snprintf(b, sizeof(b), "%.9g", in_now);
			table_add_change(c, name, a, b);
		}
	}
}

int table_continues(const struct table *then, const struct table *now, struct table_changes *changes, struct err *e)
{
	const struct table_pair p = {.a = then, .b = now, .who_a = "the checkpoint", .who_b = "this job"};
	struct table_word a[TABLE_OPTIONS], b[TABLE_OPTIONS], name;
	char what[48];
	const bool stepwise = spec_stepwise(&then->spec) == spec_stepwise(&now->spec);
	const bool sites = then->sites[0]; /* else it was not said: by an older release, or over an older box */

	*changes = (struct table_changes){0};
	table_options(then, a);
	table_options(now, b);
	for (int i = 0; i < TABLE_OPTIONS; i++) {
		const struct table_option *o = &table_option[i];

		if (strcmp(a[i].text, b[i].text) == 0 || o->kept == OPTION_UNTOLD ||
			(i == TABLE_OPTION_SITES && !sites))
			continue;
		if (o->kept == OPTION_MUST || (o->kept == OPTION_STEPWISE && !stepwise))
			return table_option_error(&p, o->name, a[i].text, b[i].text, e);
		table_add_change(changes, o->name, a[i].text, b[i].text);
	}
	for (unsigned which = 1; sites && strcmp(a[TABLE_OPTION_SITES].text, b[TABLE_OPTION_SITES].text) == 0 &&
				 table_sites_differ(&p, &which, &name, &a[0], &b[0]);
		which++) {
		snprintf(what, sizeof(what), "%s of sites", name.text);
		table_add_change(changes, what, a[0].text, b[0].text);
	}
	if (then->spec.world != now->spec.world)
		table_add_change(
			changes, "world", table_number(then->spec.world).text, table_number(now->spec.world).text);
	table_change_groups(then, now, changes);
	return table_compare_keys(&p, e);
}
