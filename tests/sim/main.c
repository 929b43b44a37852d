/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs seeded simulations:  sim --seeds N [--from S]   or one of them, with its trace:  sim --seed S --trace
 * Each seed draws the kind of its world, or all are of the one that an option names.
 * With --planted, bugs of the box that are there on purpose, and how many seeds it takes to find each; a run of more
 * than one seed does that at its end, too, and has the traces of some worlds twice, which must be the same. --bug N has
 * the Nth of them in all worlds. Exit 0 when all are right, 1 when one is not (its seed is printed), 2 for wrong
 * arguments.
 */
#include "tests/sim/world.h"

#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SIM_REPLAY_BYTES = 256 };

/* Is what comes by control sessions changed on its way in the world that runs? Addresses among it, too. */
static bool sim_mangles;

/* In place of the C library's: names have no addresses here, and who asks for one would wait in real time. */
int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
	int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
	void *found = dlsym(RTLD_NEXT, "getaddrinfo");
	struct addrinfo numeric = *hints;
	int rc;

	memcpy(&real, &found, sizeof(real));
	numeric.ai_flags |= AI_NUMERICHOST;
	rc = real(host, service, &numeric, out);
	if (rc != EAI_NONAME || sim_mangles || world_starts)
		return rc;
	fprintf(stderr, "sim: the address of '%s' is asked for\n", host);
	abort();
}

/* Kinds of worlds. */
enum sim_kind {
	KIND_PLAIN,
	KIND_ELASTIC,
	KIND_STEPWISE,
	KIND_QUORUM,
	KIND_STANDBY,
	KIND_SPREAD,
	KIND_RACKS,
	KIND_HOMES,
	KIND_ROOTED,
	KIND_LEASED,
	KIND_PROMOTED,
	KIND_DURABLE,
	KIND_RESUMED,
	KIND_MANGLED,
	KIND_COUNT,
	KIND_MIXED = KIND_COUNT, /* each seed draws one of them */
};

static const struct {
	const char *name; /* of the option that makes all worlds such */
	unsigned share;   /* among mixed ones */
	void (*change)(struct world_plan *plan);
} sim_kinds[KIND_COUNT] = {
	[KIND_PLAIN] = {"plain", 2, NULL},
	[KIND_ELASTIC] = {"elastic", 4, world_plan_elastic},
	[KIND_STEPWISE] = {"stepwise", 2, world_plan_stepwise},
	[KIND_QUORUM] = {"quorum", 2, world_plan_quorum},
	[KIND_STANDBY] = {"standby", 3, world_plan_standby},
	[KIND_SPREAD] = {"spread", 2, world_plan_spread},
	[KIND_RACKS] = {"racks", 3, world_plan_racks},
	[KIND_HOMES] = {"homes", 2, world_plan_homes},
	[KIND_ROOTED] = {"rooted", 2, world_plan_rooted},
	[KIND_LEASED] = {"leased", 2, world_plan_leased},
	[KIND_PROMOTED] = {"promoted", 2, world_plan_promoted},
	[KIND_DURABLE] = {"durable", 2, world_plan_durable},
	[KIND_RESUMED] = {"resumed", 2, world_plan_resumed},
	[KIND_MANGLED] = {"mangled", 2, world_plan_mangled},
};

/* What worlds of any kind may have, and what a seed gives to some of them. With the option, all have it. */
enum { WAY_DATAGRAMS, WAY_ENCRYPTED, WAY_GUEST, WAY_COUNT };

static const struct {
	const char *name;
	void (*change)(struct world_plan *plan);
} sim_ways[WAY_COUNT] = {
	[WAY_DATAGRAMS] = {"datagrams", world_plan_datagrams},
	[WAY_ENCRYPTED] = {"encrypted", world_plan_encrypt},
	[WAY_GUEST] = {"guest", world_plan_invite},
};

static const char *const sim_plants[] = {
	[PLANT_STALE] = "stale", [PLANT_SWAPPED] = "swapped", [PLANT_DOUBLED] = "doubled"};

static const char usage[] =
	"usage: sim [--seeds N] [--from S] [--seed S [--trace]] [--datagrams] [--encrypted] [--guest]\n"
	"           [--plain | --elastic | --stepwise | --quorum | --standby | --spread | --racks | --homes |\n"
	"            --rooted | --leased | --promoted | --durable | --resumed | --mangled]\n"
	"           [--plant stale|swapped|doubled] [--bug N | --planted]\n";

struct arguments {
	uint64_t first, count;
	bool trace;
	enum sim_kind kind;
	bool ways[WAY_COUNT];
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
	for (unsigned i = PLANT_STALE; i <= PLANT_DOUBLED; i++) {
		if (strcmp(text, sim_plants[i]) == 0) {
			*out = (enum world_plant)i;
			return true;
		}
	}
	return false;
}

enum { OPTION_KIND = 256, OPTION_WAY = OPTION_KIND + KIND_COUNT };

/* Those that stand in no table, then those of the tables. */
static void sim_options(struct option *out)
{
	static const struct option options[] = {
		{"seeds", required_argument, NULL, 'n'},
		{"from", required_argument, NULL, 'f'},
		{"seed", required_argument, NULL, 's'},
		{"trace", no_argument, NULL, 't'},
		{"planted", no_argument, NULL, 'l'},
		{"bug", required_argument, NULL, 'b'},
		{"plant", required_argument, NULL, 'p'},
	};

	memcpy(out, options, sizeof(options));
	out += sizeof(options) / sizeof(*options);
	for (int i = 0; i < KIND_COUNT; i++)
		*out++ = (struct option){sim_kinds[i].name, no_argument, NULL, OPTION_KIND + i};
	for (int i = 0; i < WAY_COUNT; i++)
		*out++ = (struct option){sim_ways[i].name, no_argument, NULL, OPTION_WAY + i};
	*out = (struct option){0};
}

static bool sim_argument(int c, struct arguments *a)
{
	if (c >= OPTION_WAY) {
		a->ways[c - OPTION_WAY] = true;
	} else if (c >= OPTION_KIND) {
		if (a->kind != KIND_MIXED)
			return false;
		a->kind = (enum sim_kind)(c - OPTION_KIND);
	} else if (c == 'n') {
		return sim_number(optarg, 1, &a->count);
	} else if (c == 'f') {
		return sim_number(optarg, 0, &a->first);
	} else if (c == 's') {
		a->count = 1;
		return sim_number(optarg, 0, &a->first);
	} else if (c == 't') {
		a->trace = true;
	} else if (c == 'l') {
		a->planted = true;
	} else if (c == 'b') {
		return sim_number(optarg, 0, &a->bug) && a->bug < SHARD_PLANT_COUNT;
	} else {
		return c == 'p' && sim_plant(optarg, &a->plant);
	}
	return true;
}

static int sim_arguments(int argc, char **argv, struct arguments *a)
{
	struct option options[16 + KIND_COUNT + WAY_COUNT];
	bool good = true;
	int c;

	sim_options(options);
	*a = (struct arguments){.first = 1, .count = 1000, .kind = KIND_MIXED};
	while (good && (c = getopt_long(argc, argv, "", options, NULL)) != -1)
		good = sim_argument(c, a);
	if (good && optind == argc)
		return 0;
	fputs(usage, stderr);
	return 2;
}

/* Is it what was planted that was found? The same world without it is right. */
static bool sim_is_right_without(const struct world_plan *plan)
{
	struct world_plan same = *plan;
	struct world_result result;

	same.plant = PLANT_NONE;
	same.bug = SHARD_PLANT_NONE;
	return world_run(&same, NULL, &result) == 0;
}

/* Every checker must find what is planted for it, or its silence means nothing. */
static int sim_check_checkers(void)
{
	static const char *const plants[] = {"stale", "swapped with another", "doubled"};
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
			found += world_run(&plan, NULL, &result) != 0 && sim_is_right_without(&plan);
		}
		printf("planted: a result is %s: found in %u of 20 seeds\n", plants[plant - PLANT_STALE], found);
		missed += found < 20;
	}
	return missed;
}

/* The kind of a seed's world where kinds are mixed. */
static enum sim_kind sim_draw_kind(uint64_t seed)
{
	uint64_t r = seed * 0xd1342543de82ef95ull;
	unsigned all = 0, kind = 0, at;

	for (unsigned i = 0; i < KIND_COUNT; i++)
		all += sim_kinds[i].share;
	for (at = (unsigned)(oracle_random(&r) % all); at >= sim_kinds[kind].share; kind++)
		at -= sim_kinds[kind].share;
	return (enum sim_kind)kind;
}

/* The world of a seed. */
static void sim_plan(const struct arguments *a, uint64_t seed, struct world_plan *plan)
{
	enum sim_kind kind = a->kind;

	if (kind == KIND_MIXED)
		kind = a->plant == PLANT_NONE ? sim_draw_kind(seed) : KIND_PLAIN;
	world_plan_draw(seed, plan);
	if (sim_kinds[kind].change)
		sim_kinds[kind].change(plan);
	for (unsigned way = 0; way < WAY_COUNT; way++)
		if (a->ways[way])
			sim_ways[way].change(plan);
	plan->plant = a->plant;
	plan->bug = (enum shard_plant)a->bug;
	if (plan->bug)
		plan->encrypt = false; /* refuses by itself what some bugs let in */
}

/* The command that runs this world again. */
static void sim_replay(const struct arguments *a, uint64_t seed, char *out, size_t bytes)
{
	size_t at = (size_t)snprintf(out, bytes, "build/sim --seed %llu --trace", (unsigned long long)seed);

	if (a->kind != KIND_MIXED)
		at += (size_t)snprintf(out + at, bytes - at, " --%s", sim_kinds[a->kind].name);
	for (unsigned way = 0; way < WAY_COUNT; way++)
		if (a->ways[way])
			at += (size_t)snprintf(out + at, bytes - at, " --%s", sim_ways[way].name);
	if (a->plant)
		at += (size_t)snprintf(out + at, bytes - at, " --plant %s", sim_plants[a->plant]);
	if (a->bug)
		snprintf(out + at, bytes - at, " --bug %llu", (unsigned long long)a->bug);
}

static void sim_print_failed(const struct arguments *a, const struct world_plan *plan, const char *text)
{
	char replay[SIM_REPLAY_BYTES];

	sim_replay(a, plan->seed, replay, sizeof(replay));
	world_plan_print(plan, stdout);
	printf("seed %llu failed: %s\n  replay: %s\n", (unsigned long long)plan->seed, text, replay);
}

/* ---- worlds that crash ---- */

static char sim_crash[SIM_REPLAY_BYTES + 64]; /* what is said then; empty: no world runs */

/* Of a signal, or of a sanitizer: may write, and nothing else. */
static void sim_tell_crash(void)
{
	ssize_t written = write(STDOUT_FILENO, sim_crash, strlen(sim_crash));

	(void)written;
}

static void sim_crashed(int signal)
{
	sim_tell_crash();
	raise(signal); /* as it would have ended: the handler is there once */
}

extern void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

/* Assertions, sanitizers and wild pointers find bugs as checkers do: the seed must be known then, too. */
static void sim_watch_crashes(void)
{
	static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
	struct sigaction act = {.sa_handler = sim_crashed, .sa_flags = (int)SA_RESETHAND | SA_NODEFER};

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (__sanitizer_set_death_callback)
		__sanitizer_set_death_callback(sim_tell_crash);
	for (unsigned i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		if (!__sanitizer_set_death_callback || signals[i] == SIGABRT)
			sigaction(signals[i], &act, NULL);
}

/* world_run(), of which a crash tells the seed. */
static int sim_run_world(const struct arguments *a, const struct world_plan *plan, struct world_result *result)
{
	char replay[SIM_REPLAY_BYTES];
	int rc;

	sim_replay(a, plan->seed, replay, sizeof(replay));
	snprintf(sim_crash, sizeof(sim_crash), "seed %llu crashed\n  replay: %s\n", (unsigned long long)plan->seed,
		replay);
	sim_mangles = plan->mangled;
	rc = world_run(plan, a->trace ? stdout : NULL, result);
	sim_crash[0] = '\0';
	return rc;
}

/* So many seeds until a bug of the box is found in worlds of this kind, and found by nothing else. */
static bool sim_check_bug(unsigned bug, const char *name, enum sim_kind kind, uint64_t within)
{
	struct arguments a = {.bug = bug, .kind = kind};
	struct world_result result;
	struct world_plan plan;
	bool found = false;
	uint64_t seed;

	for (seed = 1; seed <= within && !found; seed++) {
		sim_plan(&a, seed, &plan);
		found = sim_run_world(&a, &plan, &result) != 0 && sim_is_right_without(&plan);
	}
	printf("planted: %s: %s %llu %s%sseeds%s%s\n", name, found ? "found after" : "NOT FOUND in",
		(unsigned long long)(seed - 1), kind < KIND_COUNT ? sim_kinds[kind].name : "",
		kind < KIND_COUNT ? " " : "", found ? ": " : "", found ? result.text : "");
	return found;
}

/* Bugs of the box, on purpose. Returns how many were not found within as many seeds as they may take. */
static unsigned sim_check_bugs(void)
{
	static const struct {
		const char *name;
		uint64_t within;
		enum sim_kind kind; /* of worlds that can have it, where few others do */
		uint64_t resumed;   /* within so many of those where boxes and workers die; 0: these have no standby */
		uint64_t racks;     /* within so many of those with several boxes below a root; 0: others see to it */
	} bugs[SHARD_PLANT_COUNT] = {
		[SHARD_PLANT_DUPLICATE] = {"a push that comes twice is summed twice", 20, KIND_MIXED, 20, 0},
		[SHARD_PLANT_EARLY] = {"a round is committed one contributor short", 20, KIND_MIXED, 20, 0},
		[SHARD_PLANT_CREDIT] = {"credits of kept slots leak", 20, KIND_MIXED, 20, 0},
		[SHARD_PLANT_WITHDRAWN] = {"what was withdrawn stays in the sum", 20, KIND_ELASTIC, 50, 400},
		[SHARD_PLANT_LOST] = {"a rank that was lost is still waited for", 50, KIND_ELASTIC, 400, 400},
		[SHARD_PLANT_EPOCH] = {"pushes of an older membership are taken", 400, KIND_ELASTIC, 400, 0},
		[SHARD_PLANT_NEIGHBOUR] = {"a job is answered with what another has", 50, KIND_MIXED, 0, 0},
		[SHARD_PLANT_UNLIFTED] = {"a round is answered before the standby has it", 50, KIND_STANDBY, 0, 0},
		[SHARD_PLANT_UNCOUNTED] = {"a sum goes up as if it were one gradient", 50, KIND_SPREAD, 0, 50},
		[SHARD_PLANT_UNREPEATED] = {"a sum is not sent again when the membership changes above", 400,
			KIND_SPREAD, 0, 400},
		[SHARD_PLANT_MISCOUNTED] = {"a box above others counts one gradient for each of them", 100, KIND_RACKS,
			0, 0},
		[SHARD_PLANT_ALONE] = {"a box that has lost the one above answers with its own sum", 400, KIND_RACKS, 0,
			0},
		[SHARD_PLANT_BEYOND] = {"rounds are committed beyond the lease of a root", 100, KIND_LEASED, 0, 0},
		[SHARD_PLANT_UNSYNCED] = {"a checkpoint gets its name before it is synced", 100, KIND_DURABLE, 100, 0},
		[SHARD_PLANT_UNCHECKED] = {"a checkpoint is read without its checksums", 100, KIND_DURABLE, 300, 0},
		[SHARD_PLANT_UNMENDED] = {"a standby that was lost once is not tried again", 100, KIND_STANDBY, 0, 0},
		[SHARD_PLANT_HASTY] = {"a job goes on a round too early", 100, KIND_DURABLE, 100, 0},
		[SHARD_PLANT_IMPATIENT] = {"of a chain a box does not wait for the sum of the one before", 100,
			KIND_HOMES, 0, 0},
		[SHARD_PLANT_UNCARRIED] = {"a chunk's next home does not take what it had at the one before", 400,
			KIND_HOMES, 0, 0},
		[SHARD_PLANT_MUTE] = {"a box that has lost one beside leaves without a word of it", 400, KIND_HOMES, 0,
			0},
		[SHARD_PLANT_UNLOCKED] = {"a box is promoted while another is the root", 100, KIND_PROMOTED, 0, 0},
	};
	unsigned missed = 0;

	for (unsigned bug = SHARD_PLANT_NONE + 1; bug < SHARD_PLANT_COUNT; bug++) {
		missed += !sim_check_bug(bug, bugs[bug].name, bugs[bug].kind, bugs[bug].within);
		if (bugs[bug].resumed)
			missed += !sim_check_bug(bug, bugs[bug].name, KIND_RESUMED, bugs[bug].resumed);
		if (bugs[bug].racks)
			missed += !sim_check_bug(bug, bugs[bug].name, KIND_RACKS, bugs[bug].racks);
	}
	return missed;
}

/* All that a process of its own tells of a world: to be closed; NULL: it could not be run. */
static FILE *sim_trace(uint64_t seed, enum sim_kind kind)
{
	FILE *file = tmpfile();
	char number[32], option[32];
	pid_t child;
	int status;

	snprintf(number, sizeof(number), "%llu", (unsigned long long)seed);
	snprintf(option, sizeof(option), "--%s", sim_kinds[kind].name);
	fflush(stdout);
	child = file ? fork() : -1;
	if (child == 0) {
		if (dup2(fileno(file), STDOUT_FILENO) >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0)
			execl("/proc/self/exe", "sim", "--seed", number, option, "--trace", (char *)NULL);
		_exit(127);
	}
	if (child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0) {
		rewind(file);
		return file;
	}
	if (file)
		fclose(file);
	return NULL;
}

/* Byte for byte, and not nothing? */
static bool sim_same(FILE *a, FILE *b)
{
	size_t count = 0;
	int c = a && b ? 0 : EOF;

	while (c != EOF) {
		c = fgetc(a);
		if (c != fgetc(b))
			return false;
		count++;
	}
	return count > 1;
}

/* A seed that failed must fail in the same way again: of each kind two runs of one world tell the same. */
static unsigned sim_check_traces(uint64_t first)
{
	unsigned differ = 0;

	for (unsigned kind = 0; kind < KIND_COUNT; kind++) {
		FILE *one = sim_trace(first + kind, (enum sim_kind)kind);
		FILE *other = sim_trace(first + kind, (enum sim_kind)kind);

		if (!sim_same(one, other)) {
			printf("two runs of seed %llu (%s) do not tell the same\n", (unsigned long long)(first + kind),
				sim_kinds[kind].name);
			differ++;
		}
		if (one)
			fclose(one);
		if (other)
			fclose(other);
	}
	printf("traces: of %d worlds %u were told twice in the same way\n", KIND_COUNT, KIND_COUNT - differ);
	return differ;
}

static double sim_cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void sim_add(struct world_result *sum, const struct world_result *result)
{
	sum->rounds_checked += result->rounds_checked;
	sum->owed += result->owed;
	sum->reconnects += result->reconnects;
	sum->coded += result->coded;
	sum->died += result->died;
	sum->came += result->came;
	sum->ended += result->ended;
	sum->judged += result->judged;
	sum->given_up += result->given_up;
	sum->late += result->late;
	sum->struck += result->struck;
	sum->below += result->below;
	sum->several += result->several;
	sum->deep += result->deep;
	sum->parted += result->parted;
	sum->cut += result->cut;
	sum->healed += result->healed;
	sum->resumed += result->resumed;
	sum->roots += result->roots;
	sum->one_way += result->one_way;
	sum->upset += result->upset;
	sum->outrun += result->outrun;
	sum->promoted += result->promoted;
	sum->regained += result->regained;
	sum->promotions += result->promotions;
	sum->refused += result->refused;
	sum->whole += result->whole;
	sum->homes += result->homes;
	sum->homes_died += result->homes_died;
	sum->homes_cut += result->homes_cut;
	sum->homes_moves += result->homes_moves;
	sum->homes_moved += result->homes_moved;
	sum->moves += result->moves;
	sum->box_died += result->box_died;
	sum->restored += result->restored;
	sum->anew += result->anew;
	sum->kept += result->kept;
	sum->harmed += result->harmed;
	sum->mangled += result->mangled;
	sum->guests += result->guests;
	sum->guest_rounds += result->guest_rounds;
	sum->net.streams_corrupted += result->net.streams_corrupted;
	sum->net.streams_broken += result->net.streams_broken;
	sum->disk.refused += result->disk.refused;
	sum->disk.refused_reads += result->disk.refused_reads;
	sum->disk.torn += result->disk.torn;
	sum->disk.undone += result->disk.undone;
	sum->net.sent += result->net.sent;
	sum->net.dropped += result->net.dropped;
	sum->net.duplicated += result->net.duplicated;
	sum->net.reordered += result->net.reordered;
}

static void sim_tell(const struct arguments *a, const struct world_result *sum, double seconds)
{
	printf("sim: seeds %llu..%llu", (unsigned long long)a->first, (unsigned long long)(a->first + a->count - 1));
	if (!a->trace) /* of which two are the same */
		printf(", %.0f a second of CPU", (double)a->count / seconds);
	printf(", %llu results checked, %u workers bereaved before they had theirs; %llu connections made anew; of "
	       "%llu messages %llu lost, %llu doubled, %llu out of order\n",
		(unsigned long long)sum->rounds_checked, sum->owed, (unsigned long long)sum->reconnects,
		(unsigned long long)sum->net.sent, (unsigned long long)sum->net.dropped,
		(unsigned long long)sum->net.duplicated, (unsigned long long)sum->net.reordered);
	printf("sim: %llu pushes and results of sparse keys went without their zeros\n",
		(unsigned long long)sum->coded);
	printf("sim: %u workers died, %u came in their place, %u were told of the end; %llu rounds of chunks had a set "
	       "of ranks, %llu too many; %llu pushes were late\n",
		sum->died, sum->came, sum->ended, (unsigned long long)sum->judged, (unsigned long long)sum->given_up,
		(unsigned long long)sum->late);
	printf("sim: %u worlds had one of two boxes struck, %u with a whole copy; workers moved %llu times\n",
		sum->struck, sum->whole, (unsigned long long)sum->moves);
	printf("sim: %u worlds had boxes below a root, %u several, %u in three levels; %u of these boxes died, %u "
	       "racks "
	       "were cut off, %u one way alone, %u of them healed; %u such roots died; workers went on after a box %u "
	       "times\n",
		sum->below, sum->several, sum->deep, sum->parted, sum->cut, sum->one_way, sum->healed, sum->roots,
		sum->resumed);
	printf("sim: in %u of these worlds boxes exchange; %u of them died, and %u times they were cut off; %u "
	       "changes of homes began, %u were done\n",
		sum->homes, sum->homes_died, sum->homes_cut, sum->homes_moves, sum->homes_moved);
	printf("sim: %u roots by a lease stood still or did not hear of etcd, %u for longer than it lasted; after that "
	       "%u times one was the root anew, and %u times one was it still\n",
		sum->upset, sum->outrun, sum->promoted, sum->regained);
	printf("sim: an operator promoted %u boxes to be the root, and was refused %u times\n", sum->promotions,
		sum->refused);
	printf("sim: %u boxes died; after that %u jobs went on from a checkpoint and %u began anew; %llu checkpoints, "
	       "%u harmed disks, %llu calls of theirs failed, %llu files were torn, %llu names undone\n",
		sum->box_died, sum->restored, sum->anew, (unsigned long long)sum->kept, sum->harmed,
		(unsigned long long)(sum->disk.refused + sum->disk.refused_reads), (unsigned long long)sum->disk.torn,
		(unsigned long long)sum->disk.undone);
	printf("sim: of control sessions %llu reads were corrupted and %llu broke; %u workers ended by that\n",
		(unsigned long long)sum->net.streams_corrupted, (unsigned long long)sum->net.streams_broken,
		sum->mangled);
	printf("sim: %u worlds had a second job, of which %llu results were checked\n", sum->guests,
		(unsigned long long)sum->guest_rounds);
}

/* Returns how many seeds failed. */
static uint64_t sim_run(const struct arguments *a, struct world_result *sum)
{
	struct world_result result;
	struct world_plan plan;
	uint64_t failed = 0;

	for (uint64_t seed = a->first; seed < a->first + a->count; seed++) {
		sim_plan(a, seed, &plan);
		if (a->trace)
			world_plan_print(&plan, stdout);
		if (sim_run_world(a, &plan, &result) != 0) {
			sim_print_failed(a, &plan, result.text);
			failed++;
		}
		sim_add(sum, &result);
	}
	return failed;
}

/* What is excused in single worlds must be seldom in many of them. Returns how many are not. */
static unsigned sim_check_shares(const struct world_result *sum)
{
	uint64_t disturbed = sum->net.streams_corrupted + sum->net.streams_broken;
	unsigned failed = 0;

	if (sum->struck >= 100 && sum->whole < sum->struck / 2) {
		printf("too seldom whole: %u of %u copies were, when a box was struck\n", sum->whole, sum->struck);
		failed++;
	}
	if (sum->judged >= 10000 && sum->given_up > sum->judged / 10) {
		printf("too much is not looked at: %llu rounds of chunks have too many explanations, %llu have one\n",
			(unsigned long long)sum->given_up, (unsigned long long)sum->judged);
		failed++;
	}
	if (disturbed >= 100 && sum->mangled > 2 * disturbed) {
		printf("%u workers ended, where %llu reads of control sessions were disturbed\n", sum->mangled,
			(unsigned long long)disturbed);
		failed++;
	}
	return failed;
}

int main(int argc, char **argv)
{
	struct arguments a;
	struct world_result sum = {0};
	uint64_t failed;
	double seconds;

	if (argc == 2 && strcmp(argv[1], "--help") == 0) {
		fputs(usage, stdout);
		return 0;
	}
	if (sim_arguments(argc, argv, &a))
		return 2;
	sim_watch_crashes();
	if (a.planted)
		return sim_check_bugs() ? 1 : 0;
	failed = sim_run(&a, &sum);
	seconds = sim_cpu_seconds();
	sim_tell(&a, &sum, seconds);
	if (a.count > 1 && a.plant == PLANT_NONE && failed == 0)
		failed += (uint64_t)sim_check_checkers() + sim_check_bugs() + sim_check_traces(a.first);
	failed += sim_check_shares(&sum);
	printf("%llu passed, %llu failed\n", (unsigned long long)(a.count - (failed > a.count ? a.count : failed)),
		(unsigned long long)failed);
	return failed ? 1 : 0;
}
