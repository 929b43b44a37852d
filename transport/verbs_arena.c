/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for receive slots: an arena for each NUMA node that has queues, taken and registered when the box starts, so
 * that what a box may pin is known then. Pools take pieces of it and give them back. An arena that is full grows by a
 * further extent, up to a bound. Control thread.
 */
#include "transport/verbs_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- pieces of one extent ---- */

/*
 * The pieces are a ring in the order of their places, and what lies between two of them is free: what is given back
 * joins its neighbours by itself, and nothing is allocated.
 */
bool verbs_extent_take(struct verbs_extent *x, size_t bytes, struct verbs_piece *out)
{
	struct list_link *link = x->pieces.next;
	size_t at = 0;

	for (; link != &x->pieces; link = link->next) {
		const struct verbs_piece *next = VERBS_PIECE_OF(link);

		if (next->at - at >= bytes)
			break;
		at = next->at + next->bytes;
	}
	if (x->memory.bytes - at < bytes)
		return false;
	out->extent = x;
	out->at = at;
	out->bytes = bytes;
	list_append(link, &out->link); /* before the one behind it */
	return true;
}

void verbs_piece_give(struct verbs_piece *p)
{
	if (p->extent)
		list_remove(&p->link);
	p->extent = NULL;
}

/* ---- extents ---- */

static void verbs_extent_free(struct verbs *v, struct verbs_extent *x)
{
	for (unsigned d = 0; d < v->device_count; d++)
		if (x->mr[d])
			ibv_dereg_mr(x->mr[d]);
	v->slots_taken -= x->memory.bytes;
	mem_region_destroy(&x->memory);
	free(x);
}

static int verbs_extent_register(struct verbs *v, struct verbs_extent *x, unsigned device, struct err *e)
{
	struct verbs_device *d = &v->devices[device];
	int rc;

	if (x->mr[device])
		return 0;
	x->mr[device] = ibv_reg_mr(d->pd, x->memory.base, x->memory.bytes, IBV_ACCESS_LOCAL_WRITE);
	if (x->mr[device])
		return 0;
	rc = -errno;
	if (rc == -ENOMEM && verbs_limit_refused(x->memory.bytes, e) < 0)
		return rc;
	return err_set(e, rc, "verbs: %s cannot register %zu bytes of receive slots: %s", d->about.device,
		x->memory.bytes, strerror(-rc));
}

/* One more, registered with nobody. */
static struct verbs_extent *verbs_extent_create(struct verbs *v, struct verbs_arena *a, size_t bytes, struct err *e)
{
	struct verbs_extent *x = calloc(1, sizeof(*x));

	if (!x) {
		err_set(e, -ENOMEM, "verbs: no memory for receive slots");
		return NULL;
	}
	if (mem_region_create(bytes, MEM_HUGE | MEM_POPULATE, a->node, &x->memory, e) < 0) {
		free(x);
		return NULL;
	}
	list_init(&x->pieces);
	v->slots_taken += x->memory.bytes;
	x->next = a->extents;
	a->extents = x;
	return x;
}

/* ---- arenas ---- */

static struct verbs_arena *verbs_arena_of(struct verbs *v, int node, struct err *e)
{
	struct verbs_arena *a = v->arenas;

	while (a && a->node != node)
		a = a->next;
	if (a)
		return a;
	a = calloc(1, sizeof(*a));
	if (!a) {
		err_set(e, -ENOMEM, "verbs: no memory for receive slots");
		return NULL;
	}
	a->node = node;
	a->next = v->arenas;
	v->arenas = a;
	return a;
}

/* The ports that queues of this node are for; others learn of the arena when a connection takes them. */
static void verbs_near_ports(const struct verbs *v, int node, bool near[VERBS_DEVICES_MAX])
{
	struct rails_port ports[VERBS_DEVICES_MAX];
	unsigned least = UINT8_MAX;

	verbs_ports_from(v, node, ports);
	for (unsigned i = 0; i < v->device_count; i++)
		least = ports[i].distance && ports[i].distance < least ? ports[i].distance : least;
	for (unsigned i = 0; i < v->device_count; i++)
		near[i] = ports[i].distance == least;
}

int verbs_arena_open(struct verbs *v, int node, struct err *e)
{
	struct verbs_arena *a = verbs_arena_of(v, node, e);
	bool near[VERBS_DEVICES_MAX];
	int rc = 0;

	if (!a)
		return e->code;
	if (a->extents || v->slots_bytes == 0)
		return 0;
	verbs_near_ports(v, node, near);
	a->first = verbs_extent_create(v, a, v->slots_bytes, e);
	if (!a->first)
		return e->code;
	for (unsigned i = 0; rc == 0 && i < v->device_count; i++)
		if (near[i])
			rc = verbs_extent_register(v, a->first, i, e);
	v->transport.registrations++;
	return rc;
}

/* Room for so many bytes more, and for some to come, or for these alone. NULL: `e` says what bounds it. */
static struct verbs_extent *verbs_arena_grow(
	struct verbs *v, struct verbs_arena *a, unsigned device, size_t bytes, struct err *e)
{
	uint64_t room = v->slots_bytes_max ? v->slots_bytes_max - v->slots_taken : UINT64_MAX;
	size_t wanted = bytes > v->slots_bytes ? bytes : v->slots_bytes;
	struct verbs_extent *x;

	if (v->slots_bytes_max && (v->slots_taken >= v->slots_bytes_max || bytes > room)) {
		err_set(e, -ENOSPC,
			"verbs: receive slots take %" PRIu64 " bytes, %zu more are needed, and memory_max is %" PRIu64
			"; raise memory_max, or lower window",
			v->slots_taken, bytes, v->slots_bytes_max);
		return NULL;
	}
	for (;;) {
		wanted = wanted <= room ? wanted : bytes;
		x = verbs_extent_create(v, a, wanted, e);
		if (x && verbs_extent_register(v, x, device, e) == 0) {
			v->transport.registrations++;
			return x;
		}
		if (x) {
			a->extents = x->next;
			verbs_extent_free(v, x);
		}
		if (wanted == bytes)
			return NULL;
		wanted = bytes;
	}
}

int verbs_arena_take(struct verbs *v, int node, unsigned device, size_t bytes, struct verbs_piece *out, struct err *e)
{
	struct verbs_arena *a = verbs_arena_of(v, node, e);
	struct verbs_extent *x;
	int rc;

	if (!a)
		return e->code;
	bytes = (bytes + VERBS_SLOT_ALIGN - 1) / VERBS_SLOT_ALIGN * VERBS_SLOT_ALIGN;
	for (x = a->extents; x && !verbs_extent_take(x, bytes, out); x = x->next)
		;
	if (!x) {
		x = verbs_arena_grow(v, a, device, bytes, e);
		if (!x)
			return e->code;
		(void)verbs_extent_take(x, bytes, out);
	}
	rc = verbs_extent_register(v, x, device, e);
	if (rc < 0)
		verbs_piece_give(out);
	return rc;
}

void verbs_arenas_trim(struct verbs *v)
{
	for (struct verbs_arena *a = v->arenas; a; a = a->next) {
		for (struct verbs_extent **at = &a->extents; *at;) {
			struct verbs_extent *x = *at;

			if (x == a->first || !list_alone(&x->pieces)) {
				at = &x->next;
				continue;
			}
			*at = x->next;
			verbs_extent_free(v, x);
		}
	}
}

void verbs_arenas_close(struct verbs *v)
{
	while (v->arenas) {
		struct verbs_arena *a = v->arenas;

		v->arenas = a->next;
		while (a->extents) {
			struct verbs_extent *x = a->extents;

			a->extents = x->next;
			verbs_extent_free(v, x);
		}
		free(a);
	}
}
