/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy scout+: which theta is next, by what exchanges show for nothing, and by probes that are rare. scout.c
 * calls it with each window. Pure arithmetic, the same bits on each machine; no memory of its own.
 *
 * Each window is of a phase:
 *
 *      phase          theta                            until
 *      PLUS_MEASURES  the tightest                     the pull is known: how far sites pull apart
 *      PLUS_LOOSENS   half way to the one allowed      it is there
 *      PLUS_STAYS     the one that the pull allows     data drift, or sites are others (then it measures anew), or a
 *                                                      probe is due
 *      PLUS_PROBES    the tightest                     one window later, when it stays again
 *
 * Each part is a file, and knows nothing of the phases; this one knows what follows of what they find:
 *
 *      plus_reach.h   the pull, what theta it allows, and whether a looser one is cheaper
 *      plus_watch.h   whether data have drifted
 *      plus_probe.h   what talking more would gain, and what may be spent to know
 *      plus_guard.h   whether the mean model is sound, or models have drifted apart, or no theta will help
 *      plus_config.h  the numbers that all go by; plus_window.h: what a window shows
 *
 * Course. It measures in windows of a few steps (plus_span()), for that costs what BSP does: the first `passes`
 * exchanges are not counted, as momentum and models are of another theta before, and the gradients of a model that
 * knows nothing say little; the next `settle` are. Then it loosens in each window by half of the thetas that are left,
 * and stays. Theta may change there without a new measurement: where the rate of learning falls, where a probe has
 * measured the pull, too, and by what probes gain for sure: `ease` halves, or grows by a quarter. Sites that come or
 * are lost are no drift, but r is by how many they are, and they bring data that nobody has measured: so it measures
 * anew. Where the guard finds that models have drifted apart, `ease` halves and theta is the tightest until they have
 * not, then it measures anew; where no theta will help it says so, and theta is what it would be without. Without
 * losses in the reports, and without probes, theta follows the pull alone.
 */
#ifndef PHUB_CLIENT_SCOUT_PLUS_H
#define PHUB_CLIENT_SCOUT_PLUS_H

#include <stdbool.h>
#include <stdint.h>

#include "client/scout/plus_config.h"
#include "client/scout/plus_guard.h"
#include "client/scout/plus_probe.h"
#include "client/scout/plus_reach.h"
#include "client/scout/plus_watch.h"
#include "client/scout/plus_window.h"

/* Why theta is what it is. */
enum plus_cause {
	PLUS_FIRST = 0,  /* it measures */
	PLUS_MEASURED,   /* the pull is known, and allows this */
	PLUS_ON_ITS_WAY, /* loosens */
	PLUS_SLOWER,     /* another rate of learning allows this */
	PLUS_CHEAPER,    /* what it has cost says that a looser theta is cheaper, or that none is */
	PLUS_THERE,      /* nothing has changed */
	PLUS_DRIFTED,    /* a series has left its level: see `drifts` */
	PLUS_OTHERS,     /* sites have come, or are lost, or weigh otherwise, since the pull was measured */
	PLUS_GAINS,      /* a probe, or several, say that talking more is worth it */
	PLUS_WASTES,     /* that it is not */
	PLUS_PROBE,      /* a probe begins */
	PLUS_PROBE_OVER, /* it has said nothing yet */
	PLUS_BLIND,      /* nothing that can be true was heard */
	PLUS_APART,      /* the mean model loses much more than sites' own */
	PLUS_WAITS,      /* until trials at the tightest theta say whether it still does */
	PLUS_DOUBTS,     /* it loses more even where sites talk at each step; waits until that is certain, or chance */
	PLUS_NORM,       /* no theta will mend it; or, without statistics, it is no matter of theta */
};

/* Others read. */
struct plus {
	enum plus_phase phase;
	unsigned passed;  /* PLUS_MEASURES: exchanges that were not counted, */
	unsigned counted; /* and that were */
	unsigned target;  /* index that the pull allows */
	unsigned back;    /* index that a probe came from */
	unsigned blind;   /* windows in a row that nothing was heard in which can be true */
	bool settled;     /* has stayed, once */
	struct plus_past past;
	struct plus_reach reach;
	struct plus_watch watch;
	struct plus_probe probe;
	struct plus_budget budget;
	struct plus_guard guard;
};

/* What plus_next() says beside the index. */
struct plus_verdict {
	enum plus_cause cause;
	enum plus_series drifts; /* of PLUS_DRIFTED: which */
	double r, pull;
	double beyond;       /* as in struct plus_guard; of PLUS_NORM that where sites talk at each step */
	double gain, radius; /* of probes beyond the usual; NaN, infinite: not known */
	double extra;        /* as in struct plus_probe */
	bool enough;         /* it stays, and no looser theta is cheaper: see plus_reach.h */
	bool all;            /* it stays, and has sent no less than BSP does, but for PLUS_NEAR */
	uint32_t tries;      /* samples that a site may try the mean model on now, as the window has ended; 0: none */
};

/* r of exchanges whose sums are these, `heard` being ||S||^2 (plus_reach.h). NaN: they cannot be true: a mean is no
 * longer than what it is of, but for the rounding of floats. */
double plus_alignment(double said, double heard);

void plus_init(struct plus *plus);

/* Steps of the window that begins: a period, or less while it measures. */
uint32_t plus_span(const struct plus *plus, uint32_t period);

/*
 * A window at theta `index`, of `count`, is over: returns the index that is next. Where what it heard cannot be true
 * (numbers that are not finite, or a mean that is longer than those it is of) theta stays, and is the tightest after
 * `patience` such windows in a row. Sums that are too large make theta tighter, not looser.
 */
unsigned plus_next(struct plus *plus, const struct plus_config *config, const struct plus_window *window,
	unsigned index, unsigned count, unsigned patience, struct plus_verdict *verdict);

#endif
