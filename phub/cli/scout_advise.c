/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub scout advise: a scout for those who train by something else (torchft's LocalSGD and DiLoCo, Flower), and set
 * sync_every themselves. Sites say how a window went, a line each; when all have, or time is up, each is told how many
 * steps to make between two averages. One thread, one poll().
 *
 * Strangers that reach the socket are kept within bounds: callers, the length of a line, the time it may take, what
 * they ask for, and the time they take to read that.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/scout/options.h"
#include "client/scout/record.h"
#include "client/scout/site.h"
#include "phub/base/clock.h"
#include "phub/cli/advise_caller.h"
#include "phub/cli/advise_line.h"
#include "phub/cli/advise_moves.h"
#include "phub/cli/args.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"
#include "phub/cli/scout.h"
#include "phub/cli/scout_check.h"

enum {
	ADVISE_SPARE = 16, /* callers beside one for each site */
	ADVISE_FILES = 16, /* that are open beside callers */
	ADVISE_RECORD_BYTES = 8192,
	ADVISE_REFUSAL_BYTES = 96, /* of a reason, which has few */
};

#define ADVISE_ROUNDING 1e-9

struct advise_options {
	const char *listen, *out, *secret_file;
	uint64_t sites, period, model_bytes, seed, wait_ns;
	struct scout_given given; /* its policy is known, and costs are in bytes */
	struct args_reals thetas;
	bool json;
};

struct advise_site {
	bool here;                      /* it has reported on this window; of several reports the last one counts */
	bool refused;                   /* it has not, but has said what is no report, and is not waited for */
	char why[ADVISE_REFUSAL_BYTES]; /* it is */
	struct advise_line said;
};

struct advise {
	const struct advise_options *options;
	char secret[ADVISE_SECRET_BYTES]; /* "": none is asked for */
	struct scout scout;
	struct scout_decision last; /* what is answered to who only asks */
	uint64_t step, last_step;   /* of the window that is decided; of the one before */
	uint64_t end_ns;            /* of this window */
	double total;               /* bytes that a site has sent, the mean, */
	double total_bsp;           /* and would have sent by BSP in what was reported */
	struct advise_moves moves;
	unsigned waiting; /* sites that are here; */
	unsigned refused; /* and that are refused */
	int fd;
	FILE *log;
	bool cut; /* it could not be written to its end */
	struct advise_site sites[ADVISE_SITES_MAX];
	size_t kept; /* bytes, for callers */
	struct advise_caller *callers;
	struct pollfd *ready;
	unsigned room;
};

static volatile sig_atomic_t advise_ended;

static void advise_on_signal(int number)
{
	(void)number;
	advise_ended = 1;
}

/* ---- callers ---- */

/* Answers that wait for a caller: each site's, and as many again. */
static unsigned advise_most(const struct advise *a)
{
	return 2 * (unsigned)a->options->sites + ADVISE_SPARE;
}

static void advise_send(struct advise *a, unsigned caller, const char *text, size_t length)
{
	advise_caller_send(&a->callers[caller], text, length, (size_t)advise_most(a) * ADVISE_ANSWER_BYTES);
}

static void advise_refuse(struct advise *a, unsigned caller, const char *text)
{
	char answer[ADVISE_ANSWER_BYTES];

	advise_send(a, caller, answer, advise_line_error(text, answer));
	if (a->callers[caller].fd >= 0)
		advise_caller_drop(&a->callers[caller]);
}

static void advise_accept(struct advise *a)
{
	unsigned i = 0;
	int fd = accept4(a->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return;
	while (i < a->room && a->callers[i].fd >= 0)
		i++;
	if (i == a->room) /* of those who are here none is put out for a stranger, but who may have gone */
		for (i = 0; i < a->room && !a->callers[i].ended;)
			i++;
	if (i == a->room) {
		close(fd);
		return;
	}
	if (a->callers[i].fd >= 0)
		advise_caller_drop(&a->callers[i]);
	advise_caller_open(&a->callers[i], fd, &a->kept);
}

/* ---- windows ---- */

/* By BSP a site would have sent a model a step. Of what nobody has reported nothing is known: of a window that all have
 * passed over, and of steps before one in which they had no advice. */
static double advise_bsp(const struct advise *a)
{
	const uint64_t steps = a->step > a->last_step ? a->step - a->last_step : 0;
	const uint64_t counted = steps < a->options->period ? steps : a->options->period;

	return (double)a->options->model_bytes * (double)counted * a->waiting / (double)a->options->sites;
}

/* What cannot be written ends the log, or it would have a hole where the disk has room again. Advice goes on. */
static void advise_log(struct advise *a, const char *line)
{
	if (!a->log || (fputs(line, a->log) >= 0 && fflush(a->log) == 0))
		return;
	output_error("cannot write %s: %s; it ends before step %" PRIu64 ", and advice goes on without it",
		a->options->out, strerror(errno), a->step);
	fclose(a->log);
	a->log = NULL;
	a->cut = true;
}

static void advise_record(struct advise *a, const struct scout_report *reports, double theta)
{
	const unsigned sites = (unsigned)a->options->sites;
	const bool travels = a->options->given.policy != SCOUT_PLUS; /* its sites are tried at home alone */
	char line[ADVISE_RECORD_BYTES] = "";
	struct record_decision d;
	double weighed;

	record_decision_init(&d);
	d.t = a->step;
	d.theta = theta;
	d.decision = a->last;
	d.sites = sites;
	for (unsigned k = 0; k < sites; k++) {
		d.samples += reports[k].samples;
		d.bytes += (double)reports[k].bytes / sites;
		d.bytes_travel += travels && reports[k].samples > 0 ? (double)a->options->model_bytes / sites : 0;
	}
	/* A cost weighs what those have sent that say it. */
	weighed = a->last.bytes * (double)a->options->period;
	d.bytes_cost = fabs(weighed - d.bytes) > ADVISE_ROUNDING * weighed ? weighed : NAN;
	a->total += d.bytes + d.bytes_travel;
	d.bytes_total = a->total;
	a->total_bsp += advise_bsp(a);
	d.bytes_bsp = a->total_bsp;
	d.train_loss = a->last.seen.train;
	if (record_decision(&d, line, sizeof(line)) >= sizeof(line))
		return;
	advise_log(a, line);
	if (a->options->json)
		fputs(line, stdout);
	else
		printf("step %" PRIu64 ": theta %g, then %g (%s): %s\n", a->step, theta, a->last.theta,
			scout_action_name(a->last.action), a->last.reason);
	fflush(stdout);
}

static int advise_compare_steps(const void *a, const void *b)
{
	const uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;

	return (one > other) - (one < other);
}

static void advise_listen(struct advise *a, struct advise_moved *moved)
{
	const struct advise_line *lines[ADVISE_SITES_MAX];

	for (unsigned k = 0; k < a->options->sites; k++)
		lines[k] = a->sites[k].here ? &a->sites[k].said : NULL;
	advise_moves_hear(&a->moves, lines, (unsigned)a->options->sites, moved);
	if (moved->exchanges > 0)
		scout_hear_all(&a->scout, moved->exchanges, moved->said, moved->heard, moved->squares, a->moves.rate);
	else if (a->scout.config.policy == SCOUT_PLUS)
		scout_hear(&a->scout, NAN, NAN, NAN, a->moves.rate);
}

/* All of it, or nothing. */
static bool advise_add_reason(struct advise *a, const char *more)
{
	const size_t length = strlen(a->last.reason);

	if (length + strlen(more) >= sizeof(a->last.reason))
		return false;
	memcpy(a->last.reason + length, more, strlen(more) + 1);
	return true;
}

/* first: 1 + a site; 0: none is. */
static void advise_say_beyond(struct advise *a, const char *what, int times, unsigned first, unsigned count)
{
	char more[160], others[48] = "";

	if (first == 0)
		return;
	if (count > 0)
		snprintf(others, sizeof(others), ", and so do %u more", count);
	snprintf(more, sizeof(more), "; site %u says %s above %d times the middle one's, and counts as that%s",
		first - 1, what, times, others);
	advise_add_reason(a, more);
}

static void advise_say_refused(struct advise *a)
{
	char more[ADVISE_REFUSAL_BYTES + 64], others[48] = "";
	unsigned first = 0;

	if (a->refused == 0)
		return;
	while (!a->sites[first].refused)
		first++;
	if (a->refused > 1)
		snprintf(others, sizeof(others), ", and %u more", a->refused - 1);
	snprintf(more, sizeof(more), "; site %u said what is no report (%s)%s", first, a->sites[first].why, others);
	if (advise_add_reason(a, more))
		return;
	snprintf(more, sizeof(more), "; site %u said what is no report%s", first, others);
	advise_add_reason(a, more);
}

/* At which the window ends: what the middle one says, for later reports are late by it. Where half or fewer say it, it
 * is not beyond a period: who has lied would have made all late for good. */
static uint64_t advise_step(const struct advise *a)
{
	const uint64_t period = a->last_step + a->options->period;
	uint64_t steps[ADVISE_SITES_MAX], step;
	unsigned count = 0;

	for (unsigned k = 0; k < a->options->sites; k++)
		if (a->sites[k].here)
			steps[count++] = a->sites[k].said.step;
	if (count == 0) /* a window begins with a report */
		return period;
	qsort(steps, count, sizeof(*steps), advise_compare_steps);
	step = steps[(count - 1) / 2];
	return 2 * count <= a->options->sites && step > period ? period : step;
}

static void advise_forget(struct advise *a)
{
	memset(a->sites, 0, sizeof(a->sites));
	a->waiting = a->refused = 0;
	a->end_ns = CLOCK_NEVER;
}

static void advise_decide(struct advise *a)
{
	static struct scout_report reports[ADVISE_SITES_MAX];
	const unsigned sites = (unsigned)a->options->sites;
	double theta = scout_theta(&a->scout);
	struct advise_moved moved;
	char answer[ADVISE_ANSWER_BYTES];
	size_t length;

	for (unsigned k = 0; k < sites; k++)
		reports[k] = a->sites[k].here ? a->sites[k].said.report
					      : (struct scout_report){.home = NAN, .away = NAN, .unfit = SCOUT_UNHEARD};
	a->step = advise_step(a);
	advise_listen(a, &moved);
	scout_observe(&a->scout, reports, sites, &a->last);
	advise_say_beyond(a, "a weight", MOVES_HEAVY, moved.heavy, moved.more);
	advise_say_beyond(a, "moves (squared)", MOVES_FAR, moved.far, moved.farther);
	advise_say_refused(a);
	advise_record(a, reports, theta);
	length = advise_line_answer(&a->last, answer);
	for (unsigned i = 0; i < a->room; i++)
		for (; a->callers[i].owed > 0; a->callers[i].owed--) {
			advise_send(a, i, answer, length);
			if (a->callers[i].fd < 0)
				break;
		}
	a->last_step = a->step;
	advise_forget(a);
}

/* Does anybody need to be waited for? Where none has said anything else, there is nothing to decide on. */
static void advise_end_window(struct advise *a)
{
	if (a->waiting > 0)
		advise_decide(a);
	else
		advise_forget(a);
}

/* Whoever comes late, or asks before the first window, hears what holds. */
static void advise_tell(struct advise *a, unsigned caller, const char *why)
{
	struct scout_decision now = a->last;
	char answer[ADVISE_ANSWER_BYTES];

	now.theta = scout_theta(&a->scout);
	now.action = SCOUT_STAYS;
	now.tries = a->scout.tries;
	snprintf(now.reason, sizeof(now.reason), "%s", why);
	advise_send(a, caller, answer, advise_line_answer(&now, answer));
}

static void advise_take(struct advise *a, unsigned caller, const struct advise_line *line)
{
	struct advise_site *site = &a->sites[line->site];
	char late[80];

	snprintf(late, sizeof(late), "the window of this step is over: it ended at step %" PRIu64, a->last_step);
	if (line->step == 0) {
		advise_tell(a, caller, "no window was reported");
	} else if (line->step <= a->last_step) {
		advise_tell(a, caller, late);
	} else if (a->callers[caller].owed == advise_most(a)) {
		advise_refuse(a, caller, "too many reports on one window");
	} else {
		a->callers[caller].owed++;
		if (a->waiting == 0)
			a->end_ns = clock_now_ns() + a->options->wait_ns;
		a->waiting += !site->here;
		a->refused -= site->refused;
		*site = (struct advise_site){.here = true, .said = *line};
		if (a->waiting + a->refused == a->options->sites)
			advise_end_window(a);
	}
}

/* It is answered, and the window ends without this site, unless it says what is right, or has, before all others have.
 * One whose others do not come is forgotten in time. */
static void advise_take_wrong(struct advise *a, unsigned caller, const struct advise_line *line, const char *why)
{
	struct advise_site *site = &a->sites[line->site];

	advise_refuse(a, caller, why);
	if (line->step <= a->last_step || site->here || site->refused)
		return;
	if (a->waiting + a->refused == 0)
		a->end_ns = clock_now_ns() + a->options->wait_ns;
	site->refused = true;
	snprintf(site->why, sizeof(site->why), "%.*s", ADVISE_REFUSAL_BYTES - 1, why);
	a->refused++;
	if (a->waiting + a->refused == a->options->sites)
		advise_end_window(a);
}

/* As long for all that are wrong. */
static bool advise_trusts(const struct advise *a, const char *secret)
{
	unsigned char wrong = 0;

	for (unsigned i = 0; i < ADVISE_SECRET_BYTES; i++)
		wrong |= (unsigned char)(a->secret[i] ^ secret[i]);
	return !a->secret[0] || wrong == 0;
}

static void advise_hear(struct advise *a, unsigned caller, const char *text, size_t length)
{
	struct advise_line line;
	struct err e = {0};
	int rc = advise_line_parse(text, length, (unsigned)a->options->sites, &line, &e);

	if (rc == -EBADMSG)
		advise_refuse(a, caller, e.text);
	else if (!advise_trusts(a, line.secret))
		advise_refuse(a, caller, "this is not the secret");
	else if (rc < 0)
		advise_take_wrong(a, caller, &line, e.text);
	else
		advise_take(a, caller, &line);
}

static void advise_read(struct advise *a, unsigned caller)
{
	struct advise_caller *c = &a->callers[caller];
	ssize_t got = recv(c->fd, c->line + c->have, sizeof(c->line) - c->have, 0);
	char *end;

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	c->ended = got == 0;
	if (got < 0 || advise_caller_is_done(c))
		advise_caller_drop(&a->callers[caller]);
	if (got <= 0)
		return;
	if (c->have == 0 && c->end_ns == CLOCK_NEVER)
		c->end_ns = clock_deadline_ns(clock_now_ns(), ADVISE_CALLER_MS);
	c->have += (size_t)got;
	while (c->fd >= 0 && (end = memchr(c->line, '\n', c->have))) {
		size_t gone = (size_t)(end - c->line) + 1;
		char text[ADVISE_LINE_MAX + 1];

		memcpy(text, c->line, gone);
		memmove(c->line, c->line + gone, c->have - gone);
		c->have -= gone;
		c->end_ns = c->have ? clock_deadline_ns(clock_now_ns(), ADVISE_CALLER_MS) : CLOCK_NEVER;
		advise_hear(a, caller, text, gone - 1);
	}
	if (c->fd >= 0 && c->have == sizeof(c->line))
		advise_refuse(a, caller, "a line is too long");
}

/* ---- the loop ---- */

static void advise_expire(struct advise *a, uint64_t now_ns, uint64_t *next_ns)
{
	if (a->end_ns <= now_ns)
		advise_end_window(a);
	*next_ns = a->end_ns;
	for (unsigned i = 0; i < a->room; i++) {
		struct advise_caller *c = &a->callers[i];

		if (c->fd < 0)
			continue;
		if (!c->ended && c->end_ns <= now_ns)
			advise_refuse(a, i, "a line took too long");
		else if (advise_caller_next_ns(c) <= now_ns || advise_caller_is_done(c))
			advise_caller_drop(c);
		else if (advise_caller_next_ns(c) < *next_ns)
			*next_ns = advise_caller_next_ns(c);
	}
}

static void advise_meet(struct advise *a, unsigned caller, short events)
{
	if (events & POLLOUT)
		advise_caller_flush(&a->callers[caller]);
	if (a->callers[caller].fd < 0 || !(events & ~POLLOUT))
		return;
	if (a->callers[caller].ended)
		advise_caller_drop(&a->callers[caller]);
	else
		advise_read(a, caller);
}

static void advise_loop(struct advise *a)
{
	while (!advise_ended) {
		uint64_t now_ns = clock_now_ns(), next_ns;

		advise_expire(a, now_ns, &next_ns);
		a->ready[a->room] = (struct pollfd){.fd = a->fd, .events = POLLIN};
		for (unsigned i = 0; i < a->room; i++) {
			const struct advise_caller *c = &a->callers[i];

			a->ready[i] = (struct pollfd){.fd = c->fd, .events = c->ended ? 0 : POLLIN};
			a->ready[i].events |= c->out_have > 0 ? POLLOUT : 0;
		}
		/* A second at most: a signal may come just before. */
		if (next_ns > now_ns + NS_PER_S)
			next_ns = now_ns + NS_PER_S;
		if (poll(a->ready, a->room + 1, clock_timeout_ms(now_ns, next_ns)) <= 0)
			continue;
		for (unsigned i = 0; i < a->room; i++)
			if (a->ready[i].revents && a->callers[i].fd >= 0 && a->callers[i].fd == a->ready[i].fd)
				advise_meet(a, i, a->ready[i].revents);
		if (a->ready[a->room].revents)
			advise_accept(a);
	}
}

/* ---- the socket ---- */

/* A port is wanted: that of boxes is theirs. */
static int advise_check_listen(const struct args_usage *usage, const char *where)
{
	if (advise_caller_may_listen(where))
		return ARGS_GO_ON;
	return args_wrong(usage,
		"--listen %s: allowed is HOST:PORT, like 127.0.0.1:7080 (port 0: any that is free), or unix:PATH",
		where);
}

static int advise_read_secret(struct advise *a, struct err *e)
{
	const char *path = a->options->secret_file;
	FILE *file = path ? fopen(path, "re") : NULL;
	size_t length;
	int rc;

	if (!path)
		return 0;
	if (!file)
		return err_set(e, -errno, "cannot read %s: %s", path, strerror(errno));
	length = fread(a->secret, 1, sizeof(a->secret), file);
	rc = ferror(file) ? err_set(e, -errno, "cannot read %s: %s", path, strerror(errno)) : 0;
	fclose(file);
	if (rc < 0)
		return rc;
	if (length == sizeof(a->secret))
		return err_set(e, -EINVAL, "%s: a secret has less than %d bytes", path, ADVISE_SECRET_BYTES);
	a->secret[strcspn(a->secret, "\r\n")] = '\0';
	memset(a->secret + strlen(a->secret), 0, sizeof(a->secret) - strlen(a->secret));
	return a->secret[0] ? 0
			    : err_set(e, -EINVAL, "%s: its first line is empty, and is to be the secret that sites say",
				      path);
}

/* ---- beginning and end ---- */

static int advise_config(const struct advise_options *o, struct scout_config *c, struct err *e)
{
	int rc;

	scout_defaults(c);
	c->policy = (enum scout_policy)o->given.policy;
	c->period = (uint32_t)o->period;
	c->model_bytes = o->model_bytes;
	c->seed = o->seed;
	scout_check_take(&o->given, c);
	c->theta_count = o->thetas.count;
	memcpy(c->thetas, o->thetas.at, o->thetas.count * sizeof(double));
	for (unsigned i = 0; i < c->theta_count; i++)
		if (!site_theta_valid(SITE_LOCAL, c->thetas[i]))
			return err_set(e, -EINVAL, "--thetas: %g is none of the steps between averages; allowed: %s",
				c->thetas[i], site_thetas(SITE_LOCAL));
	if (c->policy == SCOUT_REPLAY) {
		memcpy(c->schedule, c->thetas, sizeof(c->thetas));
		c->schedule_count = c->theta_count;
		c->theta_count = 1; /* of a replay it says nothing */
	}
	rc = options_thetas(c, SITE_LOCAL, e);
	return rc < 0 ? rc : options_needs(c, SITE_LOCAL, e);
}

static int advise_open_log(struct advise *a, struct err *e)
{
	const char *out = a->options->out;
	char line[ADVISE_RECORD_BYTES] = "";
	int rc = out ? scout_check_log(out, e) : 0;

	rc = out && rc == 0 ? scout_check_aside(out, false, e) : rc;
	if (!out || rc < 0)
		return rc;
	if (rc == SCOUT_CHECK_KEPT)
		output_note(SCOUT_CHECK_KEPT_TEXT, out, out);
	else if (rc != SCOUT_CHECK_ALONE)
		output_note("the log of the run before is %s.before", out);
	a->log = fopen(out, "we");
	if (!a->log)
		return err_set(e, -errno, "cannot write %s: %s", out, strerror(errno));
	record_run(&(struct record_run){.algorithm = SITE_LOCAL,
			   .scout = &a->scout.config,
			   .sites = (unsigned)a->options->sites,
			   .job = "advise"},
		line, sizeof(line));
	advise_log(a, line);
	return 0;
}

static int advise_close_log(struct advise *a)
{
	const double sites = (double)a->options->sites;
	char line[ADVISE_RECORD_BYTES] = "";

	if (!a->log)
		return a->cut ? CLI_FAILED : CLI_DONE;
	record_end(&(struct record_end){.t = a->last_step,
			   .bytes = (double)a->scout.bytes / sites,
			   .bytes_travel = (double)a->scout.bytes_travel / sites,
			   .bytes_wire = NAN,
			   .theta = scout_theta(&a->scout),
			   .accuracy = NAN,
			   .loss = NAN,
			   .seconds = NAN},
		line, sizeof(line));
	advise_log(a, line);
	if (!a->log || fclose(a->log) == 0)
		return a->cut ? CLI_FAILED : CLI_DONE;
	output_error("cannot write %s: %s", a->options->out, strerror(errno));
	return CLI_FAILED;
}

static int advise_room(struct advise *a, struct err *e)
{
	struct rlimit limit = {0};
	rlim_t wanted;

	a->room = (unsigned)a->options->sites + ADVISE_SPARE;
	wanted = a->room + ADVISE_FILES;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted) {
		limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
		if (limit.rlim_cur < wanted || setrlimit(RLIMIT_NOFILE, &limit) < 0)
			return err_set(e, -EMFILE, "%u sites need `ulimit -n` of at least %u",
				(unsigned)a->options->sites, (unsigned)wanted);
	}
	a->callers = calloc(a->room, sizeof(*a->callers));
	a->ready = calloc(a->room + 1, sizeof(*a->ready));
	if (!a->callers || !a->ready)
		return err_set(e, -ENOMEM, "out of memory");
	for (unsigned i = 0; i < a->room; i++)
		a->callers[i].fd = -1;
	a->end_ns = CLOCK_NEVER;
	return 0;
}

static int advise_serve(struct advise *a)
{
	struct sigaction action = {.sa_handler = advise_on_signal};
	char bound[ADVISE_BOUND_BYTES];
	struct err e = {0};
	bool open = false;
	int rc = advise_read_secret(a, &e);

	if (rc == 0)
		rc = advise_room(a, &e);
	if (rc == 0)
		rc = advise_caller_listen(a->options->listen, a->secret[0], &a->fd, bound, &e);
	open = rc == 0;
	if (rc == 0)
		rc = advise_open_log(a, &e);
	if (rc == 0) {
		sigaction(SIGINT, &action, NULL);
		sigaction(SIGTERM, &action, NULL);
		if (a->options->json)
			output_json(json_pack("{s:s, s:o}", "scout", "advise", "listen", output_name(bound)));
		else
			printf("listening on %s\n", bound);
		fflush(stdout);
		advise_loop(a);
	} else {
		output_error("%s", e.text);
	}
	for (unsigned i = 0; a->callers && i < a->room; i++)
		if (a->callers[i].fd >= 0)
			advise_caller_drop(&a->callers[i]);
	if (a->fd >= 0)
		close(a->fd);
	if (open && strncmp(a->options->listen, "unix:", 5) == 0)
		unlink(a->options->listen + 5);
	free(a->callers);
	free(a->ready);
	return rc < 0 ? CLI_FAILED : advise_close_log(a);
}

static int advise_open(const struct args_usage *usage, const struct advise_options *o)
{
	struct advise *a = calloc(1, sizeof(*a));
	struct scout_config config;
	struct err e = {0};
	int rc = a ? scout_check_given(usage, &o->given) : CLI_FAILED;

	if (!a)
		output_error("out of memory");
	else if (rc == ARGS_GO_ON && advise_config(o, &config, &e) < 0)
		rc = args_wrong(usage, "%s", e.text);
	if (rc == ARGS_GO_ON)
		rc = scout_check_theta(usage, o->given.theta, config.thetas, config.theta_count, &config.first);
	if (rc == ARGS_GO_ON && scout_init(&a->scout, &config, &e) < 0)
		rc = args_wrong(usage, "%s", e.text);
	if (rc == ARGS_GO_ON) {
		a->options = o;
		a->moves.rate = NAN;
		a->fd = -1;
		rc = advise_serve(a);
	}
	free(a);
	return rc;
}

static const char advise_about[] =
	"A scout for sites that train by something else, like torchft or Flower, and set sync_every themselves.\n"
	"Each says, a line of JSON at the end of each window of steps, how its model does at home and on another\n"
	"site's data, and hears, when all have, how many steps to make between averages:\n"
	"  {\"site\":0,\"step\":500,\"home\":{\"correct\":370,\"samples\":400},\n"
	"   \"away\":{\"correct\":331,\"samples\":400},\"bytes\":773800}\n"
	"  {\"sync_every\":10,\"theta\":10,\"window\":0,\"tries\":0,\"action\":\"tightens\",\"reason\":\"...\"}\n"
	"With the policy scout+ no model travels; each says how far it, and the mean, have moved, and how they do:\n"
	"  {\"site\":0,\"step\":500,\"moves\":{\"exchanges\":50,\"said\":0.031,\"heard\":0.0041},\"rate\":0.05,\n"
	"   \"train\":{\"loss\":301.5,\"samples\":1000},\"bytes\":773800}\n"
	"bytes are what it has sent in that window alone; NaN is null. man phub says more of the fields. Step 0 only "
	"asks.\n"
	"What is no report is answered by why, and nobody waits for that site.\n"
	"It runs until SIGINT or SIGTERM. In Python: phub.advise.\n";

int scout_advise_run(int argc, char **argv)
{
	struct advise_options o = {.given = SCOUT_GIVEN_NONE, .wait_ns = 60 * NS_PER_S};
	struct scout_given *g = &o.given;
	const struct args_option options[] = {
		{"listen", "ADDR", "HOST:PORT or unix:PATH; another HOST than 127.0.0.1 only with a secret", ARGS_TEXT,
			&o.listen, 0, 0, NULL},
		{"sites", "K", "that report, 1 to 1024", ARGS_NUMBER, &o.sites, 1, ADVISE_SITES_MAX, NULL},
		{"model-bytes", "B", "of one model", ARGS_BYTES, &o.model_bytes, 1, UINT64_C(1) << 50, NULL},
		{"thetas", "A,B,...", "steps between averages, the fewest first, or of replay its schedule: 1 to 64",
			ARGS_REALS, &o.thetas, 0, 0, NULL},
		{"theta", "THETA", "fixed, hill, stochastic, annealing: what it begins with (the first)", ARGS_REAL,
			&g->theta, 0, 0, NULL},
		{"policy", "NAME", "fixed, replay, hill, stochastic, annealing or scout+ (hill)", ARGS_CHOICE,
			&g->policy, 0, 0, scout_policies},
		{"period", "STEPS", "in a window (500; scout+: 50, and it measures in the first two)", ARGS_NUMBER,
			&o.period, 1, UINT32_MAX, NULL},
		{"sigma", "LOSS", "all but fixed and scout+: accuracy that may be lost, 0 to 1 (0.05)", ARGS_REAL,
			&g->sigma, 0, 1, NULL},
		{"lambda-loss", "L", "likewise: what accuracy that is lost beyond sigma costs (50)", ARGS_REAL,
			&g->lambda_loss, 0, 0, NULL},
		{"lambda-bytes", "L", "likewise: what a model's worth of bytes a step costs (1)", ARGS_REAL,
			&g->lambda_bytes, 0, 0, NULL},
		{"gain", "LOSS", "scout+: loss that talking more would have to save (0.02)", ARGS_REAL, &g->gain, 0, 0,
			NULL},
		{"worth", "BYTES", "scout+, instead: what a unit of loss is worth, like 200MB", ARGS_SIZE, &g->worth, 0,
			0, NULL},
		{"ease", "FACTOR", "scout+: a factor to how loose theta may be, above 0 (1)", ARGS_REAL, &g->ease, 0, 0,
			NULL},
		{"trim", "PART", "of sites that may lie, below 0.5: as much is left out of means at either end (0)",
			ARGS_REAL, &g->trim, 0, 0, NULL},
		{"seed", "N", "of its chances (0)", ARGS_NUMBER, &o.seed, 0, SCOUT_SEED_MAX, NULL},
		{"wait", "SECONDS", "for the others, when one has reported (60)", ARGS_SECONDS, &o.wait_ns, 10,
			86400000, NULL},
		{"secret-file", "FILE", "what sites must say, on its first line", ARGS_TEXT, &o.secret_file, 0, 0,
			NULL},
		{"out", "FILE", "the decision log; one that is there becomes FILE.before", ARGS_TEXT, &o.out, 0, 0,
			NULL},
		{"json", NULL, "decisions as lines of JSON", ARGS_FLAG, &o.json, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {.command = "phub scout advise",
		.about = advise_about,
		.examples = "  phub scout advise --listen unix:/run/user/1000/advise --sites 5 --model-bytes 45MB \\\n"
			    "      --thetas 1,2,5,10,20,50 --theta 20 --out run.jsonl\n",
		.options = options};
	struct args_words words;
	int rc;

	g->policy = SCOUT_HILL;
	g->unit = PRICE_BYTES;
	rc = args_parse(&usage, argc, argv, &words);
	if (rc != ARGS_GO_ON)
		return rc;
	if (!o.listen || !o.sites || !o.model_bytes || !o.thetas.count)
		return args_wrong(&usage, "needs --listen, --sites, --model-bytes and --thetas");
	rc = advise_check_listen(&usage, o.listen);
	if (rc != ARGS_GO_ON)
		return rc;
	if (o.period == 0)
		o.period = o.given.policy == SCOUT_PLUS ? OPTIONS_PERIOD_PLUS : OPTIONS_PERIOD;
	return advise_open(&usage, &o);
}
