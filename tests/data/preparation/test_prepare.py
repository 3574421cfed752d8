"""`prepare`: stores of documents, interruptions, records of sources, and sources elsewhere."""

import contextlib
import fcntl
import gzip
import hashlib
import json
import multiprocessing
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import types
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest
import vocabularies
from cloud_bucket import bucket
from documents import NAMES, VOCABULARY, contents, random_documents, run, write_corpus, written
from processes import wait_until

from bert_jax.config.corpora import CleaningConfig
from bert_jax.config.options import from_dict
from bert_jax.corpus import documentation
from bert_jax.corpus.blocks import read_blocks
from bert_jax.corpus.readers import find_sources
from bert_jax.data.preparation import encoding, local_run
from bert_jax.data.preparation import writer as store_writer
from bert_jax.data.preparation.writer import Progress, owned, resume
from bert_jax.data.store import open_store
from bert_jax.errors import UserError
from bert_jax.files import sealed, unsealed

IDS = {token: index for index, token in enumerate(VOCABULARY)}


def expected_ids(sentence):
    return [IDS[("##" if index else "") + letter] for word in sentence.split() for index, letter in enumerate(word)]


def test_the_store_holds_the_text(tmp_path, vocab, small_blocks):
    documents = random_documents(200)
    run(write_corpus(tmp_path / "a.txt", documents), vocab, tmp_path / "store")
    store = open_store(tmp_path / "store")
    assert store.num_documents == len(documents) and store.num_sentences == sum(map(len, documents))
    assert len(store.manifest.shards) > 2
    starts = store.sentence_starts(np.arange(store.num_sentences + 1))
    tokens = store.tokens(np.arange(store.num_tokens)).tolist()
    bounds = store.document_sentences
    got = [[tokens[starts[s] : starts[s + 1]] for s in range(bounds[d], bounds[d + 1])] for d in range(len(documents))]
    assert got == [[expected_ids(sentence) for sentence in lines] for lines in documents]
    assert store.manifest.counts.text_bytes == sum(len(line) for lines in documents for line in lines)
    assert store.tokenizer().tokens == VOCABULARY


def test_any_number_of_workers_writes_the_same_bytes(tmp_path, vocab, small_blocks):
    write_corpus(tmp_path / "a.txt", random_documents(100))
    write_corpus(tmp_path / "b.txt.gz", random_documents(100, seed=1))
    (tmp_path / "c.txt").write_text("one sentence of a very long line. " * 500)
    records = [{"text": "\n".join(lines)} for lines in random_documents(30, seed=2)]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, records)))
    stores = []
    for workers in (1, 3):
        corpora = f"{tmp_path}/*.txt*,{tmp_path}/d.jsonl"
        run(corpora, vocab, tmp_path / f"store{workers}", workers=workers, sentences="split")
        stores.append(contents(tmp_path / f"store{workers}"))
    (tmp_path / "vocab.txt").unlink()
    assert stores[0] == stores[1]


def test_a_giant_line_stays_one_document(tmp_path, vocab, small_blocks):
    (tmp_path / "a.txt").write_text("before\n\n" + "This is the same sentence again. " * 3000 + "\n\nafter")
    run(tmp_path / "a.txt", vocab, tmp_path / "store", sentences="split")
    store = open_store(tmp_path / "store")
    assert store.document_sentences.tolist() == [0, 1, 3001, 3002]
    lengths = np.diff(store.sentence_starts(np.arange(store.num_sentences + 1)))
    assert set(lengths[1:3001]) == {len("Thisisthesamesentenceagain.")}


def test_empty_sentences_and_documents_are_dropped_and_overlong_ones_cut(tmp_path, vocab, monkeypatch):
    monkeypatch.setattr(encoding, "MAX_SENTENCE_CHARACTERS", 10)
    (tmp_path / "a.txt").write_text(
        "\u200b\n\u200b\n\nab\n\u200b\ncd\n\n\u200b\n\n" + "x" * 8 + " yy " + "z" * 12 + "\n§ §"
    )
    manifest = run(tmp_path / "a.txt", vocab, tmp_path / "store")
    store = open_store(tmp_path / "store")
    assert store.document_sentences.tolist() == [0, 2, 7]
    assert np.diff(store.sentence_starts(np.arange(8))).tolist() == [2, 2, 8, 2, 10, 2, 2]
    assert (manifest.counts.cut_sentences, manifest.counts.unknown_tokens) == (3, 2)


def test_a_large_vocabulary_takes_32_bits(tmp_path):
    words = [f"w{number}" for number in range(70_000)]
    (tmp_path / "vocab.txt").write_text("\n".join([*VOCABULARY, *words]) + "\n")
    (tmp_path / "a.txt").write_text("w69999 w0\n")
    assert run(tmp_path / "a.txt", str(tmp_path / "vocab.txt"), tmp_path / "store").dtype == "uint32"
    assert open_store(tmp_path / "store").tokens(np.arange(2)).tolist() == [len(VOCABULARY) + 69999, len(VOCABULARY)]


@pytest.mark.usefixtures("forked_workers")
def test_a_sentencepiece_vocabulary_is_stored_and_used(tmp_path, small_blocks):
    import sentencepiece

    documents = random_documents(50)
    sentences = [line for lines in documents for line in lines]
    pieces = {"pad_piece": "[PAD]", "unk_piece": "[UNK]", "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
    model = str(vocabularies.foreign_model(tmp_path / "small", sentences, vocab_size=60, **ids, **pieces))
    run(write_corpus(tmp_path / "a.txt", documents), model, tmp_path / "store", workers=2)
    store = open_store(tmp_path / "store")
    assert store.manifest.tokenizer.kind == "sentencepiece" and store.tokenizer().vocab_size == 60
    ids = sentencepiece.SentencePieceProcessor(model_file=model).encode(sentences)
    assert store.tokens(np.arange(store.num_tokens)).tolist() == [i for row in ids for i in row]


def test_the_documentation_as_corpus(tmp_path, vocab, small_blocks, monkeypatch):
    texts = ["\n".join(lines) for lines in random_documents(40)]
    monkeypatch.setattr(documentation, "describe", lambda: (5000, "digest"))
    monkeypatch.setattr(documentation, "documents", lambda: ((text, index / 40) for index, text in enumerate(texts, 1)))
    run("docs:", vocab, tmp_path / "store")
    write_corpus(tmp_path / "a.txt", [text.split("\n") for text in texts])
    run(tmp_path / "a.txt", vocab, tmp_path / "same")
    assert open_store(tmp_path / "store").num_documents == 40
    stores = [contents(tmp_path / name) for name in ("store", "same")]
    shards = [name for name in stores[0] if name.startswith("shard")]
    assert len(shards) == 3 and all(stores[0][name] == stores[1][name] for name in shards)


KILLED = """
import sys
from bert_jax.config import PrepareConfig
from bert_jax.corpus import blocks as text_blocks
from bert_jax.data.preparation import local_run, prepare, writer
text_blocks.BLOCK_BYTES = 1000
writer.SHARD_TOKENS = 20_000
local_run.RECORD_SECONDS = 0
if __name__ == "__main__":
    corpus, vocab, output = sys.argv[1:]
    prepare.run_prepare(PrepareConfig(input=corpus, vocab=vocab, output=output, sentences="lines", workers=2))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for the worker processes under /proc")
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.parquet", "dump.xml.bz2"])
def test_kill_and_run_again(tmp_path, vocab, small_blocks, capsys, name):
    corpus = written(tmp_path / name, random_documents(1500))
    (tmp_path / "killed.py").write_text(KILLED)
    output = tmp_path / "store"
    process = subprocess.Popen([sys.executable, str(tmp_path / "killed.py"), corpus, vocab, str(output)])
    wait_until((output / "shard-00001.tokens").exists, lambda: process.poll() is None)
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (output / "manifest.json").exists()
    with pytest.raises(UserError, match="not a token store"):
        open_store(output)
    first = (output / "shard-00000.tokens").read_bytes()
    for shard in output.glob("shard-*.tokens"):
        if shard.name != "shard-00000.tokens":
            with shard.open("ab") as file:
                file.write(b"written after the last record of the progress")
    assert len(children) >= 2
    run(corpus, vocab, output, workers=1)
    assert "resuming in" in capsys.readouterr().out
    assert (output / "shard-00000.tokens").read_bytes() == first
    run(corpus, vocab, tmp_path / "whole")
    assert contents(output) == contents(tmp_path / "whole")
    alive = lambda: any(pathlib.Path(f"/proc/{child}").exists() for child in children)
    wait_until(lambda: not alive(), said=lambda: "a worker outlived its parent")


def test_a_worker_ends_when_its_parent_has_ended(monkeypatch):
    ended, (sentinel, parent) = [], multiprocessing.Pipe()
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: types.SimpleNamespace(sentinel=sentinel))
    waiting = threading.Thread(target=local_run._end_with_parent)
    waiting.start()
    assert not ended
    parent.close()
    waiting.join()
    assert ended == [1]


@contextlib.contextmanager
def fails(match, tmp_path):
    before = contents(tmp_path)
    with pytest.raises(UserError, match=match):
        yield
    assert contents(tmp_path) == before and not (tmp_path / "store").exists()


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("workers", [1, 2])
def test_bad_text_found_late_leaves_nothing(tmp_path, vocab, small_blocks, workers):
    (tmp_path / "a.txt").write_bytes(b"good text\n\n" * 500 + b"\xff")
    with fails("a.txt: byte 5500 ", tmp_path):
        run(tmp_path / "a.txt", vocab, tmp_path / "store", workers=workers)
    manifest = run(tmp_path / "a.txt", vocab, tmp_path / "store", workers=workers, bad_utf8="replace")
    assert manifest.counts.replaced_characters == 1


def test_bad_requests(tmp_path, vocab):
    corpus = write_corpus(tmp_path / "a.txt", random_documents(3))
    with fails("no such file", tmp_path):
        run(tmp_path / "missing.txt", vocab, tmp_path / "store")
    with fails("workers=-1", tmp_path):
        run(corpus, vocab, tmp_path / "store", workers=-1)
    with fails("language", tmp_path):
        run(corpus, vocab, tmp_path / "store", sentences="split", language="English please")
    for language in ("xx", "eng", "xxx", "xx-gb"):
        with pytest.raises(
            UserError, match=f"language={language} is a code without rules for sentences; .*two letters"
        ):
            run(corpus, vocab, tmp_path / "store", sentences="split", language=language)
    with pytest.raises(UserError, match="language=de has no effect with sentences=lines"):
        run(corpus, vocab, tmp_path / "store", sentences="lines", language="de")
    with pytest.raises(UserError, match="text_field=body has no effect, since no source is of jsonl"):
        run(corpus, vocab, tmp_path / "store", sentences="lines", text_field="body")
    with pytest.raises(UserError, match="clean.near_threshold=0.7 belongs to clean.deduplicate=near"):
        run(corpus, vocab, tmp_path / "store", sentences="lines", clean=CleaningConfig(near_threshold=0.7))
    (tmp_path / "blank.txt").write_text(" \n\u200b\n\n\ufeff\0\r\n")
    with fails("holds no text", tmp_path):
        run(tmp_path / "blank.txt", vocab, tmp_path / "store")
    with fails("cannot write", tmp_path):
        run(corpus, vocab, tmp_path / "a.txt" / "store")


def test_an_output_that_holds_something_else(tmp_path, vocab):
    corpus, store = write_corpus(tmp_path / "a.txt", random_documents(3)), tmp_path / "store"
    store.mkdir()
    (store / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="holds other files .thesis.tex"):
        run(corpus, vocab, store)
    assert [path.name for path in store.iterdir()] == ["thesis.tex"]
    (store / "thesis.tex").unlink()
    with owned(store), pytest.raises(UserError, match="another `bert-jax prepare`"):
        run(corpus, vocab, store)
    run(corpus, vocab, store)


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_lock_that_its_owner_has_just_removed_is_none(tmp_path, vocab, monkeypatch, made_anew):
    corpus, store, flock = write_corpus(tmp_path / "a.txt", random_documents(3)), tmp_path / "store", fcntl.flock

    def late(file, operation):
        flock(file, operation)
        (store / "prepare.lock").unlink()
        if made_anew:
            (store / "prepare.lock").touch()

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(UserError, match="has just ended"):
        run(corpus, vocab, store)
    monkeypatch.undo()
    run(corpus, vocab, store)


def test_a_complete_store_is_kept_and_another_refused(tmp_path, vocab, capsys):
    corpus, store = write_corpus(tmp_path / "a.txt", random_documents(3)), tmp_path / "store"
    first = run(corpus, vocab, store)
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    assert run(corpus, vocab, store, workers=2) == first
    assert "already complete" in capsys.readouterr().out
    (tmp_path / "other.txt").write_text("\n".join([*VOCABULARY, "more"]) + "\n")
    for match, change in (
        (r"options.sentences: lines → split", {"sentences": "split"}),
        (
            r"different vocabulary \(wordpiece of 58 entries, --vocab is wordpiece of 59\)",
            {"vocab": str(tmp_path / "other.txt")},
        ),
        (r"sources.0.name: .*a.txt → .*vocab.txt", {"input": vocab}),
    ):
        with pytest.raises(UserError, match=match):
            run(**{"input": corpus, "vocab": vocab, "output": store, **change})
    write_corpus(tmp_path / "a.txt", random_documents(4))
    with pytest.raises(UserError, match=r"sources.0.bytes"):
        run(corpus, vocab, store)
    assert before == {path: path.stat().st_mtime_ns for path in store.rglob("*")}


@pytest.mark.parametrize(
    "error, match",
    [(OSError(28, "No space left on device"), "No space left.*resumes"), (BrokenProcessPool(), "worker process died")],
)
def test_what_is_no_fault_of_the_input_is_continued(tmp_path, vocab, small_blocks, monkeypatch, capsys, error, match):
    corpus, store = write_corpus(tmp_path / "a.txt", random_documents(100)), tmp_path / "store"
    append = store_writer.StoreWriter.append

    def fail_late(writer, block, continues):
        if writer.state.sentences > 100:
            raise error
        append(writer, block, continues)

    with monkeypatch.context() as patch, pytest.raises(UserError, match=match):
        patch.setattr(store_writer.StoreWriter, "append", fail_late)
        run(corpus, vocab, store)
    with pytest.raises(UserError, match="unfinished.*options.sentences: lines → split"):
        run(corpus, vocab, store, sentences="split")
    run(corpus, vocab, store)
    assert "resuming in" in capsys.readouterr().out
    run(corpus, vocab, tmp_path / "whole")
    assert contents(store) == contents(tmp_path / "whole")


def test_a_complete_store_that_was_damaged_is_not_called_complete(tmp_path, vocab):
    corpus, store = write_corpus(tmp_path / "a.txt", random_documents(3)), tmp_path / "store"
    run(corpus, vocab, store)
    (store / "shard-00000.tokens").write_bytes(bytes((store / "shard-00000.tokens").stat().st_size))
    with pytest.raises(UserError, match="content of shard-00000.tokens.*delete the store"):
        run(corpus, vocab, store)


def test_real_text_with_the_published_vocabulary(tmp_path, shared_data):
    """Every id decodes to the text it came from, as far as an uncased vocabulary keeps text."""
    documents = gzip.decompress((shared_data / "wiki" / "wiki_valid.txt.gz").read_bytes()).decode().split("\n\n")[:60]
    (tmp_path / "a.txt").write_text("\n\n".join(documents))
    run(tmp_path / "a.txt", str(shared_data / "vocab" / "uncased" / "vocab.txt"), tmp_path / "store", sentences="split")
    store = open_store(tmp_path / "store")
    tokenizer, bounds = store.tokenizer(), store.document_tokens
    assert store.num_documents == len(documents)
    for number, document in enumerate(documents):
        whole = tokenizer.encode_batch(document.strip().split("\n"))
        assert store.tokens(np.arange(bounds[number], bounds[number + 1])).tolist() == [i for ids in whole for i in ids]


@pytest.fixture
def interrupted(tmp_path, vocab, small_blocks, monkeypatch):
    """(corpus, vocabulary, output) of a run that broke off with one shard closed and the next one open."""
    corpus, store = write_corpus(tmp_path / "a.txt", random_documents(100)), tmp_path / "store"
    append = store_writer.StoreWriter.append

    def break_off(writer, block, continues):
        if writer.state.shards and writer.state.sentences > 20:
            raise OSError(28, "No space left on device")
        append(writer, block, continues)

    with monkeypatch.context() as patch, pytest.raises(UserError, match="No space left"):
        patch.setattr(store_writer.StoreWriter, "append", break_off)
        run(corpus, vocab, store)
    assert (store / "shard-00001.tokens").stat().st_size > 100
    return corpus, vocab, store


def cut(data: bytes) -> bytes:
    return data[:10]


def flip(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


def lengthen(data: bytes) -> bytes:
    """Of an open shard this would be text that the record does not know of yet."""
    return data + b"more"


@pytest.mark.parametrize(
    "name, damage",
    [
        ("shard-00000.tokens", cut),
        ("shard-00000.tokens", flip),
        ("shard-00000.documents", flip),
        ("shard-00000.sentences", lengthen),
        ("shard-00001.tokens", cut),
        ("shard-00001.tokens", flip),
        ("shard-00001.sentences", flip),
    ],
)
def test_shards_damaged_since_the_interruption_are_made_again(tmp_path, interrupted, capsys, name, damage):
    corpus, vocab, store = interrupted
    (store / name).write_bytes(damage((store / name).read_bytes()))
    run(corpus, vocab, store)
    shown = capsys.readouterr().out
    assert f"{name} does not hold what the interrupted run wrote" in shown and "resuming in" not in shown
    run(corpus, vocab, tmp_path / "whole")
    assert contents(store) == contents(tmp_path / "whole")


def test_text_after_the_last_record_is_written_again(tmp_path, interrupted, capsys):
    corpus, vocab, store = interrupted
    first = (store / "shard-00000.tokens").read_bytes()
    for file in store.glob("shard-00001.*"):
        file.write_bytes(lengthen(file.read_bytes()))
    with pytest.raises(UserError, match="not a token store"):
        open_store(store)
    run(corpus, vocab, store)
    assert "resuming in" in capsys.readouterr().out and (store / "shard-00000.tokens").read_bytes() == first
    run(corpus, vocab, tmp_path / "whole")
    assert contents(store) == contents(tmp_path / "whole")


def test_a_vocabulary_damaged_since_the_interruption_is_not_used(tmp_path, interrupted, capsys):
    corpus, vocab, store = interrupted
    (store / "tokenizer" / "vocab.txt").write_text("\n".join([*VOCABULARY[:5], *reversed(VOCABULARY[5:])]) + "\n")
    (store / "tokenizer" / "added_tokens.json").write_text("{}")
    run(corpus, vocab, store)
    assert "resuming in" in capsys.readouterr().out
    run(corpus, vocab, tmp_path / "whole")
    assert contents(store) == contents(tmp_path / "whole")


def test_no_changed_bit_of_the_progress_goes_unnoticed(interrupted):
    corpus, vocab, store = interrupted
    path, draw = store / "progress.json", random.Random(0)
    original = path.read_bytes()
    made_from = from_dict(Progress, unsealed(json.loads(original))).made_from
    expected = resume(store, made_from)
    for place in range(len(original)):
        changed = bytearray(original)
        changed[place] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        with contextlib.suppress(UserError):
            assert resume(store, made_from) == expected, place


@pytest.mark.parametrize("name", ["checksum", "cleaning"])
def test_progress_that_lacks_something_is_not_resumed(interrupted, name):
    corpus, vocab, store = interrupted
    values = json.loads((store / "progress.json").read_text())
    if name != "checksum":
        values = unsealed(values)
        del values[name]
        values = sealed(values)
    else:
        del values["checksum"]
    (store / "progress.json").write_text(json.dumps(values))
    says = "it has no checksum" if name == "checksum" else f"missing: {name}"
    with pytest.raises(UserError, match=f"progress.json is damaged: {says}; delete .* and start again"):
        run(corpus, vocab, store)


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
    expected = {"a.txt": "CC BY-SA 4.0", "b.txt": "public domain", "c.txt.gz": "public domain"}
    assert {name: licence for name, (licence, _) in recorded(corpora / "each").items()} == expected
    run(f"{corpora}/a.txt,{corpora}/books", vocab, corpora / "all", license="MIT")
    assert {licence for licence, _ in recorded(corpora / "all").values()} == {"MIT"}
    assert len({open_store(corpora / name).fingerprint for name in ("plain", "each", "all")}) == 1


def test_a_number_of_licences_that_is_not_that_of_the_sources_is_one_line(corpora, vocab):
    before = contents(corpora)
    message = "license='MIT,CC0' has 2 licences, and input names 1 source; give one"
    with pytest.raises(UserError, match=message):
        run(corpora / "books", vocab, corpora / "store", license="MIT,CC0")
    assert contents(corpora) == before


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
    with pyarrow.OSFile(f"{directory}/data.arrow", "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
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


DOCUMENTS = random_documents(60)


@pytest.fixture
def cloud(tmp_path):
    """What the bucket holds, as a local directory."""
    (tmp_path / "cloud" / "bucket").mkdir(parents=True)
    with bucket(tmp_path / "cloud"):
        yield tmp_path / "cloud" / "bucket"


def shards(directory: pathlib.Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(directory).items() if name.startswith("shard-")}


@pytest.mark.parametrize("name", NAMES)
def test_a_store_of_a_bucket_is_that_of_the_same_file_here(tmp_path, cloud, vocab, small_blocks, name):
    written(cloud / name, DOCUMENTS)
    run(f"gs://bucket/{name}", vocab, "gs://bucket/store")
    run(cloud / name, vocab, tmp_path / "here")
    assert shards(cloud / "store") == shards(tmp_path / "here") and len(shards(tmp_path / "here")) > 2


@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_a_bucket_resume(cloud, small_blocks, name):
    written(cloud / name, DOCUMENTS)
    [source] = find_sources(f"gs://bucket/{name}")
    whole = list(read_blocks(source))
    assert len(whole) > 5
    for index in (0, len(whole) // 2, len(whole) - 1):
        assert list(read_blocks(source, start=whole[index].end)) == whole[index + 1 :]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("a.txt", "a.jsonl")])
def test_a_file_of_a_bucket_that_is_cut_is_one_line(tmp_path, cloud, vocab, small_blocks, name):
    data = pathlib.Path(written(cloud / name, DOCUMENTS)).read_bytes()
    (cloud / name).write_bytes(data[: 9 * len(data) // 10])
    before = contents(cloud)
    with pytest.raises(UserError, match=f"gs://bucket/{name}"):
        run(f"gs://bucket/{name}", vocab, "gs://bucket/store")
    assert contents(cloud) == before


@pytest.fixture
def files(cloud):
    for name in ("d/a.txt", "d/b.txt", "d/e/c.txt", "d/.hidden", "f/a.txt"):
        (cloud / name).parent.mkdir(parents=True, exist_ok=True)
        (cloud / name).write_text(f"This is {name}.\n")
    (cloud / "empty").mkdir()


@pytest.mark.parametrize(
    "input, names",
    [
        ("d", "d/a.txt d/b.txt d/e/c.txt"),
        ("d/", "d/a.txt d/b.txt d/e/c.txt"),
        ("d/*.txt", "d/a.txt d/b.txt"),
        ("*/a.txt", "d/a.txt f/a.txt"),
        ("?/[bc].txt", "d/b.txt"),
        ("d/b.txt,gs://bucket/d/*.txt,gs://bucket/d", "d/b.txt d/a.txt d/e/c.txt"),
    ],
)
def test_globs_and_directories_of_a_bucket(files, input, names):
    assert [s.name for s in find_sources(f"gs://bucket/{input}")] == [f"gs://bucket/{name}" for name in names.split()]


@pytest.mark.parametrize(
    "input, message",
    [
        ("d/*.nope", r"no file matches the glob '\*.nope' in the directory gs://bucket/d, which holds .hidden, a.txt"),
        ("none/*.txt", "no file matches .* in the directory gs://bucket/none, which does not exist"),
        ("none.txt", "no such file; the directory gs://bucket holds d, empty, f"),
        ("empty", "no file in or below the directory gs://bucket/empty"),
        ("d/**", r"\*\* is not supported; name a directory"),
    ],
)
def test_what_matches_nothing_in_a_bucket_is_one_line(files, input, message):
    with pytest.raises(UserError, match=message) as error:
        find_sources(f"gs://bucket/{input}")
    assert f"gs://bucket/{input}" in str(error.value)
