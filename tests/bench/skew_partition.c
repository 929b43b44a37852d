/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dealing: `home` says for each sample, in the order of a shuffle, to which site it goes; then they are sorted by site,
 * in that order.
 */
#include "tests/bench/skew_partition.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/skew_data.h"

struct deal {
	const struct skew_partition_config *config;
	const uint8_t *labels;
	uint32_t count;
	uint32_t *order;               /* the samples, shuffled */
	uint8_t *home;                 /* of order[i] */
	double shares[SKEW_SITES_MAX]; /* sum to 1 */
	struct skew_random random;
};

/* So many of `count` for each site: whole numbers that sum to it, each within one of its share (largest remainders). */
static void deal_quotas(const double *shares, unsigned sites, uint32_t count, uint32_t *quotas)
{
	double rests[SKEW_SITES_MAX];
	uint32_t left = count;

	for (unsigned k = 0; k < sites; k++) {
		double exact = shares[k] * count;
		uint32_t whole = (uint32_t)exact;

		quotas[k] = whole < left ? whole : left;
		rests[k] = exact - quotas[k];
		left -= quotas[k];
	}
	while (left > 0) {
		unsigned most = 0;

		for (unsigned k = 1; k < sites; k++)
			if (rests[k] > rests[most])
				most = k;
		quotas[most]++;
		rests[most] -= 1;
		left--;
	}
}

/* ---- by label ---- */

/* The first `by_label` of the order, each to the site of its class. */
static void deal_classes(struct deal *d, uint32_t by_label)
{
	for (uint32_t i = 0; i < by_label; i++)
		d->home[i] = (uint8_t)(d->labels[d->order[i]] % d->config->sites);
}

/* To the first site from *at on that has room left. */
static void deal_to(struct deal *d, uint32_t i, uint32_t *quotas, unsigned *at)
{
	while (quotas[*at] == 0)
		++*at;
	d->home[i] = (uint8_t)*at;
	quotas[*at]--;
}

/* The same in a row by site and class, cut by quotas. */
static void deal_classes_cut(struct deal *d, uint32_t by_label, uint32_t *quotas)
{
	const unsigned sites = d->config->sites;
	unsigned at = 0;

	for (unsigned site = 0; site < sites; site++) {
		for (unsigned class = site; class < SKEW_CLASSES; class += sites) {
			for (uint32_t i = 0; i < by_label; i++) {
				if (d->labels[d->order[i]] == class)
					deal_to(d, i, quotas, &at);
			}
		}
	}
}

/* Those from `begin` on: round-robin, or each to the site that is furthest behind its share. */
static void deal_rest(struct deal *d, uint32_t begin)
{
	const unsigned sites = d->config->sites;
	double got[SKEW_SITES_MAX] = {0};

	for (uint32_t i = begin; i < d->count; i++) {
		unsigned to = (i - begin) % sites;

		if (d->config->sizes) {
			const double dealt = i - begin + 1;

			to = 0;
			for (unsigned k = 1; k < sites; k++)
				if (d->shares[k] * dealt - got[k] > d->shares[to] * dealt - got[to])
					to = k;
		}
		got[to]++;
		d->home[i] = (uint8_t)to;
	}
}

static void deal_by_label(struct deal *d)
{
	const uint32_t by_label = (uint32_t)(d->count * d->config->percent / 100 + 0.5);
	uint32_t quotas[SKEW_SITES_MAX];

	if (d->config->sizes) {
		deal_quotas(d->shares, d->config->sites, by_label, quotas);
		deal_classes_cut(d, by_label, quotas);
	} else {
		deal_classes(d, by_label);
	}
	deal_rest(d, by_label);
}

/* ---- by Dirichlet ---- */

/*
 * Proportions of one class. For a small alpha all draws may be too small for a double: then one site, drawn by its
 * share, has them all, which is the limit.
 */
static void deal_proportions(struct deal *d, double *proportions)
{
	const unsigned sites = d->config->sites;
	double sum = 0, at;

	for (unsigned k = 0; k < sites; k++) {
		double shape = d->config->alpha * sites * d->shares[k];

		proportions[k] = shape > 0 ? skew_random_gamma(&d->random, shape) : 0;
		sum += proportions[k];
	}
	if (sum > 0) {
		for (unsigned k = 0; k < sites; k++)
			proportions[k] /= sum;
		return;
	}
	at = skew_random_unit(&d->random);
	for (unsigned k = 0; k < sites; k++) {
		proportions[k] = at >= 0 && at < d->shares[k];
		at -= d->shares[k];
	}
}

static void deal_by_dirichlet(struct deal *d)
{
	for (unsigned class = 0; class < SKEW_CLASSES; class ++) {
		double proportions[SKEW_SITES_MAX];
		uint32_t quotas[SKEW_SITES_MAX], members = 0;
		unsigned at = 0;

		for (uint32_t i = 0; i < d->count; i++)
			members += d->labels[i] == class;
		deal_proportions(d, proportions);
		deal_quotas(proportions, d->config->sites, members, quotas);
		for (uint32_t i = 0; i < d->count; i++) {
			if (d->labels[d->order[i]] == class)
				deal_to(d, i, quotas, &at);
		}
	}
}

/* ---- a partition ---- */

static int partition_check(
	const struct skew_partition_config *config, const uint8_t *labels, uint32_t count, struct err *e)
{
	double sum = 0;

	if (config->sites < 1 || config->sites > SKEW_SITES_MAX)
		return err_set(e, -EINVAL, "%u sites: use 1 to %d", config->sites, SKEW_SITES_MAX);
	if (config->kind == SKEW_BY_LABEL && !(config->percent >= 0 && config->percent <= 100))
		return err_set(e, -EINVAL, "a skew of %g %%: use 0 to 100", config->percent);
	if (config->kind == SKEW_BY_DIRICHLET && !(config->alpha > 0 && config->alpha <= 1e6))
		return err_set(e, -EINVAL, "an alpha of %g: use more than 0 and at most 1e6", config->alpha);
	for (unsigned k = 0; config->sizes && k < config->sites; k++) {
		if (!(config->sizes[k] >= 0 && isfinite(config->sizes[k])))
			return err_set(e, -EINVAL, "site %u has a size of %g: use 0 or more", k, config->sizes[k]);
		sum += config->sizes[k];
	}
	if (config->sizes && !(sum > 0 && isfinite(sum)))
		return err_set(e, -EINVAL, "the sizes sum to %g: at least one must be above 0", sum);
	for (uint32_t i = 0; i < count; i++)
		if (labels[i] >= SKEW_CLASSES)
			return err_set(e, -EINVAL, "sample %u is of class %u: they go to 9", i, labels[i]);
	return 0;
}

static void partition_shares(const struct skew_partition_config *config, double *shares)
{
	double sum = 0;

	for (unsigned k = 0; config->sizes && k < config->sites; k++)
		sum += config->sizes[k];
	for (unsigned k = 0; k < config->sites; k++)
		shares[k] = config->sizes ? config->sizes[k] / sum : 1.0 / config->sites;
}

/* Sorted by site; those of a site stay in order. */
static void partition_sort(struct skew_partition *partition, const struct deal *d)
{
	uint32_t at[SKEW_SITES_MAX];

	memset(partition->begin, 0, sizeof(partition->begin));
	for (uint32_t i = 0; i < d->count; i++)
		partition->begin[d->home[i] + 1]++;
	for (unsigned k = 0; k < partition->sites; k++) {
		partition->begin[k + 1] += partition->begin[k];
		at[k] = partition->begin[k];
	}
	for (uint32_t i = 0; i < d->count; i++)
		partition->samples[at[d->home[i]]++] = d->order[i];
}

int skew_partition_init(struct skew_partition *partition, const struct skew_partition_config *config,
	const uint8_t *labels, uint32_t count, struct err *e)
{
	struct deal d = {.config = config, .labels = labels, .count = count};
	struct skew_partition made = {.sites = config->sites};
	int rc = partition_check(config, labels, count, e);

	if (rc < 0)
		return rc;
	d.order = calloc(count + 1ul, sizeof(*d.order)); /* never of no bytes */
	d.home = calloc(count + 1ul, sizeof(*d.home));
	made.samples = calloc(count + 1ul, sizeof(*made.samples));
	if (!d.order || !d.home || !made.samples) {
		rc = err_set(e, -ENOMEM, "no memory for a partition of %u samples", count);
		skew_partition_fini(&made);
		goto out;
	}
	partition_shares(config, d.shares);
	skew_random_init(&d.random, config->seed, SKEW_PARTITION, 0);
	for (uint32_t i = 0; i < count; i++)
		d.order[i] = i;
	skew_random_shuffle(&d.random, d.order, count);
	if (config->kind == SKEW_BY_LABEL)
		deal_by_label(&d);
	else
		deal_by_dirichlet(&d);
	partition_sort(&made, &d);
	*partition = made;
out:
	free(d.order);
	free(d.home);
	return rc;
}

void skew_partition_fini(struct skew_partition *partition)
{
	free(partition->samples);
	*partition = (struct skew_partition){0};
}

uint32_t skew_partition_count(const struct skew_partition *partition, unsigned site)
{
	return partition->begin[site + 1] - partition->begin[site];
}

/* ---- a feed ---- */

int skew_feed_init(struct skew_feed *feed, const struct skew_partition *partition, unsigned site, uint64_t seed)
{
	*feed = (struct skew_feed){0};
	skew_random_init(&feed->random, seed, SKEW_FEED, site);
	return skew_feed_move(feed, partition, site);
}

int skew_feed_move(struct skew_feed *feed, const struct skew_partition *partition, unsigned site)
{
	const uint32_t count = skew_partition_count(partition, site);
	uint32_t *order = calloc(count + 1ul, sizeof(*order));

	if (!order)
		return -ENOMEM;
	memcpy(order, partition->samples + partition->begin[site], count * sizeof(*order));
	free(feed->order);
	feed->order = order;
	feed->count = feed->at = count; /* an epoch that is over: the next batch begins a new one */
	return 0;
}

void skew_feed_fini(struct skew_feed *feed)
{
	free(feed->order);
	*feed = (struct skew_feed){0};
}

unsigned skew_feed_next(struct skew_feed *feed, unsigned count, uint32_t *out)
{
	if (feed->count == 0)
		return 0;
	for (unsigned i = 0; i < count; i++) {
		if (feed->at == feed->count) {
			skew_random_shuffle(&feed->random, feed->order, feed->count);
			feed->at = 0;
		}
		out[i] = feed->order[feed->at++];
	}
	return count;
}
