/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds shared objects that were installed with us.
 */
#include "transport/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char plugin_here; /* is in the program or library that this code is in */

/*
 * `place` relative to the folder of the program or library that this very code is in. A program is known to the loader
 * by argv[0], which has no folder when a shell or a service manager found it by PATH.
 */
static bool plugin_path(const char *place, const char *file, char *out, size_t bytes)
{
	char program[4096];
	const char *slash;
	ssize_t length;
	Dl_info info;

	if (!dladdr(&plugin_here, &info) || !info.dli_fname)
		return false;
	slash = strrchr(info.dli_fname, '/');
	if (!slash) {
		length = readlink("/proc/self/exe", program, sizeof(program) - 1);
		program[length > 0 ? length : 0] = '\0';
		info.dli_fname = program;
		slash = strrchr(program, '/');
	}
	if (!slash || snprintf(out, bytes, "%.*s%s%s", (int)(slash - info.dli_fname + 1), info.dli_fname, place,
			      file) >= (int)bytes)
		return false;
	return access(out, R_OK) == 0;
}

void *plugin_open(const char *file, bool *there, const char **why)
{
	char path[4096];
	void *handle;

	*there = plugin_path("", file, path, sizeof(path)) || plugin_path("../lib/", file, path, sizeof(path));
	handle = dlopen(*there ? path : file, RTLD_NOW | RTLD_LOCAL);
	*why = handle ? NULL : dlerror();
	return handle;
}
