/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The box of one host, which a worker there has started (client/hostbox.h): at a Unix socket that it was handed it
 * tells every worker that comes where it listens, and counts who is there by the connections that stay open. When
 * nobody has been for a while it goes down: kill -9 of all workers leaves nothing behind. Control thread; nothing
 * blocks.
 */
#ifndef PHUB_CONTROL_HOSTBOX_H
#define PHUB_CONTROL_HOSTBOX_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"

struct hostbox;

/*
 * Before there are threads: leaves the process that started it, and the CPUs that that one is bound to. Returns in a
 * child of its own, which has the socket. 0 or a negative errno in `e`; does not return in the parent.
 */
int hostbox_detach(int listen_fd, struct err *e);

/* The box has ended well, and its log has nothing to look at: the file that the worker made for it goes, too. Nothing
 * where there is none. */
void hostbox_remove_log(void);

/* Takes the socket over. `address`: what workers are told. What is ready wakes the epoll with `watch`. 0, or a negative
 * errno in `e`. */
int hostbox_open(int listen_fd, const char *address, uint64_t linger_ns, int epoll_fd, void *watch, uint64_t now_ns,
	struct hostbox **out, struct err *e);

/* Greets who comes, forgets who went. True: nobody has been here for the time to linger, and nobody is on the way: it
 * is time to stop. NULL is allowed: false. */
bool hostbox_step(struct hostbox *h, uint64_t now_ns);

/* When to look at the latest; UINT64_MAX: when something is ready. NULL is allowed. */
uint64_t hostbox_next(const struct hostbox *h);

/* NULL is allowed. */
void hostbox_close(struct hostbox *h);

#endif
