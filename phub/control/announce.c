/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box in etcd. One call at a time is under way; what is next follows from what is known to be there.
 */
#include "phub/control/announce.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/control/admin.h"
#include "phub/control/announce_jobs.h"
#include "phub/control/box.h"
#include "phub/control/above.h"
#include "phub/control/campaign.h"
#include "phub/control/seek.h"
#include "transport/etcd.h"
#include "transport/etcd_text.h"
#include "transport/roster.h"

#define ANNOUNCE_STOP_NS        NS_PER_S
#define ANNOUNCE_TELL_NS        NS_PER_S /* between two looks at the jobs */
#define ANNOUNCE_BACKOFF_MIN_NS (250 * NS_PER_MS)
#define ANNOUNCE_BACKOFF_MAX_NS (5 * NS_PER_S)
#define ANNOUNCE_QUIET_NS       (60 * NS_PER_S) /* between two lines about other reasons, while it is not announced */

enum announce_doing {
	ANNOUNCE_NOTHING,
	ANNOUNCE_GRANTING, /* a lease */
	ANNOUNCE_PUTTING,  /* the box's key */
	ANNOUNCE_KEEPING,  /* the lease alive */
	ANNOUNCE_TELLING,  /* of jobs */
	ANNOUNCE_REVOKING, /* the lease, and with it all keys */
};

struct announce {
	struct box *box;
	struct etcd *etcd;
	struct etcd_call call;
	enum announce_doing doing;
	int64_t lease; /* 0: there is none */
	bool put;      /* the box's key is there, under it */
	char local[48];
	char name[ROSTER_NAME_BYTES], address[ROSTER_ADDRESS_BYTES];
	int64_t since; /* Unix time */
	struct announce_jobs jobs;
	struct seek seek;
	struct campaign campaign;
	bool root;                 /* as it is announced */
	uint64_t now_ns, heard_ns; /* etcd has answered well, when it was announced; 0: it never was */
	uint64_t ttl_ns, keep_ns, tell_ns, retry_ns, backoff_ns;
	bool up;          /* announced, as far as is known */
	uint64_t down_ns; /* 0: it is up, or was never tried */
	int down_status;  /* why */
	struct log_limit limit;
	bool stopping, stopped;
	uint64_t stop_ns;
};

/* ---- what is told of the box ---- */

static bool announce_is_loopback(const char *host)
{
	return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
}

static bool announce_is_any(const char *host)
{
	return !host[0] || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

/* Its first address that is not loopback's, if there is one. */
static unsigned announce_listener(const struct config *config)
{
	for (unsigned i = 0; i < config->listen_count; i++)
		if (!announce_is_loopback(config->listen[i].host))
			return i;
	return 0;
}

static void announce_write_address(const char *host, unsigned port, char *out, size_t bytes)
{
	snprintf(out, bytes, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
}

/* Where others reach it, and by which name: known once etcd was called, for from there it is seen as it called. */
static void announce_find_names(struct announce *a)
{
	const struct config *config = a->box->config;
	const struct config_listen *at = &config->listen[announce_listener(config)];
	const struct box_listener *listener = &a->box->listeners[announce_listener(config)];
	const char *colon = strrchr(listener->bound, ':');
	unsigned port = colon ? (unsigned)strtoul(colon + 1, NULL, 10) : at->port;
	bool own = !announce_is_any(at->host) && !announce_is_loopback(at->host);
	char host[ROSTER_NAME_BYTES] = "";

	gethostname(host, sizeof(host) - 1);
	if (config->advertise[0])
		snprintf(a->address, sizeof(a->address), "%s", config->advertise);
	else if (!announce_is_any(at->host))
		announce_write_address(at->host, port, a->address, sizeof(a->address));
	else
		announce_write_address(a->local[0] ? a->local : host, port, a->address, sizeof(a->address));
	if (announce_is_any(at->host) && !config->advertise[0] && announce_is_loopback(a->local))
		log_warn("etcd is reached by loopback, so this box is announced at %s, where no other host reaches it: "
			 "set advertise to its address",
			a->address);
	if (config->racks.box_count > 0)
		snprintf(a->name, sizeof(a->name), "%s", config->racks.boxes[config->racks_box].name);
	else if (config->box[0])
		snprintf(a->name, sizeof(a->name), "%s", config->box);
	else if ((own || config->advertise[0]) && roster_name_valid(a->address))
		memcpy(a->name, a->address, strlen(a->address) + 1);
	else if (snprintf(a->name, sizeof(a->name), "%.50s:%u", host, port) < 0 || !roster_name_valid(a->name))
		snprintf(a->name, sizeof(a->name), "box:%u", port);
}

static char *announce_value(const struct announce *a)
{
	const struct config *config = a->box->config;
	struct roster_box told = {
		.cores = a->box->core_count, .tls = config->tls == CONFIG_TLS_REQUIRE, .since = a->since};
	size_t at = 0;

	memcpy(told.address, a->address, sizeof(told.address));
	gethostname(told.host, sizeof(told.host) - 1);
	snprintf(told.rack, sizeof(told.rack), "%s",
		config->rack[0] || config->racks.box_count == 0
			? config->rack
			: config->racks.racks[config->racks.boxes[config->racks_box].rack].name);
	snprintf(told.uplink, sizeof(told.uplink), "%.300s", a->root ? "" : config->uplink);
	memcpy(told.root, config->root, sizeof(told.root));
	snprintf(told.version, sizeof(told.version), "%s", ADMIN_VERSION);
	for (unsigned i = 0; i < config->transport_count && at < sizeof(told.transports); i++)
		at += (size_t)snprintf(told.transports + at, sizeof(told.transports) - at, "%s%s", i ? ", " : "",
			config->transports[i]);
	return roster_write_box(&told);
}

/* ---- what is done next ---- */

static void announce_begin(struct announce *a, enum announce_doing doing, const char *path, char *request)
{
	a->doing = doing;
	etcd_begin(a->etcd, &a->call, path, request, a->now_ns);
}

static void announce_begin_put(struct announce *a)
{
	char key[ETCD_KEY_BYTES], *value;
	struct etcd_op ops[2] = {{.key = key, .value = ETCD_READ}, {.key = key, .lease = a->lease}};
	bool fits = roster_box_key(a->box->config->etcd_prefix, a->name, key, sizeof(key));

	a->root = above_is_root(&a->box->control);
	value = announce_value(a);
	ops[1].value = value;
	announce_begin(a, ANNOUNCE_PUTTING, "/v3/kv/txn", fits && value ? etcd_text_txn(ops, 2) : NULL);
	free(value);
}

static void announce_begin_tell(struct announce *a)
{
	char *request;

	a->tell_ns = a->now_ns + ANNOUNCE_TELL_NS;
	announce_jobs_look(&a->jobs, &a->box->control);
	if (announce_jobs_next(&a->jobs, a->box->config->etcd_prefix, a->name, a->lease, a->now_ns, &request))
		announce_begin(a, ANNOUNCE_TELLING, "/v3/kv/txn", request);
}

static void announce_choose(struct announce *a)
{
	if (a->stopping && !a->lease) {
		a->stopped = campaign_stopped(&a->campaign);
	} else if (a->stopping) {
		announce_begin(a, ANNOUNCE_REVOKING, "/v3/lease/revoke", etcd_text_lease(a->lease));
	} else if (a->now_ns < a->retry_ns) {
		return;
	} else if (!a->lease) {
		announce_begin(a, ANNOUNCE_GRANTING, "/v3/lease/grant",
			etcd_text_grant((int64_t)((a->box->config->etcd_ttl_ms + 999) / 1000)));
	} else if (!a->put) {
		announce_begin_put(a);
	} else if (a->now_ns >= a->keep_ns) {
		announce_begin(a, ANNOUNCE_KEEPING, "/v3/lease/keepalive", etcd_text_lease(a->lease));
	} else if (a->now_ns >= a->tell_ns) {
		announce_begin_tell(a);
	}
}

/* ---- what comes of it ---- */

static void announce_forget_lease(struct announce *a)
{
	a->lease = 0;
	a->put = false;
	announce_jobs_forget(&a->jobs);
}

/* Of a root it is the lease that they depend on, and campaign.h tells when that is over. */
static void announce_say_jobs(const struct announce *a, char *out, size_t bytes)
{
	const struct control *c = &a->box->control;
	uint64_t now_ns;

	snprintf(out, bytes, "its jobs go on");
	if (!above_is_root(c))
		return;
	now_ns = above_lease_now_ns(c);
	if (c->above.doubt_ns || c->above.until_ns <= now_ns)
		snprintf(out, bytes, "its jobs are held, as it may be the root no more");
	else
		snprintf(out, bytes,
			"its jobs go on for %.1f s, for which its lease as the root lasts, and are held then",
			(double)(c->above.until_ns - now_ns) / 1e9);
}

static void announce_failed(struct announce *a, int status, const char *why)
{
	char more[LOG_QUIET_BYTES], age[64] = "", jobs[128];
	uint64_t quiet = 0;

	/* What is there will be written again: etcd may come back as it was some time ago. */
	a->put = false;
	announce_jobs_forget(&a->jobs);
	a->backoff_ns = a->backoff_ns * 2 > ANNOUNCE_BACKOFF_MAX_NS ? ANNOUNCE_BACKOFF_MAX_NS : a->backoff_ns * 2;
	a->backoff_ns = a->backoff_ns < ANNOUNCE_BACKOFF_MIN_NS ? ANNOUNCE_BACKOFF_MIN_NS : a->backoff_ns;
	/* Boxes that lost etcd together do not come back together. */
	a->retry_ns = a->now_ns + a->backoff_ns * (75 + (a->now_ns / 1000 + (uint64_t)getpid()) % 51) / 100;
	if (a->down_ns &&
		(a->down_status == status || !log_limit_pass(&a->limit, a->now_ns, ANNOUNCE_QUIET_NS, &quiet)))
		return;
	if (a->heard_ns)
		snprintf(age, sizeof(age), " since %.1f s", (double)(a->now_ns - a->heard_ns) / 1e9);
	if (!a->down_ns)
		a->down_ns = a->heard_ns ? a->heard_ns : a->now_ns;
	a->down_status = status;
	a->up = false;
	announce_say_jobs(a, jobs, sizeof(jobs));
	log_warn(
		"this box is not announced%s: %s; %s, and it is tried again%s", age, why, jobs, log_quiet(quiet, more));
}

/* Another box that has this name would take its place again and again. */
static void announce_on_former(void *arg, const struct etcd_item *item)
{
	struct announce *a = arg;
	struct roster_item was;

	if (roster_read(a->box->config->etcd_prefix, item, &was) < 0 || was.gone || was.kind != ROSTER_BOX)
		return;
	if (strcmp(was.box.address, a->address) != 0)
		log_warn("box '%s' was announced at %s until now, and is at %s: if that one is up, too, each needs its "
			 "own name (option box)",
			a->name, was.box.address, a->address);
}

static int announce_heard_grant(struct announce *a, struct err *e)
{
	int64_t ttl_s;
	int rc = etcd_text_read_grant(a->call.answer, a->call.bytes, &a->lease, &ttl_s, e);

	if (rc < 0)
		return rc;
	a->ttl_ns = (uint64_t)ttl_s * NS_PER_S;
	a->keep_ns = a->now_ns + a->ttl_ns / 3;
	memcpy(a->local, a->call.local, sizeof(a->local));
	announce_find_names(a);
	return 0;
}

static int announce_heard_put(struct announce *a, struct err *e)
{
	int rc = etcd_text_read_txn(a->call.answer, a->call.bytes, announce_on_former, a, e);

	if (rc < 0)
		return rc;
	a->put = true;
	a->tell_ns = a->now_ns;
	a->jobs.again_ns = a->ttl_ns / 2;
	if (!a->up && a->down_ns)
		log_info("etcd %s: box '%s' is announced at %s again, after %.1f s", etcd_url(a->etcd), a->name,
			a->address, (double)(a->now_ns - a->down_ns) / 1e9);
	else if (!a->up)
		log_info("etcd %s: box '%s' is announced at %s", etcd_url(a->etcd), a->name, a->address);
	a->up = true;
	a->down_ns = 0;
	return 0;
}

static int announce_heard_keepalive(struct announce *a, struct err *e)
{
	int64_t ttl_s;
	int rc = etcd_text_read_keepalive(a->call.answer, a->call.bytes, &ttl_s, e);

	if (rc < 0)
		return rc;
	a->keep_ns = a->now_ns + a->ttl_ns / 3;
	if (ttl_s > 0)
		return 0;
	announce_forget_lease(a);
	a->up = false;
	a->down_ns = a->heard_ns;
	return 0;
}

static void announce_heard(struct announce *a)
{
	enum announce_doing doing = a->doing;
	struct err e = {.code = 0};
	int rc = 0;

	a->doing = ANNOUNCE_NOTHING;
	if (doing == ANNOUNCE_REVOKING) {
		a->lease = 0;
	} else if (a->call.state == ETCD_FAILED) {
		rc = a->call.why.code;
		e = a->call.why;
		if (a->call.status == ETCD_NOT_FOUND)
			announce_forget_lease(a);
	} else if (doing == ANNOUNCE_GRANTING) {
		rc = announce_heard_grant(a, &e);
	} else if (doing == ANNOUNCE_PUTTING) {
		rc = announce_heard_put(a, &e);
	} else if (doing == ANNOUNCE_KEEPING) {
		rc = announce_heard_keepalive(a, &e);
	} else if (announce_jobs_told(&a->jobs, a->now_ns)) {
		a->tell_ns = a->now_ns;
	}
	if (rc < 0) {
		announce_failed(a, a->call.status, e.text);
	} else {
		a->heard_ns = a->up ? a->now_ns : a->heard_ns;
		a->retry_ns = 0;
		a->backoff_ns = 0;
	}
	etcd_end(&a->call);
}

static void announce_step(struct announce *a, uint64_t now_ns)
{
	a->now_ns = now_ns;
	if (a->stopped)
		return;
	etcd_step(a->etcd, now_ns);
	if (a->doing != ANNOUNCE_NOTHING && a->call.state != ETCD_RUNNING)
		announce_heard(a);
	seek_step(&a->seek, now_ns);
	campaign_step(&a->campaign, now_ns);
	a->put = a->put && a->root == above_is_root(&a->box->control);
	if (a->stopping && now_ns >= a->stop_ns) {
		if (a->doing != ANNOUNCE_NOTHING)
			log_info("etcd %s does not answer: what was announced there ends with its lease, in %llu s",
				etcd_url(a->etcd), (unsigned long long)(a->ttl_ns / NS_PER_S));
		etcd_end(&a->call);
		a->doing = ANNOUNCE_NOTHING;
		a->stopped = true;
	} else if (a->doing == ANNOUNCE_NOTHING) {
		announce_choose(a);
	}
}

static uint64_t announce_due(const struct announce *a)
{
	uint64_t due = etcd_next(a->etcd);

	if (a->stopped)
		return CLOCK_NEVER;
	if (a->stopping && a->stop_ns < due)
		due = a->stop_ns;
	if (a->doing != ANNOUNCE_NOTHING)
		return due;
	if (a->stopping)
		return a->lease || campaign_stopped(&a->campaign) ? a->now_ns : due;
	if (a->lease && a->put)
		due = a->keep_ns < a->tell_ns ? a->keep_ns : a->tell_ns;
	else
		due = 0;
	return due > a->retry_ns ? due : a->retry_ns;
}

static uint64_t announce_next(const struct announce *a)
{
	uint64_t due = announce_due(a);

	if (a->stopped)
		return due;
	due = seek_next(&a->seek) < due ? seek_next(&a->seek) : due;
	due = campaign_next(&a->campaign) < due ? campaign_next(&a->campaign) : due;
	return etcd_next(a->etcd) < due ? etcd_next(a->etcd) : due;
}

/* ---- life ---- */

static int announce_read_config(const struct config *config, struct etcd_config *out, struct err *e)
{
	char secret[CONFIG_SECRET_BYTES_MAX + 1] = "";
	struct err why;
	int rc;

	if (config->etcd_secret.bytes)
		memcpy(secret, config->etcd_secret.bytes, config->etcd_secret.length);
	rc = etcd_config_read(config->etcd, config->etcd_secret.bytes ? secret : NULL, config->etcd_ca, out, &why);
	explicit_bzero(secret, sizeof(secret));
	return rc < 0 ? err_set(e, rc, "etcd: %s", why.text) : 0;
}

int announce_check(const struct config *config, struct err *e)
{
	struct etcd_config at;
	struct etcd *etcd;
	int rc;

	if (!config->etcd[0])
		return 0;
	rc = announce_read_config(config, &at, e);
	if (rc == 0)
		rc = etcd_open(&at, &etcd, e);
	if (rc == 0)
		etcd_close(etcd);
	explicit_bzero(&at, sizeof(at));
	return rc;
}

static int announce_open(struct box *box, uint64_t now_ns, struct announce **out, struct err *e)
{
	struct announce *a = calloc(1, sizeof(*a));
	struct etcd_config at;
	int rc;

	if (!a)
		return err_set(e, -ENOMEM, "no memory for etcd");
	a->box = box;
	a->now_ns = now_ns;
	a->since = (int64_t)time(NULL);
	rc = announce_read_config(box->config, &at, e);
	if (rc == 0)
		rc = etcd_open(&at, &a->etcd, e);
	explicit_bzero(&at, sizeof(at));
	if (rc < 0) {
		free(a);
		return rc;
	}
	campaign_init(&a->campaign, box, a->etcd, a->name, a->address);
	seek_init(&a->seek, box, a->etcd, a->name, box->config->root[0] ? &a->campaign : NULL);
	*out = a;
	return 0;
}

static int announce_fd(const struct announce *a)
{
	return etcd_fd(a->etcd);
}

static void announce_stop(struct announce *a, uint64_t now_ns)
{
	if (a->stopping)
		return;
	a->stopping = true;
	a->stop_ns = now_ns + ANNOUNCE_STOP_NS;
	campaign_stop(&a->campaign);
	etcd_end(&a->call);
	a->doing = ANNOUNCE_NOTHING;
}

static bool announce_stopped(const struct announce *a)
{
	return a->stopped;
}

static void announce_close(struct announce *a)
{
	etcd_end(&a->call);
	seek_fini(&a->seek);
	campaign_fini(&a->campaign);
	etcd_close(a->etcd);
	announce_jobs_fini(&a->jobs);
	free(a);
}

const struct announce_ops announce_etcd = {
	.open = announce_open,
	.fd = announce_fd,
	.step = announce_step,
	.next = announce_next,
	.stop = announce_stop,
	.stopped = announce_stopped,
	.close = announce_close,
};
