/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What probes say to each other over TCP: after a proof of the token by both ends, messages of one fixed size. Sockets
 * are non-blocking; every wait has a deadline. Any thread.
 */
#ifndef PHUB_CLI_PROBE_WIRE_H
#define PHUB_CLI_PROBE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "transport/sock.h"

enum {
	PROBE_PORT = 7079,
	PROBE_TOKEN_MIN = 8, /* bytes */
	PROBE_TOKEN_MAX = 256,
	PROBE_STREAMS_MAX = 128, /* that one probe sends at a time */
	PROBE_MS_MIN = 100,      /* of a run: in less, a burst or a pause is all there is */
	PROBE_SECONDS_MAX = 60,
	PROBE_ANSWER_S = 10, /* that an answer may take beyond what is measured */
	PROBE_PINGS_MAX = 10000,
};

enum probe_type {
	PROBE_CONTROL = 1, /* from here on: asks to measure. First message of a connection, as the next two */
	PROBE_PING,        /* each message comes back */
	PROBE_STREAM,      /* `count` streams or not, bytes follow until the end, and are counted after warm_ns */
	PROBE_LATENCY,     /* measure `count` round trips to host and port: RESULT */
	PROBE_PREPARE,     /* connect `count` streams to host and port: RESULT or FAILED */
	PROBE_GO,          /* send on all that is prepared, for warm_ns and measure_ns: a RESULT for each PREPARE */
	PROBE_DONE,        /* end */
	PROBE_RESULT,
	PROBE_FAILED, /* `host` says why */
};

struct probe_message {
	enum probe_type type;
	uint32_t count;
	uint16_t port;
	uint64_t warm_ns, measure_ns;
	uint64_t values[3]; /* of a latency: least, median, 90 % in ns; of streams: bytes a second */
	char host[SOCK_HOST_BYTES];
};

struct probe_token {
	uint8_t bytes[PROBE_TOKEN_MAX];
	size_t length;
};

/* Of the file, or of PHUB_PROBE_TOKEN when it is NULL. 0, or -EINVAL and the like with what to do in `e`. */
int probe_token_read(const char *file, struct probe_token *token, struct err *e);

/* Connects and proves the token. The fd is the caller's. 0; -EACCES: the tokens differ; or why there is none. */
int probe_connect(
	const char *host, uint16_t port, const struct probe_token *token, uint64_t deadline_ns, int *fd, struct err *e);
/* The other end of that, on an accepted fd. */
int probe_accept(int fd, const struct probe_token *token, uint64_t deadline_ns);

/* 0, -ETIMEDOUT, -EPIPE (the other end closed), -EPROTO (it speaks something else), or why the socket failed. */
int probe_send(int fd, const struct probe_message *m, uint64_t deadline_ns);
int probe_receive(int fd, struct probe_message *m, uint64_t deadline_ns);

/* Waits for poll() events; 0, or -ETIMEDOUT. */
int probe_wait(int fd, short events, uint64_t deadline_ns);

#endif
