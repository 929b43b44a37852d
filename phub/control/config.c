/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The config file, by libyaml's documents, whose marks give every error its line. Unknown keys, keys given twice and
 * values out of range are errors: a typo must not become a default.
 */
#include "phub/control/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

#include "phub/control/config_options.h"

struct config_file {
	struct config *config;
	yaml_document_t document;
	const char *name;
	struct err *e;
};

void config_init(struct config *config)
{
	struct err e;
	int rc;

	memset(config, 0, sizeof(*config));
	for (unsigned i = 0; i < option_count; i++) {
		if (option_table[i].type == OPTION_JOBS)
			continue;
		rc = option_read(&option_table[i], config, option_table[i].fallback, &e);
		if (rc < 0)
			abort(); /* a default that its own option does not allow */
	}
}

void config_wipe_secret(struct config_secret *secret)
{
	if (secret->bytes)
		explicit_bzero(secret->bytes, secret->length);
	free(secret->bytes);
	secret->bytes = NULL;
	secret->length = 0;
}

void config_fini(struct config *config)
{
	config_wipe_secret(&config->create_secret);
	config_wipe_secret(&config->admin_secret);
	config_wipe_secret(&config->etcd_secret);
	for (unsigned i = 0; i < config->job_count; i++)
		config_wipe_secret(&config->jobs[i].secret);
	free(config->jobs);
	config->jobs = NULL;
	config->job_count = 0;
	racks_fini(&config->racks);
}

static unsigned config_line(const yaml_node_t *node)
{
	return (unsigned)node->start_mark.line + 1;
}

/* The node's text, or NULL when it is no scalar, or one with a NUL inside. */
static const char *config_scalar(const yaml_node_t *node)
{
	const char *text;

	if (!node || node->type != YAML_SCALAR_NODE)
		return NULL;
	text = (const char *)node->data.scalar.value;
	return strlen(text) == node->data.scalar.length ? text : NULL;
}

/* An item of a list that is none. */
static int config_item(struct config_file *f, const struct option *o, const yaml_node_t *node, const char *text)
{
	char allowed[256];

	option_allowed(o, allowed, sizeof(allowed));
	return err_set(f->e, -EINVAL, "%s:%u: %s: item '%.64s' is no plain word; allowed: %s", f->name,
		config_line(node), o->name, text ? text : "(a list or mapping)", allowed);
}

/* Items of a sequence as one comma-separated text; for cores in brackets. */
static int config_join(struct config_file *f, const struct option *o, const yaml_node_t *node, char *out, size_t bytes)
{
	const yaml_node_item_t *item = node->data.sequence.items.start;
	size_t at = 0;

	if (o->type == OPTION_CORES)
		out[at++] = '[';
	for (; item < node->data.sequence.items.top; item++) {
		const yaml_node_t *child = yaml_document_get_node(&f->document, *item);
		const char *text = config_scalar(child);

		if (!text || strchr(text, ','))
			return config_item(f, o, child ? child : node, text);
		at += (size_t)snprintf(
			out + at, bytes - at, "%s%s", item == node->data.sequence.items.start ? "" : ",", text);
		if (at + 2 > bytes)
			return err_set(
				f->e, -EINVAL, "%s:%u: %s: the list is too long", f->name, config_line(node), o->name);
	}
	if (o->type == OPTION_CORES)
		out[at++] = ']';
	out[at] = '\0';
	return 0;
}

/* What a node is that is no plain value. */
static const char *config_kind(const yaml_node_t *node)
{
	if (node->type == YAML_SEQUENCE_NODE)
		return ", but a list";
	return node->type == YAML_MAPPING_NODE ? ", but a mapping" : "";
}

static int config_option(struct config_file *f, const struct option *o, void *base, const yaml_node_t *node)
{
	char joined[OPTION_TEXT_BYTES];
	const char *text = config_scalar(node);
	struct err why;
	int rc;

	if (!text && node->type == YAML_SEQUENCE_NODE && (option_is_list(o) || o->type == OPTION_CORES)) {
		rc = config_join(f, o, node, joined, sizeof(joined));
		if (rc < 0)
			return rc;
		text = joined;
	}
	if (!text) {
		char allowed[256];

		option_allowed(o, allowed, sizeof(allowed));
		return err_set(f->e, -EINVAL, "%s:%u: %s: not a plain value%s; allowed: %s", f->name, config_line(node),
			o->name, config_kind(node), allowed);
	}
	if (option_read(o, base, text, &why) < 0)
		return err_set(f->e, -EINVAL, "%s:%u: %s", f->name, config_line(node), why.text);
	return 0;
}

/* Finds the option of a pair's key, and that it comes for the first time. */
static int config_key(struct config_file *f, const yaml_node_pair_t *pair, const struct option *table, unsigned count,
	bool seen[CONFIG_OPTIONS_MAX], const struct option **out)
{
	const yaml_node_t *key = yaml_document_get_node(&f->document, pair->key);
	const char *name = config_scalar(key);
	const struct option *o = name ? option_find(table, count, name) : NULL;
	char names[512];

	if (!o) {
		option_suggest(table, count, name ? name : "", names, sizeof(names));
		return err_set(f->e, -EINVAL, "%s:%u: unknown key '%.64s'; %s", f->name, config_line(key),
			name ? name : "(not a word)", names);
	}
	if (table == option_table)
		f->config->lines[o - table] = config_line(key);
	if (seen[o - table])
		return err_set(f->e, -EINVAL, "%s:%u: %s is given twice", f->name, config_line(key), o->name);
	seen[o - table] = true;
	*out = o;
	return 0;
}

static int config_job(struct config_file *f, const yaml_node_t *node, struct config_job *job)
{
	const struct option *o;
	bool seen[CONFIG_OPTIONS_MAX] = {false};
	int rc;

	if (!node || node->type != YAML_MAPPING_NODE)
		return err_set(f->e, -EINVAL,
			"%s:%u: jobs: an item is no mapping like {name: mnist, secret_file: /etc/phub/mnist}", f->name,
			node ? config_line(node) : 0);
	job->line = config_line(node);
	job->weight = 1;
	for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top; p++) {
		rc = config_key(f, p, option_job_table, option_job_count, seen, &o);
		if (rc == 0)
			rc = config_option(f, o, job, yaml_document_get_node(&f->document, p->value));
		if (rc < 0)
			return rc;
	}
	if (!config_job_name_valid(job->name))
		return err_set(f->e, -EINVAL,
			"%s:%u: jobs: name '%.64s'; allowed: 1 to %u printable characters without / and spaces",
			f->name, job->line, job->name, SPEC_NAME_BYTES - 1);
	return 0;
}

static int config_jobs(struct config_file *f, const yaml_node_t *node)
{
	struct config *config = f->config;
	size_t count;

	if (node->type == YAML_SCALAR_NODE && node->data.scalar.length == 0)
		return 0;
	if (node->type != YAML_SEQUENCE_NODE)
		return err_set(f->e, -EINVAL,
			"%s:%u: jobs: not a list; write - {name: mnist, secret_file: /etc/phub/mnist}", f->name,
			config_line(node));
	count = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
	if (count > CONFIG_JOBS_MAX)
		return err_set(f->e, -EINVAL, "%s:%u: jobs: %zu of them; allowed: at most %u", f->name,
			config_line(node), count, CONFIG_JOBS_MAX);
	config->jobs = calloc(count ? count : 1, sizeof(*config->jobs));
	if (!config->jobs)
		return err_set(f->e, -ENOMEM, "%s: no memory", f->name);
	for (size_t i = 0; i < count; i++) {
		struct config_job *job = &config->jobs[config->job_count++];
		const struct config_job *twin;
		int rc = config_job(f, yaml_document_get_node(&f->document, node->data.sequence.items.start[i]), job);

		if (rc < 0)
			return rc;
		twin = config_find_job(config, job->name);
		if (twin != job)
			return err_set(f->e, -EINVAL, "%s:%u: jobs: '%s' is given twice, first in line %u", f->name,
				job->line, job->name, twin->line);
	}
	return 0;
}

static int config_root(struct config_file *f)
{
	const yaml_node_t *root = yaml_document_get_root_node(&f->document);
	const struct option *o;
	bool seen[CONFIG_OPTIONS_MAX] = {false};
	int rc;

	if (!root || (root->type == YAML_SCALAR_NODE && root->data.scalar.length == 0))
		return 0; /* nothing but comments */
	if (root->type != YAML_MAPPING_NODE)
		return err_set(f->e, -EINVAL, "%s:%u: not a list of key: value", f->name, config_line(root));
	for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top; p++) {
		const yaml_node_t *value = yaml_document_get_node(&f->document, p->value);

		rc = config_key(f, p, option_table, option_count, seen, &o);
		if (rc == 0)
			rc = o->type == OPTION_JOBS ? config_jobs(f, value) : config_option(f, o, f->config, value);
		if (rc < 0)
			return rc;
	}
	return 0;
}

int config_parse(struct config *config, const void *text, size_t bytes, const char *name, struct err *e)
{
	struct config_file f = {.config = config, .name = name, .e = e};
	yaml_parser_t parser;
	int rc;

	/* Of an older file the lines are forgotten: none is better than a wrong one. */
	memset(config->lines, 0, sizeof(config->lines));
	snprintf(config->file, sizeof(config->file), "%s", name);
	if (bytes > CONFIG_FILE_BYTES_MAX)
		return err_set(e, -EFBIG, "%s: %zu bytes; at most %u are read", name, bytes, CONFIG_FILE_BYTES_MAX);
	if (!yaml_parser_initialize(&parser))
		return err_set(e, -ENOMEM, "%s: no memory", name);
	yaml_parser_set_input_string(&parser, text, bytes);
	if (!yaml_parser_load(&parser, &f.document)) {
		rc = err_set(e, -EINVAL, "%s:%zu: not YAML: %s", name, parser.problem_mark.line + 1,
			parser.problem ? parser.problem : "cannot be read");
	} else {
		rc = config_root(&f);
		yaml_document_delete(&f.document);
	}
	yaml_parser_delete(&parser);
	return rc;
}

int config_load(struct config *config, const char *path, struct err *e)
{
	FILE *file = fopen(path, "re");
	char *text;
	size_t bytes;
	int rc;

	if (!file) {
		rc = -errno;
		return err_set(e, rc, "%s: %s; give an existing file to --config", path, strerror(-rc));
	}
	text = malloc(CONFIG_FILE_BYTES_MAX + 1);
	if (!text) {
		fclose(file);
		return err_set(e, -ENOMEM, "%s: no memory", path);
	}
	bytes = fread(text, 1, CONFIG_FILE_BYTES_MAX + 1, file);
	if (ferror(file))
		rc = err_set(e, -EIO, "%s: cannot be read; give a YAML file to --config", path);
	else
		rc = config_parse(config, text, bytes, path, e);
	fclose(file);
	free(text);
	return rc;
}

int config_set(struct config *config, const char *assignment, struct err *e)
{
	const char *equal = strchr(assignment, '=');
	const struct option *o = NULL;
	char name[65] = "", names[512];
	size_t length = equal ? (size_t)(equal - assignment) : 0;

	if (!equal)
		return err_set(e, -EINVAL, "'%.64s' is not key=value", assignment);
	if (length < sizeof(name)) {
		memcpy(name, assignment, length);
		name[length] = '\0';
		o = option_find(option_table, option_count, name);
	}
	if (!o) {
		option_suggest(option_table, option_count, name, names, sizeof(names));
		return err_set(
			e, -EINVAL, "unknown key '%.*s'; %s", (int)(length < 64 ? length : 64), assignment, names);
	}
	if (o->type == OPTION_JOBS)
		return err_set(e, -EINVAL, "jobs: can only be given in a file; use --config");
	config->lines[o - option_table] = 0;
	return option_read(o, config, equal + 1, e);
}

const struct config_job *config_find_job(const struct config *config, const char *name)
{
	const struct config_job *found = NULL;
	size_t longest = 0;

	for (unsigned i = 0; i < config->job_count; i++) {
		size_t length = strlen(config->jobs[i].name);

		if (strncmp(config->jobs[i].name, name, length) != 0)
			continue;
		if (name[length] == 0)
			return &config->jobs[i];
		if (name[length] == '.' && length > longest) {
			found = &config->jobs[i];
			longest = length;
		}
	}
	return found;
}

bool config_job_name_valid(const char *name)
{
	size_t length = strlen(name);

	if (length == 0 || length >= SPEC_NAME_BYTES)
		return false;
	for (size_t i = 0; i < length; i++)
		if (name[i] <= ' ' || name[i] > '~' || name[i] == '/')
			return false;
	return true;
}
