/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/tls_rig.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

/* ---- files ---- */

static X509 *tls_make(const char *name, const char *names, EVP_PKEY *key, X509 *by, EVP_PKEY *by_key)
{
	X509 *x = X509_new();
	X509_NAME *subject = X509_get_subject_name(x);
	X509_EXTENSION *extension;

	assert_true(X509_set_version(x, 2));
	ASN1_INTEGER_set(X509_get_serialNumber(x), by ? 2 : 1);
	X509_gmtime_adj(X509_getm_notBefore(x), -3600);
	X509_gmtime_adj(X509_getm_notAfter(x), 3600);
	X509_set_pubkey(x, key);
	X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
	X509_set_issuer_name(x, by ? X509_get_subject_name(by) : subject);
	extension = by ? X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, names)
		       : X509V3_EXT_conf_nid(NULL, NULL, NID_basic_constraints, "critical,CA:TRUE");
	assert_non_null(extension);
	X509_add_ext(x, extension, -1);
	X509_EXTENSION_free(extension);
	assert_true(X509_sign(x, by_key ? by_key : key, EVP_sha256()) > 0);
	return x;
}

static void tls_write(
	const struct tls_files *f, char path[96], const char *name, X509 *cert, EVP_PKEY *key, const char *password)
{
	FILE *file;

	snprintf(path, 96, "%s/%s", f->folder, name);
	file = fopen(path, "we");
	assert_non_null(file);
	assert_int_equal(fchmod(fileno(file), 0600), 0);
	if (cert)
		assert_int_equal(PEM_write_X509(file, cert), 1);
	if (key)
		assert_int_equal(
			PEM_write_PrivateKey(file, key, password ? EVP_aes_128_cbc() : NULL,
				(const unsigned char *)password, password ? (int)strlen(password) : 0, NULL, NULL),
			1);
	fclose(file);
}

void tls_files_make(struct tls_files *f)
{
	EVP_PKEY *ca_key = EVP_EC_gen("P-256"), *key = EVP_EC_gen("P-256"), *other = EVP_EC_gen("P-256");
	X509 *ca = tls_make("authority", NULL, ca_key, NULL, NULL);
	X509 *cert = tls_make("box", "DNS:box.test,IP:127.0.0.1", key, ca, ca_key);
	X509 *other_ca = tls_make("stranger", NULL, other, NULL, NULL);
	uint8_t digest[32];
	unsigned bytes = sizeof(digest);

	snprintf(f->folder, sizeof(f->folder), "/tmp/phub-tls-XXXXXX");
	assert_non_null(mkdtemp(f->folder));
	tls_write(f, f->ca, "ca.pem", ca, NULL, NULL);
	tls_write(f, f->cert, "cert.pem", cert, NULL, NULL);
	tls_write(f, f->key, "key.pem", NULL, key, NULL);
	tls_write(f, f->other_ca, "other_ca.pem", other_ca, NULL, NULL);
	tls_write(f, f->other_key, "other_key.pem", NULL, other, NULL);
	tls_write(f, f->locked_key, "locked_key.pem", NULL, key, "open sesame");
	assert_int_equal(X509_digest(cert, EVP_sha256(), digest, &bytes), 1);
	for (unsigned i = 0; i < sizeof(digest); i++)
		snprintf(f->pin + 2 * i, 3, "%02x", digest[i]);
	X509_free(ca);
	X509_free(cert);
	X509_free(other_ca);
	EVP_PKEY_free(ca_key);
	EVP_PKEY_free(key);
	EVP_PKEY_free(other);
}

void tls_files_remove(struct tls_files *f)
{
	const char *paths[] = {f->ca, f->cert, f->key, f->other_ca, f->other_key, f->locked_key};

	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
		unlink(paths[i]);
	rmdir(f->folder);
}

/* ---- ways ---- */

struct tls_way_end {
	struct stream stream;
	struct tls_way *in, *out;
};

static ssize_t tls_way_read(struct stream *head, void *buf, size_t bytes)
{
	struct tls_way *w = ((struct tls_way_end *)head)->in;
	size_t have = w->put - w->got;

	if (have == 0)
		return w->ended ? 0 : -EAGAIN;
	if (bytes > have)
		bytes = have;
	memcpy(buf, w->bytes + w->got, bytes);
	w->got += bytes;
	return (ssize_t)bytes;
}

static ssize_t tls_way_write(struct stream *head, const void *buf, size_t bytes)
{
	struct tls_way *w = ((struct tls_way_end *)head)->out;
	size_t room = w->room - (w->put - w->got);

	if (room > TLS_WAY_BYTES - w->put)
		room = TLS_WAY_BYTES - w->put;
	if (room == 0)
		return -EAGAIN;
	if (bytes > room)
		bytes = room;
	memcpy(w->bytes + w->put, buf, bytes);
	w->put += bytes;
	return (ssize_t)bytes;
}

static int tls_way_fd(struct stream *head)
{
	return -1;
}

static void tls_way_close(struct stream *head)
{
	((struct tls_way_end *)head)->out->ended = true;
	free(head);
}

static const struct stream_ops tls_way_ops = {
	.read = tls_way_read, .write = tls_way_write, .fd = tls_way_fd, .close = tls_way_close};

struct stream *tls_way_open(struct tls_way *in, struct tls_way *out)
{
	struct tls_way_end *end = calloc(1, sizeof(*end));

	assert_non_null(end);
	end->stream.ops = &tls_way_ops;
	end->stream.peer_uid = -1;
	end->in = in;
	end->out = out;
	return &end->stream;
}
