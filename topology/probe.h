/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Probe: from what was measured between hosts, which of them share a rack, and the rates of links. Pure; any thread.
 *
 * Three matrices tell racks apart, each by a gap between neighbours among its sorted values, which splits all pairs
 * into near and far ones. A gap counts when it is wide enough (as a ratio), and when near pairs make groups: each
 * member is near to all of its group and far from all others; of several the widest counts. The matrices are asked in
 * this order, and the first that tells is taken; one that tells something else is said. together: rates when all send
 * at once, each to one other, the least that was seen of a pair. Pairs of one switch keep their rate, others share an
 * uplink that is oversubscribed. alone:    rates of one pair at a time, relative to what both its ends do with anybody.
 *   latency:  one way.
 */
#ifndef PHUB_TOPOLOGY_PROBE_H
#define PHUB_TOPOLOGY_PROBE_H

#include <stdbool.h>

#define PROBE_MEMBERS_MAX 64u

#define PROBE_RATE_GAP    1.3  /* of rates, near to far */
#define PROBE_LATENCY_GAP 1.5  /* of latencies, far to near... */
#define PROBE_LATENCY_S   3e-6 /* ...and so many seconds: less is noise of schedulers */

enum probe_by { PROBE_BY_TOGETHER, PROBE_BY_ALONE, PROBE_BY_LATENCY, PROBE_BY_COUNT };

/* [from][to]; 0: not measured. Rates in bytes a second. */
struct probe_facts {
	unsigned count;
	double latency_s[PROBE_MEMBERS_MAX][PROBE_MEMBERS_MAX];
	double alone[PROBE_MEMBERS_MAX][PROBE_MEMBERS_MAX];
	double together[PROBE_MEMBERS_MAX][PROBE_MEMBERS_MAX];
};

struct probe_split {
	bool told;
	bool mixed;          /* there is a gap, but near pairs make no groups */
	double gap;          /* the widest: a ratio, 1 or more */
	double near, far;    /* the values on both sides of it */
	unsigned rack_count; /* 1 unless told */
	unsigned rack[PROBE_MEMBERS_MAX];
};

/* What one matrix says. */
void probe_split(const struct probe_facts *f, enum probe_by by, struct probe_split *out);

/* Asks all three; the one to take, or -1: nothing separates them, and they look like one rack. */
int probe_choose(const struct probe_split splits[PROBE_BY_COUNT]);

/* Do both say the same groups? They number racks in the order of their first members. */
bool probe_same(const struct probe_split *a, const struct probe_split *b, unsigned count);

const char *probe_by_name(enum probe_by by);

/* The best that the member does with anybody, alone: out of it and into it. */
double probe_out(const struct probe_facts *f, unsigned member);
double probe_in(const struct probe_facts *f, unsigned member);

struct probe_spread {
	unsigned count;
	double least, median, most;
};

/* Of the latencies of all pairs within a rack; or, with rack -1, of those between racks. */
struct probe_spread probe_latency(const struct probe_facts *f, const unsigned *rack_of, int rack);

#endif
