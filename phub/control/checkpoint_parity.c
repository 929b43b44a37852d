/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/control/checkpoint_parity.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "phub/control/checkpoint.h"

#ifdef PHUB_ISAL

#include <isa-l/erasure_code.h>

enum {
	PARITY_MAX = CHECKPOINT_TARGETS_MAX,
	PARITY_TABLE_BYTES = 32, /* of one coefficient, expanded */
};

struct checkpoint_parity {
	unsigned k, m;
	uint32_t good; /* what `rebuild` is for; 0: nothing yet */
	uint8_t matrix[PARITY_MAX * PARITY_MAX];
	uint8_t encode[PARITY_MAX * PARITY_MAX * PARITY_TABLE_BYTES];
	uint8_t rebuild[PARITY_MAX * PARITY_MAX * PARITY_TABLE_BYTES];
};

int checkpoint_parity_check(unsigned m, struct err *e)
{
	(void)m;
	(void)e;
	return 0;
}

int checkpoint_parity_create(unsigned k, unsigned m, struct checkpoint_parity **out, struct err *e)
{
	struct checkpoint_parity *p = calloc(1, sizeof(*p));

	assert(k >= 1 && k + m <= PARITY_MAX);
	if (!p)
		return err_set(e, -ENOMEM, "no memory for the parity of a checkpoint");
	p->k = k;
	p->m = m;
	gf_gen_cauchy1_matrix(p->matrix, (int)(k + m), (int)k);
	if (m)
		ec_init_tables((int)k, (int)m, p->matrix + k * k, p->encode);
	*out = p;
	return 0;
}

void checkpoint_parity_destroy(struct checkpoint_parity *p)
{
	free(p);
}

void checkpoint_parity_encode(struct checkpoint_parity *p, uint8_t **stripes, uint32_t bytes)
{
	if (p->m)
		ec_encode_data((int)bytes, (int)p->k, (int)p->m, p->encode, stripes, stripes + p->k);
}

/* The first k good stripes are rows of the matrix; its inverse has a row for each stripe of data. */
static void parity_prepare(struct checkpoint_parity *p, uint32_t good)
{
	uint8_t rows[PARITY_MAX * PARITY_MAX], inverse[PARITY_MAX * PARITY_MAX], wanted[PARITY_MAX * PARITY_MAX];
	unsigned have = 0, missing = 0, k = p->k;
	int rc;

	for (unsigned i = 0; i < k + p->m && have < k; i++)
		if (good >> i & 1)
			memcpy(rows + have++ * k, p->matrix + i * k, k);
	assert(have == k);
	rc = gf_invert_matrix(rows, inverse, (int)k);
	assert(rc == 0); /* of a Cauchy matrix all of these can be inverted */
	(void)rc;
	for (unsigned i = 0; i < k; i++)
		if (!(good >> i & 1))
			memcpy(wanted + missing++ * k, inverse + i * k, k);
	ec_init_tables((int)k, (int)missing, wanted, p->rebuild);
	p->good = good;
}

void checkpoint_parity_rebuild(struct checkpoint_parity *p, uint8_t **stripes, uint32_t bytes, uint32_t good)
{
	uint8_t *from[PARITY_MAX], *to[PARITY_MAX];
	unsigned have = 0, missing = 0;

	if (p->good != good)
		parity_prepare(p, good);
	for (unsigned i = 0; i < p->k + p->m && have < p->k; i++)
		if (good >> i & 1)
			from[have++] = stripes[i];
	for (unsigned i = 0; i < p->k; i++)
		if (!(good >> i & 1))
			to[missing++] = stripes[i];
	ec_encode_data((int)bytes, (int)p->k, (int)missing, p->rebuild, from, to);
}

#else

struct checkpoint_parity {
	unsigned k;
};

int checkpoint_parity_check(unsigned m, struct err *e)
{
	return m == 0 ? 0
		      : err_set(e, -ENOTSUP,
				"parity of checkpoints needs ISA-L, which this build is without: "
				"install libisal-dev and build it again");
}

int checkpoint_parity_create(unsigned k, unsigned m, struct checkpoint_parity **out, struct err *e)
{
	(void)m;
	*out = calloc(1, sizeof(**out));
	if (!*out)
		return err_set(e, -ENOMEM, "no memory for the parity of a checkpoint");
	(*out)->k = k;
	return 0;
}

void checkpoint_parity_destroy(struct checkpoint_parity *p)
{
	free(p);
}

void checkpoint_parity_encode(struct checkpoint_parity *p, uint8_t **stripes, uint32_t bytes)
{
	(void)p;
	(void)stripes;
	(void)bytes;
}

void checkpoint_parity_rebuild(struct checkpoint_parity *p, uint8_t **stripes, uint32_t bytes, uint32_t good)
{
	(void)p;
	(void)stripes;
	(void)bytes;
	(void)good;
	assert(!"parity without ISA-L");
}

#endif
