/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where data connections come in: each proves with a MAC that it belongs to a control session, and is handed to the
 * core it asked for. Control thread; nothing blocks.
 */
#ifndef PHUB_CONTROL_DOOR_H
#define PHUB_CONTROL_DOOR_H

#include <stdint.h>

struct conn;
struct control;
struct job;

/* Takes in what is ready; every transport's handshakes are driven, and their timers too when `all` is not 0. */
void door_step(struct control *c, int all);

/* Hands the core an admitted connection of this rank. */
void door_link(struct control *c, uint32_t rank, const struct job *job, uint32_t core, struct conn *conn);

#endif
