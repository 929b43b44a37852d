/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trains y = 3 a - 2 b + 1 through a box. Each worker sees data of its own; the box sums their gradients and takes the
 * steps. Two workers by hand (torchrun, mpirun and srun set these variables themselves):
 *      for r in 0 1; do RANK=$r WORLD_SIZE=2 build/example phub://localhost/line & done; wait
 */
#include <stdio.h>

#include <phub.h>

#define CHECK(call)     \
	if ((call) < 0) \
	return fprintf(stderr, "example: %s\n", phub_error()), 1

static float noise(unsigned *state) /* -1 .. 1 */
{
	*state = *state * 1664525u + 1013904223u;
	return (float)(int)*state / 2147483648.0f;
}

int main(int argc, char **argv)
{
	struct phub_options options;
	struct phub_hyper hyper;
	float w[3] = {0}, gradient[3];
	phub_t *box;

	phub_options_init(&options);
	phub_hyper_init(PHUB_NESTEROV, &hyper);
	hyper.lr = 0.02;
	options.optimizer = PHUB_NESTEROV;
	options.reduce = PHUB_MEAN;
	options.groups = &hyper;
	options.group_count = 1;
	CHECK(phub_connect(argc > 1 ? argv[1] : "phub://localhost/line", &options, &box));
	unsigned state = (unsigned)phub_rank(box);
	CHECK(phub_key(box, "w", PHUB_F32, 3, 0, 0));
	CHECK(phub_start(box, PHUB_TIMEOUT_DEFAULT));
	CHECK(phub_broadcast(box, 0, w, 0));
	CHECK(phub_wait(box, 0, PHUB_TIMEOUT_DEFAULT));
	for (int step = 0; step < 200; step++) {
		gradient[0] = gradient[1] = gradient[2] = 0;
		for (int i = 0; i < 32; i++) {
			float a = noise(&state), b = noise(&state),
			      error = w[0] * a + w[1] * b + w[2] - (3 * a - 2 * b + 1);

			gradient[0] += 2 * error * a / 32;
			gradient[1] += 2 * error * b / 32;
			gradient[2] += 2 * error / 32;
		}
		CHECK(phub_push_pull(box, 0, gradient, w, 0)); /* gradient in, new weights out */
		CHECK(phub_wait(box, 0, PHUB_TIMEOUT_DEFAULT));
	}
	printf("rank %d of %d: y = %.3f a %+.3f b %+.3f\n", phub_rank(box), phub_world(box), w[0], w[1], w[2]);
	CHECK(phub_leave(box, PHUB_TIMEOUT_DEFAULT));
	phub_close(box);
	return 0;
}
