"""Oracle: original_squad.py, the published algorithm in plain, slow form, on random documents and on real ones."""

import random

import numpy as np
import original_squad
import pytest
from google_tokenization import google_basic
from squad_tokenizer import TOKENIZER

from bert_jax.config.finetuning import Squad2Options, SquadOptions, TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.tasks import squad
from bert_jax.tasks import squad as squad_windows
from bert_jax.tasks.squad_files import Examples, Question
from bert_jax.tokenization.tokenizer import load_tokenizer

WORDS = ["a", "bad", "abcd", "cab", "(bad", "de)", "a-b", "b.", "Bad", "É.", "e\u0301a", "xyz", "中b", "'c", "d,"]


def pieces(text: str) -> list[str]:
    return [TOKENIZER.tokens[i] for i in TOKENIZER.encode(text)]


def document(generator, words: list[str], count: int, space: str = " ") -> str:
    return "".join(generator.choice(words) + generator.choice(space) for _ in range(count)).strip()


def single(context: str, question: str = "a b?", span=None, task: str = "squad_v2") -> Examples:
    answers = (context[slice(*span)],) if span else ()
    return Examples(task, (context,), (Question("q", question, 0, answers, span),), True)


@pytest.mark.parametrize("seed", range(40))
def test_windows_equal_the_original(seed):
    generator = random.Random(seed)
    context = document(generator, WORDS, generator.randrange(1, 60), " \n\t")
    question, step = document(generator, WORDS, generator.randrange(12)), generator.randrange(1, 30)
    starts = [
        i
        for i, c in enumerate(context)
        if not c.isspace() and c != "\u0301" and context[max(0, i - 1)] in " \n\t.,()-'"
    ]
    start = generator.choice(starts or [0])
    end = next(
        (i for i in range(start + generator.randrange(1, 20), len(context)) if context[i] in " \n\t.,)("), len(context)
    )
    options = SquadOptions(max_length=generator.randrange(14, 40), doc_stride=step, max_query_length=8)
    features = squad.features(single(context, question, (start, end)), TOKENIZER, options)
    expected = original_squad.make_windows(
        context, question, (context[start:end], start), pieces, options.max_length, step, 8
    )
    assert [[TOKENIZER.tokens[i] for i in ids] for ids in features.input_ids] == [window.tokens for window in expected]
    assert features.labels.tolist() == [[window.start, window.end] for window in expected]
    assert [types.tolist() for types in features.token_type_ids] == [
        [int(i > window.tokens.index("[SEP]")) for i in range(len(window.tokens))] for window in expected
    ]
    spans = [
        (first, len(ids) - prefix - 1)
        for first, ids, prefix in zip(features.first, features.input_ids, features.prefix)
    ]
    flags = squad_windows.has_most_context(spans)
    assert [row.tolist() for row in flags] == [list(window.most_context.values()) for window in expected]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("task", ["squad_v1", "squad_v2"])
def test_answers_equal_the_original(seed, task):
    generator = random.Random(seed)
    ascii_words = ["ab", "bad", "abcd", "(bad", "de)", "a-b", "b.", "'c", "d,", "cab", "ed"]
    context, version_2 = document(generator, ascii_words, generator.randrange(1, 50)), task == "squad_v2"
    n_best = generator.randrange(1, 9)
    kind = Squad2Options if version_2 else SquadOptions
    options = kind(max_length=24, doc_stride=5, max_query_length=6, n_best=n_best, max_answer_length=7)
    features = squad.features(single(context, "cab?", task=task), TOKENIZER, options)
    logits = [
        np.float32(np.round(np.random.default_rng([seed, i]).normal(size=(len(ids), 2)), 7 * (seed % 2)))  # even: ties
        for i, ids in enumerate(features.input_ids)
    ]
    for scores in logits:
        scores[0] += seed % 3  # "no answer" at any place of the list
    (found,) = squad.predict(single(context, task=task), features, logits)
    windows = original_squad.make_windows(context, "cab?", None, pieces, 24, 5, 6)
    best, guess, odds = original_squad.answer(
        context, windows, logits, n_best, 7, version_2, lambda text: " ".join(google_basic(text, True))
    )
    if best:
        assert [(answer.text, answer.start_logit, answer.end_logit) for answer in found.answers] == best
        shares = original_squad.softmax([start + end for _, start, end in best])
        assert [entry["probability"] for entry in found.entries()] == pytest.approx(shares)
    else:  # the original says "empty"
        assert [answer.text for answer in found.answers] == [""]
    if guess:  # else 2.0 of the original crashes
        assert found.guess == guess and (not version_2 or found.null_odds == pytest.approx(odds, abs=1e-12))


def test_only_null_among_the_best():
    options = Squad2Options(max_length=24, max_query_length=6, n_best=1)
    examples, scores = single("ab bad"), np.zeros((8, 2), np.float32)
    features = squad.features(examples, TOKENIZER, options)
    for null, cells, guess, odds in (
        (9, {(5, 0): 3, (6, 1): 3}, "", 18),
        (1, {(5, 0): 3, (6, 1): 2}, "ab bad", -3),
        (1, {(6, 0): 3, (5, 1): 3}, "", 2),
    ):
        logits = scores.copy()
        logits[0] = null
        for cell, value in cells.items():
            logits[cell] = value
        (found,) = squad.predict(examples, features, [logits])
        assert (found.guess, found.null_odds, len(found.answers)) == (guess, odds, 2 - (guess == ""))
        assert sum(entry["probability"] for entry in found.entries()) == pytest.approx(1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_of_a_diverged_model(value):
    examples = single("ab bad", span=(0, 2))
    features = squad.features(examples, TOKENIZER, Squad2Options(max_length=24, max_query_length=6))
    assert all(
        np.isfinite(metric) for metric in squad.score(examples, features, [np.full((8, 2), value, np.float32)]).values()
    )


def test_every_answer_that_fits_lies_in_some_window():
    generator = random.Random(1)
    for _ in range(200):
        tokens, room, step = generator.randrange(1, 90), generator.randrange(2, 30), generator.randrange(1, 30)
        spans = squad_windows.windows(tokens, room, step)
        assert spans == original_squad.cut(tokens, room, step)
        shown = [begin <= t < begin + length for t in range(tokens) for begin, length in spans]
        assert np.reshape(shown, (tokens, -1)).any(axis=1).all()
        fits = room - min(step, room) + 1  # tokens that two neighbours share, and one
        for first in range(tokens - fits + 1):
            assert any(begin <= first and first + fits <= begin + length for begin, length in spans)


def test_a_last_window_much_shorter_shows_less_context():
    spans = squad_windows.windows(450, 300, 290)
    flags = squad_windows.has_most_context(spans)
    assert spans == [(0, 300), (290, 160)] and not flags[1][:6].any() and flags[1][6:].all()
    assert flags[1][:10].tolist() == [original_squad.most_context(spans, token) == 1 for token in range(290, 300)]


@pytest.mark.parametrize(
    "text, answer, found",
    [
        ("The leader was John Smith (1895-1943).", "1895", "1895"),  # inside a word of the original: tokens are finer
        (
            "café au lait, cafe\u0301 noir",
            "cafe\u0301",
            "cafe\u0301",
        ),  # the accent is no token's, yet part of the answer
        ("CAFÉ Éa", "CAFÉ", "CAFÉ"),  # original case and accents
        ("bad\n\tcab", "bad\n\tcab", "bad\n\tcab"),  # original whitespace
        ("a €27 b", "27", "€27"),  # one [UNK] covers both
        ("in Japanese.", "Japan", "Japanese"),
        ("中中b", "中b", "中b"),
        ("x\u200bx ab", "ab", "ab"),
    ],
)
def test_characters_of_the_answer(text, answer, found):
    context, start = squad_windows.encode(text, TOKENIZER), text.index(answer)
    assert squad_windows.read(text, context, *squad_windows.answer_tokens(context, start, start + len(answer))) == found


def test_labels_without_an_answer():
    features = squad.features(single("a b c"), TOKENIZER, Squad2Options(max_length=20, max_query_length=5))
    assert features.labels.tolist() == [[0, 0]] and features.example.tolist() == [0]
    unlabelled = Examples("squad_v2", ("a b",), (Question("q", "a?", 0),), False)
    assert squad.features(unlabelled, TOKENIZER, Squad2Options(max_length=20, max_query_length=5)).labels is None


@pytest.mark.parametrize(
    "context, options, message",
    [
        (
            "a b",
            Squad2Options(max_length=64),
            "max_length=64 leaves no room next to a question of .*max_query_length=64 .* above 67",
        ),
        ("\u200b", Squad2Options(max_length=384), "question q: the tokenizer leaves nothing of its context"),
    ],
)
def test_what_cannot_become_features(context, options, message):
    with pytest.raises(UserError, match=message):
        squad.features(single(context), TOKENIZER, options)


@pytest.mark.parametrize("casing", ["uncased", "cased"])
def test_real_answers_come_back_to_the_character(shared_data, casing):
    tokenizer = load_tokenizer(shared_data / "vocab" / casing / "vocab.txt")
    examples = squad.load("squad_v1", TaskDataConfig(dir=str(shared_data / "squad")), "dev")
    features = squad.features(examples, tokenizer, SquadOptions(max_length=384))
    exact, same_labels = 0, []
    for index, question in enumerate(examples.questions):
        text, context = examples.contexts[question.context], features.contexts[question.context]
        gold = text[slice(*question.span)]
        exact += squad_windows.read(text, context, *squad_windows.answer_tokens(context, *question.span)) == gold
        if index < 300:
            windows = original_squad.make_windows(
                text,
                question.text,
                (gold, question.span[0]),
                lambda t: [tokenizer.tokens[i] for i in tokenizer.encode(t)],
                384,
                128,
                64,
            )
            same_labels += [(window.start, window.end) for window in windows]
    assert (exact, len(examples)) == (1914, 1916)
    assert np.mean(features.labels[: len(same_labels)] == same_labels) > 0.998
