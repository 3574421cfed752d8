"""`bert-jax doctor`: looks for the classic failures of a token store or a run, and says what to do about them."""

import dataclasses
import math
import os

from etils import epath
from rich.console import Console
from rich.text import Text

from bert_jax.config import Config, DataConfig, ModelConfig, PhaseConfig
from bert_jax.config.checks import check
from bert_jax.config.mixtures import training_paths
from bert_jax.config.watching import DoctorConfig
from bert_jax.console.progress_bar import progress_bar
from bert_jax.data.store.access import open_store
from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.monitoring.check import Check
from bert_jax.monitoring.run_checks import run_checks
from bert_jax.monitoring.run_history import RunHistory, read_run
from bert_jax.monitoring.store_checks import content_checks, example_checks, unreadable
from bert_jax.monitoring.token_counts import count_tokens

SHOWN_TOKENS = 50_000_000  # a pass over more takes longer than a second, so a progress bar is shown


def run_doctor(path: str, config: DoctorConfig) -> int:
    """Print the checks on the token store or work directory at `path`; return 1 if something is wrong, else 0.

    Raises:
      UserError: `path` is neither.
    """
    is_store = (epath.Path(path).expanduser() / "manifest.json").exists()
    checks = check_store(path, config) if is_store else check_run(read_run(path))
    _print(checks, Console(highlight=False))
    return int(any(each.is_wrong for each in checks))


def check_store(path: str, config: DoctorConfig) -> list[Check]:
    """Return the checks on a token store, and on the examples that `config` makes of it."""
    options = check(
        Config(
            model=ModelConfig(max_position_embeddings=max(512, config.sequence_length)),
            data=DataConfig(path=path, sentence_pairs=config.sentence_pairs, held_out=0.0, cache=config.cache),
            phases=(PhaseConfig(sequence_length=config.sequence_length),),
        )
    )
    return _of_store(options, path)


def check_run(run: RunHistory) -> list[Check]:
    """Return the checks on a run and, where its token store is on this machine, on its data.

    Raises:
      UserError: the directory holds no run that these checks know.
    """
    if run.is_finetuning:
        return _of_finetuning(run)
    config = run.config
    if config is None:
        raise UserError(
            f"{run.path} has no configuration of pre-training that this version reads; doctor examines token stores, "
            "pre-training runs and the results of fine-tuning"
        )
    if run.rows and not run.terms:
        raise UserError(
            f"{run.path / 'events.jsonl'} has no start that says what the losses in metrics.jsonl are of: it is "
            "damaged, or another version of bert_jax wrote it; restore it from a copy"
        )
    paths = [path for path in training_paths(config) if "://" not in path and os.path.isdir(path)]
    of_data = [
        each if len(paths) == 1 else dataclasses.replace(each, name=f"{path}: {each.name}")
        for path in paths
        for each in _of_store(config, path)
    ]
    return [*run_checks(run, config, _unigram(run)), *of_data]


def _of_store(config: Config, path: str) -> list[Check]:
    try:
        store = open_store(path, config.data.cache)
    except UserError as error:
        return [unreadable(error)]
    visible = store.num_tokens >= SHOWN_TOKENS
    with progress_bar("reading tokens", store.num_tokens, visible=visible) as advance_to:
        checks = content_checks(store, count_tokens(store, advance_to))
    if any(each.is_wrong and each.name == "ids out of range" for each in checks):
        return checks  # no example can be made of them
    return [*checks, *example_checks(store, config)]


def _unigram(run: RunHistory) -> float | None:
    """Return the loss of word frequencies alone, which a run notes once per start and phase."""
    for row in reversed(run.happened("baseline")):
        if isinstance(value := row.get(run.word_loss or ""), float) and math.isfinite(value):
            return value
    return None


def _of_finetuning(run: RunHistory) -> list[Check]:
    """Return a check of each finished run, which records by itself whether it has learned nothing."""
    checks = []
    for file in sorted((run.path / "runs").glob("*/results.json")):
        remedy = "remove the run to train it again"
        collapsed = read_object(file, remedy).get("collapsed", 0)
        if not isinstance(collapsed, str | None):
            raise UserError(
                f"{file} does not say whether the run has collapsed: it is damaged, or another version of bert_jax "
                f"wrote it; {remedy}"
            )
        checks.append(
            Check(
                name=f"run {file.parent.name} has learned nothing",
                seen=(collapsed or "no sign of it")[:300],
                limit="no sign of it",
                is_wrong=bool(collapsed),
                remedy="small tasks need several seeds, a lower learning rate or a longer warm-up; see bert-jax "
                "results",
            )
        )
    return checks


def _print(checks: list[Check], console: Console) -> None:
    for each in checks:
        mark, style = ("wrong", "bold red") if each.is_wrong else ("ok", "green")
        console.print(Text.assemble((f"{mark:>5}  ", style), (each.name, "bold"), f": {each.seen}"), soft_wrap=True)
        if each.is_wrong:
            console.print(Text(f"       expected: {each.limit}"), soft_wrap=True)
            console.print(Text(f"       what to do: {each.remedy}"), soft_wrap=True)
    wrong = sum(each.is_wrong for each in checks)
    console.print(f"{wrong} of {len(checks)} checks found something" if checks else "nothing to check yet")
