/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The name beside has this process's number in it: two that write the same file do not write into each other's.
 */
#include "phub/cli/beside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void beside_folder(const char *path, char folder[PATH_MAX])
{
	const char *slash = strrchr(path, '/');

	snprintf(folder, PATH_MAX, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
}

static bool beside_may(const char *path)
{
	char folder[PATH_MAX];
	struct stat status;

	beside_folder(path, folder);
	if (stat(path, &status) == 0 && (!S_ISREG(status.st_mode) || access(folder, W_OK | X_OK) < 0))
		return false;
	return true;
}

int beside_begin(const char *path, struct beside *out, struct err *e)
{
	int length = 0;

	out->path = path;
	if (!realpath(path, out->to))
		length = snprintf(out->to, sizeof(out->to), "%s", path);
	if (length < (int)sizeof(out->to) && beside_may(out->to))
		length = snprintf(out->part, sizeof(out->part), "%s.%d.part", out->to, (int)getpid());
	else
		memcpy(out->part, out->to, sizeof(out->part));
	if (length >= (int)sizeof(out->part))
		return err_set(e, -ENAMETOOLONG, "cannot write %.100s...: %s", path, strerror(ENAMETOOLONG));
	return 0;
}

int beside_try(const char *path, struct err *e)
{
	struct beside place;
	struct stat status;
	int fd, rc = beside_begin(path, &place, e);

	if (rc < 0)
		return rc;
	if (stat(place.to, &status) == 0 && S_ISDIR(status.st_mode))
		return err_set(e, -EISDIR, "cannot write %s: %s", path, strerror(EISDIR));
	if (strcmp(place.part, place.to) == 0)
		return access(place.to, W_OK) == 0 ? 0
						   : err_set(e, -errno, "cannot write %s: %s", path, strerror(errno));
	fd = open(place.part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_set(e, -errno, "cannot write %s: %s", path, strerror(errno));
	close(fd);
	unlink(place.part);
	return 0;
}

int beside_end(const struct beside *b, bool whole, struct err *e)
{
	int rc;

	if (strcmp(b->part, b->to) == 0)
		return 0;
	if (whole && rename(b->part, b->to) == 0)
		return 0;
	rc = -errno;
	unlink(b->part);
	return whole ? err_set(e, rc, "cannot write %s: %s", b->path, strerror(-rc)) : 0;
}
