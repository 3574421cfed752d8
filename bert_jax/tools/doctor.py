"""`bert-jax doctor`: looks for the classic failures of a token store or a run, and says what to do about them.

A run is judged by what it has logged, a store by its tokens and by the examples that a configuration makes of it,
before training on them. Each check says what was measured, where the limit is, and what to do.
"""

import dataclasses
import math
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from etils import epath
from rich.console import Console
from rich.text import Text

from bert_jax.config import (
    Config,
    DataConfig,
    ModelConfig,
    Phase,
    PhaseConfig,
    config_of_phase,
    phase_of_step,
    resolve_phases,
)
from bert_jax.config.checks import check, resolve_mixtures, training_paths
from bert_jax.config.pretraining import DoctorConfig
from bert_jax.data.mixtures import epoch_report
from bert_jax.data.store import Store, open_store
from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.progress import progress_bar
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.tools.description import TokenCounts, count_tokens, repeats
from bert_jax.tools.status import RunHistory, read_run
from bert_jax.training_data import Examples


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """The outcome of one check."""

    name: str
    """The failure that it looks for."""
    seen: str
    """The figure, in words."""
    limit: str
    """Required value of the figure."""
    is_wrong: bool
    remedy: str
    """Advice if it is wrong."""


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

    `unigram`: loss in nats of predicting words from their frequencies alone; None if it is unknown.
    """
    train, held_out = run.of_kind("train"), run.of_kind("evaluation")
    if not train:
        return []
    phase = resolve_phases(config)[phase_of_step(config, train[-1]["step"])]
    rows, words = [row for row in train if row["step"] > phase.begin], run.word_loss
    measured = [row for row in held_out if row["step"] > phase.begin]  # each phase is measured on its own examples
    of_words = []
    if words is not None and rows and words in rows[-1]:
        of_words = [_bias(rows, words, config, phase), _plateau(rows, words, phase, unigram)]
    found = [
        _learning_rate(rows, config),
        _not_finite(run, train),
        *of_words,
        _nothing_predicted(rows, words or run.main_loss),
        _evaluated(config, train, held_out),
        _measured(measured, run.main_loss),
        _improves(measured, run.main_loss),
        _throughput(rows),
    ]
    return [check for check in found if check is not None]


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
        remedy="a loss of exactly 0 means that a batch had nothing to predict: check masking.rate and max_predictions; "
        "take larger batches or longer texts, or mask single tokens",
    )


def _measured(held_out: list[dict[str, Any]], name: str) -> Check | None:
    if not held_out:
        return None
    empty = sum(name not in row for row in held_out)
    return Check(
        name="evaluation of nothing",
        seen=f"{empty:,} of {len(held_out):,} evaluations have no {name}",
        limit="none",
        is_wrong=empty > 0,
        remedy="nothing in the held-out sequences is to be predicted: raise data.held_out or evaluation.sequences, "
        "take longer texts, or mask single tokens (masking.unit=token)",
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


FEWEST_DOCUMENTS = 100  # of fewer, one percent is not a whole document to hold out
MOST_DUPLICATED = 0.05  # share of the tokens
MOST_UNKNOWN = 0.01  # of Wikipedia with Google's uncased vocabulary: 0.0004
FEWEST_CAPITALS = 0.005  # English with a cased vocabulary has about a tenth
PAIRS_IN_ORDER = (0.25, 0.75)  # either label is as likely, but a single sentence has no next one
PREDICTED_OF_WANTED = 0.5
EXAMINED = 20_000  # sequences


def content_checks(store: Store, counts: TokenCounts) -> list[Check]:
    """Return the checks on the tokens of a store, whatever is done with them."""
    tokenizer = store.tokenizer()
    return [
        _ids(store, counts),
        _special(tokenizer, counts),
        _unknown(tokenizer, counts),
        _casing(tokenizer, counts),
        _documents(store),
        _duplicates(store, counts),
    ]


def example_checks(store: Store, config: Config, phases: Iterable[Phase]) -> list[Check]:
    """Return the checks on the examples of some phases of `config`, whose options choose length, pairs and masks.

    Raises:
      UserError: the store has no text to train on.
    """
    checks = []
    for phase in phases:
        examples = Examples(store, config, phase, split="train", seed=phase.data_seed)
        where = f"phase {phase.index}: " if len(config.phases) > 1 else ""
        seen = config_of_phase(config, phase.index)
        if seen.data.has_pair_labels:
            checks.append(_pairs(examples, where))
        checks.append(_masks(examples, seen, where))
    return checks


def _ids(store: Store, counts: TokenCounts) -> Check:
    highest = int(np.flatnonzero(counts.ids).max())
    return Check(
        name="ids out of range",
        seen=f"highest id {highest:,}",
        limit=f"below {store.vocab_size:,}, the size of the vocabulary",
        is_wrong=highest >= store.vocab_size,
        remedy="delete the store and prepare the corpus again; another program has written these tokens",
    )


def _special(tokenizer: Tokenizer, counts: TokenCounts) -> Check:
    special = [number for number in tokenizer.special_ids if number != tokenizer.unk_id]
    share = counts.ids[special].sum() / counts.ids.sum()
    return Check(
        name="special tokens in the text",
        seen=f"{share:.3%} of the tokens are [CLS], [SEP], [MASK] or padding",
        limit="none",
        is_wrong=share > 0,
        remedy="prepare the corpus with bert-jax prepare, which stores text alone; masks and separators are added "
        "later",
    )


def _unknown(tokenizer: Tokenizer, counts: TokenCounts) -> Check:
    share = counts.ids[tokenizer.unk_id] / counts.ids.sum()
    return Check(
        name="unknown tokens",
        seen=f"{share:.3%} of the tokens are [UNK]",
        limit=f"at most {MOST_UNKNOWN:.0%}",
        is_wrong=share > MOST_UNKNOWN,
        remedy="the vocabulary does not fit the text (another language, script or casing): learn one with bert-jax "
        "train-vocab, or add words with extend-vocab, and prepare again",
    )


def _casing(tokenizer: Tokenizer, counts: TokenCounts) -> Check:
    capitals = np.array([token != token.lower() for token in tokenizer.tokens])
    capitals[list(tokenizer.special_ids)] = False
    share = counts.ids[: len(capitals)][capitals].sum() / counts.ids.sum()
    unknown = counts.ids[tokenizer.unk_id] / counts.ids.sum()
    if capitals.mean() > FEWEST_CAPITALS:
        return Check(
            name="wrong casing for the vocabulary",
            seen=f"{share:.2%} of the tokens have a capital letter, of the vocabulary {capitals.mean():.2%}",
            limit=f"at least {FEWEST_CAPITALS:.1%} of the tokens",
            is_wrong=share < FEWEST_CAPITALS,
            remedy="the text was lowercased, but the vocabulary is cased: prepare the original text without "
            "--lowercase, or use an uncased vocabulary",
        )
    return Check(
        name="wrong casing for the vocabulary",
        seen=f"the vocabulary has no capital letters; text is {'' if tokenizer.lowercase else 'not '}lowercased, "
        f"{unknown:.2%} [UNK]",
        limit=f"lowercased text, or at most {MOST_UNKNOWN:.0%} [UNK]",
        is_wrong=not tokenizer.lowercase and unknown > MOST_UNKNOWN,
        remedy="every word with a capital letter is unknown: prepare again with --lowercase=True",
    )


def _documents(store: Store) -> Check:
    return Check(
        name="too few documents",
        seen=f"{store.num_documents:,} documents",
        limit=f"at least {FEWEST_DOCUMENTS}",
        is_wrong=store.num_documents < FEWEST_DOCUMENTS,
        remedy="held-out figures rest on whole documents, and random second segments come from others: put a blank "
        "line between documents, or prepare more text",
    )


def _duplicates(store: Store, counts: TokenCounts) -> Check:
    lengths = np.diff(store.document_tokens)
    repeated = repeats(counts)
    share = lengths[repeated].sum() / lengths.sum()
    return Check(
        name="duplicated documents",
        seen=f"{repeated.sum():,} of {len(lengths):,} documents repeat another one, {share:.2%} of the text",
        limit=f"at most {MOST_DUPLICATED:.0%} of the text",
        is_wrong=share > MOST_DUPLICATED,
        remedy="remove the copies and prepare again: repeated text is memorized, and held-out documents may have "
        "been trained on",
    )


def _pairs(examples: Examples, where: str) -> Check:
    report = epoch_report(examples, limit=EXAMINED)
    name, (low, high) = "IsNext" if examples.sentence_pairs == "nsp" else "in order", PAIRS_IN_ORDER
    share = report.is_next if report.is_next is not None else 0.5
    return Check(
        name=f"{where}degenerate sentence pairs",
        seen=f"{share:.1%} of {report.examined:,} pairs are {name}; {report.duplicated:.1%} of the text is borrowed "
        "from other documents",
        limit=f"{low:.0%} to {high:.0%}",
        is_wrong=not low <= share <= high,
        remedy="the label can be guessed without reading: most documents are a single sentence or fit one segment. "
        "Put a blank line only between documents, check --sentences of prepare, or set data.sentence_pairs=none",
    )


def _masks(examples: Examples, config: Config, where: str) -> Check:
    sequences = min(512, examples.num_examples(0))
    batch = examples.batch(np.arange(sequences))
    text = int(batch["attention_mask"].sum())  # 0: static vectors leave frequent words out, which may be all
    predicted = float((batch["masked_weights"] > 0).sum()) / max(1, text)
    rate = config.masking.rate
    return Check(
        name=f"{where}masks that select nothing",
        seen=f"{predicted:.2%} of the tokens are predicted",
        limit=f"at least half of masking.rate, {PREDICTED_OF_WANTED * rate:.2%}",
        is_wrong=predicted < PREDICTED_OF_WANTED * rate,
        remedy=f"raise max_predictions of the phase (its rate times its length is "
        f"{rate * examples.sequence_length:.0f}), "
        "or the masking.rate",
    )


def unreadable(error: UserError) -> Check:
    """Return the check of a store that cannot be opened."""
    return Check(
        name="damaged store",
        seen=str(error),
        limit="every file as prepare wrote it",
        is_wrong=True,
        remedy="copy the store again, or delete it and prepare it again",
    )


SHOWN_TOKENS = 50_000_000  # a pass over more takes longer than a second, so a progress bar is shown


def run_doctor(path: str, config: DoctorConfig) -> int:
    """Print the checks on the token store or work directory at `path`; return 1 if something is wrong, else 0.

    Raises:
      UserError: `path` is neither, or there is an option for a store where it is a run.
    """
    is_store = (epath.Path(path).expanduser() / "manifest.json").exists()
    for name, value in dataclasses.asdict(config).items():
        if not is_store and value != getattr(DoctorConfig(), name):
            raise UserError(
                f"{name}={value} has no effect on {path}, which is examined as it was trained; leave it out"
            )
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
    return [*checks, *example_checks(store, config, _reading(config, path))]


def _reading(config: Config, path: str) -> list[Phase]:
    """Return the phases whose examples are cut from the store at `path`."""
    phases = zip(resolve_phases(config), resolve_mixtures(config), strict=True)
    read = lambda parts: not parts or any(part.path == path and part.amount != 0 for part in parts)
    return [phase for phase, parts in phases if read(parts)]


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
