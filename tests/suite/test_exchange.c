/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole exchanges through a whole box: the public calls of libphub on loop, tcp, udp, shm and verbs, served by 1, 2 and
 * 4 cores. Here box cores, control, progress threads and callers meet in one process, so it is what sanitizers should
 * see. A new transport gets a row in the table below, and a word in the line of parts. Run some rows, one, or some
 * cases of it, with `test_exchange shm`, `test_exchange shm-2` and `test_exchange shm-2 '*broadcast*'`.
 *
 * parts: loop tcp udp shm
 * vm: -m 2048 -- verbs-2
 * vm: -m 2048 -- verbs-1
 * vm: -m 2048 -- verbs-4
 * vm: -m 2048 -- verbs-2-encrypted
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/suite/exchange_cases.h"
#include "tests/suite/exchange_rig.h"
#include "tests/suite/transport_rig.h"

static const struct scene scenes[] = {
	{.label = "loop-1", .transport = "loop", .cores = 1, .plan = {.seed = 1, .poison = true}},
	{.label = "loop-2",
		.transport = "loop",
		.cores = 2,
		.core_cases = true,
		.plan = {.seed = 2,
			.delay_min_ns = 1000,
			.delay_max_ns = 20000,
			.late = 0.2,
			.late_max_ns = 20000,
			.split = 0.1,
			.hold_max = 4,
			.poison = true}},
	{.label = "loop-4", .transport = "loop", .cores = 4, .plan = {.seed = 3, .hold_max = 64, .poison = true}},
	{.label = "tcp-1", .transport = "tcp", .cores = 1},
	{.label = "tcp-2", .transport = "tcp", .cores = 2, .core_cases = true},
	{.label = "tcp-4", .transport = "tcp", .cores = 4},
	{.label = "udp-1", .transport = "udp", .cores = 1},
	{.label = "udp-2", .transport = "udp", .cores = 2, .core_cases = true},
	{.label = "udp-4", .transport = "udp", .cores = 4},
	{.label = "shm-1", .transport = "shm", .cores = 1, .mapped = true},
	{.label = "shm-2", .transport = "shm", .cores = 2, .mapped = true, .core_cases = true},
	{.label = "shm-4", .transport = "shm", .cores = 4, .mapped = true},
	{.label = "loop-2-encrypted",
		.transport = "loop",
		.cores = 2,
		.encrypt = true,
		.core_cases = true,
		.plan = {.seed = 4,
			.delay_min_ns = 1000,
			.delay_max_ns = 20000,
			.late = 0.2,
			.late_max_ns = 20000,
			.split = 0.1,
			.hold_max = 4,
			.poison = true}},
	{.label = "tcp-2-encrypted", .transport = "tcp", .cores = 2, .encrypt = true, .core_cases = true},
	{.label = "udp-2-encrypted", .transport = "udp", .cores = 2, .encrypt = true, .core_cases = true},
	{.label = "verbs-2-encrypted",
		.transport = "verbs",
		.one_sided = true,
		.cores = 2,
		.encrypt = true,
		.core_cases = true},
	{.label = "verbs-1", .transport = "verbs", .one_sided = true, .cores = 1},
	{.label = "verbs-2", .transport = "verbs", .one_sided = true, .cores = 2, .core_cases = true},
	{.label = "verbs-4", .transport = "verbs", .one_sided = true, .cores = 4},
};

enum { SCENES = sizeof(scenes) / sizeof(scenes[0]) };

static const struct scene *scene_now;
static struct stage stage_now;

static int scene_setup(void **state)
{
	stage_open(&stage_now, scene_now, NULL);
	*state = &stage_now;
	return 0;
}

static int scene_teardown(void **state)
{
	stage_close(*state);
	return 0;
}

static void scene_add(struct CMUnitTest *cases, size_t *at, const struct CMUnitTest *more, size_t count)
{
	memcpy(cases + *at, more, count * sizeof(*more));
	*at += count;
}

/* Those of a row. With a real GPU (exchange_device.c) what uses it, and nothing else. */
static size_t scene_fill(const struct scene *scene, struct CMUnitTest *cases)
{
	size_t count = 0;

	if (getenv("PHUB_TEST_CUDA")) {
		scene_add(cases, &count, exchange_device_cases, exchange_device_count);
		return count;
	}
	scene_add(cases, &count, exchange_sum_cases, exchange_sum_count);
	scene_add(cases, &count, exchange_step_cases, exchange_step_count);
	scene_add(cases, &count, exchange_sparse_cases, exchange_sparse_count);
	if (scene->core_cases) {
		scene_add(cases, &count, exchange_memory_cases, exchange_memory_count);
		scene_add(cases, &count, exchange_life_cases, exchange_life_count);
		scene_add(cases, &count, exchange_error_cases, exchange_error_count);
		scene_add(cases, &count, exchange_device_cases, exchange_device_count);
	}
	if (scene->core_cases && scene->one_sided && !scene->encrypt) /* which has memory of its own registered */
		scene_add(cases, &count, exchange_rdma_cases, exchange_rdma_count);
	if (scene->core_cases && strcmp(scene->transport, "loop") != 0)
		scene_add(cases, &count, exchange_thread_cases, exchange_thread_count);
	return count;
}

static int run_scene(const struct scene *scene)
{
	size_t most = exchange_sum_count + exchange_step_count + exchange_sparse_count + exchange_memory_count +
		      exchange_life_count + exchange_error_count + exchange_device_count + exchange_rdma_count +
		      exchange_thread_count;
	struct CMUnitTest *cases = calloc(most, sizeof(*cases));
	size_t count;
	int failed;

	if (!cases)
		return 1;
	count = scene_fill(scene, cases);
	scene_now = scene;
	failed = _cmocka_run_group_tests(scene->label, cases, count, scene_setup, scene_teardown);
	free(cases);
	return failed;
}

/* WORD is a row's label, or the beginning of several. */
static bool scene_is_meant(const struct scene *scene, const char *word)
{
	for (unsigned i = 0; i < SCENES; i++)
		if (strcmp(word, scenes[i].label) == 0)
			return scene == &scenes[i];
	return strncmp(word, scene->label, strlen(word)) == 0;
}

int main(int argc, char **argv)
{
	unsigned ran = 0;
	int failed = 0;

	signal(SIGPIPE, SIG_IGN);
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	for (unsigned i = 0; i < SCENES; i++) {
		if (argc > 1 && !scene_is_meant(&scenes[i], argv[1]))
			continue;
		if (!transport_find(scenes[i].transport)) {
			printf("skipped: %s: this build has no transport \"%s\"\n", scenes[i].label,
				scenes[i].transport);
			continue;
		}
		if (scenes[i].one_sided && rig_rdma_ports() == 0) {
			printf("skipped: %s: no RDMA device here\n", scenes[i].label);
			continue;
		}
		failed += run_scene(&scenes[i]);
		ran++;
	}
	if (ran == 0)
		return 77;
	return failed ? 1 : 0;
}
