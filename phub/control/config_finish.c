/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What no option can check alone, what is chosen at start, the secrets, and the dump.
 */
#include "phub/control/config.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "phub/base/secret.h"
#include "phub/control/checkpoint.h"
#include "phub/control/config_options.h"
#include "phub/control/config_values.h"
#include "transport/stream.h"

#define CONFIG_UPLINK_ETCD "etcd:"

#define CONFIG_CORES_AUTO_MAX 8u
#define CONFIG_SLOTS_SHARE    32u /* of memory_max */
#define CONFIG_SLOTS_PAGE     (UINT64_C(2) << 20)
#define CONFIG_SLOTS_AUTO_MIN (UINT64_C(4) << 20) /* what one connection takes, with the usual window and chunks */
#define CONFIG_SLOTS_AUTO_MAX (UINT64_C(1) << 30)

static unsigned config_line_of(const struct config *config, const char *name)
{
	return config->lines[option_find(option_table, option_count, name) - option_table];
}

/* Puts file and line before what is wrong there. Returns its code. */
static int config_at_line(const struct config *config, unsigned line, struct err *e)
{
	struct err what = *e;

	if (!line)
		return e->code;
	return err_set(e, what.code, "%s:%u: %s", config->file, line, what.text);
}

int config_at(const struct config *config, const char *one, const char *other, struct err *e)
{
	unsigned line = config_line_of(config, one);

	return config_at_line(config, line ? line : config_line_of(config, other), e);
}

static int config_read_secret(struct config_secret *secret, const char *whose, struct err *e)
{
	uint8_t buffer[CONFIG_SECRET_BYTES_MAX + 1];
	const char *value;
	int rc = 0;

	config_wipe_secret(secret);
	if (!secret->file[0] && !secret->env[0])
		return 0;
	if (secret->file[0] && secret->env[0])
		return err_set(e, -EINVAL, "%s: both a secret file and an environment variable; give one", whose);
	if (secret->env[0]) {
		value = getenv(secret->env);
		if (!value)
			return err_set(e, -ENOENT, "%s: the environment has no %s; set it, or use a secret file", whose,
				secret->env);
		secret->length = strnlen(value, sizeof(buffer));
		memcpy(buffer, value, secret->length);
	} else {
		rc = secret_read_file(secret->file, buffer, sizeof(buffer), &secret->length, e);
	}
	if (rc == 0 && (secret->length == 0 || secret->length > CONFIG_SECRET_BYTES_MAX))
		rc = err_set(e, -EINVAL, "%s: the secret has %zu bytes; allowed: 1 to %u; try: openssl rand -hex 32",
			whose, secret->length, CONFIG_SECRET_BYTES_MAX);
	if (rc == 0) {
		secret->bytes = malloc(secret->length);
		if (secret->bytes)
			memcpy(secret->bytes, buffer, secret->length);
		else
			rc = err_set(e, -ENOMEM, "%s: no memory for the secret", whose);
	}
	explicit_bzero(buffer, sizeof(buffer));
	return rc;
}

static int config_read_secrets(struct config *config, struct err *e)
{
	char whose[SPEC_NAME_BYTES + 16];

	if (config_read_secret(&config->create_secret, "create_secret", e) < 0)
		return config_at(config, "create_secret_file", "create_secret_env", e);
	if (config_read_secret(&config->admin_secret, "admin_secret", e) < 0)
		return config_at(config, "admin_secret_file", "admin_secret_env", e);
	if (config_read_secret(&config->etcd_secret, "etcd_secret", e) < 0)
		return config_at(config, "etcd_secret_file", "etcd_secret_env", e);
	for (unsigned i = 0; i < config->job_count; i++) {
		snprintf(whose, sizeof(whose), "job '%s'", config->jobs[i].name);
		if (config_read_secret(&config->jobs[i].secret, whose, e) < 0)
			return config_at_line(config, config->jobs[i].line, e);
	}
	return 0;
}

/* A number that a file of the kernel holds, or UINT64_MAX. */
static uint64_t config_kernel_number(const char *file)
{
	FILE *f = fopen(file, "re");
	uint64_t value = UINT64_MAX;

	if (!f)
		return value;
	if (fscanf(f, "%" SCNu64, &value) != 1)
		value = UINT64_MAX;
	fclose(f);
	return value;
}

static uint64_t config_memory_here(void)
{
	uint64_t have = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t two = config_kernel_number("/sys/fs/cgroup/memory.max");
	uint64_t one = config_kernel_number("/sys/fs/cgroup/memory/memory.limit_in_bytes");

	if (two < have)
		have = two;
	if (one < have)
		have = one;
	return have;
}

static unsigned config_cpus_allowed(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) < 0)
		return 1;
	return (unsigned)CPU_COUNT(&set);
}

/*
 * More than there is would admit jobs until the kernel kills the box, and all of them with it. Swap does not count: a
 * box that swaps is as good as dead.
 */
static int config_check_memory(const struct config *config, struct err *e)
{
	uint64_t have = config_memory_here();
	char wanted[32];

	if (config->memory_max <= have)
		return 0;
	value_write_bytes(config->memory_max, wanted, sizeof(wanted));
	err_set(e, -ENOMEM,
		"memory_max: '%s' is more than this machine or container has; allowed: auto (half of it), or at most "
		"%" PRIu64 "MiB",
		wanted, have >> 20);
	return config_at(config, "memory_max", "memory_max", e);
}

static uint64_t config_slots_of(uint64_t memory_max)
{
	/* Whole huge pages. */
	uint64_t bytes = memory_max / CONFIG_SLOTS_SHARE / CONFIG_SLOTS_PAGE * CONFIG_SLOTS_PAGE;

	bytes = bytes < CONFIG_SLOTS_AUTO_MIN ? CONFIG_SLOTS_AUTO_MIN : bytes;
	bytes = bytes > CONFIG_SLOTS_AUTO_MAX ? CONFIG_SLOTS_AUTO_MAX : bytes;
	return bytes < memory_max ? bytes : memory_max;
}

static int config_check_slots(const struct config *config, struct err *e)
{
	char slots[32], memory[32];

	if (config->rdma_slots_memory <= config->memory_max)
		return 0;
	value_write_bytes(config->rdma_slots_memory, slots, sizeof(slots));
	value_write_bytes(config->memory_max, memory, sizeof(memory));
	err_set(e, -EINVAL, "rdma_slots_memory %s is more than memory_max %s; lower the one or raise the other", slots,
		memory);
	return config_at(config, "rdma_slots_memory", "memory_max", e);
}

static void config_choose(struct config *config)
{
	unsigned half;

	if (config->memory_max == 0)
		config->memory_max = config_memory_here() / 2;
	if (config->rdma_slots_memory == 0)
		config->rdma_slots_memory = config_slots_of(config->memory_max);
	if (config->core_count == 0) {
		half = config_cpus_allowed() / 2;
		config->core_count = half < 1 ? 1 : half > CONFIG_CORES_AUTO_MAX ? CONFIG_CORES_AUTO_MAX : half;
	}
}

static int config_check_times(const struct config *config, struct err *e)
{
	if (config->heartbeat_ms >= config->warn_ms) {
		err_set(e, -EINVAL,
			"heartbeat_ms %" PRIu64 " is not below warn_ms %" PRIu64 "; every worker would be warned of",
			config->heartbeat_ms, config->warn_ms);
		return config_at(config, "heartbeat_ms", "warn_ms", e);
	}
	if (config->warn_ms >= config->lost_ms) {
		err_set(e, -EINVAL,
			"warn_ms %" PRIu64 " is not below lost_ms %" PRIu64 "; nobody would be warned of in time",
			config->warn_ms, config->lost_ms);
		return config_at(config, "warn_ms", "lost_ms", e);
	}
	return 0;
}

/* The first listed job without a secret, or NULL. */
static const struct config_job *config_open_job(const struct config *config)
{
	for (unsigned i = 0; i < config->job_count; i++)
		if (!config->jobs[i].secret.bytes)
			return &config->jobs[i];
	return NULL;
}

static int config_check_public(const struct config *config, struct err *e)
{
	const struct config_job *open_job = config_open_job(config);
	const char *host = NULL;
	int loopback = 1;

	for (unsigned i = 0; i < config->listen_count && loopback == 1; i++) {
		host = config->listen[i].host;
		loopback = stream_host_is_loopback(host);
	}
	if (loopback == 1)
		return 0;
	if (config->create != CONFIG_CREATE_SAME_UID && !open_job)
		return 0;
	if (loopback < 0) {
		err_set(e, -EADDRNOTAVAIL,
			"listen: '%s' does not resolve to an address; write an address of this machine, like "
			"127.0.0.1:7077",
			host);
		return config_at(config, "listen", "listen", e);
	}
	if (!host[0])
		host = "*";
	if (config->create == CONFIG_CREATE_SAME_UID) {
		err_set(e, -EACCES,
			"listen: %s is not loopback, and create: same-uid needs no secret; set create: secret with "
			"create_secret_file, or create: never with jobs that have secret_file",
			host);
		return config_at(config, "listen", "create", e);
	}
	err_set(e, -EACCES, "listen: %s is not loopback, and job '%s' has no secret; give it a secret_file", host,
		open_job->name);
	return config_at_line(config, open_job->line, e);
}

/* Where checkpoints go, by names and numbers alone: the directories themselves are tried by box_check_targets(). */
static int config_check_targets(const struct config *config, struct err *e)
{
	struct checkpoint_place place = {.target_count = 0};
	char text[sizeof(config->checkpoint_targets)];
	struct err why;
	int rc;

	memcpy(text, config->checkpoint_targets, sizeof(text));
	if (!text[0] && config->checkpoint_parity == 0)
		return 0;
	if (!text[0]) {
		err_set(e, -EINVAL,
			"checkpoint_parity: %" PRIu64 " without checkpoint_targets; name directories there, or set 0",
			config->checkpoint_parity);
		return config_at(config, "checkpoint_parity", "checkpoint_parity", e);
	}
	if (checkpoint_list_targets(&place, text) < 0)
		place.target_count = CHECKPOINT_TARGETS_MAX + 1;
	rc = checkpoint_check_count(place.target_count, (unsigned)config->checkpoint_parity, &why);
	for (unsigned i = 0; rc == 0 && i < place.target_count; i++) {
		if (place.targets[i][0] != '/')
			rc = err_set(
				&why, -EINVAL, "'%.80s' is no path from the root; write /like/this", place.targets[i]);
		for (unsigned j = 0; rc == 0 && j < i; j++)
			if (strcmp(place.targets[i], place.targets[j]) == 0)
				rc = err_set(&why, -EINVAL, "'%.80s' is given twice; each piece needs its own",
					place.targets[i]);
	}
	if (rc == 0)
		return 0;
	err_set(e, rc, "checkpoint_targets: %s", why.text);
	return config_at(config, "checkpoint_targets", "checkpoint_parity", e);
}

/* A box that called itself would wait for itself, or mirror each job into the memory that it is in. */
static int config_check_other(const struct config *config, const char *option, const char *text,
	const struct config_listen *at, struct err *e)
{
	for (unsigned i = 0; i < config->listen_count; i++) {
		const struct config_listen *own = &config->listen[i];

		if (own->port != at->port)
			continue;
		/* A name that has no address now is warned of when the box starts. */
		if (strcmp(own->host, at->host) != 0 && stream_host_is_heard(own->host, at->host) != 1)
			continue;
		err_set(e, -EADDRINUSE, "%s: '%.80s' is this box itself, which listens there; name another box", option,
			text);
		return config_at(config, option, "listen", e);
	}
	return 0;
}

/* Reads where another box is; *plain: without the scheme. */
static int config_read_box(const struct config *config, const char *option, const char *text, struct config_listen *at,
	bool *tls, const char **plain, struct err *e)
{
	static const char scheme[] = "phub://", scheme_tls[] = "phubs://";

	*plain = text;
	*tls = strncmp(text, scheme_tls, strlen(scheme_tls)) == 0;
	if (*tls)
		*plain += strlen(scheme_tls);
	else if (strncmp(text, scheme, strlen(scheme)) == 0)
		*plain += strlen(scheme);
	if (value_read_address(*plain, at) == 0 && at->host[0] && at->port)
		return config_check_other(config, option, text, at, e);
	err_set(e, -EINVAL, "%s: '%.80s' is not understood; allowed: host:port or phubs://host:port, of another box",
		option, text);
	return config_at(config, option, option, e);
}

/* Where the standby is, and what workers hear of that. */
static int config_check_standby(struct config *config, struct err *e)
{
	const char *at = config->standby, *told = config->standby_advertise;
	struct config_listen advertised;
	int rc;

	if (!at[0] && !told[0])
		return 0;
	if (!at[0]) {
		err_set(e, -EINVAL,
			"standby_advertise: '%.80s' without a standby; set standby to the box that is meant, or leave "
			"this empty",
			told);
		return config_at(config, "standby_advertise", "standby_advertise", e);
	}
	rc = config_read_box(config, "standby", at, &config->standby_at, &config->standby_tls, &at, e);
	if (rc < 0)
		return rc;
	if (told[0] && (value_read_address(told, &advertised) < 0 || !advertised.host[0] || !advertised.port)) {
		err_set(e, -EINVAL, "standby_advertise: '%.80s' is not understood; allowed: host:port", told);
		return config_at(config, "standby_advertise", "standby_advertise", e);
	}
	snprintf(config->standby_told, sizeof(config->standby_told), "%s", told[0] ? told : at);
	return 0;
}

static bool config_takes(const struct config *config, const char *transport)
{
	for (unsigned i = 0; i < config->transport_count; i++)
		if (strcmp(config->transports[i], transport) == 0)
			return true;
	return false;
}

unsigned config_ways_up(const struct config *config, const char **names, unsigned max)
{
	static const char *const each[] = {[CONFIG_UPLINK_DPDK] = "dpdk",
		[CONFIG_UPLINK_SHM] = "shm",
		[CONFIG_UPLINK_TCP] = "tcp",
		[CONFIG_UPLINK_UDP] = "udp",
		[CONFIG_UPLINK_VERBS] = "verbs"};
	enum config_uplink wanted = config->uplink_transport;
	unsigned count = 0;

	if (wanted == CONFIG_UPLINK_AUTO && count < max && config_takes(config, "shm"))
		names[count++] = each[CONFIG_UPLINK_SHM];
	if (wanted == CONFIG_UPLINK_AUTO && count < max && config_takes(config, "verbs"))
		names[count++] = each[CONFIG_UPLINK_VERBS];
	if (count < max)
		names[count++] = each[wanted == CONFIG_UPLINK_AUTO ? CONFIG_UPLINK_TCP : wanted];
	return count;
}

unsigned config_uplink_names(const struct config *config, const char **names, unsigned max)
{
	if (config->uplink[0] || config_exchanges(config))
		return config_ways_up(config, names, max);
	if (!config->standby[0] || max == 0)
		return 0;
	names[0] = "tcp";
	return 1;
}

bool config_uses(const struct config *config, const char *transport)
{
	const char *names[4];
	unsigned count = config_uplink_names(config, names, 4);

	for (unsigned i = 0; i < count; i++)
		if (strcmp(names[i], transport) == 0)
			return true;
	return config_takes(config, transport);
}

bool config_exchanges(const struct config *config)
{
	bool some = config->hierarchy != CONFIG_HIERARCHY_TREE;

	for (unsigned i = 0; i < config->job_count; i++)
		some = some || config->jobs[i].hierarchy > 1 + CONFIG_HIERARCHY_TREE;
	return some;
}

/* Where other boxes reach this one. */
static int config_check_advertise(struct config *config, struct err *e)
{
	const struct config_listen *at = &config->advertise_at;

	if (!config->advertise[0] ||
		(value_read_address(config->advertise, &config->advertise_at) == 0 && at->host[0] && at->port))
		return 0;
	err_set(e, -EINVAL, "advertise: '%.80s' is not understood; allowed: host:port", config->advertise);
	return config_at(config, "advertise", "advertise", e);
}

/* What this box is the top of. */
static int config_check_hierarchy(const struct config *config, struct err *e)
{
	if (!config_exchanges(config) || (!config->uplink[0] && !config->standby[0]))
		return 0;
	if (config->root[0])
		err_set(e, -EINVAL,
			"hierarchy: jobs of a root that etcd decides upon (root) are trees; leave hierarchy, or root, "
			"away");
	else if (config->uplink[0])
		err_set(e, -EINVAL,
			"hierarchy: the box at the top chooses it, and this one has another above it "
			"(%s); set it there alone",
			config->racks_uplink ? "the first of the rack file" : "uplink");
	else
		err_set(e, -EINVAL,
			"hierarchy: a box with a standby cannot be the top of several yet; leave one of the "
			"two away");
	return config_at(config, "hierarchy", config->uplink[0] ? "uplink" : "standby", e);
}

/* "etcd:NAME", of which a box that stands for a root was told NAME. */
static int config_check_uplink_name(struct config *config, struct err *e)
{
	const char *name = config->uplink + strlen(CONFIG_UPLINK_ETCD);
	const char *option = config->root[0] ? "root" : "uplink", *value = config->root[0] ? name : config->uplink;

	if (!config->etcd[0])
		err_set(e, -EINVAL, "%s: '%.80s' without etcd; set etcd to its URLs%s", option, value,
			config->root[0] ? "" : ", or uplink to host:port");
	else if (!config_job_name_valid(name))
		err_set(e, -EINVAL,
			"%s: '%.80s'; allowed: %sNAME, of 1 to 63 printable characters without / and spaces", option,
			value, config->root[0] ? "" : CONFIG_UPLINK_ETCD);
	else if (strcmp(name, config->box) == 0)
		err_set(e, -EINVAL,
			"%s: '%.80s' is this box itself; name the one above; a root has another name than its boxes",
			option, value);
	else
		return snprintf(config->uplink_name, sizeof(config->uplink_name), "%s", name) < 0 ? -EINVAL : 0;
	return config_at(config, option, "etcd", e);
}

/* One of a list: what else than the first is this box itself is left out, so that all may have the same list. */
static int config_take_uplink(struct config *config, const char *item, struct err *e)
{
	struct config_box *box = &config->uplinks[config->uplink_count];
	const char *plain;
	int rc;

	if (config->uplink_count == CONFIG_UPLINKS_MAX) {
		err_set(e, -E2BIG, "uplink: more than %u boxes", CONFIG_UPLINKS_MAX);
		return config_at(config, "uplink", "uplink", e);
	}
	rc = config_read_box(config, "uplink", item, &box->at, &box->tls, &plain, e);
	if (config->uplink_count > 0 &&
		(rc == -EADDRINUSE || (rc == 0 && config_is_here(config, box->at.host, box->at.port))))
		return 0;
	config->uplink_count += rc == 0;
	return rc;
}

static int config_read_uplinks(struct config *config, struct err *e)
{
	char text[sizeof(config->uplink)], *rest = text, *item;
	int rc = 0;

	memcpy(text, config->uplink, sizeof(text));
	while (rc == 0 && (item = strsep(&rest, ",")))
		rc = config_take_uplink(config, item + strspn(item, " "), e);
	return rc;
}

/* Where the box above is. */
static int config_check_uplink(struct config *config, struct err *e)
{
	config->uplink_name[0] = '\0';
	config->uplink_count = 0;
	if (!config->uplink[0])
		return 0;
	if (config->standby[0]) {
		err_set(e, -EINVAL,
			"uplink: a box with a standby cannot have one above it yet; set uplink at one box, and standby "
			"at another");
		return config_at(config, "uplink", "standby", e);
	}
	if (strncmp(config->uplink, CONFIG_UPLINK_ETCD, strlen(CONFIG_UPLINK_ETCD)) == 0)
		return config_check_uplink_name(config, e);
	return config_read_uplinks(config, e);
}

/* Names become parts of etcd's keys. */
static int config_check_names(const struct config *config, struct err *e)
{
	const char *prefix = config->etcd_prefix;

	if (config->box[0] && !config_job_name_valid(config->box)) {
		err_set(e, -EINVAL, "box: '%.64s'; allowed: printable characters without / and spaces", config->box);
		return config_at(config, "box", "box", e);
	}
	if (prefix[0] && prefix[strlen(prefix) - 1] != '/')
		return 0;
	err_set(e, -EINVAL, "etcd_prefix: '%.80s'; allowed: what keys begin with, like /phub, without / at its end",
		prefix);
	return config_at(config, "etcd_prefix", "etcd_prefix", e);
}

/* Who stands for a root has that above it. Before a rack file says what is. */
static int config_check_root(struct config *config, struct err *e)
{
	char uplink[sizeof(config->uplink)];

	if (!config->root[0])
		return 0;
	snprintf(uplink, sizeof(uplink), CONFIG_UPLINK_ETCD "%s", config->root);
	if (config->uplink[0] && strcmp(config->uplink, uplink) != 0) {
		err_set(e, -EINVAL,
			"root: '%.64s' is above this box while that is not it, and uplink is '%.80s'; leave uplink "
			"empty, or the root to the box that is above",
			config->root, config->uplink);
		return config_at(config, "root", "uplink", e);
	}
	memcpy(config->uplink, uplink, sizeof(uplink));
	return 0;
}

int config_finish(struct config *config, struct err *e)
{
	int rc = config_read_secrets(config, e);

	if (rc < 0)
		return rc;
	config_choose(config);
	rc = config_check_times(config, e);
	if (rc == 0)
		rc = config_check_advertise(config, e);
	if (rc == 0)
		rc = config_check_names(config, e);
	if (rc == 0)
		rc = config_check_root(config, e);
	if (rc == 0)
		rc = config_finish_racks(config, e);
	if (rc == 0)
		rc = config_check_memory(config, e);
	if (rc == 0)
		rc = config_check_slots(config, e);
	if (rc == 0)
		rc = config_check_targets(config, e);
	if (rc == 0)
		rc = config_check_standby(config, e);
	if (rc == 0)
		rc = config_check_uplink(config, e);
	if (rc == 0)
		rc = config_check_hierarchy(config, e);
	if (rc < 0)
		return rc;
	if (config->tls != CONFIG_TLS_OFF && (!config->tls_cert[0] || !config->tls_key[0])) {
		err_set(e, -EINVAL, "tls needs tls_cert and tls_key, the files of the box's certificate and its key");
		return config_at(config, "tls", "tls", e);
	}
	if (config->create == CONFIG_CREATE_SECRET && !config->create_secret.bytes)
		rc = err_set(e, -EINVAL, "create: secret needs create_secret_file or create_secret_env");
	if (config->create == CONFIG_CREATE_NEVER && config->job_count == 0)
		rc = err_set(e, -EINVAL, "create: never needs a list of jobs, or no job could ever run");
	if (rc < 0)
		return config_at(config, "create", "create", e);
	return config_check_public(config, e);
}

/* A value as a YAML scalar: quoted when it is more than a plain word. */
static void config_dump_word(const char *word, size_t length, FILE *out)
{
	bool plain = length > 0;

	for (size_t i = 0; i < length; i++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-", word[i]))
			plain = false;
	if (plain && word[0] != '-' && word[0] != '.') {
		fprintf(out, "%.*s", (int)length, word);
		return;
	}
	fputc('\'', out);
	for (size_t i = 0; i < length; i++)
		fprintf(out, word[i] == '\'' ? "''" : "%c", word[i]);
	fputc('\'', out);
}

static void config_dump_list(const char *text, FILE *out)
{
	fputc('[', out);
	while (*text) {
		size_t length = strcspn(text, ",");

		config_dump_word(text, length, out);
		text += length;
		if (*text == ',') {
			fputs(", ", out);
			text += 1 + strspn(text + 1, " ");
		}
	}
	fputc(']', out);
}

static void config_dump_jobs(const struct config *config, FILE *out)
{
	char text[OPTION_TEXT_BYTES];

	fprintf(out, "jobs:%s\n", config->job_count ? "" : " []");
	for (unsigned i = 0; i < config->job_count; i++) {
		for (unsigned k = 0; k < option_job_count; k++) {
			option_write(&option_job_table[k], &config->jobs[i], text, sizeof(text));
			fprintf(out, "%s%s: ", k ? "    " : "  - ", option_job_table[k].name);
			config_dump_word(text, strlen(text), out);
			fputc('\n', out);
		}
	}
}

void config_dump(const struct config *config, FILE *out)
{
	char text[OPTION_TEXT_BYTES], allowed[512];

	fputs("# Every option of phubd with its value. Save it, change it, and give it to phubd --config.\n", out);
	for (unsigned i = 0; i < option_count; i++) {
		const struct option *o = &option_table[i];

		option_allowed(o, allowed, sizeof(allowed));
		fprintf(out, "\n# %s.\n# Allowed: %s.", o->help, allowed);
		if (o->type != OPTION_JOBS)
			fprintf(out, " Default: %s.", o->fallback[0] ? o->fallback : "empty");
		fputc('\n', out);
		if (o->type == OPTION_JOBS) {
			config_dump_jobs(config, out);
			continue;
		}
		option_write(o, config, text, sizeof(text));
		fprintf(out, "%s: ", o->name);
		if (option_is_list(o))
			config_dump_list(text, out);
		else if (o->type == OPTION_CORES && text[0] == '[')
			fputs(text, out);
		else
			config_dump_word(text, strlen(text), out);
		fputc('\n', out);
	}
}
