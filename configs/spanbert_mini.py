"""SpanBERT's recipe at the size of BERT-mini (4 layers, hidden size 256), for one machine.

    bert-jax pretrain spanbert_mini --data.path=STORE --workdir=WORKDIR

Spans, one replacement decision for each, and the span boundary objective as in spanbert_base; steps, batch and rate are
those of roberta_mini. Time and result of this configuration: not measured.
"""

from bert_jax.config import Config, DataConfig, MaskedWords, MaskingConfig, OptimizerConfig, PhaseConfig
from bert_jax.config.presets import spanbert_config


def get_config() -> Config:
    return Config(
        model=spanbert_config("mini"),
        data=DataConfig(sentence_pairs="none", short_sequence_probability=0.0, packing="on"),
        masking=MaskingConfig(unit="span", replacement="span"),
        objective=MaskedWords(span_boundary_weight=1.0),
        phases=(
            PhaseConfig(steps=100_000, sequence_length=128, batch_size=64, learning_rate=1e-3, warmup_steps=1_000),
        ),
        optimizer=OptimizerConfig(epsilon=1e-8, weight_decay=0.01),
    )
