/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads at one handle, the progress thread, and fork. */
#include "tests/suite/exchange_cases.h"
#include "tests/suite/exchange_work.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- eight threads ---- */

enum { SHARE_THREADS = 8, SHARE_ELEMENTS = 3000, SHARE_ROUNDS = STAGE_TSAN ? 15 : 40 };

/* One thread of one rank: it owns a key, and says what went wrong in its own words. */
struct share {
	phub_t *phub;
	int key;
	unsigned rank, world;
	atomic_bool *over; /* the others' rounds are done */
	char wrong[256];
};

static int share_round(struct share *s, unsigned round, float *data)
{
	float value = (float)(round * 10 + (unsigned)s->key);
	int rc;

	for (unsigned i = 0; i < SHARE_ELEMENTS; i++)
		data[i] = value + (float)s->rank;
	rc = phub_push_pull(s->phub, s->key, data, data, s->key);
	if (rc < 0)
		return rc;
	if (round % 3 == 0) {
		while ((rc = phub_test(s->phub, s->key)) == 0)
			;
		rc = rc > 0 ? 0 : rc;
	} else {
		rc = phub_wait(s->phub, s->key, STAGE_TIMEOUT_MS);
	}
	for (unsigned i = 0; i < SHARE_ELEMENTS && rc == 0; i++)
		if (data[i] != value * (float)s->world + (float)(s->world * (s->world - 1) / 2))
			return -EILSEQ;
	return rc;
}

static void *share_run(void *arg)
{
	struct share *s = arg;
	float data[SHARE_ELEMENTS];

	for (unsigned round = 1; round <= SHARE_ROUNDS; round++) {
		int rc = share_round(s, round, data);

		if (rc == 0)
			continue;
		snprintf(s->wrong, sizeof(s->wrong), "key %d round %u: %d: %.200s", s->key, round, rc, phub_error());
		break;
	}
	return NULL;
}

/* Calls that change nothing, in between. */
static void *share_look(void *arg)
{
	struct share *s = arg;

	/* Acquire: with the release of the member that ends it. */
	while (!atomic_load_explicit(s->over, memory_order_acquire)) {
		struct phub_stats stats = {.size = sizeof(stats)};

		if (phub_stats(s->phub, &stats) < 0 || phub_test(s->phub, PHUB_ALL) < 0 ||
			phub_transport(s->phub)[0] == '\0' || phub_wait(s->phub, PHUB_ALL, 0) == -EINVAL ||
			phub_key(s->phub, "late", PHUB_F32, 1, 0, 0) != -EBUSY)
			snprintf(s->wrong, sizeof(s->wrong), "looking: %.200s", phub_error());
		usleep(500);
	}
	return NULL;
}

static void share_script(struct member *me)
{
	struct share shares[SHARE_THREADS + 1];
	pthread_t threads[SHARE_THREADS + 1];
	atomic_bool over = false;
	struct phub_options o;

	member_options(me, &o);
	EXPECT_RC(me, member_connect(me, &o), 0);
	for (int i = 0; i < SHARE_THREADS; i++) {
		char name[16];

		snprintf(name, sizeof(name), "key%d", i);
		EXPECT_RC(me, phub_key(me->phub, name, PHUB_F32, SHARE_ELEMENTS, 0, PHUB_KEY_ALONE), i);
	}
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	for (int i = 0; i <= SHARE_THREADS; i++) {
		shares[i] =
			(struct share){.phub = me->phub, .key = i, .rank = me->rank, .world = me->world, .over = &over};
		EXPECT_RC(me, pthread_create(&threads[i], NULL, i < SHARE_THREADS ? share_run : share_look, &shares[i]),
			0);
	}
	for (int i = 0; i <= SHARE_THREADS; i++) {
		if (i == SHARE_THREADS)
			atomic_store_explicit(&over, true, memory_order_release); /* with share_look() */
		pthread_join(threads[i], NULL);
		if (shares[i].wrong[0])
			member_fail(me, __FILE__, __LINE__, "%s", shares[i].wrong);
	}
	EXPECT_RC(me, phub_barrier(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	member_leave(me);
}

static void eight_threads_at_one_handle(void **state)
{
	crew_run(*state, 2, share_script, NULL);
}

/* One thread waits for what another begins; a third waits for all. */
struct relay {
	struct member *me;
	int rc;
};

static void *relay_wait(void *arg)
{
	struct relay *r = arg;

	r->rc = phub_barrier(r->me->phub, STAGE_TIMEOUT_MS);
	return NULL;
}

static void relay_script(struct member *me)
{
	float data[1000] = {0};
	struct relay relay = {.me = me};
	struct phub_options o;
	pthread_t thread;

	member_options(me, &o);
	EXPECT_RC(me, member_connect(me, &o), 0);
	EXPECT_RC(me, phub_key(me->phub, "w", PHUB_F32, 1000, 0, 0), 0);
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	for (unsigned i = 0; i < 20; i++) {
		EXPECT_RC(me, pthread_create(&thread, NULL, relay_wait, &relay), 0);
		EXPECT_RC(me, phub_push_pull(me->phub, 0, data, data, 0), 0);
		EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), 0);
		pthread_join(thread, NULL);
		EXPECT(me, relay.rc == 0);
	}
	member_leave(me);
}

static void rounds_while_another_thread_is_at_a_barrier(void **state)
{
	crew_run(*state, 3, relay_script, NULL);
}

/* ---- the progress thread ---- */

enum { IDLE_LOST_MS = 500, IDLE_MS = 1200 };

/* Looks at memory that the library writes, which the thread sanitizer rightly minds. Calls nothing of the library's. */
static bool idle_until(struct member *me, const volatile float *value, float wanted)
{
	for (unsigned ms = 0; !STAGE_TSAN && *value != wanted; ms++) {
		if (ms == STAGE_TIMEOUT_MS)
			return false;
		member_sleep(me, 1);
	}
	return true;
}

static void idle_script(struct member *me)
{
	float data[1000] = {1};
	struct phub_options o;

	member_options(me, &o);
	EXPECT_RC(me, member_connect(me, &o), 0);
	EXPECT_RC(me, phub_key(me->phub, "w", PHUB_F32, 1000, 0, 0), 0);
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	member_sleep(me, IDLE_MS);
	/* It also sends and receives what nobody waits for yet. */
	EXPECT_RC(me, phub_push_pull(me->phub, 0, data, data, 0), 0);
	EXPECT(me, idle_until(me, data, 2));
	EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), 0);
	EXPECT(me, data[0] == 2);
	member_leave(me);
}

static void idle_sessions_stay_alive(void **state)
{
	static const char *const impatient[] = {"heartbeat_ms=50", "warn_ms=200", "lost_ms=500", NULL};
	const struct stage *shared = *state;
	struct stage stage;

	stage_open(&stage, shared->scene, impatient);
	assert_int_equal(stage.config.lost_ms, IDLE_LOST_MS);
	crew_run(&stage, 2, idle_script, NULL);
	stage_close(&stage);
}

/* ---- the box goes down ---- */

static void down_script(struct member *me)
{
	static float data[2][1000];
	const uint64_t one = 1;
	struct phub_options o;

	member_options(me, &o);
	EXPECT_RC(me, member_connect(me, &o), 0);
	EXPECT_RC(me, phub_key(me->phub, "w", PHUB_F32, 1000, 0, 0), 0);
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	if (me->rank == 0)
		EXPECT_RC(me, phub_push_pull(me->phub, 0, data[0], data[0], 0), 0);
	member_meet(me);
	if (me->rank == 1)
		EXPECT(me, write(me->crew->stage->stop_fd, &one, sizeof(one)) == sizeof(one));
	EXPECT_RC(me, phub_barrier(me->phub, PHUB_TIMEOUT_DEFAULT), -ESHUTDOWN);
	EXPECT_RC(me, phub_wait(me->phub, 0, 0), -ESHUTDOWN);
	memset(data[me->rank], 1, sizeof(data[me->rank]));
}

static void a_box_that_goes_down_says_so(void **state)
{
	const struct stage *shared = *state;
	struct stage stage;

	stage_open(&stage, shared->scene, NULL);
	crew_run(&stage, 2, down_script, NULL);
	stage_close(&stage);
}

/* ---- fork ---- */

/* In the child: how many of its calls did something else than -EPERM. */
static int fork_child(phub_t *p, bool close)
{
	struct phub_stats stats = {.size = sizeof(stats)};
	float data[1000] = {0};
	int bad = 0;

	bad += phub_push_pull(p, 0, data, data, 0) != -EPERM;
	bad += phub_wait(p, PHUB_ALL, 1000) != -EPERM;
	bad += phub_test(p, 0) != -EPERM;
	bad += phub_barrier(p, 1000) != -EPERM;
	bad += phub_stats(p, &stats) != -EPERM;
	bad += phub_leave(p, 1000) != -EPERM;
	bad += !strstr(phub_error(), "forked");
	if (close)
		phub_close(p);
	return bad;
}

static void fork_script(struct member *me)
{
	static float bodies[2][50000];
	float *body = bodies[me->rank];
	struct phub_options o;
	int status = -1;

	member_options(me, &o);
	EXPECT_RC(me, member_connect(me, &o), 0);
	EXPECT_RC(me, phub_key(me->phub, "w", PHUB_F32, 50000, 0, 0), 0);
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	for (unsigned round = 1; round <= 6; round++) {
		pid_t child = -1;

		for (unsigned i = 0; i < 50000; i++)
			body[i] = (float)round;
		EXPECT_RC(me, phub_push_pull(me->phub, 0, body, body, 0), 0);
		if (round % 2 == me->rank) {
			child = fork();
			if (child == 0)
				_exit(fork_child(me->phub, round > 2));
			EXPECT(me, child > 0);
		}
		EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), 0);
		for (unsigned i = 0; i < 50000; i++)
			EXPECT(me, body[i] == 2 * (float)round);
		if (child > 0)
			EXPECT(me,
				waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	member_leave(me);
}

static void a_forked_child_holds_nothing(void **state)
{
	if (STAGE_TSAN) {
		skip_because("the thread sanitizer does not follow a fork of a process with threads");
	}
	crew_run(*state, 2, fork_script, NULL);
}

const struct CMUnitTest exchange_thread_cases[] = {
	cmocka_unit_test(eight_threads_at_one_handle),
	cmocka_unit_test(rounds_while_another_thread_is_at_a_barrier),
	cmocka_unit_test(idle_sessions_stay_alive),
	cmocka_unit_test(a_box_that_goes_down_says_so),
	cmocka_unit_test(a_forked_child_holds_nothing),
};
const size_t exchange_thread_count = sizeof(exchange_thread_cases) / sizeof(exchange_thread_cases[0]);
