/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes such a url apart, and has etcd asked by its plugin.
 */
#include "client/find.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/etcd_find.h"

static const char find_scheme[] = "phub+etcd://", find_scheme_tls[] = "phubs+etcd://";

static bool find_is_tls(const char *url)
{
	return strncmp(url, find_scheme_tls, strlen(find_scheme_tls)) == 0;
}

bool find_is_wanted(const char *url)
{
	return url && (find_is_tls(url) || strncmp(url, find_scheme, strlen(find_scheme)) == 0);
}

/* Behind the scheme. */
static const char *find_rest(const char *url)
{
	return url + strlen(find_is_tls(url) ? find_scheme_tls : find_scheme);
}

int find_check(const char *url, struct err *e)
{
	const char *at = find_rest(url), *job = strchr(at, '/'), *etcd = getenv("PHUB_ETCD");

	if (!job || !job[1] || strchr(job + 1, '/') || job - at >= FIND_URL_BYTES)
		return err_set(
			e, -EINVAL, "box address '%.200s': use phub+etcd://host[:port][,host[:port]...]/job", url);
	if (job == at && (!etcd || !*etcd))
		return err_set(e, -EINVAL, "box address '%.200s': it names no etcd, and PHUB_ETCD is not set", url);
	return 0;
}

int find_url(const char *url, uint64_t deadline_ns, char out[FIND_URL_BYTES], struct err *e)
{
	const char *at = find_rest(url), *job = strchr(at, '/'), *etcd = getenv("PHUB_ETCD");
	const struct etcd_plugin *plugin;
	char urls[FIND_URL_BYTES], name[FIND_URL_BYTES], address[FIND_URL_BYTES / 2];
	bool tls = false;
	int rc = find_check(url, e);

	if (rc < 0)
		return rc;
	snprintf(urls, sizeof(urls), "%.*s", (int)(job - at), at);
	snprintf(name, sizeof(name), "%.*s", (int)strcspn(job + 1, "?"), job + 1);
	rc = etcd_plugin_load(&plugin, e);
	if (rc == 0)
		rc = plugin->find(job == at ? etcd : urls, name, deadline_ns, address, sizeof(address), &tls, e);
	if (rc < 0)
		return rc;
	if (snprintf(out, FIND_URL_BYTES, "%s%s%s", tls || find_is_tls(url) ? "phubs://" : "phub://", address, job) >=
		FIND_URL_BYTES)
		return err_set(e, -EINVAL, "box address '%.200s': too long", url);
	return 0;
}
