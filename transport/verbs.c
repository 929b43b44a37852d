/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs transport's hot half: what a queue's owner calls. Completions are taken in first (verbs_collect()) and told
 * afterwards, so that a completion is never lost for want of room. send() (verbs_tx.c) prepares work requests, flush()
 * hands each queue pair its chain by one doorbell. One request in 16 asks for a completion; for the others a later one
 * speaks, or the peer's answer, or, when neither comes for long, a request of no bytes (a nudge). Nobody waits for
 * that: the box writes to a result again when all have pushed the next round, which says that they have read it, and
 * for a sender that has no room it goes at once. What the messages say is verbs_rx.c.
 */
#include "transport/verbs_internal.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/stats.h"
#include "transport/le.h"

/* ---- which connection ---- */

static struct verbs_rail **verbs_hash(const struct verbs_queue *q, uint32_t qpn)
{
	return &q->hash[(qpn * 2654435761u >> 8) & (q->hash_room - 1)];
}

/* Each device numbers its queue pairs by itself. */
struct verbs_rail *verbs_find(const struct verbs_queue *q, uint32_t device_index, uint32_t qpn)
{
	struct verbs_rail *r = *verbs_hash(q, qpn);

	while (r && (r->qpn != qpn || r->device_index != device_index))
		r = r->next_hash;
	return r;
}

/* From here on poll() looks at its port. */
static void verbs_hash_add(struct verbs_queue *q, struct verbs_rail *r)
{
	struct verbs_rail **at = verbs_hash(q, r->qpn);

	r->next_hash = *at;
	*at = r;
	r->port->rails++;
	q->live |= UINT32_C(1) << r->device_index;
}

static void verbs_hash_remove(struct verbs_queue *q, struct verbs_rail *r)
{
	struct verbs_rail **at = verbs_hash(q, r->qpn);

	while (*at && *at != r)
		at = &(*at)->next_hash;
	if (!*at)
		return;
	*at = r->next_hash;
	if (--r->port->rails == 0)
		q->live &= ~(UINT32_C(1) << r->device_index);
}

/* ---- the end ---- */

static void verbs_set_report(struct verbs_queue *q, struct verbs_conn *c)
{
	if (list_alone(&c->report))
		list_append(&q->report, &c->report);
}

/* Nothing more is sent; what came is still told, then the end, once. */
void verbs_end(struct verbs_queue *q, struct verbs_conn *c, int error, const char *why)
{
	if (c->state != VERBS_OPEN)
		return;
	c->state = VERBS_CLOSED;
	c->error = error;
	c->why = why;
	c->close_owed = true;
	c->wanted = false;
	list_remove(&c->ring);
	list_remove(&c->quiet);
	verbs_set_report(q, c);
}

/* Did the way to the peer fail, and not the peer, or the protocol? */
static bool verbs_is_broken(const struct verbs_conn *c)
{
	switch (c->error) {
	case -ETIMEDOUT:
	case -EREMOTEIO:
	case -ECONNRESET:
	case -EIO:
		return !c->deaf;
	default:
		return false;
	}
}

static int verbs_status_errno(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_RETRY_EXC_ERR:
	case IBV_WC_RNR_RETRY_EXC_ERR:
	case IBV_WC_RESP_TIMEOUT_ERR:
		return -ETIMEDOUT;
	case IBV_WC_REM_INV_REQ_ERR:
	case IBV_WC_REM_ACCESS_ERR:
	case IBV_WC_REM_OP_ERR:
		return -EREMOTEIO;
	case IBV_WC_LOC_LEN_ERR:
		return -EMSGSIZE;
	case IBV_WC_LOC_PROT_ERR:
	case IBV_WC_LOC_ACCESS_ERR:
		return -EFAULT;
	case IBV_WC_WR_FLUSH_ERR:
		return -ECONNRESET;
	default:
		return -EIO;
	}
}

/* ---- what became of messages that were sent ---- */

/* All before `index` are no longer read by the device. */
void verbs_done(struct verbs_queue *q, struct verbs_rail *r, uint32_t index)
{
	struct verbs_conn *c = r->conn;

	if (!wire_after(index, r->done))
		return;
	for (; r->done != index; r->done++)
		c->unsent -= r->slots[r->done % VERBS_SEND_SLOTS].bytes;
	verbs_set_report(q, c);
}

static void verbs_reclaim(struct verbs_queue *q, struct verbs_rail *r, uint32_t index)
{
	verbs_done(q, r, index);
	if (!wire_after(index, r->reclaimed))
		return;
	r->reclaimed = index;
	if (r->conn->wanted)
		verbs_set_report(q, r->conn);
}

/* Half the bound and half of each ring are free again: a sender that is told sooner comes back for one message a time.
 */
static bool verbs_writable(const struct verbs_conn *c)
{
	if (!c->wanted || c->unsent > c->unsent_max / 2)
		return false;
	for (uint32_t i = 0; i < c->rail_count; i++)
		if (c->rails[i].tail - c->rails[i].reclaimed > VERBS_SEND_SLOTS / 2)
			return false;
	return true;
}

/* The completion of the last message was asked for. */
void verbs_signalled(struct verbs_queue *q, struct verbs_rail *r)
{
	r->unsignalled = 0;
	r->unsignalled_bytes = 0;
	stats_add(&q->queue.counters.signalled, 1);
}

/* Gives the device what send() prepared, by one doorbell. */
static void verbs_rail_flush(struct verbs_queue *q, struct verbs_rail *r)
{
	struct ibv_send_wr *first = NULL, *last = NULL, *bad;
	uint32_t count = 0;
	int rc;

	for (uint32_t i = r->rung; i != r->tail; i++) {
		struct ibv_send_wr *wr = &r->wrs[2 * (i % VERBS_SEND_SLOTS)];
		struct ibv_send_wr *end = wr[1].num_sge || wr[1].opcode ? &wr[1] : wr;

		if (last)
			last->next = wr;
		else
			first = wr;
		if (end != wr)
			wr->next = end;
		last = end;
		count += end != wr ? 2 : 1;
	}
	if (!first)
		return;
	last->next = NULL;
	r->rung = r->tail;
	stats_add(&q->queue.counters.posts, count);
	stats_add(&q->queue.counters.doorbells, 1);
	rc = ibv_post_send(r->qp, first, &bad);
	if (rc != 0)
		verbs_end(q, r->conn, rc < 0 ? rc : -rc, "the device takes no more work");
}

/* Puts a connection where its turn to be nudged will come: soon while something is not known to be done. */
static void verbs_quiet(struct verbs_queue *q, struct verbs_conn *c)
{
	bool tail = false;

	if (c->state != VERBS_OPEN)
		return;
	for (uint32_t i = 0; i < c->rail_count; i++)
		tail = tail || c->rails[i].unsignalled > 0;
	c->sent_ns = q->now_ns;
	list_remove(&c->quiet);
	list_append(tail ? &q->tails : &q->idle, &c->quiet);
}

static void verbs_conn_nudge(struct verbs_queue *q, struct verbs_conn *c, bool all)
{
	for (uint32_t i = 0; i < c->rail_count && c->state == VERBS_OPEN; i++)
		if (all || c->rails[i].unsignalled > 0)
			verbs_rail_nudge(q, &c->rails[i]);
	verbs_quiet(q, c);
}

static void verbs_conn_flush(struct verbs_queue *q, struct verbs_conn *c)
{
	for (uint32_t i = 0; i < c->rail_count && c->state == VERBS_OPEN; i++)
		verbs_rail_flush(q, &c->rails[i]);
	if (c->pressed)
		verbs_conn_nudge(q, c, false);
	else
		verbs_quiet(q, c);
	c->pressed = false;
}

/* A worker's receives go back to where they came from. */
static void verbs_rail_repost(struct verbs_queue *q, struct verbs_rail *r)
{
	struct ibv_recv_wr *bad;

	if (!r->recv_first || r->conn->state != VERBS_OPEN)
		return;
	r->recv_last->next = NULL;
	stats_add(&q->queue.counters.recv_posts, r->recv_waiting);
	stats_add(&q->queue.counters.recv_doorbells, 1);
	if (ibv_post_recv(r->qp, r->recv_first, &bad) != 0)
		verbs_end(q, r->conn, -EIO, "the device takes no receives");
	r->recv_first = r->recv_last = NULL;
	r->recv_waiting = 0;
}

void verbs_give_back(struct verbs_queue *q, struct verbs_recv *v)
{
	struct verbs_rail *r = v->rail;

	if (v->pool) {
		verbs_pool_release(q, v);
		return;
	}
	v->out = false;
	if (r->recv_first)
		r->recv_last->next = &v->wr;
	else
		r->recv_first = &v->wr;
	r->recv_last = &v->wr;
	if (++r->recv_waiting >= VERBS_REPOST)
		verbs_rail_repost(q, r);
}

static void verbs_flush(struct queue *head)
{
	struct verbs_queue *q = (struct verbs_queue *)head;

	/* Slots first: the credit for them may be in what is sent now. */
	while (!list_alone(&q->pools)) {
		struct list_link *at = q->pools.next;

		(void)verbs_pool_post(LIST_OF(at, struct verbs_pool, dirty), &q->queue.counters);
	}
	while (!list_alone(&q->dirty)) {
		struct verbs_conn *c = LIST_OF(q->dirty.next, struct verbs_conn, ring);

		list_remove(&c->ring);
		for (uint32_t i = 0; i < c->rail_count; i++)
			verbs_rail_repost(q, &c->rails[i]);
		verbs_conn_flush(q, c);
	}
}

/* ---- completions ---- */

static void verbs_inbox(struct verbs_queue *q, struct verbs_recv *v)
{
	v->next = NULL;
	if (q->inbox_first)
		q->inbox_last->next = v;
	else
		q->inbox_first = v;
	q->inbox_last = v;
	v->rail->conn->inbox++;
}

static void verbs_take_recv(
	struct verbs_queue *q, const struct verbs_port *p, struct verbs_recv *v, const struct ibv_wc *wc)
{
	struct verbs_rail *r = verbs_find(q, (uint32_t)(p - q->ports), wc->qp_num);

	v->device = (uint32_t)(p - q->ports);
	if (v->pool)
		v->pool->on[v->device].posted--;
	if (wc->status != IBV_WC_SUCCESS) {
		if (r)
			verbs_end(q, r->conn, verbs_status_errno(wc->status), ibv_wc_status_str(wc->status));
		if (v->pool)
			verbs_pool_release(q, v);
		return;
	}
	v->qpn = wc->qp_num;
	v->bytes = wc->byte_len;
	v->imm = wc->wc_flags & IBV_WC_WITH_IMM ? ntohl(wc->imm_data) : 0;
	v->written = wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM;
	v->out = true;
	if (r) {
		v->rail = r;
		verbs_inbox(q, v);
	} else {
		v->next = q->strays;
		q->strays = v;
	}
}

/* Where it tells that the device gave up asking the peer, the worker will try other ports first. */
static void verbs_rail_failed(struct verbs_queue *q, struct verbs_rail *r, const struct ibv_wc *wc)
{
	r->led_nowhere = r->led_nowhere || wc->status == IBV_WC_RETRY_EXC_ERR;
	verbs_end(q, r->conn, verbs_status_errno(wc->status), ibv_wc_status_str(wc->status));
}

static void verbs_take_send(struct verbs_queue *q, struct verbs_slot *slot, const struct ibv_wc *wc)
{
	struct verbs_rail *r = slot->rail;

	if (wc->status == IBV_WC_SUCCESS)
		verbs_reclaim(q, r, slot->index + 1);
	else
		verbs_rail_failed(q, r, wc);
}

static void verbs_take_nudge(struct verbs_queue *q, struct verbs_rail *r, const struct ibv_wc *wc)
{
	r->nudging = false;
	if (wc->status == IBV_WC_SUCCESS)
		verbs_reclaim(q, r, r->nudged);
	else
		verbs_rail_failed(q, r, wc);
}

static void verbs_bell_repost(const struct verbs_port *p, struct verbs_recv *v)
{
	struct ibv_recv_wr *bad;

	v->wr.next = NULL;
	(void)ibv_post_recv(p->bell, &v->wr, &bad);
}

/* Is this for a connection of ours that is adopted? Then it is over. */
static bool verbs_bell_heard(struct verbs_queue *q, const struct verbs_recv *v)
{
	const uint8_t *said = (const uint8_t *)(uintptr_t)v->sge.addr + 40;
	struct verbs_rail *r = verbs_find(q, v->device, le_get32(said + 8));
	int code = handshake_code_errno(le_get32(said + 12));

	if (!r || le_get64(said) != r->conn->token)
		return false;
	verbs_end(q, r->conn, -code, code ? strerrordesc_np(code) : NULL);
	return true;
}

/* Takes the oldest stray bell of this port out of the list: there is one. */
static struct verbs_recv *verbs_bell_oldest(struct verbs_queue *q, struct verbs_port *p)
{
	struct verbs_recv **oldest = NULL, *v;

	for (struct verbs_recv **at = &q->stray_bells; *at; at = &(*at)->next)
		if ((*at)->device == (uint32_t)(p - q->ports))
			oldest = at;
	assert(oldest);
	v = *oldest;
	*oldest = v->next;
	p->stray_count--;
	return v;
}

static void verbs_take_bell(struct verbs_queue *q, struct verbs_port *p, struct verbs_recv *v, const struct ibv_wc *wc)
{
	v->device = (uint32_t)(p - q->ports);
	if (wc->status == IBV_WC_SUCCESS && wc->byte_len == VERBS_BELL_BYTES && !verbs_bell_heard(q, v)) {
		/* Perhaps of one that is about to be adopted: kept, the oldest makes room. */
		v->next = q->stray_bells;
		q->stray_bells = v;
		if (++p->stray_count <= VERBS_BELL_RECVS / 2)
			return;
		v = verbs_bell_oldest(q, p);
	}
	if (wc->status == IBV_WC_SUCCESS || wc->status != IBV_WC_WR_FLUSH_ERR)
		verbs_bell_repost(p, v);
}

static void verbs_take(struct verbs_queue *q, struct verbs_port *p, const struct ibv_wc *wc)
{
	void *at = (void *)(uintptr_t)(wc->wr_id & ~(uint64_t)VERBS_WORK_MASK);

	switch ((enum verbs_work)(wc->wr_id & VERBS_WORK_MASK)) {
	case VERBS_RECV:
		verbs_take_recv(q, p, at, wc);
		break;
	case VERBS_SEND:
		verbs_take_send(q, at, wc);
		break;
	case VERBS_NUDGE:
		verbs_take_nudge(q, at, wc);
		break;
	case VERBS_BELL_RECV:
		verbs_take_bell(q, p, at, wc);
		break;
	case VERBS_DRAIN:
		((struct verbs_rail *)at)->drained = true;
		break;
	case VERBS_BELL_SEND:
	case VERBS_WORK_MASK:
		break;
	}
}

static void verbs_collect_port(struct verbs_queue *q, struct verbs_port *p)
{
	struct ibv_wc wc[VERBS_WCS];
	int count;

	do {
		count = ibv_poll_cq(p->cq, VERBS_WCS, wc);
		for (int k = 0; k < count; k++)
			verbs_take(q, p, &wc[k]);
		if (count > 0)
			stats_add(&q->queue.counters.completions, (unsigned)count);
	} while (count == VERBS_WCS);
	if (count < 0)
		atomic_store_explicit(&p->device->failed, true, memory_order_relaxed);
}

void verbs_collect(struct verbs_queue *q)
{
	for (unsigned i = 0; i < q->port_count; i++)
		verbs_collect_port(q, &q->ports[i]);
}

/* A core is for few of the ports; what comes by the others is of nobody that it knows yet, and can wait. */
static void verbs_collect_live(struct verbs_queue *q)
{
	for (uint32_t left = q->live; left; left &= left - 1)
		verbs_collect_port(q, &q->ports[__builtin_ctz(left)]);
}

/* ---- what came ---- */

static void verbs_event(struct event *event, enum event_type type, struct verbs_conn *c)
{
	*event = (struct event){.type = type, .conn = &c->conn};
}

/* What one connection owes its owner beside messages. True when it owes nothing more. */
bool verbs_report(struct verbs_conn *c, struct event *events, unsigned max, unsigned *n)
{
	for (uint32_t i = 0; i < c->rail_count; i++) {
		struct verbs_rail *r = &c->rails[i];

		while (r->reported != r->done) {
			void *cookie = r->slots[r->reported % VERBS_SEND_SLOTS].cookie;

			if (cookie && *n == max)
				return false;
			r->reported++;
			if (!cookie)
				continue;
			verbs_event(&events[*n], EVENT_SENT, c);
			events[(*n)++].cookie = cookie;
		}
	}
	if (c->state == VERBS_OPEN && verbs_writable(c)) {
		if (*n == max)
			return false;
		c->wanted = false;
		verbs_event(&events[(*n)++], EVENT_WRITABLE, c);
	}
	if (c->close_owed) {
		/* Those that wait for one that went another way may wait for ever: a rail's end takes messages with it.
		 */
		if (*n == max || c->inbox > c->early_count)
			return false;
		c->close_owed = false;
		verbs_event(&events[*n], EVENT_CLOSED, c);
		events[*n].error = c->error;
		events[*n].broken = verbs_is_broken(c);
		events[(*n)++].why = c->why;
	}
	return true;
}

static unsigned verbs_report_all(struct verbs_queue *q, struct event *events, unsigned max)
{
	struct list_link *next;
	unsigned n = 0;

	for (struct list_link *at = q->report.next; at != &q->report; at = next) {
		next = at->next;
		if (verbs_report(LIST_OF(at, struct verbs_conn, report), events, max, &n))
			list_remove(at);
		if (n == max)
			break;
	}
	return n;
}

/* ---- time ---- */

/* All open connections are in one of these two lists. */
static void verbs_end_on(struct verbs_queue *q, struct list_link *list, const struct verbs_port *p)
{
	struct list_link *next;

	for (struct list_link *at = list->next; at != list; at = next) {
		struct verbs_conn *c = LIST_OF(at, struct verbs_conn, quiet);
		bool there = false;

		next = at->next;
		for (uint32_t i = 0; i < c->rail_count; i++)
			there = there || c->rails[i].port == p;
		if (there)
			verbs_end(q, c, -EIO, "the device has failed");
	}
}

static void verbs_look_at_devices(struct verbs_queue *q)
{
	for (uint32_t left = q->live; left; left &= left - 1) {
		const struct verbs_port *p = &q->ports[__builtin_ctz(left)];

		if (!atomic_load_explicit(&p->device->failed, memory_order_relaxed))
			continue;
		verbs_end_on(q, &q->tails, p);
		verbs_end_on(q, &q->idle, p);
	}
}

static void verbs_tick(struct verbs_queue *q, uint64_t now_ns)
{
	verbs_look_at_devices(q);
	while (!list_alone(&q->tails)) {
		struct verbs_conn *c = LIST_OF(q->tails.next, struct verbs_conn, quiet);

		if (now_ns - c->sent_ns < VERBS_NUDGE_NS)
			break;
		verbs_conn_nudge(q, c, false);
	}
	while (!list_alone(&q->idle)) {
		struct verbs_conn *c = LIST_OF(q->idle.next, struct verbs_conn, quiet);

		if (now_ns - c->sent_ns < VERBS_PING_NS)
			break;
		verbs_conn_nudge(q, c, true);
	}
}

static void verbs_hush(struct verbs_queue *q, struct verbs_port *p)
{
	struct ibv_cq *cq;
	void *context;

	while (ibv_get_cq_event(p->channel, &cq, &context) == 0) {
		p->events++;
		q->armed &= ~(UINT32_C(1) << (p - q->ports));
	}
	if (p->events >= 64) {
		ibv_ack_cq_events(p->cq, p->events);
		p->events = 0;
	}
}

static unsigned verbs_poll(struct queue *head, uint64_t now_ns, struct event *events, unsigned max)
{
	struct verbs_queue *q = (struct verbs_queue *)head;
	unsigned n;

	q->now_ns = now_ns;
	for (uint32_t left = q->armed; left; left &= left - 1)
		verbs_hush(q, &q->ports[__builtin_ctz(left)]);
	if (!q->inbox_first)
		verbs_collect_live(q);
	n = verbs_report_all(q, events, max);
	n = verbs_tell_all(q, events, max, n);
	if (n < max && !list_alone(&q->report))
		n += verbs_report_all(q, events + n, max - n);
	verbs_tick(q, now_ns);
	if (atomic_load_explicit(&q->graves, memory_order_relaxed))
		verbs_bury(q);
	return n;
}

static int verbs_arm(struct queue *head)
{
	struct verbs_queue *q = (struct verbs_queue *)head;

	for (uint32_t left = q->live & ~q->armed; left; left &= left - 1) {
		if (ibv_req_notify_cq(q->ports[__builtin_ctz(left)].cq, 0) != 0)
			return -ENOTSUP;
		q->armed |= left & -left;
	}
	verbs_collect_live(q);
	if (q->inbox_first || !list_alone(&q->report))
		return -EAGAIN;
	return q->epoll_fd;
}

/* ---- connections ---- */

/* Messages that came before the connection was adopted, oldest first. */
static void verbs_take_strays(struct verbs_queue *q, struct verbs_conn *c)
{
	struct verbs_recv *mine = NULL;

	for (struct verbs_recv **at = &q->strays; *at;) {
		struct verbs_recv *v = *at;
		struct verbs_rail *r = verbs_find(q, v->device, v->qpn);

		if (!r || r->conn != c) {
			at = &v->next;
			continue;
		}
		*at = v->next;
		v->rail = r;
		v->next = mine;
		mine = v;
	}
	while (mine) {
		struct verbs_recv *v = mine;

		mine = v->next;
		verbs_inbox(q, v);
	}
	for (struct verbs_recv **at = &q->stray_bells; *at; at = &(*at)->next) {
		struct verbs_recv *v = *at;

		if (!verbs_bell_heard(q, v))
			continue;
		*at = v->next;
		q->ports[v->device].stray_count--;
		verbs_bell_repost(&q->ports[v->device], v);
		return;
	}
}

static int verbs_adopt(struct queue *head, struct conn *conn, const struct conn_spec *spec)
{
	struct verbs_queue *q = (struct verbs_queue *)head;
	struct verbs_conn *c = (struct verbs_conn *)conn;

	if (spec->queue != head || c->spec != spec || c->state != VERBS_ADMITTED)
		return -EINVAL;
	if (q->conns == q->conns_max)
		return -ENOSPC;
	q->conns++;
	conn->queue = head;
	c->queue = q;
	c->state = VERBS_OPEN;
	for (uint32_t i = 0; i < c->rail_count; i++)
		verbs_hash_add(q, &c->rails[i]);
	verbs_quiet(q, c);
	verbs_take_strays(q, c);
	return 0;
}

static void verbs_forget_list(struct verbs_queue *q, struct verbs_recv **list, const struct verbs_conn *c)
{
	while (*list) {
		struct verbs_recv *v = *list;
		bool mine = v->rail && v->rail->conn == c;

		for (uint32_t i = 0; !v->rail && i < c->rail_count; i++)
			mine = mine || (v->qpn == c->rails[i].qpn && v->device == c->rails[i].device_index);
		if (!mine) {
			list = &v->next;
			continue;
		}
		*list = v->next;
		if (v->pool)
			verbs_pool_release(q, v);
	}
}

void verbs_forget(struct verbs_queue *q, struct verbs_conn *c)
{
	verbs_forget_list(q, &q->inbox_first, c);
	verbs_forget_list(q, &q->strays, c);
	for (q->inbox_last = q->inbox_first; q->inbox_last && q->inbox_last->next;)
		q->inbox_last = q->inbox_last->next;
	while (c->early) {
		struct verbs_recv *v = c->early;

		c->early = v->next;
		if (v->pool)
			verbs_pool_release(q, v);
	}
	list_remove(&c->ring);
	list_remove(&c->report);
	list_remove(&c->quiet);
}

/* Slots of this connection that its owner kept count as given back. */
static void verbs_take_back(struct verbs_queue *q, const struct verbs_conn *c)
{
	struct verbs_batch *b = c->pool ? atomic_load_explicit(&c->pool->batches, memory_order_acquire) : NULL;

	for (; b; b = b->next) {
		for (uint32_t i = 0; i < b->count; i++) {
			struct verbs_recv *v = &b->recvs[i];

			if (v->out && v->rail && v->rail->conn == c)
				verbs_pool_release(q, v);
		}
	}
}

static void verbs_release(struct queue *head, void *slot)
{
	verbs_pool_release((struct verbs_queue *)head, slot);
}

/*
 * Which of a worker's rails led nowhere. Where the box alone noticed (then it is dropped although it is open), those on
 * which something is still unanswered are suspected, if others have nothing.
 */
static void verbs_shun_all(const struct verbs_conn *c)
{
	bool known = false;

	for (uint32_t i = 0; i < c->rail_count; i++)
		known = known || c->rails[i].led_nowhere;
	for (uint32_t i = 0; i < c->rail_count; i++) {
		const struct verbs_rail *r = &c->rails[i];

		if (known ? r->led_nowhere : c->state == VERBS_OPEN && c->rail_count > 1 && r->done != r->rung)
			verbs_shun(c->verbs, r);
	}
}

static void verbs_drop(struct queue *head, struct conn *conn)
{
	struct verbs_queue *q = (struct verbs_queue *)head;
	struct verbs_conn *c = (struct verbs_conn *)conn;

	verbs_bell_ring(c, c->deaf ? c->error : verbs_is_broken(c) ? -ECONNRESET : 0);
	if (!c->is_box)
		verbs_shun_all(c);
	c->state = VERBS_CLOSED;
	for (uint32_t i = 0; i < c->rail_count; i++)
		verbs_hash_remove(q, &c->rails[i]);
	for (uint32_t i = 0; i < c->rail_count; i++)
		verbs_rail_destroy(&c->rails[i], q);
	verbs_forget(q, c);
	verbs_take_back(q, c);
	q->conns--;
	verbs_conn_free(c);
}

void verbs_bury(struct verbs_queue *q)
{
	struct verbs_conn *c = atomic_exchange_explicit(&q->graves, NULL, memory_order_acquire);

	if (c)
		verbs_collect(q);
	while (c) {
		struct verbs_conn *next = c->next_grave;

		verbs_forget(q, c);
		verbs_conn_free(c);
		c = next;
	}
}

const struct queue_ops verbs_queue_ops = {
	.adopt = verbs_adopt,
	.poll = verbs_poll,
	.send = verbs_send,
	.flush = verbs_flush,
	.release = verbs_release,
	.arm = verbs_arm,
	.drop = verbs_drop,
};
