"""The names and layouts of BERT's parameters in Google's TF1 code of 2018: one table for both directions."""

from typing import NamedTuple

import numpy as np

from bert_jax.config import HeadConfig, ModelConfig


class Row(NamedTuple):
    """One parameter on both sides.

    Axes: V words, P positions, T token types, H hidden, F feed-forward, A heads, D head size, C outputs of a task head.
    If the two sides have the same axes in opposite order, an array is transposed, else reshaped.
    """

    path: str
    axes: str
    """Our axes; below encoder/ there is one more in front, for the layers."""
    name: str
    """Name, with {} for the layer."""
    their_axes: str

    @property
    def part(self) -> str:
        return self.path.split("/")[0]

    @property
    def transposed(self) -> bool:
        return self.axes != self.their_axes == self.axes[::-1]

    def names(self, model: ModelConfig) -> list[str]:
        """Return the names of the variables, one per layer, that together are our parameter."""
        return [self.name.format(layer) for layer in range(model.num_layers)] if self.part == "encoder" else [self.name]

    def to_ours(self, values: np.ndarray, sizes: dict[str, int]) -> np.ndarray:
        """Return one variable (of one layer) in our layout; `sizes` are those of the file."""
        return values.T if self.transposed else values.reshape([sizes[axis] for axis in self.axes])

    def to_theirs(self, values: np.ndarray, sizes: dict[str, int]) -> np.ndarray:
        """Return the inverse of `to_ours`, without the rows that a padded vocabulary has beyond sizes["V"]."""
        values = values[: sizes["V"]] if self.axes[0] == "V" else values
        return values.T if self.transposed else values.reshape([sizes[axis] for axis in self.their_axes])


def _linear(path: str, axes: str, name: str, their_axes: str, bias_axes: str) -> tuple[Row, Row]:
    return (
        Row(f"{path}/kernel", axes, f"{name}/kernel", their_axes),
        Row(f"{path}/bias", bias_axes, f"{name}/bias", their_axes[-1]),
    )


def _norm(path: str, name: str) -> tuple[Row, Row]:
    return (
        Row(f"{path}/scale", "H", f"{name}/LayerNorm/gamma", "H"),
        Row(f"{path}/bias", "H", f"{name}/LayerNorm/beta", "H"),
    )


def _output(path: str, axes: str, name: str) -> tuple[Row, Row]:
    """Return rows for output weights, by whose transpose the original multiplies."""
    return (
        Row(f"{path}/kernel", axes, f"{name}output_weights", axes[::-1]),
        Row(f"{path}/bias", axes[-1], f"{name}output_bias", axes[-1]),
    )


_LAYER = "bert/encoder/layer_{}/"
TABLE = (
    Row("embeddings/word/table", "VH", "bert/embeddings/word_embeddings", "VH"),
    Row("embeddings/position/table", "PH", "bert/embeddings/position_embeddings", "PH"),
    Row("embeddings/token_type/table", "TH", "bert/embeddings/token_type_embeddings", "TH"),
    *_norm("embeddings/norm", "bert/embeddings"),
    *_linear("encoder/attention/query", "HAD", f"{_LAYER}attention/self/query", "HH", "AD"),
    *_linear("encoder/attention/key", "HAD", f"{_LAYER}attention/self/key", "HH", "AD"),
    *_linear("encoder/attention/value", "HAD", f"{_LAYER}attention/self/value", "HH", "AD"),
    *_linear("encoder/attention/output", "ADH", f"{_LAYER}attention/output/dense", "HH", "H"),
    *_norm("encoder/attention_norm", f"{_LAYER}attention/output"),
    *_linear("encoder/feed_forward/intermediate", "HF", f"{_LAYER}intermediate/dense", "HF", "F"),
    *_linear("encoder/feed_forward/output", "FH", f"{_LAYER}output/dense", "FH", "H"),
    *_norm("encoder/feed_forward_norm", f"{_LAYER}output"),
    *_linear("pooler", "HH", "bert/pooler/dense", "HH", "H"),
    *_linear("mlm/dense", "HH", "cls/predictions/transform/dense", "HH", "H"),
    *_norm("mlm/norm", "cls/predictions/transform"),
    Row("mlm/bias", "V", "cls/predictions/output_bias", "V"),
    *_output("next_sentence", "H2", "cls/seq_relationship/"),
)
_CLASSIFIER, _SQUAD = _output("head", "HC", ""), _output("head", "HC", "cls/squad/")  # run_classifier.py, run_squad.py
HEADS = {"classification": _CLASSIFIER, "regression": _CLASSIFIER, "span": _SQUAD}


def rows(head: HeadConfig | None) -> tuple[Row, ...]:
    """Return every parameter that a pre-training model, or one fine-tuned with this head, can have."""
    return TABLE if head is None else (*TABLE, *HEADS[head.kind])


def axis_sizes(model: ModelConfig, head: HeadConfig | None) -> dict[str, int]:
    return {
        "V": model.vocab_size,
        "P": model.max_position_embeddings,
        "T": model.type_vocab_size,
        "H": model.hidden_size,
        "F": model.feed_forward_size,
        "A": model.num_heads,
        "D": model.head_size,
        "2": 2,
        "C": head.outputs if head else 0,
    }
