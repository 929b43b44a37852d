/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seals of datagrams: GMAC against libcrypto asked in another way, CRC32C against the known answers of RFC 3720, and
 * that no datagram passes which is not the one that was sealed.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <openssl/core_names.h>
#include <openssl/evp.h>

#include "phub/base/crc.h"
#include "tests/unit/cmocka_shim.h"
#include "transport/seal.h"

#define NUMBER (WIRE_NUMBER_OTHER | 0x0102030405060708)

static const uint8_t key[PROOF_KEY] = "a key of thirty-two bytes, this.";
static const struct proof_datagram plain = {.nonce = "nonce of sixteen", .core = 3, .dial = 1, .box = 2, .worker = 4};

static uint8_t datagram[WIRE_DATAGRAM_MAX];

static struct seal *create(enum seal_kind kind, const uint8_t *by, const struct proof_datagram *of, bool from_box)
{
	struct seal *s = NULL;
	struct err e;

	assert_int_equal(seal_create(kind, by, of, from_box, &s, &e), 0);
	assert_non_null(s);
	return s;
}

static struct seal *create_plain(enum seal_kind kind)
{
	return create(kind, key, &plain, true);
}

/* Seals `datagram` as one of so many bytes, the first head_bytes of which are its head. */
static void seal_it(struct seal *s, uint64_t number, size_t bytes, size_t head_bytes)
{
	assert_int_equal(seal_make(s, number, datagram, head_bytes, bytes > head_bytes ? datagram + head_bytes : NULL,
				 bytes - head_bytes),
		0);
}

static void fill(size_t bytes)
{
	uint32_t x = (uint32_t)bytes * 2654435761u + 1;

	for (size_t i = 0; i < bytes; i++) {
		x = x * 1664525u + 1013904223u;
		datagram[i] = (uint8_t)(x >> 24);
	}
}

/* libcrypto's EVP_MAC, over a copy without the seal. */
static void reference_gmac(uint64_t number, size_t bytes, uint8_t tag[WIRE_SEAL_BYTES])
{
	static uint8_t whole[WIRE_DATAGRAM_MAX];
	uint8_t own[PROOF_KEY], iv[12] = {0};
	EVP_MAC *mac = EVP_MAC_fetch(NULL, "GMAC", NULL);
	EVP_MAC_CTX *context = EVP_MAC_CTX_new(mac);
	OSSL_PARAM params[] = {
		OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_CIPHER, (char *)"AES-128-GCM", 0),
		OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_IV, iv, sizeof(iv)),
		OSSL_PARAM_construct_end(),
	};
	size_t length = 0;

	for (int i = 0; i < 8; i++)
		iv[4 + i] = (uint8_t)(number >> 8 * i);
	memcpy(whole, datagram, WIRE_SEAL_AT);
	memcpy(whole + WIRE_SEAL_AT, datagram + WIRE_SEAL_AT + WIRE_SEAL_BYTES, bytes - WIRE_SEAL_AT - WIRE_SEAL_BYTES);
	assert_int_equal(proof_datagram_key(key, &plain, true, own), 0);
	assert_int_equal(EVP_MAC_init(context, own, 16, params), 1);
	assert_int_equal(EVP_MAC_update(context, whole, bytes - WIRE_SEAL_BYTES), 1);
	assert_int_equal(EVP_MAC_final(context, tag, &length, WIRE_SEAL_BYTES), 1);
	assert_int_equal(length, WIRE_SEAL_BYTES);
	EVP_MAC_CTX_free(context);
	EVP_MAC_free(mac);
}

static void test_gmac_is_gmac(void **state)
{
	struct seal *s = create_plain(SEAL_GMAC);
	uint8_t tag[WIRE_SEAL_BYTES];

	for (size_t bytes = WIRE_DATAGRAM_BYTES; bytes <= 300; bytes++) {
		size_t head_bytes = bytes < WIRE_DATA_BYTES ? bytes : WIRE_DATA_BYTES;

		fill(bytes);
		seal_it(s, bytes, bytes, head_bytes);
		reference_gmac(bytes, bytes, tag);
		assert_memory_equal(datagram + WIRE_SEAL_AT, tag, sizeof(tag));
		assert_true(seal_check(s, bytes, datagram, bytes));
	}
	fill(sizeof(datagram));
	seal_it(s, NUMBER, sizeof(datagram), WIRE_DATA_BYTES);
	reference_gmac(NUMBER, sizeof(datagram), tag);
	assert_memory_equal(datagram + WIRE_SEAL_AT, tag, sizeof(tag));
	seal_destroy(s);
}

/* How much of a datagram is its head says nothing about its seal. */
static void test_any_head(void **state)
{
	for (enum seal_kind kind = SEAL_GMAC; kind <= SEAL_NONE; kind++) {
		struct seal *s = create_plain(kind);

		for (size_t head_bytes = WIRE_DATAGRAM_BYTES; head_bytes <= WIRE_DATA_BYTES; head_bytes++) {
			for (size_t more = 0; more < 40; more++) {
				fill(head_bytes + more);
				seal_it(s, NUMBER, head_bytes + more, head_bytes);
				assert_true(seal_check(s, NUMBER, datagram, head_bytes + more));
			}
		}
		seal_destroy(s);
	}
}

static void check_flips(struct seal *s, size_t bytes)
{
	size_t head_bytes = bytes < WIRE_DATA_BYTES ? bytes : WIRE_DATA_BYTES;

	fill(bytes);
	seal_it(s, NUMBER, bytes, head_bytes);
	for (size_t bit = 0; bit < 8 * bytes; bit++) {
		datagram[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_false(seal_check(s, NUMBER, datagram, bytes));
		datagram[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	assert_true(seal_check(s, NUMBER, datagram, bytes));
	for (size_t shorter = 0; shorter < bytes; shorter++)
		assert_false(seal_check(s, NUMBER, datagram, shorter));
	datagram[bytes] = 0;
	assert_false(seal_check(s, NUMBER, datagram, bytes + 1));
}

static void test_every_bit_counts(void **state)
{
	static const size_t sizes[] = {
		WIRE_DATAGRAM_BYTES, WIRE_PROBE_BYTES, WIRE_ACK_BYTES, WIRE_DATA_BYTES, WIRE_DATA_BYTES + 1, 1344};

	for (enum seal_kind kind = SEAL_GMAC; kind <= SEAL_CRC; kind++) {
		struct seal *s = create_plain(kind);

		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
			check_flips(s, sizes[i]);
		seal_destroy(s);
	}
}

/*
 * What was sealed for one direction, core, dial, name, nonce, key or number is refused by any other: connections of a
 * session have seals of their own, also where a nonce came twice.
 */
static void test_gmac_is_bound(void **state)
{
	struct proof_datagram of[5] = {plain, plain, plain, plain, plain};
	struct seal *s = create_plain(SEAL_GMAC), *others[7];
	uint8_t other_key[PROOF_KEY];

	memcpy(other_key, key, sizeof(key));
	other_key[31] ^= 1;
	of[0].nonce[15] ^= 1;
	of[1].core = 2;
	of[2].dial = 2;
	of[3].box = 3;
	of[4].worker = 5;
	for (int i = 0; i < 5; i++)
		others[i] = create(SEAL_GMAC, key, &of[i], true);
	others[5] = create(SEAL_GMAC, other_key, &plain, true);
	others[6] = create(SEAL_GMAC, key, &plain, false);
	fill(1344);
	seal_it(s, NUMBER, 1344, WIRE_DATA_BYTES);
	for (int i = 0; i < 7; i++) {
		assert_false(seal_check(others[i], NUMBER, datagram, 1344));
		seal_destroy(others[i]);
	}
	for (int bit = 0; bit < 64; bit++)
		assert_false(seal_check(s, NUMBER ^ UINT64_C(1) << bit, datagram, 1344));
	assert_true(seal_check(s, NUMBER, datagram, 1344));
	seal_destroy(s);
}

/* One seal makes and checks in any order: nothing of a datagram stays behind, refused ones neither. */
static void test_one_after_another(void **state)
{
	struct seal *s = create_plain(SEAL_GMAC);
	uint8_t first[WIRE_SEAL_BYTES];

	fill(1344);
	seal_it(s, 1, 1344, WIRE_DATA_BYTES);
	memcpy(first, datagram + WIRE_SEAL_AT, sizeof(first));
	assert_false(seal_check(s, 2, datagram, 1344));
	assert_false(seal_check(s, 1, datagram, 500));
	fill(88);
	seal_it(s, NUMBER, 88, 88);
	fill(1344);
	seal_it(s, 1, 1344, WIRE_DATA_BYTES);
	assert_memory_equal(datagram + WIRE_SEAL_AT, first, sizeof(first));
	seal_destroy(s);
}

static void test_out_of_bounds(void **state)
{
	static uint8_t large[WIRE_DATAGRAM_MAX + 1];

	for (enum seal_kind kind = SEAL_GMAC; kind <= SEAL_NONE; kind++) {
		struct seal *s = create_plain(kind);

		for (size_t bytes = 0; bytes < WIRE_DATAGRAM_BYTES; bytes++)
			assert_false(seal_check(s, 1, large, bytes));
		assert_false(seal_check(s, 1, large, sizeof(large)));
		seal_destroy(s);
	}
}

/* They take no key, and a CRC leaves zeros behind it. */
static void test_without_key(void **state)
{
	static const uint8_t zeros[WIRE_SEAL_BYTES];
	struct seal *none = create(SEAL_NONE, NULL, NULL, false), *crc = create(SEAL_CRC, NULL, NULL, false);
	uint32_t expected;

	fill(1344);
	seal_it(crc, 1, 1344, WIRE_DATA_BYTES);
	expected = crc_32c_table(0, datagram, WIRE_SEAL_AT);
	expected = crc_32c_table(expected, datagram + WIRE_DATAGRAM_BYTES, 1344 - WIRE_DATAGRAM_BYTES);
	for (int i = 0; i < 4; i++)
		assert_int_equal(datagram[WIRE_SEAL_AT + i], expected >> 8 * i & 0xff);
	assert_memory_equal(datagram + WIRE_SEAL_AT + 4, zeros, 12);
	seal_it(none, 1, 1344, WIRE_DATA_BYTES);
	assert_memory_equal(datagram + WIRE_SEAL_AT, zeros, sizeof(zeros));
	datagram[1000] ^= 1;
	assert_true(seal_check(none, 2, datagram, 1344));
	assert_false(seal_check(crc, 1, datagram, 1344));
	seal_destroy(none);
	seal_destroy(crc);
	seal_destroy(NULL);
}

static void test_names(void **state)
{
	assert_string_equal(seal_name(SEAL_GMAC), "gmac");
	assert_string_equal(seal_name(SEAL_CRC), "crc");
	assert_string_equal(seal_name(SEAL_NONE), "none");
	assert_string_equal(seal_name((enum seal_kind)0), "?");
}

TEST_PROGRAM(test_seal)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_gmac_is_gmac),
		cmocka_unit_test(test_any_head),
		cmocka_unit_test(test_every_bit_counts),
		cmocka_unit_test(test_gmac_is_bound),
		cmocka_unit_test(test_one_after_another),
		cmocka_unit_test(test_out_of_bounds),
		cmocka_unit_test(test_without_key),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
