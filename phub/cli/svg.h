/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pieces of a picture, written to a file as SVG. For phub topo and phub scout plot.
 */
#ifndef PHUB_CLI_SVG_H
#define PHUB_CLI_SVG_H

#include <stdbool.h>
#include <stdio.h>

#include "phub/base/err.h"
#include "phub/cli/beside.h"

/* Opens a file beside `path` (beside.h), which `place` keeps, and writes the head: classes `small` (10 px), `name`
 * (12 px) and `title` (14 px, bold) of text. NULL with the reason in `e`. */
FILE *svg_open(const char *path, unsigned width, unsigned height, struct beside *place, struct err *e);
/* Writes the end, and the picture takes its place. 0, or a negative errno when not all of it could be written: then
 * what was there is as it was. */
int svg_close(FILE *file, const struct beside *place, struct err *e);

/* What is no markup in the text, and UTF-8, whatever is: names come from files and from the kernel. */
void svg_text(FILE *file, unsigned x, unsigned y, const char *class, const char *text);
void svg_rect(FILE *file, unsigned x, unsigned y, unsigned width, unsigned height, const char *fill, const char *stroke,
	double stroke_width);

/* Text that begins ("start"), has its middle ("middle") or ends ("end") at a point; `up`: it runs upwards. */
void svg_label(FILE *file, double x, double y, const char *class, const char *anchor, bool up, const char *text);
/* `dash` as "4 3", or NULL for a line without gaps. */
void svg_line(
	FILE *file, double x1, double y1, double x2, double y2, const char *stroke, double width, const char *dash);
/* A rectangle without a border or round corners. */
void svg_block(FILE *file, double x, double y, double width, double height, const char *fill);
void svg_dot(FILE *file, double x, double y, double radius, const char *fill);

#endif
