/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: what control sessions carry for transports whose handshakes need that (signals), at both ends of datagrams: a
 * real box's and a real worker's on a network in memory. The input says which signals arrive, changed or made up or not
 * at all, and when either end looks. Who is complete at the box has said all that the worker says; a connection is up
 * at both ends only where the worker proved its session's key; what an end was told too much of does not stay.
 *
 * The input is a list of operations: 1 byte (operation % 8, the rest is its number), and what it takes.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/handshake.h"
#include "transport/loop.h"
#include "transport/proof.h"
#include "transport/transport.h"

enum { FUZZ_CHUNKS = 4, FUZZ_CHUNK_BYTES = 4096, FUZZ_CARRIED_MAX = 64, FUZZ_SESSION = 77 };

enum fuzz_op { OP_CARRY_UP, OP_CARRY_DOWN, OP_TELL_BOX, OP_TELL_WORKER, OP_ACCEPT, OP_LOOK, OP_CONNECT, OP_TIME };

struct fuzz_end {
	struct transport *t;
	struct queue *q;
	struct conn_spec spec;
	struct sink sinks[FUZZ_CHUNKS];
	struct conn *conns[FUZZ_CARRIED_MAX]; /* not adopted */
	unsigned count;
};

struct fuzz {
	struct loop_net *net;
	struct fuzz_end box, worker;
	char address[128];
	uint64_t now_ns;
};

static const uint8_t fuzz_key[PROOF_KEY] = {1, 1, 2, 3, 5, 8, 13, 21, 34};
static const struct transport_ops *const fuzz_ops = &transport_loop_datagram;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

static void fuzz_open_end(struct fuzz *f, struct fuzz_end *end, unsigned endpoint)
{
	static const struct span spans[FUZZ_CHUNKS] = {{0, FUZZ_CHUNK_BYTES}, {FUZZ_CHUNK_BYTES, FUZZ_CHUNK_BYTES},
		{2 * FUZZ_CHUNK_BYTES, FUZZ_CHUNK_BYTES}, {3 * FUZZ_CHUNK_BYTES, FUZZ_CHUNK_BYTES}};
	struct transport_config config = {
		.queue_conns_max = 8, .loop = loop_net_host(f->net, endpoint), .handshake_ms = 1000};
	struct err e;

	fuzz_require(fuzz_ops->open(&config, &end->t, &e) == 0);
	if (endpoint == 0)
		fuzz_require(fuzz_ops->listen(end->t, "", f->address, sizeof(f->address), &e) == 0);
	fuzz_require(fuzz_ops->queue_create(end->t, -1, &end->q, &e) == 0);
	end->spec = (struct conn_spec){.chunk_count = FUZZ_CHUNKS,
		.spans = spans,
		.payload_max = FUZZ_CHUNK_BYTES,
		.window = 8,
		.queue = end->q,
		.job = 1,
		.key = fuzz_key};
	end->spec.sinks = endpoint ? end->sinks : NULL;
}

static void fuzz_open(struct fuzz *f)
{
	struct loop_plan plan = {.seed = 1, .hosts = 2};

	f->net = loop_net_create(&plan);
	fuzz_require(f->net != NULL);
	fuzz_open_end(f, &f->box, 0);
	fuzz_open_end(f, &f->worker, 1);
}

static void fuzz_close_end(struct fuzz_end *end)
{
	for (unsigned i = 0; i < end->count; i++)
		fuzz_ops->abandon(end->t, end->conns[i]);
	fuzz_ops->queue_destroy(end->t, end->q);
	fuzz_ops->close(end->t);
}

static void fuzz_connect(struct fuzz *f, bool liar)
{
	static const uint8_t other[PROOF_KEY];
	struct fuzz_end *w = &f->worker;
	struct err e;

	if (w->count == FUZZ_CARRIED_MAX)
		return;
	if (fuzz_ops->connect(
		    w->t, f->address, FUZZ_SESSION, 0, liar ? other : fuzz_key, &w->spec, &w->conns[w->count], &e) == 0)
		w->count++;
}

/* As the box's control does: only who has the session's key comes in. */
static void fuzz_accept(struct fuzz *f)
{
	struct fuzz_end *b = &f->box;
	uint8_t mac[PROOF_MAC];
	struct hello hello;
	struct err e;

	if (b->count == FUZZ_CARRIED_MAX || fuzz_ops->accept(b->t, f->now_ns, &hello) < 0)
		return;
	fuzz_require(proof_data(fuzz_key, hello.nonce, hello.session, hello.core, mac) == 0);
	if (memcmp(mac, hello.mac, sizeof(mac)) != 0 || hello.session != FUZZ_SESSION || hello.core != 0) {
		fuzz_ops->reject(b->t, hello.conn, EACCES);
		return;
	}
	if (fuzz_ops->admit(b->t, hello.conn, &b->spec, &e) == 0)
		b->conns[b->count++] = hello.conn;
}

/* Who failed is abandoned, as contracts have it; who is there stays. */
static void fuzz_look(struct fuzz *f)
{
	struct fuzz_end *w = &f->worker;
	unsigned kept = 0;

	for (unsigned i = 0; i < w->count; i++) {
		struct err e = {0};
		int rc = fuzz_ops->established(w->t, w->conns[i], &e);

		fuzz_require(rc == 0 || rc == -EAGAIN || (rc < 0 && e.text[0]));
		if (rc < 0 && rc != -EAGAIN)
			fuzz_ops->abandon(w->t, w->conns[i]);
		else
			w->conns[kept++] = w->conns[i];
	}
	w->count = kept;
}

/* The next one of `from`, with `flip` bytes changed on the way. */
static void fuzz_carry(struct transport *from, struct transport *to, unsigned how, const uint8_t *change)
{
	struct signal s;

	if (fuzz_ops->signal_take(from, &s) < 0)
		return;
	fuzz_require(s.length <= SIGNAL_BYTES_MAX);
	if ((how & 3) == 1)
		return; /* lost, with its session */
	if ((how & 3) == 2 && s.length)
		s.bytes[change[0] % s.length] ^= change[1];
	if ((how & 3) == 3)
		s.length = s.length * change[0] / 255;
	fuzz_ops->signal_give(to, &s);
	if (how & 4)
		fuzz_ops->signal_give(to, &s);
}

static size_t fuzz_tell(struct transport *to, unsigned how, const uint8_t *data, size_t size)
{
	struct signal s = {.session = FUZZ_SESSION + (how & 1), .core = how >> 1 & 1, .number = 1 + (how >> 2)};
	size_t n = data[0] < size - 1 ? data[0] : size - 1;

	s.length = (uint32_t)n;
	memcpy(s.bytes, data + 1, n);
	if (how == 31) /* longer than one can be */
		s.length = SIGNAL_BYTES_MAX + 1 + data[0];
	fuzz_ops->signal_give(to, &s);
	return 1 + n;
}

static size_t fuzz_operate(struct fuzz *f, const uint8_t *data, size_t size)
{
	enum fuzz_op op = (enum fuzz_op)(data[0] % 8);
	unsigned how = data[0] / 8;

	switch (op) {
	case OP_CARRY_UP:
	case OP_CARRY_DOWN:
		if (size < 3)
			return size;
		fuzz_carry(op == OP_CARRY_UP ? f->worker.t : f->box.t, op == OP_CARRY_UP ? f->box.t : f->worker.t, how,
			data + 1);
		return 3;
	case OP_TELL_BOX:
	case OP_TELL_WORKER:
		if (size < 2)
			return size;
		return 1 + fuzz_tell(op == OP_TELL_BOX ? f->box.t : f->worker.t, how, data + 1, size - 1);
	case OP_ACCEPT:
		fuzz_accept(f);
		return 1;
	case OP_LOOK:
		fuzz_look(f);
		return 1;
	case OP_CONNECT:
		fuzz_connect(f, how & 1);
		return 1;
	case OP_TIME:
		f->now_ns += (uint64_t)how * 100000000;
		return 1;
	}
	return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz f = {.now_ns = 1};

	fuzz_open(&f);
	while (size > 0) {
		size_t took = fuzz_operate(&f, data, size);

		data += took;
		size -= took;
	}
	fuzz_close_end(&f.worker);
	fuzz_close_end(&f.box);
	loop_net_destroy(f.net);
	return 0;
}
