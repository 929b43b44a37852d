/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the box hands to a worker that it has admitted, over the Unix socket, after the welcome: 64 bytes that say how
 * large everything is, and the descriptors of the memory and the bells. Control thread; never blocks.
 *
 *      magic 4, version 1, descriptors 1, zero 2, ring capacity 4, slots 4,
 *      ring bytes 8, push bytes 8, result bytes 8, offset of the slots 8,
 *      bytes of a slot 4, zero 12                                              little-endian, 64 bytes
 */
#ifndef PHUB_TRANSPORT_SHM_PARCEL_H
#define PHUB_TRANSPORT_SHM_PARCEL_H

#include <stdint.h>

#include "transport/shm_ring.h"

#define SHM_PARCEL_VERSION 2

enum { SHM_PARCEL_BYTES = 64 };

/* The descriptors, in the order in which they travel. */
enum shm_parcel_fd {
	SHM_FD_RING,
	SHM_FD_PUSH,   /* mapped read-write by both */
	SHM_FD_RESULT, /* the worker can map it read-only at most */
	SHM_FD_UP,     /* eventfd: the worker rings the box */
	SHM_FD_DOWN,   /* read end of a pipe: the box rings the worker */
	SHM_FD_COUNT,
};

struct shm_parcel {
	uint32_t capacity; /* of either lane */
	uint64_t ring_bytes, push_bytes, result_bytes;
	struct shm_slots slots; /* of the connection, within push_bytes */
	int fds[SHM_FD_COUNT];
};

/* The numbers as bytes, and back: 0, -EPROTO or -EPROTONOSUPPORT. Pure; the descriptors are not touched. */
void shm_parcel_encode(const struct shm_parcel *p, uint8_t out[SHM_PARCEL_BYTES]);
int shm_parcel_decode(const uint8_t in[SHM_PARCEL_BYTES], struct shm_parcel *out);

/* Box: sends it; the descriptors stay the caller's. 0 or a negative errno. */
int shm_parcel_send(int socket, const struct shm_parcel *p);

/* Worker: 0 with the descriptors now the caller's, -EAGAIN when it has not come, or a negative errno. */
int shm_parcel_receive(int socket, struct shm_parcel *out);

/* Closes the descriptors that are not -1 and makes them -1. */
void shm_parcel_close(struct shm_parcel *p);

#endif
