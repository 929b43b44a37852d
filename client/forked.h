/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fork() and handles. A child's copy of a handle holds no part of the connection: its fds of the control session are
 * closed in the child at once, so that the box still sees the parent die, and its calls say -EPERM.
 */
#ifndef PHUB_CLIENT_FORKED_H
#define PHUB_CLIENT_FORKED_H

#include "client/phub.h"

/* Any thread, without the handle's lock. */
void forked_add(phub_t *p);
void forked_remove(phub_t *p);

/* Frees a child's copy: memory of its own, and nothing that it shares with the parent. */
void forked_close(phub_t *p);

#endif
