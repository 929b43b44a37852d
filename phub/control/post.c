/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The overflow of a core's mailbox. It is bounded by what control can owe a core: an attach, a detach, a link per
 * worker, a table per version in flight, a question per worker of each job and one for each stall that a core tells.
 */
#include "phub/control/post.h"

#include <stdlib.h>

#include "phub/base/log.h"

static void post_keep(struct post *p, const struct mail *mail)
{
	if (p->first > 0 && p->first + p->count == p->room) {
		for (size_t i = 0; i < p->count; i++)
			p->waiting[i] = p->waiting[p->first + i];
		p->first = 0;
	}
	if (p->count == p->room) {
		size_t room = p->room ? p->room * 2 : 64;
		struct mail *grown = realloc(p->waiting, room * sizeof(*grown));

		if (!grown) {
			log_error("no memory for mail to a core; the box ends");
			abort();
		}
		p->waiting = grown;
		p->room = room;
	}
	p->waiting[p->first + p->count] = *mail;
	p->count++;
}

void post_send(struct post *p, const struct mail *mail)
{
	if (!post_flush(p) || mailbox_send(p->inbox, mail) < 0)
		post_keep(p, mail);
}

bool post_flush(struct post *p)
{
	while (p->count > 0 && mailbox_send(p->inbox, &p->waiting[p->first]) == 0) {
		p->first++;
		p->count--;
	}
	if (p->count == 0)
		p->first = 0;
	return p->count == 0;
}

void post_fini(struct post *p)
{
	free(p->waiting);
	*p = (struct post){0};
}
