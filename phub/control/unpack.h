/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacks a frame of the control session with a bound on memory: a small frame can claim many small messages, each of
 * which costs more in memory than on the wire. Any thread.
 */
#ifndef PHUB_CONTROL_UNPACK_H
#define PHUB_CONTROL_UNPACK_H

#include <stddef.h>
#include <stdint.h>

#include "transport/control.pb-c.h"

#define UNPACK_BYTES_MAX (32u << 20)

/* The message, to be given to unpack_free(), or NULL when it is malformed or too large. */
Phub__Control *unpack_control(const uint8_t *frame, size_t bytes);
void unpack_free(Phub__Control *message);

/* One of its own, for phub__start__free_unpacked(); NULL: there was no memory. */
Phub__Start *unpack_copy_start(const Phub__Start *m);

#endif
