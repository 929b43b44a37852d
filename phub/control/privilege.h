/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What phubd may do beyond what any user may, and gives up once its sockets, devices and files are open. Control
 * thread, at start, before there are others of ours.
 */
#ifndef PHUB_CONTROL_PRIVILEGE_H
#define PHUB_CONTROL_PRIVILEGE_H

#include <stddef.h>

#include "phub/base/err.h"
#include "phub/control/config.h"

/* Are option user and group there, and may this process become them? Blocks on their names. 0 or a negative errno. */
int privilege_check(const struct config *config, struct err *e);

/*
 * Becomes user and group of the options, keeps of the capabilities only those that the transports need later, and lets
 * nothing that is executed have more. Root stays root where no user is named. Says in `out` what it is now, like
 * "user phub (uid 995), keeps cap_ipc_lock". 0, or a negative errno with what to do in `e`: the process must then end.
 */
int privilege_drop(const struct config *config, char *out, size_t bytes, struct err *e);

#endif
