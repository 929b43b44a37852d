/* SPDX-License-Identifier: Apache-2.0 */
/* What a disk holds, and what is left of it after a loss of power, rot and worse. */
#include "tests/sim/storage_medium.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/control/checkpoint_format.h"
#include "tests/sim/oracle.h"

/* ---- nodes ---- */

struct node *storage_node(struct storage *s, unsigned target, bool is_dir)
{
	struct node *n = calloc(1, sizeof(*n));

	n->next = s->nodes;
	s->nodes = n;
	n->target = target;
	n->is_dir = is_dir;
	n->changed_s = s->mounts[0].disk.ops->now_ms(&s->mounts[0].disk) / 1000;
	if (is_dir) {
		n->names = calloc(1, sizeof(*n->names));
		n->safe_names = calloc(1, sizeof(*n->safe_names));
		n->changes = calloc(STORAGE_ENTRIES, sizeof(*n->changes));
	}
	return n;
}

void storage_free(struct node *n)
{
	free(n->now.at);
	free(n->safe.at);
	free(n->names);
	free(n->safe_names);
	free(n->changes);
	free(n);
}

static bool storage_mark(struct node *n)
{
	bool fresh = !n->marked;

	n->marked = true;
	return fresh;
}

/* Those that a directory has, had, or may have again. Returns whether some were not known before. */
static bool storage_mark_children(const struct node *n)
{
	bool fresh = false;

	for (unsigned i = 0; i < n->names->count; i++)
		fresh = storage_mark(n->names->at[i].node) || fresh;
	for (unsigned i = 0; i < n->safe_names->count; i++)
		fresh = storage_mark(n->safe_names->at[i].node) || fresh;
	for (unsigned i = 0; i < n->change_count; i++)
		fresh = storage_mark(n->changes[i].node) || fresh;
	return fresh;
}

static void storage_mark_all(struct storage *s)
{
	bool fresh = true;

	for (struct node *n = s->nodes; n; n = n->next)
		n->marked = false;
	for (unsigned i = 0; i < s->plan.targets; i++)
		storage_mark(s->roots[i]);
	for (unsigned i = 0; i < STORAGE_FDS; i++)
		if (s->fds[i])
			storage_mark(s->fds[i]);
	while (fresh) {
		fresh = false;
		for (const struct node *n = s->nodes; n; n = n->next)
			if (n->marked && n->is_dir)
				fresh = storage_mark_children(n) || fresh;
	}
}

/* Frees what no name, no descriptor and no loss of power can bring back. */
void storage_sweep(struct storage *s)
{
	struct node **at = &s->nodes;
	uint64_t bytes = 0;

	storage_mark_all(s);
	while (*at) {
		struct node *n = *at;

		if (n->marked) {
			bytes += n->now.count;
			at = &n->next;
			continue;
		}
		*at = n->next;
		storage_free(n);
	}
	s->stats.bytes_peak = bytes > s->stats.bytes_peak ? bytes : s->stats.bytes_peak;
}

struct entry *storage_find(const struct names *names, const char *name)
{
	for (unsigned i = 0; i < names->count; i++)
		if (strcmp(names->at[i].name, name) == 0)
			return (struct entry *)&names->at[i];
	return NULL;
}

static void storage_unname(struct names *names, const char *name)
{
	struct entry *e = storage_find(names, name);

	if (e)
		*e = names->at[--names->count];
}

static void storage_name(struct names *names, const char *name, struct node *n)
{
	storage_unname(names, name);
	if (names->count == STORAGE_ENTRIES)
		abort();
	snprintf(names->at[names->count].name, STORAGE_NAME, "%s", name);
	names->at[names->count++].node = n;
}

static void storage_apply(struct names *names, const struct change *c)
{
	if (c->from[0] && !storage_find(names, c->from))
		return; /* of a file whose making was undone */
	if (c->from[0])
		storage_unname(names, c->from);
	if (c->to[0])
		storage_name(names, c->to, c->node);
}

void storage_change(const struct mount *m, struct node *dir, const char *from, const char *to, struct node *n)
{
	struct change *c = &dir->changes[dir->change_count++];

	if (dir->change_count > STORAGE_ENTRIES)
		abort();
	*c = (struct change){.node = n, .writer = m->number};
	snprintf(c->from, sizeof(c->from), "%s", from);
	snprintf(c->to, sizeof(c->to), "%s", to);
	storage_apply(dir->names, c);
}

void storage_resize(struct bytes *b, uint64_t count)
{
	if (count > b->room) {
		uint64_t room = count + count / 2 + STORAGE_BLOCK;

		b->at = realloc(b->at, room);
		b->room = room;
	}
	if (count > b->count)
		memset(b->at + b->count, 0, count - b->count);
	b->count = count;
}

uint64_t storage_used(const struct storage *s, unsigned target)
{
	uint64_t bytes = 0;

	for (const struct node *n = s->nodes; n; n = n->next)
		bytes += n->target == target ? n->now.count : 0;
	return bytes;
}

/* ---- what goes wrong ---- */

/* What the medium has of a file afterwards: of what was not synced all, nothing, the beginning, or some blocks. */
static void storage_tear(struct storage *s, struct node *n)
{
	unsigned how = (unsigned)(oracle_random(&s->random) % 4);
	uint64_t from = how == 2 && n->now.count ? oracle_random(&s->random) % n->now.count : UINT64_MAX;

	if (n->safe.count == n->now.count && (n->now.count == 0 || memcmp(n->safe.at, n->now.at, n->now.count) == 0))
		return;
	if (how > 0)
		s->stats.torn += how > 1;
	if (how == 0) { /* nothing */
		storage_resize(&n->now, n->safe.count);
		if (n->safe.count)
			memcpy(n->now.at, n->safe.at, n->safe.count);
	} else if (how == 2 && from > n->safe.count && oracle_random(&s->random) % 2) {
		storage_resize(&n->now, from); /* and it is that long */
	} else if (how > 1) {
		for (uint64_t at = 0; at < n->now.count; at += STORAGE_BLOCK) {
			uint64_t end = at + STORAGE_BLOCK < n->now.count ? at + STORAGE_BLOCK : n->now.count;
			bool kept = how == 2 ? end <= from : oracle_random(&s->random) % 2;

			for (uint64_t i = at; !kept && i < end; i++)
				n->now.at[i] = i < n->safe.count ? n->safe.at[i] : 0;
		}
	}
	storage_resize(&n->safe, n->now.count);
	if (n->now.count)
		memcpy(n->safe.at, n->now.at, n->now.count);
}

/* Of the names that this mount has changed, and nobody synced, the first some stay, or any. */
static void storage_undo(struct storage *s, unsigned mount, struct node *n)
{
	bool prefix = oracle_random(&s->random) % 2;
	unsigned first = (unsigned)(oracle_random(&s->random) % (n->change_count + 1));
	unsigned others = 0;

	for (unsigned i = 0; i < n->change_count; i++) {
		bool kept = prefix ? i < first : oracle_random(&s->random) % 2;

		if (n->changes[i].writer != mount) {
			n->changes[others++] = n->changes[i];
			continue;
		}
		if (kept)
			storage_apply(n->safe_names, &n->changes[i]);
		s->stats.undone += !kept;
	}
	n->change_count = others;
	*n->names = *n->safe_names;
	for (unsigned i = 0; i < others; i++)
		storage_apply(n->names, &n->changes[i]);
}

void storage_restore(struct storage *s, unsigned mount)
{
	for (unsigned i = 0; i < STORAGE_FDS; i++)
		if (s->openers[i] == mount)
			s->fds[i] = NULL;
	for (unsigned i = 0; i < s->plan.targets; i++)
		if (s->locks[i].mount == mount)
			s->locks[i].held = false;
	s->mounts[mount].failed = false;
	storage_resume(s, mount);
	for (struct node *n = s->nodes; n; n = n->next) {
		if (n->is_dir)
			storage_undo(s, mount, n);
		else if (n->writer == mount)
			storage_tear(s, n);
	}
	storage_sweep(s);
}

void storage_resume(struct storage *s, unsigned mount)
{
	s->stats.refused_reads += s->mounts[mount].failed; /* as far as anybody knows */
	s->mounts[mount].failed = false;
	s->mounts[mount].left = UINT64_MAX;
}

static struct node *storage_job(const struct storage *s, unsigned target)
{
	const struct names *names = s->roots[target]->names;

	for (unsigned i = 0; i < names->count; i++)
		if (names->at[i].node->is_dir)
			return names->at[i].node;
	return NULL;
}

/* Is it a file of a checkpoint, whose name it has? */
static bool storage_is_named(const struct entry *e, uint64_t *round)
{
	unsigned piece;
	uint64_t id;
	bool part;

	return checkpoint_format_parse(e->name, round, &id, &piece, &part) && !part;
}

/* One of a target's files that have their names: as often as not that of the latest round. */
static struct node *storage_pick(struct storage *s, unsigned target)
{
	const struct node *dir = storage_job(s, target);
	bool latest = oracle_random(&s->random) % 2;
	uint64_t round, best = 0;
	struct node *picked = NULL;
	unsigned seen = 0;

	for (unsigned i = 0; dir && i < dir->names->count; i++) {
		const struct entry *e = &dir->names->at[i];

		if (!storage_is_named(e, &round) || e->node->now.count == 0)
			continue;
		if (latest ? round >= best : oracle_random(&s->random) % ++seen == 0)
			picked = e->node;
		best = round > best ? round : best;
	}
	return picked;
}

bool storage_rot(struct storage *s, unsigned target)
{
	struct node *n = storage_pick(s, target);
	uint64_t at;

	if (!n)
		return false;
	for (unsigned bits = 1u << oracle_random(&s->random) % 6; bits > 0; bits--) {
		at = oracle_random(&s->random) % n->now.count;
		n->now.at[at] ^= (uint8_t)(1u << oracle_random(&s->random) % 8);
		if (at < n->safe.count)
			n->safe.at[at] = n->now.at[at];
	}
	return true;
}

void storage_wipe(struct storage *s, unsigned target)
{
	struct node *root = s->roots[target];

	root->names->count = root->safe_names->count = root->change_count = 0;
	storage_sweep(s);
}

void storage_hide(struct storage *s, unsigned target, bool hidden)
{
	if (hidden)
		s->hidden |= 1u << target;
	else
		s->hidden &= ~(1u << target);
}

/* Targets that have a file of this round and id, also when the power fails: where a directory cannot be synced, parity
 * is to make up for it.
 */
static uint32_t storage_holders_of(const struct storage *s, uint64_t wanted, uint64_t wanted_id)
{
	uint32_t holders = 0;
	uint64_t round, id;
	unsigned piece;
	bool part;

	for (unsigned i = 0; i < s->plan.targets; i++) {
		const struct node *dir = storage_job(s, i);

		for (unsigned k = 0; dir && k < dir->names->count; k++)
			if (checkpoint_format_parse(dir->names->at[k].name, &round, &id, &piece, &part) && !part &&
				round == wanted && id == wanted_id &&
				storage_find(dir->safe_names, dir->names->at[k].name))
				holders |= 1u << i;
	}
	return holders;
}

uint32_t storage_holders(const struct storage *s, uint64_t wanted)
{
	uint32_t most = 0;
	uint64_t round, id;
	unsigned piece;
	bool part;

	for (unsigned i = 0; i < s->plan.targets; i++) {
		const struct node *dir = storage_job(s, i);

		for (unsigned k = 0; dir && k < dir->names->count; k++) {
			uint32_t holders = 0;

			if (checkpoint_format_parse(dir->names->at[k].name, &round, &id, &piece, &part) && !part &&
				round == wanted)
				holders = storage_holders_of(s, round, id);
			if (__builtin_popcount(holders) > __builtin_popcount(most))
				most = holders;
		}
	}
	return most;
}

unsigned storage_named(const struct storage *s, unsigned target, unsigned *all)
{
	const struct node *dir = storage_job(s, target);
	unsigned named = 0;
	uint64_t round;

	*all = dir ? dir->names->count : 0;
	for (unsigned k = 0; dir && k < dir->names->count; k++)
		named += storage_is_named(&dir->names->at[k], &round);
	return named;
}
