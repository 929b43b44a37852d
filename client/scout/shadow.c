/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shadow is the site itself with other accumulators and another theta, asked what it would say.
 */
#include "client/scout/shadow.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "client/scout/site_internal.h"

static uint32_t shadow_largest(const struct site *site)
{
	uint32_t largest = 0;

	for (unsigned t = 0; t < site->config.tensor_count; t++)
		if (site->tensors[t].elements > largest)
			largest = site->tensors[t].elements;
	return largest;
}

static int shadow_allocate(struct shadow *s, const struct site *site)
{
	const bool gaia = site->config.algorithm == SITE_GAIA, dgc = site->config.algorithm == SITE_DGC;
	const size_t arrays = s->count * ((size_t)gaia + 2 * (size_t)dgc) + gaia;
	size_t floats;
	float *at;

	if (!gaia && !dgc)
		return 0;
	if (__builtin_mul_overflow(s->elements, arrays, &floats) ||
		floats > PTRDIFF_MAX / sizeof(float) - shadow_largest(site))
		return -ENOMEM;
	at = s->block = calloc(floats + shadow_largest(site), sizeof(float));
	if (!at)
		return -ENOMEM;
	s->residual = at;
	at += s->count * s->elements;
	if (dgc) {
		s->velocity = at;
		at += s->count * s->elements;
	} else {
		s->anchor = at;
		at += s->elements;
	}
	s->said = at;
	return 0;
}

int shadow_check(enum site_algorithm algorithm, const double *thetas, unsigned count, struct err *e)
{
	if (count == 0 || count > SHADOW_THETAS_MAX)
		return err_set(e, -EINVAL, "shadow: %u thetas; needs 1 to %u", count, SHADOW_THETAS_MAX);
	for (unsigned i = 0; i < count; i++) {
		if (!site_theta_valid(algorithm, thetas[i]))
			return err_set(e, -EINVAL, "shadow: %s cannot have a theta of %g; allowed: %s",
				site_algorithm_name(algorithm), thetas[i], site_thetas(algorithm));
		for (unsigned k = 0; k < i; k++)
			if (thetas[k] == thetas[i])
				return err_set(e, -EINVAL, "shadow: theta %g is there twice", thetas[i]);
	}
	return 0;
}

int shadow_init(struct shadow *shadow, const struct site *site, const double *thetas, unsigned count, struct err *e)
{
	int rc = shadow_check(site->config.algorithm, thetas, count, e);

	if (rc < 0)
		return rc;
	*shadow = (struct shadow){.count = count, .elements = site->elements};
	memcpy(shadow->theta, thetas, count * sizeof(*thetas));
	rc = shadow_allocate(shadow, site);
	return rc ? err_set(e, rc, "shadow: no memory for %u thetas of %zu elements", count, site->elements) : 0;
}

void shadow_fini(struct shadow *shadow)
{
	free(shadow->block);
	*shadow = (struct shadow){0};
}

void shadow_join(struct shadow *s)
{
	if (s->residual)
		memset(s->residual, 0, s->count * s->elements * sizeof(float));
	if (s->velocity)
		memset(s->velocity, 0, s->count * s->elements * sizeof(float));
	memset(s->since, 0, sizeof(s->since));
}

/* The site as it would be at theta i, but for what it would not change here. */
static struct site shadow_view(const struct shadow *s, const struct site *site, unsigned i)
{
	struct site view = *site;

	view.config.theta = s->theta[i];
	view.since = s->since[i];
	if (s->residual)
		view.residual = s->residual + i * s->elements;
	if (s->velocity)
		view.velocity = s->velocity + i * s->elements;
	if (s->anchor)
		view.anchor = s->anchor;
	return view;
}

/* Gaia's momentum is the same at all thetas, and so is the step: what the site has just added to its own residual. */
static void shadow_take_gaia(struct site *view, unsigned t)
{
	const float rate = (float)(view->rate * view->config.share);
	const float *v = view->velocity + view->offset[t];
	float *r = view->residual + view->offset[t];

	for (uint32_t i = 0; i < view->tensors[t].elements; i++)
		r[i] += -rate * v[i];
}

static void shadow_take(struct site *view, const float *const *gradients, double scale)
{
	for (unsigned t = 0; t < view->config.tensor_count; t++) {
		if (!view->tensors[t].trained)
			continue;
		if (view->config.algorithm == SITE_GAIA)
			shadow_take_gaia(view, t);
		else
			view->ops->step(view, t, gradients[t], scale);
	}
}

static uint64_t shadow_say(const struct shadow *s, struct site *view)
{
	uint64_t bytes = 0;

	for (unsigned t = 0; t < view->config.tensor_count; t++) {
		uint64_t whole = (uint64_t)view->tensors[t].elements * SITE_VALUE_BYTES, sparse = whole;

		if (!site_exchanges(view, t))
			continue;
		if (view->residual && s->said)
			sparse = view->ops->offer(view, t, s->said) * (uint64_t)(SITE_INDEX_BYTES + SITE_VALUE_BYTES);
		bytes += sparse < whole ? sparse : whole;
	}
	return bytes;
}

void shadow_step(struct shadow *s, const struct site *site, const float *const *gradients)
{
	const double scale = s->velocity && gradients ? site->ops->scale(site, gradients) : 1;

	for (unsigned i = 0; i < s->count; i++) {
		struct site view;

		s->since[i]++;
		view = shadow_view(s, site, i);
		if (s->residual && gradients)
			shadow_take(&view, gradients, scale);
		if (!site_due(&view))
			continue;
		s->bytes[i] += shadow_say(s, &view);
		s->since[i] = 0;
	}
}
