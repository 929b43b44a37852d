/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the subcommands of phub scout are; each has a file of its own.
 */
#ifndef PHUB_CLI_SCOUT_H
#define PHUB_CLI_SCOUT_H

/* By their number, as scout_policy_name() has them; NULL at the end: what --policy may be. */
extern const char *const scout_policies[];

int scout_advise_run(int argc, char **argv);
int scout_compare_run(int argc, char **argv);
int scout_dry_run_run(int argc, char **argv);
int scout_explain_run(int argc, char **argv);
int scout_plot_run(int argc, char **argv);
int scout_run_run(int argc, char **argv);

#endif
