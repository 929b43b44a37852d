/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box that is announced to a stand-in for etcd, which keeps what it is told, dies, and forgets; and what one who
 * looks there sees. Time is the test's.
 */
#include "phub/control/announce.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/control/box.h"
#include "phub/control/job.h"
#include "tests/unit/etcd_rig.h"
#include "transport/lookout.h"

enum { WORLD_PAGE = 2, WORLD_JOBS = 200 };

struct world {
	struct etcd_rig rig;
	json_t *store;  /* by key: {"key", "value", "lease"} as they are said */
	json_t *leases; /* id: seconds */
	int64_t revision, lease_last;
	bool down;             /* nobody answers */
	bool mute;             /* what is asked is heard, and not answered */
	unsigned puts, grants; /* so far */
	char seen[64];         /* path of the last request */
	char answer[1 << 18];

	struct config config;
	struct box box;
	struct announce *announce;
	uint64_t now_ns;
	struct job jobs[WORLD_JOBS];
	struct member members[WORLD_JOBS][4];

	char log[8192];
};

/* ---- the stand-in ---- */

/* Of a key; lasts until the next one. */
static const char *world_decode(const json_t *base64)
{
	static char key[512];
	const char *text = json_string_value(base64);

	assert_true(text && strlen(text) < sizeof(key));
	memset(key, 0, sizeof(key));
	assert_true(EVP_DecodeBlock((unsigned char *)key, (const unsigned char *)text, (int)strlen(text)) >= 0);
	return key;
}

static void world_drop_lease(struct world *w, const char *id)
{
	const char *key;
	json_t *kv;
	void *next;

	json_object_del(w->leases, id);
	json_object_foreach_safe(w->store, next, key, kv)
	{
		if (strcmp(json_string_value(json_object_get(kv, "lease")), id) == 0)
			json_object_del(w->store, key);
	}
	w->revision++;
}

static bool world_put(struct world *w, const json_t *put)
{
	const char *lease = json_string_value(json_object_get(put, "lease"));

	if (!json_object_get(w->leases, lease))
		return false;
	json_object_set_new(w->store, world_decode(json_object_get(put, "key")), json_deep_copy(put));
	w->puts++;
	return true;
}

static bool world_txn(struct world *w, const json_t *request)
{
	const json_t *ops = json_object_get(request, "success");
	json_t *responses = json_array(), *answer;
	char *text;

	for (size_t i = 0; i < json_array_size(ops); i++) {
		const json_t *op = json_array_get(ops, i), *put = json_object_get(op, "requestPut");
		const json_t *get = json_object_get(op, "requestRange"),
			     *del = json_object_get(op, "requestDeleteRange");
		json_t *kv = get ? json_object_get(w->store, world_decode(json_object_get(get, "key"))) : NULL;

		if (put && !world_put(w, put)) {
			json_decref(responses);
			return false;
		}
		if (del)
			json_object_del(w->store, world_decode(json_object_get(del, "key")));
		json_array_append_new(responses,
			get ? json_pack("{s:{s:o}}", "response_range", "kvs", kv ? json_pack("[O]", kv) : json_array())
			    : json_object());
	}
	w->revision++;
	answer = json_pack("{s:b, s:o}", "succeeded", 1, "responses", responses);
	text = json_dumps(answer, 0);
	snprintf(w->answer, sizeof(w->answer), "%s", text);
	free(text);
	json_decref(answer);
	return true;
}

/* Those from the key on that is asked for, in order, a page of them. */
static void world_range(struct world *w, const json_t *request)
{
	char from[512], revision[24], *text;
	size_t limit = strtoul(json_string_value(json_object_get(request, "limit")), NULL, 10);
	json_t *kvs = json_array(), *answer, *kv;
	const char *key, *least;
	bool behind = false;

	snprintf(from, sizeof(from), "%s", world_decode(json_object_get(request, "key")));
	limit = limit < WORLD_PAGE ? limit : WORLD_PAGE;
	for (;;) {
		least = NULL;
		json_object_foreach(w->store, key, kv)
		{
			int order = strcmp(key, from);

			if ((behind ? order > 0 : order >= 0) && (!least || strcmp(key, least) < 0))
				least = key;
		}
		if (!least || json_array_size(kvs) == limit)
			break;
		json_array_append(kvs, json_object_get(w->store, least));
		snprintf(from, sizeof(from), "%s", least);
		behind = true;
	}
	snprintf(revision, sizeof(revision), "%lld", (long long)w->revision);
	answer = json_pack("{s:{s:s}, s:o, s:b}", "header", "revision", revision, "kvs", kvs, "more", least != NULL);
	text = json_dumps(answer, 0);
	snprintf(w->answer, sizeof(w->answer), "%s", text);
	free(text);
	json_decref(answer);
}

static void world_answer(void *arg, const struct etcd_rig_request *request, struct etcd_rig_answer *out)
{
	struct world *w = arg;
	json_t *asked = json_loads(request->body, 0, NULL);
	const char *id = json_string_value(json_object_get(asked, "ID"));

	assert_non_null(asked);
	snprintf(w->seen, sizeof(w->seen), "%s", request->path);
	*out = (struct etcd_rig_answer){.status = 200, .body = w->answer};
	snprintf(w->answer, sizeof(w->answer), "{}");
	if (w->mute) {
		out->never = true;
	} else if (w->down) {
		out->status = 0;
	} else if (strcmp(request->path, "/v3/lease/grant") == 0) {
		char lease[24];

		snprintf(lease, sizeof(lease), "%lld", (long long)++w->lease_last);
		json_object_set(w->leases, lease, json_object_get(asked, "TTL"));
		snprintf(w->answer, sizeof(w->answer), "{\"ID\":\"%s\",\"TTL\":\"%s\"}", lease,
			json_string_value(json_object_get(asked, "TTL")));
		w->grants++;
	} else if (strcmp(request->path, "/v3/lease/keepalive") == 0) {
		snprintf(w->answer, sizeof(w->answer), "{\"result\":{\"ID\":\"%s\",\"TTL\":\"%s\"}}", id,
			json_object_get(w->leases, id) ? "6" : "0");
	} else if (strcmp(request->path, "/v3/lease/revoke") == 0) {
		world_drop_lease(w, id);
	} else if (strcmp(request->path, "/v3/kv/range") == 0) {
		world_range(w, asked);
	} else if (!world_txn(w, asked)) {
		*out = (struct etcd_rig_answer){
			.status = 404, .body = "{\"error\":\"etcdserver: requested lease not found\",\"code\":5}"};
	}
	json_decref(asked);
}

/* ---- the box ---- */

static void world_on_log(void *ctx, enum log_level level, const char *line)
{
	struct world *w = ctx;
	size_t at = strlen(w->log);

	snprintf(w->log + at, sizeof(w->log) - at, "%s\n", line);
}

static void world_init(struct world *w, const char *options)
{
	struct err e;

	memset(w, 0, sizeof(*w));
	etcd_rig_init(&w->rig);
	w->rig.answer = world_answer;
	w->rig.arg = w;
	w->store = json_object();
	w->leases = json_object();
	w->revision = 1;
	w->now_ns = 1000 * NS_PER_S;
	config_init(&w->config);
	if (config_parse(&w->config, options, strlen(options), "options", &e) < 0)
		fail_msg("%s", e.text);
	snprintf(w->config.etcd, sizeof(w->config.etcd), "%s", w->rig.url);
	w->config.etcd_ttl_ms = 6000;
	w->box.config = &w->config;
	w->box.core_count = 3;
	w->box.listener_count = 1;
	snprintf(w->box.listeners[0].bound, sizeof(w->box.listeners[0].bound), "%.100s:7099",
		w->config.listen[0].host[0] ? w->config.listen[0].host : "*");
	log_set_sink(world_on_log, w);
	log_set_level(LOG_LEVEL_INFO);
	if (announce_etcd.open(&w->box, w->now_ns, &w->announce, &e) < 0)
		fail_msg("%s", e.text);
}

static void world_fini(struct world *w)
{
	announce_etcd.close(w->announce);
	log_set_sink(NULL, NULL);
	json_decref(w->store);
	json_decref(w->leases);
	etcd_rig_fini(&w->rig);
	config_fini(&w->config);
}

/* Time goes on in steps; the network has real time for each. */
static void world_pass(struct world *w, uint64_t ms)
{
	for (uint64_t i = 0; i < ms; i += 50) {
		w->now_ns += 50 * NS_PER_MS;
		for (unsigned quiet = 0; quiet < 3;) {
			unsigned requests = w->rig.requests;

			announce_etcd.step(w->announce, w->now_ns);
			etcd_rig_step(&w->rig);
			usleep(50);
			quiet = requests == w->rig.requests ? quiet + 1 : 0;
		}
	}
}

/* Bounded: for what comes over loopback in real time. */
#define world_until(w, condition)                                         \
	do {                                                              \
		for (int turns = 0; turns < 400 && !(condition); turns++) \
			world_pass(w, 50);                                \
		assert_true(condition);                                   \
	} while (0)

static void world_job(struct world *w, unsigned i, const char *name, enum job_state state, uint64_t rounds)
{
	struct job *job = &w->jobs[i];

	*job = (struct job){.state = state, .rounds = rounds, .ranks = 4, .world = 4};
	job->control = &w->box.control;
	job->members = w->members[i];
	snprintf(job->name, sizeof(job->name), "%s", name);
	job->next = w->box.control.jobs;
	w->box.control.jobs = job;
}

/* What one who looks there sees; `out` is to be freed by roster_fini(). */
static void world_look(struct world *w, struct roster *out)
{
	struct lookout l = {.prefix = "/phub"};
	struct etcd_config config;
	struct err e;

	assert_int_equal(etcd_config_read(w->rig.url, NULL, NULL, &config, &e), 0);
	assert_int_equal(etcd_open(&config, &l.etcd, &e), 0);
	for (int i = 0; i < 100000 && !l.whole && !l.failed; i++) {
		lookout_step(&l, clock_now_ns());
		etcd_rig_step(&w->rig);
	}
	if (!l.whole)
		fail_msg("not seen: %s", l.failed ? l.why.text : "no answer");
	*out = l.roster;
	l.roster = (struct roster){.boxes = NULL};
	lookout_fini(&l);
	etcd_close(l.etcd);
}

static void world_expect(struct world *w, unsigned boxes, unsigned jobs)
{
	struct roster r;

	world_look(w, &r);
	assert_int_equal(r.box_count, boxes);
	assert_int_equal(r.job_count, jobs);
	roster_fini(&r);
}

/* ---- tests ---- */

static void test_box_and_jobs(void **state)
{
	struct world *w = malloc(sizeof(*w));
	const struct roster_job *job;
	struct roster r;
	unsigned puts;

	world_init(w, "{listen: ['10.0.0.1:0'], rack: r7, uplink: '10.0.0.2:7077', create: never}");
	world_until(w, w->puts == 1);
	assert_non_null(strstr(w->log, "box '10.0.0.1:7099' is announced at 10.0.0.1:7099"));
	world_look(w, &r);
	assert_int_equal(r.box_count, 1);
	assert_string_equal(r.boxes[0].name, "10.0.0.1:7099");
	assert_string_equal(r.boxes[0].address, "10.0.0.1:7099");
	assert_string_equal(r.boxes[0].rack, "r7");
	assert_string_equal(r.boxes[0].uplink, "10.0.0.2:7077");
	assert_string_equal(r.boxes[0].transports, "tcp, shm");
	assert_int_equal(r.boxes[0].cores, 3);
	roster_fini(&r);
	world_job(w, 0, "train", JOB_RUNNING, 17);
	world_job(w, 1, "over", JOB_ENDING, 17);
	world_job(w, 2, "eval", JOB_FORMING, 0);
	w->members[0][1].session = w->members[0][2].session = (struct session *)(void *)w;
	w->members[0][3].elsewhere = true;
	world_pass(w, 1200);
	world_look(w, &r);
	assert_int_equal(r.job_count, 2);
	job = roster_find_job(&r, "train", "10.0.0.1:7099");
	assert_non_null(job);
	assert_string_equal(job->state, "running");
	assert_int_equal(job->workers, 2);
	assert_int_equal(job->known, 3);
	assert_int_equal(job->world, 4);
	assert_int_equal(job->round, 17);
	roster_fini(&r);
	/* Rounds are told twice in the lease's time, and what else changes at once. */
	puts = w->puts;
	w->jobs[0].rounds++;
	world_pass(w, 1500);
	assert_int_equal(w->puts, puts);
	world_pass(w, 3000);
	assert_int_equal(w->puts, puts + 1);
	w->jobs[2].state = JOB_RUNNING;
	world_pass(w, 1200);
	assert_int_equal(w->puts, puts + 2);
	/* Paused is a state, too. */
	w->jobs[2].paused = true;
	world_pass(w, 1200);
	world_look(w, &r);
	assert_string_equal(roster_find_job(&r, "eval", "10.0.0.1:7099")->state, "paused");
	roster_fini(&r);
	w->box.control.jobs = NULL;
	world_pass(w, 1200);
	world_expect(w, 1, 0);
	/* Nothing is told while nothing changes, but that it lives. */
	puts = w->puts;
	world_pass(w, 10000);
	assert_int_equal(w->puts, puts);
	assert_string_equal(w->seen, "/v3/lease/keepalive");
	assert_int_equal(w->grants, 1);
	world_fini(w);
	free(w);
}

static void test_many_jobs(void **state)
{
	struct world *w = malloc(sizeof(*w));
	char name[16];

	world_init(w, "box: b\n");
	for (unsigned i = 0; i < WORLD_JOBS; i++) {
		snprintf(name, sizeof(name), "job%u", i);
		world_job(w, i, name, JOB_RUNNING, i);
	}
	world_until(w, w->puts == 1 + WORLD_JOBS);
	world_expect(w, 1, WORLD_JOBS);
	w->box.control.jobs = NULL;
	world_until(w, json_object_size(w->store) == 1);
	world_fini(w);
	free(w);
}

/* Goes down in good order: all of it is gone, at once. */
static void test_stop(void **state)
{
	struct world *w = malloc(sizeof(*w));

	world_init(w, "box: b\n");
	world_job(w, 0, "train", JOB_RUNNING, 17);
	world_until(w, w->puts == 2);
	announce_etcd.stop(w->announce, w->now_ns);
	assert_false(announce_etcd.stopped(w->announce));
	world_pass(w, 200);
	assert_true(announce_etcd.stopped(w->announce));
	world_expect(w, 0, 0);
	world_fini(w);
	free(w);
}

/* Nobody answers: it does not wait for longer than it says. */
static void test_stop_without_etcd(void **state)
{
	struct world *w = malloc(sizeof(*w));

	world_init(w, "box: b\n");
	world_until(w, w->puts == 1);
	close(w->rig.fd); /* connections come and are not taken */
	etcd_rig_hang_up(&w->rig);
	announce_etcd.stop(w->announce, w->now_ns);
	world_pass(w, 1100);
	assert_true(announce_etcd.stopped(w->announce));
	world_fini(w);
	free(w);
	/* Or never did: there is nothing to take back. */
	w = malloc(sizeof(*w));
	world_init(w, "box: b\n");
	w->down = true;
	world_pass(w, 500);
	announce_etcd.stop(w->announce, w->now_ns);
	world_pass(w, 50);
	assert_true(announce_etcd.stopped(w->announce));
	world_fini(w);
	free(w);
}

static unsigned count_lines(const char *log, const char *words)
{
	unsigned count = 0;

	while ((log = strstr(log, words))) {
		count++;
		log += strlen(words);
	}
	return count;
}

static unsigned count_connections(const struct world *w)
{
	unsigned count = 0;

	for (unsigned i = 0; i < ETCD_RIG_CONNS; i++)
		count += w->rig.conns[i].fd >= 0;
	return count;
}

/* A call is under way that is not answered: it ends there, and all is gone at once. */
static void test_stop_in_a_call(void **state)
{
	struct world *w = malloc(sizeof(*w));
	unsigned requests;

	world_init(w, "box: b\n");
	world_until(w, w->puts == 1);
	w->mute = true;
	requests = w->rig.requests;
	world_job(w, 0, "train", JOB_RUNNING, 17);
	world_until(w, w->rig.requests > requests);
	w->mute = false;
	announce_etcd.stop(w->announce, w->now_ns);
	world_until(w, announce_etcd.stopped(w->announce));
	assert_string_equal(w->seen, "/v3/lease/revoke");
	assert_null(strstr(w->log, "does not answer"));
	world_expect(w, 0, 0);
	world_fini(w);
	free(w);
}

/* The last word is not answered: that is not waited for any longer than it says, and nothing of it stays open, by which
 * control would be woken for ever. */
static void test_stop_unanswered(void **state)
{
	struct world *w = malloc(sizeof(*w));

	world_init(w, "box: b\n");
	world_until(w, w->puts == 1);
	w->mute = true;
	announce_etcd.stop(w->announce, w->now_ns);
	world_until(w, strcmp(w->seen, "/v3/lease/revoke") == 0);
	assert_false(announce_etcd.stopped(w->announce));
	assert_int_equal(count_connections(w), 1);
	world_pass(w, 1100);
	assert_true(announce_etcd.stopped(w->announce));
	assert_int_equal(
		count_lines(w->log, "does not answer: what was announced there ends with its lease, in 6 s"), 1);
	world_until(w, count_connections(w) == 0);
	assert_true(announce_etcd.next(w->announce) == CLOCK_NEVER);
	world_fini(w);
	free(w);
}

/* It comes back as it was, as somebody else, or after the lease's end: all is there again, and each is said once. */
static void test_outages(void **state)
{
	struct world *w = malloc(sizeof(*w));

	world_init(w, "box: b\n");
	world_job(w, 0, "train", JOB_RUNNING, 17);
	world_until(w, w->puts == 2);
	for (unsigned i = 1; i <= 3; i++) {
		w->down = true;
		etcd_rig_hang_up(&w->rig);
		world_pass(w, 12000);
		assert_int_equal(count_lines(w->log, "this box is not announced since"), i);
		if (i == 2)
			json_object_clear(w->store); /* an old copy: it knows the lease and not what is under it */
		if (i == 3)
			world_drop_lease(w, "1");
		w->down = false;
		world_until(w, count_lines(w->log, "box 'b' is announced at 127.0.0.1:7099 again, after") == i);
		world_pass(w, 1200);
		world_expect(w, 1, 1);
		assert_int_equal(w->grants, i == 3 ? 2 : 1);
	}
	world_fini(w);
	free(w);
}

/* The lease ends while both are there: the box stood still for too long. */
static void test_lease_over(void **state)
{
	struct world *w = malloc(sizeof(*w));

	world_init(w, "box: b\n");
	world_job(w, 0, "train", JOB_RUNNING, 17);
	world_until(w, w->puts == 2);
	world_drop_lease(w, "1");
	world_pass(w, 4000);
	assert_int_equal(w->grants, 2);
	world_expect(w, 1, 1);
	assert_int_equal(count_lines(w->log, "again, after"), 1);
	world_fini(w);
	free(w);
}

static void test_never_there(void **state)
{
	struct world *w = malloc(sizeof(*w));

	world_init(w, "box: b\n");
	w->down = true;
	world_pass(w, 20000);
	assert_int_equal(count_lines(w->log, "this box is not announced: etcd http://127.0.0.1"), 1);
	assert_true(w->rig.requests < 20); /* with pauses that grow, to five seconds */
	w->down = false;
	world_until(w, w->puts == 1);
	world_fini(w);
	free(w);
}

/* Two boxes of one name: the later one says so, when the other is elsewhere. */
static void test_name_taken(void **state)
{
	struct world *w = malloc(sizeof(*w));
	struct roster r;

	world_init(w, "box: b\n");
	json_object_set_new(w->leases, "77", json_string("60"));
	json_object_set_new(w->store, "/phub/boxes/b",
		json_pack("{s:s, s:s, s:s}", "key", "L3BodWIvYm94ZXMvYg==", "value",
			"eyJhZGRyZXNzIjoiaDoxIn0=", "lease", "77"));
	world_until(w, w->puts == 1);
	assert_non_null(strstr(w->log, "box 'b' was announced at h:1 until now, and is at 127.0.0.1:7099"));
	/* The other's lease ends; the key is this box's now. */
	world_drop_lease(w, "77");
	world_look(w, &r);
	assert_int_equal(r.box_count, 1);
	assert_string_equal(r.boxes[0].address, "127.0.0.1:7099");
	roster_fini(&r);
	world_fini(w);
	free(w);
}

/* At all addresses, it is where it calls from; names that others could have, too, are those of the host. */
static void test_names(void **state)
{
	struct world *w = malloc(sizeof(*w));
	char host[64] = "", name[80];
	struct roster r;

	gethostname(host, sizeof(host) - 1);
	snprintf(name, sizeof(name), "%.50s:7099", host);
	world_init(w, "{listen: ['*:0'], create: never}");
	world_until(w, w->puts == 1);
	world_look(w, &r);
	assert_string_equal(r.boxes[0].name, name);
	assert_string_equal(r.boxes[0].address, "127.0.0.1:7099");
	roster_fini(&r);
	world_fini(w);
	world_init(w, "{listen: ['*:0'], create: never, advertise: 'box.rack:80'}");
	world_until(w, w->puts == 1);
	world_look(w, &r);
	assert_string_equal(r.boxes[0].name, "box.rack:80");
	assert_string_equal(r.boxes[0].address, "box.rack:80");
	roster_fini(&r);
	world_fini(w);
	free(w);
}

static void test_options(void **state)
{
	struct config config;
	struct err e;

	config_init(&config);
	assert_int_equal(announce_check(&config, &e), 0);
	assert_int_equal(config_set(&config, "etcd=http://a:1,b:2", &e), 0);
	assert_int_equal(announce_check(&config, &e), 0);
	assert_int_equal(config_set(&config, "etcd=ftp://a:1", &e), 0);
	assert_int_equal(announce_check(&config, &e), -EINVAL);
	assert_non_null(strstr(e.text, "etcd: 'ftp://a:1' is not understood"));
	config_fini(&config);
}

TEST_PROGRAM(test_announce)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_box_and_jobs),
		cmocka_unit_test(test_many_jobs),
		cmocka_unit_test(test_stop),
		cmocka_unit_test(test_stop_without_etcd),
		cmocka_unit_test(test_stop_in_a_call),
		cmocka_unit_test(test_stop_unanswered),
		cmocka_unit_test(test_outages),
		cmocka_unit_test(test_lease_over),
		cmocka_unit_test(test_never_there),
		cmocka_unit_test(test_name_taken),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_options),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
