/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line per event, for operators. Without a sink nothing is formatted or written: so libphub is silent inside its
 * host process, and phubd and the tools set log_sink_stderr at start. Never called on the data path.
 */
#ifndef PHUB_BASE_LOG_H
#define PHUB_BASE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"

#define LOG_LINE_MAX 1024 /* longer lines are cut and end in "..." */

enum log_level {
	LOG_LEVEL_ERROR, /* something ended: a connection, a job, the box */
	LOG_LEVEL_WARN,  /* it goes on, but an operator should look */
	LOG_LEVEL_INFO,  /* what an operator expects to read; the default */
	LOG_LEVEL_DEBUG, /* for those who read the source */
};

/*
 * Where lines go from now on; call it before other threads log. NULL ends it. The sink is called by whoever logs, by
 * several threads at once, with a finished line without its end; control characters were replaced by '?', so that what
 * a peer sent cannot forge a line or drive a terminal. `ctx` is the caller's and outlives the logging.
 */
void log_set_sink(void (*sink)(void *ctx, enum log_level level, const char *line), void *ctx);

/* A sink: the line to stderr in one write(), "2024-05-31T12:00:00.123Z warn  text". `ctx` is unused. */
void log_sink_stderr(void *ctx, enum log_level level, const char *line);

/* Any thread, any time. */
void log_set_level(enum log_level level);
enum log_level log_level(void);

/* Sets the level called error, warn, info or debug. 0, or -EINVAL with the allowed names in `e`. Any thread. */
int log_set_level_name(const char *name, struct err *e);

/* log_set_level_name() of the environment variable PHUB_LOG; 0 also when that is not set or empty. */
int log_set_level_from_env(struct err *e);

/* Any thread; may block in the sink. errno is left as it was. */
void log_write(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Was a line of warn or error written since the process began? Any thread. */
bool log_has_warned(void);

#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...)  log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)

/*
 * One per place that strangers can make log: at most one line per interval. Zero-initialized; any thread.
 *
 *	static struct log_limit limit;
 *	char more[LOG_QUIET_BYTES];
 *	uint64_t quiet;
 *	if (log_limit_pass(&limit, now_ns, NS_PER_S, &quiet))
 *		log_warn("%s: bad frame%s", peer, log_quiet(quiet, more));
 */
struct log_limit {
	_Atomic uint64_t open_ns; /* passes from then on; exchanged by the thread that passes */
	_Atomic uint64_t quiet;
};

/* True when a line may be written now; then `quiet` is how many were not since the last that was. */
bool log_limit_pass(struct log_limit *limit, uint64_t now_ns, uint64_t interval_ns, uint64_t *quiet);

/* Returns `out`: " (N more were not logged)", or nothing where none were kept back. */
#define LOG_QUIET_BYTES 48
const char *log_quiet(uint64_t quiet, char out[LOG_QUIET_BYTES]);

#endif
