"""The interface through which the rest of the framework uses a model."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ComputeConfig, EncoderConfig
from bert_jax.models.bert_parameters import Layers
from bert_jax.models.kernels.plain import AttentionMask
from bert_jax.parameters import ParameterTable

Params = dict[str, Any]
"""Nested dict of float32 arrays; the leaves of encoder/… have a leading axis, one entry per layer."""


class EncoderOutput(NamedTuple):
    """The result of `Model.encode`; what is of every layer is None unless requested, `pooled` if there is no pooler."""

    last_hidden_state: jax.Array
    """[B, L, H]."""
    pooled: jax.Array | None
    """[B, H]: tanh of an affine map of the first position; [B, T, H] where rows are T packed texts."""
    hidden_states: tuple[jax.Array, ...] | None = None
    """(N + 1) × [B, L, H]: the embeddings, then every block (pre-LN: before the final norm)."""
    attentions: tuple[jax.Array, ...] | None = None
    """N × [B, A, L, L] float32: the attention probabilities, before dropout."""
    decoded: jax.Array | None = None
    """[B, L, H]: what the head for masked words reads instead of the last states, of a model with a decoder for it."""


class ReadStates(NamedTuple):
    """The part of the last layer that heads read, if nothing else is computed; see `BertForPreTraining.read`."""

    states: jax.Array
    """[B, M, H]: the states at the M positions that were asked for."""
    pooled: jax.Array | None
    """As in `EncoderOutput`."""


Encoded = EncoderOutput | ReadStates


class Model(Protocol):
    """An encoder as pure functions of a nested dict of arrays, such as `BertForPreTraining` and `BertForTask`.

    It holds its configuration and no arrays. Parameters are created by `init`, and belong to whoever trains them.
    """

    @property
    def config(self) -> EncoderConfig:
        """Sizes of the model."""
        ...

    @property
    def compute(self) -> ComputeConfig:
        """Choices of how the same mathematics is carried out."""
        ...

    @property
    def parameters(self) -> ParameterTable:
        """Path, named axes and shape of every array from `init`; partition, optimizer and counts follow from it."""
        ...

    def training_flops(self, sequence_length: int, predictions: int) -> int:
        """Return the floating-point operations per sequence in a training step, from which utilization is reported.

        Args:
            sequence_length: tokens of the sequence.
            predictions: number of positions for which the head is computed.
        """
        ...

    def init(self, key: jax.Array) -> Params:
        """Return fresh parameters.

        This works under jit with any out_shardings, which does not change the values, and under eval_shape, which gives
        the shapes.
        """
        ...

    def encode(
        self,
        params: Params,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array | AttentionMask,
        dropout_key: jax.Array | None = None,
        collect: bool = False,
    ) -> EncoderOutput:
        """Return contextual embeddings.

        Args:
          params: from `init`, or of the same structure; there may also be parts that this model does not know.
          input_ids: int32 [B, L].
          token_type_ids: int32 [B, L].
          attention_mask: [B, L], 1 for real tokens, 0 for padding; or an AttentionMask, which can also hold segments,
            a window and a bias.
          dropout_key: None for no dropout.
          collect: also return the output of every layer and its attention probabilities.
        """
        ...


@runtime_checkable
class FillsMasks(Protocol):
    """Members beyond `Model` of a model that can fill masked words in: evaluation.samples notes what it does."""

    @property
    def fills_masks(self) -> bool:
        """Whether it has the head for that."""
        ...

    def mlm_logits(self, params: Params, batch: dict[str, jax.Array]) -> jax.Array:
        """Return float32 [B, M, V]: logits of the words at the masked_positions of a batch, without dropout."""
        ...


@runtime_checkable
class HasGenerator(Protocol):
    """Members beyond `Model` of a model in whose place another one predicts the words, in the same step."""

    @property
    def generator(self) -> Model:
        """The other one, whose memory counts too."""
        ...


@runtime_checkable
class HasLayers(Protocol):
    """Members beyond `Model` of a model that says what its layers keep; others count as those of `layers_of` sizes."""

    @property
    def encoder_layers(self) -> Layers:
        """Memory that its layers keep for the backward pass, and whether they attend."""
        ...


@runtime_checkable
class HasHead(Protocol):
    """Members beyond `Model` of a model whose losses keep something else than the logits of all words."""

    def head_bytes(self, sequence_length: int, predictions: int, value_bytes: int) -> int | None:
        """Return the bytes that they keep of a sequence for the backward pass; None: those of the logits.

        Args:
            sequence_length: tokens of the sequence.
            predictions: number of positions at which something is predicted.
            value_bytes: of an activation.
        """
        ...


@runtime_checkable
class SharesWordTable(Protocol):
    """Members beyond `Model` of a model that may read copies of its word table; see `training.step`."""

    @property
    def shares_word_table(self) -> bool:
        """Whether lookup and logits use embeddings/word/table, by the functions of models/embeddings.py alone."""
        ...

    @property
    def dtype(self) -> jnp.dtype:
        """Type of activations and matrix products."""
        ...


def encoder_inputs(batch: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return what `Model.encode` reads of a batch, in its order: int32 [B, L] ids, token types and mask."""
    return batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]


def arrays(module: nnx.Module) -> Params:
    """Return the parameters of a module, by the names of its attributes."""
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))


def structure(make: Callable[[], Any]) -> nnx.GraphDef[Any]:
    """Return what `nnx.merge` needs in addition to `arrays` to give the module of `make()`; nothing is computed."""
    return nnx.graphdef(jax.eval_shape(make))
