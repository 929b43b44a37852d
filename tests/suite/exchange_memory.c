/* SPDX-License-Identifier: Apache-2.0 */
/* Where gradients and results lie, what it costs in copies, and the halves of a round. */
#include "tests/suite/exchange_cases.h"
#include "tests/suite/exchange_work.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/handle.h"
#include "phub/base/stats.h"

enum { MEMORY_ELEMENTS = 20000, MEMORY_BYTES = 4 * MEMORY_ELEMENTS };

static struct phub_stats memory_stats(struct member *me)
{
	struct phub_stats stats = {.size = sizeof(stats)};

	EXPECT_RC(me, phub_stats(me->phub, &stats), 0);
	return stats;
}

/* ---- copies ---- */

/* One round of one key; how many bytes were copied for one of gradient. */
static unsigned memory_copies(struct member *me, struct worker *worker, unsigned k, uint64_t round)
{
	struct worker_key *key = &worker->keys[k];
	uint64_t before = memory_stats(me).copied_bytes, bytes = work_bytes(worker->work, k), copied;

	work_fill(worker->work, me->rank, round, k, key->src);
	EXPECT_RC(me, phub_push_pull(me->phub, (int)k, key->src, key->dst, 0), 0);
	EXPECT_RC(me, phub_wait(me->phub, (int)k, PHUB_TIMEOUT_DEFAULT), 0);
	EXPECT(me, ledger_check(worker->ledger, k, round, key->got) == -1);
	copied = memory_stats(me).copied_bytes - before;
	EXPECT(me, copied % bytes == 0);
	return (unsigned)(copied / bytes);
}

static void copies_script(struct member *me)
{
	const struct scene *scene = me->crew->stage->scene;
	unsigned least = scene->encrypt ? 2 : 0; /* sealed and opened, wherever it lies */
	struct phub_stats stats;
	struct worker worker;

	worker_open(&worker, me, me->arg);
	for (uint64_t round = 1; round <= worker.work->rounds; round++) {
		for (unsigned k = 0; k < 3; k++) {
			bool in_place = !scene->mapped && (worker.keys[k].registered || !scene->one_sided);

			EXPECT(me, memory_copies(me, &worker, k, round) == (in_place || scene->encrypt ? least : 2));
		}
		EXPECT(me, memory_copies(me, &worker, 3, round) == least);
	}
	stats = memory_stats(me);
	EXPECT(me, stats.pushed_bytes == worker.work->rounds * 4 * MEMORY_BYTES);
	EXPECT(me, stats.pulled_bytes == stats.pushed_bytes);
	EXPECT(me, stats.rounds == worker.work->rounds * 4 && stats.pushes == stats.results && stats.resent == 0);
	EXPECT(me, stats.pushes >= stats.pushed_bytes / 32768);
	worker_close(&worker);
}

static void copies_are_counted(void **state)
{
	const struct work w = {.world = 2,
		.rounds = 3,
		.seed = 40,
		.placing = PLACING_MIXED,
		.key_count = 4,
		.keys = {{MEMORY_ELEMENTS, DTYPE_F32, 0, false}, {MEMORY_ELEMENTS, DTYPE_F32, 0, false},
			{MEMORY_ELEMENTS, DTYPE_F32, 0, false}, {MEMORY_ELEMENTS, DTYPE_F32, 0, false}}};
	struct ledger ledger;

	ledger_open(&ledger, &w);
	crew_run(*state, w.world, copies_script, &ledger);
	ledger_close(&ledger);
}

/* ---- phub_alloc() ---- */

static void memory_join(struct member *me)
{
	struct phub_options o;

	member_options(me, &o);
	EXPECT_RC(me, member_connect(me, &o), 0);
	EXPECT_RC(me, phub_key(me->phub, "a", PHUB_F32, MEMORY_ELEMENTS, 0, 0), 0);
	EXPECT_RC(me, phub_key(me->phub, "b", PHUB_F32, 100, 0, 0), 1);
	EXPECT_RC(me, phub_key(me->phub, "c", PHUB_F32, 100, 0, 0), 2);
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
}

static void memory_fill(float *data, unsigned count, float value)
{
	for (unsigned i = 0; i < count; i++)
		data[i] = value;
}

static bool memory_is(const float *data, unsigned count, float value)
{
	for (unsigned i = 0; i < count; i++)
		if (data[i] != value)
			return false;
	return true;
}

static void alloc_script(struct member *me)
{
	const void *result, *result_again;
	void *push, *push_again;
	float other[100];

	memory_join(me);
	EXPECT_RC(me, phub_alloc(me->phub, 0, &push, &result), 0);
	for (unsigned round = 1; round <= 3; round++) {
		memory_fill(push, MEMORY_ELEMENTS, (float)round);
		EXPECT_RC(me, phub_push_pull(me->phub, 0, push, NULL, 0), 0);
		EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), 0);
		EXPECT(me, memory_is(result, MEMORY_ELEMENTS, (float)(2 * round)));
		/* The next gradient is written while this result is still read, and other keys go on. */
		memory_fill(push, MEMORY_ELEMENTS, -1);
		memory_fill(other, 100, 1);
		EXPECT_RC(me, phub_push_pull(me->phub, 1, other, other, 0), 0);
		EXPECT_RC(me, phub_push_pull(me->phub, 2, other, NULL, 0), 0);
		EXPECT_RC(me, phub_wait(me->phub, PHUB_ALL, PHUB_TIMEOUT_DEFAULT), 0);
		EXPECT(me, memory_is(other, 100, 2));
		EXPECT(me, memory_is(result, MEMORY_ELEMENTS, (float)(2 * round)));
	}
	EXPECT_RC(me, phub_alloc(me->phub, 0, &push_again, &result_again), 0);
	EXPECT(me, push == push_again && result == result_again);
	member_leave(me);
}

static void allocated_results_stay_until_the_next_push(void **state)
{
	crew_run(*state, 2, alloc_script, NULL);
}

/* ---- rounds in flight ---- */

static void busy_script(struct member *me)
{
	float *data = calloc(MEMORY_ELEMENTS, sizeof(float));
	const void *result;
	void *push;
	bool mapped = me->crew->stage->scene->mapped;

	memory_join(me);
	if (!mapped)
		EXPECT_RC(me, phub_mem_register(me->phub, data, MEMORY_BYTES), 0);
	if (me->rank == 0) {
		memory_fill(data, MEMORY_ELEMENTS, 3);
		EXPECT_RC(me, phub_push_pull(me->phub, 0, data, data, 70000), 0);
		EXPECT_RC(me, phub_push_pull(me->phub, 0, data, data, 0), -EBUSY);
		EXPECT_TEXT(me, "'a'");
		EXPECT_RC(me, phub_push(me->phub, 0, data, 0), -EBUSY);
		EXPECT_RC(me, phub_broadcast(me->phub, 0, data, 0), -EBUSY);
		EXPECT_RC(me, phub_alloc(me->phub, 0, &push, &result), -EBUSY);
		EXPECT_RC(me, phub_rekey(me->phub), -EBUSY);
		EXPECT_RC(me, phub_test(me->phub, 0), 0);
		EXPECT_RC(me, phub_test(me->phub, 1), 1);
		EXPECT_RC(me, phub_test(me->phub, PHUB_ALL), 0);
		EXPECT_RC(me, phub_wait(me->phub, 1, 0), 0);
		EXPECT_RC(me, phub_wait(me->phub, 0, 0), -ETIMEDOUT);
		if (!mapped)
			EXPECT_RC(me, phub_mem_unregister(me->phub, data), -EBUSY);
	}
	member_meet(me);
	if (me->rank == 1) {
		memory_fill(data, MEMORY_ELEMENTS, 4);
		EXPECT_RC(me, phub_push_pull(me->phub, 0, data, data, -5), 0);
	}
	EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), 0);
	EXPECT(me, memory_is(data, MEMORY_ELEMENTS, 7));
	if (!mapped)
		EXPECT_RC(me, phub_mem_unregister(me->phub, data), 0);
	free(data);
	member_leave(me);
}

static void one_round_of_a_key_at_a_time(void **state)
{
	crew_run(*state, 2, busy_script, NULL);
}

static void halves_script(struct member *me)
{
	static const int keys[] = {2, 0, 1};
	float *data = calloc(MEMORY_ELEMENTS, sizeof(float)), *pushed[3];

	for (unsigned i = 0; i < 3; i++)
		pushed[i] = calloc(MEMORY_ELEMENTS, sizeof(float));
	memory_join(me);
	EXPECT_RC(me, phub_pull(me->phub, 0, data, 0), -ENODATA);
	EXPECT_TEXT(me, "'a'");
	for (unsigned round = 1; round <= 3; round++) {
		for (unsigned i = 0; i < 3; i++) {
			memory_fill(pushed[i], MEMORY_ELEMENTS, (float)(round * 10 + (unsigned)keys[i]));
			EXPECT_RC(me, phub_push(me->phub, keys[i], pushed[i], (int)i), 0);
		}
		while (phub_test(me->phub, PHUB_ALL) == 0)
			;
		EXPECT_RC(me, phub_test(me->phub, PHUB_ALL), 1);
		for (unsigned i = 0; i < 6; i++) { /* a result may be pulled more than once */
			int key = (int)i % 3;

			EXPECT_RC(me, phub_pull(me->phub, key, data, 0), 0);
			EXPECT(me, memory_is(data, key ? 100 : MEMORY_ELEMENTS,
					   (float)(3 * (round * 10 + (unsigned)key))));
		}
		/* Without asking first. */
		memory_fill(pushed[0], 100, 2);
		EXPECT_RC(me, phub_push(me->phub, 1, pushed[0], 0), 0);
		EXPECT_RC(me, phub_push(me->phub, 2, pushed[0], 0), 0);
		EXPECT_RC(me, phub_pull(me->phub, 2, data, PHUB_TIMEOUT_DEFAULT), 0);
		EXPECT(me, memory_is(data, 100, 6));
		EXPECT_RC(me, phub_pull(me->phub, 1, NULL, 0), -EINVAL);
		EXPECT_RC(me, phub_wait(me->phub, PHUB_ALL, PHUB_TIMEOUT_DEFAULT), 0);
	}
	free(data);
	member_leave(me);
	for (unsigned i = 0; i < 3; i++)
		free(pushed[i]);
}

static void push_and_pull_apart(void **state)
{
	crew_run(*state, 3, halves_script, NULL);
}

/*
 * Over shared memory a worker has a few slots for what it copies, and they are free again when the round's results are
 * here. Two that push from either end of the table hold all their slots with chunks that the other one sends last.
 */
static void opposite_script(struct member *me)
{
	struct worker worker;

	worker_open(&worker, me, me->arg);
	for (uint64_t round = 1; round <= worker.work->rounds; round++) {
		for (unsigned i = 0; i < worker.work->key_count; i++) {
			unsigned k = me->rank ? worker.work->key_count - 1 - i : i;

			work_fill(worker.work, me->rank, round, k, worker.keys[k].src);
			EXPECT_RC(me, phub_push_pull(me->phub, (int)k, worker.keys[k].src, worker.keys[k].dst, 0), 0);
		}
		EXPECT_RC(me, phub_wait(me->phub, PHUB_ALL, PHUB_TIMEOUT_DEFAULT), 0);
		for (unsigned k = 0; k < worker.work->key_count; k++)
			EXPECT(me, ledger_check(worker.ledger, k, round, worker.keys[k].got) == -1);
	}
	worker_close(&worker);
}

static void opposite_orders_need_no_more_slots_than_there_are(void **state)
{
	struct work w = {.world = 2, .rounds = 3, .seed = 41, .key_count = 8, .chunk_bytes = 4096};
	struct ledger ledger;

	for (unsigned k = 0; k < w.key_count; k++)
		w.keys[k] = (struct shape){80000 + k, DTYPE_F32, 0, true};
	for (w.placing = PLACING_APART; w.placing <= PLACING_SAME; w.placing++) {
		ledger_open(&ledger, &w);
		crew_run(*state, w.world, opposite_script, &ledger);
		ledger_close(&ledger);
	}
}

/* Leaving in the middle: what is not sent yet is read no more. */
static void leaving_script(struct member *me)
{
	enum { ELEMENTS = 1 << 20 };
	float *data = calloc(ELEMENTS, sizeof(float));
	struct phub_options o;

	member_options(me, &o);
	EXPECT_RC(me, member_connect(me, &o), 0);
	EXPECT_RC(me, phub_key(me->phub, "large", PHUB_F32, ELEMENTS, 0, 0), 0);
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	if (me->rank == 0)
		EXPECT_RC(me, phub_push_pull(me->phub, 0, data, data, 0), 0);
	member_meet(me);
	EXPECT_RC(me, phub_leave(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	free(data); /* the address sanitizer sees who reads it now */
	member_meet(me);
	member_sleep(me, 5);
	phub_close(me->phub);
	me->phub = NULL;
}

static void nothing_is_read_after_leaving(void **state)
{
	crew_run(*state, 2, leaving_script, NULL);
}

/* ---- the end, in the middle of a round ---- */

enum { END_ELEMENTS = 1 << 18, END_MARK = 77 };

struct ending {
	enum { END_LEAVE, END_DROP, END_NAN } how; /* what rank 0 does */
	unsigned delay_ms;
};

/* Whether the session is over for this rank; the round may have been complete before it was. */
static bool ending_round(struct member *me, float *watched, float *freed)
{
	const struct ending *ending = me->arg;
	int rc;

	memory_fill(watched, END_ELEMENTS, 1);
	memory_fill(freed, END_ELEMENTS, 2);
	if (me->rank == 0 && ending->how == END_NAN)
		watched[END_ELEMENTS - 1] = NAN;
	rc = phub_push_pull(me->phub, 0, watched, watched, 0);
	if (rc == 0)
		(void)phub_push_pull(me->phub, 1, freed, freed, 0);
	if (me->rank == 0 && ending->how != END_NAN) {
		member_sleep(me, ending->delay_ms);
		if (ending->how == END_DROP) {
			member_drop(me);
		} else {
			rc = phub_leave(me->phub, PHUB_TIMEOUT_DEFAULT);
			EXPECT(me, rc == 0 || rc == -EOWNERDEAD);
		}
		return true;
	}
	/* Also where a push was refused: it is the wait that says that nothing is touched any more. */
	rc = phub_wait(me->phub, PHUB_ALL, PHUB_TIMEOUT_DEFAULT);
	EXPECT(me, rc == 0 || rc == (ending->how == END_NAN ? -EDOM : -EOWNERDEAD));
	return rc < 0;
}

/* What a processor of this program does to freed memory the address sanitizer sees; what a device does, the mark shows.
 */
static void ending_script(struct member *me)
{
	float *watched = calloc(END_ELEMENTS, sizeof(float)), *freed = calloc(END_ELEMENTS, sizeof(float));
	struct phub_options o;

	member_options(me, &o);
	o.nan = PHUB_NAN_FAIL;
	EXPECT_RC(me, member_connect(me, &o), 0);
	EXPECT_RC(me, phub_key(me->phub, "watched", PHUB_F32, END_ELEMENTS, 0, 0), 0);
	EXPECT_RC(me, phub_key(me->phub, "freed", PHUB_F32, END_ELEMENTS, 0, 0), 1);
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	if (!me->crew->stage->scene->mapped)
		EXPECT_RC(me, phub_mem_register(me->phub, watched, END_ELEMENTS * sizeof(float)), 0);
	EXPECT_RC(me, phub_push_pull(me->phub, 0, watched, watched, 0), 0);
	EXPECT_RC(me, phub_push_pull(me->phub, 1, freed, freed, 0), 0);
	EXPECT_RC(me, phub_wait(me->phub, PHUB_ALL, PHUB_TIMEOUT_DEFAULT), 0);
	member_meet(me);
	if (ending_round(me, watched, freed)) {
		memory_fill(watched, END_ELEMENTS, END_MARK);
		free(freed);
		freed = NULL;
		member_sleep(me, 20);
		EXPECT(me, memory_is(watched, END_ELEMENTS, END_MARK));
	}
	member_drop(me);
	free(watched);
	free(freed);
}

static void nothing_is_touched_after_the_end(void **state)
{
	struct ending ending;

	for (ending.how = END_LEAVE; ending.how <= END_NAN; ending.how++)
		for (ending.delay_ms = 0; ending.delay_ms < 3; ending.delay_ms += 2)
			crew_run(*state, 3, ending_script, &ending);
}

/* ---- keys that share a chunk ---- */

static void shared_script(struct member *me)
{
	float b[100], c[100];

	memory_join(me);
	memory_fill(b, 100, 1);
	memory_fill(c, 100, 2);
	if (me->rank == 0) {
		EXPECT_RC(me, phub_push_pull(me->phub, 1, b, b, 0), 0);
		EXPECT_RC(me, phub_wait(me->phub, 1, 20), -ETIMEDOUT);
		EXPECT_TEXT(me, "'c', which shares its chunk");
		EXPECT_RC(me, phub_broadcast(me->phub, 2, c, 0), -EINVAL);
		EXPECT_TEXT(me, "PHUB_KEY_ALONE");
		EXPECT_RC(me, phub_push_pull(me->phub, 2, c, c, 0), 0);
	} else {
		EXPECT_RC(me, phub_push_pull(me->phub, 2, c, c, 0), 0);
		EXPECT_RC(me, phub_push_pull(me->phub, 1, b, b, 0), 0);
	}
	EXPECT_RC(me, phub_wait(me->phub, PHUB_ALL, PHUB_TIMEOUT_DEFAULT), 0);
	EXPECT(me, memory_is(b, 100, 2) && memory_is(c, 100, 4));
	member_leave(me);
}

static void keys_that_share_a_chunk_go_together(void **state)
{
	crew_run(*state, 2, shared_script, NULL);
}

/* ---- memory that overlaps itself ---- */

enum { OVERLAP_ELEMENTS = 1500000, OVERLAP_SHIFT = 1000, OVERLAP_ROUNDS = 4 };

static float overlap_value(unsigned rank, unsigned round, unsigned i)
{
	return (float)((rank + 1) * (i % 1013 + round));
}

/* Down, then up again. */
static void overlap_script(struct member *me)
{
	float *data = calloc(OVERLAP_ELEMENTS + OVERLAP_SHIFT, sizeof(*data));
	struct phub_options o;

	EXPECT(me, data != NULL);
	member_options(me, &o);
	EXPECT_RC(me, member_connect(me, &o), 0);
	EXPECT_RC(me, phub_key(me->phub, "key", PHUB_F32, OVERLAP_ELEMENTS, 0, 0), 0);
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	for (unsigned round = 1; round <= OVERLAP_ROUNDS; round++) {
		float *src = data + (round & 1 ? 0 : OVERLAP_SHIFT), *dst = data + (round & 1 ? OVERLAP_SHIFT : 0);

		for (unsigned i = 0; i < OVERLAP_ELEMENTS; i++)
			src[i] = overlap_value(me->rank, round, i);
		EXPECT_RC(me, phub_push_pull(me->phub, 0, src, dst, 0), 0);
		EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), 0);
		for (unsigned i = 0; i < OVERLAP_ELEMENTS; i++)
			EXPECT(me, dst[i] == 3 * overlap_value(0, round, i));
	}
	member_leave(me);
	free(data);
}

/* Results may come before all of the push was read: where they would overwrite it, it is. */
static void memory_that_overlaps_itself(void **state)
{
	crew_run(*state, 2, overlap_script, NULL);
}

const struct CMUnitTest exchange_memory_cases[] = {
	cmocka_unit_test(copies_are_counted),
	cmocka_unit_test(allocated_results_stay_until_the_next_push),
	cmocka_unit_test(one_round_of_a_key_at_a_time),
	cmocka_unit_test(push_and_pull_apart),
	cmocka_unit_test(opposite_orders_need_no_more_slots_than_there_are),
	cmocka_unit_test(nothing_is_read_after_leaving),
	cmocka_unit_test(nothing_is_touched_after_the_end),
	cmocka_unit_test(keys_that_share_a_chunk_go_together),
	cmocka_unit_test(memory_that_overlaps_itself),
};
const size_t exchange_memory_count = sizeof(exchange_memory_cases) / sizeof(exchange_memory_cases[0]);

/* ---- what RDMA devices are asked to do ---- */

/* Work requests without nudges: whether those come is a matter of time. */
struct device_work {
	uint64_t messages, posts, doorbells, signalled;
};

static struct device_work device_work_of(const struct queue_counters *n)
{
	struct device_work work;
	uint64_t nudges;

	do {
		nudges = stats_read(&n->nudges);
		work = (struct device_work){.messages = stats_read(&n->messages),
			.posts = stats_read(&n->posts) - nudges,
			.doorbells = stats_read(&n->doorbells) - nudges,
			.signalled = stats_read(&n->signalled) - nudges};
	} while (nudges != stats_read(&n->nudges));
	return work;
}

static void device_work_add(struct device_work *to, const struct device_work *more, uint64_t sign)
{
	to->messages += sign * more->messages;
	to->posts += sign * more->posts;
	to->doorbells += sign * more->doorbells;
	to->signalled += sign * more->signalled;
}

static struct device_work device_work_of_box(const struct box *box)
{
	struct device_work sum = {0}, one;

	for (unsigned i = 0; i < box->core_count; i++) {
		one = device_work_of(&box->queues[i][0]->counters);
		device_work_add(&sum, &one, 1);
	}
	return sum;
}

/* How often its cores were handed something: after each such batch, a worker gets one grant at the most. */
static uint64_t device_batches_of_box(const struct box *box)
{
	uint64_t batches = 0;

	for (unsigned i = 0; i < box->core_count; i++)
		batches += stats_read(&box->cores[i]->counters.batches);
	return batches;
}

struct device_load {
	unsigned keys, elements, rounds;
	unsigned conns; /* of a worker: one for each core that has chunks */
	bool idle;      /* one chunk at a time: nothing to chain */
};

/*
 * One request a message, one message a chunk, and one in 16 is signalled; what is alone has a doorbell of its own. How
 * many share one under load is a matter of time: phub bench tells (test_rdma_operator.py).
 */
static void device_expect(struct member *me, const struct device_work *w, uint64_t chunks, uint64_t grants_max)
{
	const struct device_load *load = me->arg;

	EXPECT(me, w->messages >= chunks && w->messages <= chunks + grants_max);
	EXPECT(me, w->posts == w->messages);
	EXPECT(me, w->signalled > 0 && w->signalled * 16 <= w->messages);
	EXPECT(me, w->doorbells > 0 && (load->idle ? w->doorbells == chunks : w->doorbells <= w->messages));
}

static void device_rounds(struct member *me, void *const *push, const void *const *result)
{
	const struct device_load *load = me->arg;

	for (unsigned round = 1; round <= load->rounds; round++) {
		for (unsigned k = 0; k < load->keys; k++) {
			memory_fill(push[k], load->elements, (float)round);
			EXPECT_RC(me, phub_push_pull(me->phub, (int)k, push[k], NULL, (int)k), 0);
		}
		EXPECT_RC(me, phub_wait(me->phub, PHUB_ALL, PHUB_TIMEOUT_DEFAULT), 0);
		for (unsigned k = 0; k < load->keys; k++)
			EXPECT(me, memory_is(result[k], load->elements, (float)(me->world * round)));
		member_meet(me);
	}
}

enum { DEVICE_KEYS_MAX = 200 };

/* How many regions were registered before the caller asked for memory. */
static uint64_t device_start(struct member *me, void **push, const void **result)
{
	const struct device_load *load = me->arg;
	struct phub_options o;
	char name[32];
	uint64_t own;

	member_options(me, &o);
	EXPECT_RC(me, member_connect(me, &o), 0);
	for (unsigned k = 0; k < load->keys; k++) {
		snprintf(name, sizeof(name), "k%u", k);
		EXPECT_RC(me, phub_key(me->phub, name, PHUB_F32, load->elements, 0, 0), (int)k);
	}
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	own = memory_stats(me).registrations;
	for (unsigned k = 0; k < load->keys; k++)
		EXPECT_RC(me, phub_alloc(me->phub, (int)k, &push[k], &result[k]), 0);
	member_meet(me);
	return own;
}

static void device_script(struct member *me)
{
	const struct box *box = me->crew->stage->box;
	const struct device_load *load = me->arg;
	void *push[DEVICE_KEYS_MAX];
	const void *result[DEVICE_KEYS_MAX];
	const struct queue_counters *mine;
	struct device_work before, after, box_before, box_after;
	uint64_t pushes, batches, grants_max;

	device_start(me, push, result);
	mine = &me->phub->exchange.group.queue->counters;
	before = device_work_of(mine);
	batches = device_batches_of_box(box);
	box_before = device_work_of_box(box);
	pushes = memory_stats(me).pushes;
	member_meet(me);
	device_rounds(me, push, result);
	pushes = memory_stats(me).pushes - pushes;
	after = device_work_of(mine);
	box_after = device_work_of_box(box);
	batches = device_batches_of_box(box) - batches + box->core_count;
	device_work_add(&after, &before, -UINT64_C(1));
	device_work_add(&box_after, &box_before, -UINT64_C(1));
	EXPECT(me, pushes >= load->rounds * (uint64_t)load->conns);
	device_expect(me, &after, pushes, 0);
	/*
	 * Credit that no result can carry in time costs the box a message of its own, under load: for each worker one
	 * after a batch in which it pushed, and how large batches are is a matter of time. What a batch sends comes
	 * before it is counted: each core may be at one.
	 */
	pushes *= me->world;
	grants_max = batches * me->world < pushes ? batches * me->world : pushes;
	if (me->rank == 0)
		device_expect(me, &box_after, pushes, load->idle ? 0 : grants_max);
	member_meet(me);
	member_leave(me);
}

static void one_request_a_chunk(void **state)
{
	static const struct device_load loads[] = {
		{.keys = 1, .elements = 1024, .rounds = 40, .conns = 1, .idle = true},
		{.keys = 1, .elements = 4 << 20, .rounds = 2, .conns = 2},
		{.keys = 160, .elements = 16384, .rounds = 2, .conns = 2},
	};

	for (size_t i = 0; i < sizeof(loads) / sizeof(loads[0]); i++)
		crew_run(*state, 3, device_script, &loads[i]);
}

static void registrations_expect(struct member *me, uint64_t count)
{
	EXPECT(me, memory_stats(me).registrations == count);
}

/*
 * A connection has a region of its own, for headers and small results: one where either end has one port, and with
 * several a multiple of it. Then come the library's two, gradients and results of all keys, when the first of them is
 * lent; and one for each that the caller registers. Keys, chunks and rounds cost none.
 */
static void registrations_script(struct member *me)
{
	float *mine[2] = {calloc(MEMORY_ELEMENTS, sizeof(float)), calloc(MEMORY_ELEMENTS, sizeof(float))};
	const struct device_load *load = me->arg;
	const void *result[DEVICE_KEYS_MAX];
	void *push[DEVICE_KEYS_MAX];
	uint64_t own;

	own = device_start(me, push, result);
	EXPECT(me, own >= load->conns && own % load->conns == 0);
	registrations_expect(me, own + 2);
	device_rounds(me, push, result);
	registrations_expect(me, own + 2);
	for (unsigned i = 0; i < 2; i++) {
		EXPECT_RC(me, phub_mem_register(me->phub, mine[i], MEMORY_BYTES), 0);
		registrations_expect(me, own + 3 + i);
	}
	for (unsigned k = 0; k < load->keys && k < 2; k++)
		EXPECT_RC(me, phub_push_pull(me->phub, (int)k, mine[k], mine[k], 0), 0);
	for (unsigned k = 2; k < load->keys; k++)
		EXPECT_RC(me, phub_push_pull(me->phub, (int)k, push[k], NULL, 0), 0);
	EXPECT_RC(me, phub_wait(me->phub, PHUB_ALL, PHUB_TIMEOUT_DEFAULT), 0);
	registrations_expect(me, own + 4);
	EXPECT_RC(me, phub_mem_unregister(me->phub, mine[0]), 0);
	EXPECT_RC(me, phub_mem_register(me->phub, mine[0], MEMORY_BYTES), 0);
	device_rounds(me, push, result);
	registrations_expect(me, own + 5);
	member_leave(me);
	free(mine[0]);
	free(mine[1]);
}

static void registrations_are_constant(void **state)
{
	static const struct device_load loads[] = {
		{.keys = 1, .elements = 100, .rounds = 3, .conns = 1},
		{.keys = 1, .elements = MEMORY_ELEMENTS, .rounds = 3, .conns = 2},
		{.keys = DEVICE_KEYS_MAX, .elements = MEMORY_ELEMENTS, .rounds = 3, .conns = 2},
	};

	for (size_t i = 0; i < sizeof(loads) / sizeof(loads[0]); i++)
		crew_run(*state, 2, registrations_script, &loads[i]);
}

const struct CMUnitTest exchange_rdma_cases[] = {
	cmocka_unit_test(one_request_a_chunk),
	cmocka_unit_test(registrations_are_constant),
};
const size_t exchange_rdma_count = sizeof(exchange_rdma_cases) / sizeof(exchange_rdma_cases[0]);
