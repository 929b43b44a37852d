/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The decision log: record.h has the lines, this their numbers and the file, and who writes it.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/handle.h"
#include "client/scout/course.h"
#include "client/scout/environment.h"
#include "client/scout/record.h"
#include "client/scout/within.h"
#include "phub/base/clock.h"

enum { LOG_ROUNDS = CENSUS_WAITS + 2, LOG_TAIL_BYTES = 65536, LOG_KEY_FIELDS = 4 };

#define LOG_HELD_NS ((CENSUS_WAITS_MS + 1000) * 1000000ull)

static void log_forget(struct phub_site *s)
{
	while (s->log.held) {
		struct site_log_line *line = s->log.held;

		s->log.held = line->next;
		free(line);
	}
}

/* It has no file any more, and another may write. */
static void log_drop(struct phub_site *s)
{
	census_fini(s);
	log_forget(s);
	if (s->log.fd >= 0)
		close(s->log.fd);
	s->log.fd = -1;
	s->log.writes = false;
	free(s->log.path);
	s->log.path = NULL;
}

/* Wherever the program goes meanwhile. NULL: no memory, or it is nowhere. */
static char *log_path(const char *wanted)
{
	char *here = *wanted == '/' ? NULL : getcwd(NULL, 0), *path = NULL;

	if (*wanted != '/' && !here)
		return NULL;
	if (asprintf(&path, "%s%s%s", here ? here : "", here ? "/" : "", wanted) < 0)
		path = NULL;
	free(here);
	return path;
}

int course_log_open(struct phub_site *s, const char *path, struct err *e)
{
	const char *wanted = path ? path : environment_log(s->link);

	memcpy(&s->log.run, s->phub->session.nonce, sizeof(s->log.run));
	s->log.run = s->log.run >> 11 | 1; /* 53 bits, all readers of JSON have these */
	s->log.before = UINT32_MAX;
	if (!wanted || !*wanted)
		return 0;
	s->log.usual = !path;
	s->log.path = log_path(wanted);
	if (!s->log.path)
		return err_set(e, -ENOMEM, "%s: no memory for the decision log's path", s->phub->session.who);
	if (s->rank > 0)
		return 0;
	s->log.fd = open(wanted, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (s->log.fd < 0)
		return err_set(e, -errno, "%s: no decision log can be written to %.200s: %s", s->phub->session.who,
			wanted, strerror(errno));
	return 0;
}

int course_log_shadow(struct phub_site *s, struct err *e)
{
	double thetas[SHADOW_THETAS_MAX];
	int count = s->log.fd < 0 || !s->scouted ? 0 : environment_shadow(s->link, thetas, e);

	return count > 0 ? shadow_init(&s->shadow, &s->site, thetas, (unsigned)count, e) : count;
}

static void log_write(struct phub_site *s, const char *line, size_t bytes)
{
	while (bytes > 0 && s->log.error == 0) {
		ssize_t done = write(s->log.fd, line, bytes);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0) {
			s->log.error = done < 0 ? -errno : -EIO;
			return;
		}
		line += done;
		bytes -= (size_t)done;
	}
}

/* Without memory it is not there for who goes on. */
static void log_hold(struct phub_site *s, const char *line, size_t bytes)
{
	struct site_log_line *held = malloc(sizeof(*held) + bytes), **at = &s->log.held;

	if (!held)
		return;
	held->next = NULL;
	held->rounds = 0;
	held->made_ns = clock_now_ns();
	held->bytes = bytes;
	memcpy(held->text, line, bytes);
	while (*at)
		at = &(*at)->next;
	*at = held;
}

static void log_line(struct phub_site *s, const char *line, size_t bytes)
{
	if (s->log.fd >= 0)
		log_write(s, line, bytes);
	else if (s->log.path)
		log_hold(s, line, bytes);
}

/* As of a scout that leaves theta as it is. */
static void log_fixed(const struct phub_site *s, struct scout_config *out)
{
	scout_defaults(out);
	out->policy = SCOUT_FIXED;
	out->thetas[0] = s->site.config.theta;
	out->theta_count = 1;
	out->model_bytes = (uint64_t)s->site.elements * SITE_VALUE_BYTES;
}

/* What BSP says at a step: what is not trained it does not exchange. */
static uint64_t log_bsp(const struct phub_site *s)
{
	uint64_t bytes = 0;

	for (unsigned t = 0; t < s->config.tensor_count; t++)
		bytes += s->tensors[t].trained ? (uint64_t)s->tensors[t].elements * SITE_VALUE_BYTES : 0;
	return bytes;
}

/* The first line. */
static void log_head(struct phub_site *s)
{
	struct scout_config fixed;
	struct record_run run = {.algorithm = s->config.algorithm,
		.scout = &s->scout.config,
		.bsp_bytes = log_bsp(s),
		.sites = s->world,
		.rank = s->rank,
		.id = s->log.run,
		.job = s->phub->settings.url.job,
		.transport = phub_transport(s->phub),
		.tensor_count = s->config.tensor_count,
		.shadow = s->shadow.count > 0 ? s->shadow.theta : NULL,
		.shadow_count = s->shadow.count,
		.link = *s->link ? s->link : NULL,
		.within = s->within ? &s->within->site.config : NULL,
		.within_link = s->within && *s->within->link ? s->within->link : NULL};
	const char **names;
	size_t bytes;
	char *line;

	if (!s->scouted) {
		log_fixed(s, &fixed);
		run.scout = &fixed;
	}
	names = calloc(s->config.tensor_count, sizeof(*names));
	for (unsigned t = 0; names && t < s->config.tensor_count; t++)
		names[t] = s->phub->keyring.keys[t].name;
	run.tensors = names;
	bytes = record_run(&run, NULL, 0);
	line = malloc(bytes + 1);
	if (line) {
		record_run(&run, line, bytes + 1);
		log_write(s, line, bytes);
	}
	free(line);
	free(names);
}

/* ---- who goes on with it ---- */

/* To go on in: a file of this run, or one that is empty, or not there, or no file but a pipe or a device: it begins
 * there then. -EEXIST: there is another. */
static int log_reopen(const char *path, uint64_t run, bool *begins)
{
	const int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
	char own[RECORD_HEAD_BYTES], there[RECORD_HEAD_BYTES];
	const size_t head = record_head(run, own);
	struct stat about;
	int error;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &about) < 0) {
		error = errno;
		close(fd);
		return -error;
	}
	*begins = !S_ISREG(about.st_mode) || about.st_size == 0;
	if (*begins || (pread(fd, there, head, 0) == (ssize_t)head && memcmp(own, there, head) == 0))
		return fd;
	close(fd);
	return -EEXIST;
}

/* What is there becomes PATH.before, as with `phub scout run`. 0, or an error of rename(2). */
static int log_set_aside(const char *path)
{
	char *before;
	int rc;

	if (asprintf(&before, "%s.before", path) < 0)
		return -ENOMEM;
	rc = rename(path, before) < 0 ? -errno : 0;
	free(before);
	return rc;
}

/* The file that is named, else one beside it; that of a run before is kept. */
static int log_find(const struct phub_site *s, bool *begins)
{
	int fd = log_reopen(s->log.path, s->log.run, begins);
	char *beside;

	if (fd != -EEXIST)
		return fd;
	if (asprintf(&beside, "%s.site%" PRIu32, s->log.path, s->rank) < 0)
		return -ENOMEM;
	fd = log_reopen(beside, s->log.run, begins);
	if (fd == -EEXIST) {
		fd = log_set_aside(beside);
		if (fd == 0)
			fd = log_reopen(beside, s->log.run, begins);
	}
	free(beside);
	return fd;
}

/* What tells a line from all others: its first fields. */
static size_t log_key(const struct site_log_line *line)
{
	size_t at = 0;

	for (unsigned fields = 0; at < line->bytes && (line->text[at] != ',' || ++fields < LOG_KEY_FIELDS);)
		at++;
	return at;
}

/* Where in the end of a file begins what was not lost: behind the last restart. */
static const char *log_kept(const char *tail, size_t count)
{
	static const char mark[] = "\"action\":\"restarted\"";
	const char *kept = tail, *hit;

	while ((hit = memmem(kept, count - (size_t)(kept - tail), mark, sizeof(mark) - 1)))
		kept = hit + sizeof(mark) - 1;
	return kept;
}

/* One that was broken off does not count. */
static bool log_has(const char *from, const char *end, const struct site_log_line *line)
{
	const size_t key = log_key(line);

	while ((from = memmem(from, (size_t)(end - from), line->text, key))) {
		const char *last = memchr(from, '\n', (size_t)(end - from));

		if (last && last[-1] == '}')
			return true;
		from++;
	}
	return false;
}

/* The end of the file: as many bytes of it as `out` has room for, or fewer. */
static size_t log_tail(const struct phub_site *s, char *out, size_t room)
{
	struct stat about;
	ssize_t got = 0;

	if (out && fstat(s->log.fd, &about) == 0 && S_ISREG(about.st_mode))
		got = pread(s->log.fd, out, room, about.st_size > (off_t)room ? about.st_size - (off_t)room : 0);
	return got > 0 ? (size_t)got : 0;
}

/* Has the file lines of later steps? Then sites have gone back, whatever this one has heard of it. */
static bool log_goes_back(const struct phub_site *s)
{
	static const char mark[] = "\"t\":";
	char *tail = malloc(LOG_TAIL_BYTES + 1);
	const size_t count = log_tail(s, tail, LOG_TAIL_BYTES);
	uint64_t last = 0;

	for (const char *at = tail;
		count > 0 && (at = memmem(at, count - (size_t)(at - tail), mark, sizeof(mark) - 1));) {
		tail[count] = '\0';
		at += sizeof(mark) - 1;
		last = strtoull(at, NULL, 10);
	}
	free(tail);
	return last > s->site.counts.steps;
}

/* The lines that are held, but for those that the end of the file has. */
static void log_release(struct phub_site *s)
{
	size_t most = LOG_TAIL_BYTES, count;
	const char *kept;
	char *tail;

	for (const struct site_log_line *line = s->log.held; line; line = line->next)
		most += 4 * line->bytes;
	tail = malloc(most);
	count = log_tail(s, tail, most);
	kept = count > 0 ? log_kept(tail, count) : NULL;
	for (const struct site_log_line *line = s->log.held; line; line = line->next)
		if (count == 0 || !log_has(kept, tail + count, line))
			log_write(s, line->text, line->bytes);
	free(tail);
	log_forget(s);
}

/* Who wrote may have been killed in the middle of a line. */
static void log_mend(struct phub_site *s)
{
	struct stat about;
	char last = '\n';

	if (fstat(s->log.fd, &about) == 0 && about.st_size > 0 && pread(s->log.fd, &last, 1, about.st_size - 1) == 1 &&
		last != '\n')
		log_write(s, "\n", 1);
}

/* Why it is a restart; who begins with nothing is told of, too. */
static void log_tell_restart(const struct phub_site *s, bool begins, char *out, size_t room)
{
	const unsigned bare =
		s->goes_on ? s->log.bare : 1; /* else this site is the one: it has not heard of a restart */
	char but[80] = "";

	if (bare == 1)
		snprintf(but, sizeof(but), ", but rank %" PRIu32 ", which has saved nothing, from theirs",
			s->goes_on ? s->log.bare_rank : s->rank);
	else if (bare > 1)
		snprintf(but, sizeof(but), ", but %u that have saved nothing, from theirs", bare);
	snprintf(out, room, "sites go on from what they saved after step %" PRIu64 "%s%s", s->site.counts.steps, but,
		begins ? "" : ": what stands above of later ones was lost");
}

static void log_go_on(struct phub_site *s, unsigned sites)
{
	char why[200];
	struct record_site line = {
		.t = s->site.counts.steps, .rank = s->rank, .sites = sites, .since = s->log.since, .reason = why};
	bool begins, back;
	const int fd = log_find(s, &begins);

	if (s->log.fd >= 0)
		close(s->log.fd);
	s->log.fd = fd;
	if (fd < 0) {
		s->log.error = fd;
		log_drop(s);
		return;
	}
	s->log.writes = true;
	back = s->goes_on || (!begins && !s->begun && log_goes_back(s));
	line.action = back ? "restarted" : "writes";
	if (begins)
		log_head(s);
	else
		log_mend(s);
	if (back)
		log_tell_restart(s, begins, why, sizeof(why));
	else if (s->log.before == UINT32_MAX)
		snprintf(why, sizeof(why), "who wrote the log is there no more: this site goes on with it");
	else
		snprintf(why, sizeof(why), "site %" PRIu32 ", which wrote the log, is there no more: this site %s",
			s->log.before,
			begins ? "goes on, in a file of its own, as that one's is not here" : "goes on with it");
	course_log_site(s, &line);
	log_release(s);
}

/* Those of which it is known by now that they were written, or that no one else needs them, go. */
static void log_age(struct phub_site *s)
{
	const uint64_t now_ns = clock_now_ns();

	for (struct site_log_line *line = s->log.held; line; line = line->next)
		line->rounds++;
	while (s->log.held && s->log.held->rounds > LOG_ROUNDS && now_ns > s->log.held->made_ns + LOG_HELD_NS) {
		struct site_log_line *line = s->log.held;

		s->log.held = line->next;
		free(line);
	}
}

unsigned course_log_flags(const struct phub_site *s)
{
	return (s->log.path ? SLOT_LOG : 0) | (s->log.writes ? SLOT_WRITES : 0);
}

void course_log_turn(struct phub_site *s)
{
	uint32_t writer = UINT32_MAX, heir = UINT32_MAX;
	unsigned sites = 0;

	for (uint32_t rank = 0; rank < s->world; rank++) {
		struct slot slot;

		slots_get(s->slots_in, rank, &slot);
		if (writer == UINT32_MAX && slot.flags & SLOT_WRITES)
			writer = rank;
		if (!slot.flags || slot.flags & SLOT_HELLO)
			continue;
		sites++;
		heir = heir == UINT32_MAX && slot.flags & SLOT_LOG ? rank : heir;
	}
	writer = writer == UINT32_MAX ? heir : writer;
	s->log.turn = writer == s->rank;
	if (!s->log.turn && s->log.writes) { /* two have, of whom one was thought to be lost */
		close(s->log.fd);
		s->log.fd = -1;
		s->log.writes = false;
	}
	log_age(s);
	if (s->log.turn && !s->log.writes && s->begun)
		log_go_on(s, sites);
	s->log.before = writer == UINT32_MAX ? s->log.before : writer;
}

/* ---- its lines ---- */

/* A pipe or a device has nothing of a run before. */
static bool log_clear(struct phub_site *s)
{
	if (s->log.fd < 0)
		s->log.fd = open(s->log.path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (s->log.fd >= 0 && (ftruncate(s->log.fd, 0) == 0 || errno == EINVAL))
		return true;
	s->log.error = -errno;
	return false;
}

static void log_begin(struct phub_site *s)
{
	if (s->site.counts.steps > 0) {
		log_go_on(s, s->present.count);
		return;
	}
	s->log.writes = true;
	if (log_clear(s))
		log_head(s);
}

void course_log_run(struct phub_site *s)
{
	const bool begins = s->site.counts.steps == 0;

	s->log.began_ns = s->phub->env.now(s->phub->env.ctx);
	if (!s->goes_on)
		s->log.since = s->site.counts.steps;
	if (s->slots_key < 0)
		s->log.turn = s->rank == 0;
	if (s->log.path && s->log.turn) {
		log_begin(s);
	} else if (s->log.fd >= 0) { /* another writes it already */
		close(s->log.fd);
		s->log.fd = -1;
	}
	if (s->log.path && s->slots_key >= 0 && census_begin(s, begins || s->log.turn) == 0)
		census_take(s);
	s->goes_on = false;
}

/* As long as a site has tensors. */
static void log_decision(struct phub_site *s, const struct record_decision *d)
{
	const size_t bytes = record_decision(d, NULL, 0);
	char *line = malloc(bytes + 1);

	if (line) {
		record_decision(d, line, bytes + 1);
		log_line(s, line, bytes);
	}
	free(line);
}

void course_log_warning(struct phub_site *s, uint32_t rank, const char *tensor, bool all, const char *text)
{
	char line[2 * UNSOUND_TEXT_BYTES];
	size_t bytes = record_warning(s->site.counts.steps, rank, tensor, all, text, line, sizeof(line));

	if (bytes < sizeof(line))
		log_line(s, line, bytes);
}

void course_log_site(struct phub_site *s, const struct record_site *site)
{
	char line[512];
	const size_t bytes = record_site(site, line, sizeof(line));

	if (bytes < sizeof(line))
		log_line(s, line, bytes);
}

static double log_accuracy(const struct phub_score *score)
{
	return score->samples > 0 && score->correct <= score->samples ? (double)score->correct / (double)score->samples
								      : NAN;
}

static double log_loss(const struct phub_score *score)
{
	return score->samples > 0 ? score->loss / (double)score->samples : NAN;
}

/* What was sent, and what the cost weighs of it. */
static void log_bytes(struct phub_site *s, struct record_decision *d)
{
	double cost = 0, within = 0;

	for (unsigned i = 0; i < s->present.count; i++) {
		d->samples += s->reports[i].samples;
		cost += (double)s->reports[i].bytes / s->present.count;
		within += (double)s->reports[i].within / s->present.count;
	}
	d->bytes = s->window.sent;
	d->bytes_travel =
		(double)s->window.travelled * (double)s->scout.config.model_bytes / s->present.count + s->window.shown;
	d->bytes_cost = cost != d->bytes ? cost : NAN;
	if (s->within) {
		d->bytes_within = s->window.sent_within;
		d->bytes_within_cost = within != d->bytes_within ? within : NAN;
	}
	s->log.bytes += d->bytes;
	s->log.travel += d->bytes_travel;
	s->log.within += s->window.sent_within;
	d->bytes_total = s->log.bytes + s->log.travel;
	d->bytes_bsp = (double)log_bsp(s) * (double)d->t;
}

void course_log_decision(struct phub_site *s, double theta)
{
	struct record_shadow shadow[SHADOW_THETAS_MAX];
	struct record_decision d;

	if (!s->log.path)
		return;
	record_decision_init(&d);
	d.t = s->site.counts.steps;
	d.theta = theta;
	d.decision = s->decision;
	d.unit = s->scout.config.price.unit;
	d.sites = s->present.count;
	d.r = s->align.r;
	d.tensor_count = s->config.tensor_count;
	d.train_loss = s->decision.seen.train;
	log_bytes(s, &d);
	if (s->log.scored) {
		d.accuracy = log_accuracy(&s->log.score);
		d.score_loss = log_loss(&s->log.score);
		s->log.scored = false;
	}
	for (unsigned i = 0; i < s->shadow.count; i++) {
		shadow[i] = (struct record_shadow){s->shadow.theta[i], (double)(s->shadow.bytes[i] - s->log.shadow[i])};
		s->log.shadow[i] = s->shadow.bytes[i];
	}
	d.shadow = s->shadow.count > 0 ? shadow : NULL;
	d.shadow_count = s->shadow.count;
	log_decision(s, &d);
}

/* The mean of sites, by windows, of which lost sites are part, and since the last one by this site's own; without
 * windows by the last exchange. */
static double log_sent(const struct phub_site *s)
{
	const double others = s->windows == 0 ? s->sent.exchanges : 0;

	return s->log.bytes + (double)(s->site.counts.bytes_paper - s->window.told) + others;
}

static double log_within(const struct phub_site *s)
{
	const double others = s->windows == 0 ? s->sent.within : 0;

	return s->log.within + (double)(within_bytes(s) - s->window.told_within) + others;
}

static void log_end(struct phub_site *s)
{
	const uint64_t wire = sent_wire(s);
	struct record_end end = {.t = s->site.counts.steps,
		.bytes = log_sent(s),
		.bytes_travel = s->log.travel + s->window.shown,
		.bytes_wire = wire > 0 ? (double)wire + s->sent.wire : NAN,
		.theta = s->site.config.theta,
		.accuracy = log_accuracy(&s->log.score),
		.loss = log_loss(&s->log.score),
		.seconds = s->log.stepped_ns
				   ? s->log.seconds_before + (double)(s->log.stepped_ns - s->log.began_ns) * 1e-9
				   : NAN,
		.bytes_within = log_within(s),
		.rank = s->rank,
		.sites = s->present.count,
		.broken_since = unsound_since(s)};
	char line[1024];
	size_t bytes;

	bytes = record_end(&end, line, sizeof(line));
	if (bytes < sizeof(line))
		log_write(s, line, bytes);
}

void course_log_close(struct phub_site *s)
{
	if (!s->log.path)
		return;
	census_end(s);
	if (s->log.writes)
		log_end(s);
	log_drop(s);
}

void course_log_yield(struct phub_site *s, const struct phub_site *around)
{
	if (!s->log.path || s->scouted || !s->log.usual || strcmp(s->link, around->link) != 0)
		return;
	log_drop(s);
}
