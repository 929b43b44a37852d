/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the subcommands of phub checkpoint have in common: which directories, job and round are meant, and work beside
 * which a bar goes on.
 */
#ifndef PHUB_CLI_CHECKPOINT_TOOL_H
#define PHUB_CLI_CHECKPOINT_TOOL_H

#include "phub/cli/args.h"
#include "phub/control/checkpoint.h"

struct checkpoint_tool {
	const char *job; /* NULL: not said */
	uint64_t round;  /* 0: not said */
	bool json;
	struct checkpoint_place place; /* the directories; job is set when one is worked on */
	char **jobs;                   /* those that are meant */
	unsigned job_count;
};

/*
 * Takes the directories from the words, and finds the jobs in them. CLI_DONE, or CLI_FAILED after saying why: none of
 * the directories is there, or there is no checkpoint, or not one of that job.
 */
int checkpoint_tool_begin(struct checkpoint_tool *t, const struct args_words *words);
void checkpoint_tool_end(struct checkpoint_tool *t);

/* Of exactly one job: the checkpoint that is meant, or CLI_FAILED after saying why. */
int checkpoint_tool_pick(struct checkpoint_tool *t, struct checkpoint_table *out);

/* Runs work(arg) with a bar; Ctrl-C stops it. What it returns. */
int checkpoint_tool_work(const char *label, struct checkpoint_progress *p, int (*work)(void *arg), void *arg);

#endif
