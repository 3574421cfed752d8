"""Measure how much faster `model.score` is than one forward pass for each masked token, and how far both are apart.

    python scripts/measure_scores.py MODEL FILE [--texts=64] [--rounds=3]

FILE has a text per line. The plain way masks a token, computes the text in a batch of its own, takes the logits of
every place to NumPy, as a script with a library of models does, and goes on to the next token. It is measured with rows
of the text's own length, each of which is a program to compile; of the next multiple of 64; and of all that the model
reads, which is one program. All are compiled before they are measured, take turns, and are measured in CPU seconds of
the process, because other programs may run.
"""

import argparse
import pathlib
import statistics
import time
from collections.abc import Callable

import numpy as np

import bert_jax
from bert_jax.pretrained.outputs import row_width

PART = 16  # of the texts one in so many is computed the plain way, which takes about as long as all of them otherwise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model = bert_jax.load(options.model)
    longest = model.config.longest_sequence
    widths: dict[str, Callable[[int], int]] = {
        "its own length": lambda tokens: tokens,
        "a multiple of 64": lambda tokens: row_width(tokens, longest),
        f"{longest}": lambda tokens: longest,
    }
    lines = pathlib.Path(options.file).read_text("utf-8").splitlines()
    texts = [line for line in lines if line.strip()][: options.texts]
    few = texts[::PART]
    tokens, fewer = (sum(len(model.need_tokenizer().encode(text)) for text in own) for own in (texts, few))
    model.score(texts), [one_by_one(model, text, width) for width in widths.values() for text in few]
    rates: dict[str, list[float]] = {name: [] for name in ("score", *widths)}
    apart = 0.0
    for _ in range(options.rounds):
        ours, fast = seconds(lambda: model.score(texts))
        rates["score"].append(tokens / fast)
        for name, width in widths.items():
            plain, slow = seconds(lambda width=width: [one_by_one(model, text, width) for text in few])
            rates[name].append(fewer / slow)
            apart = max(apart, *(abs(a - b) for a, b in zip(plain, ours[::PART], strict=True)))
    print(f"{len(texts)} texts of {tokens} tokens; sums at most {apart:.1e} apart")
    score = statistics.median(rates.pop("score"))
    print(f"model.score: {score:.0f} tokens a CPU second")
    for name, own in rates.items():
        rate = statistics.median(own)
        print(f"one by one in rows of {name}: {rate:.0f}, {score / rate:.1f} times slower")


def one_by_one(model: bert_jax.PretrainedModel, text: str, width_of: Callable[[int], int]) -> float:
    """Return the pseudo-log-likelihood from a forward pass for each token."""
    tokenizer, total = model.need_tokenizer(), 0.0
    ids = [tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id]
    width = width_of(len(ids))
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
    began = time.process_time()
    found = work()
    return found, time.process_time() - began


if __name__ == "__main__":
    main()
