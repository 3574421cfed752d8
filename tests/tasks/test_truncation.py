"""What is cut is counted where sequences are made, and said with a value of the option that cuts nothing."""

import numpy as np
import pytest
from pretrained_model import CONFIG, TOKENIZER

from bert_jax.config.finetuning import ChoiceOptions, SentenceOptions, SquadOptions
from bert_jax.data.sequences import Uncut
from bert_jax.tasks import choice, sentences, squad
from bert_jax.tasks.choice import Question
from bert_jax.tasks.sentences import Sentences
from bert_jax.tasks.squad_files import Examples as Asked
from bert_jax.tasks.squad_files import Question as AskedQuestion

WORDS = "the cat sat on a big mat in tree house"  # ten words, a piece each


def texts(*lengths):
    return [" ".join(WORDS.split()[:length]) for length in lengths]


def test_single_texts_and_pairs_are_counted_with_their_specials():
    options = SentenceOptions(max_length=8)
    single = sentences.features(Sentences("text", texts(5, 6, 7, 10), None, None, ("a", "b"), []), TOKENIZER, options)
    assert single.uncut.lengths.tolist() == [7, 8, 9, 12] and single.uncut.share == 0.5 and single.uncut.noun == "texts"
    pair = sentences.features(Sentences("text", texts(1, 2), texts(4, 4), None, ("a", "b"), []), TOKENIZER, options)
    assert pair.uncut.lengths.tolist() == [8, 9] and pair.uncut.share == 0.5 and pair.uncut.noun == "pairs"
    for features in (single, pair):  # what is counted as cut is what was cut
        untouched = [len(ids) == length for ids, length in zip(features.input_ids, features.uncut.lengths)]
        assert np.mean(untouched) == 1 - features.uncut.share


def test_a_choice_is_as_long_as_its_longest_candidate():
    questions = tuple(Question("", *texts(3), "", tuple(texts(*sizes)), 0, "") for sizes in ((1, 2), (1, 9), (2, 3)))
    features = choice.features(choice.Examples("race", questions, True), TOKENIZER, ChoiceOptions(max_length=9))
    assert features.uncut.lengths.tolist() == [8, 15, 9] and features.uncut.share == pytest.approx(1 / 3)


def test_of_windows_only_the_questions_are_cut():
    asked = tuple(AskedQuestion(str(size), *texts(size), 0) for size in (3, 4, 9))
    options = SquadOptions(max_length=12, max_query_length=4, doc_stride=4)
    features = squad.features(Asked("squad_v1", (WORDS,), asked, has_answers=False), TOKENIZER, options)
    assert features.uncut.lengths.tolist() == [3, 4, 9] and features.uncut.share == pytest.approx(1 / 3)
    assert features.uncut.advise("dev", CONFIG.max_position_embeddings) == (
        "1 of 3 dev questions (33.3 %) are longer than options.max_query_length=4 tokens (median 4) and are cut; "
        "--options.max_query_length=8, the most there is room for, cuts 33.3 %"
    )


@pytest.mark.parametrize(
    "longest, positions, remedy",
    [
        (317, 512, "--options.max_length=317 keeps all of them"),
        (900, 512, "--options.max_length=512, the most there is room for, cuts 25.0 %"),
        (900, 128, "there is room for no more"),
    ],
)
def test_the_advice_is_within_the_positions_of_the_model(longest, positions, remedy):
    uncut = Uncut(np.array([100, 200, 300, longest]), 128, "texts")
    assert uncut.advise("train", positions) == (
        f"3 of 4 train texts (75.0 %) are longer than options.max_length=128 tokens (median 250) and are cut; {remedy}"
    )
