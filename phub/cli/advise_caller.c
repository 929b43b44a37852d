/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/cli/advise_caller.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/url.h"
#include "phub/base/clock.h"
#include "phub/cli/output.h"
#include "transport/stream.h"

/* ---- the socket that they come to ---- */

/* Of this user alone. One that is left of a server that has gone is removed. */
static int caller_listen_unix(const char *path, int *fd, struct err *e)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct stat found;
	mode_t mask;
	int rc;

	if (!path[0] || strlen(path) >= sizeof(address.sun_path))
		return err_set(e, -EINVAL, "unix:%s: a path has 1 to %zu bytes", path, sizeof(address.sun_path) - 1);
	memcpy(address.sun_path, path, strlen(path));
	*fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (*fd < 0)
		return err_set(e, -errno, "--listen: no socket of this kind: %s", strerror(errno));
	if (connect(*fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return err_set(e, -EADDRINUSE, "unix:%s: another one listens there", path);
	if (errno == ECONNREFUSED && lstat(path, &found) == 0 && S_ISSOCK(found.st_mode))
		unlink(path);
	mask = umask(0177);
	rc = bind(*fd, (struct sockaddr *)&address, sizeof(address));
	umask(mask);
	if (rc < 0 || listen(*fd, SOMAXCONN) < 0)
		return err_set(e, -errno, "unix:%s: %s", path, strerror(errno));
	return 0;
}

/* Port 0 is any that is free. */
static int caller_parse(const char *where, struct url_box *box, struct err *e)
{
	size_t length = strlen(where);
	bool any = length > 2 && strcmp(where + length - 2, ":0") == 0;
	char text[URL_HOST_BYTES + 16];
	int rc;

	snprintf(text, sizeof(text), "%.*s", (int)(any ? length - 2 : length), where);
	rc = url_parse_box(text, box, e);
	if (rc == 0 && any)
		box->port = 0;
	return rc;
}

bool advise_caller_may_listen(const char *where)
{
	const char *colon = strrchr(where, ':');
	struct url_box box;

	return strncmp(where, "unix:", 5) == 0 ||
	       (colon && !strchr(colon, ']') && caller_parse(where, &box, NULL) == 0);
}

int advise_caller_listen(const char *where, bool secret, int *fd, char bound[ADVISE_BOUND_BYTES], struct err *e)
{
	struct url_box box;
	int rc, local;

	if (strncmp(where, "unix:", 5) == 0) {
		snprintf(bound, ADVISE_BOUND_BYTES, "%s", where);
		return caller_listen_unix(where + 5, fd, e);
	}
	rc = caller_parse(where, &box, e);
	local = rc == 0 ? stream_host_is_loopback(box.host) : 0;
	if (local < 0)
		return err_set(e, local, "--listen %s: no address of this name is known", where);
	if (rc == 0 && local != 1 && !secret)
		return err_set(e, -EACCES,
			"%s can be reached from elsewhere: give --secret-file, or listen on 127.0.0.1", where);
	return rc < 0 ? rc : stream_listen_tcp(box.host, box.port, NULL, fd, bound, ADVISE_BOUND_BYTES, e);
}

/* ---- one of them ---- */

void advise_caller_open(struct advise_caller *c, int fd, size_t *kept)
{
	*c = (struct advise_caller){
		.fd = fd, .end_ns = clock_deadline_ns(clock_now_ns(), ADVISE_CALLER_MS), .kept = kept};
}

static void caller_forget(struct advise_caller *c)
{
	*c->kept -= c->out_room;
	free(c->out);
	c->out = NULL;
	c->out_have = c->out_room = 0;
}

void advise_caller_drop(struct advise_caller *c)
{
	caller_forget(c);
	close(c->fd);
	*c = (struct advise_caller){.fd = -1};
}

bool advise_caller_is_done(const struct advise_caller *c)
{
	return c->ended && c->owed == 0 && c->out_have == 0;
}

uint64_t advise_caller_next_ns(const struct advise_caller *c)
{
	const uint64_t line_ns = c->ended ? CLOCK_NEVER : c->end_ns;
	const uint64_t out_ns = c->out_have > 0 ? c->out_end_ns : CLOCK_NEVER;

	return line_ns < out_ns ? line_ns : out_ns;
}

/* How much was sent; -1: it has gone. */
static ssize_t caller_push(const struct advise_caller *c, const char *text, size_t length)
{
	ssize_t sent = send(c->fd, text, length, MSG_NOSIGNAL | MSG_DONTWAIT);

	return sent < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : sent;
}

/* Room for so much, of at most `most`. False: there is none. */
static bool caller_make_room(struct advise_caller *c, size_t bytes, size_t most)
{
	char *out;

	if (bytes > most)
		return false;
	if (bytes <= c->out_room)
		return true;
	if (*c->kept + (bytes - c->out_room) > ADVISE_KEPT_BYTES) {
		output_error("a caller does not read its answers, and is dropped: %d MiB that callers have not read "
			     "are kept already",
			ADVISE_KEPT_BYTES >> 20);
		return false;
	}
	out = realloc(c->out, bytes);
	if (!out)
		return false;
	*c->kept += bytes - c->out_room;
	c->out = out;
	c->out_room = bytes;
	return true;
}

void advise_caller_send(struct advise_caller *c, const char *text, size_t length, size_t most)
{
	const ssize_t sent = c->out_have > 0 ? 0 : caller_push(c, text, length);
	const size_t rest = length - (size_t)(sent > 0 ? sent : 0);

	if (sent >= 0 && rest == 0)
		return;
	if (sent < 0 || !caller_make_room(c, c->out_have + rest, most)) {
		advise_caller_drop(c);
		return;
	}
	if (c->out_have == 0)
		c->out_end_ns = clock_deadline_ns(clock_now_ns(), ADVISE_CALLER_MS);
	memcpy(c->out + c->out_have, text + length - rest, rest);
	c->out_have += rest;
}

void advise_caller_flush(struct advise_caller *c)
{
	const ssize_t sent = caller_push(c, c->out, c->out_have);

	if (sent < 0) {
		advise_caller_drop(c);
		return;
	}
	if (sent > 0)
		c->out_end_ns = clock_deadline_ns(clock_now_ns(), ADVISE_CALLER_MS);
	c->out_have -= (size_t)sent;
	memmove(c->out, c->out + sent, c->out_have);
	if (c->out_have == 0)
		caller_forget(c);
}
