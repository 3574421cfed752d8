"""The functions of a loaded model, compiled once per shape, from NumPy batches to NumPy results.

The encoder is compiled separately from what follows: pooling, combinations of layers and the heads are programs of
milliseconds, so using the states of texts of the same shape in a different way does not compile the model again.
Notebooks edit and train the parameters: they are checked and placed before anything reads them.
"""

import contextlib
import dataclasses
import operator
from collections.abc import Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import HeadConfig
from bert_jax.config.heads import Combination, Pooling
from bert_jax.data.sequences import Batch
from bert_jax.devices import sharding
from bert_jax.devices.hardware import memory_advice
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining, with_head_gates, with_memory
from bert_jax.models.bert_parameters import SHARE_ROWS, TOKEN_VECTORS
from bert_jax.models.costs import scans
from bert_jax.models.layers import PackedTexts, steady_rows
from bert_jax.models.pooling import combine, pool, read_mask, token_vectors, unit_vectors
from bert_jax.models.protocol import Encoded, EncoderOutput
from bert_jax.models.task import BertForTask
from bert_jax.objectives.tasks import predictions


class Parameters:
    """A nested dict `tree` of float32 arrays, whose entries may be exchanged, and all of it by `replace`."""

    def __init__(self, tree: dict[str, Any]):
        self.tree: dict[str, Any] = tree
        self._structure = jax.tree.structure(tree)
        self._shardings = jax.tree.map(lambda leaf: leaf.sharding, tree)
        self._wanted = {path: _kind(leaf) for path, leaf in leaf_paths(tree).items()}
        self._good = jax.tree.leaves(tree)  # arrays of JAX, which nobody can change
        self._divided: tuple[list[Any], Any] = ([], None)

    def replace(self, tree: dict[str, Any]) -> None:
        """Replace the parameters with `tree`, a pytree of NumPy or JAX arrays with the same names, shapes and dtype."""
        self.tree = self._placed(tree)
        self._good = jax.tree.leaves(self.tree)

    def current(self) -> dict[str, Any]:
        """Return `tree` in its current state, on the devices of the model.

        Raises:
          UserError: an entry was added, removed, or exchanged for one with a different shape or dtype; names the first.
        """
        leaves, structure = jax.tree.flatten(self.tree)
        if structure == self._structure and all(map(operator.is_, leaves, self._good)):
            return self.tree
        return self._placed(self.tree)

    def by_layer(self) -> dict[str, Any]:
        """Return `current()` with a tuple of the rows of each array of the encoder, which share the array's memory.

        A program on a CPU copies what it takes of an array, all layers each time, and for one text that takes longer
        than the rest of the computation.
        """
        params = self.current()
        leaves = jax.tree.leaves(params[ENCODER])
        known, divided = self._divided
        if len(known) != len(leaves) or not all(map(operator.is_, known, leaves)):
            divided = jax.tree.map(_rows, params[ENCODER])
            self._divided = leaves, divided
        return params | {ENCODER: divided}

    def _placed(self, tree: dict[str, Any]) -> dict[str, Any]:
        leaves = leaf_paths(tree)
        self._check({path: _kind(leaf) for path, leaf in leaves.items()})
        return jax.device_put(
            jax.tree.unflatten(self._structure, [leaves[path] for path in self._wanted]), self._shardings
        )

    def _check(self, found: dict[str, str]) -> None:
        differing = [path for path in sorted({*self._wanted, *found}) if found.get(path) != self._wanted.get(path)]
        if differing:
            path, more = differing[0], f" (and {len(differing) - 1} more differ)" if len(differing) > 1 else ""
            raise UserError(
                f"params: {path} is {found.get(path, 'missing')}, but the model has "
                f"{self._wanted.get(path, 'no such parameter')}{more}; keep the names, shapes and dtype of "
                "model.params, for example with jax.tree.map or .astype(np.float32)"
            )


def _rows(array: jax.Array) -> tuple[jax.Array, ...]:
    (device,) = array.devices()
    return tuple(jax.device_put(row, device, may_alias=True) for row in np.asarray(array))


def not_finite(tree: dict[str, Any]) -> list[str]:
    """Return the paths of the arrays in which a value is NaN or infinite."""
    return [path for path, leaf in leaf_paths(tree).items() if not np.isfinite(np.asarray(leaf)).all()]


def _kind(leaf: Any) -> str:
    return f"{getattr(leaf, 'dtype', type(leaf).__name__)}{list(np.shape(leaf))}"


ENCODER = "encoder"
"""The part of the parameters whose arrays have an axis of layers."""
INPUTS = ("input_ids", "token_type_ids", "attention_mask")
PACKED = ("text_ids", "text_starts")  # of rows of several texts
WORDS_AT_ONCE = 16  # masked words whose logits are computed together
LIKELIHOODS_AT_ONCE = 64  # words whose probabilities are, of which a number each is returned
SLOTS = 16  # places of a row of several texts that the last layer computes, or twice as many where they are short
HEAD_ROWS = 64  # fewest rows of a product whose bits are those of any other (BLOCK of pretrained/outputs.py)


class Runner:
    """Runs `network` on the current parameters; the mesh also splits batches, and every host gets the whole result."""

    def __init__(
        self,
        network: BertForPreTraining,
        head: HeadConfig | None,
        parameters: Parameters,
        mesh: Mesh,
        unread: tuple[int, ...] = (),
    ):
        self._network, self._unread = network, unread
        self.longest: int = network.config.longest_sequence
        """Number of tokens that the model reads."""
        self._vectors = jax.jit(
            _vectors, static_argnames=("combination", "pooling", "normalize"), out_shardings=sharding.replicated(mesh)
        )
        self.states: Compiled = Compiled(_states, network, parameters, mesh, ("collect", "decoded"))
        self.mlm_head: Compiled = Compiled(BertForPreTraining.mlm_logits, network, parameters, mesh)
        self.words: Compiled = Compiled(_words, network, parameters, mesh)
        self.read: Compiled = Compiled(_read, network, parameters, mesh)
        self.likely: Compiled = Compiled(_log_probabilities, network, parameters, mesh)
        self.hidden_words: Compiled = Compiled(BertForPreTraining.hidden_logits, network, parameters, mesh)
        self.gated_losses: Compiled = Compiled(_gated_losses, network, parameters, mesh)
        self.next_sentence_head: Compiled = Compiled(BertForPreTraining.next_sentence_logits, network, parameters, mesh)
        self._token_vectors: Compiled = Compiled(_token_vectors, network, parameters, mesh)
        self._strengths: Compiled = Compiled(_strengths, network, parameters, mesh)
        self.packs_scores: bool = head is not None and head.kind in SHARE_ROWS
        """Whether `task_scores` takes rows of several texts."""
        if head is not None:
            task = BertForTask(network.config, head, network.compute, unread=unread)
            self._scores = Compiled(predictions, task, parameters, mesh)

    def encode(
        self, batch: Batch, layers: tuple[int, ...] | None, attentions: bool, pooling: str | None
    ) -> dict[str, Any]:
        """Return last [B, L, H], pooled [B, H], layers and attentions (N × [B, A, L, L]), float32, to be read only.

        `pooled` is None without a pooler, and [n, H] where rows hold several texts, n in all; `layers` are those
        requested, [B, L, H] each. A batch of an XLNet may have a memory, float32 [B, N, M, H].

        Raises:
          UserError: attention is asked for, and the layers have none.
        """
        if attentions and (reason := self._network.encoder_layers.no_attention):
            raise UserError(f"{reason} and have no attention to return")
        output = self._encoded(batch, "attentions" if attentions else "last" if layers is None else "layers")
        pooled = output.pooled
        if pooling not in (None, "pooler"):
            pooled = self._pooled(batch, (output.last_hidden_state,), None, "last", pooling, normalize=False)
        states = {
            "last": output.last_hidden_state,
            "attentions": output.attentions or (),
            "layers": tuple((output.hidden_states or ())[index] for index in layers or ()),
        }
        return host(batch, states, copy=False) | {"pooled": None if pooled is None else of_texts(batch, pooled)}

    def embed(self, batch: Batch, weights: Any, combination: str, pooling: str, normalize: bool) -> np.ndarray:
        """Return vectors [B, H'] or, of rows of several texts, [n, H'], float32."""
        output = self._encoded(batch, "last" if combination == "last" else "layers")
        states = (output.last_hidden_state,) if combination == "last" else output.hidden_states
        states = (output.pooled,) if pooling == "pooler" else states
        return of_texts(batch, self._pooled(batch, states, weights, combination, pooling, normalize))

    def token_vectors(self, batch: Batch) -> np.ndarray:
        """Return the vectors of all tokens [B, L, D], float32, of norm 1."""
        return host(batch, self._token_vectors({}, states=self._encoded(batch).last_hidden_state))

    def word_strengths(self, batch: Batch) -> np.ndarray:
        """Return the weights of all words [B, V], float32."""
        return host(batch, self._strengths(self._read(batch), states=self._encoded(batch).last_hidden_state))

    def mlm_logits(self, batch: Batch) -> np.ndarray:
        """Return logits [B, M, V], float32."""
        self._network.require("mlm")
        if self._network.config.two_streams:
            return host(batch, self.hidden_words(batch))
        positions = {"masked_positions": batch["masked_positions"]}
        return host(batch, self.mlm_head(positions, encoded=self._encoded(batch, decoded=True)))

    def masked_words(self, batch: Batch, row: np.ndarray, position: np.ndarray) -> Iterator[np.ndarray]:
        """Yield logits [m, V], float32, of the words at these places of the batch, int [M] each, a few at a time.

        The head always computes as many, so that it is one program, and a word's logits are the same in every batch.
        """
        self._network.require("mlm")
        if self._network.config.two_streams:
            yield self._hidden_words(batch, row, position)
            return
        encoded = self._encoded(batch, decoded=True)
        for first in range(0, len(row), WORDS_AT_ONCE):
            part = slice(first, first + WORDS_AT_ONCE)
            places = np.zeros((WORDS_AT_ONCE, 2), np.int32)
            places[: len(row[part])] = np.stack([row[part], position[part]], axis=1)
            logits = host({"input_ids": row[part]}, self.words({"places": places}, encoded=encoded))
            yield logits

    def log_probabilities(
        self, batch: Batch, row: np.ndarray, position: np.ndarray, word: np.ndarray, few: bool
    ) -> np.ndarray:
        """Return float32 [M]: the logarithms of the probabilities of these words at these places of the batch.

        As in `masked_words`, the head always computes as many. With `few` places, in ascending rows, the last layer is
        computed there alone where it can be. XLNet, whose words are hidden otherwise, has none.
        """
        self._network.require("mlm")
        if few and self._network.reads_alone:
            slots, position = _slots(batch["input_ids"].shape, row, position)
            names = (*INPUTS, *PACKED)
            encoded = self.read({name: batch[name] for name in names if name in batch} | {"positions": slots})
        else:
            encoded = self._encoded(batch, decoded=True)
        found = np.zeros(len(row), np.float32)
        for first in range(0, len(row), LIKELIHOODS_AT_ONCE):
            part = slice(first, first + LIKELIHOODS_AT_ONCE)
            asked = np.zeros((LIKELIHOODS_AT_ONCE, 3), np.int32)
            asked[: len(row[part])] = np.stack([row[part], position[part], word[part]], axis=1)
            inputs = {"places": asked[:, :2], "words": asked[:, 2]}
            found[part] = host({"input_ids": row[part]}, self.likely(inputs, encoded=encoded))
        return found

    def _hidden_words(self, batch: Batch, row: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Return logits [M, V] of an XLNet, which computes the rows anew without the words at these places."""
        width = 1 << (int(np.bincount(row).max()) - 1).bit_length()  # so that another text rarely compiles again
        masked = np.zeros((len(batch["input_ids"]), width), np.int32)
        column = np.zeros_like(row)
        for each in np.unique(row):
            here = np.flatnonzero(row == each)
            masked[each], column[here] = np.resize(position[here], width), np.arange(len(here))
        return self.mlm_logits(batch | {"masked_positions": masked})[row, column]

    def mlm_losses(self, batch: Batch, head_gates: np.ndarray) -> np.ndarray:
        """Return losses [B, M], float32, with what each head adds multiplied by its gate, [N, A]."""
        self._network.require("mlm")
        return host(batch, self.gated_losses(batch, head_gates=head_gates))

    def next_sentence_logits(self, batch: Batch) -> np.ndarray:
        """Return logits [B, 2] or, of rows of several texts, [n, 2], float32."""
        self._network.require("pooler", "next_sentence")
        return of_texts(batch, self.next_sentence_head({}, encoded=self._encoded(batch)))

    def task_scores(self, batch: Batch) -> Any:
        """Return the output of `predictions` for the batch, float32; of rows of several texts, [n, …]."""
        return of_texts(batch, self._scores(batch))

    def _encoded(
        self, batch: Batch, collect: Literal["last", "layers", "attentions"] = "last", decoded: bool = False
    ) -> EncoderOutput:
        """Return the states, and with `decoded` what an enhanced mask decoder makes of them, if there is one."""
        names, decoded = (*INPUTS, *PACKED, "memory"), decoded and "mask_decoder" in self._network.parts
        inputs = {name: batch[name] for name in names if name in batch} | self._read(batch)
        return self.states(inputs, collect=collect, decoded=decoded)

    def _pooled(
        self, batch: Batch, states: Any, weights: Any, combination: str, pooling: str, normalize: bool
    ) -> jax.Array:
        packed = {name: batch[name] for name in PACKED if name in batch}
        inputs = {name: self.states.placed(values) for name, values in (packed | self._read(batch)).items()}
        return self._vectors(states, inputs, weights, combination=combination, pooling=pooling, normalize=normalize)

    def _read(self, batch: Batch) -> Batch:
        """Return the mask of the tokens that vectors of texts are made of."""
        return {"attention_mask": read_mask(batch["input_ids"], batch["attention_mask"], self._unread)}


class Compiled:
    """`function(network, params, batch, **options)` as a function of (batch, **options), with current parameters."""

    def __init__(self, function: Any, network: Any, parameters: Parameters, mesh: Mesh, static: tuple[str, ...] = ()):
        self._parameters, self._mesh = parameters, mesh
        shardings = sharding.gathered(jax.tree.map(lambda leaf: leaf.sharding, parameters.tree))
        alone = mesh.size == 1 and mesh.devices.flat[0].platform == "cpu" and ENCODER in parameters.tree
        self._by_layer: bool = alone and not scans(network.config, network.compute)

        def whole(params: Any, batch: Any, **options: Any):
            if self._by_layer:
                rows = jax.tree.map(jnp.stack, params[ENCODER], is_leaf=lambda node: isinstance(node, tuple))
                params = params | {ENCODER: rows}
            with steady_rows():
                return function(network, jax.lax.with_sharding_constraint(params, shardings), batch, **options)

        self._jitted = jax.jit(
            sharding.under(mesh, whole), static_argnames=static, out_shardings=sharding.replicated(mesh)
        )

    def __call__(self, batch: Batch, **options: Any) -> Any:
        """Return the result on the devices; rows that only fill the mesh come last (see `host`)."""
        with _fitting():
            placed = {name: self.placed(values) for name, values in batch.items()}
            params = self._parameters.by_layer() if self._by_layer else self._parameters.current()
            return self._jitted(params, placed, **options)

    def placed(self, values: np.ndarray) -> jax.Array:
        """Return `values` on the devices, with copies of the last row, so that they share the rows evenly."""
        where, parts = sharding.batch_sharding(self._mesh), sharding.batch_parts(self._mesh)
        filled = np.concatenate([values, np.repeat(values[-1:], -len(values) % parts, axis=0)])
        return jax.make_array_from_callback(filled.shape, where, filled.__getitem__)


def host(batch: Batch, output: Any, copy: bool = True) -> Any:
    """Return `output` in NumPy, its floats as float32, without the rows beyond those of `batch`.

    Without `copy`, float32 arrays of a CPU are views of those of JAX, which cannot be written to.
    """
    rows = len(batch["input_ids"])
    with _fitting():  # where an error of a computation in the background arrives
        whole = jax.device_get(output)
    return jax.tree.map(
        lambda x: x[:rows].astype(np.float32, copy=copy) if jnp.issubdtype(x.dtype, jnp.floating) else x[:rows], whole
    )


def _fitting() -> contextlib.AbstractContextManager[None]:
    return memory_advice("a batch of texts", ["a smaller batch_size", "a smaller max_length"])


def of_texts(batch: Batch, output: jax.Array) -> np.ndarray:
    """Return as `host` what there is of every text: of rows of several texts [R, T, …], that of all n, [n, …]."""
    found = host(batch, output)
    return found[batch["weights"] > 0] if "text_ids" in batch else found


def _states(network: BertForPreTraining, params: Any, batch: Any, collect: str, decoded: bool) -> EncoderOutput:
    if "mask_decoder" in network.parts and not decoded:
        network = dataclasses.replace(network, parts=tuple(part for part in network.parts if part != "mask_decoder"))
        params = {part: tree for part, tree in params.items() if part != "mask_decoder"}
    if "memory" in batch:
        network = with_memory(network, jnp.moveaxis(batch["memory"], 1, 0))
    inputs, texts = (batch[name] for name in INPUTS), PackedTexts.of(batch)
    output = network.encode(params, *inputs, collect=collect != "last", texts=texts)
    return output if collect == "attentions" else output._replace(attentions=None)


def _words(network: BertForPreTraining, params: Any, batch: Any, encoded: Encoded) -> jax.Array:
    """Return logits [M, V] at the places [M, 2] of the states [B, L, H]."""
    chosen = jax.tree.map(lambda states: states[tuple(batch["places"].T)][None], encoded._replace(pooled=None))
    positions = jnp.arange(len(batch["places"]), dtype=jnp.int32)[None]
    return network.mlm_logits(params, {"masked_positions": positions}, chosen)[0]


def _read(network: BertForPreTraining, params: Any, batch: Any) -> Encoded:
    """Return the last states at `positions` [B, M], which the head for masked words reads."""
    network = dataclasses.replace(network, parts=("mlm",))
    params = {part: tree for part, tree in params.items() if part not in ("pooler", "next_sentence")}
    ids, types, mask = (batch[name] for name in INPUTS)
    return network.read(params, ids, types, mask, batch["positions"], texts=PackedTexts.of(batch))


def _slots(shape: tuple[int, int], row: np.ndarray, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return positions [B, M] of the rows of a batch, and the slot of each place there; rows ascend.

    Their number changes as little as can be, so that few shapes are compiled, and is HEAD_ROWS at least in all rows.
    """
    rows, _ = shape
    slot = np.arange(len(row)) - np.searchsorted(row, row)
    most = 1 << int(slot.max(initial=0)).bit_length()
    width = max(most, 1 if most == 1 else SLOTS, HEAD_ROWS // rows)
    slots = np.zeros((rows, width), np.int32)
    slots[row, slot] = position
    return slots, slot


def _log_probabilities(network: BertForPreTraining, params: Any, batch: Any, encoded: Encoded) -> jax.Array:
    """Return [M] for the words [M] at the places [M, 2] of the states [B, L, H]."""
    logits = _words(network, params, batch, encoded)
    own = jnp.take_along_axis(logits, batch["words"][:, None], axis=-1)[:, 0]
    return own - jax.nn.logsumexp(logits, axis=-1)


def _token_vectors(_: BertForPreTraining, params: Any, __: Any, states: jax.Array) -> jax.Array:
    return token_vectors(states, params[TOKEN_VECTORS]["kernel"])


def _strengths(network: BertForPreTraining, params: Any, batch: Any, states: jax.Array) -> jax.Array:
    return network.word_strengths(params, states, batch["attention_mask"])


def _gated_losses(network: BertForPreTraining, params: Any, batch: Any, head_gates: Any) -> jax.Array:
    gated = with_head_gates(network, head_gates)
    logits = (gated.hidden_logits if network.config.two_streams else gated.mlm_logits)(params, batch)
    own = jnp.take_along_axis(logits, batch["masked_ids"][..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - own


def _vectors(
    states: tuple[jax.Array, ...],
    inputs: dict[str, jax.Array],
    weights: Any,
    combination: Combination,
    pooling: Pooling,
    normalize: bool,
) -> jax.Array:
    """Return [B, H'] or [B, T, H'] float32 from the last or all of the hidden states, [B, L, H] each, or the pooled."""
    combined = states[0] if combination == "last" else combine(states, combination, weights)
    vectors = combined.astype(np.float32)
    if pooling != "pooler":
        vectors = pool(vectors, inputs["attention_mask"], pooling, PackedTexts.of(inputs))
    return unit_vectors(vectors) if normalize else vectors


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return the probabilities over the last axis, float64; in NumPy, which has no program to compile."""
    shares = np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)
