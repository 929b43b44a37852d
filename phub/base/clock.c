/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/base/clock.h"

#include <limits.h>
#include <time.h>

static uint64_t clock_read_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now); /* cannot fail: these clocks exist on every Linux */
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t clock_now_ns(void)
{
	return clock_read_ns(CLOCK_MONOTONIC);
}

uint64_t clock_outside_ns(void)
{
	return clock_read_ns(CLOCK_BOOTTIME);
}

uint64_t clock_thread_cpu_ns(void)
{
	return clock_read_ns(CLOCK_THREAD_CPUTIME_ID);
}

uint64_t clock_deadline_ns(uint64_t now_ns, int64_t timeout_ms)
{
	uint64_t timeout_ns, deadline_ns;

	if (timeout_ms < 0 || __builtin_mul_overflow((uint64_t)timeout_ms, NS_PER_MS, &timeout_ns) ||
		__builtin_add_overflow(now_ns, timeout_ns, &deadline_ns))
		return CLOCK_NEVER;
	return deadline_ns;
}

int clock_timeout_ms(uint64_t now_ns, uint64_t deadline_ns)
{
	if (deadline_ns == CLOCK_NEVER)
		return -1;
	if (deadline_ns <= now_ns)
		return 0;
	uint64_t left_ns = deadline_ns - now_ns;
	uint64_t left_ms = left_ns / NS_PER_MS + (left_ns % NS_PER_MS != 0);

	return left_ms > INT_MAX ? INT_MAX : (int)left_ms;
}
