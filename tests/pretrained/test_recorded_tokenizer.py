"""The tokenizer beside a model must be the one that its run or its conversion has recorded."""

import json
import pathlib
import shutil

import pytest
from pretrained_model import TOKENIZER, WORDS, write_workdir

from bert_jax.errors import UserError
from bert_jax.formats.conversion import convert
from bert_jax.formats.opening import open_stored
from bert_jax.pretrained.model import load
from bert_jax.tokenization.tokenizer import load_tokenizer


@pytest.fixture
def recorded(workdir, tmp_path):
    """A work directory whose run.json names its tokenizer, as runs leave it."""
    shutil.copytree(workdir[0], tmp_path / "run")
    facts = {"run_id": "run", "tokenizer_fingerprint": TOKENIZER.fingerprint}
    (tmp_path / "run" / "run.json").write_text(json.dumps(facts))
    return tmp_path / "run"


def exchange(directory: pathlib.Path) -> None:
    """Two lines of the vocabulary in each other's place."""
    words = [*WORDS[:6], WORDS[7], WORDS[6], *WORDS[8:]]
    (directory / "tokenizer" / "vocab.txt").write_text("\n".join(words) + "\n")


@pytest.mark.parametrize("below", ["", "checkpoints/step_000000002"])
def test_another_tokenizer_beside_a_checkpoint_is_refused(recorded, below):
    assert load(recorded / below).tokenizer.fingerprint == TOKENIZER.fingerprint
    exchange(recorded)
    ours = TOKENIZER.fingerprint[:12]
    says = f"not the tokenizer of this model: .* {{}}.*24 entries, {{}}.*run.json has {ours}.*Restore"
    exchanged = load_tokenizer(recorded / "tokenizer")
    with pytest.raises(UserError, match=says.format(exchanged.fingerprint[:12], "lower case")) as caught:
        open_stored(recorded / below)  # which --init_from, convert and predict call too
    assert "\n" not in str(caught.value)
    TOKENIZER.save(recorded / "tokenizer")
    (recorded / "tokenizer" / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    with pytest.raises(UserError, match=says.format("", "cased")):
        load(recorded / below)


def test_another_tokenizer_beside_a_converted_model_or_a_single_run_is_refused(recorded, tmp_path):
    convert(recorded, tmp_path / "converted", to="bert_jax")
    exchange(tmp_path / "converted")
    with pytest.raises(UserError, match="not the tokenizer of this model"):
        load(tmp_path / "converted")
    one = tmp_path / "grid" / "runs" / "seed0"  # of fine-tuning, with --keep=all
    write_workdir(one, 2, run_id="run/seed0")
    (tmp_path / "grid" / "run.json").write_text((recorded / "run.json").read_text())
    assert load(one).tokenizer.tokens == WORDS
    exchange(one)
    with pytest.raises(UserError, match="runs/seed0/tokenizer is not the tokenizer of this model"):
        load(one)


def test_a_model_that_was_written_without_a_vocabulary_opens_with_one_of_its_size(recorded):
    (recorded / "run.json").write_text(json.dumps({"run_id": "run", "source": {"kind": "tf1"}}))
    assert load(recorded).tokenizer.tokens == WORDS
    (recorded / "tokenizer" / "vocab.txt").write_text(
        "\n".join(WORDS[:-1]) + "\n"
    )  # one short, 24 rows: may be padding
    assert load(recorded).tokenizer.tokens == WORDS[:-1]
    (recorded / "tokenizer" / "vocab.txt").write_text("\n".join(WORDS[:12]) + "\n")
    with pytest.raises(UserError, match="vocabulary of 12 entries for a word table of 24 rows.*not padding"):
        load(recorded)
