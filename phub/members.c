/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two steps of a change of membership, on the core that owns the shard.
 */
#include "phub/members.h"

#include "phub/base/stats.h"
#include "phub/commit.h"
#include "phub/link.h"
#include "phub/reply.h"
#include "phub/stepwise.h"

static bool members_stepwise(const struct chunk *chunk, const struct shard *shard)
{
	return spec_stepwise(shard->spec) && chunk->weights;
}

static bool members_named(const struct members *m, uint32_t rank)
{
	return members_have(m->lost, rank) || members_have(m->awaited, rank);
}

/*
 * Takes out what those that are gone have in what is open. Where each push is a step, what others have stays. What is
 * lifted stays, too (lift.h): only its answer is nobody's.
 */
static void members_withdraw(struct chunk *chunk, struct shard *shard, const struct members *m)
{
	if (chunk_is_up(chunk)) {
		for (uint32_t rank = 0; rank < shard->spec->world; rank++)
			if (members_named(m, rank))
				chunk->arrivals[rank].state = ARRIVAL_NONE;
		return;
	}
	if (!members_stepwise(chunk, shard)) {
		commit_withdraw(chunk, shard);
		return;
	}
	for (uint32_t rank = 0; rank < shard->spec->world; rank++)
		if (members_named(m, rank))
			stepwise_withdraw(chunk, shard, rank);
}

/* Cores do this at once. */
static void members_note_lifted(struct members *m, uint64_t after, uint32_t hyper)
{
	uint64_t was = __atomic_load_n(&m->lifted, __ATOMIC_RELAXED);
	uint32_t newest = __atomic_load_n(&m->hyper, __ATOMIC_RELAXED);

	while (was < after &&
		!__atomic_compare_exchange_n(&m->lifted, &was, after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		continue;
	while (newest < hyper &&
		!__atomic_compare_exchange_n(&m->hyper, &newest, hyper, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		continue;
}

void members_hold(struct shard *shard, struct members *m)
{
	uint32_t weightless = 0, hyper = 0;
	uint64_t lifted = 0;

	shard->epoch = m->epoch;
	shard->holds = true;
	for (uint32_t i = 0; i < shard->chunk_count; i++) {
		struct chunk *chunk = &shard->chunks[i];

		if (m->repair)
			members_withdraw(chunk, shard, m);
		weightless += !chunk->weights;
		if (chunk_is_up(chunk) && chunk->round >= lifted)
			lifted = chunk->round + 1;
		if (chunk_is_up(chunk) && chunk->kind == ROUND_GRADIENT && chunk->hyper > hyper)
			hyper = chunk->hyper;
		m->rounds[chunk->index] =
			members_stepwise(chunk, shard)
				? stepwise_slowest(chunk, shard) + 1
				: chunk->round + (chunk_is_up(chunk) || (m->drain && chunk->kind != ROUND_OPEN));
	}
	__atomic_fetch_add(&m->weightless, weightless, __ATOMIC_RELAXED);
	members_note_lifted(m, lifted, hyper);
	if (!m->repair)
		return;
	/* Whose pushes are out hears at once that they are to come again. */
	for (uint32_t rank = 0; rank < shard->spec->world; rank++) {
		shard->links[rank].credit_due = true;
		reply_credit(&shard->links[rank]);
	}
}

static void members_set(struct chunk *chunk, struct shard *shard, const struct members *m, uint64_t now_ns)
{
	for (uint32_t rank = 0; rank < shard->spec->world; rank++) {
		struct arrival *a = &chunk->arrivals[rank];

		if (members_named(m, rank))
			a->owed = false;
		if (members_have(m->lost, rank)) {
			a->from = shard->plant == SHARD_PLANT_LOST ? a->from : MEMBERS_NEVER;
		} else if (members_have(m->awaited, rank)) {
			a->from = m->from[chunk->index];
			if (members_stepwise(chunk, shard))
				a->round = a->from - 1;
		}
		if (shard->trace && members_named(m, rank))
			trace_add(shard->trace, now_ns, TRACE_FROM, chunk->index, rank, a->from);
	}
	if (members_stepwise(chunk, shard))
		stats_set(&chunk->round, m->from[chunk->index]);
	commit_count_needed(chunk, shard);
	if (!members_stepwise(chunk, shard))
		commit_skip(chunk, shard);
}

/* Can those that are here close this round, the one that is collected or a later one? */
static bool members_can_close(
	const struct chunk *chunk, const struct shard *shard, const struct members *m, uint64_t round)
{
	uint32_t needed = 0, here = 0, quorum = shard->spec->quorum;

	for (uint32_t rank = 0; rank < shard->spec->world; rank++) {
		bool part = members_takes_part(&chunk->arrivals[rank], round);

		needed += part;
		here += part && !members_have(m->absent, rank);
	}
	/* A broadcast that has begun wants all; what a later round is, nobody knows yet. */
	if (quorum > 0 && quorum < needed && (round != chunk->round || chunk->kind != ROUND_BROADCAST))
		needed = quorum;
	return here >= needed;
}

/*
 * The job drains: how many chunks have rounds to commit. One that waits for a rank that is lost would keep it from
 * ending: it is not begun, in any chunk of its key, for the rank is awaited in all of them from the same round on.
 * Where each push is a step, none is open.
 */
static void members_stop(struct shard *shard, const struct members *m)
{
	shard->stop_left = 0;
	for (uint32_t i = 0; i < shard->chunk_count; i++) {
		struct chunk *chunk = &shard->chunks[i];
		uint64_t *stop = &shard->stops[chunk->index];

		if (members_stepwise(chunk, shard))
			continue;
		if (shard->stops_firm) {
			shard->stop_left += chunk->round < *stop && (chunk->needed > 0 || chunk_is_up(chunk));
			continue;
		}
		for (uint64_t round = chunk->round; round < *stop; round++)
			if (!members_can_close(chunk, shard, m, round))
				*stop = round;
		shard->stop_left += chunk->round < *stop;
	}
}

void members_await(struct shard *shard, const uint64_t *ranks, const uint64_t *from)
{
	for (uint32_t i = 0; i < shard->chunk_count; i++) {
		struct chunk *chunk = &shard->chunks[i];

		for (uint32_t rank = 0; rank < shard->spec->world; rank++)
			if (members_have(ranks, rank))
				chunk->arrivals[rank].from = from ? from[chunk->index] : MEMBERS_NEVER;
		commit_count_needed(chunk, shard);
	}
}

void members_go(struct shard *shard, const struct members *m, uint64_t now_ns)
{
	uint32_t next;

	for (uint32_t i = 0; i < shard->chunk_count; i++)
		members_set(&shard->chunks[i], shard, m, now_ns);
	for (uint32_t rank = 0; rank < shard->spec->world; rank++)
		if (members_named(m, rank))
			shard->links[rank].fresh = true;
	if (m->drain) {
		shard->stops = m->from;
		shard->stops_firm = m->firm;
	}
	if (shard->stops)
		members_stop(shard, m);
	shard->holds = false;
	for (uint32_t i = shard->open_oldest; i != CHUNK_NONE && !shard->failed; i = next) {
		struct chunk *chunk = &shard->chunks[i];

		next = chunk->newer;
		if (members_stepwise(chunk, shard))
			stepwise_answer(chunk, shard);
		else
			commit_check(chunk, shard);
	}
	commit_retry(shard, now_ns);
}
