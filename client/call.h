/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box as the client of another: the control session of a worker (session.h), which reaches the other box, proves the
 * job's secret and stays alive, and from the Welcome on is the box's to speak by (transport/call.h).
 */
#ifndef PHUB_CLIENT_CALL_H
#define PHUB_CLIENT_CALL_H

#include "transport/call.h"

/* open() takes a struct client_env. */
extern const struct call_ops client_call_ops;

#endif
