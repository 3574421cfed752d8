"""Cuts documents into chunks, differently in each epoch; a chunk is the text of about one sequence.

The original packs sentences one after the other until a target length is reached, which is only possible from the
front. Here chunk j of a document can be found without its predecessors. A document of n tokens is cut into
m = ceil(n / S) cells of S tokens, where cell j begins at token c_j = j·S − slack. Chunk j is [b_j, b_j+1) with

    b_j = the first sentence start inside cell j, or c_j if no sentence starts in the cell.

So a chunk holds the sentences that start in its cell, only a sentence longer than a whole cell is ever cut, the chunks
of a document are a partition of its tokens, none is empty, and slack (new in each epoch) moves all boundaries.

No sentence of a chunk starts more than S - 1 tokens after its beginning. Therefore S never exceeds what fits into a
sequence: the last sentence alone can then be cut so far that all the others stay and it keeps a token (`truncation`). A
chunk of the original ends with the sentence that reaches the target, on average half a sentence past it, and has at
least one sentence: below that bound a cell is half a mean sentence larger than the target, and larger than one
sentence.

For rows of several texts (`packing`), a chunk is exactly its cell, and a sentence across an edge is divided between the
two. All chunks of a document are then full but one, a random one in each epoch, which is as short as need be: full ones
fill a row, the others fill what is left. It also cuts off less text than keeping sentences whole.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from bert_jax.data.examples.documents import Documents
from bert_jax.data.ordering import invert, permute
from bert_jax.data.randomness import Stream, bits, integers, uniform

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
