/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is above this box: nothing, the box that `uplink` names by its address, or the one that etcd knows by the name
 * in `uplink: etcd:NAME`, wherever that is at the time. Jobs that are below it (parent.h) hear when it changes.
 * Control thread; nothing blocks.
 */
#ifndef PHUB_CONTROL_ABOVE_H
#define PHUB_CONTROL_ABOVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/control/config.h"
#include "transport/control.pb-c.h"

struct control;
struct job;

/* Where a box is. */
struct above_place {
	char box[CONFIG_NAME_BYTES]; /* its name in etcd; "": it has none */
	struct config_listen at;
	bool tls;
};

struct above {
	bool there; /* a box is above this one, */
	bool known; /* and it is known where: */
	struct above_place place;
	char why[ERR_TEXT_MAX]; /* why it is not known; "": etcd was not asked yet */
};

/* As the options say: to be called before any job comes. */
void above_init(struct control *c);

/* Etcd says that it is there. Jobs that are not with it yet try it there; the others' connections are good while they
 * last. */
void above_found(struct control *c, const struct above_place *place);
/* It does not say where: what it said before holds. */
void above_missed(struct control *c, const char *why);

/* "10.0.0.1:7077", or "etcd:NAME" while it is not known where that is. Returns `out`. */
const char *above_name(const struct control *c, char *out, size_t bytes);

/* Where other boxes of the job reach this one. */
void above_tell_address(const struct job *job, Phub__Gather *gather);
/* Can only this host reach it, and is the box above on another? */
bool above_is_out_of_reach(const struct control *c);

#endif
