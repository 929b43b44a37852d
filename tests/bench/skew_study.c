/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs of the study on skewed sites, a line of JSON each:
 *
 *     skew_study --algorithm local --theta 20 --norm group --skew 100 --seeds 1-3 --on test
 *     skew_study --algorithm gaia --policy hill --thetas 0,0.02,0.05,0.1,0.2,0.3 --theta 0.1 --skew 60
 *
 * Parameters are fixed on --on valid (the default), never on test.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "tests/bench/skew_train.h"

static const char usage[] = "usage: skew_study [OPTION...]\n"
			    "  --algorithm bsp|gaia|local|dgc  (bsp)\n"
			    "  --theta T                (1; gaia .1, local 20, dgc .001)\n"
			    "  --policy fixed|replay|hill|stochastic|annealing|scout+\n"
			    "                           sets theta meanwhile; a line for each window, too\n"
			    "  --thetas A,B,...         its grid, the tightest first; replay: its schedule\n"
			    "  --period STEPS           of its windows (500)\n"
			    "  --sigma LOSS             that it bears (0.05)\n"
			    "  --link BYTES             costs in seconds: what a link carries in one\n"
			    "  --latency SECONDS        of an exchange (0)\n"
			    "  --price P                costs in money: of 10^9 bytes\n"
			    "  --worth COST             scout+: of a unit of loss\n"
			    "  --rival fda|qsr|adacomm  decides when local averages; --theta is its parameter\n"
			    "  --base STEPS             qsr: the least (1)\n"
			    "  --every STEPS            adacomm: between its looks at the loss (100)\n"
			    "  --norm none|batch|group  (group)\n"
			    "  --sites K                (5)\n"
			    "  --skew PERCENT           by label (0)\n"
			    "  --dirichlet ALPHA        instead of by label\n"
			    "  --sizes A,B,...          of the sites, in any unit (all alike)\n"
			    "  --drift STEP:PERCENT,... skew by label from a step on\n"
			    "  --weighted               sites count by their samples\n"
			    "  --steps N                (1500)\n"
			    "  --batch N                (20)\n"
			    "  --rate R                 (0.05)\n"
			    "  --side 14|28             of the images (14)\n"
			    "  --train N                images to train on (20000)\n"
			    "  --valid N                images to validate on (5000)\n"
			    "  --seeds A[-B]            a run for each (1)\n"
			    "  --on valid|test          what is scored (valid)\n"
			    "  --log FILE               the decision log of the run, for phub scout\n"
			    "  --shadow A,B,...         what these thetas would have sent goes there too\n";

struct study {
	struct skew_train_config train;
	struct scout_config scout;
	struct rival_config rival;
	bool scouts, rivals, theta_given;
	struct skew_data_config data;
	double sizes[SKEW_SITES_MAX];
	unsigned size_count;
	uint64_t seed_first, seed_last;
	bool on_test;
	const char *log_path;
	struct skew_log log;
};

static const char *const algorithms[] = {"bsp", "gaia", "local", "dgc"}, *const norms[] = {"none", "batch", "group"};

__attribute__((noreturn)) static void study_refuse(const char *option, const char *value)
{
	fprintf(stderr, "skew_study: --%s %s\n%s", option, value, usage);
	exit(2);
}

static double study_number(const char *option, const char *text, char **end)
{
	double value = strtod(text, end);

	if (*end == text || !isfinite(value) || value < 0 || value > 1e9)
		study_refuse(option, text);
	return value;
}

static uint64_t study_count(const char *option, const char *text, char **end)
{
	double value = study_number(option, text, end);

	if (value != floor(value))
		study_refuse(option, text);
	return (uint64_t)value;
}

static double study_real(const char *option, const char *text)
{
	char *end;
	double value = study_number(option, text, &end);

	if (*end)
		study_refuse(option, text);
	return value;
}

static unsigned study_whole(const char *option, const char *text)
{
	double value = study_real(option, text);

	if (value != floor(value))
		study_refuse(option, text);
	return (unsigned)value;
}

static unsigned study_word(const char *option, const char *text, const char *const *words, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (strcmp(text, words[i]) == 0)
			return i;
	study_refuse(option, text);
}

static void study_take_sizes(struct study *s, const char *text)
{
	const char *at = text;

	for (char *end = NULL; s->size_count < SKEW_SITES_MAX; at = end + 1) {
		s->sizes[s->size_count++] = study_number("sizes", at, &end);
		if (*end == 0)
			return;
		if (*end != ',')
			break;
	}
	study_refuse("sizes", text);
}

static void study_take_drift(struct study *s, const char *text)
{
	struct skew_train_config *t = &s->train;
	const char *at = text;

	for (char *end = NULL; t->phase_count < SKEW_PHASES_MAX; at = end + 1) {
		struct skew_phase *phase = &t->phases[t->phase_count++];

		phase->step = (unsigned)study_count("drift", at, &end);
		if (*end != ':')
			break;
		phase->percent = study_number("drift", end + 1, &end);
		if (*end == 0)
			return;
		if (*end != ',')
			break;
	}
	study_refuse("drift", text);
}

static void study_take_seeds(struct study *s, const char *text)
{
	char *end;

	s->seed_first = s->seed_last = study_count("seeds", text, &end);
	if (*end == '-')
		s->seed_last = study_count("seeds", end + 1, &end);
	if (*end || s->seed_last < s->seed_first)
		study_refuse("seeds", text);
}

/* To `out`, room for SCOUT_THETAS_MAX. */
static unsigned study_take_thetas(const char *option, const char *text, double *out)
{
	const char *at = text;
	unsigned count = 0;

	for (char *end = NULL; count < SCOUT_THETAS_MAX; at = end + 1) {
		out[count++] = study_number(option, at, &end);
		if (*end == 0)
			return count;
		if (*end != ',')
			break;
	}
	study_refuse(option, text);
}

enum {
	ALGORITHM,
	THETA,
	POLICY,
	THETAS,
	PERIOD,
	SIGMA,
	LINK,
	LATENCY,
	PRICE,
	WORTH,
	RIVAL,
	BASE,
	EVERY,
	NORM,
	SITES,
	SKEW,
	DIRICHLET,
	SIZES,
	DRIFT,
	WEIGHTED,
	STEPS,
	BATCH,
	RATE,
	SIDE,
	TRAIN,
	VALID,
	SEEDS,
	ON,
	LOG,
	SHADOW,
};

static const struct option options[] = {
	{"algorithm", required_argument, NULL, ALGORITHM},
	{"theta", required_argument, NULL, THETA},
	{"policy", required_argument, NULL, POLICY},
	{"thetas", required_argument, NULL, THETAS},
	{"period", required_argument, NULL, PERIOD},
	{"sigma", required_argument, NULL, SIGMA},
	{"link", required_argument, NULL, LINK},
	{"latency", required_argument, NULL, LATENCY},
	{"price", required_argument, NULL, PRICE},
	{"worth", required_argument, NULL, WORTH},
	{"rival", required_argument, NULL, RIVAL},
	{"base", required_argument, NULL, BASE},
	{"every", required_argument, NULL, EVERY},
	{"norm", required_argument, NULL, NORM},
	{"sites", required_argument, NULL, SITES},
	{"skew", required_argument, NULL, SKEW},
	{"dirichlet", required_argument, NULL, DIRICHLET},
	{"sizes", required_argument, NULL, SIZES},
	{"drift", required_argument, NULL, DRIFT},
	{"weighted", no_argument, NULL, WEIGHTED},
	{"steps", required_argument, NULL, STEPS},
	{"batch", required_argument, NULL, BATCH},
	{"rate", required_argument, NULL, RATE},
	{"side", required_argument, NULL, SIDE},
	{"train", required_argument, NULL, TRAIN},
	{"valid", required_argument, NULL, VALID},
	{"seeds", required_argument, NULL, SEEDS},
	{"on", required_argument, NULL, ON},
	{"log", required_argument, NULL, LOG},
	{"shadow", required_argument, NULL, SHADOW},
	{NULL, 0, NULL, 0},
};

/* JSON has no word for a loss that is not finite. */
static void print_loss(const char *name, double loss)
{
	if (isfinite(loss))
		printf("\"%s\":%.5f,", name, loss);
	else
		printf("\"%s\":null,", name);
}

/* As in a decision log: after `t` steps of the run, a window at `theta` is over, and the next one is at `next`. */
static void study_tell(void *context, unsigned steps, double theta, const struct scout_decision *d)
{
	const struct study *s = context;

	printf("{\"study\":\"window\",\"window\":%" PRIu64 ",\"t\":%u,\"theta\":%g,\"next\":%g,\"action\":\"%s\","
	       "\"believed\":%u,",
		d->window, steps, theta, d->theta, scout_action_name(d->action), d->believed);
	print_loss("loss", d->loss);
	print_loss("cost", d->cost);
	print_loss("r", d->r);
	print_loss("pull", d->pull);
	print_loss("gain", d->gain);
	print_loss("radius", d->radius);
	if (s->scout.price.unit != PRICE_BYTES)
		print_loss("spent", d->spent);
	printf("\"bytes\":%.1f,\"reason\":\"%s\"}\n", d->bytes, d->reason);
}

/* Of what talking costs. Is it such an option? */
static bool study_take_price(struct study *s, int option, const char *text)
{
	struct price *price = &s->scout.price;
	double *const numbers[] = {[LINK] = &price->link.rate,
		[LATENCY] = &price->link.latency,
		[PRICE] = &price->link.money,
		[WORTH] = &s->scout.plus.worth};

	if (option < LINK || option > WORTH)
		return false;
	*numbers[option] = study_real(options[option].name, text);
	if (option == LINK || option == PRICE)
		price->unit = option == LINK ? PRICE_SECONDS : PRICE_MONEY;
	return true;
}

/* Of what sets theta, or decides when to average. Is it such an option? */
static bool study_take_controller(struct study *s, int option, const char *text)
{
	static const char *const policies[] = {"fixed", "replay", "hill", "stochastic", "annealing", "scout+"};
	static const char *const rivals[] = {"fda", "qsr", "adacomm"};
	const char *name = options[option].name;

	switch (option) {
	case POLICY:
		s->scout.policy = (enum scout_policy)study_word(name, text, policies, SCOUT_POLICY_COUNT);
		s->scouts = true;
		return true;
	case THETAS:
		s->scout.theta_count = study_take_thetas(name, text, s->scout.thetas);
		return true;
	case SHADOW:
		s->log.theta_count = study_take_thetas(name, text, s->log.thetas);
		return true;
	case LOG:
		s->log_path = text;
		return true;
	case SIGMA:
		s->scout.sigma = study_real(name, text);
		return true;
	case RIVAL:
		s->rival.kind = (enum rival_kind)study_word(name, text, rivals, 3);
		s->rivals = true;
		return true;
	default:
		return false;
	}
}

static void study_take(struct study *s, int option, const char *text)
{
	static const char *const sets[] = {"valid", "test"};
	const char *name = options[option].name;
	struct skew_train_config *t = &s->train;
	unsigned *wholes[] = {
		[SITES] = &t->split.sites,
		[PERIOD] = &s->scout.period,
		[BASE] = &s->rival.base,
		[EVERY] = &s->rival.every,
		[STEPS] = &t->steps,
		[BATCH] = &t->batch,
		[SIDE] = &s->data.side,
		[TRAIN] = &s->data.train_count,
		[VALID] = &s->data.valid_count,
	};

	if (study_take_controller(s, option, text) || study_take_price(s, option, text))
		return;
	switch (option) {
	case ALGORITHM:
		t->algorithm = (enum site_algorithm)study_word(name, text, algorithms, SITE_ALGORITHM_COUNT);
		break;
	case THETA:
		t->theta = study_real(name, text);
		s->theta_given = true;
		break;
	case NORM:
		t->norm = (enum skew_norm)study_word(name, text, norms, 3);
		break;
	case SKEW:
		t->split.percent = study_real(name, text);
		break;
	case DIRICHLET:
		t->split.kind = SKEW_BY_DIRICHLET;
		t->split.alpha = study_real(name, text);
		break;
	case SIZES:
		study_take_sizes(s, text);
		break;
	case DRIFT:
		study_take_drift(s, text);
		break;
	case WEIGHTED:
		t->weighted = true;
		break;
	case RATE:
		t->rate = study_real(name, text);
		break;
	case SEEDS:
		study_take_seeds(s, text);
		break;
	case ON:
		s->on_test = study_word(name, text, sets, 2);
		break;
	default:
		*wholes[option] = study_whole(name, text);
	}
}

static void study_set_scout(struct study *s)
{
	struct scout_config *c = &s->scout;

	if (c->theta_count == 0)
		study_refuse("thetas", "must say which there are");
	if (c->policy == SCOUT_REPLAY) {
		memcpy(c->schedule, c->thetas, c->theta_count * sizeof(*c->thetas));
		c->schedule_count = c->theta_count;
		c->theta_count = 1;
		c->falls = s->train.algorithm == SITE_DGC;
	}
	while (c->policy != SCOUT_REPLAY && c->thetas[c->first] != s->train.theta)
		if (++c->first == c->theta_count)
			study_refuse("thetas", "do not have the one that it begins with (--theta)");
	s->train.scout = c;
	s->train.tell = study_tell;
	s->train.context = s;
}

static void study_read(struct study *s, int argc, char **argv)
{
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		if (option == '?') {
			fputs(usage, stderr);
			exit(2);
		}
		study_take(s, option, optarg);
	}
	if (optind < argc)
		study_refuse("", argv[optind]);
	if (s->size_count > 0 && s->size_count != s->train.split.sites)
		study_refuse("sizes", "must be as many as there are sites");
	if (s->size_count > 0)
		s->train.split.sizes = s->sizes;
	if (!s->theta_given)
		s->train.theta = (const double[]){1, 0.1, 20, 0.001}[s->train.algorithm];
	if (s->log_path && s->seed_first != s->seed_last)
		study_refuse("log", "is of one run: --seeds has several");
	if (s->log.theta_count > 0 && !s->log_path)
		study_refuse("shadow", "needs --log");
	if (s->scouts)
		study_set_scout(s);
	if (s->rivals) {
		s->rival.theta = s->train.theta;
		s->train.theta = 1;
		s->train.rival = &s->rival;
	}
}

static void study_print(const struct study *s, const struct skew_result *r, double seconds)
{
	const struct skew_train_config *t = &s->train;

	printf("{\"study\":\"run\",\"algorithm\":\"%s\",\"norm\":\"%s\",\"sites\":%u,", algorithms[t->algorithm],
		norms[t->norm], t->split.sites);
	if (t->split.kind == SKEW_BY_DIRICHLET)
		printf("\"dirichlet\":%g,", t->split.alpha);
	else
		printf("\"skew\":%g,", t->split.percent);
	for (unsigned i = 0; i < t->phase_count; i++)
		printf("%s{\"step\":%u,\"skew\":%g}%s", i ? "," : "\"drift\":[", t->phases[i].step,
			t->phases[i].percent, i + 1 == t->phase_count ? "]," : "");
	if (t->scout)
		printf("\"policy\":\"%s\",", scout_policy_name(t->scout->policy));
	if (t->rival)
		printf("\"rival\":\"%s\",\"base\":%u,\"every\":%u,", rival_name(t->rival->kind), t->rival->base,
			t->rival->every);
	printf("\"theta\":%g,\"steps\":%u,\"batch\":%u,\"rate\":%g,\"side\":%u,\"train\":%u,\"seed\":%" PRIu64 ",",
		r->theta, t->steps, t->batch, t->rate, s->data.side, s->data.train_count, t->split.seed);
	printf("\"on\":\"%s\",\"accuracy\":%.4f,", s->on_test ? "test" : "valid",
		(double)r->score.correct / r->score.count);
	print_loss("loss", r->score.loss / r->score.count);
	print_loss("training_loss", r->training_loss);
	printf("\"bytes_early\":%" PRIu64 ",", r->bytes_early);
	printf("\"bytes\":%" PRIu64 ",\"bytes_wire\":%" PRIu64 ",\"bytes_travel\":%" PRIu64 ",\"exchanges\":%" PRIu64
	       ",\"hash\":\"%016" PRIx64 "\",\"seconds\":%.2f}\n",
		r->bytes, r->bytes_wire, r->bytes_travel, r->exchanges, r->hash, seconds);
	fflush(stdout);
}

static int study_open_log(struct study *s)
{
	s->log.file = fopen(s->log_path, "we");
	if (!s->log.file) {
		fprintf(stderr, "skew_study: cannot write %s: %s\n", s->log_path, strerror(errno));
		return -1;
	}
	s->train.log = &s->log;
	return 0;
}

static int study_close_log(struct study *s, const struct skew_result *r, double seconds)
{
	skew_log_end(&s->log, &(struct record_end){.t = s->train.steps,
				      .bytes = (double)r->bytes,
				      .bytes_travel = (double)r->bytes_travel,
				      .bytes_wire = (double)r->bytes_wire,
				      .theta = r->theta,
				      .accuracy = (double)r->score.correct / r->score.count,
				      .loss = r->score.loss / r->score.count,
				      .seconds = seconds});
	if (fclose(s->log.file) != 0) {
		fprintf(stderr, "skew_study: cannot write %s: %s\n", s->log_path, strerror(errno));
		return -1;
	}
	return 0;
}

static int study_run(struct study *s, const struct skew_data *data)
{
	const struct skew_set *set = s->on_test ? &data->test : &data->valid;
	struct err e;

	for (uint64_t seed = s->seed_first; seed <= s->seed_last; seed++) {
		const uint64_t start_ns = clock_now_ns();
		struct skew_result result;

		s->train.split.seed = seed;
		s->scout.seed = seed;
		if (s->log_path && study_open_log(s) < 0)
			return 1;
		if (skew_train(&s->train, data, set, &result, &e) < 0) {
			fprintf(stderr, "skew_study: %s\n", e.text);
			return 1;
		}
		study_print(s, &result, (double)(clock_now_ns() - start_ns) / 1e9);
		if (s->log_path && study_close_log(s, &result, (double)(clock_now_ns() - start_ns) / 1e9) < 0)
			return 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct study study = {
		.train = skew_train_defaults(),
		.data = {.side = 14, .train_count = 20000, .valid_count = 5000},
		.rival = {.base = 1, .every = 100},
		.seed_first = 1,
		.seed_last = 1,
	};
	struct skew_data data;
	struct err e;
	int status;

	study.train.norm = SKEW_NORM_GROUP;
	scout_defaults(&study.scout);
	study_read(&study, argc, argv);
	if (skew_data_load(&study.data, &data, &e) < 0) {
		fprintf(stderr, "skew_study: %s\n", e.text);
		return 1;
	}
	if (!study.on_test && data.valid.count == 0) {
		fprintf(stderr, "skew_study: --valid 0 leaves nothing to score on: use --on test\n");
		status = 2;
	} else {
		status = study_run(&study, &data);
	}
	skew_data_fini(&data);
	return status;
}
