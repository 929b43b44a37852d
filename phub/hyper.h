/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versions of a job's hyper-parameters, as one core keeps them. Tables come by mail from the control session; each
 * push names the version that its round wants, so that a learning rate never differs among the chunks of a round.
 * Owning core only, but for hyper_table_*: control thread.
 */
#ifndef PHUB_HYPER_H
#define PHUB_HYPER_H

#include <stdbool.h>
#include <stdint.h>

#include "aggregation/optimizer.h"

#define HYPER_VERSIONS 64u /* kept per rank; older ones are forgotten */

/* One version, on its way from control to the cores. */
struct hyper_table {
	uint32_t rank; /* stepwise jobs: whose; else 0 */
	uint32_t version;
	uint32_t group_count;
	uint32_t cores_left; /* control: taken when 0 */
	struct optimizer_hyper groups[];
};

struct hypers {
	uint32_t group_count;
	uint32_t rank_count;            /* 1 for bsp: one line of versions; world for stepwise jobs */
	uint32_t *newest;               /* [rank_count] */
	struct optimizer_hyper *groups; /* [rank_count][HYPER_VERSIONS][group_count] */
};

/* Bytes that hypers_init() wants, for admission. */
uint64_t hypers_bytes(uint32_t rank_count, uint32_t group_count);

/* `memory` is hypers_bytes() long, 64-byte aligned. Version 0 of every rank is `first`. */
void hypers_init(
	struct hypers *h, void *memory, uint32_t rank_count, uint32_t group_count, const struct optimizer_hyper *first);

/* Control, before the shard goes to its core, of one line for all ranks: this version is the newest. `first`: it stands
 * for all before it, too. */
void hypers_begin(struct hypers *h, uint32_t version, bool first, const struct optimizer_hyper *groups);
/* Likewise: all that `from` has, of a job with as many groups. */
void hypers_copy(struct hypers *h, const struct hypers *from);

/* Takes a version in. Versions of a rank come in order: 0, or -EPROTO. */
int hypers_take(struct hypers *h, const struct hyper_table *table);

/* The hyper-parameters of a group: 0, -EAGAIN when that version has not come yet, -ESTALE when it is forgotten. */
int hypers_get(
	const struct hypers *h, uint32_t rank, uint32_t version, uint32_t group, const struct optimizer_hyper **out);

#endif
