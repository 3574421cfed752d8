"""Words of texts with spelling errors at several rates, the hidden ones among them, and what a model makes of each."""

import dataclasses

import numpy as np

from bert_jax.analysis.masked_words import MaskedTexts, word_scores
from bert_jax.config.noise import NoiseConfig
from bert_jax.data.character_edits import edit_sites, edited_words
from bert_jax.data.randomness import Stream, bits, uniform
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.tokenization.segments import assembled, text_start
from bert_jax.tokenization.texts import as_arrays

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
    """What a stream of texts leaves behind: sums of each measure, [R, number of measures]."""

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
        read = {name: _widened(values, self._longest) for name, values in as_arrays(rows).items()}
        return MaskedTexts({**read, **dict(named)})

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


def _widened(values: np.ndarray, length: int) -> np.ndarray:
    """Return rows of one length at all rates, so that one program reads them; what is added has no attention."""
    return np.pad(values, ((0, 0), (0, length - values.shape[1])))
