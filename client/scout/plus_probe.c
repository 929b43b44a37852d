/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Falls of the loss are paired: a window's is of the trials before and after it, on the same samples.
 */
#include "client/scout/plus_probe.h"

#include <math.h>

/* Numbers at which intervals are narrowest: probes are few. */
enum { PLUS_BEST_PROBES = 16, PLUS_BEST_USUAL = 64 };

void plus_probe_forget(struct plus_probe *probe)
{
	probe->usual = probe->probes = (struct sequence){0};
}

/* The interval of the difference is no wider than both. */
void plus_probe_gain(const struct plus_probe *p, const struct plus_config *c, double *gain, double *radius)
{
	const double as_long = p->samples > 0 ? p->samples : 1;

	*gain = p->probes.count && p->usual.count ? as_long * (p->probes.mean - p->usual.mean) : NAN;
	*radius = as_long * (sequence_radius(&p->probes, c->alpha / 2, PLUS_BEST_PROBES) +
				    sequence_radius(&p->usual, c->alpha / 2, PLUS_BEST_USUAL));
}

enum plus_worth plus_probe_learn(struct plus_probe *p, const struct plus_config *c, const struct plus_window *w,
	const struct plus_past *past, double *gain, double *radius)
{
	const double fell = w->before - w->after, least = c->worth > 0 ? p->extra / c->worth : c->sigma;
	const bool probed = past->phase == PLUS_PROBES;
	enum plus_worth says = PLUS_UNCERTAIN;

	if (!isfinite(fell) || !plus_past_compares(past) || (past->phase != PLUS_STAYS && !probed))
		return says;
	sequence_add(probed ? &p->probes : &p->usual, past->trained > 0 ? fell / past->trained : fell);
	if (!probed)
		return says;
	p->samples = past->trained;
	plus_probe_gain(p, c, gain, radius);
	if (*gain - *radius > least)
		says = PLUS_WORTH_IT;
	else if (*gain + *radius < least)
		says = PLUS_NOT_WORTH_IT;
	if (says != PLUS_UNCERTAIN)
		plus_probe_forget(p);
	return says;
}

/* ---- budgets ---- */

void plus_budget_spend(struct plus_budget *b, const struct plus_window *w, const struct plus_past *past, bool probes)
{
	b->bytes += w->bytes;
	b->bytes_probes += probes ? w->bytes : 0;
	b->trained += w->trained > 0 ? w->trained : 0;
	b->tried += w->tried > 0 ? w->tried : 0;
	if (w->tried > 0)
		b->each = w->tried > past->asked ? w->tried : 0;
}

/* Is there work left for two trials of so many samples, before a window and after it? One that is tried is about a
 * third of one that is trained on: forward, and not backward. */
static bool plus_budget_affords(const struct plus_budget *b, const struct plus_config *c, uint32_t samples)
{
	return b->tried + 2 * fmax(samples, b->each) <= 3 * c->work_part * b->trained;
}

/* One trial alone says little: to what was tried before a window belongs what is tried after it. */
uint32_t plus_budget_tries(struct plus_budget *b, const struct plus_config *c, uint32_t samples)
{
	const uint32_t second = b->second;

	b->second = second == 0 && plus_budget_affords(b, c, samples) ? samples : 0;
	return second > 0 ? second : b->second;
}

/* One whose gain nobody can see is not worth it, but where nobody ever will. */
bool plus_budget_affords_probe(const struct plus_budget *b, const struct plus_config *c, const struct plus_window *w)
{
	const bool seen = !(b->trained > 0) || (b->second == 0 && plus_budget_affords(b, c, c->tries));

	return seen && b->bytes_probes + w->bytes_bsp <= c->bytes_part * b->bytes;
}
