/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside a disk in memory. Every file and directory has two states: what programs see, and what is on the medium.
 * sync() makes the second of a file the first; sync_dir() does so for a directory's names, whose changes are kept in a
 * list until then.
 */
#ifndef PHUB_TESTS_SIM_STORAGE_MEDIUM_H
#define PHUB_TESTS_SIM_STORAGE_MEDIUM_H

#include "tests/sim/storage.h"

enum {
	STORAGE_FDS = 256,
	STORAGE_NAME = 80,
	STORAGE_BLOCK = 4096,
	STORAGE_ENTRIES = 256, /* of a directory, and changes of it */
	STORAGE_EPOCH_S = 1700000000,
};

struct node;

struct entry {
	char name[STORAGE_NAME];
	struct node *node;
};

/* From nothing (made), to nothing (removed), or a rename. */
struct change {
	char from[STORAGE_NAME], to[STORAGE_NAME];
	struct node *node;
	unsigned writer; /* the mount by which it was made */
};

struct names {
	struct entry at[STORAGE_ENTRIES];
	unsigned count;
};

struct bytes {
	uint8_t *at;
	uint64_t count, room;
};

struct node {
	struct node *next;
	unsigned target;
	unsigned writer; /* of a file: the mount by which it was written last */
	bool is_dir, direct, marked;
	uint64_t changed_s;
	struct bytes now, safe;           /* of a file */
	struct names *names, *safe_names; /* of a directory */
	struct change *changes;
	unsigned change_count;
};

/* A machine's way to it. */
struct mount {
	struct disk disk; /* first of all: it is known by it */
	struct storage *storage;
	unsigned number;
	uint64_t left; /* calls until the machine's power fails; UINT64_MAX: it does not */
	bool failed;
};

struct lock {
	bool held;
	unsigned mount;
	char who[64];
};

struct storage {
	struct mount mounts[STORAGE_MOUNTS];
	struct storage_plan plan;
	struct storage_stats stats;
	uint64_t random, now_ns;
	uint32_t hidden;
	bool calm;
	struct node *nodes;
	struct node *roots[STORAGE_TARGETS_MAX];
	struct node *fds[STORAGE_FDS];
	unsigned openers[STORAGE_FDS]; /* by which mount */
	struct lock locks[STORAGE_TARGETS_MAX];
};

/* A new one, which no directory has yet; and its end. */
struct node *storage_node(struct storage *s, unsigned target, bool is_dir);
void storage_free(struct node *n);
/* Frees what no name, no descriptor and no loss of power can bring back. */
void storage_sweep(struct storage *s);
/* NULL: nothing has this name. */
struct entry *storage_find(const struct names *names, const char *name);
/* What programs see from now on, by what one of them does: "" stands for no name. */
void storage_change(const struct mount *m, struct node *dir, const char *from, const char *to, struct node *n);
/* What is new is zero. */
void storage_resize(struct bytes *b, uint64_t count);
/* Bytes of all files of a target. */
uint64_t storage_used(const struct storage *s, unsigned target);

#endif
