/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vision models that are plain stacks: AlexNet, VGG and ResNet. Names and order are torchvision's.
 */
#include "topology/models.h"

#define VGG_POOL 0u
#define VGG_END  1u

void models_alexnet(struct model_builder *builder)
{
	model_builder_scope(builder, "features");
	model_builder_conv(builder, "0", 3, 64, 11, 11, true);
	model_builder_conv(builder, "3", 64, 192, 5, 5, true);
	model_builder_conv(builder, "6", 192, 384, 3, 3, true);
	model_builder_conv(builder, "8", 384, 256, 3, 3, true);
	model_builder_conv(builder, "10", 256, 256, 3, 3, true);
	model_builder_scope(builder, "classifier");
	model_builder_fc(builder, "1", 256 * 6 * 6, 4096);
	model_builder_fc(builder, "4", 4096, 4096);
	model_builder_fc(builder, "6", 4096, 1000);
}

/* `layers` are the widths of 3x3 convolutions, VGG_POOL between, VGG_END at the end. */
static void models_vgg(struct model_builder *builder, const unsigned *layers)
{
	unsigned in = 3;
	unsigned index = 0; /* in torch's Sequential: a convolution is followed by a ReLU */

	for (; *layers != VGG_END; layers++) {
		if (*layers == VGG_POOL) {
			index++;
			continue;
		}
		model_builder_scope(builder, "features.%u", index);
		model_builder_conv(builder, "", in, *layers, 3, 3, true);
		in = *layers;
		index += 2;
	}
	model_builder_scope(builder, "classifier");
	model_builder_fc(builder, "0", 512 * 7 * 7, 4096);
	model_builder_fc(builder, "3", 4096, 4096);
	model_builder_fc(builder, "6", 4096, 1000);
}

void models_vgg_11(struct model_builder *builder)
{
	static const unsigned layers[] = {
		64,
		VGG_POOL, /* 224 x 224 */
		128,
		VGG_POOL, /* 112 */
		256,
		256,
		VGG_POOL, /* 56 */
		512,
		512,
		VGG_POOL, /* 28 */
		512,
		512,
		VGG_POOL, /* 14 */
		VGG_END,
	};

	models_vgg(builder, layers);
}

void models_vgg_19(struct model_builder *builder)
{
	static const unsigned layers[] = {
		64,
		64,
		VGG_POOL, /* 224 x 224 */
		128,
		128,
		VGG_POOL, /* 112 */
		256,
		256,
		256,
		256,
		VGG_POOL, /* 56 */
		512,
		512,
		512,
		512,
		VGG_POOL, /* 28 */
		512,
		512,
		512,
		512,
		VGG_POOL, /* 14 */
		VGG_END,
	};

	models_vgg(builder, layers);
}

static void models_conv_norm(
	struct model_builder *builder, const char *conv, const char *norm, unsigned in, unsigned out, unsigned kernel)
{
	model_builder_conv(builder, conv, in, out, kernel, kernel, false);
	model_builder_norm(builder, norm, out);
}

/* One residual block. A bottleneck has 1x1, 3x3, 1x1 and four times its width at the end, a basic one 3x3, 3x3. */
static void models_resnet_block(
	struct model_builder *builder, unsigned in, unsigned width, bool bottleneck, bool downsample)
{
	unsigned out = bottleneck ? 4 * width : width;

	if (bottleneck) {
		models_conv_norm(builder, "conv1", "bn1", in, width, 1);
		models_conv_norm(builder, "conv2", "bn2", width, width, 3);
		models_conv_norm(builder, "conv3", "bn3", width, out, 1);
	} else {
		models_conv_norm(builder, "conv1", "bn1", in, width, 3);
		models_conv_norm(builder, "conv2", "bn2", width, out, 3);
	}
	if (downsample)
		models_conv_norm(builder, "downsample.0", "downsample.1", in, out, 1);
}

static void models_resnet(struct model_builder *builder, const unsigned blocks[4], bool bottleneck)
{
	unsigned in = 64;

	model_builder_scope(builder, "%s", "");
	models_conv_norm(builder, "conv1", "bn1", 3, 64, 7);
	for (unsigned layer = 0; layer < 4; layer++) {
		unsigned width = 64u << layer;
		unsigned out = bottleneck ? 4 * width : width;

		for (unsigned block = 0; block < blocks[layer]; block++) {
			bool stride = block == 0 && layer > 0;

			model_builder_scope(builder, "layer%u.%u", layer + 1, block);
			models_resnet_block(builder, in, width, bottleneck, stride || in != out);
			in = out;
		}
	}
	model_builder_scope(builder, "%s", "");
	model_builder_fc(builder, "fc", in, 1000);
}

void models_resnet_18(struct model_builder *builder)
{
	static const unsigned blocks[4] = {2, 2, 2, 2};

	models_resnet(builder, blocks, false);
}

void models_resnet_50(struct model_builder *builder)
{
	static const unsigned blocks[4] = {3, 4, 6, 3};

	models_resnet(builder, blocks, true);
}
