"""Measures how time, memory and space of the search for duplicates grow with the corpus.

    python scripts/measure_duplicate_search.py [--threshold=0.8] [--megabytes=20,200] [--documents=200000,2000000]

Its two parts are measured apart, each size in a process of its own. What is kept of each document is computed from text
of 400 random words per document. The search reads that of the whole corpus, which is drawn at random here, since the
search is too fast to be measured on texts that could be made in a few minutes: one document in ten is nearly a copy of
an earlier one, one in twenty is a copy, one paragraph in twenty occurs elsewhere.

CPU seconds are those of one core. Memory is the most that is not pages of files (RssAnon, Linux only), which the kernel
takes back when it needs them. The slope between the first size and the last extrapolates to 1 TB.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator

import numpy as np

from bert_jax.data.duplicates.block_records import BlockRecords, block_records
from bert_jax.data.duplicates.corpus_search import find_duplicates
from bert_jax.data.duplicates.minhash import HASHES, banding_for
from bert_jax.data.duplicates.record_files import RecordCounts, RecordWriter, read_table
from bert_jax.data.duplicates.removals import Removals

BLOCK_DOCUMENTS, PARAGRAPHS, PARAGRAPH_WORDS = 400, 4, 100  # a block of `prepare` is about a mebibyte too
DOCUMENT_BYTES = PARAGRAPHS * PARAGRAPH_WORDS * 7
TERABYTE = 1e12


def main() -> None:
    own = {"threshold": "0.8", "megabytes": "20,200", "documents": "200000,2000000", "one": ""}
    for word in sys.argv[1:]:
        name, _, value = word.removeprefix("--").partition("=")
        if name not in own or not value:
            sys.exit(__doc__)
        own[name] = value
    threshold = float(own["threshold"])
    if own["one"]:
        measure = records_of_text if own["one"] == "megabytes" else search
        print(json.dumps(measure(threshold, int(own[own["one"]]))))
        return
    for part in ("megabytes", "documents"):
        _print_sizes(part, own["threshold"], own[part].split(","))


def _print_sizes(part: str, threshold: str, sizes: list[str]) -> None:
    print(f"| {part} | GB of text | CPU s | MB of memory | GB on disk | what |\n|---|---|---|---|---|---|", flush=True)
    rows = []
    for size in sizes:
        command = [sys.executable, __file__, f"--one={part}", f"--threshold={threshold}", f"--{part}={size}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows.append(row := json.loads(done.stdout.splitlines()[-1]))
        cells = f"{row['text'] / 1e9:.2f} | {row['seconds']:.1f} | {row['memory'] / 1e6:.0f} | {row['disk'] / 1e9:.3f}"
        print(f"| {int(size):,} | {cells} | {row['what']} |", flush=True)
    further = TERABYTE - rows[-1]["text"]
    for name, unit, scale in (("seconds", "core hours", 3600), ("disk", "GB on disk", 1e9)):
        slope = (rows[-1][name] - rows[0][name]) / (rows[-1]["text"] - rows[0]["text"])
        there = (rows[-1][name] + slope * further) / scale
        print(f"{name}: with the slope between the first size and the last 1 TB would take {there:,.1f} {unit}")
    print(flush=True)


def records_of_text(threshold: float, megabytes: int) -> dict[str, float | str]:
    """Return what the records of so much text take."""
    banding, seconds, text = banding_for(threshold), 0.0, 0
    draw = np.random.default_rng(0)
    words = np.array(["".join(map(chr, row)) for row in draw.integers(97, 123, (20_000, 6))])
    with tempfile.TemporaryDirectory() as name, Peaks(pathlib.Path(name)) as peaks:
        writer = RecordWriter(pathlib.Path(name), banding)
        while text < megabytes * 1e6:
            drawn = words[draw.integers(0, len(words), (BLOCK_DOCUMENTS, PARAGRAPHS, PARAGRAPH_WORDS))]
            pieces = [[" ".join(paragraph) for paragraph in document] for document in drawn]
            started = time.process_time()
            writer.append(0, text, block_records(pieces, banding))
            seconds += time.process_time() - started
            text += BLOCK_DOCUMENTS * DOCUMENT_BYTES
        writer.flush()
        writer.close()
    return _row(text, seconds, peaks, f"{text / 1e6 / seconds:.1f} MB/s of one core")


def search(threshold: float, documents: int) -> dict[str, float | str]:
    """Return what the search takes in a corpus of so many documents."""
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        counts = _write(place, threshold, drawn_records(threshold, documents))
        with Peaks(place) as peaks:
            started = time.process_time()
            find_duplicates(read_table(place, banding_for(threshold), counts), threshold, place)
            seconds = time.process_time() - started
        gone = [Removals(place).of(0, number) for number in range(counts.blocks)]
    removed = f"{sum(len(each.documents) for each in gone):,} documents and "
    removed += f"{sum(len(each.paragraphs) for each in gone):,} paragraphs removed"
    return _row(counts.documents * DOCUMENT_BYTES, seconds, peaks, removed)


def _row(text: int, seconds: float, peaks: "Peaks", what: str) -> dict[str, float | str]:
    return {"text": text, "seconds": seconds, "memory": peaks.memory, "disk": peaks.disk, "what": what}


def _write(place: pathlib.Path, threshold: float, blocks: Iterable[BlockRecords]) -> RecordCounts:
    writer = RecordWriter(place, banding_for(threshold))
    for number, block in enumerate(blocks):
        writer.append(0, number, block)
    counts = writer.flush()
    writer.close()
    return counts


def drawn_records(threshold: float, documents: int) -> Iterator[BlockRecords]:
    """Yield the records of blocks without their text; what is repeated is of the block before."""
    draw, bands, before = np.random.default_rng(0), banding_for(threshold).bands, None
    places = np.indices((BLOCK_DOCUMENTS, PARAGRAPHS)).reshape(2, -1).T.astype(np.uint32)
    for _ in range(-(-documents // BLOCK_DOCUMENTS)):
        block = BlockRecords(
            documents=draw.integers(1, 2**64, (BLOCK_DOCUMENTS, 2), np.uint64),
            bands=draw.integers(1, 2**64, (BLOCK_DOCUMENTS, bands), np.uint64),
            sketches=draw.integers(0, 256, (BLOCK_DOCUMENTS, HASHES), np.uint8),
            paragraphs=draw.integers(1, 2**64, (len(places), 2), np.uint64),
            places=places,
        )
        if before is not None:
            copies, near, paragraphs = (
                draw.random(BLOCK_DOCUMENTS),
                draw.random(BLOCK_DOCUMENTS),
                draw.random(len(places)),
            )
            block.documents[copies < 0.05] = before.documents[copies < 0.05]
            block.bands[near < 0.1, ::2] = before.bands[near < 0.1, ::2]
            block.sketches[near < 0.1, : HASHES * 9 // 10] = before.sketches[near < 0.1, : HASHES * 9 // 10]
            block.paragraphs[paragraphs < 0.05] = before.paragraphs[paragraphs < 0.05]
        yield block
        before = block


class Peaks:
    """The most anonymous memory of this process, and the most bytes in a directory, sampled while it is entered."""

    def __init__(self, place: pathlib.Path):
        self.place, self.memory, self.disk = place, 0, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> "Peaks":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _bytes(self) -> int:
        total = 0
        for path in self.place.rglob("*"):
            try:
                total += path.stat().st_blocks * 512
            except OSError:
                pass  # removed meanwhile
        return total

    def _sample(self) -> None:
        status = pathlib.Path("/proc/self/status")
        while True:
            ended = self._ended.wait(0.1)
            line = next(line for line in status.read_text().splitlines() if line.startswith("RssAnon:"))
            self.memory = max(self.memory, int(line.split()[1]) * 1024)
            self.disk = max(self.disk, self._bytes())
            if ended:
                return


if __name__ == "__main__":
    main()
