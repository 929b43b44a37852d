/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Variables, one by one.
 */
#include "client/scout/environment.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/scout/options.h"
#include "client/scout/shadow.h"
#include "client/scout/site.h"

enum { ENVIRONMENT_NAME_BYTES = 48, ENVIRONMENT_LIST_BYTES = 160 };

/* What is read: the site's link, its word in the names of variables, and where an error goes. */
struct reader {
	const char *link; /* NULL or "": none */
	struct err *e;
};

/* The variable's name, of which `what` is the end. Returns `out`. */
static const char *reader_name(const struct reader *r, const char *what, char out[ENVIRONMENT_NAME_BYTES])
{
	snprintf(out, ENVIRONMENT_NAME_BYTES, "PHUB_SCOUT_%s%s%s", r->link ? r->link : "",
		r->link && *r->link ? "_" : "", what);
	for (char *c = out; *c; c++)
		*c = *c >= 'a' && *c <= 'z' ? (char)(*c - 'a' + 'A') : *c;
	return out;
}

/* Of one that is empty nothing is said. */
static const char *reader_text(const struct reader *r, const char *what)
{
	char name[ENVIRONMENT_NAME_BYTES];
	const char *text = getenv(reader_name(r, what, name));

	return text && *text ? text : NULL;
}

/* How many; 0: it is not set. A point is one whatever the locale. */
static int reader_numbers(const struct reader *r, const char *what, double *out, unsigned most)
{
	const char *text = reader_text(r, what), *at = text;
	char name[ENVIRONMENT_NAME_BYTES];
	locale_t plain = text ? newlocale(LC_NUMERIC_MASK, "C", (locale_t)0) : (locale_t)0;
	unsigned count = 0;
	bool good = plain != (locale_t)0;

	while (good && at) {
		char *end;
		double value = strtod_l(at, &end, plain);

		good = end != at && !isspace((unsigned char)*at) && isfinite(value) && (*end == ',' || !*end) &&
		       count < most;
		if (good)
			out[count++] = value;
		at = *end ? end + 1 : NULL;
	}
	if (plain)
		freelocale(plain);
	if (!text || good)
		return (int)count;
	return err_set(r->e, -EINVAL,
		most > 1 ? "%s='%.100s'; allowed: up to %u numbers with commas between"
			 : "%s='%.100s'; allowed: %u number",
		reader_name(r, what, name), text, most);
}

/* One number, least <= it <= most. How many; 0: it is not set. */
static int reader_real(const struct reader *r, const char *what, double least, double most, double *out)
{
	char name[ENVIRONMENT_NAME_BYTES];
	double value;
	int rc = reader_numbers(r, what, &value, 1);

	if (rc <= 0)
		return rc;
	if (value >= least && value <= most) {
		*out = value;
		return rc;
	}
	reader_name(r, what, name);
	if (isfinite(most))
		return err_set(
			r->e, -EINVAL, "%s='%.100s'; allowed: %g to %g", name, reader_text(r, what), least, most);
	return err_set(r->e, -EINVAL, "%s='%.100s'; allowed: a number %s", name, reader_text(r, what),
		least > 0 ? "above 0" : "from 0 on");
}

static int reader_whole(const struct reader *r, const char *what, uint64_t least, uint64_t most, uint64_t *out)
{
	const char *text = reader_text(r, what);
	char name[ENVIRONMENT_NAME_BYTES];
	unsigned long long value;
	char *end;

	if (!text)
		return 0;
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || *end || !isdigit((unsigned char)*text) || value < least || value > most)
		return err_set(r->e, -EINVAL, "%s='%.64s'; allowed: %" PRIu64 " to %" PRIu64,
			reader_name(r, what, name), text, least, most);
	*out = value;
	return 1;
}

/* The index of the name; -ENOENT: it is not set. */
static int reader_choice(
	const struct reader *r, const char *what, const char *(*of)(unsigned), unsigned count, const char *allowed)
{
	const char *text = reader_text(r, what);
	char name[ENVIRONMENT_NAME_BYTES];

	for (unsigned i = 0; text && i < count; i++)
		if (strcmp(text, of(i)) == 0)
			return (int)i;
	return text ? err_set(r->e, -EINVAL, "%s='%.64s'; allowed: %s", reader_name(r, what, name), text, allowed)
		    : -ENOENT;
}

static const char *environment_algorithm(unsigned i)
{
	return site_algorithm_name((enum site_algorithm)i);
}

static const char *environment_policy(unsigned i)
{
	return scout_policy_name((enum scout_policy)i);
}

/* The program's own scout, or a new one. One without a size is for others to refuse. */
static void environment_take_scout(struct phub_site_options *options, struct environment *room)
{
	const struct phub_scout_options *own = options->scout;
	size_t size = own && own->size < sizeof(room->scout) ? own->size : sizeof(room->scout);

	if (own && own->size < sizeof(own->size))
		return;
	phub_scout_options_init(&room->scout);
	if (own)
		memcpy(&room->scout, own, size);
	room->scout.size = sizeof(room->scout);
	options->scout = &room->scout;
}

/* Is a scout asked for, of which kind and with which thetas? */
static int environment_scout(const struct reader *r, struct phub_site_options *options, struct environment *room)
{
	int policy = reader_choice(r, "POLICY", environment_policy, SCOUT_POLICY_COUNT,
		"fixed, replay, hill, stochastic, annealing, scout+");
	int count = reader_numbers(r, "THETAS", room->thetas, SCOUT_THETAS_MAX);

	if (policy < 0 && policy != -ENOENT)
		return policy;
	if (count < 0)
		return count;
	if (policy >= 0 || count > 0 || options->scout)
		environment_take_scout(options, room);
	if (options->scout != &room->scout)
		return 0;
	if (policy >= 0)
		room->scout.policy = (enum phub_scout_policy)policy;
	if (count > 0) {
		room->scout.thetas = room->thetas;
		room->scout.theta_count = (unsigned)count;
		room->scout.first = 0;
		room->scout.schedule = room->thetas;
		room->scout.schedule_count = (unsigned)count;
	}
	/* A schedule may have a theta twice, a grid may not; it says nothing of a replay but where it begins. */
	if (count > 0 && room->scout.policy == PHUB_SCOUT_REPLAY)
		room->scout.theta_count = 1;
	return 0;
}

/* That the scout's policy looks at what is set. */
static int environment_fits(
	const struct reader *r, const char *what, const struct phub_scout_options *scout, enum options_part part)
{
	const enum scout_policy policy = (enum scout_policy)scout->policy;
	const char *others = options_others(policy, part);
	char name[ENVIRONMENT_NAME_BYTES];

	return others ? err_set(r->e, -EINVAL, "%s='%.64s': the policy %s does not look at it; unset it; it is of %s",
				reader_name(r, what, name), reader_text(r, what), scout_policy_name(policy), others)
		      : 0;
}

/* "1, 2, 5", or, where there is no room for all, "1, 2, 5, ... 100". */
static void environment_list(const double *numbers, unsigned count, char out[ENVIRONMENT_LIST_BYTES])
{
	const size_t room = ENVIRONMENT_LIST_BYTES - 48; /* for two numbers and dots */
	size_t used = 0;
	unsigned i = 0;

	for (; i + 1 < count && used < room; i++)
		used += (size_t)snprintf(out + used, ENVIRONMENT_LIST_BYTES - used, "%g, ", numbers[i]);
	snprintf(out + used, ENVIRONMENT_LIST_BYTES - used, "%s%g", i + 1 < count ? "... " : "", numbers[count - 1]);
}

static int environment_begin(const struct reader *r, struct phub_site_options *options, struct environment *room)
{
	struct phub_scout_options *scout = &room->scout;
	char name[ENVIRONMENT_NAME_BYTES], grid[ENVIRONMENT_LIST_BYTES];
	double theta;
	int rc = reader_numbers(r, "THETA", &theta, 1);

	if (rc <= 0)
		return rc;
	options->theta = theta;
	if (options->scout != scout)
		return 0;
	rc = environment_fits(r, "THETA", scout, OPTIONS_THETA);
	if (rc < 0 || !scout->thetas)
		return rc;
	for (unsigned i = 0; i < scout->theta_count; i++) {
		if (scout->thetas[i] == theta) {
			scout->first = i;
			return 0;
		}
	}
	environment_list(scout->thetas, scout->theta_count, grid);
	return err_set(r->e, -EINVAL, "%s='%.64s'; allowed: a theta of the scout's grid: %s",
		reader_name(r, "THETA", name), reader_text(r, "THETA"), grid);
}

static const char *environment_unit(unsigned i)
{
	return price_unit_name((enum price_unit)i);
}

/* What links cost. */
static int environment_price(const struct reader *r, struct phub_scout_options *scout)
{
	const struct {
		const char *what;
		double *to;
	} numbers[] = {{"RATE", &scout->rate}, {"LATENCY", &scout->latency}, {"PRICE", &scout->price},
		{"RATE_WITHIN", &scout->rate_within}, {"LATENCY_WITHIN", &scout->latency_within},
		{"PRICE_WITHIN", &scout->price_within}};
	int rc = reader_choice(r, "UNIT", environment_unit, PRICE_UNIT_COUNT, "bytes, seconds, money");

	if (rc >= 0)
		scout->unit = (enum phub_scout_unit)rc;
	rc = rc == -ENOENT ? 0 : rc;
	for (unsigned i = 0; rc >= 0 && i < sizeof(numbers) / sizeof(numbers[0]); i++)
		rc = reader_real(r, numbers[i].what, 0, INFINITY, numbers[i].to);
	return rc;
}

/* What it weighs; `scout` is one, or nothing is made of it. */
static int environment_weights(const struct reader *r, struct phub_scout_options *scout, bool scouted)
{
	const struct {
		const char *what;
		enum options_part part;
		double least, most;
		double *to;
	} numbers[] = {{"SIGMA", OPTIONS_SIGMA, 0, 1, &scout->sigma},
		{"GAIN", OPTIONS_GAIN, DBL_MIN, INFINITY, &scout->gain},
		{"WORTH", OPTIONS_GAIN, 0, INFINITY, &scout->worth},
		{"EASE", OPTIONS_GAIN, DBL_MIN, INFINITY, &scout->ease},
		{"LAMBDA_LOSS", OPTIONS_LAMBDA_LOSS, 0, INFINITY, &scout->lambda_loss},
		{"LAMBDA_BYTES", OPTIONS_LAMBDA_BYTES, 0, INFINITY, &scout->lambda_bytes}};
	char gain[ENVIRONMENT_NAME_BYTES], worth[ENVIRONMENT_NAME_BYTES];
	int rc = 0;

	for (unsigned i = 0; rc >= 0 && i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		rc = reader_real(r, numbers[i].what, numbers[i].least, numbers[i].most, numbers[i].to);
		if (rc > 0 && numbers[i].to == &scout->gain)
			scout->worth = 0; /* the program's */
		if (rc > 0 && scouted)
			rc = environment_fits(r, numbers[i].what, scout, numbers[i].part);
	}
	if (rc >= 0 && scout->worth > 0 && reader_text(r, "GAIN") && reader_text(r, "WORTH"))
		return err_set(r->e, -EINVAL, "%s='%.64s': %s is set, and holds instead of it; unset one",
			reader_name(r, "GAIN", gain), reader_text(r, "GAIN"), reader_name(r, "WORTH", worth));
	return rc;
}

/* Which part of sites may lie. */
static int environment_trim(const struct reader *r, double *trim)
{
	char name[ENVIRONMENT_NAME_BYTES];
	double value;
	int rc = reader_numbers(r, "TRIM", &value, 1);

	if (rc <= 0)
		return rc;
	if (!(value >= 0 && value < 0.5))
		return err_set(r->e, -EINVAL, "%s='%.100s'; allowed: a number from 0 to below 0.5",
			reader_name(r, "TRIM", name), reader_text(r, "TRIM"));
	*trim = value;
	return rc;
}

static int environment_rest(const struct reader *r, struct environment *room, bool scouted)
{
	uint64_t period = room->scout.period;
	int rc = reader_whole(r, "PERIOD", 1, UINT32_MAX, &period);

	if (rc >= 0)
		rc = reader_whole(r, "SEED", 0, UINT64_MAX, &room->scout.seed);
	if (rc >= 0)
		rc = environment_weights(r, &room->scout, scouted);
	if (rc >= 0)
		rc = environment_trim(r, &room->scout.trim);
	if (rc >= 0)
		rc = environment_price(r, &room->scout);
	room->scout.period = (uint32_t)period;
	return rc < 0 ? rc : 0;
}

static const char *environment_lost(unsigned i)
{
	static const char *const names[] = {
		[PHUB_LOST_FAIL] = "fail", [PHUB_LOST_SHRINK] = "shrink", [PHUB_LOST_WAIT] = "wait"};

	return names[i];
}

static int environment_job(const struct reader *r, struct environment *room)
{
	int rc = reader_choice(r, "LOST", environment_lost, PHUB_LOST_WAIT + 1, "fail, shrink, wait");
	uint64_t reproducible = 0;

	if (rc < 0 && rc != -ENOENT)
		return rc;
	room->lost = rc >= 0 ? rc : -1;
	rc = reader_whole(r, "REPRODUCIBLE", 0, 1, &reproducible);
	room->reproducible = rc > 0 ? (int)reproducible : -1;
	return rc < 0 ? rc : 0;
}

int environment_apply(struct phub_site_options *options, struct environment *room, struct err *e)
{
	const struct reader r = {options->link, e};
	const enum phub_site_algorithm was = options->algorithm;
	int algorithm =
		reader_choice(&r, "ALGORITHM", environment_algorithm, SITE_ALGORITHM_COUNT, "bsp, gaia, local, dgc");
	int rc;

	*room = (struct environment){.scout = {.size = 0}, .lost = -1, .reproducible = -1};
	if (algorithm < 0 && algorithm != -ENOENT)
		return algorithm;
	if (algorithm >= 0) {
		options->algorithm = (enum phub_site_algorithm)algorithm;
		options->theta = NAN; /* the program's is another algorithm's, perhaps */
		if (was == PHUB_SITE_LOCAL && options->algorithm != PHUB_SITE_LOCAL)
			options->outer = PHUB_OUTER_AVERAGE;
	}
	rc = environment_scout(&r, options, room);
	if (rc == 0)
		rc = environment_begin(&r, options, room);
	if (rc == 0)
		rc = environment_rest(&r, room, options->scout == &room->scout);
	return rc < 0 ? rc : environment_job(&r, room);
}

int environment_shadow(const char *link, double *out, struct err *e)
{
	const struct reader r = {link, e};

	return reader_numbers(&r, "SHADOW", out, SHADOW_THETAS_MAX);
}

const char *environment_log(const char *link)
{
	const struct reader r = {.link = link};

	return reader_text(&r, "LOG");
}
