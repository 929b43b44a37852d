/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs transport's cold half: the transport, its queues with a completion queue for each device, registered
 * memory. Control thread. Connections are made in verbs_join.c and verbs_dial.c.
 */
#include "transport/verbs_internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"

enum {
	VERBS_BELL_SENDS = 64,
	VERBS_HASH_FACTOR = 2,
	VERBS_DSCP_MAX = 63,
};

/* ---- registered memory ---- */

static void verbs_region_free(struct verbs *v, struct verbs_region *r)
{
	for (unsigned d = 0; d < v->device_count; d++)
		if (r->mr[d])
			ibv_dereg_mr(r->mr[d]);
	free(r);
}

/* Its addresses are those that the caller knows it by. */
static struct ibv_mr *verbs_register(
	struct verbs_device *d, void *addr, size_t bytes, int access, const struct dmabuf *dmabuf)
{
	if (!dmabuf)
		return ibv_reg_mr(d->pd, addr, bytes, access);
#ifdef PHUB_VERBS_DMABUF
	return ibv_reg_dmabuf_mr(d->pd, dmabuf->offset, bytes, (uintptr_t)addr, dmabuf->fd, access);
#else
	errno = EOPNOTSUPP;
	return NULL;
#endif
}

static int verbs_refused(struct verbs_device *d, size_t bytes, const struct dmabuf *dmabuf, int error, struct err *e)
{
	if (dmabuf)
		return err_set(e, -ENOTSUP, "verbs: %s cannot reach %zu bytes of a device's memory by dma-buf: %s",
			d->about.device, bytes, strerror(error));
	if (error == ENOMEM && verbs_limit_refused(bytes, e) < 0)
		return -ENOMEM;
	return err_set(e, -error, "verbs: %s cannot register %zu bytes: %s", d->about.device, bytes, strerror(error));
}

static int verbs_region_add(
	struct verbs *v, struct verbs_region *r, uint32_t device_index, const struct dmabuf *dmabuf, struct err *e)
{
	struct verbs_device *d = &v->devices[device_index];

	if (r->mr[device_index])
		return 0;
	r->mr[device_index] = verbs_register(d, (void *)r->from, r->to - r->from, r->access, dmabuf);
	return r->mr[device_index] ? 0 : verbs_refused(d, r->to - r->from, dmabuf, errno, e);
}

int verbs_region_cover(struct verbs *v, struct verbs_region *r, uint32_t device_index, struct err *e)
{
	return verbs_region_add(v, r, device_index, NULL, e);
}

int verbs_device_use(struct verbs *v, uint32_t device_index, struct err *e)
{
	int rc = 0;

	v->used[device_index] = true;
	for (struct verbs_region *r = v->regions; r && rc == 0; r = r->next)
		rc = verbs_region_cover(v, r, device_index, e);
	return rc;
}

static struct verbs_region *verbs_region_create(struct verbs *v, void *addr, size_t bytes, int access)
{
	struct verbs_region *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->from = (uintptr_t)addr;
	r->to = r->from + bytes;
	r->access = access;
	v->transport.registrations++;
	return r;
}

static void verbs_region_append(struct verbs *v, struct verbs_region *r)
{
	pthread_mutex_lock(&v->lock);
	r->uses = 1;
	r->next = v->regions;
	v->regions = r;
	pthread_mutex_unlock(&v->lock);
}

struct verbs_region *verbs_region_get(struct verbs *v, void *addr, size_t bytes, int access, struct err *e)
{
	struct verbs_region *r;

	pthread_mutex_lock(&v->lock);
	for (r = v->regions; r; r = r->next)
		if (r->uses > 0 && r->from == (uintptr_t)addr && r->to - r->from == bytes)
			break;
	if (r)
		r->uses++;
	pthread_mutex_unlock(&v->lock);
	if (r)
		return r;
	r = verbs_region_create(v, addr, bytes, access);
	if (r)
		verbs_region_append(v, r);
	else
		err_set(e, -ENOMEM, "verbs: no memory to register more");
	return r;
}

void verbs_region_put(struct verbs *v, struct verbs_region *r)
{
	pthread_mutex_lock(&v->lock);
	r->uses--;
	pthread_mutex_unlock(&v->lock);
}

int verbs_memory_get(struct verbs_conn *c, struct err *e)
{
	const struct conn_spec *spec = c->spec;

	for (uint32_t i = 0; spec && i < spec->memory_count; i++) {
		c->memory[i] = verbs_region_get(c->verbs, spec->memory[i].base, spec->memory[i].bytes,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, e);
		if (!c->memory[i])
			return e->code;
		c->memory_count++;
	}
	return 0;
}

int verbs_memory_cover(const struct verbs_conn *c, uint32_t device_index, struct err *e)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < c->memory_count; i++)
		rc = verbs_region_cover(c->verbs, c->memory[i], device_index, e);
	return rc;
}

void verbs_regions_reap(struct verbs *v)
{
	struct verbs_region **at = &v->regions, *dead = NULL;

	pthread_mutex_lock(&v->lock);
	while (*at) {
		struct verbs_region *r = *at;

		if (r->uses > 0) {
			at = &r->next;
			continue;
		}
		*at = r->next;
		r->next = dead;
		dead = r;
	}
	pthread_mutex_unlock(&v->lock);
	while (dead) {
		struct verbs_region *r = dead;

		dead = r->next;
		verbs_region_free(v, r);
	}
}

static int verbs_mem_register(
	struct transport *head, void *addr, size_t bytes, const struct dmabuf *dmabuf, struct err *e)
{
	struct verbs *v = (struct verbs *)head;
	uintptr_t from = (uintptr_t)addr;
	struct verbs_region *region;
	int rc = 0;

	if (!addr || bytes == 0 || from + bytes < from)
		return err_set(e, -EINVAL, "verbs: nothing to register");
	for (struct verbs_region *r = v->regions; r; r = r->next)
		if (from < r->to && r->from < from + bytes)
			return err_set(e, -EEXIST, "verbs: a part of this memory is registered already");
	region = verbs_region_create(v, addr, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!region)
		return err_set(e, -ENOMEM, "verbs: no memory to register more");
	region->foreign = dmabuf != NULL;
	/* A dma-buf is gone when this returns: every port learns of it that a connection may take one day. */
	for (unsigned d = 0; rc == 0 && d < v->device_count; d++)
		if (dmabuf || v->used[d])
			rc = verbs_region_add(v, region, d, dmabuf, e);
	if (rc < 0)
		verbs_region_free(v, region);
	else
		verbs_region_append(v, region);
	return rc;
}

static void verbs_mem_unregister(struct transport *head, void *addr)
{
	struct verbs *v = (struct verbs *)head;

	for (struct verbs_region *r = v->regions; r; r = r->next)
		if (r->from == (uintptr_t)addr)
			r->uses = 0;
	verbs_regions_reap(v);
}

/* ---- what a queue has of a device ---- */

int verbs_port_reserve(struct verbs_port *p, unsigned cqes, struct err *e)
{
	unsigned used = atomic_fetch_add_explicit(&p->cqes_used, cqes, memory_order_relaxed) + cqes;
	unsigned most = (unsigned)p->device->attr.max_cqe, want = p->cqes;
	int rc;

	if (used <= p->cqes)
		return 0;
	while (want < used)
		want *= 2;
	want = want < most ? want : most;
	rc = want < used ? ENOSPC : ibv_resize_cq(p->cq, (int)want);
	if (rc == 0) {
		p->cqes = want;
		return 0;
	}
	atomic_fetch_sub_explicit(&p->cqes_used, cqes, memory_order_relaxed);
	return err_set(e, -rc,
		"verbs: %s: a completion queue of %u entries is needed, and %u is the most (%s); lower `window`, "
		"or use more cores",
		p->device->about.device, used, most, strerror(rc));
}

static void verbs_port_free(struct verbs_port *p)
{
	if (p->bell)
		ibv_destroy_qp(p->bell);
	if (p->bell_mr)
		ibv_dereg_mr(p->bell_mr);
	free(p->bell_memory);
	free(p->bell_recvs);
	if (p->events)
		ibv_ack_cq_events(p->cq, p->events);
	if (p->cq)
		ibv_destroy_cq(p->cq);
	if (p->channel)
		ibv_destroy_comp_channel(p->channel);
	if (p->pd && p->pd != p->device->pd)
		ibv_dealloc_pd(p->pd);
	if (p->td)
		ibv_dealloc_td(p->td);
}

/* A domain whose pairs one thread alone posts to, where the device has such. */
static void verbs_port_domain(struct verbs_port *p)
{
	struct ibv_td_init_attr td = {0};
	struct ibv_parent_domain_init_attr parent = {.pd = p->device->pd};

	p->pd = p->device->pd;
	p->td = ibv_alloc_td(p->device->context, &td);
	if (!p->td)
		return;
	parent.td = p->td;
	p->pd = ibv_alloc_parent_domain(p->device->context, &parent);
	if (p->pd)
		return;
	p->pd = p->device->pd;
	ibv_dealloc_td(p->td);
	p->td = NULL;
}

static int verbs_bell_state(struct verbs_port *p)
{
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT, .port_num = p->device->port, .qkey = p->bell_key, .pkey_index = 0};
	struct ibv_qp_attr receive = {.qp_state = IBV_QPS_RTR};
	struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS, .sq_psn = 0};
	int rc = ibv_modify_qp(p->bell, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);

	if (rc == 0)
		rc = ibv_modify_qp(p->bell, &receive, IBV_QP_STATE);
	if (rc == 0)
		rc = ibv_modify_qp(p->bell, &send, IBV_QP_STATE | IBV_QP_SQ_PSN);
	return -rc;
}

/* Datagrams for the end of connections: see verbs_internal.h. */
static int verbs_bell_create(struct verbs_port *p)
{
	struct ibv_qp_init_attr init = {
		.send_cq = p->cq,
		.recv_cq = p->cq,
		.cap = {.max_send_wr = VERBS_BELL_SENDS,
			.max_recv_wr = VERBS_BELL_RECVS,
			.max_send_sge = 1,
			.max_recv_sge = 1,
			.max_inline_data = VERBS_BELL_BYTES},
		.qp_type = IBV_QPT_UD,
	};
	int rc;

	p->bell_memory = calloc(VERBS_BELL_RECVS, VERBS_BELL_BYTES);
	p->bell_recvs = calloc(VERBS_BELL_RECVS, sizeof(*p->bell_recvs));
	if (!p->bell_memory || !p->bell_recvs)
		return -ENOMEM;
	p->bell_key = 0x70687562; /* "phub"; whoever rings must know the token */
	p->bell_mr = ibv_reg_mr(
		p->device->pd, p->bell_memory, (size_t)VERBS_BELL_RECVS * VERBS_BELL_BYTES, IBV_ACCESS_LOCAL_WRITE);
	if (!p->bell_mr)
		return -errno;
	p->bell = ibv_create_qp(p->device->pd, &init);
	if (!p->bell)
		return -errno;
	rc = verbs_bell_state(p);
	for (unsigned i = 0; rc == 0 && i < VERBS_BELL_RECVS; i++) {
		struct verbs_recv *r = &p->bell_recvs[i];
		struct ibv_recv_wr *bad;

		r->device = (uint32_t)(p - p->queue->ports);
		r->sge = (struct ibv_sge){.addr = (uintptr_t)(p->bell_memory + (size_t)i * VERBS_BELL_BYTES),
			.length = VERBS_BELL_BYTES,
			.lkey = p->bell_mr->lkey};
		r->wr = (struct ibv_recv_wr){
			.wr_id = verbs_wr_id(r, VERBS_BELL_RECV), .sg_list = &r->sge, .num_sge = 1};
		rc = -ibv_post_recv(p->bell, &r->wr, &bad);
	}
	return rc;
}

static int verbs_port_create(struct verbs_queue *q, struct verbs_port *p, struct verbs_device *d, struct err *e)
{
	struct epoll_event interest = {.events = EPOLLIN};
	int rc = 0;

	p->queue = q;
	p->device = d;
	p->cqes = VERBS_CQES_MIN < d->attr.max_cqe ? VERBS_CQES_MIN : (unsigned)d->attr.max_cqe;
	atomic_store_explicit(&p->cqes_used, VERBS_BELL_RECVS + VERBS_BELL_SENDS, memory_order_relaxed);
	p->channel = ibv_create_comp_channel(d->context);
	if (!p->channel || fcntl(p->channel->fd, F_SETFL, O_NONBLOCK) < 0 ||
		epoll_ctl(q->epoll_fd, EPOLL_CTL_ADD, p->channel->fd, &interest) < 0)
		rc = -errno;
	if (rc == 0) {
		p->cq = ibv_create_cq(d->context, (int)p->cqes, NULL, p->channel, 0);
		rc = p->cq ? 0 : -errno;
	}
	if (rc == 0) {
		verbs_port_domain(p);
		rc = verbs_bell_create(p);
	}
	if (rc == -ENOMEM && verbs_limit_refused((uint64_t)VERBS_BELL_RECVS * VERBS_BELL_BYTES, e) < 0)
		return rc;
	return rc == 0 ? 0
		       : err_set(e, rc, "verbs: %s cannot make a completion queue or what belongs to it: %s",
				 d->about.device, strerror(-rc));
}

static void verbs_queue_free(struct verbs_queue *q)
{
	for (unsigned i = 0; i < q->port_count; i++)
		verbs_port_free(&q->ports[i]);
	if (q->epoll_fd >= 0)
		close(q->epoll_fd);
	free(q->hash);
	free(q);
}

void verbs_ports_from(const struct verbs *v, int node, struct rails_port *out)
{
	for (unsigned i = 0; i < v->device_count; i++) {
		memcpy(out[i].gid, v->devices[i].gid.raw, sizeof(out[i].gid));
		out[i].distance = !atomic_load_explicit(&v->devices[i].failed, memory_order_relaxed) &&
						  verbs_device_is_up(&v->devices[i])
					  ? rails_distance(NULL, node, v->devices[i].about.node)
					  : 0;
	}
}

/* For who wonders where a core's bytes come from. */
static void verbs_log_ports(const struct verbs *v, unsigned core)
{
	struct rails_port ports[VERBS_DEVICES_MAX];
	char names[VERBS_RAILS_MAX * (RDMA_NAME_BYTES + 2)] = "none: all are down", name[RDMA_NAME_BYTES];
	uint8_t chosen[VERBS_RAILS_MAX];
	unsigned count;
	size_t at = 0;

	if (!v->address[0])
		return;
	verbs_ports_from(v, v->queue_node[core], ports);
	count = rails_of_core(ports, v->device_count, core, chosen);
	for (unsigned i = 0; i < count; i++)
		at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", i ? ", " : "",
			rdma_port_name(&v->devices[chosen[i]].about, name));
	if (v->queue_node[core] < 0)
		log_debug("verbs: core %u, on no node of its own, is for ports %s", core, names);
	else
		log_debug("verbs: core %u on NUMA node %d is for ports %s", core, v->queue_node[core], names);
}

static int verbs_queue_create(struct transport *head, int node, struct queue **out, struct err *e)
{
	struct verbs *v = (struct verbs *)head;
	struct verbs_queue *q = aligned_alloc(64, (sizeof(*q) + 63) / 64 * 64);
	int rc = 0;

	if (!q)
		return err_set(e, -ENOMEM, "verbs: no memory for a queue");
	memset(q, 0, sizeof(*q));
	q->queue = (struct queue){.ops = &verbs_queue_ops, .hold_max = VERBS_HOLD_MAX, .one_sided = true};
	q->verbs = v;
	q->node = node;
	q->conns_max = v->queue_conns_max;
	q->now_ns = clock_now_ns();
	list_init(&q->dirty);
	list_init(&q->report);
	list_init(&q->tails);
	list_init(&q->idle);
	list_init(&q->pools);
	q->hash_room = 64;
	while (q->hash_room < VERBS_HASH_FACTOR * q->conns_max)
		q->hash_room *= 2;
	q->hash = calloc(q->hash_room, sizeof(*q->hash));
	q->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (!q->hash || q->epoll_fd < 0)
		rc = err_set(e, q->hash ? -errno : -ENOMEM, "verbs: cannot make a queue: %s; raise `ulimit -n`",
			strerror(q->hash ? errno : ENOMEM));
	for (unsigned i = 0; rc == 0 && i < v->device_count; i++) {
		q->port_count++;
		rc = verbs_port_create(q, &q->ports[i], &v->devices[i], e);
	}
	if (rc == 0 && v->address[0])
		rc = verbs_arena_open(v, node, e);
	if (rc < 0) {
		verbs_queue_free(q);
		return rc;
	}
	if (v->queue_count < VERBS_QUEUES_MAX) {
		v->queue_node[v->queue_count] = node;
		verbs_log_ports(v, v->queue_count++);
	}
	*out = &q->queue;
	return 0;
}

static void verbs_queue_destroy(struct transport *head, struct queue *queue)
{
	struct verbs *v = (struct verbs *)head;
	struct verbs_queue *q = (struct verbs_queue *)queue;

	assert(q->conns == 0);
	verbs_bury(q);
	verbs_pools_leave(q);
	verbs_pools_reap(v);
	verbs_queue_free(q);
}

/* ---- the transport ---- */

static void verbs_devices_close(struct verbs *v)
{
	for (unsigned i = 0; i < v->device_count; i++)
		verbs_device_close(&v->devices[i]);
}

static int verbs_open(const struct transport_config *config, struct transport **out, struct err *e)
{
	struct verbs *v;
	struct err low;
	int rc;

	if (config->rdma_dscp > VERBS_DSCP_MAX)
		return err_set(e, -EINVAL, "verbs: DSCP %u is more than %u", config->rdma_dscp, VERBS_DSCP_MAX);
	v = calloc(1, sizeof(*v));
	if (!v)
		return err_set(e, -ENOMEM, "verbs: no memory for the transport");
	rc = verbs_devices_open(config->rdma, config->interface, config->quiet, v->devices, VERBS_DEVICES_MAX, e);
	if (rc < 0) {
		free(v);
		return rc;
	}
	v->device_count = (unsigned)rc;
	/* Each port is near to one node, as a rule; where it is to more, what cannot be registered names the number. */
	v->slots_bytes = config->rdma_fixed ? 0 : config->slots_bytes; /* fixed pushes leave little for slots */
	rc = rdma_check_limit(config->pinned_bytes + v->device_count * v->slots_bytes, &low);
	if (rc < 0) {
		verbs_devices_close(v);
		free(v);
		return err_set(e, rc, "%s; or lower memory_max or rdma_slots_memory", low.text);
	}
	v->slots_bytes_max = config->slots_bytes_max;
	v->traffic_class = (uint8_t)(config->rdma_dscp << 2);
	v->transport.ops = &transport_verbs;
	v->queue_conns_max = config->queue_conns_max ? config->queue_conns_max : VERBS_CONNS;
	v->send_bytes_max = config->send_bytes_max ? config->send_bytes_max : VERBS_SEND_BYTES;
	v->fixed = config->rdma_fixed;
	v->apart = config->apart;
	v->handshake_ns = (config->handshake_ms ? config->handshake_ms : VERBS_HANDSHAKE_MS) * NS_PER_MS;
	pthread_mutex_init(&v->lock, NULL);
	pthread_cond_init(&v->path_ended, NULL);
	list_init(&v->strangers);
	list_init(&v->complete);
	list_init(&v->asked);
	list_init(&v->dialled);
	*out = &v->transport;
	return 0;
}

/* "NAME/GID,GID": one GID for each network, as many as there is room for. */
static void verbs_write_address(const struct verbs *v, char *out, size_t bytes)
{
	size_t at = (size_t)snprintf(out, bytes, "%s", v->address);

	for (unsigned i = 0; i < v->device_count; i++) {
		const struct verbs_device *d = &v->devices[i];
		bool told = false;

		for (unsigned k = 0; k < i; k++)
			told = told || rails_same_network(d->gid.raw, v->devices[k].gid.raw);
		if (!told && at + 1 + strlen(d->about.gid) < bytes)
			at += (size_t)snprintf(
				out + at, bytes - at, "%c%s", strchr(out, '/') ? ',' : '/', d->about.gid);
	}
}

/* Nothing is bound: who can sign in at the control session can dial. The address is for the box to know itself by. */
static int verbs_listen(struct transport *head, const char *host, char *address, size_t address_bytes, struct err *e)
{
	struct verbs *v = (struct verbs *)head;
	uint8_t nonce[PROOF_NONCE];
	uint64_t name;

	(void)host;
	if (v->address[0])
		return err_set(e, -EALREADY, "verbs: this transport listens already");
	if (proof_nonce(nonce) < 0)
		return err_set(e, -EIO, "verbs: no random numbers");
	memcpy(&name, nonce, sizeof(name));
	snprintf(v->address, sizeof(v->address), "rdma-%016" PRIx64, name);
	verbs_write_address(v, address, address_bytes);
	return 0;
}

/* Who waits for signals waits for the control session. */
static int verbs_fd(struct transport *head)
{
	(void)head;
	return -1;
}

static void verbs_close(struct transport *head)
{
	struct verbs *v = (struct verbs *)head;

	verbs_join_fini(v);
	verbs_paths_wait(v);
	verbs_pools_reap(v);
	for (struct verbs_region *r = v->regions; r; r = r->next)
		r->uses = 0;
	verbs_regions_reap(v);
	verbs_arenas_close(v);
	verbs_devices_close(v);
	pthread_cond_destroy(&v->path_ended);
	pthread_mutex_destroy(&v->lock);
	free(v);
}

const struct transport_ops transport_verbs = {
	.name = "verbs",
	.reconnects = true,
	.open = verbs_open,
	.queue_create = verbs_queue_create,
	.queue_destroy = verbs_queue_destroy,
	.listen = verbs_listen,
	.accept = verbs_accept,
	.admit = verbs_admit,
	.reject = verbs_reject,
	.connect = verbs_connect,
	.established = verbs_established,
	.abandon = verbs_abandon,
	.fd = verbs_fd,
	.close = verbs_close,
	.signal_take = verbs_signal_take,
	.signal_give = verbs_signal_give,
	.mem_register = verbs_mem_register,
	.mem_unregister = verbs_mem_unregister,
};
