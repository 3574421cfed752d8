"""One word in several texts, layer by layer: do vectors of the same sense come together, and of others apart?"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from etils import epath

from bert_jax.analysis.layer_states.layer_isotropy import CosineSums
from bert_jax.analysis.word_states.word_vectors import WordFinder, spelled, word_vectors
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel


@dataclasses.dataclass(frozen=True)
class SenseSimilarity:
    """Cosines of the vectors of a word in n texts, in the embeddings and each of N layers."""

    cosines: np.ndarray
    """float64 [N + 1, n, n]: of the word in each two of the texts."""
    within: np.ndarray
    """float64 [N + 1]: their mean over two different texts of the same sense; NaN if no sense has two texts."""
    between: np.ndarray
    """float64 [N + 1]: their mean over two texts of different senses; NaN if there is one sense."""
    baseline: np.ndarray
    """float64 [N + 1]: the mean cosine of other words of the same texts, two from different texts: what within and
    between would be if they said nothing (anisotropy)."""
    word: str
    """The word."""
    texts: tuple[str, ...]
    """The n texts."""
    senses: tuple[str, ...]
    """The sense of the word in each text; "" in all of them if none were given."""
    model: str
    """Path of the model."""


def word_senses(
    model: PretrainedModel,
    word: str,
    texts: Sequence[str],
    senses: Sequence[str] | None = None,
    *,
    batch_size: int = 32,
    max_length: int | None = None,
) -> SenseSimilarity:
    """Return the cosines of a word's vectors in several texts, within and between its senses.

    Args:
      model: any model with a tokenizer.
      word: a word as the tokenizer divides text, such as "bank"; its vector is the mean of those of its pieces.
      texts: two or more that have the word; its first occurrence counts.
      senses: a name for each text; None: all have the same.
      batch_size: number of texts that the model reads at once.
      max_length: tokens per text; None: as many as the model has positions.

    Raises:
      UserError: the word is no single word or not in one of the texts, or texts and senses do not go together.
    """
    senses = [""] * len(texts) if senses is None else list(senses)
    if len(senses) != len(texts) or len(texts) < 2:
        raise UserError(f"{len(texts)} texts with {len(senses)} senses; give two texts or more, and a sense for each")
    finder, wanted = WordFinder.of(model), _single_word(model, word)
    layers, size = model.config.num_layers + 1, model.config.hidden_size
    found, others = np.zeros((len(texts), layers, size)), []
    for numbers, encoding in model.encode_batches(
        list(texts), "all", batch_size=batch_size, max_length=max_length, progress=False
    ):
        for row, number in enumerate(numbers):
            ids = encoding.input_ids[row]
            spans = finder.find(ids)
            places = [place for place, span in enumerate(spans) if spelled(ids, span) == wanted]
            if not places:
                raise UserError(
                    f"the word {word!r} is not in text {number} ({texts[number]!r:.80}), or comes after the last "
                    "token that the model reads; leave the text out"
                )
            vectors = word_vectors(encoding, row, spans)
            found[number] = vectors[places[0]]
            others += [(number, vectors[place]) for place in range(len(spans)) if place not in places]
    cosines = _cosines(found)
    same = np.equal.outer(senses, senses)
    return SenseSimilarity(
        cosines=cosines,
        within=_mean(cosines, same & ~np.eye(len(texts), dtype=bool)),
        between=_mean(cosines, ~same),
        baseline=_baseline(others, layers),
        word=word,
        texts=tuple(texts),
        senses=tuple(senses),
        model=model.path,
    )


def read_senses(path: str) -> list[tuple[str, str]]:
    """Return (sense, text) of each line of a file: the name of a sense, a tab, a text.

    Raises:
      UserError: there is no such file, it is not UTF-8, or a line is not of this form.
    """
    try:
        lines = epath.Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"senses={path} cannot be read: {reason}; give a text file in UTF-8") from None
    rows = []
    for number, line in enumerate(lines, 1):
        sense, tab, text = line.partition("\t")
        if line.strip() and not (tab and text.strip()):
            raise UserError(f"{path}, line {number}: expected the name of a sense, a tab and a text, not {line!r:.60}")
        rows += [(sense.strip(), text)] if line.strip() else []
    return rows


def _single_word(model: PretrainedModel, word: str) -> tuple[int, ...]:
    tokenizer = model.need_tokenizer()
    ids = np.array(tokenizer.encode(word), np.int64)
    if len(WordFinder.of(model).find(ids)) != 1 or np.isin(ids, tokenizer.special_ids).any():
        pieces = ", ".join(tokenizer.tokens[number] for number in ids) or "nothing"
        raise UserError(f"{word!r} is not a single word for this tokenizer, which reads {pieces}; give one word")
    return tuple(ids.tolist())


def _cosines(vectors: np.ndarray) -> np.ndarray:
    """Return float64 [R, n, n] for [n, R, H]."""
    layers = np.moveaxis(vectors, 1, 0)
    lengths = np.linalg.norm(layers, axis=2, keepdims=True)
    units = np.divide(layers, lengths, out=np.zeros_like(layers), where=lengths > 0)
    return units @ np.swapaxes(units, 1, 2)


def _mean(cosines: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    return cosines[:, pairs].mean(axis=1) if pairs.any() else np.full(len(cosines), np.nan)


def _baseline(others: list[tuple[int, np.ndarray]], layers: int) -> np.ndarray:
    """Return the mean cosine of two words from different texts, float64 [R]: that of all pairs less those within."""
    if len({number for number, _ in others}) < 2:
        return np.full(layers, np.nan)
    numbers, vectors = np.array([number for number, _ in others]), np.stack([vector for _, vector in others])
    total, pairs = np.zeros(layers), 0
    for chosen, sign in [(np.ones(len(numbers), bool), 1), *((numbers == each, -1) for each in np.unique(numbers))]:
        sums = CosineSums(layers)
        sums.add(vectors[chosen])
        total, pairs = total + sign * sums.signed, pairs + sign * sums.pairs
    return total / pairs
