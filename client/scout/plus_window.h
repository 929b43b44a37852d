/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A window of scout+: what it is for, what was seen in it, and what is kept of the one before it. Pure; any thread.
 */
#ifndef PHUB_CLIENT_SCOUT_PLUS_WINDOW_H
#define PHUB_CLIENT_SCOUT_PLUS_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

/* What the window that comes is for; plus.h has the course. */
enum plus_phase {
	PLUS_MEASURES = 0, /* at the tightest theta: how far sites pull apart */
	PLUS_LOOSENS = 1,  /* on the way to the theta that the pull allows */
	PLUS_STAYS = 2,    /* there, and watches */
	PLUS_PROBES = 3,   /* at the tightest for one window: what would talking more gain? */
};

/* What a window showed. NaN: it is not known. */
struct plus_window {
	unsigned exchanges;
	/* With d_k what site k says over its share, sums over exchanges and all tensors: sum share_k ||d_k||^2, and
	 * ||sum share_k d_k||^2 */
	double said, heard;
	double sites;     /* 1 / sum share_k^2: how many they are, counted by their weight; 1 or more */
	double rate;      /* of learning, at the end */
	double bytes;     /* that a site has sent, the mean */
	double bytes_bsp; /* that it would have sent in as many steps of bsp */
	double spent;     /* what talking for a period of steps has cost a site, the mean, in the unit of costs */
	double floor;     /* of it, what is the same whatever theta; 0: nothing, or it is not to be looked at */
	double train;     /* loss of sites' own models on their batches, the mean */
	/* Loss of the mean model on the same samples, as the window before this one began, and as it ended: */
	double before, after;
	double trained, tried; /* samples of a site, the mean of those that have data and report */
};

/* Of the window before, at whose end models were tried: the losses that come with this one tell of that. */
struct plus_past {
	enum plus_phase phase;
	unsigned index;  /* of its theta */
	uint32_t asked;  /* samples that models were to be tried on at its end; 0: none; */
	uint32_t before; /* and at the end of the one before it */
	double train;    /* loss of sites' own models; NaN: it is not known */
	double trained;  /* samples of a site, in the last window that tells; 0: none did */
};

/* Are the losses before it and after it of the same samples? */
static inline bool plus_past_compares(const struct plus_past *past)
{
	return past->before == past->asked || past->before == 0 || past->asked == 0;
}

#endif
