"""Every form of input gives the documents that went into it, and every bad one a UserError that says where."""

import gzip
import json
import random

import pytest
import tiny_data_set

from bert_jax.corpus import blocks, documentation
from bert_jax.corpus.blocks import parse_block, read_blocks
from bert_jax.corpus.readers import find_sources, read_documents
from bert_jax.corpus.text import make_splitter
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
    with pytest.raises(UserError, match=match) as error:
        read(input, **options)
    assert "\n" not in str(error.value)


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
    fails("UTF-16", write(tmp_path / "wide.txt", good.encode("utf-16")))


def test_replaced_bytes_are_counted(tmp_path):
    [source] = find_sources(write(tmp_path / "a.txt", b"a\xff b\xfe and a true \xef\xbf\xbd"))
    [block] = blocks.read_blocks(source)
    assert blocks.parse_block(block, bad_utf8="replace").replaced == 2


def test_json_errors_name_the_line(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 32)
    good = '{"text": "fine"}\n' * 7
    fails("a.jsonl:8: not a JSON object", write(tmp_path / "a.jsonl", good + '{"text": "cut\n'))
    fails(
        "b.jsonl:8: no field 'text', the record has the fields 'body'",
        write(tmp_path / "b.jsonl", good + '{"body": "x"}\n'),
    )
    fails(
        "c.jsonl:8: the field 'text' holds 3, not a string; remove the record, or",
        write(tmp_path / "c.jsonl", good + '{"text": 3}\n'),
    )
    fails("d.jsonl:8: no field 'text', the record is not an object", write(tmp_path / "d.jsonl", good + "[1]\n"))
    fails("e.jsonl:8: not a JSON", write(tmp_path / "e.jsonl", good + "[" * 100_000 + "\n"))
    monkeypatch.setattr(blocks, "MAX_RECORD_BYTES", 64)
    fails("f.jsonl:8: a line of more than", write(tmp_path / "f.jsonl", good + '{"text": "' + "x" * 200 + '"}'))


def test_lone_surrogates_of_json_become_text(tmp_path):
    """JSON can spell half of a surrogate pair, which is no character and no tokenizer takes; a whole pair is one."""
    path = write(tmp_path / "a.jsonl", '{"text": "a\\ud800b\\u0000c"}\n{"text": "\\ud83d\\ude00 \\udc00\\udfff"}')
    assert read(path) == ["a\ufffdbc", "\U0001f600 \ufffd\ufffd"]
    (source,) = find_sources(str(path))
    assert [parse_block(block).replaced for block in read_blocks(source)] == [3]


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-20], lambda data: data[:40] + b"\0" * 40 + data[80:], lambda data: b"no gzip"]
)
def test_a_damaged_gzip_file_is_refused(tmp_path, damage):
    rng = random.Random(0)
    path = tmp_path / "a.txt.gz"
    path.write_bytes(damage(gzip.compress("".join(chr(rng.randrange(97, 123)) for _ in range(2000)).encode())))
    fails("a.txt.gz is not a whole gzip file", path)


@pytest.mark.slow
@pytest.mark.parametrize("files", [1, 3])
def test_tfds_through_a_builder_of_our_own(tmp_path, monkeypatch, files):
    pytest.importorskip("tensorflow_datasets")
    wiki40b = ["\n_START_ARTICLE_\nTitle\n_START_PARAGRAPH_\nOne._NEWLINE_Two."]
    tiny_data_set.prepare(tmp_path, monkeypatch, {"train": DOCUMENTS, "test": wiki40b * files}, files)
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
    tiny_data_set.prepare(tmp_path, monkeypatch, {"train": texts}, files=4)
    found = find_sources("tfds:tiny_corpus")
    assert [source.name for source in found] == [
        f"tfds:tiny_corpus:train[{number}shard:{number + 1}shard]" for number in range(4)
    ]
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
