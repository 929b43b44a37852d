/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy scout+: which theta is next, by what exchanges show for nothing, and by probes that are rare. scout.c
 * calls it with each window. Pure arithmetic, the same bits on each machine; no memory of its own.
 *
 * Pull. With d_k what site k says over its share and S = sum share_k d_k, r = ||S||^2 / sum share_k ||d_k||^2 over all
 * tensors. Where sites talk at each step, d_k is a gradient: the common one (soon small) plus the noise of its batch,
 * of square n, plus the pull of its own data, of square s. With K sites of one weight r is then 1 / (K (1 + s/n)), so
 *
 *      pull = s / n = 1 / (K r) - 1
 *
 * is 0 for sites with one distribution, however many they are, and rises with skew; in the course of a run it falls by
 * about half. The grid begins with the theta at which sites say all at each step: local SGD's 1, Gaia's 0. What talking
 * rarely costs is that models drift along s, where the noise of the mean, n / K, would have moved them anyway: so theta
 * may be as loose as
 *
 *      need(theta) <= ease / ((pull + own)^power sqrt(K))
 *
 * with need() rising with looseness, and `own`, what going alone costs sites that are alike, in units of pull; these
 * and `power` of each algorithm (plus_needs()). `ease` is 1 until probes correct it.
 *
 * Course. It begins at the tightest theta, and measures the pull there (MEASURES), in windows of a few steps
 * (plus_span()), for that costs what BSP does: the first PLUS_PASSES exchanges are not counted, as momentum and models
 * are of another theta before, and the gradients of a model that knows nothing say little; the next `settle` are. Then
 * it loosens as far as the pull allows, in each window by half of the thetas that are left (LOOSENS), and stays
 * (STAYS). There, when models have had two windows to settle, three series are watched by Page and Hinkley's test:
 * log r, the log of what sites move in an exchange, and that of the mean model's loss. When r has left its level, or
 * one of the others has risen from it (they fall as training goes on), data have drifted: theta is the tightest at
 * once, and it measures anew. So it does when sites are others: r is by how many they are, and who comes or is lost
 * takes data along that nobody has measured. A rate of learning that changes is no drift: what sites move is taken by
 * it, and series begin anew where it is half or twice what it was. But where models drift by what they step
 * (`by_rate`), they drift less by a lower rate, and theta may be looser by the root of how far it has fallen since the
 * pull was measured.
 *
 * Probes. While it stays it goes tight for a window now and then (PROBES): the pull is measured again, and the loss of
 * the mean model before and after, on the same samples, is beside that of the windows at theta: what all sites would
 * gain by talking more. The means of both have intervals that may be looked at any time (sequence.h). Above what that
 * is to be worth for sure: ease halves, and theta tightens. Below it for sure: ease grows by a quarter. It is to be
 * worth `sigma`; or, where a unit of loss has a `worth` in the unit of costs, what it costs: the gain times the worth
 * is beside what the probe's window has cost beyond the one before it. Probes are paid out of a budget of bytes,
 * 2 % of the bytes that were sent since it first settled, before which there are none; samples that models are tried on
 * are at most 3 % of the computing: where a window's part of that is not enough for a trial, it saves for two, before a
 * window and after it, on the same samples. Without losses in the reports, and without probes, theta
 * follows the pull alone.
 *
 * What a probe is compared with is not what it would have been. A window at theta lasts until the first exchange after
 * a period, theta steps or more, and lowers the loss for longer: so falls are taken by the samples that were trained on
 * in the window, and told for as many as the probe had. What is left says "talking wastes" too often, and rarely more:
 * a probe is one window in about 50 theta, and those at theta are of all the time since the last verdict, in whose
 * beginning the loss fell faster; and what talking for one window leaves behind for those after it is not counted. To
 * pair each probe with the windows just before and after it would end the first, and take twice as many probes until
 * something is certain, where a run of thousands of steps has hardly one; the second no window shows.
 *
 * Cost. The pull says how loose theta may be; looser is not always cheaper. Some of what a window costs is the same
 * whatever theta (`floor`): in seconds the latency of Gaia's exchanges, one at each step, and in seconds or money all
 * that sites within spend. Where a theta costs no more than PLUS_NEAR of that beyond it, none that is looser can be
 * cheaper by more, and would only lose accuracy: so of the thetas that are allowed it is the tightest of these. Of
 * local SGD it is known at once what each costs (`says`); of Gaia a theta must be tried, so with a floor it loosens by
 * one theta in a window, and by one more where what was kept back has filled up, and is no longer so cheap. A floor of
 * 0, as of bytes alone, changes nothing.
 *
 * A guard stands beside all that: where sites' own losses (train) are small and the mean model's, tried on the same
 * data, are not (beyond `guard`, and twice as large, in two trials in a row), models have drifted apart: ease halves,
 * it goes tight until trials there say that the mean model is sound, and measures anew. When even the tightest theta
 * does not help, models as they are evaluated are not those that were trained: batch normalization, whose running
 * statistics are those of no site. It says so, and what would mend it. Talking more makes that worse, not better
 * (plus.c), so theta is what it would be without, until a trial at the tightest says that the mean model is sound
 * again: no more than half as far beyond. What it looks for shows on few samples: so are the first two trials (PLUS_FEW
 * each), which come the sooner for it, and those where the last one was beyond half of `guard`.
 *
 * The mean of few sites loses less, and for good. So trials where sites talk at each step, beside what sites lost in
 * the window before that on their own, are evidence that adds up (sequence.h): each counts by what the mean model loses
 * beyond a tenth of `guard` and what few samples may be off by, as all trials are on the same ones (PLUS_OFF), in units
 * of what chance does (PLUS_CHANCE), both by the root of how many samples all sites have tried. When after two trials
 * or more the odds are a quarter, it is in doubt, and stays where sites talk at each step, for six windows at most,
 * until they are less, or 2 / alpha: that is certain, and told as above, until they are less than a quarter. Of `alpha`
 * the other half is for the samples. What loses less than a tenth of `guard` it never tells. Of a model all of which is
 * trained (`statistics` false) that mean is the sites' own model where they talk at each step: there is nothing to add
 * up, no doubt, and what loses more even there, beyond `guard`, is tried on other data, or in another way, than
 * trained.
 */
#ifndef PHUB_CLIENT_SCOUT_PLUS_H
#define PHUB_CLIENT_SCOUT_PLUS_H

#include <stdbool.h>
#include <stdint.h>

#include "client/scout/sequence.h"
#include "client/scout/site.h"

#define PLUS_THETAS_MAX 64u
#define PLUS_PASSES     40u
#define PLUS_FEW        40u
#define PLUS_NEAR       0.03
#define PLUS_OFF        3.0 /* in losses of a sample, as its deviation is; see plus.c */
#define PLUS_CHANCE     1.5

struct plus_config {
	double need[PLUS_THETAS_MAX]; /* by theta, see above: 0 for the first, and rising; plus_needs() */
	double own;                   /* see above, 0 or more; plus_needs() */
	double slack_moves;           /* as slack, of how far sites move; plus_needs() */
	unsigned power;               /* 1 or 2, see above; plus_needs() */
	bool by_rate;                 /* see above; plus_needs() */
	unsigned settle;              /* exchanges that a pull is measured in, above 0 */
	/* What a theta costs beyond the floor, beside the first: 1 for that; 0: it is not known until it is tried;
	 * plus_needs() */
	double says[PLUS_THETAS_MAX];
	bool each_step;      /* sites exchange at each step, whatever theta; plus_needs() */
	double sigma;        /* loss, in the unit of the reports, that talking more may be worth; above 0 */
	double worth;        /* of a unit of loss, in that of costs; 0: sigma holds, else it is not looked at */
	double alpha;        /* of the intervals, 0 .. 1 */
	double slack, bound; /* of the watches' other series, and of all, in natural logarithms; above 0 */
	double bytes_part;   /* of probes, 0 .. 1 */
	double work_part;    /* of computing, likewise */
	uint32_t tries;      /* samples that a site tries its models on in a window, when there is work left */
	double guard;        /* loss of the mean model beyond the sites' own that is no skew's; above 0 */
	bool statistics;     /* the model has what is not trained, or it is not known */
};

/* What a window showed. NaN: it is not known. */
struct plus_window {
	unsigned exchanges;
	double said, heard; /* sums over exchanges, see above: sum share_k ||d_k||^2, and ||S||^2 */
	double sites;       /* 1 / sum share_k^2: how many they are, counted by their weight; 1 or more */
	double rate;        /* of learning, at the end */
	double bytes;       /* that a site has sent, the mean */
	double bytes_bsp;   /* that it would have sent in as many steps of bsp */
	double spent;       /* what talking for a period of steps has cost a site, the mean, in the unit of costs */
	double floor;       /* of it, what is the same whatever theta; 0: nothing, or it is not to be looked at */
	double train;       /* loss of sites' own models on their batches, the mean */
	/* Loss of the mean model on the same samples, as the window before this one began, and as it ended: */
	double before, after;
	double trained, tried; /* samples of a site, the mean of those that have data and report */
};

enum plus_phase { PLUS_MEASURES = 0, PLUS_LOOSENS = 1, PLUS_STAYS = 2, PLUS_PROBES = 3 };

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
	PLUS_NORM,       /* see above: no theta will mend it; or, without statistics, it is no matter of theta */
};

/* What is watched, see above. */
enum plus_series { PLUS_NONE = 0, PLUS_ALIGNMENT, PLUS_MOVES, PLUS_LOSS };

/* What the guard makes of the mean model. */
enum plus_mean { PLUS_SOUND = 0, PLUS_SUSPECT = 1, PLUS_HOPELESS = 2, PLUS_DOUBTFUL = 3 };

/* Others read. */
struct plus {
	enum plus_phase phase;
	unsigned passed;      /* MEASURES: exchanges that were not counted, */
	unsigned counted;     /* and that were */
	unsigned measured;    /* pulls that the mean is of */
	unsigned target;      /* index that the pull allows */
	unsigned back;        /* index that a probe came from */
	unsigned blind;       /* windows in a row */
	unsigned calm;        /* windows that are not watched */
	enum plus_phase last; /* of the window before: what losses tell of */
	unsigned apart;       /* tries in a row that the guard is against */
	unsigned was;         /* index of the window before, at whose end models were tried */
	uint32_t asked;       /* samples, for that, then; 0: none, */
	uint32_t before;      /* and at the end of the one before it */
	enum plus_mean mean;
	double beyond; /* loss of the mean model beyond sites' own, when it was tried last; NaN: it was not */
	double train;  /* sites' own, in the window before; NaN: it is not known */
	double work;   /* samples that a site trained on in the last window that tells; 0: none did */
	struct evidence apart_tight; /* of trials where sites talk at each step; */
	double beyond_tight;         /* as `beyond`, of the last of them; NaN: there was none; */
	double tried_tight;          /* and its samples */
	unsigned doubted;            /* windows in doubt, since it was not */
	bool settled;                /* has been, once */
	double pull;                 /* NaN: not measured */
	double sites;                /* of which it was */
	double ease;
	double rate;    /* that the series began with */
	double rate_at; /* at which the pull was measured last */
	struct watch alignment, moves, loss;
	/* What windows at theta, and those of probes, lowered the loss by, in each of `probed` samples; 1: by window.
	 */
	struct sequence usual, probes;
	double probed;             /* samples of the last probe */
	double usually;            /* spent in the window before the last probe; NaN: there was none; */
	double extra;              /* and by that beyond it */
	unsigned enough;           /* index beyond which no theta is cheaper; PLUS_THETAS_MAX: it is not known */
	bool slowly;               /* it loosens by one theta in this window */
	double bytes, bytes_probe; /* since it first settled */
	double trained, tried;
	double each;     /* samples of the last trial, where they were more than was asked for; 0: they were not */
	uint32_t second; /* of the trial that is next, as it belongs to the last one; 0: none does */
};

/* What plus_next() says beside the index. */
struct plus_verdict {
	enum plus_cause cause;
	enum plus_series drifts; /* of PLUS_DRIFTED: which */
	double r, pull;
	double beyond;       /* as in struct plus; of PLUS_NORM that where sites talk at each step */
	double gain, radius; /* of probes beyond the usual; NaN, infinite: not known */
	double extra;        /* as in struct plus */
	bool enough;         /* it stays, and no looser theta is cheaper: see above */
	bool all;            /* it stays, and has sent no less than BSP does, but for PLUS_NEAR */
	uint32_t tries;      /* samples that a site may try the mean model on now, as the window has ended; 0: none */
};

/* r of exchanges whose sums are these, `heard` being ||S||^2. NaN: they cannot be true: a mean is no longer than what
 * it is of, but for the rounding of floats. */
double plus_alignment(double said, double heard);

/* What was measured, and found on validation data, as plus.c has it; the grid's part is plus_needs()'s to fill in. */
void plus_defaults(struct plus_config *config);

/*
 * config->need, ->own, ->power, ->says, ->each_step and ->by_rate for a grid of an algorithm's thetas, as was measured,
 * see plus.c. BSP: theta 1 alone, which needs nothing. 0; -EINVAL: the grid does not begin with the theta that says all
 * at each step; -ENOTSUP: of DGC nothing was measured, and the caller may fill them by measurements.
 */
int plus_needs(struct plus_config *config, enum site_algorithm algorithm, const double *thetas, unsigned count);

/* NULL, or which of the numbers is outside its limits, and these. */
const char *plus_check(const struct plus_config *config, unsigned count);

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
