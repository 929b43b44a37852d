/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub bench seals: what the seals of datagrams cost, which a core of the box pays for each that it sends and each that
 * comes. Kinds and sizes take turns, and the medians are told. Time is that of this thread on its CPU.
 */
#include <errno.h>
#include <stdlib.h>

#include "phub/base/clock.h"
#include "phub/cli/args.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"
#include "phub/cli/trial.h"
#include "transport/seal.h"

enum {
	SEALS_REPEATS = 15,
	SEALS_DATAGRAMS = 4000, /* in one timed run */
	SEALS_BYTES_MAX = 8832,
};

static const struct seals_case {
	enum seal_kind kind;
	uint32_t bytes; /* of a datagram: an Ethernet frame of 1500 bytes, of 9000 */
} seals_cases[] = {{SEAL_GMAC, 1344}, {SEAL_GMAC, SEALS_BYTES_MAX}, {SEAL_CRC, 1344}, {SEAL_CRC, SEALS_BYTES_MAX}};

enum { SEALS_CASES = sizeof(seals_cases) / sizeof(seals_cases[0]) };

struct seals_bench {
	bool json;
	uint8_t *datagram; /* in cache, as one is that was just received */
	struct seal *seals[SEALS_CASES];
	double ns[SEALS_CASES][SEALS_REPEATS]; /* a datagram */
};

static int seals_prepare(struct seals_bench *b, struct err *e)
{
	static const uint8_t key[PROOF_KEY];
	static const struct proof_datagram of;
	int rc = 0;

	b->datagram = calloc(1, SEALS_BYTES_MAX);
	if (!b->datagram)
		return err_set(e, -ENOMEM, "out of memory");
	for (unsigned i = 0; rc == 0 && i < SEALS_CASES; i++)
		rc = seal_create(seals_cases[i].kind, key, &of, true, &b->seals[i], e);
	return rc;
}

/* One timed run: ns a datagram. Negative: libcrypto fails. */
static double seals_time(struct seals_bench *b, unsigned i)
{
	uint64_t begin_ns = clock_thread_cpu_ns();
	size_t bytes = seals_cases[i].bytes;

	for (uint64_t number = 1; number <= SEALS_DATAGRAMS; number++) {
		if (seal_make(b->seals[i], number, b->datagram, WIRE_DATA_BYTES, b->datagram + WIRE_DATA_BYTES,
			    bytes - WIRE_DATA_BYTES) < 0)
			return -1;
	}
	return (double)(clock_thread_cpu_ns() - begin_ns) / SEALS_DATAGRAMS;
}

static bool seals_measure(struct seals_bench *b)
{
	for (unsigned i = 0; i < SEALS_CASES; i++) {
		if (seals_time(b, i) < 0) /* warms up */
			return false;
	}
	for (unsigned r = 0; r < SEALS_REPEATS; r++) {
		for (unsigned i = 0; i < SEALS_CASES; i++)
			b->ns[i][r] = seals_time(b, i);
	}
	return true;
}

static bool seals_report(struct seals_bench *b)
{
	struct output_table table = {.heads = {"seal", "bytes", "ns a datagram", "GB/s", "min..max"}, .align = "lrrrr"};

	for (unsigned i = 0; i < SEALS_CASES; i++) {
		const struct seals_case *c = &seals_cases[i];
		double ns = trial_median(b->ns[i], SEALS_REPEATS); /* which sorts them */
		double rate = c->bytes / ns, slowest = c->bytes / b->ns[i][SEALS_REPEATS - 1];
		double fastest = c->bytes / b->ns[i][0];

		if (b->json) {
			if (!output_json(json_pack("{s:s, s:s, s:i, s:f, s:f, s:f, s:f}", "bench", "seal", "seal",
				    seal_name(c->kind), "bytes", (int)c->bytes, "gb_per_s", rate, "ns", ns,
				    "gb_per_s_min", slowest, "gb_per_s_max", fastest)))
				return false;
			continue;
		}
		output_cell(&table, "%s", seal_name(c->kind));
		output_cell(&table, "%u", c->bytes);
		output_cell(&table, "%.0f", ns);
		output_cell(&table, "%.2f", rate);
		output_cell(&table, "%.2f..%.2f", slowest, fastest);
	}
	if (!b->json)
		output_table_print(&table);
	return true;
}

int bench_seals_run(int argc, char **argv)
{
	struct seals_bench b = {.json = false};
	const struct args_option options[] = {
		{"json", NULL, "one JSON object a line", ARGS_FLAG, &b.json, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {
		.command = "phub bench seals",
		.about = "Measures on one CPU what the seal of a datagram costs who sends it, and as much who receives "
			 "it, in\n"
			 "cache: AES-GMAC and CRC32C, at the sizes that Ethernet frames of 1500 and 9000 bytes "
			 "carry.\n"
			 "Medians of 15 runs, taking turns, and their spread.\n",
		.examples = "  phub bench seals\n",
		.options = options,
	};
	struct args_words words;
	struct err e;
	int rc = args_parse(&usage, argc, argv, &words);
	bool ok;

	if (rc != ARGS_GO_ON)
		return rc;
	ok = seals_prepare(&b, &e) == 0;
	if (!ok)
		output_error("%s", e.text);
	if (ok && !seals_measure(&b)) {
		output_error("libcrypto seals no datagram; try `openssl speed -evp aes-128-gcm`");
		ok = false;
	}
	ok = ok && seals_report(&b);
	for (unsigned i = 0; i < SEALS_CASES; i++)
		seal_destroy(b.seals[i]);
	free(b.datagram);
	return ok ? CLI_DONE : CLI_FAILED;
}
