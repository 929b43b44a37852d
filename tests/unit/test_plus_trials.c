/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many samples scout+ asks for where a trial is not far from what its guard is against.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "client/scout/plus.h"

/* Then the next two are of few samples, too. */
static void test_doubtful(void **state)
{
	static const double grid[] = {1};

	(void)state;
	for (unsigned run = 0; run < 2; run++) {
		struct plus_config config;
		struct plus_verdict verdict = {.tries = 0};
		struct plus plus;
		unsigned few = 0;

		plus_defaults(&config);
		assert_int_equal(plus_needs(&config, SITE_LOCAL, grid, 1), 0);
		plus_init(&plus);
		for (unsigned i = 0; i < 40; i++) {
			const struct plus_window now = {.exchanges = 10,
				.said = 10,
				.heard = 2,
				.sites = 5,
				.rate = 0.1,
				.train = 1,
				.before = NAN,
				.after = verdict.tries == 0 ? NAN
					 : run              ? 1.3
							    : 1.2,
				.trained = 1000,
				.tried = verdict.tries};

			plus_next(&plus, &config, &now, 0, 1, 3, &verdict);
			few += verdict.tries == PLUS_FEW;
		}
		assert_true(run ? few > 30 : few == 2);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_doubtful)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
