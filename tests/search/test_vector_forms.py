"""Token vectors and weights of words in an index, next to whole rankings in NumPy; a stand-in makes them from words."""

import json
import os
import pathlib
import shutil
import types
import zlib

import numpy as np
import pytest
from command_lines import refusal, succeed
from pretrained_model import random_texts
from scipy import sparse

import bert_jax
from bert_jax.config.search import FaissFlat, FaissHnsw, IndexConfig, MineConfig, SearchConfig
from bert_jax.errors import UserError
from bert_jax.tools.search import engines, search
from bert_jax.tools.search import index as indices
from bert_jax.tools.search.vectors import FORMS, TokenForm, WordForm, files_of, mapped, write_rows

TEXTS = [*random_texts(40), "the " * 40, "cat"]
QUERIES = random_texts(9, seed=1)
WIDTH, WORDS = 4, 50


class Model:
    """In place of a model: small whole numbers that follow from each word, so that products are exact, and many equal.

    Args:
      form: its `vector_form`.
    """

    path, fingerprint, head = "model", "of words", None
    embedding = types.SimpleNamespace(pooling="mean", max_length=None)
    config = types.SimpleNamespace(longest_sequence=None)

    def __init__(self, form: str):
        self.vector_form = form

    def need_tokenizer(self) -> None:
        pass

    def embed(self, texts, *, prompt, max_length=None, batch_size, progress):
        assert not (prompt == "query" and self.vector_form == "tokens" and max_length)
        rows = [[zlib.crc32(word.encode()) for word in text.split()[:max_length]] for text in texts]
        if self.vector_form == "tokens":
            return [np.array([np.frombuffer(_bytes(n), np.uint8) % 5 - 2.0 for n in row], np.float32) for row in rows]
        found = np.zeros((len(rows), WORDS), np.float32)
        for row, numbers in zip(found, rows, strict=True):
            np.add.at(row, [number % WORDS for number in numbers], 1 if prompt == "query" else 2)
        return sparse.csr_matrix(found)


def _bytes(number: int) -> bytes:
    return number.to_bytes(WIDTH, "little")


def max_sim(queries, documents) -> np.ndarray:
    return np.array([[sum(max(d @ q for d in each) for q in query) for each in documents] for query in queries])


def products(form: str, queries, documents) -> np.ndarray:
    """The definition, float64 [Q, N]."""
    return max_sim(queries, documents) if form == "tokens" else (queries @ documents.T).toarray()


@pytest.fixture(scope="module", params=["tokens", "words"])
def place(request, tmp_path_factory) -> pathlib.Path:
    """A directory with a collection and its index in the blocks of 16. No test may change any of it."""
    place = tmp_path_factory.mktemp(request.param)
    rows = [{"_id": f"d{number}", "text": text} for number, text in enumerate(TEXTS)]
    (place / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{"_id": f"q{number}", "text": text} for number, text in enumerate(QUERIES)]
    (place / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td3\t1\nq1\td7\t2\nq1\td8\t1\n")
    with pytest.MonkeyPatch.context() as patched:
        give(patched, request.param)
        indices.run_index(str(place), options(place))
    return place


def give(patched: pytest.MonkeyPatch, form: str) -> None:
    for module in (indices, search):
        patched.setattr(module, "load", lambda path: Model(form))
        patched.setattr(module, "need_model", lambda path: None)
    patched.setattr("bert_jax.cli.commands._need", lambda **places: None)


def options(place: pathlib.Path, **changes) -> IndexConfig:
    return IndexConfig(**{"model": "model", "output": str(place / "index"), "block": 16, "batch_size": 4} | changes)


@pytest.fixture
def index(place, monkeypatch) -> bert_jax.SearchIndex:
    index = bert_jax.SearchIndex(place / "index")
    give(monkeypatch, index.record.form)
    return index


def test_a_search_is_the_whole_ranking_of_numpy(index):
    """Of equal products the first document counts; one that shares no word with the query is not found."""
    form = index.record.form
    documents = Model(form).embed(TEXTS, prompt="document", batch_size=4, progress=False)
    queries = Model(form).embed(QUERIES, prompt="query", batch_size=4, progress=False)
    expected = products(form, queries, documents)
    order = np.argsort(-expected, axis=1, kind="stable")
    for most in (5, 42, 99):
        scores, numbers = index.nearest(queries, most)
        for row, place, score, number in zip(expected, order, scores, numbers, strict=True):
            place = [each for each in place if form == "tokens" or row[each] > 0][:most]
            assert number[number >= 0].tolist() == place
            np.testing.assert_array_equal(score[number >= 0], row[place])
    (hit,) = index.search(QUERIES[2], top=1)
    assert (hit.score, hit.id) == (expected[2].max(), f"d{order[2][0]}")
    taken = index.vectors_of([17, 41, 3])
    np.testing.assert_array_equal(index.form.scores(queries[:1], taken), expected[0][[17, 41, 3]])


def test_what_an_index_does_not_have_is_refused(index):
    for ask, says in (
        (lambda: index.vectors_of([42]), "has the documents 0 to 41, not 42"),
        (lambda: index.vectors_of([-1]), "has the documents 0 to 41, not -1"),
        (lambda: list(index.documents(["a"])), "has the documents 0 to 41, not 'a'"),
        (lambda: index.nearest(index.vectors_of([1])[:0]), "there are no vectors of queries"),
        (lambda: index.nearest(None), "vectors of queries are NoneType.*; expected a (list of arrays|csr_matrix)"),
        (lambda: bert_jax.SearchIndex(index.path, engine="exact"), "engine='exact' is no way to search"),
        (lambda: bert_jax.SearchIndex(index.path, engine=FaissHnsw(links=0)), "links=0 must be at least 2"),
        (lambda: indices.run_index("c", None), r"the options are None; expected bert_jax.IndexConfig\(…\)"),
        (lambda: indices.run_index("c", options(pathlib.Path(), block="x")), "block='x' must be of type int"),
        (lambda: search.run_search("i", "q", SearchConfig(model=3)), "model=3 must be of type str"),
        (FaissHnsw(links=10**9).check, "links=1000000000 must be at most 4096"),
    ):
        with pytest.raises(UserError, match=says):
            ask()


def test_many_queries_and_long_texts_are_compared_in_parts(monkeypatch, tmp_path):
    """The parts are made so small that queries, and documents of one length, take several."""
    monkeypatch.setattr("bert_jax.tools.search.vectors.QUERY_TOKENS", 8)
    monkeypatch.setattr("bert_jax.tools.search.vectors.TOKENS", 32)
    monkeypatch.setattr("bert_jax.tools.search.vectors.QUERIES", 2)
    for form in (TokenForm(), WordForm()):
        model = Model(form.name)
        documents = model.embed(TEXTS, prompt="document", batch_size=4, progress=False)
        queries = model.embed(QUERIES, prompt="query", batch_size=4, progress=False)
        batches = form.batches(queries)
        assert len(batches) > 2 and len({each.shape for each in batches}) == 1
        files = files_of(tmp_path, form, 0)
        form.write(files, [documents[:7], documents[7:]], "float16")
        block = form.opened(files, len(TEXTS), form.width(files), "float16")
        found = np.concatenate([np.asarray(form.products(each, block, 48)) for each in batches])
        np.testing.assert_array_equal(found[: len(QUERIES), : len(TEXTS)], products(form.name, queries, documents))


def test_an_index_of_each_form(place, index, tmp_path, monkeypatch, capsys):
    """An interrupted one goes on after its last whole block; both numbers of bits hold these values."""
    form = index.record.form
    output = tmp_path / "index"
    real, last = os.replace, index.form.parts[-1]

    def dies(file, place):
        if str(place).endswith(f"00001{last}.npy"):
            raise KeyboardInterrupt
        real(file, place)

    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(KeyboardInterrupt):
        indices.run_index(str(place), options(place, output=str(output), dtype="float16"))
    monkeypatch.setattr(os, "replace", real)
    capsys.readouterr()
    half = indices.run_index(str(place), options(place, output=str(output), dtype="float16"))
    wide = {"tokens": "token vectors [4]", "words": "weights of words [50]"}[form]
    assert f"42 documents, {wide} in float16, " in capsys.readouterr().out
    assert not list(output.rglob("*.partial"))
    queries = half.embed(QUERIES)
    for one, other in zip(half.nearest(queries, 42), index.nearest(queries, 42), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(UserError, match="normalize=False is for one vector per text, and model gives .*; leave it out"):
        indices.run_index(str(place), options(place, output=str(tmp_path / "new"), normalize=False))
    with pytest.raises(UserError, match="dtype=binary is for one vector per text, and model gives .*; use --dtype=flo"):
        indices.run_index(str(place), options(place, output=str(tmp_path / "new"), dtype="binary"))
    assert not (tmp_path / "new").exists()


def test_commands_on_each_form(place, index, tmp_path, capsys):
    succeed("search", place / "index", QUERIES[0], "--top=2")
    assert f"{index.search(QUERIES[0], top=1)[0].score:.4f}" in capsys.readouterr().out
    words = [f"--queries={place}/queries.jsonl", f"--qrels={place}/qrels.tsv"]
    succeed("search", place / "index", *words, "--bm25=False")
    assert "vectors" in capsys.readouterr().out
    said = refusal(capsys, "search", place / "index", "cats", "--engine=faiss_ivf")
    assert "engine=faiss_ivf is for one vector per text of float32 or float16, and the index " in said
    assert f"has {index.form.noun}; leave it out" in said
    given = dict(queries=f"{place}/queries.jsonl", qrels=f"{place}/qrels.tsv", output=f"{tmp_path}/mined.jsonl")
    search.run_mine(str(place / "index"), MineConfig(**given, negatives=1, margin=1.0))
    for line in (tmp_path / "mined.jsonl").read_text().splitlines():
        row = json.loads(line)
        query, *documents = (Model(index.record.form).embed([text], prompt=prompt, batch_size=1, progress=False)
                             for text, prompt in zip(row.values(), ("query", "document", "document")))  # fmt: skip
        positive, negative = (float(products(index.record.form, query, each)[0, 0]) for each in documents)
        assert negative <= positive - 1


def test_token_vectors_sort_the_hits_of_another_index_again(index, monkeypatch):
    give(monkeypatch, "tokens")
    index._model = Model(index.record.form)
    config = SearchConfig(queries="x", bm25=False, rerank="y", rerank_top=7)
    ways = search._ways(index, QUERIES[:2], config, 20)
    for query, (_, first), (scores, second) in zip(QUERIES, ways["vectors"], ways["reranked"]):
        embed = Model("tokens").embed
        documents = embed([TEXTS[number] for number in first[:7]], prompt="document", batch_size=4, progress=False)
        expected = max_sim(embed([query], prompt="query", batch_size=4, progress=False), documents)[0]
        assert scores[:7].tolist() == sorted(expected, reverse=True)
        assert second.tolist() == [*first[:7][np.argsort(-expected, kind="stable")], *first[7:]]
    with pytest.raises(UserError, match="rerank_label=yes: y compares tokens and has no classes; leave it out"):
        search.open_reranker("y", "yes", 4)
    give(monkeypatch, "words")
    with pytest.raises(UserError, match="--rerank=y has no head; give a model .*, or one with a vector for each token"):
        search.open_reranker("y", "", 4)


DAMAGE = {
    "tokens": {
        ".lengths": [
            (np.zeros(16, np.int32), "has documents of 0 to 0 tokens, not 1 to 65,536"),
            (np.full(16, 10**6, np.int32), "has documents of 1,000,000 to 1,000,000 tokens"),
            (np.full(16, 2, np.int32), r"00000.tokens.npy is float32\[\d+, 4\], not float32\[32, 4\]"),
            (np.zeros(16, np.int64), r"00000.lengths.npy is int64\[16\], not int32\[16\]"),
        ],
        ".tokens": [
            (np.zeros((3, 4), np.float32), r"is float32\[3, 4\], not float32\["),
            (-np.float32("nan"), "product of a query and a document is not finite: the index is damaged"),
        ],
    },
    "words": {
        ".starts": [
            (np.arange(51)[::-1].copy(), "starts.npy does not grow from 0"),
            (np.array([0, 2**62, -(2**62), *range(48)]), "starts.npy does not grow from 0"),
            (np.arange(51), r"documents.npy is int32\[\d+\], not int32\[50\]"),
            (np.arange(50), r"starts.npy is int64\[50\], not int64\[51\]"),
        ],
        ".documents": [
            (np.int32(16), "documents.npy names a document that is not among 16"),
            (np.int32(-1), "documents.npy names a document that is not among 16"),
        ],
        ".weights": [(np.float32("nan"), "product of a query and a document is not finite: the index is damaged")],
    },
}


def test_a_damaged_index_is_refused(place, index, tmp_path):
    copy = shutil.copytree(place / "index", tmp_path / "index")
    queries = index.embed(QUERIES)
    for part, cases in DAMAGE[index.record.form].items():
        file = copy / "vectors" / f"00000{part}.npy"
        whole = file.read_bytes()
        for values, says in cases:
            np.save(
                file, values if np.ndim(values) else np.full_like(np.load(place / "index/vectors" / file.name), values)
            )
            with pytest.raises(UserError, match=says):
                bert_jax.SearchIndex(copy).nearest(queries)
        file.write_bytes(whole[:-3])
        with pytest.raises(UserError, match=f"00000{part}.npy cannot be read"):
            bert_jax.SearchIndex(copy).nearest(queries)
        file.write_bytes(whole)
    record = json.loads((copy / "index.json").read_text())
    assert record["form"] == index.record.form
    with pytest.raises(UserError, match="leave it out"):
        bert_jax.SearchIndex(copy, engine=FaissFlat())


@pytest.mark.parametrize(
    "claimed",
    [
        "'|V0', (1,)",
        "'<f4', (2**63,)",
        "'<f4', (9999999999999, 999999999)",
        "'<f4', (-1,)",
        "'O', (1,)",
        "'<f4', " * 99,
    ],
)
def test_a_header_is_read_before_what_it_claims_is_mapped(tmp_path, recwarn, claimed):
    """NumPy itself divides by the size of the first type, which ends the process."""
    descr, _, shape = claimed.replace("2**63", str(2**63)).partition(", ")
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    file = tmp_path / "a.npy"
    file.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(64))
    with pytest.raises(UserError, match="a.npy (is .*, not|cannot be read)"):
        mapped(file, (3,), "float32")
    assert not recwarn.list


@pytest.mark.parametrize(
    "form, vectors, says",
    [
        ("single", np.zeros((2, 3, 4)), r"have the shape \[2, 3, 4\]; expected \[texts, width\]"),
        (
            "tokens",
            [np.zeros((2, 4)), np.zeros((0, 4))],
            r"have the shape \[0, 4\] for one text; expected \[1 to 65,536",
        ),
        ("tokens", [np.zeros((2, 4)), np.zeros((2, 5))], r"have the shape \[2, 5\] for one text; expected .*, 4\]"),
        ("tokens", [np.full((2, 4), np.inf)], "are not finite"),
        ("tokens", sparse.csr_matrix((2, 3)), r"are csr_matrix; expected a list of arrays \[tokens, width\]"),
        ("words", np.zeros((2, 3)), r"are ndarray \[2, 3\]; expected a csr_matrix \[texts, words\]"),
        ("words", sparse.csr_matrix([[np.nan]]), "are not finite"),
    ],
)
def test_what_a_model_must_not_give(form, vectors, says):
    with pytest.raises(UserError, match=f"^vectors {says}"):
        FORMS[form].check(vectors, "vectors")


def test_values_that_a_half_cannot_hold_are_refused(tmp_path):
    files = {part: tmp_path / f"0{part}.npy" for part in TokenForm.parts}
    with pytest.raises(UserError, match="a vector has the value 70000, which float16 cannot hold; use --dtype=float32"):
        TokenForm().write(files, [[np.full((2, 2), 7e4, np.float32)]], "float16")
    assert not list(tmp_path.iterdir())


def test_rows_that_come_in_parts_are_one_array(tmp_path):
    parts = [np.arange(count * 3, dtype=np.float16).reshape(count, 3) for count in (2, 0, 100_000)]
    write_rows(tmp_path / "a.npy", iter(parts))
    np.save(tmp_path / "b.npy", np.concatenate(parts))
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


def test_texts_without_words_find_nothing_and_are_not_found(tmp_path):
    form, nothing = WordForm(), sparse.csr_matrix((2, 3), dtype=np.float32)
    files = files_of(tmp_path, form, 0)
    form.write(files, [nothing], "float32")
    block = form.opened(files, 2, 3, "float32")
    scores, numbers = engines.exact(form, [block], sparse.csr_matrix([[1.0, 2.0, 0.0]]), 5)
    assert (scores.tolist(), numbers.tolist()) == ([[0.0, 0.0]], [[-1, -1]])
    assert engines.lists((scores, numbers))[0][0].tolist() == []
    assert form.taken([(block, 1)]).nnz == 0
