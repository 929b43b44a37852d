/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The 64-byte header, and what datagrams have besides: their very bytes, every field both ways, every error of wire.h,
 * and random bytes.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/cmocka_shim.h"
#include "transport/wire.h"

static const struct wire_header sample = {
	.type = WIRE_PUSH,
	.length = 0x00010203,
	.job = 0x11121314,
	.generation = 0x21222324,
	.epoch = 0x31323334,
	.chunk = 0x41424344,
	.rank = 0x0152,
	.round = 0x6162636465666768,
	.hyper = 0x71727374,
	.count = 0x0182,
	.seq = 0x91929394,
	.credit = 0xa1a2a3a4,
	.priority = 0xb1b2,
};

/* The protocol, byte by byte, so that a change of it cannot pass unseen. */
static const uint8_t sample_bytes[WIRE_HEADER_BYTES] = {'P', 'H', 'U', 'B', 1, 1, 0xb2, 0xb1, 0x03, 0x02, 0x01, 0x00,
	0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21, 0x34, 0x33, 0x32, 0x31, 0x44, 0x43, 0x42, 0x41, 0x52, 0x01,
	0x00, 0x00, 0x68, 0x67, 0x66, 0x65, 0x64, 0x63, 0x62, 0x61, 0x74, 0x73, 0x72, 0x71, 0x82, 0x01, 0x00, 0x00,
	0x94, 0x93, 0x92, 0x91, 0xa4, 0xa3, 0xa2, 0xa1, 0, 0, 0, 0, 0, 0, 0, 0};

static void assert_headers_equal(const struct wire_header *a, const struct wire_header *b)
{
	assert_int_equal(a->type, b->type);
	assert_int_equal(a->length, b->length);
	assert_int_equal(a->job, b->job);
	assert_int_equal(a->generation, b->generation);
	assert_int_equal(a->epoch, b->epoch);
	assert_int_equal(a->chunk, b->chunk);
	assert_int_equal(a->rank, b->rank);
	assert_int_equal(a->round, b->round);
	assert_int_equal(a->hyper, b->hyper);
	assert_int_equal(a->count, b->count);
	assert_int_equal(a->seq, b->seq);
	assert_int_equal(a->credit, b->credit);
	assert_int_equal(a->priority, b->priority);
	assert_int_equal(a->coded, b->coded);
}

static void test_bytes(void **state)
{
	uint8_t bytes[WIRE_HEADER_BYTES];
	struct wire_header back = {0};

	memset(bytes, 0xee, sizeof(bytes));
	wire_encode(&sample, bytes);
	assert_memory_equal(bytes, sample_bytes, sizeof(bytes));
	assert_int_equal(wire_decode(sample_bytes, &back), 0);
	assert_headers_equal(&back, &sample);
}

/* `out` is written on success alone. */
static void assert_refused(const uint8_t *bytes, int error)
{
	struct wire_header out;
	struct wire_header before;

	memset(&out, 0x5a, sizeof(out));
	before = out;
	assert_int_equal(wire_decode(bytes, &out), error);
	assert_memory_equal(&out, &before, sizeof(out));
}

static void test_head_errors(void **state)
{
	uint8_t bytes[WIRE_HEADER_BYTES];

	for (int at = 0; at < 4; at++) {
		memcpy(bytes, sample_bytes, sizeof(bytes));
		bytes[at] ^= 1;
		assert_refused(bytes, -EPROTO);
	}
	for (int at = 56; at < 64; at++) {
		memcpy(bytes, sample_bytes, sizeof(bytes));
		bytes[at] = 0x80;
		assert_refused(bytes, -EPROTO);
	}
	memcpy(bytes, sample_bytes, sizeof(bytes));
	bytes[56] = 2; /* 1: it is coded */
	assert_refused(bytes, -EPROTO);
	for (int version = 0; version < 256; version++) {
		memcpy(bytes, sample_bytes, sizeof(bytes));
		bytes[4] = (uint8_t)version;
		if (version != WIRE_VERSION)
			assert_refused(bytes, -EPROTONOSUPPORT);
	}
}

static int decode(struct wire_header header)
{
	uint8_t bytes[WIRE_HEADER_BYTES];
	struct wire_header out;

	wire_encode(&header, bytes);
	return wire_decode(bytes, &out);
}

static void test_type_and_length(void **state)
{
	struct wire_header h = sample;

	for (unsigned type = 0; type < 256; type++) {
		int payload = type == WIRE_PUSH || type == WIRE_INIT || type == WIRE_RESULT;
		int empty = type == WIRE_PULL || type == WIRE_CREDIT || type == WIRE_RESULT;

		h.type = (enum wire_type)type;
		h.length = 0;
		assert_int_equal(decode(h), empty ? 0 : -EBADMSG);
		h.length = 1;
		assert_int_equal(decode(h), payload ? 0 : -EBADMSG);
		h.length = WIRE_PAYLOAD_MAX;
		assert_int_equal(decode(h), payload ? 0 : -EBADMSG);
		h.length = WIRE_PAYLOAD_MAX + 1;
		assert_int_equal(decode(h), payload ? -EMSGSIZE : -EBADMSG);
		h.length = UINT32_MAX;
		assert_int_equal(decode(h), payload ? -EMSGSIZE : -EBADMSG);
	}
}

/* Of what has a payload, and is summed or is a result. */
static void test_coded(void **state)
{
	uint8_t bytes[WIRE_HEADER_BYTES], expected[WIRE_HEADER_BYTES];
	struct wire_header h = sample, back;

	h.coded = true;
	wire_encode(&h, bytes);
	memcpy(expected, sample_bytes, sizeof(expected));
	expected[56] = 1;
	assert_memory_equal(bytes, expected, sizeof(bytes));
	assert_int_equal(wire_decode(bytes, &back), 0);
	assert_headers_equal(&back, &h);
	for (unsigned type = WIRE_PUSH; type <= WIRE_CREDIT; type++) {
		bool payload = type == WIRE_PUSH || type == WIRE_INIT || type == WIRE_RESULT;

		h.type = (enum wire_type)type;
		h.length = payload ? 100 : 0;
		assert_int_equal(decode(h), type == WIRE_PUSH || type == WIRE_RESULT ? 0 : -EBADMSG);
	}
	h.type = WIRE_RESULT;
	h.length = 0;
	assert_int_equal(decode(h), -EBADMSG);
}

static void test_ranges(void **state)
{
	struct wire_header h = sample;

	h.rank = WIRE_WORLD_MAX - 1;
	h.count = WIRE_WORLD_MAX;
	assert_int_equal(decode(h), 0);
	h.rank = WIRE_WORLD_MAX;
	assert_int_equal(decode(h), -ERANGE);
	h.rank = UINT32_MAX;
	assert_int_equal(decode(h), -ERANGE);
	h.rank = 0;
	h.count = WIRE_WORLD_MAX + 1;
	assert_int_equal(decode(h), -ERANGE);
	h.count = UINT32_MAX;
	assert_int_equal(decode(h), -ERANGE);
}

/* Whatever is accepted encodes to the same bytes: nothing in a header is ignored. */
static void test_random_bytes(void **state)
{
	uint64_t seed = 0x9e3779b97f4a7c15;
	unsigned accepted = 0;

	for (int i = 0; i < 200000; i++) {
		uint8_t bytes[WIRE_HEADER_BYTES];
		uint8_t again[WIRE_HEADER_BYTES];
		struct wire_header out;

		memcpy(bytes, sample_bytes, sizeof(bytes));
		for (int flips = 0; flips < 2; flips++) {
			seed ^= seed << 13;
			seed ^= seed >> 7;
			seed ^= seed << 17;
			bytes[seed % WIRE_HEADER_BYTES] ^= (uint8_t)(seed >> 32);
		}
		if (wire_decode(bytes, &out) < 0)
			continue;
		accepted++;
		wire_encode(&out, again);
		assert_memory_equal(again, bytes, sizeof(bytes));
	}
	assert_in_range(accepted, 1000, 199000);
}

static void test_after(void **state)
{
	assert_true(wire_after(1, 0));
	assert_false(wire_after(0, 0));
	assert_false(wire_after(0, 1));
	assert_true(wire_after(0, UINT32_MAX));
	assert_true(wire_after(5, UINT32_MAX - 5));
	assert_false(wire_after(UINT32_MAX, 0));
	assert_true(wire_after(0x7fffffff, 0));
}

static void test_names(void **state)
{
	assert_string_equal(wire_type_name(WIRE_PUSH), "push");
	assert_string_equal(wire_type_name(WIRE_INIT), "init");
	assert_string_equal(wire_type_name(WIRE_PULL), "pull");
	assert_string_equal(wire_type_name(WIRE_RESULT), "result");
	assert_string_equal(wire_type_name(WIRE_CREDIT), "credit");
	assert_string_equal(wire_type_name((enum wire_type)0), "?");
	assert_string_equal(wire_type_name((enum wire_type)200), "?");
}

/* ---- datagrams ---- */

static const struct wire_datagram datagram_sample = {
	.kind = WIRE_DATA,
	.conn = 0x11121314,
	.number = 0x2122232425262728,
	.offset = 0x31323334,
	.answers = 0x41424344,
};

static const uint8_t datagram_bytes[WIRE_DATAGRAM_BYTES] = {1, 1, 0, 0, 0x14, 0x13, 0x12, 0x11, 0x28, 0x27, 0x26, 0x25,
	0x24, 0x23, 0x22, 0x21, 0x34, 0x33, 0x32, 0x31, 0x44, 0x43, 0x42, 0x41};

static const struct kind_case {
	enum wire_kind kind;
	size_t least, most;
} kinds[] = {
	{WIRE_DATA, 104, 65507},
	{WIRE_ACK, 88, 88},
	{WIRE_PROBE, 64, 65507},
	{WIRE_PROBED, 64, 65507},
	{WIRE_END, 40, 40},
};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

/* A good one of its kind. */
static struct wire_datagram datagram_of(enum wire_kind kind)
{
	struct wire_datagram d = datagram_sample;

	d.kind = kind;
	if (kind != WIRE_DATA) {
		d.number |= WIRE_NUMBER_OTHER;
		d.offset = 0;
		d.answers = 0;
	}
	return d;
}

static void assert_datagram_refused(const uint8_t *bytes, size_t size, int error)
{
	struct wire_datagram out, before;

	memset(&out, 0x5a, sizeof(out));
	before = out;
	assert_int_equal(wire_decode_datagram(bytes, size, &out), error);
	assert_memory_equal(&out, &before, sizeof(out));
}

static void assert_datagrams_equal(const struct wire_datagram *a, const struct wire_datagram *b)
{
	assert_int_equal(a->kind, b->kind);
	assert_int_equal(a->conn, b->conn);
	assert_int_equal(a->number, b->number);
	assert_int_equal(a->offset, b->offset);
	assert_int_equal(a->answers, b->answers);
}

static void test_datagram_bytes(void **state)
{
	uint8_t bytes[WIRE_DATAGRAM_BYTES];
	struct wire_datagram back;

	memset(bytes, 0xee, sizeof(bytes));
	wire_encode_datagram(&datagram_sample, bytes);
	assert_memory_equal(bytes, datagram_bytes, sizeof(bytes));
	assert_int_equal(wire_decode_datagram(datagram_bytes, WIRE_DATA_BYTES, &back), 0);
	assert_datagrams_equal(&back, &datagram_sample);
}

/* Every length of every kind: runts, and more than it has. Nothing behind the end of a runt is read. */
static void test_datagram_sizes(void **state)
{
	static const size_t large[] = {1344, 8832, 65506, 65507, 65508, 100000};
	uint8_t bytes[WIRE_DATAGRAM_BYTES];

	for (int k = 0; k < KINDS; k++) {
		struct wire_datagram d = datagram_of(kinds[k].kind), back;

		wire_encode_datagram(&d, bytes);
		for (size_t i = 0; i < 256 + sizeof(large) / sizeof(large[0]); i++) {
			size_t size = i < 256 ? i : large[i - 256];

			if (size < kinds[k].least || size > kinds[k].most) {
				assert_datagram_refused(bytes, size, -EMSGSIZE);
				continue;
			}
			assert_int_equal(wire_decode_datagram(bytes, size, &back), 0);
			assert_datagrams_equal(&back, &d);
		}
	}
}

static void test_datagram_versions_and_kinds(void **state)
{
	uint8_t bytes[WIRE_DATAGRAM_BYTES];

	for (unsigned value = 0; value < 256; value++) {
		memcpy(bytes, datagram_bytes, sizeof(bytes));
		bytes[1] = (uint8_t)value;
		if (value != WIRE_VERSION)
			assert_datagram_refused(bytes, WIRE_DATA_BYTES, -EPROTONOSUPPORT);
		memcpy(bytes, datagram_bytes, sizeof(bytes));
		bytes[0] = (uint8_t)value;
		if (value < WIRE_DATA || value > WIRE_END)
			assert_datagram_refused(bytes, WIRE_DATA_BYTES, -EBADMSG);
	}
}

static void test_datagram_zeros(void **state)
{
	static const int zeros[] = {2, 3, 20, 21, 22, 23};
	uint8_t bytes[WIRE_DATAGRAM_BYTES];

	for (int k = 0; k < KINDS; k++) {
		struct wire_datagram d = datagram_of(kinds[k].kind);

		for (int i = 0; i < (d.kind == WIRE_DATA ? 2 : 6) * 8; i++) {
			wire_encode_datagram(&d, bytes);
			bytes[zeros[i / 8]] ^= (uint8_t)(1u << i % 8);
			assert_datagram_refused(bytes, kinds[k].least, -EBADMSG);
		}
		d.offset = 0x80000000;
		wire_encode_datagram(&d, bytes);
		if (d.kind != WIRE_DATA)
			assert_datagram_refused(bytes, kinds[k].least, -EBADMSG);
	}
}

/* DATA count from 1, all others from WIRE_NUMBER_OTHER + 1. */
static void test_datagram_numbers(void **state)
{
	static const struct {
		uint64_t number;
		bool data;
	} numbers[] = {{1, true}, {WIRE_NUMBER_OTHER - 1, true}, {WIRE_NUMBER_OTHER + 1, false}, {UINT64_MAX, false}};
	uint8_t bytes[WIRE_DATAGRAM_BYTES];

	for (int k = 0; k < KINDS; k++) {
		struct wire_datagram d = datagram_of(kinds[k].kind), back;

		for (int i = 0; i < 4; i++) {
			d.number = numbers[i].number;
			wire_encode_datagram(&d, bytes);
			if (numbers[i].data == (d.kind == WIRE_DATA)) {
				assert_int_equal(wire_decode_datagram(bytes, kinds[k].least, &back), 0);
				assert_int_equal(back.number, d.number);
			} else {
				assert_datagram_refused(bytes, kinds[k].least, -EBADMSG);
			}
		}
		d.number = 0;
		wire_encode_datagram(&d, bytes);
		assert_datagram_refused(bytes, kinds[k].least, -EBADMSG);
		d.number = WIRE_NUMBER_OTHER;
		wire_encode_datagram(&d, bytes);
		assert_datagram_refused(bytes, kinds[k].least, -EBADMSG);
	}
}

/* Whatever is accepted encodes to the same bytes, but for the seal, which is another's to look at. */
static void test_datagram_random_bytes(void **state)
{
	uint64_t seed = 0x9e3779b97f4a7c15;
	unsigned accepted = 0;

	for (int i = 0; i < 200000; i++) {
		struct wire_datagram d = datagram_of(kinds[i % KINDS].kind), out;
		uint8_t bytes[WIRE_DATAGRAM_BYTES], again[WIRE_DATAGRAM_BYTES];

		wire_encode_datagram(&d, bytes);
		for (int flips = 0; flips < 2; flips++) {
			seed ^= seed << 13;
			seed ^= seed >> 7;
			seed ^= seed << 17;
			bytes[seed % WIRE_DATAGRAM_BYTES] ^= (uint8_t)(seed >> 32);
		}
		if (wire_decode_datagram(bytes, kinds[i % KINDS].least, &out) < 0)
			continue;
		accepted++;
		wire_encode_datagram(&out, again);
		memcpy(again + WIRE_SEAL_AT, bytes + WIRE_SEAL_AT, WIRE_SEAL_BYTES);
		assert_memory_equal(again, bytes, sizeof(bytes));
	}
	assert_in_range(accepted, 1000, 199000);
}

static void test_ack(void **state)
{
	const struct wire_ack ack = {
		.largest = 0x0102030405060708,
		.below = {0x1112131415161718, 0x2122232425262728, 0x3132333435363738, 0x4142434445464748},
		.grant = 0x51525354,
		.delay_us = 0x61626364,
	};
	static const uint8_t expected[48] = {8, 7, 6, 5, 4, 3, 2, 1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
		0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, 0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31, 0x48,
		0x47, 0x46, 0x45, 0x44, 0x43, 0x42, 0x41, 0x54, 0x53, 0x52, 0x51, 0x64, 0x63, 0x62, 0x61};
	uint8_t bytes[sizeof(expected) + 1];
	struct wire_ack back;

	memset(bytes, 0xee, sizeof(bytes));
	wire_encode_ack(&ack, bytes);
	assert_memory_equal(bytes, expected, sizeof(expected));
	assert_int_equal(bytes[sizeof(expected)], 0xee);
	wire_decode_ack(expected, &back);
	assert_int_equal(back.largest, ack.largest);
	assert_memory_equal(back.below, ack.below, sizeof(back.below));
	assert_int_equal(back.grant, ack.grant);
	assert_int_equal(back.delay_us, ack.delay_us);
}

static void test_probe(void **state)
{
	const struct wire_probe probe = {.token = 0x0102030405060708,
		.fragment = 0x11121314,
		.alone = true,
		.grant = 0x21222324,
		.way = 0x3132333435363738};
	static const uint8_t expected[24] = {8, 7, 6, 5, 4, 3, 2, 1, 0x15, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21,
		0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31};
	uint8_t bytes[sizeof(expected) + 1];
	struct wire_probe back;

	memset(bytes, 0xee, sizeof(bytes));
	wire_encode_probe(&probe, bytes);
	assert_memory_equal(bytes, expected, sizeof(expected));
	assert_int_equal(bytes[sizeof(expected)], 0xee);
	wire_decode_probe(expected, &back);
	assert_int_equal(back.token, probe.token);
	assert_int_equal(back.fragment, probe.fragment);
	assert_true(back.alone);
	assert_int_equal(back.grant, probe.grant);
	assert_int_equal(back.way, probe.way);
}

TEST_PROGRAM(test_wire)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_head_errors),
		cmocka_unit_test(test_type_and_length),
		cmocka_unit_test(test_coded),
		cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_random_bytes),
		cmocka_unit_test(test_after),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_datagram_bytes),
		cmocka_unit_test(test_datagram_sizes),
		cmocka_unit_test(test_datagram_versions_and_kinds),
		cmocka_unit_test(test_datagram_zeros),
		cmocka_unit_test(test_datagram_numbers),
		cmocka_unit_test(test_datagram_random_bytes),
		cmocka_unit_test(test_ack),
		cmocka_unit_test(test_probe),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
