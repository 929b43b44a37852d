/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libphub without waiting: what the public calls are thin wrappers of, and what a simulation drives. Nothing here
 * blocks, locks, sleeps, makes threads or reads a clock; one thread at a time per handle.
 *
 *      client_open
 *      client_progress ... until client_joined() is 0
 *      phub_key ...
 *      client_start_begin, client_progress ... until client_started() is 0
 *      phub_broadcast, phub_push_pull, phub_push, phub_set_hyper ...   client_progress ... until client_idle(key) is 1
 *      client_barrier_begin, client_progress ... until client_barrier_passed() is 0
 *      client_leave_begin, client_progress ... until client_left() is 0
 *      client_close
 *
 * A handle of client_open() has no progress thread, and the public calls that do not wait may be used on it as they
 * are; their time is env->now().
 */
#ifndef PHUB_CLIENT_CLIENT_H
#define PHUB_CLIENT_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "client/env.h"
#include "client/phub.h"
#include "phub/base/err.h"

struct range;

/* Makes a handle that sets out to join. `env` is copied. 0; -EINVAL, -ERANGE (arguments); -ENOMEM. */
int client_open(
	const char *url, const struct phub_options *options, const struct client_env *env, phub_t **out, struct err *e);

/* Does what can be done now. Returns how much that was; 0: nothing. */
unsigned client_progress(phub_t *p, uint64_t now_ns);

/* When client_progress() has something to do by itself at the latest; UINT64_MAX: never. */
uint64_t client_due(const phub_t *p);

/* 0 when a member of the job, -EAGAIN when not yet, else why not (client_failure()). */
int client_joined(const phub_t *p);

/* Hands the keys over: once per table. 0, -EINVAL (no keys, called too early), -ENOTSUP (transport), -ENOMEM. */
int client_start_begin(phub_t *p, struct err *e);
/* 0 when rounds may run, -EAGAIN, or what ended the session. */
int client_started(const phub_t *p);

/*
 * The box was lost and is there again, and the job runs: from now on keys can be exchanged. 0; -EAGAIN while it is not;
 * else why it never will.
 */
int client_resumed(const phub_t *p);
/* The caller knows that the box was lost: memory that it had of the session before goes. */
void client_forget_parted(phub_t *p);

/* The box was lost, and the caller lacked nothing by then: he may leave without it. */
bool client_is_free(const phub_t *p);

/* -EAGAIN while the job moves to the box's standby; 0; or what ended the session. */
int client_moved(const phub_t *p);

/* Forgets all keys, between rounds: the next table may be named. 0, -EBUSY (also while the job moves), or -EINVAL while
 * one is being agreed on. */
int client_rekey(phub_t *p, struct err *e);

/*
 * Begins a round: WIRE_PUSH with src and maybe dst, WIRE_INIT with src, WIRE_PULL with dst. `key` exists and rounds may
 * run. 0, -EINVAL, -EBUSY, -ENODATA, -ENOMEM, or what ended the session.
 */
int client_round(phub_t *p, int key, enum wire_type type, const void *src, void *dst, int priority, struct err *e);

/*
 * 1 when the key (PHUB_ALL: every key) has no round in flight, 0 when it has, or what ended the session. A round that
 * was done before the session ended is done: until client_claim(), that is still 1 then.
 */
int client_idle(const phub_t *p, int key);
void client_claim(phub_t *p, int key);

/* Asks for a barrier, or for the one that is under way. Then: 0 when passed, -EAGAIN, or what ended the session. */
void client_barrier_begin(phub_t *p);
int client_barrier_passed(const phub_t *p);
/* The caller was told that it is passed: the next client_barrier_begin() asks for another. */
void client_barrier_end(phub_t *p);

/*
 * Before leaving a job that the box has ended: what still comes is no longer wanted. The session is over, unless the
 * job goes on at the standby, where the others wait for who leaves.
 */
void client_hurry(phub_t *p);

/* Gives up what is in flight and says good-bye. Then: 0 when the box has heard it (or is gone), -EAGAIN. A box that was
 * lost is not waited for. */
void client_leave_begin(phub_t *p);
int client_left(const phub_t *p);

/* Ends the session if it has not ended, for want of a good-bye: nothing touches the caller's memory any more. */
void client_abandon(phub_t *p);

/* What ended the session, or, with -ESTALE, that it was begun anew (client_resumed()): code 0 while it lives. */
const struct err *client_failure(const phub_t *p);

/*
 * What is being waited for, in words: who is missing, or what was not pushed. `key` as in client_idle(), or
 * CLIENT_BARRIER.
 */
#define CLIENT_BARRIER (-2)
void client_explain(const phub_t *p, int key, uint64_t now_ns, char *text, size_t text_bytes);

/*
 * A wait nears its deadline: asks the box who is missing, unless it was asked that after `since_ns`. Then: has it
 * answered, or is there nothing that it could say?
 */
void client_ask(phub_t *p, int key, uint64_t since_ns, uint64_t now_ns);
bool client_answered(const phub_t *p, int key, uint64_t since_ns);

/*
 * After anything that may have ended the session: begins another one that takes its place, where options allow that;
 * else lets go of the caller's memory.
 */
void client_look(phub_t *p);

/* The session is over for good: lets go of the caller's memory. */
void client_settle(phub_t *p);

/* Everything but `size`. */
void client_stats(const phub_t *p, struct phub_stats *stats);

/* Copies the last result of the key, which has one, to the caller's memory. 0, or -ENOMEM or -EIO of a GPU's. */
int client_copy_result(phub_t *p, int key, void *dst, struct err *e);

/*
 * Tells the transport, if there is one, of memory that the caller has registered. 0, -ENOTSUP (a GPU's, which it cannot
 * reach by itself), or the transport's.
 */
int client_introduce(phub_t *p, struct range *range, struct err *e);

/* Frees the handle, abruptly unless it has left. */
void client_close(phub_t *p);

#endif
