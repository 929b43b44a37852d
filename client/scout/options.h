/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the public structs of phub.h, which grow by their `size`, to those of this folder and back. Pure; any thread.
 */
#ifndef PHUB_CLIENT_SCOUT_OPTIONS_H
#define PHUB_CLIENT_SCOUT_OPTIONS_H

#include "client/phub.h"
#include "client/scout/scout.h"
#include "client/scout/site.h"
#include "phub/base/err.h"

#define OPTIONS_LINK_MAX   16u /* of the name of a class of links, */
#define OPTIONS_LINK_BYTES (OPTIONS_LINK_MAX + 1)

/*
 * The caller's, whose size may be another library's, as this one's: what it lacks has its default. A scout is of sites
 * with `algorithm`; NULL: with the one that its options name. 0; -EINVAL; -ENOTSUP: SCOUT_PLUS does not know how loose
 * thetas of that may be.
 */
int options_scout(const struct phub_scout_options *given, const enum site_algorithm *algorithm,
	struct scout_config *config, struct err *e);
/* Of SCOUT_PLUS: how loose the thetas of config's grid may be; see plus_needs(), whose errors these are. Of others 0.
 */
int options_needs(struct scout_config *config, enum site_algorithm algorithm, struct err *e);
int options_site(const struct phub_site_options *given, struct phub_site_options *own, struct err *e);

/* Of own options, without tensors, share and sites. */
void options_site_config(const struct phub_site_options *own, struct site_config *config);

/* To the caller's struct, as far as that goes. -EINVAL: it has no size. */
int options_tell(const struct scout_decision *decision, struct phub_scout_decision *out, struct err *e);

#endif
