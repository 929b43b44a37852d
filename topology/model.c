/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model: finds a model by name and has it built; sums and converts what is in one.
 */
#include "topology/model.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topology/models.h"

/* The one list of models, in the order of listing: name and function. */
#define MODEL_LIST(X)                                      \
	X("alexnet", models_alexnet)                       \
	X("vgg-11", models_vgg_11)                         \
	X("vgg-19", models_vgg_19)                         \
	X("googlenet", models_googlenet)                   \
	X("googlenet-noaux", models_googlenet_noaux)       \
	X("inception-v3", models_inception_v3)             \
	X("inception-v3-noaux", models_inception_v3_noaux) \
	X("resnet-18", models_resnet_18)                   \
	X("resnet-50", models_resnet_50)                   \
	X("bert-large", models_bert_large)                 \
	X("gpt2-small", models_gpt2_small)

#define MODEL_LIST_NAME(name, build)  name,
#define MODEL_LIST_BUILD(name, build) build,

static const char *const model_name_list[] = {MODEL_LIST(MODEL_LIST_NAME) NULL};
static void (*const model_build_list[])(struct model_builder *builder) = {MODEL_LIST(MODEL_LIST_BUILD)};

#define MODEL_LIST_COUNT (sizeof(model_build_list) / sizeof(model_build_list[0]))

const char *const *model_names(void)
{
	return model_name_list;
}

static char model_fold(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static const char *model_skip_separators(const char *s)
{
	while (*s == '-' || *s == '_' || *s == ' ')
		s++;
	return s;
}

/* Are two names equal without regard to case, '-', '_' and ' '? */
static bool model_name_equal(const char *a, const char *b)
{
	for (;;) {
		a = model_skip_separators(a);
		b = model_skip_separators(b);
		if (model_fold(*a) != model_fold(*b))
			return false;
		if (*a == '\0')
			return true;
		a++;
		b++;
	}
}

static int model_refuse_name(const char *name, struct err *e)
{
	char allowed[256];
	size_t used = 0;

	for (size_t i = 0; i < MODEL_LIST_COUNT && used < sizeof(allowed); i++)
		used += (size_t)snprintf(
			allowed + used, sizeof(allowed) - used, "%s%s", i ? ", " : "", model_name_list[i]);
	return err_set(e, -ENOENT, "no model is called '%.64s'; allowed are %s, or a CSV file of name,shape,dtype",
		name, allowed);
}

int model_create(const char *name, struct model *out, struct err *e)
{
	struct model_builder builder = {0};
	size_t at = 0;

	while (at < MODEL_LIST_COUNT && !model_name_equal(name, model_name_list[at]))
		at++;
	if (at == MODEL_LIST_COUNT)
		return model_refuse_name(name, e);
	model_build_list[at](&builder);
	if (builder.rc < 0) {
		free(builder.tensors);
		return err_set(
			e, builder.rc, "model %s cannot be built: %s", model_name_list[at], strerror(-builder.rc));
	}

	struct model model = {.tensors = builder.tensors, .count = builder.count};
	snprintf(model.name, sizeof(model.name), "%s", model_name_list[at]);
	*out = model;
	return 0;
}

void model_destroy(struct model *m)
{
	free(m->tensors);
	*m = (struct model){0};
}

uint64_t model_elements(const struct model *m)
{
	uint64_t elements = 0;

	for (size_t i = 0; i < m->count; i++)
		elements += m->tensors[i].elements;
	return elements;
}

uint64_t model_bytes(const struct model *m)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < m->count; i++)
		bytes += m->tensors[i].elements * chunking_dtype_bytes(m->tensors[i].dtype);
	return bytes;
}

void model_fill_keys(const struct model *m, struct chunk_key *keys)
{
	for (size_t i = 0; i < m->count; i++) {
		keys[i] = (struct chunk_key){
			.elements = m->tensors[i].elements,
			.dtype = m->tensors[i].dtype,
			.group = m->tensors[i].group,
		};
	}
}
