"""Rankings and what they are measured by: nDCG, MRR, MAP, recall and precision by the definitions of trec_eval.

A ranking is ordered by score, and documents of equal score by their ids from the last to the first, as trec_eval does
whatever order a file has; the metrics of training (`tasks.vectors.ranks`) give a positive the last place among equal
ones. A document without a judgement is not relevant, one with a score of 1 or more is. Gains are the scores themselves
(nDCG of Järvelin and Kekäläinen 2002 with linear gains). What was found for queries without judgements is left out; a
judged query for which nothing was found counts 0.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bert_jax.errors import UserError

MEASURES = ("ndcg@10", "mrr@10", "map@100", "recall@100")
"""What tables show."""
TITLES = {"ndcg": "nDCG", "mrr": "MRR", "map": "MAP", "recall": "recall", "precision": "precision"}
FUSION_CONSTANT = 60
"""The constant of reciprocal rank fusion (Cormack, Clarke and Büttcher 2009)."""


def title(measure: str) -> str:
    """Return a measure as people write it, such as nDCG@10."""
    name, _, cutoff = measure.partition("@")
    return f"{TITLES[name]}@{cutoff}"


def ordered(scores: Mapping[str, float]) -> list[str]:
    """Return the ids of documents in the order in which trec_eval ranks them; its scores are of 32 bits."""
    ids = list(scores)
    with np.errstate(over="ignore"):
        values = np.array([scores[each] for each in ids], np.float64).astype(np.float32).tolist()
    return [name for _, name in sorted(zip(values, ids, strict=True), reverse=True)]


def measured(judged: Mapping[str, int], scores: Mapping[str, float], measures: Iterable[str]) -> dict[str, float]:
    """Return measures of the ranking of one query, such as ndcg@10, by their names.

    Args:
      judged: scores of the judged documents by id.
      scores: scores of the documents that were found, by id.
    """
    gains = [max(judged.get(name, 0), 0) for name in ordered(scores)]
    ideal = sorted((score for score in judged.values() if score > 0), reverse=True)
    return {measure: _measure(measure, gains, ideal) for measure in measures}


def _measure(measure: str, gains: Sequence[int], ideal: Sequence[int]) -> float:
    """Return a measure of the gains of a ranking, next to the gains of the best one, which has all that is relevant."""
    name, _, text = measure.partition("@")
    if name not in TITLES or not text.isdecimal() or int(text) < 1:
        raise UserError(f"there is no measure {measure!r:.40}; expected one such as ndcg@10, of {', '.join(TITLES)}")
    cutoff = int(text)
    top = gains[:cutoff]
    if not ideal:
        return 0.0
    if name == "ndcg":
        return _discounted(top) / _discounted(ideal[:cutoff])
    ranks = [rank for rank, gain in enumerate(top, 1) if gain]
    if name == "mrr":
        return 1 / ranks[0] if ranks else 0.0
    if name == "map":
        return sum(count / rank for count, rank in enumerate(ranks, 1)) / len(ideal)
    return len(ranks) / (len(ideal) if name == "recall" else cutoff)


def _discounted(gains: Iterable[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def evaluated(
    judgements: Mapping[str, Mapping[str, int]],
    run: Mapping[str, Mapping[str, float]],
    measures: Sequence[str] = MEASURES,
) -> dict[str, float]:
    """Return the means of measures over the judged queries.

    Args:
      judgements: scores by query, then by document.
      run: scores of what was found by query, then by document.
    """
    if not judgements:
        raise UserError("there is nothing to measure: no query has a judgement")
    rows = [measured(judged, run.get(query, {}), measures) for query, judged in judgements.items()]
    return {measure: math.fsum(row[measure] for row in rows) / len(rows) for measure in measures}


def fused(rankings: Iterable[np.ndarray], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return documents and scores of several rankings by reciprocal rank fusion, the best first.

    Args:
      rankings: int arrays of documents, the best first.
      most: number of documents to return.

    Returns:
      The documents, int64, and their scores, float64: the sum of 1 / (60 + rank) over the rankings. Of equal ones the
      lowest document comes first.
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, document in enumerate(ranking.tolist(), 1):
            scores[document] = scores.get(document, 0.0) + 1 / (FUSION_CONSTANT + rank)
    best = sorted(scores.items(), key=lambda found: (-found[1], found[0]))[:most]
    return np.array([each for each, _ in best], np.int64), np.array([score for _, score in best], np.float64)
