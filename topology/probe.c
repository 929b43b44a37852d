/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Racks from a matrix: the widest gap among its sorted values, and whether the near pairs make groups.
 */
#include "topology/probe.h"

#include <stdlib.h>
#include <string.h>

#define PROBE_PAIRS_MAX (PROBE_MEMBERS_MAX * (PROBE_MEMBERS_MAX - 1) / 2)

static double probe_least(double a, double b)
{
	return a < b ? a : b;
}

static double probe_best(const struct probe_facts *f, unsigned member, bool out)
{
	double best = 0;

	for (unsigned i = 0; i < f->count; i++) {
		double rate = i == member ? 0 : out ? f->alone[member][i] : f->alone[i][member];

		best = rate > best ? rate : best;
	}
	return best;
}

double probe_out(const struct probe_facts *f, unsigned member)
{
	return probe_best(f, member, true);
}

double probe_in(const struct probe_facts *f, unsigned member)
{
	return probe_best(f, member, false);
}

/* A rate, relative to what its ends do with anybody: a slow host is as near to its rack as others. */
static double probe_relative(const struct probe_facts *f, double rate, unsigned from, unsigned to)
{
	double best = probe_least(probe_out(f, from), probe_in(f, to));

	return best > 0 ? rate / best : 0;
}

/* How far the two are, larger is farther; 0: not measured. Of both directions, the worse rate, the better latency. */
static double probe_distance(const struct probe_facts *f, enum probe_by by, unsigned a, unsigned b)
{
	const double(*m)[PROBE_MEMBERS_MAX] = by == PROBE_BY_TOGETHER ? f->together : f->alone;
	double rate;

	if (by == PROBE_BY_LATENCY) {
		double there = f->latency_s[a][b], back = f->latency_s[b][a];

		return there > 0 && back > 0 ? probe_least(there, back) : there > 0 ? there : back;
	}
	if (m[a][b] <= 0 || m[b][a] <= 0)
		return 0;
	rate = probe_least(probe_relative(f, m[a][b], a, b), probe_relative(f, m[b][a], b, a));
	return rate > 0 ? 1 / rate : 0;
}

static int probe_compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Racks, if pairs up to this distance are near: false where that makes no groups. */
static bool probe_group(const struct probe_facts *f, enum probe_by by, double near, struct probe_split *s)
{
	unsigned racks = 0;

	for (unsigned i = 0; i < f->count; i++) {
		unsigned first = 0;

		while (first < i && probe_distance(f, by, first, i) > near)
			first++;
		s->rack[i] = first < i ? s->rack[first] : racks++;
	}
	for (unsigned i = 0; i < f->count; i++)
		for (unsigned j = 0; j < i; j++)
			if ((s->rack[i] == s->rack[j]) != (probe_distance(f, by, i, j) <= near))
				return false;
	s->rack_count = racks;
	return true;
}

/* Of the gaps that are wide enough and make groups the widest. */
static void probe_find_gap(
	const struct probe_facts *f, enum probe_by by, const double *values, unsigned count, struct probe_split *out)
{
	static const double least[] = {PROBE_RATE_GAP, PROBE_RATE_GAP, PROBE_LATENCY_GAP};

	for (unsigned i = 1; i < count; i++) {
		double gap = values[i] / values[i - 1];
		struct probe_split found = {
			.told = true, .gap = gap, .near = values[i - 1], .far = values[i], .rack_count = 1};

		if (gap <= out->gap && out->told)
			continue;
		found.told = gap >= least[by] && (by != PROBE_BY_LATENCY || found.far - found.near >= PROBE_LATENCY_S);
		found.mixed = found.told && !probe_group(f, by, found.near, &found);
		if (found.mixed || !found.told) {
			memset(found.rack, 0, sizeof(found.rack));
			found.told = false;
		}
		if (found.told || (!out->told && gap > out->gap))
			*out = found;
	}
}

void probe_split(const struct probe_facts *f, enum probe_by by, struct probe_split *out)
{
	double values[PROBE_PAIRS_MAX];
	unsigned count = 0;

	*out = (struct probe_split){.gap = 1, .rack_count = 1};
	for (unsigned i = 0; i < f->count; i++)
		for (unsigned j = 0; j < i; j++) {
			values[count] = probe_distance(f, by, i, j);
			if (values[count++] <= 0)
				return; /* not all are known */
		}
	if (count < 2)
		return;
	qsort(values, count, sizeof(values[0]), probe_compare);
	probe_find_gap(f, by, values, count, out);
}

int probe_choose(const struct probe_split splits[PROBE_BY_COUNT])
{
	for (int by = 0; by < PROBE_BY_COUNT; by++)
		if (splits[by].told)
			return by;
	return -1;
}

bool probe_same(const struct probe_split *a, const struct probe_split *b, unsigned count)
{
	return memcmp(a->rack, b->rack, count * sizeof(a->rack[0])) == 0;
}

const char *probe_by_name(enum probe_by by)
{
	static const char *const names[] = {"rates together", "rates alone", "latency"};

	return names[by];
}

struct probe_spread probe_latency(const struct probe_facts *f, const unsigned *rack_of, int rack)
{
	double values[PROBE_PAIRS_MAX];
	struct probe_spread s = {.count = 0};

	for (unsigned i = 0; i < f->count; i++)
		for (unsigned j = 0; j < i; j++) {
			bool within = rack_of[i] == rack_of[j] && (int)rack_of[i] == rack;
			double value = probe_distance(f, PROBE_BY_LATENCY, i, j);

			if (value > 0 && (rack < 0 ? rack_of[i] != rack_of[j] : within))
				values[s.count++] = value;
		}
	if (s.count == 0)
		return s;
	qsort(values, s.count, sizeof(values[0]), probe_compare);
	s.least = values[0];
	s.median = values[s.count / 2];
	s.most = values[s.count - 1];
	return s;
}
