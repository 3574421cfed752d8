"""Parquet, Arrow and saved data sets, against pyarrow's own reading of the same files, and damaged ones."""

import json
import random

import pytest
from letter_corpus import contents, random_documents, run
from refused_documents import refused

from bert_jax.corpus import blocks
from bert_jax.corpus.blocks import read_blocks
from bert_jax.corpus.readers import find_sources, read_documents
from bert_jax.errors import UserError

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import feather, ipc, parquet  # noqa: E402

TEXTS = ["\n".join(lines) for lines in random_documents(300, seed=3)]
TABLE = pyarrow.table({"id": range(len(TEXTS)), "text": TEXTS, "body": [f"Row {i}." for i in range(len(TEXTS))]})


def write_stream(table, path):
    with pyarrow.OSFile(str(path), "wb") as file, ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=70)


def write_saved(table, directory):
    """As `datasets.save_to_disk` does: shards in the order of a list, which need not be that of their names."""
    directory.mkdir()
    write_stream(table.slice(0, 200), directory / "data-00001-of-00002.arrow")
    write_stream(table.slice(200), directory / "data-00000-of-00002.arrow")
    files = [{"filename": f"data-0000{i}-of-00002.arrow"} for i in (1, 0)]
    (directory / "state.json").write_text(json.dumps({"_data_files": files, "_split": "train"}))
    (directory / "dataset_info.json").write_text("{}")


WRITERS = {
    "a.parquet": lambda table, path: parquet.write_table(table, path, row_group_size=90),
    "zstd.parquet": lambda table, path: parquet.write_table(table, path, compression="zstd", data_page_size=500),
    "stream.arrow": write_stream,
    "file.arrow": lambda table, path: feather.write_feather(table, path, compression="uncompressed", chunksize=50),
    "packed.feather": lambda table, path: feather.write_feather(table, path, compression="lz4"),
    "saved": write_saved,
}


@pytest.mark.parametrize(
    "kind", [pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), "utf8")]
)
@pytest.mark.parametrize("name", WRITERS)
def test_rows_are_documents(tmp_path, name, kind):
    table = TABLE.set_column(1, "text", TABLE["text"].cast(pyarrow.string()).cast(kind))
    WRITERS[name](table, tmp_path / name)
    assert list(read_documents(str(tmp_path / name))) == table["text"].to_pylist()
    assert list(read_documents(str(tmp_path / name), text_field="body")) == table["body"].to_pylist()


@pytest.mark.parametrize("name", ["a.parquet", "stream.arrow", "file.arrow"])
def test_blocks_resume_at_every_position(tmp_path, monkeypatch, name):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2000)
    WRITERS[name](TABLE, tmp_path / name)
    [source] = find_sources(str(tmp_path / name))
    whole = list(read_blocks(source))
    assert len(whole) > 10 and whole[-1].end.offset == len(TEXTS)
    for index, block in enumerate(whole):
        assert list(read_blocks(source, start=block.end)) == whole[index + 1 :]


def test_the_store_is_the_same_for_any_number_of_workers_and_that_of_json_lines(tmp_path, vocab, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2000)
    WRITERS["a.parquet"](TABLE, tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    stores = []
    for name, workers in (("a.parquet", 1), ("a.parquet", 2), ("a.jsonl", 1)):
        store = tmp_path / f"{name}_{workers}"
        run(tmp_path / name, vocab, store, workers=workers)
        stores.append(contents(store))
    assert stores[0] == stores[1]
    assert {**stores[0], "manifest.json": b""} == {**stores[2], "manifest.json": b""}


@pytest.mark.parametrize("name", ["a.parquet", "stream.arrow", "file.arrow", "packed.feather"])
def test_damaged_files_are_one_line(tmp_path, name):
    WRITERS[name](TABLE, tmp_path / name)
    whole, draw = (tmp_path / name).read_bytes(), random.Random(0)
    for damaged in (whole[:-40], whole[: len(whole) // 2], whole[:7], b"nothing of the kind"):
        (tmp_path / name).write_bytes(damaged)
        refused(tmp_path / name, name, "damaged or cut short")
    for _ in range(60):  # whatever is flipped: the texts, or one line
        changed = bytearray(whole)
        for _ in range(20):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        (tmp_path / name).write_bytes(changed)
        try:
            list(read_documents(str(tmp_path / name)))
        except UserError as error:
            assert "\n" not in str(error)


def test_rows_without_text(tmp_path):
    parquet.write_table(TABLE, tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", "no text column 'content', but text, body", "--text_field", text_field="content")
    refused(tmp_path / "a.parquet", "no text column 'id'", text_field="id")
    parquet.write_table(pyarrow.table({"text": ["a", None]}), tmp_path / "b.parquet")
    refused(tmp_path / "b.parquet", "row 1: the column 'text' holds None")


def test_saved_data_sets_that_are_incomplete(tmp_path):
    write_saved(TABLE, tmp_path / "train")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    refused(tmp_path, "splits train, test", f"{tmp_path}/train")
    (tmp_path / "train" / "data-00000-of-00002.arrow").unlink()
    refused(tmp_path / "train", "lists data-00000-of-00002.arrow, which is not in")
    (tmp_path / "train" / "state.json").write_text('{"_data_files": [{"filename": "../../etc/passwd"}]}')
    refused(tmp_path / "train", "not a file of this directory")


def test_compressed_besides_and_without_the_extra(tmp_path, monkeypatch):
    parquet.write_table(TABLE, tmp_path / "a.parquet")
    (tmp_path / "b.parquet.gz").write_bytes(b"\x1f\x8b")
    refused(tmp_path / "b.parquet.gz", "decompress this one first")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(tmp_path / "a.parquet", "needs pyarrow", "bert_jax[corpora]")
