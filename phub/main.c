/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phubd: reads its options, picks the kernels, makes a box and runs it until it is told to stop. Joins the control half
 * and the data half, which do not see each other's insides, and the box with its client's half, by which it reaches its
 * standby.
 */
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "aggregation/dispatch.h"
#include "client/call.h"
#include "client/env.h"
#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/control/announce.h"
#include "phub/control/box.h"
#include "phub/control/config.h"
#include "phub/control/hostbox.h"
#include "phub/control/privilege.h"
#include "phub/control/promotion.h"

#define MAIN_VERSION "0.1.0"

/* A test builds a phubd of its own that loses a slot of every job, to see that it then refuses to exit 0. */
#ifndef MAIN_PLANT_LEAK
#define MAIN_PLANT_LEAK false
#endif

enum { MAIN_DONE = 0, MAIN_FAILED = 1, MAIN_USAGE = 2, MAIN_GO_ON = -1 };

enum main_action { MAIN_RUN, MAIN_DUMP, MAIN_CHECK };

static const char main_help[] =
	"usage: phubd [--config FILE] [-o KEY=VALUE]... [--KEY VALUE]... [--dump-config | --check-config]\n"
	"\n"
	"Serves jobs until SIGTERM; reads its certificate and key, and its rack file, anew at SIGHUP. Without options: "
	"over loopback, by "
	"tcp and shared memory, for this user.\n"
	"\n"
	"  --config FILE     read options from a YAML file\n"
	"  -o KEY=VALUE      set one option, over the file's; also as --KEY VALUE, like --listen 127.0.0.1:0\n"
	"  --dump-config     print every option with its value and what is allowed, as YAML for --config\n"
	"  --check-config    check options, secrets, and that this machine has the CPUs, RDMA ports, interface and\n"
	"                    addresses that they name, and that checkpoints can be written; no port is tried, nothing\n"
	"                    runs\n"
	"  --version, --help\n"
	"\n"
	"Exit codes: 0 done, 1 failed, 2 usage.\n";

/*
 * A box runs for months, and tables of tens of megabytes come and go with jobs. By itself glibc raises the size from
 * which memory goes back to the system with the first large one that is freed, and gives threads (those that write
 * checkpoints) heaps of their own: then what is free stays, in pieces. Only control allocates once jobs run, so that
 * nobody waits for the one heap.
 */
static void main_tame_malloc(void)
{
	(void)mallopt(M_MMAP_THRESHOLD, 128 << 10);
	(void)mallopt(M_TRIM_THRESHOLD, 128 << 10);
	(void)mallopt(M_ARENA_MAX, 1);
}

static int main_complain(const struct err *e, int code)
{
	fprintf(stderr, "phubd: %s\n", e->text);
	return code;
}

/* The code to exit with, once all that was printed has been written. */
static int main_flush(int code)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return code;
	fputs("phubd: cannot write to standard output: its disk is full, or its reader has gone; send it elsewhere\n",
		stderr);
	return MAIN_FAILED;
}

/* "--data-ports 7100-7131" is data_ports=7100-7131. Takes one or two arguments; *at is then at the last of them. */
static int main_set_long(struct config *config, int argc, char **argv, int *at)
{
	char assignment[8192];
	const char *name = argv[*at] + 2;
	bool lacks_value = false;
	struct err e;
	int length, rc;

	if (strchr(name, '=')) {
		length = snprintf(assignment, sizeof(assignment), "%s", name);
	} else if (*at + 1 < argc) {
		length = snprintf(assignment, sizeof(assignment), "%s=%s", name, argv[*at + 1]);
		++*at;
	} else {
		length = snprintf(assignment, sizeof(assignment), "%s=", name);
		lacks_value = true;
	}
	if (length < 0 || (size_t)length >= sizeof(assignment)) {
		fprintf(stderr, "phubd: --%.64s...: too long\n", name);
		return MAIN_USAGE;
	}
	for (char *p = assignment; *p && *p != '='; p++)
		if (*p == '-')
			*p = '_';
	rc = config_set(config, assignment, &e);
	/* Of an option that is not there, config_set() says so; no other lacks more than its value. */
	if (lacks_value && (rc == 0 || strncmp(e.text, "unknown key", strlen("unknown key")) != 0))
		rc = err_set(&e, -EINVAL, "%s needs a value; see --help", argv[*at]);
	return rc < 0 ? main_complain(&e, MAIN_USAGE) : MAIN_GO_ON;
}

/* --config comes first, wherever it stands: what is on the command line is set over it. */
static int main_load(struct config *config, int argc, char **argv)
{
	struct err e;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--config") != 0)
			continue;
		if (i + 1 == argc) {
			fprintf(stderr, "phubd: --config needs a file; see --help\n");
			return MAIN_USAGE;
		}
		if (config_load(config, argv[i + 1], &e) < 0)
			return main_complain(&e, MAIN_FAILED);
	}
	return MAIN_GO_ON;
}

static int main_set_short(struct config *config, int argc, char **argv, int *at)
{
	struct err e;

	if (*at + 1 == argc) {
		fprintf(stderr, "phubd: -o needs KEY=VALUE; see --help\n");
		return MAIN_USAGE;
	}
	++*at;
	return config_set(config, argv[*at], &e) < 0 ? main_complain(&e, MAIN_USAGE) : MAIN_GO_ON;
}

static int main_set(struct config *config, int argc, char **argv, enum main_action *action)
{
	int rc = MAIN_GO_ON;

	for (int i = 1; i < argc && rc == MAIN_GO_ON; i++) {
		if (strcmp(argv[i], "--config") == 0) {
			i++;
		} else if (strcmp(argv[i], "--dump-config") == 0) {
			*action = MAIN_DUMP;
		} else if (strcmp(argv[i], "--check-config") == 0) {
			*action = MAIN_CHECK;
		} else if (strcmp(argv[i], "-o") == 0) {
			rc = main_set_short(config, argc, argv, &i);
		} else if (strncmp(argv[i], "--", 2) == 0 && argv[i][2]) {
			rc = main_set_long(config, argc, argv, &i);
		} else {
			fprintf(stderr, "phubd: '%s' is no option; see --help\n", argv[i]);
			rc = MAIN_USAGE;
		}
	}
	return rc;
}

static bool main_says(int argc, char **argv, const char *shorter, const char *longer)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], shorter) == 0 || strcmp(argv[i], longer) == 0)
			return true;
	return false;
}

/* Every worker has a connection per core: the soft limit of 1024 is soon too low. */
static void main_raise_limits(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= limit.rlim_max)
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

/* Readable when one of these came; `second` may be 0. */
static int main_signal_fd(int first, int second)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, first);
	if (second)
		sigaddset(&set, second);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* Tells a service manager that waits for it (sd_notify(3); systemd's Type=notify) that workers may come now. */
static void main_say_ready(const char *text)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	size_t length = path ? strlen(path) : 0;
	char state[1100];
	int fd;

	if (length < 2 || length >= sizeof(to.sun_path))
		return;
	memcpy(to.sun_path, path, length);
	if (path[0] == '@')
		to.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	snprintf(state, sizeof(state), "READY=1\nSTATUS=listening on %s", text);
	if (sendto(fd, state, strlen(state), 0, (struct sockaddr *)&to,
		    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)) < 0)
		log_warn("NOTIFY_SOCKET: %s: %s; who started phubd does not learn that it is ready", path,
			strerror(errno));
	close(fd);
}

/*
 * The kernel takes requests for an RDMA device only from the credentials that have opened it: there they are given up
 * first.
 */
static bool main_drops_first(const struct config *config)
{
	return config_uses(config, "verbs");
}

static int main_open(const struct config *config, const struct box_env *env, struct box **box, struct err *e)
{
	bool first = main_drops_first(config);
	int rc = privilege_check(config, e);
	char text[1024];

	config_describe_racks(config, text, sizeof(text));
	if (text[0])
		log_info("%s", text);
	if (rc == 0 && first)
		rc = privilege_drop(config, text, sizeof(text), e);
	if (rc == 0)
		rc = box_create(config, env, clock_now_ns(), box, e);
	if (rc < 0)
		return rc;
	if (!first)
		rc = privilege_drop(config, text, sizeof(text), e);
	if (rc == 0)
		rc = promotion_open(*box, e);
	if (rc < 0) {
		box_destroy(*box, clock_now_ns());
		return rc;
	}
	(*box)->control.uid = (int64_t)geteuid(); /* "this user over loopback" is the one it has become */
	log_info("runs as %s; nothing it executes gets more", text);
	return 0;
}

/* What a start would find, but for ports; it may become the user of the options for that, for nothing comes after. */
static int main_check(const struct config *config, struct err *e)
{
	char text[512];
	int rc = privilege_check(config, e);

	if (rc == 0)
		rc = box_check(config, e);
	if (rc == 0)
		rc = announce_check(config, e);
	if (rc == 0 && config->checkpoint_targets[0])
		rc = privilege_drop(config, text, sizeof(text), e);
	return rc < 0 ? rc : box_check_targets(config, NULL, true, e);
}

static int main_run(const struct config *config)
{
	struct client_env client;
	struct box_env env = {.plant_leak = MAIN_PLANT_LEAK,
		.calls = &client_call_ops,
		.calls_arg = &client,
		.announce = &announce_etcd,
		.lease_clock = clock_outside_ns};
	char text[1024] = "";
	struct box *box;
	struct err e;
	int fd, hup, rc;

	if (dispatch_from_env(&env.kernels, text, sizeof(text)) < 0) {
		err_set(&e, -EINVAL, "%s", text);
		return main_complain(&e, MAIN_FAILED);
	}
	env_product(&client, NULL);
	client.ctx = (void *)(uintptr_t)(config->interface[0] ? config->interface : NULL); /* to dial by */
	main_raise_limits();
	signal(SIGPIPE, SIG_IGN);
	fd = main_signal_fd(SIGTERM, SIGINT);
	hup = main_signal_fd(SIGHUP, 0);
	if (fd < 0 || hup < 0) {
		err_set(&e, -errno, "signalfd: %s", strerror(errno));
		return main_complain(&e, MAIN_FAILED);
	}
	if (main_open(config, &env, &box, &e) < 0) {
		close(hup);
		close(fd);
		return main_complain(&e, MAIN_FAILED);
	}
	box_describe(box, text, sizeof(text));
	printf("phubd: listening on %s\n", text);
	rc = main_flush(MAIN_DONE);
	if (rc == MAIN_DONE)
		main_say_ready(text);
	if (rc == MAIN_DONE && box_run(box, fd, hup, &e) < 0)
		rc = main_complain(&e, MAIN_FAILED);
	if (!box_balanced(box)) {
		fprintf(stderr, "phubd: slots, credits or completions did not balance; see the log, and report it\n");
		rc = MAIN_FAILED;
	}
	box_destroy(box, clock_now_ns());
	close(hup);
	close(fd);
	return rc;
}

static int main_act(struct config *config, enum main_action action)
{
	char text[1024];
	struct err e;
	int rc;

	if (action == MAIN_DUMP) {
		config_dump(config, stdout);
		return main_flush(MAIN_DONE);
	}
	if (config_finish(config, &e) < 0)
		return main_complain(&e, MAIN_FAILED);
	log_set_sink(log_sink_stderr, NULL);
	if (action == MAIN_CHECK) {
		log_set_level(LOG_LEVEL_WARN);
		if (main_check(config, &e) < 0)
			return main_complain(&e, MAIN_FAILED);
		config_describe_racks(config, text, sizeof(text));
		if (text[0])
			printf("phubd: %s\n", text);
		puts("phubd: the options are good (no port was tried)");
		return main_flush(MAIN_DONE);
	}
	log_set_level((enum log_level)config->log_level);
	if (log_set_level_from_env(&e) < 0)
		return main_complain(&e, MAIN_FAILED);
	if (config->hostbox_fd && hostbox_detach((int)config->hostbox_fd, &e) < 0)
		return main_complain(&e, MAIN_FAILED);
	rc = main_run(config);
	if (config->hostbox_fd && rc == MAIN_DONE && !log_has_warned())
		hostbox_remove_log();
	return rc;
}

int main(int argc, char **argv)
{
	enum main_action action = MAIN_RUN;
	struct config config;
	int rc;

	main_tame_malloc();
	if (main_says(argc, argv, "-h", "--help")) {
		fputs(main_help, stdout);
		return main_flush(MAIN_DONE);
	}
	if (main_says(argc, argv, "-V", "--version")) {
		puts("phubd " MAIN_VERSION);
		return main_flush(MAIN_DONE);
	}
	config_init(&config);
	rc = main_load(&config, argc, argv);
	if (rc == MAIN_GO_ON)
		rc = main_set(&config, argc, argv, &action);
	if (rc == MAIN_GO_ON)
		rc = main_act(&config, action);
	config_fini(&config);
	return rc;
}
