/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is up, as etcd has it: a key for each box, and one for each job at a box, each under the lease of its box; and
 * one for each root that boxes stand for, under a lease that the one which is it keeps alive:
 *
 *      PREFIX/boxes/BOX        {"address": "10.0.0.1:7077", "host": "n1", "rack": "r0", "transports": ["tcp", "shm"],
 * ...} PREFIX/jobs/JOB/BOX     {"state": "running", "workers": 4, "known": 8, "world": 8, "round": 1200}
 *      PREFIX/roots/ROOT       {"box": "a", "address": "10.0.0.1:7077", "tls": false, "since": 1764000000}
 *      PREFIX/rooted/ROOT      likewise, of the last that was it, under no lease
 *
 * Writes such values and reads them. Whoever may write there can have put anything: what is read has bounds, and no
 * characters but printable ASCII. Pure; any thread.
 */
#ifndef PHUB_TRANSPORT_ROSTER_H
#define PHUB_TRANSPORT_ROSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/etcd_text.h"

#define ROSTER_NAME_BYTES    64u
#define ROSTER_ADDRESS_BYTES 320u
#define ROSTER_PREFIX_BYTES  128u
#define ROSTER_PREFIX        "/phub" /* unless told otherwise */
#define ROSTER_BOXES_MAX     4096u
#define ROSTER_JOBS_MAX      65536u /* at all boxes */
#define ROSTER_ROOTS_MAX     1024u

struct roster_box {
	char name[ROSTER_NAME_BYTES];
	char address[ROSTER_ADDRESS_BYTES]; /* host:port */
	char host[ROSTER_NAME_BYTES];       /* its host's name */
	char rack[ROSTER_NAME_BYTES];       /* "": not told, as below */
	char uplink[ROSTER_ADDRESS_BYTES];
	char transports[ROSTER_NAME_BYTES]; /* "tcp, shm" */
	char version[ROSTER_NAME_BYTES];
	uint32_t cores;
	char root[ROSTER_NAME_BYTES]; /* that it stands for */
	bool tls;                     /* it needs TLS */
	int64_t since;                /* Unix time of its start; 0: not told */
};

/* A job at one of its boxes. */
struct roster_job {
	char name[ROSTER_NAME_BYTES];
	char box[ROSTER_NAME_BYTES];
	char state[ROSTER_NAME_BYTES];
	uint32_t workers, known, world; /* at this box; that this box knows at all boxes; that are to be there */
	uint64_t round;
};

/* The box that is a root, of which the key tells the name. */
struct roster_root {
	char name[ROSTER_NAME_BYTES];
	uint64_t epoch; /* as it is told, of one that went on after its key was gone for a time; else the key's revision
			 */
	char box[ROSTER_NAME_BYTES];
	char address[ROSTER_ADDRESS_BYTES];
	bool tls;
	int64_t since; /* Unix time by that box's clock; 0: not told */
};

/* May these bytes name a box, or a job? 1 to 63 printable ASCII characters, no space, no slash. */
bool roster_name_valid(const char *name);
/* May keys begin with it? Likewise, with slashes, "/phub", not at its end. */
bool roster_prefix_valid(const char *prefix);

/* Keys and values. False: it does not fit. The values are malloc'ed; NULL: no memory. */
bool roster_box_key(const char *prefix, const char *box, char *out, size_t bytes);
bool roster_job_key(const char *prefix, const char *job, const char *box, char *out, size_t bytes);
bool roster_root_key(const char *prefix, const char *root, char *out, size_t bytes);
bool roster_rooted_key(const char *prefix, const char *root, char *out, size_t bytes);
char *roster_write_root(const struct roster_root *root);
/* A value under a key that this revision made; the name is left as it is. 0, or -EINVAL. */
int roster_read_root(const char *value, int64_t created, struct roster_root *out);
char *roster_write_box(const struct roster_box *box);
char *roster_write_job(const struct roster_job *job);

enum roster_kind { ROSTER_BOX, ROSTER_JOB, ROSTER_ROOT };

/* What a key and its value say. */
struct roster_item {
	enum roster_kind kind;
	bool gone;             /* then only names are known */
	struct roster_box box; /* by kind */
	struct roster_job job;
	struct roster_root root;
};

/* 0, or -EINVAL: it is no such key, or its value is none that a box writes. */
int roster_read(const char *prefix, const struct etcd_item *item, struct roster_item *out);

/* By name; jobs by name and then box. Zeroed is empty. */
struct roster {
	struct roster_box *boxes;
	struct roster_job *jobs;
	struct roster_root *roots;
	unsigned box_count, box_room, job_count, job_room, root_count, root_room;
};

/* 0, -ENOSPC (the bounds above) or -ENOMEM. */
int roster_put(struct roster *r, const struct roster_item *item);
/* NULL: there is none. */
const struct roster_box *roster_find_box(const struct roster *r, const char *name);
/*
 * The box for a worker of this job on this host and in this rack ("": not known): one on its host, else of its rack,
 * else that has the job, else the first by name; of several the one for which more of this is so. NULL: there is none
 * that it could reach; those at loopback addresses serve their own hosts alone.
 */
const struct roster_box *roster_choose(const struct roster *r, const char *host, const char *rack, const char *job);
const struct roster_root *roster_find_root(const struct roster *r, const char *name);
const struct roster_job *roster_find_job(const struct roster *r, const char *name, const char *box);
void roster_fini(struct roster *r);

#endif
