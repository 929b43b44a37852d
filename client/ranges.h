/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the caller has registered: it may be read and written in place. Under the handle's lock.
 */
#ifndef PHUB_CLIENT_RANGES_H
#define PHUB_CLIENT_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/device.h"

struct range {
	struct range *next;
	uintptr_t from, to;
	uint32_t uses;  /* rounds in flight that read or write it */
	bool on_device; /* it is memory of a GPU, at: */
	struct device_place place;
	bool direct; /* the transport reads and writes that by itself; else it is copied */
};

struct ranges {
	struct range *first;
};

/* 0, -EINVAL (empty, or wraps), -EEXIST (overlaps another), -ENOMEM. */
int ranges_add(struct ranges *r, void *addr, size_t bytes, struct range **out);
/* 0, -ENOENT, or -EBUSY while a round uses it. */
int ranges_remove(struct ranges *r, void *addr);
/* The range that holds all of these bytes, or NULL. */
struct range *ranges_find(const struct ranges *r, const void *addr, uint64_t bytes);
void ranges_clear(struct ranges *r);

#endif
