/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all sites have sent, for the end of a log, which one of them writes: each says in every exchange what it has
 * sent so far, and the writer knows their mean. Bytes in exchanges are those up to the last one, it included. Payload
 * on the wire is known where a round begins: of the last one the writer's own stands for the others', as it does for
 * what goes after it. Who left, or was lost, is not in the mean.
 *
 * The site's thread; nothing blocks.
 */
#ifndef PHUB_CLIENT_SCOUT_SENT_H
#define PHUB_CLIENT_SCOUT_SENT_H

#include <stdint.h>

struct phub_site;
struct slot;

/* As the last exchange had them: bytes, the mean of sites, less this site's own. Zeros: none was heard. */
struct sent {
	double exchanges, within, wire;
};

/* Into this site's slot of an exchange whose offers were made. */
void sent_put(struct phub_site *s, struct slot *own);

/* The exchange has landed. */
void sent_hear(struct phub_site *s);

/* Payload that this site has pushed so far; 0: it is not known, as in a child of fork(). */
uint64_t sent_wire(const struct phub_site *s);

#endif
