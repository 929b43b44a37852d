/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The asking end of an administrator's session: Hello, Proof, AdminRequest, each answered before the next is sent.
 */
#include "phub/cli/admin.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/phub.h"
#include "client/url.h"
#include "phub/base/clock.h"
#include "phub/base/ranks.h"
#include "phub/base/secret.h"
#include "transport/proof.h"
#include "transport/stream.h"
#include "transport/stream_tls.h"
#include "transport/wire.h"

enum { ADMIN_SECRET_BYTES = 4096, ADMIN_RANKS_MAX = 64 };

/* Between two tries when a box has no time for newcomers: at first, and at most. */
#define ADMIN_PAUSE_NS     100000000ull
#define ADMIN_PAUSE_MAX_NS 800000000ull

struct admin_session {
	const char *address;
	struct stream *stream;
	struct stream_tls *tls; /* NULL: plain */
	struct frame_reader in;
	struct frame_writer out;
	uint64_t deadline_ns;
	struct err *e;
	uint8_t nonce[PROOF_NONCE];
	uint8_t secret[ADMIN_SECRET_BYTES];
	size_t secret_bytes;
};

/* ---- frames, blocking until the deadline ---- */

static int admin_sleep(struct admin_session *s, short events)
{
	uint64_t now_ns = clock_now_ns();
	struct pollfd fd = {.fd = s->stream->ops->fd(s->stream), .events = events};

	if (now_ns >= s->deadline_ns)
		return err_set(s->e, -ETIMEDOUT,
			"the box at %s took the connection but does not answer; is it a phubd, and does it run?",
			s->address);
	poll(&fd, 1, clock_timeout_ms(now_ns, s->deadline_ns));
	return 0;
}

/* -EBADMSG: it is no box. A box that refuses what is asked is -EPROTO. */
static int admin_not_a_box(struct admin_session *s)
{
	return err_set(s->e, -EBADMSG, "what answers at %s does not speak the language of a box; check host and port",
		s->address);
}

static int admin_lost(struct admin_session *s, int rc)
{
	if (s->stream && s->stream->why.code) /* -EACCES is about the admin secret */
		return err_set(s->e, s->stream->why.code == -EACCES ? -EKEYREJECTED : s->stream->why.code,
			"the box at %s: %s", s->address, s->stream->why.text);
	if (rc == -EMSGSIZE || rc == -EPROTO || rc == -EBADMSG)
		return admin_not_a_box(s);
	if (rc == -ECONNREFUSED)
		return err_set(
			s->e, rc, "no box listens at %s; start one with phubd, or name another HOST:PORT", s->address);
	return err_set(s->e, rc, "the box at %s: %s", s->address, rc == -EPIPE ? "it hung up" : strerror(-rc));
}

static int admin_send(struct admin_session *s, const Phub__Control *message)
{
	size_t bytes = phub__control__get_packed_size(message);
	uint8_t *frame = malloc(bytes);
	int rc = frame ? 0 : -ENOMEM;

	if (rc == 0) {
		phub__control__pack(message, frame);
		rc = frame_append(&s->out, frame, bytes);
		free(frame);
	}
	while (rc == 0 && (rc = frame_flush(&s->out, s->stream)) == -EAGAIN) {
		rc = admin_sleep(s, s->stream->joining && !s->stream->unsent ? POLLIN : POLLOUT);
		if (rc < 0)
			return rc;
	}
	return rc < 0 ? admin_lost(s, rc) : 0;
}

static int admin_errno(uint32_t code)
{
	return code == PHUB__ERROR_CODE__ERROR_DENIED ? -EACCES
	       : code == PHUB__ERROR_CODE__ERROR_BUSY ? -EBUSY
						      : -EPROTO;
}

/* The next message, which must be of this kind; free it with phub__control__free_unpacked(). */
static int admin_receive(struct admin_session *s, Phub__Control__MessageCase wanted, Phub__Control **out)
{
	const uint8_t *frame;
	size_t bytes;
	int rc;

	while ((rc = frame_read(&s->in, s->stream, &frame, &bytes)) == -EAGAIN) {
		rc = admin_sleep(s, s->stream->unsent ? POLLOUT : POLLIN);
		if (rc < 0)
			return rc;
	}
	if (rc < 0)
		return admin_lost(s, rc);
	*out = phub__control__unpack(NULL, bytes, frame);
	if (*out && (*out)->message_case == wanted)
		return 0;
	if (*out && (*out)->message_case == PHUB__CONTROL__MESSAGE_ERROR)
		rc = err_set(
			s->e, admin_errno((*out)->error->code), "the box at %s: %s", s->address, (*out)->error->text);
	else
		rc = admin_not_a_box(s);
	if (*out)
		phub__control__free_unpacked(*out, NULL);
	return rc;
}

/* ---- the secret ---- */

static int admin_read_secret(struct admin_session *s)
{
	const char *text = getenv("PHUB_ADMIN_SECRET"), *path = getenv("PHUB_ADMIN_SECRET_FILE");
	struct err why;
	int rc;

	if (text && *text) {
		s->secret_bytes = strnlen(text, sizeof(s->secret));
		memcpy(s->secret, text, s->secret_bytes);
		return 0;
	}
	if (!path || !*path)
		return err_set(s->e, -EACCES,
			"the box at %s wants its admin secret; put it into PHUB_ADMIN_SECRET or a file named by "
			"PHUB_ADMIN_SECRET_FILE",
			s->address);
	rc = secret_read_file(path, s->secret, sizeof(s->secret), &s->secret_bytes, &why);
	if (rc < 0)
		return err_set(s->e, rc, "PHUB_ADMIN_SECRET_FILE: %s", why.text);
	if (s->secret_bytes == 0)
		return err_set(s->e, -EINVAL, "PHUB_ADMIN_SECRET_FILE %s: no secret in it", path);
	return 0;
}

/* ---- the steps ---- */

static int admin_say_hello(struct admin_session *s)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Hello hello = PHUB__HELLO__INIT;

	if (proof_nonce(s->nonce) < 0)
		return err_set(s->e, -EIO, "the kernel gives no random numbers");
	hello.version = WIRE_VERSION;
	hello.version_min = WIRE_VERSION;
	hello.software = (char *)(uintptr_t) "phub " PHUB_VERSION;
	hello.admin = true;
	hello.nonce.data = s->nonce;
	hello.nonce.len = sizeof(s->nonce);
	control.message_case = PHUB__CONTROL__MESSAGE_HELLO;
	control.hello = &hello;
	return admin_send(s, &control);
}

static int admin_prove(struct admin_session *s, const Phub__Challenge *challenge, uint8_t expected[PROOF_MAC])
{
	struct proof_session seen = {.job = "", .rank = 0, .world = 0};
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Proof proof = PHUB__PROOF__INIT;
	uint8_t mac[PROOF_MAC];
	int rc;

	if (challenge->nonce.len != PROOF_NONCE)
		return admin_not_a_box(s);
	if (challenge->secret) {
		rc = admin_read_secret(s);
		if (rc < 0)
			return rc;
	}
	if (s->stream->sealed)
		seen.channel = s->stream->channel;
	memcpy(seen.client_nonce, s->nonce, PROOF_NONCE);
	memcpy(seen.box_nonce, challenge->nonce.data, PROOF_NONCE);
	if (proof_control(s->secret, s->secret_bytes, &seen, false, mac) < 0 ||
		proof_control(s->secret, s->secret_bytes, &seen, true, expected) < 0)
		return err_set(s->e, -EIO, "libcrypto gives no HMAC");
	proof.mac.data = mac;
	proof.mac.len = sizeof(mac);
	control.message_case = PHUB__CONTROL__MESSAGE_PROOF;
	control.proof = &proof;
	return admin_send(s, &control);
}

static int admin_take_welcome(struct admin_session *s, const Phub__Welcome *welcome, const uint8_t expected[PROOF_MAC],
	struct admin_answer *out)
{
	size_t used = 0;

	if (welcome->mac.len != PROOF_MAC || !proof_equal(welcome->mac.data, expected))
		return err_set(s->e, -EACCES,
			"the box at %s could not prove that it knows the admin secret: it is another box", s->address);
	out->cores = welcome->cores;
	for (size_t i = 0; i < welcome->n_addresses && used < sizeof(out->transports); i++)
		used += (size_t)snprintf(out->transports + used, sizeof(out->transports) - used, "%s%s %s",
			used ? ", " : "", welcome->addresses[i]->transport, welcome->addresses[i]->address);
	return 0;
}

static int admin_join(struct admin_session *s, struct admin_answer *out)
{
	uint64_t begin_ns = clock_now_ns();
	uint8_t expected[PROOF_MAC];
	Phub__Control *m;
	int rc = admin_say_hello(s);

	out->connect_ns = clock_now_ns() - begin_ns;
	if (rc == 0)
		rc = admin_receive(s, PHUB__CONTROL__MESSAGE_CHALLENGE, &m);
	if (rc < 0)
		return rc;
	rc = admin_prove(s, m->challenge, expected);
	phub__control__free_unpacked(m, NULL);
	if (rc == 0)
		rc = admin_receive(s, PHUB__CONTROL__MESSAGE_WELCOME, &m);
	if (rc < 0)
		return rc;
	rc = admin_take_welcome(s, m->welcome, expected, out);
	phub__control__free_unpacked(m, NULL);
	out->session_ns = clock_now_ns() - begin_ns;
	return rc;
}

static int admin_request(struct admin_session *s, const char *command, const char *const *arguments, unsigned count,
	struct admin_answer *out)
{
	uint64_t begin_ns = clock_now_ns();
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__AdminRequest request = PHUB__ADMIN_REQUEST__INIT;
	int rc;

	request.command = (char *)(uintptr_t)command;
	request.arguments = (char **)(uintptr_t)arguments;
	request.n_arguments = count;
	control.message_case = PHUB__CONTROL__MESSAGE_ADMIN_REQUEST;
	control.admin_request = &request;
	rc = admin_send(s, &control);
	if (rc == 0)
		rc = admin_receive(s, PHUB__CONTROL__MESSAGE_ADMIN_REPLY, &out->message);
	if (rc < 0)
		return rc;
	out->answer_ns = clock_now_ns() - begin_ns;
	out->reply = out->message->admin_reply;
	if (out->reply->error && *out->reply->error) {
		rc = err_set(s->e, -EPROTO, "the box at %s: %s", s->address, out->reply->error);
		admin_answer_fini(out);
	}
	return rc;
}

static int admin_parse_address(const char *address, struct url *out, struct err *e)
{
	static const char *const schemes[] = {"phub://", "phubs://"};
	const char *scheme = schemes[0];
	char text[URL_HOST_BYTES + 32];

	for (unsigned i = 0; i < 2; i++) {
		if (strncmp(address, schemes[i], strlen(schemes[i])) != 0)
			continue;
		scheme = schemes[i];
		address += strlen(scheme);
		break;
	}
	snprintf(text, sizeof(text), "%s%.*s/admin", scheme, URL_HOST_BYTES, address);
	if (strpbrk(address, "/,") || url_parse(text, out, NULL) < 0)
		return err_set(e, -EINVAL,
			"'%.200s' is no address of a box; write HOST:PORT, like " ADMIN_ADDRESS_DEFAULT, address);
	return 0;
}

int admin_check_address(const struct args_usage *usage, const char *address)
{
	struct url url;
	struct err e;

	return admin_parse_address(address, &url, &e) < 0 ? args_wrong(usage, "%s", e.text) : ARGS_GO_ON;
}

/* As workers do: who is told how to know the box wants nothing but TLS. */
static int admin_open_tls(struct admin_session *s, const struct url *url)
{
	const char *ca = getenv("PHUB_TLS_CA"), *pin = getenv("PHUB_TLS_PIN");

	ca = ca && *ca ? ca : NULL;
	pin = pin && *pin ? pin : NULL;
	return ca || pin || url->tls ? stream_tls_worker(ca, pin, &s->tls, s->e) : 0;
}

static int admin_dial(struct admin_session *s)
{
	struct url url;
	int rc = admin_parse_address(s->address, &url, s->e);

	if (rc < 0)
		return rc;
	rc = admin_open_tls(s, &url);
	if (rc == 0)
		rc = stream_dial_tcp(url.host, url.port, NULL, &s->stream, s->e);
	if (rc == 0 && s->tls && stream_tls_dial(s->tls, url.host, s->stream, &s->stream) < 0)
		rc = err_set(s->e, -ENOMEM, "no memory for TLS");
	if (rc < 0)
		s->stream = NULL;
	return rc == -ECONNREFUSED ? admin_lost(s, rc) : rc;
}

int admin_ask(const char *address, const char *command, int timeout_ms, struct admin_answer *out, struct err *e)
{
	return admin_tell(address, command, NULL, 0, timeout_ms, out, e);
}

/* One try. `asked`: the question was sent, and may have been heard. */
static int admin_try(const char *address, const char *command, const char *const *arguments, unsigned count,
	uint64_t deadline_ns, struct admin_answer *out, bool *asked, struct err *e)
{
	struct admin_session s = {.address = address, .deadline_ns = deadline_ns, .e = e};
	int rc = admin_dial(&s);

	if (rc < 0) {
		stream_tls_close(s.tls);
		return rc;
	}
	*out = (struct admin_answer){0};
	rc = admin_join(&s, out);
	*asked = rc == 0;
	if (rc == 0)
		rc = admin_request(&s, command, arguments, count, out);
	else if (s.tls && (rc == -EPIPE || rc == -ECONNRESET)) /* a box that speaks TLS has no words for strangers */
		rc = err_set(e, -EBUSY,
			"the box at %s hung up; too many newcomers came at once for its handshake_rate_source or "
			"handshake_rate, perhaps",
			address);
	frame_reader_fini(&s.in);
	frame_writer_fini(&s.out);
	s.stream->ops->close(s.stream);
	stream_tls_close(s.tls);
	explicit_bzero(s.secret, sizeof(s.secret));
	return rc;
}

int admin_tell(const char *address, const char *command, const char *const *arguments, unsigned count, int timeout_ms,
	struct admin_answer *out, struct err *e)
{
	uint64_t begun_ns = clock_now_ns(), deadline_ns = clock_deadline_ns(begun_ns, timeout_ms);
	uint64_t pause_ns = ADMIN_PAUSE_NS;
	char why[ERR_TEXT_MAX] = "";
	bool asked = false;
	unsigned tries = 0;
	int rc;

	do {
		struct timespec pause = {.tv_nsec = (long)pause_ns};

		if (tries++ > 0) {
			nanosleep(&pause, NULL);
			pause_ns = 2 * pause_ns < ADMIN_PAUSE_MAX_NS ? 2 * pause_ns : ADMIN_PAUSE_MAX_NS;
		}
		rc = admin_try(address, command, arguments, count, deadline_ns, out, &asked, e);
		if (rc == -EBUSY)
			snprintf(why, sizeof(why), "%.400s", e->text);
	} while (rc == -EBUSY && clock_now_ns() + pause_ns < deadline_ns);
	/* The last try may have had no time left: what the others met says more. */
	if (rc != -EBUSY && (rc != -ETIMEDOUT || asked || !why[0]))
		return rc;
	return err_set(e, -EBUSY, "%s (%u tries in %.1f s)", why, tries, (double)(clock_now_ns() - begun_ns) / 1e9);
}

/* What the device counted, but for what it moved as it should: ", device: steered 12, elsewhere 3". */
static void admin_write_device(const Phub__AdminReply *reply, char *out, size_t bytes)
{
	const Phub__Datagrams *first = reply->n_cores ? reply->cores[0]->datagrams : NULL;
	size_t at = 0;

	out[0] = '\0';
	for (size_t k = 0; first && k < first->n_device && at < bytes; k++) {
		const char *name = first->device[k]->name;
		uint64_t sum = 0;

		for (size_t i = 0; i < reply->n_cores; i++) {
			const Phub__Datagrams *d = reply->cores[i]->datagrams;

			sum += d && k < d->n_device ? d->device[k]->count : 0;
		}
		if (sum && strcmp(name, "came") != 0 && strncmp(name, "sent", 4) != 0)
			at += (size_t)snprintf(
				out + at, bytes - at, "%s%s %" PRIu64, at ? ", " : "; of the device: ", name, sum);
	}
}

bool admin_write_datagrams(const Phub__AdminReply *reply, char *out, size_t bytes)
{
	uint64_t sent = 0, came = 0, resent = 0, dropped = 0;
	const Phub__Datagrams *first = reply->n_cores ? reply->cores[0]->datagrams : NULL;
	size_t at;

	for (size_t i = 0; i < reply->n_cores; i++) {
		const Phub__Datagrams *d = reply->cores[i]->datagrams;

		sent += d ? d->sent : 0;
		came += d ? d->came : 0;
		resent += d ? d->resent : 0;
		for (size_t k = 0; d && k < d->n_dropped; k++)
			dropped += d->dropped[k]->count;
	}
	at = (size_t)snprintf(out, bytes, "%" PRIu64 " sent, %" PRIu64 " again, %" PRIu64 " came, %" PRIu64 " dropped",
		sent, resent, came, dropped);
	for (size_t k = 0; dropped && first && k < first->n_dropped && at < bytes; k++) {
		uint64_t sum = 0;

		for (size_t i = 0; i < reply->n_cores; i++) {
			const Phub__Datagrams *d = reply->cores[i]->datagrams;

			sum += d && k < d->n_dropped ? d->dropped[k]->count : 0;
		}
		if (sum)
			at += (size_t)snprintf(out + at, bytes - at, ", %s %" PRIu64, first->dropped[k]->why, sum);
	}
	if (at < bytes)
		admin_write_device(reply, out + at, bytes - at);
	return sent + came + dropped > 0;
}

uint64_t admin_dropped(Phub__Dropped *const *rows, size_t count, const char *why)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(rows[i]->why, why) == 0)
			return rows[i]->count;
	return 0;
}

bool admin_write_dropped(Phub__Dropped *const *rows, size_t count, char *out, size_t bytes)
{
	const char *before = ": ";
	uint64_t sum = 0;
	size_t at;

	for (size_t i = 0; i < count; i++)
		sum += rows[i]->count;
	at = (size_t)snprintf(out, bytes, "%" PRIu64, sum);
	for (size_t i = 0; i < count && at < bytes; i++) {
		if (!rows[i]->count)
			continue;
		at += (size_t)snprintf(out + at, bytes - at, "%s%s %" PRIu64, before, rows[i]->why, rows[i]->count);
		before = ", ";
	}
	return sum > 0;
}

bool admin_is_stuck(const Phub__JobInfo *job, const Phub__WorkerInfo *worker)
{
	return job->standby && *job->standby && strcmp(job->standby, "off") != 0 &&
	       strcmp(worker->transport, "shm") == 0;
}

bool admin_write_stuck(const Phub__JobInfo *job, char *out, size_t bytes)
{
	uint32_t ranks[ADMIN_RANKS_MAX] = {0};
	size_t count = 0;
	int at;

	for (size_t i = 0; i < job->n_workers; i++) {
		if (!admin_is_stuck(job, job->workers[i]))
			continue;
		if (count < ADMIN_RANKS_MAX)
			ranks[count] = job->workers[i]->rank;
		count++;
	}
	at = snprintf(out, bytes, "%s ", count == 1 ? "rank" : "ranks");
	ranks_write(ranks, count < ADMIN_RANKS_MAX ? count : ADMIN_RANKS_MAX, count, out + at, bytes - (size_t)at);
	return count > 0;
}

void admin_answer_fini(struct admin_answer *answer)
{
	if (answer->message)
		phub__control__free_unpacked(answer->message, NULL);
	answer->message = NULL;
	answer->reply = NULL;
}
