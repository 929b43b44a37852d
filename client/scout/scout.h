/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SkewScout's controller (Hsieh et al., ICML'20, section 5): which theta sites with skewed data talk with. It watches
 * what talking costs, and what it costs not to: the accuracy that a site's model loses on another site's data.
 *
 *      every config.period steps (scout_span()), at an exchange, a window:
 *          scout_host(scout, site)            the site whose data this site's model is tried on: it travels there
 *          ... each site tries its model at home and away, on samples of training data: the one of midway.h, or AL
 *          says nothing of theta ...
 *          scout_observe(scout, reports, sites, &decision)
 *          site_set_theta(site, decision.theta) at all sites
 *
 * It is a state machine that each site has one of. All are given the same reports in the same order (they come summed,
 * in slots of a key, by the exchange), so all decide the same, bit by bit, and nobody coordinates. All chance comes of
 * config.seed. Pure arithmetic: no I/O, clock, thread or memory of its own; a scout belongs to one thread at a time,
 * and nothing here blocks.
 *
 * Thetas stand in a grid, the tightest first: the one that talks most, and loses least. After a window at theta:
 *
 *      AL     accuracy at home less accuracy away, the mean of what is believed (trust.h), of models that sites had
 *             in the middle of the interval between two exchanges: see midway.h
 *      C      what sites have spent in the window on talking for each step, the mean of those that report:
 *             bytes, or what they cost in seconds or money (price.h), in their exchanges and in those of sites within
 *             them
 *      CM     the same of one model in one exchange; of bytes model_bytes
 *      cost   lambda_loss max(0, AL - sigma) + lambda_bytes C / CM
 *
 * The latest cost of each theta is remembered; for config.memory windows, where data drift: then it is tried anew.
 * Policies look at it and at those of the thetas beside it:
 *
 *      SCOUT_HILL        where AL is above sigma, and what the tighter one beside costs is not known, that is tried;
 *                        the looser one where AL is not, or the tighter one is dearer: the other could be no cheaper.
 *                        When nothing is to be tried, the cheapest of the three, of equals the one it is at
 *      SCOUT_STOCHASTIC  one beside is drawn; it moves there where that is not known, else with the probability
 *                        1 / (1 + exp((its cost - the cost here) / temperature))
 *      SCOUT_ANNEALING   one beside is drawn; it moves there where that is not known or cheaper, else with the
 *                        probability exp((the cost here - its cost) / T), T = temperature cooling^window
 *      SCOUT_REPLAY      window i has theta schedule[i], the last one from the schedule's end on: a recorded run
 *      SCOUT_FIXED       the theta that it begins with; no model needs to travel
 *      SCOUT_PLUS        does without models that travel, and without that cost: see plus.h. It wants scout_hear()
 * after each exchange, and takes from reports what it has use for: how the mean model does (mean.h), where it asks
 *
 * Reports are not believed when they cannot be true (accuracies outside 0 .. 1, or NaN; no samples: so does a site say
 * that it did not report). When fewer than half of the sites with data are left, or nobody's model gets anything right
 * (accuracies are not told), a window says nothing: theta is the loosest one that has held sigma in a window, after
 * config.patience such windows in a row the tightest, until one says something again; what was remembered stays. The
 * reason names the sites whose reports are amiss.
 */
#ifndef PHUB_CLIENT_SCOUT_SCOUT_H
#define PHUB_CLIENT_SCOUT_SCOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/scout/plus.h"
#include "client/scout/price.h"
#include "client/scout/trust.h"
#include "phub/base/err.h"

enum scout_policy {
	SCOUT_FIXED = 0,
	SCOUT_REPLAY = 1,
	SCOUT_HILL = 2,
	SCOUT_STOCHASTIC = 3,
	SCOUT_ANNEALING = 4,
	SCOUT_PLUS = 5,
};

#define SCOUT_POLICY_COUNT 6
#define SCOUT_THETAS_MAX   PLUS_THETAS_MAX
#define SCOUT_SCHEDULE_MAX 1024u
#define SCOUT_REASON_BYTES 240u

struct scout_config {
	enum scout_policy policy;
	double thetas[SCOUT_THETAS_MAX];     /* all rise, or all fall */
	unsigned theta_count;                /* 1 .. SCOUT_THETAS_MAX */
	unsigned first;                      /* the one that it begins with */
	double schedule[SCOUT_SCHEDULE_MAX]; /* SCOUT_REPLAY: any thetas */
	unsigned schedule_count;
	bool falls;           /* the tightest theta is the largest, as of DGC */
	uint32_t period;      /* steps in a window, above 0 */
	uint64_t model_bytes; /* of one model, above 0 */
	double lambda_loss;   /* >= 0 */
	double lambda_bytes;  /* >= 0 */
	double sigma;         /* loss that is borne, 0 .. 1 */
	double temperature;   /* above 0; annealing: of the first window */
	double cooling;       /* 0 < cooling <= 1 */
	uint32_t memory;      /* windows that a cost is known for; 0: for ever, as in the paper */
	unsigned patience;    /* windows that say nothing, until theta is the tightest; above 0 */
	uint64_t seed;
	double trim; /* of AL, and of the losses that sites report, 0 to below .5: see trust_mean(); 0: the paper's mean
		      */
	struct plus_config plus; /* SCOUT_PLUS */
	struct price price;
};

enum scout_action {
	SCOUT_STAYS = 0,
	SCOUT_TIGHTENS = 1,
	SCOUT_LOOSENS = 2,
	SCOUT_FALLS_BACK = 3, /* too few reports: the loosest theta that was safe, or the tightest */
	SCOUT_CANNOT = 4,     /* no theta will mend what it sees; theta is as it would be without */
};

struct scout_decision {
	uint64_t window; /* that was observed, from 0 on */
	double theta;    /* from now on */
	unsigned index;  /* in the grid; SCOUT_REPLAY: in the schedule */
	enum scout_action action;
	unsigned believed; /* pairs of accuracies; SCOUT_PLUS: reports that say how sites trained, or how the mean model
			      does */
	double loss;       /* AL; NaN: it is not known */
	double bytes;      /* that sites have sent for each step, the mean of sites, without those within */
	double spent;      /* C */
	double cost;       /* of the theta that it was at; NaN likewise */
	/* Half of AL's interval, of 95 %, by the samples of the reports, as trust_weigh() has it: of 3 samples it is
	 * wide, of models that are one it is 0. SCOUT_PLUS: of `gain`. Infinite: not known. */
	double radius;
	double r;                /* how sites have aligned, see plus_reach.h; NaN: not known */
	struct plus_window seen; /* what was heard, and means of what sites said of losses */
	/* SCOUT_PLUS: */
	double pull;  /* NaN: not known */
	double gain;  /* loss that talking more would save, as far as probes say; NaN: not known */
	double extra; /* what the last probe has cost beyond the window before it, in the unit of costs; NaN likewise */
	uint32_t tries; /* samples that each site may try the mean model on now, as the window has ended */
	char reason[SCOUT_REASON_BYTES];
};

/* Others read; only the functions below write. */
struct scout {
	struct scout_config config;
	uint64_t window;                  /* that is next */
	unsigned index;                   /* in the grid */
	unsigned silent;                  /* windows in a row that said nothing */
	bool held[SCOUT_THETAS_MAX];      /* sigma, when it was last tried */
	uint64_t tried[SCOUT_THETAS_MAX]; /* how many windows there were when it was tried last; 0: it was not */
	double cost[SCOUT_THETAS_MAX];    /* then */
	uint64_t random;
	uint64_t bytes;         /* in exchanges, of all sites, so far; */
	uint64_t bytes_travel;  /* and of models that travelled */
	struct plus_window now; /* what was heard since the last window */
	/* SCOUT_PLUS: */
	struct plus plus;
	uint32_t tries; /* as decision.tries */
};

/* The paper's own: every 500 steps, lambda_loss 50, lambda_bytes 1, sigma 0.05; hill climbing. Without thetas. */
void scout_defaults(struct scout_config *config);

/* 0; -EINVAL with the reason in `e`: a value outside its limits above. */
int scout_init(struct scout *scout, const struct scout_config *config, struct err *e);

double scout_theta(const struct scout *scout);

/*
 * Where does the model of `site`, of `sites` (2 or more), travel in this window? Never to itself; all travel by the
 * same distance, which chance draws for each window, so that each site has one guest.
 */
unsigned scout_host(const struct scout *scout, unsigned site, unsigned sites);

/*
 * SCOUT_PLUS: an exchange is over, of which all know these sums over all tensors that are trained, in float64 and with
 * the same bits: `said`, share_k ||d_k||^2 of all sites, with d_k what site k has said over its share; `heard`, the
 * square of the sum's norm; `squares`, share_k^2 of all sites. `rate` is that of learning. What cannot be true is heard
 * as that. Other policies tell of it in `seen` alone.
 */
void scout_hear(struct scout *scout, double said, double heard, double squares, double rate);
/* As many at once: `said` and `heard` are sums over them. */
void scout_hear_all(struct scout *scout, unsigned exchanges, double said, double heard, double squares, double rate);

/* Steps that the window which begins has, until the first exchange at or after its end: a period, or of SCOUT_PLUS
 * fewer while it measures. Who counts a period each time has one that measures for longer. */
uint32_t scout_span(const struct scout *scout);

/* A window is over: reports[site] of all `sites`, of which each model but those of silent sites has travelled. 0; or
 * -EINVAL: no sites, or more than SCOUT_SITES_MAX, and nothing has changed. */
int scout_observe(
	struct scout *scout, const struct scout_report *reports, unsigned sites, struct scout_decision *decision);

/* CRC32C of what decisions hang on: scouts of one training have the same. */
uint32_t scout_fingerprint(const struct scout_config *config);

/* What a scout is, for a checkpoint or a site that comes: little-endian, with a version and a CRC32C. */
enum {
	SCOUT_SAVED_HEAD = 7,  /* the version, and where the search is */
	SCOUT_SAVED_THETA = 2, /* of each of the grid: when it was tried, and what it cost */
	SCOUT_SAVED_PLUS = 62, /* struct plus */
	SCOUT_SAVED_NOW = 6,   /* what the window has shown so far */
	SCOUT_SAVED_CHECK = 1, /* the CRC */
	SCOUT_SAVED_WORDS = SCOUT_SAVED_HEAD + SCOUT_SAVED_THETA * SCOUT_THETAS_MAX + SCOUT_SAVED_PLUS +
			    SCOUT_SAVED_NOW + SCOUT_SAVED_CHECK,
	SCOUT_SAVED_BYTES = 8 * SCOUT_SAVED_WORDS
};

void scout_save(const struct scout *scout, uint8_t out[SCOUT_SAVED_BYTES]);

/* Into one that was made with the same configuration. 0; -EBADMSG (not whole) or -EINVAL (of another configuration),
 * with the reason in `e`, and it is as it was. */
int scout_load(struct scout *scout, const uint8_t *in, size_t bytes, struct err *e);

/* "fixed", "replay", "hill", "stochastic", "annealing", "scout+"; "stays", "tightens", "loosens", "falls back",
 * "cannot"; "invalid". */
const char *scout_policy_name(enum scout_policy policy);
const char *scout_action_name(enum scout_action action);

#endif
