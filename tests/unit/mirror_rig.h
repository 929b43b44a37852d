/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a box and its workers say to a standby, over control_rig.h's network: their sessions, and the data connections
 * of one of them to all cores of the box.
 */
#ifndef TESTS_UNIT_MIRROR_RIG_H
#define TESTS_UNIT_MIRROR_RIG_H

#include "phub/control/job_mirror.h"
#include "tests/unit/control_rig.h"
#include "transport/crypt.h"

enum { MIRROR_CORES = 2, MIRROR_WORLD = 2, MIRROR_KEYS = 4, MIRROR_ELEMENTS = 3000, MIRROR_ELEMENTS_MAX = 1 << 11 };

/* A job's shape, of MIRROR_KEYS keys; the last one is small, and in half of the cases of another dtype. */
struct mirror_shape {
	enum optimizer_kind optimizer;
	enum dtype dtype;
	bool mean;
	enum spec_lost lost;
	enum spec_sync sync;
	uint32_t generation; /* 0: 1 */
	uint32_t quorum;
	bool encrypt; /* with MIRROR_SECRET; the box has mirror_secret among its settings */
};

#define MIRROR_SECRET "a secret of thirty-two characters"
extern const char *const mirror_secret[];

/* A party with data connections. */
struct feed {
	struct actor a;
	struct queue *queue;
	struct conn *conns[MIRROR_CORES];
	struct conn_spec specs[MIRROR_CORES];
	uint32_t seq[MIRROR_CORES];
	const struct generation *g; /* at the box */
	uint32_t epoch;
	uint8_t *results;              /* as the chunks lie in the region */
	uint64_t *rounds;              /* [chunk_count] of the last result */
	uint32_t *counts;              /* [chunk_count] results so far */
	struct crypt *sealer, *opener; /* NULL: not encrypted */
	uint64_t counter, *opened;     /* [chunk_count] */
	bool ended;
};

/* Messages. */
void mirror_say_job(struct actor *a, const struct mirror_shape *shape);
void mirror_say_keys(struct actor *a, const struct mirror_shape *shape);
void mirror_say_mirror(struct actor *a, const struct mirror_shape *shape, const struct generation *like);
void mirror_say_state(struct actor *a, bool whole, const uint32_t *lost, size_t lost_count, uint64_t barrier);

/* A worker of the job joins, and sends its table; nothing is waited for. `moves`: from another box. */
void feed_join(
	struct rig *rig, struct feed *f, const char *job, uint32_t rank, bool moves, const struct mirror_shape *shape);
/* A box's session for a copy of the job, up to its Start; connected. */
void feed_mirror(struct rig *rig, struct feed *f, const char *job, const struct mirror_shape *shape,
	const struct generation *like);
/* Connects to all cores, once it has heard Start. */
void feed_connect(struct feed *f, const struct generation *g);
void feed_close(struct feed *f);

/* One message about a chunk of the job's plan. */
void feed_send(struct feed *f, uint32_t chunk, const struct wire_header *h, const void *payload);
/* Everything that is on its way comes. */
void feed_turn(struct feed *f);

/* The job here of this name, copy or not. */
struct job *mirror_job(struct rig *rig, const char *name, bool mirror);
/* A chunk of it. */
const struct chunk *mirror_chunk(const struct generation *g, uint32_t index);
/* All arrays of a chunk, as a box that has `like` sends them. */
void mirror_image(struct feed *box, const struct generation *like, uint32_t index);

/* Plain momentum of means of fp32. */
extern const struct mirror_shape mirror_plain;

/* The workers of a job that nothing befalls, beside that of which a copy is here. */
struct standby {
	struct rig rig;
	struct mirror_shape shape;
	struct feed steady[MIRROR_WORLD], box, moved[MIRROR_WORLD];
	struct generation *g; /* of the steady job */
	uint32_t chunks, hyper;
};

/* With MIRROR_WORLD workers of job "steady", which has first weights. */
void standby_open(struct standby *s, const struct mirror_shape *shape, const char *const *settings);
/* Nothing may be left. */
void standby_close(struct standby *s);
/* Likewise, with `moved`. */
void standby_close_moved(struct standby *s);
/* A whole copy named "job" of the steady one. */
void standby_mirror(struct standby *s);
/* Its workers come, and go on. */
void standby_move(struct standby *s);

/* The next round of a chunk of the steady job; `mirrored`: the box sends it first. */
void standby_run(struct standby *s, uint32_t chunk, bool mirrored);
/* Both jobs' next round of a chunk has the same bits. */
void standby_check_next(struct standby *s, uint32_t chunk);

/* Says Hello.moves for job "job"; 0, or the code of the error that it is told. */
int actor_move(struct rig *rig, struct actor *a, unsigned host, uint32_t rank, uint32_t world);

#endif
