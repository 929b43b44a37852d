/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds and loads libphub-dpdk.so. Control thread.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "transport/dpdk.h"
#include "transport/plugin.h"

#define LOAD_NAME "libphub-dpdk.so"

static struct {
	pthread_mutex_t lock;
	const struct dpdk_plugin *plugin;
} load = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int load_open(void **out, struct err *e)
{
	const char *why;
	bool there;

	*out = plugin_open(LOAD_NAME, &there, &why);
	if (*out)
		return 0;
	if (why && strstr(why, "librte_"))
		return err_set(e, -ELIBACC,
			"transport dpdk: DPDK's libraries are not installed (%s): on Debian `apt install dpdk`", why);
	if (there)
		return err_set(e, -ELIBACC, "transport dpdk: %s", why ? why : LOAD_NAME);
	return err_set(e, -ENOENT,
		"transport dpdk: this build has no DPDK (no " LOAD_NAME "): install libdpdk-dev and build it again");
}

int dpdk_load(const struct dpdk_plugin **out, struct err *e)
{
	const struct dpdk_plugin *plugin;
	void *handle;
	int rc = 0;

	pthread_mutex_lock(&load.lock);
	if (load.plugin)
		goto done;
	rc = load_open(&handle, e);
	if (rc < 0)
		goto done;
	/* Never unloaded: EAL has threads that stay. */
	plugin = dlsym(handle, "phub_dpdk_plugin");
	if (plugin && plugin->abi == DPDK_ABI)
		load.plugin = plugin;
	else
		rc = err_set(e, -ELIBBAD, "transport dpdk: " LOAD_NAME " is of another version: install them together");
done:
	if (rc == 0)
		*out = load.plugin;
	pthread_mutex_unlock(&load.lock);
	return rc;
}
