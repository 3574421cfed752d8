"""Writes seqeval_oracle.json: what seqeval finds and scores in random tag sequences, valid ones and broken ones.

    python -m venv oracle && oracle/bin/pip install seqeval==1.2.2
    oracle/bin/python tests/oracles/make_seqeval_oracle.py

Only `main` needs seqeval; the test draws the same sequences with `cases`. RandomState, because NumPy promises that its
stream never changes.
"""

import json
import pathlib

import numpy as np

PATH = pathlib.Path(__file__).with_name("seqeval_oracle.json")
PREFIXES = {"iob": "BI", "iobes": "BIES", "inside_only": "I", "ends": "BES"}
TYPES = ("PER", "LOC", "creative-work")


def cases() -> list[tuple[str, list[list[str]], list[list[str]]]]:
    """(name, gold, predicted) with 40 sentences of 0 to 11 words each; prefixes are drawn regardless of any scheme."""
    result = []
    for number, (name, prefixes) in enumerate(PREFIXES.items()):
        random = np.random.RandomState(number)
        tags = ["O", *(f"{prefix}-{kind}" for prefix in prefixes for kind in TYPES)]
        chances = np.array([0.3] + [0.7 / (len(tags) - 1)] * (len(tags) - 1))
        gold = [list(random.choice(tags, random.randint(0, 12), p=chances)) for _ in range(40)]
        # Half of the words keep their tag, so that many entities are found whole and many in part.
        noise = [list(random.choice(tags, len(sentence), p=chances)) for sentence in gold]
        predicted = [
            [str(g if random.random_sample() < 0.7 else n) for g, n in zip(*pair)] for pair in zip(gold, noise)
        ]
        result.append((name, [list(map(str, sentence)) for sentence in gold], predicted))
    return result


def main() -> None:
    from seqeval.metrics.sequence_labeling import accuracy_score, get_entities, precision_recall_fscore_support

    stored = {}
    for name, gold, predicted in cases():
        precision, recall, f1, _ = precision_recall_fscore_support(gold, predicted, average="micro", zero_division=0)
        result = {"precision": precision, "recall": recall, "f1": f1, "accuracy": accuracy_score(gold, predicted)}
        by_type = precision_recall_fscore_support(gold, predicted, average=None, zero_division=0)
        for position, kind in enumerate(sorted(TYPES)):
            for name_of, values in zip(("precision", "recall", "f1"), by_type):
                result[f"{name_of}_{kind}"] = float(values[position])
        found = [
            [[str(kind), int(first), int(last)] for kind, first, last in get_entities(sentence)]
            for sentence in predicted
        ]
        stored[name] = {"scores": {key: float(value) for key, value in result.items()}, "entities": found}
    PATH.write_text(json.dumps(stored, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
