"""From finished files to a token store: where they are made, their manifest, and the moment the store exists."""

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil

from etils import epath

from bert_jax.config.json_form import to_dict
from bert_jax.data.cleaning.step_record import StepRecord
from bert_jax.data.preparation import writer as store_writer
from bert_jax.data.preparation.preparation_report import description
from bert_jax.data.preparation.progress import MadeFrom, clear, forget_progress, refuse_difference
from bert_jax.data.preparation.source_hashes import with_hashes, without_hashes
from bert_jax.data.preparation.writer import WriterState
from bert_jax.data.store.access import open_store
from bert_jax.data.store.manifest import VERSION, FileRecord, Manifest, Removed, dtype_for, hash_file, read_manifest
from bert_jax.files import cache_directory, is_remote, sealed, write_atomically


def finished(output: epath.Path, made_from: MadeFrom) -> Manifest:
    """Return the manifest of the store that is already at `output`, with the licences that were given this time.

    Raises:
      UserError: it is not the requested one, or it is damaged.
    """
    manifest = read_manifest(output)
    present = MadeFrom(tokenizer=manifest.tokenizer, options=manifest.options, sources=without_hashes(manifest.sources))
    refuse_difference(f"{output} already holds a token store", present, made_from)
    if not is_remote(output):
        open_store(output)
        forget_progress(pathlib.Path(output))
    print(f"{output} is already complete: {description(manifest)}")
    return _with_licences(output, manifest, made_from)


def _with_licences(output: epath.Path, manifest: Manifest, made_from: MadeFrom) -> Manifest:
    """Record the licences that were given in the manifest; a source for which there is none keeps its own."""
    sources = tuple(
        dataclasses.replace(source, license=asked.license or source.license)
        for source, asked in zip(manifest.sources, made_from.sources, strict=True)
    )
    if sources == manifest.sources:
        return manifest
    manifest = dataclasses.replace(manifest, sources=sources)
    write_manifest(output, manifest)
    print(f"{output / 'manifest.json'} has the new licences: {', '.join(dict.fromkeys(s.license for s in sources))}")
    return manifest


def working_directory(output: epath.Path) -> pathlib.Path:
    """Return where the store is built: in place, or in the cache for a remote output, which cannot be appended to."""
    if not is_remote(output):
        return pathlib.Path(output)
    name = hashlib.sha256(os.fspath(output).encode()).hexdigest()[:16]
    return cache_directory() / f"prepare-{name}"


def make_manifest(
    directory: pathlib.Path,
    made_from: MadeFrom,
    state: WriterState,
    removed: tuple[Removed, ...],
    cleaning: tuple[StepRecord, ...],
) -> Manifest:
    """Return the manifest of the finished files in `directory`."""
    tokenizer_files = sorted(path for path in (directory / "tokenizer").iterdir() if path.is_file())
    hashes = ((path.name, hash_file(path)) for path in tokenizer_files)
    return Manifest(
        version=VERSION,
        dtype=dtype_for(made_from.tokenizer.vocab_size),
        counts=store_writer.counts(state),
        tokenizer=made_from.tokenizer,
        options=made_from.options,
        sources=with_hashes(made_from.sources),
        shards=state.shards,
        files=(
            *state.hashes,
            *(FileRecord(name=f"tokenizer/{name}", sha256=sha256) for name, sha256 in hashes if sha256),
        ),
        removed=removed,
        cleaning=cleaning,
    )


def publish(directory: pathlib.Path, output: epath.Path, manifest: Manifest) -> None:
    """Make the finished files a store: the manifest comes last, for a remote output after all other files."""
    if not is_remote(output):
        write_manifest(output, manifest)
        forget_progress(directory)
        return
    for file in manifest.files:
        target = output / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        with (directory / file.name).open("rb") as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 24)
    write_manifest(output, manifest)
    clear(directory)


def write_manifest(output: epath.Path, manifest: Manifest) -> None:
    """Make the files in `output` a store."""
    text = json.dumps(sealed(to_dict(manifest)), indent=1) + "\n"
    write_atomically(output / "manifest.json", text.encode())
