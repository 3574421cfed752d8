"""`bert-jax speedrun`: from a speedrun file to results.json, table.md and picture.png.

A run is a pre-training of its own, measured at its end on the held-out texts that all arms share; what came of it is a
file next to it. Any number of processes may work in the same directory: each takes a run that is due and that nobody
else has.
"""

import contextlib
import dataclasses
import gc
import math
import os
import time
from collections.abc import Iterator
from typing import Any

from absl import logging
from etils import epath
from rich.table import Table

from bert_jax.checkpoints.workdir import has_checkpoint, need, read_json, saved_run, write_json
from bert_jax.config.studies import Speedrun, SpeedrunConfig
from bert_jax.devices import hardware, sharding
from bert_jax.errors import UserError
from bert_jax.finetuning.loop import finetune
from bert_jax.ownership import Owner
from bert_jax.pretraining import pretrain
from bert_jax.tools.speedrun_plan import Progress, Run, SpeedrunPlan, speedrun_plan
from bert_jax.tools.speedrun_report import Outcome, plain, write_report
from bert_jax.tools.study_plan import Given, check_continues, held_out_metrics, task_metrics
from bert_jax.training.reporter import say, show

OUTCOME = "outcome.json"
WAIT_SECONDS = 10


def run_speedrun(
    speedrun: Speedrun, options: SpeedrunConfig, given: Given | None = None, devices: sharding.Devices = None
) -> int:
    """Run what is left of a speedrun, and write its table and picture after every run; return the exit status.

    The status is 0; 1 if a run failed, which does not keep the others from running; 130 or 143 if a signal ended it,
    after the steps made so far were saved. The same call resumes from there, and may be made several times at once.

    Args:
      given: options of the command line that all arms take.
      devices: the devices of the mesh; by default every device.

    Raises:
      UserError: something does not fit, and nothing has been run.
    """
    plan = speedrun_plan(speedrun, options, given or Given(), devices)
    work = Work(plan)
    if options.render:
        if not epath.Path(plan.workdir).is_dir():
            raise UserError(
                f"workdir={plan.workdir} is not there, so --render has nothing to show; leave it out to begin"
            )
        print(work.report())
        return 0
    plan.check()
    if options.dry_run:
        show_plan(plan)
        return 0
    while (exit_code := work.next()) is None:
        gc.collect()  # what a run compiled and held has cycles, and the next one needs the memory
    if exit_code:
        say(f"stopped; the same command resumes with {work.newest}")
        return exit_code
    print(work.report())
    say(f"{plan.workdir}: results.json, table.md, picture.png")
    for name, message in work.failures.items():
        say(f"failed: {name}: {message}")
    return 1 if work.failures else 0


class Work:
    """The runs of a speedrun that this process does.

    Args:
      plan: the arms and their runs.
    """

    def __init__(self, plan: SpeedrunPlan):
        self.plan = plan
        self.machine: str = str(hardware.hardware(plan.devices))
        self.failures: dict[str, str] = {}
        """The reason of each failure in this start, by the name of the run."""
        self.newest = ""
        self._failed: set[Run] = set()
        self._compared: set[Run] = set()
        self._read: dict[str, dict[str, Any]] = {}
        """What files of outcomes hold that are not written again."""

    def next(self) -> int | None:
        """Do one run that is due, or wait where other processes have all of them.

        Returns:
          None if there may be more to do; 0 if nothing is left; otherwise the exit code of a signal.
        """
        due = self._due()
        if not due:
            return 0
        for run in due:
            with self._taken(run) as taken:
                if taken and run in self._due():  # which another process may have done in between
                    self.newest = run.name
                    say(f"{run.name}: {self.plan.config(run).total_steps:,} steps")
                    exit_code = self._do(run)
                    self._write()
                    return exit_code or None
        time.sleep(WAIT_SECONDS)
        return None

    def outcomes(self) -> dict[Run, Outcome]:
        """Return what the finished runs have measured.

        Raises:
          UserError: a run was made with other options.
        """
        found: dict[Run, Outcome] = {}
        for file in sorted(epath.Path(self.plan.workdir).glob(f"runs/*/*/*/*/{OUTCOME}")):
            values = self._read.get(os.fspath(file)) or read_json(file)
            run = Run(*(need(values, name, kind, file) for name, kind in KINDS.items()))
            if run.arm not in self.plan.recipes or run.length not in (0.0, *self.plan.design.lengths):
                continue
            outcome = self._outcome(run, values, file)
            if values.get("read_as") == self._read_as:
                found[run] = outcome
                self._read[os.fspath(file)] = values
        return found

    def _outcome(self, run: Run, values: dict[str, Any], file: epath.Path) -> Outcome:
        if run not in self._compared:
            config, vocab_size = self.plan.config(run), self.plan.model(run).config.vocab_size
            try:
                check_continues(
                    dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=vocab_size))
                )
            except UserError as error:
                raise UserError(f"arm {run.arm}: {error}") from None
            self._check_made(run, values, file)
            self._compared.add(run)
        cpu, loss = values.get("cpu_seconds"), need(values, "loss", float, file)
        if not math.isfinite(loss):
            raise UserError(f"{file} has loss={loss}, which no run has: it is damaged; delete it to run it again")
        return Outcome(
            loss=loss,
            accuracy=need(values, "accuracy", float, file),
            flops=need(values, "flops", float, file),
            tokens=need(values, "tokens", int, file),
            cpu_seconds=cpu if isinstance(cpu, float) else None,
        )

    def _check_made(self, run: Run, values: dict[str, Any], file: epath.Path) -> None:
        """Raise a UserError unless an outcome is of the options and stores of this speedrun; its run may be gone."""
        wanted = self._made(run)
        known = {name: values[name] for name in wanted if name in values}  # earlier versions did not keep the stores
        for name, value in known.items():
            same = math.isclose(value, wanted[name]) if name == "flops" else value == wanted[name]
            if not same:
                raise UserError(
                    f"arm {run.arm}: {file} has {name}={value}, which here would be {wanted[name]}: it was made with "
                    "other options or stores; give those, or another --workdir"
                )

    def _made(self, run: Run) -> dict[str, Any]:
        """Return what tells a run of other options or stores from this one."""
        return {
            "steps": self.plan.config(run).total_steps,
            "flops": float(self.plan.flops(run)),
            "stores": self.plan.stores,
        }

    def report(self) -> str:
        """Write results.json, table.md and the picture; return the table."""
        outcomes = self.outcomes()
        scores = {run: self._scores(run) for run in outcomes if run.length in (0, 1)}
        return write_report(self.plan, self._progress(outcomes), outcomes, scores, self.failures, self.machine)

    @property
    def _read_as(self) -> dict[str, int]:
        speedrun = self.plan.speedrun
        return {"sequence_length": speedrun.sequence_length, "sequences": speedrun.sequences}

    def _due(self) -> list[Run]:
        outcomes = self.outcomes()
        progress = self._progress(outcomes)
        due = progress.wanted()
        if self.plan.design.scores:
            scored = [arm for arm in self.plan.recipes if arm in self.plan.design.scores]
            whole = [run for arm in scored for run in progress.whole(arm)] + self.plan.design.untrained
            due += [run for run in whole if run in outcomes and run not in self._failed and self._unscored(run)]
        return due

    def _progress(self, outcomes: dict[Run, Outcome]) -> Progress:
        losses = dict.fromkeys(self._failed, math.inf) | {run: outcome.loss for run, outcome in outcomes.items()}
        return Progress(self.plan.design, losses)

    def _scores(self, run: Run) -> dict[str, dict[str, float]]:
        found = {name: task_metrics(self.plan.task(run, name)) for name in self.plan.tasks}
        return {name: metrics for name, metrics in found.items() if metrics}

    def _unscored(self, run: Run) -> list[str]:
        return [name for name in self.plan.tasks if name not in self._scores(run)]

    @contextlib.contextmanager
    def _taken(self, run: Run) -> Iterator[bool]:
        """Own the directory of a run, unless another process does."""
        home = epath.Path(self.plan.home(run))
        home.mkdir(parents=True, exist_ok=True)
        try:
            owner = Owner(home, "taken.json")
        except UserError:
            yield False
            return
        try:
            yield True
        finally:
            owner.release()

    def _do(self, run: Run) -> int:
        """Do what is left of a run, and note what goes wrong; return the exit code of a signal, or 0."""
        try:
            if run not in self.outcomes():
                if exit_code := self._pretrain(run):
                    return exit_code
            elif self.plan.design.scores:
                for name in self._unscored(run):
                    if exit_code := finetune(self.plan.task(run, name), devices=self.plan.devices).exit_code:
                        return exit_code
        except Exception as error:  # whatever it is, it must not cost the other arms
            message = " ".join(str(error).split())[:300] or type(error).__name__
            self.failures[run.name] = message
            self._failed.add(run)
            logging.error("%s failed: %s", run.name, message, exc_info=None if isinstance(error, UserError) else error)
        return 0

    def _pretrain(self, run: Run) -> int:
        """Pre-train and measure a run; return the exit code of a signal, or 0."""
        config, begin = self.plan.config(run), time.process_time()
        was_begun = has_checkpoint(config.workdir)
        if exit_code := pretrain(config, self.plan.devices).exit_code:
            return exit_code
        seconds = time.process_time() - begin
        metrics = held_out_metrics(config.workdir, self.plan.common(config), self.plan.devices)
        if not math.isfinite(metrics["mlm_loss"]):
            raise UserError(f"its held-out loss is {metrics['mlm_loss']}")
        whole = not was_begun and len(saved_run(epath.Path(config.workdir) / "run.json")["starts"]) == 1
        values = {
            **dataclasses.asdict(run),
            **self._made(run),
            "loss": metrics["mlm_loss"],
            "accuracy": metrics["mlm_accuracy"],
            "tokens": self.plan.tokens(run),
            "cpu_seconds": seconds if whole else None,  # what a killed start took is not known
            "read_as": self._read_as,
        }
        write_json(epath.Path(self.plan.home(run)) / OUTCOME, values)
        return 0

    def _write(self) -> None:
        try:
            self.report()
        except OSError as error:  # the runs go on; the end writes it again
            logging.warning("%s has no table of this run: %s", self.plan.workdir, error)


KINDS = {"arm": str, "rate_factor": float, "length": float, "seed": int}


def show_plan(plan: SpeedrunPlan) -> None:
    """Print the arms: what each changes, and its steps and operations at length 1."""
    table = Table(title=f"{plan.speedrun.title}: the plan")
    for column in ("arm", "changes", "options", "steps", "GFLOP per step", "tokens"):
        table.add_column(column, justify="left" if column in ("arm", "changes", "options") else "right")
    for name, recipe in plan.recipes.items():
        run = Run(name, 1.0, 1.0, plan.base.seed)
        steps, flops = plan.config(run).total_steps, plan.flops(run)
        given = dict(recipe.arm.options)
        for number, phase in enumerate(recipe.arm.phases):
            given |= {f"phases.{number}.{option}": value for option, value in phase.items()}
        table.add_row(
            recipe.arm.title + (f" ({name})" if recipe.arm.title != name else ""),
            recipe.arm.on or "the reference",
            ", ".join(f"{option}={value}" for option, value in plain(given).items()),
            f"{steps:,}",
            f"{flops / steps / 1e9:.2f}",
            f"{plan.tokens(run):,}",
        )
    show(table)
    design = plan.design
    lengths, rates = (", ".join(f"{each:.3g}" for each in values) for values in (design.lengths, design.rate_factors))
    say(f"{len(design.seeds)} seeds; lengths: {lengths}; rates: {rates}, around the best of the arm that is changed")
