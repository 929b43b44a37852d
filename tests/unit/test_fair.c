/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares of a core, stepped by hand: jobs whose workers push whenever they have credit share a queue that yields so
 * many bytes a step, first come first served, as a socket or a ring does. What each job got of it is counted.
 */
#include "phub/core.h"

#include "aggregation/dispatch.h"
#include "phub/store.h"
#include "tests/unit/cmocka_shim.h"
#include "topology/chunking.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	JOBS_MAX = 3,
	WORLD_MAX = 8,
	CHUNKS_MAX = 512,
	LINE_MAX = 16384,       /* messages on the way, of all jobs */
	BYTES_PER_NS = 10,      /* that the core works off, FAIR_MESSAGE of each message among them */
	POLL_NS = 100,          /* of one that finds nothing */
	POLL_BYTES = 256 << 10, /* that a poll yields, at most */
	LAG_NS = 50000,         /* from a reply to the push that it allows */
	US = 1000,
	WINDOW = 64,
};

/* What a job is like. */
struct kind {
	uint32_t world, chunk_bytes, chunks, weight;
	uint64_t bandwidth;
	uint64_t trickle_ns;          /* pushes one message in so long; 0: as fast as it may */
	uint64_t works_ns, pauses_ns; /* in turn; 0: it always works */
};

struct worker {
	struct conn conn;
	uint32_t seq, credit;
	uint32_t at; /* the chunk that it pushes next */
	uint64_t rounds[CHUNKS_MAX];
	bool waits[CHUNKS_MAX]; /* for its result */
	unsigned told;          /* messages without a result */
};

struct tenant {
	struct kind kind;
	struct spec spec;
	struct chunk_key keys[CHUNKS_MAX];
	uint16_t core_of_chunk[CHUNKS_MAX];
	struct store store;
	struct worker workers[WORLD_MAX];
	uint64_t worked; /* bytes and FAIR_MESSAGE of each message */
	uint64_t pushed_ns;
};

struct parcel {
	struct tenant *tenant;
	uint32_t rank, chunk, seq;
	uint64_t round, at_ns;
};

struct rig {
	struct queue queue;
	struct core *core;
	struct mailbox *control;
	struct conn_spec conn_spec;
	struct tenant tenants[JOBS_MAX];
	unsigned tenant_count;
	struct parcel line[LINE_MAX];
	uint64_t head, tail;
	uint64_t now_ns, idle_ns;
	uint64_t bytes; /* of the last poll */
	struct {
		struct tenant *tenant;
		void *cookie;
		struct conn *conn;
	} sent[LINE_MAX];
	unsigned sent_count;
};

static float data[8192];

static int rig_adopt(struct queue *q, struct conn *c, const struct conn_spec *spec)
{
	c->queue = q;
	return 0;
}

static struct tenant *rig_tenant(struct rig *r, const struct conn *c, uint32_t *rank)
{
	for (unsigned i = 0; i < r->tenant_count; i++) {
		for (*rank = 0; *rank < WORLD_MAX; ++*rank)
			if (&r->tenants[i].workers[*rank].conn == c)
				return &r->tenants[i];
	}
	return NULL;
}

static void rig_message(struct rig *r, struct event *e)
{
	const struct parcel *p = &r->line[r->head++ % LINE_MAX];
	struct tenant *t = p->tenant;

	*e = (struct event){.type = EVENT_MESSAGE, .conn = &t->workers[p->rank].conn, .payload = data};
	e->header = (struct wire_header){.type = WIRE_PUSH,
		.length = t->kind.chunk_bytes,
		.job = t->spec.id,
		.generation = 1,
		.epoch = 1,
		.chunk = p->chunk,
		.rank = p->rank,
		.round = p->round,
		.count = 1,
		.seq = p->seq};
	event_whole(e);
	t->worked += t->kind.chunk_bytes + FAIR_MESSAGE;
}

static unsigned rig_poll(struct queue *q, uint64_t now_ns, struct event *events, unsigned max)
{
	struct rig *r = (struct rig *)q;
	unsigned count = 0;

	r->bytes = 0;
	while (r->sent_count > 0 && count < max) {
		--r->sent_count;
		events[count++] = (struct event){.type = EVENT_SENT,
			.conn = r->sent[r->sent_count].conn,
			.cookie = r->sent[r->sent_count].cookie};
	}
	while (count < max && r->bytes < POLL_BYTES && r->head < r->tail &&
		r->line[r->head % LINE_MAX].at_ns <= now_ns) {
		r->bytes += r->line[r->head % LINE_MAX].tenant->kind.chunk_bytes + FAIR_MESSAGE;
		rig_message(r, &events[count++]);
	}
	return count;
}

static int rig_send(struct queue *q, struct conn *c, const struct wire_header *h, const void *payload, void *cookie)
{
	struct rig *r = (struct rig *)q;
	uint32_t rank = 0;
	struct tenant *t = rig_tenant(r, c, &rank);
	struct worker *w = &t->workers[rank];

	assert_false(wire_after(w->credit, h->credit)); /* none is taken back */
	w->credit = h->credit;
	if (h->type == WIRE_RESULT)
		w->waits[h->chunk] = false;
	else
		w->told++;
	assert_true(r->sent_count < LINE_MAX);
	if (cookie) {
		r->sent[r->sent_count].conn = c;
		r->sent[r->sent_count++].cookie = cookie;
	}
	return 0;
}

static void rig_flush(struct queue *q)
{
}

static void rig_release(struct queue *q, void *slot)
{
}

static void rig_drop(struct queue *q, struct conn *c)
{
}

static const struct queue_ops rig_ops = {
	.adopt = rig_adopt,
	.poll = rig_poll,
	.send = rig_send,
	.flush = rig_flush,
	.release = rig_release,
	.drop = rig_drop,
};

static void rig_mail(struct rig *r, struct tenant *t, struct mail mail)
{
	mail.shard = t->store.shards[0];
	assert_int_equal(mailbox_send(r->core->inbox, &mail), 0);
}

static void rig_add(struct rig *r, const struct kind *kind, const struct store_config *config)
{
	struct tenant *t = &r->tenants[r->tenant_count++];
	struct err e;

	t->kind = *kind;
	for (uint32_t i = 0; i < kind->chunks; i++)
		t->keys[i] = (struct chunk_key){
			.elements = kind->chunk_bytes / sizeof(float), .dtype = DTYPE_F32, .alone = true};
	t->spec = (struct spec){
		.id = r->tenant_count,
		.world = kind->world,
		.core_count = 1,
		.core_of_chunk = t->core_of_chunk,
		.generation = 1,
		.epoch = 1,
		.weight = kind->weight,
		.bandwidth = kind->bandwidth,
		.group_count = 1,
	};
	snprintf(t->spec.name, sizeof(t->spec.name), "job%u", r->tenant_count);
	assert_int_equal(chunking_plan(t->keys, kind->chunks, 32768, &t->spec.plan, &e), 0);
	assert_int_equal(store_create(&t->spec, config, &t->store, &e), 0);
	rig_mail(r, t, (struct mail){.kind = MAIL_ATTACH});
	for (uint32_t rank = 0; rank < kind->world; rank++) {
		t->workers[rank].credit = WINDOW;
		rig_mail(r, t,
			(struct mail){.kind = MAIL_LINK,
				.conn = &t->workers[rank].conn,
				.spec = &r->conn_spec,
				.rank = rank});
	}
}

static struct rig *rig_open(const struct kind *kinds, unsigned count)
{
	static const int node = -1;
	struct rig *r = calloc(1, sizeof(*r));
	struct core_config config = {.cpu = -1};
	struct store_config store = {.core_node = &node};
	struct err e;
	char text[200];

	assert_non_null(r);
	assert_int_equal(mailbox_create(64, &r->control), 0);
	assert_int_equal(dispatch_from_env(&store.kernels, text, sizeof(text)), 0);
	store.control = r->control;
	config.control = r->control;
	assert_int_equal(core_create(&config, &r->core, &e), 0);
	r->queue.ops = &rig_ops;
	assert_int_equal(core_add_queue(r->core, &r->queue), 0);
	r->conn_spec.window = WINDOW;
	for (unsigned i = 0; i < count; i++)
		rig_add(r, &kinds[i], &store);
	core_step(r->core, 0);
	return r;
}

static void rig_close(struct rig *r)
{
	struct mail mail;

	for (unsigned i = 0; i < r->tenant_count; i++)
		rig_mail(r, &r->tenants[i], (struct mail){.kind = MAIL_DETACH});
	for (unsigned i = 0; i < 100 && r->core->shards; i++)
		core_step(r->core, r->now_ns += POLL_NS);
	while (mailbox_receive(r->control, &mail) == 0)
		assert_true(mail.kind != MAIL_LINK_CLOSED && mail.kind != MAIL_FAILED);
	for (unsigned i = 0; i < r->tenant_count; i++) {
		store_destroy(&r->tenants[i].store);
		chunking_plan_fini(&r->tenants[i].spec.plan);
	}
	core_destroy(r->core);
	mailbox_destroy(r->control);
	free(r);
}

static bool rig_push(struct rig *r, struct tenant *t, uint32_t rank)
{
	struct worker *w = &t->workers[rank];

	if (w->seq == w->credit || w->waits[w->at])
		return false;
	assert_true(r->tail - r->head < LINE_MAX);
	w->waits[w->at] = true;
	r->line[r->tail++ % LINE_MAX] =
		(struct parcel){t, rank, w->at, ++w->seq, ++w->rounds[w->at], r->now_ns + LAG_NS};
	w->at = w->at + 1 < t->kind.chunks ? w->at + 1 : 0;
	return true;
}

static bool rig_works(const struct rig *r, struct tenant *t)
{
	const struct kind *k = &t->kind;

	if (k->trickle_ns && r->now_ns - t->pushed_ns < k->trickle_ns)
		return false;
	t->pushed_ns = r->now_ns;
	return !k->pauses_ns || r->now_ns % (k->works_ns + k->pauses_ns) < k->works_ns;
}

/* All that may be sent is; one worker after the other, as their messages would come. */
static void rig_push_all(struct rig *r)
{
	for (unsigned i = 0; i < r->tenant_count; i++) {
		struct tenant *t = &r->tenants[i];
		bool more = rig_works(r, t);

		while (more) {
			more = false;
			for (uint32_t rank = 0; rank < t->kind.world; rank++)
				more |= rig_push(r, t, rank);
			more = more && !t->kind.trickle_ns;
		}
	}
}

static void rig_run(struct rig *r, uint64_t us)
{
	uint64_t until_ns = r->now_ns + us * US;

	while (r->now_ns < until_ns) {
		rig_push_all(r);
		core_step(r->core, r->now_ns);
		r->idle_ns += r->bytes ? 0 : POLL_NS;
		r->now_ns += r->bytes ? r->bytes / BYTES_PER_NS : POLL_NS;
	}
}

/* What part of what the core can do went to each job, over this time, after some to settle. */
static void rig_measure(struct rig *r, uint64_t settle_us, uint64_t us, double share[JOBS_MAX])
{
	rig_run(r, settle_us);
	for (unsigned i = 0; i < r->tenant_count; i++)
		r->tenants[i].worked = 0;
	r->idle_ns = 0;
	rig_run(r, us);
	for (unsigned i = 0; i < r->tenant_count; i++) {
		share[i] = (double)r->tenants[i].worked / (double)(us * US * BYTES_PER_NS);
		print_message("  job %u: %.3f of the core\n", i, share[i]);
	}
	print_message("  idle %.3f\n", (double)r->idle_ns / (double)(us * US));
}

/* In parts of what all got. */
static void expect_parts(const struct kind *kinds, unsigned count, const double *wanted, double busy)
{
	struct rig *r = rig_open(kinds, count);
	double share[JOBS_MAX], all = 0;

	rig_measure(r, 50000, 100000, share);
	for (unsigned i = 0; i < count; i++)
		all += share[i];
	assert_true(all > busy);
	for (unsigned i = 0; i < count; i++)
		if (share[i] / all < 0.95 * wanted[i] || share[i] / all > 1.05 * wanted[i])
			fail_msg("job %u got %.3f of what was done instead of %.3f", i, share[i] / all, wanted[i]);
	rig_close(r);
}

static void test_many_workers_get_no_more(void **state)
{
	const struct kind kinds[] = {
		{.world = 8, .chunk_bytes = 32768, .chunks = 128}, {.world = 1, .chunk_bytes = 32768, .chunks = 128}};

	expect_parts(kinds, 2, (const double[]){0.5, 0.5}, 0.99);
}

static void test_small_chunks_get_no_more(void **state)
{
	const struct kind kinds[] = {
		{.world = 8, .chunk_bytes = 4096, .chunks = 512}, {.world = 1, .chunk_bytes = 32768, .chunks = 128}};
	const struct kind turned[] = {
		{.world = 1, .chunk_bytes = 4096, .chunks = 512}, {.world = 8, .chunk_bytes = 32768, .chunks = 128}};

	expect_parts(kinds, 2, (const double[]){0.5, 0.5}, 0.99);
	/* Alone, with 50 us and its window, the first cannot keep the core busy. */
	expect_parts(turned, 2, (const double[]){0.5, 0.5}, 0.85);
}

static void test_weights(void **state)
{
	const struct kind kinds[] = {{.world = 2, .chunk_bytes = 32768, .chunks = 128, .weight = 3},
		{.world = 2, .chunk_bytes = 32768, .chunks = 128, .weight = 1}};
	const struct kind turned[] = {{.world = 1, .chunk_bytes = 32768, .chunks = 128, .weight = 3},
		{.world = 8, .chunk_bytes = 32768, .chunks = 128, .weight = 1}};
	const struct kind three[] = {{.world = 1, .chunk_bytes = 16384, .chunks = 128, .weight = 1},
		{.world = 4, .chunk_bytes = 32768, .chunks = 128, .weight = 2},
		{.world = 8, .chunk_bytes = 8192, .chunks = 128, .weight = 5}};

	expect_parts(kinds, 2, (const double[]){0.75, 0.25}, 0.99);
	expect_parts(turned, 2, (const double[]){0.75, 0.25}, 0.99);
	expect_parts(three, 3, (const double[]){0.125, 0.25, 0.625}, 0.99);
}

/* What the first job gets beside the second, beside what it gets alone. */
static double beside(const struct kind *kinds)
{
	double share[JOBS_MAX], alone;
	struct rig *r = rig_open(kinds, 1);

	rig_measure(r, 25000, 100000, share);
	alone = share[0];
	rig_close(r);
	r = rig_open(kinds, 2);
	rig_measure(r, 25000, 100000, share);
	rig_close(r);
	return (share[0] + share[1]) / alone;
}

static void test_alone(void **state)
{
	const struct kind kind = {.world = 8, .chunk_bytes = 32768, .chunks = 128};
	struct rig *r = rig_open(&kind, 1);
	double share[JOBS_MAX];

	rig_measure(r, 2000, 100000, share);
	assert_true(share[0] > 0.99);
	assert_int_equal(r->tenants[0].store.shards[0]->counters.share_waits, 0);
	rig_close(r);
}

/* One that is silent, trickles, or pauses now and then: what it leaves, the other gets. */
static void test_a_stall_costs_little(void **state)
{
	struct kind kinds[] = {
		{.world = 8, .chunk_bytes = 32768, .chunks = 128}, {.world = 1, .chunk_bytes = 32768, .chunks = 128}};

	kinds[1].trickle_ns = 5 * US;
	assert_true(beside(kinds) > 0.9);
	for (uint64_t us = 50; us <= 5000; us *= 10) {
		kinds[1].trickle_ns = us * US;
		assert_true(beside(kinds) > 0.95);
	}
	kinds[1].trickle_ns = 0;
	for (uint64_t us = 100; us <= 100000; us *= 10) {
		kinds[1].works_ns = us * US;
		kinds[1].pauses_ns = us * US;
		assert_true(beside(kinds) > 0.95);
	}
	/* It works for a moment, then never again. */
	kinds[1].works_ns = 2500 * US;
	kinds[1].pauses_ns = 1000000000;
	assert_true(beside(kinds) > 0.99);
}

/* Who trickled has its share as soon as it can use it. */
static void test_light_and_heavy_again(void **state)
{
	const struct kind kinds[] = {{.world = 8, .chunk_bytes = 32768, .chunks = 128},
		{.world = 1, .chunk_bytes = 32768, .chunks = 128, .trickle_ns = 500 * US}};
	struct rig *r = rig_open(kinds, 2);
	double share[JOBS_MAX];

	rig_run(r, 100000);
	r->tenants[1].kind.trickle_ns = 0;
	rig_measure(r, 25000, 50000, share);
	assert_true(share[1] > 0.475 && share[1] < 0.525);
	rig_close(r);
}

static void test_bandwidth(void **state)
{
	struct kind kind = {.world = 4, .chunk_bytes = 32768, .chunks = 128, .bandwidth = 500000000};
	struct rig *r;
	double share[JOBS_MAX], rate;
	uint64_t before;

	for (; kind.bandwidth <= 2000000000; kind.bandwidth *= 4) {
		r = rig_open(&kind, 1);
		rig_run(r, 200000);
		before = r->tenants[0].store.shards[0]->counters.bytes;
		rig_measure(r, 0, 200000, share);
		rate = (double)(r->tenants[0].store.shards[0]->counters.bytes - before) / 0.2;
		print_message("  %.0f bytes/s of %.0f\n", rate, (double)kind.bandwidth);
		assert_true(rate > 0.98 * (double)kind.bandwidth && rate < 1.02 * (double)kind.bandwidth);
		assert_true(r->tenants[0].store.shards[0]->counters.quota_ns > 0);
		rig_close(r);
	}
}

TEST_PROGRAM(test_fair)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_many_workers_get_no_more),
		cmocka_unit_test(test_small_chunks_get_no_more),
		cmocka_unit_test(test_weights),
		cmocka_unit_test(test_alone),
		cmocka_unit_test(test_a_stall_costs_little),
		cmocka_unit_test(test_light_and_heavy_again),
		cmocka_unit_test(test_bandwidth),
	};

	return cmocka_run_group_tests_name("fair", tests, NULL, NULL);
}
