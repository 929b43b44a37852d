/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/cli/advise_moves.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int moves_compare(const void *a, const void *b)
{
	const double one = *(const double *)a, other = *(const double *)b;

	return (one > other) - (one < other);
}

/* Of what is one for all, and some may lie about; of two the higher. */
static double moves_middle(double *values, unsigned count)
{
	qsort(values, count, sizeof(*values), moves_compare);
	return values[count / 2];
}

static bool moves_has(const struct advise_line *line)
{
	return line && line->exchanges > 0;
}

/* Of learning, which is one for all: of two the higher, as theta may be looser by a lower one. */
static void moves_hear_rates(struct advise_moves *m, const struct advise_line *const *lines, unsigned sites)
{
	double rates[ADVISE_SITES_MAX];
	unsigned count = 0;

	for (unsigned k = 0; k < sites; k++)
		if (moves_has(lines[k]) && !isnan(lines[k]->rate))
			rates[count++] = lines[k]->rate;
	if (count > 0)
		m->rate = moves_middle(rates, count);
}

/* ---- weights ---- */

/* Beyond which one is heavy: of two in the middle the lower counts. None is said: all are within. */
static double moves_cap(const struct advise_moves *m, unsigned sites)
{
	double known[ADVISE_SITES_MAX];
	unsigned count = 0;

	for (unsigned k = 0; k < sites; k++)
		if (m->weights[k] > 0)
			known[count++] = m->weights[k];
	if (count == 0)
		return INFINITY;
	qsort(known, count, sizeof(*known), moves_compare);
	return MOVES_HEAVY * known[(count - 1) / 2];
}

/* Each as a part of the heaviest, so that sums are finite. */
static void moves_weigh(const struct advise_moves *m, unsigned sites, double cap, bool all, double *weights)
{
	double most = 0;

	for (unsigned k = 0; k < sites; k++) {
		weights[k] = all || m->capped[k] ? fmin(m->weights[k], cap) : m->weights[k];
		most = fmax(most, weights[k]);
	}
	for (unsigned k = 0; k < sites; k++)
		weights[k] /= most;
}

/* One by how many sites the mean is of, as they weigh: of `averaged`, or of all for 0. Who is late weighs what it did,
 * or one heavy site that is would look like other sites. Who is not known, as where the mean is of fewer than have ever
 * said a weight, is like those that are. */
static double moves_squares(
	const double *weights, const struct advise_line *const *lines, unsigned sites, double averaged)
{
	double sum = 0, squares = 0;
	unsigned known = 0, count = 0;
	bool all;

	for (unsigned k = 0; k < sites; k++)
		known += weights[k] > 0;
	all = averaged == 0 || averaged >= known;
	for (unsigned k = 0; k < sites; k++)
		if (weights[k] > 0 && (all || moves_has(lines[k]))) {
			sum += weights[k];
			count++;
		}
	for (unsigned k = 0; k < sites; k++)
		if (weights[k] > 0 && (all || moves_has(lines[k])))
			squares += weights[k] / sum * (weights[k] / sum);
	return fmin(squares * count / (averaged > 0 ? averaged : (double)sites), 1);
}

/* In an exchange, beyond which one is far; where most have not moved nobody is. */
static double moves_most(const struct advise_line *const *lines, unsigned sites)
{
	double said[ADVISE_SITES_MAX], middle;
	unsigned count = 0;

	for (unsigned k = 0; k < sites; k++)
		if (moves_has(lines[k]))
			said[count++] = lines[k]->said / lines[k]->exchanges;
	middle = count > 0 ? moves_middle(said, count) : 0;
	return middle > 0 ? MOVES_FAR * middle : INFINITY;
}

/* In an exchange, the mean of sites. */
static double moves_said(const double *weights, const struct advise_line *const *lines, unsigned sites, double most)
{
	double sum = 0, said = 0;

	for (unsigned k = 0; k < sites; k++)
		sum += moves_has(lines[k]) ? weights[k] : 0;
	for (unsigned k = 0; k < sites; k++)
		said += moves_has(lines[k]) ? weights[k] / sum * fmin(lines[k]->said / lines[k]->exchanges, most) : 0;
	return said;
}

/* By weights as they are said, or, where that is tighter, by those within MOVES_HEAVY. */
static void moves_pull(struct advise_moves *m, const struct advise_line *const *lines, unsigned sites, double averaged,
	struct advise_moved *moved)
{
	const double cap = moves_cap(m, sites), most = moves_most(lines, sites);
	double weights[ADVISE_SITES_MAX], said, squares;

	for (unsigned k = 0; k < sites; k++)
		m->capped[k] = m->capped[k] && m->weights[k] > cap;
	moves_weigh(m, sites, cap, true, weights);
	said = moves_said(weights, lines, sites, most);
	squares = moves_squares(weights, lines, sites, averaged);
	moves_weigh(m, sites, cap, false, weights);
	moved->said = moves_said(weights, lines, sites, most);
	moved->squares = moves_squares(weights, lines, sites, averaged);
	if (!(moved->said * sqrt(moved->squares) >= said * sqrt(squares))) {
		moved->said = said;
		moved->squares = squares;
		for (unsigned k = 0; k < sites; k++)
			m->capped[k] = m->weights[k] > cap;
	}
	for (unsigned k = sites; k-- > 0;) {
		if (m->capped[k]) {
			moved->more += moved->heavy > 0;
			moved->heavy = k + 1;
		}
		if (moves_has(lines[k]) && lines[k]->said / lines[k]->exchanges > most) {
			moved->farther += moved->far > 0;
			moved->far = k + 1;
		}
	}
}

void advise_moves_hear(
	struct advise_moves *moves, const struct advise_line *const *lines, unsigned sites, struct advise_moved *moved)
{
	double heard[ADVISE_SITES_MAX], exchanges[ADVISE_SITES_MAX], averaged[ADVISE_SITES_MAX];
	unsigned count = 0;
	bool broken = false;

	*moved = (struct advise_moved){.said = NAN, .heard = NAN, .squares = NAN};
	for (unsigned k = 0; k < sites; k++) {
		broken |= lines[k] && lines[k]->report.unfit == SCOUT_BROKEN;
		if (!moves_has(lines[k]))
			continue;
		moves->weights[k] = lines[k]->weight;
		heard[count] = lines[k]->heard;
		exchanges[count] = lines[k]->exchanges;
		averaged[count++] = lines[k]->averaged;
	}
	moves_hear_rates(moves, lines, sites);
	if (2 * count < sites || count == 0 || broken)
		return;
	moves_pull(moves, lines, sites, moves_middle(averaged, count), moved);
	moved->exchanges = (unsigned)moves_middle(exchanges, count);
	moved->said *= moved->exchanges;
	moved->heard = moves_middle(heard, count);
}
