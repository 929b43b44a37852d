/* SPDX-License-Identifier: Apache-2.0 */
/*
 * By libyaml's documents, whose marks give every error its line. Keys that nobody knows, keys given twice and values
 * out of range are errors.
 */
#include "topology/racks.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

#include "phub/base/suggest.h"

#define RACKS_FILE_MAX (4u << 20)
#define RACKS_STOPS    " \t/,=\"'" /* what no name has */

struct racks_file {
	yaml_document_t document;
	const char *name;
	struct racks *racks;
	struct err *e;
};

/* What a value is. A list's items are mappings. */
enum racks_kind { RACKS_NAME, RACKS_ADDRESS, RACKS_RATE, RACKS_TIME, RACKS_RATIO, RACKS_COUNT, RACKS_LIST };

struct racks_key {
	const char *name;
	enum racks_kind kind;
	bool required;
};

struct racks_unit {
	const char *name;
	double factor;
};

/* What a number may be, in bytes a second, seconds, or as it is. */
struct racks_range {
	struct racks_unit units[5];
	double least, most;
	const char *allowed;
};

static const struct racks_range racks_rates = {
	{{"Tbit", 1e12 / 8}, {"Gbit", 1e9 / 8}, {"Mbit", 1e6 / 8}, {"Kbit", 1e3 / 8}}, RACKS_RATE_MIN, RACKS_RATE_MAX,
	"like 100Gbit or 500Mbit (units: Kbit, Mbit, Gbit, Tbit), 1Kbit to 1000Tbit"};
static const struct racks_range racks_times = {{{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}}, 1e-9, 1e3,
	"like 20us or 1.5ms (units: ns, us, ms, s), 1ns to 1000s; leave it away where it is not known"};
static const struct racks_range racks_ratios = {{{"", 1}}, 1e-3, 1e5, "a number from 0.001 to 100000, like 4 for 4:1"};

enum { KEY_TOP_LATENCY, KEY_TOP_RACKS, KEY_TOP_COUNT };
static const struct racks_key racks_top_keys[] = {{"latency", RACKS_TIME, false}, {"racks", RACKS_LIST, true}};

enum {
	KEY_RACK_NAME,
	KEY_RACK_UPLINK,
	KEY_RACK_OVER,
	KEY_RACK_LATENCY,
	KEY_RACK_BOXES,
	KEY_RACK_HOSTS,
	KEY_RACK_COUNT
};
static const struct racks_key racks_rack_keys[] = {{"name", RACKS_NAME, true}, {"uplink", RACKS_RATE, false},
	{"oversubscription", RACKS_RATIO, false}, {"latency", RACKS_TIME, false}, {"boxes", RACKS_LIST, true},
	{"hosts", RACKS_LIST, false}};

enum { KEY_BOX_NAME, KEY_BOX_ADDRESS, KEY_BOX_RATE, KEY_BOX_CORES, KEY_BOX_SIBLING, KEY_BOX_COUNT };
static const struct racks_key racks_box_keys[] = {{"name", RACKS_NAME, true}, {"address", RACKS_ADDRESS, true},
	{"rate", RACKS_RATE, true}, {"cores", RACKS_COUNT, false}, {"sibling", RACKS_NAME, false}};

enum { KEY_HOST_NAME, KEY_HOST_RATE, KEY_HOST_WORKERS, KEY_HOST_COUNT };
static const struct racks_key racks_host_keys[] = {
	{"name", RACKS_NAME, true}, {"rate", RACKS_RATE, true}, {"workers", RACKS_COUNT, false}};

enum { RACKS_KEYS_MAX = 8 };

/* ---- nodes ---- */

static unsigned racks_line(const yaml_node_t *node)
{
	return (unsigned)node->start_mark.line + 1;
}

/* NULL: it is no plain value. */
static const char *racks_scalar(const yaml_node_t *node)
{
	const char *text = node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : NULL;

	return text && strlen(text) == node->data.scalar.length ? text : NULL;
}

static int racks_wrong(struct racks_file *f, const yaml_node_t *node, const char *key, const char *allowed)
{
	const char *text = racks_scalar(node);

	return err_set(f->e, -EINVAL, "%s:%u: %s: '%.64s' is not understood; allowed: %s", f->name, racks_line(node),
		key,
		text                             ? text
		: node->type == YAML_SCALAR_NODE ? "(a NUL)"
						 : "(a list or mapping)",
		allowed);
}

static int racks_no_key(
	struct racks_file *f, const yaml_node_t *key, const char *what, const struct racks_key *keys, unsigned count)
{
	const char *name = racks_scalar(key);
	struct suggest near = {.word = name ? name : ""};
	char all[160] = "";
	size_t at = 0;

	for (unsigned i = 0; i < count && at < sizeof(all); i++) {
		suggest_offer(&near, keys[i].name);
		at += (size_t)snprintf(all + at, sizeof(all) - at, "%s%s", i ? ", " : "", keys[i].name);
	}
	if (near.best)
		return err_set(f->e, -EINVAL, "%s:%u: %s has no key '%.64s'; did you mean %s?", f->name,
			racks_line(key), what, name, near.best);
	return err_set(f->e, -EINVAL, "%s:%u: %s has no key '%.64s'; allowed: %s", f->name, racks_line(key), what,
		name ? name : "(a list or mapping)", all);
}

/* The value of each key of a mapping that is here. */
static int racks_keys(struct racks_file *f, const yaml_node_t *map, const char *what, const struct racks_key *keys,
	unsigned count, const yaml_node_t *values[RACKS_KEYS_MAX])
{
	memset(values, 0, RACKS_KEYS_MAX * sizeof(*values));
	if (map->type != YAML_MAPPING_NODE)
		return err_set(
			f->e, -EINVAL, "%s:%u: %s is no mapping of keys to values", f->name, racks_line(map), what);
	for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top; p++) {
		const yaml_node_t *key = yaml_document_get_node(&f->document, p->key);
		const char *name = racks_scalar(key);
		unsigned i = 0;

		while (i < count && (!name || strcmp(keys[i].name, name) != 0))
			i++;
		if (i == count)
			return racks_no_key(f, key, what, keys, count);
		if (values[i])
			return err_set(f->e, -EINVAL, "%s:%u: %s is given twice, first in line %u", f->name,
				racks_line(key), name, racks_line(values[i]));
		values[i] = yaml_document_get_node(&f->document, p->value);
	}
	for (unsigned i = 0; i < count; i++)
		if (keys[i].required && !values[i])
			return err_set(
				f->e, -EINVAL, "%s:%u: %s lacks '%s'", f->name, racks_line(map), what, keys[i].name);
	return 0;
}

/* Calls `take` for each item of the list; a node that is not there has none. */
static int racks_each(struct racks_file *f, const yaml_node_t *list, const char *key, unsigned rack,
	int (*take)(struct racks_file *f, const yaml_node_t *item, unsigned rack))
{
	int rc = 0;

	if (list && list->type != YAML_SEQUENCE_NODE)
		return err_set(f->e, -EINVAL, "%s:%u: %s is no list", f->name, racks_line(list), key);
	for (unsigned i = 0;
		list && rc == 0 && i < (unsigned)(list->data.sequence.items.top - list->data.sequence.items.start); i++)
		rc = take(f, yaml_document_get_node(&f->document, list->data.sequence.items.start[i]), rack);
	return rc;
}

/* ---- values ---- */

static int racks_take_name(struct racks_file *f, const yaml_node_t *node, const char *key, char out[RACKS_NAME_BYTES])
{
	const char *text = racks_scalar(node);
	size_t bytes = text ? strlen(text) : 0;

	if (bytes == 0 || bytes >= RACKS_NAME_BYTES || strpbrk(text, RACKS_STOPS))
		return racks_wrong(f, node, key, "1 to 63 characters without spaces, commas, slashes, quotes and =");
	memcpy(out, text, bytes + 1);
	return 0;
}

/* A number with one of its units. */
static int racks_take_number(
	struct racks_file *f, const yaml_node_t *node, const char *key, const struct racks_range *range, double *out)
{
	const char *text = racks_scalar(node);
	char *end = NULL;
	double value = text && *text ? strtod(text, &end) : 0;

	for (const struct racks_unit *unit = range->units; end && unit->name; unit++) {
		if (strcmp(unit->name, end) != 0)
			continue;
		value *= unit->factor;
		/* With a grain of room, as 1ns is no number of this machine. */
		if (!(value >= range->least * 0.999999 && value <= range->most * 1.000001))
			break;
		*out = value;
		return 0;
	}
	return racks_wrong(f, node, key, range->allowed);
}

static int racks_take_rate(struct racks_file *f, const yaml_node_t *node, const char *key, double *out)
{
	return racks_take_number(f, node, key, &racks_rates, out);
}

static int racks_take_time(struct racks_file *f, const yaml_node_t *node, const char *key, double *out)
{
	return racks_take_number(f, node, key, &racks_times, out);
}

static int racks_take_count(struct racks_file *f, const yaml_node_t *node, const char *key, unsigned max, unsigned *out)
{
	const char *text = racks_scalar(node);
	char *end = NULL, allowed[40];
	unsigned long value = text && *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;

	snprintf(allowed, sizeof(allowed), "1 to %u", max);
	if (!end || *end || value < 1 || value > max)
		return racks_wrong(f, node, key, allowed);
	*out = (unsigned)value;
	return 0;
}

/* "10.0.0.1:7077", "[::1]:7077", "name:7077" */
static int racks_take_address(struct racks_file *f, const yaml_node_t *node, struct rack_box *box)
{
	static const char allowed[] = "HOST:PORT, like 10.0.0.1:7077 or [::1]:7077";
	const char *text = racks_scalar(node), *colon = text ? strrchr(text, ':') : NULL;
	size_t bytes = colon ? (size_t)(colon - text) : 0;
	char *end = NULL;
	unsigned long port = colon && colon[1] >= '0' && colon[1] <= '9' ? strtoul(colon + 1, &end, 10) : 0;

	if (bytes > 1 && text[0] == '[' && text[bytes - 1] == ']') {
		text++;
		bytes -= 2;
	} else if (bytes > 0 && memchr(text, ':', bytes)) {
		return racks_wrong(f, node, "address", allowed);
	}
	if (bytes == 0 || bytes >= RACKS_HOST_BYTES || strcspn(text, RACKS_STOPS) < bytes || !end || *end || port < 1 ||
		port > UINT16_MAX)
		return racks_wrong(f, node, "address", allowed);
	memcpy(box->host, text, bytes);
	box->host[bytes] = '\0';
	box->port = (uint16_t)port;
	return 0;
}

/* ---- what the file has ---- */

/* Room for one more of a list. */
static int racks_grow(struct racks_file *f, const yaml_node_t *node, void *list, unsigned count, unsigned max,
	size_t bytes, const char *what)
{
	void *more;

	if (count >= max)
		return err_set(f->e, -EINVAL, "%s:%u: more than %u %s", f->name, racks_line(node), max, what);
	memcpy(&more, list, sizeof(more));
	more = realloc(more, (count + 1) * bytes);
	if (!more)
		return err_set(f->e, -ENOMEM, "no memory for %s", f->name);
	memcpy(list, &more, sizeof(more));
	memset((char *)more + count * bytes, 0, bytes);
	return 0;
}

static int racks_take_box(struct racks_file *f, const yaml_node_t *node, unsigned rack)
{
	const yaml_node_t *v[RACKS_KEYS_MAX];
	struct racks *r = f->racks;
	struct rack_box *box;
	int rc = racks_keys(f, node, "a box", racks_box_keys, KEY_BOX_COUNT, v);

	if (rc == 0)
		rc = racks_grow(f, node, &r->boxes, r->box_count, RACKS_MAX, sizeof(*r->boxes), "boxes");
	if (rc < 0)
		return rc;
	box = &r->boxes[r->box_count++];
	box->rack = rack;
	box->sibling = RACKS_NONE;
	box->line = racks_line(node);
	rc = racks_take_name(f, v[KEY_BOX_NAME], "name", box->name);
	if (rc == 0)
		rc = racks_take_address(f, v[KEY_BOX_ADDRESS], box);
	if (rc == 0)
		rc = racks_take_rate(f, v[KEY_BOX_RATE], "rate", &box->rate_bytes_s);
	if (rc == 0 && v[KEY_BOX_CORES])
		rc = racks_take_count(f, v[KEY_BOX_CORES], "cores", 1024, &box->cores);
	return rc;
}

static int racks_take_host(struct racks_file *f, const yaml_node_t *node, unsigned rack)
{
	const yaml_node_t *v[RACKS_KEYS_MAX];
	struct racks *r = f->racks;
	struct rack_host *host;
	int rc = racks_keys(f, node, "a host", racks_host_keys, KEY_HOST_COUNT, v);

	if (rc == 0)
		rc = racks_grow(f, node, &r->hosts, r->host_count, RACKS_HOSTS_MAX, sizeof(*r->hosts), "hosts");
	if (rc < 0)
		return rc;
	host = &r->hosts[r->host_count++];
	host->rack = rack;
	host->workers = 1;
	host->line = racks_line(node);
	rc = racks_take_name(f, v[KEY_HOST_NAME], "name", host->name);
	if (rc == 0)
		rc = racks_take_rate(f, v[KEY_HOST_RATE], "rate", &host->rate_bytes_s);
	if (rc == 0 && v[KEY_HOST_WORKERS])
		rc = racks_take_count(f, v[KEY_HOST_WORKERS], "workers", 1024, &host->workers);
	return rc;
}

/* What its hosts and boxes could send all together. */
static double racks_links(const struct racks *r, unsigned rack)
{
	double sum = 0;

	for (unsigned i = 0; i < r->box_count; i++)
		sum += r->boxes[i].rack == rack ? r->boxes[i].rate_bytes_s : 0;
	for (unsigned i = 0; i < r->host_count; i++)
		sum += r->hosts[i].rack == rack ? r->hosts[i].rate_bytes_s : 0;
	return sum;
}

static int racks_take_uplink(struct racks_file *f, const yaml_node_t *v[RACKS_KEYS_MAX], unsigned rack)
{
	double *uplink = &f->racks->racks[rack].uplink_bytes_s, ratio;
	int rc;

	if (v[KEY_RACK_UPLINK] && v[KEY_RACK_OVER])
		return err_set(f->e, -EINVAL, "%s:%u: oversubscription beside uplink: either says what the other does",
			f->name, racks_line(v[KEY_RACK_OVER]));
	if (v[KEY_RACK_UPLINK])
		return racks_take_rate(f, v[KEY_RACK_UPLINK], "uplink", uplink);
	if (!v[KEY_RACK_OVER])
		return 0;
	rc = racks_take_number(f, v[KEY_RACK_OVER], "oversubscription", &racks_ratios, &ratio);
	if (rc == 0)
		*uplink = racks_links(f->racks, rack) / ratio;
	return rc;
}

static int racks_take_rack(struct racks_file *f, const yaml_node_t *node, unsigned rack)
{
	const yaml_node_t *v[RACKS_KEYS_MAX];
	struct racks *r = f->racks;
	unsigned boxes = r->box_count;
	int rc = racks_keys(f, node, "a rack", racks_rack_keys, KEY_RACK_COUNT, v);

	if (rc == 0)
		rc = racks_grow(f, node, &r->racks, r->rack_count, RACKS_MAX, sizeof(*r->racks), "racks");
	if (rc < 0)
		return rc;
	rack = r->rack_count++;
	r->racks[rack].line = racks_line(node);
	rc = racks_take_name(f, v[KEY_RACK_NAME], "name", r->racks[rack].name);
	if (rc == 0)
		rc = racks_each(f, v[KEY_RACK_BOXES], "boxes", rack, racks_take_box);
	if (rc == 0 && r->box_count == boxes)
		rc = err_set(f->e, -EINVAL, "%s:%u: rack '%s' has no box", f->name, r->racks[rack].line,
			r->racks[rack].name);
	if (rc == 0)
		rc = racks_each(f, v[KEY_RACK_HOSTS], "hosts", rack, racks_take_host);
	if (rc == 0)
		rc = racks_take_uplink(f, v, rack);
	if (rc == 0 && v[KEY_RACK_LATENCY])
		rc = racks_take_time(f, v[KEY_RACK_LATENCY], "latency", &r->racks[rack].latency_s);
	return rc;
}

/* ---- what must fit ---- */

static int racks_twice(struct racks_file *f, const char *what, const char *name, unsigned line, unsigned first)
{
	return err_set(f->e, -EINVAL, "%s:%u: there is a %s '%s' in line %u already", f->name, line, what, name, first);
}

static int racks_check_names(struct racks_file *f)
{
	const struct racks *r = f->racks;

	for (unsigned i = 0; i < r->rack_count; i++)
		for (unsigned j = 0; j < i; j++)
			if (strcmp(r->racks[i].name, r->racks[j].name) == 0)
				return racks_twice(f, "rack", r->racks[i].name, r->racks[i].line, r->racks[j].line);
	for (unsigned i = 0; i < r->box_count; i++)
		for (unsigned j = 0; j < i; j++) {
			const struct rack_box *a = &r->boxes[i], *b = &r->boxes[j];

			if (strcmp(a->name, b->name) == 0)
				return racks_twice(f, "box", a->name, a->line, b->line);
			if (strcmp(a->host, b->host) == 0 && a->port == b->port)
				return err_set(f->e, -EINVAL, "%s:%u: box '%s' has the address of box '%s', in line %u",
					f->name, a->line, a->name, b->name, b->line);
		}
	for (unsigned i = 0; i < r->host_count; i++)
		for (unsigned j = 0; j < i; j++)
			if (strcmp(r->hosts[i].name, r->hosts[j].name) == 0)
				return racks_twice(f, "host", r->hosts[i].name, r->hosts[i].line, r->hosts[j].line);
	return 0;
}

/* The sibling of the box at `box`, whose mapping this is: it may stand behind it. */
static int racks_take_sibling(struct racks_file *f, const yaml_node_t *node, unsigned box)
{
	const yaml_node_t *v[RACKS_KEYS_MAX];
	char name[RACKS_NAME_BYTES];
	int rc = racks_keys(f, node, "a box", racks_box_keys, KEY_BOX_COUNT, v), at;

	if (rc < 0 || !v[KEY_BOX_SIBLING])
		return rc;
	rc = racks_take_name(f, v[KEY_BOX_SIBLING], "sibling", name);
	if (rc < 0)
		return rc;
	at = racks_find_box(f->racks, name);
	if (at == RACKS_NONE || at == (int)box)
		return err_set(f->e, -EINVAL, "%s:%u: sibling: '%s' is %s", f->name, racks_line(v[KEY_BOX_SIBLING]),
			name, at == RACKS_NONE ? "no box of this file" : "the box itself");
	f->racks->boxes[box].sibling = at;
	return 0;
}

static int racks_check_siblings(struct racks_file *f, const yaml_node_t *list)
{
	unsigned box = 0;
	int rc = 0;

	for (const yaml_node_item_t *i = list->data.sequence.items.start; rc == 0 && i < list->data.sequence.items.top;
		i++) {
		const yaml_node_t *v[RACKS_KEYS_MAX], *boxes;

		rc = racks_keys(
			f, yaml_document_get_node(&f->document, *i), "a rack", racks_rack_keys, KEY_RACK_COUNT, v);
		boxes = v[KEY_RACK_BOXES];
		for (const yaml_node_item_t *j = boxes->data.sequence.items.start;
			rc == 0 && j < boxes->data.sequence.items.top; j++)
			rc = racks_take_sibling(f, yaml_document_get_node(&f->document, *j), box++);
	}
	return rc;
}

static int racks_check_uplinks(struct racks_file *f)
{
	const struct racks *r = f->racks;

	for (unsigned i = 0; i < r->rack_count && r->rack_count > 1; i++)
		if (r->racks[i].uplink_bytes_s <= 0)
			return err_set(f->e, -EINVAL,
				"%s:%u: rack '%s' says neither uplink (a rate) nor oversubscription (a ratio), and "
				"there are %u "
				"racks",
				f->name, r->racks[i].line, r->racks[i].name, r->rack_count);
	return 0;
}

static int racks_take_all(struct racks_file *f)
{
	const yaml_node_t *root = yaml_document_get_root_node(&f->document), *v[RACKS_KEYS_MAX];
	int rc;

	if (!root)
		return err_set(f->e, -EINVAL, "%s: the file is empty; it needs a list 'racks'", f->name);
	rc = racks_keys(f, root, "the file", racks_top_keys, KEY_TOP_COUNT, v);
	if (rc == 0 && v[KEY_TOP_LATENCY])
		rc = racks_take_time(f, v[KEY_TOP_LATENCY], "latency", &f->racks->latency_s);
	if (rc == 0)
		rc = racks_each(f, v[KEY_TOP_RACKS], "racks", 0, racks_take_rack);
	if (rc == 0 && f->racks->rack_count == 0)
		rc = err_set(f->e, -EINVAL, "%s:%u: there is no rack", f->name, racks_line(v[KEY_TOP_RACKS]));
	if (rc == 0)
		rc = racks_check_names(f);
	if (rc == 0)
		rc = racks_check_siblings(f, v[KEY_TOP_RACKS]);
	return rc == 0 ? racks_check_uplinks(f) : rc;
}

/* Behind the first document. */
static int racks_check_rest(struct racks_file *f, yaml_parser_t *parser)
{
	yaml_document_t more;
	const yaml_node_t *root;
	int rc = 0;

	if (!yaml_parser_load(parser, &more))
		return err_set(f->e, -EINVAL, "%s:%zu: %s", f->name, parser->problem_mark.line + 1,
			parser->problem ? parser->problem : "no YAML");
	root = yaml_document_get_root_node(&more);
	if (root)
		rc = err_set(f->e, -EINVAL, "%s:%u: a second document begins; all racks belong into the first", f->name,
			racks_line(root));
	yaml_document_delete(&more);
	return rc;
}

int racks_parse(const char *text, size_t bytes, const char *name, struct racks *out, struct err *e)
{
	struct racks racks = {0};
	struct racks_file f = {.name = name, .racks = &racks, .e = e};
	yaml_parser_t parser;
	int rc = 0;

	if (!yaml_parser_initialize(&parser))
		return err_set(e, -ENOMEM, "no memory for %s", name);
	yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
	if (!yaml_parser_load(&parser, &f.document))
		rc = err_set(e, -EINVAL, "%s:%zu: %s", name, parser.problem_mark.line + 1,
			parser.problem ? parser.problem : "no YAML");
	if (rc == 0) {
		rc = racks_take_all(&f);
		if (rc == 0)
			rc = racks_check_rest(&f, &parser);
		yaml_document_delete(&f.document);
	}
	yaml_parser_delete(&parser);
	if (rc < 0)
		racks_fini(&racks);
	else
		*out = racks;
	return rc;
}

int racks_read(const char *path, struct racks *out, struct err *e)
{
	FILE *file = fopen(path, "re");
	char *text = file ? malloc(RACKS_FILE_MAX) : NULL;
	size_t bytes = text ? fread(text, 1, RACKS_FILE_MAX, file) : 0;
	int rc;

	if (!file)
		rc = err_set(e, -errno, "%s: %s", path, strerror(errno));
	else if (!text)
		rc = err_set(e, -ENOMEM, "no memory for %s", path);
	else if (ferror(file))
		rc = err_set(e, -EIO, "%s: cannot be read: %s", path, strerror(errno));
	else if (bytes == RACKS_FILE_MAX)
		rc = err_set(e, -EINVAL, "%s: more than %u bytes", path, RACKS_FILE_MAX);
	else
		rc = racks_parse(text, bytes, path, out, e);
	free(text);
	if (file)
		fclose(file);
	return rc;
}

void racks_fini(struct racks *r)
{
	free(r->racks);
	free(r->boxes);
	free(r->hosts);
	*r = (struct racks){0};
}

int racks_find_box(const struct racks *r, const char *name)
{
	for (unsigned i = 0; i < r->box_count; i++)
		if (strcmp(r->boxes[i].name, name) == 0)
			return (int)i;
	return RACKS_NONE;
}

unsigned racks_workers(const struct racks *r, unsigned rack)
{
	unsigned sum = 0;

	for (unsigned i = 0; i < r->host_count; i++)
		sum += r->hosts[i].rack == rack ? r->hosts[i].workers : 0;
	return sum;
}
