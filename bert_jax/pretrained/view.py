"""Views of a loaded model: its layers one by one, and the table of its parameters."""

import collections.abc
import dataclasses
import functools
import io
import math
from typing import Any, overload

import jax
import jax.numpy as jnp
from flax import nnx
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bert_jax.checkpoints.fingerprint import leaf_paths
from bert_jax.config import ComputeConfig, EmbeddingConfig, ModelConfig
from bert_jax.files import near_path
from bert_jax.formats.stored import describe_embedding
from bert_jax.models.architecture import bert_architecture
from bert_jax.models.input_masks import input_mask
from bert_jax.models.protocol import structure
from bert_jax.models.stack import one_block

TABLE_WIDTH = 110  # columns


@dataclasses.dataclass(frozen=True, repr=False)
class Layer:
    """One Transformer block."""

    config: ModelConfig
    index: int
    """Number of the layer; 0 is the one above the embeddings."""
    params: dict[str, Any]
    """As params["encoder"] of the model, without the leading axis: attention/query/kernel is [H, A, D]."""

    def __call__(self, x: jax.Array, attention_mask: jax.Array) -> jax.Array:
        """Return the layer's output for states [B, L, H]; attention_mask [B, L] is 1 for real tokens. No dropout."""
        x, architecture = jnp.asarray(x), bert_architecture(self.config, ComputeConfig())
        stack = architecture.stack
        mask = input_mask(self.config, architecture, x.shape[1], jnp.asarray(attention_mask), None)
        block = nnx.merge(_block_structure(self.config, self.index == 0), self.params)
        settings = stack.settings(self.index)
        return block(x, mask, None, stack.attend, collect=False, **settings)[0]

    def __repr__(self) -> str:
        return _text(f"layers[{self.index}] of {self.config.num_layers}", parameter_table(self.params))


class Layers(collections.abc.Sequence[Layer]):
    """The layers of a model: layers[3], len(layers), for layer in layers."""

    def __init__(self, config: ModelConfig, stacked: dict[str, Any]):
        self._config, self._stacked = config, stacked

    def __len__(self) -> int:
        return self._config.num_layers

    @overload
    def __getitem__(self, index: int) -> Layer: ...

    @overload
    def __getitem__(self, index: slice) -> list[Layer]: ...

    def __getitem__(self, index: int | slice) -> Layer | list[Layer]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        index = range(len(self))[index]
        return Layer(self._config, index, _of_layer(self._config, self._stacked, index))

    def __repr__(self) -> str:
        return f"{len(self)} layers of {self._config.hidden_size} values, {self._config.num_heads} heads"


def describe(model: Any) -> str:
    """Return the origin of a PretrainedModel, its sizes, and every parameter with path, shape and number of values."""
    config, tokenizer = model.config, model.tokenizer
    step = f", step {model.history['step']:,}" if model.history.get("step") is not None else ""
    words = "no tokenizer" if tokenizer is None else f"{tokenizer.kind}, {'un' if tokenizer.lowercase else ''}cased"
    lines = [
        f"BERT from {near_path(model.path)} ({model.kind}{step})",
        f"{config.num_layers} layers, hidden size {config.hidden_size:,}, {config.num_heads} heads, feed-forward "
        f"{config.feed_forward_size:,}, {config.max_position_embeddings:,} positions, {config.activation}, vocabulary "
        f"{config.vocab_size:,} ({words})",
    ]
    if model.head is not None:
        labels = model.head.labels[:8] + (("…",) if len(model.head.labels) > 8 else ())
        crf = " with a CRF" if model.head.crf else ""
        lines.append(f"task head: {model.head.kind}{crf}" + (f" ({', '.join(labels)})" if labels else ""))
    if model.embedding != EmbeddingConfig():
        lines.append(f"embed: {describe_embedding(model.embedding)}")
    return _text("\n".join(lines), parameter_table(model.params))


def parameter_table(params: dict[str, Any]) -> Table:
    table = Table()
    table.add_column("parameter", no_wrap=True)
    table.add_column("shape", no_wrap=True)
    table.add_column("values", justify="right", no_wrap=True)
    total = 0
    for path, leaf in leaf_paths(params).items():
        size = math.prod(leaf.shape)
        total += size
        table.add_row(Text(path), Text(str(list(leaf.shape))), f"{size:,}")
    table.add_section()
    table.add_row("total", "float32", f"{total:,}")
    return table


def _of_layer(config: ModelConfig, stacked: dict[str, Any], index: int) -> dict[str, Any]:
    """Return the parameters of one layer; those with a row less than layers are not in the first.

    A convolution is in the first alone.
    """
    stacked = {name: tree for name, tree in stacked.items() if index == 0 or name != "convolution"}
    if config.sharing != "none":
        return jax.tree.map(lambda leaf: leaf[min(index, len(leaf) - 1)], stacked)
    found, num_layers = {}, config.num_layers
    for name, tree in stacked.items():
        if name in ("relative", "convolution"):  # the table that every layer reads; what is there once
            found[name] = jax.tree.map(lambda leaf: leaf[0], tree)
            continue
        lacking = num_layers - jax.tree.leaves(tree)[0].shape[0]
        if index >= lacking:
            found[name] = jax.tree.map(lambda leaf, row=index - lacking: leaf[row], tree)
    return found


@functools.lru_cache
def _block_structure(config: ModelConfig, first: bool) -> nnx.GraphDef[Any]:
    stack = bert_architecture(config, ComputeConfig()).stack
    return structure(lambda: one_block(stack, 0 if first else 1, jax.random.key(0)))


def _text(heading: str, table: Table) -> str:
    # In a notebook rich would show the table there and then, not write it to the file.
    file = io.StringIO()
    console = Console(file=file, width=TABLE_WIDTH, color_system=None, force_jupyter=False)
    console.print(table)
    return f"{heading}\n{file.getvalue().rstrip()}"
