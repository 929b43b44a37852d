/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads libphub-etcd.so, for libphub.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>

#include "transport/etcd_find.h"
#include "transport/plugin.h"

int etcd_plugin_load(const struct etcd_plugin **out, struct err *e)
{
	static const char file[] = "libphub-etcd.so";
	const struct etcd_plugin *plugin;
	const char *why;
	bool there;
	void *handle = plugin_open(file, &there, &why);

	if (!handle && there)
		return err_set(e, -ELIBACC, "etcd: %s; on Debian `apt install libjansson4`", why ? why : file);
	if (!handle)
		return err_set(e, -ENOENT,
			"etcd: this build has none (no %s): install libcurl4-openssl-dev and build it again", file);
	plugin = dlsym(handle, "phub_etcd_plugin");
	if (!plugin || plugin->abi != ETCD_PLUGIN_ABI)
		return err_set(e, -ELIBBAD, "etcd: %s is of another version: install them together", file);
	*out = plugin;
	return 0;
}
