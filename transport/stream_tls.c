/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OpenSSL between two pieces of memory: what came lies in one, what is to go in the other, and the stream below carries
 * both. A connection reads from below only when OpenSSL has used up what it was given, and takes nothing more to write
 * before all of the last record is out: so neither piece grows.
 */
#include "transport/stream_tls.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/sha.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "transport/sock.h"

enum {
	STREAM_TLS_READ = 16384,  /* from below, at a time */
	STREAM_TLS_WRITE = 16384, /* plain bytes in one record */
	STREAM_TLS_SNIFF = 3,     /* type, and the two bytes of the version that never change */
};

/* tls-exporter of RFC 9266. */
static const char stream_tls_label[] = "EXPORTER-Channel-Binding";

struct stream_tls {
	SSL_CTX *ctx;
	bool by_ca, by_pin;
	uint8_t pin[STREAM_TLS_PIN_BYTES]; /* the box's own; at a worker the one it wants, if by_pin */
};

enum stream_tls_state {
	STREAM_TLS_NEW,    /* at the box: nobody knows yet what it is going to be */
	STREAM_TLS_PLAIN,  /* it is none */
	STREAM_TLS_SHAKES, /* its own handshake runs */
	STREAM_TLS_OPEN,
	STREAM_TLS_FAILED, /* `error` says how */
};

struct stream_tls_end {
	struct stream stream;
	struct stream *inner;
	SSL *ssl;
	BIO *in, *out; /* the ssl's to free */
	enum stream_tls_state state;
	int error;
	bool ended;     /* below, in reading */
	struct err own; /* why it failed by itself, or code 0 */
	uint8_t first[STREAM_TLS_SNIFF];
	uint8_t first_have, first_read;
};

/* ---- what is known of one's own, and of the other ---- */

static const char *stream_tls_reason(void)
{
	unsigned long code = ERR_peek_last_error();
	const char *text = code ? ERR_reason_error_string(code) : NULL;

	return text ? text : "OpenSSL gives no reason";
}

/* Nobody is there to be asked for the password of a file. */
static int stream_tls_no_password(char *buf, int bytes, int writing, void *arg)
{
	(void)buf;
	(void)bytes;
	(void)writing;
	(void)arg;
	return 0;
}

static int stream_tls_create(bool box, struct stream_tls **out, struct err *e)
{
	struct stream_tls *tls = calloc(1, sizeof(*tls));

	ERR_clear_error();
	if (tls)
		tls->ctx = SSL_CTX_new(box ? TLS_server_method() : TLS_client_method());
	if (!tls || !tls->ctx || !SSL_CTX_set_min_proto_version(tls->ctx, TLS1_3_VERSION) ||
		!SSL_CTX_set_max_proto_version(tls->ctx, TLS1_3_VERSION)) {
		stream_tls_close(tls);
		return err_set(e, -ENOMEM, "OpenSSL makes no TLS 1.3: %s", stream_tls_reason());
	}
	SSL_CTX_set_default_passwd_cb(tls->ctx, stream_tls_no_password);
	SSL_CTX_set_session_cache_mode(tls->ctx, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_options(tls->ctx, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
	SSL_CTX_set_num_tickets(tls->ctx, 0);
	SSL_CTX_set_max_early_data(tls->ctx, 0);
	/* What a slow way did not take is written again from where it then lies. */
	SSL_CTX_set_mode(tls->ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	*out = tls;
	return 0;
}

static bool stream_tls_digest(const X509 *cert, uint8_t pin[STREAM_TLS_PIN_BYTES])
{
	unsigned bytes = 0;

	return cert && X509_digest(cert, EVP_sha256(), pin, &bytes) && bytes == STREAM_TLS_PIN_BYTES;
}

static int stream_tls_use_key(SSL_CTX *ctx, const char *file, struct err *e)
{
	int fd = open(file, O_RDONLY | O_CLOEXEC);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "re");
	EVP_PKEY *key = NULL;
	struct stat st;
	int rc = 0;

	if (!f) {
		rc = err_set(e, -errno, "%s: %s; the file must hold the private key", file, strerror(errno));
		if (fd >= 0)
			close(fd);
		return rc;
	}
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		rc = err_set(e, -EINVAL, "%s: not a file", file);
	else if (st.st_mode & (S_IRWXG | S_IRWXO))
		rc = err_set(e, -EACCES, "%s: others than its owner may open the private key; type chmod 600 %s", file,
			file);
	else
		key = PEM_read_PrivateKey(f, NULL, stream_tls_no_password, NULL);
	fclose(f);
	if (rc == 0 && !key)
		rc = err_set(e, -EINVAL, "%s: no private key in PEM without a password: %s", file, stream_tls_reason());
	if (rc == 0 && (SSL_CTX_use_PrivateKey(ctx, key) != 1 || SSL_CTX_check_private_key(ctx) != 1))
		rc = err_set(e, -EINVAL, "%s: not the key of the certificate: %s", file, stream_tls_reason());
	EVP_PKEY_free(key);
	return rc;
}

int stream_tls_box(const char *cert, const char *key, struct stream_tls **out, struct err *e)
{
	struct stream_tls *tls = NULL;
	int rc = stream_tls_create(true, &tls, e);

	if (rc < 0)
		return rc;
	if (access(cert, R_OK) < 0)
		rc = err_set(e, -errno, "%s: %s; the file must hold the certificate", cert, strerror(errno));
	else if (SSL_CTX_use_certificate_chain_file(tls->ctx, cert) != 1 ||
		 !stream_tls_digest(SSL_CTX_get0_certificate(tls->ctx), tls->pin))
		rc = err_set(e, -EINVAL, "%s: no certificate in PEM: %s", cert, stream_tls_reason());
	if (rc == 0)
		rc = stream_tls_use_key(tls->ctx, key, e);
	ERR_clear_error();
	if (rc < 0)
		stream_tls_close(tls);
	else
		*out = tls;
	return rc;
}

/* 64 hexadecimal digits, perhaps with colons and "sha256:" before them. */
static bool stream_tls_read_pin(const char *text, uint8_t pin[STREAM_TLS_PIN_BYTES])
{
	static const char digits[] = "0123456789abcdef";
	unsigned have = 0;

	if (strncasecmp(text, "sha256:", 7) == 0)
		text += 7;
	memset(pin, 0, STREAM_TLS_PIN_BYTES);
	for (; *text; text++) {
		const char *digit = strchr(digits, tolower((unsigned char)*text));

		if (*text == ':' && have && have % 2 == 0)
			continue;
		if (!digit || have == 2 * STREAM_TLS_PIN_BYTES)
			return false;
		pin[have / 2] = (uint8_t)(pin[have / 2] << 4 | (digit - digits));
		have++;
	}
	return have == 2 * STREAM_TLS_PIN_BYTES;
}

/* In place of OpenSSL's own judgement of the box's certificate: by the authority, the pin, or both. */
static int stream_tls_judge(X509_STORE_CTX *store, void *arg)
{
	const struct stream_tls *tls = arg;
	uint8_t pin[STREAM_TLS_PIN_BYTES];

	if (tls->by_ca && X509_verify_cert(store) != 1)
		return 0;
	if (!tls->by_pin)
		return 1;
	if (stream_tls_digest(X509_STORE_CTX_get0_cert(store), pin) && CRYPTO_memcmp(pin, tls->pin, sizeof(pin)) == 0)
		return 1;
	X509_STORE_CTX_set_error(store, X509_V_ERR_APPLICATION_VERIFICATION);
	return 0;
}

int stream_tls_worker(const char *ca, const char *pin, struct stream_tls **out, struct err *e)
{
	struct stream_tls *tls = NULL;
	int rc;

	if (!ca && !pin)
		return err_set(e, -EINVAL,
			"TLS needs to know the box: PHUB_TLS_CA names a file with the authority of its certificate, or "
			"PHUB_TLS_PIN its SHA-256, which the box logs when it starts");
	rc = stream_tls_create(false, &tls, e);
	if (rc < 0)
		return rc;
	tls->by_ca = ca != NULL;
	tls->by_pin = pin != NULL;
	if (ca && access(ca, R_OK) < 0)
		rc = err_set(e, -errno, "PHUB_TLS_CA: %s: %s", ca, strerror(errno));
	else if (ca && SSL_CTX_load_verify_file(tls->ctx, ca) != 1)
		rc = err_set(e, -EINVAL, "PHUB_TLS_CA: %s: no certificate in PEM: %s", ca, stream_tls_reason());
	else if (pin && !stream_tls_read_pin(pin, tls->pin))
		rc = err_set(e, -EINVAL,
			"PHUB_TLS_PIN is '%.80s'; it must be a SHA-256, in 64 hexadecimal digits; ask the box's log, "
			"or "
			"openssl x509 -noout -fingerprint -sha256 -in CERTIFICATE",
			pin);
	ERR_clear_error();
	if (rc < 0) {
		stream_tls_close(tls);
		return rc;
	}
	SSL_CTX_set_verify(tls->ctx, SSL_VERIFY_PEER, NULL);
	SSL_CTX_set_cert_verify_callback(tls->ctx, stream_tls_judge, tls);
	*out = tls;
	return 0;
}

void stream_tls_close(struct stream_tls *tls)
{
	if (!tls)
		return;
	SSL_CTX_free(tls->ctx);
	free(tls);
}

void stream_tls_pin(const struct stream_tls *tls, char out[STREAM_TLS_PIN_TEXT])
{
	for (unsigned i = 0; i < STREAM_TLS_PIN_BYTES; i++)
		snprintf(out + 2 * i, 3, "%02x", tls->pin[i]);
}

/* ---- a connection ---- */

static int stream_tls_fail(struct stream_tls_end *s, int code, const char *what, const char *why)
{
	s->state = STREAM_TLS_FAILED;
	s->error = code;
	err_set(&s->own, code, "%s: %s", what, why);
	return code;
}

/* What is said of the stream below holds of this one too, until it has something to say itself. */
static void stream_tls_tell(struct stream_tls_end *s)
{
	s->stream.joining = s->state == STREAM_TLS_NEW || s->state == STREAM_TLS_SHAKES;
	s->stream.unsent = s->out && BIO_ctrl_pending(s->out) > 0;
	s->stream.why = s->own.code ? s->own : s->inner->why;
}

/* Carries down what OpenSSL wants to say. 0 when all of it went, -EAGAIN, or what broke below. */
static int stream_tls_push(struct stream_tls_end *s)
{
	char *data;
	long have;

	while ((have = BIO_get_mem_data(s->out, &data)) > 0) {
		uint8_t away[STREAM_TLS_READ];
		ssize_t n = s->inner->ops->write(s->inner, data, (size_t)have);

		if (n <= 0)
			return n == 0 ? -EAGAIN : (int)n;
		for (ssize_t left = n; left > 0;) {
			int bytes = left < (ssize_t)sizeof(away) ? (int)left : (int)sizeof(away);

			if (BIO_read(s->out, away, bytes) != bytes)
				return -EIO;
			left -= bytes;
		}
	}
	return 0;
}

/* Carries up what has come. 0 when there is something new, also the end; else the error below. */
static int stream_tls_pull(struct stream_tls_end *s)
{
	uint8_t buf[STREAM_TLS_READ];
	ssize_t n;

	if (s->ended)
		return -EPIPE;
	n = s->inner->ops->read(s->inner, buf, sizeof(buf));
	if (n < 0)
		return (int)n;
	if (n == 0) {
		s->ended = true;
		BIO_set_mem_eof_return(s->in, 0);
		return 0;
	}
	return BIO_write(s->in, buf, (int)n) == n ? 0 : -ENOMEM;
}

/* OpenSSL has given up: says to whom it may concern what it was. */
static int stream_tls_broken(struct stream_tls_end *s)
{
	long verdict = SSL_get_verify_result(s->ssl);
	const struct stream_tls *tls = SSL_get_app_data(s->ssl);
	int code = -EPROTO;

	if (s->state == STREAM_TLS_SHAKES && !SSL_is_server(s->ssl) && verdict != X509_V_OK) {
		if (verdict == X509_V_ERR_APPLICATION_VERIFICATION)
			code = stream_tls_fail(s, -EACCES, "the box's certificate is not that of PHUB_TLS_PIN",
				"another box, or it has a new certificate");
		else
			code = stream_tls_fail(s, -EACCES,
				tls->by_ca ? "the box's certificate does not hold before PHUB_TLS_CA"
					   : "the box's certificate",
				X509_verify_cert_error_string(verdict));
	} else if (s->state == STREAM_TLS_SHAKES && !SSL_is_server(s->ssl)) {
		stream_tls_fail(s, code,
			"no TLS 1.3 with what answers, though this end insists; has the box tls, tls_cert and tls_key?",
			stream_tls_reason());
	} else {
		stream_tls_fail(s, code, "TLS", stream_tls_reason());
	}
	ERR_clear_error();
	(void)stream_tls_push(s); /* the alert: it goes or it does not */
	return code;
}

/* After a call of OpenSSL that gave `n`: 0 to call it again, or what the caller of this stream is to hear. */
static int stream_tls_next(struct stream_tls_end *s, int n)
{
	int what = SSL_get_error(s->ssl, n);
	int pushed, rc;

	if (what != SSL_ERROR_WANT_READ && what != SSL_ERROR_WANT_WRITE && !s->ended)
		return stream_tls_broken(s);
	pushed = stream_tls_push(s);
	if (pushed < 0 && pushed != -EAGAIN)
		return pushed;
	if (s->ended)
		return -EPIPE;
	rc = stream_tls_pull(s);
	return rc;
}

static int stream_tls_bind(struct stream_tls_end *s)
{
	if (SSL_export_keying_material(s->ssl, s->stream.channel, sizeof(s->stream.channel), stream_tls_label,
		    sizeof(stream_tls_label) - 1, NULL, 0, 1) != 1)
		return stream_tls_broken(s);
	s->state = STREAM_TLS_OPEN;
	s->stream.sealed = true;
	return 0;
}

/* At the box: is it TLS at all? 0 when that is known. */
static int stream_tls_sniff(struct stream_tls_end *s)
{
	while (s->first_have < STREAM_TLS_SNIFF) {
		ssize_t n = s->inner->ops->read(s->inner, s->first + s->first_have, STREAM_TLS_SNIFF - s->first_have);

		if (n < 0)
			return (int)n;
		if (n == 0)
			return -EPIPE;
		s->first_have += (uint8_t)n;
		/* A frame that began like this would have more than 64 KiB: no Hello has. */
		if (s->first[0] != 0x16 || (s->first_have > 1 && s->first[1] != 3) ||
			(s->first_have > 2 && s->first[2] > 4)) {
			s->state = STREAM_TLS_PLAIN;
			SSL_free(s->ssl);
			s->ssl = NULL;
			s->in = NULL;
			s->out = NULL;
			return 0;
		}
	}
	s->state = STREAM_TLS_SHAKES;
	return BIO_write(s->in, s->first, STREAM_TLS_SNIFF) == STREAM_TLS_SNIFF ? 0 : -ENOMEM;
}

/* Goes on until bytes can be carried. 0, -EAGAIN, or what ended it: -EPIPE when the peer hung up. */
static int stream_tls_join(struct stream_tls_end *s)
{
	int rc = s->state == STREAM_TLS_NEW ? stream_tls_sniff(s) : 0;

	while (rc == 0 && s->state == STREAM_TLS_SHAKES) {
		int n;

		ERR_clear_error();
		n = SSL_do_handshake(s->ssl);
		rc = n == 1 ? stream_tls_bind(s) : stream_tls_next(s, n);
	}
	if (rc == 0 && s->state == STREAM_TLS_OPEN) {
		int pushed = stream_tls_push(s);

		if (pushed < 0 && pushed != -EAGAIN)
			rc = pushed;
	}
	return s->state == STREAM_TLS_FAILED ? s->error : rc;
}

static ssize_t stream_tls_read_plain(struct stream_tls_end *s, void *buf, size_t bytes)
{
	size_t left = (size_t)(s->first_have - s->first_read);

	if (!left)
		return s->inner->ops->read(s->inner, buf, bytes);
	if (left > bytes)
		left = bytes;
	memcpy(buf, s->first + s->first_read, left);
	s->first_read += (uint8_t)left;
	return (ssize_t)left;
}

static ssize_t stream_tls_read_sealed(struct stream_tls_end *s, void *buf, size_t bytes)
{
	for (;;) {
		int want = bytes < STREAM_TLS_READ ? (int)bytes : STREAM_TLS_READ;
		int n, rc;

		ERR_clear_error();
		n = SSL_read(s->ssl, buf, want);
		if (n > 0)
			return n;
		if (SSL_get_error(s->ssl, n) == SSL_ERROR_ZERO_RETURN)
			return 0;
		rc = stream_tls_next(s, n);
		if (rc < 0)
			return rc == -EPIPE ? 0 : rc;
	}
}

static ssize_t stream_tls_read(struct stream *head, void *buf, size_t bytes)
{
	struct stream_tls_end *s = (struct stream_tls_end *)head;
	ssize_t rc = stream_tls_join(s);

	if (rc == 0)
		rc = s->state == STREAM_TLS_PLAIN ? stream_tls_read_plain(s, buf, bytes)
						  : stream_tls_read_sealed(s, buf, bytes);
	else if (rc == -EPIPE)
		rc = 0;
	stream_tls_tell(s);
	return rc;
}

static ssize_t stream_tls_write_sealed(struct stream_tls_end *s, const void *buf, size_t bytes)
{
	int want = bytes < STREAM_TLS_WRITE ? (int)bytes : STREAM_TLS_WRITE;
	int rc = stream_tls_push(s);
	int n;

	if (rc < 0 || want == 0)
		return rc;
	ERR_clear_error();
	n = SSL_write(s->ssl, buf, want);
	if (n <= 0)
		return SSL_get_error(s->ssl, n) == SSL_ERROR_WANT_READ ? -EAGAIN : stream_tls_broken(s);
	rc = stream_tls_push(s);
	return rc < 0 && rc != -EAGAIN ? rc : n;
}

static ssize_t stream_tls_write(struct stream *head, const void *buf, size_t bytes)
{
	struct stream_tls_end *s = (struct stream_tls_end *)head;
	ssize_t rc = stream_tls_join(s);

	if (rc == 0)
		rc = s->state == STREAM_TLS_PLAIN ? s->inner->ops->write(s->inner, buf, bytes)
						  : stream_tls_write_sealed(s, buf, bytes);
	stream_tls_tell(s);
	return rc;
}

static int stream_tls_fd(struct stream *head)
{
	struct stream *inner = ((struct stream_tls_end *)head)->inner;

	return inner->ops->fd(inner);
}

static void stream_tls_end_close(struct stream *head)
{
	struct stream_tls_end *s = (struct stream_tls_end *)head;

	if (s->state == STREAM_TLS_OPEN && SSL_shutdown(s->ssl) >= 0)
		(void)stream_tls_push(s);
	ERR_clear_error();
	SSL_free(s->ssl);
	s->inner->ops->close(s->inner);
	OPENSSL_cleanse(s, sizeof(*s));
	free(s);
}

static const struct stream_ops stream_tls_ops = {
	.read = stream_tls_read,
	.write = stream_tls_write,
	.fd = stream_tls_fd,
	.close = stream_tls_end_close,
};

static struct stream_tls_end *stream_tls_wrap(const struct stream_tls *tls, struct stream *inner)
{
	struct stream_tls_end *s = calloc(1, sizeof(*s));

	if (s)
		s->ssl = SSL_new(tls->ctx);
	if (s && s->ssl) {
		s->in = BIO_new(BIO_s_mem());
		s->out = BIO_new(BIO_s_mem());
	}
	if (!s || !s->ssl || !s->in || !s->out) {
		if (s) {
			BIO_free(s->in);
			BIO_free(s->out);
			SSL_free(s->ssl);
		}
		free(s);
		inner->ops->close(inner);
		return NULL;
	}
	BIO_set_mem_eof_return(s->in, -1);
	BIO_set_mem_eof_return(s->out, -1);
	SSL_set_bio(s->ssl, s->in, s->out);
	SSL_set_app_data(s->ssl, (void *)(uintptr_t)tls);
	s->stream = *inner; /* who it is */
	s->stream.ops = &stream_tls_ops;
	s->inner = inner;
	return s;
}

/* The box has to bear the name that was dialled, where an authority vouches for it. */
static bool stream_tls_expect(SSL *ssl, const char *host)
{
	char bare[SOCK_HOST_BYTES];

	snprintf(bare, sizeof(bare), "%s", host);
	bare[strcspn(bare, "%")] = '\0'; /* an IPv6 address's scope is this machine's business */
	if (sock_host_is_numeric(host))
		return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), bare) == 1;
	SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
	return SSL_set1_host(ssl, bare) == 1 && SSL_set_tlsext_host_name(ssl, bare) == 1;
}

int stream_tls_dial(const struct stream_tls *tls, const char *host, struct stream *inner, struct stream **out)
{
	struct stream_tls_end *s = stream_tls_wrap(tls, inner);

	if (!s)
		return -ENOMEM;
	if (tls->by_ca && !stream_tls_expect(s->ssl, host)) {
		stream_tls_end_close(&s->stream);
		return -ENOMEM;
	}
	SSL_set_connect_state(s->ssl);
	s->state = STREAM_TLS_SHAKES;
	stream_tls_tell(s);
	*out = &s->stream;
	return 0;
}

int stream_tls_accept(const struct stream_tls *tls, struct stream *inner, struct stream **out)
{
	struct stream_tls_end *s = stream_tls_wrap(tls, inner);

	if (!s)
		return -ENOMEM;
	SSL_set_accept_state(s->ssl);
	s->state = STREAM_TLS_NEW;
	stream_tls_tell(s);
	*out = &s->stream;
	return 0;
}
