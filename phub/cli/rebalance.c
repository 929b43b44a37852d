/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of a change of homes, by asking its top box again and again.
 */
#include "phub/cli/rebalance.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "phub/cli/admin.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"

#define REBALANCE_PAUSE_NS 50000000l
#define REBALANCE_FLOWS    16u /* that people are told of */

static bool rebalance_is_over(const Phub__RebalanceInfo *info)
{
	return strcmp(info->stage, "moved") == 0 || strcmp(info->stage, "kept") == 0;
}

static const char *rebalance_box(const char *box)
{
	return *box ? box : "the top box";
}

/* So many there are; a box of an older release says all, and not how many. */
static size_t rebalance_flows(const Phub__RebalanceInfo *info)
{
	return info->flow_count > info->n_flows ? info->flow_count : info->n_flows;
}

json_t *rebalance_json(const Phub__RebalanceInfo *info)
{
	json_t *flows;

	if (!info)
		return NULL;
	flows = json_array();
	for (size_t i = 0; i < info->n_flows; i++)
		json_array_append_new(flows, json_pack("{s:s, s:s, s:I, s:I}", "from", info->flows[i]->from, "to",
						     info->flows[i]->to, "chunks", (json_int_t)info->flows[i]->chunks,
						     "bytes", (json_int_t)info->flows[i]->bytes));
	return json_pack("{s:i, s:s, s:s, s:I, s:I, s:I, s:o, s:I, s:I, s:i, s:i, s:s}", "number", (int)info->number,
		"stage", info->stage, "why", info->why, "chunks", (json_int_t)info->chunks, "bytes",
		(json_int_t)info->bytes, "carried", (json_int_t)info->carried, "flows", flows, "flow_count",
		(json_int_t)rebalance_flows(info), "waited_ms", (json_int_t)info->waited_ms, "done", (int)info->done,
		"boxes", (int)info->boxes, "waits_for", info->waits_for);
}

void rebalance_print(const char *job, const Phub__RebalanceInfo *info)
{
	if (!info || rebalance_is_over(info))
		return;
	printf("%s: is rebalanced: %s, %" PRIu32 " of %" PRIu32 " boxes are done", job, info->stage, info->done,
		info->boxes);
	if (*info->waits_for)
		printf(", %s is not", info->waits_for);
	printf("; workers wait since %" PRIu64 " ms\n", info->waited_ms);
}

static void rebalance_print_moved(const char *job, const Phub__RebalanceInfo *info)
{
	size_t all = rebalance_flows(info), shown = info->n_flows < REBALANCE_FLOWS ? info->n_flows : REBALANCE_FLOWS;
	char text[32];

	for (size_t i = 0; i < shown; i++) {
		const Phub__RebalanceFlow *flow = info->flows[i];

		printf("%s: %" PRIu64 " chunk%s, %s, from %s to %s\n", job, flow->chunks, flow->chunks == 1 ? "" : "s",
			output_bytes(flow->bytes, text), rebalance_box(flow->from), rebalance_box(flow->to));
	}
	if (all > shown)
		printf("%s: and %zu more; --json has %s\n", job, all - shown,
			all > info->n_flows ? "what the box says of them" : "all");
	printf("%s: %" PRIu64 " %s moved, with %s of weights and state", job, info->chunks,
		info->chunks == 1 ? "chunk has" : "chunks have", output_bytes(info->carried, text));
	printf("; its workers waited for %" PRIu64 " ms at most\n", info->waited_ms);
}

/* One look. Over: prints, and returns CLI_DONE or CLI_FAILED; else -1. */
static int rebalance_look(
	const char *address, const char *name, uint32_t number, bool json, struct output_progress *progress)
{
	const Phub__RebalanceInfo *info = NULL;
	struct admin_answer answer;
	bool moved, ok = true;
	int rc = -1;
	struct err e;

	if (admin_tell(address, "jobs", &name, 1, 5000, &answer, &e) < 0) {
		output_progress_end(progress);
		output_error("how the rebalance ended is not known: %s", e.text);
		return CLI_FAILED;
	}
	if (answer.reply->n_jobs > 0)
		info = answer.reply->jobs[0]->rebalance;
	if (!info || info->number != number) {
		output_progress_end(progress);
		output_error(
			info && info->number > number
				? "job '%.63s': how this rebalance ended is not known, for another was begun; the log "
				  "of the box says it"
				: "job '%.63s' ended while its chunks were to get other homes; its workers, and the "
				  "log "
				  "of the box, say why",
			name);
		rc = CLI_FAILED;
	} else if (rebalance_is_over(info)) {
		moved = strcmp(info->stage, "moved") == 0;
		output_progress_end(progress);
		if (json)
			ok = output_json(json_pack("{s:s, s:s, s:s, s:o}", "box", address, "job", name, "command",
				"rebalance", "rebalance", rebalance_json(info)));
		else if (moved)
			rebalance_print_moved(name, info);
		if (!moved)
			output_error("job '%.63s' goes on, and its chunks keep their homes: %s", name, info->why);
		rc = moved && ok ? CLI_DONE : CLI_FAILED;
	} else {
		progress->label = info->stage;
		output_progress_update(progress, info->done, info->boxes);
	}
	admin_answer_fini(&answer);
	return rc;
}

int rebalance_await(const char *address, const char *job, uint32_t number, bool json)
{
	const struct timespec pause = {.tv_nsec = REBALANCE_PAUSE_NS};
	struct output_progress progress = {.label = "rebalance"};
	int rc;

	fflush(stdout);
	while ((rc = rebalance_look(address, job, number, json, &progress)) < 0)
		nanosleep(&pause, NULL);
	return rc;
}
