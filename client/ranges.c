/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list: callers register a handful of large buffers, and it is asked once per key and round.
 */
#include "client/ranges.h"

#include <errno.h>
#include <stdlib.h>

int ranges_add(struct ranges *r, void *addr, size_t bytes, struct range **out)
{
	uintptr_t from = (uintptr_t)addr;
	struct range *range;

	if (!addr || bytes == 0 || from + bytes < from)
		return -EINVAL;
	for (range = r->first; range; range = range->next) {
		if (from < range->to && range->from < from + bytes)
			return -EEXIST;
	}
	range = calloc(1, sizeof(*range));
	if (!range)
		return -ENOMEM;
	range->from = from;
	range->to = from + bytes;
	range->next = r->first;
	range->on_device = device_holds(addr, &range->place);
	r->first = range;
	*out = range;
	return 0;
}

int ranges_remove(struct ranges *r, void *addr)
{
	for (struct range **at = &r->first; *at; at = &(*at)->next) {
		struct range *range = *at;

		if (range->from != (uintptr_t)addr)
			continue;
		if (range->uses)
			return -EBUSY;
		*at = range->next;
		free(range);
		return 0;
	}
	return -ENOENT;
}

struct range *ranges_find(const struct ranges *r, const void *addr, uint64_t bytes)
{
	uintptr_t from = (uintptr_t)addr;

	for (struct range *range = r->first; range; range = range->next) {
		if (from >= range->from && from < range->to && bytes <= range->to - from)
			return range;
	}
	return NULL;
}

void ranges_clear(struct ranges *r)
{
	while (r->first) {
		struct range *range = r->first;

		r->first = range->next;
		free(range);
	}
}
