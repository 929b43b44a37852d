/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which known word did the user mean? Behind every "unknown command" and "unknown option". Pure.
 */
#ifndef PHUB_BASE_SUGGEST_H
#define PHUB_BASE_SUGGEST_H

#include <stddef.h>

/* Insertions, deletions, replacements and swaps of neighbours between two words (cut at 63 characters). */
unsigned suggest_distance(const char *a, const char *b);

/* The nearest so far, beginning with {word, NULL, 0}; suggest_offer() each candidate, then read `best`. */
struct suggest {
	const char *word;
	const char *best; /* NULL: nothing is near enough to be meant */
	unsigned distance;
};

void suggest_offer(struct suggest *s, const char *candidate);

#endif
