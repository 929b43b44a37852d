/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time goes by in stretches of plan->rest_ns; of each a core may rest all.
 */
#include "tests/sim/rest.h"

#include "phub/control/box.h"
#include "phub/core.h"
#include "tests/sim/worker.h"

#define REST_STRETCHES 3 /* one in so many */

/* Of box `number` as plans have them. */
static bool rest_rests(const struct world *w, unsigned number, unsigned core, uint64_t now_ns)
{
	uint64_t r;

	if (!w->plan->rest_ns || w->awake)
		return false;
	r = (w->plan->seed * 0x9e3779b97f4a7c15ull + now_ns / w->plan->rest_ns) * 0xd1342543de82ef95ull + number * 64 +
	    core;
	return oracle_random(&r) % REST_STRETCHES == 0;
}

static struct box *rest_box(const struct world *w, unsigned number)
{
	return number ? w->below.boxes[number - 1].box : w->box;
}

bool rest_turn(const struct world *w, struct box *box, uint64_t now_ns)
{
	bool again = control_step(&box->control, now_ns);
	unsigned number = 0;

	while (number < w->below.count && rest_box(w, number) != box)
		number++;
	for (unsigned core = 0; core < box->core_count; core++)
		if (!rest_rests(w, number, core, now_ns))
			again = core_step(box->cores[core], now_ns) > 0 || again;
	return again;
}

uint64_t rest_due(const struct world *w)
{
	uint64_t now_ns = loop_net_now(w->net);

	for (unsigned number = 0; number <= w->below.count; number++) {
		const struct box *box = rest_box(w, number);

		for (unsigned core = 0; box && core < box->core_count; core++)
			if (rest_rests(w, number, core, now_ns))
				return (now_ns / w->plan->rest_ns + 1) * w->plan->rest_ns;
	}
	return UINT64_MAX;
}
