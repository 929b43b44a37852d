/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of measured kernels, and how each is called.
 */
#include "phub/cli/kernel_cases.h"

const struct kernel_case kernel_cases[] = {
	{"sum_f32", KERNEL_SUM, DTYPE_F32, OPTIMIZER_NONE, false},
	{"sum_f16", KERNEL_SUM, DTYPE_F16, OPTIMIZER_NONE, false},
	{"sum_bf16", KERNEL_SUM, DTYPE_BF16, OPTIMIZER_NONE, false},
	{"step_sgd", KERNEL_STEP, DTYPE_F32, OPTIMIZER_SGD, false},
	{"step_momentum", KERNEL_STEP, DTYPE_F32, OPTIMIZER_MOMENTUM, false},
	{"step_nesterov", KERNEL_STEP, DTYPE_F32, OPTIMIZER_NESTEROV, false},
	{"step_adagrad", KERNEL_STEP, DTYPE_F32, OPTIMIZER_ADAGRAD, false},
	{"step_adam", KERNEL_STEP, DTYPE_F32, OPTIMIZER_ADAM, false},
	{"step_adamw", KERNEL_STEP, DTYPE_F32, OPTIMIZER_ADAMW, false},
	{"store_f32", KERNEL_STORE, DTYPE_F32, OPTIMIZER_NONE, true},
	{"add_f32", KERNEL_ADD, DTYPE_F32, OPTIMIZER_NONE, true},
	{"find_nonfinite_f32", KERNEL_SCAN, DTYPE_F32, OPTIMIZER_NONE, true},
	{NULL, KERNEL_SUM, DTYPE_F32, OPTIMIZER_NONE, false},
};

unsigned kernel_case_inout(const struct kernel_case *c)
{
	if (c->op == KERNEL_STEP)
		return 1 + optimizer_state_count(c->optimizer);
	return c->op == KERNEL_ADD;
}

unsigned kernel_case_out(const struct kernel_case *c)
{
	return c->op == KERNEL_SUM || c->op == KERNEL_STORE;
}

static void kernel_case_step(
	const struct kernel_case *c, const struct kernels *kernels, const struct sum_args *sum, void *const *inout)
{
	struct optimizer_hyper hyper;
	struct optimizer_coef coef;
	struct step_args step = {.sum = *sum, .coef = &coef, .weight = inout[0]};

	optimizer_hyper_default(c->optimizer, &hyper);
	hyper.weight_decay = 1e-4;
	optimizer_prepare(c->optimizer, &hyper, 100, &coef);
	step.sum.out = step.weight;
	for (unsigned s = 0; s < optimizer_state_count(c->optimizer); s++)
		step.state[s] = inout[1 + s];
	kernels->step(&step);
}

void kernel_case_call(
	const struct kernel_case *c, const struct kernels *kernels, unsigned sources, void *const *arrays, size_t bytes)
{
	void *const *behind = arrays + sources;
	const void *src[KERNEL_SOURCES_MAX];
	struct sum_args sum = {
		.src = src,
		.src_count = sources,
		.src_dtype = c->dtype,
		.out_dtype = c->dtype,
		.scale = 1.0f,
		.count = bytes / dtype_size(c->dtype),
	};

	for (unsigned s = 0; s < sources; s++)
		src[s] = arrays[s];
	switch (c->op) {
	case KERNEL_SUM:
		sum.out = behind[0];
		kernels->sum(&sum);
		break;
	case KERNEL_STEP:
		kernel_case_step(c, kernels, &sum, behind);
		break;
	case KERNEL_STORE:
		kernels->store(behind[0], arrays[0], c->dtype, sum.count);
		break;
	case KERNEL_ADD:
		kernels->add(behind[0], arrays[0], c->dtype, sum.count);
		break;
	case KERNEL_SCAN:
		(void)kernels->find_nonfinite(arrays[0], c->dtype, sum.count);
		break;
	}
}
