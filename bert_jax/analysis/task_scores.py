"""The score of a fine-tuned model in its task, whichever of its layers it has."""

import copy
import dataclasses

import numpy as np

from bert_jax.config.noise import NoiseConfig
from bert_jax.config.task_options import TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.tasks.families import family, main_metric
from bert_jax.tasks.noisy_examples import noisy_examples
from bert_jax.tasks.recorded import recorded_data, recorded_options, recorded_task


class TaskScore:
    """The main metric of a fine-tuned model on the dev set of its task: a `score` for `prune`."""

    def __init__(self, model: PretrainedModel, data: TaskDataConfig, task: str = "", batch_size: int = 32):
        """Read the dev set, as in the model's own evaluation.

        Args:
          model: the fine-tuned model.
          data: where the examples are; columns that are not given are those of the fine-tuning.
          task: name of the task; "": the one that the model records.
          batch_size: number of sequences that a model reads at once.

        Raises:
          UserError: the model has no task head or one of another kind, or the data cannot be read or have no labels.
        """
        if model.head is None:
            raise UserError(f"{model.path} has no task head to score; fine-tune it first")
        if not (task := task or recorded_task(model.history)):
            raise UserError(f"{model.path} does not say which task it is for; give --task=NAME")
        self._family, self._batch_size = family(task), batch_size
        wanted = self._family.head(task, model.head.labels).kind
        if wanted != model.head.kind:
            raise UserError(f"{model.path} has a {model.head.kind} head, but {task} needs one of {wanted}")
        files = {name: getattr(data, name) for name in ("dir", "train", "dev", "test", "tfds")}
        data = dataclasses.replace(recorded_data(model.history), **files)
        self._examples = self._family.load(task, data, "dev", model.head.labels)
        if not self._examples.has_answers:
            raise UserError(f"the dev set of {task} has no labels, so nothing can be scored; give a labelled one")
        self.examples: int = len(self._examples)
        options = recorded_options(model.history, task, model.config.longest_sequence)
        self._options = options
        self._features = self._family.features(self._examples, model.need_tokenizer(), options)
        self._metric = main_metric(task, model.head.labels)
        self.name: str = f"{task} {self._metric}"

    def __call__(self, model: PretrainedModel) -> float:
        """Return the metric of a model with the same head and tokenizer."""
        logits = model.task_scores(self._features, batch_size=self._batch_size)
        return self._family.score(self._examples, self._features, logits)[self._metric]

    def with_noise(self, model: PretrainedModel, noise: NoiseConfig, seed: int = 0) -> "TaskScore":
        """Return the same score on texts with spelling errors; raise a UserError if the task cannot have any."""
        other = copy.copy(self)
        other._examples = noisy_examples(self._examples, noise, seed)
        other._features = self._family.features(other._examples, model.need_tokenizer(), self._options)
        return other

    def input_ids(self) -> list[np.ndarray]:
        """Return the ids of every sequence that a model reads, int32 [L] each."""
        return [ids for entry in self._features.input_ids for ids in (entry if isinstance(entry, list) else [entry])]
