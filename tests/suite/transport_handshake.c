/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport suite: how connections come about, are refused, are given up, and by whom.
 */
#include "tests/suite/transport_cases.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#include "tests/suite/transport_rig.h"
#include "transport/proof.h"

static const struct rig_options usual;

static struct lane *first_lane(struct rig *rig, uint32_t rank)
{
	return rig_lane(rig, rig_box_end(rig, 0), rig_worker_end(rig, 0), rank);
}

static bool hello_is_proved(const struct hello *hello, const uint8_t *key)
{
	uint8_t mac[PROOF_MAC];

	assert_int_equal(proof_data(key, hello->nonce, hello->session, hello->core, mac), 0);
	return proof_equal(mac, hello->mac);
}

/* Accepts for a while, but no hello comes; workers do not go on. */
static void accept_nobody(struct rig *rig, unsigned turns)
{
	struct hello hello;

	while (turns-- > 0) {
		assert_int_equal(rig->ops->accept(rig->box, rig_now(rig), &hello), -EAGAIN);
		rig_rest(rig);
	}
}

static void the_box_learns_who_asks_and_lets_it_in(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = rig_lane(rig, rig_box_end(rig, 2), rig_worker_end(rig, 0), 5);
	struct err e = {0};
	struct hello hello;

	rig_connect(rig, lane, rig_key());
	hello = rig_hello(rig);
	lane->box = hello.conn;
	assert_int_equal(hello.session, rig_session(5));
	assert_int_equal(hello.core, 2);
	assert_true(hello_is_proved(&hello, rig_key()));
	assert_ptr_equal(hello.conn->transport, rig->box);
	assert_null(hello.conn->queue);
	assert_true(hello.conn->peer[0] && memchr(hello.conn->peer, 0, sizeof(hello.conn->peer)));
	assert_int_equal(rig->ops->established(lane->transport, lane->worker, &e), -EAGAIN);
	assert_int_equal(rig->ops->admit(rig->box, lane->box, &lane->box_spec, &e), 0);
	assert_int_equal(rig_established(rig, lane), 0);
	assert_true(lane->worker->peer[0] && memchr(lane->worker->peer, 0, sizeof(lane->worker->peer)));
	assert_int_equal(rig->box->strangers_refused, 0);
	rig_destroy(rig);
}

static void nonces_differ(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *one = first_lane(rig, 1), *two = first_lane(rig, 2);
	struct hello first, second;

	rig_connect(rig, one, rig_key());
	first = rig_hello(rig);
	one->box = first.conn;
	rig_connect(rig, two, rig_key());
	second = rig_hello(rig);
	two->box = second.conn;
	assert_memory_not_equal(first.nonce, second.nonce, PROOF_NONCE);
	assert_true(hello_is_proved(&first, rig_key()) && hello_is_proved(&second, rig_key()));
	rig_destroy(rig);
}

static void a_wrong_key_is_seen_and_refused(void **state)
{
	const uint8_t other[PROOF_KEY] = {6, 6, 6};
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = first_lane(rig, 1);
	struct hello hello;

	rig_connect(rig, lane, other);
	hello = rig_hello(rig);
	assert_false(hello_is_proved(&hello, rig_key()));
	rig->ops->reject(rig->box, hello.conn, EACCES);
	assert_int_equal(rig->box->strangers_refused, 1);
	assert_int_equal(rig_established(rig, lane), -EACCES);
	rig_destroy(rig);
}

static void the_reason_of_a_refusal_arrives(void **state)
{
	static const int reasons[] = {ENOENT, ENOSPC, ESHUTDOWN, EALREADY};
	struct rig *rig = rig_create(*state, &usual);
	unsigned i;

	for (i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
		struct lane *lane = first_lane(rig, i);
		struct err e = {0};

		rig_connect(rig, lane, rig_key());
		rig->ops->reject(rig->box, rig_hello(rig).conn, reasons[i]);
		assert_int_equal(rig_established(rig, lane), -reasons[i]);
		assert_int_equal(rig->ops->established(lane->transport, lane->worker, &e), -reasons[i]);
		assert_true(e.text[0] != 0);
		rig->ops->abandon(lane->transport, lane->worker);
		lane->worker = NULL;
	}
	assert_int_equal(rig->box->strangers_refused, i);
	rig_destroy(rig);
}

static void nobody_listening_is_an_error(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = first_lane(rig, 1);
	struct transport *gone = rig_transport_open(rig, RIG_ENDS + 1);
	char address[RIG_ADDRESS];
	struct err e = {0};
	int rc;

	assert_int_equal(rig->ops->listen(gone, "127.0.0.1", address, sizeof(address), &e), 0);
	assert_string_not_equal(address, rig->address);
	rig->ops->close(gone);
	rc = rig->ops->connect(lane->transport, address, 1, 0, rig_key(), &lane->worker_spec, &lane->worker, &e);
	if (rc < 0)
		lane->worker = NULL;
	else
		rc = rig_established(rig, lane);
	assert_int_equal(rc, -ECONNREFUSED);
	assert_true(e.text[0] != 0 || lane->worker);
	rig_destroy(rig);
}

static void a_worker_that_gives_up_is_forgotten(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = first_lane(rig, 1);

	rig_connect(rig, lane, rig_key());
	accept_nobody(rig, 50);
	assert_int_equal(rig->box->strangers_refused, 0);
	rig->ops->abandon(lane->transport, lane->worker);
	lane->worker = NULL;
	rig_deadline_set(rig);
	while (rig->box->strangers_gone == 0 && !rig_deadline_passed(rig))
		accept_nobody(rig, 1);
	/* It did nothing wrong. */
	assert_int_equal(rig->box->strangers_gone, 1);
	assert_int_equal(rig->box->strangers_refused, 0);
	rig_destroy(rig);
}

static void a_worker_may_be_gone_when_it_is_admitted(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = first_lane(rig, 1);
	struct err e = {0};
	struct hello hello;

	rig_connect(rig, lane, rig_key());
	hello = rig_hello(rig);
	rig->ops->abandon(lane->transport, lane->worker);
	lane->worker = NULL;
	rig_turns(rig, 10);
	if (rig->ops->admit(rig->box, hello.conn, &lane->box_spec, &e) == 0) {
		lane->box = hello.conn;
		rig_adopt_box(lane);
		RIG_UNTIL(rig, end_count(lane->box_end, EVENT_CLOSED, lane->box) == 1);
	}
	rig_destroy(rig);
}

static void a_worker_may_be_gone_when_it_is_refused(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = first_lane(rig, 1);
	struct hello hello;

	rig_connect(rig, lane, rig_key());
	hello = rig_hello(rig);
	rig->ops->abandon(lane->transport, lane->worker);
	lane->worker = NULL;
	rig_turns(rig, 10);
	rig->ops->reject(rig->box, hello.conn, EACCES);
	assert_int_equal(rig->box->strangers_refused, 1);
	rig_destroy(rig);
}

/* A worker of several boxes: what one of them says by its session is nothing for a connection to another, whatever
 * numbers it names. */
static void a_dial_hears_its_own_session_alone(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = first_lane(rig, 1);
	struct err e = {0};

	if (!rig->ops->signal_take) { /* nothing of its handshake goes by a session */
		rig_destroy(rig);
		skip_because("this transport's handshake does not go by a session");
	}
	lane->worker_spec.carrier = 5;
	rig->carrier = 6;
	rig_connect(rig, lane, rig_key());
	for (unsigned i = 0; i < 200; i++) {
		accept_nobody(rig, 1);
		assert_int_equal(rig->ops->established(lane->transport, lane->worker, &e), -EAGAIN);
	}
	rig->ops->abandon(lane->transport, lane->worker);
	lane->worker = NULL;
	rig->carrier = 5;
	rig_admit(rig, lane);
	assert_int_equal(rig_established(rig, lane), 0);
	rig_destroy(rig);
}

static void a_silent_stranger_is_dropped(void **state)
{
	const struct rig_options options = {.handshake_ms = 1000};
	struct rig *rig = rig_create(*state, &options);
	struct lane *lane = first_lane(rig, 1);

	rig_connect(rig, lane, rig_key());
	accept_nobody(rig, 50);
	assert_int_equal(rig->box->strangers_refused, 0);
	rig->skew_ns += 1100000000;
	accept_nobody(rig, 2);
	assert_int_equal(rig->box->strangers_refused, 1);
	assert_true(rig_established(rig, lane) < 0);
	rig_destroy(rig);
}

static void an_admitted_connection_may_be_abandoned(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = first_lane(rig, 1);

	rig_admit(rig, lane);
	assert_int_equal(rig_established(rig, lane), 0);
	rig->ops->abandon(rig->box, lane->box);
	lane->box = NULL;
	rig_adopt_worker(lane);
	RIG_UNTIL(rig, end_count(lane->worker_end, EVENT_CLOSED, lane->worker) == 1);
	rig_destroy(rig);
}

static void strangers_end_with_their_transport(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = first_lane(rig, 1);
	struct transport *box = rig_transport_open(rig, RIG_ENDS + 2);
	char address[RIG_ADDRESS];
	struct err e = {0};
	struct hello hello;
	unsigned i;

	assert_int_equal(rig->ops->listen(box, "127.0.0.1", address, sizeof(address), &e), 0);
	assert_int_equal(
		rig->ops->connect(lane->transport, address, 1, 0, rig_key(), &lane->worker_spec, &lane->worker, &e), 0);
	for (i = 0; i < 50; i++) {
		assert_int_equal(rig->ops->accept(box, rig_now(rig), &hello), -EAGAIN);
		rig_rest(rig);
	}
	rig->ops->close(box);
	assert_true(rig_established(rig, lane) < 0);
	rig_destroy(rig);
}

static void the_fd_tells_of_callers(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = first_lane(rig, 1);
	struct pollfd wait = {.fd = rig->ops->fd(rig->box), .events = POLLIN};
	struct pollfd answer = {.fd = rig->ops->fd(lane->transport), .events = POLLIN};

	if (wait.fd < 0) {
		assert_int_equal(wait.fd, -1);
		rig_destroy(rig);
		skip_because("this transport has no descriptor for callers");
	}
	accept_nobody(rig, 5);
	assert_int_equal(poll(&wait, 1, 0), 0);
	rig_connect(rig, lane, rig_key());
	assert_int_equal(poll(&wait, 1, 5000), 1);
	lane->box = rig_hello(rig).conn;
	if (answer.fd >= 0) {
		struct err e = {0};

		assert_int_equal(rig->ops->established(lane->transport, lane->worker, &e), -EAGAIN);
		assert_int_equal(poll(&answer, 1, 0), 0);
		assert_int_equal(rig->ops->admit(rig->box, lane->box, &lane->box_spec, &e), 0);
		assert_int_equal(poll(&answer, 1, 5000), 1);
	}
	rig_destroy(rig);
}

static void many_shake_hands_at_once(void **state)
{
	enum { MANY = 24 };
	const struct rig_options options = {.payload_max = 4096};
	struct rig *rig = rig_create(*state, &options);
	struct lane *lanes[MANY];
	unsigned i, admitted = 0;
	struct err e = {0};

	for (i = 0; i < MANY; i++) {
		lanes[i] = first_lane(rig, i);
		rig_connect(rig, lanes[i], rig_key());
	}
	for (i = 0; i < MANY; i++) {
		struct hello hello = rig_hello(rig);
		uint64_t rank = hello.session - rig_session(0);

		assert_true(rank < MANY && !lanes[rank]->box);
		assert_true(hello_is_proved(&hello, rig_key()));
		lanes[rank]->box = hello.conn;
		assert_int_equal(rig->ops->admit(rig->box, hello.conn, &lanes[rank]->box_spec, &e), 0);
	}
	for (i = 0; i < MANY; i++)
		admitted += rig_established(rig, lanes[i]) == 0;
	assert_int_equal(admitted, MANY);
	rig_destroy(rig);
}

const struct CMUnitTest transport_handshake_cases[] = {
	cmocka_unit_test(the_box_learns_who_asks_and_lets_it_in),
	cmocka_unit_test(nonces_differ),
	cmocka_unit_test(a_wrong_key_is_seen_and_refused),
	cmocka_unit_test(the_reason_of_a_refusal_arrives),
	cmocka_unit_test(nobody_listening_is_an_error),
	cmocka_unit_test(a_worker_that_gives_up_is_forgotten),
	cmocka_unit_test(a_worker_may_be_gone_when_it_is_admitted),
	cmocka_unit_test(a_worker_may_be_gone_when_it_is_refused),
	cmocka_unit_test(a_dial_hears_its_own_session_alone),
	cmocka_unit_test(a_silent_stranger_is_dropped),
	cmocka_unit_test(an_admitted_connection_may_be_abandoned),
	cmocka_unit_test(strangers_end_with_their_transport),
	cmocka_unit_test(the_fd_tells_of_callers),
	cmocka_unit_test(many_shake_hands_at_once),
};
const size_t transport_handshake_count = sizeof(transport_handshake_cases) / sizeof(transport_handshake_cases[0]);
