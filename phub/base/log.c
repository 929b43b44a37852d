/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/base/log.h"

#include <inttypes.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const log_level_names[] = {"error", "warn", "info", "debug"};

/* Written before other threads log (contract), so plain. */
static void (*log_sink)(void *ctx, enum log_level level, const char *line);
static void *log_sink_ctx;
/* Relaxed: a level guards nothing, a line more or less while it changes is no error. */
static _Atomic int log_level_now = LOG_LEVEL_INFO;
/* Relaxed likewise: it is looked at when those who log have ended. */
static _Atomic bool log_warned;

void log_set_sink(void (*sink)(void *ctx, enum log_level level, const char *line), void *ctx)
{
	log_sink = sink;
	log_sink_ctx = ctx;
}

void log_set_level(enum log_level level)
{
	atomic_store_explicit(&log_level_now, (int)level, memory_order_relaxed);
}

enum log_level log_level(void)
{
	return (enum log_level)atomic_load_explicit(&log_level_now, memory_order_relaxed);
}

int log_set_level_name(const char *name, struct err *e)
{
	for (int i = LOG_LEVEL_ERROR; i <= LOG_LEVEL_DEBUG; i++) {
		if (strcmp(name, log_level_names[i]) == 0) {
			log_set_level((enum log_level)i);
			return 0;
		}
	}
	return err_set(e, -EINVAL, "log level \"%s\": use error, warn, info or debug", name);
}

int log_set_level_from_env(struct err *e)
{
	const char *name = getenv("PHUB_LOG");

	return name && name[0] ? log_set_level_name(name, e) : 0;
}

bool log_has_warned(void)
{
	return atomic_load_explicit(&log_warned, memory_order_relaxed);
}

static void log_clean(char *line)
{
	for (unsigned char *c = (unsigned char *)line; *c; c++) {
		if (*c < ' ' || *c == 0x7f)
			*c = '?';
	}
}

void log_write(enum log_level level, const char *fmt, ...)
{
	static const char cut[] = "...";
	char line[LOG_LINE_MAX];
	int saved_errno = errno;
	va_list args;

	if (!log_sink || level > log_level())
		return;
	va_start(args, fmt);
	int length = vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	if (length < 0)
		line[0] = '\0';
	else if ((size_t)length >= sizeof(line))
		memcpy(line + sizeof(line) - sizeof(cut), cut, sizeof(cut));
	log_clean(line);
	if (level <= LOG_LEVEL_WARN)
		atomic_store_explicit(&log_warned, true, memory_order_relaxed);
	log_sink(log_sink_ctx, level, line);
	errno = saved_errno;
}

void log_sink_stderr(void *ctx, enum log_level level, const char *line)
{
	char text[LOG_LINE_MAX + 64];
	struct timespec now;
	struct tm utc;

	(void)ctx;
	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &utc);
	size_t at = strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &utc);
	long ms = now.tv_nsec / 1000000;
	int length = snprintf(text + at, sizeof(text) - at, ".%03ldZ %-5s %s\n", ms, log_level_names[level], line);

	/* One write, so that lines of several threads and processes do not mix. No one is left to tell of a failure. */
	if (length > 0 && write(STDERR_FILENO, text, at + (size_t)length) < 0)
		return;
}

bool log_limit_pass(struct log_limit *limit, uint64_t now_ns, uint64_t interval_ns, uint64_t *quiet)
{
	uint64_t open_ns = atomic_load_explicit(&limit->open_ns, memory_order_relaxed);

	/* Relaxed: the exchange alone decides which of several threads passes; it orders nothing else. */
	if (now_ns < open_ns || !atomic_compare_exchange_strong_explicit(&limit->open_ns, &open_ns,
					now_ns + interval_ns, memory_order_relaxed, memory_order_relaxed)) {
		atomic_fetch_add_explicit(&limit->quiet, 1, memory_order_relaxed);
		return false;
	}
	*quiet = atomic_exchange_explicit(&limit->quiet, 0, memory_order_relaxed);
	return true;
}

const char *log_quiet(uint64_t quiet, char out[LOG_QUIET_BYTES])
{
	*out = '\0';
	if (quiet > 0)
		snprintf(out, LOG_QUIET_BYTES, " (%" PRIu64 " more %s not logged)", quiet, quiet == 1 ? "was" : "were");
	return out;
}
