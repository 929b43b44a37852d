/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients and results in memory of a GPU, with a stand-in for CUDA's driver (cuda_stand_in.h), or with that of this
 * machine: `PHUB_TEST_CUDA=libcuda.so.1 test_exchange shm` runs these cases alone, on its first GPU.
 *
 * What the stand-in shows: libphub itself never touches such memory, sends no payload and ends no round before the
 * copy's event is done, pins what is copied, gives all back, and says what fails. A real driver has no knobs: with one,
 * cases that turn them are skipped, and what is left shows that it takes the calls as they are made, and that data is
 * right: so they passed on one H200, where streams and pieces were not yet as they are now (README, Not there yet).
 * Neither says how fast any of it is, or anything about a NIC that reads a GPU's memory by dma-buf.
 */
#include "tests/suite/exchange_cases.h"
#include "tests/suite/exchange_rig.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/device.h"
#include "tests/suite/cuda_stand_in.h"

enum { LARGE = 300000, SMALL = 100, KEYS = 5, ROUNDS = 3, PATIENCE = 3 };

/* Of a real driver: knobs that nobody looks at, but for `pool`, which says where memory is taken from. */
static struct cuda_stand_in no_knobs;
static struct cuda_stand_in *cuda;
static cuda_alias *device_alias; /* NULL: a real driver */

/* What the cases call themselves: of any driver, then of a real one alone. */
static struct {
	int (*context_retain)(void **context, int device);
	int (*context_release)(int device);
	int (*context_push)(void *context);
	int (*context_pop)(void **context);
	cuda_alloc *alloc;
	cuda_free *free;
	int (*init)(unsigned flags);
	int (*context_synchronize)(void);
	int (*alloc_async)(void **device, size_t bytes, void *stream);
	int (*host_alloc)(void **host, size_t bytes);
	int (*host_free)(void *host);
	int (*to_device)(void *to, const void *from, size_t bytes);
	int (*to_host)(void *to, const void *from, size_t bytes);
} driver;

static const struct {
	void *at;
	const char *name;
	bool real;
} driver_names[] = {
	{&driver.context_retain, "cuDevicePrimaryCtxRetain", false},
	{&driver.context_release, "cuDevicePrimaryCtxRelease_v2", false},
	{&driver.context_push, "cuCtxPushCurrent_v2", false},
	{&driver.context_pop, "cuCtxPopCurrent_v2", false},
	{&driver.alloc, "cuMemAlloc_v2", false},
	{&driver.free, "cuMemFree_v2", false},
	{&driver.init, "cuInit", true},
	{&driver.context_synchronize, "cuCtxSynchronize", true},
	{&driver.alloc_async, "cuMemAllocAsync", true},
	{&driver.host_alloc, "cuMemAllocHost_v2", true},
	{&driver.host_free, "cuMemFreeHost", true},
	{&driver.to_device, "cuMemcpyHtoD_v2", true},
	{&driver.to_host, "cuMemcpyDtoH_v2", true},
};

static const char *device_real(void)
{
	return getenv("PHUB_TEST_CUDA");
}

/* The stand-in lies beside this program. */
static void *device_open(void)
{
	char path[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 32);

	if (device_real())
		return dlopen(device_real(), RTLD_NOW | RTLD_LOCAL);
	assert_true(length > 0);
	path[length] = 0;
	*strrchr(path, '/') = 0;
	strncat(path, "/libcuda.so.1", 31);
	return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void device_load(void)
{
	void *library;

	if (cuda)
		return;
	library = device_open();
	if (!library)
		fail_msg("%s", dlerror());
	for (size_t i = 0; i < sizeof(driver_names) / sizeof(driver_names[0]); i++) {
		void *symbol = dlsym(library, driver_names[i].name);

		if (!symbol && (device_real() || !driver_names[i].real))
			fail_msg("the driver has no %s", driver_names[i].name);
		memcpy(driver_names[i].at, &symbol, sizeof(symbol));
	}
	if (device_real()) {
		void *context;

		assert_int_equal(driver.init(0), 0);
		assert_int_equal(
			driver.context_retain(&context, 0), 0); /* else it goes with the last case that holds it */
		cuda = &no_knobs;
		return;
	}
	*(void **)&device_alias = dlsym(library, "cuda_stand_in_alias");
	cuda = dlsym(library, "cuda_stand_in");
	assert_true(cuda && device_alias);
}

/* Cases that turn knobs begin with it. */
static void device_needs_knobs(void)
{
	device_load();
	if (device_real()) {
		skip_because("a real GPU driver has no knobs");
	}
}

/* Of the driver's calls that cannot fail here, in any thread. */
static void device_must(int rc, const char *call)
{
	if (rc == 0)
		return;
	fprintf(stderr, "%s: CUDA's error %d\n", call, rc);
	abort();
}

#define DEVICE_MUST(call) device_must(call, #call)

/* The device's primary context, for the calls in between. */
static void *device_enter(void)
{
	void *context = NULL;

	DEVICE_MUST(driver.context_retain(&context, 0));
	DEVICE_MUST(driver.context_push(context));
	return context;
}

/* Returns the context that was current. */
static void *device_leave(void)
{
	void *context = NULL;

	DEVICE_MUST(driver.context_pop(&context));
	DEVICE_MUST(driver.context_release(0));
	return context;
}

/* Every case begins with knobs of its own, and leaves nothing behind. */
static void device_run(struct stage *stage, unsigned world, unsigned queries, crew_script *script)
{
	unsigned before;

	device_load();
	if (device_real() && !stage->threads) {
		skip_because("a real GPU does not wait for virtual time");
	}
	before = cuda->copies;
	cuda->queries = queries;
	crew_run(stage, world, script, NULL);
	cuda->fail = 0;
	cuda->pool = 0;
	cuda->queries_to_host = 0;
	assert_true(device_real() || cuda->copies > before);
	assert_int_equal(cuda->wrong, 0);
	assert_int_equal(cuda->waiting, 0);
	assert_int_equal(cuda->pins, 0);
	assert_int_equal(cuda->streams, 0);
	assert_int_equal(cuda->events, 0);
	assert_int_equal(cuda->contexts_retained, 0);
}

/* ---- memory ---- */

struct place {
	float *at;   /* as libphub knows it */
	float *here; /* as the test does */
	size_t bytes;
	bool mirrored; /* only the test knows what is here: see device_put() and device_get() */
};

static void *device_memory(size_t bytes)
{
	void *at = NULL;

	if (!device_real()) {
		DEVICE_MUST(driver.alloc(&at, bytes));
		return at;
	}
	device_enter();
	if (cuda->pool)
		DEVICE_MUST(driver.alloc_async(&at, bytes, NULL));
	else
		DEVICE_MUST(driver.alloc(&at, bytes));
	DEVICE_MUST(driver.context_synchronize());
	device_leave();
	return at;
}

static void device_free(void *at)
{
	if (device_real())
		device_enter();
	DEVICE_MUST(driver.free(at));
	if (device_real())
		device_leave();
}

/* What the test has written is on the device, for streams that wait for no other too. */
static void device_put(struct place p)
{
	if (!p.mirrored)
		return;
	device_enter();
	DEVICE_MUST(driver.to_device(p.at, p.here, p.bytes));
	DEVICE_MUST(driver.context_synchronize());
	device_leave();
}

/* What is on the device is what the test reads. */
static void device_get(struct place p)
{
	if (!p.mirrored)
		return;
	device_enter();
	DEVICE_MUST(driver.to_host(p.here, p.at, p.bytes));
	device_leave();
}

static struct place device_take(struct member *me, bool on_device, unsigned elements)
{
	struct place p = {.bytes = elements * sizeof(float), .mirrored = on_device && device_real()};

	p.at = on_device ? device_memory(p.bytes) : calloc(elements, sizeof(float));
	p.here = p.mirrored ? calloc(elements, sizeof(float)) : on_device ? device_alias(p.at) : p.at;
	EXPECT(me, p.at && p.here);
	device_put(p);
	return p;
}

static void device_give(bool on_device, struct place p)
{
	if (p.mirrored)
		free(p.here);
	if (on_device)
		device_free(p.at);
	else
		free(p.at);
}

static float device_value(unsigned rank, unsigned round, unsigned key, unsigned i)
{
	return (float)((rank + 1) * (round + 7 * key + i % 1009));
}

static void device_fill(struct place p, unsigned elements, unsigned rank, unsigned round, unsigned key)
{
	for (unsigned i = 0; i < elements; i++)
		p.here[i] = device_value(rank, round, key, i);
	device_put(p);
}

static bool device_sums(struct place p, unsigned elements, unsigned world, unsigned round, unsigned key)
{
	device_get(p);
	for (unsigned i = 0; i < elements; i++)
		if (p.here[i] != (float)(world * (world + 1) / 2) * device_value(0, round, key, i))
			return false;
	return true;
}

static void device_join(struct member *me)
{
	struct phub_options o;

	member_options(me, &o);
	EXPECT_RC(me, member_connect(me, &o), 0);
}

static void device_start(struct member *me)
{
	char name[16];

	for (unsigned k = 0; k < KEYS; k++) {
		snprintf(name, sizeof(name), "key%u", k);
		EXPECT_RC(me, phub_key(me->phub, name, PHUB_F32, k < 3 ? LARGE : SMALL, 0, 0), (int)k);
	}
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
}

/* ---- rounds ---- */

static unsigned device_elements(unsigned key)
{
	return key < 3 ? LARGE : SMALL;
}

/* Three keys have chunks of their own, two share one; each has its memory elsewhere. */
static void rounds_of_table(struct member *me)
{
	static const bool src_there[KEYS] = {true, true, false, true, false};
	static const bool dst_there[KEYS] = {true, false, true, true, true};
	struct place src[KEYS], dst[KEYS];

	for (unsigned k = 0; k < KEYS; k++) {
		src[k] = device_take(me, src_there[k], device_elements(k));
		dst[k] = k == 0 ? src[0] : device_take(me, dst_there[k], device_elements(k));
	}
	for (unsigned round = 1; round <= ROUNDS; round++) {
		for (unsigned i = 0; i < KEYS; i++) {
			unsigned k = me->rank ? KEYS - 1 - i : i;

			device_fill(src[k], device_elements(k), me->rank, round, k);
			EXPECT_RC(me, phub_push_pull(me->phub, (int)k, src[k].at, dst[k].at, (int)k), 0);
		}
		EXPECT_RC(me, phub_wait(me->phub, PHUB_ALL, PHUB_TIMEOUT_DEFAULT), 0);
		for (unsigned k = 0; k < KEYS; k++)
			EXPECT(me, device_sums(dst[k], device_elements(k), me->world, round, k));
	}
	for (unsigned k = 0; k < KEYS; k++) {
		if (k > 0)
			device_give(dst_there[k], dst[k]);
		device_give(src_there[k], src[k]);
	}
}

/* The second table has memory of its own, where that of the first one was perhaps. */
static void rounds_script(struct member *me)
{
	device_join(me);
	device_start(me);
	rounds_of_table(me);
	EXPECT_RC(me, phub_rekey(me->phub), 0);
	device_start(me);
	rounds_of_table(me);
	member_leave(me);
}

static void memory_of_a_gpu_is_copied_by_it(void **state)
{
	device_run(*state, 2, PATIENCE, rounds_script);
}

static void copies_that_are_done_at_once_are_seen(void **state)
{
	device_run(*state, 3, 0, rounds_script);
}

static void memory_of_no_context_uses_the_primary_one(void **state)
{
	device_load();
	cuda->pool = 1;
	device_run(*state, 2, PATIENCE, rounds_script);
}

/* ---- pieces ---- */

static unsigned pieces_shift; /* results lie so far behind what was pushed */

/* Two pieces: in whatever order results come, each is a copy, each way. */
static void pieces_script(struct member *me)
{
	struct place src, dst;

	device_join(me);
	device_start(me);
	src = dst = device_take(me, true, LARGE + pieces_shift);
	src.bytes = dst.bytes = LARGE * sizeof(float);
	dst.at += pieces_shift;
	dst.here += pieces_shift;
	for (unsigned round = 1; round <= ROUNDS; round++) {
		device_fill(src, LARGE, me->rank, round, 0);
		EXPECT_RC(me, phub_push_pull(me->phub, 0, src.at, dst.at, 0), 0);
		EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), 0);
		EXPECT(me, device_sums(dst, LARGE, me->world, round, 0));
	}
	EXPECT(me, device_real() || me->world > 1 || cuda->streams == 2); /* one each way */
	member_leave(me);
	device_give(true, src);
}

static void copies_of_neighbours_are_joined(void **state)
{
	unsigned before;

	device_load();
	pieces_shift = 0;
	before = cuda->copies;
	device_run(*state, 2, PATIENCE, pieces_script);
	assert_true(device_real() || cuda->copies == before + 2 * 2 * 2 * ROUNDS);
	device_run(*state, 1, PATIENCE, pieces_script);
	assert_true(device_real() || cuda->copies == before + 3 * 2 * 2 * ROUNDS);
}

/* Copies each way know nothing of each other: results go back when all of the push was copied. */
static void memory_that_overlaps_itself(void **state)
{
	device_load();
	cuda->queries_to_host = 300;
	pieces_shift = SMALL;
	device_run(*state, 2, PATIENCE, pieces_script);
}

/* ---- contexts ---- */

static void current_script(struct member *me)
{
	void *context = device_enter();

	device_join(me);
	device_start(me);
	rounds_of_table(me);
	member_leave(me);
	EXPECT(me, device_leave() == context);
}

static void a_context_of_the_caller_stays_current(void **state)
{
	device_load();
	device_run(*state, 2, PATIENCE, current_script);
	cuda->pool = 1;
	device_run(*state, 2, PATIENCE, current_script);
}

/* ---- bits ---- */

static const unsigned bits_elements[] = {1, 3, 1023, 4096, 65537, 1000003};

enum { BITS_SIZES = sizeof(bits_elements) / sizeof(bits_elements[0]), BITS_ROUNDS = 4 };

/* Numbers of all magnitudes that rounding has work with. */
static void bits_fill(struct place p, unsigned elements, unsigned seed)
{
	uint32_t x = 2463534242u + seed * 747796405u;

	for (unsigned i = 0; i < elements; i++) {
		uint32_t bits;

		x ^= x << 13;
		x ^= x >> 17;
		x ^= x << 5;
		bits = (x & 0x807fffffu) | (100u + (x >> 8) % 50u) << 23;
		memcpy(&p.here[i], &bits, sizeof(bits));
	}
	device_put(p);
}

/* Each size goes twice, from memory of the device and of the host, in place. Sums of two have one order alone. */
static void bits_script(struct member *me)
{
	struct place there[BITS_SIZES], host[BITS_SIZES];
	char name[16];

	device_join(me);
	for (unsigned k = 0; k < 2 * BITS_SIZES; k++) {
		snprintf(name, sizeof(name), "key%u", k);
		EXPECT_RC(me, phub_key(me->phub, name, PHUB_F32, bits_elements[k / 2], 0, 0), (int)k);
	}
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	for (unsigned s = 0; s < BITS_SIZES; s++) {
		there[s] = device_take(me, true, bits_elements[s]);
		host[s] = device_take(me, false, bits_elements[s]);
	}
	for (unsigned round = 1; round <= BITS_ROUNDS; round++) {
		for (unsigned s = 0; s < BITS_SIZES; s++) {
			bits_fill(there[s], bits_elements[s], me->rank + 2 * round + 100 * s);
			bits_fill(host[s], bits_elements[s], me->rank + 2 * round + 100 * s);
			EXPECT_RC(me, phub_push_pull(me->phub, (int)(2 * s), there[s].at, there[s].at, 0), 0);
			EXPECT_RC(me, phub_push_pull(me->phub, (int)(2 * s + 1), host[s].at, host[s].at, 0), 0);
		}
		EXPECT_RC(me, phub_wait(me->phub, PHUB_ALL, PHUB_TIMEOUT_DEFAULT), 0);
		for (unsigned s = 0; s < BITS_SIZES; s++) {
			device_get(there[s]);
			EXPECT(me, memcmp(there[s].here, host[s].here, bits_elements[s] * sizeof(float)) == 0);
		}
	}
	member_leave(me);
	for (unsigned s = 0; s < BITS_SIZES; s++) {
		device_give(true, there[s]);
		device_give(false, host[s]);
	}
}

static void sums_have_the_bits_of_those_of_host_memory(void **state)
{
	device_run(*state, 2, PATIENCE, bits_script);
}

/* ---- halves of rounds ---- */

static void halves_script(struct member *me)
{
	struct place p;

	device_join(me);
	device_start(me);
	p = device_take(me, true, LARGE);
	device_fill(p, LARGE, 4, 9, 1);
	if (me->rank != 1)
		memset(p.here, 0, LARGE * sizeof(float));
	device_put(p);
	EXPECT_RC(me, phub_broadcast(me->phub, 1, p.at, 1), 0);
	EXPECT_RC(me, phub_wait(me->phub, 1, PHUB_TIMEOUT_DEFAULT), 0);
	device_get(p);
	for (unsigned i = 0; i < LARGE; i++)
		EXPECT(me, p.here[i] == device_value(4, 9, 1, i));
	device_fill(p, LARGE, me->rank, 2, 0);
	EXPECT_RC(me, phub_push(me->phub, 0, p.at, 0), 0);
	if (!device_real())
		EXPECT_RC(me, phub_test(me->phub, 0), 0); /* the copy was not asked for its end often enough */
	EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), 0);
	EXPECT_RC(me, phub_pull(me->phub, 0, p.at, PHUB_TIMEOUT_DEFAULT), 0);
	EXPECT(me, device_sums(p, LARGE, me->world, 2, 0));
	member_leave(me);
	device_give(true, p);
}

static void broadcasts_and_halves_of_rounds_too(void **state)
{
	device_run(*state, 2, PATIENCE, halves_script);
}

/* The root of a broadcast gets its weights back where a quorum may have gone on from them. */
static void weights_script(struct member *me)
{
	struct phub_options o;
	struct place p;

	member_options(me, &o);
	o.optimizer = PHUB_SGD;
	o.quorum = 1;
	EXPECT_RC(me, member_connect(me, &o), 0);
	device_start(me);
	for (unsigned key = 0; key < 3; key++) {
		p = device_take(me, true, device_elements(key));
		device_fill(p, device_elements(key), me->rank, 3, key);
		EXPECT_RC(me, phub_broadcast(me->phub, (int)key, p.at, 0), 0);
		EXPECT_RC(me, phub_wait(me->phub, (int)key, PHUB_TIMEOUT_DEFAULT), 0);
		device_get(p);
		for (unsigned i = 0; i < device_elements(key); i++)
			EXPECT(me, p.here[i] == device_value(0, 3, key, i));
		device_give(true, p);
	}
	member_leave(me);
}

static void weights_come_back_to_their_root(void **state)
{
	device_run(*state, 2, PATIENCE, weights_script);
}

/* ---- sparse keys ---- */

enum { SPARSE_KEYS = 4, SPARSE_EVERY = 50 };

static void sparse_round(struct member *me, unsigned key, struct place src, struct place dst, unsigned round)
{
	unsigned elements = key ? SMALL : LARGE;

	for (unsigned i = 0; i < elements; i++)
		src.here[i] = i % SPARSE_EVERY ? 0 : device_value(me->rank, round, key, i);
	device_put(src);
	EXPECT_RC(me, phub_push_pull(me->phub, (int)key, src.at, dst.at, 0), 0);
}

static void sparse_check(struct member *me, unsigned key, struct place dst, unsigned round)
{
	unsigned elements = key ? SMALL : LARGE, sum = me->world * (me->world + 1) / 2;

	device_get(dst);
	for (unsigned i = 0; i < elements; i++)
		EXPECT(me, dst.here[i] == (i % SPARSE_EVERY ? 0 : (float)sum * device_value(0, round, key, i)));
}

/* A key with chunks of its own, then three in one; coding and decoding is the CPU's work, in the library's memory. */
static void sparse_script(struct member *me)
{
	static const bool src_there[SPARSE_KEYS] = {true, true, false, true};
	static const bool dst_there[SPARSE_KEYS] = {true, false, true, true};
	static const char *const names[SPARSE_KEYS] = {"large", "to host", "from host", "within"};
	bool mapped = me->crew->stage->scene->mapped;
	struct phub_stats stats = {.size = sizeof(stats)};
	struct place src[SPARSE_KEYS], dst[SPARSE_KEYS];

	device_join(me);
	for (unsigned k = 0; k < SPARSE_KEYS; k++) {
		src[k] = device_take(me, src_there[k], k ? SMALL : LARGE);
		dst[k] = device_take(me, dst_there[k], k ? SMALL : LARGE);
		EXPECT_RC(me, phub_key(me->phub, names[k], PHUB_F32, k ? SMALL : LARGE, 0, PHUB_KEY_SPARSE), (int)k);
	}
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	for (unsigned round = 1; round <= ROUNDS; round++) {
		for (unsigned k = 0; k < SPARSE_KEYS; k++)
			sparse_round(me, k, src[k], dst[k], round);
		EXPECT_RC(me, phub_wait(me->phub, PHUB_ALL, PHUB_TIMEOUT_DEFAULT), 0);
		for (unsigned k = 0; k < SPARSE_KEYS; k++)
			sparse_check(me, k, dst[k], round);
	}
	EXPECT_RC(me, phub_stats(me->phub, &stats), 0);
	EXPECT(me, stats.coded_pushes == (mapped ? 0 : stats.pushes));
	EXPECT(me, stats.coded_results == (mapped ? 0 : stats.results));
	member_leave(me);
	for (unsigned k = 0; k < SPARSE_KEYS; k++) {
		device_give(src_there[k], src[k]);
		device_give(dst_there[k], dst[k]);
	}
}

static void sparse_keys_go_through_the_host(void **state)
{
	device_run(*state, 2, PATIENCE, sparse_script);
	device_run(*state, 2, 0, sparse_script);
}

/* ---- the end ---- */

/* The stand-in's copies never end by themselves. When phub_leave() has returned none runs, and the memory may go. */
static void leaving_script(struct member *me)
{
	struct place p;

	device_join(me);
	device_start(me);
	p = device_take(me, true, LARGE);
	EXPECT_RC(me, phub_push_pull(me->phub, 0, p.at, p.at, 0), 0);
	if (!device_real()) {
		EXPECT_RC(me, phub_wait(me->phub, 0, 5), -ETIMEDOUT);
		EXPECT_TEXT(me, "copied from the memory of a GPU");
		member_meet(me);
	}
	EXPECT_RC(me, phub_leave(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	device_give(true, p);
	phub_close(me->phub);
	me->phub = NULL;
}

static void no_copy_runs_after_leaving(void **state)
{
	device_run(*state, 2, UINT_MAX, leaving_script);
}

static void failing_script(struct member *me)
{
	struct place p;

	device_join(me);
	device_start(me);
	p = device_take(me, true, LARGE);
	cuda->fail = 700;
	EXPECT_RC(me, phub_push_pull(me->phub, 0, p.at, p.at, 0), 0);
	EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), -EIO);
	EXPECT_TEXT(me, "illegal memory access");
	phub_close(me->phub);
	me->phub = NULL;
	device_give(true, p);
}

static void a_copy_that_fails_ends_the_session(void **state)
{
	device_needs_knobs();
	device_run(*state, 1, 0, failing_script);
}

/* ---- registering ---- */

/* None of the transports here can reach a GPU: it is said, and exchanging costs a copy. */
static void registering_script(struct member *me)
{
	struct place early, late;

	device_join(me);
	early = device_take(me, true, SMALL);
	late = device_take(me, true, LARGE);
	EXPECT_RC(me, phub_mem_register(me->phub, early.at, SMALL * sizeof(float)),
		me->crew->stage->scene->mapped ? -ENOTSUP : 0);
	device_start(me);
	EXPECT_RC(me, phub_mem_register(me->phub, late.at, LARGE * sizeof(float)), -ENOTSUP);
	EXPECT_RC(me, phub_mem_unregister(me->phub, late.at), -EINVAL);
	device_fill(early, SMALL, me->rank, 1, 3);
	device_fill(late, LARGE, me->rank, 1, 0);
	EXPECT_RC(me, phub_push_pull(me->phub, 0, late.at, late.at, 0), 0);
	EXPECT_RC(me, phub_push_pull(me->phub, 3, early.at, early.at, 0), 0);
	EXPECT_RC(me, phub_push_pull(me->phub, 4, early.at, NULL, 0), 0);
	EXPECT_RC(me, phub_wait(me->phub, PHUB_ALL, PHUB_TIMEOUT_DEFAULT), 0);
	EXPECT(me, device_sums(late, LARGE, me->world, 1, 0));
	EXPECT(me, device_sums(early, SMALL, me->world, 1, 3));
	member_leave(me);
	device_give(true, early);
	device_give(true, late);
}

static void registering_says_what_will_be_copied(void **state)
{
	device_run(*state, 2, PATIENCE, registering_script);
}

/* What a transport that can is given. */
static void memory_is_exported_where_writes_are_in_order(void **state)
{
	struct device_place place;
	uint64_t offset = 0;
	char *memory;
	int fd;

	device_needs_knobs();
	device_look();
	memory = device_memory(100000);
	assert_false(device_holds(&place, &place));
	assert_true(device_holds(memory + 5000, &place));
	assert_int_equal(device_export(&place, memory + 5000, 1000, &offset), -ENOTSUP);
	cuda->dma_buf = 1;
	cuda->ordering = 0;
	assert_int_equal(device_export(&place, memory + 5000, 1000, &offset), -ENOTSUP);
	cuda->ordering = 100;
	fd = device_export(&place, memory + 5000, 1000, &offset);
	assert_true(fd >= 0);
	assert_int_equal(offset, 5000 - 4096);
	close(fd);
	cuda->pool = 1;
	assert_true(device_holds(memory + 5000, &place));
	assert_null(place.context);
	fd = device_export(&place, memory + 5000, 1000, &offset);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(cuda->contexts_retained, 0);
	cuda->pool = 0;
	cuda->dma_buf = 0;
	device_free(memory);
}

/* No context is current. What a device exports is its own affair: it is told. */
static void memory_is_told_apart(void **state)
{
	struct device_place place, of_pool, of_host;
	char *memory, *pooled;
	void *pinned = NULL;
	uint64_t offset = 0;
	int fd;

	device_load();
	device_look();
	memory = device_memory(100000);
	cuda->pool = 1;
	pooled = device_memory(100000);
	assert_true(device_holds(pooled + 99999, &of_pool));
	cuda->pool = 0;
	assert_true(device_holds(memory + 99999, &place));
	assert_int_equal(place.ordinal, 0);
	assert_int_equal(of_pool.ordinal, 0);
	assert_false(device_holds(&place, &of_host));
	if (device_real()) {
		device_enter();
		DEVICE_MUST(driver.host_alloc(&pinned, 4096));
		assert_false(device_holds(pinned, &of_host));
		DEVICE_MUST(driver.host_free(pinned));
		device_leave();
		fd = device_export(&place, memory + 5000, 1000, &offset);
		print_message("context %s, of a pool %s; a dma-buf: %d\n", place.context ? "its own" : "none",
			of_pool.context ? "its own" : "none", fd);
		if (fd >= 0)
			close(fd);
	}
	device_free(pooled);
	device_free(memory);
	assert_false(device_holds(memory, &of_host));
}

const struct CMUnitTest exchange_device_cases[] = {
	cmocka_unit_test(memory_of_a_gpu_is_copied_by_it),
	cmocka_unit_test(copies_that_are_done_at_once_are_seen),
	cmocka_unit_test(memory_of_no_context_uses_the_primary_one),
	cmocka_unit_test(copies_of_neighbours_are_joined),
	cmocka_unit_test(memory_that_overlaps_itself),
	cmocka_unit_test(a_context_of_the_caller_stays_current),
	cmocka_unit_test(sums_have_the_bits_of_those_of_host_memory),
	cmocka_unit_test(broadcasts_and_halves_of_rounds_too),
	cmocka_unit_test(weights_come_back_to_their_root),
	cmocka_unit_test(sparse_keys_go_through_the_host),
	cmocka_unit_test(no_copy_runs_after_leaving),
	cmocka_unit_test(a_copy_that_fails_ends_the_session),
	cmocka_unit_test(registering_says_what_will_be_copied),
	cmocka_unit_test(memory_is_exported_where_writes_are_in_order),
	cmocka_unit_test(memory_is_told_apart),
};
const size_t exchange_device_count = sizeof(exchange_device_cases) / sizeof(exchange_device_cases[0]);
