/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proofs against values from another implementation (Python's hmac and hashlib, HKDF after RFC 5869), and that no
 * proof passes for another.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cmocka_shim.h"
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
/* By golden_key, the box's nonce, core 5, dial 7, names 0x01020304 and 0x05060708: from the worker and from the box. */
static const uint8_t golden_datagram[2][32] = {
	{0x33, 0x30, 0xa7, 0xb1, 0x6b, 0x87, 0xb2, 0xe7, 0x47, 0xb3, 0xf3, 0xa1, 0xf2, 0x8e, 0x10, 0xf7, 0xb7, 0xc4,
		0x61, 0x3e, 0xdd, 0xfc, 0x53, 0x4e, 0xf7, 0xaf, 0x96, 0xf9, 0x1b, 0x4b, 0x1b, 0x12},
	{0xe3, 0x31, 0x20, 0xd8, 0x76, 0xad, 0x29, 0xcb, 0x33, 0x83, 0x45, 0x50, 0x68, 0xf4, 0x64, 0x85, 0xcc, 0xf9,
		0x97, 0x2b, 0x4d, 0xea, 0x34, 0x47, 0xa2, 0x32, 0x67, 0xcb, 0x28, 0x01, 0x8f, 0x6d},
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

static struct proof_datagram sample_datagram(void)
{
	struct proof_datagram d = {.core = 5, .dial = 7, .box = 0x01020304, .worker = 0x05060708};

	memcpy(d.nonce, sample().box_nonce, sizeof(d.nonce));
	return d;
}

static void test_golden(void **state)
{
	const struct proof_datagram d = sample_datagram();
	struct proof_session s = sample();
	uint8_t mac[PROOF_MAC];
	uint8_t key[PROOF_KEY];

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
		assert_int_equal(proof_datagram_key(golden_key, &d, from_box, key), 0);
		assert_memory_equal(key, golden_datagram[from_box], sizeof(key));
	}
}

/* Every field counts, in both kinds of proof. */
static void test_control_binds_every_field(void **state)
{
	const uint8_t channel[PROOF_CHANNEL] = {0};
	struct proof_session changed[8];
	uint8_t mac[PROOF_MAC];

	for (int i = 0; i < 8; i++)
		changed[i] = sample();
	changed[0].client_nonce[15] ^= 1;
	changed[1].box_nonce[0] ^= 0x80;
	changed[2].job = "resnet ";
	changed[3].job = "";
	changed[4].rank = 2;
	changed[5].world = 7;
	changed[6].channel = channel;
	changed[7].encrypt = true;
	for (int i = 0; i < 8; i++) {
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

/* Over TLS every bit of the connection's binding counts. */
static void test_control_binds_channel(void **state)
{
	uint8_t channel[PROOF_CHANNEL] = {9}, mac[2][PROOF_MAC], key[2][PROOF_KEY];
	struct proof_session s = sample();

	s.channel = channel;
	for (int from_box = 0; from_box < 2; from_box++) {
		for (int i = 0; i < PROOF_CHANNEL; i++) {
			assert_int_equal(proof_control(secret, strlen(secret), &s, from_box, mac[0]), 0);
			assert_int_equal(proof_session_key(secret, strlen(secret), &s, key[0]), 0);
			channel[i] ^= 1;
			assert_int_equal(proof_control(secret, strlen(secret), &s, from_box, mac[1]), 0);
			assert_int_equal(proof_session_key(secret, strlen(secret), &s, key[1]), 0);
			assert_false(proof_equal(mac[0], mac[1]));
			assert_false(proof_equal(key[0], key[1]));
		}
	}
}

static void test_data_binds_every_field(void **state)
{
	struct proof_session s = sample();
	uint8_t key[PROOF_KEY];
	uint8_t mac[PROOF_MAC];

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
	struct proof_datagram changed[5];
	uint8_t session[PROOF_KEY];
	uint8_t key[PROOF_KEY];

	memcpy(session, golden_key, sizeof(session));
	for (int i = 0; i < 5; i++)
		changed[i] = sample_datagram();
	changed[0].nonce[15] ^= 1;
	changed[1].core = 6;
	changed[2].dial = 8;
	changed[3].box ^= 1u << 31;
	changed[4].worker ^= 1;
	for (int i = 0; i < 5; i++) {
		assert_int_equal(proof_datagram_key(session, &changed[i], false, key), 0);
		assert_memory_not_equal(key, golden_datagram[0], sizeof(key));
	}
	changed[0] = sample_datagram();
	session[0] ^= 1;
	assert_int_equal(proof_datagram_key(session, &changed[0], false, key), 0);
	assert_memory_not_equal(key, golden_datagram[0], sizeof(key));
}

/* A place's way is its key's, connection's and its own alone. */
static void test_ways(void **state)
{
	uint8_t key[PROOF_KEY] = {1}, place[PROOF_PLACE] = {2};
	uint64_t way = 0, other = 0;

	assert_int_equal(proof_way(key, 3, place, &way), 0);
	assert_true(way != 0);
	assert_int_equal(proof_way(key, 3, place, &other), 0);
	assert_int_equal(other, way);
	assert_int_equal(proof_way(key, 4, place, &other), 0);
	assert_true(other != way);
	place[31] ^= 1;
	assert_int_equal(proof_way(key, 3, place, &other), 0);
	assert_true(other != way);
	place[31] ^= 1;
	key[31] ^= 1;
	assert_int_equal(proof_way(key, 3, place, &other), 0);
	assert_true(other != way);
}

static void test_nonces_differ(void **state)
{
	uint8_t nonces[64][PROOF_NONCE];

	for (int i = 0; i < 64; i++) {
		assert_int_equal(proof_nonce(nonces[i]), 0);
		for (int j = 0; j < i; j++)
			assert_memory_not_equal(nonces[i], nonces[j], PROOF_NONCE);
	}
}

static void test_equal(void **state)
{
	uint8_t a[PROOF_MAC];

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

	assert_non_null(big);
	assert_int_equal(proof_control(big, bytes, &s, false, mac), -EIO);
	assert_int_equal(proof_session_key(big, bytes, &s, mac), -EIO);
	assert_int_equal(proof_control(big, bytes - 1, &s, false, mac), 0);
	assert_int_equal(proof_session_key(big, bytes - 1, &s, mac), 0);
	free(big);
}

TEST_PROGRAM(test_proof)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden),
		cmocka_unit_test(test_control_binds_every_field),
		cmocka_unit_test(test_control_binds_channel),
		cmocka_unit_test(test_data_binds_every_field),
		cmocka_unit_test(test_datagram_key_binds_every_field),
		cmocka_unit_test(test_ways),
		cmocka_unit_test(test_nonces_differ),
		cmocka_unit_test(test_equal),
		cmocka_unit_test(test_secret_too_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
