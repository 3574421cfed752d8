"""RoBERTa's recipe at the size of BERT-mini (4 layers, hidden size 256), for one machine.

    bert-jax train-vocab --input=CORPUS --output=VOCAB --method=byte_bpe --size=8192 --lowercase=False
    bert-jax prepare --input=CORPUS --vocab=VOCAB --output=STORE
    bert-jax pretrain roberta_mini --data.path=STORE --workdir=WORKDIR

Full sentences across documents fill every row of 128 tokens; new masks in every epoch; no pairs, no short sequences.
docs/family.md has a run of this model with WordPiece and other batches; this configuration as it is: not measured.
"""

from bert_jax.config import Config, DataConfig, OptimizerConfig, PhaseConfig
from bert_jax.config.presets import roberta_config


def get_config() -> Config:
    return Config(
        model=roberta_config("mini"),
        data=DataConfig(sentence_pairs="none", short_sequence_probability=0.0, packing="off"),
        phases=(
            PhaseConfig(steps=100_000, sequence_length=128, batch_size=64, learning_rate=1e-3, warmup_steps=1_000),
        ),
        optimizer=OptimizerConfig(beta2=0.98, epsilon=1e-6, weight_decay=0.01),
    )
