/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for etcd's JSON gateway on a port of 127.0.0.1, stepped by the test that calls it: it answers what the
 * test says, whole or in pieces, late, cut short, without end, or not at all.
 */
#ifndef TESTS_UNIT_ETCD_RIG_H
#define TESTS_UNIT_ETCD_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ETCD_RIG_CONNS = 8 };

struct etcd_rig_answer {
	int status;       /* of HTTP; 0: the connection is closed without a word */
	const char *body; /* as the answer, or as what comes first of a stream */
	size_t length;    /* that is said; 0: that of the body. More than that: the connection then ends early */
	uint64_t repeat;  /* the body comes so many times */
	bool never;       /* nothing is answered, and the connection stays */
	bool stays; /* no length is said and the connection stays: a stream (etcd_rig_say()); with a length, one that
		       ends too early */
};

struct etcd_rig_request {
	const char *path, *head, *body;
};

struct etcd_rig_conn {
	int fd;
	char in[65536];
	size_t have;
	char *out; /* malloc'ed */
	size_t out_bytes, out_room, out_at;
	bool stream, ends;
};

struct etcd_rig {
	int fd;
	uint16_t port;
	char url[64];
	void (*answer)(void *arg, const struct etcd_rig_request *request, struct etcd_rig_answer *out);
	void *arg;
	struct etcd_rig_conn conns[ETCD_RIG_CONNS];
	unsigned requests;
};

void etcd_rig_init(struct etcd_rig *rig);
void etcd_rig_step(struct etcd_rig *rig);
/* To all streams. */
void etcd_rig_say(struct etcd_rig *rig, const char *text);
/* All connections end, as when it dies; the port stays. */
void etcd_rig_hang_up(struct etcd_rig *rig);
void etcd_rig_fini(struct etcd_rig *rig);

#endif
