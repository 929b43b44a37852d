/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Budgets, turns and buckets. A message costs a few additions; a turn looks at all shards of the core, once in a
 * quantum.
 */
#include "phub/fair.h"

#include "phub/base/clock.h"
#include "phub/base/stats.h"
#include "phub/core.h"
#include "phub/reply.h"

static int64_t fair_quantum(const struct fair_share *s)
{
	return (int64_t)s->weight * FAIR_QUANTUM;
}

void fair_init(struct shard *shard, uint64_t bytes)
{
	const struct spec *spec = shard->spec;
	struct fair_share *s = &shard->share;

	*s = (struct fair_share){.weight = spec->weight ? spec->weight : 1};
	s->message = (uint32_t)(bytes / shard->chunk_count) + FAIR_MESSAGE;
	if (!spec->bandwidth)
		return;
	s->rate = (uint64_t)((double)spec->bandwidth * ((double)bytes / (double)spec->plan.payload_bytes));
	s->rate = s->rate ? s->rate : 1;
}

void fair_join(struct core *core, struct shard *shard)
{
	shard->share.fair = &core->fair;
	shard->share.budget = 2 * fair_quantum(&shard->share);
}

void fair_leave(struct shard *shard)
{
	struct fair_share *s = &shard->share;

	s->fair->rivals -= s->rival;
	if (s->awaited && --s->fair->awaited == 0)
		s->fair->due = true;
	s->fair = NULL;
}

/* What it may still send: its budget, and what it was lent. */
static int64_t fair_means(const struct fair_share *s)
{
	return s->budget + s->loan;
}

/* The first message since the last turn. */
static void fair_hear(struct fair_share *s)
{
	s->heard = true;
	s->fair->rivals += !s->rival;
	s->rival = true;
	if (!s->awaited && s->budget > fair_quantum(s)) {
		s->awaited = true;
		s->fair->awaited++;
	}
}

static void fair_spend(struct fair_share *s, int64_t cost)
{
	struct fair *f = s->fair;

	s->budget -= cost;
	if (s->awaited)
		f->used += cost;
	s->spent += cost;
	if (s->spent > FAIR_POOR * fair_quantum(s) / 2)
		f->poor = true;
	if (fair_means(s) <= 0)
		f->wanting = true;
	if (s->budget > fair_quantum(s))
		return;
	f->awaited -= s->awaited;
	s->awaited = false;
	f->due = f->due || f->awaited == 0;
}

void fair_charge(struct shard *shard, uint32_t bytes, bool last)
{
	struct fair_share *s = &shard->share;

	if (!s->fair || shard->failed)
		return;
	if (s->rate)
		s->tokens -= bytes;
	if (!s->heard)
		fair_hear(s);
	fair_spend(s, (int64_t)bytes + (last ? FAIR_MESSAGE : 0));
}

/* A link's part of so many bytes; at least a message. */
static uint32_t fair_part(const struct fair_share *s, int64_t bytes)
{
	uint64_t part = (uint64_t)bytes / s->message / (s->links ? s->links : 1);

	return part < 1 ? 1 : part < UINT32_MAX / 4 ? (uint32_t)part : UINT32_MAX / 4;
}

static bool fair_is_shared(const struct fair_share *s)
{
	return s->fair && s->fair->rivals > 1;
}

static uint32_t fair_share_window(const struct fair_share *s)
{
	int64_t means = fair_means(s);

	if (means <= -2 * fair_quantum(s))
		return 0;
	return fair_part(s, means > FAIR_LEAST ? means : FAIR_LEAST);
}

uint32_t fair_window(const struct link *link)
{
	const struct fair_share *s = &link->shard->share;
	uint32_t window = link->window, part;

	if (fair_is_shared(s)) {
		part = fair_share_window(s);
		window = part < window ? part : window;
	}
	if (s->rate) {
		part = s->tokens > 0 ? fair_part(s, s->tokens) : 0;
		window = part < window ? part : window;
	}
	return window;
}

void fair_withhold(const struct link *link)
{
	struct shard *shard = link->shard;
	struct fair_share *s = &shard->share;

	if (!s->fair)
		return;
	if (s->rate && s->tokens <= 0) {
		s->dry = true;
		s->fair->dry = true;
	}
	if (!fair_is_shared(s) || s->withheld || fair_share_window(s) > 0)
		return;
	stats_add(&shard->counters.share_waits, 1);
	s->withheld = true;
}

/* Those that can send nothing, if they may now. */
static void fair_give(struct shard *shard)
{
	shard->share.withheld = false;
	for (uint32_t rank = 0; rank < shard->spec->world; rank++)
		reply_credit(&shard->links[rank]);
}

/* `poor`: who was awaited could not use its share. What others had of it is theirs, and they keep what they were lent.
 */
static void fair_turn_one(struct fair_share *s, bool poor)
{
	int64_t quantum = fair_quantum(s), most = 2 * quantum;
	int64_t budget = s->budget + quantum, means = budget + s->loan;

	if (poor && budget < -quantum)
		budget = -quantum;
	s->budget = budget < most ? budget : most;
	s->loan = means > s->budget ? (means - s->budget) / (poor ? 1 : 2) : 0;
	s->rival = s->heard || s->withheld; /* who is withheld is not heard of because of that */
	s->awaited = s->rival && s->budget > quantum;
	s->heard = false;
	s->spent = 0;
}

/* Nobody else is there: it owes nothing. */
static void fair_forgive(struct fair *f, struct fair_share *s)
{
	s->budget = 2 * fair_quantum(s);
	s->loan = 0;
	f->awaited += s->rival && !s->awaited;
	s->awaited = s->rival;
}

static void fair_turn(struct core *core)
{
	struct fair *f = &core->fair;
	bool poor = f->poor;
	int64_t loan = poor || f->loan <= FAIR_LOAN_MIN ? f->loan : f->loan / FAIR_LOAN_GROWS;

	*f = (struct fair){.dry = f->dry, .loan = loan > FAIR_LOAN_MIN ? loan : FAIR_LOAN_MIN};
	for (struct shard *shard = core->shards; shard; shard = shard->next) {
		fair_turn_one(&shard->share, poor);
		f->rivals += shard->share.rival;
		f->awaited += shard->share.awaited;
	}
	for (struct shard *shard = core->shards; shard; shard = shard->next) {
		if (f->rivals <= 1)
			fair_forgive(f, &shard->share);
		f->wanting = f->wanting || (shard->share.rival && fair_means(&shard->share) <= 0);
		if (shard->share.withheld)
			fair_give(shard);
	}
}

/*
 * Who is awaited leaves the core idle. What the others are lent is more each time, as long as those that are awaited do
 * not use as much; those that are silent all the while are not awaited any more.
 */
static void fair_lend(struct core *core)
{
	struct fair *f = &core->fair;

	if (f->lent && f->used == 0 && f->loan >= FAIR_LOAN_MAX / FAIR_LOAN_GROWS) {
		fair_turn(core);
		return;
	}
	if (f->lent && f->used < f->loan)
		f->loan = f->loan * FAIR_LOAN_GROWS < FAIR_LOAN_MAX ? f->loan * FAIR_LOAN_GROWS : FAIR_LOAN_MAX;
	f->lent = true;
	f->used = 0;
	f->wanting = false;
	for (struct shard *shard = core->shards; shard; shard = shard->next) {
		struct fair_share *s = &shard->share;

		if (!s->rival || fair_means(s) > 0)
			continue;
		s->loan = f->loan * (int64_t)s->weight - s->budget;
		if (s->withheld)
			fair_give(shard);
	}
}

void fair_step(struct core *core, bool idle)
{
	if (core->fair.due)
		fair_turn(core);
	else if (idle && core->fair.wanting && core->fair.rivals > 1)
		fair_lend(core);
}

/* True when it waits for more. */
static bool fair_fill(struct shard *shard, uint64_t now_ns)
{
	struct fair_share *s = &shard->share;
	uint64_t passed_ns = now_ns - s->filled_ns, burst = s->rate / FAIR_BURST;

	if (passed_ns < FAIR_TICK_NS)
		return s->dry;
	if (burst < 2 * (uint64_t)s->message)
		burst = 2 * (uint64_t)s->message;
	passed_ns = passed_ns < NS_PER_S ? passed_ns : NS_PER_S;
	s->tokens += (int64_t)((double)s->rate * (double)passed_ns / 1e9);
	s->tokens = s->tokens < (int64_t)burst ? s->tokens : (int64_t)burst;
	s->filled_ns = now_ns;
	if (!s->dry)
		return false;
	stats_add(&shard->counters.quota_ns, passed_ns);
	if (s->tokens <= 0)
		return true;
	s->dry = false;
	fair_give(shard);
	return s->dry;
}

void fair_tick(struct core *core, uint64_t now_ns)
{
	core->fair.dry = false;
	for (struct shard *shard = core->shards; shard; shard = shard->next)
		if (shard->share.rate && fair_fill(shard, now_ns))
			core->fair.dry = true;
}
