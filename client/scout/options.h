/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the public structs of phub_sites.h, which grow by their `size`, to those of this folder and back. Pure; any
 * thread.
 */
#ifndef PHUB_CLIENT_SCOUT_OPTIONS_H
#define PHUB_CLIENT_SCOUT_OPTIONS_H

#include "client/phub.h"
#include "client/scout/scout.h"
#include "client/scout/site.h"
#include "phub/base/err.h"

#define OPTIONS_LINK_MAX   16u /* of the name of a class of links, */
#define OPTIONS_LINK_BYTES (OPTIONS_LINK_MAX + 1)

#define OPTIONS_PERIOD      500u /* steps in a window, where nothing is said of it: as in the paper; */
#define OPTIONS_PERIOD_PLUS 50u  /* of scout+, whose constants were measured with that */

/*
 * The caller's, whose size may be another library's, as this one's: what it lacks has its default. A scout is of sites
 * with `algorithm`, whose thetas its own must be, as options_thetas() says. NULL: of sites that are somebody else's;
 * all go by the algorithm that its options name, whose tightest theta is the first, and which a theta is may be
 * anything. 0; -EINVAL; -ENOTSUP as options_needs().
 */
int options_scout(const struct phub_scout_options *given, const enum site_algorithm *algorithm,
	struct scout_config *config, struct err *e);
/* Can this policy find a theta of this algorithm? -ENOTSUP: not by what models lose elsewhere, of DGC, whose models are
 * one at all sites. Of SCOUT_PLUS: how loose the thetas of config's grid may be; see plus_needs(), whose errors these
 * are. */
int options_needs(struct scout_config *config, enum site_algorithm algorithm, struct err *e);
/* Are there thetas, can the algorithm have the thetas of config's grid and schedule, and is the tightest of the grid
 * its first? 0; -EINVAL with the right order in `e`. */
int options_thetas(const struct scout_config *config, enum site_algorithm algorithm, struct err *e);

/* What some policies do not look at: which theta they begin with, and what they weigh; OPTIONS_GAIN is all
 * that scout+ alone looks at. */
enum options_part { OPTIONS_THETA = 0, OPTIONS_SIGMA, OPTIONS_GAIN, OPTIONS_LAMBDA_LOSS, OPTIONS_LAMBDA_BYTES };

#define OPTIONS_PART_COUNT 5u

/* NULL: the policy looks at it; else those that do: "fixed, hill, stochastic and annealing". */
const char *options_others(enum scout_policy policy, enum options_part part);

int options_site(const struct phub_site_options *given, struct phub_site_options *own, struct err *e);

/* Of own options, without tensors, share and sites. */
void options_site_config(const struct phub_site_options *own, struct site_config *config);

/*
 * What sites say of options that all have alike: each of these appends "; NAME=VALUE", once or more, to a text that has
 * room for so many bytes, by the names of phub_sites.h; what does not fit is left out. Numbers have as few digits as
 * say which they are, a point whatever the locale, and lists that are long a checksum instead.
 */
void options_say(char *text, size_t room, const char *name, const char *value);
void options_say_number(char *text, size_t room, const char *name, double value);
void options_say_outer(char *text, size_t room, const struct outer_config *config);
/* All that scout_fingerprint() is of. */
void options_say_scout(char *text, size_t room, const struct scout_config *config);

/* To the caller's struct, as far as that goes. -EINVAL: it has no size. */
int options_tell(const struct scout_decision *decision, struct phub_scout_decision *out, struct err *e);

#endif
