/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A site that says what is no number: whose weights, momentum or gradients are NaN or infinite. Each exchange's slots
 * (slots.h) have which sites that were, so all know at once where it began; each hears it once of a site, as text that
 * names rank, tensor and steps, and what to do (phub_site_warning()). What becomes of it is the job's `nan`:
 *
 *      pass    it is in the sum, and from that exchange on in all sites' weights: those who say it later have it of
 *              others, and are not named
 *      zero    it counts as zero, and the others go on without. The site's own momentum and residual are 0 from then
 *              on where they are no numbers (site_mend()), so it does not say it for ever. Where its weights are none
 *              either (Gaia moves them at once) it begins anew with the others', like one who comes: it says hello in
 *              place of an exchange. That costs a model, so it waits twice as many exchanges each time
 *      fail    the job ends, which is not told here: the session's error names rank and key
 *
 * Where no site has numbers left, with `pass` at once and with `zero` when none can be mended, nobody comes out of it:
 * that is said, and `since` stays. Training goes on nevertheless, as `pass` promises, and as the caller may yet put
 * weights in place that were saved: who stops is the caller, by phub_site_state.broken_since, and phub scout run.
 *
 * Where the box has the weights (PHUB_OUTER_BOX) there are no slots: a site tells of itself, and of what comes back.
 *
 * The site's thread; nothing blocks.
 */
#ifndef PHUB_CLIENT_SCOUT_UNSOUND_H
#define PHUB_CLIENT_SCOUT_UNSOUND_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"

struct phub_site;

#define UNSOUND_TEXT_BYTES 768u

/* All zeros: all are numbers. */
struct unsound {
	uint32_t own;   /* 1 + the first tensor of which the last offer was no number, until that is mended; 0: none */
	uint64_t steps; /* from which this offer has moved */
	uint64_t since; /* the step after which this site's weights are no numbers, and have stayed so; 0: they are */
	bool forlorn;   /* it was told that no site has numbers */
	bool spread;    /* what is no number is in all sites' weights */
	bool returns;   /* this site begins anew with the others' weights */
	unsigned returned; /* how often it did; */
	uint64_t again;    /* and from which exchange on it may do so again */
	uint8_t *told;     /* [world] ranks that were named */
	bool fresh;        /* the text was not fetched */
	char text[UNSOUND_TEXT_BYTES];
};

/* 0, and unsound_fini() ends it, also of all zeros; -ENOMEM with the reason in `e`. */
int unsound_init(struct phub_site *s, struct err *e);
void unsound_fini(struct phub_site *s);

/* An exchange's offers begin; tensor `t` was offered. */
void unsound_begin(struct phub_site *s);
void unsound_offer(struct phub_site *s, unsigned t, const float *offer);

/* The exchange has landed, and all was accepted; slots are still those of this round. */
void unsound_land(struct phub_site *s);

/* An exchange is due: is this site to say hello instead? Then it is one who comes from now on. */
void unsound_due(struct phub_site *s);

/* `since`, of sites in sites that of the one where it was first. */
uint64_t unsound_since(const struct phub_site *s);

/* The text, once; NULL: nothing new. */
const char *unsound_text(struct phub_site *s);

#endif
