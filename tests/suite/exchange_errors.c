/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong is said: by a code, and by names of ranks and keys, to everybody whom it concerns. */
#include "tests/suite/exchange_cases.h"
#include "tests/suite/exchange_work.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

enum { ERROR_ELEMENTS = 9000 };

/* Options, then a chance to change them, then two keys. */
static void error_connect(struct member *me, const struct phub_options *o)
{
	if (member_connect(me, o) < 0)
		member_fail(me, __FILE__, __LINE__, "connect: %s", me->refusal);
}

static void error_keys(struct member *me)
{
	EXPECT_RC(me, phub_key(me->phub, "body", PHUB_F32, ERROR_ELEMENTS, 0, 0), 0);
	EXPECT_RC(me, phub_key(me->phub, "head", PHUB_F32, 50, 0, PHUB_KEY_ALONE), 1);
}

/* Nobody goes on to end the job before all have seen it start. */
static void error_start(struct member *me, const struct phub_options *o)
{
	error_connect(me, o);
	error_keys(me);
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	member_meet(me);
}

static void error_fill(float *data, unsigned count, float value)
{
	for (unsigned i = 0; i < count; i++)
		data[i] = value;
}

static void error_weights(struct member *me, float *body, float *head)
{
	EXPECT_RC(me, phub_broadcast(me->phub, 0, body, 0), 0);
	EXPECT_RC(me, phub_broadcast(me->phub, 1, head, 0), 0);
	EXPECT_RC(me, phub_wait(me->phub, PHUB_ALL, PHUB_TIMEOUT_DEFAULT), 0);
	member_meet(me);
}

/* ---- joining ---- */

static void ranks_script(struct member *me)
{
	struct phub_options o;
	phub_t *other;

	member_options(me, &o);
	error_connect(me, &o);
	member_meet(me);
	if (me->rank == 0) {
		o.rank = 1;
		EXPECT_RC(me, member_connect_to(me, NULL, &o, &other), -EADDRINUSE);
		EXPECT(me, strstr(me->refusal, "rank 1") && strstr(me->refusal, "taken"));
		o.rank = 2;
		EXPECT_RC(me, member_connect_to(me, NULL, &o, &other), -ERANGE);
		EXPECT(me, strstr(me->refusal, "rank 2"));
		o.world = 3;
		EXPECT_RC(me, member_connect_to(me, NULL, &o, &other), -EBADMSG);
		EXPECT(me, strstr(me->refusal, "world of 2") && strstr(me->refusal, "rank 2 says 3"));
	}
	member_meet(me);
	error_keys(me);
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0); /* it did no harm */
	member_leave(me);
}

static void a_rank_is_taken_once(void **state)
{
	crew_run(*state, 2, ranks_script, NULL);
}

static void bad_keys_script(struct member *me)
{
	struct phub_options o;

	member_options(me, &o);
	error_connect(me, &o);
	EXPECT_RC(me, phub_start(me->phub, 0), -EINVAL);
	EXPECT_RC(me, phub_key(me->phub, "empty", PHUB_F32, 0, 0, 0), -EINVAL);
	EXPECT_TEXT(me, "'empty' has 0 elements");
	EXPECT_RC(me, phub_key(me->phub, "grouped", PHUB_F32, 1, 1, 0), -EINVAL);
	EXPECT_TEXT(me, "'grouped'");
	EXPECT_RC(me, phub_key(me->phub, "typed", (enum phub_dtype)3, 1, 0, 0), -EINVAL);
	EXPECT_TEXT(me, "'typed'");
	EXPECT_RC(me, phub_key(me->phub, "", PHUB_F32, 1, 0, 0), -EINVAL);
	EXPECT_RC(me, phub_key(me->phub, "flagged", PHUB_F32, 1, 0, 4), -EINVAL);
	error_keys(me);
	EXPECT_RC(me, phub_push(me->phub, 0, "", 0), -EINVAL); /* not started */
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	EXPECT_RC(me, phub_push(me->phub, 2, "", 0), -EINVAL);
	EXPECT_RC(me, phub_push(me->phub, 0, NULL, 0), -EINVAL);
	EXPECT_RC(me, phub_broadcast(me->phub, 0, NULL, 5), -EINVAL);
	EXPECT_RC(me, phub_wait(me->phub, -7, 0), -EINVAL);
	EXPECT_RC(me, phub_wait(me->phub, 0, -7), -EINVAL);
	EXPECT_RC(me, phub_wait(NULL, 0, 0), -EINVAL);
	member_leave(me);
}

static void bad_arguments_are_named(void **state)
{
	crew_run(*state, 1, bad_keys_script, NULL);
}

/* ---- tables that differ ---- */

struct difference {
	const char *text; /* in the error of every rank */
	uint64_t elements;
	const char *name;
	enum phub_dtype dtype;
	unsigned keys;
	enum phub_optimizer optimizer;
	double lr;
	bool mean;
};

static void differ_script(struct member *me)
{
	static const struct difference usual = {.elements = 50, .name = "head", .keys = 2, .lr = 0.1};
	const struct difference *d = me->rank == 1 ? me->arg : &usual;
	const char *text = ((const struct difference *)me->arg)->text;
	struct phub_hyper hyper;
	struct phub_options o;

	member_options(me, &o);
	o.optimizer = d->optimizer;
	o.reduce = d->mean ? PHUB_MEAN : PHUB_SUM;
	phub_hyper_init(d->optimizer, &hyper);
	hyper.lr = d->lr;
	o.groups = &hyper;
	o.group_count = 1;
	error_connect(me, &o);
	EXPECT_RC(me, phub_key(me->phub, "body", PHUB_F32, ERROR_ELEMENTS, 0, 0), 0);
	if (d->keys > 1)
		EXPECT_RC(me, phub_key(me->phub, d->name, d->dtype, d->elements, 0, PHUB_KEY_ALONE), 1);
	member_meet(me);
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), -EBADMSG);
	EXPECT_TEXT(me, text);
	EXPECT_TEXT(me, "rank 1");
	EXPECT_RC(me, phub_start(me->phub, 0), -EBADMSG);
}

static void tables_that_differ_are_named(void **state)
{
	static const struct difference differences[] = {
		{"'head' (1) differs", 51, "head", PHUB_F32, 2, PHUB_NONE, 0.1, false},
		{"'tail'", 50, "tail", PHUB_F32, 2, PHUB_NONE, 0.1, false},
		{"f16", 50, "head", PHUB_F16, 2, PHUB_NONE, 0.1, false},
		{"'head' (1) is missing", 50, "head", PHUB_F32, 1, PHUB_NONE, 0.1, false},
		{"optimizer differs", 50, "head", PHUB_F32, 2, PHUB_ADAM, 0.1, false},
		{"reduce differs", 50, "head", PHUB_F32, 2, PHUB_NONE, 0.1, true},
		{"lr of parameter group 0 differs", 50, "head", PHUB_F32, 2, PHUB_NONE, 0.2, false},
	};

	for (size_t i = 0; i < sizeof(differences) / sizeof(differences[0]); i++)
		crew_run(*state, 3, differ_script, &differences[i]);
}

/* ---- optimizers ---- */

static void no_weights_script(struct member *me)
{
	static float body[2][ERROR_ELEMENTS], head[2][50];
	struct phub_options o;

	member_options(me, &o);
	o.optimizer = PHUB_SGD;
	error_start(me, &o);
	EXPECT_RC(me, phub_push_pull(me->phub, 0, body[me->rank], body[me->rank], 0), -ENODATA);
	EXPECT_TEXT(me, "'body'");
	EXPECT_RC(me, phub_broadcast(me->phub, 0, body[me->rank], 1), -EINVAL);
	error_weights(me, body[me->rank], head[me->rank]);
	EXPECT_RC(me, phub_broadcast(me->phub, 0, body[me->rank], 0), -EINVAL);
	EXPECT_TEXT(me, "'body'");
	member_leave(me);
}

static void weights_come_first_and_once(void **state)
{
	crew_run(*state, 2, no_weights_script, NULL);
}

static void hyper_script(struct member *me)
{
	static float body[3][ERROR_ELEMENTS], head[3][50];
	struct phub_hyper hyper;
	struct phub_options o;

	member_options(me, &o);
	o.optimizer = PHUB_SGD;
	error_start(me, &o);
	error_weights(me, body[me->rank], head[me->rank]);
	phub_hyper_init(PHUB_SGD, &hyper);
	EXPECT_RC(me, phub_set_hyper(me->phub, 0, NULL), -EINVAL);
	EXPECT_TEXT(me, "phub_set_hyper() needs hyper-parameters");
	EXPECT_RC(me, phub_set_hyper(me->phub, 1, &hyper), -EINVAL);
	hyper.lr = NAN;
	EXPECT_RC(me, phub_set_hyper(me->phub, 0, &hyper), -EINVAL);
	hyper.lr = me->rank == 2 ? 0.75 : 0.5;
	EXPECT_RC(me, phub_set_hyper(me->phub, 0, &hyper), 0);
	member_meet(me);
	/* The job may have ended by another rank's push already. */
	if (phub_push_pull(me->phub, 0, body[me->rank], body[me->rank], 0) == 0)
		EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), -EBADMSG);
	EXPECT_RC(me, phub_wait(me->phub, 0, 0), -EBADMSG);
	EXPECT_TEXT(me, "lr of parameter group 0 differs");
	EXPECT_TEXT(me, "rank 2 says 0.75");
	EXPECT_TEXT(me, "says 0.5");
}

static void unequal_hyper_parameters_end_the_job(void **state)
{
	crew_run(*state, 3, hyper_script, NULL);
}

/* One rank sets them, the others do not. */
static void hyper_missing_script(struct member *me)
{
	static float body[2][ERROR_ELEMENTS], head[2][50];
	struct phub_hyper hyper;
	struct phub_options o;

	member_options(me, &o);
	o.optimizer = PHUB_SGD;
	error_start(me, &o);
	error_weights(me, body[me->rank], head[me->rank]);
	phub_hyper_init(PHUB_SGD, &hyper);
	hyper.lr = 0.5;
	if (me->rank == 1)
		EXPECT_RC(me, phub_set_hyper(me->phub, 0, &hyper), 0);
	if (phub_push_pull(me->phub, 0, body[me->rank], body[me->rank], 0) == 0)
		EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), -EBADMSG);
	EXPECT_RC(me, phub_wait(me->phub, 0, 0), -EBADMSG);
	EXPECT_TEXT(me, "hyper-parameters");
	EXPECT_TEXT(me, "'body'");
}

static void hyper_parameters_of_one_rank_end_the_job(void **state)
{
	crew_run(*state, 2, hyper_missing_script, NULL);
}

/* ---- different calls ---- */

static void roots_script(struct member *me)
{
	static float body[2][ERROR_ELEMENTS];
	struct phub_options o;

	member_options(me, &o);
	error_start(me, &o);
	if (phub_broadcast(me->phub, 0, body[me->rank], me->rank) == 0)
		EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), -EBADMSG);
	EXPECT_RC(me, phub_wait(me->phub, 0, 0), -EBADMSG);
	EXPECT_TEXT(me, "'body'");
	EXPECT_TEXT(me, "same root");
}

static void two_roots_end_the_job(void **state)
{
	crew_run(*state, 2, roots_script, NULL);
}

/* ---- NaN and infinity ---- */

static void nan_join(struct member *me, float *body)
{
	struct phub_options o;

	member_options(me, &o);
	o.nan = *(const enum phub_nan *)me->arg;
	error_start(me, &o);
	error_fill(body, ERROR_ELEMENTS, 1 + (float)me->rank);
	if (me->rank == 1) {
		body[3] = NAN;
		body[8500] = -INFINITY; /* in the second chunk */
	}
}

static void nan_script(struct member *me)
{
	enum phub_nan policy = *(const enum phub_nan *)me->arg;
	static float bodies[3][ERROR_ELEMENTS];
	float *body = bodies[me->rank];

	nan_join(me, body);
	EXPECT_RC(me, phub_push_pull(me->phub, 0, body, body, 0), 0);
	EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), 0);
	for (unsigned i = 0; i < ERROR_ELEMENTS; i++) {
		if (i != 3 && i != 8500)
			EXPECT(me, body[i] == 6);
		else if (policy == PHUB_NAN_ZERO)
			EXPECT(me, body[i] == 4);
		else
			EXPECT(me, i == 3 ? isnan(body[i]) : body[i] == -INFINITY);
	}
	member_leave(me);
}

static void nan_fail_script(struct member *me)
{
	static float bodies[3][ERROR_ELEMENTS];
	float *body = bodies[me->rank];

	nan_join(me, body);
	if (phub_push_pull(me->phub, 0, body, body, 0) == 0)
		EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), -EDOM);
	EXPECT_RC(me, phub_wait(me->phub, 0, 0), -EDOM);
	EXPECT_TEXT(me, "rank 1");
	EXPECT_TEXT(me, "'body'");
	EXPECT_RC(me, phub_push(me->phub, 1, body, 0), -EDOM);
}

static void nans_are_passed_zeroed_or_end_the_job(void **state)
{
	static const enum phub_nan pass = PHUB_NAN_PASS, zero = PHUB_NAN_ZERO, end = PHUB_NAN_FAIL;

	crew_run(*state, 3, nan_script, &pass);
	crew_run(*state, 3, nan_script, &zero);
	crew_run(*state, 3, nan_fail_script, &end);
}

/* ---- who is missing ---- */

/* Far less than the second after which the box tells it unasked. */
enum { MISSING_MS = 300 };

static void missing_at_the_start(struct member *me)
{
	struct phub_options o;

	member_options(me, &o);
	error_connect(me, &o);
	error_keys(me);
	member_meet(me);
	if (me->rank != 2) {
		EXPECT_RC(me, phub_start(me->phub, MISSING_MS), -ETIMEDOUT);
		EXPECT_TEXT(me, "the start waits for rank 2");
		EXPECT_TEXT(me, "300 ms");
	}
	member_meet(me);
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	member_meet(me);
}

static void missing_in_a_round(struct member *me)
{
	static float bodies[3][ERROR_ELEMENTS];
	float *body = bodies[me->rank];

	error_fill(body, ERROR_ELEMENTS, 1);
	if (me->rank != 1) {
		EXPECT_RC(me, phub_push_pull(me->phub, 0, body, body, 0), 0);
		EXPECT_RC(me, phub_wait(me->phub, me->rank ? PHUB_ALL : 0, MISSING_MS), -ETIMEDOUT);
		EXPECT_TEXT(me, "key 'body' round");
		EXPECT_TEXT(me, "waits for rank 1 (");
	}
	member_meet(me);
	if (me->rank == 1)
		EXPECT_RC(me, phub_push_pull(me->phub, 0, body, body, 0), 0);
	EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), 0);
	for (unsigned i = 0; i < ERROR_ELEMENTS; i++)
		EXPECT(me, body[i] == 3);
}

/* The barrier stays open meanwhile: what was said of it is not said of the round, and the reverse. */
static void missing_at_a_barrier(struct member *me)
{
	static float bodies[3][ERROR_ELEMENTS];
	float *body = bodies[me->rank];

	error_fill(body, ERROR_ELEMENTS, 1);
	if (me->rank == 1) {
		EXPECT_RC(me, phub_barrier(me->phub, MISSING_MS), -ETIMEDOUT);
		EXPECT_TEXT(me, "the barrier waits for ranks 0, 2");
		EXPECT_RC(me, phub_push_pull(me->phub, 0, body, body, 0), 0);
		EXPECT_RC(me, phub_wait(me->phub, 0, 0), -ETIMEDOUT);
		EXPECT(me, !strstr(phub_error(), "barrier"));
		EXPECT_RC(me, phub_wait(me->phub, 0, MISSING_MS), -ETIMEDOUT);
		EXPECT_TEXT(me, "waits for ranks 0, 2");
		EXPECT(me, !strstr(phub_error(), "barrier"));
		EXPECT_RC(me, phub_barrier(me->phub, MISSING_MS), -ETIMEDOUT);
		EXPECT_TEXT(me, "the barrier waits for ranks 0, 2");
	}
	member_meet(me);
	if (me->rank != 1)
		EXPECT_RC(me, phub_push_pull(me->phub, 0, body, body, 0), 0);
	EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), 0);
	/* The barrier that this rank gave up is passed before it asks again: that is the one it asks for. */
	if (me->rank == 1)
		poll(NULL, 0, MISSING_MS);
	EXPECT_RC(me, phub_barrier(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
}

static void missing_script(struct member *me)
{
	missing_at_the_start(me);
	missing_in_a_round(me);
	missing_at_a_barrier(me);
	member_leave(me);
}

static void who_is_missing_is_named(void **state)
{
	crew_run(*state, 3, missing_script, NULL);
}

static void lost_script(struct member *me)
{
	static float bodies[3][ERROR_ELEMENTS];
	float *body = bodies[me->rank];
	struct phub_options o;

	member_options(me, &o);
	error_start(me, &o);
	if (me->rank == 2) {
		member_meet(me);
		member_drop(me);
		return;
	}
	EXPECT_RC(me, phub_push_pull(me->phub, 0, body, body, 0), 0);
	member_meet(me);
	EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), -EOWNERDEAD);
	EXPECT_TEXT(me, "rank 2");
	/* Nothing touches it any more. */
	error_fill(body, ERROR_ELEMENTS, 9);
	EXPECT_RC(me, phub_barrier(me->phub, 0), -EOWNERDEAD);
	EXPECT_RC(me, phub_leave(me->phub, 0), -EOWNERDEAD);
}

static void a_lost_worker_is_named(void **state)
{
	crew_run(*state, 3, lost_script, NULL);
}

const struct CMUnitTest exchange_error_cases[] = {
	cmocka_unit_test(a_rank_is_taken_once),
	cmocka_unit_test(bad_arguments_are_named),
	cmocka_unit_test(tables_that_differ_are_named),
	cmocka_unit_test(weights_come_first_and_once),
	cmocka_unit_test(unequal_hyper_parameters_end_the_job),
	cmocka_unit_test(hyper_parameters_of_one_rank_end_the_job),
	cmocka_unit_test(two_roots_end_the_job),
	cmocka_unit_test(nans_are_passed_zeroed_or_end_the_job),
	cmocka_unit_test(who_is_missing_is_named),
	cmocka_unit_test(a_lost_worker_is_named),
};
const size_t exchange_error_count = sizeof(exchange_error_cases) / sizeof(exchange_error_cases[0]);
