/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A task is a call to a disk that may never return. Whoever comes last to it, its thread or control, has what is in it
 * and frees it.
 */
#include "phub/control/targets.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "phub/base/log.h"

enum target_state { TARGET_RUNS, TARGET_OVER, TARGET_LEFT };

struct target_task {
	struct disk *disk;
	_Atomic int state; /* exchanged by both sides: what the other did before is seen then */
	bool gives;        /* `lock` back, in place of taking it */
	bool looks;        /* only whether it can be taken */
	int lock, rc;
	char who[TARGETS_WHO_BYTES]; /* for the lock, and then, where another has it, who that is; "": not told */
	char dir[];
};

struct target {
	struct target_task *task; /* NULL: there is none */
	bool has;
	int lock;
	char holder[TARGETS_WHO_BYTES]; /* where rc is -EBUSY */
	bool heard, told;               /* since it is wanted: of a try, with `rc`; that it is done without */
	int rc;
	uint64_t retry_ns;
	bool looked; /* at look_ns, and it came to look_rc */
	int look_rc;
	uint64_t look_ns;
};

enum target_doing { TARGET_TAKES, TARGET_GIVES, TARGET_LOOKS };

/* ---- tasks ---- */

static void target_drop(struct target_task *task)
{
	if (!task->gives && !task->looks && task->rc == 0)
		task->disk->ops->unlock(task->disk, task->lock);
	free(task);
}

static void *target_run(void *arg)
{
	struct target_task *task = arg;

	task->rc = 0;
	if (task->gives)
		task->disk->ops->unlock(task->disk, task->lock);
	else
		task->rc = task->disk->ops->lock(task->disk, task->dir, task->who, &task->lock);
	if (task->looks && task->rc == 0)
		task->disk->ops->unlock(task->disk, task->lock);
	if (task->rc == -EBUSY)
		task->disk->ops->is_locked(task->disk, task->dir, task->who, sizeof(task->who));
	if (atomic_exchange_explicit(&task->state, TARGET_OVER, memory_order_acq_rel) == TARGET_LEFT)
		target_drop(task);
	return NULL;
}

/* A thread that nobody waits for, and that takes no signals. 0 or a negative errno. */
static int target_spawn(struct target_task *task)
{
	sigset_t all, before;
	pthread_t thread;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = -pthread_create(&thread, NULL, target_run, task);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc == 0)
		pthread_detach(thread);
	return rc;
}

/* Takes the target's lock, or gives back what it has, or looks. */
static void target_begin(struct targets *t, unsigned index, enum target_doing doing)
{
	struct target *target = &t->targets[index];
	const char *dir = t->place.targets[index];
	struct target_task *task = calloc(1, sizeof(*task) + strlen(dir) + 1);
	int rc = task ? 0 : -ENOMEM;

	if (task) {
		task->disk = t->disk;
		task->gives = doing == TARGET_GIVES;
		task->looks = doing == TARGET_LOOKS;
		task->lock = target->lock;
		memcpy(task->who, t->who, sizeof(task->who));
		memcpy(task->dir, dir, strlen(dir) + 1);
		target->task = task;
		if (t->by_hand)
			target_run(task);
		else
			rc = target_spawn(task);
	}
	if (rc == 0)
		return;
	free(task);
	target->task = NULL;
	if (doing == TARGET_GIVES) {
		t->disk->ops->unlock(t->disk, target->lock);
	} else if (doing == TARGET_TAKES) {
		target->heard = true;
		target->rc = rc;
	}
}

/* What has ended: what was taken is kept, or was wanted once. */
static void targets_hear(struct targets *t)
{
	for (unsigned i = 0; i < t->place.target_count; i++) {
		struct target *target = &t->targets[i];
		struct target_task *task = target->task;

		if (!task || atomic_load_explicit(&task->state, memory_order_acquire) != TARGET_OVER)
			continue;
		target->task = NULL;
		if (task->looks) {
			target->looked = true;
			target->look_rc = task->rc;
		} else if (!task->gives) {
			target->heard = true;
			target->rc = task->rc;
			target->has = task->rc == 0;
			target->lock = task->lock;
			memcpy(target->holder, task->who, sizeof(target->holder));
		}
		free(task);
		if (target->has && !t->wanted) {
			target->has = false;
			target_begin(t, i, TARGET_GIVES);
		}
	}
}

static void targets_ask(struct targets *t)
{
	for (unsigned i = 0; i < t->place.target_count; i++) {
		struct target *target = &t->targets[i];

		if (target->has || target->task || t->now_ns < target->retry_ns)
			continue;
		target->retry_ns = t->now_ns + (t->held ? TARGETS_LATE_NS : TARGETS_RETRY_NS);
		target_begin(t, i, TARGET_TAKES);
	}
}

/* ---- whether they are enough ---- */

struct targets_count {
	unsigned lacking, silent, failed; /* the latter two, of the first */
	unsigned busy, first_silent, first_failed;
	bool is_busy;
};

static struct targets_count targets_count(const struct targets *t)
{
	struct targets_count n = {.lacking = 0};

	for (unsigned i = t->place.target_count; i-- > 0;) { /* the first is seen last */
		const struct target *target = &t->targets[i];

		if (target->has)
			continue;
		n.lacking++;
		if (!target->heard) {
			n.silent++;
			n.first_silent = i;
		} else if (target->rc == -EBUSY) {
			n.is_busy = true;
			n.busy = i;
		} else {
			n.failed++;
			n.first_failed = i;
		}
	}
	return n;
}

static int targets_tell(const struct targets *t, const struct targets_count *n, struct err *e)
{
	const char *dir, *who;

	if (n->is_busy) {
		dir = t->place.targets[n->busy];
		who = t->targets[n->busy].holder;
		return err_set(e, -EBUSY,
			"of checkpoint_targets %s is another phubd's, which runs (%s%s has locked %s/.phub.lock): it "
			"may be the root before this one; if it is not on its way down, stop it, by kill -9 where it "
			"hangs",
			dir, *who ? "the box at " : "it", who, dir);
	}
	if (n->failed > t->place.parity) { /* they alone keep a root out that does not know yet that it is none */
		dir = t->place.targets[n->first_failed];
		return err_set(e, -ENOLCK,
			"%u of %u checkpoint_targets cannot be locked, and another root may write there: %s (%s); see "
			"that it is mounted, with locks, and writable",
			n->failed, t->place.target_count, dir, strerror(-t->targets[n->first_failed].rc));
	}
	return err_set(e, -EAGAIN,
		"of checkpoint_targets %s has not answered for %.1f s: see that its disk or server is up, or unmount "
		"it",
		t->place.targets[n->first_silent], (double)(t->now_ns - t->since_ns) / 1e9);
}

static void targets_tell_lacking(struct targets *t)
{
	for (unsigned i = 0; i < t->place.target_count; i++) {
		struct target *target = &t->targets[i];

		if (target->has)
			continue;
		target->told = true;
		log_warn("checkpoint_targets: %s is not locked against another box (%s); parity makes up for it, and "
			 "it is tried again",
			t->place.targets[i], target->heard ? strerror(-target->rc) : "it does not answer");
	}
}

int targets_take(struct targets *t, uint64_t now_ns, struct err *e)
{
	struct targets_count n;

	t->now_ns = now_ns;
	for (unsigned i = 0; i < t->place.target_count && !t->wanted; i++) {
		t->targets[i].heard = t->targets[i].told = false;
		t->targets[i].retry_ns = 0;
	}
	t->since_ns = t->wanted ? t->since_ns : now_ns;
	t->wanted = true;
	if (t->held)
		return 0;
	targets_hear(t);
	targets_ask(t);
	targets_hear(t); /* by hand */
	n = targets_count(t);
	if (n.is_busy || n.lacking > t->place.parity || (n.silent > 0 && now_ns < t->since_ns + TARGETS_SLOW_NS))
		return targets_tell(t, &n, e);
	targets_tell_lacking(t);
	t->held = true;
	return 0;
}

/* ---- afterwards ---- */

bool targets_has(const struct targets *t)
{
	for (unsigned i = 0; i < t->place.target_count; i++)
		if (t->targets[i].has)
			return true;
	return false;
}

void targets_step(struct targets *t, uint64_t now_ns)
{
	t->now_ns = now_ns;
	targets_hear(t);
	if (!t->held)
		return;
	targets_ask(t);
	for (unsigned i = 0; i < t->place.target_count; i++) {
		struct target *target = &t->targets[i];

		if (!target->told || !target->has)
			continue;
		target->told = false;
		log_info("checkpoint_targets: %s is locked, too", t->place.targets[i]);
	}
}

void targets_give(struct targets *t)
{
	t->wanted = t->held = false;
	for (unsigned i = 0; i < t->place.target_count; i++) {
		struct target *target = &t->targets[i];

		if (!target->has)
			continue;
		target->has = false;
		target_begin(t, i, TARGET_GIVES);
	}
	targets_hear(t);
}

/* ---- how they are ---- */

void targets_look(struct targets *t, uint64_t now_ns)
{
	t->now_ns = now_ns;
	targets_hear(t);
	for (unsigned i = 0; i < t->place.target_count && !t->wanted; i++) {
		struct target *target = &t->targets[i];

		if (target->task || (target->looked && now_ns < target->look_ns + TARGETS_LOOK_NS))
			continue;
		target->looked = false;
		target->look_ns = now_ns;
		target_begin(t, i, TARGET_LOOKS);
	}
	targets_hear(t); /* by hand */
}

void targets_describe(const struct targets *t, struct targets_report *out)
{
	*out = (struct targets_report){.count = t->place.target_count};
	for (unsigned i = 0; i < t->place.target_count; i++) {
		const struct target *target = &t->targets[i];
		bool heard = t->wanted ? target->heard : target->looked;
		int rc = t->wanted ? target->rc : target->look_rc;
		bool well = target->has || (heard && (rc == 0 || rc == -EBUSY));

		out->locked += target->has;
		out->free += !target->has && heard && rc == 0;
		out->taken += !target->has && heard && rc == -EBUSY;
		out->failed += !well && heard;
		out->silent += !well && !heard;
		if (!well && !out->why[0])
			snprintf(out->why, sizeof(out->why), "%s: %s", t->place.targets[i],
				heard ? strerror(-rc) : "it does not answer");
	}
}

/* ---- life ---- */

int targets_init(struct targets *t, const char *list, unsigned parity, const char *who, struct disk *disk, bool by_hand)
{
	*t = (struct targets){.by_hand = by_hand, .place = {.parity = parity, .disk = disk}};
	t->disk = checkpoint_disk(&t->place);
	snprintf(t->who, sizeof(t->who), "%s", who);
	t->text = strdup(list);
	if (t->text && checkpoint_list_targets(&t->place, t->text) == 0)
		t->targets = calloc(t->place.target_count, sizeof(*t->targets));
	if (t->targets)
		return 0;
	free(t->text);
	*t = (struct targets){.disk = NULL};
	return -ENOMEM;
}

void targets_fini(struct targets *t)
{
	targets_give(t);
	for (unsigned i = 0; i < t->place.target_count; i++) {
		struct target_task *task = t->targets[i].task;

		if (task && atomic_exchange_explicit(&task->state, TARGET_LEFT, memory_order_acq_rel) == TARGET_OVER)
			target_drop(task);
	}
	free(t->targets);
	free(t->text);
	*t = (struct targets){.disk = NULL};
}
