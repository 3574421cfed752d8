"""Small vocabularies and tokenizers, and words with tags."""

import dataclasses
import functools
import pathlib
import tempfile

import documents
import numpy as np
import sentencepiece

from bert_jax.config.tasks import TaggingDataConfig
from bert_jax.data.preparation.vocabularies import learn_modernbert
from bert_jax.models.task import without_edges
from bert_jax.tasks import ner
from bert_jax.tokenization.byte_level import learn_byte_level
from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer
from bert_jax.tokenization.wordpiece import WordPiece

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdeé中"
TOKENIZER = Tokenizer(
    WordPiece([*SPECIALS, *LETTERS, *("##" + c for c in LETTERS), "ab", "##cd", "bad", *".,()-'"], True)
)


@functools.cache
def byte_level(spaced: bool = True) -> Tokenizer:
    """`spaced` False: as RoBERTa's own, which read the beginning of a text as if no space preceded it."""
    return Tokenizer(dataclasses.replace(learn_byte_level(_words(), 400), spaced=spaced))


@functools.cache
def modernbert() -> Tokenizer:
    """ModernBERT's form, whose text is composed first; some words are decomposed in the corpus."""
    return learn_modernbert([*_words(), *["Cafe\u0301", "na\u00efve"] * 20], 400)


@functools.cache
def mpnet() -> Tokenizer:
    """MPNet's form: names of RoBERTa around the entries of BERT, of which the unknown word alone is a special token."""
    with tempfile.TemporaryDirectory() as place:
        lines = ["<s>", "<pad>", "</s>", "<unk>", *TOKENIZER.tokens, "<mask>"]
        pathlib.Path(place, "vocab.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        pathlib.Path(place, "config.json").write_text('{"model_type": "mpnet"}')
        return load_tokenizer(place)


def _words() -> list[str]:
    return [word for document in documents.documents(60) for word in document.split()]


def foreign_model(path, sentences=("the cat sat on the mat",) * 50, **options):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_prefix=str(path),
        minloglevel=2,
        hard_vocab_limit=False,
        **{"vocab_size": 24, **options},
    )
    return path.with_name(path.name + ".model")


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Ann", "Bo", "##b", "lives", "in", "New", "York", ".", "##s"]
TAGGED_TOKENIZER = Tokenizer(WordPiece(PIECES, lowercase=False))
FOUR_COLUMNS = """-DOCSTART- -X- O O

Ann NNP B-NP I-PER
Bob NNP I-NP B-PER
lives VBZ B-VP O

New NNP B-NP I-LOC
Yorks NNP I-NP I-LOC

-DOCSTART- -X- O O

in IN B-PP O
"""


def write(path, text, name="train.txt"):
    (path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return TaggingDataConfig(dir=str(path))


def load(path, text, split="train", labels=None, **options):
    data = dataclasses.replace(write(path, text, f"{split}.txt"), **options)
    return ner.load("ner", data, split, labels)


def one_hot(features, classes):
    rows = [without_edges(labels)[0] for labels in features.labels]
    return [np.where(np.arange(classes) == row[:, None], 1.0, 0.0).astype(np.float32) for row in rows]
