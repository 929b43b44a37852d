/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Homes by the largest chunk first, and loads chunk by chunk: what comes of a plan is counted, not derived.
 */
#include "topology/ways.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WAYS_TURNS 8u /* one, and where sizes are odd another; the bound is for none that was seen */

struct ways_item {
	uint32_t bytes, chunk;
};

const char *ways_name(enum ways_kind kind)
{
	static const char *const names[WAYS_COUNT] = {"flat", "tree", "sharded", "chain"};

	return names[kind];
}

static int ways_check(const struct ways_box *boxes, unsigned box_count, unsigned root, struct err *e)
{
	if (box_count < 1 || box_count > WAYS_BOXES_MAX)
		return err_set(e, -EINVAL, "%u boxes; allowed are 1 to %u", box_count, WAYS_BOXES_MAX);
	if (root >= box_count)
		return err_set(e, -EINVAL, "box %u is the root of %u boxes", root, box_count);
	for (unsigned i = 0; i < box_count; i++)
		if (!(boxes[i].rate_bytes_s > 0))
			return err_set(e, -EINVAL, "box %u has links of no rate", i);
	return 0;
}

/* Largest first, then in the order of the table: they are unique, so that any sort gives one order. */
static int ways_compare(const void *a, const void *b)
{
	const struct ways_item *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	return x->chunk < y->chunk ? -1 : 1;
}

/* Largest first. NULL: no memory. */
static struct ways_item *ways_order_create(const uint32_t *chunk_bytes, uint32_t count, struct err *e)
{
	struct ways_item *items = malloc(count * sizeof(*items));

	if (!items) {
		err_set(e, -ENOMEM, "no memory for the homes of %u chunks", count);
		return NULL;
	}
	for (uint32_t i = 0; i < count; i++)
		items[i] = (struct ways_item){chunk_bytes[i], i};
	qsort(items, count, sizeof(*items), ways_compare);
	return items;
}

/*
 * The boxes with what they are the home of so far. Boxes of one job, maybe of different makes, must all come to the
 * same homes: so nothing is added to a product here, which one compiler would round before and another would not.
 */
struct ways_shares {
	const struct ways_box *boxes;
	unsigned count;
	uint64_t bytes[WAYS_BOXES_MAX];
	bool gives[WAYS_BOXES_MAX]; /* it gets nothing */
};

/* When this box is done with so many bytes. */
static double ways_done(const struct ways_shares *s, unsigned box, uint64_t bytes)
{
	return (double)bytes / s->boxes[box].rate_bytes_s;
}

/* That would be done with another chunk soonest, and when; s->count: all give. */
static unsigned ways_find_soonest(const struct ways_shares *s, uint32_t bytes, double *soonest)
{
	unsigned best = s->count;

	for (unsigned box = 0; box < s->count; box++) {
		double done = ways_done(s, box, s->bytes[box] + bytes);

		if (s->gives[box] || (best < s->count && done >= *soonest))
			continue;
		best = box;
		*soonest = done;
	}
	return best;
}

int ways_homes(enum ways_kind kind, const struct ways_box *boxes, unsigned box_count, unsigned root,
	const uint32_t *chunk_bytes, uint32_t chunk_count, uint16_t *home, struct err *e)
{
	struct ways_shares shares = {.boxes = boxes, .count = box_count};
	struct ways_item *items;
	double soonest = 0;
	int rc = ways_check(boxes, box_count, root, e);

	if (rc < 0)
		return rc;
	if (kind == WAYS_FLAT || kind == WAYS_TREE) {
		for (uint32_t i = 0; i < chunk_count; i++)
			home[i] = (uint16_t)root;
		return 0;
	}
	items = ways_order_create(chunk_bytes, chunk_count, e);
	if (!items)
		return -ENOMEM;
	for (uint32_t i = 0; i < chunk_count; i++) {
		unsigned best = ways_find_soonest(&shares, items[i].bytes, &soonest);

		shares.bytes[best] += items[i].bytes;
		home[items[i].chunk] = (uint16_t)best;
	}
	free(items);
	return 0;
}

/* ---- from the homes that they have ---- */

static void ways_give(struct ways_shares *s, const struct ways_item *item, unsigned to, uint16_t *home)
{
	s->bytes[home[item->chunk]] -= item->bytes;
	s->bytes[to] += item->bytes;
	home[item->chunk] = (uint16_t)to;
}

/*
 * Who has more than its share, of which all are done at `even`, by the largest chunk or more, gives what is beyond it:
 * the largest chunks first, each to where it is done sooner than its home is now. False: nobody gave any.
 */
static bool ways_shift(
	struct ways_shares *s, const struct ways_item *items, uint32_t count, double even, uint16_t *home)
{
	uint32_t kept[WAYS_BOXES_MAX]; /* of so many bytes, or more, none goes: those that take only get fuller */
	double soonest = 0;
	bool given = false;

	for (unsigned box = 0; box < s->count; box++) {
		s->gives[box] = count > 0 && s->bytes[box] >= items[0].bytes &&
				ways_done(s, box, s->bytes[box] - items[0].bytes) >= even;
		kept[box] = UINT32_MAX;
	}
	for (uint32_t i = 0; i < count; i++) {
		unsigned box = home[items[i].chunk], to;

		if (!s->gives[box] || items[i].bytes >= kept[box] ||
			ways_done(s, box, s->bytes[box] - items[i].bytes) < even)
			continue;
		to = ways_find_soonest(s, items[i].bytes, &soonest);
		if (to == s->count || soonest >= ways_done(s, box, s->bytes[box])) {
			kept[box] = items[i].bytes;
			continue;
		}
		ways_give(s, &items[i], to, home);
		given = true;
	}
	memset(s->gives, 0, sizeof(s->gives));
	return given;
}

/* The box that is done last gives the chunk without which it, and with which another, are done soonest; if that is
 * worth it. False: none is. */
static bool ways_settle(struct ways_shares *s, const struct ways_item *items, uint32_t count, uint16_t *home)
{
	unsigned last = 0, best_to = 0;
	const struct ways_item *best = NULL;
	uint32_t seen = 0; /* so large; 0: none */
	double least;

	for (unsigned box = 1; box < s->count; box++)
		if (ways_done(s, box, s->bytes[box]) > ways_done(s, last, s->bytes[last]))
			last = box;
	least = ways_done(s, last, s->bytes[last]) * (1 - WAYS_WORTH);
	for (uint32_t i = 0; i < count; i++) {
		double without, with = 0;
		unsigned to;

		if (home[items[i].chunk] != last || items[i].bytes == seen)
			continue;
		seen = items[i].bytes;
		without = ways_done(s, last, s->bytes[last] - seen);
		s->gives[last] = true;
		to = ways_find_soonest(s, seen, &with);
		s->gives[last] = false;
		if (to == s->count || fmax(with, without) >= least)
			continue;
		least = fmax(with, without);
		best = &items[i];
		best_to = to;
	}
	if (best)
		ways_give(s, best, best_to, home);
	return best != NULL;
}

int ways_rehome(const struct ways_box *boxes, unsigned box_count, const uint32_t *chunk_bytes, uint32_t chunk_count,
	uint16_t *home, struct err *e)
{
	struct ways_shares shares = {.boxes = boxes, .count = box_count};
	struct ways_item *items;
	uint64_t bytes = 0;
	double rates = 0;
	bool moved = true;
	int rc = ways_check(boxes, box_count, 0, e);

	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < chunk_count; i++) {
		if (home[i] >= box_count)
			return err_set(e, -EINVAL, "box %u is the home of chunk %u; there are %u boxes", home[i], i,
				box_count);
		shares.bytes[home[i]] += chunk_bytes[i];
		bytes += chunk_bytes[i];
	}
	for (unsigned i = 0; i < box_count; i++)
		rates += boxes[i].rate_bytes_s;
	items = ways_order_create(chunk_bytes, chunk_count, e);
	if (!items)
		return -ENOMEM;
	for (unsigned turn = 0; turn < WAYS_TURNS && moved; turn++) {
		moved = ways_shift(&shares, items, chunk_count, (double)bytes / rates, home);
		for (unsigned i = 0; i < box_count && ways_settle(&shares, items, chunk_count, home); i++)
			moved = true;
	}
	free(items);
	return 0;
}

/* ---- what moves ---- */

bool ways_has_sum(enum ways_kind kind, const struct ways_box *boxes, unsigned box_count, unsigned home, unsigned box)
{
	if (kind != WAYS_CHAIN || box == home)
		return boxes[box].workers > 0 || box == home;
	for (unsigned at = (home + 1) % box_count;; at = (at + 1) % box_count) {
		if (boxes[at].workers > 0)
			return true;
		if (at == box)
			return false;
	}
}

static void ways_add_out(struct ways_load *load, uint64_t bytes, unsigned chunks)
{
	load->out += bytes;
	load->chunks_out += chunks;
}

static void ways_add_in(struct ways_load *load, uint64_t bytes, unsigned chunks)
{
	load->in += bytes;
	load->chunks_in += chunks;
}

/* As much comes in as goes out. */
static void ways_add_both(struct ways_load *load, uint64_t bytes, unsigned chunks)
{
	ways_add_out(load, bytes, chunks);
	ways_add_in(load, bytes, chunks);
}

/* A chunk of so many bytes goes from one box, or its rack, to another. */
static void ways_move(const struct ways *w, unsigned from, unsigned to, uint64_t bytes, struct ways_load *boxes,
	struct ways_load *uplinks)
{
	unsigned here = w->boxes[from].rack, there = w->boxes[to].rack;

	if (boxes) {
		ways_add_out(&boxes[from], bytes, 1);
		ways_add_in(&boxes[to], bytes, 1);
	}
	if (!uplinks || here == there)
		return;
	ways_add_out(&uplinks[here], bytes, 1);
	ways_add_in(&uplinks[there], bytes, 1);
}

/* Its workers push to the one box there is, in whatever rack. */
static void ways_add_flat(
	const struct ways *w, unsigned box, uint64_t bytes, struct ways_load *boxes, struct ways_load *uplinks)
{
	unsigned here = w->boxes[box].rack, there = w->boxes[w->root].rack, workers = w->boxes[box].workers;

	if (boxes)
		ways_add_both(&boxes[w->root], bytes, workers);
	if (!uplinks || here == there)
		return;
	ways_add_both(&uplinks[here], bytes, workers);
	ways_add_both(&uplinks[there], bytes, workers);
}

void ways_add_loads(const struct ways *w, const uint32_t *chunk_bytes, const uint32_t *lift_bytes,
	struct ways_load *boxes, struct ways_load *uplinks)
{
	for (uint32_t i = 0; i < w->chunk_count; i++) {
		uint64_t lift = lift_bytes ? lift_bytes[i] : chunk_bytes[i];

		for (unsigned box = 0; box < w->box_count; box++) {
			uint64_t pushed = (uint64_t)chunk_bytes[i] * w->boxes[box].workers;
			unsigned next = ways_next(w->kind, w->box_count, w->home[i], box);

			if (w->kind == WAYS_FLAT) {
				ways_add_flat(w, box, pushed, boxes, uplinks);
				continue;
			}
			if (boxes)
				ways_add_both(&boxes[box], pushed, w->boxes[box].workers);
			if (next == box || !ways_has_sum(w->kind, w->boxes, w->box_count, w->home[i], box))
				continue;
			ways_move(w, box, next, lift, boxes, uplinks);
			ways_move(w, next, box, chunk_bytes[i], boxes, uplinks);
		}
	}
}
