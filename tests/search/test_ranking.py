"""Measures of rankings: those of trec_eval, and fusion."""

import json

import numpy as np
import pytest
from oracles import make_ranking_oracle

from bert_jax.errors import UserError
from bert_jax.tasks import ranking
from bert_jax.tools.search.search import hybrid


def test_measures_are_those_of_trec_eval():
    expected = json.loads(make_ranking_oracle.PATH.read_text())
    judgements, run = make_ranking_oracle.cases()
    assert len(expected) > 40 and "not judged" not in expected
    for query, measures in expected.items():
        found = ranking.measured(judgements[query], run[query], measures)
        assert found == pytest.approx(measures, abs=1e-12), query
    names = [*next(iter(expected.values()))]
    means = {name: np.mean([expected[query][name] for query in judgements]) for name in names}
    assert ranking.evaluated(judgements, run, names) == pytest.approx(means, abs=1e-12)


def test_a_judged_query_for_which_nothing_was_found_counts_0():
    assert ranking.evaluated({"q": {"a": 1}, "r": {"a": 1}}, {"q": {"a": 1.0}}, ["ndcg@10"]) == {"ndcg@10": 0.5}
    with pytest.raises(UserError, match="nothing to measure"):
        ranking.evaluated({}, {"q": {"a": 1.0}})
    with pytest.raises(UserError, match="no measure 'ndgc@10'; expected one such as ndcg@10"):
        ranking.evaluated({"q": {"a": 1}}, {}, ["ndgc@10"])


def test_reciprocal_rank_fusion():
    found = [(np.ones(len(numbers)), np.array(numbers)) for numbers in ([7, 3, 9], [3, 8])]
    scores, documents = hybrid(found, 3)
    assert documents.tolist() == [3, 7, 8]
    np.testing.assert_allclose(scores, [1 / 62 + 1 / 61, 1 / 61, 1 / 62], rtol=1e-15)
