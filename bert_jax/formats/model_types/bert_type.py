"""BERT, whose names of the encoder's arrays other model types kept."""

from bert_jax.formats.model_types.definition import HEADS, TASKS, ModelType, beyond_bert, true_options

ENCODER = {
    "encoder/attention/query": "encoder.layer.{}.attention.self.query",
    "encoder/attention/key": "encoder.layer.{}.attention.self.key",
    "encoder/attention/value": "encoder.layer.{}.attention.self.value",
    "encoder/attention/output": "encoder.layer.{}.attention.output.dense",
    "encoder/attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "encoder/feed_forward/intermediate": "encoder.layer.{}.intermediate.dense",
    "encoder/feed_forward/output": "encoder.layer.{}.output.dense",
    "encoder/feed_forward_norm": "encoder.layer.{}.output.LayerNorm",
    "embeddings/word": "embeddings.word_embeddings",
    "embeddings/position": "embeddings.position_embeddings",
    "embeddings/token_type": "embeddings.token_type_embeddings",
    "embeddings/norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
}
"""BERT's names below the prefix, which RoBERTa and ELECTRA kept."""

BERT = ModelType(
    name="bert",
    family="BERT",
    prefix="bert.",
    modules={
        **{ours: f"bert.{theirs}" for ours, theirs in ENCODER.items()},
        "mlm/dense": "cls.predictions.transform.dense",
        "mlm/norm": "cls.predictions.transform.LayerNorm",
        "mlm": "cls.predictions",
        "next_sentence": "cls.seq_relationship",
    },
    heads=HEADS,
    classes={
        **{kind: f"BertFor{theirs}" for kind, theirs in TASKS.items()},
        "pretraining": "BertForPreTraining",
        "mlm": "BertForMaskedLM",
        "pairs": "BertForNextSentencePrediction",
        "encoder": "BertModel",
    },
    decoder="cls.predictions.decoder",
    obstacles=lambda model: beyond_bert(model) + true_options(type_vocab_size=model.type_vocab_size == 0),
    written_options=lambda model: {"position_embedding_type": "absolute"},
)
