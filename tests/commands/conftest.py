"""What refused commands are given."""

import dataclasses
import json
import os
import pathlib
import shutil

import documents
import huggingface_directory
import pytest
import workdirs
import written_teacher
from command_lines import TAUGHT, succeed
from pretrained_model import SMALL, random_params, write_workdir
from small_pretraining import pretrain_by_words

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.config import Config
from bert_jax.config.options import to_dict
from bert_jax.console import configured
from bert_jax.data.store import open_store
from bert_jax.files import sealed, unsealed
from bert_jax.models.bert import BertForPreTraining
from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer
from bert_jax.tokenization.wordpiece import WordPiece


@pytest.fixture(scope="session")
def bad_inputs(small_store, tmp_path_factory) -> pathlib.Path:
    """What the commands of the table are given: good inputs, bad ones, a finished run. No test may change any of it."""
    place = tmp_path_factory.mktemp("bad")
    (place / "corpus.txt").write_bytes((small_store.parent / "corpus.txt").read_bytes())
    vocab = (small_store.parent / "vocab.txt").read_text()
    (place / "vocab.txt").write_text(vocab)
    shutil.copytree(small_store, place / "store")
    (place / "nothing").mkdir()
    (place / "empty.txt").write_bytes(b"")
    (place / "blank.txt").write_bytes(b"\n \n\t\n")
    (place / "latin1.txt").write_bytes("A plain line.\nThe café is shut.\n".encode("latin-1"))
    (place / "broken.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    (place / "other_field.jsonl").write_text('{"body": "fine"}\n')
    (place / "broken.txt.gz").write_bytes(b"\x1f\x8b no gzip at all")
    (place / "no_mask.txt").write_text(vocab.replace("[MASK]\n", "[HIDE]\n"))
    (place / "other_vocab.txt").write_text(vocab + "gherkin\n")
    (place / "noise.model").write_bytes(b"\0\1\2\3 no model")
    (place / "few.txt").write_text("\n\n".join(documents.documents(3)) + "\n")
    succeed(
        "prepare", f"--input={place}/corpus.txt", f"--vocab={place}/other_vocab.txt", f"--output={place}/other_store"
    )
    succeed("prepare", f"--input={place}/few.txt", f"--vocab={place}/vocab.txt", f"--output={place}/few_store")
    for name in ("cut", "missing", "garbled", "newer", "retyped", "no_tokenizer"):
        shutil.copytree(small_store, place / f"{name}_store")
    os.truncate(place / "cut_store" / "shard-00000.tokens", 100)
    (place / "missing_store" / "shard-00000.sentences").unlink()
    (place / "garbled_store" / "manifest.json").write_text('{"version": 1, "shards"')
    shutil.rmtree(place / "no_tokenizer_store" / "tokenizer")
    for name, changes in (("newer", {"version": 2}), ("retyped", {"shards": "many"})):
        manifest = unsealed(json.loads((small_store / "manifest.json").read_text()))
        (place / f"{name}_store" / "manifest.json").write_text(json.dumps(sealed(manifest | changes)))
    (place / "config.json").write_text(
        json.dumps(
            {
                "model": {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "max_position_embeddings": 64},
                "data": {"path": str(place / "store"), "held_out": 0.1, "loader": "plain"},
                "evaluation": {"sequences": 16, "batch_size": 16},
                "phases": [{"steps": 2, "sequence_length": 32, "batch_size": 8}],
            }
        )
    )
    (place / "broken.json").write_text('{"model": ')
    (place / "phases.json").write_text('{"phases": "1000"}')
    (place / "broken.py").write_text("def get_config():\n    return )\n")
    (place / "zeros.py").write_bytes(b"x = 1\0")
    (place / "raising.py").write_text(
        "from bert_jax.config import Config, PhaseConfig\n"
        "from bert_jax.config.pretraining import PhaseModel\n\n\n"
        "def get_config():\n"
        "    return Config(phases=(PhaseConfig(model=PhaseModel(hidden_size=64)),))\n"
    )
    pretrain_by_words(f"{place}/config.json", f"--workdir={place}/run")
    shutil.copytree(place / "run", place / "broken_run")
    (place / "broken_run" / "config.json").write_text("{")
    write_workdir(place / "other_run", 2, config=SMALL)
    shutil.copytree(place / "run", place / "other_words")
    words = load_tokenizer(place / "run" / "tokenizer").tokens
    swapped = Tokenizer(WordPiece([*words[:-2], *words[:-3:-1]], lowercase=True))
    swapped.save(place / "other_words" / "tokenizer")
    run = json.loads((place / "run" / "run.json").read_text())
    (place / "other_words" / "run.json").write_text(json.dumps(run | {"tokenizer_fingerprint": swapped.fingerprint}))
    for name, file in (("foreign_model", "config.json"), ("foreign_run", "metrics.jsonl")):
        (place / name).mkdir()
        (place / name / file).write_text("{}\n")
    return place


MODELS = {  # options in which each is not written_teacher.TEACHER
    "teacher": {},
    "other_teacher": {"num_layers": 2},
    "albert": {"sharing": "all"},
    "gpt": {"direction": "left_to_right", "type_vocab_size": 0, "pair_head": False},
    "mosaic": {"positions": "alibi", "feed_forward": "geglu", "pair_head": False},
    "discriminator": {"pair_head": False, "parts": ("replaced_tokens",)},
    "static": {"layer": "none", "parts": ()},
}


def write_student(config: Config, store: pathlib.Path, teacher: str) -> None:
    """Write step 2 of a run to its work directory; `teacher`: the fingerprint of the one that it learns from."""
    opened = open_store(str(store))
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=opened.vocab_size))
    with (
        workdirs.opened(
            config.workdir, opened.tokenizer(), config, opened.fingerprint, {"teacher": teacher}
        ) as workdir,
        Checkpoints(workdir.checkpoints, config.checkpoint, run_id=workdir.run_id) as checkpoints,
    ):
        params = random_params(BertForPreTraining(config.model, parts=("mlm",)))
        checkpoints.save(2, {"params": params}, position={}, config=to_dict(config))


@pytest.fixture(scope="session")
def family_inputs(small_store, tmp_path_factory) -> pathlib.Path:
    """What the commands on the family are given: models of its members, good and bad. No test may change any of it."""
    place = tmp_path_factory.mktemp("family")
    shutil.copytree(small_store, place / "store")
    (place / "nothing").mkdir()
    vocab = (small_store.parent / "vocab.txt").read_text()
    for name, text in (("vocab.txt", vocab), ("longer_vocab.txt", vocab + "gherkin\n")):
        (place / name).write_text(text)
    load_tokenizer(place / "longer_vocab.txt").save(place / "longer" / "tokenizer")
    written_teacher.write(place / "foreign_teacher", place / "longer")
    for name, changes in MODELS.items():
        written_teacher.write(place / name, small_store, **changes)
    command, *words = f"{TAUGHT} --workdir=@/student".replace("@", str(place)).split()
    write_student(configured(words, command), small_store, teacher="another one")
    (place / "few.txt").write_text("\n\n".join(documents.documents(3)) + "\n")
    succeed("prepare", f"--input={place}/few.txt", f"--vocab={place}/vocab.txt", f"--output={place}/few_store")
    succeed("count", place / "few_store", f"--output={place}/few_counts")
    huggingface_directory.directory(place / "gpt2", model_type="gpt2")
    huggingface_directory.directory(place / "relative", position_embedding_type="relative_key")
    return place
