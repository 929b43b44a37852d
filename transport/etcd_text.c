/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests and answers of etcd's JSON gateway, by jansson.
 */
#include "transport/etcd_text.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char text_alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

const char ETCD_READ[] = "";

/* ---- base64 ---- */

/* As a JSON string; NULL: no memory. */
static json_t *text_encode(const char *bytes, size_t count)
{
	char *out = malloc((count + 2) / 3 * 4 + 1);
	json_t *string;
	size_t at = 0;

	if (!out)
		return NULL;
	for (size_t i = 0; i < count; i += 3) {
		size_t left = count - i;
		uint32_t word = (uint32_t)(uint8_t)bytes[i] << 16;

		word |= left > 1 ? (uint32_t)(uint8_t)bytes[i + 1] << 8 : 0;
		word |= left > 2 ? (uint32_t)(uint8_t)bytes[i + 2] : 0;
		out[at++] = text_alphabet[word >> 18];
		out[at++] = text_alphabet[word >> 12 & 63];
		out[at++] = left > 1 ? text_alphabet[word >> 6 & 63] : '=';
		out[at++] = left > 2 ? text_alphabet[word & 63] : '=';
	}
	string = json_stringn(out, at);
	free(out);
	return string;
}

static json_t *text_encode_string(const char *text)
{
	return text_encode(text, strlen(text));
}

/* Into a C string. False: it is no base64, holds a zero, or does not fit. */
static bool text_decode(const char *text, char *out, size_t bytes)
{
	size_t length = strlen(text), at = 0;
	uint32_t word = 0;
	unsigned have = 0;

	if (length % 4 != 0 || length / 4 * 3 > bytes + 1) /* two may be padding, and the zero needs a place */
		return false;
	while (length > 0 && text[length - 1] == '=')
		length--;
	for (size_t i = 0; i < length; i++) {
		const char *digit = strchr(text_alphabet, text[i]);

		if (!digit)
			return false;
		word = word << 6 | (uint32_t)(digit - text_alphabet);
		have += 6;
		if (have < 8)
			continue;
		have -= 8;
		if (at + 1 >= bytes || (word >> have & 255) == 0)
			return false;
		out[at++] = (char)(word >> have & 255);
	}
	out[at] = '\0';
	return true;
}

/* ---- requests ---- */

/* Writes it and drops the reference. */
static char *text_write(json_t *object)
{
	char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;

	json_decref(object);
	return text;
}

static json_t *text_number(int64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRId64, value);
	return json_string(text);
}

/* The key behind all that begin with `prefix`. */
static json_t *text_range_end(const char *prefix)
{
	char end[ETCD_KEY_BYTES];
	size_t length = strlen(prefix);

	if (length == 0 || length >= sizeof(end))
		return NULL;
	memcpy(end, prefix, length);
	while (length > 0 && (uint8_t)end[length - 1] == 255)
		length--;
	if (length == 0)
		return text_encode("\0", 1); /* all keys */
	end[length - 1] = (char)((uint8_t)end[length - 1] + 1);
	return text_encode(end, length);
}

char *etcd_text_grant(int64_t ttl_s)
{
	return text_write(json_pack("{s:o}", "TTL", text_number(ttl_s)));
}

char *etcd_text_lease(int64_t lease)
{
	return text_write(json_pack("{s:o}", "ID", text_number(lease)));
}

static json_t *text_op(const struct etcd_op *op)
{
	json_t *key = text_encode_string(op->key);

	if (op->value == ETCD_READ)
		return json_pack("{s:{s:o}}", "requestRange", "key", key);
	if (!op->value)
		return json_pack("{s:{s:o}}", "requestDeleteRange", "key", key);
	return json_pack("{s:{s:o, s:o, s:o}}", "requestPut", "key", key, "value", text_encode_string(op->value),
		"lease", text_number(op->lease));
}

char *etcd_text_txn(const struct etcd_op *ops, unsigned count)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < count; i++) {
		if (json_array_append_new(list, text_op(&ops[i])) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	return text_write(json_pack("{s:o}", "success", list));
}

char *etcd_text_claim(const char *key, const char *value, int64_t lease, const char *last, int64_t unless_since)
{
	const struct etcd_op put = {.key = key, .value = value, .lease = lease},
			     read = {.key = key, .value = ETCD_READ}, leave = {.key = last, .value = value};
	json_t *compare = json_pack("[{s:o, s:s, s:s, s:s}]", "key", text_encode_string(key), "target", "CREATE",
		"result", "EQUAL", "createRevision", "0");

	if (unless_since)
		json_array_append_new(
			compare, json_pack("{s:o, s:s, s:s, s:o}", "key", text_encode_string(last), "target", "MOD",
					 "result", "EQUAL", "modRevision", text_number(unless_since)));
	return text_write(json_pack("{s:o, s:[o, o], s:[o]}", "compare", compare, "success", text_op(&put),
		text_op(&leave), "failure", text_op(&read)));
}

char *etcd_text_range(const char *prefix, const char *from, unsigned limit, int64_t revision)
{
	return text_write(json_pack("{s:o, s:o, s:o, s:o}", "key", text_encode_string(from ? from : prefix),
		"range_end", text_range_end(prefix), "limit", text_number(limit), "revision", text_number(revision)));
}

char *etcd_text_watch(const char *prefix, int64_t revision)
{
	return text_write(json_pack("{s:{s:o, s:o, s:o}}", "create_request", "key", text_encode_string(prefix),
		"range_end", text_range_end(prefix), "start_revision", text_number(revision + 1)));
}

char *etcd_text_authenticate(const char *user, const char *password)
{
	return text_write(json_pack("{s:s, s:s}", "name", user, "password", password));
}

/* ---- answers ---- */

/* Fields are looked for where they may not be. */
static const json_t *text_at(const json_t *object, const char *name)
{
	return json_is_object(object) ? json_object_get(object, name) : NULL;
}

static const char *text_string(const json_t *object, const char *name)
{
	const json_t *value = text_at(object, name);

	return json_is_string(value) ? json_string_value(value) : NULL;
}

/* A number, or a string of digits; 0 when it is not there, as gRPC leaves out zeros. */
static int64_t text_int(const json_t *object, const char *name)
{
	const json_t *value = text_at(object, name);
	char *end;
	long long number;

	if (json_is_integer(value))
		return (int64_t)json_integer_value(value);
	if (!json_is_string(value))
		return 0;
	errno = 0;
	number = strtoll(json_string_value(value), &end, 10);
	return errno == 0 && *end == '\0' ? (int64_t)number : 0;
}

/* 0 with the object; what comes in a stream is in "result". */
static int text_parse(const char *text, size_t bytes, json_t **out, struct err *e)
{
	json_error_t why;
	json_t *object = json_loadb(text, bytes, 0, &why);
	const char *refused;

	if (!object)
		return err_set(e, -EPROTO, "the answer is no JSON: %s", why.text);
	refused = text_string(object, "error");
	if (!refused)
		refused = text_string(text_at(object, "error"), "message"); /* in a stream */
	if (!json_is_object(object) || refused) {
		err_set(e, -EPROTO, refused ? "the answer is an error: %.200s" : "the answer is no JSON object%s",
			refused ? refused : "");
		json_decref(object);
		return e->code;
	}
	*out = object;
	return 0;
}

static void text_tell_item(const json_t *kv, bool deleted, etcd_item_fn *fn, void *arg)
{
	char key[ETCD_KEY_BYTES], value[ETCD_VALUE_BYTES] = "";
	const char *name = text_string(kv, "key"), *content = text_string(kv, "value");

	if (!name || !text_decode(name, key, sizeof(key)))
		return;
	if (!deleted && content && !text_decode(content, value, sizeof(value)))
		return;
	fn(arg, &(struct etcd_item){.key = key,
			.value = deleted ? NULL : value,
			.created = text_int(kv, "create_revision"),
			.lease = text_int(kv, "lease")});
}

static void text_tell_items(const json_t *answer, etcd_item_fn *fn, void *arg)
{
	const json_t *kvs = text_at(answer, "kvs");

	for (size_t i = 0; i < json_array_size(kvs); i++)
		text_tell_item(json_array_get(kvs, i), false, fn, arg);
}

int etcd_text_read_range(
	const char *text, size_t bytes, etcd_item_fn *fn, void *arg, struct etcd_page *page, struct err *e)
{
	json_t *object;
	const json_t *kvs;
	const char *last;
	int rc = text_parse(text, bytes, &object, e);

	if (rc < 0)
		return rc;
	kvs = text_at(object, "kvs");
	*page = (struct etcd_page){
		.revision = text_int(text_at(object, "header"), "revision"),
		.more = json_is_true(text_at(object, "more")),
	};
	last = text_string(json_array_get(kvs, json_array_size(kvs) - 1), "key");
	if (page->revision <= 0)
		rc = err_set(e, -EPROTO, "the answer has no revision");
	else if (page->more && (!last || !text_decode(last, page->last, sizeof(page->last))))
		rc = err_set(e, -EPROTO, "the answer says that there is more behind a key that is none of ours");
	else
		text_tell_items(object, fn, arg);
	json_decref(object);
	return rc;
}

int etcd_text_read_watch(
	const char *text, size_t bytes, etcd_item_fn *fn, void *arg, struct etcd_news *news, struct err *e)
{
	json_t *object;
	const json_t *result, *events;
	int rc = text_parse(text, bytes, &object, e);

	if (rc < 0)
		return rc;
	result = text_at(object, "result");
	events = text_at(result, "events");
	*news = (struct etcd_news){
		.revision = text_int(text_at(result, "header"), "revision"),
		.over = json_is_true(text_at(result, "canceled")),
	};
	if (!json_is_object(result))
		rc = err_set(e, -EPROTO, "the answer to a watch has no result");
	for (size_t i = 0; rc == 0 && i < json_array_size(events); i++) {
		const json_t *event = json_array_get(events, i);
		const char *type = text_string(event, "type");

		text_tell_item(text_at(event, "kv"), type && strcmp(type, "DELETE") == 0, fn, arg);
	}
	json_decref(object);
	return rc;
}

int etcd_text_read_txn(const char *text, size_t bytes, etcd_item_fn *fn, void *arg, struct err *e)
{
	json_t *object;
	const json_t *responses;
	int rc = text_parse(text, bytes, &object, e);

	if (rc < 0)
		return rc;
	responses = text_at(object, "responses");
	if (!json_is_true(text_at(object, "succeeded")))
		rc = err_set(e, -EPROTO, "the answer to a transaction does not say that it succeeded");
	for (size_t i = 0; rc == 0 && i < json_array_size(responses); i++)
		text_tell_items(text_at(json_array_get(responses, i), "response_range"), fn, arg);
	json_decref(object);
	return rc;
}

int etcd_text_read_claim(
	const char *text, size_t bytes, bool *won, int64_t *revision, etcd_item_fn *fn, void *arg, struct err *e)
{
	json_t *object;
	const json_t *responses;
	int rc = text_parse(text, bytes, &object, e);

	if (rc < 0)
		return rc;
	*won = json_is_true(text_at(object, "succeeded"));
	*revision = text_int(text_at(object, "header"), "revision");
	responses = text_at(object, "responses");
	if (*revision <= 0)
		rc = err_set(e, -EPROTO, "the answer has no revision");
	for (size_t i = 0; rc == 0 && !*won && i < json_array_size(responses); i++)
		text_tell_items(text_at(json_array_get(responses, i), "response_range"), fn, arg);
	json_decref(object);
	return rc;
}

int etcd_text_read_grant(const char *text, size_t bytes, int64_t *lease, int64_t *ttl_s, struct err *e)
{
	json_t *object;
	int64_t id, ttl;
	int rc = text_parse(text, bytes, &object, e);

	if (rc < 0)
		return rc;
	id = text_int(object, "ID");
	ttl = text_int(object, "TTL");
	json_decref(object);
	if (id == 0 || ttl <= 0 || ttl > INT32_MAX)
		return err_set(e, -EPROTO, "the answer has no lease");
	*lease = id;
	*ttl_s = ttl;
	return 0;
}

int etcd_text_read_keepalive(const char *text, size_t bytes, int64_t *ttl_s, struct err *e)
{
	json_t *object;
	int64_t ttl;
	bool known;
	int rc = text_parse(text, bytes, &object, e);

	if (rc < 0)
		return rc;
	ttl = text_int(text_at(object, "result"), "TTL");
	known = text_int(text_at(object, "result"), "ID") != 0;
	json_decref(object);
	if (!known || ttl < 0 || ttl > INT32_MAX)
		return err_set(e, -EPROTO, "the answer is not about the lease");
	*ttl_s = ttl;
	return 0;
}

int etcd_text_read_token(const char *text, size_t bytes, char *token, size_t token_bytes, struct err *e)
{
	json_t *object;
	const char *value;
	size_t length;
	int rc = text_parse(text, bytes, &object, e);

	if (rc < 0)
		return rc;
	value = text_string(object, "token");
	length = value ? strlen(value) : 0;
	if (length == 0 || length >= token_bytes || strpbrk(value, "\r\n"))
		rc = err_set(e, -EPROTO, "the answer has no token");
	else
		memcpy(token, value, length + 1);
	json_decref(object);
	return rc;
}

int etcd_text_read_error(const char *text, size_t bytes, char *why, size_t why_bytes)
{
	json_t *object = json_loadb(text, bytes, 0, NULL);
	const char *told = text_string(object, "error");
	int64_t status = text_int(object, "code");

	snprintf(why, why_bytes, "%s", told ? told : "an answer that is none of etcd's");
	for (char *p = why; *p; p++)
		if ((uint8_t)*p < ' ' || *p == 127)
			*p = ' ';
	json_decref(object);
	return told && status > 0 && status < 32 ? (int)status : ETCD_UNKNOWN;
}
