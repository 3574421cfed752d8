"""What a run has read, saved and restored, to compare it with that of other starts on other hosts and devices."""

import json
import pathlib
import sys
import zlib

import jax
import numpy as np

from bert_jax import pretraining
from bert_jax.checkpoints.checkpoint import Checkpoints


def record(directory: pathlib.Path, patch=setattr) -> None:
    """From here on, write what this process reads, saves and restores to files of its own in `directory`."""
    make, save, restore = pretraining.batches, Checkpoints.save, Checkpoints.restore

    def batches(examples, first, size, rows, number, place, **options):
        for count, batch in enumerate(make(examples, first, size, rows, number, **options)):
            with open(directory / f"examples-{jax.process_index()}.jsonl", "a") as file:
                for row, mark in zip(rows, marks(batch), strict=True):
                    file.write(json.dumps([first + count * size + int(row), mark]) + "\n")
            yield place(batch)

    def saved(self, step, state, **options):
        _write(directory / f"saved-{step}-{jax.process_index()}.npz", state)
        return save(self, step, state, **options)

    def restored(self, abstract):
        found = restore(self, abstract)
        if found is not None:
            _write(directory / f"restored-{found.step}-{jax.process_index()}.npz", found.state)
        return found

    patch(pretraining, "batches", batches)
    patch(Checkpoints, "save", saved)
    patch(Checkpoints, "restore", restored)


def marks(batch: dict[str, np.ndarray]) -> list[int]:
    """Return a checksum of every row: its tokens, masks and label."""
    names = sorted(batch)
    count = len(batch[names[0]])
    return [zlib.crc32(b"".join(np.ascontiguousarray(batch[n][row]).tobytes() for n in names)) for row in range(count)]


def examples(directory: pathlib.Path) -> list[list[int]]:
    """Return [position, mark] of all examples that were trained on, by whichever process, in the order of positions."""
    lines = [line for file in sorted(directory.glob("examples-*.jsonl")) for line in file.read_text().splitlines()]
    return sorted(json.loads(line) for line in lines)


def state(directory: pathlib.Path, name: str) -> dict[str, np.ndarray]:
    """Return the whole arrays of a saved or restored state, put together from the parts of all processes."""
    arrays: dict[str, np.ndarray] = {}
    for file in sorted(directory.glob(f"{name}-*.npz")):
        with np.load(file) as parts:
            for key in parts.files:
                path, shape, index = json.loads(key)
                whole = arrays.setdefault(path, np.zeros(shape, parts[key].dtype))
                whole[tuple(slice(*span) for span in index)] = parts[key]
    return arrays


def _write(file: pathlib.Path, tree) -> None:
    parts = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        for shard in leaf.addressable_shards:
            index = [span.indices(size)[:2] for span, size in zip(shard.index, leaf.shape, strict=True)]
            parts[json.dumps([jax.tree_util.keystr(path), leaf.shape, index])] = np.asarray(shard.data)
    np.savez(file, **parts)


if __name__ == "__main__":
    from bert_jax.cli import main

    record(pathlib.Path(sys.argv.pop(1)))
    main()
