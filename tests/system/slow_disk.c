/* SPDX-License-Identifier: Apache-2.0 */
/*
 * To be preloaded: a disk that does not answer. While the file that PHUB_TEST_SLOW_DISK names is there, no fsync() and
 * no fdatasync() returns; each says that it waits on standard error.
 */
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Seen from outside, to come before libc's. */
__attribute__((visibility("default"))) int fsync(int fd);
__attribute__((visibility("default"))) int fdatasync(int fd);

static void slow_wait(void)
{
	static const char line[] = "slow disk: a sync waits\n";
	const char *path = getenv("PHUB_TEST_SLOW_DISK");

	if (!path || access(path, F_OK) != 0)
		return;
	(void)!write(STDERR_FILENO, line, sizeof(line) - 1);
	while (access(path, F_OK) == 0)
		usleep(10000);
}

int fsync(int fd)
{
	slow_wait();
	return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
	slow_wait();
	return (int)syscall(SYS_fdatasync, fd);
}
