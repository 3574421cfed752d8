"""Documents of a TensorFlow Datasets split, named `tfds:name[/config][:version][:split]`."""

import re
from collections.abc import Iterator
from typing import Any

from bert_jax.errors import UserError, need_extra

_NAME = re.compile(r"tfds:(?P<name>\w+(/[\w.\-]+)?(:\d+\.[\d*]+\.[\d*]+)?)(:(?P<split>.+))?")
_WIKI40B_MARKER = re.compile(r"^_START_(ARTICLE|SECTION|PARAGRAPH)_$", re.MULTILINE)


def describe(name: str) -> tuple[int, str]:
    """Return (bytes, full name with version) of the split; download the data set first if necessary.

    Raises:
      UserError: the name is malformed, or the data set, configuration, version or split is unknown.
    """
    _, info, split = load(name)
    return int(info.splits[split].num_bytes), info.full_name


def documents(name: str, text_field: str) -> Iterator[tuple[str, float]]:
    """Yield (text of an example, share of the split read by then), in stored order.

    Raises:
      UserError: as for `describe`, or `text_field` is not a string feature.
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


def _is_text(feature: Any) -> bool:
    return getattr(feature, "shape", None) == () and feature.np_dtype in (object, str)


def load(name: str, directory: str | None = None) -> tuple[Any, Any, str]:
    """Return (tf.data.Dataset, DatasetInfo, name of the split) of `tfds:name[/config][:version][:split]`.

    `directory` is where TFDS keeps its data, None its own default. Raises UserError as `describe`, and if the extra
    `tensorflow` is not installed.
    """
    match = _NAME.fullmatch(name)
    if not match:
        raise UserError(
            f"{name!r} is not of the form tfds:name[/config][:version][:split], for example tfds:wiki40b/en:train"
        )
    split = match["split"] or "train"
    for library in ("tensorflow", "tensorflow_datasets"):
        need_extra(library, "tensorflow", name)
    import tensorflow_datasets

    try:
        loaded: Any = tensorflow_datasets.load(
            match["name"], split=split, with_info=True, shuffle_files=False, data_dir=directory
        )
    except (ImportError, ValueError, AssertionError, OSError) as error:  # DatasetNotFoundError is a ValueError
        raise UserError(f"{name}: {str(error).strip().splitlines()[0]}") from error
    dataset, info = loaded
    return dataset, info, split
