/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How libphub copies payloads. Any thread, never blocks, no state.
 */
#ifndef PHUB_CLIENT_COPY_H
#define PHUB_CLIENT_COPY_H

#include <stddef.h>

/* memcpy() of what is in no cache, on one side or both; where all is in a cache memcpy() itself is faster. */
void copy_cold(void *dst, const void *src, size_t bytes);

#endif
