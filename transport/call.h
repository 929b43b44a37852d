/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call: a control session that a box holds with another box, as the client there. The box knows nothing of the client
 * (client/call.h has the one implementation), so this is what both see. By one thread, the box's control; nothing
 * blocks.
 */
#ifndef PHUB_TRANSPORT_CALL_H
#define PHUB_TRANSPORT_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "transport/control.pb-c.h"

struct call_peer;

/* Whom to reach, and for which job. Copied by open(), but for `hear` and its argument. */
struct call_target {
	const char *what; /* the option that names it, for messages: "standby", "uplink" */
	uint32_t below;   /* we take part there for workers: their job's world. 0: we mirror the job there */
	uint32_t peer; /* with `below`: 1 + our number among boxes that exchange, of which it is one; 0: it is above */
	uint64_t exchange; /* with `peer`: the number of the exchange */
	uint64_t root;     /* with `below`: it is the root of this epoch, and no other (above.h); 0: never mind */
	uint64_t least;    /* likewise: it is a root of this epoch, or a later one */
	const char *host;
	uint16_t port;
	/* With `below`: where others reach us, and our name, for messages there; "": it sees the host, or none. */
	const char *own_host, *own_name;
	uint16_t own_port;
	bool tls; /* as phubs:// says; PHUB_TLS_CA and PHUB_TLS_PIN are looked at as by workers, and also ask for it */
	const char *job;
	const void *secret; /* secret_bytes; NULL: the job has none */
	size_t secret_bytes;
	bool encrypt;          /* the job's payloads are encrypted */
	const char *transport; /* by which data connections will be made; NULL: not said */
	/* Called by step() with what the other box says, from the Welcome on, and with an Error at any time. It does
	 * not close the call. */
	void (*hear)(void *arg, const Phub__Control *message);
	void *arg;
};

struct call_ops {
	/* Sets out. `ctx` outlives it. 0, or -ENOMEM, -EINVAL (job or host too long), or what TLS lacks, with the
	 * reason in `e`. */
	int (*open)(void *ctx, const struct call_target *target, struct call_peer **out, struct err *e);
	/* Does what can be done now: 1 once we are welcome, 0 before, and a negative errno with the reason in `e` when
	 * the other box cannot be reached, has refused us, or was lost. */
	int (*step)(struct call_peer *p, uint64_t now_ns, struct err *e);
	/* Once welcome: says this. 0, -EAGAIN (more is unsent than should be kept: later), -ENOMEM. */
	int (*say)(struct call_peer *p, const Phub__Control *message);
	/* Once welcome: what data connections are made with. `key`: PROOF_KEY bytes, which stay put until close(). */
	void (*session)(const struct call_peer *p, uint64_t *session, const uint8_t **key, uint32_t *cores);
	/* Once welcome: the epoch of the root that it says it is; 0: it is below another. */
	uint64_t (*root)(const struct call_peer *p);
	/* Likewise: the box that may let us in when it has died, NULL: it named none; and where that listens. */
	const char *(*sibling)(const struct call_peer *p, uint16_t *port);
	/* Where it serves this transport, as connect() takes it. 0, or -ENOTSUP with what it offers in `e`, or -EBUSY:
	 * it does, but not for a job that runs there already. */
	int (*address)(const struct call_peer *p, const char *transport, char *out, size_t bytes, struct err *e);
	/* The fd to wait on, or -1; *write: also until it is writable. */
	int (*fd)(const struct call_peer *p, bool *write);
	/* Hangs up. What was said and has not gone out is lost. NULL is allowed. */
	void (*close)(struct call_peer *p);
};

#endif
