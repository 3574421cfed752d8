"""What is on top of an encoder as frozen dataclasses: the head of a task, and how texts become vectors.

Standard library only.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

from bert_jax.config.options import kinds, option
from bert_jax.errors import UserError, need_positive

Combination = Literal[
    "last", "second_to_last", "sum_last_four", "concat_last_four", "weighted_last_four", "weighted_all"
]
"""Ways to combine several layers into one vector per token (models/pooling.py)."""
LayersRead = Literal["", "embeddings", Combination, "weighted_with_embeddings"]
"""Layers of a frozen encoder that a BiLSTM reads; "" for an encoder that is trained with its head."""
HeadKind = Literal["classification", "multilabel", "regression", "span", "choice", "tagging", "vectors"]
"""Kinds of answers of a fine-tuned model; see `HeadConfig.kind`."""
HeadPooling = Literal["cls", "mean"]
"""Input of the head of a task; see `HeadConfig.pooling`."""
TokenPooling = Literal["cls", "mean", "max", "mean_sqrt_len"]
"""Ways to combine the vectors of the tokens of a text; see `EmbeddingConfig.pooling`."""
Pooling = Literal[TokenPooling, "pooler"]
"""The same, or pooler: the vector of BERT's pooler."""
TextState = Literal["first", "last", "ends", "mean"]
"""What poolers and classifiers read of a text: the state of its first or last token, the last state in each direction,
which are at its two ends, or the mean of its words."""
Activation = Literal["identity", "sigmoid"]
"""What becomes of the only score of a head; see `HeadConfig.activation`."""
HeadWindows = Literal["", "mean", "max"]
"""Pooling of the scores of several windows of a text; see `SentenceOptions.windows`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The head on the encoder of a fine-tuned model; its parameters are head/kernel [H, C] and head/bias [C]."""

    kind: HeadKind = "classification"
    """classification, multilabel (any number of the classes for each text), regression and choice read the pooled
    [CLS]; span and tagging read every position. vectors are made as an EmbeddingConfig says, and no model records the
    kind."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of the columns (classification, multilabel, tagging); empty for the other
    kinds."""
    dropout: float = 0.1
    """Dropout rate on the input of the head."""
    pooling: HeadPooling = "cls"
    """Input of classification, multilabel, regression and choice in a model with task_transform: cls, the position that
    a pooler reads, which is the first, or the last from left to right, or the mean of all."""
    crf: bool = False
    """Whether a linear-chain CRF follows the scores (crf/transitions [C, C], crf/start [C], crf/end [C]); for tagging
    only."""
    features: LayersRead = ""
    """Layers of the frozen encoder that a two-layer BiLSTM reads, whose parameters are in head/ too (models/lstm.py;
    paper section 5.3). Kinds with one answer per text read the maximum of its outputs over the tokens. Empty: the
    encoder is trained."""
    lstm_size: int = 768
    """Width of the BiLSTM in each direction."""
    train_encoder: bool = False
    """Whether the encoder is trained with the BiLSTM after all, as that of the left-to-right model in the paper's
    table 5."""
    windows: HeadWindows = option("", before="")
    """Pooling of the scores of the windows of a text, for classification and regression: mean, or max of each score.
    Empty: a text is one sequence."""
    activation: Activation = option("identity", before="identity")
    """What makes the answer of a score, for regression: sigmoid, so that it is between 0 and 1, or identity, nothing.
    It changes no order."""

    @property
    def outputs(self) -> int:
        """Number C of columns of head/kernel: one per label; 2 for span (start, end); 1 for regression and choice."""
        return {"span": 2, "regression": 1, "choice": 1}.get(self.kind) or len(self.labels)

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels as they are compared with those of another model: without case, unless two differ in it alone."""
        folded = tuple(label.casefold() for label in self.labels)
        return folded if len(set(folded)) == len(folded) else self.labels


Similarity = Literal["cosine", "dot", "max_sim"]
"""Similarity of two texts: the cosine of the angle between their vectors, the product of these or, of vectors of
tokens, the sum over the tokens of the first of the highest product with one of the second."""


FormName = Literal["single", "tokens", "words"]


class _TextVectors:
    """Common part of the forms of vectors of texts."""

    chosen_by: ClassVar[Mapping[str, FormName]]
    """The option that chooses it, and its value."""
    similarities: ClassVar[tuple[Similarity, ...]]
    """Those that its vectors can be compared by, the usual one first."""

    @property
    def name(self) -> FormName:
        """The value of form.name that chooses it."""
        return self.chosen_by["name"]

    def check(self) -> None:
        """Raise a UserError if a value is out of range."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SingleVector(_TextVectors):
    """One vector per text."""

    chosen_by: ClassVar[Mapping[str, FormName]] = {"name": "single"}
    similarities: ClassVar[tuple[Similarity, ...]] = ("cosine", "dot")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenVectors(_TextVectors):
    """A unit vector per token, a linear map of its last state (late interaction: Khattab & Zaharia 2020, ColBERT)."""

    chosen_by: ClassVar[Mapping[str, FormName]] = {"name": "tokens"}
    similarities: ClassVar[tuple[Similarity, ...]] = ("max_sim",)

    size: int = 128
    """Number of features of a vector."""
    query_length: int = 0
    """Tokens of a query, [CLS] and [SEP] included; longer ones are cut. 0: as many as of any text."""
    expansion: Literal["none", "unseen", "seen"] = option("none", of=("query_length",))
    """Filling of shorter queries with [MASK], whose vectors count, up to query_length. The other tokens attend to them
    (seen), or they do not (unseen), as in ColBERT."""
    skip_punctuation: bool = True
    """Whether punctuation marks of documents have no vector."""

    def check(self) -> None:
        need_positive(self, "options.form.", "size")
        if self.query_length and self.query_length < 8:
            raise UserError(
                f"options.form.query_length={self.query_length} is too short for [CLS] A [SEP]; the minimum is 8, and "
                "0 is as many tokens as of any text"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordVector(_TextVectors):
    """A weight for each word of the vocabulary: the maximum over the tokens of log(1 + max(0, logit)), with the logits
    of the head for masked words (Formal et al. 2021, SPLADE). Most are 0."""

    chosen_by: ClassVar[Mapping[str, FormName]] = {"name": "words"}
    similarities: ClassVar[tuple[Similarity, ...]] = ("dot",)


TextVectors = SingleVector | TokenVectors | WordVector
"""Form of the vectors of texts: one of these."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
    """Defaults of `model.embed`: those of a directory of sentence-transformers, or of a model trained on vectors."""

    pooling: TokenPooling = "mean"
    """Vector of a text: that of [CLS], or the mean or the maximum of those of its tokens, or their sum divided by the
    square root of their number."""
    normalize: bool = False
    """Divide each vector by its Euclidean norm."""
    max_length: int | None = None
    """Maximum number of tokens per text, [CLS] and [SEP] included. None: as many as the model has positions."""
    lowercase: bool = False
    """Lowercase the text before it is tokenized, even with a cased vocabulary."""
    form: TextVectors = kinds(SingleVector(), nested=True, before=SingleVector())
    """Form of the vectors. pooling and normalize are those of a single one."""
    query_prompt: str = option("", before="")
    """Text that `embed` puts before those that it is told are queries."""
    document_prompt: str = option("", before="")
    """The same for documents."""
    unsupported: str = ""
    """Description of what the directory asks for that is not supported; `embed` then requires an explicit pooling."""
