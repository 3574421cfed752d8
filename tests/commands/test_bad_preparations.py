"""Cut archives, records without a text, unknown languages and runners: one line each, and nothing half-written."""

import gzip
import pathlib

import pytest
import wikipedia_dump
from letter_corpus import VOCABULARY
from refused_commands import Case, refused

pyarrow = pytest.importorskip("pyarrow", reason="it is of the extra `corpora`, as is what reads dumps")
parquet = pytest.importorskip("pyarrow.parquet")
zstd = pytest.importorskip("backports.zstd")

TEXT = b"a small text.\n\n" * 1000


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> pathlib.Path:
    """What the commands of the table are given. No case may change any of it."""
    place = tmp_path_factory.mktemp("archives")
    (place / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (place / "corpus.txt").write_bytes(TEXT)
    write_cut_archives(place)
    parquet.write_table(pyarrow.table({"body": ["fine"]}), place / "other_column.parquet")
    parquet.write_table(pyarrow.table({"text": ["fine", None]}), place / "null.parquet")
    return place


def write_cut_archives(place: pathlib.Path) -> None:
    """Write archives and columnar files that lack their end, as transfers that broke off leave them."""
    record = b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 5\r\n\r\nsmall\r\n\r\n"
    whole = {
        "cut.txt.gz": gzip.compress(TEXT),
        "cut.txt.zst": zstd.compress(TEXT),
        "cut.warc.wet": record * 3,
        "cut.xml.bz2": wikipedia_dump.write(place / "cut.xml.bz2", wikipedia_dump.pages()).read_bytes(),
    }
    parquet.write_table(pyarrow.table({"text": ["fine"] * 1000}), place / "cut.parquet")
    whole["cut.parquet"] = (place / "cut.parquet").read_bytes()
    for name, data in whole.items():
        (place / name).write_bytes(data[: 9 * len(data) // 10])


PREPARE = "prepare --vocab=@/vocab.txt --output=@/new"

CASES = [
    Case(
        "a record without text in Parquet",
        f"{PREPARE} --input=@/other_column.parquet",
        ("other_column.parquet: no text column 'text', but body", "--text_field"),
    ),
    Case(
        "a null for a text",
        f"{PREPARE} --input=@/null.parquet",
        ("null.parquet: row 1: the column 'text' holds None, not a string",),
    ),
    Case(
        "a truncated gzip file",
        f"{PREPARE} --input=@/cut.txt.gz",
        ("cut.txt.gz is not a whole gzip file", "fetch or compress it again"),
    ),
    Case(
        "a truncated Zstandard file", f"{PREPARE} --input=@/cut.txt.zst", ("cut.txt.zst is not a whole Zstandard file",)
    ),
    Case(
        "an unknown language",
        f"{PREPARE} --input=@/corpus.txt --clean.languages=en,klingon",
        ("clean.languages=klingon", "cannot be identified"),
    ),
    Case(
        "a runner that there is none of",
        f"{PREPARE} --input=@/corpus.txt --runner=spork",
        ("--runner", "'spork'", "beam"),
    ),
    Case(
        "an option of Beam without Beam",
        f"{PREPARE} --input=@/corpus.txt --beam.project=p",
        ("--beam.project=p is an option of Apache Beam", "--runner=beam"),
    ),
    Case("a truncated dump", f"{PREPARE} --input=@/cut.xml.bz2", ("cut.xml.bz2 is not a whole bzip2 file",)),
    Case("a truncated crawl", f"{PREPARE} --input=@/cut.warc.wet", ("cut.warc.wet ends within a record",)),
    Case(
        "a truncated Parquet file", f"{PREPARE} --input=@/cut.parquet", ("cut.parquet is damaged or cut short", "again")
    ),
    Case(
        "a truncated dump after a whole file",
        f"{PREPARE} --input=@/corpus.txt,@/cut.xml.bz2",
        ("cut.xml.bz2 is not a whole bzip2 file",),
    ),
    Case(
        "a truncated file for a vocabulary",
        "train-vocab --output=@/new.txt --size=200 --input=@/cut.txt.gz",
        ("cut.txt.gz is not a whole gzip file",),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_one_line_and_nothing_written(case, place, capfd, caplog):
    refused(case, place, capfd, caplog)
