/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Homes by the largest chunk first, and loads chunk by chunk: what comes of a plan is counted, not derived.
 */
#include "topology/ways.h"

#include <errno.h>
#include <stdlib.h>

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

static void ways_place(
	const struct ways_box *boxes, unsigned box_count, const struct ways_item *items, uint32_t count, uint16_t *home)
{
	uint64_t bytes[WAYS_BOXES_MAX] = {0};

	for (uint32_t i = 0; i < count; i++) {
		unsigned best = 0;
		double soonest = 0;

		for (unsigned box = 0; box < box_count; box++) {
			double done = (double)(bytes[box] + items[i].bytes) / boxes[box].rate_bytes_s;

			if (box > 0 && done >= soonest)
				continue;
			best = box;
			soonest = done;
		}
		bytes[best] += items[i].bytes;
		home[items[i].chunk] = (uint16_t)best;
	}
}

int ways_homes(enum ways_kind kind, const struct ways_box *boxes, unsigned box_count, unsigned root,
	const uint32_t *chunk_bytes, uint32_t chunk_count, uint16_t *home, struct err *e)
{
	struct ways_item *items;
	int rc = ways_check(boxes, box_count, root, e);

	if (rc < 0)
		return rc;
	if (kind == WAYS_FLAT || kind == WAYS_TREE) {
		for (uint32_t i = 0; i < chunk_count; i++)
			home[i] = (uint16_t)root;
		return 0;
	}
	items = malloc(chunk_count * sizeof(*items));
	if (!items)
		return err_set(e, -ENOMEM, "no memory for the homes of %u chunks", chunk_count);
	for (uint32_t i = 0; i < chunk_count; i++)
		items[i] = (struct ways_item){chunk_bytes[i], i};
	qsort(items, chunk_count, sizeof(*items), ways_compare);
	ways_place(boxes, box_count, items, chunk_count, home);
	free(items);
	return 0;
}

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
