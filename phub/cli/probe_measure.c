/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is measured, run by run: the probes on both ends do it, and we ask them. A run is a set of flows at the same
 * time.
 */
#include "phub/cli/probe.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "phub/base/clock.h"

enum {
	MEASURE_PINGS = 300,
	MEASURE_ORDERS = 3, /* of members, each of whose shifts all send in at once */
	MEASURE_STREAMS_MAX = 4,
};
#define MEASURE_ORDER_SEED 1u
#define MEASURE_MORE       1.05 /* by which more streams must be faster to be taken */

static uint64_t measure_deadline(const struct probe *p)
{
	return clock_now_ns() + p->warm_ns + p->measure_ns + 3 * PROBE_ANSWER_S * NS_PER_S;
}

static int measure_lost(const struct probe *p, unsigned member, int rc, struct err *e)
{
	return err_set(e, rc, "the probe at %s is gone: %s", p->members[member].name, strerror(-rc));
}

int probe_open(struct probe *p, struct err *e)
{
	struct probe_message hello = {.type = PROBE_CONTROL};

	for (unsigned i = 0; i < p->count; i++)
		p->members[i].fd = -1;
	for (unsigned i = 0; i < p->count; i++) {
		struct probe_member *m = &p->members[i];
		uint64_t deadline_ns = clock_now_ns() + PROBE_ANSWER_S / 2 * NS_PER_S;
		int rc = probe_connect(m->host, p->port, &p->token, deadline_ns, &m->fd, e);

		if (rc < 0) {
			m->fd = -1;
			return rc;
		}
		rc = probe_send(m->fd, &hello, deadline_ns);
		if (rc < 0)
			return measure_lost(p, i, rc, e);
	}
	return 0;
}

void probe_close(struct probe *p, bool end)
{
	for (unsigned i = 0; i < p->count; i++) {
		struct probe_message m = {.type = PROBE_DONE};
		uint64_t deadline_ns = clock_now_ns() + NS_PER_S;

		if (p->members[i].fd < 0)
			continue;
		if (end && probe_send(p->members[i].fd, &m, deadline_ns) == 0)
			probe_receive(p->members[i].fd, &m, deadline_ns);
		close(p->members[i].fd);
		p->members[i].fd = -1;
	}
}

/* Waits for the member's answer to what it was asked about `to`. */
static int measure_answer(struct probe *p, unsigned from, unsigned to, struct probe_message *m, struct err *e)
{
	int rc = probe_receive(p->members[from].fd, m, measure_deadline(p));

	if (rc < 0)
		return measure_lost(p, from, rc, e);
	if (m->type == PROBE_FAILED)
		return err_set(e, -EIO, "%s to %s: %s; does the probe at %s run still?", p->members[from].name,
			p->members[to].name, m->host, p->members[to].host);
	return m->type == PROBE_RESULT ? 0 : measure_lost(p, from, -EPROTO, e);
}

static int measure_ask(struct probe *p, unsigned from, unsigned to, struct probe_message *m, struct err *e)
{
	int rc;

	m->port = p->port;
	snprintf(m->host, sizeof(m->host), "%s", p->members[to].host);
	rc = probe_send(p->members[from].fd, m, measure_deadline(p));
	return rc < 0 ? measure_lost(p, from, rc, e) : measure_answer(p, from, to, m, e);
}

/* A rate that no rack file has is none. */
static int measure_nothing(const struct probe *p, const char *from, const char *to, struct err *e)
{
	return err_set(e, -EIO,
		"nothing came from %s to %s in %.3g s, or less than 1 Kbit/s: see whether their link carries full "
		"packets, "
		"or measure for longer, by --seconds",
		from, to, (double)p->measure_ns / 1e9);
}

/* All flows at once. */
static int probe_measure_run(struct probe *p, struct probe_flow *flows, unsigned count, unsigned streams, struct err *e)
{
	struct probe_message go = {.type = PROBE_GO, .warm_ns = p->warm_ns, .measure_ns = p->measure_ns};
	bool goes[PROBE_MEMBERS_MAX] = {false};
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < count; i++) {
		struct probe_message m = {.type = PROBE_PREPARE, .count = streams};

		rc = measure_ask(p, flows[i].from, flows[i].to, &m, e);
		goes[flows[i].from] = true;
	}
	for (unsigned i = 0; rc == 0 && i < p->count; i++)
		if (goes[i] && (rc = probe_send(p->members[i].fd, &go, measure_deadline(p))) < 0)
			rc = measure_lost(p, i, rc, e);
	for (unsigned i = 0; rc == 0 && i < count; i++) {
		struct probe_message m;

		rc = measure_answer(p, flows[i].from, flows[i].to, &m, e);
		if (rc == 0)
			flows[i].rate = m.values[0] ? (double)m.values[0] : 1; /* starved, which is not unknown */
	}
	output_progress_update(&p->progress, ++p->runs_done, p->runs_due);
	return rc;
}

/* ---- alone ---- */

static int measure_latencies(struct probe *p, struct err *e)
{
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < p->count; i++)
		for (unsigned j = 0; rc == 0 && j < p->count; j++) {
			struct probe_message m = {.type = PROBE_LATENCY, .count = MEASURE_PINGS};

			if (i == j)
				continue;
			rc = measure_ask(p, i, j, &m, e);
			if (rc == 0)
				p->facts.latency_s[i][j] = (double)m.values[1] / 2e9;
		}
	return rc;
}

/* As many streams as fill the way of the first pair. */
static int measure_streams(struct probe *p, struct err *e)
{
	double best = 0;

	for (unsigned streams = 1; streams <= MEASURE_STREAMS_MAX; streams *= 2) {
		struct probe_flow flow = {.from = 0, .to = 1};
		int rc = probe_measure_run(p, &flow, 1, streams, e);

		if (rc < 0)
			return rc;
		if (flow.rate >= RACKS_RATE_MIN && flow.rate > best * MEASURE_MORE) {
			best = flow.rate;
			p->streams = streams;
		}
	}
	return p->streams ? 0 : measure_nothing(p, p->members[0].name, p->members[1].name, e);
}

static int measure_alone(struct probe *p, struct err *e)
{
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < p->count; i++)
		for (unsigned j = 0; rc == 0 && j < p->count; j++) {
			struct probe_flow flow = {.from = i, .to = j};

			if (i == j)
				continue;
			rc = probe_measure_run(p, &flow, 1, p->streams, e);
			p->facts.alone[i][j] = flow.rate;
			if (rc == 0 && flow.rate < RACKS_RATE_MIN)
				rc = measure_nothing(p, p->members[i].name, p->members[j].name, e);
		}
	return rc;
}

/* ---- together ---- */

/* Orders of all members; the first is that of the list. */
static void measure_order(unsigned *order, unsigned count, unsigned number)
{
	uint32_t state = MEASURE_ORDER_SEED + number;

	for (unsigned i = 0; i < count; i++)
		order[i] = i;
	for (unsigned i = count; number > 0 && i-- > 1;) {
		unsigned j, one = order[i];

		state = state * 1664525u + 1013904223u;
		j = (state >> 8) % (i + 1);
		order[i] = order[j];
		order[j] = one;
	}
}

/*
 * All send at once, each to the one that comes `shift` after it, for each shift of some orders: so each pair is seen
 * beside many others, and what it gets at least tells whether it shares an uplink with them.
 */
static int measure_together(struct probe *p, struct err *e)
{
	struct probe_flow flows[PROBE_MEMBERS_MAX];
	unsigned order[PROBE_MEMBERS_MAX];
	int rc = 0;

	for (unsigned number = 0; number < MEASURE_ORDERS; number++) {
		measure_order(order, p->count, number);
		for (unsigned shift = 1; rc == 0 && shift < p->count; shift++) {
			for (unsigned i = 0; i < p->count; i++)
				flows[i] = (struct probe_flow){.from = order[i], .to = order[(i + shift) % p->count]};
			rc = probe_measure_run(p, flows, p->count, p->streams, e);
			for (unsigned i = 0; rc == 0 && i < p->count; i++) {
				double *seen = &p->facts.together[flows[i].from][flows[i].to];

				if (*seen <= 0 || flows[i].rate < *seen)
					*seen = flows[i].rate;
			}
		}
	}
	return rc;
}

static int measure_sum(struct probe *p, struct probe_flow *flows, unsigned count, double *sum, struct err *e)
{
	unsigned streams = p->streams * count <= PROBE_STREAMS_MAX ? p->streams : 1;
	int rc = probe_measure_run(p, flows, count, streams, e);

	*sum = 0;
	for (unsigned i = 0; rc == 0 && i < count; i++)
		*sum += flows[i].rate;
	return rc;
}

/* From each to all others, and from all others to each: links that no single peer can fill. */
static int measure_fans(struct probe *p, struct err *e)
{
	struct probe_flow flows[PROBE_MEMBERS_MAX];
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < 2 * p->count; i++) {
		unsigned one = i / 2, count = 0;
		bool out = i % 2 == 0;

		for (unsigned other = 0; other < p->count; other++)
			if (other != one)
				flows[count++] =
					(struct probe_flow){.from = out ? one : other, .to = out ? other : one};
		rc = measure_sum(p, flows, count, out ? &p->members[one].fan_out : &p->members[one].fan_in, e);
	}
	return rc;
}

/* All of a rack to members of other racks, and back: enough flows that each on both sides has one. */
static int measure_uplink(struct probe *p, unsigned rack, bool out, double *sum, struct err *e)
{
	unsigned own[PROBE_MEMBERS_MAX], others[PROBE_MEMBERS_MAX], own_count = 0, other_count = 0, count;
	struct probe_flow flows[PROBE_MEMBERS_MAX];
	char name[RACKS_NAME_BYTES + 16];
	int rc;

	for (unsigned i = 0; i < p->count; i++) {
		if (p->rack[i] == rack)
			own[own_count++] = i;
		else
			others[other_count++] = i;
	}
	count = own_count > other_count ? own_count : other_count;
	for (unsigned i = 0; i < count; i++) {
		unsigned near = own[i % own_count], far = others[i % other_count];

		flows[i] = (struct probe_flow){.from = out ? near : far, .to = out ? far : near};
	}
	rc = measure_sum(p, flows, count, sum, e);
	if (rc == 0 && *sum < RACKS_RATE_MIN) {
		snprintf(name, sizeof(name), "the rack of %s", p->members[own[0]].name);
		rc = measure_nothing(p, out ? name : "the others", out ? "the others" : name, e);
	}
	return rc;
}

static void measure_split(struct probe *p)
{
	for (int by = 0; by < PROBE_BY_COUNT; by++)
		probe_split(&p->facts, (enum probe_by)by, &p->splits[by]);
	p->by = probe_choose(p->splits);
	if (p->given)
		return;
	p->rack_count = 1;
	if (p->by >= 0) {
		p->rack_count = p->splits[p->by].rack_count;
		memcpy(p->rack, p->splits[p->by].rack, sizeof(p->rack));
	}
}

uint64_t probe_runs(const struct probe *p)
{
	return (p->streams ? 0 : 3) + (uint64_t)p->count * (p->count - 1) + MEASURE_ORDERS * (p->count - 1) +
	       2 * p->count + 2 * p->rack_count;
}

int probe_measure(struct probe *p, struct err *e)
{
	int rc;

	p->runs_due = probe_runs(p);
	p->facts.count = p->count;
	p->progress.label = "probe";
	rc = measure_latencies(p, e);
	if (rc == 0 && !p->streams)
		rc = measure_streams(p, e);
	if (rc == 0)
		rc = measure_alone(p, e);
	if (rc == 0)
		rc = measure_together(p, e);
	if (rc == 0)
		rc = measure_fans(p, e);
	if (rc == 0)
		measure_split(p);
	for (unsigned i = 0; rc == 0 && p->rack_count > 1 && i < 2 * p->rack_count; i++)
		rc = measure_uplink(p, i / 2, i % 2 == 0, i % 2 == 0 ? &p->out[i / 2] : &p->in[i / 2], e);
	output_progress_end(&p->progress);
	return rc;
}
