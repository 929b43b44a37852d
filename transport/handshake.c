/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first three messages of a data connection, both sides, without I/O. The offsets below are the
 * protocol: changing one needs a new HANDSHAKE_VERSION.
 */
#include "transport/handshake.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "transport/le.h"

#define HANDSHAKE_MAGIC 0x53484850u /* "PHHS" in the order of the bytes */

enum handshake_type { HANDSHAKE_IS_NONCE = 1, HANDSHAKE_IS_HELLO = 2, HANDSHAKE_IS_WELCOME = 3 };

enum handshake_offset {
	HANDSHAKE_AT_MAGIC = 0,
	HANDSHAKE_AT_VERSION = 4,
	HANDSHAKE_AT_TYPE = 5,
	HANDSHAKE_AT_ZERO = 6,
	NONCE_AT_NONCE = 8,
	HELLO_AT_CORE = 8,
	HELLO_AT_ZERO = 12,
	HELLO_AT_SESSION = 16,
	HELLO_AT_MAC = 24,
	WELCOME_AT_CODE = 8,
	WELCOME_AT_ZERO = 12,
};

/* Empties the output and writes the common head of a message that is `bytes` long. */
static void handshake_put_head(struct handshake *h, enum handshake_type type, size_t bytes)
{
	memset(h->out, 0, sizeof(h->out));
	le_put32(h->out + HANDSHAKE_AT_MAGIC, HANDSHAKE_MAGIC);
	h->out[HANDSHAKE_AT_VERSION] = HANDSHAKE_VERSION;
	h->out[HANDSHAKE_AT_TYPE] = (uint8_t)type;
	h->out_have = (uint8_t)bytes;
	h->out_sent = 0;
}

static int handshake_check_head(const uint8_t *in, enum handshake_type type)
{
	if (le_get32(in + HANDSHAKE_AT_MAGIC) != HANDSHAKE_MAGIC)
		return -EPROTO;
	if (in[HANDSHAKE_AT_VERSION] != HANDSHAKE_VERSION)
		return -EPROTONOSUPPORT;
	if (in[HANDSHAKE_AT_TYPE] != type || in[HANDSHAKE_AT_ZERO] != 0 || in[HANDSHAKE_AT_ZERO + 1] != 0)
		return -EPROTO;
	return 0;
}

static void handshake_wipe_key(struct handshake *h)
{
	explicit_bzero(h->key, sizeof(h->key));
}

static int handshake_fail(struct handshake *h, int error)
{
	handshake_wipe_key(h);
	h->state = HANDSHAKE_FAILED;
	h->error = error;
	return error;
}

void handshake_begin_box(struct handshake *h, const uint8_t nonce[PROOF_NONCE])
{
	memset(h, 0, sizeof(*h));
	h->state = HANDSHAKE_AWAIT_HELLO;
	memcpy(h->nonce, nonce, PROOF_NONCE);
	handshake_put_head(h, HANDSHAKE_IS_NONCE, HANDSHAKE_NONCE_BYTES);
	memcpy(h->out + NONCE_AT_NONCE, nonce, PROOF_NONCE);
}

void handshake_begin_worker(struct handshake *h, uint64_t session, uint32_t core, const uint8_t key[PROOF_KEY])
{
	memset(h, 0, sizeof(*h));
	h->state = HANDSHAKE_AWAIT_NONCE;
	h->session = session;
	h->core = core;
	memcpy(h->key, key, PROOF_KEY);
}

static size_t handshake_message_bytes(enum handshake_state state)
{
	switch (state) {
	case HANDSHAKE_AWAIT_NONCE:
		return HANDSHAKE_NONCE_BYTES;
	case HANDSHAKE_AWAIT_HELLO:
		return HANDSHAKE_HELLO_BYTES;
	case HANDSHAKE_AWAIT_WELCOME:
		return HANDSHAKE_WELCOME_BYTES;
	case HANDSHAKE_AWAIT_ANSWER:
	case HANDSHAKE_DONE:
	case HANDSHAKE_FAILED:
		break;
	}
	return 0;
}

size_t handshake_wants(const struct handshake *h)
{
	size_t whole = handshake_message_bytes(h->state);

	return whole ? whole - h->in_have : 0;
}

static int handshake_take_nonce(struct handshake *h)
{
	int rc = handshake_check_head(h->in, HANDSHAKE_IS_NONCE);

	if (rc < 0)
		return rc;
	memcpy(h->nonce, h->in + NONCE_AT_NONCE, PROOF_NONCE);
	rc = proof_data(h->key, h->nonce, h->session, h->core, h->mac);
	if (rc < 0)
		return rc;
	handshake_wipe_key(h);
	handshake_put_head(h, HANDSHAKE_IS_HELLO, HANDSHAKE_HELLO_BYTES);
	le_put32(h->out + HELLO_AT_CORE, h->core);
	le_put64(h->out + HELLO_AT_SESSION, h->session);
	memcpy(h->out + HELLO_AT_MAC, h->mac, PROOF_MAC);
	h->state = HANDSHAKE_AWAIT_WELCOME;
	return 0;
}

static int handshake_take_hello(struct handshake *h)
{
	int rc = handshake_check_head(h->in, HANDSHAKE_IS_HELLO);

	if (rc < 0)
		return rc;
	if (le_get32(h->in + HELLO_AT_ZERO) != 0)
		return -EPROTO;
	/* A hello that overtakes our nonce cannot have been made from it. */
	if (h->out_sent < h->out_have)
		return -EPROTO;
	h->session = le_get64(h->in + HELLO_AT_SESSION);
	h->core = le_get32(h->in + HELLO_AT_CORE);
	memcpy(h->mac, h->in + HELLO_AT_MAC, PROOF_MAC);
	h->state = HANDSHAKE_AWAIT_ANSWER;
	return 0;
}

static int handshake_take_welcome(struct handshake *h)
{
	uint32_t code;
	int rc = handshake_check_head(h->in, HANDSHAKE_IS_WELCOME);

	if (rc < 0)
		return rc;
	if (le_get32(h->in + WELCOME_AT_ZERO) != 0 || h->out_sent < h->out_have)
		return -EPROTO;
	code = le_get32(h->in + WELCOME_AT_CODE);
	if (code != HANDSHAKE_WELCOME)
		return -handshake_code_errno(code);
	h->state = HANDSHAKE_DONE;
	return 0;
}

static int handshake_take(struct handshake *h)
{
	switch (h->state) {
	case HANDSHAKE_AWAIT_NONCE:
		return handshake_take_nonce(h);
	case HANDSHAKE_AWAIT_HELLO:
		return handshake_take_hello(h);
	case HANDSHAKE_AWAIT_WELCOME:
		return handshake_take_welcome(h);
	case HANDSHAKE_AWAIT_ANSWER:
	case HANDSHAKE_DONE:
	case HANDSHAKE_FAILED:
		break;
	}
	return -EINVAL;
}

int handshake_input(struct handshake *h, const void *data, size_t bytes)
{
	int rc;

	if (bytes > handshake_wants(h))
		return handshake_fail(h, -EINVAL);
	if (bytes == 0)
		return 0;
	memcpy(h->in + h->in_have, data, bytes);
	h->in_have = (uint8_t)(h->in_have + bytes);
	if (handshake_wants(h) > 0)
		return 0;
	rc = handshake_take(h);
	h->in_have = 0;
	return rc < 0 ? handshake_fail(h, rc) : 0;
}

const uint8_t *handshake_output(const struct handshake *h, size_t *bytes)
{
	*bytes = (size_t)(h->out_have - h->out_sent);
	return h->out + h->out_sent;
}

void handshake_sent(struct handshake *h, size_t bytes)
{
	assert(bytes <= (size_t)(h->out_have - h->out_sent));
	h->out_sent = (uint8_t)(h->out_sent + bytes);
}

void handshake_answer(struct handshake *h, int error)
{
	assert(h->state == HANDSHAKE_AWAIT_ANSWER);
	handshake_put_head(h, HANDSHAKE_IS_WELCOME, HANDSHAKE_WELCOME_BYTES);
	if (error) {
		le_put32(h->out + WELCOME_AT_CODE, handshake_code_from_errno(error));
		handshake_fail(h, -error);
	} else {
		h->state = HANDSHAKE_DONE;
	}
}

/* Each code's errno, by code. */
static const int handshake_errno[] = {
	[HANDSHAKE_WELCOME] = 0,
	[HANDSHAKE_DENIED] = EACCES,
	[HANDSHAKE_NO_SESSION] = ENOENT,
	[HANDSHAKE_NO_CORE] = ERANGE,
	[HANDSHAKE_TAKEN] = EALREADY,
	[HANDSHAKE_LIMIT] = ENOSPC,
	[HANDSHAKE_SHUTDOWN] = ESHUTDOWN,
	[HANDSHAKE_REFUSED] = ECONNREFUSED,
	[HANDSHAKE_BROKEN] = ECONNRESET,
	[HANDSHAKE_NO_WAY] = EHOSTUNREACH,
};

uint32_t handshake_code_from_errno(int error)
{
	for (uint32_t code = 0; code <= HANDSHAKE_NO_WAY; code++)
		if (handshake_errno[code] == error)
			return code;
	return HANDSHAKE_REFUSED;
}

int handshake_code_errno(uint32_t code)
{
	return code <= HANDSHAKE_NO_WAY ? handshake_errno[code] : ECONNREFUSED;
}
