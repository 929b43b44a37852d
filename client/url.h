/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub://host[:port][,host[:port]]/job[?hostbox=auto], or phubs:// where TLS is wanted, taken apart. Pure.
 */
#ifndef PHUB_CLIENT_URL_H
#define PHUB_CLIENT_URL_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"

#define URL_HOST_BYTES 256
#define URL_JOB_BYTES  64 /* as in the box: SPEC_NAME_BYTES */

struct url_box {
	char host[URL_HOST_BYTES]; /* without brackets */
	uint16_t port;
};

/* ?hostbox=none, ?hostbox=auto; or nothing is said of it. */
enum url_hostbox { URL_HOSTBOX_UNSAID, URL_HOSTBOX_NONE, URL_HOSTBOX_AUTO };

struct url {
	char host[URL_HOST_BYTES]; /* likewise */
	char job[URL_JOB_BYTES];
	uint16_t port;
	bool tls;             /* phubs:// */
	struct url_box other; /* to be tried when the first one cannot be reached; host "": none */
	enum url_hostbox hostbox;
};

/* 0, or -EINVAL with what is wrong and the right form in `e`. */
int url_parse(const char *text, struct url *out, struct err *e);

/* The same for "host[:port]" alone. */
int url_parse_box(const char *text, struct url_box *out, struct err *e);

#endif
