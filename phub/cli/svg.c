/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SVG, piece by piece.
 */
#include "phub/cli/svg.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

FILE *svg_open(const char *path, unsigned width, unsigned height, struct err *e)
{
	FILE *file = fopen(path, "we");

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

int svg_close(FILE *file, const char *path, struct err *e)
{
	bool bad;

	fputs("</svg>\n", file);
	bad = ferror(file) != 0;
	if (fclose(file) != 0 || bad)
		return err_set(e, -EIO, "cannot write %s: %s", path, strerror(errno ? errno : EIO));
	return 0;
}

void svg_text(FILE *file, unsigned x, unsigned y, const char *class, const char *text)
{
	fprintf(file, "<text x=\"%u\" y=\"%u\" class=\"%s\">", x, y, class);
	for (; *text; text++) {
		if (*text == '<')
			fputs("&lt;", file);
		else if (*text == '&')
			fputs("&amp;", file);
		else if (*text == '>')
			fputs("&gt;", file);
		else
			fputc(*text, file);
	}
	fputs("</text>\n", file);
}

void svg_rect(FILE *file, unsigned x, unsigned y, unsigned width, unsigned height, const char *fill, const char *stroke,
	double stroke_width)
{
	fprintf(file,
		"<rect x=\"%u\" y=\"%u\" width=\"%u\" height=\"%u\" rx=\"5\" fill=\"%s\" stroke=\"%s\" "
		"stroke-width=\"%.1f\"/>\n",
		x, y, width, height, fill, stroke, stroke_width);
}
