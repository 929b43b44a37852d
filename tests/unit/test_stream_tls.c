/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS around a stream: over ways of any width, with whom it may be spoken, that it is never plain by mistake, and what
 * damage does to it.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <openssl/ssl.h>

#include "tests/unit/cmocka_shim.h"
#include "tests/unit/tls_rig.h"
#include "transport/stream_tls.h"

static struct tls_files files;

struct pair {
	struct tls_way up, down; /* to the box, to the worker */
	struct stream *worker, *box;
};

static struct stream_tls *box_tls(void)
{
	struct stream_tls *tls = NULL;
	struct err e = {0};

	if (stream_tls_box(files.cert, files.key, &tls, &e) < 0)
		fail_msg("%s", e.text);
	return tls;
}

static struct stream_tls *worker_tls(const char *ca, const char *pin)
{
	struct stream_tls *tls = NULL;
	struct err e = {0};

	if (stream_tls_worker(ca, pin, &tls, &e) < 0)
		fail_msg("%s", e.text);
	return tls;
}

/* `worker` NULL: a plain one. What the contexts are is kept by the streams. */
static struct pair *pair_open(struct stream_tls *box, struct stream_tls *worker, const char *host, size_t room)
{
	struct pair *p = calloc(1, sizeof(*p));
	struct stream *far;

	assert_non_null(p);
	p->up.room = room;
	p->down.room = room;
	far = tls_way_open(&p->down, &p->up);
	p->box = tls_way_open(&p->up, &p->down);
	if (box)
		assert_int_equal(stream_tls_accept(box, p->box, &p->box), 0);
	if (worker)
		assert_int_equal(stream_tls_dial(worker, host, far, &far), 0);
	p->worker = far;
	return p;
}

static void pair_close(struct pair *p)
{
	p->worker->ops->close(p->worker);
	p->box->ops->close(p->box);
	free(p);
}

/* Turns both ends until the worker's text is at the box: 0, or the first error of either (the worker's wins). */
static int pair_carry(struct pair *p, const char *text, char *out, size_t bytes)
{
	size_t length = strlen(text) + 1, sent = 0, have = 0;

	for (int i = 0; i < 20000; i++) {
		uint8_t none;
		ssize_t n = sent < length || p->worker->unsent
				    ? p->worker->ops->write(p->worker, text + sent, length - sent)
				    : 0;

		if (n < 0 && n != -EAGAIN)
			return (int)n;
		sent += n > 0 ? (size_t)n : 0;
		n = p->worker->ops->read(p->worker, &none, 1);
		if (n != -EAGAIN)
			return n < 0 ? (int)n : -EBADMSG;
		n = p->box->ops->read(p->box, out + have, bytes - have);
		if (n == 0 || (n < 0 && n != -EAGAIN)) {
			n = n == 0 ? -EPIPE : n;
			(void)p->worker->ops->read(p->worker, &none, 1);
			return p->worker->why.code ? p->worker->why.code : (int)n;
		}
		have += n > 0 ? (size_t)n : 0;
		if (have == length)
			return 0;
	}
	return -ETIMEDOUT;
}

static bool way_holds(const struct tls_way *w, const char *text)
{
	return memmem(w->bytes, w->put, text, strlen(text)) != NULL;
}

static void test_carries(void **state)
{
	static const size_t rooms[] = {1, 2, 7, 100, 1500, TLS_WAY_BYTES};
	struct stream_tls *box = box_tls(), *worker = worker_tls(files.ca, NULL);
	uint8_t before[STREAM_CHANNEL_BYTES] = {0};
	char text[3000], out[3000], answer[3000];

	for (size_t i = 0; i < sizeof(text); i++)
		text[i] = (char)('a' + i % 26);
	text[sizeof(text) - 1] = '\0';
	for (size_t i = 0; i < sizeof(rooms) / sizeof(rooms[0]); i++) {
		struct pair *p = pair_open(box, worker, "box.test", rooms[i]);
		size_t sent = 0, have = 0;

		assert_true(p->worker->joining && p->box->joining);
		assert_false(p->worker->sealed);
		assert_int_equal(pair_carry(p, text, out, sizeof(out)), 0);
		assert_memory_equal(out, text, sizeof(text));
		assert_false(way_holds(&p->up, "abcdefgh"));
		assert_true(p->worker->sealed && p->box->sealed && !p->box->joining && !p->worker->joining);
		assert_memory_equal(p->worker->channel, p->box->channel, STREAM_CHANNEL_BYTES);
		assert_memory_not_equal(p->worker->channel, before, STREAM_CHANNEL_BYTES);
		memcpy(before, p->worker->channel, sizeof(before));
		while (have < sizeof(text)) {
			ssize_t n = p->box->ops->write(p->box, text + sent, sizeof(text) - sent);

			sent += n > 0 ? (size_t)n : 0;
			n = p->worker->ops->read(p->worker, answer + have, sizeof(answer) - have);
			have += n > 0 ? (size_t)n : 0;
		}
		assert_memory_equal(answer, text, sizeof(text));
		pair_close(p);
	}
	stream_tls_close(box);
	stream_tls_close(worker);
}

/* What was taken but found no way out is told, and a write of nothing sends it. */
static void test_unsent(void **state)
{
	struct stream_tls *box = box_tls(), *worker = worker_tls(NULL, files.pin);
	struct pair *p = pair_open(box, worker, "anything", TLS_WAY_BYTES);
	char out[64];

	assert_int_equal(pair_carry(p, "hello", out, sizeof(out)), 0);
	p->down.room = 3;
	assert_int_equal(p->box->ops->write(p->box, "answer", 6), 6);
	assert_true(p->box->unsent);
	assert_int_equal(p->box->ops->write(p->box, "more", 4), -EAGAIN);
	assert_int_equal(p->box->ops->write(p->box, NULL, 0), -EAGAIN);
	p->down.room = TLS_WAY_BYTES;
	assert_int_equal(p->box->ops->write(p->box, NULL, 0), 0);
	assert_false(p->box->unsent);
	assert_int_equal(p->worker->ops->read(p->worker, out, sizeof(out)), 6);
	assert_memory_equal(out, "answer", 6);
	p->box->ops->close(p->box);
	assert_int_equal(p->worker->ops->read(p->worker, out, sizeof(out)), 0);
	p->worker->ops->close(p->worker);
	free(p);
	stream_tls_close(box);
	stream_tls_close(worker);
}

static void test_whom(void **state)
{
	static char pin_colons[128], pin_wrong[65];
	const struct {
		const char *ca, *pin, *host;
		int code;
		const char *words;
	} cases[] = {
		{files.ca, NULL, "box.test", 0, ""},
		{files.ca, NULL, "127.0.0.1", 0, ""},
		{files.ca, NULL, "other.test", -EACCES, "hostname mismatch"},
		{files.ca, NULL, "127.0.0.2", -EACCES, "IP address mismatch"},
		{files.ca, NULL, "::1%1", -EACCES, "IP address mismatch"},
		{files.other_ca, NULL, "box.test", -EACCES, "PHUB_TLS_CA"},
		{NULL, files.pin, "whoever", 0, ""},
		{NULL, pin_colons, "whoever", 0, ""},
		{NULL, pin_wrong, "box.test", -EACCES, "PHUB_TLS_PIN"},
		{files.ca, files.pin, "box.test", 0, ""},
		{files.ca, pin_wrong, "box.test", -EACCES, "PHUB_TLS_PIN"},
		{files.other_ca, files.pin, "box.test", -EACCES, "PHUB_TLS_CA"},
	};
	struct stream_tls *box = box_tls();
	char out[64], own[STREAM_TLS_PIN_TEXT];

	stream_tls_pin(box, own);
	assert_string_equal(own, files.pin);
	memcpy(pin_wrong, files.pin, sizeof(pin_wrong));
	pin_wrong[63] = pin_wrong[63] == '0' ? '1' : '0';
	snprintf(pin_colons, sizeof(pin_colons), "SHA256:");
	for (unsigned i = 0; i < 32; i++)
		snprintf(pin_colons + 7 + 3 * i, 4, i < 31 ? "%.2s:" : "%.2s", files.pin + 2 * i);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct stream_tls *worker = worker_tls(cases[i].ca, cases[i].pin);
		struct pair *p = pair_open(box, worker, cases[i].host, TLS_WAY_BYTES);
		int rc = pair_carry(p, "the secret words", out, sizeof(out));

		if (rc != cases[i].code || !strstr(p->worker->why.text, cases[i].words))
			fail_msg("case %zu: %d '%s'", i, rc, p->worker->why.text);
		if (rc < 0) {
			assert_int_equal(p->box->ops->read(p->box, out, sizeof(out)), -EPROTO);
			assert_non_null(strstr(p->box->why.text, "alert"));
			assert_false(p->box->sealed || p->worker->sealed);
		}
		pair_close(p);
		stream_tls_close(worker);
	}
	stream_tls_close(box);
}

/* A worker that wants TLS says nothing to one that has none; a plain one passes a box that has. */
static void test_plain(void **state)
{
	struct stream_tls *box = box_tls(), *worker = worker_tls(files.ca, NULL);
	struct pair *p = pair_open(NULL, worker, "box.test", TLS_WAY_BYTES);
	char out[64];

	assert_int_equal(p->worker->ops->write(p->worker, "the secret words", 16), -EAGAIN);
	assert_int_equal(p->box->ops->write(p->box, "\x05\0\0\0hello", 9), 9);
	assert_int_equal(p->worker->ops->read(p->worker, out, sizeof(out)), -EPROTO);
	assert_int_equal(p->worker->ops->write(p->worker, "the secret words", 16), -EPROTO);
	assert_non_null(strstr(p->worker->why.text, "no TLS 1.3"));
	assert_false(way_holds(&p->up, "secret words"));
	pair_close(p);
	for (size_t room = 1; room < 12; room++) {
		p = pair_open(box, NULL, NULL, room);
		assert_int_equal(p->box->ops->write(p->box, "x", 1), -EAGAIN); /* nobody knows yet in which tongue */
		assert_int_equal(pair_carry(p, "\x16\x03hello, \x16\x03\x01", out, sizeof(out)), 0);
		assert_string_equal(out, "\x16\x03hello, \x16\x03\x01");
		assert_false(p->box->sealed || p->box->joining);
		assert_true(way_holds(&p->up, "hello"));
		pair_close(p);
	}
	stream_tls_close(box);
	stream_tls_close(worker);
}

/* Whatever offers less than 1.3 gets nothing. */
static void test_version(void **state)
{
	struct stream_tls *box = box_tls();
	struct pair *p = pair_open(box, NULL, NULL, TLS_WAY_BYTES);
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
	SSL *ssl = SSL_new(ctx);
	BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
	char *hello, buf[64];
	long bytes;

	assert_true(SSL_set_max_proto_version(ssl, TLS1_2_VERSION));
	SSL_set_bio(ssl, in, out);
	SSL_set_connect_state(ssl);
	assert_true(SSL_do_handshake(ssl) < 0);
	bytes = BIO_get_mem_data(out, &hello);
	assert_int_equal(p->worker->ops->write(p->worker, hello, (size_t)bytes), bytes);
	assert_int_equal(p->box->ops->read(p->box, buf, sizeof(buf)), -EPROTO);
	assert_non_null(strstr(p->box->why.text, "unsupported protocol"));
	SSL_free(ssl);
	SSL_CTX_free(ctx);
	pair_close(p);
	stream_tls_close(box);
}

static void test_damage(void **state)
{
	struct stream_tls *box = box_tls(), *worker = worker_tls(files.ca, NULL);
	struct pair *p = pair_open(box, worker, "box.test", TLS_WAY_BYTES);
	char out[64];

	assert_int_equal(pair_carry(p, "hello", out, sizeof(out)), 0);
	assert_int_equal(p->worker->ops->write(p->worker, "again", 5), 5);
	p->up.bytes[p->up.put - 3] ^= 1;
	assert_int_equal(p->box->ops->read(p->box, out, sizeof(out)), -EPROTO);
	assert_int_equal(p->box->ops->read(p->box, out, sizeof(out)), -EPROTO);
	assert_int_equal(p->box->ops->write(p->box, "x", 1), -EPROTO);
	assert_int_equal(p->worker->ops->read(p->worker, out, sizeof(out)), -EPROTO);
	pair_close(p);
	/* The same record twice. */
	p = pair_open(box, worker, "box.test", TLS_WAY_BYTES);
	assert_int_equal(pair_carry(p, "hello", out, sizeof(out)), 0);
	assert_int_equal(p->worker->ops->write(p->worker, "again", 5), 5);
	assert_int_equal(p->box->ops->read(p->box, out, sizeof(out)), 5);
	p->up.got -= 5 + 5 + 1 + 16; /* its head, the text, its type, the tag */
	assert_int_equal(p->box->ops->read(p->box, out, sizeof(out)), -EPROTO);
	pair_close(p);
	stream_tls_close(box);
	stream_tls_close(worker);
}

static void expect_box(const char *cert, const char *key, int code, const char *words)
{
	struct stream_tls *tls = NULL;
	struct err e = {0};
	int rc = stream_tls_box(cert, key, &tls, &e);

	if (rc != code || !strstr(e.text, words))
		fail_msg("wanted %d with '%s', got %d '%s'", code, words, rc, e.text);
}

static void test_files(void **state)
{
	struct stream_tls *tls = NULL;
	struct err e = {0};

	expect_box("/nowhere", files.key, -ENOENT, "/nowhere");
	expect_box(files.key, files.key, -EINVAL, "no certificate");
	expect_box(files.cert, "/nowhere", -ENOENT, "must hold the private key");
	expect_box(files.cert, files.folder, -EINVAL, "not a file");
	expect_box(files.cert, files.cert, -EINVAL, "no private key");
	expect_box(files.cert, files.other_key, -EINVAL, "not the key of the certificate");
	expect_box(files.cert, files.locked_key, -EINVAL, "without a password");
	assert_int_equal(chmod(files.key, 0640), 0);
	expect_box(files.cert, files.key, -EACCES, "chmod 600");
	assert_int_equal(chmod(files.key, 0600), 0);
	assert_int_equal(stream_tls_worker(NULL, NULL, &tls, &e), -EINVAL);
	assert_non_null(strstr(e.text, "PHUB_TLS_PIN"));
	assert_int_equal(stream_tls_worker("/nowhere", NULL, &tls, &e), -ENOENT);
	assert_int_equal(stream_tls_worker(files.key, NULL, &tls, &e), -EINVAL);
	assert_int_equal(stream_tls_worker(NULL, "abc", &tls, &e), -EINVAL);
	assert_int_equal(stream_tls_worker(files.ca, "sha256:zz", &tls, &e), -EINVAL);
	assert_null(tls);
}

static int setup(void **state)
{
	tls_files_make(&files);
	return 0;
}

static int teardown(void **state)
{
	tls_files_remove(&files);
	return 0;
}

TEST_PROGRAM(test_stream_tls)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_carries),
		cmocka_unit_test(test_unsent),
		cmocka_unit_test(test_whom),
		cmocka_unit_test(test_plain),
		cmocka_unit_test(test_version),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_files),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
