/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub jobs rebalance: waits for a change of homes that was begun, and says how it ended.
 */
#ifndef PHUB_CLI_REBALANCE_H
#define PHUB_CLI_REBALANCE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "transport/control.pb-c.h"

/*
 * Asks the box until the change `number` of that job is over, and prints how it went: lines for people, or with `json`
 * one object. Blocks as long as that takes. CLI_DONE: the chunks have their new homes. CLI_FAILED: they do not, or
 * nobody can tell, and stderr says why.
 */
int rebalance_await(const char *address, const char *job, uint32_t number, bool json);

/* For scripts. NULL: there was none. */
json_t *rebalance_json(const Phub__RebalanceInfo *info);

/* "train: is rebalanced: carrying, 1 of 3 boxes are done, box 10.0.2.1:7077 is not" while it is under way. */
void rebalance_print(const char *job, const Phub__RebalanceInfo *info);

#endif
