/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker process of phub bench exchange: joins, runs rounds, checks results, leaves. Joining and leaving are those of
 * every bench.
 */
#include "phub/cli/trial_worker.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/cli/admin.h"
#include "phub/cli/box_process.h"

enum { WORKER_ASK_MS = 1000 };

struct worker {
	struct trial_member member;
	pid_t box;
	unsigned expected; /* rounds that the expected results have gone through */
	/* when the stretch began */
	uint64_t box_cpu_ns, own_cpu_ns;
};

/* `text` with the rank in place of its {}. */
static void worker_name(const char *text, unsigned rank, char *out, size_t bytes)
{
	const char *mark = strstr(text, "{}");

	if (mark)
		snprintf(out, bytes, "%.*s%u%s", (int)(mark - text), text, rank, mark + 2);
	else
		snprintf(out, bytes, "%s", text);
}

int trial_open_netns(const struct trial_plan *p, unsigned rank, struct err *e)
{
	char name[NAME_MAX + 1], path[sizeof("/run/netns/") + NAME_MAX];
	int fd;

	worker_name(p->worker_netns, rank, name, sizeof(name));
	snprintf(path, sizeof(path), "/run/netns/%s", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		return fd;
	if (errno == ENOENT)
		return err_set(e, -ENOENT,
			"there is no network namespace %s for rank %u; make it with `ip netns add %s`", name, rank,
			name);
	return err_set(e, -errno, "network namespace %s of rank %u: %s", name, rank, strerror(errno));
}

/* Before the first socket and the first thread: both stay where they were made. */
static int worker_enter_netns(struct trial_member *m)
{
	struct err e;
	int fd, rc = 0;

	if (!m->p->worker_netns)
		return 0;
	fd = trial_open_netns(m->p, m->rank, &e);
	if (fd < 0)
		return trial_member_fail(m, fd, "entering its network namespace", e.text);
	if (setns(fd, CLONE_NEWNET) < 0)
		rc = trial_member_fail(m, -errno, "entering its network namespace",
			errno == EPERM ? "only root may; run it as root" : strerror(errno));
	close(fd);
	return rc;
}

/* Each worker has a port of DPDK's to itself: {} and {} again in the variable are its rank. */
static int worker_name_port(struct trial_member *m)
{
	const char *ports = getenv("PHUB_DPDK");
	char once[512], twice[512];

	if (!ports || !strstr(ports, "{}"))
		return 0;
	worker_name(ports, m->rank, once, sizeof(once));
	worker_name(once, m->rank, twice, sizeof(twice));
	if (setenv("PHUB_DPDK", twice, 1) < 0)
		return trial_member_fail(m, -errno, "naming its port", "out of memory");
	return 0;
}

int trial_worker_join(struct trial_member *m, const char *address, const char *job)
{
	struct phub_options options;
	struct phub_hyper *groups;
	char url[256];
	int rc = worker_enter_netns(m);

	m->address = address;
	if (rc == 0)
		rc = worker_name_port(m);
	if (rc < 0)
		return rc;
	rc = trial_member_options(m, &options, &groups);
	if (rc < 0)
		return trial_member_fail(m, rc, "connecting", "out of memory");
	snprintf(url, sizeof(url), "phub://%s/%s", address, job);
	rc = phub_connect(url, &options, &m->phub);
	free(groups);
	if (rc < 0)
		return trial_member_fail(m, rc, "connecting", NULL);
	atomic_fetch_add_explicit(&m->s->met, 1, memory_order_relaxed);
	rc = trial_member_name_keys(m);
	if (rc == 0 && (rc = phub_start(m->phub, PHUB_TIMEOUT_DEFAULT)) < 0)
		trial_member_fail(m, rc, "starting", NULL);
	return rc;
}

int trial_worker_wait(struct trial_member *m, const char *what)
{
	int rc = phub_wait(m->phub, PHUB_ALL, PHUB_TIMEOUT_DEFAULT);

	return rc < 0 ? trial_member_fail(m, rc, what, NULL) : 0;
}

int trial_worker_prepare(struct trial_member *m)
{
	int rc = trial_member_take_memory(m);

	if (rc == 0)
		rc = trial_member_begin_weights(m);
	if (rc == 0)
		rc = trial_worker_wait(m, "first weights");
	if (rc == 0)
		trial_member_end_weights(m);
	return rc;
}

/* The box's side of it; a box that does not answer us costs two lines of the report. */
static void trial_worker_ask_box(struct trial_member *m)
{
	struct admin_answer answer;
	struct err e;

	if (m->rank != 0 || m->outcome->device.posts == 0)
		return;
	if (admin_ask(m->address, "status", WORKER_ASK_MS, &answer, &e) < 0)
		return;
	for (size_t i = 0; i < answer.reply->n_cores; i++) {
		const Phub__Work *work = answer.reply->cores[i]->work;

		if (!work)
			continue;
		m->s->box_device.posts += work->posts;
		m->s->box_device.doorbells += work->doorbells;
		m->s->box_device.signalled += work->signalled;
	}
	admin_answer_fini(&answer);
}

int trial_worker_end(struct trial_member *m, int rc)
{
	if (rc == 0) {
		trial_member_count(m);
		trial_worker_ask_box(m);
		rc = phub_leave(m->phub, PHUB_TIMEOUT_DEFAULT);
		if (rc < 0)
			trial_member_fail(m, rc, "leaving", NULL);
	}
	phub_close(m->phub);
	trial_member_fini(m);
	return rc < 0 || m->outcome->failed_ns || m->outcome->wrong;
}

/* A stretch of rounds without a pause begins: new gradients, all together. */
static int worker_begin_stretch(struct worker *w, unsigned round)
{
	struct trial_member *m = &w->member;
	int rc = 0;

	trial_member_fill(m, round);
	if (round == m->p->warmup)
		rc = phub_barrier(m->phub, PHUB_TIMEOUT_DEFAULT);
	if (rc < 0)
		return trial_member_fail(m, rc, "barrier", NULL);
	rc = trial_meet(m->p, m->s);
	if (m->rank == 0) {
		w->box_cpu_ns = box_process_cpu_ns(w->box);
		m->s->box_pinned_bytes = box_process_pinned_bytes(w->box);
	}
	w->own_cpu_ns = box_process_cpu_ns(getpid());
	return rc;
}

static int worker_exchange(struct worker *w, struct trial_time *time)
{
	int rc;

	time->begin_ns = clock_now_ns();
	rc = trial_member_begin_round(&w->member);
	if (rc == 0)
		rc = trial_worker_wait(&w->member, "exchanging");
	time->end_ns = clock_now_ns();
	return rc;
}

/* Every worker works out its share of what must have come, then all compare all. */
static int worker_check(struct worker *w, unsigned round)
{
	struct trial_member *m = &w->member;
	int rc;

	trial_expect(m->p, m->s, m->rank, w->expected, round);
	w->expected = round + 1;
	rc = trial_meet(m->p, m->s);
	if (rc == 0)
		trial_member_check(m, round);
	return rc;
}

static int worker_end_stretch(struct worker *w, unsigned round)
{
	struct trial_member *m = &w->member;
	int rc = 0;

	if (round >= m->p->warmup)
		m->outcome->cpu_ns += box_process_cpu_ns(getpid()) - w->own_cpu_ns;
	if (m->rank == 0 && round >= m->p->warmup)
		m->s->box_cpu_ns += box_process_cpu_ns(w->box) - w->box_cpu_ns;
	if (trial_is_checked(m->p, round))
		rc = worker_check(w, round);
	if (round + 1 < m->p->warmup + m->p->rounds)
		trial_pieces_save(&m->pieces, m->p);
	return rc;
}

static int worker_run(struct worker *w)
{
	struct trial_member *m = &w->member;
	struct trial_time *times = trial_times(m->p, m->s, m->rank);
	unsigned count = m->p->warmup + m->p->rounds;
	int rc = 0;

	trial_expect_begin(m->p, m->s, m->rank);
	for (unsigned round = 0; rc == 0 && round < count; round++) {
		if (trial_is_fresh(m->p, round))
			rc = worker_begin_stretch(w, round);
		if (rc == 0)
			rc = worker_exchange(w, &times[round]);
		if (rc == 0 && (round + 1 == count || trial_is_fresh(m->p, round + 1)))
			rc = worker_end_stretch(w, round);
		if (m->rank == 0)
			atomic_store_explicit(&m->s->round, round + 1, memory_order_relaxed);
	}
	return rc;
}

int trial_work(const struct trial_plan *p, struct trial_shared *s, unsigned rank, const char *address, const char *job,
	pid_t box)
{
	struct worker w = {.member = {.p = p, .s = s, .outcome = &s->outcomes[rank], .rank = rank}, .box = box};
	struct trial_member *m = &w.member;
	int rc = trial_worker_join(m, address, job);

	if (rc == 0)
		rc = trial_worker_prepare(m);
	if (rc == 0)
		rc = worker_run(&w);
	return trial_worker_end(m, rc);
}
