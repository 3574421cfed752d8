"""Writes task_losses_oracle.npz: losses of classifiers in torch with their gradients, and scikit-learn's metrics.

    python -m venv oracle && oracle/bin/pip install torch==2.13.0 scikit-learn==1.9.1
    oracle/bin/python tests/oracles/make_task_losses_oracle.py

Tests draw the same logits, labels and predictions again.
"""

import pathlib

import numpy as np

PATH = pathlib.Path(__file__).with_name("task_losses_oracle.npz")
CLASS_WEIGHTS = (0.5, 2.0, 1.25, 3.0)
SMOOTHING = 0.15
SINGLE = {
    "plain": {},
    "weights": {"weight": CLASS_WEIGHTS},
    "smoothing": {"label_smoothing": SMOOTHING},
    "both": {"weight": CLASS_WEIGHTS, "label_smoothing": SMOOTHING},
}
"""Arguments of CrossEntropyLoss by the name of a case."""
SEVERAL = {"plain": {}, "weights": {"pos_weight": CLASS_WEIGHTS}}
"""Arguments of BCEWithLogitsLoss."""


def drawn() -> dict[str, np.ndarray]:
    """Logits and labels of a batch, and answers and predictions of a split: classes 4 and 5 lack one or the other."""
    random = np.random.default_rng(46)
    return {
        "logits": (3 * random.standard_normal((12, 4))).astype(np.float32),
        "labels": random.integers(0, 4, 12).astype(np.int32),
        "sets": (random.random((12, 4)) < 0.4).astype(np.float32),
        "answers": random.choice([0, 1, 2, 3, 4], 200, p=[0.5, 0.2, 0.15, 0.1, 0.05]),
        "predictions": random.choice([0, 1, 2, 3, 5], 200, p=[0.5, 0.2, 0.15, 0.1, 0.05]),
        "there": random.random((200, 5)) < [0.5, 0.3, 0.1, 0.02, 0.0],
        "said": random.random((200, 5)) < [0.5, 0.2, 0.1, 0.05, 0.0],
        "shares": random.random((200, 5)),
    }


def losses(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import torch

    found = {}
    cases = {f"single_{name}": (torch.nn.CrossEntropyLoss, options) for name, options in SINGLE.items()}
    cases |= {f"several_{name}": (torch.nn.BCEWithLogitsLoss, options) for name, options in SEVERAL.items()}
    for name, (kind, options) in cases.items():
        arguments = {key: torch.tensor(value) if isinstance(value, tuple) else value for key, value in options.items()}
        targets = given["labels"].astype(np.int64) if name.startswith("single") else given["sets"]
        logits = torch.tensor(given["logits"], requires_grad=True)
        loss = kind(**arguments)(logits, torch.tensor(targets))
        loss.backward()
        found |= {name: loss.detach().numpy(), f"{name}_gradient": logits.grad.numpy()}
    return found


def metrics(given: dict[str, np.ndarray]) -> dict[str, float | np.ndarray]:
    import warnings

    from sklearn import metrics as theirs

    warnings.simplefilter("ignore")
    answers, predictions, there, said = (given[name] for name in ("answers", "predictions", "there", "said"))
    curves = [theirs.precision_recall_curve(*pair) for pair in zip(there.T[:4], given["shares"].T[:4])]
    return {
        "macro_f1": theirs.f1_score(answers, predictions, average="macro"),
        "balanced_accuracy": theirs.balanced_accuracy_score(answers, predictions),
        "by_class": np.array(theirs.precision_recall_fscore_support(there, said, zero_division=0)),
        "several_micro_f1": theirs.f1_score(there, said, average="micro", zero_division=0),
        "several_macro_f1": theirs.f1_score(there, said, average="macro", zero_division=0),
        "several_exact_match": theirs.accuracy_score(there, said),
        "best_f1": np.array([np.max(2 * p * r / np.maximum(p + r, 1e-12)) for p, r, _ in curves]),
    }


if __name__ == "__main__":
    inputs = drawn()
    np.savez(PATH, allow_pickle=False, **losses(inputs), **metrics(inputs))
