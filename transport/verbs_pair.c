/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs from birth to death. They are made before the connection is adopted (control thread), and end with it
 * (owning core), or before (control thread).
 */
#include "transport/verbs_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "transport/le.h"

enum {
	VERBS_RECV_BYTES = 128, /* of a worker's receive: what is spelled out, on its own cache lines */
	VERBS_HOPS = 64,
};

/* ---- memory ---- */

static void verbs_rail_lay_out(struct verbs_rail *r)
{
	uint8_t *at = r->small.base;

	r->trailers = at;
	for (uint32_t i = 0; i < VERBS_SEND_SLOTS; i++)
		r->slots[i].rail = r;
	at += (size_t)VERBS_SEND_SLOTS * VERBS_TRAILER_BYTES;
	for (uint32_t i = 0; i < r->recv_count; i++) {
		struct verbs_recv *v = &r->recvs[i];

		v->rail = r;
		v->device = r->device_index;
		v->sge = (struct ibv_sge){.addr = (uintptr_t)(at + (size_t)i * VERBS_RECV_BYTES),
			.length = VERBS_RECV_BYTES,
			.lkey = r->small_mr->lkey};
		v->wr = (struct ibv_recv_wr){.wr_id = verbs_wr_id(v, VERBS_RECV), .sg_list = &v->sge, .num_sge = 1};
		v->wr.next = i + 1 < r->recv_count ? &r->recvs[i + 1].wr : NULL;
	}
}

static int verbs_rail_take_memory(struct verbs_rail *r, struct err *e)
{
	size_t bytes = (size_t)VERBS_SEND_SLOTS * VERBS_TRAILER_BYTES + (size_t)r->recv_count * VERBS_RECV_BYTES;
	int rc;

	r->wrs = calloc(2 * (size_t)VERBS_SEND_SLOTS, sizeof(*r->wrs));
	r->sges = calloc(2 * (size_t)VERBS_SEND_SLOTS, sizeof(*r->sges));
	r->slots = calloc(VERBS_SEND_SLOTS, sizeof(*r->slots));
	r->recvs = calloc(r->recv_count ? r->recv_count : 1, sizeof(*r->recvs));
	if (!r->wrs || !r->sges || !r->slots || !r->recvs)
		return err_set(e, -ENOMEM, "verbs: no memory for a queue pair");
	rc = mem_region_create(bytes, MEM_POPULATE, r->port->queue->node, &r->small, e);
	if (rc < 0)
		return rc;
	r->small_mr = ibv_reg_mr(r->device->pd, r->small.base, r->small.bytes, IBV_ACCESS_LOCAL_WRITE);
	if (!r->small_mr) {
		rc = errno;
		if (rc == ENOMEM && verbs_limit_refused(r->small.bytes, e) < 0)
			return e->code;
		return err_set(e, -rc, "verbs: %s cannot register %zu bytes: %s", r->device->about.device,
			r->small.bytes, strerror(rc));
	}
	r->conn->verbs->transport.registrations++;
	verbs_rail_lay_out(r);
	return 0;
}

/* ---- states ---- */

static int verbs_fixed_register(struct verbs_rail *r, struct err *e);

static int verbs_rail_make(struct verbs_rail *r, struct err *e)
{
	static const uint32_t inlines[] = {512, 256, 128, 0};
	struct verbs_conn *c = r->conn;
	struct ibv_qp_init_attr init;

	for (unsigned i = 0; !r->qp && i < sizeof(inlines) / sizeof(inlines[0]); i++) {
		init = (struct ibv_qp_init_attr){
			.send_cq = r->port->cq,
			.recv_cq = r->port->cq,
			.srq = c->is_box ? c->pool->on[r->device_index].srq : NULL,
			.cap = {.max_send_wr = 2 * VERBS_SEND_SLOTS + 2,
				.max_recv_wr = c->is_box ? 0 : r->recv_count,
				.max_send_sge = 2,
				.max_recv_sge = 1,
				.max_inline_data = inlines[i]},
			.qp_type = IBV_QPT_RC,
		};
		r->qp = ibv_create_qp(r->port->pd, &init);
	}
	if (!r->qp)
		return err_set(
			e, -errno, "verbs: %s cannot make a queue pair: %s", r->device->about.device, strerror(errno));
	r->qpn = r->qp->qp_num;
	r->inline_max = init.cap.max_inline_data;
	return 0;
}

static int verbs_rail_init(struct verbs_rail *r, struct err *e)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = r->device->port,
		.pkey_index = 0,
		/* Nobody may write to the box; results are written to workers. */
		.qp_access_flags = r->conn->is_box && !r->conn->fixed_at ? 0 : IBV_ACCESS_REMOTE_WRITE,
	};
	int rc = ibv_modify_qp(r->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

	if (rc == 0 && r->recv_count) {
		struct ibv_recv_wr *bad;

		rc = ibv_post_recv(r->qp, &r->recvs[0].wr, &bad);
	}
	return rc == 0 ? 0
		       : err_set(e, -rc, "verbs: %s cannot prepare a queue pair: %s", r->device->about.device,
				 strerror(rc));
}

int verbs_rail_create(struct verbs_conn *c, struct verbs_rail *r, uint32_t device_index, struct err *e)
{
	struct verbs_queue *q = (struct verbs_queue *)c->spec->queue;
	struct verbs_device *d = &c->verbs->devices[device_index];
	uint8_t random[PROOF_NONCE];
	uint32_t recvs = c->is_box ? 0 : c->spec->chunk_count + VERBS_WORKER_RECVS;
	int rc;

	r->conn = c;
	r->port = &q->ports[device_index];
	r->device = d;
	r->device_index = device_index;
	if (recvs > (uint32_t)d->attr.max_qp_wr || 2 * VERBS_SEND_SLOTS + 2 > d->attr.max_qp_wr)
		return err_set(e, -ENOSPC,
			"verbs: %s takes %d work requests for a queue pair, and %u chunks on one core need %u; choose "
			"larger "
			"chunk_bytes, or more cores at the box",
			d->about.device, d->attr.max_qp_wr, c->spec->chunk_count, recvs);
	r->recv_count = recvs;
	if (proof_nonce(random) < 0)
		return err_set(e, -EIO, "verbs: no random numbers");
	r->psn = le_get32(random) & 0xffffff;
	rc = verbs_port_reserve(r->port, 2 * VERBS_SEND_SLOTS + 2 + recvs, e);
	if (rc < 0)
		return rc;
	r->cqes = 2 * VERBS_SEND_SLOTS + 2 + recvs;
	rc = verbs_rail_take_memory(r, e);
	if (rc == 0)
		rc = verbs_fixed_register(r, e);
	if (rc == 0)
		rc = verbs_rail_make(r, e);
	if (rc == 0)
		rc = verbs_rail_init(r, e);
	return rc;
}

struct ibv_ah_attr verbs_rail_path(const struct verbs_rail *r)
{
	struct ibv_ah_attr path = {
		.dlid = r->peer_lid,
		.port_num = r->device->port,
		.is_global = r->device->routed,
	};

	if (!r->device->routed)
		return path;
	path.grh.dgid = r->peer_gid;
	path.grh.sgid_index = (uint8_t)r->device->about.gid_index;
	path.grh.hop_limit = VERBS_HOPS;
	path.grh.traffic_class = r->conn->verbs->traffic_class;
	return path;
}

int verbs_rail_connect(struct verbs_rail *r, struct err *e)
{
	enum ibv_mtu mtu = r->peer_mtu < r->device->mtu ? (enum ibv_mtu)r->peer_mtu : r->device->mtu;
	struct ibv_qp_attr receive = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = mtu,
		.dest_qp_num = r->peer_qpn,
		.rq_psn = r->peer_psn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = VERBS_RNR_TIMER,
		.ah_attr = verbs_rail_path(r),
	};
	struct ibv_qp_attr send = {
		.qp_state = IBV_QPS_RTS,
		.timeout = VERBS_TIMEOUT,
		.retry_cnt = VERBS_RETRIES,
		.rnr_retry = VERBS_RNR_RETRIES,
		.sq_psn = r->psn,
		.max_rd_atomic = 1,
	};
	int rc = ibv_modify_qp(r->qp, &receive,
		IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);

	if (rc == 0)
		rc = ibv_modify_qp(r->qp, &send,
			IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				IBV_QP_MAX_QP_RD_ATOMIC);
	return rc == 0 ? 0 : err_set(e, -rc, "verbs: %s cannot be reached: %s", r->conn->conn.peer, strerror(rc));
}

/* ---- the end ---- */

void verbs_bell_ring(struct verbs_conn *c, int code)
{
	struct verbs_rail *r = &c->rails[0];
	uint8_t said[16];
	struct ibv_sge sge = {.addr = (uintptr_t)said, .length = sizeof(said)};
	struct ibv_send_wr wr = {.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE};
	struct ibv_send_wr *bad;

	if (!r->ah || !r->peer_bell)
		return;
	le_put64(said, c->peer_token);
	le_put32(said + 8, r->peer_qpn);
	le_put32(said + 12, handshake_code_from_errno(code < 0 ? -code : code));
	wr.wr_id = verbs_wr_id(r->port, VERBS_BELL_SEND);
	wr.wr.ud.ah = r->ah;
	wr.wr.ud.remote_qpn = r->peer_bell;
	wr.wr.ud.remote_qkey = r->port->bell_key;
	/* Where it gets lost, the peer finds out when it next asks whether we are there. */
	(void)ibv_post_send(r->port->bell, &wr, &bad);
}

/* Waits until the device has done with everything that it was given: the marker's completion is the last. */
static void verbs_rail_drain(struct verbs_queue *q, struct verbs_rail *r)
{
	uint64_t until_ns = clock_now_ns() + VERBS_DRAIN_NS;
	struct ibv_send_wr marker = {
		.wr_id = verbs_wr_id(r, VERBS_DRAIN), .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;

	if (r->reclaimed == r->rung && !r->nudging)
		return;
	if (atomic_load_explicit(&r->device->failed, memory_order_relaxed))
		return; /* nothing comes from it any more */
	if (ibv_post_send(r->qp, &marker, &bad) != 0)
		return; /* destroying the pair is the other way to be sure */
	while (!r->drained && clock_now_ns() < until_ns)
		verbs_collect(q);
}

void verbs_rail_destroy(struct verbs_rail *r, struct verbs_queue *owner)
{
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};

	if (r->qp) {
		(void)ibv_modify_qp(r->qp, &error, IBV_QP_STATE);
		/* Drivers may take what the device had to say of a pair out with it: a receive slot would be lost. */
		if (owner) {
			verbs_rail_drain(owner, r);
			verbs_collect(owner);
		}
		ibv_destroy_qp(r->qp);
		if (owner)
			verbs_collect(owner);
	}
	if (r->ah)
		ibv_destroy_ah(r->ah);
	r->qp = NULL;
	r->ah = NULL;
}

void verbs_conn_free(struct verbs_conn *c)
{
	verbs_path_forsake(c);
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		struct verbs_rail *r = &c->rails[i];

		assert(!r->qp);
		if (r->fixed_mr)
			ibv_dereg_mr(r->fixed_mr);
		if (r->small_mr)
			ibv_dereg_mr(r->small_mr);
		mem_region_destroy(&r->small);
		if (r->port)
			atomic_fetch_sub_explicit(&r->port->cqes_used, r->cqes, memory_order_relaxed);
		free(r->wrs);
		free(r->sges);
		free(r->slots);
		free(r->recvs);
	}
	if (c->pool)
		verbs_pool_put(c);
	if (c->result)
		verbs_region_put(c->verbs, c->result);
	for (uint32_t i = 0; i < c->memory_count; i++)
		verbs_region_put(c->verbs, c->memory[i]);
	mem_region_destroy(&c->fixed);
	free(c->fixed_at);
	free(c->rail_of);
	free(c->asked);
	signal_list_clear(&c->heard);
	free(c);
}

/* ---- fixed pushes ---- */

uint64_t verbs_fixed_lay_out(struct verbs_conn *c)
{
	uint64_t bytes = 0;

	c->fixed_at = calloc(c->spec->chunk_count, sizeof(*c->fixed_at));
	for (uint32_t i = 0; c->fixed_at && i < c->spec->chunk_count; i++) {
		c->fixed_at[i] = bytes;
		bytes += (c->spec->spans[i].bytes + VERBS_TRAILER_BYTES + VERBS_SLOT_ALIGN - 1) / VERBS_SLOT_ALIGN *
			 VERBS_SLOT_ALIGN;
	}
	return bytes;
}

int verbs_fixed_take(struct verbs_conn *c, struct err *e)
{
	uint64_t bytes = verbs_fixed_lay_out(c);

	if (bytes == 0)
		return err_set(e, -ENOMEM, "verbs: no memory for %u chunks", c->spec->chunk_count);
	return mem_region_create(bytes, MEM_HUGE, ((struct verbs_queue *)c->spec->queue)->node, &c->fixed, e);
}

static int verbs_fixed_register(struct verbs_rail *r, struct err *e)
{
	struct verbs_conn *c = r->conn;

	if (!c->is_box || !c->fixed_at)
		return 0;
	r->fixed_mr = ibv_reg_mr(
		r->device->pd, c->fixed.base, c->fixed.bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (r->fixed_mr)
		return 0;
	return err_set(e, -errno, "verbs: %s cannot register %zu bytes for the pushes of %s: %s",
		r->device->about.device, c->fixed.bytes, c->conn.peer, strerror(errno));
}

/* ---- which chunk takes which rail ---- */

int verbs_rails_spread(struct verbs_conn *c)
{
	uint64_t bytes[VERBS_RAILS_MAX] = {0};

	if (c->rail_count < 2)
		return 0;
	c->rail_of = calloc(c->spec->chunk_count, 1);
	if (!c->rail_of)
		return -ENOMEM;
	for (uint32_t i = 0; i < c->spec->chunk_count; i++) {
		uint32_t best = 0;

		/* The one that is through first: (bytes + these) / rate. */
		for (uint32_t k = 1; k < c->rail_count; k++) {
			uint64_t with = (bytes[k] + c->spec->spans[i].bytes) * c->rails[best].rate_mbps;

			if (with < (bytes[best] + c->spec->spans[i].bytes) * c->rails[k].rate_mbps)
				best = k;
		}
		c->rail_of[i] = (uint8_t)best;
		bytes[best] += c->spec->spans[i].bytes;
	}
	return 0;
}
