"""DeBERTa-v3's encoder at the size of BERT-mini (4 layers, hidden size 256): for machines without accelerator.

    bert-jax pretrain deberta_mini --data.path=STORE --workdir=WORKDIR

32 buckets for distances of up to 128 tokens to either side; masked words with the enhanced mask decoder. The rate for
AdamW is our choice.
"""

from bert_jax.config import Config, DataConfig, MaskedWords, MaskingConfig, OptimizerConfig, PhaseConfig
from bert_jax.config.presets import deberta_config


def get_config() -> Config:
    return Config(
        model=deberta_config(version=3, num_layers=4, hidden_size=256, max_distance=128, buckets=32),
        data=DataConfig(sentence_pairs="none"),
        masking=MaskingConfig(unit="ngram"),
        objective=MaskedWords(mask_decoder=True),
        phases=(PhaseConfig(steps=300_000, sequence_length=128, batch_size=256, learning_rate=7e-4),),
        optimizer=OptimizerConfig(name="adamw"),
    )
