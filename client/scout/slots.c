/* SPDX-License-Identifier: Apache-2.0 */
#include "client/scout/slots.h"

#include <float.h>

/* In a slot: flags, words, the report. */
enum { SLOT_WORDS_AT = 1, SLOT_REPORT_AT = SLOT_WORDS_AT + (int)(SLOT_WORDS * SCOUT_WORD_FLOATS) };

static const float *slots_of(const float *slots, uint32_t rank)
{
	return slots + (size_t)rank * SLOT_FLOATS;
}

void slots_put(float *slots, uint32_t rank, const struct slot *slot)
{
	const uint64_t words[SLOT_WORDS] = {slot->steps, slot->exchanges, slot->samples, slot->check,
		scout_word_of(slot->said), slot->alike, slot->broken, slot->bytes, slot->within, slot->wire,
		slot->terms, slot->around};
	float *at = slots + (size_t)rank * SLOT_FLOATS;

	at[0] = (float)slot->flags;
	for (unsigned i = 0; i < SLOT_WORDS; i++)
		scout_word_pack(words[i], at + SLOT_WORDS_AT + (size_t)i * SCOUT_WORD_FLOATS);
}

void slots_put_report(float *slots, uint32_t rank, const struct scout_report *report)
{
	float packed[SCOUT_REPORT_FLOATS], *at = slots + (size_t)rank * SLOT_FLOATS + SLOT_REPORT_AT;

	scout_report_pack(report, packed);
	for (unsigned i = 0; i < SCOUT_REPORT_FLOATS; i++)
		at[i] += packed[i];
}

void slots_put_news(float *slots, uint32_t world, const struct slots_news *news)
{
	float *at = slots + (size_t)world * SLOT_FLOATS;

	scout_word_pack(scout_word_of(news->theta), at);
	scout_word_pack(news->window, at + SCOUT_WORD_FLOATS);
	scout_word_pack(news->run, at + (size_t)2 * SCOUT_WORD_FLOATS);
	scout_word_pack(news->since, at + (size_t)3 * SCOUT_WORD_FLOATS);
	scout_word_pack(scout_word_of(news->rate), at + (size_t)4 * SCOUT_WORD_FLOATS);
	scout_bytes_pack(news->scout, sizeof(news->scout), at + (size_t)5 * SCOUT_WORD_FLOATS);
}

void slots_put_said(float *slots, uint32_t world, uint32_t tensor, double said)
{
	const double most = (double)FLT_MAX / world;

	slots[slots_floats(world, tensor)] = said > 0 ? (float)(said < most ? said : most) : 0;
}

void slots_get(const float *slots, uint32_t rank, struct slot *slot)
{
	const float *at = slots_of(slots, rank);
	uint64_t words[SLOT_WORDS];
	bool good = at[0] >= 1 && at[0] <= SLOT_FLAGS && (float)(unsigned)at[0] == at[0];

	for (unsigned i = 0; i < SLOT_WORDS; i++)
		good = scout_word_unpack(at + SLOT_WORDS_AT + (size_t)i * SCOUT_WORD_FLOATS, &words[i]) && good;
	*slot = (struct slot){0};
	if (!good || !((unsigned)at[0] & SLOT_HERE))
		return;
	*slot = (struct slot){(unsigned)at[0], words[0], words[1], words[2], (uint32_t)words[3],
		scout_word_double(words[4]), (uint32_t)words[5], (uint32_t)words[6], words[7], words[8], words[9],
		words[10], words[11]};
}

void slots_get_report(const float *slots, uint32_t rank, struct scout_report *report)
{
	scout_report_unpack(slots_of(slots, rank) + SLOT_REPORT_AT, report);
}

bool slots_get_news(const float *slots, uint32_t world, struct slots_news *news)
{
	const float *at = slots_of(slots, world);
	uint64_t theta, rate;
	bool good = scout_word_unpack(at, &theta);

	good = scout_word_unpack(at + SCOUT_WORD_FLOATS, &news->window) && good;
	good = scout_word_unpack(at + (size_t)2 * SCOUT_WORD_FLOATS, &news->run) && good;
	good = scout_word_unpack(at + (size_t)3 * SCOUT_WORD_FLOATS, &news->since) && good;
	good = scout_word_unpack(at + (size_t)4 * SCOUT_WORD_FLOATS, &rate) && good;
	news->theta = scout_word_double(theta);
	news->rate = scout_word_double(rate);
	return scout_bytes_unpack(at + (size_t)5 * SCOUT_WORD_FLOATS, sizeof(news->scout), news->scout) && good;
}

double slots_get_said(const float *slots, uint32_t world, uint32_t tensor)
{
	return slots[slots_floats(world, tensor)];
}
