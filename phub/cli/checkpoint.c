/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub checkpoint: what a box has kept of its jobs, on disks that this machine sees. Works on files alone, with or
 * without a box that runs; export is checkpoint_export.c's.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "phub/cli/admin.h"
#include "phub/cli/checkpoint_tool.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"
#include "phub/control/disk.h"

static const struct cli_command checkpoint_commands[] = {
	{"ls", "which checkpoints there are", checkpoint_ls_run},
	{"verify", "read them, and look at every checksum", checkpoint_verify_run},
	{"restore", "write one, repaired, into other directories", checkpoint_restore_run},
	{"rm", "remove those of a job, for good", checkpoint_rm_run},
	{"export", "weights and optimizer state as .safetensors or .npz", checkpoint_export_run},
	{NULL, NULL, NULL},
};

static const char checkpoint_about[] =
	"Looks after the checkpoints of jobs. DIR are the directories that the box keeps them in, all\n"
	"of those that are left, in any order.\n";

int checkpoint_run(int argc, char **argv)
{
	return cli_dispatch(checkpoint_commands, "phub checkpoint", checkpoint_about, argc, argv);
}

static int checkpoint_need_directory(const struct args_usage *usage, const struct args_words *words)
{
	return words->count ? ARGS_GO_ON : args_wrong(usage, "which directory?");
}

/* ---- ls ---- */

/* Its files are all there; some are missing and it can be read; or it cannot. */
static const char *checkpoint_state(const struct checkpoint_entry *e)
{
	if (!e->complete)
		return "torn";
	return e->pieces == e->wanted + e->parity ? "whole" : "short";
}

static void checkpoint_write_time(uint64_t seconds, char out[32])
{
	time_t when = (time_t)seconds;
	struct tm tm;

	if (!localtime_r(&when, &tm) || strftime(out, 32, "%Y-%m-%d %H:%M:%S", &tm) == 0)
		snprintf(out, 32, "%" PRIu64, seconds);
}

static bool checkpoint_ls_json(const char *job, const struct checkpoint_entry *e)
{
	char id[17];

	snprintf(id, sizeof(id), "%016" PRIx64, e->id);
	return output_json(json_pack("{s:s, s:I, s:s, s:I, s:I, s:i, s:i, s:i, s:s}", "job", job, "round",
		(json_int_t)e->round, "id", id, "written_s", (json_int_t)(e->written_ms / 1000), "bytes",
		(json_int_t)e->bytes, "pieces", (int)e->pieces, "k", (int)e->wanted, "m", (int)e->parity, "state",
		checkpoint_state(e)));
}

static void checkpoint_ls_row(struct output_table *table, const char *job, const struct checkpoint_entry *e)
{
	char text[32], when[32];

	checkpoint_write_time(e->written_ms / 1000, when);
	output_cell(table, "%s", job);
	output_cell(table, "%" PRIu64, e->round);
	output_cell(table, "%s", when);
	output_cell(table, "%s", output_bytes(e->bytes, text));
	if (e->wanted)
		output_cell(table, "%u of %u+%u", e->pieces, e->wanted, e->parity);
	else
		output_cell(table, "-");
	output_cell(table, "%s", checkpoint_state(e));
}

/* All that were asked for, one after the other: `each` says whether it is good enough to go on. */
static int checkpoint_each(struct checkpoint_tool *t,
	bool (*each)(struct checkpoint_tool *t, const struct checkpoint_entry *entry, void *arg), void *arg,
	unsigned *found)
{
	for (unsigned j = 0; j < t->job_count; j++) {
		struct checkpoint_entry *entries;
		unsigned count;
		bool good = true;
		struct err e;

		t->place.job = t->jobs[j];
		if (checkpoint_list(&t->place, &entries, &count, &e) < 0) {
			output_error("%s", e.text);
			return CLI_FAILED;
		}
		for (unsigned i = 0; i < count && good; i++) {
			if (t->round && entries[i].round != t->round)
				continue;
			++*found;
			good = each(t, &entries[i], arg);
		}
		free(entries);
		if (!good)
			return CLI_FAILED;
	}
	return CLI_DONE;
}

static bool checkpoint_ls_each(struct checkpoint_tool *t, const struct checkpoint_entry *entry, void *arg)
{
	if (t->json)
		return checkpoint_ls_json(t->place.job, entry);
	checkpoint_ls_row(arg, t->place.job, entry);
	return true;
}

int checkpoint_ls_run(int argc, char **argv)
{
	struct checkpoint_tool t = {0};
	const struct args_option options[] = {
		{"job", "NAME", "only this job's", ARGS_TEXT, &t.job, 0, 0, NULL},
		{"round", "R", "only those before this round", ARGS_NUMBER, &t.round, 1, UINT64_MAX, NULL},
		{"json", NULL, "one JSON object a line", ARGS_FLAG, &t.json, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {
		.command = "phub checkpoint ls",
		.words = "DIR...",
		.about = "Lists checkpoints, of each job the one that was written last first. Looks at headers and\n"
			 "trailers: `whole`, all files are there; `short`, some are missing and it can be read;\n"
			 "`torn`, too few files are good. Rounds are the first that is not in it.\n",
		.examples = "  phub checkpoint ls /mnt/a /mnt/b /mnt/c\n",
		.words_max = ARGS_WORDS_MAX,
		.options = options,
	};
	struct output_table table = {
		.heads = {"job", "round", "written", "bytes", "files", "state"}, .align = "lrlrll"};
	struct args_words words;
	unsigned found = 0;
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc == ARGS_GO_ON)
		rc = checkpoint_need_directory(&usage, &words);
	if (rc != ARGS_GO_ON)
		return rc;
	rc = checkpoint_tool_begin(&t, &words);
	if (rc == CLI_DONE)
		rc = checkpoint_each(&t, checkpoint_ls_each, &table, &found);
	if (rc == CLI_DONE && !t.json && found)
		output_table_print(&table);
	else if (rc == CLI_DONE && !t.json)
		puts("no checkpoints");
	checkpoint_tool_end(&t);
	return rc;
}

/* ---- verify ---- */

struct checkpoint_check {
	const struct checkpoint_place *place;
	const struct checkpoint_entry *entry;
	struct checkpoint_progress progress;
	struct checkpoint_health health;
	struct err e;
};

struct checkpoint_verdicts {
	struct output_table table;
	bool lost, damaged, stopped;
};

static int checkpoint_check(void *arg)
{
	struct checkpoint_check *c = arg;
	struct checkpoint_table table;
	int rc = checkpoint_read_entry(c->place, c->entry, &table, &c->e);

	if (rc < 0)
		return rc;
	rc = checkpoint_verify(c->place, &table, &c->progress, &c->health, &c->e);
	checkpoint_table_fini(&table);
	return rc;
}

/* "/mnt/b has bad stripes (1), /mnt/c has no file of it": of a directory that has nothing else to do with it, too. */
static void checkpoint_verify_where(
	const struct checkpoint_tool *t, const struct checkpoint_health *h, char *out, size_t bytes)
{
	size_t at = 0;

	out[0] = '\0';
	for (unsigned i = 0; i < t->place.target_count && at < bytes; i++) {
		const char *join = at ? ", " : "";

		if (h->targets[i].stripes_bad)
			at += (size_t)snprintf(out + at, bytes - at, "%s%s has bad stripes (%" PRIu64 ")", join,
				t->place.targets[i], h->targets[i].stripes_bad);
		else if (h->targets[i].table_bad)
			at += (size_t)snprintf(out + at, bytes - at, "%s%s has a bad table", join, t->place.targets[i]);
		else if (!h->targets[i].has && h->pieces_missing)
			at += (size_t)snprintf(
				out + at, bytes - at, "%s%s has no whole file of it", join, t->place.targets[i]);
	}
}

static void checkpoint_verify_tell(const struct checkpoint_tool *t, const struct checkpoint_check *c)
{
	const struct checkpoint_health *h = &c->health;
	char where[1024], to[1024], from[1024];
	size_t at = 0;

	checkpoint_verify_where(t, h, where, sizeof(where));
	to[0] = from[0] = '\0';
	for (unsigned i = 0; i < c->entry->wanted + c->entry->parity && at < sizeof(to); i++)
		at += (size_t)snprintf(to + at, sizeof(to) - at, " --to DIR%u", i + 1);
	at = 0;
	for (unsigned i = 0; i < t->place.target_count && at < sizeof(from); i++)
		at += (size_t)snprintf(from + at, sizeof(from) - at, " '%s'", t->place.targets[i]);
	output_error("job '%s' round %" PRIu64 " is damaged: %s (%" PRIu64 " of its %" PRIu64
		     " stripes are bad, %u files are missing, %u tables are bad). Parity makes up for it; before more "
		     "of it is lost write it anew, with a directory on a good disk for each DIR: `phub checkpoint "
		     "restore --job '%s' --round %" PRIu64 " --parity %u%s%s`",
		t->place.job, c->entry->round, where, h->stripes_bad, h->stripes, h->pieces_missing, h->tables_bad,
		t->place.job, c->entry->round, c->entry->parity, to, from);
}

static json_t *checkpoint_verify_json_targets(const struct checkpoint_tool *t, const struct checkpoint_health *h)
{
	json_t *targets = json_array();

	for (unsigned i = 0; i < t->place.target_count; i++)
		json_array_append_new(
			targets, json_pack("{s:s, s:b, s:b, s:I}", "directory", t->place.targets[i], "has_file",
					 (int)h->targets[i].has, "table_bad", (int)h->targets[i].table_bad,
					 "stripes_bad", (json_int_t)h->targets[i].stripes_bad));
	return targets;
}

static bool checkpoint_verify_say(
	struct checkpoint_tool *t, const struct checkpoint_check *c, int rc, struct checkpoint_verdicts *v)
{
	const struct checkpoint_health *h = &c->health;
	bool damaged = rc == 0 && (h->stripes_bad || h->pieces_missing || h->tables_bad);
	const char *verdict = rc < 0 ? "lost" : damaged ? "damaged" : "good";

	if (damaged)
		checkpoint_verify_tell(t, c);
	v->damaged = v->damaged || damaged;

	if (t->json)
		return output_json(json_pack("{s:s, s:I, s:s, s:I, s:I, s:I, s:I, s:i, s:i, s:o}", "job", t->place.job,
			"round", (json_int_t)c->entry->round, "verdict", verdict, "chunks", (json_int_t)h->chunks,
			"chunks_lost", (json_int_t)h->chunks_lost, "stripes", (json_int_t)h->stripes, "stripes_bad",
			(json_int_t)h->stripes_bad, "files_missing", (int)h->pieces_missing, "tables_bad",
			(int)h->tables_bad, "targets", checkpoint_verify_json_targets(t, h)));
	output_cell(&v->table, "%s", t->place.job);
	output_cell(&v->table, "%" PRIu64, c->entry->round);
	output_cell(&v->table, "%" PRIu64, h->chunks);
	output_cell(&v->table, "%" PRIu64, h->chunks_lost);
	output_cell(&v->table, "%" PRIu64 " of %" PRIu64, h->stripes_bad, h->stripes);
	output_cell(&v->table, "%u", h->pieces_missing);
	output_cell(&v->table, "%s", verdict);
	return true;
}

static bool checkpoint_verify_each(struct checkpoint_tool *t, const struct checkpoint_entry *entry, void *arg)
{
	struct checkpoint_check check = {.place = &t->place, .entry = entry};
	struct checkpoint_verdicts *v = arg;
	int rc = checkpoint_tool_work(t->place.job, &check.progress, checkpoint_check, &check);

	if (rc == -ECANCELED) {
		output_error("stopped");
		v->stopped = true;
		return false;
	}
	if (rc < 0)
		output_error("job '%s' round %" PRIu64 ": %s", t->place.job, entry->round, check.e.text);
	v->lost = v->lost || rc < 0;
	return checkpoint_verify_say(t, &check, rc, v);
}

int checkpoint_verify_run(int argc, char **argv)
{
	struct checkpoint_tool t = {0};
	const struct args_option options[] = {
		{"job", "NAME", "only this job's", ARGS_TEXT, &t.job, 0, 0, NULL},
		{"round", "R", "only those before this round", ARGS_NUMBER, &t.round, 1, UINT64_MAX, NULL},
		{"json", NULL, "one JSON object a line", ARGS_FLAG, &t.json, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {
		.command = "phub checkpoint verify",
		.words = "DIR...",
		.about =
			"Reads checkpoints to the last byte and looks at every checksum, those of parity too: `good`;\n"
			"`damaged`, which restore can mend; or `lost`. Fails when any is not good.\n",
		.examples = "  phub checkpoint verify --job mnist /mnt/a /mnt/b /mnt/c\n",
		.words_max = ARGS_WORDS_MAX,
		.options = options,
	};
	struct checkpoint_verdicts v = {
		.table = {.heads = {"job", "round", "chunks", "lost", "bad stripes", "missing files", "verdict"},
			.align = "lrrrrrl"}};
	struct args_words words;
	unsigned found = 0;
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc == ARGS_GO_ON)
		rc = checkpoint_need_directory(&usage, &words);
	if (rc != ARGS_GO_ON)
		return rc;
	rc = checkpoint_tool_begin(&t, &words);
	if (rc == CLI_DONE)
		rc = checkpoint_each(&t, checkpoint_verify_each, &v, &found);
	if (v.table.count)
		output_table_print(&v.table);
	if (rc == CLI_DONE && !found) {
		output_error("no checkpoint is there");
		rc = CLI_FAILED;
	}
	checkpoint_tool_end(&t);
	return v.lost || v.damaged ? CLI_FAILED : rc;
}

/* ---- restore ---- */

struct checkpoint_restore {
	struct checkpoint_tool tool;
	struct args_texts to;
	uint64_t parity;
	struct checkpoint_place place;
	struct checkpoint_table table;
	struct checkpoint_progress progress;
	uint64_t repaired;
	struct err e;
};

static int checkpoint_restore_work(void *arg)
{
	struct checkpoint_restore *r = arg;

	return checkpoint_copy(&r->tool.place, &r->table, &r->place, &r->progress, &r->repaired, &r->e);
}

static int checkpoint_restore(struct checkpoint_restore *r)
{
	int rc;

	r->place.job = r->tool.place.job;
	r->place.parity = (unsigned)r->parity;
	for (unsigned i = 0; i < r->to.count; i++)
		r->place.targets[r->place.target_count++] = r->to.at[i];
	rc = checkpoint_tool_work(r->place.job, &r->progress, checkpoint_restore_work, r);
	if (rc != 0)
		output_error("%s", r->e.text);
	if (rc < 0)
		return CLI_FAILED;
	printf("job '%s' round %" PRIu64 ": %" PRIu32 " chunks, %" PRIu64 " stripes repaired, in %u files\n",
		r->place.job, r->table.round, r->table.chunk_count, r->repaired, r->place.target_count - (unsigned)rc);
	/* All that was asked for is there, or the caller hears of it. */
	return rc == 0 ? CLI_DONE : CLI_FAILED;
}

int checkpoint_restore_run(int argc, char **argv)
{
	struct checkpoint_restore r = {.parity = 0};
	const struct args_option options[] = {
		{"to", "DIR", "where to; once for each file of k + m", ARGS_TEXTS, &r.to, 0, 0, NULL},
		{"parity", "M", "so many of them may be lost (0)", ARGS_NUMBER, &r.parity, 0,
			CHECKPOINT_TARGETS_MAX - 1, NULL},
		{"job", "NAME", "this job's; when there are several", ARGS_TEXT, &r.tool.job, 0, 0, NULL},
		{"round", "R", "the one before this round (the newest)", ARGS_NUMBER, &r.tool.round, 1, UINT64_MAX,
			NULL},
		{"rate", "BYTES", "write so much a second at most", ARGS_BYTES, &r.progress.bytes_per_s, 1, UINT64_MAX,
			NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {
		.command = "phub checkpoint restore",
		.words = "DIR...",
		.about =
			"Writes a checkpoint, repaired by its parity, into other directories, or into the same: there\n"
			"it becomes the newest. What is there stays.\n",
		.examples = "  phub checkpoint restore --to /mnt/d /mnt/a /mnt/b\n"
			    "  phub checkpoint restore --parity 1 --to /mnt/a --to /mnt/b --to /mnt/c /mnt/a /mnt/b\n",
		.words_max = ARGS_WORDS_MAX,
		.options = options,
	};
	struct args_words words;
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc == ARGS_GO_ON)
		rc = checkpoint_need_directory(&usage, &words);
	if (rc == ARGS_GO_ON && !r.to.count)
		rc = args_wrong(&usage, "where to? Give --to");
	if (rc != ARGS_GO_ON)
		return rc;
	rc = checkpoint_tool_begin(&r.tool, &words);
	if (rc == CLI_DONE)
		rc = checkpoint_tool_pick(&r.tool, &r.table);
	if (rc == CLI_DONE) {
		rc = checkpoint_restore(&r);
		checkpoint_table_fini(&r.table);
	}
	checkpoint_tool_end(&r.tool);
	return rc;
}

/* ---- rm ---- */

struct checkpoint_rm {
	struct checkpoint_tool tool;
	struct output_table table;
	bool yes, force;
};

static bool checkpoint_rm_show(struct checkpoint_tool *t, const struct checkpoint_entry *entry, void *arg)
{
	checkpoint_ls_row(arg, t->place.job, entry);
	return true;
}

static bool checkpoint_rm_each(struct checkpoint_tool *t, const struct checkpoint_entry *entry, void *arg)
{
	struct err e;

	(void)arg;
	if (checkpoint_remove(&t->place, entry, &e) == 0)
		return true;
	output_error("%s", e.text);
	return false;
}

/* Does a box that runs keep them here, in this job? True: not, as far as it says. */
static bool checkpoint_rm_is_idle(const struct checkpoint_rm *r)
{
	const struct checkpoint_tool *t = &r->tool;
	struct disk *disk = checkpoint_disk(&t->place);
	struct admin_answer answer;
	const char *target = NULL;
	char who[128], text[sizeof(who) + 16];
	bool runs = false;
	struct err e;

	for (unsigned i = 0; i < t->place.target_count && !target; i++)
		if (disk->ops->is_locked(disk, t->place.targets[i], who, sizeof(who)))
			target = t->place.targets[i];
	if (!target || r->force)
		return true;
	snprintf(text, sizeof(text), strncmp(who, "0.0.0.0:", 8) == 0 ? "127.0.0.1:%s" : "%s",
		strncmp(who, "0.0.0.0:", 8) == 0 ? who + 8 : who);
	if (!who[0] || admin_ask(text, "jobs", 3000, &answer, &e) < 0) {
		output_error("nothing was removed: a phubd that runs keeps its checkpoints in %s, and cannot be asked "
			     "whether job '%s' runs there%s%s; stop it, or give --force",
			target, t->job, who[0] ? ": " : "", who[0] ? e.text : "");
		return false;
	}
	for (size_t i = 0; i < answer.reply->n_jobs; i++)
		runs = runs || strcmp(answer.reply->jobs[i]->name, t->job) == 0;
	admin_answer_fini(&answer);
	if (runs)
		output_error(
			"nothing was removed: job '%s' runs at box %s, and these are its checkpoints; end it first "
			"(phub jobs drain '%s' %s)",
			t->job, text, t->job, text);
	return !runs;
}

/* Said by --yes, or by who sits there. */
static bool checkpoint_rm_agreed(const struct checkpoint_rm *r)
{
	char answer[8] = "";

	if (r->yes)
		return true;
	if (!isatty(STDIN_FILENO)) {
		output_error("nothing was removed: nobody is there to ask; give --yes");
		return false;
	}
	fputs("Remove them for good? Type yes: ", stderr);
	if (fgets(answer, sizeof(answer), stdin) && strcmp(answer, "yes\n") == 0)
		return true;
	output_error("nothing was removed");
	return false;
}

/* A disk that is away brings back what it has: that is said, and is no success. */
static int checkpoint_rm_absent(const struct checkpoint_tool *t)
{
	struct checkpoint_absent absent;
	struct checkpoint_entry *entries;
	unsigned count;

	if (checkpoint_list_there(&t->place, &entries, &count, &absent, NULL) < 0)
		return CLI_FAILED;
	free(entries);
	if (absent.count == 0)
		return CLI_DONE;
	output_error("%u of the directories cannot be looked into: what they hold stays (%s)", absent.count,
		absent.why.text);
	return CLI_FAILED;
}

static int checkpoint_rm(struct checkpoint_rm *r)
{
	struct checkpoint_tool *t = &r->tool;
	unsigned found = 0;
	struct err e;
	int rc = checkpoint_each(t, checkpoint_rm_show, &r->table, &found);

	if (rc == CLI_DONE && !found) {
		output_error("job '%s' has no such checkpoint here", t->job);
		rc = CLI_FAILED;
	}
	if (rc != CLI_DONE)
		return rc;
	output_table_print(&r->table);
	fflush(stdout);
	if (!checkpoint_rm_is_idle(r) || !checkpoint_rm_agreed(r))
		return CLI_FAILED;
	rc = checkpoint_each(t, checkpoint_rm_each, NULL, &found);
	if (rc == CLI_DONE && !t->round && checkpoint_remove_all(&t->place, &e) < 0) {
		output_error("%s", e.text);
		rc = CLI_FAILED;
	}
	return rc == CLI_DONE ? checkpoint_rm_absent(t) : rc;
}

int checkpoint_rm_run(int argc, char **argv)
{
	struct checkpoint_rm r = {
		.table = {.heads = {"job", "round", "written", "bytes", "files", "state"}, .align = "lrlrll"}};
	const struct args_option options[] = {
		{"job", "NAME", "whose; must be given", ARGS_TEXT, &r.tool.job, 0, 0, NULL},
		{"round", "R", "only those before this round", ARGS_NUMBER, &r.tool.round, 1, UINT64_MAX, NULL},
		{"yes", NULL, "do not ask", ARGS_FLAG, &r.yes, 0, 0, NULL},
		{"force", NULL, "also of a job that may run", ARGS_FLAG, &r.force, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {
		.command = "phub checkpoint rm",
		.words = "DIR...",
		.about = "Removes a job's checkpoints, so that a job of its name begins anew. Shows them and asks\n"
			 "first. Not while the job runs, which the box is asked.\n",
		.examples = "  phub checkpoint rm --job mnist /mnt/a /mnt/b /mnt/c\n",
		.words_max = ARGS_WORDS_MAX,
		.options = options,
	};
	struct args_words words;
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc == ARGS_GO_ON)
		rc = checkpoint_need_directory(&usage, &words);
	if (rc == ARGS_GO_ON && !r.tool.job)
		rc = args_wrong(&usage, "whose? Give --job");
	if (rc != ARGS_GO_ON)
		return rc;
	rc = checkpoint_tool_begin(&r.tool, &words);
	if (rc == CLI_DONE)
		rc = checkpoint_rm(&r);
	checkpoint_tool_end(&r.tool);
	return rc;
}
