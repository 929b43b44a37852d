/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Distance of words (optimal string alignment: Levenshtein, and swaps of neighbours count once).
 */
#include "phub/base/suggest.h"

#include <string.h>

enum { SUGGEST_WORD_MAX = 63 };

static unsigned suggest_min(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

unsigned suggest_distance(const char *a, const char *b)
{
	unsigned row[SUGGEST_WORD_MAX + 1][SUGGEST_WORD_MAX + 1];
	size_t a_len = strnlen(a, SUGGEST_WORD_MAX), b_len = strnlen(b, SUGGEST_WORD_MAX);

	for (size_t i = 0; i <= a_len; i++) {
		for (size_t j = 0; j <= b_len; j++) {
			if (i == 0 || j == 0) {
				row[i][j] = (unsigned)(i + j);
				continue;
			}
			row[i][j] = row[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
			row[i][j] = suggest_min(row[i][j], suggest_min(row[i - 1][j], row[i][j - 1]) + 1);
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				row[i][j] = suggest_min(row[i][j], row[i - 2][j - 2] + 1);
		}
	}
	return row[a_len][b_len];
}

void suggest_offer(struct suggest *s, const char *candidate)
{
	size_t length = strnlen(s->word, SUGGEST_WORD_MAX);
	unsigned distance = suggest_distance(s->word, candidate);

	/* The beginning of a word is as good as a slip of a finger. */
	if (length >= 2 && strncmp(s->word, candidate, length) == 0)
		distance = 1;
	if (distance > 1 + length / 3 || (s->best && distance >= s->distance))
		return;
	s->best = candidate;
	s->distance = distance;
}
