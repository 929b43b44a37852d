/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of ours that bring foreign libraries along, each a shared object of its own that is loaded when it is asked
 * for. Any thread; blocks on the disk.
 */
#ifndef PHUB_TRANSPORT_PLUGIN_H
#define PHUB_TRANSPORT_PLUGIN_H

#include <stdbool.h>

/*
 * Loads `file` ("libphub-dpdk.so") from the folder of the program or library that this code is in, from ../lib of it,
 * or from where the loader looks. Returns the handle, never to be closed, or NULL with the loader's reason in *why (may
 * be NULL; until the next call of the loader) and in *there whether it lies beside us.
 */
void *plugin_open(const char *file, bool *there, const char **why);

#endif
