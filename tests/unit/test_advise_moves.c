/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What sites say of their moves to phub scout advise: an honest heavy site counts as it weighs, and no weight that one
 * says makes theta looser than one within MOVES_HEAVY times the middle one's would.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "phub/cli/advise_moves.h"
#include "tests/unit/chance.h"
#include "tests/unit/cmocka_shim.h"

#define CLOSE(a, b) assert_true(fabs((a) / (b)-1) < 1e-12)

enum { SITES = 5 };

static struct advise_moves moves;
static struct advise_line said[ADVISE_SITES_MAX];
static const struct advise_line *lines[ADVISE_SITES_MAX];

/* All report, weigh 1, and have moved by 4 in each of 10 exchanges. */
static int begin(void **state)
{
	moves = (struct advise_moves){.rate = NAN};
	for (unsigned k = 0; k < ADVISE_SITES_MAX; k++) {
		said[k] = (struct advise_line){
			.site = k, .exchanges = 10, .said = 40, .heard = 8, .weight = 1, .rate = 0.05};
		lines[k] = &said[k];
	}
	return 0;
}

/* The heaviest's weight against all others', which weigh 1. */
static void test_honest(void **state)
{
	const double weights[] = {1, 2, 3, 4, 100, 1e300};

	for (unsigned i = 0; i < sizeof(weights) / sizeof(weights[0]); i++) {
		const double rest = SITES - 1, all = weights[i] + rest;
		const double squares = weights[i] / all * (weights[i] / all) + rest / all / all;
		struct advise_moved moved;

		said[2].weight = weights[i];
		advise_moves_hear(&moves, lines, SITES, &moved);
		assert_int_equal(moved.exchanges, 10);
		assert_int_equal(moved.heavy, 0);
		CLOSE(moved.said, 40);
		CLOSE(moved.heard, 8);
		CLOSE(moved.squares, squares);
	}
}

/* It says that it has not moved, and that the mean is of it alone. */
static void test_lie(void **state)
{
	const double weights[] = {3, 1e9, 1e308};
	struct advise_moved moved;

	for (unsigned i = 0; i < sizeof(weights) / sizeof(weights[0]); i++) {
		said[2].weight = weights[i];
		said[2].said = 0;
		advise_moves_hear(&moves, lines, SITES, &moved);
		assert_int_equal(moved.heavy, 3);
		assert_int_equal(moved.more, 0);
		CLOSE(moved.said, 40 * 4 / 6.);
		CLOSE(moved.squares, 8 / 36.);
	}
	said[2].said = 40; /* and then moves as others do: it counts as it did, or sites would be others each time */
	advise_moves_hear(&moves, lines, SITES, &moved);
	assert_int_equal(moved.heavy, 3);
	CLOSE(moved.squares, 8 / 36.);
	said[2].weight = 1; /* until it says what may be */
	advise_moves_hear(&moves, lines, SITES, &moved);
	assert_int_equal(moved.heavy, 0);
	said[2].weight = 10;
	advise_moves_hear(&moves, lines, SITES, &moved);
	assert_int_equal(moved.heavy, 0);
	CLOSE(moved.squares, 104 / 196.);
}

/* Two of five: both are named. Two weights beyond all that a number holds have a sum nevertheless. */
static void test_two(void **state)
{
	struct advise_moved moved;

	for (unsigned k = 1; k < 4; k += 2) {
		said[k].weight = 1.7e308;
		said[k].said = 0;
	}
	advise_moves_hear(&moves, lines, SITES, &moved);
	assert_int_equal(moved.heavy, 2);
	assert_int_equal(moved.more, 1);
	CLOSE(moved.said, 40 * 3 / 7.);
	CLOSE(moved.squares, 11 / 49.);
}

/* Of two sites nobody is in the middle: the lighter one's weight counts. One is alone. */
static void test_few(void **state)
{
	struct advise_moved moved;

	said[0].weight = 1e9;
	said[0].said = 0;
	advise_moves_hear(&moves, lines, 2, &moved);
	assert_int_equal(moved.heavy, 1);
	CLOSE(moved.said, 40 / 3.);
	CLOSE(moved.squares, 5 / 9.);
	moves = (struct advise_moves){.rate = NAN};
	advise_moves_hear(&moves, lines, 1, &moved);
	assert_int_equal(moved.heavy, 0);
	CLOSE(moved.squares, 1);
}

/* Who is late weighs what it did, by which those that report count. */
static void test_late(void **state)
{
	struct advise_moved moved;

	said[0].weight = said[1].weight = said[2].weight = 10;
	advise_moves_hear(&moves, lines, SITES, &moved);
	lines[0] = lines[1] = NULL;
	advise_moves_hear(&moves, lines, SITES, &moved);
	assert_int_equal(moved.exchanges, 10);
	assert_int_equal(moved.heavy, 0);
	CLOSE(moved.squares, 302. / 32 / 32);
	lines[2] = NULL; /* two of five say too little */
	advise_moves_hear(&moves, lines, SITES, &moved);
	assert_int_equal(moved.exchanges, 0);
	assert_true(isnan(moved.said) && isnan(moved.heard) && isnan(moved.squares));
}

/* Who says that it has moved beyond all counts as MOVES_FAR times the middle one's; whoever is within, as it says. */
static void test_far(void **state)
{
	const double honest[] = {0, 10, 80, 160}, lies[] = {161, 800, 4e13, 1e308};
	struct advise_moved moved;

	for (unsigned i = 0; i < 4; i++) {
		said[4].said = honest[i];
		advise_moves_hear(&moves, lines, SITES, &moved);
		assert_int_equal(moved.far, 0);
		CLOSE(moved.said, (160 + honest[i]) / 5);
	}
	for (unsigned i = 0; i < 4; i++) {
		said[4].said = lies[i];
		advise_moves_hear(&moves, lines, SITES, &moved);
		assert_int_equal(moved.far, 5);
		assert_int_equal(moved.farther, 0);
		assert_int_equal(moved.heavy, 0);
		CLOSE(moved.said, 40 * 8 / 5.);
	}
	said[1].exchanges = 1; /* as much in fewer exchanges */
	said[4].said = 1e308;
	advise_moves_hear(&moves, lines, SITES, &moved);
	assert_int_equal(moved.far, 2);
	assert_int_equal(moved.farther, 1);
	CLOSE(moved.said, 40 * 11 / 5.);
	advise_moves_hear(&moves, lines, 2, &moved); /* of two nobody is in the middle: the higher one counts */
	assert_int_equal(moved.far, 0);
}

/* Most have not moved, as at a rate of 0: whoever has counts. */
static void test_still(void **state)
{
	struct advise_moved moved;

	for (unsigned k = 0; k < 4; k++)
		said[k].said = 0;
	advise_moves_hear(&moves, lines, SITES, &moved);
	assert_int_equal(moved.far, 0);
	CLOSE(moved.said, 8);
}

/* Whatever they say, theta goes by no less than if weights and moves were within their bounds. */
static void test_any(void **state)
{
	chance_seed = 8;
	for (unsigned round = 0; round < 20000; round++) {
		const unsigned sites = 2 + (unsigned)(6 * chance());
		double sum = 0, mean = 0, squares = 0, sorted[8], far[8], cap, most;
		struct advise_moved moved;

		moves = (struct advise_moves){.rate = NAN};
		for (unsigned k = 0; k < sites; k++) {
			said[k].weight = sorted[k] = exp(10 * chance() - 5);
			said[k].said = far[k] = exp(10 * chance() - 5);
			for (unsigned i = k; i > 0 && sorted[i] < sorted[i - 1]; i--) {
				const double swap = sorted[i];

				sorted[i] = sorted[i - 1];
				sorted[i - 1] = swap;
			}
			for (unsigned i = k; i > 0 && far[i] < far[i - 1]; i--) {
				const double swap = far[i];

				far[i] = far[i - 1];
				far[i - 1] = swap;
			}
		}
		cap = MOVES_HEAVY * sorted[(sites - 1) / 2];
		most = MOVES_FAR * far[sites / 2];
		for (unsigned k = 0; k < sites; k++)
			sum += fmin(said[k].weight, cap);
		for (unsigned k = 0; k < sites; k++) {
			mean += fmin(said[k].weight, cap) / sum * fmin(said[k].said, most);
			squares += fmin(said[k].weight, cap) / sum * fmin(said[k].weight, cap) / sum;
		}
		advise_moves_hear(&moves, lines, sites, &moved);
		assert_true(moved.said * sqrt(moved.squares) >= mean * sqrt(squares) * (1 - 1e-12));
	}
}

TEST_PROGRAM(test_advise_moves)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_honest, begin),
		cmocka_unit_test_setup(test_lie, begin),
		cmocka_unit_test_setup(test_two, begin),
		cmocka_unit_test_setup(test_few, begin),
		cmocka_unit_test_setup(test_late, begin),
		cmocka_unit_test_setup(test_far, begin),
		cmocka_unit_test_setup(test_still, begin),
		cmocka_unit_test_setup(test_any, begin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
