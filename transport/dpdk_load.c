/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds and loads libphub-dpdk.so. Control thread.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "transport/dpdk.h"

#define LOAD_NAME "libphub-dpdk.so"

static struct {
	pthread_mutex_t lock;
	const struct dpdk_plugin *plugin;
} load = {.lock = PTHREAD_MUTEX_INITIALIZER};

/*
 * `place` relative to the folder of the program or library that this very code is in. A program is known to the loader
 * by argv[0], which has no folder when a shell or a service manager found it by PATH.
 */
static bool load_path(const char *place, char *out, size_t bytes)
{
	char program[4096];
	const char *slash;
	ssize_t length;
	Dl_info info;

	if (!dladdr(&load, &info) || !info.dli_fname)
		return false;
	slash = strrchr(info.dli_fname, '/');
	if (!slash) {
		length = readlink("/proc/self/exe", program, sizeof(program) - 1);
		program[length > 0 ? length : 0] = '\0';
		info.dli_fname = program;
		slash = strrchr(program, '/');
	}
	if (!slash || snprintf(out, bytes, "%.*s%s" LOAD_NAME, (int)(slash - info.dli_fname + 1), info.dli_fname,
			      place) >= (int)bytes)
		return false;
	return access(out, R_OK) == 0;
}

static int load_open(void **out, struct err *e)
{
	char path[4096];
	const char *name = path, *why;

	if (!load_path("", path, sizeof(path)) && !load_path("../lib/", path, sizeof(path)))
		name = LOAD_NAME;
	*out = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (*out)
		return 0;
	why = dlerror();
	if (why && strstr(why, "librte_"))
		return err_set(e, -ELIBACC,
			"transport dpdk: DPDK's libraries are not installed (%s): on Debian `apt install dpdk`", why);
	if (name == path)
		return err_set(e, -ELIBACC, "transport dpdk: %s", why ? why : path);
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
