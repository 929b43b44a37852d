/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub scout compare: runs beside each other.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "phub/cli/args.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"
#include "phub/cli/scout.h"
#include "phub/cli/scout_log.h"

static void compare_number(struct output_table *table, const char *format, double value)
{
	char text[40];

	snprintf(text, sizeof(text), format, value);
	output_cell(table, "%s", isnan(value) ? "-" : text);
}

static void compare_bytes(struct output_table *table, double bytes)
{
	char text[32];

	output_cell(table, "%s", bytes >= 0 && bytes < 1e18 ? output_bytes((uint64_t)bytes, text) : "-");
}

static void compare_row(struct output_table *table, const struct scout_log *log, const struct scout_log_total *total,
	bool within, bool front)
{
	output_cell(table, "%s", log->name);
	output_cell(table, "%s", scout_log_text(log->run, "algorithm"));
	output_cell(table, "%s", scout_log_text(log->run, "policy"));
	output_cell(table, "%.0f%s", (double)total->t, log->end ? "" : "+");
	compare_bytes(table, total->bytes);
	compare_bytes(table, total->travel);
	if (within)
		compare_bytes(table, total->within);
	compare_number(table, "%.1fx", scout_log_saving(total));
	compare_number(table, "%g", total->theta);
	compare_number(table, "%.2f", 100 * total->accuracy);
	compare_number(table, "%.4f", total->loss);
	compare_number(table, "%.1f", total->seconds);
	output_cell(table, "%s", front ? "*" : "");
}

static bool compare_json(const struct scout_log *log, const struct scout_log_total *total, bool front)
{
	return output_json(json_pack(
		"{s:s, s:s, s:s, s:s, s:I, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "scout",
		"compare", "log", log->path, "algorithm", scout_log_text(log->run, "algorithm"), "policy",
		scout_log_text(log->run, "policy"), "t", (json_int_t)total->t, "ended", log->end != NULL, "bytes",
		scout_log_value(total->bytes), "bytes_travel", scout_log_value(total->travel), "bytes_bsp",
		scout_log_value(total->bsp), "bytes_within", scout_log_value(total->within), "bytes_wire",
		scout_log_value(total->wire), "saving", scout_log_value(scout_log_saving(total)), "theta",
		scout_log_value(total->theta), "accuracy", scout_log_value(total->accuracy), "loss",
		scout_log_value(total->loss), "seconds", scout_log_value(total->seconds), "front", front));
}

static int compare_print(const struct scout_log *logs, unsigned count, bool json)
{
	struct output_table plain = {.heads = {"run", "algorithm", "policy", "steps", "bytes", "travelled", "fewer",
					     "theta", "accuracy %", "loss", "s", "front"},
		.align = "lllrrrrrrrrl"};
	struct output_table nested = {.heads = {"run", "algorithm", "policy", "steps", "bytes", "travelled", "within",
					      "fewer", "theta", "accuracy %", "loss", "s", "front"},
		.align = "lllrrrrrrrrrl"};
	struct scout_log_total totals[ARGS_WORDS_MAX];
	bool good = true, within = false;
	struct output_table *table;

	for (unsigned i = 0; i < count; i++) {
		totals[i] = scout_log_total(&logs[i]);
		within = within || !isnan(totals[i].within);
	}
	table = within ? &nested : &plain;
	for (unsigned i = 0; i < count; i++) {
		bool front = scout_log_on_front(totals, count, i);

		if (json)
			good = compare_json(&logs[i], &totals[i], front) && good;
		else
			compare_row(table, &logs[i], &totals[i], within, front);
	}
	if (!json) {
		output_table_print(table);
		printf("\nbytes: that a site sent in exchanges, the mean of sites; travelled: in models that were "
		       "tried "
		       "elsewhere.\n%sfewer: how many times fewer than BSP, of both; front: no other run here was as "
		       "good for as few; +: has not ended.\n",
			within ? "within: that the sites within these sent, over links of their own, and no part of "
				 "the rest.\n"
			       : "");
	}
	return good ? CLI_DONE : CLI_FAILED;
}

int scout_compare_run(int argc, char **argv)
{
	bool json = false;
	const struct args_option options[] = {
		{"json", NULL, "a line of JSON for each run", ARGS_FLAG, &json, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {.command = "phub scout compare",
		.words = "LOG...",
		.about =
			"Runs beside each other, by their decision logs: what a site sent, how many times fewer bytes\n"
			"than BSP that is, and how good the model became. - is standard input.\n",
		.examples = "  phub scout compare bsp.jsonl hill.jsonl local-*.jsonl\n",
		.words_max = ARGS_WORDS_MAX,
		.options = options};
	struct scout_log logs[ARGS_WORDS_MAX];
	struct args_words words;
	int rc = args_parse(&usage, argc, argv, &words);
	unsigned count = 0;

	if (rc != ARGS_GO_ON)
		return rc;
	if (words.count == 0)
		return args_wrong(&usage, "which logs?");
	while (count < words.count && scout_log_open(words.at[count], &logs[count]))
		count++;
	rc = count == words.count ? compare_print(logs, count, json) : CLI_FAILED;
	for (unsigned i = 0; i < count; i++)
		scout_log_free(&logs[i]);
	return rc;
}
