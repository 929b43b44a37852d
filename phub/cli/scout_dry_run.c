/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub scout dry-run: what another policy would have decided on what a run has seen. A window's losses, sums and bytes
 * are known for the theta that the run was at; where the other policy would have been elsewhere, the last window at
 * that theta stands in, and where there is none, it sees nothing and decides nothing.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/scout/options.h"
#include "phub/cli/args.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"
#include "phub/cli/scout.h"
#include "phub/cli/scout_check.h"
#include "phub/cli/scout_log.h"

struct dry_options {
	struct scout_given given; /* what is not is the run's */
	struct args_reals thetas;
	uint64_t seed; /* UINT64_MAX: likewise */
	bool json;
};

/* Where the numbers of a window come from. */
enum dry_source { DRY_SEEN, DRY_EARLIER, DRY_UNKNOWN };

struct dry_window {
	enum dry_source source;
	double loss;     /* AL */
	double bytes;    /* in the window, mean of sites; NaN: not known */
	double weighed;  /* of them, by a cost */
	double spent;    /* of them, in the unit of costs; NaN: that is bytes, or it is not known */
	bool shadow;     /* these are a shadow's */
	bool about;      /* of Gaia, and not this window's own: an estimate */
	const char *why; /* nothing follows of it; NULL: what it would have decided can be said */
	unsigned believed;
	struct plus_window heard; /* what scout+ goes by; exchanges 0: it is not known */
	double exchanges;         /* that a cost weighs: of local SGD one in theta steps, else one in each */
	double within, meetings;  /* likewise, bytes and exchanges of sites within: as in the run */
	double travel;            /* bytes of models that its policy has travel, and, of scout+, statistics */
	double spent_travel;      /* on these, as spent */
};

/*
 * Its course is known to the end of the first window in which nothing follows of what was seen, or to its start, where
 * not even bytes are. Behind that it would have been who knows where: windows there count, and what it would have sent
 * there does not.
 */
struct dry_sums {
	unsigned seen, earlier, unknown; /* windows */
	unsigned idle;                   /* in which it has decided nothing */
	unsigned deaf;                   /* of which scout+ has not heard anything */
	unsigned tried;                  /* of which it knows the mean model's losses */
	/* Of those of its course, which goes to step `t`: */
	double t;
	unsigned known;         /* windows */
	unsigned blind;         /* of which not even bytes are known */
	unsigned shadows;       /* whose bytes are a shadow's */
	bool about;             /* some are estimates */
	double bytes, travel;   /* that a site would have sent, in exchanges and in what travels */
	double spent;           /* on both */
	double ran, ran_travel; /* what it has sent in the run */
};

static const char *const dry_units[] = {"bytes", "seconds", "money", NULL};

/* ---- what it would have seen ---- */

static double dry_shadow(const json_t *w, double theta)
{
	const json_t *shadow = json_object_get(w, "shadow");

	for (unsigned i = 0; i < json_array_size(shadow); i++)
		if (scout_log_number(json_array_get(shadow, i), "theta") == theta)
			return scout_log_number(json_array_get(shadow, i), "bytes");
	return NAN;
}

/* Of local SGD nothing but theta decides what is sent: a model, every theta steps. */
static double dry_counted(const struct scout_log *log, unsigned window, double theta)
{
	const double t = scout_log_number(scout_log_window(log, window), "t"), from = t - scout_log_steps(log, window);

	if (scout_log_algorithm(log) != SITE_LOCAL || !(theta >= 1))
		return NAN;
	return (floor(t / theta) - floor(from / theta)) * scout_log_number(log->run, "model_bytes");
}

static struct plus_window dry_heard(const json_t *w)
{
	const json_t *seen = json_object_get(w, "seen");
	const double exchanges = scout_log_number(seen, "exchanges");

	if (!(exchanges >= 1 && exchanges <= UINT32_MAX))
		return (struct plus_window){0};
	return (struct plus_window){.exchanges = (unsigned)exchanges,
		.said = scout_log_number(seen, "said"),
		.heard = scout_log_number(seen, "heard"),
		.sites = scout_log_number(seen, "sites"),
		.rate = scout_log_number(seen, "rate"),
		.trained = scout_log_number(seen, "trained"),
		.tried = scout_log_number(seen, "tried"),
		.train = scout_log_number(seen, "train"),
		.before = scout_log_number(seen, "before"),
		.after = scout_log_number(seen, "after")};
}

/* In a period, which is what costs are of, however long a window was. */
static double dry_exchanges(const struct scout *scout, const char *algorithm, double theta)
{
	const double period = scout->config.period;

	return strcmp(algorithm, "local") == 0 && theta >= 1 ? period / theta : period;
}

/* The window `at` stands for `window`, which may have had more steps. */
static void dry_take(const struct scout_log *log, unsigned window, unsigned at, struct dry_window *seen)
{
	const json_t *w = scout_log_window(log, at);

	seen->source = at == window ? DRY_SEEN : DRY_EARLIER;
	seen->loss = scout_log_number(w, "AL");
	seen->believed = (unsigned)scout_log_number(w, "believed");
	seen->heard = dry_heard(w);
	if (!isnan(seen->bytes) && at != window)
		return;
	seen->bytes = scout_log_number(w, "bytes");
	seen->weighed = scout_log_weighed(w, "bytes");
	seen->shadow = false;
	if (at != window)
		seen->bytes *= scout_log_steps(log, window) / scout_log_steps(log, at);
}

/* Do the run's windows say what models lose elsewhere? Else nobody has failed to report it. */
static bool dry_travelled(const struct scout_log *log)
{
	const char *policy = scout_log_text(log->run, "policy");

	return strcmp(policy, scout_policy_name(SCOUT_FIXED)) != 0 &&
	       strcmp(policy, scout_policy_name(SCOUT_PLUS)) != 0;
}

static const char *dry_why(const struct scout_log *log, const struct scout *scout, const struct dry_window *seen)
{
	const enum scout_policy policy = scout->config.policy;

	if (policy == SCOUT_FIXED || policy == SCOUT_REPLAY)
		return NULL;
	if (seen->source == DRY_UNKNOWN)
		return "the run has not tried this theta yet";
	if (policy == SCOUT_PLUS)
		return NULL;
	if (isnan(seen->loss) && !dry_travelled(log))
		return "no model has travelled in the run, and what they would have lost is not known";
	return isnan(seen->bytes) ? "the log does not say what was sent" : NULL;
}

/* Of what the run had travel in a window the other policy has as much, unless it has models travel, and the run had
 * none, or the other way round. */
static double dry_travel(const struct scout_log *log, unsigned window, enum scout_policy policy)
{
	const bool travels = policy != SCOUT_FIXED && policy != SCOUT_PLUS, ran = dry_travelled(log);
	const bool same = strcmp(scout_log_text(log->run, "policy"), scout_policy_name(policy)) == 0;

	if (same || (travels && ran))
		return scout_log_number(scout_log_window(log, window), "bytes_travel");
	return travels ? scout_log_number(log->run, "model_bytes") : 0;
}

/* As the cost weighs it in a period, in so many steps; NaN: it is bytes. */
static double dry_spent(const struct scout_config *c, const struct dry_window *seen, double steps)
{
	double spent = price_of(c->price.unit, &c->price.link, seen->weighed, seen->exchanges);

	if (c->price.unit == PRICE_BYTES)
		return NAN;
	if (seen->within >= 0)
		spent += price_of(c->price.unit, &c->price.within, seen->within, seen->meetings);
	return spent / c->period * steps;
}

static struct dry_window dry_look(const struct scout_log *log, unsigned window, const struct scout *scout)
{
	const double theta = scout_theta(scout), steps = scout_log_steps(log, window), period = scout->config.period;
	const json_t *own = scout_log_window(log, window);
	const json_t *within = json_object_get(log->run, "within");
	struct dry_window seen = {.source = DRY_UNKNOWN, .loss = NAN, .bytes = dry_shadow(own, theta)};

	seen.exchanges = dry_exchanges(scout, scout_log_text(log->run, "algorithm"), theta);
	seen.within = scout_log_weighed(own, "bytes_within");
	seen.meetings = dry_exchanges(scout, scout_log_text(within, "algorithm"), scout_log_number(within, "theta"));
	seen.shadow = !isnan(seen.bytes);
	if (!seen.shadow)
		seen.bytes = dry_counted(log, window, theta);
	seen.weighed = steps > period ? seen.bytes * period / steps : seen.bytes;
	for (unsigned at = window + 1; at-- > 0;) {
		if (scout_log_number(scout_log_window(log, at), "theta") == theta) {
			dry_take(log, window, at, &seen);
			break;
		}
	}
	seen.about = scout_log_algorithm(log) == SITE_GAIA && seen.source != DRY_SEEN && !isnan(seen.bytes);
	seen.spent = dry_spent(&scout->config, &seen, steps);
	seen.travel = dry_travel(log, window, scout->config.policy);
	seen.spent_travel = scout_log_travel_cost(
		log, window, &scout->config.price, seen.travel, scout->config.policy != SCOUT_PLUS);
	seen.why = dry_why(log, scout, &seen);
	return seen;
}

static uint64_t dry_count_of(double samples)
{
	return samples >= 0 && samples < 1e15 ? (uint64_t)(samples + 0.5) : 0;
}

/* Reports whose means are these. Without a loss they say nothing. */
static unsigned dry_reports(const struct scout_log *log, const struct dry_window *seen, struct scout_report *reports)
{
	double all = scout_log_number(log->run, "sites");
	unsigned sites = all < SCOUT_SITES_MAX ? (unsigned)all : SCOUT_SITES_MAX;
	uint64_t bytes = seen->weighed >= 0 && seen->weighed < 1e15 ? (uint64_t)(seen->weighed * sites + 0.5) : 0;

	for (unsigned k = 0; k < sites; k++) {
		reports[k] = (struct scout_report){.bytes = bytes / sites + (k < bytes % sites),
			.trained = dry_count_of(seen->heard.trained),
			.train = seen->heard.train,
			.tried = dry_count_of(seen->heard.tried),
			.before = seen->heard.before,
			.after = seen->heard.after,
			.exchanges = seen->exchanges,
			.within = seen->within >= 0 && seen->within < 1e15 ? (uint64_t)seen->within : 0,
			.exchanges_within = seen->within >= 0 ? seen->meetings : 0};
		if (k >= seen->believed || isnan(seen->loss))
			continue;
		reports[k].samples = 1;
		reports[k].home = seen->loss == 0 ? 1 : fmax(seen->loss, 0); /* both 0 would say nothing */
		reports[k].away = seen->loss == 0 ? 1 : fmax(-seen->loss, 0);
	}
	return sites;
}

/* ---- printing ---- */

static const char *const dry_sources[] = {"seen", "earlier", "unknown"};

static bool dry_json(
	const json_t *w, double theta, const struct dry_window *seen, const struct scout_decision *d, bool on_course)
{
	return output_json(json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:b, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:b, "
				     "s:b, s:s?, s:s}",
		"scout", "dry-run", "t", scout_log_value(scout_log_number(w, "t")), "ran",
		scout_log_value(scout_log_number(w, "theta")), "ran_next", scout_log_value(scout_log_number(w, "next")),
		"theta", scout_log_value(theta), "next", scout_log_value(d->theta), "on_course", on_course, "known",
		dry_sources[seen->source], "AL", scout_log_value(seen->loss), "r", scout_log_value(d->r), "bytes",
		scout_log_value(seen->bytes), "bytes_travel", scout_log_value(seen->travel), "spent",
		scout_log_value(seen->spent), "spent_travel", scout_log_value(seen->spent_travel), "shadow",
		seen->shadow, "about", seen->about, "action", seen->why ? NULL : scout_action_name(d->action), "reason",
		d->reason));
}

static void dry_row(struct output_table *table, const json_t *w, double theta, const struct dry_window *seen,
	const struct scout_decision *d, const struct scout_config *c)
{
	const bool pulls = c->policy == SCOUT_PLUS;
	const double value = pulls ? d->r : 100 * seen->loss;
	char text[32];

	output_cell(table, "%.0f", scout_log_number(w, "t"));
	output_cell(table, "%g", scout_log_number(w, "theta"));
	output_cell(table, "%g", theta);
	output_cell(table, "%s", dry_sources[seen->source]);
	if (isnan(value))
		output_cell(table, "-");
	else
		output_cell(table, pulls ? "%.4f" : "%.1f", value);
	output_cell(table, "%s%s%s", seen->about ? "about " : "",
		isnan(seen->bytes)             ? "-"
		: c->price.unit == PRICE_BYTES ? scout_log_bytes_text(seen->bytes, text)
					       : scout_log_spent_text(c->price.unit, seen->spent, text),
		seen->shadow ? " (shadow)" : "");
	output_cell(table, "%s", seen->why ? "-" : scout_action_name(d->action));
	output_cell(table, "%g", d->theta);
	output_cell(table, "%s", d->reason);
}

static void dry_conclude_sent(const struct scout *scout, const struct dry_sums *sums)
{
	const enum price_unit unit = scout->config.price.unit;
	const char *about = sums->about ? "about " : "";
	char text[4][32], shadows[64] = "";

	if (sums->blind) {
		printf("What it would have sent is not known in %u windows: the run had no shadow of that theta.\n",
			sums->blind);
		return;
	}
	if (sums->known == 0)
		return;
	if (sums->shadows)
		snprintf(shadows, sizeof(shadows), " (in %u of %u windows by shadows)", sums->shadows, sums->known);
	if (sums->idle)
		printf("Until step %.0f it", sums->t);
	else
		printf("It");
	printf(" would have sent %s%s a site in exchanges%s, and %s of what is tried elsewhere;\nthe run sent %s, and "
	       "%s.\n",
		about, scout_log_bytes_text(sums->bytes, text[0]), shadows, scout_log_bytes_text(sums->travel, text[1]),
		scout_log_bytes_text(sums->ran, text[2]), scout_log_bytes_text(sums->ran_travel, text[3]));
	if (unit != PRICE_BYTES)
		printf("That would have cost %s%s.\n", about, scout_log_spent_text(unit, sums->spent, text[0]));
	if (sums->about)
		puts("about: what Gaia sends follows of the weights that its own threshold has led to, and the run had "
		     "another.");
}

static void dry_conclude(const struct scout_log *log, const struct scout *scout, const struct dry_sums *sums)
{
	const char *policy = scout_policy_name(scout->config.policy), *ran = scout_log_text(log->run, "policy");

	if (strcmp(policy, ran) == 0)
		printf("\n%s again: ", policy);
	else
		printf("\n%s instead of %s: ", policy, ran);
	if (sums->idle)
		printf("known until step %.0f. It has decided nothing in %u windows, of which too little is known:\n"
		       "where it would have gone behind that step, and what it would have sent, is not known.\n",
			sums->t, sums->idle);
	else
		printf("theta %g at the end.\n", scout_theta(scout));
	printf("Of %u windows %u were seen at the theta that it would have had, in %u an earlier one stands in,\n"
	       "and in %u nothing is known of that theta, which was not tried until then.\n",
		log->count, sums->seen, sums->earlier, sums->unknown);
	dry_conclude_sent(scout, sums);
	if (scout->config.policy == SCOUT_PLUS && sums->deaf)
		printf("It has heard no exchange in %u windows, and decided nothing in these: it measures at theta "
		       "%g.\n",
			sums->deaf, scout->config.thetas[0]);
	if (scout->config.policy == SCOUT_PLUS && !sums->tried)
		printf("The log has no losses of the mean model, of sites that have no scout+ or no evaluate(): so "
		       "probes say nothing,\nand models that drift apart are not seen.\n");
}

/* ---- the run ---- */

/* Where the log does not know of it, nothing travelled. */
static double dry_travelling(double value)
{
	return isnan(value) ? 0 : value;
}

/* One more window of its course. */
static void dry_add(struct dry_sums *sums, const struct scout_log *log, unsigned window, const struct dry_window *seen)
{
	const json_t *w = scout_log_window(log, window);

	sums->t = scout_log_number(w, "t");
	sums->known++;
	sums->blind += isnan(seen->bytes);
	sums->shadows += seen->shadow;
	sums->about = sums->about || seen->about;
	sums->bytes += seen->bytes;
	sums->travel += dry_travelling(seen->travel);
	sums->spent += seen->spent + dry_travelling(seen->spent_travel);
	sums->ran += scout_log_number(w, "bytes");
	sums->ran_travel += dry_travelling(scout_log_number(w, "bytes_travel"));
}

static void dry_count(struct dry_sums *sums, const struct dry_window *seen)
{
	sums->seen += seen->source == DRY_SEEN;
	sums->earlier += seen->source == DRY_EARLIER;
	sums->unknown += seen->source == DRY_UNKNOWN;
	sums->idle += seen->why != NULL;
	sums->deaf += seen->heard.exchanges == 0;
	sums->tried += seen->heard.tried > 0;
}

static void dry_decide(const struct scout_log *log, struct scout *scout, const struct dry_window *seen,
	struct scout_decision *decision)
{
	static struct scout_report reports[SCOUT_SITES_MAX];

	if (seen->heard.exchanges > 0)
		scout_hear_all(scout, seen->heard.exchanges, seen->heard.said, seen->heard.heard, 1 / seen->heard.sites,
			seen->heard.rate);
	if (!seen->why) {
		scout_observe(scout, reports, dry_reports(log, seen, reports), decision);
		return;
	}
	*decision = (struct scout_decision){.theta = scout_theta(scout), .loss = NAN, .r = NAN};
	snprintf(decision->reason, sizeof(decision->reason), "%s", seen->why);
}

static int dry_go(const struct scout_log *log, struct scout *scout, bool json)
{
	const bool pulls = scout->config.policy == SCOUT_PLUS;
	const bool bytes = scout->config.price.unit == PRICE_BYTES;
	struct output_table table = {.heads = {"step", "ran", "would be", "known", pulls ? "r" : "AL points",
					     bytes ? "bytes" : "spent", "action", "next", "reason"},
		.align = "rrrlrrlrl"};
	struct dry_sums sums = {0};
	bool good = true;

	for (unsigned i = 0; i < log->count; i++) {
		double theta = scout_theta(scout);
		struct dry_window seen = dry_look(log, i, scout);
		const bool on_course = sums.idle == 0 && !(seen.why && isnan(seen.bytes));
		struct scout_decision decision;

		dry_decide(log, scout, &seen, &decision);
		if (on_course)
			dry_add(&sums, log, i, &seen);
		if (json)
			good = dry_json(scout_log_window(log, i), theta, &seen, &decision, on_course) && good;
		else
			dry_row(&table, scout_log_window(log, i), theta, &seen, &decision, &scout->config);
		dry_count(&sums, &seen);
	}
	if (!json) {
		output_table_print(&table);
		dry_conclude(log, scout, &sums);
	}
	return good ? CLI_DONE : CLI_FAILED;
}

/* A log from before there were sums in it, or of a run that has exchanged nothing. */
static bool dry_hears(const struct scout_log *log)
{
	for (unsigned i = 0; i < log->count; i++)
		if (dry_heard(scout_log_window(log, i)).exchanges > 0)
			return true;
	output_error(
		"%s: scout+ decides by what exchanges show, and this log does not have it (\"seen\" in decisions): "
		"take another --policy",
		log->path);
	return false;
}

/* A grid, or a schedule, beside the run's. */
static int dry_take_thetas(
	const struct dry_options *o, enum site_algorithm algorithm, struct scout_config *c, struct err *e)
{
	const double first = c->thetas[c->first];

	if (o->thetas.count > 0) {
		memcpy(c->thetas, o->thetas.at, o->thetas.count * sizeof(double));
		c->theta_count = o->thetas.count;
		for (c->first = 0; c->first + 1 < c->theta_count && c->thetas[c->first] != first;)
			c->first++;
	}
	if (c->policy == SCOUT_REPLAY && (o->given.policy >= 0 || o->thetas.count > 0 || c->schedule_count == 0)) {
		memcpy(c->schedule, c->thetas, c->theta_count * sizeof(double));
		c->schedule_count = c->theta_count;
		c->theta_count = 1; /* of a replay it says nothing */
		c->first = 0;
	}
	return o->thetas.count > 0 ? options_thetas(c, algorithm, e) : 0;
}

static int dry_config(const struct args_usage *usage, const struct dry_options *o, const struct scout_log *log,
	struct scout_config *c)
{
	struct scout_given given = o->given;
	struct err e = {0};
	int rc;

	c->policy = given.policy < 0 ? c->policy : (enum scout_policy)given.policy;
	c->price.unit = given.unit < 0 ? c->price.unit : (enum price_unit)given.unit;
	given.policy = (int)c->policy;
	given.unit = (int)c->price.unit;
	rc = scout_check_given(usage, &given);
	if (rc != ARGS_GO_ON)
		return rc;
	if (dry_take_thetas(o, scout_log_algorithm(log), c, &e) < 0)
		return args_wrong(usage, "%s", e.text);
	rc = scout_check_theta(usage, given.theta, c->thetas, c->theta_count, &c->first);
	scout_check_take(&given, c);
	c->seed = o->seed == UINT64_MAX ? c->seed : o->seed;
	if (rc == ARGS_GO_ON && options_needs(c, scout_log_algorithm(log), &e) < 0)
		return args_wrong(usage, "%s", e.text);
	return rc;
}

static int dry_open(const struct args_usage *usage, const struct dry_options *o, const char *path)
{
	struct scout_config config;
	struct scout_log log;
	struct scout scout;
	struct err e = {0};
	int rc;

	if (!scout_log_open(path, &log))
		return CLI_FAILED;
	rc = scout_log_config(&log, &config, &e) < 0 ? CLI_FAILED : dry_config(usage, o, &log, &config);
	if (rc == ARGS_GO_ON && scout_init(&scout, &config, &e) < 0)
		rc = args_wrong(usage, "%s", e.text);
	else if (rc == CLI_FAILED)
		output_error("%s", e.text);
	if (rc == ARGS_GO_ON && log.count == 0) {
		output_error("%s: no decision in it: the run had no scout (--policy makes one), or no window has ended "
			     "yet; phub scout compare tells what it sent",
			path);
		rc = CLI_FAILED;
	}
	if (rc == ARGS_GO_ON && config.policy == SCOUT_PLUS && !dry_hears(&log))
		rc = CLI_FAILED;
	rc = rc == ARGS_GO_ON ? dry_go(&log, &scout, o->json) : rc;
	scout_log_free(&log);
	return rc;
}

int scout_dry_run_run(int argc, char **argv)
{
	struct dry_options o = {.given = SCOUT_GIVEN_NONE, .seed = UINT64_MAX};
	struct scout_given *g = &o.given;
	const struct args_option options[] = {
		{"policy", "NAME", "fixed, replay, hill, stochastic, annealing or scout+ (the run's)", ARGS_CHOICE,
			&g->policy, 0, 0, scout_policies},
		{"thetas", "A,B,...", "its grid, the tightest first, or of replay its schedule: 1 to 64 (the run's)",
			ARGS_REALS, &o.thetas, 0, 0, NULL},
		{"theta", "THETA", "fixed, hill, stochastic, annealing: what it begins with (the run's)", ARGS_REAL,
			&g->theta, 0, 0, NULL},
		{"sigma", "LOSS", "all but fixed and scout+: accuracy that may be lost, 0 to 1 (the run's)", ARGS_REAL,
			&g->sigma, 0, 1, NULL},
		{"lambda-loss", "L", "likewise: what accuracy that is lost beyond sigma costs (the run's)", ARGS_REAL,
			&g->lambda_loss, 0, 0, NULL},
		{"lambda-bytes", "L", "likewise: what a model's worth of bytes a step costs (the run's)", ARGS_REAL,
			&g->lambda_bytes, 0, 0, NULL},
		{"gain", "LOSS", "scout+: loss that talking more would have to save (the run's)", ARGS_REAL, &g->gain,
			0, 0, NULL},
		{"worth", "COST", "scout+, instead: what a unit of loss is worth, in the unit of costs (the run's)",
			ARGS_REAL, &g->worth, 0, 0, NULL},
		{"ease", "FACTOR", "scout+: a factor to how loose theta may be, above 0 (the run's)", ARGS_REAL,
			&g->ease, 0, 0, NULL},
		{"unit", "NAME", "of costs: bytes, seconds or money (the run's)", ARGS_CHOICE, &g->unit, 0, 0,
			dry_units},
		{"rate", "BYTES", "seconds: what a link carries in one, like 12.5MB (the run's)", ARGS_SIZE, &g->rate,
			0, 0, NULL},
		{"latency", "SECONDS", "seconds: of an exchange, however little it says (the run's)", ARGS_REAL,
			&g->latency, 0, 0, NULL},
		{"price", "PRICE", "money: of 10^9 bytes (the run's)", ARGS_REAL, &g->price, 0, 0, NULL},
		{"seed", "N", "of its chances (the run's)", ARGS_NUMBER, &o.seed, 0, SCOUT_SEED_MAX, NULL},
		{"json", NULL, "a line of JSON for each window", ARGS_FLAG, &o.json, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {.command = "phub scout dry-run",
		.words = "LOG",
		.about = "What another policy, or other parameters, would have decided on what a run has seen. A run "
			 "sees the\n"
			 "theta that it is at, and no other: where it would have been elsewhere, the last window at "
			 "that theta\n"
			 "stands in (earlier), or nothing is known (unknown) and nothing decided. Bytes come from "
			 "shadows, where\n"
			 "the log has them; those of local SGD follow of theta. scout+ hears what the run's exchanges "
			 "have shown.\n"
			 "It is a hint of what to run next, and no measurement.\n",
		.examples = "  phub scout dry-run run.jsonl --policy annealing --sigma 0.02\n",
		.words_max = 1,
		.options = options};
	struct args_words words;
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc != ARGS_GO_ON)
		return rc;
	if (words.count == 0)
		return args_wrong(&usage, "which log?");
	return dry_open(&usage, &o, words.at[0]);
}
