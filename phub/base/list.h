/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Doubly linked rings: a list is a link that belongs to nothing, its members have links inside. Any number of lists,
 * each used by one thread at a time.
 */
#ifndef PHUB_BASE_LIST_H
#define PHUB_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

/* A link that points to itself is in no list, or is an empty one. */
struct list_link {
	struct list_link *prev, *next;
};

/* The struct of `type` whose `member` this link is. */
#define LIST_OF(link, type, member) ((type *)(void *)((char *)(link)-offsetof(type, member)))

static inline void list_init(struct list_link *link)
{
	link->prev = link;
	link->next = link;
}

static inline bool list_alone(const struct list_link *link)
{
	return link->next == link;
}

/* At the end. The link is in no list. */
static inline void list_append(struct list_link *list, struct list_link *link)
{
	link->prev = list->prev;
	link->next = list;
	list->prev->next = link;
	list->prev = link;
}

/* From whatever list it is in, if any. */
static inline void list_remove(struct list_link *link)
{
	link->prev->next = link->next;
	link->next->prev = link->prev;
	list_init(link);
}

#endif
