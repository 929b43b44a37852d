/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The course of the worker: connect, keys, start, first weights, rounds, leave, and its ways to misbehave. Events go to
 * standard output as they happen, the last line is the result. Exits 0 when all went well and every result was right,
 * 1 when not, 2 when its arguments are wrong.
 */
#include "tests/system/worker.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct worker {
	struct worker_options options;
	struct worker_oracle oracle;
	phub_t *phub;
	const char *step; /* what it does now, for the result */
	struct phub_hyper hyper;
	int stop_key;      /* -1: rounds are counted */
	float stop_src[1]; /* in the stop key's type */
	float stop_dst[1];
	uint64_t rounds, wrong, digest, touched;
	uint64_t settled; /* digest of the last weights */
	bool settles;     /* the last round, of zeros */
	unsigned table;   /* which of the key tables this is */
	unsigned resumed; /* times that the box was lost and came back */
	uint64_t first;   /* the round that is next: not 1 where the job ran before */
	unsigned ranks;   /* a census: that were in all sums of the last round, as bits */
	uint64_t got;     /* a census: digest of that round's results alone */
	float spoiled;    /* the element that some rank makes NaN, as it came back in that round */
	uint64_t began_ms, reported_ms;
	uint64_t front_us, all_us; /* of the last round: until the urgent key was back, and all of them */
	unsigned open_behind;      /* keys that were still open then, in the round with the fewest */
};

static uint64_t worker_now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void worker_sleep_us(uint64_t us)
{
	struct timespec t = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};

	while (us && nanosleep(&t, &t) < 0 && errno == EINTR)
		;
}

/* Has standard input ended, or does so within the time? */
static bool worker_is_told(int timeout_ms)
{
	struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
	char rubbish[64];

	if (poll(&in, 1, timeout_ms) <= 0)
		return false;
	return read(STDIN_FILENO, rubbish, sizeof(rubbish)) <= 0;
}

/* ---- what it prints ---- */

static void worker_print_text(const char *name, const char *text)
{
	printf(",\"%s\":\"", name);
	for (const char *p = text; *p; p++) {
		if (*p == '"' || *p == '\\')
			putchar('\\');
		putchar(*p == '\n' ? ' ' : *p);
	}
	putchar('"');
}

static void worker_event(const struct worker *w, const char *event, const char *error)
{
	printf("{\"event\":\"%s\",\"rank\":%d,\"round\":%" PRIu64 ",\"ms\":%" PRIu64, event, w->options.phub.rank,
		w->rounds, worker_now_us() / 1000);
	if (w->options.census)
		printf(",\"ranks\":%u,\"got\":\"%016" PRIx64 "\"", w->ranks, w->got);
	if (w->options.report_ms)
		printf(",\"exchange_us\":%" PRIu64, w->all_us);
	if (w->phub)
		worker_print_text("transport", phub_transport(w->phub));
	if (error)
		worker_print_text("error", error);
	puts("}");
	fflush(stdout);
}

/*
 * The library has said that it is done with the caller's memory. Every other key's is freed at once, which the address
 * sanitizer watches; what a device would still write to is seen in the rest.
 */
static void worker_watch(struct worker *w)
{
	struct worker_options *o = &w->options;

	for (unsigned i = 0; i < o->key_count; i++) {
		struct worker_key *key = &o->keys[i];

		memset(key->src, 0xa5, key->bytes);
		memset(key->dst, 0xa5, key->bytes);
		if (i % 2) {
			free(key->src);
			free(key->dst);
			key->src = key->dst = NULL;
		}
	}
	worker_event(w, "watches", NULL);
	worker_sleep_us(o->watch_ms * 1000);
	for (unsigned i = 0; i < o->key_count; i += 2) {
		const unsigned char *src = o->keys[i].src, *dst = o->keys[i].dst;

		for (size_t k = 0; k < o->keys[i].bytes; k++)
			w->touched += (src[k] != 0xa5) + (dst[k] != 0xa5);
	}
}

static int worker_end(struct worker *w, int rc)
{
	char error[1024] = "";
	struct phub_stats stats = {.size = sizeof(stats)};

	if (rc < 0)
		snprintf(error, sizeof(error), "%s", phub_error());
	if (w->options.watch_ms && w->options.keys[0].dst)
		worker_watch(w);
	if (w->phub)
		phub_stats(w->phub, &stats);
	printf("{\"event\":\"end\",\"rank\":%d,\"step\":\"%s\",\"rc\":%d", w->options.phub.rank, w->step, rc);
	worker_print_text("errno", rc < 0 ? strerrorname_np(-rc) : "");
	worker_print_text("error", error);
	printf(",\"rounds\":%" PRIu64 ",\"wrong\":%" PRIu64 ",\"digest\":\"%016" PRIx64 "\",\"ms\":%" PRIu64
	       ",\"pushed_bytes\":%" PRIu64 ",\"pulled_bytes\":%" PRIu64 ",\"copied_bytes\":%" PRIu64
	       ",\"front_us\":%" PRIu64 ",\"all_us\":%" PRIu64
	       ",\"open_behind\":%u,\"spoiled\":\"%g\",\"touched\":%" PRIu64 ",\"datagrams\":%" PRIu64
	       ",\"datagrams_resent\":%" PRIu64 ",\"datagrams_dropped\":%" PRIu64 ",\"coded_pushes\":%" PRIu64
	       ",\"coded_results\":%" PRIu64 ",\"resumed\":%u,\"settled\":\"%016" PRIx64 "\"}\n",
		w->rounds, w->wrong, w->digest, worker_now_us() / 1000 - w->began_ms, stats.pushed_bytes,
		stats.pulled_bytes, stats.copied_bytes, w->front_us, w->all_us, w->open_behind, (double)w->spoiled,
		w->touched, stats.datagrams, stats.datagrams_resent, stats.datagrams_dropped, stats.coded_pushes,
		stats.coded_results, w->resumed, w->settled);
	fflush(stdout);
	phub_close(w->phub);
	return rc < 0 || w->wrong || w->touched ? 1 : 0;
}

/* ---- steps ---- */

static int worker_call_start(struct worker *w)
{
	return phub_start(w->phub, w->options.wait_ms);
}

static int worker_call_wait(struct worker *w)
{
	return phub_wait(w->phub, PHUB_ALL, w->options.wait_ms);
}

static int worker_call_resume(struct worker *w)
{
	return phub_resume(w->phub, w->options.wait_ms);
}

static int worker_call_barrier(struct worker *w)
{
	return phub_barrier(w->phub, w->options.wait_ms);
}

/* phub_start() or phub_wait(), telling whom it waits for whenever its time is over, until its patience is. */
static int worker_wait(struct worker *w, int (*call)(struct worker *w))
{
	uint64_t deadline_us = worker_now_us() + (uint64_t)w->options.patience_ms * 1000;
	int rc;

	while ((rc = call(w)) == -ETIMEDOUT && worker_now_us() < deadline_us)
		worker_event(w, "waits", phub_error());
	return rc;
}

static int worker_keys(struct worker *w)
{
	const struct worker_options *o = &w->options;
	int rc = 0;

	w->step = "key";
	for (unsigned i = 0; i < o->key_count && rc >= 0; i++) {
		const struct worker_key *key = &o->keys[i];

		rc = phub_key(w->phub, key->name, key->dtype, key->elements, 0, key->flags);
	}
	w->stop_key = -1;
	if (rc >= 0 && o->rounds == WORKER_NEVER)
		rc = w->stop_key = phub_key(w->phub, "stop", PHUB_F32, 1, 0, PHUB_KEY_ALONE);
	return rc < 0 ? rc : 0;
}

/* Memory for every key, which is there once the job has started: not for keys that the box does not take. */
static int worker_memory(struct worker *w)
{
	struct worker_options *o = &w->options;
	int rc = 0;

	w->step = "memory";
	for (unsigned i = 0; i < o->key_count && rc == 0; i++) {
		struct worker_key *key = &o->keys[i];

		if (o->alloc) {
			rc = phub_alloc(w->phub, (int)i, &key->src, &key->result);
			continue;
		}
		key->src = malloc(key->bytes);
		key->dst = malloc(key->bytes);
		key->result = key->dst;
		if (!key->src || !key->dst)
			rc = -ENOMEM;
		if (rc == 0 && o->registered)
			rc = phub_mem_register(w->phub, key->src, key->bytes);
		if (rc == 0 && o->registered)
			rc = phub_mem_register(w->phub, key->dst, key->bytes);
	}
	return rc;
}

/* Forgets the keys, and names the next table's: each has the size of the one behind it. */
static int worker_turn_table(struct worker *w)
{
	struct worker_options *o = &w->options;
	uint64_t elements = o->keys[0].elements;
	int rc = 0;

	w->step = "rekey";
	for (unsigned i = 0; i < o->key_count && rc == 0; i++) {
		struct worker_key *key = &o->keys[i];

		if (o->registered)
			rc = phub_mem_unregister(w->phub, key->src);
		if (o->registered && rc == 0)
			rc = phub_mem_unregister(w->phub, key->dst);
		free(o->alloc ? NULL : key->src);
		free(key->dst);
		free(key->before);
		key->src = key->dst = NULL;
		key->before = NULL;
		key->elements = i + 1 < o->key_count ? o->keys[i + 1].elements : elements;
		key->bytes = key->elements * worker_dtype_bytes(key->dtype);
	}
	return rc == 0 ? phub_rekey(w->phub) : rc;
}

/* What this round's are: schedules are the same at all ranks. */
static void worker_rates(struct worker *w, uint64_t round)
{
	const struct worker_options *o = &w->options;

	if (o->schedule)
		w->hyper.lr = o->hyper.lr * (1 + (double)(round * 7 * o->schedule % 11) / 10);
}

/* Where the rounds begin; an oracle that knows all of them goes there. */
static int worker_find_round(struct worker *w)
{
	struct worker_options *o = &w->options;
	int64_t round;

	w->first = 1;
	if (o->no_weights)
		return 0;
	round = phub_round(w->phub, 0);
	if (round < 0)
		return (int)round;
	w->first = (uint64_t)round;
	for (uint64_t r = 1; r < w->first && o->check && !o->some; r++) {
		worker_rates(w, r);
		worker_oracle_round(&w->oracle, r, &w->hyper);
	}
	return 0;
}

static void worker_check_weights(struct worker *w)
{
	struct worker_options *o = &w->options;

	for (unsigned i = 0; i < o->key_count && o->check; i++) {
		void *expected = malloc(o->keys[i].bytes);

		if (o->some) {
			worker_check_some(o, i, 0, o->keys[i].src);
		} else {
			worker_fill_weights(&w->oracle, i, expected);
			w->wrong += memcmp(expected, o->keys[i].src, o->keys[i].bytes) != 0;
		}
		free(expected);
	}
}

static int worker_weights(struct worker *w)
{
	struct worker_options *o = &w->options;
	bool weights = o->phub.optimizer != PHUB_NONE && !o->no_weights;
	int rc = 0;

	w->step = "weights";
	worker_oracle_init(&w->oracle, o);
	for (unsigned i = 0; i < o->key_count && rc == 0 && weights; i++) {
		if (o->phub.rank == 0)
			worker_fill_weights(&w->oracle, i, o->keys[i].src);
		else
			memset(o->keys[i].src, 0xff, o->keys[i].bytes);
		rc = phub_broadcast(w->phub, (int)i, o->keys[i].src, 0);
	}
	if (rc == 0 && w->stop_key >= 0 && weights)
		rc = phub_broadcast(w->phub, w->stop_key, w->stop_src, 0);
	if (rc == 0 && weights)
		rc = worker_wait(w, worker_call_wait);
	if (rc == 0)
		rc = worker_find_round(w);
	if (rc == 0 && weights)
		worker_check_weights(w);
	return rc;
}

static int worker_misbehave(struct worker *w, uint64_t round)
{
	const struct worker_options *o = &w->options;

	if (round == o->stop_at) {
		worker_event(w, "stops", NULL);
		raise(SIGSTOP);
		worker_event(w, "continues", NULL);
	}
	if (round == o->die_at) {
		worker_event(w, "dies", NULL);
		raise(SIGKILL);
	}
	return round == o->skip_at;
}

/* Writes a NaN (or infinity) in all types' way: the exponent is all ones. */
static void worker_spoil(const struct worker_options *o)
{
	const struct worker_key *key = &o->keys[o->nan_key];
	float value = o->infinite ? INFINITY : NAN;
	size_t size = worker_dtype_bytes(key->dtype);

	worker_narrow(key->dtype, &value, (char *)key->src + o->nan_element * size, 1);
}

static int worker_push(struct worker *w)
{
	struct worker_options *o = &w->options;
	int rc = 0;

	for (unsigned n = 0; n < o->key_count && rc == 0; n++) {
		unsigned i = o->front ? o->key_count - 1 - n : n, urgency = o->back ? o->key_count - 1 - i : i;

		if (n + 1 == o->key_count)
			worker_sleep_us(o->lag_ms * 1000);
		if (o->phub.quorum && !w->settles && phub_round(w->phub, (int)i) >= 0 &&
			(uint64_t)phub_round(w->phub, (int)i) > o->rounds)
			continue;
		rc = phub_push_pull(w->phub, (int)i, o->keys[i].src, o->keys[i].dst, o->flat ? 0 : (int)urgency);
	}
	if (rc == 0 && w->stop_key >= 0) {
		w->stop_src[0] = worker_is_told(0) ? 1 : 0;
		rc = phub_push_pull(w->phub, w->stop_key, w->stop_src, w->stop_dst, 0);
	}
	return rc;
}

static int worker_exchange(struct worker *w)
{
	const struct worker_options *o = &w->options;
	uint64_t began_us = worker_now_us();
	int last = (int)o->key_count - 1;
	int rc = worker_push(w);
	unsigned open = 0;

	if (rc == 0 && (o->front || o->back)) {
		rc = phub_wait(w->phub, o->front ? 0 : last, o->wait_ms);
		w->front_us = worker_now_us() - began_us;
		for (unsigned i = 0; i < o->key_count; i++)
			open += phub_test(w->phub, (int)i) == 0;
		w->open_behind = w->rounds == 0 || open < w->open_behind ? open : w->open_behind;
	}
	if (rc == 0)
		rc = worker_wait(w, worker_call_wait);
	w->all_us = worker_now_us() - began_us;
	return rc;
}

static void worker_look(struct worker *w, uint64_t round)
{
	struct worker_options *o = &w->options;

	if (o->plant)
		worker_plant(o, &o->keys[0]);
	if (o->check && !o->some)
		worker_oracle_round(&w->oracle, round, &w->hyper);
	w->ranks = ~0u;
	w->got = 0xcbf29ce484222325ull;
	for (unsigned i = 0; i < o->key_count; i++) {
		if (o->census)
			w->wrong += worker_check_bits(o, i, round, o->keys[i].result, &w->ranks);
		if (o->census)
			w->got = worker_digest(w->got, o->keys[i].result, o->keys[i].bytes);
		if (o->check)
			w->wrong += o->some ? worker_check_some(o, i, round, o->keys[i].result)
					    : worker_check(&w->oracle, i, o->keys[i].result);
		w->digest = worker_digest(w->digest, o->keys[i].result, o->keys[i].bytes);
	}
	if (round == o->look_at)
		w->spoiled = worker_widen(o->keys[o->nan_key].dtype, o->keys[o->nan_key].result, o->nan_element);
	w->rounds = round;
	if (o->report_ms && worker_now_us() / 1000 - w->reported_ms >= o->report_ms) {
		w->reported_ms = worker_now_us() / 1000;
		worker_event(w, "progress", NULL);
	}
}

/* One round. 1 when it was the last. */
static int worker_round(struct worker *w, uint64_t round)
{
	struct worker_options *o = &w->options;
	int rc = 0;

	if (worker_misbehave(w, round))
		return 1;
	worker_rates(w, round);
	if (o->schedule)
		rc = phub_set_hyper(w->phub, 0, &w->hyper);
	for (unsigned i = 0; i < o->key_count && rc == 0; i++)
		(o->census ? worker_fill_bits : worker_fill)(o, i, round, o->keys[i].src);
	if (round == o->nan_at)
		worker_spoil(o);
	if (rc == 0)
		rc = worker_exchange(w);
	if (rc < 0)
		return rc;
	worker_look(w, round);
	worker_sleep_us(o->pause_us);
	return w->stop_key >= 0 && w->stop_dst[0] != 0;
}

/* In a job with a quorum others may have closed rounds meanwhile, of each key other ones. */
static uint64_t worker_least_round(struct worker *w)
{
	uint64_t least = WORKER_NEVER;

	for (unsigned i = 0; i < w->options.key_count; i++) {
		uint64_t round = (uint64_t)phub_round(w->phub, (int)i);

		least = round < least ? round : least;
	}
	return least;
}

static int worker_rounds(struct worker *w)
{
	uint64_t first = w->options.census ? (uint64_t)phub_round(w->phub, 0) : w->first;
	int rc = 0;

	w->step = "barrier";
	if (w->options.barrier)
		rc = worker_wait(w, worker_call_barrier);
	w->step = "round";
	for (uint64_t round = first; rc == 0 && round <= w->options.rounds; round++) {
		rc = worker_round(w, round);
		if (rc == 0 && w->options.phub.quorum)
			round = worker_least_round(w) - 1;
	}
	return rc < 0 ? rc : 0;
}

/* Nobody pushes a gradient any more: what a round of zeros gives is what all steps have made. */
static int worker_settle(struct worker *w)
{
	struct worker_options *o = &w->options;
	int rc;

	w->step = "settle";
	w->settles = true;
	rc = worker_wait(w, worker_call_barrier);
	for (unsigned i = 0; i < o->key_count && rc == 0; i++)
		memset(o->keys[i].src, 0, o->keys[i].bytes);
	if (rc == 0)
		rc = worker_exchange(w);
	if (rc == 0)
		rc = worker_wait(w, worker_call_barrier);
	if (rc == 0 && o->phub.sync != PHUB_BSP)
		worker_oracle_total(&w->oracle, o->rounds);
	w->settled = 0xcbf29ce484222325ull;
	for (unsigned i = 0; i < o->key_count && rc == 0; i++) {
		if (o->phub.sync != PHUB_BSP)
			w->wrong += worker_check(&w->oracle, i, o->keys[i].result);
		w->settled = worker_digest(w->settled, o->keys[i].result, o->keys[i].bytes);
	}
	return rc;
}

/* From the first weights to the last round of a table; again from a checkpoint where the box was lost. */
static int worker_course(struct worker *w)
{
	struct worker_options *o = &w->options;
	int rc = worker_memory(w);

	for (;;) {
		if (rc == 0)
			rc = worker_weights(w);
		if (rc == 0)
			rc = worker_rounds(w);
		if (rc == 0 && o->settle)
			rc = worker_settle(w);
		if (rc != -ESTALE)
			return rc;
		w->step = "resume";
		worker_event(w, "stale", phub_error());
		rc = worker_wait(w, worker_call_resume);
		w->resumed++;
		w->hyper = o->hyper;
		if (rc == 0 && o->alloc)
			rc = worker_memory(w);
		if (rc == 0)
			worker_event(w, "resumed", NULL);
	}
}

/* Waits for its end, and notices when the session ends first. */
static int worker_idle(struct worker *w)
{
	int rc = 0;

	w->step = "idle";
	worker_event(w, "idle", NULL);
	while (rc == 0 && !worker_is_told(100))
		rc = phub_wait(w->phub, PHUB_ALL, 0);
	return rc;
}

static int worker_table(struct worker *w)
{
	struct worker_options *o = &w->options;
	int rc = worker_keys(w);

	if (rc < 0)
		return rc;
	w->step = "start";
	rc = worker_wait(w, worker_call_start);
	if (rc < 0)
		return rc;
	worker_event(w, "started", NULL);
	if (!o->idle)
		return worker_course(w);
	rc = worker_memory(w);
	if (rc == 0)
		rc = worker_weights(w);
	return rc < 0 ? rc : worker_idle(w);
}

static int worker_run(struct worker *w)
{
	struct worker_options *o = &w->options;
	int rc;

	w->step = "connect";
	rc = phub_connect(o->url, &o->phub, &w->phub);
	if (rc < 0)
		return rc;
	o->phub.rank = phub_rank(w->phub); /* rank=-1 world=-1: a launcher's */
	o->phub.world = phub_world(w->phub);
	worker_event(w, "connected", NULL);
	if (o->no_start)
		return worker_idle(w);
	rc = worker_table(w);
	for (w->table = 1; rc == 0 && w->table < o->tables; w->table++) {
		rc = worker_turn_table(w);
		if (rc == 0)
			rc = worker_table(w);
	}
	if (rc < 0 || o->no_leave)
		return rc;
	w->step = "leave";
	return phub_leave(w->phub, o->wait_ms);
}

int main(int argc, char **argv)
{
	static struct worker w;

	if (!worker_options_parse(&w.options, argc, argv))
		return 2;
	w.step = "begin";
	w.hyper = w.options.hyper;
	w.stop_key = -1;
	w.digest = 0xcbf29ce484222325ull;
	worker_sleep_us(w.options.delay_ms * 1000);
	w.began_ms = worker_now_us() / 1000;
	return worker_end(&w, worker_run(&w));
}
