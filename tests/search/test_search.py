"""The index of a corpus and what finds documents in it, next to whole rankings in NumPy."""

import dataclasses
import importlib.util
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
from command_lines import refusal, succeed
from pretrained_model import CONFIG, loaded, random_texts, stored_model, write_workdir
from scipy import sparse

import bert_jax
from bert_jax.config import HeadConfig
from bert_jax.config.search import (
    ExactSearch,
    FaissFlat,
    FaissHnsw,
    FaissIvf,
    HammingSearch,
    IndexConfig,
    MineConfig,
    SearchConfig,
)
from bert_jax.errors import UserError
from bert_jax.files import sealed, unsealed
from bert_jax.tasks import ranking
from bert_jax.tools.search import engines, search
from bert_jax.tools.search import index as indices
from bert_jax.tools.search.beir import Document
from bert_jax.tools.search.vectors import SignForm, SingleForm

SMALL = dataclasses.replace(CONFIG, num_layers=1)
TEXTS = random_texts(45)
QUERIES = {f"q{number}": text for number, text in enumerate(random_texts(5, seed=1))}
JUDGED = {"q0": {"d3": 2, "d7": 1, "d9": 0}, "q1": {"d1": 1}, "q3": {"d44": 1, "d2": -1}}
HEADER = "query-id\tcorpus-id\tscore\n"
without_bm25 = importlib.util.find_spec("bm25s") is None
needs_bm25 = pytest.mark.skipif(without_bm25, reason="bm25s is of the extra `search`")
needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="FAISS is of the extra `search`")


def write_objects(file: pathlib.Path, texts: dict[str, str]) -> None:
    file.write_text("".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in texts.items()))


def options(place: pathlib.Path, **changes) -> IndexConfig:
    given = {"model": str(place / "model"), "output": str(place / "index"), "block": 16, "batch_size": 8}
    return IndexConfig(**given | changes)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> pathlib.Path:
    """A directory with a model, a collection and its index. No test may change any of it."""
    place = tmp_path_factory.mktemp("search")
    write_workdir(place / "model", 1, config=SMALL)
    write_objects(place / "corpus.jsonl", {f"d{number}": text for number, text in enumerate(TEXTS)})
    write_objects(place / "queries.jsonl", QUERIES)
    rows = [f"{query}\t{name}\t{score}\n" for query, judged in JUDGED.items() for name, score in judged.items()]
    (place / "qrels.tsv").write_text(HEADER + "".join(rows))
    indices.run_index(str(place), options(place))
    return place


@pytest.fixture(scope="module")
def index(place) -> bert_jax.SearchIndex:
    """That index, opened; its model is loaded once."""
    return bert_jax.SearchIndex(place / "index")


def whole_ranking(queries: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    products = queries.astype(np.float64) @ vectors.astype(np.float64).T
    order = np.argsort(-products, axis=1, kind="stable")
    return np.take_along_axis(products, order, axis=1), order


@pytest.mark.parametrize("dtype, count, most", [(np.float32, 300, 10), (np.float16, 5, 37)])
def test_exact_search_is_the_whole_ranking(dtype, count, most):
    """Small whole numbers, so that every product is exact and many are equal: of those the first document counts."""
    random = np.random.default_rng(0)
    vectors = random.integers(-2, 3, (37, 4)).astype(dtype)
    queries = random.integers(-2, 3, (count, 4)).astype(np.float32)
    scores, numbers = engines.exact(SingleForm(), [vectors[:16], vectors[16:32], vectors[32:]], queries, most)
    expected, order = whole_ranking(queries, vectors)
    np.testing.assert_array_equal(scores, expected[:, :most])
    np.testing.assert_array_equal(numbers, order[:, :most])
    assert engines.exact(SingleForm(), [vectors], queries[:1], 99)[1].tolist() == order[:1].tolist()


def test_an_index_has_the_documents_and_their_vectors(place, index):
    assert len(index) == 45 and index.record.width == 16
    assert [each.name for each in sorted((place / "index").iterdir())] == [
        *("documents.jsonl", "ids.npy", "index.json", "offsets.npy", "vectors")
    ]
    assert [len(block) for block in index.vectors] == [16, 16, 13]
    assert [(each.id, each.whole) for each in index.documents()] == [(f"d{n}", text) for n, text in enumerate(TEXTS)]
    assert index.numbers(["d44", "no", "d3"]) == {"d44": 44, "d3": 3}
    expected = index.model.embed(TEXTS, normalize=True)
    np.testing.assert_allclose(np.concatenate(list(index.vectors)), expected, atol=2e-6)  # batches differ
    np.testing.assert_array_equal(index.vectors_of([17, 44])[1], index.vectors[2][12])


def test_a_search_finds_what_numpy_finds(index):
    queries = list(QUERIES.values())
    vectors = index.embed(queries)
    scores, order = whole_ranking(vectors, np.concatenate(list(index.vectors)))
    hits = index.search(queries, top=4)
    np.testing.assert_allclose([[hit.score for hit in row] for row in hits], scores[:, :4], atol=1e-6)
    assert [[hit.id for hit in row] for row in hits] == [[f"d{number}" for number in row[:4]] for row in order]
    best = index.search(TEXTS[8], top=1)
    assert (best[0].text, round(best[0].score, 5)) == (TEXTS[8], 1.0)


def test_queries_and_documents_get_the_prompts_of_the_model(index, monkeypatch):
    prompts = dataclasses.replace(index.model.embedding, query_prompt="find: ", document_prompt="text: ")
    form = {"pooling": index.record.pooling, "normalize": True, "max_length": index.record.max_length}
    expected = index.model.embed(["find: a", "text: a"], **form)
    monkeypatch.setattr(index.model, "embedding", prompts)
    documents = indices.embedded(index.model, index.record, ["a"], 32)
    np.testing.assert_allclose([*index.embed(["a"]), *documents], expected, atol=1e-6)


def test_an_interrupted_indexing_goes_on_after_its_last_whole_block(place, index, tmp_path, monkeypatch):
    output = tmp_path / "index"
    monkeypatch.setattr(indices, "load", lambda path: index.model)
    real, whole, calls = os.replace, indices.embedded, []

    def dies(file, place):
        if str(place).endswith("00001.npy"):
            raise KeyboardInterrupt
        real(file, place)

    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(KeyboardInterrupt):
        indices.run_index(str(place), options(place, output=str(output)))
    monkeypatch.setattr(os, "replace", real)
    with pytest.raises(UserError, match="was interrupted; the command that began it finishes it"):
        bert_jax.SearchIndex(output)
    with pytest.raises(UserError, match="interrupted index with dtype=float32, not float16; go on with the same"):
        indices.run_index(str(place), options(place, output=str(output), dtype="float16"))
    first = (output / "vectors" / "00000.npy").stat().st_mtime_ns
    monkeypatch.setattr(indices, "embedded", lambda *given: calls.append(len(given[2])) or whole(*given))
    indices.run_index(str(place), options(place, output=str(output)))
    assert sum(calls) == 45 - 16 and (output / "vectors" / "00000.npy").stat().st_mtime_ns == first
    for name in ("index.json", "documents.jsonl", "vectors/00000.npy", "vectors/00002.npy"):
        assert (output / name).read_bytes() == (place / "index" / name).read_bytes()


def test_what_is_refused_leaves_nothing_and_changes_nothing(place, tmp_path):
    twice = tmp_path / "twice.jsonl"
    write_objects(twice, {"a": "the cat", "b": "the dog"})
    twice.write_text(twice.read_text() + '{"_id": "a", "text": "the bird"}\n')
    with pytest.raises(UserError, match="documents 1 and 3 have the same id 'a'"):
        indices.run_index(str(twice), options(place, output=str(tmp_path / "new" / "index")))
    with pytest.raises(UserError, match=r"max_length=9999 must be between 5 and the \d+ positions of the model"):
        indices.run_index(str(place), options(place, output=str(tmp_path / "new" / "index"), max_length=9_999))
    assert not (tmp_path / "new").exists()
    with pytest.raises(UserError, match="already holds an index; give another directory, or --overwrite"):
        indices.run_index(str(place), options(place))
    with pytest.raises(UserError, match="holds corpus.jsonl and is no index"):
        indices.run_index(str(place), options(place, output=str(place), overwrite=True))
    before = sorted(os.listdir(place / "index"))
    with pytest.raises(UserError, match="the same id"):  # the old one stays until the new one can be made
        indices.run_index(str(twice), options(place, overwrite=True))
    assert sorted(os.listdir(place / "index")) == before


def damaged(place: pathlib.Path, copy: pathlib.Path, name: str, contents: bytes) -> bert_jax.SearchIndex:
    shutil.copytree(place / "index", copy)
    (copy / name).write_bytes(contents)
    return bert_jax.SearchIndex(copy, model=str(place / "model"))


def test_a_damaged_index_is_refused(place, index, tmp_path):
    record = (place / "index" / "index.json").read_bytes()
    with pytest.raises(UserError, match="its contents have changed since it was written"):
        damaged(place, tmp_path / "a", "index.json", record.replace(b'"count": 45', b'"count": 44'))
    with pytest.raises(UserError, match="ids.npy cannot be read"):
        damaged(place, tmp_path / "b", "ids.npy", b"\x80\x04N.")  # a pickle
    cut = (place / "index" / "vectors" / "00001.npy").read_bytes()[:-50]
    with pytest.raises(UserError, match="00001.npy cannot be read"):
        damaged(place, tmp_path / "c", "vectors/00001.npy", cut).nearest(np.zeros((1, 16), np.float32))
    with pytest.raises(UserError, match="cannot be read: it is no array of NumPy, or not the whole of it; make"):
        damaged(place, tmp_path / "e", "offsets.npy", b"no array")
    documents = (place / "index" / "documents.jsonl").read_bytes()
    with pytest.raises(UserError, match="documents.jsonl is damaged at byte 0"):
        list(damaged(place, tmp_path / "d", "documents.jsonl", b"\n" * len(documents)).documents())
    with pytest.raises(UserError, match="documents.jsonl is gone, or not the file that was written; make the index"):
        damaged(place, tmp_path / "f", "documents.jsonl", documents[:-1])
    with pytest.raises(UserError, match=r"vectors of queries have the shape \[1, 3\]; expected \[texts, 16\]"):
        index.nearest(np.zeros((1, 3), np.float32))
    with pytest.raises(UserError, match="is not an index: it has no index.json; make one"):
        bert_jax.SearchIndex(tmp_path)


def test_an_index_that_does_not_say_its_form_has_single_vectors(place, tmp_path):
    copy = shutil.copytree(place / "index", tmp_path / "index")
    values = unsealed(json.loads((copy / "index.json").read_text()))
    del values["form"]
    (copy / "index.json").write_text(json.dumps(sealed(values)))
    assert bert_jax.SearchIndex(copy).record == indices.read_index(place / "index")
    (copy / "index.json").write_text(json.dumps(sealed(values | {"form": "words"})))
    with pytest.raises(UserError, match="00000.starts.npy cannot be read: No such file"):
        bert_jax.SearchIndex(copy).nearest(sparse.csr_matrix((1, 16), dtype=np.float32))
    (copy / "index.json").write_text(json.dumps(sealed(values | {"form": "pairs"})))
    with pytest.raises(UserError, match="form='pairs' must be one of single, tokens, words"):
        bert_jax.SearchIndex(copy)


def test_an_index_made_by_another_model_is_refused(place, tmp_path):
    write_workdir(tmp_path, 2, config=SMALL)
    with pytest.raises(UserError, match="is not the model that made .*: its fingerprint is .*; give the one that did"):
        bert_jax.SearchIndex(place / "index", model=str(tmp_path)).search("the cat")
    model = bert_jax.load(place / "model")
    before = model.fingerprint
    model.embedding = dataclasses.replace(model.embedding, document_prompt="passage: ")
    assert model.fingerprint != before


@pytest.fixture
def opened_once(index, monkeypatch):
    """Commands on that index find it open, with its model and programs."""
    monkeypatch.setattr(search, "SearchIndex", lambda path, **given: index)


def test_ways_to_search_are_measured(place, opened_once, tmp_path, capsys):
    """The run that is written has the measures that are printed, by another road: its lines."""
    words = [place / "index", f"--queries={place}/queries.jsonl", f"--qrels={place}/qrels.tsv", "--bm25=False"]
    succeed("search", *words, f"--output={tmp_path}/results")
    results = json.loads((tmp_path / "results" / "results.json").read_text())
    run: dict[str, dict[str, float]] = {}
    for line in (tmp_path / "results" / "vectors.tsv").read_text().splitlines():
        query, _, document, rank, score, _ = line.split("\t")
        run.setdefault(query, {})[document] = float(score)
        assert int(rank) == len(run[query])
    assert results["measures"]["vectors"] == pytest.approx(ranking.evaluated(JUDGED, run))
    assert {*run} == {*JUDGED} and {len(found) for found in run.values()} == {45} and results["queries"] == 3
    assert f"{100 * results['measures']['vectors']['ndcg@10']:.2f}" in capsys.readouterr().out
    assert "already has results.json" in refusal(capsys, "search", *words, f"--output={tmp_path}/results")


def test_one_query(place, opened_once, capsys):
    succeed("search", place / "index", TEXTS[4], "--top=2")
    printed = capsys.readouterr().out
    assert "d4" in printed and "1.0000" in printed and TEXTS[4][:20] in printed


def test_a_document_gives_no_commands_to_the_terminal(place, index, monkeypatch, capsys):
    monkeypatch.setattr(index, "documents", lambda numbers: [Document("a\x1b[2Jb", "", "\x1b]0;title\x07cats")])
    search._answer(index, "the cat", SearchConfig(top=1, show="vectors"))
    printed = capsys.readouterr().out
    assert "a�[2Jb" in printed and "�]0;title�cats" in printed and "\x1b" not in printed


class Judge:
    """In place of a model on pairs: documents that have many of the query's words, and few others, come first."""

    def __init__(self, *given):
        pass

    def scores(self, query, documents):
        return np.array([len({*query.split()} & {*each.split()}) - 0.01 * len(each) for each in documents])


def test_reranking_sorts_the_best_documents_again(place, index, monkeypatch):
    monkeypatch.setattr(search, "open_reranker", Judge)
    config = SearchConfig(queries="x", bm25=False, rerank="y", rerank_top=7)
    ways = search._ways(index, list(QUERIES.values()), config, 20)
    for query, (_, first), (scores, second) in zip(QUERIES.values(), ways["vectors"], ways["reranked"]):
        assert sorted(first[:7]) == sorted(second[:7]) and first[7:].tolist() == second[7:].tolist()
        assert (np.diff(scores) <= 0).all() and scores[7] <= scores[6] - 1 and len(second) > 7
        assert second[0] == max(first[:7], key=lambda number: Judge().scores(query, [TEXTS[number]])[0])


def test_a_model_on_pairs_gives_the_probability_of_a_class_or_a_number(monkeypatch):
    def reranker(head, label=""):
        stored = stored_model(SMALL, head=head)
        monkeypatch.setattr(search, "load", lambda path: loaded(stored))
        return search.open_reranker("model", label, 32)

    classes = HeadConfig(labels=("no", "yes"))
    with pytest.raises(UserError, match="has the classes no, yes, not 1; say which .* --rerank_label"):
        reranker(classes)
    with pytest.raises(UserError, match="has a head for tagging; give a model that was fine-tuned on pairs"):
        reranker(HeadConfig(kind="tagging", labels=("O", "B")))
    with pytest.raises(UserError, match="rerank_label=yes: model gives a number"):
        reranker(HeadConfig(kind="regression"), "yes")
    found = reranker(classes, "yes")
    (expected,) = found.model.predict([("the cat", "a dog")])
    np.testing.assert_allclose(found.scores("the cat", ["a dog"]), [expected.probabilities["yes"]], rtol=1e-6)


def test_hard_negatives(place, index, opened_once, tmp_path):
    """Next to the definition: near, of ranks among what is not relevant, below the positive, of another text."""
    given = dict(queries=f"{place}/queries.jsonl", qrels=f"{place}/qrels.tsv", output=f"{tmp_path}/mined.jsonl")
    config = MineConfig(**given, negatives=2, first_rank=3, last_rank=30, margin=0.01)
    count = search.run_mine(f"{place}/index", config)
    rows = [json.loads(line) for line in (tmp_path / "mined.jsonl").read_text().splitlines()]
    vectors = np.concatenate(list(index.vectors))
    expected = []
    for query, judged in JUDGED.items():
        positives = [int(name[1:]) for name, score in judged.items() if score > 0]
        products = vectors @ index.embed([QUERIES[query]])[0]
        ranks = [number for number in np.argsort(-products, kind="stable") if number not in positives][2:30]
        for positive in positives:
            near = [number for number in ranks if products[number] <= products[positive] - 0.01]
            near = [TEXTS[number] for number in near if TEXTS[number] not in {TEXTS[each] for each in positives}][:2]
            if len(near) == 2:
                row = {"anchor": QUERIES[query], "positive": TEXTS[positive]}
                expected.append(row | {"negative_1": near[0], "negative_2": near[1]})
    assert rows == expected and count == len(rows) > 0
    with pytest.raises(UserError, match="exists; give another file, or --overwrite"):
        search.run_mine(f"{place}/index", config)
    with pytest.raises(UserError, match="none of 4 pairs .* has 2 negatives at the ranks 3 to 30 that score 2.5 below"):
        search.run_mine(f"{place}/index", dataclasses.replace(config, output=f"{tmp_path}/no", margin=2.5))
    with pytest.raises(UserError, match="first_rank=46, but .*index has 45 documents; give a lower one"):
        beyond = dataclasses.replace(config, output=f"{tmp_path}/no", first_rank=46, last_rank=60)
        search.run_mine(f"{place}/index", beyond)


def test_judgements_of_another_corpus_are_refused(place, index, tmp_path):
    (tmp_path / "qrels.tsv").write_text(f"{HEADER}q0\td45\t1\n")
    with pytest.raises(UserError, match="a judgement of the document 'd45', which is not in"):
        search.read_judgements(str(tmp_path / "qrels.tsv"), QUERIES, index)


@pytest.mark.parametrize(
    "options, says",
    [
        (["cats", "--queries=x"], "give one of QUERY, a text in quotation marks, and --queries=FILE, not both"),
        ([], "give one of QUERY, a text in quotation marks, and --queries=FILE"),
        (["--queries=x"], "without --qrels=FILE or --output=DIR shows nothing"),
        (["cats", "--qrels=x"], "qrels=x has no effect without queries"),
        (["cats", "--top=0"], "top=0 must be at least 1"),
        (["cats", "--bm25_b=2"], "bm25_b=2.0 must be between 0 and 1"),
        (["cats", "--links=8"], "links=8 belongs to engine=faiss_hnsw, not to engine=exact"),
        (["cats", "--engine=faiss_ivf", "--probes=0"], "probes=0 must be at least 1"),
        (["cats", "--model=/none"], "/none"),
    ],
)
def test_bad_options_are_refused(place, capsys, options, says):
    assert says in refusal(capsys, "search", place / "index", *options)


@pytest.mark.parametrize(
    "given, says",
    [
        ({"queries": None}, "search takes a text or a list of texts, not None"),
        ({"queries": ["cat", " "]}, "query 1 is empty; give a text"),
        ({"queries": "cat", "top": "3"}, "top='3' must be a whole number, at least 1"),
        ({"queries": "cat", "top": 2.5}, "top=2.5 must be a whole number"),
    ],
)
def test_bad_calls_are_refused(index, given, says):
    with pytest.raises(UserError, match=says):
        index.search(**given)


def test_what_is_no_path_is_refused(tmp_path):
    with pytest.raises(UserError, match="an index is opened by its directory, not by 3"):
        bert_jax.SearchIndex(3)
    with pytest.raises(UserError, match=r"a corpus is a file or a directory, not \['a'\]; write its documents to"):
        bert_jax.index(["a"], options(tmp_path))


@pytest.mark.parametrize("library, option", [("faiss", "--engine=faiss"), ("bm25s", "--show=hybrid")])
def test_a_library_that_is_not_installed_is_named(place, capsys, monkeypatch, library, option):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == library else real(name, *more))
    says = refusal(capsys, "search", place / "index", "cats", option)
    assert f"needs {library}, which is not installed; pip install 'bert_jax[search]' installs it" in says


@needs_bm25
def test_bm25_is_the_formula_of_lucene():
    texts = ["cat mat cat", "dog mat", "bird", "cat bird tree house"]
    (found, none, _) = engines.WordIndex(texts, k1=1.2, b=0.5).find(["cat mat", "zebra", ""], 3)
    lengths = np.array([3, 2, 1, 4])

    def part(word):
        counts = np.array([text.split().count(word) for text in texts])
        idf = np.log(1 + (4 - (counts > 0).sum() + 0.5) / ((counts > 0).sum() + 0.5))
        return idf * counts / (counts + 1.2 * (1 - 0.5 + 0.5 * lengths / lengths.mean()))

    expected = part("cat") + part("mat")
    assert found[1].tolist() == [0, 1, 3] == np.argsort(-expected, kind="stable")[:3].tolist()
    np.testing.assert_allclose(found[0], expected[found[1]], rtol=1e-5)
    assert len(none[0]) == 0


@needs_bm25
def test_all_ways_are_compared(place, opened_once):
    config = SearchConfig(queries=f"{place}/queries.jsonl", qrels=f"{place}/qrels.tsv")
    results = search.run_search(f"{place}/index", "", config)
    assert [*results.measures] == ["bm25", "vectors", "hybrid"]
    scores = {way: run["q1"] for way, run in results.runs.items()}
    ranks = [{name: rank for rank, name in enumerate(scores[way], 1)} for way in ("bm25", "vectors")]
    name = next(iter(scores["hybrid"]))
    expected = sum(1 / (60 + rank[name]) for rank in ranks if name in rank)
    assert scores["hybrid"][name] == max(scores["hybrid"].values()) == pytest.approx(expected)


@needs_faiss
@pytest.mark.parametrize(
    "engine", [FaissFlat(), FaissHnsw(search_width=300), FaissIvf(lists=4, probes=4)], ids=lambda engine: engine.name
)
def test_faiss_finds_what_the_exact_search_finds(engine):
    """With as many candidates, or clusters read, as there are, nothing is missed."""
    random = np.random.default_rng(0)
    vectors, queries = (random.normal(size=(count, 8)).astype(np.float32) for count in (300, 7))
    blocks = [vectors[:128], vectors[128:256], vectors[256:]]
    expected = engines.finder(ExactSearch(), SingleForm(), blocks)(queries, 9)
    found = engines.finder(engine, SingleForm(), blocks)(queries, 9)
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    vectors[5, 5] = np.nan
    with pytest.raises(UserError, match="a vector is not finite: the index is damaged"):
        engines.finder(engine, SingleForm(), [vectors])


@pytest.mark.parametrize("dtype, size", [("int8", 16 + 4), ("binary", 2)])
def test_an_index_of_few_bits(place, index, tmp_path, monkeypatch, capsys, dtype, size):
    model = index.model
    monkeypatch.setattr(indices, "load", lambda path: model)
    few = indices.run_index(str(place), options(place, output=str(tmp_path / "index"), dtype=dtype))
    assert f"45 documents, vectors [16] in {dtype}, " in capsys.readouterr().out
    headers = 128
    files = (tmp_path / "index" / "vectors").iterdir()
    assert sum(file.stat().st_size - headers for file in files) == len(TEXTS) * size
    exact, stored = index.vectors_of(range(45)), few.vectors_of(range(45))
    if dtype == "int8":
        assert np.all(np.abs(stored - exact) <= np.abs(exact).max(axis=1, keepdims=True) / 127 / 2 + 1e-6)
    else:
        np.testing.assert_array_equal(stored, np.where(exact > 0, 0.25, -0.25))
    queries = few.embed(list(QUERIES.values()))
    scores, numbers = few.nearest(queries, 45)
    np.testing.assert_allclose(scores, whole_ranking(queries, stored)[0], atol=1e-6)
    np.testing.assert_allclose(scores, np.take_along_axis(queries @ stored.T, numbers, axis=1), atol=1e-6)
    with pytest.raises(
        UserError, match="engine=faiss is for one vector per text of float32 or float16, .* has vectors of"
    ):
        bert_jax.SearchIndex(tmp_path / "index", engine=FaissFlat())
    if dtype == "int8":
        with pytest.raises(UserError, match="engine=hamming is for an index with dtype=binary"):
            bert_jax.SearchIndex(tmp_path / "index", engine=HammingSearch())
        return
    for shortlist, top in ((45, 9), (3, 2)):
        engine = HammingSearch(shortlist=shortlist)
        found = bert_jax.SearchIndex(tmp_path / "index", engine=engine).nearest(queries, top)
        for row, query in enumerate(queries):
            distances = ((query > 0) != (exact > 0)).sum(axis=1)
            near = np.sort(np.argsort(distances, kind="stable")[:shortlist])
            best = near[np.argsort(-(stored[near] @ query), kind="stable")[:top]]
            np.testing.assert_allclose(found[0][row], stored[best] @ query, atol=1e-6)
            np.testing.assert_array_equal(found[1][row], best)


def test_signs_come_in_bytes():
    with pytest.raises(UserError, match="the vectors have 12 values; dtype=binary packs eight in a byte"):
        SignForm().check(np.zeros((2, 12), np.float32), "the vectors")
    with pytest.raises(UserError, match="vectors cannot have vectors of 12 values, eight in a byte; make the index"):
        SignForm().opened({"": pathlib.Path("vectors")}, 2, 12, "binary")
