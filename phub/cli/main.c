/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `phub` command: finds the subcommand and hands the rest of the line to it. The subcommands see nothing of each
 * other.
 */
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/phub.h"
#include "phub/base/log.h"
#include "phub/cli/args.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"
#include "phub/base/suggest.h"

static const struct cli_command main_commands[] = {
	{"bench", "measure exchanges and kernels, with the sums checked", bench_run},
	{"jobs", "what runs on a box: jobs, workers, rates, who is missing", jobs_run},
	{"top", "the same, refreshed", top_run},
	{"boxes", "which boxes are up, by etcd or a rack file", boxes_run},
	{"promote", "make a box the root, in place of one that has died", promote_run},
	{"checkpoint", "list, verify, restore and export what a box has kept of its jobs", checkpoint_run},
	{"scout", "sites with skewed data: how often they should talk, and why", scout_run},
	{"doctor", "check this machine, and a box, and say what to type", doctor_run},
	{"topo", "the hardware here, and which core would own what of a model", topo_run},
	{"plan", "on paper: which resource of a box limits, and at what rate", plan_run},
	{"models", "the models that --model knows", models_run},
	{"version", "print the version", version_run},
	{NULL, NULL, NULL},
};

static const char main_about[] =
	"The command of a PHub box: the server that sums the gradients of all workers of a\n"
	"training job, runs the optimizer, and sends the new weights back. The box is phubd.\n";

static const char main_end[] =
	"\nA box listens on 127.0.0.1:7077 unless told otherwise. Exit codes: 0 done, 1 failed, 2 usage.\n";

static void cli_print_commands(const struct cli_command *commands, const char *prefix, const char *about)
{
	printf("usage: %s COMMAND [options]\n\n%s\ncommands:\n", prefix, about);
	for (const struct cli_command *c = commands; c->name; c++)
		printf("  %-10s %s\n", c->name, c->summary);
	printf("\n%s COMMAND --help says more, with examples.\n", prefix);
}

static const struct cli_command *cli_find(const struct cli_command *commands, const char *name)
{
	for (const struct cli_command *c = commands; c->name; c++) {
		if (strcmp(c->name, name) == 0)
			return c;
	}
	return NULL;
}

static int cli_unknown(const struct cli_command *commands, const char *prefix, const char *typed)
{
	struct suggest near = {.word = typed};

	for (const struct cli_command *c = commands; c->name; c++)
		suggest_offer(&near, c->name);
	if (near.best)
		output_error("unknown command '%s'; did you mean %s %s?", typed, prefix, near.best);
	else
		output_error("unknown command '%s'; see %s --help", typed, prefix);
	return CLI_USAGE;
}

int cli_dispatch(const struct cli_command *commands, const char *prefix, const char *about, int argc, char **argv)
{
	const struct cli_command *command;

	if (argc < 2) {
		output_error("which command? See %s --help", prefix);
		return CLI_USAGE;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
		char *asks[] = {argc > 2 ? argv[2] : NULL, (char *)(uintptr_t) "--help", NULL};

		command = asks[0] ? cli_find(commands, asks[0]) : NULL;
		if (command)
			return command->run(2, asks);
		if (asks[0] && asks[0][0] != '-')
			return cli_unknown(commands, prefix, asks[0]);
		cli_print_commands(commands, prefix, about);
		return CLI_DONE;
	}
	command = cli_find(commands, argv[1]);
	if (!command)
		return cli_unknown(commands, prefix, argv[1]);
	return command->run(argc - 1, argv + 1);
}

int version_run(int argc, char **argv)
{
	static const struct args_option options[] = {{.name = NULL}};
	static const struct args_usage usage = {
		.command = "phub version", .about = "Prints the version.\n", .options = options};
	struct args_words words;
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc != ARGS_GO_ON)
		return rc;
	puts("phub " PHUB_VERSION);
	return CLI_DONE;
}

/* Is standard output a pipe, or a socket, that nobody reads any more? */
static bool main_reader_has_gone(void)
{
	struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};

	return poll(&out, 1, 0) > 0 && (out.revents & (POLLERR | POLLHUP));
}

int main(int argc, char **argv)
{
	int rc;

	/* A peer that goes away is an error to be told, not a death; a reader of ours, see below. */
	signal(SIGPIPE, SIG_IGN);
	log_set_sink(log_sink_stderr, NULL);
	log_set_level(LOG_LEVEL_WARN);
	if (argc > 1 && strcmp(argv[1], "--version") == 0)
		return version_run(argc - 1, argv + 1);
	rc = cli_dispatch(main_commands, "phub", main_about, argc, argv);
	if (argc > 1 && rc == CLI_DONE && (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0) && argc == 2)
		fputs(main_end, stdout);
	if (fflush(stdout) != 0 || ferror(stdout)) {
		if (main_reader_has_gone()) /* as head does, when it has enough */
			return CLI_SIGNAL + SIGPIPE;
		output_error("could not write to standard output: is the disk full?");
		return CLI_FAILED;
	}
	return rc;
}
