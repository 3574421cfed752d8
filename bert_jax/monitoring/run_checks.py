"""What is wrong with a pre-training run, from what it has logged: the classic ways not to learn."""

import math
from typing import Any

import numpy as np

from bert_jax.config import Config, Phase, resolve_phases
from bert_jax.monitoring.check import Check
from bert_jax.monitoring.run_history import RunHistory

SETTLED_STEPS = 100  # from here on, and past the warm-up, a loss must have left the bias
PLATEAU_STEPS = 5_000  # BERT stays near the frequencies of words for thousands of steps before it uses the context
PLATEAU_SHARE = 0.5  # or for this share of a shorter run
NEAR_UNIGRAM = 0.05  # nats
NEAR_BIAS = 0.02  # nats; the first updates move a loss away from ln V by more
MOST_SKIPPED = 0.01
MOST_WORSE = 0.02
EVALUATIONS_WITHOUT_GAIN = 5
LEAST_THROUGHPUT = 0.5
FEWEST_ROWS = 40  # for a median that a busy minute does not move


def run_checks(run: RunHistory, config: Config, unigram: float | None) -> list[Check]:
    """Return the checks on the rows of a run; those that its length does not allow yet are left out.

    Args:
      unigram: loss in nats of predicting words from their frequencies alone; None if it is unknown.
    """
    train, held_out = run.of_kind("train"), run.of_kind("evaluation")
    if not train:
        return []
    phase = _phase(config, train[-1]["step"])
    rows, words = [row for row in train if row["step"] > phase.begin], run.word_loss
    found = [
        _learning_rate(rows, config),
        _not_finite(run, train),
        *([] if words is None else _of_words(rows, words, config, phase, unigram)),
        _evaluated(config, train, held_out),
        _improves(held_out, run.main_loss),
        _throughput(rows),
    ]
    return [check for check in found if check is not None]


def _phase(config: Config, step: int) -> Phase:
    phases = resolve_phases(config)
    return next((phase for phase in phases if step <= phase.end), phases[-1])


def _values(rows: list[dict[str, Any]], name: str) -> np.ndarray:
    """Return the finite values of one metric."""
    values = np.array([row[name] for row in rows if name in row], float)
    return values[np.isfinite(values)]


def _learning_rate(rows: list[dict[str, Any]], config: Config) -> Check | None:
    """The first update of a warm-up and the last of a decay are made with a rate of zero."""
    inner = [row for row in rows if row["step"] > 1 and row["step"] < config.total_steps]
    rates = _values(inner, "learning_rate")
    if len(rates) < 2:
        return None
    return Check(
        name="learning rate zero",
        seen=f"{np.count_nonzero(rates == 0):,} of {len(rates):,} rows have a learning rate of 0",
        limit="at most one row",
        is_wrong=int(np.count_nonzero(rates == 0)) > 1,
        remedy="nothing is learned at these steps: check learning_rate, warmup_steps and the schedule against the "
        "number of steps (bert-jax config show on config.json)",
    )


def _not_finite(run: RunHistory, train: list[dict[str, Any]]) -> Check:
    steps = max(1, train[-1]["step"])
    lost = {row["step"] for row in run.happened("skipped")}
    lost |= {row["step"] for row in train if row.get("skipped") or not math.isfinite(row.get("loss", 0.0))}
    return Check(
        name="loss or gradient not finite",
        seen=f"{len(lost):,} of {steps:,} updates were skipped" + (f", the last at step {max(lost):,}" if lost else ""),
        limit=f"at most {MOST_SKIPPED:.0%}",
        is_wrong=len(lost) > MOST_SKIPPED * steps,
        remedy="lower the learning rate, lengthen the warm-up, or keep optimizer.clip_norm at 1",
    )


def _of_words(
    rows: list[dict[str, Any]], name: str, config: Config, phase: Phase, unigram: float | None
) -> list[Check | None]:
    """Return the checks on the loss of predicted words, whose name is given."""
    if not rows or name not in rows[-1]:
        return []
    return [_bias(rows, name, config, phase), _plateau(rows, name, phase, unigram), _nothing_predicted(rows, name)]


def _bias(rows: list[dict[str, Any]], name: str, config: Config, phase: Phase) -> Check | None:
    losses, size = _values(rows[-20:], name), config.model.vocab_size
    if not len(losses) or size is None or rows[-1]["step"] < phase.begin + max(SETTLED_STEPS, phase.warmup_steps):
        return None
    loss, bias = float(losses.mean()), math.log(size)
    return Check(
        name="loss at the bias",
        seen=f"{name} {loss:.3f} over the last {len(losses)} rows; ln {size:,} is {bias:.3f}",
        limit=f"more than {NEAR_BIAS} away from it",
        is_wrong=abs(loss - bias) < NEAR_BIAS,
        remedy="every entry is predicted with the same probability, as before the first step: nothing reaches the "
        "output layer. Check the learning rate, and objective.mlm_weight",
    )


def _plateau(rows: list[dict[str, Any]], name: str, phase: Phase, unigram: float | None) -> Check | None:
    losses = _values(rows[-max(1, len(rows) // 4) :], name)
    needed = phase.begin + phase.warmup_steps + min(PLATEAU_STEPS, PLATEAU_SHARE * phase.steps)
    if unigram is None or len(losses) < 5 or rows[-1]["step"] < needed:
        return None
    loss = float(losses.mean())
    return Check(
        name="plateau at the unigram entropy",
        seen=f"{name} {loss:.3f} over the last quarter; word frequencies alone reach {unigram:.3f}",
        limit=f"not within {NEAR_UNIGRAM} of it",
        is_wrong=abs(loss - unigram) < NEAR_UNIGRAM,
        remedy="the model knows how frequent words are, and ignores the context: train longer, use a larger peak "
        "learning rate or a shorter warm-up; for many layers, norm_position=pre",
    )


def _nothing_predicted(rows: list[dict[str, Any]], name: str) -> Check | None:
    losses = _values(rows, name)
    if not len(losses):
        return None
    return Check(
        name="masks that select nothing",
        seen=f"{name} {losses.min():.3g} at its lowest",
        limit="above 0",
        is_wrong=float(losses.min()) <= 0,
        remedy="a loss of exactly 0 means that a batch had nothing to predict: check masking.rate and max_predictions",
    )


def _evaluated(config: Config, train: list[dict[str, Any]], held_out: list[dict[str, Any]]) -> Check:
    step, every = train[-1]["step"], config.evaluation.every_steps
    nothing = not config.data.held_out and not config.data.eval_path
    overdue = every > 0 and step >= 2 * every
    return Check(
        name="no evaluation",
        seen=f"{len(held_out):,} evaluations in {step:,} steps"
        + ("; data.held_out=0 and no data.eval_path" if nothing else ""),
        limit=f"one every {every:,} steps" if every else "one at the end",
        is_wrong=nothing or overdue and not held_out,
        remedy="give data.held_out (0.01) or data.eval_path: without figures on other text, memorizing looks "
        "like learning",
    )


def _improves(held_out: list[dict[str, Any]], name: str) -> Check | None:
    losses = _values(held_out, name)
    if len(losses) <= EVALUATIONS_WITHOUT_GAIN:
        return None
    best = int(losses.argmin())
    since = len(losses) - 1 - best
    worse = float(losses[-1] / losses[best] - 1)
    return Check(
        name="not improving",
        seen=f"held-out {name} {losses[-1]:.3f}; the best was {losses[best]:.3f}, {since} evaluations ago",
        limit=f"at most {MOST_WORSE:.0%} worse than the best, after {EVALUATIONS_WITHOUT_GAIN} evaluations without a "
        "gain",
        is_wrong=since >= EVALUATIONS_WITHOUT_GAIN and worse > MOST_WORSE,
        remedy="the model memorizes the training text, or has become unstable: use more text, a smaller model, "
        "or a lower learning rate; the best checkpoint is kept",
    )


def _throughput(rows: list[dict[str, Any]]) -> Check | None:
    rates = _values(rows, "tokens_per_second")
    if len(rates) < FEWEST_ROWS:
        return None
    usual, now = float(np.median(rates)), float(np.median(rates[-10:]))
    return Check(
        name="throughput drops",
        seen=f"{now:,.0f} tokens/s over the last 10 rows; the median of the phase is {usual:,.0f}",
        limit=f"at least {LEAST_THROUGHPUT:.0%} of the median",
        is_wrong=now < LEAST_THROUGHPUT * usual,
        remedy="see the goodput of bert-jax status: slow input needs more data.prefetch or a faster disk; a slow host "
        "is named among the alarms",
    )
