/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions over TLS at the box: who may stay plain, with which words others are refused, and that a proof is worth
 * nothing on another connection than the one it was made for.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/control_rig.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/tls_rig.h"

static struct tls_files files;
static struct stream_tls *worker;
static char setting_cert[128], setting_key[128];

static void open_box(struct rig *rig, const char *tls)
{
	const char *settings[] = {tls, setting_cert, setting_key, "lost_ms=3000", NULL};

	rig_open(rig, 1, settings);
}

static void test_both(void **state)
{
	struct rig rig;
	struct actor plain, sealed;

	open_box(&rig, "tls=allow");
	actor_dial(&rig, &plain, 1);
	actor_dial(&rig, &sealed, 2);
	actor_wrap(&sealed, worker);
	assert_true(actor_join(&plain, "demo", 0, 2, NULL));
	assert_true(actor_join(&sealed, "demo", 1, 2, NULL));
	assert_true(sealed.stream->sealed);
	assert_int_equal(rig.box->control.strangers_refused, 0);
	actor_heartbeat(&sealed);
	actor_hear(&sealed);
	assert_int_equal(sealed.error_code, 0);
	actor_hang_up(&plain);
	actor_hang_up(&sealed);
	rig_close(&rig);
}

static void test_required(void **state)
{
	struct rig rig;
	struct actor a;

	open_box(&rig, "tls=require");
	actor_dial(&rig, &a, 1);
	assert_false(actor_join(&a, "demo", 0, 1, NULL));
	actor_hear(&a);
	assert_int_equal(a.error_code, PHUB__ERROR_CODE__ERROR_DENIED);
	assert_non_null(strstr(a.error, "PHUB_TLS_CA"));
	assert_int_equal(rig.box->control.strangers_refused, 1);
	actor_hang_up(&a);
	actor_dial(&rig, &a, 1);
	actor_hello(&a, NULL, 0, 0); /* nor an administrator */
	actor_hear(&a);
	assert_int_equal(a.error_code, PHUB__ERROR_CODE__ERROR_DENIED);
	actor_hang_up(&a);
	actor_dial(&rig, &a, 1);
	actor_wrap(&a, worker);
	assert_true(actor_join(&a, "demo", 0, 1, NULL));
	actor_hang_up(&a);
	actor_dial(&rig, &a, 1);
	actor_wrap(&a, worker);
	assert_true(actor_join_admin(&a, NULL));
	actor_hang_up(&a);
	assert_int_equal(rig.box->control.session_count, 0);
	rig_close(&rig);
}

/* A proof for one connection, carried to another by somebody in the middle. */
static void test_relay(void **state)
{
	uint8_t other[STREAM_CHANNEL_BYTES];
	struct rig rig;
	struct actor a, b;

	open_box(&rig, "tls=allow");
	actor_dial(&rig, &a, 1);
	actor_wrap(&a, worker);
	assert_true(actor_join(&a, "demo", 0, 2, NULL));
	memcpy(other, a.stream->channel, sizeof(other));
	actor_dial(&rig, &b, 2);
	actor_wrap(&b, worker);
	b.channel = other;
	assert_false(actor_join(&b, "demo", 1, 2, NULL));
	actor_hear(&b);
	assert_int_equal(b.error_code, PHUB__ERROR_CODE__ERROR_DENIED);
	assert_non_null(strstr(b.error, "wrong secret"));
	actor_hang_up(&b);
	/* From TLS to plain. */
	actor_dial(&rig, &b, 2);
	actor_hello(&b, "demo", 1, 2);
	assert_int_equal(actor_hear(&b), PHUB__CONTROL__MESSAGE_CHALLENGE);
	b.stream->sealed = true;
	b.channel = other;
	actor_prove(&b, "demo", 1, 2, NULL);
	assert_false(actor_welcomed(&b));
	assert_int_equal(b.error_code, PHUB__ERROR_CODE__ERROR_DENIED);
	actor_hang_up(&b);
	actor_hang_up(&a);
	rig_close(&rig);
}

/* Half a ClientHello and silence, and rubbish behind its first bytes. */
static void test_strangers(void **state)
{
	struct rig rig;
	struct actor a;

	open_box(&rig, "tls=require");
	actor_dial(&rig, &a, 1);
	actor_say_bytes(&a, "\x16\x03\x01\x02\x00\x01", 6);
	rig_wait(&rig, 6000);
	assert_int_equal(rig.box->control.strangers_refused, 1);
	rig_wait(&rig, 6000);
	assert_int_equal(rig.box->control.session_count, 0);
	actor_hang_up(&a);
	actor_dial(&rig, &a, 1);
	actor_say_bytes(&a, "\x16\x03\x01\x00\x05rubbish", 12);
	assert_int_equal(rig.box->control.session_count, 0);
	assert_int_equal(rig.box->control.strangers_refused, 2);
	a.stream->ops->close(a.stream);
	a.stream = NULL;
	actor_hang_up(&a);
	rig_close(&rig);
}

static int setup(void **state)
{
	struct err e;

	tls_files_make(&files);
	snprintf(setting_cert, sizeof(setting_cert), "tls_cert=%s", files.cert);
	snprintf(setting_key, sizeof(setting_key), "tls_key=%s", files.key);
	return stream_tls_worker(files.ca, files.pin, &worker, &e);
}

static int teardown(void **state)
{
	stream_tls_close(worker);
	tls_files_remove(&files);
	return 0;
}

TEST_PROGRAM(test_control_tls)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_both),
		cmocka_unit_test(test_required),
		cmocka_unit_test(test_relay),
		cmocka_unit_test(test_strangers),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
