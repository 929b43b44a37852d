/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and values of boxes and jobs, and the list of those that are up.
 */
#include "transport/roster.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROSTER_ROOM_FIRST = 16 };

/* ---- names and keys ---- */

static bool roster_is_word(const char *text, size_t bytes_max, const char *without)
{
	size_t length = strlen(text);

	if (length == 0 || length >= bytes_max)
		return false;
	for (size_t i = 0; i < length; i++)
		if (text[i] <= ' ' || text[i] > '~' || strchr(without, text[i]))
			return false;
	return true;
}

bool roster_name_valid(const char *name)
{
	return roster_is_word(name, ROSTER_NAME_BYTES, "/");
}

bool roster_prefix_valid(const char *prefix)
{
	return roster_is_word(prefix, ROSTER_PREFIX_BYTES, "") && prefix[strlen(prefix) - 1] != '/';
}

bool roster_box_key(const char *prefix, const char *box, char *out, size_t bytes)
{
	return snprintf(out, bytes, "%s/boxes/%s", prefix, box) < (int)bytes;
}

bool roster_job_key(const char *prefix, const char *job, const char *box, char *out, size_t bytes)
{
	return snprintf(out, bytes, "%s/jobs/%s/%s", prefix, job, box) < (int)bytes;
}

bool roster_root_key(const char *prefix, const char *root, char *out, size_t bytes)
{
	return snprintf(out, bytes, "%s/roots/%s", prefix, root) < (int)bytes;
}

bool roster_rooted_key(const char *prefix, const char *root, char *out, size_t bytes)
{
	return snprintf(out, bytes, "%s/rooted/%s", prefix, root) < (int)bytes;
}

/* Takes [from, to) when it is a name. */
static bool roster_take_name(const char *from, const char *to, char out[ROSTER_NAME_BYTES])
{
	size_t length = (size_t)(to - from);

	if (length >= ROSTER_NAME_BYTES)
		return false;
	memcpy(out, from, length);
	out[length] = '\0';
	return roster_name_valid(out);
}

/* ---- values ---- */

/* "tcp, shm" as a list. */
static json_t *roster_write_list(const char *text)
{
	json_t *list = json_array();

	while (*text) {
		size_t length = strcspn(text, ", ");

		if (length > 0)
			json_array_append_new(list, json_stringn(text, length));
		text += length + strspn(text + length, ", ");
	}
	return list;
}

static char *roster_write(json_t *object)
{
	char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;

	json_decref(object);
	return text;
}

char *roster_write_box(const struct roster_box *b)
{
	return roster_write(json_pack("{s:s, s:s, s:s, s:s, s:o, s:s, s:i, s:b, s:I, s:s}", "address", b->address,
		"host", b->host, "rack", b->rack, "uplink", b->uplink, "transports", roster_write_list(b->transports),
		"version", b->version, "cores", (int)b->cores, "tls", (int)b->tls, "since", (json_int_t)b->since,
		"root", b->root));
}

char *roster_write_job(const struct roster_job *j)
{
	return roster_write(json_pack("{s:s, s:I, s:I, s:I, s:I}", "state", j->state, "workers", (json_int_t)j->workers,
		"known", (json_int_t)j->known, "world", (json_int_t)j->world, "round", (json_int_t)j->round));
}

char *roster_write_root(const struct roster_root *r)
{
	return roster_write(json_pack("{s:s, s:s, s:b, s:I, s:I}", "box", r->box, "address", r->address, "tls",
		(int)r->tls, "since", (json_int_t)r->since, "epoch", (json_int_t)r->epoch));
}

/* What does not fit, or is no text of ours, is left out. */
static void roster_read_text(const json_t *value, char *out, size_t bytes)
{
	const char *text = json_is_string(value) ? json_string_value(value) : "";
	size_t length = strlen(text);

	out[0] = '\0';
	if (length >= bytes)
		return;
	for (size_t i = 0; i < length; i++)
		if (text[i] < ' ' || text[i] > '~')
			return;
	memcpy(out, text, length + 1);
}

static uint64_t roster_read_number(const json_t *value, uint64_t max)
{
	json_int_t number = json_is_integer(value) ? json_integer_value(value) : 0;

	return number < 0 ? 0 : (uint64_t)number > max ? max : (uint64_t)number;
}

static void roster_read_list(const json_t *list, char *out, size_t bytes)
{
	size_t at = 0;
	char word[ROSTER_NAME_BYTES];

	out[0] = '\0';
	for (size_t i = 0; i < json_array_size(list); i++) {
		roster_read_text(json_array_get(list, i), word, sizeof(word));
		if (!word[0] || at + strlen(word) + 3 > bytes)
			continue;
		at += (size_t)snprintf(out + at, bytes - at, "%s%s", at ? ", " : "", word);
	}
}

static int roster_read_box(const json_t *v, struct roster_box *out)
{
	roster_read_text(json_object_get(v, "address"), out->address, sizeof(out->address));
	roster_read_text(json_object_get(v, "host"), out->host, sizeof(out->host));
	roster_read_text(json_object_get(v, "rack"), out->rack, sizeof(out->rack));
	roster_read_text(json_object_get(v, "uplink"), out->uplink, sizeof(out->uplink));
	roster_read_text(json_object_get(v, "root"), out->root, sizeof(out->root));
	roster_read_text(json_object_get(v, "version"), out->version, sizeof(out->version));
	roster_read_list(json_object_get(v, "transports"), out->transports, sizeof(out->transports));
	out->cores = (uint32_t)roster_read_number(json_object_get(v, "cores"), UINT32_MAX);
	out->tls = json_is_true(json_object_get(v, "tls"));
	out->since = (int64_t)roster_read_number(json_object_get(v, "since"), UINT32_MAX);
	return roster_is_word(out->address, sizeof(out->address), "/") ? 0 : -EINVAL;
}

/* An epoch is the revision of some key before this one: none is from later on. */
static int roster_read_holder(const json_t *v, int64_t created, struct roster_root *out)
{
	uint64_t made = created > 0 ? (uint64_t)created : 0, epoch;

	epoch = roster_read_number(json_object_get(v, "epoch"), INT64_MAX);
	out->epoch = epoch && epoch < made ? epoch : made;
	roster_read_text(json_object_get(v, "box"), out->box, sizeof(out->box));
	roster_read_text(json_object_get(v, "address"), out->address, sizeof(out->address));
	out->tls = json_is_true(json_object_get(v, "tls"));
	out->since = (int64_t)roster_read_number(json_object_get(v, "since"), UINT32_MAX);
	return roster_name_valid(out->box) && roster_is_word(out->address, sizeof(out->address), "/") ? 0 : -EINVAL;
}

int roster_read_root(const char *value, int64_t created, struct roster_root *out)
{
	json_t *v = json_loads(value, 0, NULL);
	int rc = roster_read_holder(v, created, out);

	json_decref(v);
	return rc;
}

static void roster_read_job(const json_t *v, struct roster_job *out)
{
	roster_read_text(json_object_get(v, "state"), out->state, sizeof(out->state));
	out->workers = (uint32_t)roster_read_number(json_object_get(v, "workers"), UINT32_MAX);
	out->known = (uint32_t)roster_read_number(json_object_get(v, "known"), UINT32_MAX);
	if (out->known < out->workers) /* a box of an older release tells of its own alone */
		out->known = out->workers;
	out->world = (uint32_t)roster_read_number(json_object_get(v, "world"), UINT32_MAX);
	out->round = roster_read_number(json_object_get(v, "round"), INT64_MAX);
}

static int roster_read_key(const char *prefix, const char *key, struct roster_item *out)
{
	static const char boxes[] = "/boxes/", jobs[] = "/jobs/", roots[] = "/roots/";
	size_t length = strlen(prefix);
	const char *slash, *end = key + strlen(key);

	if (strncmp(key, prefix, length) != 0)
		return -EINVAL;
	key += length;
	if (strncmp(key, boxes, strlen(boxes)) == 0) {
		out->kind = ROSTER_BOX;
		return roster_take_name(key + strlen(boxes), end, out->box.name) ? 0 : -EINVAL;
	}
	if (strncmp(key, roots, strlen(roots)) == 0) {
		out->kind = ROSTER_ROOT;
		return roster_take_name(key + strlen(roots), end, out->root.name) ? 0 : -EINVAL;
	}
	if (strncmp(key, jobs, strlen(jobs)) != 0)
		return -EINVAL;
	key += strlen(jobs);
	slash = strchr(key, '/');
	out->kind = ROSTER_JOB;
	return slash && roster_take_name(key, slash, out->job.name) && roster_take_name(slash + 1, end, out->job.box)
		       ? 0
		       : -EINVAL;
}

int roster_read(const char *prefix, const struct etcd_item *item, struct roster_item *out)
{
	json_t *value;
	int rc;

	memset(out, 0, sizeof(*out));
	rc = roster_read_key(prefix, item->key, out);
	out->gone = !item->value;
	if (rc < 0 || out->gone)
		return rc;
	value = json_loads(item->value, 0, NULL);
	if (!json_is_object(value))
		rc = -EINVAL;
	else if (out->kind == ROSTER_BOX)
		rc = roster_read_box(value, &out->box);
	else if (out->kind == ROSTER_ROOT)
		rc = roster_read_holder(value, item->created, &out->root);
	else
		roster_read_job(value, &out->job);
	json_decref(value);
	return rc;
}

/* ---- the list ---- */

static int roster_compare(const struct roster_job *job, const char *name, const char *box)
{
	int order = strcmp(job->name, name);

	return order ? order : strcmp(job->box, box);
}

/* Where the box is, or belongs. */
static unsigned roster_box_at(const struct roster *r, const char *name)
{
	unsigned low = 0, high = r->box_count;

	while (low < high) {
		unsigned middle = (low + high) / 2;

		if (strcmp(r->boxes[middle].name, name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static unsigned roster_job_at(const struct roster *r, const char *name, const char *box)
{
	unsigned low = 0, high = r->job_count;

	while (low < high) {
		unsigned middle = (low + high) / 2;

		if (roster_compare(&r->jobs[middle], name, box) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

const struct roster_box *roster_find_box(const struct roster *r, const char *name)
{
	unsigned at = roster_box_at(r, name);

	return at < r->box_count && strcmp(r->boxes[at].name, name) == 0 ? &r->boxes[at] : NULL;
}

const struct roster_job *roster_find_job(const struct roster *r, const char *name, const char *box)
{
	unsigned at = roster_job_at(r, name, box);

	return at < r->job_count && roster_compare(&r->jobs[at], name, box) == 0 ? &r->jobs[at] : NULL;
}

static unsigned roster_root_at(const struct roster *r, const char *name)
{
	unsigned at = 0;

	while (at < r->root_count && strcmp(r->roots[at].name, name) < 0)
		at++;
	return at;
}

const struct roster_root *roster_find_root(const struct roster *r, const char *name)
{
	unsigned at = roster_root_at(r, name);

	return at < r->root_count && strcmp(r->roots[at].name, name) == 0 ? &r->roots[at] : NULL;
}

static bool roster_is_loopback(const char *address)
{
	return strncmp(address, "127.", 4) == 0 || strncmp(address, "[::1]", 5) == 0 ||
	       strncmp(address, "localhost:", 10) == 0;
}

const struct roster_box *roster_choose(const struct roster *r, const char *host, const char *rack, const char *job)
{
	const struct roster_box *best = NULL;
	unsigned most = 0;

	for (unsigned i = 0; i < r->box_count; i++) {
		const struct roster_box *b = &r->boxes[i];
		bool here = *host && strcmp(b->host, host) == 0;
		unsigned worth = (here ? 4 : 0) + (*rack && strcmp(b->rack, rack) == 0 ? 2 : 0) +
				 (roster_find_job(r, job, b->name) ? 1 : 0);

		if ((!here && roster_is_loopback(b->address)) || (best && worth <= most))
			continue;
		best = b;
		most = worth;
	}
	return best;
}

/* Makes a hole at `at` in a list of things of `size`, or closes it. */
static int roster_open_hole(void **list, unsigned *count, unsigned *room, unsigned max, unsigned at, size_t size)
{
	unsigned larger = *room ? *room * 2 : ROSTER_ROOM_FIRST;
	char *bytes = *list;

	if (*count == max)
		return -ENOSPC;
	if (*count == *room) {
		bytes = realloc(*list, larger * size);
		if (!bytes)
			return -ENOMEM;
		*list = bytes;
		*room = larger;
	}
	memmove(bytes + (at + 1) * size, bytes + at * size, (*count - at) * size);
	++*count;
	return 0;
}

static void roster_close_hole(void *list, unsigned *count, unsigned at, size_t size)
{
	char *bytes = list;

	--*count;
	memmove(bytes + at * size, bytes + (at + 1) * size, (*count - at) * size);
}

static int roster_put_root(struct roster *r, const struct roster_item *item)
{
	unsigned at = roster_root_at(r, item->root.name);
	bool known = roster_find_root(r, item->root.name) != NULL;
	int rc = 0;

	if (item->gone) {
		if (known)
			roster_close_hole(r->roots, &r->root_count, at, sizeof(*r->roots));
		return 0;
	}
	if (!known)
		rc = roster_open_hole(
			(void **)&r->roots, &r->root_count, &r->root_room, ROSTER_ROOTS_MAX, at, sizeof(*r->roots));
	if (rc == 0)
		r->roots[at] = item->root;
	return rc;
}

int roster_put(struct roster *r, const struct roster_item *item)
{
	bool box = item->kind == ROSTER_BOX;
	unsigned at = box ? roster_box_at(r, item->box.name) : roster_job_at(r, item->job.name, item->job.box);
	bool known = box ? roster_find_box(r, item->box.name) != NULL
			 : roster_find_job(r, item->job.name, item->job.box) != NULL;
	int rc = 0;

	if (item->kind == ROSTER_ROOT)
		return roster_put_root(r, item);
	if (item->gone) {
		if (known && box)
			roster_close_hole(r->boxes, &r->box_count, at, sizeof(*r->boxes));
		else if (known)
			roster_close_hole(r->jobs, &r->job_count, at, sizeof(*r->jobs));
		return 0;
	}
	if (!known && box)
		rc = roster_open_hole(
			(void **)&r->boxes, &r->box_count, &r->box_room, ROSTER_BOXES_MAX, at, sizeof(*r->boxes));
	else if (!known)
		rc = roster_open_hole(
			(void **)&r->jobs, &r->job_count, &r->job_room, ROSTER_JOBS_MAX, at, sizeof(*r->jobs));
	if (rc < 0)
		return rc;
	if (box)
		r->boxes[at] = item->box;
	else
		r->jobs[at] = item->job;
	return 0;
}

void roster_fini(struct roster *r)
{
	free(r->boxes);
	free(r->jobs);
	free(r->roots);
	*r = (struct roster){.boxes = NULL};
}
