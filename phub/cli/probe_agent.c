/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub topo probe --serve: a thread for each connection, which either is asked to measure, or is the other end of a
 * measurement. Ends when it was told so, or when its time is over.
 */
#include "phub/cli/probe.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/cli/output.h"

enum {
	AGENT_CONNECTIONS_MAX = 512,
	AGENT_GREET_S = 5,
	AGENT_CHUNK = 256 << 10,
	AGENT_FLOWS_MAX = PROBE_MEMBERS_MAX,
	AGENT_TAIL_MS = 200, /* that streams go on beyond their time, so that all others are measured beside them */
};

static struct {
	const struct probe_token *token;
	atomic_bool done;
	atomic_uint connections;
} agent;

struct agent_stream {
	pthread_t thread;
	int fd;
	bool started;
	uint64_t warm_ns, measure_ns;
	uint64_t rate; /* bytes a second, as the other end counted */
	int rc;
};

struct agent_flow {
	unsigned first, count; /* of its streams */
};

/* What one who asks has prepared. */
struct agent_control {
	int fd;
	struct agent_stream streams[PROBE_STREAMS_MAX];
	struct agent_flow flows[AGENT_FLOWS_MAX];
	unsigned stream_count, flow_count;
};

static uint64_t agent_deadline(uint64_t extra_ns)
{
	return clock_now_ns() + extra_ns + PROBE_ANSWER_S * NS_PER_S;
}

/* ---- the other end of a measurement ---- */

static void agent_echo(int fd)
{
	struct probe_message m;

	while (probe_receive(fd, &m, agent_deadline(0)) == 0 && probe_send(fd, &m, agent_deadline(0)) == 0)
		;
}

/* Counts what comes between warm_ns and warm_ns + measure_ns after the first byte, and says so at the end of it. */
static void agent_count(int fd, const struct probe_message *hello)
{
	uint64_t first_ns = 0, bytes = 0, end_ns = agent_deadline(PROBE_ANSWER_S * NS_PER_S);
	struct probe_message result = {.type = PROBE_RESULT};
	uint8_t *chunk = malloc(AGENT_CHUNK);

	while (chunk) {
		ssize_t got = recv(fd, chunk, AGENT_CHUNK, 0);
		uint64_t now_ns = clock_now_ns();

		if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
			break;
		if (got < 0) {
			if (probe_wait(fd, POLLIN, end_ns) < 0)
				break;
			continue;
		}
		if (!first_ns) {
			first_ns = now_ns;
			end_ns = agent_deadline(hello->warm_ns + hello->measure_ns);
		}
		if (now_ns >= first_ns + hello->warm_ns && now_ns < first_ns + hello->warm_ns + hello->measure_ns)
			bytes += (uint64_t)got;
	}
	free(chunk);
	result.values[0] = (uint64_t)((double)bytes * 1e9 / (double)hello->measure_ns);
	probe_send(fd, &result, agent_deadline(0));
}

/* ---- who is asked ---- */

static int agent_compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void agent_fail(struct probe_message *answer, int rc, const char *text)
{
	answer->type = PROBE_FAILED;
	snprintf(answer->host, sizeof(answer->host), "%.200s", text ? text : strerror(-rc));
}

static int agent_ping(int fd, uint64_t *times, unsigned count)
{
	struct probe_message m = {.type = PROBE_PING};
	int rc = probe_send(fd, &m, agent_deadline(0));

	for (unsigned i = 0; rc == 0 && i < count; i++) {
		uint64_t began_ns = clock_now_ns();

		rc = probe_send(fd, &m, agent_deadline(0));
		if (rc == 0)
			rc = probe_receive(fd, &m, agent_deadline(0));
		times[i] = clock_now_ns() - began_ns;
	}
	return rc;
}

/* Round trips: the first tenth is not counted. */
static void agent_latency(const struct probe_message *m, struct probe_message *answer)
{
	unsigned count = m->count < 10                ? 10
			 : m->count > PROBE_PINGS_MAX ? PROBE_PINGS_MAX
						      : m->count,
		 warm = count / 10;
	uint64_t *times = calloc(count, sizeof(*times));
	struct err e = {.text = ""};
	int fd, rc = times ? probe_connect(m->host, m->port, agent.token, agent_deadline(0), &fd, &e) : -ENOMEM;

	if (rc < 0) {
		agent_fail(answer, rc, e.text[0] ? e.text : NULL);
		free(times);
		return;
	}
	rc = agent_ping(fd, times, count);
	close(fd);
	if (rc < 0) {
		agent_fail(answer, rc, NULL);
	} else {
		qsort(times + warm, count - warm, sizeof(*times), agent_compare);
		answer->values[0] = times[warm];
		answer->values[1] = times[warm + (count - warm) / 2];
		answer->values[2] = times[warm + (count - warm) * 9 / 10];
	}
	free(times);
}

static void agent_forget(struct agent_control *c)
{
	for (unsigned i = 0; i < c->stream_count; i++)
		close(c->streams[i].fd);
	c->stream_count = c->flow_count = 0;
}

static void agent_prepare(struct agent_control *c, const struct probe_message *m, struct probe_message *answer)
{
	struct err e = {.text = ""};

	if (m->count == 0 || c->flow_count == AGENT_FLOWS_MAX || m->count > PROBE_STREAMS_MAX - c->stream_count) {
		agent_fail(answer, -E2BIG, "too many streams at a time");
		return;
	}
	c->flows[c->flow_count] = (struct agent_flow){c->stream_count, m->count};
	for (unsigned i = 0; i < m->count; i++) {
		int fd;

		if (probe_connect(m->host, m->port, agent.token, agent_deadline(0), &fd, &e) < 0) {
			agent_fail(answer, 0, e.text);
			return;
		}
		c->streams[c->stream_count++] = (struct agent_stream){.fd = fd};
	}
	c->flow_count++;
}

static void *agent_send_stream(void *arg)
{
	struct agent_stream *s = arg;
	struct probe_message m = {.type = PROBE_STREAM, .warm_ns = s->warm_ns, .measure_ns = s->measure_ns};
	uint64_t end_ns = clock_now_ns() + s->warm_ns + s->measure_ns + AGENT_TAIL_MS * NS_PER_MS;
	uint8_t *chunk = calloc(1, AGENT_CHUNK);

	s->rc = chunk ? probe_send(s->fd, &m, end_ns) : -ENOMEM;
	while (s->rc == 0 && clock_now_ns() < end_ns) {
		ssize_t sent = send(s->fd, chunk, AGENT_CHUNK, MSG_NOSIGNAL);

		if (sent < 0 && errno != EAGAIN && errno != EINTR)
			s->rc = -errno;
		else if (sent < 0)
			probe_wait(s->fd, POLLOUT, end_ns);
	}
	free(chunk);
	if (s->rc == 0 && shutdown(s->fd, SHUT_WR) < 0)
		s->rc = -errno;
	if (s->rc == 0)
		s->rc = probe_receive(s->fd, &m, agent_deadline(0));
	s->rate = m.values[0];
	return NULL;
}

/* All streams at once; then a result for each flow. Returns 0, or why the one who asked cannot be told. */
static int agent_go(struct agent_control *c, const struct probe_message *m)
{
	int failed, rc = 0;

	for (unsigned i = 0; i < c->stream_count; i++) {
		struct agent_stream *s = &c->streams[i];

		s->warm_ns = m->warm_ns;
		s->measure_ns = m->measure_ns;
		failed = -pthread_create(&s->thread, NULL, agent_send_stream, s);
		s->started = failed == 0;
		if (failed < 0)
			s->rc = failed; /* a thread that has started writes rc by itself */
	}
	for (unsigned i = 0; i < c->stream_count; i++)
		if (c->streams[i].started)
			pthread_join(c->streams[i].thread, NULL);
	for (unsigned i = 0; rc == 0 && i < c->flow_count; i++) {
		struct probe_message answer = {.type = PROBE_RESULT};

		for (unsigned j = 0; j < c->flows[i].count; j++) {
			const struct agent_stream *s = &c->streams[c->flows[i].first + j];

			answer.values[0] += s->rate;
			if (s->rc < 0)
				agent_fail(&answer, s->rc, NULL);
		}
		rc = probe_send(c->fd, &answer, agent_deadline(0));
	}
	agent_forget(c);
	return rc;
}

/* Bounds of what is asked: nobody keeps us busy for longer. */
static bool agent_is_sane(const struct probe_message *m)
{
	return m->measure_ns > 0 && m->measure_ns <= PROBE_SECONDS_MAX * NS_PER_S &&
	       m->warm_ns <= PROBE_SECONDS_MAX * NS_PER_S;
}

/* One who asked has what it wanted. */
static void agent_end(int fd)
{
	struct sockaddr_storage peer = {.ss_family = AF_UNSPEC};
	socklen_t bytes = sizeof(peer);
	char who[SOCK_HOST_BYTES + 10] = "one who asked", *port;

	if (getpeername(fd, (struct sockaddr *)&peer, &bytes) == 0) {
		sock_format(&peer, who, sizeof(who));
		port = strrchr(who, ':');
		if (port)
			*port = '\0';
	}
	printf("probe ends: %s has measured; with --keep it would let probes go on\n", who);
	fflush(stdout);
	agent.done = true;
}

static void agent_control(int fd)
{
	struct agent_control *c = calloc(1, sizeof(*c));
	struct probe_message m;
	int rc = c ? 0 : -ENOMEM;

	if (c)
		c->fd = fd;
	/* Who asks measures elsewhere meanwhile: the time of this process bounds the wait. */
	while (rc == 0 && !agent.done && probe_receive(fd, &m, CLOCK_NEVER) == 0) {
		struct probe_message answer = {.type = PROBE_RESULT};

		if (m.type == PROBE_GO) {
			rc = agent_is_sane(&m) ? agent_go(c, &m) : -EPROTO;
			continue;
		}
		if (m.type == PROBE_LATENCY)
			agent_latency(&m, &answer);
		else if (m.type == PROBE_PREPARE)
			agent_prepare(c, &m, &answer);
		else if (m.type != PROBE_DONE)
			break;
		if (answer.type == PROBE_FAILED)
			agent_forget(c);
		rc = probe_send(fd, &answer, agent_deadline(0));
		if (m.type == PROBE_DONE)
			agent_end(fd);
	}
	if (c)
		agent_forget(c);
	free(c);
}

static void *agent_connection(void *arg)
{
	int fd = (int)(intptr_t)arg;
	struct probe_message m;
	int rc = probe_accept(fd, agent.token, clock_now_ns() + AGENT_GREET_S * NS_PER_S);

	if (rc == -EACCES)
		output_error("someone who came has another token");
	/* Streams are prepared long before they begin. */
	if (rc == 0 && probe_receive(fd, &m, agent_deadline(PROBE_ANSWER_S * NS_PER_S)) == 0) {
		if (m.type == PROBE_CONTROL)
			agent_control(fd);
		else if (m.type == PROBE_PING)
			agent_echo(fd);
		else if (m.type == PROBE_STREAM && agent_is_sane(&m))
			agent_count(fd, &m);
	}
	close(fd);
	agent.connections--;
	return NULL;
}

static void agent_take(int listen_fd)
{
	struct sockaddr_storage peer;
	pthread_t thread;
	int fd = sock_accept(listen_fd, &peer);

	if (fd < 0)
		return;
	sock_tune(fd, NULL);
	if (agent.connections >= AGENT_CONNECTIONS_MAX ||
		pthread_create(&thread, NULL, agent_connection, (void *)(intptr_t)fd) != 0) {
		close(fd);
		return;
	}
	agent.connections++;
	pthread_detach(thread);
}

int probe_serve(const char *host, uint16_t port, const struct probe_token *token, uint64_t limit_s, struct err *e)
{
	uint64_t end_ns = clock_now_ns() + limit_s * NS_PER_S;
	int fd, rc = sock_listen(host, port, port, NULL, &fd, e);

	if (rc < 0)
		return rc;
	agent.token = token;
	printf("probe listens on port %u\n", port);
	fflush(stdout);
	while (!agent.done && clock_now_ns() < end_ns) {
		uint64_t soon_ns = clock_now_ns() + 100 * NS_PER_MS;

		if (probe_wait(fd, POLLIN, soon_ns < end_ns ? soon_ns : end_ns) == 0)
			agent_take(fd);
	}
	close(fd);
	return agent.done ? 0
			  : err_set(e, -ETIMEDOUT, "nobody came to end the probe within %llu s",
				    (unsigned long long)limit_s);
}
