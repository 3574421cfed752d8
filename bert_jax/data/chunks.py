"""Chunks of documents for one sequence each, cut differently in each epoch, or streams of full sentences.

The original packs sentences one after the other until a target length is reached, which is only possible from the
front. Here chunk j of a document can be found without its predecessors. A document of n tokens is cut into m = ceil(n
/ S) cells of S tokens, where cell j begins at token c_j = j·S − slack. Chunk j is [b_j, b_j+1) with

    b_j = the first sentence start inside cell j, or c_j if no sentence starts in the cell.

So a chunk holds the sentences that start in its cell, only a sentence longer than a whole cell is ever cut, the
chunks of a document are a partition of its tokens, none is empty, and slack (new in each epoch) moves all boundaries.

No sentence of a chunk starts more than S - 1 tokens after its beginning. Therefore S never exceeds what fits into a
sequence: the last sentence alone can then be cut so far that all the others stay and it keeps a token. A chunk of the
original ends with the sentence that reaches the target, on average half a sentence past it, and has at least one
sentence: below that bound a cell is half a mean sentence larger than the target, and larger than one sentence.

For rows of several texts (packing.py), a chunk is exactly its cell, and a sentence across an edge is divided between
the two. All chunks of a document are then full but one, a random one in each epoch, which is as short as need be:
full ones fill a row, the others fill what is left. It also cuts off less text than keeping sentences whole.

Full sentences without pairs run across documents (FULL-SENTENCES of Liu et al. 2019, section 4.2). The documents of
the split form one stream in which each is followed by a [SEP]. Each epoch begins the stream at a different document
(it is a ring), cuts it into cells of what fits between [CLS] and the closing [SEP], and puts the sentences that start
in a cell into one sequence, by the boundary rule above.

Truncation leaves every sentence a token. The original takes tokens off the longer segment, one at a time, from its
front or its back by a fair coin, so a short sentence at an edge can vanish. Here an end gives up at most all but one
token of its sentence, then the other end of the segment does, then the other segment. Chunks and pairs are made such
that this suffices.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from bert_jax.data.store import PADDING, SPECIAL, Rows, Store
from bert_jax.errors import UserError
from bert_jax.randomness import Stream, bits, heads, held_out_documents, integers, invert, permute, uniform


class Documents:
    """The documents of `split` ("train", "held_out" or "all") of a store, numbered from 0, without empty ones.

    Arrays of int64 [D]: numbers (in the store), token_starts (global token offset), num_tokens, first_sentences and
    end_sentences (global sentence indices). The store has no empty sentences and a document begins with a sentence.
    """

    def __init__(self, store: Store, split: str, held_out: float):
        numbers = _numbers(store.num_documents, split, held_out)
        numbers = numbers[store.document_tokens[numbers + 1] > store.document_tokens[numbers]]
        if not numbers.size:
            raise UserError(
                f"the token store has no text in its {split.replace('_', '-')} documents ({store.num_documents} "
                f"documents in all, data.held_out={held_out}); prepare a corpus with more text"
            )
        self.store = store
        self.numbers: np.ndarray = numbers
        self.token_starts: np.ndarray = store.document_tokens[numbers]
        self.num_tokens: np.ndarray = store.document_tokens[numbers + 1] - self.token_starts
        self.first_sentences: np.ndarray = store.document_sentences[numbers]
        self.end_sentences: np.ndarray = store.document_sentences[numbers + 1]

    def __len__(self) -> int:
        return len(self.numbers)

    @functools.cached_property
    def collision(self) -> float:
        """Probability that two random tokens of the split are in the same document."""
        return float(((self.num_tokens / self.num_tokens.sum()) ** 2).sum())

    def first_sentence_from(self, offsets: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return the first sentence in [low, high) that starts at or after token `offsets`, else `high` (global)."""
        low, high = low.copy(), high.copy()
        for _ in range(int((high - low).max(initial=0)).bit_length()):
            middle = (low + high) >> 1
            before = (self.store.sentence_starts(middle) < offsets) & (low < high)
            high = np.where(before, high, middle)
            low = np.where(before, middle + 1, low)
        return low


def _numbers(num_documents: int, split: str, held_out: float) -> np.ndarray:
    if split == "all":
        return np.arange(num_documents)
    chosen = held_out_documents(num_documents, held_out)
    if chosen.all():
        raise UserError(
            f"data.held_out={held_out} keeps {num_documents} of the store's {num_documents} documents out of "
            "training, which leaves none to train on; give more documents, a smaller data.held_out, "
            "or data.held_out=0"
        )
    if split == "held_out" and not chosen.any():
        raise UserError("data.held_out=0 keeps no documents for evaluation; set data.held_out or give data.eval_path")
    return np.flatnonzero(chosen if split == "held_out" else ~chosen)


SHORT_CYCLE = 10
"""The choice of documents that are cut short repeats after this many epochs (the original wrote ten copies of the
corpus). Therefore the number of chunks per epoch repeats as well, and ten sums suffice to find any position, however
distant."""


@dataclasses.dataclass(frozen=True)
class Chunks:
    """Chunks of one epoch: int64 arrays of one common shape."""

    document: np.ndarray  # number within the split
    begin: np.ndarray  # global token offsets [begin, end)
    end: np.ndarray
    first_inner: np.ndarray  # global index of the first sentence that starts after `begin`
    num_sentences: np.ndarray  # 1 + sentences that start strictly inside; a cut sentence counts as one
    target: np.ndarray  # tokens that the two segments should have together

    def __getitem__(self, where: Any) -> "Chunks":
        return Chunks(*(getattr(self, field.name)[where] for field in dataclasses.fields(self)))


class DocumentChunks:
    """The chunks of all documents of a split, in any epoch; `max_tokens` is what fits into a sequence.

    `divides_sentences`: whether a chunk is exactly its cell.
    """

    period = SHORT_CYCLE

    def __init__(
        self,
        documents: Documents,
        max_tokens: int,
        short_sequence_probability: float,
        seed: int,
        divides_sentences: bool = False,
    ):
        self.documents = documents
        self.divides_sentences = divides_sentences
        self.max_tokens = max_tokens
        self.short_sequence_probability = short_sequence_probability
        self.seed = seed
        self._ends = functools.lru_cache(maxsize=2)(self._cumulative_counts)  # this epoch and the next

    def count(self, epoch: int) -> int:
        """Return the number of chunks, and so of examples, of `epoch`."""
        return int(self._ends(epoch % self.period)[-1])

    def shuffled(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        """Return the chunk numbers in the epoch's random order."""
        return permute(indices, self.count(epoch), bits(self.seed, Stream.ORDER, epoch))

    def indices_of(self, epoch: int, chunks: np.ndarray) -> np.ndarray:
        """Return the indices of the examples that begin with these chunks: the inverse of `shuffled`."""
        return invert(chunks, self.count(epoch), bits(self.seed, Stream.ORDER, epoch))

    def document_of(self, epoch: int, chunks: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._ends(epoch % self.period), chunks, side="right")

    def of_document(self, epoch: int, document: int) -> np.ndarray:
        """Return the numbers of the chunks of one document (number within the split)."""
        ends = self._ends(epoch % self.period)
        return np.arange(ends[document - 1] if document else 0, ends[document])

    def find(self, epoch: int, chunks: np.ndarray) -> Chunks:
        """Locate `chunks` (numbers in [0, count), any shape); read sentence boundaries only, no tokens."""
        documents, ends = self.documents, self._ends(epoch % self.period)
        document = np.searchsorted(ends, chunks, side="right")
        target, num_tokens = self._targets(epoch, document), documents.num_tokens[document]
        cell_size = self._cell_sizes(target, document)
        num_cells = -(-num_tokens // cell_size)
        cell = chunks - (ends[document] - num_cells)
        locate = self._divided if self.divides_sentences else self._whole_sentences
        begin, end, first_inner, behind = locate(epoch, document, cell, cell_size, num_cells)
        return Chunks(document, begin, end, first_inner, 1 + behind - first_inner, target)

    def _divided(
        self, epoch: int, document: np.ndarray, cell: np.ndarray, cell_size: np.ndarray, num_cells: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Return [begin, end) of the cells, all full but one, and the first sentence after `begin` and from `end`."""
        documents = self.documents
        missing = num_cells * cell_size - documents.num_tokens[document]
        short = integers(bits(self.seed, Stream.SLACK, epoch, documents.numbers[document]), num_cells)
        edges = np.stack([cell, cell + 1])
        begin, end = documents.token_starts[document] + edges * cell_size - np.where(edges > short, missing, 0)
        return begin, end, *documents.first_sentence_from(np.stack([begin + 1, end]), *self._sentences(document))

    def _whole_sentences(
        self, epoch: int, document: np.ndarray, cell: np.ndarray, cell_size: np.ndarray, num_cells: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Return the same for the sentences that start in the cells, or for cells in which none starts."""
        documents, num_tokens = self.documents, self.documents.num_tokens[document]
        # Slack may grow until the last cell is full, and must be so large that the last sentence starts in that cell if
        # possible.
        start, most = documents.token_starts[document], num_cells * cell_size - num_tokens
        last_sentence = documents.store.sentence_starts(documents.end_sentences[document] - 1) - start
        least = np.maximum((num_cells - 1) * cell_size - last_sentence, 0)
        least = np.where(least <= most, least, 0)
        slack = least + integers(bits(self.seed, Stream.SLACK, epoch, documents.numbers[document]), most - least + 1)
        # Where this cell, the next and the one after begin.
        cells = np.stack([cell, cell + 1, cell + 2]) * cell_size - slack
        cells = start + np.clip(cells, 0, num_tokens)
        sentences = documents.first_sentence_from(cells[:2], *self._sentences(document))
        starts = documents.store.sentence_starts(sentences)
        begin, end = np.where(starts < cells[1:], starts, cells[:2])
        return begin, end, sentences[0] + (starts[0] == begin), sentences[1]

    def _sentences(self, document: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first sentence of these documents and the one behind their last, each twice."""
        shape, documents = (2, *document.shape), self.documents
        first, end = documents.first_sentences[document], documents.end_sentences[document]
        return np.broadcast_to(first, shape), np.broadcast_to(end, shape)

    def _targets(self, epoch: int, document: np.ndarray) -> np.ndarray:
        number, epoch = self.documents.numbers[document], epoch % self.period
        short = uniform(bits(self.seed, Stream.SHORT, epoch, number)) < self.short_sequence_probability
        length = 2 + integers(bits(self.seed, Stream.SHORT_LENGTH, epoch, number), self.max_tokens - 1)
        return np.where(short, length, self.max_tokens)

    def _cell_sizes(self, target: np.ndarray, document: np.ndarray) -> np.ndarray:
        num_sentences = self.documents.end_sentences[document] - self.documents.first_sentences[document]
        sentence = np.minimum(-(-self.documents.num_tokens[document] // num_sentences), self.max_tokens)
        return np.minimum(np.maximum(target, sentence) + sentence // 2, self.max_tokens)

    def _cumulative_counts(self, epoch: int) -> np.ndarray:
        everything = np.arange(len(self.documents))
        return np.cumsum(
            -(-self.documents.num_tokens // self._cell_sizes(self._targets(epoch, everything), everything))
        )


@dataclasses.dataclass(frozen=True)
class Segments:
    """Runs of consecutive sentences, of which the first and last may be partial; int64 arrays of one common shape."""

    begin: np.ndarray  # token offsets [begin, end)
    end: np.ndarray
    first_end: np.ndarray  # where the first sentence ends; `end` if there is only one
    last_begin: np.ndarray  # where the last sentence begins; `begin` if there is only one

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """The four arrays, in the order of the constructor."""
        return self.begin, self.end, self.first_end, self.last_begin

    @property
    def length(self) -> np.ndarray:
        return self.end - self.begin

    @property
    def spare(self) -> np.ndarray:
        """Number of tokens that can be removed while every sentence keeps one."""
        both = self.first_end - self.begin + self.end - self.last_begin - 2
        return np.maximum(np.minimum(both, self.length - 1), 0)

    def __getitem__(self, where: Any) -> "Segments":
        return Segments(self.begin[where], self.end[where], self.first_end[where], self.last_begin[where])

    def __setitem__(self, where: Any, values: "Segments") -> None:
        for field in dataclasses.fields(self):
            getattr(self, field.name)[where] = getattr(values, field.name)


def truncate(pair: Segments, keys: np.ndarray, max_tokens: int | np.ndarray) -> tuple[np.ndarray, ...]:
    """Cut pairs of segments [B, 2], which must be able to spare that much, to `max_tokens` together, the longer first.

    `max_tokens` is one number, or one for each pair [B].

    In closed form: first the difference of the lengths comes off the longer, then both lose tokens in turn, the second
    first (the original trims it on a tie). Returns begin, end and the number of tokens removed, [B, 2] each.
    """
    excess = np.maximum(pair.length.sum(1) - max_tokens, 0)
    difference = pair.length[:, 0] - pair.length[:, 1]
    uneven = np.minimum(excess, abs(difference))
    from_both = np.stack([(excess - uneven) // 2, (excess - uneven + 1) // 2], axis=1)
    removed = from_both + np.stack([np.where(difference > 0, uneven, 0), np.where(difference < 0, uneven, 0)], axis=1)
    beyond = np.maximum(removed - pair.spare, 0)
    removed += beyond[:, ::-1] - beyond
    begin, end = trim(pair, removed, bits(keys[:, None], Stream.TRUNCATION, np.arange(2)))
    return begin, end, removed


def trim(segments: Segments, removed: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return begin and end without `removed` <= spare tokens, each from front or back by a fair coin if possible."""
    front = heads(keys.ravel(), Stream.TRUNCATION, removed.ravel()).reshape(removed.shape)
    front_spare = np.maximum(segments.first_end - segments.begin - 1, 0)
    back_spare = np.maximum(segments.end - segments.last_begin - 1, 0)
    front = np.clip(front, removed - back_spare, front_spare)
    return segments.begin + front, segments.end - (removed - front)


class FullSentences:
    """The stream of a split; places are counted in tokens and closing [SEP]s from its first document."""

    period = 1

    def __init__(self, documents: Documents, sequence_length: int, seed: int):
        self.documents = documents
        self.sequence_length = sequence_length
        self.cell_size: int = sequence_length - 2
        self.seed = seed
        self.ends: np.ndarray = np.cumsum(documents.num_tokens + 1)
        self.starts: np.ndarray = self.ends - documents.num_tokens - 1

    def count(self, epoch: int) -> int:
        """Return the number of sequences of an epoch, which is the same for all."""
        return int(-(-self.ends[-1] // self.cell_size))

    def indices_of(self, epoch: int, cells: np.ndarray) -> np.ndarray:
        """Return the indices of the examples made from these cells."""
        return invert(cells, self.count(epoch), bits(self.seed, Stream.ORDER, epoch))

    def of_document(self, epoch: int, document: int) -> np.ndarray:
        """Return the numbers of the cells that hold text of one document (number within the split)."""
        rotation, num_tokens = self.find(epoch, np.arange(0))[2], int(self.documents.num_tokens[document])
        place = int(self.starts[document] - rotation) % int(self.ends[-1])
        near = place // self.cell_size + np.arange(-1, num_tokens // self.cell_size + 3)
        near = near[(near >= 0) & (near < self.count(epoch))]
        begin, end, _ = self.find(epoch, near)
        return near[(begin < place + num_tokens) & (end > place)]

    def rows(self, epoch: int, indices: np.ndarray, keys: np.ndarray) -> Rows:
        """Return the sequences `indices` [B] of `epoch`; `keys` [B]: 64 random bits per row."""
        begin, end, rotation = self.find(
            epoch, permute(indices, self.count(epoch), bits(self.seed, Stream.ORDER, epoch))
        )
        length = int(self.ends[-1])
        end -= self._is_separator(end - 1 + rotation)
        excess = np.maximum(end - begin - self.cell_size, 0)
        first, last = self._document((begin + rotation) % length), self._document((end - 1 + rotation) % length)
        num_tokens = end - begin - (last - first) % len(self.documents)
        long = np.flatnonzero(excess)
        begin[long], end[long] = trim(self._segments(begin[long], end[long], rotation), excess[long], keys[long])

        place = np.arange(self.sequence_length)[None]
        used = (end - begin)[:, None]
        inside = (place > 0) & (place <= used)
        ring = np.where(inside, begin[:, None] + place - 1 + rotation, 0) % length
        document = self._document(ring)
        offset = ring - self.starts[document]
        is_token = inside & (offset < self.documents.num_tokens[document])
        token_index = np.where(place < used + 2, SPECIAL, PADDING)
        token_index = np.where(is_token, self.documents.token_starts[document] + offset, token_index)
        truncated = num_tokens - is_token.sum(1)
        return Rows(token_index, np.zeros(token_index.shape, np.int32), None, truncated, np.zeros_like(truncated))

    def find(self, epoch: int, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Return places [begin, end) of the sequences in the rotated stream, and where that begins in the ring."""
        length, count = int(self.ends[-1]), self.count(epoch)
        least = int(length % self.cell_size == 1)  # otherwise the last cell would hold only the last [SEP]
        slack = least + integers(bits(self.seed, Stream.SLACK, epoch), count * self.cell_size - length + 1 - least)
        rotation = int(self.starts[integers(bits(self.seed, Stream.ROTATION, epoch), len(self.documents))])
        edges = np.clip(np.stack([cells, cells + 1, cells + 2]) * self.cell_size - slack, 0, length)
        following = edges[:2] + self._gap_to_sentence((edges[:2] + rotation) % length)
        begin, end = np.where(following < edges[1:], following, edges[:2])
        return begin, end, rotation

    def _segments(self, begin: np.ndarray, end: np.ndarray, rotation: int) -> Segments:
        """Return sequences of the rotated stream, which begin and end with a token, with their outer sentences."""
        documents = self.documents
        edges = np.stack([begin, end - 1])
        places = (edges + rotation) % int(self.ends[-1])
        document = self._document(places)
        tokens = documents.token_starts[document] + places - self.starts[document]
        low, high = documents.first_sentences[document], documents.end_sentences[document]
        following = documents.first_sentence_from(tokens + 1, low, high)
        first_end, last_begin = documents.store.sentence_starts(following - [[0], [1]]) - tokens + edges
        return Segments(begin, end, np.minimum(first_end, end), np.maximum(last_begin, begin))

    def _gap_to_sentence(self, places: np.ndarray) -> np.ndarray:
        """Return how many places after `places` the next sentence starts, in the same document or the next one."""
        documents, document = self.documents, self._document(places)
        shift = documents.token_starts[document] - self.starts[document]
        high = documents.end_sentences[document]
        sentence = documents.first_sentence_from(places + shift, documents.first_sentences[document], high)
        return (
            np.where(sentence < high, documents.store.sentence_starts(sentence) - shift, self.ends[document]) - places
        )

    def _document(self, places: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.ends, places, side="right")

    def _is_separator(self, places: np.ndarray) -> np.ndarray:
        places = places % int(self.ends[-1])
        return places == self.ends[self._document(places)] - 1
