/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 for tests where there is no GPU: what libphub calls of CUDA's driver, and knobs. "Device memory" is
 * memory of the host that nobody may touch (PROT_NONE); only the stand-in knows where else it is mapped. A copy waits
 * on its stream until an event behind it was asked so often, or the stream is waited for; until then its destination
 * holds garbage, if it is the host's.
 */
#ifndef PHUB_TESTS_SUITE_CUDA_STAND_IN_H
#define PHUB_TESTS_SUITE_CUDA_STAND_IN_H

#include <stdatomic.h>
#include <stddef.h>

/* The library's variable cuda_stand_in. */
struct cuda_stand_in {
	atomic_uint queries;         /* an event is done when it was asked more often than this */
	atomic_uint queries_to_host; /* and if what is before it goes to the host, so much oftener */
	atomic_int fail;             /* what cuEventQuery() says instead; 0: nothing */
	atomic_int dma_buf;          /* the device has dma-bufs */
	atomic_int ordering;         /* CU_GPU_DIRECT_RDMA_WRITES_ORDERING_... of it */
	atomic_int pool;             /* memory is of no context, as that of a pool */
	/* what was seen, since it was loaded */
	atomic_uint copies, events_recorded;
	atomic_uint wrong; /* calls with what is not there, in no context, or on memory that is not pinned */
	/* what there is now */
	atomic_int waiting, pins, streams, events, contexts_retained;
};

/* Of the library: device memory, and where the test itself finds it. */
typedef int cuda_alloc(void **device, size_t bytes);
typedef int cuda_free(void *device);
typedef void *cuda_alias(const void *device);

#endif
