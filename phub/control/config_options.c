/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of options. A new option is a field in config.h and a line here; file, -o, --dump-config and the texts
 * of errors follow.
 */
#include "phub/control/config_options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/suggest.h"
#include "phub/control/config_values.h"
#include "phub/fair.h"

#define FIELD(f)     offsetof(struct config, f), sizeof(((struct config *)0)->f)
#define JOB_FIELD(f) offsetof(struct config_job, f), sizeof(((struct config_job *)0)->f)

const struct option option_table[] = {
	{"listen", OPTION_LISTEN, FIELD(listen), 0, 0, {NULL}, "127.0.0.1:7077",
		"addresses of the control sessions, as host:port or [ipv6]:port; port 0 takes a free one; * is every "
		"address"},
	{"interface", OPTION_STRING, FIELD(interface), 0, 0, {NULL}, "", "network interface to serve; empty for any"},
	{"rdma", OPTION_STRING, FIELD(rdma), 0, 0, {NULL}, "",
		"RDMA ports for transport verbs, as DEVICE[:PORT][@GID],...; empty for all that can be used"},
	{"rdma_pushes", OPTION_CHOICE, FIELD(rdma_pushes), 0, 0, {"slots", "fixed", NULL}, "slots",
		"where pushes over verbs go: slots that a job's workers share, or fixed buffers, to which workers may "
		"write at any time; fixed is to compare, on trusted networks only: it gives every worker a key to "
		"memory of the box, in one protection domain for the jobs of all tenants"},
	{"rdma_dscp", OPTION_NUMBER, FIELD(rdma_dscp), 0, 63, {NULL}, "0",
		"DSCP of what the box sends over RoCE v2, for switches and NICs that give it a class of its own (26, "
		"often); 0: best effort"},
	{"rdma_slots_memory", OPTION_BYTES, FIELD(rdma_slots_memory), 1 << 20, UINT64_MAX, {NULL}, "auto",
		"receive slots for transport verbs that a box registers at start on each NUMA node of its cores; auto "
		"is a "
		"32nd of memory_max, 4 MiB to 1 GiB. When they are taken it registers more, within memory_max"},
	{"data_ports", OPTION_PORTS, FIELD(port_first), 0, 0, {NULL}, "7100-7131",
		"ports that data connections over tcp, udp and dpdk may be listened on: of tcp one for each address of "
		"listen, of udp and dpdk as many as cores, each, and of dpdk twice that where uplink_transport is "
		"dpdk; a firewall opens these and those of listen"},
	{"datagram_mtu", OPTION_NUMBER, FIELD(datagram_mtu), 1280, 65535, {NULL}, "65535",
		"bytes of the largest IP packet that transports udp and dpdk send, where a way carries more; what "
		"comes "
		"through is tried at each connection"},
	{"dpdk_ports", OPTION_WORDS, FIELD(dpdk_ports), 0, 0, {NULL}, "",
		"ports for transport dpdk, at most 16, with semicolons between them, each as DEVICE@ADDRESS/PREFIX, "
		"then, as may be, ,gw=ADDRESS ,mac=MAC ,mtu=BYTES "
		",port=UDP; DEVICE is EAL's, with arguments; without an address, that of the kernel's interface"},
	{"dpdk_eal", OPTION_WORDS, FIELD(dpdk_eal), 0, 0, {NULL}, "",
		"more arguments for DPDK's EAL, separated by blanks"},
	{"transports", OPTION_NAMES, FIELD(transports), 0, 0, {NULL}, "tcp, shm", "ways that gradients may come in"},
	{"cores", OPTION_CORES, FIELD(core_count), 1, CONFIG_CORES_MAX, {NULL}, "auto",
		"polling threads: auto (half of the CPUs, at most 8), a count, or a list of CPUs to pin them to. A "
		"count is pinned when poll is busy"},
	{"poll", OPTION_CHOICE, FIELD(poll), 0, 0, {"adaptive", "busy", NULL}, "adaptive",
		"busy never sleeps and is for a dedicated box; adaptive sleeps when nothing comes"},
	{"spin_us", OPTION_NUMBER, FIELD(spin_us), 1, 1000000, {NULL}, "50",
		"adaptive: microseconds of polling before sleeping"},
	{"memory_max", OPTION_BYTES, FIELD(memory_max), 1 << 20, UINT64_MAX, {NULL}, "auto",
		"memory of all jobs together, at most what this machine or container has; auto is half of that"},
	{"huge_pages", OPTION_SWITCH, FIELD(huge_pages), 0, 0, {NULL}, "true",
		"use 2 MiB pages for jobs when there are any"},
	{"stores", OPTION_CHOICE, FIELD(stores), 0, 0, {"auto", "cached", "streamed", NULL}, "auto",
		"for measurements: how results that workers map are written; auto streams those of rounds larger than "
		"a core's second-level cache past the caches"},
	{"chunk_bytes", OPTION_POWER, FIELD(chunk_bytes), CHUNKING_CHUNK_BYTES_MIN, CHUNKING_CHUNK_BYTES_MAX, {NULL},
		"32KiB",
		"unit of transfer and summation of jobs that do not name their own; alike at all boxes of such a job"},
	{"window", OPTION_NUMBER, FIELD(window), 2, 4096, {NULL}, "64", "chunks that a connection may have in flight"},
	{"congestion", OPTION_STRING, FIELD(congestion), 0, 0, {NULL}, "cubic",
		"congestion control of data connections over tcp"},
	{"datagram_seal", OPTION_CHOICE, FIELD(datagram_seal), 0, 0, {"gmac", "crc", "none", NULL}, "gmac",
		"least seal of datagrams that a job may ask for: gmac, which only its own workers and the box can "
		"make, crc, which tells damage alone, or none; less than gmac only on racks where everybody is "
		"trusted. A job that asks for nothing has gmac"},
	{"data_encryption", OPTION_CHOICE, FIELD(data_encryption), 0, 0, {"off", "allow", "require", NULL}, "allow",
		"gradients and results encrypted wherever they leave the host (AES-256-GCM): allow has it for jobs "
		"that "
		"ask for it and costs others nothing, require refuses those that do not, off those that do. A job that "
		"asks needs a secret"},
	{"heartbeat_ms", OPTION_NUMBER, FIELD(heartbeat_ms), 10, 600000, {NULL}, "1000",
		"workers say at least so often that they live"},
	{"warn_ms", OPTION_NUMBER, FIELD(warn_ms), 10, 3600000, {NULL}, "2000",
		"a worker that is silent for so long is named to the others"},
	{"lost_ms", OPTION_NUMBER, FIELD(lost_ms), 20, 3600000, {NULL}, "10000",
		"a worker that is silent for so long is lost, and its job ends; results that are complete still go "
		"out, for as long again but 5 s at most. Workers of a sharded or chained job whose sums are with a box "
		"that was lost wait for its results so long, and hear why the job ended then. A data connection that "
		"broke (RDMA) has so long to be made "
		"anew"},
	{"wait_ms", OPTION_NUMBER, FIELD(wait_ms), 100, 86400000, {NULL}, "300000",
		"a job that waits for another worker in place of one that was lost does so for this long, when it "
		"names no time itself"},
	{"standby_keep_ms", OPTION_NUMBER, FIELD(standby_keep_ms), 1000, 86400000, {NULL}, "600000",
		"of a standby: the copy of a job whose box was lost waits for the job's workers for so long"},
	{"checkpoint_targets", OPTION_WORDS, FIELD(checkpoint_targets), 0, 0, {NULL}, "",
		"directories for checkpoints of jobs with an optimizer, with commas between them; each on a disk of "
		"its "
		"own where there is parity; empty for none. A job that comes again after a crash, or after it was "
		"lost, goes on from its last one"},
	{"checkpoint_parity", OPTION_NUMBER, FIELD(checkpoint_parity), 0, 31, {NULL}, "0",
		"so many of the checkpoint_targets may be lost or rotten (Reed-Solomon); 0 with one target"},
	{"checkpoint_every", OPTION_NUMBER, FIELD(checkpoint_every), 0, 1000000000, {NULL}, "0",
		"rounds between checkpoints; 0: so often that rounds are slower by checkpoint_overhead at most"},
	{"checkpoint_overhead", OPTION_NUMBER, FIELD(checkpoint_overhead), 1, 1000, {NULL}, "35",
		"thousandths of the time of rounds that checkpoints may take"},
	{"checkpoint_keep", OPTION_NUMBER, FIELD(checkpoint_keep), 1, 1000000, {NULL}, "2",
		"checkpoints of a job that are kept"},
	{"checkpoint_rate", OPTION_BYTES, FIELD(checkpoint_rate), 1 << 20, UINT64_MAX, {NULL}, "auto",
		"bytes a second that a checkpoint is written with at most, of each job; auto is no limit"},
	{"standby", OPTION_STRING, FIELD(standby), 0, 0, {NULL}, "",
		"another box, as host:port, or phubs://host:port where its control sessions are to be TLS, that keeps "
		"a "
		"copy of each job with sync bsp: a round's results go out when it has the round, and when this box is "
		"lost the workers go on there. It has as many cores and the same secrets, and what is encrypted is so "
		"on its way there; empty for none"},
	{"standby_advertise", OPTION_STRING, FIELD(standby_advertise), 0, 0, {NULL}, "",
		"host:port by which workers reach the standby, where it is another than the box's"},
	{"uplink", OPTION_LIST, FIELD(uplink), 0, 0, {NULL}, "",
		"the box above, as host:port, or phubs://host:port where control sessions are to be TLS, or etcd:NAME, "
		"as it is announced there, wherever it is then: this one sums what its workers push and takes part "
		"there with the sum, in each job, whose world is counted over all boxes, but for jobs whose workers "
		"say that they are this box's alone (here, in phub.h); with the same secrets; empty for none. More, "
		"behind commas: boxes that phub promote may make the root in its place, which are called in turn when "
		"it does not answer (this box is left out); all of them have the same checkpoint_targets"},
	{"root", OPTION_STRING, FIELD(root), 0, 0, {NULL}, "",
		"the name of a root that this box stands for, with others, in etcd: one of them is it, and when that "
		"one dies another is, a lease (etcd_ttl_ms) later, and goes on from its checkpoints where "
		"checkpoint_targets are the same; as long as it is not this one it is above this one, as with uplink: "
		"etcd:NAME. Empty for none"},
	{"uplink_type", OPTION_CHOICE, FIELD(uplink_type), 0, 0, {"f32", "f16", "bf16", NULL}, "f32",
		"what sums are sent to the box above as: f16 and bf16 are half of the bytes, and round a sum once on "
		"each link up, by at most 2^-11 and 2^-8 of it; f16 by 2^-25 where that is more, and to infinity from "
		"65520 on, for which nan does not look; results come down in the job's own type; the same at all "
		"boxes of a job"},
	{"uplink_transport", OPTION_CHOICE, FIELD(uplink_transport), 0, 0,
		{"auto", "dpdk", "shm", "tcp", "udp", "verbs", NULL}, "auto",
		"what sums go by to the box above, and to others of sharded and chain, which must have it, or dpdk for "
		"udp and udp for dpdk, "
		"among their transports; whatever their workers and this one's come by: auto, shm where both boxes "
		"have "
		"that and are one user's on one host, verbs where both have that, and RDMA ports in one network, else "
		"tcp. To a standby it is tcp"},
	{"hierarchy", OPTION_CHOICE, FIELD(hierarchy), 0, 0, {"tree", "sharded", "chain", "auto", NULL}, "tree",
		"of jobs that have boxes below this one, the top box: tree, all chunks end here; sharded, each ends at "
		"one of the boxes, to which the others send it; chain, likewise, and it passes from box to box on its "
		"way; auto, the one of these that the job's bytes are soonest done by, over links as the rack file "
		"has them, and tree where the job has checkpoints, which others have not"},
	{"advertise", OPTION_STRING, FIELD(advertise), 0, 0, {NULL}, "",
		"host:port by which other boxes of sharded and chain reach this one; empty: where it listens first, "
		"loopback aside, or, where that is at all addresses, at the one that it calls the box above from"},
	{"racks", OPTION_FILE, FIELD(racks_file), 0, 0, {NULL}, "",
		"the rack file, which says what boxes there are, in which racks, and what links them (phub topo "
		"--racks): by it a box without uplink has the file's first box above it, unless it is that itself, or "
		"the one of the others that was promoted in its place, "
		"and homes of chunks are chosen; an uplink that is set comes before the file's. Empty for none"},
	{"box", OPTION_STRING, FIELD(box), 0, 0, {NULL}, "",
		"the name of this box in the rack file and in etcd; empty: of the one in the file whose address is "
		"advertise, or where this one listens; without a file, that address"},
	{"etcd", OPTION_LIST, FIELD(etcd), 0, 0, {NULL}, "",
		"URLs of etcd, to which this box and its jobs are announced while it lives, as http://host:port or "
		"https://, of several of one cluster with commas between them; empty for none. Jobs do not depend on "
		"it, but where root is set"},
	{"etcd_prefix", OPTION_STRING, FIELD(etcd_prefix), 0, 0, {NULL}, "/phub", "what keys there begin with"},
	{"etcd_ttl_ms", OPTION_NUMBER, FIELD(etcd_ttl_ms), 2000, 3600000, {NULL}, "10000",
		"a box that has died is gone from there after so long (its lease), in whole seconds; it says three "
		"times as often that it lives"},
	{"etcd_secret_file", OPTION_FILE, FIELD(etcd_secret.file), 0, 0, {NULL}, "",
		"file with user:password of etcd, or a token; empty where it asks for none"},
	{"etcd_secret_env", OPTION_ENV, FIELD(etcd_secret.env), 0, 0, {NULL}, "", "environment variable with it"},
	{"etcd_ca", OPTION_FILE, FIELD(etcd_ca), 0, 0, {NULL}, "",
		"PEM file with the authorities of https to etcd; empty for those of this system"},
	{"rack", OPTION_STRING, FIELD(rack), 0, 0, {NULL}, "",
		"name of the rack that it is in, for etcd; empty: as the rack file says"},
	{"hostbox_fd", OPTION_NUMBER, FIELD(hostbox_fd), 0, 1 << 20, {NULL}, "0",
		"for workers with hostbox=auto in their URL, which start a phubd on their own host: the descriptor of "
		"a Unix socket that listens, where the workers of the host learn where this box is, which ends when "
		"they have gone; 0: none"},
	{"hostbox_linger_ms", OPTION_NUMBER, FIELD(hostbox_linger_ms), 0, 3600000, {NULL}, "2000",
		"such a box ends when no worker has been there for so long"},
	{"handshake_ms", OPTION_NUMBER, FIELD(handshake_ms), 10, 600000, {NULL}, "5000",
		"a stranger that has not proved itself by then is closed"},
	{"handshake_rate", OPTION_NUMBER, FIELD(handshake_rate), 0, 1000000, {NULL}, "1000",
		"control sessions, and for each core data connections, a second that strangers may begin, all "
		"together; four seconds' worth at once; 0: any. Who proves itself does not count"},
	{"handshake_rate_source", OPTION_NUMBER, FIELD(handshake_rate_source), 0, 1000000, {NULL}, "100",
		"likewise from one address, or one /64 of IPv6"},
	{"sessions_max", OPTION_NUMBER, FIELD(sessions_max), 1, 65536, {NULL}, "4096", "control sessions at once"},
	{"jobs_max", OPTION_NUMBER, FIELD(jobs_max), 1, CONFIG_JOBS_MAX, {NULL}, "256", "jobs at once"},
	{"keys_max", OPTION_NUMBER, FIELD(keys_max), 1, 16u << 20, {NULL}, "1048576", "keys of one job"},
	{"log_level", OPTION_CHOICE, FIELD(log_level), 0, 0, {"error", "warn", "info", "debug", NULL}, "info",
		"what is logged to stderr"},
	{"create", OPTION_CHOICE, FIELD(create), 0, 0, {"same-uid", "secret", "never", NULL}, "same-uid",
		"who may create jobs that are not listed: this user over loopback, whoever proves create_secret, or "
		"nobody"},
	{"create_secret_file", OPTION_FILE, FIELD(create_secret.file), 0, 0, {NULL}, "",
		"file with the secret for create: secret"},
	{"create_secret_env", OPTION_ENV, FIELD(create_secret.env), 0, 0, {NULL}, "", "environment variable with it"},
	{"admin_secret_file", OPTION_FILE, FIELD(admin_secret.file), 0, 0, {NULL}, "",
		"file with the secret of `phub jobs` from elsewhere; this user over loopback needs none"},
	{"admin_secret_env", OPTION_ENV, FIELD(admin_secret.env), 0, 0, {NULL}, "", "environment variable with it"},
	{"tls", OPTION_CHOICE, FIELD(tls), 0, 0, {"off", "allow", "require", NULL}, "off",
		"TLS 1.3 of control sessions, on the same port: off, for workers that want it, or for all; it hides "
		"and "
		"seals control sessions alone, not gradients"},
	{"tls_cert", OPTION_FILE, FIELD(tls_cert), 0, 0, {NULL}, "",
		"PEM file with the box's certificate, and those between it and its authority"},
	{"tls_key", OPTION_FILE, FIELD(tls_key), 0, 0, {NULL}, "",
		"PEM file with the certificate's private key, without a password; its owner alone may open it"},
	{"user", OPTION_STRING, FIELD(user), 0, 0, {NULL}, "",
		"user that phubd becomes once all is open, when root starts it; then it keeps only the capabilities "
		"that "
		"its transports need. Empty: as it was started"},
	{"group", OPTION_STRING, FIELD(group), 0, 0, {NULL}, "", "group likewise; empty for that of user"},
	{"jobs", OPTION_JOBS, FIELD(jobs), 0, CONFIG_JOBS_MAX, {NULL}, "",
		"jobs with rules of their own: - {name: n, secret_file: f, secret_env: v, world: 0, memory_max: auto, "
		"weight: 1, cores: 0, bandwidth: none, hierarchy: box}"},
};
const unsigned option_count = sizeof(option_table) / sizeof(option_table[0]);
_Static_assert(sizeof(option_table) / sizeof(option_table[0]) <= CONFIG_OPTIONS_MAX, "config.lines is too short");

const struct option option_job_table[] = {
	{"name", OPTION_STRING, JOB_FIELD(name), 0, 0, {NULL}, "", "as in phub://host/name"},
	{"secret_file", OPTION_FILE, JOB_FIELD(secret.file), 0, 0, {NULL}, "",
		"file with the secret that its workers prove"},
	{"secret_env", OPTION_ENV, JOB_FIELD(secret.env), 0, 0, {NULL}, "", "environment variable with it"},
	{"world", OPTION_NUMBER, JOB_FIELD(world), 0, WIRE_WORLD_MAX, {NULL}, "0", "number of workers; 0: as they say"},
	{"memory_max", OPTION_BYTES, JOB_FIELD(memory_max), 1 << 16, UINT64_MAX, {NULL}, "auto",
		"at most so much memory of the box; auto: all of it"},
	{"weight", OPTION_NUMBER, JOB_FIELD(weight), 1, FAIR_WEIGHT_MAX, {NULL}, "1",
		"its share of a core on which several jobs have more to do than the core can"},
	{"cores", OPTION_NUMBER, JOB_FIELD(cores), 0, CONFIG_CORES_MAX, {NULL}, "0",
		"its chunks are placed on at most so many cores; 0: all"},
	{"bandwidth", OPTION_RATE, JOB_FIELD(bandwidth), 1 << 20, UINT64_MAX >> 1, {NULL}, "none",
		"at most so many bytes a second that its workers push, all together"},
	{"hierarchy", OPTION_CHOICE, JOB_FIELD(hierarchy), 0, 0, {"box", "tree", "sharded", "chain", "auto", NULL},
		"box", "how it is summed over several boxes; box: as the box's option says"},
};
const unsigned option_job_count = sizeof(option_job_table) / sizeof(option_job_table[0]);

enum {
	OPTION_NAMES_MAX = 16,     /* so many names are told, */
	OPTION_NEAR_MAX = 4,       /* of more the nearest, */
	OPTION_NEAR_DISTANCE = 22, /* so far at most: a third of the longest word that suggest.h looks at */
};

const struct option *option_find(const struct option *table, unsigned count, const char *name)
{
	for (unsigned i = 0; i < count; i++)
		if (strcmp(table[i].name, name) == 0)
			return &table[i];
	return NULL;
}

bool option_is_list(const struct option *option)
{
	return option->type == OPTION_LISTEN || option->type == OPTION_NAMES || option->type == OPTION_LIST;
}

static void option_names(const struct option *table, unsigned count, char *out, size_t bytes)
{
	size_t at = (size_t)snprintf(out, bytes, "allowed: ");

	for (unsigned i = 0; i < count && at < bytes; i++)
		at += (size_t)snprintf(out + at, bytes - at, "%s%s", i ? ", " : "", table[i].name);
}

void option_suggest(const struct option *table, unsigned count, const char *name, char *out, size_t bytes)
{
	static const char whole[] = "phubd --dump-config says all";
	unsigned found = 0;
	size_t at = 0;

	if (count <= OPTION_NAMES_MAX) {
		option_names(table, count, out, bytes);
		return;
	}
	for (unsigned distance = 0; distance < OPTION_NEAR_DISTANCE; distance++)
		for (unsigned i = 0; i < count && found < OPTION_NEAR_MAX && at < bytes; i++) {
			struct suggest near = {.word = name};

			suggest_offer(&near, table[i].name);
			if (!near.best || near.distance != distance)
				continue;
			at += (size_t)snprintf(out + at, bytes - at, "%s%s", found++ ? ", " : "near it: ", near.best);
		}
	if (at < bytes)
		snprintf(out + at, bytes - at, "%s%s", found ? "; " : "", whole);
}

static void option_allowed_range(const struct option *o, char *out, size_t bytes)
{
	char min[32], max[32];

	if (o->type == OPTION_NUMBER) {
		snprintf(out, bytes, "%" PRIu64 " to %" PRIu64, o->min, o->max);
		return;
	}
	value_write_bytes(o->min, min, sizeof(min));
	value_write_bytes(o->max, max, sizeof(max));
	if (o->type == OPTION_RATE)
		snprintf(out, bytes, "none, or bytes a second from %s, like 1GiB (units: KiB, MiB, GiB, TiB)", min);
	else if (o->type == OPTION_POWER)
		snprintf(out, bytes, "powers of two from %s to %s", min, max);
	else
		snprintf(out, bytes, "auto, or bytes from %s, like 8GiB (units: KiB, MiB, GiB, TiB)", min);
}

static void option_allowed_words(const char *const *words, char *out, size_t bytes)
{
	size_t at = 0;

	for (unsigned i = 0; words[i] && at < bytes; i++)
		at += (size_t)snprintf(out + at, bytes - at, "%s%s", i ? ", " : "", words[i]);
}

void option_allowed(const struct option *o, char *out, size_t bytes)
{
	out[0] = '\0';
	switch (o->type) {
	case OPTION_LISTEN:
		snprintf(out, bytes, "1 to %u of host:port or [ipv6]:port, ports 0 to 65535", CONFIG_LISTEN_MAX);
		break;
	case OPTION_STRING:
		snprintf(out, bytes, "a word of at most %zu characters", o->bytes - 1);
		break;
	case OPTION_LIST:
		snprintf(out, bytes, "a list of words, of at most %zu characters together", o->bytes - 1);
		break;
	case OPTION_WORDS:
		snprintf(out, bytes, "words of at most %zu characters together, printable ASCII", o->bytes - 1);
		break;
	case OPTION_PORTS:
		snprintf(out, bytes, "any, or first-last within 1-65535");
		break;
	case OPTION_NAMES:
		option_allowed_words(value_transports, out, bytes);
		strncat(out, ", each once", bytes - strlen(out) - 1);
		break;
	case OPTION_CORES:
		snprintf(out, bytes,
			"auto, a count of %" PRIu64 " to %" PRIu64 ", or a list of CPUs in brackets like [2, 4-7]",
			o->min, o->max);
		break;
	case OPTION_CHOICE:
		option_allowed_words(o->choices, out, bytes);
		break;
	case OPTION_NUMBER:
	case OPTION_POWER:
	case OPTION_BYTES:
	case OPTION_RATE:
		option_allowed_range(o, out, bytes);
		break;
	case OPTION_SWITCH:
		snprintf(out, bytes, "true, false");
		break;
	case OPTION_FILE:
		snprintf(out, bytes, "a path of at most %zu characters, printable ASCII", o->bytes - 1);
		break;
	case OPTION_ENV:
		snprintf(out, bytes, "a name of letters, digits and _, at most %zu of them", o->bytes - 1);
		break;
	case OPTION_JOBS:
		snprintf(out, bytes,
			"a list of at most %u mappings with name, secret_file, secret_env, world, memory_max, weight, "
			"cores, bandwidth, hierarchy",
			CONFIG_JOBS_MAX);
		break;
	}
}

static int option_read_number(const struct option *o, void *field, const char *text)
{
	uint64_t value;
	int rc;

	if ((o->type == OPTION_BYTES && strcmp(text, "auto") == 0) ||
		(o->type == OPTION_RATE && strcmp(text, "none") == 0))
		value = 0;
	else {
		rc = o->type == OPTION_NUMBER ? value_read_number(text, &value) : value_read_bytes(text, &value);
		if (rc < 0)
			return rc;
		if (value < o->min || value > o->max)
			return -ERANGE;
		if (o->type == OPTION_POWER && (value & (value - 1)))
			return -ERANGE;
	}
	if (o->bytes == sizeof(uint32_t)) {
		uint32_t narrow = (uint32_t)value;

		memcpy(field, &narrow, sizeof(narrow));
	} else {
		memcpy(field, &value, sizeof(value));
	}
	return 0;
}

static int option_read_choice(const struct option *o, void *field, const char *text)
{
	for (unsigned i = 0; o->choices[i]; i++) {
		if (strcmp(text, o->choices[i]) == 0) {
			memcpy(field, &i, sizeof(i));
			return 0;
		}
	}
	return -EINVAL;
}

static int option_read_text(const struct option *o, char *field, const char *text)
{
	size_t length = strlen(text);

	if (length >= o->bytes)
		return -EINVAL;
	for (size_t i = 0; i < length; i++) {
		unsigned char c = (unsigned char)text[i];
		bool name = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';

		if (c < 0x20 || c > 0x7e || (o->type == OPTION_STRING && c == ' ') || (o->type == OPTION_ENV && !name))
			return -EINVAL;
	}
	memcpy(field, text, length + 1);
	return 0;
}

static int option_read_switch(bool *field, const char *text)
{
	if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
		return -EINVAL;
	*field = text[0] == 't';
	return 0;
}

static int option_read_value(const struct option *o, void *base, const char *text, struct err *why)
{
	void *field = (char *)base + o->offset;

	switch (o->type) {
	case OPTION_LISTEN:
		return value_read_listen(base, text, why);
	case OPTION_PORTS:
		return value_read_ports(base, text);
	case OPTION_NAMES:
		return value_read_transports(base, text, why);
	case OPTION_CORES:
		return value_read_cores(base, text, why);
	case OPTION_STRING:
	case OPTION_WORDS:
	case OPTION_LIST:
	case OPTION_FILE:
	case OPTION_ENV:
		return option_read_text(o, field, text);
	case OPTION_CHOICE:
		return option_read_choice(o, field, text);
	case OPTION_NUMBER:
	case OPTION_POWER:
	case OPTION_BYTES:
	case OPTION_RATE:
		return option_read_number(o, field, text);
	case OPTION_SWITCH:
		return option_read_switch(field, text);
	case OPTION_JOBS:
		break;
	}
	return -EINVAL;
}

/* Without blanks around it, and quotes: its length. */
static size_t option_trim(const char **item, size_t length)
{
	const char *p = *item;

	for (; length > 0 && *p == ' '; length--)
		p++;
	while (length > 0 && p[length - 1] == ' ')
		length--;
	if (length >= 2 && (*p == '\'' || *p == '"') && p[length - 1] == *p) {
		p++;
		length -= 2;
	}
	*item = p;
	return length;
}

/*
 * A list as YAML has it in one line, and as config_dump() writes it: "a,b" of "['a', b]". Returns `out`, or the text
 * itself where it is no such list, as an address like [::1]:7077 is none.
 */
static const char *option_unwrap(const char *text, char *out, size_t bytes)
{
	size_t length = strlen(text), at = 0;
	const char *end, *item = text + 1;

	if (length < 2 || length >= bytes || text[0] != '[' || text[length - 1] != ']')
		return text;
	end = text + length - 1;
	while (item < end) {
		size_t whole = strcspn(item, ",");
		const char *plain = item;

		whole = whole < (size_t)(end - item) ? whole : (size_t)(end - item);
		length = option_trim(&plain, whole);
		memcpy(out + at, plain, length);
		at += length;
		item += whole;
		if (item < end)
			out[at++] = *item++;
	}
	out[at] = '\0';
	return out;
}

int option_read(const struct option *o, void *base, const char *text, struct err *e)
{
	struct err why = {.code = 0};
	char allowed[256], list[OPTION_TEXT_BYTES];
	const char *plain = option_is_list(o) ? option_unwrap(text, list, sizeof(list)) : text;
	int rc = option_read_value(o, base, plain, &why);

	if (rc == 0)
		return 0;
	option_allowed(o, allowed, sizeof(allowed));
	return err_set(e, -EINVAL, "%s: '%.64s%s' is %s%s%s; allowed: %s", o->name, text,
		strlen(text) > 64 ? "..." : "", rc == -ERANGE ? "out of range" : "not understood", why.code ? ": " : "",
		why.code ? why.text : "", allowed);
}

static void option_write_number(const struct option *o, const void *field, char *out, size_t bytes)
{
	uint64_t value = 0;
	uint32_t narrow;

	if (o->bytes == sizeof(narrow)) {
		memcpy(&narrow, field, sizeof(narrow));
		value = narrow;
	} else {
		memcpy(&value, field, sizeof(value));
	}
	if (o->type == OPTION_NUMBER)
		snprintf(out, bytes, "%" PRIu64, value);
	else if (value == 0)
		snprintf(out, bytes, o->type == OPTION_RATE ? "none" : "auto");
	else
		value_write_bytes(value, out, bytes);
}

void option_write(const struct option *o, const void *base, char *out, size_t bytes)
{
	const void *field = (const char *)base + o->offset;
	unsigned choice;

	out[0] = '\0';
	switch (o->type) {
	case OPTION_LISTEN:
		value_write_listen(base, out, bytes);
		break;
	case OPTION_PORTS:
		value_write_ports(base, out, bytes);
		break;
	case OPTION_NAMES:
		value_write_transports(base, out, bytes);
		break;
	case OPTION_CORES:
		value_write_cores(base, out, bytes);
		break;
	case OPTION_STRING:
	case OPTION_WORDS:
	case OPTION_LIST:
	case OPTION_FILE:
	case OPTION_ENV:
		snprintf(out, bytes, "%s", (const char *)field);
		break;
	case OPTION_CHOICE:
		memcpy(&choice, field, sizeof(choice));
		snprintf(out, bytes, "%s", o->choices[choice]);
		break;
	case OPTION_NUMBER:
	case OPTION_POWER:
	case OPTION_BYTES:
	case OPTION_RATE:
		option_write_number(o, field, out, bytes);
		break;
	case OPTION_SWITCH:
		snprintf(out, bytes, "%s", *(const bool *)field ? "true" : "false");
		break;
	case OPTION_JOBS:
		break;
	}
}
