/* SPDX-License-Identifier: Apache-2.0 */
/* The parcel that an admitted worker gets: its bytes, and its descriptors through SCM_RIGHTS. Control thread. */
#include "transport/shm_parcel.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "transport/le.h"
#include "transport/shm_ring.h"

#define SHM_PARCEL_MAGIC 0x4d534850u /* "PHSM" in the order of the bytes */

enum shm_parcel_offset {
	PARCEL_AT_MAGIC = 0,
	PARCEL_AT_VERSION = 4,
	PARCEL_AT_FDS = 5,
	PARCEL_AT_ZERO = 6,
	PARCEL_AT_CAPACITY = 8,
	PARCEL_AT_SLOTS = 12,
	PARCEL_AT_RING = 16,
	PARCEL_AT_PUSH = 24,
	PARCEL_AT_RESULT = 32,
	PARCEL_AT_SLOT_OFFSET = 40,
	PARCEL_AT_SLOT_BYTES = 48,
	PARCEL_AT_REST = 52,
};

/* Room for one control message with all descriptors, and alignment for its head. */
union shm_parcel_control {
	struct cmsghdr head;
	char bytes[CMSG_SPACE(SHM_FD_COUNT * sizeof(int))];
};

void shm_parcel_encode(const struct shm_parcel *p, uint8_t out[SHM_PARCEL_BYTES])
{
	memset(out, 0, SHM_PARCEL_BYTES);
	le_put32(out + PARCEL_AT_MAGIC, SHM_PARCEL_MAGIC);
	out[PARCEL_AT_VERSION] = SHM_PARCEL_VERSION;
	out[PARCEL_AT_FDS] = SHM_FD_COUNT;
	le_put32(out + PARCEL_AT_CAPACITY, p->capacity);
	le_put32(out + PARCEL_AT_SLOTS, p->slots.count);
	le_put64(out + PARCEL_AT_RING, p->ring_bytes);
	le_put64(out + PARCEL_AT_PUSH, p->push_bytes);
	le_put64(out + PARCEL_AT_RESULT, p->result_bytes);
	le_put64(out + PARCEL_AT_SLOT_OFFSET, p->slots.offset);
	le_put32(out + PARCEL_AT_SLOT_BYTES, p->slots.bytes);
}

int shm_parcel_decode(const uint8_t in[SHM_PARCEL_BYTES], struct shm_parcel *out)
{
	const struct shm_slots slots = {
		.offset = le_get64(in + PARCEL_AT_SLOT_OFFSET),
		.count = le_get32(in + PARCEL_AT_SLOTS),
		.bytes = le_get32(in + PARCEL_AT_SLOT_BYTES),
	};
	uint32_t capacity = le_get32(in + PARCEL_AT_CAPACITY);

	if (le_get32(in + PARCEL_AT_MAGIC) != SHM_PARCEL_MAGIC)
		return -EPROTO;
	if (in[PARCEL_AT_VERSION] != SHM_PARCEL_VERSION)
		return -EPROTONOSUPPORT;
	if (in[PARCEL_AT_FDS] != SHM_FD_COUNT || in[PARCEL_AT_ZERO] || in[PARCEL_AT_ZERO + 1])
		return -EPROTO;
	for (unsigned i = PARCEL_AT_REST; i < SHM_PARCEL_BYTES; i++)
		if (in[i])
			return -EPROTO;
	if (!shm_ring_capacity_valid(capacity) || le_get64(in + PARCEL_AT_RING) != shm_ring_bytes(capacity))
		return -EPROTO;
	if (!le_get64(in + PARCEL_AT_PUSH) || !le_get64(in + PARCEL_AT_RESULT) ||
		!shm_slots_fit(&slots, le_get64(in + PARCEL_AT_PUSH)))
		return -EPROTO;
	out->capacity = capacity;
	out->ring_bytes = le_get64(in + PARCEL_AT_RING);
	out->push_bytes = le_get64(in + PARCEL_AT_PUSH);
	out->result_bytes = le_get64(in + PARCEL_AT_RESULT);
	out->slots = slots;
	return 0;
}

int shm_parcel_send(int socket, const struct shm_parcel *p)
{
	uint8_t bytes[SHM_PARCEL_BYTES];
	union shm_parcel_control control;
	struct iovec iov = {.iov_base = bytes, .iov_len = sizeof(bytes)};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes)};
	ssize_t n;

	shm_parcel_encode(p, bytes);
	memset(&control, 0, sizeof(control));
	control.head.cmsg_level = SOL_SOCKET;
	control.head.cmsg_type = SCM_RIGHTS;
	control.head.cmsg_len = CMSG_LEN(sizeof(p->fds));
	memcpy(CMSG_DATA(&control.head), p->fds, sizeof(p->fds));
	n = sendmsg(socket, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0)
		return -errno;
	/* So few bytes go out whole or not at all, unless the socket is not ours. */
	return n == sizeof(bytes) ? 0 : -EPROTO;
}

/* Moves the descriptors out of the control messages; all of them, even too few or too many. Returns how many came. */
static unsigned shm_parcel_take_fds(struct msghdr *msg, struct shm_parcel *out)
{
	unsigned count = 0;

	for (struct cmsghdr *head = CMSG_FIRSTHDR(msg); head; head = CMSG_NXTHDR(msg, head)) {
		unsigned here = (unsigned)((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));

		if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
			continue;
		for (unsigned i = 0; i < here; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(fd));
			if (count < SHM_FD_COUNT)
				out->fds[count++] = fd;
			else
				close(fd);
		}
	}
	return count;
}

int shm_parcel_receive(int socket, struct shm_parcel *out)
{
	uint8_t bytes[SHM_PARCEL_BYTES];
	union shm_parcel_control control;
	struct iovec iov = {.iov_base = bytes, .iov_len = sizeof(bytes)};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes)};
	struct shm_parcel p = {.fds = {-1, -1, -1, -1, -1}};
	unsigned count;
	ssize_t n;
	int rc;

	n = recvmsg(socket, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return errno == EINTR ? -EAGAIN : -errno;
	if (n == 0)
		return -ECONNRESET;
	count = shm_parcel_take_fds(&msg, &p);
	/* Descriptors go missing when this process may open no more. */
	if (msg.msg_flags & MSG_CTRUNC)
		rc = -EMFILE;
	else if (n != sizeof(bytes) || count != SHM_FD_COUNT)
		rc = -EPROTO;
	else
		rc = shm_parcel_decode(bytes, &p);
	if (rc < 0)
		shm_parcel_close(&p);
	else
		*out = p;
	return rc;
}

void shm_parcel_close(struct shm_parcel *p)
{
	for (unsigned i = 0; i < SHM_FD_COUNT; i++) {
		if (p->fds[i] >= 0)
			close(p->fds[i]);
		p->fds[i] = -1;
	}
}
