"""The task ranking: its examples from every form, groups that stay in one batch, runs, and CrossEncoder directories."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest
from peer_outputs import run_with_peer
from pretrained_model import SMALL, TOKENIZER, loaded, random_texts, stored_model, write_workdir
from processes import EXHAUSTIVE
from small_finetuning import Killed, assert_same_weights, killed_before
from small_pretraining import SCANNED, finetune, run_predict

import bert_jax
from bert_jax.config import HeadConfig
from bert_jax.config.finetuning import PredictConfig, check_finetune, task_defaults
from bert_jax.config.options import with_options
from bert_jax.config.ranking import BinaryLoss, LambdaLoss, ListNet, MarginLoss, SoftmaxLoss
from bert_jax.config.tasks import RankingDataConfig, RankingOptions
from bert_jax.data.sequences import GroupBatches, SharedGroupBatches
from bert_jax.errors import UserError
from bert_jax.finetuning import loop
from bert_jax.formats.huggingface_export import write_huggingface
from bert_jax.pretrained.model import as_stored
from bert_jax.tasks import ranking
from bert_jax.tools.search.search import open_reranker

LISTS = '{"query": "a cat", "documents": ["the cat", "a dog", "the"], "labels": [2, 0, 1]}\n'
MINED = '{"anchor": "a cat", "positive": "the cat", "negative_1": "a dog", "negative_2": "the"}\n'
PAIRS = "query_id\tquery\tdocument\tlabel\n7\ta cat\tthe cat\t1\n8\ta dog\ta dog\t1\n7\ta cat\tthe house\t0\n"


def load(path: pathlib.Path, name: str, content: str, split: str = "train", **options) -> ranking.RankingExamples:
    (path / name).write_text(content)
    return ranking.load("ranking", RankingDataConfig(**{split: str(path / name)}, **options), split)


def features(examples: ranking.RankingExamples, **options):
    return ranking.features(examples, TOKENIZER, RankingOptions(**{"max_length": 16} | options))


def test_a_row_has_a_list_of_documents_or_an_answer_and_others_or_one_document(tmp_path):
    lists = load(tmp_path, "lists.jsonl", LISTS)
    assert (lists.queries, lists.documents) == (["a cat"], [["the cat", "a dog", "the"]])
    assert lists.grades == [[2, 0, 1]] and lists.given
    mined = load(tmp_path, "mined.jsonl", MINED)
    assert mined.documents == lists.documents and mined.grades == [[1, 0, 0]] and not mined.given
    pairs = load(tmp_path, "pairs.tsv", PAIRS)
    assert pairs.documents == [["the cat", "the house"], ["a dog"]] and pairs.grades == [[1, 0], [1]]
    unnamed = load(tmp_path, "named.tsv", PAIRS.replace("query_id", "other"))  # the query itself makes the group
    assert unnamed.documents == pairs.documents
    found = features(pairs)
    assert found.in_epoch == 2 and found.starts.tolist() == [0, 2, 3] and found.labels.tolist() == [1, 0, 1]
    rows = [("a cat", ["the cat", "a dog", "the"], [2, 0, 1]), ("a dog", "a dog", 1), ("a cat", "the cat", "a dog")]
    given = [ranking.load("ranking", RankingDataConfig(), "train", given={"train": [row]}) for row in rows]
    assert [each.grades for each in given] == [[[2, 0, 1]], [[1]], [[1, 0]]]
    taught = load(tmp_path, "taught.jsonl", MINED.replace("}", ', "scores": [3.5, -1, 0]}'))
    assert taught.grades == [[3.5, -1, 0]] and taught.given
    dev = load(tmp_path, "dev.jsonl", MINED.replace("}", ', "scores": [3.5, -1, 0]}'), "dev")
    assert dev.grades == [[1, 0, 0]]  # a teacher's scores say nothing of what is relevant


BAD = [
    ("a.jsonl", '{"query": "a", "text": "b"}', "no column documents or document .* name one with --data.document_col"),
    ("a.tsv", "query\tdocument\na\tb\n", "line 2: the grade is missing; give a column labels or .*bert-jax mine"),
    ("a.jsonl", LISTS.replace("[2, 0, 1]", "[2, 0]"), "line 1: 3 documents, but 2 numbers in 'labels'"),
    ("a.jsonl", '{"query": "a", "documents": [], "labels": []}', "the list 'documents' is empty"),
    ("a.jsonl", LISTS.replace('"the"]', '""]'), "the text in column 'documents' is empty"),
    ("a.jsonl", LISTS.replace('"the"]', "3]"), "'documents' is 3, not text"),
    ("a.jsonl", LISTS.replace("}", ', "negative": "x"}'), "'documents' is a list, and 'negative' has more"),
    ("a.tsv", PAIRS.replace("\t0\n", "\thigh\n"), "the score 'high' is neither .* --data.label_column"),
    ("a.tsv", PAIRS.replace("8\ta dog", "7\ta dog"), "the query 'a dog' has the id '7' of another one, 'a cat'"),
    ("a.jsonl", MINED + MINED.replace("}", ', "negative_3": "x"}'), "has 'negative_3', which the first example lacks"),
    ("a.tsv", "query\tdocument\tlabel\n", "split train, holds no example"),
]


@pytest.mark.parametrize("name, content, message", BAD)
def test_bad_examples_are_named(tmp_path, name, content, message):
    with pytest.raises(UserError, match=message):
        load(tmp_path, name, content)


def test_what_a_loss_or_a_measure_cannot_take_is_refused(tmp_path):
    lists, mined = load(tmp_path, "lists.jsonl", LISTS), load(tmp_path, "mined.jsonl", MINED)
    alike = load(tmp_path, "alike.jsonl", LISTS.replace("[2, 0, 1]", "[1, 1, 1]"))
    for examples, loss, message in [
        (lists, BinaryLoss(), "has the grade 2, but options.loss.name=binary takes 0 to options.loss.highest=1"),
        (mined, MarginLoss(), "margin_mse learns the scores of a teacher, but .* no column labels or"),
        (alike, LambdaLoss(), "graded alike .the first has 1.: there is nothing to learn"),
        (alike, BinaryLoss(), "graded alike"),
        (dataclasses.replace(mined, documents=[["x"] * 1001]), ListNet(), "has 1,001 documents, .* at most 1,000 are"),
    ]:
        with pytest.raises(UserError, match=message):
            features(examples, loss=loss)
    for grades, message in (("[0.5, 0, 1]", "the grade 0.5 is no whole number"), ("[0, 0, 0]", "no document of dev")):
        with pytest.raises(UserError, match=message):
            load(tmp_path, "dev.jsonl", LISTS.replace("[2, 0, 1]", grades), "dev")
    usual = dataclasses.replace(
        task_defaults("ranking"), init_from="model", workdir="work", data=RankingDataConfig(dir="data")
    )
    check_finetune(usual)
    for changes, message in (
        ({"options.loss.highest": 0.0}, "options.loss.highest=0.0 must be positive"),
        ({"options.loss.name": "lambda", "options.loss.top": -1}, "options.loss.top=-1 must be a number of places"),
        ({"options.loss.mu": 2.0}, "options.loss.mu=2.0 belongs to options.loss.name=lambda"),
        ({"options.loss.name": "cosent"}, "cosent"),
        ({"distillation.teacher": "model"}, "distillation.teacher=model teaches the scores of single examples"),
    ):
        with pytest.raises(UserError, match=message):
            check_finetune(with_options(usual, changes))


@pytest.mark.parametrize("kind", [GroupBatches, SharedGroupBatches])
def test_a_group_is_whole_in_one_batch(tmp_path, kind):
    """Of 1 to 5 documents each; places lead to the tokens, labels and members belong to them."""
    texts, random = random_texts(60), np.random.default_rng(0)
    sizes = random.integers(1, 6, 21)
    lines = [
        json.dumps({"query": texts[n], "documents": random.choice(texts, size).tolist(), "labels": [*range(size)]})
        for n, size in enumerate(sizes.tolist())
    ]
    found = features(load(tmp_path, "lists.jsonl", "\n".join(lines)), loss=ListNet())
    more = (24,) if kind is SharedGroupBatches else ()
    batches, seen = kind(found, 8, *more, seed=1, multiple=4), []
    for step in range(batches.steps_per_epoch):
        batch, groups = batches.batch(step), batches.groups(step)
        assert batch["weights"].tolist() == [1] * len(groups) + [0] * (8 - len(groups))
        assert len(batch["input_ids"]) % 4 == 0 and batch["places"].shape == (8, 5)
        assert batch["members"].sum(axis=1).tolist() == [*sizes[groups].tolist(), *[0] * (8 - len(groups))]
        for row, group in enumerate(groups.tolist()):
            for number, place in enumerate(batch["places"][row, : sizes[group]].tolist()):
                assert batch["labels"][row, number] == number
                ids = found.input_ids[found.starts[group] + number]
                if kind is SharedGroupBatches:
                    r, slot = divmod(place, batch["text_starts"].shape[1])
                    there = batch["input_ids"][r][batch["text_ids"][r] == slot + 1]
                else:
                    there = batch["input_ids"][place][batch["attention_mask"][place] > 0]
                assert there.tolist() == ids.tolist()
        seen += groups.tolist()
    assert sorted(seen) == list(range(21)) and batches.steps_per_epoch == 3
    for name, values in kind(found, 8, *more, seed=1, multiple=4).batch(4).items():  # any step, in any order
        np.testing.assert_array_equal(values, batches.batch(4)[name])


def test_dev_is_measured_by_the_order_of_the_documents_of_each_query(tmp_path):
    """Grades 2, 0, 1 in the order 0, 1, 2 from the best, and an answer that ties with the two others: it comes last."""
    dev = load(tmp_path, "dev.jsonl", LISTS + LISTS.replace("[2, 0, 1]", "[1, 0, 0]"), "dev")
    found = ranking.score(dev, features(dev), [np.float32(each) for each in (3, 1, 2, 0, 0, 0)])
    assert found == pytest.approx({"ndcg@10": (1 + 0.5) / 2, "mrr@10": (1 + 1 / 3) / 2, "map": (1 + 1 / 3) / 2})
    scores = [np.float32(each) for each in (1, 3, 2, 3, 2, 1)]
    found = ranking.score(dev, features(dev), scores)
    first = (1 / np.log2(3) + 2 / 2) / (2 + 1 / np.log2(3))
    assert found == pytest.approx({"ndcg@10": (first + 1) / 2, "mrr@10": 0.75, "map": (0.5 * (1 / 2 + 2 / 3) + 1) / 2})
    (file,) = ranking.write_predictions(dev, features(dev), scores, str(tmp_path / "out"), "dev")
    written = pathlib.Path(file).read_text().splitlines()
    assert written[:3] == ["query\tdocument\trank\tscore", "0\t1\t1\t3.0", "0\t2\t2\t2.0"] and len(written) == 7


def answers(count: int, seed: int) -> str:
    """Lines of queries about an animal, with two to four sentences, of which the first says where it is."""
    random, lines = np.random.default_rng(seed), []
    subjects = ["cat", "dog", "bird", "tree", "house"]
    for _ in range(count):
        asked, *others = random.permutation(subjects)[: random.integers(2, 5)].tolist()
        row = {"query": f"where is the {asked}", "positive": f"the {asked} sat on the mat"}
        lines.append(json.dumps(row | {f"negative_{n}": f"the {each} ran" for n, each in enumerate(others)}))
    return "\n".join([max(lines, key=len), *lines]) + "\n"  # the first has every column


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory with data and a model, and the configuration and results of a run on them."""
    place = tmp_path_factory.mktemp("ranking")
    write_workdir(place / "pretrained", 0, config=dataclasses.replace(SMALL, attention_dropout=0.1))
    for name, count, seed in (("train", 64, 0), ("dev", 16, 1)):
        (place / f"{name}.jsonl").write_text(answers(count, seed))
    config = dataclasses.replace(
        task_defaults("ranking"),
        init_from=str(place / "pretrained"),
        workdir=str(place / "work"),
        data=RankingDataConfig(dir=str(place)),
        compute=SCANNED,
        options=RankingOptions(max_length=16, loss=SoftmaxLoss()),
        epochs=8,
        learning_rate=3e-3,
    )
    return place, config, finetune(config).results


@pytest.mark.slow
def test_a_run_leaves_a_model_that_ranks(trained):
    """As predictions of pairs, as a re-ranker, by `bert-jax predict`, and after an export; the scores are equal."""
    place, _, results = trained
    assert results["metrics"]["ndcg@10"] > 0.95 and set(results["metrics"]) == {"ndcg@10", "mrr@10", "map"}
    assert results["collapsed"] is None
    model, documents = bert_jax.load(place / "work"), ["the dog ran", "the cat ran"]
    scores = model.predict([("where is the cat", each) for each in documents])
    reranker = open_reranker(str(place / "work"), "", 32)
    np.testing.assert_allclose(reranker.scores("where is the cat", documents), scores, rtol=1e-6)
    bert_jax.convert(place / "work", place / "export", to="huggingface")
    exported = json.loads((place / "export" / "config.json").read_text())
    assert exported["sentence_transformers"] == {"activation_fn": "torch.nn.modules.linear.Identity"}
    again = bert_jax.load(place / "export").predict([("where is the cat", each) for each in documents])
    np.testing.assert_allclose(again, scores, rtol=1e-5)
    said = run_predict(
        str(place / "work"),
        PredictConfig(input=str(place / "dev.jsonl"), split="dev", output=str(place / "out.tsv")),
    )
    assert said == pytest.approx(results["metrics"])
    written = [place / "out.tsv", place / "work/predictions/dev/predictions_dev.tsv"]
    (theirs, ours) = ([line.split("\t") for line in file.read_text().splitlines()[1:]] for file in written)
    np.testing.assert_allclose(np.array(theirs, np.float64), np.array(ours, np.float64), rtol=1e-5)
    plain = PredictConfig(text="where is the cat\tthe dog ran", output=str(place / "plain.tsv"))
    run_predict(str(place / "work"), plain)
    assert float((place / "plain.tsv").read_text().split()[-1]) == pytest.approx(scores[0], rel=1e-5)
    with pytest.raises(UserError, match="is a single text, but .* was fine-tuned on pairs"):
        model.predict(["where is the cat"])


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["on", *(["off"] if EXHAUSTIVE else [])])
def test_an_interrupted_run_ends_the_same(trained, tmp_path, monkeypatch, packing):
    """Killed in the second epoch, after a save: every weight is that of the run that was not."""
    _, config, _ = trained
    config = dataclasses.replace(config, epochs=2, packing=packing, save_every_steps=4)
    finetune(dataclasses.replace(config, workdir=str(tmp_path / "whole")))
    killed = dataclasses.replace(config, workdir=str(tmp_path / "killed"))
    steps = killed_before(monkeypatch, 8)
    with pytest.raises(Killed):
        finetune(killed)
    finetune(killed)
    assert steps[8:] and steps[8] < 7, steps  # it goes on from the save, not from where it was killed
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
def test_parts_and_devices_train_the_same(trained, tmp_path):
    """In parts of a batch, and on four devices with a part of the sequences and of the groups each."""
    _, config, _ = trained
    losses = {}
    for name, parts, count in (("whole", 1, 1), ("parts", 4, 1), ("devices", 2, 4)):
        work = tmp_path / name
        changed = dataclasses.replace(config, workdir=str(work), micro_batches=parts, epochs=1, packing="on")
        loop.finetune(changed, devices=jax.devices()[:count])
        (file,) = work.glob("runs/*/metrics.jsonl")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        losses[name] = [row["loss"] for row in rows if row["kind"] == "train"]
    for each in losses.values():
        np.testing.assert_allclose(each, losses["whole"], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["identity", "sigmoid"])
def test_sentence_transformers_gives_the_same_scores(peer, tmp_path, activation):
    """Where it is installed."""
    head = HeadConfig(kind="regression", activation=activation)
    model = loaded(stored_model(SMALL, ("pooler", "head"), head=head))
    (tmp_path / "export").mkdir()
    write_huggingface(as_stored(model, model.params), tmp_path / "export", "export")
    texts = random_texts(8)
    pairs = list(zip(texts[:4], texts[4:], strict=True))
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    run_with_peer(peer, "make_ranking_losses_oracle.py", str(tmp_path / "export"), str(tmp_path / "scores.npy"))
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), model.predict(pairs), rtol=0, atol=2e-6)
