"""The cost of spelling errors: masked words among misspelled ones, and the dev score of a fine-tuned model.

Behind `bert-jax analyze noise`, which also shows how the vocabulary breaks up misspelled words. The hidden words and
their pieces are the same at every rate, so that only the text around them changes. Errors are drawn from the same
random numbers at every rate: the errors of a lower rate are among those of a higher one.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np
from etils import epath
from matplotlib.figure import Figure
from rich.table import Table

from bert_jax.analysis.results import Analysis, TaskScore, call_with, columns_table, framed, panels, short_path
from bert_jax.analysis.texts import MaskedTexts, counted_texts, windows, word_scores
from bert_jax.config.analyses import SpellingConfig, spelling_noises
from bert_jax.config.pretraining import EDITS, ErrorUnit, NoiseConfig
from bert_jax.config.tasks import TaskDataConfig
from bert_jax.data.spelling_errors import edit_sites, edited_words
from bert_jax.errors import UserError, at_least
from bert_jax.pretrained.model import PretrainedModel, load
from bert_jax.progress import progress_bar
from bert_jax.randomness import Stream, bits, uniform
from bert_jax.tokenization.tokenizer import as_arrays, assembled, text_start

HIDDEN = 0.15  # share of the words that are hidden, as in Devlin et al. 2018, section 3.1
_SLOTS = 16  # places to predict are rounded up to multiples, so that few programs are compiled


@dataclasses.dataclass(frozen=True)
class SpellingNoise:
    """Measures at each of R rates of errors."""

    rates: np.ndarray
    """float64 [R]: the rates asked for."""
    accuracy: np.ndarray
    """float64 [R]: share of the hidden pieces that the model finds; all pieces of a word are hidden together."""
    loss: np.ndarray
    """float64 [R]: mean cross-entropy of the hidden pieces, in nats."""
    edits: np.ndarray
    """float64 [R]: edits per letter or digit of the words that are not hidden, counted."""
    changed_words: np.ndarray
    """float64 [R]: share of these words that are spelled differently."""
    pieces_per_word: np.ndarray
    """float64 [R]: mean number of their pieces."""
    split_words: np.ndarray
    """float64 [R]: share of them that have more than one piece."""
    unknown_words: np.ndarray
    """float64 [R]: share of them that have the unknown piece."""
    predictions: int
    """Number of hidden pieces, at every rate."""
    words: int
    """Number of words that are not hidden, at every rate."""
    texts: int
    """Number of texts that were read."""
    model: str
    """Path of the model."""


@dataclasses.dataclass(frozen=True)
class Words:
    """The words of some texts, in order."""

    spelled: list[str]
    keys: np.ndarray  # uint64 [W]
    text: np.ndarray  # int64 [W]: the text that each is in
    pieces: list[list[int]]
    hidden: np.ndarray  # bool [W]


class NoiseSums:
    """Sums of each measure over a stream of texts, [R, number of measures]."""

    def __init__(self, model: PretrainedModel, noises: list[NoiseConfig], longest: int, batch_size: int):
        self._model, self._noises, self._longest, self._batch_size = model, noises, longest, batch_size
        self._words = np.zeros((len(noises), 6))  # edits, letters, changed, pieces, split, unknown
        self._found = np.zeros((len(noises), 2))  # accuracy and loss, times predictions
        self._predictions = self._count = 0

    def add(self, texts: list[str], keys: np.ndarray) -> None:
        """Measure texts with 64 bits of randomness each."""
        words = self._read(texts, keys)
        noisy = [edited_words(words.spelled, words.keys, each) for each in self._noises]
        pieces = [self._pieces(words, each) for each in noisy]
        kept = _fitting(words, pieces, self._longest - 2)
        free = np.flatnonzero(kept & ~words.hidden)
        self._count += len(free)
        for number, each in enumerate(noisy):
            self._words[number] += self._word_sums(words, each, pieces[number], free, self._noises[number])
            masked = self._masked(words, pieces[number], kept)
            if masked is None:
                continue
            scores = word_scores(self._model, masked, self._batch_size)
            self._found[number] += np.array([scores.accuracy, scores.loss]) * scores.predictions
            self._predictions += scores.predictions if number == 0 else 0

    def _read(self, texts: list[str], keys: np.ndarray) -> Words:
        split = [text.split() for text in texts]
        spelled = [word for words in split for word in words]
        text = np.repeat(np.arange(len(texts)), [len(words) for words in split])
        place = np.concatenate([np.arange(len(words)) for words in split])
        word_keys = bits(keys[text], Stream.EDITED_WORD, place)
        pieces = self._model.need_tokenizer().encode_words(spelled)
        unknown = self._model.need_tokenizer().unk_id
        known = np.array([bool(ids) and unknown not in ids for ids in pieces], bool)
        return Words(spelled, word_keys, text, pieces, known & (uniform(bits(word_keys, Stream.HIDDEN_WORD)) < HIDDEN))

    def _pieces(self, words: Words, noisy: list[str]) -> list[list[int]]:
        """Return the pieces of each word, those of hidden words clean; a word without errors is not encoded again."""
        pieces = list(words.pieces)
        free = zip(words.spelled, noisy, words.hidden, strict=True)
        changed = [number for number, (old, new, hidden) in enumerate(free) if old != new and not hidden]
        encoded = self._model.need_tokenizer().encode_words([noisy[number] for number in changed])
        for number, ids in zip(changed, encoded, strict=True):
            pieces[number] = ids
        return pieces

    def _word_sums(
        self, words: Words, noisy: list[str], pieces: list[list[int]], free: np.ndarray, noise: NoiseConfig
    ) -> np.ndarray:
        spelled = [words.spelled[number] for number in free]
        unknown = self._model.need_tokenizer().unk_id
        return np.array(
            [
                edit_sites(spelled, words.keys[free], noise)[2].sum(),
                sum(character.isalnum() for word in spelled for character in word),
                sum(noisy[number] != words.spelled[number] for number in free),
                sum(len(pieces[number]) for number in free),
                sum(len(pieces[number]) > 1 for number in free),
                sum(unknown in pieces[number] for number in free),
            ],
            np.float64,
        )

    def _masked(self, words: Words, pieces: list[list[int]], kept: np.ndarray) -> MaskedTexts | None:
        """Return the texts with hidden words as arrays, in which the hidden words are masks; None if there are none."""
        tokenizer, rows, places, targets = self._model.need_tokenizer(), [], [], []
        for text in np.unique(words.text[kept & words.hidden]):
            ids, hidden = [], []
            for number in np.flatnonzero(kept & (words.text == text)):
                hidden += range(len(ids), len(ids) + len(pieces[number])) if words.hidden[number] else ()
                ids += pieces[number]
            targets.append([ids[place] for place in hidden])
            read = np.array(ids)
            read[hidden] = tokenizer.mask_id
            rows.append(assembled(tokenizer, read.tolist()))
            places.append([place + text_start(tokenizer) for place in hidden])
        if not rows:
            return None
        filled = [_filled(values, np.int32) for values in (places, targets)]
        weights = _filled([[1] * len(each) for each in places], np.float32)
        named = zip(("masked_positions", "masked_ids", "masked_weights"), (*filled, weights), strict=True)
        # One length at all rates, so that one program reads them; what is added has no attention.
        read = {
            name: np.pad(values, ((0, 0), (0, self._longest - values.shape[1])))
            for name, values in as_arrays(rows).items()
        }
        return {**read, **dict(named)}

    def result(self, texts: int) -> SpellingNoise:
        if not self._predictions:
            raise UserError("no word of the texts could be hidden; give more texts, or longer ones")
        edits, letters, *shares = self._words.T
        accuracy, loss = self._found.T / self._predictions
        changed, pieces, split, unknown = (share / max(self._count, 1) for share in shares)
        return SpellingNoise(
            rates=np.array([each.rate for each in self._noises]),
            accuracy=accuracy,
            loss=loss,
            edits=edits / np.maximum(letters, 1),
            changed_words=changed,
            pieces_per_word=pieces,
            split_words=split,
            unknown_words=unknown,
            predictions=self._predictions,
            words=self._count,
            texts=texts,
            model=self._model.path,
        )


def _fitting(words: Words, pieces: list[list[list[int]]], room: int) -> np.ndarray:
    """Return bool [W]: the words of each text up to the last with which it has at most `room` pieces at every rate."""
    kept = np.ones(len(words.spelled), bool)
    for each in pieces:
        ends = np.cumsum([len(ids) for ids in each], dtype=np.int64)
        first = np.searchsorted(words.text, words.text)  # number of the first word of the same text
        before = np.where(first > 0, ends[first - 1], 0)
        kept &= ends - before <= room
    return kept


def _filled(rows: list[list[int]], kind: type[np.generic]) -> np.ndarray:
    """Return lists of different lengths as one array, filled up with zeros."""
    width = -(-max(map(len, rows)) // _SLOTS) * _SLOTS
    result = np.zeros((len(rows), width), kind)
    for row, values in zip(result, rows, strict=True):
        row[: len(values)] = values
    return result


_WINDOW = 512  # texts that are tokenized and held at once


def noise(
    model: PretrainedModel,
    texts: Iterable[str],
    *,
    rates: Iterable[float] = SpellingConfig.rates,
    per: ErrorUnit = "character",
    kinds: Iterable[str] = EDITS,
    seed: int = 0,
    batch_size: int = 32,
    max_length: int | None = 128,
    progress: bool = True,
) -> SpellingNoise:
    """Return how well a model finds hidden words while the others get spelling errors.

    Words are what white space separates. A text is cut behind the last word with which it fits at all rates.

    Args:
      model: a model that predicts masked words.
      texts: a list, or anything else that can be iterated; memory is that of a few hundred texts.
      rates: probabilities of an edit, ascending; see NoiseConfig, also for `per` and `kinds`.
      per: what the rates count, letters and digits ("character") or words ("word").
      kinds: edits to draw from.
      seed: of the errors and of the hidden words.

    Raises:
      UserError: the model predicts no masked words, the texts have no words, or an option that cannot work.
    """
    noises = spelling_noises(rates, per, kinds)
    if "mlm" not in model.network.parts or model.config.two_directions or model.config.predicts_ahead:
        raise UserError(
            f"{model.path} predicts no masked words, so there is nothing to measure; give a model with such a head, or "
            "a fine-tuned one and the dev set of its task"
        )
    longest = min(max_length or model.config.longest_sequence, model.config.longest_sequence)
    at_least(3, max_length=longest)
    at_least(1, batch_size=batch_size)
    sums, count = NoiseSums(model, noises, longest, batch_size), 0
    with counted_texts(texts, visible=progress) as done:
        for window in windows(texts, _WINDOW):
            sums.add(window, bits(seed, Stream.EDITED_TEXT, count + np.arange(len(window))))
            count += len(window)
            done(len(window))
    return sums.result(count)


@dataclasses.dataclass(frozen=True)
class TaskNoise:
    """The score at each of R rates of errors."""

    rates: np.ndarray
    """float64 [R]: the rates asked for."""
    score: np.ndarray
    """float64 [R]: main metric of the task."""
    pieces: np.ndarray
    """float64 [R]: mean number of pieces per example, special tokens included, as far as the model reads."""
    unknown: np.ndarray
    """float64 [R]: share of the unknown piece among them."""
    metric: str
    """Names of the task and its metric."""
    examples: int
    """Number of examples."""
    model: str
    """Path of the model."""


def task_noise(
    model: PretrainedModel,
    data: TaskDataConfig,
    *,
    rates: Iterable[float] = SpellingConfig.rates,
    per: ErrorUnit = "character",
    kinds: Iterable[str] = EDITS,
    task: str = "",
    seed: int = 0,
    batch_size: int = 32,
    progress: bool = True,
) -> TaskNoise:
    """Return the score of a fine-tuned model while its texts get errors; texts are cut as in its own evaluation.

    Args:
      model: a fine-tuned model.
      data: where the dev set is, such as TaskDataConfig(dev="dev.tsv"); columns are those of the fine-tuning.
      rates: probabilities of an edit, ascending; see NoiseConfig, also for `per` and `kinds`.
      per: what the rates count, letters and digits ("character") or words ("word").
      kinds: edits to draw from.
      task: name of the task; "": the one that the model records.
      seed: of the errors.
      batch_size: number of sequences that the model reads at once.

    Raises:
      UserError: the model has no task head, the data cannot be read or have no labels, an option that cannot work, or
        the answers of the task are places in the text (SQuAD).
    """
    noises = spelling_noises(rates, per, kinds)
    clean, scores, pieces, unknown = TaskScore(model, data, task, batch_size), [], [], []
    with progress_bar("rates", len(noises), visible=progress) as move_to:
        for number, each in enumerate(noises):
            noisy = clean.with_noise(model, each, seed)
            ids = np.concatenate(noisy.input_ids())
            scores.append(noisy(model))
            pieces.append(len(ids) / clean.examples)
            unknown.append(np.mean(ids == model.need_tokenizer().unk_id))
            move_to(number + 1)
    return TaskNoise(
        rates=np.array([each.rate for each in noises]),
        score=np.array(scores),
        pieces=np.array(pieces),
        unknown=np.array(unknown),
        metric=clean.name,
        examples=clean.examples,
        model=model.path,
    )


def draw_noise(result: SpellingNoise) -> Figure:
    """Return accuracy, loss and the shares of words that are broken up, over the rate of errors."""
    shown = {
        "Accuracy of hidden words": {"": result.accuracy},
        "Loss of hidden words": {"": result.loss},
        "Pieces per word": {"": result.pieces_per_word},
        "Share of words": {
            "spelled differently": result.changed_words,
            "split": result.split_words,
            "unknown": result.unknown_words,
        },
    }
    heading = f"{short_path(result.model)}: {result.predictions:,} hidden pieces in {result.texts:,} texts"
    return _over_rates(result.rates, shown, heading)


def draw_task_noise(result: TaskNoise) -> Figure:
    """Return the score and the lengths of the sequences over the rate of errors."""
    shown = {
        result.metric: {"": result.score},
        "Pieces per example": {"": result.pieces},
        "Share of the unknown piece": {"": result.unknown},
    }
    return _over_rates(result.rates, shown, f"{short_path(result.model)}: {result.examples:,} examples")


def _over_rates(rates: np.ndarray, shown: dict[str, dict[str, np.ndarray]], heading: str) -> Figure:
    figure, drawn = panels((3.9 * len(shown), 3.6), heading, 1, len(shown))
    for axes, (title, lines) in zip(drawn, shown.items(), strict=True):
        for label, values in lines.items():
            axes.plot(rates, values, marker="o", label=label)
        framed(axes, title, "rate of errors", legend=9 if len(lines) > 1 else None)
    return figure


def _noise_told(result: SpellingNoise) -> list[Table]:
    columns = {
        "edits": result.edits,
        "accuracy": result.accuracy,
        "loss": result.loss,
        "pieces per word": result.pieces_per_word,
        "changed": result.changed_words,
        "split": result.split_words,
        "unknown": result.unknown_words,
    }
    title = f"{result.predictions:,} hidden pieces, {result.words:,} other words, {result.texts:,} texts"
    return [_rates_table(result.rates, columns, title)]


def _task_told(result: TaskNoise) -> list[Table]:
    columns = {result.metric: result.score, "pieces": result.pieces, "unknown": result.unknown}
    return [_rates_table(result.rates, columns, f"{result.examples:,} examples")]


def _rates_table(rates: np.ndarray, columns: dict[str, np.ndarray], title: str) -> Table:
    return columns_table([("rate", "g", rates), *((name, ".3f", each) for name, each in columns.items())], title)


NOISE = Analysis("noise", SpellingNoise, _noise_told, {"noise": draw_noise})
TASK_NOISE = Analysis("task_noise", TaskNoise, _task_told, {"noise": draw_task_noise})


def run_noise(path: str, options: SpellingConfig) -> None:
    """Print and draw how well a model copes with spelling errors, at hidden words or in its task."""
    model = load(path)
    if model.head is None:
        NOISE.run_on_texts(options, [model], call_with(noise, options, model))
        return
    place = epath.Path(options.input).expanduser()
    data = TaskDataConfig(dir=options.input) if place.is_dir() else TaskDataConfig(dev=options.input)
    options = dataclasses.replace(options, texts=0)  # they are only named
    score = call_with(task_noise, options, model, data)
    TASK_NOISE.run_on_texts(options, [model], lambda texts: score())
