/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One wire for the tests of a program, and what was told of it.
 */
#include "tests/unit/reliable_log.h"

#include <string.h>

#include "tests/unit/cmocka_shim.h"

struct wired rig;
struct event wired_events[WIRED_LOG_MAX];
unsigned wired_who_saw[WIRED_LOG_MAX], wired_event_count;
uint8_t payload[WIRE_PAYLOAD_MAX], sink_memory[WIRE_PAYLOAD_MAX];

void wired_note(struct wired *w, struct wired_end *end, unsigned worker, const struct event *e)
{
	assert_true(wired_event_count < WIRED_LOG_MAX);
	wired_who_saw[wired_event_count] = end->who;
	wired_events[wired_event_count++] = *e;
}

/* One worker, with chunks of these sizes; ready to send. */
void wired_begin_with(struct wired_options *o, unsigned chunks, const uint32_t *bytes)
{
	o->chunks = chunks;
	memcpy(o->chunk_bytes, bytes, chunks * sizeof(*bytes));
	wired_event_count = 0;
	wired_open(&rig, o);
	rig.event = wired_note;
	for (uint32_t i = 0; i < sizeof(payload); i++)
		payload[i] = (uint8_t)(i * 31 + i / 256);
	memset(sink_memory, 0, sizeof(sink_memory));
}

void wired_begin(uint64_t delay_ns)
{
	struct wired_options o = {.seed = 1, .wire = {.delay_min_ns = delay_ns, .delay_max_ns = delay_ns}};

	wired_begin_with(&o, 4, (const uint32_t[]){100, 5000, LARGE, 5000});
	wired_probe(&rig);
}

void wired_finish(void)
{
	rig.event = NULL;
	wired_close(&rig);
}

struct wire_header wired_header(enum wire_type type, uint32_t chunk, uint32_t seq)
{
	bool pays = type == WIRE_PUSH || type == WIRE_INIT || type == WIRE_RESULT;

	return (struct wire_header){.type = type,
		.length = pays ? rig.options.chunk_bytes[chunk] : 0,
		.job = WIRED_JOB,
		.chunk = chunk,
		.count = 1,
		.seq = seq};
}

int wired_send_from(unsigned who, enum wire_type type, uint32_t chunk, uint32_t seq, void *cookie)
{
	struct wire_header h = wired_header(type, chunk, seq);

	return reliable_send(rig.ends[who].r, rig.ends[who].conns[0], &h, h.length ? payload : NULL, cookie);
}

unsigned wired_count(unsigned who, enum event_type type)
{
	unsigned count = 0;

	for (unsigned i = 0; i < wired_event_count; i++)
		count += wired_who_saw[i] == who && wired_events[i].type == type;
	return count;
}

/* The last event of this type at an end. */
const struct event *wired_last(unsigned who, enum event_type type)
{
	for (unsigned i = wired_event_count; i-- > 0;)
		if (wired_who_saw[i] == who && wired_events[i].type == type)
			return &wired_events[i];
	fail_msg("no such event");
	return NULL;
}

bool wired_pass_nothing(struct wired *w, const struct wired_packet *p)
{
	return false;
}

const struct reliable_counters *wired_counters(unsigned who)
{
	return reliable_counters(rig.ends[who].r);
}
