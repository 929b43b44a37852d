/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See dpdk_rig.h.
 */
#include "tests/unit/dpdk_rig.h"

#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "phub/base/clock.h"
#include "phub/base/mem.h"
#include "tests/suite/transport_rig.h"

bool dpdk_rig_veth(void)
{
	return rig_shell(
		"ip link set lo up; ip link add phub-a up type veth peer name phub-b && ip link set phub-b up && "
		"ip addr add " KERNEL_IP "/24 dev phub-b && sysctl -qw net.ipv6.conf.all.disable_ipv6=1");
}

struct datagram_port *dpdk_rig_port(const struct dpdk_plugin *plugin, struct dpdk_nic *nic, unsigned index)
{
	struct datagram_port *p = NULL;
	struct err e = {0};

	if (plugin->port_open(nic, index, MEM_NODE_ANY, "", &p, &e) < 0)
		fail_msg("%s", e.text);
	return p;
}

static struct sockaddr_in kernel_address(const char *ip, uint16_t port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};

	assert_int_equal(inet_pton(AF_INET, ip, &a.sin_addr), 1);
	return a;
}

int dpdk_rig_socket(uint16_t *port)
{
	struct sockaddr_in a = kernel_address(KERNEL_IP, 0);
	socklen_t length = sizeof(a);
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &length), 0);
	*port = ntohs(a.sin_port);
	return fd;
}

void dpdk_rig_say(int fd, const struct datagram_port *p, const char *text)
{
	struct sockaddr_in to = kernel_address(OUR_IP, p->address.port);

	assert_int_equal(sendto(fd, text, strlen(text), 0, (struct sockaddr *)&to, sizeof(to)), strlen(text));
}

ssize_t dpdk_rig_hear(int fd, struct datagram_port *p, void *out, size_t bytes, int ms)
{
	uint64_t until = clock_now_ns() + (uint64_t)ms * NS_PER_MS;
	struct datagram_in in[4];
	ssize_t got;

	do {
		p->ops->receive(p, in, 4);
		p->ops->flush(p);
		got = recv(fd, out, bytes, 0);
	} while (got < 0 && (errno == EAGAIN || errno == ECONNREFUSED) && clock_now_ns() < until);
	return got;
}
