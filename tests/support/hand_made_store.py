"""Token stores of a few arrays, and one that the real command prepares."""

import hashlib
import json

import numpy as np
from etils import epath

from bert_jax.config import PrepareConfig
from bert_jax.config.json_form import to_dict
from bert_jax.data.manifest import (
    Counts,
    FileRecord,
    Manifest,
    Options,
    Shard,
    TokenizerRecord,
    read_manifest,
    shard_file,
)
from bert_jax.data.preparation import prepare
from bert_jax.data.store import Store
from bert_jax.files import sealed

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "alpha", "beta", "gamma", "##s"]


def hand_made(directory, shards, dtype="uint16", vocab_size=1000, hashed=True):
    """Write a store of shards (token count, {position: id}, sentence starts, document starts); token files are sparse.

    Not hashed, it is for `unverified` alone: reading ten gigabytes of zeros takes long.
    """
    directory.mkdir(parents=True)
    for index, (num_tokens, ids, sentences, documents) in enumerate(shards):
        with (directory / shard_file(index, "tokens")).open("wb") as file:
            file.truncate(num_tokens * np.dtype(dtype).itemsize)
            for position, value in ids.items():
                file.seek(position * np.dtype(dtype).itemsize)
                file.write(np.array(value, np.dtype(dtype).newbyteorder("<")).tobytes())
        np.array(sentences, "<u8").tofile(directory / shard_file(index, "sentences"))
        np.array(documents, "<u8").tofile(directory / shard_file(index, "documents"))
    sizes = tuple(
        Shard(tokens=n, sentences=len(sentences), documents=len(documents)) for n, _, sentences, documents in shards
    )
    sums = {part: sum(getattr(shard, part) for shard in sizes) for part in ("tokens", "sentences", "documents")}
    names = [shard_file(i, part) for i in range(len(sizes)) for part in sums]
    hashes = {name: hashlib.sha256((directory / name).read_bytes()).hexdigest() if hashed else "" for name in names}
    manifest = Manifest(
        version=1,
        dtype=dtype,
        counts=Counts(**sums, text_bytes=0, unknown_tokens=0, cut_sentences=0, replaced_characters=0),
        tokenizer=TokenizerRecord(kind="wordpiece", fingerprint="0", vocab_size=vocab_size),
        sources=(),
        shards=sizes,
        options=Options(sentences="lines", language="en", text_field="text", bad_utf8="error"),
        files=tuple(FileRecord(name=name, sha256=sha256) for name, sha256 in hashes.items()),
    )
    (directory / "manifest.json").write_text(json.dumps(sealed(to_dict(manifest))))
    return directory


def unverified(path):
    return Store(path, read_manifest(epath.Path(path)))


def prepared(tmp_path, output=None, text="alpha beta\ngammas\n\nbeta\n\n\nalpha alpha\ngamma\n"):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (tmp_path / "corpus.txt").write_text(text)
    output = output or str(tmp_path / "store")
    prepare.run_prepare(
        PrepareConfig(
            input=str(tmp_path / "corpus.txt"),
            vocab=str(tmp_path / "vocab.txt"),
            output=output,
            sentences="lines",
            workers=1,
        )
    )
    return output


def edited(values, keys, value):
    """The text of a sealed manifest with another value in one place."""
    *path, last = keys
    inner = values
    for key in path:
        inner = inner[key]
    inner[last] = value
    return json.dumps(sealed(values))
