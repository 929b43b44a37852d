/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub topo --racks: what a rack file says, and what one round of a model moves over each of its links, way by way.
 */
#ifndef PHUB_CLI_TOPO_RACKS_H
#define PHUB_CLI_TOPO_RACKS_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "topology/cost.h"
#include "topology/racks.h"
#include "topology/ways.h"

struct topo_racks_options {
	const char *path;
	const char *model; /* NULL: only what the file says */
	const char *root;  /* the box that flat and tree end at; NULL: the first */
	const char *svg;   /* a picture goes there; NULL: none */
	int way;           /* enum ways_kind, of the picture and of the homes */
	int lift;          /* enum dtype of sums between boxes */
	uint64_t chunk_bytes;
	bool hostbox; /* each host's workers are summed there, by a box of its own */
	bool json;
};

/* What one round moves. */
struct topo_traffic {
	struct ways_load boxes[RACKS_MAX], uplinks[RACKS_MAX];
	double seconds;   /* that the slowest link needs */
	char slowest[80]; /* which is that */
};

/* All that is printed and drawn. */
struct topo_racks {
	const struct topo_racks_options *options;
	struct racks racks;
	struct ways_box boxes[WAYS_BOXES_MAX]; /* of the racks', those that take part */
	int box_of_way[WAYS_BOXES_MAX];        /* which of the file's each is */
	unsigned way_boxes;
	/* With a model: */
	char model[64];
	uint64_t bytes; /* of a worker's gradient */
	uint32_t chunk_count;
	struct topo_traffic traffic[WAYS_COUNT];
	struct cost costs[WAYS_COUNT];
	struct {
		uint32_t chunks;
		uint64_t bytes;
		uint64_t core_most; /* bytes on its fullest core; 0: the file does not say how many it has */
	} homes[WAYS_BOXES_MAX];    /* with options->way */
};

/* 0 or a negative errno with the reason in `e`; then nothing was printed but for what a full disk cut off. */
int topo_racks_show(const struct topo_racks_options *options, struct err *e);

/* Draws to options->svg. */
int topo_racks_draw(const struct topo_racks *t, struct err *e);

/* Seconds that the load keeps a link of this rate busy. */
double topo_racks_seconds(const struct ways_load *load, double rate_bytes_s);
/* What the host's workers push and get. */
struct ways_load topo_racks_host(const struct topo_racks *t, const struct rack_host *host);

#endif
