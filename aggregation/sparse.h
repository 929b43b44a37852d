/* SPDX-License-Identifier: Apache-2.0
 *
 * The coding of a chunk of which many elements are zero: which are not, and these. Nothing is lost: a zero is an
 * element without a bit set, so -0 and NaN are values like others. Which elements there are is said by a bitmap or by
 * the gaps between them, whichever is shorter; a coding that would be no shorter than the elements themselves is not
 * made.
 *
 *      values 4, form 4, the values in their dtype, zeros up to a multiple of 4, index
 *
 *      SPARSE_BITMAP  a bit for each element of the chunk, the lowest of the first byte first; zeros behind the last
 *      SPARSE_GAPS    for each value the zeros between it and the one before, as LEB128: 7 bits a byte, the lowest
 *                     first, the top bit set in all but the last of a number's bytes; never longer than it must be
 *
 * Little-endian, as wire.h. In each form a chunk has one coding only. All
 * functions: any thread, never block, no state; pointers may be unaligned.
 */
#ifndef AGGREGATION_SPARSE_H
#define AGGREGATION_SPARSE_H

#include <stddef.h>
#include <stdint.h>

#include "aggregation/convert.h"

#define SPARSE_HEAD_BYTES   8
#define SPARSE_ELEMENTS_MAX (1u << 21) /* of a chunk: a gap has three bytes at most */

enum sparse_form { SPARSE_GAPS = 0, SPARSE_BITMAP = 1 };

/*
 * Codes `count` elements (at most SPARSE_ELEMENTS_MAX) of `src` into `out`, which has room for as many bytes as they
 * have. Returns the bytes written, always fewer than that; or 0: it would not be shorter, and `out` is as it was.
 */
size_t sparse_encode(void *out, const void *src, enum dtype dtype, size_t count);

/*
 * Are these `bytes` untrusted bytes the coding of a chunk of `count` elements of `dtype`? 0, or -EBADMSG. *values, if
 * not NULL: how many elements it has.
 */
int sparse_check(const void *in, size_t bytes, enum dtype dtype, size_t count, size_t *values);

/* Where the values of a coded chunk lie, and how many there are. `in` has passed sparse_check(). */
const void *sparse_values(const void *in, size_t *count);

/* acc[i] += the coded chunk's i-th element, converted to fp32, where it has one. `in` has passed sparse_check(). */
void sparse_add(float *acc, const void *in, enum dtype dtype, size_t count);

/* Writes the coded chunk's `count` elements to `dst`, zeros as well. `in` has passed sparse_check(). */
void sparse_decode(void *dst, const void *in, enum dtype dtype, size_t count);

#endif
