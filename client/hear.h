/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the box says: client_session_take() of session.h, and what an error code means here. Used by session.c and
 * tests.
 */
#ifndef PHUB_CLIENT_HEAR_H
#define PHUB_CLIENT_HEAR_H

#include <stdint.h>

/* A code of the wire (enum ErrorCode) as negative errno; unknown ones are -EREMOTEIO. */
int client_hear_errno(uint32_t code);

#endif
