/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared-memory transport until a connection is there: listening, strangers, letting in, mapping, and every way
 * in which that is refused.
 */
#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/shm_rig.h"
#include "transport/shm_internal.h"

/* ---- setting up ---- */

static void both_ends_map_the_same_memory(void **state)
{
	struct shm_worker w;
	struct shm_box b;
	struct conn *c;
	char peer[80];

	shm_box_open(&b, 8);
	assert_int_equal(strncmp(b.address, "@phub-", 6), 0);
	assert_int_equal(b.q->hold_max, UINT_MAX);
	assert_false(b.q->lossy);
	c = shm_rig_join(&b, &w, 7);
	snprintf(peer, sizeof(peer), "pid %d uid %u", (int)getpid(), (unsigned)geteuid());
	assert_string_equal(c->peer, peer);
	assert_string_equal(w.c->peer, peer);
	assert_null(c->push);
	assert_null(c->result);
	memcpy(w.c->push, "gradient", 9);
	assert_string_equal(b.push.base, "gradient");
	memcpy(b.result.base, "result", 7);
	assert_string_equal(w.c->result, "result");
	b.q->ops->drop(b.q, c);
	shm_worker_close(&w);
	shm_box_close(&b);
}

/* A worker has a connection per core; its memory is the same in all of them, and outlives them. */
static void connections_of_a_worker_share_its_mappings(void **state)
{
	struct conn *box[3], *worker[3];
	struct shm_worker w;
	struct shm_box b;

	shm_box_open(&b, 8);
	shm_worker_open(&w, b.address, 7);
	for (unsigned i = 0; i < 3; i++) {
		box[i] = shm_rig_meet(&b, &w, 7);
		worker[i] = w.c;
		w.c = NULL;
		assert_ptr_equal(worker[i]->push, worker[0]->push);
		assert_ptr_equal(worker[i]->result, worker[0]->result);
	}
	assert_int_equal(((struct shm_transport *)w.t)->map_count, 2);
	memcpy(worker[0]->push, "stays", 6);
	for (unsigned i = 0; i < 3; i++) {
		char *gradient = worker[i]->push;

		transport_shm.abandon(w.t, worker[i]);
		assert_string_equal(gradient, "stays");
		transport_shm.abandon(b.t, box[i]);
	}
	shm_worker_close(&w);
	shm_box_close(&b);
}

/* A transport keeps mappings to its end; there is a bound on them. */
static void too_many_regions_are_refused_by_name(void **state)
{
	struct err e = {0};
	struct hello hello = {0};
	struct shm_worker w;
	struct shm_box b;
	int rc;

	shm_box_open(&b, 8);
	shm_worker_open(&w, b.address, 7);
	for (unsigned i = 1; i < SHM_MAPS_MAX; i++) {
		mem_region_destroy(&b.push);
		assert_int_equal(mem_region_create(SHM_RIG_BASE, MEM_SHARED, MEM_NODE_ANY, &b.push, &e), 0);
		transport_shm.abandon(b.t, shm_rig_meet(&b, &w, 7));
		transport_shm.abandon(w.t, w.c);
		w.c = NULL;
	}
	mem_region_destroy(&b.push);
	assert_int_equal(mem_region_create(SHM_RIG_BASE, MEM_SHARED, MEM_NODE_ANY, &b.push, &e), 0);
	assert_int_equal(transport_shm.connect(w.t, b.address, 7, 3, shm_rig_key, NULL, &w.c, &e), 0);
	while ((rc = transport_shm.established(w.t, w.c, &e)) == -EAGAIN)
		if (transport_shm.accept(b.t, clock_now_ns(), &hello) == 0)
			assert_int_equal(transport_shm.admit(b.t, hello.conn, &b.spec, &e), 0);
	assert_int_equal(rc, -ENOSPC);
	assert_non_null(strstr(e.text, "new transport"));
	transport_shm.abandon(b.t, hello.conn);
	shm_worker_close(&w);
	shm_box_close(&b);
}

static void refusals_reach_the_worker(void **state)
{
	static const struct {
		int said, heard;
	} codes[] = {{EACCES, -EACCES}, {ENOENT, -ENOENT}, {EALREADY, -EALREADY}, {0, -ECONNREFUSED}};
	struct err e = {0};
	struct shm_box b;

	shm_box_open(&b, 8);
	for (unsigned i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
		struct hello hello;
		struct shm_worker w;

		shm_worker_open(&w, b.address, 7);
		assert_int_equal(transport_shm.accept(b.t, 0, &hello), -EAGAIN);
		assert_int_equal(transport_shm.established(w.t, w.c, &e), -EAGAIN);
		hello = shm_box_hello(&b, 7);
		assert_int_equal(hello.core, 3);
		transport_shm.reject(b.t, hello.conn, codes[i].said);
		assert_int_equal(transport_shm.established(w.t, w.c, &e), codes[i].heard);
		assert_non_null(strstr(e.text, b.address));
		/* It stays so. */
		assert_int_equal(transport_shm.established(w.t, w.c, &e), codes[i].heard);
		shm_worker_close(&w);
		assert_int_equal(b.t->strangers_refused, i + 1);
	}
	shm_box_close(&b);
}

static void bad_addresses_and_absent_boxes_are_named(void **state)
{
	char too_long[SHM_ADDRESS_BYTES + 1] = "@";
	const char *const bad[] = {"", "@", "127.0.0.1:7101", "phub-1-1", too_long};
	struct transport_config config = {0};
	struct transport *t;
	struct err e = {0};
	struct conn *c;

	memset(too_long + 1, 'x', SHM_ADDRESS_BYTES - 1);
	assert_int_equal(transport_shm.open(&config, &t, &e), 0);
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(transport_shm.connect(t, bad[i], 1, 0, shm_rig_key, NULL, &c, &e), -EINVAL);
	assert_int_equal(transport_shm.connect(t, "@phub-0-0", 1, 0, shm_rig_key, NULL, &c, &e), -ECONNREFUSED);
	assert_non_null(strstr(e.text, "@phub-0-0"));
	transport_shm.close(t);
}

/*
 * Brings a hello up to the point where the box decides, tries to admit it with `spec`, and checks both sides'
 * errors.
 */
static void admit_fails(struct shm_box *b, const struct conn_spec *spec, int error, const char *word)
{
	struct err e = {0};
	struct hello hello;
	struct shm_worker w;

	shm_worker_open(&w, b->address, 7);
	assert_int_equal(transport_shm.accept(b->t, 0, &hello), -EAGAIN);
	assert_int_equal(transport_shm.established(w.t, w.c, &e), -EAGAIN);
	hello = shm_box_hello(b, 7);
	assert_int_equal(transport_shm.admit(b->t, hello.conn, spec, &e), error);
	assert_non_null(strstr(e.text, word));
	assert_int_equal(transport_shm.established(w.t, w.c, &e), -ENOSPC);
	shm_worker_close(&w);
}

static void admit_refuses_memory_that_is_not_safe(void **state)
{
	struct mem_region private, open_result, large;
	struct span beyond = {SHM_RIG_BASE - 8, 16};
	struct conn_spec spec;
	struct err e = {0};
	struct shm_box b;

	shm_box_open(&b, 8);
	assert_int_equal(mem_region_create(4096, 0, MEM_NODE_ANY, &private, &e), 0);
	spec = b.spec;
	spec.push = NULL;
	admit_fails(&b, &spec, -EINVAL, "push");
	spec.push = &private;
	admit_fails(&b, &spec, -EINVAL, "push");
	spec = b.spec;
	spec.result = &private;
	admit_fails(&b, &spec, -EINVAL, "result");

	/* Sealed by somebody else, and workers could write results. */
	assert_int_equal(mem_region_create(4096, MEM_SHARED, MEM_NODE_ANY, &open_result, &e), 0);
	assert_int_equal(mem_region_seal(&open_result, false), 0);
	spec.result = &open_result;
	admit_fails(&b, &spec, -EPERM, "result");

	spec = b.spec;
	spec.chunk_count = 1;
	spec.spans = &beyond;
	admit_fails(&b, &spec, -EINVAL, "chunks");

	spec = b.spec;
	spec.slot_offset = SHM_RIG_BASE - SHM_RIG_SLOTS * SHM_RIG_SLOT_BYTES + 1;
	admit_fails(&b, &spec, -EINVAL, "slots");
	spec = b.spec;
	spec.slot_bytes = SHM_RIG_CHUNK_BYTES - 1;
	admit_fails(&b, &spec, -EINVAL, "slots");
	spec.slot_bytes = 0;
	admit_fails(&b, &spec, -EINVAL, "slots");

	large = b.push;
	large.huge = true;
	spec = b.spec;
	spec.push = &large;
	admit_fails(&b, &spec, -EINVAL, "huge");
	mem_region_destroy(&private);
	mem_region_destroy(&open_result);
	shm_box_close(&b);
}

static void adopt_refuses_a_full_queue_and_chunks_out_of_reach(void **state)
{
	struct transport_config config = {.queue_conns_max = 1};
	struct err e = {0};
	struct shm_worker w;
	struct transport *t;
	struct shm_box b;
	struct queue *q;
	struct conn *c[2];

	shm_box_open(&b, 8);
	assert_int_equal(transport_shm.open(&config, &t, &e), 0);
	assert_int_equal(transport_shm.queue_create(t, MEM_NODE_ANY, &q, &e), 0);
	shm_worker_open(&w, b.address, 7);
	c[0] = shm_rig_meet(&b, &w, 7);
	transport_shm.abandon(w.t, w.c);
	w.c = NULL;
	c[1] = shm_rig_meet(&b, &w, 7);
	assert_int_equal(q->ops->adopt(q, c[0], &b.spec), 0);
	assert_int_equal(q->ops->adopt(q, c[1], &b.spec), -ENOSPC);
	q->ops->drop(q, c[0]);
	assert_int_equal(q->ops->adopt(q, c[1], &b.spec), 0);

	w.spans[1].offset = SHM_RIG_BASE;
	assert_int_equal(w.q->ops->adopt(w.q, w.c, &w.spec), -EINVAL);
	w.spans[1].offset = SHM_RIG_CHUNK_BYTES;
	assert_int_equal(w.q->ops->adopt(w.q, w.c, &w.spec), 0);
	q->ops->drop(q, c[1]);
	shm_worker_close(&w);
	transport_shm.queue_destroy(t, q);
	transport_shm.close(t);
	shm_box_close(&b);
}

/* ---- strangers ---- */

static int stranger_open(const char *address)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	REQUIRE(fd >= 0);
	memcpy(name.sun_path + 1, address + 1, strlen(address) - 1);
	REQUIRE(connect(fd, (struct sockaddr *)&name, (socklen_t)(sizeof(sa_family_t) + strlen(address))) == 0);
	return fd;
}

static int stranger_is_out(int fd)
{
	char rest[64];
	ssize_t n;

	while ((n = recv(fd, rest, sizeof(rest), MSG_DONTWAIT)) > 0)
		;
	return n == 0 || errno == ECONNRESET;
}

static void strangers_are_late_only_once(void **state)
{
	struct hello hello;
	struct shm_box b;
	int fd;

	shm_box_open(&b, 8);
	fd = stranger_open(b.address);
	assert_int_equal(transport_shm.accept(b.t, 1000, &hello), -EAGAIN);
	assert_int_equal(transport_shm.accept(b.t, 1000 + 5 * NS_PER_S - 1, &hello), -EAGAIN);
	assert_false(stranger_is_out(fd));
	assert_int_equal(transport_shm.accept(b.t, 1000 + 5 * NS_PER_S, &hello), -EAGAIN);
	assert_true(stranger_is_out(fd));
	assert_int_equal(b.t->strangers_refused, 1);
	close(fd);
	shm_box_close(&b);
}

static void strangers_who_talk_nonsense_or_hang_up_are_out(void **state)
{
	struct hello hello;
	struct shm_box b;
	char noise[200];
	int fd[3];

	for (unsigned i = 0; i < sizeof(noise); i++)
		noise[i] = (char)(i * 37 + 11);
	shm_box_open(&b, 8);
	for (unsigned i = 0; i < 3; i++)
		fd[i] = stranger_open(b.address);
	assert_int_equal(transport_shm.accept(b.t, 0, &hello), -EAGAIN);
	assert_int_equal(send(fd[0], noise, sizeof(noise), 0), sizeof(noise));
	close(fd[1]);
	assert_int_equal(send(fd[2], noise, 5, 0), 5);
	assert_int_equal(transport_shm.accept(b.t, 0, &hello), -EAGAIN);
	assert_true(stranger_is_out(fd[0]));
	assert_int_equal(b.t->strangers_refused, 1);
	assert_int_equal(b.t->strangers_gone, 1);
	assert_false(stranger_is_out(fd[2]));
	close(fd[0]);
	close(fd[2]);
	shm_box_close(&b);
}

/* Of more strangers than there is room for the oldest goes, and an honest worker gets in. */
static void strangers_are_bounded(void **state)
{
	enum { MORE = 10 };
	int fd[SHM_STRANGERS_MAX + MORE];
	struct shm_worker w;
	struct hello hello;
	struct shm_box b;
	struct conn *c;

	shm_box_open(&b, 8);
	for (unsigned i = 0; i < SHM_STRANGERS_MAX + MORE; i++) {
		fd[i] = stranger_open(b.address);
		assert_int_equal(transport_shm.accept(b.t, 0, &hello), -EAGAIN);
	}
	assert_int_equal(b.t->strangers_refused, MORE);
	assert_int_equal(((struct shm_transport *)b.t)->stranger_count, SHM_STRANGERS_MAX);
	for (unsigned i = 0; i < SHM_STRANGERS_MAX + MORE; i++)
		assert_int_equal(stranger_is_out(fd[i]), i < MORE);
	c = shm_rig_join(&b, &w, 7);
	b.q->ops->drop(b.q, c);
	shm_worker_close(&w);
	for (unsigned i = 0; i < SHM_STRANGERS_MAX + MORE; i++)
		close(fd[i]);
	shm_box_close(&b);
}

/* Needs root, to become somebody else. */
static void another_user_is_not_let_in(void **state)
{
	struct hello hello;
	struct shm_box b;
	pid_t pid;

	if (geteuid() != 0)
		skip_because("needs root");
	shm_box_open(&b, 8);
	pid = fork();
	if (pid == 0) {
		int fd;

		REQUIRE(setresuid(65534, 65534, 65534) == 0);
		fd = stranger_open(b.address);
		REQUIRE(recv(fd, &hello, sizeof(hello), 0) <= 0);
		_exit(0);
	}
	while (b.t->strangers_refused == 0)
		assert_int_equal(transport_shm.accept(b.t, 0, &hello), -EAGAIN);
	shm_rig_reap(pid, 0);
	shm_box_close(&b);
}

/* A worker that is not root trusts only its own user's box, and root's. */
static void a_squatter_gets_no_gradients(void **state)
{
	struct transport_config config = {.queue_conns_max = 1};
	struct transport *t;
	struct err e = {0};
	struct shm_box b;
	struct conn *c;
	pid_t pid;
	int up[2], down[2];
	char byte = 0;

	if (geteuid() != 0)
		skip_because("needs root");
	assert_true(pipe(up) == 0 && pipe(down) == 0);
	pid = fork();
	if (pid == 0) {
		REQUIRE(setresuid(65534, 65534, 65534) == 0);
		shm_box_open(&b, 8);
		REQUIRE(write(up[1], b.address, sizeof(b.address)) == sizeof(b.address));
		REQUIRE(read(down[0], &byte, 1) == 1);
		_exit(0);
	}
	assert_int_equal(read(up[0], b.address, sizeof(b.address)), sizeof(b.address));
	assert_int_equal(setresuid(65533, 65533, 0), 0);
	assert_int_equal(transport_shm.open(&config, &t, &e), 0);
	assert_int_equal(transport_shm.connect(t, b.address, 7, 3, shm_rig_key, NULL, &c, &e), -EACCES);
	assert_non_null(strstr(e.text, "uid 65534) belongs to another user"));
	transport_shm.close(t);
	assert_int_equal(setresuid(0, 0, 0), 0);
	assert_int_equal(write(down[1], &byte, 1), 1);
	shm_rig_reap(pid, 0);
	for (unsigned i = 0; i < 2; i++) {
		close(up[i]);
		close(down[i]);
	}
}

static void one_transport_listens_once(void **state)
{
	char address[128];
	struct err e = {0};
	struct shm_box b, other;

	shm_box_open(&b, 8);
	assert_int_equal(transport_shm.listen(b.t, "", address, sizeof(address), &e), -EALREADY);
	shm_box_open(&other, 8);
	assert_string_not_equal(b.address, other.address);
	shm_box_close(&other);
	shm_box_close(&b);
}

TEST_PROGRAM(test_shm_setup)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(both_ends_map_the_same_memory),
		cmocka_unit_test(connections_of_a_worker_share_its_mappings),
		cmocka_unit_test(too_many_regions_are_refused_by_name),
		cmocka_unit_test(refusals_reach_the_worker),
		cmocka_unit_test(bad_addresses_and_absent_boxes_are_named),
		cmocka_unit_test(admit_refuses_memory_that_is_not_safe),
		cmocka_unit_test(adopt_refuses_a_full_queue_and_chunks_out_of_reach),
		cmocka_unit_test(strangers_are_late_only_once),
		cmocka_unit_test(strangers_who_talk_nonsense_or_hang_up_are_out),
		cmocka_unit_test(strangers_are_bounded),
		cmocka_unit_test(another_user_is_not_let_in),
		cmocka_unit_test(a_squatter_gets_no_gradients),
		cmocka_unit_test(one_transport_listens_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
