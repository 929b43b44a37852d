/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `phub promote`: makes a box the root where no etcd decides that, and the old root has died. The box takes its time,
 * as disks do; it is asked again until it has done it, or says why not.
 */
#include <inttypes.h>
#include <jansson.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/cli/admin.h"
#include "phub/cli/args.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"

#define PROMOTE_PAUSE_NS 100000000l

struct promote_options {
	const char *address;
	uint64_t timeout_ms;
	bool json;
};

/* "ann@desk", for the box's log, and that of others. */
static void promote_say_who(char *out, size_t bytes)
{
	const struct passwd *user = getpwuid(getuid());
	char host[65] = "";

	gethostname(host, sizeof(host) - 1);
	if (user)
		snprintf(out, bytes, "%.32s@%.31s", user->pw_name, host);
	else
		snprintf(out, bytes, "user %u@%.31s", (unsigned)getuid(), host);
}

/* "host:port": what was typed, without a scheme, and with the port that it means. */
static void promote_write_address(const char *typed, char *out, size_t bytes)
{
	const char *host = strstr(typed, "://") ? strstr(typed, "://") + 3 : typed;
	const char *colon = strrchr(host, ':');
	bool port = colon && !strchr(colon, ']');

	snprintf(out, bytes, port ? "%s" : "%s:7077", host);
}

static json_t *promote_list(const Phub__Promotion *p)
{
	json_t *jobs = json_array();

	for (size_t i = 0; jobs && i < p->n_jobs; i++)
		json_array_append_new(jobs, json_string(p->jobs[i]));
	return jobs;
}

static int promote_tell(const struct promote_options *o, const Phub__Promotion *p)
{
	bool was = strcmp(p->state, "root") == 0;

	if (o->json)
		return output_json(json_pack("{s:s, s:s, s:I, s:s, s:s, s:o*}", "box", o->address, "state",
			       was ? "root already" : "promoted", "epoch", (json_int_t)p->epoch, "address", p->address,
			       "by", p->by, "jobs", promote_list(p)))
			       ? CLI_DONE
			       : CLI_FAILED;
	if (was)
		printf("%s is the root already, of epoch %" PRIu64 "%s%s\n", o->address, p->epoch,
			*p->by ? ": promoted by " : "", p->by);
	else
		printf("%s is the root now, of epoch %" PRIu64 "; other boxes reach it at %s\n", o->address, p->epoch,
			p->address);
	for (size_t i = 0; i < p->n_jobs; i++)
		printf("%s: goes on there from its checkpoint, once all of its workers have come again\n", p->jobs[i]);
	return CLI_DONE;
}

/* CLI_DONE, CLI_FAILED, or ARGS_GO_ON: ask again. */
static int promote_ask(const struct promote_options *o, const char *who, const char *address, bool again)
{
	const char *arguments[] = {who, address, again ? "again" : ""};
	struct admin_answer answer;
	const Phub__Promotion *p;
	int rc = ARGS_GO_ON;
	struct err e;

	if (admin_tell(o->address, "promote", arguments, 3, 5000, &answer, &e) < 0) {
		output_error("%s", e.text);
		return CLI_FAILED;
	}
	p = answer.reply->promotion;
	if (!p) {
		output_error(
			"the box at %s does not say whether it was promoted; install the same release at both ends",
			o->address);
		rc = CLI_FAILED;
	} else if (strcmp(p->state, "begun") != 0) {
		rc = promote_tell(o, p);
	}
	admin_answer_fini(&answer);
	return rc;
}

static int promote_wait(const struct promote_options *o)
{
	const struct timespec pause = {.tv_nsec = PROMOTE_PAUSE_NS};
	uint64_t deadline_ns = clock_now_ns() + o->timeout_ms * NS_PER_MS;
	char who[80], address[320];
	int rc;

	promote_say_who(who, sizeof(who));
	promote_write_address(o->address, address, sizeof(address));
	rc = promote_ask(o, who, address, false);
	while (rc == ARGS_GO_ON && clock_now_ns() < deadline_ns) {
		nanosleep(&pause, NULL);
		rc = promote_ask(o, who, address, true);
	}
	if (rc != ARGS_GO_ON)
		return rc;
	output_error("the box at %s is at it for %" PRIu64
		     " ms: a disk of its checkpoint_targets does not answer. It goes on "
		     "trying; ask again with the same command",
		o->address, o->timeout_ms);
	return CLI_FAILED;
}

int promote_run(int argc, char **argv)
{
	struct promote_options o = {.timeout_ms = 30000};
	const struct args_option options[] = {
		{"timeout", "MS", "milliseconds that its disks may take (30000)", ARGS_NUMBER, &o.timeout_ms, 100,
			3600000, NULL},
		{"json", NULL, "one JSON object: box, state, epoch, address, by, jobs", ARGS_FLAG, &o.json, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {
		.command = "phub promote",
		.words = "HOST:PORT",
		.about = "Makes a box the root, where boxes are found without etcd, and the old root has died: the box "
			 "takes\n"
			 "the locks of its checkpoint_targets, which are those of the old root on a mount that both "
			 "have,\n"
			 "writes a higher epoch and its address there (.phub.root), and is the root from then on, also "
			 "when\n"
			 "it is started again. Jobs go on there from their checkpoints, workers with resume by "
			 "themselves;\n"
			 "boxes with it in the list of their uplink, or of their rack file, find it. The old one, when "
			 "it\n"
			 "comes again, is below it.\n"
			 "It is refused while the old root lives or hangs, and where etcd decides (phubd's option "
			 "root).\n"
			 "From another host or user the box wants its admin secret: PHUB_ADMIN_SECRET, or a file named "
			 "by\n"
			 "PHUB_ADMIN_SECRET_FILE. Exit code 0 also where it is the root already.\n",
		.examples = "  phub promote 10.0.2.1:7077\n  phub promote --json box2:7077\n",
		.words_max = 1,
		.options = options,
	};
	struct args_words words;
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc == ARGS_GO_ON && words.count == 0)
		rc = args_wrong(&usage, "which box? Give HOST:PORT of the one that is to be the root");
	if (rc == ARGS_GO_ON)
		rc = admin_check_address(&usage, words.at[0]);
	if (rc != ARGS_GO_ON)
		return rc;
	o.address = words.at[0];
	return promote_wait(&o);
}
