/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Public enums have the values of those in here, as the assertions say.
 */
#include "client/scout/options.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/crc.h"

enum { OPTIONS_SIZE_MAX = 4096 };

static_assert((int)PHUB_SITE_BSP == SITE_BSP && (int)PHUB_SITE_GAIA == SITE_GAIA &&
		      (int)PHUB_SITE_LOCAL == SITE_LOCAL && (int)PHUB_SITE_DGC == SITE_DGC,
	"algorithms");
static_assert((int)PHUB_OUTER_AVERAGE == OUTER_AVERAGE && (int)PHUB_OUTER_BOX == OUTER_BOX &&
		      (int)PHUB_OUTER_MOMENTUM == OUTER_MOMENTUM && (int)PHUB_OUTER_NESTEROV == OUTER_NESTEROV &&
		      (int)PHUB_OUTER_ADAGRAD == OUTER_ADAGRAD && (int)PHUB_OUTER_ADAM == OUTER_ADAM &&
		      (int)PHUB_OUTER_YOGI == OUTER_YOGI,
	"outer optimizers");
static_assert((int)PHUB_SCOUT_FIXED == SCOUT_FIXED && (int)PHUB_SCOUT_REPLAY == SCOUT_REPLAY &&
		      (int)PHUB_SCOUT_HILL == SCOUT_HILL && (int)PHUB_SCOUT_STOCHASTIC == SCOUT_STOCHASTIC &&
		      (int)PHUB_SCOUT_ANNEALING == SCOUT_ANNEALING && (int)PHUB_SCOUT_PLUS == SCOUT_PLUS,
	"policies");
static_assert((int)PHUB_SCOUT_STAYS == SCOUT_STAYS && (int)PHUB_SCOUT_TIGHTENS == SCOUT_TIGHTENS &&
		      (int)PHUB_SCOUT_LOOSENS == SCOUT_LOOSENS && (int)PHUB_SCOUT_FALLS_BACK == SCOUT_FALLS_BACK &&
		      (int)PHUB_SCOUT_CANNOT == SCOUT_CANNOT,
	"actions");
static_assert((int)PHUB_SCOUT_BYTES == PRICE_BYTES && (int)PHUB_SCOUT_SECONDS == PRICE_SECONDS &&
		      (int)PHUB_SCOUT_MONEY == PRICE_MONEY,
	"units");
static_assert(sizeof(((struct phub_scout_decision *)NULL)->reason) == SCOUT_REASON_BYTES, "reasons");

static int options_copy(void *own, size_t own_size, const void *given, size_t size, const char *what, struct err *e)
{
	if (!given || size < sizeof(size_t) || size > OPTIONS_SIZE_MAX)
		return err_set(e, -EINVAL, "%s: fill the struct with its init function first", what);
	memcpy(own, given, size < own_size ? size : own_size);
	*(size_t *)own = own_size;
	return 0;
}

/* ---- a scout's ---- */

void phub_scout_options_init(struct phub_scout_options *options)
{
	struct scout_config c;

	scout_defaults(&c);
	*options = (struct phub_scout_options){.size = sizeof(*options),
		.policy = (enum phub_scout_policy)c.policy,
		.lambda_loss = c.lambda_loss,
		.lambda_bytes = c.lambda_bytes,
		.sigma = c.sigma,
		.temperature = c.temperature,
		.cooling = c.cooling,
		.memory = c.memory,
		.patience = c.patience,
		.algorithm = PHUB_SITE_LOCAL,
		.gain = c.plus.sigma,
		.tries = c.plus.tries,
		.statistics = c.plus.statistics,
		.ease = c.plus.ease,
		.passes = c.plus.passes,
		.guard = c.plus.guard,
		.drift = c.plus.bound,
		.probes = c.plus.bytes_part};
}

/* Arrays of the caller's that fit; the rest scout_init() looks at. */
static int options_numbers(
	double *to, const double *from, unsigned count, unsigned max, const char *what, struct err *e)
{
	if (count > max || (count > 0 && !from))
		return err_set(e, -EINVAL, "scout: %u %s; at most %u, with their place", count, what, max);
	if (count > 0)
		memcpy(to, from, count * sizeof(*to));
	return 0;
}

static bool options_goes_by_loss(enum scout_policy policy)
{
	return policy == SCOUT_HILL || policy == SCOUT_STOCHASTIC || policy == SCOUT_ANNEALING;
}

int options_needs(struct scout_config *config, enum site_algorithm algorithm, struct err *e)
{
	int rc = config->policy == SCOUT_PLUS
			 ? plus_needs(&config->plus, algorithm, config->thetas, config->theta_count)
			 : 0;

	if (algorithm == SITE_DGC && config->theta_count > 1 && options_goes_by_loss(config->policy))
		return err_set(e, -ENOTSUP,
			"scout: %s goes by what models lose at other sites, and those of dgc, which sums alone move, "
			"are one at all sites whatever theta; take fixed, or replay a schedule",
			scout_policy_name(config->policy));
	if (rc == -ENOTSUP)
		return err_set(e, rc, "scout+ does not know how far thetas of %s may go; take another policy",
			site_algorithm_name(algorithm));
	if (rc < 0)
		return err_set(e, rc,
			"scout+ measures at the theta that says all at each step: a grid of %s begins with %s",
			site_algorithm_name(algorithm), algorithm == SITE_GAIA ? "0" : "1");
	return 0;
}

/* Of DGC theta is the part of a gradient that is said, so the largest talks most; of others the smallest. */
static bool options_tighter(enum site_algorithm algorithm, double theta, double than)
{
	return algorithm == SITE_DGC ? theta > than : theta < than;
}

/* "1,2,5", as far as there is room. */
static void options_write_order(
	const struct scout_config *config, enum site_algorithm algorithm, char *out, size_t room)
{
	double at[SCOUT_THETAS_MAX];
	size_t used = 0;

	for (unsigned i = 0; i < config->theta_count; i++) {
		unsigned k = i;

		for (; k > 0 && options_tighter(algorithm, config->thetas[i], at[k - 1]); k--)
			at[k] = at[k - 1];
		at[k] = config->thetas[i];
	}
	for (unsigned i = 0; i < config->theta_count && used < room; i++)
		used += (size_t)snprintf(out + used, room - used, "%s%g", i ? "," : "", at[i]);
}

static int options_order(const struct scout_config *config, enum site_algorithm algorithm, struct err *e)
{
	const char *first = algorithm == SITE_DGC ? "largest" : "smallest";
	char right[160] = "";

	for (unsigned i = 1; i < config->theta_count; i++) {
		if (!options_tighter(algorithm, config->thetas[i], config->thetas[i - 1]))
			continue;
		options_write_order(config, algorithm, right, sizeof(right));
		return err_set(e, -EINVAL,
			"scout: theta %g comes after %g in the grid, whose first is the tightest, of %s the %s: %s",
			config->thetas[i], config->thetas[i - 1], site_algorithm_name(algorithm), first, right);
	}
	return 0;
}

int options_thetas(const struct scout_config *config, enum site_algorithm algorithm, struct err *e)
{
	if (config->theta_count == 0)
		return err_set(e, -EINVAL,
			"scout: it has no thetas; needs 1 to %u, of the program or in PHUB_SCOUT_THETAS (--thetas)",
			SCOUT_THETAS_MAX);
	for (unsigned i = 0; i < config->theta_count; i++)
		if (!site_theta_valid(algorithm, config->thetas[i]))
			return err_set(e, -EINVAL,
				"scout: %s cannot have a theta of %g, which is in the scout's grid; allowed: %s",
				site_algorithm_name(algorithm), config->thetas[i], site_thetas(algorithm));
	for (unsigned i = 0; i < config->schedule_count; i++)
		if (!site_theta_valid(algorithm, config->schedule[i]))
			return err_set(e, -EINVAL,
				"scout: %s cannot have a theta of %g, which is in the scout's schedule; allowed: %s",
				site_algorithm_name(algorithm), config->schedule[i], site_thetas(algorithm));
	return options_order(config, algorithm, e);
}

const char *options_others(enum scout_policy policy, enum options_part part)
{
	/* A replay weighs what its windows cost, for its log. */
	static const bool looks[OPTIONS_PART_COUNT][SCOUT_POLICY_COUNT] = {
		/* fixed, replay, hill, stochastic, annealing, scout+ */
		[OPTIONS_THETA] = {true, false, true, true, true, false},
		[OPTIONS_SIGMA] = {false, true, true, true, true, false},
		[OPTIONS_GAIN] = {false, false, false, false, false, true},
		[OPTIONS_LAMBDA_LOSS] = {false, true, true, true, true, false},
		[OPTIONS_LAMBDA_BYTES] = {false, true, true, true, true, false},
	};

	if ((unsigned)policy >= SCOUT_POLICY_COUNT || looks[part][policy])
		return NULL;
	return part == OPTIONS_THETA  ? "fixed, hill, stochastic and annealing"
	       : part == OPTIONS_GAIN ? "scout+"
				      : "replay, hill, stochastic and annealing";
}

int options_scout(const struct phub_scout_options *given, const enum site_algorithm *algorithm,
	struct scout_config *config, struct err *e)
{
	struct phub_scout_options own;
	int rc;

	phub_scout_options_init(&own);
	rc = options_copy(&own, sizeof(own), given, given ? given->size : 0, "scout", e);
	if (rc < 0)
		return rc;
	if (own.period == 0)
		own.period = own.policy == PHUB_SCOUT_PLUS ? OPTIONS_PERIOD_PLUS : OPTIONS_PERIOD;
	*config = (struct scout_config){.policy = (enum scout_policy)own.policy,
		.theta_count = own.theta_count,
		.first = own.first,
		.schedule_count = own.schedule_count,
		.falls = (algorithm ? *algorithm : (enum site_algorithm)own.algorithm) == SITE_DGC,
		.period = own.period,
		.model_bytes = own.model_bytes,
		.lambda_loss = own.lambda_loss,
		.lambda_bytes = own.lambda_bytes,
		.sigma = own.sigma,
		.temperature = own.temperature,
		.cooling = own.cooling,
		.memory = own.memory,
		.patience = own.patience,
		.seed = own.seed,
		.trim = own.trim};
	config->price = (struct price){.unit = (enum price_unit)own.unit,
		.link = {own.rate, own.latency, own.price},
		.within = {own.rate_within, own.latency_within, own.price_within}};
	plus_defaults(&config->plus);
	config->plus.sigma = own.gain;
	config->plus.worth = own.worth;
	config->plus.tries = own.tries;
	config->plus.statistics = own.statistics;
	config->plus.ease = own.ease;
	config->plus.passes = own.passes;
	config->plus.guard = own.guard;
	config->plus.bound = own.drift;
	config->plus.bytes_part = own.probes;
	rc = options_numbers(config->thetas, own.thetas, own.theta_count, SCOUT_THETAS_MAX, "thetas", e);
	if (rc == 0)
		rc = options_numbers(config->schedule, own.schedule, own.schedule_count, SCOUT_SCHEDULE_MAX,
			"thetas in a schedule", e);
	if (rc == 0 && algorithm)
		rc = options_thetas(config, *algorithm, e);
	if (rc == 0)
		rc = options_needs(config, algorithm ? *algorithm : (enum site_algorithm)own.algorithm, e);
	if (rc == 0 && !algorithm)
		rc = options_order(config, (enum site_algorithm)own.algorithm, e);
	return rc;
}

/* ---- what sites say of them ---- */

enum { OPTIONS_DIGITS_BYTES = 32, OPTIONS_LIST_BYTES = 400 };

void options_say(char *text, size_t room, const char *name, const char *value)
{
	const size_t at = strlen(text);

	if (at + strlen(name) + strlen(value) + sizeof("; =") <= room)
		snprintf(text + at, room - at, "; %s=%s", name, value);
}

static void options_digits(double value, char out[OPTIONS_DIGITS_BYTES])
{
	char *comma;

	for (int precision = 6; precision <= 17; precision++) {
		snprintf(out, OPTIONS_DIGITS_BYTES, "%.*g", precision, value);
		if (strtod(out, NULL) == value)
			break;
	}
	comma = strchr(out, ','); /* a locale's */
	if (comma)
		*comma = '.';
}

void options_say_number(char *text, size_t room, const char *name, double value)
{
	char digits[OPTIONS_DIGITS_BYTES];

	options_digits(value, digits);
	options_say(text, room, name, digits);
}

struct options_named {
	const char *name;
	double value;
};

#define OPTIONS_SAY_ALL(text, room, list) options_say_all(text, room, list, sizeof(list) / sizeof((list)[0]))

static void options_say_all(char *text, size_t room, const struct options_named *list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		options_say_number(text, room, list[i].name, list[i].value);
}

static void options_say_list(char *text, size_t room, const char *name, const double *values, unsigned count)
{
	char list[OPTIONS_LIST_BYTES] = "", digits[OPTIONS_DIGITS_BYTES];
	size_t at = 0;

	for (unsigned i = 0; i < count && at < sizeof(list); i++) {
		options_digits(values[i], digits);
		at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%s", i > 0 ? "," : "", digits);
	}
	if (at >= sizeof(list))
		snprintf(list, sizeof(list), "%u numbers (%08" PRIx32 ")", count,
			crc_32c(0, values, count * sizeof(*values)));
	options_say(text, room, name, list);
}

void options_say_outer(char *text, size_t room, const struct outer_config *c)
{
	const struct options_named numbers[] = {
		{"outer_rate", c->rate}, {"outer_beta1", c->beta1}, {"outer_beta2", c->beta2}, {"outer_tau", c->tau}};

	options_say(text, room, "outer", outer_name(c->kind));
	if (c->kind != OUTER_AVERAGE && c->kind != OUTER_BOX)
		OPTIONS_SAY_ALL(text, room, numbers);
}

static void options_say_price(char *text, size_t room, const struct price *price)
{
	const struct options_named numbers[] = {{"rate", price->link.rate}, {"latency", price->link.latency},
		{"price", price->link.money}, {"rate_within", price->within.rate},
		{"latency_within", price->within.latency}, {"price_within", price->within.money}};

	options_say(text, room, "unit", price_unit_name(price->unit));
	if (price->unit != PRICE_BYTES)
		OPTIONS_SAY_ALL(text, room, numbers);
}

void options_say_scout(char *text, size_t room, const struct scout_config *c)
{
	const struct plus_config *p = &c->plus;
	const struct options_named numbers[] = {{"first", c->thetas[c->first]}, {"period", c->period},
		{"model_bytes", (double)c->model_bytes}, {"lambda_loss", c->lambda_loss},
		{"lambda_bytes", c->lambda_bytes}, {"sigma", c->sigma}, {"temperature", c->temperature},
		{"cooling", c->cooling}, {"memory", c->memory}, {"patience", c->patience}, {"trim", c->trim}};
	const struct options_named plus[] = {{"gain", p->sigma}, {"worth", p->worth}, {"tries", p->tries},
		{"ease", p->ease}, {"passes", p->passes}, {"guard", p->guard}, {"drift", p->bound},
		{"probes", p->bytes_part}};
	char word[OPTIONS_DIGITS_BYTES];

	options_say(text, room, "policy", scout_policy_name(c->policy));
	options_say_list(text, room, "thetas", c->thetas, c->theta_count);
	if (c->policy == SCOUT_REPLAY)
		options_say_list(text, room, "schedule", c->schedule, c->schedule_count);
	snprintf(word, sizeof(word), "%" PRIu64, c->seed);
	options_say(text, room, "seed", word);
	OPTIONS_SAY_ALL(text, room, numbers);
	if (c->policy == SCOUT_PLUS)
		OPTIONS_SAY_ALL(text, room, plus);
	options_say_price(text, room, &c->price);
	snprintf(word, sizeof(word), "(%08" PRIx32 ")", scout_fingerprint(c)); /* what is not among these */
	options_say(text, room, "the rest of the scout", word);
}

int options_tell(const struct scout_decision *d, struct phub_scout_decision *out, struct err *e)
{
	struct phub_scout_decision own = {.window = d->window,
		.theta = d->theta,
		.index = d->index,
		.action = (enum phub_scout_action)d->action,
		.believed = d->believed,
		.loss = d->loss,
		.bytes = d->bytes,
		.cost = d->cost,
		.r = d->r,
		.pull = d->pull,
		.gain = d->gain,
		.radius = d->radius,
		.tries = d->tries,
		.train = d->seen.train,
		.spent = d->spent,
		.extra = d->extra};

	if (!out || out->size < sizeof(size_t) || out->size > OPTIONS_SIZE_MAX)
		return err_set(e, -EINVAL, "scout: phub_scout_decision.size must be the struct's");
	memcpy(own.reason, d->reason, sizeof(own.reason));
	own.size = out->size;
	memcpy(out, &own, own.size < sizeof(own) ? own.size : sizeof(own));
	return 0;
}

/* ---- a site's ---- */

void phub_site_options_init(struct phub_site_options *options)
{
	*options = (struct phub_site_options){.size = sizeof(*options),
		.algorithm = PHUB_SITE_LOCAL,
		.theta = NAN,
		.momentum = 0.9,
		.rate_first = 0.1,
		.outer_rate = NAN,
		.outer_beta1 = NAN,
		.outer_beta2 = NAN,
		.outer_tau = NAN,
		.samples = 1};
}

/* A word that is part of the names of variables as well. */
static bool options_link_valid(const char *link)
{
	size_t length = strspn(link, "abcdefghijklmnopqrstuvwxyz0123456789");

	return length > 0 && length <= OPTIONS_LINK_MAX && !link[length];
}

int options_site(const struct phub_site_options *given, struct phub_site_options *own, struct err *e)
{
	int rc;

	phub_site_options_init(own);
	if (!given)
		return 0;
	rc = options_copy(own, sizeof(*own), given, given->size, "site", e);
	if (rc == 0 && own->link && !options_link_valid(own->link))
		return err_set(
			e, -EINVAL, "site: link='%.32s'; allowed: 1 to %u of a-z and 0-9", own->link, OPTIONS_LINK_MAX);
	return rc;
}

void options_site_config(const struct phub_site_options *own, struct site_config *config)
{
	static const double thetas[SITE_ALGORITHM_COUNT] = {1, 0.1, 20, 0.001};
	struct outer_config outer = {.kind = (enum outer_kind)own->outer};
	bool usual = isnan(own->theta) && (unsigned)own->algorithm < SITE_ALGORITHM_COUNT;

	if ((unsigned)own->outer < OUTER_COUNT)
		outer = outer_defaults(outer.kind);
	outer.rate = isnan(own->outer_rate) ? outer.rate : own->outer_rate;
	outer.beta1 = isnan(own->outer_beta1) ? outer.beta1 : own->outer_beta1;
	outer.beta2 = isnan(own->outer_beta2) ? outer.beta2 : own->outer_beta2;
	outer.tau = isnan(own->outer_tau) ? outer.tau : own->outer_tau;
	*config = (struct site_config){.algorithm = (enum site_algorithm)own->algorithm,
		.theta = usual ? thetas[own->algorithm] : own->theta,
		.share = 1,
		.sites = 1,
		.momentum = own->momentum,
		.weight_decay = own->weight_decay,
		.rate_first = own->rate_first,
		.outer = outer,
		.clip = own->clip,
		.warmup = own->warmup};
}
