"""Tasks with the SentencePiece vocabularies of other families: their pair formats, and exact characters."""

import family_pieces
import numpy as np
import pytest
from family_pieces import FILES, OPTIONS

from bert_jax.config.finetuning import Squad2Options, SquadOptions, TaggingOptions
from bert_jax.tasks import ner, squad
from bert_jax.tasks.conll import Sentence
from bert_jax.tasks.squad_files import Examples, Question
from bert_jax.tokenization.tokenizer import join, load_tokenizer

CONTEXT = (
    "The  sailor's anch\u00f6r (\u6771\u4eac, 1,987, 25) sinks \u2014 before noon;  the gull, nai\u0308ve, rises\u2026"
)
QUESTION = "What rises?"


@pytest.fixture(scope="module", params=list(OPTIONS))
def tokenizer(request, tmp_path_factory):
    place = tmp_path_factory.mktemp(request.param)
    (place / FILES[request.param]).write_bytes(family_pieces.train(request.param))
    (place / "config.json").write_text(f'{{"model_type": "{request.param}"}}')
    return load_tokenizer(place)


@pytest.mark.parametrize(
    "answer", ["sailor", "\u6771\u4eac", "1,987", "25", "nai\u0308ve", "gull, nai\u0308ve", "rises\u2026"]
)
def test_an_answer_is_read_back_by_its_characters(tokenizer, answer):
    start = CONTEXT.index(answer)
    question = Question("q", QUESTION, 0, (answer,), (start, start + len(answer)))
    examples = Examples("squad_v1", (CONTEXT,), (question,), True)
    options = SquadOptions(max_length=300, max_query_length=30, doc_stride=50)
    features = squad.features(examples, tokenizer, options)
    ids, types = join(tokenizer, tokenizer.encode(QUESTION), tokenizer.encode(CONTEXT), 300)
    assert np.array_equal(features.input_ids[0], ids) and np.array_equal(features.token_type_ids[0], types)
    first, last = features.labels[0] - features.prefix[0]
    found = squad.read(CONTEXT, features.contexts[0], first, last)
    assert answer in found and len(found) <= len(answer) + 3  # a piece may hold the punctuation beside it too
    logits = np.zeros((len(ids), 2), np.float32)
    logits[features.labels[0, 0], 0] = logits[features.labels[0, 1], 1] = 5
    logits[[0, -1]] = 9  # which are no answers
    (prediction,) = squad.predict(examples, features, [logits])
    assert prediction.guess == found


def test_every_window_of_a_long_context_fits(tokenizer):
    options = Squad2Options(max_length=40, max_query_length=12, doc_stride=7)
    question = Question("q", QUESTION, 0, (), None)
    features = squad.features(Examples("squad_v2", (CONTEXT,), (question,), True), tokenizer, options)
    assert len(features.input_ids) > 3 and max(map(len, features.input_ids)) == 40
    ends = [tokenizer.sep_id, tokenizer.cls_id] if tokenizer.class_last else [tokenizer.sep_id]
    seen = set()
    for ids, prefix in zip(features.input_ids, features.prefix):
        assert ids[-len(ends) :].tolist() == ends and ids[prefix - 1] == tokenizer.sep_id
        seen |= set(ids[prefix : -len(ends)].tolist())
    assert seen == set(tokenizer.encode(CONTEXT))


def test_the_first_pieces_of_tagged_words_are_labelled(tokenizer):
    words = ("Rose", "docks", "25,", "\u6771\u4eac", ".", "\u0301")
    sentence = Sentence(words, ("B-X", "O", "O", "B-X", "O", "O"), None, words, None)
    examples = ner.Examples((sentence,), ("O", "B-X", "I-X"), has_answers=True)
    features = ner.features(examples, tokenizer, TaggingOptions(max_length=64))
    (ids,), (labels,), (types,) = features.input_ids, features.labels, features.token_type_ids
    whole, expected = join(
        tokenizer, sum(([*tokenizer.encode(word)] or [tokenizer.unk_id] for word in words), []), None, 64
    )
    assert np.array_equal(ids, whole) and np.array_equal(types, expected)
    firsts = [(tokenizer.encode(word) or [tokenizer.unk_id])[0] for word in words]
    assert ids[labels >= 0].tolist() == firsts and len(firsts) == 6
