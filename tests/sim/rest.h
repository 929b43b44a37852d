/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cores that rest: a box's threads do not run all the time, least of all where there are fewer CPUs than threads. In
 * some worlds a core takes no step for a while, now and then, and control goes on: what it asks of all cores lasts, and
 * much may come between. When that is follows from the seed and the time alone.
 */
#ifndef PHUB_TESTS_SIM_REST_H
#define PHUB_TESTS_SIM_REST_H

#include <stdbool.h>
#include <stdint.h>

struct box;
struct world;

/* As box_step(), of the first box or one below, but for cores that rest. */
bool rest_turn(const struct world *w, struct box *box, uint64_t now_ns);
/* When a core that rests goes on; UINT64_MAX: none does. */
uint64_t rest_due(const struct world *w);

#endif
