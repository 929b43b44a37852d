/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encrypted payloads: what was sealed opens, in place and elsewhere, and nothing else does; and the keys of sessions.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <openssl/evp.h>

#include "tests/unit/cmocka_shim.h"
#include "transport/crypt.h"
#include "transport/le.h"

enum { CORE = 3, BYTES_MAX = 4096 };

static const uint8_t key[PROOF_KEY] = "a key of thirty-two bytes, this.";
static const uint8_t other[PROOF_KEY] = "another of thirty-two, not that.";
static const struct wire_header push = {
	.type = WIRE_PUSH,
	.job = 7,
	.generation = 2,
	.epoch = 5,
	.chunk = 11,
	.rank = 3,
	.round = UINT64_C(0x100000002),
	.hyper = 4,
	.count = 1,
	.seq = 9,
	.credit = 12,
	.priority = 6,
};

static uint8_t plain[BYTES_MAX], sealed[BYTES_MAX + WIRE_TRAILER_BYTES], opened[BYTES_MAX + WIRE_TRAILER_BYTES];
static struct crypt *sealer, *opener;

static int setup(void **state)
{
	struct err e;

	for (size_t i = 0; i < BYTES_MAX; i++)
		plain[i] = (uint8_t)(i * 7 + 1);
	assert_int_equal(crypt_create(false, &sealer, &e), 0);
	assert_int_equal(crypt_create(true, &opener, &e), 0);
	assert_int_equal(crypt_take_key(sealer, key), 1);
	assert_int_equal(crypt_take_key(opener, key), 1);
	return 0;
}

static int teardown(void **state)
{
	crypt_destroy(sealer);
	crypt_destroy(opener);
	crypt_destroy(NULL);
	return 0;
}

static struct wire_header header_of(uint32_t bytes)
{
	struct wire_header h = push;

	h.length = bytes + WIRE_TRAILER_BYTES;
	return h;
}

static void seals_and_opens(void **state)
{
	static const uint32_t sizes[] = {1, 15, 16, 17, 64, 1000, BYTES_MAX};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct wire_header h = header_of(sizes[i]);

		assert_int_equal(crypt_seal(sealer, &h, CORE, 42 + i, plain, sealed), 0);
		assert_int_equal(crypt_counter(sealed, h.length), 42 + i);
		if (sizes[i] >= 16)
			assert_memory_not_equal(sealed, plain, sizes[i]);
		assert_int_equal(crypt_open(opener, &h, CORE, sealed, opened), 0);
		assert_memory_equal(opened, plain, sizes[i]);
		assert_int_equal(crypt_open(opener, &h, CORE, sealed, sealed), 0);
		assert_memory_equal(sealed, plain, sizes[i]);
		memcpy(sealed, plain, sizes[i]);
		assert_int_equal(crypt_seal(sealer, &h, CORE, 99 + i, sealed, sealed), 0);
		assert_int_equal(crypt_open(opener, &h, CORE, sealed, opened), 0);
		assert_memory_equal(opened, plain, sizes[i]);
	}
}

/* libcrypto asked step by step, with the nonce and the bound bytes as crypt.h says. */
static void is_aes_256_gcm(void **state)
{
	struct wire_header h = header_of(100);
	EVP_CIPHER_CTX *x = EVP_CIPHER_CTX_new();
	uint8_t nonce[12], bound[44], expected[100], tag[16];
	const uint32_t fields[] = {h.type, h.length, h.job, h.generation, h.epoch, h.chunk, h.rank};
	int bytes;

	le_put32(nonce, CORE);
	le_put64(nonce + 4, 77);
	for (unsigned i = 0; i < 7; i++)
		le_put32(bound + (size_t)4 * i, fields[i]);
	le_put64(bound + 28, h.round);
	le_put32(bound + 36, h.hyper);
	le_put32(bound + 40, h.count);
	assert_int_equal(EVP_EncryptInit_ex(x, EVP_aes_256_gcm(), NULL, key, nonce), 1);
	assert_int_equal(EVP_EncryptUpdate(x, NULL, &bytes, bound, sizeof(bound)), 1);
	assert_int_equal(EVP_EncryptUpdate(x, expected, &bytes, plain, sizeof(expected)), 1);
	assert_int_equal(EVP_EncryptFinal_ex(x, tag, &bytes), 1);
	assert_int_equal(EVP_CIPHER_CTX_ctrl(x, EVP_CTRL_GCM_GET_TAG, sizeof(tag), tag), 1);
	EVP_CIPHER_CTX_free(x);
	assert_int_equal(crypt_seal(sealer, &h, CORE, 77, plain, sealed), 0);
	assert_memory_equal(sealed, expected, sizeof(expected));
	assert_int_equal(le_get64(sealed + 100), 77);
	assert_memory_equal(sealed + 108, tag, sizeof(tag));
}

/* Any bit of what is on the wire: payload, counter, tag, zeros. */
static void no_changed_byte_opens(void **state)
{
	struct wire_header h = header_of(200);

	assert_int_equal(crypt_seal(sealer, &h, CORE, 1, plain, sealed), 0);
	for (uint32_t i = 0; i < h.length; i++) {
		sealed[i] ^= (uint8_t)(1u << i % 8);
		assert_int_equal(crypt_open(opener, &h, CORE, sealed, opened), -EBADMSG);
		sealed[i] ^= (uint8_t)(1u << i % 8);
	}
	assert_int_equal(crypt_open(opener, &h, CORE, sealed, opened), 0);
}

static void expect_bound(struct wire_header h, int rc)
{
	assert_int_equal(crypt_open(opener, &h, CORE, sealed, opened), rc);
}

static void the_header_is_bound(void **state)
{
	const struct wire_header h = header_of(200);
	struct wire_header bad[9];

	for (unsigned i = 0; i < 9; i++)
		bad[i] = h;
	bad[0].type = WIRE_INIT;
	bad[1].job++;
	bad[2].generation++;
	bad[3].epoch--;
	bad[4].chunk ^= 1;
	bad[5].rank = 0;
	bad[6].round++;
	bad[7].hyper++;
	bad[8].count++;
	assert_int_equal(crypt_seal(sealer, &h, CORE, 1, plain, sealed), 0);
	for (unsigned i = 0; i < 9; i++)
		expect_bound(bad[i], -EBADMSG);
	bad[0] = h;
	bad[0].length--;
	expect_bound(bad[0], -EBADMSG);
	bad[0].length = WIRE_TRAILER_BYTES;
	expect_bound(bad[0], -EBADMSG);
	assert_int_equal(crypt_open(opener, &h, CORE + 1, sealed, opened), -EBADMSG);
	bad[1] = h;
	bad[1].seq++;
	bad[1].credit++;
	bad[1].priority++;
	expect_bound(bad[1], 0); /* the transport's */
}

static void what_is_one_ranks_is_bound_to_it(void **state)
{
	struct wire_header h = header_of(64), one, all;

	h.type = WIRE_RESULT;
	one = crypt_result(&h, true);
	all = crypt_result(&h, false);
	h.rank++;
	h.hyper++;
	h.epoch++;
	assert_int_equal(crypt_seal(sealer, &all, CORE, 1, plain, sealed), 0);
	expect_bound(crypt_result(&h, false), 0);
	assert_int_equal(crypt_seal(sealer, &one, CORE, 2, plain, sealed), 0);
	expect_bound(crypt_result(&h, true), -EBADMSG);
	h.rank--;
	expect_bound(crypt_result(&h, true), -EBADMSG);
	h.hyper--;
	expect_bound(crypt_result(&h, true), 0);
}

static void keys_differ(void **state)
{
	struct wire_header h = header_of(64);
	uint8_t push_key[PROOF_KEY], again[PROOF_KEY], elsewhere[PROOF_KEY];

	assert_int_equal(crypt_take_key(opener, key), 0);
	assert_int_equal(crypt_take_key(opener, other), 1);
	assert_int_equal(crypt_seal(sealer, &h, CORE, 1, plain, sealed), 0);
	expect_bound(h, -EBADMSG);
	assert_int_equal(proof_push_key(key, push_key), 0);
	assert_int_equal(proof_push_key(key, again), 0);
	assert_int_equal(proof_push_key(other, elsewhere), 0);
	assert_memory_equal(push_key, again, PROOF_KEY);
	assert_memory_not_equal(push_key, elsewhere, PROOF_KEY);
	assert_memory_not_equal(push_key, key, PROOF_KEY);
}

static void no_key_opens_nothing(void **state)
{
	struct wire_header h = header_of(64);
	struct crypt *empty;

	assert_int_equal(crypt_create(true, &empty, NULL), 0);
	assert_int_equal(crypt_seal(sealer, &h, CORE, 1, plain, sealed), 0);
	assert_int_equal(crypt_open(empty, &h, CORE, sealed, opened), -EBADMSG);
	crypt_destroy(empty);
	assert_int_equal(crypt_create(false, &empty, NULL), 0);
	assert_int_equal(crypt_seal(empty, &h, CORE, 1, plain, sealed), -EIO);
	crypt_destroy(empty);
}

static void wraps(void **state)
{
	uint8_t wrapped[CRYPT_WRAPPED_BYTES], twice[CRYPT_WRAPPED_BYTES], out[PROOF_KEY];

	assert_int_equal(crypt_wrap(key, 3, 1, other, wrapped), 0);
	assert_int_equal(crypt_wrap(key, 3, 1, other, twice), 0);
	assert_memory_not_equal(wrapped, twice, PROOF_NONCE);
	assert_memory_not_equal(wrapped + PROOF_NONCE, twice + PROOF_NONCE, PROOF_KEY);
	assert_int_equal(crypt_unwrap(key, 3, 1, wrapped, out), 0);
	assert_memory_equal(out, other, PROOF_KEY);
	assert_int_equal(crypt_unwrap(key, 4, 1, wrapped, out), -EBADMSG);
	assert_int_equal(crypt_unwrap(key, 3, 2, wrapped, out), -EBADMSG);
	assert_int_equal(crypt_unwrap(other, 3, 1, wrapped, out), -EBADMSG);
	for (unsigned i = 0; i < sizeof(wrapped); i++) {
		wrapped[i] ^= 1;
		assert_int_equal(crypt_unwrap(key, 3, 1, wrapped, out), -EBADMSG);
		wrapped[i] ^= 1;
	}
}

TEST_PROGRAM(test_crypt)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(seals_and_opens, setup, teardown),
		cmocka_unit_test_setup_teardown(is_aes_256_gcm, setup, teardown),
		cmocka_unit_test_setup_teardown(no_changed_byte_opens, setup, teardown),
		cmocka_unit_test_setup_teardown(the_header_is_bound, setup, teardown),
		cmocka_unit_test_setup_teardown(what_is_one_ranks_is_bound_to_it, setup, teardown),
		cmocka_unit_test_setup_teardown(keys_differ, setup, teardown),
		cmocka_unit_test_setup_teardown(no_key_opens_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(wraps, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
