/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is there, round by round, for the decision log of the site that writes it, or of one that may go on with it: a
 * line for each site that was lost, left or came. Rounds' slots (slots.h) say who; why somebody is there no more the
 * box says, on a connection of its own. Where that has not come yet as the round without it lands, the line waits for
 * it: some rounds, and CENSUS_WAITS_MS, for rounds may be short and the host busy.
 *
 * The site's thread; nothing blocks.
 */
#ifndef PHUB_CLIENT_SCOUT_CENSUS_H
#define PHUB_CLIENT_SCOUT_CENSUS_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"

struct phub_site;

enum { CENSUS_WAITS = 8, CENSUS_WAITS_MS = 2000 };

struct census_site {
	bool there;
	unsigned waits;     /* rounds that its line still waits for at least, and one more; 0: there is none */
	uint64_t until_ns;  /* and the time */
	uint64_t steps;     /* of the line */
	unsigned remaining; /* likewise: sites from then on */
};

/* All zeros: nobody writes a log. */
struct census {
	struct census_site *at; /* [world] */
};

/* The log begins: all should be there, or those who are. -ENOMEM: no line tells who is not. census_fini() ends it, also
 * of all zeros. */
int census_begin(struct phub_site *s, bool all);
void census_fini(struct phub_site *s);

/* A round has landed. */
void census_take(struct phub_site *s);

/* The log ends: what waits is written. */
void census_end(struct phub_site *s);

#endif
