/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models: published parameter counts to the last one, spot-checked names and shapes, and the CSV reader: what it
 * accepts, each error with file and line, and its bounds.
 */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cmocka_shim.h"
#include "topology/model.h"

struct expected_model {
	const char *name;
	uint64_t elements;
	size_t tensors;
	uint64_t digest; /* FNV-1a of "name,AxBxC\n" of all tensors */
};

static const struct expected_model expected_models[] = {
	{"alexnet", 61100840, 16, UINT64_C(0xb0d7dac38a26aa00)},
	{"vgg-11", 132863336, 22, UINT64_C(0x5f39e84a8460f1f1)},
	{"vgg-19", 143667240, 38, UINT64_C(0x523e5e92811f03ee)},
	{"googlenet", 13004888, 187, UINT64_C(0xfd13f199bfa5a1db)},
	{"googlenet-noaux", 6624904, 173, UINT64_C(0x830ca0fdda34b685)},
	{"inception-v3", 27161264, 292, UINT64_C(0x4fe141b1687d5514)},
	{"inception-v3-noaux", 23834568, 284, UINT64_C(0xb314d53c20ce8f3d)},
	{"resnet-18", 11689512, 62, UINT64_C(0x8633147b4407a038)},
	{"resnet-50", 25557032, 161, UINT64_C(0xdc8b54389d7d0ad5)},
	{"bert-large", 335141888, 391, UINT64_C(0x59bd483d926b93a5)},
	{"gpt2-small", 124439808, 148, UINT64_C(0x27fa11c51761fd1e)},
};

#define EXPECTED_COUNT (sizeof(expected_models) / sizeof(expected_models[0]))

static uint64_t digest_text(uint64_t digest, const char *text)
{
	for (; *text; text++)
		digest = (digest ^ (uint8_t)*text) * UINT64_C(0x100000001b3);
	return digest;
}

/* The lists of the vision models were compared line by line with torchvision 0.14.1's named_parameters() and are pinned
 * here; those of the text models are pinned as they are. */
static void test_digests(void **state)
{
	for (size_t i = 0; i < EXPECTED_COUNT; i++) {
		uint64_t digest = UINT64_C(0xcbf29ce484222325);
		struct model m;
		struct err e = {0};

		assert_int_equal(model_create(expected_models[i].name, &m, &e), 0);
		for (size_t t = 0; t < m.count; t++) {
			digest = digest_text(digest, m.tensors[t].name);
			for (unsigned d = 0; d < m.tensors[t].dims; d++) {
				char part[32];

				snprintf(part, sizeof(part), "%c%" PRIu64, d ? 'x' : ',', m.tensors[t].shape[d]);
				digest = digest_text(digest, part);
			}
			digest = digest_text(digest, "\n");
		}
		if (digest != expected_models[i].digest)
			fail_msg("%s: names or shapes changed, digest 0x%" PRIx64, m.name, digest);
		model_destroy(&m);
	}
}

static void test_counts(void **state)
{
	for (size_t i = 0; i < EXPECTED_COUNT; i++) {
		struct model m;
		struct err e = {0};

		assert_int_equal(model_create(expected_models[i].name, &m, &e), 0);
		if (model_elements(&m) != expected_models[i].elements || m.count != expected_models[i].tensors)
			fail_msg("%s: %" PRIu64 " parameters in %zu tensors", m.name, model_elements(&m), m.count);
		assert_true(model_bytes(&m) == 4 * expected_models[i].elements);
		assert_string_equal(m.name, expected_models[i].name);
		model_destroy(&m);
		assert_null(m.tensors);
	}
}

static void test_names_are_listed_in_order(void **state)
{
	const char *const *names = model_names();

	for (size_t i = 0; i < EXPECTED_COUNT; i++)
		assert_string_equal(names[i], expected_models[i].name);
	assert_null(names[EXPECTED_COUNT]);
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void test_every_tensor_is_sound(void **state)
{
	for (size_t i = 0; i < EXPECTED_COUNT; i++) {
		struct model m;
		struct err e = {0};

		assert_int_equal(model_create(expected_models[i].name, &m, &e), 0);
		const char **sorted = calloc(m.count, sizeof(*sorted));
		for (size_t t = 0; t < m.count; t++) {
			const struct model_tensor *tensor = &m.tensors[t];
			uint64_t elements = 1;

			for (unsigned d = 0; d < tensor->dims; d++)
				elements *= tensor->shape[d];
			assert_true(tensor->dims >= 1 && elements == tensor->elements && elements > 0);
			assert_null(strstr(tensor->name, ".."));
			sorted[t] = tensor->name;
		}
		qsort(sorted, m.count, sizeof(*sorted), compare_names);
		for (size_t t = 1; t < m.count; t++)
			assert_string_not_equal(sorted[t], sorted[t - 1]);
		free(sorted);
		model_destroy(&m);
	}
}

/* A tensor at its place in the forward order (from the end when negative). */
struct expected_tensor {
	const char *model;
	int at;
	const char *name;
	uint64_t shape[5]; /* ends with 0 */
};

static const struct expected_tensor expected_tensors[] = {
	{"alexnet", 0, "features.0.weight", {64, 3, 11, 11}},
	{"alexnet", 3, "features.3.bias", {192}},
	{"alexnet", 10, "classifier.1.weight", {4096, 9216}},
	{"alexnet", -1, "classifier.6.bias", {1000}},
	{"vgg-11", 2, "features.3.weight", {128, 64, 3, 3}},
	{"vgg-11", 14, "features.18.weight", {512, 512, 3, 3}},
	{"vgg-19", 30, "features.34.weight", {512, 512, 3, 3}},
	{"vgg-19", 32, "classifier.0.weight", {4096, 25088}},
	{"googlenet", 0, "conv1.conv.weight", {64, 3, 7, 7}},
	{"googlenet", 1, "conv1.bn.weight", {64}},
	{"googlenet", 15, "inception3a.branch2.1.conv.weight", {128, 96, 3, 3}},
	{"googlenet", 24, "inception3a.branch4.1.conv.weight", {32, 192, 1, 1}},
	{"googlenet", -16, "aux1.conv.conv.weight", {128, 512, 1, 1}},
	{"googlenet", -6, "aux2.fc1.weight", {1024, 2048}},
	{"googlenet", -2, "fc.weight", {1000, 1024}},
	{"googlenet-noaux", -3, "inception5b.branch4.1.bn.bias", {128}},
	{"inception-v3", 0, "Conv2d_1a_3x3.conv.weight", {32, 3, 3, 3}},
	{"inception-v3", 15, "Mixed_5b.branch1x1.conv.weight", {64, 192, 1, 1}},
	{"inception-v3", -2, "fc.weight", {1000, 2048}},
	{"resnet-18", 0, "conv1.weight", {64, 3, 7, 7}},
	{"resnet-18", 3, "layer1.0.conv1.weight", {64, 64, 3, 3}},
	{"resnet-18", 21, "layer2.0.downsample.0.weight", {128, 64, 1, 1}},
	{"resnet-50", 12, "layer1.0.downsample.0.weight", {256, 64, 1, 1}},
	{"resnet-50", -5, "layer4.2.conv3.weight", {2048, 512, 1, 1}},
	{"resnet-50", -2, "fc.weight", {1000, 2048}},
	{"bert-large", 0, "embeddings.word_embeddings.weight", {30522, 1024}},
	{"bert-large", 2, "embeddings.token_type_embeddings.weight", {2, 1024}},
	{"bert-large", 4, "embeddings.LayerNorm.bias", {1024}},
	{"bert-large", 5, "encoder.layer.0.attention.self.query.weight", {1024, 1024}},
	{"bert-large", 15, "encoder.layer.0.intermediate.dense.weight", {4096, 1024}},
	{"bert-large", -3, "encoder.layer.23.output.LayerNorm.bias", {1024}},
	{"bert-large", -1, "pooler.dense.bias", {1024}},
	{"gpt2-small", 0, "wte.weight", {50257, 768}},
	{"gpt2-small", 1, "wpe.weight", {1024, 768}},
	{"gpt2-small", 4, "h.0.attn.c_attn.weight", {768, 2304}},
	{"gpt2-small", 12, "h.0.mlp.c_proj.weight", {3072, 768}},
	{"gpt2-small", -1, "ln_f.bias", {768}},
};

static void test_spot_checked_tensors(void **state)
{
	for (size_t i = 0; i < sizeof(expected_tensors) / sizeof(expected_tensors[0]); i++) {
		const struct expected_tensor *expected = &expected_tensors[i];
		struct model m;
		struct err e = {0};

		assert_int_equal(model_create(expected->model, &m, &e), 0);
		size_t at = expected->at >= 0 ? (size_t)expected->at : m.count - (size_t)-expected->at;
		assert_true(at < m.count);
		assert_string_equal(m.tensors[at].name, expected->name);
		for (unsigned d = 0; d < m.tensors[at].dims; d++)
			assert_true(m.tensors[at].shape[d] == expected->shape[d]);
		assert_true(expected->shape[m.tensors[at].dims] == 0);
		model_destroy(&m);
	}
}

/* Where a name stands, which must be there. */
static size_t find_tensor(const struct model *m, const char *name)
{
	for (size_t i = 0; i < m->count; i++) {
		if (strcmp(m->tensors[i].name, name) == 0)
			return i;
	}
	fail_msg("no %s in %s", name, m->name);
	return 0;
}

static void test_inception_branches(void **state)
{
	struct model m;
	struct err e = {0};

	assert_int_equal(model_create("Inception v3", &m, &e), 0);
	const struct model_tensor *tall = &m.tensors[find_tensor(&m, "Mixed_6c.branch7x7_3.conv.weight")];
	const uint64_t tall_shape[4] = {192, 160, 7, 1};
	assert_memory_equal(tall->shape, tall_shape, sizeof(tall_shape));
	const struct model_tensor *wide = &m.tensors[find_tensor(&m, "Mixed_7c.branch3x3dbl_3a.conv.weight")];
	const uint64_t wide_shape[4] = {384, 384, 1, 3};
	assert_memory_equal(wide->shape, wide_shape, sizeof(wide_shape));
	/* The auxiliary head stands where the forward pass branches off to it. */
	assert_true(
		find_tensor(&m, "Mixed_6e.branch_pool.bn.bias") + 1 == find_tensor(&m, "AuxLogits.conv0.conv.weight"));
	assert_true(find_tensor(&m, "AuxLogits.fc.bias") + 1 == find_tensor(&m, "Mixed_7a.branch3x3_1.conv.weight"));
	model_destroy(&m);
}

static void test_names_are_forgiving(void **state)
{
	static const char *const spellings[] = {"ResNet50", "resnet_50", "RESNET-50", "ResNet 50"};

	for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
		struct model m;
		struct err e = {0};

		assert_int_equal(model_create(spellings[i], &m, &e), 0);
		assert_string_equal(m.name, "resnet-50");
		model_destroy(&m);
	}
}

static void test_unknown_name_lists_the_allowed(void **state)
{
	static const char *const unknown[] = {"resnet-51", "resnet", "resnet-500", "", "-"};

	for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
		struct model m = {.count = 77};
		struct err e = {0};

		assert_int_equal(model_create(unknown[i], &m, &e), -ENOENT);
		assert_int_equal(m.count, 77);
		for (size_t n = 0; n < EXPECTED_COUNT; n++)
			assert_non_null(strstr(e.text, expected_models[n].name));
	}
}

static void test_keys(void **state)
{
	struct model m;
	struct chunk_plan plan;
	struct err e = {0};

	assert_int_equal(model_create("resnet-50", &m, &e), 0);
	struct chunk_key *keys = calloc(m.count, sizeof(*keys));
	model_fill_keys(&m, keys);
	assert_int_equal(chunking_plan(keys, (uint32_t)m.count, CHUNKING_CHUNK_BYTES_DEFAULT, &plan, &e), 0);
	assert_true(plan.payload_bytes == 4 * UINT64_C(25557032));
	chunking_plan_fini(&plan);
	free(keys);
	model_destroy(&m);
}

static struct model csv_ok(const char *text)
{
	struct model m;
	struct err e = {0};
	/* An exact copy, so that a sanitizer sees a read past the end. */
	size_t len = strlen(text);
	char *copy = malloc(len ? len : 1);

	memcpy(copy, text, len);
	if (model_parse_csv(copy, len, "dir.d/mine.csv", &m, &e) < 0)
		fail_msg("%s", e.text);
	free(copy);
	return m;
}

static void test_csv_with_heading(void **state)
{
	struct model m = csv_ok("name,shape,dtype,group\n"
				"conv1.weight,64x3x7x7,f32,0\n"
				"bn1.weight,64,bfloat16,1\n"
				"fc.bias,1000,F16,65535");

	assert_string_equal(m.name, "mine");
	assert_int_equal(m.count, 3);
	assert_string_equal(m.tensors[0].name, "conv1.weight");
	assert_int_equal(m.tensors[0].dims, 4);
	assert_true(m.tensors[0].shape[0] == 64 && m.tensors[0].shape[3] == 7);
	assert_true(m.tensors[0].elements == 64 * 3 * 7 * 7);
	assert_int_equal(m.tensors[1].dtype, CHUNK_BF16);
	assert_int_equal(m.tensors[1].group, 1);
	assert_int_equal(m.tensors[2].dtype, CHUNK_F16);
	assert_int_equal(m.tensors[2].group, 65535);
	assert_true(model_bytes(&m) == 64 * 3 * 7 * 7 * 4 + 64 * 2 + 1000 * 2);
	model_destroy(&m);
}

static void test_csv_without_heading(void **state)
{
	struct model m = csv_ok("a,2x3\nb,4,\nc,5,f16,\n");

	assert_int_equal(m.count, 3);
	assert_int_equal(m.tensors[0].dtype, CHUNK_F32);
	assert_int_equal(m.tensors[1].dtype, CHUNK_F32);
	assert_int_equal(m.tensors[2].dtype, CHUNK_F16);
	assert_int_equal(m.tensors[2].group, 0);
	model_destroy(&m);
}

static void test_csv_as_spreadsheets_write_it(void **state)
{
	struct model m =
		csv_ok("\xef\xbb\xbf"
		       "Dtype , group,NAME, Shape\r\n\r\n# a remark, with commas,,,,\r\nbf16,3, w , 2x3X4\r\n");

	assert_int_equal(m.count, 1);
	assert_string_equal(m.tensors[0].name, "w");
	assert_int_equal(m.tensors[0].dims, 3);
	assert_int_equal(m.tensors[0].group, 3);
	assert_int_equal(m.tensors[0].dtype, CHUNK_BF16);
	model_destroy(&m);
}

static void test_csv_many_lines(void **state)
{
	char *text = malloc(10000 * 16);
	size_t len = 0;

	for (int i = 0; i < 10000; i++)
		len += (size_t)snprintf(text + len, 16, "k%d,16x16\n", i);

	struct model m = csv_ok(text);
	assert_int_equal(m.count, 10000);
	assert_string_equal(m.tensors[9999].name, "k9999");
	model_destroy(&m);
	free(text);
}

struct bad_csv {
	const char *text;
	const char *part; /* of the message */
};

static const struct bad_csv bad_csvs[] = {
	{"", "mine.csv:0: no tensors"},
	{"name,shape\n", "mine.csv:1: no tensors"},
	{"a,4\n\nb\n", "mine.csv:3: bad shape ''; allowed are 1 to 8 numbers"},
	{"a,4x\n", "mine.csv:1: bad shape '4x'"},
	{"a,x4\n", "bad shape"},
	{"a,4xx4\n", "bad shape"},
	{"a,4*4\n", "bad shape"},
	{"a,-4\n", "bad shape"},
	{"a,0\n", "bad shape '0'"},
	{"a,4x0\n", "bad shape"},
	{"a,(4 4)\n", "bad shape '(4 4)'"},
	{"a,1x2x3x4x5x6x7x8x9\n", "1 to 8 numbers"},
	{"a,281474976710657\n", "at most 2^48"},
	{"a,16777216x16777217\n", "at most 2^48"},
	{"a,18446744073709551617\n", "at most 2^48"},
	{",4\n", "mine.csv:1: bad name ''"},
	{"a b,4\n", "bad name 'a b'"},
	{"\"a\",4\n", "bad name"},
	{"a\x01z\xff,4\n", "bad name 'a?z?'"},
	{"a,4,int8\n", "unknown dtype 'int8'; allowed are f32, f16, bf16"},
	{"a,4,f32,65536\n", "bad group '65536'; allowed are numbers from 0 to 65535"},
	{"a,4,f32,one\n", "bad group"},
	{"a,4,f32,1 2\n", "bad group"},
	{"a,4,f32,0,\n", "more than 4 fields in"},
	{"name,shape,colour\na,4,f32\n",
		"mine.csv:1: unknown column 'colour'; allowed are name, shape, dtype and group"},
	{"name,shape,name\n", "second column 'name'"},
	{"a,4\nname,shape\n", "mine.csv:2: bad shape 'shape'"},
	{"shape,name\na\n", "mine.csv:2: bad name ''"},
	{"b,4\na,4\nc,1\na,5\n", "mine.csv:4: name 'a' was already used on line 2"},
};

static void csv_refuse(const char *text, size_t len, int code, const char *part)
{
	struct model m = {.count = 77};
	struct err e = {0};

	assert_int_equal(model_parse_csv(text, len, "mine.csv", &m, &e), code);
	assert_int_equal(m.count, 77);
	assert_int_equal(e.code, code);
	if (!strstr(e.text, part))
		fail_msg("\"%s\" does not say \"%s\"", e.text, part);
}

static void test_csv_errors(void **state)
{
	for (size_t i = 0; i < sizeof(bad_csvs) / sizeof(bad_csvs[0]); i++)
		csv_refuse(bad_csvs[i].text, strlen(bad_csvs[i].text), -EINVAL, bad_csvs[i].part);
	csv_refuse("a\0b,4\n", 6, -EINVAL, "bad name 'a?b'");
	csv_refuse("a,4\0\n", 5, -EINVAL, "bad shape '4?'");
}

static void test_csv_bounds(void **state)
{
	char name[MODEL_TENSOR_NAME_BYTES + 8];

	csv_refuse("a,281474976710656\nb,1\n", 22, -EFBIG, "mine.csv:2: the tensors up to here have more than 2^48");
	csv_refuse("", (size_t)MODEL_CSV_BYTES_MAX + 1, -EFBIG, "at most 268435456");

	memset(name, 'n', sizeof(name));
	memcpy(name + MODEL_TENSOR_NAME_BYTES, ",4\n", 4);
	csv_refuse(name, strlen(name), -EINVAL, "bad name 'nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn...'");

	struct model m = csv_ok(name + 1); /* 127 characters */
	assert_int_equal(strlen(m.tensors[0].name), MODEL_TENSOR_NAME_BYTES - 1);
	model_destroy(&m);
}

static void test_csv_most_tensors(void **state)
{
	char *text = malloc((size_t)(MODEL_TENSOR_COUNT_MAX + 1) * 16);
	size_t len = 0;

	for (unsigned i = 0; i <= MODEL_TENSOR_COUNT_MAX; i++)
		len += (size_t)snprintf(text + len, 16, "%u,1\n", i);
	csv_refuse(text, len, -EFBIG, "mine.csv:1000001: more than 1000000 tensors");
	free(text);
}

static void test_csv_model_names(void **state)
{
	static const char *const files[][2] = {
		{"/a.b/model.v2.csv", "model.v2"}, {"plain", "plain"}, {"dir/.hidden", ".hidden"}, {"", ""}};
	char longest[200];
	struct model m;
	struct err e = {0};

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		assert_int_equal(model_parse_csv("a,1", 3, files[i][0], &m, &e), 0);
		assert_string_equal(m.name, files[i][1]);
		model_destroy(&m);
	}
	memset(longest, 'm', sizeof(longest));
	longest[sizeof(longest) - 1] = '\0';
	assert_int_equal(model_parse_csv("a,1", 3, longest, &m, &e), 0);
	assert_int_equal(strlen(m.name), MODEL_NAME_BYTES - 1);
	model_destroy(&m);
}

TEST_PROGRAM(test_model)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_counts),
		cmocka_unit_test(test_digests),
		cmocka_unit_test(test_names_are_listed_in_order),
		cmocka_unit_test(test_every_tensor_is_sound),
		cmocka_unit_test(test_spot_checked_tensors),
		cmocka_unit_test(test_inception_branches),
		cmocka_unit_test(test_names_are_forgiving),
		cmocka_unit_test(test_unknown_name_lists_the_allowed),
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_csv_with_heading),
		cmocka_unit_test(test_csv_without_heading),
		cmocka_unit_test(test_csv_as_spreadsheets_write_it),
		cmocka_unit_test(test_csv_many_lines),
		cmocka_unit_test(test_csv_errors),
		cmocka_unit_test(test_csv_bounds),
		cmocka_unit_test(test_csv_most_tensors),
		cmocka_unit_test(test_csv_model_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
