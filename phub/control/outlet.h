/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Outlets: the transports by which this box's cores reach other boxes (uplink.h), each with a queue of its own for each
 * core. Which of them a call's connections are made by (calls.h) is as uplink_transport says; `auto` takes the first
 * that leads there: shm, where both boxes have it among their transports and are one user's on one host; verbs, where
 * both have that, and RDMA ports in one network; else tcp. Each, and udp and dpdk, may also be asked for by name, and
 * then it is that or none. By dpdk, the ports are those that workers come by, with a second queue of each core.
 * Control thread, but for the queues.
 */
#ifndef PHUB_CONTROL_OUTLET_H
#define PHUB_CONTROL_OUTLET_H

#include <stddef.h>
#include <string.h>

#include "phub/base/err.h"
#include "phub/control/config.h"
#include "transport/transport.h"

#define OUTLET_MAX 3u

struct box;
struct box_call;

struct outlet {
	struct transport *transport;
	struct queue *queues[CONFIG_CORES_MAX];
};

struct outlets {
	unsigned count;                 /* 0: this box reaches no other */
	struct outlet each[OUTLET_MAX]; /* the best first */
	char lacks[120];                /* auto: what this box lacks for a better one; "": nothing */
};

/* Opens what the config wants. 0, or a negative errno with what to do in `e`; outlets_close() is due all the same. */
int outlets_open(struct box *box, struct err *e);
/* The box is below another one, which its options do not say: likewise, with the queues of all cores, which do not run
 * yet. Nothing, where it has outlets. */
int outlets_open_up(struct box *box, struct err *e);
/* The queues of this core, which is made. 0, or as queue_create(). */
int outlets_queue(struct box *box, unsigned core, struct err *e);
/* No core runs. The queues of one, and, when all of these are destroyed, the outlets. */
void outlets_close_queues(struct box *box, unsigned core);
void outlets_close(struct box *box);

/* The best that leads to the box of this call, which is welcome there, or the last one: whether that does is seen when
 * it is dialled. `why` (bytes long): what is wrong with better ones, or "". */
const struct outlet *outlet_choose(const struct box *box, const struct box_call *call, char *why, size_t bytes);
/* What Hello says, when that is not known yet: its transport, or NULL, one of several, as udp, which may be dpdk there,
 * and the reverse. */
static inline const char *outlets_name(const struct outlets *o)
{
	const char *name = o->count == 1 ? o->each[0].transport->ops->name : NULL;

	return name && strcmp(name, "udp") != 0 && strcmp(name, "dpdk") != 0 ? name : NULL;
}

#endif
