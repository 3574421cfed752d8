"""Options of the smaller commands, as frozen dataclasses.

Only the standard library is imported here, as in `config.options`.
"""

import dataclasses
from typing import Literal

from bert_jax.config.example_choices import MaskUnit, PackingChoice, SentencePairs
from bert_jax.config.preparing import CorpusFormat

ModelFormat = Literal["bert_jax", "huggingface", "tf1"]
"""Formats that a model is written in; see `ConvertConfig.to`."""
PartsWritten = Literal["all", "mlm", "encoder", "generator"]
"""Parts of a model that are written; see `ConvertConfig.parts`."""
Weights = Literal["last", "ema"]
"""Weights of a run of bert_jax; see `ConvertConfig.weights`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountConfig:
    """Options of `bert-jax count`."""

    output: str
    """Directory to write the counts to. It must not exist yet, or be empty."""
    window: int = 10
    """Maximum distance of two tokens that are counted as a pair, 1 to 20. A pair at distance d counts 1/d."""
    held_out: float = 0.01
    """Share of the documents that are not counted: those that a run with the same --data.held_out evaluates on."""
    cache: str = ""
    """Local directory that a remote store is copied to once. By default bert_jax in the user's cache directory
    ($XDG_CACHE_HOME, else ~/.cache)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """Options of `bert-jax demo`."""

    workdir: str = "runs/demo"
    """Directory of the run. The demo resumes if it is started again with the same directory."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExtendVocabConfig:
    """Options of `bert-jax extend-vocab`."""

    vocab: str
    """The vocab.txt to extend, or a directory that holds one. It is not changed."""
    output: str
    """File (vocab.txt) or directory to write the extended vocabulary to."""
    words: str = ""
    """File of words to add, one per line. By default they are found in the corpus that --input names."""
    input: str = ""
    """Corpus to find words in, as for train-vocab. Not needed if --words is given."""
    max_words: int = 1_000
    """Maximum number of words to add from a corpus: those that save the most pieces."""
    min_count: int = 10
    """Words that occur less often than this in the corpus are not added."""
    max_bytes: int = 1_000_000_000
    """Maximum number of bytes of text to read from the corpus, taken evenly from all documents."""
    lowercase: bool | None = None
    """Whether text is lowercased. None: as the vocabulary was made."""
    format: CorpusFormat = "auto"
    """Format of the corpus. auto: by the file name, as for train-vocab."""
    text_field: str = "text"
    """Name of the field that holds the text in JSON lines, Parquet, Arrow and TFDS examples."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """Options of `bert-jax inspect`."""

    document: int = 0
    """Number of the document to follow, counted from 0."""
    sentences: int = 8
    """Number of sentences of the document to show."""
    examples: int = 3
    """Number of examples made from the document to show."""
    epoch: int = 0
    """Epoch to take the examples from, counted from 0."""
    sequence_length: int = 128
    """Tokens per sequence, [CLS] and [SEP] included."""
    sentence_pairs: SentencePairs = "nsp"
    """Pairs of segments: next-sentence prediction (nsp), sentence order (sop, as in ALBERT), without a label (adjacent,
    as in ELECTRA), or none."""
    packing: PackingChoice = "auto"
    """Whether a row holds several texts. auto: from 256 tokens on, as in a training run."""
    unit: MaskUnit = "token"
    """Unit of masking: single tokens, whole words, spans of words (SpanBERT), or n-grams of words (ALBERT)."""
    short_sequence_probability: float = 0.1
    """Share of the documents that an epoch cuts to a random shorter length."""
    seed: int = 0
    """Seed of the order, the pairs and the masks, as in a training run with this --seed."""
    report_sequences: int = 100_000
    """Maximum number of sequences that the report on the epoch examines."""
    cache: str = ""
    """Local directory that a remote store is copied to once. By default bert_jax in the user's cache directory
    ($XDG_CACHE_HOME, else ~/.cache)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FillMaskConfig:
    """Options of `bert-jax fill-mask`."""

    top_k: int = 5
    """Number of candidates to show for each [MASK]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResultsConfig:
    """Options of `bert-jax results`."""

    gain_over: str = ""
    """Directory to compare with, one of those given, or one of its rows if it has several (such as random weights). For
    each other row, an additional row shows by how much it is better. By default there are no such rows."""
    output: str = ""
    """Directory to write results_table.md and results_table.json to. By default the table is only printed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """Options of `bert-jax convert`."""

    to: ModelFormat
    """Format to write. bert_jax: a work directory for load, --init_from and the other commands. huggingface: a
    directory that transformers opens. tf1: files that Google's code opens."""
    parts: PartsWritten = "all"
    """Parts to write. all: everything that the source has; for a run of replaced-token detection, the discriminator.
    generator: the generator of such a run, a masked language model. mlm: encoder and masked-language-model head, the
    exact contents of AutoModelForMaskedLM. encoder: the encoder with its pooler, if it has one, the exact contents of
    AutoModel."""
    weights: Weights = "last"
    """Weights to write if the source is a run of bert_jax: those after the last step, or their moving average
    (optimizer.ema_decay)."""
