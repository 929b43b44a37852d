/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: a site's state that somebody made up. The input is written over one that such a site has saved, and its sizes
 * and checksums are made right, or not, as it says, so that what lies behind them is reached. Whatever it is: a state
 * that is refused leaves the site as it was; with one that is loaded it goes on through steps, exchanges and windows,
 * has a theta that it can have, and what it saves then is loaded again.
 *
 *      1 byte    1, 2 the algorithm; 4, 8 the scout: none, hill, stochastic, scout+; 16 a copy of its model is kept;
 *              32 it has shadows
 *      1 byte    1 what is compared, and the whole's checksum, are right; 2 so is the scout's; 4 that of tensors
 *      then, again and again:
 *      2 bytes   where
 *      1 byte    how many
 *      so many   are there
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/handle.h"
#include "client/scout/course.h"
#include "client/scout/options.h"
#include "client/scout/site_saved.h"
#include "phub/base/crc.h"

enum {
	FLAG_HEAD = 1,
	FLAG_SCOUT = 2,
	FLAG_TENSORS = 4,
	FLAG_KEPT = 16,
	FLAG_SHADOWS = 32,
	ELEMENTS = 8,
	TENSORS = 2,
	WORLD = 3,
	RANK = 1,
	STEPS = 30,
	PERIOD = 4,
	/* As client/scout/site_saved.c has them: what is compared, its magic, version and bytes, and from where on it
	 * is the state's own; a tensor. */
	TERMS_BYTES = 184,
	TERMS_OWN = 152,
	TERMS_KEPT = 176,
	TERMS_SHADOWS = 180,
	ARRAY_BYTES = TENSORS * ELEMENTS * 4,
	TENSOR_BYTES = 16,
	STATE_MAX = 1 << 16,
};

struct fuzz {
	struct phub phub;
	struct phub_site site;
	struct site_tensor tensors[TENSORS];
	float weights[TENSORS][ELEMENTS];
};

static const struct key fuzz_keys[TENSORS] = {{.name = "weight"}, {.name = "mean"}};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

static uint64_t fuzz_now(void *context)
{
	return 0;
}

static void fuzz_scout(struct phub_site *s, unsigned which)
{
	static const enum scout_policy policies[] = {SCOUT_FIXED, SCOUT_HILL, SCOUT_STOCHASTIC, SCOUT_PLUS};
	const bool loosens = s->config.algorithm != SITE_DGC;
	struct scout_config *c = &s->scout_config;

	if (which == 0 || s->config.algorithm == SITE_BSP)
		return;
	s->scouted = true;
	scout_defaults(c);
	c->policy = loosens ? policies[which] : SCOUT_FIXED;
	c->period = PERIOD;
	c->thetas[0] = s->config.algorithm == SITE_GAIA ? 0 : 1;
	c->thetas[1] = loosens ? 2 : 0.5;
	c->theta_count = 2;
	c->falls = !loosens;
	fuzz_require(c->policy != SCOUT_PLUS || options_needs(c, s->config.algorithm, NULL) == 0);
}

/* A site in the middle of an interval; `what` as the first byte of an input. */
static void fuzz_begin(struct fuzz *f, uint8_t what)
{
	static const float gradients[ELEMENTS] = {1, -2, 3, 0, 5, -6, 7, 8};
	static const double shadows[] = {1, 0.5}, longer[] = {1, 2};
	const float *all[] = {gradients, NULL};
	struct phub_site *s = &f->site;
	struct err e = {0};

	memset(f, 0, sizeof(*f));
	f->phub.forked = true;
	f->phub.keyring.keys = (struct key *)fuzz_keys;
	f->phub.env.now = fuzz_now;
	for (unsigned t = 0; t < TENSORS; t++)
		f->tensors[t] = (struct site_tensor){f->weights[t], ELEMENTS, t == 0};
	s->phub = &f->phub;
	s->rank = RANK;
	s->world = WORLD;
	s->log.fd = -1;
	s->has = true;
	s->tensors = f->tensors;
	s->samples = 1;
	s->config = (struct site_config){.algorithm = (enum site_algorithm)(what & 3),
		.theta = 1,
		.share = 0.5,
		.sites = WORLD,
		.momentum = 0.9,
		.rate_first = 0.5,
		.tensor_count = TENSORS};
	fuzz_scout(s, what >> 2 & 3);
	fuzz_require(course_init(s, &e) == 0 && unsound_init(s, &e) == 0);
	if (what & FLAG_SHADOWS)
		fuzz_require(shadow_init(&s->shadow, &s->site, s->config.algorithm == SITE_LOCAL ? longer : shadows,
				     s->config.algorithm == SITE_BSP ? 1 : 2, &e) == 0);
	fuzz_require(site_step(&s->site, all, 0.5) == 0);
	s->present.count = 2;
	s->present.ranks[1] = RANK;
	s->window.midway.kept = what & FLAG_KEPT && s->window.midway.weights;
}

static void fuzz_end(struct fuzz *f)
{
	unsound_fini(&f->site);
	course_fini(&f->site);
}

static uint32_t fuzz_word(const uint8_t *state, size_t at)
{
	uint32_t word;

	memcpy(&word, state + at, sizeof(word));
	return word;
}

/* How many bytes a state has that says of its arrays what `out` does, where `truth` has `bytes`; what is new is 0. */
static size_t fuzz_size(const uint8_t *truth, size_t bytes, uint8_t *out)
{
	const size_t most = (STATE_MAX - bytes) / ARRAY_BYTES;
	const size_t had = (fuzz_word(truth, TERMS_KEPT) > 0) + (size_t)fuzz_word(truth, TERMS_SHADOWS);
	const size_t says = (fuzz_word(out, TERMS_KEPT) > 0) + (size_t)fuzz_word(out, TERMS_SHADOWS);
	const size_t size = bytes + ((says < most ? says : most) - had) * ARRAY_BYTES;

	if (size > bytes)
		memset(out + bytes, 0, size - bytes);
	return size;
}

/* Returns how many bytes the state has, with the input over it. */
static size_t fuzz_state(struct fuzz *f, const uint8_t *data, size_t size, uint8_t flags, uint8_t *out)
{
	static uint8_t truth[STATE_MAX];
	const size_t tensors = TENSORS * TENSOR_BYTES;
	size_t bytes = site_saved_bytes(&f->site);
	const size_t scout = TERMS_BYTES + tensors + SCOUT_SAVED_BYTES;
	uint64_t whole;
	uint32_t crc;

	fuzz_require(bytes <= STATE_MAX);
	site_saved_write(&f->site, truth);
	fuzz_require(fuzz_word(truth, TERMS_BYTES + 8) == ELEMENTS); /* it is laid out as above */
	memcpy(out, truth, bytes);
	while (size > 3) {
		size_t at = (data[0] | (size_t)data[1] << 8) % bytes, some = data[2];

		some = some < size - 3 ? some : size - 3;
		some = some < bytes - at ? some : bytes - at;
		memcpy(out + at, data + 3, some);
		data += 3 + some;
		size -= 3 + some;
	}
	if (flags & FLAG_SCOUT && f->site.scouted) {
		uint64_t word;

		memcpy(out + scout - SCOUT_SAVED_BYTES, truth + scout - SCOUT_SAVED_BYTES, 8);
		word = crc_32c(0, out + TERMS_BYTES + tensors, SCOUT_SAVED_BYTES - 8);
		memcpy(out + scout - 8, &word, sizeof(word)); /* little-endian, as all here */
	}
	if (flags & FLAG_TENSORS)
		memcpy(out + TERMS_BYTES, truth + TERMS_BYTES, tensors);
	if (!(flags & FLAG_HEAD))
		return bytes;
	memcpy(out, truth, TERMS_OWN);
	bytes = fuzz_size(truth, bytes, out);
	whole = bytes;
	memcpy(out + 16, &whole, sizeof(whole));
	crc = crc_32c(0, out, bytes - sizeof(crc));
	memcpy(out + bytes - sizeof(crc), &crc, sizeof(crc));
	return bytes;
}

static void fuzz_window(struct phub_site *s)
{
	struct scout_report reports[WORLD];
	struct scout_decision decision;

	for (unsigned i = 0; i < WORLD; i++)
		reports[i] = (struct scout_report){.home = 0.5,
			.away = 0.25,
			.samples = 100,
			.bytes = 1000,
			.exchanges = 1,
			.trained = 100,
			.train = 1,
			.tried = 100,
			.before = 2,
			.after = 1};
	scout_hear(&s->scout, 4, 2, 0.5, 0.5);
	fuzz_require(scout_span(&s->scout) > 0);
	fuzz_require(scout_observe(&s->scout, reports, WORLD, &decision) == 0);
	fuzz_require(site_set_theta(&s->site, decision.theta) == 0);
	fuzz_require(memchr(decision.reason, 0, sizeof(decision.reason)) != NULL);
}

/* Steps, exchanges of which the sum is what it says itself, and windows. */
static void fuzz_go_on(struct phub_site *s)
{
	static const float gradients[ELEMENTS] = {1, 2, 3, 4, 5, 6, 7, 8};
	const float *all[] = {gradients, NULL};

	for (unsigned step = 0; step < STEPS; step++) {
		window_keep(s);
		fuzz_require(site_step(&s->site, all, 0.1) == 0);
		if (s->shadow.count > 0)
			shadow_step(&s->shadow, &s->site, all);
		course_step(s);
		s->pending = s->window.open = false;
		if (site_due(&s->site)) {
			for (unsigned t = 0; t < TENSORS; t++)
				if (site_exchanges(&s->site, t)) {
					fuzz_require(site_offer(&s->site, t, course_at(s, s->offers, t)) == 0);
					fuzz_require(site_accept(&s->site, t, course_at(s, s->offers, t)) == 0);
				}
		}
		if (s->scouted && step % PERIOD == 0)
			fuzz_window(s);
		fuzz_require(site_theta_valid(s->config.algorithm, s->site.config.theta));
	}
}

static void fuzz_loaded(struct fuzz *f)
{
	static uint8_t first[STATE_MAX], second[STATE_MAX];
	struct phub_site *s = &f->site;
	struct err e = {0};
	size_t bytes;

	fuzz_require(s->present.count <= WORLD);
	for (unsigned i = 0; i < s->present.count; i++)
		fuzz_require(s->present.ranks[i] < WORLD && (i == 0 || s->present.ranks[i - 1] < s->present.ranks[i]));
	fuzz_require(memchr(s->decision.reason, 0, sizeof(s->decision.reason)) != NULL);
	fuzz_require(scout_action_name(s->decision.action) != NULL);
	site_saved_check(s);
	fuzz_go_on(s);
	bytes = site_saved_bytes(s);
	fuzz_require(bytes <= STATE_MAX);
	site_saved_write(s, first);
	fuzz_require(site_saved_read(s, first, bytes, &e) == 0);
	site_saved_write(s, second);
	fuzz_require(memcmp(first, second, bytes) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t before[STATE_MAX], state[STATE_MAX];
	static struct fuzz f;
	struct err e = {0};
	size_t bytes;
	int rc;

	if (size < 2)
		return 0;
	fuzz_begin(&f, data[0]);
	bytes = fuzz_state(&f, data + 2, size - 2, data[1], state);
	site_saved_write(&f.site, before);
	rc = site_saved_read(&f.site, state, bytes, &e);
	if (rc == 0) {
		fuzz_loaded(&f);
	} else {
		fuzz_require((rc == -EBADMSG || rc == -EINVAL) && e.text[0]);
		site_saved_write(&f.site, state);
		fuzz_require(memcmp(before, state, site_saved_bytes(&f.site)) == 0);
	}
	fuzz_end(&f);
	return 0;
}
