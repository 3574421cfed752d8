"""Starting from a stored model: what is loaded, resized, fresh and ignored, on any mesh; and what is refused."""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest
from foreign_sentencepiece import foreign_model
from google_tokenization import google_wordpiece
from model_variants import variant

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import MeshConfig, ModelConfig
from bert_jax.data.preparation.vocabularies import extend
from bert_jax.devices import sharding
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.formats.stored import StoredModel
from bert_jax.models.bert import BertForPreTraining
from bert_jax.parameters import entries
from bert_jax.pretrained.initialization import initialize
from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer
from bert_jax.tokenization.wordpiece import WordPiece

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIALS, "[unused0]", "[unused1]", "cat", "##s", "sat", "un", "##want", "##ed", "a", "##b", "##a", "b"]
TOKENIZER = Tokenizer(WordPiece(WORDS, True))
MODEL = ModelConfig(
    vocab_size=len(WORDS),
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    max_position_embeddings=12,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
WORD, POSITION, BIAS = "embeddings/word/table", "embeddings/position/table", "mlm/bias"


@functools.cache
def shapes_of(config: ModelConfig):
    return jax.eval_shape(BertForPreTraining(config).init, jax.random.key(0))


def values_of(config: ModelConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Parameters by path."""
    generator = np.random.default_rng(seed)
    return {
        path: generator.normal(size=leaf.shape).astype(np.float32)
        for path, leaf in leaf_paths(shapes_of(config)).items()
    }


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
    assert (report.resized, report.fresh, report.ignored) == ({}, {}, ())
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
    size, remark = report.resized[WORD]
    assert size == 24 * 16 and report.resized.keys() == {WORD, BIAS, POSITION}
    assert remark == (
        "17 → 19 entries: 15 kept, 4 new, each the mean of its pieces (2.5 on average; 1 were [UNK]), 2 left out"
    )


def test_old_logits_stay_and_new_ones_are_means():
    """Text of old words: the old model's logits for every old word; for a new one, the mean of its pieces' logits."""
    values = values_of(MODEL)
    _, _, _, old, before = started(stored_model(values))
    _, _, _, new, after = started(stored_model(values), EXTENDED, **LARGER)
    ids = np.array([[2, 7, 8, 9, 4, 13, 3], [2, 10, 4, 12, 3, 0, 0]], np.int32)
    batch = {
        "input_ids": ids,
        "token_type_ids": np.zeros_like(ids),
        "attention_mask": (ids > 0).astype(np.int32),
        "masked_positions": np.array([[4, 1], [2, 3]], np.int32),
    }
    logits = [
        np.asarray(jax.jit(model.apply)(params, batch).mlm_logits) for model, params in ((old, before), (new, after))
    ]
    kept = [i for i, token in enumerate(WORDS) if "unused" not in token]
    np.testing.assert_allclose(logits[1][..., kept], logits[0][..., kept], atol=1e-5)
    pieces = [WORDS.index(piece) for piece in ("un", "##want", "##ed")]
    np.testing.assert_allclose(logits[1][..., 5], logits[0][..., pieces].mean(-1), atol=1e-5)


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
        text = "mat" if token == "▁mat" else "at"
        ids = (
            [old.tokens.index(token)]
            if token in old.tokens
            else [i for i in old.encode(text) if token == "▁mat" or old.tokens[i] != "▁"]
        )
        np.testing.assert_allclose(
            params[WORD][new.tokens.index(token)], values[WORD][ids].mean(0), rtol=1e-5, err_msg=token
        )


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
    params, report, fresh, *_ = started(stored_model(encoder | head, ignored=("adam_m",)))
    for path in values:
        np.testing.assert_array_equal(params[path], (encoder if path in encoder else fresh)[path], err_msg=path)
    assert report.fresh.keys() == values.keys() - encoder.keys()
    assert report.ignored == ("head/bias", "head/kernel", "adam_m")


def test_the_printed_table_accounts_for_every_value(capsys):
    from rich.console import Console

    values = values_of(MODEL)
    del values["next_sentence/kernel"], values["next_sentence/bias"]
    params, report, *_ = started(stored_model(values, ignored=("adam_m",)), EXTENDED)
    Console(width=180, highlight=False).print(report.table())
    text = capsys.readouterr().out
    sizes = [
        int(cell.replace(",", ""))
        for line in text.splitlines()
        if line.startswith("│")
        for cell in [line.split("│")[3].strip()]
        if cell
    ]
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
    with pytest.raises(UserError, match=message) as caught:
        started(stored, tokenizer)
    assert "\n" not in str(caught.value)
