/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring with many writers, and an eventfd for a reader that sleeps. The reader stores `asleep`, then looks into
 * the ring once more; a writer fills the ring, then loads `asleep`: both sequentially consistent, so at least one
 * of them sees the other.
 */
#include "phub/mailbox.h"

#include "phub/base/cpu.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct mailbox {
	struct ring_mpsc *ring;
	int fd;
	_Alignas(CPU_LINE_BYTES) _Atomic int asleep; /* written by the reader, and by the writer who wakes it */
};

int mailbox_create(unsigned count_max, struct mailbox **out)
{
	struct mailbox *m = aligned_alloc(CPU_LINE_BYTES, sizeof(*m));
	int rc;

	if (!m)
		return -ENOMEM;
	rc = ring_mpsc_create(count_max, sizeof(struct mail), &m->ring);
	if (rc < 0)
		goto free_mailbox;
	m->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (m->fd < 0) {
		rc = -errno;
		goto destroy_ring;
	}
	atomic_init(&m->asleep, 0);
	*out = m;
	return 0;
destroy_ring:
	ring_mpsc_destroy(m->ring);
free_mailbox:
	free(m);
	return rc;
}

void mailbox_destroy(struct mailbox *m)
{
	if (!m)
		return;
	ring_mpsc_destroy(m->ring);
	close(m->fd);
	free(m);
}

int mailbox_send(struct mailbox *m, const struct mail *mail)
{
	uint64_t one = 1;
	int rc = ring_mpsc_push(m->ring, mail);

	if (rc < 0)
		return rc;
	if (atomic_load(&m->asleep) && atomic_exchange(&m->asleep, 0)) {
		ssize_t written = write(m->fd, &one, sizeof(one));

		(void)written; /* an eventfd that is full is readable already */
	}
	return 0;
}

int mailbox_receive(struct mailbox *m, struct mail *mail)
{
	return ring_mpsc_pop(m->ring, mail);
}

int mailbox_arm(struct mailbox *m)
{
	atomic_store(&m->asleep, 1);
	return ring_mpsc_ready(m->ring) ? -EAGAIN : m->fd;
}

void mailbox_disarm(struct mailbox *m)
{
	uint64_t count;

	ssize_t got;

	atomic_store(&m->asleep, 0);
	/*
	 * Read in any case: who found us asleep the last time may have written only after we looked, and a level that
	 * nobody takes back would let no later sleep be one.
	 */
	got = read(m->fd, &count, sizeof(count));
	(void)got;
}
