/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting, watching and ending a phubd.
 */
#include "phub/cli/box_process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "phub/base/clock.h"

enum { BOX_START_MS = 20000, BOX_STOP_MS = 10000, BOX_EXIT_NO_PROGRAM = 127 };

int box_settings_add(struct box_settings *s, const char *format, ...)
{
	va_list arguments;

	if (s->count == BOX_SETTINGS_MAX)
		return -ENOSPC;
	va_start(arguments, format);
	vsnprintf(s->set[s->count++], BOX_SETTING_BYTES, format, arguments);
	va_end(arguments);
	return 0;
}

/* ---- starting ---- */

/* The phubd in the folder of this program, or just its name for $PATH. */
static void box_find_program(const struct box_settings *settings, char *out, size_t bytes)
{
	char self[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	if (settings->phubd) {
		snprintf(out, bytes, "%s", settings->phubd);
		return;
	}
	self[length < 0 ? 0 : length] = '\0';
	slash = strrchr(self, '/');
	snprintf(out, bytes, "%.*s/phubd", slash ? (int)(slash - self) : 0, self);
	if (!slash || access(out, X_OK) < 0)
		snprintf(out, bytes, "phubd");
}

/* In the child: never returns. */
static void box_exec(const struct box_settings *settings, const char *program, int out_fd, int said_fd, pid_t parent)
{
	const char *argv[4 + 2 * BOX_SETTINGS_MAX];
	unsigned argc = 0;

	argv[argc++] = program;
	if (settings->config) {
		argv[argc++] = "--config";
		argv[argc++] = settings->config;
	}
	for (unsigned i = 0; i < settings->count; i++) {
		argv[argc++] = "-o";
		argv[argc++] = settings->set[i];
	}
	argv[argc] = NULL;
	setpgid(0, 0); /* Ctrl-C is ours to pass on, when the workers have ended */
	signal(SIGPIPE, SIG_DFL);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() == parent && dup2(out_fd, STDOUT_FILENO) >= 0 &&
		(said_fd < 0 || dup2(said_fd, STDERR_FILENO) >= 0))
		execvp(program, (char *const *)(uintptr_t)argv);
	_exit(BOX_EXIT_NO_PROGRAM);
}

/* The first word that ends in :PORT. */
static int box_find_address(const char *line, char *out, size_t bytes)
{
	while (*line) {
		size_t length = strcspn(line, " \t\r\n,;()");
		const char *colon = memrchr(line, ':', length);

		if (colon && colon > line && colon + 1 < line + length && length < bytes &&
			strspn(colon + 1, "0123456789") == (size_t)(line + length - colon - 1)) {
			snprintf(out, bytes, "%.*s", (int)length, line);
			return 0;
		}
		line += length + (line[length] != '\0');
	}
	return -EPROTO;
}

/* Reads up to the end of the first line, byte by byte: what follows is not ours. */
static int box_read_line(int fd, char *line, size_t bytes)
{
	uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), BOX_START_MS);
	size_t have = 0;

	while (have + 1 < bytes) {
		struct pollfd ready = {.fd = fd, .events = POLLIN};
		uint64_t now_ns = clock_now_ns();
		ssize_t got;

		if (now_ns >= deadline_ns)
			return -ETIMEDOUT;
		if (poll(&ready, 1, clock_timeout_ms(now_ns, deadline_ns)) < 0)
			return -errno;
		if (!ready.revents)
			continue;
		got = read(fd, line + have, 1);
		if (got == 0)
			return -EPIPE;
		if (got < 0)
			return -errno;
		if (line[have++] == '\n')
			break;
	}
	line[have] = '\0';
	return 0;
}

static int box_await_address(struct box_process *box, const char *program, struct err *e)
{
	char line[512] = "";
	int rc = box_read_line(box->out_fd, line, sizeof(line));
	int status;

	if (rc == 0)
		rc = box_find_address(line, box->address, sizeof(box->address));
	if (rc == 0)
		return 0;
	if (rc == -EPIPE && waitpid(box->pid, &status, 0) == box->pid) {
		box->pid = 0;
		if (WIFEXITED(status) && WEXITSTATUS(status) == BOX_EXIT_NO_PROGRAM)
			return err_set(e, -ENOENT, "could not run %s; build it with make, or name it with --phubd PATH",
				program);
		return err_set(e, -ECHILD, "%s ended while it started; its own message says why", program);
	}
	if (rc == -EPROTO)
		err_set(e, rc, "%s did not say where it listens; is it a phubd of this release?", program);
	else if (rc == -EINTR)
		err_set(e, rc, "interrupted");
	else
		err_set(e, rc, "%s did not start within %d s: %s", program, BOX_START_MS / 1000, strerror(-rc));
	kill(box->pid, SIGKILL);
	waitpid(box->pid, &status, 0);
	box->pid = 0;
	return rc;
}

/* It has not started: all that it said is for people. */
static void box_give_up(struct box_process *box)
{
	char text[4096];
	size_t length;

	while ((length = box_process_hear(box, text, sizeof(text))) > 0)
		fwrite(text, 1, length, stderr);
	box_process_forget(box);
	close(box->out_fd);
}

int box_process_start(const struct box_settings *settings, struct box_process *out, struct err *e)
{
	char program[PATH_MAX];
	pid_t parent = getpid();
	int fds[2];
	int rc;

	box_find_program(settings, program, sizeof(program));
	if (pipe2(fds, O_CLOEXEC) < 0)
		return err_set(e, -errno, "no pipe to the box: %s", strerror(errno));
	fflush(NULL);
	*out = (struct box_process){.out_fd = fds[0], .said_fd = -1};
	if (settings->heard) /* a pipe would be full at some time, and the box would wait; without memory it is not
				heard */
		out->said_fd = memfd_create("said", MFD_CLOEXEC);
	out->pid = fork();
	if (out->pid == 0)
		box_exec(settings, program, fds[1], out->said_fd, parent);
	close(fds[1]);
	if (out->pid < 0) {
		rc = err_set(e, -errno, "could not fork: %s", strerror(errno));
		out->pid = 0;
	} else {
		rc = box_await_address(out, program, e);
	}
	if (rc < 0)
		box_give_up(out);
	return rc;
}

/* ---- watching and ending ---- */

static int box_ended(struct box_process *box, int status, struct err *e)
{
	box->pid = 0;
	close(box->out_fd);
	if (WIFSIGNALED(status))
		return err_set(e, -ECHILD, "the box (phubd) was killed by signal %d (%s)", WTERMSIG(status),
			strsignal(WTERMSIG(status)));
	if (WEXITSTATUS(status))
		return err_set(e, -ECHILD, "the box (phubd) ended with exit code %d; its own message says why",
			WEXITSTATUS(status));
	return 0;
}

int box_process_check(struct box_process *box, struct err *e)
{
	int status;

	if (!box->pid || waitpid(box->pid, &status, WNOHANG) != box->pid)
		return 0;
	if (box_ended(box, status, e) == 0)
		err_set(e, -ECHILD, "the box (phubd) ended by itself in the middle of the run");
	return -ECHILD;
}

int box_process_stop(struct box_process *box, struct err *e)
{
	uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), BOX_STOP_MS);
	int status;

	if (!box->pid)
		return 0;
	kill(box->pid, SIGTERM);
	while (waitpid(box->pid, &status, WNOHANG) == 0) {
		if (clock_now_ns() > deadline_ns) {
			kill(box->pid, SIGKILL);
			waitpid(box->pid, &status, 0);
			box_ended(box, status, NULL);
			return err_set(e, -ECHILD, "the box (phubd) did not end within %d s of SIGTERM and was killed",
				BOX_STOP_MS / 1000);
		}
		nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
	}
	return box_ended(box, status, e);
}

/* The box writes at the offset that it shares with us, so that reading has one of its own. What was read is given back.
 */
size_t box_process_hear(struct box_process *box, char *out, size_t bytes)
{
	ssize_t got = box->said_fd < 0 ? 0 : pread(box->said_fd, out, bytes, box->heard);

	if (got <= 0)
		return 0;
	box->heard += got;
	fallocate(box->said_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, box->heard);
	return (size_t)got;
}

void box_process_forget(struct box_process *box)
{
	if (box->said_fd >= 0)
		close(box->said_fd);
	box->said_fd = -1;
}

uint64_t box_process_cpu_ns(pid_t pid)
{
	struct timespec spent;
	clockid_t clock;

	/* What utime + stime of /proc/PID/stat count, in nanoseconds instead of ticks. */
	if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &spent) < 0)
		return 0;
	return (uint64_t)spent.tv_sec * NS_PER_S + (uint64_t)spent.tv_nsec;
}

uint64_t box_process_pinned_bytes(pid_t pid)
{
	char path[64], line[128];
	uint64_t kib = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "VmPin: %" SCNu64, &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib << 10;
}
