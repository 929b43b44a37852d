/* SPDX-License-Identifier: Apache-2.0 */
/* The box and its workers in turn, time between them, and what goes wrong for them. */
#include "tests/sim/world.h"

#include "aggregation/dispatch.h"
#include "phub/base/log.h"
#include "phub/control/job.h"
#include "phub/control/keeper.h"
#include "phub/control/peers_move.h"
#include "tests/sim/replay.h"
#include "tests/sim/rest.h"
#include "tests/sim/worker.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum {
	STEPS_MAX = 2000000,
	WORLD_MEMORY_MIN = 1 << 20,
	WORLD_CHUNK_EXTRA = 1024,  /* what a box takes besides data: for a chunk, */
	WORLD_CORE_EXTRA = 14336,  /* for a core that has some, */
	WORLD_TABLE_EXTRA = 30000, /* and for the names of all; */
	WORLD_PAGE = 4096,         /* on which each sum begins */
	WORLD_BREAK_STEPS = 40,    /* one in so many turns */
	WORLD_CUT_NS_MAX = 300000000
};
#define WORLD_DEAF_NS_MAX (20ull * 1000000000ull)
#define WORLD_DEADLINE_NS (240ull * 1000000000ull)
#define WORLD_AGAIN_NS    (240ull * 1000000000ull) /* where jobs come again */

const struct transport_ops *const *world_transports(const struct world *w)
{
	static const struct transport_ops *const messages[] = {&transport_loop, NULL};
	static const struct transport_ops *const datagrams[] = {&transport_loop_datagram, NULL};

	return w->plan->datagrams ? datagrams : messages;
}

bool world_starts;

void world_count_handle(struct world *w, const phub_t *phub)
{
	struct phub_stats stats;

	client_stats(phub, &stats);
	w->result->reconnects += stats.reconnects;
	w->result->moves += stats.moves;
	w->result->coded += stats.coded_pushes + stats.coded_results;
}

void world_fail(struct world *w, const char *format, ...)
{
	va_list arguments;

	if (w->failed)
		return;
	w->failed = true;
	va_start(arguments, format);
	vsnprintf(w->result->text, sizeof(w->result->text), format, arguments);
	va_end(arguments);
}

void world_fail_late(struct world *w, const char *format, ...)
{
	va_list arguments;
	char text[sizeof(w->result->text)];

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	w->overdue = !w->failed;
	world_fail(w, "%s", text);
}

/* A trace is one stream in virtual time: what is logged stands between the messages that it comes of. */
static void world_log(void *arg, enum log_level level, const char *line)
{
	const struct world *w = arg;

	fprintf(w->trace, "%12llu %s: %s\n", (unsigned long long)loop_net_now(w->net),
		level == LOG_LEVEL_ERROR  ? "error"
		: level == LOG_LEVEL_WARN ? "warn"
					  : "info",
		line);
}

/* ---- memory ---- */

/*
 * What one job of the plan may take of a box: results (for each rank where these differ, once more where they are
 * sealed), sums, staging, weights and state, what waits for the standby, and what is written down of all that.
 */
static uint64_t world_job_bytes(const struct world *w)
{
	const struct world_plan *plan = w->plan;
	const struct chunk_plan *chunks = &w->census.chunks;
	bool rows = plan->sync != SYNC_BSP || plan->quorum > 0;
	uint64_t bytes = 0, elements = 0, most = 0, sums, cores, sealed = plan->encrypt ? 2 : 1;
	unsigned states = plan->optimizer == OPTIMIZER_NONE ? 0 : 1 + optimizer_state_count(plan->optimizer);

	for (uint32_t i = 0; i < chunks->chunk_count; i++) {
		uint64_t count = chunks->chunks[i].bytes / dtype_size((enum dtype)chunks->chunks[i].dtype);

		bytes += chunks->chunks[i].bytes;
		elements += count;
		most = count > most ? count : most;
	}
	bytes *= (rows ? plan->workers : 1) * sealed;
	sums = (4 * most + WORLD_PAGE - 1) / WORLD_PAGE * WORLD_PAGE * chunks->chunk_count;
	bytes += 4 * states * elements + sums;
	bytes += plan->reproducible ? 4 * most * chunks->chunk_count * (plan->workers - 1) : 0;
	bytes += world_plan_twins(plan) ? sums * sealed : 0;
	bytes += rows ? 0 : chunks->sparse_bytes;                                      /* results as they are coded */
	cores = chunks->chunk_count < plan->cores ? chunks->chunk_count : plan->cores; /* that have one */
	bytes += 4 * most * cores; /* to write the sum of one, in its own type */
	bytes += cores *
		 (plan->sync != SYNC_BSP ? 3 * WORLD_CORE_EXTRA : WORLD_CORE_EXTRA); /* hyper-parameters of each rank */
	bytes += WORLD_CHUNK_EXTRA * chunks->chunk_count + WORLD_TABLE_EXTRA;
	return bytes + bytes / 16;
}

/* One that was lost may not be gone when it comes again; a copy for a checkpoint, or of another box's job, is as much.
 */
static uint64_t world_bound(const struct world *w)
{
	uint64_t bytes = world_job_bytes(w), guest = w->guest ? world_job_bytes(w->guest) : 0;

	return guest + (world_plan_dies(w->plan) || world_plan_twins(w->plan) ? 2 * bytes + bytes / 4 : bytes);
}

static uint64_t world_kept(const struct keeper *k, const struct generation *running)
{
	return k->counted + (k->into && k->into != running ? k->into->memory : 0);
}

/* What jobs say that they have, and checkpoints that are still written of those that are over. */
static uint64_t world_counted(const struct control *c)
{
	uint64_t bytes = 0;

	for (const struct job *job = c->jobs; job; job = job->next) {
		bytes += job->generation ? job->generation->memory : 0;
		bytes += job->keeper ? world_kept(job->keeper, job->generation) : 0;
	}
	for (const struct keeper *k = c->keepers; k; k = k->next)
		bytes += world_kept(k, NULL);
	return bytes;
}

static void world_weigh(struct world *w, const struct box *box)
{
	uint64_t used = box->control.memory_used, counted = world_counted(&box->control);

	if (used > world_bound(w))
		world_fail(w, "the box took %llu bytes, and %llu are enough", (unsigned long long)used,
			(unsigned long long)world_bound(w));
	if (used != counted)
		world_fail(w, "%llu bytes of the box are taken, and its jobs have %llu", (unsigned long long)used,
			(unsigned long long)counted);
	for (const struct job *job = box->control.jobs; job; job = job->next)
		if (job->generation && job->generation->store.bytes > job->generation->memory)
			world_fail(w, "a job has %llu bytes, and %llu are counted",
				(unsigned long long)job->generation->store.bytes,
				(unsigned long long)job->generation->memory);
}

/* All the boxes that somebody may still use. */
static void world_weigh_all(struct world *w)
{
	if (w->box)
		world_weigh(w, w->box);
	if (w->twin.box)
		world_weigh(w, w->twin.box);
	for (unsigned i = 0; i < w->below.count; i++)
		if (w->below.boxes[i].box)
			world_weigh(w, w->below.boxes[i].box);
}

/* No job is left: all is given back. */
static void world_weigh_last(struct world *w, const struct box *box)
{
	const struct control *c = &box->control;

	if (!c->jobs && !c->keepers && (c->memory_used || c->table_bytes))
		world_fail(w, "no job is left, and %llu bytes are taken, and %llu for tables",
			(unsigned long long)c->memory_used, (unsigned long long)c->table_bytes);
}

/* ---- the world ---- */

static int world_accept(void *arg, struct stream **out)
{
	return loop_stream_accept(((struct world *)arg)->listener, out);
}

static int world_set(struct config *config, const char *name, uint64_t value, struct err *e)
{
	char text[64];

	snprintf(text, sizeof(text), "%s=%llu", name, (unsigned long long)value);
	return config_set(config, text, e);
}

int world_configure_targets(const struct world_plan *plan, struct config *config, struct err *e)
{
	char targets[] = "checkpoint_targets=/0,/1,/2,/3,/4,/5"; /* STORAGE_TARGETS_MAX */
	int rc;

	targets[strlen(targets) - 3 * (STORAGE_TARGETS_MAX - plan->disk.targets)] = '\0';
	rc = config_set(config, targets, e);
	if (rc == 0)
		rc = world_set(config, "checkpoint_parity", plan->parity, e);
	if (rc == 0)
		rc = world_set(config, "checkpoint_keep", plan->keep, e);
	if (rc == 0)
		rc = world_set(config, "checkpoint_every", plan->every, e);
	if (rc == 0 && plan->rate)
		rc = world_set(config, "checkpoint_rate", plan->rate, e);
	return rc;
}

static int world_configure(struct world *w, struct err *e)
{
	static const char *const encrypted[] = {"create=secret", "create_secret_env=PHUB_SIM_SECRET", NULL};
	int rc;

	config_init(&w->config);
	rc = world_set(&w->config, "cores", w->plan->cores, e);
	if (rc == 0)
		rc = world_set(&w->config, "window", w->plan->window, e);
	if (w->plan->encrypt)
		setenv("PHUB_SIM_SECRET", WORLD_SECRET, 1);
	for (const char *const *more = encrypted; rc == 0 && w->plan->encrypt && *more; more++)
		rc = config_set(&w->config, *more, e);
	if (rc == 0 && world_plan_dies(w->plan))
		rc = world_configure_targets(w->plan, &w->config, e);
	if (rc == 0)
		rc = twin_configure(w, e);
	if (rc == 0)
		rc = below_configure(w, e);
	lease_init(w);
	promote_init(w);
	if (rc == 0)
		rc = config_finish(&w->config, e);
	if (rc == 0 && world_plan_promotes(w->plan)) /* as a rack file would say */
		snprintf(w->config.sibling, sizeof(w->config.sibling), "%s:%d", w->below.boxes[w->plan->heir - 1].name,
			WORLD_CONTROL_PORT);
	return rc;
}

int world_open_box(struct world *w, struct err *e)
{
	struct box_env env = {
		.transports = world_transports(w),
		.transport_count = 1,
		.loop = loop_net_host(w->net, WORLD_BOX_HOST),
		.accept = world_accept,
		.accept_arg = w,
		.by_hand = true,
		.disk = w->outage.storage ? storage_disk(w->outage.storage, 0) : NULL,
		.plant = w->plan->bug,
	};
	char text[64];
	int rc = loop_stream_listen(loop_net_host(w->net, WORLD_BOX_HOST), WORLD_CONTROL_PORT, &w->listener);

	if (rc == 0)
		rc = twin_open(w, &env, e);
	below_prepare(w, &env);
	if (rc == 0)
		rc = dispatch_from_env(&env.kernels, text, sizeof(text));
	if (rc == 0)
		rc = box_create(&w->config, &env, loop_net_now(w->net), &w->box, e);
	if (rc == 0 && world_plan_promotes(w->plan))
		rc = promote_begin(w, 0, w->box, e);
	if (rc == 0 && w->outage.deaths == 0)
		rc = below_open(w, &env, e);
	for (unsigned core = 0; rc == 0 && w->plan->sync != SYNC_BSP && core < w->box->core_count; core++)
		rc = trace_init(&w->box->cores[core]->trace, 1 << 14);
	return rc;
}

static int world_open_worker(struct world *w, unsigned rank, unsigned life, struct err *e)
{
	struct worker *me = &w->workers[rank];
	bool moves = life > 0 && (oracle_random(&w->random) % 2 || w->plan->below); /* to another host */

	*me = (struct worker){.world = w,
		.record = &w->lives[rank][life],
		.rank = rank,
		.life = life,
		.rack = below_choose(w, rank, life),
		.host = life > 0 && !moves ? me->host
					   : loop_net_host(w->net, w->first_host + rank + life * WORLD_WORKERS_MAX),
		.random = w->plan->seed * 64 + rank + life * 1000};
	below_house(w, me);
	loop_net_revive(w->net, me->host->endpoint); /* this life may have died there before it took part */
	return worker_open(me, e);
}

/*
 * A push that is repeated for a new membership may be read while the result of the first one is written over it, or the
 * first one while that of the repetition is: the round is committed then, and the box takes no push of it any more.
 * What was sent once must stay as it is, and so must results.
 */
static bool world_relies(void *arg, unsigned endpoint, const void *cookie, const struct wire_header *header)
{
	const struct world *w = arg;
	const struct flight *f = cookie;

	if (endpoint == WORLD_BOX_HOST || endpoint >= BELOW_HOST || !f)
		return true;
	for (unsigned rank = 0; rank < w->plan->workers; rank++)
		if (w->workers[rank].host->endpoint == endpoint && worker_repeats(&w->workers[rank], f))
			return false;
	return f->round == header->round && f->state != FLIGHT_LANDED;
}

/* Its keys, what they must be, and what is known of its chunks. */
static int world_open_books(struct world *w)
{
	struct oracle_key *keys[WORLD_KEYS_MAX];
	int rc = 0;

	for (unsigned k = 0; rc == 0 && k < w->plan->key_count; k++) {
		struct history *h = &w->histories[k];

		rc = oracle_key_init(&w->oracle, &h->key, k, w->plan->elements[k], w->plan->dtypes[k]);
		h->results = calloc(w->plan->rounds + 2, sizeof(void *));
		h->exacts = calloc(w->plan->rounds + 2, sizeof(double *));
		keys[k] = &h->key;
	}
	return rc < 0 ? rc : census_init(&w->census, w->plan, &w->oracle, keys);
}

static int world_open(struct world *w, struct err *e)
{
	struct world *guest = w->guest;
	int rc;

	w->net = loop_net_create(&w->plan->net);
	if (!w->net)
		return err_set(e, -ENOMEM, "no net");
	loop_net_trace(w->net, w->trace);
	if (w->trace)
		log_set_sink(world_log, w);
	if (w->plan->deaths || (w->plan->below && world_plan_varies(w->plan)))
		loop_net_relies(w->net, world_relies, w);
	world_starts = true;
	rc = world_configure(w, e);
	world_starts = false;
	if (rc == 0)
		rc = outage_init(w);
	if (rc == 0)
		rc = world_open_box(w, e);
	if (rc == 0)
		rc = world_open_books(w);
	if (rc == 0 && guest)
		rc = world_open_books(guest);
	if (rc == 0) /* the box must make do with what its job needs; its option has a least */
		w->config.memory_max = world_bound(w) > WORLD_MEMORY_MIN ? world_bound(w) : WORLD_MEMORY_MIN;
	w->twin.config.memory_max = w->config.memory_max;
	for (unsigned i = 0; i < w->below.count; i++)
		w->below.boxes[i].config.memory_max = w->config.memory_max;
	fate_init(&w->fate, w->plan);
	for (unsigned rank = 0; rc == 0 && rank < w->plan->workers; rank++)
		rc = world_open_worker(w, rank, 0, e);
	if (guest)
		guest->net = w->net;
	for (unsigned rank = 0; rc == 0 && guest && rank < guest->plan->workers; rank++)
		rc = world_open_worker(guest, rank, 0, e);
	return rc;
}

/* All workers, of both jobs: NULL behind the last. */
static struct worker *world_worker(struct world *w, unsigned i)
{
	if (i < w->plan->workers)
		return &w->workers[i];
	i -= w->plan->workers;
	return w->guest && i < w->guest->plan->workers ? &w->guest->workers[i] : NULL;
}

/* The net learns when queues want to be polled although nothing comes: they have timers of their own. */
static void world_arm(struct world *w)
{
	const struct worker *me;

	for (unsigned i = 0; w->box && i < w->box->core_count; i++)
		for (unsigned j = 0; j < w->box->cores[i]->queue_count; j++)
			w->box->cores[i]->queues[j]->ops->arm(w->box->cores[i]->queues[j]);
	for (unsigned i = 0; (me = world_worker(w, i)); i++)
		if (!worker_is_gone(me) && me->phub->running)
			me->phub->exchange.group.queue->ops->arm(me->phub->exchange.group.queue);
}

/* Moves time to whatever comes next. False when nothing will ever come. */
static bool world_advance(struct world *w)
{
	uint64_t next, due = w->box && !lease_rests(w, w->box) ? box_next(w->box) : UINT64_MAX;
	bool rests = rest_due(w) != UINT64_MAX; /* and what is due there, or soon, is not done */
	const struct worker *me;

	world_arm(w);
	next = loop_net_next(w->net);
	next = w->cut && w->heals_ns < next ? w->heals_ns : next;
	next = due < next ? due : next;
	due = twin_due(w);
	next = due < next ? due : next;
	due = below_due(w);
	next = due < next ? due : next;
	due = lease_due(w);
	next = due < next ? due : next;
	due = rest_due(w);
	next = due < next ? due : next;
	due = fate_due(&w->fate);
	next = due < next ? due : next;
	due = promote_due(w);
	next = due < next ? due : next;
	due = outage_due(w);
	next = due < next ? due : next;
	for (unsigned i = 0; (me = world_worker(w, i)); i++) {
		if (worker_is_gone(me))
			continue;
		due = worker_due(me);
		next = due < next ? due : next;
	}
	if (next == UINT64_MAX)
		return false;
	if (next <= loop_net_now(w->net) || (rests && next < loop_net_now(w->net) + 1000))
		next = loop_net_now(w->net) + 1000;
	loop_net_advance(w->net, next);
	return true;
}

static void world_cut(struct world *w, const struct worker *me, uint64_t ns_max)
{
	w->cut = me->host->endpoint;
	w->cut_host = w->box_host;
	w->heals_ns = loop_net_now(w->net) + oracle_random(&w->random) % ns_max;
}

unsigned world_endpoint(const struct world *w, const char *host)
{
	return strcmp(host, "twin") == 0 ? TWIN_HOST : below_endpoint(w, host);
}

void world_heal(struct world *w)
{
	if (!w->cut)
		return;
	loop_net_partition(w->net, w->cut_host, w->cut, false);
	loop_net_partition_streams(w->net, w->cut_host, w->cut, false);
	w->cut = 0;
}

/* Now and then, while rounds run, the connections of some worker break. */
static void world_break(struct world *w)
{
	struct worker *me;

	if (w->cut && w->heals_ns <= loop_net_now(w->net))
		world_heal(w);
	if (!w->box || w->cut || w->twin.state == TWIN_CUT || w->breaks == w->plan->breaks ||
		oracle_random(&w->random) % WORLD_BREAK_STEPS)
		return;
	me = &w->workers[oracle_random(&w->random) % w->plan->workers];
	if (me->state != WORKER_RUNNING)
		return;
	if (w->plan->mangled && oracle_random(&w->random) % 2) {
		world_cut(w, me, WORLD_DEAF_NS_MAX);
		w->deafened++;
		loop_net_partition_streams(w->net, w->cut_host, w->cut, true);
	} else if (w->plan->datagrams) { /* do not break, but all that is sent for a while may be lost */
		world_cut(w, me, WORLD_CUT_NS_MAX);
		loop_net_partition(w->net, w->cut_host, w->cut, true);
	} else {
		loop_net_break(w->net, w->below.count ? below_endpoint(w, me->phub->session.at.host) : w->box_host,
			me->host->endpoint);
	}
	w->breaks++;
}

/* ---- deaths and replacements ---- */

struct job *world_job(const struct world *w)
{
	uint64_t epoch;
	struct box *box = world_plan_leases(w->plan)     ? lease_root(w, &epoch)
			  : world_plan_promotes(w->plan) ? promote_root(w, &epoch)
							 : w->box;
	struct job *job = box ? box->control.jobs : NULL;

	while (job && (job->state == JOB_ENDING || job->started == 0 || strcmp(job->name, w->job) != 0))
		job = job->next;
	return job;
}

/* Does somebody wait for the job to come again, or will? */
static bool world_hopes(const struct world *w)
{
	bool hopes = fate_due(&w->fate) != UINT64_MAX || !w->box;

	for (unsigned i = 0; i < w->plan->workers; i++)
		hopes = hopes || w->workers[i].state == WORKER_RUNNING || w->workers[i].state == WORKER_RESUMING ||
			(w->workers[i].state == WORKER_STARTING && w->workers[i].life == 0);
	return hopes && world_plan_resumes(w->plan);
}

/* Who comes when the job is over stays alone, and gives up. */
static void world_give_up(struct worker *me)
{
	if (me->life == 0 || (me->state != WORKER_JOINING && me->state != WORKER_STARTING))
		return;
	worker_kill(me);
	me->state = WORKER_DONE;
}

/* Returns how many died or came. */
static unsigned world_fate(struct world *w)
{
	const struct job *job = world_job(w);
	bool comes = !job && world_hopes(w);
	unsigned alive = 0;
	struct err e = {0};
	int rank = -1;

	if (fate_due(&w->fate) == UINT64_MAX &&
		(w->plan->deaths + w->result->died == 0 || (!job && w->result->died + w->result->box_died == 0)))
		return 0;
	for (unsigned i = 0; i < w->plan->workers; i++) {
		if (!job && !comes)
			world_give_up(&w->workers[i]);
		alive |= (unsigned)!worker_is_gone(&w->workers[i]) << i;
	}
	if (job || comes)
		rank = fate_strike(&w->fate, alive,
			!job || job->state != JOB_RUNNING ? FATE_LACKS
			: job->change || peers_moves(job) ? FATE_CHANGES
							  : FATE_RUNS,
			loop_net_now(w->net));
	if (rank >= 0) {
		worker_kill(&w->workers[rank]);
		w->result->died++;
		return 1;
	}
	rank = fate_return(&w->fate, loop_net_now(w->net));
	if (rank < 0)
		return 0;
	w->result->came++;
	if (world_open_worker(w, (unsigned)rank, w->fate.ranks[rank].life, &e) < 0)
		world_fail(w, "rank %d: no replacement: %s", rank, e.text);
	return 1;
}

/* Nobody is left, and nobody will come to others. */
static bool world_is_over(struct world *w)
{
	const struct worker *me;

	for (unsigned i = 0; (me = world_worker(w, i)); i++)
		if (!worker_is_gone(me))
			return false;
	return true;
}

/* What goes wrong for the second job goes wrong for this world. */
static void world_hear_guest(struct world *w)
{
	if (w->guest && w->guest->failed && w->guest->overdue)
		world_fail_late(w, "the second job: %s", w->guest->result->text);
	else if (w->guest && w->guest->failed)
		world_fail(w, "the second job: %s", w->guest->result->text);
}

static void world_turn(struct world *w)
{
	uint64_t deadline_ns = world_plan_repeats(w->plan) ? WORLD_AGAIN_NS : WORLD_DEADLINE_NS;

	for (unsigned steps = 0; !w->failed; steps++) {
		uint64_t now_ns = loop_net_now(w->net);
		unsigned work = w->box ? lease_turn(w, w->box, now_ns) : 0;
		struct worker *me;

		world_weigh_all(w);
		for (unsigned i = 0; (me = world_worker(w, i)) && !w->failed; i++)
			work += worker_step(me, now_ns);
		world_hear_guest(w);
		if (world_is_over(w))
			return;
		work += world_fate(w);
		work += twin_step(w, now_ns);
		work += below_step(w, now_ns);
		work += lease_step(w, now_ns);
		work += outage_step(w);
		world_break(w);
		if (work == 0 && !world_advance(w))
			world_fail_late(w, "deadlock: nothing is on the way and nobody is waiting for time");
		if (steps == STEPS_MAX || now_ns > deadline_ns)
			world_fail_late(
				w, "not done after %u steps and %.1f virtual seconds", steps, (double)now_ns / 1e9);
	}
}

static bool world_is_settled(struct world *w)
{
	bool root = w->box ? !w->box->control.jobs && !w->box->control.keepers : w->homes.dead & 1;

	return root && !twin_settled(w) && !below_settled(w);
}

/* Lets the box take the job down, or come back first, so that its books can be looked at. */
static void world_settle(struct world *w)
{
	fate_end(&w->fate);
	world_heal(w);
	lease_heal(w);
	promote_heal(w);
	w->awake = true;
	for (unsigned i = 0; i < 40000 && !world_is_settled(w) && !w->failed; i++) {
		uint64_t now_ns = loop_net_now(w->net);
		unsigned work = w->box ? lease_turn(w, w->box, now_ns) : outage_step(w);

		work += twin_step(w, now_ns) + below_step(w, now_ns) + lease_step(w, now_ns);
		if (work == 0 && !world_advance(w))
			break;
	}
	if (!w->box && !(w->homes.dead & 1)) {
		world_fail(w, "the box did not come back");
		return;
	}
	if (w->box)
		world_weigh_last(w, w->box);
	if (w->twin.box && !w->twin.dead)
		world_weigh_last(w, w->twin.box);
	for (unsigned i = 0; i < w->below.count; i++)
		if (w->below.boxes[i].box)
			world_weigh_last(w, w->below.boxes[i].box);
	if (w->box && w->box->control.jobs)
		world_fail(w, "the job did not end after its workers had left (%.3f s)",
			(double)loop_net_now(w->net) / 1e9);
	if (twin_settled(w))
		world_fail(w, "after all workers had left there is %s", twin_settled(w));
	if (below_settled(w))
		world_fail(w, "after all workers had left there is %s", below_settled(w));
	if (w->box && !box_balanced(w->box))
		world_fail(w, "slots, replies or credits do not balance");
	if (loop_net_stats(w->net)->torn)
		world_fail(w, "payloads were changed while they were read");
}

static void world_replay(struct world *w)
{
	struct replay *r = calloc(1, sizeof(*r));

	r->plan = w->plan;
	r->oracle = &w->oracle;
	r->hyper = world_plan_hyper(w->plan, 0);
	r->lives = w->lives;
	for (unsigned k = 0; k < w->plan->key_count; k++)
		r->keys[k] = &w->histories[k].key;
	for (unsigned core = 0; core < w->box->core_count && !w->failed; core++) {
		int64_t compared = replay_core(r, &w->box->cores[core]->trace);

		if (compared < 0)
			world_fail(w, "%s", r->text);
		else
			w->result->rounds_checked += (uint64_t)compared;
	}
	free(r);
}

static void world_count(struct world *w)
{
	if (!census_check(&w->census))
		world_fail(w, "%s", w->census.text);
	w->result->judged = w->census.judged;
	w->result->given_up = w->census.given_up;
}

/* Somebody waits in vain: for what was committed without him? */
static void world_explain(struct world *w)
{
	w->census.overdue = w->overdue;
	if (!w->overdue || !world_plan_varies(w->plan) || w->plan->sync != SYNC_BSP || census_check(&w->census))
		return;
	snprintf(w->result->text, sizeof(w->result->text), "%s", w->census.text);
}

/* What a job had, when the box has it no more. */
static void world_close_books(struct world *w)
{
	census_close(&w->census);
	replay_forget(w->lives);
	for (unsigned k = 0; k < w->plan->key_count; k++) {
		for (uint64_t i = 0; i < w->histories[k].rounds; i++) {
			free(w->histories[k].results[i]);
			free(w->histories[k].exacts[i]);
		}
		free(w->histories[k].results);
		free(w->histories[k].exacts);
		oracle_key_fini(&w->histories[k].key);
	}
}

static void world_close(struct world *w)
{
	struct worker *me;

	for (unsigned i = 0; (me = world_worker(w, i)); i++)
		if (me->world)
			worker_fini(me);
	if (w->box)
		box_destroy(w->box, loop_net_now(w->net));
	twin_close(w);
	below_close(w);
	outage_fini(w);
	config_fini(&w->config);
	world_close_books(w);
	if (w->guest) {
		world_close_books(w->guest);
		w->result->guests = 1;
		w->result->guest_rounds = w->guest->result->rounds_checked;
	}
	if (w->listener)
		loop_stream_unlisten(w->listener);
	if (w->trace)
		log_set_sink(NULL, NULL);
	below_tell(w);
	w->result->net = *loop_net_stats(w->net);
	w->result->virtual_ns = loop_net_now(w->net);
	loop_net_destroy(w->net);
}

/* Nothing is there yet but what it is to be. */
static struct world *world_create(
	const struct world_plan *plan, const char *job, unsigned first_host, struct world_result *result)
{
	struct world *w = calloc(1, sizeof(*w));

	*result = (struct world_result){0};
	w->plan = plan;
	w->job = job;
	w->first_host = first_host;
	w->result = result;
	w->random = plan->seed + 1;
	w->oracle = (struct oracle){.seed = plan->seed,
		.world = plan->workers,
		.values = plan->values,
		.optimizer = plan->optimizer,
		.mean = plan->mean};
	for (unsigned k = 0; k < plan->key_count; k++)
		w->oracle.sparse |= (uint32_t)plan->sparse[k] << k;
	return w;
}

int world_run(const struct world_plan *plan, FILE *trace, struct world_result *result)
{
	struct world *w = world_create(plan, "sim", WORLD_BOX_HOST + 1, result);
	struct world_plan guest;
	struct world_result guest_result;
	struct err e = {0};
	int rc;

	w->trace = trace;
	if (world_plan_shares(plan)) {
		world_plan_guest(plan, &guest);
		w->guest = world_create(&guest, "guest", WORLD_GUEST_HOST, &guest_result);
	}
	rc = world_open(w, &e);
	if (rc < 0) {
		world_fail(w, "cannot set up: %d: %s", rc, e.text);
	} else {
		world_turn(w);
		world_explain(w);
		if (!w->failed && plan->sync != SYNC_BSP)
			world_replay(w);
		if (!w->failed && world_plan_varies(plan) && plan->sync == SYNC_BSP)
			world_count(w);
		if (!w->failed)
			world_settle(w);
	}
	world_close(w);
	rc = w->failed ? -1 : 0;
	free(w->guest);
	free(w);
	return rc;
}
