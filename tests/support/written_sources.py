"""The same documents in every format that `prepare` reads and tells by its name and beginning."""

import gzip
import json

import pytest
import wikipedia_dump

NAMES = ("a.txt", "a.txt.gz", "a.txt.zst", "a.jsonl", "dump.xml.bz2", "crawl.warc.wet.gz", "a.parquet", "a.arrow")


def written(path, documents):
    """Write documents, lists of lines, in the format that the name says; return the name."""
    texts = ["\n".join(lines) for lines in documents]
    plain = ("\n\n".join(texts) + "\n").encode()
    if path.name == "dump.xml.bz2":
        paragraphs = [text.replace("\n", "\n\n") for text in texts]
        wikipedia_dump.write(path, [wikipedia_dump.page(f"Article {i}", 0, text) for i, text in enumerate(paragraphs)])
    elif path.suffix in (".parquet", ".arrow"):
        _write_table(path, texts)
    elif path.name == "a.txt.zst":
        path.write_bytes(pytest.importorskip("backports.zstd").compress(plain))
    elif path.name == "a.jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    elif path.name == "crawl.warc.wet.gz":
        path.write_bytes(b"".join(gzip.compress(_record(text.encode())) for text in texts))
    else:
        path.write_bytes(gzip.compress(plain) if path.suffix == ".gz" else plain)
    return str(path)


def _record(text):
    return b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: %d\r\n\r\n%s\r\n\r\n" % (len(text), text)


def _write_table(path, texts):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"text": texts})
    if path.suffix == ".parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=90)
    else:
        with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=70)
