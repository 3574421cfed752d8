"""The function of a loaded model that is exported: the one definition from which every format is written.

It maps rows of ids, one text each, to what somebody runs the model for. That is decided by what the directory has: the
scores of a task head; else vectors, where the directory says how they are made; else the words of a masked language
model; else the states of the encoder. Everything is float32, and attention is the plain definition, so the function can
be traced with batch and length unknown.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from bert_jax.config import ComputeConfig, EmbeddingConfig, EncoderConfig
from bert_jax.config.heads import SingleVector, TokenVectors
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import TOKEN_VECTORS
from bert_jax.models.pooling import pool, read_mask, token_vectors, unit_vectors
from bert_jax.models.protocol import Params
from bert_jax.models.task import BertForTask
from bert_jax.models.xlnet import Permutation
from bert_jax.pretrained.model import PretrainedModel

PLAIN = ComputeConfig(dtype="float32", layers="loop", attention="xla", products="plain")
"""The computation as the mathematics is written, on every platform."""

Arrays = dict[str, jax.Array]
Axes = tuple[str | int, ...]
"""Sizes of the axes of an array: a number, or the name of one that is known when the function is called."""
ROWS: Axes = ("batch", "length")


@dataclasses.dataclass(frozen=True, eq=False)
class ModelFunction:
    """What a model computes, as a function of named arrays; made by `model_function`.

    Calling it with int32 arrays [batch, length] in the order of `inputs` gives a dict of `outputs`, float32.
    """

    of_params: Callable[[Params, Arrays], Arrays]
    """Maps parameters and named inputs to named outputs."""
    params: dict[str, Any]
    """The parameters that it reads, a nested dict of float32 NumPy arrays."""
    inputs: tuple[str, ...]
    """input_ids, attention_mask (1 for tokens, 0 for padding) and, if the model has segments, token_type_ids."""
    outputs: Mapping[str, Axes]
    """Axes of every output, in their order."""
    longest: int | None
    """Number of tokens of the longest row; None: any."""

    def __call__(self, *inputs: jax.Array) -> Arrays:
        params = jax.tree.map(jnp.asarray, self.params)
        return self.of_params(params, dict(zip(self.inputs, inputs, strict=True)))

    def arguments(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Return the inputs with symbolic axes, to trace the function for every batch and length that it takes."""
        limits = () if self.longest is None else (f"length <= {self.longest}",)
        shape = export.symbolic_shape("batch, length", constraints=limits)
        return tuple(jax.ShapeDtypeStruct(shape, np.int32) for _ in self.inputs)


def model_function(model: PretrainedModel) -> ModelFunction:
    """Return the function of a model with its present parameters.

    Its outputs are:

    - of a task head, `logits` [batch, C] of classes, `scores` [batch] of numbers and candidates (each candidate is a
      row), `logits` [batch, length, C] of tags, and `start_logits` and `end_logits` [batch, length] of spans. A CRF
      adds its `transitions` [C, C], `start` [C] and `end` [C], with which the best path is found.
    - of a model of vectors, `sentence_embedding` [batch, H], pooled and normalized as the directory says, beside
      `last_hidden_state` [batch, length, H]; of one with vectors of tokens, `token_embeddings` [batch, length, D]; of
      one with weights of words, `sentence_embedding` [batch, V].
    - of others, `last_hidden_state`, and what their heads add: the `logits` [batch, length, V] of the word at each
      position, `pooler_output` [batch, H], `next_sentence_logits` [batch, 2] and `replaced_token_logits`
      [batch, length]. An XLNet has `logits` alone, of words that nobody sees, at its mask tokens; 0 elsewhere.

    Raises:
      UserError: the directory asks for vectors that are not supported.
    """
    config = model.config
    if model.head is not None:
        return _function(model, BertForTask(config, model.head, PLAIN, unread=model.unread), *_of_head(model))
    pretrained = {"mlm", "replaced_tokens", "next_sentence"} & {*model.network.parts}
    if model.embedding != EmbeddingConfig() or not pretrained:
        return _of_vectors(model)
    if config.two_streams:
        return _hidden_words(model)
    return _of_states(model)


def _function(
    model: PretrainedModel,
    network: BertForPreTraining | BertForTask,
    compute: Callable[[Any, Params, Arrays], Arrays],
    outputs: Mapping[str, Axes],
    more: tuple[str, ...] = (),
) -> ModelFunction:
    """Return `compute(network, params, batch)` with the parameters of the network, and of parts that it reads too."""
    config = network.config
    read = {parameter.part for parameter in network.parameters.values()} | set(more)
    params = {part: tree for part, tree in model.params.items() if part in read}
    segments = config.type_vocab_size > 1

    def of_params(params: Params, batch: Arrays) -> Arrays:
        batch = {name: values.astype(jnp.int32) for name, values in batch.items()}
        batch = {"token_type_ids": jnp.zeros_like(batch["input_ids"])} | batch
        found = compute(network, params, batch)
        return {name: found[name].astype(jnp.float32) for name in outputs}

    inputs = ("input_ids", "attention_mask", *(("token_type_ids",) if segments else ()))
    return ModelFunction(of_params, jax.device_get(params), inputs, outputs, _longest(config, read))


def _longest(config: EncoderConfig, parts: set[str]) -> int | None:
    """Return the tokens of the longest row: an enhanced mask decoder has a table of positions if nothing else has."""
    return config.longest_sequence if "mask_decoder" in parts else config.position_limit


def _of_head(model: PretrainedModel) -> tuple[Callable[[Any, Params, Arrays], Arrays], dict[str, Axes]]:
    """Return what computes the scores of a task head, and its outputs."""
    head = model.head
    assert head is not None, "the caller has seen one"
    labels = head.outputs
    match head.kind:
        case "span":
            names: dict[str, Axes] = {"start_logits": ROWS, "end_logits": ROWS}
        case "tagging":
            names = {"logits": (*ROWS, labels)}
        case "regression" | "choice":
            names = {"scores": ("batch",)}
        case _:
            names = {"logits": ("batch", labels)}
    if head.crf:
        names |= {"transitions": (labels, labels), "start": (labels,), "end": (labels,)}

    def scores(task: BertForTask, params: Params, batch: Arrays) -> Arrays:
        if head.kind == "choice" or head.windows:  # each candidate or window is a row
            batch = {name: values[:, None] for name, values in batch.items()}
        found = task.apply(params, batch)
        if head.kind == "span":
            return {"start_logits": found[..., 0], "end_logits": found[..., 1]}
        found = found[:, 0] if head.kind == "choice" else found
        found = jax.nn.sigmoid(found) if head.activation == "sigmoid" else found
        chain = {name: jnp.asarray(values) for name, values in params["crf"].items()} if head.crf else {}
        return {next(iter(names)): found, **chain}

    return scores, names


def _of_vectors(model: PretrainedModel) -> ModelFunction:
    embedding, config = model.embedding, model.config
    if embedding.unsupported:
        raise UserError(
            f"the vectors of {model.path} cannot be exported: {embedding.unsupported} is not supported; export what "
            "sentence-transformers makes of it, or remove that module from its modules.json"
        )
    form = embedding.form
    if isinstance(form, SingleVector):
        names: dict[str, Axes] = {
            "sentence_embedding": ("batch", config.hidden_size),
            "last_hidden_state": (*ROWS, config.hidden_size),
        }
        parts: tuple[str, ...] = ()
        if embedding == EmbeddingConfig() and "pooler" in model.network.parts:
            parts, names = ("pooler",), names | {"pooler_output": ("batch", config.hidden_size)}
    elif isinstance(form, TokenVectors):
        names, parts = {"token_embeddings": (*ROWS, form.size)}, ()
    else:
        names, parts = {"sentence_embedding": ("batch", config.padded_vocab_size)}, ("mlm",)

    def vectors(network: BertForPreTraining, params: Params, batch: Arrays) -> Arrays:
        output = network.encode(params, batch["input_ids"], batch["token_type_ids"], batch["attention_mask"])
        states, mask = output.last_hidden_state, read_mask(batch["input_ids"], batch["attention_mask"], model.unread)
        if isinstance(form, TokenVectors):
            return {"token_embeddings": token_vectors(states, params[TOKEN_VECTORS]["kernel"])}
        if not isinstance(form, SingleVector):
            return {"sentence_embedding": network.word_strengths(params, states, mask)}
        pooled = pool(states, mask, embedding.pooling)
        pooled = unit_vectors(pooled) if embedding.normalize else pooled
        more = {} if output.pooled is None else {"pooler_output": output.pooled}
        return {"sentence_embedding": pooled, "last_hidden_state": states, **more}

    more = (TOKEN_VECTORS,) if isinstance(form, TokenVectors) else ()
    return _function(model, BertForPreTraining(config, PLAIN, parts), vectors, names, more)


def _of_states(model: PretrainedModel) -> ModelFunction:
    """Return the states of the encoder, and what the heads of pre-training make of them."""
    config = model.config
    heads: dict[str, tuple[str, Axes]] = {
        "pooler": ("pooler_output", ("batch", config.hidden_size)),
        "next_sentence": ("next_sentence_logits", ("batch", 2)),
        "replaced_tokens": ("replaced_token_logits", ROWS),
    }
    if not config.two_directions:  # each side predicts its own word
        heads["mlm"] = ("logits", (*ROWS, config.padded_vocab_size))
    there = [name for name in heads if name in model.network.parts]
    there = [name for name in there if name != "next_sentence" or "pooler" in there]
    names: dict[str, Axes] = dict(heads[name] for name in there)
    names |= {"last_hidden_state": (*ROWS, config.hidden_size)}
    decoder = ("mask_decoder",) if "mask_decoder" in model.network.parts and "mlm" in there else ()

    def states(network: BertForPreTraining, params: Params, batch: Arrays) -> Arrays:
        output = network.encode(params, batch["input_ids"], batch["token_type_ids"], batch["attention_mask"])
        found = {"last_hidden_state": output.last_hidden_state}
        if output.pooled is not None:
            found["pooler_output"] = output.pooled
        for part, of_part in (
            ("mlm", network.mlm_logits),
            ("next_sentence", network.next_sentence_logits),
            ("replaced_tokens", network.replaced_token_logits),
        ):
            if part in network.parts:
                found[heads[part][0]] = of_part(params, {}, output)
        return found

    return _function(model, BertForPreTraining(config, PLAIN, (*there, *decoder)), states, names)


def _hidden_words(model: PretrainedModel) -> ModelFunction:
    """Return the words of an XLNet at the places of its mask token, which no other place sees."""
    config, mask_id = model.config, model.need_tokenizer().mask_id

    def words(network: BertForPreTraining, params: Params, batch: Arrays) -> Arrays:
        ids = batch["input_ids"]
        places = jnp.broadcast_to(jnp.arange(ids.shape[1], dtype=jnp.int32)[None], ids.shape)
        hidden = Permutation((ids == mask_id).astype(jnp.int32), places)
        encoded = network.encode(params, ids, batch["token_type_ids"], batch["attention_mask"], permutation=hidden)
        logits = network.mlm_logits(params, {"masked_positions": hidden.states}, encoded)
        return {"logits": jnp.where(hidden.order[:, :, None] > 0, logits, 0.0)}

    return _function(
        model, BertForPreTraining(config, PLAIN, ("mlm",)), words, {"logits": (*ROWS, config.padded_vocab_size)}
    )
