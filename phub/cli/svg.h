/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pieces of a picture, written to a file as SVG. For phub topo.
 */
#ifndef PHUB_CLI_SVG_H
#define PHUB_CLI_SVG_H

#include <stdio.h>

#include "phub/base/err.h"

/* Opens the file and writes the head: classes `small` (10 px), `name` (12 px) and `title` (14 px, bold) of text. NULL
 * with the reason in `e`. */
FILE *svg_open(const char *path, unsigned width, unsigned height, struct err *e);
/* Writes the end. 0, or a negative errno when not all of it could be written. */
int svg_close(FILE *file, const char *path, struct err *e);

/* What is no markup in the text: names come from files and from the kernel. */
void svg_text(FILE *file, unsigned x, unsigned y, const char *class, const char *text);
void svg_rect(FILE *file, unsigned x, unsigned y, unsigned width, unsigned height, const char *fill, const char *stroke,
	double stroke_width);

#endif
