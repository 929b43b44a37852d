/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One control session at the box: a stranger that says hello, proves a secret (or that it is this user), and becomes a
 * rank of a job or an administrator. Everything it sends is untrusted and bounded; what is malformed or out of order
 * ends this session alone. Control thread; nothing blocks.
 */
#ifndef PHUB_CONTROL_SESSION_H
#define PHUB_CONTROL_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/control/config.h"
#include "phub/control/control.h"
#include "phub/control/names.h"
#include "phub/control/table.h"
#include "transport/control.pb-c.h"
#include "transport/proof.h"
#include "transport/stream.h"

struct job;
struct table;

enum session_state {
	SESSION_AWAIT_HELLO, /* connected, said nothing yet */
	SESSION_AWAIT_PROOF, /* got our Challenge */
	SESSION_ADMIN,       /* proved; asks questions and joins no job */
	SESSION_MEMBER,      /* a rank of `job`; what it may say now depends on the job */
	SESSION_DONE, /* got Left or an Error: what it still says is thrown away; closed when it closes, or after a
			 while */
};

struct session {
	struct session *next;
	struct control *control;
	struct control_watch watch;
	enum session_state state;
	uint64_t id; /* on the wire */
	struct stream *stream;
	unsigned listener; /* by which it came */
	struct frame_reader reader;
	struct frame_writer writer;
	bool readable; /* epoll said so, or there is no fd */
	bool blocked;  /* the stream did not take all that was written */
	bool proved;   /* no longer counted among the strangers */
	bool dead;     /* to be freed at the end of the step */
	bool warned;   /* silent, and everybody knows */
	bool asked;    /* a core is to tell who is missing from its round */
	uint64_t opened_ns, heard_ns, done_ns;
	uint64_t signals_ns;   /* when signals_left was counted */
	uint32_t signals_left; /* that it may send at once */

	/* From Hello. */
	char name[SPEC_NAME_BYTES]; /* of the job */
	bool admin, mirror, moves, below;
	bool carries; /* with `peer`: it lifts nothing here, and carries what belongs to chunks (peers_routes.h) */
	struct names_box box; /* with `below`: where others reach it */
	uint32_t peer;        /* with `below`: it is beside this one in an exchange (peers.h); 0: below it */
	uint64_t exchange;
	uint64_t root, root_least;                  /* with `below`: the epochs of the root that it looks for */
	bool astray;                                /* this one is not that */
	char peer_transport[TABLE_TRANSPORT_BYTES]; /* with `peer`: by which it will lift chunks to this one; "": it
						       chooses yet */
	bool encrypt;
	uint32_t rank, world;
	uint8_t client_nonce[PROOF_NONCE], box_nonce[PROOF_NONCE];
	const struct config_secret *secret; /* that it has to prove; NULL: none */
	uint8_t key[PROOF_KEY];             /* SESSION_MEMBER, SESSION_ADMIN */

	/* SESSION_MEMBER */
	struct job *job;
	struct table *table;    /* of its next Job, until the job takes it */
	uint64_t table_counted; /* its share of control->table_bytes */
	uint64_t table_ns;      /* when it began to come */
};

/* Takes a stream in (also to refuse it). The stream is the session's from then on, also on failure. */
void session_open(struct control *c, struct stream *stream, unsigned listener);

/* Reads and acts on what came. */
void session_read(struct session *s);

/* Sends what was written. */
void session_flush(struct session *s);

/* Looks at its timers. */
void session_tick(struct session *s);

/* Ends it at once, because of `why`: its job hears of it. Freed at the end of the step. */
void session_lose(struct session *s, const char *why);

/* Tells its job that this rank is gone because of `why`. The session itself stays. */
void session_part(struct session *s, const char *why);

/* Frees those that are dead. */
void session_reap(struct control *c);

/* The session with this id that is a member of a job, or NULL. */
struct session *session_find(struct control *c, uint64_t id);

/* Is it this user, or root, on this very host? */
bool session_is_ours(const struct session *s);

/* "job 'mnist' rank 2 (127.0.0.1:4242)", "job 'mnist' box 10.0.2.1:7077 below", for logs. */
const char *session_who(const struct session *s, char *out, size_t bytes);

/* Counts its table's memory anew; -ENOMEM when tables that are coming in take too much. */
int session_count_table(struct session *s);
void session_drop_table(struct session *s);

/* ---- session_hello.c ---- */

void session_hear_hello(struct session *s, const Phub__Hello *hello);
void session_hear_proof(struct session *s, const Phub__Proof *proof);

/* ---- session_say.c: writes one message; a peer that does not read is closed ---- */

void session_write(struct session *s, const Phub__Control *message);

/* Sends an Error, and is done. `rank`: whose fault, -1 for nobody's. It does not touch the job. */
void session_write_error(struct session *s, Phub__ErrorCode code, int rank, const char *text);

/* Ends the session by an Error about what it did itself; its job hears that it is lost. */
void session_refuse(struct session *s, Phub__ErrorCode code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

void session_write_challenge(struct session *s);
void session_write_welcome(struct session *s, const uint8_t mac[PROOF_MAC]);
void session_write_heartbeat(struct session *s, uint64_t stamp);
void session_write_barrier_done(struct session *s, uint64_t id);
void session_write_signal(struct session *s, const struct signal *signal);
void session_write_broken(struct session *s, uint32_t core, const char *text);
void session_write_left(struct session *s);

#endif
