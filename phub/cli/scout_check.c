/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sites look again at all of this: what they would say in many voices is said here in one.
 */
#include "phub/cli/scout_check.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/find.h"
#include "client/scout/environment.h"
#include "client/scout/options.h"
#include "client/scout/record.h"
#include "client/scout/shadow.h"
#include "client/url.h"
#include "phub/base/clock.h"
#include "phub/cli/beside.h"
#include "phub/cli/cli.h"
#include "transport/stream.h"

enum {
	CHECK_TAIL_BYTES = 2048, /* that a last line has at most */
	CHECK_LOCK_TRIES = 100,  /* for as often as others that end take the file away */
};

/* ---- options ---- */

static double check_or(double given, double usual)
{
	return isnan(given) ? usual : given;
}

void scout_check_take(const struct scout_given *given, struct scout_config *config)
{
	config->sigma = check_or(given->sigma, config->sigma);
	config->lambda_loss = check_or(given->lambda_loss, config->lambda_loss);
	config->lambda_bytes = check_or(given->lambda_bytes, config->lambda_bytes);
	config->trim = check_or(given->trim, config->trim);
	config->plus.sigma = check_or(given->gain, config->plus.sigma);
	config->plus.worth = check_or(given->worth, isnan(given->gain) ? config->plus.worth : 0);
	config->plus.ease = check_or(given->ease, config->plus.ease);
	config->price.link.rate = check_or(given->rate, config->price.link.rate);
	config->price.link.latency = check_or(given->latency, config->price.link.latency);
	config->price.link.money = check_or(given->price, config->price.link.money);
}

static int check_unit(const struct args_usage *usage, const struct scout_given *given)
{
	const struct {
		const char *name;
		double value;
		enum price_unit unit;
	} options[] = {{"rate", given->rate, PRICE_SECONDS}, {"latency", given->latency, PRICE_SECONDS},
		{"price", given->price, PRICE_MONEY}};

	for (unsigned i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		if (!isnan(options[i].value) && given->unit >= 0 && given->unit != (int)options[i].unit)
			return args_wrong(usage, "--%s is of --unit %s, and costs are in %s", options[i].name,
				price_unit_name(options[i].unit), price_unit_name((enum price_unit)given->unit));
	return ARGS_GO_ON;
}

int scout_check_given(const struct args_usage *usage, const struct scout_given *given)
{
	const struct {
		const char *name;
		double value;
		enum options_part part;
	} options[] = {{"theta", given->theta, OPTIONS_THETA}, {"sigma", given->sigma, OPTIONS_SIGMA},
		{"gain", given->gain, OPTIONS_GAIN}, {"worth", given->worth, OPTIONS_GAIN},
		{"ease", given->ease, OPTIONS_GAIN}, {"lambda-loss", given->lambda_loss, OPTIONS_LAMBDA_LOSS},
		{"lambda-bytes", given->lambda_bytes, OPTIONS_LAMBDA_BYTES}};
	const enum scout_policy policy = (enum scout_policy)given->policy;

	if (given->gain <= 0)
		return args_wrong(usage, "--gain %g: allowed is a number above 0", given->gain);
	if (given->ease <= 0)
		return args_wrong(usage, "--ease %g: allowed is a number above 0", given->ease);
	if (given->worth <= 0)
		return args_wrong(
			usage, "--worth %g: allowed is a number above 0; without it --gain holds", given->worth);
	if (!isnan(given->gain) && given->worth > 0)
		return args_wrong(usage, "--gain and --worth: the latter holds instead of the former; give one");
	if (given->trim >= 0.5)
		return args_wrong(usage, "--trim %g: allowed is a number from 0 to below 0.5", given->trim);
	for (unsigned i = 0; given->policy >= 0 && i < sizeof(options) / sizeof(options[0]); i++) {
		const char *others = options_others(policy, options[i].part);

		if (isnan(options[i].value) || !others)
			continue;
		return args_wrong(usage, "--%s is of %s; %s does not look at it%s", options[i].name, others,
			scout_policy_name(policy),
			options[i].part == OPTIONS_SIGMA && policy == SCOUT_PLUS ? ": the loss that it bears is --gain"
										 : "");
	}
	return check_unit(usage, given);
}

int scout_check_theta(
	const struct args_usage *usage, double theta, const double *thetas, unsigned count, unsigned *index)
{
	if (isnan(theta))
		return ARGS_GO_ON;
	for (unsigned i = 0; i < count; i++) {
		if (thetas[i] == theta) {
			*index = i;
			return ARGS_GO_ON;
		}
	}
	return args_wrong(usage, "--theta %g: is none of the thetas", theta);
}

/* ---- the environment of sites ---- */

/* 0: such sites could run, as far as it is known. */
static int check_sites(const struct phub_site_options *site, enum site_algorithm algorithm, struct err *e)
{
	static struct scout_config config;
	static struct scout scout;
	struct phub_scout_options own;
	double shadow[SHADOW_THETAS_MAX];
	int count = environment_shadow(NULL, shadow, e);
	int rc = count > 0 ? shadow_check(algorithm, shadow, (unsigned)count, e) : count;

	if (rc < 0)
		return rc;
	if (!site->scout && !isnan(site->theta) && !site_theta_valid(algorithm, site->theta))
		return err_set(e, -EINVAL, "%s cannot have a theta of %g; allowed: %s", site_algorithm_name(algorithm),
			site->theta, site_thetas(algorithm));
	if (!site->scout)
		return 0;
	if (site->scout->theta_count == 0) { /* the program's own; of one alone nobody would make a scout */
		config = (struct scout_config){.policy = (enum scout_policy)site->scout->policy, .theta_count = 2};
		return options_needs(&config, algorithm, e) == -ENOTSUP ? -ENOTSUP : 0;
	}
	own = *site->scout;
	own.model_bytes = 1;
	rc = options_scout(&own, &algorithm, &config, e);
	return rc < 0 ? rc : scout_init(&scout, &config, e);
}

int scout_check_environment(struct err *e)
{
	struct phub_site_options site;
	struct environment room;
	struct err first;
	int rc;

	phub_site_options_init(&site);
	rc = environment_apply(&site, &room, e);
	if (rc < 0)
		return rc;
	rc = check_sites(&site, (enum site_algorithm)site.algorithm, e);
	if (rc == 0 || getenv("PHUB_SCOUT_ALGORITHM"))
		return rc;
	/* The program says which: is there any? */
	first = *e;
	for (unsigned i = 0; i < SITE_ALGORITHM_COUNT; i++)
		if (check_sites(&site, (enum site_algorithm)i, e) == 0)
			return 0;
	*e = first;
	return rc;
}

/* ---- the log ---- */

/* By a file without a name. */
int scout_check_room(const char *path, struct err *e)
{
	static const char block[4096];
	char folder[PATH_MAX];
	int fd, rc = 0;

	beside_folder(path, folder);
	fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
	if (fd < 0)
		return errno == ENOSPC || errno == EDQUOT
			       ? err_set(e, -errno, "cannot write %s: %s", path, strerror(errno))
			       : 0;
	if (write(fd, block, sizeof(block)) != (ssize_t)sizeof(block))
		rc = err_set(
			e, errno ? -errno : -ENOSPC, "cannot write %s: %s", path, strerror(errno ? errno : ENOSPC));
	close(fd);
	return rc;
}

static int check_folder(const char *path, struct err *e)
{
	char folder[PATH_MAX];

	beside_folder(path, folder);
	if (access(folder, W_OK | X_OK) < 0)
		return err_set(e, -errno, "cannot write %s: %s: %s", path, folder, strerror(errno));
	return scout_check_room(path, e);
}

static bool check_is_log(const char *path)
{
	static const char begin[] = "{\"scout\":";
	char line[sizeof(begin) - 1];
	FILE *file = fopen(path, "re");
	size_t got = file ? fread(line, 1, sizeof(line), file) : 0;

	if (file)
		fclose(file);
	return got == 0 || (got == sizeof(line) && memcmp(line, begin, sizeof(line)) == 0);
}

int scout_check_log(const char *path, struct err *e)
{
	struct stat status;

	if (!*path)
		return err_set(e, -ENOENT, "a decision log needs a name");
	if (lstat(path, &status) < 0)
		return errno == ENOENT ? check_folder(path, e)
				       : err_set(e, -errno, "cannot write %s: %s", path, strerror(errno));
	if (!S_ISREG(status.st_mode))
		return err_set(e, -EINVAL,
			"cannot write %s: what is there is no regular file; --out wants the name of one", path);
	if (access(path, R_OK | W_OK) < 0)
		return err_set(e, -errno, "cannot write %s: %s", path, strerror(errno));
	if (!check_is_log(path))
		return err_set(e, -EEXIST,
			"cannot write %s: what is there is no decision log; give --out another name, or remove it",
			path);
	return check_folder(path, e);
}

static int check_name(const char *path, const char *suffix, char name[PATH_MAX], struct err *e)
{
	if ((size_t)snprintf(name, PATH_MAX, "%s.%s", path, suffix) >= PATH_MAX)
		return err_set(e, -ENAMETOOLONG, "cannot write %.100s...: the name is too long", path);
	return 0;
}

/* Is it the file of that name, which another may have unlinked before it was locked here? */
static bool check_is_there(const char *name, int fd)
{
	struct stat own, there;

	return fstat(fd, &own) == 0 && stat(name, &there) == 0 && own.st_ino == there.st_ino &&
	       own.st_dev == there.st_dev;
}

int scout_check_claim(const char *path, int *lock, struct err *e)
{
	char name[PATH_MAX];
	int rc = check_name(path, "lock", name, e);

	*lock = -1;
	for (unsigned tries = 0; rc == 0 && tries < CHECK_LOCK_TRIES; tries++) {
		const int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
		const bool locked = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0,
			   busy = !locked && errno == EWOULDBLOCK;
		const bool there = fd >= 0 && check_is_there(name, fd);

		if (locked && there) {
			*lock = fd;
			return 0;
		}
		if (fd >= 0)
			close(fd);
		if (busy && there)
			rc = err_set(e, -EBUSY,
				"cannot write %s: another phub scout run writes it now; give --out another name", path);
		else if (!busy && !locked)
			return 0;
	}
	return rc;
}

void scout_check_release(const char *path, int lock)
{
	char name[PATH_MAX];

	if (lock < 0)
		return;
	if (check_name(path, "lock", name, NULL) == 0)
		unlink(name);
	close(lock);
}

static enum scout_check_fate check_fate(const char *path)
{
	FILE *file = fopen(path, "re");
	int last = EOF;

	if (!file)
		return SCOUT_CHECK_NONE;
	if (fseek(file, -1, SEEK_END) == 0)
		last = getc(file);
	fclose(file);
	return last == EOF ? SCOUT_CHECK_EMPTY : last == '\n' ? SCOUT_CHECK_LINES : SCOUT_CHECK_CUT;
}

/* Is its last line whole, and that of a run which has ended? */
static bool check_is_whole(const char *path)
{
	static const char end[] = "{\"scout\":\"end\"";
	char tail[CHECK_TAIL_BYTES + 1], *last;
	FILE *file = fopen(path, "re");
	size_t got;

	if (!file)
		return false;
	if (fseek(file, -CHECK_TAIL_BYTES, SEEK_END) < 0)
		rewind(file);
	got = fread(tail, 1, CHECK_TAIL_BYTES, file);
	fclose(file);
	if (got == 0 || tail[got - 1] != '\n')
		return false;
	tail[got - 1] = '\0';
	last = memrchr(tail, '\n', got - 1);
	return strncmp(last ? last + 1 : tail, end, sizeof(end) - 1) == 0;
}

/* Has it no more than its first line? */
static bool check_is_bare(const char *path)
{
	FILE *file = fopen(path, "re");
	int byte = 0;

	if (!file)
		return true;
	while (byte != EOF && byte != '\n')
		byte = getc(file);
	if (byte == '\n')
		byte = getc(file);
	fclose(file);
	return byte == EOF;
}

/* The number that names a log's run among others; 0: it has none. */
static unsigned long long check_id(const char *path)
{
	char line[RECORD_HEAD_BYTES] = "";
	unsigned long long id = 0;
	FILE *file = fopen(path, "re");

	if (!file)
		return 0;
	if (fread(line, 1, sizeof(line) - 1, file) > 0 &&
		sscanf(line, "{\"scout\":\"run\",\"version\":%*u,\"id\":%llu", &id) != 1)
		id = 0;
	fclose(file);
	return id;
}

static bool check_is_part(const char *path, const char *suffix)
{
	char name[PATH_MAX];
	const unsigned long long id = check_id(path);

	return id > 0 && check_name(path, suffix, name, NULL) == 0 && check_id(name) == id;
}

const char *scout_check_part(const char *path)
{
	return check_is_part(path, "before") ? "before" : check_is_part(path, "broken") ? "broken" : NULL;
}

static bool check_write(int fd, const char *bytes, size_t count)
{
	while (count > 0) {
		const ssize_t done = write(fd, bytes, count);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return false;
		bytes += done;
		count -= (size_t)done;
	}
	return true;
}

/* A line that was broken off ends there: what comes behind it is another. */
static void check_end_line(const char *path)
{
	const int fd = check_fate(path) == SCOUT_CHECK_CUT ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;

	if (fd < 0)
		return;
	check_write(fd, "\n", 1);
	close(fd);
}

/* Puts what is at `path` behind what is at `name`. */
static int check_join(const char *path, const char *name)
{
	char block[4096];
	FILE *from = fopen(path, "re");
	const int to = open(name, O_WRONLY | O_APPEND | O_CLOEXEC);
	const off_t before = to >= 0 ? lseek(to, 0, SEEK_END) : -1;
	bool good = from && before >= 0;
	int error = good ? 0 : errno;
	size_t got;

	while (good && (got = fread(block, 1, sizeof(block), from)) > 0)
		good = check_write(to, block, got);
	good = good && !ferror(from) && unlink(path) == 0;
	if (!good && error == 0) {
		error = errno ? errno : EIO;
		if (ftruncate(to, before) < 0) /* then it has a part of it, which readers pass over */
			error = errno;
	}
	if (from)
		fclose(from);
	if (to >= 0)
		close(to);
	return -error;
}

/* Where to, and by what; the log of a part of the same run is written on, and any other gives way. */
static int check_move(const char *path, const char *suffix, bool joins, enum scout_check_aside done, struct err *e)
{
	char name[PATH_MAX];
	int rc = check_name(path, suffix, name, e);

	if (rc == 0)
		rc = access(name, F_OK) == 0 ? scout_check_log(name, e) : 0;
	if (rc < 0)
		return rc;
	if (joins)
		check_end_line(name);
	rc = joins ? check_join(path, name) : rename(path, name) < 0 ? -errno : 0;
	if (rc < 0)
		return err_set(e, rc, "cannot write %s: the log that is there cannot become %s: %s", path, name,
			strerror(-rc));
	check_end_line(name);
	return (int)done;
}

int scout_check_aside(const char *path, bool keeps_older, struct err *e)
{
	char before[PATH_MAX];
	const char *part;
	int rc = check_name(path, "before", before, e);

	if (rc < 0)
		return rc;
	if (access(path, F_OK) < 0)
		return SCOUT_CHECK_ALONE;
	part = scout_check_part(path);
	if (part)
		return check_move(path, part, true,
			strcmp(part, "before") == 0 ? SCOUT_CHECK_JOINED : SCOUT_CHECK_JOINED_BROKEN, e);
	if (access(before, F_OK) < 0)
		return check_move(path, "before", false, SCOUT_CHECK_ASIDE, e);
	rc = scout_check_log(before, e);
	if (rc < 0)
		return rc;
	if (check_is_bare(path) && unlink(path) == 0)
		return SCOUT_CHECK_KEPT;
	if (keeps_older && !check_is_whole(path))
		return check_move(path, "broken", false, SCOUT_CHECK_BROKEN, e);
	return check_move(path, "before", false, SCOUT_CHECK_REPLACED, e);
}

enum scout_check_fate scout_check_settle(const char *path, enum scout_check_aside was)
{
	const enum scout_check_fate fate = check_fate(path);
	const bool broken = was == SCOUT_CHECK_BROKEN || was == SCOUT_CHECK_JOINED_BROKEN;
	char name[PATH_MAX];

	if (was != SCOUT_CHECK_ALONE && (fate == SCOUT_CHECK_NONE || fate == SCOUT_CHECK_EMPTY) &&
		check_name(path, broken ? "broken" : "before", name, NULL) == 0)
		rename(name, path);
	return fate;
}

/* ---- the command ---- */

int scout_check_command(const char *name, struct err *e)
{
	const char *path = getenv("PATH");
	bool found = false;

	if (strchr(name, '/'))
		return access(name, X_OK) == 0 ? 0 : err_set(e, -errno, "cannot run %s: %s", name, strerror(errno));
	for (const char *at = path; at && *at && !found; at += strspn(at, ":")) {
		size_t length = strcspn(at, ":");
		char file[PATH_MAX];

		snprintf(file, sizeof(file), "%.*s/%s", (int)length, at, name);
		found = *name && access(file, X_OK) == 0;
		at += length;
	}
	if (path && !found)
		return err_set(e, -ENOENT, "cannot run %s: it is not in PATH", name);
	return 0;
}

/* ---- the box ---- */

/* 0: somebody takes the connection. */
static int check_connected(struct stream *stream, uint64_t deadline_ns)
{
	for (;;) {
		char byte;
		ssize_t got = stream->ops->read(stream, &byte, 1);
		struct pollfd ready = {.fd = stream->ops->fd(stream), .events = POLLIN};
		uint64_t now_ns = clock_now_ns();

		if (got != -EAGAIN)
			return got < 0 ? (int)got : 0;
		if (now_ns >= deadline_ns)
			return -ETIMEDOUT;
		/* While a name is looked up it may always be written to. */
		ready.events |= stream->why.code == -EINPROGRESS ? 0 : POLLOUT;
		poll(&ready, 1, clock_timeout_ms(now_ns, deadline_ns));
		if (ready.revents == POLLOUT)
			return 0;
	}
}

static int check_one_box(const char *host, uint16_t port, int timeout_ms, struct err *e)
{
	const uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), timeout_ms);
	struct stream *stream;
	int rc = stream_dial_tcp_later(host, port, NULL, &stream, e);

	if (rc < 0)
		return rc;
	rc = check_connected(stream, deadline_ns);
	if (rc < 0 && stream->why.code)
		err_set(e, rc, "%s", stream->why.text);
	else if (rc == -ETIMEDOUT)
		err_set(e, rc, "no answer within %g s", timeout_ms / 1e3);
	else if (rc < 0)
		err_set(e, rc, "%s", strerror(-rc));
	stream->ops->close(stream);
	return rc;
}

int scout_check_url(const char *text, struct err *e)
{
	struct url url;

	return find_is_wanted(text) ? find_check(text, e) : url_parse(text, &url, e);
}

int scout_check_box(const char *text, int timeout_ms, struct err *e)
{
	struct url url;
	int rc = find_is_wanted(text) ? 1 : url_parse(text, &url, e);

	if (rc != 0)
		return rc < 0 ? rc : 0;
	rc = check_one_box(url.host, url.port, url.other.host[0] ? timeout_ms / 2 : timeout_ms, e);
	if (rc < 0 && url.other.host[0] && check_one_box(url.other.host, url.other.port, timeout_ms / 2, e) == 0)
		return 0;
	if (rc < 0)
		return err_set(e, rc,
			"no box at %s: %s; start one there with phubd, or leave --box away, and one is "
			"started here",
			text, e->text);
	return 0;
}
