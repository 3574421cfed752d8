"""Log-likelihoods of texts, by which a model says which of several texts it would rather read.

A model of masked words gives the pseudo-log-likelihood (Salazar et al. 2020, arXiv 1910.14659): each token is masked in
turn, and the logarithms of the probabilities that the model gives to what was there are added up. A word of several
pieces is then judged too well, because the pieces after the masked one give it away; with unit=word these are masked,
too (PLL-word-l2r of Kauf and Ivanova 2023, arXiv 2305.10588). A model that reads from left to right gives the logarithm
of its probability of the text. [CLS] and [SEP] are never among the tokens that count.

The copies of a text, each with its mask, share rows with others (pretrained/outputs.py), and the last layer and the
head are computed at the masked places alone. A text has the figures that it has alone, up to rounding.

Minimal pairs are those of BLiMP (Warstadt et al. 2020) or CrowS-Pairs (Nangia et al. 2020). The latter are compared
as in the code of its authors: by the tokens that both sentences have in common, each masked in turn, so that what
differs is given and not judged.
"""

import dataclasses
import difflib
import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import numpy as np
from etils import epath

from bert_jax.config.commands import ScoreUnit
from bert_jax.data.sequences import as_features, text_places
from bert_jax.errors import UserError
from bert_jax.pretrained.answers import check_fills_masks
from bert_jax.pretrained.outputs import MaskedWords, computed, in_batches
from bert_jax.progress import track
from bert_jax.tasks.readers import column, table_rows, text_of
from bert_jax.tokenization.tokenizer import tokenize

Row = tuple[np.ndarray, np.ndarray]
"""Ids and token types of a text with its special tokens, int32 [L] each."""
TOGETHER = 1 << 18
"""Positions of the copies of texts that are made at a time, unless one text has more."""


@dataclasses.dataclass(frozen=True, eq=False)
class Likelihood:
    """What a model thinks of a text."""

    tokens: tuple[str, ...]
    """The pieces that count."""
    log_probabilities: np.ndarray
    """float32 [n]: the logarithm of the probability of each, in nats."""

    @property
    def total(self) -> float:
        """Their sum, in nats: the (pseudo-)log-likelihood of the text."""
        return float(self.log_probabilities.sum(dtype=np.float64))

    @property
    def mean(self) -> float:
        """Nats per token, by which texts of different lengths can be compared; 0 without tokens."""
        return self.total / max(len(self.tokens), 1)


def likelihoods(
    model: Any, texts: Any, unit: ScoreUnit = "token", batch_size: int = 32, progress: bool | None = None
) -> list[Likelihood]:
    """Return what a PretrainedModel thinks of each of several texts or pairs.

    Raises:
      UserError: the model predicts no words, or a text is empty or too long.
    """
    check_scores(model, unit)
    tokenizer = model.need_tokenizer()
    rows = tokenize(tokenizer, texts, model.config.longest_sequence, truncate=False)
    if any(types.any() for _, types in rows) and model.config.type_vocab_size == 1:
        raise UserError("this model has one segment (type_vocab_size=1) and cannot read pairs; give single texts")
    places = [_counted(tokenizer, ids) for ids, _ in rows]
    if (empty := next((number for number, own in enumerate(places) if not len(own)), None)) is not None:
        raise UserError(f"text {empty} of those to score has no token, so there is nothing to score; leave it out")
    values = log_probabilities(model, rows, places, unit, batch_size, progress)
    return [
        Likelihood(tuple(tokenizer.tokens[number] for number in ids[own]), found)
        for (ids, _), own, found in zip(rows, places, values, strict=True)
    ]


def check_scores(model: Any, unit: ScoreUnit) -> None:
    """Raise a UserError if a model gives texts no likelihood, or the unit has no effect."""
    check_fills_masks(model)
    if unit not in get_args(ScoreUnit):
        raise UserError(f"unit={unit!r:.40} must be token or word")
    if unit == "word" and model.config.predicts_ahead:
        raise UserError(
            "unit=word says what is masked, and a model with model.direction=left_to_right, which has the probability "
            "of a text itself, masks nothing; leave it out"
        )


def log_probabilities(
    model: Any,
    rows: Sequence[Row],
    places: Sequence[np.ndarray],
    unit: ScoreUnit = "token",
    batch_size: int = 32,
    progress: bool | None = None,
) -> list[np.ndarray]:
    """Return the logarithms of the probabilities of the tokens at `places` of each row, float32 as many."""
    once = model.config.predicts_ahead > 0
    expand: Callable[[Row, np.ndarray], list[_Copy]] = _whole if once else _Copies(model.tokenizer, unit)
    sizes = [len(ids) * (1 if once else max(len(own), 1)) for (ids, _), own in zip(rows, places, strict=True)]
    found: list[Any] = [None] * len(rows)
    groups = list(_groups(sizes))
    show = len(groups) > 1 if progress is None else progress
    for group in track(groups, "parts of the texts", len(groups), visible=show):
        masked = [expand(rows[number], places[number]) for number in group]
        copies = [copy for own in masked for copy in own]
        values = iter(_computed(model, copies, batch_size))
        for number, own in zip(group, masked, strict=True):
            found[number] = np.concatenate([next(values) for _ in own] or [np.zeros(0, np.float32)])
    return found


def _counted(tokenizer: Any, ids: np.ndarray) -> np.ndarray:
    """Return int64 [n], the places of a text that are none of its marks."""
    return np.flatnonzero(~np.isin(ids, [tokenizer.cls_id, tokenizer.sep_id]))


def _groups(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yield all numbers, the longest texts first, in groups of TOGETHER positions at most, or of one."""
    group, used = [], 0
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        if group and used + sizes[number] > TOGETHER:
            yield group
            group, used = [], 0
        group.append(number)
        used += sizes[number]
    if group:
        yield group


@dataclasses.dataclass(frozen=True)
class _Copy:
    """A row to compute, and of it the places and words whose probabilities are asked for."""

    ids: np.ndarray
    types: np.ndarray
    places: np.ndarray
    words: np.ndarray


def _whole(row: Row, places: np.ndarray) -> list[_Copy]:
    return [_Copy(*row, places, row[0][places])]


class _Copies:
    """Makes the copies of a text in each of which one token is asked for, and masked."""

    def __init__(self, tokenizer: Any, unit: ScoreUnit):
        self._tokenizer = tokenizer
        self._continues = tokenizer.continues_word() if unit == "word" else None

    def __call__(self, row: Row, places: np.ndarray) -> list[_Copy]:
        ids, types = row
        ends = places + 1 if self._continues is None else self._ends(ids)[places]
        found = []
        for place, end in zip(places.tolist(), ends.tolist(), strict=True):
            hidden = ids.copy()
            hidden[place:end] = self._tokenizer.mask_id
            found.append(_Copy(hidden, types, np.array([place]), ids[[place]]))
        return found

    def _ends(self, ids: np.ndarray) -> np.ndarray:
        """Return int64 [L]: of each place, the first after the word that it belongs to."""
        assert self._continues is not None
        begins = np.append(~self._continues[ids], True)
        places = np.where(begins, np.arange(len(begins)), len(begins))
        return np.minimum.accumulate(places[::-1])[::-1][1:]


def _computed(model: Any, copies: Sequence[_Copy], batch_size: int) -> list[np.ndarray]:
    """Return the logarithms that are asked for in each copy."""
    features = as_features([(copy.ids, copy.types) for copy in copies], model.config.longest_sequence)
    found: list[Any] = [None] * len(copies)
    if model.config.two_streams:  # whose masked words are computed in another way
        output = MaskedWords(model.tokenizer.mask_id, None, 0)
        for numbers, rows in computed(model.runner, output, features, batch_size, False):
            for number, (logits, *_) in zip(numbers, rows, strict=False):  # of a word, the first mask is asked for
                found[number] = logits[copies[number].words] - np.logaddexp.reduce(logits.astype(np.float64))
        return found
    before = model.config.predicts_ahead
    for numbers, batch in in_batches(features, batch_size, False, True, model.runner.longest):
        own = [copies[number] for number in numbers]
        counts = [len(copy.places) for copy in own]
        row, start = (np.repeat(values, counts) for values in text_places(batch))
        position = start + np.concatenate([copy.places for copy in own]) - before
        words = np.concatenate([copy.words for copy in own])
        values = model.runner.log_probabilities(batch, row, position, words, few=not before)
        for number, part in zip(numbers, np.split(values, np.cumsum(counts)[:-1]), strict=True):
            found[number] = part
    return found


FORMS = {"blimp": ("sentence_good", "sentence_bad"), "crows_pairs": ("sent_more", "sent_less")}
"""Columns with the two texts of a pair, by the form of a file; the first is what the measure counts."""
GROUPS = ("UID", "bias_type", "phenomenon", "linguistics_term")
"""Usual names of a column with the group of a pair."""
Z95 = 1.959963984540054


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two texts that differ in little."""

    where: str
    group: str
    texts: tuple[str, str]
    """The good and the bad one, or the more and the less stereotypical one."""


@dataclasses.dataclass(frozen=True)
class Preferences:
    """How often the first text of a pair is the more likely one."""

    group: str
    pairs: int
    preferred: int
    equal: int
    """Pairs whose texts have equal scores, which count as not preferred."""

    @property
    def share(self) -> float:
        """Accuracy, or the share of stereotypical texts that are preferred."""
        return self.preferred / self.pairs

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of Wilson around the share, which holds it with a probability of 95 %."""
        n, z = self.pairs, Z95
        middle = (self.preferred + z * z / 2) / (n + z * z)
        half = z / (n + z * z) * math.sqrt(self.preferred * (n - self.preferred) / n + z * z / 4)
        return max(0.0, middle - half), min(1.0, middle + half)


def read_pairs(path: str | os.PathLike[str], group_by: str = "") -> tuple[str, list[Pair]]:
    """Return the form of a file of minimal pairs, or of the files of a directory, and its pairs.

    Args:
      path: JSON lines, CSV, TSV or Parquet with the columns of one of FORMS; or a directory of JSON lines, as BLiMP's
        data.
      group_by: column with the group of a pair; empty: the first with a usual name, or else the name of the file.
    """
    place = epath.Path(path).expanduser()
    files = sorted(place.glob("*.jsonl"), key=str) if place.is_dir() else [place]
    form, pairs = "", []
    for where, values in itertools.chain.from_iterable(table_rows(file, has_header=True) for file in files):
        own = next((name for name, columns in FORMS.items() if columns[0] in values), None)
        if own is None or form not in ("", own):
            wanted = " or ".join(" and ".join(columns) for columns in FORMS.values())
            raise UserError(
                f"{where}: the columns are {', '.join(map(str, values))[:200]}; expected {wanted} in all lines"
            )
        form, (first, second) = own, FORMS[own]
        name = column(values, group_by, GROUPS)
        if group_by and name is None:
            raise UserError(
                f"{where}: group_by={group_by!r:.60} is none of the columns {', '.join(map(str, values))[:200]}"
            )
        group = epath.Path(where.split(", line ")[0]).stem if name is None else text_of(where, values, name)
        pairs.append(Pair(where, group, (text_of(where, values, first), text_of(where, values, second))))
    if not pairs:
        raise UserError(f"{place} holds no pairs: expected JSON lines with {' and '.join(FORMS['blimp'])}, or a CSV")
    return form, pairs


def scores_of_pairs(
    model: Any,
    form: str,
    pairs: Sequence[Pair],
    unit: ScoreUnit = "token",
    mean: bool = False,
    batch_size: int = 32,
    progress: bool | None = None,
) -> np.ndarray:
    """Return the scores of the two texts of each pair, float64 [n, 2]: sums, or with `mean` nats per token.

    Raises:
      UserError: as `likelihoods` does, with the line of the file; or unit=word for CrowS-Pairs, whose measure masks one
        token at a time.
    """
    check_scores(model, unit)
    conditional = form == "crows_pairs" and not model.config.predicts_ahead
    if conditional and unit == "word":
        raise UserError(
            "unit=word would mask what the sentences of CrowS-Pairs differ in, and their measure gives that; leave it "
            "out"
        )
    tokenizer, longest = model.need_tokenizer(), model.config.longest_sequence
    rows = tokenize(tokenizer, [text for pair in pairs for text in pair.texts], None)
    places = [_counted(tokenizer, ids) for ids, _ in rows]
    for number, ((ids, _), own) in enumerate(zip(rows, places, strict=True)):
        if not len(own) or len(ids) > longest:
            problem = f"has {len(ids)} tokens with its [CLS] and [SEP], but the model takes {longest}; shorten it"
            raise UserError(
                f"{pairs[number // 2].where}: the text {pairs[number // 2].texts[number % 2][:40]!r} "
                f"{problem if len(own) else 'has no token'}"
            )
    if conditional:
        couples = zip(rows[::2], rows[1::2], strict=True)
        places = [own for couple in couples for own in _common(tokenizer, *couple)]
    values = log_probabilities(model, rows, places, unit, batch_size, progress)
    sums = [own.sum(dtype=np.float64) / (max(len(own), 1) if mean else 1) for own in values]
    return np.array(sums).reshape(-1, 2)


def _common(tokenizer: Any, first: Row, second: Row) -> list[np.ndarray]:
    """Return, of each of two texts, the places of the tokens that both have, as difflib aligns them, without marks."""
    (one, _), (other, _) = first, second
    matcher = difflib.SequenceMatcher(None, one.tolist(), other.tolist(), autojunk=False)
    shared = [range(block.a, block.a + block.size) for block in matcher.get_matching_blocks()]
    moved = [range(block.b, block.b + block.size) for block in matcher.get_matching_blocks()]
    places = (np.array(list(itertools.chain(*own)), np.int64) for own in (shared, moved))
    return [own[np.isin(own, _counted(tokenizer, ids))] for own, ids in zip(places, (one, other), strict=True)]


def preferences(pairs: Sequence[Pair], scores: np.ndarray) -> list[Preferences]:
    """Return how often the first text has the higher score [n, 2], for each group in order, and last for all."""
    groups = np.array([pair.group for pair in pairs])
    members = {group: groups == group for group in dict.fromkeys(groups.tolist())}
    first, second = scores.T
    return [
        Preferences(group, int(own.sum()), int((first > second)[own].sum()), int((first == second)[own].sum()))
        for group, own in (*members.items(), ("all", np.ones(len(groups), bool)))
    ]
