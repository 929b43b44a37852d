/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many strangers may knock, at the control port and at data ports: a bucket of tokens for all of them together and
 * one for each source address, so that whoever knocks without end costs the box an accept and a close, and no key of
 * his. A bucket holds what RATE_BURST_S seconds bring; who proves himself gets his token back, so that a large job that
 * joins at once is slowed down at most. Fixed memory: of too many sources the one whose bucket is fullest is forgotten.
 * An IPv6 source is its /64. Control thread. Reads no clock.
 */
#ifndef PHUB_TRANSPORT_RATE_H
#define PHUB_TRANSPORT_RATE_H

#include <stdbool.h>
#include <stdint.h>

enum { RATE_BURST_S = 4, RATE_SETS = 512, RATE_WAYS = 8 };

struct rate;

/* Tokens a second: of all, of one source; 0 for either: no limit. NULL without memory or random numbers. */
struct rate *rate_create(uint64_t all, uint64_t source);
void rate_destroy(struct rate *r);

/* May one more come from `source` (16 bytes, or NULL: not known)? Takes its tokens if so. `now_ns` never goes back. */
bool rate_take(struct rate *r, const uint8_t *source, uint64_t now_ns);

/* It was no stranger. */
void rate_give_back(struct rate *r, const uint8_t *source);

#endif
