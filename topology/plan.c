/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan: seconds of each resource for one exchange, and the longest of them.
 */
#include "topology/plan.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>

#define PLAN_PCIE_PAYLOAD 256.0 /* bytes in a transaction: the usual maximum */
#define PLAN_PCIE_HEADERS 24.0  /* sequence and framing 4, header with 64-bit address 16, link check 4 */

enum {
	PLAN_IP_BYTES = 20,
	PLAN_TCP_BYTES = 32, /* with timestamps */
	PLAN_UDP_BYTES = 8,
	PLAN_FRAGMENT_BYTES = 104, /* udp, dpdk: headers of a fragment (wire.h: WIRE_DATA_BYTES), */
	PLAN_FRAGMENT_ALIGN = 64,  /* whose bytes are a multiple of this */
	PLAN_ROCE_BYTES = 16,      /* base transport header 12, check 4 */
	PLAN_ROCE_MTU_MAX = 4096,
};

const struct plan_formula plan_formulae[] = {
	{"N, M, C", "workers; bytes of a worker's gradient; bytes of a full chunk"},
	{"m, S", "chunks of a gradient, where small keys share one, else M / C rounded up; S = M / m bytes of a "
		 "message"},
	{"T", "seconds of one exchange = max t + (f - t of the limit, when it is in f) / m + latency"},
	{"", "the resource with max t limits; exchanges/s = 1 / T, of all workers together N / T"},
	{"f", "what a chunk passes one after the other = 2 * max t of box links and worker links (up, then down; "
	      "packets"},
	{"", "follow each other through both) + t of cores + t of worker CPU, the last two only without shared CPUs"},
	{"u(x)", "x units of which each chunk uses one = m / (m / x rounded up): no more than there are chunks"},
	{"e", "wire efficiency = P / (P + headers + frame) * S / (S + 64), frame 38 bytes on Ethernet"},
	{"", "tcp: P = MTU - 52, headers 52; udp, dpdk: P = multiple of 64 <= MTU - 132, headers 132; verbs (RoCE v2): "
	     "P ="},
	{"", "power of two <= MTU - 44, at most 4096, headers 44; shm: e = 1"},
	{"box links", "t = N M / (e * u(NICs) * link), each way at once"},
	{"worker links", "t = M / (e * worker's link)"},
	{"PCIe", "t = N M * (256 + 24) / 256 / (u(NICs) * lanes * GT/s * encoding / 8), transactions of 256 bytes"},
	{"cache lines", "t = 2 N M / 64 / lines per second: in and out through the PCIe-to-cache controllers"},
	{"memory", "t = N M * d / bandwidth, d = arrival + reply + once / N bytes of DRAM per gradient byte"},
	{"", "arrival: shm 1 (read), tcp and udp 2 (written, read), verbs and dpdk 0 (slots stay in cache)"},
	{"", "reply: tcp and udp 2, else 0; once: r with no optimizer, else 2 w (1 + state arrays), and r for f16 and "
	     "bf16;"},
	{"", "w = 4 / bytes of an element on the wire; r = 2 (line read, then written), over shm 1 when results go "
	     "past "
	     "the"},
	{"", "caches: (N + 1) M / u(cores) is more than a core's second-level cache. Of workers on the box nothing is "
	     "counted:"},
	{"", "neither writing gradients nor reading or copying results"},
	{"cores",
		"t = N M * (k + b) / u(cores); k = kernel's ns per byte = arrival + once / N, through measured rates;"},
	{"", "b = byte + (round + message * m) / M, the box's measured ns of the transport"},
	{"worker CPU", "t = M * v, one thread; v = byte + (round + key * keys + message * m) / M, the worker's"},
	{"shared CPUs", "t = N M * (k + b + v) / CPUs, when workers run on the box (--here, shm)"},
	{"ring", "t = 2 (N - 1) / N * M / (e * worker's link), what a ring all-reduce takes at best"},
	{NULL, NULL},
};

static const struct plan_resource_text {
	const char *name, *remedy;
} plan_texts[PLAN_RESOURCE_COUNT] = {
	[PLAN_BOX_LINKS] = {"box links", "NICs, or faster ones, in the box"},
	[PLAN_WORKER_LINKS] = {"worker links", "link rate of every worker"},
	[PLAN_PCIE] = {"PCIe", "PCIe lanes, or a newer generation"},
	[PLAN_CACHE_LINES] = {"cache lines", "sockets: their PCIe-to-cache controllers"},
	[PLAN_MEMORY] = {"memory", "memory channels of the box"},
	[PLAN_CORES] = {"cores", "cores of the box"},
	[PLAN_WORKER_CPU] = {"worker CPU", "speed of a worker's CPU"},
	[PLAN_SHARED_CPUS] = {"shared CPUs", "CPUs that box and workers share"},
};

const char *plan_resource_name(enum plan_resource_kind kind)
{
	return plan_texts[kind].name;
}

const char *plan_resource_remedy(enum plan_resource_kind kind)
{
	return plan_texts[kind].remedy;
}

/* The largest power of two that is not above; 0 for 0. */
static unsigned plan_power_below(unsigned value)
{
	return value ? 1u << (31 - __builtin_clz(value)) : 0;
}

double plan_wire_efficiency(enum plan_transport transport, unsigned mtu, unsigned frame_bytes, double message_bytes)
{
	static const unsigned headers_of[PLAN_TRANSPORT_COUNT] = {
		[PLAN_TCP] = PLAN_IP_BYTES + PLAN_TCP_BYTES,
		[PLAN_UDP] = PLAN_IP_BYTES + PLAN_UDP_BYTES + PLAN_FRAGMENT_BYTES,
		[PLAN_DPDK] = PLAN_IP_BYTES + PLAN_UDP_BYTES + PLAN_FRAGMENT_BYTES,
		[PLAN_VERBS] = PLAN_IP_BYTES + PLAN_UDP_BYTES + PLAN_ROCE_BYTES,
	};
	unsigned headers = headers_of[transport];
	unsigned payload = mtu > headers ? mtu - headers : 0;

	if (transport == PLAN_SHM)
		return 1;
	if (transport == PLAN_UDP || transport == PLAN_DPDK)
		payload -= payload % PLAN_FRAGMENT_ALIGN;
	if (transport == PLAN_VERBS)
		payload = plan_power_below(payload < PLAN_ROCE_MTU_MAX ? payload : PLAN_ROCE_MTU_MAX);
	return (double)payload / ((double)payload + headers + frame_bytes) * message_bytes /
	       (message_bytes + PLAN_HEADER_BYTES);
}

double plan_pcie_bytes_s(unsigned generation, unsigned lanes)
{
	/* Transfers a second, and the share of them that is data: 8b/10b, 128b/130b, from 6 on flits of 256 bytes. */
	static const double gt[] = {0, 2.5, 5, 8, 16, 32, 64};
	static const double share[] = {0, 0.8, 0.8, 128 / 130.0, 128 / 130.0, 128 / 130.0, 236 / 256.0};

	if (generation >= sizeof(gt) / sizeof(gt[0]))
		return 0;
	return gt[generation] * share[generation] * lanes * 1e9 / 8;
}

double plan_pcie_overhead(void)
{
	return (PLAN_PCIE_PAYLOAD + PLAN_PCIE_HEADERS) / PLAN_PCIE_PAYLOAD;
}

uint64_t plan_chunks(const struct plan_input *in)
{
	return in->chunks ? in->chunks : (in->bytes - 1) / in->chunk_bytes + 1;
}

/* A chunk uses one unit: the one with the most chunks ends last. */
static double plan_units_used(const struct plan_input *in, unsigned units)
{
	uint64_t chunks = plan_chunks(in), most = (chunks - 1) / units + 1;

	return (double)chunks / (double)most;
}

bool plan_streams(const struct plan_input *in)
{
	return in->transport == PLAN_SHM && in->cache_bytes > 0 &&
	       (double)in->bytes / plan_units_used(in, in->cores) * (in->workers + 1.0) > (double)in->cache_bytes;
}

double plan_memory_demand(const struct plan_input *in)
{
	static const double passing[PLAN_TRANSPORT_COUNT] = {
		[PLAN_SHM] = 1, [PLAN_TCP] = 2 + 2, [PLAN_UDP] = 2 + 2, [PLAN_VERBS] = 0, [PLAN_DPDK] = 0};

	return passing[in->transport] +
	       plan_once_bytes(in->wire_bytes, in->optimizer, in->state_count, plan_streams(in)) / in->workers;
}

double plan_box_demand(const struct plan_input *in)
{
	struct plan_side side = in->costs.box;

	side.key_ns = 0;
	return (plan_kernel_ns(&in->kernel, in->workers) + plan_side_ns(&side, in->bytes, in->keys, plan_chunks(in))) /
	       1e9;
}

double plan_worker_demand(const struct plan_input *in)
{
	return plan_side_ns(&in->costs.worker, in->bytes, in->keys, plan_chunks(in)) / 1e9;
}

/* ---- the plan ---- */

static bool plan_is_rate(double value)
{
	return isfinite(value) && value > 0;
}

static bool plan_is_cost(double value)
{
	return isfinite(value) && value >= 0;
}

/* Workers on the box may reach it without a link. */
static bool plan_is_wired(const struct plan_input *in)
{
	return in->transport != PLAN_SHM && in->nics > 0;
}

static int plan_check_job(const struct plan_input *in, struct err *e)
{
	if ((unsigned)in->transport >= PLAN_TRANSPORT_COUNT)
		return err_set(e, -EINVAL, "transport %d: there is none of that number", (int)in->transport);
	if (in->workers == 0)
		return err_set(e, -EINVAL, "no workers: a plan needs at least 1");
	if (in->bytes == 0 || in->chunk_bytes == 0)
		return err_set(e, -EINVAL, "a plan needs gradients and chunks of at least 1 byte");
	if (in->chunks > in->bytes)
		return err_set(e, -EINVAL, "%llu chunks of %llu bytes: none can be empty",
			(unsigned long long)in->chunks, (unsigned long long)in->bytes);
	if (in->wire_bytes != 2 && in->wire_bytes != 4)
		return err_set(e, -EINVAL, "elements of %u bytes: allowed are 2 and 4", in->wire_bytes);
	if (!plan_is_cost(in->latency_s) || !plan_is_cost(in->compute_s))
		return err_set(e, -EINVAL, "latency and time to compute cannot be negative");
	return 0;
}

static int plan_check_box(const struct plan_input *in, struct err *e)
{
	if (in->cores == 0)
		return err_set(e, -EINVAL, "no cores: a box needs at least 1 that polls");
	if (!plan_is_rate(plan_box_demand(in)) || !plan_is_cost(plan_worker_demand(in)))
		return err_set(e, -EINVAL, "CPU costs must be numbers, none negative, and the box's above 0");
	if (!plan_is_cost(in->cache_lines_s) || !plan_is_cost(in->memory_bytes_s))
		return err_set(e, -EINVAL, "cache lines and memory bandwidth cannot be negative");
	if (in->pcie_gen && !plan_is_rate(plan_pcie_bytes_s(in->pcie_gen, in->pcie_lanes)))
		return err_set(e, -EINVAL,
			"PCIe generation %u with %u lanes: allowed are generations 1 to 6, and a lane", in->pcie_gen,
			in->pcie_lanes);
	if (!plan_is_wired(in))
		return in->transport == PLAN_SHM || in->cpus_here
			       ? 0
			       : err_set(e, -EINVAL, "no NICs: only shm and workers on the box do without");
	if (!plan_is_rate(in->link_bytes_s) || !plan_is_rate(in->worker_link_bytes_s))
		return err_set(e, -EINVAL, "a link's rate must be above 0");
	if (!plan_is_rate(plan_wire_efficiency(in->transport, in->mtu, in->frame_bytes, 1)))
		return err_set(e, -EINVAL, "an MTU of %u leaves no room for a payload; allowed are %u to %u", in->mtu,
			PLAN_MTU_MIN, PLAN_MTU_MAX);
	return 0;
}

static void plan_use(const struct plan_input *in, struct plan_result *out, enum plan_resource_kind kind,
	double capacity, double demand)
{
	out->resources[kind] = (struct plan_resource){
		.used = true,
		.capacity = capacity,
		.demand = demand,
		.exchange_s = demand * (double)in->bytes * in->workers / capacity,
	};
}

static void plan_fill_resources(const struct plan_input *in, struct plan_result *out)
{
	double box = plan_box_demand(in), worker = plan_worker_demand(in);

	if (plan_is_wired(in)) {
		double nics = plan_units_used(in, in->nics);

		plan_use(in, out, PLAN_BOX_LINKS, nics * in->link_bytes_s, 1 / out->wire_efficiency);
		plan_use(in, out, PLAN_WORKER_LINKS, in->workers * in->worker_link_bytes_s, 1 / out->wire_efficiency);
		if (in->pcie_gen)
			plan_use(in, out, PLAN_PCIE, nics * plan_pcie_bytes_s(in->pcie_gen, in->pcie_lanes),
				plan_pcie_overhead());
		if (in->cache_lines_s > 0)
			plan_use(in, out, PLAN_CACHE_LINES, in->cache_lines_s, 2.0 / PLAN_LINE_BYTES);
	}
	if (in->memory_bytes_s > 0)
		plan_use(in, out, PLAN_MEMORY, in->memory_bytes_s, plan_memory_demand(in));
	plan_use(in, out, PLAN_CORES, plan_units_used(in, in->cores), box);
	if (worker > 0)
		plan_use(in, out, PLAN_WORKER_CPU, in->workers, worker);
	if (in->cpus_here)
		plan_use(in, out, PLAN_SHARED_CPUS, in->cpus_here, box + worker);
}

static void plan_find_limit(struct plan_result *out)
{
	out->limit = PLAN_CORES;
	out->second = -1;
	for (int i = 0; i < PLAN_RESOURCE_COUNT; i++)
		if (out->resources[i].exchange_s > out->resources[out->limit].exchange_s)
			out->limit = (enum plan_resource_kind)i;
	for (int i = 0; i < PLAN_RESOURCE_COUNT; i++)
		if (out->resources[i].used && i != (int)out->limit &&
			(out->second < 0 || out->resources[i].exchange_s > out->resources[out->second].exchange_s))
			out->second = i;
}

/*
 * One chunk passes the resources one after the other, and links twice, up and down; a worker's link and the box's are
 * passed together, as a packet takes the second while the next takes the first. PCIe, cache lines and memory are
 * passed while the links and the cores are; shared CPUs are the cores' and the workers' time once more. The formulae
 * call the sum f.
 */
static double plan_fill_s(const struct plan_input *in, const struct plan_result *out)
{
	const struct plan_resource *r = out->resources;
	double sum = 2 * fmax(r[PLAN_BOX_LINKS].exchange_s, r[PLAN_WORKER_LINKS].exchange_s);

	if (in->cpus_here == 0)
		sum += r[PLAN_CORES].exchange_s + r[PLAN_WORKER_CPU].exchange_s;
	if (out->limit == PLAN_BOX_LINKS || out->limit == PLAN_WORKER_LINKS ||
		(in->cpus_here == 0 && (out->limit == PLAN_CORES || out->limit == PLAN_WORKER_CPU)))
		sum -= r[out->limit].exchange_s;
	return sum / (double)out->chunks + in->latency_s;
}

int plan_make(const struct plan_input *in, struct plan_result *out, struct err *e)
{
	int rc = plan_check_job(in, e);
	double busy_s;

	if (rc == 0)
		rc = plan_check_box(in, e);
	if (rc < 0)
		return rc;
	*out = (struct plan_result){.chunks = plan_chunks(in)};
	out->wire_efficiency = plan_is_wired(in) ? plan_wire_efficiency(in->transport, in->mtu, in->frame_bytes,
							   (double)in->bytes / (double)out->chunks)
						 : 1;
	plan_fill_resources(in, out);
	plan_find_limit(out);
	busy_s = out->resources[out->limit].exchange_s;
	out->fill_s = plan_fill_s(in, out);
	out->exchange_s = busy_s + out->fill_s;
	out->worker_bytes_s = (double)in->bytes / out->exchange_s;
	out->ring_s = out->resources[PLAN_WORKER_LINKS].exchange_s * 2 * (in->workers - 1) / in->workers;
	if (in->compute_s > 0) {
		out->iteration_best_s = out->exchange_s > in->compute_s ? out->exchange_s : in->compute_s;
		out->iteration_worst_s = out->exchange_s + in->compute_s;
	}
	return 0;
}
