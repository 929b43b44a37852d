/* SPDX-License-Identifier: Apache-2.0 */
/*
 * To be preloaded: a disk that does not answer, or has no room. While the file that PHUB_TEST_SLOW_DISK names is there,
 * no fsync() and no fdatasync() returns; while the one of PHUB_TEST_SLOW_LOCK is, no flock(); while the one of
 * PHUB_TEST_FULL_DISK is, fallocate() finds no space. Each says so on standard error.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Seen from outside, to come before libc's. */
__attribute__((visibility("default"))) int fsync(int fd);
__attribute__((visibility("default"))) int fdatasync(int fd);
__attribute__((visibility("default"))) int flock(int fd, int operation);
__attribute__((visibility("default"))) int fallocate(int fd, int mode, off_t offset, off_t bytes);

static void slow_wait(const char *variable, const char *line)
{
	const char *path = getenv(variable);

	if (!path || access(path, F_OK) != 0)
		return;
	(void)!write(STDERR_FILENO, line, strlen(line));
	while (access(path, F_OK) == 0)
		usleep(10000);
}

int fsync(int fd)
{
	slow_wait("PHUB_TEST_SLOW_DISK", "slow disk: a sync waits\n");
	return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
	slow_wait("PHUB_TEST_SLOW_DISK", "slow disk: a sync waits\n");
	return (int)syscall(SYS_fdatasync, fd);
}

int flock(int fd, int operation)
{
	slow_wait("PHUB_TEST_SLOW_LOCK", "slow disk: a lock waits\n");
	return (int)syscall(SYS_flock, fd, operation);
}

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
	static const char line[] = "full disk: no room\n";
	const char *path = getenv("PHUB_TEST_FULL_DISK");

	if (path && access(path, F_OK) == 0) {
		(void)!write(STDERR_FILENO, line, sizeof(line) - 1);
		errno = ENOSPC;
		return -1;
	}
	return (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
}
