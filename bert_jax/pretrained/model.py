"""A loaded model: encode and embed texts, fill in masks, judge sentence pairs, answer the inputs of a task."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from jax.typing import ArrayLike

from bert_jax.config.encoder_heads import Combination, Pooling
from bert_jax.models.pooling import check_pooling, layer_indices
from bert_jax.models.postprocessing import Postprocess
from bert_jax.models.protocol import EncoderOutput
from bert_jax.pretrained.answers import predict
from bert_jax.pretrained.encodings import Collector, Encoding
from bert_jax.pretrained.filling import Filled, fill_mask
from bert_jax.pretrained.id_encoding import encode_ids
from bert_jax.pretrained.model_inputs import in_batches, read_texts
from bert_jax.pretrained.network import LoadedNetwork
from bert_jax.pretrained.sentence_order import next_sentence
from bert_jax.pretrained.vector_form import vector_form
from bert_jax.tokenization.texts import Texts, lowered


class PretrainedModel(LoadedNetwork):
    """A BERT with its configuration, parameters and tokenizer; made by `bert_jax.load`.

    Attributes:
      config (ModelConfig): sizes and form of the encoder.
      head (HeadConfig | None): of a fine-tuned model.
      tokenizer (Tokenizer | None): None if the directory has no vocabulary.
      embedding (EmbeddingConfig): what `embed` does by default.
      postprocesses (dict): what `embed` can do to its vectors, by name; `save` saves what is added.
      network (BertForPreTraining): the model as functions of `params`.
      path (str): the directory.
      kind (str): its format.
      history (dict): step, metrics and config, as far as recorded.
      mesh (Mesh): the devices that hold the parameters.

    Texts are one string, one pair as a tuple, or a list of either; [MASK] in a text is the mask token, except for
    `predict`, which takes every text literally, as fine-tuning did.
    """

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
            ([CLS] and [SEP] included), their sum divided by the square root of their number ("mean_sqrt_len"), or the
            output of the "pooler"; None: the pooler's if there is one.
          batch_size: number of texts per batch, about. Several texts share a row where each can be computed as if it
            stood alone, which is not with attentions, recurrent layers, no layers or global tokens; others are padded
            to a few lengths. So little is compiled, and results differ by rounding alone.
          max_length: maximum number of tokens per text; None: what the model takes.
          truncate: whether to cut longer texts (the longer text of a pair first) and log a warning; False: raise a
            UserError.
          progress: whether to show a bar; None: for long lists only.
        """
        check_pooling(pooling, "pooler" in self.network.parts)
        chosen = layer_indices(layers, self.config.num_layers)
        features = read_texts(self, texts, max_length, truncate)
        collector = Collector(features, self.config, chosen, attentions)
        for numbers, batch in in_batches(features, batch_size, progress, packed=not attentions):
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
            `bert_jax.models.segment_memory` returns them (`mems` of transformers): for each layer [B, M, H]. All of it
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
        for numbers, batch in in_batches(features, batch_size, progress):
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
        batch_size: int = 32,
        max_length: int | None = None,
        truncate: bool = True,
        progress: bool | None = None,
    ) -> np.ndarray:
        """Return one vector per text, float32 [n, H] ([n, 4·H] for concat_last_four): layers combined, then pooled.

        The defaults are those of the loaded directory if it is one of sentence-transformers (`embedding`; print the
        model to see them): its pooling, normalization and maximum length, and whether text is lowercased first.

        Args:
          layers: last, second_to_last, sum_last_four, concat_last_four, weighted_last_four or weighted_all: see
            models.pooling.combine, which does the same to the hidden_states of `encode`, for features of every token.
          pooling: as in `encode`; "pooler" only works with the last layer. None: as above, for most models the mean.
          weights: [4] or [N] numbers for the weighted sums, lowest layer first.
          postprocess: map of the vectors, such as whitening, before they are normalized: one that
            `bert_jax.analysis.fit_postprocess` has fitted on the same layers and pooling, or the name of one that was
            saved with the model.
          normalize: whether to divide each vector by its Euclidean norm. None: as above, for most models False.
          batch_size: as in `encode`.
          max_length: as in `encode`.
          truncate: as in `encode`.
          progress: as in `encode`.

        Raises:
          UserError: the directory of sentence-transformers has a module that is not supported, and `pooling` is not
            given.
        """
        form = vector_form(self, layers, pooling, weights, postprocess, normalize)
        texts = lowered(texts) if self.embedding.lowercase else texts
        features = read_texts(self, texts, self.embedding.max_length if max_length is None else max_length, truncate)
        found = in_batches(features, batch_size, progress, packed=True)
        return form.vectors(self._runner, found, len(features))

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
        return next_sentence(self, first, second, batch_size)

    def predict(self, inputs: Iterable[Any], *, batch_size: int = 32, progress: bool | None = None) -> list[Any]:
        """Return the answer of the task head to each of `inputs`, one or a list of:

        - classification: a text or a pair (tuple) → Label; regression: the same → float;
        - tagging: a sentence as a str, split into words as BERT does, → [TaggedWord, …], which are (word, tag) with the
        characters `start` and `end` of the word; or as a tuple of words → [(word, tag), …];
        - choice: (text, [candidate, …]) → Choice; span: (question, context) → Answer.

        Texts that are too long are cut; a long context is read in windows.

        Raises:
          UserError: the model has no task head, or the inputs do not have its form, such as a pair for a model that was
            fine-tuned on single texts.
        """
        return predict(self, self._runner, inputs, batch_size, progress)
