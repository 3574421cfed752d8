"""DistilBERT of the width of BERT-mini: two of its four layers, without segments and without a pooler.

    bert-jax pretrain bert_mini --data.path=STORE --workdir=TEACHER --model.activation=gelu_erf
    bert-jax pretrain distilbert_mini --objective.distillation.teacher=TEACHER --data.path=STORE --workdir=WORKDIR

The student starts from every second layer of its teacher and learns from its predictions at the masked positions (5 ×,
temperature 2), from the words there (2 ×) and from its last states (1 ×). Without a teacher it learns the masked words
alone, from random parameters. Steps and rate are those of bert_mini. docs/family.md has a run of this model with other
batches; this configuration as it is: not measured.
"""

from bert_jax.config import Config, DataConfig, MaskedWords, ModelConfig, OptimizerConfig, PhaseConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            num_layers=2,
            hidden_size=256,
            num_heads=4,
            type_vocab_size=0,
            pair_head=False,
            pooler="relu",
            activation="gelu_erf",
        ),
        data=DataConfig(sentence_pairs="none"),
        objective=MaskedWords(mlm_weight=2.0),
        init_from_layers=(0, 2),
        phases=(PhaseConfig(steps=300_000, sequence_length=128, batch_size=256, learning_rate=7e-4),),
        optimizer=OptimizerConfig(name="adamw"),
    )
