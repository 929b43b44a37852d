/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub scout compare: runs beside each other.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

	output_cell(table, "%s", isnan(bytes) ? "-" : scout_log_bytes_text(bytes, text));
}

/* "4.2x"; "1.05x more": so many times what BSP would have sent. */
static void compare_saving(struct output_table *table, double saving)
{
	const double times = saving < 1 ? 1 / saving : saving;

	if (isnan(saving))
		output_cell(table, "-");
	else if (times < 1.005)
		output_cell(table, "1.0x");
	else
		output_cell(table, "%.*fx%s", times < 1.095 ? 2 : 1, times, saving < 1 ? " more" : "");
}

/* What is printed: columns that no run has anything in are left out. */
struct compare {
	const struct scout_log *logs;
	unsigned count;
	struct scout_log_total totals[ARGS_WORDS_MAX];
	bool within, spent;
	struct output_table table;
	char align[OUTPUT_COLUMNS_MAX + 1];
};

static void compare_head(struct compare *c)
{
	const struct {
		const char *head;
		char align;
		bool shown;
	} columns[OUTPUT_COLUMNS_MAX] = {{"run", 'l', true}, {"algorithm", 'l', true}, {"policy", 'l', true},
		{"steps", 'r', true}, {"bytes", 'r', true}, {"travelled", 'r', true}, {"within", 'r', c->within},
		{"wire", 'r', true}, {"fewer", 'r', true}, {"spent", 'r', c->spent}, {"theta", 'r', true},
		{"accuracy %", 'r', true}, {"loss", 'r', true}, {"s", 'r', true}, {"front", 'l', true}};
	unsigned shown = 0;

	for (unsigned i = 0; i < OUTPUT_COLUMNS_MAX; i++) {
		if (!columns[i].shown)
			continue;
		c->table.heads[shown] = columns[i].head;
		c->align[shown++] = columns[i].align;
	}
	c->table.align = c->align;
}

static void compare_row(struct compare *c, unsigned i)
{
	const struct scout_log *log = &c->logs[i];
	const struct scout_log_total *total = &c->totals[i];
	struct output_table *table = &c->table;
	char text[32];

	output_cell(table, "%s", log->name);
	output_cell(table, "%s", scout_log_text(log->run, "algorithm"));
	output_cell(table, "%s", scout_log_text(log->run, "policy"));
	output_cell(table, "%.0f%s", (double)total->t, log->end ? "" : "+");
	compare_bytes(table, total->bytes);
	compare_bytes(table, total->travel);
	if (c->within)
		compare_bytes(table, total->within);
	compare_bytes(table, total->wire);
	compare_saving(table, scout_log_saving(total));
	if (c->spent)
		output_cell(table, "%s",
			isnan(total->spent) ? "-" : scout_log_spent_text(scout_log_unit(log), total->spent, text));
	compare_number(table, "%g", total->theta);
	compare_number(table, "%.2f", 100 * total->accuracy);
	compare_number(table, "%.4f", total->loss);
	compare_number(table, "%.1f", total->seconds);
	output_cell(table, "%s%s", scout_log_on_front(c->totals, c->count, i) ? "*" : "",
		scout_log_on_oracle(c->totals, c->count, i) ? " o" : "");
}

static bool compare_alike(const struct price_link *a, const struct price_link *b)
{
	return a->rate == b->rate && a->latency == b->latency && a->money == b->money;
}

/* What was spent is not one beside the other. */
static void compare_unlike_spent(const struct compare *c)
{
	const struct price first = scout_log_price(&c->logs[0]);
	bool units = false, prices = false;

	for (unsigned i = 0; i < c->count; i++) {
		const struct price price = scout_log_price(&c->logs[i]);

		units = units || price.unit != first.unit;
		prices = prices || !compare_alike(&price.link, &first.link) ||
			 !compare_alike(&price.within, &first.within);
	}
	if (units)
		puts("Take care: costs of these runs are not in one unit (bytes, seconds, money), so what was spent is "
		     "each run's alone.");
	else if (prices)
		puts("Take care: links of these runs have not cost the same, so what was spent is each run's alone.");
}

/* In what the runs are not one beside the other. */
static void compare_unlike(const struct compare *c)
{
	struct scout_log_unlike unlike = {false};
	char text[SCOUT_LOG_UNLIKE_BYTES];

	for (unsigned i = 1; i < c->count; i++)
		scout_log_differ(c->logs, c->totals, 0, i, &unlike);
	if (*scout_log_unlike_text(&unlike, text))
		printf("Take care: these runs differ in %s, and bytes, accuracy and the front are of whole runs.\n",
			text);
}

/* Whose wire was none. */
static void compare_legend_shared(const struct compare *c)
{
	const char *first = NULL;
	unsigned count = 0;

	for (unsigned i = 0; i < c->count; i++)
		if (c->totals[i].wire > 0 && strcmp(scout_log_text(c->logs[i].run, "transport"), "shm") == 0) {
			first = first ? first : c->logs[i].name;
			count++;
		}
	if (count == 0)
		return;
	printf("wire of %s", count == c->count && count > 1 ? "all of these" : first);
	if (count > 1 && count < c->count)
		printf(" and %u more", count - 1);
	puts(" went through shared memory, as it is, with all zeros; links leave those out:\n"
	     "phub scout run --set transports=tcp shows what they would carry.");
}

static void compare_legend(const struct compare *c)
{
	puts("\nbytes: that a site sent in exchanges, the mean of sites, as the papers count them; travelled: in\n"
	     "models that were tried elsewhere; wire: payload of all kinds, as it travelled;\n"
	     "fewer: how many times fewer than BSP, of the first two, or, where it says more, how many times as many;\n"
	     "front: *: no other run here was as good for as few; o: none with a fixed theta was, the oracle's front;\n"
	     "+: has not ended.");
	if (c->within)
		puts("within: that the sites within these sent, over links of their own, and no part of the rest.");
	if (c->spent)
		puts("spent: by a site on bytes, travelled and within, by what the run's links were said to cost.");
	compare_unlike(c);
	if (c->spent)
		compare_unlike_spent(c);
	compare_legend_shared(c);
	for (unsigned i = 0; i < c->count; i++)
		if (c->totals[i].sites < scout_log_number(c->logs[i].run, "sites"))
			printf("Take care: %s ended with %.0f of %.0f sites%s.\n", c->logs[i].name, c->totals[i].sites,
				scout_log_number(c->logs[i].run, "sites"),
				isnan(c->totals[i].accuracy) && isnan(c->totals[i].loss)
					? ""
					: ", and what it scored is of these");
	for (unsigned i = 0; i < c->count; i++)
		if (!isnan(c->totals[i].broken))
			printf("Take care: models of %s are no numbers since step %.0f.\n", c->logs[i].name,
				c->totals[i].broken);
}

static bool compare_json(const struct compare *c, unsigned i)
{
	const struct scout_log *log = &c->logs[i];
	const struct scout_log_total *total = &c->totals[i];

	return output_json(json_pack("{s:s, s:o, s:s, s:s, s:I, s:b, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:o, s:o, "
				     "s:o, s:o, s:o, s:b, s:b, s:o, s:o}",
		"scout", "compare", "log", output_name(log->path), "algorithm", scout_log_text(log->run, "algorithm"),
		"policy", scout_log_text(log->run, "policy"), "t", (json_int_t)total->t, "ended", log->end != NULL,
		"missing", (json_int_t)log->missing, "bytes", scout_log_value(total->bytes), "bytes_travel",
		scout_log_value(total->travel), "bytes_bsp", scout_log_value(total->bsp), "bytes_within",
		scout_log_value(total->within), "bytes_wire", scout_log_value(total->wire), "saving",
		scout_log_value(scout_log_saving(total)), "unit", price_unit_name(scout_log_unit(log)), "spent",
		scout_log_value(total->spent), "theta", scout_log_value(total->theta), "accuracy",
		scout_log_value(total->accuracy), "loss", scout_log_value(total->loss), "seconds",
		scout_log_value(total->seconds), "front", scout_log_on_front(c->totals, c->count, i), "oracle",
		scout_log_on_oracle(c->totals, c->count, i), "broken_since", scout_log_value(total->broken), "sites",
		scout_log_value(total->sites)));
}

static int compare_print(const struct scout_log *logs, unsigned count, bool json)
{
	struct compare c = {.logs = logs, .count = count};
	bool good = true;

	for (unsigned i = 0; i < count; i++) {
		c.totals[i] = scout_log_total(&logs[i]);
		c.within = c.within || !isnan(c.totals[i].within);
		c.spent = c.spent || !isnan(c.totals[i].spent);
	}
	compare_head(&c);
	for (unsigned i = 0; i < count; i++) {
		if (json)
			good = compare_json(&c, i) && good;
		else
			compare_row(&c, i);
	}
	if (!json) {
		output_table_print(&c.table);
		compare_legend(&c);
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
	scout_log_tell_apart(logs, count);
	rc = count == words.count ? compare_print(logs, count, json) : CLI_FAILED;
	for (unsigned i = 0; i < count; i++)
		scout_log_free(&logs[i]);
	return rc;
}
