/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last events of one core, in a ring that overwrites its oldest. Off, an event costs one predictable branch; on,
 * six stores. A trace has one writer, the core that owns it; any thread may dump it meanwhile.
 */
#ifndef PHUB_BASE_TRACE_H
#define PHUB_BASE_TRACE_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#define TRACE_EVENTS_MAX (1u << 24)
#define TRACE_WORDS      5 /* time, id, three arguments */

struct trace {
	_Atomic uint64_t (*events)[TRACE_WORDS]; /* NULL: off */
	uint64_t mask;
	_Atomic uint64_t next; /* events written so far; stored by the writer, read by trace_dump() */
};

/*
 * Control thread. Room for `count` events, rounded up to a power of two; 0 makes a trace that is off and stays off. 0,
 * -EINVAL: more than TRACE_EVENTS_MAX, -ENOMEM. An all-zero trace is off too.
 */
int trace_init(struct trace *trace, uint32_t count);
void trace_fini(struct trace *trace);

/*
 * The writer. Release on every store, paired with the acquires of trace_dump(): who sees a word of this event also sees
 * that `next` has come to it, and so knows that the event that stood here is gone. Plain stores on x86.
 */
static inline void trace_add(struct trace *trace, uint64_t now_ns, uint64_t id, uint64_t a, uint64_t b, uint64_t c)
{
	if (__builtin_expect(!trace->events, 1))
		return;
	uint64_t next = atomic_load_explicit(&trace->next, memory_order_relaxed);
	_Atomic uint64_t *event = trace->events[next & trace->mask];

	atomic_store_explicit(&event[0], now_ns, memory_order_release);
	atomic_store_explicit(&event[1], id, memory_order_release);
	atomic_store_explicit(&event[2], a, memory_order_release);
	atomic_store_explicit(&event[3], b, memory_order_release);
	atomic_store_explicit(&event[4], c, memory_order_release);
	atomic_store_explicit(&trace->next, next + 1, memory_order_release);
}

/*
 * Any thread but one that must not block. One line "time_ns name a b c" per event, oldest first; events overwritten
 * while it reads are left out. `name` gives an event's name, or NULL for its number. Returns how many were written.
 */
uint64_t trace_dump(const struct trace *trace, FILE *out, const char *(*name)(uint64_t id));

#endif
