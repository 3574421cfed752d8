"""Readers of documents: text, JSON, Arrow, compressed files, and lines that are wrapped."""

import bz2
import contextlib
import dataclasses
import gzip
import json
import lzma
import random
import re
import shutil
import textwrap

import documents
import glue_files
import pytest
from documents import contents, random_documents, refused, run, write_corpus
from pyarrow import feather, ipc, parquet

from bert_jax.config import PrepareConfig
from bert_jax.corpus import blocks, documentation
from bert_jax.corpus import blocks as text_blocks
from bert_jax.corpus import text as wrapping
from bert_jax.corpus.blocks import Limits, parse_block, read_blocks
from bert_jax.corpus.readers import find_sources, read_documents
from bert_jax.corpus.text import make_splitter
from bert_jax.data.preparation import prepare
from bert_jax.data.preparation import writer as store_writer
from bert_jax.data.store import open_store
from bert_jax.errors import UserError

DOCUMENTS = [
    "First paragraph. Two sentences.\nSecond paragraph: naïve café.",
    "Another document.",
    "A third one,\nof two lines.",
]
PLAIN = "\n\n".join(DOCUMENTS) + "\n"


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def read(input, **options):
    return list(read_documents(str(input), **options))


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.txt", PLAIN),
        ("a.txt.gz", PLAIN),
        ("crlf.txt", PLAIN.replace("\n", "\r\n")),
        ("cr.txt", PLAIN.replace("\n", "\r")),
        ("bom.txt", "\ufeff" + PLAIN),
        ("nul.txt", PLAIN.replace(" ", "\0 ")),
        ("blank.txt", "\n \n\n" + PLAIN.replace("\n\n", "\n \t\n\n\n") + "\n\n"),
        ("unended.txt", PLAIN.rstrip("\n")),
        ("a.jsonl", "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(DOCUMENTS))),
        (
            "a.json.gz",
            "\r\n\r\n".join(
                json.dumps({"text": text.replace("\n", "\r\n\r\n")}, ensure_ascii=False) for text in DOCUMENTS
            ),
        ),
        ("bom.jsonl", "\ufeff" + "\n".join(json.dumps({"text": text}) for text in DOCUMENTS)),
        (
            "AA/wiki_00",
            "".join(f'<doc id="{i}" url="u" title="t">\n{text}\n\n</doc>\n' for i, text in enumerate(DOCUMENTS)),
        ),
        ("wiki_01.gz", "\r\n".join(f'<doc id="{i}">\r\n{text}\r\n</doc>' for i, text in enumerate(DOCUMENTS))),
    ],
)
@pytest.mark.parametrize("block_bytes", [1 << 20, 40])
def test_every_form_gives_the_same_documents(tmp_path, monkeypatch, name, content, block_bytes):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    path = write(tmp_path / name, content)
    got = read(path)
    if block_bytes == 40:  # a line longer than a block is cut; nothing else may differ
        assert [" ".join(text.split()) for text in got] == [" ".join(text.split()) for text in DOCUMENTS]
    else:
        assert got == DOCUMENTS


def test_directories_globs_and_lists(tmp_path):
    for index, name in enumerate(("b/2.txt", "a.txt", "b/.hidden", "b/c/1.txt")):
        write(tmp_path / name, DOCUMENTS[index] if index < 3 else "Deep.")
    assert read(tmp_path) == [DOCUMENTS[1], DOCUMENTS[0], "Deep."]
    assert read(tmp_path / "b" / "*.txt") == [DOCUMENTS[0]]
    assert read(tmp_path / "*" / "?" / "1.txt") == ["Deep."]
    assert read(f"{tmp_path}/b/c, {tmp_path}/a.txt,{tmp_path}/*.txt") == ["Deep.", DOCUMENTS[1]]


def test_explicit_format_and_field(tmp_path):
    path = write(tmp_path / "records.dat", '{"body": "One."}\n{"body": "Two."}\n')
    assert read(path, format="jsonl", text_field="body") == ["One.", "Two."]


@pytest.mark.parametrize("form", ["text", "jsonl", "wikiextractor"])
def test_blocks_resume_at_every_position(tmp_path, monkeypatch, form):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 64)
    rng = random.Random(0)
    texts = ["\n".join("word " * rng.randrange(1, 40) for _ in range(rng.randrange(1, 5))) for _ in range(20)]
    content = {
        "text": "\r\n\r\n".join(texts),
        "jsonl": "\n".join(json.dumps({"text": text}) for text in texts),
        "wikiextractor": "\n".join(f'<doc id="1">\n{text}\n</doc>' for text in texts),
    }[form]
    [source] = find_sources(write(tmp_path / "corpus.gz", content), form)
    whole = list(blocks.read_blocks(source))
    assert len(whole) > 10
    assert b"".join(block.payload for block in whole) == content.encode()
    for index, block in enumerate(whole):
        assert block.end.line == content.encode()[: block.end.offset].count(b"\n")
        assert list(blocks.read_blocks(source, start=block.end))[:2] == whole[index + 1 : index + 3]


def test_blocks_of_documents_resume_at_every_position(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 64)
    texts = [f"Document number {number} of\n\0{'some ' * number}." for number in range(30)]
    monkeypatch.setattr(documentation, "documents", lambda: ((text, (i + 1) / 30) for i, text in enumerate(texts)))
    source = blocks.Source("docs:", "docs", 3000, "1")
    whole = list(blocks.read_blocks(source))
    assert len(whole) > 10 and whole[-1].consumed == 3000
    for index, block in enumerate(whole):
        assert list(blocks.read_blocks(source, start=block.end)) == whole[index + 1 :]
    pieces = [piece for block in whole for piece in blocks.parse_block(block).pieces[1:]]
    assert ["\n".join(piece) for piece in pieces] == [text.replace("\0", "") for text in texts]


def test_one_long_line_is_cut_after_sentences_and_never_inside_a_character(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 100)
    text = "This sentence is a little shorter. " * 50
    [source] = find_sources(write(tmp_path / "a.txt", text))
    parts = list(blocks.read_blocks(source))
    assert all(block.payload.endswith(b"shorter. ") for block in parts) and len(parts) > 20
    assert [block.continues for block in parts] == [False] + [True] * (len(parts) - 1)
    [source] = find_sources(write(tmp_path / "b.txt", "é語😀" * 100))
    assert "".join(block.payload.decode() for block in blocks.read_blocks(source)) == "é語😀" * 100


def fails(match, input, **options):
    with pytest.raises(UserError, match=match):
        read(input, **options)


def test_an_input_that_matches_nothing_is_refused_with_what_is_there(tmp_path):
    write(tmp_path / "here.txt", "text")
    fails(rf"no such file; the directory {tmp_path} holds here.txt", tmp_path / "missing.txt")
    fails(r"no file matches the glob '\*\.gz' in the directory " + str(tmp_path), tmp_path / "*.gz")
    fails("which does not exist", tmp_path / "nowhere" / "*.gz")
    (tmp_path / "empty").mkdir()
    fails("no file in or below", tmp_path / "empty")
    fails("name a directory", tmp_path / "**" / "*.txt")
    fails("input is empty", " , ")
    fails("the corpus is empty", write(tmp_path / "void.txt", ""))
    fails("contradicts", "docs:", format="text")


def test_bytes_that_are_not_utf8(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 32)
    good = "Eine Zeile mit Wörtern.\n" * 10
    path = write(tmp_path / "latin.txt", good.encode() + "Bröt".encode("latin-1") + b" more.\n")
    fails(rf"latin.txt: byte {len(good.encode()) + 2} .*0xf6.* not UTF-8", path)
    assert read(path, bad_utf8="replace")[0].endswith("Br\ufffdt more.")
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        wide = write(tmp_path / "wide.txt", "Eine Zeile.\n".encode(encoding))
        fails(f"wide.txt is {encoding.upper()[:6]}.*, not UTF-8; convert it: iconv -f {encoding.upper()[:6]}", wide)
        with pytest.raises(UserError, match="wide.txt is UTF-"):
            read(wide, bad_utf8="replace")


def test_what_is_made_to_exhaust_a_reader_is_refused_early(tmp_path, monkeypatch):
    """Two megabytes of line feeds in a few bytes of bzip2, gzip or xz, and a line that does not end."""
    monkeypatch.setattr(blocks, "UNCOUNTED", 1 << 20)
    for ending, compressed in (("xz", lzma.compress), ("gz", gzip.compress), ("bz2", bz2.compress)):
        bomb = tmp_path / f"b.txt.{ending}"
        bomb.write_bytes(compressed(b"\n" * 2_500_000))
        fails(f"{ending} has .* bytes and holds more than 200 times as much text.* raise max_expansion", bomb)
    assert read(bomb, limits=Limits(expansion=1 << 24)) == []
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 32)
    line = write(tmp_path / "line.txt", "first\n\n" + "word " * 100 + "\n\nlast\n")
    assert len(read(line)) == 3
    with pytest.raises(
        UserError, match="line.txt:3: a line of more than 250 bytes; raise max_line_bytes if it is right"
    ):
        read(line, limits=Limits(line_bytes=250))
    assert len(read(line, limits=Limits(line_bytes=501))) == 3


def test_replaced_bytes_are_counted(tmp_path):
    [source] = find_sources(write(tmp_path / "a.txt", b"a\xff b\xfe and a true \xef\xbf\xbd"))
    [block] = blocks.read_blocks(source)
    assert blocks.parse_block(block, bad_utf8="replace").replaced == 2


def test_json_errors_name_the_line(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 32)
    good = '{"text": "fine"}\n' * 7
    for record, said in (
        ('{"text": "cut', "not a JSON object"),
        ('{"body": "x"}', "no field 'text', the record has the fields 'body'"),
        ('{"text": 3}', "the field 'text' holds 3, not a string; remove the record, or"),
        ("[1]", "no field 'text', the record is not an object"),
        ("[" * 100_000, "not a JSON"),
        ('{"text": "a"}\r{"text": "b"}', "its lines end in carriage returns alone"),
    ):
        fails(f"a.jsonl:8: {said}", write(tmp_path / "a.jsonl", f"{good}{record}\n"))
    digits = "9" * 4301  # more than int() takes
    assert read(write(tmp_path / "a.jsonl", f'{{"text": "a", "id": -{digits}, "of": [{digits}]}}\n'))[-1] == "a"
    fails("a.jsonl:1: the field 'text' holds inf", write(tmp_path / "a.jsonl", f'{{"text": {digits}}}\n'))
    monkeypatch.setattr(blocks, "MAX_RECORD_BYTES", 64)
    fails("a.jsonl:8: a line of more than", write(tmp_path / "a.jsonl", good + '{"text": "' + "x" * 200 + '"}'))


def test_lone_surrogates_of_json_become_text(tmp_path):
    """JSON can spell half of a surrogate pair, which is no character and no tokenizer takes; a whole pair is one."""
    path = write(tmp_path / "a.jsonl", '{"text": "a\\ud800b\\u0000c"}\n{"text": "\\ud83d\\ude00 \\udc00\\udfff"}')
    assert read(path) == ["a\ufffdbc", "\U0001f600 \ufffd\ufffd"]
    (source,) = find_sources(str(path))
    assert [parse_block(block).replaced for block in read_blocks(source)] == [3]


@pytest.mark.slow
@pytest.mark.parametrize("files", [1, 3])
def test_tfds_through_a_builder_of_our_own(tmp_path, monkeypatch, files):
    pytest.importorskip("tensorflow_datasets")
    wiki40b = ["\n_START_ARTICLE_\nTitle\n_START_PARAGRAPH_\nOne._NEWLINE_Two."]
    glue_files.prepare(tmp_path, monkeypatch, {"train": DOCUMENTS, "test": wiki40b * files}, files)
    assert sorted(read("tfds:tiny_corpus")) == sorted(DOCUMENTS)
    assert read("tfds:tiny_corpus:train") == read("tfds:tiny_corpus:1.0.0:train") == read("tiny_corpus", format="tfds")
    assert len(read("tfds:tiny_corpus:train[:2]")) == 2
    assert read("tfds:tiny_corpus:test") == ["Title\nOne.\nTwo."] * files
    fails("no text feature 'id', but text", "tfds:tiny_corpus", text_field="id")
    fails("valid", "tfds:tiny_corpus:valid")
    fails("no_such_corpus", "tfds:no_such_corpus")
    fails("is not of the form", "tfds:")


def test_each_file_of_a_tfds_split_is_a_source(tmp_path, monkeypatch):
    tfds = pytest.importorskip("tensorflow_datasets")
    texts = [f"Text number {number}." for number in range(20)]
    glue_files.prepare(tmp_path, monkeypatch, {"train": texts}, files=4)
    found = find_sources("tfds:tiny_corpus")
    assert [source.name for source in found] == [f"tfds:tiny_corpus:train[{n}shard:{n + 1}shard]" for n in range(4)]
    dataset = tfds.load("tiny_corpus", split="train", read_config=tfds.ReadConfig(interleave_cycle_length=1))
    assert [text for source in found for text in read(source.name)] == [
        example["text"].decode() for example in dataset.as_numpy_iterator()
    ]
    assert [source.name for source in find_sources("tfds:tiny_corpus:train[:50%]")] == ["tfds:tiny_corpus:train[:50%]"]


def test_sentences_are_split_and_nothing_is_lost():
    split = make_splitter("split")
    assert split(["Dr. Smith met Mr. Jones. It cost 3.5 dollars! “Really?” she asked.", "  A second line ", " "]) == [
        "Dr. Smith met Mr. Jones.",
        "It cost 3.5 dollars!",
        "“Really?” she asked.",
        "A second line",
    ]
    assert make_splitter("lines")(["One. Two. ", "", "Three."]) == ["One. Two.", "Three."]
    with pytest.raises(UserError, match="language"):
        make_splitter("split", "English!")


@pytest.mark.parametrize(
    "line, longest",
    [
        ("Here is one sentence of the usual kind. " * 2_000, 50),
        ("“ " + "Here is one after a mark that nobody closed. " * 2_000, 50),
        ("no end in sight " * 5_000, 80_000),
        ("x" * 35_000, 35_000),
    ],
)
def test_long_lines_are_split_as_short_ones(line, longest):
    got = make_splitter("split")([line])
    assert "".join("".join(got).split()) == "".join(line.split())
    assert max(map(len, got)) <= longest


def test_spaces_that_sentencex_cannot_bear():
    split = make_splitter("split")
    assert split(["He met J\u00a0. Smith. J\u3000."]) == ["He met J . Smith.", "J ."]


def test_a_panic_of_the_library_costs_its_rules_for_one_line(monkeypatch):
    import sentencex

    class PanicException(BaseException):
        pass

    def panic(language, text):
        raise PanicException

    monkeypatch.setattr(sentencex, "segment", panic)
    assert make_splitter("split")(["One. Two?  Three", "Four!"]) == ["One.", "Two?", "Three", "Four!"]


TEXT = "\n\n".join(f"Document {i} says {random.Random(i).random()}." for i in range(400)).encode()


def zstd_compress(data: bytes) -> bytes:
    return pytest.importorskip("backports.zstd").compress(data)


KINDS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd_compress}


def write_of_compressed(path, ending, streams=3):
    path = path.with_name(path.name + ending)
    size = len(TEXT) // streams + 1
    path.write_bytes(b"".join(KINDS[ending](TEXT[i : i + size]) for i in range(0, len(TEXT), size)))
    return path


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("ending", KINDS)
def test_text_of_one_and_several_streams(tmp_path, monkeypatch, ending, streams):
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 1000)
    path = write_of_compressed(tmp_path / "a.txt", ending, streams)
    assert list(read_documents(str(path))) == TEXT.decode().split("\n\n")
    [source] = find_sources(str(path))
    blocks = list(read_blocks(source))
    assert len(blocks) > 10
    for index in (0, 5, len(blocks) - 2):
        expected = [block.payload for block in blocks[index + 1 :]]
        assert [block.payload for block in read_blocks(source, start=blocks[index].end)] == expected


@pytest.mark.parametrize("ending", KINDS)
def test_damaged_and_foreign_files_are_refused(tmp_path, ending):
    path = write_of_compressed(tmp_path / "a.txt", ending)
    whole = path.read_bytes()
    overwritten = whole[:40] + bytes(40) + whole[80:]
    for damaged in (whole[:-20], whole[: len(whole) // 2], overwritten, b"nothing of the kind at all"):
        path.write_bytes(damaged)
        fails(rf"a.txt{ending} is not a whole \w+ file", path)


@pytest.mark.parametrize("ending", [".bz2", ".zst"])
def test_the_store_is_that_of_the_plain_text(tmp_path, vocab, monkeypatch, ending):
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 1000)
    plain = write_corpus(tmp_path / "a.txt", random_documents(40))
    data = (tmp_path / "a.txt").read_bytes()
    (tmp_path / f"b.txt{ending}").write_bytes(KINDS[ending](data[:3001]) + KINDS[ending](data[3001:]))
    run(plain, vocab, tmp_path / "plain")
    run(tmp_path / f"b.txt{ending}", vocab, tmp_path / "packed")
    stores = [contents(tmp_path / name) for name in ("plain", "packed")]
    for store in stores:
        del store["manifest.json"]  # names its source
    assert stores[0] == stores[1]


@pytest.mark.parametrize("ending", KINDS)
def test_a_compressed_file_without_its_ending(tmp_path, ending):
    path = write_of_compressed(tmp_path / "a.txt", ending).rename(tmp_path / "a.txt")
    with pytest.raises(UserError, match=rf"a.txt is compressed .* its name does not say so; rename it to …{ending}"):
        find_sources(str(path))


def test_an_archive_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(UserError, match="a.txt is a zip archive; unpack it"):
        find_sources(str(tmp_path / "a.txt"))


def test_zstd_without_the_extra(tmp_path, monkeypatch):
    path = write_of_compressed(tmp_path / "a.jsonl", ".zst")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs backports.zstd.*bert_jax\[corpora\]"):
        find_sources(str(path))


pyarrow = pytest.importorskip("pyarrow")

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
def test_blocks_of_arrow_resume_at_every_position(tmp_path, monkeypatch, name):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2000)
    WRITERS[name](TABLE, tmp_path / name)
    [source] = find_sources(str(tmp_path / name))
    whole = list(read_blocks(source))
    assert len(whole) > 10 and whole[-1].end.offset == len(TEXTS)
    for index, block in enumerate(whole):
        assert list(read_blocks(source, start=block.end)) == whole[index + 1 :]


@pytest.mark.usefixtures("forked_workers")
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
        with contextlib.suppress(UserError):
            list(read_documents(str(tmp_path / name)))


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


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def sentence(draw: random.Random) -> str:
    words = ["".join(draw.choices(LETTERS, k=draw.randrange(2, 10))) for _ in range(draw.randrange(3, 25))]
    return " ".join(words).capitalize() + " stopping."


def paragraphs(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(sentence(draw) for _ in range(draw.randrange(1, 7))) for _ in range(count)]


def lines_of(texts: list[str], width: int = 72) -> list[str]:
    return [line for text in texts for line in textwrap.wrap(text, width)]


def run_of_wrapped(tmp_path, name, text, output, **options):
    (tmp_path / name).write_text(text, encoding="utf-8")
    given = {"input": str(tmp_path / name), "vocab": str(tmp_path / "vocab.txt"), "output": str(tmp_path / output)}
    return prepare.run_prepare(PrepareConfig(**{**given, "workers": 1, **options}))


def shards(tmp_path, output):
    return {path.name: path.read_bytes() for path in sorted((tmp_path / output).glob("shard-*"))}


@pytest.mark.parametrize("width", [45, 60, 72, 79, 100])
def test_wrapped_lines_are_recognised(width):
    lines = lines_of(paragraphs(100), width)
    column, is_wrapped = wrapping.find_column(lines)
    assert is_wrapped and width - 8 <= column <= width


@pytest.mark.parametrize(
    "name, lines",
    [
        ("a paragraph per line", paragraphs(100)),
        ("a sentence per line", [sentence(random.Random(seed)) for seed in range(500)]),
        ("a sentence per line in lower case", [sentence(random.Random(seed)).lower() for seed in range(500)]),
        (
            "a sentence per line without punctuation",
            [sentence(random.Random(seed)).lower().rstrip(".") for seed in range(500)],
        ),
        ("sentences of one pattern", "\n".join(documents.documents(100)).split("\n")),
        ("words", [word for text in paragraphs(20) for word in text.split()]),
        ("wrapped lines in capitals", [line.upper() for line in lines_of(paragraphs(100))]),
        ("verse", [line.capitalize() for line in lines_of(paragraphs(100), 40)]),
        ("a few wrapped lines", lines_of(paragraphs(100))[:9]),
        ("a wrapped line per document", [part for line in lines_of(paragraphs(100)) for part in (line, "")]),
        ("nothing", []),
    ],
)
def test_other_text_is_not(name, lines):
    assert not wrapping.find_column(lines)[1]


@pytest.mark.parametrize("width", [45, 72, 100])
def test_joining_undoes_the_wrapping_of_a_paragraph(width):
    for paragraph in paragraphs(200):
        lines = textwrap.wrap(paragraph, width)
        assert wrapping.join_lines(lines, width) == [paragraph]
        assert wrapping.join_lines([f"  {line} " for line in lines], width) == [paragraph]


def test_paragraphs_are_told_apart_by_the_room_after_them():
    lines = [
        "CHAPTER ONE",
        "It was a dark and stormy night, and the rain fell in",
        "torrents.",
        "A Gust Of Wind Swept Up The Streets,",
        "It Rattled Along The Housetops, Or Agitated The Flames",
        "Against The Darkness.",
    ]
    assert wrapping.join_lines(lines, 54) == [
        "CHAPTER ONE",
        "It was a dark and stormy night, and the rain fell in torrents.",
        "A Gust Of Wind Swept Up The Streets,",
        "It Rattled Along The Housetops, Or Agitated The Flames Against The Darkness.",
    ]


@pytest.mark.parametrize(
    "name, between, newline",
    [("book.txt", "\n", "\n"), ("book.txt", "\n\n", "\n"), ("book.txt", "\n", "\r\n"), ("book.jsonl", "\n\n", "\n")],
)
@pytest.mark.parametrize("block_bytes", [1 << 20, 3000])
def test_wrapped_text_gives_the_plain_store(tmp_path, vocab, monkeypatch, capsys, name, between, newline, block_bytes):
    """With and without blank lines between paragraphs, in one block and in many."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    texts = paragraphs(100)
    plain, wrapped = between.join(texts), between.join("\n".join(textwrap.wrap(text, 72)) for text in texts)
    if name.endswith("jsonl"):
        plain, wrapped = (json.dumps({"text": text}) + "\n" for text in (plain, wrapped))
    manifest = run_of_wrapped(tmp_path, name, wrapped.replace("\n", newline) if newline != "\n" else wrapped, "wrapped")
    shown = capsys.readouterr().out
    assert "hard-wrapped lines of about 7" in shown and "are joined (--wrapped=no" in shown
    assert 65 <= manifest.sources[0].wrap_column <= 72
    assert run_of_wrapped(tmp_path, f"plain-{name}", plain, "plain").sources[0].wrap_column == 0
    assert "hard-wrapped" not in capsys.readouterr().out
    assert shards(tmp_path, "wrapped") == shards(tmp_path, "plain")
    lengths = [len(text.split("stopping.")) - 1 for text in texts]
    assert open_store(tmp_path / "wrapped").num_sentences == sum(lengths)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("between", [pytest.param("\n", marks=pytest.mark.slow), "\n\n"])
def test_the_number_of_workers_and_of_blocks_makes_no_difference(tmp_path, vocab, monkeypatch, between):
    monkeypatch.setattr(store_writer, "SHARD_TOKENS", 20_000)
    text = between.join("\n".join(textwrap.wrap(text, 72)) for text in paragraphs(100))
    stores = []
    for workers, block_bytes in ((1, 1 << 20), (1, 2000), (2, 5000)):
        monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        run_of_wrapped(tmp_path, "book.txt", text, f"store{block_bytes}", workers=workers)
        store = open_store(tmp_path / f"store{block_bytes}")
        stores.append(
            (
                store.manifest.counts,
                store.document_tokens.tolist(),
                store.tokens(range(store.num_tokens)).tolist(),
                store.sentence_starts(range(store.num_sentences)).tolist(),
            )
        )
    assert stores[0] == stores[1] == stores[2]


def test_a_block_of_one_paragraph_is_cut_all_the_same(tmp_path, vocab, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1000)
    paragraph = " ".join(paragraphs(40))
    manifest = run_of_wrapped(tmp_path, "book.txt", "\n".join(textwrap.wrap(paragraph, 72)), "store")
    assert manifest.sources[0].wrap_column and manifest.counts.documents == 1
    assert manifest.counts.tokens == sum(len(word.strip(".")) + word.endswith(".") for word in paragraph.split())


def test_an_interrupted_run_joins_lines_as_it_began(tmp_path, vocab, monkeypatch, capsys):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2000)
    text = "\n".join(lines_of(paragraphs(100)))
    append = store_writer.StoreWriter.append

    def break_off(writer, block, continues):
        if writer.state.tokens > 10_000:
            raise OSError(28, "No space left on device")
        append(writer, block, continues)

    with monkeypatch.context() as patch, pytest.raises(UserError, match="No space left"):
        patch.setattr(store_writer.StoreWriter, "append", break_off)
        run_of_wrapped(tmp_path, "book.txt", text, "store")
    message = "unfinished token store made from something else .sources.0.wrap_column: 7. → 0"
    with pytest.raises(UserError, match=message):
        output = str(tmp_path / "store")
        run_again = PrepareConfig(input=str(tmp_path / "book.txt"), vocab=vocab, output=output, workers=1)
        prepare.run_prepare(dataclasses.replace(run_again, wrapped="no"))
    prepare.run_prepare(run_again)
    assert "resuming in" in capsys.readouterr().out
    prepare.run_prepare(dataclasses.replace(run_again, output=str(tmp_path / "whole")))
    assert shards(tmp_path, "store") == shards(tmp_path, "whole")


def test_what_is_not_joined_is_said(tmp_path, vocab, caplog, capsys):
    lines = lines_of(paragraphs(100))
    said = "and every line end is taken for the end of a sentence; --sentences=split --wrapped=auto joins"
    for options in ({"wrapped": "no"}, {"sentences": "lines"}):
        caplog.clear()
        manifest = run_of_wrapped(tmp_path, "book.txt", "\n".join(lines), f"store-{next(iter(options))}", **options)
        assert manifest.sources[0].wrap_column == 0
        assert manifest.counts.sentences >= len(lines)
        assert (said in caplog.text) == ("wrapped" not in options), "who chose no knows it"
    with pytest.raises(UserError, match="wrapped=yes joins .* sentences=lines takes .* choose one"):
        run_of_wrapped(tmp_path, "book.txt", "\n".join(lines), "new", wrapped="yes", sentences="lines")


def test_no_file_is_looked_at_where_none_is_to_be_joined(tmp_path, vocab, monkeypatch):
    monkeypatch.setattr(wrapping, "find_column", lambda lines: pytest.fail("looked at"))
    run_of_wrapped(tmp_path, "book.txt", "\n".join(lines_of(paragraphs(100))), "store", wrapped="no")


def test_sources_with_a_paragraph_on_each_line_cannot_be_joined(tmp_path, vocab):
    """By order; once they were left as they are without a word."""
    articles = '<doc id="1" title="a">\n' + "\n".join(paragraphs(20)) + "\n</doc>\n"
    message = r"wrapped=yes joins .* but .*wiki_00 \(wikiextractor\) has a whole paragraph on each"
    with pytest.raises(UserError, match=message):
        run_of_wrapped(tmp_path, "wiki_00", articles, "store", wrapped="yes")
    assert not (tmp_path / "store").exists()
    assert run_of_wrapped(tmp_path, "wiki_00", articles, "store").sources[0].wrap_column == 0


def test_a_store_that_differs_in_the_joining_only_says_so(tmp_path, vocab):
    """As one does that was made before lines were joined."""
    run_of_wrapped(tmp_path, "book.txt", "\n".join(lines_of(paragraphs(100))), "old", wrapped="no")
    joined = PrepareConfig(input=str(tmp_path / "book.txt"), vocab=vocab, output=str(tmp_path / "new"), workers=1)
    prepare.run_prepare(joined)
    message = r"wrap_column: 0 → 7.\); choose .*; --wrapped=no keeps the line ends, as that store"
    with pytest.raises(UserError, match=message):
        prepare.run_prepare(dataclasses.replace(joined, output=str(tmp_path / "old")))
    message = r"wrap_column: 7. → 0\); choose .*; --wrapped=auto .* joins lines, as that store does$"
    with pytest.raises(UserError, match=message):
        prepare.run_prepare(dataclasses.replace(joined, wrapped="no"))
    with pytest.raises(UserError, match="made from something else .*; choose another output or delete it$"):
        prepare.run_prepare(dataclasses.replace(joined, wrapped="no", bad_utf8="replace"))


def test_lines_can_be_joined_by_order(tmp_path, vocab):
    """Text in capitals gives no evidence."""
    text = "\n".join(line.upper() for line in lines_of(paragraphs(100)))
    assert run_of_wrapped(tmp_path, "book.txt", text, "auto").sources[0].wrap_column == 0
    manifest = run_of_wrapped(tmp_path, "book.txt", text, "yes", wrapped="yes")
    assert manifest.sources[0].wrap_column >= 65
    assert manifest.counts.sentences < open_store(tmp_path / "auto").num_sentences / 2


def test_each_file_is_decided_upon(tmp_path, vocab, capsys):
    (tmp_path / "b.txt").write_text("\n".join(paragraphs(100)))
    (tmp_path / "a.txt").write_text("\n".join(lines_of(paragraphs(100), 60)))
    inputs, last = f"{tmp_path}/a.txt,{tmp_path}/b.txt,{tmp_path}/c.txt", "\n".join(lines_of(paragraphs(100), 90))
    manifest = run_of_wrapped(tmp_path, "c.txt", last, "store", input=inputs)
    columns = [source.wrap_column for source in manifest.sources]
    assert 52 <= columns[0] <= 60 and columns[1] == 0 and 82 <= columns[2] <= 90
    assert f"2 of 3 sources ({tmp_path}/a.txt, …): hard-wrapped lines" in capsys.readouterr().out


def test_a_long_file_is_judged_by_its_beginning():
    lines = lines_of(paragraphs(100))
    column, is_wrapped = wrapping.find_column(lines)
    assert is_wrapped
    many = lines * (wrapping.SAMPLE_CHARACTERS // sum(map(len, lines)) + 1)
    unread = iter(lambda: pytest.fail("read to the end"), None)
    assert wrapping.find_column(line for part in (many, unread) for line in part) == (column, True)


@pytest.mark.parametrize(
    "count, says",
    [
        (1, "The corpus has one document, and .*data.held_out=0.01 leaves nothing to train on"),
        (4, r"The corpus has only 4 documents, and .*data.held_out=0.01 keeps 1 of them \(25%\) for evaluation"),
        (99, r"only 99 documents, .*keeps 1 of them \(1%\)"),
        (100, ""),
    ],
)
def test_a_handful_of_documents_is_said(tmp_path, vocab, caplog, count, says):
    run_of_wrapped(tmp_path, "corpus.txt", "\n\n".join(paragraphs(count)), "store")
    if says:
        [record] = caplog.records
        caplog.clear()
        assert re.search(says, record.getMessage()) and "blank line" in record.getMessage()
        assert "--data.eval_path" in record.getMessage()
    assert not caplog.records


def test_wrapped_paragraphs_between_blank_lines_are_said_to_be_documents(tmp_path, vocab, caplog):
    texts = [text for text in paragraphs(400) if text.count(".") < 4]
    run_of_wrapped(tmp_path, "book.txt", "\n\n".join("\n".join(textwrap.wrap(text, 72)) for text in texts), "store")
    tokens = sum(len(word.strip(".")) + word.endswith(".") for text in texts for word in text.split())
    [record] = [record for record in caplog.records if "A blank line ends a document" in record.getMessage()]
    sentences = sum(text.count(".") for text in texts)
    means = f"{sentences / len(texts):.1f} sentences and {tokens / len(texts):.0f} tokens on average"
    assert means in record.getMessage()


def test_a_novel_that_is_wrapped_again(tmp_path, shared_data):
    """Its paragraphs are known: 7,356 sentences. A few paragraphs whose last line is full are joined to the next."""
    novel = gzip.decompress((shared_data / "novels" / "Cbronte_Jane_1847.txt.gz").read_bytes()).decode("utf-8-sig")
    lines = [" ".join(line.split()) for line in novel.split("\n") if line.strip()]
    shutil.copy(shared_data / "vocab" / "uncased" / "vocab.txt", tmp_path)
    plain = run_of_wrapped(tmp_path, "plain.txt", "\n".join(lines), "plain")
    wrapped = run_of_wrapped(tmp_path, "wrapped.txt", "\n".join(lines_of(lines)), "wrapped")
    assert plain.sources[0].wrap_column == 0 and 70 <= wrapped.sources[0].wrap_column <= 72
    assert wrapped.counts.sentences == pytest.approx(plain.counts.sentences, rel=0.005)
