/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A site's state as bytes, for a checkpoint that training goes on from bit for bit: what is its own (momentum, what is
 * still to be said, anchor, the outer optimizer's), where it is (steps, theta, shares, the window), what its scout
 * knows, and what it has counted. The weights themselves are the caller's: here is their checksum. Options and tensors
 * are there to be compared. Little-endian, with a version, and a CRC32C at the end.
 *
 * Not in it: what others say anew at the start (samples). Shadows begin anew where their thetas are others.
 *
 * The site's thread; nothing blocks.
 */
#ifndef PHUB_CLIENT_SCOUT_SITE_SAVED_H
#define PHUB_CLIENT_SCOUT_SITE_SAVED_H

#include <stddef.h>
#include <stdint.h>

#include "client/scout/course.h"
#include "phub/base/err.h"

/* Of one that rests. */
size_t site_saved_bytes(struct phub_site *s);
void site_saved_write(struct phub_site *s, uint8_t *out);

/* Into one after course_init(). 0; -EBADMSG, -EINVAL as phub_site_load() says, with the reason in `e`, and it is as it
 * was. */
int site_saved_read(struct phub_site *s, const uint8_t *in, size_t bytes, struct err *e);

/* What sites that were saved after the same step have alike, if they are of one run. */
uint32_t site_saved_check(struct phub_site *s);

#endif
