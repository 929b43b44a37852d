/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What comes in is judged first, then the cost of the theta that it is at is known, then the policy looks around.
 */
#include "client/scout/scout.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "phub/base/crc.h"

/* ---- numbers ---- */

static uint64_t scout_mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static uint64_t scout_draw(struct scout *s)
{
	s->random += 0x9e3779b97f4a7c15ull;
	return scout_mix(s->random);
}

/* 0 .. 1, without 1. */
static double scout_chance(struct scout *s)
{
	return (double)(scout_draw(s) >> 11) * 0x1p-53;
}

/* e^x of x <= 0, with the same bits on each machine, which the C library's has not. Within 1e-12 of it. */
static double scout_exp(double x)
{
	static const double ln2 = 0.693147180559945309;
	double sum = 1, term = 1, rest;
	int halvings;

	if (!(x > -700))
		return 0;
	halvings = (int)(-x / ln2);
	rest = x + halvings * ln2;
	for (int i = 1; i < 20; i++) {
		term = term * rest / i;
		sum += term;
	}
	return ldexp(sum, -halvings);
}

/* ---- what it is made of ---- */

void scout_defaults(struct scout_config *config)
{
	*config = (struct scout_config){.policy = SCOUT_HILL,
		.period = 500,
		.lambda_loss = 50,
		.lambda_bytes = 1,
		.sigma = 0.05,
		.temperature = 1,
		.cooling = 0.9,
		.patience = 3};
}

static int scout_check_grid(const struct scout_config *config, struct err *e)
{
	if (config->theta_count == 0 || config->theta_count > SCOUT_THETAS_MAX || config->first >= config->theta_count)
		return err_set(e, -EINVAL, "a grid of %u thetas that begins with number %u; allowed are 1 to %u",
			config->theta_count, config->first, SCOUT_THETAS_MAX);
	for (unsigned i = 0; i < config->theta_count; i++) {
		if (!isfinite(config->thetas[i]))
			return err_set(e, -EINVAL, "theta %u of the grid is not a number", i);
		for (unsigned k = 0; k < i; k++)
			if (config->thetas[k] == config->thetas[i])
				return err_set(e, -EINVAL, "theta %g is in the grid twice", config->thetas[i]);
	}
	if (config->policy != SCOUT_REPLAY)
		return 0;
	if (config->schedule_count == 0 || config->schedule_count > SCOUT_SCHEDULE_MAX)
		return err_set(e, -EINVAL, "a schedule of %u thetas; allowed are 1 to %u", config->schedule_count,
			SCOUT_SCHEDULE_MAX);
	for (unsigned i = 0; i < config->schedule_count; i++)
		if (!isfinite(config->schedule[i]))
			return err_set(e, -EINVAL, "theta %u of the schedule is not a number", i);
	return 0;
}

static int scout_check(const struct scout_config *config, struct err *e)
{
	const struct {
		const char *name;
		double value;
		bool good;
	} numbers[] = {
		{"lambda_loss", config->lambda_loss, config->lambda_loss >= 0},
		{"lambda_bytes", config->lambda_bytes, config->lambda_bytes >= 0},
		{"sigma", config->sigma, config->sigma >= 0 && config->sigma <= 1},
		{"temperature", config->temperature, config->temperature > 0},
		{"cooling", config->cooling, config->cooling > 0 && config->cooling <= 1},
		{"period", config->period, config->period > 0},
		{"model_bytes", (double)config->model_bytes, config->model_bytes > 0},
		{"patience", config->patience, config->patience > 0},
	};

	if ((unsigned)config->policy >= SCOUT_POLICY_COUNT)
		return err_set(e, -EINVAL, "policy %d does not exist", (int)config->policy);
	for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (!numbers[i].good || !isfinite(numbers[i].value))
			return err_set(
				e, -EINVAL, "%s is %g, which is outside its limits", numbers[i].name, numbers[i].value);
	return scout_check_grid(config, e);
}

int scout_init(struct scout *scout, const struct scout_config *config, struct err *e)
{
	int rc = scout_check(config, e);

	if (rc < 0)
		return rc;
	*scout = (struct scout){.config = *config, .index = config->first, .random = scout_mix(config->seed)};
	return 0;
}

static unsigned scout_place(const struct scout *s)
{
	return s->window < s->config.schedule_count ? (unsigned)s->window : s->config.schedule_count - 1;
}

double scout_theta(const struct scout *scout)
{
	if (scout->config.policy == SCOUT_REPLAY)
		return scout->config.schedule[scout_place(scout)];
	return scout->config.thetas[scout->index];
}

unsigned scout_host(const struct scout *scout, unsigned site, unsigned sites)
{
	uint64_t r = scout_mix(scout->config.seed ^ scout_mix(scout->window));

	return (unsigned)((site + 1 + r % (sites - 1)) % sites);
}

/* ---- what a window says ---- */

static bool scout_believes(const struct scout_report *report)
{
	return report->samples > 0 && report->home >= 0 && report->home <= 1 && report->away >= 0 && report->away <= 1;
}

/* Loss, bytes and how many were believed; counts what was sent. */
static void scout_weigh(
	struct scout *s, const struct scout_report *reports, unsigned sites, struct scout_decision *decision)
{
	double loss = 0, bytes = 0;

	for (unsigned i = 0; i < sites; i++) {
		bytes += (double)reports[i].bytes;
		s->bytes += reports[i].bytes;
		s->bytes_travel += reports[i].samples > 0 ? s->config.model_bytes : 0;
		if (!scout_believes(&reports[i]))
			continue;
		loss += reports[i].home - reports[i].away;
		decision->believed++;
	}
	decision->bytes = bytes / sites / s->config.period;
	decision->loss = 2 * decision->believed >= sites ? loss / decision->believed : NAN;
	decision->cost = s->config.lambda_loss * fmax(0, decision->loss - s->config.sigma) +
			 s->config.lambda_bytes * decision->bytes / (double)s->config.model_bytes;
	if (isnan(decision->loss))
		decision->cost = NAN;
}

static bool scout_knows(const struct scout *s, unsigned index)
{
	return s->tried[index] > 0 && (s->config.memory == 0 || s->window - s->tried[index] < s->config.memory);
}

/* ---- policies: the index that is next, with the reason ---- */

static unsigned scout_explain(struct scout_decision *decision, unsigned index, const char *reason)
{
	snprintf(decision->reason, sizeof(decision->reason), "%s", reason);
	return index;
}

static unsigned scout_try(const struct scout *s, struct scout_decision *decision, unsigned index)
{
	snprintf(decision->reason, sizeof(decision->reason), "what theta %g costs is not known yet",
		s->config.thetas[index]);
	return index;
}

static unsigned scout_move(const struct scout *s, struct scout_decision *decision, unsigned index, const char *why)
{
	snprintf(decision->reason, sizeof(decision->reason), "theta %g has cost %.4g, and this one costs %.4g%s",
		s->config.thetas[index], s->cost[index], s->cost[s->index], why);
	return index;
}

static unsigned scout_climb(const struct scout *s, struct scout_decision *decision)
{
	bool tighter = s->index > 0, looser = s->index + 1 < s->config.theta_count;
	bool knows_tighter = tighter && scout_knows(s, s->index - 1), loses = decision->loss > s->config.sigma;
	bool knows_looser = looser && scout_knows(s, s->index + 1);
	unsigned best = s->index;

	if (tighter && !knows_tighter && loses)
		return scout_try(s, decision, s->index - 1);
	if (looser && !knows_looser && (!loses || !tighter || s->cost[s->index - 1] >= s->cost[s->index]))
		return scout_try(s, decision, s->index + 1);
	if (knows_tighter && s->cost[s->index - 1] < s->cost[best])
		best = s->index - 1;
	if (knows_looser && s->cost[s->index + 1] < s->cost[best])
		best = s->index + 1;
	if (best != s->index)
		return scout_move(s, decision, best, "");
	return scout_explain(decision, best, "no theta beside is known to be cheaper");
}

/* One beside, if there is any. */
static unsigned scout_draw_beside(struct scout *s)
{
	bool tighter = s->index > 0, looser = s->index + 1 < s->config.theta_count;
	bool up = scout_draw(s) & 1; /* drawn in any case: the next draws do not depend on it */

	if (!tighter && !looser)
		return s->index;
	return looser && (up || !tighter) ? s->index + 1 : s->index - 1;
}

/* By the same multiplications on each machine. */
static double scout_temperature(const struct scout *s)
{
	double t = s->config.temperature;
	bool cools = s->config.policy == SCOUT_ANNEALING && s->config.cooling < 1;

	for (uint64_t i = 0; cools && i < s->window && t > 0; i++)
		t *= s->config.cooling;
	return t;
}

/* The probability of a move to one that costs so much more, or less. */
static double scout_odds(const struct scout *s, double worse)
{
	double t = scout_temperature(s), e = scout_exp(-fabs(worse) / t);

	if (s->config.policy == SCOUT_ANNEALING)
		return worse < 0 ? 1 : e;
	return worse < 0 ? 1 / (1 + e) : e / (1 + e);
}

static unsigned scout_wander(struct scout *s, struct scout_decision *decision)
{
	unsigned beside = scout_draw_beside(s);
	double chance = scout_chance(s), worse = s->cost[beside] - s->cost[s->index];

	if (beside == s->index)
		return scout_explain(decision, beside, "there is no other theta");
	if (!scout_knows(s, beside))
		return scout_try(s, decision, beside);
	if (chance < scout_odds(s, worse))
		return scout_move(s, decision, beside, worse < 0 ? "" : "; chance has it so");
	snprintf(decision->reason, sizeof(decision->reason), "theta %g was looked at, and chance was against it",
		s->config.thetas[beside]);
	return s->index;
}

/* The loosest that was safe, or, when that has gone on for long, the tightest. */
static unsigned scout_fall_back(struct scout *s, struct scout_decision *decision, unsigned sites)
{
	unsigned safe = 0;

	for (unsigned i = 0; i < s->config.theta_count; i++)
		safe = s->held[i] ? i : safe;
	s->silent++;
	decision->action = SCOUT_FALLS_BACK;
	if (s->silent >= s->config.patience)
		safe = 0;
	snprintf(decision->reason, sizeof(decision->reason),
		"of %u sites %u have said what can be true, in %u windows in a row that said too little: %s", sites,
		decision->believed, s->silent,
		s->silent >= s->config.patience ? "the tightest theta, until they do"
						: "the loosest theta that was safe");
	return safe;
}

static unsigned scout_choose(struct scout *s, struct scout_decision *decision)
{
	switch (s->config.policy) {
	case SCOUT_HILL:
		return scout_climb(s, decision);
	case SCOUT_STOCHASTIC:
	case SCOUT_ANNEALING:
		return scout_wander(s, decision);
	case SCOUT_FIXED:
	case SCOUT_REPLAY:
		break;
	}
	return scout_explain(
		decision, s->index, s->config.policy == SCOUT_REPLAY ? "the schedule has it so" : "theta is fixed");
}

int scout_observe(
	struct scout *scout, const struct scout_report *reports, unsigned sites, struct scout_decision *decision)
{
	bool searches = scout->config.policy != SCOUT_FIXED && scout->config.policy != SCOUT_REPLAY;
	double before = scout_theta(scout);
	unsigned next;

	if (sites == 0 || sites > SCOUT_SITES_MAX)
		return -EINVAL;
	*decision = (struct scout_decision){.window = scout->window};
	scout_weigh(scout, reports, sites, decision);
	if (isnan(decision->loss) && searches) {
		next = scout_fall_back(scout, decision, sites);
	} else {
		scout->silent = 0;
		if (!isnan(decision->loss) && scout->config.policy != SCOUT_REPLAY) {
			scout->tried[scout->index] = scout->window + 1;
			scout->cost[scout->index] = decision->cost;
			scout->held[scout->index] = decision->loss <= scout->config.sigma;
		}
		next = scout_choose(scout, decision);
	}
	if (decision->action != SCOUT_FALLS_BACK && searches)
		decision->action = next < scout->index   ? SCOUT_TIGHTENS
				   : next > scout->index ? SCOUT_LOOSENS
							 : SCOUT_STAYS;
	scout->index = next;
	scout->window++;
	decision->theta = scout_theta(scout);
	decision->index = scout->config.policy == SCOUT_REPLAY ? scout_place(scout) : next;
	if (scout->config.policy == SCOUT_REPLAY &&
		decision->theta != before) /* in the grid's direction, if it has one */
		decision->action =
			(decision->theta < before) ==
					(scout->config.thetas[0] <= scout->config.thetas[scout->config.theta_count - 1])
				? SCOUT_TIGHTENS
				: SCOUT_LOOSENS;
	return 0;
}

/* ---- between two runs ---- */

enum { SCOUT_VERSION = 1, SCOUT_HEAD_BYTES = 60 };

static uint8_t *scout_put(uint8_t *at, uint64_t value)
{
	for (unsigned i = 0; i < 8; i++)
		at[i] = (uint8_t)(value >> 8 * i);
	return at + 8;
}

static const uint8_t *scout_take(const uint8_t *at, uint64_t *value)
{
	*value = 0;
	for (unsigned i = 0; i < 8; i++)
		*value |= (uint64_t)at[i] << 8 * i;
	return at + 8;
}

static uint64_t scout_bits(double value)
{
	uint64_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

/* Of the configuration that decisions hang on. */
static uint32_t scout_fingerprint(const struct scout_config *c)
{
	const uint64_t values[] = {c->policy, c->theta_count, c->first, c->schedule_count, c->period, c->model_bytes,
		scout_bits(c->lambda_loss), scout_bits(c->lambda_bytes), scout_bits(c->sigma),
		scout_bits(c->temperature), scout_bits(c->cooling), c->memory, c->patience, c->seed};
	uint8_t word[8];
	uint32_t crc = 0;

	for (unsigned i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		scout_put(word, values[i]);
		crc = crc_32c(crc, word, sizeof(word));
	}
	for (unsigned i = 0; i < c->theta_count; i++) {
		scout_put(word, scout_bits(c->thetas[i]));
		crc = crc_32c(crc, word, sizeof(word));
	}
	for (unsigned i = 0; c->policy == SCOUT_REPLAY && i < c->schedule_count; i++) {
		scout_put(word, scout_bits(c->schedule[i]));
		crc = crc_32c(crc, word, sizeof(word));
	}
	return crc;
}

void scout_save(const struct scout *scout, uint8_t out[SCOUT_SAVED_BYTES])
{
	uint8_t *at = out, check[8];

	memset(out, 0, SCOUT_SAVED_BYTES);
	at = scout_put(at, SCOUT_VERSION | (uint64_t)scout_fingerprint(&scout->config) << 32);
	at = scout_put(at, scout->window);
	at = scout_put(at, scout->index | (uint64_t)scout->silent << 32);
	at = scout_put(at, scout->random);
	at = scout_put(at, scout->bytes);
	scout_put(at, scout->bytes_travel);
	at = out + SCOUT_HEAD_BYTES + 4;
	for (unsigned i = 0; i < SCOUT_THETAS_MAX; i++) {
		at = scout_put(at, scout->tried[i] << 1 | scout->held[i]);
		at = scout_put(at, scout_bits(scout->cost[i]));
	}
	scout_put(check, crc_32c(crc_32c(0, out, SCOUT_HEAD_BYTES), out + SCOUT_HEAD_BYTES + 4, 16 * SCOUT_THETAS_MAX));
	memcpy(out + SCOUT_HEAD_BYTES, check, 4);
}

static bool scout_is_whole(const uint8_t *in, size_t bytes)
{
	uint8_t check[8];

	if (bytes != SCOUT_SAVED_BYTES || in[0] != SCOUT_VERSION)
		return false;
	scout_put(check, crc_32c(crc_32c(0, in, SCOUT_HEAD_BYTES), in + SCOUT_HEAD_BYTES + 4, 16 * SCOUT_THETAS_MAX));
	return memcmp(check, in + SCOUT_HEAD_BYTES, 4) == 0;
}

int scout_load(struct scout *scout, const uint8_t *in, size_t bytes, struct err *e)
{
	struct scout loaded = {.config = scout->config};
	const uint8_t *at = in;
	uint64_t word;

	if (!scout_is_whole(in, bytes))
		return err_set(e, -EBADMSG, "the scout's state is not whole, or of another version");
	at = scout_take(at, &word);
	if (word >> 32 != scout_fingerprint(&scout->config))
		return err_set(e, -EINVAL, "the scout's state is that of another configuration");
	at = scout_take(at, &loaded.window);
	at = scout_take(at, &word);
	loaded.index = (unsigned)(word & UINT32_MAX);
	loaded.silent = (unsigned)(word >> 32);
	at = scout_take(at, &loaded.random);
	at = scout_take(at, &loaded.bytes);
	scout_take(at, &loaded.bytes_travel);
	if (loaded.index >= loaded.config.theta_count)
		return err_set(e, -EBADMSG, "the scout's state has theta %u of a grid of %u", loaded.index,
			loaded.config.theta_count);
	at = in + SCOUT_HEAD_BYTES + 4;
	for (unsigned i = 0; i < SCOUT_THETAS_MAX; i++) {
		at = scout_take(at, &word);
		loaded.tried[i] = word >> 1;
		loaded.held[i] = word & 1;
		at = scout_take(at, &word);
		memcpy(&loaded.cost[i], &word, sizeof(word));
	}
	*scout = loaded;
	return 0;
}

/* ---- names ---- */

const char *scout_policy_name(enum scout_policy policy)
{
	static const char *const names[SCOUT_POLICY_COUNT] = {"fixed", "replay", "hill", "stochastic", "annealing"};

	return (unsigned)policy < SCOUT_POLICY_COUNT ? names[policy] : "invalid";
}

const char *scout_action_name(enum scout_action action)
{
	static const char *const names[] = {"stays", "tightens", "loosens", "falls back"};

	return (unsigned)action < sizeof(names) / sizeof(names[0]) ? names[action] : "invalid";
}
