"""DeBERTa-base (12 layers, hidden size 768; He et al. 2021, arXiv 2006.03654): 139 M parameters with its head.

    bert-jax pretrain deberta_base --data.path=STORE --workdir=WORKDIR

Version 1: relative positions up to 512 tokens, mapped by kernels of their own; n-grams of up to three words; the
enhanced mask decoder. Batch, steps, warm-up and rate are those of the paper's appendix for the base model. The paper's
vocabulary is a byte-level one of 50,265 entries; here it is the store's, and one of that kind is made by

    bert-jax train-vocab --input=CORPUS --output=VOCAB --method=byte_bpe --lowercase=False --family=deberta --size=50265

Not trained here: neither cost nor result is measured.
"""

from bert_jax.config import Config, DataConfig, MaskedWords, MaskingConfig, OptimizerConfig, PhaseConfig
from bert_jax.config.presets import deberta_config


def get_config() -> Config:
    return Config(
        model=deberta_config(version=1),
        data=DataConfig(sentence_pairs="none", short_sequence_probability=0.0),
        masking=MaskingConfig(unit="ngram"),
        objective=MaskedWords(mask_decoder=True),
        phases=(
            PhaseConfig(
                steps=1_000_000, sequence_length=512, batch_size=2_048, learning_rate=2e-4, warmup_steps=10_000
            ),
        ),
        optimizer=OptimizerConfig(name="adamw"),
    )
