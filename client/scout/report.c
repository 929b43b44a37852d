/* SPDX-License-Identifier: Apache-2.0 */
#include "client/scout/report.h"

#include <string.h>

enum { PIECE_BITS = 24 };

#define PIECE_LIMIT 16777216.0f

/* A whole number of at most 24 bits? */
static bool piece_take(float x, uint32_t *piece)
{
	bool good = x >= 0 && x < PIECE_LIMIT && (float)(uint32_t)x == x;

	*piece = good ? (uint32_t)x : 0;
	return good;
}

void scout_word_pack(uint64_t word, float out[SCOUT_WORD_FLOATS])
{
	for (unsigned i = 0; i < SCOUT_WORD_FLOATS; i++, word >>= PIECE_BITS)
		out[i] = (float)(word & ((1u << PIECE_BITS) - 1));
}

bool scout_word_unpack(const float in[SCOUT_WORD_FLOATS], uint64_t *word)
{
	bool good = true;
	uint32_t piece;

	*word = 0;
	for (unsigned i = 0; i < SCOUT_WORD_FLOATS; i++) {
		good = piece_take(in[i], &piece) && good;
		*word |= (uint64_t)piece << PIECE_BITS * i;
	}
	good = good && piece >> (64 - 2 * PIECE_BITS) == 0;
	*word = good ? *word : 0;
	return good;
}

uint64_t scout_word_of(double value)
{
	uint64_t word;

	memcpy(&word, &value, sizeof(word));
	return word;
}

double scout_word_double(uint64_t word)
{
	double value;

	memcpy(&value, &word, sizeof(value));
	return value;
}

void scout_bytes_pack(const uint8_t *in, size_t bytes, float *out)
{
	for (size_t i = 0; i < bytes; i += 3, out++) {
		uint32_t piece = in[i];

		piece |= i + 1 < bytes ? (uint32_t)in[i + 1] << 8 : 0;
		piece |= i + 2 < bytes ? (uint32_t)in[i + 2] << 16 : 0;
		*out = (float)piece;
	}
}

bool scout_bytes_unpack(const float *in, size_t bytes, uint8_t *out)
{
	bool good = true;
	uint32_t piece = 0;

	for (size_t i = 0; i < bytes; i++) {
		if (i % 3 == 0)
			good = piece_take(*in++, &piece) && good;
		out[i] = (uint8_t)(piece >> 8 * (i % 3));
	}
	return good;
}

void scout_report_pack(const struct scout_report *report, float out[SCOUT_REPORT_FLOATS])
{
	const uint64_t words[] = {scout_word_of(report->home), scout_word_of(report->away), report->samples,
		report->bytes, report->trained, scout_word_of(report->train), report->tried,
		scout_word_of(report->before), scout_word_of(report->after), report->within,
		scout_word_of(report->exchanges), scout_word_of(report->exchanges_within), report->alike,
		report->unfit};

	for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		scout_word_pack(words[i], out + i * SCOUT_WORD_FLOATS);
}

void scout_report_unpack(const float in[SCOUT_REPORT_FLOATS], struct scout_report *report)
{
	uint64_t words[SCOUT_REPORT_FLOATS / SCOUT_WORD_FLOATS];
	bool good = true;

	for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		good = scout_word_unpack(in + i * SCOUT_WORD_FLOATS, &words[i]) && good;
	*report = (struct scout_report){0};
	if (!good)
		return;
	report->home = scout_word_double(words[0]);
	report->away = scout_word_double(words[1]);
	report->samples = words[2];
	report->bytes = words[3];
	report->trained = words[4];
	report->train = scout_word_double(words[5]);
	report->tried = words[6];
	report->before = scout_word_double(words[7]);
	report->after = scout_word_double(words[8]);
	report->within = words[9];
	report->exchanges = scout_word_double(words[10]);
	report->exchanges_within = scout_word_double(words[11]);
	report->alike = words[12] == 1;
	report->unfit = words[13] <= SCOUT_IDLE ? (unsigned)words[13] : SCOUT_BROKEN;
}
