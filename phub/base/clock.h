/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time in nanoseconds of the monotonic clock. Only the outermost loops (a core's, the progress thread's) read it; all
 * others are given `now_ns`, so that tests and the simulation move time by assignment. Any thread; never blocks.
 */
#ifndef PHUB_BASE_CLOCK_H
#define PHUB_BASE_CLOCK_H

#include <stdint.h>

#define NS_PER_US 1000ull
#define NS_PER_MS 1000000ull
#define NS_PER_S  1000000000ull

#define CLOCK_NEVER UINT64_MAX /* a deadline that does not come */

uint64_t clock_now_ns(void);

/*
 * The time of those outside, with what this machine was suspended for (CLOCK_BOOTTIME; the one above stands still
 * then): what another gives for some time, a lease, is counted by it. Not to be compared with the above. Likewise.
 */
uint64_t clock_outside_ns(void);

/* CPU time of the calling thread: what other programs take away does not count. */
uint64_t clock_thread_cpu_ns(void);

/* now_ns + timeout_ms; CLOCK_NEVER when the timeout is negative (none) or the sum does not fit. */
uint64_t clock_deadline_ns(uint64_t now_ns, int64_t timeout_ms);

/*
 * What to give poll() or epoll_wait() so that it returns at the deadline, not before it: milliseconds rounded up, 0
 * when the deadline has passed, -1 for CLOCK_NEVER. Far deadlines are cut to INT_MAX: the caller looks at the clock
 * again.
 */
int clock_timeout_ms(uint64_t now_ns, uint64_t deadline_ns);

#endif
