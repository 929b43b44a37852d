/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which transport to reach the box by. Under the handle's lock, once per phub_start().
 */
#ifndef PHUB_CLIENT_PICK_H
#define PHUB_CLIENT_PICK_H

#include "client/session.h"
#include "transport/transport.h"

#define PICK_ADDRESS_BYTES 400

struct pick {
	const struct transport_ops *ops;
	const char *offer;                /* the box's name for its end: udp and dpdk have the same packets */
	char address[PICK_ADDRESS_BYTES]; /* what connect() takes: "*" is replaced by the control session's host */
};

/*
 * The one that was asked for, else the best of the box's that reaches it: shared memory last where the job may go on at
 * a standby, for rounds in it cannot. 0, -ENOTSUP saying what the box offers, or what is wrong with the ports that
 * PHUB_RDMA names when verbs would be tried.
 */
int pick_transport(const struct client_session *s, struct pick *out, struct err *e);

/* The one of `pick` once more, at another box: only its address changes, and what it is offered as. 0 or -ENOTSUP. */
int pick_again(const struct client_session *s, struct pick *pick, struct err *e);

#endif
