/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text, so that an operator can read it at night; strict, so that nobody else's file is taken for one.
 */
#include "phub/control/root_file.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/crc.h"

#define ROOT_FILE_BYTES 1024u
#define ROOT_FILE_PART  ROOT_FILE_NAME ".part"
#define ROOT_FILE_HEAD  "phub root 1"

/* ---- its text ---- */

/* Returns its length. */
static size_t root_file_print(const struct root_file *file, char text[ROOT_FILE_BYTES])
{
	int length = snprintf(text, ROOT_FILE_BYTES,
		ROOT_FILE_HEAD "\nepoch %" PRIu64 "\naddress %s\ntls %d\nbox %s\nby %s\nwritten_ms %" PRIu64 "\n",
		file->epoch, file->address, file->tls, file->box, file->by, file->written_ms);
	uint32_t crc = crc_32c(0, text, (size_t)length);

	return (size_t)(length + snprintf(text + length, ROOT_FILE_BYTES - (size_t)length, "crc %08" PRIx32 "\n", crc));
}

/* What the next line says behind `name` and a space: NULL, it is another line. *at is then behind it. */
static const char *root_file_line(char **at, const char *name)
{
	char *line = *at, *end = strchr(line, '\n');
	size_t length = strlen(name);

	if (!end || strncmp(line, name, length) != 0 || line[length] != ' ')
		return NULL;
	*end = '\0';
	*at = end + 1;
	return line + length + 1;
}

static bool root_file_take_text(char **at, const char *name, char *out, size_t bytes)
{
	const char *text = root_file_line(at, name);

	if (!text || strlen(text) >= bytes)
		return false;
	memcpy(out, text, strlen(text) + 1);
	return true;
}

static bool root_file_take_number(char **at, const char *name, uint64_t *out)
{
	const char *text = root_file_line(at, name);
	char *end;

	if (!text || !isdigit((unsigned char)*text))
		return false;
	errno = 0;
	*out = strtoull(text, &end, 10);
	return errno == 0 && *end == '\0';
}

/* 0, or -EBADMSG. `text` ends in a zero, and is cut up. */
static int root_file_parse(char *text, struct root_file *out)
{
	char *sum = strstr(text, "\ncrc "), *at = text, *end;
	struct root_file file = {.epoch = 0};
	uint64_t tls;

	if (!sum || strtoull(sum + 5, &end, 16) != crc_32c(0, text, (size_t)(sum + 1 - text)) || end != sum + 13 ||
		strcmp(end, "\n") != 0 || strncmp(text, ROOT_FILE_HEAD "\n", sizeof(ROOT_FILE_HEAD)) != 0)
		return -EBADMSG;
	at += sizeof(ROOT_FILE_HEAD);
	if (!root_file_take_number(&at, "epoch", &file.epoch) || file.epoch == 0 ||
		!root_file_take_text(&at, "address", file.address, sizeof(file.address)) ||
		!root_file_take_number(&at, "tls", &tls) || tls > 1 ||
		!root_file_take_text(&at, "box", file.box, sizeof(file.box)) ||
		!root_file_take_text(&at, "by", file.by, sizeof(file.by)) ||
		!root_file_take_number(&at, "written_ms", &file.written_ms) || at != sum + 1)
		return -EBADMSG;
	file.tls = tls == 1;
	*out = file;
	return 0;
}

/* ---- one target ---- */

/* 0, with epoch 0 where there is none; -EBADMSG, or why it cannot be read. */
static int root_file_read_target(struct disk *disk, const char *target, struct root_file *out)
{
	char text[ROOT_FILE_BYTES + 1];
	int dir = disk->ops->open_dir(disk, -1, target), fd;
	ssize_t got = 0, length = 0;

	*out = (struct root_file){.epoch = 0};
	if (dir < 0)
		return dir;
	fd = disk->ops->open_file(disk, dir, ROOT_FILE_NAME);
	disk->ops->close(disk, dir);
	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	while (length < (ssize_t)ROOT_FILE_BYTES) {
		got = disk->ops->read(disk, fd, text + length, ROOT_FILE_BYTES - (size_t)length, (uint64_t)length);
		if (got <= 0)
			break;
		length += got;
	}
	disk->ops->close(disk, fd);
	if (got < 0)
		return (int)got;
	text[length] = '\0';
	return strlen(text) == (size_t)length ? root_file_parse(text, out) : -EBADMSG;
}

static int root_file_put(struct disk *disk, int dir, const char *text, size_t length)
{
	int fd = disk->ops->make_file(disk, dir, ROOT_FILE_PART, false), rc = 0;

	if (fd == -EEXIST) { /* of one who died over it: whoever has the locks is alone here */
		rc = disk->ops->remove(disk, dir, ROOT_FILE_PART);
		fd = rc < 0 ? rc : disk->ops->make_file(disk, dir, ROOT_FILE_PART, false);
	}
	if (fd < 0)
		return fd;
	rc = disk_write_all(disk, fd, text, length, 0);
	if (rc == 0)
		rc = disk->ops->sync(disk, fd);
	disk->ops->close(disk, fd);
	if (rc < 0)
		disk->ops->remove(disk, dir, ROOT_FILE_PART);
	return rc;
}

static int root_file_name_it(struct disk *disk, int dir)
{
	int rc = disk->ops->rename(disk, dir, ROOT_FILE_PART, ROOT_FILE_NAME);

	return rc < 0 ? rc : disk->ops->sync_dir(disk, dir);
}

/* ---- all of them ---- */

/* More than parity makes up for; or, where so many may be lost, as leaves readers none that has it. */
static unsigned root_file_spare(const struct checkpoint_place *place, bool writes)
{
	unsigned data = place->target_count - place->parity;

	return writes && data - 1 < place->parity ? data - 1 : place->parity;
}

static void root_file_tell(struct err *e, const char *target, int rc)
{
	if (rc == -EBADMSG)
		err_set(e, rc,
			"%s/" ROOT_FILE_NAME " is damaged, which says which box is the root; copy it from another "
			"target, or, where that is known otherwise, remove it",
			target);
	else
		err_set(e, rc, "%s/" ROOT_FILE_NAME ", which says which box is the root, cannot be read: %s", target,
			strerror(-rc));
}

int root_file_read(const struct checkpoint_place *place, struct root_file *out, struct err *e)
{
	struct root_file best = {.epoch = 0}, file;
	struct err first = {.code = 0};
	unsigned failed = 0;

	for (unsigned i = 0; i < place->target_count; i++) {
		int rc = root_file_read_target(checkpoint_disk(place), place->targets[i], &file);

		if (rc == 0 && file.epoch > best.epoch)
			best = file;
		if (rc < 0 && failed++ == 0)
			root_file_tell(&first, place->targets[i], rc);
	}
	if (failed)
		*e = first;
	if (failed > root_file_spare(place, false))
		return first.code;
	*out = best;
	return (int)failed;
}

/* Puts it beside where it goes, in each target: how many are without it. dirs[i]: -1 there. */
static unsigned root_file_put_all(
	const struct checkpoint_place *place, const struct root_file *file, int *dirs, struct err *first)
{
	struct disk *disk = checkpoint_disk(place);
	char text[ROOT_FILE_BYTES];
	size_t length = root_file_print(file, text);
	unsigned failed = 0;

	for (unsigned i = 0; i < place->target_count; i++) {
		int dir = disk->ops->open_dir(disk, -1, place->targets[i]);
		int rc = dir < 0 ? dir : root_file_put(disk, dir, text, length);

		dirs[i] = rc < 0 ? -1 : dir;
		if (rc < 0 && dir >= 0)
			disk->ops->close(disk, dir);
		if (rc < 0 && failed++ == 0)
			err_set(first, rc, "%s/" ROOT_FILE_NAME " cannot be written: %s", place->targets[i],
				strerror(-rc));
	}
	return failed;
}

/* To all of them but `spare`. */
static int root_file_write_most(
	const struct checkpoint_place *place, const struct root_file *file, unsigned spare, struct err *e)
{
	struct disk *disk = checkpoint_disk(place);
	int dirs[CHECKPOINT_TARGETS_MAX], rc;
	struct err first = {.code = 0};
	unsigned failed = root_file_put_all(place, file, dirs, &first);
	bool enough = failed <= spare;

	for (unsigned i = 0; i < place->target_count; i++) {
		if (dirs[i] < 0)
			continue;
		rc = enough ? root_file_name_it(disk, dirs[i]) : disk->ops->remove(disk, dirs[i], ROOT_FILE_PART);
		disk->ops->close(disk, dirs[i]);
		if (rc < 0 && enough && failed++ == 0)
			err_set(&first, rc, "%s/" ROOT_FILE_NAME " cannot be put into place: %s", place->targets[i],
				strerror(-rc));
	}
	if (failed)
		*e = first;
	return failed > spare ? first.code : (int)failed;
}

int root_file_write(const struct checkpoint_place *place, const struct root_file *file, struct err *e)
{
	return root_file_write_most(place, file, root_file_spare(place, true), e);
}

int root_file_renew(const struct checkpoint_place *place, const struct root_file *file, struct err *e)
{
	return root_file_write_most(place, file, root_file_spare(place, false), e);
}

int root_file_mend(const struct checkpoint_place *place, const struct root_file *file, struct err *e)
{
	struct disk *disk = checkpoint_disk(place);
	char text[ROOT_FILE_BYTES];
	size_t length = root_file_print(file, text);
	struct root_file is;
	int mended = 0, failed = 0;

	for (unsigned i = 0; i < place->target_count; i++) {
		int rc = root_file_read_target(disk, place->targets[i], &is), dir;

		if ((rc < 0 && rc != -EBADMSG) || (rc == 0 && is.epoch >= file->epoch))
			continue;
		dir = disk->ops->open_dir(disk, -1, place->targets[i]);
		rc = dir < 0 ? dir : root_file_put(disk, dir, text, length);
		if (rc == 0)
			rc = root_file_name_it(disk, dir);
		if (dir >= 0)
			disk->ops->close(disk, dir);
		mended += rc == 0;
		if (rc < 0 && failed == 0)
			failed = err_set(e, rc, "%s/" ROOT_FILE_NAME " cannot be written anew: %s", place->targets[i],
				strerror(-rc));
	}
	return failed ? failed : mended;
}
