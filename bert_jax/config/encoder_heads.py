"""What reads the states of an encoder: the head of a task, and one vector per text. The standard library only."""

import dataclasses
from typing import Literal

Combination = Literal[
    "last", "second_to_last", "sum_last_four", "concat_last_four", "weighted_last_four", "weighted_all"
]
"""Ways to combine several layers into one vector per token (models/pooling.py)."""
LayersRead = Literal["", "embeddings", Combination, "weighted_with_embeddings"]
"""Layers of a frozen encoder that a BiLSTM reads; "" for an encoder that is trained with its head."""
HeadPooling = Literal["cls", "mean"]
"""Input of the head of a task; see `HeadConfig.pooling`."""
TokenPooling = Literal["cls", "mean", "max", "mean_sqrt_len"]
"""Ways to combine the vectors of the tokens of a text; see `EmbeddingConfig.pooling`."""
Pooling = Literal[TokenPooling, "pooler"]
"""The same, or pooler: the vector of BERT's pooler."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The head on the encoder of a fine-tuned model; its parameters are head/kernel [H, C] and head/bias [C]."""

    kind: Literal["classification", "regression", "span", "choice", "tagging"] = "classification"
    """classification, regression and choice read the pooled [CLS]; span and tagging read every position."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of the columns (classification, tagging); empty for the other kinds."""
    dropout: float = 0.1
    """Dropout rate on the input of the head."""
    pooling: HeadPooling = "cls"
    """Input of classification, regression and choice in a model with task_transform: the first position, or the mean of
    all."""
    crf: bool = False
    """Whether a linear-chain CRF follows the scores (crf/transitions [C, C], crf/start [C], crf/end [C]); for tagging
    only."""
    features: LayersRead = ""
    """Layers of the frozen encoder that a two-layer BiLSTM reads, whose parameters are in head/ too (models/bilstm.py;
    paper section 5.3). Kinds with one answer per text read the maximum of its outputs over the tokens. Empty: the
    encoder is trained."""
    lstm_size: int = 768
    """Width of the BiLSTM in each direction."""
    train_encoder: bool = False
    """Whether the encoder is trained with the BiLSTM after all, as that of the left-to-right model in the paper's
    table 5."""

    @property
    def outputs(self) -> int:
        """Number C of columns of head/kernel: one per label; 2 for span (start, end); 1 for regression and choice."""
        return {"span": 2, "regression": 1, "choice": 1}.get(self.kind) or len(self.labels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
    """Defaults of `model.embed`, which directories of sentence-transformers specify."""

    pooling: TokenPooling = "mean"
    """Vector of a text: that of [CLS], or the mean or the maximum of those of its tokens, or their sum divided by the
    square root of their number."""
    normalize: bool = False
    """Divide each vector by its Euclidean norm."""
    max_length: int | None = None
    """Maximum number of tokens per text, [CLS] and [SEP] included. None: as many as the model has positions."""
    lowercase: bool = False
    """Lowercase the text before it is tokenized, even with a cased vocabulary."""
    unsupported: str = ""
    """Description of what the directory asks for that is not supported; `embed` then requires an explicit pooling."""
