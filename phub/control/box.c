/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts a box together and takes it apart.
 */
#include "phub/control/box.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "phub/base/cpu.h"
#include "phub/base/log.h"
#include "phub/base/mem.h"
#include "phub/control/announce.h"
#include "phub/control/checkpoint.h"
#include "phub/control/exposure.h"
#include "phub/control/promotion.h"
#include "transport/rate.h"
#include "topology/discover.h"
#include "topology/pick.h"
#include "transport/dpdk.h"
#include "transport/sock.h"
#include "transport/stream_tls.h"

enum {
	BOX_MAILS = 4096,          /* from the cores to control */
	BOX_UNWIND_STEPS = 100000, /* by hand: for shards to come back and errors to go out, at the end */
};

/* ---- which CPUs ---- */

/* Are the CPUs that the operator named there, for us? */
static int box_check_listed(const struct config *config, struct err *e)
{
	struct cpu_list *allowed = malloc(sizeof(*allowed));
	int rc = 0;

	if (!allowed)
		return err_set(e, -ENOMEM, "no memory for the list of CPUs");
	if (cpu_list_allowed(allowed) < 0)
		allowed->count = 0;
	for (unsigned i = 0; rc == 0 && i < config->core_count; i++) {
		bool found = allowed->count == 0;

		for (unsigned k = 0; k < allowed->count; k++)
			found = found || allowed->cpu[k] == config->cpus[i];
		if (!found)
			rc = err_set(e, -EINVAL,
				"cores: CPU %d is not there, or this process may not use it; see taskset -p %d",
				config->cpus[i], (int)getpid());
	}
	free(allowed);
	return rc;
}

static int box_use_listed(struct box *box, struct err *e)
{
	const struct config *config = box->config;
	int rc = box_check_listed(config, e);

	if (rc < 0)
		return rc;
	for (unsigned i = 0; i < box->core_count; i++) {
		box->placement[i] = (struct placement_core){.cpu = config->cpus[i], .nic = PLACEMENT_NIC_NONE};
		box->core_node[i] = cpu_node(NULL, config->cpus[i]);
		if (box->core_node[i] < 0)
			box->core_node[i] = MEM_NODE_ANY;
	}
	return 0;
}

/* A count: pinned to good CPUs on a box that polls all the time; elsewhere the scheduler knows better. */
static void box_use_count(struct box *box)
{
	struct host *host = NULL;
	struct err e;
	bool pin = box->config->poll == CONFIG_POLL_BUSY && !box->env.by_hand;

	for (unsigned i = 0; i < box->core_count; i++) {
		box->placement[i] = (struct placement_core){.cpu = -1, .nic = PLACEMENT_NIC_NONE};
		box->core_node[i] = MEM_NODE_ANY;
	}
	if (!pin)
		return;
	host = malloc(sizeof(*host));
	if (!host || discover_host(&(struct discover_options){0}, host, &e) < 0 ||
		topology_pick_cores(host, NULL, 0, box->core_count, box->placement, &e) < 0) {
		log_warn("cores are not pinned: %s", host ? e.text : "no memory");
		for (unsigned i = 0; i < box->core_count; i++)
			box->placement[i].cpu = -1;
	} else {
		for (unsigned i = 0; i < box->core_count; i++)
			box->core_node[i] = host->node_count > 1 ? box->placement[i].node : MEM_NODE_ANY;
	}
	free(host);
}

static int box_place_cores(struct box *box, struct err *e)
{
	if (box->config->cores_listed && !box->env.by_hand)
		return box_use_listed(box, e);
	box_use_count(box);
	return 0;
}

/* ---- ways in ---- */

static int box_open_transport(struct box *box, const struct transport_ops *ops, const char *host, unsigned first,
	unsigned last, struct err *e)
{
	const struct config *config = box->config;
	struct box_transport *t = &box->transports[box->transport_count];
	const struct transport_config transport = {
		.queue_conns_max = (unsigned)config->sessions_max,
		.congestion = config->congestion[0] ? config->congestion : NULL,
		.interface = config->interface[0] ? config->interface : NULL,
		.rdma = config->rdma[0] ? config->rdma : NULL,
		.rdma_dscp = (unsigned)config->rdma_dscp,
		.port_first = config->port_first,
		.port_last = config->port_last,
		.rdma_fixed = config->rdma_pushes == CONFIG_PUSHES_FIXED,
		/* What jobs may take is registered when they do; whether that will be possible is known now. */
		.pinned_bytes = config->memory_max,
		.slots_bytes = config->rdma_slots_memory,
		.slots_bytes_max = config->memory_max,
		.loop = box->env.loop,
		.handshake_ms = (unsigned)config->handshake_ms,
		.rate = box->data_rate,
		.datagram_mtu = (unsigned)config->datagram_mtu,
		.dpdk_ports = config->dpdk_ports[0] ? config->dpdk_ports : NULL,
		.dpdk_eal = config->dpdk_eal[0] ? config->dpdk_eal : NULL,
		.queue_count = box->core_count,
		.queue_sets = config->uplink_transport == CONFIG_UPLINK_DPDK ? 2 : 1,
		.queue_nodes = box->core_node,
	};
	int rc;

	if (box->transport_count == CONFIG_TRANSPORTS_MAX)
		return err_set(e, -ENOSPC, "more than %u transports and addresses; shorten listen or transports",
			CONFIG_TRANSPORTS_MAX);
	rc = ops->open(&transport, &t->transport, e);
	if (rc < 0)
		return rc;
	box->transport_count++;
	rc = ops->listen(t->transport, host, t->address[first], sizeof(t->address[first]), e);
	if (rc < 0)
		return rc;
	for (unsigned i = first + 1; i <= last; i++)
		memcpy(t->address[i], t->address[first], sizeof(t->address[i]));
	t->fd = ops->fd(t->transport);
	t->ready = true;
	t->watch = (struct control_watch){CONTROL_TRANSPORT, t};
	return 0;
}

/* Over tcp each address of the control sessions has a transport of its own, which listens on the same address. */
static int box_open_tcp(struct box *box, const struct transport_ops *ops, struct err *e)
{
	const struct config *config = box->config;

	for (unsigned i = 0; i < config->listen_count; i++) {
		const struct box_transport *twin = NULL;
		int rc;

		for (unsigned k = 0; k < i; k++)
			if (strcmp(config->listen[k].host, config->listen[i].host) == 0)
				for (unsigned n = 0; n < box->transport_count && !twin; n++)
					if (box->transports[n].transport->ops == ops &&
						box->transports[n].address[k][0])
						twin = &box->transports[n];
		if (twin) {
			struct box_transport *t = &box->transports[twin - box->transports];

			for (unsigned k = 0; k < i; k++)
				if (t->address[k][0])
					memcpy(t->address[i], t->address[k], sizeof(t->address[i]));
			continue;
		}
		rc = box_open_transport(box, ops, config->listen[i].host, i, i, e);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Where one transport serves all addresses: the host that they have in common, or any. */
static const char *box_common_host(const struct config *config)
{
	for (unsigned i = 1; i < config->listen_count; i++)
		if (strcmp(config->listen[i].host, config->listen[0].host) != 0)
			return "";
	return config->listen[0].host;
}

static int box_open_transports(struct box *box, struct err *e)
{
	const struct config *config = box->config;
	unsigned last = config->listen_count - 1;
	unsigned count = box->env.transports ? box->env.transport_count : config->transport_count;
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < count; i++) {
		const struct transport_ops *ops =
			box->env.transports ? box->env.transports[i] : transport_find(config->transports[i]);

		if (!ops)
			return err_set(e, -ENOTSUP, "transports: %s is not built in", config->transports[i]);
		rc = strcmp(ops->name, "tcp") == 0 ? box_open_tcp(box, ops, e)
						   : box_open_transport(box, ops, box_common_host(config), 0, last, e);
	}
	return rc;
}

/* Opens what proves the box to its workers; they may be told the certificate's digest in place of an authority. */
static int box_open_tls(const struct config *config, struct stream_tls **out, struct err *e)
{
	struct err why;
	int rc;

	if (config->tls == CONFIG_TLS_OFF)
		return 0;
	rc = stream_tls_box(config->tls_cert, config->tls_key, out, &why);
	return rc < 0 ? err_set(e, rc, "tls: %s", why.text) : 0;
}

/* For workers that have no authority's certificate. */
static void box_tell_pin(const struct box *box)
{
	char pin[STREAM_TLS_PIN_TEXT];

	stream_tls_pin(box->tls, pin);
	log_info("control sessions %s TLS 1.3; workers have the certificate's authority in PHUB_TLS_CA, or "
		 "PHUB_TLS_PIN=%s",
		box->config->tls == CONFIG_TLS_REQUIRE ? "need" : "may have", pin);
}

const struct racks *box_racks(const struct box *box, unsigned *self)
{
	const struct racks *anew = &box->racks, *first = &box->config->racks;

	*self = anew->box_count ? box->racks_box : box->config->racks_box;
	return anew->box_count ? anew : first->box_count ? first : NULL;
}

/* By its name; and where it listens, as it must at start when its options name it not. RACKS_NONE is logged. */
static int box_find_self(const struct config *config, const struct racks *racks)
{
	const char *name = config->racks.boxes[config->racks_box].name;
	int self = racks_find_box(racks, name);
	const struct rack_box *own = self == RACKS_NONE ? NULL : &racks->boxes[self];

	if (!own) {
		log_error("SIGHUP: %s has no box '%s' any more, which this one is; what was read before stays",
			config->racks_file, name);
	} else if (!config->box[0] && !config_is_here(config, own->host, own->port)) {
		log_error("SIGHUP: %s has box '%s', which this one is, at %s:%u, where it does not listen; what was "
			  "read before stays",
			config->racks_file, name, own->host, own->port);
		self = RACKS_NONE;
	}
	return self;
}

static void box_reload_racks(struct box *box)
{
	const struct config *config = box->config;
	struct racks racks;
	struct err e;
	int self;

	if (racks_read(config->racks_file, &racks, &e) < 0) {
		log_error("SIGHUP: %s; the rack file that was read before stays", e.text);
		return;
	}
	self = box_find_self(config, &racks);
	if (self == RACKS_NONE) {
		racks_fini(&racks);
		return;
	}
	racks_fini(&box->racks);
	box->racks = racks;
	box->racks_box = (unsigned)self;
	log_info("SIGHUP: the rack file is read anew: %u racks, %u boxes; jobs that start now go by it",
		racks.rack_count, racks.box_count);
}

static void box_reload_tls(struct box *box)
{
	struct stream_tls *tls = NULL;
	struct err e;

	if (box_open_tls(box->config, &tls, &e) < 0) {
		log_error("SIGHUP: %s; the certificate and key that were read before stay", e.text);
		return;
	}
	stream_tls_close(box->tls);
	box->tls = tls;
	log_info("SIGHUP: certificate and key are read anew");
	box_tell_pin(box);
}

void box_reload(struct box *box)
{
	bool racks = box->config->racks.box_count > 0, tls = box->config->tls != CONFIG_TLS_OFF;

	if (racks)
		box_reload_racks(box);
	if (tls)
		box_reload_tls(box);
	if (!racks && !tls)
		log_info("SIGHUP: nothing to read anew: tls is off, there is no rack file, and other options need a "
			 "restart");
}

/* Who serves the world in plain is told so once, aloud. */
static void box_tell_exposed(struct box *box)
{
	char secrets[ERR_TEXT_MAX];

	if (box->env.accept)
		return;
	exposure_describe(box->config, box->exposed, sizeof(box->exposed));
	if (box->exposed[0])
		log_warn("%s", box->exposed);
	exposure_describe_secrets(box->config, secrets, sizeof(secrets));
	if (secrets[0])
		log_warn("%s", secrets);
}

static int box_listen(struct box *box, struct err *e)
{
	const struct config *config = box->config;
	const char *interface = config->interface[0] ? config->interface : NULL;

	if (box->env.accept)
		return 0;
	for (unsigned i = 0; i < config->listen_count; i++) {
		const struct config_listen *l = &config->listen[i];
		struct box_listener *listener = &box->listeners[i];
		struct err why;
		int rc = stream_listen_tcp(
			l->host, l->port, interface, &listener->fd, listener->bound, sizeof(listener->bound), &why);

		if (rc == -EADDRINUSE)
			return err_set(e, rc,
				"port %u of %s is taken, by another phubd perhaps; stop it, or choose another port "
				"with listen",
				l->port, l->host[0] ? l->host : "*");
		if (rc < 0)
			return err_set(e, rc, "listen: %s: %s", l->host[0] ? l->host : "*", why.text);
		listener->watch = (struct control_watch){CONTROL_LISTENER, listener};
		box->listener_count++;
	}
	return 0;
}

/* RDMA ports are there or not, whoever uses them. */
static int box_check_rdma(const struct config *config, struct err *e)
{
	const struct transport_ops *ops = transport_find("verbs");
	const struct transport_config transport = {
		.interface = config->interface[0] ? config->interface : NULL,
		.rdma = config->rdma[0] ? config->rdma : NULL,
		.pinned_bytes = config->memory_max,
		.slots_bytes = config->rdma_slots_memory,
		.slots_bytes_max = config->memory_max,
	};
	struct transport *t;
	int rc;

	if (!ops || !config_uses(config, "verbs"))
		return 0;
	rc = ops->open(&transport, &t, e);
	if (rc == 0)
		ops->close(t);
	return rc;
}

/* Names come and go, and the other box may be started later than this one: no reason to refuse. A host's own box has
 * its name from workers that have resolved it, or wait for it. */
static void box_tell_names(const struct config *config)
{
	if (config->uplink_count && !config->hostbox_fd && stream_host_is_loopback(config->uplinks[0].at.host) < 0)
		log_warn("uplink: '%s'%s does not resolve to an address: jobs wait for the box above until it does",
			config->uplinks[0].at.host, config->racks_uplink ? ", the first box of the rack file," : "");
	if (config->standby[0] && stream_host_is_loopback(config->standby_at.host) < 0)
		log_warn("standby: '%s' does not resolve to an address: jobs run WITHOUT a standby until it does",
			config->standby_at.host);
}

/* Nor is this one: who has the authority may be started later. Jobs say it, too, each by itself. */
static void box_tell_trust(const struct config *config)
{
	const char *ca = getenv("PHUB_TLS_CA"), *pin = getenv("PHUB_TLS_PIN");
	bool asks = config->standby[0] && config->standby_tls;

	for (unsigned i = 0; i < config->uplink_count; i++)
		asks = asks || config->uplinks[i].tls;
	if (asks && !(ca && *ca) && !(pin && *pin))
		log_warn("%s: phubs:// needs to know the other box: set PHUB_TLS_CA in the environment of phubd to a "
			 "file with "
			 "the authority of its certificate, or PHUB_TLS_PIN to its SHA-256; jobs do not get there "
			 "until then",
			config->standby[0] ? "standby" : "uplink");
}

/* A job that ends with its root begins anew then, which is hardly meant. */
static void box_tell_root(const struct config *config)
{
	if (config->root[0] && !config->checkpoint_targets[0])
		log_warn("root: '%s' without checkpoint_targets: when the root dies, its jobs begin anew at the next "
			 "one; set the same checkpoint_targets at all that stand for it, on a mount that all have",
			config->root);
}

int box_check(const struct config *config, struct err *e)
{
	const char *interface = config->interface[0] ? config->interface : NULL;
	int rc = config->cores_listed ? box_check_listed(config, e) : 0;
	struct stream_tls *tls = NULL;
	struct err why;
	int fd;

	if (rc == 0)
		rc = box_open_tls(config, &tls, e);
	stream_tls_close(tls);
	for (unsigned i = 0; rc == 0 && i < config->listen_count; i++) {
		rc = sock_listen(config->listen[i].host, 0, 0, interface, &fd, &why);
		if (rc == 0)
			close(fd);
		else
			err_set(e, rc, "listen: %s: %s", config->listen[i].host[0] ? config->listen[i].host : "*",
				why.text);
	}
	if (rc == 0) {
		box_tell_names(config);
		box_tell_trust(config);
		box_tell_root(config);
	}
	if (rc == 0)
		rc = box_check_rdma(config, e);
	return rc == 0 && config_uses(config, "dpdk") ? dpdk_check(config->dpdk_ports, e) : rc;
}

/* Those that cannot be written are away: the others of the list keep a box with the same list from these, too. */
static int box_lock_targets(const struct checkpoint_place *place, struct box *box, int untried, struct err *e)
{
	struct err why;
	int rc = checkpoint_lock_targets(place, box->listener_count ? box->listeners[0].bound : "", &box->locks, &why);

	if (rc > untried)
		log_warn("checkpoint_targets: %s; see that no other box has its checkpoints there", why.text);
	return rc < 0 ? err_set(e, rc, "checkpoint_targets: %s", why.text) : 0;
}

int box_check_targets(const struct config *config, struct box *box, bool strict, struct err *e)
{
	struct checkpoint_place place = {
		.parity = (unsigned)config->checkpoint_parity, .disk = box ? box->env.disk : NULL};
	char text[sizeof(config->checkpoint_targets)];
	bool full;
	struct err why = {.code = 0};
	int rc;

	if (!config->checkpoint_targets[0])
		return 0;
	memcpy(text, config->checkpoint_targets, sizeof(text));
	rc = checkpoint_list_targets(&place, text);
	if (rc == 0)
		rc = checkpoint_try_targets(&place, &why);
	full = rc < 0 && (why.code == -ENOSPC || why.code == -EDQUOT);
	if ((rc < 0 && !full) || (rc != 0 && strict))
		return err_set(e, why.code, "checkpoint_targets: %s", why.text);
	if (full)
		log_warn("checkpoint_targets: %s. Jobs go on from what is there, but no checkpoint is written until "
			 "then",
			why.text);
	else if (rc > 0)
		log_warn("checkpoint_targets: %s (%d of %u). Parity makes up for it: checkpoints are written to the "
			 "others",
			why.text, rc, place.target_count);
	if (!box || box->control.above.there || config->root[0])
		return 0;
	return box_lock_targets(&place, box, rc > 0 ? rc : 0, e);
}

/* Of one that stands for a root: they are taken when it is that. */
static int box_name_targets(struct box *box, struct err *e)
{
	const struct config *config = box->config;
	const char *bound = box->listener_count ? box->listeners[0].bound : "";
	char who[TARGETS_WHO_BYTES], host[65] = "";

	if (bound[0] == '*') /* others have to know where that is */
		gethostname(host, sizeof(host) - 1);
	snprintf(who, sizeof(who), "%s%.50s, process %ld", host, bound + (host[0] != '\0'), (long)getpid());
	if (!config->root[0] || !config->checkpoint_targets[0])
		return 0;
	if (targets_init(&box->targets, config->checkpoint_targets, (unsigned)config->checkpoint_parity, who,
		    box->env.disk, box->env.by_hand) < 0)
		return err_set(e, -ENOMEM, "no memory for checkpoint_targets");
	return 0;
}

/* ---- cores ---- */

static int box_create_core(struct box *box, unsigned index, struct err *e)
{
	const struct config *config = box->config;
	const struct core_config core = {
		.index = index,
		.cpu = box->env.by_hand ? -1 : box->placement[index].cpu,
		.poll = config->poll == CONFIG_POLL_BUSY ? CORE_BUSY : CORE_ADAPTIVE,
		.spin_ns = config->spin_us * 1000,
		.control = box->control.mail,
		.clock = box->env.lease_clock,
		.plant = (enum shard_plant)box->env.plant,
		.plant_leak = box->env.plant_leak,
	};
	int rc = core_create(&core, &box->cores[index], e);

	if (rc < 0)
		return rc;
	box->posts[index].inbox = box->cores[index]->inbox;
	for (unsigned i = 0; i < box->transport_count; i++) {
		struct transport *t = box->transports[i].transport;

		rc = t->ops->queue_create(t, box->core_node[index], &box->queues[index][i], e);
		if (rc < 0)
			return rc;
		rc = core_add_queue(box->cores[index], box->queues[index][i]);
		if (rc < 0)
			return err_set(e, rc, "core %u cannot poll %u queues", index, box->transport_count);
	}
	return outlets_queue(box, index, e);
}

static int box_create_cores(struct box *box, struct err *e)
{
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < box->core_count; i++)
		rc = box_create_core(box, i, e);
	return rc;
}

/* ---- the whole ---- */

static void box_free(struct box *box)
{
	promotion_close(box);
	for (unsigned i = 0; i < box->core_count; i++) {
		for (unsigned t = 0; t < box->transport_count; t++)
			if (box->queues[i][t])
				box->transports[t].transport->ops->queue_destroy(
					box->transports[t].transport, box->queues[i][t]);
		outlets_close_queues(box, i);
		if (box->cores[i])
			core_destroy(box->cores[i]);
		post_fini(&box->posts[i]);
	}
	for (unsigned i = 0; i < box->transport_count; i++)
		box->transports[i].transport->ops->close(box->transports[i].transport);
	outlets_close(box);
	for (unsigned i = 0; i < box->listener_count; i++)
		close(box->listeners[i].fd);
	if (box->announce)
		box->env.announce->close(box->announce);
	targets_fini(&box->targets);
	racks_fini(&box->racks);
	stream_tls_close(box->tls);
	rate_destroy(box->control.rate);
	rate_destroy(box->data_rate);
	if (box->control.mail)
		mailbox_destroy(box->control.mail);
	free(box);
}

int box_create(const struct config *config, const struct box_env *env, uint64_t now_ns, struct box **out, struct err *e)
{
	struct box *box = calloc(1, sizeof(*box));
	int rc;

	if (!box)
		return err_set(e, -ENOMEM, "no memory for a box");
	box->config = config;
	box->env = *env;
	box->core_count = config->core_count;
	box->control = (struct control){
		.config = config,
		.box = box,
		.epoll_fd = -1,
		.uid = (int64_t)geteuid(),
		.now_ns = now_ns,
		.started_ns = now_ns,
		.stepped_ns = now_ns,
		.tick_ns = now_ns,
		.keep_ns = UINT64_MAX,
	};
	above_init(&box->control);
	rc = mailbox_create(BOX_MAILS, &box->control.mail);
	if (rc < 0)
		err_set(e, rc, "cannot make the mailbox of the cores: %s", strerror(-rc));
	box->control.rate = rate_create(config->handshake_rate, config->handshake_rate_source);
	/* A rank has one control session, and a data connection to each core. */
	box->data_rate =
		rate_create(config->handshake_rate * box->core_count, config->handshake_rate_source * box->core_count);
	if (rc == 0 && (!box->control.rate || !box->data_rate))
		rc = err_set(e, -ENOMEM, "no memory or no random numbers to count strangers with");
	if (rc == 0)
		rc = box_open_tls(config, &box->tls, e);
	if (box->tls)
		box_tell_pin(box);
	if (rc == 0)
		rc = box_listen(box, e);
	if (rc == 0)
		rc = box_name_targets(box, e);
	if (rc == 0)
		rc = box_place_cores(box, e);
	if (rc == 0)
		rc = box_open_transports(box, e);
	if (rc == 0)
		rc = outlets_open(box, e);
	if (rc == 0)
		rc = box_create_cores(box, e);
	if (rc == 0 && env->announce && config->etcd[0])
		rc = env->announce->open(box, now_ns, &box->announce, e);
	if (rc < 0) {
		box_free(box);
		return rc;
	}
	box_tell_exposed(box);
	if (!env->by_hand) {
		box_tell_names(config);
		box_tell_trust(config);
		box_tell_root(config);
	}
	*out = box;
	return 0;
}

bool box_step(struct box *box, uint64_t now_ns)
{
	bool again = control_step(&box->control, now_ns);

	for (unsigned i = 0; i < box->core_count; i++)
		again = core_step(box->cores[i], now_ns) > 0 || again;
	return again;
}

uint64_t box_next(const struct box *box)
{
	return control_next(&box->control);
}

void box_destroy(struct box *box, uint64_t now_ns)
{
	if (!box)
		return;
	control_stop(&box->control);
	for (int i = 0; i < BOX_UNWIND_STEPS && (box->control.jobs || i < 2); i++)
		box_step(box, now_ns);
	if (box->control.jobs)
		log_error("shards are still with the cores; their memory is not freed");
	control_fini(&box->control);
	box_free(box);
}

bool box_balanced(const struct box *box)
{
	bool balanced = !box->control.unbalanced;

	for (unsigned i = 0; i < box->transport_count; i++) {
		const struct transport *t = box->transports[i].transport;

		if (t->slots_lost == 0)
			continue;
		log_error("%s: %llu receive slots never came back", t->ops->name, (unsigned long long)t->slots_lost);
		balanced = false;
	}
	return balanced;
}

void box_describe(const struct box *box, char *out, size_t bytes)
{
	size_t at = 0;

	out[0] = '\0';
	for (unsigned i = 0; i < box->listener_count && at < bytes; i++)
		at += (size_t)snprintf(out + at, bytes - at, "%s%s", i ? ", " : "", box->listeners[i].bound);
	for (unsigned i = 0; i < box->transport_count && at < bytes; i++) {
		const char *name = box->transports[i].transport->ops->name;

		if (i > 0 && strcmp(name, box->transports[i - 1].transport->ops->name) == 0)
			continue;
		at += (size_t)snprintf(out + at, bytes - at, "%s%s", i ? ", " : " (", name);
	}
	if (at < bytes)
		snprintf(out + at, bytes - at, "), %u core%s, %s polling, %llu MiB for jobs", box->core_count,
			box->core_count == 1 ? "" : "s", box->config->poll == CONFIG_POLL_BUSY ? "busy" : "adaptive",
			(unsigned long long)(box->config->memory_max >> 20));
}
