/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of the C library that a test watches, delays or answers in its place: look-ups of names and addresses, and
 * sendmmsg(). Hooks hold for the whole program; a test sets them before the first thread starts. Without a hook a call
 * is the C library's.
 */
#ifndef TESTS_UNIT_LIBC_RIG_H
#define TESTS_UNIT_LIBC_RIG_H

#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>

/*
 * Runs before each getaddrinfo(), in the thread that calls it, and may replace HOST. Returns 0, or the EAI_* that
 * getaddrinfo() then returns without a look-up.
 */
extern int (*libc_rig_lookup)(const char **host, const struct addrinfo *hints);

/* What getifaddrs() finds; NULL: this machine's addresses. Stays the caller's. */
extern struct ifaddrs *libc_rig_addresses;

/* Stands in for sendmmsg(). */
extern int (*libc_rig_sendmmsg)(int fd, struct mmsghdr *messages, unsigned count, int flags);

#endif
