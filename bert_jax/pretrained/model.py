"""`bert_jax.load` and the loaded model: encode and embed texts, fill in masks, judge pairs, answer tasks.

The layers can be viewed one by one, and the parameters as a table. `save` writes the model with its present parameters
to a new work directory.
"""

import collections.abc
import copy
import dataclasses
import functools
import io
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import Mesh
from jax.typing import ArrayLike
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bert_jax.checkpoints.record import fingerprint, leaf_paths
from bert_jax.config import AttentionConfig, ComputeConfig, EmbeddingConfig, EncoderConfig, HeadConfig
from bert_jax.config.commands import ScoreUnit, UnmaskingConfig, UnmaskingOrder
from bert_jax.config.heads import Combination, FormName, Pooling, SingleVector, TokenVectors
from bert_jax.config.options import to_dict
from bert_jax.data.sequences import Batch, Features
from bert_jax.devices.compilation import use_compilation_cache
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.files import checksum, near_path
from bert_jax.formats.conversion import new_directory, write_bert_jax
from bert_jax.formats.opening import one_device, open_stored, place
from bert_jax.formats.stored import (
    Postprocess,
    StoredModel,
    check_fit,
    describe_embedding,
    generator_of,
    warn_of_what_is_left_out,
)
from bert_jax.models.architecture import bert_architecture
from bert_jax.models.bert import BertForPreTraining, input_mask
from bert_jax.models.bert_parameters import MODEL_PARTS
from bert_jax.models.kernels.choice import check_attention
from bert_jax.models.pooling import check_pooling, layer_indices
from bert_jax.models.protocol import EncoderOutput, structure
from bert_jax.models.stack import one_block
from bert_jax.pretrained.answers import Filled, fill_mask, predict, task_scores
from bert_jax.pretrained.encodings import (
    Collector,
    Encoding,
    encode_ids,
    of_tokens,
    of_words,
    read_texts,
    token_features,
    vector_form,
    with_prompt,
)
from bert_jax.pretrained.generation import OnStep, generate
from bert_jax.pretrained.likelihood import Likelihood, likelihoods
from bert_jax.pretrained.outputs import Compute, NextSentence, VectorsOfTokens, WeightsOfWords, computed, in_batches
from bert_jax.pretrained.runner import Parameters, Runner, not_finite, softmax
from bert_jax.tasks.task_data import without_metrics
from bert_jax.tokenization.tokenizer import Texts, Tokenizer, lowered


def as_stored(model: Any, params: dict[str, Any]) -> StoredModel:
    """Return a PretrainedModel with `params` as the formats read and write one."""
    arrays = {
        path: StoredArray(leaf.shape, leaf.dtype, np.asarray(leaf).__getitem__)
        for path, leaf in leaf_paths(params).items()
    }
    return StoredModel(
        model.kind,
        model.path,
        model.config,
        arrays,
        model.tokenizer,
        model.head,
        model.embedding,
        postprocesses=model.postprocesses,
        history=without_metrics(model.history),
    )


def _text_pairs(first: Any, second: Any) -> list[tuple[str, str]]:
    columns = [list(texts) for texts in (first, second) if isinstance(texts, Iterable) and not isinstance(texts, str)]
    if (
        len(columns) < 2
        or len(columns[0]) != len(columns[1])
        or not all(isinstance(text, str) for text in itertools.chain(*columns))
    ):
        raise UserError(
            f"next_sentence takes two texts, or two lists of as many texts, not {first!r:.60} and {second!r:.60}"
        )
    return list(zip(*columns, strict=True))


TABLE_WIDTH = 110  # columns


@dataclasses.dataclass(frozen=True, repr=False)
class Layer:
    """One Transformer block."""

    config: EncoderConfig
    index: int
    """Number of the layer; 0 is the one above the embeddings."""
    params: dict[str, Any]
    """As params["encoder"] of the model, without the leading axis: attention/query/kernel is [H, A, D]."""

    def __call__(self, x: jax.Array, attention_mask: jax.Array) -> jax.Array:
        """Return the layer's output for states [B, L, H]; attention_mask [B, L] is 1 for real tokens. No dropout."""
        if self.index in self.config.valued_layers:
            raise UserError(
                f"layers[{self.index}] adds vectors of words to its values (model.value_embeddings="
                f"{self.config.value_embeddings}), and gets states alone; use model.encode, which has the words"
            )
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

    def __init__(self, config: EncoderConfig, stacked: dict[str, Any]):
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
        return f"{len(self)} layers of {self._config.hidden_size} values, {self._config.attention_heads} heads"


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


def _of_layer(config: EncoderConfig, stacked: dict[str, Any], index: int) -> dict[str, Any]:
    """Return the parameters of one layer; those with a row less than layers are not in the first.

    A convolution is in the first alone.
    """
    stacked = {name: tree for name, tree in stacked.items() if index == 0 or name != "convolution"}
    if config.sharing != "none":
        return jax.tree.map(lambda leaf: leaf[min(config.set_of_layer[index], len(leaf) - 1)], stacked)
    found, num_layers = {}, config.num_layers
    for name, tree in stacked.items():
        if name in ("relative", "relative_bias", "convolution"):  # what every layer reads; what is there once
            found[name] = jax.tree.map(lambda leaf: leaf[0], tree)
            continue
        lacking = num_layers - jax.tree.leaves(tree)[0].shape[0]
        if index >= lacking:
            found[name] = jax.tree.map(lambda leaf, row=index - lacking: leaf[row], tree)
    return found


@functools.lru_cache
def _block_structure(config: EncoderConfig, first: bool) -> nnx.GraphDef[Any]:
    stack = bert_architecture(config, ComputeConfig()).stack
    return structure(lambda: one_block(stack, 0 if first else 1, jax.random.key(0)))


def _text(heading: str, table: Table) -> str:
    # In a notebook rich would show the table there and then, not write it to the file.
    file = io.StringIO()
    console = Console(file=file, width=TABLE_WIDTH, color_system=None, force_jupyter=False)
    console.print(table)
    return f"{heading}\n{file.getvalue().rstrip()}"


class PretrainedModel:
    """A BERT with its configuration, parameters and tokenizer; made by `bert_jax.load`.

    Attributes:
      config (EncoderConfig): sizes and form of the encoder.
      head (HeadConfig | None): of a fine-tuned model.
      tokenizer (Tokenizer | None): None if the directory has no vocabulary.
      embedding (EmbeddingConfig): what `embed` does by default.
      postprocesses (dict): what `embed` can do to its vectors, by name; `save` saves what is added.
      network (BertForPreTraining): the model as functions of `params`.
      path (str): the directory.
      kind (str): its format.
      history (dict): step, metrics and config, as far as recorded.
      mesh (Mesh): the devices that hold the parameters.
      compute (Compute): makes what answers are made of.
      unread (tuple): ids that the vector of a text leaves out: those of special tokens that were never trained.

    Texts are one string, one pair as a tuple, or a list of either; [MASK] in a text is the mask token, except for
    `predict`, which takes every text literally, as fine-tuning did, and `score`.
    """

    def __init__(
        self, stored: StoredModel, params: dict[str, Any], mesh: Mesh, compute: ComputeConfig = ComputeConfig()
    ):
        check_attention(compute, mesh.devices.flat[0].platform)
        self.config: EncoderConfig = stored.model
        self.head: HeadConfig | None = stored.head
        self.tokenizer: Tokenizer | None = stored.tokenizer
        self.embedding: EmbeddingConfig = stored.embedding
        self.postprocesses: dict[str, Postprocess] = dict(stored.postprocesses)
        self.path: str = stored.path
        self.kind: str = stored.kind
        self.history: dict[str, Any] = stored.history
        self.mesh: Mesh = mesh
        parts = tuple(part for part in MODEL_PARTS if part in stored.parts)
        self.network: BertForPreTraining = BertForPreTraining(
            stored.model, compute, parts, teacher_size=stored.teacher_size
        )
        self._parameters = Parameters(params)
        self.unread: tuple[int, ...] = stored.unread
        self._runner = Runner(self.network, stored.head, self._parameters, mesh, stored.unread)
        self.compute: Compute = functools.partial(computed, self._runner)

    @property
    def runner(self) -> Runner:
        """The compiled functions of the model."""
        return self._runner

    def computed_by(self, compute: Compute) -> "PretrainedModel":
        """Return the same model, whose `embed`, `fill_mask`, `next_sentence` and `predict` are computed by another."""
        other = copy.copy(self)
        other.compute = compute
        return other

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, a nested dict of float32 arrays; docs/checkpoints.md lists the paths. They may be edited and
        assigned; a UserError follows from those that do not fit."""
        return self._parameters.tree

    @params.setter
    def params(self, params: dict[str, Any]) -> None:
        self._parameters.replace(params)

    @property
    def layers(self) -> Layers:
        """The layers: model.layers[3] has the parameters of the fourth block and can be called; len(model.layers)."""
        return Layers(self.config, self.params["encoder"])

    def mlm_logits(self, batch: Batch) -> np.ndarray:
        """Return logits [B, M, V], float32.

        `batch` has int32 input_ids, token_type_ids, attention_mask [B, L] and masked_positions [B, M]. An XLNet does
        not see the tokens at these positions, whatever they are.
        """
        return self._runner.mlm_logits(batch)

    def mlm_losses(self, batch: Batch, head_gates: np.ndarray | None = None) -> np.ndarray:
        """Return the losses of masked words in nats, float32 [B, M].

        Args:
          batch: as for `mlm_logits`, and masked_ids, int32 [B, M], the words to predict.
          head_gates: factors, [N layers, A heads], of what each head adds to the output of its attention: 0 switches a
            head off; None: 1. All gates of one shape run in one compiled program.
        """
        shape = self.config.num_layers, self.config.attention_heads
        gates = np.ones(shape) if head_gates is None else np.asarray(head_gates)
        if gates.shape != shape:
            raise UserError(f"head_gates has shape {gates.shape} and must have one entry per layer and head, {shape}")
        return self._runner.mlm_losses(batch, gates.astype(np.float32))

    def next_sentence_logits(self, batch: Batch) -> np.ndarray:
        """Return logits [B, 2], float32; class 0 is IsNext.

        `batch` has int32 input_ids, token_type_ids and attention_mask [B, L].
        """
        return self._runner.next_sentence_logits(batch)

    def task_scores(self, features: Features, *, batch_size: int = 32) -> list[np.ndarray]:
        """Return the scores of the task head for every sequence of a task, float32, as the score of its family reads
        them: classification [C], regression [], choice [K], span [L, 2], tagging [L, C]."""
        if self.head is None:
            raise UserError(f"{self.path} has no task head, which gives the scores; fine-tune it first")
        return task_scores(self.head.kind, self.compute, features, batch_size, progress=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model with its current parameters, head and tokenizer to the new directory `path`, or nothing.

        It is a work directory, for `bert_jax.load`, --init_from and the commands; its run.json records where the model
        came from. Held-out metrics are not copied, because they are those of the loaded parameters. NaN is saved, with
        a warning.

        Raises:
          UserError: `path` is not empty or cannot be written, the parameters no longer fit the model, or there are
            several hosts.
        """
        params = self._parameters.current()
        if jax.process_count() > 1:
            raise UserError(
                f"save is for one host but this program has {jax.process_count()}; load the model on one of them"
            )
        if bad := not_finite(params):
            logging.warning(
                "%d arrays have values that are NaN or infinite, first %s; they are saved as they are", len(bad), bad[0]
            )
        with new_directory(path) as directory:
            write_bert_jax(as_stored(self, params), directory, by="model.save")

    @property
    def vector_form(self) -> FormName:
        """Form of the vectors of `embed`: one for each text, one for each token, or a weight for each word."""
        return self.embedding.form.name

    @property
    def fingerprint(self) -> str:
        """A checksum of all that vectors of texts follow from: sizes, present parameters, tokenizer and its use."""
        return checksum(
            {
                "config": to_dict(self.config),
                "params": fingerprint(self._parameters.current()),
                "tokenizer": self.need_tokenizer().fingerprint,
                "lowercase": self.embedding.lowercase,
                "prompts": [self.embedding.query_prompt, self.embedding.document_prompt],
                "form": to_dict(self.embedding.form),
            }
        )

    def need_tokenizer(self) -> Tokenizer:
        """Return the tokenizer; raise a UserError if the model came without one."""
        if self.tokenizer is None:
            raise UserError(
                f"{self.path} has no vocabulary, so texts cannot become ids; put the vocab.txt (or SentencePiece "
                ".model) there that the model was trained with"
            )
        return self.tokenizer

    def __repr__(self) -> str:
        """Return the origin of the model, its sizes, and every parameter with path, shape and number of values."""
        config, tokenizer = self.config, self.tokenizer
        step = f", step {self.history['step']:,}" if self.history.get("step") is not None else ""
        words = "no tokenizer" if tokenizer is None else f"{tokenizer.kind}, {'un' if tokenizer.lowercase else ''}cased"
        attends = isinstance(config, AttentionConfig)
        attention = f"{config.num_heads} heads, feed-forward {config.feed_forward_size:,}, " if attends else ""
        lines = [
            f"BERT from {near_path(self.path)} ({self.kind}{step})",
            f"{config.num_layers} layers, hidden size {config.hidden_size:,}, {attention}"
            f"{config.max_position_embeddings:,} positions, {config.activation}, vocabulary "
            f"{config.vocab_size:,} ({words})",
        ]
        if self.head is not None:
            labels = self.head.labels[:8] + (("…",) if len(self.head.labels) > 8 else ())
            crf = " with a CRF" if self.head.crf else ""
            lines.append(f"task head: {self.head.kind}{crf}" + (f" ({', '.join(labels)})" if labels else ""))
        if self.embedding != EmbeddingConfig():
            lines.append(f"embed: {describe_embedding(self.embedding)}")
        return _text("\n".join(lines), parameter_table(self.params))

    def encode(
        self,
        texts: Texts,
        layers: str | int | Sequence[int] = "last",
        attentions: bool = False,
        pooling: Pooling | None = None,
        *,
        batch_size: int = 32,
        max_length: int | None = None,
        truncate: bool = True,
        progress: bool | None = None,
    ) -> Encoding:
        """Return the hidden states of every token; see Encoding.

        The result is on the host and takes n · L · H · 4 bytes per layer, for n texts of up to L tokens; use `embed`
        for one vector per text of many texts.

        Args:
          texts: see the class.
          layers: "last", "all" (embeddings, then each layer), or numbers: 0 the embeddings, 1 to N the layers, -1 the
            last.
          attentions: whether to also return the attention probabilities of every layer.
          pooling: value of `pooled`: the last hidden state of [CLS] ("cls"), its "mean" or "max" over real tokens
            ([CLS] and [SEP] included, but not those of static vectors, which never trained them), their sum divided by
            the square root of their number ("mean_sqrt_len"), or the output of the "pooler"; None: the pooler's if
            there is one.
          batch_size: number of texts per batch, about. Several texts share a row where each can be computed as if it
            stood alone, which is not with attentions, recurrent layers, no layers or global tokens; others are padded
            to a few lengths. So little is compiled. On a CPU the result of a text has the same bits in every batch
            (see pretrained/outputs.py); elsewhere results differ by rounding alone.
          max_length: maximum number of tokens per text; None: what the model takes.
          truncate: whether to cut longer texts (the longer text of a pair first) and log a warning; False: raise a
            UserError.
          progress: whether to show a bar; None: for long lists only.
        """
        check_pooling(pooling, "pooler" in self.network.parts, self.config.trains_specials)
        chosen = layer_indices(layers, self.config.num_layers)
        features = read_texts(self, texts, max_length, truncate)
        collector = Collector(features, self.config, chosen, attentions)
        for numbers, batch in in_batches(features, batch_size, progress, not attentions, self._runner.longest):
            output = self._runner.encode(batch, layers=chosen, attentions=attentions, pooling=pooling)
            collector.add(numbers, batch, output)
        return collector.encoding(self.need_tokenizer().tokens, attentions)

    def encode_ids(
        self,
        input_ids: ArrayLike,
        attention_mask: ArrayLike | None = None,
        token_type_ids: ArrayLike | None = None,
        layers: str | int | Sequence[int] = "all",
        attentions: bool = False,
        memory: Sequence[ArrayLike] | None = None,
    ) -> EncoderOutput:
        """Return the states of ids that were made elsewhere, as one batch; no tokenizer is needed.

        Args:
          input_ids: integers [B, L], with special tokens and padding as the model expects them. L is bounded by a table
            of positions alone: RoPE, ALiBi, DeBERTa and XLNet read any length.
          attention_mask: [B, L], 1 for real tokens, 0 for padding; None: all are real.
          token_type_ids: [B, L], the segment of each token; None: 0. A model without segments ignores them.
          layers: as in `encode`.
          attentions: as in `encode`.
          memory: of an XLNet, the states of the segments before, as `extended_memory` of
            `bert_jax.models.bert` returns them (`mems` of transformers): for each layer [B, M, H]. All of it
            is seen, states of padding too.

        Returns:
          last_hidden_state [B, L, H], pooled [B, H] or None, hidden_states, each [B, L, H], the embeddings first, and
          attentions, each [B, A, L (query), L (key)], or None: float32 in NumPy, whatever they are at padding. As in
          transformers, and unlike in `encode`, the state of the last layer is after the final norm of a pre-LN model.
          With a memory there are M + L keys, its own first.

        Raises:
          UserError: an array has a wrong shape or type, or a value that the model has no row for.
        """
        return encode_ids(self, self._runner, input_ids, attention_mask, token_type_ids, layers, attentions, memory)

    def encode_batches(
        self,
        texts: Texts,
        layers: str | int | Sequence[int] = "last",
        attentions: bool = False,
        *,
        batch_size: int = 32,
        max_length: int | None = None,
        truncate: bool = True,
        progress: bool | None = None,
    ) -> Iterator[tuple[np.ndarray, Encoding]]:
        """Yield what `encode` returns for some of the texts, with their numbers: int [n], and the Encoding of these n.

        It is for statistics over more texts than memory could hold: it takes that of one batch. Texts of similar length
        are together, the longest first. The arguments are those of `encode`.
        """
        chosen = layer_indices(layers, self.config.num_layers)
        features = read_texts(self, texts, max_length, truncate)
        for numbers, batch in in_batches(features, batch_size, progress, False, self._runner.longest):
            part = features.part(numbers)
            collector = Collector(part, self.config, chosen, attentions)
            output = self._runner.encode(batch, layers=chosen, attentions=attentions, pooling=None)
            collector.add(np.arange(len(numbers)), batch, output)
            yield numbers, collector.encoding(self.need_tokenizer().tokens, attentions)

    def embed(
        self,
        texts: Texts,
        layers: Combination = "last",
        pooling: Pooling | None = None,
        *,
        weights: ArrayLike | None = None,
        postprocess: Postprocess | str | None = None,
        normalize: bool | None = None,
        prompt: Literal["query", "document"] | None = None,
        batch_size: int = 32,
        max_length: int | None = None,
        truncate: bool = True,
        progress: bool | None = None,
    ) -> Any:
        """Return one vector per text, float32 [n, H] ([n, 4·H] for concat_last_four): layers combined, then pooled.

        Of a model whose `vector_form` is tokens, it is a list with the vectors of norm 1 of the tokens of each text,
        float32 [M, D]; of one whose form is words, their weights as a scipy.sparse.csr_matrix, float32 [n, V]. A
        pooling gives one vector per text there too.

        The defaults are those of the loaded directory if it is one of sentence-transformers or of the task vectors
        (`embedding`; print the model to see them): its pooling, normalization and maximum length, and whether text is
        lowercased first.

        Args:
          layers: last, second_to_last, sum_last_four, concat_last_four, weighted_last_four or weighted_all: see
            models.pooling.combine, which does the same to the hidden_states of `encode`, for features of every token.
          pooling: as in `encode`; "pooler" only works with the last layer. None: as above, for most models the mean.
          weights: [4] or [N] numbers for the weighted sums, lowest layer first.
          postprocess: map of the vectors, such as whitening, before they are normalized: one that
            `bert_jax.analysis.fit_postprocess` has fitted on the same layers and pooling, or the name of one that was
            saved with the model.
          normalize: whether to divide each vector by its Euclidean norm. None: as above, for most models False.
          prompt: whether the texts are queries or documents, before which the model has its prompt for these, if any.
          batch_size: as in `encode`.
          max_length: as in `encode`.
          truncate: as in `encode`.
          progress: as in `encode`.

        Raises:
          UserError: the directory of sentence-transformers has a module that is not supported, and `pooling` is not
            given.
        """
        texts = with_prompt(texts, self.embedding, prompt)
        texts = lowered(texts) if self.embedding.lowercase else texts
        longest = self.embedding.max_length if max_length is None else max_length
        form = SingleVector() if pooling is not None else self.embedding.form
        if isinstance(form, SingleVector):
            single = vector_form(self, layers, pooling, weights, postprocess, normalize)
            features = read_texts(self, texts, longest, truncate)
            return single.vectors(self.compute(single.output, features, batch_size, progress), len(features))
        if layers != "last" or normalize is not None or weights is not None or postprocess is not None:
            raise UserError(
                f"layers, weights, postprocess and normalize are for single vectors, and those of {self.path} are of "
                f"{form.name}; leave them out, or give pooling for single ones"
            )
        if isinstance(form, TokenVectors):
            query = prompt == "query"
            longest = (form.query_length or longest) if query and max_length is None else longest
            features = token_features(self, read_texts(self, texts, longest, truncate), form, query)
            return of_tokens(self.compute(VectorsOfTokens(), features, batch_size, progress), features)
        features = read_texts(self, texts, longest, truncate)
        return of_words(self.compute(WeightsOfWords(), features, batch_size, progress))

    @overload
    def fill_mask(  # pyright: ignore[reportOverlappingOverload] (a str is an Iterable[str] too)
        self, texts: str, top_k: int = 5, *, batch_size: int = 32
    ) -> Filled: ...

    @overload
    def fill_mask(self, texts: Iterable[str], top_k: int = 5, *, batch_size: int = 32) -> list[Filled]: ...

    def fill_mask(self, texts: str | Iterable[str], top_k: int = 5, *, batch_size: int = 32) -> Filled | list[Filled]:
        """Return the `top_k` most likely pieces for each [MASK] of a text, or a list of these for a list of texts."""
        return fill_mask(self, texts, top_k, batch_size)

    @overload
    def generate(
        self,
        texts: str = "",
        *,
        length: int | None = None,
        steps: int | None = None,
        temperature: float = 1.0,
        order: UnmaskingOrder | None = None,
        samples: None = None,
        seed: int = 0,
        batch_size: int = 32,
        on_step: OnStep | None = None,
    ) -> str: ...

    @overload
    def generate(
        self,
        texts: Iterable[str],
        *,
        length: int | None = None,
        steps: int | None = None,
        temperature: float = 1.0,
        order: UnmaskingOrder | None = None,
        samples: int | None = None,
        seed: int = 0,
        batch_size: int = 32,
        on_step: OnStep | None = None,
    ) -> list[Any]: ...

    def generate(
        self,
        texts: str | Iterable[str] = "",
        *,
        length: int | None = None,
        steps: int | None = None,
        temperature: float = 1.0,
        order: UnmaskingOrder | None = None,
        samples: int | None = None,
        seed: int = 0,
        batch_size: int = 32,
        on_step: OnStep | None = None,
    ) -> Any:
        """Return a text in which every [MASK] is filled in, step by step, or one that goes on after the given one.

        With `samples` it is a list of as many texts; for a list of texts, a list of either. Special tokens are never
        written (bert_jax/pretrained/generation.py). Models of masked diffusion write best.

        Args:
          texts: a text, whose masks are filled in, or several; "" to write without a beginning.
          length: number of masks that are put after each text. None: 16, or none for a text with masks.
          steps: number of steps, in each of which about as many masks are filled in; None: one mask at a time.
          temperature: divisor of the logits before a word is drawn; 0: the likeliest word is taken.
          order: "confidence", "random" or "left_to_right"; None: confidence, or what the direction of the model allows.
          samples: number of texts to make of each.
          seed: of all draws; a text does not depend on the others.
          batch_size: texts per batch.
          on_step: called after each step with its number, from 1, and all texts as they are by then.

        Raises:
          UserError: the model predicts no masked words, or a text is too long or has nothing to fill in.
        """
        single = isinstance(texts, str)
        several = 1 if samples is None else samples
        options = UnmaskingConfig(
            length=length, steps=steps, temperature=temperature, order=order, samples=several, seed=seed
        )
        found = generate(self, [texts] if single else list(texts), options, batch_size, on_step)
        chosen: list[Any] = [own[0] for own in found] if samples is None else found
        return chosen[0] if single else chosen

    @overload
    def next_sentence(  # pyright: ignore[reportOverlappingOverload] (a str is an Iterable[str] too)
        self, first: str, second: str, *, batch_size: int = 32
    ) -> float: ...

    @overload
    def next_sentence(self, first: Iterable[str], second: Iterable[str], *, batch_size: int = 32) -> list[float]: ...

    def next_sentence(
        self, first: str | Iterable[str], second: str | Iterable[str], *, batch_size: int = 32
    ) -> float | list[float]:
        """Return the probability that `second` follows `first` (class 0, IsNext), or that the order is right (sop).

        Two lists of the same length give a list: for the first of both, the second of both, …
        """
        single = isinstance(first, str) and isinstance(second, str)
        pairs = _text_pairs([first], [second]) if single else _text_pairs(first, second)
        found = [0.0] * len(pairs)
        self.network.require("pooler", "next_sentence")
        for numbers, logits in self.compute(NextSentence(), read_texts(self, pairs), batch_size, None):
            for number, row in zip(numbers, logits, strict=False):
                found[number] = float(softmax(row)[0])
        return found[0] if single else found

    @overload
    def score(  # pyright: ignore[reportOverlappingOverload] (a str is an Iterable[str] too)
        self,
        texts: str | tuple[str, str],
        *,
        reduction: Literal["sum", "mean"] = "sum",
        unit: ScoreUnit = "token",
        batch_size: int = 32,
        progress: bool | None = None,
    ) -> float: ...

    @overload
    def score(
        self,
        texts: Iterable[str | tuple[str, str]],
        *,
        reduction: Literal["sum", "mean"] = "sum",
        unit: ScoreUnit = "token",
        batch_size: int = 32,
        progress: bool | None = None,
    ) -> list[float]: ...

    @overload
    def score(  # pyright: ignore[reportOverlappingOverload] (a str is an Iterable[str] too)
        self,
        texts: str | tuple[str, str],
        *,
        reduction: Literal["tokens"],
        unit: ScoreUnit = "token",
        batch_size: int = 32,
        progress: bool | None = None,
    ) -> Likelihood: ...

    @overload
    def score(
        self,
        texts: Iterable[str | tuple[str, str]],
        *,
        reduction: Literal["tokens"],
        unit: ScoreUnit = "token",
        batch_size: int = 32,
        progress: bool | None = None,
    ) -> list[Likelihood]: ...

    def score(
        self,
        texts: Texts,
        *,
        reduction: Literal["sum", "mean", "tokens"] = "sum",
        unit: ScoreUnit = "token",
        batch_size: int = 32,
        progress: bool | None = None,
    ) -> Any:
        """Return how likely the model finds a text, in nats, or a list of this for several texts: the higher, the more.

        It is the pseudo-log-likelihood, in which each token is masked in turn, or of a model that reads from left to
        right the logarithm of the text's probability; [CLS] and [SEP] do not count (bert_jax/pretrained/likelihood.py).
        `max(texts, key=model.score)` is the text that it prefers.

        Args:
          texts: see the class; [MASK] in them is taken literally.
          reduction: "sum" of the tokens' log-probabilities, their "mean", or "tokens": a Likelihood with each of them.
          unit: what is masked with a token: nothing else, or all to its right in the same "word", which does not favour
            words of several pieces.
          batch_size: number of rows per batch, each of which may hold several copies of texts.
          progress: whether to show a bar; None: for much text only.

        Raises:
          UserError: the model predicts no masked words, or a text is empty or longer than what it reads.
        """
        if reduction not in ("sum", "mean", "tokens"):
            raise UserError(f"reduction={reduction!r:.40} must be sum, mean or tokens")
        single = isinstance(texts, (str, tuple))
        found: list[Any] = likelihoods(self, [texts] if single else list(texts), unit, batch_size, progress)
        if reduction != "tokens":
            found = [each.total if reduction == "sum" else each.mean for each in found]
        return found[0] if single else found

    def predict(self, inputs: Iterable[Any], *, batch_size: int = 32, progress: bool | None = None) -> list[Any]:
        """Return the answer of the task head to each of `inputs`, one or a list of:

        - classification: a text or a pair (tuple) → Label; multilabel: the same → Labels; regression: → float;
        - tagging: a sentence as a str, split into words as BERT does, → [TaggedWord, …], which are (word, tag) with the
        characters `start` and `end` of the word; or as a tuple of words → [(word, tag), …];
        - choice: (text, [candidate, …]) → Choice; span: (question, context) → Answer.

        Texts that are too long are cut; a long context is read in windows.

        Raises:
          UserError: the model has no task head, or the inputs do not have its form, such as a pair for a model that was
            fine-tuned on single texts.
        """
        return predict(self, self.compute, inputs, batch_size, progress)


def load(
    path: str | os.PathLike[str],
    *,
    mesh: Mesh | None = None,
    compute: ComputeConfig = ComputeConfig(),
    part: Literal["generator"] | None = None,
    adapter: str | os.PathLike[str] | None = None,
) -> PretrainedModel:
    """Return the model in `path` with its configuration, parameters (float32) and tokenizer.

    Args:
      path: local or gs://: a work directory of bert_jax (its newest good step) or one step of it (RUN:STEP), a Hugging
        Face directory, or a TensorFlow 1 checkpoint (directory or prefix). None of them needs TensorFlow. Or a model of
        the Hugging Face hub: hf://owner/name[@revision], or owner/name where no directory is called like the owner.
      mesh: None for the first device; else every device reads its own part (bert_jax/devices/sharding.py).
      compute: dtype of activations and the like; see ComputeConfig.
      part: "generator" for that of a run of replaced-token detection, of which None opens the discriminator.
      adapter: directory of an adapter of PEFT (LoRA) whose changes, and whose head, are added to the model. The
        directory can be the path too, if it says which model it adapts.

    Raises:
      UserError: there is no readable model, only a pickle, damaged files, or arrays that do not fit the configuration;
        there is no such part; or the hub has no such model, or cannot be reached for one that is not in its cache.
    """
    if part not in (None, "generator"):
        raise UserError(f"part={part!r:.40} must be 'generator', or None for the model itself")
    stored = _opened(path)
    stored = stored if part is None else generator_of(stored)
    if adapter is not None:
        from bert_jax.formats.peft import with_adapter

        stored = with_adapter(stored, adapter)
    return _loaded(stored, mesh, compute)


def load_with_generator(
    path: str | os.PathLike[str], *, mesh: Mesh | None = None, compute: ComputeConfig = ComputeConfig()
) -> tuple[PretrainedModel, PretrainedModel | None]:
    """Return the model in `path` and, of a run of replaced-token detection, the generator at the same step."""
    stored = _opened(path)
    return _loaded(stored, mesh, compute), _loaded(generator_of(stored), mesh, compute) if stored.beside else None


def _opened(path: str | os.PathLike[str]) -> StoredModel:
    use_compilation_cache()
    return open_stored(path)


def _loaded(stored: StoredModel, mesh: Mesh | None, compute: ComputeConfig) -> PretrainedModel:
    check_fit(stored)
    warn_of_what_is_left_out(stored)
    mesh = one_device() if mesh is None else mesh
    return PretrainedModel(stored, place(stored, mesh), mesh, compute)
