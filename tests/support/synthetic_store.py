"""A token store in memory, with the attributes of bert_jax.data.store.Store, that records the tokens read."""

import hashlib
import json
import pathlib
import types

import numpy as np

from bert_jax.config.corpora import CleaningConfig
from bert_jax.config.json_form import to_dict
from bert_jax.files import sealed
from bert_jax.tokenization.tokenizer import load_tokenizer

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
        self.document_sentences = np.concatenate([[0], np.cumsum([len(document) for document in documents])]).astype(
            np.int64
        )
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
