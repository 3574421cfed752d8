"""Spelling errors in the examples of tasks: in the texts alone, each tag with its word, and only in training."""

import numpy as np
import pytest

from bert_jax.config.finetuning import FinetuneConfig, TaskDataConfig, check_finetune
from bert_jax.config.pretraining import NoiseConfig
from bert_jax.errors import UserError
from bert_jax.tasks import choice, ner, squad_files
from bert_jax.tasks.choice import Question
from bert_jax.tasks.conll import Sentence
from bert_jax.tasks.sentences import Sentences
from bert_jax.tasks.task_data import noisy_examples

NOISE, DATA = NoiseConfig(rate=0.3), TaskDataConfig(dir="d")
TEXTS = [f"the gardener waters {number} roses by the harbour" for number in range(40)]


def test_texts_change_and_answers_stay():
    clean = Sentences("text", TEXTS, TEXTS[::-1], np.arange(40) % 2, ("no", "yes"), list("x" * 40))
    noisy = noisy_examples(clean, NOISE)
    assert noisy_examples(clean, NoiseConfig()) is clean
    assert noisy.first == noisy_examples(clean, NOISE).first != noisy_examples(clean, NOISE, seed=1).first
    assert all(
        ours != theirs for ours, theirs in zip(noisy.first + noisy.second, clean.first + clean.second, strict=True)
    )
    assert [len(text.split()) for text in noisy.first] == [len(text.split()) for text in clean.first]
    assert noisy.first[::-1] != noisy.second  # each text of a pair has errors of its own
    assert noisy.answers is clean.answers and noisy.index == clean.index
    single = Sentences("text", TEXTS, None, None, ("no", "yes"), list("x" * 40))
    assert noisy_examples(single, NOISE).first == noisy.first and noisy_examples(single, NOISE).second is None


def test_each_word_keeps_its_tag():
    sentence = Sentence(("Anna", "o", "London", "-", "1"), ("B-PER", "O", "B-LOC", "O", "O"), None, ("f",) * 5)
    clean = ner.Examples((sentence,) * 50, ("O", "B-PER", "B-LOC"), True)
    for noisy in noisy_examples(clean, NoiseConfig(rate=1.0)).sentences:
        assert noisy.tags == sentence.tags and len(noisy.words) == 5 and all(noisy.words)
        assert noisy.words[0] != "Anna" and noisy.words[3] == "-"


def test_choices_change_and_the_right_one_stays():
    question = Question("f", TEXTS[0], "then they", ("cook the onions", "sail to the lighthouse"), 1, "0")
    noisy = noisy_examples(choice.Examples("swag", (question,) * 3, True), NOISE).questions
    assert noisy[0] != noisy[1] and all(each.answer == 1 and len(each.choices) == 2 for each in noisy)
    assert noisy[0].context != question.context and noisy[0].choices != question.choices


def test_answers_that_are_places_are_refused():
    with pytest.raises(UserError, match="noise.rate=0.3 would move the answers of squad_v1"):
        noisy_examples(squad_files.Examples("squad_v1", (), (), True), NOISE)
    config = FinetuneConfig(task="squad_v2", init_from="m", workdir="w", data=DATA, noise=NOISE)
    with pytest.raises(UserError, match="noise.rate=0.3 belongs to task=cola or .* or ner, not to squad_v2"):
        check_finetune(config)
    with pytest.raises(UserError, match="noise.rate=2.0 must be a probability"):
        check_finetune(FinetuneConfig(task="mrpc", init_from="m", workdir="w", data=DATA, noise=NoiseConfig(rate=2.0)))
