"""Hidden states of texts or ids as NumPy arrays in the order of the texts, and the form of vectors for `embed`.

Texts become ids that fit the positions and segments of the loaded model. `encode_ids` takes rows of ids that other code
has made. For `embed`, layers are combined, pooled, mapped and normalized.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from bert_jax.config import EmbeddingConfig, EncoderConfig
from bert_jax.config.heads import Combination, Pooling, TokenVectors
from bert_jax.data.sequences import (
    Batch,
    Features,
    TokenReader,
    as_features,
    compared_tokens,
    sequence_lengths,
    text_places,
)
from bert_jax.devices.process import machine_memory
from bert_jax.errors import UserError
from bert_jax.formats.stored import Postprocess
from bert_jax.models.pooling import check_pooling, layer_indices, layers_read
from bert_jax.models.protocol import EncoderOutput
from bert_jax.pretrained.outputs import Outputs, Vectors
from bert_jax.pretrained.runner import Runner
from bert_jax.tokenization.tokenizer import Texts, as_arrays, tokenize


@dataclasses.dataclass(frozen=True)
class Encoding:
    """NumPy arrays, float32, in the order of the texts: n texts, L tokens in the longest, zeros as padding."""

    hidden_states: tuple[np.ndarray, ...]
    """[n, L, H] for each of the requested layers: "all" is the embeddings, then every layer."""
    last_hidden_state: np.ndarray
    """[n, L, H]; for a pre-LN model after the final norm, unlike hidden_states[-1]."""
    pooled: np.ndarray | None
    """[n, H] as `pooling` says; by default the output of the pooler, or None if the model has none."""
    attentions: tuple[np.ndarray, ...] | None
    """[n, A, L (query), L (key)] for each layer, if requested: the probabilities, before dropout."""
    input_ids: np.ndarray
    """int32 [n, L], 0 after a text's own tokens."""
    token_type_ids: np.ndarray
    """int32 [n, L]: 1 for the second text of a pair, otherwise 0."""
    attention_mask: np.ndarray
    """int32 [n, L]: 1 for real tokens, [CLS] and [SEP] included."""
    tokens: list[list[str]]
    """The pieces of each text."""

    def __repr__(self) -> str:
        n, length, size = self.last_hidden_state.shape
        texts = "1 text" if n == 1 else f"{n:,} texts"
        return f"Encoding of {texts}: up to {length} tokens, {len(self.hidden_states)} × hidden states of {size}"


class Collector:
    """Fills the arrays of an Encoding batch by batch."""

    def __init__(self, features: Features, config: EncoderConfig, layers: tuple[int, ...] | None, attentions: bool):
        n, length = len(features), int(sequence_lengths(features).max())
        states, maps = (n, length, config.hidden_size), (n, config.attention_heads, length, length)
        chosen, attended = len(layers or ()), config.num_layers if attentions else 0
        _check_memory(4 * (np.prod(states, dtype=float) * (1 + chosen) + np.prod(maps, dtype=float) * attended), n)
        self._features, self._layers = features, layers
        self.last: np.ndarray = np.zeros(states, np.float32)
        self.pooled: np.ndarray | None = None
        self.states: tuple[np.ndarray, ...] = tuple(np.zeros(states, np.float32) for _ in range(chosen))
        self.maps: tuple[np.ndarray, ...] = tuple(np.zeros(maps, np.float32) for _ in range(attended))

    def add(self, numbers: np.ndarray, batch: Batch, output: dict[str, Any]) -> None:
        """Add `output` of runner.encode for a batch of the texts `numbers`; rows beyond them are ignored."""
        for number, row, start in zip(numbers, *text_places(batch), strict=True):
            size = len(self._features.input_ids[number])
            for whole, part in zip((self.last, *self.states), (output["last"], *output["layers"]), strict=True):
                whole[number, :size] = part[row, start : start + size]
            for whole, part in zip(self.maps, output["attentions"], strict=True):
                whole[number, :, :size, :size] = part[row, :, :size, :size]
        if output["pooled"] is not None:
            if self.pooled is None:
                self.pooled = np.zeros((len(self._features), output["pooled"].shape[1]), np.float32)
            self.pooled[numbers] = output["pooled"][: len(numbers)]

    def encoding(self, tokens: list[str], attentions: bool) -> Encoding:
        features = self._features
        return Encoding(
            hidden_states=(self.last,) if self._layers is None else self.states,
            last_hidden_state=self.last,
            pooled=self.pooled,
            attentions=self.maps if attentions else None,
            **as_arrays(list(zip(features.input_ids, features.token_type_ids, strict=True))),
            tokens=[[tokens[i] for i in ids] for ids in features.input_ids],
        )


def _check_memory(size: float, texts: int) -> None:
    if size > (there := machine_memory()):
        raise UserError(
            f"the states of {texts:,} texts would take {size / 1e9:,.0f} GB but this machine has "
            f"{there / 1e9:,.0f} GB; encode a part at a time, or use embed, which keeps one vector per text"
        )


def encode_ids(
    model: Any,
    runner: Runner,
    input_ids: ArrayLike,
    attention_mask: ArrayLike | None,
    token_type_ids: ArrayLike | None,
    layers: str | int | Sequence[int],
    attentions: bool,
    memory: Sequence[ArrayLike] | None,
) -> EncoderOutput:
    """Return the output of a PretrainedModel for ids [B, L], in NumPy; see its `encode_ids`."""
    chosen = layer_indices(layers, model.config.num_layers)
    ids = _integers("input_ids", input_ids, model.config.need_vocab_size(), None)
    limit = model.config.position_limit
    if ids.ndim != 2 or not ids.size or (limit is not None and ids.shape[1] > limit):
        tokens = "at least 1 token" if limit is None else f"1 to {limit} tokens"
        raise UserError(f"input_ids has shape {list(ids.shape)}; expected [texts, tokens], with {tokens}")
    mask = np.ones_like(ids) if attention_mask is None else _integers("attention_mask", attention_mask, 2, ids.shape)
    types = np.zeros_like(ids)
    if token_type_ids is not None:
        # A model without segments ignores what its tokenizer says of them, as in transformers.
        given = _integers("token_type_ids", token_type_ids, model.config.type_vocab_size or 2**31, ids.shape)
        types = given if model.config.type_vocab_size else types
    batch = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    if memory is not None:
        batch["memory"] = _memory(model, memory, len(ids))
    found = jax.tree.map(np.array, runner.encode(batch, layers=chosen, attentions=attentions, pooling=None))
    number, last = model.config.num_layers, found["last"]
    states = (
        [last]
        if chosen is None
        else [last if index == number else state for index, state in zip(chosen, found["layers"], strict=True)]
    )
    return EncoderOutput(last, found["pooled"], tuple(states), tuple(found["attentions"]) if attentions else None)


def _memory(model: Any, memory: Sequence[ArrayLike], rows: int) -> np.ndarray:
    """Return a memory as float32 [B, N, M, H]; raise a UserError if the model has none, or one of another shape."""
    if not model.config.two_streams:
        raise UserError(f"{model.path} is no XLNet, and only XLNet has a memory of earlier segments; leave memory out")
    states = [np.asarray(state, np.float32) for state in memory]
    shapes, number, size = {state.shape for state in states}, model.config.num_layers, model.config.hidden_size
    fits = len(states) == number and len(shapes) == 1 and [len(each) for each in shapes] == [3]
    if not fits or (states[0].shape[0], states[0].shape[2]) != (rows, size):
        seen = ", ".join(str(list(state.shape)) for state in states[:3]) or "nothing"
        raise UserError(
            f"memory has {len(states)} arrays ({seen}{', …' if len(states) > 3 else ''}); expected one for each of "
            f"{number} layers, all [{rows}, states, {size}], as extended_memory of bert_jax.models.bert "
            "returns them"
        )
    return np.stack(states, axis=1)


def _integers(name: str, given: ArrayLike, bound: int, shape: tuple[int, ...] | None) -> np.ndarray:
    """Return an array as int32; raise a UserError unless it has this shape and all of it is from 0 to `bound` - 1."""
    try:
        values = np.asarray(given)
    except ValueError:
        raise UserError(
            f"{name} has rows of different lengths; pad them to one length, and say so in attention_mask"
        ) from None
    if values.dtype.kind == "f" and np.array_equal(values, np.round(values)):  # masks of torch are often floats
        values = values.astype(np.int64)
    if values.dtype.kind not in "iub":
        raise UserError(f"{name} is an array of {values.dtype}; expected integers from 0 to {bound - 1:,}")
    if shape is not None and values.shape != shape:
        raise UserError(f"{name} has shape {list(values.shape)}, but input_ids has {list(shape)}; give one per token")
    if values.size and not 0 <= values.min() <= values.max() < bound:
        wrong = values.min() if values.min() < 0 else values.max()
        raise UserError(f"{name} has the value {wrong}; this model knows 0 to {bound - 1:,}")
    return values.astype(np.int32)


def with_prompt(texts: Texts, embedding: EmbeddingConfig, prompt: str | None) -> Texts:
    """Return the texts after the prompt that a model has for queries or for documents; None: as they are."""
    if prompt not in (None, "query", "document"):
        raise UserError(f"prompt={prompt!r} must be 'query' or 'document', or None for texts as they are")
    before = {None: "", "query": embedding.query_prompt, "document": embedding.document_prompt}[prompt]
    if not before:
        return texts
    rows = list(texts) if isinstance(texts, Iterable) and not isinstance(texts, str | tuple) else [texts]
    if wrong := [row for row in rows if not isinstance(row, str)]:
        raise UserError(f"prompt={prompt!r} is for a text or a list of texts, but there is {wrong[0]!r:.60}")
    return f"{before}{texts}" if isinstance(texts, str) else [f"{before}{row}" for row in rows]


def read_texts(model: Any, texts: Texts, max_length: int | None = None, truncate: bool = True) -> Features:
    """Return texts or pairs as the ids of a PretrainedModel, with [CLS] and [SEP]; [MASK] is the mask token."""
    longest = model.config.longest_sequence
    rows = tokenize(model.need_tokenizer(), texts, longest, max_length, truncate, masks=True)
    features = as_features(rows, longest)
    if model.config.type_vocab_size == 1 and any(types.any() for types in features.token_type_ids):
        raise UserError(
            "this model has one segment (type_vocab_size=1) and cannot read pairs; join the two texts yourself"
        )
    return features


@dataclasses.dataclass(frozen=True, eq=False)
class VectorForm:
    """The arguments of `embed` with the defaults of the model filled in, and checked."""

    layers: Combination
    pooling: Pooling
    weights: np.ndarray | None
    """float32, for the weighted sums of layers."""
    postprocess: Postprocess | None
    normalize: bool

    @property
    def output(self) -> Vectors:
        """What is computed of each text, before `postprocess`."""
        weights = None if self.weights is None else tuple(self.weights.tolist())
        return Vectors(self.layers, self.pooling, weights, self.normalize and self.postprocess is None)

    def vectors(self, outputs: Outputs, count: int) -> np.ndarray:
        """Return float32 [count, H'], from the outputs of texts with their numbers."""
        found = np.zeros((count, 0), np.float32)
        for numbers, rows in outputs:
            found = found if found.size else np.zeros((count, len(rows[0])), np.float32)
            found[numbers] = rows[: len(numbers)]
        if self.postprocess is None:
            return found
        found = self.postprocess(found)
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        return found / np.maximum(lengths, 1e-12) if self.normalize else found


def token_features(model: Any, features: Features, form: TokenVectors, query: bool) -> Features:
    """Return the sequences with the marks of their tokens, queries filled up, as they were in training."""
    reader = TokenReader(form, model.need_tokenizer())
    rows = zip(features.input_ids, features.token_type_ids, strict=True)
    ids, types, marks = zip(*(reader.read(*row, query) for row in rows), strict=True)
    longest = max(features.max_length, *map(len, ids))
    return dataclasses.replace(
        features, input_ids=list(ids), token_type_ids=list(types), marks=list(marks), max_length=longest
    )


def of_tokens(outputs: Outputs, features: Features) -> list[np.ndarray]:
    """Return the vectors that count of the tokens of each text, float32 [M, D]."""
    found: list[np.ndarray] = [np.zeros((0, 0), np.float32)] * len(features)
    marks = features.marks
    assert marks is not None, "token_features comes first"
    for numbers, vectors in outputs:
        for number, own in zip(numbers, compared_tokens(vectors, [marks[number] for number in numbers]), strict=False):
            found[number] = own
    return found


def of_words(outputs: Outputs) -> Any:
    """Return the weights of words of each text, a scipy.sparse.csr_matrix float32 [n, V]."""
    from scipy import sparse

    parts, order = [], []
    for numbers, rows in outputs:
        parts.extend(rows[: len(numbers)])
        order.append(numbers)
    return sparse.csr_matrix(sparse.vstack(parts))[np.argsort(np.concatenate(order))]


def vector_form(
    model: Any,
    layers: Combination,
    pooling: Pooling | None,
    weights: ArrayLike | None,
    postprocess: Postprocess | str | None,
    normalize: bool | None,
) -> VectorForm:
    """Return the form of the vectors of a PretrainedModel; raise a UserError if it cannot make such vectors."""
    layers_read(layers, model.config.num_layers, weights)
    if pooling is None and model.embedding.unsupported:
        raise UserError(
            f"{model.path} is a model of sentence-transformers with {model.embedding.unsupported}, which embed "
            'cannot do; give pooling, such as pooling="mean", for vectors of the bare BERT'
        )
    if pooling == "pooler" and layers != "last":
        raise UserError(
            f"pooling={pooling!r} with layers={layers!r}: use cls, mean or max (the pooler reads the last layer only)"
        )
    pooled: Pooling = model.embedding.pooling if pooling is None else pooling
    check_pooling(pooled, "pooler" in model.network.parts, model.config.trains_specials)
    return VectorForm(
        layers,
        pooled,
        None if weights is None else np.asarray(weights, np.float32),
        None if postprocess is None else _fitting(model.postprocesses, postprocess, layers, pooled),
        bool(model.embedding.normalize if normalize is None else normalize),
    )


def _fitting(known: dict[str, Postprocess], chosen: Postprocess | str, layers: str, pooling: str) -> Postprocess:
    """Return the one that is meant, which must have been fitted on such vectors."""
    if isinstance(chosen, str):
        if chosen not in known:
            raise UserError(f"this model has no postprocess {chosen!r}; it has {', '.join(map(repr, known)) or 'none'}")
        chosen = known[chosen]
    chosen.check(layers, pooling)
    return chosen
