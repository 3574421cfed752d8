"""Prints what an epoch of a token store looks like beside the original's sequential example maker on the same text.

    python scripts/compare_examples.py STORE [SEQUENCE_LENGTH …]

The original's procedure is the oracle of the tests, tests/support/original_procedure.py of this checkout; it is found
beside this file, whatever directory the script is started from.
"""

import pathlib
import sys

import numpy as np

from bert_jax.config import Config, DataConfig, PhaseConfig
from bert_jax.data.examples.epoch_report import epoch_report
from bert_jax.data.examples.examples import Examples
from bert_jax.data.store.access import open_store
from bert_jax.data.store.store import Store

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "support"))
import original_procedure

PASSES = 5  # over the text: five runs of the original, five epochs of ours
HEADER = (
    "",
    "sequences",
    "IsNext",
    "mean length",
    "padding",
    "cut off",
    "seen twice",
    "sentences seen",
    "10/25/50/75/90 % of lengths",
)


def original_row(store: Store, sequence_length: int, short: float) -> list[str]:
    starts = store.sentence_starts(np.arange(store.num_sentences + 1))
    documents = [lengths.tolist() for lengths in np.split(np.diff(starts), store.document_sentences[1:-1])]
    passes = [original_procedure.create_examples(documents, sequence_length - 3, short, seed) for seed in range(PASSES)]
    seen = np.mean([len({sentence for example in examples for sentence in example.seen}) for examples in passes])
    examples = [example for examples in passes for example in examples]
    lengths = np.array([example.num_first + example.num_second + 3 for example in examples])
    text = PASSES * store.num_tokens
    return _row(
        "original",
        len(examples),
        1 - np.mean([example.is_random for example in examples]),
        lengths,
        sequence_length,
        sum(example.truncated for example in examples) / text,
        sum(example.duplicated for example in examples) / text,
        seen / store.num_sentences,
    )


def our_row(store: Store, sequence_length: int, short: float) -> list[str]:
    config = Config(
        data=DataConfig(short_sequence_probability=short), phases=(PhaseConfig(sequence_length=sequence_length),)
    )
    examples = Examples(store, config, split="all")
    counts = [examples.num_examples(epoch) for epoch in range(PASSES)]
    reports = [epoch_report(examples, epoch, limit=counts[epoch]) for epoch in range(PASSES)]
    lengths = np.concatenate(
        [examples.rows(np.full(count, epoch), np.arange(count)).lengths for epoch, count in enumerate(counts)]
    )
    is_next, truncated, duplicated, seen = np.mean(
        [(report.is_next, report.truncated, report.duplicated, report.sentences_seen) for report in reports], axis=0
    )
    return _row("bert_jax", len(lengths), is_next, lengths, sequence_length, truncated, duplicated, seen)


def _row(name, count, is_next, lengths, sequence_length, truncated, duplicated, seen) -> list[str]:
    quantiles = "/".join(f"{q:.0f}" for q in np.percentile(lengths, (10, 25, 50, 75, 90)))
    padding = 1 - lengths.mean() / sequence_length
    return [
        name,
        f"{count / PASSES:,.0f}",
        f"{is_next:.1%}",
        f"{lengths.mean():.1f}",
        f"{padding:.1%}",
        f"{truncated:.1%}",
        f"{duplicated:.1%}",
        f"{seen:.3%}",
        quantiles,
    ]


def main(path: str, *sequence_lengths: str) -> None:
    store = open_store(path)
    for sequence_length in map(int, sequence_lengths or ("128", "512")):
        for short in (0.0, 0.1):
            print(f"\nsequence_length={sequence_length}, short_sequence_probability={short}")
            for row in (HEADER, original_row(store, sequence_length, short), our_row(store, sequence_length, short)):
                print("".join(f"{cell:>15}" for cell in row[:-1]) + "   " + row[-1])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
