/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub+etcd://: which box a url means that names an etcd in place of one. In phub_connect() alone, before there is a
 * handle. Any thread.
 */
#ifndef PHUB_CLIENT_FIND_H
#define PHUB_CLIENT_FIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"

enum { FIND_URL_BYTES = 512 };

/* Is it such a url? */
bool find_is_wanted(const char *url);

/* Of one that is wanted: 0, or -EINVAL with a text, as find_url() would say it before it asks. */
int find_check(const char *url, struct err *e);

/*
 * Writes the url of the box and the job. Asks etcd, again and again until there is a box or the deadline; blocks. 0, or
 * a negative errno with a text: -EINVAL (the url), -ENOENT (this build has no etcd), -EACCES (etcd's secret),
 * -ECONNREFUSED or -ETIMEDOUT (no etcd, or no box).
 */
int find_url(const char *url, uint64_t deadline_ns, char out[FIND_URL_BYTES], struct err *e);

#endif
