/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cold half of the shared-memory transport at the box: an abstract Unix socket (nothing of it is left in any
 * file system, however the box ends), the handshakes of strangers, of whom none is waited for, and the memory for
 * those who are let in. Also what both ends need to make and end a connection. Control thread, but for
 * shm_conn_free().
 */
#include "transport/shm_internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "phub/base/clock.h"

enum {
	SHM_ACCEPTS = 64,             /* new sockets in one accept() */
	SHM_EVENTS = 64,              /* of one epoll_wait() */
	SHM_BACKLOG = 4096,           /* the kernel cuts it to net.core.somaxconn */
	SHM_NAMES = 1000,             /* tried before listen() gives up */
	SHM_PAUSE_NS = 100 * 1000000, /* listening rests so long when the process is out of descriptors */
};

/* --- making and ending a connection, either end ------------------------------------------------ */

struct shm_conn *shm_conn_create(struct shm_transport *t, int socket, bool box)
{
	struct shm_conn *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->head.transport = &t->head;
	c->stage = SHM_SHAKING;
	c->box = box;
	c->socket = socket;
	c->bell_in = c->bell_out = c->bell_keep = -1;
	c->memory.fd = c->own[0].fd = c->own[1].fd = -1;
	return c;
}

static void shm_close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

void shm_conn_free(struct shm_conn *c)
{
	if (c->ring.own)
		shm_ring_say_bye(&c->ring);
	/* close() alone tells the peer nothing while a forked child has a copy of the socket. */
	if (c->socket >= 0)
		shutdown(c->socket, SHUT_RDWR);
	shm_close_fd(&c->socket);
	shm_close_fd(&c->bell_in);
	shm_close_fd(&c->bell_out);
	shm_close_fd(&c->bell_keep);
	mem_region_destroy(&c->memory);
	mem_region_destroy(&c->own[0]);
	mem_region_destroy(&c->own[1]);
	explicit_bzero(&c->hands, sizeof(c->hands));
	free(c->cookies);
	free(c);
}

int shm_conn_attach(struct shm_conn *c, uint32_t capacity)
{
	c->cookies = calloc(capacity, sizeof(*c->cookies));
	if (!c->cookies)
		return -ENOMEM;
	c->capacity = capacity;
	shm_ring_attach(&c->ring, c->memory.base, capacity, c->box ? SHM_BOX : SHM_WORKER);
	return 0;
}

static int shm_conn_shake_send(struct shm_conn *c)
{
	for (;;) {
		size_t bytes;
		const uint8_t *out = handshake_output(&c->hands, &bytes);
		ssize_t n;

		if (bytes == 0)
			return 0;
		n = send(c->socket, out, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n >= 0)
			handshake_sent(&c->hands, (size_t)n);
		else if (errno != EINTR)
			return -errno;
	}
}

int shm_conn_shake(struct shm_conn *c)
{
	uint8_t in[HANDSHAKE_BYTES_MAX];
	size_t wants;
	int rc = shm_conn_shake_send(c);

	while (rc == 0 && (wants = handshake_wants(&c->hands)) > 0) {
		ssize_t n = recv(c->socket, in, wants, MSG_DONTWAIT);

		if (n == 0)
			return -ECONNRESET;
		if (n > 0)
			rc = handshake_input(&c->hands, in, (size_t)n);
		else if (errno != EINTR)
			return -errno;
		if (rc == 0)
			rc = shm_conn_shake_send(c);
	}
	return rc;
}

int shm_conn_watch(struct shm_transport *t, struct shm_conn *c)
{
	struct epoll_event interest = {.events = EPOLLIN, .data.ptr = c};

	if (epoll_ctl(t->epoll, EPOLL_CTL_ADD, c->socket, &interest) < 0)
		return -errno;
	c->watched = true;
	return 0;
}

void shm_conn_unwatch(struct shm_transport *t, struct shm_conn *c)
{
	if (c->watched)
		(void)epoll_ctl(t->epoll, EPOLL_CTL_DEL, c->socket, NULL);
	c->watched = false;
}

bool shm_spans_fit(const struct span *spans, uint32_t chunk_count, uint64_t bytes)
{
	for (uint32_t i = 0; i < chunk_count; i++)
		if (spans[i].offset > bytes || spans[i].bytes > bytes - spans[i].offset)
			return false;
	return true;
}

int shm_conn_identify(struct shm_conn *c, uid_t *uid)
{
	struct ucred who;
	socklen_t bytes = sizeof(who);

	if (getsockopt(c->socket, SOL_SOCKET, SO_PEERCRED, &who, &bytes) < 0)
		return -errno;
	snprintf(c->head.peer, sizeof(c->head.peer), "pid %d uid %u", (int)who.pid, (unsigned)who.uid);
	*uid = who.uid;
	return 0;
}

/* --- the transport ----------------------------------------------------------------------------- */

static int shm_open_transport(const struct transport_config *config, struct transport **out, struct err *e)
{
	struct shm_transport *t = calloc(1, sizeof(*t));
	int rc;

	if (!t)
		return err_set(e, -ENOMEM, "shm: no memory for the transport");
	t->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (t->epoll < 0) {
		rc = -errno;
		free(t);
		return err_set(e, rc, "shm: cannot make an epoll: %s; raise `ulimit -n`", strerror(-rc));
	}
	t->head.ops = &transport_shm;
	t->listener = -1;
	t->apart = config->apart;
	t->queue_conns_max = config->queue_conns_max ? config->queue_conns_max : SHM_QUEUE_CONNS;
	t->handshake_ns = (config->handshake_ms ? config->handshake_ms : SHM_HANDSHAKE_MS) * NS_PER_MS;
	TAILQ_INIT(&t->strangers);
	TAILQ_INIT(&t->complete);
	*out = &t->head;
	return 0;
}

static void shm_stranger_count(struct shm_transport *t, int error)
{
	if (handshake_hung_up(error))
		t->head.strangers_gone++;
	else
		t->head.strangers_refused++;
}

/* Ends a stranger, or a hello that was not returned yet. `error`: its own, or why it is not wanted. */
static void shm_stranger_end(struct shm_transport *t, struct shm_list *list, struct shm_conn *c, int error)
{
	TAILQ_REMOVE(list, c, link);
	t->stranger_count--;
	shm_stranger_count(t, error);
	shm_conn_unwatch(t, c);
	shm_conn_free(c);
}

static void shm_close_transport(struct transport *head)
{
	struct shm_transport *t = (struct shm_transport *)head;
	struct shm_conn *c;

	assert(t->queue_count == 0);
	while ((c = TAILQ_FIRST(&t->strangers)) != NULL)
		shm_stranger_end(t, &t->strangers, c, -ESHUTDOWN);
	while ((c = TAILQ_FIRST(&t->complete)) != NULL)
		shm_stranger_end(t, &t->complete, c, -ESHUTDOWN);
	shm_join_close(t);
	shm_close_fd(&t->listener);
	close(t->epoll);
	free(t);
}

static int shm_fd(struct transport *head)
{
	return ((struct shm_transport *)head)->epoll;
}

static void shm_abandon(struct transport *head, struct conn *conn)
{
	assert(!conn->queue);
	shm_conn_unwatch((struct shm_transport *)head, (struct shm_conn *)conn);
	shm_conn_free((struct shm_conn *)conn);
}

/* --- listening --------------------------------------------------------------------------------- */

/* Binds to the first free name of ours; somebody in another PID namespace may have the same pid. 0 or -errno. */
static int shm_bind(int fd, char *address, size_t address_bytes)
{
	static _Atomic unsigned counter; /* relaxed: all it must be is different from call to call */

	for (int i = 0; i < SHM_NAMES; i++) {
		unsigned n = atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed) + 1;
		struct sockaddr_un name = {.sun_family = AF_UNIX};
		int length = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "phub-%d-%u", (int)getpid(), n);
		socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);

		if (bind(fd, (struct sockaddr *)&name, bytes) == 0) {
			snprintf(address, address_bytes, "@%s", name.sun_path + 1);
			return 0;
		}
		if (errno != EADDRINUSE)
			return -errno;
	}
	return -EADDRINUSE;
}

static int shm_listen(struct transport *head, const char *host, char *address, size_t address_bytes, struct err *e)
{
	struct shm_transport *t = (struct shm_transport *)head;
	struct epoll_event interest = {.events = EPOLLIN, .data.ptr = NULL};
	int fd;
	int rc;

	(void)host;
	if (t->listener >= 0)
		return err_set(e, -EALREADY, "shm: this transport listens already");
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return err_set(e, -errno, "shm: cannot make a Unix socket: %s; raise `ulimit -n`", strerror(errno));
	rc = shm_bind(fd, address, address_bytes);
	if (rc == 0 && (listen(fd, SHM_BACKLOG) < 0 || epoll_ctl(t->epoll, EPOLL_CTL_ADD, fd, &interest) < 0))
		rc = -errno;
	if (rc < 0) {
		close(fd);
		return err_set(e, rc, "shm: cannot listen on an abstract Unix socket: %s", strerror(-rc));
	}
	t->listener = fd;
	return 0;
}

/* The box's memory is for its own user; root may read it anyway. */
static bool shm_uid_welcome(uid_t uid)
{
	return uid == geteuid() || uid == 0;
}

/*
 * Takes one caller in; its socket stays the caller's on failure. The oldest stranger makes room: who means well is
 * soon through.
 */
static int shm_stranger_begin(struct shm_transport *t, int fd, uint64_t now_ns)
{
	uint8_t nonce[PROOF_NONCE];
	struct shm_conn *c;
	uid_t uid;
	int rc;

	if (t->stranger_count == SHM_STRANGERS_MAX && !TAILQ_EMPTY(&t->strangers))
		shm_stranger_end(t, &t->strangers, TAILQ_FIRST(&t->strangers), -ENOSPC);
	if (t->stranger_count == SHM_STRANGERS_MAX)
		return -ENOSPC;
	c = shm_conn_create(t, fd, true);
	if (!c)
		return -ENOMEM;
	c->deadline_ns = now_ns + t->handshake_ns;
	rc = shm_conn_identify(c, &uid);
	if (rc == 0 && !shm_uid_welcome(uid))
		rc = -EACCES;
	if (rc == 0)
		rc = proof_nonce(nonce);
	if (rc == 0) {
		handshake_begin_box(&c->hands, nonce);
		rc = shm_conn_shake_send(c);
	}
	if (rc == 0)
		rc = shm_conn_watch(t, c);
	if (rc < 0) {
		c->socket = -1;
		shm_conn_free(c);
		return rc;
	}
	TAILQ_INSERT_TAIL(&t->strangers, c, link);
	t->stranger_count++;
	return 0;
}

/* Rests from listening, or resumes: without descriptors every epoll_wait() would come back at once, for nothing. */
static void shm_listen_pause(struct shm_transport *t, uint64_t until_ns)
{
	struct epoll_event interest = {.events = until_ns ? 0 : EPOLLIN, .data.ptr = NULL};

	t->listen_again_ns = until_ns;
	(void)epoll_ctl(t->epoll, EPOLL_CTL_MOD, t->listener, &interest);
}

static void shm_take_callers(struct shm_transport *t, uint64_t now_ns)
{
	for (int i = 0; i < SHM_ACCEPTS; i++) {
		int fd = accept4(t->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		int rc;

		if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
			continue;
		if (fd < 0 && errno != EAGAIN)
			shm_listen_pause(t, now_ns + SHM_PAUSE_NS);
		if (fd < 0)
			return;
		rc = shm_stranger_begin(t, fd, now_ns);
		if (rc < 0) {
			shm_stranger_count(t, rc);
			close(fd);
		}
	}
}

/* A stranger has said something, or hung up. */
static void shm_stranger_drive(struct shm_transport *t, struct shm_conn *c)
{
	int rc = shm_conn_shake(c);

	if (rc == -EAGAIN)
		return;
	if (rc < 0) {
		shm_stranger_end(t, &t->strangers, c, rc);
		return;
	}
	shm_conn_unwatch(t, c);
	TAILQ_REMOVE(&t->strangers, c, link);
	TAILQ_INSERT_TAIL(&t->complete, c, link);
}

static void shm_take_events(struct shm_transport *t, uint64_t now_ns)
{
	struct epoll_event events[SHM_EVENTS];
	int n = epoll_wait(t->epoll, events, SHM_EVENTS, 0);
	bool callers = false;
	struct shm_conn *oldest;

	for (int i = 0; i < n; i++) {
		struct shm_conn *c = events[i].data.ptr;

		if (!c)
			callers = true;
		else if (c->box)
			shm_stranger_drive(t, c);
	}
	/* After the others: a new caller may end a stranger that `events` names. */
	if (callers)
		shm_take_callers(t, now_ns);
	while ((oldest = TAILQ_FIRST(&t->strangers)) != NULL && oldest->deadline_ns <= now_ns)
		shm_stranger_end(t, &t->strangers, oldest, -ETIMEDOUT);
}

static int shm_accept(struct transport *head, uint64_t now_ns, struct hello *out)
{
	struct shm_transport *t = (struct shm_transport *)head;
	struct shm_conn *c;

	if (t->listener < 0)
		return -EAGAIN;
	if (t->listen_again_ns && now_ns >= t->listen_again_ns)
		shm_listen_pause(t, 0);
	if (TAILQ_EMPTY(&t->complete))
		shm_take_events(t, now_ns);
	c = TAILQ_FIRST(&t->complete);
	if (!c)
		return -EAGAIN;
	TAILQ_REMOVE(&t->complete, c, link);
	t->stranger_count--;
	c->stage = SHM_ASKING;
	out->conn = &c->head;
	out->session = c->hands.session;
	out->core = c->hands.core;
	memcpy(out->nonce, c->hands.nonce, sizeof(out->nonce));
	memcpy(out->mac, c->hands.mac, sizeof(out->mac));
	return 0;
}

/* --- letting in -------------------------------------------------------------------------------- */

/* Is it memory that may be handed out? Seals it when nobody has. */
static int shm_region_seal(const struct mem_region *region, bool read_only, const char *what, struct err *e)
{
	int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | (read_only ? F_SEAL_FUTURE_WRITE : 0);
	int seals = region && region->fd >= 0 ? fcntl(region->fd, F_GET_SEALS) : -1;

	if (seals < 0)
		return err_set(e, -EINVAL, "shm: the %s region is no shared memory that can be sealed", what);
	/*
	 * A page that the worker punches out must come back as zeros; a reserved huge page may not come back at
	 * all, and that is SIGBUS.
	 */
	if (region->huge && !read_only)
		return err_set(e, -EINVAL,
			"shm: the %s region lies on reserved huge pages, which a worker can take away", what);
	if (!(seals & F_SEAL_SEAL))
		(void)mem_region_seal(region, read_only);
	seals = fcntl(region->fd, F_GET_SEALS);
	if ((seals & wanted) != wanted)
		return err_set(e, -EPERM, "shm: the %s region is not sealed as it must be, and no longer can be", what);
	return 0;
}

static struct shm_slots shm_spec_slots(const struct conn_spec *spec)
{
	if (spec->slot_count == 0)
		return (struct shm_slots){0};
	return (struct shm_slots){.offset = spec->slot_offset, .count = spec->slot_count, .bytes = spec->slot_bytes};
}

static int shm_spec_check(const struct conn_spec *spec, struct err *e)
{
	const struct shm_slots slots = shm_spec_slots(spec);
	int rc = shm_region_seal(spec->push, false, "push", e);

	if (rc == 0)
		rc = shm_region_seal(spec->result, true, "result", e);
	if (rc == 0 && !shm_spans_fit(spec->spans, spec->chunk_count, spec->push->bytes))
		rc = err_set(e, -EINVAL, "shm: the chunks do not lie within the push region of %zu bytes",
			spec->push->bytes);
	if (rc == 0 && (!shm_slots_fit(&slots, spec->push->bytes) || (slots.count && slots.bytes < spec->payload_max)))
		rc = err_set(e, -EINVAL,
			"shm: %u slots of %u bytes do not lie within the push region of %zu bytes, "
			"or cannot hold a chunk",
			spec->slot_count, spec->slot_bytes, spec->push->bytes);
	return rc;
}

/* Makes the bells; the ends that are the worker's go into `p`. Why this way: shm.c. */
static int shm_make_bells(struct shm_conn *c, struct shm_parcel *p)
{
	int pipe_fds[2];

	c->bell_in = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->bell_in < 0)
		return -errno;
	if (pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	c->bell_keep = pipe_fds[0];
	c->bell_out = pipe_fds[1];
	/* One page instead of sixteen, out of what a user may have in pipes; a refusal does no harm. */
	(void)fcntl(c->bell_out, F_SETPIPE_SZ, SHM_RING_PAGE);
	p->fds[SHM_FD_UP] = c->bell_in;
	p->fds[SHM_FD_DOWN] = c->bell_keep;
	return 0;
}

static int shm_make_rings(struct shm_conn *c, const struct conn_spec *spec, struct shm_parcel *p, struct err *e)
{
	uint32_t capacity = shm_ring_capacity(spec->window, spec->chunk_count);
	int rc = mem_region_create(shm_ring_bytes(capacity), MEM_SHARED | MEM_POPULATE, MEM_NODE_ANY, &c->memory, e);

	if (rc < 0)
		return rc;
	shm_ring_format(c->memory.base);
	rc = mem_region_seal(&c->memory, false);
	if (rc == 0)
		rc = shm_conn_attach(c, capacity);
	if (rc < 0)
		return err_set(e, rc, "shm: no rings for %s: %s", c->head.peer, strerror(-rc));
	p->capacity = capacity;
	p->ring_bytes = c->memory.bytes;
	p->fds[SHM_FD_RING] = c->memory.fd;
	return 0;
}

/* Makes all that the connection needs, and the parcel for the worker. What it made goes with the connection. */
static int shm_conn_outfit(struct shm_conn *c, const struct conn_spec *spec, struct shm_parcel *p, struct err *e)
{
	int rc = shm_spec_check(spec, e);

	if (rc == 0)
		rc = shm_make_rings(c, spec, p, e);
	if (rc < 0)
		return rc;
	rc = shm_make_bells(c, p);
	if (rc < 0)
		return err_set(e, rc, "shm: no bells for %s: %s; raise `ulimit -n`", c->head.peer, strerror(-rc));
	p->fds[SHM_FD_PUSH] = spec->push->fd;
	p->fds[SHM_FD_RESULT] = spec->result->fd;
	p->push_bytes = spec->push->bytes;
	p->result_bytes = spec->result->bytes;
	c->slots = shm_spec_slots(spec);
	p->slots = c->slots;
	c->in = spec->push->base;
	c->in_bytes = spec->push->bytes;
	c->out = spec->result->base;
	c->out_bytes = spec->result->bytes;
	return 0;
}

static void shm_reject(struct transport *head, struct conn *conn, int code)
{
	struct shm_conn *c = (struct shm_conn *)conn;

	head->strangers_refused++;
	handshake_answer(&c->hands, code ? code : ECONNREFUSED);
	(void)shm_conn_shake_send(c);
	shm_conn_free(c);
}

static int shm_admit(struct transport *head, struct conn *conn, const struct conn_spec *spec, struct err *e)
{
	struct shm_conn *c = (struct shm_conn *)conn;
	struct shm_parcel parcel;
	int rc = shm_conn_outfit(c, spec, &parcel, e);

	if (rc < 0) {
		shm_reject(head, conn, ENOSPC);
		return rc;
	}
	handshake_answer(&c->hands, 0);
	/* So few bytes always fit an empty socket: -EAGAIN means a peer that is up to something. */
	rc = shm_conn_shake_send(c);
	if (rc == 0)
		rc = shm_parcel_send(c->socket, &parcel);
	if (rc < 0) {
		rc = err_set(e, rc == -EAGAIN ? -EPIPE : rc, "shm: cannot hand the memory to %s: %s", conn->peer,
			strerror(-rc));
		shm_conn_free(c);
		return rc;
	}
	/* The mapping keeps the memory. */
	shm_close_fd(&c->memory.fd);
	c->stage = SHM_READY;
	return 0;
}

const struct transport_ops transport_shm = {
	.name = "shm",
	.open = shm_open_transport,
	.queue_create = shm_queue_create,
	.queue_destroy = shm_queue_destroy,
	.listen = shm_listen,
	.accept = shm_accept,
	.admit = shm_admit,
	.reject = shm_reject,
	.connect = shm_connect,
	.established = shm_established,
	.abandon = shm_abandon,
	.fd = shm_fd,
	.close = shm_close_transport,
};
