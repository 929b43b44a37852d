/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounded queues between threads of one process, without locks: one writer and one reader (spsc), or many writers and
 * one reader (mpsc). Entries have a fixed size and are copied in and out. Rings between processes are in transport/shm:
 * they must not believe their peer, these do.
 */
#ifndef PHUB_BASE_RING_H
#define PHUB_BASE_RING_H

#include <stdbool.h>
#include <stdint.h>

#define RING_CAPACITY_MAX    (1u << 24)
#define RING_ENTRY_BYTES_MAX 4096u

struct ring_spsc;
struct ring_mpsc;

/*
 * Control thread. `capacity` entries, rounded up to a power of two, at least 2. 0; -EINVAL: nothing or more than the
 * limits above; -ENOMEM.
 */
int ring_spsc_create(uint32_t capacity, uint32_t entry_bytes, struct ring_spsc **out);
int ring_mpsc_create(uint32_t capacity, uint32_t entry_bytes, struct ring_mpsc **out);

/* When no thread uses the ring any more; what is still in it is lost. NULL is ignored. */
void ring_spsc_destroy(struct ring_spsc *ring);
void ring_mpsc_destroy(struct ring_mpsc *ring);

uint32_t ring_spsc_capacity(const struct ring_spsc *ring);
uint32_t ring_mpsc_capacity(const struct ring_mpsc *ring);

/* The one writer (spsc), any thread (mpsc). Never blocks. 0, or -EAGAIN when the ring is full: nothing was taken. */
int ring_spsc_push(struct ring_spsc *ring, const void *entry);
int ring_mpsc_push(struct ring_mpsc *ring, const void *entry);

/*
 * The one reader. Never blocks. 0, or -EAGAIN: nothing to read. Entries of one writer come in its order. Of several,
 * they come in the order in which they took their places; one that was preempted in mid-push holds back those behind.
 */
int ring_spsc_pop(struct ring_spsc *ring, void *entry);
int ring_mpsc_pop(struct ring_mpsc *ring, void *entry);

/*
 * The one reader: would a pop find something? For a reader that is about to sleep. Sequentially consistent, and so is
 * the publication in push: a reader that stores its flag "asleep" (seq_cst) and then finds nothing here, and a writer
 * that pushes and then loads that flag (seq_cst), cannot miss each other.
 */
bool ring_spsc_ready(const struct ring_spsc *ring);
bool ring_mpsc_ready(const struct ring_mpsc *ring);

#endif
