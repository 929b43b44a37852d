/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRCs by eight tables, eight bytes at a step; CRC32C also by ISA-L.
 */
#include "phub/base/crc.h"

#include <endian.h>
#include <pthread.h>
#include <string.h>

#ifdef PHUB_ISAL
#include <isa-l/crc.h>
#endif

enum {
	CRC_TABLES = 8,            /* one for each byte of a step */
	CRC_PIECE_BYTES = 1 << 30, /* ISA-L counts in int */
};

struct crc_tables {
	uint32_t at[CRC_TABLES][256];
};

static struct crc_tables crc_castagnoli, crc_ieee;

/* Table t has the remainders of a byte with t bytes of zeros behind it. */
static void crc_fill_one(struct crc_tables *tables, uint32_t polynomial)
{
	for (uint32_t byte = 0; byte < 256; byte++) {
		uint32_t crc = byte;

		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? polynomial : 0);
		tables->at[0][byte] = crc;
	}
	for (unsigned t = 1; t < CRC_TABLES; t++) {
		for (unsigned byte = 0; byte < 256; byte++) {
			uint32_t crc = tables->at[t - 1][byte];

			tables->at[t][byte] = crc >> 8 ^ tables->at[0][crc & 0xff];
		}
	}
}

static void crc_fill(void)
{
	crc_fill_one(&crc_castagnoli, 0x82f63b78u);
	crc_fill_one(&crc_ieee, 0xedb88320u);
}

static uint32_t crc_by_table(const struct crc_tables *tables, uint32_t crc, const void *bytes, size_t count)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const uint8_t *p = bytes;

	pthread_once(&once, crc_fill);
	crc = ~crc;
	for (; count >= CRC_TABLES; count -= CRC_TABLES, p += CRC_TABLES) {
		uint64_t word;

		memcpy(&word, p, sizeof(word));
		word = le64toh(word) ^ crc;
		crc = 0;
		for (unsigned i = 0; i < CRC_TABLES; i++)
			crc ^= tables->at[CRC_TABLES - 1 - i][word >> 8 * i & 0xff];
	}
	for (; count > 0; count--, p++)
		crc = crc >> 8 ^ tables->at[0][(crc ^ *p) & 0xff];
	return ~crc;
}

uint32_t crc_32c_table(uint32_t crc, const void *bytes, size_t count)
{
	return crc_by_table(&crc_castagnoli, crc, bytes, count);
}

uint32_t crc_32_zip(uint32_t crc, const void *bytes, size_t count)
{
	return crc_by_table(&crc_ieee, crc, bytes, count);
}

/*
 * ISA-L 2.30 comes back from its AVX-512 with the upper halves of registers in use, and all SSE after that is slow: on
 * a Sapphire Rapids, 416 ns for the CRC of 1240 bytes and the next header, instead of 98.
 */
#if defined(PHUB_ISAL) && defined(__x86_64__)
__attribute__((target("avx"), noinline)) static void crc_clear_upper(void)
{
	__builtin_ia32_vzeroupper();
}
#endif

uint32_t crc_32c(uint32_t crc, const void *bytes, size_t count)
{
#ifdef PHUB_ISAL
	const uint8_t *p = bytes;

	while (count > 0) {
		size_t piece = count < CRC_PIECE_BYTES ? count : CRC_PIECE_BYTES;

		crc = ~crc32_iscsi((unsigned char *)(uintptr_t)p, (int)piece, ~crc);
		p += piece;
		count -= piece;
	}
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx"))
		crc_clear_upper();
#endif
	return crc;
#else
	return crc_32c_table(crc, bytes, count);
#endif
}
