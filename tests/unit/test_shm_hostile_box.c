/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a box that means harm can do to a worker through the memory it hands over: end the connection, and no more.
 * The box is played by hand. What a hostile worker can do is in test_shm_hostile.c.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/unit/cmocka_shim.h"
#include "tests/unit/shm_rig.h"
#include "transport/handshake.h"
#include "transport/shm_parcel.h"
#include "transport/shm_ring.h"

/* Listens where a worker connects to, and speaks the handshake by hand. */
struct fake_box {
	struct shm_worker w;
	int listener, socket;
	struct shm_parcel parcel;
	struct mem_region memory[3];
};

static void fake_box_shake(struct fake_box *f)
{
	uint8_t nonce[PROOF_NONCE] = {1}, in[HANDSHAKE_BYTES_MAX];
	struct handshake h;
	struct err e = {0};
	size_t bytes;
	const uint8_t *out;

	handshake_begin_box(&h, nonce);
	out = handshake_output(&h, &bytes);
	REQUIRE(send(f->socket, out, bytes, 0) == (ssize_t)bytes);
	handshake_sent(&h, bytes);
	REQUIRE(transport_shm.established(f->w.t, f->w.c, &e) == -EAGAIN);
	REQUIRE(recv(f->socket, in, handshake_wants(&h), 0) == HANDSHAKE_HELLO_BYTES);
	REQUIRE(handshake_input(&h, in, HANDSHAKE_HELLO_BYTES) == 0);
	handshake_answer(&h, 0);
	out = handshake_output(&h, &bytes);
	REQUIRE(send(f->socket, out, bytes, 0) == (ssize_t)bytes);
	REQUIRE(transport_shm.established(f->w.t, f->w.c, &e) == -EAGAIN);
}

static void fake_box_open(struct fake_box *f)
{
	static const char address[] = "@phub-test-fake-box";
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	struct err e = {0};

	memset(f, 0, sizeof(*f));
	f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "%s-%d", address + 1, (int)getpid());
	REQUIRE(bind(f->listener, (struct sockaddr *)&name,
			(socklen_t)(sizeof(sa_family_t) + 1 + strlen(name.sun_path + 1))) == 0);
	REQUIRE(listen(f->listener, 1) == 0);
	name.sun_path[0] = '@';
	shm_worker_open(&f->w, name.sun_path, 7);
	f->socket = accept(f->listener, NULL, NULL);
	REQUIRE(f->socket >= 0);
	fake_box_shake(f);
	f->parcel = (struct shm_parcel){.capacity = 16,
		.ring_bytes = shm_ring_bytes(16),
		.push_bytes = SHM_RIG_BASE,
		.result_bytes = SHM_RIG_BASE};
	for (unsigned i = 0; i < 3; i++) {
		size_t bytes = i == SHM_FD_RING ? shm_ring_bytes(16) : SHM_RIG_BASE;

		REQUIRE(mem_region_create(bytes, MEM_SHARED, MEM_NODE_ANY, &f->memory[i], &e) == 0);
		f->parcel.fds[i] = f->memory[i].fd;
	}
	shm_ring_format(f->memory[SHM_FD_RING].base);
	f->parcel.fds[SHM_FD_UP] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	f->parcel.fds[SHM_FD_DOWN] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

static void fake_box_seal(struct fake_box *f)
{
	for (unsigned i = 0; i < 3; i++)
		REQUIRE(mem_region_seal(&f->memory[i], i == SHM_FD_RESULT) == 0);
}

static void fake_box_close(struct fake_box *f)
{
	shm_worker_close(&f->w);
	for (unsigned i = 0; i < 3; i++)
		mem_region_destroy(&f->memory[i]);
	close(f->parcel.fds[SHM_FD_UP]);
	close(f->parcel.fds[SHM_FD_DOWN]);
	close(f->socket);
	close(f->listener);
}

/* What could be cut short under the worker's feet is not mapped; nor what is smaller than announced. */
static void a_worker_maps_only_what_is_sealed(void **state)
{
	struct fake_box f;
	struct err e = {0};

	fake_box_open(&f);
	assert_int_equal(shm_parcel_send(f.socket, &f.parcel), 0);
	assert_int_equal(transport_shm.established(f.w.t, f.w.c, &e), -EPERM);
	fake_box_close(&f);

	fake_box_open(&f);
	fake_box_seal(&f);
	f.parcel.result_bytes *= 2;
	assert_int_equal(shm_parcel_send(f.socket, &f.parcel), 0);
	assert_int_equal(transport_shm.established(f.w.t, f.w.c, &e), -EINVAL);
	fake_box_close(&f);
}

static void a_worker_takes_no_half_parcel(void **state)
{
	uint8_t bytes[SHM_PARCEL_BYTES];
	struct fake_box f;
	struct err e = {0};

	fake_box_open(&f);
	shm_parcel_encode(&f.parcel, bytes);
	assert_int_equal(send(f.socket, bytes, sizeof(bytes), 0), sizeof(bytes)); /* no descriptors */
	assert_int_equal(transport_shm.established(f.w.t, f.w.c, &e), -EPROTO);
	fake_box_close(&f);

	fake_box_open(&f);
	assert_int_equal(send(f.socket, bytes, 9, 0), 9);
	assert_int_equal(transport_shm.established(f.w.t, f.w.c, &e), -EPROTO);
	fake_box_close(&f);

	fake_box_open(&f);
	close(f.socket);
	f.socket = -1;
	assert_int_equal(transport_shm.established(f.w.t, f.w.c, &e), -ECONNRESET);
	fake_box_close(&f);
}

/* Results that would lie outside of the region. */
static void a_worker_checks_where_results_lie(void **state)
{
	static const uint64_t offsets[] = {
		SHM_RIG_BASE - SHM_RIG_CHUNK_BYTES + 1, SHM_RIG_BASE, UINT64_MAX, 1ull << 63};
	struct wire_header header = shm_rig_result_header(0, 1);

	for (unsigned i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
		struct shm_ring ring;
		struct fake_box f;
		struct event ev;

		fake_box_open(&f);
		fake_box_seal(&f);
		assert_int_equal(shm_parcel_send(f.socket, &f.parcel), 0);
		shm_worker_adopt(&f.w);
		shm_ring_attach(&ring, f.memory[SHM_FD_RING].base, 16, SHM_BOX);
		assert_int_equal(shm_ring_put(&ring, &header, SHM_RIG_BASE - SHM_RIG_CHUNK_BYTES), 0);
		assert_int_equal(shm_ring_put(&ring, &header, offsets[i]), 0);
		shm_ring_publish(&ring);
		ev = shm_rig_await(f.w.q);
		assert_int_equal(ev.type, EVENT_MESSAGE);
		assert_ptr_equal(ev.payload, (const uint8_t *)f.w.c->result + SHM_RIG_BASE - SHM_RIG_CHUNK_BYTES);
		ev = shm_rig_await(f.w.q);
		assert_int_equal(ev.type, EVENT_CLOSED);
		assert_int_equal(ev.error, -EPROTO);
		fake_box_close(&f);
	}
}

/* Slots that would lie outside of the region, or could not hold a chunk. */
static void a_worker_checks_where_its_slots_lie(void **state)
{
	struct fake_box f;
	struct err e = {0};

	fake_box_open(&f);
	fake_box_seal(&f);
	f.parcel.slots = (struct shm_slots){.offset = SHM_RIG_BASE - 2047, .count = 2, .bytes = 1024};
	assert_int_equal(shm_parcel_send(f.socket, &f.parcel), 0);
	assert_int_equal(transport_shm.established(f.w.t, f.w.c, &e), -EPROTO);
	fake_box_close(&f);

	fake_box_open(&f);
	fake_box_seal(&f);
	f.parcel.slots = (struct shm_slots){.offset = 4096, .count = 2, .bytes = SHM_RIG_CHUNK_BYTES - 1};
	assert_int_equal(shm_parcel_send(f.socket, &f.parcel), 0);
	assert_int_equal(shm_worker_established(&f.w), 0);
	assert_int_equal(f.w.q->ops->adopt(f.w.q, f.w.c, &f.w.spec), -EINVAL);
	fake_box_close(&f);
}

TEST_PROGRAM(test_shm_hostile_box)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_worker_maps_only_what_is_sealed),
		cmocka_unit_test(a_worker_takes_no_half_parcel),
		cmocka_unit_test(a_worker_checks_where_results_lie),
		cmocka_unit_test(a_worker_checks_where_its_slots_lie),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
