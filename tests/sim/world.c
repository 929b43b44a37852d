/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers are small scripts that push their keys in an order of their own, each key as soon as its last round is done
 * (or all keys round by round, when a schedule changes hyper-parameters), and compare every result with the serial run.
 */
#include "tests/sim/world.h"

#include "aggregation/dispatch.h"
#include "client/client.h"
#include "client/handle.h"
#include "phub/control/box.h"
#include "tests/sim/replay.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum {
	BOX_HOST = 0,
	CONTROL_PORT = 7077,
	STEPS_MAX = 2000000,
	WORLD_BREAK_STEPS = 40, /* one in so many turns */
	WORLD_CUT_NS_MAX = 300000000
};
#define WORLD_DEADLINE_NS (120ull * 1000000000ull)

enum worker_state { WORKER_JOINING, WORKER_STARTING, WORKER_RUNNING, WORKER_LEAVING, WORKER_DONE };

struct worker_key {
	void *push, *pull;
	uint64_t round; /* in flight or next */
	bool in_flight;
};

struct worker {
	struct world *world;
	struct loop_host *host;
	phub_t *phub;
	unsigned rank;
	enum worker_state state;
	uint64_t random;
	uint64_t round; /* lockstep: the round that all keys are in */
	struct worker_key keys[WORLD_KEYS_MAX];
	void **results[WORLD_KEYS_MAX]; /* ssp, async: [round] what was got, for the replay */
};

/* The serial run's results of one key, for every round, as they are first asked for. */
struct history {
	struct oracle_key key;
	uint64_t rounds; /* computed so far; results[round - first] */
	void **results;
	double **exacts;
};

struct world {
	const struct world_plan *plan;
	struct oracle oracle;
	struct loop_net *net;
	struct loop_listener *listener;
	struct config config;
	struct box *box;
	struct worker workers[WORLD_WORKERS_MAX];
	struct history histories[WORLD_KEYS_MAX];
	struct world_result *result;
	uint64_t random;
	unsigned breaks;
	unsigned cut; /* endpoint that is cut off, 0: none; until */
	uint64_t heals_ns;
	bool failed;
};

static const struct transport_ops *const world_transports[] = {&transport_loop, NULL};
static const struct transport_ops *const world_datagrams[] = {&transport_loop_datagram, NULL};

static void world_fail(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void world_fail(struct world *w, const char *format, ...)
{
	va_list arguments;

	if (w->failed)
		return;
	w->failed = true;
	va_start(arguments, format);
	vsnprintf(w->result->text, sizeof(w->result->text), format, arguments);
	va_end(arguments);
}

/* ---- the serial run ---- */

/* The schedule: every round another learning rate. */
static struct optimizer_hyper world_hyper(const struct world *w, uint64_t round)
{
	struct optimizer_hyper hyper;

	optimizer_hyper_default(w->plan->optimizer, &hyper);
	hyper.lr = w->plan->lockstep ? 0.01 / (double)(1 + round) : 0.01;
	hyper.weight_decay = 0.001;
	return hyper;
}

static uint64_t world_first_round(const struct world *w)
{
	return w->plan->optimizer == OPTIMIZER_NONE ? 1 : 0;
}

static void history_extend(struct world *w, struct history *h, uint64_t round)
{
	while (h->rounds <= round) {
		struct optimizer_hyper hyper = world_hyper(w, h->rounds);
		size_t bytes = h->key.elements * dtype_size(h->key.dtype);

		if (h->rounds == 0 && w->plan->optimizer != OPTIMIZER_NONE)
			oracle_set_weights(&w->oracle, &h->key, &hyper);
		else if (h->rounds > 0)
			oracle_round(&w->oracle, &h->key, h->rounds, &hyper);
		h->results[h->rounds] = malloc(bytes);
		memcpy(h->results[h->rounds], h->key.expected, bytes);
		h->exacts[h->rounds] = malloc(h->key.elements * sizeof(double));
		memcpy(h->exacts[h->rounds], h->key.exact, h->key.elements * sizeof(double));
		h->rounds++;
	}
}

/* ssp and async: the order of arrival decides, so the result is kept until the replay. */
static void worker_record(struct worker *me, unsigned k)
{
	const struct world_plan *plan = me->world->plan;
	size_t bytes = plan->elements[k] * dtype_size(plan->dtypes[k]);
	void *copy = malloc(bytes);

	memcpy(copy, me->keys[k].pull, bytes);
	me->results[k][me->keys[k].round] = copy;
}

static void worker_check(struct worker *me, unsigned k)
{
	struct world *w = me->world;
	struct history *h = &w->histories[k];
	struct worker_key *mine = &me->keys[k];
	bool exact = w->plan->values == ORACLE_INTEGERS || w->plan->reproducible ||
		     (mine->round == 0 && w->plan->optimizer != OPTIMIZER_NONE);
	struct oracle_key at = h->key;
	int64_t wrong;

	history_extend(w, h, mine->round);
	at = h->key;
	at.expected = h->results[mine->round];
	at.exact = h->exacts[mine->round];
	wrong = oracle_compare(&w->oracle, &at, mine->pull, exact);
	w->result->rounds_checked++;
	if (wrong >= 0)
		world_fail(w, "rank %u key %u round %llu: element %lld is wrong", me->rank, k,
			(unsigned long long)mine->round, (long long)wrong);
}

/* ---- one worker ---- */

static int worker_dial(void *ctx, const char *host, uint16_t port, struct stream **out, struct err *e)
{
	struct worker *me = ctx;
	int rc = loop_stream_dial(me->host, BOX_HOST, port, out);

	(void)host;
	return rc < 0 ? err_set(e, rc, "dial: %d", rc) : 0;
}

static uint64_t worker_now(void *ctx)
{
	return loop_net_now(((struct worker *)ctx)->world->net);
}

static void world_hyper_public(const struct world *w, uint64_t round, struct phub_hyper *out)
{
	struct optimizer_hyper h = world_hyper(w, round);

	*out = (struct phub_hyper){.lr = h.lr,
		.momentum = h.momentum,
		.dampening = h.dampening,
		.weight_decay = h.weight_decay,
		.beta1 = h.beta1,
		.beta2 = h.beta2,
		.eps = h.eps,
		.lr_decay = h.lr_decay,
		.initial_accumulator_value = h.initial_accumulator_value};
}

static int worker_open(struct worker *me, struct err *e)
{
	struct world *w = me->world;
	struct client_env env = {.dial = worker_dial, .now = worker_now, .ctx = me};
	struct phub_options options;
	struct phub_hyper hyper;

	env.transports = w->plan->datagrams ? world_datagrams : world_transports;
	env.config.loop = me->host;
	phub_options_init(&options);
	options.rank = (int)me->rank;
	options.world = (int)w->plan->workers;
	options.optimizer = (enum phub_optimizer)w->plan->optimizer;
	options.reduce = w->plan->mean ? PHUB_MEAN : PHUB_SUM;
	options.reproducible = w->plan->reproducible;
	options.chunk_bytes = WORLD_CHUNK_BYTES;
	options.sync = (enum phub_sync)w->plan->sync;
	options.staleness = w->plan->staleness;
	options.timeout_ms = 60000;
	world_hyper_public(w, 0, &hyper);
	options.groups = &hyper;
	options.group_count = 1;
	return client_open("phub://box/sim", &options, &env, &me->phub, e);
}

static void worker_name_keys(struct worker *me)
{
	const struct world_plan *plan = me->world->plan;

	for (unsigned k = 0; k < plan->key_count; k++) {
		size_t bytes = plan->elements[k] * dtype_size(plan->dtypes[k]);
		char name[32];

		snprintf(name, sizeof(name), "key%u", k);
		if (phub_key(me->phub, name, (enum phub_dtype)plan->dtypes[k], plan->elements[k], 0,
			    plan->alone[k] ? PHUB_KEY_ALONE : 0) != (int)k)
			world_fail(me->world, "rank %u: phub_key: %s", me->rank, phub_error());
		me->results[k] = calloc(WORLD_ROUNDS_MAX, sizeof(void *));
		me->keys[k].push = malloc(bytes);
		me->keys[k].pull = plan->same ? me->keys[k].push : malloc(bytes);
		me->keys[k].round = world_first_round(me->world);
		if (plan->registered &&
			(phub_mem_register(me->phub, me->keys[k].push, bytes) < 0 ||
				(!plan->same && phub_mem_register(me->phub, me->keys[k].pull, bytes) < 0)))
			world_fail(me->world, "rank %u: phub_mem_register: %s", me->rank, phub_error());
	}
	me->round = world_first_round(me->world);
}

static void worker_push(struct worker *me, unsigned k)
{
	struct world *w = me->world;
	struct worker_key *key = &me->keys[k];
	bool first = key->round == 0;
	int rc;

	oracle_fill(&w->oracle, &w->histories[k].key, me->rank, key->round, key->push);
	if (first) {
		if (!w->plan->same)
			memcpy(key->pull, key->push, w->plan->elements[k] * dtype_size(w->plan->dtypes[k]));
		rc = phub_broadcast(me->phub, (int)k, key->pull, 0);
	} else {
		rc = phub_push_pull(me->phub, (int)k, key->push, key->pull, (int)(oracle_random(&me->random) % 8));
	}
	if (rc < 0)
		world_fail(w, "rank %u key %u round %llu: push: %s", me->rank, k, (unsigned long long)key->round,
			phub_error());
	key->in_flight = true;
}

static void worker_plant(struct worker *me, unsigned k)
{
	struct world *w = me->world;
	size_t bytes = w->plan->elements[k] * dtype_size(w->plan->dtypes[k]);
	uint64_t last = world_first_round(w) + w->plan->rounds;
	struct worker_key *key = &me->keys[k];

	if (me->rank != 1 || k != 0 || key->round + 1 != last)
		return;
	if (w->plan->plant == PLANT_STALE && w->plan->sync != SYNC_BSP) {
		memcpy(key->pull, me->results[k][key->round - 1], bytes);
	} else if (w->plan->plant == PLANT_STALE) { /* the result of the round before */
		history_extend(w, &w->histories[k], key->round);
		memcpy(key->pull, w->histories[k].results[key->round - 1], bytes);
	} else if (w->plan->plant == PLANT_SWAPPED) { /* the halves, as if chunks had changed places */
		char *data = key->pull, *copy = malloc(bytes);

		memcpy(copy, data, bytes);
		memcpy(data, copy + bytes - bytes / 2, bytes / 2);
		memcpy(data + bytes / 2, copy, bytes - bytes / 2);
		free(copy);
	} else if (w->plan->plant == PLANT_DOUBLED) { /* a contribution counted twice */
		convert_to_f32(w->histories[k].key.scratch, key->pull, w->plan->dtypes[k], w->plan->elements[k]);
		for (uint32_t i = 0; i < w->plan->elements[k]; i++)
			w->histories[k].key.scratch[i] += 1;
		convert_from_f32(key->pull, w->plan->dtypes[k], w->histories[k].key.scratch, w->plan->elements[k]);
	}
}

/* Takes results in. Returns how many keys finished a round. */
static unsigned worker_collect(struct worker *me)
{
	const struct world_plan *plan = me->world->plan;
	unsigned done = 0;

	for (unsigned k = 0; k < plan->key_count; k++) {
		if (!me->keys[k].in_flight || client_idle(me->phub, (int)k) != 1)
			continue;
		worker_plant(me, k);
		if (plan->sync != SYNC_BSP && me->keys[k].round > 0)
			worker_record(me, k);
		else
			worker_check(me, k);
		me->keys[k].in_flight = false;
		me->keys[k].round++;
		done++;
	}
	return done;
}

static bool worker_may_push(const struct worker *me, unsigned k)
{
	uint64_t last = world_first_round(me->world) + me->world->plan->rounds;

	if (me->keys[k].in_flight || me->keys[k].round >= last)
		return false;
	return !me->world->plan->lockstep || me->keys[k].round == me->round;
}

/* Pushes one key, drawn from those that are idle. */
static unsigned worker_push_one(struct worker *me)
{
	unsigned may[WORLD_KEYS_MAX], count = 0;

	for (unsigned k = 0; k < me->world->plan->key_count; k++)
		if (worker_may_push(me, k))
			may[count++] = k;
	if (count == 0)
		return 0;
	worker_push(me, may[oracle_random(&me->random) % count]);
	return 1;
}

/* It has what it wanted, and is gone before the others have. */
static void worker_die(struct worker *me)
{
	struct world *w = me->world;

	for (unsigned rank = 0; rank < w->plan->workers; rank++)
		w->result->owed += rank != me->rank && w->workers[rank].state == WORKER_RUNNING;
	loop_net_kill(w->net, me->host->endpoint);
	me->state = WORKER_DONE;
}

static unsigned worker_run_rounds(struct worker *me)
{
	struct world *w = me->world;
	uint64_t last = world_first_round(w) + w->plan->rounds, slowest = UINT64_MAX;
	unsigned work = worker_collect(me);

	for (unsigned k = 0; k < w->plan->key_count; k++)
		if (me->keys[k].round < slowest)
			slowest = me->keys[k].round;
	if (slowest >= last && w->plan->mourned && me->rank == w->plan->mortal) {
		worker_die(me);
		return 1;
	}
	if (slowest >= last) {
		client_leave_begin(me->phub);
		me->state = WORKER_LEAVING;
		return 1;
	}
	if (w->plan->lockstep && slowest > me->round) {
		struct phub_hyper hyper;

		me->round = slowest;
		world_hyper_public(w, me->round, &hyper);
		if (phub_set_hyper(me->phub, 0, &hyper) < 0)
			world_fail(w, "rank %u: phub_set_hyper: %s", me->rank, phub_error());
	}
	return work + worker_push_one(me);
}

static unsigned worker_step(struct worker *me, uint64_t now_ns)
{
	unsigned work = me->state == WORKER_DONE ? 0 : client_progress(me->phub, now_ns);
	struct err e = {0};
	int rc = 0;

	switch (me->state) {
	case WORKER_JOINING:
		rc = client_joined(me->phub);
		if (rc == 0) {
			worker_name_keys(me);
			rc = client_start_begin(me->phub, &e);
			me->state = WORKER_STARTING;
			work++;
		}
		break;
	case WORKER_STARTING:
		rc = client_started(me->phub);
		if (rc == 0) {
			me->state = WORKER_RUNNING;
			work++;
		}
		break;
	case WORKER_RUNNING:
		work += worker_run_rounds(me);
		rc = me->state == WORKER_RUNNING ? client_failure(me->phub)->code : 0;
		break;
	case WORKER_LEAVING:
		rc = client_left(me->phub);
		if (rc == 0) {
			me->state = WORKER_DONE;
			work++;
		}
		break;
	case WORKER_DONE:
		break;
	}
	if (rc < 0 && rc != -EAGAIN)
		world_fail(me->world, "rank %u: %d: %s%s", me->rank, rc, e.text, client_failure(me->phub)->text);
	return work;
}

/* ---- the world ---- */

static int world_accept(void *arg, struct stream **out)
{
	return loop_stream_accept(((struct world *)arg)->listener, out);
}

static int world_open_box(struct world *w, struct err *e)
{
	struct box_env env = {
		.transports = w->plan->datagrams ? world_datagrams : world_transports,
		.transport_count = 1,
		.loop = loop_net_host(w->net, BOX_HOST),
		.accept = world_accept,
		.accept_arg = w,
		.by_hand = true,
	};
	char text[64];
	int rc;

	config_init(&w->config);
	snprintf(text, sizeof(text), "cores=%u", w->plan->cores);
	rc = config_set(&w->config, text, e);
	snprintf(text, sizeof(text), "window=%u", w->plan->window);
	if (rc == 0)
		rc = config_set(&w->config, text, e);
	if (rc == 0)
		rc = config_finish(&w->config, e);
	if (rc == 0)
		rc = dispatch_from_env(&env.kernels, text, sizeof(text));
	if (rc == 0)
		rc = box_create(&w->config, &env, loop_net_now(w->net), &w->box, e);
	for (unsigned core = 0; rc == 0 && w->plan->sync != SYNC_BSP && core < w->box->core_count; core++)
		rc = trace_init(&w->box->cores[core]->trace, 1 << 14);
	return rc;
}

static int world_open(struct world *w, FILE *trace, struct err *e)
{
	int rc;

	w->net = loop_net_create(&w->plan->net);
	if (!w->net)
		return err_set(e, -ENOMEM, "no net");
	loop_net_trace(w->net, trace);
	rc = loop_stream_listen(loop_net_host(w->net, BOX_HOST), CONTROL_PORT, &w->listener);
	if (rc == 0)
		rc = world_open_box(w, e);
	for (unsigned k = 0; rc == 0 && k < w->plan->key_count; k++) {
		struct history *h = &w->histories[k];

		rc = oracle_key_init(&w->oracle, &h->key, k, w->plan->elements[k], w->plan->dtypes[k]);
		h->results = calloc(w->plan->rounds + 2, sizeof(void *));
		h->exacts = calloc(w->plan->rounds + 2, sizeof(double *));
	}
	for (unsigned rank = 0; rc == 0 && rank < w->plan->workers; rank++) {
		struct worker *me = &w->workers[rank];

		*me = (struct worker){.world = w,
			.rank = rank,
			.host = loop_net_host(w->net, rank + 1),
			.random = w->plan->seed * 64 + rank};
		rc = worker_open(me, e);
	}
	return rc;
}

/* The net learns when queues want to be polled although nothing comes: they have timers of their own. */
static void world_arm(struct world *w)
{
	for (unsigned i = 0; i < w->box->core_count; i++)
		for (unsigned j = 0; j < w->box->cores[i]->queue_count; j++)
			w->box->cores[i]->queues[j]->ops->arm(w->box->cores[i]->queues[j]);
	for (unsigned rank = 0; rank < w->plan->workers; rank++) {
		const struct worker *me = &w->workers[rank];

		if (me->state != WORKER_DONE && me->phub->running)
			me->phub->exchange.group.queue->ops->arm(me->phub->exchange.group.queue);
	}
}

/* Moves time to whatever comes next. False when nothing will ever come. */
static bool world_advance(struct world *w)
{
	uint64_t next, due = box_next(w->box);

	world_arm(w);
	next = loop_net_next(w->net);
	next = w->cut && w->heals_ns < next ? w->heals_ns : next;
	next = due < next ? due : next;
	for (unsigned rank = 0; rank < w->plan->workers; rank++) {
		due = w->workers[rank].state == WORKER_DONE ? UINT64_MAX : client_due(w->workers[rank].phub);
		next = due < next ? due : next;
	}
	if (next == UINT64_MAX)
		return false;
	if (next <= loop_net_now(w->net))
		next = loop_net_now(w->net) + 1000;
	loop_net_advance(w->net, next);
	return true;
}

/* Now and then, while rounds run, the connections of some worker break. */
static void world_break(struct world *w)
{
	struct worker *me;

	if (w->cut && w->heals_ns <= loop_net_now(w->net)) {
		loop_net_partition(w->net, BOX_HOST, w->cut, false);
		w->cut = 0;
	}
	if (w->cut || w->breaks == w->plan->breaks || oracle_random(&w->random) % WORLD_BREAK_STEPS)
		return;
	me = &w->workers[oracle_random(&w->random) % w->plan->workers];
	if (me->state != WORKER_RUNNING)
		return;
	if (w->plan->datagrams) { /* such connections do not break, but all that is sent for a while may be lost */
		w->cut = me->host->endpoint;
		w->heals_ns = loop_net_now(w->net) + oracle_random(&w->random) % WORLD_CUT_NS_MAX;
		loop_net_partition(w->net, BOX_HOST, w->cut, true);
	} else {
		loop_net_break(w->net, BOX_HOST, me->host->endpoint);
	}
	w->breaks++;
}

static void world_turn(struct world *w)
{
	for (unsigned steps = 0; !w->failed; steps++) {
		uint64_t now_ns = loop_net_now(w->net);
		unsigned work = box_step(w->box, now_ns), done = 0;

		for (unsigned rank = 0; rank < w->plan->workers && !w->failed; rank++) {
			work += worker_step(&w->workers[rank], now_ns);
			done += w->workers[rank].state == WORKER_DONE;
		}
		if (done == w->plan->workers)
			return;
		world_break(w);
		if (work == 0 && !world_advance(w))
			world_fail(w, "deadlock: nothing is on the way and nobody is waiting for time");
		if (steps == STEPS_MAX || now_ns > WORLD_DEADLINE_NS)
			world_fail(w, "not done after %u steps and %.1f virtual seconds", steps, (double)now_ns / 1e9);
	}
}

/* Lets the box take the job down, so that its books can be looked at. */
static void world_settle(struct world *w)
{
	for (unsigned i = 0; i < 10000 && w->box->control.jobs && !w->failed; i++)
		if (!box_step(w->box, loop_net_now(w->net)) && !world_advance(w))
			break;
	if (w->box->control.jobs)
		world_fail(w, "the job did not end after its workers had left");
	if (!box_balanced(w->box))
		world_fail(w, "slots, replies or credits do not balance");
	if (loop_net_stats(w->net)->torn)
		world_fail(w, "payloads were changed while they were read");
}

static void world_replay(struct world *w)
{
	struct replay *r = calloc(1, sizeof(*r));

	r->plan = w->plan;
	r->oracle = &w->oracle;
	r->hyper = world_hyper(w, 0);
	for (unsigned k = 0; k < w->plan->key_count; k++) {
		r->keys[k] = &w->histories[k].key;
		for (unsigned rank = 0; rank < w->plan->workers; rank++)
			r->results[rank][k] = w->workers[rank].results[k];
	}
	for (unsigned core = 0; core < w->box->core_count && !w->failed; core++) {
		int64_t compared = replay_core(r, &w->box->cores[core]->trace);

		if (compared < 0)
			world_fail(w, "%s", r->text);
		else
			w->result->rounds_checked += (uint64_t)compared;
	}
	free(r);
}

static void world_close(struct world *w)
{
	for (unsigned rank = 0; rank < w->plan->workers; rank++) {
		struct phub_stats stats = {.reconnects = 0};

		if (w->workers[rank].phub) {
			client_stats(w->workers[rank].phub, &stats);
			client_close(w->workers[rank].phub);
		}
		w->result->reconnects += stats.reconnects;
		for (unsigned k = 0; k < w->plan->key_count; k++) {
			for (unsigned r = 0; w->workers[rank].results[k] && r < WORLD_ROUNDS_MAX; r++)
				free(w->workers[rank].results[k][r]);
			free(w->workers[rank].results[k]);
			free(w->workers[rank].keys[k].push);
			if (!w->plan->same)
				free(w->workers[rank].keys[k].pull);
		}
	}
	if (w->box)
		box_destroy(w->box, loop_net_now(w->net));
	config_fini(&w->config);
	for (unsigned k = 0; k < w->plan->key_count; k++) {
		for (uint64_t i = 0; i < w->histories[k].rounds; i++) {
			free(w->histories[k].results[i]);
			free(w->histories[k].exacts[i]);
		}
		free(w->histories[k].results);
		free(w->histories[k].exacts);
		oracle_key_fini(&w->histories[k].key);
	}
	if (w->listener)
		loop_stream_unlisten(w->listener);
	w->result->net = *loop_net_stats(w->net);
	w->result->virtual_ns = loop_net_now(w->net);
	loop_net_destroy(w->net);
}

int world_run(const struct world_plan *plan, FILE *trace, struct world_result *result)
{
	struct world *w = calloc(1, sizeof(*w));
	struct err e = {0};
	int rc;

	*result = (struct world_result){0};
	w->plan = plan;
	w->result = result;
	w->random = plan->seed + 1;
	w->oracle = (struct oracle){.seed = plan->seed,
		.world = plan->workers,
		.values = plan->values,
		.optimizer = plan->optimizer,
		.mean = plan->mean};
	rc = world_open(w, trace, &e);
	if (rc < 0) {
		world_fail(w, "cannot set up: %d: %s", rc, e.text);
	} else {
		world_turn(w);
		if (!w->failed && plan->sync != SYNC_BSP)
			world_replay(w);
		if (!w->failed)
			world_settle(w);
	}
	world_close(w);
	rc = w->failed ? -1 : 0;
	free(w);
	return rc;
}
