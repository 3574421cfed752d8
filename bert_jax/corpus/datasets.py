"""Documents from data sets: Parquet and Arrow files, `datasets.save_to_disk` directories, TensorFlow Datasets.

Parquet and Arrow files are read batch by batch. A split of TensorFlow Datasets is named
`tfds:name[/config][:version][:split]`.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from etils import epath

from bert_jax.errors import UserError, need_extra
from bert_jax.files import read_object

BEGINNINGS = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow"}
ENDINGS = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}

_BATCH_ROWS = 256


def saved_dataset(directory: epath.Path) -> list[epath.Path] | None:
    """Return the files of a directory that `datasets.save_to_disk` wrote, in the order of its rows; else None.

    Raises:
      UserError: the directory holds several splits, its list of files is damaged, or a file is missing.
    """
    if (directory / "dataset_dict.json").exists():
        splits = read_object(directory / "dataset_dict.json", "save the data set again").get("splits")
        names = ", ".join(map(str, splits)) if isinstance(splits, list) else "several"
        raise UserError(f"input={directory} is a data set with the splits {names}; name one, as {directory}/train")
    state = directory / "state.json"
    if not state.exists() or not (directory / "dataset_info.json").exists():
        return None
    listed = read_object(state, "save the data set again").get("_data_files")
    if not isinstance(listed, list) or not listed:
        raise UserError(f"{state} lists no _data_files; save the data set again")
    files = []
    for entry in listed:
        name = entry.get("filename") if isinstance(entry, dict) else None
        if not isinstance(name, str) or "/" in name or "\\" in name:
            raise UserError(f"{state} lists {entry!r:.80}, which is not a file of this directory")
        if not (directory / name).exists():
            raise UserError(f"{state} lists {name}, which is not in {directory}; copy the data set again")
        files.append(directory / name)
    return files


def licence(directory: epath.Path) -> str:
    """Return the licence that `dataset_info.json` of a saved data set names, "" if there is none."""
    described = directory / "dataset_info.json"
    if not (directory / "state.json").exists() or not described.exists():
        return ""
    named = read_object(described, "save the data set again").get("license")
    return named.strip() if isinstance(named, str) else ""


def arrow_documents(name: str, format: str, text_field: str, start: int) -> Iterator[tuple[str, float]]:
    """Yield (text of a row, share of the rows or bytes read by then) from row `start` on.

    Raises:
      UserError: the file is damaged or cut short, has no column `text_field`, or that holds a value that is no text.
    """
    import pyarrow

    with _damage_reported(name, pyarrow.ArrowException), epath.Path(name).open("rb") as file:
        parts = _parquet_batches(file, name, text_field, start) if format == "parquet" else _arrow_batches(file, name)
        for number, batch, share in parts:
            _check_schema(name, batch.schema, text_field)
            if number + batch.num_rows <= start:
                continue
            for index, text in enumerate(batch.column(text_field).to_pylist(), start=number):
                if not isinstance(text, str):
                    raise UserError(
                        f"{name}: row {index}: the column {text_field!r} holds {text!r:.40}, not a string; remove the "
                        "row, or name another column with --text_field"
                    )
                if index >= start:
                    yield text, share


@contextlib.contextmanager
def _damage_reported(name: str, arrow_exception: Any) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise UserError(
            f"{name}: a batch says that it needs more memory than there is; if the file is not damaged, write it again "
            "in smaller batches"
        ) from error
    except (arrow_exception, EOFError, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk or network, not of the contents
            raise
        said = " ".join(str(error).split())
        raise UserError(f"{name} is damaged or cut short ({said:.160}); fetch or write it again") from error


def _parquet_batches(file: Any, name: str, text_field: str, start: int) -> Iterator[tuple[int, Any, float]]:
    """Yield (number of the first row, batch, share read) from the row group on that holds row `start`."""
    from pyarrow import parquet

    table = parquet.ParquetFile(file)
    _check_schema(name, table.schema_arrow, text_field)
    number, rows = 0, table.metadata.num_rows
    for group in range(table.num_row_groups):
        size = table.metadata.row_group(group).num_rows
        if number + size <= start:
            number += size
            continue
        for batch in table.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[text_field], use_threads=False):
            yield number, batch, (number + batch.num_rows) / rows
            number += batch.num_rows


def _arrow_batches(file: Any, name: str) -> Iterator[tuple[int, Any, float]]:
    """Yield (number of the first row, batch, share read) of an Arrow file or stream."""
    from pyarrow import ipc

    size = epath.Path(name).stat().length
    random_access = file.read(6) == b"ARROW1"
    file.seek(0)
    opened = ipc.open_file(file) if random_access else ipc.open_stream(file)
    batches = (opened.get_batch(i) for i in range(opened.num_record_batches)) if random_access else opened
    number = 0
    for batch in batches:
        batch.validate(full=True)  # offsets beyond the data would be read without a check
        yield number, batch, min(1.0, file.tell() / size)
        number += batch.num_rows


def _check_schema(name: str, schema: Any, text_field: str) -> None:
    from pyarrow import types

    texts = [
        field.name
        for field in schema
        if any(is_text(field.type) for is_text in (types.is_string, types.is_large_string, types.is_string_view))
        or (types.is_dictionary(field.type) and types.is_string(field.type.value_type))
    ]
    if text_field not in texts:
        raise UserError(
            f"{name}: no text column {text_field!r}, but {', '.join(texts) or 'none at all'}; name the one with the "
            "text with --text_field"
        )


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


def tfds_documents(name: str, text_field: str) -> Iterator[tuple[str, float]]:
    """Yield (text of an example, share of the split read by then), in stored order.

    Raises:
      UserError: as for `files`, or `text_field` is not a string feature.
    """
    dataset, info, split = load(name)
    scalars = {key: kind for key, kind in info.features.items() if getattr(kind, "shape", None) == ()}
    texts = [key for key, kind in scalars.items() if kind.np_dtype in (object, str)]
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
