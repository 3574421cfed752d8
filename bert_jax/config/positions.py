"""Encodings of positions as frozen dataclasses, each with exactly the options that it has; standard library only."""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol

from bert_jax.config.options import option
from bert_jax.errors import UserError, need_positive


class _Model(Protocol):
    """What an encoding has to know of the model."""

    @property
    def max_position_embeddings(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def attention_heads(self) -> int: ...
    @property
    def head_size(self) -> int: ...


LEAST_BASE = 1e-30
"""Lowest base of rope; wavelengths are float32, and 1e-45 is the least that these can be."""


class _Positions:
    """Common part of the encodings of positions."""

    chosen_by: ClassVar[Mapping[str, str]]
    """The option that chooses it, and its value."""

    def check(self, model: _Model) -> None:
        """Raise a UserError if a value is out of range, or cannot go with the model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PositionTable(_Positions):
    """A table that is added to the words."""

    position_init: Literal["random", "sinusoidal"] = "random"
    """Initial value of the position table, which is learned either way."""
    padding_id: int | None = None
    """Token id P of the padding, from which positions count as in RoBERTa: a token has P + 1 + the number of real
    tokens before it, and padding has P, so the longest sequence has P + 1 tokens fewer than
    max_position_embeddings. None: positions are 0, 1, 2, … as in BERT."""

    def check(self, model: _Model) -> None:
        if self.padding_id is not None and not 0 <= self.padding_id < model.max_position_embeddings - 1:
            raise UserError(
                f"model.padding_id={self.padding_id} must be an id, 0 or more, and leave positions of the "
                f"{model.max_position_embeddings} in model.max_position_embeddings; RoBERTa has 1 and 514"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learned(PositionTable):
    """A table that is added to the words (BERT)."""

    chosen_by: ClassVar[Mapping[str, str]] = {"positions": "learned"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnedBias(PositionTable):
    """A table that is added to the words, and in every layer a learned number for each head and distance, added to the
    score (MPNet)."""

    chosen_by: ClassVar[Mapping[str, str]] = {"positions": "learned_bias"}
    bias_buckets: int = 32
    """Number of buckets of distances that have a number, half of them for keys before the query. Half of those are one
    distance each; the others grow logarithmically up to bias_max_distance, as in T5."""
    bias_max_distance: int = 128
    """Distance up to which the buckets grow; the last one also has all that are further."""

    def check(self, model: _Model) -> None:
        super().check(model)
        if self.bias_buckets < 4 or self.bias_buckets % 2:
            raise UserError(
                f"model.bias_buckets={self.bias_buckets} must be even and at least 4, to tell one distance from all "
                "beyond it to either side; MPNet has 32"
            )
        if self.bias_max_distance <= self.bias_buckets // 4:
            raise UserError(
                f"model.bias_max_distance={self.bias_max_distance} leaves nothing for the wider half of "
                f"model.bias_buckets={self.bias_buckets}; it must be at least {self.bias_buckets // 4 + 1}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rope(_Positions):
    """Queries and keys are turned by an angle that grows with their position (Su et al. 2021)."""

    chosen_by: ClassVar[Mapping[str, str]] = {"positions": "rope"}
    rope_theta: float = 10_000.0
    """Base of the wavelengths of rope in layers that see the whole sequence; longer sequences need a larger one."""
    rope_local_theta: float | None = None
    """Base of the wavelengths of rope in layers with a window. None: rope_theta."""
    rope_scale: float = 1.0
    """Factor by which a model reads longer sequences than it was trained on, in layers that see the whole sequence."""
    rope_scaling: Literal["linear", "dynamic", "yarn"] = "linear"
    """How. linear: positions are divided by rope_scale (position interpolation, Chen et al. 2023). dynamic: the base
    grows with the length of a row from rope_trained_length on (NTK-aware; a row of several texts counts as one). yarn:
    only long wavelengths are stretched, and scores are sharpened (Peng et al. 2023, arXiv 2309.00071)."""
    rope_trained_length: int | None = option(None, of=("rope_scaling", "dynamic", "yarn"))
    """Length of the sequences that a model with dynamic or yarn was trained on. None: there is none, as with linear."""
    rope_beta_fast: float = option(32.0, of=("rope_scaling", "yarn"))
    """Number of turns within rope_trained_length from which on yarn leaves a wavelength as it is."""
    rope_beta_slow: float = option(1.0, of=("rope_scaling", "yarn"))
    """Number of turns up to which yarn stretches it by rope_scale."""
    rope_amplitude: float | None = option(None, of=("rope_scaling", "yarn"))
    """Factor of queries and keys with yarn. None: 1 + ln(rope_scale) / 10."""

    @property
    def local_theta(self) -> float:
        """Base of the wavelengths in layers with a window, also if `rope_local_theta` is None."""
        return self.rope_theta if self.rope_local_theta is None else self.rope_local_theta

    @property
    def amplitude(self) -> float:
        """Factor of queries and keys in layers that see the whole sequence."""
        if self.rope_amplitude is not None:
            return self.rope_amplitude
        return 1 + math.log(max(1, self.rope_scale)) / 10 if self.rope_scaling == "yarn" else 1.0

    def check(self, model: _Model) -> None:
        need_positive(
            self,
            "model.",
            *("rope_scale", "rope_trained_length", "rope_beta_fast", "rope_beta_slow", "rope_amplitude"),
        )
        if self.rope_scaling != "linear":
            self._check_scaling(model)
        for name in ("rope_theta", "rope_local_theta"):
            if (base := getattr(self, name)) is not None and not LEAST_BASE <= base <= 1 / LEAST_BASE:
                raise UserError(
                    f"model.{name}={base} must be positive, from {LEAST_BASE:g} to {1 / LEAST_BASE:g}; 10,000 to "
                    "1,000,000 are usual"
                )
        if model.head_size % 2:
            raise UserError(
                f"model.positions=rope turns features in pairs, but model.hidden_size={model.hidden_size} with "
                f"model.num_heads={model.attention_heads} makes heads of {model.head_size}; choose a number of heads "
                "that makes them even"
            )

    def _check_scaling(self, model: _Model) -> None:
        if self.rope_trained_length is None:
            raise UserError(
                f"model.rope_scaling={self.rope_scaling} depends on model.rope_trained_length, the length of the "
                "sequences that the model was trained on before; give it, such as 2048"
            )
        if self.rope_scale < 1:
            raise UserError(
                f"model.rope_scale={self.rope_scale} must be at least 1 with model.rope_scaling={self.rope_scaling}"
            )
        if self.rope_scaling == "dynamic" and model.head_size < 4:
            raise UserError(f"model.rope_scaling=dynamic needs heads of at least 4 features, not {model.head_size}")
        if self.rope_scaling == "yarn" and (self.rope_theta <= 1 or self.rope_beta_fast < self.rope_beta_slow):
            raise UserError(
                f"model.rope_scaling=yarn needs model.rope_theta={self.rope_theta} above 1, and model.rope_beta_fast="
                f"{self.rope_beta_fast} at least model.rope_beta_slow={self.rope_beta_slow}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alibi(_Positions):
    """Scores fall with the distance (Press et al. 2022), as in MosaicBERT."""

    chosen_by: ClassVar[Mapping[str, str]] = {"positions": "alibi"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoPositions(_Positions):
    """No encoding of positions."""

    chosen_by: ClassVar[Mapping[str, str]] = {"positions": "none"}
