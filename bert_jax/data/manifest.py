"""The manifest of a token store: counts, files with their hashes, the tokenizer, the sources.

`manifest.json` may come from anywhere, so it is checked like any other input.
"""

import collections
import dataclasses
import hashlib
import json
import pathlib
import re

from etils import epath

from bert_jax.config.corpora import CleaningConfig
from bert_jax.config.options import from_dict, to_dict
from bert_jax.corpus.cleaner import StepRecord
from bert_jax.errors import UserError
from bert_jax.files import read_object, unsealed

VERSION = 1
PARTS = ("tokens", "sentences", "documents")
_ORIGIN = ("sources", "options", "removed", "cleaning")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    tokens: int
    sentences: int
    documents: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """Counts over the whole store. `text_bytes`: UTF-8 bytes of the sentences."""

    documents: int
    sentences: int
    tokens: int
    text_bytes: int
    unknown_tokens: int
    cut_sentences: int
    """Number of pieces cut off from sentences longer than encoding.MAX_SENTENCE_CHARACTERS."""
    replaced_characters: int
    """Number of bytes that were not UTF-8 (with bad_utf8="replace") and lone surrogates in JSON lines; all became
    U+FFFD."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerRecord:
    kind: str
    fingerprint: str
    vocab_size: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceRecord:
    name: str
    format: str
    bytes: int
    revision: str
    wrap_column: int = 0
    """Column at which its lines were wrapped; those of a paragraph are joined. 0: every line is as it was."""
    license: str = ""
    """Licence of its text, as it was given to `prepare` or is in the description of a data set; "" if not known."""
    sha256: str = ""
    """Hash of the file; "" for what is no file of the machine that made the store."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Removed:
    """Number of things of one kind in a source that are no text: redirects, tables, lines of a licence, …"""

    source: str
    what: str
    number: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `prepare` that change what is stored."""

    sentences: str
    language: str
    text_field: str
    bad_utf8: str
    clean: CleaningConfig = CleaningConfig()
    evaluation_rows: str = ""
    """SHA-256 of the rows of words that clean.decontaminate removes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileRecord:
    name: str
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Content of a token store's `manifest.json`."""

    version: int
    """Version of the format, 1."""
    dtype: str
    """Type of the stored ids: uint16 or uint32."""
    counts: Counts
    """Sums over all shards."""
    tokenizer: TokenizerRecord
    """The vocabulary that made the ids."""
    options: Options
    """The options of `prepare` that change what is stored."""
    sources: tuple[SourceRecord, ...]
    """The files or data sets that the text came from."""
    shards: tuple[Shard, ...]
    """Counts of each shard."""
    files: tuple[FileRecord, ...]
    """Name and SHA-256 of every file."""
    removed: tuple[Removed, ...] = ()
    """Things that were left out of the sources, by source and kind."""
    cleaning: tuple[StepRecord, ...] = ()
    """Counts of what the steps of the cleaning removed and changed."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the contents, without their origin (paths, dates)."""
        content = {key: value for key, value in to_dict(self).items() if key not in _ORIGIN}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def removals(counts: collections.Counter[tuple[str, str]]) -> tuple[Removed, ...]:
    """Return counts by (source, kind of thing) as the manifest has them: sorted, without zeros."""
    return tuple(Removed(source=source, what=what, number=n) for (source, what), n in sorted(counts.items()) if n)


def shard_file(index: int, part: str) -> str:
    return f"shard-{index:05d}.{part}"


def read_manifest(directory: epath.Path) -> Manifest:
    """Read and check `manifest.json`; nothing in it is trusted.

    Raises:
      UserError: there is no manifest, or it has a different version, wrong types, inconsistent counts or foreign file
        names.
    """
    path = directory / "manifest.json"
    if not path.exists():
        raise UserError(
            f"{directory} is not a token store (no manifest.json); "
            f"make one with `bert-jax prepare --output={directory}`"
        )
    values = read_object(path, "prepare the store again")
    if (version := values.get("version")) != VERSION:
        raise UserError(
            f"{path} has version {version!r:.40}, but this program reads version {VERSION}; prepare the store again"
        )
    try:
        manifest = from_dict(Manifest, unsealed(values), complete=True)
        _check(manifest)
    except UserError as error:
        raise UserError(f"{path} is damaged or was not written by `bert-jax prepare`: {error}") from error
    return manifest


def _check(manifest: Manifest) -> None:
    records = (manifest.counts, *manifest.shards)
    numbers = [manifest.tokenizer.vocab_size, *(number for record in records for number in to_dict(record).values())]
    if min(numbers) < 0 or max(numbers) >= 2**62:
        raise UserError("a count is negative or beyond 2^62")
    for part in PARTS:
        total, stated = sum(getattr(shard, part) for shard in manifest.shards), getattr(manifest.counts, part)
        if total != stated or not total:
            raise UserError(f"the shards have {total} {part}, but counts.{part} is {stated}")
    if manifest.dtype != dtype_for(manifest.tokenizer.vocab_size):
        raise UserError(
            f"dtype {manifest.dtype!r:.40} does not belong to a vocabulary of {manifest.tokenizer.vocab_size}"
        )
    names = [file.name for file in manifest.files]
    shards = {shard_file(i, part) for i in range(len(manifest.shards)) for part in PARTS}
    tokenizer_file = re.compile(r"tokenizer/\w[\w.-]*", re.ASCII)
    foreign = [name for name in names if name not in shards and not tokenizer_file.fullmatch(name)]
    if foreign or not shards <= set(names) or len(names) != len(set(names)):
        raise UserError(
            f"the files listed are not those of {len(manifest.shards)} shards and a tokenizer"
            + (f": {foreign[0]!r:.80}" if foreign else "")
        )


def dtype_for(vocab_size: int) -> str:
    return "uint16" if vocab_size <= 2**16 else "uint32"


def hash_file(path: pathlib.Path) -> str | None:
    """Return the SHA-256 of a file in hexadecimal, or None if there is no such file."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
