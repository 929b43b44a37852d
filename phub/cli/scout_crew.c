/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One poll() over all that sites write; who has ended is asked for in between.
 */
#include "phub/cli/scout_crew.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/cli/output.h"

enum { CREW_POLL_MS = 100, CREW_GRACE_MS = 3000, CREW_HOLD_MS = 500, CREW_ECHO_MS = 10000, CREW_NO_PROGRAM = 127 };

static volatile sig_atomic_t crew_interrupted, crew_insists;

static void crew_on_signal(int number)
{
	crew_insists = crew_interrupted;
	crew_interrupted = number;
}

bool scout_crew_set(struct scout_crew *crew, const char *format, ...)
{
	va_list arguments;
	int length;

	if (crew->setting_count == SCOUT_CREW_SETTINGS_MAX)
		return false;
	va_start(arguments, format);
	length = vsnprintf(crew->settings[crew->setting_count], SCOUT_CREW_SETTING_BYTES, format, arguments);
	va_end(arguments);
	if (length < 0 || length >= SCOUT_CREW_SETTING_BYTES)
		return false;
	crew->setting_count++;
	return true;
}

/* ---- starting ---- */

/* In the child, where all of it lives as long as the process: putenv() keeps what it is given. */
static void crew_fill_environment(struct scout_crew *crew, unsigned site)
{
	static char own[4][48];

	snprintf(own[0], sizeof(own[0]), "RANK=%u", site);
	snprintf(own[1], sizeof(own[1]), "LOCAL_RANK=%u", site);
	snprintf(own[2], sizeof(own[2]), "WORLD_SIZE=%u", crew->sites);
	snprintf(own[3], sizeof(own[3]), "LOCAL_WORLD_SIZE=%u", crew->sites);
	for (unsigned i = 0; i < 4; i++)
		putenv(own[i]);
	for (unsigned i = 0; i < crew->setting_count; i++)
		putenv(crew->settings[i]);
}

/* In the child: never returns. */
static void crew_exec(struct scout_crew *crew, unsigned site, const int fds[2][2], pid_t parent)
{
	int none = open("/dev/null", O_RDONLY | O_CLOEXEC);

	setpgid(0, 0); /* with all that it starts it is one group, which is ended together */
	signal(SIGPIPE, SIG_DFL);
	signal(SIGINT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	crew_fill_environment(crew, site);
	if (getppid() == parent && none >= 0 && dup2(none, STDIN_FILENO) >= 0 && dup2(fds[0][1], STDOUT_FILENO) >= 0 &&
		dup2(fds[1][1], STDERR_FILENO) >= 0)
		execvp(crew->command[0], (char *const *)(uintptr_t)crew->command);
	dprintf(STDERR_FILENO, "%s: %s\n", crew->command[0], strerror(errno));
	_exit(CREW_NO_PROGRAM);
}

static int crew_start(struct scout_crew *crew, unsigned site, struct err *e)
{
	struct scout_crew_site *own = &crew->at[site];
	pid_t parent = getpid();
	int fds[2][2];

	if (pipe2(fds[0], O_CLOEXEC) < 0)
		return err_set(e, -errno, "no pipe to site %u: %s", site, strerror(errno));
	if (pipe2(fds[1], O_CLOEXEC) < 0) {
		close(fds[0][0]);
		close(fds[0][1]);
		return err_set(e, -errno, "no pipe to site %u: %s", site, strerror(errno));
	}
	fflush(NULL);
	own->pid = fork();
	if (own->pid == 0)
		crew_exec(crew, site, fds, parent);
	for (unsigned i = 0; i < 2; i++) {
		close(fds[i][1]);
		fcntl(fds[i][0], F_SETFL, O_NONBLOCK);
		own->streams[i] = (struct scout_crew_stream){.fd = fds[i][0], .error = i == 1};
	}
	if (own->pid > 0) {
		setpgid(own->pid, own->pid); /* here too: whoever is first */
		return 0;
	}
	own->pid = 0;
	return err_set(e, -errno, "could not fork site %u: %s", site, strerror(errno));
}

/* ---- what they write ---- */

static void crew_wipe(struct scout_crew *crew)
{
	if (crew->told)
		fputs("\r\033[K", stderr);
	crew->told = false;
}

static void crew_pass(struct scout_crew *crew, unsigned site, struct scout_crew_stream *s, size_t length)
{
	FILE *out = s->error ? stderr : stdout;

	crew_wipe(crew);
	fprintf(out, "[%u] %.*s\n", site, (int)length, s->line);
	fflush(out);
}

void scout_crew_pass(struct scout_crew *crew, const char *text, size_t length)
{
	crew_wipe(crew);
	fwrite(text, 1, length, stderr);
}

void scout_crew_note(struct scout_crew *crew, const char *format, ...)
{
	va_list arguments;
	char text[1024];

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	crew_wipe(crew);
	output_note("%s", text);
}

/* How many digits stand there, where they are the site's own number behind "rank "; else 0. */
static size_t crew_rank(const char *line, size_t length, size_t at, unsigned site)
{
	static const char word[] = "rank ";
	const size_t before = sizeof(word) - 1;
	char own[16];
	const size_t digits = (size_t)snprintf(own, sizeof(own), "%u", site);

	if (at < before || length - at < digits || memcmp(line + at - before, word, before) != 0 ||
		memcmp(line + at, own, digits) != 0)
		return 0;
	return at + digits < length && line[at + digits] >= '0' && line[at + digits] <= '9' ? 0 : digits;
}

/* The same words, but that each site calls itself by its rank. */
static bool crew_is_alike(
	const char *a, size_t a_length, unsigned a_site, const char *b, size_t b_length, unsigned b_site)
{
	size_t i = 0, k = 0;

	while (i < a_length && k < b_length) {
		const size_t a_rank = crew_rank(a, a_length, i, a_site), b_rank = crew_rank(b, b_length, k, b_site);

		if (a[i] != b[k] && (!a_rank || !b_rank))
			return false;
		i += a_rank && b_rank ? a_rank : 1;
		k += a_rank && b_rank ? b_rank : 1;
	}
	return i == a_length && k == b_length;
}

/* Is it a line of the words that were said? */
static bool crew_is_said(const struct scout_crew *crew, unsigned site, const char *line, size_t length)
{
	const char *at = crew->words, *end = crew->words + crew->words_length;

	while (at < end) {
		const char *stop = memchr(at, '\n', (size_t)(end - at));

		stop = stop ? stop : end;
		if (crew_is_alike(line, length, site, at, (size_t)(stop - at), crew->speaker))
			return true;
		at = stop + 1;
	}
	return false;
}

/* Whole lines go; one that is longer than there is room goes in pieces. */
static void crew_pass_lines(struct scout_crew *crew, unsigned site, struct scout_crew_stream *s, bool ended)
{
	for (;;) {
		char *end = memchr(s->line, '\n', s->length);
		size_t length = end ? (size_t)(end - s->line) : s->length, gone = end ? length + 1 : length;

		if (!end && s->length < sizeof(s->line) && !(ended && s->length > 0))
			return;
		if (!s->error || crew->failed < 0 || !crew_is_said(crew, site, s->line, length))
			crew_pass(crew, site, s, length);
		memmove(s->line, s->line + gone, s->length - gone);
		s->length -= gone;
	}
}

static void crew_read(struct scout_crew *crew, unsigned site, struct scout_crew_stream *s)
{
	ssize_t got = read(s->fd, s->line + s->length, sizeof(s->line) - s->length);

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got > 0)
		s->length += (size_t)got;
	if (!s->error || s->length == sizeof(s->line))
		crew_pass_lines(crew, site, s, got <= 0);
	else if (s->since_ns == 0)
		s->since_ns = clock_now_ns();
	if (got > 0)
		return;
	close(s->fd);
	s->fd = -1;
}

/* Has another just said all that the site has? */
static bool crew_echoes(const struct scout_crew *crew, unsigned site, const struct scout_crew_stream *s)
{
	size_t at = 0;

	if (crew->words_length == 0 || crew->speaker == site ||
		clock_now_ns() - crew->spoken_ns > CREW_ECHO_MS * NS_PER_MS)
		return false;
	while (at < s->length) {
		const char *end = memchr(s->line + at, '\n', s->length - at);
		const size_t length = end ? (size_t)(end - s->line) - at : s->length - at;

		if (!crew_is_said(crew, site, s->line + at, length))
			return false;
		at += length + 1;
	}
	return true;
}

/* Passes on what is held, and keeps it in mind. */
static void crew_speak(struct scout_crew *crew, unsigned site, struct scout_crew_stream *s, bool ended)
{
	char words[SCOUT_CREW_LINE];
	const size_t length = s->length;

	memcpy(words, s->line, length);
	crew->words_length = 0; /* its own are no echo */
	crew_pass_lines(crew, site, s, ended);
	memcpy(crew->words, words, length);
	crew->words_length = length;
	crew->speaker = site;
	crew->spoken_ns = clock_now_ns();
}

/* Of stderr: what was held back for long enough, or all of it. */
static void crew_release(struct scout_crew *crew, bool all)
{
	const uint64_t now_ns = clock_now_ns();

	for (unsigned k = 0; k < crew->sites; k++) {
		struct scout_crew_stream *s = &crew->at[k].streams[1];
		const bool echoes = crew->failed < 0 && crew_echoes(crew, k, s);

		if (s->since_ns == 0 ||
			(!all && now_ns - s->since_ns < (echoes ? CREW_ECHO_MS : CREW_HOLD_MS) * NS_PER_MS))
			continue;
		if (crew->failed < 0 && !echoes)
			crew_speak(crew, k, s, s->fd < 0);
		else
			crew_pass_lines(crew, k, s, s->fd < 0);
		s->since_ns = s->length > 0 ? now_ns : 0;
	}
}

/* Where another has just said the same, that stands for it. */
static void crew_release_failed(struct scout_crew *crew, unsigned site)
{
	struct scout_crew_stream *s = &crew->at[site].streams[1];

	if (clock_now_ns() - crew->spoken_ns > CREW_ECHO_MS * NS_PER_MS)
		crew->words_length = 0;
	if (s->length > 0 && !crew_echoes(crew, site, s))
		crew_speak(crew, site, s, true);
}

/* Waits a little for something to read. */
static void crew_poll(struct scout_crew *crew, int timeout_ms)
{
	struct pollfd ready[2 * SCOUT_CREW_MAX];
	struct scout_crew_stream *streams[2 * SCOUT_CREW_MAX];
	unsigned sites[2 * SCOUT_CREW_MAX], count = 0;

	for (unsigned k = 0; k < crew->sites; k++) {
		for (unsigned i = 0; i < 2; i++) {
			struct scout_crew_stream *s = &crew->at[k].streams[i];

			if (s->fd < 0)
				continue;
			ready[count] = (struct pollfd){.fd = s->fd, .events = POLLIN};
			streams[count] = s;
			sites[count++] = k;
		}
	}
	if (poll(ready, count, timeout_ms) <= 0)
		return;
	for (unsigned i = 0; i < count; i++)
		if (ready[i].revents)
			crew_read(crew, sites[i], streams[i]);
}

/* All that the site has left in its pipes. */
static void crew_flush(struct scout_crew *crew, unsigned site)
{
	struct scout_crew_stream *s = &crew->at[site].streams[1];

	for (unsigned i = 0; i < 64; i++)
		crew_poll(crew, 0);
	crew_pass_lines(crew, site, s, true);
	s->since_ns = 0;
}

/* ---- watching ---- */

/* `failing`: how many were found to have failed at one time, this site among them: of them none goes on. */
static void crew_judge(struct scout_crew *crew, unsigned site, int status, unsigned failing, struct err *e)
{
	const char *yet;
	struct err own;

	if (e->code || status == 0) /* who is ended has not failed */
		return;
	if (crew->check && crew->check(crew->context, e) < 0) /* which knows how far they were */
		return;
	yet = !crew->may_lose && crew->yet ? crew->yet : "";
	if (WIFSIGNALED(status))
		err_set(&own, -ECHILD, "site %u was killed by signal %d (%s)%s", site, WTERMSIG(status),
			strsignal(WTERMSIG(status)), yet);
	else if (WEXITSTATUS(status) == CREW_NO_PROGRAM)
		err_set(&own, -ECHILD, "site %u could not run the command; its own message says why", site);
	else
		err_set(&own, -ECHILD, "site %u ended with exit code %d; its own message says why%s", site,
			WEXITSTATUS(status), yet);
	if (crew->may_lose && failing < crew->sites) {
		crew->lost++;
		crew->writer_lost = crew->writer_lost || site == 0;
		crew_flush(crew, site);
		scout_crew_note(crew, "%s; the others go on", own.text);
		return;
	}
	crew->failed = (int)site;
	*e = own;
}

/* Has it just ended? Its group goes with it, while its number cannot be another's yet. */
static bool crew_has_ended(struct scout_crew_site *own, int *status)
{
	siginfo_t ended = {.si_pid = 0};
	pid_t pid = own->pid;

	if (!pid || waitid(P_PID, (id_t)pid, &ended, WEXITED | WNOHANG | WNOWAIT) < 0 || ended.si_pid != pid)
		return false;
	kill(-pid, SIGTERM);
	waitpid(pid, status, 0);
	own->pid = 0;
	return true;
}

/* How many are left. That the others go on is said when it is known who has failed as well. */
static unsigned crew_reap(struct scout_crew *crew, struct err *e)
{
	int status[SCOUT_CREW_MAX] = {0};
	unsigned alive = 0, failing = crew->lost;

	for (unsigned k = 0; k < crew->sites; k++) {
		failing += crew_has_ended(&crew->at[k], &status[k]) && status[k];
		alive += crew->at[k].pid != 0;
	}
	for (unsigned k = 0; k < crew->sites; k++)
		if (WIFSIGNALED(status[k]))
			crew_judge(crew, k, status[k], failing, e);
	for (unsigned k = 0; k < crew->sites; k++) /* which one that was killed may have brought about */
		if (!WIFSIGNALED(status[k]))
			crew_judge(crew, k, status[k], failing, e);
	return alive;
}

static void crew_signal(const struct scout_crew *crew, int number)
{
	for (unsigned k = 0; k < crew->sites; k++)
		if (crew->at[k].pid)
			kill(-crew->at[k].pid, number);
}

static void crew_tell(struct scout_crew *crew)
{
	char text[160] = "";

	if (!crew->status || !isatty(STDERR_FILENO))
		return;
	crew->status(crew->context, text, sizeof(text));
	if (!text[0])
		return;
	fprintf(stderr, "\r%.*s\033[K", (int)sizeof(text), text);
	crew->told = true;
}

/* What they have left in their pipes; a grandchild that holds one open is not waited for. */
static void crew_drain(struct scout_crew *crew)
{
	for (unsigned i = 0; i < 64; i++)
		crew_poll(crew, 0);
	if (crew->failed >= 0 && !crew->wrong)
		crew_release_failed(crew, (unsigned)crew->failed);
	crew_release(crew, true);
	crew_wipe(crew);
}

/* Once, and after what the site that failed has said itself. */
static void crew_say_what_is_wrong(struct scout_crew *crew, const struct err *e)
{
	if (!e->code || crew->wrong)
		return;
	crew_drain(crew);
	output_error("%s", e->text);
	crew->wrong = true;
}

static void crew_look(struct scout_crew *crew, struct err *e)
{
	if (crew_interrupted && !e->code) {
		crew->signal = crew_interrupted;
		err_set(e, -EINTR, "interrupted: ends the sites");
	}
	if (!e->code && crew->check)
		crew->check(crew->context, e);
}

static void crew_await(struct scout_crew *crew, struct err *e)
{
	uint64_t end_ns = CLOCK_NEVER, drawn_ns = 0;

	while (crew_reap(crew, e) > 0) {
		crew_poll(crew, CREW_POLL_MS);
		crew_release(crew, false);
		crew_look(crew, e);
		crew_say_what_is_wrong(crew, e);
		if (e->code && end_ns == CLOCK_NEVER) {
			end_ns = clock_deadline_ns(clock_now_ns(), CREW_GRACE_MS);
			crew_signal(crew, SIGTERM);
		} else if (clock_now_ns() > end_ns || (e->code && crew_insists)) {
			crew_signal(crew, SIGKILL);
		}
		if (!e->code && clock_now_ns() - drawn_ns > 200 * NS_PER_MS) {
			drawn_ns = clock_now_ns();
			crew_tell(crew);
		}
	}
	crew_say_what_is_wrong(crew, e);
	crew_drain(crew);
}

int scout_crew_run(struct scout_crew *crew, struct err *e)
{
	struct sigaction action = {.sa_handler = crew_on_signal};

	*e = (struct err){0};
	crew->failed = -1;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	for (unsigned k = 0; k < crew->sites; k++)
		crew->at[k].streams[0].fd = crew->at[k].streams[1].fd = -1;
	for (unsigned k = 0; k < crew->sites && !e->code; k++)
		crew_start(crew, k, e);
	crew_await(crew, e);
	for (unsigned k = 0; k < crew->sites; k++)
		for (unsigned i = 0; i < 2; i++)
			if (crew->at[k].streams[i].fd >= 0)
				close(crew->at[k].streams[i].fd);
	return e->code;
}
