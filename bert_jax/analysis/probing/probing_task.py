"""What a probe is trained on: labels of words, pairs of words, spans or whole texts, from whatever source."""

import dataclasses
from typing import Literal

import numpy as np

from bert_jax.errors import UserError

PARTS = ("train", "dev", "test")


@dataclasses.dataclass(frozen=True)
class ProbingTask:
    """T texts, and n examples in them: each is one or two spans of characters and a label."""

    name: str
    """What the task is called in results and pictures."""
    texts: tuple[str, ...]
    """The texts that the model reads."""
    parts: np.ndarray
    """int [T]: the place in PARTS of the file that each text is from."""
    owners: np.ndarray
    """int [n]: the text of each example."""
    spans: np.ndarray
    """int [n, S, 2]: (start, end) characters of the S = 1 or 2 spans of each example."""
    labels: np.ndarray
    """[n]: classes, as str, or numbers to estimate, float64."""
    types: np.ndarray
    """str [n]: what the control task assigns a label to, such as the word itself."""
    pooled: bool = False
    """Whether an example is a whole text, whose vector is the mean of its pieces."""

    @property
    def regression(self) -> bool:
        """Whether the labels are numbers to estimate."""
        return self.labels.dtype.kind == "f"

    def chosen(self, examples: np.ndarray) -> "ProbingTask":
        """Return the task with only these examples, int or bool [n]."""
        fields = ("owners", "spans", "labels", "types")
        return dataclasses.replace(self, **{name: getattr(self, name)[examples] for name in fields})


def make_task(
    name: str,
    texts: list[str],
    examples: list[tuple[int, tuple[tuple[int, int], ...], str | float, str]],
    part: Literal["train", "dev", "test"] = "train",
    pooled: bool = False,
) -> ProbingTask:
    """Return a task of examples (number of the text, spans, label, type), see ProbingTask.

    Raises:
      UserError: there is no example, or a span is not inside its text.
    """
    if not examples:
        raise UserError(f"the probing task {name} has no examples in {len(texts):,} texts ({part}); give more texts")
    owners, spans, labels, types = zip(*examples, strict=True)
    for owner, each in zip(owners, spans, strict=True):
        for start, end in each:
            if not 0 <= start < end <= len(texts[owner]):
                raise UserError(
                    f"the probing task {name}: the characters {start} to {end} are not in text {owner}, which has "
                    f"{len(texts[owner])}"
                )
    return ProbingTask(
        name,
        tuple(texts),
        np.full(len(texts), PARTS.index(part)),
        np.array(owners),
        np.array(spans).reshape(len(examples), -1, 2),
        np.array(labels, np.float64 if isinstance(labels[0], float) else np.str_),
        np.array(types),
        pooled,
    )


def joined(tasks: list[ProbingTask]) -> ProbingTask:
    """Return the parts of one task as a whole.

    Raises:
      UserError: the labels are all the same, so that there is nothing to tell apart, or some parts have pairs of spans.
    """
    if len({task.spans.shape[1] for task in tasks}) > 1:
        raise UserError(
            f"the probing task {tasks[0].name}: some of its files have one span per example and some two; give one kind"
        )
    offsets = np.cumsum([0, *(len(task.texts) for task in tasks)])[:-1]
    whole = dataclasses.replace(
        tasks[0],
        texts=sum((task.texts for task in tasks), ()),
        parts=np.concatenate([task.parts for task in tasks]),
        owners=np.concatenate([task.owners + offset for task, offset in zip(tasks, offsets, strict=True)]),
        **{name: np.concatenate([getattr(task, name) for task in tasks]) for name in ("spans", "labels", "types")},
    )
    labels = whole.labels[whole.parts[whole.owners] == 0]
    if len(np.unique(labels)) < 2:
        raise UserError(
            f"the probing task {whole.name}: all {len(labels):,} examples to train on have the same label "
            f"{str(labels[0])!r}; a probe needs two classes or more"
        )
    return whole


def drawn_examples(task: ProbingTask, most: int, seed: int) -> ProbingTask:
    """Return the task with at most `most` examples of each part, drawn at random."""
    random, kept = np.random.default_rng([seed, 0]), []
    for part in range(len(PARTS)):
        there = np.flatnonzero(task.parts[task.owners] == part)
        kept.append(there if len(there) <= most else random.choice(there, most, replace=False))
    return task.chosen(np.sort(np.concatenate(kept)))


SHARE = 0.15  # of the texts to train on, for dev and for test where there is no file of them
SUBSAMPLE = 0.8  # of the texts to train on, where dev and test have files, so that seeds differ


def divided(task: ProbingTask, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the numbers of the examples to train on, to choose by, and to test on; no text is in two of them.

    Where dev or test has no file, a seed draws 15 % of the other texts for it. Where both have one, it draws 80 % of
    the texts to train on. So the results of several seeds differ by the texts that a probe is trained on.

    Raises:
      UserError: a part has no examples.
    """
    parts = np.full(len(task.texts), -1)
    there = np.unique(task.owners)
    parts[there] = task.parts[there]
    missing = [part for part in (1, 2) if not (parts == part).any()]
    order = np.random.default_rng([seed, 1]).permutation(np.flatnonzero(parts == 0))
    size = round(SHARE * len(order))
    for number, part in enumerate(missing):
        parts[order[number * size : (number + 1) * size]] = part
    if not missing:
        parts[order[round(SUBSAMPLE * len(order)) :]] = -1
    of_examples = parts[task.owners]
    train, dev, test = (np.flatnonzero(of_examples == part) for part in range(len(PARTS)))
    if not min(len(train), len(dev), len(test)):
        raise UserError(
            f"the probing task {task.name} has examples in {len(there)} texts, too few to divide into train, dev and "
            "test; give more texts"
        )
    return train, dev, test


def control_labels(task: ProbingTask, seed: int) -> np.ndarray:
    """Return the labels [n] of a control task (Hewitt and Liang 2019): one per type, whatever the context.

    Each type gets a label drawn from those of all examples, so the shares of the classes are the same in expectation.
    """
    _, types = np.unique(task.types, return_inverse=True)
    return np.random.default_rng([seed, 2]).choice(task.labels, types.max() + 1)[types]
