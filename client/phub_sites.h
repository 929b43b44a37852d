/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sites with skewed data: the second part of libphub, which phub.h includes. What that says of results, errors, threads
 * and time limits holds here too.
 */
#ifndef PHUB_SITES_H
#define PHUB_SITES_H

#include "phub.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Sites (racks, hospitals, regions) train one model, each on data of its own that others never see, and pay for every
 * byte between them. A site takes its optimizer's steps by itself, and says to the others what its algorithm has it
 * say, how much of it theta decides; a scout may set theta by what talking costs, and what it costs not to (SkewScout:
 * Hsieh et al., ICML'20). Only models, gradients and aggregates leave a site.
 *
 *      phub_connect -> phub_site_open -> phub_site_tensor ... -> phub_site_start
 *           -> { phub_site_step } -> phub_site_finish -> phub_leave -> phub_site_close -> phub_close
 *
 * The job is the site's alone: in BSP, without quorum, of sums and no optimizer (but see PHUB_OUTER_BOX); its keys are
 * made here, and no other call on the phub_t begins rounds. All sites say the same of the algorithm and what it goes
 * by, of its tensors and which are trained, and of the scout (else phub_site_start() is -EBADMSG, and says of whom),
 * and take the same number of steps, at rates that nobody compares. So it is of momentum and weight_decay with LOCAL
 * and GAIA too: a mean of what several optimizers have moved is a step of none, and a scout takes it for skew. Each
 * one's own are samples, evaluate(), log, and what an algorithm does not look at. A site belongs to one thread at a
 * time; time limits, errors and phub_error() are as above.
 */
enum phub_site_algorithm {
	PHUB_SITE_BSP = 0,   /* the mean gradient, each step. Theta is 1 */
	PHUB_SITE_GAIA = 1,  /* what has changed a weight by more than its part theta (Hsieh et al., NSDI'17); >= 0 */
	PHUB_SITE_LOCAL = 2, /* the mean of weights, every theta steps (FedAvg, McMahan et al., 2017); whole, >= 1 */
	/* the part theta of each gradient that is largest (Lin et al., ICLR'18); 0 < theta <= 1. All sites have the
	 * same weights, whatever theta: so what models lose elsewhere says nothing of it */
	PHUB_SITE_DGC = 3,
};

/* Of PHUB_SITE_LOCAL: what becomes of the mean of what sites have moved, d: a step from the last common weights. */
enum phub_site_outer {
	PHUB_OUTER_AVERAGE = 0, /* d itself: FedAvg */
	/* The box's optimizer takes -d for a gradient: PHUB_NESTEROV with lr .7 and momentum .9 is DiLoCo (Douillard et
	 * al., 2023). The job has that optimizer, and PHUB_MEAN; sites count alike; all tensors are trained; no scout.
	 */
	PHUB_OUTER_BOX = 1,
	PHUB_OUTER_MOMENTUM = 2, /* FedAvgM (Hsu et al., 2019) */
	PHUB_OUTER_NESTEROV = 3, /* DiLoCo's step, at each site */
	PHUB_OUTER_ADAGRAD = 4,  /* FedAdagrad, FedAdam, FedYogi (Reddi et al., ICLR'21) */
	PHUB_OUTER_ADAM = 5,
	PHUB_OUTER_YOGI = 6,
};

enum phub_scout_policy {
	PHUB_SCOUT_FIXED = 0,  /* the theta to begin with: bit for bit as without a scout, and no model travels */
	PHUB_SCOUT_REPLAY = 1, /* a recorded schedule, a theta for each window */
	/* The next three go by what models lose elsewhere; over a grid of PHUB_SITE_DGC: -ENOTSUP */
	PHUB_SCOUT_HILL = 2,       /* hill climbing */
	PHUB_SCOUT_STOCHASTIC = 3, /* stochastic hill climbing */
	PHUB_SCOUT_ANNEALING = 4,  /* simulated annealing */
	/*
	 * scout+. No model travels: how far sites pull apart beyond the noise of their batches shows in the sums of
	 * exchanges, and says how loose theta may be. It begins at the tightest theta, whatever `first`; notices when
	 * data drift; is corrected by probes, of at most 2 % of the bytes and 3 % of the computing; and says when no
	 * theta will help. For BSP, GAIA and LOCAL. README has how it is made, and what it was measured to do.
	 */
	PHUB_SCOUT_PLUS = 5,
};

/* What a scout weighs talking in. */
enum phub_scout_unit {
	PHUB_SCOUT_BYTES = 0,
	/* latency an exchange, however little it says, and bytes / rate: so that Gaia's few bytes at each step are not
	 * as cheap as local SGD's, which are as many, and go at once */
	PHUB_SCOUT_SECONDS = 1,
	PHUB_SCOUT_MONEY = 2, /* bytes by their price */
};

/*
 * After a window at a theta its cost is lambda_loss max(0, AL - sigma) + lambda_bytes C / CM: AL is what accuracy
 * models lose on other sites' data, C what a site spends on exchanges a step, both means over sites, and CM what one
 * model in one exchange costs; in `unit`. With sites in sites C is the sum of what is spent on both classes of links.
 */
struct phub_scout_options {
	size_t size; /* set by phub_scout_options_init() */
	enum phub_scout_policy policy;
	const double *thetas; /* [theta_count] 1 to 64, rising, of DGC falling: the one that talks most first */
	unsigned theta_count;
	unsigned first;         /* index of the one to begin with */
	const double *schedule; /* [schedule_count] PHUB_SCOUT_REPLAY: 1 to 1024; the last one from its end on */
	unsigned schedule_count;
	uint32_t period;      /* steps in a window; 0: 500, of PHUB_SCOUT_PLUS 50 */
	uint64_t model_bytes; /* of one model; 0 in a site's options: its tensors' */
	double lambda_loss;   /* 50 */
	double lambda_bytes;  /* 1 */
	double sigma;         /* loss that is borne; 0.05 */
	double temperature;   /* of the last two policies; 1 */
	double cooling;       /* annealing: of a window; 0.9 */
	uint32_t memory;      /* windows that a cost is known for; 0: for ever */
	unsigned patience;    /* windows that say too little, until theta is the tightest; 3 */
	uint64_t seed;        /* all chance comes of it */
	/* PHUB_SCOUT_PLUS: */
	enum phub_site_algorithm algorithm; /* whose thetas they are; a site's options say it themselves; LOCAL */
	double gain; /* loss that talking more would have to save for theta to tighten, in the unit of reports; 0.02 */
	uint32_t tries; /* samples that evaluate() is asked for, of the first two trials at most 40; 200 */
	/* What a class of links costs: bytes a second, seconds an exchange, the price of 10^9 bytes; 0. SECONDS wants
	 * `rate`, MONEY `price`. The last three are of the links of sites within. PHUB_SCOUT_PLUS is no looser than
	 * where no theta is cheaper by 3 %, and weighs by `worth`. */
	enum phub_scout_unit unit; /* PHUB_SCOUT_BYTES */
	double rate, latency, price;
	double rate_within, latency_within, price_within;
	/* So many may lie: of AL's pairs, and of each loss that sites report, the part `trim` (rounded down to whole
	 * sites) that is most, and as much that is least, is left out of the mean. Honest skew at few sites is, too.
	 * From 0, the paper's mean, to below 0.5; 0 */
	double trim;
	double worth; /* PHUB_SCOUT_PLUS, not `gain`: of a unit of loss that a window saves, in `unit`; 0: by gain; 0 */
	/* PHUB_SCOUT_PLUS: the model has tensors that are not trained (running statistics), or it is not known: what
	 * the mean model loses beyond sites' own, even where they talk at each step, may be of these, and is evidence;
	 * true; of a site it is as its tensors say. */
	bool statistics;
	/* PHUB_SCOUT_PLUS: what was found on images of ten classes and small models (README), and may be another for
	 * yours: */
	double ease;     /* a factor to how loose theta may be: with 2 LOCAL's is twice as large; above 0; 1 */
	uint32_t passes; /* exchanges until how far sites pull apart is measured, in the next 20; with a rate of
			  * learning that warms up all that this takes; 40 */
	double guard;    /* loss of the mean model beyond sites' own, in the unit of reports, that skew alone does not
			  * make: beyond that models have drifted apart, or no theta helps; above 0; 0.5 */
	double drift;    /* how far r, what sites move or what the mean model loses leaves its level until data have
			  * drifted, in natural logarithms, summed over windows, less 0.1 in each; 0: never; 0.5 */
	double probes;   /* bytes that probes may cost, as a part of all since theta first settled, 0 to 1; 0.02 */
};

/*
 * What a site says of a window. Reports that cannot be true are not believed, and with fewer than half of them AL is
 * not known. `home` goes with `away` of the same model; or, where more is known so, with that of the guest that was
 * tried on the same data (phub_scout_host()), so that a site which cannot try models costs one of the two. Each counts
 * as one, of however few samples or classes: few samples show in decision.radius. decision.reason names whose reports
 * are amiss, and who of four or more stands out; a site without data is none of these, and not numbered among them.
 */
struct phub_scout_report {
	size_t size; /* sizeof(struct phub_scout_report) in each */
	/* Accuracies of its model, 0 .. 1: on its own data, and where it travelled to. NaN: not known, as where the
	 * model has weights that are no numbers. */
	double home, away;
	uint64_t samples; /* away; 0: not known, nor an accuracy of 0 at home */
	uint64_t bytes;   /* that it has said in the window */
	/* Losses are means over samples: */
	uint64_t trained; /* samples in the window; 0: it says nothing of `train` */
	double train;     /* of its own model on them, as it was trained */
	/* PHUB_SCOUT_PLUS, of the mean model, statistics too, as the window before this one began, and as it ended: */
	uint64_t tried; /* samples, as many always the same; 0: it says nothing of these: */
	double before, after;
	/* For costs: */
	uint64_t within;                    /* bytes, likewise, said by the site within */
	double exchanges, exchanges_within; /* in the window */
	bool alike; /* its model is bit for bit that of the site where it travelled to: nothing is left to chance */
};

enum phub_scout_action {
	PHUB_SCOUT_STAYS = 0,
	PHUB_SCOUT_TIGHTENS = 1,
	PHUB_SCOUT_LOOSENS = 2,
	PHUB_SCOUT_FALLS_BACK = 3, /* too few reports: the loosest theta that was safe, after `patience` the tightest */
	PHUB_SCOUT_CANNOT = 4,     /* no theta will mend what it sees: the reason says what might */
};

struct phub_scout_decision {
	size_t size;     /* the caller's sizeof */
	uint64_t window; /* that was observed, from 0 on */
	double theta;    /* from now on */
	unsigned index;  /* of it in the grid; PHUB_SCOUT_REPLAY: in the schedule */
	enum phub_scout_action action;
	unsigned believed; /* pairs of accuracies; PHUB_SCOUT_PLUS: reports */
	double loss;       /* AL; NaN: not known */
	double bytes;      /* that a site has said a step, the mean of sites */
	double cost;       /* of the theta that it was at; NaN likewise */
	char reason[240];
	double r; /* how sites have aligned: ||mean||^2 over the mean of ||d_k||^2 of what they said; NaN: not known */
	double pull;    /* PHUB_SCOUT_PLUS: how they pull apart beyond the noise of batches; NaN likewise */
	double gain;    /* PHUB_SCOUT_PLUS: loss that talking more would save, as far as probes say; NaN likewise */
	double radius;  /* half of the interval of 95 % of `gain`, or else of `loss`; infinite: not known */
	uint32_t tries; /* PHUB_SCOUT_PLUS: samples to try the mean model on now, at most; 0: none */
	double train;   /* loss of sites' own models on what they trained on, the mean of sites; NaN: not known */
	double spent;   /* C, in the scout's unit */
	double extra;   /* PHUB_SCOUT_PLUS: what the last probe cost beyond the window before it; NaN likewise */
};

typedef struct phub_scout phub_scout_t;

/* The paper's: hill climbing, and the numbers above. Without thetas. */
PHUB_API void phub_scout_options_init(struct phub_scout_options *options);

/*
 * A scout by itself, for those with a transport of their own: no connection, thread or clock. Each site has one, all
 * are given the same reports in the same order, and decide the same, bit by bit. One thread at a time. -EINVAL names a
 * value outside its limits. A window goes so; example_scout.c is a whole program:
 *
 *      { after each exchange: phub_scout_hear }
 *      phub_scout_host -> { each model is tried at home and there } -> phub_scout_observe -> phub_scout_decide
 *           -> phub_scout_apply -> phub_scout_theta
 */
PHUB_API int phub_scout_create(const struct phub_scout_options *options, phub_scout_t **out);
PHUB_API void phub_scout_destroy(phub_scout_t *scout);

/* In force; NaN for NULL. */
PHUB_API double phub_scout_theta(const phub_scout_t *scout);

/* To which site the model of `site`, of `sites` (2 or more), travels in this window: that of the middle of the
 * interval, as phub_site_step() has it. -EINVAL: no such site. */
PHUB_API int phub_scout_host(const phub_scout_t *scout, unsigned site, unsigned sites);

/*
 * After each exchange, for PHUB_SCOUT_PLUS and for decision.r, with d_k what site k said over its share: `said`, the
 * sum over sites of share_k ||d_k||^2, over all trained tensors, `heard`, ||sum share_k d_k||^2, and `squares`, the sum
 * of share_k^2; in float64, the same bits at all sites. `rate` is of learning. -EINVAL: NULL, or not 0 < squares <= 1.
 */
PHUB_API int phub_scout_hear(phub_scout_t *scout, double said, double heard, double squares, double rate);

/*
 * A window in three steps. observe: it is over, and reports[site] is what each said; again, before it is applied:
 * instead of the last. decide: what follows of it; nothing has changed yet. apply: what was decided is in force, and
 * the next window begins. -EINVAL: no sites, or more than 4096; -ENODATA: what comes before was not done.
 */
PHUB_API int phub_scout_observe(phub_scout_t *scout, const struct phub_scout_report *reports, unsigned sites);
PHUB_API int phub_scout_decide(phub_scout_t *scout, struct phub_scout_decision *decision);
PHUB_API int phub_scout_apply(phub_scout_t *scout);

/* What it is between two windows, for a checkpoint: returns how many bytes that is; out NULL: only that. -ENOSPC. */
PHUB_API int phub_scout_save(const phub_scout_t *scout, void *out, size_t bytes);
/* Into one with the same options. -EBADMSG: not whole; -EINVAL: of other options; and it is as it was. */
PHUB_API int phub_scout_load(phub_scout_t *scout, const void *in, size_t bytes);

/*
 * What is of fewer samples than this leaves no site: neither a loss nor an accuracy, which of one sample would be that
 * sample's. It counts as not known. Ten is about what health statistics ask of a count before they publish it, and a
 * mean over as many tells hardly more of a model than it does now. Of reports that callers make themselves
 * (phub_scout_observe()) nobody asks it.
 */
#define PHUB_SITE_SAMPLES_LEAST 10u

/* How a model did on samples of one site: aggregates alone. */
struct phub_score {
	uint64_t samples; /* at the call: as many are asked for, 0: as you like; then: how many they were */
	/* Of them; what PHUB_SCOUT_HILL, STOCHASTIC and ANNEALING go by, whatever is taken for correct, as within a
	 * tolerance: with none anywhere AL is not known. By losses alone PHUB_SCOUT_PLUS goes. */
	uint64_t correct;
	double loss; /* sum over them, nats */
};

/*
 * The caller's: tries a model, weights[t] for each tensor, on a sample of this site's training data. The sample follows
 * from `draw`: of one draw it is the same, so that models are compared on the same. It is called by phub_site_step()
 * and phub_site_wait(), in their thread. Anything but 0, or a loss that is not finite: the report of that model says
 * nothing; and so it says of fewer than PHUB_SITE_SAMPLES_LEAST samples, which phub_site_warning() tells of at this
 * site. It is not called with weights that are no finite numbers, of tensors that are trained or exchanged; whose
 * they were, of those that had none from others, stands in the reason.
 */
typedef int phub_evaluate(void *context, const float *const *weights, uint64_t draw, struct phub_score *score);

typedef struct phub_site phub_site_t;

/*
 * Sites in sites: links are fast inside of a rack, and slow between racks. So a process may have two sites of the same
 * weights, one `within` the other, each with a job, an algorithm, a theta and a scout of its own:
 *
 *      phub_connect (options.here) -> phub_site_open -> phub_site_tensor ... -> phub_site_start      within
 *      phub_connect -> phub_site_open (options.within) -> phub_site_start                            around it
 *           -> { phub_site_step of the one around } -> phub_site_finish of the one around
 *           -> phub_leave both -> phub_site_close, the one around first -> phub_close
 *
 * Ranks and world are each job's own. A step of the one around is a step of the one within, with its exchange, then,
 * where the theta of the one around asks for it, the exchange of that: it is a PHUB_SITE_LOCAL, and says how far the
 * weights have gone that the sites within have in common, which is all but what a site has moved by itself and not said
 * within yet. What comes of it replaces them, at both, and what the site has moved stays on top. So at each of the two
 * what was said plus what is still to be said is all updates. A box that goes up (its option `uplink`) sums what its
 * workers say, so that a rack's link carries it once.
 *
 * Its tensors are those of the one within; momentum and the like it has none of, and all racks have the same. Samples,
 * theta and flushes are each one's own, but the last step of phub_site_flush() says all that is left within, and
 * phub_site_loss() tells both. A loss ends the job within for all of its rack. The racks that are left go on where the
 * job around has PHUB_LOST_SHRINK; nobody comes to it who was not there as it began. When boxes are lost, one or all,
 * both jobs go on with all their racks when those are there again, where both have resume_ms and PHUB_LOST_FAIL:
 * phub_site_resume().
 */
struct phub_site_options {
	size_t size;                        /* set by phub_site_options_init() */
	enum phub_site_algorithm algorithm; /* PHUB_SITE_LOCAL */
	double theta;                       /* NaN: the paper's: 1, 0.1, 20, 0.001; with a scout that one's: NaN */
	double momentum;                    /* of the site's SGD, from 0 to below 1; 0.9 */
	double weight_decay;                /* 0 */
	double rate_first;                  /* GAIA: the learning rate that theta is for; theta falls with it; 0.1 */
	enum phub_site_outer outer;         /* LOCAL */
	double outer_rate, outer_beta1, outer_beta2, outer_tau; /* NaN: the paper's */
	double clip;                                            /* DGC: norm of a mean gradient at most; 0: any; 0 */
	uint32_t warmup;  /* DGC: steps in each of four stages of a looser theta; 0: none; 0 */
	uint64_t samples; /* of this site, at most 2^53; 0: it has none, and counts for nothing; 1 */
	bool weighted;    /* sites count by their samples; else all that have any are alike */
	const struct phub_scout_options *scout; /* NULL: theta stays */
	phub_evaluate *evaluate; /* NULL: this site's reports, and those of models that come here, say nothing */
	void *context;           /* evaluate()'s */
	/* The site of the lowest rank that has one writes the scout's decisions to this file, lines of JSON; without a
	 * scout a line at the start, and one at the end. NULL: PHUB_SCOUT_LOG, else it has none. It is begun anew with
	 * the run. When who writes it is lost or leaves, the lowest rank left that has one goes on, as a line tells, in
	 * that file, or, where it is not there, one of its own, FILE.siteRANK if FILE is another's (one of an older run
	 * becomes FILE.siteRANK.before); without shadows; not with PHUB_OUTER_BOX. If it cannot be written training
	 * goes on: phub_site_state.log_error. */
	const char *log;
	phub_site_t *within; /* NULL: none; see above */
	/* The class of link that it talks over: 1 to 16 of a-z and 0-9. It is named in the decision log, and "rack"
	 * has the environment's PHUB_SCOUT_RACK_THETA and so on instead of PHUB_SCOUT_THETA. NULL: none. */
	const char *link;
};

PHUB_API void phub_site_options_init(struct phub_site_options *options);

/*
 * A site on `p`, connected and without keys, which outlives it. -EINVAL names an option, of the site or of the job,
 * that cannot be, or a site within that has not started; -ENOTSUP: not with PHUB_OUTER_BOX, a policy that finds no
 * theta of this algorithm, or not with a site within: another algorithm, one more within that, jobs of which one may
 * resume and the other not, that resume without some, wait or let somebody in, or have no progress thread; -EBUSY: it
 * has keys, or was started, or another site is around the one within; errors of open(2): the log.
 */
PHUB_API int phub_site_open(phub_t *p, const struct phub_site_options *options, phub_site_t **out);

/*
 * Names the next tensor: `elements` weights, which are the caller's, stay where they are, and are written only by the
 * calls below. What is not `trained` has no gradients (running statistics, which the model writes):
 * PHUB_SITE_LOCAL averages it, with the others it stays at its site. Returns its index: 0, 1, ... Errors are
 * phub_key()'s; -EINVAL: there is a site within, whose tensors it has; -EBUSY: it comes after phub_site_start() or
 * phub_site_load(), also one that was refused.
 */
PHUB_API int phub_site_tensor(phub_site_t *site, const char *name, float *weights, uint32_t elements, bool trained);

/*
 * What nobody writes to, as weights that are frozen: `bytes` of any type, before phub_site_start(). It does not travel,
 * and is not read after this call. All sites have the same, in the same order, and who goes on from a saved state has
 * what it was saved with: names and checksums are compared, and phub_site_start() is -EBADMSG, and says of whom, or
 * phub_site_load() is. 0; -EINVAL, -EBUSY as phub_site_tensor().
 */
PHUB_API int phub_site_frozen(phub_site_t *site, const char *name, const void *values, uint64_t bytes);

/*
 * Collective: phub_start(), and then all begin alike: with rank 0's weights; where the job runs already, with the
 * others' weights, step number, theta and scout. -ETIMEDOUT: call again to go on waiting. -ESTALE: phub_site_resume(),
 * and what that completes has begun. -EINVAL: no tensors; or the site within was closed, which all calls but that of
 * close say then. -ENOTSUP: with a site within, in a job that runs.
 */
PHUB_API int phub_site_start(phub_site_t *site, int timeout_ms);

/*
 * A mini-batch: its mean gradient, gradients[t] for each trained tensor; NULL: this site had no samples. `rate` is the
 * same at all sites. Then, where theta asks for it, the exchange: 0 when it is over, or none was due. -ETIMEDOUT: the
 * step is made, and the exchange on its way: phub_site_wait() goes on waiting. -EBUSY: it still is on its way, or this
 * site is within another, which steps: nothing was done. -ESTALE: phub_site_resume(). The session's end otherwise:
 * weights are whole, and what was not said yet is still to be said, by nobody.
 *
 * With a scout a window ends with the first exchange that is due when its period is over (of PHUB_SCOUT_PLUS, while it
 * measures, 10 steps). Just before it each site's model travels to phub_scout_host(), and is tried there and at home,
 * on the sample that all have who are tried there; reports come with the exchange, and theta holds from its end on. Who
 * waits for others meanwhile waits for their evaluate(). With PHUB_SCOUT_PLUS the mean model is tried at home instead,
 * where there is time for that: after that exchange or, where the algorithm leaves what is not trained at its site,
 * after the next, in which sites show each other that (4 bytes an element); of it, too, the mean is tried.
 *
 * The model that travels is that of the middle of the interval which this exchange ends: as it was after theta / 2 of
 * its steps, rounded down. The site keeps a copy of it until then. With theta 1, and with BSP, GAIA and DGC, it is what
 * the exchange before has left. So where sites talk at each step all models are equal and lose nothing away from home;
 * those of GAIA differ by what was not significant, those of BSP and DGC, which sums alone move, not at all. The model
 * of who was not there then is tried as it is.
 *
 * A worker that is lost (options.lost) is out of the mean from the next exchange on; in the one it was lost in, its
 * part is missing. Where somebody comes while models travel they set out anew; of the model of who came in a window its
 * report says nothing.
 */
PHUB_API int phub_site_step(phub_site_t *site, const float *const *gradients, double rate, int timeout_ms);
PHUB_API int phub_site_wait(phub_site_t *site, int timeout_ms);

/*
 * Collective, at all sites after the same step: training ends with one model. Until then each has its own, which is up
 * to theta steps away from the others'. What is left to say is said now, whatever theta: LOCAL makes of the steps since
 * the last exchange what an exchange makes of them, the mean or the outer optimizer's step; GAIA and DGC say all that
 * was kept back; and of what is not trained all take the mean. When it is over the weights of all sites are the same,
 * to the bit. With a site within, so are those of all racks: call it on the one around.
 *
 * It costs an exchange, of GAIA also the weights of one site once more; and nothing of BSP where all is trained, and of
 * LOCAL just after an exchange. That is counted in phub_site_state and in the log's end. Training may go on after it.
 * Returns as phub_site_step(), and phub_site_wait() and phub_site_resume() go on with it. A site that is lost meanwhile
 * is as one that is lost in any exchange: the others have the same weights, and its part may be missing. -EBADMSG: a
 * site, which is named, made a step instead; then the weights differ. With PHUB_OUTER_BOX nobody hears of that: it ends
 * with the others' next exchange, and they go on.
 */
PHUB_API int phub_site_finish(phub_site_t *site, int timeout_ms);

/* What the mini-batch of the last or the next step lost as it was trained: `loss`, the sum over its `samples`. Without
 * it PHUB_SCOUT_PLUS tries no model, and does not see what no theta mends. A window of fewer samples than
 * PHUB_SITE_SAMPLES_LEAST says nothing of them, and the next one has them too. -EINVAL: NULL. */
PHUB_API int phub_site_loss(phub_site_t *site, double loss, uint64_t samples);

/*
 * What the mean model makes of data that the caller holds out and has tried it on, for the decision log, so at the site
 * that writes it; elsewhere it is nowhere seen. At any time until phub_site_close(): the latest stands in the log's
 * end, and in the next window's line if it is new there. `correct` UINT64_MAX, and a `loss` that is not finite: not
 * known. The run's seconds beside it, from phub_site_start() to the end of the last step, count no trial after that.
 * -EINVAL: NULL, no samples, or more correct than there are.
 */
PHUB_API int phub_site_score(phub_site_t *site, const struct phub_score *score);

/* After -ESTALE (phub_options.resume_ms): phub_resume(), and all go on from the weights of one that has been in the
 * most exchanges. What no exchange has taken is still to be said, once. -ETIMEDOUT: call again; 0 at once when nothing
 * was lost. A box of PHUB_OUTER_BOX goes on as phub_resume() says. With a site within, both jobs that were lost: calls
 * on the one around are -ESTALE where either is. */
PHUB_API int phub_site_resume(phub_site_t *site, int timeout_ms);

/*
 * A checkpoint, between two steps, also in the middle of an interval: all of the site that its weights do not tell,
 * which are the caller's to save beside it. That is its momentum, what it has not said yet, the last common weights,
 * the outer optimizer's state, where it is in the run and its window, theta, its scout, and what was counted. Returns
 * how many bytes that is; out NULL: only that. -ENOSPC: `bytes` are fewer; -EINVAL: phub_site_start() has not been
 * completed; -EBUSY, and the session's end, as phub_site_step().
 */
PHUB_API int64_t phub_site_save(phub_site_t *site, void *out, size_t bytes);

/*
 * Before phub_site_start(), after all tensors were named and have their weights of then. When all sites of a job that
 * begins have loaded what each had saved after the same step, they go on, bit for bit, as if nothing had been in
 * between (where sums have an order: two sites, or phub_options.reproducible): phub_site_start() then takes no weights
 * of rank 0, and the decision log goes on in its file, where a line says so. Samples are the options'; theta is as it
 * was. Who has loaded nothing while others have, as its file is lost, comes to them as to a job that runs. Who loads a
 * state and comes to one that does run has its weights, and what it had moved and not said on top, to be said; where
 * the others are still in the interval that its state is of, it makes the steps to their next exchange by itself.
 * phub_site_start() is -EBADMSG where sites have loaded states of different steps, or runs.
 *
 * With PHUB_OUTER_BOX the common weights and their optimizer's state are in the box, and its own checkpoints (phubd's
 * option checkpoint_targets) have them. If it goes on from one after as many exchanges as the sites had been in, so it
 * is bit for bit; else sites go on from the box's weights as phub_site_resume() has it, and where the box has none from
 * rank 0's common ones, with an optimizer that begins anew; phub_site_warning() tells so where exchanges are lost.
 * There all sites of a job that begins load what was saved after the same step, or none does, and their thetas are one:
 * else phub_site_start() is -EBADMSG, and says of whom. With a site within, each of the two is saved, and each loaded:
 * the one within, then its start, then the one around; and by all sites, or by none.
 *
 * -EBADMSG: not whole, of another version, or saved with other weights, frozen ones too; -EINVAL: of another rank,
 * number of sites, model, or other options, which the text names, NULL, or no tensors; and the site is as it was, but
 * that its tensors are named. -EBUSY: it was started; -ENOMEM.
 */
PHUB_API int phub_site_load(phub_site_t *site, const void *in, size_t bytes);

/* From the next exchange on: this site's samples. -EINVAL: above 2^53, as -1 is; -EBUSY as phub_site_step(). */
PHUB_API int phub_site_set_samples(phub_site_t *site, uint64_t samples);

/* From the next step on, at all sites after the same one. -EINVAL: not this algorithm's, or a scout sets it; -EBUSY. */
PHUB_API int phub_site_set_theta(phub_site_t *site, double theta);

/*
 * Before the last step of a site that leaves while others go on, to end them all there is phub_site_finish(): with that
 * step GAIA and DGC say all that they have kept back. LOCAL keeps nothing back when an exchange is due, and where none
 * is nobody would hear it: it does nothing there, and a site leaves after an exchange. -EBUSY as phub_site_step().
 */
PHUB_API int phub_site_flush(phub_site_t *site);

struct phub_site_state {
	size_t size;    /* the caller's sizeof */
	uint64_t steps; /* of the run: for who came later, the others' */
	uint64_t exchanges;
	double theta, share;   /* its part in the mean; all parts sum to 1 */
	unsigned sites;        /* in the last exchange */
	uint64_t values;       /* that it has said */
	uint64_t bytes;        /* of these, as the papers count: 4 a value, 8 an index */
	uint64_t bytes_travel; /* of its model, or of what is not trained of it, to be tried, likewise */
	uint64_t bytes_wire;   /* payload that it has pushed, of all kinds */
	uint64_t windows;      /* that a scout has decided on */
	uint64_t bytes_within; /* as `bytes` and `bytes_travel` together, by the site within */
	int log_error; /* of the first line of the decision log that was not written, nor any after it; 0: none */
	uint64_t broken_since; /* the step from which on its model is no numbers, as exchanges show; 0: it is */
};
PHUB_API int phub_site_state(phub_site_t *site, struct phub_site_state *state);

/* Ranks of those `sites`, in rising order, to ranks[0 .. count]. Returns how many they are; 0 before phub_site_start(),
 * and with PHUB_OUTER_BOX, where nobody knows. -EINVAL: NULL. */
PHUB_API int phub_site_ranks(phub_site_t *site, uint32_t *ranks, unsigned count);

/* The scout's last decision. -ENODATA: there is none yet. */
PHUB_API int phub_site_decision(phub_site_t *site, struct phub_scout_decision *decision);

/* How sites have aligned in the last window, r of decision.r for each tensor alone, to r[0 .. count]; NaN: not known.
 * Returns how many tensors there are. -ENODATA as above; -EINVAL: NULL. */
PHUB_API int phub_site_alignment(phub_site_t *site, double *r, unsigned count);

/*
 * What training goes on with and should be known, each once: a site, this one or another, says what is no number. All
 * that are in that exchange hear it by the end of the call that ends it. The text names rank, tensor, steps and what to
 * do: with PHUB_NAN_PASS it is in all weights from then on, and who has it of others is not named; with PHUB_NAN_ZERO
 * the others go on without it, and that site has no momentum there any more, or, if its weights are no numbers, begins
 * anew with the others' at one of the next exchanges; PHUB_NAN_FAIL ends the job instead. A site is named once in a
 * run. Likewise, at this site alone, that evaluate() has tried fewer than PHUB_SITE_SAMPLES_LEAST samples, and
 * that a box of PHUB_OUTER_BOX goes on from fewer exchanges than this site was in.
 * Where none has numbers left training does not come out of it, as the text says: calls go on to return 0, and
 * phub_site_state.broken_since tells. With a site within, it is also of that one's job. NULL: nothing new. Valid until
 * the next call on the site.
 */
PHUB_API const char *phub_site_warning(phub_site_t *site);

/* Frees it; NULL is allowed. With an exchange on its way it leaves the job first, unfinished. Before phub_close(), and
 * before the one within it. */
PHUB_API void phub_site_close(phub_site_t *site);

#ifdef __cplusplus
}
#endif

#endif
