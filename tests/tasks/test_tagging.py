"""Tagging: files, windows, entities."""

import dataclasses
import functools
import gzip
import json
import pathlib

import glue_files
import jax
import numpy as np
import pytest
from oracles import make_seqeval_oracle
from small_model import compiled
from vocabularies import FOUR_COLUMNS, PIECES, load, one_hot, write
from vocabularies import TAGGED_TOKENIZER as TOKENIZER

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.config.tasks import TaggingDataConfig, TaggingOptions
from bert_jax.data.sequences import padded
from bert_jax.errors import UserError
from bert_jax.models.task import BertForTask, without_edges
from bert_jax.objectives.tasks import TaskObjective, predictions
from bert_jax.tasks import conll, ner
from bert_jax.tasks.ner import windows
from bert_jax.tokenization.tokenizer import load_tokenizer


def test_sentences_tags_and_documents_of_four_columns(tmp_path):
    examples = load(tmp_path, FOUR_COLUMNS)
    assert [sentence.words for sentence in examples.sentences] == [("Ann", "Bob", "lives"), ("New", "Yorks"), ("in",)]
    assert [sentence.tags for sentence in examples.sentences] == [("B-PER", "B-PER", "O"), ("B-LOC", "I-LOC"), ("O",)]
    assert [sentence.document for sentence in examples.sentences] == [0, 0, 1]
    assert examples.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER") and len(examples) == 3 and examples.has_answers
    assert examples.sentences[1].places[1] == f"{tmp_path}/train.txt, line 8"
    head = ner.head("ner", examples.labels)
    assert head.kind == "tagging" and head.outputs == 5


@pytest.mark.parametrize(
    "text",
    [
        FOUR_COLUMNS.replace("\n", "\r\n"),
        FOUR_COLUMNS.rstrip("\n"),  # no blank line at the end
        "\ufeff" + FOUR_COLUMNS.replace("\n\n", "\n\n \n\n"),  # byte order mark, several blank lines
        FOUR_COLUMNS.replace(" ", "\t"),
        FOUR_COLUMNS.replace("I-PER", "B-PER").replace("NP I-LOC\nY", "NP B-LOC\nY"),  # IOB2
        FOUR_COLUMNS.replace("I-PER", "S-PER")
        .replace("B-PER", "S-PER")
        .replace("I-LOC\nY", "B-LOC\nY")
        .replace("I-LOC", "E-LOC"),
    ],
)
def test_forms_that_say_the_same(tmp_path, text):
    def content(examples):
        return [(sentence.words, sentence.tags, sentence.document) for sentence in examples.sentences]

    assert content(load(tmp_path, text)) == content(load(tmp_path, FOUR_COLUMNS))


@pytest.mark.parametrize(
    "text, options, words, tags",
    [
        # A blank is part of a word between tabs.
        ("Ann\tB-PER\nNew York\tO\n", {}, ("Ann", "New York"), ("B-PER", "O")),
        ("O Ann\nO #x\n", {"word_column": 2, "tag_column": 1}, ("Ann", "#x"), ("O", "O")),
        ("Ann\u00a0Bo O\nin\u2028 O\n", {}, ("Ann\u00a0Bo", "in\u2028"), ("O", "O")),
        ("Ann NN\nlives VB\n", {}, ("Ann", "lives"), ("NN", "VB")),
    ],
)
def test_other_columns(tmp_path, text, options, words, tags):
    (sentence,) = load(tmp_path, text, **options).sentences
    assert (sentence.words, sentence.tags, sentence.document) == (words, tags, None)


def test_what_stands_before_the_first_mark_is_one_document(tmp_path):
    """Its sentences once had a window each, whatever the option: no context, and nothing said so."""
    body = FOUR_COLUMNS.partition("\n\n")[2]
    assert FOUR_COLUMNS.startswith("-DOCSTART-") and body.startswith("Ann")
    found, marked = (load(tmp_path, text) for text in (body, FOUR_COLUMNS))
    expected = [(one.words, one.document) for one in marked.sentences]
    assert [(one.words, one.document) for one in found.sentences] == expected
    windows_of = [ner.features(examples, TOKENIZER, TaggingOptions(max_length=16)) for examples in (found, marked)]
    assert [ids.tolist() for ids in windows_of[0].input_ids] == [ids.tolist() for ids in windows_of[1].input_ids]
    unmarked = load(tmp_path, body.replace("-DOCSTART- -X- O O\n\n", ""))
    assert [sentence.document for sentence in unmarked.sentences] == [None] * 3
    (tmp_path / "two.conllu").write_text("Ann\n\nBob\n\n# newdoc\nin\n\n")
    assert [sentence.document for sentence in conll.read(tmp_path / "two.conllu", TaggingDataConfig())] == [0, 0, 1]


def test_universal_dependencies_give_words_and_parts_of_speech(tmp_path):
    rest = "\t_" * 6
    text = (
        f"# newdoc id = 1\n# text = x\n1-2\tdon't\t_\t_{rest}\n1\tdo\tdo\tAUX{rest}\n2\tn't\tnot\tPART{rest}\n"
        f"2.1\tx\t_\t_{rest}\n\n# newdoc id = 2\n1\t#\t#\tSYM{rest}\n\n"
    )
    data = write(tmp_path, text, "train.conllu")
    first, second = ner.load("ner", data, "train").sentences
    assert (first.words, first.tags, first.document) == (("do", "n't"), ("AUX", "PART"), 0)
    assert (second.words, second.document) == (("#",), 1)
    assert ner.load("ner", dataclasses.replace(data, tag_column=3), "train").labels == ("#", "do", "not")


@pytest.mark.parametrize(
    "text, options, line, message",
    [
        (FOUR_COLUMNS.replace("Bob NNP I-NP B-PER", "Bob NNP I-NP"), {}, 4, "3 columns, but earlier words have 4"),
        (FOUR_COLUMNS.replace("Bob ", "Bob x "), {}, 4, "5 columns"),
        ("Ann\t\tO\n", {}, 1, "an empty column"),
        ("Ann O\nBob I-PER\nlives O\n", {"scheme": "iob2"}, 2, "I-PER does not follow B-PER or I-PER"),
        ("Ann B-PER\nBob O\nin E-LOC\n", {}, 1, "B-PER is the last word of its entity"),
        ("Ann B-PER\nBob PER\n", {}, 2, "'PER' is not a tag of IOB2"),
        ("Ann O\n", {"word_column": 4}, 1, "data.word_column=4, but there are 2 columns"),
        ("Ann O\n", {"tag_column": -1}, 1, "data.tag_column=-1, but there are 2 columns"),
        ("Ann O\n", {"tag_column": 4}, 1, "data.tag_column=4, but there are 2 columns"),
        ("Ann\nBob\n", {}, 1, "a word without a tag"),
        (b"Ann O\nR\xe9my O\n", {}, 2, "not UTF-8"),
    ],
)
def test_bad_files_are_named_with_their_line(tmp_path, text, options, line, message):
    with pytest.raises(UserError) as caught:
        load(tmp_path, text, **options)
    assert f"train.txt, line {line}: " in str(caught.value) and message in str(caught.value)


def test_splits_and_types_that_are_not_there(tmp_path):
    data = write(tmp_path, FOUR_COLUMNS)
    assert ner.splits("ner", data) == ("train",)
    assert ner.splits("ner", dataclasses.replace(data, test="x.txt")) == ("train", "test")
    examples = load(tmp_path, "in O\n", "dev", ("O", "B-PER", "I-PER"))
    features = ner.features(examples, TOKENIZER, TaggingOptions())
    expected = {"precision": 0, "recall": 0, "f1": 0, "accuracy": 1, "f1_PER": 0}
    assert ner.score(examples, features, one_hot(features, 3)) == expected


def test_missing_data_and_unknown_tags_are_refused(tmp_path):
    with pytest.raises(UserError, match="no dev data; looked for dev.txt, .* found nothing"):
        ner.load("ner", TaggingDataConfig(dir=str(tmp_path)), "dev")
    with pytest.raises(UserError, match="holds no words"):
        load(tmp_path, "-DOCSTART- O\n\n\n")
    message = r"dev.txt, line 2: the tag B-ORG is not among those of the training data: O, B-PER"
    with pytest.raises(UserError, match=message):
        load(tmp_path, "Ann O\nBob B-ORG\n", "dev", ("O", "B-PER", "I-PER"))


@pytest.mark.parametrize(
    "text, options, warned",
    [
        ("Ann\nlives\n", {"tag_column": 2}, False),
        ("Ann\nlives\n", {"tag_column": 1, "word_column": 2}, False),
        ("Ann NN\nlives VB\n", {"tag_column": 3}, True),
        ("NN Ann\nVB lives\n", {"tag_column": 4, "word_column": 2}, True),
    ],
)
def test_a_file_to_predict_may_lack_the_columns_of_the_training_file(tmp_path, caplog, text, options, warned):
    with caplog.at_level("WARNING", logger="absl"):
        examples = load(tmp_path, text, "test", ("O", "B-PER", "I-PER"), **options)
    assert [sentence.words for sentence in examples.sentences] == [("Ann", "lives")] and not examples.has_answers
    assert (f"data.tag_column={options['tag_column']}, but there are 2 columns" in caplog.text) == warned


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    def features(of) -> dict:
        tags = of.Sequence(of.ClassLabel(names=["O", "B-PER", "I-PER"]))
        return {"tokens": of.Sequence(of.Text()), "ner": tags}

    good, bad = {"tokens": ["Ann", "Bob", "lives"], "ner": [1, 2, 0]}, {"tokens": ["Ann", "Bob"], "ner": [0]}
    rows = {"train": [good], "validation": [good, bad], "test": [{"tokens": [], "ner": []}]}
    path = tmp_path_factory.mktemp("tfds")
    glue_files.write_dataset(path, "tiny_tags", features, rows)
    return TaggingDataConfig(tfds="tiny_tags", tfds_dir=str(path))


def test_tfds(builder):
    examples = ner.load("ner", builder, "train")
    (sentence,) = examples.sentences
    expected = (("Ann", "Bob", "lives"), ("B-PER", "I-PER", "O"), None)
    assert (sentence.words, sentence.tags, sentence.document) == expected
    assert examples.labels == ("O", "B-PER", "I-PER")
    with pytest.raises(UserError, match="tiny_tags, split validation, example .: 2 words and 1 tags"):
        ner.load("ner", builder, "dev", examples.labels)
    with pytest.raises(UserError, match="example 0: 0 words and 0 tags"):
        ner.load("ner", builder, "test", examples.labels)
    with pytest.raises(UserError, match="no field 'pos' among ner, tokens"):
        ner.load("ner", dataclasses.replace(builder, label_column="pos"), "train")


def test_a_treebank_as_parts_of_speech(shared_data, tmp_path):
    for split in ("dev", "test"):
        text = gzip.decompress((shared_data / "ud" / f"en_ewt-ud-{split}.conllu.gz").read_bytes())
        (tmp_path / f"{split}.conllu").write_bytes(text)
    data = TaggingDataConfig(train=str(tmp_path / "dev.conllu"), test=str(tmp_path / "test.conllu"))
    examples = ner.load("ner", data, "train")
    assert len(examples) == 2001 and len(examples.labels) == 17  # the universal parts of speech
    test = ner.load("ner", data, "test", examples.labels)
    assert len(test) == 2077
    tokenizer = load_tokenizer(shared_data / "vocab" / "cased" / "vocab.txt")
    features = ner.features(test, tokenizer, TaggingOptions(max_length=256))
    assert sum((labels >= 0).sum() for labels in features.labels) == sum(len(s.words) for s in test.sentences)
    assert max(map(len, features.input_ids)) <= 256
    assert ner.score(test, features, one_hot(features, 17))["f1"] == 1


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
    longest = 30 if seed < 4 else 6
    sentences = [random.integers(1, 4, random.integers(1, longest)) for _ in range(random.integers(1, 25))]
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
    assert [words.tolist() for words in features.words] == [[0, 1, 2, 3, 4], [5, 6, 7]]
    assert features.example.tolist() == [0, 2]
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
        assert [s.words for s in again] == [s.words for s in examples.sentences]
    rows = [line.split(" ") for line in pathlib.Path(file).read_text().split("\n") if line]
    assert len({s.document for s in examples.sentences}) == 3
    # The script counts every line that is not blank, whatever its word.
    assert worse["accuracy"] == np.mean([row[1] == row[2] for row in rows])


def test_a_tag_has_one_spelling(tmp_path, caplog):
    examples = load(tmp_path, "a S-Cite\u0301\n\nb S-Cité\n")
    assert examples.labels == ("O", "B-Cité", "I-Cité")
    assert [s.tags for s in examples.sentences] == [("B-Cité",)] * 2
    assert sum("composed form (NFC)" in record.getMessage() for record in caplog.records) == 1
    old = ("O", "B-Cite\u0301", "I-Cite\u0301")
    assert [s.tags for s in load(tmp_path, "a B-Cité\n", "test", old).sentences] == [("B-Cite\u0301",)]


def test_unlabelled_words_are_predicted(long, tmp_path):
    labelled, features = long
    marks = lambda number: "-DOCSTART-\n\n" if number % 12 == 0 else ""
    text = "\n\n".join(marks(i) + "\n".join(s.words) for i, s in enumerate(labelled.sentences))
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
    cut = [np.asarray(row)[: len(ids)] for row, ids in zip(rows, features.input_ids)]
    return ner.predicted_tags(examples, features, cut)


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


ORACLE = json.loads(make_seqeval_oracle.PATH.read_text())
CASES = {name: (gold, predicted) for name, gold, predicted in make_seqeval_oracle.cases()}


@pytest.mark.parametrize("name", CASES)
def test_entities_and_scores_equal_seqeval(name):
    gold, predicted = CASES[name]
    assert [[list(entity) for entity in conll.entities(tags)] for tags in predicted] == ORACLE[name]["entities"]
    assert conll.scores(gold, predicted) == ORACLE[name]["scores"]
    assert 0 < ORACLE[name]["scores"]["f1"] < 1


def conlleval(tags):
    """Entities by the tables of CoNLL-2000's script conlleval (IOB only): does a chunk end before, start at, a tag?"""
    found, start, before, kind_before = [], 0, "O", ""
    for position, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        pair, other_kind = before + prefix, kind != kind_before
        ends = pair in ("BB", "BO", "IB", "IO") or (before != "O" and other_kind)
        starts = pair in ("BB", "IB", "OB", "OI") or (prefix != "O" and other_kind)
        found += [(kind_before, start, position - 1)] if ends else []
        start = position if starts else start
        before, kind_before = prefix, kind
    return found


def test_entities_equal_conlleval():
    random = np.random.default_rng(5)
    for _ in range(300):
        tags = list(random.choice(["O", "B-X", "I-X", "B-Y", "I-Y"], random.integers(0, 9)))
        assert conll.entities(tags) == conlleval(tags)


def draw(random):
    """Non-overlapping entities over a sentence, some of them side by side, and their tags in each scheme by hand."""
    tags = {"iob1": [], "iob2": [], "iobes": []}
    before = None
    for _ in range(random.integers(1, 7)):
        kind, length = random.choice(["X", "Y", ""]), int(random.integers(1, 4))
        if not kind:
            for scheme in tags.values():
                scheme += ["O"] * length
        else:
            inside = [f"I-{kind}"] * (length - 1)
            tags["iob1"] += [f"B-{kind}" if before == kind else f"I-{kind}", *inside]
            tags["iob2"] += [f"B-{kind}", *inside]
            tags["iobes"] += [f"B-{kind}", *inside[1:], f"E-{kind}"] if inside else [f"S-{kind}"]
        before = kind
    return tags


def test_schemes_are_recognised_and_say_the_same():
    random = np.random.default_rng(2)
    drawn = [draw(random) for _ in range(60)]
    for scheme in ("iob1", "iob2", "iobes"):
        sentences = [tags[scheme] for tags in drawn]
        assert conll.recognise(sentences) == scheme
        assert [conll.to_iob2(tags) for tags in sentences] == [tags["iob2"] for tags in drawn]
        assert all(conll.fault(tags, scheme) is None for tags in sentences)


def test_plain_tags_are_entities_of_one_word():
    assert conll.recognise([["NN", "VB"], ["O"]]) == "plain"
    assert conll.to_iob2(["NN", "NN"]) == ["NN", "NN"]
    result = conll.scores([["NN", "VB", "NN"]], [["NN", "NN", "NN"]])
    assert result["f1"] == result["accuracy"] == 2 / 3 and result["precision_NN"] == 2 / 3 and result["recall_VB"] == 0


@pytest.mark.parametrize(
    "scheme, tags, position, word",
    [
        ("iob2", "O I-X", 1, "does not follow B-X or I-X"),
        ("iob2", "B-X I-Y", 1, "does not follow B-Y or I-Y"),
        ("iob2", "B-X E-X", 1, "not a tag of IOB2"),
        ("iob2", "O PER", 1, "'PER' is not a tag"),
        ("iob1", "B-X I-X", 0, "the only place of B-"),
        ("iobes", "S-X E-X", 1, "does not follow B-X"),
        ("iobes", "B-X I-X O", 1, "is the last word of its entity"),
        ("iobes", "B-X", 0, "is the last word of its entity"),
        ("iobes", "B-X S-X", 0, "is the last word of its entity"),
    ],
)
def test_what_a_scheme_forbids_is_found_at_its_word(scheme, tags, position, word):
    found, message = conll.fault(tags.split(), scheme)
    assert found == position and word in message


def test_nothing_to_find_scores_zero():
    assert conll.scores([["O", "O"], []], [["O", "O"], []]) == {"precision": 0, "recall": 0, "f1": 0, "accuracy": 1}
