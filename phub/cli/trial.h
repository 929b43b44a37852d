/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub bench exchange and train, what its parts share: the plan that parent and workers agree on before the fork, and
 * the memory that they share after it. Parent: bench_exchange.c; the watch over the workers: trial_crew.c; a worker's
 * life: trial_worker.c; what is pushed and what must come back: trial_data.c; the numbers: trial_report.c.
 *
 * Rounds count from 0 and the first `warmup` of them are not timed. Workers fill in new gradients before a `fresh`
 * round, together, outside of the timed stretches; a round that is not fresh pushes the same gradients again. With
 * several jobs each has shared memory of its own, and the workers of all begin a stretch together.
 */
#ifndef PHUB_CLI_TRIAL_H
#define PHUB_CLI_TRIAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "aggregation/optimizer.h"
#include "client/phub.h"
#include "phub/base/err.h"
#include "topology/model.h"

enum { TRIAL_WORKERS_MAX = 256, TRIAL_JOBS_MAX = 64, TRIAL_WARMUP = 2 };

enum trial_mode { TRIAL_ZERO_COPY, TRIAL_COPY };
enum trial_check { TRIAL_FIRST_LAST, TRIAL_ALL };
/* Wrong results that are put before the checker, which must see them. */
enum trial_plant { TRIAL_PLANT_NONE, TRIAL_PLANT_STALE, TRIAL_PLANT_SWAPPED, TRIAL_PLANT_DOUBLED };

/* Constant after the fork. */
struct trial_plan {
	const char *transport;
	const char *secret;                 /* of the box that is asked for, or NULL */
	const char *worker_netns;           /* network namespace of a worker, {} for its rank; NULL: ours */
	const struct cpu_list *worker_cpus; /* that workers are pinned to, in turn; NULL: to none */
	enum trial_mode mode;
	enum trial_check check;
	enum trial_plant plant;
	enum optimizer_kind optimizer;
	bool reproducible;
	int seal; /* enum phub_seal */
	bool encrypt;
	unsigned workers, rounds, warmup;
	unsigned jobs;  /* as many workers in each */
	unsigned world; /* of all machines that take part; 0: workers */
	unsigned block; /* 0, or every so many rounds begin with new gradients, and no others */
	unsigned group_count;
	uint64_t chunk_bytes; /* 0: the box's */
	int timeout_ms;
	struct model model;       /* the keys */
	uint64_t *key_first;      /* [model.count] index of a key's first element among all */
	uint64_t elements, bytes; /* of all keys */
	struct phub_hyper hyper;
};

struct trial_time {
	uint64_t begin_ns, end_ns;
};

/* What RDMA devices were asked to do; all 0 elsewhere. */
struct trial_work_done {
	uint64_t chunks, posts, doorbells, signalled, registrations;
};

/* Written by one worker, read by the parent when it has ended. */
struct trial_outcome {
	char text[ERR_TEXT_MAX]; /* its first error */
	uint64_t failed_ns;      /* when; 0: never */
	uint64_t wrong;          /* pieces of results that were not what they should be */
	uint64_t checked;        /* pieces that were looked at, of about a chunk each */
	uint64_t copied_bytes, pushed_bytes;
	uint64_t cpu_ns; /* of all its threads, in timed stretches */
	struct trial_work_done device;
};

/* Of the workers of all jobs. */
struct trial_meeting {
	_Atomic unsigned arrived, turn; /* of the workers' own barrier; release at arrival, acquire at departure */
	_Atomic bool failed;            /* somebody ended: nobody waits any more */
};

struct trial_shared {
	struct trial_meeting *all; /* in the memory of the first job */
	struct trial_meeting meeting;
	unsigned salt;          /* added to ranks in the gradients: those of two jobs differ */
	_Atomic unsigned met;   /* workers that a box has answered */
	_Atomic unsigned round; /* rank 0 has finished so many; for the progress bar */
	uint64_t box_cpu_ns;    /* in timed stretches; rank 0 */
	struct trial_work_done box_device;
	uint64_t box_pinned_bytes;
	struct trial_outcome outcomes[TRIAL_WORKERS_MAX];
	struct trial_time *times; /* [workers][warmup + rounds] */
	float *expected;          /* [elements]: weights, or sums, after `done` rounds */
	float *state[OPTIMIZER_STATE_MAX];
	size_t bytes;
};

/* New gradients before this round? Then a timed stretch begins here. */
bool trial_is_fresh(const struct trial_plan *p, unsigned round);
/* Are the results of this round compared? */
bool trial_is_checked(const struct trial_plan *p, unsigned round);
struct trial_time *trial_times(const struct trial_plan *p, const struct trial_shared *s, unsigned rank);

/* Derives what follows from the plan's model: keys, sizes, groups. 0 or -ENOMEM. */
int trial_plan_keys(struct trial_plan *p, struct err *e);
/* Frees the plan's model too. */
void trial_plan_fini(struct trial_plan *p);

/* Ranks of the job. */
unsigned trial_world(const struct trial_plan *p);

/* Takes and gives back a job's shared memory; `first` is that of the first job, NULL for itself. 0 or -ENOMEM. */
int trial_shared_create(
	const struct trial_plan *p, unsigned job, struct trial_shared *first, struct trial_shared **out, struct err *e);
void trial_shared_destroy(struct trial_shared *s);

/* Waits until all workers of all jobs have come here. 0, or -ECANCELED when one of them has failed. */
int trial_meet(const struct trial_plan *p, struct trial_shared *s);

/* ---- trial_data.c: pure arithmetic on caller's memory ---- */

/* The gradients of `rank` (with the job's salt) for this round (a fresh one) for elements first.. of the job, as dtype.
 */
void trial_fill(unsigned rank, unsigned round, uint64_t first, uint64_t count, uint8_t dtype, void *out);

/* The first weights, as dtype. */
void trial_fill_weights(uint64_t first, uint64_t count, uint8_t dtype, void *out);

/* Sets `expected` to what it is before any round: this rank's share of the elements. */
void trial_expect_begin(const struct trial_plan *p, struct trial_shared *s, unsigned rank);

/* Takes this rank's share of `expected` from after round `from` - 1 to after round `to`. */
void trial_expect(const struct trial_plan *p, struct trial_shared *s, unsigned rank, unsigned from, unsigned to);

/* The first of count results that is not as expected, or -1; *right receives what it should be. */
int64_t trial_compare(
	const struct trial_shared *s, uint64_t first, uint64_t count, uint8_t dtype, const void *results, float *right);

/* One element of a result as a number. */
float trial_value(const void *results, uint64_t index, uint8_t dtype);

/* ---- trial_worker.c ---- */

/* Opens the network namespace that a worker is to enter; the plan has worker_netns. An fd, or a negative errno. */
int trial_open_netns(const struct trial_plan *p, unsigned rank, struct err *e);

/* A worker's whole life, in its own process. Returns its exit code. */
int trial_work(const struct trial_plan *p, struct trial_shared *s, unsigned rank, const char *address, const char *job,
	pid_t box);

/* ---- trial_report.c ---- */

struct trial_numbers {
	double rounds_per_s, p50_ms, p99_ms, gb_per_s_worker, box_cpu_s_per_gb;
	double cpu_s_per_gb; /* box and workers */
	uint64_t errors, checked;
	double copies; /* bytes copied by the library per gradient byte */
	struct trial_work_done worker_device, box_device;
	uint64_t box_pinned_bytes; /* RDMA: registered with devices */
};

void trial_sort(uint64_t *times, size_t count);
/* The smallest time that `percent` of all do not exceed. */
double trial_percentile_ms(const uint64_t *sorted, size_t count, double percent);

/* Sorts the values too. */
double trial_median(double *values, unsigned count);

/* From the times of all workers. 0 or -ENOMEM. */
int trial_count(const struct trial_plan *p, const struct trial_shared *s, struct trial_numbers *out);
bool trial_print(const struct trial_plan *p, const struct trial_numbers *n, bool json);

/* ---- trial_jobs.c ---- */

/*
 * How the box was shared, from the times of all workers of all jobs: rounds[job] that each finished, in parts too,
 * while none of the jobs had yet to begin its stretch or had ended it. Returns the seconds of those times.
 */
double trial_share(const struct trial_plan *p, struct trial_shared *const *jobs, double *rounds);

/* Counts and prints a line for each job, and one for all. False: it could not. */
bool trial_print_jobs(const struct trial_plan *p, struct trial_shared *const *jobs, bool json);

#endif
