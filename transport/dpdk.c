/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The port by which a queue's datagrams leave through DPDK: headers written into an mbuf of ours, the payload attached
 * to it where it lies, when the driver can. So one result is read by all the packets that carry it to the workers.
 * Owning core.
 */
#include "transport/dpdk.h"

#include <errno.h>
#include <rte_lcore.h>
#include <stddef.h>
#include <string.h>

#include "phub/base/stats.h"
#include "transport/dpdk_internal.h"

void dpdk_register_thread(struct dpdk_port *p)
{
	if (rte_lcore_id() != LCORE_ID_ANY || p->thread_asked)
		return;
	/* Without an id (there are 128) pools work too, only slower: not asked for again. */
	p->thread_asked = rte_thread_register() < 0;
}

/* An empty packet, or NULL. A pool is asked for many at a time. */
static struct rte_mbuf *dpdk_spare(struct dpdk_spare *s)
{
	if (s->count == 0) {
		if (rte_pktmbuf_alloc_bulk(s->pool, s->free, DPDK_SPARE) == 0)
			s->count = DPDK_SPARE;
		else
			return rte_pktmbuf_alloc(s->pool); /* the last few */
	}
	return s->free[--s->count];
}

/* ---- the device ---- */

static void port_lose(struct dpdk_port *p)
{
	stats_add(&p->counters.lost, p->pending_count);
	rte_pktmbuf_free_bulk(p->pending, p->pending_count);
	p->pending_count = 0;
}

static bool port_is_down(struct dpdk_port *p)
{
	struct rte_eth_link link = {0};
	uint64_t now_ns = clock_now_ns();

	if (now_ns - p->down_looked_ns >= DPDK_LINK_MS * NS_PER_MS) {
		p->down_looked_ns = now_ns;
		p->down = rte_eth_link_get_nowait(p->nic->id, &link) == 0 && link.link_status == RTE_ETH_LINK_DOWN;
	}
	return p->down;
}

/* False: another core is sending by this queue. */
static bool port_burst(struct dpdk_port *p)
{
	rte_spinlock_t *lock = p->nic->tx_locks ? &p->nic->tx_locks[p->tx_queue] : NULL;
	unsigned count;

	/*
	 * Who has it may be in a system call of its driver's, or without a CPU: what is pending here waits for the next
	 * flush(), and this core does something else.
	 */
	if (lock && !rte_spinlock_trylock(lock)) {
		stats_add(&p->counters.busy, 1);
		return false;
	}
	count = rte_eth_tx_burst(p->nic->id, p->tx_queue, p->pending, (uint16_t)p->pending_count);
	if (lock)
		rte_spinlock_unlock(lock);
	stats_add(&p->counters.full, count < p->pending_count);
	stats_add(&p->counters.sent, count);
	p->pending_count -= count;
	memmove(p->pending, p->pending + count, p->pending_count * sizeof(p->pending[0]));
	return true;
}

static void port_push(struct dpdk_port *p)
{
	if (p->pending_count > 0 && port_burst(p) && p->pending_count > 0 && port_is_down(p))
		port_lose(p);
}

void dpdk_enqueue(struct dpdk_port *p, struct rte_mbuf *m)
{
	if (p->pending_count == DPDK_TX_MAX)
		port_push(p);
	if (p->pending_count == DPDK_TX_MAX) {
		stats_add(&p->counters.lost, 1);
		rte_pktmbuf_free(m);
		return;
	}
	p->pending[p->pending_count++] = m;
}

/* Those that waited for ARP: sent, when it is known now for whom, or lost after a while. */
static void port_unwait(struct dpdk_port *p)
{
	uint64_t now_ns = clock_now_ns();
	unsigned kept = 0;

	for (unsigned i = 0; i < p->waiting_count; i++) {
		struct dpdk_waiting *w = &p->waiting[i];
		struct rte_ether_hdr *ether = rte_pktmbuf_mtod(w->m, struct rte_ether_hdr *);

		if (p->pending_count < DPDK_TX_MAX && dpdk_resolve(p, w->hop, now_ns, &ether->dst_addr)) {
			p->pending[p->pending_count++] = w->m;
		} else if (now_ns < w->until_ns) {
			p->waiting[kept++] = *w;
		} else {
			stats_add(&p->counters.unreachable, 1);
			rte_pktmbuf_free(w->m);
		}
	}
	p->waiting_count = kept;
}

static void port_flush(struct datagram_port *port)
{
	struct dpdk_port *p = dpdk_port_of(port);

	if (p->waiting_count)
		port_unwait(p);
	port_push(p);
}

static void port_give_back(struct dpdk_spare *s)
{
	rte_pktmbuf_free_bulk(s->free, s->count);
	s->count = 0;
}

void dpdk_drain(struct dpdk_port *p)
{
	rte_pktmbuf_free_bulk(p->given, p->given_count);
	p->given_count = 0;
	port_flush(&p->port);
	port_lose(p);
	for (unsigned i = 0; i < p->waiting_count; i++)
		rte_pktmbuf_free(p->waiting[i].m);
	p->waiting_count = 0;
	rte_pktmbuf_free(p->next);
	p->next = NULL;
	port_give_back(&p->spare_heads);
	port_give_back(&p->spare_attached);
	while (!list_alone(&p->reading)) {
		struct dpdk_attached *a = LIST_OF(p->reading.next, struct dpdk_attached, link);

		list_remove(&a->link);
		list_init(&a->link);
		a->message = NULL;
	}
}

/* ---- sending ---- */

/* The MAC of the next hop to `to`, or the hop itself where it is asked for. False: there is no way there. */
static bool port_next_hop(struct dpdk_port *p, const struct datagram_address *to, struct rte_ether_addr *mac)
{
	uint32_t ip;

	p->next_hop = 0;
	memcpy(mac->addr_bytes, to->mac, RTE_ETHER_ADDR_LEN);
	if (!rte_is_zero_ether_addr(mac))
		return true;
	memcpy(&ip, &to->ip.s6_addr[12], 4);
	ip = dpdk_next_hop(p->nic, rte_be_to_cpu_32(ip));
	if (ip == 0)
		return false;
	if (dpdk_resolve(p, ip, p->port.now_ns, mac))
		return true;
	p->next_hop = ip;
	return p->waiting_count < DPDK_WAITING;
}

static int port_room(struct datagram_port *port, const struct datagram_address *to, struct reliable_outgoing *out)
{
	struct dpdk_port *p = dpdk_port_of(port);
	struct rte_ether_hdr *ether;
	struct rte_ipv4_hdr *ip;
	struct rte_udp_hdr *udp;

	if (p->pending_count == DPDK_TX_MAX)
		port_flush(port);
	if (p->pending_count == DPDK_TX_MAX)
		return -EAGAIN;
	if (!p->next)
		p->next = dpdk_spare(&p->spare_heads);
	if (!p->next)
		return -EAGAIN;
	ether = rte_pktmbuf_mtod(p->next, struct rte_ether_hdr *);
	ip = (void *)(ether + 1);
	udp = (void *)(ip + 1);
	out->head = (uint8_t *)(udp + 1);
	memcpy(ether, p->template, DPDK_HEADERS);
	if (!IN6_IS_ADDR_V4MAPPED(&to->ip) || !port_next_hop(p, to, &ether->dst_addr)) {
		stats_add(&p->counters.unreachable, 1);
		return -EHOSTUNREACH;
	}
	memcpy(&ip->dst_addr, &to->ip.s6_addr[12], 4);
	udp->dst_port = rte_cpu_to_be_16(to->port);
	return 0;
}

/* The device no longer reads this payload. */
static void port_detached(void *payload, void *opaque)
{
	struct dpdk_attached *a = opaque;

	(void)payload;
	list_remove(&a->link);
	if (a->message)
		a->port->nic->host.let(a->reliable, a->message);
}

/* Whatever the device does with it from now on, its owner hears nothing of it. */
static void port_forsake(struct dpdk_attached *a)
{
	if (a->message)
		a->port->nic->host.let(a->reliable, a->message);
	a->message = NULL;
}

static bool port_attach(
	struct dpdk_port *p, struct reliable *r, struct rte_mbuf *head, const struct reliable_outgoing *out)
{
	struct rte_mbuf *m;
	struct dpdk_attached *a;

	/* What waits for ARP may wait for long: it holds nothing. */
	if (!p->nic->attaches || p->next_hop || !out->message || out->rest_bytes < DPDK_ATTACH_MIN)
		return false;
	if (p->nic->maps && !dpdk_memory_has(p, out->rest, out->rest_bytes))
		return false;
	m = dpdk_spare(&p->spare_attached);
	if (!m)
		return false;
	a = rte_mbuf_to_priv(m);
	*a = (struct dpdk_attached){.port = p, .reliable = r, .message = out->message, .conn = out->conn};
	a->shared.free_cb = port_detached;
	a->shared.fcb_opaque = a;
	rte_mbuf_ext_refcnt_set(&a->shared, 1);
	/* Drivers that copy need no bus address; what is mapped for others has its virtual one. */
	rte_pktmbuf_attach_extbuf(m, (void *)(uintptr_t)out->rest,
		p->nic->maps ? (rte_iova_t)(uintptr_t)out->rest : RTE_BAD_IOVA, (uint16_t)out->rest_bytes, &a->shared);
	list_append(&p->reading, &a->link);
	m->data_len = (uint16_t)out->rest_bytes;
	m->pkt_len = out->rest_bytes;
	p->nic->host.hold(out->message);
	head->next = m;
	head->nb_segs = 2;
	head->pkt_len += out->rest_bytes;
	stats_add(&p->counters.attached, 1);
	return true;
}

/* Of a header that is the template's but for its length and whom it is to. */
static uint16_t port_ip_checksum(const struct dpdk_port *p, const struct rte_ipv4_hdr *ip)
{
	uint32_t sum = (uint32_t)p->template_sum + ip->total_length + (ip->dst_addr & 0xffff) + (ip->dst_addr >> 16);

	sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t) ~(sum + (sum >> 16));
}

/* Lengths and checksums, or what the device needs to know to compute them. */
static void port_finish(const struct dpdk_port *p, struct rte_mbuf *m)
{
	struct rte_ipv4_hdr *ip = rte_pktmbuf_mtod_offset(m, struct rte_ipv4_hdr *, sizeof(struct rte_ether_hdr));
	struct rte_udp_hdr *udp = (void *)(ip + 1);
	uint32_t bytes = m->pkt_len - (uint32_t)sizeof(struct rte_ether_hdr);

	ip->total_length = rte_cpu_to_be_16((uint16_t)bytes);
	udp->dgram_len = rte_cpu_to_be_16((uint16_t)(bytes - sizeof(*ip)));
	m->l2_len = sizeof(struct rte_ether_hdr);
	m->l3_len = sizeof(*ip);
	m->l4_len = sizeof(*udp);
	if (p->nic->offload_ip)
		m->ol_flags |= RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_IP_CKSUM;
	else
		ip->hdr_checksum = port_ip_checksum(p, ip);
	if (!p->nic->offload_udp)
		return; /* zero: none was computed (RFC 768); the seal covers it */
	m->ol_flags |= RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_UDP_CKSUM;
	udp->dgram_cksum = rte_ipv4_phdr_cksum(ip, m->ol_flags);
}

static void port_send(struct datagram_port *port, struct reliable *r, const struct reliable_outgoing *out)
{
	struct dpdk_port *p = dpdk_port_of(port);
	struct rte_mbuf *m = p->next;

	p->next = NULL;
	m->data_len = (uint16_t)(DPDK_HEADERS + out->head_bytes);
	m->pkt_len = m->data_len;
	if (out->rest_bytes && !port_attach(p, r, m, out)) {
		void *at = rte_pktmbuf_mtod_offset(m, void *, m->data_len);

		if (out->rest)
			memcpy(at, out->rest, out->rest_bytes);
		else
			memset(at, 0, out->rest_bytes);
		m->data_len = (uint16_t)(m->data_len + out->rest_bytes);
		m->pkt_len = m->data_len;
		stats_add(&p->counters.copied, out->message != NULL);
	}
	port_finish(p, m);
	stats_add(&p->counters.sent_bytes, m->pkt_len);
	if (!p->next_hop) {
		p->pending[p->pending_count++] = m;
		return;
	}
	p->waiting[p->waiting_count++] = (struct dpdk_waiting){
		.m = m, .hop = p->next_hop, .until_ns = clock_now_ns() + DPDK_WAITING_MS * NS_PER_MS};
}

/* Does this packet carry a payload of the connection? */
static bool port_carries(const struct rte_mbuf *m, const struct reliable_conn *c)
{
	const struct dpdk_attached *a;

	if (!m->next || !RTE_MBUF_HAS_EXTBUF(m->next))
		return false;
	a = rte_mbuf_to_priv(m->next);
	return a->conn == c;
}

/* Of this connection. */
static struct dpdk_attached *port_is_reading(const struct dpdk_port *p, const struct reliable_conn *c)
{
	for (struct list_link *at = p->reading.next; at != &p->reading; at = at->next) {
		struct dpdk_attached *a = LIST_OF(at, struct dpdk_attached, link);

		if (a->conn == c && a->message)
			return a;
	}
	return NULL;
}

/*
 * What is pending is lost. What a device still has that reads later is waited for, for a moment: then nobody waits any
 * more, and the region stays mapped until dpdk_memory_reap().
 */
static void port_reclaim(struct datagram_port *port, struct reliable *r, const struct reliable_conn *c)
{
	struct dpdk_port *p = dpdk_port_of(port);
	uint64_t until_ns = clock_now_ns() + DPDK_RECLAIM_US * NS_PER_US;
	struct dpdk_attached *a;
	unsigned kept = 0;

	(void)r;
	port_flush(port);
	for (unsigned i = 0; i < p->pending_count; i++) {
		if (port_carries(p->pending[i], c)) {
			rte_pktmbuf_free(p->pending[i]);
			stats_add(&p->counters.lost, 1);
		} else {
			p->pending[kept++] = p->pending[i];
		}
	}
	p->pending_count = kept;
	while (port_is_reading(p, c) && clock_now_ns() < until_ns)
		if (rte_eth_tx_done_cleanup(p->nic->id, p->tx_queue, 0) < 0)
			break; /* a driver that has no such call looks at what is done when it is given more */
	while ((a = port_is_reading(p, c)))
		port_forsake(a);
}

static int port_arm(struct datagram_port *port, uint64_t due_ns)
{
	(void)port;
	(void)due_ns;
	return -ENOTSUP;
}

static uint64_t port_now(struct datagram_port *port)
{
	(void)port;
	return clock_now_ns();
}

/*
 * What the device lost before any core saw it. It counts for all of its queues together: the first one tells. Drivers
 * write these beside their bursts, and nobody resets them.
 */
static const char *port_count_device(const struct dpdk_port *p, unsigned index, uint64_t *value)
{
	static const char *const names[] = {"missed", "no_buffer", "damaged_frames"};
	struct rte_eth_stats stats = {0};

	if (index >= RTE_DIM(names))
		return NULL;
	if (p->index == 0)
		(void)rte_eth_stats_get(p->nic->id, &stats);
	*value = index == 0 ? stats.imissed : index == 1 ? stats.rx_nombuf : stats.ierrors;
	return names[index];
}

static const char *port_count(const struct datagram_port *port, unsigned index, uint64_t *value)
{
	static const struct {
		const char *name;
		size_t at;
	} rows[] = {
		{"came", offsetof(struct dpdk_counters, came)},
		{"sent", offsetof(struct dpdk_counters, sent)},
		{"sent_bytes", offsetof(struct dpdk_counters, sent_bytes)},
		{"attached", offsetof(struct dpdk_counters, attached)},
		{"copied", offsetof(struct dpdk_counters, copied)},
		{"steered", offsetof(struct dpdk_counters, steered)},
		{"answered", offsetof(struct dpdk_counters, answered)},
		{"asked", offsetof(struct dpdk_counters, asked)},
		{"conflicts", offsetof(struct dpdk_counters, conflicts)},
		{"unreachable", offsetof(struct dpdk_counters, unreachable)},
		{"lost", offsetof(struct dpdk_counters, lost)},
		{"full", offsetof(struct dpdk_counters, full)},
		{"busy", offsetof(struct dpdk_counters, busy)},
	};
	const struct dpdk_port *p = (const struct dpdk_port *)(const void *)port;
	const char *counters = (const char *)&p->counters;

	if (index < RTE_DIM(rows)) {
		*value = stats_read((const uint64_t *)(const void *)(counters + rows[index].at));
		return rows[index].name;
	}
	index -= RTE_DIM(rows);
	if (index >= DPDK_DROPS)
		return port_count_device(p, index - DPDK_DROPS, value);
	*value = stats_read(&p->counters.dropped[index]);
	return p->nic->host.drop_name((enum dpdk_drop)index);
}

static void port_close(struct datagram_port *port)
{
	dpdk_port_destroy(dpdk_port_of(port));
}

const struct datagram_port_ops dpdk_port_ops = {
	.receive = dpdk_receive,
	.room = port_room,
	.send = port_send,
	.flush = port_flush,
	.reclaim = port_reclaim,
	.arm = port_arm,
	.now = port_now,
	.count = port_count,
	.close = port_close,
};
