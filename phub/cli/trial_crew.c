/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts and watches the workers of a bench. Control thread of the parent.
 */
#include "phub/cli/trial_crew.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/base/cpu.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"

enum { CREW_SILENT_MS = 1000 };      /* before it is told what is waited for */
enum { TRIAL_CREW_GRACE_MS = 3000 }; /* for workers to end by themselves when one has failed */

/* ---- the memory of the jobs ---- */

static int crew_check_netns(const struct trial_plan *p, struct err *e)
{
	for (unsigned rank = 0; p->worker_netns && rank < p->workers; rank++) {
		int fd = trial_open_netns(p, rank, e);

		if (fd < 0)
			return fd;
		close(fd);
	}
	return 0;
}

static int crew_check_cpus(const struct trial_plan *p, struct err *e)
{
	struct cpu_list allowed;
	int rc = p->worker_cpus ? cpu_list_allowed(&allowed) : 0;

	if (rc < 0)
		return err_set(e, rc, "which CPUs may be used is not known: %s", strerror(-rc));
	for (unsigned i = 0; p->worker_cpus && i < p->worker_cpus->count; i++) {
		bool found = false;

		for (unsigned k = 0; k < allowed.count; k++)
			found |= allowed.cpu[k] == p->worker_cpus->cpu[i];
		if (!found)
			return err_set(e, -EINVAL,
				"--worker-cpus: CPU %d is not there, or this process may not use it; see taskset -p %d",
				p->worker_cpus->cpu[i], (int)getpid());
	}
	return 0;
}

int trial_crew_init(struct trial_crew *crew, const struct trial_plan *plan, struct err *e)
{
	int rc = crew_check_netns(plan, e);

	if (rc == 0)
		rc = crew_check_cpus(plan, e);
	*crew = (struct trial_crew){.plan = plan, .count = plan->workers * plan->jobs};
	for (unsigned job = 0; rc == 0 && job < plan->jobs; job++)
		rc = trial_shared_create(plan, job, crew->shared[0], &crew->shared[job], e);
	return rc;
}

void trial_crew_fini(struct trial_crew *crew)
{
	for (unsigned job = 0; job < TRIAL_JOBS_MAX && crew->shared[job]; job++)
		trial_shared_destroy(crew->shared[job]);
}

/* ---- processes ---- */

static volatile sig_atomic_t trial_crew_interrupted;

static void trial_crew_on_signal(int number)
{
	(void)number;
	trial_crew_interrupted = 1;
}

static void crew_catch_signals(void)
{
	struct sigaction action = {.sa_handler = trial_crew_on_signal};

	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
}

/* In the child: never returns. */
static void crew_be_worker(const struct trial_crew *crew, unsigned worker, pid_t parent)
{
	const struct trial_plan *p = crew->plan;
	unsigned job = worker / p->workers;
	char name[sizeof(crew->name) + 16];

	signal(SIGINT, SIG_IGN); /* the parent ends us when it is told to stop */
	signal(SIGTERM, SIG_DFL);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(CLI_FAILED);
	/* Its threads, which it starts later, are where it is. */
	if (p->worker_cpus && cpu_pin_self(p->worker_cpus->cpu[worker % p->worker_cpus->count]) < 0)
		_exit(CLI_FAILED);
	snprintf(name, sizeof(name), p->jobs > 1 ? "%s-%u" : "%s", crew->name, job);
	_exit(crew->work(crew, job, worker % p->workers, name) ? CLI_FAILED : CLI_DONE);
}

static int crew_start_workers(struct trial_crew *crew, struct err *e)
{
	pid_t parent = getpid();

	fflush(NULL);
	for (unsigned w = 0; w < crew->count; w++) {
		pid_t pid = fork();

		if (pid == 0)
			crew_be_worker(crew, w, parent);
		if (pid < 0)
			return err_set(e, -errno, "could not fork worker %u: %s", w, strerror(errno));
		crew->workers[w] = pid;
		crew->alive++;
	}
	return 0;
}

static void crew_signal_workers(const struct trial_crew *crew, int number)
{
	for (unsigned w = 0; w < crew->count; w++) {
		if (crew->workers[w])
			kill(crew->workers[w], number);
	}
}

/* What stands before a rank in a message: nothing, or its job. */
static const char *crew_job(const struct trial_crew *crew, unsigned worker, char text[32])
{
	if (crew->plan->jobs == 1)
		return "";
	snprintf(text, 32, "job %u, ", worker / crew->plan->workers);
	return text;
}

/* Collects those that have ended. */
static void trial_crew_reap(struct trial_crew *crew)
{
	for (unsigned w = 0; w < crew->count; w++) {
		char job[32];
		int status;

		if (!crew->workers[w] || waitpid(crew->workers[w], &status, WNOHANG) != crew->workers[w])
			continue;
		crew->workers[w] = 0;
		crew->status[w] = status;
		crew->alive--;
		if (WIFSIGNALED(status)) {
			atomic_store_explicit(&crew->shared[0]->all->failed, true, memory_order_relaxed);
			if (!crew->trouble.code)
				err_set(&crew->trouble, -ECHILD, "%srank %u was killed by signal %d (%s)",
					crew_job(crew, w, job), w % crew->plan->workers, WTERMSIG(status),
					strsignal(WTERMSIG(status)));
		}
	}
}

/* A box elsewhere may not be up yet, and is tried until the timeout: told once. */
static void crew_tell_waiting(const struct trial_crew *crew, uint64_t begin_ns, bool *told)
{
	if (*told || crew->box.pid || clock_now_ns() < clock_deadline_ns(begin_ns, CREW_SILENT_MS))
		return;
	*told = true;
	if (!atomic_load_explicit(&crew->shared[0]->met, memory_order_relaxed))
		output_note("waiting for a box at %s, for %d s at most ...", crew->box.address,
			crew->plan->timeout_ms / 1000);
}

/* Until all workers have ended: by themselves, or, when something went wrong, a little later by us. */
static void trial_crew_await(struct trial_crew *crew)
{
	struct output_progress progress = {.label = crew->plan->transport};
	uint64_t begin_ns = clock_now_ns(), end_ns = CLOCK_NEVER;
	bool told = false;

	while (crew->alive) {
		bool wrong = atomic_load_explicit(&crew->shared[0]->all->failed, memory_order_relaxed);

		trial_crew_reap(crew);
		if (trial_crew_interrupted && !crew->trouble.code)
			err_set(&crew->trouble, -EINTR, "interrupted");
		if (crew->box.pid && box_process_check(&crew->box, crew->trouble.code ? NULL : &crew->trouble) < 0)
			wrong = true;
		if (crew->trouble.code == -EINTR)
			end_ns = 0;
		else if ((wrong || crew->trouble.code) && end_ns == CLOCK_NEVER)
			end_ns = clock_deadline_ns(clock_now_ns(), TRIAL_CREW_GRACE_MS);
		if (clock_now_ns() > end_ns)
			crew_signal_workers(crew, end_ns == 0 ? SIGTERM : SIGKILL);
		if (!wrong && !crew->trouble.code)
			crew_tell_waiting(crew, begin_ns, &told);
		output_progress_update(
			&progress, atomic_load_explicit(&crew->shared[0]->round, memory_order_relaxed), crew->steps);
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
	}
	output_progress_end(&progress);
}

void trial_crew_run(struct trial_crew *crew, const struct box_settings *settings)
{
	struct err e;

	crew_catch_signals();
	if (settings && box_process_start(settings, &crew->box, &crew->trouble) < 0)
		return;
	if (crew_start_workers(crew, &crew->trouble) < 0)
		crew_signal_workers(crew, SIGKILL);
	trial_crew_await(crew);
	if (settings && box_process_stop(&crew->box, &e) < 0 && !crew->trouble.code)
		crew->trouble = e;
}

/* ---- what came of it ---- */

static const struct trial_outcome *crew_outcome(const struct trial_crew *crew, unsigned worker)
{
	return &crew->shared[worker / crew->plan->workers]->outcomes[worker % crew->plan->workers];
}

/* The worker that failed first; else the first with a wrong result. -1: all is well. */
static int crew_find_failed(const struct trial_crew *crew)
{
	uint64_t first_ns = UINT64_MAX;
	int found = -1;

	for (unsigned w = 0; w < crew->count; w++) {
		const struct trial_outcome *outcome = crew_outcome(crew, w);

		if (outcome->failed_ns && outcome->failed_ns < first_ns) {
			first_ns = outcome->failed_ns;
			found = (int)w;
		}
	}
	for (unsigned w = 0; found < 0 && w < crew->count; w++) {
		if (crew_outcome(crew, w)->wrong)
			found = (int)w;
	}
	return found;
}

enum trial_verdict trial_crew_judge(const struct trial_crew *crew)
{
	int failed = crew_find_failed(crew);
	char job[32];

	if (crew->trouble.code) {
		output_error("%s", crew->trouble.text);
		return TRIAL_BROKEN;
	}
	if (failed >= 0) {
		const struct trial_outcome *outcome = crew_outcome(crew, (unsigned)failed);

		output_error("%s%s", crew_job(crew, (unsigned)failed, job), outcome->text);
		return outcome->failed_ns ? TRIAL_BROKEN : TRIAL_WRONG;
	}
	for (unsigned w = 0; w < crew->count; w++) {
		if (crew->status[w]) {
			output_error("%srank %u ended with exit code %d and said nothing", crew_job(crew, w, job),
				w % crew->plan->workers, WEXITSTATUS(crew->status[w]));
			return TRIAL_BROKEN;
		}
	}
	return TRIAL_GOOD;
}
