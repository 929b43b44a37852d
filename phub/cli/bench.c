/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub bench: the measurements, each a subcommand of its own.
 */
#include "phub/cli/cli.h"

#include <stddef.h>

static const struct cli_command bench_commands[] = {
	{"exchange", "a box and its workers on this machine: rounds a second, latency, CPU", bench_exchange_run},
	{"aggregation", "ways of summing on several cores: tall or wide, fused or separate", bench_aggregation_run},
	{"kernels", "the summing loops beside the machine's memory roofline", bench_kernels_run},
	{"seals", "what the seals of datagrams cost", bench_seals_run},
	{"train", "a model's iteration time, from the times of its layers", bench_train_run},
	{NULL, NULL, NULL},
};

static const char bench_about[] = "Measures, and checks what it measures. --json prints one object a line.\n";

int bench_run(int argc, char **argv)
{
	return cli_dispatch(bench_commands, "phub bench", bench_about, argc, argv);
}
