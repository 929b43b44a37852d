/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/base/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

int trace_init(struct trace *trace, uint32_t count)
{
	uint64_t rounded = 1;

	*trace = (struct trace){.events = NULL};
	if (count == 0)
		return 0;
	if (count > TRACE_EVENTS_MAX)
		return -EINVAL;
	while (rounded < count)
		rounded *= 2;
	trace->events = calloc(rounded, sizeof(*trace->events));
	if (!trace->events)
		return -ENOMEM;
	trace->mask = rounded - 1;
	return 0;
}

void trace_fini(struct trace *trace)
{
	free(trace->events);
	*trace = (struct trace){.events = NULL};
}

/* Copies event number `i`. 0, or -EAGAIN when the writer was, or may have been, overwriting it. */
static int trace_read(const struct trace *trace, uint64_t i, uint64_t event[TRACE_WORDS])
{
	for (unsigned word = 0; word < TRACE_WORDS; word++) /* acquire, with the releases in trace_add() */
		event[word] = atomic_load_explicit(&trace->events[i & trace->mask][word], memory_order_acquire);
	return atomic_load_explicit(&trace->next, memory_order_relaxed) - i > trace->mask ? -EAGAIN : 0;
}

uint64_t trace_dump(const struct trace *trace, FILE *out, const char *(*name)(uint64_t id))
{
	uint64_t written = 0;

	if (!trace->events)
		return 0;
	uint64_t end = atomic_load_explicit(&trace->next, memory_order_acquire);
	/* One less than there is room for: the oldest place may be being overwritten. */
	for (uint64_t i = end > trace->mask ? end - trace->mask : 0; i < end; i++) {
		uint64_t event[TRACE_WORDS];

		if (trace_read(trace, i, event) < 0)
			continue;
		const char *text = name(event[1]);
		fprintf(out, "%" PRIu64, event[0]);
		if (text)
			fprintf(out, " %s", text);
		else
			fprintf(out, " %" PRIu64, event[1]);
		fprintf(out, " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", event[2], event[3], event[4]);
		written++;
	}
	return written;
}
