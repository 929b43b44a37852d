/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/checkpoint_rig.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "phub/control/checkpoint_format.h"

static void rig_require(bool condition, const char *what)
{
	if (!condition) {
		fprintf(stderr, "checkpoint_rig: %s\n", what);
		abort();
	}
}

/* In a session of its own: what ends this process and its group does not end it. */
static void rig_begin_cleaner(struct checkpoint_rig *r)
{
	int ends[2];

	rig_require(pipe2(ends, O_CLOEXEC) == 0, "no pipe");
	r->cleaner = fork();
	rig_require(r->cleaner >= 0, "no process");
	if (r->cleaner == 0) {
		setsid();
		dup2(ends[0], STDIN_FILENO);
		execl("/bin/sh", "sh", "-c", "cat >/dev/null; rm -rf \"$0\"", r->root, (char *)NULL);
		_exit(127);
	}
	close(ends[0]);
	r->pipe = ends[1];
}

void checkpoint_rig_open(struct checkpoint_rig *r, const char *where, unsigned count, unsigned parity, const char *job)
{
	*r = (struct checkpoint_rig){.place = {.target_count = count, .parity = parity, .job = job}};
	snprintf(r->root, sizeof(r->root), "%s/checkpoint-test-XXXXXX", where);
	rig_require(mkdtemp(r->root) != NULL, r->root);
	rig_begin_cleaner(r);
	for (unsigned i = 0; i < count; i++) {
		snprintf(r->paths[i], sizeof(r->paths[i]), "%s/d%u", r->root, i);
		rig_require(mkdir(r->paths[i], 0700) == 0, r->paths[i]);
		r->place.targets[i] = r->paths[i];
	}
}

static void rig_forget(struct checkpoint_rig *r)
{
	checkpoint_table_fini(&r->table);
	free(r->snapshot.base);
	r->snapshot = (struct snapshot){0};
}

void checkpoint_rig_close(struct checkpoint_rig *r)
{
	int status;

	rig_forget(r);
	if (!r->cleaner)
		return;
	close(r->pipe);
	rig_require(waitpid(r->cleaner, &status, 0) == r->cleaner && status == 0, "its directories are left");
}

static void rig_begin(struct checkpoint_rig *r, uint64_t round, uint32_t count)
{
	rig_forget(r);
	r->table = (struct checkpoint_table){
		.round = round, .chunk_count = count, .chunks = calloc(count + 1, sizeof(*r->table.chunks))};
	rig_require(r->table.chunks != NULL, "memory");
}

/* With all sizes known. */
static void rig_take(struct checkpoint_rig *r)
{
	struct snapshot *s = &r->snapshot;

	s->chunk_count = r->table.chunk_count;
	s->chunks = r->table.chunks;
	for (uint32_t i = 0; i < s->chunk_count; i++) {
		s->chunks[i].offset = s->bytes;
		s->chunks[i].before = r->table.round;
		s->chunks[i].steps = r->table.round - 1;
		s->chunks[i].copied = true;
		s->bytes += (s->chunks[i].bytes + 4095) / 4096 * 4096;
	}
	s->base = aligned_alloc(4096, s->bytes + 4096);
	rig_require(s->base != NULL, "memory");
	memset(s->base, 0, s->bytes);
}

void checkpoint_rig_chunks(
	struct checkpoint_rig *r, uint64_t round, const uint32_t *bytes, uint32_t count, uint32_t seed)
{
	uint8_t *meta = malloc(16);

	rig_begin(r, round, count);
	rig_require(meta != NULL, "memory");
	memcpy(meta, "what it is about", 16);
	r->table.meta = meta;
	r->table.meta_bytes = 16;
	for (uint32_t i = 0; i < count; i++)
		r->table.chunks[i].bytes = bytes[i];
	rig_take(r);
	for (uint64_t i = 0; i < r->snapshot.bytes; i++)
		r->snapshot.base[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
}

float checkpoint_rig_value(uint32_t key, unsigned array, uint64_t element)
{
	return (float)((key * 3 + array) * 65536 + element);
}

static struct table *rig_table(void)
{
	static const struct {
		const char *name;
		uint64_t elements;
		Phub__Dtype dtype;
	} wanted[] = {{"embed.weight", 5000, PHUB__DTYPE__F32}, {"layers/0.weight", 20000, PHUB__DTYPE__F32},
		{"layers/0.bias", 10, PHUB__DTYPE__F32}, {"one", 1, PHUB__DTYPE__F32},
		{"half \"quoted\" \xc3\xa4", 300, PHUB__DTYPE__F16}, {"last", 17000, PHUB__DTYPE__BF16}};
	enum { COUNT = sizeof(wanted) / sizeof(wanted[0]) };
	Phub__Job job = PHUB__JOB__INIT;
	Phub__Hypers hypers = PHUB__HYPERS__INIT, *groups[1] = {&hypers};
	Phub__Keys keys = PHUB__KEYS__INIT;
	Phub__Key key[COUNT], *at[COUNT];
	struct table *t = NULL;
	struct err e = {0};

	hypers.lr = 0.001;
	hypers.beta1 = 0.9;
	hypers.beta2 = 0.999;
	hypers.eps = 1e-8;
	job.generation = 1;
	job.optimizer = PHUB__OPTIMIZER__ADAM;
	job.chunk_bytes = 16384;
	job.key_count = COUNT;
	job.n_groups = 1;
	job.groups = groups;
	rig_require(table_create(&job, 2, 32768, 100, &t, &e) == 0, e.text);
	for (int i = 0; i < COUNT; i++) {
		phub__key__init(&key[i]);
		key[i].name = (char *)(uintptr_t)wanted[i].name;
		key[i].elements = wanted[i].elements;
		key[i].dtype = wanted[i].dtype;
		at[i] = &key[i];
	}
	keys.n_keys = COUNT;
	keys.keys = at;
	rig_require(table_add(t, &keys, &e) == 0, e.text);
	return t;
}

/* A chunk is its keys' weights, then their first array of state, then their second. */
static void rig_fill(float *to, const struct table *t, const struct chunk_plan *plan, const struct chunk_span *c)
{
	uint32_t size = chunking_dtype_bytes(c->dtype), elements = c->bytes / size;

	for (unsigned array = 0; array < 3; array++) {
		uint32_t key = c->key_first;

		for (uint32_t i = 0; i < elements; i++) {
			uint64_t element = (c->offset + (uint64_t)i * size - plan->key_offset[key]) / size;

			if (element == t->keys[key].elements) {
				key++;
				element = 0;
			}
			*to++ = checkpoint_rig_value(key, array, element);
		}
	}
}

void checkpoint_rig_job(struct checkpoint_rig *r, uint64_t round)
{
	struct table *t = rig_table();
	struct chunk_plan plan;
	struct err e = {0};
	uint8_t *meta;

	rig_require(chunking_plan(t->keys, t->key_have, t->chunk_bytes, &plan, &e) == 0, e.text);
	rig_begin(r, round, plan.chunk_count);
	rig_require(checkpoint_meta_pack(t, NULL, &meta, &r->table.meta_bytes, &e) == 0, e.text);
	r->table.meta = meta;
	for (uint32_t i = 0; i < plan.chunk_count; i++)
		r->table.chunks[i].bytes =
			(uint64_t)plan.chunks[i].bytes / chunking_dtype_bytes(plan.chunks[i].dtype) * 12;
	rig_take(r);
	for (uint32_t i = 0; i < plan.chunk_count; i++)
		rig_fill((float *)(void *)(r->snapshot.base + r->snapshot.chunks[i].offset), t, &plan, &plan.chunks[i]);
	chunking_plan_fini(&plan);
	table_destroy(t);
}

/* ---- what tests do again and again ---- */

void checkpoint_rig_write(struct checkpoint_rig *r)
{
	struct err e = {0};
	int rc = checkpoint_write(&r->place, &r->table, &r->snapshot, NULL, &e);

	if (rc != 0)
		fail_msg("%d: %s", rc, e.text);
}

static int compare(void *arg, uint32_t chunk, const void *bytes, uint64_t count)
{
	const struct checkpoint_rig *r = arg;

	assert_int_equal(count, r->snapshot.chunks[chunk].bytes);
	if (memcmp(bytes, r->snapshot.base + r->snapshot.chunks[chunk].offset, count) != 0)
		fail_msg("chunk %" PRIu32 " has other bytes", chunk);
	return 0;
}

/* All of it, compared: 0 or what went wrong. */
int checkpoint_rig_read(struct checkpoint_rig *r, uint64_t *repaired, struct err *e)
{
	struct checkpoint_table t;
	int rc = checkpoint_read_table(&r->place, r->table.round, &t, e);

	if (rc < 0)
		return rc;
	assert_int_equal(t.round, r->table.round);
	assert_int_equal(t.chunk_count, r->table.chunk_count);
	assert_int_equal(t.meta_bytes, r->table.meta_bytes);
	assert_memory_equal(t.meta, r->table.meta, t.meta_bytes);
	for (uint32_t i = 0; i < t.chunk_count; i++) {
		assert_int_equal(t.chunks[i].before, r->table.chunks[i].before);
		assert_int_equal(t.chunks[i].steps, r->table.chunks[i].steps);
		assert_int_equal(t.chunks[i].offset, r->table.chunks[i].offset);
	}
	rc = checkpoint_read_chunks(&r->place, &t, compare, r, repaired, e);
	checkpoint_table_fini(&t);
	return rc;
}

void checkpoint_rig_expect(struct checkpoint_rig *r, uint64_t repaired)
{
	uint64_t found = 0;
	struct err e = {0};

	if (checkpoint_rig_read(r, &found, &e) != 0)
		fail_msg("%s", e.text);
	assert_int_equal(found, repaired);
}

unsigned checkpoint_rig_list(struct checkpoint_rig *r, struct checkpoint_entry **out)
{
	unsigned count = 0;
	struct err e;

	assert_int_equal(checkpoint_list(&r->place, out, &count, &e), 0);
	return count;
}

/* The only checkpoint there is, or the newest. */
struct checkpoint_entry checkpoint_rig_newest(struct checkpoint_rig *r)
{
	struct checkpoint_entry *all, first;

	assert_true(checkpoint_rig_list(r, &all) > 0);
	first = all[0];
	free(all);
	return first;
}

int checkpoint_rig_files(struct checkpoint_rig *r)
{
	return checkpoint_rig_files_of(r, 0);
}

int checkpoint_rig_files_of(struct checkpoint_rig *r, uint64_t bytes_min)
{
	struct stat file;
	int count = 0;
	DIR *dir;

	for (unsigned i = 0; i < r->place.target_count; i++) {
		char path[256];

		snprintf(path, sizeof(path), "%s/%s", r->place.targets[i], r->place.job);
		dir = opendir(path);
		if (!dir)
			continue;
		for (struct dirent *d = readdir(dir); d; d = readdir(dir))
			count += d->d_name[0] != '.' && fstatat(dirfd(dir), d->d_name, &file, 0) == 0 &&
				 (uint64_t)file.st_size >= bytes_min;
		closedir(dir);
	}
	return count;
}

int checkpoint_rig_piece(struct checkpoint_rig *r, const struct checkpoint_entry *entry, unsigned piece, int flags)
{
	char path[256], name[CHECKPOINT_NAME_BYTES];
	int fd;

	checkpoint_format_name(entry->round, entry->id, piece, name);
	snprintf(path, sizeof(path), "%s/%s/%s", r->place.targets[piece], r->place.job, name);
	fd = open(path, flags, 0600);
	if (fd < 0)
		fail_msg("%s: %s", path, strerror(errno));
	return fd;
}
