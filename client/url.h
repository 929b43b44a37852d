/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub://host[:port]/job, or phubs:// where TLS is wanted, taken apart. Pure.
 */
#ifndef PHUB_CLIENT_URL_H
#define PHUB_CLIENT_URL_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"

#define URL_HOST_BYTES 256
#define URL_JOB_BYTES  64 /* as in the box: SPEC_NAME_BYTES */

struct url {
	char host[URL_HOST_BYTES]; /* without brackets */
	char job[URL_JOB_BYTES];
	uint16_t port;
	bool tls; /* phubs:// */
};

/* 0, or -EINVAL with what is wrong and the right form in `e`. */
int url_parse(const char *text, struct url *out, struct err *e);

#endif
