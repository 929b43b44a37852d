/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AES-256-GCM over payloads, by EVP: what that costs for each message besides (some 300 ns, see seal.c) is little for a
 * chunk of 32 KiB. 256 bits, because weights may have to stay a secret for longer than a rack lives, and because it
 * costs little: `openssl speed -bytes 32768 -evp aes-256-gcm` says 2.7 GB/s where aes-128-gcm has 3.0 (Sapphire
 * Rapids, a loaded machine). Where the build has intel-ipsec-mb, and the CPU what it needs, that does it: the same
 * bytes, at 8.6 GB/s.
 */
#include "transport/crypt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#ifdef PHUB_IPSEC_MB
#include <intel-ipsec-mb.h>
#endif

#include "transport/le.h"
#include "transport/seal.h"

enum {
	CRYPT_NONCE_BYTES = 12,
	CRYPT_BOUND_BYTES = 44,
	CRYPT_WRAP_BOUND_BYTES = 8,
	CRYPT_AT_TAG = 8, /* of the trailer */
	CRYPT_AT_ZEROS = CRYPT_AT_TAG + CRYPT_TAG_BYTES,
	CRYPT_ALIGN = 64,
};

struct crypt {
	EVP_CIPHER_CTX *cipher;
	uint8_t key[PROOF_KEY];
	bool opens, keyed;
#ifdef PHUB_IPSEC_MB
	struct gcm_key_data *fast; /* the key for intel-ipsec-mb; NULL: libcrypto has it */
	struct gcm_context_data fast_context;
#endif
};

#ifdef PHUB_IPSEC_MB
static int crypt_create_fast(struct crypt *c)
{
	size_t bytes = (sizeof(*c->fast) + CRYPT_ALIGN - 1) / CRYPT_ALIGN * CRYPT_ALIGN;

	if (!seal_ipsec())
		return 0;
	c->fast = aligned_alloc(CRYPT_ALIGN, bytes);
	return c->fast ? 0 : -ENOMEM;
}

const char *crypt_library(void)
{
	return seal_ipsec() ? "intel-ipsec-mb" : "libcrypto";
}

static void crypt_destroy_fast(struct crypt *c)
{
	if (c->fast)
		OPENSSL_cleanse(c->fast, sizeof(*c->fast));
	free(c->fast);
}

/* False: libcrypto is to take it. */
static bool crypt_take_key_fast(struct crypt *c)
{
	if (c->fast)
		IMB_AES256_GCM_PRE(seal_ipsec(), c->key, c->fast);
	return c->fast;
}

/* 0 or -EBADMSG; 1: libcrypto is to do it. */
static int crypt_run_fast(struct crypt *c, const uint8_t nonce[CRYPT_NONCE_BYTES], const uint8_t *bound,
	int bound_bytes, const uint8_t *in, uint8_t *out, int bytes, uint8_t tag[CRYPT_TAG_BYTES])
{
	uint8_t made[CRYPT_TAG_BYTES];

	if (!c->fast)
		return 1;
	if (c->opens)
		IMB_AES256_GCM_DEC(seal_ipsec(), c->fast, &c->fast_context, out, in, (uint64_t)bytes, nonce, bound,
			(uint64_t)bound_bytes, made, sizeof(made));
	else
		IMB_AES256_GCM_ENC(seal_ipsec(), c->fast, &c->fast_context, out, in, (uint64_t)bytes, nonce, bound,
			(uint64_t)bound_bytes, tag, CRYPT_TAG_BYTES);
	return c->opens && CRYPTO_memcmp(made, tag, sizeof(made)) != 0 ? -EBADMSG : 0;
}
#else
static int crypt_create_fast(struct crypt *c)
{
	(void)c;
	return 0;
}

const char *crypt_library(void)
{
	return "libcrypto";
}

static void crypt_destroy_fast(struct crypt *c)
{
	(void)c;
}

static bool crypt_take_key_fast(struct crypt *c)
{
	(void)c;
	return false;
}

static int crypt_run_fast(struct crypt *c, const uint8_t nonce[CRYPT_NONCE_BYTES], const uint8_t *bound,
	int bound_bytes, const uint8_t *in, uint8_t *out, int bytes, uint8_t tag[CRYPT_TAG_BYTES])
{
	(void)c;
	(void)nonce;
	(void)bound;
	(void)bound_bytes;
	(void)in;
	(void)out;
	(void)bytes;
	(void)tag;
	return 1;
}
#endif

int crypt_create(bool opens, struct crypt **out, struct err *e)
{
	struct crypt *c = calloc(1, sizeof(*c));

	if (c)
		c->cipher = EVP_CIPHER_CTX_new();
	if (!c || !c->cipher || crypt_create_fast(c) < 0 ||
		EVP_CipherInit_ex(c->cipher, EVP_aes_256_gcm(), NULL, NULL, NULL, !opens) != 1) {
		crypt_destroy(c);
		return err_set(e, -ENOMEM, "libcrypto makes no AES-256-GCM");
	}
	c->opens = opens;
	*out = c;
	return 0;
}

void crypt_destroy(struct crypt *c)
{
	if (!c)
		return;
	crypt_destroy_fast(c);
	EVP_CIPHER_CTX_free(c->cipher); /* is wiped */
	OPENSSL_cleanse(c, sizeof(*c));
	free(c);
}

int crypt_take_key(struct crypt *c, const uint8_t key[PROOF_KEY])
{
	if (c->keyed && CRYPTO_memcmp(c->key, key, PROOF_KEY) == 0)
		return 0;
	memcpy(c->key, key, PROOF_KEY);
	c->keyed = crypt_take_key_fast(c) || EVP_CipherInit_ex(c->cipher, NULL, NULL, key, NULL, !c->opens) == 1;
	return c->keyed ? 1 : -EIO;
}

/* ---- the cipher ---- */

/* `tag` is written, or must be right. */
static int crypt_run(struct crypt *c, const uint8_t nonce[CRYPT_NONCE_BYTES], const uint8_t *bound, int bound_bytes,
	const uint8_t *in, uint8_t *out, int bytes, uint8_t tag[CRYPT_TAG_BYTES])
{
	EVP_CIPHER_CTX *x = c->cipher;
	uint8_t none[CRYPT_TAG_BYTES];
	int used, rc;

	if (!c->keyed)
		return -EIO;
	rc = crypt_run_fast(c, nonce, bound, bound_bytes, in, out, bytes, tag);
	if (rc <= 0)
		return rc;
	if (EVP_CipherInit_ex(x, NULL, NULL, NULL, nonce, !c->opens) != 1 ||
		EVP_CipherUpdate(x, NULL, &used, bound, bound_bytes) != 1 ||
		EVP_CipherUpdate(x, out, &used, in, bytes) != 1 || used != bytes)
		return -EIO;
	if (c->opens && EVP_CIPHER_CTX_ctrl(x, EVP_CTRL_GCM_SET_TAG, CRYPT_TAG_BYTES, tag) != 1)
		return -EIO;
	if (EVP_CipherFinal_ex(x, none, &used) != 1)
		return c->opens ? -EBADMSG : -EIO;
	return c->opens || EVP_CIPHER_CTX_ctrl(x, EVP_CTRL_GCM_GET_TAG, CRYPT_TAG_BYTES, tag) == 1 ? 0 : -EIO;
}

static void crypt_nonce(uint32_t core, uint64_t counter, uint8_t out[CRYPT_NONCE_BYTES])
{
	le_put32(out, core);
	le_put64(out + 4, counter);
}

/* All of a header that is not the transport's. */
static void crypt_bind(const struct wire_header *h, uint8_t out[CRYPT_BOUND_BYTES])
{
	le_put32(out, h->type | (uint32_t)h->coded << 8);
	le_put32(out + 4, h->length);
	le_put32(out + 8, h->job);
	le_put32(out + 12, h->generation);
	le_put32(out + 16, h->epoch);
	le_put32(out + 20, h->chunk);
	le_put32(out + 24, h->rank);
	le_put64(out + 28, h->round);
	le_put32(out + 36, h->hyper);
	le_put32(out + 40, h->count);
}

/* ---- messages ---- */

int crypt_seal(struct crypt *c, const struct wire_header *header, uint32_t core, uint64_t counter, const void *plain,
	uint8_t *out)
{
	uint32_t bytes = header->length - WIRE_TRAILER_BYTES;
	uint8_t nonce[CRYPT_NONCE_BYTES], bound[CRYPT_BOUND_BYTES];
	uint8_t *trailer = out + bytes;

	crypt_nonce(core, counter, nonce);
	crypt_bind(header, bound);
	le_put64(trailer, counter);
	memset(trailer + CRYPT_AT_ZEROS, 0, WIRE_TRAILER_BYTES - CRYPT_AT_ZEROS);
	return crypt_run(c, nonce, bound, sizeof(bound), plain, out, (int)bytes, trailer + CRYPT_AT_TAG);
}

uint64_t crypt_counter(const uint8_t *sealed, uint32_t length)
{
	return length >= WIRE_TRAILER_BYTES ? le_get64(sealed + length - WIRE_TRAILER_BYTES) : 0;
}

int crypt_open(struct crypt *c, const struct wire_header *header, uint32_t core, const uint8_t *sealed, uint8_t *out)
{
	static const uint8_t zeros[WIRE_TRAILER_BYTES - CRYPT_AT_ZEROS];
	uint32_t bytes = header->length - WIRE_TRAILER_BYTES;
	uint8_t nonce[CRYPT_NONCE_BYTES], bound[CRYPT_BOUND_BYTES], tag[CRYPT_TAG_BYTES];
	const uint8_t *trailer = sealed + bytes;

	if (header->length < WIRE_TRAILER_BYTES || memcmp(trailer + CRYPT_AT_ZEROS, zeros, sizeof(zeros)) != 0)
		return -EBADMSG;
	crypt_nonce(core, le_get64(trailer), nonce);
	crypt_bind(header, bound);
	memcpy(tag, trailer + CRYPT_AT_TAG, sizeof(tag));
	return crypt_run(c, nonce, bound, sizeof(bound), sealed, out, (int)bytes, tag) == 0 ? 0 : -EBADMSG;
}

/* ---- the key of results ---- */

/* Salt, key, tag. Each salt makes a key of its own, which is used once. */
static int crypt_wrap_run(bool opens, const uint8_t session[PROOF_KEY], uint32_t job, uint32_t generation,
	const uint8_t *in, const uint8_t salt[PROOF_NONCE], uint8_t *out, uint8_t tag[CRYPT_TAG_BYTES])
{
	static const uint8_t nonce[CRYPT_NONCE_BYTES];
	uint8_t bound[CRYPT_WRAP_BOUND_BYTES], key[PROOF_KEY];
	struct crypt *c;
	int rc = crypt_create(opens, &c, NULL);

	if (rc < 0)
		return -EIO;
	le_put32(bound, job);
	le_put32(bound + 4, generation);
	rc = proof_wrap_key(session, salt, key);
	if (rc == 0)
		rc = crypt_take_key(c, key);
	if (rc >= 0)
		rc = crypt_run(c, nonce, bound, sizeof(bound), in, out, PROOF_KEY, tag);
	OPENSSL_cleanse(key, sizeof(key));
	crypt_destroy(c);
	return rc;
}

int crypt_wrap(const uint8_t session[PROOF_KEY], uint32_t job, uint32_t generation, const uint8_t key[PROOF_KEY],
	uint8_t out[CRYPT_WRAPPED_BYTES])
{
	uint8_t *sealed = out + PROOF_NONCE;

	if (proof_nonce(out) < 0)
		return -EIO;
	return crypt_wrap_run(false, session, job, generation, key, out, sealed, sealed + PROOF_KEY);
}

int crypt_unwrap(const uint8_t session[PROOF_KEY], uint32_t job, uint32_t generation,
	const uint8_t in[CRYPT_WRAPPED_BYTES], uint8_t key[PROOF_KEY])
{
	uint8_t tag[CRYPT_TAG_BYTES];
	int rc;

	memcpy(tag, in + PROOF_NONCE + PROOF_KEY, sizeof(tag));
	rc = crypt_wrap_run(true, session, job, generation, in + PROOF_NONCE, in, key, tag);
	if (rc < 0)
		OPENSSL_cleanse(key, PROOF_KEY);
	return rc;
}
