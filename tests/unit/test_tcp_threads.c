/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp transport as it is used: a control thread that accepts, two cores that own a queue each and sleep when
 * nothing comes, and workers with a thread each and a connection per core. For the thread sanitizer above all.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "tests/unit/cmocka_shim.h"
#include "transport/transport.h"

enum { CORES = 2, WORKERS = 3, CHUNKS = 8, ROUNDS = 60, FLOATS = 4096, BYTES = FLOATS * 4 };

static const uint8_t key[PROOF_KEY] = {42};

struct core {
	struct queue *q;
	pthread_mutex_t lock; /* of the mail: connections that control has admitted */
	struct conn *mail[WORKERS];
	unsigned mail_count;
	const struct conn_spec *spec;
	float *sums;    /* [CHUNKS][FLOATS] */
	float *results; /* likewise */
	unsigned arrived[CHUNKS];
	struct conn *conns[WORKERS];
	unsigned conn_count, ended, errors;
};

struct worker {
	unsigned rank;
	const char *address;
	unsigned errors;
};

/* A value that is exact in fp32 when summed over ranks. */
static float value_of(unsigned rank, uint64_t round, unsigned core, unsigned chunk, unsigned i)
{
	return (float)((rank + 1) * 1000 + round * 7 + core * 3 + chunk + i % 97);
}

static void sleep_on(struct queue *q)
{
	struct pollfd p = {.fd = q->ops->arm(q), .events = POLLIN};

	if (p.fd >= 0)
		(void)poll(&p, 1, 5);
}

/* --- a core ------------------------------------------------------------------------------------ */

static void core_take_mail(struct core *core)
{
	pthread_mutex_lock(&core->lock);
	while (core->conn_count < core->mail_count) {
		struct conn *c = core->mail[core->conn_count];

		core->errors += core->q->ops->adopt(core->q, c, core->spec) != 0;
		core->conns[core->conn_count++] = c;
	}
	pthread_mutex_unlock(&core->lock);
}

static void core_add(struct core *core, const struct event *event)
{
	float *sum = core->sums + event->header.chunk * FLOATS;
	float *result = core->results + event->header.chunk * FLOATS;
	const float *payload = event->payload;
	struct wire_header h = event->header;

	for (unsigned i = 0; i < FLOATS; i++)
		sum[i] += payload[i];
	if (++core->arrived[h.chunk] < WORKERS)
		return;
	/* Every worker has pushed this round, so none reads or awaits the last result any more. */
	memcpy(result, sum, BYTES);
	memset(sum, 0, BYTES);
	core->arrived[h.chunk] = 0;
	h.type = WIRE_RESULT;
	h.count = WORKERS;
	for (unsigned i = 0; i < WORKERS; i++)
		core->errors += core->q->ops->send(core->q, core->conns[i], &h, result, NULL) != 0;
}

static void *core_main(void *arg)
{
	struct core *core = arg;
	struct event events[16];

	while (core->ended < WORKERS) {
		unsigned n;

		core_take_mail(core);
		n = core->q->ops->poll(core->q, clock_now_ns(), events, 16);
		for (unsigned i = 0; i < n; i++) {
			if (events[i].type == EVENT_MESSAGE) {
				core_add(core, &events[i]);
			} else if (events[i].type == EVENT_CLOSED) {
				core->errors += events[i].error != 0;
				core->q->ops->drop(core->q, events[i].conn);
				core->ended++;
			}
		}
		core->q->ops->flush(core->q);
		if (n == 0)
			sleep_on(core->q);
	}
	return NULL;
}

/* --- a worker ---------------------------------------------------------------------------------- */

struct lane {
	struct conn *c;
	struct span spans[CHUNKS];
	struct sink sinks[CHUNKS];
	struct conn_spec spec;
	float *gradient, *result;
};

static int lane_open(struct lane *lane, struct transport *t, const char *address, uint32_t core)
{
	struct err e;
	int rc;

	for (unsigned i = 0; i < CHUNKS; i++)
		lane->sinks[i].bytes = BYTES;
	lane->gradient = malloc(CHUNKS * BYTES);
	lane->result = malloc(CHUNKS * BYTES);
	lane->spec = (struct conn_spec){
		.chunk_count = CHUNKS, .spans = lane->spans, .sinks = lane->sinks, .payload_max = BYTES};
	rc = t->ops->connect(t, address, 1, core, key, NULL, &lane->c, &e);
	while (rc == 0 && (rc = t->ops->established(t, lane->c, &e)) == -EAGAIN) {
		struct pollfd p = {.fd = t->ops->fd(t), .events = POLLIN};

		(void)poll(&p, 1, 5);
		rc = 0;
	}
	if (rc < 0)
		print_error("%s\n", e.text);
	return rc;
}

static void lane_push(struct lane *lane, struct queue *q, struct worker *w, unsigned core, uint64_t round)
{
	for (unsigned chunk = 0; chunk < CHUNKS; chunk++) {
		struct wire_header h = {.type = WIRE_PUSH,
			.length = BYTES,
			.chunk = chunk,
			.rank = w->rank,
			.round = round,
			.count = 1};
		float *gradient = lane->gradient + chunk * FLOATS;

		for (unsigned i = 0; i < FLOATS; i++)
			gradient[i] = value_of(w->rank, round, core, chunk, i);
		lane->sinks[chunk].addr = lane->result + chunk * FLOATS;
		w->errors += q->ops->send(q, lane->c, &h, gradient, NULL) != 0;
	}
}

static void lane_check(const struct lane *lane, struct worker *w, unsigned core, const struct event *event)
{
	unsigned chunk = event->header.chunk;
	const float *result = event->payload;

	w->errors += result != lane->sinks[chunk].addr;
	for (unsigned i = 0; i < FLOATS; i++) {
		float sum = 0;

		for (unsigned rank = 0; rank < WORKERS; rank++)
			sum += value_of(rank, event->header.round, core, chunk, i);
		w->errors += result[i] != sum;
	}
}

/* Pushes a round to both cores and waits for all of its results. */
static void worker_round(struct worker *w, struct queue *q, struct lane *lanes, uint64_t round)
{
	struct event events[16];
	unsigned got = 0;

	for (unsigned core = 0; core < CORES; core++)
		lane_push(&lanes[core], q, w, core, round);
	while (got < CORES * CHUNKS && w->errors == 0) {
		unsigned n;

		q->ops->flush(q);
		n = q->ops->poll(q, clock_now_ns(), events, 16);
		for (unsigned i = 0; i < n; i++) {
			unsigned core = events[i].conn == lanes[1].c;

			if (events[i].type != EVENT_MESSAGE) {
				w->errors++;
				continue;
			}
			lane_check(&lanes[core], w, core, &events[i]);
			got++;
		}
		if (n == 0)
			sleep_on(q);
	}
}

static void *worker_main(void *arg)
{
	struct transport_config config = {0};
	struct lane lanes[CORES];
	struct worker *w = arg;
	struct transport *t;
	struct queue *q;
	struct err e;

	memset(lanes, 0, sizeof(lanes));
	w->errors += transport_tcp.open(&config, &t, &e) != 0;
	w->errors += t->ops->queue_create(t, MEM_NODE_ANY, &q, &e) != 0;
	for (uint32_t core = 0; core < CORES; core++) {
		w->errors += lane_open(&lanes[core], t, w->address, core) != 0;
		w->errors += q->ops->adopt(q, lanes[core].c, &lanes[core].spec) != 0;
	}
	for (uint64_t round = 0; round < ROUNDS && w->errors == 0; round++)
		worker_round(w, q, lanes, round);
	for (unsigned core = 0; core < CORES; core++) {
		q->ops->drop(q, lanes[core].c);
		free(lanes[core].gradient);
		free(lanes[core].result);
	}
	t->ops->queue_destroy(t, q);
	t->ops->close(t);
	return NULL;
}

/* --- control ----------------------------------------------------------------------------------- */

static void control_accept_all(struct transport *t, struct core *cores, const struct conn_spec *spec)
{
	for (unsigned accepted = 0; accepted < CORES * WORKERS;) {
		struct pollfd p = {.fd = t->ops->fd(t), .events = POLLIN};
		struct hello hello;
		struct core *core;
		struct err e;

		if (t->ops->accept(t, clock_now_ns(), &hello) < 0) {
			(void)poll(&p, 1, 5);
			continue;
		}
		assert_in_range(hello.core, 0, CORES - 1);
		core = &cores[hello.core];
		assert_int_equal(t->ops->admit(t, hello.conn, spec, &e), 0);
		pthread_mutex_lock(&core->lock);
		core->mail[core->mail_count++] = hello.conn;
		pthread_mutex_unlock(&core->lock);
		accepted++;
	}
}

static void test_threads(void **state)
{
	struct transport_config config = {0};
	struct span spans[CHUNKS] = {{0}};
	struct conn_spec spec = {.chunk_count = CHUNKS, .spans = spans, .payload_max = BYTES};
	struct worker workers[WORKERS] = {{0}};
	struct core cores[CORES];
	pthread_t core_threads[CORES];
	pthread_t worker_threads[WORKERS];
	struct transport *t;
	char address[128];
	struct err e;

	memset(cores, 0, sizeof(cores));
	assert_int_equal(transport_tcp.open(&config, &t, &e), 0);
	assert_int_equal(t->ops->listen(t, "127.0.0.1", address, sizeof(address), &e), 0);
	for (unsigned i = 0; i < CORES; i++) {
		assert_int_equal(t->ops->queue_create(t, MEM_NODE_ANY, &cores[i].q, &e), 0);
		pthread_mutex_init(&cores[i].lock, NULL);
		cores[i].spec = &spec;
		cores[i].sums = calloc(CHUNKS, BYTES);
		cores[i].results = calloc(CHUNKS, BYTES);
		assert_int_equal(pthread_create(&core_threads[i], NULL, core_main, &cores[i]), 0);
	}
	for (unsigned i = 0; i < WORKERS; i++) {
		workers[i].rank = i;
		workers[i].address = address;
		assert_int_equal(pthread_create(&worker_threads[i], NULL, worker_main, &workers[i]), 0);
	}
	control_accept_all(t, cores, &spec);
	for (unsigned i = 0; i < WORKERS; i++) {
		pthread_join(worker_threads[i], NULL);
		assert_int_equal(workers[i].errors, 0);
	}
	for (unsigned i = 0; i < CORES; i++) {
		pthread_join(core_threads[i], NULL);
		assert_int_equal(cores[i].errors, 0);
		t->ops->queue_destroy(t, cores[i].q);
		pthread_mutex_destroy(&cores[i].lock);
		free(cores[i].sums);
		free(cores[i].results);
	}
	t->ops->close(t);
}

TEST_PROGRAM(test_tcp_threads)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
