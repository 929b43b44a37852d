/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What sites and phub scout advise say to each other: a line of JSON each way. Whoever can reach the socket writes
 * these: nothing in one is believed before it was looked at here. Pure.
 *
 *      {"site":2,"step":1000,"home":{"correct":370,"samples":400},"away":{"correct":331,"samples":400},"bytes":30952}
 *      {"sync_every":10,"theta":10,"window":1,"action":"tightens","reason":"..."}
 *      {"error":"..."}
 */
#ifndef PHUB_CLI_ADVISE_LINE_H
#define PHUB_CLI_ADVISE_LINE_H

#include <stddef.h>
#include <stdint.h>

#include "client/scout/scout.h"
#include "phub/base/err.h"

enum { ADVISE_LINE_MAX = 4096, ADVISE_SECRET_BYTES = 256, ADVISE_ANSWER_BYTES = 1024 };

struct advise_line {
	unsigned site;
	uint64_t step;                    /* of the run; 0: only asks what theta is */
	struct scout_report report;       /* without home or away, or with less than one sample, it says nothing */
	char secret[ADVISE_SECRET_BYTES]; /* "": none */
};

/*
 * 0; -EBADMSG with the reason in `e`: not one object of JSON; no site of `sites` or no step; a field of another kind, a
 * count that is negative, beyond 2^53, or of more correct ones than samples; a secret that is too long. Fields that are
 * not known are passed over.
 */
int advise_line_parse(const char *text, size_t length, unsigned sites, struct advise_line *out, struct err *e);

/* Each a whole line; returns its length. */
size_t advise_line_answer(const struct scout_decision *decision, char out[ADVISE_ANSWER_BYTES]);
size_t advise_line_error(const char *text, char out[ADVISE_ANSWER_BYTES]);

#endif
