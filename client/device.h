/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of GPUs: is a pointer one of theirs, and copies between it and the library's own memory, which run by
 * themselves and are asked for their end. Through CUDA's driver, which is neither linked nor loaded nor initialized
 * here: a process that has not done so itself has no pointer into a device. Under the handle's lock, but for
 * device_look() and device_holds(), which any thread may call; nothing blocks where it does not say so.
 */
#ifndef PHUB_CLIENT_DEVICE_H
#define PHUB_CLIENT_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"

enum {
	DEVICE_PINS = 4, /* pushes and results, of which a job has at most two places each */
	/*
	 * Copies that lie side by side are joined up to so much. An H200 takes 2.5 us for each, however small: for 100
	 * MiB both ways at once 8.2 ms in copies of 64 KiB, 3.9 of 256 KiB, 2.5 of 1 MiB, 2.2 of 4 MiB.
	 */
	DEVICE_PIECE_BYTES = 1 << 20,
};

/* A context of CUDA: its streams, one each way, and the copies that run there. */
struct device;

/* Where an address lies. */
struct device_place {
	void *context; /* NULL: memory of no context in particular, such as a pool's; the device's primary one will do
			*/
	int ordinal;
};

/* Those that rounds of one key table have met; all zero: none. */
struct devices {
	struct device *first;
	uint32_t copies_max; /* set before the first is met: so many may be under way */
	uint32_t copies;     /* that are under way */
	struct err failure;  /* code 0: none. A copy could not be begun, or broke: those under way never end. */
	void *pins[DEVICE_PINS];
	unsigned pin_count;
};

/*
 * Has the process loaded CUDA since? Costs a walk to the first of the libraries when none was loaded; a first device
 * pointer is known as one only after it.
 */
void device_look(void);

/* Is this the address of memory that a device has and the host does not? Managed and pinned memory is the host's. */
bool device_holds(const void *addr, struct device_place *out);

/*
 * A dma-buf of this memory of a device; its first byte lies at *offset. Its fd, which is the caller's to close, or
 * -ENOTSUP: device or driver have none, or work that is begun on the device later might not see what a NIC has written.
 */
int device_export(const struct device_place *place, const void *addr, size_t bytes, uint64_t *offset);

/* The device of this place, made when it is met first. 0, -ENOMEM, or -EIO (what CUDA said is in `e`). */
int devices_get(struct devices *d, const struct device_place *place, struct device **out, struct err *e);

/*
 * Lets the devices read or write this memory by themselves, until devices_unpin(). Where CUDA cannot pin it, copies
 * work all the same, but run while they are begun.
 */
void devices_pin(struct devices *d, struct device *device, const void *addr, size_t bytes, bool read_only);
/* Before that memory is unmapped; no copy is under way. */
void devices_unpin(struct devices *d);

/*
 * Begins a copy from or to the device; devices_done() will return `cookie`. One that goes on where the last one of the
 * same owner stopped, on both sides, is joined to it. devices_flush() lets go of what waits for such.
 */
void device_fetch(struct devices *d, struct device *device, void *host, const void *from, size_t bytes,
	const void *owner, void *cookie);
void device_store(struct devices *d, struct device *device, void *to, const void *host, size_t bytes, const void *owner,
	void *cookie);
void devices_flush(struct devices *d);

/* The cookie of a copy that is done, or NULL: none is, or one has failed. */
void *devices_done(struct devices *d);

/* Copies to the device and blocks until that is done. 0 or -EIO. */
int device_store_now(struct device *device, void *to, const void *host, size_t bytes, struct err *e);

/*
 * Blocks until no copy runs, which takes as long as those that were begun: none of them touches any memory any more.
 * They are forgotten.
 */
void devices_drain(struct devices *d);

/* Drains, unpins, frees. */
void devices_fini(struct devices *d);

#endif
