"""Files of tagged words, and a tokenizer that cuts some of them."""

import dataclasses

import numpy as np

from bert_jax.config.finetuning import TaggingDataConfig
from bert_jax.models.task import without_edges
from bert_jax.tasks import ner
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.tokenization.wordpiece import WordPiece

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Ann", "Bo", "##b", "lives", "in", "New", "York", ".", "##s"]
TOKENIZER = Tokenizer(WordPiece(PIECES, lowercase=False))
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
