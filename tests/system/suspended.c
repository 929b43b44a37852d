/* SPDX-License-Identifier: Apache-2.0 */
/*
 * To be preloaded: a machine that was suspended. Once the file that PHUB_TEST_SUSPENDED names is there, an hour more
 * has passed by CLOCK_BOOTTIME, and by no other clock.
 */
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SUSPENDED_S = 3600 };

/* Seen from outside, to come before libc's. */
__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *out);

int clock_gettime(clockid_t clock, struct timespec *out)
{
	const char *path = clock == CLOCK_BOOTTIME ? getenv("PHUB_TEST_SUSPENDED") : NULL;
	int rc = (int)syscall(SYS_clock_gettime, clock, out);

	if (rc == 0 && path && access(path, F_OK) == 0)
		out->tv_sec += SUSPENDED_S;
	return rc;
}
