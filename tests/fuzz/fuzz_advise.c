/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: any bytes as a line that a site says to phub scout advise. What is accepted keeps to its bounds, and a scout
 * decides on it; what is refused is answered by a line.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "phub/cli/advise_line.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

static void fuzz_answer(size_t length, const char *answer)
{
	fuzz_require(length > 2 && length <= ADVISE_ANSWER_BYTES);
	fuzz_require(answer[0] == '{' && memchr(answer, '\n', length) == answer + length - 1);
}

static void fuzz_plus(const struct advise_line *line)
{
	fuzz_require(line->exchanges <= ADVISE_EXCHANGES_MAX && line->weight > 0 && isfinite(line->weight));
	fuzz_require(line->averaged <= ADVISE_SITES_MAX);
	fuzz_require(line->report.unfit == SCOUT_FIT || line->report.unfit == SCOUT_BROKEN);
	fuzz_require(isnan(line->rate) || (line->rate >= 0 && isfinite(line->rate)));
	if (line->exchanges > 0)
		fuzz_require(line->said >= 0 && isfinite(line->said) && line->heard >= 0 && isfinite(line->heard));
	fuzz_require(line->report.trained == 0 || isfinite(line->report.train));
	fuzz_require(line->report.tried == 0 || isfinite(line->report.after));
}

static void fuzz_decide(const struct advise_line *line, enum scout_policy policy)
{
	struct scout_config config;
	struct scout_decision decision;
	char answer[ADVISE_ANSWER_BYTES];
	struct scout scout;
	struct err e;

	scout_defaults(&config);
	config.policy = policy;
	config.thetas[0] = 1;
	config.thetas[1] = 20;
	config.theta_count = 2;
	config.model_bytes = 1000;
	config.plus.need[1] = 0.1;
	fuzz_require(scout_init(&scout, &config, &e) == 0);
	for (unsigned window = 0; window < 5; window++) {
		if (line->exchanges > 0)
			scout_hear_all(&scout, line->exchanges, line->said, line->heard, 1, line->rate);
		fuzz_require(scout_observe(&scout, &line->report, 1, &decision) == 0);
	}
	fuzz_require(decision.theta == 1 || decision.theta == 20);
	fuzz_answer(advise_line_answer(&decision, answer), answer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char answer[ADVISE_ANSWER_BYTES];
	struct advise_line line;
	struct err e = {0};
	int rc = advise_line_parse((const char *)data, size, 3, &line, &e);

	if (rc < 0) {
		fuzz_require(e.text[0] && (rc == -EBADMSG || rc == -EINVAL));
		if (rc == -EINVAL)
			fuzz_require(line.site < 3 && (line.step <= UINT64_C(1) << 53 || line.step == UINT64_MAX));
		fuzz_answer(advise_line_error(e.text, answer), answer);
		return 0;
	}
	fuzz_require(line.site < 3 && line.step <= UINT64_C(1) << 53 && line.report.bytes <= UINT64_C(1) << 53);
	fuzz_require(memchr(line.secret, '\0', sizeof(line.secret)) != NULL);
	if (line.report.samples > 0 && line.report.unfit == SCOUT_FIT)
		fuzz_require(line.report.home >= 0 && line.report.home <= 1 && line.report.away >= 0 &&
			     line.report.away <= 1);
	fuzz_plus(&line);
	fuzz_decide(&line, SCOUT_HILL);
	fuzz_decide(&line, SCOUT_PLUS);
	return 0;
}
