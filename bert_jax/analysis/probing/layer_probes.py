"""What linear probes read from each layer of a model, for several tasks, which share the states of their texts."""

import contextlib
import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Sequence

import numpy as np

from bert_jax.analysis.probing.probing_task import ProbingTask, divided, drawn_examples
from bert_jax.analysis.probing.span_states import Pieces, span_states
from bert_jax.analysis.probing.task_probes import TaskProbes, probe_task
from bert_jax.console.progress_bar import progress_bar
from bert_jax.errors import UserError
from bert_jax.models.pooling import layer_indices
from bert_jax.pretrained.model import PretrainedModel


@dataclasses.dataclass(frozen=True)
class LayerProbes:
    """Results for several tasks."""

    tasks: tuple[TaskProbes, ...]
    """The results of each, in the order asked for."""
    layers: tuple[int, ...]
    """Numbers of the R layers; 0 is the embeddings, which know no context."""
    seeds: int
    """Number of seeds, K."""
    pieces: str
    """Which pieces of a word its vector is made of: mean, first or last."""
    model: str
    """Path of the model."""


def probe(
    model: PretrainedModel,
    tasks: Sequence[ProbingTask],
    *,
    directory: str | os.PathLike[str] | None = None,
    layers: str | Sequence[int] = "all",
    pieces: Pieces = "mean",
    seeds: int = 3,
    examples: int = 5_000,
    seed: int = 0,
    batch_size: int = 32,
    max_length: int | None = None,
    progress: bool = True,
) -> LayerProbes:
    """Return what linear probes read from the frozen layers of a model.

    Each probe is trained to convergence, on standardized states, with the strength of its penalty chosen on dev, and
    scored on test. Every seed divides the texts differently and draws a different control task.

    Args:
      model: any model with a tokenizer.
      tasks: from `read_probing_tasks`, or made with `make_task`.
      directory: where the states of the examples are kept, for the next call; None: nowhere. Memory is that of the
        examples of one task in all layers, the rest is on disk.
      layers: "all", or numbers: 0 the embeddings, -1 the last.
      pieces: which pieces of a word or span represent it.
      seeds: number of seeds, 2 or more for intervals.
      examples: largest number of examples of a task and part, drawn at random.
      seed: the first of the seeds, and that of what is drawn.
      batch_size: number of texts that the model reads at once.
      max_length: tokens per text; None: as many as the model has positions.
      progress: whether to show bars.

    Raises:
      UserError: there is no such layer, a task has too few texts to divide, or an option cannot work.
    """
    if seeds < 1 or examples < 10:
        raise UserError(f"seeds={seeds} must be at least 1, and examples={examples} at least 10")
    if not tasks:
        raise UserError("there are no tasks to probe; give one or more")
    chosen = layer_indices(layers, model.config.num_layers) or (model.config.num_layers,)
    tasks = [drawn_examples(task, examples, seed) for task in tasks]
    for task in tasks:
        divided(task, seed)  # before anything that takes long
    with contextlib.ExitStack() as stack:
        place = pathlib.Path(directory or stack.enter_context(tempfile.TemporaryDirectory()))
        states = _states_of_tasks(model, tasks, place, pieces, batch_size, max_length, progress)
        move_to = stack.enter_context(progress_bar("probes", _fits(len(tasks), seeds, len(chosen)), visible=progress))
        done = 0

        def count() -> None:
            nonlocal done
            done += 1
            move_to(done)

        found = [
            probe_task(task, *of_task, chosen, range(seed, seed + seeds), count)
            for task, of_task in zip(tasks, states, strict=True)
        ]
    return LayerProbes(tuple(found), chosen, seeds, pieces, model.path)


def _fits(tasks: int, seeds: int, layers: int) -> int:
    """Return the number of probes with a chosen penalty: each layer, and the mix of several, twice."""
    return tasks * seeds * 2 * (layers + (layers > 1))


def _states_of_tasks(
    model: PretrainedModel,
    tasks: Sequence[ProbingTask],
    directory: pathlib.Path,
    pieces: Pieces,
    batch_size: int,
    max_length: int | None,
    progress: bool,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the states [N + 1, m, H] for each task, and int [n, S]: which of the m are those of its spans.

    Tasks on the same texts share them, so that the model reads a text once.
    """
    groups: dict[tuple[tuple[str, ...], bool], list[int]] = {}
    for number, task in enumerate(tasks):
        groups.setdefault((task.texts, task.pooled), []).append(number)
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for (texts, pooled), members in groups.items():
        needed = [_located(tasks[number]) for number in members]
        spans, places = np.unique(np.concatenate(needed), axis=0, return_inverse=True)
        states = span_states(
            model,
            texts,
            spans,
            directory,
            pieces="mean" if pooled else pieces,
            batch_size=batch_size,
            max_length=max_length,
            progress=progress,
        )
        parts = np.split(places.ravel(), np.cumsum([len(each) for each in needed])[:-1])
        for number, part in zip(members, parts, strict=True):
            found[number] = states, part.reshape(len(tasks[number].labels), -1)
    return [found[number] for number in range(len(tasks))]


def _located(task: ProbingTask) -> np.ndarray:
    """Return int [n · S, 3]: text, start and end of every span."""
    count = task.spans.shape[1]
    return np.concatenate([np.repeat(task.owners, count)[:, None], task.spans.reshape(-1, 2)], axis=1)
