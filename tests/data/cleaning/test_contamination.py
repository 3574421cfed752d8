"""Overlap with evaluation sets, beside sets of tuples; and the files in which such sets come."""

import gzip
import json
import random

import pytest
from etils import epath

from bert_jax.config.corpora import CleaningConfig
from bert_jax.corpus.cleaner import read_contamination
from bert_jax.corpus.contamination import Contamination, evaluation_files, read_texts
from bert_jax.errors import UserError


@pytest.mark.parametrize("seed", range(8))
def test_shared_paragraphs_are_those_that_sets_of_tuples_find(seed):
    rng = random.Random(seed)
    words = [rng.choice("abc") for _ in range(400)]
    texts = [" ".join(words[at : at + size]) for at, size in ((0, 30), (50, 9), (100, 7), (200, 12))]
    lines = [" ".join(rng.choice("abcd") for _ in range(rng.randrange(0, 40))) for _ in range(8)]
    lines[2:2] = [" ".join(words[10:20]), " ".join(words[20:40])]  # a row of 13 words that goes over two paragraphs
    lines.append("x " + " ".join(words[50:59]).upper() + "!")
    rows = {tuple(text.split()) for text in texts if 8 <= len(text.split()) < 13}
    rows |= {tuple(words[at : at + 13]) for at in range(0, 30 - 12)}
    joined = [(word.lower().strip("!"), owner) for owner, line in enumerate(lines) for word in line.split()]
    expected = [False] * len(lines)
    for at in range(len(joined)):
        for size in {len(row) for row in rows}:
            part = joined[at : at + size]
            if tuple(word for word, _ in part) in rows:
                for owner in range(part[0][1], part[-1][1] + 1):
                    expected[owner] = True
    assert Contamination(texts, 13).shared(lines).tolist() == expected
    assert expected[2] and expected[3] and expected[-1]


def test_short_texts_and_none_are_not_searched_for():
    assert not Contamination(["only seven words are in this text"], 13).rows
    assert Contamination([], 13).shared(["anything at all"]).tolist() == [False]


def test_the_fingerprint_is_of_the_texts_and_not_of_their_order():
    texts = ["one two three four five six seven eight", "two three four five six seven eight nine ten"]
    assert Contamination(texts, 13).fingerprint == Contamination(texts[::-1], 13).fingerprint
    assert Contamination(texts, 13).fingerprint != Contamination(texts[:1], 13).fingerprint


def test_texts_are_cells_strings_and_lines(tmp_path):
    (tmp_path / "dev.tsv").write_text('id\tsentence\n1\tan "open quote\n')
    (tmp_path / "test.csv").write_text('1,"a, b"\n')
    (tmp_path / "dev-v1.1.json").write_text(json.dumps({"data": [{"context": "c d", "id": 3, "answers": ["e"]}]}))
    (tmp_path / "own.jsonl").write_text('{"text": "one"}\n\n"two"\n')
    (tmp_path / "own.txt.gz").write_bytes(gzip.compress(b"first\nsecond\n"))
    found = {path.name: list(read_texts(epath.Path(path))) for path in tmp_path.iterdir()}
    assert found == {
        "dev.tsv": ["id", "sentence", "1", 'an "open quote'],
        "test.csv": ["1", "a, b"],
        "dev-v1.1.json": ["c d", "e"],
        "own.jsonl": ["one", "two"],
        "own.txt.gz": ["first", "second"],
    }


def test_of_a_directory_the_files_for_evaluation_count(tmp_path):
    for name in (
        "RTE/dev.tsv",
        "RTE/train.tsv",
        "MNLI/dev_matched.tsv",
        "squad/test-v2.0.json.gz",
        "latest.txt",
        "x.bin",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = [str(path.relative_to(tmp_path)) for path in evaluation_files(str(tmp_path))]
    assert found == ["MNLI/dev_matched.tsv", "RTE/dev.tsv", "squad/test-v2.0.json.gz"]
    assert [path.name for path in evaluation_files(f"{tmp_path}/RTE/train.tsv, {tmp_path}/latest.txt")] == [
        "train.tsv", "latest.txt",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dev.json", b"{", "is not a readable .json file"),
        ("dev.tsv", b"\xff", "is not a readable .tsv file"),
        ("dev.json", b"[" * 100_000, "is not a readable .json file"),
        ("dev.tsv.gz", b"not gzip", "dev.tsv.gz"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(read_texts(epath.Path(tmp_path / name)))


def test_what_is_no_evaluation_set_is_one_line(tmp_path):
    (tmp_path / "train.tsv").write_text("")
    (tmp_path / "dev.bin").write_text("")
    for path, message in (
        (tmp_path, "has no file of .* whose name says dev"),
        (tmp_path / "none", "does not exist"),
        (tmp_path / "dev.bin", "must be a file of"),
    ):
        with pytest.raises(UserError, match=message):
            evaluation_files(str(path))


@pytest.mark.parametrize("content", ["", "seven words are too few for this\n"])
def test_evaluation_sets_without_a_text_to_search_for_are_one_line(tmp_path, content):
    (tmp_path / "dev.txt").write_text(content)
    for paths in (f"{tmp_path}/dev.txt", ","):
        with pytest.raises(UserError, match="clean.decontaminate=.* holds no text of 8 words or more"):
            read_contamination(CleaningConfig(decontaminate=paths))
