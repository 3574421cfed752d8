"""Measure how much faster `model.score` is than one forward pass for each masked token, and how far both are apart.

    python scripts/measure_scores.py MODEL FILE [--texts=64] [--rounds=3]

FILE has a text per line. The plain way masks a token, computes the text in a batch of its own, takes the logits of
every place to NumPy, as a script with a library of models does, and goes on to the next token. Both compile before they
are measured, and take turns.
"""

import argparse
import pathlib
import statistics
import time
from collections.abc import Callable

import numpy as np

import bert_jax
from bert_jax.pretrained.outputs import row_width


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model = bert_jax.load(options.model)
    lines = pathlib.Path(options.file).read_text("utf-8").splitlines()
    texts = [line for line in lines if line.strip()][: options.texts]
    few = texts[: max(1, len(texts) // 16)]  # of which the plain way takes as long as the other of all
    tokens, fewer = (sum(len(model.need_tokenizer().encode(text)) for text in own) for own in (texts, few))
    model.score(texts), [one_by_one(model, text) for text in few]
    ratios = []
    for _ in range(options.rounds):
        plain, slow = seconds(lambda: [one_by_one(model, text) for text in few])
        ours, fast = seconds(lambda: model.score(texts))
        ratios.append(slow / fewer * tokens / fast)
        apart = max(abs(a - b) for a, b in zip(plain, ours, strict=False))
        print(
            f"{len(texts)} texts of {tokens} tokens: {tokens / fast:.0f} tokens a second, one by one "
            f"{fewer / slow:.0f}; {ratios[-1]:.1f} times; sums {apart:.1e} apart"
        )
    print(f"median: {statistics.median(ratios):.1f} times as fast")


def one_by_one(model: bert_jax.PretrainedModel, text: str) -> float:
    """Return the pseudo-log-likelihood from a forward pass for each token."""
    tokenizer, total = model.need_tokenizer(), 0.0
    ids = [tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id]
    width = row_width(len(ids), model.config.longest_sequence)
    row = np.zeros((1, width), np.int32)
    row[0, : len(ids)] = ids
    mask = (np.arange(width) < len(ids)).astype(np.int32)[None]
    every = np.arange(width, dtype=np.int32)[None]
    for place in range(1, len(ids) - 1):
        hidden = row.copy()
        hidden[0, place] = tokenizer.mask_id
        batch = {"input_ids": hidden, "token_type_ids": 0 * row, "attention_mask": mask, "masked_positions": every}
        logits = model.mlm_logits(batch)[0, place].astype(np.float64)
        total += logits[ids[place]] - np.logaddexp.reduce(logits)
    return float(total)


def seconds(work: Callable[[], list[float]]) -> tuple[list[float], float]:
    began = time.perf_counter()
    found = work()
    return found, time.perf_counter() - began


if __name__ == "__main__":
    main()
