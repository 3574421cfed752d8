"""Pretrained models: states, features, and bad calls."""

import dataclasses

import jax
import numpy as np
import numpy_bert
import pytest
from model_variants import variant
from pretrained_model import (
    CONFIG,
    SMALL,
    TEXTS,
    TOKENIZER,
    WORDS,
    compilations,
    loaded,
    original_pieces,
    row_by_row,
    stored_model,
)
from small_model import compiled

from bert_jax.analysis.texts import check_vectors, layer_vectors
from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import HeadConfig
from bert_jax.data.sequences import ladder
from bert_jax.errors import UserError
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.models.pooling import LAYERS_READ, combine
from bert_jax.models.task import BertForTask
from bert_jax.parameters import total_size
from bert_jax.pretrained.encodings import read_texts
from bert_jax.pretrained.runner import Compiled, Parameters


@pytest.fixture(scope="module")
def in_shared_rows(model):
    return model.encode(TEXTS, layers="all")


def test_encode_equals_the_model_applied_row_by_row(model, encoding, in_shared_rows):
    assert len(encoding.hidden_states) == CONFIG.num_layers + 1 and len(encoding.attentions) == CONFIG.num_layers
    for number, text in enumerate(TEXTS):
        expected, size = row_by_row(model, text), sum(map(len, original_pieces(text)))
        real = np.arange(encoding.attention_mask.shape[1]) < size
        np.testing.assert_array_equal(encoding.attention_mask[number], real)
        assert encoding.tokens[number] == [WORDS[i] for i in encoding.input_ids[number, :size]]
        for one in (encoding, in_shared_rows):
            for found, wanted in zip(one.hidden_states, expected["hidden_states"], strict=True):
                np.testing.assert_allclose(found[number, :size], wanted[0], atol=2e-5)
                assert not found[number, size:].any()
            last = one.last_hidden_state[number, :size]
            np.testing.assert_allclose(last, expected["last_hidden_state"][0], atol=2e-5)
            np.testing.assert_allclose(one.pooled[number], expected["pooled"][0], atol=2e-5)
        for found, wanted in zip(encoding.attentions, expected["attentions"], strict=True):
            np.testing.assert_allclose(found[number, :, :size, :size], wanted[0], atol=1e-5)
            assert not found[number, :, size:].any() and not found[number, :, :, size:].any()
    assert encoding.token_type_ids[1].tolist()[:12] == [0] * 5 + [1] * 5 + [0] * 2


def test_encode_batches_yields_every_text_once_as_encode_returns_it(model, encoding):
    seen = []
    for numbers, part in model.encode_batches(TEXTS, "all", attentions=True, batch_size=2):
        size = part.attention_mask.shape[1]
        seen += numbers.tolist()
        assert part.tokens == [encoding.tokens[number] for number in numbers]
        np.testing.assert_array_equal(part.input_ids, encoding.input_ids[numbers, :size])
        np.testing.assert_array_equal(part.token_type_ids, encoding.token_type_ids[numbers, :size])
        for found, wanted in zip(part.hidden_states, encoding.hidden_states, strict=True):
            np.testing.assert_allclose(found, wanted[numbers, :size], atol=2e-5)
        for found, wanted in zip(part.attentions, encoding.attentions, strict=True):
            np.testing.assert_allclose(found, wanted[numbers, :, :size, :size], atol=1e-5)
    assert sorted(seen) == list(range(len(TEXTS)))


def test_layers_pick_and_keep_their_order(model, in_shared_rows):
    for layers, indices in ((0, [0]), ([-1, 2], [5, 2]), (np.array([1, 3]), [1, 3])):
        picked = model.encode(TEXTS, layers=layers).hidden_states
        for found, index in zip(picked, indices, strict=True):
            np.testing.assert_allclose(found, in_shared_rows.hidden_states[index], atol=1e-6)
    last = model.encode(TEXTS)
    assert last.attentions is None and len(last.hidden_states) == 1 and last.hidden_states[0] is last.last_hidden_state
    np.testing.assert_allclose(last.last_hidden_state, in_shared_rows.last_hidden_state, atol=1e-6)


@pytest.mark.parametrize(
    "form",
    [
        {"positions": "alibi", "direction": "left_to_right"},
        {"positions": "xlnet"},
        *(
            pytest.param(form, marks=pytest.mark.slow)
            for form in (
                {"positions": "rope", "norm_position": "pre", "local_window": 3, "global_every": 2},
                {"local_window": 3, "global_tokens": 1},
            )
        ),
        {"local_window": 1, "global_tokens": 3, "global_every": 5},
        {"layer": "lstm"},
        pytest.param({"layer": "lstm", "direction": "left_to_right"}, marks=pytest.mark.slow),
        {"layer": "none"},
    ],
)
def test_texts_share_rows_and_each_is_computed_as_if_alone(form):
    model = loaded(stored_model(config=variant(SMALL, **form)))
    rows, encode = [], model._runner.encode
    noted = lambda batch, *args, **options: rows.append("text_ids" in batch) or encode(batch, *args, **options)
    model._runner.encode = noted
    together = model.encode(TEXTS, layers="all")
    for number, text in enumerate(TEXTS):
        ((_, alone),) = model.encode_batches(text, layers="all")
        size = alone.attention_mask.shape[1]
        for found, wanted in zip(together.hidden_states, alone.hidden_states, strict=True):
            np.testing.assert_allclose(found[number, :size], wanted[0], atol=5e-6)
        np.testing.assert_allclose(together.pooled[number], alone.pooled[0], atol=5e-6)
    assert rows == [True] + [False] * len(TEXTS)


def test_a_text_has_one_encoding_whatever_stands_beside_it(model):
    texts = [" ".join(WORDS[5 : 5 + 1 + number % 9]) for number in range(21)]
    whole = model.embed(texts)
    assert whole.shape == (21, 16) and len(np.unique(whole.round(4), axis=0)) == 9
    np.testing.assert_allclose(model.embed(texts[::-1], batch_size=4)[::-1], whole, atol=1e-6)
    np.testing.assert_allclose(model.embed(texts[20])[0], whole[20], atol=1e-6)
    np.testing.assert_allclose(model.embed(iter(texts), batch_size=50), whole, atol=1e-6)


def test_few_programs_are_compiled():
    model = loaded(stored_model(config=dataclasses.replace(CONFIG, num_layers=1)))
    texts = [" ".join(["cat"] * (1 + number % 38)) for number in range(200)]
    model.encode(texts, batch_size=8)
    assert compilations(model, "states") <= len(ladder(40))
    model.encode(texts[::3], batch_size=8, max_length=30)
    assert compilations(model, "states") <= len(ladder(40)) < 8


def test_another_look_at_texts_of_the_same_shape_compiles_the_encoder_no_second_time():
    model = loaded(stored_model(config=SMALL))
    model.encode("the cat sat")
    for pooling in ("cls", "mean", "max", "mean_sqrt_len", "pooler"):
        model.embed("a big dog", pooling=pooling)
        model.encode("birds flew", pooling=pooling)
    model.embed("the dog", normalize=True)
    model.fill_mask("the [MASK] sat")
    model.next_sentence("the cat", "sat")
    assert compilations(model, "states") == 2, "rows of several texts, and of one"
    for layers in (0, [1, -1], "all"):
        model.encode("the cat sat", layers=layers)
    for layers in ("second_to_last", "weighted_all"):
        model.embed("the cat sat", layers, weights=[1, 2] if layers == "weighted_all" else None)
    assert compilations(model, "states") == 3
    model.encode("the cat sat", attentions=True)
    assert compilations(model, "states") == 4


def test_the_heads_equal_numpy(model):
    for text, places in (("the [MASK] sat [MASK] the mat", (2, 4)), ("[MASK] cats [MASK]", (1, 4))):
        ids = [TOKENIZER.cls_id, *TOKENIZER.encode_masked(text), TOKENIZER.sep_id]
        batch = {
            "input_ids": np.array([ids]),
            "token_type_ids": np.zeros((1, len(ids)), int),
            "attention_mask": np.ones((1, len(ids))),
            "masked_positions": np.array([places]),
        }
        assert model.encode(text).input_ids.tolist() == [ids]
        shares = numpy_bert.softmax(numpy_bert.forward(jax.device_get(model.params), CONFIG, batch)["mlm_logits"][0])
        for candidates, row in zip(model.fill_mask(text, top_k=4), shares, strict=True):
            best = np.argsort(-row)[:4]
            assert [candidate.token for candidate in candidates] == [WORDS[i] for i in best]
            np.testing.assert_allclose([candidate.probability for candidate in candidates], row[best], atol=1e-5)
    logits = row_by_row(model, ("the cat sat.", "a dog ran."))["next_sentence_logits"][0]
    assert model.next_sentence("the cat sat.", "a dog ran.") == pytest.approx(numpy_bert.softmax(logits)[0], abs=1e-5)


def test_lists_are_answered_in_batches_as_one_by_one():
    model = loaded(stored_model(config=SMALL))
    texts = ["the [MASK] sat", "[MASK] cats [MASK] on [MASK] .", "a big [MASK] " + "the cat " * 9, "[MASK]"] * 5
    found = model.fill_mask(texts, top_k=3, batch_size=8)
    assert compilations(model, "mlm_head") <= 2, "one program for each length"
    assert [len(masks) for masks in found] == [1, 3, 1, 1] * 5
    for text, masks in zip(texts, found):
        for several, single in zip(masks, model.fill_mask(text, top_k=3), strict=True):
            assert [one.token for one in several] == [one.token for one in single]
            expected = [one.probability for one in single]
            np.testing.assert_allclose([one.probability for one in several], expected, atol=1e-6)
    first, second = [text.replace("[MASK]", "dog") for text in texts], TEXTS[2:] * 10
    together = model.next_sentence(first, iter(second), batch_size=8)
    assert all(type(share) is float for share in together) and len({round(share, 4) for share in together}) > 3
    np.testing.assert_allclose(together, [model.next_sentence(*pair) for pair in zip(first, second)], atol=1e-6)


def test_the_tokenizer_gives_what_encode_reads(model):
    texts = ["the [MASK] sat", ("a big dog", "ran in the house"), "birds"]
    batch, encoding = TOKENIZER(texts), model.encode(texts)
    for name in ("input_ids", "token_type_ids", "attention_mask"):
        assert batch[name].dtype == np.int32
        np.testing.assert_array_equal(batch[name], getattr(encoding, name))
    assert set(batch) == {"input_ids", "token_type_ids", "attention_mask"}
    states = np.asarray(jax.jit(model.network.encode)(model.params, **batch).last_hidden_state)
    for row, size in zip(range(3), batch["attention_mask"].sum(1)):
        np.testing.assert_allclose(states[row, :size], encoding.last_hidden_state[row, :size], atol=1e-5)


def test_the_heads_read_what_the_tokenizer_gives(model):
    """The words of every position, or of those that the batch has; by the formulas in float64."""
    batch = TOKENIZER(["the [MASK] sat", ("a big dog", "ran in the house")])
    rows, length = batch["input_ids"].shape
    everywhere = {"masked_positions": np.tile(np.arange(length, dtype=np.int32), (rows, 1))}
    expected = numpy_bert.forward(model.params, model.config, batch | everywhere)
    run = lambda function, batch: np.asarray(compiled(function)(model.params, batch))
    words, real = run(model.network.mlm_logits, batch), batch["attention_mask"] > 0
    np.testing.assert_allclose(words[real], expected["mlm_logits"][real], atol=2e-5)
    pairs = run(model.network.next_sentence_logits, batch)
    np.testing.assert_allclose(pairs, expected["next_sentence_logits"], atol=2e-5)
    some = {"masked_positions": np.array([[2, 0], [3, 3]], np.int32)}
    found = run(model.network.mlm_logits, batch | some)
    np.testing.assert_allclose(found, np.take_along_axis(words, some["masked_positions"][..., None], 1), atol=2e-5)


def test_the_mask_may_stand_in_a_text(model):
    encoding = model.encode([("the [MASK] sat", "[MASK]"), "the cat"])
    assert encoding.tokens[0] == ["[CLS]", "the", "[MASK]", "sat", "[SEP]", "[MASK]", "[SEP]"]
    assert encoding.input_ids[0, [2, 5]].tolist() == [TOKENIZER.mask_id] * 2


def truncated(first: list, second: list, room: int) -> tuple[list, list]:
    """`_truncate_seq_pair` of the original's run_classifier.py."""
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return first, second


def test_what_is_too_long_is_cut_as_the_original_does(model, caplog):
    long, short = "the cat " * 30, "a dog ran"
    for pair in ((long, short), (short, long), (long, long)):
        first, second = truncated(*(TOKENIZER.encode(text) for text in pair), 21 - 3)
        found = model.encode(pair, max_length=21)
        assert found.input_ids[0].tolist() == [TOKENIZER.cls_id, *first, TOKENIZER.sep_id, *second, TOKENIZER.sep_id]
    assert model.encode(long).attention_mask.sum() == 40
    assert "1 of 1 texts have more than 40 tokens and were cut (the longest has 62)" in caplog.text
    with pytest.raises(UserError, match="text 1 .* has 62 tokens .* 40 are allowed"):
        model.encode([short, long], truncate=False)


def test_layers_one_by_one(model, encoding):
    assert len(model.layers) == 5 and [layer.index for layer in model.layers[1:4]] == [1, 2, 3]
    assert model.layers[-1].index == 4
    layer = model.layers[3]
    assert layer.params["attention"]["query"]["kernel"].shape == (16, 4, 4)
    expected = model.params["encoder"]["attention_norm"]["bias"][3]
    np.testing.assert_array_equal(layer.params["attention_norm"]["bias"], expected)
    real, found = encoding.attention_mask > 0, layer(encoding.hidden_states[3], encoding.attention_mask)
    np.testing.assert_allclose(np.asarray(found)[real], encoding.hidden_states[4][real], atol=1e-5)
    assert "attention/query/kernel" in repr(layer) and "[16, 4, 4]" in repr(layer)
    with pytest.raises(IndexError):
        model.layers[5]


@pytest.mark.parametrize(
    "form",
    [
        {"direction": "left_to_right"},
        pytest.param({"positions": "alibi"}, marks=pytest.mark.slow),
        {"layer": "lstm"},
        {"sharing": "all", "num_layers": 4, "layer_groups": 2},
    ],
)
def test_a_layer_alone_sees_what_it_sees_in_the_model(form):
    model = loaded(stored_model(config=variant(SMALL, **form)))
    encoding, number = model.encode(TEXTS[:2], layers="all"), 2 if "sharing" in form else 0
    layer = jax.jit(lambda *given: model.layers[number](*given))
    found = np.asarray(layer(encoding.hidden_states[number], encoding.attention_mask))
    real = encoding.attention_mask > 0
    np.testing.assert_allclose(found[real], encoding.hidden_states[number + 1][real], atol=1e-5)


def test_arrays_of_the_layers_one_by_one_are_the_memory_of_the_whole(model):
    parameters = Parameters(model.params)
    whole = leaf_paths(model.params["encoder"])
    rows = parameters.by_layer()["encoder"]
    assert parameters.by_layer()["encoder"] is rows
    for path, row in leaf_paths(rows).items():
        *names, number = path.split("/")
        array = whole["/".join(names)]
        np.testing.assert_array_equal(row, array[int(number)])
        place = array.unsafe_buffer_pointer() + int(number) * row.nbytes
        assert row.unsafe_buffer_pointer() == place or place % 64, "only rows that are not aligned are copied"
    parameters.replace(jax.tree.map(lambda leaf: leaf + 1, model.params))
    changed = jax.tree.leaves(parameters.by_layer()["encoder"])[0]
    np.testing.assert_array_equal(changed, jax.tree.leaves(rows)[0] + 1)


def test_printing_shows_every_parameter(model):
    shown = str(model)
    assert "somewhere" in shown and "5 layers" in shown and "wordpiece, uncased" in shown
    assert "encoder/feed_forward/intermediate/kernel" in shown and "[5, 16, 24]" in shown
    assert f"{total_size(bert_parameters(CONFIG)):,}" in shown.splitlines()[-2]


def test_a_mask_is_filled_from_the_words_before_it():
    model = loaded(stored_model(config=dataclasses.replace(SMALL, direction="left_to_right")))
    filled = [model.fill_mask(text, 3)[0] for text in ("the cat [MASK]", "the cat [MASK] on the mat")]
    assert [each.token for each in filled[0]] == [each.token for each in filled[1]]


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "mean_sqrt_len", "pooler"])
def test_each_pooling_is_its_formula_over_the_states(model, encoding, pooling):
    found = model.encode(TEXTS, pooling=pooling)
    for number, size in enumerate(encoding.attention_mask.sum(axis=1)):
        states = found.last_hidden_state[number, :size]
        expected = {
            "cls": states[0],
            "mean": states.mean(0),
            "max": states.max(0),
            "pooler": encoding.pooled[number],
            "mean_sqrt_len": states.sum(0) / np.sqrt(size),
        }[pooling]
        np.testing.assert_allclose(found.pooled[number], expected, atol=2e-6)
    np.testing.assert_allclose(model.embed(TEXTS, pooling=pooling), found.pooled, atol=2e-6)


WEIGHTS = {"weighted_last_four": [0.5, -1.0, 2.0, 0.25], "weighted_all": [1.0, 0.0, 0.5, 2.0, -1.0]}


@pytest.mark.parametrize("layers", LAYERS_READ)
def test_the_layers_that_the_paper_reads_are_combined_as_it_says(model, encoding, layers):
    states, weights = encoding.hidden_states, WEIGHTS.get(layers)
    expected = {
        "last": lambda: states[5],
        "second_to_last": lambda: states[4],
        "sum_last_four": lambda: states[2] + states[3] + states[4] + states[5],
        "concat_last_four": lambda: np.concatenate(states[2:], axis=-1),
        "weighted_last_four": lambda: 0.5 * states[2] - states[3] + 2 * states[4] + 0.25 * states[5],
        "weighted_all": lambda: states[1] + 0.5 * states[3] + 2 * states[4] - states[5],
    }[layers]()
    np.testing.assert_allclose(combine(states, layers, weights), expected, atol=1e-5)
    embedded = model.embed(TEXTS, layers, "cls", weights=weights)
    assert embedded.shape == (4, 64 if layers == "concat_last_four" else 16)
    np.testing.assert_allclose(embedded, expected[:, 0], atol=1e-5)


def test_weights_of_layers_can_be_learned(encoding):
    target = sum(weight * state for weight, state in zip(WEIGHTS["weighted_all"], encoding.hidden_states[1:]))
    loss = lambda weights: ((combine(encoding.hidden_states, "weighted_all", weights) - target) ** 2).mean()
    gradient = jax.jit(jax.grad(loss))(np.ones(5, np.float32))
    rest = sum(encoding.hidden_states[1:]) - target
    np.testing.assert_allclose(gradient, [2 * (rest * state).mean() for state in encoding.hidden_states[1:]], rtol=1e-4)


@pytest.mark.parametrize("pooling", [pytest.param("cls", marks=pytest.mark.slow), "mean"])
def test_heads_on_an_empty_text_read_its_marks(pooling):
    """Alone it is the network applied to [CLS] [SEP]; beside others it has the same scores."""
    config = dataclasses.replace(SMALL, task_transform=pooling == "mean")
    head = HeadConfig(labels=("a", "b"), pooling=pooling)
    model = loaded(stored_model(config=config, head=head))
    ids, ones = np.array([[TOKENIZER.cls_id, TOKENIZER.sep_id]], np.int32), np.ones((1, 2), np.int32)
    batch = {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": ones}
    task = BertForTask(config, head, model.network.compute)
    expected = np.asarray(jax.jit(task.apply)(model.params, batch))[0]
    for texts in ([""], [TEXTS[0], "", TEXTS[1], ""]):
        scores = model.task_scores(read_texts(model, texts))
        for text, found in zip(texts, scores, strict=True):
            assert text or np.allclose(found, expected, atol=1e-5)


STATIC = variant(CONFIG, layer="none")
WORDLESS = ["", "the cat zebra sat", ("a big dog", "birds"), "", "the [MASK] dog"]


def test_static_vectors_of_a_text_are_those_of_its_words_alone():
    """Special tokens are never trained; [UNK] is. A text without words is zeros, alone and beside others."""
    model = loaded(stored_model(config=STATIC, parts=("pooler",)))
    table = np.asarray(model.params["embeddings"]["word"]["table"])
    words = [
        [table[id] for text in (texts if isinstance(texts, tuple) else (texts,)) for id in TOKENIZER.encode(text)]
        for texts in ["", "the cat zebra sat", ("a big dog", "birds"), "", "the dog"]
    ]
    assert TOKENIZER.unk_id in TOKENIZER.encode("the cat zebra sat")
    for pooling, of_words in (
        ("mean", lambda rows: np.mean(rows, axis=0)),
        ("max", lambda rows: np.max(rows, axis=0)),
        ("mean_sqrt_len", lambda rows: np.sum(rows, axis=0) / np.sqrt(len(rows))),
    ):
        expected = np.array([of_words(rows) if rows else np.zeros(16) for rows in words])
        np.testing.assert_allclose(model.embed(WORDLESS, pooling=pooling), expected, atol=1e-6)
        np.testing.assert_allclose(model.encode(WORDLESS, pooling=pooling).pooled, expected, atol=1e-6)
        alone = np.concatenate([model.embed(text, pooling=pooling) for text in WORDLESS])
        np.testing.assert_allclose(alone, expected, atol=1e-6)
    assert not model.embed("", normalize=True).any()
    mean = np.array([np.mean(rows, axis=0) if rows else np.zeros(16) for rows in words])
    kernel, bias = (np.asarray(model.params["pooler"][name]) for name in ("kernel", "bias"))
    encoding = model.encode(WORDLESS)
    np.testing.assert_allclose(encoding.pooled, np.tanh(mean @ kernel + bias), atol=1e-6)
    ids = model.encode_ids(encoding.input_ids, encoding.attention_mask)
    np.testing.assert_allclose(ids.pooled, encoding.pooled, atol=1e-6)
    np.testing.assert_allclose(layer_vectors(model, WORDLESS, "mean")[:, 0], mean, atol=1e-6)
    for call in (lambda: model.embed("a", pooling="cls"), lambda: check_vectors("cls", model)):
        with pytest.raises(UserError, match="'cls' reads the vector of .CLS., which this model has never trained; use"):
            call()


@pytest.mark.parametrize("transform", [False, True])
def test_heads_on_static_vectors_read_words_alone(transform):
    """The mean of the words, then numbers that are the same for every text without words."""
    config, head = dataclasses.replace(STATIC, task_transform=transform), HeadConfig(labels=("a", "b"))
    model = loaded(stored_model(config=config, head=head))
    features = read_texts(model, WORDLESS)
    found = np.array(model.task_scores(features))
    table = np.array(model.params["embeddings"]["word"]["table"])
    for special in set(TOKENIZER.special_ids) - {TOKENIZER.unk_id}:
        table[special] = 1e4
    model.params = {**model.params, "embeddings": {"word": {"table": table}}}
    np.testing.assert_array_equal(found, model.task_scores(features))
    np.testing.assert_array_equal(found[0], found[3])
    assert np.isfinite(found).all() and len({tuple(row) for row in found.round(5).tolist()}) == 4


def test_without_a_pooler_pooled_is_none():
    bare = loaded(stored_model(config=SMALL, parts=()))
    assert bare.encode("the cat").pooled is None and bare.encode("the cat", pooling="mean").pooled.shape == (1, 16)


@pytest.mark.parametrize(
    "parts, call, message",
    [
        ((), lambda m: m.fill_mask("the [MASK]"), "has no mlm"),
        (("mlm",), lambda m: m.next_sentence("a", "b"), "has no pooler and no next_sentence"),
        ((), lambda m: m.encode("a", pooling="pooler"), "no pooler; use cls"),
        ((), lambda m: m.predict("a"), "no task head"),
    ],
)
def test_missing_parts_are_named_where_they_are_needed(parts, call, message):
    bare = loaded(stored_model(config=SMALL, parts=parts))
    assert bare.network.parts == parts
    with pytest.raises(UserError, match=message):
        call(bare)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda m: m.encode([]), "empty list"),
        (lambda m: m.encode(["a", None]), "text 1 is None"),
        (lambda m: m.encode(3.5), "text 0 is 3.5; expected"),
        (lambda m: m.encode([("a", "b", "c")]), "tuple of two"),
        (lambda m: m.encode([["a", "b"]]), "text 0 is"),
        (lambda m: m.encode("\ud83d"), "not UTF-8"),
        (lambda m: m.encode("a", layers="first"), "'last', 'all'"),
        (lambda m: m.encode("a", layers=6), "no 6; 0 is the embeddings, 1 to 5"),
        (lambda m: m.encode("a", layers=[True]), "True"),
        (lambda m: m.next_sentence("a", None), "takes two texts"),
        (lambda m: m.encode("a", layers=None), "there is no None"),
        (lambda m: m.encode("a", layers=1.5), "there is no 1.5"),
        (lambda m: m.encode("a", pooling="sum"), "pooling='sum' must be"),
        (lambda m: m.encode("a", batch_size=0), "batch_size=0"),
        (lambda m: m.encode("a", max_length=41), "max_length=41 must be between 5 and the 40"),
        (lambda m: m.encode("a", max_length=2), "max_length=2"),
        (lambda m: m.fill_mask("a"), r"no \[MASK\]"),
        (lambda m: m.embed("a", "top"), "layers 'top'"),
        (lambda m: m.embed("a", "weighted_all"), "takes 5 numbers"),
        (lambda m: m.embed("a", "weighted_last_four", weights=[1, 2]), "weights=2 numbers, but .* takes 4"),
        (lambda m: m.embed("a", weights=[1]), "last takes None"),
        (lambda m: m.embed("a", [1, 2]), r"layers \[1, 2\]"),
        (lambda m: m.embed("a", "weighted_all", weights=1.0), r"an array of shape \[\], but .* takes 5"),
        (lambda m: m.fill_mask(["a [MASK]", 3]), "takes a text or a list of texts, each a str, not 3"),
        (lambda m: m.fill_mask(("a [MASK]", "[MASK]")), r"takes a text or a list of texts, not \(.a"),
        (lambda m: m.fill_mask([]), "empty list"),
        (lambda m: m.fill_mask(["a [MASK]", "a dog"]), r"no \[MASK\] in .a dog"),
        (lambda m: m.fill_mask(["[MASK]"], batch_size=0), "batch_size=0"),
        (lambda m: m.next_sentence([], []), "empty list"),
        (lambda m: m.next_sentence(["a"], "b"), "takes two texts"),
        (lambda m: m.next_sentence(["a"], [None]), "takes two"),
        (lambda m: m.next_sentence(["a", "b"], ["c"]), "two lists of as many"),
        (lambda m: m.embed("a", "second_to_last", "pooler"), "reads the last layer"),
        (lambda m: m.fill_mask("a [MASK]", 0), "top_k=0"),
    ],
)
def test_bad_calls_get_one_clear_line(model, call, message):
    with pytest.raises(UserError, match=message):
        call(model)


def test_states_beyond_the_memory_are_refused_before_they_are_computed(model, monkeypatch):
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 3, "SC_PAGE_SIZE": 4096}.get)  # 2,240 a text
    assert model.encode(["the cat sat"] * 5, layers="all").hidden_states[0].shape == (5, 5, 16)
    with pytest.raises(UserError, match="the states of 6 texts would take .* use embed"):
        model.encode(["the cat sat"] * 6, layers="all")


def test_recurrent_layers_have_no_attention_and_fill_no_mask():
    model = loaded(stored_model(config=variant(SMALL, layer="lstm")))
    with pytest.raises(UserError, match="recurrent .* have no attention to return"):
        model.encode("the cat", attentions=True)
    with pytest.raises(UserError, match="predicts a word from one side of it at a time"):
        model.fill_mask("the [MASK]")


def test_few_layers_and_one_segment_are_told():
    narrow = loaded(stored_model(config=dataclasses.replace(SMALL, type_vocab_size=1)))
    with pytest.raises(UserError, match="needs 4 layers and the model has 2"):
        narrow.embed("a", "concat_last_four")
    with pytest.raises(UserError, match="one segment"):
        narrow.encode(("a", "b"))


def test_a_batch_that_does_not_fit_is_answered_with_advice(model, monkeypatch):
    def too_large(self, *arguments):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8597736080 bytes.")

    monkeypatch.setattr(Compiled, "placed", too_large)
    with pytest.raises(UserError, match=r"^a batch of texts does not fit .*8597736080.*; what helps: a smaller "):
        model.encode(["some words"])
