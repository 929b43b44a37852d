/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the box's Start to lanes that are up, and the way back. The placement comes from the box and is checked; the
 * rest follows from the keys, which both sides have.
 */
#include "client/exchange.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/handshake.h"
#include "transport/seal.h"

#define SETUP_LOOK_NS      1000000ull /* a connection that is being made, of which no fd tells, is looked at this often */
#define SETUP_HANDSHAKE_NS 10000000000ull /* beyond the time after which a peer is lost, for a first handshake */
#define SETUP_REDIAL_NS    100000000ull   /* until a connection that broke is begun anew; then twice that, ... */

enum { SETUP_REDIAL_DOUBLINGS = 4 };
enum { SETUP_CORES_BYTE = 256 }; /* up to so many cores, a placement has one byte a chunk; else two, little-endian */

static uint32_t setup_core(const struct client_session *s, uint32_t chunk)
{
	const uint8_t *at = s->start.core_of_chunk;

	if (s->cores <= SETUP_CORES_BYTE)
		return at[chunk];
	return (uint32_t)at[2 * (size_t)chunk] | (uint32_t)at[2 * (size_t)chunk + 1] << 8;
}

/* Counts the chunks of each core. 0 or -EPROTO. */
static int setup_count(const struct client_session *s, uint32_t chunk_count, uint32_t *counts, struct err *e)
{
	size_t width = s->cores <= SETUP_CORES_BYTE ? 1 : 2;

	if (s->start.core_bytes != width * chunk_count)
		return err_set(e, -EPROTO, "box %s placed %zu chunks, the keys make %" PRIu32, s->box,
			s->start.core_bytes / width, chunk_count);
	for (uint32_t i = 0; i < chunk_count; i++) {
		uint32_t core = setup_core(s, i);

		if (core >= s->cores)
			return err_set(e, -EPROTO, "box %s placed chunk %" PRIu32 " on core %" PRIu32 " of %" PRIu32,
				s->box, i, core, s->cores);
		counts[core]++;
	}
	return 0;
}

/* Makes a lane for each core that has chunks; counts[core] becomes the lane's index. */
static int setup_lanes(struct exchange *x, uint32_t *counts, uint32_t cores, struct err *e)
{
	uint32_t used = 0;

	for (uint32_t core = 0; core < cores; core++)
		used += counts[core] > 0;
	x->lanes = calloc(used, sizeof(*x->lanes));
	if (!x->lanes)
		return err_set(e, -ENOMEM, "no memory for connections to %" PRIu32 " cores", used);
	for (uint32_t core = 0; core < cores; core++) {
		if (counts[core] == 0)
			continue;
		if (lane_init(&x->lanes[x->lane_count], &x->group, core, counts[core]) < 0)
			return err_set(e, -ENOMEM, "no memory for %" PRIu32 " chunks", counts[core]);
		counts[core] = x->lane_count++;
	}
	return 0;
}

/*
 * The round that a chunk of this key begins with. Who comes to a job that runs begins with the weights before the first
 * round that it takes part in, where the box has them; without an optimizer, with what exchange_catch_up() asks for.
 */
static uint64_t setup_round(const struct exchange *x, const struct client_session *s, uint32_t key)
{
	uint64_t first = x->optimizer ? 0 : 1, round;

	if (!s->start.joined)
		return first;
	round = s->start.rounds[s->start.round_count > 1 ? key : 0];
	return round > first ? round - 1 : round;
}

/* Fills the lanes' tables: a chunk's local index is the number of earlier chunks on its core. */
static int setup_flights(
	struct exchange *x, const struct client_session *s, const uint32_t *lane_of_core, struct err *e)
{
	const struct chunk_plan *plan = &x->keyring->plan;
	uint32_t *filled = calloc(x->lane_count, sizeof(*filled));

	x->flights = calloc(plan->chunk_count, sizeof(*x->flights));
	if (!filled || !x->flights) {
		free(filled);
		return err_set(e, -ENOMEM, "no memory for %" PRIu32 " chunks", plan->chunk_count);
	}
	for (uint32_t i = 0; i < plan->chunk_count; i++) {
		uint32_t index = lane_of_core[setup_core(s, i)];
		struct lane *lane = &x->lanes[index];
		uint32_t local = filled[index]++;

		lane->chunks[local] = i;
		lane->spans[local] = (struct span){.offset = plan->chunks[i].offset, .bytes = plan->chunks[i].bytes};
		lane->wires[local] = lane->spans[local];
		lane->wires[local].bytes += x->encrypted ? WIRE_TRAILER_BYTES : 0;
		lane->sinks[local].bytes = lane->wires[local].bytes;
		lane->flights[local] = &x->flights[i];
		x->flights[i].lane = lane;
		x->flights[i].span = &plan->chunks[i];
		x->flights[i].local = local;
		x->flights[i].round = setup_round(x, s, plan->chunks[i].key_first);
	}
	free(filled);
	for (uint32_t i = 0; i < x->keyring->count; i++)
		x->keyring->keys[i].round = (uint32_t)x->flights[x->keyring->keys[i].chunk_first].round - 1;
	return 0;
}

static uint32_t setup_payload_max(const struct lane *lane)
{
	uint32_t max = 0;

	for (uint32_t i = 0; i < lane->count; i++)
		max = lane->wires[i].bytes > max ? lane->wires[i].bytes : max;
	return max;
}

/* Begins the lane's connection. */
static int setup_dial(struct exchange *x, struct lane *lane, struct err *e)
{
	const struct client_session *s = x->session;
	int rc = x->transport->ops->connect(
		x->transport, x->address, s->id, lane->core, s->key, &lane->spec, &lane->conn, e);

	lane->dialled_ns = 0;
	if (rc == 0)
		lane->state = LANE_CONNECTING;
	return rc;
}

static int setup_connect(
	struct exchange *x, const struct client_session *s, const struct transport_ops *ops, struct err *e)
{
	struct transport_config config = s->env->config;
	int rc;

	config.queue_conns_max = x->lane_count;
	rc = ops->open(&config, &x->transport, e);
	if (rc == 0)
		rc = ops->queue_create(x->transport, s->env->node, &x->group.queue, e);
	if (rc < 0)
		return rc;
	x->group.lossy = x->group.queue->lossy;
	for (uint32_t i = 0; i < x->lane_count; i++) {
		struct lane *lane = &x->lanes[i];

		lane->spec = (struct conn_spec){
			.chunk_count = lane->count,
			.spans = lane->wires,
			.sinks = x->group.lossy ? NULL : lane->sinks,
			.payload_max = setup_payload_max(lane),
			.window = s->start.window,
			.queue = x->group.queue,
			.job = s->start.job,
			.rank = s->settings->rank,
			.key = s->key,
			.seal = SEAL_GMAC + (unsigned)s->settings->seal,
			.silent_ns = s->lost_ns,
		};
		rc = setup_dial(x, lane, e);
		if (rc < 0)
			return rc;
		x->connecting++;
	}
	return 0;
}

/* What goes by shared memory does not leave the host; else what the job says. */
static bool setup_encrypts(const struct client_session *s, const struct transport_ops *ops)
{
	return s->settings->encrypt && strcmp(ops->name, "shm") != 0;
}

/* Memory that a device moves is registered with it. */
static int setup_memory(struct exchange *x, struct client_session *s, struct err *e)
{
	const struct transport_ops *ops = x->transport->ops;
	int rc;

	if (x->coded.memory && ops->mem_register) {
		rc = ops->mem_register(x->transport, x->coded.memory, x->coded.bytes, NULL, e);
		if (rc < 0)
			return rc;
	}
	if (!x->encrypted)
		return 0;
	x->sealed.counter = &s->sealed;
	x->sealed.own = s->settings->sync != PHUB_BSP || x->quorum;
	rc = sealed_open(
		&x->sealed, s->key, s->start.data_key, &x->keyring->plan, x->lanes, x->lane_count, s->start.window, e);
	if (rc == 0 && ops->mem_register)
		rc = ops->mem_register(x->transport, x->sealed.memory, x->sealed.bytes, NULL, e);
	return rc;
}

int exchange_init(struct exchange *x, struct keyring *keyring, struct client_session *session,
	const struct transport_ops *ops, const char *address, struct err *e)
{
	uint32_t *counts = calloc(session->cores, sizeof(*counts));
	int rc;

	*x = (struct exchange){
		.keyring = keyring,
		.env = session->env,
		.session = session,
		.address = address,
		.claims = 1,
		.optimizer = session->settings->optimizer != PHUB_NONE,
		.quorum = session->settings->quorum > 0,
		.encrypted = setup_encrypts(session, ops),
		.hyper = session->start.hyper,
		.result_offset = session->start.result_offset,
		.devices = {.copies_max = keyring->count + keyring->plan.chunk_count},
		.who = session->who,
		.group =
			{
				.job = session->start.job,
				.generation = session->generation,
				.epoch = session->start.epoch,
				.rank = session->settings->rank,
			},
	};
	if (!counts)
		return err_set(e, -ENOMEM, "no memory for %" PRIu32 " cores", session->cores);
	rc = setup_count(session, keyring->plan.chunk_count, counts, e);
	if (rc == 0)
		rc = setup_lanes(x, counts, session->cores, e);
	if (rc == 0)
		rc = setup_flights(x, session, counts, e);
	free(counts);
	if (rc == 0)
		rc = coded_open(&x->coded, &keyring->plan, x->flights, e);
	if (rc == 0)
		rc = setup_connect(x, session, ops, e);
	if (rc == 0)
		rc = setup_memory(x, session, e);
	return rc;
}

/* All lanes must see the same memory, or none: a key lies across chunks of several cores. */
static bool setup_agrees(const struct exchange *x, const struct lane *lane)
{
	if ((lane->conn->push != NULL) != (lane->conn->result != NULL))
		return false;
	for (uint32_t i = 0; i < x->lane_count; i++) {
		const struct lane *other = &x->lanes[i];

		if (other->state == LANE_UP && (other->push != (uint8_t *)lane->conn->push ||
						       other->result != (const uint8_t *)lane->conn->result))
			return false;
	}
	return true;
}

/* A handshake is done: into the queue with it. */
static int setup_adopt(struct exchange *x, struct lane *lane, uint32_t window, struct err *e)
{
	int rc;

	if (!setup_agrees(x, lane))
		return err_set(e, -EPROTO,
			"the connection to core %" PRIu32 " of the box maps other memory than its siblings",
			lane->core);
	rc = x->group.queue->ops->adopt(x->group.queue, lane->conn, &lane->spec);
	if (rc < 0)
		return err_set(e, rc, "the connection to core %" PRIu32 " of the box cannot be used: %s", lane->core,
			strerror(-rc));
	lane->conn->user = lane;
	lane->push = lane->conn->push;
	lane->result = lane->conn->result;
	x->mapped = lane->push != NULL;
	x->group.cookies = !x->mapped;
	if (lane_open(lane, window) < 0)
		return err_set(e, -ENOMEM, "no memory for the slots of core %" PRIu32, lane->core);
	return 0;
}

/* One attempt after another, each after a longer pause: a box that knows no better refuses those that come at once. */
static uint64_t setup_pause(struct lane *lane)
{
	uint64_t pause_ns = SETUP_REDIAL_NS
			    << (lane->redials < SETUP_REDIAL_DOUBLINGS ? lane->redials : SETUP_REDIAL_DOUBLINGS);

	if (lane->redials < UINT8_MAX)
		lane->redials++;
	return pause_ns;
}

/* The box hung up on a first attempt, or did not answer it; the error is in `e`. -EAGAIN: there will be another. */
static int setup_again(struct exchange *x, struct lane *lane, int error, uint64_t now_ns, struct err *e)
{
	char why[ERR_TEXT_MAX];

	if (lane->broke_ns == 0)
		lane->broke_ns = now_ns ? now_ns : 1;
	if (now_ns - lane->broke_ns >= x->session->lost_ns) {
		snprintf(why, sizeof(why), "%.300s", e->text);
		return err_set(e, error, "%s, %u times in %.1f s; %s", why, lane->redials + 1u,
			(double)(now_ns - lane->broke_ns) / 1e9,
			handshake_hung_up(error) ? "where too many come from one address at once, the box hangs up on "
						   "them: see its log and its handshake_rate_source"
						 : "see its log");
	}
	lane_rest(lane);
	lane->redial_ns = now_ns + setup_pause(lane);
	return -EAGAIN;
}

/*
 * A handshake that takes longer than this is begun anew, once: what it waits for was not sent, or is of no use. That
 * the box is there, and how it is, the session knows; transports have limits of their own, which are shorter, and say
 * better what is wrong.
 */
static uint64_t setup_overdue(const struct exchange *x, const struct lane *lane)
{
	return lane->dialled_ns + x->session->lost_ns + SETUP_HANDSHAKE_NS;
}

/* May another attempt end better? */
static bool setup_may_again(const struct exchange *x, const struct lane *lane, int error)
{
	if (error == -EALREADY) /* what is left of the last one is in its way */
		return lane->broke_ns > 0;
	return handshake_hung_up(error) && !x->transport->ops->reconnects; /* others try by themselves */
}

/* The next step of a lane that never was up. */
static int setup_step(struct exchange *x, struct lane *lane, uint32_t window, uint64_t now_ns, struct err *e)
{
	bool overdue;
	int rc;

	if (lane->state == LANE_BROKEN) {
		rc = now_ns < lane->redial_ns ? 0 : setup_dial(x, lane, e);
		return rc < 0 ? rc : -EAGAIN;
	}
	if (lane->dialled_ns == 0)
		lane->dialled_ns = now_ns;
	rc = x->transport->ops->established(x->transport, lane->conn, e);
	overdue = rc == -EAGAIN && now_ns >= setup_overdue(x, lane);
	if (overdue)
		rc = err_set(e, -ETIMEDOUT,
			"the box does not answer the handshake of a data connection to its core %" PRIu32, lane->core);
	if (overdue || setup_may_again(x, lane, rc))
		return setup_again(x, lane, rc, now_ns, e);
	if (rc == 0)
		rc = setup_adopt(x, lane, window, e);
	if (rc == 0)
		lane->broke_ns = 0;
	return rc;
}

int exchange_establish(struct exchange *x, uint32_t window, uint64_t now_ns, struct err *e)
{
	for (uint32_t i = 0; i < x->lane_count && x->connecting > 0; i++) {
		struct lane *lane = &x->lanes[i];
		int rc;

		if (lane->state != LANE_CONNECTING && lane->state != LANE_BROKEN)
			continue;
		rc = setup_step(x, lane, window, now_ns, e);
		if (rc < 0 && rc != -EAGAIN)
			return rc;
		x->connecting -= rc == 0;
	}
	return x->connecting ? -EAGAIN : 0;
}

uint64_t exchange_establish_due(const struct exchange *x)
{
	uint64_t due = UINT64_MAX;

	for (uint32_t i = 0; x->connecting > 0 && i < x->lane_count; i++) {
		const struct lane *lane = &x->lanes[i];

		if (lane->state == LANE_BROKEN && lane->redial_ns < due)
			due = lane->redial_ns;
		if (lane->state == LANE_CONNECTING && lane->dialled_ns && setup_overdue(x, lane) < due)
			due = setup_overdue(x, lane);
	}
	return due;
}

int exchange_catch_up(struct exchange *x, struct err *e)
{
	const struct client_start *start = &x->session->start;
	int rc = 0;

	for (uint32_t i = 0; start->joined && !x->optimizer && i < x->keyring->count && rc == 0; i++) {
		struct exchange_round r = {.key = i, .type = WIRE_PULL};

		if (start->rounds[start->round_count > 1 ? i : 0] > 1)
			rc = exchange_begin(x, &r, e);
	}
	return rc;
}

/* ---- connections that broke ---- */

bool exchange_break(struct exchange *x, struct lane *lane, int error, const char *why, uint64_t now_ns)
{
	bool was_up = lane->state == LANE_UP;

	/* Where connections are made but once, one that was never up may still be tried. */
	if (x->given_up || lane->finished || (was_up && !x->transport->ops->reconnects))
		return false;
	if (was_up && now_ns - lane->opened_ns > x->session->lost_ns)
		lane->broke_ns = 0; /* it was good for long: this is another story */
	if (lane->broke_ns == 0) {
		lane->broke_ns = now_ns ? now_ns : 1;
		lane->redials = 0;
	}
	if (now_ns - lane->broke_ns >= x->session->lost_ns)
		return false;
	if (was_up) {
		lane_note(lane, why);
		lane->error = error;
		lane->untold = true;
		x->broken++;
		x->breaks++;
	}
	lane_rest(lane);
	lane->redial_ns = now_ns + setup_pause(lane);
	exchange_settle_lane(x, lane);
	return true;
}

void exchange_broken_there(struct exchange *x, uint32_t core, const char *why, uint64_t now_ns)
{
	for (uint32_t i = 0; i < x->lane_count; i++) {
		struct lane *lane = &x->lanes[i];

		/* One that is being made has taken the place of the one that is meant. */
		if (lane->core != core || lane->state != LANE_UP)
			continue;
		if (!exchange_break(x, lane, -ECONNRESET, why, now_ns))
			exchange_lose(x, lane, -ECONNRESET, why, now_ns);
		lane->untold = false;
	}
}

/* The next step of one lane. 0 when something was done, -EAGAIN, or an error that ended the attempt. */
static int setup_mend(struct exchange *x, struct lane *lane, uint64_t now_ns)
{
	struct err e;
	int rc;

	if (lane->state == LANE_BROKEN)
		return now_ns < lane->redial_ns ? -EAGAIN : setup_dial(x, lane, &e);
	rc = x->transport->ops->established(x->transport, lane->conn, &e);
	if (rc == -EAGAIN)
		lane->redial_ns = now_ns + SETUP_LOOK_NS;
	if (rc == 0)
		rc = setup_adopt(x, lane, x->session->start.window, &e);
	if (rc == 0) {
		lane->opened_ns = now_ns;
		x->broken--;
		x->reconnects++;
	}
	return rc;
}

unsigned exchange_mend(struct exchange *x, uint64_t now_ns)
{
	unsigned count = 0;

	for (uint32_t i = 0; i < x->lane_count && !x->given_up; i++) {
		struct lane *lane = &x->lanes[i];
		int rc;

		if (lane->state != LANE_BROKEN && lane->state != LANE_CONNECTING)
			continue;
		rc = setup_mend(x, lane, now_ns);
		count += rc == 0;
		if (rc == -EAGAIN && now_ns - lane->broke_ns < x->session->lost_ns)
			continue;
		if (rc == 0 || (rc != -EAGAIN && exchange_break(x, lane, lane->error, NULL, now_ns)))
			continue;
		x->broken--;
		exchange_lose(x, lane, lane->error, NULL, now_ns);
	}
	return count;
}

uint64_t exchange_mend_due(const struct exchange *x)
{
	uint64_t due = UINT64_MAX;

	for (uint32_t i = 0; i < x->lane_count; i++) {
		const struct lane *lane = &x->lanes[i];
		uint64_t at = lane->broke_ns + x->session->lost_ns;

		if ((lane->state == LANE_BROKEN || x->transport->soon || x->moved) && lane->redial_ns < at)
			at = lane->redial_ns;
		if ((lane->state == LANE_BROKEN || lane->state == LANE_CONNECTING) && at < due)
			due = at;
	}
	return due;
}

/* ---- to another box ---- */

void exchange_rest(struct exchange *x)
{
	for (uint32_t i = 0; i < x->lane_count; i++) {
		struct lane *lane = &x->lanes[i];

		lane_rest(lane);
		lane->finished = false;
		lane->untold = false;
		exchange_settle_lane(x, lane);
	}
	x->broken = 0;
	x->connecting = 0;
	x->breaks++;
	x->lost_ns = 0;
}

/*
 * Does the round that the chunk collects there follow on what this worker has? One that it has pushed may be done, and
 * is answered again; so may be all that a quorum closes without it, and those before a worker that comes takes part.
 */
static bool setup_follows(const struct exchange *x, const struct flight *f, uint64_t there)
{
	uint64_t mine = f->state == FLIGHT_LANDED ? f->round + 1 : f->round;

	if (there == mine || (x->quorum && there > mine))
		return true;
	return there == mine + 1 && (f->state == FLIGHT_SENT || x->session->start.joined);
}

static int setup_check_move(const struct exchange *x, struct err *e)
{
	const struct client_session *s = x->session;
	const struct chunk_plan *plan = &x->keyring->plan;

	if (s->start.core_bytes != (s->cores <= SETUP_CORES_BYTE ? 1u : 2u) * (size_t)plan->chunk_count)
		return err_set(e, -EPROTO, "it placed %zu bytes of chunks, the keys make %" PRIu32, s->start.core_bytes,
			plan->chunk_count);
	for (uint32_t i = 0; i < plan->chunk_count; i++) {
		const struct flight *f = &x->flights[i];

		if (setup_core(s, i) != f->lane->core)
			return err_set(e, -EPROTO, "it has chunk %" PRIu32 " on core %" PRIu32 ", not %" PRIu32, i,
				setup_core(s, i), f->lane->core);
		if (!setup_follows(x, f, s->start.chunk_rounds[i]))
			return err_set(e, -EPROTO,
				"its chunk %" PRIu32 " is at round %" PRIu64 ", this worker's at %" PRIu64, i,
				s->start.chunk_rounds[i], f->round);
	}
	return 0;
}

int exchange_move(struct exchange *x, uint64_t now_ns, struct err *e)
{
	const struct client_session *s = x->session;
	int rc = setup_check_move(x, e);

	if (rc < 0)
		return rc;
	if (x->encrypted && sealed_move(&x->sealed, s->key, s->start.data_key, x->lanes, x->lane_count) < 0)
		return err_set(e, -EIO, "libcrypto takes no key");
	x->group.job = s->start.job;
	x->group.generation = s->generation;
	x->group.epoch = s->start.epoch;
	for (uint32_t i = 0; i < x->lane_count; i++) {
		struct lane *lane = &x->lanes[i];

		lane->epoch = s->start.epoch;
		lane->spec.job = s->start.job;
		lane->spec.window = s->start.window;
		lane->spec.silent_ns = s->lost_ns;
		lane->broke_ns = now_ns ? now_ns : 1;
		lane->redial_ns = now_ns;
		lane->redials = 0;
	}
	x->broken = x->lane_count;
	x->moved = true;
	return 0;
}

/* ---- the end ---- */

void exchange_give_up(struct exchange *x)
{
	x->given_up = true;
	devices_drain(&x->devices);
	for (uint32_t i = 0; i < x->lane_count; i++) {
		struct lane *lane = &x->lanes[i];

		lane->heap_count = 0;
		lane->sent_oldest = FLIGHT_NONE;
		lane->sent_newest = FLIGHT_NONE;
		for (uint32_t k = 0; k < lane->count; k++)
			lane->sinks[k].addr = NULL;
	}
	for (uint32_t i = 0; x->flights && i < x->keyring->plan.chunk_count; i++) {
		x->flights[i].copies = 0;
		x->flights[i].gathered = 0;
	}
	for (uint32_t i = 0; i < x->keyring->count && x->open_keys > 0; i++) {
		if (exchange_is_open(x, &x->keyring->keys[i]))
			exchange_give_up_key(x, &x->keyring->keys[i]);
	}
}

void exchange_drop(struct exchange *x)
{
	exchange_give_up(x);
	for (uint32_t i = 0; i < x->lane_count; i++)
		lane_drop(&x->lanes[i]);
}

void exchange_unpin(struct exchange *x)
{
	devices_unpin(&x->devices);
}

void exchange_fini(struct exchange *x)
{
	struct transport *t = exchange_detach(x);

	if (t)
		t->ops->close(t);
}

struct transport *exchange_detach(struct exchange *x)
{
	struct transport *t = x->transport;

	if (!x->keyring)
		return NULL;
	exchange_drop(x);
	devices_fini(&x->devices);
	for (uint32_t i = 0; i < x->lane_count; i++)
		lane_fini(&x->lanes[i]);
	if (x->group.queue)
		x->transport->ops->queue_destroy(x->transport, x->group.queue);
	sealed_close(&x->sealed);
	coded_close(&x->coded);
	free(x->lanes);
	free(x->flights);
	memset(x, 0, sizeof(*x));
	return t;
}
