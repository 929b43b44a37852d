/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vision models made of parallel branches: GoogLeNet and Inception v3. A block is a table of its convolutions; each is
 * one without bias and a batch normalization, called NAME.conv and NAME.bn. Names and order are torchvision's.
 */
#include "topology/models.h"

#include <stdio.h>

/* In place of a number of channels: the block's input, and the width that varies between blocks of one kind. */
#define INCEPTION_IN    0xfff0u
#define INCEPTION_WIDTH 0xfff1u

struct inception_conv {
	const char *name;
	uint16_t in;
	uint16_t out;
	uint8_t kernel_h;
	uint8_t kernel_w;
};

static void models_basic_conv(struct model_builder *builder, const char *name, unsigned in, unsigned out,
	unsigned kernel_h, unsigned kernel_w)
{
	char part[64];

	snprintf(part, sizeof(part), "%s.conv", name);
	model_builder_conv(builder, part, in, out, kernel_h, kernel_w, false);
	snprintf(part, sizeof(part), "%s.bn", name);
	model_builder_norm(builder, part, out);
}

/* The convolutions of one block; `convs` ends with a NULL name. */
static void models_inception_block(struct model_builder *builder, const char *scope, const struct inception_conv *convs,
	unsigned in, unsigned width)
{
	model_builder_scope(builder, "%s", scope);
	for (; convs->name; convs++) {
		unsigned from = convs->in == INCEPTION_IN ? in : convs->in == INCEPTION_WIDTH ? width : convs->in;
		unsigned to = convs->out == INCEPTION_WIDTH ? width : convs->out;

		models_basic_conv(builder, convs->name, from, to, convs->kernel_h, convs->kernel_w);
	}
}

/* Channels of a GoogLeNet block: input, 1x1, 3x3 after its reduction, "5x5" after its reduction, after the pool. */
struct googlenet_block {
	const char *name;
	uint16_t in;
	uint16_t c1;
	uint16_t c3_reduce;
	uint16_t c3;
	uint16_t c5_reduce;
	uint16_t c5;
	uint16_t pool;
};

static void models_googlenet_aux(struct model_builder *builder, const char *scope, unsigned in)
{
	model_builder_scope(builder, "%s", scope);
	models_basic_conv(builder, "conv", in, 128, 1, 1);
	model_builder_fc(builder, "fc1", 2048, 1024);
	model_builder_fc(builder, "fc2", 1024, 1000);
}

static void models_googlenet_with(struct model_builder *builder, bool aux)
{
	static const struct googlenet_block blocks[] = {
		{"inception3a", 192, 64, 96, 128, 16, 32, 32},
		{"inception3b", 256, 128, 128, 192, 32, 96, 64},
		{"inception4a", 480, 192, 96, 208, 16, 48, 64},
		{"inception4b", 512, 160, 112, 224, 24, 64, 64},
		{"inception4c", 512, 128, 128, 256, 24, 64, 64},
		{"inception4d", 512, 112, 144, 288, 32, 64, 64},
		{"inception4e", 528, 256, 160, 320, 32, 128, 128},
		{"inception5a", 832, 256, 160, 320, 32, 128, 128},
		{"inception5b", 832, 384, 192, 384, 48, 128, 128},
	};

	model_builder_scope(builder, "%s", "");
	models_basic_conv(builder, "conv1", 3, 64, 7, 7);
	models_basic_conv(builder, "conv2", 64, 64, 1, 1);
	models_basic_conv(builder, "conv3", 64, 192, 3, 3);
	for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++) {
		const struct googlenet_block *block = &blocks[i];

		model_builder_scope(builder, "%s", block->name);
		models_basic_conv(builder, "branch1", block->in, block->c1, 1, 1);
		models_basic_conv(builder, "branch2.0", block->in, block->c3_reduce, 1, 1);
		models_basic_conv(builder, "branch2.1", block->c3_reduce, block->c3, 3, 3);
		models_basic_conv(builder, "branch3.0", block->in, block->c5_reduce, 1, 1);
		models_basic_conv(builder, "branch3.1", block->c5_reduce, block->c5, 3, 3);
		models_basic_conv(builder, "branch4.1", block->in, block->pool, 1, 1);
	}
	if (aux) {
		models_googlenet_aux(builder, "aux1", 512);
		models_googlenet_aux(builder, "aux2", 528);
	}
	model_builder_scope(builder, "%s", "");
	model_builder_fc(builder, "fc", 1024, 1000);
}

void models_googlenet(struct model_builder *builder)
{
	models_googlenet_with(builder, true);
}

void models_googlenet_noaux(struct model_builder *builder)
{
	models_googlenet_with(builder, false);
}

static const struct inception_conv inception_stem[] = {
	{"Conv2d_1a_3x3", 3, 32, 3, 3},
	{"Conv2d_2a_3x3", 32, 32, 3, 3},
	{"Conv2d_2b_3x3", 32, 64, 3, 3},
	{"Conv2d_3b_1x1", 64, 80, 1, 1},
	{"Conv2d_4a_3x3", 80, 192, 3, 3},
	{NULL, 0, 0, 0, 0},
};

/* width: channels after the pool */
static const struct inception_conv inception_a[] = {
	{"branch1x1", INCEPTION_IN, 64, 1, 1},
	{"branch5x5_1", INCEPTION_IN, 48, 1, 1},
	{"branch5x5_2", 48, 64, 5, 5},
	{"branch3x3dbl_1", INCEPTION_IN, 64, 1, 1},
	{"branch3x3dbl_2", 64, 96, 3, 3},
	{"branch3x3dbl_3", 96, 96, 3, 3},
	{"branch_pool", INCEPTION_IN, INCEPTION_WIDTH, 1, 1},
	{NULL, 0, 0, 0, 0},
};

static const struct inception_conv inception_b[] = {
	{"branch3x3", INCEPTION_IN, 384, 3, 3},
	{"branch3x3dbl_1", INCEPTION_IN, 64, 1, 1},
	{"branch3x3dbl_2", 64, 96, 3, 3},
	{"branch3x3dbl_3", 96, 96, 3, 3},
	{NULL, 0, 0, 0, 0},
};

/* width: channels inside the 7x7 branches */
static const struct inception_conv inception_c[] = {
	{"branch1x1", INCEPTION_IN, 192, 1, 1},
	{"branch7x7_1", INCEPTION_IN, INCEPTION_WIDTH, 1, 1},
	{"branch7x7_2", INCEPTION_WIDTH, INCEPTION_WIDTH, 1, 7},
	{"branch7x7_3", INCEPTION_WIDTH, 192, 7, 1},
	{"branch7x7dbl_1", INCEPTION_IN, INCEPTION_WIDTH, 1, 1},
	{"branch7x7dbl_2", INCEPTION_WIDTH, INCEPTION_WIDTH, 7, 1},
	{"branch7x7dbl_3", INCEPTION_WIDTH, INCEPTION_WIDTH, 1, 7},
	{"branch7x7dbl_4", INCEPTION_WIDTH, INCEPTION_WIDTH, 7, 1},
	{"branch7x7dbl_5", INCEPTION_WIDTH, 192, 1, 7},
	{"branch_pool", INCEPTION_IN, 192, 1, 1},
	{NULL, 0, 0, 0, 0},
};

static const struct inception_conv inception_aux[] = {
	{"conv0", INCEPTION_IN, 128, 1, 1},
	{"conv1", 128, 768, 5, 5},
	{NULL, 0, 0, 0, 0},
};

static const struct inception_conv inception_d[] = {
	{"branch3x3_1", INCEPTION_IN, 192, 1, 1},
	{"branch3x3_2", 192, 320, 3, 3},
	{"branch7x7x3_1", INCEPTION_IN, 192, 1, 1},
	{"branch7x7x3_2", 192, 192, 1, 7},
	{"branch7x7x3_3", 192, 192, 7, 1},
	{"branch7x7x3_4", 192, 192, 3, 3},
	{NULL, 0, 0, 0, 0},
};

static const struct inception_conv inception_e[] = {
	{"branch1x1", INCEPTION_IN, 320, 1, 1},
	{"branch3x3_1", INCEPTION_IN, 384, 1, 1},
	{"branch3x3_2a", 384, 384, 1, 3},
	{"branch3x3_2b", 384, 384, 3, 1},
	{"branch3x3dbl_1", INCEPTION_IN, 448, 1, 1},
	{"branch3x3dbl_2", 448, 384, 3, 3},
	{"branch3x3dbl_3a", 384, 384, 1, 3},
	{"branch3x3dbl_3b", 384, 384, 3, 1},
	{"branch_pool", INCEPTION_IN, 192, 1, 1},
	{NULL, 0, 0, 0, 0},
};

static void models_inception_v3_with(struct model_builder *builder, bool aux)
{
	models_inception_block(builder, "", inception_stem, 3, 0);
	models_inception_block(builder, "Mixed_5b", inception_a, 192, 32);
	models_inception_block(builder, "Mixed_5c", inception_a, 256, 64);
	models_inception_block(builder, "Mixed_5d", inception_a, 288, 64);
	models_inception_block(builder, "Mixed_6a", inception_b, 288, 0);
	models_inception_block(builder, "Mixed_6b", inception_c, 768, 128);
	models_inception_block(builder, "Mixed_6c", inception_c, 768, 160);
	models_inception_block(builder, "Mixed_6d", inception_c, 768, 160);
	models_inception_block(builder, "Mixed_6e", inception_c, 768, 192);
	if (aux) {
		models_inception_block(builder, "AuxLogits", inception_aux, 768, 0);
		model_builder_fc(builder, "fc", 768, 1000);
	}
	models_inception_block(builder, "Mixed_7a", inception_d, 768, 0);
	models_inception_block(builder, "Mixed_7b", inception_e, 1280, 0);
	models_inception_block(builder, "Mixed_7c", inception_e, 2048, 0);
	model_builder_scope(builder, "%s", "");
	model_builder_fc(builder, "fc", 2048, 1000);
}

void models_inception_v3(struct model_builder *builder)
{
	models_inception_v3_with(builder, true);
}

void models_inception_v3_noaux(struct model_builder *builder)
{
	models_inception_v3_with(builder, false);
}
