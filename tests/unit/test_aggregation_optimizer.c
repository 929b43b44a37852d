/* SPDX-License-Identifier: Apache-2.0
 *
 * Optimizers: names, defaults, every error of the checks, and 100 steps of each kind against PyTorch's formulas in
 * double. With --trace it is instead a filter that tests/system/test_optimizer_torch.py drives: it reads weights,
 * hyper-parameters and gradients and writes the weights after every step (see trace_run()).
 */
#include <errno.h>
#include <math.h>

#include "tests/unit/test_aggregation.h"

#define COUNT   777 /* full blocks, single vectors and a tail, for every width */
#define STEPS   100
#define WORKERS 4

/* One run of an optimizer, as a box holds it. */
struct run {
	const struct kernels *kernels;
	enum optimizer_kind kind;
	size_t count;
	uint64_t step;
	float *weight, *state[OPTIMIZER_STATE_MAX];
};

static void *must_alloc(size_t count, size_t size)
{
	void *memory = calloc(count ? count : 1, size);

	if (!memory)
		abort();
	return memory;
}

static void run_init(struct run *run, const struct kernels *kernels, enum optimizer_kind kind,
	const struct optimizer_hyper *hyper, size_t count)
{
	*run = (struct run){.kernels = kernels, .kind = kind, .count = count};
	run->weight = must_alloc(count, sizeof(float));
	for (unsigned s = 0; s < optimizer_state_count(kind); s++) {
		run->state[s] = must_alloc(count, sizeof(float));
		optimizer_state_init(kind, hyper, s, run->state[s], count);
	}
}

static void run_fini(struct run *run)
{
	free(run->weight);
	free(run->state[0]);
	free(run->state[1]);
}

/* One step on the mean of the gradients. */
static void run_step(struct run *run, const struct optimizer_hyper *hyper, const void *const *gradients, size_t workers)
{
	struct optimizer_coef coef;
	struct step_args args = {
		.sum = {.src = gradients,
			.src_count = workers,
			.scale = (float)(1.0 / (double)workers),
			.count = run->count,
			.out = run->weight},
		.coef = &coef,
		.weight = run->weight,
		.state = {run->state[0], run->state[1]},
	};

	optimizer_prepare(run->kind, hyper, ++run->step, &coef);
	run->kernels->step(&args);
}

/* torch/optim/{sgd,adagrad,adam,adamw}.py for one element, in double. */
static void reference_sgd(
	enum optimizer_kind kind, const struct optimizer_hyper *h, uint64_t step, double grad, double *w, double *state)
{
	grad += h->weight_decay * *w;
	if (kind != OPTIMIZER_SGD) {
		state[0] = step == 1 ? grad : h->momentum * state[0] + (1 - h->dampening) * grad;
		grad = kind == OPTIMIZER_NESTEROV ? grad + h->momentum * state[0] : state[0];
	}
	*w -= h->lr * grad;
}

static void reference_adagrad(const struct optimizer_hyper *h, uint64_t step, double grad, double *w, double *state)
{
	grad += h->weight_decay * *w;
	state[0] += grad * grad;
	*w -= h->lr / (1 + (double)(step - 1) * h->lr_decay) * grad / (sqrt(state[0]) + h->eps);
}

static void reference_adam(
	enum optimizer_kind kind, const struct optimizer_hyper *h, uint64_t step, double grad, double *w, double *state)
{
	double denominator;

	if (kind == OPTIMIZER_ADAMW)
		*w *= 1 - h->lr * h->weight_decay;
	else
		grad += h->weight_decay * *w;
	state[0] = h->beta1 * state[0] + (1 - h->beta1) * grad;
	state[1] = h->beta2 * state[1] + (1 - h->beta2) * grad * grad;
	denominator = sqrt(state[1]) / sqrt(1 - pow(h->beta2, (double)step)) + h->eps;
	*w -= h->lr / (1 - pow(h->beta1, (double)step)) * state[0] / denominator;
}

static void reference_step(
	enum optimizer_kind kind, const struct optimizer_hyper *h, uint64_t step, double grad, double *w, double *state)
{
	if (kind <= OPTIMIZER_NESTEROV)
		reference_sgd(kind, h, step, grad, w, state);
	else if (kind == OPTIMIZER_ADAGRAD)
		reference_adagrad(h, step, grad, w, state);
	else
		reference_adam(kind, h, step, grad, w, state);
}

/* A schedule that changes lr every step; variants differ in what else they use. */
static void draw_hyper(enum optimizer_kind kind, int variant, uint64_t step, struct optimizer_hyper *hyper)
{
	optimizer_hyper_default(kind, hyper);
	hyper->lr = (kind <= OPTIMIZER_NESTEROV ? 0.02 : 0.01) * (1 + cos((double)step / 30)) / 2 + 1e-4;
	if (variant & 1)
		hyper->weight_decay = 0.03;
	if (variant & 2) {
		hyper->dampening = kind == OPTIMIZER_MOMENTUM ? 0.3 : 0;
		hyper->momentum = hyper->momentum > 0 ? 0.7 + 0.001 * (double)step : 0;
		hyper->lr_decay = 0.01;
		hyper->initial_accumulator_value = 0.1;
		hyper->beta1 = 0.8;
		hyper->beta2 = 0.99;
		hyper->eps = 1e-6;
	}
}

/* Largest distance from the double reference over all steps, relative to the largest weight. */
static double reference_distance(const struct kernels *kernels, enum optimizer_kind kind, int variant)
{
	static float gradient[WORKERS][COUNT];
	const void *const gradients[WORKERS] = {gradient[0], gradient[1], gradient[2], gradient[3]};
	static double w[COUNT], state[COUNT][OPTIMIZER_STATE_MAX];
	struct random r = {11};
	struct optimizer_hyper hyper;
	struct run run;
	double worst = 0, largest = 0;

	draw_hyper(kind, variant, 1, &hyper);
	run_init(&run, kernels, kind, &hyper, COUNT);
	random_fill(&r, run.weight, DTYPE_F32, COUNT, 0);
	for (size_t i = 0; i < COUNT; i++) {
		w[i] = (double)run.weight[i];
		state[i][0] = kind == OPTIMIZER_ADAGRAD ? hyper.initial_accumulator_value : 0;
		state[i][1] = 0;
	}
	for (uint64_t step = 1; step <= STEPS; step++) {
		random_fill(&r, gradient, DTYPE_F32, WORKERS * COUNT, 0);
		draw_hyper(kind, variant, step, &hyper);
		run_step(&run, &hyper, gradients, WORKERS);
		for (size_t i = 0; i < COUNT; i++) {
			double sum = 0;

			for (size_t g = 0; g < WORKERS; g++)
				sum += (double)gradient[g][i];
			reference_step(kind, &hyper, step, sum / WORKERS, &w[i], state[i]);
			worst = fmax(worst, fabs(w[i] - (double)run.weight[i]));
			largest = fmax(largest, fabs(w[i]));
		}
	}
	run_fini(&run);
	return worst / largest;
}

static void test_follows_pytorch_formulas(void **state)
{
	const double bound = 2e-6; /* PyTorch's own float32 is up to 1.3e-6 away in the test beside PyTorch */
	const struct kernels *kernels;

	for (size_t k = 0; (kernels = dispatch_at(k)); k++) {
		for (unsigned kind = OPTIMIZER_SGD; kind < OPTIMIZER_COUNT; kind++) {
			for (int variant = 0; variant < 4; variant++) {
				double distance = reference_distance(kernels, (enum optimizer_kind)kind, variant);

				if (k == 0 || !(distance < bound))
					printf("%-8s variant %d: %.2g of the largest weight\n",
						optimizer_kind_name((enum optimizer_kind)kind), variant, distance);
				assert_true(distance < bound);
			}
		}
	}
}

/* Without weight decay an infinite weight stays what it is, and a first step does not read the momentum buffer. */
static void test_unused_terms_are_skipped(void **state)
{
	const struct kernels *kernels;

	for (size_t k = 0; (kernels = dispatch_at(k)); k++) {
		for (unsigned kind = OPTIMIZER_SGD; kind < OPTIMIZER_COUNT; kind++) {
			float gradient[40];
			const void *const gradients[1] = {gradient};
			struct optimizer_hyper hyper;
			struct run run;

			optimizer_hyper_default((enum optimizer_kind)kind, &hyper);
			run_init(&run, kernels, (enum optimizer_kind)kind, &hyper, 40);
			for (size_t i = 0; i < 40; i++) {
				gradient[i] = 1.0f;
				run.weight[i] = i % 2 ? -INFINITY : 1.0f;
				if (kind == OPTIMIZER_MOMENTUM || kind == OPTIMIZER_NESTEROV)
					run.state[0][i] = NAN;
			}
			run_step(&run, &hyper, gradients, 1);
			for (size_t i = 0; i < 40; i++)
				assert_true(i % 2 ? run.weight[i] == -INFINITY : run.weight[i] < 1.0f);
			run_fini(&run);
		}
	}
}

static void test_states(void **state)
{
	static const unsigned counts[OPTIMIZER_COUNT] = {0, 0, 1, 1, 1, 2, 2};
	struct optimizer_hyper hyper;
	float values[3] = {7, 7, 7};

	for (unsigned kind = 0; kind < OPTIMIZER_COUNT; kind++) {
		optimizer_hyper_default((enum optimizer_kind)kind, &hyper);
		hyper.initial_accumulator_value = 0.5;
		assert_int_equal(optimizer_state_count((enum optimizer_kind)kind), counts[kind]);
		for (unsigned s = 0; s < counts[kind]; s++) {
			float expected = kind == OPTIMIZER_ADAGRAD ? 0.5f : 0.0f;

			values[0] = values[1] = 9;
			optimizer_state_init((enum optimizer_kind)kind, &hyper, s, values, 2);
			assert_true(values[0] == expected && values[1] == expected && values[2] == 7);
		}
	}
	assert_int_equal(optimizer_state_count((enum optimizer_kind)99), 0);
}

static void test_names(void **state)
{
	static const char *const two_phase[] = {"lars", "lamb", "clip_global_norm"};
	enum optimizer_kind kind = OPTIMIZER_SGD;
	char error[256];

	for (unsigned k = 0; k < OPTIMIZER_COUNT; k++) {
		assert_int_equal(
			optimizer_kind_parse(optimizer_kind_name((enum optimizer_kind)k), &kind, error, sizeof(error)),
			0);
		assert_int_equal(kind, k);
	}
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(optimizer_kind_parse(two_phase[i], &kind, error, sizeof(error)), -ENOTSUP);
		assert_true(strstr(error, two_phase[i]) && strstr(error, "two-phase") && strstr(error, "nesterov"));
	}
	assert_int_equal(optimizer_kind_parse("Adam", &kind, error, sizeof(error)), -EINVAL);
	assert_true(strstr(error, "\"Adam\"") && strstr(error, "none, sgd, momentum, nesterov, adagrad, adam, adamw"));
	assert_int_equal(optimizer_kind_parse("", &kind, NULL, 0), -EINVAL);
	assert_int_equal(kind, OPTIMIZER_ADAMW); /* written only on success */
	assert_string_equal(optimizer_kind_name((enum optimizer_kind)99), "invalid");
	assert_true(optimizer_kind_valid(6) && !optimizer_kind_valid(7));
}

/* One value out of range each; the message names the parameter and the number. */
static void test_hyper_errors(void **state)
{
	static const struct {
		enum optimizer_kind kind;
		size_t field; /* index of the double in struct optimizer_hyper */
		double value;
		const char *text;
	} bad[] = {
#define FIELD(name) (offsetof(struct optimizer_hyper, name) / sizeof(double))
		{OPTIMIZER_SGD, FIELD(lr), -0.5, "lr is -0.5"},
		{OPTIMIZER_SGD, FIELD(lr), NAN, "lr is nan"},
		{OPTIMIZER_ADAM, FIELD(lr), INFINITY, "lr is inf"},
		{OPTIMIZER_ADAMW, FIELD(weight_decay), -1, "weight_decay is -1"},
		{OPTIMIZER_MOMENTUM, FIELD(momentum), 0, "momentum is 0"},
		{OPTIMIZER_NESTEROV, FIELD(momentum), -0.1, "momentum is -0.1"},
		{OPTIMIZER_MOMENTUM, FIELD(dampening), NAN, "dampening is nan"},
		{OPTIMIZER_NESTEROV, FIELD(dampening), 0.5, "dampening is 0.5"},
		{OPTIMIZER_ADAGRAD, FIELD(lr_decay), -1, "lr_decay is -1"},
		{OPTIMIZER_ADAGRAD, FIELD(initial_accumulator_value), -1, "initial_accumulator_value is -1"},
		{OPTIMIZER_ADAGRAD, FIELD(eps), -1, "eps is -1"},
		{OPTIMIZER_ADAM, FIELD(beta1), 1, "beta1 is 1"},
		{OPTIMIZER_ADAMW, FIELD(beta2), -0.1, "beta2 is -0.1"},
		{OPTIMIZER_ADAM, FIELD(eps), NAN, "eps is nan"},
	};
	struct optimizer_hyper hyper;
	char error[256];

	for (unsigned kind = 0; kind < OPTIMIZER_COUNT; kind++) {
		optimizer_hyper_default((enum optimizer_kind)kind, &hyper);
		assert_int_equal(optimizer_hyper_check((enum optimizer_kind)kind, &hyper, error, sizeof(error)), 0);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		optimizer_hyper_default(bad[i].kind, &hyper);
		memcpy((unsigned char *)&hyper + bad[i].field * sizeof(double), &bad[i].value, sizeof(double));
		assert_int_equal(optimizer_hyper_check(bad[i].kind, &hyper, error, sizeof(error)), -EINVAL);
		if (!strstr(error, bad[i].text))
			printf("expected \"%s\" in: %s\n", bad[i].text, error);
		assert_true(strstr(error, bad[i].text) && strstr(error, optimizer_kind_name(bad[i].kind)));
		assert_int_equal(optimizer_hyper_check(OPTIMIZER_NONE, &hyper, error, sizeof(error)), 0);
	}
	assert_int_equal(optimizer_hyper_check((enum optimizer_kind)99, &hyper, error, sizeof(error)), -EINVAL);
	assert_true(strstr(error, "99") != NULL);
}

/* --- trace ------------------------------------------------------------------------------------------------------- */

static void trace_read(void *dst, size_t size)
{
	if (size && fread(dst, size, 1, stdin) != 1) {
		fprintf(stderr, "trace: input ends early\n");
		exit(1);
	}
}

/*
 * Input: one line "kind isa count steps workers"; count fp32 weights; then for each step the nine doubles of struct
 * optimizer_hyper in its order, and the gradient of each worker (count fp32). Output: count fp32 weights after each
 * step. Native byte order.
 */
static int trace_run(void)
{
	char line[128], kind_name[32], isa[32], error[256];
	size_t count, steps, workers;
	struct optimizer_hyper hyper;
	const void *sources[16];
	float *gradients;
	const struct kernels *kernels;
	enum optimizer_kind kind;
	struct run run;
	int rc;

	if (!fgets(line, sizeof(line), stdin) ||
		sscanf(line, "%31s %31s %zu %zu %zu", kind_name, isa, &count, &steps, &workers) != 5 || workers < 1 ||
		workers > 16) {
		fprintf(stderr, "trace: first line must be: kind isa count steps workers\n");
		return 2;
	}
	if (optimizer_kind_parse(kind_name, &kind, error, sizeof(error)) ||
		dispatch_select(isa, &kernels, error, sizeof(error))) {
		fprintf(stderr, "trace: %s\n", error);
		return 2;
	}
	gradients = must_alloc(count * workers, sizeof(float));
	for (size_t g = 0; g < workers; g++)
		sources[g] = gradients + g * count;
	optimizer_hyper_default(kind, &hyper);
	run_init(&run, kernels, kind, &hyper, count);
	trace_read(run.weight, count * sizeof(float));
	for (size_t step = 0; step < steps; step++) {
		trace_read(&hyper, sizeof(hyper));
		trace_read(gradients, count * workers * sizeof(float));
		if (optimizer_hyper_check(kind, &hyper, error, sizeof(error))) {
			fprintf(stderr, "trace: %s\n", error);
			rc = 2;
			goto free_gradients;
		}
		for (unsigned s = 0; step == 0 && s < optimizer_state_count(kind); s++)
			optimizer_state_init(kind, &hyper, s, run.state[s], count);
		run_step(&run, &hyper, sources, workers);
		fwrite(run.weight, sizeof(float), count, stdout);
	}
	rc = fflush(stdout) ? 1 : 0;
free_gradients:
	free(gradients);
	run_fini(&run);
	return rc;
}

TEST_PROGRAM(test_aggregation_optimizer)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_hyper_errors),
		cmocka_unit_test(test_states),
		cmocka_unit_test(test_unused_terms_are_skipped),
		cmocka_unit_test(test_follows_pytorch_formulas),
	};

	if (argc > 1 && strcmp(argv[1], "--trace") == 0)
		return trace_run();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
