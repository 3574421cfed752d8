"""What the search for duplicates keeps of a block of the corpus: a pure function of its text."""

import dataclasses
import hashlib

import numpy as np

from bert_jax.data.cleaning.word_hashes import word_hashes
from bert_jax.data.duplicates.minhash import HASHES, Banding, band_keys, signature, sketches

SHORTEST_PARAGRAPH = 100
"""Characters: shorter ones, such as headings, items and answers in a dialogue, rightly recur and are kept."""


@dataclasses.dataclass(frozen=True)
class BlockRecords:
    """Hashes of the documents of a block, or of their parts in it, and of their paragraphs."""

    documents: np.ndarray  # [documents, 2] uint64: hash of the text, 0 if there is none
    bands: np.ndarray  # [documents, bands] uint64: see minhash.band_keys; 0 without words
    sketches: np.ndarray  # [documents, hashes] uint8
    paragraphs: np.ndarray  # [paragraphs, 2] uint64: hash of the text
    places: np.ndarray  # [paragraphs, 2] uint32: number of the document in the block, of the paragraph in it


def block_records(pieces: list[list[str]], banding: Banding | None) -> BlockRecords:
    """Return the records of a block.

    Args:
      pieces: the paragraphs of each document, none for a document that is already removed.
      banding: how near duplicates are found; None: only exact ones are, and there are no bands or sketches.
    """
    documents = np.zeros((len(pieces), 2), np.uint64)
    paragraphs, places = [], []
    for number, lines in enumerate(pieces):
        stripped = [line.strip() for line in lines]
        if any(stripped):
            documents[number] = _hash("\n".join(stripped))
        for place, line in enumerate(stripped):
            if len(line) >= SHORTEST_PARAGRAPH:
                paragraphs.append(_hash(line))
                places.append((number, place))
    keys, shortened = _similarity_records(pieces, banding)
    return BlockRecords(
        documents=documents,
        bands=keys,
        sketches=shortened,
        paragraphs=np.array(paragraphs, np.uint64).reshape(-1, 2),
        places=np.array(places, np.uint32).reshape(-1, 2),
    )


def widths(banding: Banding | None) -> tuple[int, int]:
    """Return how many bands, and bytes of a sketch, each document has."""
    return (banding.bands, HASHES) if banding else (0, 0)


def _similarity_records(pieces: list[list[str]], banding: Banding | None) -> tuple[np.ndarray, np.ndarray]:
    bands, length = widths(banding)
    keys, shortened = np.zeros((len(pieces), bands), np.uint64), np.zeros((len(pieces), length), np.uint8)
    if banding:
        found = {number: signature(word_hashes("\n".join(lines))) for number, lines in enumerate(pieces)}
        found = {number: values for number, values in found.items() if values is not None}
        if found:
            signatures = np.stack(list(found.values()))
            keys[list(found)], shortened[list(found)] = band_keys(signatures, banding), sketches(signatures)
    return keys, shortened


def _hash(text: str) -> tuple[int, int]:
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
