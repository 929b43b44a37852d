/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls to etcd, by a stand-in that answers as it should not.
 */
#include "transport/etcd.h"

#include "tests/unit/cmocka_shim.h"
#include "tests/unit/gate.h"
#include "tests/unit/libc_rig.h"

#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "tests/unit/etcd_rig.h"
#include "transport/etcd_text.h"

/* What the stand-in answers: by the path, what is next. */
struct script {
	struct etcd_rig rig;
	struct etcd_rig_answer work;
	struct etcd_rig_answer login;
	bool token_old; /* once */
	bool wants_token;
	unsigned logins;
	char seen_head[4096], seen_body[4096];
};

static void script_answer(void *arg, const struct etcd_rig_request *request, struct etcd_rig_answer *out)
{
	struct script *s = arg;

	if (strcmp(request->path, "/v3/auth/authenticate") == 0) {
		s->logins++;
		*out = s->login;
		return;
	}
	snprintf(s->seen_head, sizeof(s->seen_head), "%s", request->head);
	snprintf(s->seen_body, sizeof(s->seen_body), "%s", request->body);
	*out = s->work;
	if (s->wants_token && (!strstr(request->head, "Authorization: tok") || s->token_old)) {
		s->token_old = false;
		*out = (struct etcd_rig_answer){
			.status = 401, .body = "{\"error\":\"etcdserver: invalid auth token\",\"code\":16}"};
	}
}

static void script_init(struct script *s)
{
	memset(s, 0, sizeof(*s));
	etcd_rig_init(&s->rig);
	s->rig.answer = script_answer;
	s->rig.arg = s;
	s->work = (struct etcd_rig_answer){.status = 200, .body = "{\"ID\":\"7\",\"TTL\":\"5\"}"};
	s->login = (struct etcd_rig_answer){.status = 200, .body = "{\"token\":\"tok.1\"}"};
}

static struct etcd *open_at(const char *urls, const char *secret, unsigned timeout_ms)
{
	struct etcd_config config;
	struct etcd *etcd;
	struct err e;

	if (etcd_config_read(urls, secret, NULL, &config, &e) < 0)
		fail_msg("%s", e.text);
	config.timeout_ms = timeout_ms;
	if (etcd_open(&config, &etcd, &e) < 0)
		fail_msg("%s", e.text);
	return etcd;
}

/* Until the call has ended, or a minute. */
static void turn(struct script *s, struct etcd *etcd, const struct etcd_call *call)
{
	uint64_t until = clock_now_ns() + 60 * NS_PER_S;

	while (call->state == ETCD_RUNNING && clock_now_ns() < until) {
		struct pollfd fd = {.fd = etcd_fd(etcd), .events = POLLIN};

		etcd_rig_step(&s->rig);
		etcd_step(etcd, clock_now_ns());
		if (call->state == ETCD_RUNNING)
			poll(&fd, 1, 1);
	}
	assert_int_not_equal(call->state, ETCD_RUNNING);
}

/* One call; what came of it stays in `call`. */
static void ask(struct script *s, struct etcd *etcd, struct etcd_call *call)
{
	etcd_begin(etcd, call, "/v3/lease/grant", etcd_text_grant(5), clock_now_ns());
	turn(s, etcd, call);
}

static void expect_failed(const struct etcd_call *call, int status, int code, const char *words)
{
	assert_int_equal(call->state, ETCD_FAILED);
	assert_int_equal(call->status, status);
	assert_int_equal(call->why.code, code);
	if (!strstr(call->why.text, words))
		fail_msg("wanted '%s' in '%s'", words, call->why.text);
}

static void test_config(void **state)
{
	struct etcd_config c;
	struct err e;

	assert_int_equal(etcd_config_read("h1:1, https://[::1]:2/,http://h3", "u:p:w\n", "/ca", &c, &e), 0);
	assert_int_equal(c.url_count, 3);
	assert_string_equal(c.urls[0], "http://h1:1");
	assert_string_equal(c.urls[1], "https://[::1]:2");
	assert_string_equal(c.urls[2], "http://h3");
	assert_string_equal(c.user, "u");
	assert_string_equal(c.secret, "p:w");
	assert_string_equal(c.ca, "/ca");
	assert_int_equal(etcd_config_read("h", "tok.12", NULL, &c, &e), 0);
	assert_string_equal(c.urls[0], "http://h:2379");
	assert_string_equal(c.user, "");
	assert_string_equal(c.secret, "tok.12");
}

static void expect_bad(const char *urls, const char *secret, const char *words)
{
	struct etcd_config c;
	struct err e = {.code = 0};

	assert_int_equal(etcd_config_read(urls, secret, NULL, &c, &e), -EINVAL);
	if (!strstr(e.text, words))
		fail_msg("wanted '%s' in '%s'", words, e.text);
}

static void test_config_errors(void **state)
{
	char many[400] = "", big[5000];
	struct etcd_config c;
	struct err e;

	expect_bad("", NULL, "no URL");
	expect_bad(" , ", NULL, "no URL");
	expect_bad("http://", NULL, "'http://' has no host");
	expect_bad("/", NULL, "'/' has no host");
	expect_bad("https://:2379", NULL, "'https://:2379' has no host");
	/* What was typed, and nothing before or behind it. */
	expect_bad("ftp://h", NULL, "'ftp://h' is not understood; allowed: http://host:port");
	expect_bad("http://h/path", NULL, "'http://h/path' is not understood");
	expect_bad("http://h:1, a?/,http://g", NULL, "'a?/' is not understood");
	for (int i = 0; i < 9; i++)
		strncat(many, "h:1,", sizeof(many) - strlen(many) - 1);
	expect_bad(many, NULL, "more than 8 URLs");
	expect_bad("h", "", "empty");
	expect_bad("h", "u:", "empty");
	expect_bad("h", ":p", "no user");
	expect_bad("h", "a\nb", "more than one line");
	memset(big, 'a', sizeof(big) - 1);
	big[sizeof(big) - 1] = '\0';
	expect_bad("h", big, "too long");
	expect_bad(big, NULL, "too long");
	/* A password in a URL is not repeated. */
	assert_int_equal(etcd_config_read("http://u:geheim@h:1", NULL, NULL, &c, &e), -EINVAL);
	assert_null(strstr(e.text, "geheim"));
}

static void test_call(void **state)
{
	struct script s;
	struct etcd_call call;
	struct etcd *etcd;
	int64_t lease, ttl;
	struct err e;

	script_init(&s);
	etcd = open_at(s.rig.url, NULL, 2000);
	for (int i = 0; i < 3; i++) {
		ask(&s, etcd, &call);
		assert_int_equal(call.state, ETCD_DONE);
		assert_int_equal(etcd_text_read_grant(call.answer, call.bytes, &lease, &ttl, &e), 0);
		assert_int_equal(lease, 7);
		assert_string_equal(call.local, "127.0.0.1");
		etcd_end(&call);
	}
	assert_string_equal(s.seen_body, "{\"TTL\":\"5\"}");
	assert_null(strstr(s.seen_head, "Authorization"));
	etcd_close(etcd);
	etcd_rig_fini(&s.rig);
}

static void test_refusals(void **state)
{
	struct script s;
	struct etcd_call call;
	struct etcd *etcd;

	script_init(&s);
	etcd = open_at(s.rig.url, NULL, 2000);
	s.work = (struct etcd_rig_answer){
		.status = 404, .body = "{\"error\":\"etcdserver: requested lease not found\",\"code\":5}"};
	ask(&s, etcd, &call);
	expect_failed(&call, ETCD_NOT_FOUND, -ENOENT, "requested lease not found");
	etcd_end(&call);
	s.work =
		(struct etcd_rig_answer){.status = 403, .body = "{\"error\":\"permission \\u001b denied\",\"code\":7}"};
	ask(&s, etcd, &call);
	expect_failed(&call, ETCD_DENIED, -EACCES, "permission   denied");
	etcd_end(&call);
	s.work = (struct etcd_rig_answer){.status = 503, .body = "{\"error\":\"no leader\",\"code\":14}"};
	ask(&s, etcd, &call);
	expect_failed(&call, ETCD_UNAVAILABLE, -EAGAIN, "no leader");
	etcd_end(&call);
	s.work = (struct etcd_rig_answer){.status = 301, .body = "<html>"};
	ask(&s, etcd, &call);
	expect_failed(&call, ETCD_UNKNOWN, -EACCES, "none of etcd's (HTTP 301)");
	etcd_end(&call);
	etcd_close(etcd);
	etcd_rig_fini(&s.rig);
}

static void test_broken_answers(void **state)
{
	struct script s;
	struct etcd_call call;
	struct etcd *etcd;

	script_init(&s);
	etcd = open_at(s.rig.url, NULL, 200);
	s.work = (struct etcd_rig_answer){.status = 0};
	ask(&s, etcd, &call);
	expect_failed(&call, -1, -ECONNREFUSED, s.rig.url);
	etcd_end(&call);
	s.work = (struct etcd_rig_answer){.status = 200, .body = "{\"ID\":", .length = 100};
	ask(&s, etcd, &call);
	expect_failed(&call, -1, -ECONNREFUSED, s.rig.url);
	etcd_end(&call);
	s.work = (struct etcd_rig_answer){.never = true, .status = 200};
	ask(&s, etcd, &call);
	expect_failed(&call, -1, -ETIMEDOUT, "timed out");
	etcd_end(&call);
	etcd_close(etcd);
	etcd_rig_fini(&s.rig);
}

static void test_huge_answer(void **state)
{
	struct script s;
	struct etcd_call call;
	struct etcd *etcd;

	script_init(&s);
	etcd = open_at(s.rig.url, NULL, 8000);
	s.work = (struct etcd_rig_answer){
		.status = 200, .body = "{\"a\":\"0123456789012345678901234567890123456789\"}", .repeat = 300000};
	ask(&s, etcd, &call);
	expect_failed(&call, ETCD_UNKNOWN, -EMSGSIZE, "more than 8 MiB");
	assert_true(call.bytes <= ETCD_ANSWER_MAX);
	etcd_end(&call);
	etcd_close(etcd);
	etcd_rig_fini(&s.rig);
}

/* The first that answers is asked from then on. */
static void test_several(void **state)
{
	struct script s;
	struct etcd_rig dead;
	struct etcd_call call;
	struct etcd *etcd;
	char urls[200];

	script_init(&s);
	etcd_rig_init(&dead);
	etcd_rig_fini(&dead); /* nobody listens there any more */
	snprintf(urls, sizeof(urls), "%s,%s", dead.url, s.rig.url);
	etcd = open_at(urls, NULL, 2000);
	assert_string_equal(etcd_url(etcd), dead.url);
	ask(&s, etcd, &call);
	assert_int_equal(call.state, ETCD_DONE);
	assert_string_equal(etcd_url(etcd), s.rig.url);
	etcd_end(&call);
	/* One without a leader is no better than none; each is asked once. */
	s.work = (struct etcd_rig_answer){.status = 503, .body = "{\"error\":\"no leader\",\"code\":14}"};
	s.rig.requests = 0;
	ask(&s, etcd, &call);
	expect_failed(&call, -1, -ECONNREFUSED, dead.url);
	assert_int_equal(s.rig.requests, 1);
	etcd_end(&call);
	etcd_close(etcd);
	etcd_rig_fini(&s.rig);
}

static void test_login(void **state)
{
	struct script s;
	struct etcd_call call;
	struct etcd *etcd;

	script_init(&s);
	s.wants_token = true;
	etcd = open_at(s.rig.url, "u:p", 2000);
	for (int i = 0; i < 2; i++) {
		ask(&s, etcd, &call);
		assert_int_equal(call.state, ETCD_DONE);
		etcd_end(&call);
	}
	assert_int_equal(s.logins, 1);
	s.token_old = true;
	ask(&s, etcd, &call);
	assert_int_equal(call.state, ETCD_DONE);
	assert_int_equal(s.logins, 2);
	etcd_end(&call);
	/* One that takes no token at all is not asked for ever. */
	s.login.body = "{\"token\":\"other\"}";
	s.token_old = true;
	ask(&s, etcd, &call);
	expect_failed(&call, ETCD_UNAUTHENTICATED, -EACCES, "invalid auth token");
	assert_int_equal(s.logins, 3);
	etcd_end(&call);
	etcd_close(etcd);
	/* A token that was given is all there is. */
	etcd = open_at(s.rig.url, "tok.9", 2000);
	ask(&s, etcd, &call);
	assert_int_equal(call.state, ETCD_DONE);
	assert_non_null(strstr(s.seen_head, "Authorization: tok.9"));
	etcd_end(&call);
	etcd_close(etcd);
	etcd_rig_fini(&s.rig);
}

static void test_login_refused(void **state)
{
	struct script s;
	struct etcd_call call;
	struct etcd *etcd;

	script_init(&s);
	etcd = open_at(s.rig.url, "u:geheim", 2000);
	s.login = (struct etcd_rig_answer){.status = 400,
		.body = "{\"error\":\"etcdserver: authentication failed, invalid user ID or password\",\"code\":3}"};
	ask(&s, etcd, &call);
	expect_failed(&call, ETCD_INVALID, -EACCES, "user 'u': etcdserver: authentication failed");
	assert_null(strstr(call.why.text, "geheim"));
	assert_string_equal(s.seen_body, "");
	etcd_end(&call);
	s.login = (struct etcd_rig_answer){.status = 200, .body = "{\"token\":\"a\\r\\nEvil: 1\"}"};
	ask(&s, etcd, &call);
	expect_failed(&call, ETCD_UNKNOWN, -EPROTO, "no token");
	etcd_end(&call);
	/* Where nobody needs to log in, nobody does. */
	s.login = (struct etcd_rig_answer){
		.status = 412, .body = "{\"error\":\"etcdserver: authentication is not enabled\",\"code\":9}"};
	ask(&s, etcd, &call);
	assert_int_equal(call.state, ETCD_DONE);
	etcd_end(&call);
	etcd_close(etcd);
	etcd_rig_fini(&s.rig);
}

/* Until a line of the stream has come. */
static const char *next_line(struct script *s, struct etcd *etcd, struct etcd_call *call, size_t *bytes)
{
	uint64_t until = clock_now_ns() + 60 * NS_PER_S;
	const char *line;

	do {
		etcd_rig_step(&s->rig);
		etcd_step(etcd, clock_now_ns());
		line = etcd_line(call, bytes);
	} while (!line && call->state == ETCD_RUNNING && clock_now_ns() < until);
	return line;
}

static void test_stream(void **state)
{
	struct script s;
	struct etcd_call call;
	struct etcd *etcd;
	const char *line;
	char urls[200];
	size_t bytes;

	script_init(&s);
	snprintf(urls, sizeof(urls), "%s,%s", s.rig.url, s.rig.url);
	etcd = open_at(urls, NULL, 100);
	s.work = (struct etcd_rig_answer){.status = 200, .body = "one\ntw", .stays = true, .length = 100000};
	etcd_begin_stream(etcd, &call, "/v3/watch", etcd_text_watch("/p/", 1), clock_now_ns());
	line = next_line(&s, etcd, &call, &bytes);
	assert_non_null(line);
	assert_memory_equal(line, "one", bytes);
	assert_null(etcd_line(&call, &bytes));
	poll(NULL, 0, 150); /* the time of an answer does not bound a stream */
	etcd_rig_say(&s.rig, "o\nthree\n");
	line = next_line(&s, etcd, &call, &bytes);
	assert_non_null(line);
	assert_int_equal(bytes, 3);
	assert_memory_equal(line, "two", bytes);
	line = next_line(&s, etcd, &call, &bytes);
	assert_non_null(line);
	assert_memory_equal(line, "three", bytes);
	etcd_rig_hang_up(&s.rig);
	turn(&s, etcd, &call);
	assert_int_equal(call.state, ETCD_FAILED);
	assert_int_equal(s.rig.requests, 1); /* it is not begun again behind the owner's back */
	etcd_end(&call);
	etcd_close(etcd);
	etcd_rig_fini(&s.rig);
}

/* What runs may be given up at any time. */
static void test_give_up(void **state)
{
	struct script s;
	struct etcd_call call = {.state = ETCD_IDLE};
	struct etcd *etcd;

	script_init(&s);
	s.work.never = true;
	etcd = open_at(s.rig.url, "u:p", 2000);
	etcd_end(&call);
	for (int steps = 0; steps < 40; steps += 5) {
		etcd_begin(etcd, &call, "/v3/kv/range", etcd_text_range("/p/", NULL, 1, 0), clock_now_ns());
		for (int i = 0; i < steps; i++) {
			etcd_rig_step(&s.rig);
			etcd_step(etcd, clock_now_ns());
		}
		etcd_end(&call);
		assert_int_equal(call.state, ETCD_IDLE);
	}
	etcd_begin(etcd, &call, "/v3/kv/range", NULL, clock_now_ns());
	expect_failed(&call, -1, -ENOMEM, "no memory");
	etcd_end(&call);
	etcd_close(etcd);
	etcd_rig_fini(&s.rig);
}

static struct gate gate;

/* "slow.test" has no answer before the gate is open; libcurl's own thread asks. */
static int slow_lookup(const char **host, const struct addrinfo *hints)
{
	if (*host && strcmp(*host, "slow.test") == 0) {
		gate_pass(&gate);
		*host = "127.0.0.1";
	}
	return 0;
}

/* A name server that does not answer holds up a call for its time, and the owner not at all. */
static void test_slow_name(void **state)
{
	struct script s;
	struct etcd_call call;
	struct etcd *etcd;

	script_init(&s);
	gate_init(&gate);
	etcd = open_at("http://slow.test:1", NULL, 500);
	for (int i = 0; i < 2; i++) { /* once until its time is up, and once given up before */
		etcd_begin(etcd, &call, "/v3/kv/range", etcd_text_range("/p/", NULL, 1, 0), clock_now_ns());
		etcd_step(etcd, clock_now_ns());
		gate_await(&gate);
		if (i == 0) {
			turn(&s, etcd, &call);
			expect_failed(&call, -1, -ETIMEDOUT, "http://slow.test:1");
		}
		etcd_end(&call);
		assert_int_equal(atomic_load(&gate.passed), 0);
	}
	gate_open(&gate);
	gate_open(&gate);
	etcd_close(etcd);
	etcd_rig_fini(&s.rig);
}

TEST_PROGRAM(test_etcd)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_config),
		cmocka_unit_test(test_config_errors),
		cmocka_unit_test(test_call),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_broken_answers),
		cmocka_unit_test(test_huge_answer),
		cmocka_unit_test(test_several),
		cmocka_unit_test(test_login),
		cmocka_unit_test(test_login_refused),
		cmocka_unit_test(test_stream),
		cmocka_unit_test(test_give_up),
		cmocka_unit_test(test_slow_name),
	};

	libc_rig_lookup = slow_lookup;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
