"""DistilBERT (Sanh et al. 2019): six layers of BERT-base, without segments and without a pooler.

    bert-jax pretrain distilbert --objective.distillation.teacher=TEACHER --data.path=STORE --workdir=WORKDIR

TEACHER is a BERT-base with the vocabulary of STORE; the student starts from those of its layers that the published
script takes. The loss is 5 × soft targets (temperature 2) + 2 × masked words + cosine of the last states; the first is
over all tokens, as in the published code. Without a teacher it learns the masked words alone, from random parameters.
The paper's batch is about 4,000; steps and rate are our choice. Not measured.
"""

from bert_jax.config import Config, DataConfig, MaskedWords, ModelConfig, OptimizerConfig, PhaseConfig
from bert_jax.config.objective import DistillationConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            num_layers=6,
            type_vocab_size=0,
            pair_head=False,
            pooler="relu",
            activation="gelu_erf",
        ),
        data=DataConfig(sentence_pairs="none"),
        objective=MaskedWords(mlm_weight=2.0, distillation=DistillationConfig(soft_positions="all")),
        init_from_layers=(0, 2, 4, 7, 9, 11),
        phases=(PhaseConfig(steps=125_000, sequence_length=512, batch_size=4_096, learning_rate=4e-4),),
        optimizer=OptimizerConfig(name="adamw"),
    )
