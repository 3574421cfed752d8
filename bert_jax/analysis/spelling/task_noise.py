"""The score of a fine-tuned model while the texts of its dev set get spelling errors."""

import dataclasses
from collections.abc import Iterable

import numpy as np

from bert_jax.analysis.spelling.spelling_noise import RATES, spelling_noises
from bert_jax.analysis.task_scores import TaskScore
from bert_jax.config.noise import EDITS, ErrorUnit
from bert_jax.config.task_options import TaskDataConfig
from bert_jax.console.progress_bar import progress_bar
from bert_jax.pretrained.model import PretrainedModel


@dataclasses.dataclass(frozen=True)
class TaskNoise:
    """The score at each of R rates of errors."""

    rates: np.ndarray
    """float64 [R]: the rates asked for."""
    score: np.ndarray
    """float64 [R]: main metric of the task."""
    pieces: np.ndarray
    """float64 [R]: mean number of pieces per example, special tokens included, as far as the model reads."""
    unknown: np.ndarray
    """float64 [R]: share of the unknown piece among them."""
    metric: str
    """Names of the task and its metric."""
    examples: int
    """Number of examples."""
    model: str
    """Path of the model."""


def task_noise(
    model: PretrainedModel,
    data: TaskDataConfig,
    *,
    rates: Iterable[float] = RATES,
    per: ErrorUnit = "character",
    kinds: Iterable[str] = EDITS,
    task: str = "",
    seed: int = 0,
    batch_size: int = 32,
    progress: bool = True,
) -> TaskNoise:
    """Return the score of a fine-tuned model while its texts get errors; texts are cut as in its own evaluation.

    Args:
      model: a fine-tuned model.
      data: where the dev set is, such as TaskDataConfig(dev="dev.tsv"); columns are those of the fine-tuning.
      rates: probabilities of an edit, ascending; see NoiseConfig, also for `per` and `kinds`.
      per: what the rates count, letters and digits ("character") or words ("word").
      kinds: edits to draw from.
      task: name of the task; "": the one that the model records.
      seed: of the errors.
      batch_size: number of sequences that the model reads at once.
      progress: whether to show a bar.

    Raises:
      UserError: the model has no task head, the data cannot be read or have no labels, an option that cannot work, or
        the answers of the task are places in the text (SQuAD).
    """
    noises = spelling_noises(rates, per, kinds)
    clean, scores, pieces, unknown = TaskScore(model, data, task, batch_size), [], [], []
    with progress_bar("rates", len(noises), visible=progress) as move_to:
        for number, each in enumerate(noises):
            noisy = clean.with_noise(model, each, seed)
            ids = np.concatenate(noisy.input_ids())
            scores.append(noisy(model))
            pieces.append(len(ids) / clean.examples)
            unknown.append(np.mean(ids == model.need_tokenizer().unk_id))
            move_to(number + 1)
    return TaskNoise(
        rates=np.array([each.rate for each in noises]),
        score=np.array(scores),
        pieces=np.array(pieces),
        unknown=np.array(unknown),
        metric=clean.name,
        examples=clean.examples,
        model=model.path,
    )
