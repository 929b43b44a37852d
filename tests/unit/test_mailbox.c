/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mail: bounded, in order, and a bell for a reader that sleeps, which must neither be missed nor ring for ever.
 */
#include "phub/mailbox.h"
#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

static bool rings(int fd)
{
	struct pollfd at = {.fd = fd, .events = POLLIN};

	return poll(&at, 1, 0) == 1;
}

static void mail_comes_in_order_and_is_bounded(void **state)
{
	struct mailbox *m;
	struct mail mail = {.kind = MAIL_STOP};

	assert_int_equal(mailbox_create(4, &m), 0);
	assert_int_equal(mailbox_receive(m, &mail), -EAGAIN);
	for (uint32_t i = 0; i < 4; i++) {
		mail.rank = i;
		assert_int_equal(mailbox_send(m, &mail), 0);
	}
	assert_int_equal(mailbox_send(m, &mail), -EAGAIN);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(mailbox_receive(m, &mail), 0);
		assert_int_equal(mail.rank, i);
	}
	assert_int_equal(mailbox_receive(m, &mail), -EAGAIN);
	mailbox_destroy(m);
}

static void a_sleeper_is_rung_once(void **state)
{
	struct mail mail = {.kind = MAIL_STOP};
	struct mailbox *m;
	int fd;

	assert_int_equal(mailbox_create(4, &m), 0);
	fd = mailbox_arm(m);
	assert_true(fd >= 0);
	assert_false(rings(fd));
	assert_int_equal(mailbox_send(m, &mail), 0);
	assert_true(rings(fd));
	mailbox_disarm(m);
	assert_false(rings(fd));
	assert_int_equal(mailbox_arm(m), -EAGAIN); /* there is mail */
	mailbox_disarm(m);
	assert_int_equal(mailbox_receive(m, &mail), 0);
	assert_int_equal(mailbox_send(m, &mail), 0);
	assert_false(rings(fd)); /* who polls is not rung */
	mailbox_destroy(m);
}

/* A writer that found the reader asleep, and comes to ring when it is long awake again. */
static void a_late_ring_wakes_one_sleep_at_most(void **state)
{
	const uint64_t one = 1;
	struct mailbox *m;
	int fd;

	assert_int_equal(mailbox_create(4, &m), 0);
	fd = mailbox_arm(m);
	assert_true(fd >= 0);
	mailbox_disarm(m);
	assert_int_equal(write(fd, &one, sizeof(one)), sizeof(one));
	assert_int_equal(mailbox_arm(m), fd);
	assert_true(rings(fd));
	mailbox_disarm(m);
	assert_int_equal(mailbox_arm(m), fd);
	assert_false(rings(fd));
	mailbox_disarm(m);
	mailbox_destroy(m);
}

TEST_PROGRAM(test_mailbox)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mail_comes_in_order_and_is_bounded),
		cmocka_unit_test(a_sleeper_is_rung_once),
		cmocka_unit_test(a_late_ring_wakes_one_sleep_at_most),
	};

	return cmocka_run_group_tests_name("mailbox", tests, NULL, NULL);
}
