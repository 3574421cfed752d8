"""The score of a pre-trained model in a task: that of its fine-tuning, kept in a file once it is known."""

import dataclasses
import os
import shutil
from typing import Any

from etils import epath

from bert_jax.analysis.saved_results import model_fingerprint, save_result, saved_result
from bert_jax.config.finetuning import FinetuneConfig, task_defaults
from bert_jax.config.json_form import to_dict
from bert_jax.config.task_options import TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.finetuning.loop import finetune
from bert_jax.pretrained.model import PretrainedModel


@dataclasses.dataclass(frozen=True)
class FineTuned:
    """What fine-tuning a model reached on the dev set."""

    score: float
    """The main metric, a mean over the seeds."""
    metrics: dict[str, float]
    """All metrics of the run with the best one."""


class FineTunedScore:
    """A `score` for `prune`: a model is fine-tuned, and what it then reaches on the dev set counts.

    A result is written at once, and not computed again; a fine-tuning that was interrupted resumes where it stopped.
    The weights are not kept.
    """

    def __init__(self, task: str, data: TaskDataConfig, directory: str | os.PathLike[str], **options: Any):
        """Take a task, its files, a directory for the results, and fields of FinetuneConfig."""
        self._config: FinetuneConfig = dataclasses.replace(task_defaults(task), data=data, **options)
        self._directory = epath.Path(directory)
        self.name: str = f"{task}, fine-tuned"

    def __call__(self, model: PretrainedModel) -> float:
        """Return the main metric after fine-tuning `model`."""
        fingerprint = model_fingerprint(model)
        key = {"model": fingerprint, "config": to_dict(self._config)}
        place = self._directory / f"{model.config.num_layers}_layers_{fingerprint[:12]}"
        file = place.parent / f"{place.name}.json"
        found = saved_result(file, key, FineTuned)
        if found is None:
            found = self._trained(model, place)
            save_result(file, key, found)
            shutil.rmtree(place)
        return found.score

    def _trained(self, model: PretrainedModel, place: epath.Path) -> FineTuned:
        if not (place / "model").exists():
            model.save(place / "model")
        length = min(self._config.options.max_length, model.config.longest_sequence)
        config = dataclasses.replace(
            self._config,
            init_from=os.fspath(place / "model"),
            workdir=os.fspath(place / "run"),
            options=dataclasses.replace(self._config.options, max_length=length),
        )
        result = finetune(config)
        if result.exit_code:
            raise SystemExit(result.exit_code)
        if not result.results:
            raise UserError(f"fine-tuning in {result.path} left no result; start the same command again")
        mean = result.results["settings"][0]["mean"][result.results["main_metric"]]
        return FineTuned(mean, result.results["metrics"])
