/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers whose box dies, and that go on at its standby: rounds in flight, hyper-parameters, barriers, and what becomes
 * of them when the standby cannot go on. Boxes are fake ones.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/fake_box.h"

#include <stddef.h>
#include <stdint.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/handle.h"

#define MS     1000000ull
#define SECRET "a secret of thirty-two characters"

enum { WORLD = 2, BIG = 5000, SMALL = 100, KEYS = 3, ROUNDS = 4, BOXES = 3 };

static const unsigned endpoints[BOXES] = {0, 6, 7};
static const char *const names[BOXES + 1] = {"host0", "host6", "host7", NULL};
static const uint32_t elements[KEYS] = {BIG, SMALL, SMALL};

struct worker {
	phub_t *phub;
	uint64_t round; /* that all keys are in */
	uint64_t done;  /* rounds that it has got */
	float *data[KEYS];
};

struct rig {
	struct loop_net *net;
	struct fake_box boxes[BOXES]; /* each the standby of the one before */
	unsigned first;               /* those before are dead */
	struct fake_site sites[WORLD];
	struct worker workers[WORLD];
	bool optimizer, encrypt;
	uint64_t rounds; /* so many are run */
};

static void rig_options(const struct rig *r, struct phub_options *o, uint32_t rank)
{
	phub_options_init(o);
	o->rank = (int)rank;
	o->world = WORLD;
	o->optimizer = r->optimizer ? PHUB_SGD : PHUB_NONE;
	o->encrypt = r->encrypt;
	o->secret = r->encrypt ? SECRET : NULL;
}

static void rig_open_over(struct rig *r, uint64_t seed, bool optimizer, bool lossy)
{
	struct loop_plan plan = {.seed = seed,
		.hosts = 8,
		.delay_min_ns = 1000,
		.delay_max_ns = 50000,
		.split = 0.3,
		.lossy = lossy,
		.drop = lossy ? 0.05 : 0,
		.duplicate = lossy ? 0.05 : 0};

	memset(r, 0, sizeof(*r));
	r->net = loop_net_create(&plan);
	r->optimizer = optimizer;
	for (unsigned i = 0; i < BOXES; i++) {
		fake_box_open_at(&r->boxes[i], r->net, endpoints[i], WORLD, 2);
		r->boxes[i].optimizer = optimizer;
		r->boxes[i].standby = names[i + 1];
		r->boxes[i].origin = i ? &r->boxes[i - 1] : NULL;
	}
	for (uint32_t i = 0; i < WORLD; i++)
		fake_site_init(&r->sites[i], r->net, i + 1, 0);
}

static void rig_open(struct rig *r, uint64_t seed, bool optimizer)
{
	rig_open_over(r, seed, optimizer, false);
}

static void rig_encrypt(struct rig *r)
{
	r->encrypt = true;
	for (unsigned i = 0; i < BOXES; i++) {
		r->boxes[i].encrypt = true;
		r->boxes[i].secret = SECRET;
	}
}

static void rig_close(struct rig *r)
{
	for (uint32_t i = 0; i < WORLD; i++) {
		if (r->workers[i].phub)
			client_close(r->workers[i].phub);
		for (int k = 0; k < KEYS; k++)
			free(r->workers[i].data[k]);
	}
	for (unsigned i = 0; i < BOXES; i++)
		fake_box_close(&r->boxes[i]);
	loop_net_destroy(r->net);
}

static void rig_kill(struct rig *r)
{
	loop_net_kill(r->net, endpoints[r->first]);
	r->first++;
}

/* ---- a script: every round of all keys, and its results ---- */

static float value(uint32_t rank, uint64_t round, int key, uint32_t i)
{
	return (float)((rank * 7 + round * 13 + (uint64_t)key * 3 + i) % 101);
}

static float sum(uint64_t round, int key, uint32_t i)
{
	float s = 0;

	for (uint32_t rank = 0; rank < WORLD; rank++)
		s += value(rank, round, key, i);
	return s;
}

/* Without an optimizer the sum of the round; else the weights after it. */
static float expected(const struct rig *r, uint64_t round, int key, uint32_t i)
{
	float w;

	if (!r->optimizer)
		return sum(round, key, i);
	w = value(0, 0, key, i);
	for (uint64_t k = 1; k <= round; k++)
		w -= sum(k, key, i);
	return w;
}

static void worker_begin(struct rig *r, uint32_t rank)
{
	struct worker *w = &r->workers[rank];
	bool first = r->optimizer && w->round == 0;

	for (int k = 0; k < KEYS; k++) {
		for (uint32_t i = 0; i < elements[k]; i++)
			w->data[k][i] = value(rank, w->round, k, i);
		if (first)
			assert_int_equal(phub_broadcast(w->phub, k, w->data[k], 0), 0);
		else
			assert_int_equal(phub_push_pull(w->phub, k, w->data[k], w->data[k], k), 0);
	}
}

static void worker_check(const struct rig *r, uint32_t rank)
{
	const struct worker *w = &r->workers[rank];

	for (int k = 0; k < KEYS; k++)
		for (uint32_t i = 0; i < elements[k]; i++)
			if (w->data[k][i] != expected(r, w->round, k, i))
				fail_msg("rank %u round %lu key %d element %u: %g, not %g", rank, w->round, k, i,
					(double)w->data[k][i], (double)expected(r, w->round, k, i));
}

static void worker_step(struct rig *r, uint32_t rank)
{
	struct worker *w = &r->workers[rank];
	bool open;

	client_progress(w->phub, loop_net_now(r->net));
	if (client_started(w->phub) != 0 || w->done >= r->rounds || w->phub->exchange.given_up)
		return;
	open = w->phub->exchange.open_keys > 0;
	if (open)
		return;
	if (w->done == 0 && w->round == (r->optimizer ? 0u : 1u) && !w->data[0][BIG]) {
		w->data[0][BIG] = 1; /* begun */
		worker_begin(r, rank);
		return;
	}
	assert_int_equal(client_idle(w->phub, PHUB_ALL), 1);
	worker_check(r, rank);
	w->done++;
	w->round++;
	if (w->done < r->rounds)
		worker_begin(r, rank);
}

static void rig_step(struct rig *r)
{
	uint64_t next, step = loop_net_now(r->net) + MS / 2;

	for (uint32_t i = 0; i < WORLD; i++)
		if (r->workers[i].phub)
			worker_step(r, i);
	for (unsigned i = r->first; i < BOXES; i++)
		fake_box_step(&r->boxes[i]);
	next = loop_net_next(r->net);
	loop_net_advance(r->net, next < step ? next : step);
}

static void rig_run(struct rig *r, uint64_t ns)
{
	uint64_t end = loop_net_now(r->net) + ns;

	while (loop_net_now(r->net) < end)
		rig_step(r);
}

static void rig_join(struct rig *r, uint32_t rank, const struct phub_options *o)
{
	struct worker *w = &r->workers[rank];
	struct err e;

	w->round = r->optimizer ? 0 : 1;
	assert_int_equal(client_open("phub://box/demo", o, &r->sites[rank].env, &w->phub, &e), 0);
	for (int k = 0; k < KEYS; k++)
		w->data[k] = calloc(elements[k] + 1, sizeof(float));
	rig_run(r, 10 * MS);
	assert_int_equal(client_joined(w->phub), 0);
	assert_int_equal(phub_key(w->phub, "big", PHUB_F32, BIG, 0, 0), 0);
	assert_int_equal(phub_key(w->phub, "left", PHUB_F32, SMALL, 0, 0), 1);
	assert_int_equal(phub_key(w->phub, "right", PHUB_F32, SMALL, 0, 0), 2);
	assert_int_equal(client_start_begin(w->phub, &e), 0);
}

static void rig_start(struct rig *r, unsigned move_ms, unsigned resume_ms)
{
	struct phub_options o;

	for (uint32_t rank = 0; rank < WORLD; rank++) {
		rig_options(r, &o, rank);
		o.move_ms = move_ms;
		o.resume_ms = resume_ms;
		rig_join(r, rank, &o);
	}
	rig_run(r, 10 * MS);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		assert_int_equal(client_started(r->workers[rank].phub), 0);
}

static bool rig_done(const struct rig *r)
{
	for (uint32_t rank = 0; rank < WORLD; rank++)
		if (r->workers[rank].done < r->rounds)
			return false;
	return true;
}

/* All rounds, within a time. */
static void rig_finish(struct rig *r)
{
	uint64_t end = loop_net_now(r->net) + 60000 * MS;

	while (!rig_done(r) && loop_net_now(r->net) < end) {
		rig_step(r);
		for (uint32_t rank = 0; rank < WORLD; rank++)
			if (client_failure(r->workers[rank].phub)->code)
				fail_msg("rank %u: %s", rank, client_failure(r->workers[rank].phub)->text);
	}
	assert_true(rig_done(r));
}

static void expect_moves(const struct rig *r, uint64_t moves)
{
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		struct phub_stats stats;

		client_stats(r->workers[rank].phub, &stats);
		assert_int_equal(stats.moves, moves);
	}
}

static void expect_failure(const phub_t *p, int code, const char *says, const char *also)
{
	const struct err *e = client_failure(p);

	if (e->code != code)
		fail_msg("%d, not %d: %s", e->code, code, e->text);
	if (!strstr(e->text, says))
		fail_msg("\"%s\" does not say \"%s\"", e->text, says);
	if (also && !strstr(e->text, also))
		fail_msg("\"%s\" does not say \"%s\"", e->text, also);
	assert_non_null(strstr(e->text, "job demo rank"));
}

/* ---- it goes on ---- */

/* Whenever the box dies, in every state of a round: no round is lost, none is counted twice. */
static void boxes_die(bool encrypt)
{
	unsigned moved = 0;

	for (uint64_t seed = 0; seed < 120; seed++) {
		struct rig r;

		rig_open_over(&r, seed, seed % 2, seed % 4 > 1);
		if (encrypt)
			rig_encrypt(&r);
		rig_start(&r, 30000, 0);
		r.rounds = ROUNDS;
		for (unsigned steps = 0; steps < seed && !rig_done(&r); steps++)
			rig_step(&r);
		moved += !rig_done(&r);
		rig_kill(&r);
		rig_finish(&r);
		if (seed < 20)
			expect_moves(&r, 1);
		rig_close(&r);
	}
	assert_true(moved > 20);
}

static void a_box_dies_at_any_time(void **state)
{
	boxes_die(false);
}

/* Encrypted, all keys are others at the standby, and what was sealed for the lost box is sealed again. */
static void a_box_of_an_encrypted_job_dies(void **state)
{
	boxes_die(true);
}

static void two_boxes_die(void **state)
{
	for (uint64_t seed = 0; seed < 40; seed++) {
		struct rig r;

		rig_open(&r, seed, seed % 2);
		if (seed % 3 == 0)
			rig_encrypt(&r);
		rig_start(&r, 30000, 0);
		r.rounds = 3 * ROUNDS;
		rig_run(&r, MS / 20);
		rig_kill(&r);
		/* The second one dies while they come to it, too, but when it has not taken over it is of no use. */
		while (!r.boxes[1].started)
			rig_step(&r);
		for (uint64_t i = 0; i < 10 + seed; i++)
			rig_step(&r);
		for (uint32_t rank = 0; rank < WORLD; rank++)
			assert_int_equal(r.workers[rank].phub->move.until_ns, 0);
		rig_kill(&r);
		rig_finish(&r);
		expect_moves(&r, 2);
		rig_close(&r);
	}
}

/* A box that is not there any more but has not said so: its heartbeats stop. */
static void a_box_falls_silent(void **state)
{
	struct rig r;

	rig_open(&r, 5, false);
	rig_start(&r, 30000, 0);
	r.rounds = ROUNDS;
	rig_run(&r, MS / 20);
	assert_false(rig_done(&r));
	for (unsigned i = 1; i <= WORLD; i++)
		loop_net_partition(r.net, endpoints[0], i, true);
	rig_finish(&r);
	expect_moves(&r, 1);
	for (unsigned i = 1; i <= WORLD; i++)
		loop_net_partition(r.net, endpoints[0], i, false);
	rig_close(&r);
}

/* A box that goes down in good order says so. */
static void a_box_is_shut_down(void **state)
{
	struct rig r;

	rig_open(&r, 6, true);
	rig_start(&r, 30000, 0);
	r.rounds = ROUNDS;
	rig_run(&r, MS / 20);
	assert_false(rig_done(&r));
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		fake_box_error(&r.boxes[0], rank, PHUB__ERROR_CODE__ERROR_SHUTDOWN, "the box goes down");
		fake_box_finish(&r.boxes[0], rank);
	}
	rig_finish(&r);
	expect_moves(&r, 1);
	rig_close(&r);
}

/* It is not up when they come, and up a while later. */
static void a_standby_is_late(void **state)
{
	struct rig r;

	rig_open(&r, 7, false);
	rig_start(&r, 30000, 0);
	r.rounds = ROUNDS;
	r.boxes[1].deaf = true;
	rig_run(&r, MS / 20);
	rig_kill(&r);
	rig_run(&r, 3000 * MS);
	expect_moves(&r, 0);
	assert_int_equal(client_idle(r.workers[0].phub, PHUB_ALL), 0);
	r.boxes[1].deaf = false;
	rig_finish(&r);
	expect_moves(&r, 1);
	rig_close(&r);
}

/* Rounds may be begun on the way, and keys wait for their deadline in their own words. */
static void rounds_are_begun_on_the_way(void **state)
{
	struct rig r;
	char text[400];
	struct err e;

	rig_open(&r, 8, false);
	rig_start(&r, 30000, 0);
	r.boxes[1].deaf = true;
	rig_kill(&r);
	rig_run(&r, 100 * MS);
	r.rounds = ROUNDS;
	rig_run(&r, 100 * MS);
	assert_int_equal(client_idle(r.workers[0].phub, 0), 0);
	client_explain(r.workers[0].phub, 0, loop_net_now(r.net), text, sizeof(text));
	assert_non_null(strstr(text, "the box is lost"));
	assert_non_null(strstr(text, "host6"));
	assert_int_equal(client_rekey(r.workers[0].phub, &e), -EBUSY);
	r.boxes[1].deaf = false;
	rig_finish(&r);
	rig_close(&r);
}

/* ---- versions and barriers ---- */

static void set_lr(struct rig *r, double lr)
{
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		struct phub_hyper h;

		phub_hyper_init(PHUB_SGD, &h);
		h.lr = lr;
		assert_int_equal(phub_set_hyper(r->workers[rank].phub, 0, &h), 0);
	}
}

static void expect_hyper(const struct rig *r, uint32_t version, double lr)
{
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		assert_int_equal(r->boxes[r->first].workers[rank].hyper, version);
		assert_true(r->boxes[r->first].workers[rank].lr == lr);
	}
}

static void hyper_parameters_keep_their_versions(void **state)
{
	struct rig r;

	rig_open(&r, 9, true);
	rig_start(&r, 30000, 0);
	r.rounds = 2;
	set_lr(&r, 0.5);
	rig_finish(&r);
	expect_hyper(&r, 1, 0.5);
	r.boxes[1].deaf = true;
	rig_kill(&r);
	set_lr(&r, 0.25); /* named by the next round, which is begun before anybody has noticed */
	for (uint32_t rank = 0; rank < WORLD; rank++)
		worker_begin(&r, rank);
	r.rounds = 3;
	rig_run(&r, 100 * MS);
	r.boxes[1].deaf = false;
	rig_finish(&r);
	expect_hyper(&r, 2, 0.25);
	assert_int_equal(r.boxes[1].last.hyper, 2);
	set_lr(&r, 0.125); /* and so on */
	for (uint32_t rank = 0; rank < WORLD; rank++)
		worker_begin(&r, rank);
	r.rounds = 4;
	rig_finish(&r);
	expect_hyper(&r, 3, 0.125);
	expect_moves(&r, 1);
	rig_close(&r);
}

/*
 * It is a call that finds the box lost, in what it says to it; or one that comes between the box's last word, while a
 * round is open, and the end of its connections. The move begins in that call, or what else is to come.
 */
static void a_call_finds_the_box_lost(void **state)
{
	for (int i = 0; i < 7; i++) {
		int rc = 0, then = i % 3; /* 0: it moves, 1: it resumes, 2: it ends */
		float data[BIG] = {0};
		bool told = i >= 3;
		struct rig r;
		phub_t *p;

		rig_open(&r, 20, false);
		r.boxes[0].standby = then < 1 ? names[1] : NULL;
		rig_start(&r, 30000, then < 2 ? 30000 : 0);
		p = r.workers[0].phub;
		if (told) {
			assert_int_equal(phub_push_pull(p, 1, data, data, 0), 0);
			fake_box_error(&r.boxes[0], 0, PHUB__ERROR_CODE__ERROR_SHUTDOWN, "the box goes down");
			rig_run(&r, 10 * MS);
			assert_int_equal(p->session.verdict.code, -ESHUTDOWN);
		} else {
			rig_kill(&r);
			loop_net_advance(r.net, loop_net_now(r.net) + 10 * MS);
			set_lr(&r, 0.5);
		}
		if (i == 6)
			client_leave_begin(p);
		else
			rc = phub_push_pull(p, 0, data, data, 0);
		assert_int_equal(rc, then == 0 ? 0 : then == 1 ? -ESTALE : told ? -ESHUTDOWN : -ECONNRESET);
		assert_int_equal(p->move.until_ns > 0, then == 0);
		assert_int_equal(p->buried, i == 2);
		rig_close(&r);
	}
}

static void barriers_are_asked_for_again(void **state)
{
	struct rig r;

	rig_open(&r, 10, false);
	rig_start(&r, 30000, 0);
	for (uint32_t rank = 0; rank < WORLD; rank++) /* one that is passed, and all but one hear of it */
		client_barrier_begin(r.workers[rank].phub);
	loop_net_partition(r.net, 0, 2, true);
	rig_run(&r, MS);
	assert_int_equal(client_barrier_passed(r.workers[1].phub), -EAGAIN);
	loop_net_partition(r.net, 0, 2, false);
	rig_run(&r, 10 * MS);
	assert_int_equal(client_barrier_passed(r.workers[0].phub), 0);
	client_barrier_end(r.workers[0].phub);
	client_barrier_begin(r.workers[0].phub); /* the next one is under way */
	rig_run(&r, MS);
	rig_kill(&r);
	rig_run(&r, 1000 * MS);
	expect_moves(&r, 1);
	assert_int_equal(client_barrier_passed(r.workers[0].phub), -EAGAIN);
	assert_int_equal(client_barrier_passed(r.workers[1].phub), 0);
	client_barrier_end(r.workers[1].phub);
	client_barrier_begin(r.workers[1].phub);
	rig_run(&r, 10 * MS);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		assert_int_equal(client_barrier_passed(r.workers[rank].phub), 0);
	rig_close(&r);
}

/* A barrier that is begun on the way is asked for there; a new table can be made there. */
static void barriers_and_tables_after_a_move(void **state)
{
	struct rig r;
	struct err e;

	rig_open(&r, 11, false);
	rig_start(&r, 30000, 0);
	r.boxes[1].deaf = true;
	rig_kill(&r);
	rig_run(&r, 100 * MS);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		client_barrier_begin(r.workers[rank].phub);
	rig_run(&r, 100 * MS);
	r.boxes[1].deaf = false;
	rig_run(&r, 1000 * MS);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		assert_int_equal(client_barrier_passed(r.workers[rank].phub), 0);
		assert_int_equal(client_rekey(r.workers[rank].phub, &e), 0);
		assert_int_equal(phub_key(r.workers[rank].phub, "big", PHUB_F32, BIG, 0, 0), 0);
		r.boxes[1].origin = NULL;
		assert_int_equal(client_start_begin(r.workers[rank].phub, &e), 0);
	}
	rig_run(&r, 100 * MS);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		assert_int_equal(client_started(r.workers[rank].phub), 0);
	rig_close(&r);
}

/* ---- it does not ---- */

/* With rounds in flight, the box dies, and the standby is as it is. */
static void rig_lose(struct rig *r, unsigned move_ms, unsigned resume_ms)
{
	rig_start(r, move_ms, resume_ms);
	r->rounds = ROUNDS;
	rig_run(r, MS / 20);
	assert_false(rig_done(r));
	rig_kill(r);
	rig_run(r, 1000 * MS);
}

static void a_standby_refuses(void **state)
{
	struct rig r;

	rig_open(&r, 12, false);
	r.boxes[1].error_code = PHUB__ERROR_CODE__ERROR_NO_JOB;
	rig_lose(&r, 30000, 0);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		expect_failure(r.workers[rank].phub, -ECONNRESET, "ended the session", "host6");
		expect_failure(r.workers[rank].phub, -ECONNRESET, "as told, taken or not", NULL);
		assert_int_equal(client_idle(r.workers[rank].phub, 0), -ECONNRESET);
	}
	rig_close(&r);
}

static void a_refused_move_is_resumed(void **state)
{
	struct rig r;

	rig_open(&r, 13, false);
	r.boxes[1].error_code = PHUB__ERROR_CODE__ERROR_NO_JOB;
	rig_lose(&r, 30000, 20000);
	expect_failure(r.workers[0].phub, -ESTALE, "as told, taken or not", "phub_resume");
	rig_close(&r);
}

/* Rounds from the past or the future, another placement, no word of a move: nothing is mixed. */
static void what_does_not_fit_is_not_taken(void **state)
{
	static const char *const says[] = {"round", "round", "core", "another kind"};

	for (int i = 0; i < 4; i++) {
		struct rig r;

		rig_open(&r, 14, false);
		r.boxes[1].rounds_off = i == 0 ? -1 : i == 1 ? 2 : 0;
		r.boxes[1].moved_away = i == 2;
		r.boxes[1].plain_start = i == 3;
		rig_lose(&r, 30000, 0);
		expect_failure(r.workers[0].phub, -ECONNRESET, says[i], "host6");
		rig_close(&r);
	}
}

static void nobody_is_there(void **state)
{
	struct rig r;

	rig_open(&r, 15, false);
	r.boxes[1].deaf = true;
	rig_lose(&r, 5000, 0);
	assert_int_equal(client_failure(r.workers[0].phub)->code, 0);
	rig_run(&r, 5000 * MS);
	expect_failure(r.workers[0].phub, -ECONNRESET, "ended the session", "does not answer");
	rig_close(&r);
}

/* One of two comes: it hears who does not. */
static void one_is_missing(void **state)
{
	struct rig r;

	rig_open(&r, 16, false);
	rig_start(&r, 5000, 0);
	client_close(r.workers[1].phub);
	r.workers[1].phub = NULL;
	rig_kill(&r);
	rig_run(&r, 4000 * MS);
	fake_box_notice(&r.boxes[1], 0, UINT32_MAX, 1, 1, "job 'demo': the start waits for rank 1");
	rig_run(&r, 2000 * MS);
	expect_failure(r.workers[0].phub, -ECONNRESET, "ended the session", "the start waits for rank 1");
	rig_close(&r);
}

static void no_move_is_wanted(void **state)
{
	struct rig r;

	rig_open(&r, 17, false);
	rig_lose(&r, 0, 0);
	expect_failure(r.workers[0].phub, -ECONNRESET, "ended the session", NULL);
	assert_null(strstr(client_failure(r.workers[0].phub)->text, "host6"));
	rig_close(&r);
}

/* A box that ends the job for a reason of its own is not left. */
static void a_verdict_is_final(void **state)
{
	struct rig r;

	rig_open(&r, 18, false);
	rig_start(&r, 30000, 0);
	fake_box_error(&r.boxes[0], 0, PHUB__ERROR_CODE__ERROR_LOST, "rank 1 was lost");
	rig_run(&r, 100 * MS);
	expect_failure(r.workers[0].phub, -EOWNERDEAD, "rank 1 was lost", NULL);
	rig_close(&r);
}

/* Who leaves does so at the standby, where the others would wait for it: said before the box died, or after that. */
static void leaving_on_the_way(void **state)
{
	for (int early = 0; early < 2; early++) {
		struct rig r;

		rig_open(&r, 19, false);
		rig_start(&r, 30000, 0);
		r.rounds = ROUNDS;
		rig_finish(&r);
		r.boxes[1].deaf = true;
		r.workers[0].phub->unfinished = early;
		if (early) {
			r.boxes[0].deaf = true;
			client_leave_begin(r.workers[0].phub);
			rig_run(&r, MS);
		}
		rig_kill(&r);
		rig_run(&r, 100 * MS);
		if (!early)
			client_leave_begin(r.workers[0].phub);
		r.boxes[1].deaf = false;
		rig_run(&r, 1000 * MS);
		expect_moves(&r, 1);
		assert_int_equal(client_left(r.workers[0].phub), 0);
		assert_true(r.boxes[1].workers[0].left);
		assert_int_equal(r.boxes[1].workers[0].finished, !early);
		assert_false(r.boxes[1].workers[1].left);
		rig_close(&r);
	}
}

/* It is given up like any other move. */
static void leaving_for_nowhere(void **state)
{
	struct rig r;

	rig_open(&r, 21, false);
	r.boxes[1].deaf = true;
	rig_lose(&r, 5000, 0);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		client_leave_begin(r.workers[rank].phub);
		assert_int_equal(client_left(r.workers[rank].phub), -EAGAIN);
	}
	client_abandon(r.workers[0].phub);
	assert_int_equal(client_left(r.workers[0].phub), 0);
	assert_int_equal(client_due(r.workers[0].phub), UINT64_MAX);
	rig_run(&r, 5000 * MS);
	assert_int_equal(client_left(r.workers[1].phub), 0);
	rig_close(&r);
}

TEST_PROGRAM(test_client_move)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_box_dies_at_any_time),
		cmocka_unit_test(a_box_of_an_encrypted_job_dies),
		cmocka_unit_test(two_boxes_die),
		cmocka_unit_test(a_box_falls_silent),
		cmocka_unit_test(a_box_is_shut_down),
		cmocka_unit_test(a_standby_is_late),
		cmocka_unit_test(rounds_are_begun_on_the_way),
		cmocka_unit_test(hyper_parameters_keep_their_versions),
		cmocka_unit_test(a_call_finds_the_box_lost),
		cmocka_unit_test(barriers_are_asked_for_again),
		cmocka_unit_test(barriers_and_tables_after_a_move),
		cmocka_unit_test(a_standby_refuses),
		cmocka_unit_test(a_refused_move_is_resumed),
		cmocka_unit_test(what_does_not_fit_is_not_taken),
		cmocka_unit_test(nobody_is_there),
		cmocka_unit_test(one_is_missing),
		cmocka_unit_test(no_move_is_wanted),
		cmocka_unit_test(a_verdict_is_final),
		cmocka_unit_test(leaving_on_the_way),
		cmocka_unit_test(leaving_for_nowhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
