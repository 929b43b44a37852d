/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one rank says about its job: the options and the key table, as they come over its session in a Job and some
 * Keys. Everything in them is untrusted. The ranks' tables are compared when all are here. Control thread; pure but for
 * memory.
 */
#ifndef PHUB_CONTROL_TABLE_H
#define PHUB_CONTROL_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/spec.h"
#include "topology/chunking.h"
#include "transport/control.pb-c.h"

#define TABLE_NAME_BYTES_MAX  255u /* of a key's name */
#define TABLE_TRANSPORT_BYTES 16u
#define TABLE_SITES_BYTES     2048u
#define TABLE_SITES_KEY       "phub.sites" /* that sites have, as client/scout/sites.c names it */

struct table {
	struct spec spec; /* all that Job says; name, world and plan are the job's to fill in */
	uint32_t chunk_bytes;
	bool chunk_default; /* which its rank has not named: the option of the box that it came to; not compared */
	uint32_t wait_ms;   /* for a replacement of a rank that was lost; 0: the box's default */
	bool resumes;       /* its rank was in the job when that ran before; not compared */
	bool here;          /* the box above has no part in it */
	char transport[TABLE_TRANSPORT_BYTES];
	char sites[TABLE_SITES_BYTES];   /* what they do; "": its rank is none */
	struct association *association; /* the spec's; NULL: none */
	char *association_text;          /* of it, in its one form */
	uint32_t key_count;              /* announced by Job */
	uint32_t key_have;               /* came in Keys so far */
	struct chunk_key *keys;          /* [key_have] */
	uint32_t *name_at;               /* [key_have] where each name begins in `names` */
	char *names;                     /* NUL-terminated, one behind the other */
	uint32_t key_room;
	size_t name_bytes, name_room;
	uint32_t *index; /* [index_room] table_names.c's, until the table is complete; NULL: none */
	uint32_t index_room;
	uint64_t index_seed[2];
};

/*
 * A table from a Job. `chunk_bytes` is for those that name none, `world` for checking. 0, or with the reason in `e`
 * -EINVAL (out of range), -ENOTSUP (not there), -E2BIG (more than keys_max), -ENOMEM.
 */
int table_create(const Phub__Job *job, uint32_t world, uint32_t chunk_bytes, uint64_t keys_max, struct table **out,
	struct err *e);
/* NULL is allowed. */
void table_destroy(struct table *t);

/* Takes some keys in. 0, or -EINVAL (names the key; also one with the name of another), -EPROTO (not the next ones, or
 * too many), -ENOMEM. */
int table_add(struct table *t, const Phub__Keys *keys, struct err *e);

static inline bool table_complete(const struct table *t)
{
	return t->key_have == t->key_count;
}

/* Is there a key of this name? 1 with its number; 0, and the key that is added next has it; or -ENOMEM. */
int table_name_find(struct table *t, const char *name, uint32_t *key);
/* All names are in: no more of them will be looked for. */
void table_forget_names(struct table *t);

/* Bytes that it occupies, for the bound on what sessions may make us keep. */
uint64_t table_bytes(const struct table *t);

const char *table_key_name(const struct table *t, uint32_t key);

/* Whose table it is, for messages. */
struct table_side {
	const struct table *table;
	uint32_t rank;
	const char *box; /* "box 10.0.0.1:7077": whose option it has where it names none */
	bool below;      /* and it comes over that one, which gave its table on */
};

/* 0 when two complete tables say the same, else -EBADMSG with the first key or option that differs, and both values, in
 * `e`. What sites say of the moment ("steps so far") is of a job that begins: not where one comes to it later, nor
 * where it goes on with those who were in it. */
int table_compare(const struct table_side *a, const struct table_side *b, bool joins, struct err *e);

/* What a job says otherwise than its checkpoint does, and may: the first of `count`, as words. */
#define TABLE_CHANGES_TOLD 8u
struct table_changes {
	unsigned count;
	char text[1024];
};

/*
 * Can a job go on from what a checkpoint says of it? All that the bytes on disk depend on must be equal: keys with
 * their elements, types and groups, chunks, optimizer, and whether each push is a step (ssp, async) or each round
 * (bsp). The rest may differ, and then the job's counts: hyper-parameters, world, quorum, what becomes of lost workers,
 * how sums are made and sealed; what sites do, where the checkpoint says it. 0, or -EBADMSG with the first that must
 * not, and both values, in `e`.
 */
int table_continues(const struct table *then, const struct table *now, struct table_changes *changes, struct err *e);

/* Hyper-parameters as messages: fills out[count] and each[count]. */
void table_hypers(const struct optimizer_hyper *groups, uint32_t count, Phub__Hypers *out, Phub__Hypers **each);

/* A complete table as messages again: its Job, without the groups, and some of its keys: fills out[count] and
 * each[count]. What they point to is the table's. */
void table_job(const struct table *t, Phub__Job *out);
void table_keys(const struct table *t, uint32_t first, uint32_t count, Phub__Key *out, Phub__Key **each);

/* From the wire, unchecked. */
void table_hyper(const Phub__Hypers *from, struct optimizer_hyper *to);

#endif
