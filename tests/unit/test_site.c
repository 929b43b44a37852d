/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sites: each algorithm beside a plain one in float64, what is said and counted, who comes and goes, and every error.
 */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "client/scout/site.h"
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/site_rig.h"

static const struct site_config bsp = {.algorithm = SITE_BSP, .theta = 1, .momentum = 0.9, .weight_decay = 5e-4};
static const struct site_config gaia = {
	.algorithm = SITE_GAIA, .theta = 0.1, .momentum = 0.9, .weight_decay = 5e-4, .rate_first = 0.05};
static const struct site_config local = {.algorithm = SITE_LOCAL, .theta = 3, .momentum = 0.9, .weight_decay = 5e-4};
static const struct site_config dgc = {
	.algorithm = SITE_DGC, .theta = 0.1, .momentum = 0.9, .weight_decay = 5e-4, .clip = 1.5};

static const double uneven[RIG_SITES] = {0.1, 0.2, 0.3, 0.4};

static void assert_near(const float *got, const double *want, unsigned count, double tolerance)
{
	for (unsigned i = 0; i < count; i++) {
		if (!(fabs(got[i] - want[i]) <= tolerance * (1 + fabs(want[i]))))
			fail_msg("element %u: %.9g, expected %.9g", i, (double)got[i], want[i]);
	}
}

/* Every site's state in float64. */
struct plain {
	double w[RIG_SITES][RIG_ELEMENTS], v[RIG_SITES][RIG_ELEMENTS], r[RIG_SITES][RIG_ELEMENTS];
	double anchor[RIG_ELEMENTS], sum[RIG_ELEMENTS], s0[RIG_ELEMENTS], s1[RIG_ELEMENTS];
};

static struct plain *plain_create(const struct site_rig *rig)
{
	struct plain *p = calloc(1, sizeof(*p));

	assert_non_null(p);
	for (unsigned i = 0; i < RIG_ELEMENTS; i++) {
		p->anchor[i] = rig->weights[0][i];
		for (unsigned k = 0; k < rig->count; k++)
			p->w[k][i] = rig->weights[k][i];
	}
	return p;
}

static void test_bsp(void **state)
{
	struct site_rig rig;
	struct plain *p;

	rig_init(&rig, 4, &bsp, uneven, 1);
	p = plain_create(&rig);
	for (unsigned step = 0; step < 50; step++) {
		assert_false(site_due(&rig.sites[0]));
		for (unsigned k = 0; k < 4; k++)
			rig_step(&rig, k, false, 0.05);
		assert_true(site_due(&rig.sites[0]));
		rig_exchange(&rig);
		rig_assert_equal(&rig);
		for (unsigned i = 0; i < RIG_TRAINED; i++) {
			double g = 5e-4 * p->w[0][i];

			for (unsigned k = 0; k < 4; k++)
				g += uneven[k] * rig.gradients[k][i];
			p->v[0][i] = 0.9 * p->v[0][i] + g;
			p->w[0][i] -= 0.05 * p->v[0][i];
		}
		assert_near(rig.weights[3], p->w[0], RIG_ELEMENTS, 1e-6);
	}
	assert_int_equal(rig.sites[0].counts.bytes_paper, 50 * RIG_TRAINED * 4);
	free(p);
	rig_fini(&rig);
}

static void plain_local_step(struct plain *p, const struct site_rig *rig, unsigned k, double rate)
{
	for (unsigned i = 0; i < RIG_TRAINED; i++) {
		p->v[k][i] = 0.9 * p->v[k][i] + rig->gradients[k][i] + 5e-4 * p->w[k][i];
		p->w[k][i] -= rate * p->v[k][i];
	}
}

/* Second moments of the adaptive three. */
static double plain_second(enum outer_kind kind, double s1, double d)
{
	if (kind == OUTER_ADAGRAD)
		return s1 + d * d;
	if (kind == OUTER_ADAM)
		return 0.99 * s1 + 0.01 * d * d;
	return s1 - 0.01 * d * d * ((s1 > d * d) - (s1 < d * d));
}

static void plain_outer(struct plain *p, const struct site_rig *rig, const struct outer_config *o)
{
	for (unsigned i = 0; i < RIG_ELEMENTS; i++) {
		double d = 0, move;

		for (unsigned k = 0; k < rig->count; k++)
			d += uneven[k] * (p->w[k][i] - p->anchor[i]);
		move = d;
		if (i < RIG_TRAINED && (o->kind == OUTER_MOMENTUM || o->kind == OUTER_NESTEROV)) {
			p->s0[i] = o->beta1 * p->s0[i] + d;
			move = o->rate * (o->kind == OUTER_NESTEROV ? d + o->beta1 * p->s0[i] : p->s0[i]);
		} else if (i < RIG_TRAINED && o->kind >= OUTER_ADAGRAD) {
			p->s0[i] = o->beta1 * p->s0[i] + (1 - o->beta1) * d;
			p->s1[i] = plain_second(o->kind, p->s1[i], d);
			move = o->rate * p->s0[i] / (sqrt(p->s1[i]) + o->tau);
		}
		p->anchor[i] += move;
		for (unsigned k = 0; k < rig->count; k++)
			p->w[k][i] = p->anchor[i];
	}
}

/* Local SGD with each outer optimizer that sites run, running statistics averaged as they are. */
static void test_local(void **state)
{
	for (int kind = 0; kind < OUTER_COUNT; kind++) {
		struct site_config config = local;
		struct site_rig rig;
		struct plain *p;

		if (kind == OUTER_BOX)
			continue;
		config.outer = outer_defaults(kind);
		rig_init(&rig, 4, &config, uneven, 2);
		p = plain_create(&rig);
		for (unsigned i = 0; i < RIG_ELEMENTS; i++)
			p->s1[i] = config.outer.tau * config.outer.tau;
		for (unsigned step = 1; step <= 18; step++) {
			for (unsigned k = 0; k < 4; k++) {
				rig_step(&rig, k, false, 0.01);
				plain_local_step(p, &rig, k, 0.01);
				rig.weights[k][80] += (float)k;
				p->w[k][80] += k;
			}
			assert_int_equal(site_due(&rig.sites[1]), step % 3 == 0);
			if (step % 3)
				continue;
			rig_exchange(&rig);
			rig_assert_equal(&rig);
			plain_outer(p, &rig, &config.outer);
			assert_near(rig.weights[2], p->w[2], RIG_ELEMENTS, 2e-4);
		}
		assert_int_equal(rig.sites[0].counts.bytes_paper, 6 * RIG_ELEMENTS * 4);
		free(p);
		rig_fini(&rig);
	}
}

/* The box takes the sum for a gradient; what it answers is taken as it is, and what is not trained is averaged. */
static void test_local_at_the_box(void **state)
{
	struct site_config config = local;
	struct site_rig rig;

	config.outer.kind = OUTER_BOX;
	rig_init(&rig, 2, &config, NULL, 3);
	float before[RIG_ELEMENTS], answer[RIG_ELEMENTS], offer[RIG_ELEMENTS];

	memcpy(before, rig.weights[0], sizeof(before));
	for (unsigned i = 0; i < RIG_ELEMENTS; i++)
		answer[i] = (float)i / 4;
	rig_step(&rig, 0, true, 1);
	rig.weights[0][90] += 6;
	for (unsigned t = 0; t < RIG_TENSORS; t++) {
		assert_int_equal(site_offer(&rig.sites[0], t, offer + rig_offset[t]), 0);
		assert_int_equal(site_accept(&rig.sites[0], t, answer + rig_offset[t]), 0);
	}
	for (unsigned i = 0; i < RIG_TRAINED; i++) {
		assert_float_equal(offer[i], 0.5 * (rig.gradients[0][i] + 5e-4 * before[i]), 1e-5);
		assert_true(rig.weights[0][i] == answer[i]);
	}
	assert_true(offer[90] == 3);
	assert_true(rig.weights[0][90] == before[90] + answer[90]);
	rig_fini(&rig);
}

/* Gaia in float64, which says what the site said: near the threshold the two may differ. Returns how often they did. */
static unsigned plain_gaia(struct plain *p, const struct site_rig *rig, double rate, double theta)
{
	unsigned differ = 0;

	memset(p->sum, 0, sizeof(p->sum));
	for (unsigned k = 0; k < rig->count; k++) {
		for (unsigned t = 0; t < 2; t++) {
			unsigned first = (unsigned)rig_offset[t], end = first + rig_elements[t], count = 0;

			for (unsigned i = first; i < end; i++) {
				double u;

				p->v[k][i] = 0.9 * p->v[k][i] + rig->gradients[k][i] + 5e-4 * p->w[k][i];
				u = -rate * uneven[k] * p->v[k][i];
				p->w[k][i] += u;
				p->r[k][i] += u;
				count += fabs(p->r[k][i]) > theta * rate / 0.05 * fabs(p->w[k][i]);
			}
			for (unsigned i = first; i < end; i++) {
				bool big = fabs(p->r[k][i]) > theta * rate / 0.05 * fabs(p->w[k][i]);
				bool said = rig->offers[k][i] != 0;

				differ += said != (big || count * 3 > rig_elements[t]);
				p->sum[i] += said ? p->r[k][i] : 0;
				p->w[k][i] -= said ? p->r[k][i] : 0;
				p->r[k][i] = said ? 0 : p->r[k][i];
			}
		}
	}
	for (unsigned k = 0; k < rig->count; k++) {
		for (unsigned i = 0; i < RIG_TRAINED; i++)
			p->w[k][i] += p->sum[i];
	}
	return differ;
}

/* Rates fall and thresholds change on the way; both sparse and whole tensors must have come. */
static void test_gaia(void **state)
{
	const double thetas[] = {0.1, 0, 0.02, 0.3};
	struct site_rig rig;
	struct plain *p;
	unsigned differ = 0;

	rig_init(&rig, 4, &gaia, uneven, 4);
	p = plain_create(&rig);
	for (unsigned step = 0; step < 80; step++) {
		double theta = thetas[step / 20], rate = step < 60 ? 0.05 : 0.005;

		for (unsigned k = 0; k < 4; k++) {
			assert_int_equal(site_set_theta(&rig.sites[k], theta), 0);
			rig_step(&rig, k, false, rate);
		}
		assert_true(site_due(&rig.sites[3]));
		rig_exchange(&rig);
		differ += plain_gaia(p, &rig, rate, theta);
		for (unsigned k = 0; k < 4; k++)
			assert_near(rig.weights[k], p->w[k], RIG_ELEMENTS, 2e-6);
	}
	assert_in_range(differ, 0, 3);
	assert_true(rig.sites[0].counts.values < 80 * RIG_TRAINED);
	assert_true(rig.sites[0].counts.bytes_paper < 80 * RIG_TRAINED * 4);
	assert_true(rig.sites[0].counts.bytes_paper > 20 * RIG_TRAINED * 4);
	free(p);
	rig_fini(&rig);
}

/* With a threshold of 0 all is said at once: the sites stay together, exactly where sums are, as momentum SGD does. */
static void test_gaia_without_threshold(void **state)
{
	struct site_config config = gaia;
	struct site_rig rig;
	float dense[RIG_ELEMENTS];

	config.theta = 0;
	config.momentum = 0;
	config.weight_decay = 0;
	rig_init(&rig, 4, &config, NULL, 5);
	memcpy(dense, rig.weights[0], sizeof(dense));
	for (unsigned step = 0; step < 30; step++) {
		for (unsigned k = 0; k < 4; k++) {
			rig_step(&rig, k, true, 0.5);
			for (unsigned i = 0; i < RIG_TRAINED; i++)
				dense[i] -= 0.125f * rig.gradients[k][i];
		}
		rig_exchange(&rig);
		rig_assert_equal(&rig);
		assert_memory_equal(rig.weights[0], dense, sizeof(dense));
		assert_true(site_residual_square(&rig.sites[1], 0) == 0);
	}
	rig_fini(&rig);
}

/* Of three elements one may go alone: two would take 24 bytes, and all of them take 12. A weight of 0 lets all through.
 */
static void test_gaia_whole(void **state)
{
	float weights[3] = {0, 100, 100}, out[3];
	const float one[3] = {1, 1, 1}, two[3] = {1, 90, 1};
	const float *gradients[] = {one};
	struct site_tensor tensor = {weights, 3, true};
	struct site_config config = {.algorithm = SITE_GAIA,
		.theta = 0.1,
		.rate_first = 1,
		.share = 1,
		.sites = 1,
		.tensors = &tensor,
		.tensor_count = 1};
	struct site site;

	assert_int_equal(site_init(&site, &config, NULL), 0);
	assert_int_equal(site_step(&site, gradients, 1), 0);
	assert_int_equal(site_offer(&site, 0, out), 0);
	assert_true(out[0] == -1 && out[1] == 0 && out[2] == 0);
	assert_int_equal(site.counts.bytes_paper, 12);
	assert_int_equal(site_accept(&site, 0, out), 0);
	gradients[0] = two;
	assert_int_equal(site_step(&site, gradients, 1), 0);
	assert_int_equal(site_offer(&site, 0, out), 0);
	assert_true(out[0] == -1 && out[1] == -91 && out[2] == -2);
	assert_int_equal(site.counts.bytes_paper, 24);
	assert_int_equal(site.counts.values, 4);
	assert_int_equal(site_accept(&site, 0, out), 0);
	site_fini(&site);
}

static void plain_dgc_step(struct plain *p, const struct site_rig *rig, unsigned k)
{
	double square = 0, scale = 1, norm;

	for (unsigned i = 0; i < RIG_TRAINED; i++)
		square += (double)rig->gradients[k][i] * rig->gradients[k][i];
	norm = uneven[k] * sqrt(square);
	if (norm > 1.5 / 2)
		scale = 1.5 / 2 / norm;
	for (unsigned i = 0; i < RIG_TRAINED; i++) {
		p->v[k][i] = 0.9 * p->v[k][i] + uneven[k] * scale * rig->gradients[k][i];
		p->r[k][i] += p->v[k][i];
	}
}

static void plain_dgc_exchange(struct plain *p, const struct site_rig *rig)
{
	memset(p->sum, 0, sizeof(p->sum));
	for (unsigned k = 0; k < rig->count; k++) {
		for (unsigned t = 0; t < 2; t++) {
			unsigned first = (unsigned)rig_offset[t], end = first + rig_elements[t], said = 0;

			for (unsigned i = first; i < end; i++) {
				unsigned larger = 0;

				for (unsigned j = first; j < end; j++)
					larger += fabs(p->r[k][j]) > fabs(p->r[k][i]);
				if (larger >= (rig_elements[t] + 9) / 10)
					continue;
				said++;
				assert_near(&rig->offers[k][i], &p->r[k][i], 1, 1e-5);
				p->sum[i] += p->r[k][i];
			}
			assert_int_equal(said, t == 0 ? 6 : 1);
			for (unsigned i = first; i < end; i++) {
				if (rig->offers[k][i] != 0)
					p->r[k][i] = p->v[k][i] = 0;
			}
		}
	}
	for (unsigned i = 0; i < RIG_TRAINED; i++)
		p->w[0][i] -= 0.05 * (p->sum[i] + 5e-4 * p->w[0][i]);
}

static void test_dgc(void **state)
{
	struct site_rig rig;
	struct plain *p;

	rig_init(&rig, 4, &dgc, uneven, 6);
	p = plain_create(&rig);
	for (unsigned step = 0; step < 60; step++) {
		for (unsigned k = 0; k < 4; k++) {
			rig_step(&rig, k, false, 0.05);
			plain_dgc_step(p, &rig, k);
		}
		rig_exchange(&rig);
		rig_assert_equal(&rig);
		plain_dgc_exchange(p, &rig);
		assert_near(rig.weights[1], p->w[0], RIG_ELEMENTS, 1e-5);
	}
	assert_int_equal(rig.sites[2].counts.values, 60 * 7);
	assert_int_equal(rig.sites[2].counts.bytes_paper, 60 * 7 * 12);
	free(p);
	rig_fini(&rig);
}

/* Of the largest, ties by index, never a zero; NaN before all others. */
static void dgc_picks(const float *values, uint32_t count, double theta, const char *expected)
{
	float weights[64] = {0}, out[64];
	const float *gradients[] = {values};
	struct site_tensor tensor = {weights, count, true};
	struct site_config config = {
		.algorithm = SITE_DGC, .theta = theta, .share = 1, .sites = 1, .tensors = &tensor, .tensor_count = 1};
	struct site site;

	assert_int_equal(site_init(&site, &config, NULL), 0);
	assert_int_equal(site_step(&site, gradients, 1), 0);
	assert_int_equal(site_offer(&site, 0, out), 0);
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(out[i] != 0, expected[i] == 'x');
	site_fini(&site);
}

static void test_dgc_picks(void **state)
{
	const float mixed[8] = {1, -3, 3, 0, 2, 3, -3, 0.5f}, odd[4] = {INFINITY, 1, NAN, -INFINITY};
	const float few[8] = {0, 0, -1, 0, 0, 1e-44f, 0, -0.0f}, close[4] = {1, 1.0000001f, 1, 0.99999994f};

	dgc_picks(mixed, 8, 1.0 / 8, ".x......");
	dgc_picks(mixed, 8, 3.0 / 8, ".xx..x..");
	dgc_picks(mixed, 8, 5.0 / 8, ".xx.xxx.");
	dgc_picks(mixed, 8, 0.001, ".x......");
	dgc_picks(mixed, 8, 1, "xxx.xxxx");
	dgc_picks(few, 8, 0.5, "..x..x..");
	dgc_picks(odd, 4, 0.25, "..x.");
	dgc_picks(odd, 4, 0.5, "x.x.");
	dgc_picks(close, 4, 0.25, ".x..");
	dgc_picks(close, 4, 0.5, "xx..");
}

/* 25, 6.25, 1.5625 and .390625 % for so many steps each, then theta. .07 of 100 is 7. */
static void test_dgc_warmup(void **state)
{
	const unsigned kept[5] = {250, 63, 16, 4, 1};
	float weights[1000] = {0}, gradient[1000], out[1000];
	const float *gradients[] = {gradient};
	struct site_tensor tensor = {weights, 1000, true};
	struct site_config config = {.algorithm = SITE_DGC,
		.theta = 0.001,
		.warmup = 2,
		.share = 1,
		.sites = 1,
		.tensors = &tensor,
		.tensor_count = 1};
	struct site site;
	uint64_t before = 0;

	for (unsigned i = 0; i < 1000; i++)
		gradient[i] = (float)(1 + i);
	assert_int_equal(site_init(&site, &config, NULL), 0);
	for (unsigned step = 0; step < 12; step++) {
		if (step == 11)
			assert_int_equal(site_set_theta(&site, 0.07), 0);
		assert_int_equal(site_step(&site, gradients, 1), 0);
		assert_int_equal(site_offer(&site, 0, out), 0);
		assert_int_equal(site_accept(&site, 0, out), 0);
		assert_int_equal(site.counts.values - before, step == 11 ? 70 : kept[step / 2 < 4 ? step / 2 : 4]);
		before = site.counts.values;
	}
	site_fini(&site);
}

static uint64_t wire(void *context, const float *values, uint32_t elements)
{
	uint64_t bytes = *(uint64_t *)context;

	for (uint32_t i = 0; i < elements; i++)
		bytes += values[i] != 0;
	return bytes;
}

static void test_wire_is_counted(void **state)
{
	struct site_config config = dgc;
	struct site_rig rig;
	uint64_t head = 1000;

	config.wire = wire;
	config.wire_context = &head;
	rig_init(&rig, 1, &config, NULL, 7);
	rig_step(&rig, 0, false, 0.1);
	rig_exchange(&rig);
	assert_int_equal(rig.sites[0].counts.bytes_wire, 2000 + 7);
	rig_fini(&rig);
}

/* A site without samples offers zeros, and moves with the others. */
static void test_without_samples(void **state)
{
	const double shares[2] = {1, 0};
	struct site_rig rig;

	rig_init(&rig, 2, &bsp, shares, 8);
	rig_step(&rig, 0, false, 0.1);
	assert_int_equal(site_step(&rig.sites[1], NULL, 0.1), 0);
	assert_true(site_due(&rig.sites[1]));
	rig_exchange(&rig);
	rig_assert_equal(&rig);
	for (unsigned i = 0; i < RIG_ELEMENTS; i++)
		assert_true(rig.offers[1][i] == 0);
	assert_int_equal(rig.sites[1].counts.steps, 1);
	rig_fini(&rig);
}

static void rig_set_shares(struct site_rig *rig, unsigned count)
{
	rig->count = count;
	for (unsigned k = 0; k < count; k++)
		assert_int_equal(site_set_share(&rig->sites[k], 1.0 / count, count), 0);
}

/* Two train, a third takes their weights and trains along; it leaves again after a flush, and owes nothing. */
static void join_and_leave(const struct site_config *config)
{
	struct site_rig rig;

	rig_init(&rig, 3, config, NULL, 9);
	rig_set_shares(&rig, 2);
	for (unsigned step = 0; step < 6; step++) {
		rig_step(&rig, 0, false, 0.05);
		rig_step(&rig, 1, false, 0.05);
		if (site_due(&rig.sites[0]))
			rig_exchange(&rig);
	}
	memcpy(rig.weights[2], rig.weights[0], sizeof(rig.weights[2]));
	assert_int_equal(site_join(&rig.sites[2], 6), 0);
	/* What outer optimizers have moves along; of BSP the momentum, else the sites part. */
	for (unsigned s = 0; s < OUTER_STATE_MAX && rig.sites[2].outer[s]; s++)
		memcpy(rig.sites[2].outer[s], rig.sites[0].outer[s], RIG_ELEMENTS * sizeof(float));
	if (config->algorithm == SITE_BSP)
		memcpy(rig.sites[2].velocity, rig.sites[0].velocity, RIG_ELEMENTS * sizeof(float));
	assert_int_equal(rig.sites[2].counts.steps, 6);
	rig_set_shares(&rig, 3);
	for (unsigned step = 0; step < 7; step++) {
		for (unsigned k = 0; k < 3; k++)
			rig_step(&rig, k, false, 0.05);
		if (site_due(&rig.sites[0])) {
			rig_exchange(&rig);
			if (config->algorithm != SITE_GAIA)
				rig_assert_equal(&rig);
		}
	}
	assert_int_equal(site_flush(&rig.sites[2]), 0);
	assert_true(site_due(&rig.sites[2]));
	rig_exchange(&rig);
	assert_false(site_due(&rig.sites[2]));
	for (unsigned t = 0; t < RIG_TENSORS; t++)
		assert_true(site_residual_square(&rig.sites[2], t) == 0);
	rig_fini(&rig);
}

/* Of what no step asks for no optimizer makes a step: nothing is left to say, and nothing moves. */
static void test_extra(void **state)
{
	struct site_config configs[] = {bsp, local, dgc};

	configs[1].outer = outer_defaults(OUTER_NESTEROV);
	configs[1].theta = 1;
	for (unsigned i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
		float before[RIG_ELEMENTS], after[RIG_ELEMENTS];
		struct site_rig rig;

		configs[i].momentum = 0.9;
		configs[i].weight_decay = 0.01;
		rig_init(&rig, 2, &configs[i], NULL, 9);
		for (unsigned turn = 0; turn < 4; turn++) {
			memcpy(before, rig.weights[0], sizeof(before));
			for (unsigned k = 0; k < 2; k++) {
				if (turn < 2)
					rig_step(&rig, k, false, 0.05);
				if (turn == 1)
					assert_int_equal(site_flush(&rig.sites[k]), 0);
				if (turn == 2)
					site_extra(&rig.sites[k]);
			}
			rig_exchange(&rig);
			rig_assert_equal(&rig);
			memcpy(after, rig.weights[0], sizeof(after));
			/* The last one shows that the one before would have moved something. */
			assert_int_equal(memcmp(before, after, sizeof(before)) == 0, turn == 2);
		}
		rig_fini(&rig);
	}
}

static void test_join_and_leave(void **state)
{
	struct site_config nesterov = local;

	nesterov.outer = outer_defaults(OUTER_NESTEROV);
	join_and_leave(&bsp);
	join_and_leave(&gaia);
	join_and_leave(&local);
	join_and_leave(&nesterov);
	join_and_leave(&dgc);
}

/* A sum that does not come: what was offered is offered again, bit for bit, and the exchange can end. */
static void test_withdraw(void **state)
{
	const struct site_config *const configs[] = {&bsp, &gaia, &local, &dgc};

	for (unsigned c = 0; c < 4; c++) {
		struct site_rig rig;
		float first[60], again[60];

		rig_init(&rig, 1, configs[c], NULL, 10);
		for (unsigned step = 0; step < 3; step++)
			rig_step(&rig, 0, false, 0.05);
		assert_int_equal(site_offer(&rig.sites[0], 0, first), 0);
		assert_int_equal(site_withdraw(&rig.sites[0], 0, first), 0);
		assert_int_equal(site_withdraw(&rig.sites[0], 0, first), -EPERM);
		rig_exchange(&rig);
		memcpy(again, rig.offers[0], sizeof(again));
		assert_memory_equal(first, again, sizeof(first));
		assert_int_equal(rig.sites[0].counts.exchanges, 1);
		rig_fini(&rig);
	}
}

/* The same calls, the same bits. */
static void test_deterministic(void **state)
{
	const struct site_config *const configs[] = {&bsp, &gaia, &local, &dgc};

	for (unsigned c = 0; c < 4; c++) {
		float weights[2][RIG_SITES][RIG_ELEMENTS];

		for (unsigned run = 0; run < 2; run++) {
			struct site_rig rig;

			rig_init(&rig, 4, configs[c], uneven, 11);
			for (unsigned step = 0; step < 30; step++) {
				for (unsigned k = 0; k < 4; k++)
					rig_step(&rig, k, false, 0.05);
				if (site_due(&rig.sites[0]))
					rig_exchange(&rig);
			}
			memcpy(weights[run], rig.weights, sizeof(weights[run]));
			rig_fini(&rig);
		}
		assert_memory_equal(weights[0], weights[1], sizeof(weights[0]));
	}
}

/* The order of an exchange, and what is not there. */
static void test_exchange_errors(void **state)
{
	struct site_rig rig;
	float out[60] = {0};
	const float *missing[RIG_TENSORS] = {out, NULL, NULL};

	rig_init(&rig, 1, &gaia, NULL, 12);
	struct site *site = &rig.sites[0];

	assert_int_equal(site_step(site, missing, 0.1), -EINVAL);
	assert_int_equal(site_step(site, NULL, -0.1), -EINVAL);
	assert_int_equal(site_step(site, NULL, NAN), -EINVAL);
	assert_int_equal(site_step(site, NULL, INFINITY), -EINVAL);
	assert_int_equal(site->counts.steps, 0);
	assert_int_equal(site_accept(site, 0, out), -EPERM);
	assert_int_equal(site_withdraw(site, 0, out), -EPERM);
	assert_true(site_exchanges(site, 1));
	assert_false(site_exchanges(site, 2));
	assert_false(site_exchanges(site, 3));
	assert_int_equal(site_offer(site, 2, out), -ENOENT);
	assert_int_equal(site_accept(site, 2, out), -ENOENT);
	assert_int_equal(site_withdraw(site, 3, out), -ENOENT);
	assert_true(site_residual_square(site, 3) == 0);
	assert_int_equal(site_offer(site, 0, out), 0);
	assert_int_equal(site_offer(site, 0, out), -EALREADY);
	assert_int_equal(site_step(site, NULL, 0.1), -EBUSY);
	assert_int_equal(site_set_theta(site, 0), -EBUSY);
	assert_int_equal(site_set_share(site, 1, 1), -EBUSY);
	assert_int_equal(site_flush(site), -EBUSY);
	assert_int_equal(site_join(site, 0), -EBUSY);
	assert_int_equal(site_accept(site, 0, out), 0);
	assert_int_equal(site_accept(site, 0, out), -EPERM);
	assert_int_equal(site_offer(site, 0, out), -EALREADY);
	assert_int_equal(site_step(site, NULL, 0.1), -EBUSY);
	assert_int_equal(site_offer(site, 1, out), 0);
	assert_int_equal(site_accept(site, 1, out), 0);
	assert_int_equal(site_step(site, NULL, 0.1), 0);
	assert_int_equal(site_set_theta(site, -1), -EINVAL);
	assert_int_equal(site_set_share(site, 1.5, 1), -EINVAL);
	assert_int_equal(site_set_share(site, NAN, 1), -EINVAL);
	assert_int_equal(site_set_share(site, 1, 0), -EINVAL);
	assert_true(site->config.theta == 0.1 && site->config.share == 1);
	rig_fini(&rig);
}

static void test_thetas(void **state)
{
	assert_true(site_theta_valid(SITE_BSP, 1) && !site_theta_valid(SITE_BSP, 2));
	assert_true(site_theta_valid(SITE_GAIA, 0) && !site_theta_valid(SITE_GAIA, -0.1));
	assert_false(site_theta_valid(SITE_GAIA, NAN) || site_theta_valid(SITE_GAIA, INFINITY));
	assert_true(site_theta_valid(SITE_LOCAL, 1) && site_theta_valid(SITE_LOCAL, SITE_LOCAL_STEPS_MAX));
	assert_false(site_theta_valid(SITE_LOCAL, 0) || site_theta_valid(SITE_LOCAL, 1.5));
	assert_false(site_theta_valid(SITE_LOCAL, NAN) || site_theta_valid(SITE_LOCAL, 2 * SITE_LOCAL_STEPS_MAX));
	assert_true(site_theta_valid(SITE_DGC, 1) && site_theta_valid(SITE_DGC, 1e-9));
	assert_false(
		site_theta_valid(SITE_DGC, 0) || site_theta_valid(SITE_DGC, 1.1) || site_theta_valid(SITE_DGC, NAN));
	assert_false(site_theta_valid((enum site_algorithm)4, 1));
	assert_string_equal(site_algorithm_name(SITE_BSP), "bsp");
	assert_string_equal(site_algorithm_name(SITE_GAIA), "gaia");
	assert_string_equal(site_algorithm_name(SITE_LOCAL), "local");
	assert_string_equal(site_algorithm_name(SITE_DGC), "dgc");
	assert_string_equal(site_algorithm_name((enum site_algorithm)4), "invalid");
}

static void refused(const struct site_config *config)
{
	struct site site = {.elements = 7};
	struct err e;

	assert_int_equal(site_init(&site, config, &e), -EINVAL);
	assert_non_null(strstr(e.text, "site: "));
	assert_int_equal(site.elements, 7);
}

static void test_init_errors(void **state)
{
	float weights[2] = {0};
	struct site_tensor tensor = {weights, 2, true}, none = {NULL, 2, true}, empty = {weights, 0, true};
	struct site_config good = {
		.algorithm = SITE_GAIA, .share = 1, .sites = 1, .rate_first = 1, .tensors = &tensor, .tensor_count = 1};
	struct site_config bad;
	struct site site;

#define REFUSED(field, value) (bad = good, bad.field = (value), refused(&bad))
	REFUSED(algorithm, (enum site_algorithm)4);
	REFUSED(theta, -1);
	REFUSED(share, -0.1);
	REFUSED(share, 1.1);
	REFUSED(sites, 0);
	REFUSED(momentum, 1);
	REFUSED(momentum, -0.1);
	REFUSED(momentum, NAN);
	REFUSED(weight_decay, -1);
	REFUSED(weight_decay, INFINITY);
	REFUSED(rate_first, 0);
	REFUSED(rate_first, NAN);
	REFUSED(tensor_count, 0);
	REFUSED(tensor_count, SITE_TENSORS_MAX + 1);
	REFUSED(tensors, &none);
	REFUSED(tensors, &empty);
	good.algorithm = SITE_DGC;
	good.theta = 0.5;
	REFUSED(clip, -1);
	REFUSED(clip, NAN);
	good.algorithm = SITE_LOCAL;
	good.theta = 2;
	good.outer = outer_defaults(OUTER_ADAM);
	REFUSED(outer.kind, (enum outer_kind)7);
	REFUSED(outer.rate, 0);
	REFUSED(outer.rate, INFINITY);
	REFUSED(outer.beta1, 1);
	REFUSED(outer.beta2, -1);
	REFUSED(outer.beta2, NAN);
	REFUSED(outer.tau, 0);
#undef REFUSED
	assert_int_equal(site_init(&site, &good, NULL), 0);
	site_fini(&site);
	site_fini(&site);
}

TEST_PROGRAM(test_site)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bsp),
		cmocka_unit_test(test_local),
		cmocka_unit_test(test_local_at_the_box),
		cmocka_unit_test(test_gaia),
		cmocka_unit_test(test_gaia_without_threshold),
		cmocka_unit_test(test_gaia_whole),
		cmocka_unit_test(test_dgc),
		cmocka_unit_test(test_dgc_picks),
		cmocka_unit_test(test_dgc_warmup),
		cmocka_unit_test(test_wire_is_counted),
		cmocka_unit_test(test_without_samples),
		cmocka_unit_test(test_extra),
		cmocka_unit_test(test_join_and_leave),
		cmocka_unit_test(test_withdraw),
		cmocka_unit_test(test_deterministic),
		cmocka_unit_test(test_exchange_errors),
		cmocka_unit_test(test_thetas),
		cmocka_unit_test(test_init_errors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
