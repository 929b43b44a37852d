/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every rank does, by the public API of libphub alone, as a training script would.
 */
#include "phub/cli/trial_member.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregation/convert.h"
#include "phub/base/clock.h"

int trial_member_fail(struct trial_member *m, int rc, const char *what, const char *why)
{
	if (!why || !*why)
		why = *phub_error() ? phub_error() : strerror(-rc);
	if (!m->outcome->failed_ns) {
		snprintf(m->outcome->text, sizeof(m->outcome->text), "rank %u, %s: %s", m->rank, what, why);
		m->outcome->failed_ns = clock_now_ns();
	}
	atomic_store_explicit(&m->s->all->failed, true, memory_order_relaxed);
	return rc;
}

int trial_member_options(const struct trial_member *m, struct phub_options *options, struct phub_hyper **groups)
{
	const struct trial_plan *p = m->p;

	*groups = calloc(p->group_count, sizeof(**groups));
	if (!*groups)
		return -ENOMEM;
	for (unsigned g = 0; g < p->group_count; g++)
		(*groups)[g] = p->hyper;
	phub_options_init(options);
	options->rank = (int)m->rank;
	options->world = (int)trial_world(p);
	options->optimizer = (enum phub_optimizer)p->optimizer;
	options->reproducible = p->reproducible;
	options->seal = (enum phub_seal)p->seal;
	options->encrypt = p->encrypt;
	options->chunk_bytes = (unsigned)p->chunk_bytes;
	options->groups = *groups;
	options->group_count = p->group_count;
	options->transport = p->transport;
	options->secret = p->secret;
	options->timeout_ms = p->timeout_ms;
	return 0;
}

int trial_member_name_keys(struct trial_member *m)
{
	for (uint32_t k = 0; k < m->p->model.count; k++) {
		const struct model_tensor *t = &m->p->model.tensors[k];
		int rc = phub_key(m->phub, t->name, (enum phub_dtype)t->dtype, t->elements, t->group, 0);

		if (rc < 0)
			return trial_member_fail(m, rc, "naming keys", NULL);
	}
	return 0;
}

static size_t member_key_bytes(const struct trial_member *m, uint32_t key)
{
	return m->p->model.tensors[key].elements * dtype_size(m->p->model.tensors[key].dtype);
}

int trial_member_take_memory(struct trial_member *m)
{
	const struct trial_plan *p = m->p;
	unsigned char *at;

	m->push = calloc(p->model.count, sizeof(*m->push));
	m->results = calloc(p->model.count, sizeof(*m->results));
	if (p->mode == TRIAL_COPY)
		m->memory = malloc(2 * p->bytes);
	if (!m->push || !m->results || (p->mode == TRIAL_COPY && !m->memory))
		return trial_member_fail(m, -ENOMEM, "memory", "out of memory");
	at = m->memory;
	for (uint32_t k = 0; k < p->model.count; k++) {
		int rc = 0;

		if (p->mode == TRIAL_COPY) {
			m->push[k] = at;
			m->results[k] = at + p->bytes;
			at += member_key_bytes(m, k);
		} else {
			rc = phub_alloc(m->phub, (int)k, &m->push[k], &m->results[k]);
		}
		if (rc < 0)
			return trial_member_fail(m, rc, "memory", NULL);
	}
	if (trial_pieces_init(&m->pieces, p, m->results) < 0)
		return trial_member_fail(m, -ENOMEM, "memory", "out of memory");
	return 0;
}

int trial_member_begin_weights(struct trial_member *m)
{
	const struct trial_plan *p = m->p;
	unsigned char *at;

	if (p->optimizer == OPTIMIZER_NONE)
		return 0;
	m->weights = at = malloc(p->bytes);
	if (!m->weights)
		return trial_member_fail(m, -ENOMEM, "first weights", "out of memory");
	for (uint32_t k = 0; k < p->model.count; k++) {
		int rc;

		if (m->rank == 0)
			trial_fill_weights(
				p->key_first[k], p->model.tensors[k].elements, p->model.tensors[k].dtype, at);
		rc = phub_broadcast(m->phub, (int)k, at, 0);
		if (rc < 0)
			return trial_member_fail(m, rc, "first weights", NULL);
		at += member_key_bytes(m, k);
	}
	return 0;
}

void trial_member_end_weights(struct trial_member *m)
{
	free(m->weights);
	m->weights = NULL;
}

void trial_member_fill(struct trial_member *m, unsigned round)
{
	for (uint32_t k = 0; k < m->p->model.count; k++) {
		const struct model_tensor *t = &m->p->model.tensors[k];

		trial_fill(m->s->salt + m->rank, round, m->p->key_first[k], t->elements, t->dtype, m->push[k]);
	}
}

int trial_member_begin_key(struct trial_member *m, uint32_t key, int priority)
{
	void *results = m->p->mode == TRIAL_COPY ? (void *)(uintptr_t)m->results[key] : NULL;
	int rc = phub_push_pull(m->phub, (int)key, m->push[key], results, priority);

	return rc < 0 ? trial_member_fail(m, rc, "pushing", NULL) : 0;
}

int trial_member_begin_round(struct trial_member *m)
{
	int rc = 0;

	for (uint32_t k = 0; rc == 0 && k < m->p->model.count; k++)
		rc = trial_member_begin_key(m, k, (int)k);
	return rc;
}

void trial_member_check(struct trial_member *m, unsigned round)
{
	unsigned last = m->p->warmup + m->p->rounds - 1;

	if (round == last && m->rank == m->p->workers - 1)
		trial_pieces_plant(&m->pieces, m->p, m->s->salt + m->rank, round);
	trial_pieces_check(&m->pieces, m->p, m->s, m->rank, round, m->outcome);
}

void trial_member_count(struct trial_member *m)
{
	struct phub_stats stats = {.size = sizeof(stats)};

	if (phub_stats(m->phub, &stats) < 0)
		return;
	m->outcome->copied_bytes = stats.copied_bytes;
	m->outcome->pushed_bytes = stats.pushed_bytes;
	m->outcome->device = (struct trial_work_done){.chunks = stats.pushes,
		.posts = stats.posts,
		.doorbells = stats.doorbells,
		.signalled = stats.signalled,
		.registrations = stats.registrations};
}

void trial_member_fini(struct trial_member *m)
{
	trial_pieces_fini(&m->pieces);
	free(m->weights);
	free(m->memory);
	free(m->push);
	free(m->results);
}
