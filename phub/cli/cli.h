/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `phub` command: what its subcommands are. One file each holds the entry point of a subcommand; main.c finds it by
 * name. All of it runs in one thread of a short-lived process and may block, print and allocate.
 */
#ifndef PHUB_CLI_CLI_H
#define PHUB_CLI_CLI_H

#include <stdbool.h>

/* Exit codes of every subcommand; scripts rely on them. */
enum cli_exit {
	CLI_DONE = 0,
	CLI_FAILED = 1,
	CLI_USAGE = 2,
	CLI_SIGNAL = 128, /* plus a signal's number: it has ended by that, in order */
};

struct cli_command {
	const char *name;
	const char *summary;
	/* argv[0] is the name that was typed; returns an enum cli_exit. */
	int (*run)(int argc, char **argv);
};

/* Runs the command that argv[1] names. `prefix` ("phub bench") and `about` are for usage texts. */
int cli_dispatch(const struct cli_command *commands, const char *prefix, const char *about, int argc, char **argv);

int bench_run(int argc, char **argv);
int bench_aggregation_run(int argc, char **argv);
int bench_exchange_run(int argc, char **argv);
int bench_kernels_run(int argc, char **argv);
int bench_seals_run(int argc, char **argv);
int bench_train_run(int argc, char **argv);
int boxes_run(int argc, char **argv);
int checkpoint_run(int argc, char **argv);
int checkpoint_export_run(int argc, char **argv);
int checkpoint_ls_run(int argc, char **argv);
int checkpoint_restore_run(int argc, char **argv);
int checkpoint_rm_run(int argc, char **argv);
int checkpoint_verify_run(int argc, char **argv);
int doctor_run(int argc, char **argv);
int jobs_run(int argc, char **argv);
int models_run(int argc, char **argv);
int plan_run(int argc, char **argv);
int probe_run(int argc, char **argv);
int promote_run(int argc, char **argv);
int scout_run(int argc, char **argv);
int top_run(int argc, char **argv);
int topo_run(int argc, char **argv);
int version_run(int argc, char **argv);

#endif
