/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub topo probe: measures between hosts and boxes, by the probes that run there, and writes a rack file.
 */
#include "phub/cli/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/cli/args.h"
#include "phub/cli/beside.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"
#include "topology/cost.h"

struct probe_command {
	const char *boxes, *hosts, *old, *out, *token_file, *serve;
	uint64_t port, seconds, limit_s, streams;
	bool force, keep, json;
	struct probe p;
	struct racks racks; /* what is written */
	int member_of_box[RACKS_MAX], member_of_host[RACKS_HOSTS_MAX];
	char note[1024];
};

/* ---- who takes part ---- */

static int probe_add(struct probe *p, const char *name, const char *host, uint16_t port, struct err *e)
{
	struct probe_member *m = &p->members[p->count];

	if (p->count == PROBE_MEMBERS_MAX)
		return err_set(e, -E2BIG, "more than %u boxes and hosts", PROBE_MEMBERS_MAX);
	if (!*name || strlen(name) >= sizeof(m->name) || strpbrk(name, " \t\"'/=") || strlen(host) >= sizeof(m->host))
		return err_set(
			e, -EINVAL, "'%s' cannot be the name of a box or host; give one, as in NAME=%s", name, host);
	for (unsigned i = 0; i < p->count; i++)
		if (strcmp(p->members[i].name, name) == 0)
			return err_set(
				e, -EINVAL, "there are two of the name %s; give others, as in NAME=%s", name, host);
	snprintf(m->name, sizeof(m->name), "%s", name);
	snprintf(m->host, sizeof(m->host), "%s", host);
	m->port = port;
	p->count++;
	return 0;
}

/* "[NAME=]HOST:PORT" of a box, "[NAME=]HOST" of a host, with commas. */
static int probe_add_list(struct probe *p, const char *list, bool boxes, struct err *e)
{
	char *text = strdup(list), *rest = NULL;
	int rc = text ? 0 : -ENOMEM;

	for (char *one = text ? strtok_r(text, ",", &rest) : NULL; one && rc == 0; one = strtok_r(NULL, ",", &rest)) {
		char *equals = strchr(one, '='), *address = equals ? equals + 1 : one, host[SOCK_HOST_BYTES];
		uint16_t port = 0;

		if (equals)
			*equals = '\0';
		snprintf(host, sizeof(host), "%s", address);
		if (boxes && sock_split(address, host, &port) < 0)
			rc = err_set(e, -EINVAL, "--boxes: '%s' is no [NAME=]HOST:PORT", address);
		else
			rc = probe_add(p, equals ? one : host, host, port, e);
	}
	free(text);
	return rc;
}

/* The boxes of the old file, and those of its hosts that --hosts names. */
static int probe_take_old(struct probe_command *c, struct err *e)
{
	struct racks *r = &c->racks;
	int rc = racks_read(c->old, r, e);

	for (unsigned i = 0; rc == 0 && i < r->box_count; i++)
		rc = probe_add(&c->p, r->boxes[i].name, r->boxes[i].host, r->boxes[i].port, e);
	if (rc == 0 && c->hosts)
		rc = probe_add_list(&c->p, c->hosts, false, e);
	for (unsigned i = 0; rc == 0 && i < c->p.count; i++) {
		bool found = i < r->box_count;

		c->p.rack[i] = found ? r->boxes[i].rack : 0;
		for (unsigned h = 0; i >= r->box_count && h < r->host_count && !found; h++) {
			found = strcmp(r->hosts[h].name, c->p.members[i].name) == 0;
			c->p.rack[i] = r->hosts[h].rack;
		}
		if (!found)
			rc = err_set(e, -EINVAL, "%s has no host %s", c->old, c->p.members[i].name);
	}
	c->p.given = true;
	c->p.rack_count = r->rack_count;
	return rc;
}

static int probe_take_members(struct probe_command *c, struct err *e)
{
	int rc = 0;

	if (c->old)
		rc = probe_take_old(c, e);
	if (rc == 0 && !c->old)
		rc = probe_add_list(&c->p, c->boxes, true, e);
	if (rc == 0 && !c->old && c->hosts)
		rc = probe_add_list(&c->p, c->hosts, false, e);
	if (rc == 0 && c->p.count < 2)
		rc = err_set(e, -EINVAL, "with fewer than two boxes and hosts there is nothing to measure");
	return rc;
}

/* ---- what comes of it ---- */

static double probe_rate(const struct probe *p, unsigned member)
{
	const struct probe_member *m = &p->members[member];

	return fmin(fmax(probe_out(&p->facts, member), m->fan_out), fmax(probe_in(&p->facts, member), m->fan_in));
}

static double probe_uplink(const struct probe *p, unsigned rack)
{
	return fmin(p->out[rack], p->in[rack]);
}

/* To the four digits that a measurement has at most. */
static double probe_round(double value)
{
	char text[32];

	snprintf(text, sizeof(text), "%.3e", value);
	return strtod(text, NULL);
}

/* Rack files have rates of links, as they are sold: the cost model takes headers off, which what was measured has not.
 */
static double probe_round_rate(double payload_bytes_s)
{
	return probe_round(payload_bytes_s / cost_payload() * 8) / 8;
}

/* The numbers of racks that were measured. */
static void probe_fill_racks(struct probe_command *c)
{
	struct probe *p = &c->p;

	for (unsigned i = 0; i < p->rack_count; i++) {
		struct probe_spread s = probe_latency(&p->facts, p->rack, (int)i);

		if (s.count)
			c->racks.racks[i].latency_s = probe_round(s.median);
		if (p->rack_count > 1)
			c->racks.racks[i].uplink_bytes_s = probe_round_rate(probe_uplink(p, i));
	}
	if (probe_latency(&p->facts, p->rack, -1).count)
		c->racks.latency_s = probe_round(probe_latency(&p->facts, p->rack, -1).median);
	for (unsigned i = 0; i < c->racks.box_count; i++)
		c->racks.boxes[i].rate_bytes_s = probe_round_rate(probe_rate(p, (unsigned)c->member_of_box[i]));
	for (unsigned i = 0; i < c->racks.host_count; i++)
		if (c->member_of_host[i] >= 0)
			c->racks.hosts[i].rate_bytes_s =
				probe_round_rate(probe_rate(p, (unsigned)c->member_of_host[i]));
}

/* A file of its own, from members and their racks. */
static int probe_make_racks(struct probe_command *c, struct err *e)
{
	struct probe *p = &c->p;
	struct racks *r = &c->racks;

	r->racks = calloc(p->rack_count, sizeof(*r->racks));
	r->boxes = calloc(p->count, sizeof(*r->boxes));
	r->hosts = calloc(p->count, sizeof(*r->hosts));
	if (!r->racks || !r->boxes || !r->hosts)
		return err_set(e, -ENOMEM, "out of memory");
	r->rack_count = p->rack_count;
	for (unsigned i = 0; i < p->rack_count; i++)
		snprintf(r->racks[i].name, sizeof(r->racks[i].name), "r%u", i);
	for (unsigned i = 0; i < p->count; i++) {
		const struct probe_member *m = &p->members[i];

		if (m->port) {
			struct rack_box *box = &r->boxes[r->box_count];

			c->member_of_box[r->box_count++] = (int)i;
			*box = (struct rack_box){.port = m->port, .rack = p->rack[i], .sibling = RACKS_NONE};
			memcpy(box->name, m->name, sizeof(box->name));
			memcpy(box->host, m->host, sizeof(box->host));
		} else {
			struct rack_host *host = &r->hosts[r->host_count];

			c->member_of_host[r->host_count++] = (int)i;
			*host = (struct rack_host){.rack = p->rack[i], .workers = 1};
			memcpy(host->name, m->name, sizeof(host->name));
		}
	}
	return 0;
}

static void probe_find_old_members(struct probe_command *c)
{
	const struct racks *r = &c->racks;

	for (unsigned i = 0; i < r->box_count; i++)
		c->member_of_box[i] = (int)i;
	for (unsigned i = 0; i < r->host_count; i++) {
		c->member_of_host[i] = -1;
		for (unsigned m = r->box_count; m < c->p.count; m++)
			if (strcmp(c->p.members[m].name, r->hosts[i].name) == 0)
				c->member_of_host[i] = (int)m;
	}
}

/* A rack needs a box. */
static int probe_check_racks(const struct probe_command *c, struct err *e)
{
	for (unsigned i = 0; i < c->racks.rack_count; i++) {
		unsigned boxes = 0, first = 0;

		for (unsigned b = 0; b < c->racks.box_count; b++)
			boxes += c->racks.boxes[b].rack == i;
		while (first < c->p.count && c->p.rack[first] != i)
			first++;
		if (boxes == 0)
			return err_set(e, -EINVAL,
				"the rack of host %s has no box, and a rack file needs one: name it with --boxes",
				c->p.members[first].name);
	}
	return 0;
}

/* ---- what is said ---- */

static double probe_gbit(double bytes_s)
{
	return bytes_s * 8 / 1e9;
}

static void probe_print_pairs(const struct probe *p)
{
	struct output_table t = {
		.heads = {"from", "to", "one way us", "alone Gbit/s", "together, least"}, .align = "llrrr"};

	for (unsigned i = 0; i < p->count; i++)
		for (unsigned j = 0; j < p->count; j++) {
			if (i == j)
				continue;
			output_cell(&t, "%s", p->members[i].name);
			output_cell(&t, "%s", p->members[j].name);
			output_cell(&t, "%.1f", p->facts.latency_s[i][j] * 1e6);
			output_cell(&t, "%.4g", probe_gbit(p->facts.alone[i][j]));
			output_cell(&t, "%.4g", probe_gbit(p->facts.together[i][j]));
		}
	output_table_print(&t);
}

/* What tells racks apart, and what does not. */
static void probe_print_splits(const struct probe *p)
{
	for (int by = 0; by < PROBE_BY_COUNT; by++) {
		const struct probe_split *s = &p->splits[by];

		printf("%s: ", probe_by_name((enum probe_by)by));
		if (s->told)
			printf("%u racks, by a gap of %.2f times%s\n", s->rack_count, s->gap,
				memcmp(s->rack, p->rack, p->count * sizeof(s->rack[0])) == 0
					? ""
					: "; not those that are written");
		else
			printf("cannot tell: the widest gap is %.2f times%s\n", s->gap,
				s->mixed ? ", and near pairs make no groups" : "");
	}
	if (p->by < 0 && !p->given)
		puts("nothing separates them: they are written as one rack. If they are not, say so by --racks FILE");
}

static bool probe_json(const struct probe_command *c)
{
	const struct probe *p = &c->p;
	bool ok = true;

	for (unsigned i = 0; i < p->count; i++)
		for (unsigned j = 0; ok && j < p->count; j++)
			ok = i == j || output_json(json_pack("{s:s, s:s, s:s, s:f, s:f, s:f}", "probe", "pair", "from",
					       p->members[i].name, "to", p->members[j].name, "latency_s",
					       p->facts.latency_s[i][j], "alone_bytes_per_s", p->facts.alone[i][j],
					       "together_bytes_per_s", p->facts.together[i][j]));
	for (int by = 0; ok && by < PROBE_BY_COUNT; by++)
		ok = output_json(json_pack("{s:s, s:s, s:b, s:f, s:i}", "probe", "split", "by",
			probe_by_name((enum probe_by)by), "told", p->splits[by].told, "gap", p->splits[by].gap, "racks",
			(int)p->splits[by].rack_count));
	for (unsigned i = 0; ok && i < p->count; i++)
		ok = output_json(json_pack("{s:s, s:s, s:s, s:f}", "probe", "member", "name", p->members[i].name,
			"rack", c->racks.racks[p->rack[i]].name, "rate_bytes_per_s", probe_rate(p, i)));
	for (unsigned i = 0; ok && i < p->rack_count; i++)
		ok = output_json(json_pack("{s:s, s:s, s:f, s:f}", "probe", "rack", "rack", c->racks.racks[i].name,
			"out_bytes_per_s", p->out[i], "in_bytes_per_s", p->in[i]));
	return ok;
}

/* ---- the file ---- */

static const char *probe_note_rack(void *arg, unsigned rack)
{
	struct probe_command *c = arg;
	const struct probe *p = &c->p;
	struct probe_spread s = probe_latency(&p->facts, p->rack, (int)rack);
	double links = 0, uplink = probe_uplink(p, rack);
	size_t at = 0, bytes = sizeof(c->note);

	c->note[0] = '\0';
	for (unsigned i = 0; i < p->count; i++)
		links += p->rack[i] == rack ? probe_rate(p, i) : 0;
	if (p->rack_count > 1)
		at = (size_t)snprintf(c->note, bytes,
			"uplink: payload of %.4g Gbit/s out, %.4g in, all of the rack at once%s\n",
			probe_gbit(p->out[rack]), probe_gbit(p->in[rack]),
			uplink > 0.9 * links ? ": as much as its links, so it may be faster"
			: p->rack_count == 2 ? "; of two racks the slower uplink is seen at both"
					     : "");
	if (s.count)
		snprintf(c->note + at, bytes - at, "latency: median of %u pairs, %.1f to %.1f us", s.count,
			s.least * 1e6, s.most * 1e6);
	return c->note;
}

static const char *probe_note_member(struct probe_command *c, int member)
{
	const struct probe *p = &c->p;
	const struct probe_member *m;
	unsigned others = 0;

	if (member < 0)
		return "not measured";
	m = &p->members[member];
	for (unsigned i = 0; i < p->count; i++)
		others += i != (unsigned)member && p->rack[i] == p->rack[member];
	snprintf(c->note, sizeof(c->note), "payload to one %.4g, from one %.4g, to all %.4g, from all %.4g Gbit/s%s",
		probe_gbit(probe_out(&p->facts, (unsigned)member)), probe_gbit(probe_in(&p->facts, (unsigned)member)),
		probe_gbit(m->fan_out), probe_gbit(m->fan_in),
		others ? "" : "; alone in its rack, so that its link may be faster than the uplink that is seen");
	return c->note;
}

static const char *probe_note_box(void *arg, unsigned box)
{
	struct probe_command *c = arg;

	return probe_note_member(c, c->member_of_box[box]);
}

static const char *probe_note_host(void *arg, unsigned host)
{
	struct probe_command *c = arg;

	return probe_note_member(c, c->member_of_host[host]);
}

static int probe_print_file(struct probe_command *c, FILE *out)
{
	const struct probe *p = &c->p;
	struct probe_spread s = probe_latency(&p->facts, p->rack, -1);
	char head[1024], when[40];
	time_t now = time(NULL);
	struct tm utc;
	struct racks_notes notes = {head, probe_note_rack, probe_note_box, probe_note_host, c};

	strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &utc));
	snprintf(head, sizeof(head),
		"Measured by phub topo probe, %s: TCP (cubic), %u stream%s a pair, %.3g s a run.\n"
		"Rates: the payload that came, with the headers of packets of 1500 bytes.\nRacks: %s",
		when, p->streams, p->streams == 1 ? "" : "s", (double)p->measure_ns / 1e9,
		p->given    ? "those of an older file."
		: p->by < 0 ? "nothing separates the members, so there is one."
			    : "told apart by ");
	if (!p->given && p->by >= 0)
		snprintf(head + strlen(head), sizeof(head) - strlen(head), "%s, with a gap of %.2f times.",
			probe_by_name((enum probe_by)p->by), p->splits[p->by].gap);
	if (s.count)
		snprintf(head + strlen(head), sizeof(head) - strlen(head),
			"\nLatency from rack to rack: median of %u pairs, %.1f to %.1f us.", s.count, s.least * 1e6,
			s.most * 1e6);
	return racks_write(&c->racks, &notes, out);
}

/* To a file beside it, which then takes its name: never a half one. */
static int probe_write_file(struct probe_command *c, struct err *e)
{
	char path[4096];
	int length = snprintf(path, sizeof(path), "%s.%d.tmp", c->out, (int)getpid()), fd, rc;
	FILE *file;

	if (length < 0 || (size_t)length >= sizeof(path))
		return err_set(e, -ENAMETOOLONG, "--out %s: %s", c->out, strerror(ENAMETOOLONG));
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	file = fd < 0 ? NULL : fdopen(fd, "w");
	if (!file)
		return err_set(e, -errno, "cannot write %s: %s", path, strerror(errno));
	errno = 0;
	rc = probe_print_file(c, file);
	if (rc == -EIO && errno)
		rc = -errno;
	if (rc == 0 && fsync(fd) < 0)
		rc = -errno;
	fclose(file);
	/* link() takes no name that is there. */
	if (rc == 0 && (c->force ? rename(path, c->out) : link(path, c->out)) < 0)
		rc = -errno;
	unlink(path);
	return rc < 0 ? err_set(e, rc, "cannot write %s: %s", c->out, strerror(-rc)) : 0;
}

/* ---- the command ---- */

static int probe_tell(struct probe_command *c, struct err *e)
{
	if (c->json && !probe_json(c))
		return err_set(e, -ENOMEM, "out of memory");
	if (!c->json) {
		probe_print_pairs(&c->p);
		puts("");
		probe_print_splits(&c->p);
	}
	if (c->out)
		return probe_write_file(c, e);
	if (c->json)
		return 0;
	puts("");
	return probe_print_file(c, stdout) < 0 ? err_set(e, -EIO, "cannot write the rack file") : 0;
}

/* By the probes that are there. */
static int probe_ask(struct probe_command *c, struct err *e)
{
	struct probe *p = &c->p;
	int rc;

	output_note("%u members, about %.0f s", p->count,
		(double)probe_runs(p) * ((double)(p->measure_ns + p->warm_ns) / 1e9 + 0.3));
	rc = probe_measure(p, e);
	if (rc == 0 && !c->old)
		rc = probe_make_racks(c, e);
	if (rc == 0 && c->old)
		probe_find_old_members(c);
	if (rc == 0)
		rc = probe_check_racks(c, e);
	if (rc == 0) {
		probe_fill_racks(c);
		rc = probe_tell(c, e);
	}
	return rc;
}

/* Before anything is measured. */
static int probe_check_out(const struct probe_command *c, struct err *e)
{
	char folder[PATH_MAX];

	if (!c->force && access(c->out, F_OK) == 0)
		return err_set(e, -EEXIST, "%s is there already; --force writes it anew", c->out);
	beside_folder(c->out, folder);
	if (access(folder, W_OK | X_OK) < 0)
		return err_set(e, -errno, "cannot write --out %s: %s: %s", c->out, folder, strerror(errno));
	return 0;
}

static int probe_go(struct probe_command *c, struct err *e)
{
	struct probe *p = &c->p;
	int rc = probe_take_members(c, e);

	p->port = (uint16_t)c->port;
	p->streams = (unsigned)c->streams;
	p->measure_ns = c->seconds;
	p->warm_ns = c->seconds / 2;
	if (rc == 0 && c->out)
		rc = probe_check_out(c, e);
	if (rc == 0) {
		rc = probe_open(p, e);
		if (rc == 0)
			rc = probe_ask(c, e);
		/* What failed is asked again: they wait for that. */
		probe_close(p, rc == 0 && !c->keep);
	}
	racks_fini(&c->racks);
	return rc;
}

static int probe_serve_at(struct probe_command *c, struct err *e)
{
	char host[SOCK_HOST_BYTES] = "";
	uint16_t port = 0;
	char *end;
	unsigned long number = strtoul(c->serve, &end, 10);

	if (*c->serve && !*end && number > 0 && number <= UINT16_MAX)
		port = (uint16_t)number;
	else if (sock_split(c->serve, host, &port) < 0)
		return err_set(
			e, -EINVAL, "--serve %s: allowed is PORT or HOST:PORT, like 10.0.0.1:%d", c->serve, PROBE_PORT);
	return probe_serve(host, port, &c->p.token, c->limit_s, e);
}

static int probe_check(const struct args_usage *usage, const struct probe_command *c)
{
	if (c->serve && (c->boxes || c->hosts || c->old || c->out || c->keep))
		return args_wrong(usage,
			"--serve waits for one who asks; --boxes, --hosts, --racks, --out and --keep are for that one");
	if (!c->serve && !c->boxes == !c->old)
		return args_wrong(usage, "--serve on each host, then --boxes LIST or --racks FILE on one");
	return ARGS_GO_ON;
}

static int probe_run_with(struct probe_command *c, int argc, char **argv)
{
	const struct args_option options[] = {
		{"serve", "[HOST:]PORT", "be a probe there, until a run has ended well", ARGS_TEXT, &c->serve, 0, 0,
			NULL},
		{"limit", "S", "with --serve: end after so many seconds (3600)", ARGS_NUMBER, &c->limit_s, 1, 86400,
			NULL},
		{"boxes", "LIST", "[NAME=]HOST:PORT of each box, with commas", ARGS_TEXT, &c->boxes, 0, 0, NULL},
		{"hosts", "LIST", "[NAME=]HOST of hosts of workers", ARGS_TEXT, &c->hosts, 0, 0, NULL},
		{"racks", "FILE", "instead of --boxes: measure those of this file anew", ARGS_TEXT, &c->old, 0, 0,
			NULL},
		{"port", "PORT", "of the probes (7079)", ARGS_NUMBER, &c->port, 1, UINT16_MAX, NULL},
		{"seconds", "S", "a run measures, after half as long to warm up (1)", ARGS_SECONDS, &c->seconds,
			PROBE_MS_MIN, PROBE_SECONDS_MAX * 1000, NULL},
		{"streams", "N", "of a pair (as many as fill the first one: 1, 2 or 4)", ARGS_NUMBER, &c->streams, 1,
			16, NULL},
		{"out", "FILE", "the rack file; without, it is printed", ARGS_TEXT, &c->out, 0, 0, NULL},
		{"force", NULL, "write it even if it is there", ARGS_FLAG, &c->force, 0, 0, NULL},
		{"keep", NULL, "let the probes go on after it, for another run", ARGS_FLAG, &c->keep, 0, 0, NULL},
		{"token-file", "FILE", "with the token that all probes know (PHUB_PROBE_TOKEN)", ARGS_TEXT,
			&c->token_file, 0, 0, NULL},
		{"json", NULL, "one JSON object a line", ARGS_FLAG, &c->json, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {
		.command = "phub topo probe",
		.about =
			"Measures latency and bandwidth between boxes and hosts, tells their racks apart, and writes a "
			"rack file.\nOn each of them a probe serves (by ssh, srun, pdsh); then one is asked, anywhere, "
			"and ends them when all went well.\nAll know a token. Links are filled meanwhile: not beside "
			"jobs.\n",
		.examples = "  phub topo probe --serve 7079\n"
			    "  phub topo probe --boxes box0=10.0.0.1:7077,box1=10.0.1.1:7077 --hosts 10.0.0.2,10.0.1.2 "
			    "--out racks.yaml\n",
		.options = options,
	};
	struct args_words words;
	struct err e;
	int rc;

	rc = args_parse(&usage, argc, argv, &words);
	if (rc == ARGS_GO_ON)
		rc = probe_check(&usage, c);
	if (rc == ARGS_GO_ON) {
		int done = probe_token_read(c->token_file, &c->p.token, &e);

		if (done == 0)
			done = c->serve ? probe_serve_at(c, &e) : probe_go(c, &e);
		rc = done < 0 ? CLI_FAILED : CLI_DONE;
		if (done < 0)
			output_error("%s", e.text);
	}
	return rc;
}

int probe_run(int argc, char **argv)
{
	struct probe_command *c = calloc(1, sizeof(*c));
	int rc;

	if (!c) {
		output_error("out of memory");
		return CLI_FAILED;
	}
	c->port = PROBE_PORT;
	c->seconds = NS_PER_S;
	c->limit_s = 3600;
	rc = probe_run_with(c, argc, argv);
	free(c);
	return rc;
}
