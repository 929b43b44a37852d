/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SVG, piece by piece.
 */
#include "phub/cli/svg.h"

#include <errno.h>
#include <string.h>

#include "phub/cli/output.h"

FILE *svg_open(const char *path, unsigned width, unsigned height, struct beside *place, struct err *e)
{
	FILE *file;

	if (beside_begin(path, place, e) < 0)
		return NULL;
	file = fopen(place->part, "we");
	if (!file) {
		err_set(e, -errno, "cannot write %s: %s", path, strerror(errno));
		return NULL;
	}
	fprintf(file,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%u\" height=\"%u\" viewBox=\"0 0 %u %u\">\n"
		"<style>text{font-family:sans-serif;fill:#222}.small{font-size:10px}.name{font-size:12px}"
		".title{font-size:14px;font-weight:bold}</style>\n"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
		width, height, width, height);
	return file;
}

int svg_close(FILE *file, const struct beside *place, struct err *e)
{
	bool bad;
	int rc;

	fputs("</svg>\n", file);
	bad = ferror(file) != 0;
	if (fclose(file) == 0 && !bad)
		return beside_end(place, true, e);
	rc = err_set(e, -EIO, "cannot write %s: %s", place->path, strerror(errno ? errno : EIO));
	beside_end(place, false, NULL);
	return rc;
}

/* Control characters have no place in XML, not even escaped. */
static void svg_escape(FILE *file, const char *text)
{
	while (*text) {
		const unsigned bytes = output_character(text);

		if (bytes == 0)
			fputs("\ufffd", file);
		else if (*text == '<')
			fputs("&lt;", file);
		else if (*text == '&')
			fputs("&amp;", file);
		else if (*text == '>')
			fputs("&gt;", file);
		else if ((unsigned char)*text < 0x20)
			fputc(' ', file);
		else
			fwrite(text, 1, bytes, file);
		text += bytes ? bytes : 1;
	}
}

void svg_text(FILE *file, unsigned x, unsigned y, const char *class, const char *text)
{
	fprintf(file, "<text x=\"%u\" y=\"%u\" class=\"%s\">", x, y, class);
	svg_escape(file, text);
	fputs("</text>\n", file);
}

void svg_label(FILE *file, double x, double y, const char *class, const char *anchor, bool up, const char *text)
{
	fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\"", x, y, class, anchor);
	if (up)
		fprintf(file, " transform=\"rotate(-90 %.1f %.1f)\"", x, y);
	fputc('>', file);
	svg_escape(file, text);
	fputs("</text>\n", file);
}

void svg_line(
	FILE *file, double x1, double y1, double x2, double y2, const char *stroke, double width, const char *dash)
{
	fprintf(file, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"%.1f\"", x1,
		y1, x2, y2, stroke, width);
	if (dash)
		fprintf(file, " stroke-dasharray=\"%s\"", dash);
	fputs("/>\n", file);
}

void svg_block(FILE *file, double x, double y, double width, double height, const char *fill)
{
	fprintf(file, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\"/>\n", x, y, width, height,
		fill);
}

void svg_dot(FILE *file, double x, double y, double radius, const char *fill)
{
	fprintf(file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\"/>\n", x, y, radius, fill);
}

void svg_rect(FILE *file, unsigned x, unsigned y, unsigned width, unsigned height, const char *fill, const char *stroke,
	double stroke_width)
{
	fprintf(file,
		"<rect x=\"%u\" y=\"%u\" width=\"%u\" height=\"%u\" rx=\"5\" fill=\"%s\" stroke=\"%s\" "
		"stroke-width=\"%.1f\"/>\n",
		x, y, width, height, fill, stroke, stroke_width);
}
