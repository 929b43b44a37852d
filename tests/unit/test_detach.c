/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shard's way back to control, on a core that is stepped by hand over a queue that does what the test says: results
 * that were committed go out first, nobody holds the shard for longer than agreed, no turn takes long, and what does
 * not balance is told.
 */
#include "phub/core.h"
#include "phub/link.h"
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/core_rig.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#define DRAIN_NS 1000000ull

/* ---- draining ---- */

/* Rank 0 has its results and dies; rank 1 has room for none yet. */
static struct stand *stand_drains(unsigned chunks, bool lossy, bool patient)
{
	struct stand *s = stand_open(chunks, 0, lossy);

	s->script.room[1] = 0;
	for (uint32_t chunk = 0; chunk < chunks; chunk++) {
		stand_push(s, 0, chunk, false);
		stand_push(s, 1, chunk, false);
	}
	stand_steps(s, 2);
	assert_int_equal(stand_sent(s, 0, WIRE_RESULT, 1), chunks);
	assert_int_equal(stand_sent(s, 1, WIRE_RESULT, 1), 0);
	stand_mail(s, (struct mail){.kind = MAIL_UNLINK, .rank = 0});
	stand_mail(s, (struct mail){.kind = MAIL_DETACH, .value = (int64_t)DRAIN_NS, .detail = patient});
	stand_steps(s, 2);
	assert_true(s->script.dropped[0]);
	assert_false(s->script.dropped[1]);
	assert_false(stand_is_home(s));
	return s;
}

static struct stand *stand_bereaved(unsigned chunks, bool lossy)
{
	return stand_drains(chunks, lossy, false);
}

static void test_committed_results_go_out_first(void **state)
{
	struct stand *s = stand_bereaved(3, false);

	/* They come in two parts; only then is it told that there are no more, and once. */
	s->script.room[1] = 2;
	stand_event(s, 1, EVENT_WRITABLE);
	stand_steps(s, 3);
	assert_int_equal(stand_sent(s, 1, WIRE_RESULT, 1), 2);
	assert_int_equal(stand_sent(s, 1, WIRE_CREDIT, 1), 0);
	s->script.room[1] = UINT_MAX;
	stand_event(s, 1, EVENT_WRITABLE);
	stand_steps(s, 3);
	assert_int_equal(stand_sent(s, 1, WIRE_RESULT, 1), 3);
	assert_int_equal(stand_sent(s, 1, WIRE_CREDIT, 1), 1);
	assert_int_equal(s->script.sent[s->script.sent_count - 1].round, WIRE_FINISHED);
	assert_false(stand_is_home(s));
	/* It ends the connection, as a worker does then. */
	stand_event(s, 1, EVENT_CLOSED);
	stand_steps(s, 2);
	assert_true(stand_is_home(s));
	stand_close(s);
}

/* Where messages overtake each other, none may be behind the last word: it is said when all are there. */
static void test_nothing_is_behind_the_last_word(void **state)
{
	for (unsigned unordered = 0; unordered < 2; unordered++) {
		struct stand *s = stand_bereaved(3, false);

		s->script.queue.unordered = unordered;
		s->script.unacknowledged = true;
		s->script.room[1] = UINT_MAX;
		stand_event(s, 1, EVENT_WRITABLE);
		stand_steps(s, 3);
		assert_int_equal(stand_sent(s, 1, WIRE_RESULT, 1), 3);
		assert_int_equal(stand_sent(s, 1, WIRE_CREDIT, 1), !unordered);
		for (unsigned i = 0; i < 3; i++)
			s->script.events[s->script.event_count++] = s->script.kept[i];
		stand_steps(s, 3);
		assert_int_equal(stand_sent(s, 1, WIRE_CREDIT, 1), 1);
		stand_event(s, 1, EVENT_CLOSED);
		stand_steps(s, 2);
		assert_true(stand_is_home(s));
		stand_close(s);
	}
}

static void test_who_reads_nothing_holds_nobody_up(void **state)
{
	struct stand *s = stand_bereaved(3, false);

	s->now += DRAIN_NS - 10;
	core_step(s->core, s->now);
	assert_false(stand_is_home(s));
	s->now += 10;
	stand_steps(s, 2);
	assert_true(s->script.dropped[1]);
	assert_true(stand_is_home(s));
	stand_close(s);
}

/* With patience all go out, however slowly; then who reads nothing holds nobody up, nor does a box that goes down. */
static void test_who_reads_slowly_gets_all(void **state)
{
	for (int hurried = 0; hurried < 2; hurried++) {
		struct stand *s = stand_drains(4, false, true);

		for (unsigned i = 0; i < 3; i++) {
			s->now += DRAIN_NS - 100;
			s->script.room[1] = 1;
			stand_event(s, 1, EVENT_WRITABLE);
			stand_steps(s, 3);
			assert_int_equal(stand_sent(s, 1, WIRE_RESULT, 1), i + 1);
			assert_false(stand_is_home(s));
		}
		s->now += hurried ? 0 : DRAIN_NS;
		if (hurried)
			stand_mail(s, (struct mail){.kind = MAIL_DETACH});
		stand_steps(s, 2);
		assert_true(s->script.dropped[1]);
		assert_true(stand_is_home(s));
		stand_close(s);
	}
}

/* The box goes down: a second mail shortens the first, and one more finds the shard gone. */
static void test_a_drain_is_cut_short(void **state)
{
	struct stand *s = stand_bereaved(3, false);

	stand_mail(s, (struct mail){.kind = MAIL_DETACH});
	stand_mail(s, (struct mail){.kind = MAIL_DETACH, .value = (int64_t)DRAIN_NS});
	stand_steps(s, 1);
	assert_true(stand_is_home(s));
	stand_mail(s, (struct mail){.kind = MAIL_DETACH});
	stand_steps(s, 1);
	assert_false(stand_is_home(s));
	stand_close(s);
}

static void test_a_core_that_stops_drains_no_longer(void **state)
{
	struct stand *s = stand_bereaved(3, false);

	stand_mail(s, (struct mail){.kind = MAIL_STOP});
	stand_steps(s, 1);
	assert_true(stand_is_home(s));
	stand_close(s);
}

/* What comes in a drain takes part in nothing. */
static void test_a_drain_commits_nothing(void **state)
{
	struct stand *s = stand_open(2, 0, false);

	stand_push(s, 0, 0, false);
	stand_mail(s, (struct mail){.kind = MAIL_DETACH, .value = (int64_t)DRAIN_NS});
	stand_steps(s, 2);
	for (uint32_t rank = 0; rank < STAND_WORLD; rank++)
		assert_int_equal(stand_sent(s, rank, WIRE_CREDIT, 1), 1);
	stand_push(s, 1, 0, false);
	stand_steps(s, 2);
	assert_int_equal(stand_sent(s, 1, WIRE_RESULT, 1), 0);
	assert_int_equal(s->shard->counters.dropped[DROP_FAILED], 1);
	stand_event(s, 0, EVENT_CLOSED);
	stand_event(s, 1, EVENT_CLOSED);
	stand_steps(s, 2);
	assert_true(stand_is_home(s));
	stand_close(s);
}

/* Where results get lost, whoever pushes again is answered again, as long as the drain lasts. */
static void test_a_lossy_worker_may_ask_again(void **state)
{
	struct stand *s = stand_bereaved(1, true);

	s->script.room[1] = UINT_MAX;
	stand_event(s, 1, EVENT_WRITABLE);
	stand_steps(s, 2);
	assert_int_equal(stand_sent(s, 1, WIRE_RESULT, 1), 1);
	stand_push(s, 1, 0, false);
	stand_steps(s, 2);
	assert_int_equal(stand_sent(s, 1, WIRE_RESULT, 1), 2);
	assert_int_equal(stand_sent(s, 1, WIRE_CREDIT, 1), 0); /* nothing is in order there */
	stand_event(s, 1, EVENT_CLOSED);
	stand_steps(s, 2);
	assert_true(stand_is_home(s));
	stand_close(s);
}

/* ---- settling ---- */

/* All of a large job is in flight: each turn looks at a part of it. */
static void test_a_large_job_is_settled_in_many_turns(void **state)
{
	enum { CHUNKS = 20000, TURNS_MIN = 10 };
	struct stand *s = stand_open(CHUNKS, UINT_MAX, false);
	unsigned turns = 0;

	for (uint32_t chunk = 0; chunk < CHUNKS; chunk++)
		stand_push(s, 0, chunk, true);
	assert_int_equal(s->shard->links[0].held, CHUNKS);
	stand_event(s, 0, EVENT_CLOSED);
	stand_steps(s, 1);
	assert_true(s->shard->links[0].held > CHUNKS / 2);
	/* Meanwhile the job goes on: what the dead one lent lies in mapped memory, and its round is committed. */
	stand_push(s, 1, CHUNKS - 1, true);
	assert_int_equal(stand_sent(s, 1, WIRE_RESULT, 1), 1);
	stand_mail(s, (struct mail){.kind = MAIL_DETACH});
	for (; !stand_is_home(s); turns++)
		stand_steps(s, 1);
	assert_true(turns >= TURNS_MIN);
	assert_int_equal(s->script.queue.held, 0);
	stand_close(s);
}

/*
 * All have come, and the commit waits until nothing reads the last result any more. The link that reads it ends, so
 * that no completion comes: the round is committed all the same.
 */
static void test_a_parked_commit_survives_its_reader(void **state)
{
	struct stand *s = stand_open(1, 0, true);
	struct event *e;

	stand_push(s, 0, 0, false);
	stand_push(s, 1, 0, false);
	s->script.event_count = 0; /* the completions are late, as on lossy links they may be */
	for (uint32_t rank = 0; rank < STAND_WORLD; rank++) {
		stand_push(s, rank, 0, false);
		assert_int_equal(s->shard->counters.dropped[DROP_DUPLICATE], rank + 1);
	}
	for (uint32_t rank = 0; rank < STAND_WORLD; rank++)
		stand_message(s, rank, 0, 2, false);
	core_step(s->core, ++s->now);
	assert_int_equal(s->shard->parked_count, 1);
	e = &s->script.events[s->script.event_count];
	stand_event(s, 1, EVENT_SENT);
	e->cookie = &s->shard->chunks[0];
	stand_event(s, 0, EVENT_CLOSED);
	stand_steps(s, 2);
	assert_int_equal(s->shard->parked_count, 0);
	assert_int_equal(s->shard->chunks[0].round, 3);
	assert_int_equal(stand_sent(s, 1, WIRE_RESULT, 1), 2);
	stand_mail(s, (struct mail){.kind = MAIL_DETACH});
	stand_steps(s, 2);
	assert_true(stand_is_home(s));
	stand_close(s);
}

/* ---- books that do not balance ---- */

struct imbalance {
	const char *word; /* of the account */
	void (*plant)(struct shard *shard);
};

static void plant_slot_lost(struct shard *shard)
{
	shard->counters.slots_kept++;
}

static void plant_slot_released_twice(struct shard *shard)
{
	shard->counters.slots_released++;
}

static void plant_reply_lost(struct shard *shard)
{
	shard->counters.sends++;
}

static void plant_reply_completed_twice(struct shard *shard)
{
	shard->counters.sends_done++;
}

static void plant_accumulator_lost(struct shard *shard)
{
	shard->sum_free--;
}

static void plant_accumulator_too_many(struct shard *shard)
{
	shard->sum_free++;
}

static void plant_credit_lost(struct shard *shard)
{
	shard->links[1].held++;
}

/* Each kind, lost or too many: the mail that brings the shard home tells of it, and the account names it. */
static void test_what_does_not_balance_is_told(void **state)
{
	static const struct imbalance kinds[] = {
		{"1 slots kept, 0 released", plant_slot_lost},
		{"0 slots kept, 1 released", plant_slot_released_twice},
		{"3 replies sent, 2 completed", plant_reply_lost},
		{"2 replies sent, 3 completed", plant_reply_completed_twice},
		{"1 accumulators free and 0 in use of 2", plant_accumulator_lost},
		{"3 accumulators free and 0 in use of 2", plant_accumulator_too_many},
		{"rank 1 has 1 credits out", plant_credit_lost},
	};

	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		struct stand *s = stand_open(2, 0, false);
		struct err e = {0};
		struct mail mail;

		stand_push(s, 0, 1, false);
		stand_push(s, 1, 1, false);
		stand_steps(s, 2);
		assert_int_equal(core_balance(s->shard, &e), 0);
		kinds[i].plant(s->shard);
		assert_int_equal(core_balance(s->shard, &e), -EBADE);
		assert_non_null(strstr(e.text, kinds[i].word));
		stand_mail(s, (struct mail){.kind = MAIL_DETACH});
		stand_steps(s, 2);
		assert_int_equal(mailbox_receive(s->control, &mail), 0);
		assert_int_equal(mail.kind, MAIL_DETACHED);
		assert_int_equal(mail.value, -EBADE);
		stand_close(s);
	}
}

/* An accumulator that a round was still using is not lost. */
static void test_a_round_that_was_open_balances(void **state)
{
	struct stand *s = stand_open(2, 0, false);

	stand_push(s, 0, 1, false);
	assert_int_equal(s->shard->sum_free, 1);
	stand_mail(s, (struct mail){.kind = MAIL_DETACH});
	stand_steps(s, 2);
	assert_true(stand_is_home(s));
	stand_close(s);
}

TEST_PROGRAM(test_detach)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_committed_results_go_out_first),
		cmocka_unit_test(test_nothing_is_behind_the_last_word),
		cmocka_unit_test(test_who_reads_nothing_holds_nobody_up),
		cmocka_unit_test(test_who_reads_slowly_gets_all),
		cmocka_unit_test(test_a_drain_is_cut_short),
		cmocka_unit_test(test_a_core_that_stops_drains_no_longer),
		cmocka_unit_test(test_a_drain_commits_nothing),
		cmocka_unit_test(test_a_lossy_worker_may_ask_again),
		cmocka_unit_test(test_a_large_job_is_settled_in_many_turns),
		cmocka_unit_test(test_a_parked_commit_survives_its_reader),
		cmocka_unit_test(test_what_does_not_balance_is_told),
		cmocka_unit_test(test_a_round_that_was_open_balances),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
