/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token buckets. A bucket is counted in parts of a token, of which a nanosecond brings `rate`: no division, nothing
 * lost to rounding.
 */
#include "transport/rate.h"

#include <stdlib.h>
#include <string.h>

#include "transport/proof.h"

#define RATE_TOKEN 1000000000ull /* parts */

enum { RATE_SOURCE_BYTES = 16, RATE_PREFIX_BYTES = 8 };

struct rate_bucket {
	uint64_t parts, at_ns;
};

struct rate_source {
	bool used;
	uint8_t key[RATE_SOURCE_BYTES];
	struct rate_bucket bucket;
};

struct rate {
	uint64_t all_rate, source_rate;
	struct rate_bucket all;
	uint64_t salt; /* nobody outside knows which sources share a set */
	struct rate_source sources[RATE_SETS][RATE_WAYS];
};

static uint64_t rate_full(uint64_t rate)
{
	return rate * RATE_BURST_S * RATE_TOKEN;
}

struct rate *rate_create(uint64_t all, uint64_t source)
{
	struct rate *r = calloc(1, sizeof(*r));
	uint8_t nonce[PROOF_NONCE];

	if (!r || proof_nonce(nonce) < 0) {
		free(r);
		return NULL;
	}
	memcpy(&r->salt, nonce, sizeof(r->salt));
	r->all_rate = all;
	r->source_rate = source;
	r->all.parts = rate_full(all);
	return r;
}

void rate_destroy(struct rate *r)
{
	free(r);
}

static void rate_fill(struct rate_bucket *b, uint64_t rate, uint64_t now_ns)
{
	uint64_t past = now_ns - b->at_ns, full = rate_full(rate);

	b->at_ns = now_ns;
	/* The first test keeps the product from wrapping: nothing is left to be filled after a burst's time. */
	if (past >= RATE_BURST_S * RATE_TOKEN || b->parts + past * rate > full)
		b->parts = full;
	else
		b->parts += past * rate;
}

/* An IPv4 address as it is; of an IPv6 one its network, for a host has as many addresses there as it likes. */
static void rate_key(const uint8_t *source, uint8_t key[RATE_SOURCE_BYTES])
{
	static const uint8_t four[12] = {[10] = 0xff, [11] = 0xff};

	memcpy(key, source, RATE_SOURCE_BYTES);
	if (memcmp(source, four, sizeof(four)) != 0)
		memset(key + RATE_PREFIX_BYTES, 0, RATE_SOURCE_BYTES - RATE_PREFIX_BYTES);
}

static struct rate_source *rate_set(struct rate *r, const uint8_t key[RATE_SOURCE_BYTES])
{
	uint64_t hash = r->salt;

	for (unsigned i = 0; i < RATE_SOURCE_BYTES; i++)
		hash = (hash ^ key[i]) * 0x100000001b3u;
	return r->sources[(hash ^ hash >> 32) % RATE_SETS];
}

static struct rate_source *rate_find(struct rate *r, const uint8_t key[RATE_SOURCE_BYTES])
{
	struct rate_source *set = rate_set(r, key);

	for (unsigned i = 0; i < RATE_WAYS; i++)
		if (set[i].used && memcmp(set[i].key, key, RATE_SOURCE_BYTES) == 0)
			return &set[i];
	return NULL;
}

/* A bucket for a new source: a free one, or that of the source that has least to lose. */
static struct rate_source *rate_claim(struct rate *r, const uint8_t key[RATE_SOURCE_BYTES], uint64_t now_ns)
{
	struct rate_source *set = rate_set(r, key), *best = &set[0];

	for (unsigned i = 0; i < RATE_WAYS && best->used; i++) {
		if (set[i].used)
			rate_fill(&set[i].bucket, r->source_rate, now_ns);
		if (!set[i].used || set[i].bucket.parts > best->bucket.parts)
			best = &set[i];
	}
	best->used = true;
	memcpy(best->key, key, RATE_SOURCE_BYTES);
	best->bucket = (struct rate_bucket){.parts = rate_full(r->source_rate), .at_ns = now_ns};
	return best;
}

bool rate_take(struct rate *r, const uint8_t *source, uint64_t now_ns)
{
	struct rate_source *s = NULL;
	uint8_t key[RATE_SOURCE_BYTES];

	if (r->source_rate && source) {
		rate_key(source, key);
		s = rate_find(r, key);
		s = s ? s : rate_claim(r, key, now_ns);
		rate_fill(&s->bucket, r->source_rate, now_ns);
		if (s->bucket.parts < RATE_TOKEN)
			return false; /* and it takes nothing from the others */
	}
	if (r->all_rate) {
		rate_fill(&r->all, r->all_rate, now_ns);
		if (r->all.parts < RATE_TOKEN)
			return false;
		r->all.parts -= RATE_TOKEN;
	}
	if (s)
		s->bucket.parts -= RATE_TOKEN;
	return true;
}

void rate_give_back(struct rate *r, const uint8_t *source)
{
	struct rate_source *s = NULL;
	uint8_t key[RATE_SOURCE_BYTES];

	if (r->all_rate && r->all.parts + RATE_TOKEN <= rate_full(r->all_rate))
		r->all.parts += RATE_TOKEN;
	if (r->source_rate && source) {
		rate_key(source, key);
		s = rate_find(r, key);
	}
	if (s && s->bucket.parts + RATE_TOKEN <= rate_full(r->source_rate))
		s->bucket.parts += RATE_TOKEN;
}
