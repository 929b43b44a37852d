/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dpdk transport: its ports, by the plugin, under what all transports over datagrams have in common. Control
 * thread; what a bundle of ports does on the way of a datagram, the queue's owner.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "phub/base/log.h"
#include "transport/dpdk.h"

enum { DPDK_UDP_HEADERS = 28 }; /* IPv4, UDP */

struct dpdk {
	const struct dpdk_plugin *plugin;
	struct dpdk_nic *nics[DPDK_PORTS_MAX];
	struct dpdk_facts facts[DPDK_PORTS_MAX];
	unsigned nic_count;
	unsigned queue_count, users; /* of each transport; transports */
	uint32_t datagram_max;       /* 0: the link's */
};

/* What one transport has of the ports: the datagram_class' owner. */
struct dpdk_share {
	struct dpdk *dpdk;
	unsigned first; /* of its queues, among those of the ports */
};

/* A queue's ports on all devices, as one. */
struct dpdk_bundle {
	struct datagram_port port;
	const struct dpdk *dpdk;
	struct datagram_port *of[DPDK_PORTS_MAX];
	struct datagram_port *roomy; /* the last room() was on it */
	unsigned turn;               /* of receive() */
};

static void dpdk_log(enum log_level level, const char *line)
{
	log_write(level, "dpdk: %s", line);
}

static const struct dpdk_host dpdk_host = {
	.log = dpdk_log, .hold = reliable_hold, .let = reliable_let, .drop_name = dpdk_drop_name};

/* ---- several devices ---- */

/* The device by which this address is reached: in its network, else by the first gateway. Its number, or -ENETUNREACH.
 */
static int dpdk_toward(const struct dpdk *d, const struct in6_addr *ip)
{
	int way = -ENETUNREACH;
	uint32_t to, own;

	if (!IN6_IS_ADDR_V4MAPPED(ip))
		return -EAFNOSUPPORT;
	memcpy(&to, &ip->s6_addr[12], sizeof(to));
	for (unsigned i = 0; i < d->nic_count; i++) {
		const struct dpdk_facts *f = &d->facts[i];

		memcpy(&own, &f->address.ip.s6_addr[12], sizeof(own));
		if ((ntohl(own ^ to) & f->mask) == 0)
			return (int)i;
		if (f->gateway && way < 0)
			way = (int)i;
	}
	return way;
}

static struct dpdk_bundle *bundle_of(struct datagram_port *port)
{
	return (struct dpdk_bundle *)(void *)port;
}

static unsigned bundle_receive(struct datagram_port *port, struct datagram_in *in, unsigned max)
{
	struct dpdk_bundle *b = bundle_of(port);
	unsigned count = b->dpdk->nic_count, found = 0;

	port->stirred = false;
	/* Each has its turn to be the first, so that a flood on one leaves room for the others. */
	for (unsigned i = 0; i < count && found < max; i++) {
		unsigned index = (b->turn + i) % count;
		unsigned more = b->of[index]->ops->receive(b->of[index], in + found, max - found);

		for (unsigned k = found; k < found + more; k++)
			in[k].from.link = (uint8_t)(index + 1);
		port->stirred |= b->of[index]->stirred;
		found += more;
	}
	b->turn++;
	return found;
}

static int bundle_room(struct datagram_port *port, const struct datagram_address *to, struct reliable_outgoing *out)
{
	struct dpdk_bundle *b = bundle_of(port);
	int rc, index = to->link ? to->link - 1 : dpdk_toward(b->dpdk, &to->ip);

	if (index < 0)
		return -EHOSTUNREACH;
	b->roomy = b->of[index];
	rc = b->roomy->ops->room(b->roomy, to, out);
	return rc == -EAGAIN ? -EBUSY : rc;
}

static void bundle_send(struct datagram_port *port, struct reliable *r, const struct reliable_outgoing *out)
{
	struct dpdk_bundle *b = bundle_of(port);

	b->roomy->ops->send(b->roomy, r, out);
}

static void bundle_flush(struct datagram_port *port)
{
	struct dpdk_bundle *b = bundle_of(port);

	for (unsigned i = 0; i < b->dpdk->nic_count; i++)
		b->of[i]->ops->flush(b->of[i]);
}

static void bundle_reclaim(struct datagram_port *port, struct reliable *r, const struct reliable_conn *c)
{
	struct dpdk_bundle *b = bundle_of(port);

	for (unsigned i = 0; i < b->dpdk->nic_count; i++)
		b->of[i]->ops->reclaim(b->of[i], r, c);
}

static int bundle_arm(struct datagram_port *port, uint64_t due_ns)
{
	(void)port;
	(void)due_ns;
	return -ENOTSUP;
}

static uint64_t bundle_now(struct datagram_port *port)
{
	return bundle_of(port)->of[0]->ops->now(bundle_of(port)->of[0]);
}

static const char *bundle_count(const struct datagram_port *port, unsigned index, uint64_t *value)
{
	const struct dpdk_bundle *b = (const struct dpdk_bundle *)(const void *)port;
	const char *name = NULL;
	uint64_t sum = 0;

	for (unsigned i = 0; i < b->dpdk->nic_count; i++) {
		*value = 0;
		name = b->of[i]->ops->count(b->of[i], index, value);
		sum += *value;
	}
	*value = sum;
	return name;
}

static void bundle_close(struct datagram_port *port)
{
	struct dpdk_bundle *b = bundle_of(port);

	for (unsigned i = 0; i < b->dpdk->nic_count && b->of[i]; i++)
		b->of[i]->ops->close(b->of[i]);
	free(b);
}

static const struct datagram_port_ops bundle_ops = {
	.receive = bundle_receive,
	.room = bundle_room,
	.send = bundle_send,
	.flush = bundle_flush,
	.reclaim = bundle_reclaim,
	.arm = bundle_arm,
	.now = bundle_now,
	.count = bundle_count,
	.close = bundle_close,
};

/*
 * What is sent fits all of the links: a peer may be heard by any of them. What may be on its way is what all of them
 * have room for: workers are spread over them.
 */
static int bundle_open(const struct dpdk *d, unsigned queue_index, int node, const char *host,
	struct datagram_port **out, struct err *e)
{
	struct dpdk_bundle *b = calloc(1, sizeof(*b));

	if (!b)
		return err_set(e, -ENOMEM, "dpdk: no memory for a queue");
	b->port.ops = &bundle_ops;
	b->dpdk = d;
	for (unsigned i = 0; i < d->nic_count; i++) {
		int rc = d->plugin->port_open(d->nics[i], queue_index, node, host, &b->of[i], e);

		if (rc < 0) {
			bundle_close(&b->port);
			return rc;
		}
		if (i == 0 || b->of[i]->datagram_max < b->port.datagram_max)
			b->port.datagram_max = b->of[i]->datagram_max;
		b->port.room_bytes += b->of[i]->room_bytes;
		b->port.unchecked |= b->of[i]->unchecked;
	}
	b->port.address.port = b->of[0]->address.port;
	*out = &b->port;
	return 0;
}

/* ---- what datagram.h asks ---- */

static int dpdk_port_open(
	void *owner, unsigned queue_index, int node, const char *host, struct datagram_port **out, struct err *e)
{
	const struct dpdk_share *share = owner;
	struct dpdk *d = share->dpdk;
	unsigned index = share->first + queue_index;
	int rc = d->nic_count == 1 ? d->plugin->port_open(d->nics[0], index, node, host, out, e)
				   : bundle_open(d, index, node, host, out, e);

	if (rc == 0 && d->datagram_max && d->datagram_max < (*out)->datagram_max)
		(*out)->datagram_max = d->datagram_max;
	return rc;
}

static int dpdk_route(
	void *owner, const struct datagram_address *peer, struct datagram_address *own, uint32_t *datagram_max)
{
	struct dpdk *d = ((const struct dpdk_share *)owner)->dpdk;
	uint16_t port = own->port;
	int index = dpdk_toward(d, &peer->ip);
	int rc = index < 0 ? index : d->plugin->route(d->nics[index], peer, own, datagram_max);

	own->port = port;
	if (rc == 0 && memcmp(&own->ip, &peer->ip, sizeof(own->ip)) == 0)
		rc = -EADDRINUSE;
	if (rc == 0 && d->datagram_max && d->datagram_max < *datagram_max)
		*datagram_max = d->datagram_max;
	return rc;
}

static const char *dpdk_no_way(int code)
{
	switch (code) {
	case -ENETUNREACH:
		return "it is in no network of this worker's ports; PHUB_DPDK names a router's address with ,gw=";
	case -EADDRINUSE:
		return "this worker has that address itself; PHUB_DPDK is to name one that nobody else has";
	case -EAFNOSUPPORT:
		return "dpdk speaks IPv4 alone";
	default:
		return strerror(-code);
	}
}

static void dpdk_memory_end(void *owner, void *base)
{
	struct dpdk *d = ((const struct dpdk_share *)owner)->dpdk;

	for (unsigned i = 0; i < d->nic_count; i++)
		d->plugin->memory_end(d->nics[i], base);
}

static bool dpdk_memory_use(void *owner, void *base, size_t bytes, bool huge)
{
	struct dpdk *d = ((const struct dpdk_share *)owner)->dpdk;
	unsigned took = 0;

	while (took < d->nic_count && d->plugin->memory_use(d->nics[took], base, bytes, huge))
		took++;
	for (unsigned i = 0; took < d->nic_count && i < took; i++)
		d->plugin->memory_end(d->nics[i], base);
	return took == d->nic_count;
}

static int dpdk_name(void *owner, unsigned index, struct in6_addr *out)
{
	const struct dpdk *d = ((const struct dpdk_share *)owner)->dpdk;

	if (index >= d->nic_count)
		return -ENOENT;
	*out = d->facts[index].address.ip;
	return 0;
}

static void dpdk_destroy(struct dpdk *d)
{
	while (d->nic_count > 0)
		d->plugin->close(d->nics[--d->nic_count]);
	free(d);
}

static void dpdk_fini(void *owner)
{
	struct dpdk_share *share = owner;

	if (--share->dpdk->users == 0)
		dpdk_destroy(share->dpdk);
	free(share);
}

static const struct datagram_class dpdk_class = {
	.ops = &transport_dpdk,
	.port_open = dpdk_port_open,
	.fini = dpdk_fini,
	.route = dpdk_route,
	.no_way = dpdk_no_way,
	.name = dpdk_name,
	.memory_use = dpdk_memory_use,
	.memory_end = dpdk_memory_end,
};

/* What an operator wants to know of the device. */
static void dpdk_tell(const struct dpdk_facts *f, const struct dpdk_nic_config *config)
{
	static const char *const steering[] = {
		[DPDK_STEER_ONE] = "one queue",
		[DPDK_STEER_FLOW] = "rte_flow steers",
		[DPDK_STEER_SOFT] = "no rte_flow: cores hand datagrams to each other",
	};
	char ip[INET_ADDRSTRLEN] = "?";

	inet_ntop(AF_INET, &f->address.ip.s6_addr[12], ip, sizeof(ip));
	log_info("dpdk: %s (%s) is %s, %02x:%02x:%02x:%02x:%02x:%02x, MTU %u, link %s; UDP ports %u-%u; %s; payloads "
		 "are %s; %s pages",
		config->spec.device, f->driver, ip, f->address.mac[0], f->address.mac[1], f->address.mac[2],
		f->address.mac[3], f->address.mac[4], f->address.mac[5], f->mtu, f->up ? "up" : "down", f->address.port,
		f->address.port + config->queues - 1, steering[f->steering],
		f->maps       ? "sent from where they lie, if that can be mapped"
		: f->attaches ? "sent from where they lie"
			      : "copied",
		f->huge ? "huge" : "no huge");
}

/* Says of an error which rights this process lacks for that device, if any. */
static int dpdk_explain(const struct dpdk_spec *spec, int rc, struct err *e)
{
	char lacks[DPDK_LACKS_BYTES];

	if (!e || !dpdk_lacks(spec->device, lacks))
		return rc;
	return err_set(e, rc, "%s; it needs %s, which this process does not have (deploy/dpdk.md, Privileges)", e->text,
		lacks);
}

/* An address of the kernel's is known only now: the last one's network is to be none of those before it. */
static int dpdk_check_network(const struct dpdk *d, const struct dpdk_spec *all, struct err *e)
{
	unsigned last = d->nic_count - 1;
	uint32_t one, other;

	memcpy(&one, &d->facts[last].address.ip.s6_addr[12], sizeof(one));
	for (unsigned i = 0; i < last; i++) {
		memcpy(&other, &d->facts[i].address.ip.s6_addr[12], sizeof(other));
		if ((ntohl(one ^ other) & d->facts[i].mask & d->facts[last].mask) == 0)
			return err_set(e, -EINVAL,
				"DPDK ports: \"%s\" and \"%s\" are in one network; each is to be in a network of its "
				"own",
				all[i].device, all[last].device);
	}
	return 0;
}

/* One device after the other; their queues have the same UDP ports. */
static int dpdk_open_nics(struct dpdk *d, struct dpdk_nic_config *config, bool quiet, struct err *e)
{
	int rc = 0;

	for (unsigned i = 0; i < config->all_count && rc == 0; i++) {
		uint16_t port = config->all[i].port;

		if (port && port != config->all[0].port)
			return err_set(e, -EINVAL,
				"DPDK port \"%s\": port=%u goes with the first port, for all of them",
				config->all[i].device, port);
		config->spec = config->all[i];
		rc = d->plugin->open(&dpdk_host, config, &d->nics[i], e);
		if (rc < 0)
			return dpdk_explain(&config->spec, rc, e);
		d->nic_count++;
		d->plugin->facts(d->nics[i], &d->facts[i]);
		if (!quiet)
			dpdk_tell(&d->facts[i], config);
		rc = dpdk_check_network(d, config->all, e);
	}
	return rc;
}

static int dpdk_ports_read(const char *ports, struct dpdk_spec specs[DPDK_PORTS_MAX], struct err *e)
{
	if (!ports || !ports[0])
		return err_set(e, -EDESTADDRREQ,
			"transport dpdk needs a port: the box's dpdk_ports, a worker's PHUB_DPDK, like "
			"0000:3b:00.0@10.0.0.1/24 or net_af_packet0,iface=eth1@10.0.0.1/24");
	return dpdk_specs_parse(ports, specs, e);
}

int dpdk_check(const char *ports, struct err *e)
{
	struct dpdk_spec specs[DPDK_PORTS_MAX];
	const struct dpdk_plugin *plugin;
	int rc = dpdk_ports_read(ports, specs, e);

	return rc < 0 ? rc : dpdk_load(&plugin, e);
}

/* Has no socket of this host's kernel this UDP port, on whichever address? */
static bool dpdk_is_free(unsigned port)
{
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool taken = fd >= 0 && bind(fd, (struct sockaddr *)&any, sizeof(any)) < 0 && errno == EADDRINUSE;

	if (fd >= 0)
		close(fd);
	return !taken; /* whatever else is wrong is told by who takes it */
}

/* Is this an address of the kernel's, on whichever interface? */
static bool dpdk_is_kernels(uint32_t ip)
{
	struct ifaddrs *all = NULL;
	bool found = false;

	if (getifaddrs(&all) < 0)
		return false;
	for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
		const struct sockaddr_in *address = (const void *)i->ifa_addr;

		found = address && address->sin_family == AF_INET && address->sin_addr.s_addr == htonl(ip);
	}
	freeifaddrs(all);
	return found;
}

/*
 * An address that is the kernel's, too, has its ports: the first ones in a row that nobody has, udp of this very box
 * for one. They need not be free any more when they are taken: then it is an error.
 */
static int dpdk_choose_ports(struct dpdk_nic_config *config, struct err *e)
{
	unsigned first = config->port_first ? config->port_first : DPDK_PORT_DEFAULT;
	unsigned last = config->port_last ? config->port_last : 65535, run = 0;
	bool kernel = false;

	for (unsigned i = 0; i < config->all_count; i++)
		kernel |= config->all[i].ip == 0 || dpdk_is_kernels(config->all[i].ip);
	if (!kernel || config->all[0].port)
		return 0;
	for (unsigned port = first; port <= last; port++) {
		run = dpdk_is_free(port) ? run + 1 : 0;
		if (run < config->queues)
			continue;
		config->port_first = (uint16_t)(port + 1 - run);
		return 0;
	}
	return err_set(e, -EADDRINUSE,
		"dpdk: of UDP ports %u-%u no %u in a row are free, one for each core; give more with data_ports, or "
		"others with ,port= in dpdk_ports",
		first, last, config->queues);
}

/* Opens the ports that the configuration names, with queues for all that will share them. */
static int dpdk_create(const struct transport_config *config, struct dpdk **out, struct err *e)
{
	unsigned sets = config->queue_sets ? config->queue_sets : 1,
		 count = config->queue_count ? config->queue_count : 1;
	struct dpdk_spec specs[DPDK_PORTS_MAX];
	int nodes[DPDK_QUEUES_MAX];
	struct dpdk_nic_config nic = {
		.all = specs,
		.eal = config->dpdk_eal,
		.queues = count * sets,
		.nodes = config->queue_count ? nodes : NULL,
		.port_first = config->port_first,
		.port_last = config->port_last,
		.quiet = config->quiet,
	};
	struct dpdk *d;
	int rc;

	rc = dpdk_ports_read(config->dpdk_ports, specs, e);
	if (rc < 0)
		return rc;
	nic.all_count = (unsigned)rc;
	if (specs[0].port) {
		nic.port_first = specs[0].port;
		nic.port_last = 0;
	}
	for (unsigned i = 0; i < nic.queues && i < DPDK_QUEUES_MAX; i++)
		nodes[i] = config->queue_nodes ? config->queue_nodes[i % count] : MEM_NODE_ANY;
	d = calloc(1, sizeof(*d));
	if (!d)
		return err_set(e, -ENOMEM, "dpdk: no memory for the transport");
	d->queue_count = count;
	if (config->datagram_mtu > DPDK_UDP_HEADERS)
		d->datagram_max = config->datagram_mtu - DPDK_UDP_HEADERS;
	rc = dpdk_load(&d->plugin, e);
	if (rc == 0)
		rc = dpdk_choose_ports(&nic, e);
	if (rc == 0)
		rc = dpdk_open_nics(d, &nic, config->quiet, e);
	if (rc < 0)
		dpdk_destroy(d);
	else
		*out = d;
	return rc;
}

static int dpdk_open(const struct transport_config *config, struct transport **out, struct err *e)
{
	struct dpdk_share *share = calloc(1, sizeof(*share));
	int rc = 0;

	if (!share)
		return err_set(e, -ENOMEM, "dpdk: no memory for the transport");
	if (config->beside) {
		share->dpdk = ((const struct dpdk_share *)datagram_owner(config->beside))->dpdk;
		share->first = share->dpdk->users * share->dpdk->queue_count;
	} else {
		rc = dpdk_create(config, &share->dpdk, e);
	}
	if (rc == 0)
		rc = datagram_open(&dpdk_class, share, config, out, e);
	if (rc == 0)
		share->dpdk->users++;
	else if (share->dpdk && share->dpdk->users == 0)
		dpdk_destroy(share->dpdk);
	if (rc < 0)
		free(share);
	return rc;
}

const struct transport_ops transport_dpdk = {
	.name = "dpdk",
	.by_name = true,
	.open = dpdk_open,
	DATAGRAM_OPS,
};
