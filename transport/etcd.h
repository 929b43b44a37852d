/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls to etcd's v3 JSON gateway: a request goes to the first of several URLs that answers, with the token that user
 * and password have earned, and ends with its answer or the reason why there is none. Knows what etcd is, and not what
 * is kept there. Nothing blocks and there is no thread of ours (libcurl has one while it resolves a name): the owner
 * calls etcd_step() when etcd_fd() is readable or etcd_next() has come. One thread, any.
 */
#ifndef PHUB_TRANSPORT_ETCD_H
#define PHUB_TRANSPORT_ETCD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"

#define ETCD_URLS_MAX     8u
#define ETCD_URL_BYTES    320u
#define ETCD_USER_BYTES   128u
#define ETCD_SECRET_BYTES 4096u
#define ETCD_TOKEN_BYTES  4096u
#define ETCD_ANSWER_MAX   (8u << 20) /* of one call, and what of a watch nobody has taken yet */
#define ETCD_KEYS_MAX     500u  /* to be asked for at once: with keys and values of any length they fit an answer */
#define ETCD_TIMEOUT_MS   3000u /* for an answer, at each URL */

struct etcd;

/* Where etcd is, and who asks. */
struct etcd_config {
	char urls[ETCD_URLS_MAX][ETCD_URL_BYTES]; /* "http://host:port", or https */
	unsigned url_count;
	char user[ETCD_USER_BYTES];     /* ""; with `secret` its password */
	char secret[ETCD_SECRET_BYTES]; /* "", a password, or without a user a token */
	char ca[4096];                  /* PEM file with https's authorities; "": those of the system */
	unsigned timeout_ms;            /* 0: ETCD_TIMEOUT_MS */
};

/*
 * `urls` are separated by commas or blanks; without a scheme they are http, and then without a port at 2379. `secret`
 * is "user:password" or a token, with or without a line's end; NULL: none. `ca` may be NULL. Does no I/O. 0, or -EINVAL
 * with what is wrong in `e`.
 */
int etcd_config_read(const char *urls, const char *secret, const char *ca, struct etcd_config *out, struct err *e);

/*
 * The secret is that of the environment's PHUB_ETCD_SECRET or of the file PHUB_ETCD_SECRET_FILE, the authorities are
 * PHUB_ETCD_CA's. Blocks on files. 0 or a negative errno.
 */
int etcd_config_from_env(const char *urls, struct etcd_config *out, struct err *e);

/* Connects to nobody yet. Copies the config. 0, -ELIBACC (there is no libcurl) or -ENOMEM, with a text. */
int etcd_open(const struct etcd_config *config, struct etcd **out, struct err *e);
/* All calls have been ended. */
void etcd_close(struct etcd *etcd);

int etcd_fd(const struct etcd *etcd);
void etcd_step(struct etcd *etcd, uint64_t now_ns);
/* When etcd_step() is due at the latest; CLOCK_NEVER: when the fd is readable. */
uint64_t etcd_next(const struct etcd *etcd);

enum etcd_state {
	ETCD_IDLE, /* zeroed memory is this */
	ETCD_RUNNING,
	ETCD_DONE,   /* the answer is in `answer` */
	ETCD_FAILED, /* why is in `why` */
};

/* A call: the caller's memory, not to be moved from begin to end. */
struct etcd_call {
	enum etcd_state state;
	char *answer; /* ends with a zero */
	size_t bytes;
	int status;     /* of a failed one: enum etcd_status, or -1: nobody answered */
	struct err why; /* likewise; names the URL */
	char local[48]; /* the address of this host that it was sent from; "": not known */

	/* The rest is etcd.c's. */
	struct etcd *etcd;
	const char *path;
	char *request, *login;
	void *easy, *headers;
	size_t room, taken;
	unsigned tries;
	bool stream, began, logs_in, logged_in, too_long;
	char trouble[256]; /* libcurl's */
};

/*
 * POSTs `request`, which is etcd's from now on and may be NULL (no memory: the call fails), to the path
 * ("/v3/kv/range"). The call runs, or has failed already. It is to be ended in any case.
 */
void etcd_begin(struct etcd *etcd, struct etcd_call *call, const char *path, char *request, uint64_t now_ns);
/* Likewise, a watch: it goes on until it has failed; it was not DONE but for its lines. */
void etcd_begin_stream(struct etcd *etcd, struct etcd_call *call, const char *path, char *request, uint64_t now_ns);
/* The next whole line of a stream, with *bytes of it, or NULL. Lasts until the next step. */
const char *etcd_line(struct etcd_call *call, size_t *bytes);
/* In any state: what runs is given up, what it holds is freed, and it is idle. */
void etcd_end(struct etcd_call *call);

/* The URL that is asked now. */
const char *etcd_url(const struct etcd *etcd);

#endif
