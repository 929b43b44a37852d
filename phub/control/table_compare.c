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

/* What a rank says of one option, as text: whole, or of what is longer the beginning, and what is another for each. */
struct table_word {
	char text[80];
};

static struct table_word table_number(uint64_t value)
{
	struct table_word w;

	snprintf(w.text, sizeof(w.text), "%" PRIu64, value);
	return w;
}

static struct table_word table_part(const char *text, size_t length)
{
	struct table_word w;

	if (length < sizeof(w.text))
		snprintf(w.text, sizeof(w.text), "%.*s", (int)length, text);
	else
		snprintf(w.text, sizeof(w.text), "%.60s... (%08x)", text, crc_32c(0, text, length));
	return w;
}

static struct table_word table_text(const char *text)
{
	return table_part(text, strlen(text));
}

/* ---- what sites say ---- */

/* An option of "local; momentum=0.9; clip=1". The algorithm, which is the first, has no name; what else has no '=' says
 * "yes". */
struct table_piece {
	const char *name, *value;
	size_t name_length, value_length;
};

/* The one that begins at `at`; returns where the next one does. NULL: it is the last. */
static const char *table_piece(const char *at, bool first, struct table_piece *piece)
{
	const char *end = strstr(at, "; ");
	const size_t length = end ? (size_t)(end - at) : strlen(at);
	const char *equals = memchr(at, '=', length);

	*piece = (struct table_piece){.name = at, .name_length = length, .value = "yes", .value_length = 3};
	if (first)
		*piece = (struct table_piece){.name = "", .value = at, .value_length = length};
	else if (equals)
		*piece = (struct table_piece){.name = at,
			.name_length = (size_t)(equals - at),
			.value = equals + 1,
			.value_length = length - (size_t)(equals + 1 - at)};
	return end ? end + 2 : NULL;
}

static struct table_word table_algorithm(const struct table *t)
{
	struct table_piece piece;

	table_piece(t->sites, true, &piece);
	return piece.value_length > 0 ? table_part(piece.value, piece.value_length) : table_text("none");
}

/* Where options begin, behind the algorithm; NULL: there are none. */
static const char *table_pieces(const struct table *t)
{
	struct table_piece piece;

	return table_piece(t->sites, true, &piece);
}

/* What it says of the option of this name. False: nothing. */
static bool table_piece_find(const struct table *t, const struct table_piece *named, struct table_piece *found)
{
	for (const char *at = table_pieces(t); at;) {
		at = table_piece(at, false, found);
		if (found->name_length == named->name_length &&
			memcmp(found->name, named->name, named->name_length) == 0)
			return true;
	}
	*found = (struct table_piece){.value = "none", .value_length = 4};
	return false;
}

/* Whose tables, as messages say it. */
struct table_pair {
	const struct table *a, *b;
	const char *who_a, *who_b;
	bool begins; /* their job */
};

/* Is it of the moment, as "steps so far" is? */
static bool table_piece_passes(const struct table_piece *piece)
{
	static const char end[] = " so far";
	const size_t length = sizeof(end) - 1;

	return piece->name_length > length && memcmp(piece->name + piece->name_length - length, end, length) == 0;
}

/* An option of sites that differs: its name, and what both say. */
struct table_unlike {
	struct table_word name, a, b;
};

/* Options of sites in which two differ, from `skip` on of all that they do: first those of one, then those that the
 * other alone names. False: there are no more. */
static bool table_sites_differ(const struct table_pair *p, unsigned skip, struct table_unlike *unlike)
{
	for (int turn = 0; turn < 2; turn++) {
		for (const char *at = table_pieces(turn ? p->b : p->a); at;) {
			struct table_piece piece, other;
			bool found;

			at = table_piece(at, false, &piece);
			found = table_piece_find(turn ? p->a : p->b, &piece, &other);
			if (!p->begins && table_piece_passes(&piece))
				continue;
			if (found && (turn || (piece.value_length == other.value_length &&
						      memcmp(piece.value, other.value, piece.value_length) == 0)))
				continue;
			if (skip-- > 0)
				continue;
			unlike->name = table_part(piece.name, piece.name_length);
			unlike->a = turn ? table_part(other.value, other.value_length)
					 : table_part(piece.value, piece.value_length);
			unlike->b = turn ? table_part(piece.value, piece.value_length)
					 : table_part(other.value, other.value_length);
			return true;
		}
	}
	return false;
}

enum { TABLE_OPTION_SITES = 16, TABLE_OPTIONS };

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
	out[14] = table_text(t->association ? t->association_text : "none");
	out[15] = table_text(t->here ? "true" : "false");
	out[TABLE_OPTION_SITES] = table_algorithm(t);
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

static int table_option_error(const struct table_pair *p, const char *name, const char *a, const char *b, struct err *e)
{
	return err_set(e, -EBADMSG, "%s differs: %s says %s, %s says %s", name, p->who_a, a, p->who_b, b);
}

static int table_compare_sites(const struct table_pair *p, struct err *e)
{
	struct table_unlike unlike;
	char what[100];

	if (!table_sites_differ(p, 0, &unlike))
		return 0;
	snprintf(what, sizeof(what), "%s of sites", unlike.name.text);
	return table_option_error(p, what, unlike.a.text, unlike.b.text, e);
}

static bool table_has_slots(const struct table *t)
{
	for (uint32_t i = 0; i < t->key_have; i++)
		if (strcmp(table_key_name(t, i), TABLE_SITES_KEY) == 0)
			return true;
	return false;
}

/* One says that it is a site, and the other nothing of that, though it has what a site has, or comes over a box that
 * may not know of it. */
static int table_compare_ages(const struct table_side *says, const struct table_side *silent, struct err *e)
{
	const bool site = table_has_slots(silent->table);
	char box[300];

	if (!says->table->sites[0] || silent->table->sites[0] || (!site && !silent->below))
		return 0;
	snprintf(box, sizeof(box), silent->below ? "%.250s, over which it comes, or its libphub" : "its libphub",
		silent->box);
	return err_set(e, -EBADMSG,
		"rank %u does not say what it does as a site, and rank %u does: %s%s is older; update it", silent->rank,
		says->rank, site ? "" : "it is none, or ", box);
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

int table_compare(const struct table_side *a, const struct table_side *b, bool joins, struct err *e)
{
	char who_a[20], who_b[20];
	const struct table_pair p = {.a = a->table,
		.b = b->table,
		.who_a = who_a,
		.who_b = who_b,
		.begins = !joins && !a->table->resumes && !b->table->resumes};
	int rc;

	snprintf(who_a, sizeof(who_a), "rank %u", a->rank);
	snprintf(who_b, sizeof(who_b), "rank %u", b->rank);
	rc = table_compare_chunks(a, b, e);
	if (rc == 0)
		rc = table_compare_ages(a, b, e);
	if (rc == 0)
		rc = table_compare_ages(b, a, e);
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
	struct table_word a[TABLE_OPTIONS], b[TABLE_OPTIONS];
	struct table_unlike unlike;
	char what[100];
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
	for (unsigned i = 0; sites && strcmp(a[TABLE_OPTION_SITES].text, b[TABLE_OPTION_SITES].text) == 0 &&
			     i <= TABLE_CHANGES_TOLD && table_sites_differ(&p, i, &unlike);
		i++) {
		snprintf(what, sizeof(what), "%s of sites", unlike.name.text);
		table_add_change(changes, what, unlike.a.text, unlike.b.text);
	}
	if (then->spec.world != now->spec.world)
		table_add_change(
			changes, "world", table_number(then->spec.world).text, table_number(now->spec.world).text);
	table_change_groups(then, now, changes);
	return table_compare_keys(&p, e);
}
