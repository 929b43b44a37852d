/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be known to be wrong before a box or a site starts, so that it is said once, and nothing is overwritten for
 * nothing. Control thread. But for scout_check_box() nothing here blocks.
 */
#ifndef PHUB_CLI_SCOUT_CHECK_H
#define PHUB_CLI_SCOUT_CHECK_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/cli/args.h"

struct scout_config;

/* Of --seed: one more stands for one that is not given. */
#define SCOUT_SEED_MAX (UINT64_MAX - 1)

/* A scout's options as a command line has them; what policies look at and what they do not. */
struct scout_given {
	int policy;                                           /* -1: not known */
	int unit;                                             /* of costs, likewise */
	double theta, sigma, gain, lambda_loss, lambda_bytes; /* NaN: not given */
	double worth, ease, trim;                             /* likewise */
	double rate, latency, price;
};

/* A struct scout_given of which nothing is given. */
#define SCOUT_GIVEN_NONE                                                                                               \
	{                                                                                                              \
		.policy = -1, .unit = -1, .theta = NAN, .sigma = NAN, .gain = NAN, .lambda_loss = NAN,                 \
		.lambda_bytes = NAN, .worth = NAN, .ease = NAN, .trim = NAN, .rate = NAN, .latency = NAN, .price = NAN \
	}

/* What is given of costs goes into the configuration; the rest of that stays. */
void scout_check_take(const struct scout_given *given, struct scout_config *config);

/* ARGS_GO_ON; CLI_USAGE after saying which option is outside its limits, of other policies, or of another unit, and of
 * which. */
int scout_check_given(const struct args_usage *usage, const struct scout_given *given);

/* Is `theta`, which an option gives, one of the grid? ARGS_GO_ON, or CLI_USAGE after saying so. NaN: it is not given,
 * and *index stays. */
int scout_check_theta(
	const struct args_usage *usage, double theta, const double *thetas, unsigned count, unsigned *index);

/* What sites will find in their environment, which is this process's: does it fit some algorithm, or the one that is in
 * it? Of what a program itself says nothing is known. 0; -EINVAL, -ENOTSUP. */
int scout_check_environment(struct err *e);

/* Can a decision log be written there? One that is there may go; anything else may not. 0; -EINVAL: what is there is no
 * regular file; -EEXIST: it is no decision log; errors of access(2); as scout_check_room(). */
int scout_check_log(const char *path, struct err *e);
/* Has the file system room for a block more beside this path? 0, also where that cannot be tried; -ENOSPC, -EDQUOT and
 * others of write(2). */
int scout_check_room(const char *path, struct err *e);

/* That no other run writes the log at PATH meanwhile: PATH.lock is there, and locked, until scout_check_release(), or
 * the process is no more. -EBUSY with the reason: one does. 0, and *lock is -1 where no file can be locked. */
int scout_check_claim(const char *path, int *lock, struct err *e);
void scout_check_release(const char *path, int lock);

/* What has become of a log that is there. */
enum scout_check_aside {
	SCOUT_CHECK_ALONE, /* there is none */
	SCOUT_CHECK_ASIDE, /* it has gone to PATH.before, and comes back where there is no new one */
	/* PATH.before is of the same run, which was broken off more than once: that of PATH stands behind it now; */
	SCOUT_CHECK_JOINED,
	SCOUT_CHECK_JOINED_BROKEN, /* or PATH.broken is */
	/* There was one at PATH.before, of a run before that of PATH. It stays there, and that of PATH, which was
	 * broken off, goes, as there is nothing in it; */
	SCOUT_CHECK_KEPT,
	SCOUT_CHECK_BROKEN,   /* or has gone to PATH.broken, as its run may go on; */
	SCOUT_CHECK_REPLACED, /* or that of PATH takes its place */
};

/* Of PATH and PATH. */
#define SCOUT_CHECK_KEPT_TEXT \
	"%s was of a run that was broken off, and has gone; %s.before, of the run before that, stays"

/*
 * Makes room for a log at PATH, with no line lost of a run that may go on: where sites begin again from what they have
 * saved, the log of all is that which was put aside, and that of PATH behind it. Of two that are there, which one goes?
 * `keeps_older`: that of PATH, where it was broken off and has no last line, but to PATH.broken. Else a run goes on,
 * and what it has written is wanted: that of PATH goes only where it has no more than its first line. Errors of
 * rename(2), and of write(2), with all as it was; -ENAMETOOLONG; as scout_check_log(): what is at PATH.before, or is to
 * be written to beside it, is something else, and is in the way.
 */
int scout_check_aside(const char *path, bool keeps_older, struct err *e);

/* What was put aside of the run whose log is at PATH: "before", "broken", or NULL: nothing. */
const char *scout_check_part(const char *path);

/* What has come of a log. */
enum scout_check_fate {
	SCOUT_CHECK_NONE,  /* nobody has opened it */
	SCOUT_CHECK_EMPTY, /* somebody has, and has written nothing */
	SCOUT_CHECK_CUT,   /* it ends in the middle of a line */
	SCOUT_CHECK_LINES, /* whole ones */
};

/* The run is over. A log that was put aside comes back where there is no new one, and stays where there is. */
enum scout_check_fate scout_check_settle(const char *path, enum scout_check_aside was);

/* Is there such a program? 0; -ENOENT; -EACCES. */
int scout_check_command(const char *name, struct err *e);

/* Is it a URL of a box, or of an etcd that knows of one? 0; -EINVAL with the reason in `e`. Nobody is asked. */
int scout_check_url(const char *url, struct err *e);

/* Does somebody listen at the box of this URL, or at its other one? Of an etcd's nothing is known. Blocks for
 * `timeout_ms` at most. 0; -EINVAL: it is no URL of a box; -ETIMEDOUT, -ECONNREFUSED and others of connect(2), with
 * what to do. */
int scout_check_box(const char *url, int timeout_ms, struct err *e);

#endif
