/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs of three and more become ranges; what does not fit is counted.
 */
#include "phub/base/ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { RANKS_MORE_BYTES = 24 }; /* " and 4294967295 more" */

/* How many of them, from the first on, follow one another. */
static size_t ranks_run(const uint32_t *ranks, size_t count)
{
	size_t run = 1;

	while (run < count && ranks[run] == ranks[run - 1] + 1)
		run++;
	return run > 2 ? run : 1;
}

void ranks_write(const uint32_t *ranks, size_t known, size_t count, char *out, size_t bytes)
{
	size_t at = 0, said = 0;

	out[0] = '\0';
	while (said < known) {
		size_t run = ranks_run(ranks + said, known - said);
		char item[32];
		int length = snprintf(item, sizeof(item), "%s%" PRIu32, said ? ", " : "", ranks[said]);

		if (run > 1)
			length += snprintf(
				item + length, sizeof(item) - (size_t)length, "-%" PRIu32, ranks[said + run - 1]);
		if (at + (size_t)length + RANKS_MORE_BYTES > bytes)
			break;
		memcpy(out + at, item, (size_t)length + 1);
		at += (size_t)length;
		said += run;
	}
	if (said < count)
		snprintf(out + at, bytes - at, "%s%zu%s", said ? " and " : "", count - said,
			said ? " more" : " of them");
}
