/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As little of HTTP as libcurl needs.
 */
#include "tests/unit/etcd_rig.h"

#include "tests/unit/cmocka_shim.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void etcd_rig_init(struct etcd_rig *rig)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(at);

	memset(rig, 0, sizeof(*rig));
	for (unsigned i = 0; i < ETCD_RIG_CONNS; i++)
		rig->conns[i].fd = -1;
	rig->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	assert_true(rig->fd >= 0);
	assert_int_equal(bind(rig->fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(rig->fd, 16), 0);
	assert_int_equal(getsockname(rig->fd, (struct sockaddr *)&at, &length), 0);
	rig->port = ntohs(at.sin_port);
	snprintf(rig->url, sizeof(rig->url), "http://127.0.0.1:%u", rig->port);
}

static void etcd_rig_close(struct etcd_rig_conn *c)
{
	if (c->fd >= 0)
		close(c->fd);
	free(c->out);
	memset(c, 0, sizeof(*c));
	c->fd = -1;
}

static void etcd_rig_queue(struct etcd_rig_conn *c, const char *bytes, size_t count)
{
	size_t room = c->out_room ? c->out_room : 4096;

	while (room < c->out_bytes + count)
		room *= 2;
	if (room > c->out_room) {
		c->out = realloc(c->out, room);
		assert_non_null(c->out);
		c->out_room = room;
	}
	memcpy(c->out + c->out_bytes, bytes, count);
	c->out_bytes += count;
}

static void etcd_rig_reply(struct etcd_rig_conn *c, const struct etcd_rig_answer *a)
{
	size_t body = strlen(a->body), times = a->repeat ? a->repeat : 1;
	char head[256];

	snprintf(head, sizeof(head), "HTTP/1.1 %d X\r\nContent-Type: application/json\r\n", a->status);
	etcd_rig_queue(c, head, strlen(head));
	snprintf(head, sizeof(head), "Content-Length: %zu\r\n", a->length ? a->length : body * times);
	if (!a->stays || a->length)
		etcd_rig_queue(c, head, strlen(head));
	etcd_rig_queue(c, "\r\n", 2);
	for (size_t i = 0; i < times; i++)
		etcd_rig_queue(c, a->body, body);
	c->stream = a->stays;
	c->ends = !a->stays && a->length > body * times;
}

/* A request that is there as a whole is answered. */
static void etcd_rig_take(struct etcd_rig *rig, struct etcd_rig_conn *c)
{
	struct etcd_rig_answer answer = {.status = 200, .body = "{}"};
	char path[128] = "", *end = strstr(c->in, "\r\n\r\n"), *length = strcasestr(c->in, "\r\nContent-Length:");
	size_t body;

	if (!end)
		return;
	body = length ? strtoul(length + 17, NULL, 10) : 0;
	if (c->have < (size_t)(end + 4 - c->in) + body)
		return;
	assert_int_equal(sscanf(c->in, "POST %127s HTTP/1.1", path), 1);
	*end = '\0';
	rig->requests++;
	rig->answer(rig->arg, &(struct etcd_rig_request){.path = path, .head = c->in, .body = end + 4}, &answer);
	c->have = 0;
	memset(c->in, 0, sizeof(c->in));
	if (answer.status == 0)
		etcd_rig_close(c);
	else if (!answer.never)
		etcd_rig_reply(c, &answer);
}

static void etcd_rig_serve(struct etcd_rig *rig, struct etcd_rig_conn *c)
{
	ssize_t n = recv(c->fd, c->in + c->have, sizeof(c->in) - 1 - c->have, MSG_DONTWAIT);

	if (n == 0) {
		etcd_rig_close(c);
		return;
	}
	if (n > 0) {
		c->have += (size_t)n;
		etcd_rig_take(rig, c);
	}
	if (c->fd < 0 || c->out_at == c->out_bytes)
		return;
	n = send(c->fd, c->out + c->out_at, c->out_bytes - c->out_at, MSG_DONTWAIT | MSG_NOSIGNAL);
	c->out_at += n > 0 ? (size_t)n : 0;
	if (c->out_at == c->out_bytes && c->ends)
		etcd_rig_close(c);
}

void etcd_rig_step(struct etcd_rig *rig)
{
	for (unsigned i = 0; i < ETCD_RIG_CONNS; i++) {
		struct etcd_rig_conn *c = &rig->conns[i];

		if (c->fd < 0)
			c->fd = accept4(rig->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (c->fd >= 0)
			etcd_rig_serve(rig, c);
	}
}

void etcd_rig_say(struct etcd_rig *rig, const char *text)
{
	for (unsigned i = 0; i < ETCD_RIG_CONNS; i++)
		if (rig->conns[i].fd >= 0 && rig->conns[i].stream)
			etcd_rig_queue(&rig->conns[i], text, strlen(text));
}

void etcd_rig_hang_up(struct etcd_rig *rig)
{
	for (unsigned i = 0; i < ETCD_RIG_CONNS; i++)
		etcd_rig_close(&rig->conns[i]);
}

void etcd_rig_fini(struct etcd_rig *rig)
{
	etcd_rig_hang_up(rig);
	close(rig->fd);
}
