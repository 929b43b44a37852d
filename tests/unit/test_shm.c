/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared-memory transport between ends that mean well: messages, and their end. Its rings, its setting up, its
 * sleeping and what a hostile peer can do to it are in test_shm_*.c; what every transport has to do in tests/suite.
 * /dev/shm is this process's own, so that what is left there is the transport's.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "tests/unit/cmocka_shim.h"
#include "tests/unit/shm_rig.h"
#include "transport/shm_internal.h"

/* A box and a worker of it; the connection's end at the box. */
static struct conn *both_open(struct shm_box *b, struct shm_worker *w)
{
	shm_box_open(b, 8);
	return shm_rig_join(b, w, 7);
}

static void both_close(struct shm_box *b, struct shm_worker *w, struct conn *c)
{
	b->q->ops->drop(b->q, c);
	shm_worker_close(w);
	shm_box_close(b);
}

/* ---- messages ---- */

static void payloads_are_read_where_they_lie(void **state)
{
	struct shm_worker w;
	struct event ev;
	struct shm_box b;
	struct conn *c;

	c = both_open(&b, &w);
	for (uint64_t round = 0; round < 200; round++) {
		uint32_t chunk = (uint32_t)round % SHM_RIG_CHUNKS;

		assert_int_equal(shm_rig_push(&w, chunk, round, NULL), 0);
		w.q->ops->flush(w.q);
		ev = shm_rig_await(b.q);
		assert_int_equal(ev.type, EVENT_MESSAGE);
		assert_ptr_equal(ev.conn, c);
		assert_int_equal(ev.header.type, WIRE_PUSH);
		assert_int_equal(ev.header.round, round);
		assert_ptr_equal(ev.payload, (uint8_t *)b.push.base + b.spans[chunk].offset);
		assert_true(shm_rig_matches(ev.payload, chunk, round));
		assert_non_null(ev.slot);
		b.q->ops->release(b.q, ev.slot);

		assert_int_equal(shm_rig_result(&b, c, chunk, round, NULL), 0);
		b.q->ops->flush(b.q);
		ev = shm_rig_await(w.q);
		assert_int_equal(ev.type, EVENT_MESSAGE);
		assert_int_equal(ev.header.type, WIRE_RESULT);
		assert_ptr_equal(ev.payload, (const uint8_t *)w.c->result + SHM_RIG_BASE + b.spans[chunk].offset);
		assert_true(shm_rig_matches(ev.payload, chunk, round));
		w.q->ops->release(w.q, ev.slot);
	}
	both_close(&b, &w, c);
}

/* Any chunk may come in any slot, and next to others that lie at their own places. */
static void payloads_may_lie_in_slots(void **state)
{
	struct shm_worker w;
	struct event ev;
	struct shm_box b;
	struct conn *c;

	c = both_open(&b, &w);
	assert_int_equal(w.c->slot_count, SHM_RIG_SLOTS);
	assert_int_equal(w.c->slot_bytes, SHM_RIG_SLOT_BYTES);
	assert_ptr_equal(w.c->slots, (uint8_t *)w.c->push + SHM_RIG_SLOT_OFFSET);
	for (uint64_t round = 0; round < 200; round++) {
		uint32_t chunk = (uint32_t)round % SHM_RIG_CHUNKS, other = (chunk + 1) % SHM_RIG_CHUNKS;
		uint32_t slot = 1 + (uint32_t)round % SHM_RIG_SLOTS;

		assert_int_equal(shm_rig_push_slot(&w, slot, chunk, round), 0);
		assert_int_equal(shm_rig_push(&w, other, round, NULL), 0);
		w.q->ops->flush(w.q);
		ev = shm_rig_await(b.q);
		assert_int_equal(ev.type, EVENT_MESSAGE);
		assert_int_equal(ev.header.chunk, chunk);
		assert_ptr_equal(
			ev.payload, (uint8_t *)b.push.base + SHM_RIG_SLOT_OFFSET + (slot - 1) * SHM_RIG_SLOT_BYTES);
		assert_true(shm_rig_matches(ev.payload, chunk, round));
		b.q->ops->release(b.q, ev.slot);
		ev = shm_rig_await(b.q);
		assert_ptr_equal(ev.payload, (uint8_t *)b.push.base + b.spans[other].offset);
		assert_true(shm_rig_matches(ev.payload, other, round));
		b.q->ops->release(b.q, ev.slot);
	}
	both_close(&b, &w, c);
}

static void headers_alone_have_no_payload_and_no_slot(void **state)
{
	struct wire_header pull = {.type = WIRE_PULL, .chunk = 3, .round = 9, .seq = 4};
	struct wire_header credit = {.type = WIRE_CREDIT, .credit = 77, .chunk = 12345};
	struct shm_worker w;
	struct event ev;
	struct shm_box b;
	struct conn *c;

	c = both_open(&b, &w);
	assert_int_equal(w.q->ops->send(w.q, w.c, &pull, NULL, NULL), 0);
	shm_rig_silence(b.q); /* not flushed */
	w.q->ops->flush(w.q);
	ev = shm_rig_await(b.q);
	assert_int_equal(ev.header.type, WIRE_PULL);
	assert_int_equal(ev.header.seq, 4);
	assert_null(ev.payload);
	assert_null(ev.slot);
	/* A credit is about no chunk. */
	assert_int_equal(b.q->ops->send(b.q, c, &credit, NULL, NULL), 0);
	b.q->ops->flush(b.q);
	ev = shm_rig_await(w.q);
	assert_int_equal(ev.header.credit, 77);
	assert_null(ev.slot);
	both_close(&b, &w, c);
}

static void slots_are_kept_and_released_in_any_order(void **state)
{
	static const unsigned order[] = {2, 0, 3, 1};
	void *slots[4];
	struct shm_worker w;
	struct shm_box b;
	struct conn *c;

	c = both_open(&b, &w);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(shm_rig_push(&w, i, 1, NULL), 0);
	w.q->ops->flush(w.q);
	for (uint32_t i = 0; i < 4; i++)
		slots[i] = shm_rig_await(b.q).slot;
	shm_rig_silence(b.q);
	assert_int_equal(((struct shm_conn *)c)->slots_held, 4);
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t chunk = order[i];

		assert_true(shm_rig_matches((uint8_t *)b.push.base + b.spans[chunk].offset, chunk, 1));
		b.q->ops->release(b.q, slots[chunk]);
	}
	assert_int_equal(((struct shm_conn *)c)->slots_held, 0);
	both_close(&b, &w, c);
}

static void sent_follows_publication_in_order(void **state)
{
	struct event events[8];
	struct shm_worker w;
	struct shm_box b;
	struct conn *c;
	int cookies[3];

	c = both_open(&b, &w);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(shm_rig_push(&w, i, 1, i == 1 ? NULL : &cookies[i]), 0);
	shm_rig_silence(w.q);
	w.q->ops->flush(w.q);
	assert_int_equal(shm_rig_poll(w.q, events, 8), 2);
	assert_int_equal(events[0].type, EVENT_SENT);
	assert_ptr_equal(events[0].cookie, &cookies[0]);
	assert_ptr_equal(events[1].cookie, &cookies[2]);
	assert_ptr_equal(events[1].conn, w.c);
	shm_rig_silence(w.q);
	both_close(&b, &w, c);
}

/* A worker may answer a result before the box has polled again: what was sent is done with before the answer comes. */
static void completions_come_before_the_answer(void **state)
{
	struct event events[8];
	struct shm_worker w;
	struct event ev;
	struct shm_box b;
	struct conn *c;
	int cookie;

	c = both_open(&b, &w);
	assert_int_equal(shm_rig_result(&b, c, 2, 1, &cookie), 0);
	b.q->ops->flush(b.q);
	ev = shm_rig_await(w.q);
	assert_int_equal(ev.header.type, WIRE_RESULT);
	w.q->ops->release(w.q, ev.slot);
	assert_int_equal(shm_rig_push(&w, 2, 2, NULL), 0);
	w.q->ops->flush(w.q);
	assert_int_equal(shm_rig_poll(b.q, events, 8), 2);
	assert_int_equal(events[0].type, EVENT_SENT);
	assert_ptr_equal(events[0].cookie, &cookie);
	assert_int_equal(events[1].type, EVENT_MESSAGE);
	b.q->ops->release(b.q, events[1].slot);
	/* Also when there is room for one event only. */
	assert_int_equal(shm_rig_result(&b, c, 2, 2, &cookie), 0);
	b.q->ops->flush(b.q);
	assert_int_equal(shm_rig_push(&w, 2, 3, NULL), 0);
	w.q->ops->flush(w.q);
	assert_int_equal(shm_rig_poll(b.q, events, 1), 1);
	assert_int_equal(events[0].type, EVENT_SENT);
	ev = shm_rig_await(b.q);
	assert_int_equal(ev.type, EVENT_MESSAGE);
	b.q->ops->release(b.q, ev.slot);
	both_close(&b, &w, c);
}

static void a_full_ring_says_so_and_when_there_is_room(void **state)
{
	struct shm_worker w;
	struct event ev;
	struct shm_box b;
	struct conn *c;
	unsigned sent = 0;

	c = both_open(&b, &w);
	while (shm_rig_push(&w, sent % SHM_RIG_CHUNKS, sent, NULL) == 0)
		sent++;
	assert_int_equal(sent, SHM_RING_CAPACITY_MIN);
	assert_int_equal(shm_rig_push(&w, 0, 0, NULL), -EAGAIN);
	w.q->ops->flush(w.q);
	shm_rig_silence(w.q);
	for (unsigned i = 0; i < sent; i++) {
		ev = shm_rig_await(b.q);
		assert_int_equal(ev.header.round, i);
		b.q->ops->release(b.q, ev.slot);
	}
	ev = shm_rig_await(w.q);
	assert_int_equal(ev.type, EVENT_WRITABLE);
	assert_ptr_equal(ev.conn, w.c);
	shm_rig_silence(w.q);
	assert_int_equal(shm_rig_push(&w, 0, 99, NULL), 0);
	w.q->ops->flush(w.q);
	assert_int_equal(shm_rig_await(b.q).header.round, 99);
	both_close(&b, &w, c);
}

/* Completions that nobody polls are bounded, too. */
static void unpolled_completions_are_bounded(void **state)
{
	unsigned sent = 0, completed = 0, room = 0;
	struct event events[64];
	struct shm_worker w;
	struct shm_box b;
	struct conn *c;

	c = both_open(&b, &w);
	while (shm_rig_push(&w, 0, sent, &sent) == 0) {
		sent++;
		w.q->ops->flush(w.q);
		assert_int_equal(shm_rig_poll(b.q, events, 64), 1);
		b.q->ops->release(b.q, events[0].slot);
	}
	assert_int_equal(sent, SHM_RING_CAPACITY_MIN);
	for (unsigned i = 0; i < 4; i++) {
		unsigned n = shm_rig_poll(w.q, events, 7);

		for (unsigned k = 0; k < n; k++) {
			completed += events[k].type == EVENT_SENT;
			room += events[k].type == EVENT_WRITABLE;
		}
	}
	assert_int_equal(completed, sent);
	assert_int_equal(room, 1);
	both_close(&b, &w, c);
}

/* Sends whose payload the peer would not find. */
static void send_refuses_payloads_out_of_place(void **state)
{
	struct wire_header header = shm_rig_push_header(1, 1);
	struct shm_worker w;
	struct shm_box b;
	struct conn *c;
	uint8_t elsewhere[SHM_RIG_CHUNK_BYTES];

	c = both_open(&b, &w);
	assert_int_equal(w.q->ops->send(w.q, w.c, &header, elsewhere, NULL), -EINVAL);
	assert_int_equal(w.q->ops->send(w.q, w.c, &header, shm_rig_push_at(&w, 0), NULL), -EINVAL);
	assert_int_equal(w.q->ops->send(w.q, w.c, &header, NULL, NULL), -EINVAL);
	header.length--;
	assert_int_equal(w.q->ops->send(w.q, w.c, &header, shm_rig_push_at(&w, 1), NULL), -EINVAL);
	header = shm_rig_push_header(SHM_RIG_CHUNKS, 1);
	assert_int_equal(w.q->ops->send(w.q, w.c, &header, shm_rig_push_at(&w, 1), NULL), -EINVAL);

	header = shm_rig_result_header(1, 1);
	assert_int_equal(b.q->ops->send(b.q, c, &header, elsewhere, NULL), -EINVAL);
	assert_int_equal(b.q->ops->send(b.q, c, &header, (uint8_t *)b.result.base - 1, NULL), -EINVAL);
	assert_int_equal(b.q->ops->send(b.q, c, &header,
				 (uint8_t *)b.result.base + b.result.bytes - SHM_RIG_CHUNK_BYTES + 1, NULL),
		-EINVAL);
	assert_int_equal(
		b.q->ops->send(b.q, c, &header, (uint8_t *)b.result.base + b.result.bytes - SHM_RIG_CHUNK_BYTES, NULL),
		0);
	b.q->ops->flush(b.q);
	assert_int_equal(shm_rig_await(w.q).type, EVENT_MESSAGE);
	both_close(&b, &w, c);
}

/*
 * What boxes are to each other: payloads may be shorter than their spans, either way, and no longer; and each
 * connection maps the regions for itself, for as long as it is there.
 */
static void boxes_send_shorter_payloads(void **state)
{
	struct wire_header header = shm_rig_push_header(1, 1);
	struct shm_worker w;
	struct shm_box b;
	struct conn *c, *other, *first;
	struct event e;

	shm_box_open(&b, 8);
	b.spec.shorter = true;
	shm_worker_open_apart(&w, b.address, 1);
	c = shm_rig_meet(&b, &w, 1);
	assert_int_equal(b.q->ops->adopt(b.q, c, &b.spec), 0);
	shm_worker_adopt(&w);
	first = w.c;
	header.length /= 2;
	memset(shm_rig_push_at(&w, 1), 7, header.length);
	assert_int_equal(w.q->ops->send(w.q, w.c, &header, shm_rig_push_at(&w, 1), NULL), 0);
	w.q->ops->flush(w.q);
	e = shm_rig_await(b.q);
	assert_int_equal(e.header.length, SHM_RIG_CHUNK_BYTES / 2);
	assert_int_equal(((const uint8_t *)e.payload)[header.length - 1], 7);
	b.q->ops->release(b.q, e.slot);
	header = shm_rig_result_header(1, 1);
	header.length -= 4;
	assert_int_equal(b.q->ops->send(b.q, c, &header, b.result.base, NULL), 0);
	b.q->ops->flush(b.q);
	assert_int_equal(shm_rig_await(w.q).header.length, SHM_RIG_CHUNK_BYTES - 4);
	header = shm_rig_push_header(1, 2);
	header.length += 4;
	assert_int_equal(w.q->ops->send(w.q, w.c, &header, shm_rig_push_at(&w, 1), NULL), -EINVAL);

	w.c = NULL;
	other = shm_rig_meet(&b, &w, 2);
	assert_ptr_not_equal(w.c->push, first->push);
	assert_ptr_not_equal(w.c->result, first->result);
	transport_shm.abandon(w.t, w.c);
	transport_shm.abandon(b.t, other);
	w.c = first;
	header = shm_rig_push_header(1, 2);
	memset(shm_rig_push_at(&w, 1), 8, header.length); /* it is mapped still */
	assert_int_equal(w.q->ops->send(w.q, w.c, &header, shm_rig_push_at(&w, 1), NULL), 0);
	both_close(&b, &w, c);
}

/* A batch goes on where the last one ended, so that nobody waits for others' floods. */
static void connections_take_turns(void **state)
{
	struct shm_worker w[3];
	struct conn *c[3];
	struct event ev;
	struct shm_box b;

	shm_box_open(&b, 8);
	for (unsigned i = 0; i < 3; i++) {
		c[i] = shm_rig_join(&b, &w[i], i);
		for (unsigned k = 0; k < SHM_RING_CAPACITY_MIN; k++)
			assert_int_equal(shm_rig_push(&w[i], 0, k, NULL), 0);
		w[i].q->ops->flush(w[i].q);
	}
	for (unsigned k = 0; k < 3 * SHM_RING_CAPACITY_MIN; k++) {
		ev = shm_rig_await(b.q);
		assert_ptr_equal(ev.conn, c[k % 3]);
		assert_int_equal(ev.header.round, k / 3);
	}
	for (unsigned i = 0; i < 3; i++) {
		b.q->ops->drop(b.q, c[i]);
		shm_worker_close(&w[i]);
	}
	shm_box_close(&b);
}

/* ---- ends ---- */

static void an_end_in_good_order_comes_after_what_was_sent(void **state)
{
	struct shm_worker w;
	struct event ev;
	struct shm_box b;
	struct conn *c;

	c = both_open(&b, &w);
	assert_int_equal(shm_rig_push(&w, 1, 5, NULL), 0);
	w.q->ops->flush(w.q);
	assert_int_equal(shm_rig_push(&w, 2, 6, NULL), 0); /* never flushed: forgotten */
	shm_worker_close(&w);
	ev = shm_rig_await(b.q);
	assert_int_equal(ev.type, EVENT_MESSAGE);
	assert_true(shm_rig_matches(ev.payload, 1, 5));
	ev = shm_rig_await(b.q);
	assert_int_equal(ev.type, EVENT_CLOSED);
	assert_int_equal(ev.error, 0);
	assert_ptr_equal(ev.conn, c);
	shm_rig_silence(b.q);
	assert_int_equal(shm_rig_result(&b, c, 0, 0, NULL), -EPIPE);
	b.q->ops->drop(b.q, c);
	shm_rig_silence(b.q);

	/* The box ends it. */
	c = shm_rig_join(&b, &w, 7);
	assert_int_equal(shm_rig_result(&b, c, 3, 8, NULL), 0);
	b.q->ops->flush(b.q);
	b.q->ops->drop(b.q, c);
	ev = shm_rig_await(w.q);
	assert_true(ev.type == EVENT_MESSAGE && shm_rig_matches(ev.payload, 3, 8));
	ev = shm_rig_await(w.q);
	assert_true(ev.type == EVENT_CLOSED && ev.error == 0);
	assert_int_equal(shm_rig_push(&w, 0, 0, NULL), -EPIPE);
	shm_worker_close(&w);
	shm_box_close(&b);
}

/* With a clock that stands still the end is noticed, too. */
static void ends_are_noticed_without_a_clock(void **state)
{
	struct shm_worker w;
	struct event ev;
	struct shm_box b;
	struct conn *c;
	unsigned polls = 0;

	c = both_open(&b, &w);
	shm_worker_close(&w);
	while (b.q->ops->poll(b.q, 0, &ev, 1) == 0)
		assert_true(++polls < 10000);
	assert_int_equal(ev.type, EVENT_CLOSED);
	b.q->ops->drop(b.q, c);
	shm_box_close(&b);
}

/* Ids inside a new user namespace are those outside. */
static bool keep_ids(uid_t uid, gid_t gid)
{
	const char *const files[] = {"/proc/self/setgroups", "/proc/self/uid_map", "/proc/self/gid_map"};
	char texts[3][40] = {"deny"};

	snprintf(texts[1], sizeof(texts[1]), "%u %u 1", uid, uid);
	snprintf(texts[2], sizeof(texts[2]), "%u %u 1", gid, gid);
	for (unsigned i = 0; i < 3; i++) {
		int fd = open(files[i], O_WRONLY | O_CLOEXEC);
		size_t bytes = strlen(texts[i]);
		bool written = write(fd, texts[i], bytes) == (ssize_t)bytes;

		close(fd);
		if (!written)
			return false;
	}
	return true;
}

/* Other programs use /dev/shm, too. Where this process cannot have its own, only its descriptors are counted. */
static bool own_shm;

static int make_own_shm(void **state)
{
	uid_t uid = geteuid();
	gid_t gid = getegid();

	own_shm = (unshare(CLONE_NEWNS) == 0 || (unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && keep_ids(uid, gid))) &&
		  mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
		  mount("own", "/dev/shm", "tmpfs", 0, NULL) == 0;
	if (!own_shm)
		print_message("no /dev/shm of its own: what is left there is not counted\n");
	return 0;
}

static unsigned count_entries(const char *path)
{
	DIR *dir = opendir(path);
	unsigned n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void expect_nothing_in_shm(void)
{
	if (own_shm)
		assert_int_equal(count_entries("/dev/shm"), 2); /* . and .. */
}

static void a_killed_worker_is_an_error_and_leaves_nothing(void **state)
{
	unsigned fds = count_entries("/proc/self/fd");
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
		REQUIRE(shm_rig_push(&w, 0, 1, NULL) == 0);
		w.q->ops->flush(w.q);
		raise(SIGKILL);
	}
	c = shm_box_take(&b, 7);
	assert_int_equal(shm_rig_sleep(b.q).type, EVENT_MESSAGE);
	ev = shm_rig_sleep(b.q);
	assert_int_equal(ev.type, EVENT_CLOSED);
	assert_int_equal(ev.error, -ECONNRESET);
	shm_rig_reap(pid, SIGKILL);
	b.q->ops->drop(b.q, c);
	shm_box_close(&b);
	expect_nothing_in_shm();
	assert_int_equal(count_entries("/proc/self/fd"), fds);
}

static void a_killed_box_is_an_error_and_leaves_nothing(void **state)
{
	struct shm_worker w;
	struct event ev;
	struct shm_box b;
	struct err e;
	struct conn *c;
	pid_t pid;
	int pipe_fds[2];

	assert_int_equal(pipe(pipe_fds), 0);
	pid = fork();
	if (pid == 0) {
		shm_box_open(&b, 8);
		REQUIRE(write(pipe_fds[1], b.address, sizeof(b.address)) == sizeof(b.address));
		c = shm_box_take(&b, 7);
		REQUIRE(shm_rig_result(&b, c, 0, 1, NULL) == 0);
		b.q->ops->flush(b.q);
		pause();
		_exit(1);
	}
	assert_int_equal(read(pipe_fds[0], b.address, sizeof(b.address)), sizeof(b.address));
	shm_worker_open(&w, b.address, 7);
	shm_worker_adopt(&w);
	ev = shm_rig_sleep(w.q);
	assert_true(ev.type == EVENT_MESSAGE && shm_rig_matches(ev.payload, 0, 1));
	kill(pid, SIGKILL);
	shm_rig_reap(pid, SIGKILL);
	ev = shm_rig_sleep(w.q);
	assert_int_equal(ev.type, EVENT_CLOSED);
	assert_int_equal(ev.error, -ECONNRESET);
	/* The memory is still there, for those who have it. */
	assert_true(shm_rig_matches((const uint8_t *)w.c->result + SHM_RIG_BASE, 0, 1));
	w.q->ops->drop(w.q, w.c);
	assert_int_equal(transport_shm.connect(w.t, b.address, 7, 0, shm_rig_key, NULL, &w.c, &e), -ECONNREFUSED);
	w.c = NULL;
	shm_worker_close(&w);
	expect_nothing_in_shm();
	close(pipe_fds[0]);
	close(pipe_fds[1]);
}

TEST_PROGRAM(test_shm)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(payloads_are_read_where_they_lie),
		cmocka_unit_test(payloads_may_lie_in_slots),
		cmocka_unit_test(headers_alone_have_no_payload_and_no_slot),
		cmocka_unit_test(slots_are_kept_and_released_in_any_order),
		cmocka_unit_test(sent_follows_publication_in_order),
		cmocka_unit_test(completions_come_before_the_answer),
		cmocka_unit_test(a_full_ring_says_so_and_when_there_is_room),
		cmocka_unit_test(unpolled_completions_are_bounded),
		cmocka_unit_test(send_refuses_payloads_out_of_place),
		cmocka_unit_test(boxes_send_shorter_payloads),
		cmocka_unit_test(connections_take_turns),
		cmocka_unit_test(an_end_in_good_order_comes_after_what_was_sent),
		cmocka_unit_test(ends_are_noticed_without_a_clock),
		cmocka_unit_test(a_killed_worker_is_an_error_and_leaves_nothing),
		cmocka_unit_test(a_killed_box_is_an_error_and_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, make_own_shm, NULL);
}
