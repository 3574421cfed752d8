"""Print how long exact search takes among many vectors, and how much memory.

    python scripts/measure_search.py DIRECTORY --count=10000000 --width=384 --dtype=float16 --queries=1,32

The vectors are random directions, written to the new DIRECTORY in the blocks of an index, and removed in the end: 7.7
GB for the numbers above. A query is one of them with a little noise, and that one must be found first; the scores of
the first ten must be those of NumPy. The peak of resident memory is that of the whole process, and counts the pages of
the one block that is mapped.
"""

import argparse
import pathlib
import resource
import shutil
import time
from collections.abc import Iterator

import numpy as np

from bert_jax.progress import track
from bert_jax.tools.search import engines
from bert_jax.tools.search.vectors import SingleForm, StoredVectors, files_of

BLOCK = 16_384


def block(number: int, rows: int, width: int) -> np.ndarray:
    """Return random directions, float32 [rows, width], that follow from the number of the block."""
    values = np.random.default_rng(number).standard_normal((rows, width), np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measured(vectors: StoredVectors, counts: list[int], places: np.ndarray) -> Iterator[str]:
    """Yield a line for each number of queries."""
    form = SingleForm()
    queries = vectors.of(places.tolist())
    queries += 0.01 * np.random.default_rng(0).standard_normal(queries.shape).astype(np.float32)
    for count in counts:
        asked = queries[:count]
        engines.exact(form, vectors[:1], asked, 10)  # compiled
        start = time.monotonic()
        scores, numbers = engines.exact(form, vectors, asked, 10)
        seconds = time.monotonic() - start
        assert numbers[:, 0].tolist() == places[:count].tolist()
        expected = vectors.of(numbers[0].tolist()) @ asked[0]
        np.testing.assert_allclose(scores[0], expected, rtol=1e-5)
        yield f"{count:,} queries: {seconds:.1f} s, {seconds / count:.2f} s each; peak of memory {peak():.2f} GiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float16")
    parser.add_argument("--queries", default="1,32", help="numbers of queries, between commas")
    given = parser.parse_args()
    form, counts = SingleForm(), [int(each) for each in given.queries.split(",")]
    given.directory.mkdir()
    try:
        vectors = StoredVectors(given.directory, form, given.count, BLOCK, given.width, given.dtype)
        for number in track(range(len(vectors)), "blocks", len(vectors)):
            rows = min(BLOCK, given.count - number * BLOCK)
            form.write(files_of(given.directory, form, number), [block(number, rows, given.width)], given.dtype)
        size = sum(file.stat().st_size for file in given.directory.iterdir())
        print(f"{given.count:,} vectors {given.dtype}[{given.width}], {size / 1e9:.2f} GB on the disk", flush=True)
        places = np.random.default_rng(1).choice(given.count, max(counts), replace=False)
        for line in measured(vectors, counts, places):
            print(line, flush=True)
    finally:
        shutil.rmtree(given.directory)


if __name__ == "__main__":
    main()
