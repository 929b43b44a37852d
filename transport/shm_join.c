/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cold half of the shared-memory transport at the worker: finding the box, proving who one is, and mapping what
 * the box hands over. The thread that drives libphub; never blocks.
 */
#include "transport/shm_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* A worker gives its gradients to its own user's box, or to root's; root trusts whoever the session's box named. */
static int shm_identify_box(struct shm_conn *c)
{
	uid_t uid;
	int rc = shm_conn_identify(c, &uid);

	if (rc == 0 && uid != geteuid() && uid != 0 && geteuid() != 0)
		rc = -EACCES;
	return rc;
}

/*
 * 0, -EAGAIN (the box's backlog is full, to be tried again), or why there is no connection. Whose box it is counts
 * here, so that a worker that looks for a way to another user's box passes this one over.
 */
static int shm_dial(struct shm_conn *c)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	size_t length = strlen(c->address);
	socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);

	/* The "@" stands for the NUL that abstract names begin with. */
	memcpy(name.sun_path + 1, c->address + 1, length - 1);
	if (connect(c->socket, (struct sockaddr *)&name, bytes) < 0)
		return -errno;
	c->stage = SHM_SHAKING;
	return shm_identify_box(c);
}

static int shm_join_failed(const struct shm_conn *c, int rc, struct err *e)
{
	if (rc == -ECONNREFUSED)
		return err_set(e, rc,
			"shm: no box listens at %s on this host (or in this network namespace), or it refused core %u",
			c->address, c->core);
	if (rc == -EACCES)
		return err_set(e, rc, "shm: %s (%s) belongs to another user or did not accept our proof for core %u",
			c->address, c->head.peer, c->core);
	return err_set(e, rc, "shm: no data connection to %s, core %u: %s", c->address, c->core, strerror(-rc));
}

int shm_connect(struct transport *head, const char *address, uint64_t session, uint32_t core, const uint8_t *key,
	const struct conn_spec *spec, struct conn **out, struct err *e)
{
	struct shm_transport *t = (struct shm_transport *)head;
	size_t length = strlen(address);
	struct shm_conn *c;
	int fd;
	int rc;

	(void)spec;
	if (address[0] != '@' || length < 2 || length >= SHM_ADDRESS_BYTES)
		return err_set(e, -EINVAL,
			"shm: \"%.128s\" is no address of a box on this host; it looks like @phub-4711-1", address);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return err_set(e, -errno, "shm: cannot make a Unix socket: %s; raise `ulimit -n`", strerror(errno));
	c = shm_conn_create(t, fd, false);
	if (!c) {
		close(fd);
		return err_set(e, -ENOMEM, "shm: no memory to connect to %s", address);
	}
	c->stage = SHM_DIALING;
	c->core = core;
	memcpy(c->address, address, length + 1);
	snprintf(c->head.peer, sizeof(c->head.peer), "%.79s", address);
	handshake_begin_worker(&c->hands, session, core, key);
	rc = shm_dial(c);
	if (rc < 0 && rc != -EAGAIN) {
		rc = shm_join_failed(c, rc, e);
		shm_conn_free(c);
		return rc;
	}
	*out = &c->head;
	return 0;
}

/* Maps a region of the box. `fd` stays the caller's, who closes it; the mapping stays. */
static int shm_map(int fd, uint64_t bytes, bool writable, struct mem_region *out, struct err *e)
{
	int rc = mem_region_attach(fd, bytes, writable, out, e);

	if (rc < 0)
		return rc;
	out->fd = -1;
	/* Where shared memory may have huge pages at all, it must be asked for. */
	(void)madvise(out->base, out->bytes, MADV_HUGEPAGE);
	return 0;
}

/* The same, or finds it mapped by an earlier connection. */
static int shm_map_get(
	struct shm_transport *t, int fd, uint64_t bytes, bool writable, struct mem_region **out, struct err *e)
{
	struct shm_map *map = &t->maps[t->map_count];
	struct stat st;
	int rc;

	if (fstat(fd, &st) < 0)
		return err_set(e, -errno, "shm: memory from the box: %s", strerror(errno));
	for (unsigned i = 0; i < t->map_count; i++)
		if (t->maps[i].dev == st.st_dev && t->maps[i].ino == st.st_ino && t->maps[i].writable == writable &&
			t->maps[i].region.bytes == bytes) {
			*out = &t->maps[i].region;
			return 0;
		}
	if (t->map_count == SHM_MAPS_MAX)
		return err_set(e, -ENOSPC, "shm: %u regions are mapped; reconnecting further needs a new transport",
			t->map_count);
	rc = shm_map(fd, bytes, writable, &map->region, e);
	if (rc < 0)
		return rc;
	map->dev = st.st_dev;
	map->ino = st.st_ino;
	map->writable = writable;
	t->map_count++;
	*out = &map->region;
	return 0;
}

void shm_join_close(struct shm_transport *t)
{
	for (unsigned i = 0; i < t->map_count; i++)
		mem_region_destroy(&t->maps[i].region);
	t->map_count = 0;
}

/* One of the two regions: push or result. */
static int shm_conn_map_region(struct shm_transport *t, struct shm_conn *c, const struct shm_parcel *p, bool push,
	struct mem_region **out, struct err *e)
{
	int fd = p->fds[push ? SHM_FD_PUSH : SHM_FD_RESULT];
	uint64_t bytes = push ? p->push_bytes : p->result_bytes;

	if (!t->apart)
		return shm_map_get(t, fd, bytes, push, out, e);
	*out = &c->own[!push];
	return shm_map(fd, bytes, push, *out, e);
}

static int shm_conn_map(struct shm_transport *t, struct shm_conn *c, struct shm_parcel *p, struct err *e)
{
	struct mem_region *push, *result;
	int rc = shm_conn_map_region(t, c, p, true, &push, e);

	if (rc == 0)
		rc = shm_conn_map_region(t, c, p, false, &result, e);
	if (rc == 0)
		rc = mem_region_attach(p->fds[SHM_FD_RING], p->ring_bytes, true, &c->memory, e);
	if (rc < 0)
		return rc;
	c->memory.fd = -1;
	rc = shm_conn_attach(c, p->capacity);
	if (rc < 0)
		return err_set(e, rc, "shm: no memory for the connection to %s", c->address);
	c->head.push = push->base;
	c->head.result = result->base;
	c->in = result->base;
	c->in_bytes = result->bytes;
	c->out = push->base;
	c->out_bytes = push->bytes;
	c->slots = p->slots; /* shm_parcel_decode(): within the push region */
	c->head.slots = (uint8_t *)push->base + p->slots.offset;
	c->head.slot_count = p->slots.count;
	c->head.slot_bytes = p->slots.bytes;
	return 0;
}

/* Takes the parcel. On failure what was mapped for this connection goes with it. */
static int shm_conn_unpack(struct shm_transport *t, struct shm_conn *c, struct err *e)
{
	struct shm_parcel parcel;
	int rc = shm_parcel_receive(c->socket, &parcel);

	if (rc == -EAGAIN)
		return rc;
	if (rc < 0)
		return shm_join_failed(c, rc, e);
	rc = shm_conn_map(t, c, &parcel, e);
	if (rc == 0) {
		c->bell_in = parcel.fds[SHM_FD_DOWN];
		c->bell_out = parcel.fds[SHM_FD_UP];
		parcel.fds[SHM_FD_DOWN] = parcel.fds[SHM_FD_UP] = -1;
		c->stage = SHM_READY;
	}
	shm_parcel_close(&parcel);
	return rc;
}

static int shm_join_step(struct shm_transport *t, struct shm_conn *c, struct err *e)
{
	int rc = 0;

	if (c->stage == SHM_DIALING)
		rc = shm_dial(c);
	if (rc == 0 && c->stage == SHM_SHAKING && !c->watched)
		rc = shm_conn_watch(t, c);
	if (rc == 0 && c->stage == SHM_SHAKING) {
		rc = shm_conn_shake(c);
		if (rc == 0)
			c->stage = SHM_UNPACKING;
	}
	if (rc == 0)
		return shm_conn_unpack(t, c, e);
	return rc == -EAGAIN ? rc : shm_join_failed(c, rc, e);
}

int shm_established(struct transport *head, struct conn *conn, struct err *e)
{
	struct shm_transport *t = (struct shm_transport *)head;
	struct shm_conn *c = (struct shm_conn *)conn;
	int rc;

	if (c->stage == SHM_READY)
		return 0;
	if (c->stage >= SHM_FAILED)
		return shm_join_failed(c, c->error, e);
	assert(!c->box && c->stage < SHM_READY);
	rc = shm_join_step(t, c, e);
	if (rc == -EAGAIN)
		return rc;
	shm_conn_unwatch(t, c);
	if (rc < 0) {
		c->stage = SHM_FAILED;
		c->error = rc;
	}
	return rc;
}
