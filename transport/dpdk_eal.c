/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DPDK's environment, once per process and for as long as it lives. It is started by a thread of its own, which ends:
 * whoever starts EAL is pinned and becomes its first core, and the threads it makes inherit the signals that are
 * blocked there. What it says goes to the program's log. Control thread, but for the log.
 */
#include <errno.h>
#include <pthread.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <rte_mbuf_pool_ops.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport/dpdk_internal.h"

enum { EAL_ARGS_MAX = 64, EAL_TEXT_MAX = 1024, EAL_MIB_MIN = 64 };

#define EAL_NAME "phub"

static struct {
	bool started;
	int failed; /* it cannot be started a second time */
	bool huge;
	bool asked; /* for its log */
	bool too_many;
	struct dpdk_host host;
	FILE *stream, *noise;
	char *heard; /* what was printed while it started */
	size_t heard_bytes;
	pthread_mutex_t lock; /* of `said` */
	char said[256];       /* the first error since EAL was last asked for something */
	struct err why;       /* it did not start */
	char text[EAL_TEXT_MAX];
	char lcores[32], memory[16];
	char *args[EAL_ARGS_MAX + 1];
	int count;
} eal = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A line of EAL or a driver, of any thread. */
static ssize_t eal_write(void *cookie, const char *text, size_t bytes)
{
	unsigned said = (unsigned)rte_log_cur_msg_loglevel();
	/* What fails is told with its reason by whoever asked for it. All else is for who asks for it: --log-level. */
	enum log_level level = said <= RTE_LOG_CRIT      ? LOG_LEVEL_ERROR
			       : !eal.asked              ? LOG_LEVEL_DEBUG
			       : said <= RTE_LOG_WARNING ? LOG_LEVEL_WARN
							 : LOG_LEVEL_INFO;
	size_t length = bytes;
	char line[256];

	(void)cookie;
	while (length && (text[length - 1] == '\n' || text[length - 1] == ' '))
		length--;
	snprintf(line, sizeof(line), "%.*s", (int)(length < sizeof(line) ? length : sizeof(line) - 1), text);
	if (!line[0])
		return (ssize_t)bytes;
	if (said <= RTE_LOG_ERR) {
		pthread_mutex_lock(&eal.lock);
		if (!eal.said[0])
			memcpy(eal.said, line, sizeof(line));
		pthread_mutex_unlock(&eal.lock);
	}
	eal.host.log(level, line);
	return (ssize_t)bytes;
}

const char *dpdk_eal_said(void)
{
	return eal.said;
}

bool dpdk_eal_huge(void)
{
	return eal.huge;
}

/* Does the packet lie where its number says, counted from the first one? */
static void page_check(struct rte_mempool *pool, void *opaque, void *packet, unsigned index)
{
	uintptr_t *first = opaque;

	(void)pool;
	if (index == 0)
		*first = (uintptr_t)packet;
	else if (*first && (uintptr_t)packet != *first + (uintptr_t)index * (uintptr_t)getpagesize())
		*first = 0;
}

/*
 * net_af_xdp tells the kernel one range: from the pool's first packet on, as many bytes as the packets have, without
 * what is between them. EAL leaves something between them at the ends of pages. Packets further on were beyond that
 * range, and the kernel threw away what was sent in them. A page each leaves nothing; nor does any packet cross a page,
 * which drivers that copy nothing refuse.
 */
struct rte_mempool *dpdk_page_pool(const char *name, unsigned count, int node)
{
	struct rte_pktmbuf_pool_private info = {0};
	struct rte_mempool_objsz size;
	struct rte_mempool *pool;
	uintptr_t first = 0;
	int rc;

	rte_mempool_calc_obj_size(sizeof(struct rte_mbuf), RTE_MEMPOOL_F_NO_SPREAD, &size);
	size.elt_size = (uint32_t)getpagesize() - size.header_size;
	info.mbuf_data_room_size = (uint16_t)(size.elt_size - sizeof(struct rte_mbuf));
	pool = rte_mempool_create_empty(
		name, count, size.elt_size, DPDK_CACHE, sizeof(info), node, RTE_MEMPOOL_F_NO_SPREAD);
	if (!pool)
		return NULL;
	rc = rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), NULL);
	rte_pktmbuf_pool_init(pool, &info);
	if (rc == 0)
		rc = rte_mempool_populate_default(pool);
	if (rc >= 0) {
		rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
		rte_mempool_obj_iter(pool, page_check, &first);
		if (first)
			return pool;
		rc = -ENOMEM; /* in pieces */
	}
	rte_mempool_free(pool);
	rte_errno = -rc;
	return NULL;
}

/* Are there 2 MiB or 1 GiB pages to be had? */
static bool eal_huge_free(void)
{
	static const char *const files[] = {
		"/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
		"/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages",
	};
	unsigned long count = 0;

	for (unsigned i = 0; i < 2; i++) {
		FILE *file = fopen(files[i], "re");
		unsigned long pages = 0;

		if (!file)
			continue;
		if (fscanf(file, "%lu", &pages) == 1)
			count += i == 0 ? pages : pages * 512;
		fclose(file);
	}
	return count * 2 >= EAL_MIB_MIN;
}

static void eal_add(const char *arg)
{
	if (eal.count < EAL_ARGS_MAX)
		eal.args[eal.count++] = (char *)(uintptr_t)arg;
	else
		eal.too_many = true;
}

/* Does the user's own list have this argument? */
static bool eal_has(const char *arg)
{
	for (int i = 0; i < eal.count; i++)
		if (strncmp(eal.args[i], arg, strlen(arg)) == 0)
			return true;
	return false;
}

static bool eal_is_pci(const struct dpdk_spec *spec)
{
	unsigned int a, b, c, d;

	return sscanf(spec->device, "%x:%x:%x.%x", &a, &b, &c, &d) == 4 ||
	       sscanf(spec->device, "%x:%x.%x", &a, &b, &c) == 3;
}

/* The devices that EAL may take by itself: ours, or those that the user lists, and nothing else. */
static void eal_add_devices(const struct dpdk_spec *all, unsigned count)
{
	bool listed = eal_has("-a") || eal_has("--allow") || eal_has("--no-pci");
	bool any = false;

	for (unsigned i = 0; i < count; i++) {
		if (!eal_is_pci(&all[i]))
			continue;
		eal_add("-a");
		eal_add(all[i].device);
		any = true;
	}
	if (!any && !listed)
		eal_add("--no-pci");
}

/* Receive and transmit descriptors, rings and caches, twice: pools are laid out generously. */
static uint64_t eal_bytes(const struct dpdk_nic_config *config, const struct dpdk_spec *all, unsigned count)
{
	unsigned descriptors = config->descriptors ? config->descriptors : DPDK_DESCRIPTORS;
	uint64_t bytes = 0;

	for (unsigned i = 0; i < count; i++) {
		bytes += (uint64_t)config->queues * descriptors * 6 * ((all[i].mtu ? all[i].mtu : RTE_ETHER_MTU) + 512);
		/* Pages for XDP's rings beside. */
		if (strncmp(all[i].device, "net_af_xdp", strlen("net_af_xdp")) == 0)
			bytes += (uint64_t)config->queues * 6 * DPDK_XDP_SLOTS * (uint64_t)getpagesize();
	}
	return bytes;
}

static int eal_arguments(const struct dpdk_nic_config *config, struct err *e)
{
	const struct dpdk_spec *all = config->all ? config->all : &config->spec;
	unsigned all_count = config->all ? config->all_count : 1;
	char *save = NULL;

	eal_add(EAL_NAME);
	if (config->eal && (size_t)snprintf(eal.text, sizeof(eal.text), "%s", config->eal) >= sizeof(eal.text))
		return err_set(e, -E2BIG, "DPDK: the EAL arguments are longer than %d bytes", EAL_TEXT_MAX);
	for (char *word = strtok_r(eal.text, " \t\n", &save); word; word = strtok_r(NULL, " \t\n", &save))
		eal_add(word);
	/* Its first core is no core of ours, and may run anywhere: ours are pinned by themselves. */
	snprintf(eal.lcores, sizeof(eal.lcores), "--lcores=0@%d", sched_getcpu() < 0 ? 0 : sched_getcpu());
	if (!eal_has("--lcores") && !eal_has("-l") && !eal_has("-c"))
		eal_add(eal.lcores);
	if (!eal_has("--no-telemetry") && !eal_has("--telemetry"))
		eal_add("--no-telemetry");
	eal.asked = eal_has("--log-level");
	eal.huge = !eal_has("--no-huge") && eal_huge_free();
	if (!eal.huge && !eal_has("--no-huge"))
		eal_add("--no-huge");
	/* Several processes on one machine must not meet in files; without huge pages the one implies the other. */
	if (!eal_has("--file-prefix") && !eal_has("--proc-type") && !eal_has("--in-memory") && !eal_has("--no-shconf"))
		eal_add(eal.huge ? "--in-memory" : "--no-shconf");
	snprintf(eal.memory, sizeof(eal.memory), "%u",
		(unsigned)(EAL_MIB_MIN + (eal_bytes(config, all, all_count) >> 20)));
	if (!eal.huge && !eal_has("-m") && !eal_has("--socket-mem")) {
		eal_add("-m");
		eal_add(eal.memory);
	}
	eal_add_devices(all, all_count);
	return eal.too_many ? err_set(e, -E2BIG,
				      "DPDK: more than %d EAL arguments, with those that phub adds; shorten "
				      "dpdk_eal, or PHUB_DPDK_EAL",
				      EAL_ARGS_MAX)
			    : 0;
}

/*
 * With wrong arguments EAL prints some hundred lines of usage to stdout, and getopt() what is wrong to stderr. While it
 * starts, both are kept here; nobody can give back the stream, for another thread may be about to print.
 */
static void eal_listen(bool begin)
{
	static FILE *out, *err;

	if (begin && !eal.noise)
		eal.noise = open_memstream(&eal.heard, &eal.heard_bytes);
	if (!eal.noise)
		return;
	fflush(eal.noise);
	if (begin) {
		out = stdout;
		err = stderr;
		stdout = stderr = eal.noise;
	} else {
		stdout = out;
		stderr = err;
	}
}

/* "unrecognized option '--nonsense'", when getopt() said so; else "". */
static void eal_complaint(char *out, size_t bytes)
{
	const char *at = eal.heard ? strstr(eal.heard, EAL_NAME ": ") : NULL;

	snprintf(out, bytes, "%.*s", at ? (int)strcspn(at, "\n") - (int)strlen(EAL_NAME ": ") : 0,
		at ? at + strlen(EAL_NAME ": ") : "");
}

static void *eal_run(void *arg)
{
	int *rc = arg;

	*rc = rte_eal_init(eal.count, eal.args) < 0 ? -rte_errno : 0;
	return NULL;
}

static int eal_init(struct err *e)
{
	sigset_t all, before;
	pthread_t thread;
	int rc, result = -EIO;
	char complaint[128];

	eal_listen(true);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = -pthread_create(&thread, NULL, eal_run, &result);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc < 0) {
		eal_listen(false);
		return err_set(e, rc, "DPDK: no thread to start it");
	}
	pthread_join(thread, NULL);
	eal_listen(false);
	eal_complaint(complaint, sizeof(complaint));
	if (result < 0 && complaint[0])
		return err_set(
			e, result, "DPDK's environment does not start: %s; see dpdk_eal, or PHUB_DPDK_EAL", complaint);
	/* Of others, or what it thinks nobody may miss; but not the usage. */
	if (eal.heard_bytes)
		fprintf(stderr, "%.*s",
			(int)(strstr(eal.heard, "\nUsage: ") ? strstr(eal.heard, "\nUsage: ") - eal.heard
							     : (ptrdiff_t)eal.heard_bytes),
			eal.heard);
	if (result < 0)
		return err_set(e, result, "DPDK's environment does not start: %s%s",
			eal.said[0] ? eal.said : strerror(-result),
			eal.huge ? "" : " (without huge pages; see /proc/sys/vm/nr_hugepages)");
	return 0;
}

int dpdk_eal_start(const struct dpdk_host *host, const struct dpdk_nic_config *config, struct err *e)
{
	int rc;

	if (eal.failed)
		return err_set(e, eal.failed, "DPDK did not start in this process before, and is not tried twice: %s",
			eal.why.text);
	pthread_mutex_lock(&eal.lock);
	eal.said[0] = '\0';
	pthread_mutex_unlock(&eal.lock);
	if (eal.started)
		return 0;
	eal.host = *host;
	eal.stream = fopencookie(NULL, "w", (cookie_io_functions_t){.write = eal_write});
	if (!eal.stream)
		return err_set(e, -ENOMEM, "DPDK: no memory for its log");
	setvbuf(eal.stream, NULL, _IOLBF, 0);
	rte_openlog_stream(eal.stream);
	eal.count = 0;
	eal.too_many = false;
	rc = eal_arguments(config, &eal.why);
	if (rc == 0)
		rc = eal_init(&eal.why);
	eal.started = rc == 0;
	eal.failed = rc;
	return rc < 0 ? err_set(e, rc, "%s", eal.why.text) : 0;
}
