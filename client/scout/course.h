/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The course of a site at a job: which round of its keys comes next, what goes into it, and what is made of its sum.
 *
 * All keys go in step: each round is one of every key, and all sites are in the same. So whoever comes to a job that
 * runs can take part in whatever round the others are at, by zeros, and learns from its sum what the next one is. A
 * round is of one of these kinds:
 *
 *      exchange    what each site says of each tensor
 *      travel      one site's model, zeros of the others: sites that are in the last exchange take turns
 *      hello       zeros: of who comes, or comes back, while the others are in a round of any kind
 *      sync        the common weights of one site, zeros of the others: after a round in which somebody said hello, and
 *                  at first; more rounds where there is more that all have in common (momentum, an outer state). Those
 *                  who said hello take it. They believe it by its check sum, and say hello again where it is wrong: so
 *                  whoever sends may die
 *
 * Beside the tensors the sum of each round brings what all say of themselves (slots.h). Everybody sees the same sums,
 * and what follows from them is the same at all. Where the box has the common weights (PHUB_OUTER_BOX), rounds are
 * exchanges, and who comes fetches the weights.
 *
 * Blocks where it says so; the site's thread.
 */
#ifndef PHUB_CLIENT_SCOUT_COURSE_H
#define PHUB_CLIENT_SCOUT_COURSE_H

#include <stdbool.h>
#include <stdint.h>

#include "client/phub.h"
#include "client/scout/census.h"
#include "client/scout/midway.h"
#include "client/scout/options.h"
#include "client/scout/scout.h"
#include "client/scout/sent.h"
#include "client/scout/shadow.h"
#include "client/scout/site.h"
#include "client/scout/slots.h"
#include "client/scout/unsound.h"
#include "phub/base/err.h"

enum course_kind {
	COURSE_REST = 0, /* none: the site trains by itself */
	COURSE_EXCHANGE,
	COURSE_TRAVEL,
	COURSE_HELLO,
	COURSE_SYNC,
	COURSE_FETCH, /* where the box has the weights */
};

/* What is tried at the end of a window. */
struct window {
	bool open;                 /* the exchange that is due ends one */
	bool strange;              /* this site came in it: its model is the others' */
	bool broken;               /* this site had or said what is no number, of its own; */
	bool infected;             /* others have said such, and it had none: what it has is theirs */
	bool tried;                /* models were, and reports are these: */
	struct midway midway;      /* the model that travels */
	struct scout_report home;  /* of this site's model; */
	struct scout_report guest; /* of the one that came here */
	bool hosts;                /* one did */
	uint32_t guest_rank;
	unsigned travelled, travels;          /* rounds */
	uint64_t began;                       /* the step that the window began after */
	uint64_t told, told_within;           /* bytes, by the windows before; */
	uint64_t exchanges, exchanges_within; /* likewise */
	double sent, sent_within;             /* bytes in it, as it has landed, mean of sites */
	double batches;                       /* loss of mini-batches in the window, summed over */
	uint64_t trained;                     /* samples; */
	double said_batches;                  /* of these, by the report, which has not landed yet */
	uint64_t said_trained;
	uint64_t few;       /* samples that evaluate() has tried where they were too few; 0: they never were, */
	char few_told[400]; /* and it was told so; "": it was not */
	/* SCOUT_PLUS: */
	double levels[2];       /* of the mean model after the last two windows; NaN: not known */
	uint64_t tried_samples; /* for the latter */
	bool shows;             /* the exchange that is offered has what mean.h wants to know */
	double shown;           /* bytes of that in the window, mean of sites */
};

/* A line of the decision log that another site should have written, so many rounds ago, and then. */
struct site_log_line {
	struct site_log_line *next;
	unsigned rounds;
	uint64_t made_ns;
	size_t bytes;
	char text[];
};

/* The decision log: this site writes it, or would go on with it (course_log.c). */
struct site_log {
	char *path;                   /* NULL: it has none, or not any more */
	bool usual;                   /* by the environment, not by the site's options */
	int fd;                       /* -1: nothing is written, as another site does */
	int error;                    /* as in phub_site_state */
	bool turn;                    /* it is this site that writes; */
	bool writes;                  /* and it has begun to */
	uint32_t before;              /* the rank that wrote before; UINT32_MAX: none that it knows of */
	uint64_t run;                 /* what names the run */
	uint64_t since;               /* the step after which this site began */
	double bytes, travel, within; /* mean of sites, of decisions so far */
	uint64_t shadow[SHADOW_THETAS_MAX];
	struct site_log_line *held;    /* the eldest first */
	struct phub_score score;       /* of the mean model, as it was told; samples 0: it was not, */
	bool scored;                   /* since the last window */
	uint64_t began_ns, stepped_ns; /* phub_site_start() was over, and the last step; 0: none */
	double seconds_before;         /* of the run, up to the state that it has loaded */
	unsigned bare;                 /* sites that began with no state beside those with one; */
	uint32_t bare_rank;            /* the first */
};

/* How all come to the same weights (course_sync.c). */
struct site_sync {
	bool due;            /* the next round is the stage `stage` of one, in which `root` sends */
	bool takes, damaged; /* this site takes part as who said hello; not all that came was right */
	unsigned stage;
	uint32_t root;
};

/* Who was in the last exchange or sync. */
struct site_present {
	unsigned count;
	uint32_t *ranks; /* [count] in rising order */
	uint64_t *samples;
};

/* How sites align, of one that has a scout: squares as scout_hear() has them. */
struct site_align {
	/* [tensor_count] each, of each tensor alone: */
	double *offered;      /* of the offers: this site's part of `said`; of what is but shown mean_show() */
	double *said, *heard; /* of this window's exchanges */
	double *r;            /* of the last window; NaN: not known */
	double offered_all;   /* over all that are trained: see struct slot */
};

struct phub_site {
	/* Of the options; the same from phub_site_start() on. */
	phub_t *phub;
	uint32_t rank, world;
	bool at_box; /* PHUB_OUTER_BOX */
	bool may_lose;
	bool weighted, scouted;
	struct site_config config;
	struct scout_config scout_config;
	phub_evaluate *evaluate;
	void *context;
	struct site_tensor *tensors;   /* [config.tensor_count] each of the key of its number */
	unsigned frozen;               /* phub_site_frozen() was called, so often, */
	uint32_t frozen_check;         /* with these names and values: a CRC32C */
	char link[OPTIONS_LINK_BYTES]; /* "": none */

	/* Sites in sites (within.h). */
	struct phub_site *within; /* NULL: none, */
	bool orphan;              /* as it was closed */
	struct phub_site *around; /* NULL: none */
	float *common;            /* all tensors: what the sites within have in common. NULL: none is within */
	bool owes;                /* the step that the one within has made, at this rate: */
	double rate;
	bool owes_finish;           /* what course_finish() has begun there */
	int slots_key;              /* -1: none */
	bool named, started, begun; /* all keys; phub_start() is done; phub_site_start() is */
	bool restored;              /* it has loaded its state, and the others have not heard of it */
	bool goes_on;               /* until it has begun: the job begins from what sites have saved */

	struct site_log log;
	struct census census;
	struct shadow shadow; /* of this site, where it has the log from the start; count 0: none */

	struct site site;
	uint64_t samples;
	uint64_t exchanges, bytes_travel;

	struct scout scout;
	struct scout_decision decision;
	uint64_t windows;             /* that it has seen */
	struct scout_report *reports; /* [world] */
	const float **model;          /* [tensor_count] that is tried */
	struct site_align align;

	/* Where it is. */
	struct err ended;        /* the session, in this thread's words; code 0: it lives */
	bool stale;              /* the box was lost: phub_site_resume() */
	enum course_kind flight; /* the round on its way */
	bool hello;              /* the next one is to say so, or to fetch weights */
	bool has;                /* weights that others may begin with */
	bool half;               /* A sync has brought the weights of an exchange, and not yet the rest of its state. */
	struct site_sync sync;
	bool pending; /* an exchange is due */
	/* course_finish(): */
	bool finishes; /* that exchange is its; */
	bool means;    /* and has what is not exchanged otherwise, of which all take the mean; */
	bool evens;    /* the sync that is due is its, */
	uint32_t lags; /* 1 + the rank of one who took part by a step; 0: nobody has */
	bool offered;  /* and all of it was, with no sum yet; so many bytes: */
	uint64_t offered_bytes;
	struct site_present present;
	struct window window;
	struct unsound unsound;
	char behind[512];     /* where the box has the weights, and has lost exchanges: the text of a warning; */
	bool tells_behind;    /* which is not told yet */
	uint64_t pushed;      /* payload, as the last exchange began; */
	uint64_t wire_before; /* and up to the state that it has loaded */
	struct sent sent;

	/* Floats of all tensors each, at the places of struct site; */
	float *offers, *sums, *scratch;
	float *zeros;                /* as many as the largest tensor has */
	float *slots_out, *slots_in; /* [course_slots()] */
	void *block;
};

/* Of a tensor's key: it is sparse where there are many zeros, in offers of some algorithms, and in what others push
 * where one's model travels as a sum. */
unsigned course_key_flags(const struct phub_site *s);

/* Memory and state behind the key table, before phub_start(). 0, -EINVAL, -ENOMEM with the reason in `e`. */
int course_init(struct phub_site *s, struct err *e);
void course_fini(struct phub_site *s);

/* After phub_start(): says where the course begins. 0, or an error of phub_round(). */
int course_start(struct phub_site *s);

/* A step was made: is an exchange due, and does it end a window? */
void course_step(struct phub_site *s);

/*
 * At rest, at all sites after the same step: all that is left to say is due now, where there is any, and what is not
 * exchanged otherwise (running statistics). When it rests again all sites have the same weights, to the bit: of Gaia
 * those of one, which a sync brings the others, as they differ by roundings. So it is where all others call it, too;
 * else it is an exchange like theirs, and `lags` says who did not.
 */
void course_finish(struct phub_site *s);

/* What the next round is; COURSE_REST: there is none. */
enum course_kind course_next(const struct phub_site *s);

/* Goes on until it rests. Blocks until the deadline. Errors of phub_push_pull() and phub_wait(): the round is still on
 * its way with -ETIMEDOUT; with others it is not, and the session has ended, or is to be resumed. */
int course_run(struct phub_site *s, uint64_t deadline_ns);

/* Likewise, but with those rounds alone by which all come to the same weights, hello and sync. */
int course_settle(struct phub_site *s, uint64_t deadline_ns);

/* A call on the session has failed by `rc`, which is returned: of what was on its way nothing comes any more, but with
 * -ETIMEDOUT. */
int course_hurt(struct phub_site *s, int rc);

/* The box is there again. */
void course_resumed(struct phub_site *s);

/* ---- course_sync.c ---- */

int course_sync_begin(struct phub_site *s, struct slot *own);
/* Do those who begin, or who come, have the options of the others? 0; -EBADMSG with the reason as the last error. */
int course_sync_agrees(const struct phub_site *s);
void course_sync_land(struct phub_site *s);
/* A sync has landed: is it the first of a job that begins, and sites have loaded what was saved? Then nobody takes
 * anything of it: all go on, or those who have loaded nothing come to the others. 0: it is not; 1; -EBADMSG as above:
 * they do not agree. */
int course_sync_goes_on(struct phub_site *s);
/* Somebody has said hello in the round that has landed. */
void course_summon(struct phub_site *s);
/* The exchange of course_finish() has landed, of Gaia: the weights of the first site that has some are all others'. */
void course_sync_even(struct phub_site *s);
int course_fetch_begin(struct phub_site *s);
int course_fetch_land(struct phub_site *s);
/* Once, that the box goes on from fewer exchanges than this site was in; NULL: it does not, or that was told. */
const char *course_warning(struct phub_site *s);

/* ---- course_window.c ---- */

/* At rest, after each step and each exchange: the model that is to travel, when this is its time (midway.h). */
void window_keep(struct phub_site *s);
void window_begin(struct phub_site *s);
int window_travel_begin(struct phub_site *s);
void window_travel_land(struct phub_site *s);
/* Tries models; calls evaluate(). */
void window_try(struct phub_site *s);
/* Once, that evaluate() tries too few samples; NULL: it does not, or that was told. */
const char *window_warning(struct phub_site *s);
void window_put(struct phub_site *s);
/* An exchange has landed: what it says of how sites align. */
void window_hear(struct phub_site *s);
/* What is not exchanged: shows it, in the first exchange after a window at whose end a trial of the mean model is due.
 * The loss goes with the next window's report, so that windows of one exchange know none. */
bool window_shows(const struct phub_site *s);
void window_show(struct phub_site *s, unsigned t);
/* That exchange has landed: counts what was shown; tries it. */
void window_shown(struct phub_site *s);
void window_see(struct phub_site *s);
/* The report has landed, here or at the others: what it said of training is not said again. */
void window_said(struct phub_site *s);
/* The reports are here: decides. */
void window_land(struct phub_site *s);

/* ---- course_log.c ---- */

/*
 * Where decisions go; of a run without a scout, how it began and ended. One site writes: that of the lowest rank of
 * those that have a file for it, and once it has begun until it is there no more. All know who that is by the flags in
 * rounds' slots. The others make the same lines, and hold those of the last rounds: who goes on writes what is not in
 * the file yet. 0, -ENOMEM, or of rank 0, which opens it at once, an error of open(2), with the reason in `e`.
 */
int course_log_open(struct phub_site *s, const char *path, struct err *e);
void course_log_close(struct phub_site *s);
/* SLOT_LOG and SLOT_WRITES. */
unsigned course_log_flags(const struct phub_site *s);
/* A round has landed, of which nothing else is done yet: whose turn is it? Goes on with the log, or yields. */
void course_log_turn(struct phub_site *s);
/* A site comes around `s`, which has started. Where both would write what the environment names, the one around does.
 */
void course_log_yield(struct phub_site *s, const struct phub_site *around);
/* Shadows, as PHUB_SCOUT_SHADOW asks for them where there is a log. 0, or an error of environment_shadow() or
 * shadow_init(). */
int course_log_shadow(struct phub_site *s, struct err *e);
/* The run begins, or goes on; a window was decided on, which had begun at this theta. What cannot be
 * written is not: the training goes on. */
void course_log_run(struct phub_site *s);
void course_log_decision(struct phub_site *s, double theta);
/* As record_site(), record_warning(). */
struct record_site;
void course_log_site(struct phub_site *s, const struct record_site *site);
void course_log_warning(struct phub_site *s, uint32_t rank, const char *tensor, bool all, const char *text);

/* ---- shared by these ---- */

/* Floats of the slots' key. */
uint32_t course_slots(const struct phub_site *s);
/* Do they have one for each tensor? Where there is a scout, and where tensors are not exchanged. */
bool course_tells(const struct phub_site *s);

/* Is the scout's policy scout+? Then no model travels: the sums of exchanges tell. */
bool course_plus(const struct phub_site *s);
/* Do models travel at the end of a window? Not for scout+, nor where theta is fixed: nothing would follow of it. */
bool course_travels(const struct phub_site *s);

float *course_at(const struct phub_site *s, float *array, unsigned t);
/* What the site of this place has of the whole, by the slots that have landed. */
double course_share(const struct phub_site *s, unsigned place);
/* A round of a tensor's key, with a priority by its place. */
int course_push(struct phub_site *s, unsigned t, const float *from);
/* Who is there, by the slots that have landed, and what this site's part is. */
void course_count(struct phub_site *s);
/* What was offered is still to be said. */
void course_withdraw(struct phub_site *s);

#endif
