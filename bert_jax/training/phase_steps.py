"""The compiled step of each phase of a run."""

from bert_jax.config import Phase, resolve_stages
from bert_jax.devices.compiler_options import step_options
from bert_jax.training.learner import Learner
from bert_jax.training.program import Program


class PhaseSteps:
    """Makes the step of each phase, and of each batch size in it, once.

    One that has been compiled is kept when a rollback comes back to its phase.

    Args:
      learner: what is trained.
    """

    def __init__(self, learner: Learner):
        self._learner = learner
        self._programs: dict[tuple[int, int], Program] = {}

    def of(self, phase: Phase) -> Program:
        """Return the step of `phase`."""
        key = phase.index, phase.batch_size
        if key not in self._programs:
            learner = self._learner
            options = step_options(learner.config.compute, learner.mesh)
            self._programs[key] = Program(learner.train_step(phase), learner.frozen, options)
        return self._programs[key]

    def begin(self, step: int) -> None:
        """Compile what a run continues with after `step`, in a thread, while it restores its state and opens its files.

        A run that then resumes from a different step has compiled in vain, and compiles again.
        """
        for phase in resolve_stages(self._learner.config):
            if step < phase.end:
                self.of(phase).begin(self._learner.abstract, self._learner.abstract_batch(phase))
                return
