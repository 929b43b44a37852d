/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who holds which samples: a partition of a labelled set over sites, and the order in which a site goes through its
 * own. Every sample is at exactly one site. All of it follows from the seed. No I/O; any thread, an object by one at a
 * time.
 */
#ifndef TESTS_BENCH_SKEW_PARTITION_H
#define TESTS_BENCH_SKEW_PARTITION_H

#include <stdint.h>

#include "phub/base/err.h"
#include "tests/bench/skew_random.h"

enum { SKEW_SITES_MAX = 64 };

/*
 * By label (the non-IID data quagmire, section 3): of the samples in random order, `percent` % go by their class, c to
 * site c mod sites, and the rest round-robin. Where `sizes` are given the former stand in a row by site and class and
 * are cut where a site has its share, so that a large site gets some of the next one's classes.
 *
 * By Dirichlet (Hsu et al., 2019): each class is dealt out by proportions drawn from Dirichlet(alpha), alpha times
 * sites times its share of `sizes` for a site.
 */
enum skew_kind { SKEW_BY_LABEL, SKEW_BY_DIRICHLET };

struct skew_partition_config {
	unsigned sites; /* 1 .. SKEW_SITES_MAX */
	enum skew_kind kind;
	double percent;      /* by label: 0 .. 100 */
	double alpha;        /* by Dirichlet: above 0, at most 1e6 */
	const double *sizes; /* of each site, in any unit, none below 0; NULL: all alike */
	uint64_t seed;
};

struct skew_partition {
	unsigned sites;
	uint32_t *samples; /* by site; in a site, as they were dealt */
	uint32_t
		begin[SKEW_SITES_MAX + 1]; /* those of site k: from begin[k] up to begin[k + 1]; a site may have none */
};

/*
 * 0, and `partition` is the caller's to end by skew_partition_fini(). -EINVAL with the reason in `e`: a value that is
 * not within its limits above (NaN neither), or sizes that sum to nothing; -ENOMEM.
 */
int skew_partition_init(struct skew_partition *partition, const struct skew_partition_config *config,
	const uint8_t *labels, uint32_t count, struct err *e);

void skew_partition_fini(struct skew_partition *partition);

uint32_t skew_partition_count(const struct skew_partition *partition, unsigned site);

/* A site's way through its samples: epoch after epoch, each in a new order; a batch may reach into the next epoch. */
struct skew_feed {
	struct skew_random random;
	uint32_t *order;
	uint32_t count, at;
};

/*
 * Starts at the samples of `site`, of which it keeps a copy. 0, and `feed` is the caller's to end by skew_feed_fini();
 * -ENOMEM. `seed` and `site` decide the order.
 */
int skew_feed_init(struct skew_feed *feed, const struct skew_partition *partition, unsigned site, uint64_t seed);

/* Goes on at the samples of `site` in another partition: drift. 0; -ENOMEM, and it goes on with those that it has. */
int skew_feed_move(struct skew_feed *feed, const struct skew_partition *partition, unsigned site);

void skew_feed_fini(struct skew_feed *feed);

/* The next `count` samples into `out`. Returns count, or 0 for a site without samples. */
unsigned skew_feed_next(struct skew_feed *feed, unsigned count, uint32_t *out);

#endif
