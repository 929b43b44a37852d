/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be said in signals, before there is a connection: by workers that make no sense, to a box, and by such a
 * box.
 *
 * vm: -m 1024 -w 2
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifndef PHUB_VERBS
TEST_PROGRAM(test_verbs_signals)
{
	puts("this build has no transport \"verbs\"");
	return 77;
}
#else

#include <errno.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "tests/suite/transport_rig.h"
#include "tests/unit/cmocka_shim.h"
#include "transport/le.h"
#include "transport/verbs_internal.h"

enum { BAD_RANK = 5 };

static const struct fixture over_verbs = {.label = "verbs", .transport = "verbs", .one_sided = true};

enum { DIAL = 1, NONCE = 2, HELLO = 3, WELCOME = 4, GONE = 5, RAIL_BYTES = 40, HELLO_BYTES = 1 + 56 + 8 + 8 + 1 };

static uint32_t number; /* of the stranger that speaks */

static void say(struct rig *rig, const uint8_t *bytes, uint32_t length)
{
	struct signal in = {.session = 77, .number = number, .length = length};

	memcpy(in.bytes, bytes, length < SIGNAL_BYTES_MAX ? length : SIGNAL_BYTES_MAX);
	rig->ops->signal_give(rig->box, &in);
}

static void say_type(struct rig *rig, uint8_t type)
{
	say(rig, &type, 1);
}

/* Dials as a new stranger and takes the answer: its type. */
static uint8_t dial(struct rig *rig, const char *name, struct signal *answer)
{
	uint8_t bytes[SIGNAL_BYTES_MAX] = {DIAL};

	number++;
	memcpy(bytes + 1, name, strlen(name));
	say(rig, bytes, 1 + (uint32_t)strlen(name));
	assert_int_equal(rig->ops->signal_take(rig->box, answer), 0);
	assert_int_equal(answer->number, number);
	return answer->bytes[0];
}

/* A whole hello with one rail, as an honest worker answers this nonce. Its length. */
static uint32_t hello_of(const struct signal *nonce, uint8_t *out)
{
	const uint8_t key[PROOF_KEY] = {1};
	struct handshake h;
	const uint8_t *said;
	uint8_t *rail = out + HELLO_BYTES;
	size_t bytes;

	memset(out, 0, HELLO_BYTES + RAIL_BYTES);
	handshake_begin_worker(&h, 77, 0, key);
	assert_int_equal(handshake_input(&h, nonce->bytes + 1, HANDSHAKE_NONCE_BYTES), 0);
	said = handshake_output(&h, &bytes);
	assert_int_equal(bytes, HANDSHAKE_HELLO_BYTES);
	out[0] = HELLO;
	memcpy(out + 1, said, bytes);
	out[HELLO_BYTES - 1] = 1;
	memcpy(rail, nonce->bytes + 1 + HANDSHAKE_NONCE_BYTES + 1, 16);
	le_put32(rail + 16, 1000);
	rail[22] = IBV_MTU_1024;
	return HELLO_BYTES + RAIL_BYTES;
}

/* A dial of its own, then this instead of a hello: refused, and said so. */
static void refused(struct rig *rig, const char *name, unsigned at, uint8_t value, uint32_t length)
{
	uint64_t before = rig->box->strangers_refused;
	uint8_t bytes[SIGNAL_BYTES_MAX];
	struct signal answer;
	uint32_t whole;

	assert_int_equal(dial(rig, name, &answer), NONCE);
	whole = hello_of(&answer, bytes);
	if (at)
		bytes[at] = value;
	say(rig, bytes, length ? length : whole);
	assert_int_equal(rig->box->strangers_refused, before + 1);
	assert_int_equal(rig->ops->signal_take(rig->box, &answer), 0);
	assert_int_equal(answer.bytes[0], GONE);
	assert_int_equal(rig->ops->signal_take(rig->box, &answer), -EAGAIN);
}

static void box_name(const struct rig *rig, char *out)
{
	snprintf(out, 64, "%.*s", (int)strcspn(rig->address, "/"), rig->address);
}

static void signals_that_say_nothing(void **state)
{
	static const struct rig_options usual;
	static const uint8_t odd[] = {0, NONCE, HELLO, WELCOME, GONE, 6, 255};
	uint8_t bytes[SIGNAL_BYTES_MAX] = {DIAL};
	struct rig *rig = rig_create(&over_verbs, &usual);
	struct signal answer;

	say(rig, bytes, 0);
	say(rig, bytes, SIGNAL_BYTES_MAX + 1);
	say(rig, bytes, UINT32_MAX);
	for (unsigned i = 0; i < sizeof(odd); i++)
		say_type(rig, odd[i]);
	assert_int_equal(rig->ops->signal_take(rig->box, &answer), -EAGAIN);
	assert_int_equal(rig->box->strangers_refused + rig->box->strangers_gone, 0);
	assert_int_equal(dial(rig, "", &answer), GONE);
	assert_int_equal(dial(rig, "rdma-0", &answer), GONE);
	assert_int_equal(rig->box->strangers_refused, 2);
	rig_destroy(rig);
}

static void hellos_that_cannot_be(void **state)
{
	static const struct rig_options usual;
	struct rig *rig = rig_create(&over_verbs, &usual);
	const uint32_t rails = HELLO_BYTES - 1, rail = HELLO_BYTES;
	char name[64];

	box_name(rig, name);
	for (uint32_t length = 1; length < HELLO_BYTES + RAIL_BYTES; length++)
		refused(rig, name, 0, 0, length);
	refused(rig, name, 0, 0, HELLO_BYTES + RAIL_BYTES + 1);
	refused(rig, name, rails, 0, 0);
	refused(rig, name, rails, 2, 0);
	refused(rig, name, rails, VERBS_RAILS_MAX + 1, SIGNAL_BYTES_MAX);
	refused(rig, name, rails, 255, SIGNAL_BYTES_MAX);
	refused(rig, name, rail + 22, 0, 0);
	refused(rig, name, rail + 22, IBV_MTU_4096 + 1, 0);
	refused(rig, name, rail + 23, 200, 0);
	assert_int_equal(((struct verbs *)rig->box)->stranger_count, 0);
	rig_destroy(rig);
}

/*
 * A hello with an address that nobody has: the box looks for it for seconds, and meanwhile lets others in without
 * waiting; then it says what it did not find.
 */
static void an_address_that_nobody_has(void **state)
{
	static const struct rig_options usual;
	struct rig *rig = rig_create(&over_verbs, &usual);
	struct lane *other = rig_lane(rig, rig_box_end(rig, 0), rig_worker_end(rig, 0), BAD_RANK);
	uint64_t until_ns = clock_now_ns() + 60 * NS_PER_S;
	uint8_t bytes[SIGNAL_BYTES_MAX];
	struct signal answer;
	struct hello hello;
	uint32_t length;
	unsigned looks = 0;
	char name[64];

	box_name(rig, name);
	assert_int_equal(dial(rig, name, &answer), NONCE);
	length = hello_of(&answer, bytes);
	bytes[HELLO_BYTES + 15] ^= 0x5a;
	say(rig, bytes, length);
	assert_true(rig->box->soon);
	rig_admit(rig, other);
	assert_int_equal(rig_established(rig, other), 0);
	assert_true(rig->box->soon); /* still */
	while (rig->ops->signal_take(rig->box, &answer) < 0 && clock_now_ns() < until_ns) {
		assert_int_equal(rig->ops->accept(rig->box, rig_now(rig), &hello), -EAGAIN);
		looks++;
		usleep(1000);
	}
	assert_int_equal(answer.bytes[0], GONE);
	assert_int_equal(le_get32(answer.bytes + 1), HANDSHAKE_NO_WAY);
	assert_int_equal(answer.bytes[5], 1);
	assert_false(rig->box->soon);
	assert_true(looks > 1); /* none of them waited for it */
	rig_destroy(rig);
}

/* Says the hello twice, and that it is gone, after so many steps: dialled, said hello, asked for. */
static void gone_after(struct rig *rig, const char *name, unsigned steps)
{
	uint8_t bytes[SIGNAL_BYTES_MAX];
	struct signal answer;
	struct hello hello;
	uint32_t length;
	struct err e;

	assert_int_equal(dial(rig, name, &answer), NONCE);
	length = hello_of(&answer, bytes);
	if (steps > 0) {
		say(rig, bytes, length);
		say(rig, bytes, length);
	}
	if (steps > 1)
		hello = rig_hello(rig);
	say_type(rig, GONE);
	say_type(rig, GONE);
	assert_int_equal(rig->ops->accept(rig->box, rig_now(rig), &(struct hello){0}), -EAGAIN);
	if (steps > 1) {
		struct conn_spec spec = {.chunk_count = 1};

		assert_int_equal(rig->ops->admit(rig->box, hello.conn, &spec, &e), -ECONNRESET);
	}
	while (rig->ops->signal_take(rig->box, &answer) == 0)
		assert_int_equal(answer.bytes[0], GONE);
}

static void gone_in_every_state(void **state)
{
	static const struct rig_options usual;
	struct rig *rig = rig_create(&over_verbs, &usual);
	char name[64];

	box_name(rig, name);
	for (unsigned steps = 0; steps < 3; steps++)
		gone_after(rig, name, steps);
	assert_int_equal(rig->box->strangers_refused, 0);
	assert_int_equal(rig->box->strangers_gone, 2);
	assert_int_equal(((struct verbs *)rig->box)->stranger_count, 0);
	rig_destroy(rig);
}

/* A worker hears this from its box, having said so much. */
static void worker_hears(const uint8_t *bytes, uint32_t length)
{
	static const struct rig_options usual;
	struct rig *rig = rig_create(&over_verbs, &usual);
	struct lane *lane = rig_lane(rig, rig_box_end(rig, 0), rig_worker_end(rig, 0), BAD_RANK);
	struct signal said;
	struct err e = {0};
	int rc;

	assert_int_equal(rig->ops->connect(lane->transport, rig->address, rig_session(BAD_RANK), 0, rig_key(),
				 &lane->worker_spec, &lane->worker, &e),
		0);
	assert_int_equal(rig->ops->signal_take(lane->transport, &said), 0);
	memset(said.bytes, 0, sizeof(said.bytes));
	memcpy(said.bytes, bytes, length);
	said.length = length;
	rig->ops->signal_give(lane->transport, &said);
	rc = rig->ops->established(lane->transport, lane->worker, &e);
	assert_true(rc < 0 && rc != -EAGAIN);
	assert_true(e.text[0]);
	rig_destroy(rig);
}

static void boxes_that_talk_nonsense(void **state)
{
	uint8_t bytes[SIGNAL_BYTES_MAX] = {NONCE};
	struct handshake h;
	const uint8_t *out, nonce[PROOF_NONCE] = {9};
	size_t count;

	for (uint8_t type = 0; type < 7; type++)
		worker_hears(&type, 1);
	worker_hears(bytes, 0);
	handshake_begin_box(&h, nonce);
	out = handshake_output(&h, &count);
	memcpy(bytes + 1, out, count);
	worker_hears(bytes, 1 + (uint32_t)count);
	for (unsigned ports = 0; ports < 256; ports += 51) {
		bytes[1 + count] = (uint8_t)ports;
		worker_hears(bytes, 2 + (uint32_t)count + 24 * (ports % 7) + 1);
	}
	bytes[1 + count] = VERBS_DEVICES_MAX + 1;
	worker_hears(bytes, 2 + (uint32_t)count + 24 * (VERBS_DEVICES_MAX + 1));
}

TEST_PROGRAM(test_verbs_signals)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(signals_that_say_nothing),
		cmocka_unit_test(hellos_that_cannot_be),
		cmocka_unit_test(an_address_that_nobody_has),
		cmocka_unit_test(gone_in_every_state),
		cmocka_unit_test(boxes_that_talk_nonsense),
	};

	if (rig_rdma_ports() == 0) {
		puts("no RDMA device here");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
