/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seals of datagrams, taken over their first 24 bytes and then all behind the seal. For GMAC the head is gathered, with
 * as many bytes of the rest as make whole blocks of 16: libcrypto takes what is less than a block byte by byte. Where
 * the build has intel-ipsec-mb, and the CPU what it needs, that computes GMACs; what comes out is the same.
 */
#include "transport/seal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/modes.h>
#ifdef PHUB_IPSEC_MB
#include <intel-ipsec-mb.h>
#endif

#include "phub/base/crc.h"
#include "transport/le.h"

enum {
	SEAL_KEY_BYTES = 16, /* AES-128 */
	SEAL_IV_BYTES = 12,
	SEAL_BLOCK_BYTES = 16,
	SEAL_BEHIND = WIRE_SEAL_AT + WIRE_SEAL_BYTES, /* where it goes on */
	SEAL_GATHERED_MAX = WIRE_DATA_BYTES - WIRE_SEAL_BYTES + SEAL_BLOCK_BYTES,
	SEAL_ALIGN = 64,
};

struct seal {
	enum seal_kind kind;
	EVP_CIPHER_CTX *cipher; /* SEAL_GMAC: AES of one block; has the key */
	GCM128_CONTEXT *gcm;    /* all the rest of it */
	bool failed;            /* the cipher did not work */
	uint8_t tag[WIRE_SEAL_BYTES];
#ifdef PHUB_IPSEC_MB
	struct gcm_key_data *fast; /* the key for intel-ipsec-mb; NULL: libcrypto has it */
	struct gcm_context_data fast_context;
#endif
};

const char *seal_name(enum seal_kind kind)
{
	switch (kind) {
	case SEAL_GMAC:
		return "gmac";
	case SEAL_CRC:
		return "crc";
	case SEAL_NONE:
		return "none";
	}
	return "?";
}

/* ---- GMAC ---- */

#ifdef PHUB_IPSEC_MB
static IMB_MGR *seal_manager;

static void seal_ipsec_find(void)
{
	const uint64_t needed = IMB_FEATURE_AESNI | IMB_FEATURE_PCLMULQDQ;
	IMB_MGR *m = alloc_mb_mgr(0);

	if (!m)
		return;
	init_mb_mgr_auto(m, NULL);
	if ((m->features & needed) == needed && imb_get_errno(m) == 0)
		seal_manager = m;
	else
		free_mb_mgr(m);
}

struct IMB_MGR *seal_ipsec(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, seal_ipsec_find);
	return seal_manager;
}

/* 1: done; 0: libcrypto is to do it. */
static int seal_take_key_fast(struct seal *s, const uint8_t key[PROOF_KEY])
{
	if (!seal_ipsec())
		return 0;
	s->fast = aligned_alloc(SEAL_ALIGN, (sizeof(*s->fast) + SEAL_ALIGN - 1) / SEAL_ALIGN * SEAL_ALIGN);
	if (!s->fast)
		return -ENOMEM;
	IMB_AES128_GCM_PRE(seal_manager, key, s->fast);
	return 1;
}

static void seal_drop_key_fast(struct seal *s)
{
	if (s->fast)
		OPENSSL_cleanse(s->fast, sizeof(*s->fast));
	free(s->fast);
}

/* To s->tag; false: it has no key. */
static bool seal_gmac_fast(struct seal *s, const uint8_t iv[SEAL_IV_BYTES], const uint8_t *gathered,
	size_t gathered_bytes, const void *rest, size_t rest_bytes)
{
	if (!s->fast)
		return false;
	IMB_AES128_GMAC_INIT(seal_manager, s->fast, &s->fast_context, iv, SEAL_IV_BYTES);
	IMB_AES128_GMAC_UPDATE(seal_manager, s->fast, &s->fast_context, gathered, gathered_bytes);
	if (rest_bytes > 0)
		IMB_AES128_GMAC_UPDATE(seal_manager, s->fast, &s->fast_context, rest, rest_bytes);
	IMB_AES128_GMAC_FINALIZE(seal_manager, s->fast, &s->fast_context, s->tag, sizeof(s->tag));
	return true;
}
#else
static int seal_take_key_fast(struct seal *s, const uint8_t key[PROOF_KEY])
{
	(void)s;
	(void)key;
	return 0;
}

static void seal_drop_key_fast(struct seal *s)
{
	(void)s;
}

static bool seal_gmac_fast(struct seal *s, const uint8_t iv[SEAL_IV_BYTES], const uint8_t *gathered,
	size_t gathered_bytes, const void *rest, size_t rest_bytes)
{
	(void)s;
	(void)iv;
	(void)gathered;
	(void)gathered_bytes;
	(void)rest;
	(void)rest_bytes;
	return false;
}
#endif

/* libcrypto's block128_f. */
static void seal_block(const unsigned char in[16], unsigned char out[16], const void *of)
{
	struct seal *s = (struct seal *)(uintptr_t)of;
	int bytes = 0;

	if (EVP_EncryptUpdate(s->cipher, out, &bytes, in, SEAL_BLOCK_BYTES) != 1 || bytes != SEAL_BLOCK_BYTES)
		s->failed = true;
}

static int seal_take_key(struct seal *s, const uint8_t key[PROOF_KEY])
{
	int rc = seal_take_key_fast(s, key);

	if (rc != 0)
		return rc < 0 ? rc : 0;
	s->cipher = EVP_CIPHER_CTX_new();
	if (!s->cipher)
		return -ENOMEM;
	if (EVP_EncryptInit_ex(s->cipher, EVP_aes_128_ecb(), NULL, key, NULL) != 1 ||
		EVP_CIPHER_CTX_set_padding(s->cipher, 0) != 1)
		return -EIO;
	s->gcm = CRYPTO_gcm128_new(s, seal_block);
	return !s->gcm ? -ENOMEM : s->failed ? -EIO : 0;
}

enum seal_kind seal_kind(const struct seal *s)
{
	return s->kind;
}

/* ---- making and checking ---- */

int seal_create(enum seal_kind kind, const uint8_t key[PROOF_KEY], const struct proof_datagram *of, bool from_box,
	struct seal **out, struct err *e)
{
	_Static_assert((int)SEAL_KEY_BYTES <= (int)PROOF_KEY, "HKDF gives what AES takes");
	struct seal *s = calloc(1, sizeof(*s));
	uint8_t own[PROOF_KEY];
	int rc = 0;

	if (!s)
		return err_set(e, -ENOMEM, "no memory for the seal of a connection");
	s->kind = kind;
	if (kind == SEAL_GMAC) {
		rc = proof_datagram_key(key, of, from_box, own);
		if (rc == 0)
			rc = seal_take_key(s, own);
		OPENSSL_cleanse(own, sizeof(own));
	}
	if (rc < 0) {
		seal_destroy(s);
		return err_set(e, rc, "libcrypto makes no AES-128-GCM for datagrams: %s", strerror(-rc));
	}
	*out = s;
	return 0;
}

void seal_destroy(struct seal *s)
{
	if (!s)
		return;
	seal_drop_key_fast(s);
	CRYPTO_gcm128_release(s->gcm); /* both are wiped */
	EVP_CIPHER_CTX_free(s->cipher);
	OPENSSL_cleanse(s, sizeof(*s));
	free(s);
}

/*
 * To s->tag. GCM of libcrypto's modes.h over a cipher of one block: EVP_aes_128_gcm() looks up its parameters by name
 * for each datagram. Measured in one run on a Sapphire Rapids, at 88, 1448 and 8936 bytes: 104, 265 and 1046 ns, where
 * EVP takes 327, 500 and 1428.
 */
static bool seal_gmac(struct seal *s, uint64_t number, const uint8_t *gathered, size_t gathered_bytes, const void *rest,
	size_t rest_bytes)
{
	uint8_t iv[SEAL_IV_BYTES] = {0};

	le_put64(iv + SEAL_IV_BYTES - sizeof(number), number);
	if (seal_gmac_fast(s, iv, gathered, gathered_bytes, rest, rest_bytes))
		return true;
	CRYPTO_gcm128_setiv(s->gcm, iv, sizeof(iv));
	if (CRYPTO_gcm128_aad(s->gcm, gathered, gathered_bytes) != 0 ||
		(rest_bytes > 0 && CRYPTO_gcm128_aad(s->gcm, rest, rest_bytes) != 0))
		return false;
	CRYPTO_gcm128_tag(s->gcm, s->tag, sizeof(s->tag));
	return !s->failed;
}

static uint32_t seal_crc_pieces(const uint8_t *head, size_t head_bytes, const uint8_t *rest, size_t rest_bytes)
{
	uint32_t crc = crc_32c(0, head, WIRE_SEAL_AT);

	if (head_bytes > SEAL_BEHIND)
		crc = crc_32c(crc, head + SEAL_BEHIND, head_bytes - SEAL_BEHIND);
	return rest_bytes > 0 ? crc_32c(crc, rest, rest_bytes) : crc;
}

static bool seal_gmac_pieces(
	struct seal *s, uint64_t number, const uint8_t *head, size_t head_bytes, const uint8_t *rest, size_t rest_bytes)
{
	uint8_t gathered[SEAL_GATHERED_MAX];
	size_t bytes = head_bytes - WIRE_SEAL_BYTES;
	size_t more = -bytes % SEAL_BLOCK_BYTES;

	memcpy(gathered, head, WIRE_SEAL_AT);
	memcpy(gathered + WIRE_SEAL_AT, head + SEAL_BEHIND, head_bytes - SEAL_BEHIND);
	if (more > rest_bytes)
		more = rest_bytes;
	if (more > 0) {
		memcpy(gathered + bytes, rest, more);
		rest += more;
	}
	return seal_gmac(s, number, gathered, bytes + more, rest, rest_bytes - more);
}

/* The seal that a datagram must have, to s->tag. */
static bool seal_take(
	struct seal *s, uint64_t number, const uint8_t *head, size_t head_bytes, const uint8_t *rest, size_t rest_bytes)
{
	if (s->kind == SEAL_GMAC)
		return seal_gmac_pieces(s, number, head, head_bytes, rest, rest_bytes);
	memset(s->tag, 0, sizeof(s->tag));
	if (s->kind == SEAL_CRC)
		le_put32(s->tag, seal_crc_pieces(head, head_bytes, rest, rest_bytes));
	return true;
}

int seal_make(struct seal *s, uint64_t number, uint8_t *head, size_t head_bytes, const void *rest, size_t rest_bytes)
{
	assert(head_bytes >= WIRE_DATAGRAM_BYTES && head_bytes <= WIRE_DATA_BYTES);
	if (!seal_take(s, number, head, head_bytes, rest, rest_bytes))
		return -EIO;
	memcpy(head + WIRE_SEAL_AT, s->tag, sizeof(s->tag));
	return 0;
}

/* Takes as long wherever they differ. CRYPTO_memcmp() goes byte by byte: 16 of them in 25 ns. */
static bool seal_equal(const uint8_t a[WIRE_SEAL_BYTES], const uint8_t b[WIRE_SEAL_BYTES])
{
	uint64_t differ = (le_get64(a) ^ le_get64(b)) | (le_get64(a + 8) ^ le_get64(b + 8));

	_Static_assert(WIRE_SEAL_BYTES == 2 * sizeof(differ), "two words");
	return differ == 0;
}

bool seal_check(struct seal *s, uint64_t number, const uint8_t *datagram, size_t bytes)
{
	if (bytes < WIRE_DATAGRAM_BYTES || bytes > WIRE_DATAGRAM_MAX)
		return false;
	if (s->kind == SEAL_NONE)
		return true;
	return seal_take(s, number, datagram, WIRE_DATAGRAM_BYTES, datagram + WIRE_DATAGRAM_BYTES,
		       bytes - WIRE_DATAGRAM_BYTES) &&
	       seal_equal(s->tag, datagram + WIRE_SEAL_AT);
}
