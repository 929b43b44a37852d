/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions to a running box over its control port: connects, proves itself, asks one thing, and hangs up. For jobs,
 * top and doctor. Blocks until the answer or the deadline.
 */
#ifndef PHUB_CLI_ADMIN_H
#define PHUB_CLI_ADMIN_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/cli/args.h"
#include "transport/control.pb-c.h"

#define ADMIN_ADDRESS_DEFAULT "127.0.0.1:7077"

struct admin_answer {
	Phub__Control *message; /* ours until admin_answer_fini() */
	const Phub__AdminReply *reply;
	char transports[512]; /* "tcp 127.0.0.1:7101, shm @phub-..." */
	unsigned cores;
	uint64_t connect_ns; /* TCP */
	uint64_t session_ns; /* both proofs */
	uint64_t answer_ns;  /* question to answer */
};

/*
 * `address` is "host[:port]" or "[ipv6]:port". The secret, when the box wants one, is that of PHUB_ADMIN_SECRET or of
 * the file PHUB_ADMIN_SECRET_FILE. 0, or a negative errno with what to do in `e`: -EINVAL (address), -ECONNREFUSED,
 * -ETIMEDOUT, -EACCES, -EPROTO, -EBUSY (too many newcomers, all the time until the deadline), -EKEYREJECTED (not the
 * box of PHUB_TLS_CA or PHUB_TLS_PIN, which make the session TLS).
 */
int admin_ask(const char *address, const char *command, int timeout_ms, struct admin_answer *out, struct err *e);
/* Likewise, with arguments. */
int admin_tell(const char *address, const char *command, const char *const *arguments, unsigned count, int timeout_ms,
	struct admin_answer *out, struct err *e);
/*
 * What the box's datagrams came to, of all cores: "120 sent, 3 again, 99 came, 7 dropped, runt 2, forged 5". False:
 * there were none.
 */
bool admin_write_datagrams(const Phub__AdminReply *reply, char *out, size_t bytes);

/* Messages that were dropped: "9: duplicate 3, forged 6". False: none was, or an older box does not tell. */
bool admin_write_dropped(Phub__Dropped *const *rows, size_t count, char *out, size_t bytes);
/* The count of this reason. */
uint64_t admin_dropped(Phub__Dropped *const *rows, size_t count, const char *why);

/*
 * Does the job, which has a standby, come by this worker's shared memory? Then it is lost with the box. All such:
 * "ranks 0-2"; false: there are none, or it has no standby.
 */
bool admin_is_stuck(const Phub__JobInfo *job, const Phub__WorkerInfo *worker);
bool admin_write_stuck(const Phub__JobInfo *job, char *out, size_t bytes);

void admin_answer_fini(struct admin_answer *answer);

/* An address that cannot be one is a wrong argument: ARGS_GO_ON, or CLI_USAGE after saying so. Looks nothing up. */
int admin_check_address(const struct args_usage *usage, const char *address);

#endif
