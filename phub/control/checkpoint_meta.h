/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a checkpoint says of its job besides the chunks: the options and the key table, as ranks send them. Packed: the
 * world (32 bits, little-endian), then frames of the control session as ranks send them (transport/control.proto), a
 * Job and then Keys, each behind its length (32 bits). Any thread; may allocate.
 */
#ifndef PHUB_CONTROL_CHECKPOINT_META_H
#define PHUB_CONTROL_CHECKPOINT_META_H

#include <stdint.h>

#include "phub/base/err.h"
#include "phub/control/checkpoint.h"
#include "phub/control/table.h"

/*
 * Packs a table. `groups` are the hyper-parameters that a job which goes on from here begins with: as many as the table
 * has groups; NULL: the table's own. *out is the caller's to free. 0, or -ENOMEM.
 */
int checkpoint_meta_pack(
	const struct table *t, const struct optimizer_hyper *groups, uint8_t **out, uint64_t *bytes, struct err *e);

/*
 * The reverse, with table_create()'s checks; spec.world is filled in. 0, -EBADMSG (damaged, or not what a job can be)
 * or -ENOMEM. *out is given to table_destroy().
 */
int checkpoint_meta_unpack(const uint8_t *meta, uint64_t bytes, struct table **out, struct err *e);

/*
 * The plan of the job's chunks, which says where keys lie, and how many fp32 arrays each chunk has: 1 with the weights,
 * and those of the optimizer's state. 0, or -EBADMSG when the chunks of the checkpoint are not those of its job. *plan
 * is given to chunking_plan_fini().
 */
int checkpoint_meta_plan(const struct table *t, const struct checkpoint_table *checkpoint, struct chunk_plan *plan,
	unsigned *arrays, struct err *e);

#endif
