/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds phubd, and starts it with what it needs and nothing else of this process: no descriptor but the socket and its
 * log, no signal mask, a session of its own, so that Ctrl-C reaches the workers alone. posix_spawn() runs nothing of
 * the process's, neither handlers of fork() nor anything that could take a lock. The secret goes by its environment.
 */
#include "client/hostbox_start.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HOSTBOX_SECRET "PHUB_HOSTBOX_SECRET"
#define HOSTBOX_LOG    "PHUB_HOSTBOX_LOG" /* what its stderr is, which it removes when all ended well */

extern char **environ;

enum { HOSTBOX_FD = 3, HOSTBOX_ARGUMENTS_MAX = 32, HOSTBOX_OPTION_BYTES = 512, HOSTBOX_ADDED_MAX = 4 };

/* ---- its log ---- */

static bool hostbox_is_own_folder(const char *path)
{
	struct stat st;

	return path && path[0] == '/' && stat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid();
}

void hostbox_log_path(const char *name, char out[PATH_MAX])
{
	const char *level = getenv("PHUB_LOG"), *folder = getenv("XDG_RUNTIME_DIR"), *other = getenv("TMPDIR");

	out[0] = '\0';
	if (level && *level)
		return;
	if (!hostbox_is_own_folder(folder))
		folder = other && other[0] == '/' ? other : "/tmp";
	if (snprintf(out, PATH_MAX, "%s/%s.log", folder, name) >= PATH_MAX)
		out[0] = '\0';
}

/*
 * One file for each box of this name, which takes the place of the one before: another worker may still be reading why
 * that one failed. Where there can be none, stderr.
 */
static int hostbox_log_open(const char *name, char path[PATH_MAX])
{
	hostbox_log_path(name, path);
	if (!path[0] || (unlink(path) < 0 && errno != ENOENT))
		return -1;
	return open(path, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
}

void hostbox_log_last(int fd, char *out, size_t bytes)
{
	char text[1024];
	off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0, from = end - (off_t)sizeof(text) + 1;
	ssize_t length = end > 0 ? pread(fd, text, sizeof(text) - 1, from > 0 ? from : 0) : 0;
	const char *line;

	while (length > 0 && text[length - 1] == '\n')
		length--;
	text[length > 0 ? length : 0] = '\0';
	line = strrchr(text, '\n');
	snprintf(out, bytes, "%s", line ? line + 1 : text);
}

/* ---- the program ---- */

static bool hostbox_is_program(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* FOLDER/[more/]phubd, of the folder that `file` is in. */
static bool hostbox_find_beside(const char *file, const char *more, char out[PATH_MAX])
{
	char real[PATH_MAX];
	const char *slash = file && realpath(file, real) ? strrchr(real, '/') : NULL;

	if (!slash || snprintf(out, PATH_MAX, "%.*s/%sphubd", (int)(slash - real), real, more) >= PATH_MAX)
		return false;
	return hostbox_is_program(out);
}

static bool hostbox_find_in_path(char out[PATH_MAX])
{
	const char *path = getenv("PATH");

	while (path && *path) {
		size_t length = strcspn(path, ":");

		if (length > 0 && snprintf(out, PATH_MAX, "%.*s/phubd", (int)length, path) < PATH_MAX &&
			hostbox_is_program(out))
			return true;
		path += length + (path[length] == ':');
	}
	return false;
}

static int hostbox_find(const struct settings *s, char out[PATH_MAX], struct err *e)
{
	const char *named = getenv("PHUB_PHUBD");
	Dl_info self = {0};
	const char *library = dladdr((void *)(uintptr_t)hostbox_start, &self) ? self.dli_fname : NULL;

	if (named && *named) {
		if (snprintf(out, PATH_MAX, "%s", named) < PATH_MAX && hostbox_is_program(out))
			return 0;
		return err_set(e, -ENOENT, "job %s: PHUB_PHUBD='%.200s' is no program; name a phubd, for hostbox=auto",
			s->url.job, named);
	}
	if (hostbox_find_beside(library, "", out) || hostbox_find_beside("/proc/self/exe", "", out) ||
		hostbox_find_beside(library, "../bin/", out) || hostbox_find_in_path(out))
		return 0;
	return err_set(e, -ENOENT,
		"job %s: hostbox=auto needs a phubd to start, and there is none beside %s, beside the program, or in "
		"PATH; set PHUB_PHUBD to it, install it, or leave hostbox=auto away",
		s->url.job, library ? library : "libphub");
}

/* ---- its arguments and environment ---- */

struct hostbox_words {
	char text[HOSTBOX_ARGUMENTS_MAX][HOSTBOX_OPTION_BYTES];
	char *argv[2 * HOSTBOX_ARGUMENTS_MAX];
	unsigned count, argc;
	bool cut;
};

static void hostbox_add(struct hostbox_words *w, const char *option, const char *value)
{
	char *text = w->text[w->count++];

	if (snprintf(text, HOSTBOX_OPTION_BYTES, "%s=%s", option, value) >= HOSTBOX_OPTION_BYTES)
		w->cut = true;
	w->argv[w->argc++] = (char *)(uintptr_t) "-o";
	w->argv[w->argc++] = text;
}

static void hostbox_write_arguments(const struct settings *s, char *program, struct hostbox_words *w)
{
	const char *cores = getenv("PHUB_HOSTBOX_CORES");
	char uplink[URL_HOST_BYTES + 32], fd[16];

	w->argv[w->argc++] = program;
	snprintf(fd, sizeof(fd), "%d", HOSTBOX_FD);
	snprintf(uplink, sizeof(uplink), strchr(s->url.host, ':') ? "%s[%s]:%u" : "%s%s:%u", s->tls ? "phubs://" : "",
		s->url.host, s->url.port);
	hostbox_add(w, "hostbox_fd", fd);
	hostbox_add(w, "uplink", uplink);
	hostbox_add(w, "listen", "127.0.0.1:0");
	hostbox_add(w, "data_ports", "any");
	hostbox_add(w, "transports", "shm, tcp");
	hostbox_add(w, "cores", cores && *cores ? cores : "1");
	if (s->secret) {
		hostbox_add(w, "create", "secret");
		hostbox_add(w, "create_secret_env", HOSTBOX_SECRET);
	}
	w->argv[w->argc] = NULL;
}

/* Is this "NAME=..." one that phubd shall not have, or has of us? */
static bool hostbox_replaces(const char *entry)
{
	static const char *const names[] = {"PHUB_SECRET", "PHUB_SECRET_FILE", HOSTBOX_SECRET, HOSTBOX_LOG,
		"PHUB_TLS_CA", "PHUB_TLS_PIN", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		size_t length = strlen(names[i]);

		if (strncmp(entry, names[i], length) == 0 && entry[length] == '=')
			return true;
	}
	return false;
}

struct hostbox_environment {
	char **entries;
	char *added[HOSTBOX_ADDED_MAX];
	unsigned added_count;
};

static int hostbox_set(struct hostbox_environment *env, const char *name, const char *value)
{
	size_t bytes = value ? strlen(name) + strlen(value) + 2 : 0;
	char *text = value ? malloc(bytes) : NULL;

	if (!value)
		return 0;
	if (!text)
		return -ENOMEM;
	snprintf(text, bytes, "%s=%s", name, value);
	env->added[env->added_count++] = text;
	return 0;
}

static int hostbox_write_environment(const struct settings *s, const char *log, struct hostbox_environment *env)
{
	size_t count = 0, at = 0;
	int rc = hostbox_set(env, HOSTBOX_SECRET, s->secret);

	if (rc == 0)
		rc = hostbox_set(env, HOSTBOX_LOG, log);
	if (rc == 0)
		rc = hostbox_set(env, "PHUB_TLS_CA", s->tls_ca);
	if (rc == 0)
		rc = hostbox_set(env, "PHUB_TLS_PIN", s->tls_pin);
	while (environ && environ[count])
		count++;
	env->entries = rc == 0 ? calloc(count + HOSTBOX_ADDED_MAX + 1, sizeof(*env->entries)) : NULL;
	if (!env->entries)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++)
		if (!hostbox_replaces(environ[i]))
			env->entries[at++] = environ[i];
	for (unsigned i = 0; i < env->added_count; i++)
		env->entries[at++] = env->added[i];
	return 0;
}

static void hostbox_forget_environment(struct hostbox_environment *env)
{
	for (unsigned i = 0; i < env->added_count; i++) {
		explicit_bzero(env->added[i], strlen(env->added[i]));
		free(env->added[i]);
	}
	free(env->entries);
}

/* ---- starting ---- */

static int hostbox_write_actions(posix_spawn_file_actions_t *actions, int listen_fd, int log_fd)
{
	int rc = posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);

	if (rc == 0)
		rc = log_fd >= 0 ? posix_spawn_file_actions_adddup2(actions, log_fd, STDERR_FILENO) : 0;
	if (rc == 0) /* its first line, for others to read, belongs to its log */
		rc = posix_spawn_file_actions_adddup2(actions, STDERR_FILENO, STDOUT_FILENO);
	if (rc == 0)
		rc = posix_spawn_file_actions_adddup2(actions, listen_fd, HOSTBOX_FD);
	if (rc == 0)
		rc = posix_spawn_file_actions_addclosefrom_np(actions, HOSTBOX_FD + 1);
	return rc;
}

static int hostbox_write_attributes(posix_spawnattr_t *attributes)
{
	sigset_t none, all;
	int rc;

	sigemptyset(&none);
	sigfillset(&all);
	rc = posix_spawnattr_setsigmask(attributes, &none);
	if (rc == 0)
		rc = posix_spawnattr_setsigdefault(attributes, &all);
	if (rc == 0)
		rc = posix_spawnattr_setflags(
			attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
	return rc;
}

/* 0 or a positive errno. The descriptors are above those that the program gets. */
static int hostbox_spawn(char *const *argv, char *const *env, int listen_fd, int log_fd, pid_t *pid)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	int rc = posix_spawn_file_actions_init(&actions);

	if (rc)
		return rc;
	rc = posix_spawnattr_init(&attributes);
	if (rc == 0) {
		rc = hostbox_write_actions(&actions, listen_fd, log_fd);
		if (rc == 0)
			rc = hostbox_write_attributes(&attributes);
		if (rc == 0)
			rc = posix_spawn(pid, argv[0], &actions, &attributes, argv, env);
		posix_spawnattr_destroy(&attributes);
	}
	posix_spawn_file_actions_destroy(&actions);
	return rc;
}

/* A copy of `fd` that is none of 0 to HOSTBOX_FD; -1 of -1. */
static int hostbox_lift(int fd)
{
	return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, HOSTBOX_FD + 1);
}

int hostbox_start(const struct settings *s, const char *name, int listen_fd, pid_t *pid, int *log_fd, struct err *e)
{
	struct hostbox_environment env = {.added_count = 0};
	struct hostbox_words *words = calloc(1, sizeof(*words));
	char program[PATH_MAX], log[PATH_MAX];
	int high_fd = -1, high_log = -1;
	int rc = words ? hostbox_find(s, program, e) : err_set(e, -ENOMEM, "job %s: no memory", s->url.job);

	*log_fd = -1;
	if (rc == 0) {
		hostbox_write_arguments(s, program, words);
		*log_fd = hostbox_log_open(name, log);
		rc = hostbox_write_environment(s, *log_fd >= 0 ? log : NULL, &env);
		high_log = hostbox_lift(*log_fd);
		high_fd = hostbox_lift(listen_fd);
		if (rc == 0 && words->cut)
			rc = -ENAMETOOLONG;
		if (rc == 0 && (high_fd < 0 || (*log_fd >= 0 && high_log < 0)))
			rc = -EMFILE;
		if (rc == 0)
			rc = -hostbox_spawn(words->argv, env.entries, high_fd, high_log, pid);
		if (rc < 0)
			err_set(e, rc, "job %s: cannot start %s for hostbox=auto: %s%s", s->url.job, program,
				strerror(-rc),
				rc == -EAGAIN ? ": this user, or this container, may have no more processes (ulimit "
						"-u, pids.max)"
					      : "");
	}
	if (high_log >= 0)
		close(high_log);
	if (high_fd >= 0)
		close(high_fd);
	hostbox_forget_environment(&env);
	free(words);
	return rc;
}
