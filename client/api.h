/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the public calls of other rooms share with those of api.c.
 */
#ifndef PHUB_CLIENT_API_H
#define PHUB_CLIENT_API_H

#include "phub/base/err.h"

/* The calling thread's phub_error(), to be written by a public call that fails by itself. */
struct err *api_last_error(void);

#endif
