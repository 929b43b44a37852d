/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the public calls of other rooms share with those of api.c.
 */
#ifndef PHUB_CLIENT_API_H
#define PHUB_CLIENT_API_H

#include "client/phub.h"
#include "client/session.h"
#include "phub/base/err.h"

/* The calling thread's phub_error(), to be written by a public call that fails by itself. */
struct err *api_last_error(void);

/* How a rank went, of a job that goes on without. */
enum api_fate {
	API_STAYED = 0, /* the box has not said that it went */
	API_LEFT,       /* by itself */
	API_LOST,
};

/* The last time, as the box has said it since the call before for this rank: it may have come again. Why it was lost
 * to `why`, "" where that is not known. Any thread; never blocks. API_STAYED also in a child of fork(). */
enum api_fate api_take_fate(phub_t *p, uint32_t rank, char why[SESSION_WHY_BYTES]);

#endif
