/* SPDX-License-Identifier: Apache-2.0 */
/* See exchange_rig.h. */
#include "tests/suite/exchange_rig.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "aggregation/dispatch.h"
#include "client/client.h"
#include "client/handle.h"
#include "phub/base/clock.h"
#include "tests/unit/cmocka_shim.h"

enum {
	BOX_HOST = 0,
	QUIET_TURNS = 2,      /* so many turns without a message, and time moves */
	QUIET_STEP_NS = 5000, /* at first; it doubles */
	QUIET_STEPS = 8,
	SETTLE_TURNS = 100000,
};

static const struct transport_ops *const stage_loop[] = {&transport_loop, NULL};
static const char stage_secret[] = "what the suite alone knows";
static const char *const stage_encrypted[] = {
	"create=secret", "create_secret_env=PHUB_SUITE_SECRET", "data_encryption=require", NULL};

/* ---- the box ---- */

static int stage_accept(void *arg, struct stream **out)
{
	return loop_stream_accept(((struct stage *)arg)->listener, out);
}

static void stage_configure(struct stage *stage, const char *const *overrides)
{
	char text[64];
	struct err e;

	config_init(&stage->config);
	snprintf(text, sizeof(text), "cores=%u", stage->scene->cores);
	assert_int_equal(config_set(&stage->config, text, &e), 0);
	if (stage->threads) {
		snprintf(text, sizeof(text), "transports=%s", stage->scene->transport);
		assert_int_equal(config_set(&stage->config, text, &e), 0);
	}
	assert_int_equal(config_set(&stage->config, "listen=127.0.0.1:0", &e), 0);
	assert_int_equal(config_set(&stage->config, "data_ports=any", &e), 0);
	for (const char *const *more = stage_encrypted; stage->scene->encrypt && *more; more++)
		assert_int_equal(config_set(&stage->config, *more, &e), 0);
	for (; overrides && *overrides; overrides++)
		assert_int_equal(config_set(&stage->config, *overrides, &e), 0);
	if (config_finish(&stage->config, &e) < 0)
		fail_msg("config: %s", e.text);
}

static void *stage_run(void *arg)
{
	struct stage *stage = arg;

	stage->rc = box_run(stage->box, stage->stop_fd, -1, &stage->error);
	return NULL;
}

void stage_open(struct stage *stage, const struct scene *scene, const char *const *overrides)
{
	struct box_env env = {0};
	uint64_t now_ns = 0;
	char text[64];
	struct err e;

	*stage = (struct stage){.scene = scene, .threads = strcmp(scene->transport, "loop") != 0, .stop_fd = -1};
	setenv("PHUB_SUITE_SECRET", stage_secret, 1);
	stage_configure(stage, overrides);
	assert_int_equal(dispatch_from_env(&env.kernels, text, sizeof(text)), 0);
	if (stage->threads) {
		now_ns = clock_now_ns();
	} else {
		stage->net = loop_net_create(&scene->plan);
		assert_non_null(stage->net);
		env.loop = loop_net_host(stage->net, BOX_HOST);
		assert_int_equal(loop_stream_listen(env.loop, PHUB_PORT, &stage->listener), 0);
		env.transports = stage_loop;
		env.transport_count = 1;
		env.accept = stage_accept;
		env.accept_arg = stage;
		env.by_hand = true;
	}
	if (box_create(&stage->config, &env, now_ns, &stage->box, &e) < 0)
		fail_msg("box: %s", e.text);
	snprintf(stage->url, sizeof(stage->url), "phub://%s", stage->threads ? stage->box->listeners[0].bound : "box");
	if (!stage->threads)
		return;
	stage->stop_fd = eventfd(0, EFD_CLOEXEC);
	assert_true(stage->stop_fd >= 0);
	assert_int_equal(pthread_create(&stage->thread, NULL, stage_run, stage), 0);
}

/* Turns the box once, and moves time when nothing else moves. */
static void stage_turn(struct stage *stage)
{
	uint64_t now_ns = loop_net_now(stage->net), due = box_next(stage->box), next_ns;
	bool again = box_step(stage->box, now_ns);
	const struct loop_stats *stats = loop_net_stats(stage->net);
	uint64_t moved = stats->sent + stats->delivered + stats->stream_bytes;

	stage->quiet = again || moved != stage->moved ? 0 : stage->quiet + 1;
	stage->moved = moved;
	if (stage->quiet < QUIET_TURNS) {
		loop_net_advance(stage->net, now_ns);
		return;
	}
	next_ns = now_ns + ((uint64_t)QUIET_STEP_NS << (stage->quiet < QUIET_STEPS ? stage->quiet : QUIET_STEPS));
	if (due > now_ns && due < next_ns)
		next_ns = due;
	due = loop_net_next(stage->net);
	loop_net_advance(stage->net, due < next_ns ? due : next_ns);
}

/* Until the jobs of the last crew have ended. */
static void stage_settle(struct stage *stage)
{
	for (unsigned i = 0; i < SETTLE_TURNS && stage->box->control.jobs; i++)
		stage_turn(stage);
	if (stage->box->control.jobs)
		fail_msg("the job did not end after its workers had gone");
}

void stage_close(struct stage *stage)
{
	const uint64_t one = 1;
	uint64_t now_ns;
	bool balanced;

	if (stage->threads) {
		assert_int_equal(write(stage->stop_fd, &one, sizeof(one)), sizeof(one));
		assert_int_equal(pthread_join(stage->thread, NULL), 0);
		close(stage->stop_fd);
	}
	if (stage->rc < 0)
		fail_msg("box_run: %s", stage->error.text);
	balanced = box_balanced(stage->box);
	assert_null(stage->box->control.jobs);
	now_ns = stage->threads ? clock_now_ns() : loop_net_now(stage->net);
	box_destroy(stage->box, now_ns);
	config_fini(&stage->config);
	if (!stage->threads) {
		loop_stream_unlisten(stage->listener);
		loop_net_destroy(stage->net);
	}
	assert_true(balanced);
}

/* ---- turns, on loop ---- */

/* Gives the turn to the next that is not done; the box is always the last. Under the lock. */
static void crew_pass(struct crew *crew)
{
	do
		crew->turn = crew->turn == crew->world ? 0 : crew->turn + 1;
	while (crew->turn < crew->world && crew->done[crew->turn]);
	pthread_cond_signal(crew->turn == crew->world ? &crew->box_due : &crew->members[crew->turn].due);
}

static void member_pass(struct member *me)
{
	struct crew *crew = me->crew;

	pthread_mutex_lock(&crew->lock);
	crew_pass(crew);
	while (crew->turn != me->rank)
		pthread_cond_wait(&me->due, &crew->lock);
	pthread_mutex_unlock(&crew->lock);
}

/* The box's turns, until all scripts are over. */
static void crew_turn(struct crew *crew)
{
	unsigned done = 0;

	pthread_mutex_lock(&crew->lock);
	while (done < crew->world) {
		while (crew->turn != crew->world)
			pthread_cond_wait(&crew->box_due, &crew->lock);
		pthread_mutex_unlock(&crew->lock);
		stage_turn(crew->stage);
		pthread_mutex_lock(&crew->lock);
		done = 0;
		for (unsigned i = 0; i < crew->world; i++)
			done += crew->done[i];
		if (done < crew->world)
			crew_pass(crew);
	}
	pthread_mutex_unlock(&crew->lock);
}

/* ---- crews ---- */

static void member_begin(struct member *me)
{
	struct crew *crew = me->crew;

	if (crew->stage->threads)
		return;
	pthread_mutex_lock(&crew->lock);
	while (crew->turn != me->rank)
		pthread_cond_wait(&me->due, &crew->lock);
	pthread_mutex_unlock(&crew->lock);
}

static void member_end(struct member *me)
{
	struct crew *crew = me->crew;

	if (crew->stage->threads)
		return;
	pthread_mutex_lock(&crew->lock);
	crew->done[me->rank] = true;
	crew_pass(crew);
	pthread_mutex_unlock(&crew->lock);
}

static void *member_run(void *arg)
{
	struct member *me = arg;

	member_begin(me);
	if (setjmp(me->end) == 0)
		me->crew->script(me);
	phub_close(me->phub);
	me->phub = NULL;
	member_end(me);
	return NULL;
}

static void crew_init(struct crew *crew, struct stage *stage, unsigned world, crew_script *script, const void *arg)
{
	*crew = (struct crew){.stage = stage, .world = world, .script = script, .turn = world};
	snprintf(crew->url, sizeof(crew->url), "%s/case-%u", stage->url, ++stage->jobs);
	pthread_mutex_init(&crew->lock, NULL);
	pthread_cond_init(&crew->met, NULL);
	pthread_cond_init(&crew->box_due, NULL);
	for (unsigned i = 0; i < world; i++) {
		crew->members[i] = (struct member){.crew = crew, .rank = i, .world = world, .arg = arg};
		pthread_cond_init(&crew->members[i].due, NULL);
	}
}

static void crew_fini(struct crew *crew)
{
	for (unsigned i = 0; i < crew->world; i++)
		pthread_cond_destroy(&crew->members[i].due);
	pthread_cond_destroy(&crew->box_due);
	pthread_cond_destroy(&crew->met);
	pthread_mutex_destroy(&crew->lock);
}

void crew_run(struct stage *stage, unsigned world, crew_script *script, const void *arg)
{
	pthread_t threads[CREW_MAX];
	struct crew crew;

	assert_true(world <= CREW_MAX);
	crew_init(&crew, stage, world, script, arg);
	for (unsigned i = 0; i < world; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, member_run, &crew.members[i]), 0);
	if (!stage->threads)
		crew_turn(&crew);
	for (unsigned i = 0; i < world; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	crew_fini(&crew);
	if (crew.failed)
		fail_msg("%s: %s", stage->scene->label, crew.text);
	if (!stage->threads)
		stage_settle(stage);
}

/* ---- for scripts ---- */

void member_fail(struct member *me, const char *file, int line, const char *format, ...)
{
	struct crew *crew = me->crew;
	va_list args;
	int at;

	va_start(args, format);
	pthread_mutex_lock(&crew->lock);
	if (!crew->failed) {
		at = snprintf(crew->text, sizeof(crew->text), "%s:%d: rank %u: ", file, line, me->rank);
		vsnprintf(crew->text + at, sizeof(crew->text) - (size_t)at, format, args);
	}
	crew->failed = true;
	pthread_cond_broadcast(&crew->met);
	pthread_mutex_unlock(&crew->lock);
	va_end(args);
	longjmp(me->end, 1);
}

void member_expect_text(struct member *me, const char *file, int line, const char *word)
{
	if (!strstr(phub_error(), word))
		member_fail(me, file, line, "'%s' is not in: %s", word, phub_error());
}

static int member_dial(void *ctx, const char *host, uint16_t port, struct stream **out, struct err *e)
{
	struct member *me = ctx;
	int rc = loop_stream_dial(loop_net_host(me->crew->stage->net, me->rank + 1), BOX_HOST, port, out);

	return rc < 0 ? err_set(e, rc, "dial: %s", strerror(-rc)) : 0;
}

/* Called by everything that waits, so that is where the turn is passed on. */
static uint64_t member_now(void *ctx)
{
	struct member *me = ctx;

	member_pass(me);
	return loop_net_now(me->crew->stage->net);
}

static int member_connect_loop(struct member *me, const char *url, const struct phub_options *options, phub_t **out)
{
	struct client_env env = {.dial = member_dial, .now = member_now, .transports = stage_loop, .ctx = me};
	struct err e;
	phub_t *p;
	int rc;

	env.config.loop = loop_net_host(me->crew->stage->net, me->rank + 1);
	rc = client_open(url, options, &env, &p, &e);
	if (rc < 0) {
		snprintf(me->refusal, sizeof(me->refusal), "%s", e.text);
		return rc;
	}
	/* Always readable, also after it was read: who would sleep in real time looks again at the virtual one. */
	p->drive.wake_driver = eventfd(INT_MAX, EFD_SEMAPHORE | EFD_NONBLOCK | EFD_CLOEXEC);
	while ((rc = client_joined(p)) == -EAGAIN)
		client_progress(p, member_now(me));
	if (rc == 0) {
		*out = p;
		return 0;
	}
	snprintf(me->refusal, sizeof(me->refusal), "%s", client_failure(p)->text);
	client_close(p);
	return rc;
}

void member_options(const struct member *me, struct phub_options *options)
{
	phub_options_init(options);
	options->rank = (int)me->rank;
	options->world = (int)me->world;
	options->timeout_ms = STAGE_TIMEOUT_MS;
	if (me->crew->stage->threads)
		options->transport = me->crew->stage->scene->transport;
	options->encrypt = me->crew->stage->scene->encrypt;
	options->secret = options->encrypt ? stage_secret : NULL;
}

int member_connect_to(struct member *me, const char *job, const struct phub_options *options, phub_t **out)
{
	char url[sizeof(me->crew->url) + 64];
	int rc;

	if (job)
		snprintf(url, sizeof(url), "%s/%s", me->crew->stage->url, job);
	else
		snprintf(url, sizeof(url), "%s", me->crew->url);
	if (!me->crew->stage->threads)
		return member_connect_loop(me, url, options, out);
	rc = phub_connect(url, options, out);
	if (rc < 0)
		snprintf(me->refusal, sizeof(me->refusal), "%s", phub_error());
	return rc;
}

int member_connect(struct member *me, const struct phub_options *options)
{
	return member_connect_to(me, NULL, options, &me->phub);
}

void member_leave(struct member *me)
{
	EXPECT_RC(me, phub_leave(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	member_drop(me);
}

void member_drop(struct member *me)
{
	phub_close(me->phub);
	me->phub = NULL;
}

/* Loop: does what the progress thread does elsewhere. */
static void member_idle(struct member *me)
{
	uint64_t now_ns = member_now(me);

	if (me->phub)
		client_progress(me->phub, now_ns);
}

void member_meet(struct member *me)
{
	struct crew *crew = me->crew;
	unsigned meeting;
	bool failed;

	pthread_mutex_lock(&crew->lock);
	meeting = crew->meetings;
	if (++crew->waiting == crew->world) {
		crew->waiting = 0;
		crew->meetings++;
		pthread_cond_broadcast(&crew->met);
	}
	while (crew->meetings == meeting && !crew->failed) {
		if (crew->stage->threads) {
			pthread_cond_wait(&crew->met, &crew->lock);
		} else {
			pthread_mutex_unlock(&crew->lock);
			member_idle(me);
			pthread_mutex_lock(&crew->lock);
		}
	}
	failed = crew->failed;
	pthread_mutex_unlock(&crew->lock);
	if (failed)
		longjmp(me->end, 1);
}

void member_sleep(struct member *me, unsigned ms)
{
	const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
	uint64_t until_ns;

	if (me->crew->stage->threads) {
		nanosleep(&time, NULL);
		return;
	}
	until_ns = loop_net_now(me->crew->stage->net) + ms * NS_PER_MS;
	while (loop_net_now(me->crew->stage->net) < until_ns)
		member_idle(me);
}
