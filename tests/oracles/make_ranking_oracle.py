"""Writes ranking_oracle.json: what trec_eval measures in random rankings with ties and graded judgements.

    python -m venv oracle && oracle/bin/pip install numpy pytrec-eval-terrier
    oracle/bin/python tests/oracles/make_ranking_oracle.py

Only `main` needs pytrec_eval; the test draws the same rankings with `cases`. RandomState, because NumPy promises that
its stream never changes.
"""

import json
import pathlib

import numpy as np

PATH = pathlib.Path(__file__).with_name("ranking_oracle.json")
CUTOFFS = (1, 3, 10, 100)
NAMES = {"ndcg_cut": "ndcg", "map_cut": "map", "recall": "recall", "P": "precision"}


def cases() -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    """(judgements, run) of queries that differ in how much is judged, found and tied, and of borderline ones."""
    random = np.random.RandomState(7)
    judgements, run = {}, {}
    for number in range(40):
        ids = [f"d{each}" for each in random.permutation(160)] + ["é", "Z", "a", "日本"]
        judged = ids[: random.randint(1, 30)]
        found = [ids[each] for each in random.permutation(len(ids))[: random.randint(1, 130)]]
        levels = random.choice([2, 5, 50])  # the fewer, the more ties
        judgements[f"q{number}"] = {name: int(random.choice([-1, 0, 1, 2, 3])) for name in judged}
        run[f"q{number}"] = {name: float(random.randint(levels)) / 7 for name in found}
    judgements["nothing relevant"], run["nothing relevant"] = {"a": 0, "b": -1}, {"a": 1.0, "b": 0.5}
    # Scores that differ in 64 bits and are equal in 32.
    judgements["near ties"], run["near ties"] = {"a": 1}, {"a": 1.0 + 1e-12, "b": 1.0, "c": 1.0 - 1e-12}
    judgements["not found"], run["not found"] = {"a": 3}, {"b": 1.0}
    run["not judged"] = {"a": 1.0}
    return judgements, run


def main() -> None:
    import pytrec_eval

    judgements, run = cases()
    cutoffs = ",".join(map(str, CUTOFFS))
    asked = {*(f"{name}.{cutoffs}" for name in NAMES), "recip_rank"}
    stored = {}
    for query, found in pytrec_eval.RelevanceEvaluator(judgements, asked).evaluate(run).items():
        row = {f"{ours}@{k}": found[f"{theirs}_{k}"] for theirs, ours in NAMES.items() for k in CUTOFFS}
        rank = round(1 / found["recip_rank"]) if found["recip_rank"] else 0
        stored[query] = row | {f"mrr@{k}": found["recip_rank"] if 0 < rank <= k else 0.0 for k in CUTOFFS}
    PATH.write_text(json.dumps(stored, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
