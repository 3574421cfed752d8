"""Documents from data sets: Parquet, Arrow, `datasets.save_to_disk`, TensorFlow Datasets, the Hugging Face hub.

Parquet and Arrow files are read batch by batch. A split of TensorFlow Datasets is named
`tfds:name[/config][:version][:split]`, one of the hub `hf://datasets/owner/name[@revision][:configuration[:split]]`.
The package datasets downloads the latter and keeps it in its cache; from version 5 on it runs no code of a data set.
"""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from etils import epath

from bert_jax import hub, progress
from bert_jax.errors import UserError, need_extra
from bert_jax.files import parse_object, read_object

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


def arrow_rows(name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet or Arrow file, values by column, as `rows_with_classes` does.

    Raises:
      UserError: pyarrow is not installed, or the file is damaged or cut short.
    """
    need_extra("pyarrow", "corpora", name, "so does 'bert_jax[hub]'")
    import pyarrow
    from pyarrow import parquet

    with _damage_reported(name, pyarrow.ArrowException), epath.Path(name).open("rb") as file:
        if ENDINGS[epath.Path(name).suffix] == "parquet":
            table = parquet.ParquetFile(file)
            schema, batches = table.schema_arrow, table.iter_batches(_BATCH_ROWS, use_threads=False)
            yield from rows_with_classes(schema, batches)
        else:
            for _, batch, _ in _arrow_batches(file, name):
                yield from rows_with_classes(batch.schema, [batch])


def rows_with_classes(schema: Any, batches: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of tables of Arrow, values by column; the numbers of classes become their names.

    The package datasets writes the names into the schema, also into that of the Parquet files of the hub. A negative
    number, as of unlabelled test sets, becomes None.
    """
    classes = _class_names(schema)
    for batch in batches:
        for row in batch.to_pylist():
            yield row | {name: _named(row[name], classes[name]) for name in classes.keys() & row.keys()}


def _class_names(schema: Any) -> dict[str, list[str]]:
    """Return the names of the classes of each column, or list of classes, that has any."""
    try:
        features = parse_object(schema.metadata[b"huggingface"])["info"]["features"].items()
    except (TypeError, LookupError, ValueError, AttributeError):  # no or other metadata
        return {}
    found = {}
    for column, feature in features:
        while isinstance(feature, dict) and "feature" in feature:
            feature = feature["feature"]
        names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            found[column] = names
    return found


def _named(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return [_named(part, names) for part in value]
    if not isinstance(value, int) or value >= len(names):
        return value
    return names[value] if value >= 0 else None


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


def hub_files(name: str) -> list[tuple[str, int, str]]:
    """Return (name, bytes, commit) of each file of a split of the hub, by default train; download it if necessary.

    Each name is one that `hub_documents` reads from the cache, so that several workers share a split.

    Raises:
      UserError: the name is malformed, or there is no such data set, revision, configuration or split.
    """
    dataset, found, info = load_hub(hub.dataset_name(name))
    whole = (info.splits or {}).get(found.split)
    lengths = [] if whole is None else whole.shard_lengths or []
    if whole is None or len(lengths) < 2:
        return [(str(found), int(dataset.data.nbytes), found.revision)]
    ends = [sum(lengths[:count]) for count in range(len(lengths) + 1)]
    return [
        (
            str(dataclasses.replace(found, split=f"{found.split}[{start}:{end}]")),
            whole.num_bytes * (end - start) // ends[-1],
            found.revision,
        )
        for start, end in zip(ends, ends[1:], strict=False)
    ]


def hub_documents(name: str, text_field: str, start: int) -> Iterator[tuple[str, float]]:
    """Yield (text of a row, share of the split read by then) from row `start` on.

    Raises:
      UserError: as for `hub_files`; or there is no column `text_field`, or a row of it holds no text.
    """
    dataset, _, _ = load_hub(hub.dataset_name(name))
    _check_schema(name, dataset.features.arrow_schema, text_field)
    column, rows = dataset.select_columns([text_field]).with_format("arrow"), len(dataset)
    for first in range(start, rows, _BATCH_ROWS):
        for index, text in enumerate(column[first : first + _BATCH_ROWS][text_field].to_pylist(), start=first):
            if not isinstance(text, str):
                raise UserError(
                    f"{name}: row {index}: the column {text_field!r} holds {text!r:.40}, not a string; name another "
                    "column with --text_field"
                )
            yield text, (index + 1) / rows


def load_hub(name: hub.HubName, split: str = "") -> tuple[Any, hub.HubName, Any]:
    """Return (datasets.Dataset, the name with commit, configuration and split, DatasetInfo) of a split of the hub.

    Args:
      name: the data set.
      split: the split, instead of that in the name; both empty: train.

    Raises:
      UserError: as for `hub_files`, or the extra `hub` is not installed.
    """
    for library in ("huggingface_hub", "datasets"):
        need_extra(library, "hub", str(name))
    name = dataclasses.replace(hub.pinned(name), split=split or name.split or "train")
    with _hub_errors_told(name), _bars_where_people_look():
        builder = _builder(dataclasses.replace(name, split=""))
        dataset = builder.as_dataset(split=name.split)
    return dataset, dataclasses.replace(name, configuration=builder.config.name), builder.info


@functools.lru_cache(maxsize=4)
def _builder(name: hub.HubName) -> Any:
    """Return the builder of a configuration at a commit, once its files are in the cache, wherever they come from."""
    import datasets

    if name.configuration and (found := _in_cache(name)) is not None:
        return found
    builder = datasets.load_dataset_builder(
        f"{hub.DATASETS}{name.repository}", name.configuration or None, revision=name.revision
    )
    if builder.hash != name.revision:  # without a network, the newest in the cache, of whichever commit
        if (found := _in_cache(name)) is None:
            raise UserError(
                f"{name} is not in the cache of this machine, and the hub cannot be reached; start this once with a "
                "network"
            )
        return found
    builder.download_and_prepare()
    return builder


def _in_cache(name: hub.HubName) -> Any:
    """Return the builder of a configuration that the cache holds as of this commit; None if it does not.

    Raises:
      UserError: no configuration was named, and it holds several.
    """
    from datasets.config import HF_DATASETS_CACHE
    from datasets.naming import camelcase_to_snakecase
    from datasets.packaged_modules.cache.cache import Cache

    owner, _, own = name.repository.partition("/")
    place = epath.Path(HF_DATASETS_CACHE) / f"{owner}___{camelcase_to_snakecase(own)}"
    found = sorted(place.glob(f"{name.configuration or '*'}/*/{name.revision}/dataset_info.json"))
    if not found:
        return None
    *_, configuration, version, _, _ = found[0].parts
    if len(found) > 1:
        names = ", ".join(file.parts[-4] for file in found)
        raise UserError(f"{name} has several configurations in the cache ({names}); name one: {name.repository}:NAME")
    return Cache(
        dataset_name=own, config_name=configuration, version=version, hash=name.revision, repo_id=name.repository
    )


@contextlib.contextmanager
def _bars_where_people_look() -> Iterator[None]:
    """Let the package datasets show its bars on a terminal and in a notebook only, as this package does."""
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if progress.are_seen() or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


@contextlib.contextmanager
def _hub_errors_told(name: hub.HubName) -> Iterator[None]:
    """Turn the errors of datasets within the block, and those of the package that downloads for it, into UserErrors."""
    with hub.errors_told(name):
        try:
            yield
        except Exception as error:
            if type(error).__module__.split(".")[0] != "datasets" and not isinstance(error, (ValueError, RuntimeError)):
                raise
            cause = error.__cause__ if type(error).__name__ == "DatasetGenerationError" else None
            said = " ".join(str(cause or error).partition("Example of usage")[0].split())
            way_out = f"; name it after a colon, as in {name.repository}:NAME" if "Config name" in said else ""
            raise UserError(f"{name}: {said:.300}{way_out}") from error
