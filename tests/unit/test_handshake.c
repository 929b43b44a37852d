/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both sides of a data connection's first three messages, without I/O: whole, byte by byte, refused, and with
 * every byte broken in turn.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "tests/unit/cmocka_shim.h"
#include "transport/handshake.h"

static const uint8_t nonce[PROOF_NONCE] = {9, 8, 7, 6, 5, 4, 3, 2, 1};
static const uint8_t key[PROOF_KEY] = {1, 2, 3, 4};

#define SESSION 0x1122334455667788u
#define CORE    3u

struct pair {
	struct handshake box, worker;
};

static void begin(struct pair *p)
{
	handshake_begin_box(&p->box, nonce);
	handshake_begin_worker(&p->worker, SESSION, CORE, key);
}

/* Moves up to `step` bytes at a time from one side to the other. Returns what the receiver said last. */
static int carry(struct handshake *from, struct handshake *to, size_t step)
{
	int rc = 0;

	while (rc == 0) {
		size_t bytes;
		size_t wants = handshake_wants(to);
		const uint8_t *out = handshake_output(from, &bytes);
		uint8_t copy[HANDSHAKE_BYTES_MAX];

		if (bytes > step)
			bytes = step;
		if (bytes > wants)
			bytes = wants;
		if (bytes == 0)
			break;
		memcpy(copy, out, bytes);
		handshake_sent(from, bytes);
		rc = handshake_input(to, copy, bytes);
	}
	return rc;
}

static void assert_nothing_to_send(const struct handshake *h)
{
	size_t bytes;

	handshake_output(h, &bytes);
	assert_int_equal(bytes, 0);
}

static void exchange(size_t step)
{
	struct pair p;
	uint8_t mac[PROOF_MAC];

	begin(&p);
	assert_int_equal(carry(&p.box, &p.worker, step), 0);
	assert_int_equal(p.worker.state, HANDSHAKE_AWAIT_WELCOME);
	assert_int_equal(carry(&p.worker, &p.box, step), 0);
	assert_int_equal(p.box.state, HANDSHAKE_AWAIT_ANSWER);
	assert_int_equal(handshake_wants(&p.box), 0);
	assert_int_equal(p.box.session, SESSION);
	assert_int_equal(p.box.core, CORE);
	assert_int_equal(proof_data(key, nonce, SESSION, CORE, mac), 0);
	assert_memory_equal(p.box.mac, mac, sizeof(mac));
	handshake_answer(&p.box, 0);
	assert_int_equal(p.box.state, HANDSHAKE_DONE);
	assert_int_equal(carry(&p.box, &p.worker, step), 0);
	assert_int_equal(p.worker.state, HANDSHAKE_DONE);
	assert_int_equal(handshake_wants(&p.worker), 0);
	assert_nothing_to_send(&p.box);
	assert_nothing_to_send(&p.worker);
}

static void test_exchange(void **state)
{
	for (size_t step = 1; step <= HANDSHAKE_BYTES_MAX; step++)
		exchange(step);
}

/* The protocol, byte by byte. */
static void test_bytes(void **state)
{
	static const uint8_t nonce_head[8] = {'P', 'H', 'H', 'S', 1, 1, 0, 0};
	static const uint8_t hello_head[24] = {
		'P', 'H', 'H', 'S', 1, 2, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11};
	static const uint8_t denied[16] = {'P', 'H', 'H', 'S', 1, 3, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};
	const uint8_t *out;
	struct pair p;
	size_t bytes;

	begin(&p);
	out = handshake_output(&p.box, &bytes);
	assert_int_equal(bytes, HANDSHAKE_NONCE_BYTES);
	assert_memory_equal(out, nonce_head, sizeof(nonce_head));
	assert_memory_equal(out + 8, nonce, sizeof(nonce));
	assert_int_equal(carry(&p.box, &p.worker, 99), 0);
	out = handshake_output(&p.worker, &bytes);
	assert_int_equal(bytes, HANDSHAKE_HELLO_BYTES);
	assert_memory_equal(out, hello_head, sizeof(hello_head));
	assert_int_equal(carry(&p.worker, &p.box, 99), 0);
	handshake_answer(&p.box, EACCES);
	out = handshake_output(&p.box, &bytes);
	assert_int_equal(bytes, HANDSHAKE_WELCOME_BYTES);
	assert_memory_equal(out, denied, sizeof(denied));
}

static void test_refusals(void **state)
{
	static const int told[][2] = {
		{EACCES, EACCES},
		{ENOENT, ENOENT},
		{ERANGE, ERANGE},
		{EALREADY, EALREADY},
		{ENOSPC, ENOSPC},
		{ESHUTDOWN, ESHUTDOWN},
		{ECONNREFUSED, ECONNREFUSED},
		{EIO, ECONNREFUSED},
		{9999, ECONNREFUSED},
	};

	for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++) {
		struct pair p;

		begin(&p);
		assert_int_equal(carry(&p.box, &p.worker, 99), 0);
		assert_int_equal(carry(&p.worker, &p.box, 99), 0);
		handshake_answer(&p.box, told[i][0]);
		assert_int_equal(p.box.state, HANDSHAKE_FAILED);
		assert_int_equal(p.box.error, -told[i][0]);
		assert_int_equal(carry(&p.box, &p.worker, 99), -told[i][1]);
		assert_int_equal(p.worker.state, HANDSHAKE_FAILED);
		assert_int_equal(p.worker.error, -told[i][1]);
	}
}

static void test_codes(void **state)
{
	assert_int_equal(handshake_code_errno(HANDSHAKE_WELCOME), 0);
	for (uint32_t code = 0; code <= HANDSHAKE_NO_WAY; code++)
		assert_int_equal(handshake_code_from_errno(handshake_code_errno(code)), code);
	assert_int_equal(handshake_code_errno(HANDSHAKE_NO_WAY + 1), ECONNREFUSED);
	assert_int_equal(handshake_code_errno(UINT32_MAX), ECONNREFUSED);
}

/* What a broken byte of a message's head must lead to. */
static int head_error(size_t at)
{
	return at == 4 ? -EPROTONOSUPPORT : -EPROTO;
}

static void test_broken_nonce(void **state)
{
	for (size_t at = 0; at < 8; at++) {
		struct pair p;

		begin(&p);
		p.box.out[at] ^= 0x41;
		assert_int_equal(carry(&p.box, &p.worker, 99), head_error(at));
		assert_int_equal(p.worker.state, HANDSHAKE_FAILED);
		assert_int_equal(p.worker.error, head_error(at));
		assert_int_equal(handshake_wants(&p.worker), 0);
		assert_nothing_to_send(&p.worker);
	}
}

static void test_broken_hello(void **state)
{
	for (size_t at = 0; at < HANDSHAKE_HELLO_BYTES; at++) {
		bool checked = at < 8 || (at >= 12 && at < 16);
		struct pair p;
		int rc;

		begin(&p);
		assert_int_equal(carry(&p.box, &p.worker, 99), 0);
		p.worker.out[at] ^= 0x41;
		rc = carry(&p.worker, &p.box, 5);
		if (checked) {
			assert_int_equal(rc, head_error(at));
			assert_int_equal(p.box.state, HANDSHAKE_FAILED);
		} else { /* For the session's owner to find out: the MAC does not fit any more. */
			uint8_t mac[PROOF_MAC];

			assert_int_equal(rc, 0);
			assert_int_equal(p.box.state, HANDSHAKE_AWAIT_ANSWER);
			assert_int_equal(proof_data(key, nonce, p.box.session, p.box.core, mac), 0);
			assert_false(proof_equal(mac, p.box.mac));
		}
	}
}

static void test_broken_welcome(void **state)
{
	for (size_t at = 0; at < HANDSHAKE_WELCOME_BYTES; at++) {
		bool code = at >= 8 && at < 12;
		struct pair p;

		begin(&p);
		assert_int_equal(carry(&p.box, &p.worker, 99), 0);
		assert_int_equal(carry(&p.worker, &p.box, 99), 0);
		handshake_answer(&p.box, 0);
		p.box.out[at] ^= 0x41;
		assert_int_equal(carry(&p.box, &p.worker, 3), code ? -ECONNREFUSED : head_error(at));
		assert_int_equal(p.worker.state, HANDSHAKE_FAILED);
	}
}

/* Each message where another is due. */
static void test_out_of_order(void **state)
{
	uint8_t hello[HANDSHAKE_HELLO_BYTES] = {0};
	struct pair p;
	struct pair other;

	begin(&p);
	begin(&other);
	/* A box talks to a box. */
	assert_int_equal(handshake_wants(&p.box), HANDSHAKE_HELLO_BYTES);
	memcpy(hello, other.box.out, HANDSHAKE_NONCE_BYTES);
	assert_int_equal(handshake_input(&p.box, hello, sizeof(hello)), -EPROTO);
	/* A hello that came before the nonce went out. */
	begin(&p);
	assert_int_equal(carry(&other.box, &other.worker, 99), 0);
	assert_int_equal(carry(&other.worker, &p.box, 99), -EPROTO);
	/* A welcome that came before the hello went out. */
	begin(&p);
	assert_int_equal(carry(&p.box, &p.worker, 99), 0);
	assert_int_equal(handshake_wants(&p.worker), HANDSHAKE_WELCOME_BYTES);
	assert_int_equal(handshake_input(&p.worker, "PHHS\1\3\0\0\0\0\0\0\0\0\0\0", HANDSHAKE_WELCOME_BYTES), -EPROTO);
}

static void test_too_much(void **state)
{
	uint8_t bytes[HANDSHAKE_BYTES_MAX + 1] = {0};
	struct pair p;

	begin(&p);
	assert_int_equal(handshake_input(&p.box, bytes, 0), 0);
	assert_int_equal(p.box.state, HANDSHAKE_AWAIT_HELLO);
	assert_int_equal(handshake_input(&p.box, bytes, sizeof(bytes)), -EINVAL);
	assert_int_equal(p.box.state, HANDSHAKE_FAILED);
	assert_int_equal(handshake_input(&p.box, bytes, 1), -EINVAL);
	assert_int_equal(handshake_input(&p.worker, bytes, HANDSHAKE_NONCE_BYTES + 1), -EINVAL);
}

/* The session's key does not stay in memory. */
static void test_key_is_wiped(void **state)
{
	static const uint8_t zeros[PROOF_KEY];
	struct pair p;

	begin(&p);
	assert_memory_equal(p.worker.key, key, sizeof(key));
	assert_int_equal(carry(&p.box, &p.worker, 99), 0);
	assert_memory_equal(p.worker.key, zeros, sizeof(zeros));
	begin(&p);
	p.box.out[0] = 'X';
	assert_int_equal(carry(&p.box, &p.worker, 99), -EPROTO);
	assert_memory_equal(p.worker.key, zeros, sizeof(zeros));
}

TEST_PROGRAM(test_handshake)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_exchange),
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_codes),
		cmocka_unit_test(test_broken_nonce),
		cmocka_unit_test(test_broken_hello),
		cmocka_unit_test(test_broken_welcome),
		cmocka_unit_test(test_out_of_order),
		cmocka_unit_test(test_too_much),
		cmocka_unit_test(test_key_is_wiped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
