/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a stranger to a member: version, which secret it has to prove, the proof. Until then it costs little and learns
 * little.
 */
#include "phub/control/session.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "phub/base/log.h"
#include "phub/control/above.h"
#include "phub/control/job.h"
#include "transport/rate.h"

bool session_is_ours(const struct session *s)
{
	return s->stream->peer_is_local && (s->stream->peer_uid == s->control->uid || s->stream->peer_uid == 0);
}

/* What a caller over loopback should know when the kernel tells nobody's user (a sandbox without sock_diag). */
static const char *session_nobody(const struct session *s)
{
	return s->stream->peer_is_local && s->stream->peer_uid < 0 ? " (the kernel did not say whose process calls)"
								   : "";
}

/* Which secret, or NULL for none, lets this session in? False when it was refused. */
static bool session_choose_admin(struct session *s)
{
	const struct config *config = s->control->config;

	if (session_is_ours(s)) {
		s->secret = NULL;
		return true;
	}
	if (config->admin_secret.bytes) {
		s->secret = &config->admin_secret;
		return true;
	}
	session_refuse(s, PHUB__ERROR_CODE__ERROR_DENIED,
		"only the box's own user over loopback may ask%s; from elsewhere set admin_secret_file at the box",
		session_nobody(s));
	return false;
}

/* A job that is known by name, but has no secret: this user alone, over loopback. */
static bool session_choose_ours(struct session *s, bool exists)
{
	s->secret = NULL;
	if (session_is_ours(s))
		return true;
	if (exists)
		session_refuse(s, PHUB__ERROR_CODE__ERROR_DENIED,
			"job '%s' has no secret, so only the box's own user over loopback may join it%s; give it "
			"a secret_file at the box",
			s->name, session_nobody(s));
	else
		session_refuse(s, PHUB__ERROR_CODE__ERROR_NO_JOB,
			"no job '%s' here, and only the box's own user over loopback may create one%s; list it at "
			"the box with a secret_file",
			s->name, session_nobody(s));
	return false;
}

static bool session_choose_secret(struct session *s)
{
	const struct config *config = s->control->config;
	const struct config_job *listed = config_find_job(config, s->name);

	if (listed && listed->secret.bytes) {
		s->secret = &listed->secret;
		return true;
	}
	if (listed)
		return session_choose_ours(s, true);
	switch (config->create) {
	case CONFIG_CREATE_SAME_UID:
		return session_choose_ours(s, job_find(s->control, s->name) != NULL);
	case CONFIG_CREATE_SECRET:
		s->secret = &config->create_secret;
		return true;
	case CONFIG_CREATE_NEVER:
		break;
	}
	session_refuse(s, PHUB__ERROR_CODE__ERROR_NO_JOB,
		"no job '%s' here, and none may be created (create: never); list it in the box's jobs", s->name);
	return false;
}

/* False when it was refused. Nothing but its first words has been read: no secret, no proof. */
static bool session_check_tls(struct session *s, const Phub__Hello *hello)
{
	if (s->control->config->tls != CONFIG_TLS_REQUIRE || s->stream->sealed)
		return true;
	if (hello->mirror)
		session_refuse(s, PHUB__ERROR_CODE__ERROR_DENIED,
			"the standby takes TLS alone (tls: require); set standby: phubs://HOST:PORT, and PHUB_TLS_CA "
			"or PHUB_TLS_PIN in the environment of phubd");
	else
		session_refuse(s, PHUB__ERROR_CODE__ERROR_DENIED,
			"the box takes TLS alone (tls: require); set PHUB_TLS_CA to the file of its certificate's "
			"authority, "
			"or PHUB_TLS_PIN to the certificate's SHA-256, which it logged when it started");
	return false;
}

/* The same to a box, whose operator reads it: what to set at which of the two. */
static void session_refuse_mirror(struct session *s, const Phub__Hello *hello)
{
	if (hello->encrypt)
		session_refuse(s, PHUB__ERROR_CODE__ERROR_UNSUPPORTED,
			"the job is encrypted, which its standby does not do (data_encryption: off); set "
			"data_encryption: allow at the standby");
	else
		session_refuse(s, PHUB__ERROR_CODE__ERROR_DENIED,
			"the job is not encrypted, and its standby takes those alone that are (data_encryption: "
			"require); set data_encryption: require at the box, too, so that its jobs must be, or allow at "
			"the standby");
}

/* Does the box encrypt what the job wants encrypted, and the other way round? False when it was refused. */
static bool session_check_encrypt(struct session *s, const Phub__Hello *hello)
{
	enum config_encryption how = s->control->config->data_encryption;

	if (hello->encrypt ? how != CONFIG_ENCRYPTION_OFF : how != CONFIG_ENCRYPTION_REQUIRE)
		return true;
	if (hello->mirror)
		session_refuse_mirror(s, hello);
	else if (hello->encrypt)
		session_refuse(s, PHUB__ERROR_CODE__ERROR_UNSUPPORTED,
			"job '%s' asks for encrypted data, which the box does not do (data_encryption: off); set "
			"data_encryption: allow there, or leave encrypt and PHUB_ENCRYPT away",
			hello->job);
	else
		session_refuse(s, PHUB__ERROR_CODE__ERROR_DENIED,
			"the box takes jobs with encrypted data alone (data_encryption: require); set encrypt at job "
			"'%s', or PHUB_ENCRYPT=1",
			hello->job);
	return false;
}

/* Without a secret, who hears the session has its keys. False when it was refused. */
static bool session_check_keys(struct session *s)
{
	if (!s->encrypt || (s->secret && s->secret->length > 0))
		return true;
	session_refuse(s, PHUB__ERROR_CODE__ERROR_DENIED,
		"job '%s' asks for encrypted data and has no secret, from which its keys would follow; list it at the "
		"box with a secret_file, or set create: secret there",
		s->name);
	return false;
}

/* A box that looks for a root has come to one that is not it: it asks elsewhere, or etcd again, whatever else may be
 * wrong here. */
static bool session_is_astray(const struct session *s)
{
	const struct control *c = s->control;

	return s->root ? s->root != c->above.epoch : above_epoch(c) < s->root_least;
}

/* Has proved its secret: it is none of the strangers. */
static void session_prove(struct session *s)
{
	s->proved = true;
	s->control->stranger_count--;
	rate_give_back(s->control->rate, s->stream->source_known ? s->stream->source : NULL);
}

/* What is said of who is above is known: by etcd, or by a job that is there. */
static void session_turn_away(struct session *s)
{
	const struct control *c = s->control;
	uint64_t epoch = above_epoch(c), wanted = s->root ? s->root : s->root_least;
	const char *later = s->root ? "" : " or a later one";
	bool etcd = c->config->uplink_name[0] && c->above.known;
	char above[340];

	session_prove(s);
	above_name(c, above, sizeof(above));
	if (epoch)
		session_refuse(s, PHUB__ERROR_CODE__ERROR_BUSY,
			"the root of epoch %" PRIu64 "%s is looked for, and this one is of epoch %" PRIu64, wanted,
			later, epoch);
	else if (etcd || above_reaches(c))
		session_refuse(s, PHUB__ERROR_CODE__ERROR_BUSY, "it is no root, and is below %s%s", above,
			etcd ? " by etcd" : ", which is up");
	else
		session_refuse(s, PHUB__ERROR_CODE__ERROR_BUSY, "it is no root");
}

/* Is what Hello says possible at all? False when it was refused. */
static bool session_check_hello(struct session *s, const Phub__Hello *hello)
{
	if (hello->version < WIRE_VERSION || hello->version_min > WIRE_VERSION) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_VERSION,
			"the box speaks protocol version %u, and '%.40s' versions %u to %u; install the same release "
			"at both ends",
			WIRE_VERSION, hello->software, hello->version_min, hello->version);
		return false;
	}
	if (hello->nonce.len != PROOF_NONCE) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "hello with a nonce of %zu bytes; it has %d",
			hello->nonce.len, PROOF_NONCE);
		return false;
	}
	if (hello->admin + hello->mirror + hello->moves + hello->below > 1 ||
		(hello->mirror && (hello->rank != 0 || hello->world != 1)) || (hello->below && hello->rank != 0) ||
		(hello->peer && !hello->below)) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL,
			"hello of an administrator, a box and a worker at once, or of a box that is not rank 0 of 1");
		return false;
	}
	if (hello->admin)
		return true;
	if (!config_job_name_valid(hello->job)) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_NO_JOB,
			"'%.80s' is no name for a job; allowed: 1 to %u printable characters without / and spaces",
			hello->job, SPEC_NAME_BYTES - 1);
		return false;
	}
	if (hello->world < 1 || hello->world > WIRE_WORLD_MAX || hello->rank >= hello->world) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_RANK,
			"job '%s': rank %u of a world of %u is out of range; ranks are 0 to world - 1, and a world is "
			"1 to %u",
			hello->job, hello->rank, hello->world, WIRE_WORLD_MAX);
		return false;
	}
	return session_check_encrypt(s, hello);
}

void session_hear_hello(struct session *s, const Phub__Hello *hello)
{
	if (!session_check_tls(s, hello) || !session_check_hello(s, hello))
		return;
	s->admin = hello->admin;
	s->encrypt = hello->encrypt && !hello->admin;
	s->mirror = hello->mirror;
	s->moves = hello->moves;
	s->below = hello->below;
	if (s->below)
		names_take(s->control, s->stream->peer, hello->host, hello->port, hello->name, &s->box);
	s->peer = hello->peer;
	s->exchange = hello->exchange;
	s->root = hello->below && !hello->peer ? hello->root : 0;
	s->root_least = hello->below && !hello->peer ? hello->root_least : 0;
	s->astray = session_is_astray(s);
	if (s->peer && hello->n_transports == 1) /* else the one by which its connections come */
		snprintf(s->peer_transport, sizeof(s->peer_transport), "%s", hello->transports[0]);
	s->rank = hello->rank;
	s->world = hello->world;
	memcpy(s->client_nonce, hello->nonce.data, PROOF_NONCE);
	strncpy(s->name, hello->job, sizeof(s->name) - 1);
	if (s->admin && strlen(hello->job) >= sizeof(s->name)) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "a name of %zu characters", strlen(hello->job));
		return;
	}
	if (!(s->admin ? session_choose_admin(s) : session_choose_secret(s)) || !session_check_keys(s))
		return;
	if (proof_nonce(s->box_nonce) < 0) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_LIMIT, "the box has no random numbers");
		return;
	}
	session_write_challenge(s);
	if (s->state == SESSION_AWAIT_HELLO)
		s->state = SESSION_AWAIT_PROOF;
}

/* 0, -EACCES when the proof is wrong, or -EIO. `mac` is the answer, by which the box proves itself. */
static int session_check_proof(struct session *s, const Phub__Proof *proof, uint8_t mac[PROOF_MAC])
{
	const void *secret = s->secret ? (const void *)s->secret->bytes : "";
	size_t bytes = s->secret ? s->secret->length : 0;
	struct proof_session seen = {.job = s->name, .rank = s->rank, .world = s->world, .encrypt = s->encrypt};
	uint8_t expected[PROOF_MAC];

	if (s->stream->sealed)
		seen.channel = s->stream->channel;
	memcpy(seen.client_nonce, s->client_nonce, PROOF_NONCE);
	memcpy(seen.box_nonce, s->box_nonce, PROOF_NONCE);
	if (proof_control(secret, bytes, &seen, false, expected) < 0 ||
		proof_control(secret, bytes, &seen, true, mac) < 0 ||
		proof_session_key(secret, bytes, &seen, s->key) < 0)
		return -EIO;
	return proof->mac.len == PROOF_MAC && proof_equal(expected, proof->mac.data) ? 0 : -EACCES;
}

static void session_refuse_proof(struct session *s, int rc)
{
	const char *what =
		rc == -EIO  ? "the box cannot check the proof"
		: s->admin  ? "wrong admin secret; set PHUB_ADMIN_SECRET or PHUB_ADMIN_SECRET_FILE to the "
			      "one that the box has"
		: s->mirror ? "box and standby have different secrets; give both the same one, by secret_file in "
			      "their list of jobs, or create_secret_file"
		: s->peer   ? "boxes of the job have different secrets; give all the same one, by secret_file in "
			      "their list of jobs, or create_secret_file"
		: s->below  ? "this box and the one above have different secrets; give both the same one, by "
			      "secret_file in their list of jobs, or create_secret_file"
			    : "wrong secret; set PHUB_SECRET or PHUB_SECRET_FILE to the one that the box has";

	if (s->admin)
		session_refuse(s, PHUB__ERROR_CODE__ERROR_DENIED, "%s", what);
	else
		session_refuse(s, PHUB__ERROR_CODE__ERROR_DENIED, "job '%s': %s", s->name, what);
}

void session_hear_proof(struct session *s, const Phub__Proof *proof)
{
	uint8_t mac[PROOF_MAC];
	int rc = session_check_proof(s, proof, mac);

	if (rc < 0) {
		session_refuse_proof(s, rc);
		return;
	}
	s->astray = session_is_astray(s);
	if (s->astray) {
		session_turn_away(s);
		return;
	}
	if (!s->admin && job_join(s) < 0)
		return; /* refused by it */
	s->state = s->admin ? SESSION_ADMIN : SESSION_MEMBER;
	s->reader.bytes_max = 0;
	session_prove(s);
	session_write_welcome(s, mac);
}
