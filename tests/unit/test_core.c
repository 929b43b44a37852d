/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a core does at tick, stepped by hand: it tells of rounds that are open for long and of jobs that failed, also
 * when control had no room for it at first, and goes on with commits whose hyper-parameters have come.
 */
#include "phub/core.h"

#include "tests/unit/cmocka_shim.h"
#include "tests/unit/core_rig.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

static void finish(struct stand *s)
{
	stand_mail(s, (struct mail){.kind = MAIL_DETACH});
	stand_steps(s, 2);
	assert_true(stand_is_home(s));
	stand_close(s);
}

/* Fills control's mailbox. Returns with how many. */
static unsigned fill_control(struct stand *s)
{
	struct mail mail = {.kind = MAIL_HYPER_TAKEN};
	unsigned count = 0;

	while (mailbox_send(s->control, &mail) == 0)
		count++;
	return count;
}

static void drain_control(struct stand *s, unsigned count)
{
	struct mail mail;

	while (count-- > 0) {
		assert_int_equal(mailbox_receive(s->control, &mail), 0);
		assert_int_equal(mail.kind, MAIL_HYPER_TAKEN);
	}
	assert_int_equal(mailbox_receive(s->control, &mail), -EAGAIN);
}

static void expect_stall(struct stand *s, uint32_t chunk, uint64_t missing)
{
	struct mail mail;

	assert_int_equal(mailbox_receive(s->control, &mail), 0);
	assert_int_equal(mail.kind, MAIL_STALLED);
	assert_int_equal(mail.job, s->spec.id);
	assert_int_equal(mail.chunk, chunk);
	assert_int_equal(mail.round, 1);
	assert_int_equal(mail.value, 1);
	assert_int_equal(mail.missing[0], missing);
	assert_int_equal(mailbox_receive(s->control, &mail), -EAGAIN);
}

/* The round that was told last is over. */
static void expect_end(struct stand *s, uint32_t chunk)
{
	struct mail mail;

	assert_int_equal(mailbox_receive(s->control, &mail), 0);
	assert_int_equal(mail.kind, MAIL_STALLED);
	assert_int_equal(mail.job, s->spec.id);
	assert_int_equal(mail.chunk, chunk);
	assert_int_equal(mail.round, 1);
	assert_int_equal(mail.value, -1);
}

static void wait_ns(struct stand *s, uint64_t ns)
{
	s->now += ns;
	stand_steps(s, 2);
}

/* The oldest round that is open, and who is missing: in time, not over and over, and not any more when it is over. */
static void test_stalls_are_told(void **state)
{
	struct stand *s = stand_open(3, 0, false);
	unsigned filled;

	s->now += CORE_STALL_NS; /* idle for long: that is no stall */
	stand_push(s, 0, 2, false);
	wait_ns(s, 1000);
	stand_push(s, 1, 1, false);
	wait_ns(s, CORE_STALL_NS - 2000);
	drain_control(s, 0);
	wait_ns(s, 2000);
	expect_stall(s, 2, 1ull << 1);
	wait_ns(s, CORE_STALL_NS / 2);
	drain_control(s, 0);
	wait_ns(s, CORE_STALL_NS / 2);
	expect_stall(s, 2, 1ull << 1);
	stand_push(s, 1, 2, false);
	/* That it is over is told, and the other one when it is its turn, as soon as there is room for it. */
	filled = fill_control(s);
	wait_ns(s, CORE_STALL_NS);
	drain_control(s, filled);
	wait_ns(s, 10);
	expect_end(s, 2);
	expect_stall(s, 1, 1ull << 0);
	stand_push(s, 0, 1, false);
	wait_ns(s, 2 * CORE_STALL_NS);
	expect_end(s, 1);
	drain_control(s, 0);
	finish(s);
}

/* Of whom only some parts have come, the rest is missing. */
static void test_parts_that_stay_away_are_told(void **state)
{
	struct stand *s = stand_open(2, 0, false);

	s->script.queue.unordered = true;
	stand_part(stand_message(s, 1, 1, 1, false), 0, TRANSPORT_PART_ALIGN, false);
	stand_push(s, 0, 1, false);
	wait_ns(s, CORE_STALL_NS);
	expect_stall(s, 1, 1ull << 1);
	finish(s);
}

static void test_a_failure_is_told_later(void **state)
{
	struct stand *s = stand_open(1, 0, false);
	struct mail mail;
	unsigned filled;

	s->spec.nan = NAN_FAIL;
	s->data[3] = NAN;
	filled = fill_control(s);
	stand_push(s, 1, 0, false);
	stand_steps(s, 3);
	assert_true(s->shard->failed);
	drain_control(s, filled);
	stand_steps(s, 3);
	assert_int_equal(mailbox_receive(s->control, &mail), 0);
	assert_int_equal(mail.kind, MAIL_FAILED);
	assert_int_equal(mail.value, SHARD_FAIL_NAN);
	assert_int_equal(mail.rank, 1);
	assert_int_equal(mail.detail, 3);
	drain_control(s, 0); /* once */
	/* A job that has failed takes nothing in. */
	s->data[3] = 0;
	stand_push(s, 0, 0, false);
	assert_int_equal(s->shard->counters.dropped[DROP_FAILED], 1);
	assert_int_equal(s->shard->chunks[0].arrived, 0);
	finish(s);
}

/* Each version is kept for as long as agreed, and no longer; they come in order and of the right shape. */
static void test_versions_are_kept(void **state)
{
	enum { GROUPS = 2, RANKS = 3 };
	struct optimizer_hyper first[GROUPS] = {{.lr = 1000}, {.lr = 2000}};
	void *memory = aligned_alloc(64, (hypers_bytes(RANKS, GROUPS) + 63) / 64 * 64);
	struct hyper_table *t = calloc(1, sizeof(*t) + GROUPS * sizeof(t->groups[0]));
	const struct optimizer_hyper *got;
	struct hypers h;

	hypers_init(&h, memory, RANKS, GROUPS, first);
	t->rank = 1;
	t->group_count = GROUPS;
	for (t->version = 1; t->version < 2 * HYPER_VERSIONS; t->version++) {
		t->groups[0].lr = t->version;
		t->groups[1].lr = -(double)t->version;
		assert_int_equal(hypers_get(&h, 1, t->version, 0, &got), -EAGAIN);
		assert_int_equal(hypers_take(&h, t), 0);
		assert_int_equal(hypers_take(&h, t), -EPROTO);
		for (uint32_t v = 0; v <= t->version; v++) {
			if (v + HYPER_VERSIONS <= t->version) {
				assert_int_equal(hypers_get(&h, 1, v, 0, &got), -ESTALE);
				continue;
			}
			assert_int_equal(hypers_get(&h, 1, v, 1, &got), 0);
			assert_true(got->lr == (v ? -(double)v : 2000));
			assert_int_equal(hypers_get(&h, 1, v, 0, &got), 0);
			assert_true(got->lr == (v ? v : 1000));
		}
	}
	for (uint32_t rank = 0; rank < RANKS; rank += 2) {
		assert_int_equal(hypers_get(&h, rank, 0, 1, &got), 0);
		assert_true(got->lr == 2000);
		assert_int_equal(hypers_get(&h, rank, 1, 1, &got), -EAGAIN);
	}
	t->rank = RANKS;
	assert_int_equal(hypers_take(&h, t), -EPROTO);
	t->rank = 0;
	t->version = 1;
	t->group_count = 1;
	assert_int_equal(hypers_take(&h, t), -EPROTO);
	free(t);
	free(memory);
}

/* While its box's lease lasts, which it looks at itself: control may not have run since that was over. What came too
 * late goes on when the lease is renewed. */
static void test_commits_while_the_lease_lasts(void **state)
{
	struct stand *s = stand_open(2, 0, false);

	s->shard->leased = true;
	s->shard->lease = &s->core->lease;
	lease_extend(&s->core->lease, s->now + 3);
	for (uint32_t rank = 0; rank < STAND_WORLD; rank++)
		stand_push(s, rank, 0, false);
	assert_int_equal(stand_sent(s, 0, WIRE_RESULT, 1), 1);
	for (uint32_t rank = 0; rank < STAND_WORLD; rank++)
		stand_push(s, rank, 1, false);
	stand_steps(s, 5);
	assert_int_equal(stand_sent(s, 0, WIRE_RESULT, 1), 1);
	assert_int_equal(s->shard->chunks[1].round, 1);
	lease_extend(&s->core->lease, s->now + 100);
	stand_steps(s, 3);
	assert_int_equal(stand_sent(s, 0, WIRE_RESULT, 1), 2);
	assert_int_equal(stand_sent(s, 1, WIRE_RESULT, 1), 2);
	finish(s);
}

TEST_PROGRAM(test_core)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stalls_are_told),
		cmocka_unit_test(test_parts_that_stay_away_are_told),
		cmocka_unit_test(test_a_failure_is_told_later),
		cmocka_unit_test(test_versions_are_kept),
		cmocka_unit_test(test_commits_while_the_lease_lasts),
	};

	return cmocka_run_group_tests_name("core", tests, NULL, NULL);
}
