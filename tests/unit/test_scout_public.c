/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public calls of scouts, and of sites before they are at a job: each error of the contract, and that what is
 * decided is in force only once it is applied. Sites at a box: tests/system/test_sites.py.
 */
#include "client/phub.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "client/scout/options.h"
#include "tests/unit/fake_box.h"

enum { SITES = 3 };

static const double grid[] = {1, 2, 5, 10};

static struct phub_scout_options options_of(enum phub_scout_policy policy)
{
	struct phub_scout_options o;

	phub_scout_options_init(&o);
	o.policy = policy;
	o.thetas = grid;
	o.theta_count = 4;
	o.first = 2;
	o.model_bytes = 1000;
	return o;
}

static phub_scout_t *scout_of(enum phub_scout_policy policy)
{
	const struct phub_scout_options o = options_of(policy);
	phub_scout_t *scout;

	assert_int_equal(phub_scout_create(&o, &scout), 0);
	return scout;
}

static void tell(phub_scout_t *scout, double loss)
{
	struct phub_scout_report reports[SITES];

	for (unsigned i = 0; i < SITES; i++)
		reports[i] = (struct phub_scout_report){
			.size = sizeof(reports[i]), .home = 0.9, .away = 0.9 - loss, .samples = 100, .bytes = 50000};
	assert_int_equal(phub_scout_observe(scout, reports, SITES), 0);
}

static void test_three_steps(void **state)
{
	struct phub_scout_decision d = {.size = sizeof(d)}, again = d;
	phub_scout_t *scout = scout_of(PHUB_SCOUT_HILL);

	assert_int_equal(phub_scout_decide(scout, &d), -ENODATA);
	assert_int_equal(phub_scout_apply(scout), -ENODATA);
	tell(scout, 0);
	assert_int_equal(phub_scout_apply(scout), -ENODATA);
	tell(scout, 0.3); /* instead */
	assert_int_equal(phub_scout_decide(scout, &d), 0);
	assert_int_equal(phub_scout_decide(scout, &again), 0);
	assert_memory_equal(&d, &again, sizeof(d));
	assert_int_equal(d.action, PHUB_SCOUT_TIGHTENS);
	assert_true(d.theta == 2 && phub_scout_theta(scout) == 5);
	assert_true(fabs(d.loss - 0.3) < 1e-12);
	assert_int_equal(d.believed, SITES);
	assert_string_equal(d.reason, "what theta 2 costs is not known yet");
	assert_int_equal(phub_scout_apply(scout), 0);
	assert_true(phub_scout_theta(scout) == 2);
	assert_int_equal(phub_scout_apply(scout), -ENODATA);
	assert_int_equal(phub_scout_decide(scout, &d), -ENODATA);
	phub_scout_destroy(scout);
	phub_scout_destroy(NULL);
}

/* A caller whose structs are shorter, or longer, than those here. */
static void test_sizes(void **state)
{
	struct {
		struct phub_scout_report report;
		double more;
	} longer[2] = {
		{.report = {.size = sizeof(longer[0]), .home = 0.9, .away = 0.9, .samples = 100, .bytes = 7},
			.more = 1},
		{.report = {.size = sizeof(longer[0]), .home = 0.9, .away = 0.5, .samples = 100, .bytes = 9},
			.more = 1},
	};
	struct phub_scout_decision d = {.size = offsetof(struct phub_scout_decision, index), .index = 77};
	struct phub_scout_options o = options_of(PHUB_SCOUT_FIXED);
	phub_scout_t *scout;

	o.size = offsetof(struct phub_scout_options, sigma);
	o.sigma = NAN; /* not read */
	assert_int_equal(phub_scout_create(&o, &scout), 0);
	assert_int_equal(phub_scout_observe(scout, &longer[0].report, 2), 0);
	assert_int_equal(phub_scout_decide(scout, &d), 0);
	assert_true(d.theta == 5);
	assert_int_equal(d.index, 77);
	d.size = sizeof(d);
	assert_int_equal(phub_scout_decide(scout, &d), 0);
	assert_true(fabs(d.loss - 0.2) < 1e-12);
	d.size = 3;
	assert_int_equal(phub_scout_decide(scout, &d), -EINVAL);
	assert_int_equal(phub_scout_decide(scout, NULL), -EINVAL);
	longer[0].report.size = 3;
	assert_int_equal(phub_scout_observe(scout, &longer[0].report, 2), -EINVAL);
	phub_scout_destroy(scout);
}

static void test_saved(void **state)
{
	struct phub_scout_options other = options_of(PHUB_SCOUT_HILL);
	phub_scout_t *scout = scout_of(PHUB_SCOUT_HILL), *later = scout_of(PHUB_SCOUT_HILL), *strange;
	struct phub_scout_decision d = {.size = sizeof(d)};
	int bytes = phub_scout_save(scout, NULL, 0);
	uint8_t *saved;

	assert_true(bytes > 0);
	saved = malloc((size_t)bytes);
	assert_non_null(saved);
	tell(scout, 0.3);
	assert_int_equal(phub_scout_decide(scout, &d), 0);
	assert_int_equal(phub_scout_apply(scout), 0);
	assert_int_equal(phub_scout_save(scout, saved, (size_t)bytes - 1), -ENOSPC);
	assert_int_equal(phub_scout_save(scout, saved, (size_t)bytes), bytes);
	assert_int_equal(phub_scout_load(later, saved, (size_t)bytes), 0);
	assert_true(phub_scout_theta(later) == 2);
	other.sigma = 0.5;
	assert_int_equal(phub_scout_create(&other, &strange), 0);
	assert_int_equal(phub_scout_load(strange, saved, (size_t)bytes), -EINVAL);
	saved[9] ^= 1;
	assert_int_equal(phub_scout_load(later, saved, (size_t)bytes), -EBADMSG);
	assert_true(phub_scout_theta(later) == 2 && phub_scout_theta(strange) == 5);
	assert_int_equal(phub_scout_load(later, NULL, 0), -EINVAL);
	assert_int_equal(phub_scout_save(NULL, NULL, 0), -EINVAL);
	free(saved);
	phub_scout_destroy(scout);
	phub_scout_destroy(later);
	phub_scout_destroy(strange);
}

static void test_scout_errors(void **state)
{
	struct phub_scout_report report = {.size = sizeof(report)};
	struct phub_scout_options o = options_of(PHUB_SCOUT_REPLAY);
	phub_scout_t *scout = scout_of(PHUB_SCOUT_HILL), *none;

	assert_int_equal(phub_scout_create(NULL, &none), -EINVAL);
	assert_int_equal(phub_scout_create(&o, NULL), -EINVAL);
	assert_int_equal(phub_scout_create(&o, &none), -EINVAL); /* no schedule */
	assert_non_null(strstr(phub_error(), "schedule"));
	o.schedule_count = 1025;
	o.schedule = grid;
	assert_int_equal(phub_scout_create(&o, &none), -EINVAL);
	o = options_of(PHUB_SCOUT_HILL);
	o.thetas = NULL;
	assert_int_equal(phub_scout_create(&o, &none), -EINVAL);
	assert_true(isnan(phub_scout_theta(NULL)));
	assert_int_equal(phub_scout_host(scout, 0, 1), -EINVAL);
	assert_int_equal(phub_scout_host(scout, 2, 2), -EINVAL);
	assert_int_equal(phub_scout_host(scout, 0, 2), 1);
	assert_int_equal(phub_scout_observe(scout, &report, 0), -EINVAL);
	assert_int_equal(phub_scout_observe(scout, NULL, 1), -EINVAL);
	assert_int_equal(phub_scout_observe(scout, &report, 4097), -EINVAL);
	phub_scout_destroy(scout);
}

/* ---- sites ---- */

struct rig {
	struct loop_net *net;
	struct fake_site site;
	phub_t *phub;
};

/* On its way to a box that is not there. */
static void rig_open(struct rig *r, const struct phub_options *options)
{
	struct loop_plan plan = {.seed = 1, .hosts = 2, .delay_min_ns = 1000, .delay_max_ns = 5000};
	struct err e;

	r->net = loop_net_create(&plan);
	fake_site_init(&r->site, r->net, 1, 0);
	assert_int_equal(client_open("phub://box/demo", options, &r->site.env, &r->phub, &e), 0);
}

static void rig_close(struct rig *r)
{
	phub_close(r->phub);
	loop_net_destroy(r->net);
}

/* What a job with these options says to a site with those. */
static int opened(const struct phub_options *job, const struct phub_site_options *options)
{
	phub_site_t *site = NULL;
	struct rig r;
	int rc;

	rig_open(&r, job);
	rc = phub_site_open(r.phub, options, &site);
	assert_true((rc == 0) == (site != NULL));
	phub_site_close(site);
	rig_close(&r);
	return rc;
}

static void test_jobs(void **state)
{
	struct phub_options job;
	struct phub_site_options site;

	phub_options_init(&job);
	phub_site_options_init(&site);
	assert_int_equal(opened(&job, &site), 0);
	assert_int_equal(opened(&job, NULL), 0);
	job.reduce = PHUB_MEAN;
	assert_int_equal(opened(&job, &site), -EINVAL);
	site.outer = PHUB_OUTER_BOX;
	assert_int_equal(opened(&job, &site), -EINVAL); /* no optimizer */
	job.optimizer = PHUB_NESTEROV;
	assert_int_equal(opened(&job, &site), 0);
	site.weighted = true;
	assert_int_equal(opened(&job, &site), -ENOTSUP);
	site.weighted = false;
	site.outer = PHUB_OUTER_AVERAGE;
	assert_int_equal(opened(&job, &site), -EINVAL);
	job.sync = PHUB_ASYNC;
	assert_int_equal(opened(&job, &site), -EINVAL);
}

static const struct {
	enum phub_site_algorithm algorithm;
	double thetas[4];
	const char *right; /* NULL: it is */
} order_cases[] = {
	{PHUB_SITE_LOCAL, {1, 2, 5, 10}, NULL},
	{PHUB_SITE_LOCAL, {10, 5, 2, 1},
		"theta 5 comes after 10 in the grid, whose first is the tightest, of local "
		"the smallest: 1,2,5,10"},
	{PHUB_SITE_LOCAL, {1, 5, 2, 10},
		"theta 2 comes after 5 in the grid, whose first is the tightest, of local "
		"the smallest: 1,2,5,10"},
	{PHUB_SITE_GAIA, {0, 0.05, 0.1, 0.2}, NULL},
	{PHUB_SITE_GAIA, {0.2, 0.1, 0.05, 0}, "of gaia the smallest: 0,0.05,0.1,0.2"},
	{PHUB_SITE_DGC, {1, 0.1, 0.01, 0.001},
		"hill goes by what models lose at other sites, and those of dgc, which sums alone move, are "
		"one"},
	{PHUB_SITE_DGC, {0.001, 0.01, 0.1, 1}, "of dgc the largest: 1,0.1,0.01,0.001"},
};

/* The tightest theta is the first: the smallest, but of DGC the largest; the error has the right order. */
static void test_order(void **state)
{
	struct phub_scout_options scout = options_of(PHUB_SCOUT_HILL);

	for (unsigned i = 0; i < sizeof(order_cases) / sizeof(order_cases[0]); i++) {
		struct phub_site_options o;

		phub_site_options_init(&o);
		o.algorithm = order_cases[i].algorithm;
		o.scout = &scout;
		scout.thetas = order_cases[i].thetas;
		assert_int_equal(opened(NULL, &o), !order_cases[i].right ? 0 : i == 5 ? -ENOTSUP : -EINVAL);
		if (order_cases[i].right && !strstr(phub_error(), order_cases[i].right))
			fail_msg("%s, not %s", phub_error(), order_cases[i].right);
	}
	for (unsigned policy = PHUB_SCOUT_FIXED; policy <= PHUB_SCOUT_ANNEALING; policy++) {
		const bool schedules = policy == PHUB_SCOUT_REPLAY, decides = policy >= PHUB_SCOUT_HILL;

		for (scout.theta_count = 1; scout.theta_count <= 4; scout.theta_count += 3) {
			struct phub_site_options o;

			phub_site_options_init(&o);
			o.algorithm = PHUB_SITE_DGC;
			o.scout = &scout;
			scout.policy = (enum phub_scout_policy)policy;
			scout.thetas = scout.schedule = order_cases[5].thetas;
			scout.schedule_count = schedules ? 4 : 0;
			assert_int_equal(opened(NULL, &o), decides && scout.theta_count > 1 ? -ENOTSUP : 0);
		}
	}
	scout = options_of(PHUB_SCOUT_HILL);
	scout.theta_count = 0;
	{
		struct phub_site_options o;

		phub_site_options_init(&o);
		o.scout = &scout;
		assert_int_equal(opened(NULL, &o), -EINVAL);
		assert_non_null(strstr(phub_error(), "it has no thetas; needs 1 to 64"));
	}
}

/* So it is of a scout that is by itself, whose thetas may be of another kind. */
static void test_order_alone(void **state)
{
	struct phub_scout_options scout = options_of(PHUB_SCOUT_HILL);
	phub_scout_t *alone;

	scout.theta_count = 4;
	for (unsigned i = 1; i < 3; i++) {
		scout.thetas = order_cases[i].thetas;
		assert_int_equal(phub_scout_create(&scout, &alone), -EINVAL);
		assert_non_null(strstr(phub_error(), order_cases[i].right));
	}
	scout.thetas = (const double[]){0.25, 0.5, 1.75, 2.5};
	assert_int_equal(phub_scout_create(&scout, &alone), 0);
	phub_scout_destroy(alone);
	scout.policy = PHUB_SCOUT_FIXED;
	scout.algorithm = PHUB_SITE_DGC;
	scout.thetas = order_cases[5].thetas;
	assert_int_equal(phub_scout_create(&scout, &alone), 0);
	phub_scout_destroy(alone);
	scout.thetas = order_cases[6].thetas;
	assert_int_equal(phub_scout_create(&scout, &alone), -EINVAL);
	assert_non_null(strstr(phub_error(), order_cases[6].right));
}

/* Windows are as long as the policy was measured with. */
static void test_periods(void **state)
{
	static const uint32_t wanted[] = {500, 500, 500, 500, 500, 50};
	struct scout_config c;
	struct err e;

	for (unsigned policy = 0; policy < 6; policy++) {
		struct phub_scout_options o = options_of((enum phub_scout_policy)policy);

		assert_int_equal(options_scout(&o, NULL, &c, &e), 0);
		assert_int_equal(c.period, wanted[policy]);
		o.period = 7;
		assert_int_equal(options_scout(&o, NULL, &c, &e), 0);
		assert_int_equal(c.period, 7);
	}
}

static void test_site_options(void **state)
{
	struct phub_scout_options scout = options_of(PHUB_SCOUT_HILL);
	const double bad[] = {1, 2.5};
	struct phub_site_options o;

	phub_site_options_init(&o);
	for (unsigned i = 0; i < 4; i++) {
		o.algorithm = (enum phub_site_algorithm)i;
		assert_int_equal(opened(NULL, &o), 0); /* each with its paper's theta */
	}
	o.algorithm = (enum phub_site_algorithm)4;
	assert_int_equal(opened(NULL, &o), -EINVAL);
	o.algorithm = PHUB_SITE_LOCAL;
	o.theta = 0;
	assert_int_equal(opened(NULL, &o), -EINVAL);
	o.scout = &scout;
	o.theta = 5;
	assert_int_equal(opened(NULL, &o), -EINVAL);
	assert_non_null(strstr(phub_error(), "theta=5 beside a scout, which sets it"));
	o.theta = NAN;
	assert_int_equal(opened(NULL, &o), 0); /* it has the thetas */
	o.samples = UINT64_MAX;
	assert_int_equal(opened(NULL, &o), -EINVAL);
	assert_non_null(strstr(phub_error(), "samples=18446744073709551615; allowed: 0 to 2^53"));
	o.samples = UINT64_C(1) << 53;
	assert_int_equal(opened(NULL, &o), 0);
	o.scout = NULL;
	o.algorithm = PHUB_SITE_BSP;
	o.outer = PHUB_OUTER_ADAM;
	assert_int_equal(opened(NULL, &o), -EINVAL);
	assert_non_null(strstr(phub_error(), "outer=adam is of PHUB_SITE_LOCAL, and the algorithm is bsp"));
	o.algorithm = PHUB_SITE_LOCAL;
	o.outer = PHUB_OUTER_AVERAGE;
	o.scout = &scout;
	scout.thetas = bad;
	scout.theta_count = 2;
	scout.first = 0;
	assert_int_equal(opened(NULL, &o), -EINVAL);
	assert_non_null(strstr(phub_error(), "2.5"));
	scout.thetas = grid;
	scout.policy = PHUB_SCOUT_REPLAY;
	scout.schedule = bad;
	scout.schedule_count = 2;
	assert_int_equal(opened(NULL, &o), -EINVAL);
	scout.size = 1;
	assert_int_equal(opened(NULL, &o), -EINVAL);
	o.scout = NULL;
	o.size = 5000;
	assert_int_equal(opened(NULL, &o), -EINVAL);
}

static void test_scores(void **state)
{
	const struct phub_score good[] = {{1, 0, 0}, {400, 400, 3}, {400, UINT64_MAX, 3}, {400, 1, NAN}};
	const struct phub_score bad[] = {{0, 0, 0}, {0, UINT64_MAX, 1}, {400, 401, 3}};
	phub_site_t *site;
	struct rig r;

	rig_open(&r, NULL);
	assert_int_equal(phub_site_open(r.phub, NULL, &site), 0);
	for (unsigned i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		assert_int_equal(phub_site_score(site, &good[i]), 0); /* before it starts, too */
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(phub_site_score(site, &bad[i]), -EINVAL);
	assert_int_equal(phub_site_score(site, NULL), -EINVAL);
	assert_int_equal(phub_site_score(NULL, &good[0]), -EINVAL);
	phub_site_close(site);
	rig_close(&r);
}

static void test_tensors(void **state)
{
	const float *gradients[2] = {NULL, NULL};
	float weights[4] = {0};
	struct phub_site_state told = {.size = sizeof(told)};
	struct phub_scout_decision decision = {.size = sizeof(decision)};
	phub_site_t *site, *second;
	struct rig r;

	rig_open(&r, NULL);
	assert_int_equal(phub_site_open(NULL, NULL, &site), -EINVAL);
	assert_int_equal(phub_site_open(r.phub, NULL, NULL), -EINVAL);
	assert_int_equal(phub_site_open(r.phub, NULL, &site), 0);
	assert_int_equal(phub_site_start(site, 0), -EINVAL);
	assert_int_equal(phub_site_tensor(site, "a", weights, 3, true), 0);
	assert_int_equal(phub_site_tensor(site, "a", weights, 3, true), -EINVAL);
	assert_int_equal(phub_site_tensor(site, "b", weights, 0, true), -EINVAL);
	assert_int_equal(phub_site_tensor(site, "b", NULL, 3, true), -EINVAL);
	assert_int_equal(phub_site_tensor(site, "b", weights + 3, 1, false), 1);
	assert_int_equal(phub_site_frozen(site, "c", "abc", 3), 0);
	assert_int_equal(phub_site_frozen(site, "c", "abc", 0), -EINVAL);
	assert_int_equal(phub_site_frozen(site, "", "abc", 3), -EINVAL);
	assert_int_equal(phub_site_frozen(site, "c", NULL, 3), -EINVAL);
	assert_int_equal(phub_site_frozen(NULL, "c", "abc", 3), -EINVAL);
	assert_int_equal(phub_site_open(r.phub, NULL, &second), -EBUSY);
	assert_int_equal(phub_site_step(site, gradients, 0.1, 0), -EINVAL);
	assert_int_equal(phub_site_wait(site, 0), -EINVAL);
	assert_int_equal(phub_site_resume(site, 0), -EINVAL);
	assert_int_equal(phub_site_flush(site), -EINVAL);
	assert_int_equal(phub_site_finish(site, 0), -EINVAL);
	assert_int_equal(phub_site_finish(NULL, 0), -EINVAL);
	assert_int_equal(phub_site_set_theta(site, 5), -EINVAL);
	assert_int_equal(phub_site_set_samples(site, 5), -EINVAL);
	assert_int_equal(phub_site_decision(site, &decision), -ENODATA);
	assert_int_equal(phub_site_alignment(site, NULL, 0), -ENODATA);
	assert_int_equal(phub_site_alignment(site, NULL, 1), -EINVAL);
	assert_int_equal(phub_site_alignment(NULL, NULL, 0), -EINVAL);
	assert_int_equal(phub_site_ranks(site, NULL, 0), 0);
	assert_int_equal(phub_site_ranks(site, NULL, 1), -EINVAL);
	assert_int_equal(phub_site_ranks(NULL, NULL, 0), -EINVAL);
	assert_int_equal(phub_site_state(site, &told), 0);
	assert_true(told.theta == 20 && told.steps == 0);
	told.size = 1;
	assert_int_equal(phub_site_state(site, &told), -EINVAL);
	assert_int_equal(phub_site_start(site, -7), -EINVAL);
	assert_int_equal(phub_site_step(NULL, gradients, 0.1, 0), -EINVAL);
	phub_site_close(site);
	phub_site_close(NULL);
	rig_close(&r);
}

/* scout+ by itself: from what it hears, to the same decision as another that was saved in the middle of a window. */
static void test_plus(void **state)
{
	struct phub_scout_options o = options_of(PHUB_SCOUT_PLUS);
	struct phub_scout_decision d = {.size = sizeof(d)}, other = d;
	struct phub_scout_report reports[SITES];
	phub_scout_t *one, *two;
	char saved[4096];

	for (unsigned i = 0; i < SITES; i++)
		reports[i] = (struct phub_scout_report){.size = sizeof(reports[i]), .trained = 1000, .train = 0.5};
	assert_int_equal(phub_scout_create(&o, &one), 0);
	assert_int_equal(phub_scout_create(&o, &two), 0);
	assert_int_equal(phub_scout_hear(NULL, 1, 1, 1, 1), -EINVAL);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(phub_scout_hear(one, 1, 1, (const double[]){0, -1, 1.01, NAN}[i], 1), -EINVAL);
	for (unsigned window = 0; window < 12; window++) {
		for (unsigned i = 0; i < 10; i++) {
			assert_int_equal(phub_scout_hear(one, 1, 0.9 / SITES, 1.0 / SITES, 0.1), 0);
			if (i == 1) {
				assert_true(phub_scout_save(one, saved, sizeof(saved)) > 0);
				assert_int_equal(phub_scout_load(two, saved, (size_t)phub_scout_save(one, NULL, 0)), 0);
			}
			if (i > 1)
				assert_int_equal(phub_scout_hear(two, 1, 0.9 / SITES, 1.0 / SITES, 0.1), 0);
		}
		assert_int_equal(phub_scout_observe(one, reports, SITES), 0);
		assert_int_equal(phub_scout_observe(two, reports, SITES), 0);
		assert_int_equal(phub_scout_decide(one, &d), 0);
		assert_int_equal(phub_scout_decide(two, &other), 0);
		assert_true(d.theta == other.theta && d.tries == other.tries && d.train == 0.5);
		assert_true(d.r == other.r && fabs(d.r - 0.9 / SITES) < 1e-12);
		assert_memory_equal(&d.pull, &other.pull, sizeof(d.pull)); /* NaN at first */
		assert_string_equal(d.reason, other.reason);
		assert_int_equal(phub_scout_apply(one), 0);
	}
	assert_true(d.theta == o.thetas[o.theta_count - 1] && d.pull > 0.1 && d.pull < 0.12);
	phub_scout_destroy(one);
	phub_scout_destroy(two);
	o.algorithm = PHUB_SITE_DGC;
	assert_int_equal(phub_scout_create(&o, &one), -ENOTSUP);
	o.algorithm = PHUB_SITE_GAIA;
	assert_int_equal(phub_scout_create(&o, &one), -EINVAL);
	assert_non_null(strstr(phub_error(), "a grid of gaia begins with 0"));
	o.algorithm = PHUB_SITE_LOCAL;
	o.gain = 0;
	assert_int_equal(phub_scout_create(&o, &one), -EINVAL);
	o.gain = 0.02;
	o.worth = -1;
	assert_int_equal(phub_scout_create(&o, &one), -EINVAL);
	assert_non_null(strstr(phub_error(), "scout+: worth needs to be a number from 0 on; with 0 gain holds"));
}

/* Windows until theta is another than the tightest, of sites that pull a little apart; 0: it never is. */
static unsigned loose_after(const struct phub_scout_options *o, double *theta)
{
	struct phub_scout_report reports[SITES];
	phub_scout_t *scout;
	unsigned found = 0;

	for (unsigned i = 0; i < SITES; i++)
		reports[i] = (struct phub_scout_report){.size = sizeof(reports[i])};
	assert_int_equal(phub_scout_create(o, &scout), 0);
	for (unsigned window = 1; window <= 30; window++) {
		for (unsigned i = 0; i < 10; i++)
			assert_int_equal(phub_scout_hear(scout, 1, 1.0 / SITES / 21, 1.0 / SITES, 0.1), 0);
		assert_int_equal(phub_scout_observe(scout, reports, SITES), 0);
		assert_int_equal(phub_scout_decide(scout, &(struct phub_scout_decision){.size = sizeof(size_t)}), 0);
		assert_int_equal(phub_scout_apply(scout), 0);
		found = found == 0 && phub_scout_theta(scout) > o->thetas[0] ? window : found;
	}
	*theta = phub_scout_theta(scout);
	phub_scout_destroy(scout);
	return found;
}

/* What was measured on some data may be said to be another: it is taken, has limits that name it, is of what a state
 * belongs to, and a program that does not know it has what was measured. */
static void test_plus_measured(void **state)
{
	static const double thetas[] = {
		1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 24, 28, 34, 40, 48, 56, 68, 80, 100};
	struct phub_scout_options usual = options_of(PHUB_SCOUT_PLUS), o;
	double theta, twice;

	usual.thetas = thetas;
	usual.theta_count = sizeof(thetas) / sizeof(thetas[0]);
	assert_true(usual.ease == 1 && usual.passes == 40 && usual.guard == 0.5 && usual.drift == 0.5 &&
		    usual.probes == 0.02);
	assert_int_equal(loose_after(&usual, &theta), 6);
	o = usual;
	o.ease = 4;
	o.passes = 80;
	assert_int_equal(loose_after(&o, &twice), 10);
	assert_true(twice > 3 * theta && twice < 5 * theta);
	o.size = offsetof(struct phub_scout_options, ease);
	assert_int_equal(loose_after(&o, &twice), 6);
	assert_true(twice == theta);
	for (unsigned i = 0; i < 5; i++) {
		phub_scout_t *one, *other;
		char saved[4096];
		int bytes;

		o = usual;
		o.ease = i == 0 ? 2 : o.ease;
		o.passes = i == 1 ? 41 : o.passes;
		o.guard = i == 2 ? 2 : o.guard;
		o.drift = i == 3 ? 0 : o.drift;
		o.probes = i == 4 ? 0 : o.probes;
		assert_int_equal(phub_scout_create(&usual, &one), 0);
		assert_int_equal(phub_scout_create(&o, &other), 0);
		bytes = phub_scout_save(one, saved, sizeof(saved));
		assert_true(bytes > 0);
		assert_int_equal(phub_scout_load(other, saved, (size_t)bytes), -EINVAL);
		phub_scout_destroy(one);
		phub_scout_destroy(other);
	}
}

/* What cannot be is refused by its name. */
static void test_plus_limits(void **state)
{
	static const struct {
		const char *name;
		size_t at;
		double value;
	} cases[] = {{"ease", offsetof(struct phub_scout_options, ease), 0},
		{"guard", offsetof(struct phub_scout_options, guard), 0},
		{"drift", offsetof(struct phub_scout_options, drift), -1},
		{"drift", offsetof(struct phub_scout_options, drift), INFINITY},
		{"probes", offsetof(struct phub_scout_options, probes), 1.5}};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct phub_scout_options o = options_of(PHUB_SCOUT_PLUS);
		phub_scout_t *scout;

		memcpy((char *)&o + cases[i].at, &cases[i].value, sizeof(cases[i].value));
		assert_int_equal(phub_scout_create(&o, &scout), -EINVAL);
		assert_non_null(strstr(phub_error(), cases[i].name));
	}
}

/* What sites say of a scout, at its longest, has room in a Job; what has none is left out, and never cut. */
static void test_said(void **state)
{
	const enum site_algorithm algorithm = SITE_LOCAL;
	struct phub_scout_options o = options_of(PHUB_SCOUT_PLUS);
	double many[64], *const numbers[] = {&o.lambda_loss, &o.lambda_bytes, &o.sigma, &o.temperature, &o.cooling,
				 &o.gain, &o.ease, &o.guard, &o.drift, &o.probes, &o.rate, &o.latency, &o.price,
				 &o.rate_within, &o.latency_within, &o.price_within, &o.trim};
	struct scout_config config;
	char text[SETTINGS_SITES_BYTES] = "local with a scout", small[40] = "local";
	struct err e;

	for (unsigned i = 0; i < 64; i++)
		many[i] = 1 + 1000.0 * i;
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		*numbers[i] = 1 / 3.0 * 1e-300;
	o.thetas = many;
	o.theta_count = 64;
	o.unit = PHUB_SCOUT_SECONDS;
	o.seed = UINT64_MAX;
	o.first = 0;
	assert_int_equal(options_scout(&o, &algorithm, &config, &e), 0);
	options_say_scout(text, sizeof(text), &config);
	assert_true(strlen(text) < sizeof(text) - 600); /* the rest is what else sites say */
	assert_non_null(strstr(text, "; policy=scout+; thetas=1,1001,2001,"));
	assert_non_null(strstr(text, "; seed=18446744073709551615; first=1; period=50; "));
	assert_non_null(strstr(text, "; price_within=3.3333333333333334e-301; the rest of the scout=("));
	options_say_scout(small, sizeof(small), &config);
	assert_string_equal(small, "local; policy=scout+; first=1; memory=0");
}

TEST_PROGRAM(test_scout_public)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_three_steps),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_saved),
		cmocka_unit_test(test_scout_errors),
		cmocka_unit_test(test_jobs),
		cmocka_unit_test(test_site_options),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_order_alone),
		cmocka_unit_test(test_periods),
		cmocka_unit_test(test_plus),
		cmocka_unit_test(test_plus_measured),
		cmocka_unit_test(test_plus_limits),
		cmocka_unit_test(test_scores),
		cmocka_unit_test(test_tensors),
		cmocka_unit_test(test_said),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
