/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single iterations, layer by layer: as Chrome's trace events, which ui.perfetto.dev and chrome://tracing show, and as
 * a picture of some lines. Runs in the parent when the workers have ended.
 *
 * Events are complete ones ("ph":"X"), a process for each worker. Rounds of keys overlap, which the viewers do not take
 * within one thread: each goes to the first row that is free again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "phub/cli/output.h"
#include "phub/cli/replay.h"

enum { TIMELINE_WORK = 1, TIMELINE_ROW_FIRST = 2 }; /* thread ids */
enum { TIMELINE_COLUMNS = 76 };

/* A round of a key, for packing into rows. */
struct timeline_round {
	const struct replay_event *event;
	size_t layer;
};

struct timeline {
	const struct replay_plan *p;
	const struct replay_shared *s;
	json_t *events;
	uint64_t zero_ns; /* begin of all */
	bool failed;
};

static void timeline_add(struct timeline *t, json_t *event)
{
	if (!event || json_array_append_new(t->events, event) < 0)
		t->failed = true;
}

static void timeline_name(struct timeline *t, unsigned worker, const char *what, unsigned thread, const char *name)
{
	timeline_add(t, json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "ph", "M", "name", what, "pid",
				(int)(t->p->rank_first + worker), "tid", (int)thread, "args", "name", name));
}

static void timeline_span(struct timeline *t, unsigned worker, unsigned thread, const char *category, size_t layer,
	const struct replay_time *time)
{
	const struct model_layer *l = &t->p->trace.layers[layer];
	uint32_t key = l->tensor;
	char name[MODEL_TENSOR_NAME_BYTES + 16];
	json_t *args;

	if (!time->begin_ns || !time->end_ns)
		return;
	snprintf(name, sizeof(name), "%s %s", category, l->name);
	args = key == MODEL_TRACE_NO_TENSOR
		       ? json_object()
		       : json_pack("{s:I}", "elements", (json_int_t)t->p->trial.model.tensors[key].elements);
	timeline_add(t, json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:f, s:o}", "ph", "X", "name", name, "cat", category,
				"pid", (int)(t->p->rank_first + worker), "tid", (int)thread, "ts",
				((double)time->begin_ns - (double)t->zero_ns) / 1e3, "dur",
				(double)(time->end_ns - time->begin_ns) / 1e3, "args", args));
}

static int timeline_compare(const void *a, const void *b)
{
	const struct timeline_round *x = a, *y = b;

	return (x->event->push_ns > y->event->push_ns) - (x->event->push_ns < y->event->push_ns);
}

/* Rounds of keys, in the order of their pushes, each in the first row whose last one has ended. */
static void timeline_rounds(struct timeline *t, unsigned worker)
{
	size_t layers = t->p->trace.count, count = 0, rows = 0;
	struct timeline_round *rounds = calloc(layers * REPLAY_TRACED, sizeof(*rounds));
	uint64_t *free_ns = calloc(layers * REPLAY_TRACED, sizeof(*free_ns));

	for (size_t i = 0; rounds && free_ns && i < layers * REPLAY_TRACED; i++) {
		const struct replay_event *event = replay_events(t->p, t->s, worker, 0) + i;

		if (event->push_ns && event->done_ns)
			rounds[count++] = (struct timeline_round){event, i % layers};
	}
	if (count)
		qsort(rounds, count, sizeof(*rounds), timeline_compare);
	for (size_t i = 0; i < count; i++) {
		struct replay_time time = {rounds[i].event->push_ns, rounds[i].event->done_ns};
		size_t row = 0;

		while (row < rows && free_ns[row] > time.begin_ns)
			row++;
		rows += row == rows;
		free_ns[row] = time.end_ns;
		timeline_span(t, worker, (unsigned)(TIMELINE_ROW_FIRST + row), "exchange", rounds[i].layer, &time);
	}
	t->failed = t->failed || !rounds || !free_ns;
	free(rounds);
	free(free_ns);
}

static void timeline_worker(struct timeline *t, unsigned worker)
{
	size_t layers = t->p->trace.count;
	char name[32];

	snprintf(name, sizeof(name), "worker %u", t->p->rank_first + worker);
	timeline_name(t, worker, "process_name", TIMELINE_WORK, name);
	timeline_name(t, worker, "thread_name", TIMELINE_WORK, "layers");
	timeline_name(t, worker, "thread_name", TIMELINE_ROW_FIRST, "keys in flight");
	for (size_t i = 0; i < layers * REPLAY_TRACED; i++) {
		const struct replay_event *event = replay_events(t->p, t->s, worker, 0) + i;

		timeline_span(t, worker, TIMELINE_WORK, "wait", i % layers, &event->wait);
		timeline_span(t, worker, TIMELINE_WORK, "forward", i % layers, &event->forward);
		timeline_span(t, worker, TIMELINE_WORK, "backward", i % layers, &event->backward);
	}
	timeline_rounds(t, worker);
}

/* Everything ends up in `t`: begin of the first forward of any worker. */
static uint64_t timeline_begin_ns(const struct replay_plan *p, const struct replay_shared *s)
{
	uint64_t begin_ns = UINT64_MAX;

	for (unsigned w = 0; w < p->trial.workers; w++) {
		uint64_t ns = replay_events(p, s, w, 0)[0].forward.begin_ns;

		begin_ns = ns && ns < begin_ns ? ns : begin_ns;
	}
	return begin_ns;
}

int replay_timeline_write(const struct replay_plan *p, const struct replay_shared *s, FILE *file, struct err *e)
{
	struct timeline t = {.p = p, .s = s, .events = json_array(), .zero_ns = timeline_begin_ns(p, s)};
	json_t *all;
	int rc = 0;

	t.failed = !t.events;
	for (unsigned w = 0; !t.failed && w < p->trial.workers; w++)
		timeline_worker(&t, w);
	all = json_pack("{s:s, s:o}", "displayTimeUnit", "ms", "traceEvents", t.events);
	if (t.failed || !all)
		rc = err_set(e, -ENOMEM, "out of memory");
	else if (json_dumpf(all, file, JSON_COMPACT | JSON_REAL_PRECISION(12)) < 0 || fflush(file) != 0)
		rc = err_set(e, -EIO, "%s", strerror(errno));
	json_decref(all);
	return rc;
}

/* ---- the picture ---- */

struct timeline_scale {
	uint64_t begin_ns, end_ns;
};

static uint64_t timeline_column_ns(const struct timeline_scale *scale, unsigned column)
{
	return scale->begin_ns + (scale->end_ns - scale->begin_ns) * (2 * column + 1) / (2 * TIMELINE_COLUMNS);
}

static bool timeline_holds(const struct replay_time *time, uint64_t ns)
{
	return time->begin_ns <= ns && ns < time->end_ns;
}

/* What the worker did at that moment. */
static char timeline_doing(const struct replay_plan *p, const struct replay_event *events, uint64_t ns)
{
	for (size_t i = 0; i < p->trace.count; i++) {
		if (timeline_holds(&events[i].forward, ns))
			return 'f';
		if (timeline_holds(&events[i].backward, ns))
			return 'b';
		if (timeline_holds(&events[i].wait, ns))
			return '.';
	}
	return ' ';
}

static char timeline_in_flight(const struct replay_plan *p, const struct replay_event *events, uint64_t ns)
{
	unsigned count = 0;

	for (size_t i = 0; i < p->trace.count * REPLAY_TRACED; i++)
		count += timeline_holds(&(struct replay_time){events[i].push_ns, events[i].done_ns}, ns);
	return count == 0 ? ' ' : count > 9 ? '*' : (char)('0' + count);
}

static void timeline_line(const char *label, const char *cells)
{
	printf("  %-10s|%.*s|\n", label, TIMELINE_COLUMNS, cells);
}

void replay_timeline_draw(const struct replay_plan *p, const struct replay_shared *s)
{
	const struct replay_event *all = replay_events(p, s, 0, 0);
	const struct replay_event *events = replay_events(p, s, 0, REPLAY_TRACED - 1);
	const struct replay_event *before = replay_events(p, s, 0, REPLAY_TRACED - 2);
	struct timeline_scale scale = {before[0].backward.end_ns, events[0].backward.end_ns};
	char lines[4][TIMELINE_COLUMNS];

	memset(lines, ' ', sizeof(lines));
	for (unsigned c = 0; c < TIMELINE_COLUMNS; c++) {
		uint64_t ns = timeline_column_ns(&scale, c);
		char doing = timeline_doing(p, events, ns);

		lines[0][c] = doing == 'f' ? '#' : ' ';
		lines[1][c] = doing == 'b' ? '#' : ' ';
		lines[2][c] = doing == '.' ? '.' : ' ';
		lines[3][c] = timeline_in_flight(p, all, ns);
	}
	printf("\nan iteration of worker %u (%s), %.3f ms:\n", p->rank_first, replay_schedule_name(replay_last(p)),
		(double)(scale.end_ns - scale.begin_ns) / 1e6);
	timeline_line("forward", lines[0]);
	timeline_line("backward", lines[1]);
	timeline_line("waits", lines[2]);
	timeline_line("in flight", lines[3]);
	printf("  (keys pushed and not back: 1 to 9, * for more)\n");
}
