/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Are all of many floats numbers? Pure; any thread.
 */
#ifndef PHUB_CLIENT_SCOUT_FINITE_H
#define PHUB_CLIENT_SCOUT_FINITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FINITE_EXPONENT 0x7f800000u

/* Neither NaN nor infinite. By bits, whatever the compiler takes floats for; what is not is not looked for one by one,
 * so that a core has several at once. */
static inline bool finite_all(const float *values, size_t count)
{
	uint32_t found = 0;

	for (size_t i = 0; i < count; i++) {
		uint32_t bits;

		memcpy(&bits, &values[i], sizeof(bits));
		found |= (bits & FINITE_EXPONENT) == FINITE_EXPONENT;
	}
	return !found;
}

#endif
