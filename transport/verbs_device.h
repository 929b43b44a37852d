/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA devices: which ports there are, which can be used and why the others cannot, and those that are opened. Control
 * thread.
 */
#ifndef PHUB_TRANSPORT_VERBS_DEVICE_H
#define PHUB_TRANSPORT_VERBS_DEVICE_H

#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "transport/rdma.h"

/* One port of one device, opened. What a transport has of it is freed before it is closed. */
struct verbs_device {
	struct rdma_port about;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_device_attr attr;
	union ibv_gid gid;
	enum ibv_mtu mtu;
	uint16_t lid;   /* InfiniBand; 0 where GIDs route */
	int gid_wanted; /* index; -1: the best */
	uint8_t port;
	bool routed;        /* every packet has a global route header: RoCE */
	atomic_bool failed; /* for good; any thread sets it, owners of queues look, and no order is needed */
};

/*
 * Opens the usable ports that `wanted` names ("DEVICE[:PORT][@GID],..."; NULL or "": all), nearest to `interface` alone
 * when that is given. Returns how many (1..max); -EINVAL for names of another form; -ENODEV with what there is and why
 * it cannot be used in `e`, also when one of the names is of no port here; -ENOMEM. A port that was named and is left
 * out while others are opened is logged, unless `quiet`.
 */
int verbs_devices_open(
	const char *wanted, const char *interface, bool quiet, struct verbs_device *out, unsigned max, struct err *e);
void verbs_device_close(struct verbs_device *d);

/*
 * After the kernel refused to pin `bytes` with ENOMEM: -ENOMEM with a number that `ulimit -l` has to be, more than it
 * is; 0 where no limit holds for this process. Any thread, none that handles chunks.
 */
int verbs_limit_refused(uint64_t bytes, struct err *e);

/* Is its port up at this time? Asks the device. */
bool verbs_device_is_up(const struct verbs_device *d);

/*
 * Reads what the device has to say of itself (a port down, a device gone) and logs it; where its port, address or LID
 * changed, describes the port anew, for connections from then on. Never blocks.
 */
void verbs_device_listen(struct verbs_device *d);

#endif
