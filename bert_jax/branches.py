"""A run that branches off from a step of another one (`branch_from`), with its moments and its place in the data.

The parent stays as it is. What its state has learned from is the branch's own past, and so has to be the same: the
model, the examples of every phase up to the step, and whatever decides what they are. What lies ahead is free:
schedule, rates, lengths and batches, and later phases.
"""

import dataclasses
import os
import re
from typing import Any

from bert_jax.checkpoints.record import Damaged, Position, check_origin, read_record
from bert_jax.checkpoints.steps import Restored, StepDirectories, unusable_step
from bert_jax.checkpoints.workdir import need, read_json, read_settings
from bert_jax.config import Config, resolve_phases
from bert_jax.config.checks import branch_point, resolve_mixtures, training_paths
from bert_jax.config.options import (
    differences,
    from_record,
    is_harmless,
    not_of_pretraining,
    options_recorded,
    resume_rule,
    to_dict,
)
from bert_jax.data.mixtures import Corpus, recorded_stores
from bert_jax.errors import UserError, first_lines
from bert_jax.ownership import need_run

SHARED = ("architecture", "objective", "optimizer", "teacher", "tokenizer_fingerprint")
"""Entries of run.json that a branch and its parent have in common. The schedule may differ."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """The step of another run that a run has branched off from, as its run.json has it."""

    path: str
    """Work directory of the parent."""
    run_id: str | None
    """That of the parent."""
    step: int

    @property
    def steps(self) -> StepDirectories:
        """Those of the parent."""
        return StepDirectories(os.path.join(os.path.expanduser(self.path), "checkpoints"), self.run_id)


def recorded_origin(run: dict[str, Any]) -> Origin | None:
    """Return where the run of a run.json has branched off; None if it began at step 0, or the entry is damaged."""
    found = run.get("branched_from")
    if not isinstance(found, dict) or type(found.get("step")) is not int:
        return None
    return Origin(str(found.get("path")), found.get("run_id"), found["step"])


@dataclasses.dataclass(frozen=True)
class Branch:
    """The step that a run branches off from."""

    path: str
    """Work directory of the parent."""
    step: int
    run: dict[str, Any]
    """Its run.json."""
    record: dict[str, Any]
    """That of the step."""
    steps: StepDirectories
    """Those of the parent."""

    @property
    def origin(self) -> Origin:
        """What run.json of the branch says of its parent."""
        return Origin(self.path, self.run["run_id"], self.step)

    @property
    def position(self) -> Position:
        """Where the parent was in its data after the step."""
        return Position.from_dict(self.record["position"])

    @property
    def fingerprint(self) -> str:
        """What must be the same on all hosts, wherever the parent's directory is."""
        return f"{self.run['run_id']} {self.step}"

    def restore(self, abstract: Any) -> Restored:
        """Return the state of the step in the shape of `abstract`, whose leaves have shardings.

        Raises:
          UserError: it is damaged, has been deleted meanwhile, or is of another model.
        """
        try:
            return self.steps.read(self.step, abstract)
        except Damaged as damage:
            raise self._refused(str(damage)) from None

    def _refused(self, problem: str) -> UserError:
        return unusable_step(self.path, self.step, self.steps, f"cannot be used ({problem})")


def open_branch(config: Config, resumed: bool) -> Branch | None:
    """Return the step that `config.branch_from` names; None without one, and for a resumed run, which ignores it.

    Its arrays are not read yet.

    Raises:
      UserError: there is no such run or step, the step is damaged, or the directory has no state to go on from.
    """
    if not config.branch_from or resumed:
        return None
    path, step = branch_point(config.branch_from)
    need_run(path)
    if os.path.realpath(os.path.expanduser(path)) == os.path.realpath(os.path.expanduser(config.workdir)):
        raise UserError(f"branch_from={config.branch_from} is the work directory of this run; give another --workdir")
    place = os.path.expanduser(path)
    run = read_json(StepDirectories(place).directory / "run.json")
    if other := not_of_pretraining(read_settings(place)) or ("a model without the state of a run" * ("source" in run)):
        raise UserError(
            f"branch_from={config.branch_from}: {path} holds {other}; give the work directory of a run of `bert-jax "
            "pretrain`, or take the parameters alone with --init_from"
        )
    run_id = need(run, "run_id", str, StepDirectories(place).directory / "run.json")
    steps = StepDirectories(os.path.join(place, "checkpoints"), run_id)
    if step not in steps.committed():
        raise unusable_step(path, step, steps, "is not there")
    try:
        record = read_record(steps.path(step) / "record")
        check_origin(record, step, run_id)
    except Damaged as damage:
        raise unusable_step(path, step, steps, f"cannot be used ({damage})") from None
    return Branch(path, step, run, record, steps)


def check_branch(branch: Branch, config: Config, corpus: Corpus, own_names: dict[str, str]) -> None:
    """Raise a UserError if a run with these options and data would not continue what the step has learned.

    Args:
      branch: the step.
      config: options of the branch, model.vocab_size included.
      corpus: what it trains on.
      own_names: see `Learner.own_names`.
    """
    where = f"the record of step {branch.step} in {branch.path}"
    before = from_record(Config, options_recorded(branch.record["config"]), where)
    phase, given = branch.position.phase, f"branch_from={config.branch_from}"
    if len(config.phases) <= phase:
        raise UserError(
            f"{given} is a step of phase {phase}, but this configuration has {len(config.phases)} phases; give the "
            "phases of that run up to it, and more behind them"
        )
    identity = corpus.identity | own_names
    lines = differences({name: branch.run.get(name) for name in SHARED}, {name: identity.get(name) for name in SHARED})
    found = differences(to_dict(before), to_dict(config))
    packed = [[each.packed for each in resolve_phases(one)[: phase + 1]] for one in (before, config)]
    lines += [line for line in found if not _may_change(line, phase, config, packed[0] == packed[1])]
    ours = _examples(config, [store.fingerprint for store in corpus.stores.values()], phase)
    lines += [
        f"phases.{number} reads other stores, or other shares of them"
        for number, pair in enumerate(zip(_examples(before, recorded_stores(branch.run), phase), ours, strict=True))
        if pair[0] != pair[1]
    ]
    if lines:
        raise UserError(
            f"{given} has learned with different settings ({first_lines(lines)}). A branch may change the schedule, "
            f"the rate, steps and batch of phase {phase}, and every later phase; take the rest from"
            f" {os.path.join(branch.path, 'config.json')}, or start from the parameters alone with --init_from"
        )
    end = resolve_phases(config)[phase].end
    if end < branch.step or config.total_steps <= branch.step:
        raise UserError(
            f"{given}: phase {phase} ends at step {end} here and the run at step {config.total_steps}, so that nothing "
            f"is left to do; give more steps than {branch.step - resolve_phases(config)[phase].begin} as "
            f"--phases.{phase}.steps, or a phase behind it"
        )


def _may_change(line: str, phase: int, config: Config, equally_packed: bool) -> bool:
    """Return whether a line of `differences` from the parent leaves the past of a branch in `phase` as it is."""
    name = line.split(": ", 1)[0]
    if name == "branch_from" or is_harmless(Config, line):
        return True
    if name.startswith("init_from"):  # of which nothing is read again
        return not config.init_from
    if name == "data.packing":
        return equally_packed
    rule, number = resume_rule(Config, name), re.match(r"phases\.(\d+)\.", name)
    if number is None:
        return rule == "branch"
    return int(number[1]) > phase or (int(number[1]) == phase and rule in ("last", "elastic", "branch"))


def _examples(config: Config, fingerprints: list[Any], phase: int) -> list[Any]:
    """Return what the phases up to `phase` read: the fingerprints of their stores, and how much of each."""
    known = dict(zip(training_paths(config), fingerprints, strict=False))
    return [
        [(known.get(part.path), part.amount, part.kind) for part in parts] or list(known.values())
        for parts in resolve_mixtures(config)[: phase + 1]
    ]
