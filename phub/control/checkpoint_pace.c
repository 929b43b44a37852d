/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often a job's weights are kept. With R a round's time, S what a checkpoint adds to all rounds that it touches, W
 * how long its file takes and o the overhead that is allowed:
 *
 *      S <= o * n * R      n rounds pay for one checkpoint: for the copy, and for the CPU time that writing takes from
 * them W <= (n - 1) * R    it is on disk a round before the next, and that round is measured without
 *
 * n is the least of both, and follows as the three drift: each is a mean that forgets.
 */
#include "phub/control/checkpoint.h"

#include <math.h>

enum {
	PACE_ROUNDS = 16,     /* of the last so many is a mean, about */
	PACE_CHECKPOINTS = 8, /* these are seldom */
	PACE_LEAP = 4,        /* a sample is cut to so many means */
};
#define PACE_INTERVAL_MAX 1e9

/* Without a checkpoint there come so many samples before the first, and before the next while the interval is not
 * known, or there would be nothing to compare with; and so many seconds before any. */
#define PACE_CLEAN   4u
#define PACE_CLEAN_S 0.4

static void pace_mean(double *mean, uint32_t *count, uint32_t memory, double sample)
{
	if (*count > 0 && *mean > 0 && sample > PACE_LEAP * *mean)
		sample = PACE_LEAP * *mean;
	if (*count < memory)
		++*count;
	*mean += (sample - *mean) / *count;
}

static void pace_update(struct checkpoint_pace *p)
{
	double paid, kept;

	if (!p->rounds || !p->snapshots || !p->writes || p->round_s <= 0)
		return;
	paid = ceil(p->snapshot_s / (p->overhead * p->round_s) - 1e-9);
	kept = ceil(p->write_s / p->round_s - 1e-9) + 1;
	paid = fmax(fmax(paid, kept), 1);
	p->interval = (uint64_t)fmin(paid, PACE_INTERVAL_MAX);
}

/* Not the mean of what a round takes in each: quick samples have more rounds, and what is lost is counted in rounds. */
static void pace_sample(struct checkpoint_pace *p, double rounds, double seconds)
{
	if (p->rounds > 0 && p->round_s > 0 && seconds > PACE_LEAP * p->round_s * rounds)
		seconds = PACE_LEAP * p->round_s * rounds;
	if (p->rounds < PACE_ROUNDS)
		p->rounds++;
	p->sample_s += (seconds - p->sample_s) / p->rounds;
	p->sample_rounds += (rounds - p->sample_rounds) / p->rounds;
	p->round_s = p->sample_s / p->sample_rounds;
}

void checkpoint_pace_init(struct checkpoint_pace *p, double overhead)
{
	*p = (struct checkpoint_pace){.overhead = overhead};
}

void checkpoint_pace_round(struct checkpoint_pace *p, double rounds, double seconds, bool snapped)
{
	if (!(seconds >= 0) || !(rounds > 0))
		return;
	p->clean = snapped ? 0 : p->clean + 1;
	p->clean_s = snapped ? 0 : p->clean_s + seconds;
	if (snapped && p->rounds == 0)
		return; /* there is nothing to compare it with */
	if (snapped) {
		p->extra_s += seconds - rounds * p->round_s;
		p->snapping = true;
		return;
	}
	if (p->snapping) {
		pace_mean(&p->snapshot_s, &p->snapshots, PACE_CHECKPOINTS, fmax(p->extra_s, 0));
		p->snapping = false;
		p->extra_s = 0;
	}
	pace_sample(p, rounds, seconds);
	pace_update(p);
}

void checkpoint_pace_written(struct checkpoint_pace *p, double seconds)
{
	if (!(seconds >= 0))
		return;
	pace_mean(&p->write_s, &p->writes, PACE_CHECKPOINTS, seconds);
	pace_update(p);
}

bool checkpoint_pace_cost(const struct checkpoint_pace *p, uint64_t every, double *cost)
{
	if (!p->rounds || !p->snapshots || p->round_s <= 0 || every == 0)
		return false;
	*cost = p->snapshot_s / ((double)every * p->round_s);
	return true;
}

bool checkpoint_pace_due(const struct checkpoint_pace *p, uint64_t rounds)
{
	if (p->interval == 0)
		return rounds > 0 && p->clean >= PACE_CLEAN;
	return rounds >= p->interval && p->clean_s >= PACE_CLEAN_S;
}
