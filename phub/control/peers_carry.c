/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights and optimizer state on their way to other homes.
 */
#include "phub/control/peers_carry.h"

#include <errno.h>
#include <string.h>

#include "phub/control/box.h"
#include "phub/control/calls.h"
#include "phub/control/job_below.h"
#include "phub/control/peers_move.h"
#include "phub/control/peers_routes.h"
#include "phub/control/session.h"

enum {
	CARRY_PIECE_BYTES = 256 << 10, /* of a message */
	CARRY_STEP_BYTES = 8 << 20,    /* that are copied or carried before control looks at others */
};

struct chunk *carry_chunk(const struct job *job, uint32_t index)
{
	return chunk_find(job->generation->store.shards[job->generation->core_of_chunk[index]], index);
}

struct rehome_chunk *carry_place(const struct job *job, uint32_t index)
{
	unsigned core = job->generation->core_of_chunk[index];
	const struct rehome *r = job->peers->move->memory.regions[core].base;

	return &r->chunks[chunk_local(job->generation->store.shards[core], carry_chunk(job, index))];
}

/* Where the new home has workers, and so sums of its own in each round, and weights are the results of these, it has
 * them. One of a chain that only passes on what comes may do so since the last change of homes, and no round after it.
 */
static bool carry_has_weights(const struct job *job, uint32_t index, unsigned box)
{
	return carry_chunk(job, index)->dtype == DTYPE_F32 && job->peers->boxes[box].workers > 0;
}

uint64_t carry_bytes(const struct job *job, uint32_t index, unsigned box)
{
	enum optimizer_kind optimizer = job->generation->spec.optimizer;
	unsigned arrays = optimizer_state_count(optimizer) + !carry_has_weights(job, index, box);

	return optimizer == OPTIMIZER_NONE ? 0 : (uint64_t)carry_chunk(job, index)->elements * sizeof(float) * arrays;
}

/* What is at `offset` of them, and how much of that array there is from there on. */
static uint8_t *carry_array(const struct job *job, uint32_t index, unsigned box, uint64_t offset, float *weight,
	float *const *state, uint64_t *left)
{
	uint64_t bytes = (uint64_t)carry_chunk(job, index)->elements * sizeof(float);
	uint64_t number = offset / bytes + carry_has_weights(job, index, box);
	float *array = number > 0 ? state[number - 1] : weight;

	*left = bytes - offset % bytes;
	return (uint8_t *)array + offset % bytes;
}

/* What stays here, in its new place. */
static void carry_keep(const struct job *job, uint32_t index)
{
	const struct chunk *chunk = carry_chunk(job, index);
	const struct rehome_chunk *to = carry_place(job, index);
	size_t bytes = chunk->elements * sizeof(float);

	if (to->weight != chunk->weight)
		memcpy(to->weight, chunk->weight, bytes);
	for (unsigned i = 0; i < optimizer_state_count(job->generation->spec.optimizer); i++)
		memcpy(to->state[i], chunk->state[i], bytes);
}

/* One piece of a chunk that goes to another box. 0, or -EAGAIN, or why it cannot be said. */
static int carry_piece(struct job *job, struct box_call *call, uint32_t index, unsigned box)
{
	struct peers_move *m = job->peers->move;
	const struct chunk *chunk = carry_chunk(job, index);
	uint64_t bytes = chunk->weights ? carry_bytes(job, index, box) : 0, left = 0;
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Carry carry = PHUB__CARRY__INIT;
	int rc;

	carry.number = m->number;
	carry.chunk = index;
	carry.offset = m->sent;
	if (bytes > 0) {
		carry.data.data = carry_array(job, index, box, m->sent, chunk->weight, chunk->state, &left);
		carry.data.len = left < CARRY_PIECE_BYTES ? (size_t)left : CARRY_PIECE_BYTES;
	}
	carry.last = m->sent + carry.data.len == bytes;
	carry.weights = chunk->weights;
	carry.steps = chunk->steps;
	control.message_case = PHUB__CONTROL__MESSAGE_CARRY;
	control.carry = &carry;
	rc = box_call_say(job->control, call, &control);
	if (rc < 0)
		return rc;
	m->sent += carry.data.len;
	if (carry.last) {
		m->sent = 0;
		m->at++;
	}
	return 0;
}

/* What is next of chunk m->at. 0, -EAGAIN, or why it cannot be said. */
static int carry_one(struct job *job, uint64_t *bytes)
{
	struct peers *p = job->peers;
	struct peers_move *m = p->move;
	unsigned to = m->home[m->at];
	struct box_call *call;

	if (p->home[m->at] == p->self && to != p->self) {
		call = peers_route(job, to);
		*bytes += CARRY_PIECE_BYTES;
		return call ? carry_piece(job, call, m->at, to) : -EAGAIN;
	}
	if (p->home[m->at] == p->self) {
		*bytes += job->generation->chunk_bytes[m->at];
		carry_keep(job, m->at);
	}
	m->at++;
	return 0;
}

bool carry_step(struct job *job)
{
	struct peers_move *m = job->peers->move;
	uint64_t bytes = 0;
	int rc = 0;

	if (job->generation->spec.optimizer == OPTIMIZER_NONE)
		m->at = carry_count(job); /* nothing belongs to a home */
	while (rc == 0 && m->at < carry_count(job) && bytes < CARRY_STEP_BYTES)
		rc = carry_one(job, &bytes);
	job->control->again = job->control->again || (rc == 0 && m->at < carry_count(job));
	job->control->soon = job->control->soon || rc == -EAGAIN;
	if (rc < 0 && rc != -EAGAIN) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_LOST, -1,
			"what belongs to chunk %u of it could not be carried to %s, its next home: %s. The job ends "
			"here; look at that box",
			m->at, job->peers->each[m->home[m->at]].name, strerror(-rc));
		return false;
	}
	return m->at == carry_count(job) && m->awaited == 0;
}

unsigned carry_from(const struct session *s)
{
	const struct peers *p = s->job->peers;

	if (s->peer)
		return s->peer - 1;
	for (unsigned i = 0; i < p->count; i++)
		if (i != p->self && p->each[i].slot == s->rank)
			return i;
	return p->self;
}

/* 0, or -EPROTO. */
static int carry_add(struct job *job, unsigned from, const Phub__Carry *c)
{
	const struct peers *p = job->peers;
	struct peers_move *m = p->move;
	struct rehome_chunk *to;
	uint64_t bytes, left;
	uint8_t *array;

	if (from == p->self || m->number != c->number || m->stage < MOVE_HELD || m->stage > MOVE_CARRIES ||
		!m->memory.regions || c->chunk >= carry_count(job) || p->home[c->chunk] != from ||
		m->home[c->chunk] != p->self || job->generation->spec.optimizer == OPTIMIZER_NONE)
		return -EPROTO;
	to = carry_place(job, c->chunk);
	bytes = c->weights || !c->last ? carry_bytes(job, c->chunk, p->self) : 0;
	if (to->comes || c->offset != to->got || c->data.len > bytes - to->got || (c->data.len == 0 && !c->last) ||
		c->last != (to->got + c->data.len == bytes))
		return -EPROTO;
	if (c->data.len > 0) {
		array = carry_array(job, c->chunk, p->self, to->got, to->weight, to->state, &left);
		if (c->data.len > left)
			return -EPROTO;
		if (job->control->box->env.plant != SHARD_PLANT_UNCARRIED)
			memcpy(array, c->data.data, c->data.len);
	}
	to->got += c->data.len;
	if (c->last) {
		to->comes = true;
		to->weights = c->weights;
		to->steps = c->steps;
		m->awaited--;
		job->control->again = true;
	}
	return 0;
}

void peers_move_take(struct session *s, const Phub__Carry *c)
{
	struct job *job = s->job;

	if ((s->peer || job_is_box(job, s->rank)) && peers_moves(job) && job->state == JOB_RUNNING &&
		carry_add(job, carry_from(s), c) == 0)
		return;
	session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL,
		"it carries chunk %u here, whose next home this is not, or not so", c->chunk);
}
