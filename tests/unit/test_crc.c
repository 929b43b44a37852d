/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/base/crc.h"

#include <string.h>

#include "tests/unit/cmocka_shim.h"

static void expect_crc(const void *bytes, size_t count, uint32_t expected)
{
	assert_int_equal(crc_32c(0, bytes, count), expected);
	assert_int_equal(crc_32c_table(0, bytes, count), expected);
}

/* RFC 3720, B.4. */
static void test_crc_known_answers(void **state)
{
	static const uint8_t command[48] = {
		0x01, 0xc0, [16] = 0x14, [22] = 0x04, [27] = 0x14, [31] = 0x18, 0x28, [40] = 0x02};
	uint8_t bytes[32] = {0};

	expect_crc(bytes, 32, 0x8a9136aa);
	memset(bytes, 0xff, sizeof(bytes));
	expect_crc(bytes, 32, 0x62a8ab43);
	for (int i = 0; i < 32; i++)
		bytes[i] = (uint8_t)i;
	expect_crc(bytes, 32, 0x46dd794e);
	for (int i = 0; i < 32; i++)
		bytes[i] = (uint8_t)(31 - i);
	expect_crc(bytes, 32, 0x113fdb5c);
	expect_crc(command, sizeof(command), 0xd9963a56);
	expect_crc("123456789", 9, 0xe3069283);
	expect_crc(NULL, 0, 0);
}

/* Both give the same, at every length and place, cut anywhere. */
static void test_crcs_agree(void **state)
{
	uint8_t noise[2048];
	uint32_t x = 1;

	for (size_t i = 0; i < sizeof(noise); i++)
		noise[i] = (uint8_t)(x = x * 1664525u + 1013904223u, x >> 24);
	for (size_t bytes = 0; bytes <= 1024; bytes++) {
		const uint8_t *at = noise + bytes % 9;
		uint32_t whole = crc_32c_table(0, at, bytes);
		size_t cut = bytes * 7 / 11;

		assert_int_equal(crc_32c(0, at, bytes), whole);
		assert_int_equal(crc_32c(crc_32c(0, at, cut), at + cut, bytes - cut), whole);
		assert_int_equal(crc_32c_table(crc_32c_table(0, at, cut), at + cut, bytes - cut), whole);
	}
}

/* As zlib's crc32() and python's binascii.crc32() give it. */
static void test_zip_known_answers(void **state)
{
	uint8_t many[256];

	for (int i = 0; i < 256; i++)
		many[i] = (uint8_t)i;
	assert_int_equal(crc_32_zip(0, "123456789", 9), 0xcbf43926);
	assert_int_equal(crc_32_zip(0, many, sizeof(many)), 0x29058c73);
	assert_int_equal(crc_32_zip(crc_32_zip(0, many, 101), many + 101, 155), 0x29058c73);
	assert_int_equal(crc_32_zip(0, NULL, 0), 0);
}

TEST_PROGRAM(test_crc)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_crc_known_answers),
		cmocka_unit_test(test_crcs_agree),
		cmocka_unit_test(test_zip_known_answers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
