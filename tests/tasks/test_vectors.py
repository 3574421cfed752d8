"""The task vectors: its data and their batches, what is refused, its metrics, and runs from data to `embed`."""

import dataclasses
import json
import pathlib
import types

import jax
import numpy as np
import pytest
from peer_outputs import run_with_peer
from pretrained_model import SMALL, TOKENIZER, loaded, random_texts, stored_model, write_workdir
from processes import EXHAUSTIVE
from scipy import sparse
from scipy.stats import spearmanr
from small_finetuning import Killed, assert_same_weights, killed_before
from small_pretraining import SCANNED, finetune, run_predict

import bert_jax
from bert_jax.config import EmbeddingConfig
from bert_jax.config.finetuning import FinetuneConfig, LoraConfig, PredictConfig, check_finetune, task_defaults
from bert_jax.config.heads import SingleVector, TokenVectors, WordVector
from bert_jax.config.options import with_options
from bert_jax.config.tasks import VectorDataConfig, VectorOptions
from bert_jax.config.vectors import (
    Angle,
    Cosent,
    CosineRegression,
    InfoNce,
    KlDivergence,
    MarginMse,
    SparsityConfig,
    Triplet,
)
from bert_jax.data.sequences import SharedTextBatches, TextBatches, epoch_batches, kept_apart, padded
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.finetuning import loop
from bert_jax.finetuning.loop import _check_own_positives, with_embedding
from bert_jax.formats.huggingface_export import write_huggingface
from bert_jax.pretrained.model import as_stored
from bert_jax.tasks import vectors
from bert_jax.training.metrics import read_rows

PAIRS = "query\tanswer\tnegative\tnegative_2\na cat\ta dog\tthe\tin\nthe bird\ta house\ton\tmat\n"
SCORED = "sentence1\tsentence2\tscore\na cat\ta dog\t4.5\nthe bird\ta house\t.5\n"
TAUGHT = '{"anchor": "a", "positive": "cat", "negative": "dog", "score": [3, -1e0]}\n'


def load(path: pathlib.Path, name: str, content: str, split: str = "train", **options):
    (path / name).write_text(content)
    return vectors.load("vectors", VectorDataConfig(**{split: str(path / name)}, **options), split)


def test_texts_that_are_their_own_positives_are_said_where_another_column_may_have_them(tmp_path, caplog):
    assert len(load(tmp_path, "alone.tsv", "text\na\nb\n").texts) == 1 and not caplog.records
    load(tmp_path, "more.tsv", "question\treply\na\tb\nc\td\n")
    (record,) = caplog.records
    assert "only 'question' is read, so each is its own positive; 'reply' is left out" in record.getMessage()


def features(examples, **options):
    return vectors.features(examples, TOKENIZER, VectorOptions(**{"max_length": 16} | options))


def test_columns_are_found_by_their_names(tmp_path):
    pairs = load(tmp_path, "pairs.tsv", PAIRS)
    assert pairs.texts == [["a cat", "the bird"], ["a dog", "a house"], ["the", "on"], ["in", "mat"]]
    assert pairs.scores is None and vectors.metrics(pairs)[0] == "mrr@10" and pairs.index == ["0", "1"]
    scored = load(tmp_path, "scored.csv", SCORED.replace("\t", ","))
    assert scored.scores.tolist() == [4.5, 0.5] and vectors.metrics(scored)[0] == "spearman"
    chosen = load(tmp_path, "scored.tsv", SCORED, lowest_score=4.0)
    assert (chosen.texts, chosen.scores, chosen.index) == ([["a cat"], ["a dog"]], None, ["0"])
    assert load(tmp_path, "taught.jsonl", TAUGHT).scores.tolist() == [[3, -1]]
    named = load(
        tmp_path, "pairs.tsv", PAIRS, anchor_column="answer", positive_column="query", negative_columns="negative"
    )
    assert named.texts == [["a dog", "a house"], ["a cat", "the bird"], ["the", "on"]]
    bare = load(tmp_path, "bare.tsv", "a cat\ta dog\n", anchor_column="2", positive_column="1")
    assert bare.texts == [["a dog"], ["a cat"]]


def test_several_files_are_read_in_proportion(tmp_path):
    for name, text in (("a", "a cat"), ("b", "the bird"), ("c", "the house\ta dog")):
        head = "query\tanswer" + "\tnegative" * (name == "c")
        (tmp_path / f"{name}.tsv").write_text(f"{head}\n{text}\tthe mat\n")
    together = VectorDataConfig(train=f"{tmp_path}/a.tsv, {tmp_path}/b.tsv*2")
    assert vectors.load("vectors", together, "train").texts[0] == ["a cat", "the bird", "the bird"]
    with pytest.raises(UserError, match="c.tsv, line 2: 3 texts, but .*a.tsv, line 2 has 2; files .* the same columns"):
        vectors.load("vectors", VectorDataConfig(train=f"{tmp_path}/a.tsv,{tmp_path}/c.tsv"), "train")
    for wrong in ("a.tsv*0", "a.tsv,", "a.tsv*1001"):
        with pytest.raises(UserError, match="must be files separated by commas"):
            VectorDataConfig(train=wrong, dev="dev.tsv").check()


def test_a_text_is_its_own_positive_by_dropout_alone(tmp_path):
    examples = load(tmp_path, "texts.tsv", "text\na cat\na dog\n")
    data = types.SimpleNamespace(train=types.SimpleNamespace(examples=examples))
    _check_own_positives(FinetuneConfig(), data, SMALL)
    with pytest.raises(UserError, match="by dropout alone, and there is none; give --dropout=0.1"):
        _check_own_positives(FinetuneConfig(dropout=0.0), data, SMALL)


def test_what_init_from_says_of_vectors_is_taken():
    config = dataclasses.replace(task_defaults("vectors"), init_from="model")
    given = EmbeddingConfig(pooling="cls", normalize=True, lowercase=True, query_prompt="q: ")
    found = with_embedding(config, stored_model(SMALL, embedding=given)).options.embedding
    assert found == dataclasses.replace(given, max_length=128)
    asked = dataclasses.replace(config, options=VectorOptions(pooling="max", normalize=False, query_prompt=""))
    found = with_embedding(asked, stored_model(SMALL, embedding=given)).options.embedding
    assert found == EmbeddingConfig(pooling="max", lowercase=True, max_length=128)
    with pytest.raises(UserError, match="sentence-transformers with a Dense, which cannot be trained here"):
        with_embedding(config, stored_model(SMALL, embedding=EmbeddingConfig(unsupported="a Dense")))
    with pytest.raises(UserError, match="options.dims=17, but the vectors of model have 16 features"):
        with_embedding(dataclasses.replace(config, options=VectorOptions(dims=(17,))), stored_model(SMALL))


def test_texts_become_sequences_after_their_prompts(tmp_path):
    pairs = load(tmp_path, "pairs.tsv", "query\tanswer\na cat\ta dog\na dog\ta cat\n")
    found = features(pairs, query_prompt="the ", document_prompt="A ", lowercase=True)
    texts = [[TOKENIZER.decode(ids) for ids in example] for example in found.input_ids]
    assert texts == [["[CLS] the a cat [SEP]", "[CLS] a a dog [SEP]"], ["[CLS] the a dog [SEP]", "[CLS] a a cat [SEP]"]]
    assert found.numbers.tolist() == [[0, 1], [1, 0]] and found.apart
    alone = features(load(tmp_path, "texts.tsv", "text\na cat\na dog\n"))
    assert alone.numbers.tolist() == [[0, 0], [1, 1]]  # an anchor is its own positive


BAD = [
    ("a.tsv", "one\ttwo\na\tb\n", {}, "no column anchor or query or .*among 'one', 'two'.*--data.anchor_column"),
    ("a.tsv", PAIRS, {"positive_column": "pos"}, "no column 'pos' among 'query'"),
    ("a.tsv", PAIRS, {"negative_columns": "negative, bad"}, "no column 'bad' .*--data.negative_columns"),
    ("a.tsv", "query\tnegative\na\tb\n", {}, "a 'negative' but no column positive or"),
    ("a.tsv", "query\tanswer\na\t \n", {}, "line 2: the text in column 'answer' is empty"),
    ("a.jsonl", '{"query": "a", "answer": 3}', {}, "line 1: 'answer' is 3, not text"),
    ("a.jsonl", '{"query": "a", "answer": "b"}\n{"query": "a"}', {}, "line 2: 'answer' is missing"),
    (
        "a.jsonl",
        '{"query": "a"}\n{"query": "a", "answer": "b"}',
        {},
        "line 2 has 'answer', which the first example lacks",
    ),
    (
        "a.jsonl",
        '{"query": "a", "answer": "b"}\n{"query": "a", "answer": "b", "score": 1}',
        {},
        "line 2 has 'score', which",
    ),
    ("a.jsonl", '{"query": "a", "answer": "b", "score": [1, "x"]}', {}, "the score .*is neither a number nor a list"),
    ("a.jsonl", '{"query": "a", "answer": "b", "score": 1e999}', {}, "the score inf is neither"),
    (
        "a.jsonl",
        '{"query": "a", "answer": "b", "score": [1]}\n{"query": "a", "answer": "b", "score": 1}',
        {},
        "one score, but the first example has 1 scores",
    ),
    ("a.tsv", "sentence1\tsentence2\tlabel\na\tb\tentailment\n", {}, "the score 'entailment' is neither"),
    ("a.tsv", PAIRS, {"lowest_score": 2.0}, "data.lowest_score=2 chooses pairs by one score each, and there is none"),
    (
        "a.tsv",
        SCORED,
        {"lowest_score": 9.0},
        "no training pair has a score of at least data.lowest_score=9; the highest is 4.5",
    ),
    ("a.tsv", "query\tanswer\n", {}, "a.tsv, split train, holds no example"),
    ("a.txt", PAIRS, {}, "the format of a file is determined by the end of its name, .tsv, .csv, .jsonl"),
]


@pytest.mark.parametrize("name, content, options, message", BAD)
def test_bad_examples_are_named(tmp_path, name, content, options, message):
    with pytest.raises(UserError, match=message):
        load(tmp_path, name, content, **options)


def test_a_dev_set_needs_pairs(tmp_path):
    with pytest.raises(UserError, match="no column positive or answer"):
        load(tmp_path, "dev.tsv", "text\na cat\n", "dev")
    for content, message in (
        ("anchor\tpositive\na\tb\nc\tb\n", "all dev examples have the positive 'b', which every model finds"),
        ("anchor\tpositive\tscore\na\tb\t2\nc\td\t2\n", "all dev examples have the score 2, an order of which"),
    ):
        with pytest.raises(UserError, match=message):
            features(load(tmp_path, "dev.tsv", content, "dev"))


def test_a_prompt_leaves_room_for_the_text(tmp_path):
    pairs = load(tmp_path, "pairs.tsv", PAIRS)
    features(pairs, query_prompt="the " * 13)
    with pytest.raises(
        UserError, match="options.query_prompt has 14 tokens, which leave none of options.max_length=16"
    ):
        features(pairs, query_prompt="the " * 14)


MISFITS = [
    (
        SCORED,
        InfoNce(),
        "info_nce takes texts that belong together, but the training examples have scores; give .*cosent",
    ),
    (PAIRS, Cosent(), "cosent takes scores, but the training examples have no column score or"),
    (PAIRS, Triplet(), "triplet takes an anchor, a positive and one negative, but the examples have 4 texts"),
    (SCORED, KlDivergence(), "kl takes an anchor, a positive, negatives and a list .*have 2 texts and one score"),
    (SCORED, CosineRegression(), "score 4.5, but options.loss.highest=1; give the highest"),
    ("text\na cat\na cat\n", InfoNce(), "all training examples have the text 'a cat': there is nothing to learn"),
    ("anchor\tpositive\na\tb\nc\tb\n", InfoNce(), "all training examples have the text 'b'"),
    ("anchor\tpositive\tscore\na\tb\t2\nc\td\t2\n", Angle(), "all training examples have the score 2: there is"),
    ("text\na cat\n", Cosent(), "cosent compares two texts or more, but the training examples have one"),
]


@pytest.mark.parametrize("content, loss, message", MISFITS)
def test_examples_that_a_loss_does_not_take_are_refused(tmp_path, content, loss, message):
    with pytest.raises(UserError, match=message):
        features(load(tmp_path, "train.tsv", content), loss=loss)


def test_scores_become_what_the_losses_take(tmp_path):
    taught = load(tmp_path, "taught.jsonl", TAUGHT)
    assert features(taught, loss=KlDivergence()).labels.tolist() == [[3, -1]]
    margin = dataclasses.replace(taught, scores=np.array([2.5], np.float32))
    assert features(margin, loss=MarginMse()).labels.tolist() == [[2.5, 0]]  # only the difference counts
    scored = load(tmp_path, "scored.tsv", SCORED)
    assert features(scored, loss=Cosent()).labels.tolist() == [4.5, 0.5]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"batch_size": 1}, "batch_size=1 leaves options.loss.name=info_nce nothing to compare an example with"),
        ({"options.loss.scale": 0.0}, "options.loss.scale=0.0 must be positive"),
        ({"options.loss.margin": 1.0}, "options.loss.margin=1.0 belongs to options.loss.name=triplet"),
        ({"options.dims": [8, 8]}, "options.dims=8,8 names a length twice"),
        ({"options.dims": [8, 4], "options.dim_weights": [1.0]}, "dim_weights has 1 weights for 2 options.dims"),
        ({"options.dim_weights": [1.0, 2.0]}, "dim_weights=1.0,2.0 has no effect without options.dims"),
        ({"head_dropout": 0.2}, "head_dropout=0.2 is for a head with parameters"),
        ({"features": "last"}, "features=last is for a head with parameters"),
        ({"crf": True}, "crf=True belongs to task=ner"),
        ({"distillation.teacher": "model"}, "distillation.teacher=model teaches scores of a head"),
        ({"options.doc_stride": 3}, "options.doc_stride=3 belongs to task=squad_v1"),
    ],
)
def test_options_that_cannot_be_are_refused(changes, message):
    usual = dataclasses.replace(
        task_defaults("vectors"), init_from="model", workdir="work", data=VectorDataConfig(dir="data")
    )
    check_finetune(usual)
    with pytest.raises(UserError, match=message):
        check_finetune(with_options(usual, changes))


def test_examples_with_equal_texts_go_to_different_batches():
    """As many batches, each example once, nobody moved without a reason, and no equal texts where that is possible."""
    random = np.random.default_rng(0)
    lengths = np.ones(200, np.int64)
    numbers = np.stack([random.integers(0, 60, 200), 1000 + np.arange(200)], axis=1)
    before = epoch_batches(lengths, 16, 1, 3, 0)
    batches, together = kept_apart(before, numbers)
    assert sorted(np.concatenate(batches)) == list(range(200)) and list(map(len, batches)) == [16] * 12 + [8]
    repeated = sum(len(batch) - len(set(numbers[batch, 0])) for batch in batches)
    assert repeated <= together < 20 < sum(len(batch) - len(set(numbers[batch, 0])) for batch in before)
    different = np.stack([np.arange(200), 1000 + np.arange(200)], axis=1)
    same, together = kept_apart(before, different)
    assert together == 0 and all(map(np.array_equal, same, before))
    batches, together = kept_apart(
        before, np.zeros((200, 2), np.int64)
    )  # one text: one in each batch, the rest anywhere
    assert together == 200 - 13 and sorted(np.concatenate(batches)) == list(range(200))


@pytest.mark.parametrize("kind", [TextBatches, SharedTextBatches])
def test_places_lead_to_the_texts_of_each_example(tmp_path, kind):
    texts = random_texts(42)
    rows = "".join(f"{first}\t{second}\n" for first, second in zip(texts[:21], texts[21:]))
    found = features(load(tmp_path, "pairs.tsv", "query\tanswer\n" + rows))
    more = (24,) if kind is SharedTextBatches else ()
    batches = kind(found, 8, *more, seed=1, multiple=4)
    seen = []
    for step in range(batches.steps_per_epoch):
        batch, examples = batches.batch(step), batches.examples(step)
        assert batch["weights"].tolist() == [1] * len(examples) + [0] * (8 - len(examples))
        assert len(batch["input_ids"]) % 4 == 0 and batch["places"].shape == batch["numbers"].shape == (8, 2)
        for places, example in zip(batch["places"], examples, strict=False):
            for place, ids in zip(places, found.input_ids[example], strict=True):
                if kind is SharedTextBatches:
                    row, slot = divmod(int(place), batch["text_starts"].shape[1])
                    there = batch["input_ids"][row][batch["text_ids"][row] == slot + 1]
                    assert np.flatnonzero(batch["text_ids"][row] == slot + 1)[0] == batch["text_starts"][row, slot]
                else:
                    there = batch["input_ids"][place][batch["attention_mask"][place] > 0]
                assert there.tolist() == ids.tolist()
        seen += examples.tolist()
    assert sorted(seen) == list(range(21)) and batches.steps_per_epoch == 3
    again = kind(found, 8, *more, seed=1, multiple=4)  # any step, in any order
    for name, values in again.batch(4).items():
        np.testing.assert_array_equal(values, batches.batch(4)[name])


def test_places_of_positives_are_those_of_sorted_lists(tmp_path):
    """Of equal positives one counts, and the other positives of an equal anchor do not."""
    random = np.random.default_rng(2)
    numbers = np.stack([random.integers(0, 9, 30), 100 + random.integers(0, 20, 30)], axis=1)
    of = {number: random.standard_normal(4).astype(np.float32) for number in np.unique(numbers)}
    found = vectors.ranks(
        [np.stack([of[anchor], of[positive]]) for anchor, positive in numbers.tolist()], numbers, SingleVector()
    )
    unit = {number: each / np.linalg.norm(each) for number, each in of.items()}
    for (anchor, own), place in zip(numbers.tolist(), found, strict=True):
        also = {positive for each, positive in numbers.tolist() if each == anchor} - {own}
        others = {positive for _, positive in numbers.tolist()} - also
        ordered = sorted(others, key=lambda number: -float(unit[anchor] @ unit[number]))
        assert ordered.index(own) + 1 == place
    same = vectors.ranks([np.ones((2, 4), np.float32)] * 3, np.array([[0, 3], [1, 4], [2, 5]]), SingleVector())
    assert same.tolist() == [3, 3, 3]  # a model that ignores its input finds nothing
    broken = vectors.ranks(
        [np.full((2, 4), np.nan, np.float32)] * 3, np.array([[0, 3], [1, 4], [2, 5]]), SingleVector()
    )
    assert (broken >= 3).all()  # nor does one that has diverged


def test_metrics(tmp_path):
    scored = load(tmp_path, "dev.tsv", SCORED + "in\ton\t2\n", "dev")
    random = np.random.default_rng(3)
    found = [random.standard_normal((2, 5)).astype(np.float32) for _ in range(3)]
    cosine = [one @ two / np.linalg.norm(one) / np.linalg.norm(two) for one, two in found]
    scores = vectors.score(scored, features(scored), found)
    assert scores["spearman"] == pytest.approx(spearmanr(cosine, [4.5, 0.5, 2]).statistic)
    assert scores["pearson"] == pytest.approx(np.corrcoef(cosine, [4.5, 0.5, 2])[0, 1])
    pairs = load(tmp_path, "dev.tsv", "query\tanswer\n" + "".join(f"{i}\tno {i}\n" for i in range(4)), "dev")
    near = [np.stack([row, row]) for row in np.eye(4, dtype=np.float32)]
    far = [near[0], near[1], np.stack([near[2][0], -near[2][0]]), near[3]]
    assert vectors.score(pairs, features(pairs), near) == {"mrr@10": 1.0, "accuracy@1": 1.0}
    assert vectors.score(pairs, features(pairs), far) == {"mrr@10": 3.25 / 4, "accuracy@1": 0.75}
    (file,) = vectors.write_predictions(pairs, features(pairs), far, str(tmp_path / "out"), "dev")
    assert pathlib.Path(file).read_text().splitlines()[:2] == ["index\tcosine\tplace", "0\t1.0\t1"]
    assert pathlib.Path(file).read_text().splitlines()[3] == "2\t-1.0\t4"


FILLED = TokenVectors(query_length=8, expansion="unseen")


def test_queries_are_filled_up_and_punctuation_of_documents_is_skipped(tmp_path):
    """The anchor gets [MASK] tokens, which count but are not seen; the comma of the document is seen alone."""
    pairs = load(tmp_path, "pairs.tsv", "query\tanswer\na cat,\ta cat , ran\nthe old big dog sat in the tree\ta\n")
    made = features(pairs, form=FILLED)
    (query, document), (cut, short) = made.input_ids
    mask, comma = TOKENIZER.mask_id, TOKENIZER.tokens.index(",")
    assert len(query) == len(cut) == 8 and query[5:].tolist() == [mask] * 3 and cut[-1] == TOKENIZER.sep_id
    assert made.marks[0][0].tolist() == [3] * 5 + [2] * 3
    assert made.marks[0][1].tolist() == [1 if each == comma else 3 for each in document] and comma in document
    batch = padded(made, np.arange(2), 2)
    assert batch["attention_mask"][0, 0].tolist() == [1] * 5 + [0] * 3
    assert batch["compared"].sum() == 8 + 8 + (len(document) - 1) + len(short)
    assert np.all(features(pairs, form=dataclasses.replace(FILLED, expansion="seen")).marks[0][0] == 3)


def test_sparsity_rises_with_the_square_of_the_step(tmp_path):
    rows = "".join(f"the {word}\ta {word}\n" for word in ("cat", "dog", "bird", "mat"))
    made = features(load(tmp_path, "pairs.tsv", f"query\tanswer\n{rows}"), form=WordVector())
    batches = TextBatches(made, 1, ramp_epochs=0.5)
    assert [batches.batch(step)["ramp"].tolist() for step in (0, 1, 2, 7)] == [[0.0], [0.25], [1.0], [1.0]]
    assert TextBatches(made, 1, ramp_epochs=0.0).batch(0)["ramp"] == 1


def test_other_forms_are_measured_by_their_own_similarity(tmp_path):
    """MaxSim by its definition, and dot products of sparse vectors."""
    random, numbers = np.random.default_rng(3), np.arange(8).reshape(4, 2)
    tokens = [[random.standard_normal((size, 3)) for size in sizes] for sizes in ((2, 4), (1, 3), (3, 1), (2, 2))]
    all_pairs = [[sum(max(q @ d for d in other[1]) for q in own[0]) for other in tokens] for own in tokens]
    words = [sparse.csr_matrix(np.maximum(random.standard_normal((2, 6)), 0)) for _ in range(4)]
    dots = [[own.toarray()[0] @ other.toarray()[1] for other in words] for own in words]
    for given, form, scores in ((tokens, TokenVectors(), all_pairs), (words, WordVector(), dots)):
        expected = np.array(scores)
        np.testing.assert_allclose(vectors.similarities(given, form), np.diag(expected), rtol=1e-12)
        places = 1 + np.sum(expected > np.diag(expected)[:, None], axis=1)
        assert vectors.ranks(given, numbers, form).tolist() == places.tolist()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"form": WordVector(), "loss": Cosent()}, "name=cosent compares single vectors.*info_nce, margin_mse or kl"),
        (
            {"form": TokenVectors(), "loss": InfoNce(similarity="dot")},
            "similarity=dot is not that of .*tokens.*max_sim",
        ),
        ({"form": WordVector(), "loss": KlDivergence(similarity="cosine")}, "similarity=cosine is not that of .*words"),
        ({"loss": InfoNce(similarity="max_sim"), "form": SingleVector()}, "similarity=max_sim is not that of .*single"),
        ({"form": TokenVectors(), "dims": (4, 2)}, "options.dims=4,2 is for single vectors.*tokens gives others"),
        ({"form": WordVector(), "pooling": "mean"}, "options.pooling=mean is for single vectors"),
        ({"form": WordVector(), "normalize": True}, "options.normalize=True is for single vectors"),
        ({"form": TokenVectors(size=0)}, "options.form.size=0 must be positive"),
        ({"form": TokenVectors(query_length=5)}, "options.form.query_length=5 is too short"),
        ({"form": WordVector(), "sparsity": SparsityConfig(ramp=2.0)}, "options.sparsity.ramp=2 must be a share"),
        ({"form": TokenVectors(), "sparsity": SparsityConfig(query_weight=1.0)}, "sparsity is for vectors of words"),
        ({"sparsity": SparsityConfig(query_weight=-1.0)}, "options.sparsity.query_weight=-1.0"),
    ],
)
def test_options_of_other_forms_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        VectorOptions(**options).check()


@pytest.mark.parametrize(
    "parts, changes, options, message",
    [
        (("pooler",), {}, WordVector(), "reads the head for masked words, and M has none .*pooler.*form.name=tokens"),
        ((), {"packing": "on"}, TokenVectors(), "cannot be trained with packing=on"),
        (("mlm",), {"lora": LoraConfig(rank=2)}, WordVector(), "cannot be trained with lora.rank"),
        ((), {}, dataclasses.replace(FILLED, query_length=41), "query_length=41 is longer than the 40 tokens that M"),
    ],
)
def test_models_that_cannot_make_a_form_are_refused(parts, changes, options, message):
    config = dataclasses.replace(
        task_defaults("vectors"), init_from="M", options=VectorOptions(form=options), **changes
    )
    with pytest.raises(UserError, match=message):
        with_embedding(config, stored_model(SMALL, parts))


def same_topic(count: int, seed: int, texts: int = 2) -> str:
    """TSV of sentences about the same animals and things: the second says the same of the first in another order."""
    random, rows = np.random.default_rng(seed), ["\t".join(["anchor", "positive", "negative"][:texts])]
    subjects, places = ["cat", "dog", "bird", "tree", "house"], ["mat", "tree", "house"]
    for _ in range(count):
        chosen, other = random.choice(subjects, 2, replace=False)
        place = places[random.integers(3)]
        row = [f"the {chosen} sat on the {place}", f"in the {place} a {chosen} ran", f"in the {place} a {other} ran"]
        rows.append("\t".join(row[:texts]))
    return "\n".join(rows) + "\n"


MODEL = dataclasses.replace(SMALL, attention_dropout=0.1)


def home(place: pathlib.Path) -> pathlib.Path:
    """Write pretrained/, a model with fresh weights, and pairs of sentences to train on and to find."""
    write_workdir(place / "pretrained", 0, config=MODEL)
    for name, count, seed in (("train", 96, 0), ("dev", 20, 1)):
        (place / f"{name}.tsv").write_text(same_topic(count, seed))
    return place


def run_config(place: pathlib.Path, workdir, **changes) -> FinetuneConfig:
    data = VectorDataConfig(dir=str(place))
    given = {"init_from": str(place / "pretrained"), "workdir": str(workdir), "data": data, "compute": SCANNED}
    given |= {"options": VectorOptions(max_length=16, normalize=True), "batch_size": 16, "learning_rate": 3e-3}
    return dataclasses.replace(task_defaults("vectors"), **given | {"log_every_steps": 1, "packing": "on"} | changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory with data and a model, and the configuration and results of a run on them."""
    place = home(tmp_path_factory.mktemp("vectors"))
    config = run_config(place, place / "work")
    return place, config, finetune(config).results


def test_a_run_leaves_a_model_that_embeds_as_it_was_trained(trained):
    """Its vectors are those of the predictions on dev, and its options those of `embed`."""
    place, config, results = trained
    assert results["main_metric"] == "mrr@10" and set(results["metrics"]) == {"mrr@10", "accuracy@1"}
    assert results["collapsed"] is None and results["labels"] == []
    model = bert_jax.load(place / "work")
    assert model.head is None and model.embedding == EmbeddingConfig(normalize=True, max_length=16)
    rows = [line.split("\t") for line in (place / "dev.tsv").read_text().splitlines()[1:]]
    first, second = (model.embed([row[column] for row in rows]) for column in (0, 1))
    written = (place / "work/predictions/dev/predictions_dev.tsv").read_text().splitlines()[1:]
    found = [float(line.split("\t")[1]) for line in written]
    np.testing.assert_allclose(np.sum(first * second, axis=1), found, atol=1e-5)
    with pytest.raises(UserError, match="was trained on vectors and has no task head .*embed"):
        run_predict(str(place / "work"), PredictConfig(text="a cat"))


@pytest.mark.slow
def test_a_run_learns_what_belongs_together(trained):
    """More than one in twenty, by texts in rows of their own and by parts of a batch; both learn the same."""
    place, config, _ = trained
    found = {}
    for name, changes in (("whole", {}), ("parts", {"micro_batches": 4})):
        longer = dataclasses.replace(config, workdir=str(place / name), epochs=10, packing="off", **changes)
        found[name] = finetune(longer).results
    assert found["whole"]["metrics"]["mrr@10"] > 0.5
    losses = [found[name]["runs"][0]["training_loss"] for name in found]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)  # Adam divides by tiny numbers


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, options",
    [
        ("alone", {"loss": InfoNce()}),
        ("negatives", {"loss": InfoNce(symmetric=True), "dims": (16, 4)}),
        ("cosent", {"loss": Cosent()}),
        ("kl", {"loss": KlDivergence(similarity="cosine", temperature=0.1)}),
    ],
)
def test_every_form_of_examples_is_learned(trained, tmp_path, name, options):
    """A loss that falls, from texts alone, with negatives, with scores and with those of a teacher."""
    place, config, _ = trained
    lines = same_topic(96, 3, texts=3).splitlines()
    rows = [line.split("\t") for line in lines[1:]]
    columns = {"alone": 1, "cosent": 2}.get(name, 3)
    head = ["anchor", "positive", "negative"][:columns] + (["score"] if name in ("cosent", "kl") else [])
    score = {"cosent": lambda number: [str(number % 5)], "kl": lambda number: ["[0.9, 0.1]"]}
    body = [row[:columns] + score.get(name, lambda _: [])(number) for number, row in enumerate(rows)]
    if name == "cosent":  # the other animal, with a low score
        body = [[row[0], row[1 + number % 2], str(1 - number % 2)] for number, row in enumerate(rows)]
    (tmp_path / "train.tsv").write_text("\n".join("\t".join(row) for row in [head, *body]) + "\n")
    data = VectorDataConfig(train=str(tmp_path / "train.tsv"), dev=str(place / "dev.tsv"))
    changes = {"data": data, "workdir": str(tmp_path / "work"), "epochs": 8}
    results = finetune(dataclasses.replace(config, options=VectorOptions(max_length=16, **options), **changes)).results
    (file,) = (tmp_path / "work").glob("runs/*/metrics.jsonl")
    losses = [row["loss"] for row in read_rows(file) if "loss" in row and row["kind"] == "train"]
    assert np.mean(losses[-6:]) < np.mean(losses[:6]), losses
    assert results["collapsed"] is None


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["on", *(["off"] if EXHAUSTIVE else [])])
def test_an_interrupted_run_ends_the_same(trained, tmp_path, monkeypatch, packing):
    """Killed in the second epoch, after a save: every weight is that of the run that was not."""
    _, config, _ = trained
    config = dataclasses.replace(config, epochs=2, packing=packing, save_every_steps=4)
    whole = dataclasses.replace(config, workdir=str(tmp_path / "whole"))
    finetune(whole)
    killed = dataclasses.replace(config, workdir=str(tmp_path / "killed"))
    steps = killed_before(monkeypatch, 11)
    with pytest.raises(Killed):
        finetune(killed)
    finetune(killed)
    assert steps[11:] == [8, 9, 10, 11]
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
def test_what_a_model_says_of_vectors_goes_on(trained, tmp_path):
    """From a run to its export, and from that to the next run: pooling, norm, length and prompts."""
    place, config, _ = trained
    options = VectorOptions(max_length=12, pooling="max", query_prompt="the ", document_prompt="a ")
    first = dataclasses.replace(config, workdir=str(tmp_path / "first"), options=options)
    finetune(first)
    bert_jax.convert(tmp_path / "first", tmp_path / "export", to="huggingface")
    bert_jax.convert(tmp_path / "first", tmp_path / "copy", to="bert_jax")
    expected = bert_jax.load(tmp_path / "first")
    kept = EmbeddingConfig(pooling="max", max_length=12, query_prompt="the ", document_prompt="a ")
    assert expected.embedding == kept
    texts = random_texts(5)
    for name in ("export", "copy"):
        model = bert_jax.load(tmp_path / name)
        assert model.embedding == kept
        for prompt in (None, "query", "document"):
            np.testing.assert_array_equal(model.embed(texts, prompt=prompt), expected.embed(texts, prompt=prompt))
    np.testing.assert_array_equal(
        expected.embed(texts, prompt="query"), expected.embed([f"the {text}" for text in texts])
    )
    again = VectorOptions(max_length=12, normalize=True)
    second = dataclasses.replace(
        config, workdir=str(tmp_path / "second"), init_from=str(tmp_path / "export"), options=again
    )
    finetune(second)
    assert bert_jax.load(tmp_path / "second").embedding == dataclasses.replace(kept, normalize=True)


def of_form(vectors: object) -> np.ndarray:
    """Vectors of any form as one array."""
    if isinstance(vectors, list):
        return np.concatenate(vectors)
    return vectors if isinstance(vectors, np.ndarray) else vectors.toarray()


@pytest.mark.slow
@pytest.mark.parametrize("form", [dataclasses.replace(FILLED, size=6), WordVector()])
def test_a_form_goes_on_from_a_run_to_its_export(trained, tmp_path, form):
    """A run learns, its vectors are those of its predictions, and every copy of the model makes the same."""
    place, config, _ = trained
    options = VectorOptions(form=form, max_length=16, document_prompt="the ")
    first = dataclasses.replace(
        config, workdir=str(tmp_path / "first"), options=options, packing="auto", epochs=20, micro_batches=2
    )
    results = finetune(first).results
    assert results["collapsed"] is None and results["metrics"]["mrr@10"] > 0.3
    model = bert_jax.load(tmp_path / "first")
    assert model.vector_form == form.name and model.embedding.form == form
    rows = [line.split("\t") for line in (place / "dev.tsv").read_text().splitlines()[1:]]
    pairs = [
        model.embed([row[column] for row in rows], prompt=each) for column, each in enumerate(("query", "document"))
    ]
    written = (tmp_path / "first/predictions/dev/predictions_dev.tsv").read_text().splitlines()
    assert written[0] == f"index\t{form.similarities[0]}\tplace"
    both = [[first, second] for first, second in zip(*pairs, strict=True)]
    both = [sparse.vstack(each) for each in both] if form.name == "words" else both
    found = [float(line.split("\t")[1]) for line in written[1:]]
    np.testing.assert_allclose(vectors.similarities(both, form), found, rtol=1e-4)
    bert_jax.convert(tmp_path / "first", tmp_path / "export", to="huggingface")
    theirs = {"tokens": "MultiVectorEncoder", "words": "SparseEncoder"}[form.name]
    assert f'`{theirs}("PATH").encode(texts)`' in (tmp_path / "export" / "README.md").read_text()
    model.save(tmp_path / "saved")
    second = dataclasses.replace(
        first,
        workdir=str(tmp_path / "second"),
        init_from=str(tmp_path / "export"),
        options=VectorOptions(max_length=16),
    )
    finetune(dataclasses.replace(second, epochs=1))
    assert bert_jax.load(tmp_path / "second").embedding == model.embedding
    for name in ("export", "saved"):
        again = bert_jax.load(tmp_path / name)
        assert again.embedding == model.embedding
        for prompt in (None, "query", "document"):
            given = random_texts(5)
            np.testing.assert_array_equal(*(of_form(each.embed(given, prompt=prompt)) for each in (again, model)))
    with pytest.raises(UserError, match=f"normalize are for single vectors, and those of .* are of {form.name}"):
        model.embed("a cat", normalize=True)
    assert model.embed("a cat", pooling="mean").shape == (1, 16)


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [WordVector(), TokenVectors(size=6), dataclasses.replace(FILLED, size=16), TokenVectors(size=5, query_length=9)],
)
def test_sentence_transformers_makes_the_same_vectors_of_other_forms(peer, tmp_path, form):
    """Where it is installed, by SparseEncoder and MultiVectorEncoder."""
    embedding = EmbeddingConfig(form=form, max_length=12, query_prompt="the ", document_prompt="a ")
    stored = stored_model(SMALL, ("mlm",), embedding=embedding)
    if isinstance(form, TokenVectors):
        kernel = np.random.default_rng(4).standard_normal((16, form.size)).astype(np.float32)
        arrays = {**stored.arrays, "token_vectors/kernel": StoredArray(kernel.shape, kernel.dtype, kernel.__getitem__)}
        stored = dataclasses.replace(stored, arrays=arrays).without("mlm")
    model = loaded(stored)
    (tmp_path / "export").mkdir()
    write_huggingface(as_stored(model, model.params), tmp_path / "export", "export")
    texts = [*random_texts(7), "a cat, a dog."]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    run_with_peer(peer, "make_vectors_oracle.py", str(tmp_path / "export"), str(tmp_path / "vectors.npz"))
    with np.load(tmp_path / "vectors.npz") as theirs:
        for name in ("query", "document"):
            ours = model.embed(texts, prompt=name)
            if isinstance(ours, list):
                assert [len(each) for each in ours] == theirs[f"{name}_sizes"].tolist()
            np.testing.assert_allclose(theirs[name], of_form(ours), rtol=0, atol=5e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "mean_sqrt_len"])
def test_sentence_transformers_makes_the_same_vectors(peer, tmp_path, pooling):
    """Where it is installed."""
    given = EmbeddingConfig(pooling=pooling, normalize=pooling == "mean", max_length=9, query_prompt="the ")
    model = loaded(stored_model(SMALL, ("pooler",), embedding=dataclasses.replace(given, document_prompt="a ")))
    (tmp_path / "export").mkdir()
    write_huggingface(as_stored(model, model.params), tmp_path / "export", "export")
    texts = random_texts(7)
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    run_with_peer(peer, "make_vectors_oracle.py", str(tmp_path / "export"), str(tmp_path / "vectors.npz"))
    with np.load(tmp_path / "vectors.npz") as theirs:
        for name in ("plain", "query", "document"):
            ours = model.embed(texts, prompt=None if name == "plain" else name)
            largest = np.abs(ours).max()
            np.testing.assert_allclose(theirs[name], ours, rtol=0, atol=2e-6 * max(largest, 1.0), err_msg=name)


@pytest.mark.slow
def test_devices_train_the_same(trained, tmp_path):
    """Four, each with a part of the texts and of the examples, in shared rows and in two parts."""
    _, config, _ = trained
    losses = {}
    for count in (1, 4):
        work = tmp_path / str(count)
        loop.finetune(dataclasses.replace(config, workdir=str(work), micro_batches=2), devices=jax.devices()[:count])
        (file,) = work.glob("runs/*/metrics.jsonl")
        losses[count] = [row["loss"] for row in read_rows(file) if row["kind"] == "train"]
    assert losses[4][0] == pytest.approx(losses[1][0], rel=1e-5)  # the same texts, dropout and negatives
    assert losses[4] == pytest.approx(losses[1], rel=1e-2)  # Adam divides by tiny numbers
