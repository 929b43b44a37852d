/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The standby of a job that runs: for each generation of a bsp job a session with the box that config->standby names,
 * by which it is told what a copy of the job needs (transport/control.proto), and an uplink from each core that has a
 * shard to the same core there (phub/replica.h). When any of it breaks, the job goes on without, loudly, and all is
 * begun anew after a while. Control thread; nothing blocks.
 */
#ifndef PHUB_CONTROL_STANDBY_H
#define PHUB_CONTROL_STANDBY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/control/control.h"
#include "phub/mailbox.h"
#include "transport/control.pb-c.h"

#define STANDBY_KEPT_MAX 64u /* versions of hyper-parameters that rounds may still name: HYPER_VERSIONS */

struct generation;
struct job;
struct standby;

enum standby_state {
	STANDBY_OFF,        /* this job has none: `why` says the reason */
	STANDBY_BROKEN,     /* there is no session; the next is begun at retry_ns, and `why` says what ended the last */
	STANDBY_DIALLING,   /* the standby is being reached */
	STANDBY_AGREEING,   /* it is told of the job; its Start is awaited */
	STANDBY_CONNECTING, /* data connections are being made */
	STANDBY_MIRRORING,  /* images go there */
	STANDBY_WHOLE,      /* no round whose result a worker has is lost with this box */
	STANDBY_LEAVING,    /* the job is over; Left is awaited */
};

/* For `phub jobs`. */
struct standby_report {
	enum standby_state state;
	uint64_t since_ns; /* it has all of the job, or has not: through however many tries */
	uint64_t bytes;    /* sent there in this generation */
	uint64_t behind;   /* messages that are not acknowledged */
	const char *why;   /* it is off or broken; "" else */
};

const char *standby_state_name(enum standby_state state);

/* The job's generation is with the cores: begins, where the box has a standby. Without memory it goes on without. */
void standby_begin(struct job *job);
/* What becomes of what the standby has, when the job ends or its generation does. */
enum standby_fate {
	STANDBY_FORGETS, /* the job is over for good, or is replaced */
	STANDBY_KEEPS,   /* the box goes down: the workers go there */
	STANDBY_WAITS,   /* workers were lost: they may have lost this box alone, and be on their way there. It forgets
			    when they do not come. From now on nothing is answered here that is not there */
};

void standby_end(struct generation *g, enum standby_fate fate);
/* No shard is with a core any more. NULL is allowed. */
void standby_destroy(struct standby *s);

/* A version is on its way to the cores, or ranks are lost or came, or the job is paused, goes on, or drains: the
 * standby hears of it. */
void standby_hyper(struct job *job, uint32_t version, const struct optimizer_hyper *groups);
void standby_members(struct job *job);
/* All have come to barrier `id`: false when it is to be opened only when job_barrier_recount() is called again. */
bool standby_barrier(struct job *job, uint64_t id);
/*
 * The rank leaves in good order. True: job_leave() is called when the standby knows that nobody waits for it, for after
 * that it is seen no more.
 */
bool standby_leaves(struct job *job, uint32_t rank);
/* MAIL_UPLINK_WHOLE, MAIL_UPLINK_ENDED, of this job. */
void standby_mail(struct job *job, const struct mail *mail);

/* Moves all on. */
void standby_step(struct control *c);

/* Does it have all of the job, or had until a moment ago (lost_ms), so that workers that this box has lost may have
 * gone on there? */
bool standby_is_able(const struct job *job);

/* NULL: the job's box has no standby. */
const struct standby_report *standby_describe(const struct job *job, struct standby_report *out);

#endif
