/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports, and whatever else sites tell each other, as floats that a box adds up: each writes what is its own and
 * leaves zeros where others write, and the sum has it all. So every float holds a whole number of at most 24 bits,
 * which survives fp32, and is no NaN or infinity, which a job may forbid. Pure; any thread; never blocks.
 */
#ifndef PHUB_CLIENT_SCOUT_REPORT_H
#define PHUB_CLIENT_SCOUT_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/scout/trust.h"

#define SCOUT_WORD_FLOATS   3u
#define SCOUT_REPORT_FLOATS (14u * SCOUT_WORD_FLOATS)

/* 64 bits. 0 is zeros. */
void scout_word_pack(uint64_t word, float out[SCOUT_WORD_FLOATS]);
/* False: these floats are of no word, as when two have written them; *word is 0. */
bool scout_word_unpack(const float in[SCOUT_WORD_FLOATS], uint64_t *word);

/* The bits of a double: any, NaN too. Those of 0.0 are 0. */
uint64_t scout_word_of(double value);
double scout_word_double(uint64_t word);

/* `bytes` of them, three in a float. */
#define SCOUT_BYTES_FLOATS(bytes) (((bytes) + 2u) / 3u)
void scout_bytes_pack(const uint8_t *in, size_t bytes, float *out);
bool scout_bytes_unpack(const float *in, size_t bytes, uint8_t *out);

/* A field that is 0 leaves zeros: so two may each write fields of one report, and the sum is the report. What is not
 * the site's word (`called`, `host`) is not in it. */
void scout_report_pack(const struct scout_report *report, float out[SCOUT_REPORT_FLOATS]);
/* What is of no word makes a report that says nothing. */
void scout_report_unpack(const float in[SCOUT_REPORT_FLOATS], struct scout_report *report);

#endif
