/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is behind a phub_t. Everything is guarded by `lock`, but for what is never written after phub_connect().
 */
#ifndef PHUB_CLIENT_HANDLE_H
#define PHUB_CLIENT_HANDLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/drive.h"
#include "client/env.h"
#include "client/exchange.h"
#include "client/keyring.h"
#include "client/move.h"
#include "client/pick.h"
#include "client/ranges.h"
#include "client/session.h"
#include "client/settings.h"

struct phub {
	pthread_mutex_t lock;
	struct phub *next;        /* forked.c: all handles of the process */
	bool forked;              /* this is a child's copy: it holds no part of the connection */
	struct settings settings; /* constant but for the groups' hyper-parameters */
	int hostbox_fd;           /* kept for as long as the host's own box is needed (hostbox.h); -1: there is none */
	struct client_env env;
	struct client_session session;
	struct keyring keyring;
	struct ranges ranges;
	struct pick pick;         /* ops NULL: not chosen yet */
	struct exchange exchange; /* keyring NULL: none */
	struct err refused;       /* a lane cannot be made; code 0: none such */
	uint64_t refused_ns;      /* since when */
	bool running;             /* all lanes are up */
	bool starts;              /* phub_start() timed out, and has not been called again */
	bool catches_up;          /* and what exchange_catch_up() asked for is not here yet */
	bool frozen;              /* the key table was handed over: no more keys */
	uint32_t chunk_bytes;     /* in force */
	bool hyper_changed;       /* since the version that the box knows */
	bool buried;              /* the session is over and its connections are dropped */
	bool left;                /* or is about to: the session is not begun anew */
	bool unfinished;          /* it leaves before its training is done */
	/* The box was lost, and another session is being begun (options.resume_ms). */
	struct transport
		*parted;    /* of a box that was lost: what it has mapped is in the caller's hands until he resumes */
	bool ran;           /* it was in the job when that ran: not only before it started */
	struct err stale;   /* what calls return until phub_resume(); code 0: all is well */
	struct err loss;    /* what ended the session before */
	struct err refusal; /* what ended the last of those that were tried since; code 0: none was, or began */
	bool lacks;         /* stale: then the caller waited for what went with the box */
	uint64_t resume_until_ns; /* not 0: the new one is not running yet */
	uint64_t resume_again_ns; /* not 0: the next try begins then */
	struct move move;         /* to the box's standby */
	struct url_box last;      /* the last box that let us in and named a sibling; host "": none */
	struct url_box sibling;   /* where the next session is tried, too */
	uint64_t wait_ns;
	struct phub_stats before; /* counters of earlier key tables */
	struct drive drive;
};

#endif
