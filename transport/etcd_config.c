/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where etcd is and who asks, as text; and what a build without libcurl has in place of the rest.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/secret.h"
#include "transport/etcd.h"

static int etcd_read_url(const char *text, size_t length, struct etcd_config *out, struct err *e)
{
	size_t scheme = strncmp(text, "http://", 7) == 0 ? 7 : strncmp(text, "https://", 8) == 0 ? 8 : 0;
	int typed = length < 80 ? (int)length : 80; /* of it, in errors */
	char *url;

	if (out->url_count == ETCD_URLS_MAX)
		return err_set(e, -EINVAL, "more than %u URLs; a few of the cluster's are enough", ETCD_URLS_MAX);
	while (length > scheme && text[length - 1] == '/')
		length--;
	url = out->urls[out->url_count++];
	if (length + sizeof("http://:2379") > ETCD_URL_BYTES)
		return err_set(e, -EINVAL, "'%.64s...' is too long", text);
	snprintf(url, ETCD_URL_BYTES, "%s%.*s", scheme ? "" : "http://", (int)length, text);
	if (!scheme && !memchr(text, ':', length))
		strncat(url, ":2379", ETCD_URL_BYTES - strlen(url) - 1);
	if (strchr(url, '@'))
		return err_set(
			e, -EINVAL, "a URL has a user in it, for all to read; give user:password as etcd's secret");
	for (const char *p = strstr(url, "://") + 3; *p; p++)
		if (!isalnum((unsigned char)*p) && !strchr(".-_:[]", *p))
			return err_set(e, -EINVAL,
				"'%.*s' is not understood; allowed: http://host:port or https://host:port", typed,
				text);
	if (strstr(url, "://")[3] == '\0' || strstr(url, "://")[3] == ':')
		return err_set(
			e, -EINVAL, "'%.*s' has no host; write http://host:port or https://host:port", typed, text);
	return 0;
}

static int etcd_read_secret(const char *text, struct etcd_config *out, struct err *e)
{
	size_t length = strcspn(text, "\r\n");
	const char *colon = memchr(text, ':', length), *secret = colon ? colon + 1 : text;

	if (text[length + strspn(text + length, "\r\n")] != '\0')
		return err_set(e, -EINVAL, "etcd's secret has more than one line; it is user:password, or a token");
	if (colon && (colon == text || (size_t)(colon - text) >= sizeof(out->user)))
		return err_set(e, -EINVAL, "etcd's secret begins with no user; it is user:password, or a token");
	length -= (size_t)(secret - text);
	if (length == 0 || length >= sizeof(out->secret))
		return err_set(e, -EINVAL, "etcd's secret is empty or too long; it is user:password, or a token");
	if (colon)
		memcpy(out->user, text, (size_t)(colon - text));
	memcpy(out->secret, secret, length);
	return 0;
}

int etcd_config_read(const char *urls, const char *secret, const char *ca, struct etcd_config *out, struct err *e)
{
	int rc = 0;

	memset(out, 0, sizeof(*out));
	while (rc == 0 && *urls) {
		size_t length = strcspn(urls, ", ");

		if (length > 0)
			rc = etcd_read_url(urls, length, out, e);
		urls += length + (urls[length] != '\0');
	}
	if (rc == 0 && out->url_count == 0)
		rc = err_set(e, -EINVAL, "no URL; allowed: http://host:port or https://host:port");
	if (rc == 0 && ca && snprintf(out->ca, sizeof(out->ca), "%s", ca) >= (int)sizeof(out->ca))
		rc = err_set(e, -EINVAL, "the path of etcd's authorities is too long");
	return rc == 0 && secret ? etcd_read_secret(secret, out, e) : rc;
}

int etcd_config_from_env(const char *urls, struct etcd_config *out, struct err *e)
{
	const char *secret = getenv("PHUB_ETCD_SECRET"), *file = getenv("PHUB_ETCD_SECRET_FILE");
	char bytes[ETCD_SECRET_BYTES + ETCD_USER_BYTES];
	size_t length = 0;
	int rc = 0;

	if (!secret && file && *file) {
		rc = secret_read_file(file, bytes, sizeof(bytes) - 1, &length, e);
		bytes[rc < 0 ? 0 : length] = '\0';
		secret = bytes;
	}
	if (rc == 0)
		rc = etcd_config_read(urls, secret && *secret ? secret : NULL, getenv("PHUB_ETCD_CA"), out, e);
	explicit_bzero(bytes, sizeof(bytes));
	return rc;
}

#ifndef PHUB_CURL
int etcd_open(const struct etcd_config *config, struct etcd **out, struct err *e)
{
	(void)config;
	(void)out;
	return err_set(e, -ENOSYS, "this build has no etcd: install libcurl4-openssl-dev and build it again");
}

void etcd_close(struct etcd *etcd)
{
	(void)etcd;
}

int etcd_fd(const struct etcd *etcd)
{
	(void)etcd;
	return -1;
}

void etcd_step(struct etcd *etcd, uint64_t now_ns)
{
	(void)etcd;
	(void)now_ns;
}

uint64_t etcd_next(const struct etcd *etcd)
{
	(void)etcd;
	return CLOCK_NEVER;
}

void etcd_begin(struct etcd *etcd, struct etcd_call *call, const char *path, char *request, uint64_t now_ns)
{
	(void)etcd;
	(void)path;
	(void)now_ns;
	free(request);
	*call = (struct etcd_call){.state = ETCD_FAILED, .status = -1};
}

void etcd_begin_stream(struct etcd *etcd, struct etcd_call *call, const char *path, char *request, uint64_t now_ns)
{
	etcd_begin(etcd, call, path, request, now_ns);
}

const char *etcd_line(struct etcd_call *call, size_t *bytes)
{
	(void)call;
	(void)bytes;
	return NULL;
}

void etcd_end(struct etcd_call *call)
{
	call->state = ETCD_IDLE;
}

const char *etcd_url(const struct etcd *etcd)
{
	(void)etcd;
	return "";
}
#endif
