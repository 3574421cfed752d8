"""The probing tasks that files make: trees, columns of tags, spans, or any text, by the end of their names."""

import collections
import os
from collections.abc import Iterable

from bert_jax.analysis.probing.probing_task import PARTS, ProbingTask, joined
from bert_jax.analysis.probing.span_tasks import span_task
from bert_jax.analysis.probing.text_tasks import text_tasks
from bert_jax.analysis.probing.treebank_tasks import Part, column_tasks, tree_tasks
from bert_jax.analysis.text_sample import texts_of
from bert_jax.data.corpus.readers import find_sources
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel

COLUMNS = (".conll", ".iob", ".bio", ".train", ".testa", ".testb")
"""Ends of the names of files with a word and its tags per line; .train, .testa and .testb are those of CoNLL-2003."""


def read_probing_tasks(
    model: PretrainedModel,
    input: str,
    *,
    dev: str = "",
    test: str = "",
    tasks: Iterable[str] = (),
    columns: dict[str, int] | None = None,
    texts: int = 2_000,
    seed: int = 0,
    text_field: str = "text",
) -> list[ProbingTask]:
    """Return the tasks that files make.

    Args:
      model: whose tokenizer says what a piece is.
      input: files, separated by commas: *.conllu (trees), *.conll and the other COLUMNS (tags), *.jsonl (spans), and
        any other (text; not tfds:).
      dev: files of the same tasks to choose penalties by; "": a part of the input.
      test: files of the same tasks to test on; "": a part of the input.
      tasks: names of those to return; none: all.
      columns: name and column, from 1, of the tags of COLUMNS; None: the last, as tags.
      texts: number of lines that text_tasks are made from, drawn at random; 0: all.
      seed: of what is drawn.
      text_field: name of the field that holds the text in JSON.

    Raises:
      UserError: a file cannot be read or makes no task of these names, or two make the same.
    """
    found: dict[str, list[ProbingTask]] = collections.defaultdict(list)
    for part, files in zip(PARTS, (input, dev, test), strict=True):
        there: set[str] = set()
        for file in filter(None, map(str.strip, files.split(","))):
            for task in _tasks_of(model, file, part, frozenset(tasks), columns, texts, seed, text_field):
                if task.name in there:
                    raise UserError(
                        f"{file}: another file of {part} gives the task {task.name!r} too; probe the two separately"
                    )
                if part != "train" and task.name not in found:
                    raise UserError(f"{file}: the input has no task {task.name!r} to train on")
                there.add(task.name)
                found[task.name].append(task)
    if missing := set(tasks) - found.keys():
        raise UserError(
            f"tasks={','.join(sorted(missing))}: {input} makes no such task; *.conllu makes pos, arc, relation and "
            "depth, text makes length, content, order, capital and subword, *.jsonl one of its own name"
        )
    return [joined(parts) for parts in found.values()]


def _tasks_of(
    model: PretrainedModel,
    file: str,
    part: Part,
    wanted: frozenset[str],
    columns: dict[str, int] | None,
    texts: int,
    seed: int,
    text_field: str,
) -> list[ProbingTask]:
    end = os.path.splitext(file)[1]
    if end == ".conllu":
        found = tree_tasks(file, part, seed)
    elif end in COLUMNS:
        found = column_tasks(file, columns or {"tags": 0}, part)
    elif end == ".jsonl":
        found = [span_task(file, part)]
    elif part != "train":
        raise UserError(f"{file}: tasks from text are divided by the seed; name only files with labels in dev and test")
    else:
        makers = text_tasks(model.need_tokenizer(), texts_of(find_sources(file), texts, seed, text_field), seed)
        return [make() for name, make in makers.items() if not wanted or name in wanted]
    return [task for task in found if not wanted or task.name in wanted]
