/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What sites tell each other beside tensors, in a key of its own whose sum all hear: a slot for each rank, then what
 * one of them, whom all know, brings those who come, and at the end a float for each tensor, which is summed indeed.
 * Whoever is not there leaves zeros. Pure; any thread.
 */
#ifndef PHUB_CLIENT_SCOUT_SLOTS_H
#define PHUB_CLIENT_SCOUT_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/scout/report.h"
#include "client/scout/scout.h"

enum slot_flag {
	SLOT_HERE = 1,
	SLOT_HELLO = 2,    /* it does not know where the others are: it wants their weights */
	SLOT_HAS = 4,      /* weights of its own, that others may begin with */
	SLOT_PENDING = 8,  /* an exchange is due, of which this round is not the one */
	SLOT_WINDOW = 16,  /* and that one ends a window */
	SLOT_LOG = 32,     /* it knows a file for the decision log; */
	SLOT_WRITES = 64,  /* and writes it */
	SLOT_LOADED = 128, /* it has loaded a state that was saved, and has not begun */
	SLOT_FINISH = 256, /* no step asks it for this exchange, but phub_site_finish() */
	SLOT_HALF = 512,   /* it has the weights of its last exchange, and not yet momentum and outer state */
	SLOT_FLAGS = 1023,
};

struct slot {
	unsigned flags; /* 0: nobody is there */
	uint64_t steps, exchanges, samples;
	uint32_t check;               /* of the weights that it sends in this round; SLOT_LOADED: of its state */
	double said;                  /* share ||d||^2 of what it says in it: see scout_hear() */
	uint32_t alike;               /* sites that say the same, as they have it in common within; 1: itself alone */
	uint32_t broken;              /* 1 + the first tensor of which it says what is no number; 0: none */
	uint64_t bytes, within, wire; /* that it has sent so far: see sent.h */
	uint64_t terms;               /* that all have to agree on, in a sync: see course_sync.c; 0: it says none */
	uint64_t around;              /* exchanges of the site around; 0: there is none */
};

/* What who comes needs beside weights. */
struct slots_news {
	double theta;
	uint64_t window; /* the step that it began after */
	uint64_t run;    /* what names the run in its log */
	uint64_t since;  /* steps since the last exchange: states are saved in the middle of an interval, too */
	double rate;     /* of the last step: who comes may be in an exchange before it has made one */
	uint8_t scout[SCOUT_SAVED_BYTES];
};

#define SLOT_WORDS  12u
#define SLOT_FLOATS ((uint32_t)(1 + SLOT_WORDS * SCOUT_WORD_FLOATS + SCOUT_REPORT_FLOATS))
#define NEWS_FLOATS ((uint32_t)(5 * SCOUT_WORD_FLOATS + SCOUT_BYTES_FLOATS(SCOUT_SAVED_BYTES)))

/* `tensors` are all of the site where course_tells(), else 0. */
static inline uint32_t slots_floats(uint32_t world, uint32_t tensors)
{
	return world * SLOT_FLOATS + NEWS_FLOATS + tensors;
}

/* Into floats that are all zero; the report of a rank may be written by two, each some of its fields. */
void slots_put(float *slots, uint32_t rank, const struct slot *slot);
void slots_put_report(float *slots, uint32_t rank, const struct scout_report *report);
/* Share ||d||^2 of what this rank says of a tensor. One float has not all its digits: it is to look at, and nothing is
 * decided by it. What is no number, which a job may forbid, is said as 0: the tensor itself has it. Of a tensor that is
 * not exchanged, but shown: mean_show(). */
void slots_put_said(float *slots, uint32_t world, uint32_t tensor, double said);
void slots_put_news(float *slots, uint32_t world, const struct slots_news *news);

/* Of a sum. What cannot be true is as if nobody were there, a report that says nothing, or false. */
void slots_get(const float *slots, uint32_t rank, struct slot *slot);
void slots_get_report(const float *slots, uint32_t rank, struct scout_report *report);
bool slots_get_news(const float *slots, uint32_t world, struct slots_news *news);
/* Of all ranks. */
double slots_get_said(const float *slots, uint32_t world, uint32_t tensor);

#endif
