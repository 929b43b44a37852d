/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a worker that means harm can do to a box through the memory, the bells and the socket they share: nothing
 * but lose its own connection. The hostile worker is played by hand: it has proved itself, and then does as it
 * likes. What a hostile box can do to a worker is in test_shm_hostile_box.c. An honest worker exchanges in between,
 * and must not notice.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/shm_rig.h"
#include "transport/handshake.h"
#include "transport/shm_parcel.h"
#include "transport/shm_ring.h"

/* The hostile worker: a socket, descriptors and mappings. */
struct hostile {
	int socket;
	struct shm_parcel parcel;
	struct shm_control *control; /* [2], box and worker */
	struct shm_entry *up;
	_Atomic uint64_t *up_places;
	uint8_t *memory, *push;
	uint32_t tail; /* entries it has published */
};

struct scene {
	struct shm_box box;
	struct shm_worker honest;
	struct conn *honest_conn, *hostile_conn;
	struct hostile hostile;
	uint64_t round; /* of the honest exchange */
};

static int hostile_dial(const char *address)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	REQUIRE(fd >= 0);
	memcpy(name.sun_path + 1, address + 1, strlen(address) - 1);
	REQUIRE(connect(fd, (struct sockaddr *)&name, (socklen_t)(sizeof(sa_family_t) + strlen(address))) == 0);
	return fd;
}

/* Moves the hostile worker's handshake on; 0 when it is done. */
static int hostile_shake(int fd, struct handshake *h)
{
	uint8_t in[HANDSHAKE_BYTES_MAX];
	const uint8_t *out;
	size_t bytes;
	ssize_t n;

	while (handshake_wants(h)) {
		n = recv(fd, in, handshake_wants(h), MSG_DONTWAIT);
		if (n < 0)
			return -errno;
		REQUIRE(n > 0 && handshake_input(h, in, (size_t)n) == 0);
		out = handshake_output(h, &bytes);
		if (bytes) {
			REQUIRE(send(fd, out, bytes, 0) == (ssize_t)bytes);
			handshake_sent(h, bytes);
		}
	}
	return 0;
}

static void hostile_map(struct hostile *h)
{
	h->memory = mmap(NULL, h->parcel.ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, h->parcel.fds[SHM_FD_RING], 0);
	h->push = mmap(NULL, h->parcel.push_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, h->parcel.fds[SHM_FD_PUSH], 0);
	REQUIRE(h->memory != MAP_FAILED && h->push != MAP_FAILED);
	h->control = (struct shm_control *)(void *)h->memory;
	h->up = (struct shm_entry *)(void *)(h->memory + SHM_RING_PAGE);
	h->up_places = (_Atomic uint64_t *)(void *)(h->up + 2 * h->parcel.capacity);
	h->tail = SHM_RING_FIRST;
}

/* Proves itself like any worker, and takes the parcel apart. Returns the box's end, adopted. */
static struct conn *hostile_join(struct shm_box *b, struct hostile *h)
{
	struct err e = {0};
	struct conn *c = NULL;
	struct handshake hands;
	struct hello hello;

	h->socket = hostile_dial(b->address);
	handshake_begin_worker(&hands, 66, 0, shm_rig_key);
	while (hostile_shake(h->socket, &hands) < 0) {
		if (transport_shm.accept(b->t, clock_now_ns(), &hello) < 0)
			continue;
		c = hello.conn;
		REQUIRE(transport_shm.admit(b->t, c, &b->spec, &e) == 0);
	}
	REQUIRE(c && shm_parcel_receive(h->socket, &h->parcel) == 0);
	hostile_map(h);
	REQUIRE(b->q->ops->adopt(b->q, c, &b->spec) == 0);
	return c;
}

static void hostile_leave(struct hostile *h)
{
	munmap(h->memory, h->parcel.ring_bytes);
	munmap(h->push, h->parcel.push_bytes);
	shm_parcel_close(&h->parcel);
	if (h->socket >= 0)
		close(h->socket);
}

static void hostile_write_entry_at(struct hostile *h, const struct wire_header *header, uint64_t place)
{
	uint64_t words[8];
	struct shm_entry *at = &h->up[h->tail & (h->parcel.capacity - 1)];

	atomic_store_explicit(&h->up_places[h->tail++ & (h->parcel.capacity - 1)], place, memory_order_relaxed);

	wire_encode(header, (uint8_t *)words);
	for (unsigned i = 0; i < 8; i++)
		atomic_store_explicit(&at->words[i], words[i], memory_order_relaxed);
}

static void hostile_write_entry(struct hostile *h, const struct wire_header *header)
{
	hostile_write_entry_at(h, header, 0);
}

static void hostile_publish(struct hostile *h)
{
	atomic_store(&h->control[SHM_WORKER].tail, h->tail);
}

static struct scene *scene_open(void)
{
	struct scene *s = calloc(1, sizeof(*s));

	assert_non_null(s);
	shm_box_open(&s->box, 8);
	s->honest_conn = shm_rig_join(&s->box, &s->honest, 1);
	s->hostile_conn = hostile_join(&s->box, &s->hostile);
	return s;
}

/* An exchange of the honest worker, while events of the other one may come, too; those are dropped on the floor. */
static void scene_honest_exchange(struct scene *s)
{
	uint32_t chunk = (uint32_t)(s->round % SHM_RIG_CHUNKS);
	struct event ev;

	REQUIRE(shm_rig_push(&s->honest, chunk, s->round, NULL) == 0);
	s->honest.q->ops->flush(s->honest.q);
	do {
		ev = shm_rig_await(s->box.q);
		if (ev.slot)
			s->box.q->ops->release(s->box.q, ev.slot);
	} while (ev.conn != s->honest_conn);
	REQUIRE(ev.type == EVENT_MESSAGE && shm_rig_matches(ev.payload, chunk, s->round));
	REQUIRE(shm_rig_result(&s->box, s->honest_conn, chunk, s->round, NULL) == 0);
	s->box.q->ops->flush(s->box.q);
	ev = shm_rig_await(s->honest.q);
	REQUIRE(ev.type == EVENT_MESSAGE && shm_rig_matches(ev.payload, chunk, s->round));
	s->honest.q->ops->release(s->honest.q, ev.slot);
	s->round++;
}

/* The box ends the hostile connection with this error, next, and the honest one goes on. */
static void scene_expect_closed(struct scene *s, int error)
{
	struct event ev = shm_rig_await(s->box.q);

	assert_int_equal(ev.type, EVENT_CLOSED);
	assert_ptr_equal(ev.conn, s->hostile_conn);
	assert_int_equal(ev.error, error);
	assert_int_equal(
		s->box.q->ops->send(s->box.q, s->hostile_conn, &(struct wire_header){.type = WIRE_CREDIT}, NULL, NULL),
		-EPIPE);
	shm_rig_silence(s->box.q);
	scene_honest_exchange(s);
}

static void scene_close(struct scene *s)
{
	for (unsigned i = 0; i < 10; i++)
		scene_honest_exchange(s);
	s->box.q->ops->drop(s->box.q, s->hostile_conn);
	hostile_leave(&s->hostile);
	for (unsigned i = 0; i < 10; i++)
		scene_honest_exchange(s);
	s->box.q->ops->drop(s->box.q, s->honest_conn);
	shm_worker_close(&s->honest);
	shm_box_close(&s->box);
	free(s);
}

/* ---- the memory itself ---- */

static void memory_can_be_neither_cut_nor_sealed(void **state)
{
	struct scene *s = scene_open();
	const int *fds = s->hostile.parcel.fds;

	for (unsigned i = SHM_FD_RING; i <= SHM_FD_RESULT; i++) {
		assert_int_equal(ftruncate(fds[i], 0), -1);
		assert_int_equal(errno, EPERM);
		assert_int_equal(ftruncate(fds[i], 1 << 30), -1);
		assert_int_equal(errno, EPERM);
		assert_int_equal(fallocate(fds[i], 0, 1 << 20, 1 << 20), -1);
		assert_int_equal(fcntl(fds[i], F_ADD_SEALS, F_SEAL_WRITE), -1);
		assert_int_equal(errno, EPERM);
	}
	scene_close(s);
}

static void results_cannot_be_written(void **state)
{
	struct scene *s = scene_open();
	int fd = s->hostile.parcel.fds[SHM_FD_RESULT];
	size_t bytes = s->hostile.parcel.result_bytes;
	char path[64];
	void *at;
	int again;

	assert_ptr_equal(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	assert_int_equal(errno, EPERM);
	at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(at, MAP_FAILED);
	assert_int_equal(mprotect(at, bytes, PROT_READ | PROT_WRITE), -1);
	assert_int_equal(errno, EACCES);
	munmap(at, bytes);
	assert_int_equal(pwrite(fd, "evil", 4, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
	assert_int_equal(errno, EPERM);
	/* A file of one's own on the same memory. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR | O_CLOEXEC);
	if (again >= 0) {
		assert_ptr_equal(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0), MAP_FAILED);
		assert_int_equal(pwrite(again, "evil", 4, 0), -1);
		close(again);
	}
	scene_close(s);
}

/* Holes read as zeros: the box reads zeros for gradients, and no magic in the ring. */
static void holes_in_the_memory_read_as_zeros(void **state)
{
	struct scene *s = scene_open();
	struct hostile *h = &s->hostile;
	struct wire_header header = shm_rig_push_header(0, 1);
	const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
	struct event ev;

	hostile_write_entry(h, &header);
	hostile_publish(h);
	assert_int_equal(fallocate(h->parcel.fds[SHM_FD_PUSH], mode, 0, (off_t)h->parcel.push_bytes), 0);
	ev = shm_rig_await(s->box.q);
	assert_int_equal(ev.type, EVENT_MESSAGE);
	assert_int_equal(*(const uint8_t *)ev.payload, 0);
	s->box.q->ops->release(s->box.q, ev.slot);

	hostile_write_entry(h, &header);
	assert_int_equal(fallocate(h->parcel.fds[SHM_FD_RING], mode, SHM_RING_PAGE, SHM_RING_PAGE), 0);
	hostile_publish(h);
	scene_expect_closed(s, -EPROTO);
	scene_close(s);
}

/* ---- the ring ---- */

static void impossible_indices_end_the_connection(void **state)
{
	static const uint32_t tails[] = {SHM_RING_FIRST + 17, SHM_RING_FIRST - 1, 0x80000000u, 12345};

	for (unsigned i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
		struct scene *s = scene_open();

		atomic_store(&s->hostile.control[SHM_WORKER].tail, tails[i]);
		scene_expect_closed(s, -EPROTO);
		scene_close(s);
	}
}

/* The box asks how far its results were taken when its lane is full. */
static void an_impossible_head_ends_the_connection(void **state)
{
	struct wire_header credit = {.type = WIRE_CREDIT};
	struct scene *s = scene_open();
	struct queue *q = s->box.q;

	for (unsigned i = 0; i < SHM_RING_CAPACITY_MIN; i++)
		assert_int_equal(q->ops->send(q, s->hostile_conn, &credit, NULL, NULL), 0);
	q->ops->flush(q);
	assert_int_equal(q->ops->send(q, s->hostile_conn, &credit, NULL, NULL), -EAGAIN);
	atomic_store(&s->hostile.control[SHM_WORKER].head, SHM_RING_FIRST + 17);
	scene_expect_closed(s, -EPROTO);
	scene_close(s);

	s = scene_open();
	q = s->box.q;
	for (unsigned i = 0; i < SHM_RING_CAPACITY_MIN; i++)
		assert_int_equal(q->ops->send(q, s->hostile_conn, &credit, NULL, NULL), 0);
	atomic_store(&s->hostile.control[SHM_WORKER].head, SHM_RING_FIRST - 1);
	assert_int_equal(q->ops->send(q, s->hostile_conn, &credit, NULL, NULL), -EPIPE);
	scene_expect_closed(s, -EPROTO);
	scene_close(s);
}

static void entries_about_chunks_that_are_not_so_end_the_connection(void **state)
{
	struct wire_header bad[] = {
		shm_rig_push_header(SHM_RIG_CHUNKS, 1),
		shm_rig_push_header(UINT32_MAX, 1),
		shm_rig_push_header(0, 1),
		shm_rig_push_header(0, 1),
		shm_rig_push_header(0, 1),
		{.type = WIRE_PULL, .chunk = SHM_RIG_CHUNKS},
	};

	bad[2].length = SHM_RIG_CHUNK_BYTES - 1;
	bad[3].length = SHM_RIG_CHUNK_BYTES + 1;
	bad[4].length = WIRE_PAYLOAD_MAX;
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct scene *s = scene_open();

		hostile_write_entry(&s->hostile, &bad[i]);
		hostile_publish(&s->hostile);
		scene_expect_closed(s, -EPROTO);
		scene_close(s);
	}
}

/* A slot is a number, not an address. */
static void entries_in_slots_that_are_not_there_end_the_connection(void **state)
{
	static const uint64_t bad[] = {
		SHM_RIG_SLOTS + 1, SHM_RIG_SLOT_OFFSET, UINT32_MAX, 1ull << 32, 1ull << 63, UINT64_MAX - 1, UINT64_MAX};
	struct wire_header header = shm_rig_push_header(2, 1);

	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct scene *s = scene_open();

		for (uint64_t slot = 1; slot <= SHM_RIG_SLOTS; slot++) {
			struct event ev;

			hostile_write_entry_at(&s->hostile, &header, slot);
			hostile_publish(&s->hostile);
			ev = shm_rig_await(s->box.q);
			assert_int_equal(ev.type, EVENT_MESSAGE);
			assert_ptr_equal(ev.payload,
				(uint8_t *)s->box.push.base + SHM_RIG_SLOT_OFFSET + (slot - 1) * SHM_RIG_SLOT_BYTES);
			s->box.q->ops->release(s->box.q, ev.slot);
		}
		hostile_write_entry_at(&s->hostile, &header, bad[i]);
		hostile_publish(&s->hostile);
		scene_expect_closed(s, -EPROTO);
		scene_close(s);
	}
}

static void entries_that_do_not_decode_end_the_connection(void **state)
{
	struct wire_header header = shm_rig_push_header(0, 1);
	struct scene *s = scene_open();

	hostile_write_entry(&s->hostile, &header);
	atomic_store(&s->hostile.up[SHM_RING_FIRST & 15].words[0], 0);
	hostile_publish(&s->hostile);
	scene_expect_closed(s, -EPROTO);
	scene_close(s);

	s = scene_open();
	header.rank = WIRE_WORLD_MAX;
	hostile_write_entry(&s->hostile, &header);
	hostile_publish(&s->hostile);
	scene_expect_closed(s, -ERANGE);
	scene_close(s);
}

/* Good entries before a bad one still count; those behind it do not. */
static void a_bad_entry_does_not_spoil_those_before_it(void **state)
{
	struct wire_header good = shm_rig_push_header(1, 1), bad = shm_rig_push_header(99, 1);
	struct scene *s = scene_open();
	struct event events[8];

	hostile_write_entry(&s->hostile, &good);
	hostile_write_entry(&s->hostile, &bad);
	hostile_write_entry(&s->hostile, &good);
	hostile_publish(&s->hostile);
	assert_int_equal(shm_rig_poll(s->box.q, events, 8), 2);
	assert_int_equal(events[0].type, EVENT_MESSAGE);
	s->box.q->ops->release(s->box.q, events[0].slot);
	assert_int_equal(events[1].type, EVENT_CLOSED);
	assert_int_equal(events[1].error, -EPROTO);
	scene_close(s);
}

/*
 * A descriptor that is rewritten while the box reads it is either whole or refused, and whatever is yielded lies
 * within the region.
 */
struct scribbler {
	struct hostile *h;
	_Atomic bool stop;
	uint64_t seed;
	bool indices; /* not the entries alone */
};

static uint64_t scribbler_random(struct scribbler *s)
{
	s->seed ^= s->seed << 13;
	s->seed ^= s->seed >> 7;
	s->seed ^= s->seed << 17;
	return s->seed;
}

static void *scribbler_run(void *arg)
{
	struct scribbler *s = arg;
	struct wire_header headers[4] = {shm_rig_push_header(0, 1), shm_rig_push_header(3, 2),
		{.type = WIRE_PULL, .chunk = 1}, shm_rig_push_header(2, 3)};
	uint64_t words[8];

	while (!atomic_load_explicit(&s->stop, memory_order_relaxed)) {
		uint64_t r = scribbler_random(s);
		struct shm_entry *entry = &s->h->up[r >> 8 & (s->h->parcel.capacity - 1)];

		wire_encode(&headers[r & 3], (uint8_t *)words);
		for (unsigned i = 0; i < 8; i++)
			atomic_store_explicit(&entry->words[i], words[i], memory_order_relaxed);
		if (r >> 20 & 1)
			atomic_store_explicit(&entry->words[r >> 21 & 7], r >> 24, memory_order_relaxed);
		if (r >> 23 & 1)
			atomic_store_explicit(&s->h->up_places[r >> 8 & (s->h->parcel.capacity - 1)],
				r >> 22 & 1 ? r >> 60 : r, memory_order_relaxed);
		if (s->indices) {
			_Atomic uint32_t *words32 = (_Atomic uint32_t *)(void *)s->h->control;

			atomic_store_explicit(&words32[r >> 30 & 255], (uint32_t)(r >> 40), memory_order_relaxed);
		}
		atomic_fetch_add_explicit(
			&s->h->control[SHM_WORKER].tail, (uint32_t)(r >> 50 & 3), memory_order_relaxed);
	}
	return NULL;
}

static bool scribbled_event_is_sound(const struct scene *s, const struct event *ev)
{
	const struct span *span;
	uint64_t at;

	if (ev->type != EVENT_MESSAGE)
		return true;
	if (ev->header.type != WIRE_CREDIT && ev->header.chunk >= SHM_RIG_CHUNKS)
		return false;
	if (!ev->payload)
		return ev->header.length == 0 && !ev->slot;
	span = &s->box.spans[ev->header.chunk];
	at = (uint64_t)((const uint8_t *)ev->payload - (const uint8_t *)s->box.push.base);
	if (ev->header.length != span->bytes)
		return false;
	return at == span->offset ||
	       (at >= SHM_RIG_SLOT_OFFSET && (at - SHM_RIG_SLOT_OFFSET) % SHM_RIG_SLOT_BYTES == 0 &&
		       (at - SHM_RIG_SLOT_OFFSET) / SHM_RIG_SLOT_BYTES < SHM_RIG_SLOTS);
}

/* Polls until the hostile connection is closed (false), or for a while (true). */
static bool scribbled_box_survives(struct scene *s, uint64_t ns)
{
	uint64_t until = clock_now_ns() + ns;
	struct event events[16];

	while (clock_now_ns() < until) {
		unsigned n = shm_rig_poll(s->box.q, events, 16);

		for (unsigned i = 0; i < n; i++) {
			REQUIRE(scribbled_event_is_sound(s, &events[i]));
			if (events[i].type == EVENT_CLOSED) {
				REQUIRE(events[i].conn == s->hostile_conn && events[i].error < 0);
				return false;
			}
			if (events[i].slot)
				s->box.q->ops->release(s->box.q, events[i].slot);
			(void)shm_rig_result(&s->box, s->hostile_conn, 0, 0, NULL);
		}
		s->box.q->ops->flush(s->box.q);
	}
	return true;
}

static void scribbling_reaches_nothing_but_its_own_connection(void **state)
{
	for (unsigned i = 0; i < 60; i++) {
		struct scene *s = scene_open();
		struct scribbler scribbler = {
			.h = &s->hostile, .seed = 0x9e3779b97f4a7c15u * (i + 1), .indices = i % 2};
		pthread_t thread;

		REQUIRE(pthread_create(&thread, NULL, scribbler_run, &scribbler) == 0);
		(void)scribbled_box_survives(s, 30 * NS_PER_MS);
		scene_honest_exchange(s);
		atomic_store(&scribbler.stop, true);
		REQUIRE(pthread_join(thread, NULL) == 0);
		scene_close(s);
	}
}

/* ---- bells and the socket ---- */

static void *bell_blocked(void *arg)
{
	uint64_t one = 1;

	(void)!write(*(int *)arg, &one, sizeof(one));
	return NULL;
}

/*
 * A full eventfd and a full pipe, both made blocking as far as the worker can: the box neither reads the one nor
 * waits for the other.
 */
static void bells_cannot_be_made_to_block(void **state)
{
	struct scene *s = scene_open();
	const int *fds = s->hostile.parcel.fds;
	uint64_t full = UINT64_MAX - 1;
	char path[64], page[4096] = {0};
	struct wire_header credit = {.type = WIRE_CREDIT};
	pthread_t thread;
	int up = fds[SHM_FD_UP], writer;

	assert_int_equal(fcntl(up, F_SETFL, 0), 0);
	assert_int_equal(write(up, &full, sizeof(full)), sizeof(full));
	REQUIRE(pthread_create(&thread, NULL, bell_blocked, &up) == 0);
	assert_int_equal(fcntl(fds[SHM_FD_DOWN], F_SETFL, 0), 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fds[SHM_FD_DOWN]);
	writer = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	assert_true(writer >= 0);
	while (write(writer, page, sizeof(page)) > 0 || write(writer, page, 1) > 0)
		;
	assert_int_equal(errno, EAGAIN);

	for (unsigned i = 0; i < 200; i++) {
		/* It pretends to sleep, so that it is rung each time. */
		atomic_store(&s->hostile.control[SHM_WORKER].armed, UINT32_MAX);
		(void)s->box.q->ops->send(s->box.q, s->hostile_conn, &credit, NULL, NULL);
		s->box.q->ops->flush(s->box.q);
		(void)s->box.q->ops->arm(s->box.q);
		shm_rig_silence(s->box.q);
		if (i < 5)
			scene_honest_exchange(s);
	}
	/* Lets the blocked thread go. */
	assert_int_equal(read(up, &full, sizeof(full)), sizeof(full));
	REQUIRE(pthread_join(thread, NULL) == 0);
	close(writer);
	scene_close(s);
}

/* The worker closes its end of the pipe, of which the box has a copy: no SIGPIPE. */
static void a_bell_without_a_listener_raises_no_signal(void **state)
{
	struct wire_header credit = {.type = WIRE_CREDIT};
	struct scene *s = scene_open();

	signal(SIGPIPE, SIG_DFL);
	close(s->hostile.parcel.fds[SHM_FD_DOWN]);
	s->hostile.parcel.fds[SHM_FD_DOWN] = -1;
	atomic_store(&s->hostile.control[SHM_WORKER].armed, UINT32_MAX);
	assert_int_equal(s->box.q->ops->send(s->box.q, s->hostile_conn, &credit, NULL, NULL), 0);
	s->box.q->ops->flush(s->box.q);
	scene_close(s);
}

static void words_on_the_socket_end_the_connection(void **state)
{
	struct scene *s = scene_open();

	assert_int_equal(send(s->hostile.socket, "hello?", 6, 0), 6);
	scene_expect_closed(s, -EPROTO);
	scene_close(s);
}

/* Descriptors that come with the words are not kept. */
static void descriptors_on_the_socket_are_not_kept(void **state)
{
	struct shm_parcel parcel = {.capacity = 16, .ring_bytes = 1, .push_bytes = 1, .result_bytes = 1};
	struct scene *s = scene_open();
	int fds[2];

	assert_int_equal(pipe(fds), 0);
	for (unsigned i = 0; i < SHM_FD_COUNT; i++)
		parcel.fds[i] = fds[1];
	assert_int_equal(shm_parcel_send(s->hostile.socket, &parcel), 0);
	close(fds[1]);
	scene_expect_closed(s, -EPROTO);
	s->box.q->ops->drop(s->box.q, s->hostile_conn);
	hostile_leave(&s->hostile);
	/* Had anybody kept them, the pipe would have a writer, and this would say EAGAIN. */
	assert_int_equal(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(read(fds[0], &parcel, 1), 0);
	close(fds[0]);
	s->hostile_conn = hostile_join(&s->box, &s->hostile);
	scene_close(s);
}

/* It hangs up but keeps the memory, and goes on writing: what comes after the end is not read. */
static void nothing_is_read_after_the_end(void **state)
{
	struct wire_header header = shm_rig_push_header(0, 1);
	struct scene *s = scene_open();
	struct event ev;

	hostile_write_entry(&s->hostile, &header);
	hostile_write_entry(&s->hostile, &header);
	hostile_publish(&s->hostile);
	close(s->hostile.socket);
	s->hostile.socket = -1;
	do {
		/* An endless supply, had it not ended. */
		hostile_write_entry(&s->hostile, &header);
		hostile_publish(&s->hostile);
		ev = shm_rig_await(s->box.q);
		if (ev.slot)
			s->box.q->ops->release(s->box.q, ev.slot);
		REQUIRE(s->hostile.tail - SHM_RING_FIRST < 1u << 24);
		if (s->hostile.tail - SHM_RING_FIRST > 8)
			usleep(500);
	} while (ev.type == EVENT_MESSAGE);
	assert_int_equal(ev.type, EVENT_CLOSED);
	assert_int_equal(ev.error, -ECONNRESET);
	shm_rig_silence(s->box.q);
	scene_close(s);
}

/* Who proved itself but never takes the parcel, and who hangs up between hello and welcome. */
static void half_a_setup_is_ended_like_a_whole_one(void **state)
{
	struct scene *s = scene_open();
	struct handshake hands;
	struct hello hello;
	struct err e = {0};
	struct event ev;
	int fd = hostile_dial(s->box.address);

	handshake_begin_worker(&hands, 66, 0, shm_rig_key);
	while (transport_shm.accept(s->box.t, clock_now_ns(), &hello) < 0)
		(void)hostile_shake(fd, &hands);
	assert_int_equal(transport_shm.admit(s->box.t, hello.conn, &s->box.spec, &e), 0);
	assert_int_equal(s->box.q->ops->adopt(s->box.q, hello.conn, &s->box.spec), 0);
	close(fd);
	ev = shm_rig_await(s->box.q);
	assert_true(ev.type == EVENT_CLOSED && ev.conn == hello.conn && ev.error == -ECONNRESET);
	s->box.q->ops->drop(s->box.q, hello.conn);

	fd = hostile_dial(s->box.address);
	handshake_begin_worker(&hands, 66, 0, shm_rig_key);
	while (transport_shm.accept(s->box.t, clock_now_ns(), &hello) < 0)
		(void)hostile_shake(fd, &hands);
	close(fd);
	assert_int_equal(transport_shm.admit(s->box.t, hello.conn, &s->box.spec, &e), -EPIPE);
	assert_non_null(strstr(e.text, "pid"));
	scene_close(s);
}

TEST_PROGRAM(test_shm_hostile)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_can_be_neither_cut_nor_sealed),
		cmocka_unit_test(results_cannot_be_written),
		cmocka_unit_test(holes_in_the_memory_read_as_zeros),
		cmocka_unit_test(impossible_indices_end_the_connection),
		cmocka_unit_test(an_impossible_head_ends_the_connection),
		cmocka_unit_test(entries_about_chunks_that_are_not_so_end_the_connection),
		cmocka_unit_test(entries_in_slots_that_are_not_there_end_the_connection),
		cmocka_unit_test(entries_that_do_not_decode_end_the_connection),
		cmocka_unit_test(a_bad_entry_does_not_spoil_those_before_it),
		cmocka_unit_test(scribbling_reaches_nothing_but_its_own_connection),
		cmocka_unit_test(bells_cannot_be_made_to_block),
		cmocka_unit_test(a_bell_without_a_listener_raises_no_signal),
		cmocka_unit_test(words_on_the_socket_end_the_connection),
		cmocka_unit_test(descriptors_on_the_socket_are_not_kept),
		cmocka_unit_test(nothing_is_read_after_the_end),
		cmocka_unit_test(half_a_setup_is_ended_like_a_whole_one),
	};

	/* A box that blocks is what some of this is about. */
	alarm(120);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
