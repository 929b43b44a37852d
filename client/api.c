/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public calls. Each checks its arguments, takes the lock, does one step of client.h, and waits if it is to wait;
 * errors become the calling thread's phub_error(). Any thread.
 */
#include "client/api.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "client/find.h"
#include "client/forked.h"
#include "client/handle.h"
#include "client/hostbox.h"
#include "client/launcher.h"
#include "phub/base/clock.h"

enum {
	API_ASK_MS = 100,   /* so long before its deadline a wait asks who is missing; at half time when it is short */
	API_ANSWER_MS = 20, /* so long after it an answer is waited for */
};

static _Thread_local struct err api_error;

const char *phub_error(void)
{
	return api_error.text;
}

struct err *api_last_error(void)
{
	return &api_error;
}

/* ---- entering and leaving ---- */

static int api_refuse(const phub_t *p)
{
	if (!p)
		return err_set(&api_error, -EINVAL, "the handle is NULL; phub_connect() makes one");
	return err_set(&api_error, -EPERM,
		"%s: this process was forked after phub_connect() and holds no part of the connection", p->session.who);
}

/* Takes the lock. 0, or the error: then it is not taken. */
static inline int api_enter(phub_t *p)
{
	if (!p || p->forked)
		return api_refuse(p);
	drive_lock(p);
	return 0;
}

static inline int api_leave(phub_t *p, int rc)
{
	client_look(p);
	drive_hand_over(p);
	drive_unlock(p);
	return rc;
}

/* What has ended the session, as the call's error; 0 while it lives. */
static int api_alive(const phub_t *p)
{
	const struct err *failure = client_failure(p);

	return failure->code ? err_set(&api_error, failure->code, "%s", failure->text) : 0;
}

/* As api_enter(), for a session that lives. */
static int api_enter_alive(phub_t *p)
{
	int rc = api_enter(p);

	if (rc < 0)
		return rc;
	rc = api_alive(p);
	return rc < 0 ? api_leave(p, rc) : 0;
}

static int api_check_key(const phub_t *p, int key, bool all)
{
	if ((all && key == PHUB_ALL) || (key >= 0 && (uint32_t)key < p->keyring.count))
		return 0;
	return err_set(&api_error, -EINVAL, "%s: there is no key %d; there are %" PRIu32, p->session.who, key,
		p->keyring.count);
}

/* Why the key cannot be exchanged; 0: it can. */
static int api_check_round(const phub_t *p, int key)
{
	int rc = api_alive(p);

	if (rc < 0)
		return rc;
	if (!p->running)
		return err_set(&api_error, -EINVAL, "%s: phub_start() has not been completed", p->session.who);
	return api_check_key(p, key, false);
}

/* As api_enter_alive(), for a key that exists, and rounds that may run. */
static inline int api_enter_key(phub_t *p, int key)
{
	int rc = api_enter(p);

	if (rc < 0)
		return rc;
	if (p->running && !client_failure(p)->code && key >= 0 && (uint32_t)key < p->keyring.count)
		return 0;
	rc = api_check_round(p, key);
	return rc < 0 ? api_leave(p, rc) : 0;
}

/* To ask for the end of a round: also when the session is over, but was not yet when the round was done. */
static int api_enter_result(phub_t *p, int key, bool all)
{
	int rc = api_enter(p), good;

	if (rc < 0)
		return rc;
	good = api_check_key(p, key, all);
	rc = api_alive(p);
	if (rc < 0 && good == 0 && client_idle(p, key) > 0)
		return 0;
	if (rc == 0)
		rc = good;
	return rc < 0 ? api_leave(p, rc) : 0;
}

/*
 * Waits until the deadline, and asks the box shortly before it who is missing: by itself it tells that once a second.
 * A moment more for an answer that is on its way.
 */
static int api_wait_asking(phub_t *p, drive_done *done, int arg, uint64_t begin_ns, uint64_t deadline_ns)
{
	uint64_t early = deadline_ns > begin_ns ? (deadline_ns - begin_ns) / 2 : 0;
	uint64_t ask_ns, now_ns;
	int rc;

	if (early > API_ASK_MS * NS_PER_MS)
		early = API_ASK_MS * NS_PER_MS;
	ask_ns = deadline_ns - early;
	rc = drive_wait(p, done, arg, ask_ns);
	if (rc != -ETIMEDOUT || early == 0)
		return rc;
	client_ask(p, arg, ask_ns, p->env.now(p->env.ctx));
	rc = drive_wait(p, done, arg, deadline_ns);
	while (rc == -ETIMEDOUT && !client_answered(p, arg, ask_ns)) {
		now_ns = p->env.now(p->env.ctx);
		if (now_ns >= deadline_ns + API_ANSWER_MS * NS_PER_MS)
			break;
		client_ask(p, arg, ask_ns, now_ns); /* what is waited for may be another chunk by now */
		rc = drive_wait(p, done, arg, now_ns + NS_PER_MS);
	}
	return rc;
}

/* Waits under the lock. -ETIMEDOUT says what for. */
static int api_wait(phub_t *p, drive_done *done, int arg, int timeout_ms)
{
	char text[ERR_TEXT_MAX];
	uint64_t begin = p->env.now(p->env.ctx);
	int ms = timeout_ms == PHUB_TIMEOUT_DEFAULT ? p->settings.timeout_ms : timeout_ms;
	int rc;

	if (ms < 0)
		return err_set(&api_error, -EINVAL, "%s: a timeout of %d ms; 0 or more, or PHUB_TIMEOUT_DEFAULT",
			p->session.who, timeout_ms);
	rc = api_wait_asking(p, done, arg, begin, clock_deadline_ns(begin, ms));
	if (rc == -ETIMEDOUT && !client_failure(p)->code) {
		client_explain(p, arg, p->env.now(p->env.ctx), text, sizeof(text));
		return err_set(&api_error, rc, "%s (after %d ms)", text, ms);
	}
	return rc < 0 ? api_alive(p) : rc;
}

/* The same, counted as time spent waiting. */
static int api_wait_counted(phub_t *p, drive_done *done, int arg, int timeout_ms)
{
	uint64_t begin = p->env.now(p->env.ctx);
	int rc = api_wait(p, done, arg, timeout_ms);

	p->wait_ns += p->env.now(p->env.ctx) - begin;
	return rc;
}

static int api_joined(const phub_t *p, int arg)
{
	(void)arg;
	return client_joined(p);
}

static int api_started(const phub_t *p, int arg)
{
	(void)arg;
	return client_started(p);
}

static int api_idle(const phub_t *p, int key)
{
	int rc = client_idle(p, key);

	return rc > 0 ? 0 : rc < 0 ? rc : -EAGAIN;
}

static int api_passed(const phub_t *p, int arg)
{
	(void)arg;
	return client_barrier_passed(p);
}

static int api_moved(const phub_t *p, int arg)
{
	(void)arg;
	return client_moved(p);
}

static int api_left(const phub_t *p, int arg)
{
	(void)arg;
	return client_left(p);
}

static int api_wait_result(phub_t *p, int key, int timeout_ms)
{
	/* Of many keys most are done when the first one is: nothing to drive, and no time to be counted. */
	bool done = timeout_ms >= PHUB_TIMEOUT_DEFAULT && client_idle(p, key) > 0;
	int rc = done ? 0 : api_wait_counted(p, api_idle, key, timeout_ms);

	if (rc == 0)
		client_claim(p, key);
	return rc;
}

/* ---- connecting ---- */

/* No box within the time: the reason of the last try, where the header promises it. */
static int api_connect_code(const phub_t *p, int rc)
{
	if (rc == -ETIMEDOUT && client_session_unreachable(&p->session) && p->session.trouble.code == -ECONNREFUSED)
		return -ECONNREFUSED;
	return rc;
}

/* The host's own box comes first, where one is wanted. `p` is locked: no fork comes between. */
static int api_find_hostbox(phub_t *p, uint64_t deadline_ns)
{
	struct client_session *s = &p->session;
	struct url_box at;
	char note[200];
	int rc;

	if (!p->settings.hostbox)
		return 0;
	rc = hostbox_join(&p->settings, deadline_ns, &p->hostbox_fd, note, sizeof(note), &api_error);
	if (rc < 0)
		return rc;
	at.port = p->settings.url.port;
	memcpy(at.host, p->settings.url.host, sizeof(at.host));
	client_session_aim(s, &at);
	snprintf(s->box + strlen(s->box), sizeof(s->box) - strlen(s->box), "%s", note);
	return 0;
}

/* For how long it may wait to be let in: a host's box, or etcd, has taken some of the time. */
static int api_connect_ms(const phub_t *p, int left_ms, uint64_t deadline_ns)
{
	if (p->hostbox_fd < 0)
		return left_ms;
	return clock_timeout_ms(p->env.now(p->env.ctx), deadline_ns);
}

/* By etcd; *left_ms: what is left of the time to connect. */
static int api_find(const struct client_env *env, const char *url, const struct phub_options *options,
	char found[FIND_URL_BYTES], int *left_ms)
{
	struct phub_options o;
	uint64_t now_ns = env->now(env->ctx), deadline_ns;
	int rc;

	phub_options_init(&o);
	if (options && options->size > offsetof(struct phub_options, timeout_ms))
		o.timeout_ms = options->timeout_ms;
	deadline_ns = clock_deadline_ns(now_ns, o.timeout_ms > 0 ? o.timeout_ms : 0);
	rc = find_url(url, deadline_ns, found, &api_error);
	*left_ms = clock_timeout_ms(env->now(env->ctx), deadline_ns);
	return rc;
}

int phub_connect(const char *url, const struct phub_options *options, phub_t **out)
{
	struct client_env env;
	char found[FIND_URL_BYTES];
	int rc, left_ms = PHUB_TIMEOUT_DEFAULT;
	uint64_t deadline_ns;
	phub_t *p;

	if (!out)
		return err_set(&api_error, -EINVAL, "phub_connect() needs a place for the handle");
	env_product(&env, NULL);
	if (find_is_wanted(url)) {
		rc = api_find(&env, url, options, found, &left_ms);
		if (rc < 0)
			return rc;
		url = found;
	}
	rc = client_open(url, options, &env, &p, &api_error);
	if (rc < 0)
		return rc;
	env_product(&p->env, &p->settings);
	forked_add(p);
	drive_lock(p);
	deadline_ns = clock_deadline_ns(
		p->env.now(p->env.ctx), left_ms == PHUB_TIMEOUT_DEFAULT ? p->settings.timeout_ms : left_ms);
	rc = drive_open(&p->drive, &api_error);
	if (rc == 0)
		rc = api_find_hostbox(p, deadline_ns);
	if (rc == 0)
		rc = api_connect_code(p, api_wait(p, api_joined, PHUB_ALL, api_connect_ms(p, left_ms, deadline_ns)));
	if (rc == 0 && !p->settings.no_thread)
		rc = drive_thread_start(p, &api_error);
	drive_unlock(p);
	if (rc < 0) {
		forked_remove(p);
		client_close(p);
		api_error.code = rc;
		return rc;
	}
	*out = p;
	return 0;
}

void phub_close(phub_t *p)
{
	if (!p)
		return;
	if (p->forked) {
		forked_close(p);
		return;
	}
	drive_thread_stop(p);
	forked_remove(p);
	client_close(p);
}

int phub_launched(int *rank, int *world)
{
	int found_rank = PHUB_FROM_ENVIRONMENT, found_world = PHUB_FROM_ENVIRONMENT;
	int rc;

	if (!rank || !world)
		return err_set(&api_error, -EINVAL, "phub_launched() needs places for rank and world");
	rc = launcher_discover(&found_rank, &found_world, &api_error);
	if (rc < 0)
		return rc;
	*rank = found_rank;
	*world = found_world;
	return 0;
}

int phub_rank(phub_t *p)
{
	return p ? (int)p->settings.rank : err_set(&api_error, -EINVAL, "the handle is NULL");
}

int phub_world(phub_t *p)
{
	return p ? (int)p->settings.world : err_set(&api_error, -EINVAL, "the handle is NULL");
}

int phub_present(phub_t *p)
{
	int rc = api_enter(p);

	if (rc < 0)
		return rc;
	return api_leave(p, (int)(p->session.present ? p->session.present : p->settings.world));
}

enum api_fate api_take_fate(phub_t *p, uint32_t rank, char why[SESSION_WHY_BYTES])
{
	const uint64_t bit = UINT64_C(1) << rank % 64;
	enum api_fate fate = API_STAYED;
	struct client_gone *gone;

	why[0] = '\0';
	if (rank >= WIRE_WORLD_MAX || api_enter(p) < 0)
		return fate;
	gone = &p->session.gone;
	if (gone->left[rank / 64] & bit)
		fate = API_LEFT;
	else if (gone->lost[rank / 64] & bit)
		fate = API_LOST;
	for (unsigned i = 0; fate == API_LOST && i < gone->why_count && i < SESSION_WHYS; i++)
		if (gone->whys[i].rank == rank)
			memcpy(why, gone->whys[i].text, SESSION_WHY_BYTES);
	gone->left[rank / 64] &= ~bit;
	gone->lost[rank / 64] &= ~bit;
	return (enum api_fate)api_leave(p, (int)fate);
}

int64_t phub_round(phub_t *p, int key)
{
	int rc = api_enter_key(p, key);
	const struct key *k;
	uint64_t round;

	if (rc < 0)
		return rc;
	k = &p->keyring.keys[key];
	round = p->exchange.flights[k->chunk_first].round;
	if (exchange_is_open(&p->exchange, k))
		rc = err_set(&api_error, -EBUSY, "%s: key '%s' has a round in flight; wait for it first",
			p->session.who, k->name);
	else if (p->exchange.optimizer && !k->weights)
		rc = err_set(&api_error, -ENODATA, "%s: key '%s' has no weights yet; call phub_broadcast() first",
			p->session.who, k->name);
	rc = api_leave(p, rc);
	return rc < 0 ? rc : (int64_t)round;
}

const char *phub_transport(phub_t *p)
{
	const char *name = "";

	if (api_enter(p) < 0)
		return "";
	if (p->exchange.transport && p->frozen)
		name = p->pick.ops->name;
	api_leave(p, 0);
	return name;
}

static int api_resumed(const phub_t *p, int key)
{
	(void)key;
	return client_resumed(p);
}

int phub_resume(phub_t *p, int timeout_ms)
{
	int ms = timeout_ms, rc = api_enter(p);

	if (rc < 0)
		return rc;
	if (timeout_ms == PHUB_TIMEOUT_DEFAULT)
		ms = p->settings.timeout_ms;
	if (ms < 0)
		rc = err_set(&api_error, -EINVAL, "%s: a timeout of %d ms; 0 or more, or PHUB_TIMEOUT_DEFAULT",
			p->session.who, timeout_ms);
	else
		rc = drive_wait(p, api_resumed, PHUB_ALL, clock_deadline_ns(p->env.now(p->env.ctx), ms));
	if (rc == -ETIMEDOUT) {
		err_set(&api_error, rc, "%s: the box is not back yet: %s (after %d ms)", p->session.who,
			p->session.trouble.code ? p->session.trouble.text : p->loss.text, ms);
	} else if (rc < 0 && rc != -EINVAL) {
		rc = api_alive(p);
	} else if (rc == 0) {
		p->stale = (struct err){0};
		client_forget_parted(p);
	}
	return api_leave(p, rc);
}

/* ---- keys ---- */

int phub_key(phub_t *p, const char *name, enum phub_dtype dtype, uint64_t elements, unsigned group, unsigned flags)
{
	struct chunk_key shape = {
		.elements = elements,
		.dtype = (unsigned)dtype > UINT8_MAX ? UINT8_MAX : (uint8_t)dtype,
		.group = (uint16_t)group,
		.alone = flags & PHUB_KEY_ALONE,
		.sparse = flags & PHUB_KEY_SPARSE,
	};
	const char *shown = name ? name : "";
	int rc = api_enter_alive(p);

	if (rc < 0)
		return rc;
	if (p->frozen)
		rc = err_set(&api_error, -EBUSY, "%s: key '%.100s' comes after phub_start(); call phub_rekey() first",
			p->session.who, shown);
	else if (group >= p->settings.group_count)
		rc = err_set(&api_error, -EINVAL, "%s: key '%.100s' is of parameter group %u; the options have %u",
			p->session.who, shown, group, p->settings.group_count);
	else if (flags & ~(PHUB_KEY_ALONE | PHUB_KEY_SPARSE))
		rc = err_set(
			&api_error, -EINVAL, "%s: key '%.100s' has unknown flags 0x%x", p->session.who, shown, flags);
	else if (keyring_find(&p->keyring, shown) >= 0)
		rc = err_set(&api_error, -EINVAL,
			"%s: key %" PRIu32 " has the name of key %d, '%.100s'; give every key a name of its own",
			p->session.who, p->keyring.count, keyring_find(&p->keyring, shown), shown);
	else
		rc = keyring_add(&p->keyring, p->session.who, name, &shape, &api_error);
	return api_leave(p, rc);
}

/* What is left of a timeout. */
static int api_left_ms(const phub_t *p, uint64_t begin_ns, int timeout_ms)
{
	uint64_t ms = (p->env.now(p->env.ctx) - begin_ns) / NS_PER_MS;

	if (timeout_ms == PHUB_TIMEOUT_DEFAULT)
		timeout_ms = p->settings.timeout_ms;
	return timeout_ms > 0 && ms < (uint64_t)timeout_ms ? timeout_ms - (int)ms : 0;
}

int phub_start(phub_t *p, int timeout_ms)
{
	int rc = api_enter_alive(p);
	uint64_t begin_ns;

	if (rc < 0)
		return rc;
	if (p->running && !p->starts)
		return api_leave(p, err_set(&api_error, -EBUSY, "%s: the job is running already", p->session.who));
	begin_ns = p->env.now(p->env.ctx);
	if (!p->frozen && p->resume_until_ns) { /* the box was lost, and nothing with it */
		rc = api_wait(p, api_joined, PHUB_ALL, timeout_ms);
		timeout_ms = api_left_ms(p, begin_ns, timeout_ms);
	}
	if (rc == 0 && !p->frozen)
		rc = client_start_begin(p, &api_error);
	if (rc == 0)
		rc = api_wait(p, api_started, PHUB_ALL, timeout_ms);
	p->starts = rc == -ETIMEDOUT;
	return api_leave(p, rc);
}

int phub_rekey(phub_t *p)
{
	int rc = api_enter_alive(p);

	if (rc < 0)
		return rc;
	rc = api_wait(p, api_moved, PHUB_ALL, PHUB_TIMEOUT_DEFAULT);
	return api_leave(p, rc < 0 ? rc : client_rekey(p, &api_error));
}

/* ---- memory ---- */

int phub_alloc(phub_t *p, int key, void **push, const void **result)
{
	int rc = api_enter_key(p, key);

	if (rc < 0)
		return rc;
	return api_leave(p, exchange_give(&p->exchange, (uint32_t)key, push, result, &api_error));
}

static int api_register(phub_t *p, void *addr, size_t bytes)
{
	struct range *range;
	struct err e;
	int rc;

	if (p->running ? p->exchange.mapped : p->settings.transport && strcmp(p->settings.transport, "shm") == 0)
		return err_set(&api_error, -ENOTSUP,
			"%s: shared memory cannot use the caller's memory in place; write to phub_alloc()'s",
			p->session.who);
	device_look();
	rc = ranges_add(&p->ranges, addr, bytes, &range);
	if (rc == 0) {
		rc = client_introduce(p, range, &e);
		if (rc < 0) {
			ranges_remove(&p->ranges, addr);
			return err_set(&api_error, rc, "%s: %s", p->session.who, e.text);
		}
	}
	if (rc == -EEXIST)
		return err_set(&api_error, -EINVAL, "%s: %zu bytes at %p overlap memory that is registered already",
			p->session.who, bytes, addr);
	if (rc < 0)
		return err_set(&api_error, rc, "%s: %zu bytes at %p cannot be registered: %s", p->session.who, bytes,
			addr, strerror(-rc));
	return 0;
}

int phub_mem_register(phub_t *p, void *addr, size_t bytes)
{
	int rc = api_enter_alive(p);

	if (rc < 0)
		return rc;
	return api_leave(p, api_register(p, addr, bytes));
}

int phub_mem_unregister(phub_t *p, void *addr)
{
	int rc = api_enter(p);

	if (rc < 0)
		return rc;
	rc = ranges_remove(&p->ranges, addr);
	if (rc == -EBUSY)
		err_set(&api_error, rc, "%s: memory at %p is in use by a round in flight; wait for it first",
			p->session.who, addr);
	else if (rc < 0)
		rc = err_set(&api_error, -EINVAL, "%s: no memory is registered at %p", p->session.who, addr);
	else if (p->exchange.transport && p->exchange.transport->ops->mem_unregister)
		p->exchange.transport->ops->mem_unregister(p->exchange.transport, addr);
	return api_leave(p, rc);
}

/* ---- rounds ---- */

int phub_push_pull(phub_t *p, int key, const void *src, void *dst, int priority)
{
	int rc = api_enter_key(p, key);

	if (rc < 0)
		return rc;
	return api_leave(p, client_round(p, key, WIRE_PUSH, src, dst, priority, &api_error));
}

int phub_push(phub_t *p, int key, const void *src, int priority)
{
	return phub_push_pull(p, key, src, NULL, priority);
}

int phub_broadcast(phub_t *p, int key, void *buf, unsigned root)
{
	int rc = api_enter_key(p, key);

	if (rc < 0)
		return rc;
	if (root >= p->settings.world)
		rc = err_set(&api_error, -EINVAL, "%s: a broadcast from rank %u in a world of %" PRIu32, p->session.who,
			root, p->settings.world);
	else if (root != 0 && p->settings.optimizer != PHUB_NONE)
		rc = err_set(&api_error, -EINVAL, "%s: first weights come from rank 0, not from rank %u",
			p->session.who, root);
	else if (root == p->settings.rank)
		rc = client_round(p, key, WIRE_INIT, buf, NULL, 0, &api_error);
	else
		rc = client_round(p, key, WIRE_PULL, NULL, buf, 0, &api_error);
	return api_leave(p, rc);
}

int phub_pull(phub_t *p, int key, void *dst, int timeout_ms)
{
	int rc = api_enter_result(p, key, false);

	if (rc < 0)
		return rc;
	if (!p->running && !client_failure(p)->code)
		rc = err_set(&api_error, -EINVAL, "%s: phub_start() has not been completed", p->session.who);
	else if (!dst)
		rc = err_set(&api_error, -EINVAL, "%s: phub_pull() needs memory to write to", p->session.who);
	else
		rc = api_wait_result(p, key, timeout_ms);
	if (rc == 0 && !p->keyring.keys[key].landed)
		rc = err_set(&api_error, -ENODATA, "%s: key '%s' has no result to pull; call phub_push() first",
			p->session.who, p->keyring.keys[key].name);
	if (rc == 0)
		rc = client_copy_result(p, key, dst, &api_error);
	return api_leave(p, rc);
}

int phub_wait(phub_t *p, int key, int timeout_ms)
{
	int rc = api_enter_result(p, key, true);

	if (rc < 0)
		return rc;
	return api_leave(p, api_wait_result(p, key, timeout_ms));
}

int phub_test(phub_t *p, int key)
{
	int rc = api_enter_result(p, key, true);

	if (rc < 0)
		return rc;
	if (!client_idle(p, key)) {
		p->drive.driven_ns = p->env.now(p->env.ctx);
		client_progress(p, p->drive.driven_ns);
	}
	rc = client_idle(p, key);
	if (rc > 0)
		client_claim(p, key);
	return api_leave(p, rc < 0 ? api_alive(p) : rc);
}

/* ---- the job ---- */

int phub_set_hyper(phub_t *p, unsigned group, const struct phub_hyper *hyper)
{
	int rc = api_enter_alive(p);

	if (rc < 0)
		return rc;
	if (!hyper)
		rc = err_set(&api_error, -EINVAL,
			"%s: phub_set_hyper() needs hyper-parameters; phub_hyper_init() fills a struct with the "
			"optimizer's defaults",
			p->session.who);
	else if (group >= p->settings.group_count)
		rc = err_set(&api_error, -EINVAL, "%s: hyper-parameters of group %u; there are %u groups",
			p->session.who, group, p->settings.group_count);
	else
		rc = settings_check_hyper(group, hyper, &api_error);
	if (rc == 0 && memcmp(&p->settings.groups[group], hyper, sizeof(*hyper)) != 0) {
		p->settings.groups[group] = *hyper;
		p->hyper_changed = true;
	}
	return api_leave(p, rc);
}

int phub_barrier(phub_t *p, int timeout_ms)
{
	int rc = api_enter_alive(p);

	if (rc < 0)
		return rc;
	client_barrier_begin(p);
	rc = api_wait_counted(p, api_passed, CLIENT_BARRIER, timeout_ms);
	if (rc == 0)
		client_barrier_end(p);
	return api_leave(p, rc);
}

static int api_good_bye(phub_t *p, bool finished, int timeout_ms)
{
	int rc = api_enter(p);

	if (rc < 0)
		return rc;
	client_hurry(p);
	if (client_failure(p)->code && !client_is_free(p))
		return api_leave(p, client_failure(p)->code == -ESHUTDOWN && p->left ? 0 : api_alive(p));
	p->unfinished = !finished;
	client_leave_begin(p);
	rc = api_wait(p, api_left, PHUB_ALL, timeout_ms);
	if (rc < 0 && rc != -EINVAL)
		client_abandon(p);
	return api_leave(p, rc);
}

int phub_leave(phub_t *p, int timeout_ms)
{
	return api_good_bye(p, true, timeout_ms);
}

int phub_leave_unfinished(phub_t *p, int timeout_ms)
{
	return api_good_bye(p, false, timeout_ms);
}

/* ---- event loops and counters ---- */

int phub_progress(phub_t *p)
{
	int rc = api_enter_alive(p);

	if (rc < 0)
		return rc;
	rc = drive_once(p);
	if (client_failure(p)->code)
		rc = api_alive(p);
	return api_leave(p, rc);
}

int phub_fd(phub_t *p)
{
	int rc = api_enter_alive(p);

	if (rc < 0)
		return rc;
	rc = drive_watch(p);
	if (rc < 0)
		err_set(&api_error, rc, "%s: cannot make an epoll set: %s; raise `ulimit -n`", p->session.who,
			strerror(-rc));
	return api_leave(p, rc);
}

int phub_stats(phub_t *p, struct phub_stats *stats)
{
	struct phub_stats now;
	int rc = api_enter(p);

	if (rc < 0)
		return rc;
	if (!stats || stats->size < sizeof(size_t) || stats->size > 4096)
		return api_leave(p, err_set(&api_error, -EINVAL,
					    "%s: phub_stats.size must be sizeof(struct phub_stats)", p->session.who));
	client_stats(p, &now);
	now.size = stats->size;
	memcpy(stats, &now, now.size < sizeof(now) ? now.size : sizeof(now));
	return api_leave(p, 0);
}
