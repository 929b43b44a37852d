/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which jobs of this box are announced, and which requests make what is announced what is here. Control thread.
 */
#ifndef PHUB_CONTROL_ANNOUNCE_JOBS_H
#define PHUB_CONTROL_ANNOUNCE_JOBS_H

#include <stdbool.h>
#include <stdint.h>

struct announce_job;
struct control;

/* Zeroed is empty. */
struct announce_jobs {
	struct announce_job *list;
	unsigned count, room;
	uint64_t again_ns; /* a round that has grown is told after so long */
};

/* Looks at the jobs of this box. Those for which there is no memory are left out. */
void announce_jobs_look(struct announce_jobs *a, const struct control *c);
/*
 * The request that tells of the next of them, under `lease`, or false: there is nothing to tell. *request is the
 * caller's to free; NULL: no memory.
 */
bool announce_jobs_next(
	struct announce_jobs *a, const char *prefix, const char *box, int64_t lease, uint64_t now_ns, char **request);
/* It was taken. Returns whether there may be more to tell. */
bool announce_jobs_told(struct announce_jobs *a, uint64_t now_ns);
/* Nobody knows what was taken: all are told of again. */
void announce_jobs_forget(struct announce_jobs *a);
void announce_jobs_fini(struct announce_jobs *a);

#endif
