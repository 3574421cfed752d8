"""The request of a `bert-jax prepare`: options checked, vocabulary loaded, sources found."""

import dataclasses
from collections.abc import Iterable

from absl import logging
from etils import epath

from bert_jax.config import PrepareConfig
from bert_jax.config.corpora import CleaningConfig, check_cleaning
from bert_jax.config.options import check_effects
from bert_jax.corpus import rules, text
from bert_jax.corpus.blocks import Limits, Source
from bert_jax.corpus.cleaner import StepRecord, read_contamination
from bert_jax.corpus.readers import find_sources, read_lines
from bert_jax.corpus.text import make_splitter
from bert_jax.data.manifest import Options, SourceRecord, TokenizerRecord
from bert_jax.data.preparation.writer import MadeFrom
from bert_jax.errors import UserError, need_cloud_storage, need_extra
from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer

MAY_BE_WRAPPED = ("text", "jsonl", "tfds", "hub", "parquet", "arrow")
"""Formats whose lines may end anywhere; the others have a whole paragraph on each line."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A store to make. Everything in it is good as far as that can be known before the text is read."""

    output: epath.Path
    tokenizer: Tokenizer
    sources: list[Source]
    made_from: MadeFrom
    workers: int


def make_request(config: PrepareConfig) -> Request:
    """Check the options, load the vocabulary and find the sources.

    Raises:
      UserError: a bad option, vocabulary or source; nothing has been written.
    """
    for path in (config.input, config.vocab, config.output, config.clean.decontaminate):
        need_cloud_storage(path)
    make_splitter(config.sentences, config.language)
    if config.language != "en" and config.sentences == "lines" and "gopher" not in config.clean.quality:
        raise UserError(
            f"language={config.language} has no effect with sentences=lines, unless clean.quality has gopher; leave it "
            "out"
        )
    if config.workers < 0:
        raise UserError(f"workers={config.workers}: give the number of processes, or 0 for one per core")
    if config.wrapped == "yes" and config.sentences == "lines":
        raise UserError(
            "wrapped=yes joins the lines of a paragraph, sentences=lines takes each line as a sentence; choose one"
        )
    _check_cleaning(config.clean)
    check_effects(config)
    tokenizer = load_tokenizer(config.vocab, config.lowercase)
    limits = Limits.given(config.max_line_bytes, config.max_expansion)
    found = find_sources(config.input, config.format, config.license, config.text_field, limits)
    sources = _with_wrap_columns(config, found)
    output = epath.Path(config.output).expanduser()
    return Request(output, tokenizer, sources, _made_from(config, tokenizer, sources), config.workers)


def no_text(sources: list[Source], cleaning: Iterable[StepRecord]) -> UserError:
    """Return the error of a corpus whose text, all of it read and cleaned, gave no token."""
    total = sum(source.bytes for source in sources)
    size = f"{total:,} bytes in {len(sources)} source{'s' * (len(sources) > 1)}"
    if gone := ", ".join(f"{each.step} {each.documents:,}" for each in cleaning if each.documents):
        return UserError(f"the cleaning removed all of {size}; documents removed: {gone}; leave out a step of --clean")
    return UserError(f"the corpus holds no text: {size} gave no token")


def _with_wrap_columns(config: PrepareConfig, sources: list[Source]) -> list[Source]:
    """Return the sources with the columns at which their lines are joined; report which ones look wrapped.

    Raises:
      UserError: wrapped=yes, but the format of a source has a paragraph on each line.
    """
    if config.wrapped == "no":
        return sources
    unbroken = [source for source in sources if source.format not in MAY_BE_WRAPPED]
    if config.wrapped == "yes" and unbroken:
        raise UserError(
            f"wrapped=yes joins the lines of a paragraph, but {unbroken[0].name} ({unbroken[0].format}) has "
            "a whole paragraph on each line; give --wrapped=auto, or leave it out"
        )
    found = {
        source: text.find_column(read_lines(source, config.text_field, config.bad_utf8))
        for source in sources
        if source.format in MAY_BE_WRAPPED
    }
    wrapped = [source for source, (_, is_wrapped) in found.items() if is_wrapped]
    joining = config.wrapped == "yes" or config.wrapped == "auto" and config.sentences == "split"
    if wrapped:
        first, column = wrapped[0].name, found[wrapped[0]][0]
        which = first if len(sources) == 1 else f"{len(wrapped):,} of {len(sources):,} sources ({first}, …)"
        which = f"{which}: hard-wrapped lines of about {column} characters"
        if joining:
            print(f"{which}; the lines of each paragraph are joined (--wrapped=no keeps every line end)")
        else:
            logging.warning(
                "%s, and every line end is taken for the end of a sentence; --sentences=split --wrapped=auto joins "
                "the lines of each paragraph",
                which,
            )
    joined = found if config.wrapped == "yes" else set(wrapped) if joining else ()
    return [
        dataclasses.replace(source, wrap_column=found[source][0]) if source in joined else source for source in sources
    ]


def _check_cleaning(clean: CleaningConfig) -> None:
    """Raise a UserError if a step of the cleaning cannot work; names the extra of a library that is not installed."""
    check_cleaning(clean)
    if clean.unicode == "repair":
        need_extra("ftfy", "corpora", "clean.unicode=repair")
    if clean.languages:
        need_extra("py3langid", "corpora", "clean.languages")
        rules.check_languages(clean.languages)
    if clean.contacts == "remove":
        need_extra("phonenumbers", "corpora", "clean.contacts=remove")
        from bert_jax.corpus.rules import check_region

        check_region(clean.phone_region)


def _made_from(config: PrepareConfig, tokenizer: Tokenizer, sources: list[Source]) -> MadeFrom:
    contamination = read_contamination(config.clean)
    return MadeFrom(
        tokenizer=TokenizerRecord(
            kind=tokenizer.kind, fingerprint=tokenizer.fingerprint, vocab_size=tokenizer.vocab_size
        ),
        options=Options(
            sentences=config.sentences,
            language=config.language,
            text_field=config.text_field,
            bad_utf8=config.bad_utf8,
            clean=config.clean,
            evaluation_rows=contamination.fingerprint if contamination else "",
        ),
        sources=tuple(_recorded(source) for source in sources),
    )


def _recorded(source: Source) -> SourceRecord:
    """Return what a manifest says of a source; its limits do not change the store."""
    return SourceRecord(**{name: value for name, value in dataclasses.asdict(source).items() if name != "limits"})
