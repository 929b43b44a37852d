/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a worker says on its control session: one function per message. Each appends a frame to the session's writer;
 * progress() sends it. 0 or a negative errno (-ENOMEM, -ENOBUFS, -EIO without randomness). Used by session.c alone.
 */
#ifndef PHUB_CLIENT_SAY_H
#define PHUB_CLIENT_SAY_H

#include "client/session.h"

#define SESSION_VERSION 1u /* of the control protocol, and of what it speaks for */

int client_say(struct client_session *s, const Phub__Control *message);
int client_say_hello(struct client_session *s);
int client_say_signal(struct client_session *s, const struct signal *signal);
int client_say_proof(struct client_session *s, const uint8_t mac[PROOF_MAC]);
int client_say_job(
	struct client_session *s, const struct phub_hyper *hypers, const char *transport, uint32_t chunk_bytes);
/* Says as many of the keys as the writer should hold now. */
int client_say_keys(struct client_session *s);
int client_say_hyper(struct client_session *s, uint32_t version, const struct phub_hyper *groups);
int client_say_broken(struct client_session *s, uint32_t core, const char *text);
int client_say_barrier(struct client_session *s, uint64_t id);
int client_say_heartbeat(struct client_session *s, uint64_t stamp);
int client_say_who(struct client_session *s, const struct client_subject *subject);
int client_say_leave(struct client_session *s, bool finished);

#endif
