/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box that stands for a root, with a stand-in for etcd that grants one lease after the other, and checkpoint targets
 * that can be had or not. Time is the test's, and so is the time for which the machine was suspended.
 */
#include "phub/control/campaign.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/control/above.h"
#include "phub/control/box.h"
#include "tests/unit/etcd_rig.h"

enum { TTL_S = 6, PATIENCE_S = 3 * TTL_S };

struct world {
	struct disk disk; /* first of all: it is known by it */
	struct etcd_rig rig;
	struct etcd *etcd;
	struct config config;
	struct box box;
	struct campaign campaign;
	uint64_t now_ns;
	unsigned grants, keeps, claims, revokes; /* so far; by the first, the lease */
	bool mute;                               /* nobody answers */
	bool lost;                               /* the lease is over */
	bool unanswered;                         /* claims are heard, and their answers lost */
	bool taken;                              /* another was the root since */
	char claim[1024];                        /* the last */
	int target;                              /* what locking it comes to */
	unsigned locked, given;
	char answer[128], log[8192];
};

static uint64_t suspended_ns; /* so far */
static struct world *the_world;

static uint64_t world_lease_clock(void)
{
	return the_world->now_ns + suspended_ns;
}

static int world_lock(struct disk *disk, const char *dir, const char *who, int *lock)
{
	struct world *w = (struct world *)disk;

	if (strcmp(dir, "/away") == 0)
		return -EBUSY;
	*lock = 1;
	w->locked += w->target == 0;
	return w->target;
}

static void world_unlock(struct disk *disk, int lock)
{
	struct world *w = (struct world *)disk;

	assert_int_equal(lock, 1);
	w->given++;
}

static bool world_is_locked(struct disk *disk, const char *dir, char *who, size_t bytes)
{
	snprintf(who, bytes, "there");
	return true;
}

static const struct disk_ops world_locks = {.lock = world_lock, .unlock = world_unlock, .is_locked = world_is_locked};

static void world_answer(void *arg, const struct etcd_rig_request *request, struct etcd_rig_answer *out)
{
	struct world *w = arg;

	*out = (struct etcd_rig_answer){.status = w->mute ? 0 : 200, .body = w->answer};
	snprintf(w->answer, sizeof(w->answer), "{}");
	if (strcmp(request->path, "/v3/lease/revoke") == 0)
		w->revokes++;
	if (w->mute)
		return;
	if (strcmp(request->path, "/v3/lease/grant") == 0) {
		w->lost = false;
		snprintf(w->answer, sizeof(w->answer), "{\"ID\":\"%u\",\"TTL\":\"%d\"}", ++w->grants, TTL_S);
	} else if (strcmp(request->path, "/v3/lease/keepalive") == 0) {
		w->keeps++;
		snprintf(w->answer, sizeof(w->answer), "{\"result\":{\"ID\":\"%u\",\"TTL\":\"%d\"}}", w->grants,
			w->lost ? 0 : TTL_S);
	} else if (strcmp(request->path, "/v3/kv/txn") == 0) {
		out->status = w->unanswered ? 0 : 200;
		snprintf(w->claim, sizeof(w->claim), "%s", request->body);
		snprintf(w->answer, sizeof(w->answer), "{\"header\":{\"revision\":\"%u\"},\"succeeded\":%s}",
			100 + ++w->claims, w->taken ? "false" : "true");
	}
}

static void world_on_log(void *ctx, enum log_level level, const char *line)
{
	struct world *w = ctx;
	size_t at = strlen(w->log);

	snprintf(w->log + at, sizeof(w->log) - at, "%s\n", line);
}

static void world_set(struct world *w, const char *setting)
{
	struct err e;

	if (config_set(&w->config, setting, &e) < 0)
		fail_msg("%s", e.text);
}

static int world_open(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	struct etcd_config at;
	struct err e;

	assert_non_null(w);
	*state = the_world = w;
	w->disk.ops = &world_locks;
	suspended_ns = 0;
	etcd_rig_init(&w->rig);
	w->rig.answer = world_answer;
	w->rig.arg = w;
	w->now_ns = 1000 * NS_PER_S;
	config_init(&w->config);
	world_set(w, "root=top");
	world_set(w, "checkpoint_targets=/disk");
	w->config.etcd_ttl_ms = TTL_S * 1000;
	w->box.config = w->box.control.config = &w->config;
	w->box.control.box = &w->box;
	w->box.env.lease_clock = world_lease_clock;
	assert_int_equal(targets_init(&w->box.targets, "/disk", 0, "here", &w->disk, true), 0);
	log_set_sink(world_on_log, w);
	log_set_level(LOG_LEVEL_INFO);
	assert_int_equal(etcd_config_read(w->rig.url, NULL, NULL, &at, &e), 0);
	assert_int_equal(etcd_open(&at, &w->etcd, &e), 0);
	above_init(&w->box.control);
	w->box.control.above.there = true;
	campaign_init(&w->campaign, &w->box, w->etcd, "one", "10.0.0.1:7077");
	return 0;
}

static int world_close(void **state)
{
	struct world *w = *state;

	campaign_fini(&w->campaign);
	targets_fini(&w->box.targets);
	assert_int_equal(w->locked, w->given);
	etcd_close(w->etcd);
	log_set_sink(NULL, NULL);
	etcd_rig_fini(&w->rig);
	config_fini(&w->config);
	free(w);
	return 0;
}

/* Time goes on in steps; the network has real time for each. */
static void world_pass(struct world *w, uint64_t ms)
{
	for (uint64_t i = 0; i < ms; i += 50) {
		w->now_ns += 50 * NS_PER_MS;
		w->box.control.now_ns = w->now_ns;
		for (unsigned quiet = 0; quiet < 3;) {
			unsigned requests = w->rig.requests;

			above_step(&w->box.control);
			etcd_step(w->etcd, w->now_ns);
			campaign_step(&w->campaign, w->now_ns);
			etcd_rig_step(&w->rig);
			usleep(50);
			quiet = requests == w->rig.requests ? quiet + 1 : 0;
		}
	}
}

/* Bounded: for what comes over loopback in real time. */
#define world_until(w, condition)                                         \
	do {                                                              \
		for (int turns = 0; turns < 400 && !(condition); turns++) \
			world_pass(w, 50);                                \
		assert_true(condition);                                   \
	} while (0)

static bool world_is_root(const struct world *w)
{
	return above_is_root(&w->box.control);
}

/* It has been seen that the key is nobody's, or has this lease and epoch. */
static void world_see(struct world *w, int64_t lease, uint64_t epoch)
{
	campaign_seen(&w->campaign, lease, &(struct above_place){.epoch = epoch, .box = "another"}, epoch, w->now_ns);
}

/* ---- tests ---- */

static void test_wins(void **state)
{
	struct world *w = *state;

	world_pass(w, 1000);
	assert_int_equal(w->rig.requests, 0); /* whose the key is was not seen yet */
	world_see(w, 0, 0);
	world_until(w, world_is_root(w));
	assert_int_equal(w->box.control.above.epoch, 101);
	assert_int_equal(w->locked - w->given, 1);
	assert_non_null(strstr(w->log, "this box is the root 'top' now, of epoch 101"));
	world_pass(w, 10 * TTL_S * 1000);
	assert_true(world_is_root(w));
	assert_int_equal(w->grants, 1);
	assert_int_equal(w->box.control.above.doubt_ns, 0);
	/* Another has the key: it is none, and gives back what it had. */
	world_see(w, 99, 500);
	assert_false(world_is_root(w));
	world_pass(w, 50);
	assert_int_equal(w->locked - w->given, 0);
}

/* The time for which the machine was suspended counts, and it is asked at once whether the lease is still there. */
static void test_suspended(void **state)
{
	struct world *w = *state;
	struct control *c = &w->box.control;
	unsigned keeps;

	world_see(w, 0, 0);
	world_until(w, world_is_root(w));
	keeps = w->keeps;
	assert_in_range(above_next(c), w->now_ns, w->now_ns + TTL_S * NS_PER_S);
	suspended_ns += TTL_S * NS_PER_S;
	assert_int_equal(above_next(c), c->now_ns);
	assert_true(campaign_next(&w->campaign) <= w->now_ns);
	above_step(c);
	assert_true(c->above.doubt_ns != 0);
	assert_non_null(strstr(w->log, "its jobs are held until it is known"));
	world_until(w, w->keeps > keeps && c->above.doubt_ns == 0);
	assert_non_null(strstr(w->log, "this box is the root 'top' still, of epoch 101: its jobs go on"));
}

/* Its lease is over, as it was cut off from etcd for longer. */
static void world_lapse(struct world *w)
{
	world_see(w, 0, 0);
	world_until(w, world_is_root(w));
	assert_null(strstr(w->claim, "MOD"));
	w->lost = true;
	world_until(w, w->campaign.lapsed);
	assert_true(w->box.control.above.doubt_ns != 0);
}

/* Nobody is the root, and nobody was since: it goes on, in its epoch. */
static void test_goes_on(void **state)
{
	struct world *w = *state;
	struct control *c = &w->box.control;

	world_lapse(w);
	world_pass(w, 1000);
	assert_true(c->above.doubt_ns != 0);
	assert_int_equal(w->grants, 1); /* whose the key is was not seen yet */
	world_see(w, 0, 0);
	world_until(w, w->claims == 2);
	world_until(w, c->above.doubt_ns == 0);
	assert_non_null(strstr(w->claim, "\"target\":\"MOD\",\"result\":\"EQUAL\",\"modRevision\":\"101\""));
	assert_int_equal(c->above.epoch, 101);
	assert_int_equal(w->locked - w->given, 1);
	assert_non_null(strstr(w->log, "this box is the root 'top' still, of epoch 101: its jobs go on"));
	world_pass(w, 10 * TTL_S * 1000);
	campaign_seen(&w->campaign, 2, &(struct above_place){.epoch = 101}, 102, w->now_ns);
	assert_true(world_is_root(w) && c->above.doubt_ns == 0);
	/* Once more: nobody since the last time. */
	w->lost = true;
	world_until(w, w->campaign.lapsed);
	world_see(w, 0, 0);
	world_until(w, w->claims == 3);
	assert_non_null(strstr(w->claim, "\"modRevision\":\"102\""));
}

/* The key was seen to be gone before the lease's end was heard of; and the answer to the claim is lost. */
static void test_goes_on_unheard(void **state)
{
	struct world *w = *state;
	struct control *c = &w->box.control;

	world_see(w, 0, 0);
	world_until(w, world_is_root(w));
	w->mute = true;
	world_until(w, c->above.doubt_ns != 0);
	world_see(w, 0, 0);
	assert_true(world_is_root(w));
	w->lost = true;
	w->mute = false;
	w->unanswered = true;
	world_until(w, w->claims > 1);
	world_pass(w, 1000);
	assert_true(c->above.doubt_ns != 0);
	w->unanswered = false;
	campaign_seen(&w->campaign, w->campaign.lease, &(struct above_place){.epoch = 101}, 150, w->now_ns);
	assert_int_equal(w->campaign.created, 150);
	world_until(w, c->above.doubt_ns == 0);
	assert_int_equal(c->above.epoch, 101);
}

/* Another was it since, and is none any more: what that has committed is not here. */
static void test_was_replaced(void **state)
{
	struct world *w = *state;

	world_lapse(w);
	w->taken = true;
	world_see(w, 0, 0);
	world_until(w, !world_is_root(w));
	assert_int_equal(w->claims, 2);
	assert_non_null(strstr(
		w->log, "the root 'top' no more (its lease in etcd ran out, and another box was the root since)"));
	w->taken = false;
	world_see(w, 0, 0);
	world_until(w, world_is_root(w));
	assert_int_equal(w->box.control.above.epoch, 103);
	assert_null(strstr(w->claim, "MOD"));
}

/* Another is it. */
static void test_is_replaced(void **state)
{
	struct world *w = *state;

	world_lapse(w);
	world_see(w, 99, 500);
	assert_false(world_is_root(w));
	world_pass(w, 1000);
	assert_int_equal(w->claims, 1);
}

/* It has waited for too long: its jobs have ended, and it stands anew. */
static void test_too_late(void **state)
{
	struct world *w = *state;

	world_lapse(w);
	world_pass(w, 2 * TTL_S * 1000 + 100);
	assert_false(world_is_root(w));
	world_see(w, 0, 0);
	world_until(w, world_is_root(w));
	assert_null(strstr(w->claim, "MOD"));
	assert_int_equal(w->box.control.above.epoch, 102);
}

/* It cannot be the root without its checkpoints: another has its turn, and then it stands again. */
static void test_gives_up(void **state)
{
	struct world *w = *state;

	w->target = -EBUSY;
	world_see(w, 0, 0);
	world_until(w, w->claims == 1);
	world_until(w,
		strstr(w->log, "to be the root 'top', and waits for its checkpoints: of checkpoint_targets /disk is"));
	world_pass(w, PATIENCE_S * 1000 - 1000);
	assert_int_equal(w->revokes, 0);
	assert_int_equal(w->grants, 1);
	world_until(w, w->revokes == 1);
	assert_non_null(
		strstr(w->log, "does not become the root 'top', as it has waited for its checkpoints for 18 s"));
	assert_non_null(strstr(strstr(w->log, "does not become"), "/disk is another phubd's"));
	world_see(w, 0, 0);
	world_pass(w, PATIENCE_S * 1000 - 1000);
	assert_int_equal(w->claims, 1);
	assert_int_equal(w->grants, 1);
	w->target = 0;
	world_until(w, world_is_root(w));
	assert_int_equal(w->grants, 2);
	assert_int_equal(w->box.control.above.epoch, 102);
}

/* Etcd does not hear that it gives up: it is told again, and what is seen of the key meanwhile is no promotion. */
static void test_gives_up_unheard(void **state)
{
	struct world *w = *state;
	unsigned revokes;

	w->target = -EOPNOTSUPP;
	world_see(w, 0, 0);
	world_until(w, w->claims == 1);
	world_pass(w, PATIENCE_S * 1000 - 1000);
	w->mute = true;
	world_until(w, w->revokes > 0);
	revokes = w->revokes + 2; /* libcurl may have asked twice for one call */
	w->target = 0;
	world_see(w, 1, 101);
	world_until(w, w->revokes > revokes);
	assert_int_equal(w->locked, 0);
	w->mute = false;
	world_until(w, w->campaign.lease == 0);
	assert_int_equal(w->claims, 1);
}

/* The key goes to another while it waits for the last of its checkpoints: what it had of them is free. */
static void test_loses_before(void **state)
{
	struct world *w = *state;

	targets_fini(&w->box.targets);
	assert_int_equal(targets_init(&w->box.targets, "/disk,/away", 0, "here", &w->disk, true), 0);
	world_see(w, 0, 0);
	world_until(w, w->campaign.told);
	assert_non_null(strstr(w->log, "/away is another phubd's"));
	assert_false(world_is_root(w));
	assert_int_equal(w->locked - w->given, 1);
	world_see(w, 99, 500);
	world_pass(w, 50);
	assert_int_equal(w->locked - w->given, 0);
	assert_int_equal(w->revokes, 0);
}

/* Goes down while it waits: the lease is given back at once. */
static void test_stops(void **state)
{
	struct world *w = *state;

	w->target = -EBUSY;
	world_see(w, 0, 0);
	world_until(w, w->claims == 1);
	campaign_stop(&w->campaign);
	assert_false(campaign_stopped(&w->campaign));
	world_until(w, campaign_stopped(&w->campaign));
	assert_int_equal(w->revokes, 1);
}

TEST_PROGRAM(test_campaign)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_wins, world_open, world_close),
		cmocka_unit_test_setup_teardown(test_suspended, world_open, world_close),
		cmocka_unit_test_setup_teardown(test_goes_on, world_open, world_close),
		cmocka_unit_test_setup_teardown(test_goes_on_unheard, world_open, world_close),
		cmocka_unit_test_setup_teardown(test_was_replaced, world_open, world_close),
		cmocka_unit_test_setup_teardown(test_is_replaced, world_open, world_close),
		cmocka_unit_test_setup_teardown(test_too_late, world_open, world_close),
		cmocka_unit_test_setup_teardown(test_gives_up, world_open, world_close),
		cmocka_unit_test_setup_teardown(test_gives_up_unheard, world_open, world_close),
		cmocka_unit_test_setup_teardown(test_loses_before, world_open, world_close),
		cmocka_unit_test_setup_teardown(test_stops, world_open, world_close),
	};

	return cmocka_run_group_tests_name("campaign", tests, NULL, NULL);
}
