/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data that depend on rank, round and index, and the serial oracle. All keys hold the same endless sequence from
 * different places on, and optimizers work element by element, so that one period of it tells what every element of
 * every key must be.
 */
#include "tests/system/worker.h"

#include <math.h>
#include <string.h>

#include "phub/base/mix.h"

unsigned worker_phase(unsigned key)
{
	return key * 577u % WORKER_PERIOD;
}

size_t worker_dtype_bytes(enum phub_dtype dtype)
{
	return dtype == PHUB_F32 ? 4 : 2;
}

/* Integers of -8 to 8: sums of eight are exact in every type. Or about normal: twelve uniforms. */
static float data_value(bool normals, uint32_t rank, uint64_t round, uint32_t at)
{
	uint64_t seed = mix_64(((uint64_t)rank << 48) ^ (round << 16) ^ at);
	double sum = -6;

	if (!normals)
		return (float)((int)(seed % 17) - 8);
	for (int i = 0; i < 12; i++) {
		sum += (double)(seed >> 11) * 0x1p-53;
		seed = mix_64(seed);
	}
	return (float)sum;
}

void worker_integers(uint32_t rank, uint64_t round, float out[WORKER_PERIOD])
{
	for (uint32_t i = 0; i < WORKER_PERIOD; i++)
		out[i] = data_value(false, rank, round, i);
}

/* Where gradients have many zeros. */
static bool data_is_zero(const struct worker_options *o, uint32_t rank, uint64_t round, uint32_t at)
{
	return o->one_in && mix_64(~(((uint64_t)rank << 48) ^ (round << 16) ^ at)) % o->one_in != 0;
}

/* One period of a rank's gradient, as its type holds it. */
static void data_period(const struct worker_options *o, enum phub_dtype dtype, uint32_t rank, uint64_t round, void *out)
{
	float values[WORKER_PERIOD];

	for (uint32_t i = 0; i < WORKER_PERIOD; i++)
		values[i] = data_is_zero(o, rank, round, i) ? 0 : data_value(o->normals, rank, round, i);
	worker_narrow(dtype, values, out, WORKER_PERIOD);
}

/* Copies the period out again and again, from the key's place on. */
static void data_repeat(const void *period, const struct worker_key *key, unsigned phase, void *out)
{
	size_t size = worker_dtype_bytes(key->dtype);

	for (uint64_t i = 0; i < key->elements;) {
		size_t from = (i + phase) % WORKER_PERIOD;
		size_t n = WORKER_PERIOD - from;

		n = n < key->elements - i ? n : key->elements - i;
		memcpy((char *)out + i * size, (const char *)period + from * size, n * size);
		i += n;
	}
}

void worker_fill(const struct worker_options *o, unsigned key, uint64_t round, void *out)
{
	static uint32_t period[WORKER_PERIOD];
	static uint64_t made = WORKER_NEVER;
	static enum phub_dtype dtype;

	if (made != round || dtype != o->keys[key].dtype) {
		dtype = o->keys[key].dtype;
		made = round;
		data_period(o, dtype, (uint32_t)o->phub.rank, round, period);
	}
	data_repeat(period, &o->keys[key], worker_phase(key), out);
}

void worker_fill_weights(const struct worker_oracle *oracle, unsigned key, void *out)
{
	uint32_t period[WORKER_PERIOD];

	worker_narrow(oracle->options->keys[key].dtype, oracle->weight, period, WORKER_PERIOD);
	data_repeat(period, &oracle->options->keys[key], worker_phase(key), out);
}

/* ---- jobs whose ranks come and go ---- */

static float data_factor(uint64_t round, uint64_t at)
{
	return (float)(1 + (round + at) % 5);
}

void worker_fill_bits(const struct worker_options *o, unsigned key, uint64_t round, void *out)
{
	float *to = out;

	for (uint64_t i = 0; i < o->keys[key].elements; i++)
		to[i] = (float)(1u << o->phub.rank) * data_factor(round, i);
}

uint64_t worker_check_bits(
	const struct worker_options *o, unsigned key, uint64_t round, const void *result, unsigned *ranks)
{
	const float *from = result;
	uint64_t wrong = 0;

	for (uint64_t i = 0; i < o->keys[key].elements; i++) {
		float bits = from[i] / data_factor(round, i);
		unsigned set = bits >= 1 && bits < (float)(1u << o->phub.world) ? (unsigned)bits : 0;

		wrong += (float)set * data_factor(round, i) != from[i] || !(set >> o->phub.rank & 1);
		*ranks &= set;
	}
	return wrong;
}

/* ---- the oracle ---- */

void worker_oracle_init(struct worker_oracle *oracle, const struct worker_options *options)
{
	float accumulator =
		options->phub.optimizer == PHUB_ADAGRAD ? (float)options->hyper.initial_accumulator_value : 0;

	memset(oracle, 0, sizeof(*oracle));
	oracle->options = options;
	for (uint32_t i = 0; i < WORKER_PERIOD; i++) {
		oracle->weight[i] = (float)((int)(mix_64(i) % 33) - 16) / 16; /* exact in every type */
		oracle->state[0][i] = accumulator;
	}
}

void worker_oracle_round(struct worker_oracle *oracle, uint64_t round, const struct phub_hyper *hyper)
{
	const struct worker_options *o = oracle->options;
	uint32_t world = (uint32_t)o->phub.world;
	float scale = o->phub.reduce == PHUB_MEAN ? (float)(1.0 / world) : 1;
	uint32_t period[WORKER_PERIOD];

	memset(oracle->slack, 0, sizeof(oracle->slack));
	for (uint32_t rank = 0; rank < world; rank++) {
		data_period(o, o->keys[0].dtype, rank, round, period);
		for (uint32_t i = 0; i < WORKER_PERIOD; i++) {
			float value = worker_widen(o->keys[0].dtype, period, i);

			oracle->gradient[i] = rank ? oracle->gradient[i] + value : value;
			if (o->normals && !o->phub.reproducible)
				oracle->slack[i] += fabsf(value) * (float)world * 0x1p-23f;
		}
	}
	for (uint32_t i = 0; i < WORKER_PERIOD; i++)
		oracle->gradient[i] *= scale;
	if (o->phub.optimizer == PHUB_NONE)
		return;
	worker_step(o->phub.optimizer, hyper, ++oracle->steps, oracle->gradient, oracle->weight, oracle->state[0],
		oracle->state[1], WORKER_PERIOD);
}

static uint64_t data_differ(
	const struct worker_oracle *oracle, const struct worker_key *key, unsigned phase, const void *result)
{
	const float *expected = oracle->options->phub.optimizer ? oracle->weight : oracle->gradient;
	uint32_t period[WORKER_PERIOD];
	uint64_t wrong = 0;

	worker_narrow(key->dtype, expected, period, WORKER_PERIOD);
	for (uint64_t i = 0; i < key->elements; i++) {
		size_t at = (i + phase) % WORKER_PERIOD;
		float got = worker_widen(key->dtype, result, i), want = worker_widen(key->dtype, period, at);

		wrong += !(fabsf(got - want) <= oracle->slack[at]);
	}
	return wrong;
}

uint64_t worker_check(const struct worker_oracle *oracle, unsigned index, const void *result)
{
	const struct worker_options *o = oracle->options;
	const struct worker_key *key = &o->keys[index];
	const float *expected = o->phub.optimizer ? oracle->weight : oracle->gradient;
	size_t size = worker_dtype_bytes(key->dtype);
	unsigned phase = worker_phase(index);
	uint32_t period[WORKER_PERIOD];

	worker_narrow(key->dtype, expected, period, WORKER_PERIOD);
	for (uint64_t i = 0; i < key->elements;) {
		size_t from = (i + phase) % WORKER_PERIOD;
		size_t n = WORKER_PERIOD - from;

		n = n < key->elements - i ? n : key->elements - i;
		if (memcmp((const char *)result + i * size, (char *)period + from * size, n * size) != 0)
			return data_differ(oracle, key, phase, result); /* -0 is 0, and slack is slack */
		i += n;
	}
	return 0;
}

enum { PLANT_BYTES = 32768 };

void worker_plant(const struct worker_options *o, struct worker_key *key)
{
	static uint8_t before[PLANT_BYTES];
	static bool kept;
	uint8_t now[PLANT_BYTES], *dst = key->dst;
	size_t size = worker_dtype_bytes(key->dtype);

	memcpy(now, dst, PLANT_BYTES);
	if (!kept) {
		kept = true; /* in the first round nothing is stale yet */
	} else if (o->plant == PLANT_STALE) {
		memcpy(dst, before, PLANT_BYTES);
	} else if (o->plant == PLANT_SWAPPED) {
		memcpy(dst, dst + PLANT_BYTES, PLANT_BYTES);
		memcpy(dst + PLANT_BYTES, now, PLANT_BYTES);
	} else if (o->plant == PLANT_DOUBLED) {
		for (size_t i = 0; i < PLANT_BYTES / size; i++) {
			float twice = worker_widen(key->dtype, dst, i) + worker_widen(key->dtype, key->src, i);

			worker_narrow(key->dtype, &twice, dst + i * size, 1);
		}
	}
	memcpy(before, now, PLANT_BYTES);
}

uint64_t worker_digest(uint64_t digest, const void *data, size_t bytes)
{
	const unsigned char *p = data;
	size_t i = 0;
	uint64_t word;

	for (; i + sizeof(word) <= bytes; i += sizeof(word)) {
		memcpy(&word, p + i, sizeof(word));
		digest = (digest ^ word) * 0x100000001b3ull;
		digest ^= digest >> 29;
	}
	for (; i < bytes; i++)
		digest = (digest ^ p[i]) * 0x100000001b3ull;
	return digest;
}

/* ---- the optimizers, as torch.optim has them, serially ---- */

struct data_coef {
	float rate, decay, shrink, decay0, gain0, decay1, gain1, correct1, eps;
};

static struct data_coef data_prepare(enum phub_optimizer kind, const struct phub_hyper *h, uint64_t step)
{
	struct data_coef c = {
		.rate = (float)-h->lr, .decay = (float)h->weight_decay, .shrink = 1, .eps = (float)h->eps};

	if (kind == PHUB_MOMENTUM || kind == PHUB_NESTEROV) {
		c.decay0 = (float)h->momentum;
		c.gain0 = (float)(1 - h->dampening);
	} else if (kind == PHUB_ADAGRAD) {
		c.rate = (float)-(h->lr / (1 + (double)(step - 1) * h->lr_decay));
	} else if (kind == PHUB_ADAM || kind == PHUB_ADAMW) {
		c.rate = (float)-(h->lr / (1 - pow(h->beta1, (double)step)));
		c.decay0 = (float)h->beta1;
		c.gain0 = (float)(1 - h->beta1);
		c.decay1 = (float)h->beta2;
		c.gain1 = (float)(1 - h->beta2);
		c.correct1 = (float)(1 / sqrt(1 - pow(h->beta2, (double)step)));
	}
	if (kind == PHUB_ADAMW) {
		c.decay = 0;
		c.shrink = (float)(1 - h->lr * h->weight_decay);
	}
	return c;
}

/* One element. Every operation is rounded to fp32: build without contraction. */
static void data_step_one(
	enum phub_optimizer kind, const struct data_coef *c, bool first, float g, float *w, float *s0, float *s1)
{
	if (c->decay != 0)
		g = g + c->decay * *w;
	switch (kind) {
	case PHUB_NONE:
		break;
	case PHUB_SGD:
		*w = *w + c->rate * g;
		break;
	case PHUB_MOMENTUM:
		*s0 = first ? g : c->decay0 * *s0 + c->gain0 * g;
		*w = *w + c->rate * *s0;
		break;
	case PHUB_NESTEROV:
		*s0 = first ? g : c->decay0 * *s0 + c->gain0 * g;
		*w = *w + c->rate * (g + c->decay0 * *s0);
		break;
	case PHUB_ADAGRAD:
		*s0 = *s0 + g * g;
		*w = *w + (c->rate * g) / (sqrtf(*s0) + c->eps);
		break;
	case PHUB_ADAM:
	case PHUB_ADAMW:
		*w = c->shrink * *w;
		*s0 = c->decay0 * *s0 + c->gain0 * g;
		*s1 = c->decay1 * *s1 + (c->gain1 * g) * g;
		*w = *w + (c->rate * *s0) / (c->correct1 * sqrtf(*s1) + c->eps);
		break;
	}
}

void worker_step(enum phub_optimizer kind, const struct phub_hyper *hyper, uint64_t step, const float *gradient,
	float *weight, float *state0, float *state1, size_t n)
{
	struct data_coef c = data_prepare(kind, hyper, step);

	for (size_t i = 0; i < n; i++)
		data_step_one(kind, &c, step == 1, gradient[i], &weight[i], &state0[i], &state1[i]);
}

/* ---- types ---- */

static uint16_t data_to_bf16(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	if ((bits & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)((bits >> 16) | 0x40u);
	return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

static uint16_t data_to_f16(float value)
{
	uint32_t bits, sign, mantissa, shift, half, rest;
	int exponent;

	memcpy(&bits, &value, sizeof(bits));
	sign = (bits >> 16) & 0x8000u;
	exponent = (int)((bits >> 23) & 0xffu) - 127;
	mantissa = bits & 0x7fffffu;
	if (exponent == 128)
		return (uint16_t)(sign | 0x7c00u | (mantissa ? 0x200u | (mantissa >> 13) : 0));
	if (exponent > 15)
		return (uint16_t)(sign | 0x7c00u);
	if (exponent < -25)
		return (uint16_t)sign;
	/* 1.mantissa, shifted to the right by so much; carries go into the exponent by themselves. */
	mantissa |= 0x800000u;
	shift = exponent < -14 ? (uint32_t)(-1 - exponent) : 13;
	half = mantissa >> shift;
	rest = mantissa & ((1u << shift) - 1);
	half += exponent < -14 ? 0 : (uint32_t)(exponent + 14) << 10;
	if (rest > 1u << (shift - 1) || (rest == 1u << (shift - 1) && (half & 1)))
		half++;
	return (uint16_t)(sign | half);
}

void worker_narrow(enum phub_dtype dtype, const float *from, void *to, size_t n)
{
	if (dtype == PHUB_F32) {
		memcpy(to, from, n * sizeof(*from));
		return;
	}
	for (size_t i = 0; i < n; i++) {
		uint16_t half = dtype == PHUB_F16 ? data_to_f16(from[i]) : data_to_bf16(from[i]);

		memcpy((char *)to + 2 * i, &half, sizeof(half));
	}
}

static float data_from_f16(uint16_t half)
{
	float sign = half & 0x8000u ? -1.0f : 1.0f;
	int exponent = (half >> 10) & 0x1f;
	float mantissa = (float)(half & 0x3ffu);

	if (exponent == 31)
		return mantissa ? NAN : sign * INFINITY;
	if (exponent == 0)
		return sign * ldexpf(mantissa, -24);
	return sign * ldexpf(mantissa + 1024, exponent - 25);
}

float worker_widen(enum phub_dtype dtype, const void *from, size_t index)
{
	uint32_t bits;
	uint16_t half;
	float value;

	if (dtype == PHUB_F32) {
		memcpy(&value, (const char *)from + 4 * index, sizeof(value));
		return value;
	}
	memcpy(&half, (const char *)from + 2 * index, sizeof(half));
	if (dtype == PHUB_F16)
		return data_from_f16(half);
	bits = (uint32_t)half << 16;
	memcpy(&value, &bits, sizeof(value));
	return value;
}
