/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proofs against values from another implementation (Python's hmac and hashlib, HKDF after RFC 5869), and that no
 * proof passes for another.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "transport/proof.h"

static const char secret[] = "open sesame";

/* Nonces 00..0f and 10..1f, job "resnet", rank 3 of 8. */
static const uint8_t golden_client[32] = {0x77, 0xe8, 0xf0, 0x37, 0xeb, 0xc3, 0x60, 0xc9, 0x11, 0x16, 0xcf, 0x34, 0x60,
	0xb9, 0xf8, 0x56, 0x9a, 0x58, 0x7b, 0x13, 0x9a, 0x8b, 0xa6, 0x8d, 0x62, 0xc5, 0x46, 0x84, 0x8e, 0x12, 0x5c,
	0x6f};
static const uint8_t golden_box[32] = {0xe3, 0xdf, 0x92, 0xa9, 0x63, 0x7c, 0x25, 0xbf, 0x04, 0x46, 0xad, 0xfd, 0x19,
	0xe3, 0xa7, 0x0a, 0x88, 0xf0, 0xb1, 0xaa, 0x56, 0xef, 0xd7, 0x72, 0x06, 0x03, 0x22, 0x0b, 0x16, 0xc9, 0x77,
	0x50};
static const uint8_t golden_key[32] = {0xa4, 0x91, 0xb1, 0x8b, 0x6c, 0xaa, 0x3b, 0xc9, 0x10, 0xa6, 0xfa, 0x7d, 0xe0,
	0x13, 0x1e, 0x40, 0x52, 0x74, 0x42, 0x15, 0x16, 0xe2, 0x3a, 0x54, 0x0e, 0x3e, 0x64, 0xd6, 0x0b, 0xf5, 0x5d,
	0xba};
static const uint8_t golden_key_empty[32] = {0xd7, 0xa0, 0x08, 0xa9, 0x3b, 0xec, 0xc4, 0x09, 0x5e, 0xa3, 0x2b, 0xe1,
	0x10, 0xa9, 0xcb, 0x6b, 0xd9, 0x93, 0xdc, 0xa6, 0xa8, 0xe9, 0x9d, 0x93, 0xa8, 0xa4, 0x37, 0xf8, 0x34, 0x36,
	0x82, 0xb2};
/* By golden_key, the box's nonce, session 0x0102030405060708, core 5. */
static const uint8_t golden_data[32] = {0xb7, 0x47, 0x15, 0xa3, 0x49, 0x9f, 0xc9, 0xc2, 0x2b, 0xb2, 0x81, 0x63, 0x69,
	0x53, 0xb2, 0x36, 0x1f, 0x8d, 0x32, 0xb0, 0x4a, 0xc5, 0x9b, 0x33, 0xed, 0xbc, 0x1e, 0x75, 0xf4, 0xaa, 0xf4,
	0x68};
/* By golden_key, the box's nonce, core 5: from the worker and from the box. */
static const uint8_t golden_datagram[2][32] = {
	{0x89, 0xe7, 0x8d, 0x08, 0xc0, 0xfc, 0x9e, 0x9c, 0xd0, 0x8a, 0xf5, 0xb3, 0xca, 0x53, 0x57, 0x87, 0xc2, 0x71,
		0x4b, 0xe4, 0xa8, 0xf0, 0xe2, 0xde, 0x67, 0x5e, 0xe3, 0xac, 0xad, 0xf7, 0xca, 0xf1},
	{0x0e, 0xd7, 0x52, 0x64, 0xd1, 0x8f, 0x3e, 0xf6, 0xee, 0x29, 0xdd, 0x25, 0x80, 0x18, 0x56, 0xbe, 0x0c, 0xd4,
		0x6f, 0x5f, 0x9b, 0xd0, 0x71, 0xe7, 0xf8, 0xf1, 0x23, 0x07, 0xc5, 0xba, 0x3b, 0x0d},
};

static struct proof_session sample(void)
{
	struct proof_session s = {.job = "resnet", .rank = 3, .world = 8};

	for (int i = 0; i < PROOF_NONCE; i++) {
		s.client_nonce[i] = (uint8_t)i;
		s.box_nonce[i] = (uint8_t)(PROOF_NONCE + i);
	}
	return s;
}

static void test_golden(void **state)
{
	struct proof_session s = sample();
	uint8_t mac[PROOF_MAC];
	uint8_t key[PROOF_KEY];

	(void)state;
	assert_int_equal(proof_control(secret, strlen(secret), &s, false, mac), 0);
	assert_memory_equal(mac, golden_client, sizeof(mac));
	assert_int_equal(proof_control(secret, strlen(secret), &s, true, mac), 0);
	assert_memory_equal(mac, golden_box, sizeof(mac));
	assert_int_equal(proof_session_key(secret, strlen(secret), &s, key), 0);
	assert_memory_equal(key, golden_key, sizeof(key));
	assert_int_equal(proof_session_key("", 0, &s, key), 0);
	assert_memory_equal(key, golden_key_empty, sizeof(key));
	assert_int_equal(proof_session_key(NULL, 0, &s, key), 0);
	assert_memory_equal(key, golden_key_empty, sizeof(key));
	assert_int_equal(proof_data(golden_key, s.box_nonce, 0x0102030405060708, 5, mac), 0);
	assert_memory_equal(mac, golden_data, sizeof(mac));
	for (int from_box = 0; from_box < 2; from_box++) {
		assert_int_equal(proof_datagram_key(golden_key, s.box_nonce, 5, from_box, key), 0);
		assert_memory_equal(key, golden_datagram[from_box], sizeof(key));
	}
}

/* Every field counts, in both kinds of proof. */
static void test_control_binds_every_field(void **state)
{
	struct proof_session changed[6];
	uint8_t mac[PROOF_MAC];

	(void)state;
	for (int i = 0; i < 6; i++)
		changed[i] = sample();
	changed[0].client_nonce[15] ^= 1;
	changed[1].box_nonce[0] ^= 0x80;
	changed[2].job = "resnet ";
	changed[3].job = "";
	changed[4].rank = 2;
	changed[5].world = 7;
	for (int i = 0; i < 6; i++) {
		assert_int_equal(proof_control(secret, strlen(secret), &changed[i], false, mac), 0);
		assert_false(proof_equal(mac, golden_client));
		assert_int_equal(proof_control(secret, strlen(secret), &changed[i], true, mac), 0);
		assert_false(proof_equal(mac, golden_box));
		assert_int_equal(proof_session_key(secret, strlen(secret), &changed[i], mac), 0);
		assert_false(proof_equal(mac, golden_key));
	}
	changed[0] = sample();
	assert_int_equal(proof_control("open sesamf", strlen(secret), &changed[0], false, mac), 0);
	assert_false(proof_equal(mac, golden_client));
	assert_int_equal(proof_control("", 0, &changed[0], false, mac), 0);
	assert_false(proof_equal(mac, golden_client));
}

static void test_data_binds_every_field(void **state)
{
	struct proof_session s = sample();
	uint8_t key[PROOF_KEY];
	uint8_t mac[PROOF_MAC];

	(void)state;
	memcpy(key, golden_key, sizeof(key));
	assert_int_equal(proof_data(key, s.box_nonce, 0x0102030405060709, 5, mac), 0);
	assert_false(proof_equal(mac, golden_data));
	assert_int_equal(proof_data(key, s.box_nonce, 0x0102030405060708, 4, mac), 0);
	assert_false(proof_equal(mac, golden_data));
	assert_int_equal(proof_data(key, s.client_nonce, 0x0102030405060708, 5, mac), 0);
	assert_false(proof_equal(mac, golden_data));
	key[31] ^= 1;
	assert_int_equal(proof_data(key, s.box_nonce, 0x0102030405060708, 5, mac), 0);
	assert_false(proof_equal(mac, golden_data));
}

static void test_datagram_key_binds_every_field(void **state)
{
	struct proof_session s = sample();
	uint8_t session[PROOF_KEY];
	uint8_t key[PROOF_KEY];

	(void)state;
	memcpy(session, golden_key, sizeof(session));
	assert_int_equal(proof_datagram_key(session, s.client_nonce, 5, false, key), 0);
	assert_memory_not_equal(key, golden_datagram[0], sizeof(key));
	assert_int_equal(proof_datagram_key(session, s.box_nonce, 6, false, key), 0);
	assert_memory_not_equal(key, golden_datagram[0], sizeof(key));
	session[0] ^= 1;
	assert_int_equal(proof_datagram_key(session, s.box_nonce, 5, false, key), 0);
	assert_memory_not_equal(key, golden_datagram[0], sizeof(key));
}

static void test_nonces_differ(void **state)
{
	uint8_t nonces[64][PROOF_NONCE];

	(void)state;
	for (int i = 0; i < 64; i++) {
		assert_int_equal(proof_nonce(nonces[i]), 0);
		for (int j = 0; j < i; j++)
			assert_memory_not_equal(nonces[i], nonces[j], PROOF_NONCE);
	}
}

static void test_equal(void **state)
{
	uint8_t a[PROOF_MAC];

	(void)state;
	memcpy(a, golden_box, sizeof(a));
	assert_true(proof_equal(a, golden_box));
	for (int bit = 0; bit < PROOF_MAC * 8; bit++) {
		a[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_false(proof_equal(a, golden_box));
		a[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
}

static void test_secret_too_long(void **state)
{
	struct proof_session s = sample();
	uint8_t mac[PROOF_MAC];
	size_t bytes = (1 << 20) + 1;
	char *big = calloc(1, bytes);

	(void)state;
	assert_non_null(big);
	assert_int_equal(proof_control(big, bytes, &s, false, mac), -EIO);
	assert_int_equal(proof_session_key(big, bytes, &s, mac), -EIO);
	assert_int_equal(proof_control(big, bytes - 1, &s, false, mac), 0);
	assert_int_equal(proof_session_key(big, bytes - 1, &s, mac), 0);
	free(big);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden),
		cmocka_unit_test(test_control_binds_every_field),
		cmocka_unit_test(test_data_binds_every_field),
		cmocka_unit_test(test_datagram_key_binds_every_field),
		cmocka_unit_test(test_nonces_differ),
		cmocka_unit_test(test_equal),
		cmocka_unit_test(test_secret_too_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
