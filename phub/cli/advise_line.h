/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What sites and phub scout advise say to each other: a line of JSON each way. Whoever can reach the socket writes
 * these: nothing in one is believed before it was looked at here. Pure.
 *
 *      {"site":2,"step":1000,"home":{"correct":370,"samples":400},"away":{"correct":331,"samples":400},"bytes":30952}
 *      {"sync_every":10,"theta":10,"window":1,"tries":0,"action":"tightens","reason":"..."}
 *      {"error":"..."}
 *
 *      step        of the run
 *      bytes       that the site has sent in the window's averages, not since the start
 *
 * For the policy scout+, with d what a site has moved since the last average, and S the mean of all d:
 *
 *      {"site":2,"step":1000,"bytes":30952,"moves":{"exchanges":50,"said":0.031,"heard":0.0041},"weight":12000,
 *       "rate":0.05,"train":{"loss":301.5,"samples":1000},"before":{"loss":81.2,"samples":200},
 *       "after":{"loss":80.1,"samples":200}}
 *
 *      moves       of the window's averages: how many, and the sums of ||d||^2 and of ||S||^2; with "sites":K, of how
 * many sites the mean is, where that is not all weight      of this site in the mean, in any unit that sites share; 1
 *      rate        of learning, at the end
 *      train       loss of the site's own model on its batches, the sum over samples
 *      before,     that of the mean model at home, on as many samples always on the same, as the window before this one
 *      after       began, and as it ended: of what was tried because an answer had "tries" above 0, on at most as many
 *
 * JSON has no NaN and no infinity: what is none else, of correct, said, heard, loss and rate, is null, as are NaN,
 * Infinity and -Infinity, which Python's json writes nevertheless. A site whose own model it is that has come to that
 * (said, heard, the loss of train) is one of SCOUT_BROKEN; one without a count of what is correct has said nothing.
 */
#ifndef PHUB_CLI_ADVISE_LINE_H
#define PHUB_CLI_ADVISE_LINE_H

#include <stddef.h>
#include <stdint.h>

#include "client/scout/scout.h"
#include "phub/base/err.h"

enum {
	ADVISE_SITES_MAX = 1024,
	ADVISE_LINE_MAX = 4096,
	ADVISE_SECRET_BYTES = 256,
	ADVISE_ANSWER_BYTES = 1024,
	ADVISE_EXCHANGES_MAX = 1000000000,
};

struct advise_line {
	unsigned site;
	uint64_t step;                    /* of the run; 0: only asks what theta is; UINT64_MAX: see -EINVAL */
	struct scout_report report;       /* without home or away, or with less than one sample, it says nothing */
	unsigned exchanges;               /* 0: it says nothing of what it has moved: */
	double said, heard;               /* 0 or more */
	unsigned averaged;                /* sites that the mean is of, 1 .. ADVISE_SITES_MAX; 0: it was not said */
	double weight;                    /* above 0 */
	double rate;                      /* 0 or more; NaN: it was not said */
	char secret[ADVISE_SECRET_BYTES]; /* "": none */
};

/*
 * 0; -EBADMSG with the reason in `e`: it is nobody's, as it is not one object of JSON, has no site of `sites`, or a
 * secret that is none; -EINVAL likewise: it is no report, but says whose it is, and `out` has site, secret, and step,
 * UINT64_MAX where that is not said or is none. That is: a field is missing, or of another kind; a count is negative,
 * beyond 2^53, or of more correct ones than samples; a number is outside its limits. Fields that are not known are
 * passed over. Counts may be written as reals.
 */
int advise_line_parse(const char *text, size_t length, unsigned sites, struct advise_line *out, struct err *e);

/* Each a whole line; returns its length. */
size_t advise_line_answer(const struct scout_decision *decision, char out[ADVISE_ANSWER_BYTES]);
size_t advise_line_error(const char *text, char out[ADVISE_ANSWER_BYTES]);

#endif
