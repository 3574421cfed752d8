"""Measures what the search for near duplicates finds, on documents and copies of them with some words replaced.

    python scripts/measure_near_duplicates.py [--threshold=0.8] [--pairs=4000]

By the exact Jaccard similarity of each pair: how many share a band, beside the closed form, and how many copies are
removed. Precision and recall count pairs with at least the threshold as duplicates.
"""

import pathlib
import sys
import tempfile

import numpy as np

from bert_jax.data.duplicates.block_records import block_records
from bert_jax.data.duplicates.corpus_search import find_duplicates
from bert_jax.data.duplicates.minhash import SHINGLE_WORDS, banding_for
from bert_jax.data.duplicates.record_files import RecordWriter, read_table
from bert_jax.data.duplicates.removals import Removals


def main() -> None:
    own = {"threshold": "0.8", "pairs": "4000"}
    for word in sys.argv[1:]:
        name, _, value = word.removeprefix("--").partition("=")
        if name not in own or not value:
            sys.exit(__doc__)
        own[name] = value
    _print_accuracy(float(own["threshold"]), int(own["pairs"]))


def _print_accuracy(threshold: float, pairs: int) -> None:
    banding = banding_for(threshold)
    originals, copies = planted_pairs(pairs)
    similarity = np.array([jaccard(*pair) for pair in zip(originals, copies, strict=True)])
    first, second = (block_records([[text] for text in texts], banding) for texts in (originals, copies))
    meet = (first.bands == second.bands).any(axis=1)
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        writer = RecordWriter(place, banding)
        writer.append(0, 0, first)
        writer.append(0, 1, second)
        counts = writer.flush()
        writer.close()
        find_duplicates(read_table(place, banding, counts), threshold, place)
        removals = Removals(place)
        wrong = len(removals.of(0, 0).documents)
        found = np.isin(np.arange(pairs), list(removals.of(0, 1).documents))
    print(f"threshold {threshold}: {banding.bands} bands of {banding.rows}; {pairs} pairs of 200 words\n")
    print("| Jaccard | pairs | share a band | 1-(1-s^r)^b | removed |\n|---|---|---|---|---|")
    edges = np.arange(0.3, 1.01, 0.05)
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        among = (similarity >= low - 1e-9) & (similarity < high - 1e-9)
        if among.any():
            closed = np.mean([banding.probability(value) for value in similarity[among]])
            shares = f"{meet[among].mean():.3f} | {closed:.3f} | {found[among].mean():.3f}"
            print(f"| {low:.2f} to {high:.2f} | {among.sum()} | {shares} |")
    near = similarity >= threshold
    print(
        f"\nrecall {found[near].mean():.3f} of {near.sum()} pairs at or above the threshold; precision "
        f"{near[found].mean():.3f} of {found.sum()} removed; {wrong} of {pairs} unrelated documents removed"
    )


def planted_pairs(pairs: int) -> tuple[list[str], list[str]]:
    """Return documents of 200 words, and a copy of each in which up to 30 words are others."""
    draw = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(20_000)])
    texts = words[draw.integers(0, len(words), (pairs, 200))]
    copies = texts.copy()
    for copy, changed in zip(copies, draw.integers(1, 31, pairs), strict=True):
        copy[draw.choice(200, changed, replace=False)] = words[draw.integers(0, len(words), changed)]
    return [" ".join(text) for text in texts], [" ".join(text) for text in copies]


def jaccard(one: str, two: str) -> float:
    """Return the exact similarity of the sets of words in a row."""
    sets = []
    for text in (one, two):
        words = text.split()
        sets.append({tuple(words[start : start + SHINGLE_WORDS]) for start in range(len(words) - SHINGLE_WORDS + 1)})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


if __name__ == "__main__":
    main()
