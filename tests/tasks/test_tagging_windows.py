"""Long documents as windows: each word predicted once, with the most context, with and without a CRF."""

import dataclasses
import functools
import json
import pathlib

import jax
import numpy as np
import pytest
from small_model import compiled
from tagged_words import FOUR_COLUMNS, PIECES, TOKENIZER, load, one_hot

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.config.finetuning import TaggingDataConfig, TaggingOptions
from bert_jax.data.sequences import padded
from bert_jax.models.task import BertForTask, without_edges
from bert_jax.objectives.tasks import TaskObjective, predictions
from bert_jax.tasks import conll, ner
from bert_jax.tasks.ner import windows


def brute_force_owner(first, end, ranges, starts):
    """Of all windows with words first … end - 1, the one with most tokens on the poorer side, then on the richer."""
    sides = {
        (low, high): sorted((starts[first] - starts[low], starts[high] - starts[end]))
        for low, high in ranges
        if low <= first and end <= high
    }
    return max(sides.values()), sides


@pytest.mark.parametrize("seed", range(6))
def test_windows_predict_each_word_once_with_the_most_context(seed):
    random = np.random.default_rng(seed)
    room, step = (40, 20) if seed % 2 else (30, 8)
    sentences = [
        random.integers(1, 4, random.integers(1, 30 if seed < 4 else 6)) for _ in range(random.integers(1, 25))
    ]
    found = windows(sentences, room, step)
    starts = np.concatenate([[0], np.cumsum(np.concatenate(sentences))])
    assert sorted(np.concatenate([window.predicted for window in found])) == list(range(len(starts) - 1))
    assert all(starts[window.end] - starts[window.first] <= room for window in found)
    # Nothing more fits, but for part of a word on either side.
    assert all(starts[window.end] - starts[window.first] >= min(starts[-1], room - 4) for window in found)
    ranges = [(window.first, window.end) for window in found]
    ends = np.cumsum([len(sentence) for sentence in sentences])
    for window in found:
        for first, end in zip([0, *ends], ends):
            inside = np.intersect1d(window.predicted, np.arange(first, end))
            if len(inside) and starts[end] - starts[first] <= room:
                best, sides = brute_force_owner(first, end, ranges, starts)
                assert len(inside) == end - first and sides[window.first, window.end] == best
        # Both sides have half of what a group leaves (but for part of a word), unless the document ends there.
        group = max(step, starts[window.predicted[-1] + 1] - starts[window.predicted[0]])
        if window.first > 0 and window.end < len(starts) - 1:
            assert starts[window.predicted[0]] - starts[window.first] >= (room - group) // 2 - 3
            assert starts[window.end] - starts[window.predicted[-1] + 1] >= (room - group) // 2 - 3


def test_one_window_holds_a_short_document():
    (window,) = windows([np.array([1, 2]), np.array([1]), np.array([3, 3])], room=10, step=5)
    assert (window.first, window.end, window.predicted.tolist()) == (0, 5, [0, 1, 2, 3, 4])


def test_first_pieces_carry_the_tags(tmp_path):
    examples = load(tmp_path, FOUR_COLUMNS + "\u200b NNP B-NP O\n???York NNP B-NP I-LOC\n")
    features = ner.features(examples, TOKENIZER, TaggingOptions(max_length=16))
    by_name = [[PIECES[i] for i in ids] for ids in features.input_ids]
    assert by_name == [
        "[CLS] Ann Bo ##b lives New York ##s [SEP]".split(),
        "[CLS] in [UNK] [UNK] [UNK] [UNK] York [SEP]".split(),
    ]
    classes, first, last = zip(*map(without_edges, features.labels))
    tags = [["" if label < 0 else examples.labels[label] for label in row] for row in classes]
    assert tags == [["", "B-PER", "B-PER", "", "O", "B-LOC", "I-LOC", "", ""], ["", "O", "O", "B-LOC", "", "", "", ""]]
    assert [words.tolist() for words in features.words] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7],
    ] and features.example.tolist() == [0, 2]
    assert first[0][classes[0] >= 0].tolist() == [True, False, False, True, False]
    assert last[0][classes[0] >= 0].tolist() == [False, False, True, False, True]
    alone = ner.features(examples, TOKENIZER, TaggingOptions(max_length=16, context=False))
    assert [len(ids) for ids in alone.input_ids] == [6, 5, 8] and alone.example.tolist() == [0, 1, 2]


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """Three documents of sentences with 1 to 14 words, and windows that hold about one of them."""
    random = np.random.default_rng(7)
    lines = []
    for _ in range(3):
        lines += ["-DOCSTART- O", ""]
        for _ in range(12):
            words = random.choice(["Ann", "Bob", "lives", "Yorks", "?"], random.integers(1, 15))
            lines += [f"{word} {random.choice(['O', 'B-PER', 'B-LOC'])}" for word in words] + [""]
    examples = load(tmp_path_factory.mktemp("long"), "\n".join(lines))
    return examples, ner.features(examples, TOKENIZER, TaggingOptions(max_length=20))


def test_gold_logits_score_one_and_read_back(long, tmp_path):
    examples, features = long
    logits = one_hot(features, len(examples.labels))
    assert ner.score(examples, features, logits)["f1"] == ner.score(examples, features, logits)["accuracy"] == 1
    logits[3] = -logits[3]
    worse = ner.score(examples, features, logits)
    assert 0.5 < worse["f1"] < 1 and 0.5 < worse["accuracy"] < 1
    assert worse.keys() == {"precision", "recall", "f1", "accuracy", "f1_PER", "f1_LOC"}
    file, by_type = ner.write_predictions(examples, features, logits, tmp_path, "dev")
    assert file.endswith("/predictions.conll") and worse.items() < json.loads(pathlib.Path(by_type).read_text()).items()
    gold = [list(s.tags) for s in examples.sentences]
    for column, tags in ((2, gold), (3, ner.predicted_tags(examples, features, logits))):
        again = conll.read(file, TaggingDataConfig(tag_column=column))
        assert [list(s.tags) for s in again] == tags
        assert [(s.words, s.document) for s in again] == [(s.words, s.document) for s in examples.sentences]


def test_unlabelled_words_are_predicted(long, tmp_path):
    labelled, features = long
    text = "\n\n".join(
        ("-DOCSTART-\n\n" if i % 12 == 0 else "") + "\n".join(s.words) for i, s in enumerate(labelled.sentences)
    )
    examples = load(tmp_path, text, "test", labelled.labels)
    assert not examples.has_answers
    unlabelled = ner.features(examples, TOKENIZER, TaggingOptions(max_length=20))
    for found, known in zip(unlabelled.labels, features.labels, strict=True):
        found, known = without_edges(found), without_edges(known)
        np.testing.assert_array_equal(found, [np.minimum(known[0], 0), *known[1:]])
    (file,) = ner.write_predictions(examples, unlabelled, one_hot(features, len(examples.labels)), tmp_path, "test")
    assert file.endswith("/test_predictions.conll")
    assert [s.tags for s in conll.read(file, TaggingDataConfig())] == [s.tags for s in labelled.sentences]


@dataclasses.dataclass(frozen=True)
class Emissions:
    """In the place of a model: the same scores for a piece wherever it stands; [pieces, C] under "pieces"."""

    head: HeadConfig

    def apply(self, params, batch, dropout_key=None):
        return params["pieces"][batch["input_ids"]]

    def crf(self, params):
        return BertForTask(ModelConfig(vocab_size=len(PIECES)), self.head).crf(params)


def with_crf(examples, favoured):
    """A model that favors these labels, by piece, and O elsewhere, with random parameters of a CRF; and these."""
    random, count = np.random.default_rng(0), len(examples.labels)
    pieces = np.zeros((len(PIECES), count), np.float32)
    pieces[range(len(PIECES)), [examples.labels.index(favoured.get(piece, "O")) for piece in PIECES]] = 5
    crf = {
        "transitions": random.random((count, count), np.float32),
        "start": random.random(count, np.float32),
        "end": random.random(count, np.float32),
    }
    return Emissions(HeadConfig(kind="tagging", labels=examples.labels, crf=True)), {"pieces": pieces, "crf": crf}


def decoded(model, params, examples, options):
    features = ner.features(examples, TOKENIZER, options)
    batch = padded(features, np.arange(len(features)), len(features))
    rows = compiled(functools.partial(predictions, model))(params, batch)
    return ner.predicted_tags(
        examples, features, [np.asarray(row)[: len(ids)] for row, ids in zip(rows, features.input_ids)]
    )


TWO_SENTENCES = "-DOCSTART- O\n\n? O\nlives O\nAnn B-PER\n\nYork B-PER\nin O\n"


def test_a_crf_does_not_go_on_from_one_sentence_to_the_next(tmp_path):
    examples = load(tmp_path, TWO_SENTENCES)
    model, params = with_crf(examples, {"Ann": "B-PER", "York": "I-PER"})
    together, alone = TaggingOptions(max_length=16), TaggingOptions(max_length=16, context=False)
    assert len(ner.features(examples, TOKENIZER, together)) == 1
    first, second = decoded(model, params, examples, together)
    assert first == ["O", "O", "B-PER"] and not second[0].startswith("I-")
    assert [first, second] == decoded(model, params, examples, alone)
    losses = []
    for options in (together, alone):
        features = ner.features(examples, TOKENIZER, options)
        losses += jax.jit(TaskObjective(model).sums)(params, padded(features, np.arange(len(features)), 4)).values()
    assert float(losses[0].loss) == pytest.approx(float(losses[1].loss), rel=1e-5) and losses[0].weight == 5


def test_a_part_of_a_sentence_may_begin_inside_an_entity(tmp_path):
    examples = load(tmp_path, "Ann B-PER\n" + 8 * "Ann I-PER\n" + "in O\n")
    model, params = with_crf(examples, {"Ann": "I-PER"})
    options = TaggingOptions(max_length=8)
    assert len(ner.features(examples, TOKENIZER, options)) > 1  # six words a window
    (tags,) = decoded(model, params, examples, options)
    assert tags[1:] == ["I-PER"] * 8 + ["O"] and tags[0] != "I-PER"
