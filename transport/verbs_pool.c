/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receive slots: as many as all connections of a job may have messages in flight to a core, and two more for each rail,
 * so that a message always finds one, at the ports that these connections use. Control adds slots for a connection
 * before it is welcomed, and posts them itself; from then on they are the owner's. A device takes them in the order in
 * which they were posted, so all are used in turn; they are few beside the model.
 */
#include "transport/verbs_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/stats.h"

static void verbs_pool_free(struct verbs_pool *p)
{
	struct verbs_queue *q = (struct verbs_queue *)p->queue;
	struct verbs_batch *b = atomic_load_explicit(&p->batches, memory_order_relaxed);

	for (unsigned d = 0; d < p->devices; d++) {
		atomic_fetch_sub_explicit(&q->ports[d].cqes_used, p->made[d].cqes, memory_order_relaxed);
		if (p->on[d].srq)
			ibv_destroy_srq(p->on[d].srq);
	}
	while (b) {
		struct verbs_batch *next = b->next;

		verbs_piece_give(&b->piece);
		free(b);
		b = next;
	}
	free(p);
}

static struct verbs_pool *verbs_pool_create(struct verbs *v, const struct conn_spec *spec)
{
	struct verbs_pool *p = calloc(1, sizeof(*p));
	uint32_t conns = spec->group && spec->group_conns ? spec->group_conns : 1;

	if (!p)
		return NULL;
	p->verbs = v;
	p->group = spec->group;
	p->queue = spec->queue;
	p->devices = v->device_count;
	p->count = conns * (spec->window + VERBS_RAILS_MAX * VERBS_SPARE_SLOTS);
	p->bytes = ((v->fixed ? 0 : spec->payload_max) + VERBS_TRAILER_BYTES + VERBS_SLOT_ALIGN - 1) /
		   VERBS_SLOT_ALIGN * VERBS_SLOT_ALIGN;
	list_init(&p->dirty);
	return p;
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
	p = verbs_pool_create(v, spec);
	if (!p) {
		err_set(e, -ENOMEM, "verbs: no memory for receive slots");
		return NULL;
	}
	pthread_mutex_lock(&v->lock);
	p->refs = 1;
	p->next = v->pools;
	v->pools = p;
	pthread_mutex_unlock(&v->lock);
	return p;
}

/*
 * In the device's own protection domain: in a queue's domain of one thread, posts need no lock, but control posts too.
 */
static int verbs_pool_add_queue(struct verbs_pool *p, uint32_t device, struct err *e)
{
	struct verbs_device *d = &p->verbs->devices[device];
	struct ibv_srq_init_attr init = {.attr = {.max_wr = p->count, .max_sge = 1}};

	if (p->count > (uint32_t)d->attr.max_srq_wr)
		return err_set(e, -ENOSPC,
			"verbs: %s has shared receive queues of at most %d entries, and this job needs %u at a core; "
			"lower `window` at the box",
			d->about.device, d->attr.max_srq_wr, p->count);
	p->on[device].srq = ibv_create_srq(d->pd, &init);
	if (!p->on[device].srq)
		return err_set(e, -errno, "verbs: %s cannot make a shared receive queue: %s", d->about.device,
			strerror(errno));
	return 0;
}

/* The slots of a batch, chained. */
static void verbs_batch_lay_out(struct verbs_pool *p, struct verbs_batch *b, uint32_t device)
{
	uint8_t *base = (uint8_t *)b->piece.extent->memory.base + b->piece.at;

	for (uint32_t i = 0; i < b->count; i++) {
		struct verbs_recv *r = &b->recvs[i];

		r->sge = (struct ibv_sge){.addr = (uintptr_t)(base + (size_t)i * p->bytes),
			.length = p->bytes,
			.lkey = b->piece.extent->mr[device]->lkey};
		r->pool = p;
		r->device = device;
		r->wr = (struct ibv_recv_wr){.wr_id = verbs_wr_id(r, VERBS_RECV), .sg_list = &r->sge, .num_sge = 1};
		r->wr.next = i + 1 < b->count ? &b->recvs[i + 1].wr : NULL;
	}
}

static int verbs_pool_add_slots(struct verbs_pool *p, uint32_t device, uint32_t count, struct err *e)
{
	struct verbs_queue *q = (struct verbs_queue *)p->queue;
	struct verbs_batch *b = calloc(1, sizeof(*b) + count * sizeof(b->recvs[0]));
	struct ibv_recv_wr *bad;
	int rc = b ? 0 : err_set(e, -ENOMEM, "verbs: no memory for %u receive slots", count);

	if (rc == 0)
		rc = verbs_arena_take(p->verbs, q->node, device, (size_t)count * p->bytes, &b->piece, e);
	if (rc == 0)
		rc = verbs_port_reserve(&q->ports[device], count, e);
	if (rc < 0) {
		if (b)
			verbs_piece_give(&b->piece);
		free(b);
		return rc;
	}
	p->made[device].cqes += count;
	b->count = count;
	verbs_batch_lay_out(p, b, device);
	/* First of all: whatever of it the device takes is written to until the queue is gone. */
	b->next = atomic_load_explicit(&p->batches, memory_order_relaxed);
	atomic_store_explicit(&p->batches, b, memory_order_release);
	rc = ibv_post_srq_recv(p->on[device].srq, &b->recvs[0].wr, &bad);
	if (rc != 0)
		return err_set(e, rc < 0 ? rc : -rc, "verbs: %s takes no %u receives: %s",
			p->verbs->devices[device].about.device, count, strerror(rc < 0 ? -rc : rc));
	p->made[device].given += count;
	return 0;
}

int verbs_pool_cover(struct verbs_conn *c, struct verbs_rail *r, uint32_t device_index, struct err *e)
{
	struct verbs_pool *p = c->pool;
	uint32_t wanted;
	int rc = 0;

	/* What a connection has in flight may all be on one port; its rails there share that. */
	r->wants = c->spec->window + VERBS_SPARE_SLOTS;
	for (const struct verbs_rail *other = c->rails; other < r; other++)
		if (other->device_index == device_index)
			r->wants = VERBS_SPARE_SLOTS;
	r->device_index = device_index;
	pthread_mutex_lock(&p->verbs->lock);
	p->made[device_index].wanted += r->wants;
	wanted = p->made[device_index].wanted;
	pthread_mutex_unlock(&p->verbs->lock);
	/* One that comes back while its old connection is still there shares with that. */
	if (wanted > p->count)
		wanted = p->count;
	if (!p->on[device_index].srq)
		rc = verbs_pool_add_queue(p, device_index, e);
	if (rc == 0 && wanted > p->made[device_index].given)
		rc = verbs_pool_add_slots(p, device_index, wanted - p->made[device_index].given, e);
	return rc;
}

/* Slots that are neither posted nor free although no connection is left that could hold them: each is told of once. */
static uint32_t verbs_pool_lost(struct verbs_pool *p)
{
	uint32_t lost = 0;

	for (unsigned d = 0; d < p->devices; d++) {
		lost += 0 - p->on[d].posted - p->on[d].free_count;
		p->on[d].posted = 0 - p->on[d].free_count;
	}
	return lost;
}

/* Owner. The pool may be gone as soon as this is done, when no connection is left. */
static void verbs_pool_unlist(struct verbs_pool *p)
{
	list_remove(&p->dirty);
	atomic_store_explicit(&p->listed, false, memory_order_release); /* with verbs_pools_reap() */
}

void verbs_pools_leave(struct verbs_queue *q)
{
	while (!list_alone(&q->pools))
		verbs_pool_unlist(LIST_OF(q->pools.next, struct verbs_pool, dirty));
}

/* One that was adopted is freed by the owner of its queue. Others may be by control: the next flush() unlists it. */
void verbs_pool_put(struct verbs_conn *c)
{
	struct verbs_pool *p = c->pool;
	struct verbs *v = p->verbs;

	pthread_mutex_lock(&v->lock);
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++)
		p->made[c->rails[i].device_index].wanted -= c->rails[i].wants;
	if (--p->refs == 0 && c->queue) {
		v->transport.slots_lost += verbs_pool_lost(p);
		verbs_pool_unlist(p);
	}
	pthread_mutex_unlock(&v->lock);
}

void verbs_pools_reap(struct verbs *v)
{
	struct verbs_pool **at = &v->pools, *dead = NULL;

	pthread_mutex_lock(&v->lock);
	while (*at) {
		struct verbs_pool *p = *at;

		if (p->refs > 0 || atomic_load_explicit(&p->listed, memory_order_acquire)) {
			at = &p->next;
			continue;
		}
		*at = p->next;
		v->transport.slots_lost += verbs_pool_lost(p);
		p->next = dead;
		dead = p;
	}
	pthread_mutex_unlock(&v->lock);
	while (dead) {
		struct verbs_pool *p = dead;

		dead = p->next;
		verbs_pool_free(p);
	}
	verbs_arenas_trim(v);
}

void verbs_pool_release(struct verbs_queue *q, struct verbs_recv *r)
{
	struct verbs_pool *p = r->pool;

	r->out = false;
	r->rail = NULL;
	r->next = p->on[r->device].free;
	p->on[r->device].free = r;
	if (list_alone(&p->dirty)) {
		list_append(&q->pools, &p->dirty);
		atomic_store_explicit(&p->listed, true, memory_order_relaxed); /* verbs.lock is taken before the end */
	}
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

	for (unsigned d = 0; d < p->devices; d++) {
		int failed = p->on[d].free ? verbs_pool_post_on(p, d, n) : 0;

		/* The device is gone or broken: its connections are told so by their own completions. */
		rc = rc < 0 ? rc : failed;
	}
	verbs_pool_unlist(p);
	return rc;
}
