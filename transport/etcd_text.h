/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is said to etcd's v3 JSON gateway and what it answers, as text: no I/O. Keys and values are base64 there, and
 * 64-bit numbers are strings. Requests are malloc'ed; NULL: no memory. Answers are anybody's bytes. Any thread.
 */
#ifndef PHUB_TRANSPORT_ETCD_TEXT_H
#define PHUB_TRANSPORT_ETCD_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"

#define ETCD_KEY_BYTES   512u  /* longer keys are none of ours */
#define ETCD_VALUE_BYTES 8192u /* nor are longer values */

/* Of etcd's answers, as gRPC counts them. */
enum etcd_status {
	ETCD_OK = 0,
	ETCD_UNKNOWN = 2,
	ETCD_INVALID = 3,   /* wrong password, too */
	ETCD_NOT_FOUND = 5, /* the lease is over */
	ETCD_DENIED = 7,
	ETCD_PRECONDITION = 9, /* authentication is not enabled */
	ETCD_UNAVAILABLE = 14,
	ETCD_UNAUTHENTICATED = 16, /* the token is old */
};

/* ---- requests ---- */

/* One of a transaction. */
struct etcd_op {
	const char *key;
	const char *value; /* NULL: the key is deleted; ETCD_READ: it is read */
	int64_t lease;
};
extern const char ETCD_READ[];

char *etcd_text_grant(int64_t ttl_s);
char *etcd_text_lease(int64_t lease); /* keepalive and revoke */
/* All of them, in this order, whatever was there. */
char *etcd_text_txn(const struct etcd_op *ops, unsigned count);
/*
 * Puts it where there is no such key, and with it the same under `last`, which stays when the lease ends; else reads
 * the key. `unless_since`: nobody may have put `last` after that revision; 0: whoever has.
 */
char *etcd_text_claim(const char *key, const char *value, int64_t lease, const char *last, int64_t unless_since);
/* Keys that begin with `prefix`, from `from` on (NULL: from its first), `limit` of them; as of `revision`, 0: now. */
char *etcd_text_range(const char *prefix, const char *from, unsigned limit, int64_t revision);
/* What becomes of keys that begin with `prefix` after `revision`. */
char *etcd_text_watch(const char *prefix, int64_t revision);
char *etcd_text_authenticate(const char *user, const char *password);

/* ---- answers: 0, or -EPROTO with what is wrong in `e` ---- */

struct etcd_item {
	const char *key;   /* as C strings: those that hold a zero, or are longer than above, are left out */
	const char *value; /* NULL: it was deleted */
	int64_t created;   /* the revision that made it: grows from one of a name to the next, as long as etcd lives */
	int64_t lease;     /* 0: none */
};

/* Called for each key; what it is given lasts until it returns. */
typedef void etcd_item_fn(void *arg, const struct etcd_item *item);

struct etcd_page {
	int64_t revision;
	bool more;                 /* there are keys behind these */
	char last[ETCD_KEY_BYTES]; /* the last one, left out or not; "": there was none */
};

int etcd_text_read_range(
	const char *text, size_t bytes, etcd_item_fn *fn, void *arg, struct etcd_page *page, struct err *e);

struct etcd_news {
	int64_t revision;
	bool over; /* the watch has ended: what it asked for was compacted, or who asks may not see it */
};

/* One line of a watch. */
int etcd_text_read_watch(
	const char *text, size_t bytes, etcd_item_fn *fn, void *arg, struct etcd_news *news, struct err *e);

/* The keys that a transaction has read. */
int etcd_text_read_txn(const char *text, size_t bytes, etcd_item_fn *fn, void *arg, struct err *e);
/* *won: it was put, by `revision`; else fn hears of the one that is there. */
int etcd_text_read_claim(
	const char *text, size_t bytes, bool *won, int64_t *revision, etcd_item_fn *fn, void *arg, struct err *e);
int etcd_text_read_grant(const char *text, size_t bytes, int64_t *lease, int64_t *ttl_s, struct err *e);
/* *ttl_s 0: the lease is over. */
int etcd_text_read_keepalive(const char *text, size_t bytes, int64_t *ttl_s, struct err *e);
int etcd_text_read_token(const char *text, size_t bytes, char *token, size_t token_bytes, struct err *e);
/* What a refusal says: its enum etcd_status, ETCD_UNKNOWN when it is none of etcd's, and its text without control
 * characters. */
int etcd_text_read_error(const char *text, size_t bytes, char *why, size_t why_bytes);

#endif
