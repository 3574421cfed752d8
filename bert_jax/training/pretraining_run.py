"""What the phases of a pre-training run share, and how the parts of it are opened."""

import dataclasses
import os

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.local_tier import LocalTier
from bert_jax.checkpoints.run_directory import open_pretraining
from bert_jax.checkpoints.workdir import WorkDirectory
from bert_jax.config import Config
from bert_jax.config.json_form import to_dict
from bert_jax.config.watching import traced_steps
from bert_jax.data.examples.corpus import Corpus
from bert_jax.devices.signals import StopSignals
from bert_jax.training.curves import draw_curves
from bert_jax.training.events import Events
from bert_jax.training.learner import Learner
from bert_jax.training.metrics import Metrics
from bert_jax.training.phase_steps import PhaseSteps
from bert_jax.training.profiler import Profiler
from bert_jax.training.trackers import trackers
from bert_jax.training.wall_time import WallTime


@dataclasses.dataclass(frozen=True)
class PretrainingRun:
    """A run whose work directory has been taken."""

    config: Config
    learner: Learner
    steps: PhaseSteps
    corpus: Corpus
    workdir: WorkDirectory
    checkpoints: Checkpoints
    metrics: Metrics
    events: Events
    signals: StopSignals
    wall_time: WallTime
    profiler: Profiler

    @property
    def name(self) -> str:
        return _name(self.config)

    def draw(self, unigram: dict[str, float] | None) -> None:
        """Draw the curves of the run into its directory, with the metrics of word frequencies alone beside them."""
        if self.workdir.is_ours():
            path, terms = self.workdir.path, self.learner.objective.terms
            draw_curves(path / "metrics.jsonl", path / "curves.png", terms, unigram, title=self.name)


def open_directory(config: Config, corpus: Corpus, learner: Learner) -> WorkDirectory:
    """Take the work directory for this run."""
    return open_pretraining(
        config.workdir,
        config,
        store_fingerprint=corpus.fingerprint,
        mixed_stores=corpus.mixed_stores,
        tokenizer=corpus.store.tokenizer(),
        own_names=learner.own_names,
        devices=list(learner.mesh.devices.flat),
    )


def open_checkpoints(config: Config, workdir: WorkDirectory, learner: Learner, events: Events) -> Checkpoints:
    """Return the checkpoints of the run in `workdir`, to be closed at its end."""
    local_path = config.checkpoint.local_path
    committed_locally = lambda step, seconds: events.write("saved_locally", step, seconds=seconds)
    return Checkpoints(
        workdir.checkpoints,
        config.checkpoint,
        run_id=workdir.run_id,
        lost=workdir.is_lost,
        best_metric=learner.main,
        committed=lambda step, seconds: events.write("saved", step, seconds=seconds),
        local=LocalTier(local_path, workdir.run_id, committed_locally) if local_path else None,
    )


def open_metrics(
    config: Config, workdir: WorkDirectory, learner: Learner, wall_time: WallTime, start_step: int
) -> Metrics:
    """Return the metrics of the run that resumes from `start_step`, to be closed at its end."""
    return Metrics(
        workdir.path,
        total_steps=config.total_steps,
        start_step=start_step,
        terms=learner.objective.terms,
        wall_time=wall_time,
        trackers=lambda: trackers(config.sinks, workdir.run_id, _name(config), to_dict(config)),
    )


def open_profiler(config: Config, workdir: WorkDirectory) -> Profiler:
    """Return what traces the steps that the options name, to be closed at the end of the run."""
    return Profiler(workdir.path, traced_steps(config.profile, config.total_steps))


def _name(config: Config) -> str:
    return os.path.basename(os.path.normpath(config.workdir))
