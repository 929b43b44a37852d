/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds ports, says what is wrong with those that cannot be used, opens the others.
 */
#include "transport/verbs_device.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
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
	VERBS_NAMES_MAX = 64,
	VERBS_FAILED_MAX = 16,
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

/* Whole pages are what the kernel counts. */
static uint64_t verbs_whole_pages(uint64_t bytes)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	return (bytes + page - 1) / page * page;
}

/* Does one hold for this process? */
static bool verbs_limit(uint64_t *bytes)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_MEMLOCK, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY ||
		verbs_own_status("CapEff", 16) >> VERBS_CAP_IPC_LOCK & 1)
		return false;
	*bytes = limit.rlim_cur;
	return true;
}

static int verbs_limit_say(uint64_t need, uint64_t limit, struct err *e)
{
	return err_set(e, -ENOMEM,
		"verbs: needs `ulimit -l` of at least %" PRIu64 " KiB to pin its memory, and it is %" PRIu64
		" KiB: type `ulimit -l unlimited` as root (in a unit: LimitMEMLOCK=infinity; in "
		"/etc/security/limits.d: USER - memlock unlimited)",
		need >> 10, limit >> 10);
}

int rdma_check_limit(uint64_t bytes, struct err *e)
{
	uint64_t limit, need;

	if (bytes == 0 || !verbs_limit(&limit))
		return 0;
	need = (verbs_own_status("VmPin", 10) << 10) + verbs_whole_pages(bytes);
	return need <= limit ? 0 : verbs_limit_say(need, limit, e);
}

/*
 * A piece that begins within a page takes one more. What is pinned may be less by now, or a driver's own: the number is
 * above the limit in any case, so that who follows it gets on.
 */
int verbs_limit_refused(uint64_t bytes, struct err *e)
{
	uint64_t limit, piece = verbs_whole_pages(bytes + 1), need;

	if (!verbs_limit(&limit))
		return 0;
	need = (verbs_own_status("VmPin", 10) << 10) + piece;
	return verbs_limit_say(need > limit ? need : verbs_whole_pages(limit) + piece, limit, e);
}

/* ---- names ---- */

/* One of "DEVICE[:PORT][@GID],...". */
struct verbs_name {
	const char *text; /* whole, as it was given */
	int length;
	char device[64];
	unsigned port; /* 0: each of the device */
	int gid;       /* index; -1: the best */
	bool met;      /* there is such a port, whether or not it can be used */
};

struct verbs_names {
	struct verbs_name at[VERBS_NAMES_MAX];
	unsigned count; /* 0: all ports are wanted */
};

/* The digits at *text, which moves behind them. -1: none, or more than a byte. */
static int verbs_parse_byte(const char **text)
{
	const char *at = *text;
	int value = 0;

	for (; *at >= '0' && *at <= '9' && value <= UINT8_MAX; at++)
		value = 10 * value + (*at - '0');
	if (at == *text || value > UINT8_MAX)
		return -1;
	*text = at;
	return value;
}

static bool verbs_parse_name(const char *text, struct verbs_name *out)
{
	size_t length = strcspn(text, ",:@");
	const char *at = text + length;

	*out = (struct verbs_name){.text = text, .length = (int)strcspn(text, ","), .gid = -1};
	if (length == 0 || length >= sizeof(out->device))
		return false;
	memcpy(out->device, text, length);
	if (*at == ':') {
		int port;

		at++;
		port = verbs_parse_byte(&at);
		if (port < 1)
			return false;
		out->port = (unsigned)port;
	}
	if (*at == '@') {
		at++;
		out->gid = verbs_parse_byte(&at);
		if (out->gid < 0)
			return false;
	}
	return at == text + out->length;
}

/* The one place that reads the option `rdma`. A slip would halve a box in silence. */
static int verbs_parse_names(const char *text, struct verbs_names *out, struct err *e)
{
	out->count = 0;
	if (!text || !*text)
		return 0;
	for (;; text++) {
		struct verbs_name *name = &out->at[out->count];

		if (out->count == VERBS_NAMES_MAX)
			return err_set(e, -EINVAL, "verbs: rdma names more than %d ports", VERBS_NAMES_MAX);
		if (!verbs_parse_name(text, name))
			return err_set(e, -EINVAL,
				"verbs: rdma names '%.*s', which is not of the form DEVICE[:PORT][@GID] (PORT 1 to "
				"255, GID an index from 0 to 255), with commas between several",
				name->length < 100 ? name->length : 100, text);
		for (unsigned i = 0; i < out->count; i++)
			if (strcmp(out->at[i].device, name->device) == 0 && out->at[i].port == name->port)
				return err_set(
					e, -EINVAL, "verbs: rdma names %.*s, and a port only once", name->length, text);
		out->count++;
		text += name->length;
		if (!*text)
			return 0;
	}
}

/* The first name of this port; all that are of it are met. `port` 0: of any of this device. NULL: none. */
static struct verbs_name *verbs_meet(struct verbs_names *names, const char *device, unsigned port)
{
	struct verbs_name *first = NULL;

	for (unsigned i = names->count; i-- > 0;) {
		struct verbs_name *name = &names->at[i];

		if (strcmp(name->device, device) != 0 || (port && name->port && name->port != port))
			continue;
		name->met = true;
		first = name;
	}
	return first;
}

static bool verbs_is_named(const struct verbs_names *names, const char *device)
{
	for (unsigned i = 0; i < names->count; i++)
		if (strcmp(names->at[i].device, device) == 0)
			return true;
	return false;
}

/* ---- opening ---- */

struct verbs_opening {
	struct verbs_names names;
	const char *interface;
	struct verbs_device *out;
	unsigned max, count;
	struct rdma_port failed[VERBS_FAILED_MAX]; /* what was tried in vain */
	unsigned failed_count;
};

static int verbs_open_failed(struct verbs_opening *o, const struct rdma_port *p)
{
	if (o->failed_count < VERBS_FAILED_MAX)
		o->failed[o->failed_count++] = *p;
	return 0;
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
	if (d->pd && fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0)
		return 0;
	if (d->pd)
		ibv_dealloc_pd(d->pd);
	return errno ? -errno : -EIO;
}

/* Opens one port, if it is wanted and can be used: the context is its own then. Returns 1, 0, or a negative errno. */
static int verbs_open_port(
	struct verbs_opening *o, struct ibv_context *context, const struct ibv_device_attr *attr, unsigned number)
{
	struct verbs_name *name = verbs_meet(&o->names, ibv_get_device_name(context->device), number);
	struct verbs_device *d = &o->out[o->count];
	struct ibv_port_attr port;
	bool elsewhere;
	int rc;

	if ((o->names.count && !name) || o->count == o->max)
		return 0;
	memset(d, 0, sizeof(*d));
	d->gid_wanted = name ? name->gid : -1;
	if (verbs_describe(context, attr, number, d->gid_wanted, &d->about, &d->gid, &port) < 0) {
		verbs_refuse(&d->about, "it cannot be asked how it is", "see dmesg");
		return verbs_open_failed(o, &d->about);
	}
	elsewhere = o->interface && strcmp(o->interface, d->about.interface) != 0;
	if (elsewhere && !name)
		return 0;
	if (elsewhere && d->about.usable) {
		verbs_refuse(&d->about, "it is of another interface", "leave interface %.15s away, or its name",
			o->interface);
		return verbs_open_failed(o, &d->about);
	}
	if (!d->about.usable)
		return verbs_open_failed(o, &d->about);
	rc = verbs_device_take(d, context, attr, &port);
	o->count += rc == 0;
	return rc < 0 ? rc : 1;
}

/* Each port that is used has a context of its own; the one that the device is looked at with is the first one's. */
static int verbs_open_device(struct verbs_opening *o, struct ibv_device *device)
{
	const char *name = ibv_get_device_name(device);
	struct ibv_context *context = NULL;
	struct ibv_device_attr attr = {.phys_port_cnt = 1};
	int rc = 0;

	if (o->names.count && !verbs_is_named(&o->names, name))
		return 0;
	for (unsigned number = 1; rc >= 0 && number <= attr.phys_port_cnt; number++) {
		if (!context)
			context = ibv_open_device(device);
		if (!context || ibv_query_device(context, &attr) != 0) {
			struct rdma_port about;

			verbs_closed(device, &about);
			verbs_open_failed(o, &about);
			verbs_meet(&o->names, name, 0);
			break;
		}
		rc = verbs_open_port(o, context, &attr, number);
		if (rc > 0)
			context = NULL;
	}
	if (context)
		ibv_close_device(context);
	return rc < 0 ? rc : 0;
}

/* "node1, node2" */
static void verbs_list_names(struct ibv_device **list, int devices, char *out, size_t bytes)
{
	size_t at = 0;

	out[0] = '\0';
	for (int i = 0; i < devices && at < bytes; i++)
		at += (size_t)snprintf(out + at, bytes - at, "%s%s", i ? ", " : "", ibv_get_device_name(list[i]));
}

/* No port is open: why. */
static int verbs_none(const struct verbs_opening *o, const char *names, struct err *e)
{
	char text[VERBS_LIST_MAX], name[RDMA_NAME_BYTES];
	size_t at = 0;

	for (unsigned i = 0; i < o->failed_count && at < sizeof(text); i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s: %s: %s", i ? "; " : "",
			rdma_port_name(&o->failed[i], name), o->failed[i].why, o->failed[i].cure);
	if (at)
		return err_set(e, -ENODEV, "verbs: no RDMA port can be used: %s", text);
	if (o->interface && names[0])
		return err_set(e, -ENODEV,
			"verbs: interface %.15s has no RDMA device; devices here: %s (see `phub "
			"topo`)",
			o->interface, names);
	return err_set(e, -ENODEV,
		"verbs: this host has no RDMA device; choose transport tcp, or load its driver (software RDMA over an "
		"interface: `modprobe rdma_rxe; rdma link add rxe0 type rxe netdev INTERFACE`)");
}

/* How the opening went: what was named and is not there or cannot be used is said. */
static int verbs_open_end(const struct verbs_opening *o, bool quiet, const char *names, struct err *e)
{
	char name[RDMA_NAME_BYTES];

	for (unsigned i = 0; i < o->names.count && names[0]; i++)
		if (!o->names.at[i].met)
			return err_set(e, -ENODEV,
				"verbs: rdma names %.*s, and there is no such port; devices here: %s (see `phub "
				"topo`)",
				o->names.at[i].length, o->names.at[i].text, names);
	if (o->count == 0)
		return verbs_none(o, names, e);
	for (unsigned i = 0; i < o->failed_count && o->names.count && !quiet; i++)
		log_warn("verbs: rdma names %s, and it is left out: %s: %s", rdma_port_name(&o->failed[i], name),
			o->failed[i].why, o->failed[i].cure);
	return (int)o->count;
}

int verbs_devices_open(
	const char *wanted, const char *interface, bool quiet, struct verbs_device *out, unsigned max, struct err *e)
{
	struct verbs_opening o = {.interface = interface, .out = out, .max = max};
	char names[VERBS_LIST_MAX];
	struct ibv_device **list;
	int devices = 0;
	int rc = verbs_parse_names(wanted, &o.names, e);

	if (rc < 0)
		return rc;
	/* A forked child must not take pages away from under the device: where the kernel does not see to it, we do. */
	if (ibv_is_fork_initialized() == IBV_FORK_DISABLED)
		(void)ibv_fork_init();
	list = ibv_get_device_list(&devices);
	verbs_list_names(list, list ? devices : 0, names, sizeof(names));
	for (int i = 0; list && rc == 0 && i < devices; i++)
		rc = verbs_open_device(&o, list[i]);
	if (list)
		ibv_free_device_list(list);
	rc = rc < 0 ? err_set(e, rc, "verbs: a device cannot be used: %s", strerror(-rc))
		    : verbs_open_end(&o, quiet, names, e);
	while (rc < 0 && o.count > 0)
		verbs_device_close(&out[--o.count]);
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

/*
 * Addresses that come and go move GIDs to other indices, and a port that comes back may have another LID and MTU. Where
 * no GID is left the one before is kept: there may be one soon. Cores read the names of device and port: they stay.
 */
static void verbs_device_renew(struct verbs_device *d)
{
	struct rdma_port now, *about = &d->about;
	struct ibv_port_attr port;
	union ibv_gid gid;

	if (verbs_describe(d->context, &d->attr, d->port, d->gid_wanted, &now, &gid, &port) < 0)
		return;
	d->mtu = port.active_mtu;
	d->lid = port.lid;
	about->mtu = now.mtu;
	about->rate_mbps = now.rate_mbps;
	if (now.gid_index < 0) {
		if (port.state == IBV_PORT_ACTIVE)
			log_warn("verbs: %s port %u can make no new connections: %s: %s", about->device, d->port,
				now.why, now.cure);
		return;
	}
	if (strcmp(now.gid, about->gid) != 0 || now.gid_index != about->gid_index)
		log_info("verbs: %s port %u has GID %s of index %d now; it was %s of index %d", about->device, d->port,
			now.gid, now.gid_index, about->gid, about->gid_index);
	d->gid = gid;
	about->gid_index = now.gid_index;
	memcpy(about->gid, now.gid, sizeof(about->gid));
	memcpy(about->kind, now.kind, sizeof(about->kind));
	memcpy(about->interface, now.interface, sizeof(about->interface));
}

/* One event. Does it say that the port is not what it was? Each context hears of all ports of its device. */
static bool verbs_device_hear(struct verbs_device *d, const struct ibv_async_event *event)
{
	bool own = event->element.port_num == d->port;

	switch (event->event_type) {
	case IBV_EVENT_PORT_ERR:
		if (own)
			log_warn("verbs: %s port %u is down; connections over it wait, and break after some seconds",
				d->about.device, d->port);
		return own;
	case IBV_EVENT_PORT_ACTIVE:
		if (own)
			log_info("verbs: %s port %u is up", d->about.device, d->port);
		return own;
	case IBV_EVENT_GID_CHANGE:
	case IBV_EVENT_LID_CHANGE:
		log_debug("verbs: %s port %d: %s", d->about.device, event->element.port_num,
			ibv_event_type_str(event->event_type));
		return own;
	case IBV_EVENT_DEVICE_FATAL:
		log_error("verbs: %s has failed; its connections end", d->about.device);
		atomic_store_explicit(&d->failed, true, memory_order_relaxed);
		return false;
	case IBV_EVENT_CQ_ERR:
		log_error("verbs: a completion queue of %s has failed; its connections end", d->about.device);
		atomic_store_explicit(&d->failed, true, memory_order_relaxed);
		return false;
	default:
		log_debug("verbs: %s: %s", d->about.device, ibv_event_type_str(event->event_type));
		return false;
	}
}

void verbs_device_listen(struct verbs_device *d)
{
	struct ibv_async_event event;
	bool renew = false;

	while (ibv_get_async_event(d->context, &event) == 0) {
		renew |= verbs_device_hear(d, &event);
		ibv_ack_async_event(&event);
	}
	if (renew)
		verbs_device_renew(d);
}
