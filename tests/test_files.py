"""JSON of unknown origin: read as it is, or refused in one line; numbers that JSON has not; paths near and far."""

import json
import math
import os
import pathlib

import pytest
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files import (
    LONGEST_JSON,
    finite_json,
    is_remote,
    near_path,
    parse_object,
    read_bytes,
    read_contents,
    read_object,
)

ODD = {
    "": "is not JSON",
    "[]": "must hold a JSON object, not []",
    "null": "not None",
    '{"a": ' * 100_000: "nested too deeply",
    '{"a": 1e400}': "beyond 64 bits, 1e400",
    '{"a": -9223372036854775809}': "beyond 64 bits",
    '{"a": 1' + "0" * 5_000 + "}": "beyond 64 bits, 1000",
    '{"a": 1, "b": {"c": 1, "c": 1}}': "2 values named 'c'",
    r'{"a": ["\ud800"]}': "surrogates not allowed",
    '{"a": 1}}': "is not JSON",
}


@pytest.mark.parametrize("text", ODD, ids=lambda text: text[:20])
def test_what_no_writer_means_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UserError) as caught:
        read_object(tmp_path / "x.json", "bring it back")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/x.json ") and message.endswith("; bring it back") and ODD[text] in message
    assert "\n" not in message and len(message) < 400


def test_what_json_can_say_is_read_as_the_library_reads_it(tmp_path):
    for text in (
        '{"a": [1, -9223372036854775808, 18446744073709551615], "b": {"c": null, "d": 1e308, "e": true}}',
        r'{"a": "\ud83d\ude00 \u00e9 é", "\\ud800": "\\ud800"}',
        '{"a": 0.1, "A": 1}',
        '{"model_max_length": 1000000000000000019884624838656}',
        "{}",
    ):
        assert parse_object(text.encode()) == json.loads(text)
    assert str(parse_object(b'{"a": NaN, "b": -Infinity}')) == "{'a': nan, 'b': -inf}"  # as Python writes them


@pytest.mark.parametrize(
    "contents, says", [(b"\xff{}", "is not JSON"), (b"\xef\xbb\xbf{}", "is not JSON"), (None, "Is a directory")]
)
def test_what_is_no_text_is_refused(tmp_path, contents, says):
    (tmp_path / "x").mkdir() if contents is None else (tmp_path / "x").write_bytes(contents)
    with pytest.raises(UserError, match=says):
        read_object(tmp_path / "x")
    with pytest.raises(UserError, match="No such file"):
        read_object(tmp_path / "absent")


def test_numbers_that_json_has_not_come_back_by_their_names():
    written = json.dumps(
        finite_json({"loss": math.nan, 7: [math.inf, (-math.inf, 0.5)], "text": "nan"}), allow_nan=False
    )
    read = json.loads(written)
    assert math.isnan(float(read["loss"])) and read["text"] == "nan"
    assert [float(read["7"][0]), *map(float, read["7"][1])] == [math.inf, -math.inf, 0.5]


def test_a_path_is_shown_from_here_where_that_is_shorter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert near_path(f"{tmp_path}/run") == "run"
    assert near_path("/a") == "/a"
    assert near_path("gs://bucket/run") == "gs://bucket/run"
    assert is_remote(epath.Path("gs://bucket/run")) and not is_remote(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "device", "link to a pipe", "long", "growing"])
def test_only_regular_files_of_bounded_size_are_read(tmp_path, kind):
    """A pipe is refused before anybody writes to it; some files of /proc say that they are empty, and are not."""
    file, says = tmp_path / "x.json", "cannot be read: it is not a regular file; bring it back"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "link to a pipe":
        os.mkfifo(tmp_path / "pipe")
        file.symlink_to(tmp_path / "pipe")
    elif kind == "long":
        with file.open("wb") as sparse:
            sparse.truncate(LONGEST_JSON + 1)
        says = "it has 268,435,457 bytes, and at most 268,435,456 are read"
    else:
        file, says = pathlib.Path("/proc/self/status"), "and at most 4 are read"
        with pytest.raises(OSError, match=says):
            read_bytes(file, most=4)
        return
    with pytest.raises(UserError, match=says):
        read_object(file, "bring it back")
    with pytest.raises(UserError, match="cannot be read"):
        read_contents(file)
