/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/above_rig.h"

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "phub/base/crc.h"
#include "phub/control/job.h"
#include "phub/control/job_below.h"
#include "phub/control/parent.h"
#include "phub/control/promotion.h"
#include "phub/members.h"
#include "topology/ways.h"
#include "transport/call.h"

struct call_peer above, beside;
const char *upper_names;

static int upper_open(void *ctx, const struct call_target *target, struct call_peer **out, struct err *e)
{
	struct call_peer *p = target->peer ? &beside : &above;

	assert_string_equal(target->what, "uplink");
	assert_int_equal(target->below, WORLD);
	snprintf(p->called + strlen(p->called), sizeof(p->called) - strlen(p->called), "%s>=%" PRIu64 " ", target->host,
		target->least);
	p->silent = p->answers[0] && !strstr(p->answers, target->host);
	p->opened++;
	p->promotable = strstr(p->heirs, target->host) != NULL;
	p->reaches = strstr(p->knows, target->host) != NULL;
	p->hear = target->hear;
	p->arg = target->arg;
	*out = p;
	return 0;
}

static int upper_step(struct call_peer *p, uint64_t now_ns, struct err *e)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Error error = PHUB__ERROR__INIT;

	if (p->silent && (p->promotable || p->reaches)) {
		error.code = PHUB__ERROR_CODE__ERROR_BUSY;
		error.text = (char *)(uintptr_t) "it is no root";
		error.promotable = p->promotable;
		error.reaches = p->reaches;
		control.message_case = PHUB__CONTROL__MESSAGE_ERROR;
		control.error = &error;
		p->hear(p->arg, &control);
		return err_set(e, -EBUSY, "it is no root");
	}
	if (p->silent)
		return err_set(e, -ECONNREFUSED, "nobody is there");
	return p != &beside && !p->undecided;
}

static int upper_say(struct call_peer *p, const Phub__Control *m)
{
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
	default:
		break;
	}
	return 0;
}

static void upper_session(const struct call_peer *p, uint64_t *session, const uint8_t **key, uint32_t *cores)
{
	*session = 5;
	*key = p->key;
	*cores = 1;
}

static int upper_address(const struct call_peer *p, const char *transport, char *out, size_t bytes, struct err *e)
{
	assert_string_equal(transport, "loop");
	snprintf(out, bytes, "%s", p->address);
	return 0;
}

static void upper_close(struct call_peer *p)
{
	p->closed++;
}

static uint64_t upper_root(const struct call_peer *p)
{
	return p->root;
}

static const char *upper_sibling(const struct call_peer *p, uint16_t *port)
{
	*port = 7077;
	return upper_names;
}

static const struct call_ops upper_ops = {
	.open = upper_open,
	.step = upper_step,
	.say = upper_say,
	.session = upper_session,
	.root = upper_root,
	.sibling = upper_sibling,
	.address = upper_address,
	.fd = rig_call_fd,
	.close = upper_close,
};

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

void upper_start(struct said *s)
{
	Phub__Control control = PHUB__CONTROL__INIT;

	control.message_case = PHUB__CONTROL__MESSAGE_START;
	control.start = &s->start;
	above.hear(above.arg, &control);
	rig_wait(above.rig, 10);
}

/* ---- a job of four, of which two workers are here ---- */

const struct rig_job plain = {.generation = 1};
const struct rig_job shrinks = {.generation = 1, .lost = LOST_SHRINK};
const struct rig_job again = {.generation = 1, .lost = LOST_SHRINK, .resumes = true};

void scene_open_below(struct scene *s, const char *uplink)
{
	const char *const settings[] = {uplink, "advertise=10.1.1.9:7077", NULL};

	scene_open_with(s, settings);
}

void scene_open_with(struct scene *s, const char *const *settings)
{
	struct transport_config config = {.queue_conns_max = 8};
	struct err e = {0};

	memset(s, 0, sizeof(*s));
	memset(&above, 0, sizeof(above));
	memset(&beside, 0, sizeof(beside));
	above.root = 1;
	rig_calls = &upper_ops;
	rig_open(&s->rig, 2, settings);
	above.rig = &s->rig;
	config.loop = loop_net_host(s->rig.net, ABOVE_HOST);
	assert_int_equal(transport_loop.open(&config, &above.transport, &e), 0);
	assert_int_equal(transport_loop.listen(above.transport, "", above.address, sizeof(above.address), &e), 0);
	for (uint32_t i = 0; i < 2; i++) {
		actor_dial(&s->rig, &s->worker[i], i + 1);
		assert_true(actor_join(&s->worker[i], "wide", i, WORLD, NULL));
	}
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

void scene_close(struct scene *s)
{
	for (unsigned i = 0; i < 2; i++)
		actor_hang_up(&s->worker[i]);
	if (s->box.rig)
		actor_hang_up(&s->box);
	rig_wait(&s->rig, 6000);
	rig_expect_empty(&s->rig);
	box_destroy(s->rig.box, s->rig.now_ns);
	assert_int_equal(above.opened, above.closed);
	assert_int_equal(beside.opened, beside.closed);
	transport_loop.close(above.transport);
	loop_stream_unlisten(s->rig.listener);
	loop_net_destroy(s->rig.net);
	config_fini(&s->rig.config);
	rig_calls = NULL;
}
