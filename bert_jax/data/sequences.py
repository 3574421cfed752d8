"""Token sequences of any length as batches of few shapes, in an order that is a pure function of (seed, step).

`Features` is the output of every task family: sequences with their answers, not yet padded. A batch is padded to the
next of a few lengths, so a step is compiled once per length and not per batch. Rows that only fill a batch have
weight 0 and count in no loss, metric or prediction. The share of texts longer than the model reads is reported, with
the value of an option that keeps them whole.

With shared rows, a row holds several sequences: the same sequences as in padded batches, on fewer positions. A
sequence goes where it leaves the least room, the longest first (best fit decreasing). The sequences of a batch and
their weights are the same as without sharing; only dropout falls on other elements.

Texts that a model encodes outside a task (`PackedBatches`; on a CPU those of pretrained/outputs.py) also come in few
shapes, so that a jitted model compiles a few times and not once per length.
"""

import collections
import dataclasses
import functools
import heapq
import string
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.config.heads import SingleVector, TextVectors, TokenVectors
from bert_jax.errors import UserError
from bert_jax.randomness import Stream, bits, permute
from bert_jax.tokenization.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Uncut:
    """Lengths of the texts of E examples before any of them was cut."""

    lengths: np.ndarray
    """int64 [E]: number of tokens of each sequence with its [CLS] and [SEP] (multiple choice: of the longest
    candidate's); for SQuAD, of each question alone."""
    limit: int
    """Maximum length; longer texts are cut to it."""
    noun: str
    """Kind of what is cut: texts, pairs or questions."""
    option: str = "max_length"
    """The option that sets `limit`."""
    most: int | None = None
    """Highest possible value of the option; None: as many tokens as the model has positions."""

    @property
    def share(self) -> float:
        """Share of the examples that are cut."""
        return float(np.mean(self.lengths > self.limit))

    def describe(self, split: str, allowed: str) -> str:
        """Return a sentence on how many examples of `split` (its name, or "") are longer than `allowed`."""
        return (
            f"{np.sum(self.lengths > self.limit):,} of {len(self.lengths):,} {split}{' ' * bool(split)}{self.noun} "
            f"({100 * self.share:.1f} %) are longer than {allowed} (median {np.median(self.lengths):.0f}) and are cut"
        )

    def advise(self, split: str, positions: int) -> str:
        """Return `describe` with the value of the option that cuts nothing or, if there is none, the fewest.

        `positions`: number of positions of the model, the maximum length of a sequence.
        """
        longest, most = int(self.lengths.max()), positions if self.most is None else self.most
        if longest <= most:
            remedy = f"--options.{self.option}={longest} keeps all of them"
        elif most > self.limit:
            share = 100 * np.mean(self.lengths > most)
            remedy = f"--options.{self.option}={most}, the most there is room for, cuts {share:.1f} %"
        else:
            remedy = "there is room for no more"
        return f"{self.describe(split, f'options.{self.option}={self.limit} tokens')}; {remedy}"


@dataclasses.dataclass(frozen=True)
class Features:
    """E sequences of at most `max_length` tokens, `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`; batching pads them."""

    input_ids: list[Any]
    """int32 [L] each; for choice a list of K such arrays per example."""
    token_type_ids: list[Any]
    """As `input_ids`: 0 for [CLS] A [SEP], 1 for B [SEP]."""
    labels: np.ndarray | list[np.ndarray] | None
    """int32 [E] for classification and choice; float32 [E, C] for several labels per text, 1 for those that it has;
    float32 [E] for regression; int32 [E, 2] for span, token positions, (0, 0) if the sequence has no answer; a list of
    int32 [L] for tagging, -1 where nothing is predicted, else as `models.task.with_edges` makes them. None if there are
    no labels."""
    example: np.ndarray
    """int32 [E]: index of the example that each sequence came from."""
    max_length: int
    uncut: Uncut | None = dataclasses.field(default=None, kw_only=True)
    """None if everything is read, in windows."""
    weights: np.ndarray | None = dataclasses.field(default=None, kw_only=True)
    """float32 [E]: weight of each sequence in a batch; None: 1."""
    marks: list[Any] | None = dataclasses.field(default=None, kw_only=True)
    """As `input_ids`, uint8: SEEN for tokens that are attended to, plus COMPARED for those whose vectors count. None:
    SEEN for all."""
    in_windows: bool = dataclasses.field(default=False, kw_only=True)
    """Whether each entry is a list of the windows of a text, as many as it needs, and not of candidates."""

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def divided(self) -> np.ndarray:
        """int [N]: the example of each of what is divided into the batches of an epoch, which are the sequences unless
        some stay together."""
        return self.example

    @property
    def in_epoch(self) -> int:
        """Number of what is divided into the batches of an epoch."""
        return len(self.divided)

    @property
    def per_example(self) -> int:
        """Most sequences of an example, all of which a batch has in rows of their own."""
        return 1

    def part(self, numbers: np.ndarray) -> "Features":
        """Return the sequences `numbers`, integers [n], without labels, each as an example of its own."""
        return Features(
            [self.input_ids[number] for number in numbers],
            [self.token_type_ids[number] for number in numbers],
            None,
            np.arange(len(numbers), dtype=np.int32),
            self.max_length,
        )


SEEN, COMPARED = 1, 2
"""Bits of `Features.marks`."""


@dataclasses.dataclass(frozen=True)
class TextFeatures(Features):
    """E examples of K texts each, whose vectors are compared: a list of K sequences per example, as for choice.

    Labels are float32 [E], or [E, K - 1] of a teacher.
    """

    numbers: np.ndarray = dataclasses.field(kw_only=True)
    """int32 [E, K]: equal texts have equal numbers."""
    apart: bool = dataclasses.field(default=False, kw_only=True)
    """Whether examples with an equal anchor or positive are kept in different batches of training."""
    form: TextVectors = dataclasses.field(default=SingleVector(), kw_only=True)
    """Form of the vectors, by which they are compared."""

    @property
    def per_example(self) -> int:
        return self.numbers.shape[1]

    def texts(self) -> Features:
        """Return the E · K texts as sequences of their own, those of an example one after the other."""
        parts = [self.input_ids, self.token_type_ids, *([] if self.marks is None else [self.marks])]
        ids, types, *marks = ([each for entry in part for each in entry] for part in parts)
        numbers = np.arange(len(ids), dtype=np.int32)
        return Features(ids, types, None, numbers, self.max_length, marks=marks[0] if marks else None)


class TokenReader:
    """Makes the sequences of queries and documents whose tokens have a vector each, and their marks.

    Raises:
      UserError: the form asks for what the tokenizer cannot do.
    """

    def __init__(self, form: TokenVectors, tokenizer: Tokenizer):
        if form.expansion != "none" and tokenizer.class_last:
            raise UserError(
                f"form.expansion={form.expansion} puts [MASK] after a query, but this model has [CLS] there; leave "
                "it out"
            )
        self._form, self._mask_id = form, tokenizer.mask_id
        marks = string.punctuation if form.skip_punctuation else ""
        self._skipped = [number for number, token in enumerate(tokenizer.tokens) if len(token) == 1 and token in marks]

    def limit(self, query: bool, max_length: int) -> int:
        """Return the most tokens of a query or of a document, with [CLS] and [SEP]."""
        return self._form.query_length or max_length if query else max_length

    def read(self, ids: np.ndarray, types: np.ndarray, query: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return ids and token types, filled up, and uint8 marks, of those of a text with [CLS] and [SEP]: [L] each."""
        marks = np.full(len(ids), SEEN + COMPARED, np.uint8)
        if not query:
            marks[np.isin(ids, self._skipped)] = SEEN
            return ids, types, marks
        missing = 0 if self._form.expansion == "none" else self._form.query_length - len(ids)
        if missing <= 0:
            return ids, types, marks
        fill = COMPARED if self._form.expansion == "unseen" else SEEN + COMPARED
        added = ((ids, self._mask_id), (types, 0), (marks, fill))
        filled = [np.pad(values, (0, missing), constant_values=value) for values, value in added]
        return filled[0], filled[1], filled[2]


def compared_tokens(vectors: np.ndarray, marks: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the vectors that count, [M, D] for each of K texts, by its marks, of those of all tokens, [K, L, D]."""
    return [own[: len(each)][each >= COMPARED] for own, each in zip(vectors, marks, strict=False)]


@dataclasses.dataclass(frozen=True)
class GroupedFeatures(Features):
    """Sequences of which those of a group stay in one batch, because their scores are compared.

    The groups are the examples; the sequences of one are next to each other, in the order of the groups. Labels are
    float32 [E].
    """

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """int64 [G + 1]: the first sequence of each group, and at last their number."""
        return np.append(0, np.cumsum(np.bincount(self.example)))

    @property
    def divided(self) -> np.ndarray:
        return np.arange(len(self.starts) - 1)

    @property
    def per_example(self) -> int:
        return int(np.diff(self.starts).max())


Batch = dict[str, np.ndarray]
"""input_ids, token_type_ids, attention_mask int32 [B, L] (choice, windows: [B, K, L]) · weights float32 [B] · labels
[B], [B, 2], [B, C] or [B, L]."""

RUNGS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)


def ladder(max_length: int) -> tuple[int, ...]:
    """Return the lengths that batches are padded to: the rungs below `max_length`, and `max_length` itself."""
    return (*(rung for rung in RUNGS if rung < max_length), max_length)


def sequence_lengths(features: Features) -> np.ndarray:
    """Return int64 [E]: the number of tokens of each sequence; for choice, of the longest candidate."""
    return np.array([max(map(len, ids)) if isinstance(ids, list) else len(ids) for ids in features.input_ids], np.int64)


def steps_per_epoch(sequences: int, batch_size: int) -> int:
    """Return the number of batches that cover all sequences; the last may hold fewer."""
    return -(-sequences // batch_size)


class TrainingBatches:
    """The batches of all epochs; `batch(step)` can be called for any step, in any order.

    Each epoch covers all sequences once in a new order; its last batch has what is left. With `window` above 1, the
    sequences of that many consecutive batches are sorted by length before they are cut into batches, and these are
    shuffled: a batch then holds sequences of similar length, drawn from a window that is itself random. With window=1
    the batches are those of the plain shuffled order, whatever their lengths.

    Args:
      batch_size: number of sequences per step.
      multiple: divisor of the number of rows of a batch, which is rounded up (the number of devices).
    """

    def __init__(self, features: Features, batch_size: int, *, window: int = 1, seed: int = 0, multiple: int = 1):
        self.features: Features = features
        self.batch_size: int = batch_size
        self.window: int = window
        self.seed: int = seed
        self.rows: int = round_up(batch_size, multiple)
        self._multiple = multiple
        self.lengths: np.ndarray = sequence_lengths(features)
        self._epoch: tuple[int, list[np.ndarray]] = -1, []

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(self.features.in_epoch, self.batch_size)

    def indices(self, step: int) -> np.ndarray:
        """Return int64 [at most batch_size]: the sequences of the batch of the step from `step` to `step` + 1."""
        epoch, number = divmod(step, self.steps_per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = epoch, epoch_batches(self.lengths, self.batch_size, self.window, self.seed, epoch)
        return self._epoch[1][number]

    def batch(self, step: int) -> Batch:
        return padded(self.features, self.indices(step), self.rows_of(step))

    def rows_of(self, step: int) -> int:
        """Return the number of rows of the batch of that step."""
        return self.rows

    def notes(self) -> list[str]:
        """Return what people should know of the order of the examples, in the first epoch."""
        return []

    def positions(self) -> int:
        """Return the number of positions that the first TRIED batches have."""
        return sum(
            self.rows_of(step) * _rung(int(self.lengths[self.indices(step)].max()), self.features.max_length)
            for step in range(min(TRIED, self.steps_per_epoch))
        )

    def text_lengths(self, step: int) -> np.ndarray:
        """Return int64 [T]: the tokens of each text in that batch; for choice, of every candidate."""
        chosen = [self.features.input_ids[index] for index in self.indices(step)]
        return np.array([len(ids) for entry in chosen for ids in _texts(entry)], np.int64)


def epoch_batches(lengths: np.ndarray, batch_size: int, window: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Return the index arrays of the batches of one epoch, see TrainingBatches."""
    order = permute(np.arange(len(lengths)), len(lengths), bits(seed, Stream.ORDER, epoch))
    if window == 1:
        return _cut(order, batch_size)
    batches = []
    for number, members in enumerate(_cut(order, batch_size * window)):
        parts = _cut(members[np.argsort(lengths[members], kind="stable")], batch_size)
        places = permute(np.arange(len(parts)), len(parts), bits(seed, Stream.VISIT, epoch, number))
        batches += [parts[place] for place in places]
    return batches


def evaluation_batches(features: Features, batch_size: int) -> list[np.ndarray]:
    """Return index arrays that cover all sequences once, from the shortest to the longest."""
    return _cut(np.argsort(sequence_lengths(features), kind="stable"), batch_size)


def padded(features: Features, indices: np.ndarray, rows: int, length: int | None = None) -> Batch:
    """Return the sequences at `indices` as arrays of `rows` rows of so many positions; None: of the rung they need."""
    chosen = [features.input_ids[index] for index in indices]
    candidates = max(map(len, chosen)) if isinstance(chosen[0], list) else None
    if features.in_windows and candidates:  # a power of two, so that few shapes are compiled
        candidates = 1 << (candidates - 1).bit_length()
    if length is None:
        length = _rung(max(len(ids) for entry in chosen for ids in _texts(entry)), features.max_length)
    shape = (rows, candidates, length) if candidates else (rows, length)
    batch: Batch = {name: np.zeros(shape, np.int32) for name in ("input_ids", "token_type_ids", "attention_mask")}
    for row, index in enumerate(indices):
        for where, ids, types in _sequences(features, index, row):
            batch["input_ids"][where][: len(ids)] = ids
            batch["token_type_ids"][where][: len(ids)] = types
            batch["attention_mask"][where][: len(ids)] = 1
    if features.marks is not None:
        marks = np.zeros(shape, np.uint8)
        for row, index in enumerate(indices):
            for where, own, _ in _sequences(features, index, row, features.marks):
                marks[where][: len(own)] = own
        batch["attention_mask"] = (marks & SEEN).astype(np.int32)
        batch["compared"] = (marks // COMPARED).astype(np.int32)
    # Without a real token, a filling row would have no position to attend to.
    # A window that a text does not need is such a row, too.
    batch["attention_mask"][0 if features.in_windows else len(indices) :, ..., 0] = 1
    batch["weights"] = np.zeros(rows, np.float32)
    batch["weights"][: len(indices)] = 1 if features.weights is None else features.weights[indices]
    if features.labels is not None:
        batch["labels"] = _labels(features.labels, indices, rows, length)
    return batch


def _rung(length: int, max_length: int) -> int:
    """Return the length that sequences of at most `length` tokens are padded to."""
    return next(rung for rung in ladder(max_length) if rung >= length)


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _texts(entry: Any) -> list[np.ndarray]:
    """Return the candidates of a choice, or the one text that an entry of `Features.input_ids` is."""
    return entry if isinstance(entry, list) else [entry]


def _sequences(features: Features, index: int, row: int, values: list[Any] | None = None):
    """Return place, ids (or other values of each token) and token types of the sequences of an example."""
    ids, types = (features.input_ids if values is None else values)[index], features.token_type_ids[index]
    if not isinstance(ids, list):
        return [(row, ids, types)]
    return [((row, candidate), *pair) for candidate, pair in enumerate(zip(ids, types, strict=True))]


def _labels(labels: Any, indices: np.ndarray, rows: int, length: int) -> np.ndarray:
    """Return labels [rows, …] in their dtype: 0 in filling rows, -1 after the last token of a tagged sequence."""
    if isinstance(labels, list):
        out = np.full((rows, length), -1, np.int32)
        for row, index in enumerate(indices):
            out[row, : len(labels[index])] = labels[index]
        return out
    out = np.zeros((rows, *labels.shape[1:]), labels.dtype)
    out[: len(indices)] = labels[indices]
    return out


def _cut(order: np.ndarray, size: int) -> list[np.ndarray]:
    return [order[start : start + size] for start in range(0, len(order), size)]


SHORTEST = 4  # tokens; a row has a place for each sequence of so many, and shorter ones may leave room
TRIED = 512  # batches by which lengths and numbers of rows are compared
SPARED = 1.03  # times as many positions as the fewest are worth a program less, which would have to be compiled


class SharedRowBatches(TrainingBatches):
    """Batches with the sequences of `TrainingBatches`, of classes or a number each, in shared rows.

    Rows of one length serve all batches, in a few numbers of rows, for each of which the step is compiled once; a batch
    that needs fewer has empty rows. `batch(step)` has input_ids, token_type_ids, attention_mask and text_ids int32
    [R, L], text_starts int32 [R, T], weights float32 [R, T] and labels [R, T], of several labels per text [R, T, C]; R
    is a multiple of `multiple`.

    Args:
      batch_size: number of sequences per step.
      longest_row: most positions of a row, at least as many as the longest sequence is padded to.
      window: as in `TrainingBatches`.
      multiple: divisor of the number of rows of a batch.
    """

    def __init__(
        self,
        features: Features,
        batch_size: int,
        longest_row: int,
        *,
        window: int = 1,
        seed: int = 0,
        multiple: int = 1,
    ):
        super().__init__(features, batch_size, window=window, seed=seed, multiple=multiple)
        shortest = _rung(int(self.lengths.max()), self.features.max_length)
        wider = min(shortest * 3 // 2, max(shortest, longest_row))  # leaves less room at the ends of rows, or more
        found = {length: self._tried(length) for length in (shortest, wider)}
        self.length: int = min(found, key=lambda length: length * sum(found[length]))
        self._tried_rows: list[int] = found[self.length]
        self._row_counts: tuple[int, ...] = fewest_sizes(self._tried_rows, SPARED)

    def batch(self, step: int) -> Batch:
        indices = self.indices(step)
        row, start = self._shared(step, self.length)
        rows = self._rows(round_up(int(row.max()) + 1, self._multiple))
        return filled(self.features, indices, row, start, (rows, self.length), self._slots(self.length))

    def positions(self) -> int:
        return self.length * sum(map(self._rows, self._tried_rows))

    def _rows(self, needed: int) -> int:
        """Return the number of rows of a batch: one of `_row_counts`, or what it needs where that is more than all."""
        return next((count for count in self._row_counts if count >= needed), needed)

    def _slots(self, length: int) -> int:
        return min(self.batch_size, most_sequences(length))

    def _shared(self, step: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        return shared_rows(self.lengths[self.indices(step)], length, self._slots(length))

    def _tried(self, length: int) -> list[int]:
        """Return how many rows of this length each of the first TRIED batches needs."""
        steps = range(min(TRIED, self.steps_per_epoch))
        return [round_up(int(self._shared(step, length)[0].max()) + 1, self._multiple) for step in steps]


class _BatchesOfTexts(TrainingBatches):
    """Batches of examples of K texts, each of which is a sequence for the class after this one.

    `batch(step)` has the rows of that class without weights, and for B examples: places int32 [B, K], the number of
    each text among those of all rows (among R · T of shared rows), numbers int32 [B, K] and labels, as in the features,
    and weights float32 [B].

    Args:
      ramp_epochs: epochs over which `ramp` float32 [B], the same for all examples of a batch, rises to 1 with the
        square of the step; None: there is no such array.
    """

    def __init__(
        self, features: TextFeatures, batch_size: int, *others: Any, ramp_epochs: float | None = None, **options: Any
    ):
        self._examples, self._examples_per_batch, self._ramp_epochs = features, batch_size, ramp_epochs
        self._example_lengths = sequence_lengths(features)
        self._of_epoch: tuple[int, list[np.ndarray], int] = -1, [], 0
        super().__init__(features.texts(), batch_size * features.numbers.shape[1], *others, **options)

    def examples(self, step: int) -> np.ndarray:
        """Return int64 [at most batch_size]: the examples of the batch of that step."""
        epoch, number = divmod(step, self.steps_per_epoch)
        if self._of_epoch[0] != epoch:
            found = epoch_batches(self._example_lengths, self._examples_per_batch, self.window, self.seed, epoch)
            apart = kept_apart(found, self._examples.numbers[:, :2]) if self._examples.apart else (found, 0)
            self._of_epoch = epoch, apart[0], apart[1]
        return self._of_epoch[1][number]

    def notes(self) -> list[str]:
        self.examples(0)
        _, _, together = self._of_epoch
        return [
            f"{together:,} of {len(self._examples):,} examples share a batch with an equal text, since there are more "
            "such examples than batches; the text is no negative there"
        ] * (together > 0)

    def indices(self, step: int) -> np.ndarray:
        count = self._examples.numbers.shape[1]
        return (self.examples(step)[:, None] * count + np.arange(count)).reshape(-1)

    def batch(self, step: int) -> Batch:
        examples, batch = self.examples(step), super().batch(step)
        of_text = self._places(step, batch.pop("weights").shape)
        rows = round_up(self._examples_per_batch, self._multiple)
        values: Batch = {
            "places": of_text.reshape(len(examples), -1).astype(np.int32),
            "numbers": self._examples.numbers[examples],
            "weights": np.ones(len(examples), np.float32),
        }
        if self._ramp_epochs is not None:
            steps = int(self._ramp_epochs * self.steps_per_epoch)
            values["ramp"] = np.full(len(examples), (step / steps) ** 2 if step < steps else 1, np.float32)
        if isinstance(self._examples.labels, np.ndarray):
            values["labels"] = self._examples.labels[examples]
        filling = [(0, rows - len(examples))]
        return batch | {name: np.pad(each, filling + [(0, 0)] * (each.ndim - 1)) for name, each in values.items()}

    def _places(self, step: int, shape: tuple[int, ...]) -> np.ndarray:
        """Return int [n]: the places of the texts of a batch, in an array of this shape with one for each."""
        return np.arange(len(self.indices(step)))


class TextBatches(_BatchesOfTexts):
    """The same with every text in a row of its own."""


class SharedTextBatches(_BatchesOfTexts, SharedRowBatches):
    """The same in shared rows."""

    def _places(self, step: int, shape: tuple[int, ...]) -> np.ndarray:
        return places_in_rows(self._shared(step, self.length)[0], shape[1])


def places_in_rows(row: np.ndarray, slots: int) -> np.ndarray:
    """Return int64 [n]: the place of each sequence of a batch among the R · `slots` of all rows, from its row."""
    order = np.argsort(row, kind="stable")
    begins = np.searchsorted(row[order], np.arange(row.max() + 1))
    slot = np.zeros_like(row)
    slot[order] = np.arange(len(row)) - begins[row[order]]
    return row * slots + slot


class _BatchesOfGroups(TrainingBatches):
    """Batches of whole groups of up to K sequences, each of which is a sequence for the class after this one.

    `batch(step)` has the rows of that class without weights and labels, and for B groups: places int32 [B, K], the
    number of each sequence among those of all rows (among R · T of shared rows), labels float32 [B, K], members float32
    [B, K], 1 for a sequence and 0 for what only fills a group, and weights float32 [B].
    """

    def __init__(self, features: GroupedFeatures, batch_size: int, *others: Any, **options: Any):
        self._groups, self._groups_per_batch = features, batch_size
        sizes = np.diff(features.starts)
        self._most = int(sizes.max())
        self._group_lengths = np.maximum.reduceat(sequence_lengths(features), features.starts[:-1])
        self._of_epoch: tuple[int, list[np.ndarray]] = -1, []
        super().__init__(features, batch_size * self._most, *others, **options)

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(self._groups.in_epoch, self._groups_per_batch)

    def groups(self, step: int) -> np.ndarray:
        """Return int64 [at most batch_size]: the groups of the batch of that step."""
        epoch, number = divmod(step, self.steps_per_epoch)
        if self._of_epoch[0] != epoch:
            found = epoch_batches(self._group_lengths, self._groups_per_batch, self.window, self.seed, epoch)
            self._of_epoch = epoch, found
        return self._of_epoch[1][number]

    def indices(self, step: int) -> np.ndarray:
        starts = self._groups.starts.tolist()
        return np.concatenate([np.arange(starts[group], starts[group + 1]) for group in self.groups(step).tolist()])

    def batch(self, step: int) -> Batch:
        groups, batch, indices = self.groups(step), super().batch(step), self.indices(step)
        of_sequence = self._places(step, batch.pop("weights").shape)
        rows = round_up(self._groups_per_batch, self._multiple)
        sizes = np.diff(self._groups.starts)[groups]
        members = np.zeros((rows, self._most), np.float32)
        members[: len(groups)] = np.arange(self._most) < sizes[:, None]
        places, labels = np.zeros((rows, self._most), np.int32), np.zeros((rows, self._most), np.float32)
        places[members > 0] = of_sequence
        assert isinstance(self._groups.labels, np.ndarray)
        labels[members > 0] = self._groups.labels[indices]
        weights = (np.arange(rows) < len(groups)).astype(np.float32)
        return batch | {"places": places, "labels": labels, "members": members, "weights": weights}

    def _places(self, step: int, shape: tuple[int, ...]) -> np.ndarray:
        """Return int64 [n]: the places of the sequences of a batch, in an array of this shape with one for each."""
        return np.arange(len(self.indices(step)))


class GroupBatches(_BatchesOfGroups):
    """The same with every sequence in a row of its own; groups of different sizes give batches of a few sizes."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        sizes = [self._needed(step) for step in range(min(TRIED, self.steps_per_epoch))]
        self._row_counts: tuple[int, ...] = fewest_sizes(sizes, SPARED)

    def _needed(self, step: int) -> int:
        return round_up(len(self.indices(step)), self._multiple)

    def rows_of(self, step: int) -> int:
        needed = self._needed(step)
        return next((count for count in self._row_counts if count >= needed), needed)


class SharedGroupBatches(_BatchesOfGroups, SharedRowBatches):
    """The same in shared rows."""

    def _places(self, step: int, shape: tuple[int, ...]) -> np.ndarray:
        return places_in_rows(self._shared(step, self.length)[0], shape[1])


def kept_apart(batches: list[np.ndarray], numbers: np.ndarray) -> tuple[list[np.ndarray], int]:
    """Return as many batches of the same examples, and how many are in one with an equal text all the same.

    In the order that they have, examples go to the first batch with room after all that hold an equal text. The last
    batches may have no room for all; who is left goes where there is some. So no example is left out.

    Args:
      batches: the examples of each, all as many but perhaps one.
      numbers: int [E, K], those of the texts of each example.
    """
    size, count = max(map(len, batches)), len(batches)
    room = [size] * count
    following = list(range(count + 1))  # of each batch, the first from it on that may have room
    made: list[list[int]] = [[] for _ in batches]
    earliest: dict[int, int] = {}
    left = []

    def with_room(place: int) -> int:
        while following[place] != place:
            following[place] = following[following[place]]
            place = following[place]
        return place

    def put(example: int, place: int) -> None:
        made[place].append(example)
        room[place] -= 1
        if not room[place]:
            following[place] = place + 1

    for example in np.concatenate(batches).tolist():
        own = set(numbers[example].tolist())
        place = with_room(max(earliest.get(each, 0) for each in own))
        if place == count:
            left.append(example)
            continue
        put(example, place)
        earliest |= dict.fromkeys(own, place + 1)
    for example in left:
        put(example, with_room(0))
    return [np.array(each, np.int64) for each in made], len(left)


def fewest_sizes(needed: Sequence[int], allowed: float) -> tuple[int, ...]:
    """Return the fewest sizes, ascending, to which all of `needed` can be rounded up so that the sum hardly grows.

    Args:
      needed: sizes, of which the greatest is always among the result.
      allowed: the most that the sum of the rounded sizes may be, as a multiple of the sum of `needed`.
    """
    counts = collections.Counter(needed)
    # Sums and sizes of the cheapest choice for the sizes up to each, with one size more in every round.
    cheapest = {size: (size * sum(counts[each] for each in counts if each <= size), (size,)) for size in sorted(counts)}
    greatest = max(counts)
    while cheapest[greatest][0] > allowed * sum(needed):
        cheapest = {
            size: min(
                (
                    total + size * sum(counts[each] for each in counts if below < each <= size),
                    (*chosen, size) if below < size else chosen,
                )
                for below, (total, chosen) in cheapest.items()
                if below <= size
            )
            for size in cheapest
        }
    return cheapest[greatest][1]


def shared_rows(lengths: np.ndarray, row_lengths: int | np.ndarray, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Return int64 [n], [n]: the row of each sequence, counted from 0 without gaps, and where it begins there.

    Args:
      lengths: int64 [n], at most `row_lengths` each.
      row_lengths: positions of a row; or, int64 [n], of the row that a sequence begins if it fits into no other.
      slots: most sequences of a row.

    Raises:
      UserError: a sequence is longer than its row.
    """
    row, start = np.zeros_like(lengths), np.zeros_like(lengths)
    opened = np.broadcast_to(row_lengths, lengths.shape)
    if len(over := np.flatnonzero(lengths > opened)):
        raise UserError(
            f"a text of {lengths[over[0]]} tokens does not fit into a row of {opened[over[0]]}, and texts that share "
            "rows are whole; cut it to the length of the row, or make the rows longer"
        )
    used: list[int] = []
    counts: list[int] = []
    rows_with: list[list[int]] = [[] for _ in range(int(opened.max()) + 1)]  # by the room that is left
    for index in np.argsort(-lengths, kind="stable"):
        size = int(lengths[index])
        room = next((room for room in range(size, len(rows_with)) if rows_with[room]), None)
        if room is None:
            room, place = int(opened[index]), len(used)
            used.append(0)
            counts.append(0)
        else:
            place = heapq.heappop(rows_with[room])
        row[index], start[index] = place, used[place]
        used[place] += size
        counts[place] += 1
        if counts[place] < slots:
            heapq.heappush(rows_with[room - size], place)
    return row, start


def most_sequences(row_length: int) -> int:
    """Return for how many sequences a row has places."""
    return max(1, row_length // SHORTEST)


def filled(
    features: Features, indices: np.ndarray, row: np.ndarray, start: np.ndarray, shape: tuple[int, int], slots: int
) -> Batch:
    """Return the sequences at `indices` in their rows of a batch of this shape, [R, L], see SharedRowBatches.

    Features without labels give a batch without them.
    """
    names = ("input_ids", "token_type_ids", "attention_mask", "text_ids")
    batch: Batch = {name: np.zeros(shape, np.int32) for name in names}
    batch["text_starts"] = np.zeros((shape[0], slots), np.int32)
    batch["weights"] = np.zeros((shape[0], slots), np.float32)
    if features.labels is not None:
        assert isinstance(features.labels, np.ndarray)
        batch["labels"] = np.zeros((shape[0], slots, *features.labels.shape[1:]), features.labels.dtype)
    taken = np.zeros(shape[0], np.int64)
    for index, r, begin in zip(indices, row, start, strict=True):
        ids, slot = features.input_ids[index], taken[r]
        where = r, slice(begin, begin + len(ids))
        batch["input_ids"][where] = ids
        batch["token_type_ids"][where] = features.token_type_ids[index]
        batch["attention_mask"][where] = 1
        batch["text_ids"][where] = slot + 1
        batch["text_starts"][r, slot] = begin
        batch["weights"][r, slot] = 1 if features.weights is None else features.weights[index]
        if features.labels is not None:
            batch["labels"][r, slot] = features.labels[index]
        taken[r] += 1
    # As in `padded`: a filling row needs a position to attend to.
    batch["attention_mask"][taken == 0, 0] = 1
    return batch


WIDTHS = (64, 96, 128)
"""Positions of rows for several texts: attention takes longer in wider ones, but less stays empty."""
ALIKE = 512
"""Positions of a row to all of which attention takes about as long as the products of a layer. Measured on a CPU, where
rows are those of pretrained/outputs.py now; an accelerator's is not measured."""


def as_features(rows: list[tuple[np.ndarray, np.ndarray]], longest: int) -> Features:
    """Return pairs of ids and token types, not padded and without labels, as Features; one row per example."""
    return Features(
        [ids for ids, _ in rows], [types for _, types in rows], None, np.arange(len(rows), dtype=np.int32), longest
    )


def batches(features: Features, batch_size: int) -> Iterator[tuple[np.ndarray, Batch]]:
    """Yield the numbers of the sequences in each batch, and the batch, the longest first.

    So a batch that exceeds the memory fails at once. All batches have the same number of rows: batch_size or, for
    fewer sequences, the next power of two. Rows that only fill a batch come last.
    """
    rows = min(batch_size, 1 << (len(features) - 1).bit_length())
    for numbers in reversed(evaluation_batches(features, rows)):
        yield numbers, padded(features, numbers, rows)


class PackedBatches:
    """The numbers of the sequences in each batch, and the batch, in rows of several sequences, the longest rows first.

    A row has the length of a rung that the longest of its sequences needs, or that of the one of WIDTHS which costs
    least: each position takes as long as its matrix products and attention to the whole row. The numbers are in the
    order of `text_places`. A batch has `batch_size` rows or, of fewer rows of a length, the next power of two.

    Args:
      batch_size: most rows of a batch.
    """

    def __init__(self, features: Features, batch_size: int):
        self._features, self._batch_size = features, batch_size
        lengths, rungs = sequence_lengths(features), np.array(ladder(features.max_length))
        reached = [rungs[np.searchsorted(rungs, min(width, lengths.sum(), rungs[-1]))] for width in WIDTHS]
        row, start, self._widths = min(
            (_packed(lengths, rungs, width) for width in reached), key=lambda found: _cost(found[2])
        )
        self._order = np.argsort(row, kind="stable")
        self._row, self._start = row[self._order], start[self._order]
        self._parts = [part for width in np.unique(self._widths)[::-1] for part in self._cut(int(width))]

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[tuple[np.ndarray, Batch]]:
        for first, last, shape in self._parts:
            here = slice(*np.searchsorted(self._row, (first, last)))
            numbers, row, start = self._order[here], self._row[here] - first, self._start[here]
            yield numbers, filled(self._features, numbers, row, start, shape, most_sequences(shape[1]))

    def _cut(self, width: int) -> list[tuple[int, int, tuple[int, int]]]:
        """Return the first row of each batch of rows of this width, the row after its last, and the batch's shape."""
        rows = np.flatnonzero(self._widths == width)
        size = min(1 << (len(rows) - 1).bit_length(), self._batch_size)
        begins = range(int(rows[0]), int(rows[-1]) + 1, size)
        return [(begin, min(begin + size, int(rows[-1]) + 1), (size, width)) for begin in begins]


def text_places(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Return int64 [n], int [n]: the row of each text of a batch, in rows of one or of several, and where it begins."""
    used = batch["weights"] > 0
    row = np.nonzero(used)[0]
    return row, batch["text_starts"][used] if "text_starts" in batch else np.zeros_like(row)


def _cost(widths: np.ndarray) -> int:
    """Return what rows of these lengths cost, in the time that a position takes without attention, times ALIKE."""
    return int((widths * (ALIKE + widths)).sum())


def _packed(lengths: np.ndarray, rungs: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return row and start of each sequence, and the length of each row, descending."""
    begun = rungs[np.searchsorted(rungs, np.maximum(lengths, width))]
    row, start = shared_rows(lengths, begun, most_sequences(width))
    widths = np.zeros(row.max() + 1, np.int64)
    widths[row[start == 0]] = begun[start == 0]
    return row, start, widths
