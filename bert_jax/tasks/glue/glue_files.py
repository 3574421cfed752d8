"""GLUE's files in the benchmark's download: their names and their quirks."""

import dataclasses
from collections.abc import Iterable

from absl import logging
from etils import epath

from bert_jax.errors import UserError
from bert_jax.tasks import table_rows
from bert_jax.tasks.glue.facts import COLA_COLUMNS, GLUE_TASKS, LABELLED_DIAGNOSTICS
from bert_jax.tasks.sentence_examples import Record

MRPC_TRAIN, MRPC_TEST = "msr_paraphrase_train.txt", "msr_paraphrase_test.txt"  # Microsoft's own files
_MRPC_DEV_IDS = "dev_ids.tsv"  # ids of the training pairs that GLUE holds out
_BROKEN_SHARE = 0.01


def names(task: str, split: str) -> list[str]:
    """Return the original names of a split's file, below --data.dir or the task's directory in it, best first."""
    if task == "mnli":
        files = [f"{split}.tsv" if split == "train" or split.endswith("_mismatched") else f"{split}_matched.tsv"]
    elif task == "ax":
        files = [{"dev": "diagnostic-full.tsv", "test": "diagnostic.tsv"}[split]]
    else:
        files = [f"{split}.tsv"]
    if task == "mrpc":
        files.append(MRPC_TEST if split == "test" else MRPC_TRAIN)
    return [f"{place}{file}" for file in files for place in ("", *(f"{name}/" for name in GLUE_TASKS[task].names))]


def read(task: str, file: epath.Path, split: str, by_original_name: bool = True) -> list[Record]:
    """Return the examples of one file, with their labels as spelled there.

    Skipped and counted: rows of MNLI on which the annotators disagreed (label "-"), and up to 1 % of rows in QQP's
    training and dev files, which are broken in the benchmark itself.

    Args:
      by_original_name: whether msr_paraphrase_train.txt is split into train and dev as GLUE does.

    Raises:
      UserError: the header is missing, a row has the wrong number of columns or an empty text, or the file is not
        UTF-8; names file and line.
    """
    layout, lines = _layout(
        task, file, list(table_rows.tsv(table_rows.read_text(file))), labelled=not split.startswith("test")
    )
    problems, records = [], []
    for number, fields in lines:
        where = f"{file}, line {number}"
        if problem := layout.problem(fields, empty_allowed=split.startswith("test")):
            problems.append(f"{where}: {problem}")
        else:
            records.append(layout.record(fields, where, str(len(records))))
    check_broken(task, split, str(file), problems, len(lines))
    if task == "mnli":
        records = _agreed(file, records)
    if by_original_name and file.name == MRPC_TRAIN:
        records = _part(file, records, lines, layout, split)
    if not records:
        raise UserError(f"{file} holds no example of {task} {split}")
    return records


def empty_text(columns: Iterable[tuple[str, str]]) -> str | None:
    """Return what is wrong with a row of these (name, text) pairs if a text is empty."""
    return next((f"the text in column {name!r} is empty" for name, text in columns if not text.strip()), None)


def check_broken(task: str, split: str, source: str, problems: list[str], total: int) -> None:
    """Raise a UserError if any of `total` rows is broken; only warn about up to 1 % of QQP's train and dev."""
    if problems and (task != "qqp" or split == "test"):
        raise UserError(problems[0])
    if len(problems) > _BROKEN_SHARE * total:
        raise UserError(
            f"{problems[0]}; {len(problems):,} of {total:,} rows are broken, although only a few of the original are"
        )
    if problems:
        logging.warning("%s: %d of %d rows skipped, the first: %s", source, len(problems), total, problems[0])


@dataclasses.dataclass(frozen=True)
class _Layout:
    """The columns of a file and their contents."""

    header: tuple[str, ...]
    texts: tuple[int, ...]
    label: int | None
    index: int | None

    def problem(self, fields: list[str], empty_allowed: bool) -> str | None:
        """Return what is wrong with a row, if anything."""
        if len(fields) != len(self.header):
            return f"{len(fields)} columns, expected {len(self.header)} ({', '.join(self.header)})"
        return None if empty_allowed else empty_text((self.header[column], fields[column]) for column in self.texts)

    def record(self, fields: list[str], where: str, position: str) -> Record:
        texts = [fields[column] for column in self.texts]
        label = None if self.label is None else fields[self.label].strip() or None
        return Record(
            where,
            texts[0],
            texts[1] if len(texts) > 1 else None,
            label,
            position if self.index is None else fields[self.index],
        )


def _layout(
    task: str, file: epath.Path, lines: list[table_rows.Row], labelled: bool
) -> tuple[_Layout, list[table_rows.Row]]:
    """Return the layout of a file, and its rows below the header."""
    if not lines:
        raise UserError(f"{file} is empty")
    spec, header, top = GLUE_TASKS[task], tuple(lines[0][1]), f"{file}, line {lines[0][0]}"
    texts, label = spec.columns, spec.label
    if task == "ax" and set(LABELLED_DIAGNOSTICS) <= set(header):
        *texts, label = LABELLED_DIAGNOSTICS
    if set(texts) <= set(header):
        lines = lines[1:]
    elif task == "cola":
        header = COLA_COLUMNS
    else:
        shown = ", ".join(repr(name[:30]) for name in header[:12])
        raise UserError(
            f"{top}: no header with {' and '.join(map(repr, texts))}, but {shown}; "
            "the benchmark's own file begins with a line of column names (the task text reads other formats)"
        )
    if labelled and label not in header:
        raise UserError(
            f"{top}: no column {label!r} among {', '.join(header)}: examples for training or evaluation need labels"
        )
    index = next((header.index(name) for name in ("index", "id") if name in header), None)
    return _Layout(
        header, tuple(map(header.index, texts)), header.index(label) if label in header else None, index
    ), lines


def _agreed(file: epath.Path, records: list[Record]) -> list[Record]:
    kept = [record for record in records if record.label != "-"]
    if len(kept) < len(records):
        skipped = len(records) - len(kept)
        logging.warning(
            "%s: %d of %d rows skipped because their annotators disagreed (label -)", file, skipped, len(records)
        )
    return kept


def _part(
    file: epath.Path, records: list[Record], lines: list[table_rows.Row], layout: _Layout, split: str
) -> list[Record]:
    """Return those of Microsoft's training pairs of MRPC that GLUE trains on, or those that it holds out as dev."""
    ids = file.parent / _MRPC_DEV_IDS
    if not ids.exists():
        raise UserError(
            f"{file} needs {ids}, the list of the pairs that GLUE holds out as dev; or give --data.train and --data.dev"
        )
    held_out = {tuple(fields) for _, fields in table_rows.tsv(table_rows.read_text(ids))}
    columns = [layout.header.index(name) for name in ("#1 ID", "#2 ID")]
    pairs = (tuple(fields[column] for column in columns) for _, fields in lines)
    kept = [record for record, pair in zip(records, pairs, strict=True) if (pair in held_out) == (split == "dev")]
    return [record._replace(index=str(position)) for position, record in enumerate(kept)]
