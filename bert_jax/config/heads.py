"""What is on top of an encoder as frozen dataclasses: the head of a task, and how texts become vectors.

Standard library only.
"""

import dataclasses
from typing import Literal

from bert_jax.config.options import option

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
    [CLS]; span and tagging read every position. vectors, as an EmbeddingConfig says, has no parameters, and no model
    records it."""
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
    query_prompt: str = option("", before="")
    """Text that `embed` puts before those that it is told are queries."""
    document_prompt: str = option("", before="")
    """The same for documents."""
    unsupported: str = ""
    """Description of what the directory asks for that is not supported; `embed` then requires an explicit pooling."""
