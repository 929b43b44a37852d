/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rack file: which boxes and hosts there are, in which racks, and what links them. YAML, read whole and checked;
 * each error names its line. All rates are those of a link each way, in bytes a second; all latencies one way.
 *
 *      latency: 50us                      # of a message from rack to rack
 *      racks:
 *        - name: r0
 *          uplink: 50Gbit                 # of its switch to the other racks; or oversubscription: 4, of its hosts' and
 *          latency: 10us                  # boxes' links together; of a message within the rack
 *          boxes:
 *            - name: box0
 *              address: 10.0.0.1:7077     # where it serves
 *              rate: 100Gbit              # of its links together
 *              cores: 8                   # that sum; may be left away
 *              sibling: box1              # where its workers go when it dies; may be left away
 *          hosts:                         # may be left away; so may `workers` (1)
 *            - {name: h0, rate: 25Gbit, workers: 4}
 *
 * Pure but for the file that it reads. Any thread.
 */
#ifndef PHUB_TOPOLOGY_RACKS_H
#define PHUB_TOPOLOGY_RACKS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "phub/base/err.h"

#define RACKS_NAME_BYTES 64u
#define RACKS_HOST_BYTES 256u
#define RACKS_MAX        256u /* racks, and boxes */
#define RACKS_HOSTS_MAX  4096u
#define RACKS_NONE       (-1)
#define RACKS_RATE_MIN   125.0  /* bytes a second: 1Kbit, */
#define RACKS_RATE_MAX   125e12 /* and 1000Tbit */

struct rack {
	char name[RACKS_NAME_BYTES];
	double uplink_bytes_s; /* of its switch; 0: it is the only rack, and has none */
	double latency_s;      /* within it; 0: not told */
	unsigned line;         /* in the file */
};

struct rack_box {
	char name[RACKS_NAME_BYTES];
	char host[RACKS_HOST_BYTES];
	uint16_t port;
	unsigned rack; /* index */
	double rate_bytes_s;
	unsigned cores; /* 0: not told */
	int sibling;    /* index of a box, or RACKS_NONE */
	unsigned line;
};

struct rack_host {
	char name[RACKS_NAME_BYTES];
	unsigned rack;
	double rate_bytes_s;
	unsigned workers;
	unsigned line;
};

/* In the order of the file. */
struct racks {
	struct rack *racks;
	struct rack_box *boxes;
	struct rack_host *hosts;
	unsigned rack_count, box_count, host_count;
	double latency_s; /* between racks; 0: not told */
};

/* Reads the file. 0, or -errno (it cannot be read), -EINVAL (what is wrong, and in which line) or -ENOMEM, with the
 * text in `e`; then nothing is to be freed. */
int racks_read(const char *path, struct racks *out, struct err *e);
/* The same of text; `name` stands in errors for the file's. */
int racks_parse(const char *text, size_t bytes, const char *name, struct racks *out, struct err *e);
void racks_fini(struct racks *r);

/* What may stand in a written file beside what it says, each as comments; NULL: nothing. Lines end at \n. */
struct racks_notes {
	const char *head; /* at its top */
	const char *(*rack)(void *arg, unsigned rack);
	const char *(*box)(void *arg, unsigned box);
	const char *(*host)(void *arg, unsigned host);
	void *arg;
};

/* Writes what racks_parse() would read so; names are quoted as needed. 0, -ERANGE with nothing written when it would
 * not read a rate of it, or -EIO when `out` failed. */
int racks_write(const struct racks *r, const struct racks_notes *notes, FILE *out);

/* Index of the box with this name, or RACKS_NONE. */
int racks_find_box(const struct racks *r, const char *name);
/* Workers on the hosts of this rack. */
unsigned racks_workers(const struct racks *r, unsigned rack);

#endif
