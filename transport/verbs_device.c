/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds ports, says what is wrong with those that cannot be used, opens the others.
 */
#include "transport/verbs_device.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "phub/base/log.h"

enum {
	VERBS_GIDS_MAX = 256, /* of a port that are looked at */
	VERBS_CAP_IPC_LOCK = 14,
	VERBS_LIST_MAX = 256, /* bytes of all ports' names and troubles in one message */
};

/* ---- what a port says of itself ---- */

static bool verbs_is_mapped(const union ibv_gid *gid)
{
	static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};

	return memcmp(gid->raw, prefix, sizeof(prefix)) == 0;
}

static void verbs_gid_text(const union ibv_gid *gid, char *out, size_t bytes)
{
	bool mapped = verbs_is_mapped(gid);

	if (!inet_ntop(mapped ? AF_INET : AF_INET6, gid->raw + (mapped ? 12 : 0), out, (socklen_t)bytes))
		out[0] = '\0';
}

/* How much a GID is wanted; 0: not at all. */
static unsigned verbs_gid_rank(const struct ibv_gid_entry *g)
{
	bool local = g->gid.raw[0] == 0xfe && (g->gid.raw[1] & 0xc0) == 0x80;

	switch (g->gid_type) {
	case IBV_GID_TYPE_ROCE_V2:
		return verbs_is_mapped(&g->gid) ? 5 : local ? 3 : 4;
	case IBV_GID_TYPE_ROCE_V1:
		return 1;
	case IBV_GID_TYPE_IB:
		return 2;
	default:
		return 0;
	}
}

static const char *verbs_gid_kind(uint32_t type)
{
	return type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2" : type == IBV_GID_TYPE_ROCE_V1 ? "RoCE v1" : "InfiniBand";
}

/* The GID that is asked for (index, or -1 for the best one). False when there is none. */
static bool verbs_choose_gid(
	struct ibv_context *context, struct rdma_port *p, int entries, int index, union ibv_gid *gid)
{
	struct ibv_gid_entry best = {0};
	unsigned rank = 0;

	for (int i = index < 0 ? 0 : index; i < entries && i < VERBS_GIDS_MAX; i++) {
		struct ibv_gid_entry g;

		if (ibv_query_gid_ex(context, p->port, (uint32_t)i, &g, 0) == 0 && verbs_gid_rank(&g) > rank) {
			best = g;
			rank = verbs_gid_rank(&g);
		}
		if (index >= 0)
			break;
	}
	if (rank == 0)
		return false;
	p->gid_index = (int)best.gid_index;
	snprintf(p->kind, sizeof(p->kind), "%s", verbs_gid_kind(best.gid_type));
	verbs_gid_text(&best.gid, p->gid, sizeof(p->gid));
	if (!best.ndev_ifindex || !if_indextoname(best.ndev_ifindex, p->interface))
		p->interface[0] = '\0';
	*gid = best.gid;
	return true;
}

static uint64_t verbs_rate(const struct ibv_port_attr *a)
{
	static const struct {
		uint8_t code;
		uint32_t mbps;
	} speeds[] = {
		{1, 2500}, {2, 5000}, {4, 10000}, {8, 10000}, {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}};
	static const struct {
		uint8_t code;
		uint32_t lanes;
	} widths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
	uint32_t mbps = 2500, lanes = 1;

	for (size_t i = 0; i < sizeof(speeds) / sizeof(speeds[0]); i++)
		if (speeds[i].code == a->active_speed)
			mbps = speeds[i].mbps;
	for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
		if (widths[i].code == a->active_width)
			lanes = widths[i].lanes;
	return (uint64_t)mbps * lanes;
}

static int verbs_read_int(const char *path, int otherwise)
{
	FILE *f = fopen(path, "re");
	int value = otherwise;

	if (!f)
		return otherwise;
	if (fscanf(f, "%d", &value) != 1)
		value = otherwise;
	fclose(f);
	return value;
}

static const char *verbs_state(enum ibv_port_state state)
{
	return state == IBV_PORT_ACTIVE  ? "active"
	       : state == IBV_PORT_ARMED ? "armed"
	       : state == IBV_PORT_INIT  ? "init"
					 : "down";
}

static void verbs_refuse(struct rdma_port *p, const char *why, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static void verbs_refuse(struct rdma_port *p, const char *why, const char *format, ...)
{
	va_list arguments;

	snprintf(p->why, sizeof(p->why), "%s", why);
	va_start(arguments, format);
	vsnprintf(p->cure, sizeof(p->cure), format, arguments);
	va_end(arguments);
}

/* What is wrong with a port whose device would do. */
static void verbs_judge_port(struct rdma_port *p, const struct ibv_port_attr *port, int gid_index, bool has_gid)
{
	const char *interface = p->interface[0] ? p->interface : "INTERFACE (`rdma link` names it)";
	char why[64];

	if (port->state != IBV_PORT_ACTIVE) {
		snprintf(why, sizeof(why), "the port is %s", p->state);
		if (port->link_layer == IBV_LINK_LAYER_ETHERNET)
			verbs_refuse(p, why, "ip link set up dev %s; is the cable plugged in?", interface);
		else
			verbs_refuse(p, why, "plug the cable in, or start a subnet manager (opensm)");
	} else if (!has_gid && gid_index >= 0) {
		snprintf(why, sizeof(why), "it has no GID of index %d", gid_index);
		verbs_refuse(p, why, "leave @%d away; `phub topo` shows the GID that is taken then", gid_index);
	} else if (!has_gid) {
		verbs_refuse(p, "it has no GID that fits", "ip address add ADDRESS/BITS dev %s", interface);
	} else {
		p->usable = true;
	}
}

/* Why this port cannot be used, in p->why and p->cure; p->usable when it can. */
static void verbs_judge(struct rdma_port *p, const struct ibv_device *device, const struct ibv_device_attr *attr,
	const struct ibv_port_attr *port, int gid_index, bool has_gid)
{
	p->usable = false;
	if (device->transport_type == IBV_TRANSPORT_IWARP)
		verbs_refuse(p, "iWARP has no immediate data", "use RoCE or InfiniBand, or transport tcp");
	else if (attr->max_srq == 0 || attr->max_srq_wr == 0)
		verbs_refuse(p, "the device has no shared receive queues", "use transport tcp");
	else
		verbs_judge_port(p, port, gid_index, has_gid);
}

/* Fills in a port. `gid_index` -1: the best. */
static int verbs_describe(struct ibv_context *context, const struct ibv_device_attr *attr, unsigned number,
	int gid_index, struct rdma_port *p, union ibv_gid *gid, struct ibv_port_attr *port)
{
	char path[128];
	bool has_gid;
	int speed;

	memset(p, 0, sizeof(*p));
	snprintf(p->device, sizeof(p->device), "%s", ibv_get_device_name(context->device));
	p->port = number;
	if (ibv_query_port(context, (uint8_t)number, port) != 0)
		return -errno;
	snprintf(path, sizeof(path), "/sys/class/infiniband/%.60s/device/numa_node", p->device);
	p->node = verbs_read_int(path, -1);
	snprintf(p->state, sizeof(p->state), "%s", verbs_state(port->state));
	snprintf(p->kind, sizeof(p->kind), "%s",
		context->device->transport_type == IBV_TRANSPORT_IWARP ? "iWARP"
		: port->link_layer == IBV_LINK_LAYER_ETHERNET          ? "RoCE"
								       : "InfiniBand");
	p->mtu = 128u << port->active_mtu;
	p->rate_mbps = verbs_rate(port);
	p->gid_index = -1;
	has_gid = verbs_choose_gid(context, p, port->gid_tbl_len, gid_index, gid);
	/* An Ethernet interface knows its rate better. */
	snprintf(path, sizeof(path), "/sys/class/net/%s/speed", p->interface);
	speed = p->interface[0] ? verbs_read_int(path, 0) : 0;
	if (speed > 0)
		p->rate_mbps = (uint64_t)speed;
	verbs_judge(p, context->device, attr, port, gid_index, has_gid);
	return 0;
}

/* ---- listing ---- */

/* A device that cannot be opened. The library's errno is that of the last way it tried, mostly ENOENT. */
static void verbs_closed(struct ibv_device *device, struct rdma_port *p)
{
	char why[96], path[128];
	int code = errno;

	snprintf(path, sizeof(path), "/dev/infiniband/%.64s", device->dev_name);
	if (access(path, R_OK | W_OK) < 0)
		code = errno;
	*p = (struct rdma_port){.node = -1, .gid_index = -1};
	snprintf(p->device, sizeof(p->device), "%s", ibv_get_device_name(device));
	snprintf(why, sizeof(why), "it cannot be opened: %s", strerror(code));
	verbs_refuse(p, why, "ls -l %s: this user has to be able to read and write it", path);
}

static unsigned verbs_list_device(struct ibv_device *device, struct rdma_port *out, unsigned max)
{
	struct ibv_context *context = ibv_open_device(device);
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	union ibv_gid gid;
	unsigned count = 0;

	if (!context || ibv_query_device(context, &attr) != 0) {
		if (max > 0)
			verbs_closed(device, &out[0]);
		if (context)
			ibv_close_device(context);
		return 1;
	}
	for (unsigned i = 1; i <= attr.phys_port_cnt; i++) {
		struct rdma_port about;

		if (verbs_describe(context, &attr, i, -1, &about, &gid, &port) < 0)
			continue;
		if (count < max)
			out[count] = about;
		count++;
	}
	ibv_close_device(context);
	return count;
}

int rdma_ports_list(struct rdma_port *out, unsigned max)
{
	int devices = 0;
	struct ibv_device **list = ibv_get_device_list(&devices);
	unsigned count = 0;

	if (!list)
		return errno == ENOSYS || errno == ENOENT || errno == ENODEV ? 0 : -errno;
	for (int i = 0; i < devices; i++)
		count += verbs_list_device(list[i], out + (count < max ? count : max), count < max ? max - count : 0);
	ibv_free_device_list(list);
	return (int)count;
}

/* ---- limits ---- */

/* A number from a line of /proc/self/status, in its base; 0 when it is not there. */
static uint64_t verbs_own_status(const char *name, int base)
{
	FILE *f = fopen("/proc/self/status", "re");
	size_t length = strlen(name);
	uint64_t value = 0;
	char line[256];

	if (!f)
		return 0;
	while (fgets(line, sizeof(line), f))
		if (strncmp(line, name, length) == 0 && line[length] == ':')
			value = strtoull(line + length + 1, NULL, base);
	fclose(f);
	return value;
}

int rdma_check_limit(uint64_t bytes, struct err *e)
{
	struct rlimit limit;
	uint64_t pinned, need;

	if (bytes == 0 || getrlimit(RLIMIT_MEMLOCK, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY ||
		verbs_own_status("CapEff", 16) >> VERBS_CAP_IPC_LOCK & 1)
		return 0;
	pinned = verbs_own_status("VmPin", 10) << 10;
	need = pinned + bytes;
	if (need <= limit.rlim_cur)
		return 0;
	return err_set(e, -ENOMEM,
		"verbs: needs `ulimit -l` of at least %" PRIu64 " KiB to pin its memory, and it is %" PRIu64
		" KiB: type `ulimit -l unlimited` as root (in a unit: LimitMEMLOCK=infinity; in "
		"/etc/security/limits.d: USER - memlock unlimited)",
		(need + 1023) >> 10, (uint64_t)limit.rlim_cur >> 10);
}

/* ---- opening ---- */

/* One of the names in "DEVICE[:PORT][@GID],...": does it name this device and port? -2: no; else the GID, -1: any. */
static int verbs_wants(const char *wanted, const char *device, unsigned port)
{
	while (wanted && *wanted) {
		size_t length = strcspn(wanted, ",:@");
		const char *at = wanted + length;
		unsigned long number = 0;
		long gid = -1;

		if (*at == ':')
			number = strtoul(at + 1, (char **)(uintptr_t)&at, 10);
		if (*at == '@')
			gid = strtol(at + 1, (char **)(uintptr_t)&at, 10);
		if (length == strlen(device) && strncmp(wanted, device, length) == 0 && (number == 0 || number == port))
			return (int)gid;
		at += strcspn(at, ",");
		wanted = *at ? at + 1 : at;
	}
	return -2;
}

static int verbs_device_take(struct verbs_device *d, struct ibv_context *context, const struct ibv_device_attr *attr,
	const struct ibv_port_attr *port)
{
	d->context = context;
	d->attr = *attr;
	d->port = (uint8_t)d->about.port;
	d->mtu = port->active_mtu;
	d->lid = port->lid;
	d->routed = port->link_layer == IBV_LINK_LAYER_ETHERNET || (port->flags & IBV_QPF_GRH_REQUIRED);
	d->pd = ibv_alloc_pd(context);
	if (!d->pd || fcntl(context->async_fd, F_SETFL, O_NONBLOCK) < 0)
		return -errno;
	return 0;
}

/* What was tried, for a message. */
struct verbs_tried {
	char text[VERBS_LIST_MAX];
	size_t at;
};

static void verbs_try_failed(struct verbs_tried *t, const struct rdma_port *p)
{
	char name[RDMA_NAME_BYTES];

	if (t->at < sizeof(t->text))
		t->at += (size_t)snprintf(t->text + t->at, sizeof(t->text) - t->at, "%s%s: %s: %s", t->at ? "; " : "",
			rdma_port_name(p, name), p->why, p->cure);
}

/* Opens one port of a device, if it is wanted and can be used. Returns 1, 0, or a negative errno. */
static int verbs_open_port(struct ibv_device *device, unsigned number, const char *wanted, const char *interface,
	struct verbs_device *out, struct verbs_tried *tried)
{
	struct ibv_context *context;
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	int gid = -1, rc;

	if (wanted) {
		gid = verbs_wants(wanted, ibv_get_device_name(device), number);
		if (gid == -2)
			return 0;
	}
	context = ibv_open_device(device);
	memset(out, 0, sizeof(*out));
	if (!context) {
		if (number == 1) {
			verbs_closed(device, &out->about);
			verbs_try_failed(tried, &out->about);
		}
		return 0;
	}
	rc = ibv_query_device(context, &attr) == 0 && number <= attr.phys_port_cnt &&
	     verbs_describe(context, &attr, number, gid, &out->about, &out->gid, &port) == 0;
	if (rc && interface && strcmp(interface, out->about.interface) != 0)
		rc = 0;
	if (rc && !out->about.usable) {
		verbs_try_failed(tried, &out->about);
		rc = 0;
	}
	if (rc && verbs_device_take(out, context, &attr, &port) < 0)
		rc = -errno;
	if (rc != 1) {
		if (out->pd)
			ibv_dealloc_pd(out->pd);
		ibv_close_device(context);
	}
	return rc;
}

/* "node1, node2" */
static void verbs_names(struct ibv_device **list, int devices, char *out, size_t bytes)
{
	size_t at = 0;

	for (int i = 0; i < devices && at < bytes; i++)
		at += (size_t)snprintf(out + at, bytes - at, "%s%s", i ? ", " : "", ibv_get_device_name(list[i]));
}

static int verbs_none(
	const char *interface, const struct verbs_tried *tried, struct ibv_device **list, int devices, struct err *e)
{
	char names[VERBS_LIST_MAX];

	if (tried->at)
		return err_set(e, -ENODEV, "verbs: no RDMA port can be used: %s", tried->text);
	verbs_names(list, devices, names, sizeof(names));
	if (interface && devices)
		return err_set(e, -ENODEV,
			"verbs: interface %.15s has no RDMA device; devices here: %s (see `phub "
			"topo`)",
			interface, names);
	return err_set(e, -ENODEV,
		"verbs: this host has no RDMA device; choose transport tcp, or load its driver (software RDMA over an "
		"interface: `modprobe rdma_rxe; rdma link add rxe0 type rxe netdev INTERFACE`)");
}

/* How many ports the device of this name has; 0: there is none, UINT_MAX: it does not say. */
static unsigned verbs_ports_of(struct ibv_device **list, int devices, const char *name, size_t length)
{
	for (int i = 0; i < devices; i++) {
		struct ibv_device_attr attr;
		struct ibv_context *context;
		unsigned ports = UINT_MAX;

		if (strlen(ibv_get_device_name(list[i])) != length ||
			strncmp(ibv_get_device_name(list[i]), name, length) != 0)
			continue;
		context = ibv_open_device(list[i]);
		if (context && ibv_query_device(context, &attr) == 0)
			ports = attr.phys_port_cnt;
		if (context)
			ibv_close_device(context);
		return ports;
	}
	return 0;
}

/* Each name has to be of a port that is there, whether or not it can be used: a slip would halve a box in silence. */
static int verbs_check_names(const char *wanted, struct ibv_device **list, int devices, struct err *e)
{
	char names[VERBS_LIST_MAX];

	for (const char *at = wanted; at && *at && devices;) {
		size_t item = strcspn(at, ","), length = strcspn(at, ",:@");
		unsigned long number = at[length] == ':' ? strtoul(at + length + 1, NULL, 10) : 0;

		if (item && verbs_ports_of(list, devices, at, length) <= (number ? number - 1 : 0)) {
			verbs_names(list, devices, names, sizeof(names));
			return err_set(e, -ENODEV,
				"verbs: rdma names %.*s, and there is no such port; devices here: %s (see `phub "
				"topo`)",
				(int)(item < 100 ? item : 100), at, names);
		}
		at += item + (at[item] == ',');
	}
	return 0;
}

int verbs_devices_open(const char *wanted, const char *interface, struct verbs_device *out, unsigned max, struct err *e)
{
	struct verbs_tried tried = {.at = 0};
	struct ibv_device **list;
	unsigned count = 0;
	int devices = 0;
	int rc = 0;

	/* A forked child must not take pages away from under the device: where the kernel does not see to it, we do. */
	if (ibv_is_fork_initialized() == IBV_FORK_DISABLED)
		(void)ibv_fork_init();
	list = ibv_get_device_list(&devices);
	if (list)
		rc = verbs_check_names(wanted, list, devices, e);
	if (rc < 0) {
		ibv_free_device_list(list);
		return rc;
	}
	for (int i = 0; list && i < devices; i++) {
		for (unsigned port = 1; rc >= 0 && port <= 8 && count < max; port++) {
			rc = verbs_open_port(list[i], port, wanted, interface, &out[count], &tried);
			count += rc > 0;
		}
	}
	if (rc >= 0)
		rc = count > 0 ? (int)count : verbs_none(interface, &tried, list, devices, e);
	else
		err_set(e, rc, "verbs: a device cannot be used: %s", strerror(-rc));
	while (rc < 0 && count > 0)
		verbs_device_close(&out[--count]);
	if (list)
		ibv_free_device_list(list);
	return rc;
}

void verbs_device_close(struct verbs_device *d)
{
	ibv_dealloc_pd(d->pd);
	ibv_close_device(d->context);
}

bool verbs_device_is_up(const struct verbs_device *d)
{
	struct ibv_port_attr port;

	return ibv_query_port(d->context, d->port, &port) == 0 && port.state == IBV_PORT_ACTIVE;
}

void verbs_device_listen(struct verbs_device *d)
{
	struct ibv_async_event event;

	while (ibv_get_async_event(d->context, &event) == 0) {
		switch (event.event_type) {
		case IBV_EVENT_PORT_ERR:
			d->down = true;
			log_warn("verbs: %s port %u is down; connections over it wait, and break after some seconds",
				d->about.device, event.element.port_num);
			break;
		case IBV_EVENT_PORT_ACTIVE:
			d->down = false;
			log_info("verbs: %s port %u is up", d->about.device, event.element.port_num);
			break;
		case IBV_EVENT_DEVICE_FATAL:
			log_error("verbs: %s has failed; its connections end", d->about.device);
			atomic_store_explicit(&d->failed, true, memory_order_relaxed);
			break;
		case IBV_EVENT_CQ_ERR:
			log_error("verbs: a completion queue of %s has failed; its connections end", d->about.device);
			atomic_store_explicit(&d->failed, true, memory_order_relaxed);
			break;
		default:
			log_debug("verbs: %s: %s", d->about.device, ibv_event_type_str(event.event_type));
			break;
		}
		ibv_ack_async_event(&event);
	}
}
