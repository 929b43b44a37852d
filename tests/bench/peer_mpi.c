/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open MPI's all-reduce, measured as `phub bench exchange` measures a round. Built with mpicc and started by
 * systems.py. Stays up and is told by lines on rank 0's stdin what to do next, so that it can take turns with others on
 * one machine; ranks that wait for a line sleep. It ends with its stdin.
 *
 *   in:   ALGORITHM SEGMENT-BYTES BYTES WARMUP ROUNDS     algorithm 0 is Open MPI's own choice
 *   out:  {"peer":"openmpi","workers":4,"bytes":..,"algorithm":..,"segment":..,"rounds":..,"rounds_per_s":..,
 *          "p50_ms":..,"p99_ms":..,"cpu_s_per_gb":..,"errors":0}
 *
 * p50 and p99 are over the rounds of all ranks; CPU seconds are those of all ranks, per GB (1e9) of gradients that all
 * ranks gave; the sums of the first and of the last round are compared with a serial calculation, outside of the
 * measured time.
 */
#include <mpi.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A prime, so that no two pieces of a message look alike. */
enum { PATTERN = 1021 };
/* Between two looks for an order: so rare that those who are measured meanwhile do not feel it. */
enum { NAP_NS = 20000000 };

struct order {
	int algorithm, segment;
	uint64_t bytes, warmup, rounds;
};

struct peer {
	int rank, world;
	MPI_Comm comm;
	size_t count;      /* elements of either array */
	float *push, *sum; /* while an order is carried out */
	double *times;     /* rank 0: [world][rounds]; others: [rounds] */
};

/* Of one rank, then of all in rank 0. */
struct outcome {
	double wall_s, cpu_s;
	uint64_t wrong;
};

static double now_s(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* ---- data ---- */

/* Small integers: every sum is exact in every order. */
static float value(size_t i, int rank, unsigned turn)
{
	return (float)((i * 7 + (unsigned)rank * 5 + turn * 3) % 16) - 8;
}

static void fill(struct peer *p, unsigned turn)
{
	float pattern[PATTERN];

	for (size_t i = 0; i < PATTERN; i++)
		pattern[i] = value(i, p->rank, turn);
	for (size_t at = 0; at < p->count; at += PATTERN) {
		size_t count = p->count - at < PATTERN ? p->count - at : PATTERN;

		memcpy(p->push + at, pattern, count * sizeof(*pattern));
		memset(p->sum + at, 0xff, count * sizeof(*p->sum)); /* NaN: no sum is this */
	}
}

static uint64_t count_wrong(const struct peer *p, unsigned turn)
{
	float want[PATTERN] = {0};
	uint64_t wrong = 0;

	for (int rank = 0; rank < p->world; rank++) {
		for (size_t i = 0; i < PATTERN; i++)
			want[i] += value(i, rank, turn);
	}
	for (size_t at = 0; at < p->count; at += PATTERN) {
		size_t count = p->count - at < PATTERN ? p->count - at : PATTERN;

		for (size_t i = 0; i < count; i++)
			wrong += p->sum[at + i] != want[i];
	}
	return wrong;
}

/* ---- one order ---- */

static void set_cvar(const char *name, int to)
{
	MPI_T_cvar_handle handle;
	int index, count;

	if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS ||
		MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) != MPI_SUCCESS ||
		MPI_T_cvar_write(handle, &to) != MPI_SUCCESS) {
		fprintf(stderr, "peer_mpi: this Open MPI has no variable %s that can be set\n", name);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	MPI_T_cvar_handle_free(&handle);
}

/* A communicator keeps the algorithm that is chosen when it is made. */
static void begin_order(struct peer *p, const struct order *o)
{
	set_cvar("coll_tuned_allreduce_algorithm", o->algorithm);
	set_cvar("coll_tuned_allreduce_algorithm_segmentsize", o->segment);
	MPI_Comm_dup(MPI_COMM_WORLD, &p->comm);
	p->count = o->bytes / sizeof(float);
	p->push = malloc(o->bytes);
	p->sum = malloc(o->bytes);
	p->times = calloc(o->rounds * (size_t)(p->rank ? 1 : p->world), sizeof(*p->times));
	if (!p->push || !p->sum || !p->times) {
		fprintf(stderr, "peer_mpi: no memory for 2 x %llu bytes in each rank\n", (unsigned long long)o->bytes);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

/* Gives everything back: others are measured while we wait. */
static void end_order(struct peer *p)
{
	free(p->push);
	free(p->sum);
	free(p->times);
	MPI_Comm_free(&p->comm);
}

static void reduce(struct peer *p)
{
	MPI_Allreduce(p->push, p->sum, (int)p->count, MPI_FLOAT, MPI_SUM, p->comm);
}

static struct outcome run_rounds(struct peer *p, const struct order *o)
{
	struct outcome out = {0};
	double cpu_s, wall_s;

	fill(p, 0);
	reduce(p);
	out.wrong = count_wrong(p, 0);
	fill(p, 1);
	for (uint64_t i = 1; i < o->warmup; i++)
		reduce(p);
	MPI_Barrier(p->comm);
	cpu_s = now_s(CLOCK_PROCESS_CPUTIME_ID);
	wall_s = now_s(CLOCK_MONOTONIC);
	for (uint64_t i = 0; i < o->rounds; i++) {
		double begin_s = now_s(CLOCK_MONOTONIC);

		reduce(p);
		p->times[i] = now_s(CLOCK_MONOTONIC) - begin_s;
	}
	out.wall_s = now_s(CLOCK_MONOTONIC) - wall_s;
	out.cpu_s = now_s(CLOCK_PROCESS_CPUTIME_ID) - cpu_s;
	out.wrong += count_wrong(p, 1);
	return out;
}

/* Rank 0 receives the times of all, the longest wall time, and the others' sums. */
static struct outcome collect(struct peer *p, const struct order *o, const struct outcome *own)
{
	struct outcome all = {0};

	MPI_Gather(p->rank ? p->times : MPI_IN_PLACE, (int)o->rounds, MPI_DOUBLE, p->times, (int)o->rounds, MPI_DOUBLE,
		0, p->comm);
	MPI_Reduce(&own->wall_s, &all.wall_s, 1, MPI_DOUBLE, MPI_MAX, 0, p->comm);
	MPI_Reduce(&own->cpu_s, &all.cpu_s, 1, MPI_DOUBLE, MPI_SUM, 0, p->comm);
	MPI_Reduce(&own->wrong, &all.wrong, 1, MPI_UINT64_T, MPI_SUM, 0, p->comm);
	return all;
}

static void print_outcome(struct peer *p, const struct order *o, const struct outcome *all)
{
	size_t count = o->rounds * (size_t)p->world;

	qsort(p->times, count, sizeof(*p->times), compare_doubles);
	printf("{\"peer\":\"openmpi\",\"workers\":%d,\"bytes\":%llu,\"algorithm\":%d,\"segment\":%d,\"rounds\":%llu,"
	       "\"rounds_per_s\":%.6g,\"p50_ms\":%.6g,\"p99_ms\":%.6g,\"cpu_s_per_gb\":%.6g,\"errors\":%llu}\n",
		p->world, (unsigned long long)o->bytes, o->algorithm, o->segment, (unsigned long long)o->rounds,
		(double)o->rounds / all->wall_s, p->times[count / 2] * 1e3, p->times[count * 99 / 100] * 1e3,
		all->cpu_s / ((double)o->bytes * (double)o->rounds * p->world * 1e-9), (unsigned long long)all->wrong);
	fflush(stdout);
}

static void carry_out(struct peer *p, const struct order *o)
{
	struct outcome own, all;

	begin_order(p, o);
	own = run_rounds(p, o);
	all = collect(p, o, &own);
	if (p->rank == 0)
		print_outcome(p, o, &all);
	end_order(p);
}

/* ---- waiting for orders ---- */

static bool parse_order(const char *line, struct order *o)
{
	unsigned long long bytes, warmup, rounds;

	if (sscanf(line, "%d %d %llu %llu %llu", &o->algorithm, &o->segment, &bytes, &warmup, &rounds) != 5)
		return false;
	o->bytes = bytes;
	o->warmup = warmup;
	o->rounds = rounds;
	return bytes >= sizeof(float) && bytes / sizeof(float) <= INT32_MAX && rounds > 0 && rounds <= INT32_MAX;
}

/* The next line of rank 0's stdin, in all ranks, which sleep meanwhile. False: it ended, or was none of ours. */
static bool next_order(const struct peer *p, struct order *o)
{
	const struct timespec nap = {.tv_nsec = NAP_NS};
	MPI_Request request;
	char line[128];
	int done = 0;

	*o = (struct order){0};
	if (p->rank == 0 && fgets(line, sizeof(line), stdin) && !parse_order(line, o)) {
		fprintf(stderr, "peer_mpi: not an order: %s", line);
		*o = (struct order){0};
	}
	MPI_Ibcast(o, sizeof(*o), MPI_BYTE, 0, MPI_COMM_WORLD, &request);
	for (MPI_Test(&request, &done, MPI_STATUS_IGNORE); !done; MPI_Test(&request, &done, MPI_STATUS_IGNORE))
		nanosleep(&nap, NULL);
	return o->rounds > 0;
}

int main(int argc, char **argv)
{
	struct peer p = {0};
	struct order o;
	int provided;

	MPI_Init(&argc, &argv);
	MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &p.world);
	while (next_order(&p, &o))
		carry_out(&p, &o);
	MPI_T_finalize();
	MPI_Finalize();
	return 0;
}
