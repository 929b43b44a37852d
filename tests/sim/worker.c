/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker pushes its keys in an order of its own, each key as soon as its last round is done (or all keys round by
 * round, when a schedule changes hyper-parameters), and compares every result with the serial run, or tells the census.
 */
#include "tests/sim/worker.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { WORKER_RESUME_MS = 30000, WORKER_RESUME_LONG_MS = 60000 /* also for ranks that do not come again */ };
#define WORKER_PATIENCE_NS (60ull * 1000000000ull) /* for joining and starting: as long as its calls would wait */

#define WORKER_WAIT_NS   (30ull * 1000000000ull) /* for results and to leave: libphub's default */
#define WORKER_MOMENT_NS 1000000000ull

/* ---- the serial run ---- */

static uint64_t world_first_round(const struct world *w)
{
	return w->plan->optimizer == OPTIMIZER_NONE ? 1 : 0;
}

static void history_extend(struct world *w, struct history *h, uint64_t round)
{
	while (h->rounds <= round) {
		struct optimizer_hyper hyper = world_plan_hyper(w->plan, h->rounds);
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
	free(me->record->results[k][me->keys[k].round]);
	me->record->results[k][me->keys[k].round] = copy;
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

/* For so long a worker whose box is lost tries to come again. */
static unsigned worker_resume_ms(const struct world_plan *plan)
{
	return world_plan_dies(plan) && plan->deaths > 0 ? WORKER_RESUME_LONG_MS : WORKER_RESUME_MS;
}

static int worker_dial(void *ctx, const char *host, uint16_t port, struct stream **out, struct err *e)
{
	struct worker *me = ctx;
	int rc = loop_stream_dial(me->host, world_endpoint(me->world, host), port, out);

	return rc < 0 ? err_set(e, rc, "dial: %d", rc) : 0;
}

static uint64_t worker_now(void *ctx)
{
	return loop_net_now(((struct worker *)ctx)->world->net);
}

static void world_hyper_public(const struct world *w, uint64_t round, struct phub_hyper *out)
{
	struct optimizer_hyper h = world_plan_hyper(w->plan, round);

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

int worker_open(struct worker *me, struct err *e)
{
	struct world *w = me->world;
	struct client_env env = {.dial = worker_dial, .now = worker_now, .ctx = me};
	struct phub_options options;
	struct phub_hyper hyper;
	char url[32];

	env.transports = world_transports(w);
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
	options.lost = (enum phub_lost)w->plan->lost;
	options.wait_ms = w->plan->wait_ms;
	options.quorum = w->plan->quorum;
	options.encrypt = w->plan->encrypt;
	options.secret = w->plan->encrypt ? WORLD_SECRET : NULL;
	if (world_plan_resumes(w->plan))
		options.resume_ms = worker_resume_ms(w->plan);
	me->opened_ns = loop_net_now(w->net);
	me->since_ns = me->opened_ns;
	world_hyper_public(w, 0, &hyper);
	options.groups = &hyper;
	options.group_count = 1;
	snprintf(url, sizeof(url), "phub://%s/%s", me->rack ? me->rack->name : "box", w->job);
	return client_open(url, &options, &env, &me->phub, e);
}

static void worker_name_keys(struct worker *me)
{
	const struct world_plan *plan = me->world->plan;

	for (unsigned k = 0; k < plan->key_count; k++) {
		size_t bytes = plan->elements[k] * dtype_size(plan->dtypes[k]);
		unsigned flags = world_plan_key_flags(plan, k);
		char name[32];

		snprintf(name, sizeof(name), "key%u", k);
		if (phub_key(me->phub, name, (enum phub_dtype)plan->dtypes[k], plan->elements[k], 0, flags) != (int)k)
			world_fail(me->world, "rank %u: phub_key: %s", me->rank, phub_error());
		if (!me->record->results[k])
			me->record->results[k] = calloc(WORLD_ROUNDS_MAX, sizeof(void *));
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

/* A life of a rank draws values of its own. */
static unsigned worker_who(const struct worker *me)
{
	return me->life * WORLD_WORKERS_MAX + me->rank;
}

static struct flight *worker_flights(const struct worker *me, unsigned k, uint32_t *count)
{
	const struct key *key = &me->phub->keyring.keys[k];

	*count = key->chunk_count;
	return &me->phub->exchange.flights[key->chunk_first];
}

/* Comes to a job that ran, and asks for the weights that are there. */
static bool worker_visits(const struct worker *me, unsigned k)
{
	const struct client_start *start = &me->phub->session.start;

	return start->joined && start->rounds[start->round_count > 1 ? k : 0] > 0;
}

/* Is its key's next round that of the first weights, or of the weights as they are? */
static bool worker_begins(const struct worker *me, unsigned k)
{
	return me->world->plan->optimizer != OPTIMIZER_NONE && !me->phub->keyring.keys[k].weights;
}

/* Tells the census what goes into which round. */
static void worker_tell(struct worker *me, unsigned k)
{
	const struct world_plan *plan = me->world->plan;
	struct worker_key *key = &me->keys[k];
	uint32_t first = me->phub->keyring.keys[k].chunk_first, count;
	const struct flight *flights = worker_flights(me, k, &count);

	key->round = flights->round;
	key->shares = !worker_begins(me, k) || (me->rank == 0 && !worker_visits(me, k));
	for (uint32_t i = 0; i < count && key->shares && plan->sync == SYNC_BSP; i++)
		census_push(&me->world->census, me->run, worker_who(me), first + i, flights[i].round, key->round);
}

static bool worker_is_excused(const struct worker *me, int code, const char *text)
{
	const struct world *w = me->world;
	bool began = false;

	for (unsigned rank = 0; rank < w->plan->workers; rank++)
		began = began || (w->workers[rank].run > 0 && !worker_is_gone(&w->workers[rank]));
	return w->plan->deaths > 0 && fate_excuses(&w->fate, code, text, began, loop_net_now(w->net));
}

/* Have control sessions been broken, deaf or late for a while? */
static bool worker_was_disturbed(const struct world *w)
{
	return loop_net_stats(w->net)->streams_broken > 0 || w->deafened > 0 || w->plan->net.stream_late > 0;
}

/*
 * May a session end with this because control sessions are mangled? Where they break, pass nothing for a while or are
 * late, somebody is lost or silent; only where bytes were changed somebody is also misunderstood, and may be told
 * anything by the box. Before any of that has happened nobody may end.
 */
static bool worker_was_mangled(const struct worker *me, int code, const char *text)
{
	static const char *const lost[] = {"ended the session (Connection reset by peer)",
		"its control session broke: Connection reset by peer", "silent for", "nothing was heard of this worker",
		"takes no data connection", "ended without a leave", "closed the connection to its core",
		"its loop connection to core", "refused the connection or went away", "is taken by",
		"no other came about within", "UDP gets no answer"};
	static const int misled[] = {
		EPROTO, EPROTONOSUPPORT, EACCES, EBADMSG, EINVAL, EALREADY, ENOENT, ECONNREFUSED, EMSGSIZE};
	const struct world *w = me->world;
	const struct loop_stats *stats = loop_net_stats(w->net);

	if (!w->plan->mangled)
		return false;
	for (unsigned i = 0; worker_was_disturbed(w) && i < sizeof(lost) / sizeof(*lost); i++)
		if (strstr(text, lost[i]))
			return true;
	if (stats->streams_corrupted == 0)
		return false;
	for (unsigned i = 0; i < sizeof(misled) / sizeof(*misled); i++)
		if (code == -misled[i])
			return true;
	return strstr(text, "box box:") != NULL;
}

static void worker_note_epoch(struct worker *me, unsigned k)
{
	uint32_t count;
	const struct flight *flights = worker_flights(me, k, &count);

	me->keys[k].epoch = flights->lane->epoch;
	for (uint32_t i = 1; i < count; i++)
		if (flights[i].lane->epoch < me->keys[k].epoch)
			me->keys[k].epoch = flights[i].lane->epoch;
}

bool worker_repeats(const struct worker *me, const struct flight *flight)
{
	uint32_t epoch = 0;

	for (uint32_t i = 0; i < flight->span->key_count; i++)
		if (me->keys[flight->span->key_first + i].epoch > epoch)
			epoch = me->keys[flight->span->key_first + i].epoch;
	return epoch != flight->lane->epoch;
}

static void worker_push(struct worker *me, unsigned k)
{
	struct world *w = me->world;
	struct worker_key *key = &me->keys[k];
	bool first = key->round == 0;
	int rc;

	worker_note_epoch(me, k);
	if (world_plan_varies(w->plan)) {
		worker_tell(me, k);
		first = worker_begins(me, k);
	}
	oracle_fill(&w->oracle, &w->histories[k].key, worker_who(me), key->round, key->push);
	if (first) {
		if (!w->plan->same)
			memcpy(key->pull, key->push, w->plan->elements[k] * dtype_size(w->plan->dtypes[k]));
		rc = phub_broadcast(me->phub, (int)k, key->pull, 0);
	} else {
		rc = phub_push_pull(me->phub, (int)k, key->push, key->pull, (int)(oracle_random(&me->random) % 8));
	}
	if (rc == -ESTALE)
		return; /* its state is looked at next */
	if (rc < 0 && (worker_was_mangled(me, rc, phub_error()) || twin_excuses(w, phub_error()) ||
			      below_excuses(w, phub_error()) || worker_is_excused(me, rc, phub_error()))) {
		me->pause_ns = UINT64_MAX; /* until the session has ended */
		return;
	}
	if (rc < 0)
		world_fail(w, "rank %u key %u round %llu: push: %s", me->rank, k, (unsigned long long)key->round,
			phub_error());
	key->in_flight = true;
	key->pushed_ns = loop_net_now(w->net);
}

static void worker_plant(struct worker *me, unsigned k)
{
	struct world *w = me->world;
	size_t bytes = w->plan->elements[k] * dtype_size(w->plan->dtypes[k]);
	uint64_t last = world_first_round(w) + w->plan->rounds;
	struct worker_key *key = &me->keys[k];

	if (me->rank + 1 != w->plan->workers || k != 0 || key->round + 1 != last)
		return;
	if (w->plan->plant == PLANT_STALE && w->plan->sync != SYNC_BSP) {
		memcpy(key->pull, me->record->results[k][key->round - 1], bytes);
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

static void worker_pause(struct worker *me)
{
	const struct world *w = me->world;

	if (me->rank < w->plan->slow)
		me->pause_ns = loop_net_now(w->net) + oracle_random(&me->random) % w->plan->slow_ns;
}

/* Whose round is it, and are all agreed on it? The key goes on behind it. */
static void worker_count(struct worker *me, unsigned k)
{
	struct world *w = me->world;
	struct worker_key *key = &me->keys[k];
	uint32_t first = me->phub->keyring.keys[k].chunk_first, count;
	const struct flight *flights = worker_flights(me, k, &count);

	for (uint32_t i = 0; i < count && w->plan->sync == SYNC_BSP; i++)
		if (!census_got(&w->census, me->run, worker_who(me), k, first + i, key->round + flights[i].ahead,
			    key->pull, key->shares))
			world_fail(w, "%s", w->census.text);
	if (w->plan->sync != SYNC_BSP)
		worker_record(me, k);
	else
		w->result->rounds_checked++;
	w->result->late += flights->round - 1 > key->round;
	key->round = flights->round;
	worker_pause(me);
}

/* The weights came, as after this round. */
static void worker_come_up(struct worker *me, unsigned k)
{
	int64_t round = phub_round(me->phub, (int)k);

	if (round < 1 || (uint64_t)round > world_first_round(me->world) + me->world->plan->rounds)
		world_fail(me->world, "rank %u key %u: round %lld is next: %s", me->rank, k, (long long)round,
			phub_error());
	else
		me->keys[k].round = (uint64_t)round - 1;
}

/* Takes results in. Returns how many keys finished a round. */
static unsigned worker_collect(struct worker *me)
{
	const struct world_plan *plan = me->world->plan;
	unsigned done = 0;

	for (unsigned k = 0; k < plan->key_count; k++) {
		if (!me->keys[k].in_flight || client_idle(me->phub, (int)k) != 1)
			continue;
		me->keys[k].in_flight = false;
		done++;
		if (world_plan_varies(plan)) {
			worker_count(me, k);
			continue;
		}
		worker_plant(me, k);
		worker_pause(me);
		if (world_plan_repeats(plan) && plan->optimizer != OPTIMIZER_NONE && me->keys[k].round == 0)
			worker_come_up(me, k);
		if (plan->sync != SYNC_BSP && me->keys[k].round > 0)
			worker_record(me, k);
		else
			worker_check(me, k);
		me->keys[k].round++;
	}
	return done;
}

static bool worker_may_push(const struct worker *me, unsigned k)
{
	uint64_t last = world_first_round(me->world) + me->world->plan->rounds;

	if (me->keys[k].in_flight || me->keys[k].round >= last || me->pause_ns > loop_net_now(me->world->net))
		return false;
	if ((!me->world->plan->lockstep && !me->world->plan->in_step) || me->keys[k].round == me->round)
		return true;
	return world_plan_varies(me->world->plan) && worker_begins(me, k);
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

void worker_fini(struct worker *me)
{
	struct world *w = me->world;

	if (me->phub) {
		world_count_handle(w, me->phub);
		client_close(me->phub);
	}
	me->phub = NULL;
	for (unsigned k = 0; k < w->plan->key_count; k++) {
		free(me->keys[k].push);
		if (!w->plan->same)
			free(me->keys[k].pull);
		me->keys[k] = (struct worker_key){0};
	}
}

/* Its process is gone, at once. */
void worker_kill(struct worker *me)
{
	loop_net_kill(me->world->net, me->host->endpoint);
	me->world->census.dead |= UINT64_C(1) << worker_who(me);
	worker_fini(me);
	me->state = WORKER_DEAD;
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
	if (slowest >= last && world_plan_repeats(w->plan) && !outage_is_over(w)) {
		if (!w->plan->leaves)
			return work; /* others may want it once more */
		w->outage.left = true;
	}
	/* The root may be dead already, which they do not know who are at boxes below. */
	if (slowest >= last && w->plan->below && w->outage.deaths + w->leases.upsets > 0)
		w->outage.left = true;
	if (slowest >= last) {
		client_leave_begin(me->phub);
		me->state = WORKER_LEAVING;
		return 1;
	}
	if (w->plan->in_step && !w->plan->lockstep && slowest > me->round) {
		me->round = slowest;
		work++;
	}
	if (w->plan->lockstep && slowest > me->round) {
		struct phub_hyper hyper;

		me->round = slowest;
		world_hyper_public(w, me->round, &hyper);
		/* Who comes begins with those in force, which may be this round's already. */
		if (me->phub->settings.groups[0].lr == hyper.lr)
			return work + 1;
		if (phub_set_hyper(me->phub, 0, &hyper) < 0 && !client_failure(me->phub)->code)
			world_fail(w, "rank %u: phub_set_hyper: %s", me->rank, phub_error());
	}
	return work + worker_push_one(me);
}

bool worker_is_finished(const struct worker *me)
{
	uint64_t last = world_first_round(me->world) + me->world->plan->rounds;
	bool finished = me->state == WORKER_RUNNING;

	if (me->state == WORKER_DEAD)
		return !fate_awaits(&me->world->fate, me->rank);
	for (unsigned k = 0; k < me->world->plan->key_count; k++)
		finished = finished && me->keys[k].round >= last;
	return finished || me->state == WORKER_LEAVING || me->state == WORKER_DONE;
}

/*
 * The box was lost: all is as before the first weights, in whatever round the next ones are. Where the others may have
 * gone on meanwhile, the census takes it for another: what it pushes from now on is drawn anew.
 */
static void worker_rewind(struct worker *me)
{
	struct world *w = me->world;

	w->result->resumed++;
	if (w->plan->below && world_plan_varies(w->plan)) {
		w->census.dead |= UINT64_C(1) << worker_who(me);
		me->life = fate_renew(&w->fate, me->rank, loop_net_now(w->net));
		me->record = &w->lives[me->rank][me->life];
	}
	for (unsigned k = 0; k < me->world->plan->key_count; k++) {
		me->keys[k].in_flight = false;
		me->keys[k].round = world_first_round(me->world);
	}
	me->round = world_first_round(me->world);
	me->pause_ns = 0;
	me->state = WORKER_RESUMING;
}

bool worker_is_gone(const struct worker *me)
{
	return me->state == WORKER_DONE || me->state == WORKER_DEAD;
}

/* In whatever round the job is. */
static void worker_begin(struct worker *me)
{
	uint32_t count;

	me->state = WORKER_RUNNING;
	me->run = me->world->plan->below ? below_run_of(me) : (uint64_t)me->box << 32 | me->phub->session.start.job;
	me->record->begun = true;
	me->record->begun_ns = loop_net_now(me->world->net);
	for (unsigned k = 0; k < me->world->plan->key_count && world_plan_varies(me->world->plan); k++) {
		me->keys[k].round = worker_flights(me, k, &count)->round;
		if (k == 0 || me->keys[k].round < me->round)
			me->round = me->keys[k].round;
	}
}

/* Its session ended with an error. Returns false when that is no wonder. */
static bool worker_is_wrong(struct worker *me, int code, const char *text)
{
	struct world *w = me->world;

	if (worker_was_mangled(me, code, text)) {
		w->result->mangled++;
		worker_kill(me);
		me->state = WORKER_DONE;
		return false;
	}
	if (me->life > 0 && ((me->state == WORKER_JOINING && code == -EADDRINUSE) || outage_disturbs(me, code, text) ||
				    below_disturbs(me, text))) {
		fate_postpone(&w->fate, me->rank, loop_net_now(w->net));
		worker_kill(me);
		return false;
	}
	if (twin_excuses(w, text) || below_excuses(w, text) || worker_is_excused(me, code, text) ||
		outage_excuses(w, text)) {
		w->result->ended++;
		if (w->plan->below) /* the others may go on without it */
			w->census.dead |= UINT64_C(1) << worker_who(me);
		me->state = WORKER_DONE;
		return false;
	}
	return true;
}

/* Is somebody named whom its job waits for, or its own box dead, or can none be the root? */
static bool worker_names_absent(const struct worker *me, const char *text)
{
	const char *named = strstr(text, "waits for rank");
	const struct world *w = me->world;
	bool found = (me->rack && !me->rack->box) || lease_excuses(w, text);

	named = named ? named + strcspn(named, "0123456789") : NULL;
	for (unsigned rank = 0; named && rank < w->plan->workers; rank++) {
		const struct worker *other = &w->workers[rank];

		found = found ||
			((worker_is_gone(other) || other->state == WORKER_JOINING || other->state == WORKER_RESUMING) &&
				fate_lists(named, rank));
	}
	return found;
}

/* Has the box said who is missing, or had the time for it? Shortly before a call ends it is asked. */
static bool worker_has_asked(struct worker *me, uint64_t now_ns)
{
	if (me->asked_ns < me->since_ns) {
		me->asked_ns = now_ns;
		client_ask(me->phub, PHUB_ALL, now_ns, now_ns);
	}
	return client_answered(me->phub, PHUB_ALL, me->asked_ns) || now_ns >= me->asked_ns + WORKER_MOMENT_NS / 2;
}

/*
 * Since when has it waited for something that may not come, for as long as its caller does? To be let in; and for
 * results, or to leave, when its box is lost and the copy at the standby was not whole: the ranks that had left since
 * then are waited for there.
 */
static uint64_t worker_vain_ns(const struct worker *me)
{
	uint64_t since_ns = UINT64_MAX;

	if (me->state == WORKER_JOINING || me->state == WORKER_STARTING)
		return me->since_ns + WORKER_PATIENCE_NS;
	if (!twin_is_stale(me->world))
		return UINT64_MAX;
	if (me->state == WORKER_LEAVING)
		return me->since_ns + WORKER_WAIT_NS;
	for (unsigned k = 0; k < me->world->plan->key_count && me->state == WORKER_RUNNING; k++)
		if (me->keys[k].in_flight && me->keys[k].pushed_ns < since_ns)
			since_ns = me->keys[k].pushed_ns;
	return since_ns == UINT64_MAX ? UINT64_MAX : since_ns + WORKER_WAIT_NS;
}

/* It has waited for so long that its call ends: with the names of those who are not here, or because the box is away.
 */
static bool worker_gives_up(struct worker *me, uint64_t now_ns)
{
	struct world *w = me->world;
	char text[ERR_TEXT_MAX];
	bool away;

	if (now_ns < worker_vain_ns(me))
		return false;
	away = client_failure(me->phub)->code != 0;
	if (!away && !worker_has_asked(me, now_ns))
		return false;
	client_explain(me->phub, PHUB_ALL, now_ns, text, sizeof(text));
	if (w->plan->mangled && (worker_was_disturbed(w) || loop_net_stats(w->net)->streams_corrupted > 0))
		w->result->mangled++;
	else if (away ? !world_plan_resumes(w->plan) : !worker_names_absent(me, text))
		world_fail_late(w, "rank %u: its call in state %d ends with: %s%s", me->rank, (int)me->state, text,
			client_failure(me->phub)->text);
	else
		w->result->ended++;
	worker_kill(me);
	me->state = WORKER_DONE;
	return true;
}

uint64_t worker_due(const struct worker *me)
{
	uint64_t now_ns = loop_net_now(me->world->net), due = client_due(me->phub);
	const uint64_t mine[] = {me->pause_ns, worker_vain_ns(me), me->asked_ns + WORKER_MOMENT_NS / 2};

	for (unsigned i = 0; i < sizeof(mine) / sizeof(mine[0]); i++)
		if (mine[i] > now_ns && mine[i] < due)
			due = mine[i];
	return due;
}

/* So long its calls wait: as the caller of phub_connect(), phub_start(), phub_wait(), phub_resume() and phub_leave().
 */
static uint64_t worker_limit_ns(const struct worker *me)
{
	const struct world_plan *plan = me->world->plan;

	if (me->state == WORKER_JOINING || me->state == WORKER_STARTING)
		return WORKER_PATIENCE_NS;
	if (me->state == WORKER_RESUMING)
		return worker_resume_ms(plan) * 1000000ull;
	if (me->state == WORKER_RUNNING && plan->homes)
		return homes_wait_ns(me->world);
	return WORKER_WAIT_NS;
}

/* Has each wait ended, with what it is for or with an error, in its time and a moment for what is on its way? */
static void worker_judge(struct worker *me, enum worker_state before, uint64_t now_ns)
{
	uint64_t since_ns = now_ns, latest_ns;

	if (me->state != before)
		me->since_ns = now_ns;
	if (me->state != WORKER_RUNNING)
		since_ns = me->since_ns;
	for (unsigned k = 0; k < me->world->plan->key_count && me->state == WORKER_RUNNING; k++)
		if (me->keys[k].in_flight && me->keys[k].pushed_ns < since_ns)
			since_ns = me->keys[k].pushed_ns;
	latest_ns = since_ns + worker_limit_ns(me) + WORKER_MOMENT_NS;
	if (!worker_is_gone(me) && now_ns > latest_ns)
		world_fail_late(me->world,
			"rank %u: its call in state %d has waited for %.1f s, and ends neither with "
			"what it waits for nor with an error",
			me->rank, (int)me->state, (double)(now_ns - since_ns) / 1e9);
}

static unsigned worker_do(struct worker *me, uint64_t now_ns)
{
	unsigned work = 0;
	struct err e;
	int rc = 0;

	e.text[0] = '\0'; /* not all of it, at each step */
	if (!worker_is_gone(me) && me->phub->session.state < SESSION_JOINED)
		me->box = me->world->outage.deaths; /* if any, it is this one that answers */
	if (!worker_is_gone(me))
		work = client_progress(me->phub, now_ns);

	if (worker_gives_up(me, now_ns))
		return 1;
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
			worker_begin(me);
			work++;
		}
		break;
	case WORKER_RUNNING:
		rc = client_failure(me->phub)->code;
		if (rc != -ESTALE)
			work += worker_run_rounds(me);
		rc = me->state == WORKER_RUNNING ? client_failure(me->phub)->code : 0;
		if (rc == -ESTALE) {
			worker_rewind(me);
			return work + 1;
		}
		break;
	case WORKER_RESUMING:
		rc = client_resumed(me->phub);
		if (rc == 0) {
			rc = phub_resume(me->phub, 0);
			worker_begin(me);
			work++;
		}
		break;
	case WORKER_LEAVING:
		rc = client_left(me->phub);
		if (rc == 0) {
			me->record->whole = true;
			me->state = WORKER_DONE;
			work++;
		}
		break;
	case WORKER_DONE:
	case WORKER_DEAD:
		break;
	}
	if (rc < 0 && rc != -EAGAIN && worker_is_wrong(me, rc, e.text[0] ? e.text : client_failure(me->phub)->text))
		world_fail(me->world, "rank %u: %d: %s%s", me->rank, rc, e.text, client_failure(me->phub)->text);
	return work;
}

unsigned worker_step(struct worker *me, uint64_t now_ns)
{
	enum worker_state before = me->state;
	unsigned work = worker_do(me, now_ns);

	worker_judge(me, before, now_ns);
	return work;
}
