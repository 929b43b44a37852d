/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks what workers say about a job before anything is built from it. Pure.
 */
#include "phub/spec.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

const char *spec_optimizer_name(unsigned kind)
{
	return optimizer_kind_valid(kind) ? optimizer_kind_name((enum optimizer_kind)kind) : "?";
}

const char *spec_sync_name(unsigned sync)
{
	static const char *const names[] = {"bsp", "ssp", "async"};

	return sync < sizeof(names) / sizeof(names[0]) ? names[sync] : "?";
}

const char *spec_nan_name(unsigned nan)
{
	static const char *const names[] = {"pass", "zero", "fail"};

	return nan < sizeof(names) / sizeof(names[0]) ? names[nan] : "?";
}

const char *spec_lost_name(unsigned lost)
{
	static const char *const names[] = {"fail", "shrink", "wait"};

	return lost < sizeof(names) / sizeof(names[0]) ? names[lost] : "?";
}

int spec_hyper_check(enum optimizer_kind kind, uint32_t group, const struct optimizer_hyper *hyper, struct err *e)
{
	char why[160] = "";

	if (optimizer_hyper_check(kind, hyper, why, sizeof(why)) < 0)
		return err_set(e, -EINVAL, "parameter group %u: %s", group, why);
	return 0;
}

static int spec_check_sync(const struct spec *s, struct err *e)
{
	if ((unsigned)s->sync > SYNC_ASYNC)
		return err_set(e, -EINVAL, "sync %u is unknown; allowed are 0 (bsp), 1 (ssp) and 2 (async)",
			(unsigned)s->sync);
	if (!spec_stepwise(s))
		return 0;
	if (s->optimizer == OPTIMIZER_NONE)
		return err_set(e, -ENOTSUP, "sync %s needs an optimizer: each push is a step; name one, or use bsp",
			spec_sync_name(s->sync));
	if (s->reproducible)
		return err_set(e, -ENOTSUP,
			"reproducible needs sync bsp: with %s the order of arrival decides the weights",
			spec_sync_name(s->sync));
	return 0;
}

static int spec_check_members(const struct spec *s, struct err *e)
{
	if ((unsigned)s->lost > LOST_WAIT)
		return err_set(e, -EINVAL,
			"policy %u for lost workers is unknown; allowed are 0 (fail), 1 (shrink) and 2 (wait)",
			(unsigned)s->lost);
	if (s->quorum == 0)
		return 0;
	if (s->quorum > s->world)
		return err_set(e, -EINVAL, "a quorum of %u in a world of %u; allowed are 1 to %u, or 0 for all",
			s->quorum, s->world, s->world);
	if (spec_stepwise(s))
		return err_set(e, -ENOTSUP,
			"a quorum needs sync bsp: with %s each push is a step by itself, and no round closes",
			spec_sync_name((unsigned)s->sync));
	if (s->reproducible)
		return err_set(
			e, -ENOTSUP, "a quorum needs sums that need not be reproducible: who comes first decides");
	if (s->optimizer == OPTIMIZER_NONE)
		return err_set(e, -ENOTSUP,
			"a quorum needs an optimizer: who comes late gets the weights, and a sum is over by then");
	return 0;
}

int spec_check(const struct spec *s, struct err *e)
{
	int rc;

	if (s->world < 1 || s->world > WIRE_WORLD_MAX)
		return err_set(e, -EINVAL, "a world of %u; allowed are 1 to %u workers", s->world, WIRE_WORLD_MAX);
	if (!optimizer_kind_valid((unsigned)s->optimizer))
		return err_set(e, -EINVAL, "optimizer %u is unknown; allowed are 0 (none) to %u (adamw)",
			(unsigned)s->optimizer, OPTIMIZER_COUNT - 1);
	if ((unsigned)s->nan > NAN_FAIL)
		return err_set(e, -EINVAL, "nan policy %u is unknown; allowed are 0 (pass), 1 (zero) and 2 (fail)",
			(unsigned)s->nan);
	if (s->seal < SEAL_GMAC || s->seal > SEAL_NONE)
		return err_set(e, -EINVAL, "seal %u is unknown; allowed are 0 (gmac), 1 (crc) and 2 (none)",
			(unsigned)s->seal - SEAL_GMAC);
	if (s->group_count < 1 || s->group_count > SPEC_GROUPS_MAX)
		return err_set(e, -EINVAL, "%u parameter groups; allowed are 1 to %u", s->group_count, SPEC_GROUPS_MAX);
	rc = spec_check_sync(s, e);
	if (rc == 0)
		rc = spec_check_members(s, e);
	for (uint32_t i = 0; rc == 0 && i < s->group_count; i++)
		rc = spec_hyper_check(s->optimizer, i, &s->groups[i], e);
	return rc;
}

static const struct spec_parameter {
	const char *name;
	size_t offset;
} spec_parameters[] = {
	{"lr", offsetof(struct optimizer_hyper, lr)},
	{"momentum", offsetof(struct optimizer_hyper, momentum)},
	{"dampening", offsetof(struct optimizer_hyper, dampening)},
	{"weight_decay", offsetof(struct optimizer_hyper, weight_decay)},
	{"lr_decay", offsetof(struct optimizer_hyper, lr_decay)},
	{"initial_accumulator_value", offsetof(struct optimizer_hyper, initial_accumulator_value)},
	{"beta1", offsetof(struct optimizer_hyper, beta1)},
	{"beta2", offsetof(struct optimizer_hyper, beta2)},
	{"eps", offsetof(struct optimizer_hyper, eps)},
};

const char *spec_hyper_differs(
	const struct optimizer_hyper *a, const struct optimizer_hyper *b, unsigned *at, double *in_a, double *in_b)
{
	for (size_t i = at ? *at : 0; i < sizeof(spec_parameters) / sizeof(spec_parameters[0]); i++) {
		memcpy(in_a, (const char *)a + spec_parameters[i].offset, sizeof(*in_a));
		memcpy(in_b, (const char *)b + spec_parameters[i].offset, sizeof(*in_b));
		if (at)
			*at = (unsigned)i + 1;
		if (*in_a < *in_b || *in_a > *in_b)
			return spec_parameters[i].name;
	}
	return NULL;
}

uint32_t spec_lift_scale(const struct spec *s)
{
	for (uint32_t i = 0; i < s->plan.chunk_count; i++)
		if (dtype_size(s->lift) > chunking_dtype_bytes(s->plan.chunks[i].dtype))
			return 2;
	return 1;
}
