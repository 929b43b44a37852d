/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub scout: how often should sites with skewed data talk? Its subcommands run training, and read what came of it.
 */
#include "phub/cli/scout.h"

#include <assert.h>
#include <stddef.h>

#include "client/scout/scout.h"
#include "phub/cli/cli.h"

const char *const scout_policies[] = {"fixed", "replay", "hill", "stochastic", "annealing", "scout+", NULL};

static_assert(sizeof(scout_policies) / sizeof(scout_policies[0]) == SCOUT_POLICY_COUNT + 1, "all policies");

static const struct cli_command scout_commands[] = {
	{"run", "a box, and processes of a command as its sites, with a decision log", scout_run_run},
	{"compare", "runs beside each other: bytes, accuracy, and which are on the front", scout_compare_run},
	{"explain", "why theta changed, in words", scout_explain_run},
	{"plot", "pictures of runs: theta, loss, alignment, bytes against accuracy", scout_plot_run},
	{"dry-run", "what another policy would have decided on what a run has seen", scout_dry_run_run},
	{"advise", "a scout for torchft, Flower and others: sync_every over a socket", scout_advise_run},
	{NULL, NULL, NULL},
};

static const char scout_about[] =
	"Sites with skewed data train one model, and a scout sets how often they talk (theta). LOG is the\n"
	"decision log of a run: a line of JSON for each window.\n";

int scout_run(int argc, char **argv)
{
	return cli_dispatch(scout_commands, "phub scout", scout_about, argc, argv);
}
