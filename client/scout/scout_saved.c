/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A scout's state as bytes. One list of fields serves both ways: what is written is what is read.
 */
#include "client/scout/scout.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "phub/base/crc.h"

enum { SAVED_VERSION = 7 };

/* The list goes over words that are written, or read. */
struct saved {
	uint64_t words[SCOUT_SAVED_WORDS];
	unsigned at;
	bool reads;
};

static void saved_word(struct saved *s, uint64_t *word)
{
	if (s->reads)
		*word = s->words[s->at];
	else
		s->words[s->at] = *word;
	s->at++;
}

static void saved_whole(struct saved *s, unsigned *value)
{
	uint64_t word = *value;

	saved_word(s, &word);
	*value = (unsigned)word;
}

static void scout_saved_truth(struct saved *s, bool *value)
{
	uint64_t word = *value;

	saved_word(s, &word);
	*value = word != 0;
}

static uint64_t saved_bits(double value)
{
	uint64_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static void saved_number(struct saved *s, double *value)
{
	uint64_t bits = saved_bits(*value);

	saved_word(s, &bits);
	memcpy(value, &bits, sizeof(bits));
}

static void saved_watch(struct saved *s, struct watch *w)
{
	saved_word(s, &w->count);
	saved_number(s, &w->mean);
	saved_number(s, &w->up);
	saved_number(s, &w->down);
	saved_number(s, &w->last);
	saved_number(s, &w->spread);
}

static void saved_sequence(struct saved *s, struct sequence *q)
{
	saved_word(s, &q->count);
	saved_number(s, &q->mean);
	saved_number(s, &q->spread);
}

static void saved_plus(struct saved *s, struct plus *p)
{
	unsigned phase = p->phase;

	saved_whole(s, &phase);
	p->phase = (enum plus_phase)phase;
	phase = p->past.phase;
	saved_whole(s, &phase);
	p->past.phase = (enum plus_phase)phase;
	saved_whole(s, &p->passed);
	saved_whole(s, &p->counted);
	saved_whole(s, &p->reach.measured);
	saved_whole(s, &p->target);
	saved_whole(s, &p->back);
	saved_whole(s, &p->blind);
	saved_whole(s, &p->watch.calm);
	saved_whole(s, &p->guard.apart);
	saved_whole(s, &p->past.index);
	saved_whole(s, &p->past.asked);
	saved_whole(s, &p->past.before);
	phase = p->guard.mean;
	saved_whole(s, &phase);
	p->guard.mean = (enum plus_mean)phase;
	saved_number(s, &p->guard.beyond);
	saved_number(s, &p->past.train);
	saved_number(s, &p->past.trained);
	saved_word(s, &p->guard.tight.count);
	saved_number(s, &p->guard.tight.odds);
	saved_number(s, &p->guard.beyond_tight);
	saved_number(s, &p->guard.tried_tight);
	saved_whole(s, &p->guard.doubted);
	scout_saved_truth(s, &p->settled);
	saved_number(s, &p->reach.pull);
	saved_number(s, &p->reach.sites);
	saved_number(s, &p->reach.ease);
	saved_number(s, &p->watch.rate);
	saved_number(s, &p->reach.rate);
	saved_watch(s, &p->watch.alignment);
	saved_watch(s, &p->watch.moves);
	saved_watch(s, &p->watch.loss);
	saved_sequence(s, &p->probe.usual);
	saved_sequence(s, &p->probe.probes);
	saved_number(s, &p->probe.samples);
	saved_number(s, &p->probe.usually);
	saved_number(s, &p->probe.extra);
	saved_whole(s, &p->reach.enough);
	saved_number(s, &p->budget.bytes);
	saved_number(s, &p->budget.bytes_probes);
	saved_number(s, &p->budget.trained);
	saved_number(s, &p->budget.tried);
	saved_number(s, &p->budget.each);
	saved_whole(s, &p->budget.second);
}

uint32_t scout_fingerprint(const struct scout_config *c)
{
	const struct plus_config *p = &c->plus;
	const uint64_t values[] = {c->policy, c->theta_count, c->first, c->schedule_count, c->period, c->model_bytes,
		saved_bits(c->lambda_loss), saved_bits(c->lambda_bytes), saved_bits(c->sigma),
		saved_bits(c->temperature), saved_bits(c->cooling), c->memory, c->patience, c->seed};
	const uint64_t plus[] = {p->settle, saved_bits(p->sigma), saved_bits(p->alpha), saved_bits(p->slack),
		saved_bits(p->bound), saved_bits(p->bytes_part), saved_bits(p->work_part), p->tries,
		saved_bits(p->guard), saved_bits(p->own), saved_bits(p->slack_moves), p->by_rate, p->power,
		p->each_step, saved_bits(p->worth)};
	const struct price_link *own = &c->price.link, *within = &c->price.within;
	const uint64_t price[] = {c->price.unit, saved_bits(own->rate), saved_bits(own->latency),
		saved_bits(own->money), saved_bits(within->rate), saved_bits(within->latency),
		saved_bits(within->money)};
	const bool is_plus = c->policy == SCOUT_PLUS;
	uint32_t crc = crc_32c(0, values, sizeof(values));

	crc = crc_32c(crc, c->thetas, c->theta_count * sizeof(c->thetas[0]));
	crc = crc_32c(crc, c->schedule, c->policy == SCOUT_REPLAY ? c->schedule_count * sizeof(c->schedule[0]) : 0);
	crc = crc_32c(crc, plus, is_plus ? sizeof(plus) : 0);
	crc = crc_32c(crc, price, c->price.unit == PRICE_BYTES ? 0 : sizeof(price));
	crc = crc_32c(crc, &c->trim, c->trim > 0 ? sizeof(c->trim) : 0);
	crc = crc_32c(
		crc, &p->statistics, is_plus && !p->statistics); /* states of before this was known are those of true */
	crc = crc_32c(crc, &p->ease, is_plus && p->ease != 1 ? sizeof(p->ease) : 0); /* likewise of their usual */
	crc = crc_32c(crc, &p->passes, is_plus && p->passes != PLUS_PASSES ? sizeof(p->passes) : 0);
	crc = crc_32c(crc, p->says, is_plus ? c->theta_count * sizeof(p->says[0]) : 0);
	return crc_32c(crc, p->need, is_plus ? c->theta_count * sizeof(p->need[0]) : 0);
}

/* A part of the list, which began at this word, has as many as its place is for. Returns where the next one begins. */
static unsigned saved_part(const struct saved *s, unsigned begin, unsigned words)
{
	assert(s->at == begin + words);
	return begin + words;
}

/* The words of a scout; the last is their CRC. */
static void scout_saved_list(struct saved *s, struct scout *scout)
{
	uint64_t kind = SAVED_VERSION | (uint64_t)scout_fingerprint(&scout->config) << 32;
	unsigned end;

	s->at = 0;
	saved_word(s, &kind);
	saved_word(s, &scout->window);
	saved_whole(s, &scout->index);
	saved_whole(s, &scout->silent);
	saved_word(s, &scout->random);
	saved_word(s, &scout->bytes);
	saved_word(s, &scout->bytes_travel);
	end = saved_part(s, 0, SCOUT_SAVED_HEAD);
	for (unsigned i = 0; i < SCOUT_THETAS_MAX; i++) {
		uint64_t tried = scout->tried[i] << 1 | scout->held[i];

		saved_word(s, &tried);
		scout->tried[i] = tried >> 1;
		scout->held[i] = tried & 1;
		saved_number(s, &scout->cost[i]);
	}
	end = saved_part(s, end, SCOUT_SAVED_THETA * SCOUT_THETAS_MAX);
	saved_plus(s, &scout->plus);
	end = saved_part(s, end, SCOUT_SAVED_PLUS);
	saved_whole(s, &scout->tries);
	saved_whole(s, &scout->now.exchanges);
	saved_number(s, &scout->now.said);
	saved_number(s, &scout->now.heard);
	saved_number(s, &scout->now.sites);
	saved_number(s, &scout->now.rate);
	saved_part(s, end, SCOUT_SAVED_NOW);
}

void scout_save(const struct scout *scout, uint8_t out[SCOUT_SAVED_BYTES])
{
	struct scout copy = *scout;
	struct saved s = {.reads = false};
	size_t bytes = sizeof(s.words) - sizeof(s.words[0]);

	scout_saved_list(&s, &copy);
	for (unsigned i = 0; i < SCOUT_SAVED_WORDS; i++) {
		if (i + 1 == SCOUT_SAVED_WORDS)
			s.words[i] = crc_32c(0, out, bytes);
		for (unsigned k = 0; k < 8; k++)
			out[8 * i + k] = (uint8_t)(s.words[i] >> 8 * k);
	}
}

static bool saved_take(struct saved *s, const uint8_t *in, size_t bytes)
{
	if (bytes != SCOUT_SAVED_BYTES)
		return false;
	for (unsigned i = 0; i < SCOUT_SAVED_WORDS; i++)
		for (unsigned k = 0; k < 8; k++)
			s->words[i] |= (uint64_t)in[8 * i + k] << 8 * k;
	return (uint32_t)s->words[0] == SAVED_VERSION && s->words[SCOUT_SAVED_WORDS - 1] == crc_32c(0, in, bytes - 8);
}

int scout_load(struct scout *scout, const uint8_t *in, size_t bytes, struct err *e)
{
	struct scout loaded = *scout;
	struct saved s = {.reads = true};

	if (!saved_take(&s, in, bytes))
		return err_set(e, -EBADMSG,
			"the state is not whole, or was saved by another version of libphub: begin with a scout that "
			"has none");
	if (s.words[0] >> 32 != scout_fingerprint(&scout->config))
		return err_set(e, -EINVAL,
			"the state is of a scout with other options (policy, thetas, period, seed and so on): make "
			"this one with "
			"those");
	scout_saved_list(&s, &loaded);
	if (loaded.index >= loaded.config.theta_count || loaded.plus.target >= loaded.config.theta_count ||
		loaded.plus.back >= loaded.config.theta_count || (unsigned)loaded.plus.phase > PLUS_PROBES ||
		(unsigned)loaded.plus.past.phase > PLUS_PROBES || (unsigned)loaded.plus.guard.mean > PLUS_DOUBTFUL)
		return err_set(e, -EBADMSG,
			"the state is none that a scout of %u thetas can have: begin with a scout that has none",
			loaded.config.theta_count);
	*scout = loaded;
	return 0;
}
