"""Hard-wrapped text becomes the store of the same text before it was wrapped; other text is left alone."""

import dataclasses
import gzip
import json
import random
import re
import shutil
import textwrap

import pytest
import small_corpus

from bert_jax.config import PrepareConfig
from bert_jax.corpus import blocks
from bert_jax.corpus import text as wrapping
from bert_jax.data.preparation import prepare
from bert_jax.data.preparation import writer as store_writer
from bert_jax.data.store import open_store
from bert_jax.errors import UserError

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def sentence(draw: random.Random) -> str:
    words = ["".join(draw.choices(LETTERS, k=draw.randrange(2, 10))) for _ in range(draw.randrange(3, 25))]
    return " ".join(words).capitalize() + " stopping."


def paragraphs(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(sentence(draw) for _ in range(draw.randrange(1, 7))) for _ in range(count)]


def lines_of(texts: list[str], width: int = 72) -> list[str]:
    return [line for text in texts for line in textwrap.wrap(text, width)]


def run(tmp_path, name, text, output, **options):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return prepare.run_prepare(
        PrepareConfig(
            **{
                "input": str(tmp_path / name),
                "vocab": str(tmp_path / "vocab.txt"),
                "output": str(tmp_path / output),
                "workers": 1,
                **options,
            }
        )
    )


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
        ("sentences of one pattern", "\n".join(small_corpus.documents(100)).split("\n")),
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
def test_a_wrapped_corpus_gives_the_store_of_the_unwrapped_one(
    tmp_path, vocab, monkeypatch, capsys, name, between, newline, block_bytes
):
    """With and without blank lines between paragraphs, in one block and in many."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    texts = paragraphs(100)
    plain, wrapped = between.join(texts), between.join("\n".join(textwrap.wrap(text, 72)) for text in texts)
    if name.endswith("jsonl"):
        plain, wrapped = (json.dumps({"text": text}) + "\n" for text in (plain, wrapped))
    manifest = run(tmp_path, name, wrapped.replace("\n", newline) if newline != "\n" else wrapped, "wrapped")
    shown = capsys.readouterr().out
    assert "hard-wrapped lines of about 7" in shown and "are joined (--wrapped=no" in shown
    assert 65 <= manifest.sources[0].wrap_column <= 72
    assert run(tmp_path, f"plain-{name}", plain, "plain").sources[0].wrap_column == 0
    assert "hard-wrapped" not in capsys.readouterr().out
    assert shards(tmp_path, "wrapped") == shards(tmp_path, "plain")
    lengths = [len(text.split("stopping.")) - 1 for text in texts]
    assert open_store(tmp_path / "wrapped").num_sentences == sum(lengths)


@pytest.mark.parametrize("between", ["\n", "\n\n"])
def test_the_number_of_workers_and_of_blocks_makes_no_difference(tmp_path, vocab, monkeypatch, between):
    monkeypatch.setattr(store_writer, "SHARD_TOKENS", 20_000)
    text = between.join("\n".join(textwrap.wrap(text, 72)) for text in paragraphs(100))
    stores = []
    for workers, block_bytes in ((1, 1 << 20), (1, 2000), (2, 5000)):
        monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        run(tmp_path, "book.txt", text, f"store{block_bytes}", workers=workers)
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
    manifest = run(tmp_path, "book.txt", "\n".join(textwrap.wrap(paragraph, 72)), "store")
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
        run(tmp_path, "book.txt", text, "store")
    with pytest.raises(
        UserError, match="unfinished token store made from something else .sources.0.wrap_column: 7. → 0"
    ):
        run_again = PrepareConfig(
            input=str(tmp_path / "book.txt"), vocab=vocab, output=str(tmp_path / "store"), workers=1
        )
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
        manifest = run(tmp_path, "book.txt", "\n".join(lines), f"store-{next(iter(options))}", **options)
        assert manifest.sources[0].wrap_column == 0
        assert manifest.counts.sentences >= len(lines)
        assert (said in caplog.text) == ("wrapped" not in options), "who chose no knows it"
    with pytest.raises(UserError, match="wrapped=yes joins .* sentences=lines takes .* choose one"):
        run(tmp_path, "book.txt", "\n".join(lines), "new", wrapped="yes", sentences="lines")


def test_no_file_is_looked_at_where_none_is_to_be_joined(tmp_path, vocab, monkeypatch):
    monkeypatch.setattr(wrapping, "find_column", lambda lines: pytest.fail("looked at"))
    run(tmp_path, "book.txt", "\n".join(lines_of(paragraphs(100))), "store", wrapped="no")


def test_sources_with_a_paragraph_on_each_line_cannot_be_joined(tmp_path, vocab):
    """By order; once they were left as they are without a word."""
    articles = '<doc id="1" title="a">\n' + "\n".join(paragraphs(20)) + "\n</doc>\n"
    with pytest.raises(
        UserError, match=r"wrapped=yes joins .* but .*wiki_00 \(wikiextractor\) has a whole paragraph on each"
    ):
        run(tmp_path, "wiki_00", articles, "store", wrapped="yes")
    assert not (tmp_path / "store").exists()
    assert run(tmp_path, "wiki_00", articles, "store").sources[0].wrap_column == 0


def test_a_store_that_differs_in_the_joining_only_says_so(tmp_path, vocab):
    """As one does that was made before lines were joined."""
    run(tmp_path, "book.txt", "\n".join(lines_of(paragraphs(100))), "old", wrapped="no")
    joined = PrepareConfig(input=str(tmp_path / "book.txt"), vocab=vocab, output=str(tmp_path / "new"), workers=1)
    prepare.run_prepare(joined)
    with pytest.raises(
        UserError, match=r"wrap_column: 0 → 7.\); choose .*; --wrapped=no keeps the line ends, as that store"
    ):
        prepare.run_prepare(dataclasses.replace(joined, output=str(tmp_path / "old")))
    with pytest.raises(
        UserError, match=r"wrap_column: 7. → 0\); choose .*; --wrapped=auto .* joins lines, as that store does$"
    ):
        prepare.run_prepare(dataclasses.replace(joined, wrapped="no"))
    with pytest.raises(UserError, match="made from something else .*; choose another output or delete it$"):
        prepare.run_prepare(dataclasses.replace(joined, wrapped="no", bad_utf8="replace"))


def test_lines_can_be_joined_by_order(tmp_path, vocab):
    """Text in capitals gives no evidence."""
    text = "\n".join(line.upper() for line in lines_of(paragraphs(100)))
    assert run(tmp_path, "book.txt", text, "auto").sources[0].wrap_column == 0
    manifest = run(tmp_path, "book.txt", text, "yes", wrapped="yes")
    assert manifest.sources[0].wrap_column >= 65
    assert manifest.counts.sentences < open_store(tmp_path / "auto").num_sentences / 2


def test_each_file_is_decided_upon(tmp_path, vocab, capsys):
    (tmp_path / "b.txt").write_text("\n".join(paragraphs(100)))
    (tmp_path / "a.txt").write_text("\n".join(lines_of(paragraphs(100), 60)))
    manifest = run(
        tmp_path,
        "c.txt",
        "\n".join(lines_of(paragraphs(100), 90)),
        "store",
        input=f"{tmp_path}/a.txt,{tmp_path}/b.txt,{tmp_path}/c.txt",
    )
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
    run(tmp_path, "corpus.txt", "\n\n".join(paragraphs(count)), "store")
    if says:
        [record] = caplog.records
        caplog.clear()
        assert re.search(says, record.getMessage()) and "blank line" in record.getMessage()
        assert "--data.eval_path" in record.getMessage()
    assert not caplog.records


def test_wrapped_paragraphs_between_blank_lines_are_said_to_be_documents(tmp_path, vocab, caplog):
    texts = [text for text in paragraphs(400) if text.count(".") < 4]
    run(tmp_path, "book.txt", "\n\n".join("\n".join(textwrap.wrap(text, 72)) for text in texts), "store")
    tokens = sum(len(word.strip(".")) + word.endswith(".") for text in texts for word in text.split())
    [record] = [record for record in caplog.records if "A blank line ends a document" in record.getMessage()]
    sentences = sum(text.count(".") for text in texts)
    assert (
        f"{sentences / len(texts):.1f} sentences and {tokens / len(texts):.0f} tokens on average" in record.getMessage()
    )


def test_a_novel_that_is_wrapped_again(tmp_path, shared_data):
    """Its paragraphs are known: 7,356 sentences. A few paragraphs whose last line is full are joined to the next."""
    novel = gzip.decompress((shared_data / "novels" / "Cbronte_Jane_1847.txt.gz").read_bytes()).decode("utf-8-sig")
    lines = [" ".join(line.split()) for line in novel.split("\n") if line.strip()]
    shutil.copy(shared_data / "vocab" / "uncased" / "vocab.txt", tmp_path)
    plain = run(tmp_path, "plain.txt", "\n".join(lines), "plain")
    wrapped = run(tmp_path, "wrapped.txt", "\n".join(lines_of(lines)), "wrapped")
    assert plain.sources[0].wrap_column == 0 and 70 <= wrapped.sources[0].wrap_column <= 72
    assert wrapped.counts.sentences == pytest.approx(plain.counts.sentences, rel=0.005)
