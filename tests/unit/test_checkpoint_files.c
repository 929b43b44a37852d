/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints that come to be or not, by what names, and which go again. With arguments it writes one, for tests of the
 * command:
 *
 *      test_checkpoint_files JOB ROUND PARITY DIR...
 */
#include "phub/control/checkpoint.h"
#include "tests/unit/cmocka_shim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/control/checkpoint_format.h"
#include "phub/control/checkpoint_meta.h"
#include "tests/unit/checkpoint_rig.h"

#define QUICK "/dev/shm" /* where fdatasync() costs nothing */
#define DISK  "/var/tmp"

static const uint32_t sizes[] = {1, 700, 5000, 64, 63, 65, 4096, 98304, 300000};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

/* ---- those that do not come to be ---- */

static void expect_nothing(struct checkpoint_rig *r, struct checkpoint_progress *p, int code)
{
	struct err e = {0};
	char path[256];
	struct stat st;
	int rc = checkpoint_write(&r->place, &r->table, &r->snapshot, p, &e);

	if (rc != code)
		fail_msg("%d instead of %d: %s", rc, code, e.text);
	assert_true(e.text[0]);
	assert_int_equal(checkpoint_rig_files(r), 0);
	snprintf(path, sizeof(path), "%s/%s", r->place.targets[0], r->place.job);
	assert_int_equal(stat(path, &st), -1);
}

static void test_given_up(void **state)
{
	struct checkpoint_progress stopped = {.stop = true};
	struct checkpoint_rig r;

	checkpoint_rig_open(&r, QUICK, 1, 0, "job");
	checkpoint_rig_chunks(&r, 9, sizes, SIZES, 3);
	expect_nothing(&r, &stopped, -ECANCELED);
	r.snapshot.missed = true;
	expect_nothing(&r, NULL, -ECANCELED);
	r.snapshot.missed = false;
	r.table.chunk_count--;
	expect_nothing(&r, NULL, -EINVAL);
	r.table.chunk_count++;
	r.table.chunks[1].bytes = 0;
	expect_nothing(&r, NULL, -EINVAL);
	r.table.chunks[1].bytes = CHECKPOINT_CHUNK_MAX + 1;
	expect_nothing(&r, NULL, -EINVAL);
	r.table.chunks[1].bytes = sizes[1];
	r.place.parity = 1;
	expect_nothing(&r, NULL, -EINVAL);
	r.place.target_count = 2;
	r.place.targets[1] = r.paths[0];
	expect_nothing(&r, NULL, -EINVAL); /* the same directory twice */
	r.place.parity = 0;
	expect_nothing(&r, NULL, -EINVAL); /* the loss of any would lose it */
	r.place.target_count = 33;
	assert_int_equal(checkpoint_write(&r.place, &r.table, &r.snapshot, NULL, NULL), -EINVAL);
	r.place.target_count = 0;
	assert_int_equal(checkpoint_write(&r.place, &r.table, &r.snapshot, NULL, NULL), -EINVAL);
	checkpoint_rig_close(&r);
}

#ifdef PHUB_ISAL
/* Targets that cannot be written: as many as there is parity. */
static void test_written_without(void **state)
{
	struct checkpoint_rig r;
	struct err e;

	checkpoint_rig_open(&r, QUICK, 4, 2, "job");
	checkpoint_rig_chunks(&r, 7, sizes, SIZES, 2);
	r.place.targets[1] = "/nowhere";
	assert_int_equal(checkpoint_write(&r.place, &r.table, &r.snapshot, NULL, &e), 1);
	assert_non_null(strstr(e.text, "/nowhere"));
	checkpoint_rig_expect(&r, SIZES);
	r.place.targets[0] = "/nowhere/else";
	r.place.targets[3] = "/dev/null";
	r.table.round = 8;
	assert_int_equal(checkpoint_write(&r.place, &r.table, &r.snapshot, NULL, &e), -ENOTDIR);
	assert_int_equal(checkpoint_rig_files(&r), 1);
	checkpoint_rig_close(&r);
}
#else
static void test_parity_refused(void **state)
{
	struct checkpoint_rig r;
	struct err e;

	checkpoint_rig_open(&r, QUICK, 2, 1, "job");
	checkpoint_rig_chunks(&r, 7, sizes, SIZES, 2);
	assert_int_equal(checkpoint_write(&r.place, &r.table, &r.snapshot, NULL, &e), -ENOTSUP);
	assert_non_null(strstr(e.text, "libisal-dev"));
	assert_int_equal(checkpoint_rig_files(&r), 0);
	checkpoint_rig_close(&r);
}
#endif

struct slow_core {
	struct checkpoint_rig *rig;
	struct snapshot *s;
	uint64_t limit; /* of file sizes, from the middle on, but only once room for more is reserved; 0: none */
	bool misses;
};

/* Copies chunk by chunk while the file is written. */
static void *slow_core(void *arg)
{
	const struct slow_core *core = arg;

	for (uint32_t i = 0; i < core->s->chunk_count; i++) {
		struct timespec pause = {.tv_nsec = 5 * (long)NS_PER_MS};

		nanosleep(&pause, NULL);
		if (i == core->s->chunk_count / 2 && core->limit) {
			struct rlimit limit = {.rlim_cur = core->limit, .rlim_max = RLIM_INFINITY};

			while (checkpoint_rig_files_of(core->rig, core->limit + 1) < 2) /* the old checkpoint is one */
				nanosleep(&pause, NULL);
			setrlimit(RLIMIT_FSIZE, &limit);
		}
		if (i == core->s->chunk_count / 2 && core->misses) {
			atomic_store(&core->s->missed, true);
			break;
		}
		atomic_store(&core->s->chunks[i].copied, true);
	}
	return NULL;
}

static int write_slowly(struct checkpoint_rig *r, struct slow_core core, struct err *e)
{
	pthread_t thread;
	int rc;

	core.rig = r;
	core.s = &r->snapshot;
	for (uint32_t i = 0; i < r->snapshot.chunk_count; i++)
		r->snapshot.chunks[i].copied = false;
	assert_int_equal(pthread_create(&thread, NULL, slow_core, &core), 0);
	rc = checkpoint_write(&r->place, &r->table, &r->snapshot, NULL, e);
	pthread_join(thread, NULL);
	return rc;
}

/* It follows the cores; a disk that fails in the middle leaves the old checkpoint alone. */
static void test_meanwhile(void **state)
{
	static const uint32_t large[] = {2000000, 2000000, 2000000, 2000000};
	struct rlimit limit = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
	struct checkpoint_rig r;
	struct err e = {0};

	signal(SIGXFSZ, SIG_IGN);
	checkpoint_rig_open(&r, DISK, 1, 0, "job");
	checkpoint_rig_chunks(&r, 9, large, 4, 3);
	assert_int_equal(write_slowly(&r, (struct slow_core){0}, &e), 0);
	checkpoint_rig_expect(&r, 0);
	r.table.round = 10;
	assert_int_equal(write_slowly(&r, (struct slow_core){.limit = 4 << 20}, &e), -EFBIG);
	setrlimit(RLIMIT_FSIZE, &limit);
	assert_non_null(strstr(e.text, "cannot write"));
	assert_int_equal(checkpoint_rig_files(&r), 1);
	assert_int_equal(write_slowly(&r, (struct slow_core){.misses = true}, &e), -ECANCELED);
	assert_int_equal(checkpoint_rig_files(&r), 1);
	r.table.round = 9;
	checkpoint_rig_expect(&r, 0);
	checkpoint_rig_close(&r);
}

static bool write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return good;
}

/* In a mount namespace of its own, so that nothing is left. False: not allowed here. */
static bool mount_small(const char *at)
{
	char map[32];
	uid_t uid = getuid();

	if (unshare(CLONE_NEWNS | (uid ? CLONE_NEWUSER : 0)) < 0)
		return false;
	snprintf(map, sizeof(map), "0 %u 1", uid);
	if (uid && !write_file("/proc/self/uid_map", map))
		return false;
	return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	       mount("tmpfs", at, "tmpfs", 0, "size=400k") == 0;
}

/* A file system of 400 KiB: one checkpoint fits, a second does not; then with parity the others go on without it. */
static void full_disk(struct checkpoint_rig *r)
{
	static const uint32_t large[] = {100000, 100000};
	struct err e = {0};

	checkpoint_rig_chunks(r, 9, large, 2, 3);
	r->place.target_count = 1;
	checkpoint_rig_write(r);
	r->table.round = 10;
	assert_int_equal(checkpoint_write(&r->place, &r->table, &r->snapshot, NULL, &e), -ENOSPC);
	assert_non_null(strstr(e.text, r->paths[0]));
	assert_int_equal(checkpoint_rig_files(r), 1);
	r->table.round = 9;
	checkpoint_rig_expect(r, 0);
	r->table.round = 10;
	r->place.target_count = 2;
	r->place.parity = 1;
#ifdef PHUB_ISAL
	assert_int_equal(checkpoint_write(&r->place, &r->table, &r->snapshot, NULL, &e), 1);
	assert_int_equal(e.code, -ENOSPC);
	checkpoint_rig_expect(r, 2);
	assert_int_equal(checkpoint_rig_files(r), 2);
#endif
}

static void test_full_disk(void **state)
{
	struct checkpoint_rig r;
	int status;
	pid_t child;

	checkpoint_rig_open(&r, QUICK, 2, 0, "job");
	child = fork();
	if (child == 0) {
		if (!mount_small(r.paths[0]))
			_exit(77);
		full_disk(&r); /* a failed assertion ends the child as it would end the test */
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	checkpoint_rig_close(&r);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		skip_because("no mount namespaces for this user here");
	}
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A budget is kept, and a stop is heard while it holds back. */
static void *stop_soon(void *arg)
{
	struct checkpoint_progress *p = arg;
	struct timespec pause = {.tv_nsec = 50 * (long)NS_PER_MS};

	nanosleep(&pause, NULL);
	atomic_store(&p->stop, true);
	return NULL;
}

static void test_budget(void **state)
{
	static const uint32_t large[] = {1 << 20, 1 << 20};
	struct checkpoint_progress p = {.bytes_per_s = 10 << 20}, slow = {.bytes_per_s = 1000};
	struct checkpoint_rig r;
	pthread_t thread;
	uint64_t begin_ns;

	checkpoint_rig_open(&r, QUICK, 1, 0, "job");
	checkpoint_rig_chunks(&r, 9, large, 2, 3);
	assert_int_equal(pthread_create(&thread, NULL, stop_soon, &slow), 0);
	expect_nothing(&r, &slow, -ECANCELED);
	assert_in_range(slow.written, 1, slow.total - 1);
	pthread_join(thread, NULL);
	begin_ns = clock_now_ns();
	assert_int_equal(checkpoint_write(&r.place, &r.table, &r.snapshot, &p, NULL), 0);
	assert_true(clock_now_ns() - begin_ns >= 200 * NS_PER_MS);
	assert_true(p.written == p.total && p.total >= 2 << 20);
	checkpoint_rig_close(&r);
}

/* ---- disks of tests ---- */

struct faulty {
	struct disk disk;
	struct disk_ops ops;
	const char *refused; /* files whose names begin so cannot be opened */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned writing, most; /* at the same time */
};

static int faulty_open_file(struct disk *d, int at, const char *name)
{
	const struct faulty *f = (struct faulty *)d;

	if (f->refused && strncmp(name, f->refused, strlen(f->refused)) == 0)
		return -EMFILE;
	return disk_machine()->ops->open_file(disk_machine(), at, name);
}

/* Waits for others to come, so that it is seen whether they do. */
static ssize_t faulty_write(struct disk *d, int fd, const void *from, size_t count, uint64_t at)
{
	struct faulty *f = (struct faulty *)d;
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 10;
	pthread_mutex_lock(&f->lock);
	f->writing++;
	f->most = f->writing > f->most ? f->writing : f->most;
	pthread_cond_broadcast(&f->changed);
	while (f->most < 3 && pthread_cond_timedwait(&f->changed, &f->lock, &until) == 0)
		;
	f->writing--;
	pthread_mutex_unlock(&f->lock);
	return disk_machine()->ops->write(disk_machine(), fd, from, count, at);
}

static void faulty_init(struct faulty *f)
{
	*f = (struct faulty){.ops = *disk_machine()->ops};
	f->disk.ops = &f->ops;
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->changed, NULL);
}

/* What cannot be looked at is not taken for torn: the newest one stays, and is the newest. */
static void test_unread(void **state)
{
	struct checkpoint_progress p = {.stop = false};
	struct checkpoint_rig r;
	struct faulty f;
	uint64_t newest_ms;

	faulty_init(&f);
	f.ops.open_file = faulty_open_file;
	checkpoint_rig_open(&r, QUICK, 1, 0, "job");
	for (uint64_t round = 8; round < 10; round++) {
		checkpoint_rig_chunks(&r, round, sizes, SIZES, 3);
		assert_int_equal(checkpoint_write(&r.place, &r.table, &r.snapshot, &p, NULL), 0);
	}
	r.place.disk = &f.disk;
	f.refused = "9.";
	assert_int_equal(checkpoint_prune(&r.place, 1, NULL), 0);
	assert_int_equal(checkpoint_rig_files(&r), 2);
	newest_ms = p.newest_ms;
	r.table.round = 10;
	assert_int_equal(checkpoint_write(&r.place, &r.table, &r.snapshot, &p, NULL), 0);
	assert_true(p.newest_ms > newest_ms);
	f.refused = NULL;
	assert_int_equal(checkpoint_rig_newest(&r).round, 10);
	assert_int_equal(checkpoint_prune(&r.place, 1, NULL), 0);
	assert_int_equal(checkpoint_rig_files(&r), 1);
	checkpoint_rig_close(&r);
}

#ifdef PHUB_ISAL
static void test_at_the_same_time(void **state)
{
	static const uint32_t large[] = {3 << 20, 3 << 20, 3 << 20};
	struct checkpoint_rig r;
	struct faulty f;

	faulty_init(&f);
	f.ops.write = faulty_write;
	checkpoint_rig_open(&r, QUICK, 3, 1, "job");
	checkpoint_rig_chunks(&r, 9, large, 3, 3);
	r.place.disk = &f.disk;
	assert_int_equal(checkpoint_write(&r.place, &r.table, &r.snapshot, NULL, NULL), 0);
	assert_int_equal(f.most, 3);
	checkpoint_rig_expect(&r, 0);
	checkpoint_rig_close(&r);
}
#endif

/* ---- names ---- */

static void test_names(void **state)
{
	static const char *const jobs[] = {
		"job", "..", ".", "../job", "a/b", "%41", "A", ".hidden", "a.b", "sp ace", "\xc3\xa4\x01", "-rf"};
	enum { JOBS = sizeof(jobs) / sizeof(jobs[0]) };
	struct checkpoint_rig r;
	char dir[CHECKPOINT_DIR_BYTES], job[CHECKPOINT_JOB_BYTES_MAX + 1], longest[257], **found;
	unsigned count;
	struct err e;

	checkpoint_rig_open(&r, QUICK, 2, 1, "job");
	r.place.target_count = 1;
	r.place.parity = 0;
	for (unsigned i = 0; i < JOBS; i++) {
		r.place.job = jobs[i];
		checkpoint_rig_chunks(&r, i + 1, sizes, SIZES, i);
		checkpoint_rig_write(&r);
		checkpoint_rig_expect(&r, 0);
		assert_int_equal(checkpoint_format_dir(jobs[i], dir, &e), 0);
		assert_null(strchr(dir, '/'));
		assert_true(dir[0] != '.');
		assert_true(checkpoint_format_job(dir, job));
		assert_string_equal(job, jobs[i]);
	}
	assert_int_equal(checkpoint_list_jobs(r.place.targets, 2, &found, &count, &e), 0);
	assert_int_equal(count, JOBS);
	for (unsigned i = 1; i < count; i++)
		assert_true(strcmp(found[i - 1], found[i]) < 0);
	for (unsigned i = 0; i < count; i++)
		free(found[i]);
	free(found);
	memset(longest, 'x', sizeof(longest));
	longest[256] = '\0';
	assert_int_equal(checkpoint_format_dir(longest, dir, &e), -ENAMETOOLONG);
	longest[255] = '\0';
	assert_int_equal(checkpoint_format_dir(longest, dir, &e), 0);
	longest[3] = '/';
	assert_int_equal(checkpoint_format_dir(longest, dir, &e), -ENAMETOOLONG);
	assert_int_equal(checkpoint_format_dir("", dir, &e), -EINVAL);
	assert_false(checkpoint_format_job("a%4", job) || checkpoint_format_job("%zz", job) ||
		     checkpoint_format_job("%41", job) || checkpoint_format_job("..", job) ||
		     checkpoint_format_job("a%00", job) || checkpoint_format_job("", job));
	checkpoint_rig_close(&r);
}

static void test_file_names(void **state)
{
	static const char *const bad[] = {"", "1", "1.00000000000000ab.0.phub.x", "1.00000000000000AB.0.phub",
		"01.00000000000000ab.0.phub", "+1.00000000000000ab.0.phub", "1.ab.0.phub", "1.00000000000000ab.00.phub",
		"1.00000000000000ab.32.phub", "1.00000000000000ab.-1.phub", "1.00000000000000ab.0.phuc",
		"99999999999999999999.00000000000000ab.0.phub", " 1.00000000000000ab.0.phub"};
	char name[CHECKPOINT_NAME_BYTES];
	uint64_t round, id;
	unsigned piece;
	bool part;

	checkpoint_format_name(UINT64_MAX, UINT64_MAX, 31, name);
	assert_true(checkpoint_format_parse(name, &round, &id, &piece, &part));
	assert_true(round == UINT64_MAX && id == UINT64_MAX && piece == 31 && !part);
	assert_true(checkpoint_format_parse("12.00000000000000ab.3.phub.part", &round, &id, &piece, &part));
	assert_true(round == 12 && id == 0xab && piece == 3 && part);
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (checkpoint_format_parse(bad[i], &round, &id, &piece, &part))
			fail_msg("%s", bad[i]);
}

/* ---- which go ---- */

static void flip_byte(int fd, off_t at)
{
	uint8_t byte;

	assert_int_equal(pread(fd, &byte, 1, at), 1);
	byte ^= 1;
	assert_int_equal(pwrite(fd, &byte, 1, at), 1);
}

static void test_prune(void **state)
{
	struct checkpoint_entry *all, torn;
	struct checkpoint_rig r;
	struct err e;
	uint64_t before_ms;
	char path[256];
	int fd;

	checkpoint_rig_open(&r, QUICK, 1, 0, "job");
	for (uint64_t round = 10; round <= 50; round += 10) {
		checkpoint_rig_chunks(&r, round, sizes, SIZES, 1);
		checkpoint_rig_write(&r);
	}
	torn = checkpoint_rig_newest(&r);
	assert_int_equal(torn.round, 50);
	/* Back to an earlier round: what was written last is the newest, though the clock has not moved. */
	checkpoint_rig_chunks(&r, 20, sizes, SIZES, 2);
	checkpoint_rig_write(&r);
	assert_int_equal(checkpoint_rig_list(&r, &all), 6);
	assert_int_equal(all[0].round, 20);
	assert_true(all[0].written_ms < (uint64_t)time(NULL) * 1000 + 1100); /* not in the future, by much */
	for (int i = 1; i < 6; i++)
		assert_true(all[i - 1].written_ms > all[i].written_ms);
	before_ms = all[0].written_ms;
	free(all);
	r.table.written_ms = 5;
	r.table.round = 21;
	checkpoint_rig_write(&r);
	assert_int_equal(checkpoint_rig_newest(&r).written_ms, before_ms + 1);
	fd = checkpoint_rig_piece(&r, &torn, 0, O_RDWR);
	assert_int_equal(ftruncate(fd, 5000), 0);
	close(fd);
	assert_int_equal(checkpoint_prune(&r.place, 0, &e), -EINVAL);
	assert_int_equal(checkpoint_rig_files(&r), 7);
	snprintf(path, sizeof(path), "%s/job/60.00000000000000ab.0.phub.part", r.paths[0]);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	assert_true(fd >= 0);
	assert_int_equal(futimens(fd, (const struct timespec[2]){{0}}), 0); /* long before the newest */
	close(fd);
	snprintf(path, sizeof(path), "%s/job/notes.txt", r.paths[0]);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(checkpoint_prune(&r.place, 3, &e), 0);
	assert_int_equal(checkpoint_rig_list(&r, &all), 3);
	assert_true(all[0].round == 21 && all[1].round == 20 && all[2].round == 40);
	free(all);
	assert_int_equal(checkpoint_rig_files(&r), 4); /* and the notes */
	r.place.job = "nobody";
	assert_int_equal(checkpoint_prune(&r.place, 1, &e), 0);
	assert_int_equal(checkpoint_read_table(&r.place, 0, &r.table, &e), -ENOENT);
	r.place.job = "job";
	checkpoint_rig_chunks(&r, 20, sizes, SIZES, 2);
	checkpoint_rig_expect(&r, 0);
	checkpoint_rig_close(&r);
}

/* ---- the mark ---- */

static bool is_finished(struct checkpoint_rig *r)
{
	struct checkpoint_entry *all;
	unsigned count = checkpoint_rig_list(r, &all);
	uint64_t marked_ms;
	bool finished = checkpoint_is_finished(&r->place, all, count, &marked_ms);

	free(all);
	return finished;
}

static void write_before(struct checkpoint_rig *r, uint64_t round)
{
	checkpoint_rig_chunks(r, round, sizes, SIZES, 1);
	checkpoint_rig_write(r);
}

static void test_mark(void **state)
{
	struct checkpoint_rig r;
	char path[160];
	int fd;

	checkpoint_rig_open(&r, QUICK, 1, 0, "job");
	checkpoint_mark(&r.place, 1); /* no directory yet */
	assert_false(is_finished(&r));
	write_before(&r, 10);
	assert_false(is_finished(&r));
	checkpoint_mark(&r.place, 0);
	assert_true(is_finished(&r));
	assert_int_equal(checkpoint_rig_files(&r), 2);
	write_before(&r, 5); /* an earlier round, and newer */
	assert_false(is_finished(&r));
	checkpoint_mark(&r.place, 0); /* in place of the other */
	assert_true(is_finished(&r));
	checkpoint_unmark(&r.place);
	assert_false(is_finished(&r));
	checkpoint_mark(&r.place, checkpoint_rig_newest(&r).written_ms + 1000); /* what cannot be seen is no newer */
	write_before(&r, 11);
	assert_true(is_finished(&r));
	/* One that is damaged is none. */
	snprintf(path, sizeof(path), "%s/job/finished", r.paths[0]);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	flip_byte(fd, 3);
	assert_false(is_finished(&r));
	flip_byte(fd, 3);
	assert_true(is_finished(&r));
	assert_int_equal(ftruncate(fd, 0), 0);
	assert_false(is_finished(&r));
	close(fd);
	checkpoint_rig_close(&r);
}

#ifdef PHUB_ISAL
/* A target was away while others wrote, and comes back with what it had. */
static void test_stale_mark(void **state)
{
	struct checkpoint_rig r;
	char path[160], away[160];

	checkpoint_rig_open(&r, QUICK, 3, 1, "job");
	write_before(&r, 100);
	checkpoint_mark(&r.place, 0);
	assert_true(is_finished(&r));
	snprintf(path, sizeof(path), "%s", r.paths[2]);
	snprintf(away, sizeof(away), "%s.away", r.paths[2]);
	assert_int_equal(rename(path, away), 0);
	checkpoint_rig_chunks(&r, 20, sizes, SIZES, 1);
	assert_int_equal(checkpoint_write(&r.place, &r.table, &r.snapshot, NULL, NULL), 1);
	assert_false(is_finished(&r));
	checkpoint_unmark(&r.place);
	assert_int_equal(rename(away, path), 0);
	assert_false(is_finished(&r));
	assert_int_equal(checkpoint_rig_newest(&r).round, 20);
	checkpoint_rig_close(&r);
}
#endif

/* ---- what it is about ---- */

static void test_meta(void **state)
{
	struct checkpoint_rig r;
	struct table *t;
	struct chunk_plan plan;
	unsigned arrays;
	struct err e = {0};
	uint8_t *again;
	uint64_t bytes;

	checkpoint_rig_open(&r, QUICK, 1, 0, "job");
	checkpoint_rig_job(&r, 5);
	if (checkpoint_meta_unpack(r.table.meta, r.table.meta_bytes, &t, &e) != 0)
		fail_msg("%s", e.text);
	assert_int_equal(t->spec.world, 2);
	assert_int_equal(t->spec.optimizer, OPTIMIZER_ADAM);
	assert_true(t->spec.groups[0].beta2 > 0.998 && t->chunk_bytes == 16384);
	assert_string_equal(table_key_name(t, 1), "layers/0.weight");
	assert_int_equal(checkpoint_meta_plan(t, &r.table, &plan, &arrays, &e), 0);
	assert_int_equal(arrays, 3);
	chunking_plan_fini(&plan);
	r.table.chunks[2].bytes += 4;
	assert_int_equal(checkpoint_meta_plan(t, &r.table, &plan, &arrays, &e), -EBADMSG);
	r.table.chunk_count--;
	assert_int_equal(checkpoint_meta_plan(t, &r.table, &plan, &arrays, &e), -EBADMSG);
	assert_int_equal(checkpoint_meta_pack(t, NULL, &again, &bytes, &e), 0);
	assert_int_equal(bytes, r.table.meta_bytes);
	assert_memory_equal(again, r.table.meta, bytes);
	table_destroy(t);
	for (uint64_t cut = 0; cut < bytes; cut++) {
		uint8_t *exact = malloc(cut + 1); /* so that a sanitizer sees reads behind the end */

		memcpy(exact, again, cut);
		assert_int_equal(checkpoint_meta_unpack(exact, cut, &t, &e), -EBADMSG);
		free(exact);
	}
	free(again);
	checkpoint_rig_close(&r);
}

/* ---- what tests leave ---- */

/* Also one that is killed: nothing, a moment later. */
static void test_leaves_nothing(void **state)
{
	struct timespec pause = {.tv_nsec = 10000000};
	char root[sizeof(((struct checkpoint_rig *)NULL)->root)];
	int pipes[2], status;
	struct stat st;
	pid_t child;

	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	child = fork();
	if (child == 0) {
		struct checkpoint_rig r;

		checkpoint_rig_open(&r, QUICK, 1, 0, "job");
		write_before(&r, 7);
		if (write(pipes[1], r.root, sizeof(r.root)) == sizeof(r.root))
			kill(getpid(), SIGKILL);
		_exit(1);
	}
	close(pipes[1]);
	assert_int_equal(read(pipes[0], root, sizeof(root)), sizeof(root));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status));
	for (int i = 0; i < 3000 && stat(root, &st) == 0; i++)
		nanosleep(&pause, NULL);
	assert_int_equal(stat(root, &st), -1);
	close(pipes[0]);
}

/* ---- for others ---- */

static int write_for_others(int argc, char **argv)
{
	struct checkpoint_place place = {.job = argv[1], .parity = (unsigned)strtoul(argv[3], NULL, 10)};
	struct checkpoint_rig r = {0};
	struct err e = {0};
	int rc;

	for (int i = 4; i < argc && place.target_count < CHECKPOINT_TARGETS_MAX; i++)
		place.targets[place.target_count++] = argv[i];
	checkpoint_rig_job(&r, strtoull(argv[2], NULL, 10));
	rc = checkpoint_write(&place, &r.table, &r.snapshot, NULL, &e);
	if (rc < 0)
		fprintf(stderr, "%s\n", e.text);
	checkpoint_rig_close(&r);
	return rc < 0;
}

TEST_PROGRAM(test_checkpoint_files)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_given_up),
#ifdef PHUB_ISAL
		cmocka_unit_test(test_written_without),
#else
		cmocka_unit_test(test_parity_refused),
#endif
		cmocka_unit_test(test_meanwhile),
		cmocka_unit_test(test_full_disk),
		cmocka_unit_test(test_budget),
		cmocka_unit_test(test_unread),
#ifdef PHUB_ISAL
		cmocka_unit_test(test_at_the_same_time),
#endif
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_file_names),
		cmocka_unit_test(test_prune),
		cmocka_unit_test(test_mark),
#ifdef PHUB_ISAL
		cmocka_unit_test(test_stale_mark),
#endif
		cmocka_unit_test(test_meta),
		cmocka_unit_test(test_leaves_nothing),
	};

	if (argc > 4)
		return write_for_others(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
