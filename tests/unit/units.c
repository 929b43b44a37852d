/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program of all unit tests. One link in place of one a file; each file still runs in a process of its own.
 *
 * Usage: units FILE [ARGUMENT...]    runs tests/unit/FILE.c
 *        units                       lists the files
 */
#include <stdio.h>
#include <string.h>

#include "tests/unit/cmocka_shim.h"

static struct test_program *programs;

/* Sanitizers' own allocators return NULL as malloc() does, where they would end the program: tests ask for what cannot
 * be. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void);

const char *__asan_default_options(void)
{
	return "allocator_may_return_null=1";
}

const char *__tsan_default_options(void)
{
	return "allocator_may_return_null=1";
}

void test_program_add(struct test_program *program)
{
	struct test_program **at = &programs;

	while (*at && strcmp((*at)->name, program->name) < 0)
		at = &(*at)->next;
	program->next = *at;
	*at = program;
}

int main(int argc, char **argv)
{
	for (const struct test_program *p = programs; p; p = p->next) {
		if (argc < 2)
			puts(p->name);
		else if (strcmp(p->name, argv[1]) == 0)
			return p->run(argc - 1, argv + 1);
	}
	if (argc < 2)
		return 0;
	fprintf(stderr, "units: no file \"%s\"; without an argument, units lists the files\n", argv[1]);
	return 2;
}
