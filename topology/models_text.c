/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text models: BERT-large (uncased) and GPT-2 small. Names and order are those of Hugging Face's BertModel and
 * GPT2Model.
 */
#include "topology/models.h"

#define BERT_WIDTH      1024u
#define BERT_LAYERS     24u
#define BERT_VOCABULARY 30522u
#define BERT_POSITIONS  512u

#define GPT2_WIDTH      768u
#define GPT2_LAYERS     12u
#define GPT2_VOCABULARY 50257u
#define GPT2_POSITIONS  1024u

void models_bert_large(struct model_builder *builder)
{
	model_builder_scope(builder, "embeddings");
	model_builder_param(builder, "word_embeddings", "weight", BERT_VOCABULARY, BERT_WIDTH);
	model_builder_param(builder, "position_embeddings", "weight", BERT_POSITIONS, BERT_WIDTH);
	model_builder_param(builder, "token_type_embeddings", "weight", 2, BERT_WIDTH);
	model_builder_norm(builder, "LayerNorm", BERT_WIDTH);
	for (unsigned layer = 0; layer < BERT_LAYERS; layer++) {
		model_builder_scope(builder, "encoder.layer.%u", layer);
		model_builder_fc(builder, "attention.self.query", BERT_WIDTH, BERT_WIDTH);
		model_builder_fc(builder, "attention.self.key", BERT_WIDTH, BERT_WIDTH);
		model_builder_fc(builder, "attention.self.value", BERT_WIDTH, BERT_WIDTH);
		model_builder_fc(builder, "attention.output.dense", BERT_WIDTH, BERT_WIDTH);
		model_builder_norm(builder, "attention.output.LayerNorm", BERT_WIDTH);
		model_builder_fc(builder, "intermediate.dense", BERT_WIDTH, 4 * BERT_WIDTH);
		model_builder_fc(builder, "output.dense", 4 * BERT_WIDTH, BERT_WIDTH);
		model_builder_norm(builder, "output.LayerNorm", BERT_WIDTH);
	}
	model_builder_scope(builder, "pooler");
	model_builder_fc(builder, "dense", BERT_WIDTH, BERT_WIDTH);
}

/* transformers.pytorch_utils.Conv1D: a fully connected layer whose weight is [in, out]. */
static void models_conv1d(struct model_builder *builder, const char *name, unsigned in, unsigned out)
{
	model_builder_param(builder, name, "weight", in, out);
	model_builder_param(builder, name, "bias", out, 0);
}

void models_gpt2_small(struct model_builder *builder)
{
	model_builder_scope(builder, "%s", "");
	model_builder_param(builder, "wte", "weight", GPT2_VOCABULARY, GPT2_WIDTH);
	model_builder_param(builder, "wpe", "weight", GPT2_POSITIONS, GPT2_WIDTH);
	for (unsigned layer = 0; layer < GPT2_LAYERS; layer++) {
		model_builder_scope(builder, "h.%u", layer);
		model_builder_norm(builder, "ln_1", GPT2_WIDTH);
		models_conv1d(builder, "attn.c_attn", GPT2_WIDTH, 3 * GPT2_WIDTH);
		models_conv1d(builder, "attn.c_proj", GPT2_WIDTH, GPT2_WIDTH);
		model_builder_norm(builder, "ln_2", GPT2_WIDTH);
		models_conv1d(builder, "mlp.c_fc", GPT2_WIDTH, 4 * GPT2_WIDTH);
		models_conv1d(builder, "mlp.c_proj", 4 * GPT2_WIDTH, GPT2_WIDTH);
	}
	model_builder_scope(builder, "%s", "");
	model_builder_norm(builder, "ln_f", GPT2_WIDTH);
}
