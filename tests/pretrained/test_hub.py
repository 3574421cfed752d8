"""Models and data sets of the Hugging Face hub by name, against a hub on this machine's loopback.

What is read by name is what the same files give from a directory; the cache serves without a network; a run records the
commit; every failure is one line.
"""

import dataclasses
import importlib.util
import io
import json
import logging
import types

import huggingface_directory
import numpy as np
import pytest
import safetensors.numpy
import torch_form
from hub_on_loopback import Hub
from pretrained_model import whole
from small_pretraining import finetune

from bert_jax import hub, progress
from bert_jax.checkpoints.workdir import with_commits
from bert_jax.config import Config, PrepareConfig
from bert_jax.config.finetuning import check_finetune, task_defaults
from bert_jax.config.options import to_dict, with_options
from bert_jax.config.tasks import TaggingDataConfig, TextDataConfig
from bert_jax.corpus import datasets as corpus_datasets
from bert_jax.corpus.readers import find_sources, read_documents
from bert_jax.data.manifest import read_manifest
from bert_jax.data.preparation.prepare import run_prepare
from bert_jax.errors import UserError
from bert_jax.finetuning import loop
from bert_jax.formats.conversion import convert
from bert_jax.formats.opening import is_there, open_stored
from bert_jax.tasks import ner, readers, squad_files, text
from bert_jax.tokenization.tokenizer import load_tokenizer
from bert_jax.tools.pods.job import Job

constants = pytest.importorskip("huggingface_hub.constants", reason="the package is of the extra `hub`")
INDEX = "pytorch_model.bin.index.json"
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]
UNREAD = {
    "README.md": b"# A card",
    "modeling_evil.py": b"raise SystemExit",
    "tf_model.h5": b"h5",
    "onnx/model.onnx": b"onnx",
    "onnx/model.safetensors": b"another",
    "model.fp16.safetensors": b"another",
    "pytorch_model.bin": b"a pickle",
    "training_args.bin": b"a pickle",
    "logs/one/deep.json": b"{}",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model of sentence-transformers, and beside it what nobody here reads."""
    place = huggingface_directory.directory(tmp_path_factory.mktemp("model"))
    found = {file.name: file.read_bytes() for file in place.iterdir()}
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    found |= {"modules.json": json.dumps(MODULES).encode(), "1_Pooling/config.json": json.dumps(pooling).encode()}
    return found


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A hub that the packages ask, with a cache of their own, from an empty directory."""
    with Hub() as found:
        listen_to(found.url, monkeypatch)
        monkeypatch.setattr("huggingface_hub.utils._http.time", types.SimpleNamespace(sleep=lambda seconds: None))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        yield found


def listen_to(url, monkeypatch):
    """Set what the package makes of HF_ENDPOINT when it is imported."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


def message(function, *arguments, **options) -> str:
    """The one line of a refusal."""
    with pytest.raises(UserError) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "path, name",
    [
        ("owner/name", hub.HubName("model", "owner/name")),
        ("hf://owner/name", hub.HubName("model", "owner/name")),
        ("hf://models/owner/na.me-2@v1.0", hub.HubName("model", "owner/na.me-2", "v1.0")),
        ("hf://owner/name@refs/pr/3", hub.HubName("model", "owner/name", "refs/pr/3")),
        ("taken/name", None),  # a directory of the owner's name is here
        ("hf://taken/name", hub.HubName("model", "taken/name")),
        ("owner/vocab.txt", None),
        ("./owner/name", None),
        ("/owner/name", None),
        ("gs://owner/name", None),
        ("owner", None),
        ("owner/name/step_000000001", None),
    ],
)
def test_which_paths_are_names_of_models(path, name, tmp_path, monkeypatch):
    (tmp_path / "taken").mkdir()
    monkeypatch.chdir(tmp_path)
    assert hub.model_name(path) == name
    if name is not None:
        assert hub.model_name(str(name)) == name  # what is recorded can be given


@pytest.mark.parametrize("path", ["hf://owner", "hf://", "hf://a/b/c", "hf://a/b@", "hf://a/../b", "hf://datasets/a/b"])
def test_names_of_no_model(path):
    assert "hf://owner/name" in message(hub.model_name, path)


@pytest.mark.parametrize(
    "name, parts",
    [
        ("owner/name", ("", "", "")),
        ("hf://datasets/owner/name@v2", ("v2", "", "")),
        ("owner/name:en", ("", "en", "")),
        ("hf://datasets/owner/name@v2:20231101.en:train[:1%]", ("v2", "20231101.en", "train[:1%]")),
        ("owner/name::validation", ("", "", "validation")),
    ],
)
def test_names_of_data_sets(name, parts):
    found = hub.dataset_name(name)
    assert (found.kind, found.repository) == ("dataset", "owner/name")
    assert (found.revision, found.configuration, found.split) == parts
    assert hub.dataset_name(str(found)) == found and str(found).startswith("hf://datasets/")
    assert "names no" not in message(hub.dataset_name, "hf://owner/name")


def test_a_model_by_name_is_that_of_its_files(there, files, tmp_path, capsys, monkeypatch):
    """Nothing else is fetched, and nothing twice; with a commit the hub is not even asked."""
    commit = there.commit("acme/tiny", {**files, **UNREAD})
    stored, name = open_stored("acme/tiny"), f"hf://acme/tiny@{commit}"
    assert there.fetched() == sorted(files)
    assert capsys.readouterr().err == ""  # a bar is for terminals
    assert (stored.path, stored.history["source"]["path"]) == (name, name)
    assert stored.embedding.pooling == "mean"  # from the directory of a module, a link like all others
    whole = (slice(None), slice(None))
    table = stored.arrays["embeddings/word/table"].read(whole)
    assert np.array_equal(table, huggingface_directory.STATE["bert.embeddings.word_embeddings.weight"])
    there.requests.clear()
    assert open_stored(name).path == name and there.requests == []
    assert open_stored("hf://acme/tiny").path == name and there.fetched() == []
    monkeypatch.setattr(progress, "are_seen", lambda: True)
    assert open_stored(name).path == name
    convert("hf://acme/tiny", tmp_path / "copy", to="bert_jax")
    assert json.loads((tmp_path / "copy" / "run.json").read_text())["source"]["path"] == name


def test_a_vocabulary_by_name_fetches_no_weights(there, files):
    there.commit("acme/tiny", files)
    assert load_tokenizer("hf://acme/tiny").tokens == huggingface_directory.TOKENS
    assert "vocab.txt" in there.fetched() and "model.safetensors" not in there.fetched()
    there.status = -1
    assert "is not whole in the cache" in message(open_stored, "hf://acme/tiny")  # and not: has no weights
    there.status = 0
    assert open_stored("hf://acme/tiny").kind == "huggingface"


def test_a_branch_a_tag_and_a_commit(there, files):
    first = there.commit("acme/tiny", files)
    second = there.commit("acme/tiny", {**files, "vocab.txt": files["vocab.txt"].replace(b"word1\n", b"other\n")})
    there.commit("acme/tiny", files, branch="refs/pr/1")
    assert "other" in load_tokenizer("acme/tiny").tokens
    assert "other" not in load_tokenizer(f"hf://acme/tiny@{first}").tokens
    assert "other" not in load_tokenizer("hf://acme/tiny@refs/pr/1").tokens
    assert open_stored("hf://acme/tiny@main").path.endswith(second)
    assert "has no revision v9" in message(open_stored, "hf://acme/tiny@v9")


def test_a_directory_of_that_name_wins(there, files, tmp_path):
    there.commit("acme/tiny", {"config.json": b"{}"})
    huggingface_directory.directory(tmp_path / "here" / "acme" / "tiny")
    assert open_stored("acme/tiny").path == str(tmp_path / "here" / "acme" / "tiny") and there.requests == []
    assert "or hf://owner/name" in message(open_stored, "acme/absent") and there.requests == []


@pytest.mark.parametrize("off", ["HF_HUB_OFFLINE", "no connection", "no answer", "the hub is down"])
def test_the_cache_serves_without_a_network(there, files, off, monkeypatch):
    commit = there.commit("acme/tiny", files)
    open_stored("acme/tiny")
    there.requests.clear()
    if off == "HF_HUB_OFFLINE":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    elif off == "no connection":
        listen_to("http://127.0.0.1:9", monkeypatch)  # the port that discards
    else:
        there.status = 503 if off == "the hub is down" else -1
    for path in ("acme/tiny", "hf://acme/tiny@main", f"hf://acme/tiny@{commit}"):
        assert open_stored(path).path == f"hf://acme/tiny@{commit}"
    assert is_there("acme/tiny") and not is_there("acme/never")
    said = message(open_stored, "acme/never")
    assert said.startswith("hf://acme/never is not whole in the cache of this machine, and the hub cannot be reached (")
    assert said.endswith("or give a local directory; there is none named acme/never")  # it may have been meant as one
    assert ("HF_HUB_OFFLINE is set" in said) == (off == "HF_HUB_OFFLINE")


def test_each_failure_is_one_line(there, files, monkeypatch):
    assert "there is no model acme/never on the hub" in message(open_stored, "acme/never")
    assert "cannot be a name of the hub" in message(open_stored, "hf://acme/a..b")
    there.commit("acme/gated", files)
    there.repositories["models/acme/gated"].refusal = "GatedRepo"
    assert "is gated: accept its conditions" in message(open_stored, "acme/gated")
    monkeypatch.setenv("HF_TOKEN", "hf_reader")
    assert open_stored("acme/gated").kind == "huggingface"
    there.commit("acme/keras", {"config.json": b"{}", "tf_model.h5": b""})
    assert "neither model.safetensors nor pytorch_model.bin, but tf_model.h5" in message(open_stored, "acme/keras")
    there.status = 403
    assert "the hub refuses hf://acme/other (403)" in message(open_stored, "acme/other")
    there.status = 418
    assert "the hub answers 418 to hf://acme/other" in message(open_stored, "acme/other")


PAGES = [b"<html>Please log in</html>", b"{}", b"[]", b"null", b'{"sha": 5}', b'{"sha": "../.."}', b'{"sha": ""}']


@pytest.mark.parametrize("page", PAGES)
def test_the_page_of_a_proxy_is_one_line(there, page):
    there.status, there.page = 200, page
    assert message(open_stored, "acme/tiny").startswith("the answer about hf://acme/tiny is not that of a hub (")


@pytest.mark.parametrize("name", ["../outside.json", "..", "/outside.json", "a/../outside.json", "con\0.json"])
def test_a_file_of_a_hostile_name_stays_inside(there, files, name, tmp_path):
    there.commit("acme/tiny", {**files, name: b"{}"})
    try:
        open_stored("acme/tiny")
    except UserError:
        pass
    (kept,) = (tmp_path / "cache").glob("models--*")
    assert not [file for file in tmp_path.rglob("outside.json*") if kept not in file.parents]


def test_a_pickle_is_fetched_only_where_nothing_else_is(there, files):
    there.commit("acme/old", {"config.json": files["config.json"], "pytorch_model.bin": b"a pickle", "a.py": b""})
    directory = hub.local_path("acme/old")
    assert there.fetched() == ["config.json", "pytorch_model.bin"] and directory != "acme/old"


def test_shards_of_a_pickle_are_fetched_with_their_index(there, files, tmp_path):
    state = safetensors.numpy.load(files["model.safetensors"])
    home = {name: f"pytorch_model-0000{1 + number % 2}-of-00002.bin" for number, name in enumerate(state)}
    index = json.dumps({"metadata": {}, "weight_map": home}).encode()
    content = {"config.json": files["config.json"], "vocab.txt": files["vocab.txt"], INDEX: index}
    for shard in sorted({*home.values()}):
        torch_form.write(tmp_path / shard, {name: state[name] for name in state if home[name] == shard})
        content[shard] = (tmp_path / shard).read_bytes()
    there.commit("acme/shards", content)
    there.commit("acme/whole", files)
    found, expected = open_stored("acme/shards"), open_stored("acme/whole")
    assert found.arrays.keys() == expected.arrays.keys()
    for path, array in found.arrays.items():
        np.testing.assert_array_equal(whole(array), whole(expected.arrays[path]), err_msg=path)


def test_without_the_extra_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for call in (lambda: open_stored("hf://a/b"), lambda: find_sources("hf://datasets/a/b")):
        assert "needs huggingface_hub, which is not installed; pip install 'bert_jax[hub]'" in message(call)


def test_a_warning_of_the_package_is_printed_once(there, files, caplog):
    there.commit("acme/tiny", files)
    open_stored("acme/tiny")
    there.status = 503
    open_stored("acme/tiny")
    assert not [record for record in caplog.records if record.name.startswith("huggingface_hub")]
    assert logging.getLogger("huggingface_hub").propagate


def test_a_run_that_is_started_again_keeps_its_commit(there, files, tmp_path):
    """main has moved, and then there is no network; another revision that is asked for is found and told apart."""
    first = there.commit("acme/tiny", files)
    teacher = there.commit("acme/teacher", files)
    given = {"init_from": "hf://acme/tiny", "objective.distillation.teacher": "acme/teacher", "workdir": str(tmp_path)}
    options, names = with_options(Config(), given), ("init_from", "objective.distillation.teacher")
    begun = with_commits(options, names)
    assert begun.init_from == f"hf://acme/tiny@{first}"
    assert begun.objective.distillation.teacher == f"hf://acme/teacher@{teacher}"
    (tmp_path / "config.json").write_text(json.dumps(to_dict(begun)))
    second = there.commit("acme/tiny", {**files, "README.md": b"new"})
    there.requests.clear()
    assert with_commits(options, names) == begun and there.requests == []
    main = with_options(options, {"init_from": "hf://acme/tiny@main"})
    assert with_commits(main, names).init_from == f"hf://acme/tiny@{second}"
    there.repositories.clear()
    assert with_commits(main, names) == begun
    local = with_options(options, {"init_from": "elsewhere", "objective.distillation.teacher": ""})
    assert with_commits(local, names) is local


def test_push_makes_a_repository_that_loads(there, files, tmp_path, monkeypatch, capsys):
    place = huggingface_directory.directory(tmp_path / "model")
    asked = {"to": "huggingface", "push": "acme/mine", "private": True}
    assert "log in: hf auth login" in message(convert, place, tmp_path / "out", **asked)
    monkeypatch.setenv("HF_TOKEN", "hf_reader")
    assert "the hub refuses hf://acme/mine (403)" in message(convert, place, tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("HF_TOKEN", "hf_writer")
    convert(place, tmp_path / "out", **asked)
    repository = there.repositories["models/acme/mine"]
    commit = repository.branches["main"]
    assert repository.private and f"uploaded: {there.url}/acme/mine/commit/{commit}" in capsys.readouterr().out
    written = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    assert {**written, ".gitattributes": b""} == repository.commits[commit]
    assert open_stored("acme/mine").model == open_stored(place).model
    for options, said in (
        ({"to": "bert_jax", "push": "acme/mine"}, "use --to=huggingface"),
        ({"to": "huggingface", "private": True}, "push=OWNER/NAME"),
        ({"to": "huggingface", "push": "mine"}, "does not name a model of the hub"),
    ):
        assert said in message(convert, place, tmp_path / "other", **options)


def test_a_name_is_no_path_of_one_machine():
    config = with_options(Config(), {"init_from": "hf://acme/tiny", "workdir": "gs://b/run", "data.path": "gs://b/s"})
    Job("bert_tiny", (), config).need_bucket("workers have no disk")


TEXTS = [
    {"name": "text", "dtype": "string"},
    {"name": "label", "dtype": {"class_label": {"names": {"0": "bad", "1": "good"}}}},
]
EN_FILES = [{"split": "train", "path": "en/train-*"}, {"split": "validation", "path": "en/validation*"}]
ROWS = [{"text": f"Text number {number}.", "label": number % 2} for number in range(20)]
TAGS = {"class_label": {"names": {"0": "O", "1": "B-PER"}}}
TAGGED = [{"tokens": ["Ann", "sings"], "ner_tags": [1, 0]}, {"tokens": ["So"], "ner_tags": [0]}]
QUESTION = {"id": "1", "title": "", "context": "The sky is blue.", "question": "What is blue?"}
ANSWERED = {**QUESTION, "answers": {"text": ["The sky"], "answer_start": [0]}}


def card(**about) -> bytes:
    """A README.md that says this of a data set: JSON is YAML."""
    return b"---\n" + json.dumps(about).encode() + b"\n---\n"


def rows_as_parquet(rows) -> bytes:
    import pyarrow
    from pyarrow import parquet

    written = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), written)
    return written.getvalue()


@pytest.fixture
def data(there, tmp_path, monkeypatch):
    """The same hub with data sets, for the package datasets too."""
    package = pytest.importorskip("datasets", reason="the package is of the extra `hub`")
    monkeypatch.setattr(package.config, "HF_ENDPOINT", there.url)
    monkeypatch.setattr(package.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(package.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
    monkeypatch.setattr(package.config, "HF_DATASETS_CACHE", str(tmp_path / "data_cache"))
    corpus_datasets._builder.cache_clear()
    configs = [{"config_name": "en", "data_files": EN_FILES}, {"config_name": "de", "data_files": "de/*"}]
    infos = [{"config_name": name, "features": TEXTS} for name in ("en", "de")]
    files = {"README.md": card(configs=configs, dataset_info=infos), "en/train-0.parquet": rows_as_parquet(ROWS[:15])}
    files |= {"en/train-1.parquet": rows_as_parquet(ROWS[15:]), "en/validation.parquet": rows_as_parquet(ROWS[:4])}
    files |= {"de/train.parquet": rows_as_parquet([{"text": "Hallo.", "label": -1}]), "texts.csv.py": b"1/0"}
    there.data = there.commit("acme/texts", files, "datasets")
    yield there
    corpus_datasets._builder.cache_clear()


def test_a_corpus_by_name(data, monkeypatch):
    name = f"hf://datasets/acme/texts@{data.data}"
    assert list(read_documents("hf://datasets/acme/texts:en")) == [row["text"] for row in ROWS]
    assert list(read_documents("hf://datasets/acme/texts:en:train[25%:50%]")) == [row["text"] for row in ROWS[5:10]]
    assert list(read_documents("hf://datasets/acme/texts:de,hf://datasets/acme/texts:en:validation")) == [
        "Hallo.",
        *(row["text"] for row in ROWS[:4]),
    ]
    (source,) = find_sources("hf://datasets/acme/texts:en")
    assert (source.name, source.format, source.revision) == (f"{name}:en:train", "hub", data.data)
    data.requests.clear()
    for number in (0, 7, 19, 20):  # as a block in the middle of a split is read again
        rest = [text for text, _ in corpus_datasets.hub_documents(source.name, "text", number)]
        assert rest == [row["text"] for row in ROWS[number:]]
    assert data.requests == []
    assert "no text column 'label', but text" in message(list, read_documents(source.name, text_field="label"))


def test_each_file_of_a_split_is_a_source(data, monkeypatch):
    """Workers share what the package has cut into several files, by rows."""
    import datasets

    monkeypatch.setattr(datasets.config, "MAX_SHARD_SIZE", 1)
    monkeypatch.setattr(datasets.config, "DEFAULT_MAX_BATCH_SIZE", 5)
    found = find_sources("hf://datasets/acme/texts:en")
    assert len(found) > 1 and len({source.name for source in found}) == len(found)
    assert all(source.name.startswith(f"hf://datasets/acme/texts@{data.data}:en:train[") for source in found)
    texts = [text for source in found for text in read_documents(source.name)]
    assert texts == [row["text"] for row in ROWS]


def test_a_data_set_without_a_network_is_that_of_the_commit(data, monkeypatch):
    """The package itself would take whatever it prepared last."""
    texts = [row["text"] for row in ROWS]
    old = data.commit("acme/more", {"train.parquet": rows_as_parquet(ROWS)}, "datasets")
    assert list(read_documents("hf://datasets/acme/more")) == texts
    new = data.commit("acme/more", {"train.parquet": rows_as_parquet(ROWS[:3])}, "datasets")
    assert list(read_documents(f"hf://datasets/acme/more@{new}")) == texts[:3]
    data.status = -1
    for name, count in ((f"@{old}", 20), (f"@{new}", 3), ("", 20)):  # main is where it was when it was last asked for
        corpus_datasets._builder.cache_clear()
        assert len(list(read_documents(f"hf://datasets/acme/more{name}"))) == count
    assert "cannot be reached" in message(find_sources, f"hf://datasets/acme/more@{'0' * 40}")
    assert "cannot be reached" in message(find_sources, "hf://datasets/acme/never")


@pytest.mark.parametrize(
    "name, said",
    [
        ("hf://datasets/acme/never", "there is no data set acme/never on the hub"),
        ("hf://datasets/acme/texts@v9", "acme/texts has no revision v9"),
        ("hf://datasets/acme/texts", r"one among the available configs: ['en', 'de']; name it after a colon"),
        ("hf://datasets/acme/texts:fr", "'fr' not found. Available: ['en', 'de']"),
        ("hf://datasets/acme/texts:en:test", 'Unknown split "test"'),
        ("hf://datasets/acme/code", "scripts are no longer supported, but found code.py"),
        ("hf://datasets/acme/damaged", "Parquet"),
        ("hf://datasets/acme/empty", "doesn't contain any data files"),
        ("hf://acme/texts", "it must be hf://datasets/owner/name"),
    ],
)
def test_a_data_set_that_cannot_be_read_is_one_line(data, name, said):
    data.commit("acme/code", {"README.md": b"", "code.py": b"raise SystemExit"}, "datasets")
    data.commit("acme/damaged", {"train.parquet": b"PAR1 and no more"}, "datasets")
    data.commit("acme/empty", {"README.md": b""}, "datasets")
    assert said in message(find_sources, name)


def test_a_store_records_names_with_commits(data, files, tmp_path):
    data.commit("acme/tiny", files)
    config = PrepareConfig(input="hf://datasets/acme/texts:en", vocab="acme/tiny", output=str(tmp_path / "store"))
    run_prepare(config)
    (source,) = read_manifest(tmp_path / "store").sources
    assert (source.name, source.revision) == (f"hf://datasets/acme/texts@{data.data}:en:train", data.data)


def test_tasks_by_name_read_what_their_files_hold(data, tmp_path):
    """Classes by their names, -1 as no label; lists of classes; the answers of SQuAD."""
    named, there = TextDataConfig(hub="acme/texts:en"), TextDataConfig(train="train.jsonl", dev="dev.jsonl")
    for split, rows in (("train", ROWS), ("dev", ROWS[:4])):
        lines = [json.dumps({**row, "label": ["bad", "good"][row["label"]]}) for row in rows]
        (tmp_path / "here" / f"{split}.jsonl").write_text("\n".join(lines))
        one, other = (text.load("text", each, split) for each in (named, there))
        assert (one.first, one.labels, one.answers.tolist()) == (other.first, other.labels, other.answers.tolist())
    assert text.splits("text", named) == ("train", "dev")
    unlabelled = TextDataConfig(hub="hf://datasets/acme/texts:de", test="train")
    assert not text.load("text", unlabelled, "test", ("bad", "good")).has_answers

    features = [{"name": "tokens", "list": "string"}, {"name": "ner_tags", "list": TAGS}]
    tags = {"README.md": card(dataset_info={"features": features}), "train.parquet": rows_as_parquet(TAGGED)}
    data.commit("acme/tags", tags, "datasets")
    found = ner.load("ner", TaggingDataConfig(hub="acme/tags"), "train")
    assert [(sentence.words, sentence.tags) for sentence in found.sentences] == [
        (("Ann", "sings"), ("B-PER", "O")),
        (("So",), ("O",)),
    ]
    data.commit("acme/squad", {"train.parquet": rows_as_parquet([ANSWERED])}, "datasets")
    (question,) = squad_files.load("squad_v1", TextDataConfig(hub="acme/squad"), "train").questions
    assert (question.text, question.answers) == ("What is blue?", ("The sky",))


def test_data_sets_in_memory_are_read_as_those_of_the_hub():
    """Whatever they are formatted as; and a DatasetDict gives its splits."""
    datasets = pytest.importorskip("datasets")
    kinds = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    whole = datasets.Dataset.from_list(ROWS, features=datasets.Features(kinds))
    unlabelled = whole.map(lambda row: {"label": -1})
    expected = [{**row, "label": ["bad", "good"][row["label"]]} for row in ROWS]
    for source in (whole, whole.with_format("numpy"), whole.to_iterable_dataset(), whole.with_format("pandas")):
        assert readers.in_memory("train", source) == expected
    splits = datasets.DatasetDict(train=whole, validation=whole.select(range(4)), test=unlabelled)
    config, given = loop.from_arguments("text", {"train": splits, "dev": None, "test": None}, {})
    assert given == {"train": expected, "dev": expected[:4], "test": [{**row, "label": None} for row in expected]}
    assert not text.load("text", config.data, "test", ("bad", "good"), given).has_answers
    assert loop.from_arguments("text", {"dev": splits, "train": "a.tsv"}, {})[1] == {"dev": expected[:4]}
    for split, named, said in (
        (
            "dev",
            {"train": whole},
            "dev is a DatasetDict without validation or dev; it has train: give dev=data['train']",
        ),
        ("train", {"fit": whole}, "train is a DatasetDict without train; it has fit: give train=data['fit']"),
    ):
        assert said in message(loop.from_arguments, "text", {split: datasets.DatasetDict(named)}, {})
    classes = datasets.ClassLabel(names=["O", "B-PER"])
    tags = datasets.Features({"tokens": datasets.List(kinds["text"]), "ner_tags": datasets.List(classes)})
    found = loop.from_arguments("ner", {"train": datasets.Dataset.from_list(TAGGED, features=tags), "dev": "d"}, {})
    assert ner.load("ner", found[0].data, "train", given=found[1]).sentences[0].tags == ("B-PER", "O")
    asked = datasets.Dataset.from_list([ANSWERED])
    found = loop.from_arguments("squad_v1", {"train": asked, "dev": "d"}, {})
    (question,) = squad_files.load("squad_v1", found[0].data, "train", given=found[1]).questions
    assert (question.text, question.answers) == ("What is blue?", ("The sky",))


def test_what_a_configuration_says_of_the_hub():
    given = {"init_from": "m", "workdir": "w"}
    for values, said in (
        ({"data.hub": "a/b", "data.tfds": "imdb"}, "two data sets"),
        ({"data.hub": "a/b", "data.dev": "train[90%:]", "data.dev_share": 0.1}, "data.dev=train.* is given"),
        ({"data.hub": "a/b", "data.dir": "d"}, "data.dir=d has no effect with data.hub=a/b"),
        ({"data.tfds": "imdb", "data.dir": "d"}, "data.dir=d has no effect with data.tfds=imdb"),
        ({}, "--data.hub=OWNER/NAME"),
    ):
        with pytest.raises(UserError, match=said):
            check_finetune(with_options(task_defaults("text"), given | values))
    tagged = with_options(task_defaults("ner"), given | {"data.hub": "a/b", "data.word_column": 2})
    assert "data.word_column=2 has no effect with data.hub=a/b" in message(check_finetune, tagged)
    assert "names a split" in message(text.load, "text", TextDataConfig(hub="a/b:en:train"), "train")
    rows = {"train": [("a", "b")], "dev": [("a", "b")]}
    assert "in memory too" in message(loop.from_arguments, "text", rows, {**given, "hub": "a/b"})


@pytest.mark.slow
def test_a_fine_tuning_records_both_commits(data, files, tmp_path):
    commit = data.commit("acme/tiny", files)
    config = dataclasses.replace(task_defaults("text"), init_from="acme/tiny", workdir=str(tmp_path / "run"))
    config = with_options(config, {"data.hub": "acme/texts:en", "epochs": 1, "options.max_length": 8})
    first = finetune(config)
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())["finetune"]
    assert recorded["init_from"] == first.results["init_from"] == f"hf://acme/tiny@{commit}"
    assert recorded["data"]["hub"] == f"hf://datasets/acme/texts@{data.data}:en"
    data.commit("acme/tiny", {**files, "vocab.txt": b"moved"})
    data.commit("acme/texts", {"train.parquet": b"moved"}, "datasets")
    again = finetune(config)  # the same command, wherever main is
    assert again.results["init_from"] == recorded["init_from"]
