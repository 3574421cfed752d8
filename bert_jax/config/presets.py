"""Published sizes of BERT and its family, and the configurations shipped with bert_jax; standard library only.

The presets include the options of Google's original code of 2018. Shipped configurations and studies are found by
name: `bert_base` is the file configs/bert_base.py. They lie next to the package in a checkout, and inside it in an
installed wheel.
"""

import dataclasses
import difflib
import pathlib
from collections.abc import Mapping
from typing import Literal, TypeVar

from bert_jax.config.model import DisentangledConfig, ModelConfig, Window, XLNetConfig
from bert_jax.config.objective import MaskedWords
from bert_jax.config.positions import Learned, NoPositions, Rope
from bert_jax.config.pretraining import (
    Config,
    MaskingConfig,
    OptimizerConfig,
    PhaseConfig,
    PhaseModel,
    PhaseObjective,
    ScheduleConfig,
)
from bert_jax.errors import UserError

Size = TypeVar("Size")
HEAD_SIZE = 64  # the same in every published BERT

SIZES = {  # layers, hidden size
    # Turc et al. 2019 (arXiv 1908.08962), table 1: the four miniatures with names
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    # Devlin et al. 2018 (arXiv 1810.04805), section 3
    "base": (12, 768),
    "large": (24, 1024),
}
# All 24 miniatures of Turc et al. by the names of their release; tiny, mini, small, medium and base are among them.
SIZES |= {
    f"L-{layers}_H-{hidden}_A-{hidden // HEAD_SIZE}": (layers, hidden)
    for layers in (2, 4, 6, 8, 10, 12)
    for hidden in (128, 256, 512, 768)
}


def model_config(name: str) -> ModelConfig:
    """Return the ModelConfig of a published size, with vocab_size None.

    Raises:
      UserError: there is no such size; the message lists them.
    """
    num_layers, hidden_size = _size("BERT", name, SIZES)
    return ModelConfig(num_layers=num_layers, hidden_size=hidden_size, num_heads=hidden_size // HEAD_SIZE)


def modernbert(num_layers: int, hidden_size: int, intermediate_size: int) -> ModelConfig:
    """Return ModernBERT (Warner et al. 2024, arXiv 2412.13663, table 4) in a size, for sequences of 1,024 tokens.

    That is its first phase; for the later ones, of 8,192 tokens, rope_theta is raised to 160,000.
    """
    return ModelConfig(
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=hidden_size // HEAD_SIZE,
        intermediate_size=intermediate_size,
        max_position_embeddings=1_024,
        type_vocab_size=0,
        pair_head=False,
        activation="gelu_erf",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        layer_norm_epsilon=1e-5,
        scaled_outputs=True,
        norm_position="pre",
        norm_bias=False,
        use_bias=False,
        first_attention_norm=False,
        feed_forward="geglu",
        positions=Rope(rope_theta=10_000.0),
        window=Window(local_window=64),
        task_transform=True,
    )


def left_to_right_first(whole: PhaseConfig, share: float) -> tuple[PhaseConfig, PhaseConfig]:
    """Return a phase in two, of which the first, this share of the steps, predicts the next word from left to right.

    They continue one schedule. The whole reads single texts, without a batch that grows.
    """
    steps = round(share * whole.steps)
    first = dataclasses.replace(
        whole,
        steps=steps,
        objective=PhaseObjective(name="left_to_right"),
        model=PhaseModel(direction="left_to_right"),
    )
    return first, dataclasses.replace(whole, steps=whole.steps - steps, warmup_steps=None)


def roberta_config(name: str) -> ModelConfig:
    """Return the ModelConfig of RoBERTa (Liu et al. 2019) in a published size of BERT, with vocab_size None.

    The ids of special tokens are those of its vocabulary, in which <pad> is 1. GELU is exact, as in fairseq.

    Raises:
      UserError: there is no such size; the message lists them.
    """
    return dataclasses.replace(
        model_config(name),
        max_position_embeddings=514,
        type_vocab_size=1,
        activation="gelu_erf",
        layer_norm_epsilon=1e-5,
        positions=Learned(padding_id=1),
        pair_head=False,
    )


def spanbert_config(name: str) -> ModelConfig:
    """Return the ModelConfig of SpanBERT (Joshi et al. 2020) in a published size of BERT, with vocab_size None.

    Raises:
      UserError: there is no such size; the message lists them.
    """
    return dataclasses.replace(model_config(name), activation="gelu_erf", pair_head=False)


XLNET_SIZES = {  # layers, hidden size: Yang et al. 2019 (arXiv 1906.08237), section 3.1
    "mini": (4, 256),  # ours, of the size of BERT-mini
    "base": (12, 768),
    "large": (24, 1024),
}


def xlnet_config(name: str) -> XLNetConfig:
    """Return the configuration of an XLNet in XLNET_SIZES, with vocab_size None.

    GELU is exact, as `transformers` runs the published checkpoints. Rows have up to 512 tokens. Segments are those of
    two texts, the class token and padding.

    Raises:
      UserError: there is no such size; the message lists them.
    """
    num_layers, hidden_size = _size("XLNet", name, XLNET_SIZES)
    return XLNetConfig(
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=hidden_size // HEAD_SIZE,
        type_vocab_size=4,
        activation="gelu_erf",
        pair_head=False,
    )


ALBERT_SIZES = {  # layers, hidden size, heads: Lan et al. 2020 (arXiv 1909.11942), table 1; xxlarge has 64 heads
    "mini": (4, 256, 4),  # ours, of the width of BERT-mini
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
    "xlarge": (24, 2048, 16),
    "xxlarge": (12, 4096, 64),
}


def albert_config(name: str) -> ModelConfig:
    """Return the ModelConfig of an ALBERT in ALBERT_SIZES, without dropout as in version 2, with vocab_size None.

    Raises:
      UserError: there is no such size; the message lists them.
    """
    num_layers, hidden_size, num_heads = _size("ALBERT", name, ALBERT_SIZES)
    return ModelConfig(
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        embedding_size=128,
        sharing="all",
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )


ELECTRA_SIZES = {  # layers, hidden size, heads, width of the tables: Clark et al. 2020 (arXiv 2003.10555), appendix A
    "mini": (4, 256, 4, 128),  # ours, of the width of BERT-mini
    "small": (12, 256, 4, 128),
    "base": (12, 768, 12, None),
    "large": (24, 1024, 16, None),
}


def electra_config(name: str) -> ModelConfig:
    """Return the ModelConfig of the discriminator of an ELECTRA in ELECTRA_SIZES, with vocab_size None.

    GELU is exact, and there is no pooler: classifiers read a fresh map of the first position with GELU.

    Raises:
      UserError: there is no such size; the message lists them.
    """
    num_layers, hidden_size, num_heads, embedding_size = _size("ELECTRA", name, ELECTRA_SIZES)
    return ModelConfig(
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        embedding_size=embedding_size,
        activation="gelu_erf",
        pooler="gelu_erf",
        pair_head=False,
    )


def deberta_config(
    version: Literal[1, 3],
    num_layers: int = 12,
    hidden_size: int = 768,
    max_distance: int = 512,
    buckets: int = 256,
) -> ModelConfig:
    """Return DeBERTa (He et al. 2021, arXiv 2006.03654) or DeBERTa-v3 (arXiv 2111.09543) in a size.

    vocab_size is None. In both, distances from max_distance tokens on are alike; version 3 has `buckets` for them.
    """
    first = DisentangledConfig(max_distance=max_distance, key_bias=False)
    third = DisentangledConfig(max_distance=max_distance, buckets=buckets, shared_projections=True, table_norm=True)
    return ModelConfig(
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=hidden_size // HEAD_SIZE,
        type_vocab_size=0,
        pair_head=False,
        activation="gelu_erf",
        layer_norm_epsilon=1e-7,
        pooler="gelu_erf",
        positions=NoPositions(),
        disentangled=first if version == 1 else third,
    )


def _size(family: str, name: str, sizes: Mapping[str, Size]) -> Size:
    """Return the size with this name, or raise a UserError that lists those of the family."""
    if name in sizes:
        return sizes[name]
    close = difflib.get_close_matches(name, sizes, n=1)
    hint = f"perhaps you meant {close[0]!r}; the sizes are" if close else "the sizes are"
    raise UserError(f"there is no {family} of size {name!r}; {hint} {', '.join(sizes)}")


_ARGUMENTS_2018 = (
    *("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size", "max_position_embeddings"),
    *("type_vocab_size", "hidden_dropout", "attention_dropout", "initializer_range"),
)
"""Options of ModelConfig that were in the configuration file of 2018; the others are BERT's where they are defaults."""


def google2018(config: Config) -> Config:
    """Return `config` with every option at the value that the code of 2018 fixes, on one replica.

    docs/google2018.md describes what that changes. Sizes, dropout, phases with their batch sizes and learning rates,
    and locations of files remain as they are: they were arguments there too.
    """
    return dataclasses.replace(
        config,
        model=ModelConfig(**{name: value for name, value in vars(config.model).items() if name in _ARGUMENTS_2018}),
        data=dataclasses.replace(
            config.data,
            held_out=0.0,
            sentence_pairs="nsp",
            short_sequence_probability=0.1,
            packing="off",
            copies=10,
        ),
        masking=MaskingConfig(loss_epsilon=1e-5),
        objective=MaskedWords(),
        optimizer=OptimizerConfig(name="adamw_bert"),
        schedule=ScheduleConfig(),
        compute=dataclasses.replace(config.compute, dtype="float32"),
        phases=tuple(dataclasses.replace(phase, schedule="continue", moments="keep") for phase in config.phases),
    )


_PACKAGE = pathlib.Path(__file__).resolve().parents[1]


def shipped_configs() -> dict[str, pathlib.Path]:
    """Return {name: file} of the shipped configurations, sorted by name."""
    return {file.stem: file for file in sorted(_directory().glob("*.py"))}


def shipped_studies() -> dict[str, pathlib.Path]:
    """Return {name: file} of the shipped studies, sorted by name."""
    return {file.stem: file for file in sorted((_directory() / "studies").glob("*.py"))}


def shipped_speedruns() -> dict[str, pathlib.Path]:
    """Return {name: file} of the shipped speedruns, sorted by name."""
    return {file.stem: file for file in sorted((_directory() / "speedruns").glob("*.py"))}


def _directory() -> pathlib.Path:
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"
