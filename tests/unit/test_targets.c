/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks of checkpoint targets, on disks that answer, refuse, or do not answer until the test lets them. Time is the
 * test's; threads are real.
 */
#include "phub/control/targets.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "phub/base/log.h"

enum { DISKS = 3, HANG_S = 60 };

/* Directories "0", "1", "2". */
struct disks {
	struct disk own; /* first of all: it is known by it */
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	struct {
		bool hangs;
		int rc;
		unsigned asked, inside, locked, given;
	} disk[DISKS];
	bool strange; /* it was asked for another */
	char log[4096];
};

static struct disks disks;

static int disks_lock(struct disk *disk, const char *dir, const char *who, int *lock)
{
	struct disks *d = (struct disks *)disk;
	int i = dir[0] - '0', rc;

	pthread_mutex_lock(&d->mutex);
	d->strange = d->strange || strcmp(who, "this box") != 0;
	d->disk[i].asked++;
	d->disk[i].inside++;
	while (d->disk[i].hangs)
		pthread_cond_wait(&d->changed, &d->mutex);
	d->disk[i].inside--;
	rc = d->disk[i].rc;
	if (rc == 0) {
		d->disk[i].locked++;
		*lock = 100 + i;
	}
	pthread_mutex_unlock(&d->mutex);
	return rc;
}

static void disks_unlock(struct disk *disk, int lock)
{
	struct disks *d = (struct disks *)disk;

	pthread_mutex_lock(&d->mutex);
	d->disk[lock - 100].given++;
	pthread_mutex_unlock(&d->mutex);
}

static bool disks_is_locked(struct disk *disk, const char *dir, char *who, size_t bytes)
{
	snprintf(who, bytes, "box %s", dir);
	return true;
}

static const struct disk_ops ops = {.lock = disks_lock, .unlock = disks_unlock, .is_locked = disks_is_locked};

static void disks_set(int i, bool hangs, int rc)
{
	pthread_mutex_lock(&disks.mutex);
	disks.disk[i].hangs = hangs;
	disks.disk[i].rc = rc;
	pthread_cond_broadcast(&disks.changed);
	pthread_mutex_unlock(&disks.mutex);
}

static unsigned disks_are_locked(void)
{
	unsigned count = 0;

	pthread_mutex_lock(&disks.mutex);
	for (int i = 0; i < DISKS; i++)
		count += disks.disk[i].locked - disks.disk[i].given;
	pthread_mutex_unlock(&disks.mutex);
	return count;
}

static unsigned disks_asked(int i)
{
	unsigned asked;

	pthread_mutex_lock(&disks.mutex);
	asked = disks.disk[i].asked;
	pthread_mutex_unlock(&disks.mutex);
	return asked;
}

static unsigned disks_given(int i)
{
	unsigned given;

	pthread_mutex_lock(&disks.mutex);
	given = disks.disk[i].given;
	pthread_mutex_unlock(&disks.mutex);
	return given;
}

static void on_log(void *ctx, enum log_level level, const char *line)
{
	size_t at = strlen(disks.log);

	snprintf(disks.log + at, sizeof(disks.log) - at, "%s\n", line);
}

static int begin(void **state)
{
	memset(&disks, 0, sizeof(disks));
	disks.own.ops = &ops;
	pthread_mutex_init(&disks.mutex, NULL);
	pthread_cond_init(&disks.changed, NULL);
	log_set_sink(on_log, NULL);
	log_set_level(LOG_LEVEL_INFO);
	return 0;
}

static int end(void **state)
{
	log_set_sink(NULL, NULL);
	assert_false(disks.strange);
	return 0;
}

static void open_targets(struct targets *t, unsigned parity, bool by_hand)
{
	assert_int_equal(targets_init(t, "0,1,2", parity, "this box", &disks.own, by_hand), 0);
}

/* Bounded: threads take real time. */
#define until(condition)                                                   \
	do {                                                               \
		for (int i_ = 0; i_ < HANG_S * 1000 && !(condition); i_++) \
			usleep(1000);                                      \
		assert_true(condition);                                    \
	} while (0)

/* ---- tests ---- */

static void test_takes_and_gives(void **state)
{
	struct targets t;
	struct err e;

	open_targets(&t, 0, false);
	assert_false(targets_has(&t));
	until(targets_take(&t, NS_PER_S, &e) == 0);
	assert_true(targets_has(&t));
	assert_int_equal(disks_are_locked(), 3);
	assert_int_equal(targets_take(&t, 2 * NS_PER_S, &e), 0);
	targets_give(&t);
	assert_false(targets_has(&t));
	until(disks_are_locked() == 0);
	until(targets_take(&t, 3 * NS_PER_S, &e) == 0);
	targets_fini(&t);
	until(disks_are_locked() == 0);
	assert_string_equal(disks.log, "");
}

/* The machine's own. */
static void test_real_locks(void **state)
{
	char dir[] = "/tmp/phub-targets-XXXXXX", file[64];
	struct targets one, two;
	struct err e;

	assert_non_null(mkdtemp(dir));
	assert_int_equal(targets_init(&one, dir, 0, "one", NULL, false), 0);
	assert_int_equal(targets_init(&two, dir, 0, "two", NULL, true), 0);
	until(targets_take(&one, NS_PER_S, &e) == 0);
	assert_int_equal(targets_take(&two, NS_PER_S, &e), -EBUSY);
	assert_non_null(strstr(e.text, dir));
	assert_non_null(strstr(e.text, "is another phubd's, which runs (the box at one has locked "));
	assert_non_null(strstr(e.text, "stop it"));
	targets_give(&one);
	/* By its own time it is not tried again before it is due. */
	assert_int_equal(targets_take(&two, NS_PER_S + TARGETS_RETRY_NS - 1, &e), -EBUSY);
	for (uint64_t i = 1; targets_take(&two, NS_PER_S + i * TARGETS_RETRY_NS, &e) < 0 && i < 1000; i++)
		usleep(1000);
	assert_true(targets_has(&two));
	targets_fini(&two);
	targets_fini(&one);
	snprintf(file, sizeof(file), "%s/.phub.lock", dir);
	assert_int_equal(unlink(file), 0);
	assert_int_equal(rmdir(dir), 0);
}

/* Nobody waits for a disk that does not answer, and what it gives when nobody wants it any more goes back. */
static void test_hangs(void **state)
{
	struct targets t;
	struct err e;

	open_targets(&t, 0, false);
	disks_set(1, true, 0);
	for (uint64_t s = 1; s < 60; s++)
		assert_int_equal(targets_take(&t, s * NS_PER_S, &e), -EAGAIN);
	until(disks_are_locked() == 2);
	until((assert_int_equal(targets_take(&t, 60 * NS_PER_S, &e), -EAGAIN),
		strstr(e.text, "of checkpoint_targets 1 has not answered for 59.0 s")));
	/* However often it is wanted: one thread is there. */
	for (uint64_t s = 60; s < 70; s++) {
		targets_give(&t);
		until(disks_are_locked() == 0);
		targets_step(&t, s * NS_PER_S);
		until((targets_take(&t, s * NS_PER_S, &e), disks_are_locked() == 2));
	}
	targets_give(&t);
	until(disks_are_locked() == 0);
	assert_int_equal(disks_asked(1), 1);
	disks_set(1, false, 0);
	until((targets_step(&t, 70 * NS_PER_S), disks_given(1) == 1));
	assert_int_equal(disks_are_locked(), 0);
	until(targets_take(&t, 71 * NS_PER_S, &e) == 0);
	targets_fini(&t);
	until(disks_are_locked() == 0);
}

/* It answers when what wanted it is gone for good. */
static void test_hangs_at_the_end(void **state)
{
	struct targets t;
	struct err e;

	open_targets(&t, 0, false);
	disks_set(2, true, 0);
	assert_int_equal(targets_take(&t, NS_PER_S, &e), -EAGAIN);
	until(disks_asked(2) == 1);
	targets_fini(&t);
	disks_set(2, false, 0);
	until(disks_given(2) == 1);
	until(disks_are_locked() == 0);
}

/* Parity makes up for one that hangs, after a while, or fails, at once; and it is taken when it can be. */
static void test_parity(void **state)
{
	struct targets t;
	struct err e;

	open_targets(&t, 1, false);
	disks_set(0, true, 0);
	assert_int_equal(targets_take(&t, NS_PER_S, &e), -EAGAIN);
	until(disks_are_locked() == 2);
	assert_int_equal(targets_take(&t, NS_PER_S + TARGETS_SLOW_NS - 1, &e), -EAGAIN);
	until(targets_take(&t, NS_PER_S + TARGETS_SLOW_NS, &e) == 0);
	assert_non_null(strstr(disks.log, "0 is not locked against another box (it does not answer)"));
	disks_set(0, false, 0);
	until(disks_are_locked() == 3);
	until((targets_step(&t, 4 * NS_PER_S), strstr(disks.log, "0 is locked, too")));
	targets_give(&t);
	until(disks_are_locked() == 0);

	disks_set(2, false, -EIO);
	until(targets_take(&t, 20 * NS_PER_S, &e) == 0);
	assert_non_null(strstr(disks.log, "2 is not locked against another box (Input/output error)"));
	disks_set(2, false, 0);
	until((targets_step(&t, 20 * NS_PER_S + TARGETS_RETRY_NS), strstr(disks.log, "2 is locked, too")));
	assert_int_equal(disks_are_locked(), 3);
	targets_fini(&t);
	until(disks_are_locked() == 0);
}

/* More than parity makes up for; and another box's is never done without. */
static void test_refused(void **state)
{
	struct targets t;
	struct err e;

	open_targets(&t, 1, true);
	disks_set(0, false, -EOPNOTSUPP);
	disks_set(2, false, -ENOENT);
	assert_int_equal(targets_take(&t, NS_PER_S, &e), -ENOLCK);
	assert_non_null(strstr(e.text, "2 of 3 checkpoint_targets cannot be locked"));
	assert_non_null(strstr(e.text, ": 0 (Operation not supported)"));
	assert_int_equal(disks_are_locked(), 1);
	disks_set(2, false, -EBUSY);
	assert_int_equal(targets_take(&t, 2 * NS_PER_S, &e), -EBUSY);
	disks_set(0, false, 0);
	assert_int_equal(targets_take(&t, 3 * NS_PER_S, &e), -EBUSY);
	disks_set(2, false, 0);
	assert_int_equal(targets_take(&t, 4 * NS_PER_S, &e), 0);
	assert_string_equal(disks.log, "");
	targets_fini(&t);
	assert_int_equal(disks_are_locked(), 0);
}

static void expect_report(
	const struct targets *t, unsigned locked, unsigned free_ones, unsigned taken, unsigned failed, unsigned silent)
{
	struct targets_report r;

	targets_describe(t, &r);
	assert_int_equal(r.count, 3);
	assert_int_equal(r.locked, locked);
	assert_int_equal(r.free, free_ones);
	assert_int_equal(r.taken, taken);
	assert_int_equal(r.failed, failed);
	assert_int_equal(r.silent, silent);
	assert_int_equal(r.why[0] != '\0', failed + silent > 0);
}

/* One who asks hears whether they could be locked, while nobody wants them, and nothing stays locked by that. */
static void test_looks(void **state)
{
	struct targets_report r = {.silent = 9};
	struct targets t;
	struct err e;

	open_targets(&t, 0, false);
	expect_report(&t, 0, 0, 0, 0, 3);
	disks_set(0, false, -EBUSY);
	disks_set(1, true, 0);
	until((targets_look(&t, NS_PER_S), targets_describe(&t, &r), r.silent == 1));
	expect_report(&t, 0, 1, 1, 0, 1);
	assert_string_equal(r.why, "1: it does not answer");
	disks_set(1, false, -EIO);
	until((targets_look(&t, NS_PER_S), targets_describe(&t, &r), r.silent == 0));
	expect_report(&t, 0, 1, 1, 1, 0);
	assert_string_equal(r.why, "1: Input/output error");
	assert_int_equal(disks_asked(2), 1); /* it is true for a while */
	disks_set(0, false, 0);
	disks_set(1, false, 0);
	until((targets_look(&t, NS_PER_S + TARGETS_LOOK_NS), targets_describe(&t, &r), r.free == 3));
	assert_int_equal(disks_are_locked(), 0);
	until(targets_take(&t, 10 * NS_PER_S, &e) == 0);
	targets_look(&t, 20 * NS_PER_S);
	expect_report(&t, 3, 0, 0, 0, 0);
	targets_fini(&t);
	until(disks_are_locked() == 0);
}

TEST_PROGRAM(test_targets)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_takes_and_gives, begin, end),
		cmocka_unit_test_setup_teardown(test_real_locks, begin, end),
		cmocka_unit_test_setup_teardown(test_hangs, begin, end),
		cmocka_unit_test_setup_teardown(test_hangs_at_the_end, begin, end),
		cmocka_unit_test_setup_teardown(test_parity, begin, end),
		cmocka_unit_test_setup_teardown(test_refused, begin, end),
		cmocka_unit_test_setup_teardown(test_looks, begin, end),
	};

	return cmocka_run_group_tests_name("targets", tests, NULL, NULL);
}
