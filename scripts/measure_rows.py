"""Measure how long rows of several widths take on this machine, and whether a text has the same bits in all of them.

    python scripts/measure_rows.py MODEL

MODEL is one of single vectors. For each shape of a batch of full rows the time of the encoder is printed: the median,
and the least CPU time of all threads, which other programs on the machine change little. Then a
text is computed in rows of several widths, and in batches of several numbers of rows, beside random ones; the largest
differences of its states from those in a batch of 8 rows of the first width say which shapes have the same bits
(bert_jax/pretrained/outputs.py has the rule that follows).
"""

import argparse
import statistics
import time

import jax
import numpy as np

import bert_jax
from bert_jax.data.sequences import Batch

SHAPES = ((1, 16), (1, 32), (1, 64), (1, 128), (1, 256), (32, 64), (16, 128), (8, 256))
TIMES = 30
TOKENS = {"of 16 tokens": (16, (64, 16, 32, 48, 96, 128, 192, 256)), "of 180 tokens": (180, (192, 256))}
POSITIONS = (2048, 3072, 4096)  # of the largest batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    model = bert_jax.load(parser.parse_args().model)
    for rows, width in SHAPES:
        batch = random_batch(model, rows, width)
        taken = [seconds(model, batch) for _ in range(TIMES)][2:]  # the first compiles
        each, least = statistics.median(wall for wall, _ in taken), min(cpu for _, cpu in taken)
        rate = f"{1e6 * each / rows / width:.0f} µs for each position"
        print(f"{rows} × {width}: {1e3 * each:.1f} ms, {rate}, at least {1e3 * least:.1f} ms of CPU")
    for name, (tokens, widths) in TOKENS.items():
        text = random_batch(model, 1, tokens)["input_ids"][0]
        expected = states(model, text, 8, widths[0])
        for width in widths:
            counts = (1, 2, 3, 8, *(most // width for most in POSITIONS))
            found = [np.abs(states(model, text, rows, width) - expected).max() for rows in counts]
            differences = ", ".join(f"{value:.1e}" for value in found)
            print(f"a text {name} in {', '.join(map(str, counts))} rows of {width}: {differences}")


def random_batch(model: bert_jax.PretrainedModel, rows: int, width: int) -> Batch:
    ids = np.random.default_rng(width).integers(5, model.config.vocab_size, (rows, width)).astype(np.int32)
    return {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": np.ones_like(ids)}


def seconds(model: bert_jax.PretrainedModel, batch: Batch) -> tuple[float, float]:
    """Return the seconds of the encoder: by the clock, and of CPU."""
    began, used = time.perf_counter(), time.process_time()
    jax.block_until_ready(model.runner.states(batch, collect="last", decoded=False).last_hidden_state)
    return time.perf_counter() - began, time.process_time() - used


def states(model: bert_jax.PretrainedModel, text: np.ndarray, rows: int, width: int) -> np.ndarray:
    """Return the states [L, H] of a text in the first of some rows."""
    batch = random_batch(model, rows, width)
    batch["input_ids"][0, : len(text)] = text
    batch["attention_mask"][0, len(text) :] = 0
    return np.asarray(model.runner.states(batch, collect="last", decoded=False).last_hidden_state)[0, : len(text)]


if __name__ == "__main__":
    main()
