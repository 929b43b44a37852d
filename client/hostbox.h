/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box of this host's own, of ?hostbox=auto: it sums the job's workers here over shared memory and takes part at the
 * box that the URL names. The first worker on the host starts it, the others find it, and it ends by itself when the
 * last one is gone, however that went.
 *
 * They meet at an abstract Unix socket that is named after user, box, job and PHUB_HOSTBOX_NAME. Who binds it is the
 * first, and hands it to the phubd that he starts (hostbox_start.h); so there is no race between two, and nothing is
 * left of any that was killed. Whoever comes is told where that phubd listens, and keeps the connection: by those that
 * are open it knows that somebody is there. A network namespace has names of its own, as it has a loopback of its own.
 */
#ifndef PHUB_CLIENT_HOSTBOX_H
#define PHUB_CLIENT_HOSTBOX_H

#include <stddef.h>
#include <stdint.h>

#include "client/settings.h"
#include "phub/base/err.h"

/*
 * Finds the host's box, or starts it: the session then goes to s->url.host and port, in plain, for it does not leave
 * the host. *fd is to be kept open for as long as the box is needed; it is written also on failure, once there is one.
 * May block until the deadline; the process must not be forked meanwhile. 0, -ENOENT (no phubd), -EACCES (another user
 * has the name), -ETIMEDOUT, or what else kept it from starting, in `e`. `note` [bytes]: " (this host's own, ...)", for
 * behind its address in messages.
 */
int hostbox_join(struct settings *s, uint64_t deadline_ns, int *fd, char *note, size_t bytes, struct err *e);

#endif
