"""Token stores made by hand, and their examples."""

import hashlib
import json
import pathlib
import types

import numpy as np
from etils import epath

from bert_jax.config import Config, DataConfig, MaskingConfig, PhaseConfig, PrepareConfig
from bert_jax.config.corpora import CleaningConfig
from bert_jax.config.options import to_dict
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
from bert_jax.tokenization.tokenizer import load_tokenizer
from bert_jax.training_data import Examples

PAD, UNK, CLS, SEP, MASK = range(5)
VOCAB_SIZE = 1000


def synthetic_tokenizer():
    """Ids from 5 on are pieces; every fourth continues the word before it."""
    ids = np.arange(VOCAB_SIZE)
    return types.SimpleNamespace(
        kind="wordpiece",
        vocab_size=VOCAB_SIZE,
        pad_id=PAD,
        unk_id=UNK,
        cls_id=CLS,
        sep_id=SEP,
        mask_id=MASK,
        separators=1,
        class_last=False,
        special_ids=(PAD, UNK, CLS, SEP, MASK),
        continues_word=lambda: (ids >= 5) & (ids % 4 == 3),
    )


class SyntheticStore:
    """`documents`: for each document the lengths of its sentences, in tokens."""

    vocab_size = VOCAB_SIZE

    def __init__(self, documents: list[list[int]], seed: int = 0):
        lengths = np.array([length for document in documents for length in document], np.int64)
        generator = np.random.default_rng(seed)
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self.document_sentences = np.concatenate([[0], np.cumsum([len(d) for d in documents])]).astype(np.int64)
        self.document_tokens = self._starts[self.document_sentences]
        self.num_documents, self.num_sentences, self.num_tokens = len(documents), len(lengths), int(self._starts[-1])
        self.all_tokens = generator.integers(5, VOCAB_SIZE, self.num_tokens).astype(np.int32)
        self.all_tokens[self._starts[:-1]] = 5  # a sentence never begins inside a word
        self.tokens_read = np.zeros(self.num_tokens, np.int64)

    def tokens(self, indices):
        np.add.at(self.tokens_read, indices, 1)
        return self.all_tokens[indices]

    def sentence_starts(self, indices):
        return self._starts[indices]

    def tokenizer(self):
        return synthetic_tokenizer()


def random_documents(
    num_documents: int, seed: int = 0, mean_sentences: float = 20, mean_tokens: float = 22
) -> list[list[int]]:
    """Lengths like those of articles, including the hard cases: a word, one sentence, sentences of many sequences."""
    generator = np.random.default_rng(seed)
    documents = []
    for _ in range(num_documents):
        num_sentences = 1 + generator.geometric(1 / mean_sentences)
        documents.append((1 + generator.gamma(2.5, mean_tokens / 2.5, num_sentences)).astype(int).tolist())
    return documents + [[1], [2], [1, 1], [700], [3, 900, 4], [30] * 3, [5, 1000, 1000, 2]]


def write_store(store: SyntheticStore, directory: pathlib.Path, documents_per_shard: int) -> pathlib.Path:
    """Write the same content in the format of bert_jax.data.store, independently of code that makes stores."""
    files, shards = {}, []
    for first in range(0, store.num_documents, documents_per_shard):
        last = min(first + documents_per_shard, store.num_documents)
        sentences, tokens = store.document_sentences[[first, last]], store.document_tokens[[first, last]]
        parts = {
            "tokens": store.all_tokens[slice(*tokens)].astype("<u2"),
            "sentences": (store.sentence_starts(np.arange(*sentences)) - tokens[0]).astype("<u8"),
            "documents": (store.document_sentences[first:last] - sentences[0]).astype("<u8"),
        }
        files |= {f"shard-{len(shards):05d}.{part}": values.tobytes() for part, values in parts.items()}
        shards.append({part: len(values) for part, values in parts.items()})
    continues_word = synthetic_tokenizer().continues_word()
    pieces = [("##" if continues else "") + f"w{number}" for number, continues in enumerate(continues_word)]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces[5:]]
    (directory / "tokenizer").mkdir(parents=True)
    (directory / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    tokenizer = load_tokenizer(directory / "vocab.txt")
    tokenizer.save(directory / "tokenizer")
    files |= {f"tokenizer/{path.name}": path.read_bytes() for path in (directory / "tokenizer").iterdir()}
    for name, content in files.items():
        (directory / name).write_bytes(content)
    counts = {part: sum(shard[part] for shard in shards) for part in ("tokens", "sentences", "documents")}
    manifest = {
        "version": 1,
        "dtype": "uint16",
        "shards": shards,
        "sources": [],
        "counts": {**counts, "text_bytes": 0, "unknown_tokens": 0, "cut_sentences": 0, "replaced_characters": 0},
        "tokenizer": {"kind": "wordpiece", "fingerprint": tokenizer.fingerprint, "vocab_size": VOCAB_SIZE},
        "options": {
            **{"sentences": "split", "language": "en", "text_field": "text", "bad_utf8": "error"},
            **{"clean": to_dict(CleaningConfig()), "evaluation_rows": ""},
        },
        "removed": [],
        "cleaning": [],
        "files": [{"name": name, "sha256": hashlib.sha256(content).hexdigest()} for name, content in files.items()],
    }
    (directory / "manifest.json").write_text(json.dumps(sealed(manifest)))
    return directory


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
    sizes = tuple(Shard(tokens=n, sentences=len(sentences), documents=len(d)) for n, _, sentences, d in shards)
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


PAIRS = ("nsp", "sop", "adjacent", "none")
LABELLED = ("nsp", "sop")
SEPARATORS = {"nsp": (2,), "sop": (2,), "adjacent": (1, 2), "none": (1,)}  # [SEP]s of a text


def make_config(sequence_length=64, short=0.1, **options):
    data = {
        name: options.pop(name)
        for name in ("sentence_pairs", "held_out", "eval_path", "copies", "packing")
        if name in options
    }
    masking = MaskingConfig(**options)
    phases = (PhaseConfig(sequence_length=sequence_length),)
    return Config(data=DataConfig(short_sequence_probability=short, **data), masking=masking, phases=phases)


def make_examples(store, split="all", seed=0, **options):
    return Examples(store, make_config(**options), split=split, seed=seed)


def epoch_rows(examples, epoch):
    count = examples.num_examples(epoch)
    return examples.rows(np.full(count, epoch), np.arange(count))


def segments(rows):
    """Token offsets of the first and the second segment of every row (arrays)."""
    return [
        tuple(index[(index >= 0) & (types == segment)] for segment in (0, 1))
        for index, types in zip(rows.token_index, rows.token_type_ids)
    ]


def sentences_seen(examples, epoch):
    """Number of the store's sentences with a token at least in the epoch."""
    tokens = epoch_rows(examples, epoch).token_index
    starts = examples.store.sentence_starts(np.arange(examples.store.num_sentences))
    return len(np.unique(np.searchsorted(starts, tokens[tokens >= 0], side="right")))


def documents_of(store, offsets):
    return np.searchsorted(store.document_tokens, offsets, side="right") - 1
