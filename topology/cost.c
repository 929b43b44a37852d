/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table of what each box sends to each other, from that the bytes and senders of each link, and of these the longest.
 */
#include "topology/cost.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topology/plan.h"

#define COST_MTU   1500u
#define COST_RACKS (RACKS_MAX + WAYS_BOXES_MAX)

/* Flows that wait for each other. */
struct cost_flows {
	uint64_t bytes;
	unsigned count;
};

/* One direction of a link. */
struct cost_side {
	uint64_t bytes;         /* of payload */
	struct cost_flows meet; /* of these, shares of the same sums; */
	struct cost_flows part; /* shares of one box that go to several homes */
	unsigned back;          /* boxes whose results come by it */
};

struct cost_sides {
	struct cost_side out, in;
};

struct cost_count {
	const struct cost_net *net;
	const struct cost_job *job;
	enum ways_kind kind;
	unsigned root;
	const uint16_t *home;
	uint64_t model, chunk_most; /* bytes */
	double efficiency;          /* payload of what is on a link */
	struct cost_sides boxes[WAYS_BOXES_MAX];
	struct cost_sides uplinks[COST_RACKS];
	uint64_t *lifts, *results; /* [from * box_count + to] */
};

double cost_payload(void)
{
	return plan_wire_efficiency(PLAN_TCP, COST_MTU, PLAN_FRAME_BYTES, 1e12);
}

/* ---- the net ---- */

static bool cost_has_rack(const struct cost_net *net, unsigned rack)
{
	return net->racks && rack < net->racks->rack_count;
}

/* 0: it has none that would limit. */
static double cost_uplink(const struct cost_net *net, unsigned rack)
{
	if (rack >= cost_no_rack(0))
		return net->boxes[rack - cost_no_rack(0)].uplink_bytes_s;
	return cost_has_rack(net, rack) ? net->racks->racks[rack].uplink_bytes_s : 0;
}

/* What each of those who share a host's link has of it. */
static double cost_host_rate(const struct cost_net *net, int host)
{
	const struct rack_host *h = host == RACKS_NONE ? NULL : &net->racks->hosts[host];

	return h ? h->rate_bytes_s / (net->host_sums ? 1 : h->workers) : 0;
}

/* Where the slowest worker there is; RACKS_NONE: the file does not say. */
static int cost_slowest_host(const struct cost_net *net, unsigned rack)
{
	int slowest = RACKS_NONE;

	for (unsigned i = 0; cost_has_rack(net, rack) && i < net->racks->host_count; i++)
		if (net->racks->hosts[i].rack == rack &&
			(slowest == RACKS_NONE || cost_host_rate(net, (int)i) < cost_host_rate(net, slowest)))
			slowest = (int)i;
	return slowest;
}

static double cost_worker_rate(const struct cost_net *net, unsigned rack)
{
	return cost_host_rate(net, cost_slowest_host(net, rack));
}

void cost_take_box(const struct racks *racks, int box_of, unsigned number, unsigned workers, struct ways_box *out)
{
	*out = (struct ways_box){cost_no_rack(number), workers, COST_RATE_BYTES_S, 0};
	if (!racks || box_of == RACKS_NONE)
		return;
	out->rack = racks->boxes[box_of].rack;
	out->rate_bytes_s = racks->boxes[box_of].rate_bytes_s;
}

void cost_take_stranger(const struct racks *racks, int like, unsigned number, unsigned workers, struct ways_box *out)
{
	cost_take_box(racks, like, number, workers, out);
	if (!racks || like == RACKS_NONE)
		return;
	out->uplink_bytes_s = racks->racks[out->rack].uplink_bytes_s;
	out->rack = cost_no_rack(number);
}

double cost_home_rate(const struct racks *racks, const struct ways_box *box)
{
	bool known = racks && box->rack < racks->rack_count;
	double uplink = known ? racks->racks[box->rack].uplink_bytes_s : box->uplink_bytes_s;

	return uplink > 0 && uplink < box->rate_bytes_s ? uplink : box->rate_bytes_s;
}

/* ---- what moves ---- */

static uint32_t cost_lift_bytes(const struct cost_job *job, uint32_t chunk)
{
	return job->lift_bytes ? job->lift_bytes[chunk] : job->chunk_bytes[chunk];
}

static void cost_fill_table(struct cost_count *c)
{
	unsigned count = c->net->box_count;

	for (uint32_t i = 0; i < c->job->chunk_count; i++) {
		c->model += c->job->chunk_bytes[i];
		if (c->job->chunk_bytes[i] > c->chunk_most)
			c->chunk_most = c->job->chunk_bytes[i];
		for (unsigned box = 0; c->kind != WAYS_FLAT && box < count; box++) {
			unsigned next = ways_next(c->kind, count, c->home[i], box);

			if (next == box || !ways_has_sum(c->kind, c->net->boxes, count, c->home[i], box))
				continue;
			c->lifts[box * count + next] += cost_lift_bytes(c->job, i);
			c->results[next * count + box] += c->job->chunk_bytes[i];
		}
	}
}

/* So many senders' shares of sums, as many bytes of results the other way, and where both pass. */
static void cost_add(struct cost_side *up, struct cost_side *down, uint64_t shares, uint64_t results, unsigned senders)
{
	up->bytes += shares;
	up->meet.bytes += shares;
	up->meet.count += senders;
	down->bytes += results;
}

/* Likewise where they leave. */
static void cost_send(struct cost_side *up, struct cost_side *down, uint64_t shares, uint64_t results)
{
	up->bytes += shares;
	up->part.bytes += shares;
	up->part.count++;
	down->bytes += results;
	down->back++;
}

static void cost_add_lift(struct cost_count *c, unsigned from, unsigned to)
{
	unsigned count = c->net->box_count;
	unsigned here = c->net->boxes[from].rack, there = c->net->boxes[to].rack;
	uint64_t lift = c->lifts[from * count + to], result = c->results[to * count + from];

	if (lift == 0)
		return;
	cost_send(&c->boxes[from].out, &c->boxes[from].in, lift, result);
	cost_add(&c->boxes[to].in, &c->boxes[to].out, lift, result, 1);
	if (here == there)
		return;
	cost_send(&c->uplinks[here].out, &c->uplinks[here].in, lift, result);
	cost_add(&c->uplinks[there].in, &c->uplinks[there].out, lift, result, 1);
}

static void cost_add_workers(struct cost_count *c, unsigned box)
{
	const struct ways_box *b = &c->net->boxes[box];
	unsigned to = c->kind == WAYS_FLAT ? c->root : box;
	unsigned there = c->net->boxes[to].rack;
	uint64_t bytes = c->model * b->workers;

	cost_add(&c->boxes[to].in, &c->boxes[to].out, bytes, bytes, b->workers);
	if (b->rack == there)
		return;
	cost_add(&c->uplinks[b->rack].out, &c->uplinks[b->rack].in, bytes, bytes, b->workers);
	cost_add(&c->uplinks[there].in, &c->uplinks[there].out, bytes, bytes, b->workers);
}

/* ---- what that takes ---- */

static double cost_seconds(const struct cost_count *c, uint64_t bytes, double rate)
{
	return rate > 0 ? (double)bytes / (rate * c->efficiency) : 0;
}

/* How long the link waits for the last of them, when the others are done. */
static double cost_lag(const struct cost_count *c, const struct cost_flows *flows, double rate)
{
	double each = flows->count ? (double)flows->bytes / flows->count : 0;
	double ahead = COST_LAG * each, window = (double)c->job->window * (double)c->chunk_most;

	if (window < ahead)
		ahead = window;
	return flows->count > 1 ? ahead * (flows->count - 1) / (rate * c->efficiency) : 0;
}

/* A box sends for itself. */
static unsigned cost_senders(const struct cost_side *side)
{
	unsigned senders = side->meet.count ? side->meet.count : side->back;

	return senders ? senders : 1;
}

/* A link and what it carries each way: is it the one that takes longest? */
static void cost_take_link(const struct cost_count *c, const struct cost_sides *sides, double rate, enum cost_link link,
	unsigned index, struct cost *out)
{
	bool in = sides->in.bytes > sides->out.bytes ||
		  (sides->in.bytes == sides->out.bytes && sides->in.meet.count >= sides->out.meet.count);
	const struct cost_side *more = in ? &sides->in : &sides->out;
	double busy, lag;

	if (rate <= 0)
		return;
	busy = cost_seconds(c, more->bytes, rate);
	lag = fmax(cost_lag(c, &sides->in.meet, rate), cost_lag(c, &sides->out.meet, rate)) +
	      cost_lag(c, &sides->out.part, rate);
	if (busy + lag <= out->busy_s + out->lag_s)
		return;
	*out = (struct cost){.busy_s = busy,
		.lag_s = lag,
		.limit = link,
		.index = index,
		.in = in,
		.senders = cost_senders(more),
		.bytes = more->bytes};
}

static void cost_find_limit(const struct cost_count *c, struct cost *out)
{
	for (unsigned i = 0; c->net->racks && i < c->net->racks->rack_count; i++)
		cost_take_link(c, &c->uplinks[i], cost_uplink(c->net, i), COST_UPLINK, i, out);
	for (unsigned i = 0; i < c->net->box_count; i++) {
		const struct ways_box *box = &c->net->boxes[i];
		const struct cost_sides worker = {.out = {.bytes = c->model, .meet = {c->model, 1}}};

		int host = box->workers ? cost_slowest_host(c->net, box->rack) : RACKS_NONE;

		if (box->rack == cost_no_rack(i))
			cost_take_link(
				c, &c->uplinks[box->rack], cost_uplink(c->net, box->rack), COST_UPLINK, box->rack, out);
		cost_take_link(c, &c->boxes[i], box->rate_bytes_s, COST_BOX, i, out);
		if (host != RACKS_NONE)
			cost_take_link(c, &worker, cost_host_rate(c->net, host), COST_HOST, (unsigned)host, out);
	}
}

/* ---- the longest way of one chunk ---- */

static double cost_slower(double a, double b)
{
	return a > 0 && (b <= 0 || a < b) ? a : b;
}

/* Between racks, or within one: rate, then latency. */
static double cost_hop(const struct cost_count *c, unsigned here, unsigned there, double rate)
{
	const struct racks *r = c->net->racks;
	double latency = 0;

	if (here != there) {
		rate = cost_slower(cost_slower(rate, cost_uplink(c->net, here)), cost_uplink(c->net, there));
		latency = r ? r->latency_s : 0;
	} else if (cost_has_rack(c->net, here)) {
		latency = r->racks[here].latency_s;
	}
	return latency + cost_seconds(c, c->chunk_most, rate);
}

static double cost_worker_hop(const struct cost_count *c, unsigned box)
{
	const struct ways_box *b = &c->net->boxes[box], *to = &c->net->boxes[c->kind == WAYS_FLAT ? c->root : box];

	if (!b->workers)
		return 0;
	return cost_hop(c, b->rack, to->rack, cost_slower(to->rate_bytes_s, cost_worker_rate(c->net, b->rack)));
}

/* From a box's workers to this home: one way. */
static double cost_way(const struct cost_count *c, unsigned box, unsigned home)
{
	double seconds = cost_worker_hop(c, box);

	while (c->kind != WAYS_FLAT && box != home) {
		unsigned next = ways_next(c->kind, c->net->box_count, home, box);
		const struct ways_box *a = &c->net->boxes[box], *b = &c->net->boxes[next];

		seconds += cost_hop(c, a->rack, b->rack, cost_slower(a->rate_bytes_s, b->rate_bytes_s));
		box = next;
	}
	return seconds;
}

static double cost_fill(const struct cost_count *c)
{
	unsigned count = c->net->box_count;
	double longest = 0, seconds;

	for (unsigned home = 0; home < count; home++) {
		if (c->kind <= WAYS_TREE && home != c->root)
			continue;
		for (unsigned box = 0; box < count; box++) {
			/* The whole of a chain passes what the first on it does: from there the way is longest. */
			if (c->kind == WAYS_CHAIN && box != (home + 1) % count)
				continue;
			seconds = 2 * cost_way(c, box, home);
			longest = seconds > longest ? seconds : longest;
		}
	}
	return longest;
}

int cost_round(const struct cost_net *net, const struct cost_job *job, enum ways_kind kind, unsigned root,
	const uint16_t *home, struct cost *out, struct err *e)
{
	size_t pairs = (size_t)net->box_count * net->box_count;
	struct cost_count *c;

	if (net->box_count < 1 || net->box_count > WAYS_BOXES_MAX || root >= net->box_count)
		return err_set(e, -EINVAL, "box %u is the root of %u; allowed are 1 to %u boxes", root, net->box_count,
			WAYS_BOXES_MAX);
	c = calloc(1, sizeof(*c) + 2 * pairs * sizeof(uint64_t));
	if (!c)
		return err_set(e, -ENOMEM, "no memory to predict a round of %u boxes", net->box_count);
	c->net = net;
	c->job = job;
	c->kind = kind;
	c->root = root;
	c->home = home;
	c->lifts = (uint64_t *)(c + 1);
	c->results = c->lifts + pairs;
	cost_fill_table(c);
	c->efficiency = plan_wire_efficiency(
		PLAN_TCP, COST_MTU, PLAN_FRAME_BYTES, job->chunk_count ? (double)c->model / job->chunk_count : 1);
	for (unsigned from = 0; from < net->box_count; from++) {
		cost_add_workers(c, from);
		for (unsigned to = 0; to < net->box_count; to++)
			cost_add_lift(c, from, to);
	}
	*out = (struct cost){.busy_s = 0};
	cost_find_limit(c, out);
	out->fill_s = cost_fill(c);
	out->round_s = out->busy_s + out->lag_s + out->fill_s;
	free(c);
	return 0;
}

int cost_ways(const struct cost_net *net, const struct cost_job *job, unsigned root, struct cost out[WAYS_COUNT],
	struct err *e)
{
	struct ways_box by_rate[WAYS_BOXES_MAX];
	uint16_t *home = malloc((job->chunk_count + 1) * sizeof(*home));
	int rc = home ? 0 : err_set(e, -ENOMEM, "no memory for the homes of %u chunks", job->chunk_count);

	for (unsigned i = 0; i < net->box_count && i < WAYS_BOXES_MAX; i++) {
		by_rate[i] = net->boxes[i];
		by_rate[i].rate_bytes_s = cost_home_rate(net->racks, &net->boxes[i]);
	}
	for (unsigned kind = 0; rc == 0 && kind < WAYS_COUNT; kind++) {
		rc = ways_homes((enum ways_kind)kind, by_rate, net->box_count, root, job->chunk_bytes, job->chunk_count,
			home, e);
		if (rc == 0)
			rc = cost_round(net, job, (enum ways_kind)kind, root, home, &out[kind], e);
	}
	free(home);
	return rc;
}

/* ---- which, and why ---- */

enum ways_kind cost_choose(const struct cost costs[WAYS_COUNT], enum ways_kind first)
{
	double best = costs[first].round_s;

	for (unsigned kind = first; kind < WAYS_COUNT; kind++)
		best = costs[kind].round_s < best ? costs[kind].round_s : best;
	for (unsigned kind = first; kind < WAYS_COUNT; kind++)
		if (costs[kind].round_s <= best * (1 + COST_SAME))
			return (enum ways_kind)kind;
	return first;
}

const char *cost_ms(double seconds, char out[COST_MS_BYTES])
{
	snprintf(out, COST_MS_BYTES, seconds >= 1 ? "%.0f" : "%.4g", seconds * 1e3);
	return out;
}

static void cost_write_box(const struct cost_net *net, unsigned box, char *out, size_t bytes)
{
	if (net->racks && net->box_of[box] != RACKS_NONE)
		snprintf(out, bytes, "%s", net->racks->boxes[net->box_of[box]].name);
	else if (net->names)
		snprintf(out, bytes, "%s%s", net->names[box], net->racks ? " (not in the rack file)" : "");
	else
		snprintf(out, bytes, "box %u", box);
}

void cost_write_limit(const struct cost_net *net, const struct cost *cost, char *out, size_t bytes)
{
	bool uplink = cost->limit == COST_UPLINK;
	char box[COST_LIMIT_BYTES];

	if (uplink && cost_has_rack(net, cost->index)) {
		snprintf(out, bytes, "the uplink of %s", net->racks->racks[cost->index].name);
	} else if (cost->limit == COST_HOST) {
		snprintf(out, bytes, "the link of host %s", net->racks->hosts[cost->index].name);
	} else {
		cost_write_box(net, uplink ? cost->index - cost_no_rack(0) : cost->index, box, sizeof(box));
		snprintf(out, bytes, "the %s of %s", uplink ? "uplink" : "link", box);
	}
}

/* Than another, as it would be told. */
static bool cost_is_slower(const struct cost costs[WAYS_COUNT], enum ways_kind first, enum ways_kind choice)
{
	char mine[COST_MS_BYTES], other[COST_MS_BYTES];
	bool slower = false;

	cost_ms(costs[choice].round_s, mine);
	for (unsigned kind = first; kind < WAYS_COUNT; kind++)
		slower = slower || (costs[kind].round_s < costs[choice].round_s &&
					   strcmp(cost_ms(costs[kind].round_s, other), mine) != 0);
	return slower;
}

void cost_write_choice(
	const struct cost_net *net, const struct cost costs[WAYS_COUNT], enum ways_kind first, char *out, size_t bytes)
{
	enum ways_kind choice = cost_choose(costs, first);
	char limit[COST_LIMIT_BYTES], other[COST_LIMIT_BYTES], ms[COST_MS_BYTES];
	size_t at = (size_t)snprintf(
		out, bytes, "%s: %s ms a round beside", ways_name(choice), cost_ms(costs[choice].round_s, ms));
	unsigned told = 0;

	cost_write_limit(net, &costs[choice], limit, sizeof(limit));
	for (unsigned kind = first; kind < WAYS_COUNT; kind++) {
		bool same;

		if (kind == choice || at >= bytes)
			continue;
		cost_write_limit(net, &costs[kind], other, sizeof(other));
		same = strcmp(limit, other) == 0;
		at += (size_t)snprintf(out + at, bytes - at, "%s %s %s%s%s%s", told++ ? "," : "",
			ways_name((enum ways_kind)kind), cost_ms(costs[kind].round_s, ms), same ? "" : " (",
			same ? "" : other, same ? "" : ")");
	}
	if (at < bytes && cost_is_slower(costs, first, choice))
		at += (size_t)snprintf(out + at, bytes - at,
			" (less than %.0f %% is no difference, and the simpler wins)", COST_SAME * 100);
	if (at < bytes)
		snprintf(out + at, bytes - at, "; %s limits", limit);
}
