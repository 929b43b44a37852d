/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub doctor: looks at what a box or a worker on this machine depends on, one finding a line, worst last in the exit
 * code.
 */
#include "phub/cli/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "aggregation/dispatch.h"
#include "client/url.h"
#include "phub/base/clock.h"
#include "phub/base/cpu.h"
#include "phub/base/mem.h"
#include "phub/cli/admin.h"
#include "phub/cli/args.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"
#include "phub/control/config.h"
#include "topology/discover.h"
#include "transport/dpdk.h"
#include "transport/rails.h"
#include "transport/rdma.h"
#include "transport/stream.h"

void doctor_say(struct doctor *d, const char *what, enum doctor_state state, const char *cure, const char *format, ...)
{
	static const char *const names[] = {"ok", "warn", "fail"};
	char text[1024];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	d->counts[state]++;
	if (d->json) {
		output_json(json_pack(
			"{s:s, s:s, s:s, s:s?}", "check", what, "state", names[state], "text", text, "do", cure));
		return;
	}
	if (d->quiet && state == DOCTOR_OK)
		return;
	printf("%-5s %-12s %s\n", names[state], what, text);
	if (cure)
		printf("%-18s -> %s\n", "", cure);
}

/* The first line of a file of the kernel; "" when there is none. */
static void doctor_read(const char *path, char *out, size_t bytes)
{
	FILE *file = fopen(path, "re");

	out[0] = '\0';
	if (!file)
		return;
	if (fgets(out, (int)bytes, file))
		out[strcspn(out, "\n")] = '\0';
	fclose(file);
}

/* ---- processors ---- */

static void doctor_check_cpus(struct doctor *d)
{
	struct cpu_list *allowed = malloc(sizeof(*allowed));
	long online = sysconf(_SC_NPROCESSORS_ONLN);
	char quota[64];
	long long limit, period;

	if (!allowed || cpu_list_allowed(allowed) < 0)
		doctor_say(d, "cpus", DOCTOR_FAIL, NULL, "the kernel does not say which CPUs may be used");
	else if (allowed->count == 1)
		doctor_say(d, "cpus", DOCTOR_WARN, "give it at least 2 CPUs (taskset, cpuset, container limits)",
			"only CPU %d of %ld may be used: box and workers take turns on it", allowed->cpu[0], online);
	else if ((long)allowed->count < online)
		doctor_say(d, "cpus", DOCTOR_OK, NULL, "%u of %ld CPUs may be used (affinity)", allowed->count, online);
	else
		doctor_say(d, "cpus", DOCTOR_OK, NULL, "%u CPUs may be used", allowed->count);
	free(allowed);
	doctor_read("/sys/fs/cgroup/cpu.max", quota, sizeof(quota));
	if (sscanf(quota, "%lld %lld", &limit, &period) == 2 && limit < online * period)
		doctor_say(d, "quota", DOCTOR_WARN,
			"raise the container's CPU limit, or run phubd with -o poll=adaptive",
			"the cgroup allows %.1f of %ld CPUs: a polling core is stopped when its time is used up",
			(double)limit / (double)period, online);
}

static void doctor_check_isa(struct doctor *d)
{
	const struct kernels *kernels;
	char error[256];

	if (dispatch_from_env(&kernels, error, sizeof(error)) < 0)
		doctor_say(d, "isa", DOCTOR_FAIL, "unset PHUB_ISA", "%s", error);
#if defined(__x86_64__)
	else if (kernels->isa == ISA_BASE)
		doctor_say(d, "isa", DOCTOR_WARN,
			"unset PHUB_ISA, or let the virtual machine have its host's CPU model",
			"kernels without AVX2: sums are 2 to 4 times slower");
#endif
	else
		doctor_say(d, "isa", DOCTOR_OK, NULL, "kernels for %s", kernels->name);
}

static void doctor_check_clock(struct doctor *d)
{
	enum { READS = 20000 };
	uint64_t begin_ns = clock_now_ns(), cost_ns;
	char source[64];

	for (int i = 0; i < READS; i++)
		(void)clock_now_ns();
	cost_ns = (clock_now_ns() - begin_ns) / READS;
	doctor_read("/sys/devices/system/clocksource/clocksource0/current_clocksource", source, sizeof(source));
	doctor_say(d, "clock", cost_ns > 250 ? DOCTOR_WARN : DOCTOR_OK,
		cost_ns > 250 ? "boot with clocksource=tsc, or choose kvm-clock in "
				"/sys/devices/system/clocksource/clocksource0/current_clocksource"
			      : NULL,
		"reading %s costs %" PRIu64 " ns", *source ? source : "the clock", cost_ns);
}

/* ---- limits and memory ---- */

static void doctor_check_files(struct doctor *d)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return;
	if (limit.rlim_max < 4096)
		doctor_say(d, "ulimit -n", DOCTOR_WARN, "ulimit -n 65536 (as root; or LimitNOFILE=65536 in the unit)",
			"%" PRIu64 " open files at most: a worker takes one a box core, and two more",
			(uint64_t)limit.rlim_max);
	else
		doctor_say(d, "ulimit -n", DOCTOR_OK, NULL,
			"%" PRIu64 " open files, %" PRIu64 " at most (phubd takes the most)", (uint64_t)limit.rlim_cur,
			(uint64_t)limit.rlim_max);
}

/* ---- RDMA ---- */

static void doctor_check_port_of(struct doctor *d, const struct rdma_port *p)
{
	char name[RDMA_NAME_BYTES], cure[96];

	rdma_port_name(p, name);
	d->rdma_usable += p->usable;
	if (!p->usable) {
		doctor_say(d, "rdma", DOCTOR_WARN, p->cure, "%s cannot be used: %s", name, p->why);
		return;
	}
	snprintf(cure, sizeof(cure), "ip link set mtu 4200 dev %s, and as much at the switch", p->interface);
	doctor_say(d, "rdma", DOCTOR_OK, p->mtu < 2048 && p->interface[0] ? cure : NULL,
		"%s can be used: %s, %.1f Gbit/s, GID %s (index %d), %u bytes a packet%s", name, p->kind,
		(double)p->rate_mbps / 1000, p->gid, p->gid_index, p->mtu, p->mtu < 2048 ? ", 4096 are better" : "");
}

/* Without devices nothing is said: few machines have any. */
static void doctor_check_rdma(struct doctor *d)
{
	struct rdma_port *ports = calloc(RDMA_PORTS_MAX, sizeof(*ports));
	int count = ports ? rdma_ports_list(ports, RDMA_PORTS_MAX) : -ENOMEM;

	if (count < 0 && count != -ENOSYS)
		doctor_say(d, "rdma", DOCTOR_FAIL, "ls -l /dev/infiniband: is it there, and may this user use it?",
			"RDMA devices cannot be listed: %s", strerror(-count));
	for (int i = 0; i < count && i < RDMA_PORTS_MAX; i++)
		doctor_check_port_of(d, &ports[i]);
	free(ports);
}

/* What a box pins is results, which memory_max bounds, and receive slots, which each port is told of. */
static void doctor_check_locked(struct doctor *d)
{
	struct config *config = malloc(sizeof(*config));
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct rlimit limit;
	uint64_t bytes = 0;
	char cure[160];
	struct err e;

	if (!config || getrlimit(RLIMIT_MEMLOCK, &limit) < 0) {
		free(config);
		return;
	}
	config_init(config);
	if (limit.rlim_cur != RLIM_INFINITY && config_finish(config, &e) == 0)
		bytes = config->memory_max + (d->rdma_usable < RAILS_PORTS_MAX ? d->rdma_usable : RAILS_PORTS_MAX) *
						     config->rdma_slots_memory;
	bytes = (bytes + page - 1) / page * page; /* as the kernel counts */
	if (bytes == 0) {
		doctor_say(d, "ulimit -l", DOCTOR_OK, NULL, "any amount of memory may be locked");
	} else if (!d->rdma_usable || rdma_check_limit(bytes, &e) == 0) {
		doctor_say(d, "ulimit -l", DOCTOR_OK, NULL, "%" PRIu64 " KiB may be locked; %s",
			(uint64_t)limit.rlim_cur >> 10,
			d->rdma_usable ? "enough for RDMA" : "enough, there is no RDMA port that can be used");
	} else {
		snprintf(cure, sizeof(cure),
			"ulimit -l %" PRIu64 " (as root; in a unit LimitMEMLOCK=infinity), or a smaller memory_max",
			bytes >> 10);
		doctor_say(d, "ulimit -l", DOCTOR_WARN, cure,
			"%" PRIu64 " KiB may be locked; a box serves RDMA when it may lock memory_max and, for each "
			"port, rdma_slots_memory: %" PRIu64 " KiB here",
			(uint64_t)limit.rlim_cur >> 10, bytes >> 10);
	}
	config_fini(config);
	free(config);
}

static void doctor_check_huge(struct doctor *d, const struct host *host)
{
	char thp[128];

	doctor_read("/sys/kernel/mm/transparent_hugepage/enabled", thp, sizeof(thp));
	if (host->huge_2m_free)
		doctor_say(d, "huge pages", DOCTOR_OK, NULL, "%" PRIu64 " free of %" PRIu64 " reserved, of 2 MiB each",
			host->huge_2m_free, host->huge_2m_total);
	else if (strstr(thp, "[never]"))
		doctor_say(d, "huge pages", DOCTOR_WARN,
			"echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled; or sudo sysctl "
			"vm.nr_hugepages=1024",
			"none reserved, and transparent ones are off: more time goes to address translation");
	else
		doctor_say(d, "huge pages", DOCTOR_OK, NULL, "none reserved; transparent ones: %s",
			*thp ? thp : "unknown");
}

static void doctor_check_shm(struct doctor *d)
{
	struct mem_region region, other;
	struct err e;
	int rc = mem_region_create(4096, MEM_SHARED, MEM_NODE_ANY, &region, &e);

	if (rc == 0) {
		rc = mem_region_seal(&region, true);
		if (rc == 0) {
			int fd = dup(region.fd);

			rc = mem_region_attach(fd, 4096, false, &other, &e);
			if (rc == 0)
				mem_region_destroy(&other);
			else
				close(fd);
		} else {
			err_set(&e, rc, "cannot seal shared memory: %s", strerror(-rc));
		}
		mem_region_destroy(&region);
	}
	if (rc < 0)
		doctor_say(d, "shm", DOCTOR_FAIL, "use a kernel of at least 5.1, and --transport tcp until then", "%s",
			e.text);
	else
		doctor_say(d, "shm", DOCTOR_OK, NULL, "sealed shared memory works");
}

/* ---- DPDK ---- */

/* Few machines want it: what is not there is told, and no warning; but a plugin that cannot be loaded was meant to be.
 */
static void doctor_check_dpdk(struct doctor *d, const struct host *host)
{
	char raw[DPDK_LACKS_BYTES], admin[DPDK_LACKS_BYTES];
	const struct dpdk_plugin *plugin;
	struct err e;
	int rc = dpdk_load(&plugin, &e);

	if (rc < 0) {
		doctor_say(d, "dpdk", rc == -ENOENT ? DOCTOR_OK : DOCTOR_WARN, NULL, "%s", e.text);
		return;
	}
	dpdk_lacks("net_af_packet", raw);
	dpdk_lacks("net_tap", admin);
	doctor_say(d, "dpdk", DOCTOR_OK,
		*raw || *admin
			? "deploy/systemd/dpdk.conf gives phubd what deploy/dpdk.md (Privileges) says its ports need"
			: NULL,
		"the plugin is there; %s; this process %s%s%s%s",
		host->huge_2m_free ? "huge pages are free" : "no huge page of 2 MiB is free: packets take others",
		*raw || *admin ? "lacks " : "has CAP_NET_RAW and CAP_NET_ADMIN", raw, *raw && *admin ? " and " : "",
		admin);
}

/* ---- the network ---- */

static void doctor_check_congestion(struct doctor *d)
{
	char now[64], allowed[256];

	doctor_read("/proc/sys/net/ipv4/tcp_congestion_control", now, sizeof(now));
	doctor_read("/proc/sys/net/ipv4/tcp_available_congestion_control", allowed, sizeof(allowed));
	if (!strstr(allowed, "cubic"))
		doctor_say(d, "congestion", DOCTOR_WARN,
			"sudo modprobe tcp_cubic, or set the box's option congestion to another",
			"cubic is not there, which phubd asks for; there are: %s", allowed);
	else
		doctor_say(d, "congestion", DOCTOR_OK, NULL,
			"%s is the default here, phubd and its workers set their own (cubic)%s", now,
			strcmp(now, "bbr") == 0 ? "; other programs run at half speed over loopback with bbr" : "");
}

static void doctor_check_buffers(struct doctor *d, const char *what, const char *name)
{
	char path[128], text[128], cure[160];
	uint64_t least, usual, most;

	snprintf(path, sizeof(path), "/proc/sys/net/ipv4/%s", name);
	doctor_read(path, text, sizeof(text));
	if (sscanf(text, "%" SCNu64 " %" SCNu64 " %" SCNu64, &least, &usual, &most) != 3)
		return;
	snprintf(cure, sizeof(cure), "sudo sysctl -w net.ipv4.%s='%" PRIu64 " %" PRIu64 " 16777216'", name, least,
		usual);
	doctor_say(d, what, most < 4 << 20 ? DOCTOR_WARN : DOCTOR_OK, most < 4 << 20 ? cure : NULL,
		"a TCP connection may have %" PRIu64 " KiB of buffer%s", most >> 10,
		most < 4 << 20 ? ": too little for a fast link" : "");
}

/* The port that a box here would listen on, when the one that is asked about is, or would be, on this machine. */
static void doctor_check_port(struct doctor *d, const char *box)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd, on = 1, rc = 0;
	char text[URL_HOST_BYTES + 64], what[32];
	struct url url;

	snprintf(text, sizeof(text), "phub://%.250s/x", box);
	if (url_parse(text, &url, NULL) < 0 || stream_host_is_loopback(url.host) != 1)
		return;
	snprintf(what, sizeof(what), "port %u", url.port);
	address.sin_port = htons(url.port);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		rc = -errno;
	close(fd);
	if (rc == 0)
		doctor_say(d, what, DOCTOR_OK, NULL, "free for a box on this machine");
	else if (rc == -EADDRINUSE)
		doctor_say(d, what, DOCTOR_OK, NULL, "taken; the check of the box below says whether by a box");
	else
		doctor_say(d, what, DOCTOR_FAIL, "run phubd with another port: -o listen=127.0.0.1:7078", "%s",
			strerror(-rc));
}

static void doctor_check_nics(struct doctor *d, const struct host *host)
{
	unsigned up = 0;
	uint64_t mbit = 0;

	for (unsigned i = 0; i < host->nic_count; i++) {
		if (!host->nics[i].up || !host->nics[i].physical)
			continue;
		up++;
		mbit += host->nics[i].speed_mbit;
	}
	if (up && mbit)
		doctor_say(
			d, "nics", DOCTOR_OK, NULL, "%u up, %.1f Gbit/s together as they say", up, (double)mbit / 1000);
	else if (up)
		doctor_say(d, "nics", DOCTOR_OK, NULL, "%u up, of a speed that they do not tell", up);
	else
		doctor_say(d, "nics", DOCTOR_OK, NULL, "none is up: workers of this host alone can reach a box here");
}

/* ---- all of it ---- */

static void doctor_check_machine(struct doctor *d, const char *box)
{
	struct host *host = malloc(sizeof(*host));
	struct err e = {.text = "out of memory"};

	doctor_check_cpus(d);
	doctor_check_isa(d);
	doctor_check_clock(d);
	doctor_check_files(d);
	doctor_check_rdma(d);
	doctor_check_locked(d);
	doctor_check_shm(d);
	if (!host || discover_host(NULL, host, &e) < 0) {
		doctor_say(d, "hardware", DOCTOR_FAIL, NULL, "%s", e.text);
	} else {
		doctor_check_huge(d, host);
		doctor_check_dpdk(d, host);
		doctor_check_nics(d, host);
	}
	free(host);
	doctor_check_congestion(d);
	doctor_check_buffers(d, "tcp_rmem", "tcp_rmem");
	doctor_check_buffers(d, "tcp_wmem", "tcp_wmem");
	doctor_check_port(d, box);
}

int doctor_run(int argc, char **argv)
{
	struct doctor d = {0};
	const struct args_option options[] = {
		{"quiet", NULL, "only what is not well", ARGS_FLAG, &d.quiet, 0, 0, NULL},
		{"json", NULL, "one JSON object a line", ARGS_FLAG, &d.json, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {
		.command = "phub doctor",
		.words = "[HOST:PORT]",
		.about = "Checks this machine: CPUs, instruction sets, clock, limits, shared memory, huge pages, TCP, "
			 "RDMA, DPDK. With\n"
			 "HOST:PORT also whether a box answers there, how fast, over which transports, whether its "
			 "data ports "
			 "can be\n"
			 "reached from here, and which workers its jobs wait for. Ends with 1 when a check fails.\n",
		.examples = "  phub doctor\n  phub doctor box1:7077\n  phub doctor --quiet --json\n",
		.words_max = 1,
		.options = options,
	};
	const char *box;
	struct args_words words;
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc == ARGS_GO_ON && words.count)
		rc = admin_check_address(&usage, words.at[0]);
	if (rc != ARGS_GO_ON)
		return rc;
	box = words.count ? words.at[0] : ADMIN_ADDRESS_DEFAULT;
	doctor_check_machine(&d, box);
	doctor_check_box(&d, box, words.count > 0);
	if (!d.json)
		printf("%u ok, %u warning%s, %u failed\n", d.counts[DOCTOR_OK], d.counts[DOCTOR_WARN],
			d.counts[DOCTOR_WARN] == 1 ? "" : "s", d.counts[DOCTOR_FAIL]);
	return d.counts[DOCTOR_FAIL] ? CLI_FAILED : CLI_DONE;
}
