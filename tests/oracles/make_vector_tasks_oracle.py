"""Writes vector_tasks_oracle.json: what scikit-learn and mteb measure in random clusters, pairs and classes.

    python -m venv oracle && oracle/bin/pip install mteb
    oracle/bin/python tests/oracles/make_vector_tasks_oracle.py

Only `main` needs them; the test draws the same cases. RandomState, because NumPy promises that its stream never
changes.
"""

import json
import pathlib
from typing import Any

import numpy as np

PATH = pathlib.Path(__file__).with_name("vector_tasks_oracle.json")


def partitions() -> list[tuple[np.ndarray, np.ndarray]]:
    """(classes, clusters) of random partitions, the same, a finer one, and one cluster alone."""
    random = np.random.RandomState(3)
    classes = random.randint(0, 5, 60)
    drawn = [(classes, random.randint(0, count, 60)) for count in (2, 5, 9)]
    return [
        *drawn,
        (classes, (classes + 2) % 5),
        (classes, 2 * classes + random.randint(0, 2, 60)),
        (classes, 0 * classes),
    ]


def judged_pairs() -> list[tuple[np.ndarray, np.ndarray]]:
    """(belong, cosines) of pairs, without ties and with many."""
    random = np.random.RandomState(4)
    belong = random.rand(80) < 0.3
    cosines = 0.2 * belong + random.rand(80)
    return [(belong, cosines), (belong, np.round(cosines, 1)), (~belong, cosines)]


def classified(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(points, classes, other points) of so many classes that overlap."""
    random = np.random.RandomState(count)
    classes = np.arange(12 * count) % count
    centres = random.randn(count, 16)
    points = (0.4 * centres[classes] + 0.5 * random.randn(len(classes), 16)).astype(np.float32)
    return points, classes, (0.3 * centres[np.arange(90) % count] + 0.5 * random.randn(90, 16)).astype(np.float32)


def main() -> None:
    from mteb.abstasks.classification import AbsTaskClassification
    from mteb.abstasks.pair_classification import AbsTaskPairClassification
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import v_measure_score

    pair_task: Any = AbsTaskPairClassification
    measure = pair_task._compute_metrics_values
    found: dict[str, Any] = {"v_measure": [float(v_measure_score(*each)) for each in partitions()]}
    found["pairs"] = [
        measure(_Own(pair_task), cosines.tolist(), belong.astype(np.int64), True) for belong, cosines in judged_pairs()
    ]
    found["classes"] = {
        str(count): LogisticRegression(max_iter=1000, tol=1e-8)
        .fit(*classified(count)[:2])
        .predict(classified(count)[2])
        .tolist()
        for count in (2, 3)
    }
    task, labels, numbers = _Own(AbsTaskClassification), np.arange(30) % 3, None
    task.samples_per_label, task.label_column_name, task.seed = 4, "label", 42
    found["draws"] = []
    for run in range(3):
        data = _Rows(labels)
        _, numbers, chosen = AbsTaskClassification._undersample_data(task, data, run, numbers)
        found["draws"].append(sorted(int(each) for each in chosen))
    PATH.write_text(json.dumps(found, indent=1) + "\n")


class _Own:
    """An object with the methods of a task of mteb, which needs no data."""

    def __init__(self, kind: Any):
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kind, name).__get__(self)


class _Rows:
    """A data set of labels."""

    def __init__(self, labels: np.ndarray):
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, name: str) -> list[int]:
        return self._labels.tolist()

    def select(self, numbers: list[int]) -> list[int]:
        return numbers


if __name__ == "__main__":
    main()
