/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all algorithms share: the checks, the memory, the order of an exchange, and the counting.
 */
#include "client/scout/site.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/scout/finite.h"
#include "client/scout/site_internal.h"

enum { PHASE_IDLE, PHASE_OFFERED, PHASE_ACCEPTED };

static const struct site_ops *const algorithms[SITE_ALGORITHM_COUNT] = {
	[SITE_BSP] = &site_bsp, [SITE_GAIA] = &site_gaia, [SITE_LOCAL] = &site_local, [SITE_DGC] = &site_dgc};

const char *site_algorithm_name(enum site_algorithm algorithm)
{
	return (unsigned)algorithm < SITE_ALGORITHM_COUNT ? algorithms[algorithm]->name : "invalid";
}

bool site_theta_valid(enum site_algorithm algorithm, double theta)
{
	return (unsigned)algorithm < SITE_ALGORITHM_COUNT && algorithms[algorithm]->theta_valid(theta);
}

const char *site_thetas(enum site_algorithm algorithm)
{
	return (unsigned)algorithm < SITE_ALGORITHM_COUNT ? algorithms[algorithm]->thetas : "none";
}

static bool site_share_valid(double share, unsigned sites)
{
	return share >= 0 && share <= 1 && sites > 0;
}

static bool site_not_negative(double x)
{
	return x >= 0 && isfinite(x);
}

static int site_check(const struct site_config *c, struct err *e)
{
	if ((unsigned)c->algorithm >= SITE_ALGORITHM_COUNT)
		return err_set(e, -EINVAL, "site: no algorithm %d", (int)c->algorithm);
	if (!site_theta_valid(c->algorithm, c->theta))
		return err_set(e, -EINVAL, "site: %s cannot have a theta of %g; allowed: %s",
			site_algorithm_name(c->algorithm), c->theta, site_thetas(c->algorithm));
	if (!site_share_valid(c->share, c->sites))
		return err_set(e, -EINVAL, "site: a share of %g of %u sites; needs 0 to 1 of at least one", c->share,
			c->sites);
	if (!site_not_negative(c->momentum) || c->momentum >= 1)
		return err_set(e, -EINVAL, "site: momentum %g; needs to be from 0 to below 1", c->momentum);
	if (!site_not_negative(c->weight_decay))
		return err_set(e, -EINVAL, "site: weight decay %g; needs to be at least 0", c->weight_decay);
	if (c->algorithm == SITE_GAIA && !(c->rate_first > 0 && isfinite(c->rate_first)))
		return err_set(e, -EINVAL, "site: a first learning rate of %g; needs to be above 0", c->rate_first);
	if (c->algorithm == SITE_LOCAL && outer_check(&c->outer))
		return err_set(e, -EINVAL,
			"site: outer optimizer %s with rate %g, beta1 %g, beta2 %g, tau %g; allowed: rate and tau "
			"above 0, "
			"beta1 and beta2 from 0 to below 1",
			outer_name(c->outer.kind), c->outer.rate, c->outer.beta1, c->outer.beta2, c->outer.tau);
	if (!site_not_negative(c->clip))
		return err_set(e, -EINVAL, "site: gradients clipped to %g; needs to be at least 0", c->clip);
	if (c->tensor_count == 0 || c->tensor_count > SITE_TENSORS_MAX)
		return err_set(e, -EINVAL, "site: %u tensors; needs 1 to %u", c->tensor_count, SITE_TENSORS_MAX);
	for (unsigned t = 0; t < c->tensor_count; t++) {
		if (!c->tensors[t].weights || c->tensors[t].elements == 0)
			return err_set(e, -EINVAL, "site: tensor %u has no elements", t);
	}
	return 0;
}

static unsigned site_outer_arrays(const struct site *site)
{
	return site->config.algorithm == SITE_LOCAL ? outer_state_count(site->config.outer.kind) : 0;
}

static unsigned site_arrays(const struct site *site)
{
	unsigned count = site_outer_arrays(site);

	for (unsigned bit = SITE_RESIDUAL; bit <= SITE_ANCHOR; bit <<= 1)
		count += (site->ops->arrays & bit) != 0;
	return count;
}

/* Tensors, offsets, arrays of floats, phases: in falling order of alignment. */
static int site_allocate(struct site *site)
{
	unsigned n = site->config.tensor_count, wanted = site->ops->arrays;
	size_t head = n * (sizeof(*site->tensors) + sizeof(*site->offset)), floats;
	float *at;

	if (__builtin_mul_overflow(site->elements, site_arrays(site) * sizeof(float), &floats) ||
		floats > PTRDIFF_MAX - head - n)
		return -ENOMEM;
	site->block = calloc(1, head + floats + n);
	if (!site->block)
		return -ENOMEM;
	site->tensors = site->block;
	site->offset = (size_t *)(site->tensors + n);
	at = (float *)(site->offset + n);
	if (wanted & SITE_RESIDUAL) {
		site->residual = at;
		at += site->elements;
	}
	if (wanted & SITE_VELOCITY) {
		site->velocity = at;
		at += site->elements;
	}
	if (wanted & SITE_ANCHOR) {
		site->anchor = at;
		at += site->elements;
	}
	for (unsigned s = 0; s < site_outer_arrays(site); s++, at += site->elements)
		site->outer[s] = at;
	site->phase = (uint8_t *)at;
	return 0;
}

int site_init(struct site *site, const struct site_config *config, struct err *e)
{
	int rc = site_check(config, e);
	size_t at = 0;

	if (rc)
		return rc;
	memset(site, 0, sizeof(*site));
	site->config = *config;
	site->ops = algorithms[config->algorithm];
	for (unsigned t = 0; t < config->tensor_count; t++)
		site->elements += config->tensors[t].elements;
	rc = site_allocate(site);
	if (rc)
		return err_set(e, rc, "site: no memory for %u arrays of %zu floats", site_arrays(site), site->elements);
	memcpy(site->tensors, config->tensors, config->tensor_count * sizeof(*site->tensors));
	site->config.tensors = site->tensors;
	for (unsigned t = 0; t < config->tensor_count; t++) {
		site->offset[t] = at;
		at += site->tensors[t].elements;
		site->exchanged += site_exchanges(site, t);
	}
	return site_join(site, 0);
}

void site_fini(struct site *site)
{
	free(site->block);
	memset(site, 0, sizeof(*site));
}

static bool site_busy(const struct site *site)
{
	return site->open + site->accepted > 0;
}

int site_step(struct site *site, const float *const *gradients, double rate)
{
	double scale;

	if (site_busy(site))
		return -EBUSY;
	if (!site_not_negative(rate))
		return -EINVAL;
	for (unsigned t = 0; gradients && t < site->config.tensor_count; t++) {
		if (site->tensors[t].trained && !gradients[t])
			return -EINVAL;
	}
	site->rate = rate;
	site->since++;
	site->counts.steps++;
	if (!gradients)
		return 0;
	scale = site->ops->scale ? site->ops->scale(site, gradients) : 1;
	for (unsigned t = 0; t < site->config.tensor_count; t++) {
		if (site->tensors[t].trained)
			site->ops->step(site, t, gradients[t], scale);
	}
	return 0;
}

uint64_t site_interval(const struct site *site)
{
	return site->ops->interval ? site->ops->interval(site) : 1;
}

bool site_due(const struct site *site)
{
	return site->flushing || site->since >= site_interval(site);
}

bool site_exchanges(const struct site *site, unsigned t)
{
	return t < site->config.tensor_count && (site->tensors[t].trained || site->ops->untrained);
}

static void site_count(struct site *site, unsigned t, uint32_t values, const float *out)
{
	uint64_t whole = (uint64_t)site->tensors[t].elements * SITE_VALUE_BYTES;
	uint64_t sparse = (uint64_t)values * (SITE_INDEX_BYTES + SITE_VALUE_BYTES);

	site->counts.values += values;
	site->counts.bytes_paper += sparse < whole ? sparse : whole;
	if (site->config.wire)
		site->counts.bytes_wire += site->config.wire(site->config.wire_context, out, site->tensors[t].elements);
}

int site_offer(struct site *site, unsigned t, float *out)
{
	if (!site_exchanges(site, t))
		return -ENOENT;
	if (site->phase[t] != PHASE_IDLE)
		return -EALREADY;
	site_count(site, t, site->ops->offer(site, t, out), out);
	site->phase[t] = PHASE_OFFERED;
	site->open++;
	return 0;
}

static int site_offered(const struct site *site, unsigned t)
{
	if (!site_exchanges(site, t))
		return -ENOENT;
	return site->phase[t] == PHASE_OFFERED ? 0 : -EPERM;
}

int site_accept(struct site *site, unsigned t, const float *sum)
{
	int rc = site_offered(site, t);

	if (rc)
		return rc;
	site->ops->accept(site, t, sum);
	site->phase[t] = PHASE_ACCEPTED;
	site->open--;
	site->accepted++;
	if (site->accepted < site->exchanged)
		return 0;
	memset(site->phase, PHASE_IDLE, site->config.tensor_count);
	site->accepted = 0;
	site->since = 0;
	site->flushing = site->extra = false;
	site->counts.exchanges++;
	return 0;
}

/* What was said left 0, and no step has come since: adding is putting back. */
int site_withdraw(struct site *site, unsigned t, const float *offered)
{
	int rc = site_offered(site, t);

	if (rc)
		return rc;
	for (uint32_t i = 0; site->residual && i < site->tensors[t].elements; i++)
		site->residual[site->offset[t] + i] += offered[i];
	site->phase[t] = PHASE_IDLE;
	site->open--;
	return 0;
}

int site_set_theta(struct site *site, double theta)
{
	if (site_busy(site))
		return -EBUSY;
	if (!site->ops->theta_valid(theta))
		return -EINVAL;
	site->config.theta = theta;
	return 0;
}

int site_set_share(struct site *site, double share, unsigned sites)
{
	if (site_busy(site))
		return -EBUSY;
	if (!site_share_valid(share, sites))
		return -EINVAL;
	site->config.share = share;
	site->config.sites = sites;
	return 0;
}

int site_flush(struct site *site)
{
	if (site_busy(site))
		return -EBUSY;
	site->flushing = true;
	return 0;
}

void site_extra(struct site *site)
{
	site->extra = site->since == 0;
}

int site_join(struct site *site, uint64_t steps)
{
	size_t bytes = site->elements * sizeof(float);

	if (site_busy(site))
		return -EBUSY;
	if (site->residual)
		memset(site->residual, 0, bytes);
	if (site->velocity)
		memset(site->velocity, 0, bytes);
	for (unsigned t = 0; site->anchor && t < site->config.tensor_count; t++)
		memcpy(site->anchor + site->offset[t], site->tensors[t].weights,
			site->tensors[t].elements * sizeof(float));
	if (site->outer[0])
		outer_reset(&site->config.outer, site->outer, site->elements);
	site->counts.steps = steps;
	site->since = 0;
	site->flushing = false;
	return 0;
}

int site_advance(struct site *site, uint64_t steps)
{
	if (site_busy(site))
		return -EBUSY;
	site->counts.steps = steps;
	site->since = 0;
	return 0;
}

bool site_mend(struct site *site)
{
	float *const own[] = {site->residual, site->velocity};
	bool sound = true;

	if (site_busy(site))
		return false;
	for (unsigned a = 0; a < sizeof(own) / sizeof(own[0]); a++)
		for (size_t i = 0; own[a] && i < site->elements; i++)
			own[a][i] = finite_all(&own[a][i], 1) ? own[a][i] : 0;
	for (unsigned t = 0; t < site->config.tensor_count; t++)
		if (site->tensors[t].trained || site_exchanges(site, t))
			sound = finite_all(site->tensors[t].weights, site->tensors[t].elements) && sound;
	return sound;
}

static float site_common_of(const struct site *site, unsigned t, uint32_t i)
{
	size_t at = site->offset[t] + i;
	float w = site->tensors[t].weights[i];

	if (site->config.algorithm == SITE_LOCAL)
		return site->anchor[at];
	return site->config.algorithm == SITE_GAIA && site->tensors[t].trained ? w - site->residual[at] : w;
}

void site_common(const struct site *site, unsigned t, float *out)
{
	for (uint32_t i = 0; i < site->tensors[t].elements; i++)
		out[i] = site_common_of(site, t, i);
}

int site_rebase(struct site *site, unsigned t, const float *common)
{
	if (site_busy(site))
		return -EBUSY;
	if (t >= site->config.tensor_count)
		return -EINVAL;
	for (uint32_t i = 0; i < site->tensors[t].elements; i++) {
		float own = site_common_of(site, t, i), *w = &site->tensors[t].weights[i], moved;

		if (common[i] == own) /* where a rounding would still move the weight */
			continue;
		moved = *w - own;
		*w = finite_all(&moved, 1) ? common[i] + moved : common[i];
		if (site->config.algorithm == SITE_LOCAL)
			site->anchor[site->offset[t] + i] = common[i];
	}
	return 0;
}

double site_residual_square(const struct site *site, unsigned t)
{
	double square = 0;

	if (!site_exchanges(site, t))
		return 0;
	for (uint32_t i = 0; i < site->tensors[t].elements; i++) {
		size_t at = site->offset[t] + i;
		double r = site->residual
				   ? site->residual[at]
				   : site->config.share * ((double)site->tensors[t].weights[i] - site->anchor[at]);

		square += r * r;
	}
	return square;
}
