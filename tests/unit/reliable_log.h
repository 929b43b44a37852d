/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One wire for the tests of a program, and what was told of it, in its order.
 */
#ifndef TESTS_UNIT_RELIABLE_LOG_H
#define TESTS_UNIT_RELIABLE_LOG_H

#include "tests/unit/reliable_rig.h"

enum { WIRED_LOG_MAX = 4096, MS = 1000000, LARGE = 400000 };

extern struct wired rig;
extern struct event wired_events[WIRED_LOG_MAX];
extern unsigned wired_who_saw[WIRED_LOG_MAX], wired_event_count;
extern uint8_t payload[WIRE_PAYLOAD_MAX], sink_memory[WIRE_PAYLOAD_MAX];

/* Chunks of these sizes. */
void wired_begin_with(struct wired_options *o, unsigned chunks, const uint32_t *bytes);
/* One worker with four chunks, ready to send: 100, 5000, LARGE and 5000 bytes. */
void wired_begin(uint64_t delay_ns);
void wired_finish(void);
/* The event function that the log is from. */
void wired_note(struct wired *w, struct wired_end *end, unsigned worker, const struct event *e);

struct wire_header wired_header(enum wire_type type, uint32_t chunk, uint32_t seq);
/* By worker 0, or the box to it; of `payload`. What reliable_send() says. */
int wired_send_from(unsigned who, enum wire_type type, uint32_t chunk, uint32_t seq, void *cookie);
/* How many events of this type an end saw, and the last one. */
unsigned wired_count(unsigned who, enum event_type type);
const struct event *wired_last(unsigned who, enum event_type type);
bool wired_pass_nothing(struct wired *w, const struct wired_packet *p);
const struct reliable_counters *wired_counters(unsigned who);

#endif
