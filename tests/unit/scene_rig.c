/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/scene_rig.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "phub/base/crc.h"
#include "tests/unit/cmocka_shim.h"
#include "topology/ways.h"

/* ---- played boxes ---- */

struct call_peer above, beside[BOXES];
const char *upper_names;
static uint32_t scene_world;

static int played_open(void *ctx, const struct call_target *target, struct call_peer **out, struct err *e)
{
	unsigned number = target->port - REHOME_PORT;
	struct call_peer *p = !target->peer ? &above : &beside[number < BOXES ? number : 0];

	assert_string_equal(target->what, "uplink");
	assert_int_equal(target->below, scene_world);
	snprintf(p->called + strlen(p->called), sizeof(p->called) - strlen(p->called), "%s>=%" PRIu64 " ", target->host,
		target->least);
	p->silent = p->answers[0] && !strstr(p->answers, target->host);
	p->promotable = strstr(p->heirs, target->host) != NULL;
	p->reaches = strstr(p->knows, target->host) != NULL;
	p->opened++;
	p->hear = target->hear;
	p->arg = target->arg;
	*out = p;
	return 0;
}

static int played_refuse(struct call_peer *p, const char *text, struct err *e)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Error error = PHUB__ERROR__INIT;

	error.code = ERROR_OF(BUSY);
	error.text = (char *)(uintptr_t)text;
	error.promotable = p->promotable;
	error.reaches = p->reaches;
	control.message_case = PHUB__CONTROL__MESSAGE_ERROR;
	control.error = &error;
	p->hear(p->arg, &control);
	return err_set(e, -EBUSY, "%s", text);
}

static int played_step(struct call_peer *p, uint64_t now_ns, struct err *e)
{
	if (p->busy && p->busy--)
		return played_refuse(p, "job 'wide': the session before has not ended", e);
	if (p->lost)
		return err_set(e, p->lost, "box 10.9.9.9:1 cannot be reached: its cable is out");
	if (p->silent && (p->promotable || p->reaches))
		return played_refuse(p, "it is no root", e);
	if (p->silent)
		return err_set(e, -ECONNREFUSED, "nobody is there");
	return !p->undecided;
}

static void played_note_step(struct call_peer *p, const Phub__Rehome *m)
{
	p->said++;
	p->step = m->step;
	p->number = m->number;
	p->round = m->n_rounds ? m->rounds[0] + m->rounds_from : 0;
	snprintf(p->why, sizeof(p->why), "%s", m->why);
}

static int played_say(struct call_peer *p, const Phub__Control *m)
{
	if (p->full)
		return -EAGAIN;
	switch (m->message_case) {
	case PHUB__CONTROL__MESSAGE_GATHER:
		p->gathered = m->gather->number;
		p->ranks = (uint32_t)m->gather->n_ranks;
		p->resumes = m->gather->resumes;
		break;
	case PHUB__CONTROL__MESSAGE_JOB:
		p->generation = m->job->generation;
		p->keys = 0;
		break;
	case PHUB__CONTROL__MESSAGE_KEYS:
		p->keys += (uint32_t)m->keys->n_keys;
		break;
	case PHUB__CONTROL__MESSAGE_LEAVE:
		snprintf(p->left, sizeof(p->left), "%s", m->leave->error ? m->leave->error->text : "");
		break;
	case PHUB__CONTROL__MESSAGE_REHOME:
		played_note_step(p, m->rehome);
		break;
	case PHUB__CONTROL__MESSAGE_CARRY:
		p->carried++;
		break;
	default:
		break;
	}
	return 0;
}

static void played_session(const struct call_peer *p, uint64_t *session, const uint8_t **key, uint32_t *cores)
{
	*session = 5;
	*key = p->key;
	*cores = 1;
}

static int played_address(const struct call_peer *p, const char *transport, char *out, size_t bytes, struct err *e)
{
	assert_string_equal(transport, "loop");
	if (!p->address[0])
		return rig_call_address(p, transport, out, bytes, e);
	snprintf(out, bytes, "%s", p->address);
	return 0;
}

static uint64_t played_root(const struct call_peer *p)
{
	return p->root;
}

static const char *played_sibling(const struct call_peer *p, uint16_t *port)
{
	*port = 7077;
	return upper_names;
}

static void played_close(struct call_peer *p)
{
	p->closed++;
}

static const struct call_ops played_ops = {
	.open = played_open,
	.step = played_step,
	.say = played_say,
	.session = played_session,
	.root = played_root,
	.sibling = played_sibling,
	.address = played_address,
	.fd = rig_call_fd,
	.close = played_close,
};

/* ---- any scene ---- */

void scene_begin(struct scene *s, unsigned cores, uint32_t world, const char *const *settings)
{
	memset(s, 0, sizeof(*s));
	memset(&above, 0, sizeof(above));
	memset(beside, 0, sizeof(beside));
	scene_world = world;
	rig_calls = &played_ops;
	rig_open(&s->rig, cores, settings);
}

void scene_join(struct scene *s, unsigned index, uint32_t rank, uint32_t world)
{
	actor_enter(&s->rig, &s->worker[index], index + 1, "wide", rank, world);
}

void above_say(struct scene *s, const Phub__Control *message)
{
	above.hear(above.arg, message);
	rig_wait(&s->rig, 10);
}

void scene_close(struct scene *s)
{
	for (unsigned i = 0; i < 2; i++)
		if (s->worker[i].rig)
			actor_hang_up(&s->worker[i]);
	for (unsigned i = 0; i < BOXES; i++)
		if (s->box[i].rig)
			actor_hang_up(&s->box[i]);
	rig_wait(&s->rig, 6000);
	rig_expect_empty(&s->rig);
	assert_int_equal(above.opened, above.closed);
	for (unsigned i = 0; i < BOXES; i++)
		assert_int_equal(beside[i].opened, beside[i].closed);
	if (above.transport)
		transport_loop.close(above.transport);
	rig_close(&s->rig);
	rig_calls = NULL;
}

/* ---- below another box ---- */

/* Each key of the table is a chunk. */
void said_init(struct said *s)
{
	memset(s, 0, sizeof(*s));
	phub__start__init(&s->start);
	phub__exchange__init(&s->exchange);
	phub__hypers__init(&s->hypers);
	s->groups[0] = s->groups[1] = &s->hypers;
	s->start.job = ABOVE_JOB;
	s->start.generation = above.generation;
	s->start.epoch = 3;
	s->start.window = 8;
	s->start.rank = WORLD;
	s->start.gathered = above.gathered;
	s->start.core_of_chunk.data = s->cores;
	s->start.core_of_chunk.len = KEYS;
}

/* It lets the box into a job that is in round 8. */
void said_join(struct said *s)
{
	said_init(s);
	s->start.joined = true;
	s->start.generation = 5;
	s->start.gathered = 0;
	s->start.rounds = s->rounds;
	s->start.n_rounds = 1;
	s->rounds[0] = 8;
	s->start.groups = s->groups;
	s->start.n_groups = 1;
}

/* It starts a sharded job of three boxes: rank 3 is there, the first two are here, rank 2 is beside. */
void said_exchange(struct said *s)
{
	static const uint32_t order[WORLD] = {3, 0, 1, 2};
	static const size_t at[] = {0, 1, 3, 4};
	struct ways_box ways[3];
	uint32_t bytes[KEYS];
	uint16_t home[KEYS];
	struct err e;

	said_init(s);
	memcpy(s->ranks, order, sizeof(order));
	phub__exchange__init(&s->exchange);
	for (unsigned i = 0; i < 3; i++) {
		phub__exchange_box__init(&s->boxes[i]);
		s->each[i] = &s->boxes[i];
		s->boxes[i].host = (char *)(uintptr_t) "10.1.1.2";
		s->boxes[i].port = 7077;
		s->boxes[i].rate = 1;
		s->boxes[i].ranks = s->ranks + at[i];
		s->boxes[i].n_ranks = at[i + 1] - at[i];
		ways[i] = (struct ways_box){.workers = (unsigned)s->boxes[i].n_ranks, .rate_bytes_s = 1};
	}
	for (unsigned i = 0; i < KEYS; i++)
		bytes[i] = ELEMENTS * sizeof(float);
	assert_int_equal(ways_homes(WAYS_SHARDED, ways, 3, 0, bytes, KEYS, home, &e), 0);
	s->exchange.hierarchy = PHUB__HIERARCHY__HIERARCHY_SHARDED;
	s->exchange.number = 7;
	s->exchange.cores = 1;
	s->exchange.box = 1;
	s->exchange.homes = crc_32c(0, home, sizeof(home));
	s->exchange.boxes = s->each;
	s->exchange.n_boxes = 3;
	s->start.exchange = &s->exchange;
}

void upper_start(struct scene *s, struct said *said)
{
	Phub__Control control = PHUB__CONTROL__INIT;

	control.message_case = PHUB__CONTROL__MESSAGE_START;
	control.start = &said->start;
	above_say(s, &control);
}

const struct rig_job plain = {.generation = 1};
const struct rig_job shrinks = {.generation = 1, .lost = LOST_SHRINK};
const struct rig_job again = {.generation = 1, .lost = LOST_SHRINK, .resumes = true};

void scene_open_with(struct scene *s, const char *const *settings)
{
	struct transport_config config = {.queue_conns_max = 8};
	struct err e = {0};

	scene_begin(s, 2, WORLD, settings);
	above.root = 1;
	beside[0].undecided = true;
	config.loop = loop_net_host(s->rig.net, ABOVE_HOST);
	assert_int_equal(transport_loop.open(&config, &above.transport, &e), 0);
	assert_int_equal(transport_loop.listen(above.transport, "", above.address, sizeof(above.address), &e), 0);
	for (uint32_t i = 0; i < 2; i++)
		scene_join(s, i, i, WORLD);
}

void scene_open_below(struct scene *s, const char *uplink)
{
	const char *const settings[] = {uplink, "advertise=10.1.1.9:7077", NULL};

	scene_open_with(s, settings);
}

void scene_open(struct scene *s)
{
	scene_open_below(s, "uplink=10.1.1.1:7077");
}

/* Both have sent their tables, and the box above has all that it starts by. */
void scene_tell(struct scene *s, const struct rig_job *job)
{
	for (uint32_t i = 0; i < 2; i++)
		actor_table(&s->worker[i], job, KEYS, ELEMENTS);
	rig_wait(&s->rig, 10);
	assert_int_equal(above.ranks, 2);
	assert_int_equal(above.resumes, job->resumes);
	assert_int_equal(above.keys, KEYS);
}

/* ---- at the top ---- */

const struct rig_job rehome_summed = {.generation = 1};
const struct rig_job rehome_trained = {.generation = 1, .optimizer = OPTIMIZER_MOMENTUM};

/* With the rank of its number, where nobody calls. */
static void box_gather(struct actor *a, uint32_t rank)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Gather gather = PHUB__GATHER__INIT;
	char host[] = "10.9.9.9";

	gather.ranks = &rank;
	gather.n_ranks = 1;
	gather.number = 1;
	gather.host = host;
	gather.port = REHOME_PORT + rank;
	gather.cores = 1;
	control.message_case = PHUB__CONTROL__MESSAGE_GATHER;
	control.gather = &gather;
	actor_say(a, &control);
}

void rehome_form(struct scene *s, const struct rig_job *job, const char *const *settings)
{
	scene_begin(s, 1, REHOME_WORLD, settings);
	scene_join(s, 0, 0, REHOME_WORLD);
	actor_table(&s->worker[0], job, REHOME_KEYS, ELEMENTS);
	for (uint32_t i = 1; i < BOXES; i++) {
		actor_dial(&s->rig, &s->box[i], i + 1);
		s->box[i].below = true;
		assert_true(actor_join(&s->box[i], "wide", 0, REHOME_WORLD, NULL));
		box_gather(&s->box[i], i);
		actor_table(&s->box[i], job, REHOME_KEYS, ELEMENTS);
	}
	rig_wait(&s->rig, 20);
	assert_int_equal(rig_job(&s->rig)->state, JOB_RUNNING);
	for (uint32_t i = 1; i < BOXES; i++)
		assert_int_equal(actor_hear(&s->box[i]), PHUB__CONTROL__MESSAGE_START);
}

void rehome_open(struct scene *s, const struct rig_job *job, const char *hierarchy)
{
	const char *settings[] = {NULL, "lost_ms=8000", NULL};
	char text[64];

	snprintf(text, sizeof(text), "hierarchy=%s", hierarchy);
	settings[0] = text;
	rehome_form(s, job, settings);
	for (unsigned i = 1; i < BOXES; i++)
		if (rig_job(&s->rig)->peers->each[i].target)
			rig_job(&s->rig)->peers->each[i].state = PEER_LIFTING;
}

/* The link of the last box is this much slower than the others now, and the operator says so. */
int rehome_begin(struct scene *s, double slower)
{
	struct job *job = rig_job(&s->rig);

	for (unsigned i = 0; job->peers && i < BOXES; i++)
		job->peers->boxes[i].rate_bytes_s = i + 1 < BOXES ? 1e9 : 1e9 / slower;
	return job_operate(&s->rig.box->control, "rebalance", "wide", "", s->said, sizeof(s->said), &s->number, &s->e);
}

void rehome_expect_error(struct scene *s, int rc, int wanted, const char *text)
{
	if (rc != wanted || !strstr(s->e.text, text))
		fail_msg("%d ('%s') is not %d, or has no '%s'", rc, s->e.text, wanted, text);
}

/* A box says a step; rounds as `round` for all chunks, from 1 on. */
void rehome_say(struct scene *s, unsigned box, Phub__RehomeStep step, uint32_t number, uint64_t round)
{
	uint64_t rounds[REHOME_KEYS] = {0};
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Rehome m = PHUB__REHOME__INIT;
	char why[] = "it has no room";

	m.step = step;
	m.number = number;
	m.rounds = rounds;
	m.n_rounds = step == STEP(HELD) ? REHOME_KEYS : 0;
	m.why = why;
	m.rounds_from = round;
	control.message_case = PHUB__CONTROL__MESSAGE_REHOME;
	control.rehome = &m;
	actor_say(&s->box[box], &control);
	rig_wait(&s->rig, 20);
}

void rehome_say_all(struct scene *s, Phub__RehomeStep step, uint32_t number)
{
	for (unsigned i = 1; i < BOXES; i++)
		rehome_say(s, i, step, number, 1);
}

/* The last that both have heard. */
void rehome_expect_step(struct scene *s, Phub__RehomeStep step, uint32_t number)
{
	for (unsigned i = 1; i < BOXES; i++) {
		struct actor *a = &s->box[i];

		assert_int_equal(actor_hear(a), PHUB__CONTROL__MESSAGE_REHOME);
		assert_int_equal(a->last->rehome->step, step);
		assert_int_equal(a->last->rehome->number, number);
	}
}

const char *rehome_state(const struct scene *s)
{
	return peers_moves(rig_job(&s->rig)) ? "moves" : job_state_name(rig_job(&s->rig)->state);
}

/* How it ended, as the operator hears it. */
void rehome_expect_outcome(const struct scene *s, uint32_t number, const char *stage, const char *why)
{
	const struct peers *p = rig_job(&s->rig)->peers;
	const struct peers_outcome *o = p->outcome;
	uint32_t chunks = 0;
	uint64_t bytes = 0;

	assert_non_null(o);
	assert_int_equal(s->number, number);
	assert_int_equal(o->number, number);
	assert_string_equal(peers_outcome_stage(p), stage);
	if (!strstr(o->why, why))
		fail_msg("'%s' is not in '%s'", why, o->why);
	assert_true(o->ended_ns >= o->begun_ns);
	for (unsigned i = 0; i < o->flow_count; i++) {
		assert_true(o->flows[i].from != o->flows[i].to);
		chunks += o->flows[i].chunks;
		bytes += o->flows[i].bytes;
	}
	assert_true(chunks > 0);
	assert_int_equal(chunks, o->chunks);
	assert_int_equal(bytes, o->bytes);
}

/* How far it is. */
void rehome_expect_stage(const struct scene *s, const char *stage, unsigned done, const char *waits_for)
{
	const struct peers *p = rig_job(&s->rig)->peers;
	const char *box;

	assert_string_equal(peers_outcome_stage(p), stage);
	assert_int_equal(peers_outcome_done(p, &box), done);
	assert_string_equal(box ? box : "", waits_for);
}

/* Up to Go, which both have heard, and the top box has gone on. */
void rehome_move(struct scene *s, uint32_t number)
{
	rehome_expect_step(s, STEP(HOLD), number);
	assert_int_equal(s->box[1].last->rehome->n_rates, BOXES);
	rehome_say_all(s, STEP(HELD), number);
	rehome_expect_step(s, STEP(STOP), number);
	for (unsigned i = 0; i < REHOME_KEYS; i++)
		assert_int_equal(s->box[1].last->rehome->rounds[i] + s->box[1].last->rehome->rounds_from, 1);
	rehome_say_all(s, STEP(CARRIED), number);
	rehome_expect_step(s, STEP(SWITCH), number);
	rehome_say_all(s, STEP(SWITCHED), number);
	rehome_expect_step(s, STEP(GO), number);
}
