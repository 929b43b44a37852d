/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of measured kernels, and how each is called.
 */
#include "phub/cli/kernel_cases.h"

const struct kernel_case kernel_cases[] = {
	{"sum_f32", KERNEL_SUM, DTYPE_F32, OPTIMIZER_NONE, false, true},
	{"sum_f16", KERNEL_SUM, DTYPE_F16, OPTIMIZER_NONE, false, true},
	{"sum_bf16", KERNEL_SUM, DTYPE_BF16, OPTIMIZER_NONE, false, true},
	{"step_sgd", KERNEL_STEP, DTYPE_F32, OPTIMIZER_SGD, false, true},
	{"step_sgd_f16", KERNEL_STEP, DTYPE_F16, OPTIMIZER_SGD, false, false},
	{"step_sgd_bf16", KERNEL_STEP, DTYPE_BF16, OPTIMIZER_SGD, false, false},
	{"step_momentum", KERNEL_STEP, DTYPE_F32, OPTIMIZER_MOMENTUM, false, true},
	{"step_momentum_f16", KERNEL_STEP, DTYPE_F16, OPTIMIZER_MOMENTUM, false, false},
	{"step_momentum_bf16", KERNEL_STEP, DTYPE_BF16, OPTIMIZER_MOMENTUM, false, false},
	{"step_nesterov", KERNEL_STEP, DTYPE_F32, OPTIMIZER_NESTEROV, false, true},
	{"step_nesterov_f16", KERNEL_STEP, DTYPE_F16, OPTIMIZER_NESTEROV, false, false},
	{"step_nesterov_bf16", KERNEL_STEP, DTYPE_BF16, OPTIMIZER_NESTEROV, false, false},
	{"step_adagrad", KERNEL_STEP, DTYPE_F32, OPTIMIZER_ADAGRAD, false, true},
	{"step_adagrad_f16", KERNEL_STEP, DTYPE_F16, OPTIMIZER_ADAGRAD, false, false},
	{"step_adagrad_bf16", KERNEL_STEP, DTYPE_BF16, OPTIMIZER_ADAGRAD, false, false},
	{"step_adam", KERNEL_STEP, DTYPE_F32, OPTIMIZER_ADAM, false, true},
	{"step_adam_f16", KERNEL_STEP, DTYPE_F16, OPTIMIZER_ADAM, false, false},
	{"step_adam_bf16", KERNEL_STEP, DTYPE_BF16, OPTIMIZER_ADAM, false, false},
	{"step_adamw", KERNEL_STEP, DTYPE_F32, OPTIMIZER_ADAMW, false, true},
	{"step_adamw_f16", KERNEL_STEP, DTYPE_F16, OPTIMIZER_ADAMW, false, false},
	{"step_adamw_bf16", KERNEL_STEP, DTYPE_BF16, OPTIMIZER_ADAMW, false, false},
	{"store_f32", KERNEL_STORE, DTYPE_F32, OPTIMIZER_NONE, true, true},
	{"store_f16", KERNEL_STORE, DTYPE_F16, OPTIMIZER_NONE, true, false},
	{"store_bf16", KERNEL_STORE, DTYPE_BF16, OPTIMIZER_NONE, true, false},
	{"add_f32", KERNEL_ADD, DTYPE_F32, OPTIMIZER_NONE, true, true},
	{"add_f16", KERNEL_ADD, DTYPE_F16, OPTIMIZER_NONE, true, false},
	{"add_bf16", KERNEL_ADD, DTYPE_BF16, OPTIMIZER_NONE, true, false},
	{"find_nonfinite_f32", KERNEL_SCAN, DTYPE_F32, OPTIMIZER_NONE, true, true},
	{"find_nonfinite_f16", KERNEL_SCAN, DTYPE_F16, OPTIMIZER_NONE, true, false},
	{"find_nonfinite_bf16", KERNEL_SCAN, DTYPE_BF16, OPTIMIZER_NONE, true, false},
	{"zero_nonfinite_f32", KERNEL_ZERO, DTYPE_F32, OPTIMIZER_NONE, true, false},
	{"zero_nonfinite_f16", KERNEL_ZERO, DTYPE_F16, OPTIMIZER_NONE, true, false},
	{"zero_nonfinite_bf16", KERNEL_ZERO, DTYPE_BF16, OPTIMIZER_NONE, true, false},
	{NULL, KERNEL_SUM, DTYPE_F32, OPTIMIZER_NONE, false, false},
};

/* An optimizer's new weights are the result when that is fp32, else they are written beside it. */
static bool kernel_case_has_result(const struct kernel_case *c)
{
	return c->dtype != DTYPE_F32;
}

unsigned kernel_case_inout(const struct kernel_case *c)
{
	if (c->op == KERNEL_STEP)
		return 1 + optimizer_state_count(c->optimizer);
	return c->op == KERNEL_ADD;
}

unsigned kernel_case_out(const struct kernel_case *c)
{
	if (c->op == KERNEL_STEP)
		return kernel_case_has_result(c);
	return c->op == KERNEL_SUM || c->op == KERNEL_STORE || c->op == KERNEL_ZERO;
}

unsigned kernel_case_width(const struct kernel_case *c, unsigned sources, unsigned array)
{
	bool fp32 = array >= sources && (array < sources + kernel_case_inout(c) || c->op == KERNEL_STORE);

	return fp32 ? (unsigned)(dtype_size(DTYPE_F32) / dtype_size(c->dtype)) : 1;
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
	step.sum.out = kernel_case_has_result(c) ? inout[kernel_case_inout(c)] : step.weight;
	for (unsigned s = 0; s < optimizer_state_count(c->optimizer); s++)
		step.state[s] = inout[1 + s];
	kernels->step(&step);
}

bool kernel_case_streams(const struct kernel_case *c)
{
	return c->op == KERNEL_SUM || (c->op == KERNEL_STEP && kernel_case_has_result(c));
}

void kernel_case_call(const struct kernel_case *c, const struct kernels *kernels, enum stores stores, unsigned sources,
	void *const *arrays, size_t bytes)
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
		.stores = stores,
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
	case KERNEL_ZERO:
		(void)kernels->zero_nonfinite(behind[0], arrays[0], c->dtype, sum.count);
		break;
	}
}
