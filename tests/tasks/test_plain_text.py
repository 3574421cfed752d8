"""Plain texts and tasks with the vocabularies of every family."""

import copy
import dataclasses
import inspect
import io
import json
import pickle
import random
import sys

import difficult_text
import family_pieces
import numpy as np
import pytest
from family_pieces import FILES, OPTIONS
from pretrained_model import CONFIG
from published_tokenizers import google_basic
from task_models import LABELS, write_model
from vocabularies import byte_level

import bert_jax
from bert_jax.checkpoints import record
from bert_jax.cli import _run
from bert_jax.config.tasks import Squad2Options, SquadOptions, TaggingOptions
from bert_jax.errors import UserError
from bert_jax.formats.conversion import convert
from bert_jax.tasks import ner, squad
from bert_jax.tasks.conll import Sentence
from bert_jax.tasks.squad_files import Examples, Question
from bert_jax.tasks.task_data import FAMILIES, TaskFamily, family_of
from bert_jax.tasks.text import PlainText, from_plain, is_plain, read_plain_texts, word_places
from bert_jax.tokenization.tokenizer import join, load_tokenizer

TEXTS = ["the cat sat on a mat.", "a big dog ran", "the old bird flew in the tree house, on the mat"]


def predict(model, *options) -> int:
    task = ["--task=text"] if model.name == "elsewhere" else []
    return _run(["bert-jax", "predict", str(model), *task, *map(str, options)])


def answers(printed: str) -> list[list[str]]:
    header, *rows = printed.splitlines()
    assert header == "index\tprediction\tprobability"
    return [row.split("\t") for row in rows]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Models of single texts, of pairs, of tags and endings, and one from elsewhere, of which it is not known."""
    home = tmp_path_factory.mktemp("models")
    kinds = {
        "text": ("text", {"pairs": False}),
        "pairs": ("text", {"pairs": True}),
        "rte": ("rte", {}),
        "ner": ("ner", {}),
        "swag": ("swag", {}),
    }
    written = {
        name: write_model(home / name, task, dataclasses.replace(CONFIG, num_layers=1), **recorded)
        for name, (task, recorded) in kinds.items()
    }
    convert(written["text"], home / "elsewhere", to="huggingface")
    return {**written, "elsewhere": home / "elsewhere"}


def test_a_file_a_directory_standard_input_and_a_text_are_answered_alike(models, tmp_path, capsys, monkeypatch):
    (tmp_path / "texts.txt").write_text("\n\n".join(TEXTS) + "\n")
    (tmp_path / "texts").mkdir()
    for name, text in zip("cab", TEXTS):
        (tmp_path / "texts" / f"{name}.txt").write_text(text + "\n")
    labels = bert_jax.load(models["text"]).predict(TEXTS)
    expected = [[label.name, f"{label.probabilities[label.name]:.4f}"] for label in labels]
    assert predict(models["text"], f"--input={tmp_path / 'texts.txt'}") == 0
    found = answers(capsys.readouterr().out)
    assert [row[0] for row in found] == ["0", "2", "4"]  # of lines: the blank ones have no answer
    assert [row[1:] for row in found] == expected
    assert predict(models["text"], f"--input={tmp_path / 'texts'}") == 0
    found = answers(capsys.readouterr().out)
    assert [row[0] for row in found] == ["a.txt", "b.txt", "c.txt"]
    assert [row[1:] for row in found] == [expected[1], expected[2], expected[0]]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\r\n".join(TEXTS).encode())))
    assert predict(models["text"], "--input=-", f"--output={tmp_path / 'out.tsv'}") == 0
    assert [row[1:] for row in answers((tmp_path / "out.tsv").read_text())] == expected
    assert capsys.readouterr().out == ""
    assert predict(models["text"], f"--text={TEXTS[2]}") == 0
    assert answers(capsys.readouterr().out) == [["0", *expected[2]]]


def test_pairs_are_written_with_a_tab_between(models, tmp_path, capsys):
    pair = TEXTS[0], TEXTS[1]
    for name in ("pairs", "elsewhere", "rte"):
        (label,) = bert_jax.load(models[name]).predict(pair)
        assert predict(models[name], "--text=" + "\t".join(pair)) == 0
        assert answers(capsys.readouterr().out) == [["0", label.name, f"{label.probabilities[label.name]:.4f}"]]


@pytest.mark.parametrize(
    "name, text, message",
    [
        (
            "pairs",
            "a cat",
            "error: --text: the model reads pairs of texts, written with one tab between the two; found 'a cat'",
        ),
        ("rte", "a cat\t", "the model reads pairs of texts"),
        ("text", "a cat\ta dog", "error: --text: the model reads single texts, but there is a tab"),
        ("text", "a\tb\tc", "error: --text: the model reads single texts, but there is a tab"),
        (
            "elsewhere",
            "a\tb\tc",
            "error: --text: --text has a tab, so all are taken for pairs of texts, written with one tab between",
        ),
        ("swag", "a cat", "error: plain text does not say what swag asks of it"),
        ("ner", " \u200b ", "holds no words"),
        ("text", "\udcff", "is not UTF-8"),
        ("text", " ", "error: --text=' ' is blank; give --text=TEXT or --input=FILE"),
        ("text", "", "error: give one of --input=FILE and --text=TEXT"),
    ],
)
def test_a_text_that_the_model_cannot_read(models, capsys, name, text, message):
    assert predict(models[name], f"--text={text}") == 2
    assert message in capsys.readouterr().err


def test_a_word_of_the_command_line_is_not_taken_for_a_boolean(models, capsys):
    """`--text=true` was once turned into True, as options that are true or false are."""
    assert predict(models["ner"], "--text=true") == 0
    assert capsys.readouterr().out.splitlines()[1].split("\t")[:4] == ["0", "0", "4", "true"]


def test_files_without_text_are_named(tmp_path, monkeypatch):
    (tmp_path / "blank.txt").write_text(" \n\n")
    with pytest.raises(UserError, match="blank.txt holds no text"):
        read_plain_texts(str(tmp_path / "blank.txt"))
    with pytest.raises(UserError, match="blank.txt is empty"):
        read_plain_texts(str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"fine\nna\xefve\n")))
    with pytest.raises(UserError, match="standard input, line 2: not UTF-8"):
        read_plain_texts("-")


def test_what_is_plain_text(tmp_path):
    (tmp_path / "classes" / "pos").mkdir(parents=True)
    (tmp_path / "passages").mkdir()
    (tmp_path / "file.txt").touch()
    names = ("classes", "passages", "file.txt", "file.tsv", "msr_paraphrase_train.txt", "msr_paraphrase_test.txt")
    heads = ("classification", "regression", "tagging", "choice")
    plain = {(name, head) for name in names for head in heads if is_plain(str(tmp_path / name), head)}
    assert plain == {
        ("passages", "classification"),
        ("passages", "regression"),
        ("passages", "tagging"),
        ("file.txt", "classification"),
        ("file.txt", "regression"),
    }


def test_microsofts_own_file_of_mrpc_is_read_in_columns(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(LABELS, "mrpc", ("not_equivalent", "equivalent"))
    model, file = write_model(tmp_path / "mrpc", "mrpc"), tmp_path / "msr_paraphrase_test.txt"
    file.write_text("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t2\t3\ta cat\ta dog\n")
    assert predict(model, f"--input={file}") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_an_input_whose_name_has_braces_is_named_as_it_is(models, tmp_path, capsys):
    (tmp_path / "data{1}.tsv").write_text("text\ttext_pair\na cat\ta dog\n")
    assert predict(models["text"], f"--input={tmp_path / 'data{1}.tsv'}") == 2
    assert f"example 0 of {tmp_path / 'data{1}.tsv'} is a pair" in capsys.readouterr().err


@pytest.mark.parametrize("pairs", [True, False])
def test_a_pair_where_single_texts_were_learned_and_the_reverse(models, tmp_path, capsys, pairs):
    """Once answered without a word; by a model from elsewhere, still so."""
    right, wrong = (("a cat", "a dog"), "a cat") if pairs else ("a cat", ("a cat", "a dog"))
    model = bert_jax.load(models["pairs" if pairs else "text"])
    assert len(model.predict([right, right])) == len(bert_jax.load(models["elsewhere"]).predict([right, wrong])) == 2
    seen, taught = ("a single text", "pairs of texts") if pairs else ("a pair", "single texts")
    with pytest.raises(UserError, match=rf"text 1 of the list is {seen}, but .* was fine-tuned on {taught} \(text\)"):
        model.predict([right, wrong])
    rows = {True: "text\ttext_pair\na cat\ta dog\n", False: "text\na cat\n"}
    for name, both in (("right", pairs), ("wrong", not pairs)):
        (tmp_path / f"{name}.tsv").write_text(rows[both])
    name = "pairs" if pairs else "text"
    assert predict(models[name], f"--input={tmp_path / 'right.tsv'}") == 0
    assert predict(models[name], f"--input={tmp_path / 'wrong.tsv'}") == 2
    assert f"example 0 of {tmp_path / 'wrong.tsv'} is {seen}" in capsys.readouterr().err
    assert predict(models["elsewhere"], f"--input={tmp_path / 'wrong.tsv'}") == 0


def test_tasks_of_the_benchmark_say_which_they_read(models):
    message = r"text 0 of the list is a single text, .* was fine-tuned on pairs of texts \(rte\)"
    with pytest.raises(UserError, match=message):
        bert_jax.load(models["rte"]).predict("a cat")


@pytest.mark.parametrize("recorded", [{}, {"pairs": ["damaged"]}])
def test_a_record_that_does_not_say_whether_texts_are_pairs_is_refused(tmp_path, recorded):
    step = write_model(tmp_path / "model", "text") / "checkpoints" / "step_000000000" / "record" / "metadata"
    content = json.loads(step.read_text())["content"]
    del content["config"]["pairs"]
    content["config"] |= recorded
    step.write_text(json.dumps(record.sealed(content)))
    with pytest.raises(UserError, match="the record of .*model does not say whether texts are pairs: another version"):
        bert_jax.load(tmp_path / "model")


def test_an_output_is_replaced_only_where_that_is_said(models, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("a cat\n")
    for output, file in (
        (tmp_path / "out.tsv", tmp_path / "out.tsv"),
        (f"{tmp_path}/", tmp_path / "predictions_test.tsv"),
        (tmp_path, tmp_path / "predictions_test.tsv"),
    ):
        file.write_text("mine")
        assert predict(models["text"], f"--input={tmp_path / 'texts.txt'}", f"--output={output}") == 2
        assert f"{file} exists; give another file, or --overwrite" in capsys.readouterr().err
        assert file.read_text() == "mine"
        assert predict(models["text"], f"--input={tmp_path / 'texts.txt'}", f"--output={output}", "--overwrite") == 0
        assert len(file.read_text().splitlines()) == 2
    itself = f"--output={tmp_path}/../{tmp_path.name}/texts.txt"
    assert predict(models["text"], f"--input={tmp_path / 'texts.txt'}", itself, "--overwrite") == 2
    assert "would replace the input" in capsys.readouterr().err and (tmp_path / "texts.txt").read_text() == "a cat\n"


def test_words_are_those_of_google_at_their_places():
    generator, alphabet = random.Random(0), "".join(difficult_text.texts())
    texts = [
        "Anna's cat (Kim) lives in New York, U.S.",
        "cafe\u0301, na\u00efve foo\u200bbar \u200b 東京 a",
        "",
        "\x0b3.5%",
        *("".join(generator.choices(alphabet, k=40)) for _ in range(200)),
    ]
    for text in texts:
        spans = word_places(text)
        assert all(0 <= start < end <= len(text) for start, end in spans)
        assert all(one[1] <= other[0] for one, other in zip(spans, spans[1:]))
        said = ["".join(google_basic(text[start:end], lowercase=False)) for start, end in spans]
        assert said == google_basic(text, lowercase=False)


def test_tags_of_a_text_have_the_places_of_their_words(models, tmp_path, capsys):
    model, text = bert_jax.load(models["ner"]), "The cat's big  mat, (old)"
    (found,) = model.predict(text)
    assert (
        [text[one.start : one.end] for one in found]
        == [word for word, _ in found]
        == (["The", "cat", "'", "s", "big", "mat", ",", "(", "old", ")"])
    )
    (same,) = model.predict([tuple(word for word, _ in found)])
    assert found == same and all(type(one) is tuple for one in same)
    again = pickle.loads(pickle.dumps(found[4])), copy.copy(found[4])
    assert [(one, one.start, one.end) for one in again] == [(found[4], 10, 13)] * 2
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text(text)
    for source, index in ((f"--text={text}", "0"), (f"--input={tmp_path / 'texts'}", "one.txt")):
        assert predict(models["ner"], source) == 0
        header, *rows = capsys.readouterr().out.splitlines()
        assert header == "index\tstart\tend\tword\ttag"
        assert rows == [f"{index}\t{one.start}\t{one.end}\t{one[0]}\t{one[1]}" for one in found]
    assert predict(models["ner"], f"--text={text}", f"--output={tmp_path}/") == 0
    assert (tmp_path / "test_predictions.tsv").exists()


def test_a_file_of_words_is_still_read_in_columns(models, tmp_path, capsys):
    (tmp_path / "words.txt").write_text("the\ncat's\n\nmat\n")
    assert predict(models["ner"], f"--input={tmp_path / 'words.txt'}") == 0
    assert [line.split(" ")[0] for line in capsys.readouterr().out.split("\n")] == ["the", "cat's", "", "mat", "", ""]
    assert ner.from_plain([PlainText("", "a b", "7")], ("O",)).index == ("7",)


def test_a_tab_in_a_line_is_between_the_texts_of_a_pair(tmp_path):
    """Lines with and without one were once silently answered as single texts. In files of a directory it is layout."""
    (tmp_path / "lines.txt").write_text("a\tb\nc\n")
    pair, single = read_plain_texts(str(tmp_path / "lines.txt"))
    assert from_plain([pair], ("x",), None).second == ["b"] and from_plain([single], ("x",), None).second is None
    message = r"lines.txt, line 2: .*lines.txt, line 1 has a tab, so all are taken .*found 'c'$"
    with pytest.raises(UserError, match=message):
        from_plain([pair, single], ("x",), None)
    with pytest.raises(UserError, match="lines.txt, line 1: the model reads single texts, but there is a tab"):
        from_plain([single, pair], ("x",), False)
    (tmp_path / "other.txt").write_text("c")
    (tmp_path / "lines.txt").write_text("\ta\n\tb\n")
    files = read_plain_texts(str(tmp_path))
    for pairs in (None, False):
        assert from_plain(files, ("x",), pairs).first == ["\ta\n\tb\n", "c"]
        assert from_plain(files, ("x",), pairs).second is None
    (tmp_path / "lines.txt").write_text("a\tb")
    (tmp_path / "other.txt").write_text("c\td")
    assert from_plain(read_plain_texts(str(tmp_path)), ("x",), None).second == ["b", "d"]


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


PIECES_CONTEXT = (
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
def test_an_answer_of_pieces_is_read_back_by_its_characters(tokenizer, answer):
    start = PIECES_CONTEXT.index(answer)
    question = Question("q", QUESTION, 0, (answer,), (start, start + len(answer)))
    examples = Examples("squad_v1", (PIECES_CONTEXT,), (question,), True)
    options = SquadOptions(max_length=300, max_query_length=30, doc_stride=50)
    features = squad.features(examples, tokenizer, options)
    ids, types = join(tokenizer, tokenizer.encode(QUESTION), tokenizer.encode(PIECES_CONTEXT), 300)
    assert np.array_equal(features.input_ids[0], ids) and np.array_equal(features.token_type_ids[0], types)
    first, last = features.labels[0] - features.prefix[0]
    found = squad.read(PIECES_CONTEXT, features.contexts[0], first, last)
    assert answer in found and len(found) <= len(answer) + 3  # a piece may hold the punctuation beside it too
    logits = np.zeros((len(ids), 2), np.float32)
    logits[features.labels[0, 0], 0] = logits[features.labels[0, 1], 1] = 5
    logits[[0, -1]] = 9  # which are no answers
    (prediction,) = squad.predict(examples, features, [logits])
    assert prediction.guess == found


def test_every_window_of_pieces_of_a_long_context_fits(tokenizer):
    options = Squad2Options(max_length=40, max_query_length=12, doc_stride=7)
    question = Question("q", QUESTION, 0, (), None)
    features = squad.features(Examples("squad_v2", (PIECES_CONTEXT,), (question,), True), tokenizer, options)
    assert len(features.input_ids) > 3 and max(map(len, features.input_ids)) == 40
    ends = [tokenizer.sep_id, tokenizer.cls_id] if tokenizer.class_last else [tokenizer.sep_id]
    seen = set()
    for ids, prefix in zip(features.input_ids, features.prefix):
        assert ids[-len(ends) :].tolist() == ends and ids[prefix - 1] == tokenizer.sep_id
        seen |= set(ids[prefix : -len(ends)].tolist())
    assert seen == set(tokenizer.encode(PIECES_CONTEXT))


def test_the_first_pieces_of_tagged_words_are_labelled(tokenizer):
    words = ("Rose", "docks", "25,", "\u6771\u4eac", ".", "\u0301")
    sentence = Sentence(words, ("B-X", "O", "O", "B-X", "O", "O"), None, words, None)
    examples = ner.Examples((sentence,), ("O", "B-X", "I-X"), has_answers=True)
    features = ner.features(examples, tokenizer, TaggingOptions(max_length=64))
    (ids,), (labels,), (types,) = features.input_ids, features.labels, features.token_type_ids
    whole, expected = join(tokenizer, sum(([*tokenizer.encode(w)] or [tokenizer.unk_id] for w in words), []), None, 64)
    assert np.array_equal(ids, whole) and np.array_equal(types, expected)
    firsts = [(tokenizer.encode(word) or [tokenizer.unk_id])[0] for word in words]
    assert ids[labels >= 0].tolist() == firsts and len(firsts) == 6


NAMES = {name for name in vars(TaskFamily) if not name.startswith("_")}


@pytest.mark.parametrize("task", FAMILIES)
def test_a_family_has_every_name_with_the_arguments_in_their_order(task):
    module = family_of(task)
    for name in NAMES:
        wanted = list(inspect.signature(getattr(TaskFamily, name)).parameters)[1:]
        assert list(inspect.signature(getattr(module, name)).parameters)[: len(wanted)] == wanted, name
