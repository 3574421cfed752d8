"""SpanBERT at the size of BERT-base, with the published recipe (Joshi et al. 2020, arXiv 1907.10529).

    bert-jax pretrain spanbert_base --data.path=gs://BUCKET/store --workdir=gs://BUCKET/spanbert-base

Single texts of one document each, without pairs; spans of whole words; one replacement decision per span; the loss of
the masked words plus that of the span boundary objective. Options are those of the command in the authors' repository,
which trained a cased vocabulary. There a row holds one text; here short texts share a row (--data.packing) and attend
to themselves alone, and a span at the edge of a text borders on [CLS] or [SEP] instead of being left out of the
second loss.
Time and result of this configuration: not measured.
"""

from bert_jax.config import (
    Config,
    DataConfig,
    MaskedWords,
    MaskingConfig,
    OptimizerConfig,
    PhaseConfig,
    ScheduleConfig,
)
from bert_jax.config.presets import spanbert_config


def get_config() -> Config:
    return Config(
        model=spanbert_config("base"),
        data=DataConfig(sentence_pairs="none", short_sequence_probability=0.0, packing="on"),
        masking=MaskingConfig(unit="span", replacement="span"),
        objective=MaskedWords(span_boundary_weight=1.0),
        phases=(
            PhaseConfig(steps=2_400_000, sequence_length=512, batch_size=256, learning_rate=1e-4, warmup_steps=10_000),
        ),
        optimizer=OptimizerConfig(epsilon=1e-8, weight_decay=0.01),
        schedule=ScheduleConfig(name="linear_after_warmup"),
    )
