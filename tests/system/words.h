/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs that are sites of a test (skewed.c, racked.c) make of NAME=VALUE, and how they wait.
 */
#ifndef TESTS_SYSTEM_WORDS_H
#define TESTS_SYSTEM_WORDS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const words_algorithms[] = {"bsp", "gaia", "local", "dgc"};
static const char *const words_outers[] = {"average", "box", "momentum", "nesterov", "adagrad", "adam", "yogi"};

#define WORDS_PICK(value, names) words_pick(value, names, sizeof(names) / sizeof((names)[0]))

/* The index of the name; `count`: it is none of them, which the library refuses. */
static inline unsigned words_pick(const char *value, const char *const *names, size_t count)
{
	unsigned i = 0;

	while (i < count && strcmp(names[i], value) != 0)
		i++;
	return i;
}

/* Numbers with commas between, at most `max`. */
static inline unsigned words_numbers(const char *value, double *out, unsigned max)
{
	char *end = (char *)(uintptr_t)value;
	unsigned count = 0;

	for (; *end && count < max; end += *end == ',')
		out[count++] = strtod(end, &end);
	return count;
}

static inline void words_nap(unsigned ms)
{
	const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

	nanosleep(&t, NULL);
}

#endif
