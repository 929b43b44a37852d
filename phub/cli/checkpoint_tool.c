/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/cli/checkpoint_tool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "phub/base/clock.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"

/* ---- which ---- */

/* A directory that is not there may be a disk that is lost: the others may do. */
static int tool_take_directories(struct checkpoint_tool *t, const struct args_words *words)
{
	unsigned there = 0;

	for (unsigned i = 0; i < words->count; i++) {
		struct stat st;
		int error = stat(words->at[i], &st) < 0 ? errno : S_ISDIR(st.st_mode) ? 0 : ENOTDIR;

		if (error)
			output_error("%s: %s", words->at[i], strerror(error));
		there += error == 0;
		t->place.targets[t->place.target_count++] = words->at[i];
	}
	return there ? CLI_DONE : CLI_FAILED;
}

static int tool_find_jobs(struct checkpoint_tool *t)
{
	struct err e;

	if (t->job) {
		t->jobs = calloc(1, sizeof(*t->jobs));
		t->jobs[0] = t->jobs ? strdup(t->job) : NULL;
		t->job_count = 1;
		if (t->jobs && t->jobs[0])
			return CLI_DONE;
		output_error("out of memory");
		return CLI_FAILED;
	}
	if (checkpoint_list_jobs(t->place.targets, t->place.target_count, &t->jobs, &t->job_count, &e) < 0) {
		output_error("%s", e.text);
		return CLI_FAILED;
	}
	return CLI_DONE;
}

int checkpoint_tool_begin(struct checkpoint_tool *t, const struct args_words *words)
{
	int rc = tool_take_directories(t, words);

	return rc == CLI_DONE ? tool_find_jobs(t) : rc;
}

void checkpoint_tool_end(struct checkpoint_tool *t)
{
	for (unsigned i = 0; i < t->job_count; i++)
		free(t->jobs[i]);
	free(t->jobs);
	t->jobs = NULL;
	t->job_count = 0;
}

int checkpoint_tool_pick(struct checkpoint_tool *t, struct checkpoint_table *out)
{
	struct err e;

	if (t->job_count != 1) {
		if (t->job_count == 0)
			output_error("no checkpoint is there");
		else
			output_error("checkpoints of %u jobs are there, '%s' and '%s' among them; say which by --job",
				t->job_count, t->jobs[0], t->jobs[1]);
		return CLI_FAILED;
	}
	t->place.job = t->jobs[0];
	if (checkpoint_read_table(&t->place, t->round, out, &e) == 0)
		return CLI_DONE;
	output_error("%s", e.text);
	return CLI_FAILED;
}

/* ---- work ---- */

static struct checkpoint_progress *tool_stops;

static void tool_on_signal(int number)
{
	(void)number;
	atomic_store_explicit(&tool_stops->stop, true, memory_order_relaxed);
}

struct tool_work {
	int (*work)(void *arg);
	void *arg;
	int rc;
	_Atomic bool done;
};

static void *tool_thread(void *arg)
{
	struct tool_work *w = arg;

	w->rc = w->work(w->arg);
	atomic_store_explicit(&w->done, true, memory_order_release);
	return NULL;
}

static uint64_t tool_read(const _Atomic uint64_t *value)
{
	return atomic_load_explicit(value, memory_order_relaxed);
}

int checkpoint_tool_work(const char *label, struct checkpoint_progress *p, int (*work)(void *arg), void *arg)
{
	static const struct timespec pause = {.tv_nsec = 20 * (long)NS_PER_MS};
	struct output_progress bar = {.label = label};
	struct tool_work w = {.work = work, .arg = arg};
	struct sigaction action = {.sa_handler = tool_on_signal}, before[2];
	pthread_t thread;

	tool_stops = p;
	sigaction(SIGINT, &action, &before[0]);
	sigaction(SIGTERM, &action, &before[1]);
	if (pthread_create(&thread, NULL, tool_thread, &w) != 0) {
		w.rc = work(arg);
	} else {
		while (!atomic_load_explicit(&w.done, memory_order_acquire)) {
			output_progress_update(&bar, tool_read(&p->written), tool_read(&p->total));
			nanosleep(&pause, NULL);
		}
		pthread_join(thread, NULL);
	}
	output_progress_end(&bar);
	sigaction(SIGINT, &before[0], NULL);
	sigaction(SIGTERM, &before[1], NULL);
	return w.rc;
}
