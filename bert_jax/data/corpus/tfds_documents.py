"""Documents of a TensorFlow Datasets split, named `tfds:name[/config][:version][:split]`."""

import re
from collections.abc import Iterator
from typing import Any

from bert_jax.errors import UserError, need_extra

_NAME = re.compile(r"tfds:(?P<name>\w+(/[\w.\-]+)?(:\d+\.[\d*]+\.[\d*]+)?)(:(?P<split>.+))?")
_WIKI40B_MARKER = re.compile(r"^_START_(ARTICLE|SECTION|PARAGRAPH)_$", re.MULTILINE)


def files(name: str) -> list[tuple[str, int, str]]:
    """Return (name, bytes, full name with version) of each file of the split; download the data set first if necessary.

    Each name is one that `documents` reads, so that several workers share a split. Where it has one file, or is a part
    of a split such as `train[:1%]`, that is the name as it is given.

    Raises:
      UserError: the name is malformed, or the data set, configuration, version or split is unknown.
    """
    _, info, split = load(name)
    size, lengths = int(info.splits[split].num_bytes), info.splits[split].shard_lengths
    if split not in list(info.splits) or len(lengths) < 2:
        return [(name, size, info.full_name)]
    whole, total = f"tfds:{_parts(name)['name']}", sum(lengths)
    return [
        (f"{whole}:{split}[{number}shard:{number + 1}shard]", size * length // total, info.full_name)
        for number, length in enumerate(lengths)
    ]


def documents(name: str, text_field: str) -> Iterator[tuple[str, float]]:
    """Yield (text of an example, share of the split read by then), in stored order.

    Raises:
      UserError: as for `files`, or `text_field` is not a string feature.
    """
    dataset, info, split = load(name)
    texts = [key for key, feature in info.features.items() if _is_text(feature)]
    if text_field not in texts:
        raise UserError(
            f"{name} has no text feature {text_field!r}, but {', '.join(texts) or 'none at all'}; "
            "name one with --text_field"
        )
    total = info.splits[split].num_examples
    for index, example in enumerate(dataset.as_numpy_iterator(), start=1):
        text = example[text_field].decode("utf-8", "replace")
        yield _WIKI40B_MARKER.sub("", text).replace("_NEWLINE_", "\n"), index / total


def _parts(name: str) -> re.Match[str]:
    if match := _NAME.fullmatch(name):
        return match
    raise UserError(
        f"{name!r} is not of the form tfds:name[/config][:version][:split], for example tfds:wiki40b/en:train"
    )


def _is_text(feature: Any) -> bool:
    return getattr(feature, "shape", None) == () and feature.np_dtype in (object, str)


def load(name: str, directory: str | None = None) -> tuple[Any, Any, str]:
    """Return (tf.data.Dataset, DatasetInfo, name of the split) of `tfds:name[/config][:version][:split]`.

    `directory` is where TFDS keeps its data, None its own default. Raises UserError as `files`, and if the extra
    `tensorflow` is not installed.
    """
    parts = _parts(name)
    split = parts["split"] or "train"
    for library in ("tensorflow", "tensorflow_datasets"):
        need_extra(library, "tensorflow", name)
    import tensorflow_datasets

    try:
        loaded: Any = tensorflow_datasets.load(
            parts["name"], split=split, with_info=True, shuffle_files=False, data_dir=directory
        )
    except (ImportError, ValueError, AssertionError, OSError) as error:  # DatasetNotFoundError is a ValueError
        raise UserError(f"{name}: {str(error).strip().splitlines()[0]}") from error
    dataset, info = loaded
    return dataset, info, split
