"""Options of watching a run: traces, trackers, and the commands status, report and doctor; standard library only."""

import dataclasses
import re

from bert_jax.config.example_choices import SentencePairs
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileConfig:
    """Which steps leave a trace for XProf."""

    steps: str = ""
    """Steps to trace, as FROM:TO. 100:110 traces the ten steps after step 100, on the first host, into the folder
    profile of the work directory. Whatever else happens between them, such as an evaluation, is traced too. By default
    nothing is traced."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SinksConfig:
    """Services that receive the metrics of a run in addition to TensorBoard. One that cannot be reached only causes a
    warning."""

    wandb: str = ""
    """Project of Weights & Biases to log to; a resumed run continues there. It needs the extra wandb, and either a
    login with `wandb login` or WANDB_MODE=offline. By default nothing is sent."""
    mlflow: str = ""
    """Experiment of MLflow to log to, at MLFLOW_TRACKING_URI; a resumed run continues there. It needs the extra mlflow.
    By default nothing is sent."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatusConfig:
    """Options of `bert-jax status`."""

    output: str = ""
    """JSON file to write the same facts to. By default they are printed only."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Options of `bert-jax report`."""

    output: str
    """HTML file to write, local or gs://. It is self-contained and includes the library that draws the curves."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DescribeConfig:
    """Options of `bert-jax describe`."""

    output: str
    """Self-contained HTML file to write, local or gs://. The figures are also written next to it, as .json."""
    samples: int = 8
    """Number of documents, drawn at random, whose beginnings are shown."""
    seed: int = 0
    """Seed of the random choice of these documents."""
    cache: str = ""
    """Local directory that a remote store is copied to once. By default bert_jax in the user's cache directory
    ($XDG_CACHE_HOME, else ~/.cache)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """Options of `bert-jax doctor` for a token store. A run is examined with its own options."""

    sequence_length: int = 128
    """Tokens per sequence of the examples that are examined, [CLS] and [SEP] included."""
    sentence_pairs: SentencePairs = "nsp"
    """Pairs of segments, whose labels are examined if they have any: next-sentence prediction (nsp), sentence order
    (sop, as in ALBERT), pairs without a label (adjacent, as in ELECTRA), or none."""
    cache: str = ""
    """Local directory that a remote store is copied to once. By default bert_jax in the user's cache directory
    ($XDG_CACHE_HOME, else ~/.cache)."""


def traced_steps(profile: ProfileConfig, total_steps: int) -> range:
    """Return the numbers of steps after which a traced step begins; empty if nothing is traced.

    Raises:
      UserError: `profile.steps` is not FROM:TO with 0 <= FROM < TO <= total_steps.
    """
    if not profile.steps:
        return range(0)
    match = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})", profile.steps)
    if match is None:
        raise UserError(f"profile.steps={profile.steps!r} must be FROM:TO, such as 100:110 for the ten steps after 100")
    begin, end = map(int, match.groups())
    if not begin < end <= total_steps:
        raise UserError(
            f"profile.steps={profile.steps} must be FROM:TO with FROM below TO and TO at most the last step, "
            f"{total_steps}"
        )
    return range(begin, end)
