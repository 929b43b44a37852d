/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs seeded simulations:  sim --seeds N [--from S]   or one of them, with its trace:  sim --seed S --trace
 * With --planted, bugs of the box that are there on purpose, and how many seeds it takes to find each; a run of more
 * than one seed does that at its end, too. --bug N has the Nth of them in all worlds. Exit 0 when all are right, 1 when
 * one is not (its seed is printed), 2 for wrong arguments.
 */
#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "tests/sim/world.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Seeds a second on one core: below that nobody runs many. Sanitizers slow it down, and are not held to it. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SIM_RATE_MIN 0
#else
#define SIM_RATE_MIN 50
#endif

static const char usage[] =
	"usage: sim [--seeds N] [--from S] [--seed S [--trace]] [--datagrams]\n"
	"           [--elastic [--stepwise] | --quorum | --standby]\n"
	"           [--plant stale|swapped|doubled] [--bug N | --planted]\n";

struct arguments {
	uint64_t first, count;
	bool trace;
	bool datagrams; /* in all worlds */
	bool elastic, stepwise, quorum, standby;
	bool planted;
	uint64_t bug; /* enum shard_plant, in all worlds */
	enum world_plant plant;
};

static bool sim_number(const char *text, uint64_t first, uint64_t *out)
{
	char *end;

	errno = 0;
	*out = strtoull(text, &end, 0);
	return errno == 0 && end != text && *end == '\0' && text[0] != '-' && *out >= first;
}

static bool sim_plant(const char *text, enum world_plant *out)
{
	static const char *const names[] = {"stale", "swapped", "doubled"};

	for (unsigned i = 0; i < 3; i++) {
		if (strcmp(text, names[i]) == 0) {
			*out = (enum world_plant)(PLANT_STALE + i);
			return true;
		}
	}
	return false;
}

static int sim_arguments(int argc, char **argv, struct arguments *a)
{
	static const struct option options[] = {
		{"seeds", required_argument, NULL, 'n'},
		{"from", required_argument, NULL, 'f'},
		{"seed", required_argument, NULL, 's'},
		{"trace", no_argument, NULL, 't'},
		{"datagrams", no_argument, NULL, 'd'},
		{"elastic", no_argument, NULL, 'e'},
		{"stepwise", no_argument, NULL, 'w'},
		{"quorum", no_argument, NULL, 'q'},
		{"standby", no_argument, NULL, 'y'},
		{"planted", no_argument, NULL, 'l'},
		{"bug", required_argument, NULL, 'b'},
		{"plant", required_argument, NULL, 'p'},
		{0},
	};
	bool good = true;
	int c;

	*a = (struct arguments){.first = 1, .count = 1000};
	while (good && (c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == 'n') {
			good = sim_number(optarg, 1, &a->count);
		} else if (c == 'f') {
			good = sim_number(optarg, 0, &a->first);
		} else if (c == 's') {
			good = sim_number(optarg, 0, &a->first);
			a->count = 1;
		} else if (c == 't') {
			a->trace = true;
		} else if (c == 'd') {
			a->datagrams = true;
		} else if (c == 'e') {
			a->elastic = true;
		} else if (c == 'w') {
			a->stepwise = a->elastic = true;
		} else if (c == 'q') {
			a->quorum = true;
		} else if (c == 'y') {
			a->standby = true;
		} else if (c == 'l') {
			a->planted = true;
		} else if (c == 'b') {
			good = sim_number(optarg, 0, &a->bug) && a->bug < SHARD_PLANT_COUNT;
		} else {
			good = c == 'p' && sim_plant(optarg, &a->plant);
		}
	}
	if (good && optind == argc)
		return 0;
	fputs(usage, stderr);
	return 2;
}

/* Every checker must find what is planted for it, or its silence means nothing. */
static int sim_check_checkers(void)
{
	int missed = 0;

	for (enum world_plant plant = PLANT_STALE; plant <= PLANT_DOUBLED; plant++) {
		unsigned found = 0;

		for (uint64_t seed = 1; seed <= 20; seed++) {
			struct world_plan plan;
			struct world_result result;

			world_plan_draw(seed, &plan);
			plan.plant = plant;
			plan.elements[0] = 100 + (uint32_t)seed;
			plan.dtypes[0] = DTYPE_F32;
			found += world_run(&plan, NULL, &result) != 0;
		}
		printf("planted %d: found in %u of 20 seeds\n", plant, found);
		missed += found < 20;
	}
	return missed;
}

/* The world of a seed. */
static void sim_plan(const struct arguments *a, uint64_t seed, struct world_plan *plan)
{
	uint64_t r = seed * 0xd1342543de82ef95ull;
	unsigned kind = (unsigned)(oracle_random(&r) % 4);

	world_plan_draw(seed, plan);
	if (a->standby || (!a->elastic && !a->quorum && oracle_random(&r) % 5 == 0 && a->plant == PLANT_NONE)) {
		world_plan_standby(plan);
		kind = 3;
	} else if (a->stepwise || (!a->elastic && !a->quorum && kind == 1 && seed % 2 && a->plant == PLANT_NONE))
		world_plan_stepwise(plan);
	if (a->elastic || (!a->quorum && kind < 2 && a->plant == PLANT_NONE))
		world_plan_elastic(plan);
	else if (a->quorum || (kind == 2 && a->plant == PLANT_NONE))
		world_plan_quorum(plan);
	if (a->datagrams && !plan->datagrams)
		world_plan_datagrams(plan);
	plan->plant = a->plant;
	plan->bug = (enum shard_plant)a->bug;
	if (plan->bug)
		plan->encrypt = false; /* refuses by itself what some bugs let in */
}

/*
 * Bugs of the box, on purpose: so many seeds until each is found. Returns how many were not within as many as they may
 * take.
 */
static unsigned sim_check_bugs(void)
{
	static const struct {
		const char *name;
		uint64_t within;
	} bugs[SHARD_PLANT_COUNT] = {
		[SHARD_PLANT_DUPLICATE] = {"a push that comes twice is summed twice", 20},
		[SHARD_PLANT_EARLY] = {"a round is committed one contributor short", 20},
		[SHARD_PLANT_CREDIT] = {"credits of kept slots leak", 20},
		[SHARD_PLANT_WITHDRAWN] = {"what was withdrawn stays in the sum", 50},
		[SHARD_PLANT_LOST] = {"a rank that was lost is still waited for", 100},
		[SHARD_PLANT_UNLIFTED] = {"a round is answered before the standby has it", 200},
		[SHARD_PLANT_EPOCH] = {"pushes of an older membership are taken", 100},
	};
	unsigned missed = 0;

	for (unsigned bug = SHARD_PLANT_NONE + 1; bug < SHARD_PLANT_COUNT; bug++) {
		struct arguments a = {.bug = bug};
		struct world_result result;
		struct world_plan plan;
		uint64_t seed;
		bool found = false;

		for (seed = 1; seed <= bugs[bug].within && !found; seed++) {
			sim_plan(&a, seed, &plan);
			found = world_run(&plan, NULL, &result) != 0;
		}
		missed += !found;
		printf("planted: %s: %s %llu seeds%s%s\n", bugs[bug].name, found ? "found after" : "NOT FOUND in",
			(unsigned long long)(seed - 1), found ? ": " : "", found ? result.text : "");
	}
	return missed;
}

static double sim_cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void sim_tell_standby(const struct world_result *sum)
{
	printf("sim: %u worlds had one of two boxes struck, %u with a whole copy; workers moved %llu times\n",
		sum->struck, sum->whole, (unsigned long long)sum->moves);
}

int main(int argc, char **argv)
{
	struct arguments a;
	struct world_result sum = {0};
	uint64_t begun = clock_now_ns(), failed = 0;
	double seconds;

	if (sim_arguments(argc, argv, &a))
		return 2;
	if (a.planted)
		return sim_check_bugs() ? 1 : 0;
	if (a.trace)
		log_set_sink(log_sink_stderr, NULL);
	for (uint64_t seed = a.first; seed < a.first + a.count; seed++) {
		struct world_plan plan;
		struct world_result result;

		sim_plan(&a, seed, &plan);
		if (a.trace)
			world_plan_print(&plan, stdout);
		if (world_run(&plan, a.trace ? stdout : NULL, &result) != 0) {
			world_plan_print(&plan, stdout);
			printf("seed %llu failed: %s\n  replay: build/sim --seed %llu --trace%s%s\n",
				(unsigned long long)seed, result.text, (unsigned long long)seed,
				a.datagrams ? " --datagrams" : "",
				a.stepwise  ? " --stepwise"
				: a.elastic ? " --elastic"
				: a.quorum  ? " --quorum"
				: a.standby ? " --standby"
					    : "");
			failed++;
		}
		sum.rounds_checked += result.rounds_checked;
		sum.owed += result.owed;
		sum.reconnects += result.reconnects;
		sum.died += result.died;
		sum.came += result.came;
		sum.ended += result.ended;
		sum.judged += result.judged;
		sum.given_up += result.given_up;
		sum.late += result.late;
		sum.struck += result.struck;
		sum.whole += result.whole;
		sum.moves += result.moves;
		sum.net.sent += result.net.sent;
		sum.net.dropped += result.net.dropped;
		sum.net.duplicated += result.net.duplicated;
		sum.net.reordered += result.net.reordered;
	}
	seconds = (double)(clock_now_ns() - begun) / 1e9;
	printf("sim: seeds %llu..%llu, %.0f seeds a second, %llu results checked, %u workers bereaved before they had "
	       "theirs; %llu connections made anew; of %llu messages %llu lost, %llu doubled, %llu out of order\n",
		(unsigned long long)a.first, (unsigned long long)(a.first + a.count - 1), (double)a.count / seconds,
		(unsigned long long)sum.rounds_checked, sum.owed, (unsigned long long)sum.reconnects,
		(unsigned long long)sum.net.sent, (unsigned long long)sum.net.dropped,
		(unsigned long long)sum.net.duplicated, (unsigned long long)sum.net.reordered);
	printf("sim: %u workers died, %u came in their place, %u were told of the end; %llu rounds of chunks had a set "
	       "of "
	       "ranks, %llu too many; %llu pushes were late\n",
		sum.died, sum.came, sum.ended, (unsigned long long)sum.judged, (unsigned long long)sum.given_up,
		(unsigned long long)sum.late);
	sim_tell_standby(&sum);
	if (a.count > 1 && a.plant == PLANT_NONE && failed == 0)
		failed += (uint64_t)sim_check_checkers() + sim_check_bugs();
	if (a.count >= 100 && !a.trace && sim_cpu_seconds() * SIM_RATE_MIN > (double)a.count) {
		printf("too slow: at least %d seeds a second of CPU are wanted\n", SIM_RATE_MIN);
		failed++;
	}
	printf("%llu passed, %llu failed\n", (unsigned long long)(a.count - (failed > a.count ? a.count : failed)),
		(unsigned long long)failed);
	return failed ? 1 : 0;
}
