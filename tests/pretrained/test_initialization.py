"""Runs that start from a model: what must agree, and what is continued."""

import dataclasses
import functools
import json
import math
import os
import pathlib
import re
import shutil

import jax
import numpy as np
import pytest
from command_lines import refusal, status, succeed
from model_variants import variant
from pod import finish, launch, logs
from published_tokenizers import google_wordpiece
from small_pretraining import pretrain_by_words
from vocabularies import foreign_model

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import Config, EmbeddingConfig, MeshConfig, ModelConfig, RecurrentConfig
from bert_jax.config.options import flattened, from_dict, spelled_names, to_dict, with_options
from bert_jax.console import parse
from bert_jax.data.preparation.vocabularies import extend
from bert_jax.devices import sharding
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.formats.model_types.definition import unlike_bert
from bert_jax.formats.stored import StoredModel
from bert_jax.models.bert import BertForPreTraining
from bert_jax.parameters import entries
from bert_jax.pretrained.initialization import check_architecture, initialize
from bert_jax.pretrained.model import load
from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer
from bert_jax.tokenization.wordpiece import WordPiece
from bert_jax.training.metrics import read_rows

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIALS, "[unused0]", "[unused1]", "cat", "##s", "sat", "un", "##want", "##ed", "a", "##b", "##a", "b"]
TOKENIZER = Tokenizer(WordPiece(WORDS, True))
MODEL = ModelConfig(vocab_size=len(WORDS), hidden_size=16, num_layers=2, num_heads=2, max_position_embeddings=12)
MODEL = dataclasses.replace(MODEL, hidden_dropout=0.0, attention_dropout=0.0)
WORD, POSITION, BIAS = "embeddings/word/table", "embeddings/position/table", "mlm/bias"


@functools.cache
def shapes_of(config: ModelConfig):
    return jax.eval_shape(BertForPreTraining(config).init, jax.random.key(0))


def values_of(config: ModelConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Parameters by path."""
    generator, leaves = np.random.default_rng(seed), leaf_paths(shapes_of(config))
    return {path: generator.normal(size=leaf.shape).astype(np.float32) for path, leaf in leaves.items()}


def stored_model(values, config: ModelConfig = MODEL, tokenizer=TOKENIZER, reads=None, **fields) -> StoredModel:
    """`reads` collects (path, shape of the part) of every access."""

    def array(path, value):
        def read(index):
            assert len(index) == value.ndim
            part = value[index]
            if reads is not None:
                reads.append((path, part.shape))
            return part

        return StoredArray(value.shape, value.dtype, read)

    arrays = {path: array(path, value) for path, value in values.items()}
    return StoredModel(kind="bert_jax", path="somewhere", model=config, arrays=arrays, tokenizer=tokenizer, **fields)


def started(stored: StoredModel, tokenizer=TOKENIZER, mesh: MeshConfig = MeshConfig(data=1), **changes):
    """(parameters by path, report, fresh ones by path, model, tree) of a run with `tokenizer` and MODEL `changes`."""
    model = BertForPreTraining(variant(MODEL, vocab_size=tokenizer.vocab_size, **changes))
    mesh = sharding.make_mesh(mesh, jax.devices()[: mesh.data * mesh.fsdp * mesh.tensor])
    shapes, values = shapes_of(model.config), values_of(model.config, seed=99)
    where = sharding.shardings(mesh, entries(model.parameters, shapes))
    fresh = jax.tree.unflatten(jax.tree.structure(shapes), values.values())  # as good as any, and nothing to compile
    fresh = jax.device_put(fresh, where)
    params, report = initialize(stored, model.parameters, tokenizer, fresh)
    assert jax.tree.map(lambda leaf: leaf.sharding, params) == where
    return leaf_paths(jax.device_get(params)), report, leaf_paths(jax.device_get(fresh)), model, params


def test_the_same_model_is_loaded_as_it_is():
    values = values_of(MODEL)
    params, report, *_ = started(stored_model(values))
    assert params.keys() == values.keys()
    for path, value in values.items():
        np.testing.assert_array_equal(params[path], value, err_msg=path)
    assert (report.resized, report.fresh, report.left_out) == ({}, {}, [])
    assert report.loaded == {path: value.size for path, value in values.items()}


# Two words take the place of [unused] entries, two go to the end.
EXTENDED, _ = extend(TOKENIZER, ["unwanted", "cats", "aabb", "catz"])
LARGER = {"max_position_embeddings": 30, "vocab_pad_multiple": 8}


def test_extended_vocabulary_has_means_of_pieces():
    """The pieces are those of Google's algorithm, written independently; padded rows stay fresh: they are no words."""
    values = values_of(MODEL)
    params, report, fresh, *_ = started(stored_model(values), EXTENDED, **LARGER)
    assert EXTENDED.tokens[5:7] == ["unwanted", "cats"] and EXTENDED.tokens[17:] == ["aabb", "catz"]
    for path in (WORD, BIAS):
        for i, token in enumerate(EXTENDED.tokens):
            pieces = google_wordpiece(token, set(WORDS)) if token not in WORDS else [token]
            expected = np.mean([values[path][WORDS.index(piece)] for piece in pieces], axis=0, dtype=np.float64)
            np.testing.assert_allclose(params[path][i], expected, rtol=1e-6, atol=1e-7, err_msg=token)
            if token in WORDS:
                np.testing.assert_array_equal(params[path][i], values[path][i])
        np.testing.assert_array_equal(params[path][EXTENDED.vocab_size :], fresh[path][EXTENDED.vocab_size :])
        assert len(params[path]) == 24
    for path in params.keys() - {WORD, BIAS, POSITION}:
        np.testing.assert_array_equal(params[path], values[path], err_msg=path)
    size, remark = report.resized[WORD]
    assert size == 24 * 16 and report.resized.keys() == {WORD, BIAS, POSITION}
    means = "each the mean of its pieces (2.5 on average; 1 were [UNK])"
    assert remark == f"17 → 19 entries: 15 kept, 4 new, {means}, 2 left out"


def test_a_reordered_vocabulary_is_matched_by_text():
    order = np.random.default_rng(3).permutation(len(WORDS))
    shuffled = Tokenizer(WordPiece([WORDS[i] for i in order], True))
    values = values_of(MODEL)
    params, report, *_ = started(stored_model(values), shuffled)
    for path in (WORD, BIAS):
        np.testing.assert_array_equal(params[path], values[path][order])
    moved = int((order != np.arange(len(WORDS))).sum())
    assert report.resized[WORD][1] == f"17 → 17 entries: {17 - moved} kept, {moved} moved to another id"


def test_a_continuation_is_spelled_with_continuations():
    tokenizer = Tokenizer(WordPiece([*WORDS, "##wanted", "##ba", "##?"], True))
    values = values_of(MODEL)
    params, *_ = started(stored_model(values), tokenizer)
    for token, pieces in (("##wanted", ["##want", "##ed"]), ("##ba", ["##b", "##a"]), ("##?", ["[UNK]"])):
        expected = values[WORD][[WORDS.index(piece) for piece in pieces]].mean(0)
        np.testing.assert_allclose(params[WORD][tokenizer.tokens.index(token)], expected, rtol=1e-6, err_msg=token)


def test_sentencepiece_entries_are_matched_by_text_and_specials_by_role(tmp_path):
    old = load_tokenizer(
        foreign_model(tmp_path / "old", pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols="[CLS],[SEP],[MASK]")
    )
    new = load_tokenizer(foreign_model(tmp_path / "new", pad_id=3, user_defined_symbols="[MASK],[SEP],[CLS],▁mat,at"))
    values = values_of(config := dataclasses.replace(MODEL, vocab_size=old.vocab_size))
    params, *_ = started(stored_model(values, config, old), new)
    for ours, theirs in zip(new.special_ids, old.special_ids, strict=True):
        np.testing.assert_array_equal(params[WORD][ours], values[WORD][theirs])
    for token in ("▁mat", "at"):
        pieces = [i for i in old.encode(token.removeprefix("▁")) if token == "▁mat" or old.tokens[i] != "▁"]
        ids = [old.tokens.index(token)] if token in old.tokens else pieces
        found, expected = params[WORD][new.tokens.index(token)], values[WORD][ids].mean(0)
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=token)


@pytest.mark.parametrize("positions", [8, 12, 30])
def test_position_tables_are_cut_or_repeat(positions):
    values = values_of(MODEL)
    params, report, *_ = started(stored_model(values), max_position_embeddings=positions)
    table = values[POSITION]
    expected = np.concatenate([table, *[table[1:]] * 2])[:positions]  # only [CLS] ever stood at position 0
    np.testing.assert_array_equal(params[POSITION], expected)
    assert (POSITION in report.resized) == (positions != 12)


def test_a_bare_encoder_gets_fresh_heads_and_a_task_head_is_left():
    values = values_of(MODEL)
    encoder = {path: value for path, value in values.items() if path.startswith(("embeddings", "encoder"))}
    head = {"head/kernel": np.ones((16, 3), np.float32), "head/bias": np.zeros(3, np.float32)}
    sentences = EmbeddingConfig(pooling="cls", normalize=True)
    params, report, fresh, *_ = started(stored_model(encoder | head, ignored=("adapter",), embedding=sentences))
    for path in values:
        np.testing.assert_array_equal(params[path], (encoder if path in encoder else fresh)[path], err_msg=path)
    assert report.fresh.keys() == values.keys() - encoder.keys()
    assert report.left_out == [
        "left out: head",
        "left out: how embed makes vectors (cls of the last layer, normalized)",
        "left out: arrays that have no place here (adapter)",
    ]


def test_the_printed_table_accounts_for_every_value(capsys):
    from rich.console import Console

    values = values_of(MODEL)
    del values["next_sentence/kernel"], values["next_sentence/bias"]
    params, report, *_ = started(stored_model(values, ignored=("adam_m",)), EXTENDED)
    Console(width=180, highlight=False).print(report.table())
    text = capsys.readouterr().out
    cells = [line.split("│")[3].strip() for line in text.splitlines() if line.startswith("│")]
    sizes = [int(cell.replace(",", "")) for cell in cells if cell]
    assert sum(sizes) == sum(value.size for value in params.values())
    for shown in ("encoder/… (16 arrays)", "next_sentence/… (2 arrays)", f"{WORD}, {BIAS}", "adam_m", "from somewhere"):
        assert shown in text


MESHES = [MeshConfig(data=8), MeshConfig(data=2, fsdp=2, tensor=2), MeshConfig(data=1, fsdp=1, tensor=4)]


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: f"{mesh.data}x{mesh.fsdp}x{mesh.tensor}")
@pytest.mark.parametrize("tokenizer", [TOKENIZER, EXTENDED], ids=["same", "extended"])
def test_every_mesh_gets_the_same_values(mesh, tokenizer):
    values, reads = values_of(MODEL), []
    alone, *_ = started(stored_model(values), tokenizer, **LARGER)
    params, *_ = started(stored_model(values, reads=reads), tokenizer, mesh, **LARGER)
    for path, value in alone.items():
        np.testing.assert_array_equal(params[path], value, err_msg=path)
    if tokenizer is TOKENIZER:  # each part is read once, whatever the number of its copies, and nothing else
        read = {path: sum(math.prod(shape) for other, shape in reads if other == path) for path in values}
        expected = {path: value.size for path, value in values.items()}
        assert read == expected


@pytest.mark.parametrize(
    "stored, tokenizer, message",
    [
        (stored_model(values_of(MODEL), tokenizer=None), TOKENIZER, "somewhere has no vocabulary.*vocab.txt"),
        (
            stored_model(values_of(MODEL)),
            Tokenizer(WordPiece(WORDS, False)),
            "trained with uncased wordpiece text, but data.path was prepared as cased wordpiece.*--lowercase=true",
        ),
        (
            stored_model(values_of(MODEL)),
            Tokenizer(WordPiece([*SPECIALS, "[unused0]", "other", "words"], True)),
            "no entry of its vocabulary of 17 in common with the one of 8",
        ),
    ],
    ids=["no-vocabulary", "casing", "nothing-in-common"],
)
def test_what_cannot_be_used_is_one_clear_line(stored, tokenizer, message):
    with pytest.raises(UserError, match=message):
        started(stored, tokenizer)


AGREEMENT_MODEL = ModelConfig(vocab_size=17, hidden_size=16, num_layers=2, num_heads=2, max_position_embeddings=12)


def stored_model_of_agreement(config: ModelConfig) -> StoredModel:
    return StoredModel(kind="bert_jax", path="somewhere", model=config, arrays={}, tokenizer=None)


DIFFERENT = {
    **{"hidden_size": 32, "num_layers": 3, "num_heads": 4, "intermediate_size": 40, "type_vocab_size": 3},
    **{"activation": "gelu_erf", "layer_norm_epsilon": 1e-6, "norm_position": "pre"},
}


def test_another_architecture_is_one_error_with_the_options_to_paste():
    stored = stored_model_of_agreement(variant(AGREEMENT_MODEL, **DIFFERENT))
    with pytest.raises(UserError) as caught:
        check_architecture(stored, AGREEMENT_MODEL)
    message = str(caught.value)
    assert "\n" not in message and "model.activation is gelu_tanh here and gelu_erf there" in message
    options = message.partition("add: ")[2].split()
    assert len(options) == len(DIFFERENT)
    check_architecture(stored, parse(Config(model=AGREEMENT_MODEL), options, "x").model)


def test_a_width_that_is_written_out_equals_the_one_that_is_derived():
    heads = AGREEMENT_MODEL.num_heads
    written_out = dataclasses.replace(AGREEMENT_MODEL, intermediate_size=4 * 16, key_value_heads=heads)
    check_architecture(stored_model_of_agreement(written_out), AGREEMENT_MODEL)


HARMLESS = {
    **{"vocab_size": 99, "vocab_pad_multiple": 8, "max_position_embeddings": 99, "hidden_dropout": 0.3},
    **{"attention_dropout": 0.3, "recurrent_dropout": 0.3, "initializer_range": 0.1, "scaled_outputs": True},
    **{"position_init": "sinusoidal", "pair_head": False, "zero_outputs": True, "scaling.base_hidden_size": 8},
}
OTHER_WORDS = {"layer": "lstm", "positions": "rope", "direction": "left_to_right", "pooler": "relu", "norm": "rms_norm"}
OTHER_WORDS |= {"convolution_activation": "gelu_erf", "disentangled.terms": "c2p", "word_head": "affine"}
OTHER_WORDS |= {"rope_scaling": "yarn", "value_embeddings": "all"}
OTHER_WORDS |= {"sharing": "all", "feed_forward": "geglu", "activation": "gelu_erf", "norm_position": "pre"}
KINDS = (
    {},
    {"positions": "rope"},
    {"local_window": 4},
    {"convolution_width": 3},
    {"positions": "learned_bias"},
    {"positions": "none", "disentangled.terms": "c2p+p2c"},
    {"layer": "lstm"},
)
"""Options that choose kinds, which have options of their own."""


def another(name: str, value):
    """A value of an option other than this one."""
    if isinstance(value, str):
        return OTHER_WORDS[name]
    return not value if isinstance(value, bool) else 7 if value is None else value + (2 if "width" in name else 1)


def spelled(model) -> dict:
    return {name.removeprefix("model."): value for name, value in flattened({"model": to_dict(model)}).items()}


def with_names(model, options: dict):
    return with_options(Config(model=model), {f"model.{name}": value for name, value in options.items()}).model


OPTIONS = [
    (number, name)
    for number, kind in enumerate(KINDS)
    for name in spelled(with_names(AGREEMENT_MODEL, kind))
    if (name not in kind) and (not number or name not in spelled(AGREEMENT_MODEL))
]


@pytest.mark.parametrize("number, name", OPTIONS)
def test_every_option_agrees_or_is_known_to_be_harmless(number, name):
    model = with_names(AGREEMENT_MODEL, KINDS[number])
    if name in HARMLESS:
        check_architecture(stored_model_of_agreement(with_names(model, {name: HARMLESS[name]})), model)
        return
    other = with_names(model, {name: another(name, spelled(model)[name])})
    with pytest.raises(UserError, match=rf"model\.{name} is .* here and .* there"):
        check_architecture(stored_model_of_agreement(other), model)


def test_every_option_of_a_transformer_or_of_recurrent_layers_is_among_them():
    names = {name.split(".")[0] for _, name in OPTIONS} | {"layer", "positions", "local_window", "convolution_width"}
    assert {*spelled_names(ModelConfig), *spelled_names(RecurrentConfig)} <= names


@dataclasses.dataclass(frozen=True, kw_only=True)
class Later(ModelConfig):
    """A ModelConfig with an option that nobody has heard of."""

    experts: int = 1


def test_a_new_option_must_agree_until_someone_says_otherwise():
    run, stored = (Later(**vars(AGREEMENT_MODEL), experts=experts) for experts in (1, 4))
    check_architecture(stored_model_of_agreement(run), run)
    with pytest.raises(UserError, match=r"model.experts is 1 here and 4 there.*--model.experts=4"):
        check_architecture(stored_model_of_agreement(stored), run)
    assert (unlike_bert(run), unlike_bert(stored)) == ((), ("experts",))


@pytest.mark.parametrize("run", [{}, {"layer": "lstm"}])
def test_a_model_that_reads_to_the_right_is_no_start_for_one_of_both_sides(run):
    """As an LSTM or not; the arrays of a Transformer have the same shapes either way."""
    stored = stored_model_of_agreement(variant(AGREEMENT_MODEL, direction="left_to_right", **run))
    with pytest.raises(UserError, match=r"model.direction is both here and left_to_right there.*=left_to_right"):
        check_architecture(stored, variant(AGREEMENT_MODEL, **run))


def test_how_far_a_model_reaches_may_differ_in_a_longer_run():
    stored = stored_model_of_agreement(variant(AGREEMENT_MODEL, positions="rope"))
    run = variant(dataclasses.replace(stored.model, max_position_embeddings=24), rope_scale=2.0)
    check_architecture(stored, run)
    with pytest.raises(UserError, match="model.rope_scale is 2.0 here and 1.0 there"):
        check_architecture(stored, dataclasses.replace(run, max_position_embeddings=12))


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
    store = f"--vocab={place}/extended.txt", f"--output={place}/extended"
    succeed("prepare", f"--input={corpus}", *store, "--sentences=lines", "--workers=1")
    pretrain_by_words(f"{place}/config.json", f"--data.path={small_store}", f"--workdir={place}/source")
    return place


def continued(place: pathlib.Path, store: pathlib.Path, name: str, *options: str) -> tuple[str, ...]:
    words = (f"{place}/config.json", f"--data.path={store}", f"--workdir={place}/{name}", f"--init_from={place}/source")
    return *words, *options


def rows(workdir: pathlib.Path, kind: str = "train") -> list[dict]:
    kept = [row for row in read_rows(workdir / "metrics.jsonl") if row["kind"] == kind]
    return [{name: value for name, value in row.items() if not TIMES.search(name)} for row in kept]


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
    options = "--steps=4", "--checkpoint.every_steps=1", "--checkpoint.keep_last=5"
    command = continued(place, place / "extended", "whole", *options)
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

    assert status("pretrain", *command, "--init_from=elsewhere") == 2
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
        words = load_tokenizer(place / "source" / "tokenizer").tokens
        with_tokenizer(place / "source", place / "cased_source", Tokenizer(WordPiece(words, lowercase=False)))
        with_tokenizer(place / "source", place / "longer_source", load_tokenizer(place / "extended.txt"))
    capfd.readouterr()
    words = ["pretrain", f"{place}/config.json", f"--data.path={small_store}", f"--workdir={place}/refused"]
    words += [option.replace("@", str(place)) for option in options]
    error = refusal(capfd, *words)
    assert all(words in error for words in says), error
    assert not (place / "refused").exists()
