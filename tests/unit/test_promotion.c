/* SPDX-License-Identifier: Apache-2.0 */
/* What an operator's promotion takes for a box's address, what it refuses, and that nothing of it blocks on names. */
#include "phub/control/promotion.h"

#include "tests/unit/cmocka_shim.h"
#include "tests/unit/libc_rig.h"

#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "aggregation/dispatch.h"
#include "phub/base/clock.h"
#include "phub/control/above.h"
#include "phub/control/box.h"
#include "phub/control/control.h"
#include "phub/control/disk.h"
#include "phub/control/root_file.h"

/* Names that were looked up, by whatever the box is made of. */
static unsigned looked_up;

static int count_lookup(const char **host, const struct addrinfo *hints)
{
	looked_up++;
	return 0;
}

/* A box at all addresses, with another above it, and targets. */
struct scene {
	struct config config;
	struct box *box;
	char folder[32], secret[64];
	unsigned port;
};

static void scene_open(struct scene *s)
{
	char targets[64], secret[96], text[64], at_all[64];
	const char *settings[] = {
		"cores=1", at_all, "transports=tcp", "uplink=127.0.0.1:9", "create=secret", secret, targets};
	struct box_env env = {.by_hand = false}; /* its tasks have threads */
	struct sockaddr_in at = {.sin_family = AF_INET};
	socklen_t length = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	FILE *file;
	struct err e;

	memset(s, 0, sizeof(*s));
	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &length), 0);
	close(fd);
	s->port = ntohs(at.sin_port);
	snprintf(at_all, sizeof(at_all), "listen=0.0.0.0:%u", s->port);
	snprintf(s->folder, sizeof(s->folder), "/tmp/phub-promote-XXXXXX");
	assert_non_null(mkdtemp(s->folder));
	snprintf(s->secret, sizeof(s->secret), "%s/secret", s->folder);
	file = fopen(s->secret, "w");
	assert_non_null(file);
	assert_int_equal(fchmod(fileno(file), 0600), 0);
	fprintf(file, "0123456789abcdef");
	fclose(file);
	snprintf(secret, sizeof(secret), "create_secret_file=%s", s->secret);
	snprintf(targets, sizeof(targets), "checkpoint_targets=%s", s->folder);
	config_init(&s->config);
	for (unsigned i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		if (config_set(&s->config, settings[i], &e) < 0)
			fail_msg("%s", e.text);
	if (config_finish(&s->config, &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(dispatch_from_env(&env.kernels, text, sizeof(text)), 0);
	if (box_create(&s->config, &env, clock_now_ns(), &s->box, &e) < 0 || promotion_open(s->box, &e) < 0)
		fail_msg("%s", e.text);
}

static void scene_close(struct scene *s)
{
	static const char *const files[] = {"secret", ".phub.root", ".phub.lock"};
	char path[64];

	box_destroy(s->box, clock_now_ns());
	config_fini(&s->config);
	for (unsigned i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", s->folder, files[i]);
		unlink(path);
	}
	assert_int_equal(rmdir(s->folder), 0);
}

/* Control's part at this time, and a moment for the thread. */
static void scene_turn(struct scene *s, uint64_t now_ns)
{
	static const struct timespec pause = {.tv_nsec = 1000000};

	s->box->control.now_ns = now_ns;
	promotion_step(&s->box->control);
	nanosleep(&pause, NULL);
}

/* The targets name this address, as of epoch 5. */
static void scene_name_root(struct scene *s, const char *host)
{
	struct root_file file = {.epoch = 5, .written_ms = 1};
	struct checkpoint_place place = {.target_count = 1, .targets = {s->folder}};
	struct err e;

	snprintf(file.address, sizeof(file.address), "%s:%u", host, s->port);
	snprintf(file.by, sizeof(file.by), "a test");
	assert_int_equal(root_file_write(&place, &file, &e), 0);
}

/* By the address that the operator typed it is reached, unless its port is not this box's own: something before it has
 * mapped that, and started again it would not know itself by it. */
static void test_mapped_ports(void **state)
{
	enum promotion_state how;
	struct scene s;
	char typed[64];
	struct err e;

	scene_open(&s);
	snprintf(typed, sizeof(typed), "10.1.1.1:%u", s.port == 7077 ? 7078u : 7077u);
	assert_int_equal(promotion_ask(&s.box->control, "me", typed, false, &how, &e), -EDESTADDRREQ);
	assert_non_null(strstr(e.text, "listens at all addresses; name it by"));
	snprintf(typed, sizeof(typed), "10.1.1.1:%u", s.port);
	assert_int_equal(promotion_ask(&s.box->control, "me", typed, false, &how, &e), 0);
	assert_int_equal(how, PROMOTION_BEGUN);
	scene_close(&s);
}

/* The targets name a host, which may be this one: the control thread does not ask. */
static void test_looks_nothing_up(void **state)
{
	struct control *c;
	struct scene s;

	scene_open(&s);
	c = &s.box->control;
	scene_name_root(&s, "localhost");
	looked_up = 0;
	for (unsigned i = 0; i < 5000 && !(promotion_file(c) && promotion_file(c)->epoch == 5); i++) {
		scene_turn(&s, clock_now_ns());
	}
	assert_non_null(promotion_file(c));
	assert_int_equal(promotion_file(c)->epoch, 5);
	assert_int_equal(looked_up, 0);
	scene_close(&s);
}

/* Steps of control, until no task is under way and none is wanted. */
static void scene_settle(struct scene *s)
{
	struct control *c = &s->box->control;
	enum promotion_state how;
	struct err e;

	for (unsigned i = 0; i < 5000; i++) {
		scene_turn(s, clock_now_ns());
		if (c->stopping ? promotion_next(c) == CLOCK_NEVER
				: promotion_ask(c, "me", "", true, &how, &e) < 0 || how != PROMOTION_BEGUN)
			return;
	}
	fail_msg("a promotion does not end");
}

/* Nobody was promoted: what is asked again says so, and what went wrong last. */
static void test_refusals(void **state)
{
	enum promotion_state how;
	struct control *c;
	struct scene s;
	char typed[64], lock[64];
	struct err e;

	scene_open(&s);
	c = &s.box->control;
	snprintf(typed, sizeof(typed), "10.1.1.1:%u", s.port);
	assert_int_equal(promotion_ask(c, "me", typed, true, &how, &e), -ENOENT);
	assert_non_null(strstr(e.text, "promote it again"));

	s.config.hostbox_fd = 1;
	assert_int_equal(promotion_ask(c, "me", typed, false, &how, &e), -EPERM);
	assert_non_null(strstr(e.text, "this is the box of a host"));
	s.config.hostbox_fd = 0;

	snprintf(lock, sizeof(lock), "%s/.phub.lock", s.folder);
	unlink(lock);
	assert_int_equal(mkdir(lock, 0700), 0); /* no process locks that */
	assert_int_equal(promotion_ask(c, "me", typed, false, &how, &e), 0);
	scene_settle(&s);
	assert_int_equal(promotion_ask(c, "me", typed, true, &how, &e), -ENOLCK);
	assert_non_null(strstr(e.text, "1 of 1 checkpoint_targets cannot be locked"));
	assert_false(above_is_root(c));
	assert_null(promotion_file(c));
	assert_int_equal(rmdir(lock), 0);

	control_stop(c);
	assert_int_equal(promotion_ask(c, "me", typed, false, &how, &e), -ESHUTDOWN);
	assert_int_equal(promotion_ask(c, "me", typed, true, &how, &e), -ESHUTDOWN);
	scene_close(&s);
}

/* It goes down while its thread claims: it is not the root any more, and leaves no lock behind; what was written holds.
 */
static void test_goes_down_claiming(void **state)
{
	struct checkpoint_place place = {.target_count = 1};
	struct disk *disk = disk_machine();
	enum promotion_state how;
	struct root_file file;
	struct control *c;
	struct scene s;
	char typed[64], who[64];
	struct err e;

	scene_open(&s);
	c = &s.box->control;
	snprintf(typed, sizeof(typed), "10.1.1.1:%u", s.port);
	assert_int_equal(promotion_ask(c, "me", typed, false, &how, &e), 0);
	c->now_ns = clock_now_ns();
	promotion_step(c);
	control_stop(c);
	assert_int_not_equal(promotion_next(c), CLOCK_NEVER); /* its task is under way */
	scene_settle(&s);
	assert_false(above_is_root(c));
	assert_int_equal(s.box->locks.count, 0);
	assert_false(disk->ops->is_locked(disk, s.folder, who, sizeof(who)));
	place.targets[0] = s.folder;
	assert_int_equal(root_file_read(&place, &file, &e), 0);
	assert_int_equal(file.epoch, 2);
	assert_string_equal(file.address, typed);
	scene_close(&s);
}

/* Its disk was replaced, in a box that is the root: what says so is there again. */
static void test_mends(void **state)
{
	struct checkpoint_place place = {.target_count = 1};
	struct root_file file = {.epoch = 0};
	enum promotion_state how;
	struct control *c;
	struct scene s;
	char typed[64], path[64];
	struct err e;

	scene_open(&s);
	c = &s.box->control;
	snprintf(typed, sizeof(typed), "10.1.1.1:%u", s.port);
	snprintf(path, sizeof(path), "%s/.phub.root", s.folder);
	place.targets[0] = s.folder;
	assert_int_equal(promotion_ask(c, "me", typed, false, &how, &e), 0);
	scene_settle(&s);
	assert_true(above_is_root(c));
	assert_int_equal(unlink(path), 0);
	for (unsigned i = 0; i < 5000 && access(path, F_OK) < 0; i++) {
		scene_turn(&s, c->now_ns + NS_PER_S);
	}
	assert_int_equal(root_file_read(&place, &file, &e), 0);
	assert_int_equal(file.epoch, 2);
	assert_string_equal(file.address, typed);
	scene_close(&s);
}

/* A disk failed as it was promoted, and that was written nevertheless: it is the root, as it would be if it came again.
 */
static void test_heeds_itself(void **state)
{
	struct control *c;
	struct scene s;

	scene_open(&s);
	c = &s.box->control;
	scene_name_root(&s, "127.0.0.1");
	for (unsigned i = 0; i < 5000 && !above_is_root(c); i++) {
		scene_turn(&s, clock_now_ns());
	}
	assert_true(above_is_root(c));
	assert_int_equal(c->above.epoch, 5);
	assert_int_equal(s.box->locks.count, 1);
	scene_close(&s);
}

TEST_PROGRAM(test_promotion)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mapped_ports),
		cmocka_unit_test(test_looks_nothing_up),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_goes_down_claiming),
		cmocka_unit_test(test_mends),
		cmocka_unit_test(test_heeds_itself),
	};

	libc_rig_lookup = count_lookup;
	return cmocka_run_group_tests_name("promotion", tests, NULL, NULL);
}
