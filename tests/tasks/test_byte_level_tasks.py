"""Tasks with a byte-level vocabulary, RoBERTa's pair format and exact characters."""

import numpy as np
import pytest
from byte_level_vocabulary import byte_level

from bert_jax.config.finetuning import Squad2Options, SquadOptions, TaggingOptions
from bert_jax.tasks import ner, squad
from bert_jax.tasks.conll import Sentence
from bert_jax.tasks.squad_files import Examples, Question

CONTEXT = "The sailor's anchor (東京, 1987) sinks — before noon;  the gull, naïve, rises."


@pytest.mark.parametrize("spaced", [True, False])
@pytest.mark.parametrize("answer", ["sailor", "東京", "1987", "naïve", "gull, naïve", "rises."])
def test_an_answer_is_read_back_by_its_characters(answer, spaced):
    tokenizer = byte_level(spaced)
    start = CONTEXT.index(answer)
    question = Question("q", "What rises?", 0, (answer,), (start, start + len(answer)))
    examples = Examples("squad_v1", (CONTEXT,), (question,), True)
    options = SquadOptions(max_length=200, max_query_length=20, doc_stride=50)
    features = squad.features(examples, tokenizer, options)
    query = tokenizer.encode("What rises?")
    ids, types = features.input_ids[0], features.token_type_ids[0]
    assert ids[: len(query) + 3].tolist() == [0, *query, 2, 2] and ids[-1] == 2 and not np.any(types)
    first, last = features.labels[0] - (len(query) + 3)
    assert squad.read(CONTEXT, features.contexts[0], first, last) == answer


def test_every_window_of_a_long_context_fits():
    options = Squad2Options(max_length=24, max_query_length=6, doc_stride=5)
    question = Question("q", "What rises before noon?", 0, (), None)
    features = squad.features(Examples("squad_v2", (CONTEXT,), (question,), True), byte_level(), options)
    assert len(features.input_ids) > 3 and max(map(len, features.input_ids)) == 24
    inside = [ids[9:-1].tolist() for ids in features.input_ids]
    assert [ids[6 + 1 : 9].tolist() for ids in features.input_ids] == [[2, 2]] * len(inside)
    assert set(sum(inside, [])) == set(byte_level().encode(CONTEXT))


@pytest.mark.parametrize("spaced", [True, False])
def test_each_word_of_a_tagged_sentence_follows_a_space(spaced):
    tokenizer, words = byte_level(spaced), ("Rose", "docks", "in", "東京", ".")
    sentence = Sentence(words, ("B-X", "O", "O", "B-X", "O"), None, words, None)
    examples = ner.Examples((sentence,), ("O", "B-X", "I-X"), has_answers=True)
    features = ner.features(examples, tokenizer, TaggingOptions(max_length=64))
    (ids,), (labels,) = features.input_ids, features.labels
    firsts = [tokenizer.tokens[i] for i in ids[labels >= 0]]
    assert len(firsts) == 5 and all(piece.startswith("Ġ") for piece in firsts)
    assert np.array_equal(np.flatnonzero(labels >= 0), np.flatnonzero(~tokenizer.continues_word()[ids])[1:-1])
