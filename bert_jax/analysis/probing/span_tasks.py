"""Probing tasks on labelled spans and pairs of spans, from JSON lines: edge probing (Tenney et al. 2019).

Each line is {"text": "The cat sat", "targets": [{"span1": [0, 2], "span2": [2, 3], "label": "agent"}, …]}, the form of
jiant's data. Spans are words, split at spaces: the number of the first, and that behind the last. All targets of a file
have one span, or all have two.
"""

import os
from typing import Any

from bert_jax.analysis.probing.probing_task import ProbingTask, make_task
from bert_jax.analysis.probing.treebank_tasks import Part, spaced
from bert_jax.errors import UserError
from bert_jax.tasks import table_rows

FORM = '{"text": …, "targets": [{"span1": [0, 2], "label": …}, …]}'


def span_task(file: str, part: Part = "train") -> ProbingTask:
    """Return the task of a file, by whose name it is called. The control goes by the words of the spans.

    Raises:
      UserError: the file is not of this form, or a span is not inside its text. Names file and line.
    """
    texts, examples, pairs = [], [], None
    for line, row in table_rows.json_lines(table_rows.read_text(file), file):
        place = f"{os.fspath(file)}, line {line}"
        if not isinstance(row.get("text"), str) or not isinstance(row.get("targets"), list):
            raise UserError(f"{place}: expected {FORM}, not {str(row)[:60]}")
        words = row["text"].split()
        text, of_words = spaced(words)
        for target in row["targets"]:
            label, spans = _target(place, target, len(words))
            pairs = len(spans) if pairs is None else pairs
            if len(spans) != pairs:
                raise UserError(f"{place}: a target with {len(spans)} spans, but earlier targets have {pairs}")
            characters = tuple((of_words[low][0], of_words[high - 1][1]) for low, high in spans)
            kind = " | ".join(" ".join(words[low:high]) for low, high in spans)
            examples.append((len(texts), characters, label, kind))
        texts.append(text)
    return make_task(os.path.basename(file).partition(".")[0], texts, examples, part)


def _target(place: str, target: Any, words: int) -> tuple[str, list[tuple[int, int]]]:
    """Return the label and the one or two spans of a target."""
    if not isinstance(target, dict) or not isinstance(target.get("label"), str) or "span1" not in target:
        raise UserError(f"{place}: expected a target with span1 and one label, a string; found {str(target)[:80]}")
    spans = []
    for name in ("span1", "span2"):
        if name not in target:
            continue
        span = target[name]
        if not (isinstance(span, list) and len(span) == 2 and all(type(each) is int for each in span)):
            raise UserError(
                f"{place}: {name}={span!r} must be two numbers: that of the first word, and that of the word after "
                "the last"
            )
        if not 0 <= span[0] < span[1] <= words:
            raise UserError(f"{place}: {name}={span} is not inside the text of {words} words, which are counted from 0")
        spans.append((span[0], span[1]))
    return target["label"], spans
