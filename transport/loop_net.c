/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The net itself: time (one heap of items), chance (one xoshiro256** generator), hosts, and what is
 * done to them: partitions and deaths. Whoever drives the simulation calls this.
 */
#include "transport/loop.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "transport/loop_internal.h"

static uint64_t loop_splitmix(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static uint64_t loop_rotate(uint64_t x, unsigned by)
{
	return (x << by) | (x >> (64 - by));
}

uint64_t loop_net_random(struct loop_net *net)
{
	uint64_t *s = net->random;
	uint64_t result = loop_rotate(s[1] * 5, 7) * 9;
	uint64_t t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = loop_rotate(s[3], 45);
	return result;
}

bool loop_chance(struct loop_net *net, double probability)
{
	if (probability <= 0)
		return false;
	return (double)(loop_net_random(net) >> 11) * 0x1p-53 < probability;
}

uint64_t loop_between(struct loop_net *net, uint64_t min, uint64_t max)
{
	return max <= min ? min : min + loop_net_random(net) % (max - min + 1);
}

static void loop_net_hosts_init(struct loop_net *net)
{
	unsigned i;

	for (i = 0; i < net->plan.hosts; i++) {
		net->hosts[i].net = net;
		net->hosts[i].endpoint = i;
		net->hosts[i].uid = (int64_t)geteuid();
		net->hosts[i].up = true;
		net->next_port[i] = 40000;
	}
}

struct loop_net *loop_net_create(const struct loop_plan *plan)
{
	struct loop_net *net = calloc(1, sizeof(*net));
	uint64_t state = plan->seed;
	unsigned i;

	if (!net)
		return NULL;
	net->plan = *plan;
	if (!net->plan.hosts)
		net->plan.hosts = LOOP_HOSTS;
	if (!net->plan.pipe_bytes_max)
		net->plan.pipe_bytes_max = LOOP_PIPE_BYTES;
	if (!net->plan.reorder_ns)
		net->plan.reorder_ns = net->plan.delay_max_ns ? 4 * net->plan.delay_max_ns : 1000;
	for (i = 0; i < 4; i++)
		net->random[i] = loop_splitmix(&state);
	loop_list_init(&net->parked);
	net->hosts = calloc(net->plan.hosts, sizeof(*net->hosts));
	net->next_port = calloc(net->plan.hosts, sizeof(*net->next_port));
	net->pairs = calloc((size_t)net->plan.hosts * net->plan.hosts, sizeof(*net->pairs));
	if (!net->hosts || !net->next_port || !net->pairs) {
		loop_net_destroy(net);
		return NULL;
	}
	loop_net_hosts_init(net);
	return net;
}

static void loop_net_forget(struct loop_net *net)
{
	struct loop_item *item;
	struct loop_buf *buf;
	size_t i;

	for (i = 0; i < net->heap_count; i++)
		loop_item_free(net->heap[i]);
	net->heap_count = 0;
	loop_list_purge(&net->parked, NULL, 0);
	/* Whatever still hangs on the net here belongs to an end that somebody forgot to close. */
	assert(!net->links && !net->listeners && !net->ports);
	while ((item = net->free_items) != NULL) {
		net->free_items = item->next;
		free(item);
	}
	for (i = 0; i < LOOP_SIZE_CLASSES; i++) {
		while ((buf = net->free_bufs[i]) != NULL) {
			net->free_bufs[i] = buf->next;
			free(buf);
		}
	}
}

void loop_net_destroy(struct loop_net *net)
{
	if (!net)
		return;
	loop_net_forget(net);
	free(net->heap);
	free(net->hosts);
	free(net->next_port);
	free(net->pairs);
	free(net);
}

struct loop_host *loop_net_host(struct loop_net *net, unsigned endpoint)
{
	assert(endpoint < net->plan.hosts);
	return &net->hosts[endpoint];
}

bool loop_host_alive(const struct loop_host *host, unsigned life)
{
	return host->up && host->life == life;
}

uint64_t loop_net_now(const struct loop_net *net)
{
	return net->now;
}

const struct loop_stats *loop_net_stats(const struct loop_net *net)
{
	return &net->stats;
}

void loop_net_relies(struct loop_net *net, loop_relies_fn relies, void *arg)
{
	net->relies = relies;
	net->relies_arg = arg;
}

void loop_net_trace(struct loop_net *net, FILE *file)
{
	net->trace = file;
}

/* ---- time ---- */

static bool loop_item_before(const struct loop_item *a, const struct loop_item *b)
{
	return a->at != b->at ? a->at < b->at : a->order < b->order;
}

void loop_heap_push(struct loop_net *net, struct loop_item *item)
{
	size_t i = net->heap_count++;

	assert(net->heap_count <= net->heap_room && !item->embedded);
	while (i > 0 && loop_item_before(item, net->heap[(i - 1) / 2])) {
		net->heap[i] = net->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	net->heap[i] = item;
}

static struct loop_item *loop_heap_pop(struct loop_net *net)
{
	struct loop_item *top = net->heap[0], *last = net->heap[--net->heap_count];
	size_t i = 0, child;

	while ((child = 2 * i + 1) < net->heap_count) {
		if (child + 1 < net->heap_count && loop_item_before(net->heap[child + 1], net->heap[child]))
			child++;
		if (!loop_item_before(net->heap[child], last))
			break;
		net->heap[i] = net->heap[child];
		i = child;
	}
	net->heap[i] = last;
	return top;
}

uint64_t loop_net_next(const struct loop_net *net)
{
	if (net->heap_count == 0)
		return UINT64_MAX;
	return net->heap[0]->at > net->now ? net->heap[0]->at : net->now;
}

void loop_net_advance(struct loop_net *net, uint64_t to_ns)
{
	assert(to_ns >= net->now);
	while (net->heap_count && net->heap[0]->at <= to_ns) {
		struct loop_item *item = loop_heap_pop(net);

		if (item->at > net->now)
			net->now = item->at;
		loop_link_fire(item);
	}
	net->now = to_ns;
}

bool loop_net_step(struct loop_net *net)
{
	uint64_t next = loop_net_next(net);

	if (next == UINT64_MAX)
		return false;
	loop_net_advance(net, next);
	return true;
}

/* ---- what is done to hosts and pairs ---- */

struct loop_pair *loop_pair(struct loop_net *net, unsigned a, unsigned b)
{
	assert(a < net->plan.hosts && b < net->plan.hosts);
	return a < b ? &net->pairs[(size_t)a * net->plan.hosts + b] : &net->pairs[(size_t)b * net->plan.hosts + a];
}

void loop_net_lossy(struct loop_net *net, unsigned a, unsigned b, bool on)
{
	loop_pair(net, a, b)->lossy = on;
}

void loop_net_delay(struct loop_net *net, unsigned a, unsigned b, uint64_t min_ns, uint64_t max_ns)
{
	struct loop_pair *pair = loop_pair(net, a, b);

	pair->own_delay = true;
	pair->delay_min_ns = min_ns;
	pair->delay_max_ns = max_ns;
}

/* Items keep their place in time, so that those which overtook them meanwhile come after them again. */
static void loop_net_unpark(struct loop_net *net, const struct loop_pair *pair)
{
	struct loop_item *item = loop_list_first(&net->parked), *next;

	for (; item; item = next) {
		struct loop_end *ends = item->link->ends;

		next = loop_list_next(&net->parked, item);
		if (loop_pair(net, ends[0].host->endpoint, ends[1].host->endpoint) != pair)
			continue;
		loop_list_remove(item);
		loop_heap_push(net, item);
	}
}

void loop_net_partition(struct loop_net *net, unsigned a, unsigned b, bool on)
{
	struct loop_pair *pair = loop_pair(net, a, b);

	if (net->trace)
		fprintf(net->trace, "%12" PRIu64 " %u-%u %s\n", net->now, a, b, on ? "cut" : "healed");
	pair->cut = on;
	if (!on)
		loop_net_unpark(net, pair);
}

void loop_net_deafen(struct loop_net *net, unsigned from, unsigned to, bool on)
{
	struct loop_pair *pair = loop_pair(net, from, to);

	if (net->trace)
		fprintf(net->trace, "%12" PRIu64 " %u>%u %s\n", net->now, from, to, on ? "cut" : "healed");
	pair->deaf[to > from] = on;
	if (!on)
		loop_net_unpark(net, pair);
}

void loop_net_partition_streams(struct loop_net *net, unsigned a, unsigned b, bool on)
{
	struct loop_pair *pair = loop_pair(net, a, b);

	if (net->trace)
		fprintf(net->trace, "%12" PRIu64 " %u-%u streams %s\n", net->now, a, b, on ? "cut" : "healed");
	pair->streams_cut = on;
	if (!on)
		loop_net_unpark(net, pair);
}

void loop_net_kill(struct loop_net *net, unsigned endpoint)
{
	struct loop_host *host = loop_net_host(net, endpoint);
	struct loop_link *link;
	unsigned side;

	if (!host->up)
		return;
	if (net->trace)
		fprintf(net->trace, "%12" PRIu64 " %u killed\n", net->now, endpoint);
	for (link = net->links; link; link = link->next) {
		for (side = 0; side < 2; side++) {
			if (link->ends[side].host == host && link->ends[side].owner &&
				link->ends[side].life == host->life)
				loop_link_end(link, side, -ECONNRESET);
		}
	}
	host->up = false;
	host->life++;
}

/* Is this a data connection between these two that both ends have in a queue? */
static bool loop_net_joins(const struct loop_link *link, const struct loop_host *a, const struct loop_host *b)
{
	const struct loop_conn *ends[2] = {link->ends[0].owner, link->ends[1].owner};
	bool there = (link->ends[0].host == a && link->ends[1].host == b) ||
		     (link->ends[0].host == b && link->ends[1].host == a);

	return there && link->class == &loop_conn_class && !link->broken && ends[0] && ends[1] && ends[0]->head.queue &&
	       ends[1]->head.queue;
}

void loop_net_break(struct loop_net *net, unsigned a, unsigned b)
{
	const struct loop_host *one = loop_net_host(net, a), *other = loop_net_host(net, b);

	if (net->trace)
		fprintf(net->trace, "%12" PRIu64 " %u-%u broken\n", net->now, a, b);
	for (struct loop_link *link = net->links; link; link = link->next) {
		uint64_t who;

		if (!loop_net_joins(link, one, other))
			continue;
		link->broken = true;
		who = loop_between(net, 0, 2); /* 2: both */
		for (unsigned side = 0; side < 2; side++)
			if (who != 1 - side && loop_link_alive(link, side))
				loop_conn_break(link->ends[side].owner);
	}
}

void loop_net_revive(struct loop_net *net, unsigned endpoint)
{
	loop_net_host(net, endpoint)->up = true;
}

/* ---- listeners ---- */

struct loop_listener *loop_listener_find(struct loop_net *net, const struct loop_host *host, uint16_t port)
{
	struct loop_listener *l;

	for (l = net->listeners; l; l = l->next) {
		if (l->host == host && l->port == port && loop_host_alive(host, l->life))
			return l;
	}
	return NULL;
}

uint16_t loop_number_free(struct loop_net *net, const struct loop_host *host)
{
	for (unsigned tries = 0; tries < UINT16_MAX; tries++) {
		uint16_t next = net->next_port[host->endpoint]++;

		if (next && !loop_listener_find(net, host, next) && !loop_port_find(net, host, next))
			return next;
	}
	return 0;
}

int loop_listener_open(struct loop_listener *l, struct loop_host *host, uint16_t port)
{
	struct loop_net *net = host->net;

	if (!host->up)
		return -ENETDOWN;
	if (port == 0)
		port = loop_number_free(net, host);
	if (port == 0 || loop_listener_find(net, host, port))
		return -EADDRINUSE;
	l->host = host;
	l->life = host->life;
	l->port = port;
	l->prev = NULL;
	l->next = net->listeners;
	if (l->next)
		l->next->prev = l;
	net->listeners = l;
	return 0;
}

void loop_listener_close(struct loop_listener *l)
{
	if (l->prev)
		l->prev->next = l->next;
	else
		l->host->net->listeners = l->next;
	if (l->next)
		l->next->prev = l->prev;
}

/* ---- trace ---- */

static const char *loop_kind_name(enum loop_kind kind)
{
	static const char *const names[] = {
		"dial", "open", "bytes", "message", "end", "read", "sent", "writable", "datagram"};

	return names[kind];
}

void loop_trace(struct loop_net *net, const char *verb, const struct loop_item *item)
{
	struct wire_header h;

	if (!net->trace)
		return;
	fprintf(net->trace, "%12" PRIu64 " %u>%u %s %s", net->now, item->link->ends[!item->to].host->endpoint,
		item->link->ends[item->to].host->endpoint, verb, loop_kind_name(item->kind));
	if (item->kind == LOOP_MESSAGE && wire_decode(item->header, &h) == 0)
		fprintf(net->trace, " %s job=%u chunk=%u round=%" PRIu64 " rank=%u epoch=%u seq=%u credit=%u length=%u",
			wire_type_name(h.type), h.job, h.chunk, h.round, h.rank, h.epoch, h.seq, h.credit, h.length);
	else if (item->kind == LOOP_END)
		fprintf(net->trace, " error=%d", item->error);
	else
		fprintf(net->trace, " bytes=%u", item->bytes);
	fprintf(net->trace, " at=%" PRIu64 " of=%s\n", item->at, item->link->class->name);
}
