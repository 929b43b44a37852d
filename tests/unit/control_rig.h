/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box turned by hand on a network in memory, and clients that say whatever a test wants: right, wrong, or out of
 * order. Time moves by rig_wait() alone.
 */
#ifndef TESTS_UNIT_CONTROL_RIG_H
#define TESTS_UNIT_CONTROL_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/control/box.h"
#include "phub/control/config.h"
#include "transport/control.pb-c.h"
#include "transport/loop.h"
#include "transport/proof.h"
#include "transport/stream.h"
#include "transport/stream_tls.h"
#include "transport/transport.h"

#define ERROR_OF(name) PHUB__ERROR_CODE__ERROR_##name

enum { RIG_BOX_HOST = 0, RIG_PORT = 7077, RIG_CLIENTS_MAX = 16 };

struct call_ops;
struct call_peer;

struct rig {
	struct loop_net *net;
	struct loop_listener *listener;
	struct config config;
	struct box *box;
	uint64_t now_ns;
	bool cores_rest; /* control goes on alone: what it asks of cores is not done yet */
};

struct actor {
	struct rig *rig;
	unsigned host;
	struct stream *stream;
	struct frame_reader reader;
	struct frame_writer writer;
	uint32_t rank;
	uint64_t session;
	uint8_t key[PROOF_KEY];
	uint8_t expected[PROOF_MAC]; /* of the box */
	uint32_t chunk_bytes;
	Phub__Control *last; /* of rig_hear() */
	char error[600];     /* text of the last Error that came */
	int error_code;      /* 0: none */
	int error_rank;
	char notice[1200]; /* of the last Notice */
	uint32_t missing[64], missing_count;
	bool closed;
	struct transport *transport;
	/* What its Hello says; after actor_dial() */
	bool mirror, moves, encrypt, below;
	uint64_t least;        /* the epoch of the root that it looks for, with `below` */
	const char *at, *name; /* with `below`: where it listens, port 7077, and its name; likewise in its Gather; NULL:
				  not said */
	const uint8_t *channel; /* what the proof says of it over TLS; NULL: the truth */
};

/* What a Job says, with defaults of an all-reduce. */
struct rig_job {
	uint32_t generation;
	int optimizer, reduce, sync;
	uint32_t staleness, lost, chunk_bytes;
	bool reproducible, resumes;
	int seal;
	double lr, weight_decay;
	uint32_t quorum;
	const char *transport, *sites; /* NULL: loop, none */
};

/* Its message; in use, it must not be moved. */
struct rig_job_message {
	Phub__Job job;
	Phub__Hypers hypers, *groups[1];
};
void rig_job_fill(const struct rig_job *job, uint32_t key_count, struct rig_job_message *out);

/* The client's half of the box's sessions with its standby, of the next box; NULL: none. */
extern const struct call_ops *rig_calls;
/* Of such: there is nothing to wait on; and nobody listens for data connections. */
int rig_call_fd(const struct call_peer *p, bool *write);
int rig_call_address(const struct call_peer *p, const char *transport, char *out, size_t bytes, struct err *e);

/* A box with `cores` cores; `settings` are "key=value" ended by NULL, over the defaults, or NULL. */
void rig_open(struct rig *rig, unsigned cores, const char *const *settings);
/* The first job of the box; fails the test where there is none. */
struct job *rig_job(const struct rig *rig);
/* No job is left, nor memory, table or place on a core of one, and all that the box took it gave back. */
void rig_expect_empty(const struct rig *rig);
void rig_close(struct rig *rig);
/* Turns the box until nothing is left to be done now. */
void rig_turn_control(struct rig *rig);
/* Lets time pass, turning the box every 10 ms. */
void rig_wait(struct rig *rig, uint64_t ms);

void actor_dial(struct rig *rig, struct actor *c, unsigned host);
/* What it says from now on goes over TLS. */
void actor_wrap(struct actor *c, const struct stream_tls *tls);
void actor_hang_up(struct actor *c);
void actor_say(struct actor *c, const Phub__Control *message);
void actor_say_bytes(struct actor *c, const void *bytes, size_t count);
/* Takes in what came; the case of the last message that is no Heartbeat and no Notice, or 0. */
int actor_hear(struct actor *c);

/* The last Error that came has this code, and this in its text; 0 and "": none came, or one without words. */
void actor_expect(struct actor *c, int code, const char *text);

void actor_hello(struct actor *c, const char *job, uint32_t rank, uint32_t world);
/* Hello to Welcome. Returns whether it was welcomed. */
bool actor_join(struct actor *c, const char *job, uint32_t rank, uint32_t world, const char *secret);
/* The last two of its steps, after the Challenge was heard: says the Proof; hears whether it was welcomed. */
void actor_prove(struct actor *c, const char *job, uint32_t rank, uint32_t world, const char *secret);
bool actor_welcomed(struct actor *c);
/* Dials from `host`, and is welcomed to a job without a secret. */
void actor_enter(struct rig *rig, struct actor *c, unsigned host, const char *job, uint32_t rank, uint32_t world);
bool actor_join_admin(struct actor *c, const char *secret);
/* The administrator's command. */
void actor_ask(struct actor *a, const char *command);
void actor_job(struct actor *c, const struct rig_job *job, uint32_t key_count);
/* Keys `first`..: names k0, k1, ... with `elements` each. */
void actor_keys(struct actor *c, uint32_t generation, uint32_t first, uint32_t count, uint64_t elements);
/* Job and keys at once; the job's default is generation 1 of an all-reduce. */
void actor_table(struct actor *c, const struct rig_job *job, uint32_t count, uint64_t elements);
void actor_hyper(struct actor *c, uint32_t version, double lr);
void actor_barrier(struct actor *c, uint64_t id);
/* Whom a box below has. */
void actor_gather(struct actor *c, const uint32_t *ranks, size_t count, uint32_t number, int type);
void actor_heartbeat(struct actor *c);
/* The training is finished, or not. */
void actor_leave(struct actor *c);
void actor_leave_unfinished(struct actor *c);
/* Opens a data connection to a core with this key; 0 with `conn`, or a negative errno. */
int actor_connect(struct actor *c, uint32_t core, const uint8_t key[PROOF_KEY], struct conn **conn);

#endif
