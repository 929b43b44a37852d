/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proofs of a shared secret. Every MAC is taken over input that begins with a label of its own, which fixes its
 * length, so that no proof can be replayed as another: the client's not as the box's, a
 * session's not as a data connection's. The one variable field, the job's name, goes in as its hash.
 */
#include "transport/proof.h"

#include <errno.h>
#include <string.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include "transport/le.h"

enum {
	LABEL_BYTES = 16,
	SECRET_BYTES_MAX = 1 << 20, /* libcrypto counts a key's bytes in an int */
	SESSION_INPUT_BYTES = LABEL_BYTES + 2 * PROOF_NONCE + 4 + 4 + SHA256_DIGEST_LENGTH,
	SESSION_INPUT_BYTES_MAX = SESSION_INPUT_BYTES + PROOF_CHANNEL,
	DATA_INPUT_BYTES = LABEL_BYTES + PROOF_NONCE + 8 + 4,
	WAY_INPUT_BYTES = LABEL_BYTES + 4 + PROOF_PLACE,
	DATAGRAM_INPUT_BYTES = LABEL_BYTES + 5 * 4,
};

/* Exactly LABEL_BYTES each, without the terminating NUL. */
static const char label_client[] = "phub 1 client   ";
static const char label_box[] = "phub 1 box      ";
static const char label_key[] = "phub 1 key      ";
/* The same over TLS: what was proved there is worth nothing on a plain connection. */
static const char label_tls_client[] = "phub 1 tls clnt ";
static const char label_tls_box[] = "phub 1 tls box  ";
static const char label_tls_key[] = "phub 1 tls key  ";
static const char label_data[] = "phub 1 data     ";
static const char label_datagram[] = "phub 1 datagram ";
static const char label_way[] = "phub 1 way      ";
static const char label_push[] = "phub 1 push     ";
static const char label_wrap[] = "phub 1 wrap     ";
/* In place of the last byte of a session's labels, where its job's payloads are encrypted. */
static const uint8_t label_encrypt = 'e';

static uint8_t *proof_put(uint8_t *at, const void *field, size_t bytes)
{
	memcpy(at, field, bytes);
	return at + bytes;
}

static uint8_t *proof_put32(uint8_t *at, uint32_t value)
{
	le_put32(at, value);
	return at + sizeof(value);
}

static uint8_t *proof_put64(uint8_t *at, uint64_t value)
{
	le_put64(at, value);
	return at + sizeof(value);
}

/* What a session's MACs and its key are made of: how many bytes, or -EIO. */
static int proof_session_input(const char *label, const struct proof_session *s, uint8_t in[SESSION_INPUT_BYTES_MAX])
{
	uint8_t job[SHA256_DIGEST_LENGTH];
	uint8_t *at = in;

	if (!SHA256((const uint8_t *)s->job, strlen(s->job), job))
		return -EIO;
	at = proof_put(at, label, LABEL_BYTES);
	if (s->encrypt)
		at[-1] = label_encrypt;
	at = proof_put(at, s->client_nonce, PROOF_NONCE);
	at = proof_put(at, s->box_nonce, PROOF_NONCE);
	at = proof_put32(at, s->rank);
	at = proof_put32(at, s->world);
	at = proof_put(at, job, sizeof(job));
	if (s->channel)
		at = proof_put(at, s->channel, PROOF_CHANNEL);
	return (int)(at - in);
}

static int proof_mac(const void *key, size_t key_bytes, const uint8_t *in, size_t in_bytes, uint8_t mac[PROOF_MAC])
{
	unsigned bytes = 0;

	if (key_bytes > SECRET_BYTES_MAX)
		return -EIO;
	if (!HMAC(EVP_sha256(), key_bytes ? key : "", (int)key_bytes, in, in_bytes, mac, &bytes) || bytes != PROOF_MAC)
		return -EIO;
	return 0;
}

int proof_nonce(uint8_t nonce[PROOF_NONCE])
{
	return RAND_bytes(nonce, PROOF_NONCE) == 1 ? 0 : -EIO;
}

int proof_control(
	const void *secret, size_t secret_bytes, const struct proof_session *s, bool from_box, uint8_t mac[PROOF_MAC])
{
	const char *plain = from_box ? label_box : label_client;
	const char *sealed = from_box ? label_tls_box : label_tls_client;
	uint8_t in[SESSION_INPUT_BYTES_MAX];
	int rc = proof_session_input(s->channel ? sealed : plain, s, in);

	return rc < 0 ? rc : proof_mac(secret, secret_bytes, in, (size_t)rc, mac);
}

static int proof_hkdf(const void *secret, size_t secret_bytes, const uint8_t *salt, size_t salt_bytes, uint8_t *info,
	size_t info_bytes, uint8_t key[PROOF_KEY])
{
	EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
	EVP_KDF_CTX *context = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
	OSSL_PARAM params[] = {
		OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char *)"SHA256", 0),
		OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)secret, secret_bytes),
		OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, (void *)salt, salt_bytes),
		OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, info_bytes),
		OSSL_PARAM_construct_end(),
	};
	int rc = context && EVP_KDF_derive(context, key, PROOF_KEY, params) == 1 ? 0 : -EIO;

	EVP_KDF_CTX_free(context);
	EVP_KDF_free(kdf);
	return rc;
}

int proof_session_key(const void *secret, size_t secret_bytes, const struct proof_session *s, uint8_t key[PROOF_KEY])
{
	static const char empty[] = "";
	uint8_t info[SESSION_INPUT_BYTES_MAX];
	uint8_t salt[2 * PROOF_NONCE];
	int rc = proof_session_input(s->channel ? label_tls_key : label_key, s, info);

	if (rc < 0)
		return rc;
	if (secret_bytes > SECRET_BYTES_MAX)
		return -EIO;
	proof_put(proof_put(salt, s->client_nonce, PROOF_NONCE), s->box_nonce, PROOF_NONCE);
	/* With no secret the key is merely unguessable by those who did not see the nonces. */
	return proof_hkdf(secret_bytes ? secret : empty, secret_bytes, salt, sizeof(salt), info, (size_t)rc, key);
}

int proof_data(const uint8_t key[PROOF_KEY], const uint8_t nonce[PROOF_NONCE], uint64_t session, uint32_t core,
	uint8_t mac[PROOF_MAC])
{
	uint8_t in[DATA_INPUT_BYTES];
	uint8_t *at = in;

	at = proof_put(at, label_data, LABEL_BYTES);
	at = proof_put(at, nonce, PROOF_NONCE);
	at = proof_put64(at, session);
	proof_put32(at, core);
	return proof_mac(key, PROOF_KEY, in, sizeof(in), mac);
}

int proof_datagram_key(
	const uint8_t key[PROOF_KEY], const struct proof_datagram *of, bool from_box, uint8_t out[PROOF_KEY])
{
	uint8_t info[DATAGRAM_INPUT_BYTES];
	uint8_t *at = info;

	at = proof_put(at, label_datagram, LABEL_BYTES);
	at = proof_put32(at, of->core);
	at = proof_put32(at, from_box);
	at = proof_put32(at, of->dial);
	at = proof_put32(at, of->box);
	proof_put32(at, of->worker);
	return proof_hkdf(key, PROOF_KEY, of->nonce, PROOF_NONCE, info, sizeof(info), out);
}

int proof_push_key(const uint8_t key[PROOF_KEY], uint8_t out[PROOF_KEY])
{
	static const uint8_t salt[PROOF_KEY]; /* RFC 5869's, where there is none */
	uint8_t info[LABEL_BYTES];

	proof_put(info, label_push, LABEL_BYTES);
	return proof_hkdf(key, PROOF_KEY, salt, sizeof(salt), info, sizeof(info), out);
}

int proof_wrap_key(const uint8_t key[PROOF_KEY], const uint8_t salt[PROOF_NONCE], uint8_t out[PROOF_KEY])
{
	uint8_t info[LABEL_BYTES];

	proof_put(info, label_wrap, LABEL_BYTES);
	return proof_hkdf(key, PROOF_KEY, salt, PROOF_NONCE, info, sizeof(info), out);
}

int proof_way(const uint8_t key[PROOF_KEY], uint32_t connection, const uint8_t place[PROOF_PLACE], uint64_t *way)
{
	uint8_t in[WAY_INPUT_BYTES];
	uint8_t mac[PROOF_MAC];
	int rc;

	proof_put(proof_put32(proof_put(in, label_way, LABEL_BYTES), connection), place, PROOF_PLACE);
	rc = proof_mac(key, PROOF_KEY, in, sizeof(in), mac);
	if (rc < 0)
		return rc;
	*way = le_get64(mac);
	*way += *way == 0;
	return 0;
}

bool proof_equal(const uint8_t a[PROOF_MAC], const uint8_t b[PROOF_MAC])
{
	return CRYPTO_memcmp(a, b, PROOF_MAC) == 0;
}
