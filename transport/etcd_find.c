/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks for a box until there is one.
 */
#include "transport/etcd_find.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "transport/lookout.h"

#define FIND_PAUSE_NS (200 * NS_PER_MS)

extern const struct etcd_plugin phub_etcd_plugin;

static int find_look(struct etcd *etcd, const char *prefix, const char *job, uint64_t deadline_ns, char *address,
	size_t bytes, bool *tls, struct err *e)
{
	struct lookout l = {.etcd = etcd};
	const char *rack = getenv("PHUB_RACK");
	char host[ROSTER_NAME_BYTES] = "";
	const struct roster_box *box;
	int rc;

	snprintf(l.prefix, sizeof(l.prefix), "%s", prefix);
	gethostname(host, sizeof(host) - 1);
	rc = lookout_wait(&l, deadline_ns, e);
	box = rc == 0 ? roster_choose(&l.roster, host, rack ? rack : "", job) : NULL;
	if (box && snprintf(address, bytes, "%s", box->address) < (int)bytes)
		*tls = box->tls;
	else if (rc == 0)
		rc = err_set(e, -ECONNREFUSED,
			"etcd %s: no box that this host can reach is announced under %s; start phubd with its option "
			"etcd",
			etcd_url(etcd), prefix);
	lookout_fini(&l);
	return rc;
}

static int find_box(
	const char *urls, const char *job, uint64_t deadline_ns, char *address, size_t bytes, bool *tls, struct err *e)
{
	const char *prefix = getenv("PHUB_ETCD_PREFIX");
	struct timespec pause = {.tv_nsec = (long)FIND_PAUSE_NS};
	struct etcd_config config;
	struct etcd *etcd;
	int rc;

	if (!prefix || !*prefix)
		prefix = ROSTER_PREFIX;
	if (!roster_prefix_valid(prefix))
		return err_set(e, -EINVAL, "PHUB_ETCD_PREFIX '%.64s' is not what keys begin with, like /phub", prefix);
	rc = etcd_config_from_env(urls, &config, e);
	if (rc == 0)
		rc = etcd_open(&config, &etcd, e);
	explicit_bzero(&config, sizeof(config));
	if (rc < 0)
		return rc;
	for (;;) {
		rc = find_look(etcd, prefix, job, deadline_ns, address, bytes, tls, e);
		if (rc == 0 || rc == -EACCES || clock_now_ns() + FIND_PAUSE_NS >= deadline_ns)
			break;
		nanosleep(&pause, NULL);
	}
	etcd_close(etcd);
	return rc;
}

__attribute__((visibility("default")))
const struct etcd_plugin phub_etcd_plugin = {.abi = ETCD_PLUGIN_ABI, .find = find_box};
