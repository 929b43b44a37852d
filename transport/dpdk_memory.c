/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of jobs that a device reads results from. It is told to EAL once (rte_extmem_register), and mapped for each
 * device that is no software: a NIC reads bus addresses, and an IOMMU lets it. What is not mapped is copied. Control
 * thread, but for dpdk_memory_end() and dpdk_memory_has().
 *
 * No NIC was at hand: registering, counting and taking back were tried with net_ring, which keeps packets as a NIC
 * does, and whose bus has nothing to map; rte_dev_dma_map() of a PCI device, and what an IOMMU says to it, were not.
 */
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_memory.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "transport/dpdk_internal.h"

enum { MEMORY_MAX = DPDK_REGIONS_MAX * DPDK_PORTS_MAX };

/* What EAL knows, of all devices of this process. Control thread. */
static struct {
	void *base;
	size_t bytes;
	unsigned uses;
} memory_known[MEMORY_MAX];

static int memory_register(void *base, size_t bytes, bool huge)
{
	size_t page = huge ? RTE_PGSIZE_2M : (size_t)sysconf(_SC_PAGESIZE);
	unsigned spot = MEMORY_MAX;

	for (unsigned i = MEMORY_MAX; i-- > 0;) {
		if (memory_known[i].uses == 0) {
			spot = i;
		} else if (memory_known[i].base == base && memory_known[i].bytes == bytes) {
			memory_known[i].uses++;
			return 0;
		}
	}
	if (spot == MEMORY_MAX)
		return -ENOSPC;
	if (rte_extmem_register(base, bytes, NULL, (unsigned)(bytes / page), page) < 0)
		return -rte_errno;
	memory_known[spot].base = base;
	memory_known[spot].bytes = bytes;
	memory_known[spot].uses = 1;
	return 0;
}

static void memory_unregister(void *base)
{
	for (unsigned i = 0; i < MEMORY_MAX; i++) {
		if (memory_known[i].uses == 0 || memory_known[i].base != base)
			continue;
		if (--memory_known[i].uses == 0)
			rte_extmem_unregister(base, memory_known[i].bytes);
		return;
	}
}

static struct rte_device *memory_device(const struct dpdk_nic *nic)
{
	struct rte_eth_dev_info info;

	return rte_eth_dev_info_get(nic->id, &info) == 0 ? info.device : NULL;
}

static void memory_remove(struct dpdk_nic *nic, struct dpdk_region *r)
{
	struct rte_device *device = memory_device(nic);

	if (r->mapped) {
		if (device)
			rte_dev_dma_unmap(device, r->base, (uintptr_t)r->base, r->bytes);
		memory_unregister(r->base);
		nic->region_count--;
	}
	rte_spinlock_lock(&nic->region_lock);
	*r = (struct dpdk_region){0};
	rte_spinlock_unlock(&nic->region_lock);
}

/*
 * Takes back what nobody uses. Here, and not when the last connection has gone: that is on a core, and what a NIC may
 * still read then stays where it is, pinned. New memory at the same place comes here first.
 */
void dpdk_memory_reap(struct dpdk_nic *nic)
{
	for (unsigned i = 0; i < DPDK_REGIONS_MAX; i++) {
		struct dpdk_region *r = &nic->regions[i];
		bool dead;

		rte_spinlock_lock(&nic->region_lock);
		dead = r->base && r->uses == 0;
		if (dead)
			atomic_fetch_add_explicit(&nic->region_changes, 1, memory_order_release);
		rte_spinlock_unlock(&nic->region_lock);
		/* Only this thread makes regions, and nobody looks at one without a use. */
		if (dead)
			memory_remove(nic, r);
	}
}

static int memory_map(struct dpdk_nic *nic, void *base, size_t bytes, bool huge)
{
	struct rte_device *device = memory_device(nic);
	int rc = device ? memory_register(base, bytes, huge) : -ENODEV;

	if (rc < 0 || rte_dev_dma_map(device, base, (uintptr_t)base, bytes) == 0)
		return rc;
	rc = rte_errno ? -rte_errno : -EIO;
	memory_unregister(base);
	return rc;
}

/* Mapped or not, it has a place, so that nobody tries again. NULL: there is none. */
static struct dpdk_region *memory_add(struct dpdk_nic *nic, void *base, size_t bytes, bool huge)
{
	struct dpdk_region *r = nic->regions;
	char line[512];
	int rc;

	while (r < nic->regions + DPDK_REGIONS_MAX && r->base)
		r++;
	if (r == nic->regions + DPDK_REGIONS_MAX)
		return NULL;
	rc = memory_map(nic, base, bytes, huge);
	if (rc < 0 && !nic->map_told) {
		nic->map_told = true;
		snprintf(line, sizeof(line), "%s cannot read %zu bytes of results where they lie (%s): they are copied",
			nic->spec.device, bytes, strerror(-rc));
		nic->host.log(LOG_LEVEL_WARN, line);
	}
	rte_spinlock_lock(&nic->region_lock);
	*r = (struct dpdk_region){.base = base, .bytes = bytes, .mapped = rc == 0};
	rte_spinlock_unlock(&nic->region_lock);
	nic->region_count += rc == 0;
	return r;
}

bool dpdk_memory_use(void *owner, void *base, size_t bytes, bool huge)
{
	struct dpdk_nic *nic = owner;
	struct dpdk_region *r = NULL;

	if (!nic->maps)
		return true;
	dpdk_memory_reap(nic);
	for (unsigned i = 0; i < DPDK_REGIONS_MAX && !r; i++)
		if (nic->regions[i].base == base && nic->regions[i].bytes == bytes)
			r = &nic->regions[i];
	r = r ? r : memory_add(nic, base, bytes, huge);
	if (!r)
		return false;
	rte_spinlock_lock(&nic->region_lock);
	r->uses++;
	atomic_fetch_add_explicit(&nic->region_changes, 1, memory_order_release);
	rte_spinlock_unlock(&nic->region_lock);
	return true;
}

void dpdk_memory_end(void *owner, void *base)
{
	struct dpdk_nic *nic = owner;

	rte_spinlock_lock(&nic->region_lock);
	for (unsigned i = 0; i < DPDK_REGIONS_MAX; i++)
		if (nic->regions[i].base == base && nic->regions[i].uses > 0)
			nic->regions[i].uses--;
	rte_spinlock_unlock(&nic->region_lock);
}

bool dpdk_memory_has(struct dpdk_port *p, const void *at, size_t bytes)
{
	struct dpdk_nic *nic = p->nic;
	uintptr_t from = (uintptr_t)at;
	uint64_t changes = atomic_load_explicit(&nic->region_changes, memory_order_acquire);

	if (changes == 0)
		return false; /* there never was one */
	/* Where the last one was, as a rule. */
	if (changes != p->mapped.changes || from < p->mapped.from || from + bytes > p->mapped.to) {
		p->mapped.from = p->mapped.to = 0;
		rte_spinlock_lock(&nic->region_lock);
		for (unsigned i = 0; i < DPDK_REGIONS_MAX; i++) {
			const struct dpdk_region *r = &nic->regions[i];
			uintptr_t base = (uintptr_t)r->base;

			if (r->uses == 0 || !r->mapped || from < base || from + bytes > base + r->bytes)
				continue;
			p->mapped.from = base;
			p->mapped.to = base + r->bytes;
		}
		p->mapped.changes = atomic_load_explicit(&nic->region_changes, memory_order_relaxed);
		rte_spinlock_unlock(&nic->region_lock);
	}
	return from >= p->mapped.from && from + bytes <= p->mapped.to && p->mapped.to != 0;
}
