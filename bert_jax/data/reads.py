"""Where a document, or a passage of it, is read: the order of examples, backwards.

Nothing is searched and no step is simulated. The chunks of a document are known, a chunk's place in the random order of
an epoch is found by the inverse of the permutation, and a mixture is divided by a line whose inverse has a closed form.
So the work is that of the rows that hold the document, for each epoch, whichever step is asked for.

Documents are also found by a phrase in their text, which reads the tokens of the store once.
"""

import dataclasses
from typing import Any

import numpy as np

from bert_jax.data.examples import StoreExamples
from bert_jax.data.mixtures import Mixture, assign, assigned, read_before
from bert_jax.data.packing import with_class_last
from bert_jax.data.store import Rows, Store
from bert_jax.errors import UserError
from bert_jax.progress import progress_bar
from bert_jax.randomness import held_out_documents

_ROWS_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True)
class Reads:
    """The rows in which a passage is read, in the order of their positions; int64 [N] each."""

    positions: np.ndarray
    """Position of the row among the examples."""
    epochs: np.ndarray
    """Epoch of the store, from 0."""
    first_places: np.ndarray
    """Place in the row of the first token of the passage; with spelling errors, where it is without them."""
    last_places: np.ndarray
    first_tokens: np.ndarray
    """Lowest number of a token of the passage that is in the row, counted from the first of the document."""
    last_tokens: np.ndarray
    num_tokens: np.ndarray
    """Number of tokens of the passage in the row."""

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, where: Any) -> "Reads":
        return Reads(*(column[where] for column in self._columns))

    @property
    def _columns(self) -> tuple[np.ndarray, ...]:
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    @staticmethod
    def concatenate(parts: list["Reads"]) -> "Reads":
        """Return the reads of all parts, in the order of their positions."""
        empty = Reads(*(np.zeros(0, np.int64),) * len(dataclasses.fields(Reads)))
        columns = zip(*(part._columns for part in (empty, *parts)), strict=True)
        joined = Reads(*map(np.concatenate, columns))
        return joined[np.argsort(joined.positions, kind="stable")]


@dataclasses.dataclass(frozen=True)
class Passage:
    """A part of a document, or all of it."""

    document: int
    """Number of the document in its store."""
    begin: int
    """Its tokens [begin, end), counted from the first of the document."""
    end: int


def whole(store: Store, document: int) -> Passage:
    """Return all of a document."""
    begin, end = store.document_tokens[[document, document + 1]].tolist()
    return Passage(document, 0, end - begin)


def reads_of(examples: StoreExamples | Mixture, store: Store, passage: Passage, begin: int, end: int) -> Reads:
    """Return where the examples at the positions [begin, end) hold tokens of a document of `store`.

    Args:
      examples: of a phase.
      store: one of theirs, or a copy of one.
      passage: the document, and which of its tokens.
      begin: the first position.
      end: the one behind the last.
    """
    if isinstance(examples, StoreExamples):
        return _of_store(examples, passage, begin, end)
    parts = []
    for number, each in enumerate(examples.sources.values()):
        if each.store.fingerprint != store.fingerprint:
            continue
        found = _of_store(each, passage, *(read_before(place, number, examples.grains) for place in (begin, end)))
        parts.append(dataclasses.replace(found, positions=assigned(found.positions, number, examples.grains)))
    return Reads.concatenate(parts)


def is_held_out(store: Store, document: int, share: float) -> bool:
    """Return whether a run with this data.held_out is evaluated on a document, which training then never reads."""
    return bool(held_out_documents(store.num_documents, share)[document])


def _of_store(examples: StoreExamples, passage: Passage, begin: int, end: int) -> Reads:
    if begin >= end:
        return Reads.concatenate([])
    (first, last), _ = examples.locate(np.array([begin, end - 1]))
    # Epochs that are cut alike follow each other, because what is known of the latest is kept.
    period = examples.text_epochs or examples.source.period
    epochs = sorted(range(int(first), int(last) + 1), key=lambda epoch: epoch % period)
    parts, texts, known = [], -1, Reads.concatenate([])
    with progress_bar("epochs", len(epochs)) as advance_to:
        for done, epoch in enumerate(epochs):
            if not examples.text_epochs or epoch % period != texts:  # otherwise only the order is another one
                texts, known = epoch % period, _of_epoch(examples, passage, epoch)
            positions = examples.positions_of(epoch, known.positions)
            inside = np.flatnonzero((positions >= begin) & (positions < end))
            parts.append(dataclasses.replace(known, positions=positions, epochs=np.full(len(known), epoch))[inside])
            advance_to(done + 1)
    return Reads.concatenate(parts)


def _of_epoch(examples: StoreExamples, passage: Passage, epoch: int) -> Reads:
    """Return the reads of one epoch, with the indices of the examples in place of their positions."""
    indices, parts = examples.with_document(epoch, passage.document), []
    start = int(examples.store.document_tokens[passage.document])
    begin, end = start + passage.begin, start + passage.end
    for at in range(0, len(indices), _ROWS_AT_ONCE):
        some = indices[at : at + _ROWS_AT_ONCE]
        tokens = rows_as_read(examples, np.full(len(some), epoch), some).token_index
        held = (tokens >= begin) & (tokens < end)
        length = held.shape[1]
        columns = (
            some,
            np.full(len(some), epoch),
            held.argmax(1),
            length - 1 - held[:, ::-1].argmax(1),
            np.where(held, tokens - start, end).min(1),
            np.where(held, tokens - start, -1).max(1),
            held.sum(1),
        )
        parts.append(Reads(*columns)[held.any(1)])
    return Reads.concatenate(parts)


def rows_as_read(examples: StoreExamples, epochs: np.ndarray, indices: np.ndarray) -> Rows:
    """Return the rows of these examples with every token where a batch has it, before spelling errors."""
    rows = examples.rows(epochs, indices)
    return with_class_last(rows)[0] if examples.class_last else rows


@dataclasses.dataclass(frozen=True)
class ReadDocuments:
    """The documents in one row of a batch."""

    store: str
    """Name of the store in a mixture; "" otherwise."""
    documents: tuple[int, ...]
    """Their numbers in the store, in the order in which they begin in the row."""
    epoch: int
    """Epoch of the store, from 0."""


def documents_at(examples: StoreExamples | Mixture, positions: np.ndarray) -> list[ReadDocuments]:
    """Return the documents whose text is in the rows at `positions` (int64 [B])."""
    if isinstance(examples, StoreExamples):
        return _documents(examples, positions, "")
    number, own = assign(np.asarray(positions, np.int64), examples.grains)
    found: dict[int, ReadDocuments] = {}
    for index, (name, each) in enumerate(examples.sources.items()):
        here = np.flatnonzero(number == index)
        if here.size:
            found |= dict(zip(here.tolist(), _documents(each, own[here], name), strict=True))
    return [found[row] for row in range(len(number))]


def _documents(examples: StoreExamples, positions: np.ndarray, name: str) -> list[ReadDocuments]:
    epochs, indices = examples.locate(positions)
    tokens = rows_as_read(examples, epochs, indices).token_index
    found = np.searchsorted(examples.store.document_tokens, tokens, side="right") - 1
    each = (row[token >= 0].tolist() for row, token in zip(found, tokens, strict=True))
    documents = (tuple(dict.fromkeys(row)) for row in each)
    return [ReadDocuments(name, row, int(epoch)) for row, epoch in zip(documents, epochs, strict=True)]


MOST_FOUND = 20
"""Places of a phrase that are looked for; the search ends with the last of them."""
_TOKENS_AT_ONCE = 1 << 22


def passages_with(store: Store, phrase: str) -> list[Passage]:
    """Return the first MOST_FOUND places in documents where these words stand one after the other.

    Raises:
      UserError: the phrase has no word, or no document has it.
    """
    tokenizer = store.tokenizer()
    wanted, continues = np.array(tokenizer.encode_words([phrase])[0], np.int64), tokenizer.continues_word()
    if not wanted.size:
        raise UserError(
            f"words={phrase!r} has no word to look for; give words of the document, or its number with --document"
        )
    found: list[Passage] = []
    with progress_bar("looking for the words", store.num_tokens) as advance_to:
        for begin in range(0, store.num_tokens, _TOKENS_AT_ONCE):
            end = min(begin + _TOKENS_AT_ONCE + len(wanted), store.num_tokens)
            places = begin + _places(store.tokens(np.arange(begin, end)), wanted, continues)
            ends = np.stack([places, places + len(wanted) - 1])
            documents = np.searchsorted(store.document_tokens, ends, side="right") - 1
            for place, (document, last) in zip(places.tolist(), documents.T.tolist(), strict=True):
                start = place - int(store.document_tokens[document])
                if document == last and (not found or (document, start) > (found[-1].document, found[-1].begin)):
                    found.append(Passage(document, start, start + len(wanted)))
            if len(found) >= MOST_FOUND:
                break
            advance_to(end)
    if not found:
        raise UserError(
            f"words={phrase!r}: no document of {store.path} has these words one after the other; give fewer of them, "
            "spelled as in the text, or the number of a document"
        )
    return found[:MOST_FOUND]


def _places(ids: np.ndarray, wanted: np.ndarray, continues: np.ndarray) -> np.ndarray:
    """Return where the words `wanted` begin in `ids`; the last of them does not go on in the next piece."""
    places = np.flatnonzero(ids[: max(0, len(ids) - len(wanted) + 1)] == wanted[0])
    for offset in range(1, len(wanted)):
        places = places[ids[places + offset] == wanted[offset]]
    behind = np.append(ids, 0)[places + len(wanted)]
    goes_on = (places + len(wanted) < len(ids)) & continues[behind]
    return places[~goes_on]
