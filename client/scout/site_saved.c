/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One list of fields serves to count, to write and to read: what is written is what is read.
 */
#include "client/scout/site_saved.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "client/handle.h"
#include "client/scout/sent.h"
#include "phub/base/crc.h"

#define SAVED_MAGIC   UINT64_C(0x4554495342554850) /* PHUBSITE */
#define SAVED_VERSION UINT64_C(1)

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are copied as they are");
static_assert(sizeof(struct scout_decision) == 464, "then SAVED_VERSION rises, as its bytes are copied");

/* Both NULL: it counts. */
struct saved_cursor {
	uint8_t *out;
	const uint8_t *in;
	size_t at;
};

static void saved_raw(struct saved_cursor *c, void *value, size_t bytes)
{
	if (c->out)
		memcpy(c->out + c->at, value, bytes);
	if (c->in)
		memcpy(value, c->in + c->at, bytes);
	c->at += bytes;
}

/* Words and numbers. */
#define SAVED(c, field) saved_raw(c, &(field), sizeof(field))

static void site_saved_truth(struct saved_cursor *c, bool *value)
{
	uint8_t byte = *value;

	SAVED(c, byte);
	*value = byte != 0;
}

static void saved_floats(struct saved_cursor *c, float *values, size_t count)
{
	if (values)
		saved_raw(c, values, count * sizeof(*values));
}

/* ---- what is compared ---- */

struct saved_terms {
	uint64_t magic, version, bytes;
	uint64_t world, rank, algorithm, outer, policy, weighted;
	uint32_t tensors, frozen; /* the latter a CRC32C; 0: there is nothing */
	uint64_t warmup;
	double momentum, weight_decay, rate_first, clip;
	double outer_rate, outer_beta1, outer_beta2, outer_tau;
	double theta, share;
	uint64_t sites;   /* that the share is of */
	uint32_t kept;    /* a model that is to travel */
	uint32_t shadows; /* arrays of theirs, see saved_shadows() */
};

static uint32_t saved_shadows(const struct phub_site *s)
{
	const struct shadow *shadow = &s->shadow;

	return shadow->count * ((shadow->residual != NULL) + (shadow->velocity != NULL));
}

struct saved_tensor {
	uint32_t name, weights; /* CRC32C; the latter 0 with a site within, whose they are */
	uint32_t elements, trained;
};

static struct saved_terms saved_terms(const struct phub_site *s)
{
	const struct site_config *c = &s->config;
	const bool local = c->algorithm == SITE_LOCAL, dgc = c->algorithm == SITE_DGC;
	const struct outer_config outer =
		local && c->outer.kind != OUTER_AVERAGE ? c->outer : (struct outer_config){.kind = OUTER_AVERAGE};

	return (struct saved_terms){.magic = SAVED_MAGIC,
		.version = SAVED_VERSION,
		.world = s->world,
		.rank = s->rank,
		.algorithm = c->algorithm,
		.outer = outer.kind,
		.policy = s->scouted ? (uint64_t)s->scout_config.policy + 1 : 0,
		.weighted = s->weighted,
		.tensors = c->tensor_count,
		.frozen = s->within ? s->within->frozen_check : s->frozen_check,
		.warmup = dgc ? c->warmup : 0,
		.momentum = c->momentum,
		.weight_decay = c->weight_decay,
		.rate_first = c->algorithm == SITE_GAIA ? c->rate_first : 0,
		.clip = dgc ? c->clip : 0,
		.outer_rate = outer.rate,
		.outer_beta1 = outer.beta1,
		.outer_beta2 = outer.beta2,
		.outer_tau = outer.tau,
		.theta = s->site.config.theta,
		.share = s->site.config.share,
		.sites = s->site.config.sites,
		.kept = s->window.midway.kept,
		.shadows = saved_shadows(s)};
}

static struct saved_tensor saved_tensor(const struct phub_site *s, unsigned t)
{
	const struct site_tensor *tensor = &s->tensors[t];
	const char *name = s->phub->keyring.keys[t].name;

	return (struct saved_tensor){.name = crc_32c(0, name, strlen(name)),
		.weights = s->within ? 0 : crc_32c(0, tensor->weights, tensor->elements * sizeof(float)),
		.elements = tensor->elements,
		.trained = tensor->trained};
}

static const char *saved_policy(uint64_t above)
{
	return above ? scout_policy_name((enum scout_policy)(above - 1)) : "none";
}

static int saved_unlike(const struct phub_site *s, const char *what, const char *there, const char *here, struct err *e)
{
	return err_set(e, -EINVAL,
		"%s: the state was saved with other options: its %s was %s, and here it is %s; load it with the "
		"options of the run that it is of",
		s->phub->session.who, what, there, here);
}

static int saved_compare_numbers(
	const struct phub_site *s, const struct saved_terms *there, const struct saved_terms *here, struct err *e)
{
	const struct {
		const char *what;
		double there, here;
	} numbers[] = {{"momentum", there->momentum, here->momentum},
		{"weight_decay", there->weight_decay, here->weight_decay},
		{"rate_first", there->rate_first, here->rate_first}, {"clip", there->clip, here->clip},
		{"warmup", (double)there->warmup, (double)here->warmup},
		{"outer_rate", there->outer_rate, here->outer_rate},
		{"outer_beta1", there->outer_beta1, here->outer_beta1},
		{"outer_beta2", there->outer_beta2, here->outer_beta2},
		{"outer_tau", there->outer_tau, here->outer_tau},
		{"weighting by samples (0 or 1)", (double)there->weighted, (double)here->weighted}};

	for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (numbers[i].there != numbers[i].here)
			return err_set(e, -EINVAL,
				"%s: the state was saved with other options: its %s was %g, and here it is %g; load it "
				"with the options of the run that it is of",
				s->phub->session.who, numbers[i].what, numbers[i].there, numbers[i].here);
	}
	return 0;
}

static int saved_compare(
	const struct phub_site *s, const struct saved_terms *there, const struct saved_terms *here, struct err *e)
{
	if (there->world != here->world)
		return err_set(e, -EINVAL,
			"%s: the state is of one of %" PRIu64 " sites, and here are %" PRIu64
			"; as many go on as were there",
			s->phub->session.who, there->world, here->world);
	if (there->rank != here->rank)
		return err_set(e, -EINVAL,
			"%s: the state is that of rank %" PRIu64 ", and this is rank %" PRIu64 "; each loads its own",
			s->phub->session.who, there->rank, here->rank);
	if (there->algorithm != here->algorithm)
		return saved_unlike(s, "algorithm", site_algorithm_name((enum site_algorithm)there->algorithm),
			site_algorithm_name((enum site_algorithm)here->algorithm), e);
	if (there->outer != here->outer)
		return saved_unlike(s, "outer optimizer", outer_name((enum outer_kind)there->outer),
			outer_name((enum outer_kind)here->outer), e);
	if (there->policy != here->policy)
		return saved_unlike(s, "scout's policy", saved_policy(there->policy), saved_policy(here->policy), e);
	if (there->tensors != here->tensors)
		return err_set(e, -EINVAL,
			"%s: the state is of %" PRIu32 " tensors, and here are %" PRIu32 "; it is of another model",
			s->phub->session.who, there->tensors, here->tensors);
	if (there->frozen != here->frozen)
		return err_set(e, -EBADMSG,
			"%s: the frozen weights are not those that the state was saved with; put these back before it "
			"is loaded",
			s->phub->session.who);
	return saved_compare_numbers(s, there, here, e);
}

static int saved_compare_tensors(const struct phub_site *s, const uint8_t *in, struct err *e)
{
	for (unsigned t = 0; t < s->config.tensor_count; t++) {
		const struct saved_tensor here = saved_tensor(s, t);
		const char *name = s->phub->keyring.keys[t].name;
		struct saved_tensor there;

		memcpy(&there, in + t * sizeof(there), sizeof(there));
		if (there.name != here.name || there.trained != here.trained || there.elements != here.elements)
			return err_set(e, -EINVAL,
				"%s: the state's tensor %u, of %" PRIu32 " elements%s, is not '%.100s', of %" PRIu32
				" elements%s; it is of another model",
				s->phub->session.who, t, there.elements, there.trained ? "" : " (not trained)", name,
				here.elements, here.trained ? "" : " (not trained)");
		if (there.weights != here.weights)
			return err_set(e, -EBADMSG,
				"%s: the weights of tensor '%.100s' are not those that the state was saved with; put "
				"these "
				"back before it is loaded",
				s->phub->session.who, name);
	}
	return 0;
}

/* ---- the list ---- */

static void saved_site(struct saved_cursor *c, struct site *site)
{
	SAVED(c, site->counts.steps);
	SAVED(c, site->counts.exchanges);
	SAVED(c, site->counts.values);
	SAVED(c, site->counts.bytes_paper);
	SAVED(c, site->since);
	SAVED(c, site->rate);
	site_saved_truth(c, &site->flushing);
	saved_floats(c, site->residual, site->elements);
	saved_floats(c, site->velocity, site->elements);
	saved_floats(c, site->anchor, site->elements);
	for (unsigned i = 0; i < OUTER_STATE_MAX; i++)
		saved_floats(c, site->outer[i], site->elements);
}

/* A word for each rank: 0: it is not there; else 1 above its samples. */
static void saved_present(struct saved_cursor *c, struct phub_site *s)
{
	unsigned at = 0;

	for (uint32_t rank = 0; rank < s->world; rank++) {
		const bool here = !c->in && at < s->present.count && s->present.ranks[at] == rank;
		uint64_t word = here ? s->present.samples[at] + (s->present.samples[at] < UINT64_MAX) : 0;

		SAVED(c, word);
		if (c->in && word > 0) {
			s->present.ranks[at] = rank;
			s->present.samples[at] = word - 1;
		}
		at += word > 0;
	}
	if (c->in)
		s->present.count = at;
}

static void saved_window(struct saved_cursor *c, struct window *w)
{
	site_saved_truth(c, &w->strange);
	site_saved_truth(c, &w->broken);
	site_saved_truth(c, &w->infected);
	SAVED(c, w->began);
	SAVED(c, w->told);
	SAVED(c, w->told_within);
	SAVED(c, w->exchanges);
	SAVED(c, w->exchanges_within);
	SAVED(c, w->sent);
	SAVED(c, w->sent_within);
	SAVED(c, w->batches);
	SAVED(c, w->trained);
	SAVED(c, w->levels);
	SAVED(c, w->tried_samples);
	SAVED(c, w->shown);
}

static void saved_unsound(struct saved_cursor *c, struct phub_site *s)
{
	struct unsound *u = &s->unsound;

	SAVED(c, u->own);
	SAVED(c, u->steps);
	SAVED(c, u->since);
	SAVED(c, u->returned);
	SAVED(c, u->again);
	site_saved_truth(c, &u->forlorn);
	site_saved_truth(c, &u->spread);
	site_saved_truth(c, &u->returns);
	saved_raw(c, u->told, s->world * sizeof(*u->told));
}

/* What shadows have still to say, where these are the same. */
static void saved_shadow_arrays(
	struct saved_cursor *c, struct shadow *shadow, uint32_t arrays, size_t elements, bool same)
{
	const size_t floats = shadow->count * elements;

	if (same && shadow->residual)
		saved_floats(c, shadow->residual, floats);
	if (same && shadow->velocity)
		saved_floats(c, shadow->velocity, floats);
	if (!same)
		c->at += arrays * elements * sizeof(float);
}

static void saved_log(struct saved_cursor *c, struct phub_site *s, uint32_t arrays)
{
	struct shadow other = {.count = s->shadow.count}, *shadow = &s->shadow;
	const uint64_t now = s->phub->env.now(s->phub->env.ctx);
	double seconds = s->log.seconds_before + (s->log.began_ns ? (double)(now - s->log.began_ns) * 1e-9 : 0);
	uint64_t wire = sent_wire(s), logged[SHADOW_THETAS_MAX];
	bool same;

	memcpy(other.theta, shadow->theta, sizeof(other.theta));
	memcpy(other.bytes, shadow->bytes, sizeof(other.bytes));
	memcpy(other.since, shadow->since, sizeof(other.since));
	memcpy(logged, s->log.shadow, sizeof(logged));
	SAVED(c, seconds);
	SAVED(c, wire);
	SAVED(c, s->log.run);
	SAVED(c, s->log.since);
	SAVED(c, s->log.bytes);
	SAVED(c, s->log.travel);
	SAVED(c, s->log.within);
	SAVED(c, s->sent);
	SAVED(c, s->log.score);
	site_saved_truth(c, &s->log.scored);
	SAVED(c, other.count);
	SAVED(c, other.theta);
	SAVED(c, other.bytes);
	SAVED(c, other.since);
	SAVED(c, logged);
	same = other.count == shadow->count && memcmp(other.theta, shadow->theta, sizeof(other.theta)) == 0;
	saved_shadow_arrays(c, shadow, arrays, s->site.elements, same && arrays == saved_shadows(s));
	if (!c->in)
		return;
	s->log.seconds_before = seconds;
	s->wire_before = wire;
	if (!same)
		return;
	memcpy(shadow->bytes, other.bytes, sizeof(other.bytes));
	memcpy(shadow->since, other.since, sizeof(other.since));
	memcpy(s->log.shadow, logged, sizeof(logged));
}

static void site_saved_list(struct saved_cursor *c, struct phub_site *s, const struct saved_terms *terms)
{
	const size_t squares = s->config.tensor_count * sizeof(double);

	saved_site(c, &s->site);
	SAVED(c, s->exchanges);
	SAVED(c, s->bytes_travel);
	SAVED(c, s->windows);
	SAVED(c, s->decision);
	saved_present(c, s);
	saved_raw(c, s->align.said, squares);
	saved_raw(c, s->align.heard, squares);
	saved_raw(c, s->align.r, squares);
	saved_window(c, &s->window);
	saved_unsound(c, s);
	saved_log(c, s, terms->shadows);
	if (terms->kept)
		saved_floats(c, s->window.midway.weights, s->site.elements);
}

/* ---- the whole ---- */

/* Where the list begins. */
static size_t saved_head(const struct phub_site *s)
{
	return sizeof(struct saved_terms) + s->config.tensor_count * sizeof(struct saved_tensor) +
	       (s->scouted ? SCOUT_SAVED_BYTES : 0);
}

static size_t saved_count(struct phub_site *s, const struct saved_terms *terms)
{
	struct saved_cursor c = {.at = saved_head(s)};

	site_saved_list(&c, s, terms);
	return c.at + sizeof(uint32_t);
}

size_t site_saved_bytes(struct phub_site *s)
{
	const struct saved_terms terms = saved_terms(s);

	return saved_count(s, &terms);
}

void site_saved_write(struct phub_site *s, uint8_t *out)
{
	struct saved_terms terms = saved_terms(s);
	struct saved_cursor c = {.out = out};
	uint32_t crc;

	terms.bytes = site_saved_bytes(s);
	SAVED(&c, terms);
	for (unsigned t = 0; t < s->config.tensor_count; t++) {
		struct saved_tensor tensor = saved_tensor(s, t);

		SAVED(&c, tensor);
	}
	if (s->scouted) {
		scout_save(&s->scout, out + c.at);
		c.at += SCOUT_SAVED_BYTES;
	}
	site_saved_list(&c, s, &terms);
	crc = crc_32c(0, out, c.at);
	SAVED(&c, crc);
}

/* Is it whole, and of this site? */
static int saved_agrees(struct phub_site *s, const uint8_t *in, size_t bytes, struct saved_terms *terms, struct err *e)
{
	const struct saved_terms here = saved_terms(s);
	uint32_t crc;
	int rc;

	if (bytes >= sizeof(*terms) + sizeof(crc))
		memcpy(terms, in, sizeof(*terms));
	if (bytes < sizeof(*terms) + sizeof(crc) || terms->magic != SAVED_MAGIC)
		return err_set(e, -EBADMSG, "%s: %zu bytes that are no state of a site, as phub_site_save() has it",
			s->phub->session.who, bytes);
	if (terms->version != SAVED_VERSION)
		return err_set(e, -EBADMSG,
			"%s: the state is of version %" PRIu64 ", and this libphub reads version %" PRIu64,
			s->phub->session.who, terms->version, SAVED_VERSION);
	memcpy(&crc, in + bytes - sizeof(crc), sizeof(crc));
	if (terms->bytes != bytes)
		return err_set(e, -EBADMSG, "%s: the state is not whole: %zu bytes, of %" PRIu64, s->phub->session.who,
			bytes, terms->bytes);
	if (crc != crc_32c(0, in, bytes - sizeof(crc)))
		return err_set(e, -EBADMSG, "%s: the state is damaged: its %zu bytes are not those that were saved",
			s->phub->session.who, bytes);
	rc = saved_compare(s, terms, &here, e);
	if (rc == 0 && bytes < saved_head(s) + sizeof(crc))
		return err_set(e, -EBADMSG, "%s: the state is not whole: %zu bytes do not have all tensors",
			s->phub->session.who, bytes);
	if (rc == 0)
		rc = saved_compare_tensors(s, in + sizeof(*terms), e);
	if (rc < 0)
		return rc;
	if (terms->shadows > 2 * SHADOW_THETAS_MAX || bytes != saved_count(s, terms) ||
		(terms->kept && !s->window.midway.weights) || !site_theta_valid(s->config.algorithm, terms->theta) ||
		!(terms->share >= 0 && terms->share <= 1) || terms->sites == 0 || terms->sites > terms->world)
		return err_set(e, -EBADMSG, "%s: the state is not that of such a site", s->phub->session.who);
	return 0;
}

int site_saved_read(struct phub_site *s, const uint8_t *in, size_t bytes, struct err *e)
{
	struct saved_cursor c = {.in = in};
	struct saved_terms terms;
	int rc = saved_agrees(s, in, bytes, &terms, e);

	c.at = saved_head(s);
	if (rc == 0 && s->scouted)
		rc = scout_load(&s->scout, in + c.at - SCOUT_SAVED_BYTES, SCOUT_SAVED_BYTES, e);
	if (rc < 0)
		return rc;
	site_saved_list(&c, s, &terms);
	s->window.midway.kept = terms.kept;
	s->decision.reason[sizeof(s->decision.reason) - 1] = 0;
	site_set_theta(&s->site, terms.theta);
	site_set_share(&s->site, terms.share, (unsigned)terms.sites);
	s->has = s->restored = s->goes_on = true;
	return 0;
}

/* Of Gaia the common weights differ by roundings: there the run alone tells. */
uint32_t site_saved_check(struct phub_site *s)
{
	uint32_t crc = crc_32c(0, &s->site.config.theta, sizeof(double));
	uint8_t scout[SCOUT_SAVED_BYTES];

	crc = crc_32c(crc, &s->log.run, sizeof(s->log.run));
	crc = crc_32c(crc, &s->window.began, sizeof(s->window.began));
	if (s->scouted) {
		scout_save(&s->scout, scout);
		crc = crc_32c(crc, scout, sizeof(scout));
	}
	for (unsigned t = 0; t < s->config.tensor_count && s->config.algorithm != SITE_GAIA; t++) {
		float *common = course_at(s, s->scratch, t);

		if (!site_exchanges(&s->site, t))
			continue;
		site_common(&s->site, t, common);
		crc = crc_32c(crc, common, s->tensors[t].elements * sizeof(*common));
	}
	return crc;
}
