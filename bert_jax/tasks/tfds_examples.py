"""Examples of a TFDS dataset as plain dicts, for every task family.

TensorFlow Datasets is imported at the first call, by `data/corpus/tfds_documents.py`. A family reads its split thus:

    for example in tfds_examples.examples("squad/v1.1", tfds_examples.split_name(data, split), data.tfds_dir):
        example["question"]                  # str
            example["answers"]["answer_start"]   # list[int]; a Sequence of a dict becomes a dict of lists

    for example in tfds_examples.examples("conll2003", "train"):
        example["tokens"], example["ner"]    # list[str], list[str]: the names of the classes, not their numbers
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bert_jax.config.task_options import TaskDataConfig
from bert_jax.data.corpus import tfds_documents
from bert_jax.errors import UserError

_SPLITS = {"dev": "validation", "dev_mismatched": "validation_mismatched"}


def split_name(data: TaskDataConfig, split: str) -> str:
    """Return the dataset's name of a split: `--data.train` and the like if given (even `train[:90%]`), or the usual."""
    return getattr(data, split, "") or _SPLITS.get(split, split)


def splits(name: str, data: TaskDataConfig, called: Mapping[str, str]) -> tuple[str, ...]:
    """Return those splits of `called`, which maps them to the dataset's names, that it has or that `data` asks for."""
    _, info, _ = tfds_documents.load(f"tfds:{name}:{split_name(data, 'train')}", data.tfds_dir or None)
    return tuple(split for split, theirs in called.items() if getattr(data, split, "") or theirs in info.splits)


def examples(name: str, split: str, directory: str = "") -> Iterator[dict[str, Any]]:
    """Yield the examples of `name[/config][:version]` in stored order; download it first if necessary.

    Values are str, int, float, bool, lists and dicts of them. A ClassLabel becomes the name of its class, or None for
    -1, with which TFDS marks the unlabelled test sets of GLUE. Bytes must be UTF-8.

    Raises:
      UserError: raised by the call itself: the dataset, configuration or split is unknown, or TensorFlow Datasets is
        missing.
    """
    dataset, info, _ = tfds_documents.load(f"tfds:{name}:{split}", directory or None)
    return _plain_examples(dataset, info.features, f"{name}, split {split}")


def _plain_examples(dataset: Any, features: Any, source: str) -> Iterator[dict[str, Any]]:
    for index, example in enumerate(dataset.as_numpy_iterator()):
        try:
            yield _plain(features, example)
        except UnicodeDecodeError:
            raise UserError(f"{source}, example {index}: not UTF-8") from None


def _plain(feature: Any, value: Any) -> Any:
    """Return `value` in plain types; `feature` says which numbers are classes."""
    while not isinstance(value, dict) and hasattr(feature, "feature"):
        feature = feature.feature  # a Sequence, whose values are arrays or ragged tensors
    if isinstance(value, dict):
        fields = getattr(feature, "feature", feature)
        return {key: _plain(fields[key], part) for key, part in value.items()}
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, np.ndarray) and value.ndim or isinstance(value, list):
        return [_plain(feature, part) for part in value]
    if to_list := getattr(value, "to_list", None):
        return [_plain(feature, part) for part in to_list()]
    value = value.item() if hasattr(value, "item") else value
    if hasattr(feature, "int2str"):
        return feature.int2str(value) if value >= 0 else None
    return value
