/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The boxes that etcd knows: once, or what becomes of them.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "phub/base/clock.h"
#include "phub/cli/boxes.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"
#include "transport/lookout.h"

struct boxes_watch {
	const struct boxes_options *o;
	struct lookout lookout;
	bool told; /* that etcd does not answer */
};

static json_t *boxes_json_job(const struct roster_job *j)
{
	return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "job", j->name, "state", j->state, "workers",
		(json_int_t)j->workers, "known", (json_int_t)j->known, "world", (json_int_t)j->world, "round",
		(json_int_t)j->round);
}

static json_t *boxes_json_box(const struct roster_box *b, json_t *jobs)
{
	return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:b, s:I, s:b, s:o*}", "box", b->name,
		"address", b->address, "host", b->host, "rack", b->rack, "uplink", b->uplink, "root", b->root,
		"transports", b->transports, "version", b->version, "cores", (json_int_t)b->cores, "tls", (int)b->tls,
		"since", (json_int_t)b->since, "up", 1, "jobs", jobs);
}

/* ---- once ---- */

static json_t *boxes_jobs_of(const struct roster *r, const struct roster_box *box, char *text, size_t bytes)
{
	json_t *jobs = json_array();
	size_t at = 0;

	snprintf(text, bytes, "no jobs");
	for (unsigned i = 0; i < r->job_count; i++) {
		const struct roster_job *j = &r->jobs[i];
		bool low = box->uplink[0] && strcmp(j->state, "forming") == 0;
		char workers[BOXES_WORKERS_BYTES];

		if (strcmp(j->box, box->name) != 0)
			continue;
		json_array_append_new(jobs, boxes_json_job(j));
		if (at < bytes)
			at += (size_t)snprintf(text + at, bytes - at, "%s%s %s", at ? ", " : "", j->name,
				boxes_workers(j->workers, j->known, j->world, low, workers));
	}
	return jobs;
}

/* "-": not told. Returns `out`. */
static const char *boxes_date(int64_t unix_time, char out[32])
{
	time_t since = (time_t)unix_time;
	struct tm tm;

	snprintf(out, 32, "-");
	if (unix_time && localtime_r(&since, &tm))
		strftime(out, 32, "%Y-%m-%d %H:%M:%S", &tm);
	return out;
}

static void boxes_row(struct output_table *t, const struct roster_box *b, const char *jobs)
{
	char text[32];

	output_cell(t, "%s", b->name);
	output_cell(t, "%s", b->address);
	output_cell(t, "%s", b->rack[0] ? b->rack : "-");
	output_cell(t, "%s", b->uplink[0] ? b->uplink : "-");
	output_cell(t, "%" PRIu32, b->cores);
	output_cell(t, "%s", b->transports);
	output_cell(t, "%s", boxes_date(b->since, text));
	output_cell(t, "%s", jobs);
}

/* ---- roots ---- */

/* The box that has the root's key tells that it has none above it when it has its checkpoints, too. */
static bool boxes_serves(const struct roster *r, const struct roster_root *root)
{
	const struct roster_box *box = root ? roster_find_box(r, root->box) : NULL;

	return root && (!box || !box->uplink[0]);
}

/* `root` NULL: no box is it. */
static json_t *boxes_json_root(const char *name, const struct roster_root *root, bool serves, json_t *stands)
{
	return json_pack("{s:s, s:s, s:s, s:I, s:I, s:b, s:o*}", "root", name, "at", root ? root->box : "", "address",
		root ? root->address : "", "epoch", root ? (json_int_t)root->epoch : 0, "since",
		root ? (json_int_t)root->since : 0, "serves", (int)serves, "stands", stands);
}

/* Who stands for it, the one that is it among them. */
static json_t *boxes_stand(const struct roster *r, const char *root, char *text, size_t bytes)
{
	json_t *stand = json_array();
	size_t at = 0;

	snprintf(text, bytes, "-");
	for (unsigned i = 0; i < r->box_count; i++) {
		if (strcmp(r->boxes[i].root, root) != 0)
			continue;
		json_array_append_new(stand, json_string(r->boxes[i].name));
		if (at < bytes)
			at += (size_t)snprintf(text + at, bytes - at, "%s%s", at ? ", " : "", r->boxes[i].name);
	}
	return stand;
}

/* Prints what is known of it. */
static bool boxes_root(const struct boxes_options *o, const struct roster *r, const char *name, struct output_table *t)
{
	const struct roster_root *root = roster_find_root(r, name);
	bool serves = boxes_serves(r, root);
	char stand[400], since[32];
	json_t *list = boxes_stand(r, name, stand, sizeof(stand));

	if (o->json)
		return output_json(boxes_json_root(name, root, serves, list));
	json_decref(list);
	output_cell(t, "%s", name);
	output_cell(t, "%s%s", root ? root->box : "NONE", root && !serves ? " (waits)" : "");
	output_cell(t, "%s", root ? root->address : "-");
	output_cell(t, "%s", boxes_date(root ? root->since : 0, since));
	output_cell(t, "%" PRIu64, root ? root->epoch : 0);
	output_cell(t, "%s", stand);
	return true;
}

/* Does a box before this one stand for the same, or is there a box that is it? Then it was told of. */
static bool boxes_told_root(const struct roster *r, unsigned index)
{
	for (unsigned i = 0; i < index; i++)
		if (strcmp(r->boxes[i].root, r->boxes[index].root) == 0)
			return true;
	return !r->boxes[index].root[0] || roster_find_root(r, r->boxes[index].root);
}

/* Those that a box is, then those that none is, though one stands for them. */
static bool boxes_print_roots(const struct boxes_options *o, const struct roster *r)
{
	struct output_table t = {
		.heads = {"root", "box", "address", "root since", "epoch", "stand for it"}, .align = "llllrl"};
	bool any = r->root_count > 0, ok = true;

	for (unsigned i = 0; i < r->root_count; i++)
		ok = boxes_root(o, r, r->roots[i].name, &t) && ok;
	for (unsigned i = 0; i < r->box_count; i++) {
		if (boxes_told_root(r, i))
			continue;
		any = true;
		ok = boxes_root(o, r, r->boxes[i].root, &t) && ok;
	}
	if (any && !o->json) {
		printf("\n");
		output_table_print(&t);
	}
	for (unsigned i = 0; i < r->root_count && !o->json; i++)
		if (!boxes_serves(r, &r->roots[i]))
			printf("%s has the key of root %s, and waits for its checkpoints: its log says whose they "
			       "are\n",
				r->roots[i].box, r->roots[i].name);
	return ok;
}

static int boxes_print(const struct boxes_options *o, const struct lookout *l)
{
	struct output_table t = {
		.heads = {"box", "address", "rack", "uplink", "cores", "transports", "up since", "jobs"},
		.align = "llllrlll"};
	const struct roster *r = &l->roster;
	bool ok = true;

	for (unsigned i = 0; i < r->box_count; i++) {
		char text[400];
		json_t *jobs = boxes_jobs_of(r, &r->boxes[i], text, sizeof(text));

		if (o->json) {
			ok = output_json(boxes_json_box(&r->boxes[i], jobs)) && ok;
			continue;
		}
		json_decref(jobs);
		boxes_row(&t, &r->boxes[i], text);
	}
	if (r->box_count && !o->json)
		output_table_print(&t);
	else if (!o->json)
		printf("no boxes under %s at %s\n", o->prefix, etcd_url(l->etcd));
	ok = boxes_print_roots(o, r) && ok;
	if (l->left_out)
		output_note("there are more boxes or jobs than fit here; the others are left out");
	return ok ? CLI_DONE : CLI_FAILED;
}

/* ---- what changes ---- */

static void boxes_box_changed(struct boxes_watch *w, const struct roster_box *is, bool gone)
{
	const struct roster_box *was = roster_find_box(&w->lookout.roster, is->name);
	char clock[16];

	if (gone ? !was : was && memcmp(was, is, sizeof(*is)) == 0)
		return;
	if (w->o->json && gone)
		(void)output_json(json_pack("{s:s, s:b}", "box", is->name, "up", 0));
	else if (w->o->json)
		(void)output_json(boxes_json_box(is, NULL));
	else if (gone)
		printf("%sbox %s is gone\n", boxes_clock(w->o, clock), is->name);
	else
		printf("%sbox %s is up at %s%s%s%s\n", boxes_clock(w->o, clock), is->name, is->address,
			is->rack[0] ? ", rack " : "", is->rack, was ? " (it has changed)" : "");
}

/* Its round alone is no news. */
static void boxes_job_changed(struct boxes_watch *w, const struct roster_job *is, bool gone)
{
	const struct roster_job *was = roster_find_job(&w->lookout.roster, is->name, is->box);
	json_t *told;
	char clock[16];

	if (gone ? !was
		 : was && strcmp(was->state, is->state) == 0 && was->workers == is->workers &&
				was->known == is->known && was->world == is->world)
		return;
	if (w->o->json) {
		told = gone ? json_pack("{s:s, s:s}", "job", is->name, "state", "gone") : boxes_json_job(is);
		if (told)
			json_object_set_new(told, "at", json_string(is->box));
		(void)output_json(told);
	} else if (gone) {
		printf("%sjob %s is gone from box %s\n", boxes_clock(w->o, clock), is->name, is->box);
	} else {
		printf("%sjob %s at box %s: %s, %" PRIu32 " of %" PRIu32 " workers", boxes_clock(w->o, clock), is->name,
			is->box, is->state, is->known, is->world);
		if (is->known > is->workers)
			printf(", %" PRIu32 " there", is->workers);
		printf("\n");
	}
}

static void boxes_root_changed(struct boxes_watch *w, const struct roster_root *is, bool gone)
{
	const struct roster_root *was = roster_find_root(&w->lookout.roster, is->name);
	char clock[16];

	if (gone ? !was : was && memcmp(was, is, sizeof(*is)) == 0)
		return;
	if (w->o->json)
		(void)output_json(boxes_json_root(
			is->name, gone ? NULL : is, !gone && boxes_serves(&w->lookout.roster, is), NULL));
	else if (gone)
		printf("%sroot %s: no box is it\n", boxes_clock(w->o, clock), is->name);
	else
		printf("%sroot %s is box %s at %s, of epoch %" PRIu64 "\n", boxes_clock(w->o, clock), is->name, is->box,
			is->address, is->epoch);
}

static void boxes_changed(void *arg, const struct roster_item *item)
{
	struct boxes_watch *w = arg;

	if (item->kind == ROSTER_BOX)
		boxes_box_changed(w, &item->box, item->gone);
	else if (item->kind == ROSTER_ROOT)
		boxes_root_changed(w, &item->root, item->gone);
	else
		boxes_job_changed(w, &item->job, item->gone);
	fflush(stdout);
}

/* Says when etcd stops to answer, and when it does again. The first look must succeed. */
static int boxes_watch_etcd(struct boxes_watch *w)
{
	struct lookout *l = &w->lookout;

	l->watch = true;
	l->changed = boxes_changed;
	l->arg = w;
	while (!boxes_stopped()) {
		struct pollfd fd = {.fd = etcd_fd(l->etcd), .events = POLLIN};
		uint64_t now_ns = clock_now_ns();

		lookout_step(l, now_ns);
		if (l->failed && !l->whole) {
			output_error("%s", l->why.text);
			return CLI_FAILED;
		}
		if (l->failed != w->told)
			output_note(l->failed ? "%s; boxes are looked for on and on" : "etcd answers again%s",
				l->failed ? l->why.text : "");
		w->told = l->failed;
		poll(&fd, 1, clock_timeout_ms(clock_now_ns(), lookout_next(l)));
	}
	return CLI_DONE;
}

int boxes_of_etcd(const struct boxes_options *o)
{
	struct boxes_watch w = {.o = o};
	struct etcd_config config;
	struct err e;
	int rc;

	if (etcd_config_from_env(o->etcd, &config, &e) < 0) {
		output_error("%s", e.text);
		return CLI_USAGE;
	}
	config.timeout_ms = (unsigned)o->timeout_ms;
	rc = etcd_open(&config, &w.lookout.etcd, &e);
	explicit_bzero(&config, sizeof(config));
	if (rc < 0) {
		output_error("%s", e.text);
		return CLI_FAILED;
	}
	snprintf(w.lookout.prefix, sizeof(w.lookout.prefix), "%s", o->prefix);
	if (o->watch)
		rc = boxes_watch_etcd(&w);
	else if (lookout_wait(&w.lookout, CLOCK_NEVER, &e) < 0)
		output_error("%s", e.text);
	if (!o->watch)
		rc = w.lookout.whole ? boxes_print(o, &w.lookout) : CLI_FAILED;
	lookout_fini(&w.lookout);
	etcd_close(w.lookout.etcd);
	return rc;
}
