/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mail from control to a core that never gets lost: what does not fit the core's mailbox waits here, in order, and is
 * sent at a later step. Control thread; does not block.
 */
#ifndef PHUB_CONTROL_POST_H
#define PHUB_CONTROL_POST_H

#include <stdbool.h>
#include <stddef.h>

#include "phub/mailbox.h"

struct post {
	struct mailbox *inbox;
	struct mail *waiting; /* [room], from `first` on, `count` of them */
	size_t first, count, room;
};

/* Sends, behind what waits already. Ends the process when there is no memory for so small a thing. */
void post_send(struct post *p, const struct mail *mail);

/* Sends what waits. True when nothing is left. */
bool post_flush(struct post *p);

void post_fini(struct post *p);

#endif
