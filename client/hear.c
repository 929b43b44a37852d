/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Understands the box's control messages. They come from a machine that may be broken or hostile: what has no place
 * in the present state, or does not hold together, ends the session with -EPROTO and nothing else happens.
 */
#include "client/hear.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/session.h"
#include "client/say.h"
#include "topology/placement.h"
#include "transport/control.pb-c.h"
#include "transport/crypt.h"

#define HEAR_MS 1000000ull

enum {
	HEAR_HEARTBEAT_MS = 1000, /* when the box names none */
	HEAR_LOST_MS = 10000,
	HEAR_WINDOW_MAX = 1 << 20,
};

static void hear_broken(struct client_session *s, const char *what)
{
	client_session_fail(s, -EPROTO, "box %s broke the protocol: %s", s->box, what);
}

/* The box's words, made safe to print. */
static void hear_copy(char *out, size_t out_bytes, const char *text)
{
	size_t i = 0;

	for (; text && text[i] && i + 1 < out_bytes; i++)
		out[i] = iscntrl((unsigned char)text[i]) ? '?' : text[i];
	out[i] = '\0';
}

int client_hear_errno(uint32_t code)
{
	switch (code) {
	case PHUB__ERROR_CODE__ERROR_VERSION:
		return -EPROTONOSUPPORT;
	case PHUB__ERROR_CODE__ERROR_DENIED:
		return -EACCES;
	case PHUB__ERROR_CODE__ERROR_NO_JOB:
		return -ENOENT;
	case PHUB__ERROR_CODE__ERROR_RANK:
		return -ERANGE;
	case PHUB__ERROR_CODE__ERROR_TAKEN:
		return -EADDRINUSE;
	case PHUB__ERROR_CODE__ERROR_MISMATCH:
		return -EBADMSG;
	case PHUB__ERROR_CODE__ERROR_LIMIT:
		return -ENOMEM;
	case PHUB__ERROR_CODE__ERROR_PROTOCOL:
		return -EPROTO;
	case PHUB__ERROR_CODE__ERROR_LOST:
		return -EOWNERDEAD;
	case PHUB__ERROR_CODE__ERROR_NAN:
		return -EDOM;
	case PHUB__ERROR_CODE__ERROR_NO_WEIGHTS:
		return -ENODATA;
	case PHUB__ERROR_CODE__ERROR_UNSUPPORTED:
		return -ENOTSUP;
	case PHUB__ERROR_CODE__ERROR_SHUTDOWN:
		return -ESHUTDOWN;
	case PHUB__ERROR_CODE__ERROR_OPERATOR:
		return -ECANCELED;
	case PHUB__ERROR_CODE__ERROR_BUSY:
		return -EBUSY;
	default:
		return -EREMOTEIO;
	}
}

/* The box has ended the job because something was lost, and says what to look at: what to do then, where this worker
 * does not resume by itself, and the box, an older one, has not said it. */
static const char *hear_advice(const struct client_session *s, const Phub__Error *error, const char *text)
{
	const char *ends = strstr(text, "The job ends here");

	if (error->code != PHUB__ERROR_CODE__ERROR_LOST || s->settings->resume_ms || !ends)
		return "";
	return strstr(ends, "look at that") && !strstr(ends, "start ") ? ", then start the job again" : "";
}

static void hear_error(struct client_session *s, const Phub__Error *error, uint64_t now_ns)
{
	const char *subject, *why, *advice;
	char text[400];

	if (s->state == SESSION_LEAVING) {
		if (error->code == PHUB__ERROR_CODE__ERROR_SHUTDOWN && client_session_can_move(s))
			client_session_fail(s, -ECONNRESET, "box %s went down while the job was left", s->box);
		else
			client_session_fail(s, -ESHUTDOWN, "left the job");
		return;
	}
	hear_copy(text, sizeof(text), error->text);
	if (error->code == PHUB__ERROR_CODE__ERROR_BUSY && s->state < SESSION_JOINED) {
		client_session_retry(s, now_ns, -EBUSY, text);
		return;
	}
	why = client_session_trim(s, *text ? text : "refused without a reason", &subject);
	advice = hear_advice(s, error, text);
	if (error->code == PHUB__ERROR_CODE__ERROR_NO_JOB && s->state < SESSION_JOINED && *s->other.host)
		client_session_retry(s, now_ns, client_hear_errno(error->code), why);
	else if (s->state == SESSION_STARTED)
		client_session_doom(
			s, now_ns, client_hear_errno(error->code), "box %s: %s%s%s", s->box, subject, why, advice);
	else
		client_session_fail(s, client_hear_errno(error->code), "box %s: %s%s%s", s->box, subject, why, advice);
}

/* ---- joining ---- */

static void hear_proof_session(const struct client_session *s, const uint8_t *box_nonce, struct proof_session *out)
{
	memcpy(out->client_nonce, s->nonce, PROOF_NONCE);
	memcpy(out->box_nonce, box_nonce, PROOF_NONCE);
	out->job = s->settings->url.job;
	out->rank = s->settings->rank;
	out->world = s->settings->world;
	out->channel = s->stream && s->stream->sealed ? s->stream->channel : NULL;
	out->encrypt = s->settings->encrypt;
}

/* Only one end has a secret: what to do about it, at a worker, and at a box that calls another. */
static void hear_unequal(struct client_session *s, bool there)
{
	if (s->call)
		client_session_fail(s, -EACCES,
			"the %s %s has %s for the job, and this box has %s: give it the same one, by secret_file in "
			"its list of jobs, or create_secret_file",
			s->peer    ? "box beside"
			: s->below ? "box above"
				   : "standby",
			s->box, there ? "a secret" : "no secret", there ? "none" : "one");
	else if (there)
		client_session_fail(
			s, -EACCES, "the job has a secret on box %s: set PHUB_SECRET or PHUB_SECRET_FILE", s->box);
	else
		client_session_fail(s, -EACCES,
			"box %s knows no secret for the job, but this worker was given one; unset PHUB_SECRET and "
			"PHUB_SECRET_FILE, or give the job a secret at the box",
			s->box);
}

static void hear_challenge(struct client_session *s, const Phub__Challenge *challenge)
{
	const char *secret = s->settings->secret ? s->settings->secret : "";
	struct proof_session proof;
	uint8_t mac[PROOF_MAC];

	if (s->state != SESSION_HELLO || challenge->nonce.len != PROOF_NONCE) {
		hear_broken(s, "a challenge out of order, or without a nonce");
		return;
	}
	if (challenge->version != SESSION_VERSION) {
		client_session_fail(s, -EPROTONOSUPPORT, "box %s speaks version %" PRIu32 ", this library version %u",
			s->box, challenge->version, SESSION_VERSION);
		return;
	}
	if (challenge->secret != (*secret != '\0')) {
		hear_unequal(s, challenge->secret);
		return;
	}
	if (challenge->encrypt != s->settings->encrypt) {
		client_session_fail(s, -ENOTSUP,
			"box %s knows nothing of encrypted data; install the same release at both ends", s->box);
		return;
	}
	hear_proof_session(s, challenge->nonce.data, &proof);
	if (proof_control(secret, strlen(secret), &proof, false, mac) < 0 ||
		proof_control(secret, strlen(secret), &proof, true, s->expected) < 0 ||
		proof_session_key(secret, strlen(secret), &proof, s->key) < 0 || client_say_proof(s, mac) < 0) {
		client_session_fail(s, -EIO, "cannot make the proof of the secret for box %s", s->box);
		return;
	}
	s->state = SESSION_PROOF;
}

static bool hear_addresses(struct client_session *s, const Phub__Welcome *welcome)
{
	s->address_count = 0;
	for (size_t i = 0; i < welcome->n_addresses && s->address_count < SESSION_ADDRESSES_MAX; i++) {
		const Phub__Address *from = welcome->addresses[i];
		struct client_address *to = &s->addresses[s->address_count];

		if (strlen(from->transport) >= sizeof(to->transport) || strlen(from->address) >= sizeof(to->address))
			return false;
		hear_copy(to->transport, sizeof(to->transport), from->transport);
		hear_copy(to->address, sizeof(to->address), from->address);
		s->address_count++;
	}
	return true;
}

static uint64_t hear_ms(uint32_t ms, uint32_t otherwise)
{
	return (ms ? ms : otherwise) * HEAR_MS;
}

static void hear_welcome(struct client_session *s, const Phub__Welcome *welcome, uint64_t now_ns)
{
	if (s->state != SESSION_PROOF || welcome->mac.len != PROOF_MAC) {
		hear_broken(s, "a welcome out of order, or without a proof");
		return;
	}
	if (!proof_equal(welcome->mac.data, s->expected)) {
		client_session_fail(s, -EACCES,
			"what answers at %s does not know the job's secret: not the box it claims to be", s->box);
		return;
	}
	if (welcome->cores < 1 || welcome->cores > PLACEMENT_CORE_COUNT_MAX || !hear_addresses(s, welcome)) {
		hear_broken(s, "a welcome with impossible cores or addresses");
		return;
	}
	s->standby = (struct url_box){0};
	if (*welcome->standby && url_parse_box(welcome->standby, &s->standby, NULL) < 0) {
		hear_broken(s, "a welcome with a standby that has no address");
		return;
	}
	s->sibling = (struct url_box){0};
	if (*welcome->sibling && url_parse_box(welcome->sibling, &s->sibling, NULL) < 0) {
		hear_broken(s, "a welcome with a sibling that has no address");
		return;
	}
	s->unmapped = welcome->unmapped;
	s->id = welcome->session;
	s->cores = welcome->cores;
	s->root_told = welcome->root;
	s->chunk_bytes = welcome->chunk_bytes;
	s->lost_ns = hear_ms(welcome->lost_ms, HEAR_LOST_MS);
	s->heartbeat_every_ns = hear_ms(welcome->heartbeat_ms, HEAR_HEARTBEAT_MS) / 2;
	s->heartbeat_ns = now_ns + s->heartbeat_every_ns;
	s->state = SESSION_JOINED;
}

/* ---- running ---- */

static void hear_hyper(const Phub__Hypers *from, struct phub_hyper *to)
{
	to->lr = from->lr;
	to->momentum = from->momentum;
	to->dampening = from->dampening;
	to->weight_decay = from->weight_decay;
	to->beta1 = from->beta1;
	to->beta2 = from->beta2;
	to->eps = from->eps;
	to->lr_decay = from->lr_decay;
	to->initial_accumulator_value = from->initial_accumulator;
}

/* What a worker is told besides that comes to a job that runs. False: the session is over. */
static bool hear_joined(struct client_session *s, const Phub__Start *start)
{
	uint64_t *rounds;

	if ((start->n_rounds != 1 && start->n_rounds != s->keyring->count) ||
		start->n_groups != s->settings->group_count) {
		hear_broken(s, "a start in mid-run that does not fit the keys");
		return false;
	}
	rounds = malloc(start->n_rounds * sizeof(*rounds));
	if (!rounds) {
		client_session_fail(s, -ENOMEM, "no memory for the rounds of %zu keys", start->n_rounds);
		return false;
	}
	memcpy(rounds, start->rounds, start->n_rounds * sizeof(*rounds));
	free(s->start.rounds);
	s->start.rounds = rounds;
	s->start.round_count = start->n_rounds;
	s->start.hyper = start->hyper;
	for (size_t i = 0; i < start->n_groups; i++)
		hear_hyper(start->groups[i], &s->settings->groups[i]);
	s->generation = start->generation;
	s->barrier = start->barrier;
	s->barrier_done = start->barrier;
	s->barrier_told = start->barrier;
	return true;
}

/* What a worker is told besides whose job goes on here. False: the session is over. */
static bool hear_moved(struct client_session *s, const Phub__Start *start)
{
	uint64_t *rounds;

	if (!s->moves || start->n_chunk_rounds != s->keyring->plan.chunk_count || start->barrier > s->barrier ||
		start->barrier < s->barrier_done) {
		hear_broken(s, "a start after a move that does not fit what was before");
		return false;
	}
	rounds = malloc(start->n_chunk_rounds * sizeof(*rounds));
	if (!rounds) {
		client_session_fail(s, -ENOMEM, "no memory for the rounds of %zu chunks", start->n_chunk_rounds);
		return false;
	}
	memcpy(rounds, start->chunk_rounds, start->n_chunk_rounds * sizeof(*rounds));
	free(s->start.chunk_rounds);
	s->start.chunk_rounds = rounds;
	s->start.hyper = start->hyper;
	s->generation = start->generation;
	s->moves = false;
	return true;
}

static void hear_ranks(uint64_t *bits, const uint32_t *ranks, size_t count, bool are)
{
	for (size_t i = 0; i < count; i++) {
		const uint64_t bit = UINT64_C(1) << ranks[i] % 64;

		if (ranks[i] < WIRE_WORLD_MAX)
			bits[ranks[i] / 64] = are ? bits[ranks[i] / 64] | bit : bits[ranks[i] / 64] & ~bit;
	}
}

static bool hear_has(const uint64_t *bits, uint32_t rank)
{
	return rank < WIRE_WORLD_MAX && bits[rank / 64] >> rank % 64 & 1;
}

/* In place of an earlier one, or of that of who was lost long ago. */
static void hear_why(struct client_gone *gone, uint32_t rank, const char *text)
{
	unsigned at = 0;

	while (at < gone->why_count && at < SESSION_WHYS && gone->whys[at].rank != rank)
		at++;
	if (at == gone->why_count || at == SESSION_WHYS)
		at = gone->why_count++ % SESSION_WHYS;
	gone->whys[at].rank = rank;
	hear_copy(gone->whys[at].text, sizeof(gone->whys[at].text), text);
}

static void hear_members(struct client_session *s, const Phub__Members *m)
{
	struct client_gone *gone = &s->gone;

	s->epoch = m->epoch;
	s->present = m->present;
	hear_ranks(gone->lost, m->lost, m->n_lost, true);
	hear_ranks(gone->lost, m->left, m->n_left, false);
	hear_ranks(gone->left, m->lost, m->n_lost, false);
	hear_ranks(gone->left, m->left, m->n_left, true);
	for (size_t i = 0; i < m->n_lost; i++)
		if (hear_has(gone->lost, m->lost[i])) /* else it has left, or cannot be */
			hear_why(gone, m->lost[i], i < m->n_why && m->why[i] < m->n_whys ? m->whys[m->why[i]] : "");
}

/* The key of an encrypted job's results. False: the session is over. */
static bool hear_data_key(struct client_session *s, const Phub__Start *start, uint8_t key[PROOF_KEY])
{
	if (!s->settings->encrypt)
		return true;
	if (start->data_key.len == CRYPT_WRAPPED_BYTES &&
		crypt_unwrap(s->key, start->job, start->generation, start->data_key.data, key) == 0)
		return true;
	hear_broken(s, "a start without the key of its results, which are to be encrypted");
	return false;
}

static void hear_start(struct client_session *s, const Phub__Start *start)
{
	uint8_t *copy, key[PROOF_KEY] = {0};

	if (start->generation != s->generation && !start->joined && !start->moved && s->state >= SESSION_JOINED)
		return; /* of a table that is forgotten */
	if (s->state != SESSION_STARTING || s->keys_sent < s->keyring->count) {
		hear_broken(s, "a start that nobody asked for");
		return;
	}
	if (start->window < 1 || start->window > HEAR_WINDOW_MAX || start->core_of_chunk.len == 0) {
		hear_broken(s, "a start without a window or a placement");
		return;
	}
	if (start->moved != s->moves || (start->moved && start->joined)) {
		hear_broken(s, "a start of another kind than was asked for");
		return;
	}
	if (!hear_data_key(s, start, key) || (start->joined && !hear_joined(s, start)))
		return;
	if (start->moved && !hear_moved(s, start))
		return;
	copy = malloc(start->core_of_chunk.len);
	if (!copy) {
		client_session_fail(s, -ENOMEM, "no memory for the placement of %zu bytes", start->core_of_chunk.len);
		return;
	}
	memcpy(copy, start->core_of_chunk.data, start->core_of_chunk.len);
	free(s->start.core_of_chunk);
	s->epoch = 0;
	if (!start->moved)
		s->gone = (struct client_gone){.why_count = 0};
	s->start = (struct client_start){
		.joined = start->joined || (start->moved && s->start.joined),
		.moved = start->moved,
		.chunk_rounds = s->start.chunk_rounds,
		.barrier = start->barrier,
		.rounds = s->start.rounds,
		.round_count = s->start.round_count,
		.hyper = s->start.hyper,
		.job = start->job,
		.epoch = start->epoch,
		.window = start->window,
		.result_offset = start->result_offset,
		.core_of_chunk = copy,
		.core_bytes = start->core_of_chunk.len,
	};
	memcpy(s->start.data_key, key, sizeof(key));
	explicit_bzero(key, sizeof(key));
	s->state = SESSION_STARTED;
}

static void hear_notice(struct client_session *s, const Phub__Notice *notice, uint64_t now_ns)
{
	struct client_notice *n = &s->notices[s->notice_next];

	s->notice_next = (s->notice_next + 1) % SESSION_NOTICES;
	*n = (struct client_notice){
		.valid = true,
		.subject = {.about = notice->about, .chunk = notice->chunk, .round = notice->round},
		.at_ns = now_ns,
		.missing_count = notice->missing_count,
	};
	for (size_t i = 0; i < notice->n_missing && i < SESSION_MISSING_MAX; i++)
		n->missing[n->missing_known++] = notice->missing[i];
	if (n->missing_count < n->missing_known)
		n->missing_count = n->missing_known;
	hear_copy(n->text, sizeof(n->text), notice->text);
}

static void hear_barrier_done(struct client_session *s, const Phub__BarrierDone *done)
{
	if (done->id > s->barrier || done->id < s->barrier_done)
		hear_broken(s, "the end of a barrier that nobody asked for");
	else
		s->barrier_done = done->id;
}

/* For the transport, as it is: it judges. */
static void hear_signal(struct client_session *s, const Phub__Signal *m)
{
	struct signal signal = {
		.session = s->id, .core = m->core, .number = m->number, .length = (uint32_t)m->data.len};

	if (m->data.len > sizeof(signal.bytes)) {
		hear_broken(s, "a signal that is too long");
		return;
	}
	if (!s->carries)
		return; /* of a handshake that is over */
	memcpy(signal.bytes, m->data.data, m->data.len);
	s->carries->ops->signal_give(s->carries, &signal);
}

/* Where there is no room: the lane finds out by itself. */
static void hear_broke(struct client_session *s, const Phub__Broken *m)
{
	if (s->broken_count == SESSION_BROKEN_MAX || s->state != SESSION_STARTED)
		return;
	s->broken[s->broken_count].core = m->core;
	snprintf(s->broken[s->broken_count].why, sizeof(s->broken[0].why), "%s", m->text);
	s->broken_count++;
}

static void hear_message(struct client_session *s, const Phub__Control *c, uint64_t now_ns)
{
	bool joined = s->state >= SESSION_JOINED;

	if (c->message_case == PHUB__CONTROL__MESSAGE_ERROR && s->call)
		s->call(s->call_arg, c);
	if (c->message_case == PHUB__CONTROL__MESSAGE_ERROR)
		hear_error(s, c->error, now_ns);
	else if (c->message_case == PHUB__CONTROL__MESSAGE_CHALLENGE)
		hear_challenge(s, c->challenge);
	else if (c->message_case == PHUB__CONTROL__MESSAGE_WELCOME)
		hear_welcome(s, c->welcome, now_ns);
	else if (!joined)
		hear_broken(s, "a message before the welcome");
	else if (s->call && c->message_case != PHUB__CONTROL__MESSAGE_HEARTBEAT)
		s->call(s->call_arg, c);
	else if (c->message_case == PHUB__CONTROL__MESSAGE_START)
		hear_start(s, c->start);
	else if (c->message_case == PHUB__CONTROL__MESSAGE_SIGNAL)
		hear_signal(s, c->signal);
	else if (c->message_case == PHUB__CONTROL__MESSAGE_BROKEN)
		hear_broke(s, c->broken);
	else if (c->message_case == PHUB__CONTROL__MESSAGE_MEMBERS)
		hear_members(s, c->members);
	else if (c->message_case == PHUB__CONTROL__MESSAGE_NOTICE)
		hear_notice(s, c->notice, now_ns);
	else if (c->message_case == PHUB__CONTROL__MESSAGE_BARRIER_DONE)
		hear_barrier_done(s, c->barrier_done);
	else if (c->message_case == PHUB__CONTROL__MESSAGE_LEFT && s->state == SESSION_LEAVING)
		client_session_fail(s, -ESHUTDOWN, "left the job");
	else if (c->message_case != PHUB__CONTROL__MESSAGE_HEARTBEAT)
		hear_broken(s, "a message that no worker expects");
}

void client_session_take(struct client_session *s, const uint8_t *frame, size_t bytes, uint64_t now_ns)
{
	Phub__Control *c;

	if (s->state == SESSION_OVER || s->state == SESSION_DIALLING)
		return;
	c = phub__control__unpack(NULL, bytes, frame);
	if (!c) {
		hear_broken(s, "a frame that is no message");
		return;
	}
	hear_message(s, c, now_ns);
	phub__control__free_unpacked(c, NULL);
}
