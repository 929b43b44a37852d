/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a session writes. Frames collect in a bounded writer; session_flush() sends them.
 */
#include "phub/control/session.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "phub/base/log.h"
#include "phub/control/above.h"
#include "phub/control/box.h"
#include "phub/control/generation.h"
#include "phub/control/job.h"
#include "transport/sock.h"

void session_write(struct session *s, const Phub__Control *message)
{
	size_t bytes = phub__control__get_packed_size(message);
	uint8_t *frame;
	char who[160];
	int rc;

	if (s->dead)
		return;
	frame = malloc(bytes ? bytes : 1);
	if (!frame) {
		session_lose(s, "the box has no memory to answer it");
		return;
	}
	phub__control__pack(message, frame);
	rc = frame_append(&s->writer, frame, bytes);
	free(frame);
	if (rc < 0) {
		log_warn("%s does not read its control session; closed", session_who(s, who, sizeof(who)));
		session_lose(s, "it does not read its control session");
	}
}

void session_write_error(struct session *s, Phub__ErrorCode code, int rank, const char *text)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Error error = PHUB__ERROR__INIT;

	if (s->dead || s->state == SESSION_DONE)
		return;
	error.code = code;
	error.rank = rank;
	error.text = (char *)(uintptr_t)text;
	error.promotable = s->astray && s->proved && above_is_promotable(s->control);
	error.reaches = s->astray && s->proved && above_reaches(s->control);
	control.message_case = PHUB__CONTROL__MESSAGE_ERROR;
	control.error = &error;
	session_write(s, &control);
	s->state = SESSION_DONE;
	s->done_ns = s->control->now_ns;
}

void session_refuse(struct session *s, Phub__ErrorCode code, const char *format, ...)
{
	struct control *c = s->control;
	static struct log_limit limit;
	char text[ERR_TEXT_MAX], who[160];
	char more[LOG_QUIET_BYTES];
	bool again = s->peer && code == PHUB__ERROR_CODE__ERROR_BUSY; /* boxes of an exchange start at the same time */
	bool asks = s->astray && s->proved && !above_epoch(c);        /* who is no root is asked again and again */
	uint64_t quiet;
	int at = 0;
	va_list args;

	if (s->job && s->mirror)
		at = snprintf(text, sizeof(text), "mirror of job '%s': ", s->name);
	else if (s->job &&
		 s->below) /* whose place among the members is nobody's rank; whose name `format` has, if it must */
		at = snprintf(text, sizeof(text), "job '%s': ", s->name);
	else if (s->job)
		at = snprintf(text, sizeof(text), "job '%s' rank %u: ", s->name, s->rank);
	va_start(args, format);
	vsnprintf(text + at, sizeof(text) - (size_t)at, format, args);
	va_end(args);
	session_who(s, who, sizeof(who));
	/* A member's job logs it. */
	if (again || asks)
		log_debug("%s refused: %s", who, text);
	else if (!s->job && log_limit_pass(&limit, c->now_ns, 1000000000ull, &quiet))
		log_warn("%s refused: %s%s", who, text, log_quiet(quiet, more));
	if (!s->proved && !again)
		c->strangers_refused++;
	session_write_error(
		s, s->astray ? PHUB__ERROR_CODE__ERROR_BUSY : code, s->job && !s->below ? (int)s->rank : -1, text);
	session_part(s, text + at);
}

void session_write_challenge(struct session *s)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Challenge challenge = PHUB__CHALLENGE__INIT;

	challenge.version = WIRE_VERSION;
	challenge.nonce.data = s->box_nonce;
	challenge.nonce.len = sizeof(s->box_nonce);
	challenge.secret = s->secret != NULL;
	challenge.encrypt = s->encrypt;
	control.message_case = PHUB__CONTROL__MESSAGE_CHALLENGE;
	control.challenge = &challenge;
	session_write(s, &control);
}

/*
 * A transport that listens on all addresses is told with the one by which this worker came: the others may be
 * out of its reach.
 */
static void session_address(const struct session *s, const char *address, char *out, size_t bytes)
{
	struct sockaddr_storage here = {0};
	socklen_t length = sizeof(here);
	char local[BOX_ADDRESS_BYTES];
	int fd = s->stream->ops->fd(s->stream);
	char *colon;

	snprintf(out, bytes, "%s", address);
	if (strncmp(address, "*:", 2) != 0 || fd < 0 || getsockname(fd, (struct sockaddr *)&here, &length) < 0)
		return;
	sock_format(&here, local, sizeof(local));
	colon = strrchr(local, ':');
	if (colon)
		snprintf(out, bytes, "%.*s%s", (int)(colon - local), local, address + 1);
}

/* It comes to a job that runs, and has no memory there: that is made when a generation begins. */
static bool session_is_unmapped(const struct session *s)
{
	const struct job *job = s->job;

	if (!job || job->mirror || job->state != JOB_RUNNING)
		return false;
	if (s->below)
		return !generation_is_shared(job->generation);
	return s->rank < job->ranks && job->members[s->rank].gone && !job->generation->pushes[s->rank].base;
}

void session_write_welcome(struct session *s, const uint8_t mac[PROOF_MAC])
{
	const struct box *box = s->control->box;
	const struct config *config = s->control->config;
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Welcome welcome = PHUB__WELCOME__INIT;
	Phub__Address addresses[CONFIG_TRANSPORTS_MAX], *pointers[CONFIG_TRANSPORTS_MAX];
	char text[CONFIG_TRANSPORTS_MAX][BOX_ADDRESS_BYTES];

	for (unsigned i = 0; i < box->transport_count; i++) {
		const struct box_transport *t = &box->transports[i];

		if (!t->address[s->listener][0])
			continue;
		session_address(s, t->address[s->listener], text[i], sizeof(text[i]));
		phub__address__init(&addresses[i]);
		addresses[i].transport = (char *)(uintptr_t)t->transport->ops->name;
		addresses[i].address = text[i];
		pointers[welcome.n_addresses++] = &addresses[i];
	}
	welcome.mac.data = (uint8_t *)(uintptr_t)mac;
	welcome.mac.len = PROOF_MAC;
	welcome.session = s->id;
	welcome.heartbeat_ms = (uint32_t)config->heartbeat_ms;
	welcome.lost_ms = (uint32_t)config->lost_ms;
	welcome.addresses = pointers;
	welcome.cores = box->core_count;
	if (box->outlets.count > 0)
		welcome.standby = (char *)(uintptr_t)config->standby_told;
	welcome.sibling = (char *)(uintptr_t)config->sibling;
	welcome.chunk_bytes = (uint32_t)config->chunk_bytes;
	if (s->below)
		welcome.root = above_epoch(s->control);
	welcome.unmapped = session_is_unmapped(s);
	if (welcome.unmapped && !s->below && s->stream->peer_is_local) /* a box says itself what it goes by */
		log_info(
			"job '%s' rank %u comes to a job that began without shared memory for it: it has the choice of "
			"the other transports",
			s->name, s->rank);
	control.message_case = PHUB__CONTROL__MESSAGE_WELCOME;
	control.welcome = &welcome;
	session_write(s, &control);
}

void session_write_heartbeat(struct session *s, uint64_t stamp)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Heartbeat heartbeat = PHUB__HEARTBEAT__INIT;

	heartbeat.stamp = stamp;
	control.message_case = PHUB__CONTROL__MESSAGE_HEARTBEAT;
	control.heartbeat = &heartbeat;
	session_write(s, &control);
}

void session_write_barrier_done(struct session *s, uint64_t id)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__BarrierDone done = PHUB__BARRIER_DONE__INIT;

	done.id = id;
	control.message_case = PHUB__CONTROL__MESSAGE_BARRIER_DONE;
	control.barrier_done = &done;
	session_write(s, &control);
}

void session_write_signal(struct session *s, const struct signal *signal)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Signal out = PHUB__SIGNAL__INIT;

	out.core = signal->core;
	out.number = signal->number;
	out.data.data = (uint8_t *)(uintptr_t)signal->bytes;
	out.data.len = signal->length;
	control.message_case = PHUB__CONTROL__MESSAGE_SIGNAL;
	control.signal = &out;
	session_write(s, &control);
}

void session_write_broken(struct session *s, uint32_t core, const char *text)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Broken broken = PHUB__BROKEN__INIT;

	broken.core = core;
	broken.text = (char *)(uintptr_t)text;
	control.message_case = PHUB__CONTROL__MESSAGE_BROKEN;
	control.broken = &broken;
	session_write(s, &control);
}

void session_write_left(struct session *s)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Left left = PHUB__LEFT__INIT;

	control.message_case = PHUB__CONTROL__MESSAGE_LEFT;
	control.left = &left;
	session_write(s, &control);
	s->state = SESSION_DONE;
	s->done_ns = s->control->now_ns;
}
