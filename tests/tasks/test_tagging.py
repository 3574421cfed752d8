"""Tagged words from file to sequences and back: CoNLL forms, the definition of windows, predictions that read back."""

import dataclasses
import gzip

import pytest
from tagged_words import FOUR_COLUMNS, TOKENIZER, load, one_hot, write

from bert_jax.config.finetuning import TaggingDataConfig, TaggingOptions
from bert_jax.errors import UserError
from bert_jax.tasks import conll, ner
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
        (
            "Ann\tB-PER\nNew York\tO\n",
            {},
            ("Ann", "New York"),
            ("B-PER", "O"),
        ),  # a blank is part of a word between tabs
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
    assert [(one.words, one.document) for one in found.sentences] == [
        (one.words, one.document) for one in marked.sentences
    ]
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
    assert ner.score(examples, features, one_hot(features, 3)) == {
        "precision": 0,
        "recall": 0,
        "f1": 0,
        "accuracy": 1,
        "f1_PER": 0,
    }


def test_missing_data_and_unknown_tags_are_refused(tmp_path):
    with pytest.raises(UserError, match="no dev data; looked for dev.txt, .* found nothing"):
        ner.load("ner", TaggingDataConfig(dir=str(tmp_path)), "dev")
    with pytest.raises(UserError, match="holds no words"):
        load(tmp_path, "-DOCSTART- O\n\n\n")
    with pytest.raises(
        UserError, match=r"dev.txt, line 2: the tag B-ORG is not among those of the training data: O, B-PER"
    ):
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
    builders = pytest.importorskip("tensorflow_datasets")

    class TinyTags(builders.core.GeneratorBasedBuilder):
        VERSION = builders.core.Version("1.0.0")

        def _info(self):
            names = ["O", "B-PER", "I-PER"]
            return builders.core.DatasetInfo(
                builder=self,
                features=builders.features.FeaturesDict(
                    {
                        "tokens": builders.features.Sequence(builders.features.Text()),
                        "ner": builders.features.Sequence(builders.features.ClassLabel(names=names)),
                    }
                ),
            )

        def _split_generators(self, manager):
            good, bad = (["Ann", "Bob", "lives"], [1, 2, 0]), (["Ann", "Bob"], [0])
            return {"train": self._rows(good), "validation": self._rows(good, bad), "test": self._rows(([], []))}

        def _rows(self, *rows):
            for key, (words, tags) in enumerate(rows):
                yield key, {"tokens": words, "ner": tags}

        def _generate_examples(self):
            raise NotImplementedError

    path = tmp_path_factory.mktemp("tfds")
    TinyTags(data_dir=str(path)).download_and_prepare()
    return TaggingDataConfig(tfds="tiny_tags", tfds_dir=str(path))


def test_tfds(builder):
    examples = ner.load("ner", builder, "train")
    (sentence,) = examples.sentences
    assert (sentence.words, sentence.tags, sentence.document) == (
        ("Ann", "Bob", "lives"),
        ("B-PER", "I-PER", "O"),
        None,
    )
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
