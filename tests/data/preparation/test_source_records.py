"""What the manifest says of the sources of a store: their licences and hashes."""

import hashlib
import json
import pathlib

import pytest
from letter_corpus import contents, random_documents, run, write_corpus

from bert_jax.data.preparation import local_run
from bert_jax.data.store import open_store
from bert_jax.errors import UserError


def recorded(store):
    return {
        pathlib.Path(source["name"]).name: (source["license"], source["sha256"])
        for source in json.loads((store / "manifest.json").read_text())["sources"]
    }


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def corpora(tmp_path):
    for number, name in enumerate(("a.txt", "books/b.txt", "books/c.txt.gz")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_corpus(tmp_path / name, random_documents(10, number))
    return tmp_path


def test_licences_are_of_all_sources_or_of_each_and_hashes_are_of_their_files(corpora, vocab):
    run(f"{corpora}/a.txt,{corpora}/books", vocab, corpora / "plain")
    hashes = {path.name: digest(path) for path in (corpora / "a.txt", *(corpora / "books").iterdir())}
    assert recorded(corpora / "plain") == {name: ("", sha256) for name, sha256 in hashes.items()}
    run(f"{corpora}/a.txt,{corpora}/books", vocab, corpora / "each", license="CC BY-SA 4.0, public domain")
    assert {name: licence for name, (licence, _) in recorded(corpora / "each").items()} == {
        "a.txt": "CC BY-SA 4.0",
        "b.txt": "public domain",
        "c.txt.gz": "public domain",
    }
    run(f"{corpora}/a.txt,{corpora}/books", vocab, corpora / "all", license="MIT")
    assert {licence for licence, _ in recorded(corpora / "all").values()} == {"MIT"}
    assert len({open_store(corpora / name).fingerprint for name in ("plain", "each", "all")}) == 1


def test_a_number_of_licences_that_is_not_that_of_the_sources_is_one_line(corpora, vocab):
    before = contents(corpora)
    with pytest.raises(
        UserError, match="license='MIT,CC0' has 2 licences, and input names 1 source; give one"
    ) as error:
        run(corpora / "books", vocab, corpora / "store", license="MIT,CC0")
    assert "\n" not in str(error.value) and contents(corpora) == before


def test_a_finished_store_is_known_again_and_takes_another_licence(corpora, vocab, capsys):
    store = corpora / "store"
    run(f"{corpora}/a.txt,{corpora}/books", vocab, store, license="MIT,CC0")
    before, fingerprint, hashes = contents(store), open_store(store).fingerprint, recorded(store)
    capsys.readouterr()
    for given in ("MIT,CC0", ""):  # without one, what was recorded stays
        run(f"{corpora}/a.txt,{corpora}/books", vocab, store, license=given)
        assert "is already complete" in capsys.readouterr().out and contents(store) == before
    run(f"{corpora}/a.txt,{corpora}/books", vocab, store, license=",public domain")
    assert "has the new licences: MIT, public domain" in capsys.readouterr().out
    wanted = {"a.txt": "MIT", "b.txt": "public domain", "c.txt.gz": "public domain"}
    assert recorded(store) == {name: (wanted[name], sha256) for name, (_, sha256) in hashes.items()}
    assert open_store(store).fingerprint == fingerprint
    assert {name for name, data in contents(store).items() if data != before[name]} == {"manifest.json"}


def test_an_interrupted_run_resumes_under_another_licence(corpora, vocab, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(local_run, "publish", lambda *_: (_ for _ in ()).throw(OSError("no space")))
        with pytest.raises(UserError, match="no space.*the same command resumes"):
            run(corpora / "books", vocab, corpora / "store", license="MIT")
    run(corpora / "books", vocab, corpora / "store", license="CC0")
    assert {licence for licence, _ in recorded(corpora / "store").values()} == {"CC0"}


def test_a_saved_data_set_says_its_licence(tmp_path, vocab):
    pyarrow = pytest.importorskip("pyarrow")
    directory = tmp_path / "saved"
    directory.mkdir()
    table = pyarrow.table({"text": ["\n".join(lines) for lines in random_documents(5)]})
    with (
        pyarrow.OSFile(f"{directory}/data.arrow", "wb") as file,
        pyarrow.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write_table(table)
    (directory / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    (directory / "dataset_info.json").write_text('{"license": "cc-by-4.0"}')
    run(directory, vocab, tmp_path / "store")
    assert recorded(tmp_path / "store") == {"data.arrow": ("cc-by-4.0", digest(directory / "data.arrow"))}
    run(directory, vocab, tmp_path / "other", license="CC0")
    assert recorded(tmp_path / "other")["data.arrow"][0] == "CC0"


def test_a_file_that_changes_while_it_is_read_has_no_hash(corpora, vocab, monkeypatch, caplog):
    make_manifest = local_run.make_manifest

    def appended_to(*given, **options):
        with (corpora / "a.txt").open("ab") as file:
            file.write(b"more\n")
        return make_manifest(*given, **options)

    monkeypatch.setattr(local_run, "make_manifest", appended_to)
    run(f"{corpora}/a.txt,{corpora}/books", vocab, corpora / "store")
    hashes = {name: sha256 for name, (_, sha256) in recorded(corpora / "store").items()}
    assert hashes["a.txt"] == "" and hashes["b.txt"] == digest(corpora / "books" / "b.txt")
    [warning] = [record.getMessage() for record in caplog.records if "no hash" in record.getMessage()]
    assert "a.txt was changed or removed while it was read" in warning
