/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub boxes: what it is asked, and the boxes of a rack file, all called at once, each by a thread: those of a rack
 * that is cut off cost one timeout, and not one each.
 */
#include "phub/cli/boxes.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "phub/cli/admin.h"
#include "phub/cli/args.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"
#include "topology/racks.h"
#include "transport/roster.h"

#define BOXES_ADVICE_BYTES 900

/* What a call of a box of the file came to. */
struct boxes_look {
	bool known, up;
	bool told;              /* it says how it is: */
	bool root, promotable;  /* it is the root; it may be made that */
	char why[ERR_TEXT_MAX]; /* not up, or up and tells nothing */
	char jobs[400];         /* "train 4/8, eval 1/1" */
};

struct boxes_ask {
	const struct boxes_options *o;
	const struct rack_box *box;
	struct boxes_look look;
	json_t *list; /* its jobs */
	pthread_t thread;
	bool started;
};

static volatile sig_atomic_t boxes_signalled;

static void boxes_on_signal(int number)
{
	(void)number;
	boxes_signalled = 1;
}

bool boxes_stopped(void)
{
	return boxes_signalled || ferror(stdout);
}

const char *boxes_clock(const struct boxes_options *o, char out[16])
{
	time_t now = time(NULL);
	struct tm tm;

	out[0] = '\0';
	if (!o->json && localtime_r(&now, &tm))
		strftime(out, 16, "%H:%M:%S ", &tm);
	return out;
}

static void boxes_write_address(const struct rack_box *box, char *out, size_t bytes)
{
	snprintf(out, bytes, strchr(box->host, ':') ? "[%s]:%u" : "%s:%u", box->host, box->port);
}

const char *boxes_workers(uint64_t here, uint64_t known, uint64_t world, bool low, char out[BOXES_WORKERS_BYTES])
{
	if (low)
		snprintf(out, BOXES_WORKERS_BYTES, "%" PRIu64 " of %" PRIu64 " here", here, world);
	else if (known > here)
		snprintf(out, BOXES_WORKERS_BYTES, "%" PRIu64 "/%" PRIu64 " (%" PRIu64 " here)", known, world, here);
	else
		snprintf(out, BOXES_WORKERS_BYTES, "%" PRIu64 "/%" PRIu64, here, world);
	return out;
}

/* Its workers: those at the box itself and those of the boxes below it. */
static size_t boxes_count_workers(const Phub__JobInfo *job)
{
	size_t count = job->n_workers;

	for (size_t i = 0; i < job->n_below; i++)
		count += job->below[i]->n_ranks;
	return count;
}

/* A box that refuses us is up. */
static void *boxes_call(void *arg)
{
	struct boxes_ask *ask = arg;
	char address[RACKS_HOST_BYTES + 16];
	struct admin_answer answer;
	size_t at = 0;
	struct err e;
	int rc;

	boxes_write_address(ask->box, address, sizeof(address));
	rc = admin_ask(address, "jobs", (int)ask->o->timeout_ms, &answer, &e);
	ask->look = (struct boxes_look){.known = true, .up = rc == 0 || rc == -EACCES || rc == -EBUSY};
	if (rc < 0) {
		snprintf(ask->look.why, sizeof(ask->look.why), "%s", e.text);
		return NULL;
	}
	ask->look.told = true;
	ask->look.root = answer.reply->epoch > 0;
	ask->look.promotable = answer.reply->promotable;
	for (size_t i = 0; i < answer.reply->n_jobs; i++) {
		const Phub__JobInfo *job = answer.reply->jobs[i];
		size_t workers = boxes_count_workers(job), known = job->n_workers + job->elsewhere;
		char text[BOXES_WORKERS_BYTES];

		json_array_append_new(
			ask->list, json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "job", job->name, "state", job->state,
					   "workers", (json_int_t)workers, "known", (json_int_t)known, "world",
					   (json_int_t)job->world, "round", (json_int_t)job->rounds));
		if (at < sizeof(ask->look.jobs))
			at += (size_t)snprintf(ask->look.jobs + at, sizeof(ask->look.jobs) - at, "%s%s %s",
				i ? ", " : "", job->name,
				boxes_workers(job->n_workers, known, job->world,
					job->above && strcmp(job->state, "forming") == 0, text));
	}
	admin_answer_fini(&answer);
	return NULL;
}

static void boxes_call_all(const struct boxes_options *o, const struct racks *racks, struct boxes_ask *asks)
{
	for (unsigned i = 0; i < racks->box_count; i++) {
		struct boxes_ask *ask = &asks[i];

		*ask = (struct boxes_ask){.o = o, .box = &racks->boxes[i], .list = json_array()};
		ask->started = pthread_create(&ask->thread, NULL, boxes_call, ask) == 0;
		if (!ask->started)
			boxes_call(ask);
	}
	for (unsigned i = 0; i < racks->box_count; i++)
		if (asks[i].started)
			pthread_join(asks[i].thread, NULL);
}

static bool boxes_print_json(
	const struct racks *racks, const struct rack_box *box, const struct boxes_look *look, json_t *jobs)
{
	char address[RACKS_HOST_BYTES + 16];

	boxes_write_address(box, address, sizeof(address));
	return output_json(json_pack("{s:s, s:s, s:s, s:b, s:s, s:b, s:b, s:o}", "box", box->name, "address", address,
		"rack", racks->racks[box->rack].name, "up", (int)look->up, "why", look->why, "root", (int)look->root,
		"promotable", (int)look->promotable, "jobs", jobs));
}

static void boxes_print_row(
	struct output_table *t, const struct racks *racks, const struct rack_box *box, const struct boxes_look *look)
{
	char address[RACKS_HOST_BYTES + 16];

	boxes_write_address(box, address, sizeof(address));
	output_cell(t, "%s", box->name);
	output_cell(t, "%s", address);
	output_cell(t, "%s", racks->racks[box->rack].name);
	output_cell(t, "%s", look->up ? "up" : "NOT UP");
	output_cell(t, "%s", look->why[0] ? look->why : look->jobs[0] ? look->jobs : "no jobs");
}

/* One that is up and does not say how it is may be it. */
static bool boxes_lack_root(const struct racks *racks, const struct boxes_ask *asks)
{
	bool down = false, told = false, root = false;

	for (unsigned i = 0; i < racks->box_count; i++) {
		const struct boxes_look *look = &asks[i].look;

		down = down || !look->up;
		told = told || look->told;
		root = root || look->root || (look->up && !look->told);
	}
	return down && told && !root;
}

/* What an operator may do where the root may be one that is not up; "": nothing is known. */
static void boxes_advise(const struct racks *racks, const struct boxes_ask *asks, char *out, size_t bytes)
{
	char first[RACKS_HOST_BYTES + 16] = "", others[400] = "", address[RACKS_HOST_BYTES + 16];
	size_t at = 0;

	out[0] = '\0';
	if (!boxes_lack_root(racks, asks))
		return;
	for (unsigned i = 0; i < racks->box_count; i++) {
		boxes_write_address(asks[i].box, address, sizeof(address));
		if (asks[i].look.promotable && !first[0])
			memcpy(first, address, sizeof(first));
		else if (asks[i].look.promotable && at + strlen(address) + 8 < sizeof(others))
			at += (size_t)snprintf(others + at, sizeof(others) - at, "%s%s", at ? ", " : " (or ", address);
	}
	if (first[0])
		snprintf(out, bytes,
			"no box that is up is the root; if it is dead, `phub promote %s`%s%s makes another box the "
			"root",
			first, others, at ? ")" : "");
	else
		snprintf(out, bytes,
			"no box that is up is the root, and none could be promoted (phub promote), as none has "
			"checkpoint_targets: start it again");
}

/* Returns how many are not up, or -1: output failed. */
static int boxes_look_once(const struct boxes_options *o, const struct racks *racks, struct boxes_ask *asks)
{
	struct output_table t = {.heads = {"box", "address", "rack", "state", "jobs"}, .align = "lllll"};
	char advice[BOXES_ADVICE_BYTES];
	int down = 0;
	bool ok = true;

	boxes_call_all(o, racks, asks);
	for (unsigned i = 0; i < racks->box_count; i++) {
		down += !asks[i].look.up;
		if (o->json) {
			ok = boxes_print_json(racks, asks[i].box, &asks[i].look, asks[i].list) && ok;
			continue;
		}
		json_decref(asks[i].list);
		boxes_print_row(&t, racks, asks[i].box, &asks[i].look);
	}
	boxes_advise(racks, asks, advice, sizeof(advice));
	if (!o->json)
		output_table_print(&t);
	if (!o->json && advice[0])
		puts(advice);
	fflush(stdout);
	return ok ? down : -1;
}

/* Only what is another than it was, or all that is known first. */
static void boxes_print_change(const struct boxes_options *o, const struct racks *racks, const struct boxes_ask *ask,
	const struct boxes_look *was)
{
	const struct boxes_look *is = &ask->look;
	bool turned = !was->known || was->up != is->up;
	char clock[16];

	if (!turned && strcmp(was->jobs, is->jobs) == 0)
		return;
	if (o->json)
		(void)boxes_print_json(racks, ask->box, is, json_incref(ask->list));
	else if (turned)
		printf("%sbox %s (rack %s) is %s%s%s\n", boxes_clock(o, clock), ask->box->name,
			racks->racks[ask->box->rack].name, is->up ? "up" : "NOT UP",
			is->why[0] || is->jobs[0] ? ": " : "", is->why[0] ? is->why : is->jobs);
	else if (is->up)
		printf("%sbox %s: %s\n", boxes_clock(o, clock), ask->box->name, is->jobs[0] ? is->jobs : "no jobs");
}

static void boxes_watch_racks(
	const struct boxes_options *o, const struct racks *racks, struct boxes_ask *asks, struct boxes_look *looks)
{
	char advice[BOXES_ADVICE_BYTES], told[BOXES_ADVICE_BYTES] = "", clock[16];
	struct timespec pause = {
		.tv_sec = (time_t)(o->interval_ms / 1000), .tv_nsec = (long)(o->interval_ms % 1000) * 1000000};

	while (!boxes_stopped()) {
		boxes_call_all(o, racks, asks);
		for (unsigned i = 0; i < racks->box_count; i++) {
			if (!boxes_stopped())
				boxes_print_change(o, racks, &asks[i], &looks[i]);
			json_decref(asks[i].list);
			looks[i] = asks[i].look;
		}
		boxes_advise(racks, asks, advice, sizeof(advice));
		if (!o->json && advice[0] && strcmp(advice, told) != 0 && !boxes_stopped())
			printf("%s%s\n", boxes_clock(o, clock), advice);
		memcpy(told, advice, sizeof(told));
		fflush(stdout);
		nanosleep(&pause, NULL);
	}
}

int boxes_of_racks(const struct boxes_options *o)
{
	struct boxes_look *looks;
	struct boxes_ask *asks;
	struct racks racks;
	struct err e;
	int down = 0;

	if (racks_read(o->racks, &racks, &e) < 0) {
		output_error("%s", e.text);
		return CLI_FAILED;
	}
	looks = calloc(racks.box_count + 1, sizeof(*looks));
	asks = calloc(racks.box_count + 1, sizeof(*asks));
	if (!looks || !asks) {
		output_error("no memory");
		down = -1;
	} else if (o->watch) {
		boxes_watch_racks(o, &racks, asks, looks);
	} else {
		down = boxes_look_once(o, &racks, asks);
	}
	free(looks);
	free(asks);
	racks_fini(&racks);
	return down == 0 ? CLI_DONE : CLI_FAILED;
}

static int boxes_check(const struct args_usage *usage, struct boxes_options *o)
{
	if (o->etcd && o->racks)
		return args_wrong(usage, "--etcd and --racks are two ways to find boxes; give one");
	if (!o->etcd && !o->racks)
		o->etcd = getenv("PHUB_ETCD");
	if (!o->racks && (!o->etcd || !*o->etcd))
		return args_wrong(usage, "which boxes? Give --etcd URL (or PHUB_ETCD), or --racks FILE");
	if (!o->prefix)
		o->prefix = getenv("PHUB_ETCD_PREFIX");
	if (!o->prefix || !*o->prefix)
		o->prefix = ROSTER_PREFIX;
	if (!roster_prefix_valid(o->prefix))
		return args_wrong(usage, "--prefix '%.64s' is not what keys begin with, like /phub", o->prefix);
	if (o->interval_ms && (!o->watch || !o->racks))
		return args_wrong(usage, "--interval belongs to --watch with --racks; etcd tells by itself");
	if (!o->interval_ms)
		o->interval_ms = 2000;
	if (!o->timeout_ms)
		o->timeout_ms = 2000;
	return ARGS_GO_ON;
}

int boxes_run(int argc, char **argv)
{
	struct boxes_options o = {.json = false};
	const struct args_option options[] = {
		{"etcd", "URL", "ask etcd there, as http://host:port; more URLs of one cluster with commas (PHUB_ETCD)",
			ARGS_TEXT, &o.etcd, 0, 0, NULL},
		{"prefix", "TEXT", "what keys begin with: the boxes' etcd_prefix (PHUB_ETCD_PREFIX, or /phub)",
			ARGS_TEXT, &o.prefix, 0, 0, NULL},
		{"racks", "FILE", "call every box of a rack file", ARGS_TEXT, &o.racks, 0, 0, NULL},
		{"watch", NULL, "go on, and print what changes, until Ctrl-C", ARGS_FLAG, &o.watch, 0, 0, NULL},
		{"interval", "MS", "with --racks: milliseconds between two looks (2000)", ARGS_NUMBER, &o.interval_ms,
			50, 3600000, NULL},
		{"timeout", "MS", "who does not answer for so long is not up (2000)", ARGS_NUMBER, &o.timeout_ms, 50,
			3600000, NULL},
		{"json", NULL, "one JSON object a line: a box with its jobs, a root, or a change", ARGS_FLAG, &o.json,
			0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {
		.command = "phub boxes",
		.about = "Says which boxes are up, where, since when, and with which jobs: those that have announced "
			 "themselves\n"
			 "to etcd (phubd's option etcd), with who is the root of which name and who stands for it, or "
			 "those\n"
			 "of a rack file, each of which is called as `phub jobs` does.\n"
			 "etcd's secret is in PHUB_ETCD_SECRET or the file PHUB_ETCD_SECRET_FILE (user:password, or a "
			 "token),\n"
			 "the authorities of https in PHUB_ETCD_CA; of the boxes' own see `phub jobs --help`.\n"
			 "Exit code 1: etcd does not answer, or a box of the rack file is not up.\n",
		.examples = "  phub boxes --etcd http://etcd1:2379,http://etcd2:2379\n  phub boxes --racks racks.yaml "
			    "--json\n  phub boxes --watch\n",
		.options = options,
	};
	struct sigaction action = {.sa_handler = boxes_on_signal};
	struct args_words words;
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc == ARGS_GO_ON)
		rc = boxes_check(&usage, &o);
	if (rc != ARGS_GO_ON)
		return rc;
	if (o.watch) {
		sigaction(SIGINT, &action, NULL);
		sigaction(SIGTERM, &action, NULL);
	}
	return o.racks ? boxes_of_racks(&o) : boxes_of_etcd(&o);
}
