/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes a box's address apart. The text comes from a user or a launcher, so every error repeats it.
 */
#include "client/url.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "client/phub.h"

#define URL_SCHEME     "phub://"
#define URL_SCHEME_TLS "phubs://"

static int url_bad(struct err *e, const char *text, const char *what)
{
	return err_set(e, -EINVAL,
		"box address '%.200s': %s; use phub://host[:port]/job, or phubs:// for TLS, and ?hostbox=auto behind "
		"it for a box of this host's own",
		text, what);
}

/* Copies [from, to) as a C string. False when it is empty or does not fit. */
static bool url_copy(char *out, size_t out_bytes, const char *from, const char *to)
{
	size_t bytes = (size_t)(to - from);

	if (bytes == 0 || bytes >= out_bytes)
		return false;
	memcpy(out, from, bytes);
	out[bytes] = '\0';
	return true;
}

static bool url_parse_port(const char *from, const char *to, uint16_t *out)
{
	uint32_t port = 0;

	if (from == to || to - from > 5)
		return false;
	for (; from < to; from++) {
		if (!isdigit((unsigned char)*from))
			return false;
		port = port * 10 + (uint32_t)(*from - '0');
	}
	if (port == 0 || port > UINT16_MAX)
		return false;
	*out = (uint16_t)port;
	return true;
}

static bool url_job_ok(const char *job)
{
	for (; *job; job++) {
		if (!isgraph((unsigned char)*job) || strchr("/#%", *job))
			return false;
	}
	return true;
}

/* Splits "host", "host:port", "[v6]" or "[v6]:port". Returns what is wrong, or NULL. */
static const char *url_parse_authority(const char *from, const char *to, struct url_box *out)
{
	const char *host_end, *rest;

	out->port = PHUB_PORT;
	if (from < to && *from == '[') {
		host_end = memchr(from, ']', (size_t)(to - from));
		if (!host_end)
			return "an IPv6 address needs its closing bracket";
		from++;
		rest = host_end + 1;
	} else {
		rest = memchr(from, ':', (size_t)(to - from));
		if (rest && memchr(rest + 1, ':', (size_t)(to - rest - 1)))
			return "an IPv6 address belongs in [brackets]";
		host_end = rest ? rest : to;
		rest = host_end;
	}
	if (!url_copy(out->host, sizeof(out->host), from, host_end))
		return "the host is missing or too long";
	if (rest == to)
		return NULL;
	if (*rest != ':' || !url_parse_port(rest + 1, to, &out->port))
		return "the port is not a number from 1 to 65535";
	return NULL;
}

/* One box, or two with a comma between them. */
static const char *url_parse_boxes(const char *from, const char *to, struct url *out)
{
	const char *comma = memchr(from, ',', (size_t)(to - from));
	struct url_box first;
	const char *wrong = url_parse_authority(from, comma ? comma : to, &first);

	if (!wrong && comma)
		wrong = url_parse_authority(comma + 1, to, &out->other);
	if (wrong)
		return wrong;
	if (strchr(first.host, ',') || strchr(out->other.host, ','))
		return "it names more than two boxes";
	memcpy(out->host, first.host, sizeof(out->host));
	out->port = first.port;
	return NULL;
}

/* What is behind the job's name. Returns what is wrong, or NULL. */
static const char *url_parse_query(const char *query, struct url *out)
{
	if (!*query)
		return NULL;
	if (strcmp(query, "?hostbox=auto") == 0)
		out->hostbox = URL_HOSTBOX_AUTO;
	else if (strcmp(query, "?hostbox=none") == 0)
		out->hostbox = URL_HOSTBOX_NONE;
	else
		return "behind '?' it has what is neither hostbox=auto nor hostbox=none";
	return NULL;
}

int url_parse_box(const char *text, struct url_box *out, struct err *e)
{
	struct url_box box = {0};
	const char *wrong = url_parse_authority(text, text + strlen(text), &box);

	if (wrong)
		return err_set(e, -EINVAL, "box address '%.200s': %s; use host[:port]", text, wrong);
	*out = box;
	return 0;
}

int url_parse(const char *text, struct url *out, struct err *e)
{
	struct url url = {0};
	const char *authority, *slash, *end, *wrong;

	if (!text)
		return url_bad(e, "", "it is missing");
	url.tls = strncmp(text, URL_SCHEME_TLS, strlen(URL_SCHEME_TLS)) == 0;
	if (!url.tls && strncmp(text, URL_SCHEME, strlen(URL_SCHEME)) != 0)
		return url_bad(e, text, "it does not begin with phub://, phubs:// or phub+etcd://");
	authority = text + strlen(url.tls ? URL_SCHEME_TLS : URL_SCHEME);
	slash = strchr(authority, '/');
	if (!slash)
		return url_bad(e, text, "the job's name is missing");
	wrong = url_parse_boxes(authority, slash, &url);
	if (wrong)
		return url_bad(e, text, wrong);
	end = slash + strcspn(slash, "?");
	if (!url_copy(url.job, sizeof(url.job), slash + 1, end))
		return url_bad(e, text, "the job's name must have 1 to 63 characters");
	if (!url_job_ok(url.job))
		return url_bad(e, text, "the job's name has a space, '/', '#' or '%' in it");
	wrong = url_parse_query(end, &url);
	if (wrong)
		return url_bad(e, text, wrong);
	*out = url;
	return 0;
}
