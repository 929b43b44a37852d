/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receive slots: as many as all connections of a job may have messages in flight to a core, and two more for each, so
 * that a message always finds one. Few are used over and over, so that what the NIC wrote is summed before it reaches
 * DRAM.
 */
#include "transport/verbs_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/stats.h"

static void verbs_pool_free(struct verbs_pool *p)
{
	struct verbs_queue *q = (struct verbs_queue *)p->queue;

	for (unsigned d = 0; d < p->devices; d++) {
		atomic_fetch_sub_explicit(&q->ports[d].cqes_used, p->on[d].cqes, memory_order_relaxed);
		if (p->on[d].srq)
			ibv_destroy_srq(p->on[d].srq);
		if (p->on[d].mr)
			ibv_dereg_mr(p->on[d].mr);
	}
	mem_region_destroy(&p->memory);
	free(p->recvs);
	free(p);
}

/* The slots of one device, none posted. */
static void verbs_pool_lay_out(struct verbs_pool *p, unsigned device)
{
	uint8_t *base = (uint8_t *)p->memory.base + (size_t)device * p->count * p->bytes;

	for (uint32_t i = p->count; i-- > 0;) {
		struct verbs_recv *r = &p->recvs[device * p->count + i];

		*r = (struct verbs_recv){
			.sge = {.addr = (uintptr_t)(base + (size_t)i * p->bytes), .length = p->bytes},
			.pool = p,
			.device = device,
			.next = p->on[device].free,
		};
		r->sge.lkey = p->on[device].mr->lkey;
		r->wr = (struct ibv_recv_wr){.wr_id = verbs_wr_id(r, VERBS_RECV), .sg_list = &r->sge, .num_sge = 1};
		p->on[device].free = r;
		p->on[device].free_count++;
	}
}

static int verbs_pool_add_device(struct verbs_pool *p, struct verbs_queue *q, unsigned device, struct err *e)
{
	struct verbs_device *d = &p->verbs->devices[device];
	struct ibv_srq_init_attr init = {.attr = {.max_wr = p->count, .max_sge = 1}};
	int rc;

	if (p->count > (uint32_t)d->attr.max_srq_wr)
		return err_set(e, -ENOSPC,
			"verbs: %s has shared receive queues of at most %d entries, and this job needs %u at a core; "
			"lower "
			"`window` at the box",
			d->about.device, d->attr.max_srq_wr, p->count);
	p->on[device].srq = ibv_create_srq(q->ports[device].pd, &init);
	if (!p->on[device].srq)
		return err_set(e, -errno, "verbs: %s cannot make a shared receive queue: %s", d->about.device,
			strerror(errno));
	p->on[device].mr = ibv_reg_mr(d->pd, p->memory.base, p->memory.bytes, IBV_ACCESS_LOCAL_WRITE);
	if (!p->on[device].mr)
		return rdma_check_limit(p->memory.bytes, e) < 0
			       ? e->code
			       : err_set(e, -errno, "verbs: %s cannot register %zu bytes of receive slots: %s",
					 d->about.device, p->memory.bytes, strerror(errno));
	verbs_pool_lay_out(p, device);
	p->verbs->transport.registrations++;
	rc = verbs_port_reserve(&q->ports[device], p->count, e);
	p->on[device].cqes = rc == 0 ? p->count : 0;
	return rc;
}

static struct verbs_pool *verbs_pool_create(struct verbs *v, const struct conn_spec *spec, struct err *e)
{
	struct verbs_queue *q = (struct verbs_queue *)spec->queue;
	struct verbs_pool *p = calloc(1, sizeof(*p));
	uint32_t conns = spec->group && spec->group_conns ? spec->group_conns : 1;
	int rc;

	if (!p) {
		err_set(e, -ENOMEM, "verbs: no memory for receive slots");
		return NULL;
	}
	p->verbs = v;
	p->group = spec->group;
	p->queue = spec->queue;
	p->memory.fd = -1;
	p->devices = v->device_count;
	p->count = conns * (spec->window + VERBS_SPARE_SLOTS);
	p->bytes = ((v->fixed ? 0 : spec->payload_max) + VERBS_TRAILER_BYTES + VERBS_SLOT_ALIGN - 1) /
		   VERBS_SLOT_ALIGN * VERBS_SLOT_ALIGN;
	verbs_link_init(&p->dirty);
	p->recvs = calloc((size_t)p->devices * p->count, sizeof(*p->recvs));
	rc = p->recvs ? mem_region_create((size_t)p->devices * p->count * p->bytes, MEM_HUGE | MEM_POPULATE,
				MEM_NODE_ANY, &p->memory, e)
		      : err_set(e, -ENOMEM, "verbs: no memory for %u receive slots", p->count);
	for (unsigned d = 0; rc == 0 && d < p->devices; d++) {
		rc = verbs_pool_add_device(p, q, d, e);
		if (rc == 0)
			rc = verbs_pool_post(p, NULL);
	}
	if (rc == 0)
		return p;
	verbs_pool_free(p);
	return NULL;
}

struct verbs_pool *verbs_pool_get(struct verbs *v, const struct conn_spec *spec, struct err *e)
{
	struct verbs_pool *p;

	pthread_mutex_lock(&v->lock);
	for (p = v->pools; p; p = p->next)
		if (spec->group && p->group == spec->group && p->queue == spec->queue && p->refs > 0)
			break;
	if (p)
		p->refs++;
	pthread_mutex_unlock(&v->lock);
	if (p)
		return p;
	p = verbs_pool_create(v, spec, e);
	if (!p)
		return NULL;
	pthread_mutex_lock(&v->lock);
	p->refs = 1;
	p->next = v->pools;
	v->pools = p;
	pthread_mutex_unlock(&v->lock);
	return p;
}

void verbs_pool_put(struct verbs_pool *p)
{
	struct verbs *v = p->verbs;

	pthread_mutex_lock(&v->lock);
	if (p->refs == 1)
		verbs_link_remove(&p->dirty);
	p->refs--;
	pthread_mutex_unlock(&v->lock);
}

/* Slots that are neither posted nor free although no connection is left that could hold them. */
static uint32_t verbs_pool_lost(const struct verbs_pool *p)
{
	uint32_t lost = 0;

	for (unsigned d = 0; d < p->devices; d++)
		lost += p->count - p->on[d].posted - p->on[d].free_count;
	return lost;
}

void verbs_pools_reap(struct verbs *v)
{
	struct verbs_pool **at = &v->pools, *dead = NULL;

	pthread_mutex_lock(&v->lock);
	while (*at) {
		struct verbs_pool *p = *at;

		if (p->refs > 0) {
			at = &p->next;
			continue;
		}
		*at = p->next;
		p->next = dead;
		dead = p;
	}
	pthread_mutex_unlock(&v->lock);
	while (dead) {
		struct verbs_pool *p = dead;

		dead = p->next;
		v->slots_lost += verbs_pool_lost(p);
		verbs_pool_free(p);
	}
}

void verbs_pool_release(struct verbs_queue *q, struct verbs_recv *r)
{
	struct verbs_pool *p = r->pool;

	r->out = false;
	r->rail = NULL;
	r->next = p->on[r->device].free;
	p->on[r->device].free = r;
	if (verbs_link_alone(&p->dirty))
		verbs_link_append(&q->pools, &p->dirty);
	if (++p->on[r->device].free_count >= VERBS_REPOST)
		(void)verbs_pool_post(p, &q->queue.counters);
}

/* Hands what is free to one device. Where it takes a part, the rest stays free. */
static int verbs_pool_post_on(struct verbs_pool *p, unsigned device, struct queue_counters *n)
{
	struct verbs_recv *first = p->on[device].free;
	struct ibv_recv_wr *bad = &first->wr;
	uint32_t posted = 0;
	int rc;

	for (struct verbs_recv *r = first; r; r = r->next)
		r->wr.next = r->next ? &r->next->wr : NULL;
	rc = ibv_post_srq_recv(p->on[device].srq, &first->wr, &bad);
	for (; first && (rc == 0 || &first->wr != bad); first = first->next)
		posted++;
	p->on[device].free = first;
	p->on[device].free_count -= posted;
	p->on[device].posted += posted;
	if (n) {
		stats_add(&n->recv_posts, posted);
		stats_add(&n->recv_doorbells, 1);
	}
	return rc < 0 ? rc : -rc;
}

int verbs_pool_post(struct verbs_pool *p, struct queue_counters *n)
{
	int rc = 0;

	verbs_link_remove(&p->dirty);
	for (unsigned d = 0; d < p->devices; d++) {
		int failed = p->on[d].free ? verbs_pool_post_on(p, d, n) : 0;

		/* The device is gone or broken: its connections are told so by their own completions. */
		rc = rc < 0 ? rc : failed;
	}
	return rc;
}
