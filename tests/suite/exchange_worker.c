/* SPDX-License-Identifier: Apache-2.0 */
/* A worker of exchange_work.h: one key at a time has memory, is pushed, is waited for and is compared. */
#include "tests/suite/exchange_work.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *worker_alloc(struct member *me, size_t bytes)
{
	void *p = malloc(bytes);

	EXPECT(me, p != NULL);
	return p;
}

/* ---- memory ---- */

static void worker_take(struct worker *worker, unsigned k)
{
	struct member *me = worker->me;
	struct worker_key *key = &worker->keys[k];
	size_t bytes = work_bytes(worker->work, k);

	key->placing =
		worker->work->placing == PLACING_MIXED ? (enum placing)(k % PLACING_MIXED) : worker->work->placing;
	if (key->placing == PLACING_ALLOC) {
		EXPECT_RC(me, phub_alloc(me->phub, (int)k, &key->src, &key->got), 0);
		key->dst = NULL;
		return;
	}
	key->src = worker_alloc(me, bytes);
	key->dst = key->placing == PLACING_APART ? worker_alloc(me, bytes) : key->src;
	key->got = key->dst;
	if (key->placing != PLACING_REGISTERED)
		return;
	key->registered = !me->crew->stage->scene->mapped;
	EXPECT_RC(me, phub_mem_register(me->phub, key->src, bytes), key->registered ? 0 : -ENOTSUP);
}

void worker_forget(struct worker *worker)
{
	struct member *me = worker->me;

	for (unsigned k = 0; k < worker->work->key_count; k++) {
		struct worker_key *key = &worker->keys[k];

		if (key->registered)
			EXPECT_RC(me, phub_mem_unregister(me->phub, key->src), 0);
		if (key->placing != PLACING_ALLOC)
			free(key->src);
		if (key->placing == PLACING_APART)
			free(key->dst);
		*key = (struct worker_key){0};
	}
}

/* ---- life ---- */

static void worker_connect(struct member *me, const struct work *w)
{
	struct phub_hyper groups[WORK_GROUPS_MAX];
	struct phub_options o;

	member_options(me, &o);
	o.optimizer = w->optimizer;
	o.reduce = w->mean ? PHUB_MEAN : PHUB_SUM;
	o.reproducible = w->reproducible;
	o.chunk_bytes = w->chunk_bytes;
	o.group_count = w->group_count ? w->group_count : 1;
	o.groups = groups;
	for (unsigned g = 0; g < o.group_count; g++)
		work_hyper(w, g, 0, &groups[g]);
	if (member_connect(me, &o) < 0)
		member_fail(me, __FILE__, __LINE__, "connect: %s", me->refusal);
}

void worker_start(struct worker *worker, const struct ledger *ledger)
{
	struct member *me = worker->me;
	const struct work *w = ledger->work;

	worker->ledger = ledger;
	worker->work = w;
	for (unsigned k = 0; k < w->key_count; k++) {
		char name[32];

		snprintf(name, sizeof(name), "layer%u.weight", k);
		EXPECT_RC(me,
			phub_key(me->phub, name, (enum phub_dtype)w->keys[k].dtype, w->keys[k].elements,
				w->keys[k].group,
				(w->keys[k].alone ? PHUB_KEY_ALONE : 0) | (w->sparse >> k & 1 ? PHUB_KEY_SPARSE : 0)),
			(int)k);
	}
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	for (unsigned k = 0; k < w->key_count; k++)
		worker_take(worker, k);
}

void worker_open(struct worker *worker, struct member *me, const struct ledger *ledger)
{
	*worker = (struct worker){.me = me};
	worker_connect(me, ledger->work);
	EXPECT(me, phub_rank(me->phub) == (int)me->rank && phub_world(me->phub) == (int)me->world);
	EXPECT(me, strcmp(phub_transport(me->phub), "") == 0);
	worker_start(worker, ledger);
	EXPECT(me, strcmp(phub_transport(me->phub), me->crew->stage->scene->transport) == 0);
}

void worker_close(struct worker *worker)
{
	worker_forget(worker);
	member_leave(worker->me);
}

/* ---- rounds ---- */

/* The i-th key that this rank pushes in this round: every rank has an order of its own, and another every time. */
static unsigned worker_order(const struct worker *worker, uint64_t round, unsigned i)
{
	unsigned count = worker->work->key_count;
	unsigned at = (unsigned)((i + worker->me->rank * 3 + round) % count);

	return worker->me->rank & 1 ? count - 1 - at : at;
}

/* What rank 1 pushes when something is planted. */
static void worker_plant(struct worker *worker, uint64_t round, unsigned k)
{
	const struct work *w = worker->work;
	uint8_t *data = worker->keys[k].src;
	size_t half = work_bytes(w, k) / 2, chunk = w->chunk_bytes && w->chunk_bytes < half ? w->chunk_bytes : half;
	struct member *me = worker->me;
	uint8_t *copy;

	if (me->rank != 1 || round != w->rounds || w->plant == PLANT_NONE)
		return;
	if (w->plant == PLANT_STALE) {
		work_fill(w, me->rank, round - 1, k, data);
	} else if (w->plant == PLANT_SWAPPED) {
		copy = worker_alloc(me, chunk);
		memcpy(copy, data, chunk);
		memcpy(data, data + chunk, chunk);
		memcpy(data + chunk, copy, chunk);
		free(copy);
	} else {
		float value;

		for (size_t i = 0; i < chunk / dtype_size(w->keys[k].dtype); i++) {
			uint8_t *at = data + i * dtype_size(w->keys[k].dtype);

			convert_to_f32(&value, at, w->keys[k].dtype, 1);
			value *= 2;
			convert_from_f32(at, w->keys[k].dtype, &value, 1);
		}
	}
}

static void worker_push(struct worker *worker, uint64_t round, unsigned k)
{
	struct member *me = worker->me;
	struct worker_key *key = &worker->keys[k];

	work_fill(worker->work, me->rank, round, k, key->src);
	worker_plant(worker, round, k);
	EXPECT_RC(me, phub_push_pull(me->phub, (int)k, key->src, key->dst, (int)(k + round) % 5 - 1), 0);
}

/* All at once, or one by one and the last first. */
static void worker_wait(struct worker *worker, uint64_t round)
{
	struct member *me = worker->me;

	if ((round + me->rank) % 2) {
		EXPECT_RC(me, phub_wait(me->phub, PHUB_ALL, PHUB_TIMEOUT_DEFAULT), 0);
		return;
	}
	for (unsigned i = worker->work->key_count; i-- > 0;)
		EXPECT_RC(me, phub_wait(me->phub, (int)worker_order(worker, round, i), PHUB_TIMEOUT_DEFAULT), 0);
}

static void worker_check(struct worker *worker, uint64_t round)
{
	for (unsigned k = 0; k < worker->work->key_count; k++) {
		int64_t wrong = ledger_check(worker->ledger, k, round, worker->keys[k].got);

		if (wrong >= 0 && worker->work->plant == PLANT_NONE)
			member_fail(worker->me, __FILE__, __LINE__, "key %u round %llu: element %lld of %u is wrong", k,
				(unsigned long long)round, (long long)wrong, worker->work->keys[k].elements);
		worker->wrong += wrong >= 0;
	}
}

static void worker_schedule(struct worker *worker, uint64_t round)
{
	const struct work *w = worker->work;
	struct phub_hyper hyper;

	if (!w->scheduled || w->optimizer == PHUB_NONE)
		return;
	for (unsigned g = 0; g < (w->group_count ? w->group_count : 1); g++) {
		work_hyper(w, g, round, &hyper);
		EXPECT_RC(worker->me, phub_set_hyper(worker->me->phub, g, &hyper), 0);
	}
}

void worker_round(struct worker *worker, uint64_t round)
{
	worker_schedule(worker, round);
	for (unsigned i = 0; i < worker->work->key_count; i++)
		worker_push(worker, round, worker_order(worker, round, i));
	worker_wait(worker, round);
	worker_check(worker, round);
}

void worker_broadcast(struct worker *worker, unsigned root, uint64_t round)
{
	struct member *me = worker->me;
	const struct work *w = worker->work;
	void *bufs[WORK_KEYS_MAX];

	for (unsigned i = 0; i < w->key_count; i++) {
		unsigned k = worker_order(worker, round, i);

		bufs[k] = worker_alloc(me, work_bytes(w, k));
		if (me->rank == root)
			work_fill(w, root, round, k, bufs[k]);
		else
			memset(bufs[k], 0xff, work_bytes(w, k));
		EXPECT_RC(me, phub_broadcast(me->phub, (int)k, bufs[k], root), 0);
	}
	EXPECT_RC(me, phub_wait(me->phub, PHUB_ALL, PHUB_TIMEOUT_DEFAULT), 0);
	for (unsigned k = 0; k < w->key_count; k++) {
		EXPECT(me, work_check_broadcast(w, root, round, k, bufs[k]) == -1);
		free(bufs[k]);
	}
}

void worker_weights(struct worker *worker)
{
	worker_broadcast(worker, 0, 0);
}

void worker_script(struct member *me)
{
	struct worker worker;

	worker_open(&worker, me, me->arg);
	if (worker.work->optimizer != PHUB_NONE)
		worker_weights(&worker);
	for (uint64_t round = 1; round <= worker.work->rounds; round++)
		worker_round(&worker, round);
	worker_close(&worker);
}

void work_run(struct stage *stage, const struct work *w)
{
	struct ledger ledger;

	ledger_open(&ledger, w);
	crew_run(stage, w->world, worker_script, &ledger);
	ledger_close(&ledger);
}

static void worker_broadcasts_script(struct member *me)
{
	struct worker worker;

	worker_open(&worker, me, me->arg);
	for (uint64_t round = 1; round <= worker.work->rounds; round++) {
		worker_broadcast(&worker, (unsigned)round % me->world, round);
		worker_round(&worker, round);
	}
	worker_broadcast(&worker, 0, worker.work->rounds + 1);
	worker_close(&worker);
}

void work_run_broadcasts(struct stage *stage, const struct work *w)
{
	struct ledger ledger;

	ledger_open(&ledger, w);
	crew_run(stage, w->world, worker_broadcasts_script, &ledger);
	ledger_close(&ledger);
}
