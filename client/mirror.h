/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box as the client of its standby: the control session of a worker (session.h), which reaches the standby, proves
 * the job's secret and stays alive, and from the Welcome on is the box's to speak by. phub/main.c joins it to the box
 * (phub/control/standby.h), which sees nothing of the client. By one thread, nothing blocks.
 */
#ifndef PHUB_CLIENT_MIRROR_H
#define PHUB_CLIENT_MIRROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/env.h"
#include "phub/base/err.h"
#include "transport/control.pb-c.h"

struct client_mirror;

/* Where, and for which job. Copied, but for `hear` and its argument. */
struct client_mirror_target {
	const char *host;
	uint16_t port;
	bool tls; /* as phubs:// says; PHUB_TLS_CA and PHUB_TLS_PIN are looked at as by workers, and also ask for it */
	const char *job;
	const void *secret; /* secret_bytes; NULL: the job has none */
	size_t secret_bytes;
	bool encrypt; /* the job's payloads are encrypted */
	/* Called by step() with what the standby says, from the Welcome on. It does not close the mirror. */
	void (*hear)(void *arg, const Phub__Control *message);
	void *arg;
};

/* Sets out. `env` outlives it. 0, or -ENOMEM, -EINVAL (job or host too long), or what TLS lacks, with the reason in
 * `e`. */
int client_mirror_open(const struct client_mirror_target *target, const struct client_env *env,
	struct client_mirror **out, struct err *e);

/*
 * Does what can be done now: 1 once the standby has welcomed us, 0 before, and a negative errno with the reason in `e`
 * when it cannot be reached, has refused us, or was lost.
 */
int client_mirror_step(struct client_mirror *m, uint64_t now_ns, struct err *e);

/* Once welcomed: says this. 0, -EAGAIN (more is unsent than should be kept: later), -ENOMEM. */
int client_mirror_say(struct client_mirror *m, const Phub__Control *message);

/* Once welcomed: what data connections are made with. `key`: PROOF_KEY bytes, which stay put until close(). */
void client_mirror_session(const struct client_mirror *m, uint64_t *session, const uint8_t **key, uint32_t *cores);
/* Where the standby serves this transport, as connect() takes it. 0, or -ENOTSUP with what it offers in `e`. */
int client_mirror_address(const struct client_mirror *m, const char *transport, char *out, size_t bytes, struct err *e);

/* The fd to wait on, or -1; *write: also until it is writable. When step() is due at the latest. */
int client_mirror_fd(const struct client_mirror *m, bool *write);
uint64_t client_mirror_due(const struct client_mirror *m);

/* Hangs up. What was said and has not gone out is lost. NULL is allowed. */
void client_mirror_close(struct client_mirror *m);

#endif
