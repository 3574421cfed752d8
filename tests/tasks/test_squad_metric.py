"""Oracle: the rules of evaluate-v1.1.py and evaluate-v2.0.py, written again; closed forms for hand-made cases."""

import collections
import random
import re
import string

import numpy as np
import pytest

from bert_jax.tasks import squad_files

ODD = [
    "the",
    "The",
    "a",
    "An",
    "an",
    "theatre",
    "A.",
    "U.S.",
    "us",
    "don't",
    "dont",
    "1,000",
    "1000",
    "–",
    "-",
    "—",
    "\u00a0",
    "\t",
    "",
    "Zürich",
    "zürich",
    "zu\u0308rich",
    "İ",
    "i\u0307",
    "ß",
    "SS",
    "中国",
    "“quoted”",
    '"quoted"',
    "the-end",
    "Σ",
    "ς",
    "a_b",
    "á",
]


def plain_form(text: str) -> str:
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(re.compile(r"\b(a|an|the)\b", re.UNICODE), " ", text).split())


def overlap(gold: str, said: str, version: int) -> float:
    gold, said = plain_form(gold).split(), plain_form(said).split()
    same = sum((collections.Counter(gold) & collections.Counter(said)).values())
    if version == 2 and (not gold or not said):
        return int(gold == said)
    if same == 0:
        return 0
    precision, recall = 1.0 * same / len(said), 1.0 * same / len(gold)
    return (2 * precision * recall) / (precision + recall)


def published_v1(said, golds):
    exact = f1 = 0
    for text, right in zip(said, golds):
        exact += max(plain_form(text) == plain_form(gold) for gold in right)
        f1 += max(overlap(gold, text, 1) for gold in right)
    return {"exact_match": exact / len(golds), "f1": f1 / len(golds)}


def published_v2(said, odds, golds, threshold):
    raw = {"exact": {}, "f1": {}}
    for i, (text, right) in enumerate(zip(said, golds)):
        right = [gold for gold in right if plain_form(gold)] or [""]
        raw["exact"][i] = max(int(plain_form(gold) == plain_form(text)) for gold in right)
        raw["f1"][i] = max(overlap(gold, text, 2) for gold in right)
    result = {}
    for name, scores in raw.items():
        final = {i: float(not golds[i]) if odds[i] > threshold else score for i, score in scores.items()}
        result[{"exact": "exact_match"}.get(name, name)] = added(final.values()) / len(final)
        for group, wanted in (("HasAns", True), ("NoAns", False)):
            chosen = [score for i, score in final.items() if bool(golds[i]) == wanted]
            result[f"{group}_{name}"] = added(chosen) / len(chosen)
        result[f"best_{name}"], result[f"best_{name}_thresh"] = published_threshold(scores, said, odds, golds)
    return result


def added(values) -> float:
    total = 0
    for value in values:
        total += value  # `sum` compensates from Python 3.12 on
    return total


def published_threshold(scores, said, odds, golds):
    current = best = sum(not answers for answers in golds)
    threshold = 0.0
    for i in sorted(range(len(odds)), key=lambda i: odds[i]):
        current += scores[i] if golds[i] else -1 if said[i] else 0
        if current > best:
            best, threshold = current, odds[i]
    return best / len(scores), threshold


def questions(seed: int, count: int = 300):
    generator = random.Random(seed)
    phrase = lambda: "".join(
        generator.choice(ODD) + generator.choice([" ", "", "  "]) for _ in range(generator.randrange(5))
    )
    golds = [[phrase() for _ in range(generator.randrange(4))] for _ in range(count)]
    said = [generator.choice([phrase(), *answers]) for answers in golds]
    said = [text if plain_form(text) else "" for text in said]  # see the corrections of best_threshold
    odds = [generator.gauss(1.5 - 3 * bool(answers), 2) for answers in golds]
    return said, odds, golds


@pytest.mark.parametrize(
    "prediction, golds, exact, f1",
    [
        ("The Mongol Empire.", ["the Mongol Empire", "x"], 1, 1),
        ("the a an", ["..."], 1, 0),  # nothing is left of either: F1 is 0 in v1.1
        ("", ["the"], 1, 0),
        ("", ["x"], 0, 0),
        ("theatre", ["the atre"], 0, 0),  # an article is a whole word
        ("U.S.", ["us", "U S"], 1, 1),
        ("$1,000", ["1000"], 1, 1),
        ("1895–1943", ["1895-1943"], 0, 0),  # an en dash is not ASCII punctuation: it stays
        ("cafe", ["café"], 0, 0),  # accents stay
        ("to be or not to be", ["to be"], 0, 2 * (2 / 6) * 1 / (2 / 6 + 1)),  # multiplicity
        ("x y", ["y z", "x y z"], 0, 2 * 1 * (2 / 3) / (1 + 2 / 3)),  # the best gold answer counts
        ("new\u00a0york", ["New  York"], 1, 1),
    ],
)
def test_v1_by_hand(prediction, golds, exact, f1):
    assert squad_files.evaluate_v1([prediction], [golds]) == {"exact_match": exact, "f1": f1}


@pytest.mark.parametrize("seed", range(5))
def test_equal_to_the_published_rules(seed):
    said, odds, golds = questions(seed)
    answered = [i for i, answers in enumerate(golds) if answers]
    subset = [said[i] for i in answered], [golds[i] for i in answered]
    assert squad_files.evaluate_v1(*subset) == published_v1(*subset)
    for threshold in (-2.0, 0.0, odds[0]):
        assert squad_files.evaluate_v2(said, odds, golds, threshold) == published_v2(said, odds, golds, threshold)
    tuned = squad_files.evaluate_v2(said, odds, golds)
    assert tuned["f1"] == pytest.approx(tuned["best_f1"], abs=1e-14)


@pytest.mark.parametrize("seed", range(20))
def test_no_threshold_is_better_even_among_equal_odds(seed):
    said, odds, golds = questions(seed, 12)
    odds = np.round(np.array(odds) - (seed % 3 == 0) * 50)  # many ties; odds far below 0
    found = squad_files.evaluate_v2(said, odds, golds)
    for name, score in (("exact", "exact_match"), ("f1", "f1")):
        reached = {t: squad_files.evaluate_v2(said, odds, golds, t)[score] for t in [odds.min() - 1, *odds]}
        assert found[f"best_{name}"] == pytest.approx(max(reached.values()), abs=1e-14)
        assert reached[found[f"best_{name}_thresh"]] == pytest.approx(found[f"best_{name}"], abs=1e-14)


def test_where_nothing_should_be_answered_the_threshold_is_below_all_odds():
    found = squad_files.evaluate_v2(["x", "y"], [-7.0, -5.0], [[], []])
    assert found["f1"] == found["best_f1"] == 1 and found["best_f1_thresh"] == -8
    assert "HasAns_f1" not in found and published_threshold([0, 0], ["x", "y"], [-7.0, -5.0], [[], []]) == (1, 0.0)


def test_a_guess_of_which_nothing_is_left_counts_as_no_answer():
    assert squad_files.evaluate_v2(["the", "x"], [0.0, 1.0], [[], ["x"]])["best_f1"] == 1


def test_f1_properties():
    said, _, golds = questions(7)
    for a, b in ((a, b) for a, right in zip(said, golds) for b in right):
        assert squad_files.f1(a, b) == pytest.approx(squad_files.f1(b, a), abs=1e-15)
        assert squad_files.exact_match(a, b) <= squad_files.f1(a, b) <= 1
        assert squad_files.f1(a, a) == squad_files.exact_match(a, squad_files.normalize(a)) == 1
