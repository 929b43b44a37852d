/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/unit/cmocka_shim.h"

#define MIB ((size_t)1 << 20)

static bool all_zero(const unsigned char *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (bytes[i])
			return false;
	}
	return true;
}

static void test_private_region(void **state)
{
	struct mem_region r;
	struct err e;

	assert_int_equal(mem_region_create(MIB + 1, 0, MEM_NODE_ANY, &r, &e), 0);
	assert_true(r.bytes > MIB && r.bytes % (size_t)sysconf(_SC_PAGESIZE) == 0);
	assert_int_equal(r.fd, -1);
	assert_true(all_zero(r.base, r.bytes));
	memset(r.base, 1, r.bytes);
	assert_int_equal(mem_region_seal(&r, false), -EINVAL);
	mem_region_destroy(&r);
	assert_null(r.base);
	mem_region_destroy(&r); /* twice does no harm */
	struct mem_region zero = {0};
	mem_region_destroy(&zero);
	assert_int_equal(fcntl(0, F_GETFD), 0); /* the zero in `zero.fd` was not closed */
}

static void test_every_flag_and_node(void **state)
{
	struct mem_region r;
	struct err e;

	for (unsigned flags = 0; flags < 8; flags++) {
		for (int node = MEM_NODE_ANY; node <= 0; node++) {
			if (mem_region_create(3 * MIB, flags, node, &r, &e) != 0)
				fail_msg("flags %u node %d: %s", flags, node, e.text);
			assert_int_equal(r.fd >= 0, (flags & MEM_SHARED) != 0);
			assert_true(!r.huge || flags & MEM_HUGE);
			assert_true(r.bytes >= 3 * MIB && (!r.huge || r.bytes == 4 * MIB));
			assert_true(all_zero(r.base, r.bytes));
			memset(r.base, 0xff, r.bytes);
			mem_region_destroy(&r);
		}
	}
}

static void test_create_errors(void **state)
{
	struct mem_region r = {.bytes = 7};
	struct err e;

	assert_int_equal(mem_region_create(0, 0, MEM_NODE_ANY, &r, &e), -EINVAL);
	assert_int_equal(mem_region_create(MIB, 0, -2, &r, &e), -EINVAL);
	assert_int_equal(mem_region_create(MIB, 0, MEM_NODE_MAX + 1, &r, &e), -EINVAL);
	assert_int_equal(mem_region_create(SIZE_MAX, MEM_HUGE, MEM_NODE_ANY, &r, &e), -ENOMEM);
	assert_int_equal(mem_region_create(SIZE_MAX / 2 - MIB, 0, MEM_NODE_ANY, &r, &e), -ENOMEM);
	assert_non_null(strstr(e.text, "bytes: Cannot allocate memory"));
	/* No machine that runs this has a thousand nodes. */
	assert_true(mem_region_create(MIB, 0, MEM_NODE_MAX, &r, &e) < 0);
	assert_int_equal(r.bytes, 7);
}

static void test_seal_fixes_the_size(void **state)
{
	struct mem_region r;
	struct err e;

	assert_int_equal(mem_region_create(MIB, MEM_SHARED, MEM_NODE_ANY, &r, &e), 0);
	assert_int_equal(fcntl(r.fd, F_GETFD), FD_CLOEXEC);
	assert_int_equal(mem_region_seal(&r, false), 0);
	assert_int_equal(ftruncate(r.fd, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(r.fd, 2 * (off_t)MIB), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(mem_region_seal(&r, true), -EPERM);
	mem_region_destroy(&r);
}

static void test_attach_sees_what_the_maker_writes(void **state)
{
	struct mem_region ours, theirs;
	struct err e;

	assert_int_equal(mem_region_create(MIB, MEM_SHARED, MEM_NODE_ANY, &ours, &e), 0);
	assert_int_equal(mem_region_seal(&ours, false), 0);
	assert_int_equal(mem_region_attach(dup(ours.fd), ours.bytes, true, &theirs, &e), 0);
	((unsigned char *)ours.base)[12345] = 42;
	assert_int_equal(((unsigned char *)theirs.base)[12345], 42);
	((unsigned char *)theirs.base)[54321] = 24;
	assert_int_equal(((unsigned char *)ours.base)[54321], 24);
	mem_region_destroy(&ours);
	assert_int_equal(((unsigned char *)theirs.base)[12345], 42); /* each side keeps it alive */
	mem_region_destroy(&theirs);
}

static void test_future_write_seal(void **state)
{
	struct mem_region ours, theirs;
	struct err e;
	char byte = 1;

	assert_int_equal(mem_region_create(MIB, MEM_SHARED, MEM_NODE_ANY, &ours, &e), 0);
	assert_int_equal(mem_region_seal(&ours, true), 0);
	int fd = dup(ours.fd);
	assert_int_equal(mem_region_attach(fd, ours.bytes, true, &theirs, &e), -EPERM);
	assert_int_equal(write(fd, &byte, 1), -1);
	assert_int_equal(mem_region_attach(fd, ours.bytes, false, &theirs, &e), 0);
	((unsigned char *)ours.base)[7] = 42; /* the maker's mapping came before the seal */
	assert_int_equal(((unsigned char *)theirs.base)[7], 42);
	assert_int_equal(mprotect(theirs.base, theirs.bytes, PROT_READ | PROT_WRITE), -1);
	mem_region_destroy(&theirs);
	mem_region_destroy(&ours);
}

static void test_attach_errors(void **state)
{
	struct mem_region ours, theirs = {.bytes = 7};
	struct err e;

	assert_int_equal(mem_region_create(MIB, MEM_SHARED, MEM_NODE_ANY, &ours, &e), 0);
	assert_int_equal(mem_region_attach(ours.fd, ours.bytes, true, &theirs, &e), -EPERM);
	assert_non_null(strstr(e.text, "not sealed"));
	assert_int_equal(mem_region_seal(&ours, false), 0);
	assert_int_equal(mem_region_attach(ours.fd, ours.bytes - 1, true, &theirs, &e), -EINVAL);
	assert_int_equal(mem_region_attach(ours.fd, 2 * ours.bytes, true, &theirs, &e), -EINVAL);
	assert_int_equal(mem_region_attach(ours.fd, 0, true, &theirs, &e), -EINVAL);
	assert_int_equal(mem_region_attach(-1, ours.bytes, true, &theirs, &e), -EPERM);
	assert_int_equal(theirs.bytes, 7);
	assert_true(fcntl(ours.fd, F_GETFD) >= 0); /* a failed attach leaves the descriptor to its caller */
	mem_region_destroy(&ours);
}

static void test_arena(void **state)
{
	struct mem_region r;
	struct arena a;
	struct err e;

	assert_int_equal(mem_region_create(MIB, 0, MEM_NODE_ANY, &r, &e), 0);
	arena_init(&a, &r);
	unsigned char *first = arena_alloc(&a, 3, 1);
	unsigned char *second = arena_alloc(&a, 64, 64);
	assert_ptr_equal(first, r.base);
	assert_ptr_equal(second, first + 64);
	assert_int_equal(arena_used(&a), 128);
	assert_int_equal((uintptr_t)arena_alloc(&a, 1, 4096) % 4096, 0);
	assert_int_equal(arena_used(&a), 4097);
	mem_region_destroy(&r);
}

static void test_arena_runs_out(void **state)
{
	struct mem_region r;
	struct arena a;
	struct err e;

	assert_int_equal(mem_region_create(MIB, 0, MEM_NODE_ANY, &r, &e), 0);
	arena_init(&a, &r);
	assert_null(arena_alloc(&a, r.bytes + 1, 1));
	assert_null(arena_alloc(&a, SIZE_MAX, 1));
	assert_int_equal(arena_used(&a), 0);
	assert_non_null(arena_alloc(&a, r.bytes - 1, 1));
	assert_null(arena_alloc(&a, 1, 64)); /* one byte is left, but not at such an address */
	assert_null(arena_alloc(&a, SIZE_MAX, 64));
	assert_int_equal(arena_used(&a), r.bytes - 1);
	assert_non_null(arena_alloc(&a, 1, 1));
	assert_null(arena_alloc(&a, 1, 1));
	assert_non_null(arena_alloc(&a, 0, 1)); /* nothing fits into nothing */
	mem_region_destroy(&r);
}

TEST_PROGRAM(test_mem)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_private_region),
		cmocka_unit_test(test_every_flag_and_node),
		cmocka_unit_test(test_create_errors),
		cmocka_unit_test(test_seal_fixes_the_size),
		cmocka_unit_test(test_attach_sees_what_the_maker_writes),
		cmocka_unit_test(test_future_write_seal),
		cmocka_unit_test(test_attach_errors),
		cmocka_unit_test(test_arena),
		cmocka_unit_test(test_arena_runs_out),
	};

	return cmocka_run_group_tests_name("mem", tests, NULL, NULL);
}
