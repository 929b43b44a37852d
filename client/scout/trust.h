/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whom a scout believes: what the reports of a window say of accuracies together, and which site has said what is
 * amiss. Pure arithmetic, the same bits on each machine; no memory of its own; nothing here blocks.
 *
 * Accuracies come in pairs, whose difference is what was lost. The paper's pair is of one model: at home, which its own
 * site says, and away, which its host does. So a site that says nothing, or lies, spoils two: that of its model, and
 * that of its guest's. Where hosts are known there is another, with the same mean where all is known: of one site's
 * data, its own model's accuracy and its guest's, which are one site's word, on the same samples. The paper's pairs are
 * taken, but where pairs by data are more: then one bad site costs one.
 *
 * A pair is believed when both are within 0 .. 1, on one sample or more, and the model is fit to be judged. With fewer
 * than half as many as there are sites with data, nothing is. It counts as one however many samples it is of, as in the
 * paper, and of however few classes: a site of one class is what skew is. That few samples say little is in `radius`.
 */
#ifndef PHUB_CLIENT_SCOUT_TRUST_H
#define PHUB_CLIENT_SCOUT_TRUST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SCOUT_SITES_MAX 4096u

/* Why a site's model is not judged, whatever is said of it at home or away. */
enum scout_unfit {
	SCOUT_FIT = 0,
	SCOUT_STRANGE = 1, /* it came in this window: its model is the others' */
	SCOUT_BROKEN = 2,  /* it has, or has said in the window, what is no finite number, and not by others */
	SCOUT_IDLE = 3,    /* it has no data, and is not missed */
	SCOUT_UNHEARD = 4, /* it has not reported, as who observes knows, and nobody says of himself */
};

/* What one site says of a window. */
struct scout_report {
	double home,
		away; /* accuracies of its model, 0 .. 1: on its own data, and where it travelled to; NaN: unknown */
	uint64_t samples; /* away; 0: nothing is said of that, nor at home by an accuracy of 0 */
	bool alike; /* its model is, bit for bit, that of the site where it travelled to: the host's word, as `away` */
	uint64_t bytes;          /* that it has sent in exchanges of the window */
	uint64_t within;         /* likewise, of the site within it, over another class of links */
	double exchanges;        /* in the window, for costs in seconds... */
	double exchanges_within; /* ...and of the site within */
	/* Losses are means over samples, in nats or any unit: */
	uint64_t trained; /* samples in the window; 0: it says nothing of `train` */
	double train;     /* of its own model on them, as it was trained */
	/* SCOUT_PLUS: */
	uint64_t tried; /* samples of the same draw each time; 0: it says nothing of these: */
	/* Of the mean model, as the window before this one began, and as it ended: just after its last exchange. A
	 * report goes with an exchange, so it tells of what was before that. */
	double before, after;
	unsigned unfit; /* enum scout_unfit */
	/* Not the site's word, but of who observes: */
	unsigned called; /* 1 + what reasons call it: its rank; 0: its place among the reports */
	unsigned host;   /* 1 + the place of the site that tried its model; 0: not known */
};

struct trust {
	unsigned asked;    /* sites that have data */
	unsigned believed; /* pairs */
	bool by_data;      /* they are */
	bool blank;        /* and in none of them anything is right: accuracies are not told */
	double loss;       /* of the pairs, trust_mean(); NaN: they are too few, or blank */
	double radius;     /* half of the interval of 95 % of their plain mean, see below; infinite likewise */
};

/* The mean of these, of at most SCOUT_SITES_MAX. With a `trim` above 0 they are sorted, and it is that of what lies
 * between the trim count, rounded down, that are least, and as many that are most: so many may lie. */
double trust_mean(double *values, unsigned count, double trim);

/* Of at most SCOUT_SITES_MAX. `trim`, 0 to below .5, is that of trust_mean(), over pairs; above 0 they are by data
 * where those are as many, so that a site has one.
 *
 * The interval is that of two samples for each pair (Agresti and Caffo, 2000), as reports do not say which of the
 * samples are right: too wide where both are one, and models much alike. Of models that are one, and have as many
 * right, it is exact: nothing is left to chance. Pairs by model, when all are known, have the mean of those by data,
 * and so its interval. */
void trust_weigh(const struct scout_report *reports, unsigned sites, double trim, struct trust *trust);

/*
 * Appends to the text what is amiss, as far as there is room, else nothing: whose models are broken; who is known not
 * to have reported; and, where models travel, who says no accuracy, as at least half do, who has said one that cannot
 * be, and who stands out: of four pairs or more, one that is further from their median than .2, than six deviations of
 * it by its samples, and than six of the others' (1.48 times the median distance). Where none travel, as with scout+:
 * who, of sites of which at least half have tried the mean model, has not, or has a loss that is no number; and in the
 * same way, of losses, who stands out. That is whom to ask. Nothing is decided by it: one site may have the one data
 * set that is not like the others'.
 */
void trust_tell(const struct scout_report *reports, unsigned sites, bool travels, char *text, size_t room);

/* Likewise, where the mean model was to be tried: that no site says what it loses, or none a number. */
void trust_tell_untried(const struct scout_report *reports, unsigned sites, char *text, size_t room);

#endif
