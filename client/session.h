/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker's end of the control session: reaches the box (again and again until told otherwise), proves the
 * secret, agrees on keys, stays alive, hears of errors and of who is missing. A state machine over a stream: no thread,
 * no clock, no blocking but what env->dial() does. Under the handle's lock.
 *
 * What the box says is not believed: every length, count and order is checked, and a box that breaks the protocol ends
 * the session with -EPROTO.
 */
#ifndef PHUB_CLIENT_SESSION_H
#define PHUB_CLIENT_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "client/env.h"
#include "client/keyring.h"
#include "client/settings.h"
#include "phub/base/err.h"
#include "transport/control.pb-c.h"
#include "transport/proof.h"
#include "transport/stream.h"
#include "transport/wire.h"

enum client_session_state {
	SESSION_DIALLING, /* there is no connection; the next try is at retry_ns */
	SESSION_HELLO,    /* Hello is out, the box's Challenge is awaited */
	SESSION_PROOF,    /* Proof is out, the box's Welcome is awaited */
	SESSION_JOINED,   /* a member of the job, which has no keys */
	SESSION_STARTING, /* Job and Keys are going out, Start is awaited */
	SESSION_STARTED,  /* all workers have agreed: rounds may run */
	SESSION_LEAVING,  /* Leave is out, Left is awaited */
	SESSION_OVER,     /* `failure` says why */
};

enum {
	SESSION_ADDRESSES_MAX = 8,
	SESSION_NOTICES = 8,
	SESSION_MISSING_MAX = 64,
	SESSION_WHY_BYTES = 120,
	SESSION_WHYS = 64
};

struct client_address {
	char transport[16];
	char address[128];
};

/* What a worker waits for, as Who and Notice name it. */
struct client_subject {
	Phub__About about;
	uint32_t chunk; /* ABOUT_ROUND; else UINT32_MAX */
	uint64_t round;
};

/* How ranks went last, where nobody has asked for it since: bit r % 64 of word r / 64. */
struct client_gone {
	uint64_t left[WIRE_WORLD_MAX / 64], lost[WIRE_WORLD_MAX / 64];
	/* Why the last of them were lost, as the box has it; "": it did not say. */
	struct client_why {
		uint32_t rank;
		char text[SESSION_WHY_BYTES];
	} whys[SESSION_WHYS];
	unsigned why_count; /* that it has heard so far */
};

/* What the box said about waits that take long. */
struct client_notice {
	bool valid;
	struct client_subject subject;
	uint64_t at_ns;
	uint32_t missing[SESSION_MISSING_MAX];
	uint32_t missing_known, missing_count;
	char text[400];
};

struct client_start {
	uint32_t job, epoch, window;
	uint64_t result_offset;
	bool joined;      /* the job ran when this worker came: */
	uint64_t *rounds; /* [round_count] the first of each key, or of all, that it takes part in; ours to free */
	size_t round_count;
	bool moved;             /* the box goes on with a job that ran at another one: */
	uint64_t *chunk_rounds; /* [chunk_count of the plan] the round that each collects; ours to free */
	uint64_t barrier;       /* the last one that was passed */
	uint32_t hyper;         /* joined: the version of settings->groups; moved: the newest that the box knows */
	uint8_t *core_of_chunk; /* core_bytes of the box's; ours to free */
	size_t core_bytes;
	uint8_t data_key[PROOF_KEY]; /* of an encrypted job: its results' */
};

#define SESSION_BROKEN_MAX 8

struct client_session {
	const struct client_env *env;
	struct settings *settings;
	enum client_session_state state;
	struct err failure; /* SESSION_OVER */
	/*
	 * SESSION_STARTED: the box has ended the job, and this is why; code 0: it has not. What it committed before may
	 * still be on its way: the session is over when all of that is here (client.c).
	 */
	struct err verdict;
	uint64_t verdict_ns;
	struct url_box at, other; /* the box, and the one to try when that cannot be reached; host "": none */
	uint64_t tried_ns;        /* since when this one is tried; 0: it is not yet */
	char box[300];            /* `at` as "host:port", for messages */
	char who[128];            /* "job demo rank 0", for messages */

	/* Of a box that calls another (call.h), else NULL: hears all that is said to it once it is joined, and an
	 * Error at any time. */
	void (*call)(void *arg, const Phub__Control *message);
	void *call_arg;
	bool below;    /* it takes part there for workers; else it mirrors their job there */
	uint32_t peer; /* with `below`, as Hello has them */
	uint64_t exchange;
	uint64_t root, root_least;
	const char *own_host, *own_name; /* likewise; "", or NULL, as no call is below: none */
	uint16_t own_port;
	uint64_t root_told; /* as it says in its Welcome */

	struct transport *carries; /* whose signals go with this session, or NULL */
	struct {
		uint32_t core;
		char why[60];
	} broken[SESSION_BROKEN_MAX]; /* connections whose box's end broke, not yet looked at; more are not kept */
	unsigned broken_count;
	struct stream *stream;
	struct frame_reader in;
	struct frame_writer out;
	uint64_t retry_ns, backoff_ns;
	struct err trouble;  /* why the last try to reach the box failed; code 0: none yet */
	uint64_t checked_ns; /* when the stream was last read */
	bool unsent;         /* the stream did not take everything */

	uint8_t nonce[PROOF_NONCE];
	uint8_t expected[PROOF_MAC]; /* of the box in its Welcome */
	uint8_t key[PROOF_KEY];      /* for data connections */
	uint64_t sealed; /* pushes that were encrypted with a key that follows from it (transport/crypt.h) */
	uint64_t id;
	struct url_box standby; /* where the job goes on when this box is lost; host "": nowhere */
	bool unmapped;          /* the box would refuse shm: the job began without this rank's */
	struct url_box sibling; /* the box that may let this rank in again then; host "": none */
	bool moves;             /* to there: a Start with `moved` is awaited */
	bool resumes;           /* the job ran with us before, and was lost */
	uint32_t cores;         /* of the box */
	uint32_t chunk_bytes;   /* its default */
	struct client_address addresses[SESSION_ADDRESSES_MAX];
	unsigned address_count;
	uint64_t heartbeat_every_ns, heartbeat_ns, lost_ns;
	uint64_t unanswered_ns; /* since when a heartbeat is without any answer; 0: none is */

	const struct keyring *keyring; /* SESSION_STARTING */
	uint32_t keys_sent;
	uint32_t generation;
	struct client_start start; /* SESSION_STARTED */
	uint32_t epoch;            /* of the membership; 0: as at the start */
	uint32_t present;          /* workers in the job; 0: all of the world */
	struct client_gone gone;
	uint64_t barrier, barrier_done; /* the last one asked for, and passed... */
	uint64_t barrier_told;          /* ...and that the caller knows to be passed */
	struct client_notice notices[SESSION_NOTICES];
	unsigned notice_next;
	struct client_subject asked; /* the box was asked who is missing from it */
	uint64_t asked_ns;           /* when; 0: it was not */
};

/* Sets out to reach the box. `env` and `settings` outlive the session. */
void client_session_init(struct client_session *s, const struct client_env *env, struct settings *settings);

/* Before anything is said: the box is this one, and another where it cannot be reached. */
void client_session_between(struct client_session *s, const struct url_box *box, const struct url_box *other);
/* Before anything is said: the box is another one than settings->url names, and there is no other. */
void client_session_aim(struct client_session *s, const struct url_box *box);

/*
 * The box was lost: sets out to another one at `at_ns`, where the job goes on. What the caller knows of barriers,
 * members and its coming to the job stays.
 */
void client_session_move(struct client_session *s, const struct url_box *box, uint64_t at_ns);

/* May the job go on elsewhere when this box is lost? Then who leaves must be heard of there. */
bool client_session_can_move(const struct client_session *s);

/* Before it is joined: the box was not reached, or hung up, and is tried again later, or another one is. */
void client_session_retry(struct client_session *s, uint64_t now_ns, int code, const char *why);

/* Was the box not there whenever it was tried? A try that has just begun says nothing against that. */
bool client_session_unreachable(const struct client_session *s);

/* Reads, answers, keeps alive. Returns messages handled, plus 1 when the state changed otherwise. */
unsigned client_session_progress(struct client_session *s, uint64_t now_ns);

/* When progress() has something to do by itself at the latest; UINT64_MAX: never. */
uint64_t client_session_due(const struct client_session *s);

/* JOINED or STARTED -> STARTING, with generation + 1. `groups` are version 0 of its table. `keyring` stays put until
 * Start. 0 or -ENOMEM. */
int client_session_start(struct client_session *s, const struct keyring *keyring, const struct phub_hyper *groups,
	const char *transport, uint32_t chunk_bytes);

/* STARTED -> JOINED: the key table is forgotten. */
void client_session_restart(struct client_session *s);

/* The connection to this core broke, and `text` says how. On error the session is over. */
void client_session_broke(struct client_session *s, uint32_t core, const char *text);

/* Sends version `version` of the hyper-parameters, of as many groups as the settings have. On error the session is
 * over.
 */
void client_session_hyper(struct client_session *s, uint32_t version, const struct phub_hyper *groups);

/*
 * Asks for the next barrier, if the caller was told that the last one is passed: one that a wait gave up is waited for
 * again. Done when barrier_done == barrier. While the session moves it is only counted.
 */
void client_session_barrier(struct client_session *s);

/* The session has moved: barriers that this box does not know to be passed are asked for again. */
void client_session_barrier_again(struct client_session *s);

/* Asks the box who is missing from what this worker waits for. The answer is a notice. */
void client_session_ask(struct client_session *s, const struct client_subject *subject, uint64_t now_ns);

/* JOINED, of a box at its standby: says this. 0, -ENOBUFS or -ENOMEM; it goes out at the next progress(). */
int client_session_say(struct client_session *s, const Phub__Control *message);

/* Where the box serves this transport, as connect() takes it. 0, or -ENOENT: it does not. */
int client_session_address(const struct client_session *s, const char *transport, char *out, size_t out_bytes);

/* -> LEAVING. */
void client_session_leave(struct client_session *s, bool finished);

/* The box has ended the job: the session goes on for what still comes, and then ends with this. */
void client_session_doom(struct client_session *s, uint64_t now_ns, int code, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* The box was not reached, hung up before we were a member, or has no time for newcomers: it is tried again later. */
void client_session_retry(struct client_session *s, uint64_t now_ns, int code, const char *why);

/* Ends the session: the first call wins, and a verdict of the box before that. */
void client_session_fail(struct client_session *s, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/*
 * The box's words for this worker, who says itself which job and rank it is: what begins with "job 'demo' rank 0: " or
 * "job 'demo': " goes on behind it. *subject: words to put in its place, "" or "the job ".
 */
const char *client_session_trim(const struct client_session *s, const char *text, const char **subject);

bool client_subject_equal(const struct client_subject *a, const struct client_subject *b);

/* The newest notice about this and nothing else, or NULL; about a silent rank since `since_ns`, or NULL. */
const struct client_notice *client_session_notice(const struct client_session *s, const struct client_subject *subject);
const struct client_notice *client_session_silence(const struct client_session *s, uint64_t since_ns);

/* The fd to wait on, or -1; *write: also until it is writable. */
int client_session_fd(const struct client_session *s, bool *write);

/* Frees everything; the box sees the end of the connection. */
void client_session_fini(struct client_session *s);

/* One frame of the box's, as progress() treats it: for tests and fuzzers too. */
void client_session_take(struct client_session *s, const uint8_t *frame, size_t bytes, uint64_t now_ns);

#endif
