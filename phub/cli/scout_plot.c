/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub scout plot: pictures of runs. The panels (scout_panel.h) stand below each other, in one SVG; a PNG is made of
 * that by rsvg-convert.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "phub/cli/args.h"
#include "phub/cli/beside.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"
#include "phub/cli/scout.h"
#include "phub/cli/scout_check.h"
#include "phub/cli/scout_log.h"
#include "phub/cli/scout_panel.h"
#include "phub/cli/svg.h"

enum { PLOT_EXIT_NO_PROGRAM = 127 };

static const char plot_no_program[] = "a PNG needs rsvg-convert: apt install librsvg2-bin, or write an .svg";

/* ---- the picture ---- */

/* How high it becomes is known when all are drawn, and stands before them. */
static int plot_panels(struct panel_page *page, char **out, size_t *bytes, struct err *e)
{
	page->file = open_memstream(out, bytes);
	if (!page->file)
		return err_set(e, -ENOMEM, "out of memory");
	panel_thetas(page);
	panel_accuracy_lost(page);
	panel_losses(page);
	panel_links(page);
	panel_front(page);
	for (unsigned l = 0; l < page->count; l++)
		panel_heat(page, l);
	if (fclose(page->file) != 0)
		return err_set(e, -ENOMEM, "out of memory");
	if (page->y <= 0)
		return err_set(e, -ENODATA,
			"nothing to be drawn: no windows, and no two runs of which the accuracy and what was sent are "
			"known; take the log "
			"of a run with a scout (--policy), or several of runs that tell their accuracy (score)");
	return 0;
}

static int plot_draw(struct panel_page *page, const char *path, struct err *e)
{
	struct beside place;
	char *panels = NULL;
	size_t bytes = 0;
	FILE *file;
	int rc = plot_panels(page, &panels, &bytes, e);

	if (rc == 0) {
		file = svg_open(path, PANEL_WIDTH, (unsigned)page->y, &place, e);
		if (file) {
			fwrite(panels, 1, bytes, file);
			rc = svg_close(file, &place, e);
		} else {
			rc = e->code;
		}
	}
	free(panels);
	return rc;
}

/* Twice the pixels: 800 is little in print. */
static int plot_convert(const char *svg, const struct beside *png, struct err *e)
{
	const char *const argv[] = {"rsvg-convert", "--zoom", "2", "--output", png->part, svg, NULL};
	int status = 0;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid < 0)
		return err_set(e, -errno, "could not fork: %s", strerror(errno));
	if (pid == 0) {
		execvp(argv[0], (char *const *)(uintptr_t)argv);
		_exit(PLOT_EXIT_NO_PROGRAM);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFEXITED(status) && WEXITSTATUS(status) == PLOT_EXIT_NO_PROGRAM)
		return err_set(e, -ENOENT, "%s", plot_no_program);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		return err_set(e, -EIO, "rsvg-convert could not write %s; its own message says why", png->path);
	return 0;
}

static bool plot_is(const char *out, const char *ending)
{
	size_t length = strlen(out);

	return length > 4 && length < 4000 && strcmp(out + length - 4, ending) == 0;
}

static int plot_write(struct panel_page *page, const char *out, struct err *e)
{
	char path[PATH_MAX + 16];
	struct beside place;
	int rc;

	if (!plot_is(out, ".png"))
		return plot_draw(page, out, e);
	rc = beside_begin(out, &place, e);
	if (rc < 0)
		return rc;
	snprintf(path, sizeof(path), "%s.%d.svg", place.to, (int)getpid());
	rc = plot_draw(page, path, e);
	if (rc == 0)
		rc = plot_convert(path, &place, e);
	unlink(path);
	if (rc == 0)
		return beside_end(&place, true, e);
	beside_end(&place, false, NULL);
	return rc;
}

/* What would be in the way is said before logs are read. */
static int plot_check(const char *out, struct err *e)
{
	if (plot_is(out, ".png") && scout_check_command("rsvg-convert", NULL) < 0)
		return err_set(e, -ENOENT, "%s", plot_no_program);
	return beside_try(out, e);
}

static int plot_open(const struct args_words *words, const char *out)
{
	static struct panel_page page;
	struct scout_log logs[ARGS_WORDS_MAX];
	struct err e = {0};
	int rc = CLI_FAILED;

	if (plot_check(out, &e) < 0) {
		output_error("%s", e.text);
		return CLI_FAILED;
	}
	page.logs = logs;
	while (page.count < words->count && scout_log_open(words->at[page.count], &logs[page.count])) {
		page.totals[page.count] = scout_log_total(&logs[page.count]);
		page.steps = fmax(page.steps, (double)page.totals[page.count].t);
		page.count++;
	}
	if (page.count == words->count) {
		scout_log_tell_apart(logs, page.count);
		rc = plot_write(&page, out, &e) < 0 ? CLI_FAILED : CLI_DONE;
		if (rc == CLI_FAILED)
			output_error("%s", e.text);
	}
	for (unsigned i = 0; i < page.count; i++)
		scout_log_free(&logs[i]);
	return rc;
}

int scout_plot_run(int argc, char **argv)
{
	const char *out = NULL;
	const struct args_option options[] = {
		{"out", "FILE", "the picture: FILE.svg, or FILE.png, which needs rsvg-convert (librsvg2-bin)",
			ARGS_TEXT, &out, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {.command = "phub scout plot",
		.words = "LOG...",
		.about = "A picture of runs, by their decision logs: theta, accuracy lost on other sites' data and "
			 "losses over\n"
			 "time; bytes by class of links, where sites have others within; of several runs, bytes "
			 "against accuracy with\nthe Pareto front of fixed thetas; the alignment r of each tensor.\n"
			 "What the logs do not know is left out. - is standard input.\n",
		.examples = "  phub scout plot --out run.svg run.jsonl\n"
			    "  phub scout plot --out all.png bsp.jsonl hill.jsonl local-*.jsonl\n",
		.words_max = ARGS_WORDS_MAX,
		.options = options};
	struct args_words words;
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc != ARGS_GO_ON)
		return rc;
	if (words.count == 0)
		return args_wrong(&usage, "which logs?");
	if (!out || (!plot_is(out, ".svg") && !plot_is(out, ".png")))
		return args_wrong(&usage, "--out %s: a picture is FILE.svg or FILE.png", out ? out : "is missing");
	return plot_open(&words, out);
}
