/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sites in sites whose boxes die: two racks of two at a box each, and one that all four share, over a network in
 * memory. Some have the result of an exchange and others not when boxes die, or a part of what they come to
 * afterwards; and boxes die at any time, under results that come when they like. In the end all have the weights
 * that they have where nothing dies, to the bit, and those are what loops over doubles make of it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "aggregation/dispatch.h"
#include "client/client.h"
#include "client/handle.h"
#include "client/scout/course.h"
#include "phub/control/box.h"
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/fake_box.h"

#define MS 1000000ull

enum { RACKS = 2, MEMBERS = 2, WORKERS = RACKS * MEMBERS, TENSORS = 2, ELEMENTS = 40 };
enum {
	BOXES = RACKS + 1,
	ABOVE = RACKS,
	EVERY_BOX = (1 << BOXES) - 1,
	BOX_HOST = 8,
	STEPS = 9,
	STILL = 40, /* turns */
	TURNS_MAX = 20000,
};

static const uint32_t sizes[TENSORS] = {33, 7};

/* How they train. */
struct way {
	const char *name;
	enum phub_site_algorithm algorithm; /* within */
	double rack_theta, theta, momentum;
	enum phub_site_outer outer; /* across */
	unsigned finish;            /* phub_site_finish(), twice, after so many steps; 0: never */
	bool plain;                 /* loops over doubles make the same of it */
};

static const struct way ways[] = {
	{"local in local", PHUB_SITE_LOCAL, 1, 2, 0, PHUB_OUTER_AVERAGE, 0, true},
	{"intervals that do not meet", PHUB_SITE_LOCAL, 2, 3, 0, PHUB_OUTER_AVERAGE, 0, true},
	{"finished twice", PHUB_SITE_LOCAL, 2, 3, 0.5, PHUB_OUTER_NESTEROV, 4, false},
	{"bsp with momentum, and an outer one", PHUB_SITE_BSP, 1, 2, 0.5, PHUB_OUTER_NESTEROV, 0, false},
};

#define WAYS (sizeof(ways) / sizeof(ways[0]))

struct place {
	struct loop_listener *listener;
	struct box *box;
};

enum stage { CONNECTS, OPENS, STARTS, TRAINS };

struct worker {
	uint32_t rank;
	struct fake_site at;
	phub_t *rack, *across;
	phub_site_t *within, *around;
	enum stage stage;
	unsigned steps, finishes;
	int rc; /* of the last call */
	bool deaf;
	float weights[ELEMENTS], gradient[ELEMENTS];
};

/* An exchange of which these have no result; or a sync after it of which they have the first part, the weights. */
struct cut {
	bool half;
	bool across;
	uint64_t exchange; /* counts from 1 */
	unsigned deaf;     /* bits of workers; 0: nobody */
};

struct world {
	const struct way *way;
	struct cut cut;
	unsigned steps;
	struct loop_net *net;
	struct config config;
	struct place places[BOXES];
	struct worker workers[WORKERS];
};

/* ---- boxes ---- */

static int place_accept(void *arg, struct stream **out)
{
	return loop_stream_accept(((struct place *)arg)->listener, out);
}

static void place_open(struct world *w, unsigned i)
{
	static const struct transport_ops *const transports[] = {&transport_loop};
	struct place *place = &w->places[i];
	struct box_env env = {.transports = transports,
		.transport_count = 1,
		.loop = loop_net_host(w->net, BOX_HOST + i),
		.accept = place_accept,
		.accept_arg = place,
		.by_hand = true};
	char text[160];
	struct err e;

	assert_int_equal(loop_stream_listen(env.loop, FAKE_PORT, &place->listener), 0);
	assert_int_equal(dispatch_select("base", &env.kernels, text, sizeof(text)), 0);
	if (box_create(&w->config, &env, loop_net_now(w->net), &place->box, &e) < 0)
		fail_msg("%s", e.text);
}

static void place_close(struct world *w, unsigned i)
{
	box_destroy(w->places[i].box, loop_net_now(w->net));
	loop_stream_unlisten(w->places[i].listener);
	w->places[i].box = NULL;
}

/* ---- workers ---- */

static float whole(uint32_t rank, unsigned step, unsigned i)
{
	uint64_t x = step * 1000003ull + rank * 7919ull + i;

	x *= 0x9e3779b97f4a7c15ull;
	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9ull;
	return (float)((x >> 33) % 9) - 4;
}

static phub_t *worker_connect(struct worker *k, unsigned box, const char *job, uint32_t rank, uint32_t world)
{
	struct phub_options o;
	char url[64];
	struct err e;
	phub_t *p;

	phub_options_init(&o);
	o.rank = (int)rank;
	o.world = (int)world;
	o.reproducible = true;
	o.resume_ms = 60000;
	snprintf(url, sizeof(url), "phub://host%u/%s", BOX_HOST + box, job);
	if (client_open(url, &o, &k->at.env, &p, &e) < 0)
		fail_msg("%s", e.text);
	return p;
}

static void worker_open(struct world *w, struct worker *k)
{
	struct phub_site_options o;
	char name[16];
	uint32_t at = 0;

	phub_site_options_init(&o);
	o.algorithm = w->way->algorithm;
	o.momentum = w->way->momentum;
	if (o.algorithm == PHUB_SITE_LOCAL)
		o.theta = w->way->rack_theta;
	assert_int_equal(phub_site_open(k->rack, &o, &k->within), 0);
	for (unsigned t = 0; t < TENSORS; at += sizes[t++]) {
		snprintf(name, sizeof(name), "t%u", t);
		assert_true(phub_site_tensor(k->within, name, k->weights + at, sizes[t], true) >= 0);
	}
}

static void worker_surround(struct world *w, struct worker *k)
{
	struct phub_site_options o;

	phub_site_options_init(&o);
	o.theta = w->way->theta;
	o.momentum = 0;
	o.outer = w->way->outer;
	o.within = k->within;
	if (phub_site_open(k->across, &o, &k->around) < 0)
		fail_msg("%s", phub_error());
}

static int worker_begin(struct world *w, struct worker *k)
{
	int rc = 0;

	if (k->stage == CONNECTS) {
		if (client_joined(k->rack) == -EAGAIN || client_joined(k->across) == -EAGAIN)
			return -ETIMEDOUT;
		worker_open(w, k);
		k->stage = OPENS;
	}
	if (k->stage == OPENS) {
		rc = phub_site_start(k->within, 0);
		if (rc < 0)
			return rc;
		worker_surround(w, k);
		k->stage = STARTS;
	}
	rc = phub_site_start(k->around, 0);
	k->stage = rc == 0 ? TRAINS : k->stage;
	return rc;
}

static int worker_step(const struct world *w, struct worker *k)
{
	const float *gradients[TENSORS] = {k->gradient, k->gradient + sizes[0]};

	if (w->way->finish > 0 && k->steps == w->way->finish && k->finishes < 2) {
		k->finishes++;
		return phub_site_finish(k->around, 0);
	}
	if (k->steps == w->steps)
		return 0;
	for (unsigned i = 0; i < ELEMENTS; i++)
		k->gradient[i] = whole(k->rank, k->steps, i);
	k->steps++;
	return phub_site_step(k->around, gradients, 1, 0);
}

static unsigned cut_box(const struct world *w, const struct worker *k)
{
	return w->cut.across ? ABOVE : k->rank / MEMBERS;
}

/* Is it in the exchange of which it is to have no result? Then nothing of that box comes any more. */
static void worker_cut(struct world *w, struct worker *k)
{
	const phub_site_t *site = w->cut.across ? k->around : k->within;

	if (k->deaf || !(w->cut.deaf & 1u << k->rank) || !site)
		return;
	if (w->cut.half ? site->flight != COURSE_SYNC || site->sync.stage == 0
			: site->flight != COURSE_EXCHANGE || site->exchanges + 1 != w->cut.exchange)
		return;
	k->deaf = true;
	loop_net_deafen(w->net, BOX_HOST + cut_box(w, k), k->rank + 1, true);
}

static void worker_turn(struct world *w, struct worker *k)
{
	client_progress(k->rack, loop_net_now(w->net));
	client_progress(k->across, loop_net_now(w->net));
	if (k->stage < TRAINS)
		k->rc = worker_begin(w, k);
	else if (k->rc == 0)
		k->rc = worker_step(w, k);
	else if (k->rc == -ESTALE)
		k->rc = phub_site_resume(k->around, 0);
	else
		k->rc = phub_site_wait(k->around, 0);
	if (k->rc < 0 && k->rc != -ETIMEDOUT && k->rc != -ESTALE)
		fail_msg("%s: worker %" PRIu32 ": %s", w->way->name, k->rank, phub_error());
	worker_cut(w, k);
}

/* ---- the world ---- */

static void world_open(struct world *w, const struct way *way, unsigned steps, const struct loop_plan *plan)
{
	struct err e;

	memset(w, 0, sizeof(*w));
	w->way = way;
	w->steps = steps;
	w->net = loop_net_create(plan);
	config_init(&w->config);
	assert_int_equal(config_set(&w->config, "cores=1", &e), 0);
	assert_int_equal(config_finish(&w->config, &e), 0);
	for (unsigned i = 0; i < BOXES; i++)
		place_open(w, i);
	for (uint32_t rank = 0; rank < WORKERS; rank++) {
		struct worker *k = &w->workers[rank];

		k->rank = rank;
		for (unsigned i = 0; i < ELEMENTS; i++)
			k->weights[i] = whole(rank, 999, i);
		fake_site_init(&k->at, w->net, rank + 1, BOX_HOST);
		k->rack = worker_connect(k, rank / MEMBERS, "inside", rank % MEMBERS, MEMBERS);
		k->across = worker_connect(k, ABOVE, "across", rank, WORKERS);
	}
}

static void world_close(struct world *w)
{
	for (struct worker *k = w->workers; k < w->workers + WORKERS; k++) {
		phub_site_close(k->around);
		phub_site_close(k->within);
		client_close(k->across);
		client_close(k->rack);
	}
	for (unsigned i = 0; i < BOXES; i++)
		place_close(w, i);
	loop_net_destroy(w->net);
	config_fini(&w->config);
}

/* All do what they can, then time goes on to what comes next. */
static void world_turn(struct world *w)
{
	uint64_t now, next;

	for (unsigned rank = 0; rank < WORKERS; rank++)
		worker_turn(w, &w->workers[rank]);
	for (unsigned again = 0; again < 4; again++) {
		for (unsigned i = 0; i < BOXES; i++)
			if (w->places[i].box)
				box_step(w->places[i].box, loop_net_now(w->net));
		loop_net_advance(w->net, loop_net_now(w->net));
	}
	now = loop_net_now(w->net);
	next = loop_net_next(w->net);
	next = next > now + MS / 10 ? next : now + MS / 10;
	loop_net_advance(w->net, next < now + 5 * MS ? next : now + 5 * MS);
}

static bool world_done(const struct world *w)
{
	for (const struct worker *k = w->workers; k < w->workers + WORKERS; k++)
		if (k->stage < TRAINS || k->rc != 0 || k->steps < w->steps)
			return false;
	return true;
}

static void world_finish(struct world *w)
{
	for (unsigned turn = 0; !world_done(w); turn++) {
		if (turn == TURNS_MAX)
			fail_msg("%s: it does not end", w->way->name);
		world_turn(w);
	}
}

static void world_kill(struct world *w, unsigned i)
{
	loop_net_kill(w->net, BOX_HOST + i);
	place_close(w, i);
}

static void world_revive(struct world *w)
{
	for (unsigned i = 0; i < BOXES; i++) {
		if (w->places[i].box)
			continue;
		loop_net_revive(w->net, BOX_HOST + i);
		place_open(w, i);
	}
}

/* ---- what is to come of it ---- */

static void plain_in_racks(double *w, double *common)
{
	for (unsigned rack = 0; rack < RACKS; rack++) {
		common[rack] = (w[rack * MEMBERS] + w[rack * MEMBERS + 1]) / MEMBERS;
		for (unsigned k = 0; k < MEMBERS; k++)
			w[rack * MEMBERS + k] = common[rack];
	}
}

static void plain_across(double *w, double *common)
{
	const double mean = (common[0] + common[1]) / RACKS;

	for (unsigned k = 0; k < WORKERS; k++)
		w[k] += mean - common[k / MEMBERS];
	common[0] = common[1] = mean;
}

static void plain_run(const struct way *way, unsigned steps, float out[WORKERS][ELEMENTS])
{
	for (unsigned i = 0; i < ELEMENTS; i++) {
		double w[WORKERS], common[RACKS];

		for (unsigned k = 0; k < WORKERS; k++)
			w[k] = common[k / MEMBERS] = whole(0, 999, i);
		for (unsigned step = 0; step < steps; step++) {
			for (unsigned k = 0; k < WORKERS; k++)
				w[k] -= whole(k, step, i);
			if ((step + 1) % (unsigned)way->rack_theta == 0)
				plain_in_racks(w, common);
			if ((step + 1) % (unsigned)way->theta == 0)
				plain_across(w, common);
		}
		for (unsigned k = 0; k < WORKERS; k++)
			out[k][i] = (float)w[k];
	}
}

struct outcome {
	float weights[WORKERS][ELEMENTS];
	uint64_t exchanges[WORKERS][2]; /* within, around */
};

static void world_outcome(const struct world *w, struct outcome *out)
{
	for (unsigned k = 0; k < WORKERS; k++) {
		const struct worker *worker = &w->workers[k];

		memcpy(out->weights[k], worker->weights, sizeof(worker->weights));
		out->exchanges[k][0] = worker->within->exchanges;
		out->exchanges[k][1] = worker->around->exchanges;
	}
}

static const struct loop_plan at_once = {.seed = 1, .hosts = BOX_HOST + BOXES};

/* Where nothing dies. */
static void undisturbed(const struct way *way, unsigned steps, struct outcome *out)
{
	float plain[WORKERS][ELEMENTS];
	struct world w;

	world_open(&w, way, steps, &at_once);
	world_finish(&w);
	world_outcome(&w, out);
	world_close(&w);
	plain_run(way, steps, plain);
	if (way->plain)
		assert_memory_equal(out->weights, plain, sizeof(plain));
}

static void expect(const struct world *w, const struct outcome *wanted, const char *what)
{
	struct outcome out;

	world_outcome(w, &out);
	for (unsigned k = 0; k < WORKERS; k++) {
		for (unsigned i = 0; i < ELEMENTS; i++)
			if (out.weights[k][i] != wanted->weights[k][i])
				fail_msg("%s, %s: worker %u, element %u is %g, not %g", w->way->name, what, k, i,
					out.weights[k][i], wanted->weights[k][i]);
		assert_memory_equal(out.exchanges[k], wanted->exchanges[k], sizeof(out.exchanges[k]));
	}
}

/* ---- some have a result, and others not ---- */

/* Until those of the cut hear nothing, and the others wait for them. */
static void world_stand_still(struct world *w)
{
	for (unsigned still = 0, turns = 0; still < STILL; turns++) {
		unsigned deaf = 0;

		assert_true(turns < TURNS_MAX);
		world_turn(w);
		for (unsigned k = 0; k < WORKERS; k++)
			deaf |= (unsigned)w->workers[k].deaf << k;
		still += deaf == w->cut.deaf;
	}
	w->cut.deaf = 0;
}

/* What these boxes (bits) say is heard again; `lost`: not what was on its way. */
static void heal(struct world *w, unsigned boxes, bool lost)
{
	for (struct worker *k = w->workers; k < w->workers + WORKERS; k++) {
		const unsigned box = cut_box(w, k);

		if (!k->deaf || !(boxes & 1u << box))
			continue;
		if (lost)
			loop_net_break(w->net, k->rank + 1, BOX_HOST + box);
		loop_net_deafen(w->net, BOX_HOST + box, k->rank + 1, false);
		k->deaf = false;
	}
}

/* With them goes what was on its way to those who hear nothing. */
static void kill_all_of(struct world *w, unsigned boxes)
{
	heal(w, boxes, true);
	for (unsigned i = 0; i < BOXES; i++)
		if (boxes & 1u << i)
			world_kill(w, i);
}

/* `victims`: bits of boxes. Those who hear nothing have their result later where its box lives. */
static void die_in(const struct way *way, struct cut cut, unsigned victims, const struct outcome *wanted)
{
	char what[160];
	struct world w;

	snprintf(what, sizeof(what), "exchange %" PRIu64 " %s, without results: %x, boxes that die: %x", cut.exchange,
		cut.across ? "across" : "within", cut.deaf, victims);
	world_open(&w, way, STEPS, &at_once);
	w.cut = cut;
	world_stand_still(&w);
	kill_all_of(&w, victims);
	for (unsigned turn = 0; turn < STILL; turn++)
		world_turn(&w);
	heal(&w, EVERY_BOX, false);
	world_revive(&w);
	world_finish(&w);
	expect(&w, wanted, what);
	world_close(&w);
}

static void test_half_a_rack_has_the_result(void **state)
{
	static const unsigned deaf[] = {0x1, 0x2, 0x3, 0x6, 0xd, 0xf}; /* nobody, one, or both of a rack */
	static const unsigned victims[] = {1, 1 << ABOVE, 1 | 1 << ABOVE, EVERY_BOX};
	struct outcome wanted;

	for (unsigned way = 0; way < WAYS; way++) {
		undisturbed(&ways[way], STEPS, &wanted);
		for (unsigned d = 0; d < sizeof(deaf) / sizeof(deaf[0]); d++)
			for (unsigned v = 0; v < sizeof(victims) / sizeof(victims[0]); v++) {
				die_in(&ways[way], (struct cut){false, true, 2, deaf[d]}, victims[v], &wanted);
				die_in(&ways[way], (struct cut){false, false, 3, deaf[d]}, victims[v], &wanted);
			}
	}
}

/* ---- some have a part of what they come to ---- */

/* Rank 0 has no result of an exchange, then comes to it, and has the weights when all boxes die again. */
static void die_in_sync(const struct way *way, bool across, const struct outcome *wanted)
{
	struct world w;

	world_open(&w, way, STEPS, &at_once);
	for (unsigned half = 0; half < 2; half++) {
		w.cut = (struct cut){half, across, across ? 2 : 3, 1};
		world_stand_still(&w);
		kill_all_of(&w, EVERY_BOX);
		world_turn(&w);
		world_revive(&w);
	}
	world_finish(&w);
	expect(&w, wanted, across ? "half a sync across" : "half a sync within");
	world_close(&w);
}

static void test_half_a_sync_is_none(void **state)
{
	struct outcome wanted;

	for (unsigned way = 0; way < WAYS; way++) {
		undisturbed(&ways[way], STEPS, &wanted);
		if (ways[way].outer != PHUB_OUTER_AVERAGE)
			die_in_sync(&ways[way], true, &wanted);
		if (ways[way].algorithm == PHUB_SITE_BSP) /* of its momentum; else weights are all */
			die_in_sync(&ways[way], false, &wanted);
	}
}

/* ---- at any time ---- */

enum { SEEDS = 12, DEATHS = 8, STEPS_LONG = 30, STEPS_LAST = 4 };

static bool world_trains(const struct world *w)
{
	for (const struct worker *k = w->workers; k < w->workers + WORKERS; k++)
		if (k->stage < TRAINS)
			return false;
	return true;
}

/* Who has made all steps waits for nobody who has lost a box. */
static bool world_nears_its_end(const struct world *w)
{
	for (const struct worker *k = w->workers; k < w->workers + WORKERS; k++)
		if (k->steps + STEPS_LAST > w->steps)
			return true;
	return false;
}

/* Turns below this. */
static void world_pass(struct world *w, uint64_t most)
{
	for (uint64_t turns = loop_net_random(w->net) % most; turns > 0; turns--)
		world_turn(w);
}

static void die_at_any_time(const struct way *way, uint64_t seed, const struct outcome *wanted)
{
	const struct loop_plan plan = {
		.seed = seed, .hosts = BOX_HOST + BOXES, .delay_min_ns = MS / 20, .delay_max_ns = MS, .split = 0.2};
	struct world w;
	char what[64];

	snprintf(what, sizeof(what), "seed %" PRIu64, seed);
	world_open(&w, way, STEPS_LONG, &plan);
	while (!world_trains(&w))
		world_turn(&w);
	for (unsigned death = 0; death < DEATHS; death++) {
		const unsigned victims = 1 + (unsigned)(loop_net_random(w.net) % EVERY_BOX);

		world_pass(&w, loop_net_random(w.net) % 2 ? 150 : 40);
		if (world_nears_its_end(&w))
			break;
		kill_all_of(&w, victims);
		world_pass(&w, 60);
		world_revive(&w);
	}
	world_finish(&w);
	expect(&w, wanted, what);
	world_close(&w);
}

static void test_boxes_die_at_any_time(void **state)
{
	struct outcome wanted;

	for (unsigned way = 0; way < WAYS; way++) {
		undisturbed(&ways[way], STEPS_LONG, &wanted);
		for (uint64_t seed = 1; seed <= SEEDS; seed++)
			die_at_any_time(&ways[way], seed, &wanted);
	}
}

TEST_PROGRAM(test_within_lost)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_half_a_rack_has_the_result),
		cmocka_unit_test(test_half_a_sync_is_none),
		cmocka_unit_test(test_boxes_die_at_any_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
