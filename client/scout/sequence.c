/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Additions, multiplications, divisions and square roots alone, which IEEE 754 rounds alike everywhere.
 */
#include "client/scout/sequence.h"

#include <math.h>
#include <stdbool.h>

static const double ln2 = 0.693147180559945309;

double exact_exp(double x)
{
	double sum = 1, term = 1, rest;
	int twos;

	if (isnan(x))
		return x;
	if (x < -700)
		return 0;
	if (x > 700)
		return INFINITY;
	twos = (int)(x / ln2);
	rest = x - twos * ln2;
	for (int i = 1; i < 24; i++) {
		term = term * rest / i;
		sum += term;
	}
	return ldexp(sum, twos);
}

/* ln(2^e m) = e ln 2 + 2 atanh((m - 1) / (m + 1)), with m in sqrt(1/2) .. sqrt(2). */
double exact_log(double x)
{
	int twos;
	double m, q, square, power, sum = 0;

	if (!(x > 0))
		return x == 0 ? -INFINITY : NAN;
	if (isinf(x))
		return x;
	m = frexp(x, &twos);
	if (m < 0.70710678118654752) {
		m *= 2;
		twos--;
	}
	q = (m - 1) / (m + 1);
	square = q * q;
	power = q;
	for (int i = 1; i < 32; i += 2) {
		sum += power / i;
		power *= square;
	}
	return twos * ln2 + 2 * sum;
}

void sequence_add(struct sequence *s, double x)
{
	const double before = x - s->mean;

	s->count++;
	s->mean += before / (double)s->count;
	s->spread += before * (x - s->mean);
}

double sequence_deviation(const struct sequence *s)
{
	return s->count < 2 ? INFINITY : sqrt(s->spread / (double)(s->count - 1));
}

/*
 * With the prior N(0, 1 / c) on the mean in deviations, t^2 = n (mean - m)^2 / deviation^2 and a = c / (n + c), the
 * odds against m are sqrt(a) ((1 + t^2 / (n - 1)) / (1 + a t^2 / (n - 1)))^(n / 2), and never 1 / alpha but with a
 * probability of alpha. What is inside are those m whose odds are less.
 */
double sequence_radius(const struct sequence *s, double alpha, uint64_t best)
{
	const double n = (double)s->count, l = -2 * exact_log(alpha);
	const double c = (double)best / (l + exact_log(l) + 1), a = c / (n + c);
	double most, beyond;

	if (s->count < 2)
		return INFINITY;
	most = exact_exp((l - exact_log(a)) / n); /* (1 / (alpha sqrt(a)))^(2 / n) */
	if (!(most * a < 1))
		return INFINITY;
	beyond = (most - 1) / (1 - most * a);
	return sequence_deviation(s) * sqrt((n - 1) / n * beyond);
}

void evidence_add(struct evidence *evidence, double x, double enough)
{
	double begins;

	if (isnan(x))
		return;
	evidence->count++;
	begins = 1 / ((double)evidence->count * ((double)evidence->count + 1));
	evidence->odds = fmin(enough, (evidence->odds + begins) * exact_exp(fmin(x, EVIDENCE_MOST) - 0.5));
}

/* Of the number that comes, of `count` in all, in a mean of `memory` or so: at first that of all of them. */
static double watch_part(uint64_t count, uint64_t memory)
{
	return 1.0 / (double)(count < memory ? count : memory);
}

enum watch_alarm watch_add(struct watch *w, double x, double slack, double bound)
{
	const bool known = w->count >= WATCH_KNOWN;
	const double deviation = known ? sqrt(w->spread) : 0, most = WATCH_ODD * fmax(w->spread, slack * slack);
	const double step = x - w->last, square = step * step / 2;
	double beyond;

	if (w->count > 0)
		w->spread += ((known ? fmin(square, most) : square) - w->spread) * watch_part(w->count, WATCH_SPREAD);
	w->last = x;
	w->count++;
	w->mean += (x - w->mean) * watch_part(w->count, WATCH_MEMORY);
	beyond = x - w->mean;
	slack = fmax(slack, deviation);
	bound = fmax(bound, WATCH_FAR * deviation);
	w->up = fmax(0, w->up + beyond - slack);
	w->down = fmax(0, w->down - beyond - slack);
	if (w->up > bound)
		return WATCH_RISEN;
	return w->down > bound ? WATCH_FALLEN : WATCH_QUIET;
}
