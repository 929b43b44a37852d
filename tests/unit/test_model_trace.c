/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces: what the reader of their CSV accepts, each error with file, line and what to write, its bounds, and the guess
 * for a model without a trace.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cmocka_shim.h"
#include "topology/model_trace.h"

/* From memory of its exact size, so that a sanitizer sees a read behind its end. */
static int parse(const char *text, size_t len, struct model_trace *out, struct err *e)
{
	char *copy = malloc(len ? len : 1);
	int rc;

	assert_non_null(copy);
	memcpy(copy, text, len);
	rc = model_trace_parse(copy, len, "dir.d/mine.csv", out, e);
	free(copy);
	return rc;
}

static struct model_trace trace_ok(const char *text)
{
	struct model_trace t;
	struct err e = {0};

	if (parse(text, strlen(text), &t, &e) < 0)
		fail_msg("refused: %s", e.text);
	return t;
}

static void test_fields(void **state)
{
	struct model_trace t = trace_ok("# recorded here\r\n\r\n"
					"name,forward_ms,backward_ms,elements,dtype,group\r\n"
					"input,0.5,0,,,\r\n"
					"conv1,1.25,2.5,9408,f32,0\r\n"
					"relu,0.000001,0.000010,0\r\n"
					"fc, 3 ,3600000,100,bf16,7");

	assert_int_equal(t.count, 4);
	assert_int_equal(t.model.count, 2);
	assert_string_equal(t.model.name, "mine");
	assert_string_equal(t.layers[0].name, "input");
	assert_int_equal(t.layers[0].forward_ns, 500000);
	assert_int_equal(t.layers[0].backward_ns, 0);
	assert_int_equal(t.layers[0].tensor, MODEL_TRACE_NO_TENSOR);
	assert_int_equal(t.layers[1].forward_ns, 1250000);
	assert_int_equal(t.layers[1].backward_ns, 2500000);
	assert_int_equal(t.layers[1].tensor, 0);
	assert_int_equal(t.layers[2].forward_ns, 1);
	assert_int_equal(t.layers[2].backward_ns, 10);
	assert_int_equal(t.layers[2].tensor, MODEL_TRACE_NO_TENSOR);
	assert_int_equal(t.layers[3].forward_ns, 3000000);
	assert_int_equal(t.layers[3].backward_ns, UINT64_C(3600000000000));
	assert_int_equal(t.layers[3].tensor, 1);
	assert_string_equal(t.model.tensors[0].name, "conv1");
	assert_int_equal(t.model.tensors[0].elements, 9408);
	assert_int_equal(t.model.tensors[0].dims, 1);
	assert_int_equal(t.model.tensors[0].shape[0], 9408);
	assert_int_equal(t.model.tensors[0].dtype, CHUNK_F32);
	assert_string_equal(t.model.tensors[1].name, "fc");
	assert_int_equal(t.model.tensors[1].dtype, CHUNK_BF16);
	assert_int_equal(t.model.tensors[1].group, 7);
	assert_true(model_trace_compute_ns(&t) == UINT64_C(3600000000000) + 500000 + 3750000 + 11 + 3000000);
	model_trace_destroy(&t);
	assert_null(t.layers);
	assert_null(t.model.tensors);
}

static void test_columns_in_any_order(void **state)
{
	struct model_trace t = trace_ok("bytes,dtype,name,backward_ms,forward_ms\n8,,a,2,1\n8,f16,b,4,3\n");

	assert_int_equal(t.count, 2);
	assert_int_equal(t.model.tensors[0].elements, 2);
	assert_int_equal(t.model.tensors[1].elements, 4);
	assert_int_equal(t.layers[1].forward_ns, 3000000);
	assert_int_equal(t.layers[1].backward_ns, 4000000);
	model_trace_destroy(&t);
}

/* Names are keys' names: layers without parameters may share one. */
static void test_names(void **state)
{
	struct model_trace t = trace_ok("name,forward_ms,backward_ms,elements\nrelu,1,1,\na,1,1,5\nrelu,2,2,\n");

	assert_int_equal(t.count, 3);
	model_trace_destroy(&t);
}

#define HEAD "name,forward_ms,backward_ms,elements\n"

struct bad_trace {
	const char *text, *part;
};

static const struct bad_trace bad_traces[] = {
	{"", "mine.csv:0: no layer with elements; write name,forward_ms,backward_ms,elements and lines like"},
	{HEAD, "mine.csv:1: no layer with elements"},
	{HEAD "relu,1,2,0\n", "mine.csv:2: no layer with elements"},
	{"conv1,1,2,3\n", "mine.csv:1: no heading but 'conv1,1,2,3'; begin with the line name,forward_ms"},
	{"#\nname,shape\n", "mine.csv:2: no heading but 'name,shape'"},
	{"name,forward_ms\n", "mine.csv:1: no column backward_ms"},
	{"name,forward_ms,backward_ms\n", "mine.csv:1: no column elements"},
	{"name,forward_ms,backward_ms,bytes,elements\n", "mine.csv:1: columns elements and bytes ''; keep one"},
	{"name,forward_ms,backward_us,elements\n", "mine.csv:1: unknown column 'backward_us'; allowed are name,"},
	{"name,forward_ms,forward_ms,elements\n", "mine.csv:1: second column 'forward_ms'"},
	{HEAD "a,1,2,3,4,5,6,7\n", "mine.csv:2: more than 7 fields in 'a,1,2,3,4,5,6,7'"},
	{HEAD ",1,2,3\n", "mine.csv:2: bad name ''"},
	{HEAD "a b,1,2,3\n", "mine.csv:2: bad name 'a b'"},
	{HEAD "a,-1,2,3\n", "mine.csv:2: bad forward_ms '-1'; allowed are milliseconds"},
	{HEAD "a,1,2e3,3\n", "mine.csv:2: bad backward_ms '2e3'; allowed are milliseconds"},
	{HEAD "a,1,nan,3\n", "mine.csv:2: bad backward_ms 'nan'"},
	{HEAD "a,,2,3\n", "mine.csv:2: bad forward_ms ''"},
	{HEAD "a,.5,2,3\n", "mine.csv:2: bad forward_ms '.5'"},
	{HEAD "a,1.,2,3\n", "mine.csv:2: bad forward_ms '1.'"},
	{HEAD "a,1.1234567,2,3\n", "mine.csv:2: bad forward_ms '1.1234567'; allowed are milliseconds from 0 to 3600000 "
				   "with up to six decimals"},
	{HEAD "a,1.2.3,2,3\n", "mine.csv:2: bad forward_ms '1.2.3'"},
	{HEAD "a,3600001,2,3\n", "mine.csv:2: bad forward_ms '3600001'"},
	{HEAD "a,99999999999999999999999,2,3\n", "mine.csv:2: bad forward_ms"},
	{HEAD "a,1,2,3x\n", "mine.csv:2: bad elements '3x'"},
	{HEAD "a,1,2,-3\n", "mine.csv:2: bad elements '-3'"},
	{HEAD "a,1,2,281474976710657\n", "mine.csv:2: bad elements"},
	{"name,forward_ms,backward_ms,bytes\na,1,2,6\n", "mine.csv:2: bad bytes '6'; allowed are multiples of 4"},
	{"name,forward_ms,backward_ms,bytes,dtype\na,1,2,6,f16\nb,1,2,7,f16\n", "mine.csv:3: bad bytes '7'"},
	{"name,forward_ms,backward_ms,elements,dtype\na,1,2,6,f64\n", "mine.csv:2: unknown dtype 'f64'"},
	{"name,forward_ms,backward_ms,elements,group\na,1,2,6,65536\n", "mine.csv:2: bad group '65536'"},
	{HEAD "b,1,1,4\na,1,1,4\n#\na,1,1,5\n", "mine.csv:5: name 'a' was already used on line 3"},
	{HEAD "a,1,1,\x01x\n", "mine.csv:2: bad elements '?x'"},
};

static void refuse(const char *text, size_t len, int code, const char *part)
{
	struct model_trace t;
	struct err e = {0};

	memset(&t, 0x5a, sizeof(t));
	assert_int_equal(parse(text, len, &t, &e), code);
	assert_int_equal(t.count, 0x5a5a5a5a5a5a5a5a); /* not written */
	if (!strstr(e.text, part))
		fail_msg("'%s' lacks '%s'", e.text, part);
}

static void test_errors(void **state)
{
	struct model_trace t;
	struct err e = {0};

	for (size_t i = 0; i < sizeof(bad_traces) / sizeof(bad_traces[0]); i++)
		refuse(bad_traces[i].text, strlen(bad_traces[i].text), -EINVAL, bad_traces[i].part);
	refuse(HEAD "a\0b,1,1,4\n", sizeof(HEAD) + 9, -EINVAL, "mine.csv:2: bad name 'a?b'");
	refuse(HEAD "a,1,1,281474976710656\nb,1,1,1\n", sizeof(HEAD) - 1 + 30, -EFBIG,
		"mine.csv:3: the tensors up to here have more than 2^48");
	assert_int_equal(model_trace_parse("", (size_t)MODEL_CSV_BYTES_MAX + 1, "mine.csv", &t, &e), -EFBIG);
	assert_non_null(strstr(e.text, "at most 268435456"));
}

/* Every prefix of a good file is taken or refused with its line, and never read beyond. */
static void test_prefixes(void **state)
{
	static const char text[] = "\xef\xbb\xbf# t\n" HEAD "conv1,1.25,2.5,9408\nfc,0.1,0.2,10\n";

	for (size_t len = 0; len < sizeof(text); len++) {
		struct model_trace t;
		struct err e = {0};

		if (parse(text, len, &t, &e) == 0)
			model_trace_destroy(&t);
		else
			assert_non_null(strstr(e.text, "mine.csv:"));
	}
}

static void test_guess(void **state)
{
	struct model m;
	struct model_trace t;
	struct err e = {0};
	size_t heavy = 0;

	assert_int_equal(model_create("resnet-50", &m, &e), 0);
	assert_int_equal(model_trace_guess(&m, UINT64_C(54000000), &t), 0);
	assert_null(m.tensors);
	assert_int_equal(t.count, 161);
	for (size_t i = 0; i < t.count; i++) {
		const struct model_layer *l = &t.layers[i];
		bool weighs = t.model.tensors[i].dims > 1;

		heavy += weighs;
		assert_int_equal(l->tensor, i);
		assert_string_equal(l->name, t.model.tensors[i].name);
		assert_int_equal(l->forward_ns, weighs ? 333333 : 0); /* 54 ms, 54 weights, a third of it forward */
		assert_int_equal(l->backward_ns, weighs ? 666667 : 0);
	}
	assert_int_equal(heavy, 54);
	assert_int_equal(model_trace_compute_ns(&t), 54000000);
	model_trace_destroy(&t);
}

/* A model of vectors alone: all take the same time. */
static void test_guess_without_weights(void **state)
{
	struct model m;
	struct model_trace t;
	struct err e = {0};

	assert_int_equal(model_parse_csv("a,5\nb,6\n", 8, "v.csv", &m, &e), 0);
	assert_int_equal(model_trace_guess(&m, 6000, &t), 0);
	assert_int_equal(t.layers[0].forward_ns, 1000);
	assert_int_equal(t.layers[1].backward_ns, 2000);
	model_trace_destroy(&t);
}

TEST_PROGRAM(test_model_trace)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fields),
		cmocka_unit_test(test_columns_in_any_order),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_errors),
		cmocka_unit_test(test_prefixes),
		cmocka_unit_test(test_guess),
		cmocka_unit_test(test_guess_without_weights),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
