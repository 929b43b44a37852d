/* SPDX-License-Identifier: Apache-2.0
 *
 * Which tables this build has, which of them this machine can run, and the choice; see dispatch.h.
 */
#include "aggregation/dispatch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static int dispatch_runs_base(void)
{
	return 1;
}

#if defined(__x86_64__)
/* The builtins ask the operating system too: it must save the wide registers. */
static int dispatch_runs_avx2(void)
{
	unsigned eax, ebx, ecx, edx;

	/* Older compilers have no name for F16C in __builtin_cpu_supports(). */
	if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & bit_F16C))
		return 0;
	return __builtin_cpu_supports("avx2") != 0;
}

static int dispatch_runs_avx512(void)
{
	return dispatch_runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

/* Every name that PHUB_ISA knows, worst first; kernels is NULL where this build has no such table. */
static const struct {
	const char *name;
	const struct kernels *kernels;
	int (*runs)(void);
} dispatch_tables[] = {
	{"base", &kernels_base, dispatch_runs_base},
#if defined(__x86_64__)
	{"avx2", &kernels_avx2, dispatch_runs_avx2}, {"avx512", &kernels_avx512, dispatch_runs_avx512},
#else
	{"avx2", NULL, NULL},
	{"avx512", NULL, NULL},
#endif
#if defined(__aarch64__)
	{"neon", &kernels_neon, dispatch_runs_base}, /* part of the architecture */
#else
	{"neon", NULL, NULL},
#endif
};

#define DISPATCH_COUNT (sizeof(dispatch_tables) / sizeof(dispatch_tables[0]))

static int dispatch_runs(size_t table)
{
	return dispatch_tables[table].kernels && dispatch_tables[table].runs();
}

const struct kernels *dispatch_at(size_t index)
{
	for (size_t t = 0; t < DISPATCH_COUNT; t++) {
		if (dispatch_runs(t) && index-- == 0)
			return dispatch_tables[t].kernels;
	}
	return NULL;
}

static void dispatch_explain(char *error, size_t error_size, const char *name, const char *why)
{
	int used = snprintf(error, error_size, "PHUB_ISA: \"%.32s\" %s; use one of: auto", name, why);
	const struct kernels *kernels;

	for (size_t i = 0; (kernels = dispatch_at(i)); i++) {
		if (used < 0 || (size_t)used >= error_size)
			return;
		used += snprintf(error + used, error_size - (size_t)used, " %s", kernels->name);
	}
}

int dispatch_select(const char *name, const struct kernels **kernels, char *error, size_t error_size)
{
	if (!name || !*name || strcmp(name, "auto") == 0) {
		for (size_t t = 0; t < DISPATCH_COUNT; t++) {
			if (dispatch_runs(t))
				*kernels = dispatch_tables[t].kernels;
		}
		return 0;
	}
	for (size_t t = 0; t < DISPATCH_COUNT; t++) {
		if (strcmp(name, dispatch_tables[t].name) != 0)
			continue;
		if (!dispatch_runs(t)) {
			dispatch_explain(error, error_size, name, "does not run on this machine");
			return -ENOTSUP;
		}
		*kernels = dispatch_tables[t].kernels;
		return 0;
	}
	dispatch_explain(error, error_size, name, "is not an instruction set");
	return -EINVAL;
}

int dispatch_from_env(const struct kernels **kernels, char *error, size_t error_size)
{
	return dispatch_select(getenv("PHUB_ISA"), kernels, error, error_size);
}
