/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proof is that of control sessions (transport/proof.h), with the probe's name for a job. Who connects proves
 * first: a stranger gets nothing from us but a nonce.
 */
#include "phub/cli/probe_wire.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/base/secret.h"
#include "transport/le.h"
#include "transport/proof.h"

#define PROBE_MAGIC   0x52504850u /* "PHPR" */
#define PROBE_VERSION 1u
#define PROBE_JOB     "phub topo probe"

enum { PROBE_BYTES = 56 + SOCK_HOST_BYTES };

int probe_token_read(const char *file, struct probe_token *token, struct err *e)
{
	const char *text = getenv("PHUB_PROBE_TOKEN");
	size_t length = text ? strlen(text) : 0;
	int rc = 0;

	if (file)
		rc = secret_read_file(file, token->bytes, sizeof(token->bytes), &length, e);
	else if (!text)
		return err_set(e, -EINVAL,
			"probes need a token that all of them know: PHUB_PROBE_TOKEN, or --token-file FILE");
	if (rc < 0)
		return rc;
	if (length < PROBE_TOKEN_MIN || length > sizeof(token->bytes))
		return err_set(e, -EINVAL, "the token has %zu bytes; %d to %d are allowed", length, PROBE_TOKEN_MIN,
			PROBE_TOKEN_MAX);
	if (!file)
		memcpy(token->bytes, text, length);
	token->length = length;
	return 0;
}

int probe_wait(int fd, short events, uint64_t deadline_ns)
{
	struct pollfd one = {.fd = fd, .events = events};
	uint64_t now_ns = clock_now_ns();

	while (now_ns < deadline_ns) {
		if (poll(&one, 1, clock_timeout_ms(now_ns, deadline_ns)) > 0)
			return 0;
		now_ns = clock_now_ns();
	}
	return -ETIMEDOUT;
}

static int probe_read_all(int fd, void *out, size_t bytes, uint64_t deadline_ns)
{
	for (size_t at = 0; at < bytes;) {
		ssize_t got = recv(fd, (uint8_t *)out + at, bytes - at, 0);

		if (got > 0)
			at += (size_t)got;
		else if (got == 0)
			return -EPIPE;
		else if (errno != EAGAIN && errno != EINTR)
			return -errno;
		else if (probe_wait(fd, POLLIN, deadline_ns) < 0)
			return -ETIMEDOUT;
	}
	return 0;
}

static int probe_write_all(int fd, const void *data, size_t bytes, uint64_t deadline_ns)
{
	for (size_t at = 0; at < bytes;) {
		ssize_t sent = send(fd, (const uint8_t *)data + at, bytes - at, MSG_NOSIGNAL);

		if (sent >= 0)
			at += (size_t)sent;
		else if (errno != EAGAIN && errno != EINTR)
			return -errno;
		else if (probe_wait(fd, POLLOUT, deadline_ns) < 0)
			return -ETIMEDOUT;
	}
	return 0;
}

int probe_send(int fd, const struct probe_message *m, uint64_t deadline_ns)
{
	uint8_t bytes[PROBE_BYTES] = {0};

	le_put32(bytes, PROBE_MAGIC);
	le_put16(bytes + 4, PROBE_VERSION);
	le_put16(bytes + 6, (uint16_t)m->type);
	le_put32(bytes + 8, m->count);
	le_put16(bytes + 12, m->port);
	le_put64(bytes + 16, m->warm_ns);
	le_put64(bytes + 24, m->measure_ns);
	for (unsigned i = 0; i < 3; i++)
		le_put64(bytes + 32 + 8 * i, m->values[i]);
	memcpy(bytes + 56, m->host, sizeof(m->host));
	return probe_write_all(fd, bytes, sizeof(bytes), deadline_ns);
}

int probe_receive(int fd, struct probe_message *m, uint64_t deadline_ns)
{
	uint8_t bytes[PROBE_BYTES];
	int rc = probe_read_all(fd, bytes, sizeof(bytes), deadline_ns);

	if (rc < 0)
		return rc;
	if (le_get32(bytes) != PROBE_MAGIC || le_get16(bytes + 4) != PROBE_VERSION)
		return -EPROTO;
	m->type = (enum probe_type)le_get16(bytes + 6);
	m->count = le_get32(bytes + 8);
	m->port = le_get16(bytes + 12);
	m->warm_ns = le_get64(bytes + 16);
	m->measure_ns = le_get64(bytes + 24);
	for (unsigned i = 0; i < 3; i++)
		m->values[i] = le_get64(bytes + 32 + 8 * i);
	memcpy(m->host, bytes + 56, sizeof(m->host));
	m->host[sizeof(m->host) - 1] = '\0';
	return 0;
}

static int probe_prove(const struct probe_token *token, const uint8_t client[PROOF_NONCE],
	const uint8_t box[PROOF_NONCE], bool from_box, uint8_t mac[PROOF_MAC])
{
	struct proof_session s = {.job = PROBE_JOB};

	memcpy(s.client_nonce, client, PROOF_NONCE);
	memcpy(s.box_nonce, box, PROOF_NONCE);
	return proof_control(token->bytes, token->length, &s, from_box, mac);
}

/* Begins with 16 bytes of theirs, goes on with 48 of ours, ends with 32 of theirs. */
static int probe_greet(int fd, const struct probe_token *token, uint64_t deadline_ns)
{
	uint8_t theirs[PROOF_NONCE], own[PROOF_NONCE + PROOF_MAC], mac[PROOF_MAC], answer[PROOF_MAC];
	int rc = probe_read_all(fd, theirs, sizeof(theirs), deadline_ns);

	if (rc == 0)
		rc = proof_nonce(own);
	if (rc == 0)
		rc = probe_prove(token, own, theirs, false, own + PROOF_NONCE);
	if (rc == 0)
		rc = probe_write_all(fd, own, sizeof(own), deadline_ns);
	if (rc == 0)
		rc = probe_read_all(fd, answer, sizeof(answer), deadline_ns);
	if (rc == -EPIPE || rc == -ECONNRESET)
		return -EACCES;
	if (rc == 0)
		rc = probe_prove(token, own, theirs, true, mac);
	return rc == 0 && !proof_equal(mac, answer) ? -EACCES : rc;
}

int probe_accept(int fd, const struct probe_token *token, uint64_t deadline_ns)
{
	uint8_t own[PROOF_NONCE], theirs[PROOF_NONCE + PROOF_MAC], mac[PROOF_MAC];
	int rc = proof_nonce(own);

	if (rc == 0)
		rc = probe_write_all(fd, own, sizeof(own), deadline_ns);
	if (rc == 0)
		rc = probe_read_all(fd, theirs, sizeof(theirs), deadline_ns);
	if (rc == 0)
		rc = probe_prove(token, theirs, own, false, mac);
	if (rc == 0 && !proof_equal(mac, theirs + PROOF_NONCE))
		return -EACCES;
	if (rc == 0)
		rc = probe_prove(token, theirs, own, true, mac);
	return rc == 0 ? probe_write_all(fd, mac, sizeof(mac), deadline_ns) : rc;
}

int probe_connect(
	const char *host, uint16_t port, const struct probe_token *token, uint64_t deadline_ns, int *fd, struct err *e)
{
	int rc = sock_connect(host, port, NULL, fd, e);

	if (rc < 0)
		return rc;
	rc = probe_wait(*fd, POLLOUT, deadline_ns);
	if (rc == 0)
		rc = sock_connected(*fd);
	sock_tune(*fd, NULL);
	if (rc == 0)
		rc = probe_greet(*fd, token, deadline_ns);
	if (rc == 0)
		return 0;
	close(*fd);
	if (rc == -EACCES)
		return err_set(e, rc, "the probe at %s port %u has another token", host, port);
	return err_set(e, rc, "no probe answers at %s port %u: %s; start `phub topo probe --serve` there", host, port,
		strerror(-rc));
}
