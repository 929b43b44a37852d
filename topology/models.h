/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models: the architectures that model_create() knows, one function each, appending to a builder. Only model.c calls
 * them. Vision models have torchvision's parameter names and order, text models those of Hugging Face's BertModel and
 * GPT2Model; trainable parameters only, 1000 classes.
 */
#ifndef PHUB_TOPOLOGY_MODELS_H
#define PHUB_TOPOLOGY_MODELS_H

#include "topology/model_builder.h"

/* Krizhevsky 2014, "One weird trick": torchvision's AlexNet. */
void models_alexnet(struct model_builder *builder);

/* Simonyan and Zisserman 2015, configurations A and E, without batch normalization. */
void models_vgg_11(struct model_builder *builder);
void models_vgg_19(struct model_builder *builder);

/* He et al. 2016. */
void models_resnet_18(struct model_builder *builder);
void models_resnet_50(struct model_builder *builder);

/* Szegedy et al. 2015 as torchvision has it: batch normalization, and 3x3 where the paper has 5x5. The plain name has
 * both auxiliary heads, which are there by default when one trains; they come before the last `fc`. */
void models_googlenet(struct model_builder *builder);
void models_googlenet_noaux(struct model_builder *builder);

/* Szegedy et al. 2016; the plain name has the auxiliary head, as torchvision trains it by default, after Mixed_6e. */
void models_inception_v3(struct model_builder *builder);
void models_inception_v3_noaux(struct model_builder *builder);

/* Devlin et al. 2019: bert-large-uncased, 24 layers of 1024, with the pooler. */
void models_bert_large(struct model_builder *builder);

/* Radford et al. 2019: 12 layers of 768; the output head is tied to wte and counts once. Weights of its layers are
 * [in, out]. */
void models_gpt2_small(struct model_builder *builder);

#endif
