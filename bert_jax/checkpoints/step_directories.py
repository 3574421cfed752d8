"""The directories of the steps that were saved: which there are, what each holds, and those set aside as damaged."""

import os
from typing import Any

from etils import epath

from bert_jax.checkpoints.arrays import read_arrays
from bert_jax.checkpoints.manager import STEP_NAMES
from bert_jax.checkpoints.record import check_fit, check_origin, check_unchanged, rank, read_record
from bert_jax.checkpoints.walk_back import Restored, together
from bert_jax.files import is_remote


class StepDirectories:
    """The step directories below one directory (local or gs://).

    Args:
      run_id: id in every step of the run; a step with a different id is damaged for it.
    """

    def __init__(self, directory: str | os.PathLike[str], run_id: str | None = None):
        place = os.fspath(directory)
        self.directory: epath.Path = epath.Path(place if is_remote(place) else os.path.abspath(place))
        self.run_id: str | None = run_id

    def committed(self) -> set[int]:
        """Return the committed steps; a save in progress or a failed one is not among them."""
        return {found.step for found in STEP_NAMES.find_all(self.directory)} if self.directory.is_dir() else set()

    def path(self, step: int) -> epath.Path:
        """Return the directory of a step, whether there is one or not."""
        return self.directory / STEP_NAMES.build_name(step)

    def read(self, step: int, abstract: Any) -> Restored:
        """Return one step in the shape of `abstract`, whose leaves have shardings; see `walk_back.Tier`."""
        content = together(self._record, step)
        check_fit(content, abstract, f"checkpoint of step {step} in {self.directory}")
        state = together(read_arrays, self.path(step) / "state", abstract)
        check_unchanged(content, state)
        return Restored(step, state, content["position"], content["config"], content["metrics"])

    def rank(self, step: int, best_metric: str) -> tuple[int, float] | None:
        """Return phase and loss by which steps are compared; None if the record of this one has none or is damaged."""
        try:
            return rank(self._record(step), best_metric)
        except Exception:  # a damaged record is reported by restore
            return None

    def set_aside(self, step: int) -> None:
        """Rename a refused step, so that the run can save it again; it is kept, as the fault may be temporary."""
        source = self.path(step)
        target = source.parent / f"damaged_{source.name}"
        if target.exists():
            target.rmtree()
        source.rename(target)

    def _record(self, step: int) -> dict[str, Any]:
        content = read_record(self.path(step) / "record")
        check_origin(content, step, self.run_id)
        return content
