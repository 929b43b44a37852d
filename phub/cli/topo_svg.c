/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The picture of a rack file: racks side by side under what links them, and, with a model, how much of a round each
 * link is busy, beside the busiest.
 */
#include "phub/cli/topo_racks.h"

#include "phub/cli/output.h"
#include "phub/cli/svg.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
	SVG_RACK_WIDTH = 270,
	SVG_GAP = 24,
	SVG_ROW = 60,
	SVG_HEAD = 120,    /* down to the racks' tops */
	SVG_BOX_ROWS = 76, /* of a box */
	SVG_LEGEND = 70,
};

struct svg {
	FILE *file;
	const struct topo_racks *t;
	const struct topo_traffic *traffic; /* NULL: no model */
	unsigned width, height;
};

/* From light blue, idle, to red: the busiest link of the round. */
static void svg_colour(const struct svg *s, double seconds, char out[8])
{
	double share = s->traffic && s->traffic->seconds > 0 ? seconds / s->traffic->seconds : 0;

	snprintf(out, 8, "#%02x%02x%02x", (unsigned)(70 + 150 * share), (unsigned)(130 - 80 * share),
		(unsigned)(200 - 150 * share));
}

static double svg_width(const struct svg *s, double seconds)
{
	return s->traffic && s->traffic->seconds > 0 ? 2 + 8 * sqrt(seconds / s->traffic->seconds) : 2;
}

/* A link from above, with its rate and what a round moves over it. */
static void svg_link(
	struct svg *s, unsigned x, unsigned top, unsigned bottom, double rate, const struct ways_load *load)
{
	double seconds = load ? topo_racks_seconds(load, rate) : 0;
	char colour[8], text[120], part[32];

	svg_colour(s, seconds, colour);
	fprintf(s->file, "<line x1=\"%u\" y1=\"%u\" x2=\"%u\" y2=\"%u\" stroke=\"%s\" stroke-width=\"%.1f\"/>\n", x,
		top, x, bottom, colour, svg_width(s, seconds));
	snprintf(text, sizeof(text), "%s/s", output_rate(rate, part));
	svg_text(s->file, x + 10, bottom - 28, "small", text);
	if (!load || !s->traffic)
		return;
	snprintf(text, sizeof(text), "chunks: %" PRIu64 " up, %" PRIu64 " down", load->chunks_out, load->chunks_in);
	svg_text(s->file, x + 10, bottom - 16, "small", text);
	snprintf(text, sizeof(text), "%.1f up, %.1f down MB, %s ms", (double)load->out / 1e6, (double)load->in / 1e6,
		cost_ms(seconds, part));
	svg_text(s->file, x + 10, bottom - 4, "small", text);
}

/* The box of this number that takes part, or -1. */
static int svg_part(const struct topo_racks *t, unsigned box)
{
	for (unsigned i = 0; i < t->way_boxes; i++)
		if (t->box_of_way[i] == (int)box)
			return (int)i;
	return -1;
}

static void svg_box(struct svg *s, unsigned index, unsigned x, unsigned y)
{
	const struct rack_box *box = &s->t->racks.boxes[index];
	int number = svg_part(s->t, index);
	char text[160], part[32], colour[8] = "#888888";
	double seconds =
		number >= 0 && s->traffic ? topo_racks_seconds(&s->traffic->boxes[number], box->rate_bytes_s) : 0;

	if (number >= 0)
		svg_colour(s, seconds, colour);
	svg_rect(
		s->file, x, y, SVG_RACK_WIDTH - 24, SVG_BOX_ROWS - 8, "#fff7e6", colour, svg_width(s, seconds) / 2 + 1);
	snprintf(text, sizeof(text), "%s  %s/s%s", box->name, output_rate(box->rate_bytes_s, part),
		number < 0 ? "  (spare)" : "");
	svg_text(s->file, x + 8, y + 16, "name", text);
	if (s->traffic && number >= 0) {
		snprintf(text, sizeof(text), "%.1f in, %.1f out MB, %s ms", (double)s->traffic->boxes[number].in / 1e6,
			(double)s->traffic->boxes[number].out / 1e6, cost_ms(seconds, part));
		svg_text(s->file, x + 8, y + 31, "small", text);
		snprintf(text, sizeof(text), "chunks: %" PRIu64 " in, %" PRIu64 " out",
			s->traffic->boxes[number].chunks_in, s->traffic->boxes[number].chunks_out);
		svg_text(s->file, x + 8, y + 45, "small", text);
		snprintf(text, sizeof(text), "home of %u chunks: %.1f MB", s->t->homes[number].chunks,
			(double)s->t->homes[number].bytes / 1e6);
		if (box->cores)
			snprintf(text + strlen(text), sizeof(text) - strlen(text), ", %.1f a core",
				(double)s->t->homes[number].core_most / 1e6);
		svg_text(s->file, x + 8, y + 59, "small", text);
	} else {
		snprintf(text, sizeof(text), "%.60s:%u", box->host, box->port);
		svg_text(s->file, x + 8, y + 31, "small", text);
	}
}

static void svg_host(struct svg *s, const struct rack_host *host, unsigned x, unsigned y)
{
	struct ways_load load = topo_racks_host(s->t, host);
	double seconds = s->traffic ? topo_racks_seconds(&load, host->rate_bytes_s) : 0;
	char text[160], rate[32], part[32], colour[8];

	output_rate(host->rate_bytes_s, rate);
	svg_colour(s, seconds, colour);
	svg_rect(s->file, x, y, SVG_RACK_WIDTH - 24, SVG_ROW - 8, "#f4f8ff", colour, svg_width(s, seconds) / 2 + 1);
	snprintf(text, sizeof(text), "%s  %u worker%s%s", host->name, host->workers, host->workers == 1 ? "" : "s",
		s->t->options->hostbox ? ", summed here" : "");
	svg_text(s->file, x + 8, y + 16, "name", text);
	if (s->traffic)
		snprintf(text, sizeof(text), "%s/s: %.1f MB each way, %s ms", rate, (double)load.out / 1e6,
			cost_ms(seconds, part));
	else
		snprintf(text, sizeof(text), "%s/s", rate);
	svg_text(s->file, x + 8, y + 30, "small", text);
	if (!s->traffic)
		return;
	snprintf(text, sizeof(text), "chunks: %" PRIu64 " each way", load.chunks_out);
	svg_text(s->file, x + 8, y + 44, "small", text);
}

/* Rows that rack `i` takes; draws it when x is not 0. */
static unsigned svg_rack(struct svg *s, unsigned i, unsigned x)
{
	const struct racks *r = &s->t->racks;
	unsigned y = SVG_HEAD + 30;

	if (x > 0 && r->rack_count > 1)
		svg_link(s, x + SVG_RACK_WIDTH / 2 - 60, 52, SVG_HEAD, r->racks[i].uplink_bytes_s,
			s->traffic ? &s->traffic->uplinks[i] : NULL);
	if (x > 0)
		svg_rect(s->file, x, SVG_HEAD, SVG_RACK_WIDTH, s->height - SVG_LEGEND - SVG_HEAD, "#fafafa", "#999999",
			1);
	if (x > 0)
		svg_text(s->file, x + 12, SVG_HEAD + 20, "title", r->racks[i].name);
	for (unsigned box = 0; box < r->box_count; box++) {
		if (r->boxes[box].rack != i)
			continue;
		if (x > 0)
			svg_box(s, box, x + 12, y);
		y += SVG_BOX_ROWS;
	}
	for (unsigned host = 0; host < r->host_count; host++) {
		if (r->hosts[host].rack != i)
			continue;
		if (x > 0)
			svg_host(s, &r->hosts[host], x + 12, y);
		y += SVG_ROW;
	}
	return y + 8;
}

static void svg_head(struct svg *s)
{
	const struct racks *r = &s->t->racks;
	char text[200];

	if (r->rack_count < 2)
		return;
	svg_rect(s->file, SVG_GAP, 24, s->width - 2 * SVG_GAP, 28, "#e8e8e8", "#999999", 1);
	snprintf(text, sizeof(text), "between racks");
	if (r->latency_s > 0)
		snprintf(text, sizeof(text), "between racks: %.4g us", r->latency_s * 1e6);
	svg_text(s->file, SVG_GAP + 10, 43, "name", text);
}

static void svg_legend(struct svg *s)
{
	unsigned y = s->height - SVG_LEGEND + 24;
	char text[240], part[32];

	if (!s->traffic) {
		svg_text(s->file, SVG_GAP, y, "name", s->t->options->path);
		return;
	}
	snprintf(text, sizeof(text), "%s, %.1f MB a worker, %s: what one round moves. Links alone need %s ms: %s.",
		s->t->model, (double)s->t->bytes / 1e6, ways_name((enum ways_kind)s->t->options->way),
		cost_ms(s->traffic->seconds, part), s->traffic->slowest);
	svg_text(s->file, SVG_GAP, y, "name", text);
	svg_text(s->file, SVG_GAP, y + 18, "small",
		"Wide and red: the link that the round waits for; thin and blue: idle.");
}

int topo_racks_draw(const struct topo_racks *t, struct err *e)
{
	struct svg s = {.t = t, .traffic = t->options->model ? &t->traffic[t->options->way] : NULL};
	struct beside place;
	unsigned bottom = 0;

	s.width = SVG_GAP + t->racks.rack_count * (SVG_RACK_WIDTH + SVG_GAP);
	if (s.width < 640)
		s.width = 640;
	for (unsigned i = 0; i < t->racks.rack_count; i++) {
		unsigned end = svg_rack(&s, i, 0);

		bottom = end > bottom ? end : bottom;
	}
	s.height = bottom + SVG_LEGEND;
	s.file = svg_open(t->options->svg, s.width, s.height, &place, e);
	if (!s.file)
		return e->code;
	svg_head(&s);
	for (unsigned i = 0; i < t->racks.rack_count; i++)
		svg_rack(&s, i, SVG_GAP + i * (SVG_RACK_WIDTH + SVG_GAP));
	svg_legend(&s);
	return svg_close(s.file, &place, e);
}
