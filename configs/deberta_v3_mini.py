"""DeBERTa-v3 at the size of BERT-mini (4 layers, hidden size 256): for machines without accelerator.

    bert-jax pretrain deberta_v3_mini --data.path=STORE --workdir=WORKDIR

The encoder of deberta_mini, trained as deberta_v3_base is: it detects the words that a generator of two layers
replaces, with a word table that is the generator's plus a difference. The rate for AdamW is our choice.
"""

from bert_jax.config import Config, DataConfig, MaskingConfig, OptimizerConfig, PhaseConfig, ReplacedTokens
from bert_jax.config.objective import GeneratorConfig
from bert_jax.config.presets import deberta_config


def get_config() -> Config:
    return Config(
        model=deberta_config(version=3, num_layers=4, hidden_size=256, max_distance=128, buckets=32),
        data=DataConfig(sentence_pairs="none"),
        masking=MaskingConfig(mask_share=1.0, random_share=0.0),
        objective=ReplacedTokens(
            mask_decoder=True,
            generator=GeneratorConfig(hidden_size=256, num_layers=2, embeddings="disentangled"),
        ),
        phases=(PhaseConfig(steps=300_000, sequence_length=128, batch_size=128, learning_rate=5e-4),),
        optimizer=OptimizerConfig(name="adamw"),
    )
