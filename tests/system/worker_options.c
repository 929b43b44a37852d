/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arguments of the worker: "name=value", from one table.
 */
#include "tests/system/worker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum option_type { OPTION_TEXT, OPTION_INT, OPTION_UNSIGNED, OPTION_U64, OPTION_BOOL, OPTION_DOUBLE, OPTION_ENUM };

struct option {
	const char *name;
	enum option_type type;
	size_t offset;
	const char *const *names; /* OPTION_ENUM */
};

static const char *const optimizer_names[] = {"none", "sgd", "momentum", "nesterov", "adagrad", "adam", "adamw", NULL};
static const char *const reduce_names[] = {"sum", "mean", NULL};
static const char *const sync_names[] = {"bsp", "ssp", "async", NULL};
static const char *const nan_names[] = {"pass", "zero", "fail", NULL};
static const char *const seal_names[] = {"gmac", "crc", "none", NULL};
static const char *const lost_names[] = {"fail", "shrink", "wait", NULL};
static const char *const dtype_names[] = {"f32", "f16", "bf16", NULL};
static const char *const plant_names[] = {"nothing", "stale", "swapped", "doubled", NULL};

#define AT(field) offsetof(struct worker_options, field)

static const struct option option_table[] = {
	{"url", OPTION_TEXT, AT(url), NULL},
	{"rank", OPTION_INT, AT(phub.rank), NULL},
	{"world", OPTION_INT, AT(phub.world), NULL},
	{"secret", OPTION_TEXT, AT(phub.secret), NULL},
	{"transport", OPTION_TEXT, AT(phub.transport), NULL},
	{"interface", OPTION_TEXT, AT(phub.interface), NULL},
	{"timeout_ms", OPTION_INT, AT(phub.timeout_ms), NULL},
	{"optimizer", OPTION_ENUM, AT(phub.optimizer), optimizer_names},
	{"reduce", OPTION_ENUM, AT(phub.reduce), reduce_names},
	{"sync", OPTION_ENUM, AT(phub.sync), sync_names},
	{"staleness", OPTION_UNSIGNED, AT(phub.staleness), NULL},
	{"nan", OPTION_ENUM, AT(phub.nan), nan_names},
	{"seal", OPTION_ENUM, AT(phub.seal), seal_names},
	{"lost", OPTION_ENUM, AT(phub.lost), lost_names},
	{"replace_ms", OPTION_UNSIGNED, AT(phub.wait_ms), NULL},
	{"quorum", OPTION_UNSIGNED, AT(phub.quorum), NULL},
	{"resume_ms", OPTION_UNSIGNED, AT(phub.resume_ms), NULL},
	{"reproducible", OPTION_BOOL, AT(phub.reproducible), NULL},
	{"association", OPTION_TEXT, AT(phub.association), NULL},
	{"here", OPTION_BOOL, AT(phub.here), NULL},
	{"chunk_bytes", OPTION_UNSIGNED, AT(phub.chunk_bytes), NULL},
	{"lr", OPTION_DOUBLE, AT(hyper.lr), NULL},
	{"weight_decay", OPTION_DOUBLE, AT(hyper.weight_decay), NULL},
	{"dtype", OPTION_ENUM, AT(dtype), dtype_names},
	{"rounds", OPTION_U64, AT(rounds), NULL},
	{"normals", OPTION_BOOL, AT(normals), NULL},
	{"one_in", OPTION_UNSIGNED, AT(one_in), NULL},
	{"alloc", OPTION_BOOL, AT(alloc), NULL},
	{"registered", OPTION_BOOL, AT(registered), NULL},
	{"check", OPTION_BOOL, AT(check), NULL},
	{"census", OPTION_BOOL, AT(census), NULL},
	{"schedule", OPTION_UNSIGNED, AT(schedule), NULL},
	{"front", OPTION_BOOL, AT(front), NULL},
	{"back", OPTION_BOOL, AT(back), NULL},
	{"flat", OPTION_BOOL, AT(flat), NULL},
	{"barrier", OPTION_BOOL, AT(barrier), NULL},
	{"lag_ms", OPTION_U64, AT(lag_ms), NULL},
	{"delay_ms", OPTION_U64, AT(delay_ms), NULL},
	{"pause_us", OPTION_U64, AT(pause_us), NULL},
	{"report_ms", OPTION_U64, AT(report_ms), NULL},
	{"wait_ms", OPTION_INT, AT(wait_ms), NULL},
	{"patience_ms", OPTION_INT, AT(patience_ms), NULL},
	{"tables", OPTION_UNSIGNED, AT(tables), NULL},
	{"some", OPTION_BOOL, AT(some), NULL},
	{"settle", OPTION_BOOL, AT(settle), NULL},
	{"no_start", OPTION_BOOL, AT(no_start), NULL},
	{"no_weights", OPTION_BOOL, AT(no_weights), NULL},
	{"idle", OPTION_BOOL, AT(idle), NULL},
	{"no_leave", OPTION_BOOL, AT(no_leave), NULL},
	{"watch_ms", OPTION_U64, AT(watch_ms), NULL},
	{"stop_at", OPTION_U64, AT(stop_at), NULL},
	{"die_at", OPTION_U64, AT(die_at), NULL},
	{"skip_at", OPTION_U64, AT(skip_at), NULL},
	{"nan_at", OPTION_U64, AT(nan_at), NULL},
	{"look_at", OPTION_U64, AT(look_at), NULL},
	{"nan_key", OPTION_UNSIGNED, AT(nan_key), NULL},
	{"nan_element", OPTION_U64, AT(nan_element), NULL},
	{"infinite", OPTION_BOOL, AT(infinite), NULL},
	{"plant", OPTION_ENUM, AT(plant), plant_names},
};

static bool option_number(const char *text, uint64_t *out)
{
	char *end;

	errno = 0;
	*out = strtoull(text, &end, 10);
	return !errno && end != text && !*end;
}

static bool option_name(const char *const *names, const char *text, size_t length, unsigned *out)
{
	for (unsigned i = 0; names[i]; i++) {
		if (strlen(names[i]) == length && memcmp(names[i], text, length) == 0) {
			*out = i;
			return true;
		}
	}
	return false;
}

static bool option_set(const struct option *option, struct worker_options *o, const char *text)
{
	void *field = (char *)o + option->offset;
	uint64_t number = 0;
	unsigned index;
	char *end;

	switch (option->type) {
	case OPTION_TEXT:
		*(const char **)field = text;
		return true;
	case OPTION_INT:
		*(int *)field = (int)strtol(text, &end, 10);
		return end != text && !*end;
	case OPTION_DOUBLE:
		*(double *)field = strtod(text, &end);
		return end != text && !*end;
	case OPTION_ENUM:
		if (!option_name(option->names, text, strlen(text), &index))
			return false;
		memcpy(field, &index, sizeof(index));
		return true;
	case OPTION_UNSIGNED:
	case OPTION_U64:
	case OPTION_BOOL:
		break;
	}
	if (!option_number(text, &number))
		return false;
	if (option->type == OPTION_BOOL)
		*(bool *)field = number != 0;
	else if (option->type == OPTION_UNSIGNED)
		*(unsigned *)field = (unsigned)number;
	else
		*(uint64_t *)field = number;
	return true;
}

/* "name:elements[:dtype][:alone][:sparse]" */
static bool option_key(struct worker_options *o, char *text)
{
	struct worker_key *key = &o->keys[o->key_count];
	char *save = NULL, *name = strtok_r(text, ":", &save), *elements = strtok_r(NULL, ":", &save), *word;
	unsigned dtype;

	if (o->key_count == WORKER_KEYS || !elements || !option_number(elements, &key->elements))
		return false;
	snprintf(key->name, sizeof(key->name), "%s", name);
	key->dtype = o->dtype;
	while ((word = strtok_r(NULL, ":", &save))) {
		if (strcmp(word, "alone") == 0)
			key->flags |= PHUB_KEY_ALONE;
		else if (strcmp(word, "sparse") == 0)
			key->flags |= PHUB_KEY_SPARSE;
		else if (option_name(dtype_names, word, strlen(word), &dtype))
			key->dtype = (enum phub_dtype)dtype;
		else
			return false;
	}
	key->bytes = key->elements * worker_dtype_bytes(key->dtype);
	o->key_count++;
	return true;
}

/* A list, or @FILE with one. */
static bool option_keys(struct worker_options *o, const char *text)
{
	static char list[1 << 20];
	char *save = NULL;

	if (text[0] == '@') {
		FILE *file = fopen(text + 1, "re");
		size_t got = file ? fread(list, 1, sizeof(list) - 1, file) : 0;

		list[got] = '\0';
		if (file)
			fclose(file);
	} else {
		snprintf(list, sizeof(list), "%s", text);
	}
	for (char *item = strtok_r(list, ",\n", &save); item; item = strtok_r(NULL, ",\n", &save))
		if (!option_key(o, item))
			return false;
	return o->key_count > 0;
}

static void option_defaults(struct worker_options *o)
{
	*o = (struct worker_options){
		.check = true,
		.rounds = 3,
		.wait_ms = 60000,
		.tables = 1,
		.stop_at = WORKER_NEVER,
		.die_at = WORKER_NEVER,
		.skip_at = WORKER_NEVER,
		.nan_at = WORKER_NEVER,
	};
	phub_options_init(&o->phub);
	o->phub.rank = 0;
	o->phub.world = 1;
	o->phub.timeout_ms = 60000;
	o->hyper.lr = -1;
	o->hyper.weight_decay = -1;
}

/* The optimizer's defaults, but for what was named. */
static void option_finish(struct worker_options *o)
{
	struct phub_hyper named = o->hyper;

	phub_hyper_init(o->phub.optimizer, &o->hyper);
	if (named.lr >= 0)
		o->hyper.lr = named.lr;
	if (named.weight_decay >= 0)
		o->hyper.weight_decay = named.weight_decay;
	o->check = o->check && !o->census;
	o->phub.groups = &o->hyper;
	o->phub.group_count = 1;
	if (o->patience_ms < o->wait_ms)
		o->patience_ms = o->wait_ms;
}

static bool option_take(struct worker_options *o, const char *argument)
{
	const char *equals = strchr(argument, '=');
	size_t length = equals ? (size_t)(equals - argument) : 0;

	for (size_t i = 0; equals && i < sizeof(option_table) / sizeof(option_table[0]); i++) {
		if (strlen(option_table[i].name) == length && memcmp(option_table[i].name, argument, length) == 0)
			return option_set(&option_table[i], o, equals + 1);
	}
	return false;
}

bool worker_options_parse(struct worker_options *o, int argc, char **argv)
{
	const char *keys = NULL;

	option_defaults(o);
	o->keys = calloc(WORKER_KEYS, sizeof(*o->keys));
	if (!o->keys)
		return false;
	for (int i = 1; i < argc; i++) {
		if (strncmp(argv[i], "keys=", 5) == 0) {
			keys = argv[i] + 5;
		} else if (strcmp(argv[i], "rounds=until-told") == 0) {
			o->rounds = WORKER_NEVER;
		} else if (!option_take(o, argv[i])) {
			fprintf(stderr, "worker: '%s' is no option of mine\n", argv[i]);
			return false;
		}
	}
	if (!o->url || !option_keys(o, keys ? keys : "w:10000")) {
		fprintf(stderr, "worker: needs url=, and keys=name:elements[:dtype][:alone],... or keys=@FILE\n");
		return false;
	}
	if (o->some && (o->phub.world > (int)WORKER_SOME_WORLD || o->normals || o->phub.optimizer > PHUB_SGD)) {
		fprintf(stderr, "worker: some= knows whole numbers and sgd of at most %u ranks\n", WORKER_SOME_WORLD);
		return false;
	}
	option_finish(o);
	return true;
}
