/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often a job's weights are kept. With R a round's time, S what a checkpoint adds to all rounds that it touches, W
 * how long its file takes and o the overhead that is allowed:
 *
 *      S <= o * n * R      n rounds pay for one checkpoint
 *      W <= (n - 1) * R    it is on disk a round before the next, and that round is measured without
 *
 * n is the least of both, and follows as the three drift: each is a mean that forgets.
 */
#include "phub/control/checkpoint.h"

#include <math.h>

enum {
	PACE_ROUNDS = 16,     /* of the last so many is a mean, about */
	PACE_CHECKPOINTS = 4, /* these are seldom */
	PACE_LEAP = 4,        /* a sample is cut to so many means */
};
#define PACE_INTERVAL_MAX 1e9

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

void checkpoint_pace_init(struct checkpoint_pace *p, double overhead)
{
	*p = (struct checkpoint_pace){.overhead = overhead};
}

void checkpoint_pace_round(struct checkpoint_pace *p, double seconds, bool snapped)
{
	if (!(seconds >= 0))
		return;
	if (snapped && p->rounds == 0)
		return; /* there is nothing to compare it with */
	if (snapped) {
		p->extra_s += seconds - p->round_s;
		p->snapping = true;
		return;
	}
	if (p->snapping) {
		pace_mean(&p->snapshot_s, &p->snapshots, PACE_CHECKPOINTS, fmax(p->extra_s, 0));
		p->snapping = false;
		p->extra_s = 0;
	}
	pace_mean(&p->round_s, &p->rounds, PACE_ROUNDS, seconds);
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
