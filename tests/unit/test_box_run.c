/* SPDX-License-Identifier: Apache-2.0 */
/* A box that runs in threads, and how it goes down. */
#include "aggregation/dispatch.h"
#include "phub/base/clock.h"
#include "phub/chunk.h"
#include "phub/control/box.h"
#include "tests/unit/cmocka_shim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { SHARDS = 20000, HANG_S = 60 };

static struct box *open_box(struct config *config)
{
	static const char *const settings[] = {"cores=1", "listen=127.0.0.1:0", "transports=tcp"};
	struct box_env env = {0};
	struct box *box = NULL;
	char text[64];
	struct err e;

	config_init(config);
	for (unsigned i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		if (config_set(config, settings[i], &e) < 0)
			fail_msg("%s", e.text);
	if (config_finish(config, &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(dispatch_from_env(&env.kernels, text, sizeof(text)), 0);
	if (box_create(config, &env, clock_now_ns(), &box, &e) < 0)
		fail_msg("%s", e.text);
	return box;
}

/*
 * A core has far more to tell than control's mailbox takes, and behind that it is told to stop. It must not wait for
 * room that nobody makes: a core that owes mail reads none.
 */
static void test_a_core_with_much_to_tell_still_stops(void **state)
{
	struct shard *shards = calloc(SHARDS, sizeof(*shards));
	struct link *links = calloc(SHARDS, sizeof(*links));
	struct spec *spec = calloc(1, sizeof(*spec));
	int stop_fd = eventfd(1, EFD_CLOEXEC); /* it is time already */
	struct config config;
	struct box *box = open_box(&config);
	struct err e;

	assert_true(shards && links && spec && stop_fd >= 0);
	spec->world = 1;
	spec->id = UINT32_MAX; /* of no job */
	for (unsigned i = 0; i < SHARDS; i++) {
		shards[i] = (struct shard){.spec = spec, .links = &links[i], .open_oldest = CHUNK_NONE};
		links[i].shard = &shards[i];
		post_send(&box->posts[0], &(struct mail){.kind = MAIL_ATTACH, .shard = &shards[i]});
		post_send(&box->posts[0], &(struct mail){.kind = MAIL_DETACH, .shard = &shards[i]});
	}
	alarm(HANG_S);
	assert_int_equal(box_run(box, stop_fd, -1, &e), 0);
	alarm(0);
	assert_true(box_balanced(box));
	box_destroy(box, clock_now_ns());
	config_fini(&config);
	close(stop_fd);
	free(shards);
	free(links);
	free(spec);
}

TEST_PROGRAM(test_box_run)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_core_with_much_to_tell_still_stops)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
