"""Full sentences without pairs, across documents (FULL-SENTENCES of Liu et al. 2019, section 4.2).

The documents of the split form one stream in which each is followed by a [SEP]. Each epoch begins the stream at a
different document (it is a ring), cuts it into cells of what fits between [CLS] and the closing [SEP], and puts the
sentences that start in a cell into one sequence, by the same boundary rule as `chunks`, so that each of them keeps a
token.
"""

import numpy as np

from bert_jax.data.examples.documents import Documents
from bert_jax.data.examples.truncation import Segments, trim
from bert_jax.data.ordering import invert, permute
from bert_jax.data.randomness import Stream, bits, integers
from bert_jax.data.store.token_rows import PADDING, SPECIAL, Rows


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
