/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/base/err.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int err_set(struct err *e, int code, const char *fmt, ...)
{
	static const char cut[] = "...";
	char text[ERR_TEXT_MAX]; /* e->text may be among the arguments */
	va_list args;

	assert(code < 0);
	if (!e)
		return code;
	va_start(args, fmt);
	int length = vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (length < 0)
		text[0] = '\0';
	else if ((size_t)length >= sizeof(text))
		memcpy(text + sizeof(text) - sizeof(cut), cut, sizeof(cut));
	e->code = code;
	memcpy(e->text, text, strlen(text) + 1);
	return code;
}
