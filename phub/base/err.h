/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text that goes with a negative errno: what failed, which job, key or peer, why, and what to do.
 * Functions that can explain a failure take a `struct err *`, last but for their results. Any thread; never blocks.
 */
#ifndef PHUB_BASE_ERR_H
#define PHUB_BASE_ERR_H

#define ERR_TEXT_MAX 512

struct err {
	int code; /* negative errno, 0: nothing happened */
	char text[ERR_TEXT_MAX];
};

/*
 * Fills `e` and returns `code`, a negative errno, so that `return err_set(e, -EINVAL, ...)` is one line. A text that is
 * too long is cut and ends in "...". `e` may be NULL: the caller wants the code alone. What `e` held is overwritten,
 * but may be an argument: err_set(e, e->code, "job %s: %s", job, e->text) adds the context that the callee lacked.
 */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
