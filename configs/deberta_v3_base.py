"""DeBERTa-v3-base (12 layers, hidden size 768; He et al. 2021, arXiv 2111.09543): 184 M parameters with its head.

    bert-jax pretrain deberta_v3_base --data.path=STORE --workdir=WORKDIR

Version 3: 256 buckets for the distances to either side, mapped by the kernels of queries and keys; a norm after the
table of relative positions. Replaced tokens are detected, with a generator of the same width and half of the layers,
and a word table whose gradients are kept apart (objective.generator.embeddings=disentangled); the generator has the
enhanced mask decoder, the discriminator ELECTRA's head. Batch, steps, warm-up, rate and beta2 are those of the paper,
and as in its code (rtd_task.py) every predicted token becomes [MASK]. The paper's vocabulary is a SentencePiece one of
128,100 entries; here it is the store's. Not trained here: neither cost nor result is measured.
"""

from bert_jax.config import Config, DataConfig, MaskingConfig, OptimizerConfig, PhaseConfig, ReplacedTokens
from bert_jax.config.objective import GeneratorConfig
from bert_jax.config.presets import deberta_config


def get_config() -> Config:
    return Config(
        model=deberta_config(version=3),
        data=DataConfig(sentence_pairs="none", short_sequence_probability=0.0),
        masking=MaskingConfig(mask_share=1.0, random_share=0.0),
        objective=ReplacedTokens(
            mask_decoder=True,
            generator=GeneratorConfig(hidden_size=768, num_layers=6, embeddings="disentangled"),
        ),
        phases=(
            PhaseConfig(steps=500_000, sequence_length=512, batch_size=8_192, learning_rate=6e-4, warmup_steps=10_000),
        ),
        optimizer=OptimizerConfig(name="adamw", beta2=0.98),
    )
