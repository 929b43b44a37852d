/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub bench seals: what the seals of datagrams cost, which a core of the box pays for each that it sends and each that
 * comes, and the encryption of a chunk, which is sealed and opened once up and once down. Kinds and sizes take turns,
 * and the medians are told. Time is that of this thread on its CPU.
 */
#include <errno.h>
#include <stdlib.h>

#include "phub/base/clock.h"
#include "phub/cli/args.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"
#include "phub/cli/trial.h"
#include "transport/crypt.h"
#include "transport/seal.h"

enum {
	SEALS_REPEATS = 15,
	SEALS_DATAGRAMS = 4000, /* in one timed run */
	SEALS_BYTES_MAX = 8832,
	SEALS_CHUNK = 32768,
	SEALS_MESSAGES = 1000,
};

static const struct seals_case {
	enum seal_kind kind;
	uint32_t bytes; /* of a datagram: an Ethernet frame of 1500 bytes, of 9000 */
} seals_cases[] = {{SEAL_GMAC, 1344}, {SEAL_GMAC, SEALS_BYTES_MAX}, {SEAL_CRC, 1344}, {SEAL_CRC, SEALS_BYTES_MAX}};

enum {
	SEALS_OF_DATAGRAMS = sizeof(seals_cases) / sizeof(seals_cases[0]),
	SEALS_SEAL = SEALS_OF_DATAGRAMS, /* of an encrypted chunk, */
	SEALS_OPEN,
	SEALS_CASES
};

struct seals_bench {
	bool json;
	uint8_t *datagram; /* in cache, as one is that was just received */
	struct seal *seals[SEALS_OF_DATAGRAMS];
	uint8_t *plain, *sealed; /* a chunk, and with its trailer */
	struct crypt *sealer, *opener;
	uint64_t counter;
	double ns[SEALS_CASES][SEALS_REPEATS]; /* a datagram */
};

static int seals_prepare(struct seals_bench *b, struct err *e)
{
	static const uint8_t key[PROOF_KEY];
	static const struct proof_datagram of;
	int rc = 0;

	b->datagram = calloc(1, SEALS_BYTES_MAX);
	b->plain = calloc(1, SEALS_CHUNK);
	b->sealed = calloc(1, SEALS_CHUNK + WIRE_TRAILER_BYTES);
	if (!b->datagram || !b->plain || !b->sealed)
		return err_set(e, -ENOMEM, "out of memory");
	for (unsigned i = 0; rc == 0 && i < SEALS_OF_DATAGRAMS; i++)
		rc = seal_create(seals_cases[i].kind, key, &of, true, &b->seals[i], e);
	if (rc == 0)
		rc = crypt_create(false, &b->sealer, e);
	if (rc == 0)
		rc = crypt_create(true, &b->opener, e);
	if (rc == 0 && (crypt_take_key(b->sealer, key) < 0 || crypt_take_key(b->opener, key) < 0))
		rc = err_set(e, -EIO, "libcrypto takes no key of AES-256-GCM");
	return rc;
}

/* The same of a chunk. What is opened is always the last one that was sealed. */
static double seals_time_chunk(struct seals_bench *b, bool opens)
{
	const struct wire_header h = {.type = WIRE_PUSH, .length = SEALS_CHUNK + WIRE_TRAILER_BYTES};
	uint64_t begin_ns = clock_thread_cpu_ns();

	for (unsigned i = 0; i < SEALS_MESSAGES; i++) {
		int rc = opens ? crypt_open(b->opener, &h, 0, b->sealed, b->plain)
			       : crypt_seal(b->sealer, &h, 0, ++b->counter, b->plain, b->sealed);

		if (rc < 0)
			return -1;
	}
	return (double)(clock_thread_cpu_ns() - begin_ns) / SEALS_MESSAGES;
}

/* One timed run: ns a datagram. Negative: libcrypto fails. */
static double seals_time(struct seals_bench *b, unsigned i)
{
	uint64_t begin_ns = clock_thread_cpu_ns();
	size_t bytes;

	if (i >= SEALS_OF_DATAGRAMS)
		return seals_time_chunk(b, i == SEALS_OPEN);
	bytes = seals_cases[i].bytes;
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
	struct output_table table = {.heads = {"seal", "bytes", "ns each", "GB/s", "min..max"}, .align = "lrrrr"};

	for (unsigned i = 0; i < SEALS_CASES; i++) {
		bool chunk = i >= SEALS_OF_DATAGRAMS;
		uint32_t bytes = chunk ? SEALS_CHUNK : seals_cases[i].bytes;
		const char *name = i == SEALS_SEAL   ? "aes-256-gcm seal"
				   : i == SEALS_OPEN ? "aes-256-gcm open"
						     : seal_name(seals_cases[i].kind);
		double ns = trial_median(b->ns[i], SEALS_REPEATS); /* which sorts them */
		double rate = bytes / ns, slowest = bytes / b->ns[i][SEALS_REPEATS - 1];
		double fastest = bytes / b->ns[i][0];

		if (b->json) {
			if (!output_json(json_pack("{s:s, s:s, s:i, s:f, s:f, s:f, s:f, s:s*}", "bench", "seal", "seal",
				    name, "bytes", (int)bytes, "gb_per_s", rate, "ns", ns, "gb_per_s_min", slowest,
				    "gb_per_s_max", fastest, "by", chunk ? crypt_library() : NULL)))
				return false;
			continue;
		}
		output_cell(&table, "%s%s%s", name, chunk ? ", by " : "", chunk ? crypt_library() : "");
		output_cell(&table, "%u", bytes);
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
			 "carry. And what sealing and opening a chunk of an encrypted job costs, 32 KiB of "
			 "AES-256-GCM.\n"
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
	for (unsigned i = 0; i < SEALS_OF_DATAGRAMS; i++)
		seal_destroy(b.seals[i]);
	crypt_destroy(b.sealer);
	crypt_destroy(b.opener);
	free(b.datagram);
	free(b.plain);
	free(b.sealed);
	return ok ? CLI_DONE : CLI_FAILED;
}
