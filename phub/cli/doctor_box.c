/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub doctor and a box: control port, data ports, and whom its jobs wait for.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/url.h"
#include "phub/base/clock.h"
#include "phub/cli/admin.h"
#include "phub/cli/doctor.h"
#include "transport/stream.h"

enum { BOX_ASKS = 5, BOX_TIMEOUT_MS = 3000, BOX_SILENT_MS = 2000, BOX_WITHOUT_MS = 2000, BOX_ROOT_ASKS = 20 };

/* A data port speaks first: a nonce. 0, or a negative errno. */
static int box_try_port(const struct url *url)
{
	uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), BOX_TIMEOUT_MS);
	struct stream *stream;
	uint8_t nonce[64];
	ssize_t got;
	int rc = stream_dial_tcp(url->host, url->port, NULL, &stream, NULL);

	if (rc < 0)
		return rc;
	while ((got = stream->ops->read(stream, nonce, sizeof(nonce))) == -EAGAIN) {
		struct pollfd fd = {.fd = stream->ops->fd(stream), .events = POLLIN};
		uint64_t now_ns = clock_now_ns();

		if (now_ns >= deadline_ns)
			break;
		poll(&fd, 1, clock_timeout_ms(now_ns, deadline_ns));
	}
	stream->ops->close(stream);
	if (got == -EAGAIN)
		return -ETIMEDOUT;
	return got > 0 ? 0 : got < 0 ? (int)got : -EPIPE;
}

/* "tcp 10.0.0.1:7101": dials it. A port on any address is one on the host that was asked. */
static void box_check_transport(
	struct doctor *d, const char *box, const char *name, const char *address, unsigned cores)
{
	char text[URL_HOST_BYTES + 64];
	struct url url, asked;
	int rc;

	if (strcmp(name, "dpdk") == 0 && strrchr(address, ':')) {
		unsigned first = (unsigned)strtoul(strrchr(address, ':') + 1, NULL, 10);

		doctor_say(d, name, DOCTOR_OK, NULL, "offered to workers at %.*s, UDP ports %u-%u",
			(int)(strrchr(address, ':') - address), address, first, first + cores - 1);
		return;
	}
	if (strcmp(name, "tcp") != 0) {
		doctor_say(d, name, DOCTOR_OK, NULL, "offered to workers at %s", address);
		return;
	}
	snprintf(text, sizeof(text), "phub://%.250s/x", box);
	if (url_parse(text, &asked, NULL) < 0)
		return;
	snprintf(text, sizeof(text), "phub://%.250s/x", address);
	if (url_parse(text, &url, NULL) < 0) {
		doctor_say(d, name, DOCTOR_WARN, NULL, "the box offers %s, which is no address", address);
		return;
	}
	if (strcmp(url.host, "*") == 0 || strcmp(url.host, "0.0.0.0") == 0 || strcmp(url.host, "::") == 0)
		memcpy(url.host, asked.host, sizeof(url.host));
	rc = box_try_port(&url);
	if (rc == 0)
		doctor_say(d, name, DOCTOR_OK, NULL, "data port %s port %u can be reached", url.host, url.port);
	else
		doctor_say(d, name, DOCTOR_FAIL,
			"open the box's data_ports (7100-7131 unless set otherwise) in the firewall between here and "
			"there",
			"data port %s port %u cannot be reached: %s", url.host, url.port, strerror(-rc));
}

static void box_check_transports(struct doctor *d, const char *box, const struct admin_answer *answer)
{
	char text[sizeof(answer->transports)];
	char *rest, *item;

	bool verbs = false;

	memcpy(text, answer->transports, sizeof(text));
	/* One address may be several, with commas and no blanks between them. */
	for (item = text; item; item = rest) {
		char name[16], address[256];

		rest = strstr(item, ", ");
		if (rest) {
			*rest = '\0';
			rest += 2;
		}
		if (sscanf(item, "%15s %255s", name, address) != 2)
			continue;
		verbs |= strcmp(name, "verbs") == 0;
		box_check_transport(d, box, name, address, (unsigned)answer->reply->n_cores);
	}
	if (d->rdma_usable && !verbs)
		doctor_say(d, "verbs", DOCTOR_OK, "phubd -o transports=tcp,shm,verbs there, if it has RDMA too",
			"not offered by the box, and this machine has RDMA");
}

/* One that failed and has had a good one since is no news. */
static void box_check_checkpoints(struct doctor *d, const Phub__JobInfo *job)
{
	const Phub__CheckpointInfo *c = job->checkpoint;

	if (c && c->error && *c->error && !(c->known && c->age_ms < c->error_ms))
		doctor_say(d, "checkpoint", DOCTOR_WARN, "see that box's log, and its checkpoint_targets",
			"job %s: the last checkpoint failed %.1f s ago: %s", job->name, (double)c->error_ms / 1e3,
			c->error);
	if (c && c->lacking)
		doctor_say(d, "checkpoint", DOCTOR_WARN, "bring these targets back: the next checkpoint is whole again",
			"job %s: its checkpoints lack %" PRIu32 " of %" PRIu32
			" targets since %.1f s, and may lack %" PRIu32 ": %s",
			job->name, c->lacking, c->targets, (double)c->lacking_ms / 1e3, c->parity, c->lacking_why);
}

static void box_check_standby(struct doctor *d, const Phub__JobInfo *job)
{
	char stuck[160];

	if (job->standby && *job->standby && strcmp(job->standby, "whole") != 0)
		doctor_say(d, "standby", job->standby_ms > BOX_WITHOUT_MS ? DOCTOR_WARN : DOCTOR_OK,
			job->standby_ms > BOX_WITHOUT_MS ? "look at the standby, and at that box's log" : NULL,
			"job %s: WITHOUT a standby since %.1f s (%s)%s%s", job->name, (double)job->standby_ms / 1e3,
			job->standby, *job->standby_why ? ": " : "", job->standby_why);
	if (admin_write_stuck(job, stuck, sizeof(stuck)))
		doctor_say(d, "standby", DOCTOR_WARN, "let those workers name no transport, or tcp",
			"job %s: it cannot go on at the standby when the box is lost: %s by shm", job->name, stuck);
}

/* Other boxes of the job: above, below and beside. */
static void box_check_boxes(struct doctor *d, const Phub__JobInfo *job)
{
	if (job->above && *job->above->why)
		doctor_say(d, "boxes", DOCTOR_WARN, "look at that box, and at uplink there",
			"job %s: box %s above (uplink) cannot be reached: %s", job->name, job->above->box,
			job->above->why);
	for (size_t i = 0; i < job->n_beside; i++)
		if (*job->beside[i]->why)
			doctor_say(d, "boxes", DOCTOR_WARN, "look at that box, or set advertise there",
				"job %s: box %s beside cannot be reached: %s", job->name, job->beside[i]->box,
				job->beside[i]->why);
	for (size_t i = 0; i < job->n_below; i++)
		if (job->below[i]->silent_ms > BOX_SILENT_MS)
			doctor_say(d, "boxes", DOCTOR_WARN, "look at that box and the network between the two",
				"job %s: box %s below has been silent for %" PRIu64 " ms", job->name,
				job->below[i]->peer, job->below[i]->silent_ms);
}

static void box_check_jobs(struct doctor *d, const Phub__AdminReply *reply)
{
	for (size_t i = 0; i < reply->n_jobs; i++) {
		const Phub__JobInfo *job = reply->jobs[i];

		box_check_checkpoints(d, job);
		box_check_standby(d, job);
		box_check_boxes(d, job);
		for (size_t w = 0; w < job->n_workers; w++) {
			if (job->workers[w]->silent_ms > BOX_SILENT_MS)
				doctor_say(d, "worker", DOCTOR_WARN,
					"look at that process: stopped, swapping, or cut off from the box",
					"job %s: rank %" PRIu32 " at %s has been silent for %" PRIu64 " ms", job->name,
					job->workers[w]->rank, job->workers[w]->peer, job->workers[w]->silent_ms);
		}
		if (job->n_missing)
			doctor_say(d, "job", DOCTOR_WARN, "phub jobs --workers",
				"job %s: %zu of %" PRIu32 " workers are missing%s%s", job->name, job->n_missing,
				job->world, job->waiting && *job->waiting ? "; waits: " : "",
				job->waiting ? job->waiting : "");
		else if (job->waiting && *job->waiting)
			doctor_say(d, "job", DOCTOR_WARN, "phub jobs --workers",
				"job %s: all %" PRIu32 " workers are there, and it stalls: %s", job->name, job->world,
				job->waiting);
		else
			doctor_say(d, "job", DOCTOR_OK, NULL,
				"job %s: all %" PRIu32 " workers are there, %.1f rounds/s", job->name, job->world,
				job->rounds_per_s);
	}
}

/* ---- the root that it stands for ---- */

static void box_say_etcd(struct doctor *d, const Phub__RootInfo *root)
{
	static const char cure[] = "look at etcd, at that box's options etcd and etcd_secret_file, and at its log";

	if (!root->heard)
		doctor_say(d, "etcd", DOCTOR_FAIL, cure, "etcd has told the box nothing yet%s%s",
			*root->why ? ": " : "", root->why);
	else if (root->heard_ms > BOX_SILENT_MS)
		doctor_say(d, "etcd", root->epoch && root->held ? DOCTOR_FAIL : DOCTOR_WARN, cure,
			"etcd has told the box nothing for %.1f s%s%s", (double)root->heard_ms / 1e3,
			*root->why ? ": " : "", root->why);
	else
		doctor_say(d, "etcd", DOCTOR_OK, NULL, "it answers the box, %.1f s ago", (double)root->heard_ms / 1e3);
}

static void box_say_root(struct doctor *d, const Phub__RootInfo *root)
{
	if (root->epoch && root->held)
		doctor_say(d, "root", DOCTOR_WARN, "see what is said of etcd",
			"the box is the root '%s', of epoch %" PRIu64
			", and does not know whether it still is: its jobs are held",
			root->name, root->epoch);
	else if (root->epoch)
		doctor_say(d, "root", DOCTOR_OK, NULL, "the box is the root '%s', of epoch %" PRIu64, root->name,
			root->epoch);
	else if (*root->box)
		doctor_say(d, "root", DOCTOR_OK, NULL, "the box stands for the root '%s', which is box '%s' at %s",
			root->name, root->box, root->address);
	else
		doctor_say(d, "root", DOCTOR_WARN, "see what is said of etcd, and that box's log",
			"the box stands for the root '%s', and knows of no box that is it%s%s", root->name,
			*root->why ? ": " : "", root->why);
}

static void box_say_targets(struct doctor *d, const Phub__RootInfo *root)
{
	uint32_t away = root->failed + root->silent;

	if (root->targets == 0)
		doctor_say(d, "targets", DOCTOR_WARN, "the same checkpoint_targets at all that stand for it",
			"jobs of the root '%s' have no checkpoints to go on from at another", root->name);
	else if (away > 0)
		doctor_say(d, "targets", away > root->parity ? DOCTOR_FAIL : DOCTOR_WARN,
			"see that it is mounted there, with locks, and that its server is up",
			"%" PRIu32 " of %" PRIu32 " checkpoint_targets cannot be locked by the box%s: %s", away,
			root->targets, away > root->parity ? ", which can be no root without" : "", root->target_why);
	else if (root->epoch)
		doctor_say(d, "targets", DOCTOR_OK, NULL, "%" PRIu32 " of %" PRIu32 " checkpoint_targets are its own",
			root->locked, root->targets);
	else if (root->taken > 0)
		doctor_say(d, "targets", DOCTOR_OK, NULL,
			"the box can lock its %" PRIu32 " checkpoint_targets, of which another, the root, has %" PRIu32
			" now",
			root->targets, root->taken);
	else
		doctor_say(d, "targets", *root->box ? DOCTOR_WARN : DOCTOR_OK,
			*root->box ? "the same checkpoint_targets at all that stand for it, on a mount that all have"
				   : NULL,
			"the box can lock its %" PRIu32 " checkpoint_targets%s", root->targets,
			*root->box ? ", and the root has not: are these the same directories?" : "");
}

/* Whether its targets can be locked is tried when it is asked, and takes a moment. */
static void box_check_root(struct doctor *d, const char *address)
{
	static const struct timespec pause = {.tv_nsec = 100 * 1000000};
	struct admin_answer answer;
	bool again = true;
	struct err e;

	for (int i = 0; again; i++) {
		if (admin_ask(address, "root", BOX_TIMEOUT_MS, &answer, &e) < 0) {
			doctor_say(d, "root", DOCTOR_WARN, NULL, "%s", e.text);
			return;
		}
		again = answer.reply->root && answer.reply->root->silent > 0 && i < BOX_ROOT_ASKS;
		if (again) {
			admin_answer_fini(&answer);
			nanosleep(&pause, NULL);
		}
	}
	if (answer.reply->root) {
		box_say_etcd(d, answer.reply->root);
		box_say_root(d, answer.reply->root);
		box_say_targets(d, answer.reply->root);
	}
	admin_answer_fini(&answer);
}

static void box_say_answer(struct doctor *d, const char *address, const struct admin_answer *answer, uint64_t best_ns)
{
	char datagrams[400];
	uint64_t forged;

	doctor_say(d, "box", best_ns > 100 * NS_PER_MS ? DOCTOR_WARN : DOCTOR_OK,
		best_ns > 100 * NS_PER_MS ? "use a link of the same rack; see also phub jobs for its load" : NULL,
		"%s answers in %.0f us (session in %.1f ms): version %s, cores %zu, jobs %zu, up %" PRIu64 " s",
		address, (double)best_ns / 1e3, (double)answer->session_ns / 1e6, answer->reply->version,
		answer->reply->n_cores, answer->reply->n_jobs, answer->reply->uptime_s);
	if (answer->reply->exposed && *answer->reply->exposed)
		doctor_say(d, "protection", DOCTOR_WARN, "deploy/security.md says who can do what", "%s",
			answer->reply->exposed);
	if (answer->reply->strangers_refused)
		doctor_say(d, "strangers", DOCTOR_OK, NULL,
			"the box has refused %" PRIu64 " connections that proved nothing, %" PRIu64
			" of them because too many came at once",
			answer->reply->strangers_refused, answer->reply->strangers_limited);
	forged = admin_dropped(answer->reply->dropped, answer->reply->n_dropped, "forged");
	if (forged)
		doctor_say(d, "forged", DOCTOR_WARN,
			"see that box's log and phub jobs for whose they are, and who is on the way of that job's "
			"workers",
			"the box has dropped %" PRIu64
			" messages of encrypted jobs that were forged, changed on their way or kept and said again",
			forged);
	if (admin_write_datagrams(answer->reply, datagrams, sizeof(datagrams)))
		doctor_say(d, "datagrams", DOCTOR_OK, NULL, "of udp and its like: %s", datagrams);
}

/* After admin_ask() failed with this code. */
static const char *box_advice(int code)
{
	if (code == -EACCES)
		return "set PHUB_ADMIN_SECRET_FILE to the box's admin secret";
	if (code == -EKEYREJECTED)
		return "set PHUB_TLS_CA or PHUB_TLS_PIN to what the box's log says when it starts";
	if (code == -EBUSY)
		return "see in that box's log who floods it; raise handshake_rate_source there if they are workers";
	if (code == -EBADMSG)
		return "give the HOST:PORT that phubd prints when it starts";
	if (code == -EPROTO)
		return "see that box's log, and run the same version here and there";
	return "start phubd there, or open its port in the firewall";
}

void doctor_check_box(struct doctor *d, const char *address, bool named)
{
	struct admin_answer answer;
	uint64_t best_ns = UINT64_MAX;
	struct err e;

	for (int i = 0; i < BOX_ASKS; i++) {
		int rc = admin_ask(address, "jobs", BOX_TIMEOUT_MS, &answer, &e);

		if (rc == -ECONNREFUSED && !named) {
			doctor_say(d, "box", DOCTOR_OK,
				d->rdma_usable ? "phubd -o transports=tcp,shm,verbs serves RDMA too" : NULL,
				"none listens at %s; phubd starts one", address);
			return;
		}
		if (rc < 0) {
			doctor_say(d, "box", DOCTOR_FAIL, box_advice(rc), "%s", e.text);
			return;
		}
		best_ns = answer.answer_ns < best_ns ? answer.answer_ns : best_ns;
		if (i + 1 < BOX_ASKS)
			admin_answer_fini(&answer);
	}
	box_say_answer(d, address, &answer, best_ns);
	box_check_transports(d, address, &answer);
	box_check_jobs(d, answer.reply);
	if (answer.reply->root)
		box_check_root(d, address);
	admin_answer_fini(&answer);
}
