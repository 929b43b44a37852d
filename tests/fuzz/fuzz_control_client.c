/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: what a box may say to libphub on the control session. First a byte for the state of the session, then frames:
 * two bytes of length, little-endian, and so many bytes. A start that is accepted must lead to lanes or to an error.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/exchange.h"
#include "client/session.h"
#include "transport/loop.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_CORES = 4 };

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

/* ---- a stream that takes everything and says nothing ---- */

static ssize_t fuzz_read(struct stream *s, void *buf, size_t bytes)
{
	return -EAGAIN;
}

static ssize_t fuzz_write(struct stream *s, const void *buf, size_t bytes)
{
	return (ssize_t)bytes;
}

static int fuzz_fd(struct stream *s)
{
	return -1;
}

static void fuzz_close(struct stream *s)
{
}

static const struct stream_ops fuzz_stream_ops = {fuzz_read, fuzz_write, fuzz_fd, fuzz_close};
static struct stream fuzz_stream = {.ops = &fuzz_stream_ops};

static int fuzz_dial(void *ctx, const char *host, uint16_t port, struct stream **out, struct err *e)
{
	*out = &fuzz_stream;
	return 0;
}

/* ---- a worker with three keys ---- */

struct fuzz_worker {
	struct settings settings;
	struct client_env env;
	struct client_session session;
	struct keyring keyring;
};

static void fuzz_open(struct fuzz_worker *w, struct loop_net *net, unsigned state)
{
	static const struct transport_ops *const transports[] = {&transport_loop, NULL};
	const struct chunk_key shapes[] = {
		{.elements = 5000}, {.elements = 10, .dtype = 1}, {.elements = 7, .alone = true}};
	struct phub_options options;

	phub_options_init(&options);
	options.rank = 0;
	options.world = 1;
	memset(w, 0, sizeof(*w));
	fuzz_require(settings_init(&w->settings, "phub://box/fuzz", &options, NULL) == 0);
	w->env = (struct client_env){
		.dial = fuzz_dial, .transports = transports, .config = {.loop = loop_net_host(net, 1)}};
	for (size_t i = 0; i < 3; i++)
		fuzz_require(keyring_add(&w->keyring, "fuzz", "key", &shapes[i], NULL) == (int)i);
	fuzz_require(keyring_plan(&w->keyring, 4096, NULL) == 0);
	client_session_init(&w->session, &w->env, &w->settings);
	client_session_progress(&w->session, 1); /* dials: SESSION_HELLO */
	w->session.state = state;
	w->session.cores = FUZZ_CORES;
	w->session.keyring = &w->keyring;
	w->session.keys_sent = state >= SESSION_STARTING ? w->keyring.count : 0;
	w->session.generation = state >= SESSION_STARTING;
	w->session.barrier = 2;
	w->session.barrier_done = 1;
}

static void fuzz_start(struct fuzz_worker *w)
{
	struct exchange x = {0};
	struct err e = {0};
	int rc = exchange_init(&x, &w->keyring, &w->session, &transport_loop, "loop:0:1", &e);

	fuzz_require(rc == 0 || (rc < 0 && e.text[0]));
	for (uint32_t i = 0; rc == 0 && i < w->keyring.plan.chunk_count; i++)
		fuzz_require(x.flights[i].lane->flights[x.flights[i].local] == &x.flights[i]);
	exchange_fini(&x);
}

static void fuzz_check(const struct client_session *s)
{
	fuzz_require(s->state <= SESSION_OVER && (s->state == SESSION_OVER) == (s->failure.code < 0));
	fuzz_require(s->barrier_done <= s->barrier && s->address_count <= SESSION_ADDRESSES_MAX);
	for (unsigned i = 0; i < SESSION_NOTICES; i++) {
		fuzz_require(s->notices[i].missing_known <= SESSION_MISSING_MAX);
		fuzz_require(memchr(s->notices[i].text, '\0', sizeof(s->notices[i].text)) != NULL);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct loop_plan plan = {.hosts = 2};
	struct loop_net *net = loop_net_create(&plan);
	struct fuzz_worker w;

	if (!net || size < 1)
		goto out;
	fuzz_open(&w, net, SESSION_HELLO + data[0] % (SESSION_LEAVING - SESSION_HELLO + 1));
	data++;
	size--;
	while (size >= 2 && w.session.state != SESSION_OVER) {
		size_t bytes = (size_t)data[0] | (size_t)data[1] << 8;

		data += 2;
		size -= 2;
		if (bytes > size)
			bytes = size;
		memset(w.session.expected, 0, sizeof(w.session.expected)); /* a proof that can be guessed */
		client_session_take(&w.session, data, bytes, 1000);
		fuzz_check(&w.session);
		data += bytes;
		size -= bytes;
	}
	client_session_progress(&w.session, 2000000000);
	if (w.session.state == SESSION_STARTED && w.session.start.core_of_chunk)
		fuzz_start(&w);
	client_session_fini(&w.session);
	keyring_clear(&w.keyring);
	settings_fini(&w.settings);
out:
	if (net)
		loop_net_destroy(net);
	return 0;
}
