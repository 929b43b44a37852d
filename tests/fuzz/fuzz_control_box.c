/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: what the box hears on control sessions. Four callers on a network in memory: two ranks of a job and an operator
 * of `phub jobs`, who have proved themselves and send the input's bytes in frames, and a stranger, whose bytes are the
 * input's as they are. The input is a list of (who: 1 byte, length: 2 bytes, bytes). Those of 240 and more are others,
 * who come when they first speak: a box that wants a copy of its job here, and two workers of that. Whatever they say,
 * nothing of theirs is left when they are gone.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "aggregation/dispatch.h"
#include "phub/control/box.h"
#include "transport/control.pb-c.h"
#include "transport/loop.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
	FUZZ_PORT = 7077,
	FUZZ_CALLERS = 4,
	FUZZ_STRANGER = 2,
	FUZZ_OPERATOR = 3,
	FUZZ_BOX = 4, /* then the two workers that move */
	FUZZ_ALL = 7,
	FUZZ_LATE = 240,
	FUZZ_STEPS_MAX = 200
};

struct fuzz {
	struct loop_net *net;
	struct loop_listener *listener;
	struct config config;
	struct box *box;
	struct stream *callers[FUZZ_ALL]; /* NULL: has not come */
	uint64_t now_ns;
};

static uint8_t fuzz_nonce[PROOF_NONCE];

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

static int fuzz_accept(void *arg, struct stream **out)
{
	return loop_stream_accept(arg, out);
}

static void fuzz_turn(struct fuzz *f)
{
	int quiet = 0;

	for (int i = 0; i < FUZZ_STEPS_MAX && quiet < 2; i++) {
		loop_net_advance(f->net, f->now_ns);
		quiet = box_step(f->box, f->now_ns) ? 0 : quiet + 1;
	}
}

/* One box for all inputs: making one takes longer than what most inputs do to it. */
static void fuzz_open(struct fuzz *f)
{
	static const struct transport_ops *const transports[] = {&transport_loop};
	struct box_env env = {.transports = transports, .transport_count = 1, .accept = fuzz_accept, .by_hand = true};
	struct loop_plan plan = {.seed = 1, .hosts = FUZZ_ALL + 1};
	struct err e;
	char text[128];

	f->net = loop_net_create(&plan);
	fuzz_require(f->net && loop_stream_listen(loop_net_host(f->net, 0), FUZZ_PORT, &f->listener) == 0);
	fuzz_require(dispatch_select("base", &env.kernels, text, sizeof(text)) == 0);
	env.loop = loop_net_host(f->net, 0);
	env.accept_arg = f->listener;
	config_init(&f->config);
	fuzz_require(config_set(&f->config, "cores=1", &e) == 0 && config_set(&f->config, "memory_max=64MiB", &e) == 0);
	fuzz_require(config_set(&f->config, "standby_keep_ms=1000", &e) == 0);
	fuzz_require(config_set(&f->config, "handshake_rate=0", &e) == 0); /* time stands still, mostly */
	fuzz_require(config_finish(&f->config, &e) == 0);
	fuzz_require(box_create(&f->config, &env, 0, &f->box, &e) == 0);
}

static void fuzz_dial(struct fuzz *f)
{
	for (unsigned i = 0; i < FUZZ_CALLERS; i++) {
		fuzz_require(loop_stream_dial(loop_net_host(f->net, i + 1), 0, FUZZ_PORT, &f->callers[i]) == 0);
		fuzz_turn(f);
	}
}

static void fuzz_hang_up(struct fuzz *f)
{
	for (unsigned i = 0; i < FUZZ_ALL; i++) {
		if (f->callers[i])
			f->callers[i]->ops->close(f->callers[i]);
		f->callers[i] = NULL;
	}
	fuzz_turn(f);
	f->now_ns += f->config.standby_keep_ms * 1000000; /* a whole copy is kept so long */
	fuzz_turn(f);
	fuzz_require(f->box->control.session_count == 0 && f->box->control.stranger_count == 0);
	fuzz_require(!f->box->control.jobs && f->box->control.job_count == 0);
	fuzz_require(f->box->control.memory_used == 0 && f->box->control.table_bytes == 0);
	fuzz_require(f->box->placement[0].bytes == 0 && box_balanced(f->box));
}

static void fuzz_write(struct fuzz *f, struct stream *s, const uint8_t *bytes, size_t count)
{
	for (int i = 0; count > 0 && i < 64; i++) {
		ssize_t took = s->ops->write(s, bytes, count);

		if (took < 0 && took != -EAGAIN)
			return;
		if (took > 0) {
			bytes += took;
			count -= (size_t)took;
		}
		fuzz_turn(f);
	}
}

static void fuzz_write_frame(struct fuzz *f, struct stream *s, const uint8_t *bytes, size_t count)
{
	uint8_t length[4] = {(uint8_t)count, (uint8_t)(count >> 8), (uint8_t)(count >> 16), 0};

	fuzz_write(f, s, length, sizeof(length));
	fuzz_write(f, s, bytes, count);
}

static void fuzz_say(struct fuzz *f, struct stream *s, const Phub__Control *message)
{
	uint8_t frame[512];
	size_t bytes = phub__control__get_packed_size(message);

	fuzz_require(bytes <= sizeof(frame));
	phub__control__pack(message, frame);
	fuzz_write_frame(f, s, frame, bytes);
}

/* Says hello and proves itself: as this rank, an operator, a box, or a worker that moves. */
static void fuzz_join(struct fuzz *f, unsigned who)
{
	bool admin = who == FUZZ_OPERATOR;
	uint32_t rank = who < FUZZ_STRANGER ? who : who > FUZZ_BOX ? who - FUZZ_BOX - 1 : 0;
	struct proof_session seen = {.job = admin            ? ""
					    : who < FUZZ_BOX ? "demo"
							     : "kept",
		.rank = rank,
		.world = admin || who == FUZZ_BOX ? 1 : 2};
	Phub__Control control = PHUB__CONTROL__INIT, *answer;
	Phub__Hello hello = PHUB__HELLO__INIT;
	Phub__Proof proof = PHUB__PROOF__INIT;
	struct frame_reader reader = {0};
	struct stream *s = f->callers[who];
	uint8_t mac[PROOF_MAC];
	const uint8_t *frame;
	size_t bytes;

	hello.version = hello.version_min = WIRE_VERSION;
	hello.job = (char *)(uintptr_t)seen.job;
	hello.rank = rank;
	hello.world = seen.world;
	hello.admin = admin;
	hello.mirror = who == FUZZ_BOX;
	hello.moves = who > FUZZ_BOX;
	hello.nonce.data = fuzz_nonce;
	hello.nonce.len = sizeof(fuzz_nonce);
	control.message_case = PHUB__CONTROL__MESSAGE_HELLO;
	control.hello = &hello;
	fuzz_say(f, s, &control);
	fuzz_require(frame_read(&reader, s, &frame, &bytes) == 0);
	answer = phub__control__unpack(NULL, bytes, frame);
	fuzz_require(answer && answer->message_case == PHUB__CONTROL__MESSAGE_CHALLENGE);
	memcpy(seen.client_nonce, fuzz_nonce, PROOF_NONCE);
	memcpy(seen.box_nonce, answer->challenge->nonce.data, PROOF_NONCE);
	phub__control__free_unpacked(answer, NULL);
	frame_reader_fini(&reader);
	fuzz_require(proof_control("", 0, &seen, false, mac) == 0);
	proof.mac.data = mac;
	proof.mac.len = sizeof(mac);
	control.message_case = PHUB__CONTROL__MESSAGE_PROOF;
	control.proof = &proof;
	fuzz_say(f, s, &control);
}

/* The peers read what they are told, but for its meaning. */
static void fuzz_drain(struct fuzz *f)
{
	uint8_t rubbish[4096];

	for (unsigned i = 0; i < FUZZ_ALL; i++)
		while (f->callers[i] && f->callers[i]->ops->read(f->callers[i], rubbish, sizeof(rubbish)) > 0)
			;
}

/* Who speaks; brings those who come late. */
static unsigned fuzz_who(struct fuzz *f, uint8_t byte)
{
	unsigned who = byte < FUZZ_LATE ? byte % FUZZ_CALLERS : FUZZ_BOX + byte % (FUZZ_ALL - FUZZ_BOX);

	if (f->callers[who])
		return who;
	fuzz_require(loop_stream_dial(loop_net_host(f->net, who + 1), 0, FUZZ_PORT, &f->callers[who]) == 0);
	fuzz_turn(f);
	fuzz_join(f, who);
	return who;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct fuzz f;

	if (!f.box)
		fuzz_open(&f);
	fuzz_dial(&f);
	fuzz_join(&f, 0);
	fuzz_join(&f, 1);
	fuzz_join(&f, FUZZ_OPERATOR);
	fuzz_require(f.box->control.session_count - f.box->control.stranger_count == FUZZ_CALLERS - 1);
	while (size >= 3) {
		unsigned who = fuzz_who(&f, data[0]);
		size_t count = data[1] | (size_t)data[2] << 8;

		f.now_ns += data[0] < FUZZ_LATE ? (uint64_t)(data[0] / FUZZ_CALLERS) * 10000000 : 0;
		data += 3;
		size -= 3;
		if (count > size)
			count = size;
		if (who == FUZZ_STRANGER)
			fuzz_write(&f, f.callers[who], data, count);
		else
			fuzz_write_frame(&f, f.callers[who], data, count);
		data += count;
		size -= count;
		fuzz_drain(&f);
	}
	fuzz_turn(&f);
	fuzz_hang_up(&f);
	return 0;
}
