/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One task at a time, each in a thread of its own that is joined when it is over: it looks at the targets, or claims
 * them. What a thread works on is its task's, and outlives the box where a disk never answers.
 */
#include "phub/control/promotion.h"

#include <ctype.h>
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/control/above.h"
#include "phub/control/box.h"
#include "phub/control/config_values.h"
#include "phub/control/control.h"
#include "phub/control/job.h"
#include "phub/control/parent.h"
#include "phub/control/root_file.h"

#define PROMOTION_TARGETS_BYTES sizeof(((struct config *)NULL)->checkpoint_targets)
#define PROMOTION_LOOK_NS       (2 * NS_PER_S)   /* between two looks at the targets */
#define PROMOTION_OVER_NS       (10 * NS_PER_MS) /* between two looks whether a task is over; where that takes long: */
#define PROMOTION_LATE_NS       (250 * NS_PER_MS)
#define PROMOTION_END_NS        NS_PER_S /* the box goes down: a disk has so long */

struct promotion_task {
	pthread_t thread; /* a box by hand has none: it is over as soon as it has begun */
	_Atomic bool over;
	bool claims;   /* else it only looks */
	bool unlocked; /* for tests: SHARD_PLANT_UNLOCKED */
	struct checkpoint_place place;
	char targets[PROMOTION_TARGETS_BYTES]; /* place.targets point into it */
	char self[BOX_ADDRESS_BYTES];
	uint64_t least;        /* claims: no epoch below this one */
	struct root_file mine; /* looks: what a root that was promoted has written; epoch 0: it is none */
	int mended;            /* ...targets that had it not; or why one cannot get it, as `unmended` says */
	struct err unmended;
	struct root_file was, file; /* claims: what was there, and what is written */
	struct checkpoint_locks locks;
	int result;
	struct err why;
};

struct promotion {
	struct promotion_task *task; /* NULL: none is under way */
	uint64_t begun_ns, look_ns;
	struct root_file file; /* as read or written last; epoch 0: there is none */
	bool wanted;           /* by the operator, who is not answered yet, */
	bool heeds;            /* or by what the targets say */
	struct root_file claim;
	struct err failed; /* the last claim; code 0: it did not */
	int look_failed;   /* likewise of looks, told once; */
	int mend_failed;   /* and of a root's, that mend what targets say */
};

/* ---- what a box is called ---- */

static bool promotion_is_any(const char *host)
{
	return !host[0] || strcmp(host, "*") == 0 || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

static bool promotion_is_loopback(const char *host)
{
	return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
}

static void promotion_write_address(const char *host, unsigned port, char *out, size_t bytes)
{
	snprintf(out, bytes, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
}

static const char *promotion_name(const struct config *config)
{
	return config->racks.box_count > 0 ? config->racks.boxes[config->racks_box].name : config->box;
}

/* For those who find its locks. */
static const char *promotion_self(const struct box *box)
{
	return box->listener_count > 0 ? box->listeners[0].bound : "";
}

/* Where it listens, but at all addresses. False: nowhere like that. */
static bool promotion_find_listener(const struct box *box, bool loopback, char *out, size_t bytes)
{
	struct config_listen at;

	for (unsigned i = 0; i < box->listener_count; i++) {
		if (value_read_address(box->listeners[i].bound, &at) < 0 || promotion_is_any(at.host) ||
			promotion_is_loopback(at.host) != loopback)
			continue;
		promotion_write_address(at.host, at.port, out, bytes);
		return true;
	}
	return false;
}

/* A port that it was called by, and not one that something before it has mapped to its own: started again, it must know
 * itself by that. */
static bool promotion_listens_on(const struct box *box, uint16_t port)
{
	struct config_listen at;

	for (unsigned i = 0; i < box->listener_count; i++)
		if (value_read_address(box->listeners[i].bound, &at) == 0 && at.port == port)
			return true;
	return false;
}

/* Where others reach it: 0 or -EDESTADDRREQ. */
static int promotion_find_address(const struct box *box, const char *typed, char *out, size_t bytes, struct err *e)
{
	const struct config *config = box->config;
	const struct rack_box *own = config->racks.box_count > 0 ? &config->racks.boxes[config->racks_box] : NULL;
	struct config_listen at;

	if (config->advertise[0])
		promotion_write_address(config->advertise_at.host, config->advertise_at.port, out, bytes);
	else if (own)
		promotion_write_address(own->host, own->port, out, bytes);
	else if (promotion_find_listener(box, false, out, bytes))
		return 0;
	else if (value_read_address(typed, &at) == 0 && promotion_listens_on(box, at.port) &&
		 !promotion_is_any(at.host) && !promotion_is_loopback(at.host))
		promotion_write_address(at.host, at.port, out, bytes);
	else if (!promotion_find_listener(box, true, out, bytes))
		return err_set(e, -EDESTADDRREQ,
			"where other boxes reach this one is not known, as it listens at all addresses; name it by "
			"the address that they call (phub promote HOST:PORT), or set advertise");
	return 0;
}

static bool promotion_is_numeric(const char *host)
{
	struct in6_addr address;

	return inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
}

/* Does the file mean this box? `looks_up`: a host's name in it may be looked up, which blocks. */
static bool promotion_is_own(const struct box *box, const struct root_file *file, bool looks_up)
{
	const char *name = promotion_name(box->config);
	char own[320];
	struct config_listen at;

	if (name[0] && file->box[0])
		return strcmp(name, file->box) == 0;
	if (promotion_find_address(box, "", own, sizeof(own), NULL) == 0 && strcmp(own, file->address) == 0)
		return true;
	return value_read_address(file->address, &at) == 0 && (looks_up || promotion_is_numeric(at.host)) &&
	       config_is_here(box->config, at.host, at.port);
}

/* 0 or -EDESTADDRREQ. */
static int promotion_read_place(const struct root_file *file, struct above_place *out, struct err *e)
{
	*out = (struct above_place){.tls = file->tls, .epoch = file->epoch};
	snprintf(out->box, sizeof(out->box), "%s", file->box);
	if (value_read_address(file->address, &out->at) == 0 && out->at.host[0] && out->at.port)
		return 0;
	return err_set(e, -EDESTADDRREQ,
		"checkpoint_targets say that another box is the root, of epoch %" PRIu64
		", and not where; set uplink to that one",
		file->epoch);
}

/* ---- tasks: the thread ---- */

/* Another box has them: which? */
static void promotion_tell_holder(const struct checkpoint_place *place, struct err *e)
{
	struct disk *disk = checkpoint_disk(place);
	char who[BOX_ADDRESS_BYTES] = "";

	for (unsigned i = 0; i < place->target_count; i++)
		if (disk->ops->is_locked(disk, place->targets[i], who, sizeof(who)))
			break;
	if (who[0])
		err_set(e, e->code,
			"the box at %s has the locks of checkpoint_targets: it lives, or hangs. End it there (kill "
			"-9), "
			"and try again",
			who);
}

/* For this process, all of them but as many as parity makes up for. 0; -EBUSY, -ENOLCK: none is. Any thread; blocks. */
static int promotion_lock(
	const struct checkpoint_place *place, const char *self, struct checkpoint_locks *locks, struct err *e)
{
	int rc = checkpoint_lock_targets(place, self, locks, e);

	if (rc == -EBUSY)
		promotion_tell_holder(place, e);
	if (rc <= (int)place->parity)
		return rc < 0 ? rc : 0;
	checkpoint_unlock_targets(locks);
	return err_set(e, -ENOLCK, "%d of %u checkpoint_targets cannot be locked, and another root may write there: %s",
		rc, place->target_count, e->text);
}

/* What an earlier claim has left, which failed at the very end, names the box already; others heed that. */
static bool promotion_names(const struct root_file *was, const struct root_file *claim, uint64_t least)
{
	return was->epoch && was->epoch >= least && strcmp(was->address, claim->address) == 0 &&
	       strcmp(was->box, claim->box) == 0;
}

static int promotion_claim(struct promotion_task *t)
{
	struct disk *disk = checkpoint_disk(&t->place);
	int rc = t->unlocked ? 0 : promotion_lock(&t->place, t->self, &t->locks, &t->why);

	if (rc == 0)
		rc = root_file_read(&t->place, &t->was, &t->why);
	if (rc < 0)
		return rc;
	if (promotion_names(&t->was, &t->file, t->least)) {
		t->file = t->was;
		return root_file_renew(&t->place, &t->file, &t->why);
	}
	t->file.epoch = 1 + (t->was.epoch > t->least ? t->was.epoch : t->least);
	t->file.written_ms = disk->ops->now_ms(disk);
	return root_file_write(&t->place, &t->file, &t->why);
}

static int promotion_look(struct promotion_task *t)
{
	int rc = root_file_read(&t->place, &t->file, &t->why);

	if (!t->mine.epoch || (rc >= 0 && t->file.epoch > t->mine.epoch))
		return rc;
	t->mended = root_file_mend(&t->place, &t->mine, &t->unmended);
	t->file = t->mine;
	return rc;
}

static void *promotion_thread(void *arg)
{
	struct promotion_task *t = arg;

	t->result = t->claims ? promotion_claim(t) : promotion_look(t);
	if (t->claims && t->result < 0)
		checkpoint_unlock_targets(&t->locks);
	atomic_store_explicit(&t->over, true, memory_order_release);
	return NULL;
}

/* ---- tasks: control ---- */

/* It is over. */
static void promotion_join(const struct box *box, const struct promotion_task *t)
{
	if (!box->env.by_hand)
		pthread_join(t->thread, NULL);
}

static void promotion_name_targets(
	const struct box *box, char text[PROMOTION_TARGETS_BYTES], struct checkpoint_place *out)
{
	const struct config *config = box->config;

	memcpy(text, config->checkpoint_targets, PROMOTION_TARGETS_BYTES);
	*out = (struct checkpoint_place){.parity = (unsigned)config->checkpoint_parity, .disk = box->env.disk};
	(void)checkpoint_list_targets(out, text); /* how many there can be was seen when the options were read */
}

/* False: there is no memory, or no thread. */
static bool promotion_run(struct control *c, bool claims)
{
	struct promotion *p = c->box->promotion;
	struct promotion_task *t = calloc(1, sizeof(*t));

	if (!t)
		return false;
	t->claims = claims;
	t->unlocked = c->box->env.plant == SHARD_PLANT_UNLOCKED;
	t->least = c->above.seen > 1 ? c->above.seen : 1;
	if (c->above.epoch && c->above.epoch == p->file.epoch && c->box->locks.count > 0)
		t->mine = p->file;
	if (claims)
		t->file = p->claim;
	snprintf(t->self, sizeof(t->self), "%s", promotion_self(c->box));
	promotion_name_targets(c->box, t->targets, &t->place);
	if (c->box->env.by_hand) {
		promotion_thread(t);
	} else if (pthread_create(&t->thread, NULL, promotion_thread, t) != 0) {
		free(t);
		return false;
	}
	p->task = t;
	p->begun_ns = c->now_ns;
	return true;
}

/* ---- another box is the root ---- */

/* It was this one. Without a way up it can only end, and is below that one when it comes again; not with a standby,
 * which promotion_be_below() says then. */
static void promotion_lose(struct control *c, const struct above_place *by)
{
	struct box *box = c->box;

	above_depose(c, by, "an operator has promoted another");
	if (box->outlets.count > 0 && !box->config->standby[0]) {
		above_follow(c, by);
		return;
	}
	err_set(&box->ended, -EOWNERDEAD,
		"an operator has promoted the box at %s:%u, of epoch %" PRIu64
		", to be the root in place of this one, which ends; when it is started again%s it is below that",
		by->at.host, by->at.port, by->epoch, box->config->standby[0] ? ", without a standby," : "");
	control_stop(c);
}

/* It is this box, which is it not, as a disk failed while that was written: so it would be if it came again. */
static void promotion_heed_own(struct promotion *p, const struct root_file *file)
{
	p->claim = *file;
	p->wanted = p->heeds = true;
}

static void promotion_heed(struct control *c, const struct root_file *file)
{
	struct promotion *p = c->box->promotion;
	bool news = file->epoch != p->file.epoch || strcmp(file->address, p->file.address) != 0;
	struct above_place place;
	struct err e;

	p->file = *file;
	if (file->epoch < c->above.seen || file->epoch <= c->above.epoch)
		return;
	if (promotion_is_own(c->box, file, false)) {
		promotion_heed_own(p, file);
		return;
	}
	if (!news)
		return;
	if (promotion_read_place(file, &place, &e) < 0)
		log_error("%s", e.text);
	else if (above_epoch(c))
		promotion_lose(c, &place);
	else
		above_follow(c, &place);
}

/* ---- what comes of tasks ---- */

static void promotion_looked(struct control *c, const struct promotion_task *t)
{
	struct promotion *p = c->box->promotion;

	if (t->result < 0 && t->result != p->look_failed)
		log_warn("whether this box's root was replaced cannot be seen: %s", t->why.text);
	p->look_failed = t->result;
	if (t->mended > 0)
		log_info("%d of checkpoint_targets did not say that this box is the root, and do again", t->mended);
	else if (t->mended < 0 && t->mended != p->mend_failed)
		log_warn("checkpoint_targets: %s; the others say that this box is the root", t->unmended.text);
	p->mend_failed = t->mended;
	if (t->result >= 0)
		promotion_heed(c, &t->file);
}

static void promotion_claimed(struct control *c, struct promotion_task *t)
{
	struct promotion *p = c->box->promotion;

	bool told = p->heeds && p->failed.code == t->result;

	if (t->result < 0 && !p->heeds)
		p->look_ns = c->now_ns; /* some targets may say already that it is it */
	p->wanted = p->heeds = false;
	if (t->result < 0) {
		p->failed = t->why;
		if (told)
			return;
		log_warn("this box was not promoted to be the root, as %s wanted: %s", p->claim.by, t->why.text);
		return;
	}
	if (t->result > 0)
		log_warn("checkpoint_targets: %s; the other targets say who is the root", t->why.text);
	c->box->locks = t->locks;
	p->file = t->file;
	above_promote(c, t->file.epoch, t->file.by);
}

static void promotion_reap(struct control *c)
{
	struct promotion *p = c->box->promotion;
	struct promotion_task *t = p->task;

	if (!t || !atomic_load_explicit(&t->over, memory_order_acquire))
		return;
	promotion_join(c->box, t);
	p->task = NULL;
	p->look_ns = c->now_ns + PROMOTION_LOOK_NS;
	if (c->stopping) /* what it has written holds when it is started again */
		checkpoint_unlock_targets(&t->locks);
	else if (t->claims)
		promotion_claimed(c, t);
	else
		promotion_looked(c, t);
	free(t);
}

void promotion_step(struct control *c)
{
	struct promotion *p = c->box->promotion;

	if (!p)
		return;
	promotion_reap(c);
	if (p->task || c->stopping)
		return;
	if (p->wanted && !promotion_run(c, true)) {
		p->wanted = false;
		err_set(&p->failed, -EAGAIN,
			"the box has no memory or thread to look at checkpoint_targets with; "
			"raise `ulimit -u` there");
	} else if (!p->wanted && c->now_ns >= p->look_ns && !promotion_run(c, false)) {
		p->look_ns = c->now_ns + PROMOTION_LOOK_NS;
	}
}

uint64_t promotion_next(const struct control *c)
{
	const struct promotion *p = c->box->promotion;

	if (!p || (c->stopping && !p->task))
		return CLOCK_NEVER;
	if (p->task)
		return c->now_ns + (c->now_ns - p->begun_ns < NS_PER_S ? PROMOTION_OVER_NS : PROMOTION_LATE_NS);
	return p->wanted ? c->now_ns : p->look_ns;
}

/* ---- the operator ---- */

/* May it be promoted at all? 0, or -EPERM. */
static int promotion_check(const struct control *c, struct err *e)
{
	const struct config *config = c->config;
	char above[340];

	above_name(c, above, sizeof(above));
	if (config->root[0])
		return err_set(e, -EPERM,
			"the lease in etcd decides which box is the root '%s', which is %s now; when that is gone "
			"another follows, etcd_ttl_ms later",
			config->root, above);
	if (config->uplink_name[0])
		return err_set(e, -EPERM,
			"the box above is that which etcd knows as '%s'; set root there and here, and one of both is "
			"it by a lease",
			config->uplink_name);
	if (config->hostbox_fd)
		return err_set(e, -EPERM,
			"this is the box of a host, which its workers started; promote one that an "
			"operator did");
	if (!c->box->promotion)
		return err_set(e, -EPERM,
			"it has no checkpoint_targets: jobs would begin anew, and the old root would not learn that it "
			"is none. Start it with those of the old root, on a mount that both have; or, where that one "
			"never comes again, without uplink");
	return 0;
}

/* 0, or -EBUSY: what it is below is up. */
static int promotion_check_above(const struct control *c, struct err *e)
{
	struct parent_report above;
	char is[340];

	for (const struct job *job = c->jobs; job; job = job->next) {
		if (job->state == JOB_ENDING || !parent_describe(job, &above) || above.state == PARENT_DIALLING)
			continue;
		return err_set(e, -EBUSY,
			"the box above, %s, is up: job '%s' is with it. Where it hangs, or cannot be reached, it is "
			"given up in lost_ms; else end it first",
			above_name(c, is, sizeof(is)), job->name);
	}
	return 0;
}

static int promotion_begin(struct control *c, const char *who, const char *typed, struct err *e)
{
	struct promotion *p = c->box->promotion;
	struct root_file claim = {.tls = c->config->tls == CONFIG_TLS_REQUIRE};
	int rc = promotion_check_above(c, e);

	if (rc == 0 && c->box->locks.count > 0)
		rc = err_set(e, -EBUSY,
			"it was the root before, and its last checkpoints are still being written; try again in a "
			"moment");
	if (rc == 0)
		rc = promotion_find_address(c->box, typed, claim.address, sizeof(claim.address), e);
	if (rc < 0)
		return rc;
	snprintf(claim.box, sizeof(claim.box), "%s", promotion_name(c->config));
	snprintf(claim.by, sizeof(claim.by), "%s", who);
	for (char *at = claim.by; *at; at++)
		*at = isprint((unsigned char)*at) ? *at : '?';
	log_info("%s promotes this box to be the root, at %s", claim.by, claim.address);
	p->claim = claim;
	p->wanted = true;
	p->heeds = false;
	p->failed = (struct err){.code = 0};
	c->again = true;
	return 0;
}

int promotion_ask(
	struct control *c, const char *who, const char *typed, bool again, enum promotion_state *state, struct err *e)
{
	struct promotion *p = c->box->promotion;
	int rc;

	if (c->stopping)
		return err_set(e, -ESHUTDOWN, "it goes down");
	if (above_is_root(c) || above_epoch(c)) {
		*state = again ? PROMOTION_DONE : PROMOTION_ROOT;
		return 0;
	}
	rc = promotion_check(c, e);
	if (rc < 0)
		return rc;
	if (again && !p->wanted)
		return p->failed.code ? err_set(e, p->failed.code, "%s", p->failed.text)
				      : err_set(e, -ENOENT, "it was started again since; promote it again");
	rc = p->wanted ? 0 : promotion_begin(c, who, typed, e);
	if (rc == 0)
		*state = PROMOTION_BEGUN;
	return rc;
}

const struct root_file *promotion_file(const struct control *c)
{
	const struct promotion *p = c->box->promotion;

	return p && p->file.epoch ? &p->file : NULL;
}

/* ---- start and end ---- */

static void promotion_say_when(const struct root_file *file, char *out, size_t bytes)
{
	time_t seconds = (time_t)(file->written_ms / 1000);
	struct tm tm;

	out[0] = '\0';
	if (gmtime_r(&seconds, &tm))
		strftime(out, bytes, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

/* The targets say that this box is it. */
static int promotion_be_root(struct box *box, const struct checkpoint_place *place, struct err *e)
{
	const struct root_file *file = &box->promotion->file;
	char when[40];
	int rc = 0;

	if (box->locks.count + place->parity < place->target_count) { /* where nobody was promoted some may do */
		checkpoint_unlock_targets(&box->locks);
		rc = promotion_lock(place, promotion_self(box), &box->locks, e);
	}
	if (rc < 0)
		return rc;
	promotion_say_when(file, when, sizeof(when));
	above_begin(&box->control, file->epoch);
	log_info("this box is the root, of epoch %" PRIu64 ", as checkpoint_targets say%s: promoted by %s, %s",
		file->epoch, box->config->uplink[0] ? ", and not below its uplink" : "", file->by, when);
	return 0;
}

static int promotion_be_below(struct box *box, const struct root_file *file, struct err *e)
{
	struct above_place place;
	int rc = promotion_read_place(file, &place, e);

	checkpoint_unlock_targets(&box->locks);
	if (rc == -EDESTADDRREQ && box->config->uplink[0]) {
		log_warn("%s; it may be there", e->text);
		return 0;
	}
	if (rc == 0 && box->config->standby[0])
		rc = err_set(e, -ENOTSUP,
			"checkpoint_targets say that the box at %s is the root, of epoch %" PRIu64
			", and this one would be below it, which a box with a standby cannot be: take standby away",
			file->address, file->epoch);
	if (rc == 0)
		rc = outlets_open_up(box, e);
	if (rc == 0)
		above_follow(&box->control, &place);
	return rc;
}

/* With or without the locks, as `rc` says. */
static int promotion_settle(struct box *box, int rc, struct err *e)
{
	struct promotion *p = box->promotion;
	char text[PROMOTION_TARGETS_BYTES];
	struct checkpoint_place place;
	struct err why;
	int read;

	promotion_name_targets(box, text, &place);
	read = root_file_read(&place, &p->file, &why);
	if (read < 0)
		return rc < 0 ? rc : err_set(e, read, "checkpoint_targets: %s", why.text);
	if (read > 0)
		log_warn("checkpoint_targets: %s; the other targets say who is the root", why.text);
	if (p->file.epoch && !promotion_is_own(box, &p->file, true))
		return promotion_be_below(box, &p->file, e);
	return rc < 0 || !p->file.epoch ? rc : promotion_be_root(box, &place, e);
}

int promotion_open(struct box *box, struct err *e)
{
	const struct config *config = box->config;
	int rc = box_check_targets(config, box, false, e);

	if (!config->checkpoint_targets[0] || config->root[0] || config->uplink_name[0] || config->hostbox_fd)
		return rc;
	if (rc < 0 && rc != -EBUSY)
		return rc;
	box->promotion = calloc(1, sizeof(*box->promotion));
	if (!box->promotion)
		return err_set(e, -ENOMEM, "no memory to look who is the root");
	return promotion_settle(box, rc, e);
}

void promotion_close(struct box *box)
{
	static const struct timespec pause = {.tv_nsec = PROMOTION_OVER_NS};
	struct promotion *p = box->promotion;
	uint64_t until_ns = clock_now_ns() + PROMOTION_END_NS;

	if (!p)
		return;
	while (p->task && !atomic_load_explicit(&p->task->over, memory_order_acquire) && clock_now_ns() < until_ns)
		nanosleep(&pause, NULL);
	if (p->task && atomic_load_explicit(&p->task->over, memory_order_acquire)) {
		promotion_join(box, p->task);
		checkpoint_unlock_targets(&p->task->locks);
		free(p->task);
	}
	free(p);
	box->promotion = NULL;
}
