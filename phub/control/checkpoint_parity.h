/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reed-Solomon over k stripes of data and m of parity, by ISA-L with a Cauchy matrix: any k of them make the others.
 * Used by one thread at a time.
 */
#ifndef PHUB_CONTROL_CHECKPOINT_PARITY_H
#define PHUB_CONTROL_CHECKPOINT_PARITY_H

#include <stdint.h>

#include "phub/base/err.h"

struct checkpoint_parity;

/* 0, or -ENOMEM. k from 1, k + m at most CHECKPOINT_TARGETS_MAX. */
int checkpoint_parity_create(unsigned k, unsigned m, struct checkpoint_parity **out, struct err *e);
void checkpoint_parity_destroy(struct checkpoint_parity *p);

/* Can this build do it? 0 (also when m is 0), or -ENOTSUP with what to install. */
int checkpoint_parity_check(unsigned m, struct err *e);

/* Fills stripes k.. from stripes 0..k - 1, of `bytes` each. */
void checkpoint_parity_encode(struct checkpoint_parity *p, uint8_t **stripes, uint32_t bytes);
/* Fills those of stripes 0..k - 1 that are not in the mask `good`, which has k bits at least. */
void checkpoint_parity_rebuild(struct checkpoint_parity *p, uint8_t **stripes, uint32_t bytes, uint32_t good);

#endif
