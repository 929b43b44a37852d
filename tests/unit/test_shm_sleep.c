/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sleeping on the shared-memory transport: no wake-up is lost, in one thread, in two and between processes.
 * `test_shm_sleep --measure` prints latencies and rates.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/shm_rig.h"
#include "transport/shm_ring.h"

/* ---- sleeping ---- */

static int readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0);
}

static void arm_sleeps_only_when_there_is_nothing(void **state)
{
	struct shm_worker w;
	struct event ev;
	struct shm_box b;
	struct conn *c;
	int cookie, fd;

	shm_box_open(&b, 8);
	assert_true(b.q->ops->arm(b.q) >= 0); /* nobody is there yet */
	c = shm_rig_join(&b, &w, 7);
	shm_rig_silence(b.q);
	fd = b.q->ops->arm(b.q);
	assert_true(fd >= 0 && !readable(fd));

	/* Data: the wake-up comes, once; the fd stays the same. */
	assert_int_equal(shm_rig_push(&w, 0, 1, NULL), 0);
	assert_false(readable(fd));
	w.q->ops->flush(w.q);
	assert_true(readable(fd));
	assert_int_equal(b.q->ops->arm(b.q), -EAGAIN);
	assert_int_equal(shm_rig_await(b.q).type, EVENT_MESSAGE);
	shm_rig_silence(b.q);
	assert_int_equal(b.q->ops->arm(b.q), fd);
	assert_false(readable(fd));

	/* A completion that was not polled. */
	assert_int_equal(shm_rig_push(&w, 0, 2, &cookie), 0);
	w.q->ops->flush(w.q);
	assert_int_equal(w.q->ops->arm(w.q), -EAGAIN);
	assert_int_equal(shm_rig_await(w.q).type, EVENT_SENT);
	fd = w.q->ops->arm(w.q);
	assert_true(fd >= 0 && !readable(fd));

	/* The worker's bell. */
	assert_int_equal(shm_rig_result(&b, c, 0, 1, NULL), 0);
	b.q->ops->flush(b.q);
	assert_true(readable(fd));
	assert_int_equal(shm_rig_await(w.q).type, EVENT_MESSAGE);
	shm_rig_silence(w.q);
	assert_int_equal(w.q->ops->arm(w.q), fd);
	assert_false(readable(fd));

	/* The end. */
	b.q->ops->drop(b.q, c);
	assert_true(readable(fd));
	ev = shm_rig_await(w.q);
	assert_int_equal(ev.type, EVENT_CLOSED);
	fd = w.q->ops->arm(w.q);
	assert_true(fd >= 0 && !readable(fd));
	shm_worker_close(&w);
	shm_box_close(&b);
}

static void arm_wakes_for_room(void **state)
{
	struct event events[64];
	struct shm_worker w;
	struct shm_box b;
	struct conn *c;
	int fd;

	shm_box_open(&b, 8);
	c = shm_rig_join(&b, &w, 7);
	while (shm_rig_push(&w, 0, 1, NULL) == 0)
		;
	w.q->ops->flush(w.q);
	fd = w.q->ops->arm(w.q);
	assert_true(fd >= 0 && !readable(fd));
	assert_int_equal(shm_rig_poll(b.q, events, 64), SHM_RING_CAPACITY_MIN);
	assert_true(readable(fd));
	/* Room that was not yielded yet keeps it awake. */
	assert_int_equal(w.q->ops->arm(w.q), -EAGAIN);
	assert_int_equal(shm_rig_await(w.q).type, EVENT_WRITABLE);
	shm_rig_silence(w.q);
	assert_true(w.q->ops->arm(w.q) >= 0);
	b.q->ops->drop(b.q, c);
	shm_worker_close(&w);
	shm_box_close(&b);
}

/* One end of a ball game in which both sleep whenever they can: a lost wake-up ends it. */
static void play_box(struct shm_box *b, struct conn *c, unsigned rounds, struct event (*next)(struct queue *))
{
	for (unsigned i = 0; i < rounds; i++) {
		struct event ev = next(b->q);

		REQUIRE(ev.type == EVENT_MESSAGE && ev.header.round == i);
		REQUIRE(shm_rig_matches(ev.payload, i % SHM_RIG_CHUNKS, i));
		b->q->ops->release(b->q, ev.slot);
		REQUIRE(shm_rig_result(b, c, i % SHM_RIG_CHUNKS, i, NULL) == 0);
		b->q->ops->flush(b->q);
	}
}

static void play_worker(struct shm_worker *w, unsigned rounds, struct event (*next)(struct queue *))
{
	for (unsigned i = 0; i < rounds; i++) {
		struct event ev;

		REQUIRE(shm_rig_push(w, i % SHM_RIG_CHUNKS, i, NULL) == 0);
		w->q->ops->flush(w->q);
		ev = next(w->q);
		REQUIRE(ev.type == EVENT_MESSAGE && ev.header.round == i);
		REQUIRE(shm_rig_matches(ev.payload, i % SHM_RIG_CHUNKS, i));
		w->q->ops->release(w->q, ev.slot);
	}
}

static void play_in_processes(
	unsigned rounds, struct event (*box)(struct queue *), struct event (*worker)(struct queue *))
{
	struct shm_box b;
	struct event ev;
	struct conn *c;
	pid_t pid;

	shm_box_open(&b, 8);
	pid = fork();
	if (pid == 0) {
		struct shm_worker w;

		shm_worker_open(&w, b.address, 7);
		shm_worker_adopt(&w);
		play_worker(&w, rounds, worker);
		shm_worker_close(&w);
		_exit(0);
	}
	c = shm_box_take(&b, 7);
	play_box(&b, c, rounds, box);
	ev = shm_rig_sleep(b.q);
	REQUIRE(ev.type == EVENT_CLOSED && ev.error == 0);
	shm_rig_reap(pid, 0);
	b.q->ops->drop(b.q, c);
	shm_box_close(&b);
}

static void no_wake_up_is_lost_between_processes(void **state)
{
	play_in_processes(20000, shm_rig_sleep, shm_rig_sleep);
	play_in_processes(5000, shm_rig_sleep, shm_rig_await);
	play_in_processes(5000, shm_rig_await, shm_rig_sleep);
	play_in_processes(5000, shm_rig_await, shm_rig_await);
}

static void *play_worker_thread(void *arg)
{
	const char *address = arg;
	struct shm_worker w;

	shm_worker_open(&w, address, 7);
	shm_worker_adopt(&w);
	play_worker(&w, 5000, shm_rig_sleep);
	play_worker(&w, 5000, shm_rig_await);
	shm_worker_close(&w);
	return NULL;
}

static void both_ends_in_threads(void **state)
{
	pthread_t thread;
	struct shm_box b;
	struct conn *c;

	shm_box_open(&b, 8);
	REQUIRE(pthread_create(&thread, NULL, play_worker_thread, b.address) == 0);
	c = shm_box_take(&b, 7);
	play_box(&b, c, 5000, shm_rig_await);
	play_box(&b, c, 5000, shm_rig_sleep);
	assert_int_equal(shm_rig_sleep(b.q).type, EVENT_CLOSED);
	assert_int_equal(pthread_join(thread, NULL), 0);
	b.q->ops->drop(b.q, c);
	shm_box_close(&b);
}

/*
 * A stream in one direction against a full ring: producer and consumer both sleep, and wake each other for data and
 * for room.
 */
static void stream_worker(struct shm_worker *w, unsigned count)
{
	unsigned sent = 0;

	while (sent < count) {
		if (shm_rig_push(w, sent % SHM_RIG_CHUNKS, sent, NULL) == 0) {
			/* Single entries and bursts. */
			if (++sent % 7 == 0 || sent == count)
				w->q->ops->flush(w->q);
			continue;
		}
		w->q->ops->flush(w->q);
		REQUIRE(shm_rig_sleep(w->q).type == EVENT_WRITABLE);
	}
}

static void no_wake_up_is_lost_on_a_full_ring(void **state)
{
	enum { COUNT = 100000 };
	struct shm_box b;
	struct conn *c;
	pid_t pid;

	shm_box_open(&b, 8);
	pid = fork();
	if (pid == 0) {
		struct shm_worker w;

		shm_worker_open(&w, b.address, 7);
		shm_worker_adopt(&w);
		stream_worker(&w, COUNT);
		shm_worker_close(&w);
		_exit(0);
	}
	c = shm_box_take(&b, 7);
	for (unsigned i = 0; i < COUNT; i++) {
		struct event ev = shm_rig_sleep(b.q);

		REQUIRE(ev.type == EVENT_MESSAGE && ev.header.round == i);
		b.q->ops->release(b.q, ev.slot);
	}
	assert_int_equal(shm_rig_sleep(b.q).type, EVENT_CLOSED);
	shm_rig_reap(pid, 0);
	b.q->ops->drop(b.q, c);
	shm_box_close(&b);
}

/* ---- measuring ---- */

static int compare_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

enum { MEASURE_ROUNDS = 200000, MEASURE_ASLEEP = 50000, MEASURE_STREAM = 5000000 };

/* A core that does nothing but poll, as on a dedicated box; and one that yields when nothing came. No payloads. */
static struct event measure_spin(struct queue *q)
{
	struct event ev;

	while (q->ops->poll(q, clock_now_ns(), &ev, 1) == 0)
		;
	return ev;
}

static struct event measure_yield(struct queue *q)
{
	struct event ev;

	while (q->ops->poll(q, clock_now_ns(), &ev, 1) == 0)
		sched_yield();
	return ev;
}

static void measure_echo(struct shm_box *b, struct conn *c, unsigned rounds, struct event (*next)(struct queue *))
{
	struct wire_header credit = {.type = WIRE_CREDIT};

	for (unsigned i = 0; i < rounds; i++) {
		next(b->q);
		b->q->ops->send(b->q, c, &credit, NULL, NULL);
		b->q->ops->flush(b->q);
	}
}

static void measure_sink(struct shm_box *b)
{
	struct event events[64];
	uint64_t start = 0;

	for (unsigned got = 0; got < MEASURE_STREAM;) {
		unsigned n = b->q->ops->poll(b->q, clock_now_ns(), events, 64);

		if (n && !start)
			start = clock_now_ns();
		if (!n)
			sched_yield();
		got += n;
	}
	printf("stream of 64-byte entries, one connection, batches of 16: %.1f M entries/s\n",
		MEASURE_STREAM * 1e3 / (double)(clock_now_ns() - start));
}

static void measure_ping(struct shm_worker *w, const char *how, unsigned rounds, struct event (*next)(struct queue *))
{
	static uint64_t took[MEASURE_ROUNDS];
	struct wire_header pull = {.type = WIRE_PULL};

	for (unsigned i = 0; i < rounds; i++) {
		uint64_t start = clock_now_ns();

		w->q->ops->send(w->q, w->c, &pull, NULL, NULL);
		w->q->ops->flush(w->q);
		next(w->q);
		took[i] = clock_now_ns() - start;
	}
	qsort(took, rounds, sizeof(took[0]), compare_u64);
	printf("round trip of a 64-byte message, two processes, %s: p50 %llu p99 %llu ns\n", how,
		(unsigned long long)took[rounds / 2], (unsigned long long)took[rounds / 100 * 99]);
	fflush(stdout);
}

static void measure_flood(struct shm_worker *w)
{
	struct wire_header pull = {.type = WIRE_PULL};
	struct event ev;

	for (unsigned sent = 0; sent < MEASURE_STREAM;) {
		if (w->q->ops->send(w->q, w->c, &pull, NULL, NULL) == 0) {
			if (++sent % 16 == 0)
				w->q->ops->flush(w->q);
			continue;
		}
		w->q->ops->flush(w->q);
		while (w->q->ops->poll(w->q, clock_now_ns(), &ev, 1) == 0)
			sched_yield();
	}
	w->q->ops->flush(w->q);
}

/* What a bell could be: where it is heard, and how it is rung. */
struct bell {
	const char *name;
	int in[2], out[2]; /* of either player */
	bool unread[2];    /* edge-triggered and left alone */
};

static void bell_game(const struct bell *bell, int player, uint64_t took[MEASURE_ASLEEP])
{
	struct epoll_event ev = {.events = EPOLLIN | (bell->unread[player] ? EPOLLET : 0u)};
	const uint64_t one = 1;
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	char rings[64];

	REQUIRE(epoll_ctl(epoll, EPOLL_CTL_ADD, bell->in[player], &ev) == 0);
	for (unsigned i = 0; i < MEASURE_ASLEEP; i++) {
		took[i] = clock_now_ns();
		if (player == 0)
			REQUIRE(write(bell->out[0], &one, sizeof(one)) == sizeof(one));
		REQUIRE(epoll_wait(epoll, &ev, 1, -1) == 1);
		if (!bell->unread[player])
			REQUIRE(read(bell->in[player], rings, sizeof(rings)) > 0);
		if (player == 1)
			REQUIRE(write(bell->out[1], &one, sizeof(one)) == sizeof(one));
		took[i] = clock_now_ns() - took[i];
	}
	close(epoll);
}

static void measure_bell(const struct bell *bell)
{
	static uint64_t took[MEASURE_ASLEEP];
	pid_t pid = fork();

	if (pid == 0) {
		bell_game(bell, 1, took);
		_exit(0);
	}
	bell_game(bell, 0, took);
	qsort(took, MEASURE_ASLEEP, sizeof(took[0]), compare_u64);
	printf("round trip of bells alone, %s: p50 %llu ns\n", bell->name,
		(unsigned long long)took[MEASURE_ASLEEP / 2]);
	fflush(stdout);
	shm_rig_reap(pid, 0);
}

static void measure_bells(void)
{
	int up = eventfd(0, EFD_NONBLOCK), down = eventfd(0, EFD_NONBLOCK), pipe_fds[2], sockets[2];

	REQUIRE(up >= 0 && down >= 0 && pipe2(pipe_fds, O_NONBLOCK) == 0);
	REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	/* Player 0 is the box: it hears `up`, and rings the other. */
	measure_bell(&(struct bell){"eventfd and eventfd, both read", {up, down}, {down, up}, {false, false}});
	measure_bell(
		&(struct bell){"eventfd unread and pipe (ours)", {up, pipe_fds[0]}, {pipe_fds[1], up}, {true, false}});
	measure_bell(&(struct bell){"Unix socket", {sockets[0], sockets[1]}, {sockets[0], sockets[1]}, {false, false}});
}

static int measure(void)
{
	struct shm_box b;
	struct conn *c;
	pid_t pid;

	shm_box_open(&b, 512);
	pid = fork();
	if (pid == 0) {
		struct shm_worker w;

		shm_worker_open(&w, b.address, 7);
		shm_worker_adopt(&w);
		measure_ping(&w, "spinning", MEASURE_ROUNDS, measure_spin);
		measure_ping(&w, "sched_yield() between polls", MEASURE_ROUNDS, measure_yield);
		measure_ping(&w, "both asleep", MEASURE_ASLEEP, shm_rig_sleep);
		measure_flood(&w);
		measure_yield(w.q);
		_exit(0);
	}
	c = shm_box_take(&b, 7);
	measure_echo(&b, c, MEASURE_ROUNDS, measure_spin);
	measure_echo(&b, c, MEASURE_ROUNDS, measure_yield);
	measure_echo(&b, c, MEASURE_ASLEEP, shm_rig_sleep);
	measure_sink(&b);
	b.q->ops->drop(b.q, c);
	shm_rig_reap(pid, 0);
	shm_box_close(&b);
	measure_bells();
	return 0;
}

TEST_PROGRAM(test_shm_sleep)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(arm_sleeps_only_when_there_is_nothing),
		cmocka_unit_test(arm_wakes_for_room),
		cmocka_unit_test(no_wake_up_is_lost_between_processes),
		cmocka_unit_test(both_ends_in_threads),
		cmocka_unit_test(no_wake_up_is_lost_on_a_full_ring),
	};

	if (argc == 2 && strcmp(argv[1], "--measure") == 0)
		return measure();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
