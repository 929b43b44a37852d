/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub topo probe: what its files share. probe.c asks and writes the rack file, probe_run.c measures, probe_agent.c
 * serves, probe_wire.c is what they say to each other.
 */
#ifndef PHUB_CLI_PROBE_H
#define PHUB_CLI_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/cli/output.h"
#include "phub/cli/probe_wire.h"
#include "topology/probe.h"
#include "topology/racks.h"

struct probe_member {
	char name[RACKS_NAME_BYTES];
	char host[RACKS_HOST_BYTES];
	uint16_t port;          /* of its box; 0: it is a host */
	int fd;                 /* to its probe, -1: none */
	unsigned flows;         /* in the run that goes on */
	double fan_out, fan_in; /* to and from all others at once, bytes a second */
};

struct probe {
	struct probe_member members[PROBE_MEMBERS_MAX];
	unsigned count;
	struct probe_token token;
	uint16_t port; /* of the probes */
	unsigned streams;
	uint64_t measure_ns, warm_ns;
	uint64_t runs_done, runs_due; /* of those that take measure_ns */
	struct output_progress progress;
	struct probe_facts facts;
	struct probe_split splits[PROBE_BY_COUNT];
	int by;                                               /* that racks were told apart by, or -1 */
	bool given;                                           /* racks are those of a file */
	unsigned rack[PROBE_MEMBERS_MAX], rack_count;         /* of members */
	double out[PROBE_MEMBERS_MAX], in[PROBE_MEMBERS_MAX]; /* of racks' uplinks */
};

struct probe_flow {
	unsigned from, to;
	double rate;
};

/* Connects to all probes. 0, or the error of the first that is not there. Blocks. */
int probe_open(struct probe *p, struct err *e);
/* Tells them to end, when that is wanted, and hangs up. */
void probe_close(struct probe *p, bool end);
/* How many runs, and how long they take at least. */
uint64_t probe_runs(const struct probe *p);
/* Latencies, rates alone and together, fans; then racks, and their uplinks. */
int probe_measure(struct probe *p, struct err *e);

/* Serves at host ("": any address) and port until told to end: 0, or -ETIMEDOUT after limit_s. */
int probe_serve(const char *host, uint16_t port, const struct probe_token *token, uint64_t limit_s, struct err *e);

#endif
