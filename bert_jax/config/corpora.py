"""Options of `bert-jax train-vocab` and `bert-jax prepare`, and of cleaning; standard library only."""

import dataclasses
from typing import Literal

from bert_jax.config.model import DEFAULT_VOCAB_SIZE
from bert_jax.config.options import option
from bert_jax.errors import UserError

RULE_SETS = ("gopher", "c4")
"""Names of the published sets of rules about the quality of a document."""

SHORTEST_OVERLAP = 8
"""Words: evaluation texts with fewer are ordinary phrases and not searched for, as in GPT-3 (Brown et al. 2020)."""

LONGEST_LINE, MOST_EXPANSION = 1 << 28, 200
"""Defaults of max_line_bytes and max_expansion."""

LEAST_SIMILARITY = 0.5
"""Least value of clean.near_threshold."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CleaningConfig:
    """Repairs of a corpus, and removals from it: none by default. corpus/cleaner.py has the order of
    the steps."""

    unicode: Literal["keep", "repair"] = "keep"
    """Treatment of the characters. repair: text that was decoded wrongly (“schÃ¶n”) is corrected, curly quotes and
    ligatures become plain, and the result is normalized to NFC."""
    languages: tuple[str, ...] = ()
    """Languages to keep, as ISO 639 codes such as en,de. A document whose most probable language is a different one is
    removed. Empty: every document is kept, and no language is identified."""
    quality: tuple[str, ...] = ()
    """Sets of rules that a document must satisfy: gopher (Rae et al. 2021), c4 (Raffel et al. 2020), or both, separated
    by a comma."""
    decontaminate: str = ""
    """Evaluation sets whose texts are removed from the corpus: files, or directories, of which only the files for
    development and testing are read; separated by commas. They are TSV, CSV, JSON, JSON lines (GLUE, SQuAD, …) or text
    with an item per line."""
    overlap: int = option(13, of=("decontaminate",))
    """Number of consecutive words that a paragraph must share with an evaluation set to be removed; used with
    decontaminate only. A shorter text, of at least 8 words, must occur in full."""
    contacts: Literal["keep", "remove"] = "keep"
    """Treatment of e-mail addresses and telephone numbers. remove: they are cut out of the text."""
    phone_region: str = option("US", of=("contacts", "remove"))
    """Two-letter code of the country whose telephone numbers are recognized without +; used with contacts=remove only.
    """
    deduplicate: Literal["keep", "exact", "near"] = "keep"
    """Duplicates that are removed, after all other steps. exact: documents that are the same,
    and paragraphs of at least 100 characters. near: documents that are similar as well."""
    near_threshold: float = option(0.8, of=("deduplicate", "near"))
    """Similarity from which documents are near duplicates, from 0.5 to 1; used with deduplicate=near only. It is the
    Jaccard similarity of their sets of five consecutive words, as MinHash estimates it."""

    @property
    def cleans(self) -> bool:
        """Whether there is anything to do to a document on its own."""
        return any(
            (
                self.unicode != "keep",
                self.languages,
                self.quality,
                self.decontaminate,
                self.contacts != "keep",
            )
        )

    @property
    def similarity(self) -> float | None:
        """The least similarity of near duplicates; None if they are not looked for."""
        return self.near_threshold if self.deduplicate == "near" else None


def check_cleaning(clean: CleaningConfig) -> None:
    """Raise a UserError that names option, value and remedy if a value can be seen to be wrong without a library."""
    unknown = [name for name in clean.quality if name not in RULE_SETS]
    if unknown or len(set(clean.quality)) < len(clean.quality):
        raise UserError(
            f"clean.quality={','.join(clean.quality)} must be some of {', '.join(RULE_SETS)}, each once; "
            "leave it out to keep every document"
        )
    if len(set(clean.languages)) < len(clean.languages):
        raise UserError(f"clean.languages={','.join(clean.languages)} names a language twice")
    if clean.overlap < SHORTEST_OVERLAP:
        raise UserError(f"clean.overlap={clean.overlap} must be at least {SHORTEST_OVERLAP} words; 13 is usual")
    if not LEAST_SIMILARITY <= clean.near_threshold <= 1:
        raise UserError(
            f"clean.near_threshold={clean.near_threshold} must be from {LEAST_SIMILARITY} to 1; 0.8 is usual, and "
            "documents that are less similar are different texts"
        )


CorpusFormat = Literal[
    "auto", "text", "jsonl", "wikiextractor", "wikipedia", "warc", "gutenberg", "parquet", "arrow", "tfds", "docs"
]
"""Formats of a corpus; see `PrepareConfig.format`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainVocabConfig:
    """Options of `bert-jax train-vocab`."""

    input: str
    """Corpus: files, directories, globs, `tfds:name`, `hf://datasets/owner/name[@revision][:configuration[:split]]` of
    the Hugging Face hub, or `docs:` (the documentation that Python itself carries), with commas between several."""
    output: str
    """File or directory to write to: vocab.txt, NAME.model for SentencePiece, or a directory, as byte_bpe needs for its
    two files."""
    size: int = DEFAULT_VOCAB_SIZE
    """Number of entries of the vocabulary, special tokens included. family=modernbert adds [unused0], [unused1], …
    up to the next multiple of 64."""
    method: Literal["frequency", "likelihood", "unigram", "bpe", "byte_bpe"] = "frequency"
    """Kind of vocabulary. frequency, likelihood: WordPiece, by the frequency of pairs or by their likelihood score.
    unigram, bpe: SentencePiece. byte_bpe: byte-level BPE, as in RoBERTa, which keeps the case of text
    (lowercase=False)."""
    lowercase: bool = True
    """Whether text is lowercased and, for WordPiece, its accents are stripped."""
    family: Literal["bert", "deberta", "modernbert", "albert", "xlm-roberta", "camembert", "deberta-v2", "xlnet"] = (
        "bert"
    )
    """Model family whose special tokens, ids and cleaning of texts a SentencePiece vocabulary has; used only with
    method=unigram or bpe and a directory as output. bert: [PAD], [UNK], [CLS], [SEP] and [MASK], as for WordPiece.
    With method=byte_bpe: bert for RoBERTa's special tokens and pairs, deberta for those of DeBERTa v1, which are
    BERT's, modernbert for these in the order of ModernBERT, of text that is composed (NFC) first."""
    min_pair_count: int = option(100, of=("method", "likelihood"))
    """Pairs that are rarer than this are never merged; used with method=likelihood only. The score favours pairs whose
    parts occur nowhere else, so a low value fills the vocabulary with pieces of rare words. A high value keeps it for
    common words and, in a small corpus, leaves it smaller than requested."""
    max_bytes: int = 1_000_000_000
    """Maximum number of bytes of text to learn from, taken evenly from all documents."""
    held_out: float = 0.01
    """Share of the documents that are not learned from; the printed fertility, coverage and [UNK] rate are measured on
    them. They are the documents that `pretrain` holds out of a store of the same corpus if data.held_out has the same
    value."""
    format: CorpusFormat = "auto"
    """Format of the corpus. auto: by the file name (.jsonl, .json, .parquet, .arrow, …) and by the beginning of the
    file: `<doc` is WikiExtractor's output, `<mediawiki` a dump of Wikipedia, `WARC/` the records of a crawl.
    gutenberg: books of Project Gutenberg, without header and licence; auto takes them for plain text."""
    text_field: str = "text"
    """Name of the field that holds the text in JSON lines, Parquet, Arrow, and examples of TFDS and the hub."""
    max_line_bytes: int = LONGEST_LINE
    """Maximum number of bytes of a line of plain text; a longer one stops the command, because hardly anybody writes
    such lines. For a line of JSON, a page of Wikipedia and a book the limit is 64 MiB."""
    max_expansion: int = MOST_EXPANSION
    """Maximum size of the text of a compressed file, as a multiple of the size of the file; one with more stops the
    command, because it may be made to exhaust its readers. What people write is at most about 10 times as large. The
    first 16 MiB are not counted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparedTextConfig:
    """Options that decide what is in a token store, and where it is."""

    input: str
    """Corpus: files, directories, globs, `tfds:name`, `hf://datasets/owner/name[@revision][:configuration[:split]]` of
    the Hugging Face hub, or `docs:` (the documentation that Python itself carries), with commas between several."""
    vocab: str
    """Vocabulary to tokenize with: vocab.txt, a SentencePiece .model, the vocab.json of a byte-level BPE, or a
    directory that holds one, or that of a model of the Hugging Face hub, as hf://owner/name[@revision]."""
    output: str
    """Directory of the token store to write."""
    format: CorpusFormat = "auto"
    """Format of the corpus. auto: by the file name (.jsonl, .json, .parquet, .arrow, …) and by the beginning of the
    file: `<doc` is WikiExtractor's output, `<mediawiki` a dump of Wikipedia, `WARC/` the records of a crawl.
    gutenberg: books of Project Gutenberg, without header and licence; auto takes them for plain text."""
    text_field: str = "text"
    """Name of the field that holds the text in JSON lines, Parquet, Arrow, and examples of TFDS and the hub."""
    max_line_bytes: int = LONGEST_LINE
    """Maximum number of bytes of a line of plain text; a longer one stops the command, because hardly anybody writes
    such lines. For a line of JSON, a page of Wikipedia and a book the limit is 64 MiB."""
    max_expansion: int = MOST_EXPANSION
    """Maximum size of the text of a compressed file, as a multiple of the size of the file; one with more stops the
    command, because it may be made to exhaust its readers. What people write is at most about 10 times as large. The
    first 16 MiB are not counted."""
    sentences: Literal["split", "lines"] = "split"
    """Division of text into sentences. split: a sentence splitter finds them. lines: the corpus already has one
    sentence per line."""
    wrapped: Literal["auto", "yes", "no"] = "auto"
    """Whether the files are hard-wrapped, as most books in plain text are. If so, the lines of each paragraph are
    joined before sentences are found. auto: decided from the beginning of each file. no: every line end is the end of a
    sentence."""
    language: str = "en"
    """Code of the language, such as en: its rules divide the text into sentences, and clean.quality=gopher asks for
    stop words of English only."""
    lowercase: bool | None = None
    """Whether text is lowercased. None: as the vocabulary was made (cased if any of its entries has a capital
    letter)."""
    bad_utf8: Literal["error", "replace"] = "error"
    """Treatment of bytes that are not UTF-8: stop with an error, or replace them with U+FFFD."""
    clean: CleaningConfig = CleaningConfig()
    """Repairs of the corpus, and removals from it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig(PreparedTextConfig):
    """Options of `bert-jax prepare`."""

    license: str = ""
    """Licence of the text, such as "CC BY-SA 4.0", for the manifest and the card of `bert-jax describe`: one for all of
    `input`, or one for each source, separated by commas. By default the one that a data set saved by `datasets` states
    itself."""
    workers: int = 0
    """Number of processes. 0: one per core. The store has the same bytes with any number."""
    runner: Literal["local", "beam"] = "local"
    """Runner that does the work. local: processes on this machine. beam: a pipeline of Apache Beam, on this machine or
    on Dataflow, Flink or Spark. The store has the same bytes either way."""
    beam: tuple[str, ...] = ()
    """Options of Apache Beam itself as NAME=VALUE, with runner=beam. On the command line each is written
    --beam.NAME=VALUE, such as --beam.runner=DataflowRunner --beam.project=PROJECT. Without --beam.runner the pipeline
    runs on this machine."""
