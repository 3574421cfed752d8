"""Options of the smaller commands, as frozen dataclasses; only the standard library is imported here, as in `config.py`."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """Options of `bert-jax demo`."""

    workdir: str = "runs/demo"
    """Directory of the run. Started again with the same directory, the demo resumes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExtendVocabConfig:
    """Options of `bert-jax extend-vocab`."""

    vocab: str
    """The vocab.txt to extend, or a directory that holds one. It is not changed."""
    output: str
    """File (vocab.txt) or directory that the extended vocabulary is written to."""
    words: str = ""
    """File of words to add, one per line. By default they are found in the corpus that --input names."""
    input: str = ""
    """Corpus to find words in, as for train-vocab. Not needed where --words is given."""
    max_words: int = 1_000
    """Number of words that are taken from a corpus at most: those that save the most pieces."""
    min_count: int = 10
    """Words of a corpus that are rarer than this are not added."""
    max_bytes: int = 1_000_000_000
    """Text to read from the corpus at most, taken evenly over its documents."""
    lowercase: bool | None = None
    """Whether text is lowercased. None: as the vocabulary was made."""
    format: Literal["auto", "text", "jsonl", "wikiextractor", "tfds", "docs"] = "auto"
    """Format of the corpus. With auto it is told by the name of the file, as for train-vocab."""
    text_field: str = "text"
    """Name of the field that holds the text in JSON lines and TFDS examples."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """Options of `bert-jax inspect`."""

    document: int = 0
    """Number of the document to follow, counted from 0."""
    sentences: int = 8
    """Number of its sentences to show."""
    examples: int = 3
    """Number of the examples made from it to show."""
    epoch: int = 0
    """Epoch that the examples are taken from, counted from 0."""
    sequence_length: int = 128
    """Tokens per sequence, [CLS] and [SEP] included."""
    sentence_pairs: Literal["nsp", "sop", "none"] = "nsp"
    """Task on pairs of segments: next-sentence prediction, sentence order (ALBERT), or none."""
    unit: Literal["token", "whole_word", "span"] = "token"
    """What is masked together: single tokens, whole words, or spans of words."""
    short_sequence_probability: float = 0.1
    """Share of the documents that an epoch cuts to a random shorter length."""
    seed: int = 0
    """Seed of the order, the pairs and the masks, as in a run with this --seed."""
    report_sequences: int = 100_000
    """Sequences that the report on the epoch examines at most."""
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
    """One of the directories, or of the rows where a directory has several (random weights, another checkpoint). One more row
    per other row shows by how much that is better. By default there are no such rows."""
    output: str = ""
    """Directory to write results_table.md and results_table.json to. By default the table is only printed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """Options of `bert-jax convert`."""

    to: Literal["bert_jax", "huggingface", "tf1"]
    """Format to write. bert_jax is a work directory for load, --init_from and the other commands, huggingface is what
    transformers opens, and tf1 is what Google's code opens."""
    parts: Literal["all", "mlm", "encoder"] = "all"
    """Parts to write. all: what the source has. mlm: encoder and masked-language-model head, the exact contents of
    AutoModelForMaskedLM. encoder: the encoder with its pooler, if it has one, the exact contents of AutoModel."""
