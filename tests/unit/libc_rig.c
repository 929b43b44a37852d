/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands before the C library. Default visibility makes libcurl's threads find these, too.
 */
#include "tests/unit/libc_rig.h"

#include <dlfcn.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

int (*libc_rig_lookup)(const char **host, const struct addrinfo *hints);
struct ifaddrs *libc_rig_addresses;
int (*libc_rig_sendmmsg)(int fd, struct mmsghdr *messages, unsigned count, int flags);

__attribute__((visibility("default"))) int getaddrinfo(
	const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
	int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
	int rc = libc_rig_lookup ? libc_rig_lookup(&host, hints) : 0;

	*(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
	return rc ? rc : real(host, service, hints, out);
}

int getifaddrs(struct ifaddrs **out)
{
	int (*real)(struct ifaddrs **);

	if (libc_rig_addresses) {
		*out = libc_rig_addresses;
		return 0;
	}
	*(void **)&real = dlsym(RTLD_NEXT, "getifaddrs");
	return real(out);
}

void freeifaddrs(struct ifaddrs *list)
{
	void (*real)(struct ifaddrs *);

	if (list && list == libc_rig_addresses)
		return;
	*(void **)&real = dlsym(RTLD_NEXT, "freeifaddrs");
	real(list);
}

int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
	if (libc_rig_sendmmsg)
		return libc_rig_sendmmsg(fd, messages, count, flags);
	return (int)syscall(SYS_sendmmsg, fd, messages, count, flags);
}
