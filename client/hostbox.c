/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Meets the other workers of the host at the socket, or makes it. By phub_connect(), before the session begins.
 */
#include "client/hostbox.h"

#include <errno.h>
#include <openssl/evp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/hostbox_start.h"
#include "phub/base/clock.h"
#include "transport/sock.h"

enum {
	HOSTBOX_BACKLOG = 4096, /* the workers of a host, before phubd has come up */
	HOSTBOX_PAUSE_MS = 10,  /* between tries while another one binds, or an older box lets go */
	HOSTBOX_REAP_MS = 500,  /* for what was started to end, once the box has answered or has not come up */
	HOSTBOX_DIGEST = 16,    /* bytes of the name's hash that are used */
};

struct meeting {
	const struct settings *s;
	char name[HOSTBOX_NAME_BYTES];
	uint64_t deadline_ns;
	pid_t pid;  /* that we have started; 0: somebody else has */
	int log_fd; /* of that one; -1: there is none */
};

/* ---- the name ---- */

/* What makes it one box or another. Its parts are told apart by their NUL. */
static int hostbox_name(const struct settings *s, char out[HOSTBOX_NAME_BYTES], struct err *e)
{
	const char *own = getenv("PHUB_HOSTBOX_NAME");
	char text[2048];
	unsigned char digest[EVP_MAX_MD_SIZE];
	int length = snprintf(text, sizeof(text), "%s%c%u%c%s%c%d%c%s", s->url.host, 0, s->url.port, 0, s->url.job, 0,
		s->tls != NULL, 0, own ? own : "");
	size_t at;

	if (length < 0 || (size_t)length >= sizeof(text))
		return err_set(e, -EINVAL, "job %s: PHUB_HOSTBOX_NAME is too long", s->url.job);
	if (!EVP_Digest(text, (size_t)length, digest, NULL, EVP_sha256(), NULL))
		return err_set(e, -EIO, "job %s: libcrypto has no SHA-256", s->url.job);
	at = (size_t)snprintf(out, HOSTBOX_NAME_BYTES, "phub-hostbox-%u-", (unsigned)geteuid());
	for (unsigned i = 0; i < HOSTBOX_DIGEST; i++)
		at += (size_t)snprintf(out + at, HOSTBOX_NAME_BYTES - at, "%02x", digest[i]);
	return 0;
}

static socklen_t hostbox_address(const char *name, struct sockaddr_un *out)
{
	size_t length = strlen(name);

	*out = (struct sockaddr_un){.sun_family = AF_UNIX};
	memcpy(out->sun_path + 1, name, length); /* behind the NUL that abstract names begin with */
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static int hostbox_socket(void)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	return fd < 0 ? -errno : fd;
}

/* ---- coming to it ---- */

/* A connection to whoever listens; -ECONNREFUSED: nobody does. */
static int hostbox_connect(const struct meeting *m)
{
	struct sockaddr_un address;
	socklen_t bytes = hostbox_address(m->name, &address);
	int fd = hostbox_socket();
	int rc;

	if (fd < 0 || connect(fd, (struct sockaddr *)&address, bytes) == 0)
		return fd;
	rc = -errno;
	close(fd);
	return rc;
}

/* Whoever listens must be us: anybody may bind a name. */
static int hostbox_check_peer(const struct meeting *m, int fd, struct err *e)
{
	struct ucred peer = {0};
	socklen_t bytes = sizeof(peer);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0)
		return err_set(e, -errno, "job %s: SO_PEERCRED: %s", m->s->url.job, strerror(errno));
	if (peer.uid != geteuid())
		return err_set(e, -EACCES,
			"job %s: another user of this host (uid %u, process %d) listens where its host's box would; "
			"end "
			"that process, or set PHUB_HOSTBOX_NAME to a word of your own at all workers here",
			m->s->url.job, (unsigned)peer.uid, (int)peer.pid);
	return 0;
}

/* The first: binds the name, comes to it as all others do, and starts a phubd with it. -EADDRINUSE: not the first. */
static int hostbox_begin(struct meeting *m, struct err *e)
{
	struct sockaddr_un address;
	socklen_t bytes = hostbox_address(m->name, &address);
	int listen_fd = hostbox_socket();
	int fd, rc;

	if (listen_fd < 0)
		return listen_fd;
	if (bind(listen_fd, (struct sockaddr *)&address, bytes) < 0 || listen(listen_fd, HOSTBOX_BACKLOG) < 0) {
		rc = -errno;
		close(listen_fd);
		return rc;
	}
	fd = hostbox_connect(m);
	rc = fd < 0 ? err_set(e, fd, "job %s: cannot come to a socket of our own: %s", m->s->url.job, strerror(-fd))
		    : hostbox_start(m->s, m->name, listen_fd, &m->pid, &m->log_fd, e);
	close(listen_fd);
	if (rc == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return rc;
}

/* ---- its answer ---- */

/* "127.0.0.1:40123\n". -EPIPE: it has ended, or let go. */
static int hostbox_hear(const struct meeting *m, int fd, char *line, size_t bytes)
{
	size_t have = 0;

	for (;;) {
		struct pollfd ready = {.fd = fd, .events = POLLIN};
		uint64_t now_ns = clock_now_ns();
		ssize_t got;

		if (now_ns >= m->deadline_ns)
			return -ETIMEDOUT;
		if (poll(&ready, 1, clock_timeout_ms(now_ns, m->deadline_ns)) < 0 && errno != EINTR)
			return -errno;
		got = recv(fd, line + have, bytes - 1 - have, 0);
		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (got <= 0)
			return -EPIPE;
		have += (size_t)got;
		if (line[have - 1] != '\n' && have + 1 < bytes)
			continue;
		line[have - 1] = '\0';
		return 0;
	}
}

static int hostbox_explain(const struct meeting *m, int rc, struct err *e)
{
	const char *job = m->s->url.job;
	char log[PATH_MAX], last[256];

	hostbox_log_path(m->name, log);
	hostbox_log_last(m->log_fd, last, sizeof(last));
	if (rc == -ETIMEDOUT)
		return err_set(e, rc, "job %s: this host's box (hostbox=auto) has not come up in time; its log: %s",
			job, log[0] ? log : "stderr");
	return err_set(e, rc == -EPIPE ? -ECONNREFUSED : rc,
		"job %s: this host's box (hostbox=auto) did not start: %s; its log: %s", job,
		rc != -EPIPE ? strerror(-rc)
		: last[0]    ? last
			     : "it ended without a word",
		log[0] ? log : "stderr");
}

static void hostbox_pause(void)
{
	struct timespec pause = {.tv_nsec = HOSTBOX_PAUSE_MS * 1000000};

	nanosleep(&pause, NULL);
}

/* What phubd was before it forked, which ends at once; a wrapper around it may live on, and is left to. Whoever waits
 * for all children may have been faster. */
static void hostbox_reap(const struct meeting *m)
{
	uint64_t until_ns = clock_now_ns() + HOSTBOX_REAP_MS * 1000000ull;
	pid_t ended = m->pid ? 0 : -1;

	if (until_ns > m->deadline_ns)
		until_ns = m->deadline_ns;

	while (ended == 0) {
		ended = waitpid(m->pid, NULL, WNOHANG);
		if (ended < 0 && errno == EINTR)
			ended = 0;
		if (ended == 0 && clock_now_ns() >= until_ns)
			return;
		if (ended == 0)
			hostbox_pause();
	}
}

/* One try: 0 with the answer; -EAGAIN without a reason in `e`: another one, in a moment. */
static int hostbox_try(struct meeting *m, int *fd, char *line, size_t bytes, struct err *e)
{
	int rc;

	m->pid = 0;
	m->log_fd = -1;
	e->code = 0;
	*fd = hostbox_connect(m);
	if (*fd == -ECONNREFUSED)
		*fd = hostbox_begin(m, e);
	if (*fd < 0) {
		rc = *fd;
		*fd = -1;
		/* Bound, and not listened to yet; or so many come that there is no room. */
		if (rc == -EADDRINUSE || (rc == -EAGAIN && !e->code))
			return -EAGAIN;
		return e->code ? rc : hostbox_explain(m, rc, e);
	}
	rc = hostbox_check_peer(m, *fd, e);
	if (rc < 0)
		return rc;
	rc = hostbox_hear(m, *fd, line, bytes);
	hostbox_reap(m);
	if (rc == 0)
		return 0;
	close(*fd);
	*fd = -1;
	/* Of one that another has started, or that was going down, only this much is known: it is not there. */
	return rc == -EPIPE && !m->pid ? -EAGAIN : hostbox_explain(m, rc, e);
}

static void hostbox_note(const struct meeting *m, char *out, size_t bytes)
{
	char log[PATH_MAX];

	hostbox_log_path(m->name, log);
	snprintf(out, bytes, " (this host's own, of hostbox=auto; log: %s)", log[0] ? log : "stderr");
}

int hostbox_join(struct settings *s, uint64_t deadline_ns, int *fd, char *note, size_t bytes, struct err *e)
{
	struct meeting m = {.s = s, .deadline_ns = deadline_ns, .log_fd = -1};
	char line[SOCK_HOST_BYTES + 8], host[SOCK_HOST_BYTES];
	uint16_t port = 0;
	int rc;

	e->code = 0;
	*fd = -1;
	rc = hostbox_name(s, m.name, e);
	if (rc < 0)
		return rc;
	for (;;) {
		rc = hostbox_try(&m, fd, line, sizeof(line), e);
		if (m.log_fd >= 0)
			close(m.log_fd);
		m.log_fd = -1;
		if (rc != -EAGAIN || e->code) /* with a reason, it is no try that is worth another one */
			break;
		if (clock_now_ns() >= deadline_ns)
			return hostbox_explain(&m, -ETIMEDOUT, e);
		hostbox_pause();
	}
	if (rc < 0)
		return rc;
	if (sock_split(line, host, &port) < 0 || port == 0)
		return err_set(e, -EPROTO, "job %s: this host's box says that it listens at '%.80s'", s->url.job, line);
	hostbox_note(&m, note, bytes);
	memcpy(s->url.host, host, sizeof(s->url.host));
	s->url.port = port;
	stream_tls_close(s->tls);
	s->tls = NULL;
	return 0;
}
