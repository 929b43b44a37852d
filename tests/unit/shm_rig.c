/* SPDX-License-Identifier: Apache-2.0 */
/* The rig of the shared-memory tests; see shm_rig.h. */
#include "tests/unit/shm_rig.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/wait.h>

#include "phub/base/clock.h"

#define SHM_RIG_PATIENCE_NS (20 * NS_PER_S)

const uint8_t shm_rig_key[PROOF_KEY] = {4, 8, 15, 16, 23, 42};

static void shm_rig_layout(struct span *spans)
{
	for (uint32_t i = 0; i < SHM_RIG_CHUNKS; i++)
		spans[i] = (struct span){i * SHM_RIG_CHUNK_BYTES, SHM_RIG_CHUNK_BYTES};
}

void shm_box_open(struct shm_box *b, uint32_t window)
{
	struct transport_config config = {.queue_conns_max = 8};
	struct err e = {0};

	memset(b, 0, sizeof(*b));
	shm_rig_layout(b->spans);
	REQUIRE(transport_shm.open(&config, &b->t, &e) == 0);
	REQUIRE(transport_shm.queue_create(b->t, MEM_NODE_ANY, &b->q, &e) == 0);
	REQUIRE(transport_shm.listen(b->t, "", b->address, sizeof(b->address), &e) == 0);
	REQUIRE(mem_region_create(SHM_RIG_BASE, MEM_SHARED, MEM_NODE_ANY, &b->push, &e) == 0);
	REQUIRE(mem_region_create(2 * SHM_RIG_BASE, MEM_SHARED, MEM_NODE_ANY, &b->result, &e) == 0);
	b->spec = (struct conn_spec){.chunk_count = SHM_RIG_CHUNKS,
		.spans = b->spans,
		.payload_max = SHM_RIG_CHUNK_BYTES,
		.window = window,
		.slot_offset = SHM_RIG_SLOT_OFFSET,
		.slot_count = SHM_RIG_SLOTS,
		.slot_bytes = SHM_RIG_SLOT_BYTES,
		.push = &b->push,
		.result = &b->result};
}

void shm_box_close(struct shm_box *b)
{
	transport_shm.queue_destroy(b->t, b->q);
	transport_shm.close(b->t);
	mem_region_destroy(&b->push);
	mem_region_destroy(&b->result);
}

struct hello shm_box_hello(struct shm_box *b, uint64_t session)
{
	uint64_t deadline = clock_now_ns() + SHM_RIG_PATIENCE_NS;
	uint8_t mac[PROOF_MAC];
	struct hello hello;
	int rc;

	while ((rc = transport_shm.accept(b->t, clock_now_ns(), &hello)) == -EAGAIN) {
		struct pollfd fd = {.fd = transport_shm.fd(b->t), .events = POLLIN};

		REQUIRE(clock_now_ns() < deadline);
		REQUIRE(poll(&fd, 1, 100) >= 0);
	}
	REQUIRE(rc == 0 && hello.session == session);
	REQUIRE(proof_data(shm_rig_key, hello.nonce, session, hello.core, mac) == 0);
	REQUIRE(proof_equal(mac, hello.mac));
	return hello;
}

struct conn *shm_box_take(struct shm_box *b, uint64_t session)
{
	struct hello hello = shm_box_hello(b, session);
	struct err e = {0};

	REQUIRE(transport_shm.admit(b->t, hello.conn, &b->spec, &e) == 0);
	REQUIRE(b->q->ops->adopt(b->q, hello.conn, &b->spec) == 0);
	return hello.conn;
}

static void shm_rig_open(struct shm_worker *w, const char *address, uint64_t session, bool apart)
{
	struct transport_config config = {.queue_conns_max = 8, .apart = apart};
	struct err e = {0};

	memset(w, 0, sizeof(*w));
	shm_rig_layout(w->spans);
	w->spec = (struct conn_spec){
		.chunk_count = SHM_RIG_CHUNKS, .spans = w->spans, .payload_max = SHM_RIG_CHUNK_BYTES};
	REQUIRE(transport_shm.open(&config, &w->t, &e) == 0);
	REQUIRE(transport_shm.queue_create(w->t, MEM_NODE_ANY, &w->q, &e) == 0);
	REQUIRE(transport_shm.connect(w->t, address, session, 3, shm_rig_key, NULL, &w->c, &e) == 0);
}

void shm_worker_open(struct shm_worker *w, const char *address, uint64_t session)
{
	shm_rig_open(w, address, session, false);
}

void shm_worker_open_apart(struct shm_worker *w, const char *address, uint64_t session)
{
	shm_rig_open(w, address, session, true);
	w->spec.shorter = true;
}

int shm_worker_established(struct shm_worker *w)
{
	uint64_t deadline = clock_now_ns() + SHM_RIG_PATIENCE_NS;
	struct err e = {0};
	int rc;

	while ((rc = transport_shm.established(w->t, w->c, &e)) == -EAGAIN) {
		struct pollfd fd = {.fd = transport_shm.fd(w->t), .events = POLLIN};

		REQUIRE(clock_now_ns() < deadline);
		REQUIRE(poll(&fd, 1, 100) >= 0);
	}
	return rc;
}

void shm_worker_adopt(struct shm_worker *w)
{
	REQUIRE(shm_worker_established(w) == 0);
	REQUIRE(w->q->ops->adopt(w->q, w->c, &w->spec) == 0);
}

void shm_worker_close(struct shm_worker *w)
{
	if (w->c && w->c->queue)
		w->q->ops->drop(w->q, w->c);
	else if (w->c)
		transport_shm.abandon(w->t, w->c);
	transport_shm.queue_destroy(w->t, w->q);
	transport_shm.close(w->t);
}

struct conn *shm_rig_meet(struct shm_box *b, struct shm_worker *w, uint64_t session)
{
	struct conn *c = NULL;
	struct err e = {0};
	struct hello hello;
	int rc;

	if (!w->c)
		REQUIRE(transport_shm.connect(w->t, b->address, session, 3, shm_rig_key, NULL, &w->c, &e) == 0);
	while ((rc = transport_shm.established(w->t, w->c, &e)) == -EAGAIN) {
		if (transport_shm.accept(b->t, clock_now_ns(), &hello) < 0)
			continue;
		c = hello.conn;
		REQUIRE(transport_shm.admit(b->t, c, &b->spec, &e) == 0);
	}
	REQUIRE(rc == 0 && c);
	return c;
}

struct conn *shm_rig_join(struct shm_box *b, struct shm_worker *w, uint64_t session)
{
	struct conn *c;

	shm_worker_open(w, b->address, session);
	c = shm_rig_meet(b, w, session);
	REQUIRE(b->q->ops->adopt(b->q, c, &b->spec) == 0);
	shm_worker_adopt(w);
	return c;
}

unsigned shm_rig_poll(struct queue *q, struct event *events, unsigned max)
{
	return q->ops->poll(q, clock_now_ns(), events, max);
}

struct event shm_rig_await(struct queue *q)
{
	uint64_t deadline = clock_now_ns() + SHM_RIG_PATIENCE_NS;
	struct event ev;

	while (shm_rig_poll(q, &ev, 1) == 0) {
		REQUIRE(clock_now_ns() < deadline);
		sched_yield();
	}
	return ev;
}

void shm_rig_silence(struct queue *q)
{
	uint64_t until = clock_now_ns() + 5 * NS_PER_MS;
	struct event ev;

	while (clock_now_ns() < until)
		REQUIRE(shm_rig_poll(q, &ev, 1) == 0);
}

struct event shm_rig_sleep(struct queue *q)
{
	struct event ev;

	while (shm_rig_poll(q, &ev, 1) == 0) {
		struct pollfd fd = {.fd = q->ops->arm(q), .events = POLLIN};

		if (fd.fd == -EAGAIN)
			continue;
		REQUIRE(fd.fd >= 0);
		REQUIRE(poll(&fd, 1, (int)(SHM_RIG_PATIENCE_NS / NS_PER_MS)) == 1);
	}
	return ev;
}

struct wire_header shm_rig_push_header(uint32_t chunk, uint64_t round)
{
	return (struct wire_header){
		.type = WIRE_PUSH, .length = SHM_RIG_CHUNK_BYTES, .chunk = chunk, .round = round, .count = 1};
}

struct wire_header shm_rig_result_header(uint32_t chunk, uint64_t round)
{
	return (struct wire_header){
		.type = WIRE_RESULT, .length = SHM_RIG_CHUNK_BYTES, .chunk = chunk, .round = round, .count = 1};
}

uint8_t *shm_rig_slot_at(const struct shm_worker *w, uint32_t slot)
{
	return (uint8_t *)w->c->slots + (size_t)(slot - 1) * w->c->slot_bytes;
}

uint8_t *shm_rig_push_at(const struct shm_worker *w, uint32_t chunk)
{
	return (uint8_t *)w->c->push + w->spans[chunk].offset;
}

uint8_t *shm_rig_result_at(const struct shm_box *b, uint32_t chunk)
{
	return (uint8_t *)b->result.base + SHM_RIG_BASE + b->spans[chunk].offset;
}

static uint8_t shm_rig_byte(uint32_t i, uint32_t chunk, uint64_t round)
{
	return (uint8_t)(i * 7 + chunk * 31 + round * 131 + 1);
}

static void shm_rig_fill(uint8_t *at, uint32_t chunk, uint64_t round)
{
	for (uint32_t i = 0; i < SHM_RIG_CHUNK_BYTES; i++)
		at[i] = shm_rig_byte(i, chunk, round);
}

int shm_rig_matches(const void *payload, uint32_t chunk, uint64_t round)
{
	const uint8_t *at = payload;

	for (uint32_t i = 0; i < SHM_RIG_CHUNK_BYTES; i++)
		if (at[i] != shm_rig_byte(i, chunk, round))
			return 0;
	return 1;
}

int shm_rig_push(struct shm_worker *w, uint32_t chunk, uint64_t round, void *cookie)
{
	struct wire_header header = shm_rig_push_header(chunk, round);

	shm_rig_fill(shm_rig_push_at(w, chunk), chunk, round);
	return w->q->ops->send(w->q, w->c, &header, shm_rig_push_at(w, chunk), cookie);
}

int shm_rig_push_slot(struct shm_worker *w, uint32_t slot, uint32_t chunk, uint64_t round)
{
	struct wire_header header = shm_rig_push_header(chunk, round);

	shm_rig_fill(shm_rig_slot_at(w, slot), chunk, round);
	return w->q->ops->send(w->q, w->c, &header, shm_rig_slot_at(w, slot), NULL);
}

int shm_rig_result(struct shm_box *b, struct conn *c, uint32_t chunk, uint64_t round, void *cookie)
{
	struct wire_header header = shm_rig_result_header(chunk, round);

	shm_rig_fill(shm_rig_result_at(b, chunk), chunk, round);
	return b->q->ops->send(b->q, c, &header, shm_rig_result_at(b, chunk), cookie);
}

void shm_rig_reap(pid_t pid, int signal)
{
	int status;

	REQUIRE(waitpid(pid, &status, 0) == pid);
	if (signal)
		REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == signal);
	else
		REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
