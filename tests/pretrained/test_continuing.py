"""`pretrain --init_from` through the command line: continued, with an extended vocabulary, resumed exactly, refused."""

import json
import os
import pathlib
import re
import shutil

import jax
import numpy as np
import pytest
from command_lines import refusal, succeed
from one_device import pretrain_by_words
from pod import finish, launch, logs

from bert_jax import cli
from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import Config
from bert_jax.config.json_form import from_dict
from bert_jax.pretrained.model import load
from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer
from bert_jax.tokenization.wordpiece import WordPiece
from bert_jax.training.metrics import read_rows

CONFIG = {
    "model": {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "max_position_embeddings": 32},
    "data": {"held_out": 0.1, "loader": "plain"},
    "evaluation": {"sequences": 32, "batch_size": 32},
    "checkpoint": {"every_steps": 2},
    "log_every_steps": 1,
    "phases": [{"steps": 3, "sequence_length": 32, "batch_size": 16, "learning_rate": 0.01, "warmup_steps": 1}],
}
TIMES = re.compile(r"_per_second|seconds_left|mfu")


@pytest.fixture(scope="module")
def place(small_store, tmp_path_factory) -> pathlib.Path:
    """A source run of three steps, and the same corpus once more with a vocabulary that four words were added to."""
    place = tmp_path_factory.mktemp("continuing")
    (place / "config.json").write_text(json.dumps(CONFIG))
    (place / "words.txt").write_text("hedgehog\nworkshop\nsailors\nœuf\n")
    corpus, vocab = small_store.parent / "corpus.txt", small_store.parent / "vocab.txt"
    succeed("extend-vocab", f"--vocab={vocab}", f"--words={place}/words.txt", f"--output={place}/extended.txt")
    succeed(
        "prepare",
        f"--input={corpus}",
        f"--vocab={place}/extended.txt",
        f"--output={place}/extended",
        "--sentences=lines",
        "--workers=1",
    )
    pretrain_by_words(f"{place}/config.json", f"--data.path={small_store}", f"--workdir={place}/source")
    return place


def continued(place: pathlib.Path, store: pathlib.Path, name: str, *options: str) -> tuple[str, ...]:
    return (
        f"{place}/config.json",
        f"--data.path={store}",
        f"--workdir={place}/{name}",
        f"--init_from={place}/source",
        *options,
    )


def rows(workdir: pathlib.Path, kind: str = "train") -> list[dict]:
    return [
        {name: value for name, value in row.items() if not TIMES.search(name)}
        for row in read_rows(workdir / "metrics.jsonl")
        if row["kind"] == kind
    ]


@pytest.mark.slow
def test_a_continued_run_begins_where_its_source_ended(place, small_store, capsys):
    """The first update has a learning rate of 0: the evaluation after it measures what was loaded, to the last bit."""
    pretrain_by_words(*continued(place, small_store, "same", "--steps=1"))
    printed = capsys.readouterr().out
    assert "encoder/… (16 arrays)" in printed and "resized" not in printed and "fresh" not in printed
    (there,), (here,) = rows(place / "source", "evaluation"), rows(place / "same", "evaluation")
    assert (there.pop("step"), here.pop("step")) == (3, 1) and there == here
    source, same = (leaf_paths(jax.device_get(load(place / name).params)) for name in ("source", "same"))
    for path, value in source.items():
        np.testing.assert_array_equal(same[path], value, err_msg=path)
    assert json.loads((place / "same" / "config.json").read_text())["init_from"] == f"{place}/source"


@pytest.mark.slow
def test_extended_vocabulary_and_exact_resume(place, tmp_path, capsys):
    """Interrupted at step 2 and resumed after the source disappeared: every figure as in the uninterrupted run."""
    command = continued(
        place, place / "extended", "whole", "--steps=4", "--checkpoint.every_steps=1", "--checkpoint.keep_last=5"
    )
    pretrain_by_words(*command)
    assert "204 entries: 200 kept, 4 new, each the mean of its pieces" in capsys.readouterr().out
    _check_rows(load(place / "source"), load(place / "whole" / "checkpoints" / "step_000000001"))

    shutil.copytree(place / "whole", place / "cut")
    for step in (3, 4):
        shutil.rmtree(place / "cut" / "checkpoints" / f"step_{step:09d}")
    os.rename(place / "source", tmp_path / "gone")
    try:
        pretrain_by_words(*(word.replace("/whole", "/cut") for word in command))
    finally:
        os.rename(tmp_path / "gone", place / "source")
    printed = capsys.readouterr().out
    assert "resuming from step 2" in printed and "each the mean" not in printed
    assert rows(place / "cut") == rows(place / "whole") and len(rows(place / "cut")) == 4
    assert rows(place / "cut", "evaluation") == rows(place / "whole", "evaluation")

    assert cli._run(["bert-jax", "pretrain", *command, "--init_from=elsewhere"]) == 2
    error = capsys.readouterr().err
    assert f"init_from: {place}/source → elsewhere" in error and "another --workdir" in error


def _check_rows(old, new) -> None:
    """`new` has had one update at a learning rate of 0; a word that cannot be spelled of old begins as its [UNK]."""
    for path in ("embeddings/word/table", "mlm/bias"):
        before, after = (np.asarray(leaf_paths(model.params)[path]) for model in (old, new))
        np.testing.assert_array_equal(after[:200], before)
        for i in range(200, 204):
            pieces = old.tokenizer.encode(new.tokenizer.tokens[i])
            np.testing.assert_allclose(after[i], before[pieces].mean(0), rtol=1e-5, atol=1e-7)
    assert new.tokenizer.tokens[200] == "hedgehog"
    assert old.tokenizer.encode(new.tokenizer.tokens[203]) == [old.tokenizer.unk_id]


@pytest.mark.slow
def test_two_hosts_read_their_own_parts(place):
    """Vocabulary and hidden size split over two processes of two devices: the parameters of a single process."""
    config = from_dict(
        Config,
        CONFIG
        | {
            "workdir": str(place / "pod"),
            "init_from": str(place / "source"),
            "mesh": {"tensor": 2, "fsdp": 2},
            "data": CONFIG["data"] | {"path": str(place / "extended")},
            "phases": [CONFIG["phases"][0] | {"steps": 1}],
        },
    )
    assert finish(launch(config, hosts=2), config) == [0, 0], logs(config)
    _check_rows(load(place / "source"), load(place / "pod"))
    alone, pod = (leaf_paths(jax.device_get(load(place / name).params)) for name in ("source", "pod"))
    for path in alone.keys() - {"embeddings/word/table", "mlm/bias"}:
        np.testing.assert_array_equal(pod[path], alone[path], err_msg=path)


def with_tokenizer(source: pathlib.Path, target: pathlib.Path, tokenizer) -> None:
    """A copy of a run that has another tokenizer, and says so."""
    shutil.copytree(source, target)
    tokenizer.save(target / "tokenizer")
    run = json.loads((source / "run.json").read_text())
    (target / "run.json").write_text(json.dumps(run | {"tokenizer_fingerprint": tokenizer.fingerprint}))


@pytest.mark.parametrize(
    "options, says",
    [
        (["--init_from=@/nowhere"], ["nowhere"]),
        (
            ["--init_from=@/source", "--model.activation=gelu_erf", "--model.hidden_size=32"],
            ["add: --model.hidden_size=16 --model.activation=gelu_tanh --model.intermediate_size=64"],
        ),
        (
            ["--init_from=@/cased_source"],
            ["cased_source was trained with cased", "prepared as uncased", "--lowercase=false"],
        ),
        (
            ["--init_from=@/longer_source"],
            ["longer_source has a vocabulary of", "entries for a word table of", "that the model was trained with"],
        ),
    ],
    ids=["missing", "another-model", "casing", "another-vocabulary"],
)
def test_what_cannot_be_continued_leaves_nothing_behind(place, small_store, capfd, options, says):
    if not (place / "cased_source").exists():
        tokenizer = load_tokenizer(place / "source" / "tokenizer")
        with_tokenizer(
            place / "source", place / "cased_source", Tokenizer(WordPiece(tokenizer.tokens, lowercase=False))
        )
        with_tokenizer(place / "source", place / "longer_source", load_tokenizer(place / "extended.txt"))
    capfd.readouterr()
    words = [
        "pretrain",
        f"{place}/config.json",
        f"--data.path={small_store}",
        f"--workdir={place}/refused",
        *(option.replace("@", str(place)) for option in options),
    ]
    error = refusal(capfd, *words)
    assert all(words in error for words in says), error
    assert not (place / "refused").exists()
